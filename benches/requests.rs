//! Requests over the wire: `cargo bench --bench requests`.
//!
//! * `latency`: 2,000 requests, 32 at once, to an endpoint on loopback that takes 200 ms for each.
//!   Prints the ratio to the ideal, 2,000 / 32 × 200 ms.
//! * `rate`: number of requests admitted in 20 s under a limit of 6,000 a minute, and the maximum
//!   in any second.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stderr)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use divan::Bencher;
use hqdl::facts::Facts;
use hqdl::generate::Listener;
use hqdl::limits::{Need, PerMinute};
use hqdl::materialize::{RunMode, Selection};
use hqdl::prompt::Question;
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use serde_json::{Value as Json, json};

const REQUESTS: u64 = 2000;
const AT_ONCE: u64 = 32;
const LATENCY: Duration = Duration::from_millis(200);

fn main() {
    divan::main();
}

async fn answer(axum::Json(body): axum::Json<Json>) -> axum::Json<Json> {
    tokio::time::sleep(LATENCY).await;
    let text = |n: usize| body["messages"][n]["content"].as_str().unwrap_or_default();
    let question = Question::parse(text(0), text(1)).expect("a prompt of ours");
    let content = question.format_answer(|row, _| row.number.into());
    axum::Json(json!({
        "choices": [{ "message": { "content": content }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 100, "completion_tokens": 10 },
    }))
}

/// Starts an endpoint on its own runtime; returns its base URL.
fn endpoint() -> (tokio::runtime::Runtime, String) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let app = axum::Router::new().route("/v1/chat/completions", axum::routing::post(answer));
    runtime.spawn(async move { axum::serve(listener, app).await });
    (runtime, url)
}

fn place(dir: &Path, url: &str) -> std::path::PathBuf {
    let db = rusqlite::Connection::open(dir.join("bench.sqlite")).expect("a database");
    db.execute_batch("CREATE TABLE thing (name TEXT)").expect("a table");
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
         INSERT INTO thing SELECT 'Thing ' || i FROM n",
        [REQUESTS],
    )
    .expect("rows");
    let spec = format!(
        "[database]\npath = \"bench.sqlite\"\n[model]\nname = \"bench\"\nbase_url = \"{url}\"\n\
         [limits]\nconcurrency = {AT_ONCE}\n[[expansion]]\nname = \"llm\"\nsource = \"thing\"\nkey = [\"name\"]\n\
         rows_per_request = 1\nformat = \"csv\"\n[[expansion.column]]\nname = \"size\"\ntype = \"integer\"\n"
    );
    let path = dir.join("bench.toml");
    std::fs::write(&path, spec).expect("a spec");
    path
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn latency(bencher: Bencher) {
    let (_runtime, url) = endpoint();
    let dir = tempfile::tempdir().expect("a directory");
    let path = place(dir.path(), &url);
    bencher.bench_local(|| {
        let draft = UncheckedSpec::read(&path).expect("a spec");
        let session = Session::open(draft, &SpecOverrides::default(), Cache::Temporary);
        let session = session.expect("a sound spec");
        let model = session.connect_model().expect("a model");
        let selection = Selection::default();
        let work = session.new_materializer(model, &selection, RunMode::Live).expect("work");
        let listener: Listener = Arc::new(|_| {});
        let (_keep, interrupt) = tokio::sync::watch::channel(false);
        let began = Instant::now();
        let report = work.materialize("bench", &listener, &interrupt).expect("a report");
        assert_eq!(report.usage.requests, REQUESTS);
        let ideal = LATENCY.mul_f64(REQUESTS as f64 / AT_ONCE as f64);
        eprintln!(
            "\nlatency: {:.3} x the ideal {ideal:?}",
            began.elapsed().as_secs_f64() / ideal.as_secs_f64()
        );
    });
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn rate(bencher: Bencher) {
    const SPAN: Duration = Duration::from_secs(20);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    bencher.bench_local(|| {
        let seen: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let facts = Facts::open_temporary().expect("facts");
        let limits = PerMinute { requests: Some(6000), tokens: None };
        let throttle = facts.open_throttle("an endpoint", "a model", limits).expect("a throttle");
        let throttle = Arc::new(throttle);
        let began = Instant::now();
        runtime.block_on(async {
            let mut tasks: tokio::task::JoinSet<()> = tokio::task::JoinSet::new();
            for _ in 0..64 {
                let (throttle, seen) = (Arc::clone(&throttle), Arc::clone(&seen));
                tasks.spawn(async move {
                    loop {
                        let permit = throttle.acquire_permit(Need::default()).await;
                        permit.mark_sent();
                        seen.lock().expect("a lock").push(began.elapsed());
                        tokio::time::sleep(LATENCY).await;
                        permit.reconcile_usage(0);
                    }
                });
            }
            tokio::time::sleep(SPAN).await;
            tasks.shutdown().await;
        });
        let all = seen.lock().expect("a lock").clone();
        let within = |from: &Duration| {
            all.iter().filter(|t| *t >= from && **t < *from + Duration::from_secs(1)).count()
        };
        let most = all.iter().map(within).max().unwrap_or(0);
        let share = 100.0 * all.len() as f64 / (6000.0 / 60.0 * SPAN.as_secs_f64());
        eprintln!(
            "\nrate: {} in 20 s of 2,000 allowed ({share:.1} %), at most {most} in any second",
            all.len()
        );
    });
}
