//! Builds the call of a macro: its arguments as written, the arguments that are values, and the
//! suffix after the braces.

use crate::blendsql::argument::{self, begins_query, span_of_tokens, strip_parens};
use crate::blendsql::ingredients::Keyword;
use crate::blendsql::ingredients::keyword::find_keyword;
use crate::blendsql::lexer::{Brackets, Lexeme, Token};
use crate::blendsql::macros::{MacroCall, MacroSignature, MacroSuffix, WrittenArgument};
use crate::blendsql::scan::{ScannedCall, Scanner};
use crate::blendsql::{Argument, Call, Choices, ReturnType, SqlError, answer_arguments};

impl Scanner<'_> {
    /// Builds the call of a macro, whose `}}` has just been read.
    pub(super) fn build_macro_call(
        &mut self,
        scanned: ScannedCall,
        paren: Token,
        signature: MacroSignature,
    ) -> Result<Call, SqlError> {
        let ScannedCall { open, name, ingredient, is_values_row, mut arguments, .. } = scanned;
        let mut call = Call {
            span: open.start..scanned.end,
            inner: scanned.inner,
            is_values_row,
            ..Call::of_ingredient(ingredient)
        };
        for (n, argument) in arguments.iter_mut().enumerate() {
            call.values.extend(self.macro_value(argument, signature.has_question && n == 0)?);
            self.read_answer_argument(argument, &mut call);
            // A string is a column only if the macro reads it as a column.
            for token in &mut argument.tokens {
                if token.lexeme == Lexeme::LegacyColumn {
                    token.lexeme = Lexeme::Text;
                }
            }
        }
        call.return_type = match (signature.return_type, call.return_type) {
            (Some(default), Some(stated)) => {
                Some(ReturnType { is_list: default.is_list || stated.is_list, ..stated })
            }
            (default, stated) => stated.or(default),
        };
        let (mut field, mut filter) = (None, None);
        match signature.suffix {
            MacroSuffix::Nothing => {}
            MacroSuffix::Field => field = self.read_field(),
            MacroSuffix::Filter => {
                filter = self.read_filter(&mut call.inner)?;
                self.reject_window(name)?;
            }
        }
        call.span.end = field.map_or(self.at, |field| field.end);
        let end = scanned.end;
        call.macro_call = Some(Box::new(MacroCall { name, paren, arguments, end, field, filter }));
        Ok(call)
    }

    /// Builds the call of a macro that is a function.
    pub(in crate::blendsql) fn build_macro_function(
        &self,
        mut call: Call,
        (name, paren): (Token, Token),
        arguments: Vec<WrittenArgument>,
    ) -> Result<Call, SqlError> {
        let missing = || SqlError::new(call.span.clone(), "an argument is missing", "in this call");
        if arguments.iter().any(|argument| argument.tokens.is_empty()) {
            return Err(missing());
        }
        for argument in &arguments {
            call.values.extend(self.macro_value(argument, false)?);
        }
        let end = call.span.end;
        let (field, filter) = (None, None);
        call.macro_call = Some(Box::new(MacroCall { name, paren, arguments, end, field, filter }));
        Ok(call)
    }

    /// Returns an argument as a value if it is an expression of SQL.
    fn macro_value(
        &self,
        argument: &WrittenArgument,
        may_be_question: bool,
    ) -> Result<Option<Argument>, SqlError> {
        let tokens = argument.tokens.as_slice();
        let is_value = argument.keyword.and_then(|k| find_keyword(k.text(self.sql)));
        let is_value = matches!(is_value, None | Some(Keyword::Value | Keyword::Context));
        let is_question = may_be_question
            && argument.keyword.is_none()
            && matches!(tokens, [text] if matches!(text.lexeme, Lexeme::Text | Lexeme::LegacyColumn));
        let is_list = tokens.iter().any(|token| token.is_symbol(b'{'))
            || tokens.first().is_some_and(|first| first.is_symbol(b'['));
        if !is_value || is_question || is_list {
            return Ok(None);
        }
        argument::parse_argument(self.sql, tokens)
    }

    /// Reads the arguments that describe the answer. The ingredient that replaces the macro reports
    /// their errors.
    fn read_answer_argument(&self, argument: &WrittenArgument, call: &mut Call) {
        let tokens = argument.tokens.as_slice();
        match argument.keyword.and_then(|k| find_keyword(k.text(self.sql))) {
            Some(Keyword::ReturnType) => {
                call.return_type =
                    answer_arguments::parse_return_type(self.sql, tokens).ok().flatten();
            }
            Some(Keyword::Quantifier) => {
                call.quantifier =
                    answer_arguments::parse_quantifier(self.sql, tokens).ok().flatten();
            }
            Some(Keyword::Options) => {
                let (layers, inside) = strip_parens(tokens);
                if layers > 0 && begins_query(self.sql, inside) {
                    call.options = Some(Choices::Query(span_of_tokens(inside)));
                }
            }
            _ => {}
        }
    }

    /// Reads `.field` or `.*`, without a space before it.
    fn read_field(&mut self) -> Option<Token> {
        let start = self.at;
        let dot = self.peek_token().filter(|dot| dot.is_symbol(b'.') && dot.start == start)?;
        self.at = dot.end;
        let field = self.peek_token().filter(|field| {
            matches!(field.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name)
                || field.is_symbol(b'*')
        });
        self.at = field.map_or(start, |field| field.end);
        field
    }

    /// Reads `FILTER (WHERE …)`. Returns the byte range of the condition.
    fn read_filter(
        &mut self,
        inner: &mut Vec<Call>,
    ) -> Result<Option<std::ops::Range<usize>>, SqlError> {
        let start = self.at;
        let Some(word) = self.peek_token().filter(|t| t.is_word(self.sql, "FILTER")) else {
            return Ok(None);
        };
        self.at = word.end;
        let Some(paren) = self.peek_token().filter(|t| t.is_symbol(b'(')) else {
            self.at = start;
            return Ok(None);
        };
        self.at = paren.end;
        let (parts, calls, end) = self.read_arguments(word)?;
        inner.extend(calls);
        match parts.concat().as_slice() {
            [keyword, condition @ ..] if keyword.is_word(self.sql, "WHERE") => {
                Ok(Some(span_of_tokens(condition)))
            }
            _ => Err(SqlError::new(paren.start..end, "FILTER has no condition", "expected WHERE")
                .with_help("write FILTER (WHERE …)")),
        }
    }

    /// Rejects a call that is used as a window function.
    fn reject_window(&mut self, name: Token) -> Result<(), SqlError> {
        let Some(over) = self.peek_token().filter(|t| t.is_word(self.sql, "OVER")) else {
            return Ok(());
        };
        let message = format!("`{}` is not a window function", name.text(self.sql));
        Err(SqlError::new(over.span(), message, "windows are not supported")
            .with_help("use GROUP BY, and join its rows to the others"))
    }

    /// Returns the next token without moving past it. If the token is invalid, the error is
    /// reported when the token is read.
    fn peek_token(&mut self) -> Option<Token> {
        let start = self.at;
        let token = self.next_token(Brackets::Name).ok().flatten();
        self.at = start;
        token
    }
}
