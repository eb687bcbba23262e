//! Checks expansions: their names, keys and sources.

use std::collections::HashSet;

use super::{Check, did_you_mean, join};
use crate::file::{Echo, ExpansionTable, SourceField, SpecFile};
use crate::shape::Step;
use crate::{Column, Expansion, Images, Source, SourceRows};
use hqdl_values::key::KeyColumns;
use hqdl_values::problem::nearest;

/// Default number of rows per request.
pub const ROWS_PER_REQUEST: u32 = 20;

impl Check<'_> {
    pub(crate) fn expansions(&mut self, file: &SpecFile, images: &Images) -> Vec<Expansion> {
        let mut made = Vec::new();
        for (n, e) in file.expansion.iter().enumerate() {
            let place = [Step::from("expansion"), n.into()];
            let mut expansion = self.expansion(&place, e);
            expansion.images = self.images(&place, e);
            expansion.image_files = images.clone();
            expansion.model = self.model_of(&join(&place, &["model".into()]), e, file);
            expansion.echo = e.echo.or(file.model.echo).unwrap_or_default();
            for column in &mut expansion.columns {
                column.unknown = column.unknown.take().or_else(|| file.model.unknown.clone());
            }
            made.push(expansion);
        }
        made
    }

    /// Returns the key and context columns with images.
    fn images(&mut self, place: &[Step], e: &ExpansionTable) -> Vec<String> {
        for (n, name) in e.images.iter().enumerate() {
            let mut known = e.key.iter().chain(&e.context);
            if !known.any(|k| k.eq_ignore_ascii_case(name)) {
                let help = did_you_mean(name, e.key.iter().chain(&e.context).map(String::as_str));
                let message = format!("`{name}` is not a column of `key` or `context`");
                let here = join(place, &["images".into(), n.into()]);
                self.error(&here, &message, "no such column", &help);
            }
        }
        if !e.images.is_empty() && e.rows_per_request.is_some_and(|rows| rows > 1) {
            self.error(
                &join(place, &["rows_per_request".into()]),
                "hqdl sends rows with images one per request",
                "more than one",
                "remove `rows_per_request`",
            );
        }
        e.images.clone()
    }

    /// Returns the model that an expansion names; `None` for the one of `[model]`.
    fn model_of(&mut self, place: &[Step], e: &ExpansionTable, file: &SpecFile) -> Option<String> {
        let name = e.model.as_ref()?;
        if file.model.others.contains_key(name) {
            return Some(name.clone());
        }
        if *name != file.model.name {
            let known: Vec<&str> = file.model.others.keys().map(String::as_str).collect();
            let help = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if known.is_empty() => format!("add a table [model.{name}] with its `name`"),
                None => format!("there are {}", known.join(", ")),
            };
            self.error(place, &format!("the spec has no [model.{name}]"), "", &help);
        }
        None
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
                        &format!("`{name}` occurs twice in `key` and `context`"),
                        "",
                        "",
                    );
                }
            }
        }
        if e.key.is_empty() {
            self.error(
                &at("key"),
                "the key of the expansion is empty",
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
        self.column_names(place, e);
        let columns: Vec<Column> = e
            .column
            .iter()
            .enumerate()
            .map(|(n, c)| self.column(&join(place, &["column".into(), n.into()]), e, c))
            .collect();
        let (sources, key_types, key_parts) = self.sources(place, e);
        for view in sources.iter().filter_map(|s| s.name.as_ref()).map(|s| format!("{s}_expanded"))
        {
            if self.names.contains_key(&view.to_lowercase()) {
                self.error(
                    &at("source"),
                    &format!(
                        "the view `{view}` of this source has the same name as a table of the spec"
                    ),
                    "",
                    "rename that table",
                );
            }
        }
        let shots = self.shots(&at("shots"), e, &columns);
        let override_shots = self.override_shots(&at("shots"), e);
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
            images: Vec::new(),
            image_files: Images::default(),
            rows_per_request: e.rows_per_request.unwrap_or(ROWS_PER_REQUEST).max(1),
            format: e.format,
            echo: Echo::default(),
            shots,
            override_shots,
            columns,
        }
    }

    /// Checks that each column has a name, unique within the expansion.
    fn column_names(&mut self, place: &[Step], e: &ExpansionTable) {
        let mut names = HashSet::new();
        for (n, column) in e.column.iter().enumerate() {
            let here = join(place, &["column".into(), n.into(), "name".into()]);
            if column.name.trim().is_empty() {
                self.error(&here, "a column has no name", "", "");
            } else if e.key.iter().any(|k| k.eq_ignore_ascii_case(&column.name)) {
                self.error(
                    &here,
                    &format!("column `{}` has the same name as a key column", column.name),
                    "",
                    "",
                );
            } else if !names.insert(column.name.to_lowercase()) {
                self.error(
                    &here,
                    &format!("column `{}` occurs twice in `{}`", column.name, e.name),
                    "",
                    "",
                );
            }
        }
    }

    fn sources(
        &mut self,
        place: &[Step],
        e: &ExpansionTable,
    ) -> (Vec<Source>, Vec<Option<String>>, Vec<Vec<usize>>) {
        let all: Vec<usize> = (0..e.column.len()).collect();
        let whole: Vec<usize> = (0..e.key.len()).collect();
        let mut parts = Vec::new();
        let at = join(place, &["source".into()]);
        let mut sources = Vec::new();
        let mut types: Vec<Vec<Option<String>>> = vec![Vec::new(); e.key.len()];
        match &e.source {
            SourceField::One(text) => {
                let rows =
                    if is_select(text) { select(text) } else { SourceRows::Table(text.clone()) };
                self.source_columns(&at, place, e, &rows, &whole, &mut types);
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
                        (None, Some(select)) => self::select(select),
                        (Some(_), Some(_)) => {
                            self.error(
                                &here,
                                "this source has both `table` and `select`",
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
                    let part = match &table.key {
                        None => whole.clone(),
                        Some(names) => self.own_key(&join(&here, &["key".into()]), e, names),
                    };
                    let place_of = join(&here, &[field.into()]);
                    self.source_columns(&place_of, place, e, &rows, &part, &mut types);
                    parts.push(part);
                    let columns = match &table.columns {
                        None => all.clone(),
                        Some(names) => {
                            self.named_columns(&join(&here, &["columns".into()]), e, names)
                        }
                    };
                    let name = table.name.clone().or_else(|| table.table.clone());
                    sources.push(Source { name, rows, columns });
                }
                for (n, key) in e.key.iter().enumerate() {
                    if !parts.iter().any(|part| part.contains(&n)) && !sources.is_empty() {
                        self.error(
                            &join(place, &["key".into(), n.into()]),
                            &format!("no source has the key column `{key}`"),
                            "",
                            "add it to the `key` of a source",
                        );
                    }
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
        // A declared type is used only if all sources agree on it.
        let agreed = |mut seen: Vec<Option<String>>| {
            seen.dedup();
            if seen.len() == 1 { seen.pop().flatten() } else { None }
        };
        if parts.iter().all(|part| *part == whole) {
            parts.clear();
        }
        (sources, types.into_iter().map(agreed).collect(), parts)
    }

    /// Returns the positions of the key columns that a source has.
    fn own_key(&mut self, place: &[Step], e: &ExpansionTable, names: &[String]) -> Vec<usize> {
        if names.is_empty() {
            self.error(
                place,
                "the key of this source is empty",
                "expected columns of the expansion's key",
                "remove `key` if the source has the whole key",
            );
        }
        let mut found = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let here = join(place, &[n.into()]);
            match e.key.iter().position(|k| k.eq_ignore_ascii_case(name)) {
                None => {
                    let help = did_you_mean(name, e.key.iter().map(String::as_str));
                    let message = format!("the key of `{}` has no column `{name}`", e.name);
                    self.error(&here, &message, "no such key column", &help);
                }
                Some(at) if found.contains(&at) => {
                    let message = format!("`{name}` occurs twice in the key of this source");
                    self.error(&here, &message, "", "");
                }
                Some(at) => found.push(at),
            }
        }
        found.sort_unstable();
        found
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

    /// Checks that a source has the key and context columns, and collects the declared types of the
    /// key columns.
    fn source_columns(
        &mut self,
        here: &[Step],
        expansion: &[Step],
        e: &ExpansionTable,
        rows: &SourceRows,
        part: &[usize],
        types: &mut [Vec<Option<String>>],
    ) {
        if self.catalog.is_absent() {
            return;
        }
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
            // The SELECT becomes a subquery in FROM.
            SourceRows::Select(sql) => {
                match self.catalog.prepare(&format!("SELECT * FROM ({sql}\n) AS source")) {
                    Ok(names) => names.into_iter().map(|n| (n, None)).collect(),
                    Err(message) => {
                        self.error(
                            here,
                            &format!("SQLite rejects the SELECT of this source: {message}"),
                            "this SELECT",
                            "correct it until it runs in the sqlite3 shell",
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
                if list == "key" && !part.contains(&n) {
                    continue;
                }
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
}

fn is_select(text: &str) -> bool {
    let first =
        text.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    text.trim().contains(char::is_whitespace)
        && ["select", "with", "values"].iter().any(|k| first.eq_ignore_ascii_case(k))
}

/// Returns a SELECT without its final semicolon and the comments after it.
fn select(text: &str) -> SourceRows {
    let comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with("--");
    let end = text.rfind(';').filter(|at| text[at + 1..].lines().all(comment));
    SourceRows::Select(end.map_or(text, |at| &text[..at]).trim_end().to_owned())
}
