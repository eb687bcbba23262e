//! Tests of MCP over HTTP, in the daemon: an assistant that posts messages and reads event streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use hqdl_testkit::daemon::{DEADLINE, Daemon, wait_until};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::Project;
use serde_json::{Value as Json, json};

use crate::mcp::{self, LIVE, PLAIN, approve};

const ENDLESS: &str =
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

/// Starts a daemon that asks for no missing cell, unless the flags allow it to spend.
fn start(flags: &[&str], env: &[(&str, &str)]) -> (Endpoint, Project, Daemon) {
    let endpoint = mcp::endpoint(LIVE);
    let project = mcp::project_with_expansion(&endpoint);
    let spends = flags.contains(&"--allow-usd");
    let no_spend: &[&str] = if spends { &[] } else { &["--no-spend"] };
    let daemon = Daemon::start_with(&project, &[flags, no_spend].concat(), env);
    daemon.wait_until_idle(if spends { "complete" } else { "waiting" });
    (endpoint, project, daemon)
}

/// An assistant that is connected over HTTP.
struct Client {
    address: String,
    path: &'static str,
    /// Further headers of each request, each with its line end.
    headers: String,
    next_id: u64,
    /// Answer to every elicitation.
    answer: Json,
    /// Number of elicitations.
    asked: u64,
}

/// A response of the transport, of which only the head was read.
struct Streamed {
    status: u16,
    session: Option<String>,
    body: BufReader<TcpStream>,
}

impl Client {
    fn connect(daemon: &Daemon) -> Self {
        Self::connect_with(daemon, "/mcp", json!({}), json!({ "action": "decline" }), "")
    }

    /// Opens a session.
    fn connect_with(
        daemon: &Daemon,
        path: &'static str,
        capabilities: Json,
        answer: Json,
        headers: &str,
    ) -> Self {
        let mut client = Self::new(daemon, path, answer, headers);
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": { "name": "test client", "version": "1" },
        } });
        let response = client.post(&hello);
        assert_eq!(response.status, 200);
        client.headers += &format!("Mcp-Session-Id: {}\r\n", response.session.unwrap());
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(client.post(&ready).status, 202);
        client
    }

    fn new(daemon: &Daemon, path: &'static str, answer: Json, headers: &str) -> Self {
        let token = daemon.token.iter().map(|t| format!("Authorization: Bearer {t}\r\n"));
        let headers = token.collect::<String>() + headers;
        Self { address: daemon.address.clone(), path, headers, next_id: 0, answer, asked: 0 }
    }

    fn send(&self, method: &str, headers: &str, body: &str) -> Streamed {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let head = format!(
            "{method} {} HTTP/1.0\r\nHost: {}\r\n{}{headers}Accept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.path,
            self.address,
            self.headers,
            body.len()
        );
        // The server may answer before it has read the whole request.
        let _ = stream.write_all((head + body).as_bytes());
        let mut body = BufReader::new(stream);
        let (mut line, mut status, mut session) = (String::new(), 0, None);
        while body.read_line(&mut line).unwrap() > 2 {
            if line.starts_with("HTTP/") {
                status = line.split(' ').nth(1).unwrap().parse().unwrap();
            }
            let header = line.split_once(": ").filter(|(name, _)| *name == "mcp-session-id");
            session = header.map(|(_, id)| id.trim().to_owned()).or(session);
            line.clear();
        }
        Streamed { status, session, body }
    }

    fn post(&self, message: &Json) -> Streamed {
        self.send("POST", "", &message.to_string())
    }

    /// Sends a request and returns the response. Elicitations are answered in between.
    fn request(&mut self, method: &str, params: Json) -> Json {
        self.next_id += 1;
        let message =
            json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
        let mut response = self.post(&message);
        let mut line = String::new();
        loop {
            line.clear();
            let read = response.body.read_line(&mut line).unwrap();
            assert!(read > 0, "the stream ended ({})", response.status);
            let text = line.strip_prefix("data:").map_or(line.trim(), str::trim);
            let Ok(message) = serde_json::from_str::<Json>(text) else { continue };
            if message["method"] == "elicitation/create" {
                self.asked += 1;
                let answer =
                    json!({ "jsonrpc": "2.0", "id": message["id"], "result": self.answer });
                assert_eq!(self.post(&answer).status, 202);
            } else if message["id"] == self.next_id {
                return message;
            } else {
                assert!(message["error"].is_null(), "{message}");
            }
        }
    }

    /// Calls a tool and returns its structured result.
    fn call(&mut self, tool: &str, arguments: Json) -> Json {
        let response = self.request("tools/call", json!({ "name": tool, "arguments": arguments }));
        let result = &response["result"]["structuredContent"];
        assert!(result.is_object(), "{response}");
        result.clone()
    }
}

fn query_call(sql: &str) -> Json {
    json!({ "jsonrpc": "2.0", "id": 900, "method": "tools/call",
        "params": { "name": "query", "arguments": { "sql": sql } } })
}

#[test]
fn an_approval_is_for_one_client_and_one_run() {
    let (endpoint, project, daemon) = start(&[], &[]);
    let mut client = Client::connect(&daemon);
    assert_eq!(
        client.call("query", json!({ "sql": PLAIN }))["rows"],
        json!([["Ant-Man"], ["Hulk"]])
    );
    let refused = client.call("query", json!({ "sql": LIVE }));
    assert_eq!(refused["status"], "approval_needed", "{refused}");
    let id = &refused["plan_id"];
    let shown = project.run_hqdl(&["approve", id.as_str().unwrap()]).expect_exit_code(6);
    for part in ["test client 1; HTTP, 127.0.0.1, session ", "Can it fly?"] {
        assert!(shown.stderr.contains(part), "{part}\n{}", shown.stderr);
    }
    approve(&project, id);
    // Neither another session nor a server on stdin can use the approval.
    let mut other = Client::connect(&daemon);
    let mut on_stdin = mcp::Client::start(&project, &[]);
    for arguments in [json!({ "sql": LIVE }), json!({ "plan_id": id })] {
        assert_eq!(other.call("query", arguments.clone())["status"], "approval_needed");
        assert_eq!(on_stdin.call("query", arguments)["status"], "approval_needed");
    }
    assert_eq!(endpoint.request_count(), 0);
    let ran = client.call("query", json!({ "plan_id": id }));
    assert_eq!(ran["rows"], json!([["Ant-Man"], ["Bane"], ["Hulk"]]), "{ran}");
    project.execute_sql("INSERT INTO superhero VALUES (4, 'Robin', '', 170)");
    assert_eq!(client.call("query", json!({ "plan_id": id }))["status"], "approval_needed");
    on_stdin.close();
}

#[test]
fn clients_share_the_limits_of_the_daemon() {
    let (endpoint, _project, daemon) = start(&["--allow-usd", "0.5", "--max-usd", "0.5"], &[]);
    let before = endpoint.request_count();
    let (mut one, mut two) = (Client::connect(&daemon), Client::connect(&daemon));
    let cost = one.call("query", json!({ "sql": LIVE }))["meta"]["cost_usd"].as_f64().unwrap();
    assert!(cost > 0.0);
    let spending = two.call("describe", json!({}))["spending"].clone();
    assert!(!spending.as_str().unwrap().starts_with("$0.0000"), "{spending}");
    let dear = format!("{LIVE} -- dear");
    let at_once = std::thread::scope(|scope| {
        let calls = [&mut one, &mut two].map(|client| {
            let sql = dear.replace("fly", "dive");
            scope.spawn(move || client.call("query", json!({ "sql": sql }))["status"].clone())
        });
        calls.map(|call| call.join().unwrap())
    });
    assert_eq!(at_once, [json!("complete"), json!("complete")]);
    assert_eq!(endpoint.request_count(), before + 2, "both asked the same question");
}

#[test]
fn the_checks_of_the_daemon_apply() {
    let token = "0123456789abcdef";
    let (_endpoint, _project, daemon) = start(&[], &[("HQDL_TOKEN", token)]);
    let hello = query_call("SELECT 1").to_string();
    let mut client = Client::connect(&daemon);
    assert_eq!(client.call("query", json!({ "sql": "SELECT 1" }))["rows"], json!([[1]]));
    for method in ["GET", "POST", "DELETE"] {
        let foreign = "Origin: http://evil.example\r\n";
        assert_eq!(client.send(method, foreign, &hello).status, 403, "{method}");
        let without =
            Client { headers: String::new(), ..Client::new(&daemon, "/mcp", json!(0), "") };
        assert_eq!(without.send(method, "", &hello).status, 401, "{method}");
    }
    let unknown = Client::new(&daemon, "/mcp/nothing", json!(0), "");
    assert_eq!(unknown.send("POST", "", &hello).status, 404);
    let large = format!("{{\"x\": \"{}\"}}", "x".repeat(2 << 20));
    assert_eq!(client.send("POST", "", &large).status, 413);
    for bad in ["{ not json", "", "[]", "{}", "{\"jsonrpc\":\"2.0\",\"method\":5}"] {
        let status = client.send("POST", "", bad).status;
        assert!((400..500).contains(&status), "{bad}: {status}");
    }
    assert_eq!(Client::new(&daemon, "/mcp", json!(0), "").send("POST", "", &hello).status, 400);
    assert_eq!(client.send("PUT", "", &hello).status, 405);
    assert_eq!(client.call("query", json!({ "sql": "SELECT 1" }))["rows"], json!([[1]]));
    // A session ends when the client says so.
    assert_eq!(client.send("DELETE", "", "").status, 204);
    assert_eq!(client.send("POST", "", &hello).status, 404);
}

#[test]
fn a_session_is_of_one_client() {
    let (_endpoint, _project, daemon) = start(&["--trusted-proxy", "127.0.0.1"], &[]);
    let connect = |forwarded: &str| {
        let headers = format!("X-Forwarded-For: {forwarded}\r\n");
        Client::connect_with(&daemon, "/mcp", json!({}), json!(0), &headers)
    };
    let mut one = connect("10.0.0.1");
    assert_eq!(one.call("query", json!({ "sql": "SELECT 1" }))["status"], "complete");
    let mut stolen = connect("10.0.0.2");
    stolen.headers = one.headers.replace("10.0.0.1", "10.0.0.2");
    for method in ["POST", "GET", "DELETE"] {
        let message = query_call("SELECT 1").to_string();
        assert_eq!(stolen.send(method, "", &message).status, 404, "{method}");
    }
    assert_eq!(one.call("query", json!({ "sql": "SELECT 1" }))["status"], "complete");
    // Too many sessions of one client do not keep others away.
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "x", "version": "1" } } });
    let greedy = Client::new(&daemon, "/mcp", json!(0), "X-Forwarded-For: 10.0.0.3\r\n");
    let opened = (0..100).take_while(|_| greedy.post(&hello).status == 200).count();
    assert_eq!(opened, 32);
    assert_eq!(connect("10.0.0.4").call("describe", json!({}))["is_complete"], true);
}

#[test]
fn a_disconnect_ends_the_calls() {
    let (_endpoint, _project, daemon) = start(&[], &[]);
    let working = || {
        let metrics = daemon.get("/metrics").expect_status(200).body;
        let line = metrics.lines().find(|line| line.starts_with("hqdl_clients "));
        line.unwrap().ends_with(" 0").then_some(()).is_none()
    };
    let mut client = Client::connect(&daemon);
    let began = std::time::Instant::now();
    let stream = client.post(&query_call(ENDLESS));
    wait_until("working", working);
    drop(stream);
    wait_until("idle", || !working());
    // So does a cancellation.
    let stream = client.post(&query_call(ENDLESS));
    wait_until("working", working);
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": 900 } });
    client.post(&cancel);
    wait_until("idle", || !working());
    assert!(began.elapsed().as_secs() < 50, "the time limit ended the queries");
    drop(stream);
    assert_eq!(client.call("query", json!({ "sql": "SELECT 1" }))["status"], "complete");
    // The daemon ends although a call and an event stream are open.
    let call = client.post(&query_call(ENDLESS));
    let events = client.send("GET", "", "");
    assert_eq!(events.status, 200);
    wait_until("working", working);
    daemon.send_signal("TERM");
    assert_eq!(daemon.wait_for_exit(), 0);
    drop((call, events));
}

#[test]
fn elicitation_asks_the_user_over_http() {
    let (endpoint, project, daemon) = start(&[], &[]);
    let connect = |answer: Json| {
        Client::connect_with(&daemon, "/mcp/x", json!({ "elicitation": {} }), answer, "")
    };
    let mut declines = connect(json!({ "action": "decline" }));
    assert_eq!(declines.call("query", json!({ "sql": LIVE }))["status"], "approval_needed");
    assert_eq!((declines.asked, endpoint.request_count()), (1, 0));
    let mut accepts = connect(json!({ "action": "accept", "content": { "approve": true } }));
    assert_eq!(accepts.call("query", json!({ "sql": LIVE }))["status"], "complete");
    project.execute_sql("INSERT INTO superhero VALUES (4, 'Robin', '', 170)");
    // A question can be answered only once, and only by the client that was asked.
    let newer = |state: &Json, client: &str| {
        json!({
            "name": "query", "arguments": { "sql": LIVE }, "requestState": state,
            "inputResponses": { "approve": { "action": "accept", "content": { "approve": true } } },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": { "name": client, "version": "2" },
                "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
            },
        })
    };
    let headers =
        "Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: query\r\n";
    let mut client = Client::new(&daemon, "/mcp", Json::Null, headers);
    let first = client.request("tools/call", newer(&json!("forged"), "new"));
    let state = first["result"]["requestState"].clone();
    assert_eq!(first["result"]["resultType"], "input_required", "{first}");
    let other = client.request("tools/call", newer(&state, "other"));
    assert_eq!(other["result"]["resultType"], "input_required", "{other}");
    let before = endpoint.request_count();
    let ran = client.request("tools/call", newer(&state, "new"));
    assert_eq!(ran["result"]["structuredContent"]["status"], "complete", "{ran}");
    project.execute_sql("INSERT INTO superhero VALUES (5, 'Batman', '', 188)");
    let again = client.request("tools/call", newer(&state, "new"));
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_eq!(endpoint.request_count(), before + 1);
}

/// Calls a tool with the newer protocol, which has no sessions.
pub fn call_without_session(daemon: &Daemon, tool: &str, arguments: Json) -> Json {
    let headers = format!(
        "Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
    );
    let mut client = Client::new(daemon, "/mcp", Json::Null, &headers);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "new", "version": "2" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let response = client.request("tools/call", params);
    response["result"]["structuredContent"].clone()
}

/// Clients of the newer protocol have no sessions, and those behind one address look the same.
#[test]
fn a_client_without_a_session_has_its_own_approvals() {
    let (endpoint, project, daemon) = start(&[], &[]);
    let call = |tool: &str, arguments: Json| call_without_session(&daemon, tool, arguments);
    let (one, two) = (call("plan", json!({ "sql": LIVE })), call("plan", json!({ "sql": LIVE })));
    assert_ne!(one["plan_id"], two["plan_id"], "{one}");
    approve(&project, &one["plan_id"]);
    for arguments in [json!({ "sql": LIVE }), json!({ "plan_id": two["plan_id"] })] {
        let other = call("query", arguments);
        assert_eq!(other["status"], "approval_needed", "{other}");
    }
    assert_eq!(endpoint.request_count(), 0);
    let by_plan = || call("query", json!({ "plan_id": one["plan_id"] }));
    assert_eq!(by_plan()["status"], "complete");
    project.execute_sql("INSERT INTO superhero VALUES (4, 'Robin', '', 170)");
    assert_eq!(by_plan()["status"], "approval_needed");
    // A fill and a question keep the client of their plans, too.
    let fill = call("materialize", json!({}));
    approve(&project, &fill["plan_id"]);
    let filled = call("materialize", json!({ "plan_id": fill["plan_id"] }));
    assert_eq!(filled["status"], "complete", "{filled}");
    let asked = call("ask", json!({ "question": "Who can fly?" }));
    approve(&project, &asked["plan_id"]);
    let written = call("query", json!({ "plan_id": asked["plan_id"] }));
    assert!(written["message"].as_str().unwrap().starts_with("running the query"), "{written}");
    approve(&project, &written["plan_id"]);
    assert_eq!(call("query", json!({ "plan_id": written["plan_id"] }))["status"], "complete");
}

/// Returns the body that presses a button of the plan's form.
fn press(page: &str, plan: &Json, button: &str) -> String {
    let id = plan.as_str().unwrap();
    let (_, card) = page.split_once(&format!("data-plan=\"{id}\"")).expect(page);
    let (_, shown) = card.split_once("name=\"shown\" value=\"").unwrap();
    format!("plan={id}&shown={}&do={button}", shown.split('"').next().unwrap())
}

#[test]
fn the_page_approves_a_plan_once() {
    let (endpoint, project, daemon) = start(&[], &[]);
    let page = || daemon.get("/approvals").expect_status(200).body;
    assert!(page().contains("No plan is waiting"));
    let mut client = Client::connect(&daemon);
    // A plan that costs nothing does not wait.
    client.call("plan", json!({ "sql": PLAIN }));
    assert!(page().contains("No plan is waiting"));
    let sql = LIVE.replace("= 'yes'", "= 'yes' AND superhero_name <> '<b>x</b>\u{202e}'");
    let refused = client.call("query", json!({ "sql": sql }));
    let id = &refused["plan_id"];
    assert!(refused["message"].as_str().unwrap().contains("on the Approvals page"), "{refused}");
    let listed = page();
    let database = project.path("data.sqlite").canonicalize().unwrap();
    let cost = format!("Approve once, cost {}", price(&refused));
    for part in [
        "Can it fly?",
        "&lt;b&gt;x&lt;/b&gt;\\u{202e}",
        "test client 1; HTTP",
        "<pre>m ",
        &cost,
        &database.display().to_string(),
    ] {
        assert!(listed.contains(part), "{part}\n{listed}");
    }
    let approve = press(&listed, id, "approve");
    let shown = approve.split("shown=").nth(1).unwrap().split('&').next().unwrap();
    assert!(!refused.to_string().contains(shown));
    // Another site cannot press the button, and no other text presses it.
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let foreign = format!("{form}Origin: http://evil.example\r\n");
    daemon.send_request("POST", "/approvals", &foreign, &approve).expect_status(403);
    let fetched = format!("{form}Sec-Fetch-Site: cross-site\r\n");
    daemon.send_request("POST", "/approvals", &fetched, &approve).expect_status(403);
    daemon.get(&format!("/approvals?{approve}")).expect_status(200);
    for wrong in
        [approve.replace(shown, "0"), approve.replace(id.as_str().unwrap(), "000000000000")]
    {
        daemon.submit_form("/approvals", &wrong).expect_status(409);
    }
    for wrong in
        [approve.replace("do=approve", "do=x"), approve.replace("plan=", "plan=../"), String::new()]
    {
        daemon.submit_form("/approvals", &wrong).expect_status(400);
    }
    assert_eq!(client.call("query", json!({ "sql": sql }))["status"], "approval_needed");
    assert_eq!(endpoint.request_count(), 0);
    let approve = press(&page(), id, "approve");
    daemon.submit_form("/approvals", &approve).expect_status(303);
    assert!(page().contains("Withdraw the approval"));
    // The same form, sent again, approves nothing.
    daemon.submit_form("/approvals", &approve).expect_status(409);
    assert_eq!(client.call("query", json!({ "sql": sql }))["status"], "complete");
    assert!(page().contains("No plan is waiting"));
    daemon.submit_form("/approvals", &approve).expect_status(409);
    project.execute_sql("INSERT INTO superhero VALUES (4, 'Robin', '', 170)");
    assert_eq!(client.call("query", json!({ "sql": sql }))["status"], "approval_needed");
}

/// Returns the cost of a plan, as the page shows it.
fn price(plan: &Json) -> String {
    let message = plan["message"].as_str().unwrap();
    message.split("costs ").nth(1).unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn the_page_rejects_plans_and_approves_only_what_it_showed() {
    let (endpoint, project, daemon) = start(&[], &[]);
    let page = || daemon.get("/approvals").expect_status(200).body;
    let mut client = Client::connect(&daemon);
    let query = json!({ "sql": LIVE });
    let id = client.call("query", query.clone())["plan_id"].clone();
    daemon.submit_form("/approvals", &press(&page(), &id, "reject")).expect_status(303);
    assert!(page().contains("No plan is waiting"));
    let rejected = client.call("query", query.clone());
    assert_eq!(
        (&rejected["status"], &rejected["plan_id"]),
        (&json!("rejected"), &id),
        "{rejected}"
    );
    assert!(page().contains("No plan is waiting"));
    // A person can still change their mind, and withdraw an approval that was not used.
    approve(&project, &id);
    daemon.submit_form("/approvals", &press(&page(), &id, "reject")).expect_status(303);
    assert_eq!(client.call("query", query)["status"], "rejected");
    // A plan that became dearer after it was shown is shown again.
    let dive = json!({ "sql": LIVE.replace("fly", "dive") });
    let id = client.call("query", dive.clone())["plan_id"].clone();
    let cheap = press(&page(), &id, "approve");
    for n in 10..200 {
        project.execute_sql(&format!("INSERT INTO superhero VALUES ({n}, 'hero {n}', '', 100)"));
    }
    assert_eq!(client.call("query", dive.clone())["plan_id"], id);
    let shown = daemon.submit_form("/approvals", &cheap).expect_status(409).body;
    assert!(shown.contains("The plan has changed") && shown.contains("Can it dive?"), "{shown}");
    assert_eq!(client.call("query", dive.clone())["status"], "approval_needed");
    assert_eq!(endpoint.request_count(), 0);
    daemon.submit_form("/approvals", &press(&page(), &id, "approve")).expect_status(303);
    assert_eq!(client.call("query", dive)["status"], "complete");
    // An override is approved outside the assistant, too.
    let cell = json!({ "table": "llm", "key": ["Hulk"], "column": "can_swim", "value": "no" });
    let id = client.call("override", cell)["plan_id"].clone();
    let listed = page();
    assert!(listed.contains("llm.can_swim of Hulk"), "{listed}");
    daemon.submit_form("/approvals", &press(&listed, &id, "approve")).expect_status(303);
    assert_eq!(client.call("override", json!({ "plan_id": id }))["status"], "complete");
}

/// A rejected plan does not run, even if its cost later fits the allowance.
#[test]
fn the_allowance_does_not_pay_for_a_rejected_plan() {
    let (endpoint, _project, daemon) = start(&["--allow-usd", "0.0093"], &[]);
    let page = || daemon.get("/approvals").expect_status(200).body;
    let mut client = Client::connect(&daemon);
    let refused = client.call("query", json!({ "sql": LIVE }));
    assert_eq!(refused["status"], "approval_needed", "{refused}");
    let id = &refused["plan_id"];
    daemon.submit_form("/approvals", &press(&page(), id, "reject")).expect_status(303);
    // The values that a smaller query stores make the rejected plan cheaper.
    let smaller = LIVE.replace("WHERE", "WHERE height_cm > 210 AND");
    let ran = client.call("query", json!({ "sql": smaller }));
    assert_eq!(ran["status"], "complete", "{ran}");
    let before = endpoint.request_count();
    for arguments in [json!({ "plan_id": id }), json!({ "sql": LIVE })] {
        let rejected = client.call("query", arguments);
        assert_eq!(rejected["status"], "rejected", "{rejected}");
    }
    assert_eq!(endpoint.request_count(), before);
}

/// No tool asks for a rejected plan again, with or without a session.
#[test]
fn a_rejected_plan_is_not_requested_again() {
    let (_endpoint, project, daemon) = start(&[], &[]);
    let page = || daemon.get("/approvals").expect_status(200).body;
    let mut client = Client::connect(&daemon);
    let calls = [("plan", json!({ "sql": LIVE })), ("materialize", json!({}))];
    for (tool, arguments) in &calls {
        let id = client.call(tool, arguments.clone())["plan_id"].clone();
        daemon.submit_form("/approvals", &press(&page(), &id, "reject")).expect_status(303);
        let again = client.call(tool, arguments.clone());
        assert_eq!((&again["status"], &again["plan_id"]), (&json!("rejected"), &id), "{again}");
        let id = call_without_session(&daemon, tool, arguments.clone())["plan_id"].clone();
        daemon.submit_form("/approvals", &press(&page(), &id, "reject")).expect_status(303);
        let again = call_without_session(&daemon, tool, arguments.clone());
        assert_eq!(again["status"], "rejected", "{again}");
        assert!(page().contains("No plan is waiting"));
        // A person can still approve the rejected plan.
        approve(&project, &id);
        assert!(page().contains("Withdraw the approval"));
        daemon.submit_form("/approvals", &press(&page(), &id, "reject")).expect_status(303);
    }
}

#[test]
fn a_repeated_request_neither_changes_nor_fills_the_page() {
    let (_endpoint, _project, daemon) = start(&[], &[]);
    let page = || daemon.get("/approvals").expect_status(200).body;
    let mut client = Client::connect(&daemon);
    let id = client.call("query", json!({ "sql": LIVE }))["plan_id"].clone();
    let shown = press(&page(), &id, "approve");
    // The times of requests have a resolution of a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(client.call("query", json!({ "plan_id": id }))["status"], "approval_needed");
    daemon.submit_form("/approvals", &shown).expect_status(303);
    assert_eq!(client.call("query", json!({ "plan_id": id }))["status"], "complete");
    // Without a session, the last request for the same work replaces the others.
    let dive = json!({ "sql": LIVE.replace("fly", "dive") });
    let ids: Vec<Json> = std::iter::repeat_with(|| {
        call_without_session(&daemon, "query", dive.clone())["plan_id"].clone()
    })
    .take(3)
    .collect();
    let listed = page();
    assert_eq!(listed.matches("data-plan=").count(), 1, "{listed}");
    press(&listed, &ids[2], "approve");
    // The number of different plans of a client is limited, too.
    for n in 0..22 {
        client.call("plan", json!({ "sql": LIVE.replace("fly", &format!("fly {n}")) }));
    }
    let listed = page();
    assert_eq!(listed.matches("data-plan=").count(), 21, "{listed}");
    assert!(listed.contains("Can it fly 21?") && listed.contains("Can it dive?"), "{listed}");
}

#[test]
fn a_free_model_needs_approval_where_nothing_may_be_spent() {
    let (endpoint, project, daemon) = start(&[], &[]);
    let spec = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    let (before, price) = spec.split_once("price = {").unwrap();
    let (_, after) = price.split_once('}').unwrap();
    std::fs::write(
        project.path("specs/x.toml"),
        format!("{before}price = {{ input = 0.0, output = 0.0 }}{after}"),
    )
    .unwrap();
    let mut client = Client::connect_with(&daemon, "/mcp", json!({}), json!(0), "");
    while client.call("plan", json!({ "sql": LIVE }))["max_cost_usd"] != 0.0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(client.call("query", json!({ "sql": LIVE }))["status"], "approval_needed");
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn the_path_chooses_the_spec() {
    let (_endpoint, project, daemon) = start(&[], &[]);
    let spec = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    std::fs::write(project.path("specs/y.toml"), spec.replace("\"llm\"", "\"other\"")).unwrap();
    wait_until("both specs are ready", || {
        let specs = daemon.status()["specs"].as_array().unwrap().clone();
        specs.len() == 2 && specs.iter().all(|s| s["state"] == "waiting")
    });
    let unnamed = Client::new(&daemon, "/mcp", json!(0), "");
    let mut response = unnamed.send("POST", "", "{}");
    let mut body = String::new();
    response.body.read_to_string(&mut body).unwrap();
    assert_eq!(response.status, 400, "{body}");
    assert!(body.contains("use the path /mcp/SPEC: the specs are `x` and `y`"), "{body}");
    for path in ["/mcp/x", "/mcp/y"] {
        let mut client = Client::connect_with(&daemon, path, json!({}), json!(0), "");
        assert_eq!(client.call("query", json!({ "sql": PLAIN }))["status"], "complete");
    }
    project.run_hqdl(&["daemon", "--no-spend", "--allow-usd", "1"]).expect_exit_code(2);
}
