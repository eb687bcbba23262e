//! Checks columns: their value lists, tables and questions.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::{Check, join, literal};
use crate::checker::Checker;
use crate::file::{AliasesField, ColumnTable, ExpansionTable, QuestionField, ValuesField};
use crate::shape::Step;
use crate::{Binding, Column, Many, SLOTS, Type, ValueList};
use hqdl_values::format::count_noun;
use hqdl_values::key::{ListHash, Meaning};
use hqdl_values::problem::nearest;
use hqdl_values::value::Value;

impl Check<'_> {
    pub(crate) fn column(&mut self, place: &[Step], e: &ExpansionTable, c: &ColumnTable) -> Column {
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
        let aliases = self.aliases(&at("aliases"), c, values.as_ref());
        if let Some(many) = &c.many {
            self.table_name(&at("many"), &many.table);
            if many.column.trim().is_empty() {
                self.error(&at("many"), "the one-to-many table needs a `column`", "", "");
            } else if e.key.iter().any(|k| k.eq_ignore_ascii_case(&many.column)) {
                self.error(
                    &at("many"),
                    &format!("`{}` has the same name as a key column", many.column),
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
            kinds: Vec::new(),
        };
        let bindings = c
            .questions
            .iter()
            .enumerate()
            .map(|(n, q)| self.binding(&join(place, &["questions".into(), n.into()]), e, c, q))
            .collect();
        if c.unify && values.as_ref().is_none_or(|v| v.open) {
            let label =
                if values.is_some() { "allows other values" } else { "the column has no `values`" };
            let message = format!(
                "`unify` of `{}` has no effect, because the column has no closed value list",
                c.name
            );
            self.error(&at("unify"), &message, label, "add `values`, and remove `open`");
        }
        if c.classify && values.is_none() {
            let place = join(place, &["classify".into()]);
            let label = "the column has no list of values to choose from";
            self.error(&place, "`classify` needs `values`", label, "add `values`");
        }
        Column {
            origin: None,
            also: Vec::new(),
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
            year: self.year(&at("year"), e, c),
            part_of: None,
            keeps_items: false,
            pattern: None,
            example: None,
            bindings,
            fingerprint: meaning.fingerprint(),
            meaning,
        }
    }

    /// Returns the position of the key column with the year of a column's dates, if the spec names
    /// one.
    ///
    /// It must be named explicitly: the `year` of a prize may differ from that of the day when it
    /// was awarded.
    fn year(&mut self, place: &[Step], e: &ExpansionTable, c: &ColumnTable) -> Option<usize> {
        let part = |name: &str| e.key.iter().position(|k| k.eq_ignore_ascii_case(name));
        let name = c.year.as_ref()?;
        if c.kind != Type::Date {
            let message = format!("`{}` is {}, which has no year", c.name, c.kind.name());
            self.error(place, &message, "", "`year` is for columns of type \"date\"");
        } else if part(name).is_none() {
            let help = nearest(name, e.key.iter().map(String::as_str)).map_or_else(
                || format!("the key is {}", e.key.join(", ")),
                |n| format!("did you mean \"{n}\"?"),
            );
            self.error(place, &format!("`{name}` is not a column of the key"), "", &help);
        }
        part(name)
    }

    /// Returns the aliases of values, by their lookup form.
    fn aliases(
        &mut self,
        place: &[Step],
        c: &ColumnTable,
        values: Option<&ValueList>,
    ) -> BTreeMap<String, String> {
        let written = match &c.aliases {
            None => return BTreeMap::new(),
            Some(AliasesField::Table(table)) => table.clone(),
            Some(AliasesField::File(file)) => match self.aliases_in(file, values) {
                Ok(table) => table,
                Err(message) => {
                    self.error(
                        place,
                        &message,
                        "",
                        "write two columns: an alias, and the value that it means",
                    );
                    return BTreeMap::new();
                }
            },
        };
        let absent = self.catalog.is_absent();
        // Without a list, the values are those that the aliases mean.
        let meant: HashSet<String> = written.values().map(|v| v.to_lowercase()).collect();
        let mut aliases = BTreeMap::new();
        for (words, value) in written {
            let is_value = |text: &str| match values {
                Some(list) => list.values.iter().any(|v| v == text),
                None => text != value && meant.contains(&text.trim().to_lowercase()),
            };
            if values.is_some() && !absent && !is_value(&value) {
                let message = format!("\"{value}\" is not on the value list of `{}`", c.name);
                self.error(place, &message, "an alias means a value of the list", "");
            } else if values.is_none() && Checker::coerce(c.kind, &value).is_none() {
                let message = format!("\"{value}\" is not of type {}", c.kind.name());
                self.error(place, &message, "an alias means a value of the column", "");
            } else if is_value(&words) {
                let of = if values.is_some() { "of the list itself" } else { "of other aliases" };
                let message = format!("\"{words}\" is a value {of}");
                self.error(place, &message, "an alias is another word for a value", "");
            } else if let Some(before) = aliases.insert(words.trim().to_lowercase(), value.clone())
                && before != value
            {
                let message =
                    format!("the alias \"{words}\" has two values: \"{before}\" and \"{value}\"");
                self.error(place, &message, "aliases are compared without case", "");
            }
        }
        aliases
    }

    /// Reads the aliases of a CSV file beside the spec. Its first line must be a header: a first
    /// line that looks like an alias is an error, because it would be ignored.
    fn aliases_in(
        &self,
        file: &Path,
        values: Option<&ValueList>,
    ) -> Result<BTreeMap<String, String>, String> {
        let path = self.folder.join(file);
        let told = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let mut reader = csv::Reader::from_path(&path).map_err(|e| told(&e))?;
        let header = reader.headers().map_err(|e| told(&e))?;
        if header.len() != 2 {
            return Err(told(&format!(
                "line 1 has {} instead of 2",
                count_noun(header.len() as u64, "field")
            )));
        }
        let is_value = |text: &str| values.is_some_and(|l| l.values.iter().any(|v| v == text));
        if header.get(1).is_some_and(|value| is_value(value.trim())) {
            return Err(told(&"line 1 contains an alias, but must be a header"));
        }
        let mut aliases = BTreeMap::new();
        for (n, record) in reader.records().enumerate() {
            let record = record.map_err(|e| told(&e))?;
            let (Some(words), Some(value), 2) = (record.get(0), record.get(1), record.len()) else {
                return Err(told(&format!(
                    "line {} has {} instead of 2",
                    n + 2,
                    count_noun(record.len() as u64, "field")
                )));
            };
            if let Some(before) = aliases.insert(words.to_owned(), value.to_owned())
                && before != value
            {
                let twice =
                    format!("line {}: the alias \"{words}\" already means \"{before}\"", n + 2);
                return Err(told(&twice));
            }
        }
        Ok(aliases)
    }

    fn values(&mut self, place: &[Step], c: &ColumnTable, field: &ValuesField) -> ValueList {
        let (found, open): (Vec<Value>, Option<bool>) = match field {
            ValuesField::List(list) => (list.iter().map(literal).collect(), None),
            ValuesField::Table(table) => {
                let found = match (&table.sql, &table.list) {
                    (Some(_), None) if self.catalog.is_absent() => {
                        let values = vec!["?".to_owned()];
                        return ValueList { hash: ListHash::of(&values), values, open: true };
                    }
                    (Some(sql), None) => {
                        let here = join(place, &["sql".into()]);
                        match self.values_of(&here, sql) {
                            Some(found) => found,
                            // Return an open list, so that it is not also reported as empty or
                            // invalid.
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
                    "the value list of `{}` contains \"{unfit}\", which is not a valid {}",
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
                    &format!("SQLite rejects the SELECT of this value list: {message}"),
                    "this SELECT",
                    "correct it until it runs in the sqlite3 shell",
                );
            }
            Ok(columns) if columns.len() != 1 => {
                self.error(
                    place,
                    &format!(
                        "a value list is one column, but this SELECT returns {}",
                        columns.len()
                    ),
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
                &format!("the question \"{ask}\" belongs to `{before}` already"),
                "a question must belong to only one column",
                "",
            );
        }
        let slots =
            |text: &str| -> Vec<&str> { SLOTS.into_iter().filter(|s| text.contains(s)).collect() };
        match &sql {
            None if !slots(&ask).is_empty() => {
                self.error(
                    place,
                    &format!("the question \"{ask}\" has a slot but no SQL that uses it"),
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
                            &format!("{slot} occurs in the question but not in its SQL"),
                            "",
                            "use the slot in the SQL, or remove it from the question",
                        );
                    }
                }
                for slot in slots(sql) {
                    if !ask.contains(slot) {
                        self.error(
                            place,
                            &format!("{slot} occurs in the SQL but not in the question"),
                            "",
                            "use the slot in the question, or remove it from the SQL",
                        );
                    }
                }
                if let Err(message) = self.catalog.prepare(&binding_probe(e, c, sql)) {
                    self.error(
                        place,
                        &format!("SQLite rejects the SQL of \"{ask}\": {message}"),
                        "this SQL",
                        "write a condition over the columns of the expansion",
                    );
                }
            }
        }
        Binding { ask, sql }
    }
}

/// Returns a SELECT that prepares exactly if the SQL of a binding is valid for its column.
///
/// `EXISTS {value}` tests whether a list contains a value. All other SQL is an expression over the
/// expansion's columns (or, for a one-to-many column, over that table's columns).
fn binding_probe(e: &ExpansionTable, c: &ColumnTable, sql: &str) -> String {
    let column = |name: &str, kind: Option<Type>| {
        let name = hqdl_values::sql::name(name);
        // A server checks the types of compared values.
        match kind.map(Type::postgres) {
            Some(kind) => format!("CAST(NULL AS {kind}) AS {name}"),
            None => format!("NULL AS {name}"),
        }
    };
    let mut row: Vec<String> = e.key.iter().map(|key| column(key, None)).collect();
    let singles = e.column.iter().filter(|c| c.many.is_none());
    match &c.many {
        Some(many) => row.push(column(&many.column, Some(c.kind))),
        None => row.extend(singles.map(|c| column(&c.name, Some(c.kind)))),
    }
    let rest = sql.trim();
    let exists = rest.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"));
    let mut expression = match &c.many {
        Some(many) if exists && !rest[6..].trim_start().starts_with('(') => {
            format!("{} = {}", hqdl_values::sql::name(&many.column), &rest[6..])
        }
        _ => rest.to_owned(),
    };
    for slot in SLOTS {
        expression = expression.replace(slot, "(NULL)");
    }
    format!("SELECT ({expression}) FROM (SELECT {}) AS answers", row.join(", "))
}
