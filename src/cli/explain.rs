//! Implements `hqdl explain`.

use std::process::ExitCode;
use std::sync::Arc;

use super::failure::Failure;
use super::input::{self, Input};
use super::{OutputOptions, interrupt, meta, plan};
use crate::model;
use crate::query;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: input::Options,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let input = Input::open(&options.input, "explain", output_options)?;
    let explained = if input.has_calls() {
        input.open_facts(output_options)?;
        // Planning needs the model's name and provider profile, but no API key.
        let model = model::connect_for_planning(&input.session.spec)?;
        let silent = Arc::new(|_: &_| ());
        let interrupt = interrupt::watch_ctrl_c(None);
        query::explain(&input.build_request(Some(model), silent, interrupt)?)
    } else {
        input.build_plain_query(interrupt::watch_ctrl_c(None)).explain()
    };
    let meta = explained.map_err(|error| input.to_failure(error, None))?;
    if output_options.json {
        anstream::println!("{}", meta.explained_to_json());
    } else {
        anstream::print!("{}", meta::format_explained_query(&meta, &input.session.spec));
        if meta.requests > 0 && !output_options.quiet {
            plan::print_reasoning_notes(&input.session)?;
        }
        if output_options.verbose {
            anstream::print!("{}", meta::format_plan(&meta));
        }
    }
    Ok(ExitCode::SUCCESS)
}
