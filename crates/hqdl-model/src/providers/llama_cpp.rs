//! The llama.cpp server, recognized by its port.

use super::{Habits, OTHER, is_port};

/// See <https://github.com/ggml-org/llama.cpp/tree/master/tools/server>.
pub(super) const HABITS: Habits = Habits {
    name: "llama.cpp",
    serves: |url| is_port(url, 8080),
    start: Some("start it with `llama-server -m MODEL.gguf`"),
    ..OTHER
};
