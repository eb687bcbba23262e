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

use super::apis::{Api, CHUNK_CHARS};
use super::{Fault, RunawayOutput, Shared, StreamFault, lock_mutex};

/// Returns the request's output cap in tokens.
pub fn output_cap(body: &Json) -> u64 {
    let parameter = |name: &str| body[name].as_u64();
    parameter("max_tokens").or_else(|| parameter("max_completion_tokens")).unwrap_or(u64::MAX)
}

/// Returns the text truncated at the request's cap; `None` if it fits.
pub fn truncate_to_cap(text: &str, body: &Json) -> Option<String> {
    let tokenizer = Tokenizer::for_model(body["model"].as_str().unwrap_or_default());
    let cap = output_cap(body);
    if tokenizer.count_tokens(text) <= cap {
        return None;
    }
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let fitting = ends.partition_point(|end| tokenizer.count_tokens(&text[..*end]) <= cap);
    Some(text[..ends[fitting.saturating_sub(1)]].to_owned())
}

fn event_bytes(json: &Json) -> Vec<u8> {
    format!("data: {json}\n\n").into_bytes()
}

fn chunk_json(delta: &Json, finish: &Json) -> Json {
    json!({
        "id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 0, "model": "test",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
    })
}

/// Returns the last chunk, which has the usage and no choice.
fn usage_chunk_json(usage: &Json) -> Json {
    let mut chunk = chunk_json(&Json::Null, &Json::Null);
    chunk["choices"] = json!([]);
    chunk["usage"] = usage.clone();
    chunk
}

/// Returns a completion as a stream of events.
pub fn stream_completion(
    (api, completion): (Api, &Json),
    stream_fault: Option<StreamFault>,
    fault: Option<&Fault>,
) -> Response {
    let choice = &completion["choices"][0];
    let mut events =
        vec![event_bytes(&chunk_json(&json!({ "role": "assistant", "content": "" }), &Json::Null))];
    let pieces = |text: &str| -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(CHUNK_CHARS).map(|c| c.iter().collect()).collect()
    };
    if api != Api::Chat {
        let named = |event: &Json| {
            let kind = event["type"].as_str().unwrap_or_default();
            [format!("event: {kind}\n").as_bytes(), &event_bytes(event)].concat()
        };
        events = api.reply_events(completion).iter().map(named).collect();
    } else if stream_fault == Some(StreamFault::OneMessage) {
        let mut full_message = chunk_json(&Json::Null, &choice["finish_reason"]);
        full_message["choices"][0].as_object_mut().unwrap().remove("delta");
        full_message["choices"][0]["message"] = choice["message"].clone();
        events = vec![event_bytes(&full_message)];
    } else {
        let tokens = choice.pointer("/logprobs/content").and_then(Json::as_array);
        for field in ["content", "refusal"] {
            let pieces = pieces(choice["message"][field].as_str().unwrap_or_default());
            let count = pieces.len();
            for (n, piece) in pieces.iter().enumerate() {
                let mut piece = chunk_json(&json!({ field: piece }), &Json::Null);
                if let Some(tokens) = tokens.filter(|_| field == "content") {
                    let part = &tokens[n * tokens.len() / count..(n + 1) * tokens.len() / count];
                    piece["choices"][0]["logprobs"] = json!({ "content": part, "refusal": null });
                }
                if stream_fault == Some(StreamFault::UsageEverywhere) {
                    piece["usage"] = json!({ "prompt_tokens": 1, "completion_tokens": n + 1 });
                }
                events.push(event_bytes(&piece));
            }
        }
        events.push(event_bytes(&chunk_json(&json!({}), &choice["finish_reason"])));
    }
    let middle = events.len() / 2;
    let replace_rest = |events: &mut Vec<Vec<u8>>, replacement: &str| {
        events.truncate(middle);
        events.push(replacement.as_bytes().to_vec());
    };
    let mut is_complete = true;
    match stream_fault {
        Some(StreamFault::CutMidEvent) => {
            let event = events[middle][..events[middle].len() / 2].to_vec();
            events.truncate(middle);
            events.push(event);
            is_complete = false;
        }
        Some(StreamFault::Error) => replace_rest(
            &mut events,
            "event: error\ndata: {\"error\":{\"message\":\"upstream is gone\",\"code\":502}}\n\n",
        ),
        Some(StreamFault::Filter) => replace_rest(
            &mut events,
            "data: {\"error\":{\"message\":\"filtered\",\"code\":\"content_filter\"}}\n\n",
        ),
        Some(StreamFault::Garbage) => {
            events.insert(middle, b"data: {\"choices\":[{\"del\n\n".to_vec());
        }
        Some(StreamFault::Noise) => {
            for (n, event) in events.iter_mut().enumerate() {
                let noise =
                    [": ping\r\n\r\n", "id: 7\nevent: message\n", "\n\nretry: 10\n\n"][n % 3];
                *event = [noise.as_bytes(), event].concat();
            }
        }
        _ => {}
    }
    if let Some(usage) = completion.get("usage").filter(|_| api == Api::Chat)
        && stream_fault != Some(StreamFault::NoUsageChunk)
        && is_complete
        && !matches!(stream_fault, Some(StreamFault::Error | StreamFault::Filter))
    {
        events.push(event_bytes(&usage_chunk_json(usage)));
    }
    if is_complete && api == Api::Chat && stream_fault != Some(StreamFault::NoDone) {
        events.push(b"data: [DONE]\n\n".to_vec());
    }
    let content_type = match stream_fault {
        // Comments come before the first event, so only the content type identifies the stream.
        Some(StreamFault::Noise) => "text/event-stream; charset=utf-8",
        Some(StreamFault::NoDone) => "application/json",
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
            let chunks: Vec<Vec<u8>> = events.concat().chunks(90).map(<[u8]>::to_vec).collect();
            Body::from_stream(stream::iter(chunks).then(|chunk| async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<_, Infallible>(chunk)
            }))
        }
        _ if stream_fault == Some(StreamFault::StaysOpen) => {
            let sent_events = stream::iter([Ok::<_, Infallible>(events.concat())]);
            Body::from_stream(sent_events.chain(stream::pending()))
        }
        _ => Body::from(events.concat()),
    };
    ([("content-type", content_type)], body).into_response()
}

/// Returns a body of this many bytes that starts like a completion.
pub fn huge_response(status: u16, bytes: usize) -> Response {
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
fn next_chunk(runaway_kind: RunawayOutput, right: &str, n: usize) -> String {
    let half = right.char_indices().nth(right.chars().count() / 2).map_or(0, |(at, _)| at);
    // End at a line break: half a line followed by another line would be a wrong answer instead of
    // a truncated one.
    let half = if right.starts_with('{') { half } else { right[..half].rfind('\n').unwrap_or(0) };
    match (runaway_kind, n) {
        (RunawayOutput::Repetition, 0) => right.to_owned(),
        (RunawayOutput::Repetition, _) => "\nand so on, and so forth".to_owned(),
        (RunawayOutput::UnknownRows, 0) => right[..half].to_owned(),
        (RunawayOutput::UnknownRows, n) => {
            let number = 1000 + n;
            if right.starts_with('{') {
                format!("{{\"row\":{number},\"key\":[\"Stranger {number}\"],\"cells\":{{}}}},")
            } else {
                format!("\n{number},Stranger {number},nobody,Blue,1900,Flight,A lie {number}!")
            }
        }
        (RunawayOutput::Prose | RunawayOutput::ExceedsCap, n) => {
            format!("{} then {} ", n * n, n * 7)
        }
    }
}

/// Returns runaway output. Only the tokens that are written are billed.
pub fn runaway_response(
    shared: &Arc<Shared>,
    runaway_kind: RunawayOutput,
    right: &str,
    body: &Json,
    is_streamed: bool,
) -> Response {
    let tokenizer = Tokenizer::for_model(body["model"].as_str().unwrap_or_default());
    let cap = if runaway_kind == RunawayOutput::ExceedsCap { 200_000 } else { output_cap(body) };
    let messages = body["messages"].as_array().into_iter().flatten();
    let input: u64 = messages
        .map(|m| tokenizer.count_tokens(m["content"].as_str().unwrap_or_default()) + 4)
        .sum();
    lock_mutex(&shared.usage).0 += input;
    if !is_streamed {
        let mut content = String::new();
        for n in 0.. {
            content.push_str(&next_chunk(runaway_kind, right, n));
            // Count only every 64 chunks, because tokenizing is slow.
            if n % 64 == 0 && tokenizer.count_tokens(&content) > cap {
                break;
            }
        }
        let content = truncate_to_cap(&content, body).unwrap_or(content);
        let output = tokenizer.count_tokens(&content);
        lock_mutex(&shared.usage).1 += output;
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
        let piece = next_chunk(runaway_kind, &right, n);
        let tokens = tokenizer.count_tokens(&piece);
        let is_last = written + tokens >= cap;
        let (piece, tokens) = if is_last {
            let remaining = cap - written;
            let piece: String = piece.chars().take(remaining as usize).collect();
            let tokens = tokenizer.count_tokens(&piece);
            (piece, tokens)
        } else {
            (piece, tokens)
        };
        lock_mutex(&shared.usage).1 += tokens;
        let mut bytes = event_bytes(&chunk_json(&json!({ "content": piece }), &Json::Null));
        if is_last {
            bytes.extend(event_bytes(&chunk_json(&json!({}), &"length".into())));
            let output = written + tokens;
            let usage = json!({ "prompt_tokens": input, "completion_tokens": output });
            bytes.extend(event_bytes(&usage_chunk_json(&usage)));
            bytes.extend(b"data: [DONE]\n\n");
        }
        let written = if is_last { cap + 1 } else { written + tokens };
        Some((Ok::<_, Infallible>(bytes), (shared, right, n + 1, written)))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(events)).into_response()
}
