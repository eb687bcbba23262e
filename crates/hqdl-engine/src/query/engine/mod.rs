//! Runs a query with calls in passes: run the SQL, collect the demands, send them to the model, and
//! run again until nothing is pending. The rows of the last pass are the result, since all its
//! values are known.

pub(in crate::query) mod nested;
pub(in crate::query) mod explain;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rusqlite::types::ValueRef;

use crate::query::ask::Asking;
use crate::query::binder::Binder;
use crate::query::calls::views::views;
use crate::query::calls::{Calls, Usages};
use crate::query::context::Contexts;
use crate::query::engine::nested::Nested;
use crate::query::functions::register;
use crate::query::guard::Guard;
use crate::query::kept::Kept;
use crate::query::kinds::Kinds;
use crate::query::live::{Live, Shared, lock};
use crate::query::schema::{KnownSchema, ThroughViews};
use crate::query::smoothie::{Meta, Pass, Route, RouteKind, Sink};
use crate::query::targets::Demand;
use crate::query::validation::{outer, validate};
use crate::query::{QueryError, Request, params, statement};
use hqdl_spec::Spec;
use hqdl_spec::overrides::Overrides;
use hqdl_sql::blendsql::parse::{Parsed, parse};
use hqdl_sql::blendsql::plan::QueryPlan;
use hqdl_sql::blendsql::plan::Refused;
use hqdl_sql::blendsql::rewrite::{Costs, Rewriter, Rewritten};
use hqdl_sql::blendsql::rules::stored_columns::direct;
use hqdl_sql::blendsql::spelling::Spelled;
use hqdl_sql::blendsql::{self, Argument, SqlError, usage};
use hqdl_values::problem::nearest;
use hqdl_values::usage::Usage;

impl From<SqlError> for QueryError {
    fn from(error: SqlError) -> Self {
        let known = error.known();
        let suggests = error.suggests;
        let help: Vec<String> = error.help.into_iter().chain(known).collect();
        let help = help.join(if suggests { " " } else { "; " });
        Self::sql(error.message, Some(error.span), error.label, help)
    }
}

/// Runs a query with calls.
///
/// # Errors
/// [`QueryError`]; answers received before the error are kept.
pub fn run(request: &Request<'_>, sink: &mut dyn Sink) -> Result<Meta, QueryError> {
    let began = Instant::now();
    let asking = Asking::of(request);
    let ended = within(request, Some(&asking), sink, began);
    let usage = asking.end(ended.is_ok())?;
    let mut meta = ended?;
    meta.set_usage(&usage);
    Ok(meta)
}

/// Runs a nested query within the run of the outer query. The usage of the run is not added to its
/// meta, since the outer query reports it.
pub(in crate::query) fn within(
    request: &Request<'_>,
    asking: Option<&Asking<'_>>,
    sink: &mut dyn Sink,
    began: Instant,
) -> Result<Meta, QueryError> {
    let mut engine = Engine::prepare(request, asking)?;
    engine.passes(sink)?;
    Ok(engine.meta(Usage::default(), began))
}

/// State of a query that is being run or explained.
pub(in crate::query) struct Engine<'r, 'a> {
    pub(in crate::query) request: &'r Request<'r>,
    /// The run that sends requests; `None` if the query is only explained.
    pub(in crate::query) asking: Option<&'r Asking<'a>>,
    pub(in crate::query) spelled: Spelled,
    pub(in crate::query) parsed: Parsed,
    guard: Guard,
    pub(in crate::query) schema: KnownSchema,
    pub(in crate::query) calls: Calls,
    pub(in crate::query) live: Shared,
    pub(in crate::query) costs: Costs,
    /// Subqueries whose LIMIT is already evaluated: their first rows are known.
    pub(in crate::query) settled: Vec<usize>,
    /// Whether an unordered LIMIT is evaluated in similarity order.
    pub(in crate::query) retrieves: bool,
    /// The query over published tables, as long as these may answer all of it.
    direct: Option<Rewritten>,
    /// Reason why published tables do not answer the query.
    pub(in crate::query) not_stored: Refused,
    pub(in crate::query) passes: Vec<Pass>,
    pub(in crate::query) sql: String,
    /// Meta of the nested queries that returned options.
    inner: Vec<Meta>,
    /// Notes on the text of the query.
    notes: Vec<String>,
}

impl<'r, 'a> Engine<'r, 'a> {
    /// Parses a query and decides its routes. Without `lazy_run`, no request is sent.
    pub(in crate::query) fn prepare(
        request: &'r Request<'r>,
        asking: Option<&'r Asking<'a>>,
    ) -> Result<Self, QueryError> {
        let spelled = Spelled::of(request.sql)?;
        let prepared = Self::prepared(request, &spelled, asking);
        prepared.map_err(|error| match error {
            // Map the span back to the text that the user wrote.
            QueryError::Sql(mut problem) => {
                problem.span = problem.span.map(|s| spelled.place(&s));
                QueryError::Sql(problem)
            }
            other => other,
        })
    }

    fn prepared(
        request: &'r Request<'r>,
        spelled: &Spelled,
        asking: Option<&'r Asking<'a>>,
    ) -> Result<Self, QueryError> {
        let text = spelled.text.clone();
        let guard = Guard::open(request.database, request.timeout, request.interrupt.clone())?;
        let schema = KnownSchema::read(&guard)?;
        let found = blendsql::scan_with_tables(&text, &|table| schema.has_table(table))?;
        let server = guard.database().url().is_some();
        let parsed = if server {
            parse(&blendsql::blank_server_words(&text), found)?
        } else {
            parse(&text, found)?
        };
        if !parsed.lone && !server {
            statement::check(&blendsql::mask(&text, &outer(&parsed)))?;
        }
        let notes = if server { Vec::new() } else { validate(&text, &parsed, &guard)? };
        let usages = usage::of_calls(&text, &parsed, &schema);
        let through = schema
            .reads_view(&parsed.query)
            .then(|| usage::of_calls(&text, &parsed, &ThroughViews(&schema)));
        let kinds = Kinds::read(guard.connection(), request.spec);
        let usages = Usages { plain: &usages, through: through.as_ref(), kinds };
        let model = request.model.as_ref().map_or(request.spec.model.name.as_str(), |m| m.name());
        models(&parsed, request.spec)?;
        let mut nested = Nested {
            request,
            guard: &guard,
            schema: &schema,
            asking,
            inner: Vec::new(),
            tables: 0,
        };
        let mut binder = Binder::new(request, model, asking);
        let mut calls =
            Calls::decide(&text, &parsed, &usages, request.spec, &mut nested, &mut binder)?;
        let inner = nested.inner;
        let targets = calls.targets(request)?;
        let overrides = match request.spec.expansions.as_slice() {
            [] => None,
            _ => Some(Overrides::read(request.spec)?),
        };
        let views = views(&calls, &targets, overrides.as_ref(), request, &guard)?;
        let views = views.filter(|_| request.again.is_none());
        let not_stored = match &views {
            _ if request.spec.expansions.is_empty() => "the spec has no expansion",
            _ if request.again.is_some() => "the query asks again for known values",
            _ if calls.stored.len() < calls.sites.len() => "a call is not answered by a column",
            None => "a published table is missing, out of date, or not joined by its key",
            Some(_) => "a call is in a place where no table can be joined, or a value is missing",
        };
        let direct = views.and_then(|v| direct(&text, &parsed, &calls.sites, &v, server));
        let facts = request.facts.recent().clone();
        let contexts = Contexts::new(request);
        let mut live = Live::new(facts, calls.asks.clone(), targets, calls.joins.len(), contexts);
        live.known.overrides = overrides;
        live.statement.recursing = parsed.recursing();
        let live = Arc::new(Mutex::new(live));
        register(guard.connection(), &live).map_err(|e| guard.error(&e, request.sql))?;
        guard.lock()?;
        Ok(Self {
            request,
            asking,
            spelled: spelled.clone(),
            parsed,
            guard,
            schema,
            calls,
            live,
            costs: Costs::default(),
            settled: Vec::new(),
            retrieves: true,
            direct,
            not_stored,
            passes: Vec::new(),
            sql: String::new(),
            inner,
            notes,
        })
    }

    /// Returns the SQL to run; with `topk_enabled`, LIMIT pushdown is applied where possible.
    pub(in crate::query) fn rewrite(&self, firsts: bool) -> Rewritten {
        self.rewriter(firsts).run(&self.parsed)
    }

    /// Returns a subquery as a standalone statement that yields its first rows.
    pub(in crate::query) fn rewrite_alone(&self, at: usize) -> Rewritten {
        let mut rewriter = self.rewriter(true);
        rewriter.alone = Some(at);
        rewriter.run(&self.parsed)
    }

    fn rewriter(&self, firsts: bool) -> Rewriter<'_> {
        let mut rewriter =
            Rewriter::new(&self.spelled.text, &self.calls.sites, &self.schema, &self.costs);
        rewriter.retrieves = self.retrieves;
        rewriter.firsts = firsts;
        rewriter.settled = &self.settled;
        rewriter
    }

    /// Runs the query over published tables. Returns `None` if these lack a needed value or cannot
    /// be used.
    pub(in crate::query) fn over_tables(
        &mut self,
    ) -> Result<Option<(Rewritten, Kept)>, QueryError> {
        let Some(direct) = self.direct.take() else { return Ok(None) };
        let began = Instant::now();
        {
            let mut live = lock(&self.live);
            live.takes(&direct);
            live.begin();
            live.statement.stored = true;
        }
        let mut kept = Kept::default();
        match self.run_once(&direct, &mut kept) {
            Ok(()) => {
                self.sql.clone_from(&direct.sql);
                self.passes.push(Pass { demanded: 0, seconds: began.elapsed().as_secs_f64() });
                Ok(Some((direct, kept)))
            }
            // If the query itself is wrong, running it the other way reports the error.
            Err(QueryError::Sql(_)) => {
                lock(&self.live).statement.stored = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the query over published tables in the server's SQL dialect, and the columns that it
    /// reads of each expansion.
    pub(in crate::query) fn on_server(
        &mut self,
    ) -> Result<(Rewritten, BTreeMap<usize, Vec<String>>), QueryError> {
        let Some(direct) = self.direct.take() else { return Err(self.refusal()) };
        let mut reads: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for stored in self.calls.stored.values() {
            let columns = &self.request.spec.expansions[stored.expansion].columns;
            let of = reads.entry(stored.expansion).or_default();
            of.extend(stored.reads.iter().map(|at| columns[*at].name.clone()));
        }
        Ok((direct, reads))
    }

    /// Returns the error for a query that cannot run on a server, with a hint.
    fn refusal(&self) -> QueryError {
        let spec = self.request.spec.path.display();
        let live = self.calls.routes.iter().position(|r| r.route == RouteKind::AdHoc);
        let other = (0..self.calls.sites.len()).find(|n| !self.calls.stored.contains_key(n));
        let place = |n: usize| self.parsed.calls.get(n).map(|call| self.spelled.place(&call.span));
        if let (None, Some(n)) = (live, other) {
            return QueryError::sql(
                "this call cannot be answered by joining a published table",
                place(n),
                "it has a list, a return type, or a key that is not a table's",
                "join the published table yourself",
            );
        }
        let Some(n) = live else {
            return QueryError::sql(
                format!("no published table answers the calls: {}", self.not_stored),
                None,
                "",
                format!("update the tables: hqdl materialize {spec}"),
            );
        };
        QueryError::sql(
            "no column answers this call, and hqdl does not ask the model live for a database on a server",
            place(n),
            self.calls.routes[n].why.clone(),
            format!("add the question to a column of the spec, then run: hqdl materialize {spec}"),
        )
    }

    /// Runs the query once, as one pass.
    pub(in crate::query) fn run_once(
        &self,
        rewritten: &Rewritten,
        sink: &mut dyn Sink,
    ) -> Result<(), QueryError> {
        let mut statement = self.prepared_statement(rewritten)?;
        let mut names = ResultNames { sink, rewritten };
        self.stream(&mut statement, &rewritten.sql, &mut names)
    }

    /// Runs a statement only to evaluate its calls, and discards its rows.
    pub(in crate::query) fn probe(&self, sql: &str) -> Result<(), QueryError> {
        // Spans in this SQL do not point into the user's text.
        let mut statement =
            self.guard.connection().prepare(sql).map_err(|e| self.guard.error(&e, ""))?;
        params::bind(&mut statement, &self.request.params)?;
        self.stream(&mut statement, sql, &mut Kept::default())
    }

    /// Checks the query against `SQLite` and its parameters.
    pub(in crate::query) fn is_valid(&self, rewritten: &Rewritten) -> Result<(), QueryError> {
        self.prepared_statement(rewritten).map(drop)
    }

    fn prepared_statement(
        &self,
        rewritten: &Rewritten,
    ) -> Result<rusqlite::Statement<'_>, QueryError> {
        // Spans in this SQL do not point into the user's text.
        let failed = |e: &rusqlite::Error| match self.guard.error(e, &rewritten.sql) {
            QueryError::Sql(mut problem) => {
                problem.span = self.named(&problem.message);
                QueryError::Sql(problem)
            }
            other => other,
        };
        let mut statement =
            self.guard.connection().prepare(&rewritten.sql).map_err(|e| failed(&e))?;
        let used = params::bind(&mut statement, &self.request.params)?;
        params::all_used(&self.request.params, &used, &params::names(&statement))?;
        Ok(statement)
    }

    fn stream(
        &self,
        statement: &mut rusqlite::Statement<'_>,
        sql: &str,
        sink: &mut dyn Sink,
    ) -> Result<(), QueryError> {
        match self.guard.stream(statement, sql, sink) {
            Err(QueryError::Sql(mut problem)) => {
                problem.span = statement::failing(&self.parsed.query, &problem.message)
                    .map(|span| self.spelled.place(&span));
                Err(self.too_long().unwrap_or(QueryError::Sql(problem)))
            }
            other => other.map(|_| ()),
        }
    }

    /// Returns the span of the name that an error message is about.
    fn named(&self, message: &str) -> Option<Range<usize>> {
        if message.starts_with("Expression tree is too large") || message == "Recursion limit" {
            // Conditions around a call are nested around it in the rewritten SQL.
            let deepest = self.parsed.calls.last()?;
            return Some(self.spelled.place(&deepest.span));
        }
        let name = message.strip_prefix("no such ")?.split_once(": ")?.1;
        let quoted: Vec<String> = name.split('.').map(hqdl_values::sql::name).collect();
        for written in [name, &quoted.join(".")] {
            let sql = self.request.sql;
            let mut found = sql.match_indices(written).map(|(at, _)| at..at + written.len());
            let part = |c: char| c.is_alphanumeric() || c == '_';
            // Skip occurrences inside longer names and names of functions.
            let is_whole = |at: &Range<usize>| {
                !sql[..at.start].ends_with(part)
                    && !sql[at.end..].starts_with(|c| part(c) || c == '(')
            };
            if let Some(at) = found.find(is_whole) {
                return Some(at);
            }
        }
        // The name may come from a column in the old syntax, 't::c'.
        self.parsed.calls.iter().flat_map(|call| &call.values).find_map(|value| match value {
            Argument::Column { table: Some(table), column, span } => {
                (format!("{table}.{column}") == name).then(|| self.spelled.place(span))
            }
            _ => None,
        })
    }

    /// Records the questions that are about to be asked, with the origin of their values.
    pub(in crate::query) fn note(&mut self, demands: &[Demand]) -> Result<(), QueryError> {
        let asked: HashSet<(usize, usize)> = demands.iter().map(|d| (d.target, d.column)).collect();
        let live = lock(&self.live);
        let history = self.request.facts.history();
        let mut later = Vec::new();
        for birth in self.calls.births.drain(..) {
            if !asked.contains(&(birth.target, birth.column)) {
                later.push(birth);
                continue;
            }
            let target = &live.known.targets[birth.target];
            let list = target.expansion.columns[birth.column].values.as_ref();
            if let Some(meaning) = target.wanted.meaning(birth.column) {
                history.note_question(meaning, &birth.origin, list.map(|l| l.values.as_slice()))?;
            }
        }
        drop(live);
        self.calls.births = later;
        Ok(())
    }

    /// Returns the error if a context that is too long stopped the query.
    fn too_long(&self) -> Option<QueryError> {
        let too_long = lock(&self.live).known.failure.take()?;
        Some(too_long.error(&self.parsed.calls, &self.spelled.text, &self.spelled))
    }

    /// Sends the rows of the last pass to the sink.
    pub(in crate::query) fn give(
        &mut self,
        rewritten: &Rewritten,
        kept: &Kept,
        sink: &mut dyn Sink,
    ) -> Result<(), QueryError> {
        if kept.over {
            lock(&self.live).begin();
            return self.run_once(rewritten, sink);
        }
        sink.columns(&kept.columns).map_err(QueryError::Output)?;
        for row in &kept.rows {
            let row: Vec<ValueRef<'_>> = row.iter().map(ValueRef::from).collect();
            sink.row(&row).map_err(QueryError::Output)?;
        }
        sink.finish().map_err(QueryError::Output)
    }

    pub(in crate::query) fn meta(&self, usage: Usage, began: Instant) -> Meta {
        let live = lock(&self.live);
        let mut routes = self.calls.routes.clone();
        let (mut notes, mut unbounded) = (self.notes.clone(), Vec::new());
        for (call, cut) in live.known.contexts.cuts() {
            // Routes are in the order of the calls.
            if let Some(route) = routes.get_mut(call) {
                route.why = format!("{}; {cut}", route.why);
                notes.push(format!("{}: {cut}", route.call));
            }
        }
        for (pairs, join) in live.known.joins.iter().zip(&self.calls.joins) {
            if let (Some(narrow), Some(route)) = (join.narrow, routes.get_mut(join.call))
                && pairs.narrowed > 0
            {
                let told = format!(
                    "each value was compared with the {narrow} most similar values of {} (narrow={narrow})",
                    pairs.narrowed
                );
                route.why = format!("{}; {told}", route.why);
                notes.push(format!("{}: {told}", route.call));
            }
        }
        let likened = self.rewrite(true).likened;
        if !likened.is_empty() {
            let by = match &self.request.spec.embeddings {
                Some(embeddings) => format!("by embeddings of `{}`", embeddings.model.name),
                None => "by their words".to_owned(),
            };
            for (_, route) in routes.iter_mut().enumerate().filter(|(n, _)| likened.contains(n)) {
                route.why = format!("{}; most similar documents first, {by}", route.why);
            }
        }
        for (call, route) in self.parsed.calls.iter().zip(&mut routes) {
            if !call.tuning.is_empty() {
                let told = format!("`{}` has no effect here", call.tuning.join("`, `"));
                route.why = format!("{}; {told}", route.why);
                notes.push(format!("{}: {told}", route.call));
            }
        }
        notes.extend(self.asking.and_then(Asking::note));
        let inner = |count: fn(&Meta) -> u64| self.inner.iter().map(count).sum::<u64>();
        for meta in &self.inner {
            let new = |r: &&Route| !routes.iter().any(|known| known.call == r.call);
            let new: Vec<Route> = meta.routes.iter().filter(new).cloned().collect();
            routes.extend(new);
            notes.extend(meta.notes.iter().cloned());
            unbounded.extend(meta.unbounded.iter().cloned());
        }
        Meta {
            requests: usage.requests + inner(|m| m.requests),
            values_asked: live.known.counts.asked + inner(|m| m.values_asked),
            values_reused: live.known.counts.reused + inner(|m| m.values_reused),
            values_missing: live.known.counts.without_value
                + live.known.unreadable.len() as u64
                + live.known.mismatched.len() as u64
                + inner(|m| m.values_missing),
            values_unknown: live.known.counts.unknown + inner(|m| m.values_unknown),
            values_unanswered: 0,
            passes: self.passes.clone(),
            input_tokens: usage.input_tokens + inner(|m| m.input_tokens),
            output_tokens: usage.output_tokens + inner(|m| m.output_tokens),
            cost_usd: usage.cost_usd + self.inner.iter().map(|m| m.cost_usd).sum::<f64>(),
            price_notes: self.request.spec.price_notes(),
            seconds: began.elapsed().as_secs_f64(),
            routes,
            notes,
            unbounded,
            plan: QueryPlan::default(),
            sql: self.sql.clone(),
        }
    }
}

/// Checks that the spec has every model that a call names.
fn models(parsed: &Parsed, spec: &Spec) -> Result<(), QueryError> {
    let wanted = parsed.calls.iter().filter_map(|c| c.model.as_ref());
    let unknown = |(name, _): &&(String, Range<usize>)| spec.model_named(name).is_none();
    let Some((name, span)) = wanted.into_iter().find(unknown) else { return Ok(()) };
    let main = Some(spec.model.name.as_str()).filter(|name| !name.is_empty());
    let known: Vec<&str> = main.into_iter().chain(spec.models.keys().map(String::as_str)).collect();
    let label = match known.as_slice() {
        [] => "the call names no model".to_owned(),
        [one] => format!("the spec has `{one}`"),
        more => format!("there are `{}`", more.join("`, `")),
    };
    let help = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            format!("remove `model=`, or add [model.NAME] to the spec with the name `{name}`")
        }
    };
    let message = format!("the spec does not allow the model `{name}`");
    Err(QueryError::sql(message, Some(span.clone()), label, help))
}

/// Sink that renames result columns to the names of the original query.
struct ResultNames<'s> {
    sink: &'s mut dyn Sink,
    rewritten: &'s Rewritten,
}

impl Sink for ResultNames<'_> {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let named: Vec<String> =
            names.iter().map(|n| self.rewritten.names.get(n).unwrap_or(n).clone()).collect();
        self.sink.columns(&named)
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.sink.row(row)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.sink.finish()
    }
}
