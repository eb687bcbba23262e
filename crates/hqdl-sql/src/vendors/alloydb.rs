//! Functions of `AlloyDB`. The rest of a query is `PostgreSQL`'s syntax, as in SUQL.

use super::call::FunctionCall;
use super::{ANSWER, BOOL, FLOAT, Functions, IS_TRUE, SENTIMENT, STR, SUMMARIZE_GROUP};
use crate::blendsql::SqlError;

pub(super) const FUNCTIONS: Functions = Functions {
    rewritten: &[
        ("ai.if", |call| rewrite_ask(call, IS_TRUE, BOOL)),
        ("google_ml.if", |call| rewrite_ask(call, IS_TRUE, BOOL)),
        ("ai.rank", |call| rewrite_ask(call, "Rate this.", FLOAT)),
        ("google_ml.rank", |call| rewrite_ask(call, "Rate this.", FLOAT)),
        ("ai.generate", |call| rewrite_ask(call, ANSWER, STR)),
        ("google_ml.generate", |call| rewrite_ask(call, ANSWER, STR)),
        ("ai.summarize", |call| {
            let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
            call.write_question_about(prompt, "Summarize the text.", STR)
        }),
        ("ai.analyze_sentiment", |call| {
            let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
            let options = ", options=('positive', 'negative', 'neutral'), return_type='str'";
            call.write_question_about(prompt, SENTIMENT, options)
        }),
        ("ai.agg_summarize", |call| {
            let [input] = call.match_arguments(["input"])?;
            call.write_reduction(input, SUMMARIZE_GROUP)
        }),
    ],
    prefixes: &["ai.", "google_ml."],
    has_double_quoted_strings: false,
};

/// Ignores `model_id`, because hqdl uses its own model.
fn rewrite_ask(call: &FunctionCall<'_>, default: &str, options: &str) -> Result<String, SqlError> {
    let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
    call.write_prompt(prompt, default, options)
}
