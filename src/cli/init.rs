//! `hqdl init`

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use super::Talk;
use super::failure::Failure;
use crate::database::{Database, StoreError};
use crate::format::count_noun;
use crate::init::scaffold_beside;
use crate::init::tables::{self, TablesError};
use crate::spec::is_server;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Database, or a CSV file or a directory of CSV files, from which hqdl makes a database beside
    /// them.
    db: PathBuf,
    /// Output file [default: stdout]. An existing file is never overwritten.
    #[arg(long, short, value_name = "FILE")]
    spec: Option<PathBuf>,
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let failed = |path: &Path, e: &std::io::Error| {
        let message = format!("cannot write {}: {e}", path.display());
        Failure::input(message, "choose another file with --spec")
    };
    // Check before hqdl creates any file.
    if let Some(spec) = options.spec.as_ref().filter(|spec| spec.exists()) {
        return Err(Failure::input(
            format!("{} exists already, and `init` never overwrites a spec", spec.display()),
            "choose another file with --spec, or delete this one first",
        ));
    }
    let path = database(&options.db, talk)?;
    let database = Database::open(&path).map_err(|e| match e {
        StoreError::Missing(path) => Failure::input(
            format!("there is no file at {}", path.display()),
            "name a SQLite database, or a CSV file to make one of: `hqdl init data.csv`",
        ),
        other => other.into(),
    })?;
    if let Some(folder) = options.spec.as_deref().and_then(Path::parent) {
        std::fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
    }
    let made =
        scaffold_beside(&database, &reference(&path, options.spec.as_deref()), is_others(&path))?;
    if let Some(spec) = &options.spec {
        let mut file = std::fs::File::create_new(spec).map_err(|e| failed(spec, &e))?;
        std::io::Write::write_all(&mut file, made.toml.as_bytes()).map_err(|e| failed(spec, &e))?;
    }
    if talk.json {
        anstream::println!(
            "{}",
            json!({ "spec": made.toml, "notes": made.notes, "file": options.spec })
        );
    } else if options.spec.is_none() {
        anstream::print!("{}", made.toml);
    }
    if !talk.quiet {
        made.notes.iter().for_each(|n| anstream::eprintln!("note: {n}"));
        if let Some(spec) = &options.spec {
            anstream::eprintln!("wrote {}; next: hqdl check {0}", spec.display());
        } else {
            anstream::eprintln!("next: save this as a file and run `hqdl check` on it");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the database to read: the given one, or a new one made from CSV files.
fn database(path: &Path, talk: Talk) -> Result<PathBuf, Failure> {
    let Some(files) = tables::files(path) else { return Ok(path.to_owned()) };
    let (made, notes) = tables::database_of(path, &files).map_err(|e| {
        let hint = match &e {
            TablesError::Exists(made) => {
                format!("if it was made of this, use it: `hqdl init {}`", made.display())
            }
            _ => "expected UTF-8 text with the names of the columns in its first line".to_owned(),
        };
        Failure::input(e.to_string(), hint)
    })?;
    if !talk.quiet {
        let files = count_noun(files.len() as u64, "CSV file");
        anstream::eprintln!("created {} from {files}", made.display());
        notes.iter().for_each(|note| anstream::eprintln!("note: {note}"));
    }
    Ok(made)
}

/// Returns true if the database is read-only.
fn is_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.permissions().readonly())
}

/// Returns the path by which a spec refers to the database: relative to the spec's folder, or
/// absolute if the spec is not saved to a file.
fn reference(db: &Path, spec: Option<&Path>) -> String {
    if is_server(db) {
        return db.to_string_lossy().into_owned();
    }
    let full = db.canonicalize().unwrap_or_else(|_| db.to_owned());
    let folder = spec.and_then(|s| {
        let parent = s.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        parent.canonicalize().ok()
    });
    let path = folder.map_or_else(|| full.clone(), |folder| relative(&folder, &full));
    path.display().to_string()
}

/// Returns the relative path from a folder to a file.
fn relative(folder: &Path, file: &Path) -> PathBuf {
    let shared = folder.components().zip(file.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(file.components().skip(shared)).collect()
}
