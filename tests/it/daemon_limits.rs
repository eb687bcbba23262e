//! What one client may take of the daemon: time, places, memory.

use std::time::{Duration, Instant};

use serde_json::json;

use hqdl_testkit::daemon::{Daemon, until};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, heroes, honest};

/// SQL that does not end.
const ENDLESS: &str =
    "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c) > 0";

fn waiting(flags: &[&str]) -> (Endpoint, Project, Daemon) {
    let endpoint = honest();
    let project = heroes(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[&["--no-spend"], flags].concat());
    daemon.rests("waiting");
    (endpoint, project, daemon)
}

#[test]
fn a_plan_that_does_not_end_is_broken_off() {
    let (endpoint, _project, daemon) = waiting(&[]);
    let asked = json!({ "where": ENDLESS, "timeout": 0.3 });
    let said = daemon.post("/v1/plan", &asked).is(400);
    assert!(said.error().contains("took longer than 0.3 s"), "{said:?}");
    // Statements of its own do not run.
    daemon.post("/v1/plan", &json!({ "where": "1); ATTACH 'x.db' AS x; --" })).is(400);
    daemon.post("/v1/plan", &json!({ "where": "height > 180" })).is(200);
    assert_eq!(endpoint.count(), 0);
}

#[test]
fn clients_that_take_all_places_leave_the_pages_to_others_and_their_places_when_they_go() {
    let (_endpoint, _project, daemon) = waiting(&[]);
    let body = json!({ "where": ENDLESS, "timeout": 600 }).to_string();
    let plans: Vec<std::net::TcpStream> = (0..20)
        .map(|_| {
            use std::io::Write;
            let mut stream = std::net::TcpStream::connect(&daemon.address).unwrap();
            write!(
                stream,
                "POST /v1/plan HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                daemon.address,
                body.len()
            )
            .unwrap();
            stream
        })
        .collect();
    until("all places taken", || {
        daemon.get("/metrics").body.contains("\nhqdl_queries_waiting 4\n")
    });
    let began = Instant::now();
    daemon.get("/").is(200);
    daemon.post("/v1/facts", &json!({ "keys": [["Zed", "Zed Zedsson"]] })).is(200);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    drop(plans);
    until("nobody served", || daemon.get("/metrics").body.contains("\nhqdl_clients 0\n"));
    assert_eq!(daemon.query("SELECT 1"), [json!([1])]);
}

#[test]
fn a_run_whose_where_does_not_end_can_be_ended_and_ends_by_itself() {
    let (endpoint, _project, daemon) = waiting(&[]);
    let asked = json!({ "where": ENDLESS, "timeout": 600 });
    let id = daemon.post("/v1/runs", &asked).is(202).json()["run"].as_u64().unwrap();
    daemon.until("running", |s| s["run"] == id);
    daemon.delete(&format!("/v1/runs/{id}"), &json!({})).is(200);
    daemon.until("ended", |s| s["run"].is_null());
    let run = daemon.get(&format!("/v1/runs/{id}")).is(200).json();
    assert_eq!(run["state"], "interrupted", "{run}");
    let asked = json!({ "where": ENDLESS, "timeout": 0.3, "wait": true });
    let run = daemon.post("/v1/runs", &asked).is(200).json();
    assert_eq!(run["state"], "failed", "{run}");
    assert!(run["error"]["message"].as_str().unwrap().contains("took longer"), "{run}");
    assert_eq!(endpoint.count(), 0);
    // What a run asked is published, whatever ended it.
    let asked = json!({ "where": "height > 180", "timeout": 5, "wait": true });
    let run = daemon.post("/v1/runs", &asked).is(200).json();
    assert!(run["requests"].as_u64().unwrap() > 0, "{run}");
}

/// Bytes of memory that the daemon has.
fn memory(daemon: &Daemon) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn one_query_does_not_take_all_memory() {
    let (_endpoint, _project, daemon) = waiting(&["--max-bytes", "2000000"]);
    let said =
        daemon.post("/v1/query", &json!({ "sql": "SELECT hex(zeroblob(200000000))" })).is(400);
    assert!(said.error().contains("longer than 16777216 bytes"), "{said:?}");
    let form = "spec=x&do=run&sql=SELECT+hex(zeroblob(200000000))";
    daemon.form("/query", form).is(400);
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 400)
                SELECT i, hex(zeroblob(10000)) FROM n";
    let lines = daemon.post("/v1/query", &json!({ "sql": many })).is(200).lines();
    let last = lines.last().unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert!(last.contains("more than 2000000 bytes"), "{last}");
    let form = format!("spec=x&do=run&sql={}", many.replace('+', "%2B").replace(['\n', ' '], "+"));
    let page = daemon.form("/query", &form).is(200).body;
    assert!(page.contains("400 rows, the first 104 shown"), "{}", page.len());
    assert!(memory(&daemon) < 300 << 20, "{}", memory(&daemon));
}

#[test]
fn readers_that_read_nothing_lose_their_places() {
    use std::io::Write;
    let (_endpoint, _project, daemon) = waiting(&[]);
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9000)
               SELECT i, name, hex(zeroblob(5000)) FROM n, hero";
    let body = json!({ "sql": sql }).to_string();
    let readers: Vec<std::net::TcpStream> = (0..16)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(&daemon.address).unwrap();
            write!(
                stream,
                "POST /v1/query HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                daemon.address,
                body.len()
            )
            .unwrap();
            stream
        })
        .collect();
    until("all are served", || daemon.get("/metrics").body.contains("\nhqdl_clients 16\n"));
    let began = Instant::now();
    assert_eq!(daemon.query("SELECT 1"), [json!([1])]);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    drop(readers);
}

#[test]
fn a_reader_that_is_slow_frees_the_database() {
    use std::io::{Read, Write};
    let (_endpoint, project, daemon) = waiting(&["--read-within", "1"]);
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9000)
               SELECT i, name, hex(zeroblob(5000)) FROM n, hero";
    let body = json!({ "sql": sql, "timeout": 1 }).to_string();
    let mut stream = std::net::TcpStream::connect(&daemon.address).unwrap();
    stream.set_read_timeout(Some(hqdl_testkit::daemon::DEADLINE)).unwrap();
    write!(
        stream,
        "POST /v1/query HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        daemon.address,
        body.len()
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(2300));
    // Nothing reads the database any more.
    let connection = project.connect();
    connection.busy_timeout(Duration::from_secs(1)).unwrap();
    connection.execute("UPDATE hero SET height = height", []).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let message = last["error"]["message"].as_str().unwrap();
    assert!(message.contains("did not read the rows within 2 s"), "{last}");
}
