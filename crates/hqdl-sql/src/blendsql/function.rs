//! Scanner for calls that are written as functions, without braces: `SUQL`'s `answer(text,
//! 'question')` and `summary(text)`, `embed(text)` and `similarity(text, text)`, wherever an
//! expression is allowed.

use std::ops::Range;
use std::slice;

use super::argument::token_span;
use super::ingredients::{
    AnswerFunction, EmbedFunction, IngredientRef, SimilarityFunction, SummaryFunction,
};
use super::lexer::{Brackets, Token, TokenKind};
use super::macros::{WrittenArgument, find_macro_ingredient};
use super::scan::{Grammar, ScanSettings, Scanner, scan_query};
use super::vendors::Vendor;
use super::{Argument, Call, SqlError, Subject, answer_arguments};

/// Name of `nearest(text, table.column, k)`.
pub const NEAREST: &str = "nearest";

/// Name of `search(table.column, text, k)`.
pub const SEARCH: &str = "search";

/// Functions that are macros.
const MACROS: [&str; 2] = [NEAREST, SEARCH];

/// Ingredients that are written as functions.
const FUNCTIONS: [IngredientRef; 4] =
    [&AnswerFunction, &SummaryFunction, &EmbedFunction, &SimilarityFunction];

/// Question of `summary(text)`, as worded by `SUQL`.
const SUMMARY_QUESTION: &str = "what is the summary of this document?";

/// Keywords after which a name with parentheses is a table, not a function. FROM is not listed,
/// because no table has the name of a function, and because FROM precedes an operand in `IS
/// DISTINCT FROM` and `EXTRACT`.
const TABLE_INTRODUCERS: [&str; 3] = ["WITH", "RECURSIVE", "INTO"];

/// Arguments of a function, the calls in them, and the end offset.
type FunctionArguments = (Vec<Vec<Token>>, Vec<Call>, usize);

/// Returns true if the query may contain calls, such as calls of the vendor's functions. Without
/// calls, it is plain SQL.
#[must_use]
pub fn may_have_calls(sql: &str, vendor: Option<Vendor>) -> bool {
    // Treat a query that cannot be scanned as a query with calls, so that the parser reports the
    // error.
    let has_calls = || {
        let settings =
            ScanSettings { find_macro: Some(&|_| None), vendor, ..ScanSettings::default() };
        let scanned = scan_query(sql, settings);
        scanned.map_or(true, |scanned| !scanned.calls.is_empty())
    };
    sql.contains("{{") || (vendor.is_some() || mentions_function(sql)) && has_calls()
}

fn mentions_function(sql: &str) -> bool {
    let sql = sql.to_ascii_lowercase();
    FUNCTIONS.iter().map(|function| function.name()).chain(MACROS).any(|name| sql.contains(name))
}

impl Scanner<'_, '_> {
    /// Reads the call that begins at `word`, if there is one; `previous` is the preceding token.
    pub(super) fn read_function_call(
        &mut self,
        word: Token,
        previous: Option<Token>,
    ) -> Result<Option<Call>, SqlError> {
        if let Some(call) = self.read_vendor_call(word, previous)? {
            return Ok(Some(call));
        }
        let function = FUNCTIONS.into_iter().find(|function| {
            self.grammar != Grammar::Suql && word.is_word(self.sql, function.name())
        });
        let is_macro =
            self.find_macro.is_some() && MACROS.iter().any(|name| word.is_word(self.sql, name));
        let macro_ingredient = is_macro.then(|| find_macro_ingredient(Subject::Document));
        let Some(ingredient) = function.or(macro_ingredient) else { return Ok(None) };
        let is_table = previous.is_some_and(|b| {
            b.is_symbol(b'.') || TABLE_INTRODUCERS.iter().any(|table| b.is_word(self.sql, table))
        });
        let start = self.at;
        let paren = self.next_token(Brackets::Name)?.filter(|t| t.is_symbol(b'(') && !is_table);
        let Some(paren) = paren else {
            self.at = start;
            return Ok(None);
        };
        if self.is_cte_column_list(Brackets::Name)? {
            self.at = start;
            return Ok(None);
        }
        self.enter_call(word)?;
        let (arguments, inner, end) = self.read_arguments(word)?;
        self.leave_call();
        let span = word.start..end;
        let call = Call { span: span.clone(), inner, ..Call::for_ingredient(ingredient) };
        if is_macro {
            let arguments = arguments.into_iter().map(WrittenArgument::from_tokens);
            return self.build_macro_function(call, (word, paren), arguments.collect()).map(Some);
        }
        let return_type = match (ingredient.name(), arguments.as_slice()) {
            ("answer", [_, _, tokens]) if answer_arguments::is_substring(self.sql, tokens) => {
                let message = "`answer` cannot check that its answer is a part of the text";
                let error = SqlError::new(token_span(tokens), message, "not a type of `answer`");
                return Err(
                    error.with_help("write {{LLMMap('question', text, return_type='substring')}}")
                );
            }
            ("answer", [_, _, tokens]) => answer_arguments::parse_return_type(self.sql, tokens)?,
            _ => None,
        };
        let (values, question) = self.split_arguments(ingredient, &arguments, &span)?;
        let instructions_start = question.len();
        Ok(Some(Call { question, instructions_start, values, return_type, ..call }))
    }

    /// Splits a function's arguments into the values and the question.
    fn split_arguments(
        &self,
        ingredient: IngredientRef,
        arguments: &[Vec<Token>],
        span: &Range<usize>,
    ) -> Result<(Vec<Argument>, String), SqlError> {
        let name = ingredient.name();
        let usage_error = |label: &str| {
            let error =
                SqlError::new(span.clone(), format!("`{name}` has the wrong arguments"), label);
            error.with_help(match name {
                "embed" => "write embed(text)",
                "similarity" => "write similarity(text, 'another text')",
                _ => "write answer(text, 'question'), answer(text, 'question', 'int') or summary(text)",
            })
        };
        let (texts, question) = match (name, arguments) {
            ("summary", [_]) => (arguments, SUMMARY_QUESTION.to_owned()),
            ("answer", [text, question] | [text, question, _]) => {
                (slice::from_ref(text), self.parse_question(question)?)
            }
            ("embed", [_]) | ("similarity", [_, _]) => (arguments, String::new()),
            ("summary" | "embed", _) => return Err(usage_error("expected one text")),
            ("similarity", _) => return Err(usage_error("expected two texts")),
            _ => return Err(usage_error("expected a text and a question")),
        };
        let values = texts.iter().map(|text| match (text.first(), text.last()) {
            (Some(first), Some(last)) => Ok(Argument::Sql(first.start..last.end)),
            _ => Err(usage_error("the text is missing")),
        });
        Ok((values.collect::<Result<_, _>>()?, question))
    }

    /// Returns true if the parentheses that have just been opened contain the column names of a
    /// common table expression, i.e. if `AS (…)` follows them. Does not advance the scanner.
    pub(super) fn is_cte_column_list(&mut self, brackets: Brackets) -> Result<bool, SqlError> {
        let start = self.at;
        let mut depth = 1;
        while depth > 0 {
            match self.next_token(brackets)? {
                Some(token) if token.is_symbol(b'(') => depth += 1,
                Some(token) if token.is_symbol(b')') => depth -= 1,
                Some(_) => {}
                None => break,
            }
        }
        let is_cte = self.next_token(Brackets::Name)?.is_some_and(|t| t.is_word(self.sql, "AS"));
        let is_cte = is_cte
            && self.next_token(Brackets::Name)?.is_some_and(|t| {
                t.is_symbol(b'(')
                    || t.is_word(self.sql, "NOT")
                    || t.is_word(self.sql, "MATERIALIZED")
            });
        self.at = start;
        Ok(is_cte)
    }

    /// Reads the arguments up to the closing parenthesis.
    pub(super) fn read_arguments(&mut self, word: Token) -> Result<FunctionArguments, SqlError> {
        let (mut arguments, mut inner) = (vec![Vec::new()], Vec::new());
        let mut depth = 0_usize;
        let mut previous = None;
        loop {
            let Some(token) = self.next_token(Brackets::Name)? else {
                return Err(SqlError::new(
                    word.span(),
                    format!("`{}` is never closed", word.text(self.sql)),
                    "this call has no `)`",
                ));
            };
            let last = previous.replace(token);
            let call = match token.lexeme {
                TokenKind::Open => Some(self.read_call(token, false)?),
                _ => self.read_function_call(token, last)?,
            };
            let token = match call {
                Some(call) => {
                    let token = Token { lexeme: TokenKind::Call, end: call.span.end, ..token };
                    inner.push(call);
                    token
                }
                None => token,
            };
            match token.lexeme {
                TokenKind::Symbol(b'(') => depth += 1,
                TokenKind::Symbol(b')') if depth == 0 => {
                    if arguments.len() == 1 && arguments[0].is_empty() {
                        arguments.clear();
                    }
                    return Ok((arguments, inner, token.end));
                }
                TokenKind::Symbol(b')') => depth -= 1,
                TokenKind::Symbol(b',') if depth == 0 => {
                    arguments.push(Vec::new());
                    continue;
                }
                TokenKind::Close => {
                    return Err(SqlError::new(
                        word.start..token.end,
                        format!(
                            "`{}` is not closed before the end of the call around it",
                            word.text(self.sql)
                        ),
                        "no `)` before `}}`",
                    ));
                }
                _ => {}
            }
            if let Some(argument) = arguments.last_mut() {
                argument.push(token);
            }
        }
    }

    /// Parses the question, which must be a single string.
    fn parse_question(&self, tokens: &[Token]) -> Result<String, SqlError> {
        let text = match tokens {
            [text] if text.lexeme == TokenKind::Text => text.unquoted_text(self.sql),
            _ => String::new(),
        };
        if text.trim().is_empty() {
            let end = tokens.last().map_or(self.at, |t| t.end);
            let start = tokens.first().map_or(end.saturating_sub(1), |t| t.start);
            let error = SqlError::new(
                start..end,
                "the question of `answer` is empty or not a text",
                "expected one text",
            );
            return Err(error.with_help("write answer(text, 'question')"));
        }
        Ok(text)
    }
}
