//! Grammar of the FROM clause.

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::parse::cursor::QueryParser;
use crate::blendsql::parse::keywords;
use crate::blendsql::tree::{FromItem, FromSource, JoinKind};

impl QueryParser<'_> {
    /// Parses the entries of a FROM clause.
    pub fn parse_from(&mut self) -> Result<Vec<FromItem>, SqlError> {
        let mut items = vec![self.parse_from_item(JoinKind::Inner, false)?];
        loop {
            let start = self.next_start();
            let Some((join, natural)) = self.parse_join()? else { return Ok(items) };
            let words = self.span_from(start);
            if self.parse_legacy_join(&mut items, words, (join, natural))? {
                continue;
            }
            let mut item = self.parse_from_item(join, natural)?;
            if self.eat_word("ON") {
                item.on = Some(self.parse_expr()?);
            } else if self.eat_word("USING") {
                self.expect_symbol(b'(')?;
                item.using = self.read_list(Self::read_name)?;
                self.expect_symbol(b')')?;
            }
            items.push(item);
        }
    }

    /// Parses a comma or the words of a join. Returns the join's type and whether it is NATURAL,
    /// or `None` if no further entry follows.
    fn parse_join(&mut self) -> Result<Option<(JoinKind, bool)>, SqlError> {
        if self.eat_symbol(b',') || self.eat_word("JOIN") {
            return Ok(Some((JoinKind::Inner, false)));
        }
        let begins_join = |token: &Token| {
            token.lexeme == TokenKind::Word && keywords::begins_join(self.text(*token))
        };
        if !self.peek().is_some_and(|t| begins_join(&t)) {
            return Ok(None);
        }
        let (mut join, mut natural) = (JoinKind::Inner, false);
        // `SQLite` checks which of these words can be combined.
        for _ in 0..3 {
            if self.is_word("JOIN") {
                break;
            }
            natural |= self.is_word("NATURAL");
            if self.is_word("RIGHT") || self.is_word("FULL") {
                join = JoinKind::Outer;
            } else if self.is_word("LEFT") {
                join = JoinKind::Left;
            }
            self.read_name()?;
        }
        self.expect_word("JOIN")?;
        Ok(Some((join, natural)))
    }

    fn parse_from_item(&mut self, join: JoinKind, natural: bool) -> Result<FromItem, SqlError> {
        let start = self.next_start();
        let (source, own_name) = match self.parse_legacy_source()? {
            Some(source) => (source, None),
            None => self.parse_from_source()?,
        };
        let is_table = matches!(source, FromSource::Table { .. });
        let source_span = self.span_from(start);
        let alias = self.read_alias()?;
        let source = match (source, &alias) {
            (FromSource::Query(query), Some(alias)) => {
                FromSource::Query(self.read_legacy_column_names(query, source_span, alias)?)
            }
            (source, _) => source,
        };
        let source = match source {
            FromSource::Table { schema, name, span } => {
                FromSource::Table { schema, name, span: self.span_from(span.start) }
            }
            other => other,
        };
        if is_table && self.eat_word("INDEXED") {
            self.expect_word("BY")?;
            self.read_name()?;
        } else if is_table && self.is_word("NOT") && self.is_word_after(1, "INDEXED") {
            self.at += 2;
        }
        let mut column_names = Vec::new();
        if self.is_suql && alias.is_some() && self.eat_symbol(b'(') {
            column_names = self.read_list(|p| {
                let start = p.next_start();
                Ok((p.read_name()?, p.span_from(start)))
            })?;
            self.expect_symbol(b')')?;
        }
        let item = FromItem::new(source, alias.or(own_name), join, self.span_from(start));
        Ok(FromItem { natural, column_names, ..item })
    }

    /// Parses a table, function, subquery or parenthesized join. Also returns the name by which the
    /// query can refer to it without an alias.
    pub(super) fn parse_from_source(&mut self) -> Result<(FromSource, Option<String>), SqlError> {
        if self.is_postgres {
            let lateral = self.peek();
            if self.eat_word("LATERAL") && self.is_suql && self.is_symbol(b'(') {
                let help = "a subquery in FROM cannot refer to other tables there; move it to the columns of SELECT";
                let span = lateral.map_or(0..0, Token::span);
                return Err(SqlError::untranslatable(span, "LATERAL", help));
            }
            self.eat_word("ONLY");
        }
        let start = self.next_start();
        if self.is_symbol(b'(') {
            if self.begins_query_after(1) {
                return Ok((FromSource::Query(Box::new(self.parse_query_in_parens()?)), None));
            }
            self.at += 1;
            let items = self.parse_nested(Self::parse_from)?;
            self.expect_symbol(b')')?;
            return Ok((FromSource::Join(items), None));
        }
        let mut name = self.read_name()?;
        let mut schema = None;
        if self.eat_symbol(b'.') {
            schema = Some(std::mem::replace(&mut name, self.read_name()?));
        }
        let source = if self.is_symbol(b'(') {
            let args = self.parse_list_in_parens()?;
            if self.is_suql && self.is_word("WITH") && self.is_word_after(1, "ORDINALITY") {
                let help = "leave it out; the elements have no numbers";
                let span = self.span_from(start);
                return Err(SqlError::untranslatable(span, "WITH ORDINALITY", help));
            }
            FromSource::Function { name: name.clone(), args }
        } else {
            FromSource::Table { schema, name: name.clone(), span: self.span_from(start) }
        };
        Ok((source, Some(name)))
    }
}
