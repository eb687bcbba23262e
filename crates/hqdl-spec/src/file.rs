//! Serde types of the spec's TOML file. The JSON Schema for editors is generated from these types,
//! and [`super::shape`] checks a file against the same schema, so the format is described only
//! once.
//!
//! These types only describe the structure; [`super::check`] turns a [`SpecFile`] into a
//! [`super::Spec`].

use super::literal::Literal;
use std::collections::BTreeMap;

use hqdl_values::{PriceTable, Type};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ModelParameters;
use super::ingredients::IngredientTable;

/// An hqdl spec: one database, its expansions, model and limits.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct SpecFile {
    /// The database to expand.
    pub database: DatabaseTable,
    /// The default model.
    #[serde(default)]
    pub model: ModelTable,
    /// Limits of a run.
    #[serde(default)]
    pub limits: LimitsTable,
    /// The embedding model that finds similar texts.
    pub embeddings: Option<EmbeddingsTable>,
    /// Routing of calls in queries.
    #[serde(default)]
    pub routing: RoutingTable,
    /// The tables added to the schema.
    #[serde(default)]
    pub expansion: Vec<ExpansionTable>,
    /// User-defined calls in queries.
    #[serde(default)]
    pub ingredient: Vec<IngredientTable>,
}

impl SpecFile {
    /// Returns a minimal spec with only a database.
    #[must_use]
    pub fn bare(database: &std::path::Path) -> Self {
        Self {
            database: DatabaseTable {
                path: Some(database.display().to_string()),
                url: None,
                schema: None,
                output: None,
                images: None,
            },
            model: ModelTable::default(),
            limits: LimitsTable::default(),
            embeddings: None,
            routing: RoutingTable::default(),
            expansion: Vec::new(),
            ingredient: Vec::new(),
        }
    }
}

/// `[database]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct DatabaseTable {
    /// The `SQLite` database, relative to the spec.
    pub path: Option<String>,
    /// The `PostgreSQL` database, instead of `path`: `postgres://user@host/database`, without
    /// a password, which comes from PGPASSWORD or ~/.pgpass.
    pub url: Option<String>,
    /// The schema that a `PostgreSQL` database's expanded tables go into; `expanded` when
    /// left out.
    pub schema: Option<String>,
    /// Write the expanded tables to a copy of `path` at this location instead of into it.
    pub output: Option<String>,
    /// The directory of image paths in the database, relative to the spec; paths cannot leave it.
    /// The database's own directory when left out.
    pub images: Option<String>,
}

/// `[model]`, and other models as `[model.NAME]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ModelTable {
    /// The kind of endpoint.
    #[serde(default)]
    pub provider: Provider,
    /// The model's name, as the endpoint knows it.
    #[serde(default)]
    pub name: String,
    /// The endpoint's base URL.
    pub base_url: Option<String>,
    /// The name of the environment variable that contains the API key (never the key itself).
    pub api_key_env: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// The maximum number of tokens of an answer; 4096 when left out.
    pub max_output_tokens: Option<u32>,
    /// Further fields of each request's body, such as `reasoning_effort`, `service_tier`, `top_p`
    /// or `seed`. Fields that hqdl sets itself are rejected.
    #[serde(default)]
    pub parameters: ModelParameters,
    /// Whether a change of `parameters` makes it another model, whose cells are requested again.
    /// When false, a change of parameters keeps all facts.
    #[serde(default)]
    pub parameters_identity: bool,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Files of recorded completions, relative to the spec (`provider = "replay"`).
    #[serde(default)]
    pub recordings: Vec<String>,
    /// Which stored facts may be reused: only this model's, or any model's.
    #[serde(default)]
    pub reuse: Reuse,
    /// How much of a row's key the model repeats in its answer, unless an expansion sets it; a
    /// label when left out.
    pub echo: Option<Echo>,
    /// Answers that mean "unknown", instead of `?`, `unknown`, `n/a` and the like; for columns that
    /// do not set their own.
    pub unknown: Option<Vec<String>>,
    /// Other models that an expansion, or a call in a query, may name.
    #[serde(flatten)]
    pub others: BTreeMap<String, OtherModelTable>,
}

/// `[model.NAME]`: a model in addition to that of `[model]`. A setting that is left out is taken
/// from `[model]`, except settings of another endpoint or model: the API key and the price.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct OtherModelTable {
    /// The kind of endpoint.
    pub provider: Option<Provider>,
    /// The model's name, as the endpoint knows it.
    #[serde(default)]
    pub name: String,
    /// The endpoint's base URL.
    pub base_url: Option<String>,
    /// The name of the environment variable that contains the API key (never the key itself).
    pub api_key_env: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// The maximum number of tokens of an answer.
    pub max_output_tokens: Option<u32>,
    /// Further fields of each request's body. When left out, those of `[model]` apply if
    /// this is the same model at the same endpoint.
    pub parameters: Option<ModelParameters>,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Files of recorded completions, relative to the spec (`provider = "replay"`).
    #[serde(default)]
    pub recordings: Vec<String>,
}

/// The kind of endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Any OpenAI-compatible endpoint.
    #[default]
    Openai,
    /// Recorded completions, offline.
    Replay,
}

impl Provider {
    /// All providers.
    pub const ALL: [Self; 2] = [Self::Openai, Self::Replay];

    /// Returns the name used in specs and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Replay => "replay",
        }
    }

    /// Returns the provider with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// How much of a row's key the model repeats in its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Echo {
    /// A label: the row's number, and a word that no other row of the request has.
    #[default]
    Short,
    /// The row's number and the whole key, which uses far more tokens.
    Full,
}

impl Echo {
    /// Returns the value of expansions that were stored before labels existed.
    pub(super) fn before_labels() -> Self {
        Self::Full
    }
}

/// Which stored facts may be reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Only facts from this model.
    #[default]
    SameModel,
    /// Facts of any model.
    AnyModel,
}

/// `[limits]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct LimitsTable {
    /// Maximum requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Maximum tokens per minute, input and output.
    pub tokens_per_minute: Option<u32>,
    /// Maximum requests in flight at once.
    pub concurrency: Option<u32>,
    /// Maximum USD that a run may spend.
    pub budget_usd: Option<f64>,
    /// Maximum USD that all runs of a day (UTC) may spend.
    pub budget_usd_per_day: Option<f64>,
    /// Maximum tokens that a run may use, input and output; for models without a price.
    pub budget_tokens: Option<u64>,
    /// Maximum tokens of the rows that one question of a query covers; 100000 when left out. More
    /// is an error, or truncated with `--truncate`.
    pub context_tokens: Option<u64>,
    /// Maximum tokens of a document shown with one question of a query; 4000 when left out. From a
    /// longer document, the passages most similar to the question are shown.
    pub passage_tokens: Option<u64>,
    /// Requests per batch (`--batch`); 50000 when left out, which is the maximum.
    pub batch_requests: Option<u32>,
    /// Bytes of a batch's file; 200000000 when left out, which is the maximum.
    pub batch_bytes: Option<u64>,
    /// The maximum pause between two polls of a batch, in seconds; 60 when left out.
    pub batch_poll_seconds: Option<f64>,
}

/// `[routing]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct RoutingTable {
    /// Whether the model may bind a new question to a column.
    #[serde(default)]
    pub model: bool,
}

/// `[embeddings]`: the model that finds similar texts. Similarity determines the order of requests
/// and the passages that are shown, but never an answer.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct EmbeddingsTable {
    /// The embedding model's name, as the endpoint knows it.
    pub model: String,
    /// The endpoint's base URL; that of `[model]` when left out.
    pub base_url: Option<String>,
    /// The name of the environment variable that contains the API key; that of `[model]` when both
    /// it and `base_url` are left out.
    pub api_key_env: Option<String>,
    /// Price in USD per million tokens.
    pub price: Option<f64>,
    /// Request timeout in seconds; 30 when left out. After a timeout, texts are ordered by the
    /// words they share.
    pub timeout_seconds: Option<f64>,
}

/// `[[expansion]]`: a table added to the schema.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ExpansionTable {
    /// The name of the materialized view.
    pub name: String,
    /// A sentence for the model that describes the rows.
    #[serde(default)]
    pub about: String,
    /// The model for the cells: the NAME of a `[model.NAME]`; that of `[model]` when left out.
    pub model: Option<String>,
    /// Source of the keys: a table, a SELECT, or `[[expansion.source]]`.
    pub source: SourceField,
    /// The columns that identify an entity to the model.
    pub key: Vec<String>,
    /// Columns shown to the model that are not part of the key.
    #[serde(default)]
    pub context: Vec<String>,
    /// Key and context columns whose values are images: a path, an http(s) URL, a data URL, or in
    /// `context` a BLOB. Their rows are sent one per request.
    #[serde(default)]
    pub images: Vec<String>,
    /// The number of rows per request.
    pub rows_per_request: Option<u32>,
    /// The format of the answers.
    pub format: Option<Format>,
    /// How much of a row's key the model repeats in its answer; as in `[model]` when left out.
    pub echo: Option<Echo>,
    /// Example rows: written out, a SELECT, or "overrides".
    pub shots: Option<ShotsField>,
    /// The columns to fill.
    #[serde(default)]
    pub column: Vec<ColumnTable>,
}

/// The format of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One line per row; uses the fewest tokens.
    Csv,
    /// Schema-constrained JSON.
    Json,
}

impl Format {
    /// Returns the name used in specs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
        }
    }
}

/// Source of the keys.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SourceField {
    /// A table, a view, or a SELECT.
    One(String),
    /// Several sources, each filling some columns.
    Several(Vec<SourceTable>),
}

/// `[[expansion.source]]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct SourceTable {
    /// A name for the source; its view is `<name>_expanded`.
    pub name: Option<String>,
    /// A table or view.
    pub table: Option<String>,
    /// A SELECT that yields the key columns (and context columns, if any).
    pub select: Option<String>,
    /// The key columns of the source, if it lacks some of the expansion's. The other key columns
    /// are NULL in its rows, and prompts show only these.
    pub key: Option<Vec<String>>,
    /// The columns that are filled for this source's keys; all when left out.
    pub columns: Option<Vec<String>>,
}

/// Example rows.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ShotsField {
    /// Written out: column name to value.
    Rows(Vec<BTreeMap<String, ShotCell>>),
    /// A SELECT over the database, or the overrides.
    Table(ShotsTable),
    /// Rows from a named source.
    Named(ShotsName),
}

/// `shots = "overrides"`
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShotsName {
    /// Cells that people have overridden.
    Overrides,
}

/// `shots = { sql = "…", limit = 5 }` or `shots = { overrides = true, limit = 5 }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ShotsTable {
    /// A SELECT; its columns have the names of the key, context and columns.
    pub sql: Option<String>,
    /// Whether overridden cells are used as examples: rows with the most overridden columns first.
    pub overrides: Option<bool>,
    /// The number of example rows; 5 when left out.
    pub limit: Option<u32>,
}

/// A cell of an example row.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ShotCell {
    /// A single value.
    One(Literal),
    /// The values of a one-to-many column.
    Many(Vec<Literal>),
}

/// `[[expansion.column]]`: a column to fill.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ColumnTable {
    /// The column's name.
    pub name: String,
    /// The type of the values.
    #[serde(rename = "type", default)]
    pub kind: Type,
    /// A phrase for the model that describes the value.
    #[serde(default)]
    pub about: String,
    /// The allowed values.
    pub values: Option<ValuesField>,
    /// Other words for these values, each with the value it means: `{ "United Kingdom" = "UK" }`,
    /// or a CSV file beside the spec, with a header and two columns: the word, the value.
    pub aliases: Option<AliasesField>,
    /// Whether the model is asked once about each different answer outside a closed list: which
    /// value has the same meaning, if any.
    #[serde(default)]
    pub unify: bool,
    /// Whether values outside `values` are allowed.
    pub open: Option<bool>,
    /// For a date: the key column with the year of a date given without one (`May 27`). Never
    /// derived from the name of a key column.
    pub year: Option<String>,
    /// One-to-many: the values are stored in a separate table.
    pub many: Option<ManyTable>,
    /// Answers that mean "unknown", instead of `?`, `unknown`, `n/a` and the like; as in `[model]`
    /// when left out.
    pub unknown: Option<Vec<String>>,
    /// Whether a query may compare the column with words outside its `values`. The model is asked
    /// once which values have the same meaning.
    #[serde(default)]
    pub classify: bool,
    /// Natural-language questions this column answers.
    #[serde(default)]
    pub questions: Vec<QuestionField>,
}

/// The allowed values of a column.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ValuesField {
    /// A list of values.
    List(Vec<Literal>),
    /// A list or a SELECT, with options.
    Table(ValuesTable),
}

/// Other words for the allowed values of a column.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AliasesField {
    /// A table of words and values.
    Table(BTreeMap<String, String>),
    /// A CSV file.
    File(std::path::PathBuf),
}

/// `values = { sql = "SELECT …" }` or `values = { list = […], open = true }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ValuesTable {
    /// A SELECT of one column.
    pub sql: Option<String>,
    /// The list of values.
    pub list: Option<Vec<Literal>>,
    /// Whether other values are allowed too.
    pub open: Option<bool>,
}

/// `many = { table = "…", column = "…" }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ManyTable {
    /// The table of the values; its key is the expansion's key.
    pub table: String,
    /// The column with the value.
    pub column: String,
}

/// A question that a column answers.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum QuestionField {
    /// A question that the column itself answers.
    Plain(String),
    /// A question that SQL over the column answers.
    Bound(QuestionTable),
}

/// `{ ask = "Is the publisher {value}?", sql = "publisher_name = {value}" }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct QuestionTable {
    /// The question, with `{value}`, `{number}` or `{date}` slots.
    pub ask: String,
    /// The SQL that answers it, with the same slots.
    pub sql: String,
}

/// Returns the JSON Schema of the spec, generated from the types above.
#[must_use]
pub fn json_schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(SpecFile).to_value();
    let version = env!("CARGO_PKG_VERSION");
    schema["$id"] = format!("urn:hqdl:spec:{version}").into();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".into(), "hqdl spec".into());
    }
    schema
}
