//! Parsed spec before its database check; flags may still change it.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::check::{Catalog, SpecCheck, check_embeddings};
use super::file::{self, SpecFile};
use super::schema_check::{self, Step, Tree};
use super::secret::mask_secrets;
use super::{BatchLimits, Limits, MediaFiles, Spec};
use hqdl_values::problem::{Problem, Problems, Severity};

/// Default number of requests in flight.
pub const DEFAULT_CONCURRENCY: u32 = 16;

/// Default token limit of the rows that one question may cover.
pub const DEFAULT_CONTEXT_TOKENS: u64 = 100_000;
/// Default token limit of a document excerpt for a question: a few pages.
const DEFAULT_PASSAGE_TOKENS: u64 = 4000;

/// Maximum requests and bytes of one batch at `OpenAI`.
const MAX_BATCH: (u32, u64) = (50_000, 200_000_000);
/// Default maximum pause between two polls of a batch.
const DEFAULT_BATCH_POLL: Duration = Duration::from_secs(60);

/// Reason why a spec cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read spec {}: {}", path.display(), hqdl_values::format::describe_io_error(error))]
    File {
        /// Path of the spec.
        path: PathBuf,
        /// Error from the operating system.
        error: std::io::Error,
    },
    /// The path is a directory.
    #[error("{} is a directory, not a spec", _0.display())]
    Directory(PathBuf),
    /// The file is a database.
    #[error("{} is a SQLite database, not a spec", _0.display())]
    Database(PathBuf),
    /// The file is a CSV file.
    #[error("{} is a CSV file, not a spec", _0.display())]
    Csv(PathBuf),
    /// The file is not UTF-8 text.
    #[error("{} is not UTF-8 text, so it is not a spec", _0.display())]
    NotText(PathBuf),
    /// The text is not TOML.
    #[error(transparent)]
    Problems(#[from] Problems),
}

impl ReadError {
    /// Returns the error for a file that cannot be read as a spec, and names the kind of the file
    /// if possible.
    fn from_unreadable_file(path: &Path, error: std::io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            std::io::ErrorKind::IsADirectory => Self::Directory(path),
            std::io::ErrorKind::InvalidData if is_sqlite_file(&path) => Self::Database(path),
            std::io::ErrorKind::InvalidData => Self::NotText(path),
            _ => Self::File { path, error },
        }
    }
}

/// Parsed spec that matches the schema and has not been checked against its database.
#[derive(Debug, Clone)]
pub struct UncheckedSpec {
    path: PathBuf,
    text: String,
    /// Settings; flags that override the spec change them.
    pub file: SpecFile,
    schema_problems: Vec<(schema_check::Path, Problem)>,
    /// Paths from flags, relative to the working directory.
    database: Option<PathBuf>,
    output: Option<PathBuf>,
    /// Whether the budget of a run comes from a flag.
    has_budget_flag: bool,
    pub(super) recordings: Option<Vec<PathBuf>>,
    /// Whether flags select one model for all requests, regardless of the spec.
    pub(super) uses_one_model: bool,
    /// Whether there is no file. The spec may then lack expansions and a model.
    pub(super) has_no_file: bool,
    /// Whether a spec with a file may lack expansions, because a query needs none.
    allows_no_expansions: bool,
    /// Whether all prices are ignored.
    pub(super) ignores_prices: bool,
}

impl UncheckedSpec {
    /// Reads a spec file.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if it cannot be read or is not TOML. Schema violations are reported
    /// by [`UncheckedSpec::check`], together with all other problems.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = super::read_spec_text(path)
            .map_err(|error| ReadError::from_unreadable_file(path, error))?;
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
            return Err(ReadError::Csv(path.to_owned()));
        }
        Ok(Self::parse(path, text)?)
    }

    /// Parses a spec from its text. Relative paths are resolved against the directory of `path`.
    ///
    /// # Errors
    /// Returns [`Problems`] if the text is not TOML.
    pub fn parse(path: &Path, text: String) -> Result<Self, Problems> {
        let (tree, errors) = Tree::parse(&text);
        if !errors.is_empty() {
            drop(tree);
            let text = mask_secrets(&text);
            return Err(Problems { path: path.to_owned(), text, problems: errors });
        }
        let schema_check = tree.check_schema(&file::json_schema());
        drop(tree);
        match serde_json::from_value(schema_check.repaired) {
            Ok(file) => Ok(Self {
                path: path.to_owned(),
                text,
                file,
                schema_problems: schema_check.problems,
                database: None,
                output: None,
                has_budget_flag: false,
                recordings: None,
                uses_one_model: false,
                has_no_file: false,
                allows_no_expansions: false,
                ignores_prices: false,
            }),
            // Unreachable while the schema is generated from the types. If it happens, the schema
            // violations are the best available report.
            Err(error) => {
                let mut problems: Vec<Problem> =
                    schema_check.problems.into_iter().map(|p| p.1).collect();
                problems.push(Problem {
                    severity: Severity::Error,
                    message: error.to_string(),
                    span: None,
                    label: String::new(),
                    help: None,
                });
                Err(Problems { path: path.to_owned(), text: mask_secrets(&text), problems })
            }
        }
    }

    /// Returns a spec without a file, for a query over an existing database. It may lack
    /// expansions, and a model until a request is needed.
    #[must_use]
    pub fn without_file(database: PathBuf) -> Self {
        let full_path = database.canonicalize().unwrap_or_else(|_| database.clone());
        // The path only names the spec's runs in the journal; no such file exists.
        let mut path = full_path.into_os_string();
        path.push(".query");
        Self {
            path: path.into(),
            text: String::new(),
            file: SpecFile::with_database(&database),
            schema_problems: Vec::new(),
            database: Some(database),
            output: None,
            has_budget_flag: false,
            recordings: None,
            uses_one_model: false,
            has_no_file: true,
            allows_no_expansions: false,
            ignores_prices: false,
        }
    }

    /// Returns the path of the file that the spec was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the spec's database.
    pub fn set_database(&mut self, path: PathBuf) {
        self.database = Some(path);
    }

    /// Replaces the spec's output.
    pub fn set_output(&mut self, path: PathBuf) {
        self.output = Some(path);
    }

    /// Replaces the spec's budget.
    pub fn set_budget_flag(&mut self, usd: f64) {
        self.file.limits.budget_usd = Some(usd);
        self.has_budget_flag = true;
    }

    /// Replaces the spec's recordings.
    pub fn set_recordings(&mut self, paths: Vec<PathBuf>) {
        self.recordings = Some(paths);
    }

    /// Sends all requests to the model in `[model]`, regardless of the spec.
    pub fn use_one_model(&mut self) {
        self.uses_one_model = true;
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
        match (&self.file.database.path, self.server_url()) {
            (Some(path), _) => self.resolve_path(path),
            (None, url) => PathBuf::from(url.unwrap_or_default()),
        }
    }

    /// Returns the URL of the spec's server, with the schema of the published tables.
    fn server_url(&self) -> Option<String> {
        let database = &self.file.database;
        let (url, schema) = (database.url.as_ref()?, database.schema.as_deref());
        let Some(schema) = schema else { return Some(url.clone()) };
        let separator = if url.contains('?') { '&' } else { '?' };
        let mut full_url = format!("{url}{separator}schema=");
        for byte in schema.bytes() {
            match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' => full_url.push(char::from(byte)),
                other => full_url.push_str(&format!("%{other:02X}")),
            }
        }
        Some(full_url)
    }

    fn check_database(&self, check: &mut SpecCheck<'_>) {
        let database = &self.file.database;
        let field_path = |field: &str| [Step::from("database"), field.into()];
        if self.database.is_none() {
            match (&database.path, &database.url) {
                (Some(_), Some(_)) => check.add_error(
                    &field_path("url"),
                    "[database] has both `path` and `url`",
                    "keep only one of them",
                    "use `path` for a SQLite database, and `url` for PostgreSQL",
                ),
                (None, None) => check.add_error(
                    &["database".into()],
                    "[database] has no `path`",
                    "",
                    "name a SQLite database in `path`, or a PostgreSQL database in `url`",
                ),
                (Some(path), None) if path.is_empty() => check.add_error(
                    &field_path("path"),
                    "`path` is empty",
                    "expected the path of a SQLite database, relative to the spec",
                    "",
                ),
                (None, Some(url)) if !super::is_server(Path::new(url)) => check.add_error(
                    &field_path("url"),
                    "`url` is not the URL of a PostgreSQL database",
                    "expected postgres://user@host/database",
                    "for a SQLite database use `path`",
                ),
                _ => {}
            }
        }
        for (field, folder) in [("media", &database.media), ("images", &database.images)] {
            let Some(folder) = folder.as_deref().map(|folder| self.resolve_path(folder)) else {
                continue;
            };
            if field == "images" && database.media.is_some() {
                let message = "`images` is the former name of `media`";
                check.add_error(&field_path(field), message, "", "remove `images`");
            }
            if !folder.is_dir() {
                check.add_error(
                    &field_path(field),
                    &format!("there is no directory {}", folder.display()),
                    "",
                    &format!("`{field}` names the directory of images and recordings, relative to the spec"),
                );
            }
        }
        let server = super::is_server(&self.database());
        if server && self.output().is_some() {
            check.add_error(
                &field_path("output"),
                "hqdl cannot publish a database on a server into files",
                "",
                if self.output.is_some() {
                    "remove --output; `schema` in [database] names the schema of the published tables"
                } else {
                    "name a `schema` for the published tables instead of an `output`"
                },
            );
        }
        if database.schema.as_deref() == Some("") {
            check.add_error(&field_path("schema"), "`schema` is empty", "expected a name", "");
        } else if !server && database.schema.is_some() {
            check.add_error(
                &field_path("schema"),
                "a SQLite database has no schema",
                "",
                "remove `schema`, or name a PostgreSQL database in `url`",
            );
        }
    }

    /// Returns the alias files that the spec names.
    #[must_use]
    pub fn list_alias_files(&self) -> Vec<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let columns = self.file.expansion.iter().flat_map(|e| &e.column);
        let alias_file = |c: &file::ColumnTable| match &c.aliases {
            Some(file::AliasesField::File(file)) => Some(folder.join(file)),
            _ => None,
        };
        columns.filter_map(alias_file).collect()
    }

    /// Returns the database for the expanded tables, if it differs from the source.
    #[must_use]
    pub fn output(&self) -> Option<PathBuf> {
        let resolve_output = |output: &str| {
            let mut path = self.resolve_path(output);
            if output.ends_with(std::path::is_separator) {
                // An empty part adds the separator again, which distinguishes a folder from a file.
                path.push("");
            }
            path
        };
        let stated = self.file.database.output.as_deref().map(resolve_output);
        self.output.clone().or(stated).filter(|o| *o != self.database())
    }

    /// Returns the media that cells of the database refer to.
    fn find_media(&self) -> MediaFiles {
        let database = &self.file.database;
        let folder = database.media.as_deref().or(database.images.as_deref());
        let folder = folder.map(|folder| self.resolve_path(folder));
        MediaFiles::from_folder(folder.unwrap_or_else(|| {
            let database = self.database();
            // If the database is not a file, use the directory of the spec.
            let base_file = if super::is_server(&database) { &self.path } else { &database };
            let directory = base_file.parent().filter(|p| !p.as_os_str().is_empty());
            directory.unwrap_or(Path::new(".")).to_owned()
        }))
    }

    /// Returns a problem with the database itself, together with all problems that can be found
    /// without reading it.
    #[must_use]
    pub fn find_problems_without_database(&self, message: &str, help: &str) -> Problems {
        let mut report = match self.check(&NoDatabase) {
            Ok((_, problems)) | Err(problems) => problems,
        };
        let is_in_database =
            |path: &schema_check::Path| path.first() == Some(&Step::from("database"));
        let database = &self.file.database;
        let is_ambiguous = database.path.is_some() == database.url.is_some();
        let is_unusable = database.path.as_deref() == Some("")
            || database.url.as_ref().is_some_and(|url| !super::is_server(Path::new(url)));
        let has_location_problem = is_ambiguous
            || is_unusable
            || self.schema_problems.iter().any(|(path, _)| is_in_database(path));
        if self.database.is_none() && has_location_problem {
            return report;
        }
        // The report masks passwords without changing the length of the text, so spans of the
        // original text apply to it.
        let field = if database.path.is_some() { "path" } else { "url" };
        let place: &[Step] = &["database".into(), field.into()];
        let (tree, _) = Tree::parse(&self.text);
        report.problems.push(Problem {
            severity: Severity::Error,
            message: message.to_owned(),
            span: tree.span(place).filter(|_| self.database.is_none()),
            label: "this database".to_owned(),
            help: Some(help.to_owned()),
        });
        report.problems.sort_by_key(|p| p.span.as_ref().map_or(0, |s| s.start));
        report
    }

    /// Checks the spec against its database. Warnings are returned with the spec.
    ///
    /// # Errors
    /// Returns all [`Problems`], including warnings, if there is any error.
    pub fn check(&self, catalog: &dyn Catalog) -> Result<(Spec, Problems), Problems> {
        let (tree, _) = Tree::parse(&self.text);
        let mut check = SpecCheck {
            catalog,
            folder: self.path.parent().unwrap_or(Path::new("")),
            tree,
            schema_problems: &self.schema_problems,
            problems: self.schema_problems.iter().map(|(_, p)| p.clone()).collect(),
            table_names: HashMap::new(),
            questions: HashMap::new(),
        };
        self.check_database(&mut check);
        let model = self.check_model(&mut check, None, &self.file.model);
        let media = self.find_media();
        let spec = Spec {
            path: self.path.clone(),
            database: self.database(),
            output: self.output(),
            models: self.check_models(&mut check, &model),
            model,
            limits: self.check_limits(&mut check),
            embeddings: check_embeddings(
                self.file.embeddings.as_ref(),
                &self.file.model,
                &self.file.limits,
                &mut check,
            ),
            routing_by_model: self.file.routing.model,
            expansions: check.check_expansions(&self.file, &media),
            media,
            ingredients: {
                let models: Vec<&str> = self.file.model.others.keys().map(String::as_str).collect();
                check.check_ingredients(&self.file.ingredient, &models)
            },
            kinds: check.check_kinds(&self.file.kind),
            ask: check.check_ask(&self.file.ask, &self.file.example),
        };
        check.check_media_providers(&spec);
        check.check_audio_prices(&spec);
        if self.file.expansion.is_empty() && !self.has_no_file && !self.allows_no_expansions {
            check.add_error(
                &["expansion".into()],
                "the spec has no expansion",
                "",
                "add an [[expansion]] with a name, a source, a key and columns",
            );
        }
        let mut problems = check.problems;
        // If `database` is not a table, the rest of the spec is in no table either.
        let is_no_table = |(path, problem): &&(schema_check::Path, Problem)| {
            path[..] == [Step::from("database")] && problem.message.starts_with("`database` is ")
        };
        if let Some((_, problem)) = self.schema_problems.iter().find(is_no_table) {
            problems = vec![problem.clone()];
        }
        problems.sort_by_key(|p| p.span.as_ref().map_or(0, |s| s.start));
        let has_errors = problems.iter().any(|p| p.severity == Severity::Error);
        let problems = self.add_source_text(problems);
        if has_errors { Err(problems) } else { Ok((spec, problems)) }
    }

    /// Returns the same spec, but allows it to have no expansions, because a query can use its
    /// ingredients and models without them.
    #[must_use]
    pub fn allow_no_expansions(self) -> Self {
        Self { allows_no_expansions: true, ..self }
    }

    /// Returns a warning that points to an item of the spec.
    #[must_use]
    pub fn warning_at(&self, path: &[Step], message: String, help: &str) -> Problem {
        let (tree, _) = Tree::parse(&self.text);
        Problem {
            severity: Severity::Warning,
            message,
            span: tree.span(path),
            label: String::new(),
            help: Some(help.to_owned()),
        }
    }

    /// Adds the path and text of this spec to problems that were found elsewhere.
    #[must_use]
    pub fn add_source_text(&self, problems: Vec<Problem>) -> Problems {
        let path = if self.has_no_file { self.database() } else { self.path.clone() };
        Problems { path, text: mask_secrets(&self.text), problems }
    }

    pub(super) fn resolve_path(&self, path: &str) -> PathBuf {
        simplify_path(&self.path.parent().unwrap_or(Path::new("")).join(path))
    }

    fn check_limits(&self, check: &mut SpecCheck<'_>) -> Limits {
        let limits = &self.file.limits;
        let field_path = |field: &str| [Step::from("limits"), field.into()];
        for (field, value) in [
            ("requests_per_minute", limits.requests_per_minute.map(u64::from)),
            ("tokens_per_minute", limits.tokens_per_minute.map(u64::from)),
            ("concurrency", limits.concurrency.map(u64::from)),
            ("context_tokens", limits.context_tokens),
            ("passage_tokens", limits.passage_tokens),
        ] {
            if value == Some(0) {
                let effect = match field {
                    "context_tokens" => "the model would see no rows",
                    "passage_tokens" => "the model would see no part of a document",
                    _ => "hqdl could never send a request",
                };
                check.add_error(
                    &field_path(field),
                    &format!("`{field}` is 0, so {effect}"),
                    "expected at least 1",
                    "",
                );
            }
        }
        for (field, usd) in
            [("budget_usd", limits.budget_usd), ("budget_usd_per_day", limits.budget_usd_per_day)]
        {
            if usd.is_some_and(|usd| !(usd >= 0.0 && usd.is_finite())) {
                check.add_error(
                    &field_path(field),
                    &format!("`{field}` is not a valid amount"),
                    "expected USD, 0 or more",
                    "",
                );
            } else if usd.is_some()
                && let Some((model, table, reason)) = self.find_unpriced_model()
            {
                let is_flag = self.has_budget_flag && field == "budget_usd";
                let budget = if is_flag { "--budget".to_owned() } else { format!("`{field}`") };
                check.add_error(
                    &field_path(field),
                    &format!("hqdl cannot keep {budget}: the model{model} has no price"),
                    &reason,
                    &format!(
                        "pass --price IN,OUT (0,0 for a model on your own machine), set `price` in {table} for its `name`, or limit tokens with `budget_tokens` in [limits]"
                    ),
                );
            }
        }
        if limits.budget_usd.is_some() || limits.budget_usd_per_day.is_some() {
            self.check_unpriced_parameters(check);
        }
        Limits {
            requests_per_minute: limits.requests_per_minute,
            tokens_per_minute: limits.tokens_per_minute,
            per: limits.per,
            concurrency: limits.concurrency.unwrap_or(DEFAULT_CONCURRENCY).max(1),
            budget_usd: limits.budget_usd,
            budget_usd_per_day: limits.budget_usd_per_day,
            budget_tokens: limits.budget_tokens,
            context_tokens: limits.context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS),
            passage_tokens: limits.passage_tokens.unwrap_or(DEFAULT_PASSAGE_TOKENS),
            batches: self.check_batch_limits(check),
        }
    }

    fn check_batch_limits(&self, check: &mut SpecCheck<'_>) -> BatchLimits {
        let limits = &self.file.limits;
        let field_path = |field: &str| [Step::from("limits"), field.into()];
        let (max_requests, max_bytes) = MAX_BATCH;
        let ranges = [
            ("batch_requests", limits.batch_requests.map(u64::from), u64::from(max_requests)),
            ("batch_bytes", limits.batch_bytes, max_bytes),
        ];
        for (field, value, max) in ranges {
            if value.is_some_and(|v| v == 0 || v > max) {
                check.add_error(
                    &field_path(field),
                    &format!("`{field}` is out of range"),
                    &format!("expected 1 to {max}"),
                    "",
                );
            }
        }
        let poll = limits.batch_poll_seconds;
        let poll = poll.map(|s| Duration::try_from_secs_f64(s).ok().filter(|d| !d.is_zero()));
        if poll == Some(None) {
            check.add_error(
                &field_path("batch_poll_seconds"),
                "`batch_poll_seconds` is not a valid pause",
                "expected seconds, more than 0",
                "",
            );
        }
        BatchLimits {
            requests: limits.batch_requests.unwrap_or(max_requests).clamp(1, max_requests),
            bytes: limits.batch_bytes.unwrap_or(max_bytes).clamp(1, max_bytes),
            poll: poll.flatten().unwrap_or(DEFAULT_BATCH_POLL),
        }
    }
}

/// Catalog without a database; checks that need one are skipped.
struct NoDatabase;

impl Catalog for NoDatabase {
    fn is_absent(&self) -> bool {
        true
    }

    fn table_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn table_columns(&self, _: &str) -> Option<Vec<(String, Option<String>)>> {
        None
    }

    fn is_created_by_hqdl(&self, _: &str) -> bool {
        false
    }

    fn list_select_columns(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn select_rows(
        &self,
        _: &str,
        _: usize,
    ) -> Result<Vec<Vec<hqdl_values::value::Value>>, String> {
        Ok(Vec::new())
    }
}

/// Simplifies `specs/../examples/x` to `examples/x`, if that is the same directory (a symbolic link
/// may lead elsewhere).
fn simplify_path(path: &Path) -> PathBuf {
    let mut simplified = PathBuf::new();
    for part in path.components() {
        let is_plain =
            simplified.components().next_back().is_some_and(|c| matches!(c, Component::Normal(_)));
        match part {
            Component::ParentDir if is_plain => {
                simplified.pop();
            }
            Component::CurDir => {}
            other => simplified.push(other),
        }
    }
    if simplified.as_os_str().is_empty() {
        return PathBuf::from(".");
    }
    let parent_directory = |p: &Path| {
        let parent = p.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        parent.canonicalize().ok()
    };
    if parent_directory(&simplified).is_some()
        && parent_directory(&simplified) == parent_directory(path)
    {
        simplified
    } else {
        path.to_owned()
    }
}

/// Returns whether a file begins like a `SQLite` database.
#[must_use]
pub fn is_sqlite_file(path: &Path) -> bool {
    let mut magic = [0; 16];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic.starts_with(b"SQLite format 3")
}
