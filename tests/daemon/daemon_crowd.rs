//! Tests of many concurrent streams, connections, malformed requests and specs. One kind of client
//! does not use up the others' capacity, and the cost of a spec does not depend on the number of
//! specs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use hqdl_testkit::daemon::{DEADLINE, Daemon, wait_until};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

fn waiting() -> (Endpoint, Project, Daemon) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    (endpoint, project, daemon)
}

/// Returns a figure of `/metrics`.
fn figure(daemon: &Daemon, name: &str) -> u64 {
    let text = daemon.get("/metrics").expect_status(200).body;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

/// Opens a connection and sends bytes on it.
fn sent(daemon: &Daemon, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&daemon.address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    // The answer may arrive before everything is read.
    let _ = stream.write_all(bytes);
    stream
}

/// Reads the first line and the headers of an answer.
fn head(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).unwrap() > 2 {}
    head
}

#[test]
fn event_streams_do_not_block_short_requests() {
    let (_endpoint, _project, daemon) = waiting();
    let ask = format!("GET /v1/runs/events HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address);
    let streams: Vec<TcpStream> = (0..600).map(|_| sent(&daemon, ask.as_bytes())).collect();
    let heads: Vec<String> = streams.iter().map(head).collect();
    let open = heads.iter().filter(|h| h.starts_with("HTTP/1.1 200")).count();
    let refused: Vec<&String> = heads.iter().filter(|h| h.starts_with("HTTP/1.1 503")).collect();
    assert_eq!((open, refused.len()), (256, 344));
    assert!(refused.iter().all(|h| h.contains("retry-after: ")), "{:?}", refused[0]);
    // While they are open, other requests are answered.
    daemon.get("/healthz").expect_status(200);
    assert_eq!(daemon.status()["specs"][0]["name"], "x");
    assert_eq!(daemon.query_rows("SELECT 1"), [json!([1])]);
    assert_eq!(figure(&daemon, "hqdl_event_streams"), 256);
    wait_until("the refused are let go of", || figure(&daemon, "hqdl_connections") == 257);
    // A closed stream frees its slot.
    drop(streams);
    wait_until("no stream", || figure(&daemon, "hqdl_event_streams") == 0);
    assert!(head(&sent(&daemon, ask.as_bytes())).starts_with("HTTP/1.1 200"));
}

#[test]
fn clients_that_wait_for_runs_do_not_block_others() {
    let (_endpoint, _project, daemon) = waiting();
    let body = json!({ "wait": true, "timeout": 600, "where": "(WITH RECURSIVE c(x) AS
        (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c) > 0" })
    .to_string();
    let ask = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        daemon.address,
        body.len()
    );
    let waiting: Vec<TcpStream> = (0..70).map(|_| sent(&daemon, ask.as_bytes())).collect();
    let refused = |route: &str| {
        let name = format!("hqdl_http_seconds_count{{route=\"{route}\",status=\"503\"}}");
        let text = daemon.get("/metrics").expect_status(200).body;
        let count = text.lines().find_map(|l| l.strip_prefix(&name)?.trim().parse::<u64>().ok());
        count.unwrap_or(0)
    };
    wait_until("some refused", || refused("/v1/runs") == 6);
    daemon.get("/healthz").expect_status(200);
    assert_eq!(daemon.query_rows("SELECT 1"), [json!([1])]);
    // A client that does not wait can still request a run, or be rejected because of too many.
    drop(waiting);
    let again = json!({ "limit": 0, "wait": false });
    wait_until("places again", || daemon.post("/v1/runs", &again).status != 503);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let (_endpoint, _project, daemon) = waiting();
    let ask = format!("GET /v1/openapi.json HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address);
    // More bytes than all buffers on the way can store.
    let length = daemon.get("/v1/openapi.json").expect_status(200).body.len();
    let many = ask.repeat((32 << 20) / length);
    let deaf = sent(&daemon, many.as_bytes());
    assert_eq!(figure(&daemon, "hqdl_connections"), 2);
    wait_until("let go of", || figure(&daemon, "hqdl_connections") == 1);
    drop(deaf);
}

/// Returns a malformed request. None may be a valid request that asks a model.
fn malformed(rng: &mut fastrand::Rng, host: &str) -> Vec<u8> {
    let paths = ["/v1/query", "/v1/plan", "/v1/facts", "/v1/why?key=%", "/", "/%2e%2e/etc/passwd"];
    let odd = ["/v1/specs/%00", "//", "*", "http://x/v1/status", "/v1/specs/99999999999999999999"];
    let path =
        if rng.bool() { paths[rng.usize(..paths.len())] } else { odd[rng.usize(..odd.len())] };
    let methods = ["GET", "POST", "DELETE", "PUT", "HEAD", "TRACE", "CONNECT", "get", "G\0T", ""];
    let method = methods[rng.usize(..methods.len())];
    let version = ["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/2.0", "", "ICMP"][rng.usize(..6)];
    let bodies = [
        "{}",
        "{\"sql\":\"SELECT 1\"}",
        "[[[[[[[[",
        "{\"sql\":1e999}",
        "\u{0}\u{1}\u{2}",
        "sql=SELECT+1&spec=x",
        "{\"keys\":[[{}]],\"fill\":true}",
    ];
    let mut body = bodies[rng.usize(..bodies.len())].as_bytes().to_vec();
    if rng.u8(..8) == 0 {
        body = b"[".repeat(100_000);
    }
    let mut head = format!("{method} {path} {version}\r\n").into_bytes();
    let lines: [&[u8]; 14] = [
        b"Content-Type: application/json\r\n",
        b"Content-Type: \xff\xfe\r\n",
        b"Content-Length: 7\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        b"Authorization: Basic ====\r\n",
        b"X: \0\r\n",
        b"no colon\r\n",
        b" folded: line\r\n",
    ];
    if rng.u8(..8) != 0 {
        head.extend(format!("Host: {host}\r\n").into_bytes());
    }
    for _ in 0..rng.usize(..4) {
        head.extend(lines[rng.usize(..lines.len())]);
    }
    match rng.u8(..8) {
        0 => head.extend(format!("X-Long: {}\r\n", "y".repeat(600_000)).into_bytes()),
        1 => (0..200).for_each(|n| head.extend(format!("X-{n}: 1\r\n").into_bytes())),
        _ => head.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes()),
    }
    head.extend(b"\r\n");
    head.extend(body);
    // Truncate the request, or change one byte.
    match rng.u8(..4) {
        0 => head.truncate(rng.usize(..head.len())),
        1 => {
            let at = rng.usize(..head.len());
            head[at] = rng.u8(..);
        }
        _ => {}
    }
    head
}

#[test]
fn malformed_requests_are_rejected_and_affect_no_one_else() {
    let seed = std::env::var("HQDL_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("HQDL_TEST_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (endpoint, project, daemon) = waiting();
    let before = std::fs::read(project.path("data.sqlite")).unwrap();
    for n in 0..400 {
        let bytes = malformed(&mut rng, &daemon.address);
        let mut stream = sent(&daemon, &bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // A reset also ends the connection; a connection that outlasts the deadline is a failure.
        let began = Instant::now();
        let _ = stream.read_to_end(&mut answer);
        let said = String::from_utf8_lossy(&answer);
        let request = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        let told = format!("HQDL_TEST_SEED={seed}, {n}: {request:?}: {said:?}");
        assert!(began.elapsed() < DEADLINE, "{told}");
        let fine =
            said.is_empty() || said.starts_with("HTTP/1.1 ") || said.starts_with("HTTP/1.0 ");
        assert!(fine && !said.contains(" 500 ") && !said.contains("a bug in hqdl"), "{told}");
    }
    wait_until("all ended", || figure(&daemon, "hqdl_connections") == 1);
    assert_eq!(daemon.query_rows("SELECT 1"), [json!([1])]);
    daemon.wait_until_idle("waiting");
    assert_eq!(endpoint.request_count(), 0);
    assert!(before == std::fs::read(project.path("data.sqlite")).unwrap());
}

/// Creates a project with this many specs, each with its own database and recordings.
fn many(endpoint: &Endpoint, specs: usize) -> Project {
    let project = heroes_project(endpoint, "csv");
    std::fs::remove_file(project.path("specs/x.toml")).unwrap();
    std::fs::create_dir(project.path("data")).unwrap();
    (0..specs).for_each(|n| add(&project, n));
    project
}

fn add(project: &Project, n: usize) {
    let database = rusqlite::Connection::open(project.path(format!("data/{n}.sqlite"))).unwrap();
    let sql = format!("CREATE TABLE hero (name TEXT); INSERT INTO hero VALUES ('Hero {n}')");
    database.execute_batch(&sql).unwrap();
    let recorded = json!({ "question": "age", "value": format!("Hero {n}"), "answer": n });
    std::fs::write(project.path(format!("data/{n}.jsonl")), recorded.to_string()).unwrap();
    let spec = format!(
        r#"
        [database]
        path = "../data/{n}.sqlite"
        [model]
        provider = "replay"
        name = "test-model"
        recordings = ["../data/{n}.jsonl"]
        [[expansion]]
        name = "llm"
        source = "hero"
        key = ["name"]
        [[expansion.column]]
        name = "age"
        type = "integer"
        about = "how old hero {n} is"
        "#
    );
    std::fs::write(project.path(format!("specs/s{n}.toml")), spec).unwrap();
}

fn complete(daemon: &Daemon, specs: usize) {
    let began = Instant::now();
    loop {
        let status = daemon.status();
        let all = status["specs"].as_array().unwrap();
        let ready = all.iter().filter(|s| s["state"] == "complete" && s["run"].is_null()).count();
        if ready == specs && status["queued"] == 0 {
            return;
        }
        assert!(began.elapsed() < 4 * DEADLINE, "{ready} of {specs} ready");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_cost_of_a_spec_does_not_depend_on_their_number() {
    let endpoint = truthful_endpoint();
    let looks = |specs: usize| {
        let project = many(&endpoint, specs);
        let daemon = Daemon::start(&project, &[]);
        complete(&daemon, specs);
        // Add a spec, and change another one.
        add(&project, specs);
        complete(&daemon, specs + 1);
        let value = project.query_rows_of(&format!("data/{specs}.sqlite"), "SELECT age FROM llm");
        assert_eq!(value, [[json!(specs)]]);
        // Wait a moment first, so that the checks of all files are included.
        figure(&daemon, "hqdl_file_looks_total") as f64 / (specs + 1) as f64
    };
    let (few, many) = (looks(10), looks(80));
    println!("looks at files a spec: {few} of 10, {many} of 80");
    assert!(many < 2.0 * few, "{few}, {many}");
}
