//! A chat's reply, read as it comes: events of a stream, or a whole completion
//! from an endpoint that does not stream. One that has gone astray is cut off;
//! of one that breaks, what came is kept.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value as Json;
use tracing::info;

use super::prompt_cache::PrefixTurn;
use super::reply::{self, Reply, ReplyDraft};
use super::{ModelError, wire};
use hqdl_prompt::Prompt;

/// The most bytes of one event.
const EVENT: usize = 4 << 20;
/// New bytes of an answer after which it is looked at again.
const LOOK_EVERY: usize = 256;
/// Bytes a token of the cap on output after which the endpoint is taken not to mind
/// it: twice what most texts have.
const BYTES_A_TOKEN: u64 = 8;
/// How long the end of a body is waited for when all has been said: a connection
/// that was read to its end is used again.
const END: Duration = Duration::from_millis(250);

/// Reads the reply to a prompt. Once it begins, the turn of its prefix ends.
///
/// # Errors
/// [`ModelError`] when no words came.
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

/// What comes after a piece.
enum StreamStep {
    More,
    /// All has been said.
    Done,
    /// The answer has gone astray, and how.
    Astray(&'static str),
}

#[derive(Default)]
struct EventReader {
    /// Whether the endpoint calls the body a stream of events.
    says_events: bool,
    /// What the body is, once its first byte has come.
    is_events: Option<bool>,
    /// Bytes read so far.
    read: usize,
    /// A line that has not ended; or a body that is no stream.
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

    /// Whether the body is a stream of events, by its first bytes; `None` while
    /// they are missing.
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

    /// Takes a line of a stream; true when it is the last one.
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
            // Words are missing here: nothing after it can be trusted.
            let shown = wire::shown(&String::from_utf8_lossy(data));
            return Err(passing(format!("the endpoint's stream contains invalid JSON: {shown}")));
        };
        if let Some(error) = wire::told(&event) {
            return Err(error);
        }
        self.draft.take(&event);
        Ok(false)
    }

    /// How an answer has gone astray, if it has.
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

    /// The body has ended.
    fn end(mut self) -> Result<Reply, ModelError> {
        if self.is_events != Some(true) {
            let text = String::from_utf8_lossy(&self.rest);
            let json: Json = serde_json::from_slice(&self.rest).map_err(|_| {
                passing(format!("the endpoint's reply is not JSON: {}", wire::shown(&text)))
            })?;
            return reply::read(&json);
        }
        // A last line without its end; a part of one is no JSON.
        let last = std::mem::take(&mut self.rest);
        let done = self.line(&last);
        if self.draft.begun && (self.draft.is_whole() || matches!(done, Ok(true))) {
            return Ok(self.draft.reply());
        }
        let message = "the endpoint closed the stream before the end of the answer";
        self.broken(passing(message.to_owned()))
    }

    /// The reply broke: what came of it, or why nothing did.
    fn broken(self, error: ModelError) -> Result<Reply, ModelError> {
        let reply = self.draft.reply();
        if self.draft.is_whole() && self.draft.begun && self.is_events == Some(true) {
            // All the words had come; only what follows them is lost.
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
