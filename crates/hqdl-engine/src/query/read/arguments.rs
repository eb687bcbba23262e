//! Parses a call of an ingredient from its tokens: splits it at its commas and matches its
//! arguments by keyword or position.

use std::ops::Range;

use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::lexer::{Lexeme, Token};
use hqdl_values::problem::find_nearest;

/// A call, split at its commas.
pub(in crate::query) struct CallText<'t> {
    pub(in crate::query) text: &'t str,
    pub(in crate::query) open_token: Token,
    pub(in crate::query) name_token: Token,
    pub(in crate::query) paren_token: Token,
    pub(in crate::query) arguments: Vec<CallArgument>,
    /// Offset after `}}`, or after the `)` of a function.
    pub(in crate::query) end_offset: usize,
}

/// Names of an argument; messages use the first one.
pub(in crate::query) type ArgumentNames<'n> = &'n [&'n str];

/// Lists the arguments by their first names.
fn format_names(arguments: &[ArgumentNames<'_>]) -> String {
    let names: Vec<&str> = arguments.iter().filter_map(|names| names.first().copied()).collect();
    names.join(", ")
}

#[derive(Clone)]
pub(in crate::query) struct CallArgument {
    pub(in crate::query) keyword: Option<Token>,
    pub(in crate::query) tokens: Vec<Token>,
    /// Byte range of the argument with its keyword and the comma after it.
    pub(in crate::query) full_span: Range<usize>,
}

impl CallArgument {
    pub(in crate::query) fn span(&self) -> Range<usize> {
        let first = self.tokens.first().map_or(self.full_span.start, |t| t.start);
        first..self.tokens.last().map_or(first, |t| t.end)
    }

    /// Returns the content if the argument is a text, such as a question.
    pub(in crate::query) fn text_content(&self, text: &str) -> Option<String> {
        match self.tokens.as_slice() {
            [one] if one.lexeme == Lexeme::Text => Some(one.unquoted_text(text)),
            _ => None,
        }
    }

    /// Returns the content if the argument is a text or a number.
    pub(in crate::query) fn literal_content(&self, text: &str) -> Option<String> {
        match self.tokens.as_slice() {
            [one] if one.lexeme == Lexeme::Text => {
                Some(one.unquoted_text(text)).filter(|t| !t.contains("::"))
            }
            [one] if one.lexeme == Lexeme::Number => Some(one.text(text).to_owned()),
            [minus, one] if minus.is_symbol(b'-') && one.lexeme == Lexeme::Number => {
                Some(format!("-{}", one.text(text)))
            }
            _ => None,
        }
    }
}

impl<'t> CallText<'t> {
    /// Parses the call that the `n`th token opens. Returns `None` if it is not closed.
    pub(in crate::query) fn parse_call(text: &'t str, tokens: &[Token], n: usize) -> Option<Self> {
        let call = Self::parse_at(text, tokens, n, n + 1)?;
        let close = tokens.get(tokens.partition_point(|t| t.start < call.end_offset))?;
        let end_offset = Some(close.end).filter(|_| close.lexeme == Lexeme::Close)?;
        Some(Self { end_offset, ..call })
    }

    /// Parses the call of the function that the `n`th token names.
    pub(in crate::query) fn parse_function(
        text: &'t str,
        tokens: &[Token],
        n: usize,
    ) -> Option<Self> {
        Self::parse_at(text, tokens, n, n)
    }

    /// Parses a call up to its `)`, from the positions of its first token and of its name.
    fn parse_at(text: &'t str, tokens: &[Token], first: usize, name: usize) -> Option<Self> {
        let [name_token, paren] = *tokens.get(name..name + 2)? else { return None };
        let mut arguments = Vec::new();
        let (mut depth, mut begin) = (0_usize, name + 2);
        for at in name + 2..tokens.len() {
            let token = tokens[at];
            match token.lexeme {
                Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
                Lexeme::Symbol(b')') if depth == 0 => {
                    arguments.extend(Self::parse_argument(tokens.get(begin..at)?, None));
                    return Some(Self {
                        text,
                        open_token: *tokens.get(first)?,
                        name_token,
                        paren_token: paren,
                        arguments,
                        end_offset: token.end,
                    });
                }
                Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => {
                    depth = depth.checked_sub(1)?;
                }
                Lexeme::Symbol(b',') if depth == 0 => {
                    arguments.extend(Self::parse_argument(tokens.get(begin..at)?, Some(token)));
                    begin = at + 1;
                }
                _ => {}
            }
        }
        None
    }

    fn parse_argument(tokens: &[Token], comma: Option<Token>) -> Option<CallArgument> {
        let (first, last) = (tokens.first()?, tokens.last()?);
        let full_span = first.start..comma.map_or(last.end, |c| c.end);
        let named = matches!(tokens, [name, equals, next, ..]
            if name.lexeme == Lexeme::Word && equals.is_symbol(b'=') && !next.is_symbol(b'='));
        let skip = if named { 2 } else { 0 };
        Some(CallArgument {
            keyword: named.then_some(*first),
            tokens: tokens[skip..].to_vec(),
            full_span,
        })
    }

    pub(in crate::query) fn error_at_name(
        &self,
        message: String,
        label: &str,
        help: &str,
    ) -> QueryError {
        QueryError::in_sql(message, Some(self.name_token.span()), label, help)
    }

    /// Fails if the call contains a `?` without a number: a rewrite that reorders or copies
    /// arguments would change its number. A call whose parameters are all in `kept`, an argument
    /// that is not copied, is accepted.
    pub(in crate::query) fn reject_bare_parameters(
        &self,
        kept: Option<&CallArgument>,
    ) -> Result<(), QueryError> {
        let kept = kept.map_or(0..0, CallArgument::span);
        let is_parameter = |token: &&Token| token.lexeme == Lexeme::Parameter;
        let tokens = || self.arguments.iter().flat_map(|argument| &argument.tokens);
        let Some(bare) = tokens().find(|t| is_parameter(t) && t.text(self.text) == "?") else {
            return Ok(());
        };
        if tokens().filter(is_parameter).all(|token| kept.contains(&token.start)) {
            return Ok(());
        }
        let name = self.name_token.text(self.text);
        Err(QueryError::in_sql(
            format!("a parameter of `{name}` has no number"),
            Some(bare.span()),
            "its position can change",
            "number the parameters: ?1",
        ))
    }

    pub(in crate::query) fn has_keyword(&self, keyword: &str) -> bool {
        self.arguments.iter().any(|p| p.keyword.is_some_and(|k| k.is_word(self.text, keyword)))
    }

    pub(in crate::query) fn missing_argument_error(&self, what: &str) -> QueryError {
        let name = self.name_token.text(self.text);
        self.error_at_name(format!("`{name}` needs {what}"), "in this call", "")
    }

    /// Matches arguments by keyword or position; each may have several names. Also returns the
    /// arguments with unknown keywords.
    pub(in crate::query) fn match_arguments(
        &self,
        arguments: &[ArgumentNames<'_>],
    ) -> Result<(Vec<Option<&CallArgument>>, Vec<&CallArgument>), QueryError> {
        let mut matched: Vec<Option<&CallArgument>> = vec![None; arguments.len()];
        let (mut positions, mut others) = (0..arguments.len(), Vec::new());
        for argument in &self.arguments {
            let position = match argument.keyword {
                None => positions.next().ok_or_else(|| {
                    let name = self.name_token.text(self.text);
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
            if matched[position].replace(argument).is_some() {
                let message = format!("`{}` appears twice", arguments[position][0]);
                return Err(QueryError::in_sql(message, Some(argument.span()), "second time", ""));
            }
        }
        Ok((matched, others))
    }

    /// Matches arguments by keyword or position, and rejects those with unknown keywords.
    pub(in crate::query) fn match_all_arguments<const N: usize>(
        &self,
        arguments: [ArgumentNames<'_>; N],
    ) -> Result<[Option<&CallArgument>; N], QueryError> {
        let (matched, others) = self.match_arguments(&arguments)?;
        if let Some(keyword) = others.first().and_then(|other| other.keyword) {
            let (name, word) = (self.name_token.text(self.text), keyword.text(self.text));
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
