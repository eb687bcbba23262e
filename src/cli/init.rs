//! `hqdl init`

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use super::Talk;
use super::failure::Failure;
use crate::init::scaffold;
use crate::store::Database;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The database.
    db: PathBuf,
    /// Write the spec here instead of to stdout; an existing file is left alone.
    #[arg(long, short, value_name = "FILE")]
    spec: Option<PathBuf>,
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let database = Database::open(&options.db)?;
    let made = scaffold(&database, &reference(options))?;
    if let Some(spec) = &options.spec {
        let failed = |e: std::io::Error| {
            Failure::input(format!("cannot write {}: {e}", spec.display()), "choose another file")
        };
        let mut file = std::fs::File::create_new(spec).map_err(failed)?;
        std::io::Write::write_all(&mut file, made.toml.as_bytes()).map_err(failed)?;
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

/// The database as a spec beside which it is saved refers to it. Without a
/// file to save it to, the absolute path holds wherever that will be.
fn reference(options: &Options) -> String {
    let full = options.db.canonicalize().unwrap_or_else(|_| options.db.clone());
    let folder = options.spec.as_ref().and_then(|s| {
        let parent = s.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        parent.canonicalize().ok()
    });
    let path = folder.map_or_else(|| full.clone(), |folder| relative(&folder, &full));
    path.display().to_string()
}

/// The way from a folder to a file.
fn relative(folder: &Path, file: &Path) -> PathBuf {
    let shared = folder.components().zip(file.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(file.components().skip(shared)).collect()
}
