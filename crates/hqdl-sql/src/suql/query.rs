//! Parser of queries and their clauses.

use std::ops::Range;

use super::parser::{
    Parser, SqlType, SuqlSelect, SuqlTable, TableSource, TypedColumns, TypedSql, join_exprs,
    translation_error,
};
use super::text::{SourceFragment, SqlText};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use hqdl_values::format::format_count;

impl Parser<'_> {
    /// Parses the whole text as a single query.
    pub fn parse_statement(&mut self) -> Result<SqlText, SqlError> {
        // Pass other statements through. They are rejected later, as in any dialect.
        if !self.is_query_at(0) && !self.peek().is_some_and(|t| t.lexeme == TokenKind::Call) {
            return Ok(vec![SourceFragment::Source(0..self.sql.len())]);
        }
        let start = self.next_start();
        let query = if self.is_query_at(0) { self.parse_query()? } else { self.parse_expr()?.text };
        if let Some(SourceFragment::CountedRows(span, table, _)) =
            query.iter().find(|p| matches!(p, SourceFragment::CountedRows(..)))
        {
            let message = format!("FROM has no table `{table}`");
            return Err(SqlError::new(span.clone(), message, "this counts its rows"));
        }
        let end = self.previous_token_end();
        let ended = self.eat_symbol(b';');
        if self.peek().is_some() && !ended {
            return Err(self.expected_error("the end of the query"));
        }
        let query = TypedSql::new(query, start..end);
        Ok(join_exprs(0, vec![query], self.sql.len()))
    }

    /// Parses a query with its WITH, ORDER BY and LIMIT.
    pub fn parse_query(&mut self) -> Result<SqlText, SqlError> {
        self.parse_nested_query(false)
    }

    /// Parses a query. If `allows_no_columns` is true, it may have no result columns, as in EXISTS.
    pub fn parse_nested_query(&mut self, allows_no_columns: bool) -> Result<SqlText, SqlError> {
        let outer = std::mem::replace(&mut self.may_unnest, false);
        self.selects.push(SuqlSelect::default());
        let cte_count = self.ctes.len();
        let query = self.parse_clauses(allows_no_columns);
        self.ctes.truncate(cte_count);
        let select = self.selects.pop();
        self.columns = select.and_then(|select| select.results);
        self.may_unnest = outer;
        query
    }

    fn parse_clauses(&mut self, allows_no_columns: bool) -> Result<SqlText, SqlError> {
        let start = self.next_start();
        let mut exprs = Vec::new();
        if self.eat_word("WITH") {
            let recursive = self.eat_word("RECURSIVE");
            loop {
                let name = self.expect_token()?.unquoted_text(self.sql);
                let names = self.parse_column_names()?;
                let known = self.ctes.len();
                if recursive {
                    self.ctes.push((name.clone(), None));
                }
                self.expect_word("AS")?;
                self.eat_word("NOT");
                self.eat_word("MATERIALIZED");
                self.expect_symbol(b'(')?;
                let at = self.next_start();
                let query = self.parse_nested(Self::parse_query)?;
                exprs.push(TypedSql::new(query, at..self.previous_token_end()));
                self.ctes.truncate(known);
                let columns = self.take_renamed_columns(&names)?;
                self.ctes.push((name, columns));
                self.expect_symbol(b')')?;
                if !self.eat_symbol(b',') {
                    break;
                }
            }
        }
        self.parse_compound_member(&mut exprs, allows_no_columns, false)?;
        while ["UNION", "INTERSECT", "EXCEPT"].iter().any(|w| self.is_word(w)) {
            self.position += 1;
            if self.is_word("DISTINCT") {
                let word = self.expect_token()?;
                exprs.push(TypedSql::new(Vec::new(), word.span()));
            }
            self.eat_word("ALL");
            let before = self.selects.last_mut().and_then(|select| select.results.take());
            self.parse_compound_member(&mut exprs, allows_no_columns, true)?;
            if let Some(select) = self.selects.last_mut() {
                select.results = merge_columns(before, select.results.take());
            }
        }
        if self.eat_words(&["ORDER", "BY"]) {
            self.may_unnest = true;
            let terms = self.parse_order_by()?;
            exprs.extend(terms);
            self.may_unnest = false;
        }
        let end = self.previous_token_end();
        let mut text = join_exprs(start, exprs, end);
        text.extend(self.parse_limits()?);
        if let Some(word) = self.peek().filter(|t| t.is_word(self.sql, "FOR")) {
            return Err(translation_error(word.span(), "row locks", "queries are read-only"));
        }
        if let Some(select) = self.selects.last() {
            self.rewrite_row_counts(&mut text, select)?;
            rename_elements(&mut text, select);
        }
        // The remaining names may refer to an outer query.
        for fragment in &mut text {
            if let SourceFragment::Column(span, table, column) = fragment {
                *fragment =
                    SourceFragment::InnerColumn(span.clone(), table.take(), std::mem::take(column));
            }
        }
        Ok(text)
    }

    /// Parses a member of a compound query; `is_later` is true for every member but the first.
    fn parse_compound_member(
        &mut self,
        exprs: &mut Vec<TypedSql>,
        allows_no_columns: bool,
        is_later: bool,
    ) -> Result<(), SqlError> {
        self.parse_body(exprs, allows_no_columns)?;
        if let Some(distinct) = self.selects.last_mut().and_then(|s| s.distinct_on.take()) {
            exprs.push(self.finish_distinct_on(distinct, is_later)?);
        }
        Ok(())
    }

    /// Parses a SELECT, VALUES, or a query in parentheses.
    fn parse_body(
        &mut self,
        exprs: &mut Vec<TypedSql>,
        allows_no_columns: bool,
    ) -> Result<(), SqlError> {
        if self.is_symbol(b'(') {
            let start = self.next_start();
            self.position += 1;
            let query = self.parse_nested(|p| p.parse_nested_query(allows_no_columns))?;
            let end = self.expect_symbol(b')')?;
            exprs.push(TypedSql::from_template("SELECT * FROM ({})", vec![query], start..end));
            let columns = self.columns.take();
            self.set_output_columns(columns);
            return Ok(());
        }
        if self.eat_word("VALUES") {
            return self.parse_values(exprs);
        }
        if self.is_word("TABLE") {
            let word = self.expect_token()?;
            exprs.push(TypedSql::new(
                vec![SourceFragment::Generated("SELECT * FROM".into(), word.span())],
                word.span(),
            ));
            let (items, columns) = self.parse_table()?;
            exprs.extend(items);
            self.set_output_columns(columns);
            return Ok(());
        }
        self.parse_select(exprs, allows_no_columns)
    }

    /// Parses a SELECT up to its WINDOW clause.
    fn parse_select(
        &mut self,
        exprs: &mut Vec<TypedSql>,
        allows_no_columns: bool,
    ) -> Result<(), SqlError> {
        let start = self.next_start();
        self.expect_word("SELECT")?;
        let select_start = exprs.len();
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        self.eat_word("ALL");
        let is_distinct_on = self.eat_word("DISTINCT") && self.is_word("ON");
        let (from, items, from_end) = self.parse_from_before_results()?;
        let mut distinct_on =
            if is_distinct_on { Some(self.parse_distinct_on(start)?) } else { None };
        self.may_unnest = true;
        if self.is_word("FROM") {
            // PostgreSQL allows rows without columns: EXISTS (SELECT FROM t).
            let at = self.next_start();
            if !allows_no_columns {
                let help = "name a column, or write SELECT 1 FROM";
                return Err(translation_error(
                    at..self.peek().map_or(at, |t| t.end),
                    "a SELECT without columns",
                    help,
                ));
            }
            exprs.push(TypedSql::new(
                vec![SourceFragment::Generated("1 ".to_owned(), at..at)],
                at..at,
            ));
        } else if let Some(distinct) = &mut distinct_on {
            let mut columns = Vec::new();
            let aliases = self.parse_result_columns(&mut columns)?;
            distinct.columns = columns.into_iter().zip(aliases).collect();
        } else {
            self.parse_result_columns(exprs)?;
        }
        self.may_unnest = false;
        if self.is_word("INTO") {
            let word = self.expect_token()?;
            return Err(translation_error(word.span(), "SELECT INTO", "queries are read-only"));
        }
        let has_from = self.position == from;
        if has_from {
            self.position = from_end;
            exprs.extend(items);
        }
        let end = self.previous_token_end();
        let slot = exprs.len();
        self.parse_row_clauses(exprs)?;
        let Some(select) = self.selects.last() else { return Ok(()) };
        let added = Self::build_unnest_items(select, end, has_from);
        for expr in &mut exprs[select_start..] {
            self.rewrite_row_counts(&mut expr.text, select)?;
            rename_elements(&mut expr.text, select);
        }
        if !added.is_empty() {
            exprs.insert(slot, TypedSql::new(added, end..end));
        }
        if let (Some(mut distinct), Some(select)) = (distinct_on, self.selects.last_mut()) {
            distinct.from = self.tokens.get(from).filter(|_| has_from).map(|token| token.start);
            distinct.rows = exprs.split_off(select_start);
            select.distinct_on = Some(distinct);
        }
        Ok(())
    }

    /// Parses the clauses from WHERE to WINDOW.
    fn parse_row_clauses(&mut self, exprs: &mut Vec<TypedSql>) -> Result<(), SqlError> {
        if self.eat_word("WHERE") {
            exprs.push(Self::to_condition(self.parse_expr()?));
        }
        if self.eat_words(&["GROUP", "BY"]) {
            self.may_unnest = true;
            exprs.extend(self.parse_exprs()?);
            self.may_unnest = false;
        }
        if self.eat_word("HAVING") {
            exprs.push(Self::to_condition(self.parse_expr()?));
        }
        if self.eat_word("WINDOW") {
            loop {
                self.expect_token()?;
                self.expect_word("AS")?;
                self.expect_symbol(b'(')?;
                self.parse_window(exprs)?;
                if !self.eat_symbol(b',') {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Parses the rows of VALUES. All rows must have the same number of values, and the values of a
    /// column are converted to a common type.
    fn parse_values(&mut self, exprs: &mut Vec<TypedSql>) -> Result<(), SqlError> {
        let mut rows: Vec<(Vec<TypedSql>, Range<usize>)> = Vec::new();
        let mut has_calls = false;
        loop {
            let start = self.next_start();
            if self.is_symbol(b'(') {
                self.position += 1;
                let row = self.parse_exprs()?;
                let span = start..self.expect_symbol(b')')?;
                if let Some((first, _)) = rows.first().filter(|(first, _)| first.len() != row.len())
                    && !has_calls
                {
                    let (first, here) = (format_count(first.len() as u64, "value"), row.len());
                    let message = format!("the first row has {first}, but this one has {here}");
                    return Err(SqlError::new(span, message, "this row of VALUES"));
                }
                rows.push((row, span));
            } else {
                // A call can produce a whole row.
                let row = self.parse_expr()?;
                let span = row.span.clone();
                rows.push((vec![row], span));
                has_calls = true;
            }
            if !self.eat_symbol(b',') {
                break;
            }
        }
        let mut columns = Vec::new();
        for n in 0..rows.first().filter(|_| !has_calls).map_or(0, |(first, _)| first.len()) {
            let values = rows.iter_mut().filter_map(|(row, _)| row.get_mut(n)).collect();
            columns.push((
                format!("column{}", n + 1),
                self.coerce_to_common_type(values)?.as_column_type(),
            ));
        }
        self.set_output_columns((!has_calls).then_some(columns));
        let row = |(row, span): (Vec<TypedSql>, Range<usize>)| match row.as_slice() {
            [only] if only.span == span => only.clone(),
            _ => TypedSql::new(join_exprs(span.start, row, span.end), span),
        };
        exprs.extend(rows.into_iter().map(row));
        Ok(())
    }

    /// Parses the FROM clause before the result columns, because their types depend on it. Returns
    /// the token index of FROM, the translated clause and its end.
    fn parse_from_before_results(&mut self) -> Result<(usize, Vec<TypedSql>, usize), SqlError> {
        let results = self.position;
        let end_words = ["FROM", "UNION", "INTERSECT", "EXCEPT"];
        let from = find_keyword(self.sql, &self.tokens, results, &end_words)
            .filter(|at| self.tokens.get(*at).is_some_and(|t| t.is_word(self.sql, "FROM")));
        let Some(from) = from else { return Ok((usize::MAX, Vec::new(), results)) };
        self.position = from + 1;
        let items = self.parse_from()?;
        let from_end = std::mem::replace(&mut self.position, results);
        Ok((from, items, from_end))
    }

    /// Parses the result columns of a SELECT. Returns the aliases.
    fn parse_result_columns(
        &mut self,
        exprs: &mut Vec<TypedSql>,
    ) -> Result<Vec<Option<Token>>, SqlError> {
        let (mut columns, mut aliases) = (Some(Vec::new()), Vec::new());
        loop {
            let mut item = self.parse_expr()?;
            Self::ensure_value(&item)?;
            if &self.sql[item.span.clone()] == "*" {
                item.text = vec![SourceFragment::Star(item.span.clone(), None)];
            }
            let select = self.selects.last();
            let new_columns = match item.text.as_slice() {
                [SourceFragment::Star(_, table)] => {
                    select.and_then(|s| s.all_columns(table.as_deref()))
                }
                [SourceFragment::Column(_, _, name)] => {
                    Some(vec![(name.clone(), item.sql_type.as_column_type())])
                }
                _ => Some(vec![(String::new(), item.sql_type.as_column_type())]),
            };
            let is_star = matches!(item.text.as_slice(), [SourceFragment::Star(..)]);
            exprs.push(item);
            let before = self.position;
            self.parse_result_alias(&mut exprs[..])?;
            let alias =
                self.tokens.get(self.position - 1).filter(|_| self.position > before && !is_star);
            aliases.push(alias.copied());
            let alias = alias.map(|token| token.unquoted_text(self.sql));
            columns = columns.zip(new_columns).map(|(mut all, mut more)| {
                if let (Some(alias), Some((name, _))) = (alias, more.first_mut()) {
                    *name = alias;
                }
                all.append(&mut more);
                all
            });
            if !self.eat_symbol(b',') {
                self.set_output_columns(columns);
                return Ok(aliases);
            }
        }
    }

    /// Sets the result columns of the current SELECT.
    fn set_output_columns(&mut self, columns: TypedColumns) {
        if let Some(select) = self.selects.last_mut() {
            select.results = columns;
        }
    }

    /// Parses the alias of a result column. Without an alias, an array element is named after its
    /// array.
    fn parse_result_alias(&mut self, exprs: &mut [TypedSql]) -> Result<(), SqlError> {
        if self.eat_word("AS") {
            self.expect_token()?;
            return Ok(());
        }
        if !self.is_word("INTO") && self.peek().is_some_and(|t| self.is_name(t)) {
            self.position += 1;
            return Ok(());
        }
        let Some(last) = exprs.last_mut() else { return Ok(()) };
        let end = last.span.end;
        let name = match last.text.as_slice() {
            [SourceFragment::Generated(text, _)] if text.ends_with(".value") => {
                Some("unnest".to_owned())
            }
            [SourceFragment::Column(_, _, column)] => Some(column.clone()),
            _ => None,
        };
        if let Some(name) = name {
            // `rename_elements` resolves this mark once it is known whether the column is an
            // element.
            let mark = SourceFragment::Generated(format!("\u{0}{name}"), end..end);
            last.text.push(mark);
        }
        Ok(())
    }

    /// Parses the terms of ORDER BY.
    pub fn parse_order_by(&mut self) -> Result<Vec<TypedSql>, SqlError> {
        Ok(self.parse_order_terms()?.into_iter().map(|(term, _)| term).collect())
    }

    /// Parses the terms of ORDER BY, each with the byte range of its direction.
    pub fn parse_order_terms(&mut self) -> Result<Vec<(TypedSql, Range<usize>)>, SqlError> {
        let mut terms = Vec::new();
        loop {
            let mut term = self.parse_expr()?;
            if term.sql_type == SqlType::ComputedInterval {
                let span = term.span.clone();
                term =
                    TypedSql::from_template("suql_span_part('length', {})", vec![term.text], span);
            }
            let end = self.previous_token_end();
            let _ = self.eat_word("ASC") || self.eat_word("DESC");
            if self.is_word("USING") {
                let word = self.expect_token()?;
                return Err(translation_error(
                    word.span(),
                    "ORDER BY … USING",
                    "write ASC or DESC",
                ));
            }
            if self.eat_word("NULLS") && !self.eat_word("FIRST") {
                self.expect_word("LAST")?;
            }
            terms.push((term, end..self.previous_token_end()));
            if !self.eat_symbol(b',') {
                return Ok(terms);
            }
        }
    }

    /// Parses LIMIT, OFFSET and FETCH, in any order.
    fn parse_limits(&mut self) -> Result<SqlText, SqlError> {
        let start = self.previous_token_end();
        let (mut limit, mut offset): (Option<SqlText>, Option<SqlText>) = (None, None);
        let mut keeps_text = true;
        loop {
            let at = self.next_start();
            if self.eat_word("LIMIT") {
                keeps_text &= offset.is_none() && limit.is_none();
                if self.is_word("ALL") {
                    let all = self.expect_token()?;
                    limit = Some(vec![SourceFragment::Generated("-1".to_owned(), all.span())]);
                    keeps_text = false;
                } else {
                    limit = Some(self.parse_expr()?.text);
                }
            } else if self.eat_word("OFFSET") {
                keeps_text &= limit.is_some();
                offset = Some(self.parse_expr()?.text);
                if self.eat_word("ROWS") || self.eat_word("ROW") {
                    keeps_text = false;
                }
            } else if self.eat_word("FETCH") {
                keeps_text = false;
                let _ = self.eat_word("FIRST") || self.eat_word("NEXT");
                limit = Some(if self.is_word("ROW") || self.is_word("ROWS") {
                    vec![SourceFragment::Generated("1".to_owned(), at..at)]
                } else {
                    self.parse_binary(super::expr::OTHER)?.text
                });
                let _ = self.eat_word("ROWS") || self.eat_word("ROW");
                if self.is_word("WITH") {
                    let help = "write ROWS ONLY instead";
                    return Err(translation_error(at..self.next_start() + 4, "WITH TIES", help));
                }
                self.expect_word("ONLY")?;
            } else {
                break;
            }
        }
        if limit.is_none() && offset.is_none() {
            return Ok(Vec::new());
        }
        let end = self.previous_token_end();
        if keeps_text && is_source_text(limit.as_ref()) && is_source_text(offset.as_ref()) {
            return Ok(vec![SourceFragment::Source(start..end)]);
        }
        let all = vec![SourceFragment::Generated("-1".to_owned(), start..end)];
        let mut operands = vec![limit.unwrap_or(all)];
        let template = if offset.is_some() { " LIMIT {} OFFSET {}" } else { " LIMIT {}" };
        operands.extend(offset);
        Ok(TypedSql::from_template(template, operands, start..end).text)
    }
}

impl SuqlSelect {
    /// Returns the table with this name or alias.
    pub fn find_table(&self, table: &str) -> Option<&SuqlTable> {
        let is = |name: &String| name.eq_ignore_ascii_case(table);
        self.tables.iter().find(|table| table.name.as_ref().is_some_and(is))
    }
}

/// Returns the columns of a compound of two queries.
fn merge_columns(first: TypedColumns, second: TypedColumns) -> TypedColumns {
    let (first, second) = first.zip(second).filter(|(a, b)| a.len() == b.len())?;
    let both = first.into_iter().zip(second);
    Some(both.map(|((name, a), (_, b))| (name, a.unify(&b))).collect())
}

fn is_source_text(text: Option<&SqlText>) -> bool {
    text.is_none_or(|t| t.iter().all(|p| !matches!(p, SourceFragment::Generated(..))))
}

const JSON_EACH_COLUMNS: [&str; 8] =
    ["atom", "fullkey", "id", "key", "parent", "path", "type", "value"];

/// Replaces the names of array elements with columns of `json_each`, and hides the other columns of
/// `json_each` from the query.
pub(super) fn rename_elements(text: &mut SqlText, select: &SuqlSelect) {
    let is_same_name = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let tables: Vec<&String> = select
        .tables
        .iter()
        .filter(|table| table.source != TableSource::Array)
        .filter_map(|table| table.name.as_ref())
        .collect();
    let mut is_renamed = false;
    for fragment in text {
        match fragment {
            SourceFragment::Column(span, table, column)
            | SourceFragment::InnerColumn(span, table, column) => {
                let found = select.unnested.iter().filter(|u| u.array.is_none()).find(|u| {
                    u.names.iter().any(|n| is_same_name(n, column))
                        && table.as_ref().is_none_or(|t| is_same_name(t, &u.alias))
                });
                is_renamed = found.is_some();
                if let Some(found) = found {
                    let value = format!("{}.value", hqdl_values::sql::quote_name(&found.alias));
                    *fragment = SourceFragment::Generated(value, span.clone());
                    continue;
                }
                let clashes = !select.unnested.is_empty()
                    && table.is_none()
                    && JSON_EACH_COLUMNS.iter().any(|c| is_same_name(c, column));
                if let (true, [only], SourceFragment::Column(span, _, column)) =
                    (clashes, &tables[..], &*fragment)
                {
                    let name = format!(
                        "{}.{}",
                        hqdl_values::sql::quote_name(only),
                        hqdl_values::sql::quote_name(column)
                    );
                    *fragment = SourceFragment::Generated(name, span.clone());
                }
            }
            SourceFragment::Star(span, of) if !select.unnested.is_empty() => {
                let matches_table =
                    |name: &String| of.as_ref().is_none_or(|of| name.eq_ignore_ascii_case(of));
                let element = |name: &String| {
                    let found = select.unnested.iter().find(|u| u.alias == *name);
                    found.and_then(|u| u.names.first()).unwrap_or(name).clone()
                };
                let of_table = |name: &String, of: &TableSource| {
                    let table = hqdl_values::sql::quote_name(name);
                    if *of == TableSource::Array {
                        format!("{table}.value AS {}", hqdl_values::sql::quote_name(&element(name)))
                    } else {
                        format!("{table}.*")
                    }
                };
                let named: Option<Vec<String>> = select
                    .tables
                    .iter()
                    .filter(|t| t.name.as_ref().is_none_or(matches_table))
                    .map(|t| t.name.as_ref().map(|name| of_table(name, &t.source)))
                    .collect();
                if let Some(all) = named.filter(|all| !all.is_empty()) {
                    *fragment = SourceFragment::Generated(all.join(", "), span.clone());
                }
                is_renamed = false;
            }
            SourceFragment::Generated(name, _) if name.starts_with('\u{0}') => {
                let own = name.trim_start_matches('\u{0}').to_owned();
                *name = if is_renamed || own == "unnest" {
                    format!(" AS {}", hqdl_values::sql::quote_name(&own))
                } else {
                    String::new()
                };
                is_renamed = false;
            }
            _ => is_renamed = false,
        }
    }
}

/// Returns the index of the first token, starting at `at`, that is in `words` or closes the
/// enclosing brackets. Skips nested brackets.
fn find_keyword(sql: &str, tokens: &[Token], at: usize, words: &[&str]) -> Option<usize> {
    let mut depth = 0_usize;
    for (n, token) in tokens.iter().enumerate().skip(at) {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') | TokenKind::Open => depth += 1,
            TokenKind::Symbol(b')' | b']' | b'}' | b';') | TokenKind::Close if depth == 0 => {
                return Some(n);
            }
            TokenKind::Symbol(b')' | b']' | b'}') | TokenKind::Close => depth -= 1,
            // IS DISTINCT FROM is an operator; t.from and AS from are names.
            _ if token.is_word(sql, "FROM")
                && n.checked_sub(1).and_then(|n| tokens.get(n)).is_some_and(|t| {
                    t.is_symbol(b'.') || t.is_word(sql, "DISTINCT") || t.is_word(sql, "AS")
                }) => {}
            _ if depth == 0 && words.iter().any(|w| token.is_word(sql, w)) => return Some(n),
            _ => {}
        }
    }
    None
}
