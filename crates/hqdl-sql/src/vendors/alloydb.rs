//! Functions of `AlloyDB`. The rest of a query uses `PostgreSQL`'s syntax, as in `SUQL`.

use super::call::FunctionCall;
use super::{ANSWER, BOOL, FLOAT, Functions, IS_TRUE, SENTIMENT, STR, SUMMARIZE_GROUP};
use crate::blendsql::SqlError;

pub(super) const FUNCTIONS: Functions = Functions {
    rewritten: &[
        ("ai.if", "ai.if('Is it positive? ' || t.c)", |call| rewrite_ask(call, IS_TRUE, BOOL)),
        ("google_ml.if", "google_ml.if('Is it positive? ' || t.c)", |call| {
            rewrite_ask(call, IS_TRUE, BOOL)
        }),
        ("ai.rank", "ai.rank('How positive is it? ' || t.c)", |call| {
            rewrite_ask(call, "Rate this.", FLOAT)
        }),
        ("google_ml.rank", "google_ml.rank('How positive is it? ' || t.c)", |call| {
            rewrite_ask(call, "Rate this.", FLOAT)
        }),
        ("ai.generate", "ai.generate('Translate this: ' || t.c)", |call| {
            rewrite_ask(call, ANSWER, STR)
        }),
        ("google_ml.generate", "google_ml.generate('Translate this: ' || t.c)", |call| {
            rewrite_ask(call, ANSWER, STR)
        }),
        ("ai.summarize", "ai.summarize(t.c)", |call| {
            let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
            call.write_question_about(prompt, "Summarize the text.", STR)
        }),
        ("ai.analyze_sentiment", "ai.analyze_sentiment(t.c)", |call| {
            let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
            let options = ", options=('positive', 'negative', 'neutral'), return_type='str'";
            call.write_question_about(prompt, SENTIMENT, options)
        }),
        ("embedding", "embedding('model', t.c)", |call| {
            let [_, text] = call.match_arguments(["model_id", "content"])?;
            call.write_embedding(text)
        }),
        ("google_ml.embedding", "google_ml.embedding('model', t.c)", |call| {
            let [_, text] = call.match_arguments(["model_id", "content"])?;
            call.write_embedding(text)
        }),
        ("ai.agg_summarize", "ai.agg_summarize(t.c)", |call| {
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
