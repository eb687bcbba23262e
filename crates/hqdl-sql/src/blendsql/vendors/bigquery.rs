//! Functions of `BigQuery`.

use super::call::FunctionCall;
use super::{ANSWER, BOOL, FLOAT, Functions, INT, IS_TRUE, STR, SUMMARIZE_GROUP};
use crate::blendsql::SqlError;
use crate::blendsql::macros::{VendorIngredient, VendorQuestion};

pub(super) const FUNCTIONS: Functions = Functions {
    known: &[
        ("ai.if", "AI.IF(('Is it positive? ', t.c))", |call| read_ask(call, IS_TRUE, BOOL)),
        ("ai.score", "AI.SCORE(('How positive is it? ', t.c))", |call| {
            read_ask(call, "Rate this.", FLOAT)
        }),
        ("ai.generate", "AI.GENERATE(('Translate this: ', t.c))", |call| {
            read_ask(call, ANSWER, STR)
        }),
        ("ai.generate_bool", "AI.GENERATE_BOOL(('Is it positive? ', t.c))", |call| {
            read_ask(call, IS_TRUE, BOOL)
        }),
        ("ai.generate_int", "AI.GENERATE_INT(('How many people? ', t.c))", |call| {
            read_ask(call, ANSWER, INT)
        }),
        ("ai.generate_double", "AI.GENERATE_DOUBLE(('What price? ', t.c))", |call| {
            read_ask(call, ANSWER, FLOAT)
        }),
        ("ai.classify", "AI.CLASSIFY(t.c, categories => ['good', 'bad'])", |call| {
            let [input, categories, _, _] =
                call.match_arguments(["input", "categories", "connection_id", "endpoint"])?;
            call.build_classification(input, categories, "", false)
        }),
        ("ai.similarity", "AI.SIMILARITY(t.c, 'late delivery', endpoint => 'model')", |call| {
            let [a, b, _, _, _] = call.match_arguments([
                "content1",
                "content2",
                "connection_id",
                "endpoint",
                "model",
            ])?;
            call.build_similarity_question(a, b)
        }),
        ("ai.embed", "AI.EMBED(t.c, endpoint => 'model')", |call| {
            let [text, _, _, _, _] = call.match_arguments([
                "content",
                "connection_id",
                "endpoint",
                "model",
                "task_type",
            ])?;
            call.build_question_about(text, "", VendorIngredient::Embed)
        }),
        ("ai.agg", "AI.AGG(t.c, 'Summarize the texts.')", |call| {
            let [input, instruction, _, _] =
                call.match_arguments(["input", "instruction", "connection_id", "endpoint"])?;
            match instruction {
                Some(_) => call.build_question_about(
                    input,
                    &call.require_text(instruction, "an instruction")?,
                    VendorIngredient::Reduce,
                ),
                None => call.build_question_about(input, SUMMARIZE_GROUP, VendorIngredient::Reduce),
            }
        }),
    ],
    prefixes: &["ai.", "ml.generate_", "vector_search"],
    has_double_quoted_strings: true,
};

/// Ignores the connection and the endpoint, because hqdl uses its own model.
fn read_ask(
    call: &FunctionCall<'_>,
    default: &str,
    ingredient: VendorIngredient,
) -> Result<VendorQuestion, SqlError> {
    let [prompt, _, _, _, schema] = call.match_arguments([
        "prompt",
        "connection_id",
        "endpoint",
        "model_params",
        "output_schema",
    ])?;
    call.reject_argument(schema, "output_schema")?;
    call.build_prompt_question(prompt, default, ingredient)
}
