//! The bundled price book: prices of common models at their providers' own endpoints.
//!
//! The figures are in `prices.csv`, which `scripts/prices/update.py` writes. A spec's `price` takes
//! precedence. The endpoint's host determines the provider; for any other host (a proxy, a local
//! server) the book has no price.

use std::sync::LazyLock;

use crate::Provider;
use hqdl_values::{LongPromptPrice, PriceTable};
use serde::Deserialize;

/// Providers by the hosts of their endpoints, in addition to the hosts of [`Provider`].
const HOSTS: [(&str, &str); 9] = [
    ("api.openai.com", "openai"),
    ("generativelanguage.googleapis.com", "google"),
    ("api.deepseek.com", "deepseek"),
    ("api.mistral.ai", "mistral"),
    ("api.groq.com", "groq"),
    ("api.x.ai", "x-ai"),
    ("api.together.xyz", "together"),
    ("api.together.ai", "together"),
    ("api.cerebras.ai", "cerebras"),
];

/// Prefixes of model names, in addition to the provider's name and `/`.
const PREFIXES: [(&str, &str); 4] =
    [("models/", "google"), ("gemini/", "google"), ("xai/", "x-ai"), ("together_ai/", "together")];

static BOOK: LazyLock<PriceBook> =
    LazyLock::new(|| PriceBook::parse(include_str!("prices.csv")).unwrap_or_default());

/// Prices of models on a date.
#[derive(Debug, Default)]
pub struct PriceBook {
    /// Date of the book, such as `2026-11-24`.
    pub date: String,
    /// Entries. A model has several if the provider has announced a change of its price.
    pub entries: Vec<BookEntry>,
}

/// Price of a model at a provider.
#[derive(Debug, Clone, PartialEq)]
pub struct BookEntry {
    /// Name of the provider.
    pub provider: String,
    /// Name of the model.
    pub model: String,
    /// Other names under which the provider serves the model, such as snapshots.
    pub names: Vec<String>,
    /// Date format in the model's snapshot names, if the provider documents one.
    pub snapshots: Option<SnapshotDate>,
    /// First day on which the price applies; empty if it already applied when the book was written.
    pub from: String,
    /// Price. If a provider lists no price for cached input, cache writes or batches, it bills them
    /// like other tokens.
    pub price: PriceTable,
    /// Price factors of the provider's service tiers.
    pub service_tiers: Vec<(String, f64)>,
    /// Page of the provider that lists the price.
    pub source: String,
}

/// Date format of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum SnapshotDate {
    /// `-2026-11-24`
    #[serde(rename = "-YYYY-MM-DD")]
    Dashed,
    /// `-20261124`
    #[serde(rename = "-YYYYMMDD")]
    Compact,
}

impl SnapshotDate {
    /// Returns true if a text is a date in this format.
    fn is_match(self, text: &str) -> bool {
        let pattern: &[u8] = match self {
            Self::Dashed => b"-0000-00-00",
            Self::Compact => b"-00000000",
        };
        text.len() == pattern.len()
            && text.bytes().zip(pattern).all(|(byte, pattern_byte)| match pattern_byte {
                b'-' => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
    }
}

/// Line of `prices.csv`.
#[derive(Deserialize)]
struct BookLine {
    provider: String,
    model: String,
    names: String,
    dated: Option<SnapshotDate>,
    from: String,
    input: f64,
    cached_input: f64,
    cache_write: f64,
    audio_input: Option<f64>,
    output: f64,
    batch: Option<f64>,
    batch_cached_input: Option<f64>,
    above_tokens: Option<u64>,
    above_input: Option<f64>,
    above_cached_input: Option<f64>,
    above_cache_write: Option<f64>,
    above_output: Option<f64>,
    tiers: String,
    source: String,
}

impl BookLine {
    fn into_entry(self) -> Option<BookEntry> {
        let above = match self.above_tokens {
            None => None,
            Some(input_tokens) => Some(LongPromptPrice {
                input_tokens,
                input: self.above_input?,
                cached_input: Some(self.above_cached_input?),
                cache_write: Some(self.above_cache_write?),
                output: self.above_output?,
            }),
        };
        let parse_tier = |word: &str| {
            let (name, factor) = word.split_once('=')?;
            Some((name.to_owned(), factor.parse().ok()?))
        };
        Some(BookEntry {
            provider: self.provider,
            model: self.model,
            names: self.names.split_whitespace().map(str::to_owned).collect(),
            snapshots: self.dated,
            from: self.from,
            price: PriceTable {
                input: self.input,
                cached_input: Some(self.cached_input),
                cache_write: Some(self.cache_write),
                audio_input: self.audio_input,
                output: self.output,
                batch: Some(self.batch.unwrap_or(1.0)),
                batch_cached_input: self.batch_cached_input,
                above,
                service_tier: None,
            },
            service_tiers: self.tiers.split_whitespace().map(parse_tier).collect::<Option<_>>()?,
            source: self.source,
        })
    }
}

impl BookEntry {
    /// Returns true if `name` is a name of this model at its provider: the model's name or one of
    /// its snapshots, with or without the provider's name in front.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        let provider = self.provider.as_str();
        let is_name = |name: &str| {
            name == self.model
                || self.names.iter().any(|n| n == name)
                || self.snapshots.is_some_and(|date_format| {
                    let is_dated = |base: &str| {
                        name.strip_prefix(base).is_some_and(|d| date_format.is_match(d))
                    };
                    is_dated(&self.model) || self.names.iter().any(|n| is_dated(n))
                })
        };
        let has_prefix = |prefix: &str| name.strip_prefix(prefix).is_some_and(is_name);
        is_name(name)
            || has_prefix(&format!("{provider}/"))
            || PREFIXES
                .iter()
                .any(|(prefix, prefix_provider)| *prefix_provider == provider && has_prefix(prefix))
    }

    /// Returns the price factor of a service tier; `None` if it is unknown.
    #[must_use]
    pub fn find_tier_factor(&self, name: &str) -> Option<f64> {
        self.service_tiers.iter().find(|(tier, _)| tier == name).map(|(_, factor)| *factor)
    }
}

impl PriceBook {
    /// Returns the book of this version of hqdl.
    #[must_use]
    pub fn bundled() -> &'static Self {
        &BOOK
    }

    /// Parses a book.
    ///
    /// # Errors
    /// Fails with a message if the first line is not a date or another line is not a valid entry.
    pub fn parse(text: &str) -> Result<Self, String> {
        let date = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let date = date.filter(|date| date.parse::<jiff::civil::Date>().is_ok());
        let date = date.ok_or("the first line is not a date")?.to_owned();
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let entries = reader
            .deserialize::<BookLine>()
            .map(|line| {
                let line = line.map_err(|e| e.to_string())?;
                let name = format!("{}/{} has no price", line.provider, line.model);
                line.into_entry().ok_or(name)
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { date, entries })
    }

    /// Returns the prices of the models named `name`, one per provider, on a date such as
    /// `2026-11-24`.
    #[must_use]
    pub fn find_by_name(&self, name: &str, day: &str) -> Vec<&BookEntry> {
        let mut found: Vec<&BookEntry> = Vec::new();
        for entry in self.entries.iter().filter(|e| e.from.as_str() <= day && e.has_name(name)) {
            // A later entry of a model replaces its earlier price.
            match found.iter_mut().find(|e| e.provider == entry.provider) {
                Some(earlier) if earlier.model == entry.model => *earlier = entry,
                Some(_) => {}
                None => found.push(entry),
            }
        }
        found
    }

    /// Returns the price of a model at an endpoint on a date.
    ///
    /// # Errors
    /// Fails with the reason if the book has no price for the model at this endpoint.
    pub fn find_price(&self, base_url: &str, model: &str, day: &str) -> Result<&BookEntry, String> {
        let endpoint_host = parse_host(base_url);
        let apis = Provider::ALL.into_iter().filter_map(|api| Some((api.host()?, api.name())));
        let mut hosts = HOSTS.into_iter().chain(apis);
        let Some((_, provider)) = hosts.find(|(known, _)| *known == endpoint_host) else {
            return Err(format!("the price book does not have the endpoint {endpoint_host}"));
        };
        let found = self.find_by_name(model, day).into_iter().find(|e| e.provider == provider);
        found.ok_or_else(|| format!("the price book has no model `{model}` of {endpoint_host}"))
    }
}

/// Returns the host of a URL, in lower case, with the port unless that is 443.
fn parse_host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    authority.strip_suffix(":443").unwrap_or(authority).to_lowercase()
}
