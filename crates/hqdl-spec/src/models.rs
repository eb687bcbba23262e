//! Checks `[model]` and `[model.NAME]`: the models of a spec.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::ModelSettings;
use super::check::{SpecCheck, join_path};
use super::file::{ModelTable, OtherModelTable, Reuse};
use super::parameters::{
    ModelParameters, SERVICE_TIER, find_non_token_parameter, find_surcharge_parameter,
};
use super::price_book::{BookEntry, PriceBook};
use super::provider::Provider;
use super::schema_check::Step;
use super::secret::is_env_variable_name;
use super::unchecked::UncheckedSpec;
use super::{PriceOrigin, PriceTable};
use hqdl_values::format::hide_secrets;

/// Default maximum number of tokens of an answer, which all models in common use allow.
pub const DEFAULT_MAX_OUTPUT_TOKENS: u32 = 4096;

impl ModelTable {
    /// Returns a `[model.NAME]` table with the settings that it inherits from `[model]`.
    #[must_use]
    pub fn inherit_settings(&self, other: &OtherModelTable) -> Self {
        let base_of =
            |provider: Provider, url: &Option<String>| provider.resolve_url(url.as_deref()).1;
        let main_base = base_of(self.provider, &self.base_url);
        let given_base = other.base_url.as_ref();
        let has_other_url =
            given_base.is_some() && base_of(self.provider, &other.base_url) != main_base;
        let provider =
            other.provider.unwrap_or(match (other.recordings.is_empty(), has_other_url) {
                (false, _) => Provider::Replay,
                // A different endpoint does not use the API of `[model]` unless the table sets
                // `provider`.
                (true, true) if self.provider != Provider::Replay => Provider::default(),
                (true, _) => self.provider,
            });
        // A provider with its own endpoint does not inherit the endpoint of `[model]`.
        let has_own_endpoint = given_base.is_none()
            && ![provider, self.provider].contains(&Provider::Replay)
            && provider.default_base_url() != self.provider.default_base_url();
        let base_url = if has_own_endpoint { None } else { given_base.or(self.base_url.as_ref()) };
        let has_other_endpoint = has_other_url || has_own_endpoint;
        let is_same_model = self.name == other.name && !has_other_endpoint;
        Self {
            provider,
            name: other.name.clone(),
            base_url: base_url.cloned(),
            api_key_env: other
                .api_key_env
                .clone()
                .or_else(|| self.api_key_env.clone().filter(|_| !has_other_endpoint)),
            temperature: other.temperature.or(self.temperature),
            max_output_tokens: other.max_output_tokens.or(self.max_output_tokens),
            parameters: match &other.parameters {
                Some(parameters) => parameters.clone(),
                None if is_same_model => self.parameters.clone(),
                None => ModelParameters::new(),
            },
            parameters_identity: self.parameters_identity,
            price: other.price.or(self.price.filter(|_| is_same_model)),
            recordings: if other.recordings.is_empty() {
                self.recordings.clone()
            } else {
                other.recordings.clone()
            },
            reuse: self.reuse,
            echo: self.echo,
            unknown: self.unknown.clone(),
            others: BTreeMap::new(),
        }
    }
}

impl ModelTable {
    /// Returns true if a `[model.NAME]` table inherits the recordings of `[model]` under another
    /// name.
    fn replays_as_other_model(&self, other: &OtherModelTable) -> bool {
        let inherits = other.provider.is_none() && other.recordings.is_empty();
        inherits
            && self.inherit_settings(other).provider == Provider::Replay
            && self.name != other.name
    }
}

impl SpecCheck<'_> {
    /// Checks that there are recordings, and that each is a file.
    fn check_recordings(&mut self, table_path: &[Step], recordings: &[PathBuf]) {
        if recordings.is_empty() {
            self.add_error(
                &join_path(table_path, &["provider".into()]),
                "provider \"replay\" has no recordings",
                "",
                "name files in `recordings`, or pass --recordings FILE",
            );
        }
        for (n, path) in recordings.iter().enumerate() {
            if !path.is_file() {
                let recording_path = join_path(table_path, &["recordings".into(), n.into()]);
                let (message, label) = if path.is_dir() {
                    (format!("{} is a directory, not a recording", path.display()), "not a file")
                } else {
                    (format!("the recording {} does not exist", path.display()), "no such file")
                };
                self.add_error(
                    &recording_path,
                    &message,
                    label,
                    "correct the path, which is relative to the spec: a recording has JSON lines, plain or compressed (.gz)",
                );
            }
        }
    }
}

/// Returns the name of a model's table, as in the spec.
pub(crate) fn format_model_table_name(other: Option<&str>) -> String {
    other.map_or("[model]".to_owned(), |name| format!("[model.{name}]"))
}

/// Returns text that names the model in a message; empty for `[model]`.
fn describe_model(other: Option<&str>) -> String {
    other.map_or(String::new(), |name| format!(" of [model.{name}]"))
}

impl UncheckedSpec {
    /// Checks the `[model.NAME]` tables and returns their settings by name. `main` contains the
    /// settings of `[model]`.
    pub(super) fn check_models(
        &self,
        check: &mut SpecCheck<'_>,
        main: &ModelSettings,
    ) -> BTreeMap<String, ModelSettings> {
        let table = &self.file.model;
        let mut check_settings = |(name, other): (&String, &_)| {
            let model_settings = if self.uses_one_model {
                main.clone()
            } else {
                if table.replays_as_other_model(other) {
                    check.add_error(
                        &["model".into(), name.as_str().into()],
                        &format!(
                            "[model.{name}] would replay the answers of [model] as answers of `{}`",
                            other.name
                        ),
                        "it inherits provider \"replay\" and the recordings",
                        "set `provider`, or `recordings` of its own",
                    );
                }
                self.check_model(check, Some(name), &table.inherit_settings(other))
            };
            (name.clone(), model_settings)
        };
        table.others.iter().map(&mut check_settings).collect()
    }

    /// Returns a model that is not free but has no known price, together with its table and the
    /// reason. A query without a file that names no model can only call functions.
    pub(super) fn find_unpriced_model(&self) -> Option<(String, String, String)> {
        let main = &self.file.model;
        if self.has_no_file && main.name.is_empty() && main.base_url.is_none() {
            return None;
        }
        let other_models = main.others.iter().filter(|_| !self.uses_one_model);
        let other_models =
            other_models.map(|(name, other)| (Some(name.as_str()), main.inherit_settings(other)));
        std::iter::once((None, main.clone())).chain(other_models).find_map(|(name, model)| {
            match self.find_price(&model) {
                (_, PriceOrigin::Unknown(reason)) if model.provider != Provider::Replay => {
                    let described = format!(" `{}`{}", model.name, describe_model(name));
                    Some((described, format_model_table_name(name), reason))
                }
                _ => None,
            }
        })
    }

    /// Returns the price of a model from the spec or, failing that, from the price book for the
    /// model's endpoint. If the factor of a service tier is unknown, the price is unknown.
    fn find_price(&self, model: &ModelTable) -> (Option<PriceTable>, PriceOrigin) {
        let unknown_price = |reason: &str| (None, PriceOrigin::Unknown(reason.to_owned()));
        if self.ignores_prices || model.provider == Provider::Replay && model.price.is_none() {
            return unknown_price("no `price` in [model]");
        }
        let entry = find_book_entry(model);
        let (mut price, price_origin) = match (model.price, &entry) {
            (Some(price), entry) => {
                // Recordings can cost ten times as much as text, so they never default to `input`.
                let book_price = entry.as_ref().ok().and_then(|entry| entry.price.audio_input);
                let audio_input = price.audio_input.or(book_price);
                (PriceTable { audio_input, ..price }, PriceOrigin::Spec)
            }
            (None, Ok(entry)) => {
                (entry.price, PriceOrigin::Book(PriceBook::bundled().date.clone()))
            }
            (None, Err(reason)) => return unknown_price(reason),
        };
        let factor = price.service_tier.take();
        if let Some(tier) = model.parameters.get(SERVICE_TIER) {
            let book_factor = |tier| entry.as_ref().ok()?.find_tier_factor(tier);
            price.service_tier = match (tier.as_str(), factor) {
                (Some("default" | "standard_only"), _) => None,
                (_, Some(factor)) => Some(factor),
                (tier, None) => match tier.and_then(book_factor) {
                    Some(factor) => Some(factor),
                    None => {
                        let hint = "set `service_tier` in `price`";
                        return unknown_price(&format!(
                            "no price for service_tier {} ({hint})",
                            model.parameters[SERVICE_TIER]
                        ));
                    }
                },
            };
        }
        (Some(price), price_origin)
    }

    /// Rejects parameters whose costs the model's price does not cover, because a budget could not
    /// be enforced.
    pub(super) fn check_unpriced_parameters(&self, check: &mut SpecCheck<'_>) {
        let main = &self.file.model;
        let other_models = main.others.iter().filter(|_| !self.uses_one_model);
        let other_models =
            other_models.map(|(name, other)| (Some(name.as_str()), main.inherit_settings(other)));
        for (name, model) in std::iter::once((None, main.clone())).chain(other_models) {
            if model.provider == Provider::Replay {
                continue;
            }
            let surcharge = || find_surcharge_parameter(&model.parameters);
            let (field, reason, help) =
                if let Some(field) = find_non_token_parameter(&model.parameters) {
                    let help = "remove it, or limit tokens with `budget_tokens` instead";
                    (field, "it is not billed by tokens", help.to_owned())
                } else if let (Some(field), None) = (surcharge(), model.price) {
                    let help = format!(
                        "set `price` in {} to what the endpoint then charges, or remove it",
                        format_model_table_name(name)
                    );
                    (field, "it raises the price per token", help)
                } else {
                    continue;
                };
            let path: Vec<Step> = [Some("model"), name, Some("parameters"), Some(field)]
                .into_iter()
                .flatten()
                .map(Step::from)
                .collect();
            check.add_error(
                &path,
                &format!("hqdl cannot keep a budget with `{field}`"),
                reason,
                &help,
            );
        }
    }

    /// Checks the settings of `[model]`, or of a `[model.NAME]` with inherited settings.
    pub(super) fn check_model(
        &self,
        check: &mut SpecCheck<'_>,
        other: Option<&str>,
        model: &ModelTable,
    ) -> ModelSettings {
        let mut table_path = vec![Step::from("model")];
        table_path.extend(other.map(Step::from));
        let field_path = |field: &str| join_path(&table_path, &[field.into()]);
        check_endpoint(check, &table_path, model);
        if let Some(price) = &model.price {
            check_prices(check, &field_path("price"), price);
            if !self.ignores_prices {
                warn_about_low_price(check, &field_path("price"), model, price);
            }
        }
        let parameters = check.check_parameters(&table_path, &model.parameters);
        if model.parameters_identity && model.reuse == Reuse::AnyModel && other.is_none() {
            check.add_error(
                &field_path("parameters_identity"),
                "`parameters_identity` has no effect with `reuse = \"any-model\"`",
                "`reuse` accepts the answers of any model",
                "remove one of the two",
            );
        }
        let recordings: Vec<PathBuf> = self
            .recordings
            .clone()
            .filter(|_| other.is_none())
            .unwrap_or_else(|| model.recordings.iter().map(|r| self.resolve_path(r)).collect());
        if model.provider == Provider::Replay {
            check.check_recordings(&table_path, &recordings);
        } else if model.name.is_empty() && !self.has_no_file {
            check.add_error(
                &field_path("name"),
                &format!("the model{} has no name", describe_model(other)),
                "",
                &match other {
                    None => "set `name` in [model], or pass --model".to_owned(),
                    Some(other) => format!("set `name` in [model.{other}]"),
                },
            );
        }
        let (price, price_origin) = self.find_price(model);
        // Recordings ignore parameters.
        let is_replay = model.provider == Provider::Replay;
        ModelSettings {
            provider: model.provider.resolve_url(model.base_url.as_deref()).0,
            name: if model.name.is_empty() { "replay".to_owned() } else { model.name.clone() },
            base_url: model.base_url.clone(),
            api_key_env: model.api_key_env.clone(),
            temperature: model.temperature,
            max_output_tokens: model.max_output_tokens.unwrap_or(DEFAULT_MAX_OUTPUT_TOKENS).max(1),
            parameters: if is_replay { ModelParameters::new() } else { parameters },
            parameters_identity: model.parameters_identity,
            price,
            price_origin,
            recordings,
            reuse: model.reuse,
            echo: model.echo.unwrap_or_default(),
            unknown: model.unknown.clone(),
        }
    }
}

/// Returns the price book's entry for a model at its endpoint, as of today.
fn find_book_entry(model: &ModelTable) -> Result<&'static BookEntry, String> {
    let (_, url) = model.provider.resolve_url(model.base_url.as_deref());
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    PriceBook::bundled().find_price(&url, &model.name, &today)
}

/// Warns if a price is below the price book's, because costs and budgets would then be too low. The
/// price of another service tier may be lower.
fn warn_about_low_price(
    check: &mut SpecCheck<'_>,
    path: &[Step],
    model: &ModelTable,
    price: &PriceTable,
) {
    if model.provider == Provider::Replay || model.parameters.contains_key(SERVICE_TIER) {
        return;
    }
    let Ok(entry) = find_book_entry(model) else { return };
    let cached_input = |price: &PriceTable| price.cached_input.unwrap_or(price.input);
    let is_low = price.input < entry.price.input
        || price.output < entry.price.output
        || cached_input(price) < cached_input(&entry.price);
    if is_low {
        let describe = |price: &PriceTable| {
            let (input, cached, output) = (price.input, cached_input(price), price.output);
            format!("{input} for input, {cached} for cached input and {output} for output")
        };
        let message = format!(
            "the price of `{}` is lower than in the price book of {}: {}; the book has {} (USD per million tokens)",
            model.name,
            PriceBook::bundled().date,
            describe(price),
            describe(&entry.price)
        );
        let help = "hqdl computes costs and budgets with this price; remove `price` to use the book's, or ignore this if your endpoint gives you a discount";
        check.add_warning(path, &message, help);
    }
}

/// Largest plausible multiplier of a price.
const MAX_FACTOR: f64 = 5.0;

/// Checks that no price is negative or infinite.
fn check_prices(check: &mut SpecCheck<'_>, path: &[Step], price: &PriceTable) {
    let mut prices = vec![
        (vec!["input"], Some(price.input)),
        (vec!["output"], Some(price.output)),
        (vec!["cached_input"], price.cached_input),
        (vec!["cache_write"], price.cache_write),
        (vec!["audio_input"], price.audio_input),
        (vec!["batch"], price.batch),
        (vec!["batch_cached_input"], price.batch_cached_input),
        (vec!["service_tier"], price.service_tier),
    ];
    if let Some(above) = &price.above {
        prices.extend([
            (vec!["above", "input"], Some(above.input)),
            (vec!["above", "output"], Some(above.output)),
            (vec!["above", "cached_input"], above.cached_input),
            (vec!["above", "cache_write"], above.cache_write),
        ]);
    }
    for (name, factor) in [("batch", price.batch), ("service_tier", price.service_tier)] {
        if let Some(factor) = factor.filter(|factor| *factor > MAX_FACTOR) {
            let message = format!("`{name}` multiplies the price by {factor}");
            let path = join_path(path, &[name.into()]);
            check.add_warning(
                &path,
                &message,
                "write a multiplier, such as 0.5 for half the price",
            );
        }
    }
    for (fields, usd) in prices {
        if !usd.is_none_or(|usd| usd >= 0.0 && usd.is_finite()) {
            let steps: Vec<Step> = fields.iter().map(|field| (*field).into()).collect();
            let path = join_path(path, &steps);
            let name = fields.join(".");
            let (noun, expected) = match name.as_str() {
                "batch" | "service_tier" => ("multiplier", "expected 0 or more, such as 0.5"),
                _ => ("price", "expected USD per million tokens, 0 or more"),
            };
            check.add_error(&path, &format!("`{name}` is not a valid {noun}"), expected, "");
        }
    }
}

/// Checks the URL, the variable of the key, and the temperature.
fn check_endpoint(check: &mut SpecCheck<'_>, table_path: &[Step], model: &ModelTable) {
    let field_path = |field: &str| join_path(table_path, &[field.into()]);
    if let Some(url) = &model.base_url
        && !(url.starts_with("http://") || url.starts_with("https://"))
    {
        check.add_error(
            &field_path("base_url"),
            &format!("`{}` is not the URL of an endpoint", hide_secrets(url)),
            "expected http://… or https://…",
            "",
        );
    }
    if model.api_key_env.as_ref().is_some_and(|name| !is_env_variable_name(name)) {
        check.add_error(
            &field_path("api_key_env"),
            "`api_key_env` is not the name of an environment variable",
            "expected a name such as OPENAI_API_KEY",
            "never write a key into a spec; if this is one, revoke it",
        );
    }
    if model.max_output_tokens == Some(0) {
        let message = "`max_output_tokens` is 0, so the model could not answer";
        check.add_error(&field_path("max_output_tokens"), message, "expected at least 1", "");
    }
    if model.temperature.is_some_and(|t| !(0.0..=2.0).contains(&t)) {
        check.add_error(
            &field_path("temperature"),
            "`temperature` is out of range",
            "expected 0 to 2",
            "",
        );
    }
}
