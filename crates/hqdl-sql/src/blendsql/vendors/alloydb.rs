//! Functions of `AlloyDB`. The rest of a query uses `PostgreSQL`'s syntax, as in `SUQL`.

use super::call::FunctionCall;
use super::{ANSWER, BOOL, FLOAT, Functions, IS_TRUE, SENTIMENT, STR, SUMMARIZE_GROUP, choose};
use crate::blendsql::SqlError;
use crate::blendsql::macros::{VendorIngredient, VendorQuestion};

pub(super) const FUNCTIONS: Functions = Functions {
    known: &[
        ("ai.if", "ai.if('Is it positive? ' || t.c)", |call| read_ask(call, IS_TRUE, BOOL)),
        ("google_ml.if", "google_ml.if('Is it positive? ' || t.c)", |call| {
            read_ask(call, IS_TRUE, BOOL)
        }),
        ("ai.rank", "ai.rank('How positive is it? ' || t.c)", |call| {
            read_ask(call, "Rate this.", FLOAT)
        }),
        ("google_ml.rank", "google_ml.rank('How positive is it? ' || t.c)", |call| {
            read_ask(call, "Rate this.", FLOAT)
        }),
        ("ai.generate", "ai.generate('Translate this: ' || t.c)", |call| {
            read_ask(call, ANSWER, STR)
        }),
        ("google_ml.generate", "google_ml.generate('Translate this: ' || t.c)", |call| {
            read_ask(call, ANSWER, STR)
        }),
        ("ai.summarize", "ai.summarize(t.c)", |call| {
            let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
            call.build_question_about(prompt, "Summarize the text.", STR)
        }),
        ("ai.analyze_sentiment", "ai.analyze_sentiment(t.c)", |call| {
            let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
            call.build_question_about(
                prompt,
                SENTIMENT,
                choose(&["positive", "negative", "neutral"]),
            )
        }),
        ("embedding", "embedding('model', t.c)", |call| {
            let [_, text] = call.match_arguments(["model_id", "content"])?;
            call.build_question_about(text, "", VendorIngredient::Embed)
        }),
        ("google_ml.embedding", "google_ml.embedding('model', t.c)", |call| {
            let [_, text] = call.match_arguments(["model_id", "content"])?;
            call.build_question_about(text, "", VendorIngredient::Embed)
        }),
        ("ai.agg_summarize", "ai.agg_summarize(t.c)", |call| {
            let [input] = call.match_arguments(["input"])?;
            call.build_question_about(input, SUMMARIZE_GROUP, VendorIngredient::Reduce)
        }),
    ],
    prefixes: &["ai.", "google_ml."],
    has_double_quoted_strings: false,
};

/// Ignores `model_id`, because hqdl uses its own model.
fn read_ask(
    call: &FunctionCall<'_>,
    default: &str,
    ingredient: VendorIngredient,
) -> Result<VendorQuestion, SqlError> {
    let [prompt, _] = call.match_arguments(["prompt", "model_id"])?;
    call.build_prompt_question(prompt, default, ingredient)
}
