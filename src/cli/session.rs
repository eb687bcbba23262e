//! Opens a session from flags: a spec with the flags applied, its database and its facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::{CacheFlags, ModelFlags, Talk};
use crate::database::Database;
use crate::facts::{Facts, FactsError, Say, is_server};
use crate::problem::Problems;
use crate::session::{Cache, Session, SpecOverrides, user_cache};
use crate::spec::Draft;

/// Reads and checks a spec; flags override it.
pub fn open(
    path: &Path,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    of(Draft::read(path)?, flags, budget, command)
}

/// Opens a database without a spec: no expansions, and the model that the flags name.
pub fn bare(
    database: &Path,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    let database = Database::open(database)?;
    of(Draft::bare(database.path().to_owned()), flags, budget, command)
}

/// Checks a spec; flags override it.
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

/// Returns the cache that the flags select.
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

/// Returns the URL of the cache server that the flags name.
pub fn server(flags: &CacheFlags) -> Option<String> {
    let cache = flags.cache.as_deref().filter(|cache| is_server(cache))?;
    Some(cache.to_string_lossy().into_owned())
}

/// Returns a callback that prints status messages on stderr.
pub fn say() -> Say {
    Arc::new(|line| anstream::eprintln!("warning: {line}"))
}

/// Prints the location of the opened facts, and warns about damage.
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

/// Returns the cache directory.
pub fn cache_dir(flags: &CacheFlags) -> Result<PathBuf, FactsError> {
    flags.cache.clone().map_or_else(user_cache, Ok)
}

/// Prints warnings, unless `--quiet` is set.
pub fn warn(warnings: &Problems, talk: Talk) {
    use std::io::IsTerminal;
    if !talk.quiet && !warnings.problems.is_empty() {
        anstream::eprintln!("{}", warnings.render(std::io::stderr().is_terminal()));
    }
}
