//! Evaluates the parts of an aggregate query row by row: once over the drawn answers, once over the
//! true values. `SQLite` evaluates them both times, so that conditions have the same meaning as in
//! the query.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;

use super::aggregate_query::{AggregateQuery, Group, SummedValue};
use super::tables::ENTITY_COLUMN;
use crate::audit::Draw;
use crate::query::QueryError;
use crate::query::connection::guard::GuardedConnection;
use crate::query::params::{self, Param};
use hqdl_spec::Expansion;
use hqdl_values::cell::CellValue;
use hqdl_values::key::Entity;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Entity number of rows whose entity was added after the draw.
const ADDED: i64 = -1;

/// Which texts `SQLite` puts into one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupCollation {
    /// Equal texts (`BINARY`).
    Exact,
    /// Texts that differ only in the case of ASCII letters (`NOCASE`).
    IgnoresCase,
    /// Texts that differ only in spaces at their end (`RTRIM`).
    IgnoresTrailingSpaces,
}

impl GroupCollation {
    /// Returns the form that all values of a group share.
    pub(super) fn canonicalize(self, value: SqlValue) -> SqlValue {
        match (self, value) {
            (Self::IgnoresCase, SqlValue::Text(text)) => SqlValue::Text(text.to_ascii_lowercase()),
            (Self::IgnoresTrailingSpaces, SqlValue::Text(text)) => {
                SqlValue::Text(text.trim_end_matches(' ').to_owned())
            }
            (_, value) => value,
        }
    }
}

/// A row that satisfies the query's conditions on ordinary columns.
#[derive(Debug)]
pub(super) struct RowFacts {
    /// Position of the row's entity in the draw; `None` if the entity was added later.
    pub(super) entity: Option<usize>,
    /// Values of the GROUP BY expressions, in the form that all values of a group share.
    pub(super) groups: Vec<SqlValue>,
    /// Whether the row satisfies the conditions on expanded columns.
    pub(super) is_selected: bool,
    /// Contribution of the row to each aggregate.
    pub(super) contributions: Vec<RowContribution>,
}

/// Contribution of a row to an aggregate.
#[derive(Debug)]
pub(super) struct RowContribution {
    /// Whether the row satisfies the aggregate's conditions on ordinary columns.
    pub(super) is_in_population: bool,
    /// Whether the row satisfies the aggregate's conditions on expanded columns.
    pub(super) is_selected: bool,
    /// Number that the row adds to the aggregate.
    pub(super) value: f64,
}

/// Tables that contain either the drawn answers or the true values, in the temporary schema of a
/// guarded connection.
pub(super) struct AuditedTables<'a> {
    guard: &'a GuardedConnection,
    draw: &'a Draw,
    expansion: &'a Expansion,
    entities: HashMap<Entity, usize>,
    /// Audited columns. Each pair is a column's position in the expansion and among the audited
    /// columns.
    columns: Vec<(usize, usize)>,
}

impl<'a> AuditedTables<'a> {
    /// Creates the empty tables.
    pub(super) fn create(
        guard: &'a GuardedConnection,
        draw: &'a Draw,
        expansion: &'a Expansion,
    ) -> rusqlite::Result<Self> {
        let columns = draw.find_expansion_columns(expansion);
        let create = |table: &str, extra: &str| {
            let table = sql::quote_name(table);
            guard.connection().execute_batch(&format!(
                "CREATE TEMP TABLE {table} AS SELECT *{extra} FROM main.{table} WHERE 0"
            ))
        };
        create(&expansion.name, &format!(", 0 AS {ENTITY_COLUMN}"))?;
        for (column, _) in &columns {
            if let Some(many) = &expansion.columns[*column].many {
                create(&many.table, "")?;
            }
        }
        let entities = draw.frame.iter().enumerate();
        let entities = entities.map(|(n, row)| (expansion.build_entity(&row.key), n)).collect();
        Ok(Self { guard, draw, expansion, entities, columns })
    }

    /// Fills the tables with the drawn answers of all published rows.
    pub(super) fn fill_with_answers(&self) -> rusqlite::Result<()> {
        self.fill_tables(|entity, audited| self.draw.frame[entity].answers[audited].clone(), None)
    }

    /// Fills the tables with the true values of the audited rows only.
    pub(super) fn fill_with_truths(
        &self,
        audited: &HashSet<usize>,
        truth: impl Fn(usize, usize) -> CellValue,
    ) -> rusqlite::Result<()> {
        self.fill_tables(truth, Some(audited))
    }

    fn fill_tables(
        &self,
        value: impl Fn(usize, usize) -> CellValue,
        only: Option<&HashSet<usize>>,
    ) -> rusqlite::Result<()> {
        let connection = self.guard.connection();
        let table = sql::quote_name(&self.expansion.name);
        connection.execute_batch(&format!("DELETE FROM temp.{table}"))?;
        let mut read = connection.prepare(&format!("SELECT * FROM main.{table}"))?;
        let names: Vec<String> = read.column_names().map(str::to_owned).collect();
        let position = |name: &str| names.iter().position(|n| n.eq_ignore_ascii_case(name));
        let key: Vec<usize> =
            self.expansion.key.names().iter().filter_map(|name| position(name)).collect();
        let marks = vec!["?"; names.len() + 1].join(", ");
        let mut insert =
            connection.prepare(&format!("INSERT INTO temp.{table} VALUES ({marks})"))?;
        let mut many = self.prepare_many_inserts(connection)?;
        let mut rows = read.query([])?;
        while let Some(row) = rows.next()? {
            let mut values: Vec<SqlValue> =
                (0..names.len()).map(|n| row.get(n)).collect::<Result<_, _>>()?;
            let parts: Vec<Value> = key.iter().map(|n| to_key_value(&values[*n])).collect();
            let entity = self.entities.get(&self.expansion.build_entity(&parts)).copied();
            if only.is_some_and(|only| !entity.is_some_and(|e| only.contains(&e))) {
                continue;
            }
            for (column, audited) in &self.columns {
                let Some(entity) = entity else { continue };
                let cell = value(entity, *audited);
                if let Some(statement) = many.get_mut(column) {
                    let items = if let CellValue::Many(items) = cell { items } else { Vec::new() };
                    for item in &items {
                        let key = key.iter().map(|n| values[*n].clone());
                        let item = to_sql_value(item.clone());
                        let item: Vec<SqlValue> = key.chain([item]).collect();
                        statement.execute(rusqlite::params_from_iter(item))?;
                    }
                } else if let Some(n) = position(&self.expansion.columns[*column].name) {
                    values[n] = match cell {
                        CellValue::One(value) => to_sql_value(value),
                        CellValue::Nothing | CellValue::Many(_) => SqlValue::Null,
                    };
                }
            }
            values.push(SqlValue::Integer(
                entity.and_then(|e| i64::try_from(e).ok()).unwrap_or(ADDED),
            ));
            insert.execute(rusqlite::params_from_iter(values))?;
        }
        Ok(())
    }

    /// Empties the tables of the one-to-many columns, and prepares inserts into them.
    fn prepare_many_inserts<'c>(
        &self,
        connection: &'c Connection,
    ) -> rusqlite::Result<HashMap<usize, rusqlite::Statement<'c>>> {
        let mut statements = HashMap::new();
        for (column, _) in &self.columns {
            let Some(many) = &self.expansion.columns[*column].many else { continue };
            let table = sql::quote_name(&many.table);
            connection.execute_batch(&format!("DELETE FROM temp.{table}"))?;
            let names = self.expansion.key.names().iter().chain([&many.column]);
            let marks = vec!["?"; self.expansion.key.names().len() + 1].join(", ");
            let insert = format!(
                "INSERT INTO temp.{table} ({}) VALUES ({marks})",
                sql::quote_names("", names)
            );
            statements.insert(*column, connection.prepare(&insert)?);
        }
        Ok(statements)
    }

    /// Returns, for each GROUP BY expression, which texts `SQLite` puts into one group.
    pub(super) fn find_group_collations(
        &self,
        aggregate_query: &AggregateQuery,
        params: &[(Param, Value)],
    ) -> Result<Vec<GroupCollation>, QueryError> {
        let merges_with = |group: &Group, text: &str| -> Result<bool, QueryError> {
            // UNION compares texts as the first SELECT's column does.
            let select = format!(
                "SELECT count(*) = 1 FROM (
                   SELECT {} FROM {} WHERE 0 UNION SELECT 'a' UNION SELECT '{text}')",
                group.sql, aggregate_query.from
            );
            let failed = |e: rusqlite::Error| self.guard.query_error(&e, &select);
            let mut statement = self.guard.connection().prepare(&select).map_err(failed)?;
            params::bind_params(&mut statement, params)?;
            let mut rows = statement.raw_query();
            let row = rows.next().map_err(failed)?;
            row.map_or(Ok(false), |row| row.get(0)).map_err(failed)
        };
        let find_collation = |group: &Group| {
            Ok(if merges_with(group, "A")? {
                GroupCollation::IgnoresCase
            } else if merges_with(group, "a ")? {
                GroupCollation::IgnoresTrailingSpaces
            } else {
                GroupCollation::Exact
            })
        };
        self.guard.lock_temp()?;
        let found = aggregate_query.groups.iter().map(find_collation).collect();
        self.guard.unlock_temp()?;
        found
    }

    /// Evaluates the parts of a query over the tables' current values. `collations` are those of the
    /// groups.
    pub(super) fn evaluate_rows(
        &self,
        aggregate_query: &AggregateQuery,
        collations: &[GroupCollation],
        params: &[(Param, Value)],
    ) -> Result<Vec<RowFacts>, QueryError> {
        let text = build_facts_select(aggregate_query);
        self.guard.lock_temp()?;
        let read = || -> Result<Vec<RowFacts>, QueryError> {
            let failed = |e: rusqlite::Error| self.guard.query_error(&e, &text);
            let mut statement = self.guard.connection().prepare(&text).map_err(failed)?;
            params::bind_params(&mut statement, params)?;
            self.guard.start_timeout();
            let mut rows = statement.raw_query();
            let mut facts = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                facts.push(parse_facts(aggregate_query, collations, row).map_err(failed)?);
            }
            Ok(facts)
        };
        let facts = read();
        self.guard.unlock_temp()?;
        facts
    }
}

/// Returns the SELECT that evaluates the parts of the query for each row.
fn build_facts_select(aggregate_query: &AggregateQuery) -> String {
    let all = |conditions: &[String]| match conditions {
        [] => "1".to_owned(),
        conditions => format!("(({}) IS TRUE)", conditions.join(" AND ")),
    };
    let mut columns = vec![aggregate_query.entity.clone(), all(&aggregate_query.condition)];
    columns.extend(aggregate_query.groups.iter().map(|group| group.sql.clone()));
    for aggregate in &aggregate_query.row_aggregates {
        let value = match &aggregate.value {
            SummedValue::One => "1.0".to_owned(),
            SummedValue::Ordinary(text) | SummedValue::Expanded(text, _) => {
                format!("CAST(({text}\n) AS REAL)")
            }
        };
        columns.extend([all(&aggregate.population), all(&aggregate.condition), value]);
    }
    let columns = columns.join(", ");
    format!(
        "SELECT {columns} FROM {} WHERE {}",
        aggregate_query.from,
        all(&aggregate_query.population)
    )
}

fn parse_facts(
    aggregate_query: &AggregateQuery,
    collations: &[GroupCollation],
    row: &rusqlite::Row<'_>,
) -> rusqlite::Result<RowFacts> {
    let entity: Option<i64> = row.get(0)?;
    let first = 2 + aggregate_query.groups.len();
    let contribution = |n: usize| -> rusqlite::Result<RowContribution> {
        let at = first + 3 * n;
        let value: Option<f64> = row.get(at + 2)?;
        Ok(RowContribution {
            is_in_population: row.get(at)?,
            is_selected: row.get(at + 1)?,
            value: value.unwrap_or(0.0),
        })
    };
    Ok(RowFacts {
        entity: entity.and_then(|n| usize::try_from(n).ok()),
        groups: collations
            .iter()
            .zip(2..first)
            .map(|(collation, n)| Ok(collation.canonicalize(row.get(n)?)))
            .collect::<rusqlite::Result<_>>()?,
        is_selected: row.get(1)?,
        contributions: (0..aggregate_query.row_aggregates.len())
            .map(contribution)
            .collect::<Result<_, _>>()?,
    })
}

fn to_key_value(value: &SqlValue) -> Value {
    match value {
        SqlValue::Integer(i) => Value::Integer(*i),
        SqlValue::Real(r) => Value::Real(*r),
        SqlValue::Text(text) => Value::Text(text.clone()),
        SqlValue::Null | SqlValue::Blob(_) => Value::Null,
    }
}

fn to_sql_value(value: Value) -> SqlValue {
    match value {
        Value::Null => SqlValue::Null,
        Value::Integer(i) => SqlValue::Integer(i),
        Value::Real(r) => SqlValue::Real(r),
        Value::Text(text) => SqlValue::Text(text),
    }
}
