//! Anthropic's Messages API.

use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::{Value as Json, json};

use super::anthropic_batches::{self, MessageBatches};
use super::{BatchApi, BatchClient, BatchLine, Protocol, RequestParts, parse_reply};
use crate::ModelError;
use crate::limits::{PerMinute, RateLimitHint};
use crate::prompt_cache::{self, CacheBreakpoint, PromptCaching};
use crate::providers::{DEFAULT_PROFILE, ProviderProfile};
use crate::rate_headers::{parse_header_number, read_header_text};
use crate::reply::{DraftEnd, ReplyDraft};
use crate::request_features::{RequestFeatures, SchemaForm, SchemaRejection};
use hqdl_spec::Provider;

/// Version of the API, which is independent of its models.
const VERSION: &str = "2023-06-01";
/// Name of the tool whose arguments are the answer, for models without `output_config`.
const TOOL_NAME: &str = "rows";
/// Maximum tokens of the instructions that Anthropic adds for a forced tool, or for a schema. See
/// <https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview> (at most 530).
const SCHEMA_INSTRUCTIONS: u64 = 600;

/// Profile of `https://api.anthropic.com/v1`. Its OpenAI-compatible endpoint has no prompt cache and
/// ignores `response_format`, so hqdl sends none there. See
/// <https://platform.claude.com/docs/en/api/openai-sdk>.
const PROFILE: ProviderProfile = ProviderProfile {
    name: "Anthropic",
    matches_url: |url| url.host_str() == Provider::Anthropic.host(),
    key_variable: Some("ANTHROPIC_API_KEY"),
    supports_schema: false,
    // Anthropic's own clients are configured with a URL without the version.
    prepare_url: |url| {
        if url.path() == "/" {
            url.set_path("/v1");
        }
    },
    ..DEFAULT_PROFILE
};

/// Anthropic's Messages API; see <https://platform.claude.com/docs/en/api/messages>.
pub(super) struct Anthropic;

impl Protocol for Anthropic {
    fn provider(&self) -> Provider {
        Provider::Anthropic
    }

    fn api_name(&self) -> &'static str {
        "Anthropic's Messages API"
    }

    fn profile(&self) -> Option<&'static ProviderProfile> {
        Some(&PROFILE)
    }

    fn key_header(&self) -> Option<&'static str> {
        Some("x-api-key")
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", VERSION)]
    }

    fn initial_features(&self, _: &ProviderProfile, _: &str) -> RequestFeatures {
        // Nothing is cached without a breakpoint. A prefix that is too short is not cached.
        let breakpoint = Some(CacheBreakpoint::CacheControl);
        RequestFeatures::new(PromptCaching { breakpoint, key: false })
    }

    fn schema_rejection(&self, form: SchemaForm) -> SchemaRejection {
        match form {
            SchemaForm::Tool => SchemaRejection {
                words: &["tool_choice", "tools", "tool use", "input_schema"],
                next: SchemaForm::None,
            },
            _ => SchemaRejection {
                words: &["output_config", "output_format", "output format", "json_schema"],
                next: SchemaForm::Tool,
            },
        }
    }

    fn extra_input_tokens(&self) -> u64 {
        SCHEMA_INSTRUCTIONS
    }

    fn build_request_body(&self, request: &RequestParts<'_>) -> Json {
        let RequestParts { prompt, features, .. } = request;
        let user = if prompt.media.is_empty() {
            Json::from(prompt.user.as_str())
        } else {
            let text = json!({ "type": "text", "text": prompt.user });
            std::iter::once(text).chain(request.media_parts(self.provider())).collect()
        };
        let mut body = json!({
            "model": request.model,
            "max_tokens": prompt.max_output,
            "system": &*prompt.system,
            "messages": [{ "role": "user", "content": user }],
        });
        for (name, value) in request.parameters {
            body[name] = value.clone();
        }
        if let Some(temperature) = request.sent_temperature() {
            body["temperature"] = temperature.into();
        }
        if let Some(breakpoint) = features.caching.breakpoint {
            prompt_cache::write_breakpoint(&mut body, "/system", "text", breakpoint);
        }
        if let Some(schema) = request.sent_schema(SchemaForm::Native) {
            // `output_config` may also contain an `effort` that the spec sets.
            body["output_config"]["format"] = json!({ "type": "json_schema", "schema": schema });
        }
        if let Some(schema) = request.sent_schema(SchemaForm::Tool) {
            let description = "Records the answer to the request.";
            body["tools"] = json!([
                { "name": TOOL_NAME, "description": description, "input_schema": schema }
            ]);
            body["tool_choice"] = json!({ "type": "tool", "name": TOOL_NAME });
        }
        if request.is_streamed {
            body["stream"] = true.into();
        }
        body
    }

    fn apply_event(&self, event: &Json, draft: &mut ReplyDraft) -> Result<bool, ModelError> {
        match event.get("type").and_then(Json::as_str).unwrap_or_default() {
            // A whole message, or the empty message that begins a stream.
            "message" => add_message(event, draft),
            "message_start" => add_message(&event["message"], draft),
            "content_block_start" => add_block(&event["content_block"], draft),
            "content_block_delta" => add_block(&event["delta"], draft),
            "message_delta" => {
                draft.merge_usage(&event["usage"]);
                set_finish_reason(&event["delta"], draft);
            }
            "message_stop" => return Ok(true),
            _ => {}
        }
        Ok(false)
    }

    fn parse_rate_limits(&self, headers: &HeaderMap) -> RateLimitHint {
        parse_rate_limit_headers(headers)
    }

    fn parse_batch_line(&self, line: &Json) -> Option<BatchLine> {
        anthropic_batches::parse_result_line(line, |message| parse_reply(self, message))
    }

    fn batch_api<'e>(&self, client: &'e dyn BatchClient) -> Option<Box<dyn BatchApi + 'e>> {
        Some(Box::new(MessageBatches { client }))
    }
}

/// Adds a message to a draft.
fn add_message(message: &Json, draft: &mut ReplyDraft) {
    let blocks = message.get("content").and_then(Json::as_array);
    draft.has_begun |= blocks.is_some();
    blocks.into_iter().flatten().for_each(|block| add_block(block, draft));
    let usage = message.get("usage").unwrap_or(&Json::Null);
    draft.merge_usage(usage);
    draft.set_tier(usage.get("service_tier"));
    set_finish_reason(message, draft);
}

/// Adds a content block, or a part of one. Thinking is paid for, but never read as an answer.
fn add_block(block: &Json, draft: &mut ReplyDraft) {
    let text = |field: &str| block.get(field).and_then(Json::as_str).unwrap_or_default();
    match text("type") {
        "text" | "text_delta" => draft.content.push_str(text("text")),
        // The only tool is the one whose arguments contain the answer.
        "input_json_delta" => draft.content.push_str(text("partial_json")),
        "tool_use" => {
            let input = block.get("input").and_then(Json::as_object).filter(|i| !i.is_empty());
            draft
                .content
                .push_str(&input.map(|i| Json::from(i.clone()).to_string()).unwrap_or_default());
        }
        "thinking" | "thinking_delta" => draft.other_output.push_str(text("thinking")),
        "redacted_thinking" => draft.other_output.push_str("(redacted thinking)"),
        // A signature is not part of the model's output.
        _ => {}
    }
}

/// Parses why the model stopped.
fn set_finish_reason(json: &Json, draft: &mut ReplyDraft) {
    let Some(reason) = json.get("stop_reason").and_then(Json::as_str) else { return };
    draft.end = Some(match reason {
        "max_tokens" | "model_context_window_exceeded" | "pause_turn" => DraftEnd::Truncated,
        "refusal" => DraftEnd::Refused,
        _ => DraftEnd::Complete,
    });
}

/// Parses Anthropic's rate-limit headers. See
/// <https://platform.claude.com/docs/en/api/rate-limits#response-headers>. The limit of `tokens` is
/// the strictest limit in effect, and each limit resets at a time in RFC 3339.
fn parse_rate_limit_headers(headers: &HeaderMap) -> RateLimitHint {
    let name = |what: &str, field: &str| format!("anthropic-ratelimit-{what}-{field}");
    let limit =
        |what: &str| parse_header_number(headers, &name(what, "limit")).filter(|limit| *limit > 0);
    let wait = |what: &str| {
        let none_left = parse_header_number(headers, &name(what, "remaining")) == Some(0);
        let reset = read_header_text(headers, &name(what, "reset")).filter(|_| none_left)?;
        let reset: jiff::Timestamp = reset.parse().ok()?;
        Some(Duration::try_from(reset.duration_since(jiff::Timestamp::now())).unwrap_or_default())
    };
    let kinds = ["requests", "tokens", "input-tokens", "output-tokens"];
    RateLimitHint {
        limits: PerMinute {
            requests: limit("requests"),
            tokens: limit("tokens").or_else(|| limit("input-tokens")),
        },
        wait: kinds.into_iter().filter_map(wait).max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_draft(events: &[Json]) -> ReplyDraft {
        let mut draft = ReplyDraft::default();
        for event in events {
            Anthropic.apply_event(event, &mut draft).unwrap();
        }
        draft
    }

    #[test]
    fn thinking_is_not_an_answer_and_usage_is_merged() {
        let draft = build_draft(&[
            json!({ "type": "message_start", "message": { "type": "message", "content": [],
                "usage": { "input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 1, "service_tier": "standard" } } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking", "thinking": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "thinking_delta", "thinking": "{\"rows\": []}" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "signature_delta", "signature": "xyz" } }),
            json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "text_delta", "text": "an answer" } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 40 } }),
        ]);
        let reply = draft.to_reply();
        assert_eq!(
            (reply.content.as_str(), reply.other_output.as_str()),
            ("an answer", "{\"rows\": []}")
        );
        let reported = reply.reported;
        assert_eq!(
            (reported.input, reported.cached_input, reported.output),
            (Some(105), Some(100), Some(40))
        );
        assert!(!reply.truncated && !reply.refused && !reply.is_unfinished);
    }

    #[test]
    fn a_forced_tools_arguments_are_the_answer() {
        let whole = build_draft(&[
            json!({ "type": "message", "stop_reason": "tool_use", "usage": {},
            "content": [{ "type": "tool_use", "id": "t", "name": "rows", "input": { "rows": [] } }] }),
        ]);
        let streamed = build_draft(&[
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "tool_use", "id": "t", "name": "rows", "input": {} } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta", "partial_json": "{\"rows\"" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta", "partial_json": ":[]}" } }),
        ]);
        assert_eq!(
            (whole.content, streamed.content),
            ("{\"rows\":[]}".into(), "{\"rows\":[]}".into())
        );
    }

    #[test]
    fn rate_limit_headers_are_read() {
        let reset = (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(20)).to_string();
        let headers = [
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-tokens-limit", "30000"),
            ("anthropic-ratelimit-output-tokens-remaining", "0"),
            ("anthropic-ratelimit-output-tokens-reset", &reset),
        ];
        let headers = headers
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let hint = parse_rate_limit_headers(&headers.collect());
        assert_eq!(hint.limits, PerMinute { requests: Some(50), tokens: Some(30_000) });
        assert!(
            hint.wait.is_some_and(|w| w > Duration::from_secs(15) && w <= Duration::from_secs(20))
        );
    }
}
