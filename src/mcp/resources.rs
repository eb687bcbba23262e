//! Resources and prompts: texts that a client can add to a conversation.

use rmcp::model::{
    GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Resource, Role,
};

use super::context::ServerContext;
use crate::failure::Failure;
use crate::format::{describe_io_error, to_single_line};
use crate::spec::mask_secrets;

const GUIDE: &str = include_str!("../../docs/guides/queries.md");
/// A resource: URI, name, description and media type.
type ResourceRow = (&'static str, &'static str, &'static str, &'static str);
const SCHEMA: ResourceRow = (
    "hqdl://schema",
    "schema",
    "Tables, columns, keys, sample rows and expansions of the database",
    "application/json",
);
const SPEC: ResourceRow = ("hqdl://spec", "spec", "The spec of the database", "application/toml");
const GUIDE_ROW: ResourceRow =
    ("hqdl://guide", "guide", "How to write queries that ask a model", "text/markdown");

/// A prompt that the server offers, with its single argument.
struct PromptTemplate {
    name: &'static str,
    about: &'static str,
    argument: &'static str,
    argument_about: &'static str,
    /// Text of the prompt; `{}` is replaced by the argument.
    text: &'static str,
}

const PROMPTS: [PromptTemplate; 3] = [
    PromptTemplate {
        name: "answer",
        about: "Answer a question with a query",
        argument: "question",
        argument_about: "The question",
        text: "Answer this question with the database: {}\n\nCall `describe`, spell values as `search_values` \
               returns them, and write one query. Call `plan` first, tell me the price, and run the query with \
               `query` after I approved it. Say which tables and values you searched.",
    },
    PromptTemplate {
        name: "audit",
        about: "Check the answers of a column",
        argument: "sources",
        argument_about: "Sources that count as evidence, such as a web site",
        text: "Help me to audit the database. Call `audit_next` for a cell, find its true value in {}, and store \
               it with `audit_answer`, with the source as the note. Answer `?` if the sources do not contain the \
               value, and never guess. Your answers count as agreement between models, not as the truth. Stop when \
               `status` is `complete`.",
    },
    PromptTemplate {
        name: "fill",
        about: "Fill missing cells within a maximum cost",
        argument: "usd",
        argument_about: "Maximum cost in USD",
        text: "Fill the missing cells of the database for at most {} USD. Call `describe` for the coverage of the \
               columns, and `materialize` for the price of filling them. Name the columns that you would leave out \
               to stay within the price. Run `materialize` only after I approved its plan.",
    },
];

pub fn list_resources() -> Vec<Resource> {
    let resource = |(uri, name, about, kind): ResourceRow| {
        Resource::new(uri, name).with_description(about).with_mime_type(kind)
    };
    [SCHEMA, SPEC, GUIDE_ROW].map(resource).to_vec()
}

/// Returns the text of a resource and its media type; `None` if there is no such resource.
pub fn read_resource(
    context: &ServerContext,
    uri: &str,
) -> Result<Option<(String, &'static str)>, Failure> {
    let text = match uri {
        uri if uri == SCHEMA.0 => (format!("{:#}", context.describe_database(&[])?), SCHEMA.3),
        uri if uri == SPEC.0 => (read_spec(context)?, SPEC.3),
        uri if uri == GUIDE_ROW.0 => (GUIDE.to_owned(), GUIDE_ROW.3),
        _ => return Ok(None),
    };
    Ok(Some(text))
}

/// Returns the text of the spec without keys, passwords and parameters of URLs.
fn read_spec(context: &ServerContext) -> Result<String, Failure> {
    let path = &context.spec.path;
    if context.spec.expansions.is_empty() && !path.is_file() {
        return Ok(String::new());
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::wrong_input(format!("{}: {}", path.display(), describe_io_error(&error)), "")
    })?;
    Ok(mask_secrets(&text))
}

pub fn list_prompts() -> Vec<Prompt> {
    let prompt = |row: &PromptTemplate| {
        let argument = PromptArgument::new(row.argument).with_description(row.argument_about);
        Prompt::new(row.name, Some(row.about), Some(vec![argument.with_required(true)]))
    };
    PROMPTS.iter().map(prompt).collect()
}

/// Returns a prompt with its argument.
///
/// # Errors
/// Returns a message if there is no such prompt, or the argument is missing.
pub fn build_prompt(name: &str, arguments: Option<&JsonObject>) -> Result<GetPromptResult, String> {
    let row = PROMPTS.iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| {
        let all = crate::format::format_name_list("prompt", PROMPTS.iter().map(|row| row.name));
        format!("there is no prompt {}; {all}", to_single_line(name))
    })?;
    let argument = arguments.and_then(|all| all.get(row.argument)?.as_str());
    let argument =
        argument.ok_or_else(|| format!("the prompt needs the argument `{}`", row.argument))?;
    let text = row.text.replace("{}", argument.trim());
    let message = PromptMessage::new_text(Role::User, text);
    Ok(GetPromptResult::new(vec![message]).with_description(row.about))
}
