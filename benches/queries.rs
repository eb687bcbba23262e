//! Queries: `cargo bench --bench queries`. Ratios are measured within one run.
//!
//! * `routed`: a query whose call is answered by a published column, compared with the same query
//!   in plain SQL. Prints both times and their ratio.
//! * `rewrite`: scanning, parsing, resolving and rewriting queries like those of SWAN. One
//!   iteration covers all of them; prints the median time of one.
//! * `mapped`: a question about every value of a column, none of them known, with a model in this
//!   process that answers immediately. Prints the time without that spent in the model.
//! * `limited`: `LIMIT 10` over a million rows.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use divan::Bencher;
use hqdl::blendsql::rewrite::{CallSite, Rewriter, Statistics};
use hqdl::blendsql::scope::Schema;
use hqdl::blendsql::{parse::parse_query, usage};
use hqdl::database::Database;
use hqdl::facts::Facts;
use hqdl::generate::Listener;
use hqdl::materialize::{Materializer, Selection};
use hqdl::model::{Model, Reply, ReplyFuture, Tokens};
use hqdl::prompt::{Prompt, Question};
use hqdl::query::{self, Meta, QueryResult, Request};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::{Spec, UncheckedSpec};

fn main() {
    divan::main();
}

/// Answers every cell immediately, and measures the time that takes.
#[derive(Default)]
struct Quick {
    nanos: AtomicU64,
}

impl Model for Quick {
    fn name(&self) -> &'static str {
        "quick"
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        let began = Instant::now();
        let question = Question::parse(&prompt.system, &prompt.user).expect("a prompt of ours");
        let content = question.format_answer(|row, column| match column.values.as_ref() {
            Some(values) => values[row.number % values.len()].as_str().into(),
            None => (row.number % 2 == 0).into(),
        });
        let tokens = Some(Tokens { input: 100, output: 100, ..Tokens::default() });
        self.nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(Reply { content, tokens, ..Reply::default() })))
    }
}

/// Creates a database with `rows` heroes that have `names` different names.
fn place(dir: &Path, rows: u64, names: u64) -> PathBuf {
    let db = rusqlite::Connection::open(dir.join("bench.sqlite")).expect("a database");
    db.execute_batch(
        "CREATE TABLE superhero (id INTEGER PRIMARY KEY, superhero_name TEXT, full_name TEXT, height_cm INTEGER)",
    )
    .expect("a table");
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
         INSERT INTO superhero SELECT i, 'Hero ' || (i % ?2), 'Full Name ' || (i % 997), 140 + (i * 7919) % 100 FROM n",
        [rows, names],
    )
    .expect("rows");
    let spec = dir.join("bench.toml");
    std::fs::write(
        &spec,
        r#"
[database]
path = "bench.sqlite"
[model]
name = "quick"
[limits]
concurrency = 16
[[expansion]]
name = "llm"
source = "superhero"
key = ["superhero_name", "full_name"]
rows_per_request = 20
format = "csv"
[[expansion.column]]
name = "publisher_name"
about = "the publisher"
values = ["Marvel Comics", "DC Comics", "Dark Horse"]
questions = [{ ask = "Is the publisher {value}?", sql = "publisher_name = {value}" }]
"#,
    )
    .expect("a spec");
    spec
}

fn read(spec: &Path) -> Spec {
    let draft = UncheckedSpec::read(spec).expect("a spec");
    Session::open(draft, &SpecOverrides::default(), Cache::Temporary).expect("a sound spec").spec
}

fn quiet() -> Listener {
    Arc::new(|_| {})
}

/// Runs a query, with the spec or without its expansions.
fn ask(spec: &Spec, facts: &Facts, model: &Arc<Quick>, sql: &str) -> (QueryResult, Meta) {
    let (_keep, interrupt) = tokio::sync::watch::channel(false);
    let request = Request {
        spec,
        database: spec.target(),
        facts,
        model: Some(Arc::clone(model) as Arc<dyn Model>),
        sql,
        params: Vec::new(),
        truncate: false,
        dialect: hqdl::query::Dialect::Sqlite,
        classify: false,
        refresh: None,
        rows_per_request: Some(20),
        timeout: None,
        command: "bench",
        listener: quiet(),
        interrupt,
        counted_cost: hqdl::query::CountedCost::default(),
    };
    let mut rows = QueryResult::default();
    let meta = if sql.contains("{{") {
        query::run(&request, &mut rows).expect("rows")
    } else {
        request.to_plain().run(&mut rows).expect("rows")
    };
    (rows, meta)
}

/// Returns the shortest duration of some runs.
fn best(runs: usize, mut run: impl FnMut() -> Duration) -> Duration {
    (0..runs).map(|_| run()).min().unwrap_or_default()
}

const ROUTED: &str = "SELECT count(*) FROM superhero T1 WHERE \
     {{LLMMap('Is the publisher Marvel Comics?', T1.superhero_name)}} = TRUE AND height_cm > 200";
const PLAIN: &str = "SELECT count(*) FROM superhero T1 JOIN llm USING (superhero_name, full_name) \
     WHERE publisher_name = 'Marvel Comics' AND height_cm > 200";

#[divan::bench(args = [10_000, 100_000], sample_count = 5, sample_size = 1)]
fn routed(bencher: Bencher, rows: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = read(&place(dir.path(), rows, rows));
    let facts = Facts::open(&dir.path().join("facts"), "bench").expect("facts");
    let model = Arc::new(Quick::default());
    {
        let database = Database::open(&spec.database).expect("a database");
        let selection = Selection::default();
        let work = Materializer::new(
            &spec,
            &database,
            &facts,
            Arc::clone(&model) as Arc<dyn Model>,
            &selection,
        )
        .expect("work");
        let (_keep, interrupt) = tokio::sync::watch::channel(false);
        work.materialize("bench", &quiet(), &interrupt).expect("a report");
    }
    assert_eq!(
        ask(&spec, &facts, &model, ROUTED).0.rows,
        ask(&spec, &facts, &model, PLAIN).0.rows,
        "the same rows"
    );
    let time = |sql: &str| {
        let began = Instant::now();
        ask(&spec, &facts, &model, sql);
        began.elapsed()
    };
    let (mut plain, mut routed) = (Duration::MAX, Duration::MAX);
    for _ in 0..15 {
        plain = plain.min(time(PLAIN));
        routed = routed.min(time(ROUTED));
    }
    let over = routed.as_secs_f64() - 1.1 * plain.as_secs_f64();
    eprintln!(
        "\nrouted, {rows} rows: {routed:?}, plain {plain:?}: {:.2} x; 1.10 x {:+.2} ms",
        routed.as_secs_f64() / plain.as_secs_f64(),
        over * 1e3
    );
    bencher.bench_local(|| ask(&spec, &facts, &model, ROUTED));
}

/// Schema of the tables that the queries below read.
struct Heroes;

impl Schema for Heroes {
    fn column_names(&self, table: &str) -> Option<Vec<String>> {
        let columns = match table {
            "superhero" => "id superhero_name full_name height_cm weight_kg publisher_id",
            "publisher" => "id publisher_name",
            "hero_power" => "hero_id power_id",
            "superpower" => "id power_name",
            _ => return None,
        };
        Some(columns.split(' ').map(str::to_owned).collect())
    }
}

/// Queries like those of SWAN.
const QUERIES: [&str; 8] = [
    "SELECT count(*) FROM superhero T1 WHERE {{LLMMap('Does the hero have blue eyes?', 'T1::superhero_name')}} = TRUE",
    "SELECT T1.superhero_name FROM superhero T1 JOIN publisher T2 ON T1.publisher_id = T2.id WHERE T2.publisher_name = 'Marvel Comics' AND {{LLMMap('What is the eye colour?', 'T1::superhero_name', 'T1::full_name')}} = 'Blue' ORDER BY T1.height_cm DESC LIMIT 5",
    "WITH tall AS (SELECT * FROM superhero WHERE height_cm > 200) SELECT full_name, {{LLMMap('Which race?', tall.superhero_name)}} AS race FROM tall WHERE {{LLMMap('Is the hero evil?', tall.superhero_name)}} = TRUE AND NOT {{LLMMap('Can the hero fly?', tall.superhero_name)}}",
    "SELECT CAST(sum(CASE WHEN {{LLMMap('What is the gender?', T1.superhero_name)}} = 'Female' THEN 1 ELSE 0 END) AS REAL) * 100 / count(*) FROM superhero T1 JOIN publisher T2 ON T1.publisher_id = T2.id WHERE T2.publisher_name = 'George Lucas'",
    "SELECT p.publisher_name, count(*) FROM superhero s JOIN publisher p ON p.id = s.publisher_id WHERE {{LLMMap('Does it have wings?', s.superhero_name)}} OR s.weight_kg > (SELECT avg(weight_kg) * 1.79 FROM superhero) GROUP BY p.publisher_name HAVING count(*) > 2 ORDER BY 2 DESC",
    "SELECT superhero_name FROM superhero WHERE id IN (SELECT hero_id FROM hero_power hp JOIN superpower p ON p.id = hp.power_id WHERE {{LLMMap('Is this power about water?', p.power_name)}} = TRUE) AND {{LLMMap('Is the skin colour grey?', superhero.superhero_name)}} = TRUE",
    "SELECT a.superhero_name, b.superhero_name FROM superhero a, superhero b WHERE a.id < b.id AND a.height_cm = b.height_cm AND {{LLMMap('Which race?', a.superhero_name)}} = {{LLMMap('Which race?', b.superhero_name)}} LIMIT 10",
    "SELECT {{LLMQA('Who of these is the oldest?', (SELECT superhero_name, full_name FROM superhero WHERE {{LLMMap('Is it a villain?', superhero.superhero_name)}} = TRUE ORDER BY weight_kg DESC LIMIT 20))}} AS oldest",
];

fn rewritten(sql: &str) -> usize {
    let parsed = parse_query(sql).expect("a query");
    let usages = usage::analyze_calls(sql, &parsed, &Heroes);
    let site = CallSite::default();
    let sites = vec![site; parsed.calls.len()];
    let costs = Statistics::default();
    let rewritten = Rewriter::new(sql, &sites, &Heroes, &costs).rewrite(&parsed);
    rewritten.sql.len() + usages.len()
}

#[divan::bench]
fn rewrite(bencher: Bencher) {
    let mut each: Vec<Duration> = QUERIES
        .iter()
        .map(|sql| {
            best(20, || {
                let began = Instant::now();
                divan::black_box(rewritten(sql));
                began.elapsed()
            })
        })
        .collect();
    each.sort();
    eprintln!(
        "\nrewrite: median of a query {:?}, longest {:?}",
        each[each.len() / 2],
        each[each.len() - 1]
    );
    bencher.bench_local(|| QUERIES.iter().map(|sql| rewritten(sql)).sum::<usize>());
}

/// Measures a query over rows with this many different values.
#[divan::bench(args = [(1_000, 1_000), (10_000, 10_000), (100_000, 10_000), (1_000_000, 1_000)], sample_count = 3, sample_size = 1)]
fn mapped(bencher: Bencher, (rows, names): (u64, u64)) {
    const SQL: &str = "SELECT count(*) FROM superhero WHERE {{LLMMap('Can it fly?', superhero.superhero_name)}} = TRUE";
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = read(&place(dir.path(), rows, names));
    spec.expansions.clear();
    let run = |print: bool| {
        let facts = Facts::open_temporary().expect("facts");
        let model = Arc::new(Quick::default());
        let began = Instant::now();
        let (_, meta) = ask(&spec, &facts, &model, SQL);
        let all = began.elapsed();
        let inside = Duration::from_nanos(model.nanos.load(Ordering::Relaxed));
        assert_eq!(meta.values_asked, names);
        let passes: Vec<f64> = meta.passes.iter().map(|p| p.seconds * 1e3).collect();
        let began = Instant::now();
        ask(&spec, &facts, &model, SQL);
        let again = began.elapsed();
        if print {
            eprintln!(
                "  total {all:?}, in the model {inside:?}, passes {passes:.1?} ms, again {again:?}"
            );
        }
        all.saturating_sub(inside)
    };
    eprintln!();
    let overhead = best(5, || run(true));
    eprintln!("mapped, {rows} rows, {names} values: {overhead:?} beside the model");
    bencher.bench_local(|| run(false));
}

/// Measures a query whose values are all known.
#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 5, sample_size = 1)]
fn known(bencher: Bencher, names: u64) {
    const SQL: &str = "SELECT count(*) FROM superhero WHERE {{LLMMap('Can it fly?', superhero.superhero_name)}} = TRUE";
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = read(&place(dir.path(), names, names));
    spec.expansions.clear();
    let facts = Facts::open(&dir.path().join("facts"), "bench").expect("facts");
    ask(&spec, &facts, &Arc::new(Quick::default()), SQL);
    bencher.bench_local(|| ask(&spec, &facts, &Arc::new(Quick::default()), SQL));
}

#[divan::bench(sample_count = 3, sample_size = 1)]
fn limited(bencher: Bencher) {
    const SQL: &str = "SELECT id FROM superhero WHERE {{LLMMap('Can it fly?', superhero.superhero_name)}} = TRUE LIMIT 10";
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = read(&place(dir.path(), 1_000_000, 1_000_000));
    spec.expansions.clear();
    bencher.bench_local(|| {
        let facts = Facts::open_temporary().expect("facts");
        let (rows, meta) = ask(&spec, &facts, &Arc::new(Quick::default()), SQL);
        assert_eq!(rows.rows.len(), 10);
        let passes: Vec<f64> = meta.passes.iter().map(|p| p.seconds * 1e3).collect();
        eprintln!("\nlimited: {} asked, passes {passes:.1?} ms", meta.values_asked);
    });
}
