//! Functions of `BigQuery`.

use super::call::FunctionCall;
use super::{ANSWER, BOOL, FLOAT, Functions, INT, IS_TRUE, STR, SUMMARIZE_GROUP};
use crate::blendsql::SqlError;

pub(super) const FUNCTIONS: Functions = Functions {
    rewritten: &[
        ("ai.if", |call| rewrite_ask(call, IS_TRUE, BOOL)),
        ("ai.score", |call| rewrite_ask(call, "Rate this.", FLOAT)),
        ("ai.generate", |call| rewrite_ask(call, ANSWER, STR)),
        ("ai.generate_bool", |call| rewrite_ask(call, IS_TRUE, BOOL)),
        ("ai.generate_int", |call| rewrite_ask(call, ANSWER, INT)),
        ("ai.generate_double", |call| rewrite_ask(call, ANSWER, FLOAT)),
        ("ai.classify", |call| {
            let [input, categories, _, _] =
                call.match_arguments(["input", "categories", "connection_id", "endpoint"])?;
            call.write_classification(input, categories, "")
        }),
        ("ai.agg", |call| {
            let [input, instruction, _, _] =
                call.match_arguments(["input", "instruction", "connection_id", "endpoint"])?;
            match instruction {
                Some(_) => {
                    call.write_reduction(input, &call.require_text(instruction, "an instruction")?)
                }
                None => call.write_reduction(input, SUMMARIZE_GROUP),
            }
        }),
    ],
    prefixes: &["ai.", "ml.generate_", "vector_search"],
    has_double_quoted_strings: true,
};

/// Ignores the connection and the endpoint, because hqdl uses its own model.
fn rewrite_ask(call: &FunctionCall<'_>, default: &str, options: &str) -> Result<String, SqlError> {
    let [prompt, _, _, _, schema] = call.match_arguments([
        "prompt",
        "connection_id",
        "endpoint",
        "model_params",
        "output_schema",
    ])?;
    call.refuse(schema, "output_schema")?;
    call.write_prompt(prompt, default, options)
}
