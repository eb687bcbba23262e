//! Functions of Snowflake Cortex.

use super::call::FunctionCall;
use super::list::parse_object;
use super::{ANSWER, BOOL, Functions, IS_TRUE, SENTIMENT, STR, SUMMARIZE_GROUP};
use crate::blendsql::SqlError;
use hqdl_values::sql::quote_text;

pub(super) const FUNCTIONS: Functions = Functions {
    rewritten: &[
        ("ai_filter", "AI_FILTER(PROMPT('Is it positive? {0}', t.c))", rewrite_filter),
        ("ai_classify", "AI_CLASSIFY(t.c, ['good', 'bad'])", rewrite_classify),
        (
            "ai_complete",
            "AI_COMPLETE('model', PROMPT('Translate this: {0}', t.c))",
            rewrite_complete,
        ),
        ("ai_agg", "AI_AGG(t.c, 'Summarize the texts.')", rewrite_aggregate),
        ("ai_summarize_agg", "AI_SUMMARIZE_AGG(t.c)", |call| {
            let [text] = call.match_arguments(["expr"])?;
            call.write_reduction(text, SUMMARIZE_GROUP)
        }),
        ("ai_sentiment", "AI_SENTIMENT(t.c)", |call| {
            let [text, categories] = call.match_arguments(["text", "categories"])?;
            call.refuse(categories, "categories")?;
            let options = ", options=('positive', 'negative', 'neutral', 'mixed', 'unknown'), return_type='str'";
            call.write_question_about(text, SENTIMENT, options)
        }),
        ("ai_translate", "AI_TRANSLATE(t.c, 'de', 'en')", rewrite_translate),
        ("ai_similarity", "AI_SIMILARITY(t.c, 'late delivery')", |call| {
            let [a, b, config] = call.match_arguments(["input1", "input2", "config_object"])?;
            call.refuse(config, "config_object")?;
            call.write_similarity(a, b)
        }),
        ("ai_embed", "AI_EMBED('model', t.c)", |call| {
            let [_, text] = call.match_arguments(["model", "input"])?;
            call.write_embedding(text)
        }),
        ("vector_cosine_similarity", "VECTOR_COSINE_SIMILARITY(t.v, t.w)", |call| {
            let [a, b] = call.match_arguments(["vector", "vector2"])?;
            call.write_similarity(a, b)
        }),
    ],
    prefixes: &["ai_", "snowflake.cortex."],
    has_double_quoted_strings: false,
};

fn rewrite_filter(call: &FunctionCall<'_>) -> Result<String, SqlError> {
    let [predicate, input] = call.match_arguments(["predicate", "input"])?;
    match input {
        Some(_) => {
            call.write_question_about(input, &call.require_text(predicate, "the predicate")?, BOOL)
        }
        None => call.write_prompt(predicate, IS_TRUE, BOOL),
    }
}

/// Rewrites a classification. The result is a label or, in multi mode, a JSON list of labels.
fn rewrite_classify(call: &FunctionCall<'_>) -> Result<String, SqlError> {
    let [input, categories, config] =
        call.match_arguments(["input", "list_of_categories", "config_object"])?;
    let mut options = String::new();
    if let Some(config) = config {
        let sql = call.translator.sql;
        let fields = parse_object(sql, config.tokens)
            .ok_or_else(|| call.error_at(&config, "the configuration must be an object"))?;
        call.reject_repeated_fields(&fields)?;
        for (name, value) in fields {
            let value = call.read_text(&value, &name)?;
            match (name.as_str(), value.as_str()) {
                ("task_description", task) => {
                    call.reject_slot(task)?;
                    options.push_str(&format!(", question={}", quote_text(task)));
                }
                ("output_mode", "multi") => options.push_str(", many=true"),
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
    call.write_classification(input, categories, &options)
}

fn rewrite_complete(call: &FunctionCall<'_>) -> Result<String, SqlError> {
    let [_, prompt, _, format] =
        call.match_arguments(["model", "prompt", "model_parameters", "response_format"])?;
    call.refuse(format, "response_format")?;
    call.write_prompt(prompt, ANSWER, STR)
}

fn rewrite_aggregate(call: &FunctionCall<'_>) -> Result<String, SqlError> {
    let [value, task] = call.match_arguments(["expr", "task_description"])?;
    call.write_reduction(value, &call.require_text(task, "a task")?)
}

fn rewrite_translate(call: &FunctionCall<'_>) -> Result<String, SqlError> {
    let [text, from, to] = call.match_arguments(["text", "source_language", "target_language"])?;
    let from = call.require_text(from, "the source language")?;
    let to = call.require_text(to, "the target language")?;
    let from = if from.is_empty() { String::new() } else { format!(" from {from}") };
    call.write_question_about(text, &format!("Translate the text{from} to {to}."), STR)
}
