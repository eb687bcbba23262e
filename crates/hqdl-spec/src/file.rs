//! Serde types of the spec's TOML file. The JSON Schema for editors is generated from these types,
//! and `super::schema_check` checks a file against the same schema, so the format is described only
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
use super::media::KINDS;
use super::provider::Provider;

/// An hqdl spec: one database, its expansions, model and limits.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct SpecFile {
    /// The database to expand.
    pub database: DatabaseTable,
    /// The model and its endpoint.
    #[serde(default)]
    pub model: ModelTable,
    /// Limits of a run.
    #[serde(default)]
    pub limits: LimitsTable,
    /// Embedding model that compares documents and questions.
    pub embeddings: Option<EmbeddingsTable>,
    /// How hqdl chooses the column that answers a question of a query.
    #[serde(default)]
    pub routing: RoutingTable,
    /// The expansions: columns that hqdl adds to the rows of a source.
    #[serde(default)]
    pub expansion: Vec<ExpansionTable>,
    /// Custom ingredients for queries.
    #[serde(default)]
    pub ingredient: Vec<IngredientTable>,
    /// Groups of columns with the same kind of values, such as city names.
    #[serde(default)]
    pub kind: Vec<KindTable>,
    /// How `hqdl ask` writes queries.
    #[serde(default)]
    pub ask: AskTable,
    /// Example questions for `hqdl ask`, each with the query that answers it.
    #[serde(default)]
    pub example: Vec<ExampleTable>,
}

impl SpecFile {
    /// Returns a minimal spec with only a database.
    #[must_use]
    pub fn with_database(database: &std::path::Path) -> Self {
        Self {
            database: DatabaseTable {
                path: Some(database.display().to_string()),
                url: None,
                schema: None,
                output: None,
                media: None,
                images: None,
            },
            model: ModelTable::default(),
            limits: LimitsTable::default(),
            embeddings: None,
            routing: RoutingTable::default(),
            expansion: Vec::new(),
            ingredient: Vec::new(),
            kind: Vec::new(),
            ask: AskTable::default(),
            example: Vec::new(),
        }
    }

    /// Returns true if the spec configures `hqdl ask`, which needs no expansion.
    #[must_use]
    pub fn has_ask_settings(&self) -> bool {
        let AskTable { budget_usd, context_tokens, values } = &self.ask;
        let has_setting = budget_usd.is_some() || context_tokens.is_some() || values.is_some();
        has_setting || !self.example.is_empty()
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
    /// Schema for the published tables in a `PostgreSQL` database. Default: `expanded`.
    pub schema: Option<String>,
    /// Copy of the database that hqdl publishes into, relative to the spec, or a folder for Parquet
    /// files, with a slash at its end. Without it, hqdl publishes into `path`.
    pub output: Option<String>,
    /// Folder of the images and recordings that the database names by path, relative to the spec.
    /// Default: the database's folder. hqdl reads no image or recording outside of it.
    pub media: Option<String>,
    /// Former name of `media`.
    pub images: Option<String>,
}

/// `[model]`, and other models as `[model.NAME]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ModelTable {
    /// API of the endpoint.
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
    /// Maximum number of tokens in an answer. Default: 4096.
    pub max_output_tokens: Option<u32>,
    /// Additional fields for the body of each request, such as `reasoning_effort`, `service_tier`,
    /// `top_p` or `seed`. hqdl rejects fields that it sets itself.
    #[serde(default)]
    pub parameters: ModelParameters,
    /// Whether the model counts as a different one if `parameters` changes. hqdl then asks for its
    /// cells again. If false, all stored answers stay valid.
    #[serde(default)]
    pub parameters_identity: bool,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Files of recorded completions, relative to the spec (`provider = "replay"`).
    #[serde(default)]
    pub recordings: Vec<String>,
    /// Which stored answers hqdl reuses: those of this model only, or of any model.
    #[serde(default)]
    pub reuse: Reuse,
    /// How much of a row's key the answer repeats: a label (`short`) or the whole key (`full`). An
    /// expansion can set its own. Default: `"short"`.
    pub echo: Option<Echo>,
    /// Answers that mean that the model does not know a value, instead of `?`, `unknown`, `n/a` and
    /// similar. A column can set its own.
    pub unknown: Option<Vec<String>>,
    /// Other models, which an expansion or a call in a query can name.
    #[serde(flatten)]
    pub others: BTreeMap<String, OtherModelTable>,
}

/// `[model.NAME]`: a model in addition to `[model]`. Missing fields are inherited from `[model]`,
/// except `api_key_env` if the endpoint differs and `price` if the model differs.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct OtherModelTable {
    /// API of the endpoint.
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
    /// Maximum number of tokens in an answer. Default: that of `[model]`.
    pub max_output_tokens: Option<u32>,
    /// Additional fields for the body of each request. Default: those of `[model]`, if this is the
    /// same model at the same endpoint.
    pub parameters: Option<ModelParameters>,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Files of recorded completions, relative to the spec (`provider = "replay"`).
    #[serde(default)]
    pub recordings: Vec<String>,
}

/// How much of a row's key the answer repeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Echo {
    /// A label: the row's number, and a word that no other row of the request has.
    #[default]
    Short,
    /// The row's number and the whole key. This needs far more tokens.
    Full,
}

impl Echo {
    /// Returns the default for expansions that were stored before labels existed.
    pub(super) fn default_before_labels() -> Self {
        Self::Full
    }
}

/// Which stored answers hqdl reuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Only answers of this model.
    #[default]
    SameModel,
    /// Answers of any model.
    AnyModel,
}

/// Requests that share a limit per minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitScope {
    /// All requests to an endpoint, whatever their keys.
    #[default]
    Endpoint,
    /// The requests of one key.
    Key,
}

/// `[limits]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct LimitsTable {
    /// Maximum number of requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Maximum number of input and output tokens per minute.
    pub tokens_per_minute: Option<u32>,
    /// Requests that share the rate limits: all requests to the endpoint (`endpoint`), or all
    /// requests with the same API key (`key`, for keys of different accounts). The strictest known
    /// limit applies.
    #[serde(default)]
    pub per: LimitScope,
    /// Maximum number of requests in flight at once. Default: 16.
    pub concurrency: Option<u32>,
    /// Maximum cost of a run in USD.
    pub budget_usd: Option<f64>,
    /// Maximum total cost in USD of all runs in a day (UTC).
    pub budget_usd_per_day: Option<f64>,
    /// Maximum number of input and output tokens of a run, for models without a price.
    pub budget_tokens: Option<u64>,
    /// Maximum number of tokens of the rows that one question of a query covers. Default: 100000. A
    /// larger context is an error, unless `--truncate` cuts it.
    pub context_tokens: Option<u64>,
    /// Maximum number of tokens of a document that the model sees for a question of a query.
    /// Default: 4000. If a document is longer, the model sees the passages most similar to the
    /// question.
    pub passage_tokens: Option<u64>,
    /// Maximum number of requests in one batch (`--batch`), at most 50000. Default: 50000.
    pub batch_requests: Option<u32>,
    /// Maximum size of a batch file in bytes, at most 200000000. Default: 200000000.
    pub batch_bytes: Option<u64>,
    /// Longest pause between two checks of a batch, in seconds. Default: 60.
    pub batch_poll_seconds: Option<f64>,
}

/// `[[kind]]`: columns with the same kind of values. An answer about a value applies to all of
/// these columns.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct KindTable {
    /// The columns, such as `orders.city` and `city.name`. The first one is the name of the kind.
    pub columns: Vec<String>,
}

/// `[ask]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct AskTable {
    /// Maximum cost in USD of writing the SQL for one question, without the cost of the query
    /// itself. Default: 0.02.
    pub budget_usd: Option<f64>,
    /// Maximum number of tokens in a request for SQL. Default: 4000.
    pub context_tokens: Option<u64>,
    /// Whether the model sees sample rows and stored values. Default: true.
    pub values: Option<bool>,
}

/// `[[example]]`: a question with the query that answers it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ExampleTable {
    /// The question.
    pub question: String,
    /// The query.
    pub sql: String,
}

/// `[routing]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct RoutingTable {
    /// Whether the model may bind a new question to a column.
    #[serde(default)]
    pub model: bool,
}

/// `[embeddings]`: the model that compares the texts of queries. Similarity orders the questions and
/// chooses passages, and is the result of `embed`, `similarity` and `nearest`. It never decides an
/// answer. Evidence is ranked by words.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct EmbeddingsTable {
    /// The embedding model's name, as the endpoint knows it.
    pub model: String,
    /// The endpoint's base URL. Default: that of `[model]`.
    pub base_url: Option<String>,
    /// Name of the environment variable that contains the API key. Default: that of `[model]`, if
    /// `base_url` is missing too.
    pub api_key_env: Option<String>,
    /// Price in USD per million tokens.
    pub price: Option<f64>,
    /// Time limit of a request in seconds. Default: 30. If a request takes longer, hqdl orders
    /// texts by their words, and repeats the requests of `similarity`.
    pub timeout_seconds: Option<f64>,
}

/// `[[expansion]]`: columns that hqdl adds to the rows of a source.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ExpansionTable {
    /// Name of the published table.
    pub name: String,
    /// A sentence that describes the rows to the model.
    #[serde(default)]
    pub about: String,
    /// Model for this expansion: the NAME of a `[model.NAME]`. Default: `[model]`.
    pub model: Option<String>,
    /// Source of the keys: a table, a SELECT, or `[[expansion.source]]`.
    pub source: SourceField,
    /// The columns that identify an entity to the model.
    pub key: Vec<String>,
    /// Columns shown to the model that are not part of the key. If a value in them changes, the
    /// row is asked for again.
    #[serde(default)]
    pub context: Vec<String>,
    /// Columns of `key` and `context` whose values are images: a path, an http(s) URL, a
    /// data URL, or in `context` a BLOB. Each request then has one row.
    #[serde(default)]
    pub images: Vec<String>,
    /// Columns of `key` and `context` whose values are recordings (WAV or MP3): a path, a data URL,
    /// or in `context` a BLOB.
    #[serde(default)]
    pub audio: Vec<String>,
    /// Columns of `key` and `context` whose values are images or recordings. hqdl recognizes each
    /// file by its content.
    #[serde(default)]
    pub media: Vec<String>,
    /// Maximum number of rows in one request. Default: 20.
    pub rows_per_request: Option<u32>,
    /// Format of the answers. Default: `"json"`. Recordings have their own format.
    pub format: Option<Format>,
    /// How much of a row's key the answer repeats. Default: that of `[model]`.
    pub echo: Option<Echo>,
    /// Shots, the example rows in the prompt: a list of rows, a SELECT, or `"overrides"`.
    pub shots: Option<ShotsField>,
    /// Documents whose passages the model sees with each row. Each request then has one row.
    pub evidence: Option<EvidenceTable>,
    /// Second answers for the columns that have no `escalate` of their own.
    pub escalate: Option<EscalateTable>,
    /// The columns to fill.
    #[serde(default)]
    pub column: Vec<ColumnTable>,
}

impl ExpansionTable {
    /// Returns the fields that declare media, one per kind and `media`, with their columns.
    #[must_use]
    pub fn media_fields(&self) -> [(&'static str, &[String]); KINDS.len() + 1] {
        [("images", &self.images), ("audio", &self.audio), ("media", &self.media)]
    }

    /// Returns true if the expansion has columns with media.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.media_fields().iter().any(|(_, columns)| !columns.is_empty())
    }
}

/// `[expansion.evidence]`: documents whose passages the model sees and quotes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct EvidenceTable {
    /// A SELECT over the database that returns the text of each document, or its name and text.
    pub documents: Option<String>,
    /// Folder with files that end in `.txt`, `.md`, `.html`, `.htm` or `.pdf`. It must be below the
    /// spec's folder.
    pub folder: Option<String>,
    /// URL of a web search that returns JSON, with `{query}` for the row's key. hqdl sends the key
    /// to this host.
    pub search: Option<String>,
    /// JSON pointer to the list of results in the reply. Default: the reply itself.
    pub results: Option<String>,
    /// JSON pointer to the title of a result. Default: `"/title"`.
    pub title: Option<String>,
    /// JSON pointer to the text of a result. Default: `"/text"`.
    pub text: Option<String>,
    /// JSON pointer to the URL of a result. Default: `"/url"`.
    pub url: Option<String>,
    /// Environment variable with the key of the search. hqdl sends it in a header, or in place of
    /// `{key}` in the URL.
    pub api_key_env: Option<String>,
    /// Header of the search's key. Default: `Authorization`, as a bearer token.
    pub key_header: Option<String>,
    /// Price of a search in USD. Required for `search`; 0 if the search is free.
    pub price_per_search: Option<f64>,
    /// Maximum number of tokens of the passages that the model sees with a row. Default: 1500.
    pub evidence_tokens: Option<u32>,
    /// Whether a value becomes `unknown` if the model does not support it with a quotation.
    #[serde(default)]
    pub require: bool,
}

/// `escalate`: which cells a stronger model answers again. A run asks this model after all first
/// answers.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct EscalateTable {
    /// Model that answers again: the NAME of a `[model.NAME]`, or the name of `[model]`.
    pub to: String,
    /// First answers after which hqdl asks `to`. Default: `unknown`, `not_in_list` and `invalid`.
    pub when: Option<Vec<EscalationCase>>,
    /// Model or models whose answers hqdl compares with the first ones, for `disagree` and
    /// `low_confidence`. Without `compare` and `answers`, `low_confidence` uses the probabilities of
    /// the answer's tokens, which the endpoint must report.
    pub compare: Option<CompareField>,
    /// Number of answers of the first model to each cell. hqdl compares the others with the first
    /// one, like those of `compare`. Default: 1.
    #[schemars(range(min = 1, max = 16))]
    pub answers: Option<u32>,
    /// For `low_confidence` without `compare`, `answers` and a target: probability of the answer's
    /// tokens below which hqdl asks `to`.
    pub below: Option<f64>,
    /// Share of the cells that agree with `to`, with a probability of at least 95 %. It decides
    /// which cells have a low confidence.
    pub target: Option<f64>,
    /// Share of the cells that are true, with a probability of at least 95 %. It needs a uniform
    /// audit of the column with true values, which is the sample.
    pub target_truth: Option<f64>,
    /// Number of rows that `to` answers to calibrate the confidence, drawn at random. Default: 100,
    /// or more if `target` is above 0.95.
    #[schemars(range(min = 1))]
    pub sample: Option<u32>,
    /// Seed of the sample. Default: 0.
    pub seed: Option<u64>,
}

/// `compare`: one model or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CompareField {
    /// One model.
    One(String),
    /// Several models.
    Several(Vec<String>),
}

impl CompareField {
    /// Returns the names of the models.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

/// Kind of first answer after which a stronger model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EscalationCase {
    /// The model answered that it does not know.
    Unknown,
    /// The answer is not in the closed value list.
    NotInList,
    /// The answer cannot be read.
    Invalid,
    /// The model refused.
    Refused,
    /// A compared answer is different.
    Disagree,
    /// Too few of the compared answers are the same, or the answer's tokens are too improbable.
    /// `target` decides where the threshold is; without it, all compared answers must be the same.
    LowConfidence,
}

/// Format of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One line per row. Needs the fewest tokens.
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
    /// A name for the source; its view is `NAME_expanded`.
    pub name: Option<String>,
    /// A table or view.
    pub table: Option<String>,
    /// A SELECT that returns the key columns (and context columns, if any).
    pub select: Option<String>,
    /// The key columns that this source contains, if it lacks some of the expansion's. The others
    /// are NULL in its rows, and the model does not see them.
    pub key: Option<Vec<String>>,
    /// Columns that hqdl fills for the keys of this source. Default: all.
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
    /// A named source of rows.
    Named(ShotsName),
}

/// `shots = "overrides"`
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShotsName {
    /// The overrides.
    Overrides,
}

/// `shots = { sql = "…", limit = 5 }` or `shots = { overrides = true, limit = 5 }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ShotsTable {
    /// A SELECT whose columns have the names of the key, the context and the columns.
    pub sql: Option<String>,
    /// Whether rows with overrides serve as shots, beginning with the keys that have the most
    /// overridden columns. Rows in the sample of an audit serve only when its sheet is filled.
    pub overrides: Option<bool>,
    /// Number of shots. Default: 5.
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
    /// Model for this column: the NAME of a `[model.NAME]`, or the name of `[model]`. Default: that
    /// of the expansion.
    pub model: Option<String>,
    /// Second answers: a stronger model answers cells again if the first answer is not usable.
    /// Default: that of the expansion.
    pub escalate: Option<EscalateTable>,
    /// A phrase that describes the column to the model.
    #[serde(default)]
    pub about: String,
    /// The allowed values.
    pub values: Option<ValuesField>,
    /// Other words for the values: `{ "United Kingdom" = "UK" }`, or a CSV file next to the spec
    /// with a header and two columns (alias, value). If the column has `values`, each alias must
    /// stand for one of them.
    pub aliases: Option<AliasesField>,
    /// Whether hqdl asks the model which listed value means the same as an answer that is not in
    /// the (closed) list. It asks once about each distinct answer.
    #[serde(default)]
    pub unify: bool,
    /// Whether values outside `values` are allowed.
    pub open: Option<bool>,
    /// For a date column: the key column that contains the year, for answers without one (`May
    /// 27`). hqdl never infers this column from its name.
    pub year: Option<String>,
    /// For a numeric column: the smallest and the largest value that can be true. `hqdl query
    /// --interval` requires it for SUM and AVG of the column.
    pub range: Option<[f64; 2]>,
    /// One-to-many: the values go into a separate table.
    pub many: Option<ManyTable>,
    /// Answers that mean that the model does not know a value, instead of `?`, `unknown`, `n/a` and
    /// similar. Default: those of `[model]`.
    pub unknown: Option<Vec<String>>,
    /// Whether a query may compare the column with a word that is not in `values`. hqdl asks the
    /// model once which values mean the same.
    #[serde(default)]
    pub classify: bool,
    /// Natural-language questions that this column answers.
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
    /// The values.
    pub list: Option<Vec<Literal>>,
    /// Whether other values are allowed too.
    pub open: Option<bool>,
}

/// `many = { table = "…", column = "…" }`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct ManyTable {
    /// Name of the table with the values. Its rows reference the expansion by its key.
    pub table: String,
    /// Name of the column that contains the value.
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
    /// The question, with placeholders `{value}`, `{number}` or `{date}`.
    pub ask: String,
    /// The SQL that answers the question, with the same placeholders.
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
