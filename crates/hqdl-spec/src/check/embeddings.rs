//! Checks `[embeddings]`: the model that finds similar texts.

use std::time::Duration;

use super::super::file::{Echo, EmbeddingsTable, LimitsTable, ModelTable, Reuse};
use super::super::provider::Provider;
use super::super::schema_check::Step;
use super::super::secret::is_env_variable_name;
use super::super::{Embeddings, ModelParameters, ModelSettings, PriceOrigin, PriceTable};
use super::SpecCheck;

const DEFAULT_TIMEOUT_SECONDS: f64 = 30.0;

/// Checks `[embeddings]` and returns its settings; `None` if the spec has no such table.
pub fn check_embeddings(
    table: Option<&EmbeddingsTable>,
    model: &ModelTable,
    limits: &LimitsTable,
    check: &mut SpecCheck<'_>,
) -> Option<Embeddings> {
    let table = table?;
    let field_path = |field: &str| [Step::from("embeddings"), field.into()];
    if table.model.trim().is_empty() {
        check.add_error(
            &field_path("model"),
            "the embedding model has no name",
            "",
            "set `model` in [embeddings]",
        );
    }
    if table.price.is_some_and(|usd| !(usd >= 0.0 && usd.is_finite())) {
        let label = "expected USD per million tokens, 0 or more";
        check.add_error(&field_path("price"), "`price` is not a valid price", label, "");
    }
    if table
        .base_url
        .as_ref()
        .is_some_and(|u| !u.starts_with("http://") && !u.starts_with("https://"))
    {
        check.add_error(
            &field_path("base_url"),
            "`base_url` is not a URL",
            "expected http:// or https://",
            "",
        );
    }
    if table.api_key_env.as_ref().is_some_and(|name| !is_env_variable_name(name)) {
        check.add_error(
            &field_path("api_key_env"),
            "`api_key_env` is not the name of an environment variable",
            "expected a name such as OPENAI_API_KEY",
            "never write a key into a spec; if this is one, revoke it",
        );
    }
    if table.price.is_none() && (limits.budget_usd.is_some() || limits.budget_usd_per_day.is_some())
    {
        check.add_error(
            &field_path("model"),
            "hqdl cannot keep a budget in USD: the embedding model has no price",
            "",
            "set `price` in [embeddings], in USD per million tokens (0 for a model of your own)",
        );
    }
    let seconds = table.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|t| !t.is_zero());
    if timeout.is_none() {
        check.add_error(
            &field_path("timeout_seconds"),
            "`timeout_seconds` is not a valid time",
            "expected seconds, more than 0",
            "",
        );
    }
    let has_own_endpoint = table.base_url.is_some() || !model.provider.has_embeddings();
    let key = table.api_key_env.clone();
    Some(Embeddings {
        timeout: timeout.unwrap_or_default(),
        model: ModelSettings {
            provider: Provider::Openai,
            name: table.model.clone(),
            base_url: if has_own_endpoint {
                table.base_url.clone()
            } else {
                model.base_url.clone()
            },
            api_key_env: if has_own_endpoint {
                key
            } else {
                key.or_else(|| model.api_key_env.clone())
            },
            temperature: None,
            max_output_tokens: 0,
            parameters: ModelParameters::new(),
            parameters_identity: false,
            // Embedding endpoints have no prompt cache.
            price: table.price.map(|input| PriceTable {
                input,
                cache_write: Some(input),
                ..PriceTable::default()
            }),
            price_origin: PriceOrigin::Spec,
            recordings: Vec::new(),
            reuse: Reuse::SameModel,
            echo: Echo::default(),
            unknown: None,
        },
    })
}
