//! The distinct values of a column, if the values of all keys are known. A question may name such a
//! value even if the column has no value list.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::Row;
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::targets::{Cell, Counts, TargetExpansion};
use crate::query::connection::guard::GuardedConnection;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_spec::SourceRows;
use hqdl_spec::overrides::Overrides;
use hqdl_values::value::Value;

/// Alias of an expansion's source.
const SOURCE: &str = "hqdl_source";
/// Number of entities whose facts are read at once.
const BATCH_ENTITIES: usize = 256;

/// Returns the distinct values of a column, given the position of its expansion in the spec and the
/// column's position in the expansion. Returns `None` if the value of any key is unknown.
///
/// # Errors
/// Returns [`QueryError`] if the sources or the facts cannot be read.
pub(in crate::query) fn read_stored_values(
    request: &Request<'_>,
    guard: &GuardedConnection,
    (number, column): (usize, usize),
) -> Result<Option<Vec<String>>, QueryError> {
    if guard.database().server_url().is_some() {
        // Do not scan sources on a server.
        return Ok(None);
    }
    let expansion = &request.spec.expansions[number];
    let requirements =
        request.choose_models(expansion).build_requirements(request.facts.history(), expansion)?;
    let mut target =
        TargetExpansion::new(Arc::new(expansion.clone()), Arc::new(requirements), Some(number));
    target.load_contexts(guard.path())?;
    let overrides = Overrides::read(request.spec)?;
    let facts = request.facts.sync();
    let mut found = StoredValues::default();
    let sources = expansion.sources.iter().enumerate();
    for (n, source) in sources.filter(|(_, s)| s.columns.contains(&column)) {
        // If each source has only a part of the key, the other columns are NULL.
        let part = expansion.key_parts.get(n);
        let selected = expansion.key.names().iter().enumerate().map(|(at, name)| {
            // Qualify the name, because `SQLite` reads an unknown double-quoted name as a text.
            let name = hqdl_values::sql::quote_name(name);
            if part.is_none_or(|part| part.contains(&at)) {
                format!("{SOURCE}.{name}")
            } else {
                format!("NULL AS {name}")
            }
        });
        let names = selected.collect::<Vec<_>>().join(", ");
        let from = match &source.rows {
            SourceRows::Table(table) => hqdl_values::sql::quote_name(table),
            // The line break ends a comment at the end of the SELECT.
            SourceRows::Select(select) => format!("({select}\n)"),
        };
        let sql = format!("SELECT DISTINCT {names} FROM {from} AS {SOURCE}");
        let failed = |e: rusqlite::Error| guard.query_error(&e, &sql);
        let mut statement = guard.connection().prepare(&sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let mut entities = Vec::with_capacity(BATCH_ENTITIES);
        loop {
            let row = rows.next().map_err(failed)?;
            let is_end = row.is_none();
            if let Some(row) = row {
                entities.extend(read_entity(row, part.is_some(), &mut target));
            }
            if is_end || entities.len() == BATCH_ENTITIES {
                target.load_records(&entities, facts)?;
                for entity in entities.drain(..) {
                    let mut counts = Counts::default();
                    let overrides = Some(&overrides);
                    match target.look_up_cell(entity, column, facts, overrides, &mut counts)? {
                        Cell::Known(value) => found.add_value(value),
                        _ => return Ok(None),
                    }
                }
            }
            if is_end {
                break;
            }
        }
    }
    Ok(Some(found.texts))
}

/// Distinct values, in the order of their first occurrence.
#[derive(Default)]
struct StoredValues {
    texts: Vec<String>,
    known: HashSet<String>,
}

impl StoredValues {
    fn add_value(&mut self, value: &Sql) {
        let text = match value {
            Sql::Text(text) => text.clone(),
            Sql::Integer(i) => i.to_string(),
            Sql::Real(r) => r.to_string(),
            Sql::Null | Sql::Blob(_) => return,
        };
        if self.known.insert(text.clone()) {
            self.texts.push(text);
        }
    }
}

/// Returns the entity of a source's row, or `None` if the row's key is NULL or cannot be read.
/// `has_part` is true if the source has only some of the key's columns.
fn read_entity(row: &Row<'_>, has_part: bool, target: &mut TargetExpansion) -> Option<usize> {
    let parts: Vec<ValueRef<'_>> = (0..target.expansion.key.names().len())
        .map(|n| row.get_ref(n).unwrap_or(ValueRef::Null))
        .collect();
    let key: Result<Vec<Value>, _> = parts.iter().map(|p| Value::from_sqlite(*p)).collect();
    let key = key.ok()?;
    let is_null_key = if has_part {
        key.iter().all(|v| *v == Value::Null)
    } else {
        key.first() == Some(&Value::Null)
    };
    if is_null_key {
        return None;
    }
    let mut canonical_bytes = Vec::new();
    write_canonical_bytes(&parts, &mut canonical_bytes);
    target.intern_values(&canonical_bytes)
}
