//! `OpenAI` itself. Its newer models accept only the newer name of the output limit; older ones
//! accept both.

use super::super::prompt_cache::supports_explicit_breakpoints;
use super::{
    CacheBreakpoint, DEFAULT_PROFILE, NEW_LIMIT_NAME, PromptCaching, ProviderProfile, has_host,
};

/// See <https://platform.openai.com/docs/api-reference/chat> and
/// <https://developers.openai.com/api/docs/guides/prompt-caching>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "OpenAI",
    matches_url: |url| has_host(url, "api.openai.com"),
    key_variable: Some("OPENAI_API_KEY"),
    headers: &[("openai-organization", "OPENAI_ORG_ID"), ("openai-project", "OPENAI_PROJECT_ID")],
    limit_name: NEW_LIMIT_NAME,
    caching: |model| PromptCaching {
        breakpoint: supports_explicit_breakpoints(model).then_some(CacheBreakpoint::Explicit),
        key: true,
    },
    ..DEFAULT_PROFILE
};
