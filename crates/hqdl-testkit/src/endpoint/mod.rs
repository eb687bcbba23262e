//! A local endpoint of several APIs with known answers and configurable faults.
//!
//! It parses prompts (`Question::read`), answers them with a function of column and key, and
//! records all requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use hqdl_prompt::Question;
use hqdl_prompt::{AskedColumn, AskedRow};
use hqdl_spec::Format;
use hqdl_spec::media::{KINDS, MediaInfo, MediaTokens};
use hqdl_values::tokens::Tokenizer;
use serde_json::{Value as Json, json};

pub mod apis;
pub mod batches;
mod drafts;
mod stream;

use apis::Api;
use batches::Batches;

/// Returns the value of a cell from its column and row; null means unknown.
type AnswerFn = dyn Fn(&AskedColumn, &AskedRow) -> Json + Send + Sync;
/// Returns true for the requests that a fault affects.
type FaultFilter = dyn Fn(&Question) -> bool + Send + Sync;

/// Returns the `usage` of a response, computed from the request's body and the true numbers of
/// input and output tokens.
type UsageFn = dyn Fn(&Json, u64, u64) -> Json + Send + Sync;

/// Returns the log-probability of a token from the content before it and its text.
type LogprobFn = dyn Fn(&str, &str) -> f64 + Send + Sync;

/// A fault of the endpoint.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answer after this delay.
    Latency(Duration),
    /// A status with headers and a body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// 429 with `Retry-After` as a date this far in the future, in whole seconds.
    TooManyUntil(Duration),
    /// 413 if the request has more rows than this.
    TooLarge(usize),
    /// 400 `context_length_exceeded` if the request has more rows than this.
    ContextLength(usize),
    /// The connection closes before the response.
    Dropped,
    /// The connection closes in the middle of the body.
    DroppedMidBody,
    /// The body is sent in small chunks.
    SlowDrip,
    /// 200 with this content type and body instead of a completion.
    Body(&'static str, &'static str),
    /// A completion with empty content.
    Empty,
    /// Prose around the answer.
    Prose,
    /// The answer in a code fence.
    Fence,
    /// The answer truncated in the middle, with `finish_reason` `length`.
    Truncated,
    /// Wrong answers besides the right ones, or a truncated answer; the seed and the request select
    /// which.
    MixedDrafts(u64),
    /// `finish_reason` `content_filter`.
    ContentFilter,
    /// A refusal in the `refusal` field.
    Refusal,
    /// A refusal in the content.
    RefusalInWords,
    /// The rows in another order.
    Permuted,
    /// Every second row is missing.
    MissingRows,
    /// Only the first row is there.
    FirstRowOnly,
    /// Every row twice.
    DuplicatedRows,
    /// Every row twice, with different values.
    ContradictingRows,
    /// Row numbers start at 2.
    Renumbered,
    /// Every row has the key of the next one.
    SwappedKeys,
    /// Rows that were not requested.
    ForeignRows,
    /// A column that was not requested, after the others.
    ForeignColumn,
    /// A column that was not requested, before the others.
    ForeignColumnFirst,
    /// The last column is missing.
    MissingColumn,
    /// The second-to-last column is missing.
    MissingColumnBefore,
    /// Values that are not in the value list.
    OutsideList,
    /// No `usage` in the response.
    NoUsage,
    /// This value for `usage`; "in", "out" and "total" are replaced with the true numbers.
    Usage(Json),
    /// A status with a meaningless body of this many bytes.
    Huge(u16, usize),
    /// Runaway output: the model writes until it reaches its cap or the client disconnects.
    Runaway(RunawayOutput),
    /// Runaway output from an endpoint that never streams.
    RunawayUnstreamed(RunawayOutput),
    /// A fault of the stream.
    Stream(StreamFault),
    /// 400 with this message if the request asks for a stream.
    RejectsStream(&'static str),
    /// 400 if the request has one of these parameters.
    RejectsParameters(&'static [&'static str]),
    /// 400 if the request lacks this parameter.
    RequiresParameter(&'static str),
    /// This many tokens of hidden reasoning before the answer, counted toward the cap.
    HiddenReasoning(u64),
}

/// Kind of runaway output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunawayOutput {
    /// The correct answer, followed by a repetition of its end.
    Repetition,
    /// Half of the correct answer, followed by rows that were not requested.
    UnknownRows,
    /// Endless words without repetition.
    Prose,
    /// Endless words that exceed every cap.
    ExceedsCap,
}

/// A fault of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// The response is a complete completion instead of a stream.
    NotStreamed,
    /// The stream ends in the middle of an event.
    CutMidEvent,
    /// The stream ends without `[DONE]`.
    NoDone,
    /// The stream ends without the usage chunk.
    NoUsageChunk,
    /// An error event in the middle.
    Error,
    /// A refusal by Azure's filter in the middle.
    Filter,
    /// An event in the middle that is not JSON.
    Garbage,
    /// The whole answer in one event, as a message.
    OneMessage,
    /// Comments, other fields and empty lines between the events.
    Noise,
    /// Usage in every event, for the content so far.
    UsageEverywhere,
    /// The stream stays open after the answer.
    StaysOpen,
}

impl Fault {
    /// Creates a status fault with `OpenAI`'s error body.
    pub fn status(status: u16, message: &str, code: &str) -> Self {
        let body = json!({ "error": { "message": message, "type": "test", "code": code } });
        Self::Status(status, vec![("content-type", "application/json".into())], body.to_string())
    }

    /// Creates Azure's rejection of a prompt by its content filter.
    pub fn azure_filter() -> Self {
        let body = json!({ "error": {
            "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
            "type": null, "param": "prompt", "code": "content_filter", "status": 400,
            "innererror": { "code": "ResponsibleAIPolicyViolation",
                            "content_filter_result": { "violence": { "filtered": true } } },
        } });
        Self::Status(400, vec![("content-type", "application/json".into())], body.to_string())
    }

    /// Creates Anthropic's error for an overloaded API.
    pub fn overloaded() -> Self {
        let error = json!({ "error": { "message": "Overloaded", "type": "overloaded_error" } });
        let body = Api::Messages.to_error(error).to_string();
        Self::Status(529, vec![("content-type", "application/json".into())], body)
    }

    /// Creates a 429 fault with a header.
    pub fn too_many(header: &'static str, value: impl Into<String>) -> Self {
        let Self::Status(status, mut headers, body) =
            Self::status(429, "Rate limit reached", "rate_limit_exceeded")
        else {
            unreachable!()
        };
        headers.push((header, value.into()));
        Self::Status(status, headers, body)
    }

    /// Creates a 429 fault with `Retry-After` as a date this far in the future.
    fn too_many_until(wait: Duration) -> Self {
        let timestamp = jiff::Timestamp::try_from(SystemTime::now() + wait).unwrap();
        let date =
            jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&timestamp);
        Self::too_many("retry-after", date.unwrap())
    }
}

/// Frequency of a fault.
#[derive(Debug, Clone, Copy)]
pub enum Frequency {
    /// At the first request.
    Once,
    /// At every request.
    Always,
    /// At every n-th request.
    Every(usize),
    /// At the first n requests.
    First(usize),
}

struct FaultPolicy {
    fault: Fault,
    frequency: Frequency,
    filter: Box<FaultFilter>,
    seen: usize,
}

impl FaultPolicy {
    fn should_apply(&mut self, question: &Question) -> bool {
        if !(self.filter)(question) {
            return false;
        }
        let n = self.seen;
        self.seen += 1;
        match self.frequency {
            Frequency::Once => n == 0,
            Frequency::Always => true,
            Frequency::Every(every) => (n + 1).is_multiple_of(every),
            Frequency::First(first) => n < first,
        }
    }
}

/// A received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Time of receipt.
    pub received_at: Instant,
    /// Path and query.
    pub uri: String,
    pub headers: Vec<(String, String)>,
    pub body: Json,
    /// The parsed question.
    pub question: Question,
    /// Whether it was answered completely, without a fault that hides the answer.
    pub is_answered: bool,
}

impl Request {
    /// Returns the key and column of each requested cell.
    pub fn requested_cells(&self) -> Vec<(Vec<Json>, String)> {
        let columns = &self.question.columns;
        self.question
            .rows
            .iter()
            .flat_map(|r| columns.iter().map(|c| (r.key.clone(), c.name.clone())))
            .collect()
    }
}

pub struct Shared {
    pub batches: Mutex<Batches>,
    answer_fn: Box<AnswerFn>,
    requests: Mutex<Vec<Request>>,
    faults: Mutex<Vec<FaultPolicy>>,
    pub usage: Mutex<(u64, u64)>,
    usage_fn: Mutex<Option<Arc<UsageFn>>>,
    logprob_fn: Mutex<Option<Arc<LogprobFn>>>,
    /// Time and tokens of every answer.
    billed_answers: Mutex<Vec<(Instant, u64)>>,
    /// Headers of every response.
    response_headers: Mutex<Vec<(&'static str, String)>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

/// The endpoint; it stops on drop.
pub struct Endpoint {
    address: SocketAddr,
    pub shared: Arc<Shared>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

pub fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    /// Starts an endpoint that answers with `answer_fn`, a function of column name and key.
    pub fn start_with(answer_fn: impl Fn(&str, &[Json]) -> Json + Send + Sync + 'static) -> Self {
        Self::start_answering(move |column, row| answer_fn(&column.name, &row.key))
    }

    /// Starts an endpoint that answers with `answer_fn`, a function of the column with its question
    /// and the row with its context.
    pub fn start_answering(
        answer_fn: impl Fn(&AskedColumn, &AskedRow) -> Json + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            batches: Mutex::default(),
            answer_fn: Box::new(answer_fn),
            requests: Mutex::default(),
            faults: Mutex::default(),
            usage: Mutex::default(),
            usage_fn: Mutex::default(),
            logprob_fn: Mutex::default(),
            billed_answers: Mutex::default(),
            response_headers: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
        });
        let header_layer =
            axum::middleware::map_response_with_state(Arc::clone(&shared), add_response_headers);
        let app = axum::Router::new()
            .fallback(answer_request)
            .layer(header_layer)
            .with_state(Arc::clone(&shared));
        let (address, stop) = crate::loopback::serve_app(app);
        Self { address, shared, stop: Some(stop) }
    }

    /// Returns the base URL.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns all requests so far.
    pub fn received_requests(&self) -> Vec<Request> {
        lock_mutex(&self.shared.requests).clone()
    }

    /// Returns the requests to the model with this name.
    pub fn requests_to(&self, model: &str) -> Vec<Request> {
        let requests = lock_mutex(&self.shared.requests);
        requests.iter().filter(|r| r.body["model"] == model).cloned().collect()
    }

    /// Returns the number of requests so far.
    pub fn request_count(&self) -> usize {
        lock_mutex(&self.shared.requests).len()
    }

    /// Returns the cells requested since the `from`-th request.
    pub fn cells_since(&self, from: usize) -> Vec<(Vec<Json>, String)> {
        self.received_requests()[from..].iter().flat_map(Request::requested_cells).collect()
    }

    /// Waits until this many requests have arrived.
    pub fn wait_for(&self, requests: usize) {
        let started_at = Instant::now();
        while self.request_count() < requests {
            assert!(started_at.elapsed() < Duration::from_secs(120), "no request came");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Adds a fault. If several faults apply to a request, the first one is used; latencies are
    /// added.
    pub fn add_fault(&self, fault: Fault, frequency: Frequency) -> &Self {
        self.add_fault_where(fault, frequency, |_| true)
    }

    /// Adds a fault for the requests that satisfy `filter`.
    pub fn add_fault_where(
        &self,
        fault: Fault,
        frequency: Frequency,
        filter: impl Fn(&Question) -> bool + Send + Sync + 'static,
    ) -> &Self {
        let policy = FaultPolicy { fault, frequency, filter: Box::new(filter), seen: 0 };
        lock_mutex(&self.shared.faults).push(policy);
        self
    }

    /// Sets the function that computes the `usage` of each response; null means no usage. The
    /// function receives the request's body and the true numbers of input and output tokens. It is
    /// also called for responses that fail.
    pub fn set_usage_fn(&self, meter: impl Fn(&Json, u64, u64) -> Json + Send + Sync + 'static) {
        *lock_mutex(&self.shared.usage_fn) = Some(Arc::new(meter));
    }

    /// Sets the function that computes the log-probability of each token, from the content before
    /// it and its text. Without it, the endpoint ignores requests for log-probabilities.
    pub fn set_logprob_fn(&self, logprob: impl Fn(&str, &str) -> f64 + Send + Sync + 'static) {
        *lock_mutex(&self.shared.logprob_fn) = Some(Arc::new(logprob));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        lock_mutex(&self.shared.faults).clear();
    }

    /// Adds this header to every response from now on.
    pub fn set_response_header(&self, header: &'static str, value: impl Into<String>) {
        let mut response_headers = lock_mutex(&self.shared.response_headers);
        response_headers.retain(|(name, _)| *name != header);
        response_headers.push((header, value.into()));
    }

    /// Returns the maximum number of concurrent requests so far.
    pub fn most_in_flight(&self) -> usize {
        self.shared.most_in_flight.load(Ordering::SeqCst)
    }

    /// Returns the time and tokens of every answer so far.
    pub fn billed_answers(&self) -> Vec<(Instant, u64)> {
        lock_mutex(&self.shared.billed_answers).clone()
    }

    /// Returns the tokens billed so far: input and output.
    pub fn billed_tokens(&self) -> (u64, u64) {
        *lock_mutex(&self.shared.usage)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.take();
    }
}

/// Counts a request while this value exists.
struct InFlightCounter(Arc<Shared>);

impl InFlightCounter {
    fn new(shared: &Arc<Shared>) -> Self {
        let now = shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_in_flight.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for InFlightCounter {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn add_response_headers(
    State(shared): State<Arc<Shared>>,
    mut response: Response,
) -> Response {
    for (name, value) in &*lock_mutex(&shared.response_headers) {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

async fn answer_request(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let _counted = InFlightCounter::new(&shared);
    let api = Api::of_path(uri.path());
    let error = |status: StatusCode, message: &str| {
        let body = json!({ "error": { "message": message, "type": "invalid_request_error" } });
        (status, axum::Json(api.unwrap_or(Api::Chat).to_error(body))).into_response()
    };
    let Some(api) = api else {
        let Some(path) = uri.path().strip_prefix("/v1/") else {
            return error(StatusCode::NOT_FOUND, "no such path");
        };
        return batches::answer_with_faults(&shared, &method, path, uri.query(), &bytes).await;
    };
    let Ok(body) = serde_json::from_slice::<Json>(&bytes) else {
        return error(StatusCode::BAD_REQUEST, "not JSON");
    };
    let chat = api.to_chat_request(&body);
    let Some(question) = Question::parse(message_text(&chat, 0), message_text(&chat, 1)) else {
        return error(StatusCode::BAD_REQUEST, "not a prompt");
    };
    let (latency, fault) = next_fault(&shared, &question);
    let request_index = {
        let mut requests = lock_mutex(&shared.requests);
        requests.push(Request {
            received_at: Instant::now(),
            uri: uri.to_string(),
            headers: headers
                .iter()
                .map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned()))
                .collect(),
            body: body.clone(),
            question: question.clone(),
            is_answered: false,
        });
        requests.len() - 1
    };
    tokio::time::sleep(latency).await;
    let fault = match fault {
        Some(Fault::TooManyUntil(wait)) => Some(Fault::too_many_until(wait)),
        fault => fault,
    };
    match &fault {
        Some(Fault::Status(status, headers, body)) => {
            let mut response =
                (StatusCode::from_u16(*status).unwrap(), body.clone()).into_response();
            for (name, value) in headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
            return response;
        }
        Some(Fault::TooLarge(_)) => {
            return error(StatusCode::PAYLOAD_TOO_LARGE, "Request too large");
        }
        Some(Fault::ContextLength(_)) => {
            return (StatusCode::BAD_REQUEST, axum::Json(api.to_error(too_long_error())))
                .into_response();
        }
        // The panic ends the connection's task and closes the connection.
        Some(Fault::Dropped) => std::panic::resume_unwind(Box::new("dropped")),
        Some(Fault::Body(kind, body)) => {
            return ([("content-type", *kind)], *body).into_response();
        }
        Some(Fault::RejectsStream(words)) if body.get("stream").is_some() => {
            return error(StatusCode::BAD_REQUEST, words);
        }
        Some(Fault::RejectsParameters(parameters)) => {
            if let Some(name) = parameters.iter().find(|p| body.get(**p).is_some()) {
                let words = format!("Unsupported parameter: '{name}' is not supported here.");
                return error(StatusCode::BAD_REQUEST, &words);
            }
        }
        Some(Fault::RequiresParameter(name)) if body.get(*name).is_none() => {
            return error(StatusCode::BAD_REQUEST, &format!("Missing: '{name}' is required."));
        }
        Some(Fault::Huge(status, bytes)) => return stream::huge_response(*status, *bytes),
        Some(Fault::Runaway(runaway_kind) | Fault::RunawayUnstreamed(runaway_kind)) => {
            let correct_answer = answer_content(&shared, &question, None, &chat);
            let streams = body["stream"] == true && matches!(fault, Some(Fault::Runaway(_)));
            return stream::runaway_response(
                &shared,
                *runaway_kind,
                &correct_answer,
                &chat,
                streams,
            );
        }
        _ => {}
    }
    let completion = build_completion(&shared, &question, fault.as_ref(), &chat);
    let stream_fault = match &fault {
        Some(Fault::Stream(stream_fault)) => Some(*stream_fault),
        _ => None,
    };
    if body["stream"] == true && stream_fault != Some(StreamFault::NotStreamed) {
        let is_complete = !matches!(
            stream_fault,
            Some(StreamFault::CutMidEvent | StreamFault::Error | StreamFault::Filter)
        );
        lock_mutex(&shared.requests)[request_index].is_answered =
            is_complete && !matches!(fault, Some(Fault::DroppedMidBody));
        let reply = api.to_reply(&completion, &body);
        return stream::stream_completion((api, &reply), stream_fault, fault.as_ref());
    }
    let text = api.to_reply(&completion, &body).to_string();
    let middle = text.len() / 2;
    let body = match fault {
        Some(Fault::DroppedMidBody) => Body::from_stream(futures_util::stream::iter([
            Ok(text.as_bytes()[..middle].to_vec()),
            Err(std::io::Error::other("dropped")),
        ])),
        Some(Fault::SlowDrip) => {
            let chunks: Vec<Vec<u8>> = text.as_bytes().chunks(40).map(<[u8]>::to_vec).collect();
            Body::from_stream(futures_util::stream::unfold(
                chunks.into_iter(),
                |mut chunks| async move {
                    let next = chunks.next()?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Some((Ok::<_, std::io::Error>(next), chunks))
                },
            ))
        }
        _ => Body::from(text),
    };
    lock_mutex(&shared.requests)[request_index].is_answered =
        !matches!(fault, Some(Fault::DroppedMidBody));
    ([("content-type", "application/json")], body).into_response()
}

/// Returns the text of a message, with or without media.
fn message_text(body: &Json, message: usize) -> &str {
    let content = &body["messages"][message]["content"];
    content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default()
}

/// A medium of a request.
struct SentMedium {
    /// MIME type and digest, or the URL to fetch.
    description: String,
    /// Kind and duration; `None` for a URL.
    info: Option<MediaInfo>,
}

/// Returns the media of a request in order, and checks the fields of their parts.
fn read_media(body: &Json) -> Vec<SentMedium> {
    let parts = body["messages"][1]["content"].as_array().into_iter().flatten();
    let decode = |data: &str| base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    let read = |mime_type: &str, bytes: &[u8]| SentMedium {
        description: format!("{mime_type} {}", blake3::hash(bytes).to_hex()),
        info: MediaInfo::from_bytes(bytes).ok(),
    };
    let read_part = |part: &Json| match part["type"].as_str()? {
        "image_url" => {
            let url = part["image_url"]["url"].as_str().unwrap_or_default();
            let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
            Some(match data {
                Some((mime_type, data)) => read(mime_type, &decode(data)),
                None => SentMedium { description: url.to_owned(), info: None },
            })
        }
        "input_audio" => {
            // The part has exactly these fields; `data` is base64 without a prefix.
            let audio = part["input_audio"].as_object().expect("an object");
            assert_eq!((part.as_object().map(serde_json::Map::len), audio.len()), (Some(2), 2));
            let bytes = decode(audio["data"].as_str().expect("a text"));
            let format = audio["format"].as_str().expect("a text");
            assert!(matches!(format, "wav" | "mp3"), "{format}");
            assert_eq!(format == "wav", bytes.starts_with(b"RIFF"));
            Some(read(&format!("audio/{format}"), &bytes))
        }
        _ => None,
    };
    parts.filter_map(read_part).collect()
}

/// Returns the number of tokens of a request's media.
fn count_media_tokens(body: &Json) -> MediaTokens {
    let model = body["model"].as_str().unwrap_or_default();
    let unknown = MediaInfo { kind: KINDS[0], seconds: None };
    let media = read_media(body).into_iter().map(|medium| medium.info.unwrap_or(unknown));
    MediaTokens::for_model(media, model)
}

/// Returns a description of each medium of a request: media type and digest, or the URL to fetch.
pub fn describe_media(body: &Json) -> Vec<String> {
    read_media(body).into_iter().map(|medium| medium.description).collect()
}

/// Returns the row with each medium replaced by its description.
fn with_media(row: &AskedRow, descriptions: &[Json]) -> AskedRow {
    let mut row = row.clone();
    for cell in row.key.iter_mut().chain(&mut row.context) {
        let marked = cell.as_str().and_then(|c| c.strip_prefix('[')?.strip_suffix(']'));
        let number = marked.and_then(|marked| {
            let (name, number) = marked.split_once(' ')?;
            KINDS.iter().any(|kind| kind.name == name).then(|| number.parse::<usize>().ok())?
        });
        if let Some(number) = number {
            *cell = descriptions[number - 1].clone();
        }
    }
    row
}

/// Answers a line of a batch; returns a status and a body.
pub fn answer_line(shared: &Shared, api: Api, body: &Json) -> (u16, Json) {
    let chat = api.to_chat_request(body);
    let question =
        Question::parse(message_text(&chat, 0), message_text(&chat, 1)).expect("a prompt of ours");
    let (_, fault) = next_fault(shared, &question);
    let (status, reply) = match &fault {
        Some(Fault::Status(status, _, body)) => {
            (*status, api.to_error(serde_json::from_str(body).unwrap()))
        }
        Some(Fault::ContextLength(_)) => (400, api.to_error(too_long_error())),
        fault => {
            let completion = build_completion(shared, &question, fault.as_ref(), &chat);
            (200, api.to_reply(&completion, body))
        }
    };
    lock_mutex(&shared.requests).push(Request {
        received_at: Instant::now(),
        uri: String::new(),
        headers: Vec::new(),
        body: body.clone(),
        question,
        is_answered: status == 200,
    });
    (status, reply)
}

fn too_long_error() -> Json {
    json!({ "error": {
        "message": "This model's maximum context length is 100 tokens.",
        "type": "invalid_request_error", "code": "context_length_exceeded",
    } })
}

fn next_fault(shared: &Shared, question: &Question) -> (Duration, Option<Fault>) {
    let mut latency = Duration::ZERO;
    let mut fault = None;
    for policy in lock_mutex(&shared.faults).iter_mut() {
        let is_applicable = match policy.fault {
            Fault::Latency(_) => true,
            Fault::TooLarge(rows) | Fault::ContextLength(rows) => {
                fault.is_none() && question.rows.len() > rows
            }
            _ => fault.is_none(),
        };
        if is_applicable && policy.should_apply(question) {
            match policy.fault {
                Fault::Latency(more) => latency += more,
                _ => fault = Some(policy.fault.clone()),
            }
        }
    }
    (latency, fault)
}

/// Returns true if a request asks for log-probabilities.
fn wants_logprobs(body: &Json) -> bool {
    let included = body["include"].as_array().into_iter().flatten();
    body["logprobs"] == true || included.into_iter().any(|i| *i == "message.output_text.logprobs")
}

/// Returns a text as tokens of three bytes, which may split characters, with log-probabilities.
fn split_tokens(text: &str, logprob: &LogprobFn) -> Vec<Json> {
    const BYTES: usize = 3;
    let token = |(n, bytes): (usize, &[u8])| {
        let before = String::from_utf8_lossy(&text.as_bytes()[..n * BYTES]);
        let token = String::from_utf8_lossy(bytes);
        let logprob = logprob(&before, &token);
        json!({ "token": token, "logprob": logprob, "bytes": bytes, "top_logprobs": [] })
    };
    text.as_bytes().chunks(BYTES).enumerate().map(token).collect()
}

/// Returns the chat completion, with the fault applied.
fn build_completion(
    shared: &Shared,
    question: &Question,
    fault: Option<&Fault>,
    body: &Json,
) -> Json {
    let mut content = json!(answer_content(shared, question, fault, body));
    let mut finish = json!("stop");
    let mut refusal = Json::Null;
    match fault {
        Some(Fault::Truncated) => finish = json!("length"),
        Some(Fault::MixedDrafts(seed)) => {
            let digest = blake3::hash(body["messages"].to_string().as_bytes());
            let request_seed = u64::from_le_bytes(digest.as_bytes()[..8].try_into().unwrap());
            let lies = question.clone().format_answer(wrong_value);
            let correct_answer = content.as_str().unwrap_or_default();
            let (misleading, reason) =
                drafts::mislead_parser(seed ^ request_seed, correct_answer, &lies, question.format);

            (content, finish) = (misleading.into(), reason);
        }
        Some(Fault::ContentFilter) => {
            finish = json!("content_filter");
            content = Json::Null;
        }
        Some(Fault::Refusal) => {
            content = Json::Null;
            refusal = "I'm sorry, I cannot assist with that.".into();
        }
        _ => {}
    }
    let tokenizer = Tokenizer::for_model(body["model"].as_str().unwrap_or_default());
    let messages = body["messages"].as_array().into_iter().flatten();
    let count = messages.count();
    let prompt_tokens: u64 =
        (0..count).map(|n| tokenizer.count_tokens(message_text(body, n)) + 4).sum();
    let media = count_media_tokens(body);
    let prompt_tokens = prompt_tokens + media.all;
    let schema = body.pointer("/response_format/json_schema/schema");
    let input = prompt_tokens + 3 + schema.map_or(0, |s| tokenizer.count_tokens(&s.to_string()));
    if let Some(truncated) = content.as_str().and_then(|text| stream::truncate_to_cap(text, body)) {
        content = truncated.into();
        finish = json!("length");
    }
    let mut output = tokenizer.count_tokens(content.as_str().unwrap_or_default());
    if let Some(Fault::HiddenReasoning(hidden)) = fault {
        let cap = stream::output_cap(body);
        if hidden + output > cap {
            (content, finish, output) = (json!(""), json!("length"), cap);
        } else {
            output += hidden;
        }
    }
    let mut reply = json!({
        "id": "chatcmpl-test", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{
            "index": 0, "finish_reason": finish,
            "message": { "role": "assistant", "content": content, "refusal": refusal },
        }],
    });
    let logprob_fn = lock_mutex(&shared.logprob_fn).clone();
    if let (Some(logprob), Some(text), true) =
        (logprob_fn, reply["choices"][0]["message"]["content"].as_str(), wants_logprobs(body))
    {
        reply["choices"][0]["logprobs"] = json!({ "content": split_tokens(text, &*logprob) });
    }
    // Count the true tokens, whatever usage is reported.
    {
        let mut billed = lock_mutex(&shared.usage);
        billed.0 += input;
        billed.1 += output;
        lock_mutex(&shared.billed_answers).push((Instant::now(), input + output));
    }
    match fault {
        Some(Fault::NoUsage) => {}
        Some(Fault::Usage(template)) => reply["usage"] = fill_usage(template, input, output),
        _ => {
            let mut true_usage = json!({
                "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
            });
            if media.audio > 0 {
                true_usage["prompt_tokens_details"] = json!({ "audio_tokens": media.audio });
            }
            let usage_fn = lock_mutex(&shared.usage_fn).clone();
            let usage = usage_fn.map_or(true_usage, |usage_fn| usage_fn(body, input, output));
            if !usage.is_null() {
                reply["usage"] = usage;
            }
        }
    }
    reply
}

/// Returns the `usage` with placeholders replaced by the true numbers.
fn fill_usage(template: &Json, input: u64, output: u64) -> Json {
    match template {
        Json::String(text) => match text.as_str() {
            "in" => input.into(),
            "out" => output.into(),
            "total" => (input + output).into(),
            "out as text" => output.to_string().into(),
            "out as float" => (output as f64).into(),
            _ => template.clone(),
        },
        Json::Array(items) => items.iter().map(|i| fill_usage(i, input, output)).collect(),
        Json::Object(fields) => {
            fields.iter().map(|(n, f)| (n.clone(), fill_usage(f, input, output))).collect()
        }
        other => other.clone(),
    }
}

/// Returns a value that is valid for the column but wrong for every row.
fn wrong_value(_: &AskedRow, column: &AskedColumn) -> Json {
    match (&column.values, column.data_type.as_str()) {
        (Some(values), _) if column.many => json!([values[values.len() - 1]]),
        (Some(values), _) => json!(values[0]),
        (None, "integer") => json!(1),
        (None, "date") => json!("2000-01-01"),
        (None, "boolean") => json!(true),
        (None, _) => json!("a lie"),
    }
}

/// Returns the content that the model writes.
fn answer_content(
    shared: &Shared,
    question: &Question,
    fault: Option<&Fault>,
    body: &Json,
) -> String {
    let descriptions: Vec<Json> = describe_media(body).into_iter().map(Json::from).collect();
    let true_value = |row: &AskedRow, column: &AskedColumn| {
        (shared.answer_fn)(column, &with_media(row, &descriptions))
    };
    let mut answered_question = question.clone();
    let format = question.format;
    match fault {
        Some(Fault::Empty) => String::new(),
        Some(Fault::RefusalInWords) => "I'm sorry, but I cannot assist with that request.".into(),
        Some(Fault::Prose) => format!(
            "Sure! Here is what I know of these rows, as you asked:\n\n{}\n\nLet me know if you need anything else, such as more rows.",
            answered_question.format_answer(true_value)
        ),
        Some(Fault::Fence) => {
            format!("```{}\n{}\n```", format.name(), answered_question.format_answer(true_value))
        }
        Some(Fault::Truncated) => {
            let full_text = answered_question.format_answer(true_value);
            let mut middle = full_text.len() / 2;
            while !full_text.is_char_boundary(middle) {
                middle += 1;
            }
            full_text[..middle].to_owned()
        }
        Some(Fault::Permuted) => {
            answered_question.rows.reverse();
            answered_question.format_answer(true_value)
        }
        Some(Fault::MissingRows) => {
            answered_question.rows = answered_question.rows.into_iter().step_by(2).collect();
            answered_question.format_answer(true_value)
        }
        Some(Fault::FirstRowOnly) => {
            answered_question.rows.truncate(1);
            answered_question.format_answer(true_value)
        }
        Some(Fault::DuplicatedRows) => {
            answered_question.rows.extend(question.rows.clone());
            answered_question.format_answer(true_value)
        }
        Some(Fault::ContradictingRows) => join_answers(
            &[
                answered_question.format_answer(true_value),
                answered_question.format_answer(wrong_value),
            ],
            format,
        ),
        Some(Fault::Renumbered) => {
            answered_question.rows.iter_mut().for_each(|r| r.number += 1);
            answered_question.format_answer(true_value)
        }
        Some(Fault::SwappedKeys) => {
            let keys: Vec<_> = answered_question.rows.iter().map(|r| r.key.clone()).collect();
            let count = keys.len();
            for (n, row) in answered_question.rows.iter_mut().enumerate() {
                row.key.clone_from(&keys[(n + 1) % count]);
            }
            answered_question.format_answer(|row, column| {
                // The value belongs to the row number, the key to the next row.
                true_value(&question.rows[row.number - 1], column)
            })
        }
        // An answer without labels has no place for a row that was not requested.
        Some(Fault::ForeignRows) if question.has_labels() => {
            let mut foreign = question.clone();
            let count = foreign.rows.len();
            foreign.rows.extend(question.rows.clone());
            for (n, row) in foreign.rows.iter_mut().enumerate() {
                row.key.iter_mut().for_each(|k| *k = format!("Stranger {n}").into());
                if n >= count {
                    row.number += count;
                }
            }
            join_answers(
                &[foreign.format_answer(wrong_value), answered_question.format_answer(true_value)],
                format,
            )
        }
        Some(Fault::ForeignColumn | Fault::ForeignColumnFirst) => {
            let extra_column = AskedColumn {
                name: "shoe_size".into(),
                data_type: "integer".into(),
                about: String::new(),
                many: false,
                values: None,
            };
            let first = matches!(fault, Some(Fault::ForeignColumnFirst));
            answered_question
                .columns
                .insert(if first { 0 } else { answered_question.columns.len() }, extra_column);
            answered_question.format_answer(|row, column| {
                if column.name == "shoe_size" { json!(44) } else { true_value(row, column) }
            })
        }
        Some(Fault::MissingColumn) => {
            answered_question.columns.pop();
            answered_question.format_answer(true_value)
        }
        Some(Fault::MissingColumnBefore) => {
            let index = answered_question.columns.len().saturating_sub(2);
            answered_question.columns.remove(index);
            answered_question.format_answer(true_value)
        }
        Some(Fault::OutsideList) => {
            answered_question.format_answer(|row, column| match &column.values {
                Some(_) if column.many => json!(["Plaid"]),
                Some(_) => json!("Plaid"),
                None => true_value(row, column),
            })
        }
        _ => answered_question.format_answer(true_value),
    }
}

/// Joins the rows of several answers into one.
fn join_answers(answers: &[String], format: Format) -> String {
    match format {
        Format::Csv => answers.join("\n"),
        Format::Json => {
            let rows: Vec<Json> = answers
                .iter()
                .filter_map(|a| serde_json::from_str::<Json>(a).ok())
                .filter_map(|mut a| a["rows"].as_array_mut().map(std::mem::take))
                .flatten()
                .collect();
            json!({ "rows": rows }).to_string()
        }
    }
}
