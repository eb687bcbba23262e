//! `OpenAI`'s Responses API. Some models are available only through it.

use serde_json::{Value as Json, json};

use super::openai_batches::{FileBatches, parse_output_line};
use super::{BatchApi, BatchClient, BatchLine, Protocol, RequestParts, parse_reply};
use crate::providers::ProviderProfile;
use crate::reply::{DraftEnd, ReplyDraft};
use crate::request_features::{RequestFeatures, SchemaForm, SchemaRejection};
use crate::{ModelError, prompt_cache, wire};
use hqdl_spec::Provider;

/// `OpenAI`'s Responses API; see <https://platform.openai.com/docs/api-reference/responses>.
pub(super) struct OpenAiResponses;

impl Protocol for OpenAiResponses {
    fn provider(&self) -> Provider {
        Provider::OpenaiResponses
    }

    fn api_name(&self) -> &'static str {
        "OpenAI's Responses API"
    }

    fn initial_features(&self, profile: &ProviderProfile, model: &str) -> RequestFeatures {
        RequestFeatures::new((profile.caching)(model))
    }

    fn schema_rejection(&self, _: SchemaForm) -> SchemaRejection {
        SchemaRejection {
            words: &["text.format", "json_schema", "response_format"],
            next: SchemaForm::None,
        }
    }

    fn build_request_body(&self, request: &RequestParts<'_>) -> Json {
        let RequestParts { prompt, features, .. } = request;
        let user = if prompt.media.is_empty() {
            Json::from(prompt.user.as_str())
        } else {
            let text = json!({ "type": "input_text", "text": prompt.user });
            std::iter::once(text).chain(request.media_parts(self.provider())).collect()
        };
        // hqdl never refers to an earlier response, so the provider need not store it.
        let mut body = json!({
            "model": request.model,
            "store": false,
            "input": [
                { "role": "system", "content": &*prompt.system },
                { "role": "user", "content": user },
            ],
        });
        for (name, value) in request.parameters {
            body[name] = value.clone();
        }
        body["max_output_tokens"] = prompt.max_output.into();
        if let Some(temperature) = request.sent_temperature() {
            body["temperature"] = temperature.into();
        }
        if let Some(breakpoint) = features.caching.breakpoint {
            prompt_cache::write_breakpoint(&mut body, "/input/0/content", "input_text", breakpoint);
        }
        if features.caching.key {
            prompt_cache::write_cache_key(&mut body, &prompt.system);
        }
        if let Some(schema) = request.sent_schema(SchemaForm::Native) {
            // `text` may also contain a `verbosity` that the spec sets.
            body["text"]["format"] = json!({
                "type": "json_schema", "name": "rows", "strict": true, "schema": schema,
            });
        }
        if request.asks_for_logprobs() {
            // `include` may contain other fields that the spec sets.
            let mut include = body["include"].as_array().cloned().unwrap_or_default();
            include.push("message.output_text.logprobs".into());
            body["include"] = include.into();
        }
        if request.is_streamed {
            body["stream"] = true.into();
        }
        body
    }

    fn apply_event(&self, event: &Json, draft: &mut ReplyDraft) -> Result<bool, ModelError> {
        let delta = event.get("delta").and_then(Json::as_str).unwrap_or_default();
        match event.get("type").and_then(Json::as_str).unwrap_or_default() {
            "response.output_item.added" => draft.has_begun = true,
            "response.output_text.delta" => {
                draft.has_begun = true;
                draft.content.push_str(delta);
                draft.tokens.add_tokens(event.get("logprobs"));
            }
            "response.refusal.delta" => {
                draft.has_begun = true;
                draft.refusal.push_str(delta);
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                add_response(&event["response"], draft)?;
                return Ok(true);
            }
            "error" => {
                let error = json!({ "error": event });
                return wire::find_reply_error(&error).map_or(Ok(true), Err);
            }
            // Reasoning, or a tool call, although hqdl offers no tools.
            kind if kind.ends_with(".delta") => draft.other_output.push_str(delta),
            _ if event.get("object").and_then(Json::as_str) == Some("response") => {
                add_response(event, draft)?;
            }
            _ => {}
        }
        Ok(false)
    }

    fn parse_batch_line(&self, line: &Json) -> Option<BatchLine> {
        parse_output_line(line, "created_at", |body| {
            (body.get("object").and_then(Json::as_str) == Some("response"))
                .then(|| parse_reply(self, body))
        })
    }

    fn batch_api<'e>(&self, client: &'e dyn BatchClient) -> Option<Box<dyn BatchApi + 'e>> {
        Some(Box::new(FileBatches { client, path: self.provider().request_path() }))
    }
}

/// Adds a whole response to a draft. Output that was already streamed is not added again.
fn add_response(response: &Json, draft: &mut ReplyDraft) -> Result<(), ModelError> {
    if let Some(error) = wire::find_reply_error(response) {
        return Err(error);
    }
    let text = |json: &Json, field: &str| {
        json.get(field).and_then(Json::as_str).unwrap_or_default().to_owned()
    };
    draft.end =
        match (text(response, "status").as_str(), response.pointer("/incomplete_details/reason")) {
            ("completed", _) => Some(DraftEnd::Complete),
            (_, Some(reason)) if reason == "content_filter" => Some(DraftEnd::Refused),
            ("incomplete", _) => Some(DraftEnd::Truncated),
            _ => None,
        };
    draft.set_tier(response.get("service_tier"));
    if let Some(usage) = response.get("usage").filter(|u| !u.is_null()) {
        draft.usage = usage.clone();
    }
    let was_streamed = !draft.content.is_empty() || !draft.refusal.is_empty();
    let texts = response.pointer("/output").and_then(Json::as_array).into_iter().flatten();
    let texts = texts.filter_map(|item| item.get("content")?.as_array()).flatten();
    let lists: Vec<&Json> = texts.filter_map(|part| part.get("logprobs")).collect();
    // A whole response has the bytes of all tokens, which the events of a stream lack.
    if lists.iter().any(|list| list.as_array().is_some_and(|tokens| !tokens.is_empty())) {
        draft.tokens.clear();
        lists.into_iter().for_each(|list| draft.tokens.add_tokens(Some(list)));
    }
    draft.has_begun |= response.get("output").is_some_and(Json::is_array);
    let items = response.get("output").and_then(Json::as_array);
    for item in items.into_iter().flatten().filter(|_| !was_streamed) {
        if text(item, "type") != "message" {
            if item.get("type").is_some() && draft.other_output.is_empty() {
                draft.other_output.push_str(&item_text(item));
            }
            continue;
        }
        let parts = item.get("content").and_then(Json::as_array);
        for part in parts.into_iter().flatten() {
            match text(part, "type").as_str() {
                "output_text" => draft.content.push_str(&text(part, "text")),
                "refusal" => draft.refusal.push_str(&text(part, "refusal")),
                _ => draft.other_output.push_str(&part.to_string()),
            }
        }
    }
    Ok(())
}

/// Returns the text of a reasoning item: its summary and content. Other items, such as tool calls,
/// have none.
fn item_text(item: &Json) -> String {
    let parts = ["summary", "content"].into_iter().filter_map(|field| item.get(field)?.as_array());
    let texts = parts.flatten().filter_map(|part| part.get("text")?.as_str());
    texts.collect::<Vec<_>>().join("\n")
}
