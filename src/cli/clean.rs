//! `hqdl clean`

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::failure::Failure;
use super::{ModelFlags, Talk, session};
use crate::database::clean::clean;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    /// Database, instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Copy with the expanded tables, instead of the spec's `output`.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let (db, output) = (options.db.clone(), options.output.clone());
    let flags = ModelFlags { db, output, ..ModelFlags::default() };
    let session = session::open(&options.spec, &flags, None, "clean")?;
    let cleaned = clean(&session.database, &session.spec)?;
    let path = cleaned.path.display();
    if talk.json {
        let (objects, file) = (&cleaned.objects, cleaned.file);
        anstream::println!(
            "{}",
            json!({ "database": cleaned.path, "removed": objects, "file_removed": file })
        );
    } else if talk.quiet {
        // Print nothing.
    } else if cleaned.file {
        anstream::println!("removed {path}, the copy that hqdl made");
    } else if cleaned.objects.is_empty() {
        anstream::println!("{path} has nothing that hqdl made for this spec");
    } else {
        anstream::println!("removed {} from {path}", cleaned.objects.join(", "));
    }
    if !talk.quiet && !cleaned.objects.is_empty() {
        anstream::eprintln!(
            "the answers stay in the cache; `hqdl materialize` publishes them again and sends no request"
        );
    }
    Ok(ExitCode::SUCCESS)
}
