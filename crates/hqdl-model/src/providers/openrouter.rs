//! `OpenRouter`, <https://openrouter.ai>.

use super::super::prompt_cache::supports_explicit_breakpoints;
use super::{CacheBreakpoint, DEFAULT_PROFILE, PromptCaching, ProviderProfile, has_host};

/// See <https://openrouter.ai/docs/guides/best-practices/prompt-caching>. `OpenRouter` itself
/// routes requests with the same prefix to the same provider.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "OpenRouter",
    matches_url: |url| has_host(url, "openrouter.ai"),
    caching: |model| {
        let breakpoint = match model.split_once('/') {
            Some(("anthropic", _)) => Some(CacheBreakpoint::CacheControl),
            Some(("openai", name)) if supports_explicit_breakpoints(name) => {
                Some(CacheBreakpoint::Explicit)
            }
            _ => None,
        };
        PromptCaching { breakpoint, key: false }
    },
    ..DEFAULT_PROFILE
};
