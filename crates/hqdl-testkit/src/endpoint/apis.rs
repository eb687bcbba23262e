//! The APIs of the endpoint besides chat completions. A request is converted to a chat request, and
//! the completion to the reply of its API, so that all faults apply to all of them.

use serde_json::{Value as Json, json};

/// Number of characters per chunk of the answer.
pub(super) const CHUNK_CHARS: usize = 24;

/// An API of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Chat,
    Messages,
    Responses,
}

impl Api {
    /// Returns the API that a path belongs to.
    pub fn of_path(path: &str) -> Option<Self> {
        let all = [
            (Self::Chat, "/chat/completions"),
            (Self::Messages, "/messages"),
            (Self::Responses, "/responses"),
        ];
        all.into_iter().find(|(_, end)| path.ends_with(end)).map(|(api, _)| api)
    }

    /// Returns the API that a request of a batch has.
    pub fn of_batch_line(line: &Json) -> Self {
        match line["url"].as_str() {
            None => Self::Messages,
            Some(url) => Self::of_path(url).unwrap_or(Self::Chat),
        }
    }

    /// Returns a request as a chat request.
    pub fn to_chat_request(self, body: &Json) -> Json {
        let mut chat = body.clone();
        let (system, user, limit, schema) = match self {
            Self::Chat => return chat,
            Self::Messages => (
                &body["system"],
                &body["messages"][0]["content"],
                "max_tokens",
                body.pointer("/output_config/format/schema")
                    .or_else(|| body.pointer("/tools/0/input_schema")),
            ),
            Self::Responses => (
                &body["input"][0]["content"],
                &body["input"][1]["content"],
                "max_output_tokens",
                body.pointer("/text/format/schema"),
            ),
        };
        chat["messages"] = json!([
            { "role": "system", "content": system },
            { "role": "user", "content": chat_content(user) },
        ]);
        chat["max_tokens"] = body[limit].clone();
        if let Some(schema) = schema {
            chat["response_format"] = json!({ "json_schema": { "schema": schema } });
        }
        chat
    }

    /// Returns a completion as a reply to a request.
    pub fn to_reply(self, completion: &Json, request: &Json) -> Json {
        match self {
            Self::Chat => completion.clone(),
            Self::Messages => message(completion, request),
            Self::Responses => response(completion, request),
        }
    }

    /// Returns an error body in the API's form.
    pub fn to_error(self, error: Json) -> Json {
        if self != Self::Messages {
            return error;
        }
        let kind = match error["error"]["type"].as_str().unwrap_or_default() {
            "test" => "api_error",
            kind => kind,
        };
        json!({
            "type": "error", "request_id": "req_test",
            "error": { "type": kind, "message": error["error"]["message"] },
        })
    }

    /// Returns the events of a reply: their types and data.
    pub fn reply_events(self, reply: &Json) -> Vec<Json> {
        match self {
            Self::Chat => Vec::new(),
            Self::Messages => message_events(reply),
            Self::Responses => response_events(reply),
        }
    }
}

/// Returns the content of a message in the form of a chat.
fn chat_content(content: &Json) -> Json {
    let Some(parts) = content.as_array() else { return content.clone() };
    let chat_part = |part: &Json| {
        let source = &part["source"];
        let url = match (part["type"].as_str(), source["type"].as_str()) {
            (Some("image"), Some("base64")) => {
                let text = |field: &str| source[field].as_str().unwrap_or_default().to_owned();
                format!("data:{};base64,{}", text("media_type"), text("data")).into()
            }
            (Some("image"), _) => source["url"].clone(),
            (Some("input_image"), _) => part["image_url"].clone(),
            _ => return json!({ "type": "text", "text": part["text"] }),
        };
        json!({ "type": "image_url", "image_url": { "url": url } })
    };
    parts.iter().map(chat_part).collect()
}

/// Returns the text, the refusal and the finish reason of a completion.
fn choice_of(completion: &Json) -> (String, String, String) {
    let choice = &completion["choices"][0];
    let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
    let message = &choice["message"];
    (text(&message["content"]), text(&message["refusal"]), text(&choice["finish_reason"]))
}

/// Returns a completion as a message, with a thinking block that contains a misleading answer if
/// the request asks for thinking.
fn message(completion: &Json, request: &Json) -> Json {
    let (text, refusal, finish) = choice_of(completion);
    let mut content = Vec::new();
    if request.get("thinking").is_some() {
        let thinking = "{\"rows\": [{\"row\": \"1\", \"cells\": {}}]}";
        content.push(json!({ "type": "thinking", "thinking": thinking, "signature": "c2ln" }));
    }
    let stop_reason = match finish.as_str() {
        "length" => "max_tokens",
        "content_filter" => "refusal",
        _ if !refusal.is_empty() => "refusal",
        _ if request.get("tool_choice").is_some() => "tool_use",
        _ => "end_turn",
    };
    let input: Option<Json> = serde_json::from_str(&text).ok().filter(Json::is_object);
    content.push(match input.filter(|_| stop_reason == "tool_use") {
        Some(input) => json!({
            "type": "tool_use", "id": "toolu_test", "name": "rows", "input": input,
            "caller": { "type": "direct" },
        }),
        None => {
            let text = if text.is_empty() { refusal } else { text };
            json!({ "type": "text", "text": text, "citations": null })
        }
    });
    let mut reply = json!({
        "id": "msg_test", "type": "message", "role": "assistant", "model": request["model"],
        "content": content, "stop_reason": stop_reason, "stop_sequence": null,
        "usage": { "input_tokens": 0, "output_tokens": 0, "service_tier": "standard" },
    });
    match completion.get("usage") {
        Some(usage) if usage.get("prompt_tokens").is_some() => {
            let details = |name: &str| usage["prompt_tokens_details"][name].as_u64().unwrap_or(0);
            let (read, write) = (details("cached_tokens"), details("cache_write_tokens"));
            let input = usage["prompt_tokens"].as_u64().unwrap_or(0);
            reply["usage"]["input_tokens"] = (input - read - write).into();
            reply["usage"]["cache_read_input_tokens"] = read.into();
            reply["usage"]["cache_creation_input_tokens"] = write.into();
            reply["usage"]["output_tokens"] = usage["completion_tokens"].clone();
        }
        Some(usage) => reply["usage"] = usage.clone(),
        None => {
            reply.as_object_mut().unwrap().remove("usage");
        }
    }
    reply
}

/// Returns a text in pieces, as a stream sends it.
fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(CHUNK_CHARS).map(|piece| piece.iter().collect()).collect()
}

fn message_events(reply: &Json) -> Vec<Json> {
    let mut start = reply.clone();
    start["content"] = json!([]);
    start["stop_reason"] = Json::Null;
    start["usage"]["output_tokens"] = 1.into();
    let mut events = vec![json!({ "type": "message_start", "message": start })];
    events.push(json!({ "type": "ping" }));
    for (index, block) in reply["content"].as_array().into_iter().flatten().enumerate() {
        let mut first = block.clone();
        let (field, delta_type, text) = match block["type"].as_str().unwrap() {
            "tool_use" => {
                first["input"] = json!({});
                ("partial_json", "input_json_delta", block["input"].to_string())
            }
            kind => {
                first[kind] = "".into();
                let text = block[kind].as_str().unwrap_or_default().to_owned();
                (kind, if kind == "text" { "text_delta" } else { "thinking_delta" }, text)
            }
        };
        events
            .push(json!({ "type": "content_block_start", "index": index, "content_block": first }));
        for piece in pieces(&text) {
            let mut delta = json!({ "type": delta_type });
            delta[field] = piece.into();
            events.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        }
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    events.push(json!({
        "type": "message_delta",
        "delta": { "stop_reason": reply["stop_reason"], "stop_sequence": null },
        "usage": { "output_tokens": reply["usage"]["output_tokens"] },
    }));
    events.push(json!({ "type": "message_stop" }));
    events
}

/// Returns a completion as a response, with a reasoning item if the request asks for reasoning.
fn response(completion: &Json, request: &Json) -> Json {
    let (text, refusal, finish) = choice_of(completion);
    let mut output = Vec::new();
    if request.get("reasoning").is_some() {
        let summary = json!([{ "type": "summary_text", "text": "{\"rows\": []}" }]);
        output.push(json!({ "type": "reasoning", "id": "rs_test", "summary": summary }));
    }
    let part = if refusal.is_empty() {
        let logprobs = completion.pointer("/choices/0/logprobs/content").cloned();
        let logprobs = logprobs.unwrap_or_else(|| json!([]));
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
    } else {
        json!({ "type": "refusal", "refusal": refusal })
    };
    let (status, reason) = match finish.as_str() {
        "length" => ("incomplete", json!({ "reason": "max_output_tokens" })),
        "content_filter" => ("incomplete", json!({ "reason": "content_filter" })),
        _ => ("completed", Json::Null),
    };
    output.push(json!({
        "type": "message", "id": "msg_test", "role": "assistant", "status": status,
        "content": [part],
    }));
    let mut reply = json!({
        "id": "resp_test", "object": "response", "created_at": 0, "status": status,
        "error": null, "incomplete_details": reason, "instructions": null, "metadata": {},
        "model": request["model"], "output": output, "parallel_tool_calls": true,
        "temperature": request["temperature"], "tool_choice": "auto", "tools": [], "top_p": 1.0,
        "service_tier": "default",
    });
    match completion.get("usage") {
        Some(usage) if usage.get("prompt_tokens").is_some() => {
            let details = |name: &str| usage["prompt_tokens_details"][name].as_u64().unwrap_or(0);
            reply["usage"] = json!({
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {
                    "cached_tokens": details("cached_tokens"),
                    "cache_write_tokens": details("cache_write_tokens"),
                },
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": usage["total_tokens"],
            });
        }
        Some(usage) => reply["usage"] = usage.clone(),
        None => {}
    }
    reply
}

fn response_events(reply: &Json) -> Vec<Json> {
    let mut start = reply.clone();
    start["status"] = "in_progress".into();
    start["output"] = json!([]);
    start.as_object_mut().unwrap().remove("usage");
    let mut events = vec![json!({ "type": "response.created", "response": start })];
    for (index, item) in reply["output"].as_array().into_iter().flatten().enumerate() {
        let mut added = item.clone();
        added["content"] = json!([]);
        if item["type"] == "reasoning" {
            added["summary"] = json!([]);
        }
        events.push(
            json!({ "type": "response.output_item.added", "output_index": index, "item": added }),
        );
        let at = json!({ "item_id": item["id"], "output_index": index });
        let mut add_deltas = |kind: &str, index_name: &str, text: &str| {
            for piece in pieces(text) {
                let mut event = at.clone();
                event["type"] = kind.into();
                event[index_name] = 0.into();
                event["delta"] = piece.into();
                if kind == "response.output_text.delta" {
                    event["logprobs"] = json!([]);
                }
                events.push(event);
            }
        };
        let text = |pointer: &str| item.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
        add_deltas(
            "response.reasoning_summary_text.delta",
            "summary_index",
            text("/summary/0/text"),
        );
        add_deltas("response.output_text.delta", "content_index", text("/content/0/text"));
        add_deltas("response.refusal.delta", "content_index", text("/content/0/refusal"));
        events.push(
            json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
        );
    }
    let end =
        if reply["status"] == "completed" { "response.completed" } else { "response.incomplete" };
    events.push(json!({ "type": end, "response": reply }));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = number.into();
    }
    events
}
