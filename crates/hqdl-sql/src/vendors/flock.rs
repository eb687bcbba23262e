//! Functions of flock for `DuckDB`.

use super::call::FunctionCall;
use super::list::{ObjectFields, parse_object, parse_objects};
use super::prompt::{join_values, write_question};
use super::{ANSWER, BOOL, Functions, IS_TRUE, STR};
use crate::blendsql::SqlError;
use hqdl_values::sql::quote_text;

pub(super) const FUNCTIONS: Functions = Functions {
    rewritten: &[
        (
            "llm_complete",
            "llm_complete({'model_name': 'm'}, {'prompt': 'Translate this.', 'context_columns': [{'data': t.c}]})",
            |call| rewrite_ask(call, ANSWER, STR),
        ),
        (
            "llm_filter",
            "llm_filter({'model_name': 'm'}, {'prompt': 'Is it positive?', 'context_columns': [{'data': t.c}]})",
            |call| rewrite_ask(call, IS_TRUE, BOOL),
        ),
        (
            "llm_embedding",
            "llm_embedding({'model_name': 'm'}, {'context_columns': [{'data': t.c}]})",
            |call| {
                let prompt = FlockPrompt::read(call, ANSWER)?;
                let value = join_values(&prompt.values())
                    .ok_or_else(|| call.error_at_name("`llm_embedding` needs a column"))?;
                Ok(format!("embed({value})"))
            },
        ),
        (
            "llm_reduce",
            "llm_reduce({'model_name': 'm'}, {'prompt': 'Summarize.', 'context_columns': [{'data': t.c}]})",
            |call| {
                let prompt = FlockPrompt::read(call, ANSWER)?;
                let value = join_values(&prompt.values())
                    .ok_or_else(|| call.error_at_name("`llm_reduce` needs a column"))?;
                Ok(format!("{{{{LLMReduce({}, {value})}}}}", quote_text(&prompt.question)))
            },
        ),
    ],
    prefixes: &["llm_"],
    has_double_quoted_strings: false,
};

fn rewrite_ask(call: &FunctionCall<'_>, default: &str, options: &str) -> Result<String, SqlError> {
    let prompt = FlockPrompt::read(call, default)?;
    Ok(write_question(&prompt.question, &prompt.values(), options))
}

/// The prompt of a call: its question, and columns with their names.
struct FlockPrompt {
    question: String,
    columns: Vec<(String, Option<String>)>,
}

impl FlockPrompt {
    /// Reads `{'model_name': …}, {'prompt': '…', 'context_columns': [{'data': c, 'name': 'n'}]}`.
    /// Ignores the model, because hqdl uses its own.
    fn read(call: &FunctionCall<'_>, default: &str) -> Result<Self, SqlError> {
        let sql = call.translator.sql;
        let [_, prompt] = call.match_arguments(["model", "prompt"])?;
        let prompt = call.require(prompt, "a prompt")?;
        let fields = parse_object(sql, prompt.tokens)
            .ok_or_else(|| call.error_at(&prompt, "the prompt must be an object"))?;
        call.reject_repeated_fields(&fields)?;
        let (mut question, mut read_columns) = (default.to_owned(), Vec::new());
        for (name, value) in fields {
            match name.as_str() {
                "prompt" => {
                    question = call.read_text(&value, "the prompt")?;
                    call.reject_slot(&question)?;
                }
                "context_columns" => {
                    let columns = parse_objects(sql, &value).ok_or_else(|| {
                        call.error_at(&prompt, "context_columns must be a list of objects")
                    })?;
                    for column in columns {
                        read_columns.push(read_column(call, &column)?);
                    }
                }
                _ => {
                    let message = format!("a prompt has no field `{name}` in hqdl");
                    return Err(call.error_at(&prompt, &message));
                }
            }
        }
        Ok(Self { question, columns: read_columns })
    }

    fn values(&self) -> Vec<(&str, Option<&str>)> {
        self.columns.iter().map(|(value, name)| (value.as_str(), name.as_deref())).collect()
    }
}

/// Returns the expression of a context column, and its name if the query specifies one.
fn read_column(
    call: &FunctionCall<'_>,
    fields: &ObjectFields,
) -> Result<(String, Option<String>), SqlError> {
    call.reject_repeated_fields(fields)?;
    let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, v)| v);
    let data = field("data").ok_or_else(|| call.error_at_name("a context column needs `data`"))?;
    if let Some((name, _)) = fields.iter().find(|(name, _)| !["data", "name"].contains(&&**name)) {
        let message = format!("a context column has no field `{name}` in hqdl");
        return Err(call.error_at_name(&message));
    }
    let name = field("name").map(|name| call.read_text(name, "name")).transpose()?;
    Ok((call.translator.translate_expression(data)?, name))
}
