//! Confidence intervals of aggregates. An [audit](crate::audit) bounds the distance between the
//! result over the model's answers and the result over the true values.
//!
//! - `aggregate_query` splits the query into its parts, or rejects it.
//! - `samples` evaluates the parts for each row: over the drawn answers, and over the true values.
//! - `estimate` computes an interval for each aggregate and group.
//!
//! The interval uses the answers as they were when the sample was drawn. Later answers and
//! overrides never change the interval, because a sample is not random with respect to answers that
//! depend on it.

mod estimate;
mod query_design;
mod rejection;
mod samples;
mod aggregate_query;
mod tables;

use std::collections::HashSet;

use rusqlite::types::{Value as SqlValue, ValueRef};
use serde_json::{Value as Json, json};

use self::aggregate_query::{AggregateQuery, Output};
use self::estimate::{AggregateEstimate, Estimator};
pub use self::query_design::{QueryDesign, design_for_query};
use self::samples::AuditedTables;
use crate::audit::{Audit, AuditError, Evidence};
use crate::query::connection::guard::GuardedConnection;
use crate::query::{Dialect, Meta, PlainQuery, QueryError, QueryResult, RowSink, may_need_model};
use hqdl_database::Database;
use hqdl_spec::{Expansion, Spec, is_server};
use hqdl_sql::blendsql::parse::parse_query;
use hqdl_values::cell::CellValue;

/// Settings of the intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntervalRequest {
    /// Confidence of each interval, between 0 and 1.
    pub confidence: f64,
    /// Whether the confidence applies to all groups together.
    pub is_simultaneous: bool,
}

impl IntervalRequest {
    /// Returns a request with a confidence in percent; `None` unless it is at least 50 and below
    /// 100.
    #[must_use]
    pub fn from_percent(percent: f64, is_simultaneous: bool) -> Option<Self> {
        let is_valid = (50.0..100.0).contains(&percent);
        is_valid.then_some(Self { confidence: percent / 100.0, is_simultaneous })
    }
}

/// Runs an aggregate query. For each aggregate `x`, adds columns with the confidence interval of
/// `x` over the true values (`x_low`, `x_high`) and the estimate (`x_estimate`).
///
/// # Errors
/// [`QueryError::Sql`] with the reason if the query or the audit allows no interval.
pub fn run_with_intervals(
    spec: &Spec,
    query: &PlainQuery<'_>,
    request: IntervalRequest,
    sink: &mut dyn RowSink,
) -> Result<Meta, QueryError> {
    check_is_plain(spec, query)?;
    // Run the query first, because SQLite's messages about invalid queries are clearer.
    let mut result = QueryResult::default();
    let mut meta = query.run(&mut result)?;
    let (aggregate_query, audit) = analyze_audited_query(spec, query)?;
    let expansion = &spec.expansions[aggregate_query.expansion];
    let estimates = estimate_rows(query, request, &audit, expansion, &aggregate_query, &result)?;
    meta.interval =
        Some(intervals_to_json(&audit, expansion, &aggregate_query, request, &estimates));
    meta.notes.extend(list_missing_intervals(&aggregate_query, &estimates));
    write_rows(&aggregate_query, &result, &estimates, sink).map_err(QueryError::Output)?;
    Ok(meta)
}

/// Checks that a query allows intervals, but does not run the query.
///
/// # Errors
/// Fails under the same conditions as [`run_with_intervals`], except for errors that depend on the
/// rows.
pub fn check_query(spec: &Spec, query: &PlainQuery<'_>) -> Result<(), QueryError> {
    check_is_plain(spec, query)?;
    query.explain()?;
    analyze_audited_query(spec, query).map(drop)
}

/// Checks that a query sends no request and runs on a database file.
fn check_is_plain(spec: &Spec, query: &PlainQuery<'_>) -> Result<(), QueryError> {
    if query.dialect != Dialect::Sqlite || is_server(query.database) {
        return Err(rejection_error(
            "intervals need a query in SQLite's dialect on a database file",
        ));
    }
    if may_need_model(spec, query.sql, query.dialect, false) {
        return Err(rejection_error("the query asks a model; query the spec's columns instead"));
    }
    Ok(())
}

/// Returns the parts of a query, and the audit of the expansion that it reads.
fn analyze_audited_query(
    spec: &Spec,
    query: &PlainQuery<'_>,
) -> Result<(AggregateQuery, Audit), QueryError> {
    let published = Database::open(query.database)?;
    let parsed = parse_query(query.sql)?;
    let aggregate_query =
        aggregate_query::analyze_query(spec, &published, query.sql, &parsed.query)?;
    let expansion = &spec.expansions[aggregate_query.expansion];
    let audit = Audit::read(spec, expansion).map_err(|e| to_query_error(&e))?;
    check_columns_audited(&audit, expansion, &aggregate_query)?;
    Ok((aggregate_query, audit))
}

/// Estimates for one result row, one per output.
type RowEstimates = Vec<Result<AggregateEstimate, String>>;

fn estimate_rows(
    query: &PlainQuery<'_>,
    request: IntervalRequest,
    audit: &Audit,
    expansion: &Expansion,
    aggregate_query: &AggregateQuery,
    result: &QueryResult,
) -> Result<Vec<RowEstimates>, QueryError> {
    let columns: Vec<usize> = aggregate_query.columns.iter().copied().collect();
    let filled = audit.count_filled_rows(&columns, Evidence::Truth);
    let audited: HashSet<usize> = audit.draw.sample()[..filled].iter().copied().collect();
    let truth = |entity: usize, column: usize| audit.sheet.truth(entity, column);
    let is_unknown = |entity: &&usize| {
        columns.iter().any(|c| truth(**entity, *c).is_some_and(|t| t.value.is_none()))
    };
    let unknown: HashSet<usize> = audited.iter().filter(is_unknown).copied().collect();
    let guard =
        GuardedConnection::open_for_query(query.database, query.timeout, query.interrupt.clone())?;
    let failed = |e: rusqlite::Error| guard.query_error(&e, query.sql);
    let tables = AuditedTables::create(&guard, &audit.draw, expansion).map_err(failed)?;
    tables.fill_with_answers().map_err(failed)?;
    let collations = tables.find_group_collations(aggregate_query, query.params)?;
    let answers = tables.evaluate_rows(aggregate_query, &collations, query.params)?;
    let positions = audit.draw.find_expansion_columns(expansion);
    let true_value = |entity: usize, audited: usize| {
        let column = positions.iter().find(|(_, n)| *n == audited).map(|(c, _)| *c);
        let truth = column.and_then(|column| truth(entity, column));
        truth.and_then(|t| t.value.clone()).unwrap_or(CellValue::Nothing)
    };
    tables.fill_with_truths(&audited, true_value).map_err(failed)?;
    let truths = tables.evaluate_rows(aggregate_query, &collations, query.params)?;
    let groups = if request.is_simultaneous { result.rows.len().max(1) } else { 1 };
    let estimator = Estimator {
        aggregate_query,
        draw: &audit.draw,
        audited: &audited,
        unknown: &unknown,
        answers: &answers,
        truths: &truths,
        confidence: 1.0 - (1.0 - request.confidence) / groups as f64,
    };
    let estimate_row = |row: &Vec<SqlValue>| -> RowEstimates {
        let groups = aggregate_query.groups.iter().zip(&collations);
        let group: Vec<SqlValue> =
            groups.map(|(g, collation)| collation.canonicalize(row[g.result].clone())).collect();
        aggregate_query
            .outputs
            .iter()
            .map(|output| estimator.estimate_aggregate(&output.term, &group))
            .collect()
    };
    let estimates: Vec<RowEstimates> = result.rows.iter().map(estimate_row).collect();
    // A single row without an interval is an error; a group without an interval gets NULLs.
    if let (true, [only]) = (aggregate_query.groups.is_empty(), estimates.as_slice())
        && let Some(reason) = only.iter().find_map(|e| e.as_ref().err())
    {
        return Err(rejection_error(reason));
    }
    Ok(estimates)
}

/// Checks that the audit covers every column that the query reads.
fn check_columns_audited(
    audit: &Audit,
    expansion: &Expansion,
    aggregate_query: &AggregateQuery,
) -> Result<(), QueryError> {
    let is_missing = |column: &&usize| audit.draw.find_column(expansion, **column).is_none();
    match aggregate_query.columns.iter().find(is_missing) {
        Some(column) => {
            let name = &expansion.columns[*column].name;
            Err(QueryError::in_sql(
                format!("no interval: the audit of `{}` has no column `{name}`", expansion.name),
                None,
                "",
                format!(
                    "leave --interval out, or move the audit's files away and draw one with `hqdl audit SPEC --columns {name}`"
                ),
            ))
        }
        None => Ok(()),
    }
}

fn rejection_error(reason: &str) -> QueryError {
    QueryError::in_sql(
        format!("no interval: {reason}"),
        None,
        "",
        "leave --interval out, or audit more rows with `hqdl audit`",
    )
}

fn to_query_error(error: &AuditError) -> QueryError {
    QueryError::in_sql(format!("no interval: {error}"), None, "", error.hint())
}

/// Returns the description of the intervals, which `--meta` prints and `--json` includes.
fn intervals_to_json(
    audit: &Audit,
    expansion: &Expansion,
    aggregate_query: &AggregateQuery,
    request: IntervalRequest,
    estimates: &[RowEstimates],
) -> Json {
    let columns: Vec<usize> = aggregate_query.columns.iter().copied().collect();
    let mut methods: Vec<&str> =
        estimates.iter().flatten().flatten().map(|(_, method)| *method).collect();
    methods.sort_unstable();
    methods.dedup();
    let mut assumes = vec![
        "the audited truths are right",
        "filling stopped at a row that does not depend on the results",
    ];
    if aggregate_query.groups.iter().any(|group| group.is_expanded) {
        assumes.push("groups that the model never named are not covered");
    }
    json!({
        "confidence": request.confidence,
        "simultaneous": request.is_simultaneous,
        "audit": audit.draw.id,
        "design": audit.draw.design.name(),
        "population": audit.draw.frame.len(),
        "drawn": audit.draw.sample().len(),
        "audited": audit.count_filled_rows(&columns, Evidence::Truth),
        "columns": columns.iter().map(|c| &expansion.columns[*c].name).collect::<Vec<_>>(),
        "methods": methods,
        "assumes": assumes,
    })
}

/// Returns a note for each reason why groups have no interval.
fn list_missing_intervals(
    aggregate_query: &AggregateQuery,
    estimates: &[RowEstimates],
) -> Vec<String> {
    let mut reasons: Vec<&String> =
        estimates.iter().flatten().filter_map(|e| e.as_ref().err()).collect();
    reasons.sort();
    reasons.dedup();
    let mut notes: Vec<String> =
        reasons.into_iter().map(|reason| format!("a group has no interval: {reason}")).collect();
    if aggregate_query.groups.iter().any(|group| group.is_expanded) {
        notes.push("groups that the model never named are not covered".to_owned());
    }
    notes
}

/// Writes the rows with their intervals.
fn write_rows(
    aggregate_query: &AggregateQuery,
    result: &QueryResult,
    estimates: &[RowEstimates],
    sink: &mut dyn RowSink,
) -> std::io::Result<()> {
    let output_of = |column: usize| aggregate_query.outputs.iter().position(|o| o.result == column);
    let mut names = Vec::new();
    for (n, name) in result.columns.iter().enumerate() {
        names.push(name.clone());
        if output_of(n).is_some() {
            names.extend(["low", "high", "estimate"].map(|end| format!("{name}_{end}")));
        }
    }
    sink.write_columns(&names)?;
    for (row, estimates) in result.rows.iter().zip(estimates) {
        let mut values: Vec<ValueRef<'_>> = Vec::new();
        for (n, value) in row.iter().enumerate() {
            values.push(value.into());
            if let Some(output) = output_of(n) {
                values.extend(to_interval_values(
                    &aggregate_query.outputs[output],
                    aggregate_query,
                    &estimates[output],
                ));
            }
        }
        sink.write_row(&values)?;
    }
    sink.finish()
}

/// Returns the values of an interval's three columns. The bounds of a count are integers.
fn to_interval_values(
    output: &Output,
    aggregate_query: &AggregateQuery,
    estimate: &Result<AggregateEstimate, String>,
) -> [ValueRef<'static>; 3] {
    let Ok((interval, _)) = estimate else { return [ValueRef::Null; 3] };
    let term = &output.term;
    let is_count = term.denominator.is_none()
        && (term.scale - 1.0).abs() < f64::EPSILON
        && aggregate_query.row_aggregates[term.numerator].value
            == aggregate_query::SummedValue::One;
    let end = |number: f64| {
        if number.is_nan() {
            ValueRef::Null
        } else if is_count {
            ValueRef::Integer(number as i64)
        } else {
            ValueRef::Real(number)
        }
    };
    let middle =
        if interval.estimate.is_nan() { ValueRef::Null } else { ValueRef::Real(interval.estimate) };
    [end(interval.low), end(interval.high), middle]
}
