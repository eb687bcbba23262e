//! `OpenAI` itself. Its newer models accept only the newer name of the output limit; older ones
//! accept both.

use super::super::prompt_cache::takes_explicit_breakpoints;
use super::{CacheBreakpoint, Habits, NEW_CAP, OTHER, PromptCaching, is_host};

/// See <https://platform.openai.com/docs/api-reference/chat> and
/// <https://developers.openai.com/api/docs/guides/prompt-caching>.
pub(super) const HABITS: Habits = Habits {
    name: "OpenAI",
    serves: |url| is_host(url, "api.openai.com"),
    key_variable: Some("OPENAI_API_KEY"),
    headers: &[("openai-organization", "OPENAI_ORG_ID"), ("openai-project", "OPENAI_PROJECT_ID")],
    cap: NEW_CAP,
    caching: |model| PromptCaching {
        breakpoint: takes_explicit_breakpoints(model).then_some(CacheBreakpoint::Explicit),
        key: true,
    },
    ..OTHER
};
