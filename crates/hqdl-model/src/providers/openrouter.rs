//! `OpenRouter`, <https://openrouter.ai>.

use super::super::prompt_cache::takes_explicit_breakpoints;
use super::{CacheBreakpoint, Habits, OTHER, PromptCaching, is_host};

/// See <https://openrouter.ai/docs/guides/best-practices/prompt-caching>. It routes requests with
/// the same prefix to the same provider by itself.
pub(super) const HABITS: Habits = Habits {
    name: "OpenRouter",
    serves: |url| is_host(url, "openrouter.ai"),
    caching: |model| {
        let breakpoint = match model.split_once('/') {
            Some(("anthropic", _)) => Some(CacheBreakpoint::CacheControl),
            Some(("openai", name)) if takes_explicit_breakpoints(name) => {
                Some(CacheBreakpoint::Explicit)
            }
            _ => None,
        };
        PromptCaching { breakpoint, key: false }
    },
    ..OTHER
};
