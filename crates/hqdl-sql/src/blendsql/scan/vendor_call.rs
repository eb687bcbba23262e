//! Reads the calls of another engine's AI functions, and the syntax that only their arguments have:
//! objects and lists.

use crate::blendsql::lexer::{self, Brackets, Token, TokenKind};
use crate::blendsql::macros::{MacroCall, VendorIngredient, VendorQuestion, find_macro_ingredient};
use crate::blendsql::scan::Scanner;
use crate::blendsql::vendors::{Vendor, read_question};
use crate::blendsql::{Call, SqlError, Subject};

impl Scanner<'_, '_> {
    /// Reads the call of the vendor's function that begins at `word`, if there is one; `previous` is
    /// the preceding token.
    pub(in crate::blendsql) fn read_vendor_call(
        &mut self,
        word: Token,
        previous: Option<Token>,
    ) -> Result<Option<Call>, SqlError> {
        let Some(vendor) = self.vendor else { return Ok(None) };
        let is_later_part =
            previous.is_some_and(|token| token.is_symbol(b'.') || token.lexeme == TokenKind::Open);
        if word.lexeme != TokenKind::Word || is_later_part {
            return Ok(None);
        }
        let start = self.at;
        let Some((name, paren)) = self.read_vendor_function(word, vendor)? else {
            self.at = start;
            return Ok(None);
        };
        self.enter_call(word)?;
        // A lookahead may already have added tokens from here on.
        let first = self.tokens.partition_point(|token| token.start < self.at);
        let (arguments, mut inner) = self.read_vendor_arguments(name, vendor)?;
        let end = self.at;
        let question = read_question(self.sql, vendor, name, &arguments)?;
        self.check_parameters(first, &question)?;
        self.leave_call();
        let (mut filter, is_aggregate) = (None, question.ingredient == VendorIngredient::Reduce);
        let is_many =
            matches!(question.ingredient, VendorIngredient::Classify { is_many: true, .. });
        if is_aggregate {
            // The condition has PostgreSQL's syntax in AlloyDB, and would not be translated.
            if vendor != Vendor::AlloyDb {
                filter = self.read_filter(&mut inner)?;
            }
            self.reject_window(name)?;
        } else {
            self.skip_answer_field(is_many)?;
        }
        let values = question.values.iter().filter_map(|value| value.argument.clone()).collect();
        let subject = match &question.ingredient {
            VendorIngredient::Reduce => Subject::Document,
            VendorIngredient::Similarity | VendorIngredient::Embed => Subject::Embedding,
            _ if question.values.is_empty() => Subject::Rows,
            _ => Subject::Value,
        };
        let written = MacroCall {
            name,
            paren,
            arguments: Vec::new(),
            end,
            field: None,
            filter,
            is_aggregate,
            question: Some(question),
        };
        Ok(Some(Call {
            span: word.start..self.at,
            inner,
            values,
            macro_call: Some(Box::new(written)),
            ..Call::for_ingredient(find_macro_ingredient(subject))
        }))
    }

    /// Reads the rest of a function's name, whose words are separated by dots, and the `(` after
    /// it. Returns `None` if the vendor does not have the function.
    fn read_vendor_function(
        &mut self,
        word: Token,
        vendor: Vendor,
    ) -> Result<Option<(Token, Token)>, SqlError> {
        let (mut name, mut path) = (word, word.text(self.sql).to_lowercase());
        let paren = loop {
            let Some(sign) = self.next_token(Brackets::Name)? else { return Ok(None) };
            if sign.is_symbol(b'(') {
                break sign;
            }
            let part = if sign.is_symbol(b'.') { self.next_token(Brackets::Name)? } else { None };
            let Some(part) = part.filter(|part| part.lexeme == TokenKind::Word) else {
                return Ok(None);
            };
            name.end = part.end;
            path.push('.');
            path.push_str(&part.text(self.sql).to_lowercase());
        };
        let is_function =
            vendor.reserves_name(&path) && !self.is_cte_column_list(Brackets::List)?;
        Ok(is_function.then_some((name, paren)))
    }

    /// Reads the tokens up to the `)` of a call, in which a nested call is a single token.
    fn read_vendor_arguments(
        &mut self,
        name: Token,
        vendor: Vendor,
    ) -> Result<(Vec<Token>, Vec<Call>), SqlError> {
        let (mut tokens, mut inner) = (Vec::<Token>::new(), Vec::new());
        let mut nest: Vec<u8> = Vec::new();
        loop {
            let Some(mut token) = self.next_vendor_token(vendor)? else {
                let message = format!("`{}` is never closed", name.text(self.sql));
                return Err(SqlError::new(name.span(), message, "this call has no `)`"));
            };
            let is_open = token.lexeme == TokenKind::Open;
            let is_ingredient =
                is_open && self.peek_token().is_some_and(|t| t.lexeme == TokenKind::Word);
            let call = if is_ingredient {
                Some(self.read_call(token, false)?)
            } else {
                self.read_function_call(token, tokens.last().copied())?
            };
            if let Some(call) = call {
                tokens.push(Token { lexeme: TokenKind::Call, end: call.span.end, ..token });
                inner.push(call);
                continue;
            }
            // `{{` and `}}` are the brackets of two objects here, and the lexer reads the `:b` of
            // `{'a':b}` as a parameter.
            let first = match token.lexeme {
                TokenKind::Open => Some(b'{'),
                TokenKind::Close if nest.last() == Some(&b'{') => Some(b'}'),
                TokenKind::Parameter if follows_value(self.sql, &tokens, token, &nest) => {
                    Some(b':')
                }
                _ => None,
            };
            if let Some(symbol) = first {
                token = self.split_token(token, symbol);
            }
            match token.lexeme {
                TokenKind::Symbol(symbol @ (b'(' | b'[' | b'{')) => nest.push(symbol),
                TokenKind::Symbol(b')' | b']' | b'}') if nest.pop().is_none() => {
                    return Ok((tokens, inner));
                }
                TokenKind::Close => {
                    let message = format!(
                        "`{}` is not closed before the end of the call around it",
                        name.text(self.sql)
                    );
                    let span = name.start..token.end;
                    return Err(SqlError::new(span, message, "no `)` before `}}`"));
                }
                _ => {}
            }
            tokens.push(token);
        }
    }

    /// Reads the next token of the arguments. `[` begins a list, or a name in the SQL of most
    /// engines.
    fn next_vendor_token(&mut self, vendor: Vendor) -> Result<Option<Token>, SqlError> {
        let brackets = if self.begins_vendor_list() { Brackets::List } else { vendor.brackets() };
        self.next_token(brackets)
    }

    /// Returns true if the next token is the `[` of a list: a text, a brace or a parenthesis follows
    /// it, or the brackets contain only numbers.
    fn begins_vendor_list(&self) -> bool {
        let read = |at: usize, brackets| lexer::next_token(self.sql, at, brackets).ok().flatten();
        let Some(open) = read(self.at, Brackets::List).filter(|t| t.is_symbol(b'[')) else {
            return false;
        };
        let is_name = || {
            let name = read(self.at, Brackets::Name);
            name.is_some_and(|name| !super::begins_list(self.sql, name))
        };
        match read(open.end, Brackets::List).map(|first| first.lexeme) {
            Some(
                TokenKind::Text
                | TokenKind::Quoted
                | TokenKind::Open
                | TokenKind::Symbol(b'{' | b'(' | b']'),
            ) => true,
            _ => !is_name(),
        }
    }

    /// Replaces the last token with its first byte. The rest is read again.
    fn split_token(&mut self, token: Token, symbol: u8) -> Token {
        let first = Token { lexeme: TokenKind::Symbol(symbol), end: token.start + 1, ..token };
        self.tokens.truncate(self.tokens.partition_point(|t| t.start < token.start));
        self.tokens.push(first);
        self.at = first.end;
        first
    }

    /// Skips `.result` of `BigQuery` and `:labels[0]::text` of Snowflake, which select the answer.
    fn skip_answer_field(&mut self, is_many: bool) -> Result<(), SqlError> {
        let end = self.at;
        let Some(sign) = self.peek_token() else { return Ok(()) };
        if sign.is_symbol(b'.') {
            self.at = sign.end;
            let field = self.peek_token().filter(|field| field.is_word(self.sql, "result"));
            self.at = field.map_or(end, |field| field.end);
        } else if sign.text(self.sql).eq_ignore_ascii_case(":labels") {
            if is_many {
                let message = "`:labels` is not supported for several labels";
                return Err(SqlError::new(sign.span(), message, "the call returns a list")
                    .with_help("leave it out, or ask for one label"));
            }
            self.at = sign.end;
            let index = self.peek_token().filter(|index| index.text(self.sql) == "[0]");
            self.at = index.map_or(end, |index| index.end);
            let colons = self.peek_token().filter(|sign| sign.lexeme == TokenKind::Colons);
            if let (Some(_), Some(colons)) = (index, colons) {
                let after_index = std::mem::replace(&mut self.at, colons.end);
                let name = self.peek_token().filter(|name| name.lexeme == TokenKind::Word);
                self.at = name.map_or(after_index, |name| name.end);
            }
            // `:labels` is not a parameter.
            for token in self.tokens.iter_mut().filter(|token| token.start == sign.start) {
                token.lexeme = TokenKind::Symbol(b':');
            }
        }
        Ok(())
    }

    /// Fails if the value of a parameter in the arguments has no effect. `first` is the index of the
    /// first token of the arguments.
    fn check_parameters(&self, first: usize, question: &VendorQuestion) -> Result<(), SqlError> {
        let is_in_value = |t: &Token| question.values.iter().any(|v| v.span.contains(&t.start));
        let (used, unused): (Vec<Token>, Vec<Token>) = self.tokens[first..]
            .iter()
            .copied()
            .filter(|token| token.lexeme == TokenKind::Parameter)
            .partition(|token| is_in_value(token));
        let is_used = |name: &str| name != "?" && used.iter().any(|t| t.text(self.sql) == name);
        let dropped = unused.into_iter().find(|token| !is_used(token.text(self.sql)));
        let Some(dropped) = dropped else { return Ok(()) };
        let name = dropped.text(self.sql);
        let message = format!("hqdl does not use the argument that contains `{name}`");
        Err(SqlError::new(dropped.span(), message, "has no effect")
            .with_help("remove the parameter"))
    }
}

/// Returns true if a token that the lexer reads as a parameter is the `:` after a value or a key,
/// and a word.
fn follows_value(sql: &str, tokens: &[Token], token: Token, nest: &[u8]) -> bool {
    let Some(previous) = tokens.last().filter(|_| token.text(sql).starts_with(':')) else {
        return false;
    };
    let is_key = || {
        let begins_field = |t: &Token| t.is_symbol(b'{') || t.is_symbol(b',');
        nest.last() == Some(&b'{') && tokens.iter().nth_back(1).is_some_and(begins_field)
    };
    match previous.lexeme {
        TokenKind::Text | TokenKind::Quoted | TokenKind::Name | TokenKind::Symbol(b')' | b']') => {
            true
        }
        TokenKind::Word => previous.end == token.start || is_key(),
        _ => false,
    }
}
