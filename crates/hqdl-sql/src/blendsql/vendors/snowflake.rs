//! Functions of Snowflake Cortex.

use super::call::FunctionCall;
use super::list::parse_object;
use super::{ANSWER, BOOL, Functions, IS_TRUE, SENTIMENT, STR, SUMMARIZE_GROUP, choose};
use crate::blendsql::SqlError;
use crate::blendsql::macros::{VendorIngredient, VendorQuestion};

pub(super) const FUNCTIONS: Functions = Functions {
    known: &[
        ("ai_filter", "AI_FILTER(PROMPT('Is it positive? {0}', t.c))", read_filter),
        ("ai_classify", "AI_CLASSIFY(t.c, ['good', 'bad'])", read_classify),
        ("ai_complete", "AI_COMPLETE('model', PROMPT('Translate this: {0}', t.c))", read_complete),
        ("ai_agg", "AI_AGG(t.c, 'Summarize the texts.')", read_aggregate),
        ("ai_summarize_agg", "AI_SUMMARIZE_AGG(t.c)", |call| {
            let [text] = call.match_arguments(["expr"])?;
            call.build_question_about(text, SUMMARIZE_GROUP, VendorIngredient::Reduce)
        }),
        ("ai_sentiment", "AI_SENTIMENT(t.c)", |call| {
            let [text, categories] = call.match_arguments(["text", "categories"])?;
            call.reject_argument(categories, "categories")?;
            call.build_question_about(
                text,
                SENTIMENT,
                choose(&["positive", "negative", "neutral", "mixed", "unknown"]),
            )
        }),
        ("ai_translate", "AI_TRANSLATE(t.c, 'de', 'en')", read_translate),
        ("ai_similarity", "AI_SIMILARITY(t.c, 'late delivery')", |call| {
            let [a, b, config] = call.match_arguments(["input1", "input2", "config_object"])?;
            call.reject_argument(config, "config_object")?;
            call.build_similarity_question(a, b)
        }),
        ("ai_embed", "AI_EMBED('model', t.c)", |call| {
            let [_, text] = call.match_arguments(["model", "input"])?;
            call.build_question_about(text, "", VendorIngredient::Embed)
        }),
        ("vector_cosine_similarity", "VECTOR_COSINE_SIMILARITY(t.v, t.w)", |call| {
            let [a, b] = call.match_arguments(["vector", "vector2"])?;
            call.build_similarity_question(a, b)
        }),
    ],
    prefixes: &["ai_", "snowflake.cortex."],
    has_double_quoted_strings: false,
};

fn read_filter(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [predicate, input] = call.match_arguments(["predicate", "input"])?;
    match input {
        Some(_) => {
            call.build_question_about(input, &call.require_text(predicate, "the predicate")?, BOOL)
        }
        None => call.build_prompt_question(predicate, IS_TRUE, BOOL),
    }
}

/// Rewrites a classification. The result is a label or, in multi mode, a JSON list of labels.
fn read_classify(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [input, categories, config] =
        call.match_arguments(["input", "list_of_categories", "config_object"])?;
    let (mut question, mut is_many) = (String::new(), false);
    if let Some(config) = config {
        let sql = call.text.sql;
        let fields = parse_object(sql, config.tokens)
            .ok_or_else(|| call.error_at(&config, "the configuration must be an object"))?;
        call.reject_repeated_fields(&fields)?;
        for (name, value) in fields {
            let value = call.read_text(&value, &name)?;
            match (name.as_str(), value.as_str()) {
                ("task_description", task) => {
                    call.reject_slot(task)?;
                    task.clone_into(&mut question);
                }
                ("output_mode", "multi") => is_many = true,
                ("output_mode", "single") => {}
                _ => {
                    return Err(call.error_at(
                        &config,
                        &format!("the configuration has no field `{name}` in hqdl"),
                    ));
                }
            }
        }
    }
    call.build_classification(input, categories, &question, is_many)
}

fn read_complete(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [_, prompt, _, format] =
        call.match_arguments(["model", "prompt", "model_parameters", "response_format"])?;
    call.reject_argument(format, "response_format")?;
    call.build_prompt_question(prompt, ANSWER, STR)
}

fn read_aggregate(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [value, task] = call.match_arguments(["expr", "task_description"])?;
    call.build_question_about(value, &call.require_text(task, "a task")?, VendorIngredient::Reduce)
}

fn read_translate(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [text, from, to] = call.match_arguments(["text", "source_language", "target_language"])?;
    let from = call.require_text(from, "the source language")?;
    let to = call.require_text(to, "the target language")?;
    let from = if from.is_empty() { String::new() } else { format!(" from {from}") };
    call.build_question_about(text, &format!("Translate the text{from} to {to}."), STR)
}
