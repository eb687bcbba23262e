//! Rows as JSON lines: first the columns, then one array per row, and finally the metadata or the
//! error.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use futures_util::stream::{self, StreamExt};
use rusqlite::types::ValueRef;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::reply::{self, HttpRefusal};
use crate::daemon::clients::Served;
use crate::query::{Meta, Sink, json as values};

/// Size of a chunk, in bytes.
const CHUNK: usize = 32 << 10;
/// Maximum number of chunks that wait for a slow reader.
const AHEAD: usize = 4;
/// Time in which a reader must take a chunk. A slower reader loses its permit, because other
/// clients wait for it.
const STALLED: Duration = Duration::from_secs(10);

/// A chunk of the body, or the error response.
pub(super) type Chunk = std::result::Result<Bytes, HttpRefusal>;

/// A sink that sends its rows to the client. It blocks, so it needs its own thread.
pub(super) struct LineSink {
    parts: mpsc::Sender<Chunk>,
    runtime: Handle,
    chunk: Vec<u8>,
    sent: bool,
    rows: u64,
    bytes: u64,
    most: RowsMost,
    /// Deadline for reading all rows; set when the first row arrives.
    until: Option<Instant>,
}

/// Limits of a query's rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsMost {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// From the first row on.
    pub(super) time: Duration,
}

impl LineSink {
    /// Returns a sink with these limits, and the receiver of its chunks.
    pub(super) fn new(most: RowsMost, runtime: Handle) -> (Self, mpsc::Receiver<Chunk>) {
        let (parts, receive) = mpsc::channel(AHEAD);
        let (chunk, sent) = (Vec::new(), false);
        (Self { parts, runtime, chunk, sent, rows: 0, bytes: 0, most, until: None }, receive)
    }

    /// Ends the lines. An error before the first chunk becomes an error response.
    pub(super) fn close(mut self, ended: std::result::Result<&Meta, HttpRefusal>) {
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
        self.until = Some(Instant::now() + STALLED);
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
        let left = self.until.map_or(STALLED, |u| u.saturating_duration_since(Instant::now()));
        let sending =
            async { tokio::time::timeout(left.min(STALLED), parts.send(Ok(chunk))).await };
        match self.runtime.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::new(ErrorKind::BrokenPipe, "the client has disconnected")),
            Err(_) if left > STALLED => {
                let why = format!("the client read nothing for {} s", STALLED.as_secs());
                Err(Error::new(ErrorKind::TimedOut, why))
            }
            Err(_) => Err(self.too_slow()),
        }
    }

    fn too_slow(&self) -> Error {
        let why =
            format!("the client did not read the rows within {} s", self.most.time.as_secs_f64());
        Error::new(ErrorKind::TimedOut, why)
    }
}

impl Sink for LineSink {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.until = Instant::now().checked_add(self.most.time);
        self.line(&json!({ "columns": names }));
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.rows += 1;
        if self.rows > self.most.rows {
            let why = format!("the result has more than {} rows", self.most.rows);
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        if self.until.is_some_and(|u| u < Instant::now()) {
            return Err(self.too_slow());
        }
        self.bytes += row.iter().map(length).sum::<u64>();
        if self.bytes > self.most.bytes {
            let why = format!("the result has more than {} bytes", self.most.bytes);
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

/// Returns the approximate size of a value, in bytes.
pub(super) fn length(value: &ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len() as u64,
        _ => 8,
    }
}

/// Returns the response body, from its first chunk on. When the client leaves, the guard in the
/// stream is dropped, which ends the query.
pub(super) fn body(first: Bytes, parts: mpsc::Receiver<Chunk>, served: Served) -> Body {
    let rest = stream::unfold((parts, served), |(mut parts, served)| async move {
        let part = parts.recv().await?;
        let part = part.map_err(|refusal| Error::other(refusal.failure.message()));
        Some((part, (parts, served)))
    });
    Body::from_stream(stream::iter([Ok(first)]).chain(rest))
}
