//! The proxy of `LiteLLM`, by its port.

use super::{Habits, OTHER, is_port};

/// See <https://docs.litellm.ai/docs/simple_proxy>.
pub(super) const HABITS: Habits = Habits {
    name: "LiteLLM",
    serves: |url| is_port(url, 4000),
    start: Some("`litellm --config FILE` starts it"),
    ..OTHER
};
