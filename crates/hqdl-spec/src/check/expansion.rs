//! Checks expansions: their names, keys and sources.

use std::collections::HashSet;

use super::{SpecCheck, explain_rejection, format_suggestion, join_path};
use crate::file::{Echo, ExpansionTable, SourceField, SourceTable, SpecFile};
use crate::media::MediaFiles;
use crate::schema_check::Step;
use crate::{Column, Expansion, Source, SourceRows};
use hqdl_values::key::{CONTEXT_PART, KeyColumns};
use hqdl_values::problem::{Severity, find_nearest};

/// Default number of rows per request.
pub const DEFAULT_ROWS_PER_REQUEST: u32 = 20;

impl SpecCheck<'_> {
    pub(crate) fn check_expansions(
        &mut self,
        file: &SpecFile,
        media: &MediaFiles,
    ) -> Vec<Expansion> {
        let mut expansions = Vec::new();
        for (n, e) in file.expansion.iter().enumerate() {
            let path = [Step::from("expansion"), n.into()];
            let mut expansion = self.check_expansion(&path, e);
            expansion.media = self.check_media(&path, e);
            expansion.media_files = media.clone();
            expansion.evidence = self.check_evidence(&path, e, file);
            if expansion.evidence.is_some() {
                // A passage must not affect the answer about another row.
                expansion.rows_per_request = 1;
            }
            let model_path = join_path(&path, &["model".into()]);
            expansion.model =
                e.model.as_ref().and_then(|name| self.check_model_name(&model_path, name, file));
            expansion.echo = e.echo.or(file.model.echo).unwrap_or_default();
            for (c, (column, table)) in expansion.columns.iter_mut().zip(&e.column).enumerate() {
                let column_path = join_path(&path, &["column".into(), c.into()]);
                column.unknown = column.unknown.take().or_else(|| file.model.unknown.clone());
                column.model = table.model.as_ref().map(|name| {
                    let model_path = join_path(&column_path, &["model".into()]);
                    let other = self.check_model_name(&model_path, name, file);
                    other.unwrap_or_else(|| file.model.name.clone())
                });
                column.escalation = table.escalate.as_ref().map(|escalate| {
                    let first = column.model.as_deref().or(expansion.model.as_deref());
                    let escalate_path = join_path(&column_path, &["escalate".into()]);
                    self.check_escalation(&escalate_path, escalate, first, file)
                });
            }
            if let Some(escalate) = &e.escalate {
                let escalate_path = join_path(&path, &["escalate".into()]);
                let first = expansion.model.as_deref();
                let escalation = self.check_escalation(&escalate_path, escalate, first, file);
                for column in &mut expansion.columns {
                    // A column that the stronger model already answers needs no second answer from
                    // that model.
                    if column.escalation.is_none() && column.model.as_ref() != Some(&escalation.to)
                    {
                        column.escalation = Some(escalation.clone());
                    }
                }
            }
            expansions.push(expansion);
        }
        expansions
    }

    /// Checks the model that an expansion or a column names. Returns the name of its `[model.NAME]`
    /// table; `None` for the model of `[model]`.
    pub(super) fn check_model_name(
        &mut self,
        path: &[Step],
        name: &str,
        file: &SpecFile,
    ) -> Option<String> {
        if file.model.others.contains_key(name) {
            return Some(name.to_owned());
        }
        if name != file.model.name {
            let known: Vec<&str> = file.model.others.keys().map(String::as_str).collect();
            let help = match find_nearest(name, known.iter().copied()) {
                Some(suggestion) => format!("did you mean \"{suggestion}\"?"),
                None if known.is_empty() => format!("add a table [model.{name}] with its `name`"),
                None => {
                    let tables: Vec<String> =
                        known.iter().map(|name| format!("[model.{name}]")).collect();
                    format!("write one of {}, or add [model.{name}]", tables.join(", "))
                }
            };
            self.add_error(path, &format!("the spec has no [model.{name}]"), "", &help);
        }
        None
    }

    fn check_expansion(&mut self, path: &[Step], e: &ExpansionTable) -> Expansion {
        let field_path = |field: &str| join_path(path, &[field.into()]);
        let problems_before = self.problems.len();
        self.check_table_name(&field_path("name"), &e.name);
        if e.rows_per_request == Some(0) {
            self.add_error(
                &field_path("rows_per_request"),
                "`rows_per_request` is 0",
                "expected at least 1",
                "",
            );
        }
        self.check_row_columns(path, e);
        if e.key.is_empty() {
            self.add_error(
                &field_path("key"),
                "the key of the expansion is empty",
                "expected the columns that identify an entity",
                "",
            );
        }
        if e.column.is_empty() {
            self.add_error(
                path,
                &format!("expansion `{}` has no column", e.name),
                "",
                "add an [[expansion.column]]",
            );
        }
        self.check_column_names(path, e);
        let columns: Vec<Column> = e
            .column
            .iter()
            .enumerate()
            .map(|(n, c)| self.check_column(&join_path(path, &["column".into(), n.into()]), e, c))
            .collect();
        let (sources, key_types, key_parts) = self.check_sources(path, e);
        for view in sources.iter().filter_map(|s| s.name.as_ref()).map(|s| format!("{s}_expanded"))
        {
            if self.table_names.contains_key(&view.to_lowercase()) {
                self.add_error(
                    &field_path("source"),
                    &format!(
                        "the view `{view}` of this source has the same name as a table of the spec"
                    ),
                    "",
                    "rename that table",
                );
            }
        }
        // If the key or a column is wrong, the names in every shot are wrong, too.
        let checks_names = self.problems[problems_before..]
            .iter()
            .all(|p| p.severity != Severity::Error)
            && !self.schema_problems.iter().any(|(problem_path, _)| problem_path.starts_with(path));
        let shots = self.check_shots(&field_path("shots"), e, &columns, checks_names);
        let override_shots = self.count_override_shots(&field_path("shots"), e);
        Expansion {
            task: crate::Task::Columns,
            name: e.name.clone(),
            about: e.about.clone(),
            model: None,
            sources,
            key: KeyColumns::new(e.key.clone()),
            key_parts,
            key_types,
            context: e.context.clone(),
            media: Vec::new(),
            media_files: MediaFiles::default(),
            evidence: None,
            rows_per_request: e.rows_per_request.unwrap_or(DEFAULT_ROWS_PER_REQUEST).max(1),
            format: e.format,
            echo: Echo::default(),
            shots,
            override_shots,
            columns,
        }
    }

    /// Checks the names of the key and context columns.
    fn check_row_columns(&mut self, path: &[Step], e: &ExpansionTable) {
        let mut seen = HashSet::new();
        for (list, names) in [("key", &e.key), ("context", &e.context)] {
            for (n, name) in names.iter().enumerate() {
                let name_path = join_path(path, &[list.into(), n.into()]);
                if name.trim().is_empty() {
                    self.add_error(
                        &name_path,
                        &format!("a column of `{list}` has no name"),
                        "",
                        "enter a column name, or remove the empty entry",
                    );
                } else if list == "key" && name == CONTEXT_PART {
                    self.add_error(
                        &name_path,
                        &format!("a key column cannot be called `{CONTEXT_PART}`"),
                        "",
                        "give the column another name in a SELECT as `source`",
                    );
                } else if !seen.insert(name.to_lowercase()) {
                    self.add_error(
                        &name_path,
                        &match (list, e.key.iter().any(|k| k.eq_ignore_ascii_case(name))) {
                            ("context", true) => format!("`{name}` is in `key` and in `context`"),
                            _ => format!("`{name}` occurs twice in `{list}`"),
                        },
                        "",
                        "remove one of the two",
                    );
                }
            }
        }
    }

    /// Checks that each column has a name, unique within the expansion.
    fn check_column_names(&mut self, path: &[Step], e: &ExpansionTable) {
        let mut names = HashSet::new();
        for (n, column) in e.column.iter().enumerate() {
            let name_path = join_path(path, &["column".into(), n.into(), "name".into()]);
            if column.name.trim().is_empty() {
                self.add_error(&name_path, "a column has no name", "", "write `name`");
            } else if e.key.iter().any(|k| k.eq_ignore_ascii_case(&column.name)) {
                self.add_error(
                    &name_path,
                    &format!("column `{}` has the same name as a key column", column.name),
                    "",
                    "choose another name",
                );
            } else if !names.insert(column.name.to_lowercase()) {
                self.add_error(
                    &name_path,
                    &format!("column `{}` occurs twice in `{}`", column.name, e.name),
                    "",
                    "rename or remove one of the two",
                );
            }
        }
    }

    fn check_sources(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
    ) -> (Vec<Source>, Vec<Option<String>>, Vec<Vec<usize>>) {
        let whole_key: Vec<usize> = (0..e.key.len()).collect();
        let source_path = join_path(path, &["source".into()]);
        let (mut sources, mut key_parts) = (Vec::new(), Vec::new());
        let mut types: Vec<Vec<Option<String>>> = vec![Vec::new(); e.key.len()];
        match &e.source {
            SourceField::One(text) => {
                let rows = if is_select_text(text) {
                    parse_select(text)
                } else {
                    SourceRows::Table(text.clone())
                };
                self.check_source_columns(&source_path, path, e, &rows, &whole_key, &mut types);
                let name = matches!(rows, SourceRows::Table(_)).then(|| text.clone());
                sources.push(Source { name, rows, columns: (0..e.column.len()).collect() });
            }
            SourceField::Several(tables) => {
                if tables.is_empty() {
                    self.add_error(
                        &source_path,
                        &format!("expansion `{}` has no source", e.name),
                        "expected a table or a SELECT",
                        "",
                    );
                }
                for (n, table) in tables.iter().enumerate() {
                    let item_path = join_path(&source_path, &[n.into()]);
                    if let Some((source, key_part)) =
                        self.check_source(path, &item_path, e, table, &mut types)
                    {
                        sources.push(source);
                        key_parts.push(key_part);
                    }
                }
                if !sources.is_empty() {
                    self.check_columns_have_sources(path, e, &sources, &key_parts);
                }
            }
        }
        // A declared type is used only if all sources agree on it.
        let common_type = |mut seen: Vec<Option<String>>| {
            seen.dedup();
            if seen.len() == 1 { seen.pop().flatten() } else { None }
        };
        if key_parts.iter().all(|key_part| *key_part == whole_key) {
            key_parts.clear();
        }
        (sources, types.into_iter().map(common_type).collect(), key_parts)
    }

    /// Checks one of several sources. Returns the source with the positions of its key columns.
    fn check_source(
        &mut self,
        path: &[Step],
        item_path: &[Step],
        e: &ExpansionTable,
        table: &SourceTable,
        types: &mut [Vec<Option<String>>],
    ) -> Option<(Source, Vec<usize>)> {
        let (field, rows) = match (&table.table, &table.select) {
            (Some(table), None) => ("table", SourceRows::Table(table.clone())),
            (None, Some(select)) => ("select", parse_select(select)),
            (Some(_), Some(_)) => {
                self.add_error(
                    item_path,
                    "this source has both `table` and `select`",
                    "",
                    "remove `table` or `select`",
                );
                return None;
            }
            (None, None) => {
                self.add_error(
                    item_path,
                    "a source needs `table` or `select`",
                    "",
                    "name a `table`, or write a `select`",
                );
                return None;
            }
        };
        let key_part = match &table.key {
            None => (0..e.key.len()).collect(),
            Some(names) => self.check_source_key(&join_path(item_path, &["key".into()]), e, names),
        };
        let rows_path = join_path(item_path, &[field.into()]);
        self.check_source_columns(&rows_path, path, e, &rows, &key_part, types);
        let columns = match &table.columns {
            None => (0..e.column.len()).collect(),
            Some(names) => self.find_columns(&join_path(item_path, &["columns".into()]), e, names),
        };
        let name = table.name.clone().or_else(|| table.table.clone());
        Some((Source { name, rows, columns }, key_part))
    }

    /// Checks that every key column and every column has a source.
    fn check_columns_have_sources(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        sources: &[Source],
        key_parts: &[Vec<usize>],
    ) {
        for (n, key) in e.key.iter().enumerate() {
            if !key_parts.iter().any(|key_part| key_part.contains(&n)) {
                self.add_error(
                    &join_path(path, &["key".into(), n.into()]),
                    &format!("no source has the key column `{key}`"),
                    "",
                    "add it to the `key` of a source",
                );
            }
        }
        for (n, column) in e.column.iter().enumerate() {
            if !sources.iter().any(|source| source.columns.contains(&n)) {
                self.add_error(
                    &join_path(path, &["column".into(), n.into(), "name".into()]),
                    &format!("no source fills column `{}`", column.name),
                    "",
                    "add it to the `columns` of a source",
                );
            }
        }
    }

    /// Checks the `key` of a source and returns the positions of the key columns that the source
    /// has.
    fn check_source_key(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        names: &[String],
    ) -> Vec<usize> {
        if names.is_empty() {
            self.add_error(
                path,
                "the key of this source is empty",
                "expected columns of the expansion's key",
                "remove `key` if the source has the whole key",
            );
        }
        let mut positions = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let name_path = join_path(path, &[n.into()]);
            match e.key.iter().position(|k| k.eq_ignore_ascii_case(name)) {
                None => {
                    let help = format_suggestion(name, e.key.iter().map(String::as_str));
                    let message = format!("the key of `{}` has no column `{name}`", e.name);
                    self.add_error(&name_path, &message, "no such key column", &help);
                }
                Some(position) if positions.contains(&position) => {
                    let message = format!("`{name}` occurs twice in the key of this source");
                    self.add_error(&name_path, &message, "", "name each column once");
                }
                Some(position) => positions.push(position),
            }
        }
        positions.sort_unstable();
        positions
    }

    fn find_columns(&mut self, path: &[Step], e: &ExpansionTable, names: &[String]) -> Vec<usize> {
        let mut positions = Vec::new();
        for (n, name) in names.iter().enumerate() {
            if let Some(position) = e.column.iter().position(|c| c.name.eq_ignore_ascii_case(name))
            {
                positions.push(position);
            } else {
                let help = format_suggestion(name, e.column.iter().map(|c| c.name.as_str()));
                self.add_error(
                    &join_path(path, &[n.into()]),
                    &format!("`{}` has no column `{name}`", e.name),
                    "no such column",
                    &help,
                );
            }
        }
        positions
    }

    /// Checks that a source has the key and context columns, and collects the declared types of the
    /// key columns.
    fn check_source_columns(
        &mut self,
        source_path: &[Step],
        expansion_path: &[Step],
        e: &ExpansionTable,
        rows: &SourceRows,
        key_part: &[usize],
        types: &mut [Vec<Option<String>>],
    ) {
        if self.catalog.is_absent() {
            return;
        }
        let known: Vec<(String, Option<String>)> = match rows {
            SourceRows::Table(table) => {
                if let Some(columns) = self.catalog.table_columns(table) {
                    columns
                } else {
                    let tables = self.catalog.table_names();
                    let help = if table.trim().contains(char::is_whitespace) {
                        "name a table, or write a SELECT".to_owned()
                    } else {
                        let help = format_suggestion(table, tables.iter().map(String::as_str));
                        if tables.is_empty() {
                            "the database has no tables: check its path in [database], or --db"
                                .to_owned()
                        } else {
                            help
                        }
                    };
                    let (message, label) = if table.trim().is_empty() {
                        ("`source` is empty".to_owned(), "expected a table or a SELECT")
                    } else {
                        (format!("the database has no table `{table}`"), "no such table")
                    };
                    self.add_error(source_path, &message, label, &help);
                    return;
                }
            }
            // The SELECT becomes a subquery in FROM.
            SourceRows::Select(sql) => {
                match self
                    .catalog
                    .list_select_columns(&format!("SELECT * FROM ({sql}\n) AS source"))
                {
                    Ok(names) => names.into_iter().map(|n| (n, None)).collect(),
                    Err(message) => {
                        self.add_error(
                            source_path,
                            &format!(
                                "the database rejects the SELECT of this source: {}",
                                explain_rejection(&message, sql)
                            ),
                            "this SELECT",
                            "write one SELECT that runs in the database's own shell",
                        );
                        return;
                    }
                }
            }
        };
        let name = match rows {
            SourceRows::Table(table) => format!("table `{table}`"),
            SourceRows::Select(_) => "this SELECT".to_owned(),
        };
        for (list, columns) in [("key", &e.key), ("context", &e.context)] {
            for (n, column) in columns.iter().enumerate() {
                if list == "key" && !key_part.contains(&n) {
                    continue;
                }
                let found = known.iter().find(|(k, _)| k.eq_ignore_ascii_case(column));
                match found {
                    Some((_, declared_type)) if list == "key" => {
                        types[n].push(declared_type.clone());
                    }
                    Some(_) => {}
                    None => {
                        let column_path = join_path(expansion_path, &[list.into(), n.into()]);
                        let help = format_suggestion(column, known.iter().map(|(k, _)| k.as_str()));
                        self.add_error(
                            &column_path,
                            &format!("{name} has no column `{column}`"),
                            "no such column",
                            &help,
                        );
                    }
                }
            }
        }
    }
}

fn is_select_text(text: &str) -> bool {
    let first =
        text.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    text.trim().contains(char::is_whitespace)
        && ["select", "with", "values"].iter().any(|k| first.eq_ignore_ascii_case(k))
}

/// Returns a SELECT without its final semicolon and the comments after it.
fn parse_select(text: &str) -> SourceRows {
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with("--");
    let end = text.rfind(';').filter(|position| text[position + 1..].lines().all(is_comment));
    SourceRows::Select(end.map_or(text, |at| &text[..at]).trim_end().to_owned())
}
