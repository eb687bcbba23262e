//! Grammar of queries: WITH, compound SELECTs, VALUES, and the clauses of a SELECT.

use crate::blendsql::SqlError;
use crate::blendsql::lexer::TokenKind;
use crate::blendsql::parse::cursor::QueryParser;
use crate::blendsql::tree::{
    Body, CompoundOperator, Cte, Expr, ExprKind, ExprOperator, OrderTerm, Query, ResultColumn,
    SelectCore, Span, WindowSpec,
};
use hqdl_values::format::format_count;

impl QueryParser<'_> {
    /// Returns true if a query begins `count` tokens after the next one.
    pub fn begins_query_after(&self, count: usize) -> bool {
        ["SELECT", "VALUES", "WITH"].iter().any(|word| self.is_word_after(count, word))
            || self.is_suql && self.begins_suql_query_after(count)
    }

    /// Parses a query up to the first token that does not belong to it.
    pub fn parse_query(&mut self) -> Result<Query, SqlError> {
        self.parse_nested(Self::parse_with)
    }

    fn parse_with(&mut self) -> Result<Query, SqlError> {
        let start = self.next_start();
        if !self.eat_word("WITH") {
            return self.parse_compound();
        }
        let recursive = self.eat_word("RECURSIVE");
        let with = self.read_list(|p| p.parse_cte(recursive))?;
        let mut query = self.parse_compound()?;
        query.span.start = start;
        query.with = with;
        Ok(query)
    }

    fn parse_cte(&mut self, recursive: bool) -> Result<Cte, SqlError> {
        let name = self.read_name()?;
        let mut columns = Vec::new();
        if self.eat_symbol(b'(') {
            columns = self.read_list(Self::read_name)?;
            self.expect_symbol(b')')?;
        }
        self.expect_word("AS")?;
        if self.eat_word("NOT") {
            self.expect_word("MATERIALIZED")?;
        } else {
            self.eat_word("MATERIALIZED");
        }
        let query = self.parse_query_in_parens()?;
        Ok(Cte { name, columns, query, recursive })
    }

    /// Parses `(SELECT …)`.
    pub fn parse_query_in_parens(&mut self) -> Result<Query, SqlError> {
        self.expect_symbol(b'(')?;
        let query = self.parse_query()?;
        self.expect_symbol(b')')?;
        Ok(query)
    }

    fn parse_compound(&mut self) -> Result<Query, SqlError> {
        let start = self.next_start();
        let (mut query, _) = self.parse_select_or_values()?;
        while let Some(operator) = self.eat_compound_operator() {
            let (mut right, end) = self.parse_select_or_values()?;
            self.add_enclosing_node(start)?;
            // ORDER BY and LIMIT after the last SELECT belong to the whole compound.
            let (order, limit, offset) =
                (std::mem::take(&mut right.order), right.limit.take(), right.offset.take());
            right.span.end = end;
            if let Body::Core(core) = &mut right.body {
                core.span.end = end;
            }
            let body = Body::Compound(operator, Box::new(query), Box::new(right));
            let span = self.span_from(start);
            query = Query { span, with: Vec::new(), body, order, limit, offset };
        }
        Ok(query)
    }

    fn eat_compound_operator(&mut self) -> Option<CompoundOperator> {
        let operator = if self.eat_word("UNION") {
            let all = self.eat_word("ALL");
            if all { CompoundOperator::UnionAll } else { CompoundOperator::Union }
        } else if self.eat_word("INTERSECT") {
            CompoundOperator::Intersect
        } else if self.eat_word("EXCEPT") {
            CompoundOperator::Except
        } else {
            return None;
        };
        if self.is_postgres && operator != CompoundOperator::UnionAll {
            self.eat_word("DISTINCT");
        }
        Some(operator)
    }

    /// Parses one SELECT or VALUES. Also returns the end offset, before any ORDER BY and LIMIT.
    fn parse_select_or_values(&mut self) -> Result<(Query, usize), SqlError> {
        let start = self.next_start();
        if self.eat_word("VALUES") {
            let body = self.parse_values_rows()?;
            let span = self.span_from(start);
            let (with, order) = (Vec::new(), Vec::new());
            let end = span.end;
            return Ok((Query { span, with, body, order, limit: None, offset: None }, end));
        }
        if self.is_suql
            && let Some(query) = self.parse_whole_table()?
        {
            return self.parse_order_and_limit(query);
        }
        self.expect_word("SELECT")?;
        let outer_columns = self.legacy_column_count();
        let distinct = self.eat_word("DISTINCT");
        if !distinct {
            self.eat_word("ALL");
        }
        let distinct_on = if distinct { self.parse_distinct_on()? } else { Vec::new() };
        // PostgreSQL allows rows without columns: EXISTS (SELECT FROM t).
        let columns = if self.is_suql && self.is_word("FROM") {
            Vec::new()
        } else {
            self.read_list(Self::parse_result_column)?
        };
        self.reject_word("INTO", "SELECT INTO", "queries are read-only")?;
        let mut core = SelectCore::with_columns(columns, start..start);
        (core.distinct, core.distinct_on) = (distinct, distinct_on);
        if self.eat_word("FROM") {
            core.from = self.parse_from()?;
            core.from_end = self.previous_token_end();
        }
        core.filter = self.parse_clause("WHERE")?;
        if self.eat_word("GROUP") {
            self.expect_word("BY")?;
            core.group = self.read_list(Self::parse_expr)?;
        }
        core.having = self.parse_clause("HAVING")?;
        if self.eat_word("WINDOW") {
            let windows = self.read_list(Self::parse_named_window)?;
            core.windows = windows.iter().flat_map(WindowSpec::exprs).cloned().collect();
        }
        core.rows_end = self.previous_token_end();
        self.resolve_legacy_columns(outer_columns, &core.from);
        self.parse_order_and_limit(Query::from_core(core))
    }

    /// Parses ORDER BY and LIMIT after a SELECT. Also returns the end offset before them.
    fn parse_order_and_limit(&mut self, mut query: Query) -> Result<(Query, usize), SqlError> {
        let end = self.previous_token_end();
        query.order = self.parse_order_by()?;
        (query.limit, query.offset) = self.parse_limit()?;
        query.span = self.span_from(query.span.start);
        if let Body::Core(core) = &mut query.body {
            core.span = query.span.clone();
        }
        Ok((query, end))
    }

    /// Parses a keyword and an expression if the keyword is next.
    fn parse_clause(&mut self, keyword: &str) -> Result<Option<Expr>, SqlError> {
        if self.eat_word(keyword) { self.parse_expr().map(Some) } else { Ok(None) }
    }

    /// Parses the rows of VALUES. A call can be an entire row.
    fn parse_values_rows(&mut self) -> Result<Body, SqlError> {
        let rows = self.read_list(|p| match p.peek() {
            Some(token) if token.lexeme == TokenKind::Call => Ok((vec![p.parse_call()?], 0..0)),
            _ => {
                let start = p.next_start();
                p.expect_symbol(b'(')?;
                let row = p.read_list(Self::parse_expr)?;
                p.expect_symbol(b')')?;
                Ok((row, p.span_from(start)))
            }
        })?;
        if self.is_suql {
            check_row_lengths(&rows)?;
        }
        let rows: Vec<Vec<Expr>> = rows.into_iter().map(|(row, _)| row).collect();
        let first = rows.first().map(Vec::as_slice).unwrap_or_default();
        // A call that is an entire row has as many columns as its list has values.
        let width = match first {
            [Expr { kind: ExprKind::Call(n, _), .. }] if self.calls[*n].is_values_row => {
                self.calls[*n].values_column_count() as usize
            }
            _ => first.len(),
        };
        Ok(Body::Values(rows.into_iter().flatten().collect(), width))
    }

    fn parse_result_column(&mut self) -> Result<ResultColumn, SqlError> {
        let start = self.next_start();
        let is_table_star = self.peek().is_some_and(|t| self.is_name(t))
            && self.is_symbol_after(1, b'.')
            && self.is_symbol_after(2, b'*');
        let mut column = ResultColumn {
            expr: None,
            star_table: None,
            alias: None,
            source_text: String::new(),
            span: start..start,
        };
        if is_table_star {
            column.star_table = Some(self.read_name()?);
            self.at += 2;
        } else if !self.eat_symbol(b'*') {
            let expr = self.parse_expr()?;
            let source_text = self.sql.get(expr.span.clone()).unwrap_or_default();
            source_text.clone_into(&mut column.source_text);
            // `schema.t.*`
            if let ExprKind::Operation(ExprOperator::TableRow(table), _) = expr.kind {
                column.star_table = Some(table);
            } else {
                column.expr = Some(expr);
                column.alias = self.read_alias()?;
            }
        }
        column.span = self.span_from(start);
        Ok(column)
    }

    /// Parses ORDER BY if it is next.
    pub fn parse_order_by(&mut self) -> Result<Vec<OrderTerm>, SqlError> {
        if !self.eat_word("ORDER") {
            return Ok(Vec::new());
        }
        self.expect_word("BY")?;
        self.read_list(|p| {
            let expr = p.parse_expr()?;
            let descending = p.eat_word("DESC");
            if !descending {
                p.eat_word("ASC");
            }
            p.reject_word("USING", "ORDER BY … USING", "write ASC or DESC")?;
            let nulls_first = match p.eat_word("NULLS") {
                false => None,
                true if p.eat_word("FIRST") => Some(true),
                true => {
                    p.expect_word("LAST")?;
                    Some(false)
                }
            };
            Ok(OrderTerm { expr, descending, nulls_first })
        })
    }

    fn parse_limit(&mut self) -> Result<(Option<Expr>, Option<Expr>), SqlError> {
        if self.is_postgres {
            return self.parse_postgres_limit();
        }
        let Some(first) = self.parse_clause("LIMIT")? else { return Ok((None, None)) };
        if self.eat_symbol(b',') {
            return Ok((Some(self.parse_expr()?), Some(first)));
        }
        Ok((Some(first), self.parse_clause("OFFSET")?))
    }

    /// Parses `name AS (…)` of a WINDOW clause.
    fn parse_named_window(&mut self) -> Result<WindowSpec, SqlError> {
        self.read_name()?;
        self.expect_word("AS")?;
        self.parse_window()
    }

    /// Parses a window in parentheses.
    pub fn parse_window(&mut self) -> Result<WindowSpec, SqlError> {
        const PARTS: [&str; 5] = ["PARTITION", "ORDER", "RANGE", "ROWS", "GROUPS"];
        self.expect_symbol(b'(')?;
        let begins_part = PARTS.iter().any(|word| self.is_word(word));
        let mut window = WindowSpec::default();
        if self.peek().is_some_and(|t| self.is_name(t)) && !begins_part {
            self.read_name()?;
            window.has_base = true;
        }
        if self.eat_word("PARTITION") {
            self.expect_word("BY")?;
            window.partition = self.read_list(Self::parse_expr)?;
        }
        window.order = self.parse_order_by()?;
        if ["RANGE", "ROWS", "GROUPS"].iter().any(|word| self.eat_word(word)) {
            if self.eat_word("BETWEEN") {
                window.frame.extend(self.parse_frame_bound()?);
                self.expect_word("AND")?;
            }
            window.frame.extend(self.parse_frame_bound()?);
            if self.eat_word("EXCLUDE") {
                self.parse_frame_exclusion()?;
            }
        }
        self.expect_symbol(b')')?;
        Ok(window)
    }

    /// Parses the start or the end of a frame. Returns the expression of the bound, if any.
    fn parse_frame_bound(&mut self) -> Result<Option<Expr>, SqlError> {
        if self.is_word("CURRENT") && self.is_word_after(1, "ROW") {
            self.at += 2;
            return Ok(None);
        }
        let bound = if self.eat_word("UNBOUNDED") { None } else { Some(self.parse_expr()?) };
        if !self.eat_word("PRECEDING") {
            self.expect_word("FOLLOWING")?;
        }
        Ok(bound)
    }

    fn parse_frame_exclusion(&mut self) -> Result<(), SqlError> {
        if self.eat_word("NO") {
            self.expect_word("OTHERS")
        } else if self.eat_word("CURRENT") {
            self.expect_word("ROW")
        } else if self.eat_word("GROUP") {
            Ok(())
        } else {
            self.expect_word("TIES")
        }
    }
}

/// Fails if a row of VALUES has not as many values as the first one. A call can be an entire row.
fn check_row_lengths(rows: &[(Vec<Expr>, Span)]) -> Result<(), SqlError> {
    let Some((first, _)) = rows.first().filter(|_| !rows.iter().any(|(_, span)| span.is_empty()))
    else {
        return Ok(());
    };
    let Some((row, span)) = rows.iter().find(|(row, _)| row.len() != first.len()) else {
        return Ok(());
    };
    let (count, here) = (format_count(first.len() as u64, "value"), row.len());
    let message = format!("the first row has {count}, but this one has {here}");
    Err(SqlError::new(span.clone(), message, "this row of VALUES"))
}
