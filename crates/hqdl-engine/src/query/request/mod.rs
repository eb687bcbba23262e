//! A query with all its settings: the types that every phase uses.

pub mod dialect;
pub mod error;
pub mod params;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::query::request::dialect::Dialect;
use crate::query::request::error::QueryError;
use crate::query::request::params::Param;
use crate::retrieval::evidence::load_evidence;
use hqdl_database::Database;
use hqdl_facts::{ExpansionRequirements, Facts};
use hqdl_model::generate::Listener;
use hqdl_model::{self as model, ExpansionModels, Model};
use hqdl_spec::{Expansion, Spec};
use hqdl_values::value::Value;

/// A query with all its settings.
#[derive(Clone)]
pub struct Request<'a> {
    /// The spec. It has no expansions if the user has no spec.
    pub spec: &'a Spec,
    /// The database to query: the expanded copy if it exists, otherwise the source.
    pub database: &'a Path,
    /// The fact store.
    pub facts: &'a Facts,
    /// The model. Without a model, a query that needs a new value fails with
    /// [`NoModel`](error::QueryError::NoModel).
    pub model: Option<Arc<dyn Model>>,
    /// Text of the query.
    pub sql: &'a str,
    /// SQL dialect of the query.
    pub dialect: Dialect,
    /// Values of the query's parameters.
    pub params: Vec<(Param, Value)>,
    /// Whether a literal that is missing from a low-cardinality column matches the column's values
    /// with the same meaning. The spec can also enable this for a column.
    pub classify: bool,
    /// Whether to truncate a context that is too long instead of failing.
    pub truncate: bool,
    /// Known values to ask for again; `None` to reuse all.
    pub refresh: Option<RefreshScope>,
    /// Rows per request; `None` to use the spec's setting.
    pub rows_per_request: Option<u32>,
    /// Maximum time that `SQLite` may spend on one pass; `None` for no limit. Time spent waiting
    /// for the model does not count.
    pub timeout: Option<Duration>,
    /// Name of the command in the journal.
    pub command: &'a str,
    /// Callback for progress events.
    pub listener: Listener,
    /// Channel whose value becomes true when the user interrupts the query.
    pub interrupt: watch::Receiver<bool>,
    /// Counts the cost of the query, even if it fails.
    pub counted_cost: CountedCost,
}

/// Cost of a query's requests in USD, including requests that may have been billed although their
/// answers were lost. All clones share one total.
#[derive(Debug, Clone, Default)]
pub struct CountedCost(Arc<Mutex<f64>>);

impl CountedCost {
    /// Returns the cost in USD.
    #[must_use]
    pub fn usd(&self) -> f64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::query) fn add_usd(&self, usd: f64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += usd;
    }
}

impl<'a> Request<'a> {
    /// Returns a request with default settings: `SQLite`'s dialect, no model. Override fields with
    /// struct update syntax.
    #[must_use]
    pub fn new(spec: &'a Spec, database: &'a Path, facts: &'a Facts, sql: &'a str) -> Self {
        Self {
            spec,
            database,
            facts,
            model: None,
            sql,
            dialect: Dialect::default(),
            params: Vec::new(),
            classify: false,
            truncate: false,
            refresh: None,
            rows_per_request: None,
            timeout: None,
            command: "query",
            listener: Arc::new(|_| {}),
            interrupt: watch::channel(false).1,
            counted_cost: CountedCost::default(),
        }
    }

    /// Returns the models that answer for an expansion.
    pub(in crate::query) fn choose_models(&self, expansion: &Expansion) -> ExpansionModels {
        model::choose_models(self.spec, self.model.as_deref(), expansion)
    }

    /// Loads the documents of an expansion, if it has any.
    ///
    /// # Errors
    /// Returns [`QueryError::Evidence`] if the documents cannot be read, or another [`QueryError`]
    /// if the spec's database cannot be opened.
    pub(in crate::query) fn load_evidence(&self, expansion: &Expansion) -> Result<(), QueryError> {
        if expansion.evidence.is_none() {
            return Ok(());
        }
        let database = Database::open(&self.spec.database)?;
        load_evidence(self.spec, expansion, &database, self.facts)
            .map_err(|message| QueryError::Evidence { expansion: expansion.name.clone(), message })
    }
}

/// Selects the known values to ask for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshScope {
    /// Largest completion id whose facts are ignored.
    pub up_to: i64,
    /// Whether to ignore only the facts without a value.
    pub failed_only: bool,
}

impl RefreshScope {
    /// Marks the values to ask for again as missing.
    pub(in crate::query) fn mark_values_missing(
        self,
        requirements: &mut ExpansionRequirements,
        columns: usize,
    ) {
        for column in 0..columns {
            if self.failed_only {
                requirements.retry_column(column, self.up_to);
            } else {
                requirements.refresh_column(column, self.up_to);
            }
        }
    }
}
