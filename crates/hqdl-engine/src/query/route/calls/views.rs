//! Calls that published tables can answer. Each call must be bound to a column whose table exists
//! and was built from the current spec, facts and overrides. No value of the table may have changed
//! since. Otherwise, the SQL function answers the call from the facts.

use std::collections::{BTreeMap, HashMap};

use crate::query::cells::targets::TargetExpansion;
use crate::query::connection::guard::GuardedConnection;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::route::calls::Calls;
use hqdl_database::publish::find_column_affinity;
use hqdl_database::published_state::PublishedState;
use hqdl_spec::Catalog;
use hqdl_spec::overrides::Overrides;
use hqdl_sql::blendsql::emit::stored_columns::PublishedColumn;

/// A bound call that a published table could answer.
#[derive(Debug, Clone)]
pub(in crate::query) struct StoredCall {
    /// Position of the expansion in the spec.
    pub expansion: usize,
    /// SQL expression of the value over columns of the expansion.
    pub value: String,
    /// Positions of the columns that `value` reads.
    pub reads: Vec<usize>,
    /// Source table of the key.
    pub source: String,
    /// Key columns at the call, qualified with their tables.
    pub keys: Vec<String>,
    /// Table of the query that has the whole key, if there is one.
    pub table: Option<String>,
}

/// Returns how to answer each call from a published table, or `None` if any call cannot be answered
/// from a table.
///
/// # Errors
/// Returns [`QueryError`] if the journal fails.
pub(in crate::query) fn find_published_columns(
    calls: &Calls,
    targets: &[TargetExpansion],
    overrides: Option<&Overrides>,
    request: &Request<'_>,
    guard: &GuardedConnection,
) -> Result<Option<BTreeMap<usize, PublishedColumn>>, QueryError> {
    let Some(overrides) = overrides else { return Ok(None) };
    let mut published_versions: HashMap<usize, Option<PublishedState>> = HashMap::new();
    let mut views = BTreeMap::new();
    let server = guard.database().server_url().is_some();
    for n in 0..calls.sites.len() {
        let Some(stored) = calls.stored.get(&n) else { return Ok(None) };
        let expansion = &request.spec.expansions[stored.expansion];
        // A changed context makes answers outdated, but the comparisons below do not detect it. On
        // a server, a query always reads the tables as they were published.
        if expansion.has_row_context() && !server {
            return Ok(None);
        }
        let published = published_versions.entry(stored.expansion).or_insert_with(|| {
            let published = guard.database().load_published_state(request.spec, &expansion.name)?;
            // Use position 0, because changes are checked for each column below.
            let log_position = (request.facts.history().load_journal_id().ok()?, 0);
            let model = request.choose_models(expansion).describe();
            let current = PublishedState::current(
                request.spec,
                stored.expansion,
                &model,
                overrides,
                log_position,
            );
            let is_joinable = server || has_matching_affinities(stored, request, guard);
            (published.has_same_inputs(&current) && is_joinable).then_some(published)
        });
        let Some(published) = published else { return Ok(None) };
        let Some(target) = targets.iter().find(|t| t.in_spec == Some(stored.expansion)) else {
            return Ok(None);
        };
        let history = request.facts.history();
        for at in &stored.reads {
            let column = &expansion.columns[*at];
            let last_changed_at = target
                .requirements
                .identity_id(*at)
                .map_or(Ok(i64::MAX), |m| history.find_last_changed_row(m))?;
            if !published.has_unchanged_column(column) || last_changed_at > published.head {
                return Ok(None);
            }
        }
        let name = |at: &usize| expansion.columns[*at].name.clone();
        let view = PublishedColumn {
            table: expansion.name.clone(),
            key_columns: expansion.key.names().to_vec(),
            key_sql: if server { cast_keys(stored, request, guard) } else { stored.keys.clone() },
            query_table: stored.table.clone(),
            value: match stored.value.strip_suffix(" AS REAL)").filter(|_| server) {
                // On a server, REAL has only single precision.
                Some(value) => format!("{value} AS DOUBLE PRECISION)"),
                None => stored.value.clone(),
            },
            value_columns: stored.reads.iter().map(name).collect(),
        };
        views.insert(n, view);
    }
    Ok(Some(views))
}

/// Returns the key cast to the column types of the published table, because a server does not
/// compare different types.
fn cast_keys(stored: &StoredCall, request: &Request<'_>, guard: &GuardedConnection) -> Vec<String> {
    let expansion = &request.spec.expansions[stored.expansion];
    let columns = guard.database().table_columns(&expansion.name).unwrap_or_default();
    let data_type = |name: &String| columns.iter().find(|(c, _)| c == name)?.1.clone();
    let keys = stored.keys.iter().zip(expansion.key.names());
    keys.map(|(key, name)| match data_type(name) {
        Some(data_type) => format!("CAST({key} AS {data_type})"),
        None => key.clone(),
    })
    .collect()
}

/// Returns true if the key's columns have the same affinities in the source and in the published
/// table, so that each key matches at most one row.
fn has_matching_affinities(
    stored: &StoredCall,
    request: &Request<'_>,
    guard: &GuardedConnection,
) -> bool {
    let expansion = &request.spec.expansions[stored.expansion];
    let types = |table: &str| guard.database().table_columns(table).unwrap_or_default();
    let (published_types, source_types) = (types(&expansion.name), types(&stored.source));
    expansion.key.names().iter().all(|key| {
        let affinity_in = |columns: &[(String, Option<String>)]| {
            let found = columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(key))?;
            Some(find_column_affinity(found.1.as_deref()))
        };
        affinity_in(&published_types).is_some()
            && affinity_in(&published_types) == affinity_in(&source_types)
    })
}
