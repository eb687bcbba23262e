//! Images in requests, and what endpoints say against them.

use serde_json::{Value as Json, json};

use super::ModelError;
use hqdl_prompt::Prompt;

/// What endpoints say of a model that sees nothing.
const BLIND: [&str; 15] = [
    // OpenAI, Azure
    "image_url is only supported by certain models",
    "does not support image",
    "doesn't support image",
    "do not support image",
    "not support images",
    // OpenRouter
    "support image input",
    // llama.cpp
    "image input is not supported",
    // Mistral
    "image input is not enabled",
    // vLLM
    "not a multimodal model",
    "at most 0 image",
    // Ollama
    "missing data required for image input",
    // DeepSeek
    "unknown variant `image_url`",
    "vision is not supported",
    "does not support vision",
    // Groq, and whoever knows texts alone
    "content must be a string",
];

/// Puts the images of a prompt behind its text.
pub(super) fn write(body: &mut Json, prompt: &Prompt) {
    if prompt.images.is_empty() {
        return;
    }
    let mut parts = vec![json!({ "type": "text", "text": prompt.user })];
    let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    parts.extend(prompt.images.iter().map(|shown| image(&shown.url)));
    if let Some(user) = body["messages"].as_array_mut().and_then(|m| m.last_mut()) {
        user["content"] = parts.into();
    }
}

/// Whether a refusal of a request with images says that the model takes none.
pub(super) fn is_blind(error: &ModelError) -> bool {
    // Ollama and llama.cpp take it for an error of their own, which may pass.
    let (ModelError::Refused { status: 400 | 404 | 415 | 422, message }
    | ModelError::Passing { message, in_doubt: false, .. }) = error
    else {
        return false;
    };
    let lower = message.to_lowercase();
    // Some take images, and fetch none.
    !lower.contains("image url") && BLIND.iter().any(|w| lower.contains(w))
}

/// What a failure of a request with images means: one that speaks of the image is of
/// that image alone.
pub(super) fn explained(error: ModelError) -> ModelError {
    match error {
        ModelError::Refused { status: status @ (400 | 413 | 415 | 422), message }
            if ["image", "download"].iter().any(|w| message.to_lowercase().contains(w)) =>
        {
            ModelError::NoAnswer(format!("the endpoint answers {status}: {message}"))
        }
        other => other,
    }
}
