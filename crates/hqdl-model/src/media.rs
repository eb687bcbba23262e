//! Recognizes endpoints' errors about the media of a request.

use super::ModelError;
use hqdl_prompt::Prompt;
use hqdl_spec::media::MediaKind;

/// Returns the kinds of media that a prompt contains, each once.
pub(super) fn media_kinds(prompt: &Prompt) -> impl Iterator<Item = &'static MediaKind> {
    let kind_of = move |n: usize| prompt.media[n].info.kind;
    let is_first = move |n: &usize| (0..*n).all(|earlier| kind_of(earlier) != kind_of(*n));
    (0..prompt.media.len()).filter(is_first).map(kind_of)
}

/// Returns the kind of a prompt's media that the model does not accept according to an error.
pub(super) fn find_unsupported_kind(
    prompt: &Prompt,
    error: &ModelError,
) -> Option<&'static MediaKind> {
    // Ollama and llama.cpp report unsupported images as a temporary failure.
    let (ModelError::Refused { status: 400 | 404 | 415 | 422, message, .. }
    | ModelError::Temporary { message, in_doubt: false, .. }) = error
    else {
        return None;
    };
    let lower = message.to_lowercase();
    // Some models accept images, but cannot fetch URLs.
    let is_about_url = lower.contains("image url");
    let rejects = |kind: &&MediaKind| kind.rejection_phrases.iter().any(|w| lower.contains(w));
    media_kinds(prompt).find(rejects).filter(|_| !is_about_url)
}

/// Converts an endpoint's rejection of a request with media. An error about a medium affects only
/// that medium's row. The model's name is ignored, because it can contain the name of a kind.
pub(super) fn to_row_error(prompt: &Prompt, model: &str, error: ModelError) -> ModelError {
    let name = model.rsplit('/').next().unwrap_or(model).to_lowercase();
    let is_about_medium = |message: &str| {
        let lower = message.to_lowercase().replace(&name, "");
        media_kinds(prompt).any(|kind| kind.error_words.iter().any(|w| lower.contains(w)))
    };
    match error {
        ModelError::Refused { endpoint, status: status @ (400 | 413 | 415 | 422), message }
            if is_about_medium(&message) =>
        {
            ModelError::NoAnswer(format!("{endpoint} answers {status}: {message}"))
        }
        other => other,
    }
}
