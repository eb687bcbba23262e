//! Macros: calls that are replaced with SQL or with calls of ingredients. The parser finds them and
//! parses their arguments, and a pass over the tree replaces them.

use std::ops::Range;

use super::argument::{
    begins_query, is_cast_type, is_name, split_legacy_column, strip_parens, token_span,
};
use super::ingredients::{AnswerFunction, IngredientRef, LlmJoin, LlmMap, LlmQa, Subject};
use super::lexer::{Token, TokenKind};
use super::{Argument, ReturnType};

/// Properties of a macro that decide how its calls are parsed.
#[derive(Debug, Clone, Copy)]
pub struct MacroSignature<'a> {
    /// Subject of the ingredient that replaces the macro. For [`Subject::Document`], the macro
    /// itself reads columns `'t::c'`.
    pub subject: Subject,
    /// Return type of a call that does not specify `return_type`.
    pub return_type: Option<ReturnType>,
    /// Whether a string in the first argument is a question.
    pub has_question: bool,
    /// Position and keywords of the argument that the macro reads itself, unless the argument is a
    /// query.
    pub literal_argument: Option<(usize, &'static [&'static str])>,
    /// Whether a value can have DISTINCT and ORDER BY, like the argument of an aggregate.
    pub is_aggregate: bool,
    /// Names of the macro's own arguments, which are values whatever an ingredient's argument of the
    /// same name means.
    pub argument_names: &'a [String],
    /// Syntax that may follow the braces.
    pub suffix: MacroSuffix,
}

impl MacroSignature<'_> {
    /// Returns the signature of a macro without special arguments.
    #[must_use]
    pub const fn new(subject: Subject, has_question: bool) -> Self {
        Self {
            subject,
            return_type: None,
            has_question,
            literal_argument: None,
            is_aggregate: false,
            argument_names: &[],
            suffix: MacroSuffix::Nothing,
        }
    }
}

/// Syntax that may follow the braces of a macro.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacroSuffix {
    /// No suffix.
    Nothing,
    /// `.field` or `.*`
    Field,
    /// `FILTER (WHERE …)`
    Filter,
}

/// Looks up the signature of a macro by name.
pub type FindMacro<'a> = &'a dyn Fn(&str) -> Option<MacroSignature<'a>>;

/// Returns an ingredient with this subject, which represents a macro in the tree.
pub(super) fn find_macro_ingredient(subject: Subject) -> IngredientRef {
    match subject {
        Subject::Rows => &LlmQa,
        Subject::Document => &AnswerFunction,
        Subject::Pair => &LlmJoin,
        Subject::Value | Subject::Embedding => &LlmMap,
    }
}

/// A macro call as written in the query.
#[derive(Debug, Clone, PartialEq)]
pub struct MacroCall {
    /// Name of the macro.
    pub name: Token,
    /// The `(` before the arguments.
    pub paren: Token,
    /// Arguments in text order.
    pub arguments: Vec<WrittenArgument>,
    /// Offset after `}}`, or after the `)` of a function.
    pub end: usize,
    /// Field that selects a part of the answer: a name or `*`.
    pub field: Option<Token>,
    /// Byte range of the condition in `FILTER (WHERE …)`.
    pub filter: Option<Range<usize>>,
    /// Whether a value can have DISTINCT and ORDER BY, like the argument of an aggregate.
    pub is_aggregate: bool,
    /// Question of a call to another engine's function; `arguments` is then empty.
    pub question: Option<VendorQuestion>,
}

/// Question of a call to another engine's AI function.
#[derive(Debug, Clone, PartialEq)]
pub struct VendorQuestion {
    /// Ingredient that replaces the call.
    pub ingredient: VendorIngredient,
    /// Text of the question, which names each value if there are several. Empty for the default
    /// question.
    pub text: String,
    /// Values, which are parts of the query.
    pub values: Vec<NamedValue>,
}

/// Ingredient that replaces the call of another engine's AI function.
#[derive(Debug, Clone, PartialEq)]
pub enum VendorIngredient {
    /// `LLMMap` about the values, or `LLMQA` if there are none.
    Ask {
        /// Type of the answer, as in `return_type=`.
        return_type: &'static str,
        /// Options that the answer is chosen from; empty if there are none.
        options: &'static [&'static str],
    },
    /// `LLMClassify`
    Classify {
        /// Labels with their descriptions.
        labels: Vec<(String, Option<String>)>,
        /// Tokens of the list of labels.
        label_tokens: Vec<Token>,
        /// Whether several labels can fit.
        is_many: bool,
    },
    /// `LLMReduce`
    Reduce,
    /// `similarity` of two values
    Similarity,
    /// `embed`
    Embed,
}

/// A value that the call of another engine's function asks about.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedValue {
    /// Byte range in the query.
    pub span: Range<usize>,
    /// Parsed value; `None` for NULL.
    pub argument: Option<Argument>,
    /// Name by which the question refers to the value.
    pub name: String,
    /// Whether the value begins like a named argument: `a = b`.
    pub needs_parens: bool,
}

/// An argument of a call; it has at least one token.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenArgument {
    /// Keyword of `keyword=…`.
    pub keyword: Option<Token>,
    /// Tokens of the value. A call counts as a single token.
    pub tokens: Vec<Token>,
    /// Offset after the comma that follows the argument, or after the argument if there is no
    /// comma.
    pub end: usize,
}

impl WrittenArgument {
    /// Splits `keyword=…`.
    pub(super) fn from_tokens(tokens: Vec<Token>) -> Self {
        let end = token_span(&tokens).end;
        let has_keyword = matches!(tokens.as_slice(), [name, equals, next, ..]
            if name.lexeme == TokenKind::Word && equals.is_symbol(b'=') && !next.is_symbol(b'='));
        if !has_keyword {
            return Self { keyword: None, tokens, end };
        }
        Self { keyword: tokens.first().copied(), tokens: tokens[2..].to_vec(), end }
    }

    /// Returns the content if the value is a text, such as a question.
    #[must_use]
    pub fn text_content(&self, sql: &str) -> Option<String> {
        match self.tokens.as_slice() {
            [text] if text.lexeme == TokenKind::Text => Some(text.unquoted_text(sql)),
            _ => None,
        }
    }

    /// Returns the content if the value is a text or a number. A column `'t::c'` does not count as
    /// a text.
    #[must_use]
    pub fn literal_content(&self, sql: &str) -> Option<String> {
        match self.tokens.as_slice() {
            [number] if number.lexeme == TokenKind::Number => Some(number.text(sql).to_owned()),
            [minus, number] if minus.is_symbol(b'-') && number.lexeme == TokenKind::Number => {
                Some(format!("-{}", number.text(sql)))
            }
            _ if self.column_names(sql).is_some() => None,
            _ => self.text_content(sql),
        }
    }

    /// Returns the byte range of the value if it is a query. The range includes one pair of
    /// parentheses.
    #[must_use]
    pub fn query_span(&self, sql: &str) -> Option<Range<usize>> {
        let (layers, inside) = strip_parens(&self.tokens);
        let first = layers.checked_sub(1).filter(|_| begins_query(sql, inside))?;
        Some(token_span(&self.tokens[first..self.tokens.len() - first]))
    }

    /// Returns the table and the column if the value names a column: `t.c` or `'t::c'`.
    #[must_use]
    pub fn column_names(&self, sql: &str) -> Option<(String, String)> {
        match self.tokens.as_slice() {
            [_] => split_legacy_column(&self.text_content(sql)?),
            [table, sign, column]
                if is_name(*table)
                    && is_name(*column)
                    && (sign.is_symbol(b'.')
                        || sign.lexeme == TokenKind::Colons && !is_cast_type(sql, *column)) =>
            {
                Some((table.unquoted_text(sql), column.unquoted_text(sql)))
            }
            _ => None,
        }
    }

    /// Returns the byte range of the value.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        token_span(&self.tokens)
    }

    /// Returns the byte range of the argument, with its keyword and the comma after it.
    #[must_use]
    pub fn full_span(&self) -> Range<usize> {
        self.keyword.map_or_else(|| self.span().start, |keyword| keyword.start)..self.end
    }
}
