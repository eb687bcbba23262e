//! An opened project: a spec with its database, what is known, and whom to ask.
//! Every door, and whoever uses hqdl as a library, begins with a [`Session`] and
//! opens nothing by hand.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcetera::BaseStrategy;

use crate::materialize::{MaterializeError, Selection, Way, Work};
use crate::query::Request;
use crate::suggest::{SuggestError, Suggestions, suggest};
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_database::{Database, StoreError};
use hqdl_facts::{Facts, FactsError, Say};
use hqdl_model::plan::Plan;
use hqdl_model::{self as model, Model, SetupError};
use hqdl_spec::overrides::{self, OverrideEditError, objections};
use hqdl_spec::{Draft, Expansion, PriceTable, Provider, Spec};
use hqdl_values::key::Entity;
use hqdl_values::problem::Problems;

/// What wins over a spec: flags, or what a caller says.
#[derive(Debug, Clone, Default)]
pub struct SpecOverrides {
    /// The database.
    pub database: Option<PathBuf>,
    /// Where expanded tables go.
    pub output: Option<PathBuf>,
    /// Who is asked; recordings alone name their provider, too.
    pub provider: Option<Provider>,
    /// The model's name.
    pub model: Option<String>,
    /// The endpoint's URL.
    pub base_url: Option<String>,
    /// The variable that holds the endpoint's key.
    pub api_key_env: Option<String>,
    /// USD per million tokens.
    pub price: Option<PriceTable>,
    /// Recordings to replay.
    pub recordings: Vec<PathBuf>,
    /// Requests in flight at once.
    pub concurrency: Option<u32>,
    /// Rows that share a request, in every expansion.
    pub rows_per_request: Option<u32>,
    /// USD that a run may spend.
    pub budget_usd: Option<f64>,
}

impl SpecOverrides {
    fn apply(&self, draft: &mut Draft) {
        if let Some(database) = &self.database {
            draft.set_database(database.clone());
        }
        if let Some(output) = &self.output {
            draft.set_output(output.clone());
        }
        let model = &mut draft.file.model;
        match self.provider {
            Some(provider) => model.provider = provider,
            None if !self.recordings.is_empty() => model.provider = Provider::Replay,
            None => {}
        }
        if let Some(name) = self.model.as_ref().filter(|name| **name != model.name) {
            model.name.clone_from(name);
            // The spec's price is that of its own model.
            model.price = None;
        }
        if self.base_url.is_some() && self.base_url != model.base_url {
            model.base_url.clone_from(&self.base_url);
            // The key of one endpoint is not sent to another.
            model.api_key_env = None;
        }
        if self.api_key_env.is_some() {
            model.api_key_env.clone_from(&self.api_key_env);
        }
        if self.price.is_some() {
            model.price = self.price;
        }
        // Who is asked, as flags say it, is asked of all.
        if self.provider.is_some()
            || self.model.is_some()
            || self.base_url.is_some()
            || !self.recordings.is_empty()
        {
            draft.ask_one_model();
        }
        let limits = &mut draft.file.limits;
        limits.concurrency = self.concurrency.or(limits.concurrency);
        limits.budget_usd = self.budget_usd.or(limits.budget_usd);
        if let Some(rows) = self.rows_per_request {
            // Rows with images stay one a request.
            let together = draft.file.expansion.iter_mut().filter(|e| e.images.is_empty());
            together.for_each(|e| e.rows_per_request = Some(rows));
        }
        if !self.recordings.is_empty() {
            draft.set_recordings(self.recordings.clone());
        }
    }
}

/// Where facts are kept.
#[derive(Clone)]
pub enum Cache {
    /// In a directory.
    Dir {
        /// The directory; without one, the user's own ([`user_cache`]).
        dir: Option<PathBuf>,
        /// How this process is described to others who use it.
        holder: String,
        /// Reports that the process which owns it does not go on.
        say: Say,
    },
    /// On a server.
    Server {
        /// Its URL: `postgres://user@host/database`.
        url: String,
        /// How this process is described to others who use it.
        holder: String,
        /// Who is told when it cannot be reached.
        say: Say,
    },
    /// Nowhere: they are gone with the session.
    Temporary,
    /// Where these are, which are open already.
    Open(Facts),
}

impl Cache {
    /// Opens the facts.
    ///
    /// # Errors
    /// [`FactsError`] when they cannot be opened.
    pub fn open(&self) -> Result<Facts, FactsError> {
        match self {
            Self::Dir { dir: Some(dir), holder, say } => Facts::open_with(dir, holder, say),
            Self::Dir { dir: None, holder, say } => Facts::open_with(&user_cache()?, holder, say),
            Self::Server { url, holder, say } => {
                Facts::connect(url, &user_cache()?.join("servers"), holder, Arc::clone(say))
            }
            Self::Temporary => Facts::temporary(),
            Self::Open(facts) => Ok(facts.clone()),
        }
    }
}

/// The directory where a user's facts are kept when nothing else is said.
///
/// # Errors
/// [`FactsError::NoDirectory`].
pub fn user_cache() -> Result<PathBuf, FactsError> {
    etcetera::choose_base_strategy()
        .map(|strategy| strategy.data_dir().join("hqdl"))
        .map_err(|e| FactsError::NoDirectory(e.to_string()))
}

/// A spec, its database, what is known, and whom to ask. Facts and model are
/// opened when they are first needed: who only looks needs neither.
pub struct Session {
    /// The checked spec, with what wins over it.
    pub spec: Spec,
    /// The same, as it was written.
    pub draft: Draft,
    /// Its database.
    pub database: Database,
    /// What is worth a look.
    pub warnings: Problems,
    cache: Cache,
    facts: OnceCell<Facts>,
}

impl Session {
    /// Opens the database of a draft and checks the draft against it.
    ///
    /// # Errors
    /// All [`Problems`] at once: a database that cannot be opened is one of them.
    pub fn open(
        mut draft: Draft,
        overrides: &SpecOverrides,
        cache: Cache,
    ) -> Result<Self, Problems> {
        overrides.apply(&mut draft);
        let database = Database::open(&draft.database())
            .map_err(|e| draft.database_problem(&e.to_string(), e.hint()))?;
        let (spec, warnings) = draft.check(&database)?;
        Ok(Self { spec, draft, database, warnings, cache, facts: OnceCell::new() })
    }

    /// What is known.
    ///
    /// # Errors
    /// [`FactsError`] when it cannot be opened.
    pub fn facts(&self) -> Result<&Facts, FactsError> {
        if let Some(facts) = self.facts.get() {
            return Ok(facts);
        }
        let facts = self.cache.open()?;
        Ok(self.facts.get_or_init(|| facts))
    }

    /// The same project, read again: with the facts that are open.
    #[must_use]
    pub fn again(self, read: Self) -> Self {
        Self { facts: self.facts, ..read }
    }

    /// The model that the spec names, asked under limits that are shared by all who
    /// ask it with these facts.
    ///
    /// # Errors
    /// [`SetupError`] when its key or its recordings are missing.
    pub fn model(&self) -> Result<Arc<dyn Model>, SetupError> {
        model::connect_with(&self.spec, self.facts()?)
    }

    /// What is to be filled of the spec's tables, asking a model.
    ///
    /// # Errors
    /// [`MaterializeError`] when the selection names what does not exist.
    pub fn work<'s>(
        &'s self,
        model: Arc<dyn Model>,
        selection: &'s Selection,
        way: Way,
    ) -> Result<Work<'s>, MaterializeError> {
        Work::new(&self.spec, &self.database, self.facts()?, model, selection)?.by(way)
    }

    /// What would be asked, and why, with remarks; asks nothing and needs no key.
    ///
    /// # Errors
    /// [`MaterializeError`] when keys or facts cannot be read.
    pub fn plan(
        &self,
        selection: &Selection,
        way: Way,
    ) -> Result<(Plan, Vec<String>), MaterializeError> {
        self.work(model::for_planning(&self.spec)?, selection, way)?.plan()
    }

    /// A query of a database (the spec's, or its expanded copy), asked of nobody
    /// until it is given a model: [`crate::query::run`] and
    /// [`crate::query::explain`] take it.
    ///
    /// # Errors
    /// [`FactsError`] when facts cannot be opened.
    pub fn query<'s>(
        &'s self,
        database: &'s Path,
        sql: &'s str,
    ) -> Result<Request<'s>, FactsError> {
        Ok(Request::of(&self.spec, database, self.facts()?, sql))
    }

    /// What the questions asked so far would be in this spec.
    ///
    /// # Errors
    /// [`SuggestError`] when facts or database cannot be read.
    pub fn suggest(&self) -> Result<Suggestions, SuggestError> {
        suggest(self.facts()?, Some((&self.spec, &self.database)))
    }
}

/// Says what a cell is, whatever the model says: table, `key` in the order of the key
/// with NULL for NULL, column and value. What speaks against it is an error, unless it
/// is `forced`.
///
/// # Errors
/// [`OverrideError`]; nothing is changed then.
pub fn override_cell(
    spec: &Spec,
    database: &Database,
    (table, key, column, value): (&str, &[String], &str, &str),
    note: &str,
    forced: bool,
) -> Result<(), OverrideError> {
    let has = |e: &Expansion, entities: &[Entity]| has(database, e, entities);
    if !forced {
        let against = objections(spec, (table, key, column, value), has)?;
        if !against.is_empty() {
            return Err(OverrideError::Refused(against));
        }
    }
    Ok(overrides::set(spec, table, key, column, value, note)?)
}

/// Whether a source of an expansion has one of some entities.
fn has(database: &Database, of: &Expansion, entities: &[Entity]) -> Result<bool, StoreError> {
    let mut found = false;
    let look = |key: &KeyRow| {
        found |= entities.contains(&key.entity);
        Ok::<_, rusqlite::Error>(())
    };
    Keys::gather(database, of, None)?.each(&mut { look }).map_err(|e| database.error(&e))?;
    Ok(found)
}

/// Why a cell cannot be overridden.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file of overrides failed, or the cell is none.
    #[error(transparent)]
    Edit(#[from] OverrideEditError),
    /// All that speaks against it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<OverrideEditError>),
}
