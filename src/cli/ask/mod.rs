//! Implements `hqdl ask`.

mod answered_question;
mod plan_output;
mod question_run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub use self::answered_question::AnsweredQuestion;
pub use self::plan_output::print_sql;
pub use self::question_run::{AskOutcome, AskRun, PlanUse};
use super::failure::{APPROVAL, Failure, INTERRUPTED};
use super::input::{self, open_for_query};
use super::rows::RowsFormat;
use super::{ModelFlags, OutputOptions, interrupt, propose};
use crate::ask::{self, Turn};
use crate::database::Database;
use crate::session::Session;
use crate::spec::file::ExampleTable;
use crate::spec_file;
use crate::suggest::edit;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Question in plain words, or - to read it from stdin.
    #[arg(value_name = "QUESTION")]
    question: String,
    #[command(flatten)]
    ask: AskFlags,
    /// Approve the plan with this id, which an earlier call printed. Another plan runs only if it
    /// needs no approval.
    #[arg(long, value_name = "PLAN_ID", conflicts_with_all = ["yes", "yes_under"])]
    approve: Option<String>,
    /// Print the query without running it.
    #[arg(long)]
    sql_only: bool,
    /// Print how the query would run, like `hqdl explain`, without running it.
    #[arg(long, conflicts_with = "sql_only")]
    explain: bool,
    /// Also answer in at most three English sentences. A model writes them from the rows, and hqdl
    /// prints them only if their numbers and names occur in the rows that they cite, such as [1].
    #[arg(long, conflicts_with_all = ["sql_only", "explain"])]
    say: bool,
    /// Add the question and its query to the spec as an [[example]]. Fails if the query returns
    /// no rows, was relaxed, or is not in `SQLite`'s dialect.
    #[arg(long, requires = "spec", conflicts_with_all = ["sql_only", "explain"])]
    keep: bool,
    /// Add the column that the model proposes to the spec. Fails if it proposes none.
    #[arg(long, requires = "spec", conflicts_with = "sql_only")]
    write: bool,
}

/// Flags of the commands that answer questions in plain words.
#[derive(Debug, clap::Args)]
pub struct AskFlags {
    /// Spec whose tables, columns, questions and examples the model sees.
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<PathBuf>,
    /// Run without approval if all queries of the question cost at most this many USD in total. A
    /// query on a database server always needs approval [default: 0].
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    yes_under: Option<f64>,
    /// Run the query without approval, whatever it costs.
    #[arg(long)]
    yes: bool,
    /// Ask the model for SQL again, even if SQL or a refusal is stored for the question.
    #[arg(long)]
    rewrite: bool,
    /// Output format of the rows [default: table].
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<RowsFormat>,
    /// Maximum number of tokens in a request for SQL [default: 4000].
    #[arg(long, value_name = "N", allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u64>)]
    context_tokens: Option<u64>,
    /// Time limit in seconds for the database's work in one pass [default: 60].
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = input::parse_seconds)]
    timeout: Option<Duration>,
    /// Maximum total cost in USD of the question's queries.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    pub flags: ModelFlags,
}

impl AskFlags {
    /// Returns the output format of the rows.
    ///
    /// # Errors
    /// Fails if `--json` is combined with another `--format`.
    pub fn choose_rows_format(&self, output_options: OutputOptions) -> Result<RowsFormat, Failure> {
        if output_options.json && self.format.is_some_and(|format| format != RowsFormat::Json) {
            return Err(Failure::wrong_input("--json and another --format", "remove one of them"));
        }
        Ok(self.format.unwrap_or(RowsFormat::Table))
    }

    /// Opens the spec or database. Returns the session and the path of the database to query.
    pub fn open(
        &self,
        command: &str,
        output_options: OutputOptions,
    ) -> Result<(Session, PathBuf), Failure> {
        let Self { spec, flags, budget, .. } = self;
        let (mut session, target) =
            open_for_query(spec.as_deref(), flags, *budget, command, output_options)?;
        if let Some(tokens) = self.context_tokens {
            session.spec.ask.context_tokens = tokens.max(ask::MIN_CONTEXT_TOKENS);
        }
        Ok((session, target))
    }
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let format = options.ask.choose_rows_format(output_options)?;
    let text = read_question(&options.question)?;
    let (session, target) = options.ask.open("ask", output_options)?;
    let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let plan_use = match options {
        Options { sql_only: true, .. } => PlanUse::PrintSql,
        Options { explain: true, .. } => PlanUse::Explain,
        Options { approve, say, .. } => {
            PlanUse::Run { approved: approve.as_deref(), with_prose: *say }
        }
    };
    let ask_run = AskRun::open(&options.ask, plan_use, &session, &target, output_options)?;
    let outcome = ask_run.ask(&text, &[], &interrupt);
    // A plan that waits for approval must stay valid, and a new column would change the schema.
    let waits = matches!(outcome, Err(_) | Ok(AskOutcome::Stopped(APPROVAL | INTERRUPTED)));
    let written = match &options.ask.spec {
        Some(spec) if options.write && !waits => {
            let proposed = ask_run.proposed.borrow();
            propose::write_columns(spec, &session.database, &proposed, output_options)
        }
        _ => Ok(()),
    };
    match outcome? {
        AskOutcome::Stopped(code) => written.map(|()| ExitCode::from(code)),
        AskOutcome::Answered(answered) => {
            let is_open = answered.print(format, output_options)?;
            if let (true, Some(spec)) = (options.keep, &options.ask.spec) {
                let turn = answered.to_turn();
                if turn.rows == 0 || !turn.can_be_example {
                    return Err(unusable_example_failure(turn.rows));
                }
                add_example_to_spec(spec, &session.database, turn, output_options)?;
            }
            written.map(|()| ExitCode::from(if is_open { answered.exit_code() } else { 0 }))
        }
    }
}

/// Returns the failure for a query that cannot be an example of its question.
pub fn unusable_example_failure(rows: u64) -> Failure {
    let reason =
        if rows == 0 { "it returned no rows" } else { "it was relaxed, or is in the dialect suql" };
    Failure::wrong_input(
        format!("the query was not kept, because {reason}"),
        "add an [[example]] with a query in SQLite's dialect to the spec",
    )
}

/// Adds a question and its query to a spec as an example, and prints a note about it.
pub fn add_example_to_spec(
    spec: &Path,
    database: &Database,
    turn: Turn,
    output_options: OutputOptions,
) -> Result<(), Failure> {
    let example = ExampleTable { question: turn.question, sql: turn.sql };
    spec_file::edit_spec(spec, database, |text| edit::add_example(text, &example))?;
    if !output_options.quiet {
        anstream::eprintln!("kept as an [[example]] in {}", spec.display());
    }
    Ok(())
}

fn read_question(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    std::io::read_to_string(std::io::stdin()).map_err(|e| {
        let reason = crate::format::describe_io_error(&e);
        Failure::wrong_input(format!("cannot read stdin: {reason}"), "pass UTF-8 text")
    })
}
