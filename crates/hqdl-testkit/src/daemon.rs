//! A daemon running in a project, and an HTTP client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::project::{Ended, Project};

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
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Returns the body as JSON.
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the lines of the body as JSON.
    pub fn lines(&self) -> Vec<Json> {
        self.body.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Returns the response; panics if it has another status.
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Returns the error message.
    pub fn error(&self) -> String {
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
        let said = project.path("daemon.err");
        let log = std::fs::File::options().create(true).append(true).open(&said).unwrap();
        let before = log.metadata().unwrap().len() as usize;
        let mut child = project
            .command(&args)
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let began = Instant::now();
        let address = loop {
            let text = std::fs::read_to_string(&said).unwrap();
            let listening =
                text[before..].lines().find_map(|l| l.strip_prefix("listening on http://"));
            match listening {
                Some(address) => break address.to_owned(),
                None if child.try_wait().unwrap().is_some() || began.elapsed() > DEADLINE => {
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
    pub fn raw(&self, request: &str) -> Answer {
        raw(&self.address, request)
    }

    fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
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
        self.raw(&format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{token}{more}{length}\r\n{body}",
            self.address
        ))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    pub fn post(&self, path: &str, body: &Json) -> Answer {
        self.ask("POST", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    pub fn delete(&self, path: &str, body: &Json) -> Answer {
        self.ask("DELETE", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    /// Submits a form of the daemon's page.
    pub fn form(&self, path: &str, body: &str) -> Answer {
        let more = format!(
            "Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://{}\r\n",
            self.address
        );
        self.ask("POST", path, &more, body)
    }

    /// Runs a query and returns its rows.
    pub fn query(&self, sql: &str) -> Vec<Json> {
        let answer = self.post("/v1/query", &json!({ "sql": sql })).is(200);
        let mut lines = answer.lines();
        let last = lines.pop().unwrap();
        assert!(last["meta"].is_object(), "{answer:?}");
        lines.remove(0);
        lines
    }

    pub fn status(&self) -> Json {
        self.get("/v1/status").is(200).json()
    }

    /// Returns the status of the spec `x`.
    pub fn spec(&self) -> Json {
        let status = self.status();
        let specs = status["specs"].as_array().unwrap();
        specs.iter().find(|s| s["name"] == "x").cloned().unwrap_or(Json::Null)
    }

    /// Waits until the status of the spec `x` satisfies the predicate.
    pub fn until(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Json {
        let began = Instant::now();
        loop {
            let spec = self.spec();
            if holds(&spec) {
                return spec;
            }
            assert!(began.elapsed() < DEADLINE, "never {what}: {}", self.status());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the spec `x` is in the given state and no run is active.
    pub fn rests(&self, state: &str) -> Json {
        self.until(state, |spec| spec["state"] == state && spec["run"].is_null())
    }

    /// Sends the signal with this name.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = std::process::Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits for the daemon to exit. Returns the exit code, or -1 after a signal.
    pub fn ends(mut self) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(began.elapsed() < DEADLINE, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the server-sent events up to the first one that satisfies the predicate. Calls
    /// `after` once the stream is open.
    pub fn events_until(
        &self,
        wanted: impl Fn(&str, &Json) -> bool,
        after: impl FnOnce(),
    ) -> Vec<(String, Json)> {
        let mut stream = connect(&self.address);
        write!(stream, "GET /v1/runs/events HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        after();
        let (mut seen, mut event) = (Vec::new(), String::new());
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < DEADLINE, "the event never came: {seen:?}");
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the stream ended: {seen:?}");
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim().clone_into(&mut event);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                let data: Json = serde_json::from_str(data).unwrap();
                let found = wanted(&event, &data);
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

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn raw(address: &str, request: &str) -> Answer {
    let mut stream = connect(address);
    // The server may answer before it has read the whole request.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// Waits until the condition is true.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "never {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs `hqdl status`.
pub fn status(project: &Project, flags: &[&str]) -> Ended {
    project.hqdl(&[&["status"], flags].concat())
}
