//! An opened project as Python has it: a spec or a database, what wins over it, and a
//! cache. Each call reads the spec as it is then.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hqdl::database::output;
use hqdl::facts::Facts;
use hqdl::failure::Failure;
use hqdl::generate::{Event, Stopped};
use hqdl::materialize::{Report, Selection, Way};
use hqdl::model::{self, Model, SetupError};
use hqdl::problem::Problems;
use hqdl::query::{self, Again, Dialect, Meta, Param, QueryError, Request, ValueQuestion};
use hqdl::session::{Cache, Session, SpecOverrides, override_cell, user_cache};
use hqdl::spec::{Draft, PriceTable, Provider, Spec, Type};
use hqdl::value::Value;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PyArray;

use crate::answers;
use crate::cache::{Opened, Registry};
use crate::errors::{Failed, input, lock};
use crate::rows::Rows;
use crate::run::{Interrupt, Run, run};
use crate::table::Table;
use crate::values::{Values, value};

/// How often a database that is replaced while a run goes on is read again.
const REPLACED: usize = 3;
/// What this process says that it is, to others who use the cache.
const HOLDER: &str = "hqdl in Python";

/// What a project is about.
#[derive(Clone)]
enum About {
    /// A spec, and its database.
    Spec(PathBuf),
    /// A database as it is.
    Database(PathBuf),
    /// Values of Python.
    Values,
}

/// Where facts are kept.
enum Kept {
    /// In a directory, or on the server of a URL.
    Dir(PathBuf),
    /// Nowhere: they are gone with the project.
    Nowhere(Mutex<Option<(usize, Arc<Opened>)>>),
}

struct Settings {
    about: About,
    overrides: SpecOverrides,
    kept: Kept,
    /// The spec as it was when the project was opened.
    spec: Spec,
}

/// A project.
#[pyclass(frozen)]
pub struct Project(Arc<Settings>);

impl Settings {
    fn session(&self, budget: Option<f64>) -> Result<(Session, Arc<Opened>), Failed> {
        let opened = self.facts()?;
        let cache = Cache::Open(opened.facts.clone());
        let overrides = with_budget(&self.overrides, budget);
        Ok((session(&self.about, &overrides, cache)?, opened))
    }

    fn facts(&self) -> Result<Arc<Opened>, Failed> {
        match &self.kept {
            Kept::Dir(dir) => Ok(Registry::own().open(dir, HOLDER)?),
            Kept::Nowhere(kept) => {
                let mut kept = lock(kept);
                let generation = Registry::generation();
                match &*kept {
                    Some((made, opened)) if *made == generation => return Ok(Arc::clone(opened)),
                    // Its threads are the parent's.
                    Some(others) => std::mem::forget(Arc::clone(&others.1)),
                    None => {}
                }
                let opened = Arc::new(Opened::temporary()?);
                *kept = Some((generation, Arc::clone(&opened)));
                Ok(opened)
            }
        }
    }

    /// The model that a spec names, or what to say when something must be asked.
    fn model(&self, spec: &Spec, facts: &Facts) -> Result<Result<Arc<dyn Model>, Failure>, Failed> {
        if self.is_nameless(spec) {
            return Ok(Err(Failure::input(
                "this needs a model, but none is named",
                "pass model=\"NAME\", or hqdl.Model(\"NAME\", base_url=…)",
            )));
        }
        match model::connect_with(spec, facts) {
            Ok(model) => Ok(Ok(model)),
            Err(missing @ SetupError::NoKey(_)) => Ok(Err(missing.into())),
            Err(error) => Err(error.into()),
        }
    }

    fn is_nameless(&self, spec: &Spec) -> bool {
        let named = self.overrides.model.as_deref().is_some_and(|name| !name.is_empty());
        !matches!(self.about, About::Spec(_)) && spec.model.provider == Provider::Openai && !named
    }

    fn command(&self, what: &str) -> String {
        match &self.about {
            About::Spec(path) | About::Database(path) => format!("{what} {}", path.display()),
            About::Values => what.to_owned(),
        }
    }
}

fn with_budget(overrides: &SpecOverrides, budget: Option<f64>) -> SpecOverrides {
    SpecOverrides { budget_usd: budget.or(overrides.budget_usd), ..overrides.clone() }
}

fn session(about: &About, overrides: &SpecOverrides, cache: Cache) -> Result<Session, Failed> {
    let draft = match about {
        About::Spec(path) => Draft::read(path)?,
        About::Database(path) => {
            Draft::bare(hqdl::database::Database::open(path)?.path().to_owned())
        }
        About::Values => {
            let nothing = Nothing::new()?;
            return Ok(Session::open(Draft::bare(nothing.0.clone()), overrides, cache)?);
        }
    };
    Ok(Session::open(draft, overrides, cache)?)
}

/// A database without tables, gone when this is.
struct Nothing(PathBuf);

impl Nothing {
    fn new() -> Result<Self, Failed> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("hqdl-{}-{number}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "")
            .map_err(|e| input(format!("cannot write {}: {e}", path.display()), ""))?;
        Ok(Self(path))
    }
}

impl Drop for Nothing {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whom to ask, as Python says it.
fn overrides(
    database: Option<PathBuf>,
    output: Option<PathBuf>,
    model: Option<&Bound<'_, PyDict>>,
) -> PyResult<SpecOverrides> {
    let mut all = SpecOverrides { database, output, ..SpecOverrides::default() };
    let Some(model) = model else { return Ok(all) };
    for (name, said) in model {
        match name.extract::<String>()?.as_str() {
            "name" => all.model = said.extract()?,
            "base_url" => all.base_url = said.extract()?,
            "api_key_env" => all.api_key_env = said.extract()?,
            "recordings" => all.recordings = said.extract()?,
            "concurrency" => all.concurrency = said.extract()?,
            "rows_per_request" => all.rows_per_request = said.extract()?,
            "price" => {
                let price: Option<(f64, f64)> = said.extract()?;
                all.price = price.map(|(input, output)| PriceTable {
                    input,
                    output,
                    ..PriceTable::default()
                });
            }
            "provider" => {
                let name = said.extract::<Option<String>>()?;
                all.provider = name.as_deref().and_then(Provider::named);
                if let (Some(other), None) = (name, all.provider) {
                    let names = Provider::ALL.map(Provider::name).join(" and ");
                    let message = format!("`{other}` is not a provider");
                    return Err(input(message, format!("the providers are {names}")).into());
                }
            }
            other => return Err(input(format!("`Model` has no argument `{other}`"), "").into()),
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
        let overrides = overrides(database.clone(), output, model)?;
        let opened = py.detach(|| -> Result<Settings, Failed> {
            let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
            let about = match (spec, database) {
                (Some(spec), _) => About::Spec(whole(spec)),
                (None, Some(database)) => About::Database(whole(database)),
                (None, None) => About::Values,
            };
            let kept = if keep {
                let cache = cache.map_or_else(user_cache, Ok)?;
                Kept::Dir(if hqdl::facts::is_server(&cache) { cache } else { whole(cache) })
            } else {
                Kept::Nowhere(Mutex::default())
            };
            // Nothing is looked up yet: the facts are opened when they are needed.
            let spec = session(&about, &overrides, Cache::Temporary)?.spec;
            Ok(Settings { about, overrides, kept, spec })
        });
        Ok(Self(Arc::new(opened?)))
    }

    /// What the spec expands, and what it may spend.
    fn outline(&self) -> String {
        crate::outline::outline(&self.0.spec).to_string()
    }

    /// The database that is queried now.
    fn database(&self, py: Python<'_>) -> PyResult<PathBuf> {
        let settings = Arc::clone(&self.0);
        Ok(py.detach(move || -> Result<PathBuf, Failed> {
            let session = session(&settings.about, &settings.overrides, Cache::Temporary)?;
            Ok(output::readable(&session.database, session.spec.output.as_deref())?.0)
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
        let (settings, selection) = (Arc::clone(&self.0), selection(select)?);
        run(py, interrupt, None, move |_| {
            let (session, _opened) = settings.session(None)?;
            let (plan, remarks) = session.plan(&selection, way(batch))?;
            Ok((plan.to_json().to_string(), remarks))
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
        let (settings, selection) = (Arc::clone(&self.0), selection(select)?);
        run(py, interrupt, on_event, move |run| {
            materialize(&settings, &selection, budget, way(batch), run)
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
        let (settings, asked) = (Arc::clone(&self.0), Asked::of(sql, params, options)?);
        let (table, meta) = run(py, interrupt, on_event, move |run| {
            let mut rows = Rows::default();
            let meta = asked.run(&settings, run, Some(&mut rows))?;
            let mut json = meta.to_json();
            json["notes"] = meta.notes.clone().into();
            let (names, count) = (rows.names.clone(), rows.count);
            Ok((Table::of(names, count, rows.told()?), json.to_string()))
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
        let (settings, asked) = (Arc::clone(&self.0), Asked::of(sql, params, options)?);
        run(py, interrupt, None, move |run| {
            Ok(asked.run(&settings, run, None)?.explained_json().to_string())
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
            let session = session(&settings.about, &settings.overrides, Cache::Temporary)?;
            let (target, _) = output::readable(&session.database, session.spec.output.as_deref())?;
            let cells = hqdl::database::Database::open(&target)?.origins(&table, &key, &column)?;
            let all = cells.iter().map(hqdl::database::provenance::Origin::to_json);
            Ok(serde_json::Value::Array(all.collect()).to_string())
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
            let session = session(&settings.about, &settings.overrides, Cache::Temporary)?;
            let cell = (table.as_str(), &*key, column.as_str(), value.as_str());
            Ok(override_cell(&session.spec, &session.database, cell, &note, force)?)
        })?)
    }

    fn suggest(&self, py: Python<'_>) -> PyResult<String> {
        let settings = Arc::clone(&self.0);
        Ok(py.detach(move || -> Result<String, Failed> {
            if let About::Spec(_) = settings.about {
                let (session, _opened) = settings.session(None)?;
                return Ok(session.suggest()?.to_json(None).to_string());
            }
            let opened = settings.facts()?;
            Ok(hqdl::suggest::suggest(&opened.facts, None)?.to_json(None).to_string())
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
                let item = |item: PyResult<Bound<'_, PyAny>>| value(&item?, "an option");
                Some(all.try_iter()?.map(item).collect::<PyResult<Vec<Value>>>()?)
            }
        };
        let (kind, list) = read_as(return_type.as_deref(), options.as_deref())?;
        let (settings, values) = (Arc::clone(&self.0), Values::of(values)?);
        let (answers, states, meta) = run(py, interrupt, on_event, move |run| {
            let question = ValueQuestion {
                text: &question,
                kind,
                list,
                options: options.as_deref(),
                value_kind: value_kind.as_deref(),
            };
            map(&settings, &question, &values, budget, run)
        })?;
        Ok((PyArray::from_array_ref(answers), PyArray::from_array_ref(states), meta))
    }
}

/// What answers are read as.
fn read_as(said: Option<&str>, options: Option<&[Value]>) -> PyResult<(Type, bool)> {
    use hqdl::blendsql::ReturnType;
    let Some(said) = said else {
        let whole = |v: &Value| matches!(v, Value::Integer(_));
        let number = |v: &Value| matches!(v, Value::Integer(_) | Value::Real(_));
        return Ok(match options {
            Some(all) if !all.is_empty() && all.iter().all(whole) => (Type::Integer, false),
            Some(all) if !all.is_empty() && all.iter().all(number) => (Type::Real, false),
            _ => (Type::Text, false),
        });
    };
    match ReturnType::parse(said) {
        Some(kind) => Ok((kind.scalar, kind.list)),
        None => Err(input(format!("`{said}` is not a return type"), ReturnType::FORMS).into()),
    }
}

fn map(
    settings: &Settings,
    question: &ValueQuestion<'_>,
    values: &Values,
    budget: Option<f64>,
    run: &Run,
) -> Result<(arrow_array::ArrayRef, arrow_array::ArrayRef, String), Failed> {
    if let Some(usd) = budget.filter(|usd| !usd.is_finite() || *usd < 0.0) {
        return Err(input(format!("budget={usd} is not a valid amount"), "pass an amount in USD, 0 or more"));
    }
    let opened = settings.facts()?;
    let mut spec = settings.spec.clone();
    spec.set_budget(budget)?;
    spec.expansions.clear();
    let facts = opened.facts.latest();
    let mut request = Request {
        command: "map",
        listener: Arc::clone(&run.listener),
        interrupt: run.interrupt.clone(),
        rows_per_request: settings.overrides.rows_per_request,
        ..Request::of(&spec, Path::new(""), facts, question.text)
    };
    // Recordings have a name of their own; an endpoint is only needed to be asked.
    if spec.model.provider == Provider::Replay {
        request.model = settings.model(&spec, facts)?.ok();
    }
    let mapped = match query::map(&request, question, &values.distinct) {
        Err(QueryError::NoModel) => {
            request.model = Some(settings.model(&spec, facts)??);
            query::map(&request, question, &values.distinct)?
        }
        mapped => mapped?,
    };
    let shown = answers::values(&mapped.answers, &values.places, question.kind, question.list)?;
    let states = answers::states(&mapped.answers, &values.places)?;
    Ok((shown, states, mapped.meta.to_json().to_string()))
}

fn way(batch: bool) -> Way {
    if batch { Way::Batch } else { Way::Live }
}

/// What a run is to ask, as Python says it.
fn selection(said: &Bound<'_, PyDict>) -> PyResult<Selection> {
    let mut selection = Selection::default();
    for (name, said) in said {
        match name.extract::<String>()?.as_str() {
            "limit" => selection.limit = said.extract()?,
            "columns" => selection.columns = said.extract()?,
            "where" => selection.filter = said.extract()?,
            "refresh" => selection.refresh = said.extract::<Option<_>>()?.unwrap_or_default(),
            "retry_failed" => selection.retry_failed = said.extract()?,
            other => return Err(input(format!("`{other}` is not an argument of a run"), "").into()),
        }
    }
    Ok(selection)
}

fn materialize(
    settings: &Settings,
    selection: &Selection,
    budget: Option<f64>,
    way: Way,
    run: &Run,
) -> Result<String, Failed> {
    let began = Instant::now();
    let command = settings.command("materialize");
    let mut earlier: Vec<Report> = Vec::new();
    let mut report = loop {
        let (session, _opened) = settings.session(budget)?;
        let work = session.work(session.model()?, selection, way)?;
        let report = work
            .materialize(&command, &run.listener, &run.interrupt)
            .unwrap_or_else(|failed| Report { failed: Some(failed), ..Report::default() });
        if !report.is_of_another_file() || earlier.len() >= REPLACED {
            break report;
        }
        // The same run goes on, over what is true by now.
        let path = session.spec.database.display();
        let said = format!("{path} was replaced by another file; hqdl reads the new one");
        (run.listener)(&Event::Warning(said));
        earlier.push(report);
    };
    earlier.iter().for_each(|before| report.goes_on_from(before));
    let failure = Failure::of_run(&mut report);
    let mut json = report.to_json(began.elapsed().as_secs_f64());
    json["complete"] = (failure.is_none() && report.is_fulfilled(selection, true)).into();
    match failure {
        None => Ok(json.to_string()),
        Some(failure) => Err(Failed(failure, Some(json.to_string()))),
    }
}

/// A query, as Python says it.
struct Asked {
    sql: String,
    params: Vec<(Param, Value)>,
    dialect: Dialect,
    classify: bool,
    truncate: bool,
    retry_failed: bool,
    refresh: bool,
    timeout: Option<f64>,
    budget: Option<f64>,
}

impl Asked {
    fn of(
        sql: String,
        params: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut asked = Self {
            sql,
            params: params.map_or(Ok(Vec::new()), read_params)?,
            dialect: Dialect::Sqlite,
            classify: false,
            truncate: false,
            retry_failed: false,
            refresh: false,
            timeout: None,
            budget: None,
        };
        for (name, said) in options.into_iter().flatten() {
            match name.extract::<String>()?.as_str() {
                "dialect" => {
                    asked.dialect = match said.extract::<String>()?.as_str() {
                        "sqlite" => Dialect::Sqlite,
                        "suql" => Dialect::Suql,
                        other => {
                            let message = format!("`{other}` is not a dialect");
                            return Err(input(message, "the dialects are sqlite and suql").into());
                        }
                    }
                }
                "classify" => asked.classify = said.extract()?,
                "truncate" => asked.truncate = said.extract()?,
                "retry_failed" => asked.retry_failed = said.extract()?,
                "refresh" => asked.refresh = said.extract()?,
                "timeout" => asked.timeout = said.extract()?,
                "budget" => asked.budget = said.extract()?,
                other => return Err(input(format!("`{other}` is not an argument of a query"), "").into()),
            }
        }
        Ok(asked)
    }

    /// Runs it into rows, or, without any, explains it.
    fn run(&self, settings: &Settings, run: &Run, rows: Option<&mut Rows>) -> Result<Meta, Failed> {
        let (session, _opened) = settings.session(self.budget)?;
        let spec = &session.spec;
        let (target, _) = output::readable(&session.database, spec.output.as_deref())?;
        let facts = session.facts()?.latest();
        let (up_to, refresh) = (facts.history().last_completion()?, self.refresh);
        let again = (refresh || self.retry_failed).then_some(Again { up_to, failed: !refresh });
        let timeout = self.timeout.map(std::time::Duration::try_from_secs_f64).transpose();
        let timeout = timeout.map_err(|_| input("pass a timeout in seconds, more than 0", ""))?;
        let command = settings.command("query");
        let mut no_model = None;
        let mut request = Request {
            dialect: self.dialect,
            classify: self.classify,
            params: self.params.clone(),
            truncate: self.truncate,
            again,
            rows_per_request: settings.overrides.rows_per_request,
            timeout,
            command: &command,
            listener: Arc::clone(&run.listener),
            interrupt: run.interrupt.clone(),
            ..session.query(&target, &self.sql)?
        };
        let calls = query::may_ask(spec, &self.sql, self.dialect, self.classify);
        if calls {
            let model = settings.model(spec, facts)?;
            request.model = model.map_err(|why| no_model = Some(why)).ok();
        }
        let ended = match (rows, calls) {
            (Some(rows), true) => query::run(&request, rows),
            (Some(rows), false) => request.plain().run(rows),
            (None, true) => query::explain(&request),
            (None, false) => request.plain().explain(),
        };
        ended.map_err(|error| match (error, no_model) {
            (QueryError::Sql(problem), _) => Failure::Problems(Problems {
                path: PathBuf::from("<query>"),
                text: self.sql.clone(),
                problems: vec![*problem],
            })
            .into(),
            (QueryError::NoModel, Some(failure)) => failure.into(),
            (QueryError::Stopped(Stopped::Interrupted), _) if !calls => {
                Failure::interrupted().into()
            }
            (error, _) => error.into(),
        })
    }
}

/// Parameters by name or by position.
fn read_params(params: &Bound<'_, PyAny>) -> PyResult<Vec<(Param, Value)>> {
    let mut all = Vec::new();
    if let Ok(named) = params.cast::<PyDict>() {
        for (name, said) in named {
            let name: String = name.extract()?;
            all.push((Param::parse(&name), value(&said, &format!("the parameter `{name}`"))?));
        }
    } else {
        for (n, said) in params.try_iter()?.enumerate() {
            let what = format!("the parameter ?{}", n + 1);
            all.push((Param::Position(n + 1), value(&said?, &what)?));
        }
    }
    Ok(all)
}
