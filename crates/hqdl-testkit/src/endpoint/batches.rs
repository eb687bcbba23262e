//! The endpoint's `/v1/files`, `/v1/batches` and `/v1/messages/batches`. It stores files, and
//! answers a batch after a number of polls. Both can fail.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use super::apis::Api;
use super::{Endpoint, Shared, answer_line, lock_mutex};

/// Outcome of a batch.
#[derive(Debug, Clone)]
pub enum BatchOutcome {
    /// It completes after this number of polls.
    Completed(usize),
    /// It expires after this number of answered requests.
    Expired(usize),
    /// It is cancelled after this number of answered requests.
    Cancelled(usize),
    /// It fails as a whole, with an error code and a message.
    Failed(&'static str, &'static str),
    /// It stays in progress until the outcome is changed.
    InProgress,
}

/// Point at which the endpoint stops responding, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SilencePoint {
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
    api: Api,
    created_at: jiff::Timestamp,
    input: String,
    metadata: Json,
    outcome: BatchOutcome,
    status: &'static str,
    output: Option<String>,
    errors: Option<String>,
    counts: (usize, usize, usize),
}

/// A random fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransportFault {
    /// Answers with this status and does nothing.
    Status(u16),
    /// Performs the request, then answers with this status.
    StatusAfter(u16),
    /// Closes the connection and does nothing.
    ConnectionClosed,
    /// Performs the request, then closes the connection.
    ConnectionClosedAfter,
    /// Sends a part of the response as if it were complete.
    TruncatedBody,
    /// Closes the connection in the middle of the response.
    BrokenMidBody,
    /// Sends an unrelated response.
    Nonsense,
}

/// Random faults for a share of the requests for files and batches.
struct RandomFaults {
    random: fastrand::Rng,
    share: f64,
}

impl RandomFaults {
    fn next_fault(&mut self) -> Option<(TransportFault, f64)> {
        let all = [
            TransportFault::Status(500),
            TransportFault::Status(503),
            TransportFault::Status(429),
            TransportFault::StatusAfter(500),
            TransportFault::StatusAfter(502),
            TransportFault::ConnectionClosed,
            TransportFault::ConnectionClosedAfter,
            TransportFault::TruncatedBody,
            TransportFault::BrokenMidBody,
            TransportFault::Nonsense,
        ];
        let strikes = self.random.f64() < self.share;
        strikes.then(|| (all[self.random.usize(..all.len())], self.random.f64()))
    }
}

/// Files and batches of the endpoint.
#[derive(Default)]
pub struct Batches {
    files: Vec<File>,
    open: Vec<Batch>,
    outcomes: VecDeque<BatchOutcome>,
    silence_point: Option<SilencePoint>,
    is_silent: bool,
    rejection: Option<(&'static str, u16)>,
    /// Method and path of every request.
    log: Vec<String>,
    uploads: usize,
    /// Number of batches per page of the list.
    page_size: Option<usize>,
    /// Status for the next creation, although the batch is created.
    creation_status: Option<u16>,
    random_faults: Option<RandomFaults>,
}

impl Endpoint {
    /// Makes this share of all requests for files and batches fail at random from now on.
    pub fn add_random_faults(&self, seed: u64, share: f64) {
        let random = fastrand::Rng::with_seed(seed);
        lock_mutex(&self.shared.batches).random_faults = Some(RandomFaults { random, share });
    }

    /// Sets the outcome of the next batch without one.
    pub fn set_next_outcome(&self, fate: BatchOutcome) -> &Self {
        lock_mutex(&self.shared.batches).outcomes.push_back(fate);
        self
    }

    /// Stops responding once, at the given point.
    pub fn fall_silent_at(&self, point: SilencePoint) {
        let mut batches = lock_mutex(&self.shared.batches);
        batches.silence_point = Some(point);
        batches.is_silent = false;
    }

    /// Waits until the endpoint has stopped responding.
    pub fn wait_for_silence(&self) {
        self.wait_until(|b| b.is_silent);
    }

    /// Waits until batches were polled this often.
    pub fn wait_for_polls(&self, polls: usize) {
        self.wait_until(|b| {
            b.log.iter().filter(|l| l.starts_with("GET batches/")).count() >= polls
        });
    }

    fn wait_until(&self, is_done: impl Fn(&Batches) -> bool) {
        let started_at = Instant::now();
        while !is_done(&lock_mutex(&self.shared.batches)) {
            assert!(started_at.elapsed() < Duration::from_secs(120), "it never came to that");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Rejects requests whose method and path start with `beginning`.
    pub fn reject_requests(&self, beginning: &'static str, status: u16) {
        lock_mutex(&self.shared.batches).rejection = Some((beginning, status));
    }

    /// Stops rejecting requests, and completes batches that stay in progress.
    pub fn stop_rejecting(&self) {
        let mut batches = lock_mutex(&self.shared.batches);
        batches.rejection = None;
        for batch in &mut batches.open {
            if matches!(batch.outcome, BatchOutcome::InProgress) {
                batch.outcome = BatchOutcome::Completed(0);
            }
        }
    }

    /// Answers the next creation with this status, although the batch is created.
    pub fn lie_about_creation(&self, status: u16) {
        lock_mutex(&self.shared.batches).creation_status = Some(status);
    }

    /// Sets the page size of the list of batches.
    pub fn set_page_size(&self, page: usize) {
        lock_mutex(&self.shared.batches).page_size = Some(page);
    }

    /// Adds a batch of another program.
    pub fn foreign_batch(&self) {
        let mut batches = lock_mutex(&self.shared.batches);
        let id = format!("batch_{}", batches.open.len() + 1);
        batches.open.push(Batch {
            id,
            api: Api::Chat,
            created_at: jiff::Timestamp::now(),
            input: String::new(),
            metadata: json!({ "hqdl": "somebody else's" }),
            outcome: BatchOutcome::InProgress,
            status: "in_progress",
            output: None,
            errors: None,
            counts: (0, 0, 0),
        });
    }

    /// Deletes all batches.
    pub fn forget_batches(&self) {
        lock_mutex(&self.shared.batches).open.clear();
    }

    /// Returns the number of uploaded files.
    pub fn upload_count(&self) -> usize {
        lock_mutex(&self.shared.batches).uploads
    }

    /// Returns the number of requests whose method and path start with `beginning`.
    pub fn count_calls(&self, beginning: &str) -> usize {
        lock_mutex(&self.shared.batches).log.iter().filter(|l| l.starts_with(beginning)).count()
    }

    /// Returns the lines of every created batch.
    pub fn created_lines(&self) -> Vec<Vec<Json>> {
        let batches = lock_mutex(&self.shared.batches);
        batches.open.iter().map(|b| batches.file_lines(&b.input)).collect()
    }

    /// Runs a batch file as if a user had submitted it. Returns the output lines and the error
    /// lines.
    pub fn run_file(&self, text: &str) -> (String, String) {
        let (mut output, mut errors) = (String::new(), String::new());
        for line in text.lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            let api = Api::of_batch_line(&line);
            let (status, body) = answer_line(&self.shared, api, build_request_body(&line));
            let lines_out = if status == 200 { &mut output } else { &mut errors };
            lines_out.push_str(&format!("{}\n", output_line(api, &line, status, &body)));
        }
        (output, errors)
    }
}

impl Batches {
    fn file_lines(&self, file: &str) -> Vec<Json> {
        let file = self.files.iter().find(|f| f.id == file);
        let text = file.map(|f| String::from_utf8_lossy(&f.bytes).into_owned()).unwrap_or_default();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    fn store_file(&mut self, name: &str, bytes: Vec<u8>) -> String {
        let id = format!("file-{}", self.files.len() + 1);
        self.files.push(File { id: id.clone(), name: name.to_owned(), bytes });
        id
    }

    /// Returns true if the endpoint stops responding at this point.
    fn falls_silent(&mut self, point: SilencePoint) -> bool {
        let is_due = self.silence_point == Some(point);
        if is_due {
            self.silence_point = None;
            self.is_silent = true;
        }
        is_due
    }
}

fn build_request_body(line: &Json) -> &Json {
    line.get("body").unwrap_or(&line["params"])
}

fn output_line(api: Api, line: &Json, status: u16, body: &Json) -> Json {
    if api == Api::Messages {
        let result = if status == 200 {
            json!({ "type": "succeeded", "message": body })
        } else {
            json!({ "type": "errored", "error": body })
        };
        return json!({ "custom_id": line["custom_id"], "result": result });
    }
    json!({
        "id": "batch_req_test", "custom_id": line["custom_id"], "error": null,
        "response": { "status_code": status, "request_id": "r", "body": body },
    })
}

/// Returns a message batch. Its requests count as processing until it has ended.
fn message_batch_json(batch: &Batch) -> Json {
    let (total, succeeded, failed) = batch.counts;
    let has_ended = batch.output.is_some();
    let failure = match batch.status {
        "expired" => "expired",
        "cancelled" => "canceled",
        _ => "errored",
    };
    let mut counts = json!({
        "processing": if has_ended { 0 } else { total }, "succeeded": succeeded, "errored": 0,
        "expired": 0, "canceled": 0,
    });
    counts[failure] = failed.into();
    let time = batch.created_at.to_string();
    json!({
        "id": batch.id, "type": "message_batch", "archived_at": null, "cancel_initiated_at": null,
        "processing_status": if has_ended { "ended" } else { "in_progress" },
        "created_at": time, "expires_at": time, "ended_at": has_ended.then_some(time.clone()),
        "request_counts": counts,
        "results_url": has_ended.then(|| format!("http://127.0.0.1/v1/messages/batches/{}/results", batch.id)),
    })
}

fn batch_json(batch: &Batch) -> Json {
    if batch.api == Api::Messages {
        return message_batch_json(batch);
    }
    let errors = match batch.outcome {
        BatchOutcome::Failed(code, message) if batch.status == "failed" => {
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
fn advance_batch(shared: &Shared, index: usize) {
    let (outcome, status, input, api) = {
        let batches = lock_mutex(&shared.batches);
        let batch = &batches.open[index];
        (batch.outcome.clone(), batch.status, batch.input.clone(), batch.api)
    };
    if !matches!(status, "validating" | "in_progress") {
        return;
    }
    let lines = lock_mutex(&shared.batches).file_lines(&input);
    let (status, answered_limit, error_code) = match outcome {
        BatchOutcome::InProgress => ("in_progress", None, ""),
        BatchOutcome::Completed(0) => ("completed", Some(usize::MAX), ""),
        BatchOutcome::Completed(n) => {
            lock_mutex(&shared.batches).open[index].outcome = BatchOutcome::Completed(n - 1);
            ("in_progress", None, "")
        }
        BatchOutcome::Expired(n) => ("expired", Some(n), "batch_expired"),
        BatchOutcome::Cancelled(n) => ("cancelled", Some(n), "batch_cancelled"),
        BatchOutcome::Failed(..) => ("failed", None, ""),
    };
    let (mut output, mut errors) = (String::new(), String::new());
    let mut counts = (lines.len(), 0, 0);
    if let Some(answered_limit) = answered_limit {
        // Answer in another order, as real endpoints do.
        for (n, line) in lines.iter().enumerate().rev() {
            if n >= answered_limit {
                if api == Api::Messages {
                    let state = if error_code == "batch_expired" { "expired" } else { "canceled" };
                    let line =
                        json!({ "custom_id": line["custom_id"], "result": { "type": state } });
                    output.push_str(&format!("{line}\n"));
                    counts.2 += 1;
                    continue;
                }
                let line = json!({
                    "id": "batch_req_test", "custom_id": line["custom_id"], "response": null,
                    "error": { "code": error_code, "message": "This request could not be executed before the completion window expired." },
                });
                errors.push_str(&format!("{line}\n"));
                counts.2 += 1;
                continue;
            }
            let line_api = Api::of_batch_line(line);
            let (status, body) = answer_line(shared, line_api, build_request_body(line));
            let line = format!("{}\n", output_line(line_api, line, status, &body));
            if status == 200 {
                counts.1 += 1;
            } else {
                counts.2 += 1;
            }
            if status == 200 || api == Api::Messages {
                output.push_str(&line);
            } else {
                errors.push_str(&line);
            }
        }
    }
    let mut batches = lock_mutex(&shared.batches);
    let output = (!output.is_empty()).then(|| batches.store_file("output", output.into_bytes()));
    let errors = (!errors.is_empty()).then(|| batches.store_file("errors", errors.into_bytes()));
    let batch = &mut batches.open[index];
    batch.status = status;
    batch.output = output;
    batch.errors = errors;
    batch.counts = counts;
}

/// Returns the name and content of the file in a form.
fn parse_form(bytes: &[u8]) -> (String, Vec<u8>) {
    let find = |needle: &[u8], from: usize| {
        bytes[from..].windows(needle.len()).position(|w| w == needle).map(|at| from + at).unwrap()
    };
    let name_start = find(b"filename=\"", 0) + 10;
    let name = String::from_utf8_lossy(&bytes[name_start..find(b"\"", name_start)]).into_owned();
    let begin = find(b"\r\n\r\n", name_start) + 4;
    let boundary = &bytes[..find(b"\r\n", 0)];
    let end = find(boundary, begin) - 2;
    assert!(bytes.ends_with(b"--\r\n"), "the form is whole");
    (name, bytes[begin..end].to_vec())
}

async fn wait_forever() -> Response {
    tokio::time::sleep(Duration::from_secs(600)).await;
    StatusCode::OK.into_response()
}

/// Answers a request for files or batches, possibly with a random fault.
pub async fn answer_with_faults(
    shared: &Shared,
    method: &Method,
    path: &str,
    query: Option<&str>,
    bytes: &[u8],
) -> Response {
    let random_fault =
        lock_mutex(&shared.batches).random_faults.as_mut().and_then(RandomFaults::next_fault);
    let close_connection = || std::panic::resume_unwind(Box::new("broken"));
    let status = |status| (StatusCode::from_u16(status).unwrap(), "trouble").into_response();
    match random_fault {
        Some((TransportFault::Status(code), _)) => return status(code),
        Some((TransportFault::ConnectionClosed, _)) => close_connection(),
        _ => {}
    }
    let response = answer_request(shared, method, path, query, bytes).await;
    let Some((transport_fault, share)) = random_fault else { return response };
    if transport_fault == TransportFault::ConnectionClosedAfter {
        close_connection();
    }
    if let TransportFault::StatusAfter(code) = transport_fault {
        return status(code);
    }
    if transport_fault == TransportFault::Nonsense {
        return "<html>It works!</html>".into_response();
    }
    let full_body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let truncated = full_body.slice(..(full_body.len() as f64 * share) as usize);
    if transport_fault == TransportFault::TruncatedBody {
        return truncated.into_response();
    }
    let pieces = [Ok(truncated), Err(std::io::Error::other("broken off"))];
    axum::body::Body::from_stream(futures_util::stream::iter(pieces)).into_response()
}

async fn answer_request(
    shared: &Shared,
    method: &Method,
    path: &str,
    query: Option<&str>,
    bytes: &[u8],
) -> Response {
    let call = format!("{method} {path}");
    let api = if path.starts_with("messages/") { Api::Messages } else { Api::Chat };
    let error = |status: u16, message: &str| {
        let body = json!({ "error": { "message": message, "type": "invalid_request_error" } });
        (StatusCode::from_u16(status).unwrap(), axum::Json(api.to_error(body))).into_response()
    };
    let ok = |json: Json| axum::Json(json).into_response();
    {
        let mut batches = lock_mutex(&shared.batches);
        batches.log.push(call.clone());
        if let Some((beginning, status)) = batches.rejection
            && call.starts_with(beginning)
        {
            return error(status, "refused");
        }
    }
    let parts: Vec<&str> = path.split('/').collect();
    match (method.as_str(), parts.as_slice()) {
        ("POST", ["files"]) => {
            if lock_mutex(&shared.batches).falls_silent(SilencePoint::BeforeUpload) {
                return wait_forever().await;
            }
            let (name, bytes) = parse_form(bytes);
            let (id, is_silent) = {
                let mut batches = lock_mutex(&shared.batches);
                batches.uploads += 1;
                (batches.store_file(&name, bytes), batches.falls_silent(SilencePoint::AfterUpload))
            };
            if is_silent {
                return wait_forever().await;
            }
            ok(json!({ "id": id, "object": "file", "filename": name, "purpose": "batch" }))
        }
        ("GET", ["files"]) => {
            let batches = lock_mutex(&shared.batches);
            let files: Vec<Json> = batches
                .files
                .iter()
                .map(|f| json!({ "id": f.id, "filename": f.name, "bytes": f.bytes.len() }))
                .collect();
            ok(json!({ "object": "list", "data": files, "has_more": false }))
        }
        ("DELETE", ["files", id]) => {
            lock_mutex(&shared.batches).files.retain(|f| f.id != *id);
            ok(json!({ "id": id, "deleted": true }))
        }
        ("GET", ["files", id, "content"]) => {
            if lock_mutex(&shared.batches).falls_silent(SilencePoint::Download) {
                return wait_forever().await;
            }
            let batches = lock_mutex(&shared.batches);
            match batches.files.iter().find(|f| f.id == *id) {
                Some(file) => file.bytes.clone().into_response(),
                None => error(404, "no such file"),
            }
        }
        ("GET", ["messages", "batches", id, "results"]) => {
            if lock_mutex(&shared.batches).falls_silent(SilencePoint::Download) {
                return wait_forever().await;
            }
            let batches = lock_mutex(&shared.batches);
            let batch = batches.open.iter().find(|b| b.id == *id);
            let file =
                batch.and_then(|b| batches.files.iter().find(|f| Some(&f.id) == b.output.as_ref()));
            file.map_or_else(|| error(404, "no results"), |file| file.bytes.clone().into_response())
        }
        ("POST", ["batches"] | ["messages", "batches"]) => {
            if lock_mutex(&shared.batches).falls_silent(SilencePoint::BeforeCreate) {
                return wait_forever().await;
            }
            let requested: Json = serde_json::from_slice(bytes).unwrap();
            let (json, is_silent, creation_status) = {
                let mut batches = lock_mutex(&shared.batches);
                let outcome = batches.outcomes.pop_front().unwrap_or(BatchOutcome::Completed(1));
                let id = format!("batch_{}", batches.open.len() + 1);
                let input = match requested["requests"].as_array() {
                    Some(lines) => {
                        let lines: Vec<String> = lines.iter().map(Json::to_string).collect();
                        let text = lines.join("\n");
                        batches.store_file("requests", text.into_bytes())
                    }
                    None => requested["input_file_id"].as_str().unwrap().to_owned(),
                };
                let line_count = batches.file_lines(&input).len();
                let batch = Batch {
                    id,
                    api,
                    created_at: jiff::Timestamp::now(),
                    input,
                    metadata: requested["metadata"].clone(),
                    outcome,
                    status: "validating",
                    output: None,
                    errors: None,
                    counts: (if api == Api::Messages { line_count } else { 0 }, 0, 0),
                };
                let json = batch_json(&batch);
                batches.open.push(batch);
                let creation_status = batches.creation_status.take();
                (json, batches.falls_silent(SilencePoint::AfterCreate), creation_status)
            };
            if is_silent {
                return wait_forever().await;
            }
            match creation_status {
                Some(status) => error(status, "something went wrong"),
                None => ok(json),
            }
        }
        ("GET", ["batches"] | ["messages", "batches"]) => {
            let batches = lock_mutex(&shared.batches);
            let after = query.and_then(|q| {
                q.split(if api == Api::Messages { "after_id=" } else { "after=" }).nth(1)
            });
            // Newest first.
            let mut all: Vec<Json> = batches.open.iter().rev().map(batch_json).collect();
            if let Some(index) = after.and_then(|a| all.iter().position(|b| b["id"] == a)) {
                all.drain(..=index);
            }
            let page_size = batches.page_size.unwrap_or(100);
            let has_more = all.len() > page_size;
            all.truncate(page_size);
            let last = all.last().map_or(Json::Null, |batch| batch["id"].clone());
            ok(json!({ "object": "list", "data": all, "has_more": has_more, "last_id": last }))
        }
        ("GET", ["batches", id] | ["messages", "batches", id]) => {
            if lock_mutex(&shared.batches).falls_silent(SilencePoint::Poll) {
                return wait_forever().await;
            }
            let index = lock_mutex(&shared.batches).open.iter().position(|b| b.id == *id);
            let Some(index) = index else { return error(404, "no such batch") };
            advance_batch(shared, index);
            let json = batch_json(&lock_mutex(&shared.batches).open[index]);
            ok(json)
        }
        _ => error(404, "no such path"),
    }
}
