//! The checked spec: one database, its expansions, model and limits.
//!
//! [`mod@file`] is the parsed TOML. `schema_check` checks it against its schema, and [`check`]
//! checks it against the database. Both report problems as [`hqdl_values::problem`]. In the types
//! of this module, all names exist, value lists are loaded, and SQL is valid.

pub mod check;
pub mod checker;
pub mod coerce;
pub mod unchecked;
pub mod file;
pub mod evidence;
pub mod media;
pub mod ingredients;
mod literal;
mod models;
pub mod overrides;
mod parameters;
mod price_book;
mod provider;
mod key_part;
mod secret;
pub mod schema_check;
mod word_decisions;
mod value_list;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::secret::{is_env_variable_name, mask_secrets};
pub use check::Catalog;
pub use check::ask::MIN_CONTEXT_TOKENS;
pub use evidence::EvidenceSettings;
pub use file::{Echo, Format, LimitScope, Reuse};
use hqdl_values::ASSUMED_CACHE_WRITE;
pub use hqdl_values::{LongPromptPrice, PriceTable, Type};
pub use literal::Literal;
pub use media::{MediaColumn, MediaFiles, MediaKind};
pub use parameters::{ModelParameters, SERVICE_TIER, format_parameters};
pub use price_book::{BookEntry, PriceBook};
pub use provider::Provider;
pub use unchecked::{ReadError, UncheckedSpec, is_sqlite_file};
pub use word_decisions::WordDecisions;

use hqdl_values::cell::{CellValue, State};
use hqdl_values::key::{ColumnIdentity, Fingerprint, KeyColumns, ListHash};
use hqdl_values::value::Value;

/// Returns true if the location of a database or a cache is the URL of a server.
#[must_use]
pub fn is_server(location: &Path) -> bool {
    let text = location.to_string_lossy();
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// Reads a spec file.
fn read_spec_text(path: &Path) -> std::io::Result<String> {
    // The journal identifies runs, refreshes and tables by the spec's path as text.
    if path.canonicalize().is_ok_and(|full| full.to_str().is_none()) {
        return Err(std::io::Error::other("its path is not UTF-8; rename it"));
    }
    std::fs::read_to_string(path)
}

/// Checked spec.
#[derive(Debug, Clone)]
pub struct Spec {
    /// File that the spec was read from.
    pub path: PathBuf,
    /// Database to expand.
    pub database: PathBuf,
    /// Database for the expanded tables; `None` to publish into `database`.
    pub output: Option<PathBuf>,
    /// Media that cells of the database refer to.
    pub media: MediaFiles,
    /// Model that hqdl asks.
    pub model: ModelSettings,
    /// Models in addition to `[model]`, by the names that expansions and calls use.
    pub models: BTreeMap<String, ModelSettings>,
    /// Limits of a run.
    pub limits: Limits,
    /// Embedding model, if the spec has one.
    pub embeddings: Option<Embeddings>,
    /// Whether the model may bind new questions to columns.
    pub routing_by_model: bool,
    /// Tables that hqdl adds to the database.
    pub expansions: Vec<Expansion>,
    /// User-defined calls.
    pub ingredients: Vec<ingredients::IngredientTable>,
    /// Columns of the database, as `(table, column)`, whose values are of the same kind.
    pub kinds: Vec<Vec<(String, String)>>,
    /// Settings of `hqdl ask`.
    pub ask: AskSettings,
}

/// Settings of `[ask]` and `[[example]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AskSettings {
    /// Maximum cost in USD of writing the SQL for one question; `None` if the spec sets no limit.
    pub budget_usd: Option<f64>,
    /// Maximum number of tokens of a request.
    pub context_tokens: u64,
    /// Whether the model sees sample rows and stored values.
    pub shows_values: bool,
    /// Questions with the queries that answer them.
    pub examples: Vec<file::ExampleTable>,
}

impl Spec {
    /// Returns the settings of the model that an expansion or a call names, or the settings of
    /// `[model]` if `model` is `None`.
    #[must_use]
    pub fn model_settings(&self, model: Option<&str>) -> &ModelSettings {
        model.and_then(|name| self.models.get(name)).unwrap_or(&self.model)
    }

    /// Returns the `[model.NAME]` that answers a column of an expansion; `None` means `[model]`.
    #[must_use]
    pub fn find_column_model<'s>(
        &self,
        expansion: &'s Expansion,
        column: &'s Column,
    ) -> Option<&'s str> {
        self.find_model(column.model.as_deref().or(expansion.model.as_deref())?)
    }

    /// Returns the `[model.NAME]` with this NAME; `None` means `[model]`.
    #[must_use]
    pub fn find_model<'s>(&self, name: &'s str) -> Option<&'s str> {
        self.models.contains_key(name).then_some(name)
    }

    /// Returns the `[model.NAME]` that a name in a call refers to: its NAME, or the endpoint's name
    /// of the model. `Some(None)` means `[model]`; `None` means that no model has this name.
    #[must_use]
    pub fn resolve_model(&self, name: &str) -> Option<Option<&str>> {
        if let Some((name_in_spec, _)) = self.models.get_key_value(name) {
            return Some(Some(name_in_spec));
        }
        if self.model.name == name {
            return Some(None);
        }
        let mut matching = self.models.iter().filter(|(_, m)| m.name == name);
        match (matching.next(), matching.next()) {
            (Some((name_in_spec, _)), None) => Some(Some(name_in_spec)),
            _ => None,
        }
    }

    /// Returns true if the prices of all models are known.
    #[must_use]
    pub fn is_priced(&self) -> bool {
        self.all_models().all(|model| model.price.is_some())
    }

    /// Adds an ingredient that a function computes. Returns the name under which the function is
    /// listed in `models`.
    ///
    /// # Errors
    /// Returns a message if the name is taken or not a name.
    pub fn add_function(
        &mut self,
        ingredient: ingredients::IngredientTable,
    ) -> Result<String, String> {
        let Some(function) = &ingredient.function else {
            return Err(format!("the ingredient `{}` is not a function", ingredient.name));
        };
        let name = &ingredient.name;
        let words = std::iter::once(name).chain(&ingredient.arguments);
        if let Some(word) = words.into_iter().find(|word| !ingredients::is_name(word)) {
            return Err(format!("`{word}` is not a name: expected letters, digits and _"));
        }
        let own = self.ingredients.iter().map(|other| other.name.as_str());
        let built_in = hqdl_sql::blendsql::ingredients::list_ingredients();
        let mut taken = own.chain(built_in.iter().map(|other| other.name()));
        if taken.any(|other| other.eq_ignore_ascii_case(name)) {
            return Err(format!("an ingredient `{name}` exists already"));
        }
        let model = ingredients::function_model_name(name);
        let settings = ModelSettings {
            // Like recorded answers, a function's answers cost nothing.
            provider: Provider::Replay,
            name: format!("{model} {}", function.version),
            base_url: None,
            api_key_env: None,
            temperature: None,
            parameters: ModelParameters::default(),
            parameters_identity: false,
            price: None,
            price_origin: PriceOrigin::Unknown("a function has no price".to_owned()),
            recordings: Vec::new(),
            echo: Echo::Short,
            // A function returns None, and each text is a value.
            unknown: Some(Vec::new()),
            ..self.model.clone()
        };
        self.models.insert(model.clone(), settings);
        self.ingredients
            .push(ingredients::IngredientTable { model: Some(model.clone()), ..ingredient });
        Ok(model)
    }

    /// Replaces the spec's budget of a run if `usd` is set.
    ///
    /// # Errors
    /// Returns [`UnpricedModel`] if a budget cannot be enforced.
    pub fn set_budget(&mut self, usd: Option<f64>) -> Result<(), UnpricedModel> {
        if usd.is_some() {
            self.check_prices()?;
            self.limits.budget_usd = usd;
        }
        Ok(())
    }

    /// Checks that the cost of every request is known, so that a budget in USD can be enforced.
    ///
    /// # Errors
    /// [`UnpricedModel`] if the cost of a model is not known; the error names the first such model.
    pub fn check_prices(&self) -> Result<(), UnpricedModel> {
        for (name, model) in self.named_models().filter(|(_, m)| m.provider != Provider::Replay) {
            let parameter = parameters::find_non_token_parameter(&model.parameters);
            let reason = match (&model.price_origin, parameter) {
                (PriceOrigin::Unknown(reason), _) => reason.clone(),
                (_, Some(field)) => format!("`{field}` is not billed by tokens"),
                (_, None) => continue,
            };
            let table = models::format_model_table_name(name);
            return Err(UnpricedModel { name: model.name.clone(), table, why: reason });
        }
        Ok(())
    }

    /// Returns true if every model replays recordings, so that no request costs anything.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.embeddings.is_none() && self.all_models().all(|m| m.provider == Provider::Replay)
    }

    /// Returns the sources of the prices, for each model whose price is not in the spec:
    /// `gpt-4o-mini: book of 2026-11-24`.
    #[must_use]
    pub fn price_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for model in self.all_models().filter(|m| m.provider != Provider::Replay) {
            let note = match &model.price_origin {
                PriceOrigin::Spec => continue,
                PriceOrigin::Book(date) => format!("{}: book of {date}", model.name),
                PriceOrigin::Unknown(reason) => format!("{}: {reason}", model.name),
            };
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// Returns the notes about prices for a report that precedes any request: the sources of the
    /// prices ([`Self::price_notes`]), and the models whose cache writes are reserved at an assumed
    /// rate.
    #[must_use]
    pub fn list_reserved_price_notes(&self) -> Vec<String> {
        let mut notes = self.price_notes();
        for model in self.all_models().filter(|m| m.provider != Provider::Replay) {
            let is_assumed = |price: &PriceTable| {
                price.assumes_cache_write_rate(0) || price.assumes_cache_write_rate(u64::MAX)
            };
            let note = format!("{}: {ASSUMED_CACHE_WRITE}", model.name);
            if model.price.as_ref().is_some_and(is_assumed) && !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// Returns the table of the first model without a known price, such as `[model.large]`.
    #[must_use]
    pub fn find_unpriced_table(&self) -> String {
        let unpriced = self.named_models().find(|(_, model)| model.price.is_none());
        models::format_model_table_name(unpriced.and_then(|(name, _)| name))
    }

    /// Returns all models of the spec with their names; the name of `[model]` is `None`.
    fn named_models(&self) -> impl Iterator<Item = (Option<&str>, &ModelSettings)> {
        let others = self.models.iter().map(|(name, model)| (Some(name.as_str()), model));
        std::iter::once((None, &self.model)).chain(others)
    }

    /// Returns all models of the spec.
    pub fn all_models(&self) -> impl Iterator<Item = &ModelSettings> {
        std::iter::once(&self.model).chain(self.models.values())
    }

    /// Returns the views that join a source with its expansions, by name: `<source>_expanded`, or
    /// `<expansion>_expanded` for an unnamed SELECT that returns all keys of its expansion.
    #[must_use]
    pub fn list_expanded_views(&self) -> BTreeMap<String, Vec<(&Expansion, usize)>> {
        let mut views: BTreeMap<String, Vec<(&Expansion, usize)>> = BTreeMap::new();
        for expansion in &self.expansions {
            for (n, source) in expansion.sources.iter().enumerate() {
                let is_only_source = expansion.sources.len() == 1;
                let name =
                    source.name.as_ref().or(Some(&expansion.name).filter(|_| is_only_source));
                if let Some(name) = name {
                    views.entry(format!("{name}_expanded")).or_default().push((expansion, n));
                }
            }
        }
        views
    }

    /// Returns true if the spec publishes a table or view of this name.
    #[must_use]
    pub fn publishes_table(&self, name: &str) -> bool {
        let many = |e: &Expansion| {
            let tables = e.columns.iter().filter_map(|c| c.many.as_ref());
            tables.map(|many| many.table.clone()).collect::<Vec<_>>()
        };
        let tables =
            self.expansions.iter().flat_map(|e| many(e).into_iter().chain([e.name.clone()]));
        tables
            .chain(self.list_expanded_views().into_keys())
            .any(|table| table.eq_ignore_ascii_case(name))
    }

    /// Returns the database that hqdl publishes tables to.
    #[must_use]
    pub fn target(&self) -> &PathBuf {
        self.output.as_ref().unwrap_or(&self.database)
    }

    /// Returns the file's absolute path.
    #[must_use]
    pub fn full_path(&self) -> String {
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone()).display().to_string()
    }

    /// Returns the path of this spec's overrides: `superhero.overrides.csv`.
    #[must_use]
    pub fn overrides_path(&self) -> PathBuf {
        self.path.with_extension("overrides.csv")
    }
}

/// Settings of `[model]` or of a `[model.NAME]`, with resolved paths.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSettings {
    /// API of the endpoint.
    pub provider: Provider,
    /// Name of the model.
    pub name: String,
    /// Base URL of the endpoint, unless it is the provider's default.
    pub base_url: Option<String>,
    /// Environment variable with the API key.
    pub api_key_env: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Maximum number of tokens of an answer.
    pub max_output_tokens: u32,
    /// Additional fields for the body of each request.
    pub parameters: ModelParameters,
    /// Whether the parameters are part of the model's identity.
    pub parameters_identity: bool,
    /// Price per million tokens.
    pub price: Option<PriceTable>,
    /// Source of the price.
    pub price_origin: PriceOrigin,
    /// Files of recorded completions.
    pub recordings: Vec<PathBuf>,
    /// Stored answers that hqdl reuses.
    pub reuse: Reuse,
    /// Part of a row's key that the answer repeats.
    pub echo: Echo,
    /// Answers that mean "unknown"; `None` means `checker::UNKNOWN_WORDS`.
    pub unknown: Option<Vec<String>>,
}

/// Model without a known price, for which a budget cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hqdl cannot keep a budget: the price of {name} is not known ({why})")]
pub struct UnpricedModel {
    name: String,
    /// Table of the model, such as `[model]`.
    pub table: String,
    why: String,
}

/// Source of a model's price.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PriceOrigin {
    /// The spec, or the flag `--price`.
    Spec,
    /// The bundled price book, with its date.
    Book(String),
    /// Unknown price, with the reason.
    Unknown(String),
}

impl ModelSettings {
    /// Returns the name under which facts of this model are stored, from the name of the connected
    /// model. With `parameters_identity`, the name also depends on the parameters.
    #[must_use]
    pub fn stored_name(&self, name: &str) -> String {
        match format_parameters(&self.parameters).filter(|_| self.parameters_identity) {
            Some(parameters) => format!("{name} {parameters}"),
            None => name.to_owned(),
        }
    }

    /// Returns true if recordings cost something, but their price is unknown: the price comes from
    /// the user, has no `audio_input`, and the price book has none for the model either.
    #[must_use]
    pub fn lacks_audio_price(&self) -> bool {
        let is_unknown = |price: PriceTable| price.audio_input.is_none() && price.input > 0.0;
        self.provider != Provider::Replay
            && self.price_origin == PriceOrigin::Spec
            && self.price.is_some_and(is_unknown)
    }

    /// Returns the price that is charged per million tokens: nothing for recorded answers.
    #[must_use]
    pub fn charged_price(&self) -> Option<PriceTable> {
        let is_replay = self.provider == Provider::Replay;
        self.price.map(|price| if is_replay { PriceTable::default() } else { price })
    }
}

/// Settings of `[limits]`.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Maximum number of tokens per minute.
    pub tokens_per_minute: Option<u32>,
    /// Scope in which the two rate limits are shared.
    pub per: LimitScope,
    /// Maximum number of requests in flight.
    pub concurrency: u32,
    /// Maximum cost of a run in USD.
    pub budget_usd: Option<f64>,
    /// Maximum cost in USD of all runs of a day (UTC).
    pub budget_usd_per_day: Option<f64>,
    /// Maximum number of input and output tokens of a run.
    pub budget_tokens: Option<u64>,
    /// Maximum number of tokens in the rows that a single question of a query covers.
    pub context_tokens: u64,
    /// Maximum number of tokens of a document in one question of a query.
    pub passage_tokens: u64,
    /// Limits of a batch of the Batch API, and its polling interval.
    pub batches: BatchLimits,
}

/// Settings of `[embeddings]`.
#[derive(Debug, Clone)]
pub struct Embeddings {
    /// Model and endpoint.
    pub model: ModelSettings,
    /// Request timeout.
    pub timeout: Duration,
}

/// Limits of a batch of the Batch API, and its polling interval.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Maximum number of requests.
    pub requests: u32,
    /// Maximum size of a batch's file in bytes.
    pub bytes: u64,
    /// Maximum pause between two polls.
    pub poll: Duration,
}

/// Table that hqdl adds to the database: columns for the entities of a semantic key.
///
/// Only the fields that affect prompts and answers are serialized, not the sources of the keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Expansion {
    /// Name of the published table.
    pub name: String,
    /// Description of the rows.
    pub about: String,
    /// Model for the columns that do not name one; `None` means `[model]`.
    #[serde(skip)]
    pub model: Option<String>,
    /// Sources of the keys.
    #[serde(skip)]
    pub sources: Vec<Source>,
    /// Columns that identify an entity.
    pub key: KeyColumns,
    /// For each source, the positions of the key columns that it has; the other key columns are
    /// NULL in its rows. Empty if every source has the whole key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_parts: Vec<Vec<usize>>,
    /// Declared types of the key columns; `None` if a source declares no type or the sources
    /// disagree.
    #[serde(skip)]
    pub key_types: Vec<Option<String>>,
    /// Columns shown to the model that are not part of the key. If a value in them changes, the
    /// row is asked for again.
    pub context: Vec<String>,
    /// Key and context columns whose values are images or other media.
    #[serde(skip)]
    pub media: Vec<MediaColumn>,
    /// Access to the media.
    #[serde(skip)]
    pub media_files: MediaFiles,
    /// Documents whose passages are shown with each row.
    #[serde(skip)]
    pub evidence: Option<EvidenceSettings>,
    /// Number of rows per request.
    pub rows_per_request: u32,
    /// Answer format; `None` lets the endpoint decide.
    pub format: Option<Format>,
    /// Part of a row's key that the answer repeats.
    #[serde(default = "Echo::default_before_labels")]
    pub echo: Echo,
    /// Example rows.
    pub shots: Vec<Shot>,
    /// Number of overridden rows that are also used as examples.
    pub override_shots: u32,
    /// Kind of question in the expansion's prompts; not part of any fingerprint.
    #[serde(skip)]
    pub task: Task,
    /// Columns to fill.
    pub columns: Vec<Column>,
}

/// Kind of question in the prompts of an expansion. It determines their form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Task {
    /// Columns of a table.
    #[default]
    Columns,
    /// One question about a value.
    Value,
    /// One question about a text, answered from the text alone.
    Text,
    /// One question about the rows of tables.
    Rows,
    /// One question per value of a join, whose answer lists the matching values.
    Join,
    /// An SQL query that answers a question about a database.
    Statement,
}

impl Column {
    /// Creates a column that no spec declares, for a query or an internal question. The column's
    /// identity includes its name and whether it is a list.
    #[must_use]
    pub fn new_ad_hoc(
        data_type: Type,
        about: String,
        values: Option<ValueList>,
        identity: ColumnIdentity,
    ) -> Self {
        let many = identity.many;
        Self {
            name: identity.column.clone(),
            model: None,
            escalation: None,
            kind: data_type,
            about,
            values,
            many: many.then(|| Many { table: String::new(), column: "value".to_owned() }),
            unknown: None,
            aliases: BTreeMap::new(),
            unify: false,
            year: None,
            range: None,
            part_of: None,
            one_of: None,
            keeps_items: false,
            pattern: None,
            example: None,
            origin: None,
            other_identities: Vec::new(),
            bindings: Vec::new(),
            classify: false,
            fingerprint: identity.fingerprint(),
            identity,
        }
    }
}

impl Expansion {
    /// Creates an expansion that no spec declares, without sources or columns.
    #[must_use]
    pub fn new_ad_hoc(name: &str, key: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            about: String::new(),
            model: None,
            sources: Vec::new(),
            key_parts: Vec::new(),
            key_types: vec![None; key.len()],
            key: KeyColumns::new(key),
            context: Vec::new(),
            media: Vec::new(),
            media_files: MediaFiles::default(),
            evidence: None,
            rows_per_request: 10,
            format: None,
            echo: Echo::default(),
            shots: Vec::new(),
            override_shots: 0,
            task: Task::Columns,
            columns: Vec::new(),
        }
    }

    /// Applies the defaults of `[model]`.
    pub fn apply_model_defaults(&mut self, model: &ModelSettings) {
        self.echo = model.echo;
        for column in &mut self.columns {
            column.unknown.clone_from(&model.unknown);
        }
    }

    /// Returns the position of a column by its name, or by the name of the value column in its
    /// one-to-many table.
    #[must_use]
    pub fn find_column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| {
            c.name.eq_ignore_ascii_case(name)
                || c.many.as_ref().is_some_and(|m| m.column.eq_ignore_ascii_case(name))
        })
    }
}

/// Table or SELECT that returns keys.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the table, or the name given in the spec. The source's view is `<name>_expanded`.
    pub name: Option<String>,
    /// Source of the rows.
    pub rows: SourceRows,
    /// Positions of the columns that are filled for the source's keys.
    pub columns: Vec<usize>,
}

/// Source of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceRows {
    /// Table or view of the database.
    Table(String),
    /// SELECT over the database.
    Select(String),
}

/// Column to fill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Name of the model that answers this column; `None` for the expansion's model. Not part of
    /// the column's identity. [`Spec::find_column_model`] resolves it.
    #[serde(skip)]
    pub model: Option<String>,
    /// Rule by which another model gives second answers. Not part of the column's identity.
    #[serde(skip)]
    pub escalation: Option<Escalation>,
    /// Type of the values.
    pub kind: Type,
    /// Description of the column for the model.
    pub about: String,
    /// Allowed values; `None` if the column has no value list.
    pub values: Option<ValueList>,
    /// Table of the values, if the column is one-to-many.
    pub many: Option<Many>,
    /// Answers that mean "unknown"; `None` means `checker::UNKNOWN_WORDS`. Not part of the column's
    /// identity.
    #[serde(default)]
    pub unknown: Option<Vec<String>>,
    /// Other words for the allowed values, in lower case, each with the value it means. Not part of
    /// the column's identity.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
    /// Whether the model decides which value an answer outside the list means. Not part of the
    /// column's identity.
    #[serde(default)]
    pub unify: bool,
    /// Position of the key column that contains the year for dates without a year. Not part of the
    /// column's identity.
    #[serde(default)]
    pub year: Option<usize>,
    /// Smallest and largest value that can be true in a numeric column. Not part of the column's
    /// identity.
    #[serde(skip)]
    pub range: Option<(f64, f64)>,
    /// Position of the key column whose text contains the values. Not part of the column's
    /// identity.
    #[serde(default)]
    pub part_of: Option<usize>,
    /// Position of the key column whose JSON list contains the allowed values of a row.
    #[serde(default)]
    pub one_of: Option<usize>,
    /// Whether the list keeps each item at its position, including duplicates and NULLs. The list
    /// of a one-to-many column is a set. Not part of the column's identity.
    #[serde(default)]
    pub keeps_items: bool,
    /// Regular expression that the values match, shown to the model. Not part of the column's
    /// identity.
    #[serde(default)]
    pub pattern: Option<String>,
    /// Value of the expected kind, shown to the model. Not part of the column's identity.
    pub example: Option<String>,
    /// Base column of the value that a query asks about (`city.name`), shown to the model. Not part
    /// of the column's identity.
    #[serde(skip)]
    pub origin: Option<String>,
    /// Other identities under which the column's answers were stored: without a kind, or with
    /// another kind that is now the same. Facts with these identities are used until they are
    /// refreshed.
    #[serde(skip)]
    pub other_identities: Vec<ColumnIdentity>,
    /// Questions that the column answers.
    pub bindings: Vec<Binding>,
    /// Whether a query may use words outside the list, mapped to the values with the same meaning.
    pub classify: bool,
    /// Identity of the column.
    #[serde(rename = "meaning")]
    pub identity: ColumnIdentity,
    /// Fingerprint of the identity.
    pub fingerprint: Fingerprint,
}

/// Rule by which another model answers a column's cells again.
#[derive(Debug, Clone, PartialEq)]
pub struct Escalation {
    /// Model that answers again. [`Spec::find_model`] resolves it.
    pub to: String,
    /// States of the first answer after which hqdl asks `to`.
    pub states: Vec<State>,
    /// Models whose answers are compared with the first answers.
    pub compare: Vec<String>,
    /// Number of additional answers from the first model that are compared with its first answer.
    pub further_answers: u32,
    /// Result of the comparison after which hqdl asks `to`.
    pub comparison: Option<Comparison>,
}

/// Result of a comparison of answers after which hqdl asks the stronger model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Comparison {
    /// Any answer contradicts the first one.
    Disagree,
    /// Any answer is not the same as the first one.
    NotUnanimous,
    /// The probability of the first answer's tokens is below a threshold.
    Improbable {
        /// The threshold.
        below: f64,
    },
    /// The confidence is so low that the column would miss its target.
    Calibrated(CascadeTarget),
}

impl Comparison {
    /// Returns true if the probability of the first answer's tokens is compared.
    #[must_use]
    pub fn uses_logprobs(self) -> bool {
        match self {
            Self::Improbable { .. } => true,
            Self::Calibrated(target) => target.confidence == Confidence::Probability,
            Self::Disagree | Self::NotUnanimous => false,
        }
    }

    /// Describes the threshold or the target in the name of a column's models; `None` if there is
    /// none.
    #[must_use]
    pub fn describe(self) -> Option<String> {
        match self {
            Self::Calibrated(target) => Some(format!("{target:?}")),
            Self::Improbable { below } => Some(format!("below {below}")),
            Self::Disagree | Self::NotUnanimous => None,
        }
    }

    /// Returns the cells that the stronger model answers without a promise, for a note; `None` if
    /// there is a promise, or if the spec asks for none.
    #[must_use]
    pub fn describe_unpromised_cells(self) -> Option<String> {
        match self {
            Self::NotUnanimous => {
                Some("the cells on which not all answers are the same".to_owned())
            }
            Self::Improbable { below } => {
                Some(format!("the cells with a probability below {below}"))
            }
            Self::Disagree | Self::Calibrated(_) => None,
        }
    }
}

/// Agreement or accuracy that a column must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CascadeTarget {
    /// Share of the column's cells that must match the reference values.
    pub share: f64,
    /// Reference values that the cells are compared with.
    pub basis: TargetBasis,
    /// Confidence by which the cells are ordered.
    pub confidence: Confidence,
}

/// Confidence of a first answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// Number of compared answers that agree with the first one.
    Agreement,
    /// Smallest probability of the answer's tokens, as the endpoint reports it.
    Probability,
}

/// Reference values for the cells of a column with a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetBasis {
    /// The stronger model's answers to a random sample.
    Model {
        /// Number of rows of the sample.
        sample: u32,
        /// Seed of the sample.
        seed: u64,
    },
    /// The true values of the column's audit.
    Truth,
}

/// Table of a one-to-many column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Many {
    /// Name of the table.
    pub table: String,
    /// Column with the value.
    pub column: String,
}

/// Allowed values of a column.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ValueList {
    /// Values without NULLs and duplicates, in the original order.
    pub values: Vec<String>,
    /// Whether other values are allowed too.
    pub open: bool,
    /// Hash of the content.
    pub hash: ListHash,
}

/// Natural-language question bound to a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Text of the question, with slots.
    pub ask: String,
    /// SQL that answers the question, with the same slots; `None` means the column itself.
    pub sql: Option<String>,
}

/// Slots that a question and its SQL may have.
pub const SLOTS: [&str; 3] = ["{value}", "{number}", "{date}"];

/// Example row: its key, its context, and one cell per column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shot {
    /// Values of the key columns.
    pub key: Vec<Value>,
    /// Values of the context columns.
    pub context: Vec<Value>,
    /// Cells, by position of the column; `Nothing` is shown as unknown.
    pub cells: Vec<CellValue>,
}
