//! From flags to a session: a spec with its flags applied, its database, its
//! facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::{CacheFlags, ModelFlags, Talk};
use crate::database::Database;
use crate::facts::{Facts, FactsError, Say, is_server};
use crate::problem::Problems;
use crate::session::{Cache, Session, SpecOverrides, user_cache};
use crate::spec::Draft;

/// Reads and checks a spec; flags win over it.
pub fn open(
    path: &Path,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    of(Draft::read(path)?, flags, budget, command)
}

/// A database without a spec: no expansions, and the model that flags name.
pub fn bare(
    database: &Path,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    let database = Database::open(database)?;
    of(Draft::bare(database.path().to_owned()), flags, budget, command)
}

/// Checks a draft; flags win over it.
pub fn of(
    draft: Draft,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    let overrides = SpecOverrides { budget_usd: budget, ..overrides(flags) };
    Ok(Session::open(draft, &overrides, cache(&flags.cache, command))?)
}

fn overrides(flags: &ModelFlags) -> SpecOverrides {
    SpecOverrides {
        database: flags.db.clone(),
        output: flags.output.clone(),
        provider: flags.provider,
        model: flags.model.clone(),
        base_url: flags.base_url.clone(),
        api_key_env: flags.api_key_env.clone(),
        price: flags.price,
        recordings: flags.recordings.clone(),
        concurrency: flags.concurrency,
        rows_per_request: flags.rows_per_request,
        budget_usd: None,
    }
}

/// Where the flags say that facts are.
pub fn cache(flags: &CacheFlags, command: &str) -> Cache {
    if flags.no_cache {
        return Cache::Temporary;
    }
    let holder = format!("hqdl {command}");
    match server(flags) {
        Some(url) => Cache::Server { url, holder, say: say() },
        None => Cache::Dir { dir: flags.cache.clone(), holder, say: say() },
    }
}

/// The URL of the server that the flags name.
pub fn server(flags: &CacheFlags) -> Option<String> {
    let cache = flags.cache.as_deref().filter(|cache| is_server(cache))?;
    Some(cache.to_string_lossy().into_owned())
}

/// Tells on stderr what a user who waits wants to know.
pub fn say() -> Say {
    Arc::new(|line| anstream::eprintln!("warning: {line}"))
}

/// Tells of facts that were opened what their user should know.
pub fn tell(facts: &Facts, talk: Talk) {
    if talk.verbose {
        let through = match facts.owner() {
            Some(owner) => format!(", through the daemon ({owner})"),
            None => String::new(),
        };
        anstream::eprintln!("facts      {}{through}", facts.place());
    }
    if let Some(damaged) = facts.known_damage().remark().filter(|_| !talk.quiet) {
        anstream::eprintln!("warning: {damaged}");
    }
}

/// The directory of the facts.
pub fn cache_dir(flags: &CacheFlags) -> Result<PathBuf, FactsError> {
    flags.cache.clone().map_or_else(user_cache, Ok)
}

/// Shows warnings, unless there is to be quiet.
pub fn warn(warnings: &Problems, talk: Talk) {
    use std::io::IsTerminal;
    if !talk.quiet && !warnings.problems.is_empty() {
        anstream::eprintln!("{}", warnings.render(std::io::stderr().is_terminal()));
    }
}
