//! Recognizes endpoints' errors about images in a request.

use super::ModelError;

/// Phrases in endpoints' error messages that mean that a model accepts no images.
const NO_IMAGE_PHRASES: [&str; 15] = [
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
    // Groq, and other endpoints that accept only text
    "content must be a string",
];

/// Returns whether an error means that the model accepts no images.
pub(super) fn is_unsupported_image_error(error: &ModelError) -> bool {
    // Ollama and llama.cpp report unsupported images as a temporary failure.
    let (ModelError::Refused { status: 400 | 404 | 415 | 422, message, .. }
    | ModelError::Temporary { message, in_doubt: false, .. }) = error
    else {
        return false;
    };
    let lower = message.to_lowercase();
    // Some models accept images, but cannot fetch URLs.
    !lower.contains("image url") && NO_IMAGE_PHRASES.iter().any(|w| lower.contains(w))
}

/// Converts an endpoint's rejection of a request with images. An error about an image affects only
/// that image's row.
pub(super) fn image_error(error: ModelError) -> ModelError {
    match error {
        ModelError::Refused { endpoint, status: status @ (400 | 413 | 415 | 422), message }
            if ["image", "download"].iter().any(|w| message.to_lowercase().contains(w)) =>
        {
            ModelError::NoAnswer(format!("{endpoint} answers {status}: {message}"))
        }
        other => other,
    }
}
