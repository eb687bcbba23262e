//! From flags to checked things: a spec with its flags applied, its database,
//! its facts.

use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use super::failure::{Failure, open_database};
use super::{CacheFlags, ModelFlags, ProviderFlag, Talk};
use crate::facts::Facts;
use crate::problem::Problems;
use crate::spec::{Draft, Provider, Spec};
use crate::store::Database;

/// A spec and its database.
pub struct Session {
    /// The checked spec, flags applied.
    pub spec: Spec,
    /// Its database.
    pub database: Database,
    /// What is worth a look.
    pub warnings: Problems,
}

/// Reads and checks a spec; flags win over it.
pub fn open(path: &Path, flags: &ModelFlags, budget: Option<f64>) -> Result<Session, Failure> {
    checked(Draft::read(path)?, flags, budget)
}

/// A database without a spec: no expansions, and the model that flags name.
pub fn bare(database: &Path, flags: &ModelFlags, budget: Option<f64>) -> Result<Session, Failure> {
    let database = Database::open(database)?;
    checked(Draft::bare(database.path().to_owned()), flags, budget)
}

/// Checks a draft; flags win over it.
pub fn checked(
    mut draft: Draft,
    flags: &ModelFlags,
    budget: Option<f64>,
) -> Result<Session, Failure> {
    apply(&mut draft, flags);
    if budget.is_some() {
        draft.file.limits.budget_usd = budget;
    }
    let database = open_database(&draft)?;
    let (spec, warnings) = draft.check(&database)?;
    Ok(Session { spec, database, warnings })
}

fn apply(draft: &mut Draft, flags: &ModelFlags) {
    if let Some(db) = &flags.db {
        draft.set_database(db.clone());
    }
    if let Some(output) = &flags.output {
        draft.set_output(output.clone());
    }
    let model = &mut draft.file.model;
    match flags.provider {
        Some(ProviderFlag::Openai) => model.provider = Provider::Openai,
        Some(ProviderFlag::Replay) => model.provider = Provider::Replay,
        None if !flags.recordings.is_empty() => model.provider = Provider::Replay,
        None => {}
    }
    if let Some(name) = &flags.model {
        model.name.clone_from(name);
    }
    if flags.base_url.is_some() {
        model.base_url.clone_from(&flags.base_url);
    }
    if flags.price.is_some() {
        model.price = flags.price;
    }
    if let Some(concurrency) = flags.concurrency {
        draft.file.limits.concurrency = Some(concurrency);
    }
    if let Some(rows) = flags.rows_per_request {
        draft.file.expansion.iter_mut().for_each(|e| e.rows_per_request = Some(rows));
    }
    if !flags.recordings.is_empty() {
        draft.set_recordings(flags.recordings.clone());
    }
}

/// The facts that the flags name.
pub fn facts(flags: &CacheFlags, command: &str, talk: Talk) -> Result<Facts, Failure> {
    let facts = if flags.no_cache {
        Facts::temporary()?
    } else {
        Facts::open(&cache_dir(flags)?, &format!("hqdl {command}"))?
    };
    if talk.verbose {
        let through = match facts.owner() {
            Some(owner) => format!(", through the daemon ({owner})"),
            None => String::new(),
        };
        anstream::eprintln!("facts      {}{through}", facts.dir().display());
    }
    if let Some(damaged) = facts.known_damage().remark().filter(|_| !talk.quiet) {
        anstream::eprintln!("warning: {damaged}");
    }
    Ok(facts)
}

/// The directory of the facts.
pub fn cache_dir(flags: &CacheFlags) -> Result<PathBuf, Failure> {
    if let Some(dir) = &flags.cache {
        return Ok(dir.clone());
    }
    etcetera::choose_base_strategy().map(|strategy| strategy.data_dir().join("hqdl")).map_err(|e| {
        Failure::input(format!("no data directory: {e}"), "name one with --cache or HQDL_CACHE")
    })
}

/// Shows warnings, unless there is to be quiet.
pub fn warn(warnings: &Problems, talk: Talk) {
    use std::io::IsTerminal;
    if !talk.quiet && !warnings.problems.is_empty() {
        anstream::eprintln!("{}", warnings.render(std::io::stderr().is_terminal()));
    }
}
