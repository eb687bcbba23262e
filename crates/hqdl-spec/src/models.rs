//! Checks `[model]` and `[model.NAME]`: the models of a spec.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::ModelSettings;
use super::check::{Check, join};
use super::draft::Draft;
use super::file::{ModelTable, OtherModelTable, Provider, Reuse};
use super::parameters::{ModelParameters, SERVICE_TIER, billed_beside_tokens};
use super::price_book::PriceBook;
use super::secret::is_variable;
use super::shape::Step;
use super::{PriceOrigin, PriceTable};

/// Default maximum of an answer's tokens, which every model in use allows.
pub const MAX_OUTPUT_TOKENS: u32 = 4096;

impl ModelTable {
    /// Returns a `[model.NAME]` table with the settings that it inherits from `[model]`.
    #[must_use]
    pub fn other(&self, other: &OtherModelTable) -> Self {
        let elsewhere = other.base_url.is_some() && !same_endpoint(other, self);
        let own = self.name == other.name && !elsewhere;
        Self {
            provider: other.provider.unwrap_or(if other.recordings.is_empty() {
                self.provider
            } else {
                Provider::Replay
            }),
            name: other.name.clone(),
            base_url: other.base_url.clone().or_else(|| self.base_url.clone()),
            api_key_env: other
                .api_key_env
                .clone()
                .or_else(|| self.api_key_env.clone().filter(|_| !elsewhere)),
            temperature: other.temperature.or(self.temperature),
            max_output_tokens: other.max_output_tokens.or(self.max_output_tokens),
            parameters: match &other.parameters {
                Some(parameters) => parameters.clone(),
                None if own => self.parameters.clone(),
                None => ModelParameters::new(),
            },
            parameters_identity: self.parameters_identity,
            price: other.price.or(self.price.filter(|_| own)),
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

impl Check<'_> {
    /// Checks that there are recordings, and that each is a file.
    fn recordings(&mut self, table: &[Step], recordings: &[PathBuf]) {
        if recordings.is_empty() {
            self.error(
                &join(table, &["provider".into()]),
                "provider \"replay\" has no recordings",
                "",
                "name files in `recordings`, or pass --recordings FILE",
            );
        }
        for (n, path) in recordings.iter().enumerate() {
            if !path.is_file() {
                let place = join(table, &["recordings".into(), n.into()]);
                self.error(
                    &place,
                    &format!("the recording {} does not exist", path.display()),
                    "no such file",
                    "",
                );
            }
        }
    }
}

/// Default base URL of an endpoint.
pub const OPENAI: &str = "https://api.openai.com/v1";
/// Path of the chat API after the endpoint's base URL.
pub const CHAT: &str = "/chat/completions";

/// Returns true if two tables refer to the same endpoint, which has one key.
fn same_endpoint(a: &OtherModelTable, b: &ModelTable) -> bool {
    let base = |url: &Option<String>| {
        let url = url.as_deref().unwrap_or(OPENAI).trim_end_matches('/');
        url.trim_end_matches(CHAT).trim_end_matches('/').to_owned()
    };
    base(&a.base_url) == base(&b.base_url)
}

/// Returns text for a message that names the model, unless it is that of `[model]`.
fn in_words(other: Option<&str>) -> String {
    other.map_or(String::new(), |name| format!(" of [model.{name}]"))
}

impl Draft {
    /// Returns the models besides `[model]`, whose settings are `main`.
    pub(super) fn models(
        &self,
        check: &mut Check<'_>,
        main: &ModelSettings,
    ) -> BTreeMap<String, ModelSettings> {
        let table = &self.file.model;
        let mut settings = |(name, other): (&String, &_)| {
            let of = if self.one_model {
                main.clone()
            } else {
                self.model(check, Some(name), &table.other(other))
            };
            (name.clone(), of)
        };
        table.others.iter().map(&mut settings).collect()
    }

    /// Returns a model that bills its answers and has no known price, with the reason.
    pub(super) fn unpriced(&self) -> Option<(String, String)> {
        let main = &self.file.model;
        let others = main.others.iter().filter(|_| !self.one_model);
        let others = others.map(|(name, other)| (Some(name.as_str()), main.other(other)));
        std::iter::once((None, main.clone())).chain(others).find_map(|(name, model)| {
            match self.price(&model) {
                (_, PriceOrigin::Unknown(why)) if model.provider != Provider::Replay => {
                    Some((in_words(name), why))
                }
                _ => None,
            }
        })
    }

    /// Returns the price of a model: the spec's, or else that of the price book for its endpoint.
    /// If the factor of a service tier is unknown, the price is unknown.
    fn price(&self, model: &ModelTable) -> (Option<PriceTable>, PriceOrigin) {
        let unknown = |why: &str| (None, PriceOrigin::Unknown(why.to_owned()));
        if self.ignores_prices || model.provider == Provider::Replay && model.price.is_none() {
            return unknown("no `price` in [model]");
        }
        let url = model.base_url.as_deref().unwrap_or(OPENAI);
        let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        let book = PriceBook::bundled();
        let entry = book.find(url, &model.name, &today);
        let (mut price, origin) = match (model.price, &entry) {
            (Some(price), _) => (price, PriceOrigin::Spec),
            (None, Ok(entry)) => (entry.price, PriceOrigin::Book(book.date.clone())),
            (None, Err(why)) => return unknown(why),
        };
        let factor = price.service_tier.take();
        if let Some(tier) = model.parameters.get(SERVICE_TIER) {
            let of_book = |tier| entry.as_ref().ok()?.service_tier(tier);
            price.service_tier = match (tier.as_str(), factor) {
                (Some("default"), _) => None,
                (_, Some(factor)) => Some(factor),
                (tier, None) => match tier.and_then(of_book) {
                    Some(factor) => Some(factor),
                    None => {
                        let set = "set `service_tier` in `price`";
                        return unknown(&format!(
                            "no price for service_tier {} ({set})",
                            model.parameters[SERVICE_TIER]
                        ));
                    }
                },
            };
        }
        (Some(price), origin)
    }

    /// Rejects parameters with costs that the model's price does not cover, because a budget could
    /// not be enforced with them.
    pub(super) fn unpriced_parameters(&self, check: &mut Check<'_>) {
        let main = &self.file.model;
        let others = main.others.iter().filter(|_| !self.one_model);
        let others = others.map(|(name, other)| (Some(name.as_str()), main.other(other)));
        for (name, model) in std::iter::once((None, main.clone())).chain(others) {
            if model.provider == Provider::Replay {
                continue;
            }
            let Some(field) = billed_beside_tokens(&model.parameters) else { continue };
            let place: Vec<Step> = [Some("model"), name, Some("parameters"), Some(field)]
                .into_iter()
                .flatten()
                .map(Step::from)
                .collect();
            check.error(
                &place,
                &format!("hqdl cannot keep a budget with `{field}`"),
                "it is not billed by tokens",
                "remove it, or limit tokens with `budget_tokens` instead",
            );
        }
    }

    /// Checks the settings of `[model]`, or of a `[model.NAME]` with inherited settings.
    pub(super) fn model(
        &self,
        check: &mut Check<'_>,
        other: Option<&str>,
        model: &ModelTable,
    ) -> ModelSettings {
        let mut table = vec![Step::from("model")];
        table.extend(other.map(Step::from));
        let at = |field: &str| join(&table, &[field.into()]);
        if let Some(url) = &model.base_url
            && !(url.starts_with("http://") || url.starts_with("https://"))
        {
            check.error(
                &at("base_url"),
                &format!("`{url}` is not the URL of an endpoint"),
                "expected http://… or https://…",
                "",
            );
        }
        if model.api_key_env.as_ref().is_some_and(|name| !is_variable(name)) {
            check.error(
                &at("api_key_env"),
                "`api_key_env` is not the name of an environment variable",
                "expected a name such as OPENAI_API_KEY",
                "never write a key into a spec; if this is one, revoke it",
            );
        }
        if model.temperature.is_some_and(|t| !(0.0..=2.0).contains(&t)) {
            check.error(&at("temperature"), "`temperature` is out of range", "expected 0 to 2", "");
        }
        if let Some(price) = &model.price {
            let mut all = vec![
                (vec!["input"], Some(price.input)),
                (vec!["output"], Some(price.output)),
                (vec!["cached_input"], price.cached_input),
                (vec!["cache_write"], price.cache_write),
                (vec!["batch"], price.batch),
                (vec!["batch_cached_input"], price.batch_cached_input),
                (vec!["service_tier"], price.service_tier),
            ];
            if let Some(above) = &price.above {
                all.extend([
                    (vec!["above", "input"], Some(above.input)),
                    (vec!["above", "output"], Some(above.output)),
                    (vec!["above", "cached_input"], above.cached_input),
                    (vec!["above", "cache_write"], above.cache_write),
                ]);
            }
            for (fields, usd) in all {
                if !usd.is_none_or(|usd| usd >= 0.0 && usd.is_finite()) {
                    let steps: Vec<Step> = fields.iter().map(|field| (*field).into()).collect();
                    let place = join(&at("price"), &steps);
                    check.error(
                        &place,
                        &format!("`{}` is not a valid price", fields.join(".")),
                        "expected USD per million tokens, 0 or more",
                        "",
                    );
                }
            }
        }
        let parameters = check.parameters(&table, &model.parameters);
        if model.parameters_identity && model.reuse == Reuse::AnyModel && other.is_none() {
            check.error(
                &at("parameters_identity"),
                "`parameters_identity` has no effect with `reuse = \"any-model\"`",
                "`reuse` accepts the answers of any model",
                "remove one of the two",
            );
        }
        let recordings: Vec<PathBuf> = self
            .recordings
            .clone()
            .filter(|_| other.is_none())
            .unwrap_or_else(|| model.recordings.iter().map(|r| self.beside(r)).collect());
        if model.provider == Provider::Replay {
            check.recordings(&table, &recordings);
        } else if model.name.is_empty() && !self.bare {
            check.error(
                &at("name"),
                &format!("the model{} has no name", in_words(other)),
                "",
                &match other {
                    None => "set `name` in [model], or pass --model".to_owned(),
                    Some(other) => format!("set `name` in [model.{other}]"),
                },
            );
        }
        let (price, price_origin) = self.price(model);
        // Recordings ignore parameters.
        let replayed = model.provider == Provider::Replay;
        ModelSettings {
            provider: model.provider,
            name: if model.name.is_empty() { "replay".to_owned() } else { model.name.clone() },
            base_url: model.base_url.clone(),
            api_key_env: model.api_key_env.clone(),
            temperature: model.temperature,
            max_output_tokens: model.max_output_tokens.unwrap_or(MAX_OUTPUT_TOKENS).max(1),
            parameters: if replayed { ModelParameters::new() } else { parameters },
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
