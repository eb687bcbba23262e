//! The spec: one database, its expansions, model and limits, after every check.
//!
//! [`mod@file`] is the TOML as written, [`shape`] finds where it departs from its
//! schema, [`check`] where it departs from the database; [`hqdl_values::problem`] is how both
//! say so. What stands here carries what was checked: names exist, value lists
//! are loaded, SQL prepares.

pub mod check;
pub mod checker;
pub mod coerce;
pub mod draft;
pub mod file;
pub mod images;
pub mod ingredients;
mod literal;
mod models;
pub mod overrides;
mod parameters;
mod price_book;
mod part;
mod secret;
pub mod shape;
mod unified;
mod value_list;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::secret::is_variable;
pub use check::Catalog;
pub use draft::{Draft, ReadError};
pub use file::{Echo, Format, LimitScope, Provider, Reuse};
use hqdl_values::ASSUMED_CACHE_WRITE;
pub use hqdl_values::{LongPromptPrice, PriceTable, Type};
pub use images::Images;
pub use literal::Literal;
pub use models::{CHAT, OPENAI};
pub use parameters::{ModelParameters, SERVICE_TIER, parameters_text};
pub use price_book::{BookEntry, PriceBook};
pub use unified::Unified;

use hqdl_values::cell::CellValue;
use hqdl_values::key::{Fingerprint, KeyColumns, ListHash, Meaning};
use hqdl_values::value::Value;

/// Whether a database, or a cache, is named by the URL of a server.
#[must_use]
pub fn is_server(place: &Path) -> bool {
    let text = place.to_string_lossy();
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// The text of a spec's file.
fn text_of(path: &Path) -> std::io::Result<String> {
    // Runs, rounds and tables are found by the spec's path, as text.
    if path.canonicalize().is_ok_and(|full| full.to_str().is_none()) {
        return Err(std::io::Error::other("its path is not UTF-8; rename it"));
    }
    std::fs::read_to_string(path)
}

/// A checked spec.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The file it was read from.
    pub path: PathBuf,
    /// The database to expand.
    pub database: PathBuf,
    /// Where the expanded tables go, when not into `database`.
    pub output: Option<PathBuf>,
    /// Where the images are that cells of the database name.
    pub images: Images,
    /// Model that hqdl asks.
    pub model: ModelSettings,
    /// Others that an expansion or a call may name, by the names they have there.
    pub models: BTreeMap<String, ModelSettings>,
    /// Limits of a run.
    pub limits: Limits,
    /// What tells which texts are alike, when there is such a model.
    pub embeddings: Option<Embeddings>,
    /// Whether the model may bind new questions to columns.
    pub routing_by_model: bool,
    /// The tables added to the schema.
    pub expansions: Vec<Expansion>,
    /// The calls that it makes.
    pub ingredients: Vec<ingredients::IngredientTable>,
    /// Columns of the database, as `(table, column)`, whose values are of the same kind.
    pub kinds: Vec<Vec<(String, String)>>,
}

impl Spec {
    /// The settings of the model that an expansion or a call names; those of `[model]`
    /// where it names none.
    #[must_use]
    pub fn settings(&self, model: Option<&str>) -> &ModelSettings {
        model.and_then(|name| self.models.get(name)).unwrap_or(&self.model)
    }

    /// The `[model.NAME]` that a call means by a name: its NAME, or what its endpoint
    /// calls it; `Some(None)` is that of `[model]`. `None` where nothing has this name.
    #[must_use]
    pub fn model_named(&self, name: &str) -> Option<Option<&str>> {
        if let Some((own, _)) = self.models.get_key_value(name) {
            return Some(Some(own));
        }
        if self.model.name == name {
            return Some(None);
        }
        let mut called = self.models.iter().filter(|(_, m)| m.name == name);
        match (called.next(), called.next()) {
            (Some((own, _)), None) => Some(Some(own)),
            _ => None,
        }
    }

    /// Whether the price of all that may be asked is known.
    #[must_use]
    pub fn is_priced(&self) -> bool {
        self.all_models().all(|model| model.price.is_some())
    }

    /// Sets the budget of a run, instead of the spec's, if there is one.
    ///
    /// # Errors
    /// [`UnpricedModel`] when no budget can be kept.
    pub fn set_budget(&mut self, usd: Option<f64>) -> Result<(), UnpricedModel> {
        if usd.is_none() {
            return Ok(());
        }
        for model in self.all_models().filter(|m| m.provider != Provider::Replay) {
            let field = parameters::billed_beside_tokens(&model.parameters);
            let why = match (&model.price_origin, field) {
                (PriceOrigin::Unknown(why), _) => why.clone(),
                (_, Some(field)) => format!("`{field}` is not billed by tokens"),
                (_, None) => continue,
            };
            return Err(UnpricedModel { name: model.name.clone(), why });
        }
        self.limits.budget_usd = usd;
        Ok(())
    }

    /// Returns where the prices are from, for each model whose price is not in the spec:
    /// `gpt-4o-mini: book of 2026-11-24`.
    #[must_use]
    pub fn price_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for model in self.all_models().filter(|m| m.provider != Provider::Replay) {
            let note = match &model.price_origin {
                PriceOrigin::Spec => continue,
                PriceOrigin::Book(date) => format!("{}: book of {date}", model.name),
                PriceOrigin::Unknown(why) => format!("{}: unknown, {why}", model.name),
            };
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// Returns the notes of a price before anything is asked: where prices are from
    /// ([`Self::price_notes`]), and which models' cache writes are reserved at an assumed rate.
    #[must_use]
    pub fn reserved_price_notes(&self) -> Vec<String> {
        let mut notes = self.price_notes();
        for model in self.all_models().filter(|m| m.provider != Provider::Replay) {
            let is_assumed = |price: &PriceTable| {
                price.assumes_cache_write(0) || price.assumes_cache_write(u64::MAX)
            };
            let note = format!("{}: {ASSUMED_CACHE_WRITE}", model.name);
            if model.price.as_ref().is_some_and(is_assumed) && !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// All models that a cell may be asked of.
    pub fn all_models(&self) -> impl Iterator<Item = &ModelSettings> {
        std::iter::once(&self.model).chain(self.models.values())
    }

    /// The views that join a source with its expansions, by name: `<source>_expanded`,
    /// or `<expansion>_expanded` for a SELECT that has no name of its own and yields
    /// all of its expansion's keys.
    #[must_use]
    pub fn expanded_views(&self) -> BTreeMap<String, Vec<(&Expansion, usize)>> {
        let mut views: BTreeMap<String, Vec<(&Expansion, usize)>> = BTreeMap::new();
        for expansion in &self.expansions {
            for (n, source) in expansion.sources.iter().enumerate() {
                let alone = expansion.sources.len() == 1;
                let name = source.name.as_ref().or(Some(&expansion.name).filter(|_| alone));
                if let Some(name) = name {
                    views.entry(format!("{name}_expanded")).or_default().push((expansion, n));
                }
            }
        }
        views
    }

    /// The database that the materialized views are published to.
    #[must_use]
    pub fn target(&self) -> &PathBuf {
        self.output.as_ref().unwrap_or(&self.database)
    }

    /// The file's path, the same from every working directory.
    #[must_use]
    pub fn full_path(&self) -> String {
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone()).display().to_string()
    }

    /// Where the overrides of this spec are: `superhero.overrides.csv`.
    #[must_use]
    pub fn overrides_path(&self) -> PathBuf {
        self.path.with_extension("overrides.csv")
    }
}

/// `[model]`, its paths resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSettings {
    /// Kind of endpoint.
    pub provider: Provider,
    /// The model's name.
    pub name: String,
    /// The endpoint's base URL, when not the provider's own.
    pub base_url: Option<String>,
    /// The environment variable that holds the key.
    pub api_key_env: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Most tokens of an answer.
    pub max_output_tokens: u32,
    /// Further fields of a request's body.
    pub parameters: ModelParameters,
    /// Whether these are part of the model's identity.
    pub parameters_identity: bool,
    /// Price per million tokens.
    pub price: Option<PriceTable>,
    /// Where the price is from.
    pub price_origin: PriceOrigin,
    /// Recorded completions.
    pub recordings: Vec<PathBuf>,
    /// Which stored answers hqdl reuses.
    pub reuse: Reuse,
    /// How much of a row's key the answer repeats.
    pub echo: Echo,
    /// What a model writes for what it does not know; `None` is
    /// [`checker::UNKNOWN`].
    pub unknown: Option<Vec<String>>,
}

/// A model of unknown price, under which no budget can be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hqdl cannot keep a budget: the price of {name} is not known ({why})")]
pub struct UnpricedModel {
    name: String,
    why: String,
}

/// Where a model's price is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PriceOrigin {
    /// The spec, or the flag `--price`.
    Spec,
    /// The bundled price book, with its date.
    Book(String),
    /// The price is not known, with the reason.
    Unknown(String),
}

impl ModelSettings {
    /// Returns the name that facts of this model are kept under, from the name that the
    /// connected model has: with `parameters_identity`, other parameters are another model.
    #[must_use]
    pub fn identity(&self, name: &str) -> String {
        match parameters_text(&self.parameters).filter(|_| self.parameters_identity) {
            Some(parameters) => format!("{name} {parameters}"),
            None => name.to_owned(),
        }
    }

    /// What is paid per million tokens: nothing for what recordings answer.
    #[must_use]
    pub fn paid(&self) -> Option<PriceTable> {
        let replayed = self.provider == Provider::Replay;
        self.price.map(|price| if replayed { PriceTable::default() } else { price })
    }
}

/// `[limits]`
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens in any minute.
    pub tokens_per_minute: Option<u32>,
    /// Who shares these two.
    pub per: LimitScope,
    /// Most requests in flight at once.
    pub concurrency: u32,
    /// Most USD that a run may spend.
    pub budget_usd: Option<f64>,
    /// Most USD that all runs of a day (UTC) may spend.
    pub budget_usd_per_day: Option<f64>,
    /// Tokens a run may use, input and output.
    pub budget_tokens: Option<u64>,
    /// Tokens of the rows that one question of a query is asked about.
    pub context_tokens: u64,
    /// Tokens of a document that one question of a query is shown.
    pub passage_tokens: u64,
    /// What one batch of the Batch API may hold, and how it is waited for.
    pub batches: BatchLimits,
}

/// `[embeddings]`
#[derive(Debug, Clone)]
pub struct Embeddings {
    /// The model and its endpoint.
    pub model: ModelSettings,
    /// How long a request may take.
    pub timeout: Duration,
}

/// What one batch of the Batch API may hold, and how it is waited for.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Requests.
    pub requests: u32,
    /// Bytes of its file.
    pub bytes: u64,
    /// The longest pause between two looks at it.
    pub poll: Duration,
}

/// A table added to the schema: columns over a semantic key. What is written
/// down of it is what its prompts and answers hang on: not where its keys come
/// from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Expansion {
    /// The name of its materialized view.
    pub name: String,
    /// What its rows are.
    pub about: String,
    /// Which of the spec's models its cells are asked of; `None` is that of `[model]`.
    #[serde(skip)]
    pub model: Option<String>,
    /// Where its keys come from.
    #[serde(skip)]
    pub sources: Vec<Source>,
    /// The columns that identify an entity.
    pub key: KeyColumns,
    /// Source by source, which of these it has, by position: of its rows the
    /// others are NULL. Empty where every source has the whole key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_parts: Vec<Vec<usize>>,
    /// Declared types of the key columns, where the source has one.
    #[serde(skip)]
    pub key_types: Vec<Option<String>>,
    /// Columns shown to the model that are not part of the key.
    pub context: Vec<String>,
    /// Those of key and context whose values are images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// Where these are read.
    #[serde(skip)]
    pub image_files: Images,
    /// Rows that share a request.
    pub rows_per_request: u32,
    /// The form of the answers; `None` leaves it to the endpoint.
    pub format: Option<Format>,
    /// How much of a row's key the answer repeats.
    #[serde(default = "Echo::before_labels")]
    pub echo: Echo,
    /// Example rows.
    pub shots: Vec<Shot>,
    /// How many rows that people have overridden serve as examples, too.
    pub override_shots: u32,
    /// What its prompts ask about; no part of any fingerprint.
    #[serde(skip)]
    pub task: Task,
    /// The columns asked for.
    pub columns: Vec<Column>,
}

/// What the prompts of an expansion ask about. It decides their form.
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
    /// Which values of a list are a value's partners in a join.
    Join,
}

impl Column {
    /// A column that no spec declares: a query's, or a question of our own. Its name,
    /// and whether it is a list, are those of its meaning.
    #[must_use]
    pub fn ad_hoc(kind: Type, about: String, values: Option<ValueList>, meaning: Meaning) -> Self {
        let many = meaning.many;
        Self {
            name: meaning.column.clone(),
            kind,
            about,
            values,
            many: many.then(|| Many { table: String::new(), column: "value".to_owned() }),
            unknown: None,
            aliases: BTreeMap::new(),
            unify: false,
            year: None,
            part_of: None,
            keeps_items: false,
            pattern: None,
            example: None,
            origin: None,
            also: Vec::new(),
            bindings: Vec::new(),
            classify: false,
            fingerprint: meaning.fingerprint(),
            meaning,
        }
    }
}

impl Expansion {
    /// An expansion that no spec declares, without a source and, so far, columns.
    #[must_use]
    pub fn ad_hoc(name: &str, key: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            about: String::new(),
            model: None,
            sources: Vec::new(),
            key_parts: Vec::new(),
            key_types: vec![None; key.len()],
            key: KeyColumns::new(key),
            context: Vec::new(),
            images: Vec::new(),
            image_files: Images::default(),
            rows_per_request: 10,
            format: None,
            echo: Echo::default(),
            shots: Vec::new(),
            override_shots: 0,
            task: Task::Columns,
            columns: Vec::new(),
        }
    }

    /// What `[model]` says of expansions that do not say it themselves.
    pub fn follow(&mut self, model: &ModelSettings) {
        self.echo = model.echo;
        for column in &mut self.columns {
            column.unknown.clone_from(&model.unknown);
        }
    }

    /// The position of a column, by name or by the column of its one-to-many table.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| {
            c.name.eq_ignore_ascii_case(name)
                || c.many.as_ref().is_some_and(|m| m.column.eq_ignore_ascii_case(name))
        })
    }
}

/// A table or SELECT that yields keys.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its name: the table's, or the one the spec gives. Its view is `<name>_expanded`.
    pub name: Option<String>,
    /// Where its rows are read.
    pub rows: SourceRows,
    /// Positions of the columns its keys are asked for.
    pub columns: Vec<usize>,
}

/// Where a source's rows are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceRows {
    /// A table or view of the database.
    Table(String),
    /// A SELECT over the database.
    Select(String),
}

/// A column asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub kind: Type,
    /// What is asked for.
    pub about: String,
    /// The values allowed.
    pub values: Option<ValueList>,
    /// The table of its values, when it is one-to-many.
    pub many: Option<Many>,
    /// What a model writes for what it does not know; `None` is
    /// [`checker::UNKNOWN`]. No part of what the column means.
    #[serde(default)]
    pub unknown: Option<Vec<String>>,
    /// Other words for the values allowed, in lower case, and what each means. No
    /// part of what the column means.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
    /// Whether answers outside its list are put before the model, which says what value
    /// each means. No part of what the column means.
    #[serde(default)]
    pub unify: bool,
    /// The part of the key that holds the year of dates given without one. No part
    /// of what the column means.
    #[serde(default)]
    pub year: Option<usize>,
    /// The part of the key that its values are parts of. No part of what it means.
    #[serde(default)]
    pub part_of: Option<usize>,
    /// Whether its list keeps each item at its position, duplicates and NULLs included. The
    /// list of a one-to-many column is a set. No part of what it means.
    #[serde(default)]
    pub keeps_items: bool,
    /// A regular expression that its values match, shown to the model; no part of what
    /// it means.
    #[serde(default)]
    pub pattern: Option<String>,
    /// A value of the kind that is expected, shown to the model; no part of what
    /// it means.
    pub example: Option<String>,
    /// The base column of the value that a query asks about (`city.name`), shown to the
    /// model; no part of what it means.
    #[serde(skip)]
    pub origin: Option<String>,
    /// Meanings under which its answers were kept, too: of values without a kind, or of one
    /// that is the same now. Their facts hold until they are refreshed.
    #[serde(skip)]
    pub also: Vec<Meaning>,
    /// The questions it answers.
    pub bindings: Vec<Binding>,
    /// Whether words outside its list mean the values that mean the same.
    pub classify: bool,
    /// What it means.
    pub meaning: Meaning,
    /// The fingerprint of what it means.
    pub fingerprint: Fingerprint,
}

/// The table of a one-to-many column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Many {
    /// The table's name.
    pub table: String,
    /// Its column for the value.
    pub column: String,
}

/// The values a column allows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ValueList {
    /// The values, without NULLs and repeats, in the order given.
    pub values: Vec<String>,
    /// Whether other values are allowed too.
    pub open: bool,
    /// The hash of the content.
    pub hash: ListHash,
}

/// A natural-language question bound to a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The question, with slots.
    pub ask: String,
    /// The SQL it stands for, with the same slots; `None` is the column itself.
    pub sql: Option<String>,
}

/// The slots a question and its SQL may have.
pub const SLOTS: [&str; 3] = ["{value}", "{number}", "{date}"];

/// An example row: its key, its context, and a cell a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shot {
    /// Values of the key columns.
    pub key: Vec<Value>,
    /// Values of the context columns.
    pub context: Vec<Value>,
    /// The cells, by position of the column; `Nothing` is shown as unknown.
    pub cells: Vec<CellValue>,
}
