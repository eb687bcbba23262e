//! Opens a session from flags: a spec with the flags applied, its database and its facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::{CacheFlags, ModelFlags, OutputOptions};
use crate::database::{Database, StoreError, find_write_only_output};
use crate::facts::{Facts, FactsError, StatusCallback};
use crate::problem::Problems;
use crate::session::{Cache, Session, SpecOverrides, user_cache_dir};
use crate::spec::{Provider, UncheckedSpec, is_server, is_sqlite_file};

/// Reads a spec, applies the flags and checks it.
pub fn open_spec(
    path: &Path,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    open_unchecked_spec(UncheckedSpec::read(path)?, flags, budget, command)
}

/// Opens the database that --db names. An error names the flag.
pub fn open_flag_database(path: &Path) -> Result<Database, Failure> {
    Database::open(path).map_err(|error| match error {
        StoreError::Missing(_) if path.to_string_lossy().contains("://") => error.into(),
        StoreError::Missing(_) => {
            let hint = if path.iter().any(|part| part == "~") {
                "the shell expands `~` only outside quotes, and hqdl does not: write the full path"
            } else {
                "check the path, which is relative to the current directory"
            };
            Failure::wrong_input(format!("--db: {error}"), hint)
        }
        other => other.into(),
    })
}

/// Opens a database without a spec: there are no expansions, and the flags name the model.
pub fn open_without_spec(
    database: &Path,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    let database = open_flag_database(database)?;
    let draft = UncheckedSpec::without_file(database.path().to_owned());
    // A problem with the flags has no location, because the draft was not read from a file.
    open_unchecked_spec(draft, flags, budget, command).map_err(|failure| match failure {
        Failure::Problems(problems) => match <[_; 1]>::try_from(problems.problems.clone()) {
            Ok([one]) => Failure::wrong_input(one.message, one.help.unwrap_or_default()),
            Err(_) => Failure::Problems(problems),
        },
        other @ Failure::Message { .. } => other,
    })
}

/// Applies the flags to a spec and checks it.
pub fn open_unchecked_spec(
    draft: UncheckedSpec,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
) -> Result<Session, Failure> {
    if let Some(folder) = flags.recordings.iter().find(|path| path.is_dir()) {
        return Err(Failure::wrong_input(
            format!("--recordings: {} is a directory, not a recording", folder.display()),
            format!("name its files, as in --recordings {}/*.jsonl", folder.display()),
        ));
    }
    if flags.provider == Some(Provider::Replay)
        && flags.recordings.is_empty()
        && draft.file.model.recordings.is_empty()
    {
        return Err(Failure::wrong_input(
            "--provider replay needs recordings",
            "pass --recordings FILE, or name files in `recordings` of [model]",
        ));
    }
    if let Some(missing) = flags.recordings.iter().find(|path| !path.exists()) {
        return Err(Failure::wrong_input(
            format!("--recordings: the recording {} does not exist", missing.display()),
            "name files with recordings: JSON lines, plain or compressed (.gz)",
        ));
    }
    if let Some(output) = flags.output.as_deref().filter(|path| path.is_file())
        && !is_sqlite_file(output)
        && find_write_only_output(output).is_none()
        && std::fs::metadata(output).is_ok_and(|file| file.len() > 0)
    {
        return Err(Failure::wrong_input(
            format!("--output: {} exists and is not a SQLite database", output.display()),
            "choose another path",
        ));
    }
    if let Some(database) = flags.db.as_deref().filter(|db| !is_server(db)) {
        // The path comes from a flag, so open the database here: the error message must not name
        // the spec.
        open_flag_database(database)?;
    }
    let overrides = SpecOverrides { budget_usd: budget, ..to_overrides(flags) };
    Ok(Session::open(draft, &overrides, select_cache(&flags.cache, command))?)
}

pub fn to_overrides(flags: &ModelFlags) -> SpecOverrides {
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

pub fn select_cache(flags: &CacheFlags, command: &str) -> Cache {
    if flags.no_cache {
        return Cache::Temporary;
    }
    let owner_description = format!("hqdl {command}");
    match server_url(flags) {
        Some(url) => Cache::Server { url, owner_description, on_status: build_warning_printer() },
        None => {
            // An empty HQDL_CACHE counts as unset.
            let dir = flags.cache.clone().filter(|dir| !dir.as_os_str().is_empty());
            Cache::Dir { dir, owner_description }
        }
    }
}

/// Returns the URL of the cache server, if the flags name one.
pub fn server_url(flags: &CacheFlags) -> Option<String> {
    let cache = flags.cache.as_deref().filter(|cache| is_server(cache))?;
    Some(cache.to_string_lossy().into_owned())
}

/// Returns a callback that prints status messages on stderr.
pub fn build_warning_printer() -> StatusCallback {
    Arc::new(|line| anstream::eprintln!("warning: {line}"))
}

/// Prints the location of the opened facts, and warns about damage.
pub fn print_cache_location(facts: &Facts, output_options: OutputOptions) {
    if output_options.verbose {
        anstream::eprintln!("facts      {}", facts.location());
    }
    if let Some(damaged) = facts.known_damage().warning().filter(|_| !output_options.quiet) {
        anstream::eprintln!("warning: {damaged}");
    }
}

/// Returns the cache directory.
pub fn find_cache_dir(flags: &CacheFlags) -> Result<PathBuf, FactsError> {
    flags.cache.clone().map_or_else(user_cache_dir, Ok)
}

/// Prints warnings, unless `--quiet` is set.
pub fn print_warnings(warnings: &Problems, output_options: OutputOptions) {
    use std::io::IsTerminal;
    if !output_options.quiet && !warnings.problems.is_empty() {
        anstream::eprintln!("{}", warnings.render(std::io::stderr().is_terminal()));
    }
}
