//! From a spec as written to a spec one can work with: every name looked up,
//! every SELECT prepared, every value list loaded, all problems at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use super::checker::Checker;
use super::file::{
    self, ColumnTable, ExpansionTable, Literal, Provider, QuestionField, ShotCell, ShotsField,
    SourceField, SpecFile, ValuesField,
};
use super::problem::{Problem, Problems, Severity, nearest};
use super::shape::{self, Step, Tree};
use super::{
    Binding, Column, Expansion, Limits, Many, ModelSettings, SLOTS, Shot, Source, SourceRows, Spec,
    ValueList,
};
use crate::cell::{CellValue, State};
use crate::key::{KeyColumns, ListHash, Meaning};
use crate::value::Value;

/// Rows that share a request when neither the spec nor a flag says.
pub const ROWS_PER_REQUEST: u32 = 20;
/// Requests in flight when neither the spec nor a flag says.
pub const CONCURRENCY: u32 = 16;
/// Shots taken from a SELECT without a limit.
const SHOTS: u32 = 5;

/// What a spec is checked against: the schema and the rows of a database.
pub trait Catalog {
    /// Names of all tables and views.
    fn tables(&self) -> Vec<String>;
    /// Columns of a table or view with their declared types; `None` when there is none.
    fn columns(&self, table: &str) -> Option<Vec<(String, Option<String>)>>;
    /// Whether hqdl made the table or view of that name.
    fn made_by_hqdl(&self, table: &str) -> bool;
    /// Column names of a read-only SELECT.
    ///
    /// # Errors
    /// `SQLite`'s message when it does not prepare, or writes.
    fn prepare(&self, sql: &str) -> Result<Vec<String>, String>;
    /// Rows of a read-only SELECT, at most `limit`.
    ///
    /// # Errors
    /// `SQLite`'s message.
    fn select(&self, sql: &str, limit: usize) -> Result<Vec<Vec<Value>>, String>;
}

/// Why a spec could not even be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read spec {}: {error}", path.display())]
    File {
        /// The spec.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The text is not TOML.
    #[error(transparent)]
    Problems(#[from] Problems),
}

/// A spec whose shape was read, before it meets its database.
#[derive(Debug, Clone)]
pub struct Draft {
    path: PathBuf,
    text: String,
    /// The settings, open to flags that win over the spec.
    pub file: SpecFile,
    shape_problems: Vec<(shape::Path, Problem)>,
    /// Paths given by flags are relative to the working directory.
    database: Option<PathBuf>,
    output: Option<PathBuf>,
    recordings: Option<Vec<PathBuf>>,
}

impl Draft {
    /// Reads a spec file.
    ///
    /// # Errors
    /// [`ReadError`] when it cannot be read or is not TOML; what is wrong with
    /// its shape is told by [`Draft::check`], together with everything else.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ReadError::File { path: path.to_owned(), error })?;
        Ok(Self::parse(path, text)?)
    }

    /// Reads a spec from its text; `path` is where its relative paths start.
    ///
    /// # Errors
    /// [`Problems`] when it is not TOML.
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
            }),
            // Not reached while the schema is made from the types; if it were,
            // the shape's own problems are the best that can be said.
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

    /// Takes another database than the spec's.
    pub fn set_database(&mut self, path: PathBuf) {
        self.database = Some(path);
    }

    /// Writes to another place than the spec says.
    pub fn set_output(&mut self, path: PathBuf) {
        self.output = Some(path);
    }

    /// Takes other recordings than the spec's.
    pub fn set_recordings(&mut self, paths: Vec<PathBuf>) {
        self.recordings = Some(paths);
    }

    /// The database this draft is to be checked against.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.database.clone().unwrap_or_else(|| self.beside(&self.file.database.path))
    }

    /// Where the expanded tables go, when not into the database.
    #[must_use]
    pub fn output(&self) -> Option<PathBuf> {
        let said = self.file.database.output.as_deref().map(|o| self.beside(o));
        self.output.clone().or(said).filter(|o| *o != self.database())
    }

    /// Says that the database itself is the problem.
    #[must_use]
    pub fn database_problem(&self, message: &str, help: &str) -> Problems {
        let (tree, _) = Tree::parse(&self.text);
        let mut problems: Vec<Problem> =
            self.shape_problems.iter().map(|(_, p)| p.clone()).collect();
        problems.push(Problem {
            severity: Severity::Error,
            message: message.to_owned(),
            span: tree
                .span(&["database".into(), "path".into()])
                .filter(|_| self.database.is_none()),
            label: "this database".to_owned(),
            help: Some(help.to_owned()),
        });
        Problems { path: self.path.clone(), text: self.text.clone(), problems }
    }

    /// Checks the spec against its database. Warnings come with the spec.
    ///
    /// # Errors
    /// All [`Problems`] at once, warnings among them, when there is any error.
    pub fn check(&self, catalog: &dyn Catalog) -> Result<(Spec, Problems), Problems> {
        let (tree, _) = Tree::parse(&self.text);
        let mut check = Check {
            catalog,
            tree,
            shape: &self.shape_problems,
            problems: self.shape_problems.iter().map(|(_, p)| p.clone()).collect(),
            names: HashMap::new(),
            asked: HashMap::new(),
            secret: None,
        };
        let spec = Spec {
            path: self.path.clone(),
            database: self.database(),
            output: self.output(),
            model: self.model(&mut check),
            limits: self.limits(&mut check),
            routing_by_model: self.file.routing.model,
            expansions: self
                .file
                .expansion
                .iter()
                .enumerate()
                .map(|(n, e)| check.expansion(&[Step::from("expansion"), n.into()], e))
                .collect(),
        };
        if self.file.expansion.is_empty() {
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
        let mut text = self.text.clone();
        if let Some(span) = check.secret {
            text.replace_range(span.clone(), &"*".repeat(span.len()));
        }
        let problems = Problems { path: self.path.clone(), text, problems };
        if failed { Err(problems) } else { Ok((spec, problems)) }
    }

    /// A warning about the rows that a place in the spec leads to.
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

    /// Problems of this spec, from elsewhere.
    #[must_use]
    pub fn problems(&self, problems: Vec<Problem>) -> Problems {
        Problems { path: self.path.clone(), text: self.text.clone(), problems }
    }

    fn beside(&self, path: &str) -> PathBuf {
        tidy(&self.path.parent().unwrap_or(Path::new("")).join(path))
    }

    fn model(&self, check: &mut Check<'_>) -> ModelSettings {
        let model = &self.file.model;
        let at = |field: &str| [Step::from("model"), field.into()];
        if let Some(url) = &model.base_url
            && !(url.starts_with("http://") || url.starts_with("https://"))
        {
            check.error(
                &at("base_url"),
                &format!("`{url}` is no URL of an endpoint"),
                "expected http://… or https://…",
                "",
            );
        }
        if let Some(name) = &model.api_key_env {
            let variable = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !name.starts_with(|c: char| c.is_ascii_digit());
            if !variable {
                check.secret = check.tree.span(&at("api_key_env"));
                check.error(
                    &at("api_key_env"),
                    "`api_key_env` is not the name of an environment variable",
                    "expected a name such as OPENAI_API_KEY",
                    "a key itself is never in a spec; if this is one, revoke it",
                );
            }
        }
        if model.temperature.is_some_and(|t| !(0.0..=2.0).contains(&t)) {
            check.error(&at("temperature"), "`temperature` is out of range", "expected 0 to 2", "");
        }
        if let Some(price) = &model.price {
            let all = [
                ("input", price.input),
                ("output", price.output),
                ("cached_input", price.cached_input.unwrap_or(0.0)),
            ];
            for (field, usd) in all {
                if !(usd >= 0.0 && usd.is_finite()) {
                    let place = [Step::from("model"), "price".into(), field.into()];
                    check.error(
                        &place,
                        &format!("`{field}` is no price"),
                        "expected USD per million tokens, 0 or more",
                        "",
                    );
                }
            }
        }
        let recordings: Vec<PathBuf> = self
            .recordings
            .clone()
            .unwrap_or_else(|| model.recordings.iter().map(|r| self.beside(r)).collect());
        if model.provider == Provider::Replay {
            if recordings.is_empty() {
                check.error(
                    &at("provider"),
                    "provider \"replay\" has no recordings",
                    "",
                    "name files in `recordings`, or pass --recordings",
                );
            }
            for (n, path) in recordings.iter().enumerate() {
                if !path.is_file() {
                    let place = [Step::from("model"), "recordings".into(), n.into()];
                    check.error(
                        &place,
                        &format!("no recording at {}", path.display()),
                        "no such file",
                        "",
                    );
                }
            }
        } else if model.name.is_empty() {
            check.error(
                &at("name"),
                "the model has no name",
                "",
                "set `name` in [model], or pass --model",
            );
        }
        ModelSettings {
            provider: model.provider,
            name: if model.name.is_empty() { "replay".to_owned() } else { model.name.clone() },
            base_url: model.base_url.clone(),
            api_key_env: model.api_key_env.clone(),
            temperature: model.temperature,
            price: model.price,
            recordings,
            reuse: model.reuse,
        }
    }

    fn limits(&self, check: &mut Check<'_>) -> Limits {
        let limits = &self.file.limits;
        let at = |field: &str| [Step::from("limits"), field.into()];
        for (field, value) in [
            ("requests_per_minute", limits.requests_per_minute),
            ("tokens_per_minute", limits.tokens_per_minute),
            ("concurrency", limits.concurrency),
        ] {
            if value == Some(0) {
                check.error(
                    &at(field),
                    &format!("`{field}` is 0, so nothing could ever be asked"),
                    "expected at least 1",
                    "",
                );
            }
        }
        if limits.budget_usd.is_some_and(|usd| !(usd >= 0.0 && usd.is_finite())) {
            check.error(
                &at("budget_usd"),
                "`budget_usd` is no amount",
                "expected USD, 0 or more",
                "",
            );
        }
        Limits {
            requests_per_minute: limits.requests_per_minute,
            tokens_per_minute: limits.tokens_per_minute,
            concurrency: limits.concurrency.unwrap_or(CONCURRENCY).max(1),
            budget_usd: limits.budget_usd,
        }
    }
}

/// `specs/../examples/x` as `examples/x`, where that is the same place (a
/// symbolic link may make it another).
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

struct Check<'c> {
    catalog: &'c dyn Catalog,
    tree: Tree<'c>,
    shape: &'c [(shape::Path, Problem)],
    problems: Vec<Problem>,
    /// Tables the spec makes so far, lower case.
    names: HashMap<String, String>,
    /// Questions the spec binds so far, normalised.
    asked: HashMap<String, String>,
    /// What may be a key and is not to be shown.
    secret: Option<std::ops::Range<usize>>,
}

impl Check<'_> {
    fn error(&mut self, place: &[Step], message: &str, label: &str, help: &str) {
        // What follows from a wrong shape has been said there.
        if self.shape.iter().any(|(wrong, _)| place.starts_with(wrong)) {
            return;
        }
        self.problems.push(Problem {
            severity: Severity::Error,
            message: message.to_owned(),
            span: self.tree.span(place),
            label: label.to_owned(),
            help: Some(help.to_owned()).filter(|h| !h.is_empty()),
        });
    }

    fn warn(&mut self, place: &[Step], message: &str, help: &str) {
        self.problems.push(Problem {
            severity: Severity::Warning,
            message: message.to_owned(),
            span: self.tree.span(place),
            label: String::new(),
            help: Some(help.to_owned()).filter(|h| !h.is_empty()),
        });
    }

    fn expansion(&mut self, place: &[Step], e: &ExpansionTable) -> Expansion {
        let at = |field: &str| join(place, &[field.into()]);
        self.table_name(&at("name"), &e.name);
        if e.rows_per_request == Some(0) {
            self.error(
                &at("rows_per_request"),
                "`rows_per_request` is 0",
                "expected at least 1",
                "",
            );
        }
        let mut seen = HashSet::new();
        for (list, names) in [("key", &e.key), ("context", &e.context)] {
            for (n, name) in names.iter().enumerate() {
                let here = join(place, &[list.into(), n.into()]);
                if name.trim().is_empty() {
                    self.error(&here, &format!("a column of `{list}` has no name"), "", "");
                } else if !seen.insert(name.to_lowercase()) {
                    self.error(
                        &here,
                        &format!("`{name}` stands twice among key and context"),
                        "",
                        "",
                    );
                }
            }
        }
        if e.key.is_empty() {
            self.error(
                &at("key"),
                "the semantic key is empty",
                "expected the columns that identify an entity",
                "",
            );
        }
        if e.column.is_empty() {
            self.error(
                place,
                &format!("expansion `{}` has no column", e.name),
                "",
                "add an [[expansion.column]]",
            );
        }
        let mut names = HashSet::new();
        for (n, column) in e.column.iter().enumerate() {
            let here = join(place, &["column".into(), n.into(), "name".into()]);
            if column.name.trim().is_empty() {
                self.error(&here, "a column has no name", "", "");
            } else if e.key.iter().any(|k| k.eq_ignore_ascii_case(&column.name)) {
                self.error(
                    &here,
                    &format!("column `{}` has the name of a key column", column.name),
                    "",
                    "",
                );
            } else if !names.insert(column.name.to_lowercase()) {
                self.error(
                    &here,
                    &format!("column `{}` stands twice in `{}`", column.name, e.name),
                    "",
                    "",
                );
            }
        }
        let columns: Vec<Column> = e
            .column
            .iter()
            .enumerate()
            .map(|(n, c)| self.column(&join(place, &["column".into(), n.into()]), e, c))
            .collect();
        let (sources, key_types) = self.sources(place, e);
        let shots = self.shots(&at("shots"), e, &columns);
        Expansion {
            name: e.name.clone(),
            about: e.about.clone(),
            sources,
            key: KeyColumns::new(e.key.clone()),
            key_types,
            context: e.context.clone(),
            rows_per_request: e.rows_per_request.unwrap_or(ROWS_PER_REQUEST).max(1),
            format: e.format,
            shots,
            columns,
        }
    }

    /// A name for a table hqdl is to make: free, or made by hqdl before.
    fn table_name(&mut self, place: &[Step], name: &str) {
        let lower = name.to_lowercase();
        if name.trim().is_empty() {
            self.error(place, "an expansion needs a name", "", "");
        } else if lower.starts_with("hqdl_") || lower.starts_with("sqlite_") {
            self.error(
                place,
                &format!("the name `{name}` is reserved"),
                "names that begin with hqdl_ or sqlite_ are not free",
                "",
            );
        } else if self.names.insert(lower, name.to_owned()).is_some() {
            self.error(
                place,
                &format!("the table `{name}` is made twice"),
                "",
                "give one of the two another name",
            );
        } else if self.catalog.columns(name).is_some() && !self.catalog.made_by_hqdl(name) {
            self.error(
                place,
                &format!("the database has a table `{name}` that hqdl did not make"),
                "this name is taken",
                "choose another name; hqdl never touches a table of yours",
            );
        }
    }

    fn sources(
        &mut self,
        place: &[Step],
        e: &ExpansionTable,
    ) -> (Vec<Source>, Vec<Option<String>>) {
        let all: Vec<usize> = (0..e.column.len()).collect();
        let at = join(place, &["source".into()]);
        let mut sources = Vec::new();
        let mut types: Vec<Vec<Option<String>>> = vec![Vec::new(); e.key.len()];
        match &e.source {
            SourceField::One(text) => {
                let rows = if is_select(text) {
                    SourceRows::Select(text.clone())
                } else {
                    SourceRows::Table(text.clone())
                };
                self.source_columns(&at, place, e, &rows, &mut types);
                let name = matches!(rows, SourceRows::Table(_)).then(|| text.clone());
                sources.push(Source { name, rows, columns: all });
            }
            SourceField::Several(tables) => {
                if tables.is_empty() {
                    self.error(
                        &at,
                        &format!("expansion `{}` has no source", e.name),
                        "expected a table or a SELECT",
                        "",
                    );
                }
                for (n, table) in tables.iter().enumerate() {
                    let here = join(&at, &[n.into()]);
                    let rows = match (&table.table, &table.select) {
                        (Some(table), None) => SourceRows::Table(table.clone()),
                        (None, Some(select)) => SourceRows::Select(select.clone()),
                        (Some(_), Some(_)) => {
                            self.error(
                                &here,
                                "a source is a table or a SELECT, not both",
                                "",
                                "remove `table` or `select`",
                            );
                            continue;
                        }
                        (None, None) => {
                            self.error(&here, "a source needs `table` or `select`", "", "");
                            continue;
                        }
                    };
                    let field = if table.table.is_some() { "table" } else { "select" };
                    self.source_columns(&join(&here, &[field.into()]), place, e, &rows, &mut types);
                    let columns = match &table.columns {
                        None => all.clone(),
                        Some(names) => {
                            self.named_columns(&join(&here, &["columns".into()]), e, names)
                        }
                    };
                    let name = table.name.clone().or_else(|| table.table.clone());
                    sources.push(Source { name, rows, columns });
                }
                for (n, column) in e.column.iter().enumerate() {
                    if !sources.iter().any(|s| s.columns.contains(&n)) && !sources.is_empty() {
                        let here = join(place, &["column".into(), n.into(), "name".into()]);
                        self.error(
                            &here,
                            &format!("no source fills column `{}`", column.name),
                            "",
                            "add it to the `columns` of a source",
                        );
                    }
                }
            }
        }
        // A declared type holds only when all sources agree on it.
        let agreed = |mut seen: Vec<Option<String>>| {
            seen.dedup();
            if seen.len() == 1 { seen.pop().flatten() } else { None }
        };
        (sources, types.into_iter().map(agreed).collect())
    }

    fn named_columns(
        &mut self,
        place: &[Step],
        e: &ExpansionTable,
        names: &[String],
    ) -> Vec<usize> {
        let mut found = Vec::new();
        for (n, name) in names.iter().enumerate() {
            if let Some(at) = e.column.iter().position(|c| c.name.eq_ignore_ascii_case(name)) {
                found.push(at);
            } else {
                let help = did_you_mean(name, e.column.iter().map(|c| c.name.as_str()));
                self.error(
                    &join(place, &[n.into()]),
                    &format!("`{}` has no column `{name}`", e.name),
                    "no such column",
                    &help,
                );
            }
        }
        found
    }

    /// Looks the key and context up in a source; collects the declared types
    /// of the key columns.
    fn source_columns(
        &mut self,
        here: &[Step],
        expansion: &[Step],
        e: &ExpansionTable,
        rows: &SourceRows,
        types: &mut [Vec<Option<String>>],
    ) {
        let known: Vec<(String, Option<String>)> = match rows {
            SourceRows::Table(table) => {
                if let Some(columns) = self.catalog.columns(table) {
                    columns
                } else {
                    let tables = self.catalog.tables();
                    let help = did_you_mean(table, tables.iter().map(String::as_str));
                    self.error(
                        here,
                        &format!("the database has no table `{table}`"),
                        "no such table",
                        &help,
                    );
                    return;
                }
            }
            SourceRows::Select(sql) => match self.catalog.prepare(sql) {
                Ok(names) => names.into_iter().map(|n| (n, None)).collect(),
                Err(message) => {
                    self.error(
                        here,
                        &format!("the SELECT of this source does not work: {message}"),
                        "SQLite refuses this",
                        "",
                    );
                    return;
                }
            },
        };
        let name = match rows {
            SourceRows::Table(table) => format!("table `{table}`"),
            SourceRows::Select(_) => "this SELECT".to_owned(),
        };
        for (list, columns) in [("key", &e.key), ("context", &e.context)] {
            for (n, column) in columns.iter().enumerate() {
                let found = known.iter().find(|(k, _)| k.eq_ignore_ascii_case(column));
                match found {
                    Some((_, declared)) if list == "key" => {
                        types[n].push(declared.clone());
                    }
                    Some(_) => {}
                    None => {
                        let place = join(expansion, &[list.into(), n.into()]);
                        let help = did_you_mean(column, known.iter().map(|(k, _)| k.as_str()));
                        self.error(
                            &place,
                            &format!("{name} has no column `{column}`"),
                            "no such column",
                            &help,
                        );
                    }
                }
            }
        }
    }

    fn column(&mut self, place: &[Step], e: &ExpansionTable, c: &ColumnTable) -> Column {
        let at = |field: &str| join(place, &[field.into()]);
        let values = c.values.as_ref().map(|v| self.values(&at("values"), c, v));
        if values.is_none() && c.open.is_some() {
            self.error(
                &at("open"),
                &format!("column `{}` is `open` but has no `values`", c.name),
                "",
                "",
            );
        }
        if let Some(many) = &c.many {
            self.table_name(&at("many"), &many.table);
            if many.column.trim().is_empty() {
                self.error(&at("many"), "the one-to-many table needs a `column`", "", "");
            } else if e.key.iter().any(|k| k.eq_ignore_ascii_case(&many.column)) {
                self.error(
                    &at("many"),
                    &format!("`{}` has the name of a key column", many.column),
                    "",
                    "",
                );
            }
        }
        let meaning = Meaning {
            key: {
                let mut key = e.key.clone();
                key.sort();
                key
            },
            column: c.name.clone(),
            kind: c.kind.name().to_owned(),
            about: c.about.clone(),
            many: c.many.is_some(),
            list: match &values {
                None => "none",
                Some(v) if v.open => "open",
                Some(_) => "closed",
            }
            .to_owned(),
        };
        let bindings = c
            .questions
            .iter()
            .enumerate()
            .map(|(n, q)| self.binding(&join(place, &["questions".into(), n.into()]), e, c, q))
            .collect();
        Column {
            name: c.name.clone(),
            kind: c.kind,
            about: c.about.clone(),
            values,
            many: c
                .many
                .as_ref()
                .map(|m| Many { table: m.table.clone(), column: m.column.clone() }),
            bindings,
            fingerprint: meaning.fingerprint(),
            meaning,
        }
    }

    fn values(&mut self, place: &[Step], c: &ColumnTable, field: &ValuesField) -> ValueList {
        let (found, open): (Vec<Value>, Option<bool>) = match field {
            ValuesField::List(list) => (list.iter().map(literal).collect(), None),
            ValuesField::Table(table) => {
                let found = match (&table.sql, &table.list) {
                    (Some(sql), None) => {
                        let here = join(place, &["sql".into()]);
                        match self.values_of(&here, sql) {
                            Some(found) => found,
                            // So that the list is not called empty or unfit too.
                            None => {
                                return ValueList {
                                    values: Vec::new(),
                                    open: true,
                                    hash: ListHash::of(&[]),
                                };
                            }
                        }
                    }
                    (None, Some(list)) => list.iter().map(literal).collect(),
                    _ => {
                        self.error(place, "`values` needs either `sql` or `list`", "", "");
                        return ValueList {
                            values: Vec::new(),
                            open: true,
                            hash: ListHash::of(&[]),
                        };
                    }
                };
                (found, table.open)
            }
        };
        let open = c.open.or(open).unwrap_or(false);
        let mut seen = HashSet::new();
        let values: Vec<String> = found
            .iter()
            .filter_map(|v| v.text().map(std::borrow::Cow::into_owned))
            .filter(|v| seen.insert(v.clone()))
            .collect();
        if values.is_empty() {
            self.error(
                place,
                &format!("the value list of `{}` is empty", c.name),
                "expected at least one value",
                "",
            );
        }
        let unfit = values.iter().find(|v| Checker::coerce(c.kind, v).is_none());
        if let Some(unfit) = unfit {
            self.error(
                place,
                &format!(
                    "the value list of `{}` holds \"{unfit}\", which is no {}",
                    c.name,
                    c.kind.name()
                ),
                "",
                "",
            );
        }
        ValueList { hash: ListHash::of(&values), values, open }
    }

    fn values_of(&mut self, place: &[Step], sql: &str) -> Option<Vec<Value>> {
        match self.catalog.prepare(sql) {
            Err(message) => {
                self.error(
                    place,
                    &format!("the SELECT of this value list does not work: {message}"),
                    "SQLite refuses this",
                    "",
                );
            }
            Ok(columns) if columns.len() != 1 => {
                self.error(
                    place,
                    &format!("a value list is one column, this SELECT yields {}", columns.len()),
                    "expected one column",
                    "",
                );
            }
            Ok(_) => match self.catalog.select(sql, usize::MAX) {
                Ok(rows) => return Some(rows.into_iter().flatten().collect()),
                Err(message) => {
                    self.error(
                        place,
                        &format!("the SELECT of this value list failed: {message}"),
                        "",
                        "",
                    );
                }
            },
        }
        None
    }

    fn binding(
        &mut self,
        place: &[Step],
        e: &ExpansionTable,
        c: &ColumnTable,
        q: &QuestionField,
    ) -> Binding {
        let (ask, sql) = match q {
            QuestionField::Plain(ask) => (ask.clone(), None),
            QuestionField::Bound(table) => (table.ask.clone(), Some(table.sql.clone())),
        };
        let normal: String = ask
            .to_lowercase()
            .split(|c: char| !(c.is_alphanumeric() || c == '{' || c == '}'))
            .filter(|w| !w.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        if normal.is_empty() {
            self.error(place, "a question is empty", "", "");
        }
        if let Some(before) =
            self.asked.insert(format!("{}\u{0}{normal}", e.key.join("\u{0}")), c.name.clone())
        {
            self.error(
                place,
                &format!("the question \"{ask}\" is asked of `{before}` too"),
                "a question leads to one column",
                "",
            );
        }
        let slots =
            |text: &str| -> Vec<&str> { SLOTS.into_iter().filter(|s| text.contains(s)).collect() };
        match &sql {
            None if !slots(&ask).is_empty() => {
                self.error(
                    place,
                    &format!("the question \"{ask}\" has a slot but no SQL to put it in"),
                    "",
                    "write { ask = \"…\", sql = \"…\" }",
                );
            }
            None => {}
            Some(sql) => {
                for slot in slots(&ask) {
                    if !sql.contains(slot) {
                        self.error(
                            place,
                            &format!("{slot} stands in the question but not in its SQL"),
                            "",
                            "",
                        );
                    }
                }
                for slot in slots(sql) {
                    if !ask.contains(slot) {
                        self.error(
                            place,
                            &format!("{slot} stands in the SQL but not in the question"),
                            "",
                            "",
                        );
                    }
                }
                if let Err(message) = self.catalog.prepare(&binding_probe(e, c, sql)) {
                    self.error(
                        place,
                        &format!("the SQL of \"{ask}\" does not work: {message}"),
                        "SQLite refuses this",
                        "",
                    );
                }
            }
        }
        Binding { ask, sql }
    }

    fn shots(&mut self, place: &[Step], e: &ExpansionTable, columns: &[Column]) -> Vec<Shot> {
        match &e.shots {
            None => Vec::new(),
            Some(ShotsField::Rows(rows)) => rows
                .iter()
                .enumerate()
                .filter_map(|(n, row)| self.shot(&join(place, &[n.into()]), e, columns, row))
                .collect(),
            Some(ShotsField::Sql(shots)) => {
                let here = join(place, &["sql".into()]);
                let names = match self.catalog.prepare(&shots.sql) {
                    Ok(names) => names,
                    Err(message) => {
                        self.error(
                            &here,
                            &format!("the SELECT of the shots does not work: {message}"),
                            "SQLite refuses this",
                            "",
                        );
                        return Vec::new();
                    }
                };
                let limit = shots.limit.unwrap_or(SHOTS) as usize;
                match self.catalog.select(&shots.sql, limit) {
                    Err(message) => {
                        self.error(
                            &here,
                            &format!("the SELECT of the shots failed: {message}"),
                            "",
                            "",
                        );
                        Vec::new()
                    }
                    Ok(rows) => rows
                        .into_iter()
                        .filter_map(|row| {
                            let row: BTreeMap<String, ShotCell> = names
                                .iter()
                                .cloned()
                                .zip(row)
                                .filter_map(|(n, v)| Some((n, shot_cell(v)?)))
                                .collect();
                            self.shot(&here, e, columns, &row)
                        })
                        .collect(),
                }
            }
        }
    }

    fn shot(
        &mut self,
        place: &[Step],
        e: &ExpansionTable,
        columns: &[Column],
        row: &BTreeMap<String, ShotCell>,
    ) -> Option<Shot> {
        let find =
            |name: &str| row.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
        let scalar = |name: &String| match find(name) {
            Some(ShotCell::One(one)) => literal(one),
            Some(ShotCell::Many(_)) | None => Value::Null,
        };
        let names: Vec<&str> = e
            .key
            .iter()
            .chain(&e.context)
            .map(String::as_str)
            .chain(e.column.iter().map(|c| c.name.as_str()))
            .chain(e.column.iter().filter_map(|c| c.many.as_ref().map(|m| m.column.as_str())))
            .collect();
        for name in row.keys() {
            if !names.iter().any(|n| n.eq_ignore_ascii_case(name)) {
                let help = did_you_mean(name, names.iter().copied());
                let here = join(place, &[name.as_str().into()]);
                self.error(
                    &here,
                    &format!("the shot has `{name}`, which is neither key, context nor column"),
                    "no such column",
                    &help,
                );
            }
        }
        if e.key.iter().all(|k| find(k).is_none()) {
            self.error(
                place,
                "a shot needs the key columns",
                &format!("expected {}", e.key.join(", ")),
                "",
            );
            return None;
        }
        let mut cells = Vec::new();
        let mut shows = false;
        for column in columns {
            let given =
                find(&column.name).or_else(|| column.many.as_ref().and_then(|m| find(&m.column)));
            let text: Option<Vec<String>> = given.map(|g| match g {
                ShotCell::One(one) => vec![literal(one).to_string()],
                ShotCell::Many(many) => many.iter().map(|l| literal(l).to_string()).collect(),
            });
            let Some(text) = text else {
                cells.push(CellValue::Nothing);
                continue;
            };
            shows = true;
            let checker = Checker::new(column);
            let answer = match given {
                Some(ShotCell::Many(_)) => checker.list(&text),
                _ => checker.text(&text[0]),
            };
            if answer.state == State::Ok {
                cells.push(answer.value);
            } else {
                let here = join(place, &[column.name.as_str().into()]);
                self.error(
                    &here,
                    &format!(
                        "a shot breaks its own column: `{}` cannot be \"{}\"",
                        column.name,
                        text.join(", ")
                    ),
                    &format!("this is {}", answer.state.name()),
                    "shots show the model what a right answer looks like",
                );
                cells.push(CellValue::Nothing);
            }
        }
        if !shows {
            self.warn(place, "a shot shows no column", "give it the values of some columns");
        }
        Some(Shot {
            key: e.key.iter().map(scalar).collect(),
            context: e.context.iter().map(scalar).collect(),
            cells,
        })
    }
}

/// A SELECT that prepares exactly when the SQL of a binding makes sense over
/// its column: `EXISTS {value}` asks whether a list holds a value, all other
/// SQL is an expression over the expansion's columns (over the one-to-many
/// table's, for such a column).
fn binding_probe(e: &ExpansionTable, c: &ColumnTable, sql: &str) -> String {
    let mut names: Vec<&str> = e.key.iter().map(String::as_str).collect();
    match &c.many {
        Some(many) => names.push(&many.column),
        None => names.extend(e.column.iter().filter(|c| c.many.is_none()).map(|c| c.name.as_str())),
    }
    let row: Vec<String> =
        names.iter().map(|n| format!("NULL AS {}", crate::sql::name(n))).collect();
    let rest = sql.trim();
    let exists = rest.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"));
    let mut expression = match &c.many {
        Some(many) if exists && !rest[6..].trim_start().starts_with('(') => {
            format!("{} = {}", crate::sql::name(&many.column), &rest[6..])
        }
        _ => rest.to_owned(),
    };
    for slot in SLOTS {
        expression = expression.replace(slot, "(NULL)");
    }
    format!("SELECT ({expression}) FROM (SELECT {})", row.join(", "))
}

fn join(place: &[Step], more: &[Step]) -> Vec<Step> {
    [place, more].concat()
}

fn is_select(text: &str) -> bool {
    let first =
        text.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    text.trim().contains(char::is_whitespace)
        && ["select", "with", "values"].iter().any(|k| first.eq_ignore_ascii_case(k))
}

fn literal(literal: &Literal) -> Value {
    match literal {
        Literal::Boolean(b) => Value::Integer(i64::from(*b)),
        Literal::Integer(i) => Value::Integer(*i),
        Literal::Real(r) => Value::Real(*r),
        Literal::Text(text) => Value::Text(text.clone()),
    }
}

/// A cell of a selected shot; a JSON array is a list, NULL is left out.
fn shot_cell(value: Value) -> Option<ShotCell> {
    let one = match value {
        Value::Null => return None,
        Value::Integer(i) => Literal::Integer(i),
        Value::Real(r) => Literal::Real(r),
        Value::Text(text) => {
            if let Ok(serde_json::Value::Array(items)) = serde_json::from_str(&text) {
                let items = items.iter().map(|i| Literal::Text(Value::from_json(i).to_string()));
                return Some(ShotCell::Many(items.collect()));
            }
            Literal::Text(text)
        }
    };
    Some(ShotCell::One(one))
}

fn did_you_mean<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(wrong, known).map(|n| format!("did you mean `{n}`?")).unwrap_or_default()
}
