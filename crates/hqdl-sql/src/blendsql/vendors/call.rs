//! Calls of an engine's functions, split into their arguments.

use std::ops::Range;

use super::VendorText;
use super::brackets::split_at_commas;
use super::prompt::{SLOT, VendorPrompt};
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::macros::{NamedValue, VendorIngredient, VendorQuestion};
use crate::blendsql::{SqlError, argument};
use hqdl_values::problem::find_nearest;

pub(super) struct FunctionCall<'q> {
    pub text: VendorText<'q>,
    /// Name with its schema, in lower case and without blanks: `ai.if`.
    pub name: String,
    pub name_span: Range<usize>,
    arguments: Vec<FunctionArgument<'q>>,
}

/// An argument of a call.
#[derive(Clone, Copy)]
pub(super) struct FunctionArgument<'q> {
    /// Name of `name => value`.
    name: Option<Token>,
    /// Tokens of the value; never empty.
    pub tokens: &'q [Token],
}

impl<'q> FunctionArgument<'q> {
    /// Splits `name => value` and `name := value`.
    fn new(sql: &str, tokens: &'q [Token]) -> Self {
        match tokens {
            [name, sign, more, value @ ..]
                if name.lexeme == TokenKind::Word
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
    /// Splits the tokens of a call's arguments.
    pub fn new(text: VendorText<'q>, name: Token, arguments: &'q [Token]) -> Self {
        let is_part = |c: &char| !c.is_whitespace();
        let arguments = split_at_commas(arguments).into_iter();
        Self {
            text,
            name: name.text(text.sql).to_lowercase().chars().filter(is_part).collect(),
            name_span: name.span(),
            arguments: arguments.map(|tokens| FunctionArgument::new(text.sql, tokens)).collect(),
        }
    }

    /// Returns an argument as written.
    pub fn text_of(&self, argument: &FunctionArgument<'_>) -> &'q str {
        self.text.sql.get(argument.span()).unwrap_or_default()
    }

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
        let sql = self.text.sql;
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
    pub fn require_argument(
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
        let argument = self.require_argument(argument, name)?;
        self.read_text(argument.tokens, name)
    }

    /// Returns the text of a part that must be a single string.
    pub fn read_text(&self, tokens: &[Token], name: &str) -> Result<String, SqlError> {
        let text = self.text.read_string(tokens);
        text.ok_or_else(|| self.error_at_tokens(tokens, &format!("{name} must be a string")))
    }

    /// Fails if an optional argument is present.
    pub fn reject_argument(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<(), SqlError> {
        argument.map_or(Ok(()), |argument| {
            Err(self
                .error_at(&argument, &format!("remove {name}, which has no equivalent in hqdl")))
        })
    }

    /// Asks the prompt in a required argument; `default` is the question of a prompt without text.
    pub fn build_prompt_question(
        &self,
        argument: Option<FunctionArgument<'q>>,
        default: &str,
        ingredient: VendorIngredient,
    ) -> Result<VendorQuestion, SqlError> {
        let argument = self.require_argument(argument, "a prompt")?;
        let prompt = VendorPrompt::parse(self.text, argument.tokens, 0)?;
        let (text, values) = prompt.into_question(default).ok_or_else(|| self.slot_error())?;
        Ok(VendorQuestion { ingredient, text, values })
    }

    /// Builds a question about the value of a required argument.
    pub fn build_question_about(
        &self,
        argument: Option<FunctionArgument<'q>>,
        question: &str,
        ingredient: VendorIngredient,
    ) -> Result<VendorQuestion, SqlError> {
        self.reject_slot(question)?;
        let values = vec![self.text.read_value(self.require_argument(argument, "a text")?.tokens)?];
        Ok(VendorQuestion { ingredient, text: question.to_owned(), values })
    }

    /// Returns the similarity of two required texts.
    pub fn build_similarity_question(
        &self,
        a: Option<FunctionArgument<'q>>,
        b: Option<FunctionArgument<'q>>,
    ) -> Result<VendorQuestion, SqlError> {
        let mut question = self.build_question_about(a, "", VendorIngredient::Similarity)?;
        let b = self.require_argument(b, "a second text")?;
        question.values.push(self.text.read_value(b.tokens)?);
        Ok(question)
    }
}

impl VendorText<'_> {
    /// Returns the tokens of an expression as a value. If they are a column, the value has its
    /// name.
    pub fn read_value(self, tokens: &[Token]) -> Result<NamedValue, SqlError> {
        self.reject_casts(tokens)?;
        // An ingredient reads `a = b` as a named argument.
        let needs_parens = matches!(tokens, [word, sign, ..]
            if word.lexeme == TokenKind::Word && sign.is_symbol(b'='));
        Ok(NamedValue {
            span: argument::token_span(tokens),
            argument: argument::parse_argument(self.sql, tokens)?,
            name: self.column_name(tokens).unwrap_or_default(),
            needs_parens,
        })
    }

    /// Returns the name of a column, without its table.
    fn column_name(self, tokens: &[Token]) -> Option<String> {
        let is_column = tokens.iter().enumerate().all(|(n, token)| match n % 2 {
            0 => matches!(token.lexeme, TokenKind::Word | TokenKind::Name | TokenKind::Quoted),
            _ => token.is_symbol(b'.'),
        });
        tokens.last().filter(|_| is_column).map(|last| last.unquoted_text(self.sql))
    }
}
