//! Builds the call of a macro: its arguments as written, the arguments that are values, and the
//! suffix after the braces.

use crate::blendsql::argument::{self, begins_query, strip_parens, token_span};
use crate::blendsql::ingredients::Keyword;
use crate::blendsql::ingredients::keyword::find_keyword;
use crate::blendsql::lexer::{Brackets, Token, TokenKind};
use crate::blendsql::macros::{MacroCall, MacroSignature, MacroSuffix, WrittenArgument};
use crate::blendsql::scan::call::skip_question;
use crate::blendsql::scan::{ScannedCall, Scanner};
use crate::blendsql::{Argument, Call, Choices, ReturnType, SqlError, answer_arguments, choices};

impl Scanner<'_, '_> {
    /// Builds the call of a macro, whose `}}` has just been read.
    pub(super) fn build_macro_call(
        &mut self,
        scanned: ScannedCall,
        paren: Token,
        signature: MacroSignature<'_>,
    ) -> Result<Call, SqlError> {
        let ScannedCall { open, name, ingredient, is_values_row, mut arguments, .. } = scanned;
        let mut call = Call {
            span: open.start..scanned.end,
            inner: scanned.inner,
            is_values_row,
            ..Call::for_ingredient(ingredient)
        };
        let find_keyword = |argument: &WrittenArgument| {
            let word = argument.keyword?.text(self.sql);
            let is_own = |name: &String| name.eq_ignore_ascii_case(word);
            find_keyword(word).filter(|_| !signature.argument_names.iter().any(is_own))
        };
        let is_question = |a: &WrittenArgument| find_keyword(a) == Some(Keyword::Question);
        let question_is_named = arguments.iter().any(is_question);
        let mut positions = 0_usize..;
        for argument in &mut arguments {
            let keyword = find_keyword(argument);
            let position = if argument.keyword.is_none() { positions.next() } else { None };
            let tokens = match position {
                Some(0) if signature.has_question && !question_is_named => {
                    skip_question(self.sql, &argument.tokens)
                }
                _ => argument.tokens.as_slice(),
            };
            let is_literal = signature.literal_argument.is_some_and(|(literal, keywords)| {
                let is_named = |k: Token| keywords.iter().any(|word| k.is_word(self.sql, word));
                position == Some(literal) || argument.keyword.is_some_and(is_named)
            });
            if !is_literal || argument.query_span(self.sql).is_some() {
                call.values.extend(self.parse_macro_value(keyword, tokens)?);
            }
            if is_literal || keyword == Some(Keyword::Options) {
                call.values.extend(self.parse_row_list(argument));
            }
            self.read_answer_argument(keyword, &argument.tokens, &mut call);
            // A string is a column only if the macro reads it as a column.
            for token in &mut argument.tokens {
                if token.lexeme == TokenKind::LegacyColumn {
                    token.lexeme = TokenKind::Text;
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
        let (end, is_aggregate) = (scanned.end, signature.is_aggregate);
        let question = None;
        let written =
            MacroCall { name, paren, arguments, end, field, filter, is_aggregate, question };
        call.macro_call = Some(Box::new(written));
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
            let keyword = argument.keyword.and_then(|keyword| find_keyword(keyword.text(self.sql)));
            call.values.extend(self.parse_macro_value(keyword, &argument.tokens)?);
        }
        let end = call.span.end;
        let (field, filter, is_aggregate, question) = (None, None, false, None);
        let written =
            MacroCall { name, paren, arguments, end, field, filter, is_aggregate, question };
        call.macro_call = Some(Box::new(written));
        Ok(call)
    }

    /// Returns the tokens of an argument with this keyword as a value if they are an SQL expression.
    fn parse_macro_value(
        &self,
        keyword: Option<Keyword>,
        tokens: &[Token],
    ) -> Result<Option<Argument>, SqlError> {
        let is_value = matches!(keyword, None | Some(Keyword::Value | Keyword::Context));
        let is_list = tokens.iter().any(|token| token.is_symbol(b'{'))
            || tokens.first().is_some_and(|first| first.is_symbol(b'['));
        if !is_value || tokens.is_empty() || is_list {
            return Ok(None);
        }
        argument::parse_argument(self.sql, tokens)
    }

    /// Returns the expression that computes an argument's options for each row, if there is one.
    fn parse_row_list(&self, argument: &WrittenArgument) -> Option<Argument> {
        match choices::parse_choices(self.sql, &argument.tokens) {
            Ok(Some(Choices::RowList(span))) => Some(Argument::Sql(span)),
            _ => None,
        }
    }

    /// Reads the arguments that describe the answer. The ingredient that replaces the macro reports
    /// their errors.
    fn read_answer_argument(&self, keyword: Option<Keyword>, tokens: &[Token], call: &mut Call) {
        match keyword {
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
                    call.options = Some(Choices::Query(token_span(inside)));
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
            matches!(field.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name)
                || field.is_symbol(b'*')
        });
        self.at = field.map_or(start, |field| field.end);
        field
    }

    /// Reads `FILTER (WHERE …)`. Returns the byte range of the condition.
    pub(super) fn read_filter(
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
                Ok(Some(token_span(condition)))
            }
            _ => Err(SqlError::new(paren.start..end, "FILTER has no condition", "expected WHERE")
                .with_help("write FILTER (WHERE …)")),
        }
    }

    /// Rejects a call that is used as a window function.
    pub(super) fn reject_window(&mut self, name: Token) -> Result<(), SqlError> {
        let Some(over) = self.peek_token().filter(|t| t.is_word(self.sql, "OVER")) else {
            return Ok(());
        };
        let message = format!("`{}` is not a window function", name.text(self.sql));
        Err(SqlError::new(over.span(), message, "windows are not supported")
            .with_help("use GROUP BY, and join its rows to the others"))
    }

    /// Returns the next token without moving past it. If the token is invalid, the error is
    /// reported when the token is read.
    pub(super) fn peek_token(&mut self) -> Option<Token> {
        let start = self.at;
        let token = self.next_token(Brackets::Name).ok().flatten();
        self.at = start;
        token
    }
}
