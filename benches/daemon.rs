//! The daemon, over HTTP: `cargo bench --bench daemon`.
//!
//! * `saved`: from a spec's saving to the first request to the model.
//! * `idle`: memory and processor time of a daemon that receives no requests.
//! * `queries`: latency of small routed queries, at 1,000 a second and as fast as possible. With
//!   `HQDL_BENCH_URL` (an empty database of a server), also those of a second daemon whose facts
//!   are on that server, at a rate that neither saturates.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hqdl::prompt::Question;
use serde_json::{Value as Json, json};

const ROWS: usize = 1000;
const CLIENTS: u64 = 8;

/// Arrival times of requests.
type Arrivals = Arc<Mutex<Vec<Instant>>>;

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrivals = Arrivals::default();
    let (_runtime, url) = endpoint(&arrivals);
    set_up(dir.path());
    let idle = Daemon::start(dir.path(), "cache");
    let (mb, ticks) = idle.at_rest();
    println!("idle      {mb:.1} MB, {ticks} hundredths of a second of processor in 10 s (no spec)");
    drop(idle);
    write_spec(dir.path(), &url, 0);
    let daemon = Daemon::start(dir.path(), "cache");
    daemon.rests();
    let (mb, ticks) = daemon.at_rest();
    println!(
        "idle      {mb:.1} MB, {ticks} hundredths of a second of processor in 10 s (after a run)"
    );
    saved(dir.path(), &url, &daemon, &arrivals);
    if let Ok(server) = std::env::var("HQDL_BENCH_URL") {
        // Use a separate directory, because what is published here depends on these facts.
        let other = tempfile::tempdir().expect("a directory");
        set_up(other.path());
        write_spec(other.path(), &url, 0);
        let far = Daemon::start(other.path(), &server);
        far.rests();
        for (what, daemon) in [("facts here", &daemon), ("facts on a server", &far)] {
            println!("{what}:");
            queries(&daemon.address, Some(50.0));
        }
        return;
    }
    queries(&daemon.address, Some(1000.0));
    queries(&daemon.address, None);
}

fn endpoint(arrivals: &Arrivals) -> (tokio::runtime::Runtime, String) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let arrivals = Arc::clone(arrivals);
    let answer = move |axum::Json(body): axum::Json<Json>| {
        arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        let text = |n: usize| body["messages"][n]["content"].as_str().unwrap_or_default();
        let question = Question::parse(text(0), text(1)).expect("a prompt of ours");
        let content = question.format_answer(|row, _| row.number.into());
        std::future::ready(axum::Json(json!({
            "choices": [{ "message": { "content": content }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 100, "completion_tokens": 10 },
        })))
    };
    let app = axum::Router::new().route("/v1/chat/completions", axum::routing::post(answer));
    runtime.spawn(async move { axum::serve(listener, app).await });
    (runtime, url)
}

fn set_up(dir: &Path) {
    let db = rusqlite::Connection::open(dir.join("bench.sqlite")).expect("a database");
    db.execute_batch("BEGIN; CREATE TABLE hero (id INTEGER PRIMARY KEY, name TEXT)")
        .expect("a table");
    for n in 0..ROWS {
        db.execute("INSERT INTO hero (name) VALUES (?1)", [format!("hero {n}")]).expect("a row");
    }
    db.execute_batch("COMMIT").expect("rows");
    std::fs::create_dir(dir.join("specs")).expect("a directory");
}

fn write_spec(dir: &Path, url: &str, version: usize) {
    let spec = format!(
        r#"
        [database]
        path = "../bench.sqlite"
        [model]
        name = "bench"
        base_url = "{url}"
        api_key_env = "HQDL_BENCH_KEY"
        [[expansion]]
        name = "llm"
        source = "hero"
        key = ["name"]
        rows_per_request = 50
        [[expansion.column]]
        name = "age"
        type = "integer"
        about = "how old the hero is, version {version}"
        questions = ["How old is the hero?"]
        "#
    );
    // Replace the file atomically, as an editor does.
    let part = dir.join("specs/.bench.part");
    std::fs::write(&part, spec).expect("a spec");
    std::fs::rename(part, dir.join("specs/bench.toml")).expect("a spec");
}

/// A daemon that is killed when this is dropped.
struct Daemon {
    child: Child,
    address: String,
}

impl Daemon {
    fn start(dir: &Path, cache: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hqdl"))
            .args(["daemon", "--listen", "127.0.0.1:0", "--cache", cache])
            .args(["--client-requests=0", "--client-streams=0", "--client-megabytes=0"])
            .current_dir(dir)
            .env("HQDL_BENCH_KEY", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a daemon");
        let mut said = BufReader::new(child.stderr.take().expect("its words"));
        let mut line = String::new();
        said.read_line(&mut line).expect("an address");
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.trim().rsplit('/').next().unwrap_or_default().to_owned();
        Self { child, address }
    }

    /// Waits until everything is complete.
    fn rests(&self) {
        loop {
            let mut client = Client::new(&self.address);
            let status: Json =
                serde_json::from_str(&client.ask("GET", "/v1/status", "")).unwrap_or_default();
            let spec = &status["specs"][0];
            if spec["state"] == "complete" && spec["run"].is_null() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the memory in megabytes, and the processor time used in ten seconds.
    fn at_rest(&self) -> (f64, u64) {
        std::thread::sleep(Duration::from_secs(1));
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
        };
        let ticks = || {
            let stat = read("stat");
            let fields: Vec<&str> =
                stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
            let number = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
            number(12) + number(13)
        };
        let before = ticks();
        std::thread::sleep(Duration::from_secs(10));
        let used = ticks() - before;
        let status = read("status");
        let kb = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kb = kb.and_then(|l| l.trim().split(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
        (kb / 1024.0, used)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures the time from saving a spec to the first request.
fn saved(dir: &Path, url: &str, daemon: &Daemon, arrivals: &Arrivals) {
    let count = || arrivals.lock().unwrap_or_else(PoisonError::into_inner).len();
    let mut took = Vec::new();
    for version in 1..=20 {
        let before = count();
        write_spec(dir, url, version);
        let began = Instant::now();
        while count() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        let first = arrivals.lock().unwrap_or_else(PoisonError::into_inner)[before];
        took.push(first.duration_since(began));
        std::thread::sleep(Duration::from_millis(400));
        daemon.rests();
    }
    took.sort();
    println!(
        "saved     {:.0} ms median, {:.0} ms at most, of which 100 ms wait for quiet",
        millis(took[took.len() / 2]),
        millis(took[took.len() - 1])
    );
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// A keep-alive connection.
struct Client {
    address: String,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn new(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self { address: address.to_owned(), reader: BufReader::new(stream) }
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> String {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.reader.get_mut().write_all(request.as_bytes()).expect("a request");
        let (mut length, mut chunked, mut line) = (0, false, String::new());
        loop {
            line.clear();
            self.reader.read_line(&mut line).expect("a head");
            let lower = line.trim().to_ascii_lowercase();
            if lower.is_empty() {
                break;
            }
            if let Some(n) = lower.strip_prefix("content-length: ") {
                length = n.parse().unwrap_or(0);
            }
            chunked |= lower == "transfer-encoding: chunked";
        }
        let mut body = Vec::new();
        loop {
            if chunked {
                line.clear();
                self.reader.read_line(&mut line).expect("a chunk");
                length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
            }
            let at = body.len();
            body.resize(at + length, 0);
            self.reader.read_exact(&mut body[at..]).expect("a body");
            if chunked {
                self.reader.read_exact(&mut [0; 2]).expect("its end");
            }
            if !chunked || length == 0 {
                return String::from_utf8_lossy(&body).into_owned();
            }
        }
    }
}

/// Measures small routed queries of several clients, at a rate or as fast as possible.
fn queries(address: &str, rate: Option<f64>) {
    const SECONDS: f64 = 10.0;
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let took: Vec<Duration> = std::thread::scope(|scope| {
        let client = |_| {
            scope.spawn(|| {
                let mut client = Client::new(address);
                let mut took = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    // Measure latency from the time at which the query should have been sent.
                    let due = rate.map(|r| began + Duration::from_secs_f64(n as f64 / r));
                    if let Some(wait) = due.and_then(|d| d.checked_duration_since(Instant::now())) {
                        std::thread::sleep(wait);
                    }
                    let from = due.unwrap_or_else(Instant::now);
                    if began.elapsed().as_secs_f64() > SECONDS {
                        return took;
                    }
                    let sql = "SELECT name FROM hero WHERE id = :id AND {{LLMMap('How old is the hero?', hero.name)}} > 0";
                    let id = n % ROWS as u64 + 1;
                    let body = json!({ "sql": sql, "params": { "id": id } }).to_string();
                    let answer = client.ask("POST", "/v1/query", &body);
                    assert!(answer.contains("hero ") && answer.contains("\"meta\""), "{answer}");
                    took.push(from.elapsed());
                }
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().flat_map(|c| c.join().expect("a client")).collect()
    });
    let mut took = took;
    took.sort();
    let at = |part: f64| millis(took[((took.len() - 1) as f64 * part) as usize]);
    println!(
        "queries   {:.0} a second ({}), p50 {:.1} ms, p99 {:.1} ms",
        took.len() as f64 / SECONDS,
        rate.map_or("as many as go".to_owned(), |r| format!("{r:.0} wanted")),
        at(0.5),
        at(0.99)
    );
}
