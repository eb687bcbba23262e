//! Anthropic, `https://api.anthropic.com/v1`. Its OpenAI-compatible endpoint ignores
//! `response_format`, so hqdl sends none. The endpoint has no prompt cache.

use super::{DEFAULT_PROFILE, ProviderProfile, has_host};

/// See <https://platform.claude.com/docs/en/api/openai-sdk>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "Anthropic",
    matches_url: |url| has_host(url, "api.anthropic.com"),
    key_variable: Some("ANTHROPIC_API_KEY"),
    supports_schema: false,
    // Anthropic's own clients are configured with a URL without the version.
    prepare_url: |url| {
        if url.path() == "/" {
            url.set_path("/v1");
        }
    },
    ..DEFAULT_PROFILE
};
