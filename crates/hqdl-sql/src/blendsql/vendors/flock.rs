//! Functions of flock for `DuckDB`.

use super::call::FunctionCall;
use super::list::{ObjectFields, parse_object, parse_objects};
use super::prompt::name_values;
use super::{ANSWER, BOOL, Functions, IS_TRUE, STR};
use crate::blendsql::SqlError;
use crate::blendsql::macros::{NamedValue, VendorIngredient, VendorQuestion};

pub(super) const FUNCTIONS: Functions = Functions {
    known: &[
        (
            "llm_complete",
            "llm_complete({'model_name': 'm'}, {'prompt': 'Translate this.', 'context_columns': [{'data': t.c}]})",
            |call| read_ask(call, ANSWER, STR),
        ),
        (
            "llm_filter",
            "llm_filter({'model_name': 'm'}, {'prompt': 'Is it positive?', 'context_columns': [{'data': t.c}]})",
            |call| read_ask(call, IS_TRUE, BOOL),
        ),
        (
            "llm_embedding",
            "llm_embedding({'model_name': 'm'}, {'context_columns': [{'data': t.c}]})",
            |call| read_about_columns(call, VendorIngredient::Embed),
        ),
        (
            "llm_reduce",
            "llm_reduce({'model_name': 'm'}, {'prompt': 'Summarize.', 'context_columns': [{'data': t.c}]})",
            |call| read_about_columns(call, VendorIngredient::Reduce),
        ),
    ],
    prefixes: &["llm_"],
    has_double_quoted_strings: false,
};

fn read_ask(
    call: &FunctionCall<'_>,
    default: &str,
    ingredient: VendorIngredient,
) -> Result<VendorQuestion, SqlError> {
    let (text, values) = read_prompt(call, default)?;
    Ok(VendorQuestion { ingredient, text, values })
}

/// Reads a prompt that needs at least one column.
fn read_about_columns(
    call: &FunctionCall<'_>,
    ingredient: VendorIngredient,
) -> Result<VendorQuestion, SqlError> {
    let question = read_ask(call, ANSWER, ingredient)?;
    if question.values.is_empty() {
        return Err(call.error_at_name(&format!("`{}` needs a column", call.name)));
    }
    Ok(question)
}

/// Reads `{'model_name': …}, {'prompt': '…', 'context_columns': [{'data': c, 'name': 'n'}]}`.
/// Returns the question and the columns. Ignores the model, because hqdl uses its own.
fn read_prompt(
    call: &FunctionCall<'_>,
    default: &str,
) -> Result<(String, Vec<NamedValue>), SqlError> {
    let sql = call.text.sql;
    let [_, prompt] = call.match_arguments(["model", "prompt"])?;
    let prompt = call.require_argument(prompt, "a prompt")?;
    let fields = parse_object(sql, prompt.tokens)
        .ok_or_else(|| call.error_at(&prompt, "the prompt must be an object"))?;
    call.reject_repeated_fields(&fields)?;
    let (mut question, mut columns) = (default.to_owned(), Vec::new());
    for (name, value) in fields {
        match name.as_str() {
            "prompt" => {
                question = call.read_text(&value, "the prompt")?;
                call.reject_slot(&question)?;
            }
            "context_columns" => {
                let objects = parse_objects(sql, &value).ok_or_else(|| {
                    call.error_at(&prompt, "context_columns must be a list of objects")
                })?;
                for column in objects {
                    let value = read_column(call, &column)?;
                    let text = sql.get(value.span.clone()).unwrap_or_default();
                    columns.push((text.to_owned(), value));
                }
            }
            _ => {
                let message = format!("a prompt has no field `{name}` in hqdl");
                return Err(call.error_at(&prompt, &message));
            }
        }
    }
    Ok((question, name_values(columns)))
}

/// Returns a context column with the name that the query specifies, if any.
fn read_column(call: &FunctionCall<'_>, fields: &ObjectFields) -> Result<NamedValue, SqlError> {
    call.reject_repeated_fields(fields)?;
    let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, v)| v);
    let data = field("data").ok_or_else(|| call.error_at_name("a context column needs `data`"))?;
    if let Some((name, _)) = fields.iter().find(|(name, _)| !["data", "name"].contains(&&**name)) {
        let message = format!("a context column has no field `{name}` in hqdl");
        return Err(call.error_at_name(&message));
    }
    let name = field("name").map(|name| call.read_text(name, "name")).transpose()?;
    Ok(NamedValue { name: name.unwrap_or_default(), ..call.text.read_value(data)? })
}
