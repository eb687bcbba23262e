//! Handles lines that are too long for the protocol's transport, which drops them silently.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
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

/// First byte of stdin that is not white space, as soon as it is read.
pub type FirstByte = Arc<OnceLock<u8>>;

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
        let this = &mut *self;
        let available = ready!(Pin::new(&mut this.inner).poll_fill_buf(context))?;
        let available = &available[..available.len().min(out.remaining())];
        let newline = available.iter().position(|byte| *byte == b'\n');
        let count = newline.map_or(available.len(), |at| at + 1);
        out.put_slice(&available[..count]);
        if let Some(byte) = available[..count].iter().find(|byte| !byte.is_ascii_whitespace()) {
            let _ = this.first_byte.set(*byte);
        }
        Pin::new(&mut this.inner).consume(count);
        this.length = this.length.saturating_add(count);
        if newline.is_some() {
            if this.length > DEFAULT_MAX_LINE_LENGTH {
                this.inserted = INVALID_REQUEST;
            }
            this.length = 0;
        }
        Poll::Ready(Ok(()))
    }
}
