//! Calls of an engine's functions, split into their arguments.

use std::ops::Range;

use super::Translator;
use super::brackets::{find_close, split_at_commas};
use super::prompt::{SLOT, VendorPrompt};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Lexeme, Token};
use hqdl_values::problem::find_nearest;
use hqdl_values::sql::quote_text;

pub(super) struct FunctionCall<'q> {
    pub translator: Translator<'q>,
    /// Name with its schema, in lower case: `ai.if`.
    pub name: String,
    pub name_span: Range<usize>,
    arguments: Vec<FunctionArgument<'q>>,
    /// End offset of the call, including a field that selects the answer.
    pub end: usize,
}

/// An argument of a call.
#[derive(Clone, Copy)]
pub(super) struct FunctionArgument<'q> {
    /// Name of `name => value`.
    name: Option<Token>,
    /// Tokens of the value; never empty.
    pub tokens: &'q [Token],
}

/// Parses the call that begins at the `n`th token. Also returns the index of the token after the
/// call.
pub(super) fn parse_call<'q>(
    translator: Translator<'q>,
    tokens: &'q [Token],
    n: usize,
) -> Option<(FunctionCall<'q>, usize)> {
    let sql = translator.sql;
    let is_dot = |n: usize| tokens.get(n).is_some_and(|token| token.is_symbol(b'.'));
    let first = tokens.get(n).filter(|first| first.lexeme == Lexeme::Word)?;
    if n > 0 && (is_dot(n - 1) || tokens[n - 1].lexeme == Lexeme::Open) {
        return None;
    }
    let mut last = n;
    while is_dot(last + 1) && tokens.get(last + 2)?.lexeme == Lexeme::Word {
        last += 2;
    }
    tokens.get(last + 1).filter(|paren| paren.is_symbol(b'('))?;
    let close = last + 1 + find_close(&tokens[last + 1..])?;
    let words = tokens[n..=last].iter().map(|token| token.text(sql).to_lowercase());
    let mut end = close + 1;
    // `.result` of BigQuery and `:labels[0]::text` of Snowflake select the answer.
    if is_dot(end) && tokens.get(end + 1).is_some_and(|field| field.is_word(sql, "result")) {
        end += 2;
    } else if let [field, open, zero, shut, ..] = &tokens[end..]
        && field.text(sql).eq_ignore_ascii_case(":labels")
        && open.is_symbol(b'[')
        && zero.text(sql) == "0"
        && shut.is_symbol(b']')
    {
        end += 4;
        if let [colons, name, ..] = &tokens[end..]
            && colons.lexeme == Lexeme::Colons
            && name.lexeme == Lexeme::Word
        {
            end += 2;
        }
    }
    let call = FunctionCall {
        translator,
        name: words.collect(),
        name_span: first.start..tokens[last].end,
        arguments: split_at_commas(&tokens[last + 2..close])
            .into_iter()
            .map(|tokens| FunctionArgument::new(sql, tokens))
            .collect(),
        end: tokens[end - 1].end,
    };
    Some((call, end))
}

impl<'q> FunctionArgument<'q> {
    /// Splits `name => value` and `name := value`.
    fn new(sql: &str, tokens: &'q [Token]) -> Self {
        match tokens {
            [name, sign, more, value @ ..]
                if name.lexeme == Lexeme::Word
                    && sql.get(sign.start..more.end).is_some_and(|s| s == "=>" || s == ":=")
                    && !value.is_empty() =>
            {
                Self { name: Some(*name), tokens: value }
            }
            _ => Self { name: None, tokens },
        }
    }

    fn span(&self) -> Range<usize> {
        let start = self.tokens.first().map_or(0, |token| token.start);
        start..self.tokens.last().map_or(start, |token| token.end)
    }
}

impl<'q> FunctionCall<'q> {
    /// Returns an error at the function's name.
    pub fn error_at_name(&self, message: &str) -> SqlError {
        SqlError::new(self.name_span.clone(), message, "in this call")
    }

    /// Returns an error at an argument.
    pub fn error_at(&self, argument: &FunctionArgument<'_>, message: &str) -> SqlError {
        SqlError::new(argument.span(), format!("`{}`: {message}", self.name), "here")
    }

    /// Returns an error at a part of an argument.
    pub fn error_at_tokens(&self, tokens: &[Token], message: &str) -> SqlError {
        self.error_at(&FunctionArgument { name: None, tokens }, message)
    }

    fn slot_error(&self) -> SqlError {
        self.error_at_name(&format!("a prompt cannot contain `{SLOT}`"))
            .with_help("write `{ }` instead")
    }

    /// Fails if a prompt contains `{}`, which an ingredient would replace with a value.
    pub fn reject_slot(&self, prompt: &str) -> Result<(), SqlError> {
        if prompt.contains(SLOT) { Err(self.slot_error()) } else { Ok(()) }
    }

    /// Matches arguments by name or position.
    ///
    /// # Errors
    /// Returns [`SqlError`] for an unknown or repeated argument name, and for too many arguments.
    pub fn match_arguments<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<FunctionArgument<'q>>; N], SqlError> {
        let sql = self.translator.sql;
        let (mut matched, mut positions) = ([None; N], 0..N);
        let mut set = |position: usize, argument: &FunctionArgument<'q>| {
            let message = format!("`{}` appears twice", names[position]);
            match matched[position].replace(*argument) {
                Some(_) => Err(SqlError::new(argument.span(), message, "appears again here")
                    .with_help("remove one of the two")),
                None => Ok(()),
            }
        };
        for argument in &self.arguments {
            let Some(name) = argument.name else {
                let position = positions.next().ok_or_else(|| {
                    self.error_at(argument, &format!("the only arguments are {}", names.join(", ")))
                })?;
                set(position, argument)?;
                continue;
            };
            let word = name.text(sql).to_lowercase();
            let position = names.iter().position(|known| *known == word).ok_or_else(|| {
                let message = format!("`{}` has no argument `{word}` in hqdl", self.name);
                let error = SqlError::new(name.span(), message, "not an argument");
                match find_nearest(&word, names) {
                    Some(near) => error.with_suggestion(near),
                    None => error.with_help(format!("its arguments are {}", names.join(", "))),
                }
            })?;
            set(position, argument)?;
        }
        Ok(matched)
    }

    /// Returns a required argument.
    pub fn require(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<FunctionArgument<'q>, SqlError> {
        argument.ok_or_else(|| self.error_at_name(&format!("`{}` needs {name}", self.name)))
    }

    /// Returns the text of a required argument that is a string.
    pub fn require_text(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<String, SqlError> {
        let argument = self.require(argument, name)?;
        self.read_text(argument.tokens, name)
    }

    /// Returns the text of a part that must be a single string.
    pub fn read_text(&self, tokens: &[Token], name: &str) -> Result<String, SqlError> {
        let text = self.translator.read_string(tokens);
        text.ok_or_else(|| self.error_at_tokens(tokens, &format!("{name} must be a string")))
    }

    /// Fails if an optional argument is present.
    pub fn refuse(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<(), SqlError> {
        argument.map_or(Ok(()), |argument| {
            Err(self
                .error_at(&argument, &format!("remove {name}, which has no equivalent in hqdl")))
        })
    }

    /// Returns the translated text of a required expression.
    pub fn require_expression(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<String, SqlError> {
        self.translator.translate_expression(self.require(argument, name)?.tokens)
    }

    /// Returns the prompt in a required argument.
    fn require_prompt(
        &self,
        argument: Option<FunctionArgument<'q>>,
    ) -> Result<VendorPrompt, SqlError> {
        let argument = self.require(argument, "a prompt")?;
        VendorPrompt::parse(self.translator, argument.tokens)
    }

    /// Writes an ingredient that asks the prompt in an argument; `default` is the question of a
    /// prompt without text.
    pub fn write_prompt(
        &self,
        argument: Option<FunctionArgument<'q>>,
        default: &str,
        options: &str,
    ) -> Result<String, SqlError> {
        let prompt = self.require_prompt(argument)?;
        prompt.write_ingredient(default, options).ok_or_else(|| self.slot_error())
    }

    /// Writes a question about each value of a required expression.
    pub fn write_question_about(
        &self,
        argument: Option<FunctionArgument<'q>>,
        question: &str,
        options: &str,
    ) -> Result<String, SqlError> {
        self.reject_slot(question)?;
        let value = self.require_expression(argument, "a text")?;
        Ok(format!("{{{{LLMMap({}, {value}{options})}}}}", quote_text(question)))
    }

    /// Writes the similarity of two required expressions.
    pub fn write_similarity(
        &self,
        a: Option<FunctionArgument<'q>>,
        b: Option<FunctionArgument<'q>>,
    ) -> Result<String, SqlError> {
        let (a, b) =
            (self.require_expression(a, "a text")?, self.require_expression(b, "a second text")?);
        Ok(format!("similarity({a}, {b})"))
    }

    /// Writes the embedding of a required expression.
    pub fn write_embedding(&self, text: Option<FunctionArgument<'q>>) -> Result<String, SqlError> {
        Ok(format!("embed({})", self.require_expression(text, "a text")?))
    }

    /// Writes an instruction about all values of a group.
    pub fn write_reduction(
        &self,
        argument: Option<FunctionArgument<'q>>,
        instruction: &str,
    ) -> Result<String, SqlError> {
        self.reject_slot(instruction)?;
        let value = self.require_expression(argument, "a text")?;
        Ok(format!("{{{{LLMReduce({}, {value})}}}}", quote_text(instruction)))
    }
}
