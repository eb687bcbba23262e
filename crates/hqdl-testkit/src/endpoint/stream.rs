//! Streamed responses of the endpoint, correct and faulty, and runaway output.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hqdl_values::tokens::Tokenizer;
use serde_json::{Value as Json, json};

use super::{Fault, Ramble, Shared, Wrong, lock};

/// Number of characters per chunk of the answer.
const PIECE: usize = 24;

/// Returns the request's output cap in tokens.
pub fn cap(body: &Json) -> u64 {
    let of = |name: &str| body[name].as_u64();
    of("max_tokens").or_else(|| of("max_completion_tokens")).unwrap_or(u64::MAX)
}

/// Returns the text truncated at the request's cap; `None` if it fits.
pub fn capped(text: &str, body: &Json) -> Option<String> {
    let tokenizer = Tokenizer::of(body["model"].as_str().unwrap_or_default());
    let cap = cap(body);
    if tokenizer.count(text) <= cap {
        return None;
    }
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let fits = ends.partition_point(|end| tokenizer.count(&text[..*end]) <= cap);
    Some(text[..ends[fits.saturating_sub(1)]].to_owned())
}

fn event(json: &Json) -> Vec<u8> {
    format!("data: {json}\n\n").into_bytes()
}

fn chunk(delta: &Json, finish: &Json) -> Json {
    json!({
        "id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 0,
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
    })
}

/// Returns a completion as a stream of events.
pub fn respond(completion: &Json, wrong: Option<Wrong>, fault: Option<&Fault>) -> Response {
    let choice = &completion["choices"][0];
    let mut events =
        vec![event(&chunk(&json!({ "role": "assistant", "content": "" }), &Json::Null))];
    let pieces = |text: &str| -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(PIECE).map(|c| c.iter().collect()).collect()
    };
    if wrong == Some(Wrong::OneMessage) {
        let mut whole = chunk(&Json::Null, &choice["finish_reason"]);
        whole["choices"][0].as_object_mut().unwrap().remove("delta");
        whole["choices"][0]["message"] = choice["message"].clone();
        events = vec![event(&whole)];
    } else {
        for field in ["content", "refusal"] {
            for (n, piece) in
                pieces(choice["message"][field].as_str().unwrap_or_default()).iter().enumerate()
            {
                let mut piece = chunk(&json!({ field: piece }), &Json::Null);
                if wrong == Some(Wrong::UsageEverywhere) {
                    piece["usage"] = json!({ "prompt_tokens": 1, "completion_tokens": n + 1 });
                }
                events.push(event(&piece));
            }
        }
        events.push(event(&chunk(&json!({}), &choice["finish_reason"])));
    }
    let middle = events.len() / 2;
    let put = |events: &mut Vec<Vec<u8>>, what: &str| {
        events.truncate(middle);
        events.push(what.as_bytes().to_vec());
    };
    let mut done = true;
    match wrong {
        Some(Wrong::CutMidEvent) => {
            let event = events[middle][..events[middle].len() / 2].to_vec();
            events.truncate(middle);
            events.push(event);
            done = false;
        }
        Some(Wrong::Error) => put(
            &mut events,
            "event: error\ndata: {\"error\":{\"message\":\"upstream is gone\",\"code\":502}}\n\n",
        ),
        Some(Wrong::Filter) => put(
            &mut events,
            "data: {\"error\":{\"message\":\"filtered\",\"code\":\"content_filter\"}}\n\n",
        ),
        Some(Wrong::Garbage) => events.insert(middle, b"data: {\"choices\":[{\"del\n\n".to_vec()),
        Some(Wrong::Noise) => {
            for (n, event) in events.iter_mut().enumerate() {
                let noise =
                    [": ping\r\n\r\n", "id: 7\nevent: message\n", "\n\nretry: 10\n\n"][n % 3];
                *event = [noise.as_bytes(), event].concat();
            }
        }
        _ => {}
    }
    if let Some(usage) = completion.get("usage")
        && wrong != Some(Wrong::NoUsageChunk)
        && done
        && !matches!(wrong, Some(Wrong::Error | Wrong::Filter))
    {
        events.push(event(&json!({ "choices": [], "usage": usage })));
    }
    if done && wrong != Some(Wrong::NoDone) {
        events.push(b"data: [DONE]\n\n".to_vec());
    }
    let kind = match wrong {
        // Comments come before the first event, so only the content type identifies the stream.
        Some(Wrong::Noise) => "text/event-stream; charset=utf-8",
        Some(Wrong::NoDone) => "application/json",
        _ => "text/event-stream",
    };
    let body = match fault {
        Some(Fault::DroppedMidBody) => {
            let all = events.concat();
            let cut = all.len() / 2;
            Body::from_stream(stream::iter([
                Ok(all[..cut].to_vec()),
                Err(std::io::Error::other("dropped")),
            ]))
        }
        Some(Fault::SlowDrip) => {
            let drops: Vec<Vec<u8>> = events.concat().chunks(90).map(<[u8]>::to_vec).collect();
            Body::from_stream(stream::iter(drops).then(|drop| async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<_, Infallible>(drop)
            }))
        }
        _ if wrong == Some(Wrong::StaysOpen) => {
            let said = stream::iter([Ok::<_, Infallible>(events.concat())]);
            Body::from_stream(said.chain(stream::pending()))
        }
        _ => Body::from(events.concat()),
    };
    ([("content-type", kind)], body).into_response()
}

/// Returns a body of this many bytes that starts like a completion.
pub fn huge(status: u16, bytes: usize) -> Response {
    const PART: usize = 1 << 20;
    let head: &[u8] = b"{\"choices\":[{\"message\":{\"content\":\"";
    let parts = bytes.div_ceil(PART);
    let all =
        stream::iter([head.to_vec()]).chain(stream::iter((0..parts).map(|_| vec![b'x'; PART])));
    let body = Body::from_stream(all.map(Ok::<_, Infallible>));
    (StatusCode::from_u16(status).unwrap(), [("content-type", "application/json")], body)
        .into_response()
}

/// Returns the `n`-th chunk of runaway output.
fn next(how: Ramble, right: &str, n: usize) -> String {
    let half = right.char_indices().nth(right.chars().count() / 2).map_or(0, |(at, _)| at);
    // End at a line break: half a line followed by another line would be a wrong answer instead of
    // a truncated one.
    let half = if right.starts_with('{') { half } else { right[..half].rfind('\n').unwrap_or(0) };
    match (how, n) {
        (Ramble::Circle, 0) => right.to_owned(),
        (Ramble::Circle, _) => "\nand so on, and so forth".to_owned(),
        (Ramble::Strangers, 0) => right[..half].to_owned(),
        (Ramble::Strangers, n) => {
            let number = 1000 + n;
            if right.starts_with('{') {
                format!("{{\"row\":{number},\"key\":[\"Stranger {number}\"],\"cells\":{{}}}},")
            } else {
                format!("\n{number},Stranger {number},nobody,Blue,1900,Flight,A lie {number}!")
            }
        }
        (Ramble::Prose | Ramble::BeyondTheCap, n) => format!("{} then {} ", n * n, n * 7),
    }
}

/// Returns runaway output. Only the tokens that are written are billed.
pub fn ramble(
    shared: &Arc<Shared>,
    how: Ramble,
    right: &str,
    body: &Json,
    streams: bool,
) -> Response {
    let tokenizer = Tokenizer::of(body["model"].as_str().unwrap_or_default());
    let cap = if how == Ramble::BeyondTheCap { 200_000 } else { cap(body) };
    let messages = body["messages"].as_array().into_iter().flatten();
    let input: u64 =
        messages.map(|m| tokenizer.count(m["content"].as_str().unwrap_or_default()) + 4).sum();
    lock(&shared.usage).0 += input;
    if !streams {
        let mut content = String::new();
        for n in 0.. {
            content.push_str(&next(how, right, n));
            // Count only every 64 chunks, because tokenizing is slow.
            if n % 64 == 0 && tokenizer.count(&content) > cap {
                break;
            }
        }
        let content = capped(&content, body).unwrap_or(content);
        let output = tokenizer.count(&content);
        lock(&shared.usage).1 += output;
        return axum::Json(json!({
            "choices": [{ "index": 0, "finish_reason": "length", "message": { "content": content } }],
            "usage": { "prompt_tokens": input, "completion_tokens": output },
        }))
        .into_response();
    }
    let state = (Arc::clone(shared), right.to_owned(), 0, 0u64);
    let events = stream::unfold(state, move |(shared, right, n, written)| async move {
        if written > cap {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        let piece = next(how, &right, n);
        let tokens = tokenizer.count(&piece);
        let last = written + tokens >= cap;
        let (piece, tokens) = if last {
            let left = cap - written;
            let piece: String = piece.chars().take(left as usize).collect();
            let tokens = tokenizer.count(&piece);
            (piece, tokens)
        } else {
            (piece, tokens)
        };
        lock(&shared.usage).1 += tokens;
        let mut bytes = event(&chunk(&json!({ "content": piece }), &Json::Null));
        if last {
            bytes.extend(event(&chunk(&json!({}), &"length".into())));
            let output = written + tokens;
            bytes.extend(event(&json!({
                "choices": [],
                "usage": { "prompt_tokens": input, "completion_tokens": output },
            })));
            bytes.extend(b"data: [DONE]\n\n");
        }
        let written = if last { cap + 1 } else { written + tokens };
        Some((Ok::<_, Infallible>(bytes), (shared, right, n + 1, written)))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(events)).into_response()
}
