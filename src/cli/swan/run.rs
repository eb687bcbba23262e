//! Implements `hqdl swan run`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::super::failure::{Failure, INCOMPLETE};
use super::super::progress::Progress;
use super::super::{ModelFlags, OutputOptions, input, interrupt, session};
use crate::database::{Database, current_timestamp};
use crate::failure::describe_stop;
use crate::format::{format_count, format_thousands};
use crate::model::Model;
use crate::session::Session;
use crate::spec::Spec;
use crate::swan::oracle::{self, TrueValues};
use crate::swan::prepare::find_hidden_columns;
use crate::swan::questions::BenchmarkQuestion;
use crate::swan::record::{Header, QuestionOutcome, RecordLine, RecordWriter};
use crate::swan::run::{BenchmarkRun, BenchmarkStop, RunOutcome};
use crate::swan::score::GoldDatabase;
use crate::swan::{Benchmark, Mode, benchmark, questions, setup, shots};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// SWAN's CSV file of questions, with or without a header.
    #[arg(long, value_name = "CSV")]
    questions: PathBuf,
    /// Form of the queries to run.
    #[arg(long, value_enum, default_value = "hqdl")]
    mode: ModeFlag,
    /// Number of shots (example rows) in the prompt: the first N that `swan prepare` wrote. They
    /// are the shots of SWAN's own prompts if the database contains them.
    #[arg(long, value_name = "N", default_value = "0", allow_hyphen_values = true, value_parser = crate::cli::parse_whole_number::<usize>)]
    shots: usize,
    /// File with the shots [default: next to the database].
    #[arg(long, value_name = "FILE")]
    shots_file: Option<PathBuf>,
    /// Output directory of the run. Without --cache, it also contains the run's facts. A second run
    /// in the same directory repeats the questions with the stored facts [default:
    /// swan-runs/DATABASE-MODE-SHOTS-MODEL].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Spec file [default: the spec for SWAN's database of this name].
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Answer from the true values instead of a model, to see what the queries return if every
    /// answer is right. GOLD is the database with the true values, or the directory that `prepare`
    /// wrote.
    #[arg(long, value_name = "GOLD", conflicts_with_all = ["recordings", "provider", "model", "base_url"])]
    true_values: Option<PathBuf>,
    /// Do not materialize first; ask for cells when a query needs them.
    #[arg(long)]
    on_demand: bool,
    /// Time limit for the database's work in one pass of a query.
    #[arg(long, value_name = "SECONDS", value_parser = input::parse_seconds, default_value = "300")]
    timeout: Duration,
    /// Maximum cost of the whole run in USD.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = crate::cli::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeFlag {
    Hqdl,
    Blendsql,
}

impl Options {
    /// Returns the form of the queries to run.
    fn read_mode(&self) -> Result<Mode, Failure> {
        match self.mode {
            ModeFlag::Hqdl if self.on_demand => Err(Failure::wrong_input(
                "--on-demand and --mode hqdl: its SQL reads materialized tables",
                "remove --on-demand, or pass --mode blendsql",
            )),
            ModeFlag::Hqdl => Ok(Mode::Hqdl),
            ModeFlag::Blendsql => Ok(Mode::Blendsql),
        }
    }

    /// Reads the questions about a database, of which one or more have a query in this form.
    fn read_questions(&self, name: &str, mode: Mode) -> Result<Vec<BenchmarkQuestion>, Failure> {
        let questions = questions::read_questions(&self.questions, name)?;
        if questions.iter().any(|q| q.find_query(mode).is_some()) {
            return Ok(questions);
        }
        Err(Failure::wrong_input(
            format!("{} has no {} queries", self.questions.display(), mode.name()),
            "SWAN publishes the queries of HQDL and BlendSQL in two files: pass the other file, or the other --mode",
        ))
    }

    /// Returns the output directory, whose default name contains the model.
    fn choose_output_dir(&self, name: &str, mode: Mode, spec_model: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let model = self.flags.model.as_deref().unwrap_or(spec_model);
            let recording = self.flags.recordings.first().and_then(|r| r.file_name());
            let model = match self.true_values {
                Some(_) => oracle::NAME.into(),
                None => recording.map_or(model.into(), |r| r.to_string_lossy()),
            };
            setup::default_output_dir(name, mode, self.on_demand, self.shots, &model)
        })
    }

    /// Returns the model that answers, or a model that answers from the true values.
    fn connect_model(&self, session: &Session, name: &str) -> Result<Arc<dyn Model>, Failure> {
        let Some(gold) = &self.true_values else { return Ok(session.connect_model()?) };
        let Some(benchmark) = Benchmark::find_by_name(name) else {
            let hint = "remove --true-values";
            return Err(Failure::wrong_input(format!("SWAN has no database `{name}`"), hint));
        };
        let gold = GoldDatabase::find(gold, name, self.timeout, interrupt::watch_ctrl_c(None))?;
        Ok(Arc::new(TrueValues::read(benchmark, gold.database())?))
    }
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let mode = options.read_mode()?;
    let mut draft =
        setup::read_unchecked_spec(options.spec.as_deref(), options.flags.db.as_deref())?;
    if options.true_values.is_some() {
        draft.ignore_prices();
    }
    let source = draft.database();
    let name = benchmark::database_name(&source);
    let questions = options.read_questions(&name, mode)?;
    let file = options.shots_file.clone().unwrap_or_else(|| shots::shots_path(&source));
    shots::apply_shots(&mut draft, &file, options.shots)?;
    let mut flags = options.flags.clone();
    let out = options.choose_output_dir(&name, mode, &draft.file.model.name);
    flags.output.get_or_insert_with(|| out.join("expanded.sqlite"));
    // The cache key of a fact does not contain the number of shots, so runs with different numbers
    // of shots must not share a cache.
    if session::server_url(&flags.cache).is_some() {
        return Err(Failure::wrong_input(
            "the benchmark stores its facts in one directory per number of examples",
            "name a directory with --cache",
        ));
    }
    let cache_dir = flags.cache.cache.unwrap_or_else(|| out.join("cache"));
    flags.cache.cache = Some(cache_dir.join(format!("shots-{}", options.shots)));
    let command = format!("swan run --out {}", out.display());
    let session = session::open_unchecked_spec(draft, &flags, options.budget, &command)?;
    session::print_warnings(&session.warnings, output_options);
    let (spec, database) = (&session.spec, &session.database);
    let unmasked = report_unmasked_columns(spec, database, &name, output_options)?;
    if options.true_values.is_none() && !spec.model.recordings.is_empty() {
        setup::check_recordings(spec, database, &name)?;
    }
    let model = options.connect_model(&session, &name)?;
    let stem = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let header = Header {
        database: name,
        mode,
        shots: options.shots,
        model: model.name().to_owned(),
        recordings: spec.model.recordings.iter().map(stem).collect(),
        oracle: options.true_values.is_some(),
        questions_file: absolute_path(&options.questions),
        source: absolute_path(&spec.database),
        expanded: (!options.on_demand).then(|| absolute_path(spec.target())),
        unmasked,
        priced: spec.is_priced(),
        began: current_timestamp(),
    };
    let mut writer = RecordWriter::begin_run(&out, &header)?;
    if output_options.json {
        print_record_line(&RecordLine::Run(header.clone()));
    }
    session::print_cache_location(session.facts()?, output_options);
    let (progress, listener) = Progress::new(output_options);
    let mut count = 0;
    let mut on_line = |line: &RecordLine| {
        if matches!(line, RecordLine::Materialized { .. }) {
            progress.finish();
        }
        if output_options.json {
            print_record_line(line);
        } else if let RecordLine::Answer(answer) = line {
            count += 1;
            if !output_options.quiet {
                print_answer(answer, count, questions.len());
            }
        }
    };
    let run = BenchmarkRun {
        spec: spec.clone(),
        database,
        facts: session.facts()?,
        model,
        questions: &questions,
        mode,
        materialize: !options.on_demand,
        timeout: options.timeout,
        command: &command,
        listener,
        query_listener: Progress::new_query_listener(output_options),
        interrupt: interrupt::watch_ctrl_c(Some(interrupt::FINISHING)),
    };
    let ended = crate::swan::run(run, &mut writer, &mut on_line)?;
    Ok(finish_run(ended, &out, &header, output_options))
}

/// Returns the columns that SWAN hides and the database contains, and prints a note about them.
fn report_unmasked_columns(
    spec: &Spec,
    database: &Database,
    name: &str,
    output_options: OutputOptions,
) -> Result<Vec<String>, Failure> {
    let unmasked = match Benchmark::find_by_name(name) {
        Some(benchmark) => find_hidden_columns(database, benchmark)?.0,
        None => Vec::new(),
    };
    if !unmasked.is_empty() && !output_options.quiet {
        anstream::eprintln!(
            "note: {} contains data that SWAN hides ({}); create a copy without it with `hqdl swan prepare`",
            spec.database.display(),
            unmasked.join(", ")
        );
    }
    Ok(unmasked)
}

/// Prints the result of the question with this number.
fn print_answer(answer: &QuestionOutcome, number: usize, total: usize) {
    let what = match (&answer.rows, &answer.error) {
        (Some(rows), _) => format_count(rows.len() as u64, "row"),
        (None, why) => format!("failed: {}", why.as_deref().unwrap_or_default()),
    };
    let requests = match answer.cost.requests {
        0 => String::new(),
        n => format!(", {}", format_count(n, "request")),
    };
    anstream::eprintln!("{number:>3}/{total}  {}  {what}{requests}", answer.qid);
}

/// Returns a path that is valid in every working directory.
fn absolute_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn print_record_line(line: &RecordLine) {
    anstream::println!("{}", serde_json::to_string(line).unwrap_or_default());
}

/// Prints the summary of a run and returns the exit code.
fn finish_run(
    ended: RunOutcome,
    out: &Path,
    header: &Header,
    output_options: OutputOptions,
) -> ExitCode {
    if !output_options.json && !output_options.quiet {
        let cost = &ended.cost;
        let price = if header.priced { format!(", ${:.4}", cost.cost_usd) } else { String::new() };
        anstream::eprintln!(
            "{} answered, {} failed; {}, {} tokens in, {} out{price}",
            format_count(ended.answered, "question"),
            ended.failed,
            format_count(cost.requests, "request"),
            format_thousands(cost.input_tokens),
            format_thousands(cost.output_tokens)
        );
        anstream::eprintln!(
            "compare them with the gold answers: `hqdl swan score {} --gold DIR`",
            out.display()
        );
    }
    let failure: Failure = match ended.stop {
        None if ended.failed > 0 || ended.missing > 0 => return ExitCode::from(INCOMPLETE),
        None => return ExitCode::SUCCESS,
        Some(BenchmarkStop::Run(why)) => {
            let (message, hint, exit) = describe_stop(&why);
            Failure::Message { message, hint, exit }
        }
        Some(BenchmarkStop::Materialize(error)) => error.into(),
        Some(BenchmarkStop::Query(error)) => error.into(),
    };
    failure.print_error(output_options.json)
}
