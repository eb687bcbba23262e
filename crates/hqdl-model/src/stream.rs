//! Reads the reply of a chat while it arrives: events of a stream, or a whole completion if the
//! endpoint does not stream. Runaway output is cut off. If the connection breaks, the received part
//! is kept.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value as Json;
use tracing::info;

use super::prompt_cache::PrefixTurn;
use super::reply::{self, Reply, ReplyDraft};
use super::{ModelError, wire};
use hqdl_prompt::Prompt;

/// Maximum size of one event in bytes.
const EVENT: usize = 4 << 20;
/// Number of new bytes after which an answer is checked again.
const LOOK_EVERY: usize = 256;
/// Bytes per token of the output limit after which the endpoint is taken to ignore it: twice that
/// of typical text.
const BYTES_A_TOKEN: u64 = 8;
/// Maximum wait for the end of the body after the last event: a connection can only be reused if
/// its body was read to the end.
const END: Duration = Duration::from_millis(250);

/// Reads the reply to a prompt. Its prefix turn ends when the reply begins.
///
/// # Errors
/// [`ModelError`] if no answer was received.
pub(super) async fn read(
    mut response: Response,
    prompt: &Prompt,
    turn: &mut Option<PrefixTurn>,
) -> Result<Reply, ModelError> {
    let says_events = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|t| t.to_str().ok())
        .is_some_and(|t| t.to_lowercase().starts_with("text/event-stream"));
    if let Some(encoding) = response.headers().get(CONTENT_ENCODING).filter(|e| *e != "identity") {
        let message = format!(
            "the endpoint's reply is compressed ({encoding:?}), which hqdl did not request"
        );
        return Err(passing(message));
    }
    if response.content_length().is_some_and(|n| n > wire::REPLY as u64) {
        return Err(wire::too_large(wire::REPLY));
    }
    let mut reader = EventReader { says_events, ..EventReader::default() };
    loop {
        let piece = match response.chunk().await {
            Ok(Some(piece)) => piece,
            Ok(None) => return reader.end(),
            Err(error) => return reader.broken(wire::error_of_chat(&error)),
        };
        let step = reader.take(&piece, prompt);
        if reader.draft.begun || reader.is_events == Some(false) {
            turn.take().into_iter().for_each(PrefixTurn::begin);
        }
        match step {
            Ok(StreamStep::More) => {}
            Ok(StreamStep::Done) => {
                let _ = tokio::time::timeout(END, response.chunk()).await;
                return Ok(reader.draft.reply());
            }
            Ok(StreamStep::Astray(why)) => {
                info!(why, bytes = reader.draft.content.len(), "an answer is cut off");
                let reply = reader.draft.reply();
                return Ok(Reply { truncated: true, cut_off: true, ..reply });
            }
            Err(error) => return reader.broken(error),
        }
    }
}

/// State after a chunk.
enum StreamStep {
    More,
    /// The answer is complete.
    Done,
    /// The answer is runaway output; contains the reason.
    Astray(&'static str),
}

#[derive(Default)]
struct EventReader {
    /// Whether the content type is an event stream.
    says_events: bool,
    /// Whether the body is an event stream; `None` until its first bytes arrive.
    is_events: Option<bool>,
    /// Number of bytes read so far.
    read: usize,
    /// The incomplete last line, or the whole body if it is not a stream.
    rest: Vec<u8>,
    draft: ReplyDraft,
    looked: usize,
}

impl EventReader {
    fn take(&mut self, piece: &[u8], prompt: &Prompt) -> Result<StreamStep, ModelError> {
        self.read += piece.len();
        if self.read > wire::REPLY {
            return Err(wire::too_large(wire::REPLY));
        }
        let Some(is_events) = self.is_events.or_else(|| self.kind(piece)) else {
            self.rest.extend_from_slice(piece);
            return Ok(StreamStep::More);
        };
        self.is_events = Some(is_events);
        if !is_events {
            self.rest.extend_from_slice(piece);
            return Ok(StreamStep::More);
        }
        let mut left = piece;
        while let Some(end) = left.iter().position(|b| *b == b'\n') {
            let done = if self.rest.is_empty() {
                self.line(&left[..end])?
            } else {
                let mut line = std::mem::take(&mut self.rest);
                line.extend_from_slice(&left[..end]);
                self.line(&line)?
            };
            if done {
                return Ok(StreamStep::Done);
            }
            left = &left[end + 1..];
        }
        self.rest.extend_from_slice(left);
        if self.rest.len() > EVENT {
            return Err(wire::too_large(EVENT));
        }
        Ok(self.look(prompt).map_or(StreamStep::More, StreamStep::Astray))
    }

    /// Returns whether the body is an event stream, judged by its first bytes; `None` if more are
    /// needed.
    fn kind(&self, piece: &[u8]) -> Option<bool> {
        let bytes = [&self.rest, piece].concat();
        let start = bytes.trim_ascii_start();
        match start.first()? {
            b'{' | b'[' | b'<' => Some(false),
            _ if self.says_events => Some(true),
            _ if start.len() < 5 && b"data:".starts_with(start) => None,
            _ => Some(start.starts_with(b"data:")),
        }
    }

    /// Processes a line of a stream. Returns true if it is the last one.
    fn line(&mut self, line: &[u8]) -> Result<bool, ModelError> {
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
            let shown = wire::shown(&String::from_utf8_lossy(data));
            return Err(passing(format!("the endpoint's stream contains invalid JSON: {shown}")));
        };
        if let Some(error) = wire::told(&event) {
            return Err(error);
        }
        self.draft.take(&event);
        Ok(false)
    }

    /// Returns the reason if the answer is runaway output.
    fn look(&mut self, prompt: &Prompt) -> Option<&'static str> {
        let written = self.draft.content.len() + self.draft.beside.len();
        if written as u64 > BYTES_A_TOKEN * (prompt.max_output + 64) {
            return Some("the answer is longer than the request allows");
        }
        if self.draft.content.len() < self.looked + LOOK_EVERY {
            return None;
        }
        self.looked = self.draft.content.len();
        prompt.astray(&self.draft.content)
    }

    /// Handles the end of the body.
    fn end(mut self) -> Result<Reply, ModelError> {
        if self.is_events != Some(true) {
            let text = String::from_utf8_lossy(&self.rest);
            let json: Json = serde_json::from_slice(&self.rest).map_err(|_| {
                passing(format!("the endpoint's reply is not JSON: {}", wire::shown(&text)))
            })?;
            return reply::read(&json);
        }
        // The last line may lack its line break; an incomplete one is not valid JSON.
        let last = std::mem::take(&mut self.rest);
        let done = self.line(&last);
        if self.draft.begun && (self.draft.is_whole() || matches!(done, Ok(true))) {
            return Ok(self.draft.reply());
        }
        let message = "the endpoint closed the stream before the end of the answer";
        self.broken(passing(message.to_owned()))
    }

    /// Handles a broken reply: returns the received part, or the error if there is none.
    fn broken(self, error: ModelError) -> Result<Reply, ModelError> {
        let reply = self.draft.reply();
        if self.draft.is_whole() && self.draft.begun && self.is_events == Some(true) {
            // The answer is complete; only the data after it is lost.
            return Ok(reply);
        }
        if reply.content.is_empty() {
            return Err(error);
        }
        Ok(Reply { truncated: true, broken: Some(Box::new(error)), ..reply })
    }
}

fn passing(message: String) -> ModelError {
    ModelError::Passing { message, wait: None, in_doubt: true }
}
