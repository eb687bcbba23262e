//! `OpenAI`'s chat completions API, which most endpoints support: `OpenAI`, Azure, vLLM, Ollama,
//! llama.cpp and gateways.

use async_openai::types::chat::{
    ChatCompletionRequestSystemMessage, ChatCompletionRequestUserMessage,
    CreateChatCompletionRequest,
};
use serde_json::{Value as Json, json};

use super::openai_batches::{FileBatches, parse_output_line};
use super::{BatchApi, BatchClient, BatchLine, Protocol, RequestParts, parse_reply};
use crate::ModelError;
use crate::prompt_cache;
use crate::providers::ProviderProfile;
use crate::reply::{DraftEnd, ReplyDraft};
use crate::request_features::{RequestFeatures, SchemaForm, SchemaRejection};
use hqdl_spec::Provider;

/// `OpenAI`'s chat completions API; see <https://platform.openai.com/docs/api-reference/chat>.
pub(super) struct OpenAiChat;

impl Protocol for OpenAiChat {
    fn provider(&self) -> Provider {
        Provider::Openai
    }

    fn api_name(&self) -> &'static str {
        "OpenAI's Chat Completions API"
    }

    fn initial_features(&self, profile: &ProviderProfile, model: &str) -> RequestFeatures {
        let schema = if profile.supports_schema { SchemaForm::Native } else { SchemaForm::None };
        RequestFeatures {
            limit_name: Some((profile.limit_name, false)),
            schema,
            ..RequestFeatures::new((profile.caching)(model))
        }
    }

    fn schema_rejection(&self, _: SchemaForm) -> SchemaRejection {
        SchemaRejection {
            words: &["response_format", "json_schema", "response format"],
            next: SchemaForm::None,
        }
    }

    fn build_request_body(&self, request: &RequestParts<'_>) -> Json {
        let RequestParts { prompt, features, .. } = request;
        let messages = CreateChatCompletionRequest {
            model: request.model.to_owned(),
            messages: vec![
                ChatCompletionRequestSystemMessage::from(&*prompt.system).into(),
                ChatCompletionRequestUserMessage::from(prompt.user.as_str()).into(),
            ],
            ..CreateChatCompletionRequest::default()
        };
        // The request contains only strings, which always convert to JSON.
        let mut body = serde_json::to_value(messages).unwrap_or_default();
        if !prompt.media.is_empty()
            && let Some(user) = body["messages"].as_array_mut().and_then(|m| m.last_mut())
        {
            let text = json!({ "type": "text", "text": prompt.user });
            let media = request.media_parts(self.provider());
            user["content"] = std::iter::once(text).chain(media).collect();
        }
        for (name, value) in request.parameters {
            body[name] = value.clone();
        }
        if let Some((limit_name, _)) = features.limit_name {
            body[limit_name] = prompt.max_output.into();
        }
        if let Some(temperature) = request.sent_temperature() {
            body["temperature"] = temperature.into();
        }
        if let Some(breakpoint) = features.caching.breakpoint {
            prompt_cache::write_breakpoint(&mut body, "/messages/0/content", "text", breakpoint);
        }
        if features.caching.key {
            prompt_cache::write_cache_key(&mut body, &prompt.system);
        }
        if let Some(schema) = request.sent_schema(SchemaForm::Native) {
            body["response_format"] = json!({
                "type": "json_schema",
                "json_schema": { "name": "rows", "strict": true, "schema": schema },
            });
        }
        if request.asks_for_logprobs() {
            body["logprobs"] = true.into();
        }
        if request.is_streamed {
            body["stream"] = true.into();
            body["stream_options"] = json!({ "include_usage": true });
        }
        body
    }

    fn apply_event(&self, event: &Json, draft: &mut ReplyDraft) -> Result<bool, ModelError> {
        if let Some(usage) = event.get("usage").filter(|u| !u.is_null()) {
            draft.usage = usage.clone();
        }
        draft.set_tier(event.get("service_tier").or_else(|| event.pointer("/usage/service_tier")));
        let choices = event.get("choices").and_then(Json::as_array);
        for (n, choice) in choices.into_iter().flatten().enumerate() {
            draft.has_begun = true;
            let index = choice.get("index").and_then(Json::as_u64);
            if n == 0 && index.is_none_or(|i| i == 0) {
                draft.tokens.add_tokens(choice.pointer("/logprobs/content"));
            }
            let message = choice.get("delta").or_else(|| choice.get("message"));
            let message = message.and_then(Json::as_object);
            for (name, part) in message.into_iter().flatten() {
                let part_of = match (name.as_str(), part) {
                    ("role", _) | (_, Json::Null) => continue,
                    // hqdl requests only one choice, so further choices are not part of the answer.
                    _ if n > 0 || index.is_some_and(|i| i > 0) => &mut draft.other_output,
                    ("content", Json::String(_)) => &mut draft.content,
                    ("refusal", Json::String(_)) => &mut draft.refusal,
                    _ => &mut draft.other_output,
                };
                match part {
                    Json::String(text) => part_of.push_str(text),
                    other => part_of.push_str(&other.to_string()),
                }
            }
            match choice.get("finish_reason").and_then(Json::as_str) {
                None | Some("") => {}
                Some("length") => draft.end = Some(DraftEnd::Truncated),
                Some("content_filter") => draft.end = Some(DraftEnd::Refused),
                Some(_) => draft.end = Some(DraftEnd::Complete),
            }
        }
        // The usage follows the last choice, and `[DONE]` ends the stream.
        Ok(false)
    }

    fn parse_batch_line(&self, line: &Json) -> Option<BatchLine> {
        parse_output_line(line, "created", |body| {
            (body.get("object").and_then(Json::as_str) != Some("response"))
                .then(|| parse_reply(self, body))
        })
    }

    fn batch_api<'e>(&self, client: &'e dyn BatchClient) -> Option<Box<dyn BatchApi + 'e>> {
        Some(Box::new(FileBatches { client, path: self.provider().request_path() }))
    }
}
