//! `hqdl explain`

use std::process::ExitCode;
use std::sync::Arc;

use super::failure::Failure;
use super::input::{self, Input};
use super::{Talk, interrupt, meta};
use crate::model;
use crate::query;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: input::Options,
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let input = Input::open(&options.input, "explain", talk)?;
    let explained = if input.has_calls() {
        input.open_facts(talk)?;
        // Planning needs the model's name and provider profile, but no API key.
        let model = model::for_planning(&input.session.spec)?;
        let silent = Arc::new(|_: &_| ());
        let interrupt = interrupt::watch(None);
        query::explain(&input.request(Some(model), silent, interrupt)?)
    } else {
        input.plain(interrupt::watch(None)).explain()
    };
    let meta = explained.map_err(|error| input.failure(error, None))?;
    if talk.json {
        anstream::println!("{}", meta.explained_json());
    } else {
        anstream::print!("{}", meta::explained(&meta, &input.session.spec));
        if talk.verbose {
            anstream::print!("{}", meta::plan(&meta));
        }
    }
    Ok(ExitCode::SUCCESS)
}
