//! Queries over a database on a server. The server runs them in its own SQL dialect, and a call
//! that a published column answers becomes a join with the column's table. No request is sent. If
//! no column answers a call, the query fails with a hint about what to materialize. Cells without
//! an answer are NULL in the result, and a note reports how many rows have such cells.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::query::connection::statement::find_name_span;
use crate::query::explain::explain_nested;
use crate::query::plan::engine::Engine;
use crate::query::plan::prepare::ReadQuery;
use crate::query::read::macros::explain_missing_macro;
use crate::query::request::Request;
use crate::query::request::dialect::Dialect;
use crate::query::request::error::QueryError;
use crate::query::request::params::Param;
use crate::query::result::query_result::{Meta, Pass, RowSink};
use hqdl_database::postgres::query::QueryStop;
use hqdl_database::{Database, StoreError};
use hqdl_model::generate::StopReason as Ended;
use hqdl_spec::Catalog;
use hqdl_sql::blendsql::ingredients::{self, Ingredient};
use hqdl_sql::blendsql::plan::RuleOutcome;
use hqdl_sql::blendsql::rules::STORED_COLUMNS;
use hqdl_values::problem::find_nearest;
use hqdl_values::usage::Usage;
use hqdl_values::value::Value;

pub(in crate::query) struct ServerQuery<'q> {
    pub(in crate::query) database: &'q Path,
    pub(in crate::query) timeout: Option<Duration>,
    pub(in crate::query) interrupt: &'q watch::Receiver<bool>,
}

/// Checks that a query uses no feature that only `SQLite` supports.
pub(in crate::query) fn check_server_support(
    dialect: Dialect,
    params: &[(Param, Value)],
) -> Result<(), QueryError> {
    let reject = |message: &str, help: &str| Err(QueryError::in_sql(message, None, "", help));
    if dialect != Dialect::Sqlite {
        let name = if dialect == Dialect::Suql { "SUQL" } else { dialect.name() };
        return reject(
            &format!("hqdl does not run {name} on a database on a server"),
            "write the query in PostgreSQL's SQL",
        );
    }
    if !params.is_empty() {
        return reject(
            "a query on a database on a server cannot have parameters",
            "write the values into the query",
        );
    }
    Ok(())
}

impl ServerQuery<'_> {
    /// Runs `sql`, which is in the server's dialect. `names` returns the name to show for a column
    /// if it differs. Without a sink, only checks the query.
    pub(in crate::query) fn run_sql(
        &self,
        sql: &str,
        names: &dyn Fn(&str) -> Option<String>,
        sink: Option<&mut dyn RowSink>,
    ) -> Result<(), QueryError> {
        let database = Database::open(self.database)?;
        let to_query_error = |error: StoreError| match error {
            StoreError::Statement { message, .. } => explain_rejection(&message, sql, &database),
            other => other.into(),
        };
        let Some(sink) = sink else {
            return database.check_query(sql).map_err(to_query_error);
        };
        let sink = std::cell::RefCell::new(sink);
        let outcome = database.run_query_on_server(
            sql,
            self.timeout,
            &mut |columns: &[String]| {
                let columns: Vec<String> =
                    columns.iter().map(|c| names(c).unwrap_or_else(|| c.clone())).collect();
                sink.borrow_mut().write_columns(&columns).map_err(QueryError::Output)
            },
            &mut |row| {
                if *self.interrupt.borrow() {
                    return Err(Ended::Interrupted.into());
                }
                sink.borrow_mut().write_row(row).map_err(QueryError::Output)
            },
        );
        outcome.map_err(|stopped| match stopped {
            QueryStop::Store(error) => to_query_error(error),
            QueryStop::Timeout => QueryError::Timeout(self.timeout.unwrap_or_default()),
            QueryStop::Reader(error) => error,
        })?;
        sink.borrow_mut().finish().map_err(QueryError::Output)
    }
}

/// Fragments of `PostgreSQL`'s messages about a value.
const VALUE_ERRORS: [&str; 4] =
    ["invalid input syntax", "division by zero", "out of range", "invalid regular expression"];

/// Returns the error for a query that the server rejects, with the span of the name that the
/// message contains, if any.
fn explain_rejection(message: &str, sql: &str, database: &Database) -> QueryError {
    let name = message.split('"').nth(1).or_else(|| {
        let function = message.strip_prefix("function ")?;
        function.split_once('(').map(|(name, _)| name)
    });
    let name = name.map(|name| name.rsplit('.').next().unwrap_or(name));
    let tables = database.table_names();
    let known: Vec<String> = if message.starts_with("relation ") {
        tables
    } else if message.starts_with("column ") {
        let columns = tables.iter().filter_map(|table| database.table_columns(table));
        columns.flatten().map(|(name, _)| name).collect()
    } else {
        Vec::new()
    };
    let nearest = name.and_then(|name| find_nearest(name, known.iter().map(String::as_str)));
    let concerns_value = VALUE_ERRORS.iter().any(|part| message.contains(part));
    let help = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if message.starts_with("operator does not exist") => {
            "cast one of the two sides, as in a::text = b".to_owned()
        }
        None if concerns_value => "correct this value, or leave out rows that have it".to_owned(),
        None => "the server runs the query: write it in PostgreSQL's SQL".to_owned(),
    };
    let span = name.and_then(|name| {
        let find_text = || sql.find(&format!("'{name}'")).map(|at| at..at + name.len() + 2);
        find_name_span(sql, name).or_else(find_text)
    });
    let span = span.or_else(|| find_operator_span(message, sql));
    QueryError::in_sql(message, span, "", help)
}

/// Explains an error about a macro, which hqdl expands for `SQLite` only.
fn explain_unavailable_macro(error: QueryError) -> QueryError {
    let names = ingredients::list_ingredients().map(Ingredient::name).join(", ");
    match explain_missing_macro(error, &format!("available there: {names}")) {
        QueryError::Sql(mut problem) => {
            problem.message = problem.message.replace("in this dialect", "on PostgreSQL");
            QueryError::Sql(problem)
        }
        other => other,
    }
}

/// Returns the span of the operator that a message such as "operator does not exist: integer = text"
/// names, if the query contains it once.
fn find_operator_span(message: &str, sql: &str) -> Option<std::ops::Range<usize>> {
    let operands = message.strip_prefix("operator does not exist: ")?;
    let is_operator = |word: &&str| !word.contains(|c: char| c.is_alphanumeric());
    let operator = operands.split_whitespace().find(is_operator)?;
    let mut found = sql.match_indices(operator);
    let (at, _) = found.next()?;
    found.next().is_none().then(|| at..at + operator.len())
}

/// Runs a query with calls. Without a sink, only explains it.
pub(in crate::query) fn run_with_calls(
    request: &Request<'_>,
    sink: Option<&mut dyn RowSink>,
) -> Result<Meta, QueryError> {
    check_server_support(request.dialect, &request.params)?;
    let began = Instant::now();
    let query = ReadQuery::parse(request).map_err(explain_unavailable_macro)?;
    let mut engine = Engine::prepare_query(request, query, None, explain_nested)?;
    let (stored_plan, reads) = engine.plan_for_server()?;
    let database = Database::open(request.database)?;
    let (mut unanswered, mut notes) = (0, Vec::new());
    for (expansion, columns) in &reads {
        let expansion = &request.spec.expansions[*expansion];
        let open_count = database.count_unanswered_keys(expansion, columns)?.unsigned_abs();
        if open_count > 0 {
            unanswered += open_count;
            let (rows, are) = if open_count == 1 { ("row", "is") } else { ("rows", "are") };
            notes.push(format!(
                "{open_count} {rows} of `{}` {are} not all answered yet, and NULL in the result; to fill \
                 them: hqdl materialize {}",
                expansion.name,
                request.spec.path.display()
            ));
        }
    }
    let query = ServerQuery {
        database: request.database,
        timeout: request.timeout,
        interrupt: &request.interrupt,
    };
    let questions: Vec<String> =
        engine.parsed.calls.iter().map(|call| call.question.clone()).collect();
    // Name a call's column after its question, not after the joined column (`hq_N`).
    let names =
        |name: &str| questions.get(name.strip_prefix("hq_")?.parse::<usize>().ok()?).cloned();
    let is_explain = sink.is_none();
    query.run_sql(&stored_plan.sql, &names, sink)?;
    engine.sql.clone_from(&stored_plan.sql);
    if !is_explain {
        let seconds = began.elapsed().as_secs_f64();
        engine.passes.push(Pass { demanded: 0, seconds });
    }
    let mut meta = engine.build_meta(Usage::default(), began);
    meta.values_missing += unanswered;
    meta.values_unanswered = unanswered;
    meta.notes.extend(notes);
    let why = "published tables answer every call".to_owned();
    meta.plan.rules.push(RuleOutcome { rule: STORED_COLUMNS, is_applied: true, why });
    Ok(meta)
}
