//! Rewrites calls of ingredients that a function computes, such as a function in Python.
//!
//! | written | read as |
//! |---|---|
//! | `{{f(t.a, 'x')}}`, about values | `{{LLMMap('f v1 [["a"],["b","x"]]', t.a, model='function f')}}` |
//! | `{{f((SELECT …))}}`, about rows | `{{LLMQA('f v1 [["a"]]', (SELECT …), model='function f')}}` |
//! | `{{f(t.a, u.b)}}`, about pairs | `{{LLMJoin(t.a, u.b, join_criteria='f v1 []', model='function f')}}` |
//! | `{{f('x')}}`, an alias | the SQL that the function returns |
//!
//! The question identifies the facts. It has the name and the version of the function, and the
//! names of the arguments in order. A literal is a part of the question; the other arguments are
//! the values of the row.

use serde_json::Value as Json;

use crate::query::read::arguments::MacroNode;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_spec::ingredients::{AliasArgument, FunctionIngredient, FunctionKind, IngredientTable};
use hqdl_sql::blendsql::SqlError;
use hqdl_sql::blendsql::lexer::TokenKind;
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::normalize::SourceQuery;
use hqdl_sql::blendsql::parse::Syntax;
use hqdl_sql::{Edits, TranslatedQuery};

/// Maximum number of times that an alias may expand to another alias.
const MAX_ALIAS_DEPTH: usize = 16;

/// Arguments of `LLMJoin` that a join by a function accepts, too.
const JOIN_ARGUMENTS: [&str; 4] = ["block", "threshold", "exact", "narrow"];

/// An argument of a function with its name.
type NamedArgument<'o, 't> = (&'o str, &'t WrittenArgument);

impl<'t> MacroNode<'t> {
    /// Returns the edits for a call of a function about values, rows or pairs.
    pub(super) fn rewrite_function_call(
        &self,
        own: &IngredientTable,
        function: &FunctionIngredient,
    ) -> Result<Edits, QueryError> {
        let (mut given, others) = self.match_function_arguments(own, function)?;
        // The values of the row stay in the order of the text.
        given.sort_by_key(|(_, argument)| argument.span().start);
        let is_pair = matches!(function.kind, FunctionKind::Pairs);
        let is_accepted =
            |word: &str| is_pair && JOIN_ARGUMENTS.iter().any(|n| n.eq_ignore_ascii_case(word));
        for other in others {
            let Some(keyword) = other.keyword else { continue };
            let word = keyword.text(self.text);
            if !is_accepted(word) {
                return Err(QueryError::in_sql(
                    format!("`{}` has no argument `{word}`", own.name),
                    Some(keyword.span()),
                    "not an argument",
                    format!("its arguments are {}", own.arguments.join(", ")),
                ));
            }
        }
        let mut edits = Edits::default();
        let mut arguments: Vec<(&str, Option<Json>)> = Vec::new();
        for (name, argument) in &given {
            if let Some(literal) = read_literal(argument, self.text).filter(|_| !is_pair) {
                arguments.push((*name, Some(literal)));
                edits.replace(argument.full_span(), "");
                continue;
            }
            arguments.push((*name, None));
            // The keyword belongs to the function.
            if argument.keyword.is_some() {
                edits.replace(argument.full_span().start..argument.span().start, "");
            }
        }
        let question = function.write_question(&own.name, &arguments);
        let has_values = arguments.iter().any(|(_, literal)| literal.is_none());
        let head = self.function_call_head(own, function, &question, has_values);
        edits.replace(self.head_span(), head);
        Ok(edits)
    }

    /// Matches the arguments of a function by keyword or position. Returns the given arguments with
    /// their names, and those with other keywords.
    fn match_function_arguments<'o>(
        &self,
        own: &'o IngredientTable,
        function: &FunctionIngredient,
    ) -> Result<(Vec<NamedArgument<'o, 't>>, Vec<&'t WrittenArgument>), QueryError> {
        let names: Vec<[&str; 1]> = own.arguments.iter().map(|name| [name.as_str()]).collect();
        let names: Vec<&[&str]> = names.iter().map(<[&str; 1]>::as_slice).collect();
        let (given, others) = self.match_arguments(&names)?;
        if let Some(lacking) = given.iter().take(function.required).position(Option::is_none) {
            return Err(self.error_at_name(
                format!("`{}` needs `{}`", own.name, own.arguments[lacking]),
                "in this call",
                &format!("its arguments are {}", own.arguments.join(", ")),
            ));
        }
        let named = own.arguments.iter().map(String::as_str).zip(given);
        Ok((named.filter_map(|(name, argument)| Some((name, argument?))).collect(), others))
    }

    /// Returns the beginning of the call that replaces the function.
    fn function_call_head(
        &self,
        own: &IngredientTable,
        function: &FunctionIngredient,
        question: &str,
        has_values: bool,
    ) -> String {
        let question = hqdl_values::sql::quote_text(question);
        let model = own.model.as_deref().unwrap_or_default();
        if matches!(function.kind, FunctionKind::Pairs) {
            let model = hqdl_values::sql::quote_text(model);
            return format!("LLMJoin(join_criteria={question}, model={model}, ");
        }
        let mut head = self.typed_call_head(own, &question);
        if matches!(function.kind, FunctionKind::Values) && !has_values {
            // The key of a call that depends on no row.
            head.push_str("1, ");
        }
        head
    }
}

/// Expands the outermost calls of aliases once. Returns `None` if the query calls no alias.
///
/// # Errors
/// Returns [`QueryError::Sql`] if a function fails, or if aliases expand to aliases without an end.
pub(super) fn expand_aliases(
    request: &Request<'_>,
    syntax: Syntax<'_>,
) -> Result<Option<TranslatedQuery>, QueryError> {
    let is_alias = |own: &&IngredientTable| {
        own.function.as_ref().is_some_and(|f| matches!(f.kind, FunctionKind::Alias(_)))
    };
    if !request.spec.ingredients.iter().any(|own| is_alias(&own)) {
        return Ok(None);
    }
    let mut expanded: Option<TranslatedQuery> = None;
    for depth in 0.. {
        let text = expanded.as_ref().map_or(request.sql, |expanded| expanded.sql.as_str());
        let original = |error: QueryError| match &expanded {
            Some(expanded) => error.map_span(|span| expanded.map_span_to_original(&span)),
            None => error,
        };
        let source = SourceQuery::parse(text, syntax).map_err(|e| original(e.into()))?;
        let mut edits = Edits::default();
        let mut end = 0;
        let mut calls: Vec<_> = source.parsed.calls.iter().collect();
        calls.sort_by_key(|call| (call.span.start, usize::MAX - call.span.end));
        for call in calls {
            let Some(written) = call.macro_call.as_ref().filter(|_| call.span.start >= end) else {
                continue;
            };
            let name = written.name.text(&source.text);
            let mut own = request.spec.ingredients.iter().filter(is_alias);
            let Some(own) = own.find(|own| own.name.eq_ignore_ascii_case(name)) else { continue };
            let Some(FunctionKind::Alias(writer)) = own.function.as_ref().map(|f| &f.kind) else {
                continue;
            };
            let fail = |message: String| {
                let span = Some(call.span.clone());
                original(QueryError::in_sql(message, span, "in this call", ""))
            };
            if depth == MAX_ALIAS_DEPTH {
                return Err(fail(format!("`{name}` expands to aliases without an end")));
            }
            let arguments: Vec<AliasArgument> =
                written.arguments.iter().map(|a| to_alias_argument(a, &source.text)).collect();
            let sql = (writer.0)(&arguments).map_err(fail)?;
            edits.replace(call.span.clone(), format!("({sql})"));
            end = call.span.end;
        }
        if edits.is_empty() {
            break;
        }
        let written = match &expanded {
            None => edits.write(&source.text),
            Some(expanded) => expanded.with_edits(edits),
        };
        expanded = Some(written.map_err(|error| QueryError::from(SqlError::from(error)))?);
    }
    Ok(expanded)
}

/// Returns a literal as JSON: a text, a number or NULL.
fn read_literal(argument: &WrittenArgument, sql: &str) -> Option<Json> {
    if let [word] = argument.tokens.as_slice()
        && (word.is_word(sql, "NULL") || word.is_word(sql, "None"))
    {
        return Some(Json::Null);
    }
    let text = argument.literal_content(sql)?;
    if argument.tokens.last().is_some_and(|token| token.lexeme == TokenKind::Number) {
        // SQLite's other numbers, such as 0x10, are expressions.
        return serde_json::from_str(&text).ok();
    }
    Some(text.into())
}

fn to_alias_argument(argument: &WrittenArgument, sql: &str) -> AliasArgument {
    AliasArgument {
        keyword: argument.keyword.map(|keyword| keyword.text(sql).to_owned()),
        literal: read_literal(argument, sql),
        sql: sql.get(argument.span()).unwrap_or_default().to_owned(),
    }
}
