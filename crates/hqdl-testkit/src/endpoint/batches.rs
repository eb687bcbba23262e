//! The endpoint's `/v1/files` and `/v1/batches`. It stores files, and answers a batch after a
//! number of polls. Both can fail.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use super::{Endpoint, Shared, answer_line, lock};

/// Outcome of a batch.
#[derive(Debug, Clone)]
pub enum Fate {
    /// It completes after this number of polls.
    Completes(usize),
    /// It expires after this number of answered requests.
    Expires(usize),
    /// It is cancelled after this number of answered requests.
    Cancelled(usize),
    /// It fails as a whole, with an error code and a message.
    Fails(&'static str, &'static str),
    /// It stays in progress until the outcome is changed.
    Stays,
}

/// Point at which the endpoint stops responding, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// On an upload, before the file is stored.
    BeforeUpload,
    /// On an upload, after the file is stored.
    AfterUpload,
    /// On a creation, before the batch is created.
    BeforeCreate,
    /// On a creation, after the batch is created.
    AfterCreate,
    /// On a poll of a batch.
    Poll,
    /// On a download of a file.
    Download,
}

struct File {
    id: String,
    name: String,
    bytes: Vec<u8>,
}

struct Batch {
    id: String,
    input: String,
    metadata: Json,
    fate: Fate,
    status: &'static str,
    output: Option<String>,
    errors: Option<String>,
    counts: (usize, usize, usize),
}

/// A random fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Answers with this status and does nothing.
    Status(u16),
    /// Performs the request, then answers with this status.
    StatusAfter(u16),
    /// Closes the connection and does nothing.
    Broken,
    /// Performs the request, then closes the connection.
    BrokenAfter,
    /// Sends a part of the response as if it were complete.
    RowBatch,
    /// Closes the connection in the middle of the response.
    BrokenOff,
    /// Sends an unrelated response.
    Nonsense,
}

/// Random faults for a share of the requests for files and batches.
struct Chance {
    chance: fastrand::Rng,
    part: f64,
}

impl Chance {
    fn strikes(&mut self) -> Option<(Trouble, f64)> {
        let all = [
            Trouble::Status(500),
            Trouble::Status(503),
            Trouble::Status(429),
            Trouble::StatusAfter(500),
            Trouble::StatusAfter(502),
            Trouble::Broken,
            Trouble::BrokenAfter,
            Trouble::RowBatch,
            Trouble::BrokenOff,
            Trouble::Nonsense,
        ];
        let strikes = self.chance.f64() < self.part;
        strikes.then(|| (all[self.chance.usize(..all.len())], self.chance.f64()))
    }
}

/// Files and batches of the endpoint.
#[derive(Default)]
pub struct Batches {
    files: Vec<File>,
    made: Vec<Batch>,
    fates: VecDeque<Fate>,
    silence: Option<Silence>,
    silent: bool,
    refusal: Option<(&'static str, u16)>,
    /// Method and path of every request.
    log: Vec<String>,
    uploads: usize,
    /// Number of batches per page of the list.
    page: Option<usize>,
    /// Status for the next creation, although the batch is created.
    lie: Option<u16>,
    chance: Option<Chance>,
}

impl Endpoint {
    /// Makes this share of all requests for files and batches fail at random from now on.
    pub fn trouble(&self, seed: u64, part: f64) {
        let chance = fastrand::Rng::with_seed(seed);
        lock(&self.shared.batches).chance = Some(Chance { chance, part });
    }

    /// Sets the outcome of the next batch without one.
    pub fn fate(&self, fate: Fate) -> &Self {
        lock(&self.shared.batches).fates.push_back(fate);
        self
    }

    /// Stops responding once, at the given point.
    pub fn silence(&self, at: Silence) {
        let mut batches = lock(&self.shared.batches);
        batches.silence = Some(at);
        batches.silent = false;
    }

    /// Waits until the endpoint has stopped responding.
    pub fn wait_for_silence(&self) {
        self.wait_until(|b| b.silent);
    }

    /// Waits until batches were polled this often.
    pub fn wait_for_polls(&self, polls: usize) {
        self.wait_until(|b| {
            b.log.iter().filter(|l| l.starts_with("GET batches/")).count() >= polls
        });
    }

    fn wait_until(&self, done: impl Fn(&Batches) -> bool) {
        let began = Instant::now();
        while !done(&lock(&self.shared.batches)) {
            assert!(began.elapsed() < Duration::from_secs(120), "it never came to that");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Rejects requests whose method and path start with `beginning`.
    pub fn refuse(&self, beginning: &'static str, status: u16) {
        lock(&self.shared.batches).refusal = Some((beginning, status));
    }

    /// Stops rejecting requests, and completes batches that stay in progress.
    pub fn relent(&self) {
        let mut batches = lock(&self.shared.batches);
        batches.refusal = None;
        for batch in &mut batches.made {
            if matches!(batch.fate, Fate::Stays) {
                batch.fate = Fate::Completes(0);
            }
        }
    }

    /// Answers the next creation with this status, although the batch is created.
    pub fn lie_about_creation(&self, status: u16) {
        lock(&self.shared.batches).lie = Some(status);
    }

    /// Sets the page size of the list of batches.
    pub fn page(&self, page: usize) {
        lock(&self.shared.batches).page = Some(page);
    }

    /// Adds a batch of another program.
    pub fn foreign_batch(&self) {
        let mut batches = lock(&self.shared.batches);
        let id = format!("batch_{}", batches.made.len() + 1);
        batches.made.push(Batch {
            id,
            input: String::new(),
            metadata: json!({ "hqdl": "somebody else's" }),
            fate: Fate::Stays,
            status: "in_progress",
            output: None,
            errors: None,
            counts: (0, 0, 0),
        });
    }

    /// Deletes all batches.
    pub fn forget_batches(&self) {
        lock(&self.shared.batches).made.clear();
    }

    /// Returns the number of uploaded files.
    pub fn uploads(&self) -> usize {
        lock(&self.shared.batches).uploads
    }

    /// Returns the number of requests whose method and path start with `beginning`.
    pub fn calls(&self, beginning: &str) -> usize {
        lock(&self.shared.batches).log.iter().filter(|l| l.starts_with(beginning)).count()
    }

    /// Returns the lines of every created batch.
    pub fn created(&self) -> Vec<Vec<Json>> {
        let batches = lock(&self.shared.batches);
        batches.made.iter().map(|b| batches.lines(&b.input)).collect()
    }

    /// Runs a batch file as if a user had submitted it. Returns the output lines and the error
    /// lines.
    pub fn run_file(&self, text: &str) -> (String, String) {
        let (mut output, mut errors) = (String::new(), String::new());
        for line in text.lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            let (status, body) = answer_line(&self.shared, &line["body"]);
            let to = if status == 200 { &mut output } else { &mut errors };
            to.push_str(&format!("{}\n", answered(&line, status, &body)));
        }
        (output, errors)
    }
}

impl Batches {
    fn lines(&self, file: &str) -> Vec<Json> {
        let file = self.files.iter().find(|f| f.id == file);
        let text = file.map(|f| String::from_utf8_lossy(&f.bytes).into_owned()).unwrap_or_default();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    fn keep(&mut self, name: &str, bytes: Vec<u8>) -> String {
        let id = format!("file-{}", self.files.len() + 1);
        self.files.push(File { id: id.clone(), name: name.to_owned(), bytes });
        id
    }

    /// Returns true if the endpoint stops responding at this point.
    fn falls_silent(&mut self, at: Silence) -> bool {
        let now = self.silence == Some(at);
        if now {
            self.silence = None;
            self.silent = true;
        }
        now
    }
}

fn answered(line: &Json, status: u16, body: &Json) -> Json {
    json!({
        "id": "batch_req_test", "custom_id": line["custom_id"], "error": null,
        "response": { "status_code": status, "request_id": "r", "body": body },
    })
}

fn batch_json(batch: &Batch) -> Json {
    let errors = match batch.fate {
        Fate::Fails(code, message) if batch.status == "failed" => {
            json!({ "object": "list", "data": [{ "code": code, "message": message, "line": null }] })
        }
        _ => Json::Null,
    };
    json!({
        "id": batch.id, "object": "batch", "endpoint": "/v1/chat/completions", "errors": errors,
        "input_file_id": batch.input, "completion_window": "24h", "status": batch.status,
        "output_file_id": batch.output, "error_file_id": batch.errors, "created_at": 1,
        "request_counts": { "total": batch.counts.0, "completed": batch.counts.1, "failed": batch.counts.2 },
        "metadata": batch.metadata,
    })
}

/// Advances a batch by one poll.
fn advance(shared: &Shared, at: usize) {
    let (fate, status, input) = {
        let batches = lock(&shared.batches);
        let batch = &batches.made[at];
        (batch.fate.clone(), batch.status, batch.input.clone())
    };
    if !matches!(status, "validating" | "in_progress") {
        return;
    }
    let lines = lock(&shared.batches).lines(&input);
    let (status, most, rest) = match fate {
        Fate::Stays => ("in_progress", None, ""),
        Fate::Completes(0) => ("completed", Some(usize::MAX), ""),
        Fate::Completes(n) => {
            lock(&shared.batches).made[at].fate = Fate::Completes(n - 1);
            ("in_progress", None, "")
        }
        Fate::Expires(n) => ("expired", Some(n), "batch_expired"),
        Fate::Cancelled(n) => ("cancelled", Some(n), "batch_cancelled"),
        Fate::Fails(..) => ("failed", None, ""),
    };
    let (mut output, mut errors) = (String::new(), String::new());
    let mut counts = (lines.len(), 0, 0);
    if let Some(most) = most {
        // Answer in another order, as real endpoints do.
        for (n, line) in lines.iter().enumerate().rev() {
            if n >= most {
                let line = json!({
                    "id": "batch_req_test", "custom_id": line["custom_id"], "response": null,
                    "error": { "code": rest, "message": "This request could not be executed before the completion window expired." },
                });
                errors.push_str(&format!("{line}\n"));
                counts.2 += 1;
                continue;
            }
            let (status, body) = answer_line(shared, &line["body"]);
            let line = format!("{}\n", answered(line, status, &body));
            if status == 200 {
                output.push_str(&line);
                counts.1 += 1;
            } else {
                errors.push_str(&line);
                counts.2 += 1;
            }
        }
    }
    let mut batches = lock(&shared.batches);
    let output = (!output.is_empty()).then(|| batches.keep("output", output.into_bytes()));
    let errors = (!errors.is_empty()).then(|| batches.keep("errors", errors.into_bytes()));
    let batch = &mut batches.made[at];
    batch.status = status;
    batch.output = output;
    batch.errors = errors;
    batch.counts = counts;
}

/// Returns the name and content of the file in a form.
fn form(bytes: &[u8]) -> (String, Vec<u8>) {
    let find = |needle: &[u8], from: usize| {
        bytes[from..].windows(needle.len()).position(|w| w == needle).map(|at| from + at).unwrap()
    };
    let named = find(b"filename=\"", 0) + 10;
    let name = String::from_utf8_lossy(&bytes[named..find(b"\"", named)]).into_owned();
    let begin = find(b"\r\n\r\n", named) + 4;
    let boundary = &bytes[..find(b"\r\n", 0)];
    let end = find(boundary, begin) - 2;
    assert!(bytes.ends_with(b"--\r\n"), "the form is whole");
    (name, bytes[begin..end].to_vec())
}

async fn forever() -> Response {
    tokio::time::sleep(Duration::from_secs(600)).await;
    StatusCode::OK.into_response()
}

/// Answers a request for files or batches, possibly with a random fault.
pub async fn answer(
    shared: &Shared,
    method: &Method,
    path: &str,
    query: Option<&str>,
    bytes: &[u8],
) -> Response {
    let struck = lock(&shared.batches).chance.as_mut().and_then(Chance::strikes);
    let broken = || std::panic::resume_unwind(Box::new("broken"));
    let status = |status| (StatusCode::from_u16(status).unwrap(), "trouble").into_response();
    match struck {
        Some((Trouble::Status(code), _)) => return status(code),
        Some((Trouble::Broken, _)) => broken(),
        _ => {}
    }
    let response = calm(shared, method, path, query, bytes).await;
    let Some((trouble, part)) = struck else { return response };
    if trouble == Trouble::BrokenAfter {
        broken();
    }
    if let Trouble::StatusAfter(code) = trouble {
        return status(code);
    }
    if trouble == Trouble::Nonsense {
        return "<html>It works!</html>".into_response();
    }
    let whole = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let cut = whole.slice(..(whole.len() as f64 * part) as usize);
    if trouble == Trouble::RowBatch {
        return cut.into_response();
    }
    let pieces = [Ok(cut), Err(std::io::Error::other("broken off"))];
    axum::body::Body::from_stream(futures_util::stream::iter(pieces)).into_response()
}

async fn calm(
    shared: &Shared,
    method: &Method,
    path: &str,
    query: Option<&str>,
    bytes: &[u8],
) -> Response {
    let call = format!("{method} {path}");
    let error = |status: u16, message: &str| {
        let body = json!({ "error": { "message": message, "type": "invalid_request_error" } });
        (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
    };
    let ok = |json: Json| axum::Json(json).into_response();
    {
        let mut batches = lock(&shared.batches);
        batches.log.push(call.clone());
        if let Some((beginning, status)) = batches.refusal
            && call.starts_with(beginning)
        {
            return error(status, "refused");
        }
    }
    let parts: Vec<&str> = path.split('/').collect();
    match (method.as_str(), parts.as_slice()) {
        ("POST", ["files"]) => {
            if lock(&shared.batches).falls_silent(Silence::BeforeUpload) {
                return forever().await;
            }
            let (name, bytes) = form(bytes);
            let (id, silent) = {
                let mut batches = lock(&shared.batches);
                batches.uploads += 1;
                (batches.keep(&name, bytes), batches.falls_silent(Silence::AfterUpload))
            };
            if silent {
                return forever().await;
            }
            ok(json!({ "id": id, "object": "file", "filename": name, "purpose": "batch" }))
        }
        ("GET", ["files"]) => {
            let batches = lock(&shared.batches);
            let files: Vec<Json> = batches
                .files
                .iter()
                .map(|f| json!({ "id": f.id, "filename": f.name, "bytes": f.bytes.len() }))
                .collect();
            ok(json!({ "object": "list", "data": files, "has_more": false }))
        }
        ("DELETE", ["files", id]) => {
            lock(&shared.batches).files.retain(|f| f.id != *id);
            ok(json!({ "id": id, "deleted": true }))
        }
        ("GET", ["files", id, "content"]) => {
            if lock(&shared.batches).falls_silent(Silence::Download) {
                return forever().await;
            }
            let batches = lock(&shared.batches);
            match batches.files.iter().find(|f| f.id == *id) {
                Some(file) => file.bytes.clone().into_response(),
                None => error(404, "no such file"),
            }
        }
        ("POST", ["batches"]) => {
            if lock(&shared.batches).falls_silent(Silence::BeforeCreate) {
                return forever().await;
            }
            let asked: Json = serde_json::from_slice(bytes).unwrap();
            let (json, silent, lie) = {
                let mut batches = lock(&shared.batches);
                let fate = batches.fates.pop_front().unwrap_or(Fate::Completes(1));
                let batch = Batch {
                    id: format!("batch_{}", batches.made.len() + 1),
                    input: asked["input_file_id"].as_str().unwrap().to_owned(),
                    metadata: asked["metadata"].clone(),
                    fate,
                    status: "validating",
                    output: None,
                    errors: None,
                    counts: (0, 0, 0),
                };
                let json = batch_json(&batch);
                batches.made.push(batch);
                let lie = batches.lie.take();
                (json, batches.falls_silent(Silence::AfterCreate), lie)
            };
            if silent {
                return forever().await;
            }
            match lie {
                Some(status) => error(status, "something went wrong"),
                None => ok(json),
            }
        }
        ("GET", ["batches"]) => {
            let batches = lock(&shared.batches);
            let after = query.and_then(|q| q.split("after=").nth(1));
            // Newest first.
            let mut all: Vec<Json> = batches.made.iter().rev().map(batch_json).collect();
            if let Some(at) = after.and_then(|a| all.iter().position(|b| b["id"] == a)) {
                all.drain(..=at);
            }
            let page = batches.page.unwrap_or(100);
            let more = all.len() > page;
            all.truncate(page);
            ok(json!({ "object": "list", "data": all, "has_more": more }))
        }
        ("GET", ["batches", id]) => {
            if lock(&shared.batches).falls_silent(Silence::Poll) {
                return forever().await;
            }
            let at = lock(&shared.batches).made.iter().position(|b| b.id == *id);
            let Some(at) = at else { return error(404, "no such batch") };
            advance(shared, at);
            let json = batch_json(&lock(&shared.batches).made[at]);
            ok(json)
        }
        _ => error(404, "no such path"),
    }
}
