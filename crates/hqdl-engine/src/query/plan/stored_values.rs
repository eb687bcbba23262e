//! The distinct values of a column, if the values of all keys are known. A question may name such a
//! value even if the column has no value list.

use std::sync::Arc;

use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::targets::{Cell, Counts, TargetExpansion};
use crate::query::connection::guard::Guard;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_spec::SourceRows;
use hqdl_spec::overrides::Overrides;
use hqdl_values::value::Value;

/// Alias of an expansion's source.
const SOURCE: &str = "hqdl_source";

/// Returns the distinct values of a spec column, which is given by the positions of its expansion
/// and of the column in the expansion. Returns `None` if the value of any key is unknown.
///
/// # Errors
/// Returns [`QueryError`] if the sources or the facts cannot be read.
pub(in crate::query) fn read_stored_values(
    request: &Request<'_>,
    guard: &Guard,
    (number, column): (usize, usize),
) -> Result<Option<Vec<String>>, QueryError> {
    if guard.database().server_url().is_some() {
        // Do not scan sources on a server.
        return Ok(None);
    }
    let expansion = &request.spec.expansions[number];
    let requirements =
        request.choose_models(expansion).requirements(request.facts.history(), expansion)?;
    let mut target =
        TargetExpansion::new(Arc::new(expansion.clone()), Arc::new(requirements), Some(number));
    target.load_contexts(guard.path())?;
    let overrides = Overrides::read(request.spec)?;
    let facts = request.facts.with_latest();
    let mut values: Vec<String> = Vec::new();
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
        while let Some(row) = rows.next().map_err(failed)? {
            let parts: Vec<ValueRef<'_>> = (0..expansion.key.names().len())
                .map(|n| row.get_ref(n).unwrap_or(ValueRef::Null))
                .collect();
            let key: Result<Vec<Value>, _> = parts.iter().map(|p| Value::from_sqlite(*p)).collect();
            let Ok(key) = key else { continue };
            let is_null_key = match part {
                Some(_) => key.iter().all(|v| *v == Value::Null),
                None => key.first() == Some(&Value::Null),
            };
            if is_null_key {
                continue;
            }
            let mut canonical_bytes = Vec::new();
            write_canonical_bytes(&parts, &mut canonical_bytes);
            let Some(entity) = target.intern_values(&canonical_bytes) else { continue };
            let mut counts = Counts::default();
            match target.look_up_cell(entity, column, facts, Some(&overrides), &mut counts)? {
                Cell::Known(Sql::Null) => {}
                Cell::Known(value) => {
                    let text = match value {
                        Sql::Text(text) => text.clone(),
                        Sql::Integer(i) => i.to_string(),
                        Sql::Real(r) => r.to_string(),
                        Sql::Null | Sql::Blob(_) => continue,
                    };
                    if !values.contains(&text) {
                        values.push(text);
                    }
                }
                _ => return Ok(None),
            }
        }
    }
    Ok(Some(values))
}
