//! LM Studio, recognized by its port.

use super::{DEFAULT_PROFILE, ProviderProfile, has_port};

/// See <https://lmstudio.ai/docs/developer/openai-compat>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "LM Studio",
    matches_url: |url| has_port(url, 1234),
    start_hint: Some("start it with `lms server start`"),
    ..DEFAULT_PROFILE
};
