//! Gemini's own OpenAI-compatible endpoint,
//! `https://generativelanguage.googleapis.com/v1beta/openai`.

use super::{DEFAULT_PROFILE, ProviderProfile, has_host};

/// See <https://ai.google.dev/gemini-api/docs/openai>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "Gemini",
    matches_url: |url| has_host(url, "generativelanguage.googleapis.com"),
    key_variable: Some("GEMINI_API_KEY"),
    ..DEFAULT_PROFILE
};
