//! Gemini's own OpenAI-compatible endpoint,
//! `https://generativelanguage.googleapis.com/v1beta/openai`.

use super::{Habits, OTHER, is_host};

/// See <https://ai.google.dev/gemini-api/docs/openai>.
pub(super) const HABITS: Habits = Habits {
    name: "Gemini",
    serves: |url| is_host(url, "generativelanguage.googleapis.com"),
    key_variable: Some("GEMINI_API_KEY"),
    ..OTHER
};
