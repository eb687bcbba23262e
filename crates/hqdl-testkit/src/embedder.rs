//! An endpoint for `/v1/embeddings`, with faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hqdl_values::tokens::Tokenizer;
use serde_json::{Value as Json, json};

use crate::endpoint::lock_mutex;

/// Behavior of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Behavior {
    /// Answers correctly.
    Normal,
    /// Answers with status 500.
    Failing,
    /// Answers after this delay.
    Slow(Duration),
    /// Returns vectors with one additional dimension.
    ExtraDimension,
    /// Answers with unrelated JSON.
    Nonsense,
    /// Has no embeddings: answers with status 404.
    Missing,
    /// Rejects requests with a text that is longer than this number of bytes.
    Rejecting(usize),
}

/// Returns the vector of a text: the numbers of its letters, without case.
pub fn count_letters(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0; 26];
    for byte in text.bytes().filter(u8::is_ascii_alphabetic) {
        counts[usize::from(byte.to_ascii_lowercase() - b'a')] += 1.0;
    }
    // A vector of zeros has no direction.
    counts.push(0.5);
    counts
}

/// Returns the cosine similarity of two texts by their letters.
pub fn letter_similarity(a: &str, b: &str) -> f64 {
    let (a, b) = (count_letters(a), count_letters(b));
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}

/// Returns the vector of a text.
type TextVectorFn = dyn Fn(&str) -> Vec<f32> + Send + Sync;

struct Shared {
    vector: Box<TextVectorFn>,
    behavior: Mutex<Behavior>,
    texts: Mutex<Vec<String>>,
    requests: Mutex<usize>,
    /// The reported usage; the text "true" is replaced with the number of tokens.
    usage: Mutex<Option<Json>>,
    billed: Mutex<u64>,
}

/// The endpoint; it stops on drop.
pub struct Embedder {
    url: String,
    shared: Arc<Shared>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Embedder {
    /// Creates an endpoint that computes vectors with `vector`.
    pub fn new(vector: impl Fn(&str) -> Vec<f32> + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            vector: Box::new(vector),
            behavior: Mutex::new(Behavior::Normal),
            texts: Mutex::default(),
            requests: Mutex::default(),
            usage: Mutex::new(Some(json!({ "prompt_tokens": "true", "total_tokens": "true" }))),
            billed: Mutex::default(),
        });
        let app = axum::Router::new()
            .route("/v1/embeddings", axum::routing::post(answer_request))
            .with_state(Arc::clone(&shared));
        let (address, stop) = crate::loopback::serve_app(app);
        let url = format!("http://{address}/v1");
        Self { url, shared, _stop: stop }
    }

    /// Returns the endpoint's section for a spec.
    pub fn spec_section(&self) -> String {
        format!("[embeddings]\nmodel = \"look-alike\"\nbase_url = \"{}\"\n", self.url)
    }

    /// Sets the behavior for the following requests.
    pub fn set_behavior(&self, behavior: Behavior) {
        *lock_mutex(&self.shared.behavior) = behavior;
    }

    /// Sets the reported usage for the following requests. `"true"` is replaced with the billed
    /// tokens; `None` reports no usage.
    pub fn set_usage(&self, usage: Option<Json>) {
        *lock_mutex(&self.shared.usage) = usage;
    }

    /// Returns the number of billed tokens.
    pub fn billed_tokens(&self) -> u64 {
        *lock_mutex(&self.shared.billed)
    }

    /// Returns all texts received so far.
    pub fn received_texts(&self) -> Vec<String> {
        lock_mutex(&self.shared.texts).clone()
    }

    /// Returns the number of requests so far.
    pub fn request_count(&self) -> usize {
        *lock_mutex(&self.shared.requests)
    }
}

async fn answer_request(
    State(shared): State<Arc<Shared>>,
    axum::Json(body): axum::Json<Json>,
) -> Response {
    *lock_mutex(&shared.requests) += 1;
    let behavior = *lock_mutex(&shared.behavior);
    match behavior {
        Behavior::Failing => {
            return (StatusCode::INTERNAL_SERVER_ERROR, "out of order").into_response();
        }
        Behavior::Nonsense => return axum::Json(json!({ "hello": "world" })).into_response(),
        Behavior::Missing => return (StatusCode::NOT_FOUND, "no such page").into_response(),
        Behavior::Slow(latency) => tokio::time::sleep(latency).await,
        _ => {}
    }
    let texts: Vec<String> = serde_json::from_value(body["input"].clone()).unwrap();
    if let Behavior::Rejecting(max_length) = behavior
        && texts.iter().any(|text| text.len() > max_length)
    {
        let message = "This model's maximum context length is 8192 tokens";
        let error = json!({ "error": { "message": message } });
        return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
    }
    lock_mutex(&shared.texts).extend(texts.iter().cloned());
    let data: Vec<Json> = texts
        .iter()
        .enumerate()
        .map(|(n, text)| {
            let mut vector = (shared.vector)(text);
            if behavior == Behavior::ExtraDimension {
                vector.push(0.5);
            }
            json!({ "object": "embedding", "index": n, "embedding": vector })
        })
        .collect();
    let tokenizer = Tokenizer::for_model("gpt-4o-mini");
    let tokens: u64 = texts.iter().map(|t| tokenizer.count_tokens(t)).sum();
    *lock_mutex(&shared.billed) += tokens;
    let mut reply = json!({ "object": "list", "data": data, "model": body["model"] });
    if let Some(mut usage) = lock_mutex(&shared.usage).clone() {
        for number in usage.as_object_mut().into_iter().flat_map(|u| u.values_mut()) {
            match number.as_str() {
                Some("true") => *number = tokens.into(),
                Some("float") => *number = json!(tokens as f64),
                Some("text") => *number = tokens.to_string().into(),
                _ => {}
            }
        }
        reply["usage"] = usage;
    }
    axum::Json(reply).into_response()
}
