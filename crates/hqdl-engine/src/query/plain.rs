//! Runs queries without calls, on a guarded `SQLite` connection or on the database's server. They
//! need neither a model nor facts.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::quoted_texts::describe_quoted_texts;
use crate::query::connection::statement;
use crate::query::read::{run_with_remapped_spans, translate_plain_query};
use crate::query::request::Request;
use crate::query::request::dialect::Dialect;
use crate::query::request::error::QueryError;
use crate::query::request::params::{self, Param};
use crate::query::result::headers::SourceHeaders;
use crate::query::result::query_result::{Meta, Pass, RowSink};
use crate::query::server;
use hqdl_spec::is_server;
use hqdl_sql::blendsql::parse::{ParsedQuery, Syntax, parse_query};
use hqdl_values::value::Value;

/// A query without calls.
pub struct PlainQuery<'a> {
    /// Path of the database.
    pub database: &'a Path,
    /// Text of the query.
    pub sql: &'a str,
    /// SQL dialect of the query.
    pub dialect: Dialect,
    /// Values of the query's parameters.
    pub params: &'a [(Param, Value)],
    /// Time limit of the query, if any.
    pub timeout: Option<Duration>,
    /// Becomes true when the user interrupts the query.
    pub interrupt: watch::Receiver<bool>,
}

impl<'a> Request<'a> {
    /// Returns a [`PlainQuery`] with the text and the settings of this request.
    #[must_use]
    pub fn to_plain(&'a self) -> PlainQuery<'a> {
        PlainQuery {
            database: self.database,
            sql: self.sql,
            dialect: self.dialect,
            params: &self.params,
            timeout: self.timeout,
            interrupt: self.interrupt.clone(),
        }
    }
}

impl PlainQuery<'_> {
    /// Runs the query and streams its rows to the sink.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the query is invalid, exceeds the time limit or is interrupted, or
    /// if the database or the sink fails.
    pub fn run(&self, sink: &mut dyn RowSink) -> Result<Meta, QueryError> {
        self.run_or_check(Some(sink))
    }

    /// Checks that the query is valid, without running it.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the query is invalid, or if the database fails.
    pub fn explain(&self) -> Result<Meta, QueryError> {
        self.run_or_check(None)
    }

    /// Runs the query. Without a sink, only checks it.
    fn run_or_check(&self, sink: Option<&mut dyn RowSink>) -> Result<Meta, QueryError> {
        // The check reads `SQLite`'s strings. Those of `PostgreSQL` can contain other quotes, so a
        // translated query is checked after its translation.
        if is_server(self.database) || !self.dialect.has_postgres_syntax() {
            statement::check_read_only(self.sql)?;
        }
        if is_server(self.database) {
            return self.run_on_server(sink);
        }
        match translate_plain_query(self.sql, self.dialect, self.database)? {
            None => self.run_on_sqlite(self.sql, sink),
            Some(translated) => run_with_remapped_spans(&translated, |sql| {
                statement::check_read_only(sql)?;
                // The columns are named after the original query.
                let mut headers = sink.map(|sink| {
                    SourceHeaders::new(self.sql, self.dialect, Syntax::default(), sink)
                });
                self.run_on_sqlite(sql, headers.as_mut().map(|sink| sink as &mut dyn RowSink))
            }),
        }
    }

    fn run_on_server(&self, sink: Option<&mut dyn RowSink>) -> Result<Meta, QueryError> {
        server::check_server_support(self.dialect, self.params)?;
        let began = Instant::now();
        let (database, timeout, interrupt) = (self.database, self.timeout, &self.interrupt);
        let is_run = sink.is_some();
        server::ServerQuery { database, timeout, interrupt }.run_sql(self.sql, &|_| None, sink)?;
        let seconds = began.elapsed().as_secs_f64();
        let passes = Vec::from_iter(is_run.then_some(Pass { demanded: 0, seconds }));
        Ok(Meta { passes, seconds, sql: self.sql.to_owned(), ..Meta::default() })
    }

    fn run_on_sqlite(&self, sql: &str, sink: Option<&mut dyn RowSink>) -> Result<Meta, QueryError> {
        let began = Instant::now();
        let guard =
            GuardedConnection::open_for_query(self.database, self.timeout, self.interrupt.clone())?;
        guard.lock_temp()?;
        let mut statement =
            guard.connection().prepare(sql).map_err(|e| guard.query_error(&e, sql))?;
        let used = params::bind_params(&mut statement, self.params)?;
        params::check_all_values_used(self.params, &used, &params::list_param_names(&statement))?;
        let notes = describe_quoted_texts(sql, guard.connection());
        let mut passes = Vec::new();
        if let Some(sink) = sink {
            guard.stream_rows(&mut statement, sql, sink).map_err(|error| match error {
                QueryError::Sql(mut problem) if problem.span.is_none() => {
                    let parsed = parse_query(sql).ok();
                    let error_span = |parsed: ParsedQuery| {
                        statement::find_failing_span(&parsed.query, &problem.message)
                    };
                    problem.span = parsed.and_then(error_span);
                    QueryError::Sql(problem)
                }
                other => other,
            })?;
            passes.push(Pass { demanded: 0, seconds: began.elapsed().as_secs_f64() });
        }
        Ok(Meta {
            passes,
            seconds: began.elapsed().as_secs_f64(),
            sql: sql.to_owned(),
            notes,
            ..Meta::default()
        })
    }
}
