//! Parser of FROM clauses.

use std::ops::Range;

use super::declared::declared;
use super::parser::{
    ExprShape, Parser, Piece, SuqlSelect, SuqlTable, TableOf, TypedColumns, Unnested, unsaid,
};
use super::text::Part;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;
use hqdl_values::format::count_noun;

/// Column aliases with their positions.
type GivenNames = Vec<(String, Range<usize>)>;

impl Parser<'_> {
    /// Parses a FROM clause up to the next clause.
    pub fn from(&mut self) -> Result<Vec<Piece>, SqlError> {
        let mut pieces = Vec::new();
        self.item(&mut pieces)?;
        loop {
            if self.symbol(b',') {
                self.item(&mut pieces)?;
                continue;
            }
            let start = self.at;
            let mut merged = self.word("NATURAL");
            let _ = self.word("INNER") || self.word("CROSS");
            if self.word("LEFT") || self.word("RIGHT") || self.word("FULL") {
                self.word("OUTER");
                if let Some(select) = self.selects.last_mut() {
                    select.outer = true;
                }
            }
            if !self.word("JOIN") {
                self.at = start;
                return Ok(pieces);
            }
            self.item(&mut pieces)?;
            if self.word("ON") {
                pieces.push(Self::condition(self.expr()?));
            } else if self.word("USING") {
                merged = true;
                self.expect(b'(')?;
                while !self.symbol(b')') {
                    self.take()?;
                }
            }
            if let Some(select) = self.selects.last_mut() {
                select.merged |= merged;
            }
        }
    }

    /// Parses the table after TABLE and returns its columns.
    pub fn table(&mut self) -> Result<(Vec<Piece>, TypedColumns), SqlError> {
        let mut pieces = Vec::new();
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        self.item(&mut pieces)?;
        Ok((pieces, self.selects.last().and_then(|select| select.all_columns(None))))
    }

    fn item(&mut self, pieces: &mut Vec<Piece>) -> Result<(), SqlError> {
        let start = self.here();
        let lateral = self.peek().filter(|t| t.is_word(self.sql, "LATERAL"));
        if let Some(word) = lateral {
            self.at += 1;
            if self.is(b'(') {
                let help = "in SQLite a subquery in FROM cannot refer to the tables beside it";
                return Err(unsaid(word.span(), "LATERAL", help));
            }
            pieces.push(Piece::new(Vec::new(), word.start..self.here()));
        }
        self.word("ONLY");
        if self.is(b'(') {
            if self.query_at(1) {
                self.at += 1;
                let at = self.here();
                let query = self.deeper(Self::query)?;
                let end = self.expect(b')')?;
                let query = Piece::new(query, at..end - 1);
                return self.aliased(query, start..end, pieces);
            }
            // A join in parentheses.
            self.at += 1;
            let inner = self.deeper(Self::from)?;
            pieces.extend(inner);
            self.expect(b')')?;
            if let (Some(alias), _) = self.alias()? {
                self.reads(Some(alias), TableOf::Query, None);
            }
            return Ok(());
        }
        // PostgreSQL's default schema.
        let public = |t: Token| t.content(self.sql).eq_ignore_ascii_case("public");
        if self.peek().is_some_and(|t| self.is_name(t) && public(t))
            && self.peek_at(1).is_some_and(|t| t.is(b'.'))
        {
            let schema = self.here();
            self.at += 2;
            pieces.push(Piece::new(Vec::new(), schema..self.here()));
        }
        let Some(name) = self.peek().filter(|t| self.is_name(*t)) else {
            return Err(self.expected("a table"));
        };
        self.at += 1;
        while self.symbol(b'.') {
            self.take()?;
        }
        if !self.is(b'(') {
            let last = self.tokens[self.at - 1].content(self.sql);
            let (alias, columns) = self.alias()?;
            if columns.is_empty() {
                let typed = self.columns_of(&last);
                self.reads(alias.or(Some(last.clone())), TableOf::Named(last), typed);
                return Ok(());
            }
            pieces.push(self.renamed_table(name.start, &last, alias, &columns)?);
            return Ok(());
        }
        let function = name.content(self.sql).to_lowercase();
        self.at += 1;
        let args = if self.is(b')') { Vec::new() } else { self.list()? };
        let end = self.expect(b')')?;
        if self.is_word("WITH") && self.is_word_at(1, "ORDINALITY") {
            return Err(unsaid(start..self.before(), "WITH ORDINALITY", ""));
        }
        let whole = start..end;
        let Some(array) = Self::array_of_rows(&function, args.clone(), &whole)? else {
            pieces.extend(args);
            let (alias, _) = self.alias()?;
            self.reads(alias.or(Some(function)), TableOf::Query, None);
            return Ok(());
        };
        let (alias, names) = self.alias()?;
        let mut names: Vec<String> = names.into_iter().map(|(name, _)| name).collect();
        let alias = alias.unwrap_or(function);
        if names.is_empty() {
            names.push(alias.clone());
        }
        let span = name.start..self.before();
        let words = format!("json_each(suql_array({{}})) AS {}", hqdl_values::sql::name(&alias));
        pieces.push(Piece::filled(&words, vec![array.text.clone()], span));
        let element = names.iter().map(|name| (name.clone(), ExprShape::Plain)).collect();
        self.reads(Some(alias.clone()), TableOf::Array, Some(element));
        if let Some(select) = self.selects.last_mut() {
            select.unnested.push(Unnested { alias, names, array: None });
        }
        Ok(())
    }

    /// Parses the alias of a subquery. Column aliases require a common table expression in
    /// `SQLite`.
    fn aliased(
        &mut self,
        query: Piece,
        span: std::ops::Range<usize>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), SqlError> {
        let (alias, columns) = self.alias()?;
        let typed = self.renamed_columns(&columns)?;
        self.reads(alias.clone(), TableOf::Query, typed.clone());
        if columns.is_empty() {
            pieces.push(query);
            return Ok(());
        }
        let end = self.before();
        let name = self.name();
        let columns: Vec<String> = match typed {
            Some(typed) => typed.into_iter().map(|(name, _)| name).collect(),
            None => columns.into_iter().map(|(name, _)| name).collect(),
        };
        let columns = hqdl_values::sql::names("", &columns);
        let alias = hqdl_values::sql::name(&alias.unwrap_or_else(|| name.clone()));
        let words = format!("(WITH {name}({columns}) AS ({{}}) SELECT * FROM {name}) AS {alias}");
        pieces.push(Piece::filled(&words, vec![query.text], span.start..end));
        Ok(())
    }

    /// Translates a table with column aliases to a subquery, because `SQLite` supports no column
    /// aliases for tables.
    ///
    /// # Errors
    /// [`SqlError`] for an unknown table, or for more aliases than columns.
    fn renamed_table(
        &mut self,
        start: usize,
        table: &str,
        alias: Option<String>,
        names: &[(String, Range<usize>)],
    ) -> Result<Piece, SqlError> {
        let span = start..self.before();
        let Some(own) = self.columns_of(table) else {
            let help = "select them by name in a subquery";
            return Err(unsaid(span, "other names for columns that are not known", help));
        };
        self.columns = Some(own.clone());
        let typed = self.renamed_columns(names)?;
        let both = typed.iter().flatten().zip(&own);
        let shown: Vec<String> = both
            .map(|((new, _), (own, _))| {
                format!("{} AS {}", hqdl_values::sql::name(own), hqdl_values::sql::name(new))
            })
            .collect();
        let called = hqdl_values::sql::name(alias.as_deref().unwrap_or(table));
        let of = hqdl_values::sql::name(table);
        let words = format!("(SELECT {} FROM {of}) AS {called}", shown.join(", "));
        self.reads(alias, TableOf::Query, typed);
        Ok(Piece::new(vec![Part::New(words, span.clone())], span))
    }

    /// Parses `[AS] name [(columns)]`.
    fn alias(&mut self) -> Result<(Option<String>, GivenNames), SqlError> {
        let marked = self.word("AS");
        let Some(token) = self.peek().filter(|t| self.is_name(*t)) else {
            return if marked { Err(self.expected("a name")) } else { Ok((None, Vec::new())) };
        };
        self.at += 1;
        let columns = self.column_names()?;
        Ok((Some(token.content(self.sql)), columns))
    }

    /// Parses a column list `(a, b)`; returns no names if there is no parenthesis.
    pub fn column_names(&mut self) -> Result<GivenNames, SqlError> {
        let mut names = Vec::new();
        if self.symbol(b'(') {
            while !self.symbol(b')') {
                let token = self.take()?;
                if !token.is(b',') {
                    names.push((token.content(self.sql), token.span()));
                }
            }
        }
        Ok(names)
    }

    /// Adds a table to the current SELECT.
    fn reads(&mut self, name: Option<String>, of: TableOf, columns: TypedColumns) {
        if let Some(select) = self.selects.last_mut() {
            select.tables.push(SuqlTable { name, of, columns });
        }
    }

    /// Returns the columns of a table or common table expression.
    fn columns_of(&self, table: &str) -> TypedColumns {
        let common = self.common.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(table));
        if let Some((_, columns)) = common {
            return columns.clone();
        }
        let known = self.tables.get(&table.to_lowercase())?;
        let types = known.types.iter().map(|kind| declared(kind));
        let types = types.chain(std::iter::repeat(ExprShape::Plain));
        Some(known.names.iter().cloned().zip(types).collect())
    }

    /// Returns the columns of the last parsed query, with the first ones renamed.
    ///
    /// # Errors
    /// [`SqlError`] for more names than columns.
    pub fn renamed_columns(
        &mut self,
        names: &[(String, Range<usize>)],
    ) -> Result<TypedColumns, SqlError> {
        let Some(mut columns) = self.columns.take() else { return Ok(None) };
        if let Some((_, span)) = names.get(columns.len()) {
            let count = columns.len();
            let message = format!(
                "the query has {}, but there are {} names",
                count_noun(count as u64, "column"),
                names.len()
            );
            return Err(SqlError::new(span.clone(), message, "one too many"));
        }
        for ((name, _), column) in names.iter().zip(&mut columns) {
            column.0.clone_from(name);
        }
        Ok(Some(columns))
    }

    /// Returns the FROM items for arrays that the result columns unnest.
    pub fn unnested_text(select: &SuqlSelect, at: usize, has_from: bool) -> Vec<Part> {
        let mut text = Vec::new();
        for unnested in &select.unnested {
            let Some(array) = &unnested.array else { continue };
            let before = if has_from || !text.is_empty() { ", " } else { " FROM " };
            text.push(Part::New(format!("{before}json_each(suql_array("), at..at));
            text.extend(array.text.clone());
            text.push(Part::New(format!(")) AS {}", unnested.alias), at..at));
        }
        text
    }
}
