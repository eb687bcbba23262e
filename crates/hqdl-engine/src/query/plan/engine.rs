//! A query that is ready to run: its routes, its connection, and the statement of each pass.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use rusqlite::types::ValueRef;

use crate::query::ask::LazyRun;
use crate::query::cells::targets::Demand;
use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::schema::KnownSchema;
use crate::query::connection::statement;
use crate::query::functions::call_runtime::{SharedRuntime, lock_runtime};
use crate::query::request::error::QueryError;
use crate::query::request::{Request, params};
use crate::query::result::query_result::{Meta, Pass, RouteKind, RowSink};
use crate::query::result::row_buffer::RowBuffer;
use crate::query::route::calls::Calls;
use hqdl_sql::blendsql::Argument;
use hqdl_sql::blendsql::parse::ParsedQuery;
use hqdl_sql::blendsql::plan::RejectionReason;
use hqdl_sql::blendsql::rewrite::{Rewriter, RewrittenQuery, Statistics};
use hqdl_sql::suql::TranslatedQuery;

/// State of a query that is being run or explained.
pub(in crate::query) struct Engine<'r, 'a> {
    pub(in crate::query) request: &'r Request<'r>,
    /// Run that sends requests; `None` if the query is only explained.
    pub(in crate::query) lazy_run: Option<&'r LazyRun<'a>>,
    pub(in crate::query) normalized: TranslatedQuery,
    pub(in crate::query) parsed: ParsedQuery,
    pub(super) guard: GuardedConnection,
    pub(in crate::query) schema: KnownSchema,
    pub(in crate::query) calls: Calls,
    pub(in crate::query) runtime: SharedRuntime,
    pub(in crate::query) statistics: Statistics,
    /// Offsets of the subqueries whose LIMIT has been evaluated, so that their first rows are
    /// known.
    pub(in crate::query) complete_selects: Vec<usize>,
    /// Whether an unordered LIMIT is evaluated in similarity order.
    pub(in crate::query) similarity_ordering: bool,
    /// Query over published tables; `None` if they cannot answer the whole query.
    pub(super) stored_plan: Option<RewrittenQuery>,
    /// Reason why published tables do not answer the query.
    pub(in crate::query) no_stored_plan_reason: RejectionReason,
    pub(in crate::query) passes: Vec<Pass>,
    pub(in crate::query) sql: String,
    /// Metadata of the nested queries that returned options.
    pub(super) nested_meta: Vec<Meta>,
    /// Notes about the text of the query.
    pub(super) notes: Vec<String>,
}

impl Engine<'_, '_> {
    /// Returns the rewritten query. Applies LIMIT pushdown where possible if
    /// `limit_pushdown_enabled` is true.
    pub(in crate::query) fn rewrite_query(&self, limit_pushdown_enabled: bool) -> RewrittenQuery {
        self.new_rewriter(limit_pushdown_enabled).rewrite(&self.parsed)
    }

    /// Returns a subquery as a standalone statement that yields its first rows.
    pub(in crate::query) fn rewrite_standalone_subquery(&self, at: usize) -> RewrittenQuery {
        let mut rewriter = self.new_rewriter(true);
        rewriter.standalone = Some(at);
        rewriter.rewrite(&self.parsed)
    }

    fn new_rewriter(&self, limit_pushdown_enabled: bool) -> Rewriter<'_> {
        let mut rewriter =
            Rewriter::new(&self.normalized.sql, &self.calls.sites, &self.schema, &self.statistics);
        rewriter.similarity_ordering = self.similarity_ordering;
        rewriter.limit_pushdown_enabled = limit_pushdown_enabled;
        rewriter.complete_selects = &self.complete_selects;
        rewriter
    }

    /// Runs the query over published tables. Returns `None` if the tables lack a needed value or
    /// cannot be used.
    pub(in crate::query) fn run_stored_plan(
        &mut self,
    ) -> Result<Option<(RewrittenQuery, RowBuffer)>, QueryError> {
        let Some(stored_plan) = self.stored_plan.take() else { return Ok(None) };
        let began = Instant::now();
        {
            let mut runtime = lock_runtime(&self.runtime);
            runtime.load_conditions(&stored_plan);
            runtime.begin_pass();
            runtime.settings.reads_stored_tables = true;
        }
        let mut buffer = RowBuffer::default();
        match self.run_single_pass(&stored_plan, &mut buffer) {
            Ok(()) => {
                self.sql.clone_from(&stored_plan.sql);
                self.passes.push(Pass { demanded: 0, seconds: began.elapsed().as_secs_f64() });
                Ok(Some((stored_plan, buffer)))
            }
            // If the query itself is invalid, running it without published tables reports the
            // error.
            Err(QueryError::Sql(_)) => {
                lock_runtime(&self.runtime).settings.reads_stored_tables = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the query over published tables in the server's SQL dialect, and the columns that it
    /// reads from each expansion.
    pub(in crate::query) fn plan_for_server(
        &mut self,
    ) -> Result<(RewrittenQuery, BTreeMap<usize, Vec<String>>), QueryError> {
        let Some(stored_plan) = self.stored_plan.take() else {
            return Err(self.server_refusal_error());
        };
        let mut reads: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for stored in self.calls.stored.values() {
            let columns = &self.request.spec.expansions[stored.expansion].columns;
            let read_columns = reads.entry(stored.expansion).or_default();
            read_columns.extend(stored.reads.iter().map(|at| columns[*at].name.clone()));
        }
        Ok((stored_plan, reads))
    }

    /// Returns the error for a query that cannot run on a server, with a hint.
    fn server_refusal_error(&self) -> QueryError {
        let spec = self.request.spec.path.display();
        let ad_hoc_call = self.calls.routes.iter().position(|r| r.route == RouteKind::AdHoc);
        let unbound_call = (0..self.calls.sites.len()).find(|n| !self.calls.stored.contains_key(n));
        let call_span = |n: usize| {
            self.parsed.calls.get(n).map(|call| self.normalized.map_span_to_original(&call.span))
        };
        if let (None, Some(n)) = (ad_hoc_call, unbound_call) {
            return QueryError::in_sql(
                "this call cannot be answered by joining a published table",
                call_span(n),
                "it has a list, a return type, or a key that is not a table's",
                "join the published table yourself",
            );
        }
        let Some(n) = ad_hoc_call else {
            return QueryError::in_sql(
                format!("no published table answers the calls: {}", self.no_stored_plan_reason),
                None,
                "",
                format!("update the tables: hqdl materialize {spec}"),
            );
        };
        QueryError::in_sql(
            "no column answers this call, and hqdl does not ask the model live for a database on a server",
            call_span(n),
            self.calls.routes[n].why.clone(),
            format!("add the question to a column of the spec, then run: hqdl materialize {spec}"),
        )
    }

    /// Runs the query in a single pass.
    pub(in crate::query) fn run_single_pass(
        &self,
        rewritten: &RewrittenQuery,
        sink: &mut dyn RowSink,
    ) -> Result<(), QueryError> {
        let mut statement = self.prepare_statement(rewritten)?;
        let mut names = ResultNames { sink, rewritten };
        self.stream_rows(&mut statement, &rewritten.sql, &mut names)
    }

    /// Runs a statement only to evaluate its calls, discarding its rows.
    pub(in crate::query) fn run_probe(&self, sql: &str) -> Result<(), QueryError> {
        // Spans in this SQL do not point into the user's text.
        let mut statement =
            self.guard.connection().prepare(sql).map_err(|e| self.guard.query_error(&e, ""))?;
        params::bind_params(&mut statement, &self.request.params)?;
        self.stream_rows(&mut statement, sql, &mut RowBuffer::default())
    }

    /// Checks the query with `SQLite`, and checks its parameters.
    pub(in crate::query) fn check_statement(
        &self,
        rewritten: &RewrittenQuery,
    ) -> Result<(), QueryError> {
        self.prepare_statement(rewritten).map(drop)
    }

    fn prepare_statement(
        &self,
        rewritten: &RewrittenQuery,
    ) -> Result<rusqlite::Statement<'_>, QueryError> {
        // Spans in this SQL do not point into the user's text.
        let failed = |e: &rusqlite::Error| match self.guard.query_error(e, &rewritten.sql) {
            QueryError::Sql(mut problem) => {
                let message = &problem.message;
                problem.span = self.find_name_span(message).or_else(|| {
                    statement::find_failing_span(&self.parsed.query, message)
                        .map(|span| self.normalized.map_span_to_original(&span))
                });
                QueryError::Sql(problem)
            }
            other => other,
        };
        let mut statement =
            self.guard.connection().prepare(&rewritten.sql).map_err(|e| failed(&e))?;
        let used = params::bind_params(&mut statement, &self.request.params)?;
        params::check_all_values_used(
            &self.request.params,
            &used,
            &params::list_param_names(&statement),
        )?;
        Ok(statement)
    }

    fn stream_rows(
        &self,
        statement: &mut rusqlite::Statement<'_>,
        sql: &str,
        sink: &mut dyn RowSink,
    ) -> Result<(), QueryError> {
        match self.guard.stream_rows(statement, sql, sink) {
            Err(QueryError::Sql(mut problem)) => {
                problem.span = statement::find_failing_span(&self.parsed.query, &problem.message)
                    .map(|span| self.normalized.map_span_to_original(&span));
                Err(self.take_context_error().unwrap_or(QueryError::Sql(problem)))
            }
            other => other.map(|_| ()),
        }
    }

    /// Returns the span of the name that an error message mentions.
    fn find_name_span(&self, message: &str) -> Option<Range<usize>> {
        if message.starts_with("Expression tree is too large") || message == "Recursion limit" {
            // The rewritten SQL nests the conditions around a call, so point at the last call.
            let deepest = self.parsed.calls.last()?;
            return Some(self.normalized.map_span_to_original(&deepest.span));
        }
        let name = message.strip_prefix("no such ")?.split_once(": ")?.1;
        let quoted: Vec<String> = name.split('.').map(hqdl_values::sql::quote_name).collect();
        for spelling_of_name in [name, &quoted.join(".")] {
            let sql = self.request.sql;
            let mut found =
                sql.match_indices(spelling_of_name).map(|(at, _)| at..at + spelling_of_name.len());
            let is_name_char = |c: char| c.is_alphanumeric() || c == '_';
            // Skip occurrences inside longer names and names of functions.
            let is_whole = |at: &Range<usize>| {
                !sql[..at.start].ends_with(is_name_char)
                    && !sql[at.end..].starts_with(|c| is_name_char(c) || c == '(')
            };
            if let Some(at) = found.find(is_whole) {
                return Some(at);
            }
        }
        // The name may come from a column in the legacy syntax, 't::c'.
        self.parsed.calls.iter().flat_map(|call| &call.values).find_map(|value| match value {
            Argument::Column { table: Some(table), column, span } => (format!("{table}.{column}")
                == name)
                .then(|| self.normalized.map_span_to_original(span)),
            _ => None,
        })
    }

    /// Records the ad-hoc questions and the origins of their values before hqdl asks them.
    pub(in crate::query) fn record_questions(
        &mut self,
        demands: &[Demand],
    ) -> Result<(), QueryError> {
        let asked: HashSet<(usize, usize)> =
            demands.iter().map(|d| (d.target(), d.column())).collect();
        let runtime = lock_runtime(&self.runtime);
        let history = self.request.facts.history();
        let mut later = Vec::new();
        for new_question in self.calls.new_questions.drain(..) {
            if !asked.contains(&(new_question.target, new_question.column)) {
                later.push(new_question);
                continue;
            }
            let target = &runtime.data.targets[new_question.target];
            let list = target.expansion.columns[new_question.column].values.as_ref();
            if let Some(identity) = target.requirements.identity_id(new_question.column) {
                history.record_question(
                    identity,
                    &new_question.origin,
                    list.map(|l| l.values.as_slice()),
                )?;
            }
        }
        drop(runtime);
        self.calls.new_questions = later;
        Ok(())
    }

    /// Returns the error if an overlong context stopped the query.
    fn take_context_error(&self) -> Option<QueryError> {
        let too_long = lock_runtime(&self.runtime).data.failure.take()?;
        Some(too_long.query_error(&self.parsed.calls, &self.normalized.sql, &self.normalized))
    }

    /// Sends the rows of the last pass to the sink. If the buffer overflowed, runs the query again.
    pub(in crate::query) fn send_rows(
        &mut self,
        rewritten: &RewrittenQuery,
        buffer: &RowBuffer,
        sink: &mut dyn RowSink,
    ) -> Result<(), QueryError> {
        if buffer.has_overflowed {
            lock_runtime(&self.runtime).begin_pass();
            return self.run_single_pass(rewritten, sink);
        }
        sink.write_columns(&buffer.columns).map_err(QueryError::Output)?;
        for row in &buffer.rows {
            let row: Vec<ValueRef<'_>> = row.iter().map(ValueRef::from).collect();
            sink.write_row(&row).map_err(QueryError::Output)?;
        }
        sink.finish().map_err(QueryError::Output)
    }
}

/// Sink that renames result columns to the names of the original query.
struct ResultNames<'s> {
    sink: &'s mut dyn RowSink,
    rewritten: &'s RewrittenQuery,
}

impl RowSink for ResultNames<'_> {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let renamed: Vec<String> =
            names.iter().map(|n| self.rewritten.result_names.get(n).unwrap_or(n).clone()).collect();
        self.sink.write_columns(&renamed)
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.sink.write_row(row)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.sink.finish()
    }
}
