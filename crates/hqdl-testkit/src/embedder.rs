//! An endpoint for `/v1/embeddings`, with faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hqdl_values::tokens::Tokenizer;
use serde_json::{Value as Json, json};

use crate::endpoint::lock;

/// Behavior of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mood {
    /// Answers correctly.
    Works,
    /// Answers with status 500.
    Fails,
    /// Answers after this delay.
    Slow(Duration),
    /// Returns vectors with one additional dimension.
    Wider,
    /// Answers with unrelated JSON.
    Nonsense,
}

/// Returns the vector of a text.
type Likening = dyn Fn(&str) -> Vec<f32> + Send + Sync;

struct Shared {
    vector: Box<Likening>,
    mood: Mutex<Mood>,
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
            mood: Mutex::new(Mood::Works),
            texts: Mutex::default(),
            requests: Mutex::default(),
            usage: Mutex::new(Some(json!({ "prompt_tokens": "true", "total_tokens": "true" }))),
            billed: Mutex::default(),
        });
        let app = axum::Router::new()
            .route("/v1/embeddings", axum::routing::post(answer))
            .with_state(Arc::clone(&shared));
        let (address, stop) = crate::loopback::serve(app);
        let url = format!("http://{address}/v1");
        Self { url, shared, _stop: stop }
    }

    /// Returns the endpoint's section for a spec.
    pub fn spec(&self) -> String {
        format!("[embeddings]\nmodel = \"look-alike\"\nbase_url = \"{}\"\n", self.url)
    }

    /// Sets the behavior for the following requests.
    pub fn is(&self, mood: Mood) {
        *lock(&self.shared.mood) = mood;
    }

    /// Sets the reported usage for the following requests. `"true"` is replaced with the billed
    /// tokens; `None` reports no usage.
    pub fn says(&self, usage: Option<Json>) {
        *lock(&self.shared.usage) = usage;
    }

    /// Returns the number of billed tokens.
    pub fn billed(&self) -> u64 {
        *lock(&self.shared.billed)
    }

    /// Returns all texts received so far.
    pub fn texts(&self) -> Vec<String> {
        lock(&self.shared.texts).clone()
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        *lock(&self.shared.requests)
    }
}

async fn answer(State(shared): State<Arc<Shared>>, axum::Json(body): axum::Json<Json>) -> Response {
    *lock(&shared.requests) += 1;
    let mood = *lock(&shared.mood);
    match mood {
        Mood::Fails => return (StatusCode::INTERNAL_SERVER_ERROR, "out of order").into_response(),
        Mood::Nonsense => return axum::Json(json!({ "hello": "world" })).into_response(),
        Mood::Slow(latency) => tokio::time::sleep(latency).await,
        _ => {}
    }
    let texts: Vec<String> = serde_json::from_value(body["input"].clone()).unwrap();
    lock(&shared.texts).extend(texts.iter().cloned());
    let data: Vec<Json> = texts
        .iter()
        .enumerate()
        .map(|(n, text)| {
            let mut vector = (shared.vector)(text);
            if mood == Mood::Wider {
                vector.push(0.5);
            }
            json!({ "object": "embedding", "index": n, "embedding": vector })
        })
        .collect();
    let tokenizer = Tokenizer::of("gpt-4o-mini");
    let tokens: u64 = texts.iter().map(|t| tokenizer.count(t)).sum();
    *lock(&shared.billed) += tokens;
    let mut reply = json!({ "object": "list", "data": data, "model": body["model"] });
    if let Some(mut usage) = lock(&shared.usage).clone() {
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
