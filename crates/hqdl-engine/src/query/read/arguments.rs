//! A macro call in the tree: matches its arguments by keyword or position, and resolves the columns
//! that it names.

use std::ops::Range;

use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::ingredients::MEDIA_KEYWORDS;
use hqdl_sql::blendsql::lexer::Token;
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::scope::Scope;
use hqdl_sql::blendsql::{Call, MacroCall, MacroSignature};
use hqdl_sql::{EditText, Edits};
use hqdl_values::problem::find_nearest;
use hqdl_values::sql;

/// A macro call in its scope.
#[derive(Clone, Copy)]
pub(super) struct MacroNode<'t> {
    pub text: &'t str,
    pub call: &'t Call,
    pub written: &'t MacroCall,
    pub scope: &'t Scope<'t>,
    /// Whether the call is a whole result column.
    pub is_result_column: bool,
    /// Whether the call returns the options of another call, for each row.
    pub is_option_list: bool,
}

/// A macro that every query can use, whose file has its signature and its expansion.
#[derive(Debug)]
pub(super) struct BuiltInMacro {
    pub signature: MacroSignature<'static>,
    /// Example of a call and its result, for a model that writes queries; `None` if no model needs
    /// the macro. `{media}` is replaced with the keywords of all kinds of media.
    pub usage: Option<(&'static str, &'static str)>,
    /// Returns the edits that expand a call.
    pub expand: fn(&MacroNode<'_>, &Request<'_>) -> Result<Edits, QueryError>,
}

/// Names of an argument; messages use the first one.
pub(super) type ArgumentNames<'n> = &'n [&'n str];

/// Returns a list of the arguments' first names for a message.
fn format_names(arguments: &[ArgumentNames<'_>]) -> String {
    let names: Vec<&str> = arguments.iter().filter_map(|names| names.first().copied()).collect();
    names.join(", ")
}

/// Keywords that declare that a value is a medium.
pub(super) const MEDIA: ArgumentNames<'static> = &MEDIA_KEYWORDS;

/// Returns the given arguments, each after a comma and with its keyword. Skips absent arguments.
pub(super) fn format_keyword_arguments<const N: usize>(
    arguments: [(Option<&WrittenArgument>, &str); N],
) -> EditText {
    let write = |(argument, keyword): (Option<&WrittenArgument>, &str)| {
        let span = argument?.span();
        Some(EditText::concat([format!(", {keyword}=").into(), span.into()]))
    };
    EditText::join(arguments.into_iter().filter_map(write).collect(), "")
}

impl<'t> MacroNode<'t> {
    /// Returns the macro's name as written in the query.
    pub fn name(&self) -> &'t str {
        self.written.name.text(self.text)
    }

    /// Returns the byte range of the name and the `(`.
    pub fn head_span(&self) -> Range<usize> {
        self.written.name.start..self.written.paren.end
    }

    /// Returns the text of a part of the query.
    pub fn part(&self, first: Token, last: Token) -> &'t str {
        self.text.get(first.start..last.end).unwrap_or_default()
    }

    /// Returns the SQL of a value. A column `'t::c'` is written as a name; if the table has an
    /// alias, the name contains the alias.
    pub fn value_sql(&self, argument: &WrittenArgument) -> EditText {
        self.legacy_column_sql(argument).map_or_else(|| argument.span().into(), Into::into)
    }

    /// Returns a column `'t::c'` as SQL, or `None` for any other argument.
    pub fn legacy_column_sql(&self, argument: &WrittenArgument) -> Option<String> {
        argument.text_content(self.text)?;
        let (table, column) = argument.column_names(self.text)?;
        let table = self.scope.find_alias(&table).unwrap_or(&table);
        Some(format!("{}.{}", sql::quote_name(table), sql::quote_name(&column)))
    }

    pub fn error_at_name(&self, message: String, label: &str, help: &str) -> QueryError {
        QueryError::in_sql(message, Some(self.written.name.span()), label, help)
    }

    pub fn has_keyword(&self, keyword: &str) -> bool {
        self.written
            .arguments
            .iter()
            .any(|p| p.keyword.is_some_and(|k| k.is_word(self.text, keyword)))
    }

    /// Returns true if the call declares that its value is a medium.
    pub fn has_media_keyword(&self) -> bool {
        MEDIA.iter().any(|keyword| self.has_keyword(keyword))
    }

    /// Returns the keyword of an argument that declares a medium.
    pub fn media_keyword(&self, argument: Option<&WrittenArgument>) -> &'t str {
        argument.and_then(|argument| argument.keyword).map_or(MEDIA[0], |k| k.text(self.text))
    }

    pub fn missing_argument_error(&self, what: &str) -> QueryError {
        let name = self.name();
        self.error_at_name(format!("`{name}` needs {what}"), "in this call", "")
    }

    /// Matches arguments by keyword or position; an argument may have several names. Also returns
    /// the arguments with unknown keywords.
    pub fn match_arguments(
        &self,
        arguments: &[ArgumentNames<'_>],
    ) -> Result<(Vec<Option<&'t WrittenArgument>>, Vec<&'t WrittenArgument>), QueryError> {
        let mut matched: Vec<Option<&'t WrittenArgument>> = vec![None; arguments.len()];
        let (mut positions, mut others) = (0..arguments.len(), Vec::new());
        for argument in &self.written.arguments {
            let position = match argument.keyword {
                None => positions.next().ok_or_else(|| {
                    let name = self.name();
                    let message =
                        format!("`{name}` has no arguments after {}", format_names(arguments));
                    QueryError::in_sql(message, Some(argument.span()), "one too many", "")
                })?,
                Some(keyword) => {
                    let is = |names: &ArgumentNames<'_>| {
                        names.iter().any(|n| keyword.is_word(self.text, n))
                    };
                    match arguments.iter().position(is) {
                        Some(position) => position,
                        None => {
                            others.push(argument);
                            continue;
                        }
                    }
                }
            };
            if let Some(earlier) = matched[position].replace(argument) {
                let written = match argument.keyword {
                    Some(keyword) => keyword.text(self.text),
                    None => arguments[position][0],
                };
                let message = match earlier.keyword {
                    // The positional argument is probably in the wrong place.
                    None if argument.keyword.is_some() => format!(
                        "`{written}` appears twice: as argument {} and as `{written}=`",
                        position + 1
                    ),
                    _ => format!("`{written}` appears twice"),
                };
                return Err(QueryError::in_sql(message, Some(argument.span()), "second time", ""));
            }
        }
        Ok((matched, others))
    }

    /// Matches arguments by keyword or position, and rejects arguments with unknown keywords.
    pub fn match_all_arguments<const N: usize>(
        &self,
        arguments: [ArgumentNames<'_>; N],
    ) -> Result<[Option<&'t WrittenArgument>; N], QueryError> {
        let (matched, others) = self.match_arguments(&arguments)?;
        if let Some(keyword) = others.first().and_then(|other| other.keyword) {
            let (name, word) = (self.name(), keyword.text(self.text));
            let near = find_nearest(word, arguments.iter().map(|names| names[0]));
            let near = near.map_or(String::new(), |near| format!("did you mean `{near}=`? "));
            return Err(QueryError::in_sql(
                format!("`{name}` has no argument `{word}`"),
                Some(keyword.span()),
                "not an argument",
                format!("{near}its arguments are {}", format_names(&arguments)),
            ));
        }
        let mut matched = matched.into_iter();
        Ok(std::array::from_fn(|_| matched.next().flatten()))
    }
}
