//! The `LiteLLM` proxy, recognized by its port.

use super::{CacheBreakpoint, Habits, OTHER, PromptCaching, is_port};

/// See <https://docs.litellm.ai/docs/simple_proxy> and
/// <https://docs.litellm.ai/docs/completion/prompt_caching>.
pub(super) const HABITS: Habits = Habits {
    name: "LiteLLM",
    serves: |url| is_port(url, 4000),
    caching: |model| PromptCaching {
        breakpoint: model
            .split(['/', '-', '.'])
            .any(|part| part == "claude")
            .then_some(CacheBreakpoint::CacheControl),
        key: false,
    },
    start: Some("start it with `litellm --config FILE`"),
    ..OTHER
};
