//! Tests of limits on what one client can use of the daemon: time, connections, memory.

use std::time::{Duration, Instant};

use serde_json::json;

use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

/// SQL that never ends.
const ENDLESS: &str =
    "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c) > 0";

fn waiting(flags: &[&str]) -> (Endpoint, Project, Daemon) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[&["--no-spend"], flags].concat());
    daemon.wait_until_idle("waiting");
    (endpoint, project, daemon)
}

#[test]
fn an_endless_plan_is_aborted() {
    let (endpoint, _project, daemon) = waiting(&[]);
    let asked = json!({ "where": ENDLESS, "timeout": 0.3 });
    let said = daemon.post("/v1/plan", &asked).expect_status(400);
    assert!(said.error_message().contains("took longer than 0.3 s"), "{said:?}");
    // A condition cannot contain other statements.
    daemon.post("/v1/plan", &json!({ "where": "1); ATTACH 'x.db' AS x; --" })).expect_status(400);
    daemon.post("/v1/plan", &json!({ "where": "height > 180" })).expect_status(200);
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn clients_that_use_all_query_slots_do_not_block_pages_and_release_them() {
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
    wait_until("all places taken", || {
        daemon.get("/metrics").body.contains("\nhqdl_queries_waiting 4\n")
    });
    let began = Instant::now();
    daemon.get("/").expect_status(200);
    daemon.post("/v1/facts", &json!({ "keys": [["Zed", "Zed Zedsson"]] })).expect_status(200);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    drop(plans);
    wait_until("nobody served", || daemon.get("/metrics").body.contains("\nhqdl_clients 0\n"));
    assert_eq!(daemon.query_rows("SELECT 1"), [json!([1])]);
}

#[test]
fn a_run_with_an_endless_where_can_be_interrupted_and_times_out() {
    let (endpoint, _project, daemon) = waiting(&[]);
    let asked = json!({ "where": ENDLESS, "timeout": 600 });
    let id = daemon.post("/v1/runs", &asked).expect_status(202).json()["run"].as_u64().unwrap();
    daemon.wait_until("running", |s| s["run"] == id);
    daemon.delete(&format!("/v1/runs/{id}"), &json!({})).expect_status(200);
    daemon.wait_until("ended", |s| s["run"].is_null());
    let run = daemon.get(&format!("/v1/runs/{id}")).expect_status(200).json();
    assert_eq!(run["state"], "interrupted", "{run}");
    let asked = json!({ "where": ENDLESS, "timeout": 0.3, "wait": true });
    let run = daemon.post("/v1/runs", &asked).expect_status(200).json();
    assert_eq!(run["state"], "failed", "{run}");
    assert!(run["error"]["message"].as_str().unwrap().contains("took longer"), "{run}");
    assert_eq!(endpoint.request_count(), 0);
    // A run's answers are published, whatever ended the run.
    let asked = json!({ "where": "height > 180", "timeout": 5, "wait": true });
    let run = daemon.post("/v1/runs", &asked).expect_status(200).json();
    assert!(run["requests"].as_u64().unwrap() > 0, "{run}");
}

/// Returns the daemon's memory in bytes.
fn memory(daemon: &Daemon) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn one_query_does_not_use_all_memory() {
    let (_endpoint, _project, daemon) = waiting(&["--max-bytes", "2000000"]);
    let said = daemon
        .post("/v1/query", &json!({ "sql": "SELECT hex(zeroblob(200000000))" }))
        .expect_status(400);
    assert!(said.error_message().contains("longer than 16777216 bytes"), "{said:?}");
    let form = "spec=x&do=run&sql=SELECT+hex(zeroblob(200000000))";
    daemon.submit_form("/query", form).expect_status(400);
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 400)
                SELECT i, hex(zeroblob(10000)) FROM n";
    let lines = daemon.post("/v1/query", &json!({ "sql": many })).expect_status(200).json_lines();
    let last = lines.last().unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert!(last.contains("more than 2000000 bytes"), "{last}");
    let form = format!("spec=x&do=run&sql={}", many.replace('+', "%2B").replace(['\n', ' '], "+"));
    let page = daemon.submit_form("/query", &form).expect_status(200).body;
    assert!(page.contains("400 rows, the first 104 shown"), "{}", page.len());
    assert!(memory(&daemon) < 300 << 20, "{}", memory(&daemon));
}

#[test]
fn readers_that_read_nothing_lose_their_slots() {
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
    wait_until("all are served", || daemon.get("/metrics").body.contains("\nhqdl_clients 16\n"));
    let began = Instant::now();
    assert_eq!(daemon.query_rows("SELECT 1"), [json!([1])]);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    drop(readers);
}

#[test]
fn a_slow_reader_does_not_block_the_database() {
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
    // No statement reads the database any longer.
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

/// Sends a request over a Unix socket; returns the status line and the rest of the answer.
fn ask_socket(path: &std::path::Path) -> String {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

fn retry_after(head: &str) -> u64 {
    let line = head.lines().find_map(|l| l.strip_prefix("retry-after: "));
    line.unwrap_or_else(|| panic!("no Retry-After: {head}")).trim().parse().unwrap()
}

#[test]
fn a_client_beyond_its_requests_waits_and_others_are_unaffected() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let socket = project.path("hqdl.sock");
    let flags = ["--no-spend", "--client-requests", "1", "--client-burst", "3"];
    let place = socket.to_str().unwrap().to_owned();
    let daemon = Daemon::start(
        &project,
        &[&flags[..], &["--socket", &place], &["--trusted-proxy", "::1"]].concat(),
    );
    let all: Vec<_> = (0..8).map(|_| daemon.get("/healthz")).collect();
    let refused: Vec<_> = all.iter().filter(|a| a.status == 429).collect();
    assert!((3..=5).contains(&refused.len()), "{all:?}");
    let last = refused.last().unwrap();
    assert_eq!(retry_after(&last.headers), 1);
    assert!(last.body.contains("1 request a second"), "{last:?}");
    // Only a trusted proxy can name the client of a request.
    let forged = format!(
        "GET /healthz HTTP/1.0\r\nHost: {}\r\nX-Forwarded-For: 10.0.0.9\r\n\r\n",
        daemon.address
    );
    let forged: Vec<u16> = (0..3).map(|_| daemon.send_raw(&forged).status).collect();
    assert!(forged.contains(&429), "{forged:?}");
    // A user on the socket is a separate client, with its own share.
    let all: Vec<_> = (0..8).map(|_| ask_socket(&socket)).collect();
    let refused = all.iter().filter(|a| a.starts_with("HTTP/1.0 429")).count();
    assert!((3..=5).contains(&refused) && all[0].starts_with("HTTP/1.0 200"), "{all:?}");
    assert_eq!(retry_after(all.iter().find(|a| a.contains(" 429")).unwrap()), 1);
    // After that it is served again.
    std::thread::sleep(Duration::from_millis(1100));
    daemon.get("/healthz").expect_status(200);
    assert!(ask_socket(&socket).starts_with("HTTP/1.0 200"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&socket.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    daemon.send_signal("TERM");
    assert_eq!(daemon.wait_for_exit(), 0);
    assert!(!socket.exists());
}

#[test]
fn a_trusted_proxy_names_its_clients() {
    let flags = ["--client-requests", "1", "--client-burst", "2", "--trusted-proxy", "127.0.0.1"];
    let (_endpoint, _project, daemon) = waiting_for_one(&flags);
    let ask = |from: &str| {
        let host = &daemon.address;
        let head =
            format!("GET /healthz HTTP/1.0\r\nHost: {host}\r\nX-Forwarded-For: {from}\r\n\r\n");
        daemon.send_raw(&head).status
    };
    let statuses = |from: &str| -> Vec<u16> { (0..4).map(|_| ask(from)).collect() };
    assert!(statuses("10.0.0.1").contains(&429));
    assert_eq!(ask("10.0.0.2"), 200);
    // Addresses that the client itself puts in front are ignored.
    assert!(statuses("192.0.2.7, 10.0.0.2").contains(&429));
    assert_eq!(ask("10.0.0.2, 10.0.0.3:4711, 127.0.0.1"), 200);
    // An IPv6 network counts as one client.
    assert_eq!([ask("2001:db8::1"), ask("2001:db8::2")], [200, 200]);
    assert!(statuses("2001:db8::3").contains(&429));
    assert_eq!(ask("[2001:db8:1::1]:80"), 200);
    assert!(statuses("no address").contains(&429), "a broken header is the proxy's own request");
}

/// Starts a daemon with one spec, and does not wait for it, because waiting also sends requests.
fn waiting_for_one(flags: &[&str]) -> (Endpoint, Project, Daemon) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[&["--no-spend"], flags].concat());
    (endpoint, project, daemon)
}

#[test]
fn the_streams_of_each_client_are_limited() {
    let flags = ["--client-requests", "0", "--client-streams", "2", "--trusted-proxy", "127.0.0.1"];
    let (_endpoint, _project, daemon) = waiting(&flags);
    let open = |from: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&daemon.address).unwrap();
        let host = &daemon.address;
        write!(
            stream,
            "GET /v1/runs/events HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {from}\r\n\r\n"
        )
        .unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let streams: Vec<_> = (0..4).map(|_| open("10.0.0.1")).collect();
    let statuses: Vec<&str> = streams.iter().map(|(_, status)| status.as_str()).collect();
    assert_eq!(statuses, ["200", "200", "429", "429"]);
    assert_eq!(open("10.0.0.2").1, "200");
    assert_eq!(daemon.query_rows("SELECT 1"), [json!([1])]);
    // A closed stream frees its slot.
    drop(streams);
    wait_until("a stream is free", || open("10.0.0.1").1 == "200");
}

/// Pages that run a query or read a whole table count as streams.
#[test]
fn downloads_and_queries_of_the_page_are_streams() {
    let flags = ["--client-requests", "0", "--client-streams", "2"];
    let (_endpoint, project, daemon) = waiting(&flags);
    project.execute_sql(
        "CREATE VIEW endless AS WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i)
           SELECT n FROM i",
    );
    let open = || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&daemon.address).unwrap();
        let path = "/specs/x/tables/endless/export?format=csv";
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let streams: Vec<_> = (0..3).map(|_| open()).collect();
    let statuses: Vec<&str> = streams.iter().map(|(_, status)| status.as_str()).collect();
    assert_eq!(statuses, ["200", "200", "429"]);
    daemon.get("/query?spec=x&sql=SELECT+1").expect_status(429);
    daemon.get("/query?spec=x").expect_status(200);
    daemon.get("/specs/x/tables/hero").expect_status(200);
    drop(streams);
    wait_until("a stream is free", || daemon.get("/query?spec=x&sql=SELECT+1").status == 200);
}

#[test]
fn a_client_beyond_its_bytes_waits_after_its_stream_has_ended() {
    let flags =
        ["--client-requests", "0", "--client-megabytes", "1", "--trusted-proxy", "127.0.0.1"];
    let (_endpoint, _project, daemon) = waiting(&flags);
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300)
               SELECT i, hex(zeroblob(5000)) FROM n";
    let body = json!({ "sql": sql }).to_string();
    let ask = |from: &str| {
        daemon.send_raw(&format!(
            "POST /v1/query HTTP/1.0\r\nHost: {}\r\nX-Forwarded-For: {from}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            daemon.address,
            body.len()
        ))
    };
    let first = ask("10.0.0.1").expect_status(200);
    assert!(first.body.len() > 3_000_000 && first.body.contains("\"meta\""), "it is whole");
    let second = ask("10.0.0.1").expect_status(429);
    assert!(second.error_message().contains("1 MB a minute"), "{second:?}");
    // Two megabytes above the limit.
    assert!((110..=125).contains(&retry_after(&second.headers)), "{}", second.headers);
    ask("10.0.0.2").expect_status(200);
}
