//! Sets up a run: its spec, its default output folder, and a check of its recordings.

use std::path::{Path, PathBuf};

use hqdl_database::Database;
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_model::replay::Recordings;
use hqdl_spec::{ReadError, Spec, UncheckedSpec};
use hqdl_values::value::Value;

use crate::benchmark::{ALL, database_name};
use crate::{Benchmark, Mode, SwanError};

/// Reads the spec of a run: the file `spec`, or the benchmark's spec for the database `db`. `db`
/// replaces the database of the spec.
///
/// # Errors
/// [`SwanError`] if the spec cannot be read, or SWAN has no database of this name.
pub fn read_unchecked_spec(
    spec: Option<&Path>,
    db: Option<&Path>,
) -> Result<UncheckedSpec, SwanError> {
    let mut draft = match (spec, db) {
        (Some(spec), _) => UncheckedSpec::read(spec)?,
        (None, Some(db)) => {
            let name = database_name(db);
            let Some(benchmark) = Benchmark::find_by_name(&name) else {
                return Err(SwanError::wrong_input(
                    format!("SWAN has no database `{name}`"),
                    format!(
                        "rename the file to one of {}, or pass --spec",
                        ALL.map(|b| b.name).join(", ")
                    ),
                ));
            };
            benchmark.parse_spec().map_err(ReadError::from)?
        }
        (None, None) => {
            return Err(SwanError::wrong_input(
                "no database to query",
                "pass a database that `hqdl swan prepare` wrote with --db, or a spec with --spec",
            ));
        }
    };
    if let Some(db) = db {
        draft.set_database(db.to_owned());
    }
    Ok(draft)
}

/// Checks that the recordings contain a row of the database. Otherwise they belong to another
/// database.
///
/// # Errors
/// [`SwanError`] if the recordings contain no row of the database, or cannot be read.
pub fn check_recordings(spec: &Spec, database: &Database, name: &str) -> Result<(), SwanError> {
    let recordings = Recordings::open(&spec.model.name, &spec.model.recordings)?;
    let mut known = false;
    for expansion in &spec.expansions {
        let mut look = |key: &KeyRow| {
            let shown = expansion.build_shown_row(&key.row);
            let key: Vec<_> = shown.key.iter().map(Value::to_json).collect();
            known |= recordings.may_answer_key(&key);
            Ok::<_, rusqlite::Error>(())
        };
        let keys = Keys::collect(database, expansion, None)?;
        keys.for_each(&mut look).map_err(|e| database.to_store_error(&e))?;
        if known {
            return Ok(());
        }
    }
    let files: Vec<String> =
        spec.model.recordings.iter().map(|path| path.display().to_string()).collect();
    Err(SwanError::wrong_input(
        format!(
            "{} {} no answer about {name}",
            files.join(", "),
            if files.len() == 1 { "contains" } else { "contain" }
        ),
        "name recordings of this database with --recordings, or the database of these recordings",
    ))
}

/// Returns the default output folder of a run.
#[must_use]
pub fn default_output_dir(
    name: &str,
    mode: Mode,
    on_demand: bool,
    shots: usize,
    model: &str,
) -> PathBuf {
    let model: String =
        model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let on_demand = if on_demand { "-on-demand" } else { "" };
    Path::new("swan-runs").join(format!("{name}-{}{on_demand}-{shots}-{model}", mode.name()))
}
