//! Chooses the target of each call: a column of the spec that answers it, or a new question.

pub mod answer;
pub mod answer_parsing;
pub mod call_options;
pub mod calls;
pub mod coercion;
pub mod key_match;
pub mod keys;
pub mod kinds;
pub mod model_router;
