//! vLLM, recognized by its port.

use super::{Habits, OTHER, is_port};

/// See <https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html>.
pub(super) const HABITS: Habits = Habits {
    name: "vLLM",
    serves: |url| is_port(url, 8000),
    start: Some("start it with `vllm serve MODEL`"),
    ..OTHER
};
