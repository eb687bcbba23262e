//! `[model.parameters]`: further fields of a request, which hqdl sends unchanged.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::check::{SpecCheck, join_path};
use super::schema_check::Step;
use super::secret::{is_api_key, is_api_key_field};

/// Fields that `[model.parameters]` adds to the body of a request.
pub type ModelParameters = BTreeMap<String, Json>;

/// Field that selects how a provider schedules and bills a request.
pub const SERVICE_TIER: &str = "service_tier";

/// Names that `[model.parameters]` cannot have, each with a hint.
const RESERVED: [(&[&str], &str); 10] = [
    (&["model"], "set `name` in [model]"),
    (
        &["messages", "prompt", "input", "instructions", "system"],
        "hqdl writes the prompt from the expansion and its columns",
    ),
    (
        &["max_tokens", "max_completion_tokens", "max_output_tokens"],
        "set `max_output_tokens` in [model]",
    ),
    (&["temperature"], "set `temperature` in [model]"),
    (
        &["stream", "stream_options", "response_format"],
        "hqdl reads the answers, so it chooses their form; see `format` of an expansion",
    ),
    (
        &["tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"],
        "hqdl cannot read tool calls",
    ),
    (
        &["n", "best_of"],
        "hqdl reads only one answer per request, but the endpoint would bill all of them",
    ),
    (&["stop", "stop_sequences"], "an answer that ends at a stop sequence looks complete"),
    (
        &["background", "conversation", "previous_response_id"],
        "every request is complete in itself, and hqdl waits for its answer",
    ),
    (&["models", "modalities", "audio", "extra_body"], "write the fields directly into this table"),
];

/// Returns the reason why a field cannot be in `[model.parameters]`.
fn find_reserved_field_help(name: &str) -> Option<&'static str> {
    RESERVED.iter().find(|(names, _)| names.contains(&name)).map(|(_, help)| *help)
}

/// Parameters that incur costs in addition to the price of tokens.
const NON_TOKEN_PARAMETERS: [&str; 4] =
    ["web_search_options", "plugins", "mcp_servers", "container"];
/// Parameters that raise the price per token, which the price book does not cover.
const SURCHARGE_PARAMETERS: [&str; 2] = ["speed", "inference_geo"];

/// Returns the first parameter that incurs costs in addition to the price of tokens.
pub(super) fn find_non_token_parameter(parameters: &ModelParameters) -> Option<&'static str> {
    NON_TOKEN_PARAMETERS.into_iter().find(|name| parameters.contains_key(*name))
}

/// Returns the first parameter that raises the price per token.
pub(super) fn find_surcharge_parameter(parameters: &ModelParameters) -> Option<&'static str> {
    SURCHARGE_PARAMETERS.into_iter().find(|name| parameters.contains_key(*name))
}

/// Returns the parameters as JSON text, or `None` if there are none. Equal parameters have equal
/// texts.
#[must_use]
pub fn format_parameters(parameters: &ModelParameters) -> Option<String> {
    (!parameters.is_empty()).then(|| serde_json::to_string(parameters).unwrap_or_default())
}

impl SpecCheck<'_> {
    /// Checks the parameters of the model table at `table_path`, and returns them in canonical
    /// form: the fields of nested tables are sorted.
    pub(super) fn check_parameters(
        &mut self,
        table_path: &[Step],
        parameters: &ModelParameters,
    ) -> ModelParameters {
        let parameters_path = join_path(table_path, &["parameters".into()]);
        for (name, value) in parameters {
            let path = join_path(&parameters_path, &[name.as_str().into()]);
            if let Some(help) = find_reserved_field_help(name) {
                let message =
                    format!("`{name}` cannot be in {}", format_parameters_header(table_path));
                self.add_error(&path, &message, "hqdl sets this field itself", help);
            } else if contains_key(name, value) {
                self.add_error(
                    &path,
                    &format!("`{name}` holds a key"),
                    "never write a key into a spec",
                    "name its environment variable in `api_key_env`; if this is a real key, revoke it",
                );
            }
        }
        parameters.iter().map(|(name, value)| (name.clone(), sort_fields(value))).collect()
    }
}

/// Returns the TOML header of the `parameters` table for the model table at a path.
fn format_parameters_header(table_path: &[Step]) -> String {
    let names = table_path.iter().filter_map(|step| match step {
        Step::Field(name) => Some(name.as_str()),
        Step::Item(_) => None,
    });
    format!("[{}.parameters]", names.collect::<Vec<_>>().join("."))
}

fn contains_key(name: &str, value: &Json) -> bool {
    match value {
        Json::String(text) => is_api_key_field(name) || text.split_whitespace().any(is_api_key),
        Json::Array(items) => items.iter().any(|item| contains_key(name, item)),
        Json::Object(fields) => fields.iter().any(|(name, value)| contains_key(name, value)),
        _ => false,
    }
}

fn sort_fields(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(sort_fields).collect(),
        Json::Object(fields) => {
            let fields: BTreeMap<&String, Json> =
                fields.iter().map(|(name, value)| (name, sort_fields(value))).collect();
            fields.into_iter().map(|(name, value)| (name.clone(), value)).collect()
        }
        other => other.clone(),
    }
}
