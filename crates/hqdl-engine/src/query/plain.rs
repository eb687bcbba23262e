//! Runs queries without calls, on a guarded `SQLite` connection or on the database's server. They
//! need neither a model nor facts.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::quoted_texts::describe_quoted_texts;
use crate::query::connection::statement;
use crate::query::request::Request;
use crate::query::request::dialect::Dialect;
use crate::query::request::error::QueryError;
use crate::query::request::params::{self, Param};
use crate::query::result::headers::SourceHeaders;
use crate::query::result::query_result::{Meta, Pass, RowSink};
use crate::query::server;
use hqdl_spec::is_server;
use hqdl_sql::blendsql::normalize::requote_strings;
use hqdl_sql::blendsql::parse::{ParsedQuery, parse_query};
use hqdl_sql::try_cast::has_try_cast;
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
        // A rewritten query would change the names of its columns.
        if self.dialect != Dialect::Sqlite || has_try_cast(self.sql) {
            let mut sink = SourceHeaders::new(self.sql, self.dialect, sink);
            return self.run_translated_query(Some(&mut sink));
        }
        self.run_translated_query(Some(sink))
    }

    /// Checks that the query is valid, without running it.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the query is invalid, or if the database fails.
    pub fn explain(&self) -> Result<Meta, QueryError> {
        self.run_translated_query(None)
    }

    fn run_translated_query(&self, sink: Option<&mut dyn RowSink>) -> Result<Meta, QueryError> {
        if is_server(self.database) {
            return self.run_on_server(sink);
        }
        let run = |sql: &str| {
            PlainQuery { sql, dialect: Dialect::Sqlite, interrupt: self.interrupt.clone(), ..*self }
                .run_on_sqlite(sink)
        };
        match self.dialect.vendor().filter(|vendor| vendor.has_double_quoted_strings()) {
            None => self.dialect.with_translated_query(self.sql, self.database, run),
            Some(vendor) => {
                let written = requote_strings(self.sql, vendor)?;
                let result = self.dialect.with_translated_query(&written.sql, self.database, run);
                result.map_err(|error| error.map_span(|span| written.map_span_to_original(&span)))
            }
        }
    }

    fn run_on_server(&self, sink: Option<&mut dyn RowSink>) -> Result<Meta, QueryError> {
        server::check_server_support(self.dialect, self.params)?;
        statement::check_read_only(self.sql)?;
        let began = Instant::now();
        let (database, timeout, interrupt) = (self.database, self.timeout, &self.interrupt);
        let is_run = sink.is_some();
        server::ServerQuery { database, timeout, interrupt }.run_sql(self.sql, &|_| None, sink)?;
        let seconds = began.elapsed().as_secs_f64();
        let passes = Vec::from_iter(is_run.then_some(Pass { demanded: 0, seconds }));
        Ok(Meta { passes, seconds, sql: self.sql.to_owned(), ..Meta::default() })
    }

    fn run_on_sqlite(&self, sink: Option<&mut dyn RowSink>) -> Result<Meta, QueryError> {
        let began = Instant::now();
        statement::check_read_only(self.sql)?;
        let guard =
            GuardedConnection::open_for_query(self.database, self.timeout, self.interrupt.clone())?;
        guard.lock_temp()?;
        let mut statement =
            guard.connection().prepare(self.sql).map_err(|e| guard.query_error(&e, self.sql))?;
        let used = params::bind_params(&mut statement, self.params)?;
        params::check_all_values_used(self.params, &used, &params::list_param_names(&statement))?;
        let notes = describe_quoted_texts(self.sql, guard.connection());
        let mut passes = Vec::new();
        if let Some(sink) = sink {
            guard.stream_rows(&mut statement, self.sql, sink).map_err(|error| match error {
                QueryError::Sql(mut problem) if problem.span.is_none() => {
                    let parsed = parse_query(self.sql).ok();
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
            sql: self.sql.to_owned(),
            notes,
            ..Meta::default()
        })
    }
}
