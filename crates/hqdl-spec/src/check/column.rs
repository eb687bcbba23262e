//! Checks columns: their value lists, tables and questions.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::{Check, join, literal};
use crate::checker::Checker;
use crate::file::{AliasesField, ColumnTable, ExpansionTable, QuestionField, ValuesField};
use crate::shape::Step;
use crate::{Binding, Column, Many, SLOTS, Type, ValueList};
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
        if c.unify && values.as_ref().is_none_or(|v| v.open) {
            let label = if values.is_some() { "other values pass" } else { "it has no values" };
            let message = format!("`unify` of `{}`, which has no closed list", c.name);
            self.error(&at("unify"), &message, label, "add `values`, without `open`");
        }
        if c.classify && values.is_none() {
            let place = join(place, &["classify".into()]);
            let label = "there is no list of values to choose from";
            self.error(&place, "`classify` without `values`", label, "add `values`");
        }
        Column {
            origin: None,
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
            let message = format!("`{}` is {}, and has no year", c.name, c.kind.name());
            self.error(place, &message, "", "`year` is for columns of type \"date\"");
        } else if part(name).is_none() {
            let help = nearest(name, e.key.iter().map(String::as_str)).map_or_else(
                || format!("the key is {}", e.key.join(", ")),
                |n| format!("did you mean \"{n}\"?"),
            );
            self.error(place, &format!("`{name}` is no column of the key"), "", &help);
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
                    self.error(place, &message, "", "two columns: the words, the value they mean");
                    return BTreeMap::new();
                }
            },
        };
        let Some(list) = values else {
            let label = "there is no list of values to choose from";
            self.error(place, "`aliases` without `values`", label, "add `values`");
            return BTreeMap::new();
        };
        let absent = self.catalog.is_absent();
        let mut aliases = BTreeMap::new();
        for (words, value) in written {
            let is_value = |text: &String| list.values.contains(text);
            if !absent && !is_value(&value) {
                let message = format!("\"{value}\" is not on the value list of `{}`", c.name);
                self.error(place, &message, "an alias means a value of the list", "");
            } else if is_value(&words) {
                let message = format!("\"{words}\" is a value of the list itself");
                self.error(place, &message, "an alias is another word for a value", "");
            } else if let Some(before) = aliases.insert(words.trim().to_lowercase(), value.clone())
                && before != value
            {
                let message = format!("\"{words}\" means two values: \"{before}\" and \"{value}\"");
                self.error(place, &message, "case does not tell aliases apart", "");
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
            return Err(told(&format!("line 1: {} fields, not 2", header.len())));
        }
        let is_value = |text: &str| values.is_some_and(|l| l.values.iter().any(|v| v == text));
        if header.get(1).is_some_and(|value| is_value(value.trim())) {
            return Err(told(&"line 1 is an alias, and is to be a header"));
        }
        let mut aliases = BTreeMap::new();
        for (n, record) in reader.records().enumerate() {
            let record = record.map_err(|e| told(&e))?;
            let (Some(words), Some(value), 2) = (record.get(0), record.get(1), record.len()) else {
                return Err(told(&format!("line {}: {} fields, not 2", n + 2, record.len())));
            };
            if let Some(before) = aliases.insert(words.to_owned(), value.to_owned())
                && before != value
            {
                let twice = format!("line {}: \"{words}\" means \"{before}\", too", n + 2);
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
