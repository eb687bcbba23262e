//! Parser of FROM clauses.

use std::ops::Range;

use super::declared_type::parse_declared_type;
use super::parser::{
    Parser, SqlType, SuqlSelect, SuqlTable, TableSource, TypedColumns, TypedSql, UnnestedArray,
    translation_error,
};
use super::text::SourceFragment;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;
use hqdl_values::format::format_count;

/// Column aliases with their positions.
type ColumnAliases = Vec<(String, Range<usize>)>;

impl Parser<'_> {
    /// Parses a FROM clause up to the next clause.
    pub fn parse_from(&mut self) -> Result<Vec<TypedSql>, SqlError> {
        let mut exprs = Vec::new();
        self.parse_from_item(&mut exprs)?;
        loop {
            if self.eat_symbol(b',') {
                self.parse_from_item(&mut exprs)?;
                continue;
            }
            let start = self.position;
            let mut is_merged = self.eat_word("NATURAL");
            let _ = self.eat_word("INNER") || self.eat_word("CROSS");
            if self.eat_word("LEFT") || self.eat_word("RIGHT") || self.eat_word("FULL") {
                self.eat_word("OUTER");
                if let Some(select) = self.selects.last_mut() {
                    select.has_outer_join = true;
                }
            }
            if !self.eat_word("JOIN") {
                self.position = start;
                return Ok(exprs);
            }
            self.parse_from_item(&mut exprs)?;
            if self.eat_word("ON") {
                exprs.push(Self::to_condition(self.parse_expr()?));
            } else if self.eat_word("USING") {
                is_merged = true;
                self.expect_symbol(b'(')?;
                while !self.eat_symbol(b')') {
                    self.expect_token()?;
                }
            }
            if let Some(select) = self.selects.last_mut() {
                select.has_merged_columns |= is_merged;
            }
        }
    }

    /// Parses the table after TABLE and returns its columns.
    pub fn parse_table(&mut self) -> Result<(Vec<TypedSql>, TypedColumns), SqlError> {
        let mut exprs = Vec::new();
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        self.parse_from_item(&mut exprs)?;
        Ok((exprs, self.selects.last().and_then(|select| select.all_columns(None))))
    }

    fn parse_from_item(&mut self, exprs: &mut Vec<TypedSql>) -> Result<(), SqlError> {
        let start = self.next_start();
        let lateral = self.peek().filter(|t| t.is_word(self.sql, "LATERAL"));
        if let Some(word) = lateral {
            self.position += 1;
            if self.is_symbol(b'(') {
                let help = "a subquery in FROM cannot refer to other tables there; move it to the columns of SELECT";
                return Err(translation_error(word.span(), "LATERAL", help));
            }
            exprs.push(TypedSql::new(Vec::new(), word.start..self.next_start()));
        }
        self.eat_word("ONLY");
        if self.is_symbol(b'(') {
            if self.is_query_at(1) {
                self.position += 1;
                let at = self.next_start();
                let query = self.parse_nested(Self::parse_query)?;
                let end = self.expect_symbol(b')')?;
                let query = TypedSql::new(query, at..end - 1);
                return self.parse_query_alias(query, start..end, exprs);
            }
            // An opening parenthesis begins a join in parentheses.
            self.position += 1;
            let inner = self.parse_nested(Self::parse_from)?;
            exprs.extend(inner);
            self.expect_symbol(b')')?;
            if let (Some(alias), _) = self.parse_alias()? {
                self.add_table(Some(alias), TableSource::Query, None);
            }
            return Ok(());
        }
        // `public` is PostgreSQL's default schema.
        let is_public = |t: Token| t.unquoted_text(self.sql).eq_ignore_ascii_case("public");
        if self.peek().is_some_and(|t| self.is_name(t) && is_public(t))
            && self.peek_at(1).is_some_and(|t| t.is_symbol(b'.'))
        {
            let schema = self.next_start();
            self.position += 2;
            exprs.push(TypedSql::new(Vec::new(), schema..self.next_start()));
        }
        let Some(name) = self.peek().filter(|t| self.is_name(*t)) else {
            return Err(self.expected_error("a table"));
        };
        self.position += 1;
        while self.eat_symbol(b'.') {
            self.expect_token()?;
        }
        if !self.is_symbol(b'(') {
            let last = self.tokens[self.position - 1].unquoted_text(self.sql);
            let (alias, columns) = self.parse_alias()?;
            if columns.is_empty() {
                let typed = self.find_columns(&last);
                self.add_table(alias.or(Some(last.clone())), TableSource::Named(last), typed);
                return Ok(());
            }
            exprs.push(self.select_renamed_columns(name.start, &last, alias, &columns)?);
            return Ok(());
        }
        let function = name.unquoted_text(self.sql).to_lowercase();
        self.position += 1;
        let args = if self.is_symbol(b')') { Vec::new() } else { self.parse_exprs()? };
        let end = self.expect_symbol(b')')?;
        if self.is_word("WITH") && self.is_word_at(1, "ORDINALITY") {
            let help = "leave it out; the elements have no numbers";
            return Err(translation_error(
                start..self.previous_token_end(),
                "WITH ORDINALITY",
                help,
            ));
        }
        let call_span = start..end;
        let Some(array) = Self::find_set_function_array(&function, args.clone(), &call_span)?
        else {
            exprs.extend(args);
            let (alias, _) = self.parse_alias()?;
            self.add_table(alias.or(Some(function)), TableSource::Query, None);
            return Ok(());
        };
        let (alias, names) = self.parse_alias()?;
        let mut names: Vec<String> = names.into_iter().map(|(name, _)| name).collect();
        let alias = alias.unwrap_or(function);
        if names.is_empty() {
            names.push(alias.clone());
        }
        let span = name.start..self.previous_token_end();
        let template =
            format!("json_each(suql_array({{}})) AS {}", hqdl_values::sql::quote_name(&alias));
        exprs.push(TypedSql::from_template(&template, vec![array.text.clone()], span));
        let element = names.iter().map(|name| (name.clone(), SqlType::Unknown)).collect();
        self.add_table(Some(alias.clone()), TableSource::Array, Some(element));
        if let Some(select) = self.selects.last_mut() {
            select.unnested.push(UnnestedArray { alias, names, array: None });
        }
        Ok(())
    }

    /// Parses the alias of a subquery. Column aliases require a common table expression in
    /// `SQLite`.
    fn parse_query_alias(
        &mut self,
        query: TypedSql,
        span: std::ops::Range<usize>,
        exprs: &mut Vec<TypedSql>,
    ) -> Result<(), SqlError> {
        let (alias, columns) = self.parse_alias()?;
        let typed = self.take_renamed_columns(&columns)?;
        self.add_table(alias.clone(), TableSource::Query, typed.clone());
        if columns.is_empty() {
            exprs.push(query);
            return Ok(());
        }
        let end = self.previous_token_end();
        let name = self.new_alias();
        let columns: Vec<String> = match typed {
            Some(typed) => typed.into_iter().map(|(name, _)| name).collect(),
            None => columns.into_iter().map(|(name, _)| name).collect(),
        };
        let columns = hqdl_values::sql::quote_names("", &columns);
        let alias = hqdl_values::sql::quote_name(&alias.unwrap_or_else(|| name.clone()));
        let template =
            format!("(WITH {name}({columns}) AS ({{}}) SELECT * FROM {name}) AS {alias}");
        exprs.push(TypedSql::from_template(&template, vec![query.text], span.start..end));
        Ok(())
    }

    /// Translates a table with column aliases to a subquery, because `SQLite` does not support
    /// column aliases for tables.
    ///
    /// # Errors
    /// Returns [`SqlError`] if the table is unknown or has fewer columns than there are aliases.
    fn select_renamed_columns(
        &mut self,
        start: usize,
        table: &str,
        alias: Option<String>,
        names: &[(String, Range<usize>)],
    ) -> Result<TypedSql, SqlError> {
        let span = start..self.previous_token_end();
        let Some(own) = self.find_columns(table) else {
            let construct = format!("the column aliases of `{table}`");
            let help = "its columns are not known here; name them in a subquery: SELECT a AS b";
            return Err(translation_error(span, &construct, help));
        };
        self.columns = Some(own.clone());
        let typed = self.take_renamed_columns(names)?;
        let both = typed.iter().flatten().zip(&own);
        let columns: Vec<String> = both
            .map(|((new, _), (own, _))| {
                format!(
                    "{} AS {}",
                    hqdl_values::sql::quote_name(own),
                    hqdl_values::sql::quote_name(new)
                )
            })
            .collect();
        let alias_sql = hqdl_values::sql::quote_name(alias.as_deref().unwrap_or(table));
        let table_sql = hqdl_values::sql::quote_name(table);
        let template = format!("(SELECT {} FROM {table_sql}) AS {alias_sql}", columns.join(", "));
        self.add_table(alias, TableSource::Query, typed);
        Ok(TypedSql::new(vec![SourceFragment::Generated(template, span.clone())], span))
    }

    /// Parses `[AS] name [(columns)]`.
    fn parse_alias(&mut self) -> Result<(Option<String>, ColumnAliases), SqlError> {
        let has_as = self.eat_word("AS");
        let Some(token) = self.peek().filter(|t| self.is_name(*t)) else {
            return if has_as {
                Err(self.expected_error("a name"))
            } else {
                Ok((None, Vec::new()))
            };
        };
        self.position += 1;
        let columns = self.parse_column_names()?;
        Ok((Some(token.unquoted_text(self.sql)), columns))
    }

    /// Parses a column list `(a, b)`; returns no names if there is no parenthesis.
    pub fn parse_column_names(&mut self) -> Result<ColumnAliases, SqlError> {
        let mut names = Vec::new();
        if self.eat_symbol(b'(') {
            while !self.eat_symbol(b')') {
                let token = self.expect_token()?;
                if !token.is_symbol(b',') {
                    names.push((token.unquoted_text(self.sql), token.span()));
                }
            }
        }
        Ok(names)
    }

    /// Adds a table to the current SELECT.
    fn add_table(&mut self, name: Option<String>, source: TableSource, columns: TypedColumns) {
        if let Some(select) = self.selects.last_mut() {
            select.tables.push(SuqlTable { name, source, columns });
        }
    }

    /// Returns the columns of a table or common table expression.
    fn find_columns(&self, table: &str) -> TypedColumns {
        let cte = self.ctes.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(table));
        if let Some((_, columns)) = cte {
            return columns.clone();
        }
        let known = self.tables.get(&table.to_lowercase())?;
        let types = known.types.iter().map(|type_name| parse_declared_type(type_name));
        let types = types.chain(std::iter::repeat(SqlType::Unknown));
        Some(known.names.iter().cloned().zip(types).collect())
    }

    /// Returns the columns of the last parsed query, with the first columns renamed to `names`.
    ///
    /// # Errors
    /// Returns [`SqlError`] if there are more names than columns.
    pub fn take_renamed_columns(
        &mut self,
        names: &[(String, Range<usize>)],
    ) -> Result<TypedColumns, SqlError> {
        let Some(mut columns) = self.columns.take() else { return Ok(None) };
        if let Some((_, span)) = names.get(columns.len()) {
            let count = columns.len();
            let message = format!(
                "the query has {}, but there are {} names",
                format_count(count as u64, "column"),
                names.len()
            );
            return Err(SqlError::new(span.clone(), message, "one too many"));
        }
        for ((name, _), column) in names.iter().zip(&mut columns) {
            column.0.clone_from(name);
        }
        Ok(Some(columns))
    }

    /// Returns the FROM items for arrays that are unnested in the result columns.
    pub fn build_unnest_items(
        select: &SuqlSelect,
        at: usize,
        has_from: bool,
    ) -> Vec<SourceFragment> {
        let mut text = Vec::new();
        for unnested in &select.unnested {
            let Some(array) = &unnested.array else { continue };
            let before = if has_from || !text.is_empty() { ", " } else { " FROM " };
            text.push(SourceFragment::Generated(format!("{before}json_each(suql_array("), at..at));
            text.extend(array.text.clone());
            text.push(SourceFragment::Generated(format!(")) AS {}", unnested.alias), at..at));
        }
        text
    }
}
