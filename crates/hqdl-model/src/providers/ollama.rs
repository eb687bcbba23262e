//! Ollama, recognized by its port.

use super::{Habits, OTHER, is_port};

/// See <https://docs.ollama.com/api/openai-compatibility>.
pub(super) const HABITS: Habits = Habits {
    name: "Ollama",
    serves: |url| is_port(url, 11434),
    start: Some("start it with `ollama serve`, and download a model with `ollama pull NAME`"),
    ..OTHER
};
