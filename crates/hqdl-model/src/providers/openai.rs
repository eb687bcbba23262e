//! `OpenAI` itself. Its newer models take the newer name of the cap alone; its
//! older ones take both.

use super::{Habits, NEW_CAP, OTHER, is_host};

/// See <https://platform.openai.com/docs/api-reference/chat>.
pub(super) const HABITS: Habits = Habits {
    name: "OpenAI",
    serves: |url| is_host(url, "api.openai.com"),
    key_variable: Some("OPENAI_API_KEY"),
    headers: &[("openai-organization", "OPENAI_ORG_ID"), ("openai-project", "OPENAI_PROJECT_ID")],
    cap: NEW_CAP,
    ..OTHER
};
