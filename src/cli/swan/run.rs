//! `hqdl swan run`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::super::failure::{Failure, INCOMPLETE};
use super::super::progress::Progress;
use super::super::{ModelFlags, Talk, input, interrupt, session};
use crate::database::keys::{KeyRow, Keys};
use crate::database::{Database, now};
use crate::failure::stopped;
use crate::format::{count_noun, thousands};
use crate::model;
use crate::model::replay::Recordings;
use crate::spec::{Draft, Spec};
use crate::swan::oracle::{self, TrueValues};
use crate::swan::prepare::hidden_of;
use crate::swan::record::{Header, RecordLine, Writer};
use crate::swan::run::{BenchmarkRun, Ended, Stop};
use crate::swan::score::Gold;
use crate::swan::{Benchmark, Mode, benchmark, questions, shots};
use crate::value::Value;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// SWAN's CSV file of questions, with or without a header.
    #[arg(long, value_name = "CSV")]
    questions: PathBuf,
    /// Form of the queries to run.
    #[arg(long, value_enum, default_value = "hqdl")]
    mode: ModeFlag,
    /// Number of examples to show the model: the first N that `prepare` wrote, which are those of
    /// SWAN's own prompts where the database has them.
    #[arg(long, value_name = "N", default_value = "0")]
    shots: usize,
    /// File with the examples [default: beside the database].
    #[arg(long, value_name = "FILE")]
    shots_file: Option<PathBuf>,
    /// Directory of the run and, without --cache, of its facts. Running again in the same directory
    /// repeats the questions over the kept facts [default: swan-runs/DATABASE-MODE-SHOTS-MODEL].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Spec file [default: the spec for SWAN's database of this name].
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Answer from the true values instead of a model, to see what the queries return if every
    /// answer is right. Names the database with the true values, or the directory that `prepare`
    /// wrote.
    #[arg(long, value_name = "GOLD", conflicts_with_all = ["recordings", "provider", "model", "base_url"])]
    true_values: Option<PathBuf>,
    /// Do not materialize first; ask for cells when a query needs them.
    #[arg(long)]
    on_demand: bool,
    /// Time limit for the database's work in one pass of a query.
    #[arg(long, value_name = "SECONDS", value_parser = input::seconds, default_value = "300")]
    timeout: Duration,
    /// Most USD that the whole run may spend.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = crate::cli::budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeFlag {
    Hqdl,
    Blendsql,
}

#[expect(clippy::too_many_lines, reason = "a run from its flags to its end")]
pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let mode = match options.mode {
        ModeFlag::Hqdl => Mode::Hqdl,
        ModeFlag::Blendsql => Mode::Blendsql,
    };
    if options.on_demand && mode == Mode::Hqdl {
        return Err(Failure::input(
            "--on-demand and --mode hqdl: its SQL reads materialized tables",
            "remove --on-demand, or pass --mode blendsql",
        ));
    }
    let mut draft = draft(options)?;
    let source = draft.database();
    let name = benchmark::name_of(&source);
    let questions = questions::read(&options.questions, &name)?;
    if questions.iter().all(|q| q.query(mode).is_none()) {
        return Err(Failure::input(
            format!("{} has no {} queries", options.questions.display(), mode.name()),
            "SWAN publishes the queries of HQDL and BlendSQL in two files: pass the other file, or the other --mode",
        ));
    }
    let file = options.shots_file.clone().unwrap_or_else(|| shots::path_of(&source));
    shots::apply(&mut draft, &file, options.shots)?;
    let mut flags = options.flags.clone();
    let out = options.out.clone().unwrap_or_else(|| default_out(&name, mode, options, &draft));
    flags.output.get_or_insert_with(|| out.join("expanded.sqlite"));
    // The cache key of a fact does not contain the number of examples.
    if session::server(&flags.cache).is_some() {
        return Err(Failure::input(
            "the benchmark stores its facts in one directory per number of examples",
            "name a directory with --cache",
        ));
    }
    let facts_of = flags.cache.cache.unwrap_or_else(|| out.join("cache"));
    flags.cache.cache = Some(facts_of.join(format!("shots-{}", options.shots)));
    let command = format!("swan run --out {}", out.display());
    let session = session::of(draft, &flags, options.budget, &command)?;
    session::warn(&session.warnings, talk);
    let (spec, database) = (&session.spec, &session.database);
    let unmasked = match Benchmark::named(&name) {
        Some(benchmark) => hidden_of(database, benchmark)?.0,
        None => Vec::new(),
    };
    if !unmasked.is_empty() && !talk.quiet {
        anstream::eprintln!(
            "note: {} contains data that SWAN hides ({}); create a copy without it with `hqdl swan prepare`",
            spec.database.display(),
            unmasked.join(", ")
        );
    }
    if options.true_values.is_none() && !spec.model.recordings.is_empty() {
        recordings_are_of(spec, database, &name)?;
    }
    let model = match (&options.true_values, Benchmark::named(&name)) {
        (None, _) => model::connect(spec)?,
        (Some(gold), Some(benchmark)) => {
            let gold = Gold::find(gold, &name, options.timeout, interrupt::watch(None))?;
            Arc::new(TrueValues::read(benchmark, gold.database())?)
        }
        (Some(_), None) => {
            let hint = "remove --true-values";
            return Err(Failure::input(format!("SWAN has no database `{name}`"), hint));
        }
    };
    let stem = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let header = Header {
        database: name,
        mode,
        shots: options.shots,
        model: model.name().to_owned(),
        recordings: spec.model.recordings.iter().map(stem).collect(),
        oracle: options.true_values.is_some(),
        questions_file: absolute(&options.questions),
        source: absolute(&spec.database),
        expanded: (!options.on_demand).then(|| absolute(spec.target())),
        unmasked,
        priced: spec.is_priced(),
        began: now(),
    };
    let mut writer = Writer::begin(&out, &header)?;
    if talk.json {
        say(&RecordLine::Run(header.clone()));
    }
    session::tell(session.facts()?, talk);
    let (progress, listener) = Progress::new(talk);
    let mut count = 0;
    let mut told = |line: &RecordLine| {
        if matches!(line, RecordLine::Materialized { .. }) {
            progress.finish();
        }
        if talk.json {
            say(line);
        } else if let RecordLine::Answer(answer) = line {
            count += 1;
            let what = match (&answer.rows, &answer.error) {
                (Some(rows), _) => count_noun(rows.len() as u64, "row"),
                (None, why) => format!("failed: {}", why.as_deref().unwrap_or_default()),
            };
            if !talk.quiet {
                anstream::eprintln!(
                    "{count:>3}/{}  {}  {what}{}",
                    questions.len(),
                    answer.qid,
                    match answer.cost.requests {
                        0 => String::new(),
                        n => format!(", {}", count_noun(n, "request")),
                    }
                );
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
        query_listener: Progress::of_passes(talk),
        interrupt: interrupt::watch(Some(interrupt::FINISHING)),
    };
    let ended = crate::swan::run(run, &mut writer, &mut told)?;
    Ok(end(ended, &out, &header, talk))
}

/// Fails if the recordings answer about no row of the database: they are another's.
fn recordings_are_of(spec: &Spec, database: &Database, name: &str) -> Result<(), Failure> {
    let recordings = Recordings::open(&spec.model.name, &spec.model.recordings)?;
    let mut known = false;
    for expansion in &spec.expansions {
        let mut look = |key: &KeyRow| {
            let shown = expansion.shown(&key.row);
            let key: Vec<_> = shown.key.iter().map(Value::to_json).collect();
            known |= recordings.may_know(&key);
            Ok::<_, rusqlite::Error>(())
        };
        let keys = Keys::gather(database, expansion, None)?;
        keys.each(&mut look).map_err(|e| database.error(&e))?;
        if known {
            return Ok(());
        }
    }
    let files: Vec<String> =
        spec.model.recordings.iter().map(|path| path.display().to_string()).collect();
    Err(Failure::input(
        format!("{} answers about no row of {name}", files.join(", ")),
        "name recordings of this database with --recordings, or the database of these recordings",
    ))
}

/// Returns the spec, with its database replaced by `--db`.
fn draft(options: &Options) -> Result<Draft, Failure> {
    let mut draft = match (&options.spec, &options.flags.db) {
        (Some(spec), _) => Draft::read(spec)?,
        (None, Some(db)) => {
            let name = benchmark::name_of(db);
            let Some(benchmark) = Benchmark::named(&name) else {
                return Err(Failure::input(
                    format!("SWAN has no database `{name}`"),
                    format!(
                        "rename the file to one of {}, or pass --spec",
                        benchmark::ALL.map(|b| b.name).join(", ")
                    ),
                ));
            };
            let path = Path::new("specs/swan").join(format!("{name}.toml"));
            Draft::parse(&path, benchmark.spec.to_owned())?
        }
        (None, None) => {
            return Err(Failure::input(
                "no database to query",
                "pass a database that `hqdl swan prepare` wrote with --db, or a spec with --spec",
            ));
        }
    };
    if let Some(db) = &options.flags.db {
        draft.set_database(db.clone());
    }
    if options.true_values.is_some() {
        draft.ignore_prices();
    }
    Ok(draft)
}

fn default_out(name: &str, mode: Mode, options: &Options, draft: &Draft) -> PathBuf {
    let model = options.flags.model.as_deref().unwrap_or(&draft.file.model.name);
    let recording = options.flags.recordings.first().and_then(|r| r.file_name());
    let model = recording.map_or(model.into(), |r| r.to_string_lossy());
    let model = if options.true_values.is_some() { oracle::NAME.into() } else { model };
    let plain: String =
        model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let on_demand = if options.on_demand { "-on-demand" } else { "" };
    Path::new("swan-runs").join(format!(
        "{name}-{}{on_demand}-{}-{plain}",
        mode.name(),
        options.shots
    ))
}

/// Returns a path that is valid in every working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn say(line: &RecordLine) {
    anstream::println!("{}", serde_json::to_string(line).unwrap_or_default());
}

/// Prints the summary of a run and returns the exit code.
fn end(ended: Ended, out: &Path, header: &Header, talk: Talk) -> ExitCode {
    if !talk.json && !talk.quiet {
        let cost = &ended.cost;
        let price = if header.priced { format!(", ${:.4}", cost.cost_usd) } else { String::new() };
        anstream::eprintln!(
            "{} answered, {} failed; {}, {} tokens in, {} out{price}",
            count_noun(ended.answered, "question"),
            ended.failed,
            count_noun(cost.requests, "request"),
            thousands(cost.input_tokens),
            thousands(cost.output_tokens)
        );
        anstream::eprintln!(
            "compare them with the gold answers: `hqdl swan score {} --gold DIR`",
            out.display()
        );
    }
    let failure: Failure = match ended.stop {
        None if ended.failed > 0 || ended.missing > 0 => return ExitCode::from(INCOMPLETE),
        None => return ExitCode::SUCCESS,
        Some(Stop::Run(why)) => {
            let (message, hint, exit) = stopped(&why);
            Failure::Message { message, hint, exit }
        }
        Some(Stop::Materialize(error)) => error.into(),
        Some(Stop::Query(error)) => error.into(),
    };
    failure.print(talk.json)
}
