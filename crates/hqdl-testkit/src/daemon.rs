//! A daemon running in a project, and an HTTP client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::project::{CommandResult, Project};

/// Time limit for every wait; long enough for a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A running daemon, killed on drop.
pub struct Daemon {
    child: Child,
    /// Address, such as `127.0.0.1:40123`.
    pub address: String,
    pub token: Option<String>,
}

/// A response of the daemon.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Response {
    /// Returns the body as JSON.
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the lines of the body as JSON.
    pub fn json_lines(&self) -> Vec<Json> {
        self.body.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Returns the response; panics if it has another status.
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Returns the error message.
    pub fn error_message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl Daemon {
    /// Starts a daemon in a project and waits until it listens.
    pub fn start(project: &Project, flags: &[&str]) -> Self {
        Self::start_with(project, flags, &[])
    }

    /// Like [`Daemon::start`], with environment variables.
    pub fn start_with(project: &Project, flags: &[&str], env: &[(&str, &str)]) -> Self {
        let mut args = vec!["daemon"];
        if !flags.contains(&"--listen") {
            args.extend(["--listen", "127.0.0.1:0"]);
        }
        // Tests are one client that looks often.
        if !flags.iter().any(|flag| flag.starts_with("--client")) {
            args.extend(["--client-requests=0", "--client-streams=0", "--client-megabytes=0"]);
        }
        args.extend(flags);
        let log_path = project.path("daemon.err");
        let log = std::fs::File::options().create(true).append(true).open(&log_path).unwrap();
        let before = log.metadata().unwrap().len() as usize;
        let mut child = project
            .hqdl_command(&args)
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let started_at = Instant::now();
        let address = loop {
            let text = std::fs::read_to_string(&log_path).unwrap();
            let listening =
                text[before..].lines().find_map(|l| l.strip_prefix("listening on http://"));
            match listening {
                Some(address) => break address.to_owned(),
                None if child.try_wait().unwrap().is_some() || started_at.elapsed() > DEADLINE => {
                    let _ = child.kill();
                    panic!("no daemon: {}", &text[before..]);
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let token = env.iter().find(|(n, _)| *n == "HQDL_TOKEN").map(|(_, v)| (*v).to_owned());
        Self { child, address, token }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request text as it is.
    pub fn send_raw(&self, request: &str) -> Response {
        send_raw(&self.address, request)
    }

    pub fn send_request(
        &self,
        method: &str,
        path: &str,
        extra_headers: &str,
        body: &str,
    ) -> Response {
        let token = self
            .token
            .as_ref()
            .map(|t| format!("Authorization: Bearer {t}\r\n"))
            .unwrap_or_default();
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        self.send_raw(&format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{token}{extra_headers}{length}\r\n{body}",
            self.address
        ))
    }

    pub fn get(&self, path: &str) -> Response {
        self.send_request("GET", path, "", "")
    }

    pub fn post(&self, path: &str, body: &Json) -> Response {
        self.send_request("POST", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    pub fn delete(&self, path: &str, body: &Json) -> Response {
        self.send_request("DELETE", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    /// Submits a form of the daemon's page.
    pub fn submit_form(&self, path: &str, body: &str) -> Response {
        let extra_headers = format!(
            "Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://{}\r\n",
            self.address
        );
        self.send_request("POST", path, &extra_headers, body)
    }

    /// Runs a query and returns its rows.
    pub fn query_rows(&self, sql: &str) -> Vec<Json> {
        let answer = self.post("/v1/query", &json!({ "sql": sql, "budget": 1 })).expect_status(200);
        let mut lines = answer.json_lines();
        let last = lines.pop().unwrap();
        assert!(last["meta"].is_object(), "{answer:?}");
        lines.remove(0);
        lines
    }

    pub fn status(&self) -> Json {
        self.get("/v1/status").expect_status(200).json()
    }

    /// Returns the status of the spec `x`.
    pub fn spec_status(&self) -> Json {
        let status = self.status();
        let specs = status["specs"].as_array().unwrap();
        specs.iter().find(|s| s["name"] == "x").cloned().unwrap_or(Json::Null)
    }

    /// Waits until the status of the spec `x` satisfies the predicate.
    pub fn wait_until(&self, condition: &str, is_done: impl Fn(&Json) -> bool) -> Json {
        let started_at = Instant::now();
        loop {
            let spec = self.spec_status();
            if is_done(&spec) {
                return spec;
            }
            assert!(started_at.elapsed() < DEADLINE, "never {condition}: {}", self.status());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the spec `x` is in the given state and no run is active.
    pub fn wait_until_idle(&self, state: &str) -> Json {
        self.wait_until(state, |spec| spec["state"] == state && spec["run"].is_null())
    }

    /// Sends the signal with this name.
    pub fn send_signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = std::process::Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits for the daemon to exit. Returns the exit code, or -1 after a signal.
    pub fn wait_for_exit(mut self) -> i32 {
        let started_at = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(started_at.elapsed() < DEADLINE, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the server-sent events up to the first one that satisfies the predicate. Calls
    /// `after` once the stream is open.
    pub fn events_until(
        &self,
        is_last: impl Fn(&str, &Json) -> bool,
        on_open: impl FnOnce(),
    ) -> Vec<(String, Json)> {
        let mut stream = connect_to(&self.address);
        write!(stream, "GET /v1/runs/events HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        on_open();
        let (mut seen, mut event) = (Vec::new(), String::new());
        let started_at = Instant::now();
        loop {
            assert!(started_at.elapsed() < DEADLINE, "the event never came: {seen:?}");
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the stream ended: {seen:?}");
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim().clone_into(&mut event);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                let data: Json = serde_json::from_str(data).unwrap();
                let found = is_last(&event, &data);
                seen.push((event.clone(), data));
                if found {
                    return seen;
                }
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect_to(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn send_raw(address: &str, request: &str) -> Response {
    let mut stream = connect_to(address);
    // The server may answer before it has read the whole request.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    Response { status, headers: head.to_owned(), body: body.to_owned() }
}

/// Waits until the condition is true.
pub fn wait_until(condition: &str, is_done: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !is_done() {
        assert!(started_at.elapsed() < DEADLINE, "never {condition}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs `hqdl status`.
pub fn run_status(project: &Project, flags: &[&str]) -> CommandResult {
    project.run_hqdl(&[&["status"], flags].concat())
}

/// Returns the path of a link in a page.
pub fn find_link(page: &str, text: &str) -> String {
    let end = format!(">{text}</a>");
    let before = page.split(&end).next().filter(|before| before.len() < page.len());
    let before = before.unwrap_or_else(|| panic!("no link `{text}` in {page}"));
    let tag = before.rsplit("<a").next().unwrap();
    let path = tag.split("href=\"").nth(1).unwrap().split('"').next().unwrap();
    path.replace("&amp;", "&")
}
