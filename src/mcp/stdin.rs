//! Handles lines that are too long for the protocol's transport, which drops them silently.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use rmcp::transport::async_rw::DEFAULT_MAX_LINE_LENGTH;
use tokio::io::{AsyncBufRead, AsyncRead, BufReader, ReadBuf};

/// A line to which the transport responds with "invalid request".
const INVALID_REQUEST: &[u8] = b"{}\n";

/// A reader that inserts an invalid request after each line that is too long, so that the client
/// receives an error.
pub struct LineLimitReader<R> {
    inner: BufReader<R>,
    /// Number of bytes read so far of the current line.
    length: usize,
    /// Rest of the inserted line.
    inserted: &'static [u8],
    first_byte: FirstByte,
}

/// First byte of stdin that is not white space; 0 before it is read.
#[derive(Debug, Clone, Default)]
pub struct FirstByte(Arc<AtomicU8>);

impl FirstByte {
    fn read_from(&self, bytes: &[u8]) {
        if let Some(byte) = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            let _ = self.0.compare_exchange(0, *byte, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns true if stdin begins with something other than a JSON object or list.
    pub fn is_not_json(&self) -> bool {
        !matches!(self.0.load(Ordering::Relaxed), 0 | b'{' | b'[')
    }

    /// Returns true if anything but white space was read.
    pub fn is_read(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl<R: AsyncRead> LineLimitReader<R> {
    pub fn new(inner: R, first_byte: FirstByte) -> Self {
        Self { inner: BufReader::new(inner), length: 0, inserted: &[], first_byte }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for LineLimitReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.inserted.is_empty() {
            let (part, rest) = self.inserted.split_at(self.inserted.len().min(out.remaining()));
            out.put_slice(part);
            self.inserted = rest;
            return Poll::Ready(Ok(()));
        }
        let first_byte = self.first_byte.clone();
        let available = ready!(Pin::new(&mut self.inner).poll_fill_buf(context))?;
        let available = &available[..available.len().min(out.remaining())];
        let newline = available.iter().position(|byte| *byte == b'\n');
        let count = newline.map_or(available.len(), |at| at + 1);
        out.put_slice(&available[..count]);
        first_byte.read_from(&available[..count]);
        Pin::new(&mut self.inner).consume(count);
        self.length = self.length.saturating_add(count);
        if newline.is_some() {
            if self.length > DEFAULT_MAX_LINE_LENGTH {
                self.inserted = INVALID_REQUEST;
            }
            self.length = 0;
        }
        Poll::Ready(Ok(()))
    }
}
