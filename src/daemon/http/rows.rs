//! Sends rows as JSON lines: first the columns, then one array per row, and finally the metadata or
//! the error.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use futures_util::stream::{self, StreamExt};
use rusqlite::types::ValueRef;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::reply::{self, HttpError};
use crate::daemon::clients::ClientGuard;
use crate::query::result::json as values;
use crate::query::{Meta, RowSink};

/// Size of a chunk, in bytes.
const CHUNK_BYTES: usize = 32 << 10;
/// Maximum number of chunks that wait for a slow reader.
const MAX_CHUNKS_AHEAD: usize = 4;
/// Time within which a reader must accept a chunk. The query of a slower reader ends, because other
/// clients wait for its permit.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);

/// A chunk of the body, or the error response.
pub(super) type Chunk = std::result::Result<Bytes, HttpError>;

/// A sink that sends its rows to the client. It blocks, so it needs its own thread.
pub(super) struct LineSink {
    chunks: mpsc::Sender<Chunk>,
    runtime: Handle,
    chunk: Vec<u8>,
    sent: bool,
    rows: u64,
    bytes: u64,
    limits: RowLimits,
    /// Deadline for reading all rows; set when the columns arrive.
    deadline: Option<Instant>,
}

/// Limits of a query's rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowLimits {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Time limit for reading all rows, counted from the arrival of the columns.
    pub(super) time: Duration,
}

impl LineSink {
    /// Returns a sink with these limits, and the receiver of its chunks.
    pub(super) fn new(limits: RowLimits, runtime: Handle) -> (Self, mpsc::Receiver<Chunk>) {
        let (chunks, receive) = mpsc::channel(MAX_CHUNKS_AHEAD);
        let (chunk, sent) = (Vec::new(), false);
        (Self { chunks, runtime, chunk, sent, rows: 0, bytes: 0, limits, deadline: None }, receive)
    }

    /// Ends the response. An error before the first chunk becomes an error response.
    pub(super) fn end_response(mut self, ended: std::result::Result<&Meta, HttpError>) {
        match ended {
            Ok(meta) => self.push_line(&json!({ "meta": meta.to_json() })),
            Err(error) if self.sent => {
                self.push_line(&json!({ "error": reply::error_to_json(&error.failure) }));
            }
            Err(error) => {
                let _ = self.chunks.blocking_send(Err(error));
                return;
            }
        }
        self.deadline = Some(Instant::now() + CHUNK_TIMEOUT);
        let _ = self.send_chunk();
    }

    fn push_line(&mut self, json: &serde_json::Value) {
        self.chunk.extend_from_slice(json.to_string().as_bytes());
        self.chunk.push(b'\n');
    }

    fn send_chunk(&mut self) -> Result<()> {
        let chunk = Bytes::from(std::mem::take(&mut self.chunk));
        if chunk.is_empty() {
            return Ok(());
        }
        self.sent = true;
        let chunks = &self.chunks;
        let left =
            self.deadline.map_or(CHUNK_TIMEOUT, |u| u.saturating_duration_since(Instant::now()));
        let sending =
            async { tokio::time::timeout(left.min(CHUNK_TIMEOUT), chunks.send(Ok(chunk))).await };
        match self.runtime.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::new(ErrorKind::BrokenPipe, "the client has disconnected")),
            Err(_) if left > CHUNK_TIMEOUT => {
                let why = format!("the client read nothing for {} s", CHUNK_TIMEOUT.as_secs());
                Err(Error::new(ErrorKind::TimedOut, why))
            }
            Err(_) => Err(self.timeout_error()),
        }
    }

    fn timeout_error(&self) -> Error {
        let why =
            format!("the client did not read the rows within {} s", self.limits.time.as_secs_f64());
        Error::new(ErrorKind::TimedOut, why)
    }
}

impl RowSink for LineSink {
    fn write_columns(&mut self, names: &[String]) -> Result<()> {
        self.deadline = Instant::now().checked_add(self.limits.time);
        self.push_line(&json!({ "columns": names }));
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.rows += 1;
        if self.rows > self.limits.rows {
            let why = format!("the result has more than {} rows", self.limits.rows);
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        if self.deadline.is_some_and(|u| u < Instant::now()) {
            return Err(self.timeout_error());
        }
        self.bytes += row.iter().map(estimate_value_length).sum::<u64>();
        if self.bytes > self.limits.bytes {
            let why = format!("the result has more than {} bytes", self.limits.bytes);
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        for (n, value) in row.iter().enumerate() {
            self.chunk.push(if n == 0 { b'[' } else { b',' });
            values::write_json(&mut self.chunk, *value)?;
        }
        self.chunk.extend_from_slice(b"]\n");
        if self.chunk.len() >= CHUNK_BYTES { self.send_chunk() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A writer that sends its bytes to the client. It blocks, so it needs its own thread.
pub(super) struct ChunkWriter {
    chunks: mpsc::Sender<Chunk>,
    runtime: Handle,
    chunk: Vec<u8>,
}

impl ChunkWriter {
    pub(super) fn new(runtime: Handle) -> (Self, mpsc::Receiver<Chunk>) {
        let (chunks, receive) = mpsc::channel(MAX_CHUNKS_AHEAD);
        (Self { chunks, runtime, chunk: Vec::new() }, receive)
    }

    /// Ends the body. An error before the first chunk becomes an error response; a later error
    /// truncates the body.
    pub(super) fn close(mut self, ended: std::result::Result<(), HttpError>) {
        match ended {
            Ok(()) => drop(std::io::Write::flush(&mut self)),
            Err(error) => drop(self.chunks.blocking_send(Err(error))),
        }
    }
}

impl std::io::Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::from(std::mem::take(&mut self.chunk));
        let sending =
            async { tokio::time::timeout(CHUNK_TIMEOUT, self.chunks.send(Ok(chunk))).await };
        match self.runtime.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::new(ErrorKind::BrokenPipe, "the client has disconnected")),
            Err(_) => Err(Error::new(ErrorKind::TimedOut, "the client reads too slowly")),
        }
    }
}

/// Returns the approximate size of a value, in bytes.
pub(super) fn estimate_value_length(value: &ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len() as u64,
        _ => 8,
    }
}

/// Returns the response body, starting with its first chunk. When the client disconnects, the
/// stream and its guard are dropped, which ends the query.
pub(super) fn stream_body(
    first: Bytes,
    chunks: mpsc::Receiver<Chunk>,
    client_guard: ClientGuard,
) -> Body {
    let rest = stream::unfold((chunks, client_guard), |(mut parts, served)| async move {
        let chunk = parts.recv().await?;
        let part = chunk.map_err(|error| Error::other(error.failure.message()));
        Some((part, (parts, served)))
    });
    Body::from_stream(stream::iter([Ok(first)]).chain(rest))
}
