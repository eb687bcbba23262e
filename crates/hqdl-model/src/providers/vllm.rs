//! vLLM, recognized by its port.

use super::{DEFAULT_PROFILE, ProviderProfile, has_port};

/// See <https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "vLLM",
    matches_url: |url| has_port(url, 8000),
    start_hint: Some("start it with `vllm serve MODEL`"),
    ..DEFAULT_PROFILE
};
