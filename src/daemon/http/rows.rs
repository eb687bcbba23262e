//! Rows on their way to a client, as JSON lines: first the columns, then an
//! array a row, at last the meta or the error.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use http_body::{Body, Frame};
use rusqlite::types::ValueRef;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::reply::{self, Refusal};
use crate::daemon::clients::Served;
use crate::query::{Meta, Sink, json as values};

/// Bytes that go together.
const CHUNK: usize = 32 << 10;
/// Chunks that may wait for a slow reader.
const AHEAD: usize = 4;
/// How long a reader may take for a chunk before it is taken to be gone.
const STALLED: Duration = Duration::from_secs(60);

/// A chunk, or why there is none.
pub(super) type Part = std::result::Result<Bytes, Refusal>;

/// A sink that sends its rows; it is used on a thread that may wait.
pub(super) struct Lines {
    parts: mpsc::Sender<Part>,
    runtime: Handle,
    chunk: Vec<u8>,
    sent: bool,
    rows: u64,
    most: u64,
}

impl Lines {
    /// A sink for so many rows at most, and what comes out of it.
    pub(super) fn new(most: u64, runtime: Handle) -> (Self, mpsc::Receiver<Part>) {
        let (parts, receive) = mpsc::channel(AHEAD);
        (Self { parts, runtime, chunk: Vec::new(), sent: false, rows: 0, most }, receive)
    }

    /// Ends the lines. What failed before anything was sent is told as such.
    pub(super) fn close(mut self, ended: std::result::Result<&Meta, Refusal>) {
        match ended {
            Ok(meta) => self.line(&json!({ "meta": meta.to_json() })),
            Err(refusal) if self.sent => {
                self.line(&json!({ "error": reply::error(&refusal.failure) }));
            }
            Err(refusal) => {
                let _ = self.parts.blocking_send(Err(refusal));
                return;
            }
        }
        let _ = self.flush();
    }

    fn line(&mut self, json: &serde_json::Value) {
        self.chunk.extend_from_slice(json.to_string().as_bytes());
        self.chunk.push(b'\n');
    }

    fn flush(&mut self) -> Result<()> {
        let chunk = Bytes::from(std::mem::take(&mut self.chunk));
        if chunk.is_empty() {
            return Ok(());
        }
        self.sent = true;
        let parts = &self.parts;
        let sending = async { tokio::time::timeout(STALLED, parts.send(Ok(chunk))).await };
        match self.runtime.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            _ => Err(Error::new(ErrorKind::BrokenPipe, "the client has gone")),
        }
    }
}

impl Sink for Lines {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.line(&json!({ "columns": names }));
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.rows += 1;
        if self.rows > self.most {
            let why = format!("the result has more than {} rows", self.most);
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        for (n, value) in row.iter().enumerate() {
            self.chunk.push(if n == 0 { b'[' } else { b',' });
            values::write(&mut self.chunk, *value)?;
        }
        self.chunk.extend_from_slice(b"]\n");
        if self.chunk.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The body that clients read: what is dropped when they go ends the query.
pub(super) struct Reading {
    pub(super) first: Option<Bytes>,
    pub(super) parts: mpsc::Receiver<Part>,
    pub(super) _served: Served,
}

impl Body for Reading {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.parts.poll_recv(context).map(|part| {
            let frame = |bytes| Ok(Frame::data(bytes));
            part.map(|p| p.map_or_else(|r| Err(Error::other(r.failure.message())), frame))
        })
    }
}
