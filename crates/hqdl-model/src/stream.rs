//! Reads a reply while it arrives: events of a stream, or a whole reply if the endpoint does not
//! stream. hqdl stops reading runaway output. If the connection breaks, the received part is kept.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value as Json;
use tracing::info;

use super::prompt_cache::PrefixTurn;
use super::protocols::{self, Protocol};
use super::reply::{Reply, ReplyDraft};
use super::{ModelError, wire};
use hqdl_prompt::Prompt;

/// Maximum size of one event in bytes.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Number of new bytes after which an answer is checked for runaway output again.
const CHECK_BYTES: usize = 256;
/// Maximum bytes per token of the output limit: twice as many as in typical text. A longer reply
/// means that the endpoint ignores the limit.
const BYTES_PER_TOKEN: u64 = 8;
/// Maximum wait for the end of the body after the last event. A connection can be reused only if
/// its body was read to the end.
const END_TIMEOUT: Duration = Duration::from_millis(250);

/// Reads the reply to a prompt. The request's prefix turn (`turn`) ends when the reply begins.
///
/// # Errors
/// [`ModelError`] if no answer was received.
pub(super) async fn read_reply(
    protocol: &dyn Protocol,
    mut response: Response,
    prompt: &Prompt,
    turn: &mut Option<PrefixTurn>,
) -> Result<Reply, ModelError> {
    let has_event_content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|t| t.to_str().ok())
        .is_some_and(|t| t.to_lowercase().starts_with("text/event-stream"));
    if let Some(encoding) = response.headers().get(CONTENT_ENCODING).filter(|e| *e != "identity") {
        let message = format!(
            "the endpoint sent a compressed reply ({encoding:?}), which hqdl did not request"
        );
        return Err(temporary_error(message));
    }
    if response.content_length().is_some_and(|n| n > wire::MAX_REPLY_BYTES as u64) {
        return Err(wire::too_large_error(wire::MAX_REPLY_BYTES));
    }
    let mut reader = EventReader::new(protocol, has_event_content_type);
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return reader.finish_body(),
            Err(error) => return reader.recover_partial_reply(wire::to_chat_error(&error)),
        };
        let step = reader.add_chunk(&chunk, prompt);
        if reader.draft.has_begun || reader.is_events == Some(false) {
            turn.take().into_iter().for_each(PrefixTurn::mark_reply_begun);
        }
        match step {
            Ok(StreamStep::More) => {}
            Ok(StreamStep::Done) => {
                let _ = tokio::time::timeout(END_TIMEOUT, response.chunk()).await;
                return Ok(reader.draft.to_reply());
            }
            Ok(StreamStep::Runaway(reason)) => {
                info!(reason, bytes = reader.draft.content.len(), "an answer is cut off");
                let reply = reader.draft.to_reply();
                return Ok(Reply { truncated: true, cut_off: true, ..reply });
            }
            Err(error) => return reader.recover_partial_reply(error),
        }
    }
}

/// Progress of a stream after a chunk.
enum StreamStep {
    More,
    /// The answer is complete.
    Done,
    /// The answer is runaway output, for the given reason.
    Runaway(&'static str),
}

struct EventReader<'p> {
    protocol: &'p dyn Protocol,
    /// Whether the response's content type is an event stream.
    has_event_content_type: bool,
    /// Whether the body is an event stream; `None` until its first bytes arrive.
    is_events: Option<bool>,
    /// Number of bytes read so far.
    bytes_read: usize,
    /// The incomplete last line, or the whole body if it is not a stream.
    buffer: Vec<u8>,
    draft: ReplyDraft,
    last_checked: usize,
}

impl<'p> EventReader<'p> {
    fn new(protocol: &'p dyn Protocol, has_event_content_type: bool) -> Self {
        Self {
            protocol,
            has_event_content_type,
            is_events: None,
            bytes_read: 0,
            buffer: Vec::new(),
            draft: ReplyDraft::default(),
            last_checked: 0,
        }
    }

    fn add_chunk(&mut self, chunk: &[u8], prompt: &Prompt) -> Result<StreamStep, ModelError> {
        self.bytes_read += chunk.len();
        if self.bytes_read > wire::MAX_REPLY_BYTES {
            return Err(wire::too_large_error(wire::MAX_REPLY_BYTES));
        }
        let Some(is_events) = self.is_events.or_else(|| self.detect_event_stream(chunk)) else {
            self.buffer.extend_from_slice(chunk);
            return Ok(StreamStep::More);
        };
        self.is_events = Some(is_events);
        if !is_events {
            self.buffer.extend_from_slice(chunk);
            return Ok(StreamStep::More);
        }
        let mut left = chunk;
        while let Some(end) = left.iter().position(|b| *b == b'\n') {
            let done = if self.buffer.is_empty() {
                self.parse_stream_line(&left[..end])?
            } else {
                let mut line = std::mem::take(&mut self.buffer);
                line.extend_from_slice(&left[..end]);
                self.parse_stream_line(&line)?
            };
            if done {
                return Ok(StreamStep::Done);
            }
            left = &left[end + 1..];
        }
        self.buffer.extend_from_slice(left);
        if self.buffer.len() > MAX_EVENT_BYTES {
            return Err(wire::too_large_error(MAX_EVENT_BYTES));
        }
        Ok(self.check_runaway(prompt).map_or(StreamStep::More, StreamStep::Runaway))
    }

    /// Determines from its first bytes whether the body is an event stream; `None` if more bytes
    /// are needed.
    fn detect_event_stream(&self, chunk: &[u8]) -> Option<bool> {
        let bytes = [&self.buffer, chunk].concat();
        let start = bytes.trim_ascii_start();
        match start.first()? {
            b'{' | b'[' | b'<' => Some(false),
            _ if self.has_event_content_type => Some(true),
            _ if start.len() < 5 && b"data:".starts_with(start) => None,
            _ => Some(start.starts_with(b"data:")),
        }
    }

    /// Processes a line of a stream. Returns true if it is the last one.
    fn parse_stream_line(&mut self, line: &[u8]) -> Result<bool, ModelError> {
        let Some(data) = line.trim_ascii().strip_prefix(b"data:") else { return Ok(false) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return Ok(true);
        }
        if data.is_empty() {
            return Ok(false);
        }
        let Ok(event) = serde_json::from_slice::<Json>(data) else {
            // Part of the answer is missing, so the rest cannot be trusted.
            let shown = wire::shorten_text(&String::from_utf8_lossy(data));
            return Err(temporary_error(format!(
                "the endpoint's stream contains invalid JSON: {shown}"
            )));
        };
        if let Some(error) = wire::find_reply_error(&event) {
            return Err(error);
        }
        self.protocol.apply_event(&event, &mut self.draft)
    }

    /// Returns the reason why the answer is runaway output; `None` if it is not.
    fn check_runaway(&mut self, prompt: &Prompt) -> Option<&'static str> {
        let output_bytes = self.draft.content.len() + self.draft.other_output.len();
        if output_bytes as u64 > BYTES_PER_TOKEN * (prompt.max_output + 64) {
            return Some("the answer is longer than the request allows");
        }
        if self.draft.content.len() < self.last_checked + CHECK_BYTES {
            return None;
        }
        self.last_checked = self.draft.content.len();
        prompt.find_runaway_reason(&self.draft.content)
    }

    /// Returns the reply after the last byte. If the stream ended early, returns the part that was
    /// received, marked as truncated, or an error if nothing was received.
    fn finish_body(mut self) -> Result<Reply, ModelError> {
        if self.is_events != Some(true) {
            let json: Json = serde_json::from_slice(&self.buffer)
                .map_err(|_| wire::not_json_error(&self.buffer))?;
            return protocols::parse_reply(self.protocol, &json);
        }
        // The last line may lack its line break. If it is incomplete, it is not valid JSON.
        let last = std::mem::take(&mut self.buffer);
        let done = self.parse_stream_line(&last);
        if self.draft.has_begun && (self.draft.is_complete() || matches!(done, Ok(true))) {
            return Ok(self.draft.to_reply());
        }
        let message = "the endpoint closed the stream before the end of the answer";
        self.recover_partial_reply(temporary_error(message.to_owned()))
    }

    /// Handles a reply that was interrupted: returns the received part, or the error if there is
    /// none.
    fn recover_partial_reply(self, error: ModelError) -> Result<Reply, ModelError> {
        let reply = self.draft.to_reply();
        if self.draft.is_complete() && self.draft.has_begun && self.is_events == Some(true) {
            // The answer is complete; only data after it was lost.
            return Ok(reply);
        }
        if reply.content.is_empty() {
            return Err(error);
        }
        Ok(Reply { truncated: true, broken: Some(Box::new(error)), ..reply })
    }
}

fn temporary_error(message: String) -> ModelError {
    ModelError::Temporary { message, wait: None, in_doubt: true }
}
