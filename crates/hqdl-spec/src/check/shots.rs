//! Checks shots: example rows, with the same checks as the model's answers.

use std::collections::BTreeMap;

use super::{Check, did_you_mean, join, literal};
use crate::checker::Checker;
use crate::file::{ExpansionTable, ShotCell, ShotsField, ShotsTable};
use crate::literal::Literal;
use crate::shape::Step;
use crate::{Column, Shot};
use hqdl_values::cell::{CellValue, State};
use hqdl_values::value::Value;

/// Default number of shots from a SELECT or from overrides.
const SHOTS: u32 = 5;

impl Check<'_> {
    pub(crate) fn shots(
        &mut self,
        place: &[Step],
        e: &ExpansionTable,
        columns: &[Column],
    ) -> Vec<Shot> {
        match &e.shots {
            Some(ShotsField::Rows(rows)) => rows
                .iter()
                .enumerate()
                .filter_map(|(n, row)| self.shot(&join(place, &[n.into()]), e, columns, row))
                .collect(),
            Some(ShotsField::Table(ShotsTable { sql: Some(sql), limit, .. })) => {
                let limit = limit.unwrap_or(SHOTS) as usize;
                self.selected(&join(place, &["sql".into()]), e, columns, sql, limit)
            }
            Some(ShotsField::Table(_) | ShotsField::Named(_)) | None => Vec::new(),
        }
    }

    /// Returns how many rows of the overrides are used as examples; the run selects them.
    pub(crate) fn override_shots(&mut self, place: &[Step], e: &ExpansionTable) -> u32 {
        match &e.shots {
            Some(ShotsField::Named(_)) => SHOTS,
            Some(ShotsField::Table(ShotsTable { sql, overrides, limit })) => {
                let wanted = overrides.unwrap_or(false);
                if sql.is_some() == wanted {
                    self.error(
                        place,
                        "`shots` needs a source of rows",
                        "expected either `sql` or `overrides = true`",
                        "",
                    );
                }
                if wanted { limit.unwrap_or(SHOTS) } else { 0 }
            }
            Some(ShotsField::Rows(_)) | None => 0,
        }
    }

    /// Returns the shots that a SELECT yields.
    fn selected(
        &mut self,
        here: &[Step],
        e: &ExpansionTable,
        columns: &[Column],
        sql: &str,
        limit: usize,
    ) -> Vec<Shot> {
        let names = match self.catalog.prepare(sql) {
            Ok(names) => names,
            Err(message) => {
                self.error(
                    here,
                    &format!("SQLite rejects the SELECT of the shots: {message}"),
                    "this SELECT",
                    "correct it until it runs in the sqlite3 shell",
                );
                return Vec::new();
            }
        };
        match self.catalog.select(sql, limit) {
            Err(message) => {
                self.error(here, &format!("the SELECT of the shots failed: {message}"), "", "");
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
                    self.shot(here, e, columns, &row)
                })
                .collect(),
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
                    &format!(
                        "the shot has `{name}`, which is not in the key, the context or the columns"
                    ),
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
                        "a shot has an invalid value: `{}` cannot be \"{}\"",
                        column.name,
                        text.join(", ")
                    ),
                    &format!("this is {}", answer.state.name()),
                    "shots must be valid answers, because the model imitates them",
                );
                cells.push(CellValue::Nothing);
            }
        }
        if !shows {
            self.warn(place, "a shot shows no column", "add the values of some columns");
        }
        Some(Shot {
            key: e.key.iter().map(scalar).collect(),
            context: e.context.iter().map(scalar).collect(),
            cells,
        })
    }
}

/// Converts a value of a selected shot to a cell; a JSON array is a list, NULL is left out.
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
