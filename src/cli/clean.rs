//! Implements `hqdl clean`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::failure::Failure;
use super::{ModelFlags, OutputOptions, session};
use crate::database::clean::clean_database;
use crate::spec::is_server;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    /// Database to use instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Copy with the published tables, to use instead of the spec's `output`.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let (db, output) = (options.db.clone(), options.output.clone());
    let flags = ModelFlags { db, output, ..ModelFlags::default() };
    let session = session::open_spec(&options.spec, &flags, None, "clean")?;
    let missing = options.output.as_deref().filter(|path| !is_server(path) && !path.exists());
    if let Some(path) = missing {
        return Err(Failure::wrong_input(
            format!("--output: there is no file {}", path.display()),
            "check the path; without --output, `hqdl clean SPEC` cleans the database that the spec publishes to",
        ));
    }
    let cleaned = clean_database(&session.database, &session.spec)?;
    let path = cleaned.path.display();
    if output_options.json {
        let (objects, file) = (&cleaned.objects, cleaned.removed_file);
        anstream::println!(
            "{}",
            json!({ "database": cleaned.path, "removed": objects, "file_removed": file })
        );
    } else if output_options.quiet {
        // Print nothing.
    } else if !is_server(&cleaned.path) && !cleaned.path.exists() && !cleaned.removed_file {
        anstream::println!("{path} does not exist: nothing to remove");
    } else if cleaned.removed_file {
        anstream::println!("removed {path}, the copy that hqdl made");
    } else if cleaned.objects.is_empty() {
        anstream::println!("{path} has nothing that hqdl made for this spec");
    } else {
        anstream::println!("removed {} from {path}", cleaned.objects.join(", "));
    }
    if !output_options.quiet && !cleaned.objects.is_empty() {
        anstream::eprintln!(
            "the answers stay in the cache; `hqdl materialize` publishes them again and sends no request"
        );
    }
    Ok(ExitCode::SUCCESS)
}
