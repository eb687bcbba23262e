//! Ollama, recognized by its port.

use super::{DEFAULT_PROFILE, ProviderProfile, has_port};

/// See <https://docs.ollama.com/api/openai-compatibility>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "Ollama",
    matches_url: |url| has_port(url, 11434),
    start_hint: Some("start it with `ollama serve`, and download a model with `ollama pull NAME`"),
    ..DEFAULT_PROFILE
};
