//! Checks columns: their value lists, tables and questions.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::{SpecCheck, explain_rejection, join_path, to_value};
use crate::checker::Checker;
use crate::file::{AliasesField, ColumnTable, ExpansionTable, QuestionField, ValuesField};
use crate::schema_check::Step;
use crate::{Binding, Column, Many, SLOTS, Type, ValueList};
use hqdl_values::csv::describe_csv_error;
use hqdl_values::format::{format_count, format_file_error};
use hqdl_values::key::{ColumnIdentity, ListHash};
use hqdl_values::problem::find_nearest;
use hqdl_values::value::Value;

impl SpecCheck<'_> {
    pub(crate) fn check_column(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        c: &ColumnTable,
    ) -> Column {
        let field_path = |field: &str| join_path(path, &[field.into()]);
        let values = c.values.as_ref().map(|v| self.check_values(&field_path("values"), c, v));
        if values.is_none() && c.open.is_some() {
            self.add_error(
                &field_path("open"),
                &format!("column `{}` is `open` but has no `values`", c.name),
                "",
                "add `values`, or remove `open`",
            );
        }
        let aliases = self.check_aliases(&field_path("aliases"), c, values.as_ref());
        self.check_many(&field_path("many"), e, c);
        let identity = ColumnIdentity {
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
            kinds: Vec::new(),
            requires_evidence: e.evidence.as_ref().is_some_and(|evidence| evidence.require),
            candidates: Vec::new(),
        };
        let bindings = c
            .questions
            .iter()
            .enumerate()
            .map(|(n, q)| {
                self.check_question(&join_path(path, &["questions".into(), n.into()]), e, c, q)
            })
            .collect();
        self.check_unify(&field_path("unify"), c, values.as_ref());
        if c.classify && values.is_none() {
            let field_path = join_path(path, &["classify".into()]);
            let label = "the column has no list of values to choose from";
            self.add_error(&field_path, "`classify` needs `values`", label, "add `values`");
        }
        Column {
            model: None,
            escalation: None,
            origin: None,
            other_identities: Vec::new(),
            classify: c.classify,
            name: c.name.clone(),
            kind: c.kind,
            about: c.about.clone(),
            values,
            many: c
                .many
                .as_ref()
                .map(|m| Many { table: m.table.clone(), column: m.column.clone() }),
            unknown: c.unknown.clone(),
            aliases,
            unify: c.unify,
            year: self.check_year(&field_path("year"), e, c),
            range: self.check_range(&field_path("range"), c),
            part_of: None,
            one_of: None,
            keeps_items: false,
            pattern: None,
            example: None,
            bindings,
            fingerprint: identity.fingerprint(),
            identity,
        }
    }

    fn check_many(&mut self, path: &[Step], e: &ExpansionTable, c: &ColumnTable) {
        let Some(many) = &c.many else { return };
        self.check_table_name(path, &many.table);
        if many.column.trim().is_empty() {
            self.add_error(
                path,
                "the one-to-many table needs a `column`",
                "",
                "write many = { table = \"…\", column = \"…\" }",
            );
        } else if e.key.iter().any(|k| k.eq_ignore_ascii_case(&many.column)) {
            self.add_error(
                path,
                &format!("`{}` has the same name as a key column", many.column),
                "",
                "choose another `column`",
            );
        }
    }

    /// Checks that a column with `unify` has a closed value list.
    fn check_unify(&mut self, path: &[Step], c: &ColumnTable, values: Option<&ValueList>) {
        if c.unify && values.is_none_or(|v| v.open) {
            let label =
                if values.is_some() { "the list is open" } else { "the column has no `values`" };
            let message = format!(
                "`unify` of `{}` has no effect, because the column has no closed value list",
                c.name
            );
            let help = if values.is_some() {
                "remove `open`, or `unify`"
            } else {
                "add `values`, or remove `unify`"
            };
            self.add_error(path, &message, label, help);
        }
    }

    /// Checks the `year` of a column. Returns the position of the key column that contains the year
    /// of its dates; `None` if the spec does not specify one.
    ///
    /// The spec must name the column, because a year in the key may be a different year: the year
    /// of a prize may differ from the year in which it was awarded.
    fn check_year(&mut self, path: &[Step], e: &ExpansionTable, c: &ColumnTable) -> Option<usize> {
        let key_position = |name: &str| e.key.iter().position(|k| k.eq_ignore_ascii_case(name));
        let name = c.year.as_ref()?;
        if c.kind != Type::Date {
            let message = format!(
                "column `{}` has the type \"{}\", which has no year",
                c.name,
                c.kind.name()
            );
            self.add_error(path, &message, "", "remove `year`, or set `type = \"date\"`");
        } else if key_position(name).is_none() {
            let help = find_nearest(name, e.key.iter().map(String::as_str)).map_or_else(
                || format!("the key is {}", e.key.join(", ")),
                |n| format!("did you mean \"{n}\"?"),
            );
            self.add_error(path, &format!("`{name}` is not a column of the key"), "", &help);
        }
        key_position(name)
    }

    /// Checks the `range` of a column and returns it.
    fn check_range(&mut self, path: &[Step], c: &ColumnTable) -> Option<(f64, f64)> {
        let [low, high] = c.range?;
        let is_number = matches!(c.kind, Type::Integer | Type::Real);
        if !is_number || c.many.is_some() {
            let message = format!("`range` of `{}` has no effect", c.name);
            let help = "remove `range`, or make this a column of type \"integer\" or \"real\" with one value per row";
            self.add_error(path, &message, "", help);
        } else if !(low.is_finite() && high.is_finite() && low <= high) {
            let help = "write the least value first, such as range = [0, 300]";
            self.add_error(path, &format!("`range` of `{}` is empty", c.name), "", help);
        }
        Some((low, high))
    }

    /// Checks the aliases of a column. Returns the value of each alias, by the alias's lookup form.
    fn check_aliases(
        &mut self,
        path: &[Step],
        c: &ColumnTable,
        values: Option<&ValueList>,
    ) -> BTreeMap<String, String> {
        let locate = |alias: &str| match &c.aliases {
            Some(AliasesField::File(file)) => {
                let path = self.folder.join(file);
                let line = find_alias_line(&path, alias);
                format!("{}, line {line}: ", path.display())
            }
            _ => String::new(),
        };
        let entries = match &c.aliases {
            None => return BTreeMap::new(),
            Some(AliasesField::Table(table)) => table.clone(),
            Some(AliasesField::File(file)) => match self.read_alias_file(file, values) {
                Ok(table) => table,
                Err(message) => {
                    self.add_error(
                        path,
                        &message,
                        "",
                        "name a CSV file with two columns: an alias, and the value that it means",
                    );
                    return BTreeMap::new();
                }
            },
        };
        let is_unchecked = self.catalog.is_absent();
        // Without a value list, the values that the aliases stand for count as the column's values.
        let meant: HashSet<String> = entries.values().map(|v| v.to_lowercase()).collect();
        let mut aliases = BTreeMap::new();
        for (alias, value) in entries {
            let is_value = |text: &str| match values {
                Some(list) => list.values.iter().any(|v| v == text),
                None => text != value && meant.contains(&text.trim().to_lowercase()),
            };
            if values.is_some() && !is_unchecked && !is_value(&value) {
                let message = format!(
                    "{}\"{value}\" is not in the value list of `{}`",
                    locate(&alias),
                    c.name
                );
                self.add_error(path, &message, "an alias must map to a value in the list", "");
            } else if values.is_none() && Checker::parse_value(c.kind, &value).is_none() {
                let message =
                    format!("{}\"{value}\" is not of type {}", locate(&alias), c.kind.name());
                self.add_error(
                    path,
                    &message,
                    "an alias must map to a value of the column's type",
                    "",
                );
            } else if is_value(&alias) {
                let of = if values.is_some() { "of the list" } else { "of other aliases" };
                let message = format!("\"{alias}\" is already a value {of}");
                self.add_error(path, &message, "an alias must differ from every value", "");
            } else if let Some(previous) =
                aliases.insert(alias.trim().to_lowercase(), value.clone())
                && previous != value
            {
                let message =
                    format!("the alias \"{alias}\" has two values: \"{previous}\" and \"{value}\"");
                self.add_error(path, &message, "aliases are compared without case", "");
            }
        }
        aliases
    }

    /// Reads the aliases of a CSV file next to the spec. Its first line must be a header: a first
    /// line that looks like an alias is an error, because it would be ignored.
    fn read_alias_file(
        &self,
        file: &Path,
        values: Option<&ValueList>,
    ) -> Result<BTreeMap<String, String>, String> {
        let path = self.folder.join(file);
        let locate_error = |e: &dyn std::fmt::Display| {
            format_file_error(&path.display().to_string(), None, &e.to_string())
        };
        let mut reader =
            csv::Reader::from_path(&path).map_err(|e| locate_error(&describe_csv_error(&e)))?;
        let header = reader.headers().map_err(|e| locate_error(&describe_csv_error(&e)))?;
        if header.len() != 2 {
            return Err(locate_error(&format!(
                "line 1 has {} instead of 2",
                format_count(header.len() as u64, "field")
            )));
        }
        let is_value = |text: &str| values.is_some_and(|l| l.values.iter().any(|v| v == text));
        if header.get(1).is_some_and(|value| is_value(value.trim())) {
            return Err(locate_error(&"line 1 contains an alias, but must be a header"));
        }
        let mut aliases = BTreeMap::new();
        for (n, record) in reader.records().enumerate() {
            let record = record.map_err(|e| {
                locate_error(&format!("line {}: {}", n + 2, describe_csv_error(&e)))
            })?;
            let (Some(alias), Some(value), 2) = (record.get(0), record.get(1), record.len()) else {
                return Err(locate_error(&format!(
                    "line {} has {} instead of 2",
                    n + 2,
                    format_count(record.len() as u64, "field")
                )));
            };
            if let Some(previous) = aliases.insert(alias.to_owned(), value.to_owned())
                && previous != value
            {
                let message =
                    format!("line {}: the alias \"{alias}\" already means \"{previous}\"", n + 2);
                return Err(locate_error(&message));
            }
        }
        Ok(aliases)
    }

    fn check_values(&mut self, path: &[Step], c: &ColumnTable, field: &ValuesField) -> ValueList {
        let (literals, open): (Vec<Value>, Option<bool>) = match field {
            ValuesField::List(list) => (list.iter().map(to_value).collect(), None),
            ValuesField::Table(table) => {
                let selected = match (&table.sql, &table.list) {
                    (Some(_), None) if self.catalog.is_absent() => {
                        let values = vec!["?".to_owned()];
                        return ValueList { hash: ListHash::new(&values), values, open: true };
                    }
                    (Some(sql), None) => {
                        let sql_path = join_path(path, &["sql".into()]);
                        match self.select_values(&sql_path, sql) {
                            Some(selected) => selected,
                            // Return an open list, so that it is not also reported as empty or
                            // invalid.
                            None => {
                                return ValueList {
                                    values: Vec::new(),
                                    open: true,
                                    hash: ListHash::new(&[]),
                                };
                            }
                        }
                    }
                    (None, Some(list)) => list.iter().map(to_value).collect(),
                    (sql, _) => {
                        let (message, help) = if sql.is_some() {
                            ("`values` has both `sql` and `list`", "keep only one of them")
                        } else {
                            (
                                "`values` has neither `sql` nor `list`",
                                "write values = { sql = \"SELECT …\" } or values = [\"a\", \"b\"]",
                            )
                        };
                        self.add_error(path, message, "", help);
                        return ValueList {
                            values: Vec::new(),
                            open: true,
                            hash: ListHash::new(&[]),
                        };
                    }
                };
                (selected, table.open)
            }
        };
        let open = c.open.or(open).unwrap_or(false);
        let mut seen = HashSet::new();
        let is_literal = !matches!(field, ValuesField::Table(table) if table.sql.is_some());
        let texts: Vec<String> = literals.iter().map(ToString::to_string).collect();
        let mut listed = HashSet::new();
        let repeated = texts.iter().find(|text| !listed.insert(text.as_str()));
        if let Some(text) = repeated.filter(|_| is_literal) {
            let message = format!("the value list of `{}` contains \"{text}\" twice", c.name);
            self.add_warning(path, &message, "remove one of them");
        }
        if is_literal && texts.iter().any(|text| text.trim().is_empty()) {
            let message = format!("the value list of `{}` contains an empty text", c.name);
            self.add_error(path, &message, "a cell without a value is NULL", "remove it");
        }
        let values: Vec<String> = literals
            .iter()
            .filter_map(|v| v.to_text().map(std::borrow::Cow::into_owned))
            .filter(|v| seen.insert(v.clone()))
            .collect();
        if values.is_empty() {
            self.add_error(
                path,
                &format!("the value list of `{}` is empty", c.name),
                "expected at least one value",
                "",
            );
        }
        let invalid = values.iter().find(|v| Checker::parse_value(c.kind, v).is_none());
        if let Some(invalid) = invalid {
            self.add_error(
                path,
                &format!(
                    "the value list of `{}` contains \"{invalid}\", which is not a valid {}",
                    c.name,
                    c.kind.name()
                ),
                "",
                "correct the value, or the `type` of the column",
            );
        }
        ValueList { hash: ListHash::new(&values), values, open }
    }

    fn select_values(&mut self, path: &[Step], sql: &str) -> Option<Vec<Value>> {
        match self.catalog.list_select_columns(sql) {
            Err(message) => {
                self.add_error(
                    path,
                    &format!(
                        "the database rejects the SELECT of this value list: {}",
                        explain_rejection(&message, sql)
                    ),
                    "this SELECT",
                    "write one SELECT that runs in the database's own shell",
                );
            }
            Ok(columns) if columns.len() != 1 => {
                self.add_error(
                    path,
                    &format!(
                        "a value list is one column, but this SELECT returns {}",
                        columns.len()
                    ),
                    "expected one column",
                    "",
                );
            }
            Ok(_) => match self.catalog.select_rows(sql, usize::MAX) {
                Ok(rows) => return Some(rows.into_iter().flatten().collect()),
                Err(message) => {
                    self.add_error(
                        path,
                        &format!("the SELECT of this value list failed: {message}"),
                        "",
                        "correct the SELECT until it runs in the database's own shell",
                    );
                }
            },
        }
        None
    }

    fn check_question(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        c: &ColumnTable,
        q: &QuestionField,
    ) -> Binding {
        let (ask, sql) = match q {
            QuestionField::Plain(ask) => (ask.clone(), None),
            QuestionField::Bound(table) => (table.ask.clone(), Some(table.sql.clone())),
        };
        let normalized: String = ask
            .to_lowercase()
            .split(|c: char| !(c.is_alphanumeric() || c == '{' || c == '}'))
            .filter(|w| !w.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        if normalized.is_empty() {
            self.add_error(
                path,
                "a question is empty",
                "",
                "write the question, or remove the empty entry",
            );
        }
        if let Some(previous) = self
            .questions
            .insert(format!("{}\u{0}{normalized}", e.key.join("\u{0}")), c.name.clone())
        {
            self.add_error(
                path,
                &format!("the question \"{ask}\" belongs to `{previous}` already"),
                "a question must belong to only one column",
                "",
            );
        }
        let slots_in =
            |text: &str| -> Vec<&str> { SLOTS.into_iter().filter(|s| text.contains(s)).collect() };
        match &sql {
            None if !slots_in(&ask).is_empty() => {
                self.add_error(
                    path,
                    &format!("the question \"{ask}\" has a placeholder but no SQL that uses it"),
                    "",
                    "write { ask = \"…\", sql = \"…\" }",
                );
            }
            None => {}
            Some(sql) => {
                for slot in slots_in(&ask) {
                    if !sql.contains(slot) {
                        self.add_error(
                            path,
                            &format!("{slot} occurs in the question but not in its SQL"),
                            "",
                            "write the placeholder in the SQL, or remove it from the question",
                        );
                    }
                }
                for slot in slots_in(sql) {
                    if !ask.contains(slot) {
                        self.add_error(
                            path,
                            &format!("{slot} occurs in the SQL but not in the question"),
                            "",
                            "write the placeholder in the question, or remove it from the SQL",
                        );
                    }
                }
                let unknown_slot =
                    SLOTS.iter().fold(sql.clone(), |sql, slot| sql.replace(slot, ""));
                if let Some(slot) = find_first_slot(&unknown_slot) {
                    self.add_error(
                        path,
                        &format!("`{slot}` in the SQL of \"{ask}\" is not a placeholder"),
                        "",
                        &format!("the placeholders are {}", SLOTS.join(", ")),
                    );
                } else if let Err(message) =
                    self.catalog.list_select_columns(&build_binding_probe(e, c, sql))
                {
                    self.add_error(
                        path,
                        &format!(
                            "the database rejects the SQL of \"{ask}\": {}",
                            explain_rejection(&message, sql)
                        ),
                        "this SQL",
                        "write a condition over the columns of the expansion",
                    );
                }
            }
        }
        Binding { ask, sql }
    }
}

/// Returns the first word in braces.
fn find_first_slot(sql: &str) -> Option<&str> {
    let from = &sql[sql.find('{')?..];
    let slot = &from[..=from.find('}')?];
    let is_word = slot[1..slot.len() - 1].chars().all(|c| c.is_alphanumeric() || c == '_');
    is_word.then_some(slot)
}

/// Returns a SELECT that can be prepared if and only if the SQL of a binding is valid for its
/// column.
///
/// `EXISTS {value}` tests whether a list contains a value. All other SQL is an expression over the
/// expansion's columns (or, for a one-to-many column, over the columns of its table).
fn build_binding_probe(e: &ExpansionTable, c: &ColumnTable, sql: &str) -> String {
    let column = |name: &str, data_type: Option<Type>| {
        let name = hqdl_values::sql::quote_name(name);
        // A server checks the types of compared values, so give each column its type.
        match data_type.map(Type::postgres_type) {
            Some(type_name) => format!("CAST(NULL AS {type_name}) AS {name}"),
            None => format!("NULL AS {name}"),
        }
    };
    let mut row: Vec<String> = e.key.iter().map(|key| column(key, None)).collect();
    let single_columns = e.column.iter().filter(|c| c.many.is_none());
    match &c.many {
        Some(many) => row.push(column(&many.column, Some(c.kind))),
        None => row.extend(single_columns.map(|c| column(&c.name, Some(c.kind)))),
    }
    let rest = sql.trim();
    let is_exists = rest.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"));
    let mut expression = match &c.many {
        Some(many) if is_exists && !rest[6..].trim_start().starts_with('(') => {
            format!("{} = {}", hqdl_values::sql::quote_name(&many.column), &rest[6..])
        }
        _ => rest.to_owned(),
    };
    for slot in SLOTS {
        expression = expression.replace(slot, "(NULL)");
    }
    format!("SELECT ({expression}) FROM (SELECT {}) AS answers", row.join(", "))
}

/// Returns the line of a CSV file that contains an alias.
fn find_alias_line(path: &Path, alias: &str) -> u64 {
    let records = csv::Reader::from_path(path).map(csv::Reader::into_records);
    let mut found = records.into_iter().flatten().flatten();
    let found = found.find(|record| record.get(0) == Some(alias));
    found.and_then(|record| Some(record.position()?.line())).unwrap_or(1)
}
