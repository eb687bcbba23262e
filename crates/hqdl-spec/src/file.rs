//! The spec as it is written: the serde types of the TOML file. The JSON Schema
//! that editors use is made from these types, and [`super::shape`] checks a
//! file against that same schema, so there is one description of the format.
//!
//! Nothing here is checked beyond its shape; [`super::check`] turns a
//! [`SpecFile`] into a [`super::Spec`].

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
    /// The model that is asked.
    #[serde(default)]
    pub model: ModelTable,
    /// What a run may use.
    #[serde(default)]
    pub limits: LimitsTable,
    /// What tells which texts are alike.
    pub embeddings: Option<EmbeddingsTable>,
    /// How calls in queries are routed.
    #[serde(default)]
    pub routing: RoutingTable,
    /// The tables added to the schema.
    #[serde(default)]
    pub expansion: Vec<ExpansionTable>,
    /// Calls of your own in queries.
    #[serde(default)]
    pub ingredient: Vec<IngredientTable>,
}

impl SpecFile {
    /// The least a spec says: a database.
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
    /// Write the expanded tables to a copy of `path`, here, instead of into it.
    pub output: Option<String>,
    /// The folder that paths of images in the database begin at and do not leave,
    /// relative to the spec; the database's own when left out.
    pub images: Option<String>,
}

/// `[model]`, and others beside it: `[model.NAME]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ModelTable {
    /// Which kind of endpoint answers.
    #[serde(default)]
    pub provider: Provider,
    /// The model's name, as the endpoint knows it.
    #[serde(default)]
    pub name: String,
    /// The endpoint's base URL.
    pub base_url: Option<String>,
    /// The name of the environment variable that holds the key (never a key).
    pub api_key_env: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// The most tokens an answer may have; 4096 when left out.
    pub max_output_tokens: Option<u32>,
    /// Further fields of each request's body, such as `reasoning_effort`, `service_tier`,
    /// `top_p` or `seed`. Fields that hqdl sets itself are refused.
    #[serde(default)]
    pub parameters: ModelParameters,
    /// Whether other `parameters` make another model, whose cells are asked for again. When
    /// false, a change of parameters keeps all facts.
    #[serde(default)]
    pub parameters_identity: bool,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Files of recorded completions, relative to the spec (`provider = "replay"`).
    #[serde(default)]
    pub recordings: Vec<String>,
    /// Whose facts may be reused: this model's only, or any model's.
    #[serde(default)]
    pub reuse: Reuse,
    /// How much of a row's key its answer repeats, where an expansion does not
    /// say; a label when left out.
    pub echo: Option<Echo>,
    /// What a model writes for what it does not know, instead of `?`, `unknown`,
    /// `n/a` and the like; of columns that do not say themselves.
    pub unknown: Option<Vec<String>>,
    /// Other models that an expansion, or a call in a query, may name.
    #[serde(flatten)]
    pub others: BTreeMap<String, OtherModelTable>,
}

/// `[model.NAME]`: a model beside that of `[model]`. What it leaves out is as
/// `[model]` says, but for what belongs to another endpoint or another model: a key,
/// a price.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct OtherModelTable {
    /// Which kind of endpoint answers.
    pub provider: Option<Provider>,
    /// The model's name, as the endpoint knows it.
    #[serde(default)]
    pub name: String,
    /// The endpoint's base URL.
    pub base_url: Option<String>,
    /// The name of the environment variable that holds the key (never a key).
    pub api_key_env: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// The most tokens an answer may have.
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

/// Which kind of endpoint answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Any OpenAI-compatible endpoint.
    #[default]
    Openai,
    /// Recorded completions, offline.
    Replay,
}

impl Provider {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Openai, Self::Replay];

    /// What it is called, in specs and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Replay => "replay",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// How much of a row's key its answer repeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Echo {
    /// A label: the row's number, and a word that no other row of the request has.
    #[default]
    Short,
    /// The row's number and the whole key, which takes far more tokens.
    Full,
}

impl Echo {
    /// What was written down before there were labels.
    pub(super) fn before_labels() -> Self {
        Self::Full
    }
}

/// Whose facts may be reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Only facts that this model gave.
    #[default]
    SameModel,
    /// Facts of any model.
    AnyModel,
}

/// `[limits]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct LimitsTable {
    /// Requests in any minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens in any minute, input and output.
    pub tokens_per_minute: Option<u32>,
    /// Requests in flight at once; 16 when left out.
    pub concurrency: Option<u32>,
    /// USD a run may spend.
    pub budget_usd: Option<f64>,
    /// USD that all runs of a day (UTC) may spend.
    pub budget_usd_per_day: Option<f64>,
    /// Tokens a run may use, input and output; for models without a price.
    pub budget_tokens: Option<u64>,
    /// Tokens of the rows that one question of a query is asked about; 100000
    /// when left out. More is an error, or cut with `--truncate`.
    pub context_tokens: Option<u64>,
    /// Tokens of a document that one question of a query is shown; 4000 when left
    /// out. Of a longer one, the passages that are most like the question.
    pub passage_tokens: Option<u64>,
    /// Requests of one batch (`--batch`); 50000 when left out, which is the most.
    pub batch_requests: Option<u32>,
    /// Bytes of one batch's file; 200000000 when left out, which is the most.
    pub batch_bytes: Option<u64>,
    /// The longest pause between two looks at a batch, in seconds; 60 when left out.
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

/// `[embeddings]`: what tells which texts are alike. It orders what is asked and
/// chooses what is shown; it decides nothing.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct EmbeddingsTable {
    /// The embedding model's name, as the endpoint knows it.
    pub model: String,
    /// The endpoint's base URL; that of `[model]` when left out.
    pub base_url: Option<String>,
    /// The name of the environment variable that holds the key; that of `[model]`
    /// when both it and `base_url` are left out.
    pub api_key_env: Option<String>,
    /// Price in USD per million tokens.
    pub price: Option<f64>,
    /// Seconds that a request may take; 30 when left out. After that, texts are
    /// ordered by their words.
    pub timeout_seconds: Option<f64>,
}

/// `[[expansion]]`: a table added to the schema.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ExpansionTable {
    /// The name of the materialized view.
    pub name: String,
    /// What its rows are, in a sentence for the model.
    #[serde(default)]
    pub about: String,
    /// Which model its cells are asked of: the NAME of a `[model.NAME]`; that of
    /// `[model]` when left out.
    pub model: Option<String>,
    /// Where the keys come from: a table, a SELECT, or `[[expansion.source]]`.
    pub source: SourceField,
    /// The columns that identify an entity to the model.
    pub key: Vec<String>,
    /// Columns shown to the model that are not part of the key.
    #[serde(default)]
    pub context: Vec<String>,
    /// Those of key and context whose values are images: a path, an http(s) URL, a data
    /// URL, or in `context` a BLOB. They are asked about one row a request.
    #[serde(default)]
    pub images: Vec<String>,
    /// How many rows share a request; 20 when left out.
    pub rows_per_request: Option<u32>,
    /// The form of the answers; `json` when left out. Recordings have a form of their own.
    pub format: Option<Format>,
    /// How much of a row's key its answer repeats; as `[model]` says when left out.
    pub echo: Option<Echo>,
    /// Example rows: written out, a SELECT, or "overrides".
    pub shots: Option<ShotsField>,
    /// The columns asked for.
    #[serde(default)]
    pub column: Vec<ColumnTable>,
}

/// The form of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One line a row; the fewest tokens.
    Csv,
    /// Schema-constrained JSON.
    Json,
}

impl Format {
    /// The name used in specs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
        }
    }
}

/// Where keys come from.
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
    /// The key columns it has, when it has not all of the expansion's: of its rows
    /// the others are NULL, and the model is shown just these.
    pub key: Option<Vec<String>>,
    /// The columns this source's keys are asked for; all when left out.
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
    /// Taken from somewhere that has a name.
    Named(ShotsName),
}

/// `shots = "overrides"`
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShotsName {
    /// What people have overridden.
    Overrides,
}

/// `shots = { sql = "…", limit = 5 }` or `shots = { overrides = true, limit = 5 }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ShotsTable {
    /// A SELECT; its columns are named as the key, context and columns.
    pub sql: Option<String>,
    /// Whether what people have overridden serves: the rows with the most
    /// columns overridden first.
    pub overrides: Option<bool>,
    /// How many rows serve; 5 when left out.
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

/// `[[expansion.column]]`: a column asked for.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ColumnTable {
    /// The column's name.
    pub name: String,
    /// The type of its values.
    #[serde(rename = "type", default)]
    pub kind: Type,
    /// What is asked for, in a phrase for the model.
    #[serde(default)]
    pub about: String,
    /// The values allowed.
    pub values: Option<ValuesField>,
    /// Other words for these values, and the value that each means:
    /// `{ "United Kingdom" = "UK" }`, or a CSV file beside the spec, with a header
    /// and two columns: the words, the value.
    pub aliases: Option<AliasesField>,
    /// Whether each different answer outside a closed list is put before the model once,
    /// which says what value means the same, or that none does.
    #[serde(default)]
    pub unify: bool,
    /// Whether values outside `values` pass.
    pub open: Option<bool>,
    /// Of a date: the key column that holds the year of a date given without one
    /// (`May 27`). A column `date` beside the key column `year` needs no word.
    pub year: Option<String>,
    /// One-to-many: the values go to a table of their own.
    pub many: Option<ManyTable>,
    /// What a model writes for what it does not know, instead of `?`, `unknown`,
    /// `n/a` and the like; as `[model]` says when left out.
    pub unknown: Option<Vec<String>>,
    /// Whether a query may compare it with other words than its `values`: these
    /// mean the values that mean the same, which the model is asked once.
    #[serde(default)]
    pub classify: bool,
    /// Natural-language questions this column answers.
    #[serde(default)]
    pub questions: Vec<QuestionField>,
}

/// The values a column allows.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ValuesField {
    /// Written out.
    List(Vec<Literal>),
    /// Written out or selected, with options.
    Table(ValuesTable),
}

/// Other words for the values a column allows.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AliasesField {
    /// Written out.
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
    /// The values, written out.
    pub list: Option<Vec<Literal>>,
    /// Whether other values pass too.
    pub open: Option<bool>,
}

/// `many = { table = "…", column = "…" }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ManyTable {
    /// The table of the values, keyed by the expansion's key.
    pub table: String,
    /// Its column for the value.
    pub column: String,
}

/// A question that a column answers.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum QuestionField {
    /// Answered by the column itself.
    Plain(String),
    /// Answered by SQL over the column.
    Bound(QuestionTable),
}

/// `{ ask = "Is the publisher {value}?", sql = "publisher_name = {value}" }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct QuestionTable {
    /// The question, with `{value}`, `{number}` or `{date}` slots.
    pub ask: String,
    /// The SQL it stands for, with the same slots.
    pub sql: String,
}

/// The JSON Schema of the spec, made from the types above.
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
