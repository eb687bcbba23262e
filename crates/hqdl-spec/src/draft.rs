//! Parsed spec before its database check; flags may still change it.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::check::{Catalog, Check, embeddings};
use super::file::{self, SpecFile};
use super::secret::without_keys;
use super::shape::{self, Step, Tree};
use super::{BatchLimits, Images, Limits, Spec};
use hqdl_values::problem::{Problem, Problems, Severity};

/// Default number of requests in flight.
pub const CONCURRENCY: u32 = 16;

/// Default token limit of the rows that one question may cover.
pub const CONTEXT_TOKENS: u64 = 100_000;
/// Default token limit of a document excerpt for a question: some pages.
const PASSAGE_TOKENS: u64 = 4000;

/// Maximum requests and bytes of one batch at `OpenAI`.
const BATCH: (u32, u64) = (50_000, 200_000_000);
/// Default maximum pause between two polls of a batch.
const BATCH_POLL: Duration = Duration::from_secs(60);

/// Reason why a spec cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read spec {}: {}", path.display(), hqdl_values::format::io_reason(error))]
    File {
        /// Path of the spec.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The path is a directory.
    #[error("{} is a directory, not a spec", _0.display())]
    Directory(PathBuf),
    /// The file is a database.
    #[error("{} is a SQLite database, not a spec", _0.display())]
    Database(PathBuf),
    /// The file is not UTF-8 text.
    #[error("{} is not UTF-8 text, so it is not a spec", _0.display())]
    NotText(PathBuf),
    /// The text is not TOML.
    #[error(transparent)]
    Problems(#[from] Problems),
}

impl ReadError {
    /// Classifies the file that is not a spec, if possible.
    fn of(path: &Path, error: std::io::Error) -> Self {
        let path = path.to_owned();
        let is_database = || {
            let mut magic = [0; 16];
            let read = std::fs::File::open(&path).and_then(|mut f| f.read_exact(&mut magic));
            read.is_ok() && magic.starts_with(b"SQLite format 3")
        };
        match error.kind() {
            std::io::ErrorKind::IsADirectory => Self::Directory(path),
            std::io::ErrorKind::InvalidData if is_database() => Self::Database(path),
            std::io::ErrorKind::InvalidData => Self::NotText(path),
            _ => Self::File { path, error },
        }
    }
}

/// Parsed spec that matches the schema and has not been checked against its database.
#[derive(Debug, Clone)]
pub struct Draft {
    path: PathBuf,
    text: String,
    /// Settings; flags that override the spec change them.
    pub file: SpecFile,
    shape_problems: Vec<(shape::Path, Problem)>,
    /// Paths of flags, relative to the working directory.
    database: Option<PathBuf>,
    output: Option<PathBuf>,
    pub(super) recordings: Option<Vec<PathBuf>>,
    /// Whether flags select one model for all requests, regardless of the spec.
    pub(super) one_model: bool,
    /// Whether there is no file. The spec may then lack expansions, and a model.
    pub(super) bare: bool,
    /// Whether a spec with a file may lack expansions, because a query needs none.
    for_queries: bool,
    /// Whether all prices are ignored.
    pub(super) ignores_prices: bool,
}

impl Draft {
    /// Reads a spec file.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if it cannot be read or is not TOML. Schema violations are reported
    /// by [`Draft::check`], together with all other problems.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = super::text_of(path).map_err(|error| ReadError::of(path, error))?;
        Ok(Self::parse(path, text)?)
    }

    /// Parses a spec from its text; relative paths start at `path`.
    ///
    /// # Errors
    /// Returns [`Problems`] if it is not TOML.
    pub fn parse(path: &Path, text: String) -> Result<Self, Problems> {
        let (tree, errors) = Tree::parse(&text);
        if !errors.is_empty() {
            drop(tree);
            return Err(Problems { path: path.to_owned(), text, problems: errors });
        }
        let shape = tree.check(&file::json_schema());
        drop(tree);
        match serde_json::from_value(shape.mended) {
            Ok(file) => Ok(Self {
                path: path.to_owned(),
                text,
                file,
                shape_problems: shape.problems,
                database: None,
                output: None,
                recordings: None,
                one_model: false,
                bare: false,
                for_queries: false,
                ignores_prices: false,
            }),
            // Unreachable while the schema is generated from the types. If it happens, the schema
            // violations are the best available report.
            Err(error) => {
                let mut problems: Vec<Problem> = shape.problems.into_iter().map(|p| p.1).collect();
                problems.push(Problem {
                    severity: Severity::Error,
                    message: error.to_string(),
                    span: None,
                    label: String::new(),
                    help: None,
                });
                Err(Problems { path: path.to_owned(), text, problems })
            }
        }
    }

    /// Returns a spec without a file, for a query over an existing database. It may lack
    /// expansions, and a model until a request is needed.
    #[must_use]
    pub fn bare(database: PathBuf) -> Self {
        let full = database.canonicalize().unwrap_or_else(|_| database.clone());
        // Name of its runs in the journal; there is no such file.
        let mut path = full.into_os_string();
        path.push(".query");
        Self {
            path: path.into(),
            text: String::new(),
            file: SpecFile::bare(&database),
            shape_problems: Vec::new(),
            database: Some(database),
            output: None,
            recordings: None,
            one_model: false,
            bare: true,
            for_queries: false,
            ignores_prices: false,
        }
    }

    /// Returns the file it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets another database than the spec's.
    pub fn set_database(&mut self, path: PathBuf) {
        self.database = Some(path);
    }

    /// Sets another output than the spec's.
    pub fn set_output(&mut self, path: PathBuf) {
        self.output = Some(path);
    }

    /// Sets other recordings than the spec's.
    pub fn set_recordings(&mut self, paths: Vec<PathBuf>) {
        self.recordings = Some(paths);
    }

    /// Sends all requests to the model in `[model]`, regardless of the spec.
    pub fn ask_one_model(&mut self) {
        self.one_model = true;
    }

    /// Ignores all prices, including those of the price book, because the answers are not billed.
    pub fn ignore_prices(&mut self) {
        self.ignores_prices = true;
    }

    /// Returns the database that this spec is checked against.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        if let Some(database) = &self.database {
            return database.clone();
        }
        match (&self.file.database.path, self.url()) {
            (Some(path), _) => self.beside(path),
            (None, url) => PathBuf::from(url.unwrap_or_default()),
        }
    }

    /// Returns the URL of the spec's server, with the schema of the published tables.
    fn url(&self) -> Option<String> {
        let database = &self.file.database;
        let (url, schema) = (database.url.as_ref()?, database.schema.as_deref());
        let Some(schema) = schema else { return Some(url.clone()) };
        let mark = if url.contains('?') { '&' } else { '?' };
        let mut whole = format!("{url}{mark}schema=");
        for byte in schema.bytes() {
            match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' => whole.push(char::from(byte)),
                other => whole.push_str(&format!("%{other:02X}")),
            }
        }
        Some(whole)
    }

    /// Checks the `[database]` table.
    fn place(&self, check: &mut Check<'_>) {
        let said = &self.file.database;
        let at = |field: &str| [Step::from("database"), field.into()];
        if self.database.is_none() {
            match (&said.path, &said.url) {
                (Some(_), Some(_)) => check.error(
                    &at("url"),
                    "[database] has both `path` and `url`",
                    "keep only one of them",
                    "use `path` for a SQLite database, and `url` for PostgreSQL",
                ),
                (None, None) => check.error(
                    &["database".into()],
                    "[database] has no `path`",
                    "",
                    "name a SQLite database in `path`, or a PostgreSQL database in `url`",
                ),
                (None, Some(url)) if !super::is_server(Path::new(url)) => check.error(
                    &at("url"),
                    "`url` is not the URL of a PostgreSQL database",
                    "expected postgres://user@host/database",
                    "for a SQLite database use `path`",
                ),
                _ => {}
            }
        }
        let server = super::is_server(&self.database());
        if server && self.output().is_some() {
            check.error(
                &at("output"),
                "hqdl cannot publish into a copy of a database on a server",
                "",
                "name a `schema` for the expanded tables instead of an `output`",
            );
        }
        if said.schema.as_deref() == Some("") {
            check.error(&at("schema"), "`schema` is empty", "expected a name", "");
        } else if !server && said.schema.is_some() {
            check.error(
                &at("schema"),
                "a SQLite database has no schema",
                "",
                "remove `schema`, or name a PostgreSQL database in `url`",
            );
        }
    }

    /// Returns the alias files that the spec names.
    #[must_use]
    pub fn alias_files(&self) -> Vec<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let columns = self.file.expansion.iter().flat_map(|e| &e.column);
        let file = |c: &file::ColumnTable| match &c.aliases {
            Some(file::AliasesField::File(file)) => Some(folder.join(file)),
            _ => None,
        };
        columns.filter_map(file).collect()
    }

    /// Returns the database for the expanded tables, if it differs from the source.
    #[must_use]
    pub fn output(&self) -> Option<PathBuf> {
        let said = self.file.database.output.as_deref().map(|o| self.beside(o));
        self.output.clone().or(said).filter(|o| *o != self.database())
    }

    /// Returns the images that cells of the database refer to.
    fn images(&self) -> Images {
        let folder = self.file.database.images.as_deref().map(|folder| self.beside(folder));
        Images::of(folder.unwrap_or_else(|| {
            let database = self.database();
            // If the database is not a file, use the directory of the spec.
            let file = if super::is_server(&database) { &self.path } else { &database };
            let beside = file.parent().filter(|p| !p.as_os_str().is_empty());
            beside.unwrap_or(Path::new(".")).to_owned()
        }))
    }

    /// Returns a problem of the database itself, together with all problems that can be found
    /// without it.
    #[must_use]
    pub fn database_problem(&self, message: &str, help: &str) -> Problems {
        let mut all = match self.check(&Absent) {
            Ok((_, problems)) | Err(problems) => problems,
        };
        let said = |path: &shape::Path| path.first() == Some(&Step::from("database"));
        let place = &self.file.database;
        let nowhere = place.path.is_some() == place.url.is_some();
        let wrong = nowhere || self.shape_problems.iter().any(|(path, _)| said(path));
        if self.database.is_none() && wrong {
            return all;
        }
        // A URL may contain a password and is not shown.
        let field = if place.path.is_some() { "path" } else { "schema" };
        let (tree, _) = Tree::parse(&self.text);
        all.problems.push(Problem {
            severity: Severity::Error,
            message: message.to_owned(),
            span: tree.span(&["database".into(), field.into()]).filter(|_| self.database.is_none()),
            label: "this database".to_owned(),
            help: Some(help.to_owned()),
        });
        all.problems.sort_by_key(|p| p.span.as_ref().map_or(0, |s| s.start));
        all
    }

    /// Checks the spec against its database. Warnings are returned with the spec.
    ///
    /// # Errors
    /// Returns all [`Problems`], including warnings, if there is any error.
    pub fn check(&self, catalog: &dyn Catalog) -> Result<(Spec, Problems), Problems> {
        let (tree, _) = Tree::parse(&self.text);
        let mut check = Check {
            catalog,
            folder: self.path.parent().unwrap_or(Path::new("")),
            tree,
            shape: &self.shape_problems,
            problems: self.shape_problems.iter().map(|(_, p)| p.clone()).collect(),
            names: HashMap::new(),
            asked: HashMap::new(),
        };
        self.place(&mut check);
        let model = self.model(&mut check, None, &self.file.model);
        let images = self.images();
        let spec = Spec {
            path: self.path.clone(),
            database: self.database(),
            output: self.output(),
            models: self.models(&mut check, &model),
            model,
            limits: self.limits(&mut check),
            embeddings: embeddings(
                self.file.embeddings.as_ref(),
                &self.file.model,
                &self.file.limits,
                &mut check,
            ),
            routing_by_model: self.file.routing.model,
            expansions: check.expansions(&self.file, &images),
            images,
            ingredients: {
                let models: Vec<&str> = self.file.model.others.keys().map(String::as_str).collect();
                check.ingredients(&self.file.ingredient, &models)
            },
            kinds: check.kinds(&self.file.kind),
        };
        if self.file.expansion.is_empty() && !self.bare && !self.for_queries {
            check.error(
                &[],
                "the spec has no expansion",
                "",
                "add an [[expansion]] with a name, a source, a key and columns",
            );
        }
        let mut problems = check.problems;
        problems.sort_by_key(|p| p.span.as_ref().map_or(0, |s| s.start));
        let failed = problems.iter().any(|p| p.severity == Severity::Error);
        let problems = self.problems(problems);
        if failed { Err(problems) } else { Ok((spec, problems)) }
    }

    /// Returns the same spec for queries, which need no expansion: its ingredients and models are
    /// useful without one.
    #[must_use]
    pub fn for_queries(self) -> Self {
        Self { for_queries: true, ..self }
    }

    /// Returns a warning about the rows of an item of the spec.
    #[must_use]
    pub fn warning(&self, place: &[Step], message: String, help: &str) -> Problem {
        let (tree, _) = Tree::parse(&self.text);
        Problem {
            severity: Severity::Warning,
            message,
            span: tree.span(place),
            label: String::new(),
            help: Some(help.to_owned()),
        }
    }

    /// Returns problems of this spec that were found elsewhere.
    #[must_use]
    pub fn problems(&self, problems: Vec<Problem>) -> Problems {
        let path = if self.bare { self.database() } else { self.path.clone() };
        Problems { path, text: without_keys(&self.text), problems }
    }

    pub(super) fn beside(&self, path: &str) -> PathBuf {
        tidy(&self.path.parent().unwrap_or(Path::new("")).join(path))
    }

    fn limits(&self, check: &mut Check<'_>) -> Limits {
        let limits = &self.file.limits;
        let at = |field: &str| [Step::from("limits"), field.into()];
        for (field, value) in [
            ("requests_per_minute", limits.requests_per_minute.map(u64::from)),
            ("tokens_per_minute", limits.tokens_per_minute.map(u64::from)),
            ("concurrency", limits.concurrency.map(u64::from)),
            ("context_tokens", limits.context_tokens),
            ("passage_tokens", limits.passage_tokens),
        ] {
            if value == Some(0) {
                check.error(
                    &at(field),
                    &format!("`{field}` is 0, so hqdl could never send a request"),
                    "expected at least 1",
                    "",
                );
            }
        }
        for (field, usd) in
            [("budget_usd", limits.budget_usd), ("budget_usd_per_day", limits.budget_usd_per_day)]
        {
            if usd.is_some_and(|usd| !(usd >= 0.0 && usd.is_finite())) {
                check.error(
                    &at(field),
                    &format!("`{field}` is not a valid amount"),
                    "expected USD, 0 or more",
                    "",
                );
            } else if usd.is_some()
                && let Some((model, why)) = self.unpriced()
            {
                check.error(
                    &at(field),
                    &format!("hqdl cannot keep `{field}`: the model{model} has no price"),
                    &why,
                    "set `price` in [model] or pass --price IN,OUT (0,0 for a model on your own machine), or limit tokens with `budget_tokens`",
                );
            }
        }
        if limits.budget_usd.is_some() || limits.budget_usd_per_day.is_some() {
            self.unpriced_parameters(check);
        }
        Limits {
            requests_per_minute: limits.requests_per_minute,
            tokens_per_minute: limits.tokens_per_minute,
            per: limits.per,
            concurrency: limits.concurrency.unwrap_or(CONCURRENCY).max(1),
            budget_usd: limits.budget_usd,
            budget_usd_per_day: limits.budget_usd_per_day,
            budget_tokens: limits.budget_tokens,
            context_tokens: limits.context_tokens.unwrap_or(CONTEXT_TOKENS),
            passage_tokens: limits.passage_tokens.unwrap_or(PASSAGE_TOKENS),
            batches: self.batches(check),
        }
    }

    fn batches(&self, check: &mut Check<'_>) -> BatchLimits {
        let limits = &self.file.limits;
        let at = |field: &str| [Step::from("limits"), field.into()];
        let (requests, bytes) = BATCH;
        let most = [
            ("batch_requests", limits.batch_requests.map(u64::from), u64::from(requests)),
            ("batch_bytes", limits.batch_bytes, bytes),
        ];
        for (field, value, most) in most {
            if value.is_some_and(|v| v == 0 || v > most) {
                check.error(
                    &at(field),
                    &format!("`{field}` is out of range"),
                    &format!("expected 1 to {most}"),
                    "",
                );
            }
        }
        let poll = limits.batch_poll_seconds;
        let poll = poll.map(|s| Duration::try_from_secs_f64(s).ok().filter(|d| !d.is_zero()));
        if poll == Some(None) {
            check.error(
                &at("batch_poll_seconds"),
                "`batch_poll_seconds` is not a valid pause",
                "expected seconds, more than 0",
                "",
            );
        }
        BatchLimits {
            requests: limits.batch_requests.unwrap_or(requests).clamp(1, requests),
            bytes: limits.batch_bytes.unwrap_or(bytes).clamp(1, bytes),
            poll: poll.flatten().unwrap_or(BATCH_POLL),
        }
    }
}

/// Catalog without a database; checks that need one are skipped.
struct Absent;

impl Catalog for Absent {
    fn is_absent(&self) -> bool {
        true
    }

    fn tables(&self) -> Vec<String> {
        Vec::new()
    }

    fn columns(&self, _: &str) -> Option<Vec<(String, Option<String>)>> {
        None
    }

    fn made_by_hqdl(&self, _: &str) -> bool {
        false
    }

    fn prepare(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn select(&self, _: &str, _: usize) -> Result<Vec<Vec<hqdl_values::value::Value>>, String> {
        Ok(Vec::new())
    }
}

/// Simplifies `specs/../examples/x` to `examples/x`, if that is the same directory (a symbolic link
/// may lead elsewhere).
fn tidy(path: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        let plain =
            short.components().next_back().is_some_and(|c| matches!(c, Component::Normal(_)));
        match part {
            Component::ParentDir if plain => {
                short.pop();
            }
            Component::CurDir => {}
            other => short.push(other),
        }
    }
    let folder = |p: &Path| {
        let parent = p.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        parent.canonicalize().ok()
    };
    if folder(&short).is_some() && folder(&short) == folder(path) { short } else { path.to_owned() }
}
