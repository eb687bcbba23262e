//! An opened project: a spec with its database, its facts and its model. Every entry point (CLI,
//! daemon, library) starts from a [`Session`] instead of opening these parts itself.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcetera::BaseStrategy;

use crate::materialize::{MaterializeError, Materializer, RunMode, Selection};
use crate::query::Request;
use crate::suggest::{SuggestError, Suggestions, suggest_columns};
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_database::{Database, StoreError};
use hqdl_facts::{Facts, FactsError, StatusCallback};
use hqdl_model::plan::Plan;
use hqdl_model::{self as model, Model, SetupError};
use hqdl_spec::overrides::{self, OverrideEditError, find_override_errors};
use hqdl_spec::{Expansion, PriceTable, Provider, Spec, UncheckedSpec};
use hqdl_values::key::Entity;
use hqdl_values::problem::{Problem, Problems, Severity, find_nearest};

/// Settings from flags or a caller that override the settings of a spec.
#[derive(Debug, Clone, Default)]
pub struct SpecOverrides {
    /// Path of the database.
    pub database: Option<PathBuf>,
    /// Path of the database that the expanded tables are written to.
    pub output: Option<PathBuf>,
    /// Provider of the model. If the provider is not set, `recordings` imply [`Provider::Replay`],
    /// and `base_url` implies [`Provider::Openai`].
    pub provider: Option<Provider>,
    /// Name of the model.
    pub model: Option<String>,
    /// URL of the endpoint.
    pub base_url: Option<String>,
    /// Name of the environment variable that contains the endpoint's key.
    pub api_key_env: Option<String>,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Recording files to replay.
    pub recordings: Vec<PathBuf>,
    /// Maximum number of concurrent requests.
    pub concurrency: Option<u32>,
    /// Maximum number of rows per request, for every expansion without images or recordings.
    pub rows_per_request: Option<u32>,
    /// Maximum cost of a run, in USD.
    pub budget_usd: Option<f64>,
}

impl SpecOverrides {
    /// Rejects another model name for a spec that replays recordings, because the recordings are
    /// not the named model's answers.
    fn check_replay(&self, unchecked_spec: &UncheckedSpec) -> Result<(), Problems> {
        let model = &unchecked_spec.file.model;
        let keeps_recordings = model.provider == Provider::Replay
            && self.provider.is_none()
            && self.base_url.is_none()
            && self.recordings.is_empty();
        match &self.model {
            Some(name) if keeps_recordings && *name != model.name => {
                let message =
                    format!("--model {name}: the spec would replay its recordings as this model");
                let help = "pass --provider too, for example --provider openai";
                let location = ["model".into(), "provider".into()];
                let problem = unchecked_spec.warning_at(&location, message, help);
                let problem = Problem { severity: Severity::Error, ..problem };
                Err(unchecked_spec.add_source_text(vec![problem]))
            }
            _ => Ok(()),
        }
    }

    fn apply_to(&self, unchecked_spec: &mut UncheckedSpec) {
        if let Some(database) = &self.database {
            unchecked_spec.set_database(database.clone());
        }
        if let Some(output) = &self.output {
            unchecked_spec.set_output(output.clone());
        }
        let model = &mut unchecked_spec.file.model;
        match self.provider {
            Some(provider) => model.provider = provider,
            None if !self.recordings.is_empty() => model.provider = Provider::Replay,
            // A base URL selects an endpoint, so recordings no longer apply.
            None if self.base_url.is_some() => model.provider = Provider::Openai,
            None => {}
        }
        if let Some(name) = self.model.as_ref().filter(|name| **name != model.name) {
            model.name.clone_from(name);
            // The spec's price applies to its own model only.
            model.price = None;
        }
        if self.base_url.is_some() && self.base_url != model.base_url {
            model.base_url.clone_from(&self.base_url);
            // The key of one endpoint must not be sent to another.
            model.api_key_env = None;
        }
        if self.api_key_env.is_some() {
            model.api_key_env.clone_from(&self.api_key_env);
        }
        if self.price.is_some() {
            model.price = self.price;
        }
        // A model set by flags replaces the model of every expansion.
        if self.provider.is_some()
            || self.model.is_some()
            || self.base_url.is_some()
            || !self.recordings.is_empty()
        {
            unchecked_spec.use_one_model();
        }
        let limits = &mut unchecked_spec.file.limits;
        limits.concurrency = self.concurrency.or(limits.concurrency);
        if let Some(usd) = self.budget_usd {
            unchecked_spec.set_budget_flag(usd);
        }
        if let Some(rows) = self.rows_per_request {
            // A row with media always has a request of its own.
            let expansions = unchecked_spec.file.expansion.iter_mut();
            let batched = expansions.filter(|e| !e.has_media());
            batched.for_each(|e| e.rows_per_request = Some(rows));
        }
        if !self.recordings.is_empty() {
            unchecked_spec.set_recordings(self.recordings.clone());
        }
    }
}

/// Location of the fact store.
#[derive(Clone)]
pub enum Cache {
    /// A directory.
    Dir {
        /// Path of the directory; `None` for the user's default directory ([`user_cache_dir`]).
        dir: Option<PathBuf>,
        /// Description of this process for other processes that use the store.
        owner_description: String,
    },
    /// A `PostgreSQL` server.
    Server {
        /// URL of the server: `postgres://user@host/database`.
        url: String,
        /// Description of this process for other processes that use the store.
        owner_description: String,
        /// Callback that reports when the server is unreachable.
        on_status: StatusCallback,
    },
    /// A temporary store that is deleted with the session.
    Temporary,
    /// A store that is already open.
    Open(Facts),
}

impl Cache {
    /// Opens the fact store.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be opened.
    pub fn open(&self) -> Result<Facts, FactsError> {
        match self {
            Self::Dir { dir: Some(dir), owner_description } => Facts::open(dir, owner_description),
            Self::Dir { dir: None, owner_description } => {
                Facts::open(&user_cache_dir()?, owner_description).map_err(|error| match error {
                    FactsError::File { path, error } => {
                        FactsError::DefaultDirectory { path, error }
                    }
                    other => other,
                })
            }
            Self::Server { url, owner_description, on_status } => Facts::connect_to_server(
                url,
                &user_cache_dir()?.join("servers"),
                owner_description,
                Arc::clone(on_status),
            ),
            Self::Temporary => Facts::open_temporary(),
            Self::Open(facts) => Ok(facts.clone()),
        }
    }
}

/// Returns the user's default directory for facts.
///
/// # Errors
/// [`FactsError::NoDirectory`] if the user has no data directory.
pub fn user_cache_dir() -> Result<PathBuf, FactsError> {
    etcetera::choose_base_strategy()
        .map(|strategy| strategy.data_dir().join("hqdl"))
        .map_err(|e| FactsError::NoDirectory(e.to_string()))
}

/// A spec with its database and its fact store. The fact store is opened on first use, and the
/// model is connected only on request, so that a command that only inspects the spec needs neither.
pub struct Session {
    /// The checked spec, with the overrides applied.
    pub spec: Spec,
    /// The spec as it was before the check.
    pub unchecked_spec: UncheckedSpec,
    /// The spec's database.
    pub database: Database,
    /// Warnings from checking the spec.
    pub warnings: Problems,
    cache: Cache,
    facts: OnceCell<Facts>,
}

impl Session {
    /// Opens the database of an unchecked spec and checks the spec against it.
    ///
    /// # Errors
    /// Returns all [`Problems`] at once, including a database that cannot be opened.
    pub fn open(
        mut unchecked_spec: UncheckedSpec,
        overrides: &SpecOverrides,
        cache: Cache,
    ) -> Result<Self, Problems> {
        overrides.check_replay(&unchecked_spec)?;
        overrides.apply_to(&mut unchecked_spec);
        let database = Database::open(&unchecked_spec.database())
            .map_err(|e| unchecked_spec.find_problems_without_database(&e.to_string(), e.hint()))?;
        let (spec, warnings) = unchecked_spec.check(&database)?;
        Ok(Self { spec, unchecked_spec, database, warnings, cache, facts: OnceCell::new() })
    }

    /// Returns the fact store. Opens the store on first use.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be opened.
    pub fn facts(&self) -> Result<&Facts, FactsError> {
        if let Some(facts) = self.facts.get() {
            return Ok(facts);
        }
        let facts = self.cache.open()?;
        Ok(self.facts.get_or_init(|| facts))
    }

    /// Returns the session of a reloaded spec, which takes over this session's open fact store.
    #[must_use]
    pub fn with_reloaded_spec(self, reloaded: Self) -> Self {
        Self { facts: self.facts, ..reloaded }
    }

    /// Connects to the spec's model. Its rate limits are shared by every process that uses the same
    /// fact store.
    ///
    /// # Errors
    /// [`SetupError`] if the key or the recordings are missing.
    pub fn connect_model(&self) -> Result<Arc<dyn Model>, SetupError> {
        model::connect_with_shared_limits(&self.spec, self.facts()?)
    }

    /// Returns a materializer for the selected cells of the spec's tables.
    ///
    /// # Errors
    /// [`MaterializeError`] if the selection names an unknown column, if the facts, the overrides
    /// or the database cannot be read, or if the spec does not support `run_mode`.
    pub fn new_materializer<'s>(
        &'s self,
        model: Arc<dyn Model>,
        selection: &'s Selection,
        run_mode: RunMode,
    ) -> Result<Materializer<'s>, MaterializeError> {
        Materializer::new(&self.spec, &self.database, self.facts()?, model, selection)?
            .with_run_mode(run_mode)
    }

    /// Plans the requests that a run would send. Returns the plan and notes for the user. Planning
    /// sends no request and needs no API key.
    ///
    /// # Errors
    /// [`MaterializeError`] if keys or facts cannot be read.
    pub fn plan_requests(
        &self,
        selection: &Selection,
        run_mode: RunMode,
    ) -> Result<(Plan, Vec<String>), MaterializeError> {
        self.new_materializer(model::connect_for_planning(&self.spec)?, selection, run_mode)?
            .plan_requests()
    }

    /// Returns a request to query a database: the spec's database or its expanded copy. The request
    /// has no model until the caller sets one. Pass the request to [`crate::query::run`] or
    /// [`crate::query::explain`].
    ///
    /// # Errors
    /// [`FactsError`] if the fact store cannot be opened.
    pub fn new_query<'s>(
        &'s self,
        database: &'s Path,
        sql: &'s str,
    ) -> Result<Request<'s>, FactsError> {
        Ok(Request::new(&self.spec, database, self.facts()?, sql))
    }

    /// Proposes columns for the spec from the questions that queries have asked.
    ///
    /// # Errors
    /// [`SuggestError`] if the facts or the database cannot be read.
    pub fn suggest(&self) -> Result<Suggestions, SuggestError> {
        suggest_columns(self.facts()?, Some((&self.spec, &self.database)))
    }
}

/// Overrides the value of one cell. `cell` contains the cell's table, key (one text per key column,
/// `NULL` for a null) and column, and the new value. Without `force`, rejects an override that
/// contradicts the spec or the database. Returns the value that the override stores.
///
/// # Errors
/// [`OverrideError`] if the override is rejected or cannot be written. Nothing is changed in that
/// case.
pub fn override_cell(
    spec: &Spec,
    database: &Database,
    cell: (&str, &[String], &str, &str),
    note: &str,
    force: bool,
) -> Result<String, OverrideError> {
    if !force {
        check_override(spec, database, cell)?;
    }
    let (table, key, column, value) = cell;
    Ok(overrides::set_override(spec, table, key, column, value, note)?)
}

/// Checks that an override contradicts neither the spec nor the database.
///
/// # Errors
/// [`OverrideError`] if the override contradicts the spec or the database, or if the database
/// cannot be read.
pub fn check_override(
    spec: &Spec,
    database: &Database,
    cell: (&str, &[String], &str, &str),
) -> Result<(), OverrideError> {
    let mut searched = None;
    let contains_entity = |e: &Expansion, entities: &[Entity]| {
        searched = Some(e.clone());
        contains_entity(database, e, entities)
    };
    let mut errors = find_override_errors(spec, cell, contains_entity)?;
    for error in &mut errors {
        if let (OverrideEditError::NoKey { key, similar, .. }, Some(expansion)) = (error, &searched)
        {
            *similar = find_similar_key(database, expansion, key)?;
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(OverrideError::Refused(errors)) }
}

/// Returns whether the expansion's sources contain at least one of these entities.
fn contains_entity(
    database: &Database,
    expansion: &Expansion,
    entities: &[Entity],
) -> Result<bool, StoreError> {
    let mut found = false;
    let visit = |key: &KeyRow| {
        found |= entities.contains(&key.entity);
        Ok::<_, rusqlite::Error>(())
    };
    Keys::collect(database, expansion, None)?
        .for_each(&mut { visit })
        .map_err(|e| database.to_store_error(&e))?;
    Ok(found)
}

/// Returns the key of the sources that is most similar to `wrong`; `None` if none is similar.
fn find_similar_key(
    database: &Database,
    expansion: &Expansion,
    wrong: &str,
) -> Result<Option<String>, StoreError> {
    let mut nearest: Option<String> = None;
    let visit = |row: &KeyRow| {
        let parts: Vec<_> =
            row.row.key.iter().map(|part| part.to_text().unwrap_or_default()).collect();
        let known = [nearest.take(), Some(parts.join(", "))];
        nearest =
            find_nearest(wrong, known.iter().flatten().map(String::as_str)).map(str::to_owned);
        Ok::<_, rusqlite::Error>(())
    };
    Keys::collect(database, expansion, None)?
        .for_each(&mut { visit })
        .map_err(|e| database.to_store_error(&e))?;
    Ok(nearest)
}

/// Reason why a cell cannot be overridden.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file of overrides cannot be edited, or the cell does not exist.
    #[error(transparent)]
    Edit(#[from] OverrideEditError),
    /// All errors of the override.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<OverrideEditError>),
}
