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
//! the values of the row. A function with an argument `options` receives the options of the call,
//! which belong to the column and not to the question.

use std::ops::Range;

use serde_json::Value as Json;

use crate::query::read::arguments::MacroNode;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_spec::ingredients::{
    AliasArgument, AliasWriter, FunctionIngredient, FunctionKind, IngredientTable,
};
use hqdl_sql::blendsql::ingredients::OPTIONS;
use hqdl_sql::blendsql::lexer::TokenKind;
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::normalize::{number_query_parameters, scan_calls};
use hqdl_sql::blendsql::parse::Syntax;
use hqdl_sql::blendsql::{MacroCall, SqlError};
use hqdl_sql::{EditText, Edits, TranslatedQuery};

/// Maximum number of calls of aliases that a query expands.
const MAX_ALIASES: usize = 10_000;

/// Maximum total length of the expanded calls, in bytes.
const MAX_ALIAS_LENGTH: usize = 1_000_000;

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
        let (given, others) = self.match_function_arguments(own, function)?;
        let is_pair = matches!(function.kind, FunctionKind::Pairs);
        self.reject_unknown_keywords(own, function, &others)?;
        let mut arguments: Vec<(&str, Option<Json>)> = Vec::new();
        // The values are in the order of the function's arguments, so that the question of a call
        // does not depend on how the call is written. The keywords belong to the function.
        let mut values: Vec<EditText> = Vec::new();
        for (name, argument) in given {
            let literal = read_literal(argument, self.text).filter(|_| !is_pair);
            if literal.is_none() {
                values.push(argument.span().into());
            }
            arguments.push((name, literal));
        }
        let question = function.write_question(&own.name, &arguments);
        let head = self.build_function_call_head(own, function, &question, !values.is_empty());
        // The arguments of the call itself keep their keywords.
        values.extend(others.iter().map(|other| {
            let start = other.keyword.map_or(other.span().start, |keyword| keyword.start);
            EditText::from(start..other.span().end)
        }));
        let end = self.written.arguments.last().map_or(self.head_span().end, |last| last.end);
        let call = EditText::concat([head.into(), EditText::join(values, ", ")]);
        let mut edits = Edits::default();
        edits.replace(self.head_span().start..end, call);
        Ok(edits)
    }

    /// Fails if a function has no argument with one of these keywords.
    fn reject_unknown_keywords(
        &self,
        own: &IngredientTable,
        function: &FunctionIngredient,
        others: &[&WrittenArgument],
    ) -> Result<(), QueryError> {
        let call_arguments: &[&str] = match function.kind {
            FunctionKind::Pairs => &JOIN_ARGUMENTS,
            _ if function.takes_options => &[OPTIONS],
            _ => &[],
        };
        let is_accepted = |word: &str| call_arguments.iter().any(|n| n.eq_ignore_ascii_case(word));
        let keywords = others.iter().filter_map(|other| other.keyword);
        let mut unknown = keywords.filter(|keyword| !is_accepted(keyword.text(self.text)));
        let Some(keyword) = unknown.next() else { return Ok(()) };
        Err(QueryError::in_sql(
            format!("`{}` has no argument `{}`", own.name, keyword.text(self.text)),
            Some(keyword.span()),
            "not an argument",
            describe_arguments(own, function),
        ))
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
                &describe_arguments(own, function),
            ));
        }
        let named = own.arguments.iter().map(String::as_str).zip(given);
        Ok((named.filter_map(|(name, argument)| Some((name, argument?))).collect(), others))
    }

    /// Returns the beginning of the call that replaces the function.
    fn build_function_call_head(
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
        let mut head = self.build_typed_call_head(own, &question);
        if matches!(function.kind, FunctionKind::Values) && !has_values {
            // The key of a call that depends on no row.
            head.push_str("1, ");
        }
        head
    }
}

/// Describes the arguments of a function for a message.
fn describe_arguments(own: &IngredientTable, function: &FunctionIngredient) -> String {
    let names = own.arguments.iter().map(String::as_str);
    let names: Vec<&str> = names.chain(function.takes_options.then_some(OPTIONS)).collect();
    if names.is_empty() {
        return "it has no arguments".to_owned();
    }
    format!("its arguments are {}", names.join(", "))
}

/// Expands all calls of aliases. Returns `None` if the query calls no alias.
///
/// # Errors
/// Returns [`QueryError::Sql`] if a function fails, if an alias expands to itself, or if the
/// expanded query is too long.
pub(super) fn expand_aliases<'s>(
    request: &'s Request<'_>,
    syntax: Syntax<'s>,
) -> Result<Option<TranslatedQuery>, QueryError> {
    let aliases: Vec<_> = request.spec.ingredients.iter().filter_map(find_alias).collect();
    if aliases.is_empty() {
        return Ok(None);
    }
    // The functions may move and copy the parameters.
    let numbered = number_query_parameters(request.sql, syntax)?;
    let mut expander = AliasExpander { aliases, syntax, count: 0, length: 0 };
    expander.expand_text(numbered, &[])
}

/// An alias with its name.
type Alias<'s> = (&'s str, &'s AliasWriter);

/// Returns the name and the function of an ingredient if it is an alias.
fn find_alias(own: &IngredientTable) -> Option<Alias<'_>> {
    match &own.function.as_ref()?.kind {
        FunctionKind::Alias(writer) => Some((&own.name, writer)),
        _ => None,
    }
}

/// Expands the aliases of a query.
struct AliasExpander<'s> {
    aliases: Vec<Alias<'s>>,
    syntax: Syntax<'s>,
    /// Number of expanded calls.
    count: usize,
    /// Total length of the expanded calls.
    length: usize,
}

impl<'s> AliasExpander<'s> {
    /// Expands the calls in a text until none is left. `chain` contains the names of the aliases
    /// that returned the text. Returns `None` if the text calls no alias.
    fn expand_text(
        &mut self,
        mut text: TranslatedQuery,
        chain: &[&'s str],
    ) -> Result<Option<TranslatedQuery>, QueryError> {
        let mut is_expanded = false;
        loop {
            let edits = self
                .expand_innermost_calls(&text.sql, chain)
                .map_err(|error| error.map_span(|span| text.map_span_to_original(&span)))?;
            if edits.is_empty() {
                return Ok(is_expanded.then_some(text));
            }
            let written = text.with_edits(edits);
            text = written.map_err(|error| QueryError::from(SqlError::from(error)))?;
            is_expanded = true;
        }
    }

    /// Returns the edits that expand the calls without other calls of aliases in their arguments.
    /// An alias in the result of a function was therefore written by the function.
    fn expand_innermost_calls(
        &mut self,
        text: &str,
        chain: &[&'s str],
    ) -> Result<Edits, QueryError> {
        let mut found: Vec<(Range<usize>, Box<MacroCall>, Alias<'s>)> = Vec::new();
        for call in scan_calls(text, self.syntax)? {
            let Some(written) = call.macro_call else { continue };
            let name = written.name.text(text);
            let alias = self.aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
            found.extend(alias.map(|alias| (call.span, written, *alias)));
        }
        let mut edits = Edits::default();
        let mut found = found.into_iter().peekable();
        while let Some((span, written, alias)) = found.next() {
            // The next call is inside this one.
            if found.peek().is_some_and(|(next, ..)| next.start < span.end) {
                continue;
            }
            let arguments: Vec<AliasArgument> =
                written.arguments.iter().map(|a| to_alias_argument(a, text)).collect();
            let sql = self.expand_call(alias, &arguments, chain).map_err(|message| {
                QueryError::in_sql(message, Some(span.clone()), "in this call", "")
            })?;
            // The SQL may end with a comment.
            edits.replace(span, format!("({sql}\n)"));
        }
        Ok(edits)
    }

    /// Returns the SQL of a call, in which no alias is left.
    fn expand_call(
        &mut self,
        (name, writer): Alias<'s>,
        arguments: &[AliasArgument],
        chain: &[&'s str],
    ) -> Result<String, String> {
        if chain.contains(&name) {
            return Err(format!("`{name}` expands to itself, without an end"));
        }
        self.count += 1;
        let sql = (writer.0)(arguments)?;
        let chain = [chain, &[name]].concat();
        let text = Edits::default().apply_to(&sql).map_err(|e| SqlError::from(e).to_string())?;
        let expanded = self.expand_text(text, &chain).map_err(|error| error.to_string())?;
        let sql = expanded.map_or(sql, |expanded| expanded.sql);
        self.length += sql.len();
        if self.count > MAX_ALIASES || self.length > MAX_ALIAS_LENGTH {
            return Err(format!("`{name}` expands to too many calls, or to too much SQL"));
        }
        Ok(sql)
    }
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
