//! Materialization of large tables: `cargo bench --bench materialize`.
//!
//! * `fresh`: every cell is requested from a model in this process that answers immediately. This
//!   covers walking keys, forming batches, writing prompts, parsing answers, storing facts (with
//!   their fsyncs) and publishing. The counter is cells.
//! * `again`: the same run again, with everything known.
//! * `again_server`: the same with facts on the server that `HQDL_BENCH_URL` names.
//!
//! 100,000 keys × 8 columns; with `HQDL_BENCH_KEYS=1000000`, a million keys. The peak memory of
//! this process is printed after each.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stderr, clippy::format_push_string)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use divan::Bencher;
use divan::counter::ItemsCount;
use hqdl::facts::Facts;
use hqdl::generate::Listener;
use hqdl::materialize::{Report, RunMode, Selection};
use hqdl::model::{Model, Reply, ReplyFuture, Tokens};
use hqdl::prompt::{Prompt, Question};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;

fn main() {
    divan::main();
}

static KEYS: LazyLock<u64> = LazyLock::new(|| {
    std::env::var("HQDL_BENCH_KEYS").ok().and_then(|k| k.parse().ok()).unwrap_or(100_000)
});

const COLUMNS: [&str; 8] =
    ["colour", "size", "weight", "country", "founded", "public", "maker", "grade"];

/// Answers every cell immediately.
struct Instant;

impl Model for Instant {
    fn name(&self) -> &'static str {
        "instant"
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        let question = Question::parse(&prompt.system, &prompt.user).expect("a prompt of ours");
        let content = question.format_answer(|row, column| match column.values.as_ref() {
            Some(values) => values[row.number % values.len()].as_str().into(),
            None => (row.number * 7).into(),
        });
        let tokens = Some(Tokens { input: 100, output: 100, ..Tokens::default() });
        Box::pin(std::future::ready(Ok(Reply { content, tokens, ..Reply::default() })))
    }
}

fn place(dir: &Path) -> PathBuf {
    let db = rusqlite::Connection::open(dir.join("bench.sqlite")).expect("a database");
    db.execute_batch("CREATE TABLE thing (id INTEGER PRIMARY KEY, name TEXT, town TEXT)")
        .expect("a table");
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
         INSERT INTO thing SELECT i, 'Thing number ' || i, 'Town ' || (i % 997) FROM n",
        [*KEYS],
    )
    .expect("rows");
    let mut spec = String::from(
        "[database]\npath = \"bench.sqlite\"\noutput = \"expanded.sqlite\"\n[model]\nname = \"instant\"\n\
         [limits]\nconcurrency = 16\n[[expansion]]\nname = \"llm\"\nsource = \"thing\"\nkey = [\"name\", \"town\"]\n\
         rows_per_request = 20\nformat = \"csv\"\n",
    );
    for (n, column) in COLUMNS.iter().enumerate() {
        let values = ["values = [\"red\", \"green\", \"blue\"]", "type = \"integer\""][n % 2];
        spec.push_str(&format!(
            "[[expansion.column]]\nname = \"{column}\"\nabout = \"the {column}\"\n{values}\n"
        ));
    }
    let path = dir.join("bench.toml");
    std::fs::write(&path, spec).expect("a spec");
    path
}

fn run(spec: &Path, facts: &Facts) -> Report {
    let draft = UncheckedSpec::read(spec).expect("a spec");
    let cache = Cache::Open(facts.clone());
    let session = Session::open(draft, &SpecOverrides::default(), cache).expect("a sound spec");
    let selection = Selection::default();
    let work =
        session.new_materializer(Arc::new(Instant), &selection, RunMode::Live).expect("work");
    let listener: Listener = Arc::new(|_| {});
    let (_keep, interrupt) = tokio::sync::watch::channel(false);
    work.materialize("bench", &listener, &interrupt).expect("a report")
}

/// The same with facts on a server, in an empty database.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn again_server(bencher: Bencher) {
    let Ok(url) = std::env::var("HQDL_BENCH_URL") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let spec = place(dir.path());
    let say = Arc::new(|line: &str| eprintln!("{line}"));
    let facts = Facts::connect_to_server(&url, dir.path(), "bench", say).expect("a server");
    run(&spec, &facts);
    bencher.counter(ItemsCount::new(*KEYS * COLUMNS.len() as u64)).bench_local(|| {
        let report = run(&spec, &facts);
        assert_eq!(report.usage.requests, 0);
        report
    });
    eprintln!("peak memory {} MB", peak());
}

/// Returns the peak resident memory of this process in MB; 0 where /proc does not exist.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

#[divan::bench(sample_count = 3, sample_size = 1)]
fn fresh(bencher: Bencher) {
    bencher
        .counter(ItemsCount::new(*KEYS * COLUMNS.len() as u64))
        .with_inputs(|| {
            let dir = tempfile::tempdir().expect("a directory");
            let spec = place(dir.path());
            let facts = Facts::open(&dir.path().join("facts"), "bench").expect("facts");
            (dir, spec, facts)
        })
        .bench_values(|(dir, spec, facts)| {
            let report = run(&spec, &facts);
            assert_eq!(report.cells.total(), *KEYS * COLUMNS.len() as u64);
            (dir, facts)
        });
    eprintln!("peak memory {} MB", peak());
}

/// If `HQDL_BENCH_DIR` is set, the facts stay there, so that a separate process can be measured on
/// them.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn again(bencher: Bencher) {
    let dir = tempfile::tempdir().expect("a directory");
    let place_of =
        std::env::var_os("HQDL_BENCH_DIR").map_or_else(|| dir.path().to_owned(), PathBuf::from);
    let spec = place_of.join("bench.toml");
    let spec = if spec.exists() { spec } else { place(&place_of) };
    let facts = Facts::open(&place_of.join("facts"), "bench").expect("facts");
    run(&spec, &facts);
    bencher.counter(ItemsCount::new(*KEYS * COLUMNS.len() as u64)).bench_local(|| {
        let report = run(&spec, &facts);
        assert_eq!(report.usage.requests, 0);
        report
    });
    eprintln!("peak memory {} MB", peak());
}
