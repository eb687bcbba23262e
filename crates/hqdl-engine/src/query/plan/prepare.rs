//! Prepares a query: parses it, chooses the targets of its calls, and registers their functions.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::query::ask::LazyRun;
use crate::query::cells::context::Contexts;
use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::schema::{KnownSchema, ThroughViews};
use crate::query::connection::statement;
use crate::query::functions::call_runtime::CallRuntime;
use crate::query::functions::register::register_functions;
use crate::query::plan::engine::Engine;
use crate::query::plan::nested::{NestedQueries, NestedRunner};
use crate::query::plan::validation::validate_query;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::route::calls::views::find_published_columns;
use crate::query::route::calls::{CallUsages, Calls};
use crate::query::route::kinds::Kinds;
use crate::query::route::model_router::ModelRouter;
use hqdl_spec::Spec;
use hqdl_spec::overrides::Overrides;
use hqdl_sql::blendsql::emit::stored_columns::rewrite_to_stored_columns;
use hqdl_sql::blendsql::normalize::normalize_query;
use hqdl_sql::blendsql::parse::{ParsedQuery, Syntax};
use hqdl_sql::blendsql::plan::RejectionReason;
use hqdl_sql::blendsql::rewrite::Statistics;
use hqdl_sql::blendsql::usage;
use hqdl_sql::suql::TranslatedQuery;
use hqdl_values::format::format_name_list;
use hqdl_values::problem::find_nearest;

/// A query as a tree, with the connection on which it will run.
pub(in crate::query) struct ReadQuery {
    /// Text of the tree, which contains no macro.
    pub(in crate::query) normalized: TranslatedQuery,
    pub(in crate::query) parsed: ParsedQuery,
    pub(in crate::query) guard: GuardedConnection,
    pub(in crate::query) schema: KnownSchema,
}

/// Opens the database of a query and reads its schema.
pub(in crate::query) fn open_database(
    request: &Request<'_>,
) -> Result<(GuardedConnection, KnownSchema), QueryError> {
    let guard = GuardedConnection::open_for_query(
        request.database,
        request.timeout,
        request.interrupt.clone(),
    )?;
    let schema = KnownSchema::read_schema(&guard)?;
    Ok((guard, schema))
}

impl ReadQuery {
    /// Parses the query of a request. The query must not contain macros.
    pub(in crate::query) fn parse(request: &Request<'_>) -> Result<Self, QueryError> {
        let (guard, schema) = open_database(request)?;
        let is_table = |table: &str| schema.has_table(table);
        let is_server = guard.database().server_url().is_some();
        let syntax = Syntax { is_table: &is_table, is_server, ..Syntax::default() };
        let (normalized, parsed) = normalize_query(request.sql, syntax)?;
        Ok(Self { normalized, parsed, guard, schema })
    }
}

impl<'r, 'a> Engine<'r, 'a> {
    /// Chooses the targets of a query's calls and registers their functions. Sends no request if
    /// `lazy_run` is `None`.
    pub(in crate::query) fn prepare_query(
        request: &'r Request<'r>,
        query: ReadQuery,
        lazy_run: Option<&'r LazyRun<'a>>,
        run_nested: NestedRunner,
    ) -> Result<Self, QueryError> {
        let normalized = query.normalized.clone();
        let engine = Self::prepare_targets(request, query, lazy_run, run_nested);
        // The span must refer to the text that the user wrote.
        engine.map_err(|error| error.map_span(|span| normalized.map_span_to_original(&span)))
    }

    fn prepare_targets(
        request: &'r Request<'r>,
        ReadQuery { normalized, parsed, guard, schema }: ReadQuery,
        lazy_run: Option<&'r LazyRun<'a>>,
        run_nested: NestedRunner,
    ) -> Result<Self, QueryError> {
        let text = &normalized.sql;
        let is_server = guard.database().server_url().is_some();
        if !parsed.is_single_call && !is_server {
            statement::check_read_only(text)?;
        }
        let notes = if is_server { Vec::new() } else { validate_query(text, &parsed, &guard)? };
        check_models(&parsed, request.spec)?;
        let mut nested = NestedQueries {
            request,
            guard: &guard,
            schema: &schema,
            lazy_run,
            run_nested,
            nested_meta: Vec::new(),
            table_count: 0,
        };
        let mut calls = choose_targets(text, &parsed, &mut nested)?;
        let nested_meta = nested.nested_meta;
        let targets = calls.build_targets(request)?;
        let overrides = match request.spec.expansions.as_slice() {
            [] => None,
            _ => Some(Overrides::read(request.spec)?),
        };
        let views = find_published_columns(&calls, &targets, overrides.as_ref(), request, &guard)?;
        let views = views.filter(|_| request.refresh.is_none());
        let no_stored_plan_reason = find_stored_plan_refusal(request, &calls, views.is_some());
        let stored_plan = views
            .and_then(|v| rewrite_to_stored_columns(text, &parsed, &calls.sites, &v, is_server));
        let mut runtime = CallRuntime::new(
            request.facts.sync_for_read().clone(),
            calls.call_targets.clone(),
            targets,
            calls.joins.len(),
            Contexts::new(request),
        );
        runtime.data.overrides = overrides;
        for (pairs, join) in runtime.data.joins.iter_mut().zip(&calls.joins) {
            pairs.min_similarity = join.min_similarity;
        }
        runtime.settings.is_recursive = parsed.mark_calls_in_recursive_ctes();
        let runtime = Arc::new(Mutex::new(runtime));
        register_functions(guard.connection(), &runtime)
            .map_err(|e| guard.query_error(&e, request.sql))?;
        guard.lock_temp()?;
        Ok(Self {
            request,
            lazy_run,
            normalized,
            parsed,
            guard,
            schema,
            calls,
            runtime,
            statistics: Statistics::default(),
            complete_selects: Vec::new(),
            similarity_ordering: true,
            stored_plan,
            no_stored_plan_reason,
            passes: Vec::new(),
            sql: String::new(),
            nested_meta,
            notes,
        })
    }
}

/// Chooses the target of each call according to its usage in the query.
fn choose_targets(
    text: &str,
    parsed: &ParsedQuery,
    nested: &mut NestedQueries<'_, '_>,
) -> Result<Calls, QueryError> {
    let (request, schema) = (nested.request, nested.schema);
    let plain = usage::analyze_calls(text, parsed, schema);
    let through = schema
        .reads_view(&parsed.query)
        .then(|| usage::analyze_calls(text, parsed, &ThroughViews(schema)));
    let kinds = Kinds::read_kinds(nested.guard.connection(), request.spec);
    let usages = CallUsages { plain: &plain, through: through.as_ref(), kinds };
    let model = request.model.as_ref().map_or(request.spec.model.name.as_str(), |m| m.name());
    let mut router = ModelRouter::new(request, model, nested.lazy_run);
    Calls::choose_targets(text, parsed, &usages, request.spec, nested, &mut router)
}

/// Returns the reason why published tables do not answer a query.
fn find_stored_plan_refusal(
    request: &Request<'_>,
    calls: &Calls,
    has_views: bool,
) -> RejectionReason {
    if request.spec.expansions.is_empty() {
        "the spec has no expansion"
    } else if request.refresh.is_some() {
        "the query asks again for known values"
    } else if calls.stored.len() < calls.sites.len() {
        "a call is not answered by a column"
    } else if has_views {
        "a call is in a place where no table can be joined, or a value is missing"
    } else {
        "a published table is missing, out of date, or not joined by its key"
    }
}

/// Checks that the spec has every model that a call names.
fn check_models(parsed: &ParsedQuery, spec: &Spec) -> Result<(), QueryError> {
    let named_models = parsed.calls.iter().filter_map(|c| c.model.as_ref());
    let unknown = |(name, _): &&(String, Range<usize>)| spec.resolve_model(name).is_none();
    let Some((name, span)) = named_models.into_iter().find(unknown) else { return Ok(()) };
    let default_model = Some(spec.model.name.as_str()).filter(|name| !name.is_empty());
    let known: Vec<&str> =
        default_model.into_iter().chain(spec.models.keys().map(String::as_str)).collect();
    let label = match known.as_slice() {
        [] => "the call names no model".to_owned(),
        known => format_name_list("model", known.to_vec()),
    };
    let help = match find_nearest(name, known.iter().copied()) {
        Some(nearest_name) => format!("did you mean `{nearest_name}`?"),
        None => {
            format!("remove `model=`, or use a spec that has a [model.NAME] with the name `{name}`")
        }
    };
    let message = format!("`{name}` is not a model of this query");
    Err(QueryError::in_sql(message, Some(span.clone()), label, help))
}
