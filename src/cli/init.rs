//! `hqdl init`

use std::path::PathBuf;
use std::process::ExitCode;

use super::Talk;
use super::failure::Failure;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The database.
    db: PathBuf,
}

pub fn run(_options: &Options, _talk: Talk) -> Result<ExitCode, Failure> {
    Err(Failure::input("later", ""))
}
