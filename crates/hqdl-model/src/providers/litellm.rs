//! The `LiteLLM` proxy, recognized by its port.

use super::{CacheBreakpoint, DEFAULT_PROFILE, PromptCaching, ProviderProfile, has_port};

/// See <https://docs.litellm.ai/docs/simple_proxy> and
/// <https://docs.litellm.ai/docs/completion/prompt_caching>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "LiteLLM",
    matches_url: |url| has_port(url, 4000),
    caching: |model| PromptCaching {
        breakpoint: model
            .split(['/', '-', '.'])
            .any(|part| part == "claude")
            .then_some(CacheBreakpoint::CacheControl),
        key: false,
    },
    start_hint: Some("start it with `litellm --config FILE`"),
    ..DEFAULT_PROFILE
};
