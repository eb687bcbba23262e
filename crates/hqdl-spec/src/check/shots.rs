//! Checks shots (example rows) by the same rules as the model's answers.

use std::collections::BTreeMap;

use super::{SpecCheck, explain_rejection, format_suggestion, join_path, to_value};
use crate::checker::Checker;
use crate::file::{ExpansionTable, ShotCell, ShotsField, ShotsTable};
use crate::literal::Literal;
use crate::schema_check::Step;
use crate::{Column, Shot};
use hqdl_values::Type;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::value::Value;

/// Default number of shots from a SELECT or from overrides.
const DEFAULT_SHOTS: u32 = 5;

impl SpecCheck<'_> {
    /// Checks the shots of an expansion and returns them. `checks_names` is false if the
    /// expansion's key or columns are wrong, so that names in the shots that do not match them are
    /// not reported again.
    pub(crate) fn check_shots(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        columns: &[Column],
        checks_names: bool,
    ) -> Vec<Shot> {
        match &e.shots {
            Some(ShotsField::Rows(rows)) => rows
                .iter()
                .enumerate()
                .filter_map(|(n, row)| {
                    self.check_shot(&join_path(path, &[n.into()]), e, columns, row, checks_names)
                })
                .collect(),
            Some(ShotsField::Table(ShotsTable { sql: Some(sql), limit, .. })) => {
                let limit = limit.unwrap_or(DEFAULT_SHOTS) as usize;
                self.select_shots(&join_path(path, &["sql".into()]), e, columns, sql, limit)
            }
            Some(ShotsField::Table(_) | ShotsField::Named(_)) | None => Vec::new(),
        }
    }

    /// Returns the number of overridden rows that become examples; the run selects them.
    pub(crate) fn count_override_shots(&mut self, path: &[Step], e: &ExpansionTable) -> u32 {
        match &e.shots {
            Some(ShotsField::Named(_)) => DEFAULT_SHOTS,
            Some(ShotsField::Table(ShotsTable { sql, overrides, limit })) => {
                let uses_overrides = overrides.unwrap_or(false);
                if sql.is_some() == uses_overrides {
                    self.add_error(
                        path,
                        "`shots` needs a source of rows",
                        "expected either `sql` or `overrides = true`",
                        "",
                    );
                }
                if uses_overrides { limit.unwrap_or(DEFAULT_SHOTS) } else { 0 }
            }
            Some(ShotsField::Rows(_)) | None => 0,
        }
    }

    /// Returns the valid shots among the rows of a SELECT.
    fn select_shots(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        columns: &[Column],
        sql: &str,
        limit: usize,
    ) -> Vec<Shot> {
        let names = match self.catalog.list_select_columns(sql) {
            Ok(names) => names,
            Err(message) => {
                self.add_error(
                    path,
                    &format!(
                        "the database rejects the SELECT of the shots: {}",
                        explain_rejection(&message, sql)
                    ),
                    "this SELECT",
                    "write one SELECT that runs in the database's own shell",
                );
                return Vec::new();
            }
        };
        let is_selected = |column: &Column| {
            let many = column.many.as_ref().map(|many| &many.column);
            names.iter().any(|name| {
                name.eq_ignore_ascii_case(&column.name)
                    || many.is_some_and(|many| name.eq_ignore_ascii_case(many))
            })
        };
        if let Some(first) = columns.first().filter(|_| !columns.iter().any(is_selected)) {
            let help = format!("also return a column to fill, such as `{}`", first.name);
            self.add_warning(path, "the SELECT of the shots returns no column to fill", &help);
            return Vec::new();
        }
        match self.catalog.select_rows(sql, limit) {
            Err(message) => {
                self.add_error(
                    path,
                    &format!("the SELECT of the shots failed: {message}"),
                    "",
                    "correct the SELECT until it runs in the database's own shell",
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
                        .filter_map(|(n, v)| Some((n, to_shot_cell(v)?)))
                        .collect();
                    self.check_shot(path, e, columns, &row, true)
                })
                .collect(),
        }
    }

    fn check_shot(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        columns: &[Column],
        row: &BTreeMap<String, ShotCell>,
        checks_names: bool,
    ) -> Option<Shot> {
        let find_cell =
            |name: &str| row.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
        let find_scalar = |name: &String| match find_cell(name) {
            Some(ShotCell::One(one)) => to_value(one),
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
            if checks_names && !names.iter().any(|n| n.eq_ignore_ascii_case(name)) {
                let help = format_suggestion(name, names.iter().copied());
                let cell_path = join_path(path, &[name.as_str().into()]);
                self.add_error(
                    &cell_path,
                    &format!(
                        "the shot has `{name}`, which is not in the key, the context or the columns"
                    ),
                    "no such column",
                    &help,
                );
            }
        }
        if e.key.iter().all(|k| find_cell(k).is_none()) {
            if checks_names {
                self.add_error(
                    path,
                    "a shot needs the key columns",
                    &format!("expected {}", e.key.join(", ")),
                    "",
                );
            }
            return None;
        }
        let mut cells = Vec::new();
        let mut has_cell = false;
        for column in columns {
            let cell = find_cell(&column.name)
                .or_else(|| column.many.as_ref().and_then(|m| find_cell(&m.column)));
            let texts: Option<Vec<String>> = cell.map(|g| match g {
                ShotCell::One(one) => vec![to_value(one).to_string()],
                ShotCell::Many(many) => many.iter().map(|l| to_value(l).to_string()).collect(),
            });
            let Some(texts) = texts else {
                cells.push(CellValue::Nothing);
                continue;
            };
            has_cell = true;
            let checker = Checker::new(column);
            let answer = match cell {
                Some(ShotCell::Many(_)) => checker.check_items(&texts),
                _ => checker.check_text(&texts[0]),
            };
            if answer.state == State::Ok {
                cells.push(answer.value);
            } else {
                let cell_path = join_path(path, &[column.name.as_str().into()]);
                self.add_error(
                    &cell_path,
                    &format!(
                        "a shot has an invalid value: `{}` cannot be \"{}\"",
                        column.name,
                        texts.join(", ")
                    ),
                    if answer.state == State::NotInList {
                        "not in the value list"
                    } else {
                        describe_expected_value(column.kind)
                    },
                    "shots must be valid answers, because the model imitates them",
                );
                cells.push(CellValue::Nothing);
            }
        }
        // The rows of a SELECT have the same position.
        if !has_cell && self.problems.last().is_none_or(|last| last.message != NO_SHOWN_COLUMN) {
            self.add_warning(path, NO_SHOWN_COLUMN, "add the values of some columns");
        }
        Some(Shot {
            key: e.key.iter().map(find_scalar).collect(),
            context: e.context.iter().map(find_scalar).collect(),
            cells,
        })
    }
}

/// Warning about a shot without a value.
const NO_SHOWN_COLUMN: &str = "a shot shows no column";

/// Returns the label of a value that is not a valid answer of a column of this type.
fn describe_expected_value(kind: Type) -> &'static str {
    match kind {
        Type::Integer => "expected a whole number",
        Type::Real => "expected a number",
        Type::Boolean => "expected true or false",
        Type::Date => "expected a date, such as \"1999-12-31\"",
        Type::Url => "expected an absolute URL",
        Type::Text => "not a valid answer",
    }
}

/// Converts a value of a selected shot to a cell. A JSON array becomes a list. Returns `None` for
/// NULL.
fn to_shot_cell(value: Value) -> Option<ShotCell> {
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
