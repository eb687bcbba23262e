//! Python class for a project: a spec or a database with its overrides and a cache. Each call reads
//! the spec again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hqdl::database::output;
use hqdl::database::provenance::CellProvenance;
use hqdl::facts::Facts;
use hqdl::failure::Failure;
use hqdl::generate::{Event, StopReason};
use hqdl::interval::{IntervalRequest, run_with_intervals};
use hqdl::materialize::{Report, RunMode, Selection};
use hqdl::model::function::add_functions;
use hqdl::model::{self, Model, SetupError};
use hqdl::problem::Problems;
use hqdl::query::{self, Dialect, Meta, Param, QueryError, RefreshScope, Request, ValueQuestion};
use hqdl::session::{Cache, Session, SpecOverrides, override_cell, user_cache_dir};
use hqdl::spec::{PriceTable, Provider, Spec, Type, UncheckedSpec};
use hqdl::value::Value;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PyArray;

use crate::answers;
use crate::cache::{OpenCache, Registry};
use crate::errors::{Failed, lock, wrong_input};
use crate::functions::PythonIngredients;
use crate::rows::ColumnBuffer;
use crate::run::{Interrupt, RunContext, run_work};
use crate::table::Table;
use crate::values::{DistinctValues, read_value};

/// Maximum number of times that a run starts over because its database was replaced.
const MAX_REPLACEMENTS: usize = 3;
/// Description of this process for other processes that use the cache.
const DESCRIPTION: &str = "hqdl in Python";

/// Data of a project.
#[derive(Clone)]
enum DataSource {
    /// A spec with its database.
    Spec(PathBuf),
    /// A database without a spec.
    Database(PathBuf),
    /// Values that Python passes.
    Values,
}

/// Location of a project's facts.
enum FactLocation {
    /// A directory, or the URL of a server.
    Cache(PathBuf),
    /// A temporary cache, and the fork generation that opened it. The cache is deleted with the
    /// project.
    Temporary(Mutex<Option<(usize, Arc<OpenCache>)>>),
}

struct Settings {
    source: DataSource,
    overrides: SpecOverrides,
    facts: FactLocation,
    /// The spec as it was when the project was opened.
    spec: Spec,
}

/// An open project.
#[pyclass(frozen)]
pub struct Project(Arc<Settings>);

impl Settings {
    /// Opens a session. Also returns the handle that keeps the session's cache open.
    fn open_session(&self, budget: Option<f64>) -> Result<(Session, Arc<OpenCache>), Failed> {
        let open_cache = self.open_cache()?;
        let cache = Cache::Open(open_cache.facts.clone());
        let overrides = with_budget(&self.overrides, budget);
        Ok((open_session(&self.source, &overrides, cache)?, open_cache))
    }

    fn open_cache(&self) -> Result<Arc<OpenCache>, Failed> {
        match &self.facts {
            FactLocation::Cache(dir) => Ok(Registry::current().open(dir, DESCRIPTION)?),
            FactLocation::Temporary(cached) => {
                let mut cached = lock(cached);
                let generation = Registry::generation();
                match &*cached {
                    Some((opened_in, cache)) if *opened_in == generation => {
                        return Ok(Arc::clone(cache));
                    }
                    // The parent's cache must not be dropped here, because its threads run only in
                    // the parent.
                    Some((_, parents)) => std::mem::forget(Arc::clone(parents)),
                    None => {}
                }
                let cache = Arc::new(OpenCache::open_temporary()?);
                *cached = Some((generation, Arc::clone(&cache)));
                Ok(cache)
            }
        }
    }

    /// Connects to the spec's model. The inner error is raised only if a request is necessary.
    fn connect_model(
        &self,
        spec: &Spec,
        facts: &Facts,
    ) -> Result<Result<Arc<dyn Model>, Failure>, Failed> {
        if self.has_no_model(spec) {
            return Ok(Err(Failure::wrong_input(
                "this needs a model, but none is named",
                "pass model=\"NAME\", or hqdl.Model(\"NAME\", base_url=…)",
            )));
        }
        match model::connect_with_shared_limits(spec, facts) {
            Ok(model) => Ok(Ok(model)),
            Err(missing @ SetupError::NoKey(_)) => Ok(Err(missing.into())),
            Err(error) => Err(error.into()),
        }
    }

    fn has_no_model(&self, spec: &Spec) -> bool {
        let has_override = self.overrides.model.as_deref().is_some_and(|name| !name.is_empty());
        !matches!(self.source, DataSource::Spec(_))
            && spec.model.provider != Provider::Replay
            && !has_override
    }

    /// Returns the text under which the journal records a command.
    fn command_line(&self, name: &str) -> String {
        match &self.source {
            DataSource::Spec(path) | DataSource::Database(path) => {
                format!("{name} {}", path.display())
            }
            DataSource::Values => name.to_owned(),
        }
    }
}

fn with_budget(overrides: &SpecOverrides, budget: Option<f64>) -> SpecOverrides {
    SpecOverrides { budget_usd: budget.or(overrides.budget_usd), ..overrides.clone() }
}

fn open_session(
    source: &DataSource,
    overrides: &SpecOverrides,
    cache: Cache,
) -> Result<Session, Failed> {
    let unchecked_spec = match source {
        DataSource::Spec(path) => UncheckedSpec::read(path)?,
        DataSource::Database(path) => {
            let database = hqdl::database::Database::open(path)?;
            UncheckedSpec::without_file(database.path().to_owned())
        }
        DataSource::Values => {
            let database = EmptyDatabase::create()?;
            let unchecked_spec = UncheckedSpec::without_file(database.0.clone());
            return Ok(Session::open(unchecked_spec, overrides, cache)?);
        }
    };
    Ok(Session::open(unchecked_spec, overrides, cache)?)
}

/// A database without tables, deleted when dropped.
struct EmptyDatabase(PathBuf);

impl EmptyDatabase {
    fn create() -> Result<Self, Failed> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hqdl-{}-{number}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "")
            .map_err(|e| wrong_input(format!("cannot write {}: {e}", path.display()), ""))?;
        Ok(Self(path))
    }
}

impl Drop for EmptyDatabase {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads the overrides of the spec: the paths and the arguments of Python's `Model`.
fn read_overrides(
    database: Option<PathBuf>,
    output: Option<PathBuf>,
    model: Option<&Bound<'_, PyDict>>,
) -> PyResult<SpecOverrides> {
    let mut all = SpecOverrides { database, output, ..SpecOverrides::default() };
    let Some(model) = model else { return Ok(all) };
    for (name, value) in model {
        match name.extract::<String>()?.as_str() {
            "name" => all.model = value.extract()?,
            "base_url" => all.base_url = value.extract()?,
            "api_key_env" => all.api_key_env = value.extract()?,
            "recordings" => all.recordings = value.extract()?,
            "concurrency" => all.concurrency = value.extract()?,
            "rows_per_request" => all.rows_per_request = value.extract()?,
            "price" => {
                let price: Option<(f64, f64)> = value.extract()?;
                all.price = price.map(|(input, output)| PriceTable {
                    input,
                    output,
                    ..PriceTable::default()
                });
            }
            "provider" => {
                let name = value.extract::<Option<String>>()?;
                all.provider = name.as_deref().and_then(Provider::from_name);
                if let (Some(other), None) = (name, all.provider) {
                    let names = Provider::ALL.map(Provider::name).join(", ");
                    let message = format!("`{other}` is not a provider");
                    return Err(wrong_input(message, format!("the providers are {names}")).into());
                }
            }
            other => {
                return Err(wrong_input(format!("`Model` has no argument `{other}`"), "").into());
            }
        }
    }
    Ok(all)
}

#[pymethods]
impl Project {
    #[new]
    #[pyo3(signature = (spec=None, database=None, output=None, model=None, cache=None, keep=true))]
    fn new(
        py: Python<'_>,
        spec: Option<PathBuf>,
        database: Option<PathBuf>,
        output: Option<PathBuf>,
        model: Option<&Bound<'_, PyDict>>,
        cache: Option<PathBuf>,
        keep: bool,
    ) -> PyResult<Self> {
        let overrides = read_overrides(database.clone(), output, model)?;
        let opened = py.detach(|| -> Result<Settings, Failed> {
            let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
            let source = match (spec, database) {
                (Some(spec), _) => DataSource::Spec(absolute(spec)),
                (None, Some(database)) => DataSource::Database(absolute(database)),
                (None, None) => DataSource::Values,
            };
            let facts = if keep {
                let cache = cache.map_or_else(user_cache_dir, Ok)?;
                let is_server = hqdl::spec::is_server(&cache);
                FactLocation::Cache(if is_server { cache } else { absolute(cache) })
            } else {
                FactLocation::Temporary(Mutex::default())
            };
            // The facts are opened when they are needed.
            let spec = open_session(&source, &overrides, Cache::Temporary)?.spec;
            Ok(Settings { source, overrides, facts, spec })
        });
        Ok(Self(Arc::new(opened?)))
    }

    /// Returns the spec's expansions and budgets as JSON.
    fn outline(&self) -> String {
        crate::outline::describe_spec(&self.0.spec).to_string()
    }

    /// Returns the path of the database to query: the expanded copy, if there is one.
    fn database(&self, py: Python<'_>) -> PyResult<PathBuf> {
        let settings = Arc::clone(&self.0);
        Ok(py.detach(move || -> Result<PathBuf, Failed> {
            let session = open_session(&settings.source, &settings.overrides, Cache::Temporary)?;
            Ok(output::find_expanded_database(&session.database, session.spec.output.as_deref())?.0)
        })?)
    }

    #[pyo3(signature = (select, batch=false, interrupt=None))]
    fn plan(
        &self,
        py: Python<'_>,
        select: &Bound<'_, PyDict>,
        batch: bool,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<(String, Vec<String>)> {
        let (settings, selection) = (Arc::clone(&self.0), read_selection(select)?);
        run_work(py, interrupt, None, move |_| {
            let (session, _cache) = settings.open_session(None)?;
            let (plan, notes) = session.plan_requests(&selection, run_mode(batch))?;
            Ok((plan.to_json().to_string(), notes))
        })
    }

    #[pyo3(signature = (select, budget=None, batch=false, on_event=None, interrupt=None))]
    fn materialize(
        &self,
        py: Python<'_>,
        select: &Bound<'_, PyDict>,
        budget: Option<f64>,
        batch: bool,
        on_event: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<String> {
        let (settings, selection) = (Arc::clone(&self.0), read_selection(select)?);
        run_work(py, interrupt, on_event, move |context| {
            materialize(&settings, &selection, budget, run_mode(batch), context)
        })
    }

    #[pyo3(signature = (sql, params=None, options=None, on_event=None, interrupt=None))]
    fn query(
        &self,
        py: Python<'_>,
        sql: String,
        params: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
        on_event: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<(Table, String)> {
        let (settings, query) = (Arc::clone(&self.0), QueryArguments::read(sql, params, options)?);
        let (table, meta) = run_work(py, interrupt, on_event, move |context| {
            let mut rows = ColumnBuffer::default();
            let meta = query.run(&settings, context, Some(&mut rows))?;
            let mut json = meta.to_json();
            json["notes"] = meta.notes.clone().into();
            let (names, count) = (rows.names.clone(), rows.count);
            Ok((Table::new(names, count, rows.into_rows()?), json.to_string()))
        })?;
        Ok((table, meta))
    }

    #[pyo3(signature = (sql, params=None, options=None, interrupt=None))]
    fn explain(
        &self,
        py: Python<'_>,
        sql: String,
        params: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<String> {
        let (settings, query) = (Arc::clone(&self.0), QueryArguments::read(sql, params, options)?);
        run_work(py, interrupt, None, move |context| {
            Ok(query.run(&settings, context, None)?.explained_to_json().to_string())
        })
    }

    fn why(
        &self,
        py: Python<'_>,
        table: String,
        key: Vec<String>,
        column: String,
    ) -> PyResult<String> {
        let settings = Arc::clone(&self.0);
        Ok(py.detach(move || -> Result<String, Failed> {
            let session = open_session(&settings.source, &settings.overrides, Cache::Temporary)?;
            let (target, _) =
                output::find_expanded_database(&session.database, session.spec.output.as_deref())?;
            let database = hqdl::database::Database::open(&target)?;
            let cells = database.find_provenance(&table, &key, &column)?;
            Ok(serde_json::Value::Array(cells.iter().map(CellProvenance::to_json).collect())
                .to_string())
        })?)
    }

    fn r#override(
        &self,
        py: Python<'_>,
        table: String,
        key: Vec<String>,
        column: String,
        value: String,
        note: String,
        force: bool,
    ) -> PyResult<()> {
        let settings = Arc::clone(&self.0);
        Ok(py.detach(move || -> Result<(), Failed> {
            let session = open_session(&settings.source, &settings.overrides, Cache::Temporary)?;
            let cell = (table.as_str(), &*key, column.as_str(), value.as_str());
            override_cell(&session.spec, &session.database, cell, &note, force)?;
            Ok(())
        })?)
    }

    fn suggest(&self, py: Python<'_>) -> PyResult<String> {
        let settings = Arc::clone(&self.0);
        Ok(py.detach(move || -> Result<String, Failed> {
            if let DataSource::Spec(_) = settings.source {
                let (session, _cache) = settings.open_session(None)?;
                return Ok(session.suggest()?.to_json(None).to_string());
            }
            let cache = settings.open_cache()?;
            Ok(hqdl::suggest::suggest_columns(&cache.facts, None)?.to_json(None).to_string())
        })?)
    }

    #[pyo3(signature = (question, values, return_type=None, options=None, value_kind=None, budget=None, on_event=None, interrupt=None))]
    fn map(
        &self,
        py: Python<'_>,
        question: String,
        values: &Bound<'_, PyAny>,
        return_type: Option<String>,
        options: Option<&Bound<'_, PyAny>>,
        value_kind: Option<String>,
        budget: Option<f64>,
        on_event: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<(PyArray, PyArray, String)> {
        let options = match options {
            None => None,
            Some(all) => {
                let item = |item: PyResult<Bound<'_, PyAny>>| read_value(&item?, "an option");
                Some(all.try_iter()?.map(item).collect::<PyResult<Vec<Value>>>()?)
            }
        };
        let (data_type, is_list) = read_return_type(return_type.as_deref(), options.as_deref())?;
        let (settings, values) = (Arc::clone(&self.0), DistinctValues::read(values)?);
        let (answers, states, meta) = run_work(py, interrupt, on_event, move |context| {
            let question = ValueQuestion {
                text: &question,
                data_type,
                is_list,
                options: options.as_deref(),
                value_kind: value_kind.as_deref(),
            };
            map_values(&settings, &question, &values, budget, context)
        })?;
        Ok((PyArray::from_array_ref(answers), PyArray::from_array_ref(states), meta))
    }
}

/// Returns the type of the answers, and whether an answer is a list. Without a return type, the
/// options determine it.
fn read_return_type(
    return_type: Option<&str>,
    options: Option<&[Value]>,
) -> PyResult<(Type, bool)> {
    use hqdl::blendsql::ReturnType;
    let Some(return_type) = return_type else {
        let is_integer = |v: &Value| matches!(v, Value::Integer(_));
        let is_number = |v: &Value| matches!(v, Value::Integer(_) | Value::Real(_));
        return Ok(match options {
            Some(all) if !all.is_empty() && all.iter().all(is_integer) => (Type::Integer, false),
            Some(all) if !all.is_empty() && all.iter().all(is_number) => (Type::Real, false),
            _ => (Type::Text, false),
        });
    };
    match ReturnType::parse(return_type) {
        Some(parsed) => Ok((parsed.scalar, parsed.is_list)),
        None => {
            let message = format!("`{return_type}` is not a return type");
            Err(wrong_input(message, ReturnType::SYNTAX_HELP).into())
        }
    }
}

/// Answers a question about values. Returns the answers, their states, and the query's metadata as
/// JSON.
fn map_values(
    settings: &Settings,
    question: &ValueQuestion<'_>,
    values: &DistinctValues,
    budget: Option<f64>,
    context: &RunContext,
) -> Result<(arrow_array::ArrayRef, arrow_array::ArrayRef, String), Failed> {
    if let Some(usd) = budget.filter(|usd| !usd.is_finite() || *usd < 0.0) {
        return Err(wrong_input(
            format!("budget={usd} is not a valid amount"),
            "pass an amount in USD, 0 or more",
        ));
    }
    let cache = settings.open_cache()?;
    let mut spec = settings.spec.clone();
    spec.set_budget(budget)?;
    spec.expansions.clear();
    let facts = cache.facts.sync();
    let mut request = Request {
        command: "map",
        listener: Arc::clone(&context.listener),
        interrupt: context.interrupt.clone(),
        rows_per_request: settings.overrides.rows_per_request,
        ..Request::new(&spec, Path::new(""), facts, question.text)
    };
    // Load recordings now, because they determine the model's name. Connect to an endpoint only if
    // a request is needed.
    if spec.model.provider == Provider::Replay {
        request.model = settings.connect_model(&spec, facts)?.ok();
    }
    let mapped = match query::map_values(&request, question, &values.values) {
        Err(QueryError::NoModel) => {
            request.model = Some(settings.connect_model(&spec, facts)??);
            query::map_values(&request, question, &values.values)?
        }
        mapped => mapped?,
    };
    let (data_type, is_list) = (question.data_type, question.is_list);
    let answers = answers::value_array(&mapped.answers, &values.indices, data_type, is_list)?;
    let states = answers::state_array(&mapped.answers, &values.indices)?;
    Ok((answers, states, mapped.meta.to_json().to_string()))
}

fn run_mode(batch: bool) -> RunMode {
    if batch { RunMode::Batch } else { RunMode::Live }
}

/// Reads the arguments that select the cells of a run.
fn read_selection(arguments: &Bound<'_, PyDict>) -> PyResult<Selection> {
    let mut selection = Selection::default();
    for (name, value) in arguments {
        match name.extract::<String>()?.as_str() {
            "limit" => selection.limit = value.extract()?,
            "columns" => selection.columns = value.extract()?,
            "where" => selection.filter = value.extract()?,
            "refresh" => selection.refresh = value.extract::<Option<_>>()?.unwrap_or_default(),
            "retry_failed" => selection.retry_failed = value.extract()?,
            other => {
                return Err(
                    wrong_input(format!("`{other}` is not an argument of a run"), "").into()
                );
            }
        }
    }
    Ok(selection)
}

fn materialize(
    settings: &Settings,
    selection: &Selection,
    budget: Option<f64>,
    run_mode: RunMode,
    context: &RunContext,
) -> Result<String, Failed> {
    let began = Instant::now();
    let command = settings.command_line("materialize");
    let mut previous: Vec<Report> = Vec::new();
    let mut report = loop {
        let (session, _cache) = settings.open_session(budget)?;
        let materializer =
            session.new_materializer(session.connect_model()?, selection, run_mode)?;
        let report = materializer
            .materialize(&command, &context.listener, &context.interrupt)
            .unwrap_or_else(|failed| Report { failure: Some(failed), ..Report::default() });
        if !report.is_database_replaced() || previous.len() >= MAX_REPLACEMENTS {
            break report;
        }
        // The run starts over with the new file; known answers are reused.
        let path = session.spec.database.display();
        let message = format!("{path} was replaced by another file; hqdl reads the new one");
        (context.listener)(&Event::Warning(message));
        previous.push(report);
    };
    previous.iter().for_each(|before| report.merge_previous_report(before));
    let failure = Failure::take_from_report(&mut report);
    let mut json = report.to_json(began.elapsed().as_secs_f64());
    json["complete"] = (failure.is_none() && report.is_fulfilled(selection, true)).into();
    match failure {
        None => Ok(json.to_string()),
        Some(failure) => Err(Failed(failure, Some(json.to_string()))),
    }
}

/// Arguments of a query.
struct QueryArguments {
    sql: String,
    params: Vec<(Param, Value)>,
    dialect: Dialect,
    classify: bool,
    truncate: bool,
    retry_failed: bool,
    refresh: bool,
    timeout: Option<f64>,
    budget: Option<f64>,
    /// Confidence of the intervals, between 0 and 1.
    interval: Option<f64>,
    simultaneous: bool,
    ingredients: PythonIngredients,
}

impl QueryArguments {
    fn read(
        sql: String,
        params: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut query = Self {
            sql,
            params: params.map_or(Ok(Vec::new()), read_params)?,
            dialect: Dialect::Sqlite,
            classify: false,
            truncate: false,
            retry_failed: false,
            refresh: false,
            timeout: None,
            budget: None,
            interval: None,
            simultaneous: false,
            ingredients: PythonIngredients::default(),
        };
        for (name, value) in options.into_iter().flatten() {
            match name.extract::<String>()?.as_str() {
                "dialect" => {
                    let name = value.extract::<String>()?;
                    query.dialect = Dialect::from_name(&name).ok_or_else(|| {
                        let known = Dialect::ALL.map(|(name, _)| name).join(", ");
                        let message = format!("`{name}` is not a dialect");
                        wrong_input(message, format!("the dialects are {known}"))
                    })?;
                }
                "classify" => query.classify = value.extract()?,
                "truncate" => query.truncate = value.extract()?,
                "retry_failed" => query.retry_failed = value.extract()?,
                "refresh" => query.refresh = value.extract()?,
                "timeout" => query.timeout = value.extract()?,
                "budget" => query.budget = value.extract()?,
                "interval" => query.interval = value.extract()?,
                "simultaneous" => query.simultaneous = value.extract()?,
                "ingredients" => query.ingredients = PythonIngredients::read(&value)?,
                other => {
                    return Err(wrong_input(
                        format!("`{other}` is not an argument of a query"),
                        "",
                    )
                    .into());
                }
            }
        }
        Ok(query)
    }

    /// Runs the query and collects its rows in `rows`, or explains the query if `rows` is None.
    fn run(
        &self,
        settings: &Settings,
        context: &RunContext,
        rows: Option<&mut ColumnBuffer>,
    ) -> Result<Meta, Failed> {
        let (mut session, _cache) = settings.open_session(self.budget)?;
        let model_spec = session.spec.clone();
        let functions = self.ingredients.add_to_spec(&mut session.spec)?;
        let spec = &session.spec;
        let (target, _) =
            output::find_expanded_database(&session.database, spec.output.as_deref())?;
        let facts = session.facts()?.sync();
        let refresh = (self.refresh || self.retry_failed).then_some(RefreshScope {
            up_to: facts.history().load_last_completion_id()?,
            failed_only: !self.refresh,
        });
        let timeout = self.timeout.map(std::time::Duration::try_from_secs_f64).transpose();
        let timeout =
            timeout.map_err(|_| wrong_input("pass a timeout in seconds, more than 0", ""))?;
        let command = settings.command_line("query");
        let mut model_failure = None;
        let mut request = Request {
            dialect: self.dialect,
            classify: self.classify,
            params: self.params.clone(),
            truncate: self.truncate,
            refresh,
            rows_per_request: settings.overrides.rows_per_request,
            timeout,
            command: &command,
            listener: Arc::clone(&context.listener),
            interrupt: context.interrupt.clone(),
            ..session.new_query(&target, &self.sql)?
        };
        let interval = match self.interval {
            None => None,
            Some(share) => {
                let found = IntervalRequest::from_percent(100.0 * share, self.simultaneous);
                let wrong = || wrong_input("pass interval= as a share, such as 0.95", "");
                Some(found.ok_or_else(wrong)?)
            }
        };
        let may_ask = query::may_need_model(spec, &self.sql, self.dialect, self.classify);
        if may_ask && interval.is_none() {
            let model = settings.connect_model(&model_spec, facts)?;
            request.model = if functions.is_empty() {
                model.map_err(|failure| model_failure = Some(failure)).ok()
            } else {
                let to_texts = |failure: Failure| (failure.message(), failure.hint());
                Some(add_functions(model.map_err(to_texts), functions))
            };
        }
        let result = match (rows, interval, may_ask) {
            (Some(rows), Some(interval), _) => {
                run_with_intervals(spec, &request.to_plain(), interval, rows)
            }
            (Some(rows), None, true) => query::run(&request, rows),
            (Some(rows), None, false) => request.to_plain().run(rows),
            (None, _, true) => query::explain(&request),
            (None, _, false) => request.to_plain().explain(),
        };
        result.map_err(|error| match (error, model_failure) {
            (QueryError::Sql(problem), _) => Failure::Problems(Problems {
                path: PathBuf::from("<query>"),
                text: self.sql.clone(),
                problems: vec![*problem],
            })
            .into(),
            (QueryError::NoModel, Some(failure)) => failure.into(),
            (QueryError::Stopped(StopReason::Interrupted), _) if !may_ask => {
                Failure::interrupted().into()
            }
            (error, _) => error.into(),
        })
    }
}

/// Reads parameters by name or by position.
fn read_params(params: &Bound<'_, PyAny>) -> PyResult<Vec<(Param, Value)>> {
    let mut all = Vec::new();
    if let Ok(named) = params.cast::<PyDict>() {
        for (name, item) in named {
            let name: String = name.extract()?;
            all.push((Param::parse(&name), read_value(&item, &format!("the parameter `{name}`"))?));
        }
    } else {
        for (n, item) in params.try_iter()?.enumerate() {
            let label = format!("the parameter ?{}", n + 1);
            all.push((Param::Position(n + 1), read_value(&item?, &label)?));
        }
    }
    Ok(all)
}
