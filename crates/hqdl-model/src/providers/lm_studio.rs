//! LM Studio, recognized by its port.

use super::{Habits, OTHER, is_port};

/// See <https://lmstudio.ai/docs/developer/openai-compat>.
pub(super) const HABITS: Habits = Habits {
    name: "LM Studio",
    serves: |url| is_port(url, 1234),
    start: Some("start it with `lms server start`"),
    ..OTHER
};
