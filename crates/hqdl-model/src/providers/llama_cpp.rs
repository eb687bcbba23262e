//! The llama.cpp server, recognized by its port.

use super::{DEFAULT_PROFILE, ProviderProfile, has_port};

/// See <https://github.com/ggml-org/llama.cpp/tree/master/tools/server>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "llama.cpp",
    matches_url: |url| has_port(url, 8080),
    start_hint: Some("start it with `llama-server -m MODEL.gguf`"),
    ..DEFAULT_PROFILE
};
