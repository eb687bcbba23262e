//! A request body that is streamed from a file, between a head and a tail.

use std::io::Read;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Size in bytes of the chunks in which a file is read.
const CHUNK_BYTES: usize = 64 << 10;

/// Request body with the content of a file.
pub(super) struct FileBody {
    head: Option<Bytes>,
    file: std::fs::File,
    /// Number of bytes of the file that are still to be sent.
    file_bytes: u64,
    /// Replacement for the file's line breaks; `None` keeps them.
    line_break: Option<u8>,
    tail: Option<Bytes>,
    /// Number of bytes still to be sent.
    remaining_bytes: u64,
}

impl FileBody {
    /// Opens a file as a body between `head` and `tail`.
    pub(super) fn open(path: &Path, head: String, tail: String) -> std::io::Result<Self> {
        let file = std::fs::File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let remaining_bytes = head.len() as u64 + file_bytes + tail.len() as u64;
        let (head, tail) = (Some(head.into()), Some(tail.into()));
        Ok(Self { head, file, file_bytes, line_break: None, tail, remaining_bytes })
    }

    /// Opens a file of JSON lines as a body in which the lines are the items of an array. Omits the
    /// line break at the end of the file.
    pub(super) fn open_lines(path: &Path, head: String, tail: String) -> std::io::Result<Self> {
        let body = Self::open(path, head, tail)?;
        let (file_bytes, remaining_bytes) =
            (body.file_bytes.saturating_sub(1), body.remaining_bytes.saturating_sub(1));
        Ok(Self { file_bytes, remaining_bytes, line_break: Some(b','), ..body })
    }

    /// Returns the length of the body in bytes.
    pub(super) fn byte_count(&self) -> u64 {
        self.remaining_bytes
    }

    fn next_chunk(&mut self) -> std::io::Result<Option<Bytes>> {
        if let Some(head) = self.head.take() {
            return Ok(Some(head));
        }
        let size = CHUNK_BYTES.min(usize::try_from(self.file_bytes).unwrap_or(CHUNK_BYTES));
        let mut chunk = vec![0; size];
        let read_bytes = if size == 0 { 0 } else { self.file.read(&mut chunk)? };
        if read_bytes == 0 {
            return Ok(self.tail.take());
        }
        self.file_bytes -= read_bytes as u64;
        chunk.truncate(read_bytes);
        if let Some(separator) = self.line_break {
            chunk.iter_mut().filter(|b| **b == b'\n').for_each(|b| *b = separator);
        }
        Ok(Some(chunk.into()))
    }
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let next = self.next_chunk().transpose();
        if let Some(Ok(chunk)) = &next {
            self.remaining_bytes = self.remaining_bytes.saturating_sub(chunk.len() as u64);
        }
        Poll::Ready(next.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none() && self.tail.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining_bytes)
    }
}
