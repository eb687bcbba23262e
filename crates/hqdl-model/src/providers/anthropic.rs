//! Anthropic's own OpenAI-compatible endpoint, `https://api.anthropic.com/v1`. It
//! ignores `response_format`, so none is sent, and it has no prompt cache.

use super::{Habits, OTHER, is_host};

/// See <https://platform.claude.com/docs/en/api/openai-sdk>.
pub(super) const HABITS: Habits = Habits {
    name: "Anthropic",
    serves: |url| is_host(url, "api.anthropic.com"),
    key_variable: Some("ANTHROPIC_API_KEY"),
    schema: false,
    ..OTHER
};
