//! Answers lines of a client that the protocol's transport would drop silently, or reject without a
//! reason.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use rmcp::transport::async_rw::DEFAULT_MAX_LINE_LENGTH;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// A line to which the transport responds with [`INVALID_RESPONSE`].
const INVALID_REQUEST: &[u8] = b"{}\n";
/// The transport's response to an invalid request, which names no reason.
const INVALID_RESPONSE: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32600,\"message\":\"Invalid request\"}}\n";
/// JSON-RPC error: the line is not JSON.
const PARSE_ERROR: i32 = -32700;
/// JSON-RPC error: the line is not a request.
const REQUEST_ERROR: i32 = -32600;

/// Responses to the rejected lines that the transport has not responded to yet.
pub type RejectedLines = Arc<Mutex<VecDeque<Json>>>;

/// First byte of stdin that is not white space, as soon as it is read.
pub type FirstByte = Arc<OnceLock<u8>>;

/// A reader that replaces each line that is not a JSON-RPC message with an invalid request, so that
/// the client receives an error.
pub struct MessageReader<R> {
    inner: BufReader<R>,
    /// Current line, up to the maximum length.
    line: Vec<u8>,
    /// Whether the current line is too long.
    is_too_long: bool,
    /// Rest of a checked line.
    checked: VecDeque<u8>,
    first_byte: FirstByte,
    rejected: RejectedLines,
}

impl<R: AsyncRead> MessageReader<R> {
    pub fn new(inner: R, first_byte: FirstByte, rejected: RejectedLines) -> Self {
        let (line, checked) = (Vec::new(), VecDeque::new());
        let inner = BufReader::new(inner);
        Self { inner, line, is_too_long: false, checked, first_byte, rejected }
    }

    /// Adds a part of a line, which contains at most one line break: the last byte.
    fn add_part(&mut self, part: &[u8]) {
        if let Some(byte) = part.iter().find(|byte| !byte.is_ascii_whitespace()) {
            let _ = self.first_byte.set(*byte);
        }
        self.is_too_long |= self.line.len() + part.len() > DEFAULT_MAX_LINE_LENGTH;
        if self.is_too_long {
            self.line.clear();
        } else {
            self.line.extend_from_slice(part);
        }
        if part.last() != Some(&b'\n') {
            return;
        }
        let rejection = if std::mem::take(&mut self.is_too_long) {
            let limit = DEFAULT_MAX_LINE_LENGTH / (1024 * 1024);
            let message = format!("the message is longer than {limit} MiB");
            Some(build_response(REQUEST_ERROR, &message, &Json::Null))
        } else {
            find_line_error(&self.line)
        };
        match rejection {
            Some(response) => {
                self.rejected.lock().unwrap_or_else(PoisonError::into_inner).push_back(response);
                self.checked.extend(INVALID_REQUEST);
            }
            None => self.checked.extend(&self.line),
        }
        self.line.clear();
    }
}

fn build_response(code: i32, message: &str, id: &Json) -> Json {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

/// Returns the response to a line that is not a JSON-RPC message; `None` for a valid or an empty line.
fn find_line_error(line: &[u8]) -> Option<Json> {
    if line.trim_ascii().is_empty() {
        return None;
    }
    let Ok(json) = serde_json::from_slice::<Json>(line) else {
        let message = "the message is not JSON: send one JSON-RPC message per line";
        return Some(build_response(PARSE_ERROR, message, &Json::Null));
    };
    let message = match &json {
        Json::Object(fields) if fields.get("jsonrpc").and_then(Json::as_str) != Some("2.0") => {
            "`\"jsonrpc\": \"2.0\"` is missing"
        }
        Json::Object(fields) => {
            let is_response = fields.contains_key("result") || fields.contains_key("error");
            if is_response || fields.get("method").is_some_and(Json::is_string) {
                return None;
            }
            "`method` is missing or not a text"
        }
        Json::Array(_) => "the message is a list: send one JSON-RPC message per line",
        _ => "the message is not a JSON object",
    };
    Some(build_response(REQUEST_ERROR, message, json.get("id").unwrap_or(&Json::Null)))
}

impl<R: AsyncRead + Unpin> AsyncRead for MessageReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.checked.is_empty() {
            let available = ready!(Pin::new(&mut this.inner).poll_fill_buf(context))?;
            if available.is_empty() {
                if this.line.is_empty() && !this.is_too_long {
                    return Poll::Ready(Ok(()));
                }
                this.add_part(b"\n");
                continue;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let part = available[..newline.map_or(available.len(), |at| at + 1)].to_vec();
            Pin::new(&mut this.inner).consume(part.len());
            this.add_part(&part);
        }
        let (part, _) = this.checked.as_slices();
        let count = part.len().min(out.remaining());
        out.put_slice(&part[..count]);
        this.checked.drain(..count);
        Poll::Ready(Ok(()))
    }
}

/// A writer that adds the reason to the transport's responses to rejected lines. The transport
/// writes each message at once.
pub struct ResponseWriter<W> {
    inner: W,
    rejected: RejectedLines,
    /// Rest of a response that replaces the transport's.
    replaced: Vec<u8>,
}

impl<W> ResponseWriter<W> {
    pub fn new(inner: W, rejected: RejectedLines) -> Self {
        Self { inner, rejected, replaced: Vec::new() }
    }
}

impl<W: AsyncWrite + Unpin> ResponseWriter<W> {
    fn poll_write_replaced(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.replaced.is_empty() {
            let count = ready!(Pin::new(&mut self.inner).poll_write(context, &self.replaced))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.replaced.drain(..count);
        }
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for ResponseWriter<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        part: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_replaced(context))?;
        if part != INVALID_RESPONSE {
            return Pin::new(&mut self.inner).poll_write(context, part);
        }
        let next = self.rejected.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let response = next.unwrap_or_else(|| {
            let message = "the message is no JSON-RPC request, notification or response";
            build_response(REQUEST_ERROR, message, &Json::Null)
        });
        self.replaced = format!("{response}\n").into_bytes();
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_replaced(context))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_replaced(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
