//! Finds the rows that can change a query's result most, for the design of an audit.

use std::collections::BTreeMap;

use rusqlite::types::Value as SqlValue;

use super::aggregate_query::{AggregateQuery, AggregateTerm, SummedValue, analyze_query};
use super::estimate::Estimator;
use super::samples::AuditedTables;
use crate::audit::{Draw, DrawRequest};
use crate::query::QueryError;
use crate::query::connection::guard::GuardedConnection;
use hqdl_database::{Database, describe_sqlite_error};
use hqdl_spec::Spec;
use hqdl_sql::blendsql::parse::parse_query;
use hqdl_values::key::Entity;

/// One in `CERTAIN_SHARE` rows of a sample is always drawn; the others are drawn at random.
const CERTAIN_SHARE: usize = 4;

/// Design of an audit for a query.
#[derive(Debug)]
pub struct QueryDesign {
    /// Position of the expansion in the spec.
    pub expansion: usize,
    /// Positions of the expansion's columns that the query reads.
    pub columns: Vec<usize>,
    /// Rows that are always drawn; empty if the query only counts.
    pub certain: Vec<Entity>,
}

/// Chooses the expansion, columns and rows to audit for a query.
///
/// # Errors
/// [`QueryError`] with the reason if the query cannot have an interval.
pub fn design_for_query(
    spec: &Spec,
    sources: &Database,
    published: &Database,
    sql: &str,
    sample: usize,
) -> Result<QueryDesign, QueryError> {
    let parsed = parse_query(sql)?;
    let aggregate_query = analyze_query(spec, published, sql, &parsed.query)
        .map_err(|refused| find_rejection(published, sql).unwrap_or(refused))?;
    let expansion = &spec.expansions[aggregate_query.expansion];
    let columns: Vec<usize> = aggregate_query.columns.iter().copied().collect();
    let mut design = QueryDesign {
        expansion: aggregate_query.expansion,
        columns: columns.clone(),
        certain: Vec::new(),
    };
    let is_sum = |term: &&AggregateTerm| {
        term.denominator.is_some()
            || aggregate_query.row_aggregates[term.numerator].value != SummedValue::One
    };
    let Some(term) = aggregate_query.outputs.iter().map(|output| &output.term).find(is_sum) else {
        return Ok(design);
    };
    let request = DrawRequest { columns, ..DrawRequest::default() };
    let draw = Draw::sample_rows(sources, published, expansion, &request)
        .map_err(|e| super::to_query_error(&e))?;
    let interrupt = tokio::sync::watch::channel(false).1;
    let guard = GuardedConnection::open_for_query(published.path(), None, interrupt)?;
    let failed = |e: rusqlite::Error| guard.query_error(&e, sql);
    let tables = AuditedTables::create(&guard, &draw, expansion).map_err(failed)?;
    tables.fill_with_answers().map_err(failed)?;
    let collations = tables.find_group_collations(&aggregate_query, &[])?;
    let answers = tables.evaluate_rows(&aggregate_query, &collations, &[])?;
    let nothing = std::collections::HashSet::new();
    let estimator = Estimator {
        aggregate_query: &aggregate_query,
        draw: &draw,
        audited: &nothing,
        unknown: &nothing,
        answers: &answers,
        truths: &[],
        confidence: 0.95,
    };
    let mut leverages = rank_entities(&aggregate_query, &estimator, term);
    leverages.truncate(sample / CERTAIN_SHARE);
    let entity = |n: usize| expansion.build_entity(&draw.frame[n].key);
    design.certain = leverages.into_iter().map(entity).collect();
    Ok(design)
}

/// Returns the entities, sorted in descending order by the greatest residual that their rows can
/// have.
fn rank_entities(
    aggregate_query: &AggregateQuery,
    estimator: &Estimator<'_>,
    term: &AggregateTerm,
) -> Vec<usize> {
    let numbers = |group: &[SqlValue]| estimator.list_entity_numbers(term, group);
    // Compute each row's residual within its own group; without GROUP BY there is one group.
    let all: Vec<_> = if aggregate_query.groups.is_empty() {
        numbers(&[])
    } else {
        let mut groups: Vec<Vec<SqlValue>> = Vec::new();
        for row in estimator.answers {
            if !groups.contains(&row.groups) {
                groups.push(row.groups.clone());
            }
        }
        groups.iter().flat_map(|group| numbers(group)).collect()
    };
    let (y, x) = all.iter().fold((0.0, 0.0), |(y, x), row| (y + row.model.0, x + row.model.1));
    let ratio = if term.denominator.is_some() && x != 0.0 { y / x } else { 0.0 };
    let mut leverages: BTreeMap<usize, f64> = BTreeMap::new();
    for row in &all {
        let (model_y, model_x) = row.model;
        let residual = |(y, x): &(f64, f64)| (y - model_y - ratio * (x - model_x)).abs();
        let greatest = row.possible.iter().map(residual).fold(0.0, f64::max);
        let leverage = leverages.entry(row.entity).or_default();
        *leverage = leverage.max(greatest);
    }
    let mut ranked: Vec<(usize, f64)> = leverages.into_iter().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.into_iter().map(|(entity, _)| entity).collect()
}

/// Returns `SQLite`'s error if the query names a table or column that does not exist. This error is
/// more useful than the reason why the query has no interval.
fn find_rejection(published: &Database, sql: &str) -> Option<QueryError> {
    let error =
        published.connection().prepare(sql).err().filter(|_| published.server_url().is_none())?;
    let message = describe_sqlite_error(&error);
    let is_name = message.starts_with("no such ");
    let name = message.rsplit(": ").next().unwrap_or_default().to_owned();
    let at = match error {
        rusqlite::Error::SqlInputError { offset, .. } => usize::try_from(offset).ok(),
        _ => None,
    };
    let span = at.map(|at| at..(at + name.len()).min(sql.len()));
    let help = "name published tables, which `hqdl materialize` creates, and their columns";
    is_name.then(|| QueryError::in_sql(message, span, "", help))
}
