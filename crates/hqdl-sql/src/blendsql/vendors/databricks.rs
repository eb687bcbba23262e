//! Functions of Databricks.

use super::call::FunctionCall;
use super::{ANSWER, BOOL, FLOAT, Functions, INT, SENTIMENT, STR, choose};
use crate::blendsql::SqlError;
use crate::blendsql::macros::VendorQuestion;

pub(super) const FUNCTIONS: Functions = Functions {
    known: &[
        ("ai_query", "ai_query('model', 'Translate this: ' || t.c)", read_query),
        ("ai_gen", "ai_gen('Translate this: ' || t.c)", |call| {
            let [prompt] = call.match_arguments(["prompt"])?;
            call.build_prompt_question(prompt, ANSWER, STR)
        }),
        ("ai_classify", "ai_classify(t.c, ARRAY('good', 'bad'))", |call| {
            let [content, labels] = call.match_arguments(["content", "labels"])?;
            call.build_classification(content, labels, "", false)
        }),
        ("ai_analyze_sentiment", "ai_analyze_sentiment(t.c)", |call| {
            let [content] = call.match_arguments(["content"])?;
            call.build_question_about(
                content,
                SENTIMENT,
                choose(&["positive", "negative", "neutral", "mixed"]),
            )
        }),
        ("ai_summarize", "ai_summarize(t.c, 20)", read_summarize),
        ("ai_translate", "ai_translate(t.c, 'en')", |call| {
            let [content, to] = call.match_arguments(["content", "to_lang"])?;
            let to = call.require_text(to, "the target language")?;
            call.build_question_about(content, &format!("Translate the text to {to}."), STR)
        }),
        ("ai_fix_grammar", "ai_fix_grammar(t.c)", |call| {
            let [content] = call.match_arguments(["content"])?;
            call.build_question_about(content, "Correct the grammatical errors of the text.", STR)
        }),
        ("ai_similarity", "ai_similarity(t.c, 'late delivery')", |call| {
            let [a, b] = call.match_arguments(["expr1", "expr2"])?;
            call.build_similarity_question(a, b)
        }),
        ("ai_mask", "ai_mask(t.c, ARRAY('name', 'address'))", |call| {
            let [content, labels] = call.match_arguments(["content", "labels"])?;
            let labels = call.require_texts(labels, "labels")?.join(", ");
            let question = format!("Replace each of these in the text with [MASKED]: {labels}.");
            call.build_question_about(content, &question, STR)
        }),
    ],
    prefixes: &["ai_", "vector_search"],
    has_double_quoted_strings: true,
};

/// Ignores the endpoint, because hqdl uses its own model.
fn read_query(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [_, request, return_type, _, _] = call.match_arguments([
        "endpoint",
        "request",
        "returntype",
        "failonerror",
        "modelparameters",
    ])?;
    let ingredient = match return_type {
        None => STR,
        Some(name) => match &*call.require_text(return_type, "returnType")?.to_uppercase() {
            "STRING" => STR,
            "BOOLEAN" => BOOL,
            "INT" | "INTEGER" | "BIGINT" => INT,
            "DOUBLE" | "FLOAT" => FLOAT,
            _ => return Err(call.error_at(&name, "hqdl has no equivalent of this returnType")),
        },
    };
    call.build_prompt_question(request, ANSWER, ingredient)
}

fn read_summarize(call: &FunctionCall<'_>) -> Result<VendorQuestion, SqlError> {
    let [content, max_words] = call.match_arguments(["content", "max_words"])?;
    let words = match max_words {
        None => "50",
        Some(words) => call.text_of(&words),
    };
    if words == "0" {
        return call.build_question_about(content, "Summarize the text.", STR);
    }
    if words.parse::<u32>().is_err() {
        return Err(call.error_at_name("`ai_summarize` needs max_words as a number"));
    }
    call.build_question_about(
        content,
        &format!("Summarize the text in at most {words} words."),
        STR,
    )
}
