//! A query without calls, run by `SQLite` under guard. It needs neither a model nor facts. The last
//! pass of every other query runs in the same way.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::guard::Guard;
use super::headers::WrittenHeaders;
use super::params::{self, Param};
use super::quoted_texts::note_quoted_texts;
use super::server;
use super::smoothie::{Meta, Pass, Sink};
use super::{Dialect, QueryError, statement};
use hqdl_spec::is_server;
use hqdl_sql::blendsql::parse::{Parsed, parse};
use hqdl_values::value::Value;

/// A query without calls.
pub struct Plain<'a> {
    /// Path of the database.
    pub database: &'a Path,
    /// Text of the query.
    pub sql: &'a str,
    /// SQL dialect of the query.
    pub dialect: Dialect,
    /// Values of the query's parameters.
    pub params: &'a [(Param, Value)],
    /// Maximum time that `SQLite` may spend.
    pub timeout: Option<Duration>,
    /// Becomes true when the user interrupts the query.
    pub interrupt: watch::Receiver<bool>,
}

impl Plain<'_> {
    /// Runs the query and streams its rows to the sink.
    ///
    /// # Errors
    /// [`QueryError`] if the query is wrong, too slow or interrupted, or the database or the sink
    /// fails.
    pub fn run(&self, sink: &mut dyn Sink) -> Result<Meta, QueryError> {
        if self.dialect == Dialect::Suql {
            let mut sink = WrittenHeaders::of(self.sql, self.dialect, sink);
            return self.prepared(Some(&mut sink));
        }
        self.prepared(Some(sink))
    }

    /// Checks that the query could be run.
    ///
    /// # Errors
    /// [`QueryError`] if the query is wrong, or the database fails.
    pub fn explain(&self) -> Result<Meta, QueryError> {
        self.prepared(None)
    }

    fn prepared(&self, sink: Option<&mut dyn Sink>) -> Result<Meta, QueryError> {
        if is_server(self.database) {
            return self.on_server(sink);
        }
        self.dialect.brought(self.sql, self.database, |sql| {
            Plain { sql, dialect: Dialect::Sqlite, interrupt: self.interrupt.clone(), ..*self }
                .ran(sink)
        })
    }

    fn on_server(&self, sink: Option<&mut dyn Sink>) -> Result<Meta, QueryError> {
        server::takes(self.dialect, self.params)?;
        let began = Instant::now();
        let (database, timeout, interrupt) = (self.database, self.timeout, &self.interrupt);
        let runs = sink.is_some();
        server::OnServer { database, timeout, interrupt }.run(self.sql, &|_| None, sink)?;
        let seconds = began.elapsed().as_secs_f64();
        let passes = Vec::from_iter(runs.then_some(Pass { demanded: 0, seconds }));
        Ok(Meta { passes, seconds, sql: self.sql.to_owned(), ..Meta::default() })
    }

    fn ran(&self, sink: Option<&mut dyn Sink>) -> Result<Meta, QueryError> {
        let began = Instant::now();
        statement::check(self.sql)?;
        let guard = Guard::open(self.database, self.timeout, self.interrupt.clone())?;
        guard.lock()?;
        let mut statement =
            guard.connection().prepare(self.sql).map_err(|e| guard.error(&e, self.sql))?;
        let used = params::bind(&mut statement, self.params)?;
        params::all_used(self.params, &used, &params::names(&statement))?;
        let notes = note_quoted_texts(self.sql, guard.connection());
        let mut passes = Vec::new();
        if let Some(sink) = sink {
            guard.stream(&mut statement, self.sql, sink).map_err(|error| match error {
                QueryError::Sql(mut problem) if problem.span.is_none() => {
                    let parsed = parse(self.sql, Vec::new()).ok();
                    let place =
                        |parsed: Parsed| statement::failing(&parsed.query, &problem.message);
                    problem.span = parsed.and_then(place);
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
