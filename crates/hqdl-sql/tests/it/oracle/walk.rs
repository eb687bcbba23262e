//! Converts the parser's tree into [ours](hqdl_sql::blendsql::tree): queries and FROM clauses.

use std::cell::Cell;

use syntaqlite_syntax::any::{AnyNodeId, AnyParsedStatement};
use syntaqlite_syntax::nodes as sq;

use hqdl_sql::blendsql::SqlError;
use hqdl_sql::blendsql::lexer::{self, Brackets, Token};
use crate::oracle::TreeBuilder;
use hqdl_sql::blendsql::tree::{
    Body, CompoundOperator, Cte, Expr, ExprKind, FromItem, FromSource, JoinKind, OrderTerm, Query,
    ResultColumn, SelectCore, Span,
};

/// Converts one parse tree.
pub(super) struct TreeWalker<'t, 'b> {
    pub(super) tree: &'t AnyParsedStatement<'t>,
    pub(super) base: usize,
    pub(super) text: &'t str,
    pub(super) masked_calls: &'t [usize],
    pub(super) builder: &'b TreeBuilder<'b>,
    pub(super) depth: Cell<usize>,
}

/// `SQLite`'s maximum expression depth.
const MAX_DEPTH: usize = 1000;

/// Words that the parser includes at the beginning of a node's extent although they precede the
/// node.
const PRECEDING_WORDS: [&str; 21] = [
    "and", "or", "where", "on", "select", "all", "distinct", "having", "by", "then", "when",
    "else", "limit", "offset", "from", "as", "in", "union", "using", "is", "between",
];

/// Returns the text after a sequence of words, or `None` if it does not begin with them.
fn strip_words<'s>(text: &'s str, words: &[&str]) -> Option<&'s str> {
    words.iter().try_fold(text, |rest, word| {
        let rest = rest.trim_start();
        let starts_with_word = rest.get(..word.len()).is_some_and(|w| w.eq_ignore_ascii_case(word));
        let is_word_end = |c: char| {
            !word.ends_with(char::is_alphabetic) || !(c.is_alphanumeric() || "_$".contains(c))
        };
        let rest = rest.get(word.len()..).filter(|_| starts_with_word)?;
        rest.chars().next().is_none_or(is_word_end).then_some(rest)
    })
}

impl<'t> TreeWalker<'t, '_> {
    /// Returns a node's byte range without the preceding words that the parser includes.
    pub(super) fn node_span(&self, id: impl Into<AnyNodeId>) -> Span {
        let Some(range) = self.tree.node_range(id.into()) else { return 0..0 };
        let (mut start, end) = (range.start.as_usize(), range.end.as_usize().min(self.text.len()));
        loop {
            let rest = self.text.get(start..end).unwrap_or_default();
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            // No expression begins with these words.
            let trimmed =
                strip_words(trimmed, &["filter", "(", "where"]).map_or(trimmed, str::trim_start);
            start += rest.len() - trimmed.len();
            let word = trimmed
                .find(|c: char| !c.is_ascii_alphabetic())
                .map_or(trimmed, |at| &trimmed[..at]);
            if word.len() < trimmed.len()
                && PRECEDING_WORDS.iter().any(|b| b.eq_ignore_ascii_case(word))
                && !trimmed[word.len()..]
                    .starts_with(|c: char| c.is_alphanumeric() || "_$.".contains(c))
            {
                start += word.len();
            } else {
                break;
            }
        }
        self.base.wrapping_add(start)..self.base.wrapping_add(end)
    }

    /// Returns a query's byte range, beginning with its first keyword.
    pub(super) fn query_span(&self, id: impl Into<AnyNodeId>) -> Span {
        let Some(range) = self.tree.node_range(id.into()) else { return 0..0 };
        let (mut start, end) = (range.start.as_usize(), range.end.as_usize().min(self.text.len()));
        loop {
            let rest = self.text.get(start..end).unwrap_or_default();
            let word: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || "_$".contains(*c)).collect();
            let first = ["select", "with", "values"].iter().any(|w| w.eq_ignore_ascii_case(&word));
            let Some(next) = rest.chars().next().filter(|_| !first) else { break };
            start += word.len().max(next.len_utf8());
        }
        self.base.wrapping_add(start)..self.base.wrapping_add(end)
    }

    pub(super) fn convert_query(
        &self,
        select: &sq::Select<'t>,
    ) -> Result<Query, SqlError> {
        self.with_depth_limit(|| self.query_span(select.node_id()), || self.convert_select(select))
    }

    /// Runs `convert` one level deeper. Fails if that exceeds the maximum depth of `SQLite`.
    pub(super) fn with_depth_limit<T>(
        &self,
        span: impl Fn() -> Span,
        convert: impl FnOnce() -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let depth = self.depth.get() + 1;
        if depth > MAX_DEPTH {
            let message = format!("the query is nested more than {MAX_DEPTH} levels deep");
            let _ = message; return Err(broken_tree_error(&span()));
        }
        self.depth.set(depth);
        let result = convert();
        self.depth.set(depth - 1);
        result
    }

    fn convert_select(&self, select: &sq::Select<'t>) -> Result<Query, SqlError> {
        let span = self.query_span(select.node_id());
        match select {
            sq::Select::WithClause(with) => {
                let inner = with.select().ok_or_else(|| broken_tree_error(&span))?;
                let mut query = self.convert_query(&inner)?;
                let mut ctes = Vec::new();
                for cte in with.ctes().iter().flat_map(sq::CteList::iter) {
                    let select = cte.select().ok_or_else(|| broken_tree_error(&span))?;
                    ctes.push(Cte {
                        name: unquote_name(cte.cte_name()),
                        columns: cte
                            .columns()
                            .iter()
                            .flat_map(sq::ExprList::iter)
                            .filter_map(|e| match e {
                                sq::Expr::ColumnRef(c) => Some(unquote_name(c.column())),
                                _ => None,
                            })
                            .collect(),
                        query: self.convert_query(&select)?,
                        recursive: with.recursive(),
                    });
                }
                ctes.append(&mut query.with);
                query.with = ctes;
                query.span = span;
                Ok(query)
            }
            sq::Select::CompoundSelect(compound) => {
                let (Some(left), Some(right)) = (compound.left(), compound.right()) else {
                    return Err(broken_tree_error(&span));
                };
                let (limit, offset) = self.convert_limit(compound.limit_clause())?;
                let order = self.convert_order_by(compound.orderby())?;
                let (left, mut right) = (self.convert_query(&left)?, self.convert_query(&right)?);
                // The parser extends the second side to the end of the whole compound.
                let tail = order.iter().map(|o| &o.expr).chain(&limit).chain(&offset);
                if let Some(at) = tail.map(|e| e.span.start).min() {
                    right.span.end = self.end_before_clause(right.span.start, at);
                }
                let operator = match compound.op() {
                    sq::CompoundOp::Union => CompoundOperator::Union,
                    sq::CompoundOp::UnionAll => CompoundOperator::UnionAll,
                    sq::CompoundOp::Intersect => CompoundOperator::Intersect,
                    sq::CompoundOp::Except => CompoundOperator::Except,
                };
                let body = Body::Compound(operator, Box::new(left), Box::new(right));
                Ok(Query { span, with: Vec::new(), body, order, limit, offset })
            }
            sq::Select::ValuesClause(values) => {
                let width = values.rows().iter().flat_map(sq::ValuesRowList::iter).next();
                let width = width.map_or(0, |row| row.iter().count());
                let rows = self.convert_children(values.node_id().into())?;
                // A call as a row has as many columns as its list has values.
                let width = match rows.first().map(|expr| &expr.kind) {
                    Some(ExprKind::Call(n, _)) => {
                        let call = self.builder.all.get(*n).filter(|c| c.is_values_row);
                        call.map_or(width, |c| c.values_column_count() as usize)
                    }
                    _ => width,
                };
                let body = Body::Values(rows, width);
                let (limit, order) = (None, Vec::new());
                Ok(Query { span, with: Vec::new(), body, order, limit, offset: None })
            }
            sq::Select::SelectStmt(select) => self.convert_core(select, span),
        }
    }

    /// Returns the end of the text before the `ORDER BY` or `LIMIT` clause that has an expression
    /// at `at`.
    fn end_before_clause(&self, start: usize, at: usize) -> usize {
        let mut text = self.local_text(&(start..at)).trim_end();
        for word in ["by", "order", "limit"] {
            let word_start = text.len().saturating_sub(word.len());
            if text.get(word_start..).is_some_and(|end| end.eq_ignore_ascii_case(word)) {
                text = text[..word_start].trim_end();
            }
        }
        start + text.len()
    }

    pub(super) fn convert_core(
        &self,
        select: &sq::SelectStmt<'t>,
        span: Span,
    ) -> Result<Query, SqlError> {
        let mut columns = Vec::new();
        for column in select.columns().iter().flat_map(sq::ResultColumnList::iter) {
            let star = column.flags().star();
            let expr = column.expr();
            let (star_expr, expr) = match expr {
                Some(e) if !star => (None, Some(self.convert_expr(&e)?)),
                other => (other, None),
            };
            let source_text = expr.as_ref().and_then(|e| self.builder.sql.get(e.span.clone()));
            columns.push(ResultColumn {
                source_text: source_text.unwrap_or_default().to_owned(),
                star_table: match (star, &star_expr) {
                    (true, Some(sq::Expr::ColumnRef(of))) => Some(unquote_name(of.column())),
                    _ => None,
                }
                .or_else(|| self.star_table_name(&column)),
                expr,
                alias: column.alias().map(convert_name),
                span: self.node_span(column.node_id()),
            });
        }
        let mut from = Vec::new();
        if let Some(source) = select.from_clause() {
            self.convert_from(&source, &mut from)?;
        }
        let optional = |e: Option<sq::Expr<'t>>| e.map(|e| self.convert_expr(&e)).transpose();
        let core = SelectCore {
            span: span.clone(),
            distinct: select.flags().distinct(),
            columns,
            from,
            filter: optional(select.where_clause())?,
            group: self.convert_list(select.groupby())?,
            having: optional(select.having())?,
            windows: match select.window_clause() {
                Some(windows) => self.convert_children(windows.node_id().into())?,
                None => Vec::new(),
            },
            from_end: select.from_clause().map_or(0, |f| self.node_span(f.node_id()).end),
            group_end: select.groupby().map_or(0, |g| self.node_span(g.node_id()).end),
        };
        let (limit, offset) = self.convert_limit(select.limit_clause())?;
        let order = self.convert_order_by(select.orderby())?;
        let body = Body::Core(Box::new(core));
        Ok(Query { span, with: Vec::new(), body, order, limit, offset })
    }

    /// Returns the `t` of `t.*` from the text.
    pub(super) fn star_table_name(
        &self,
        column: &sq::ResultColumn<'t>,
    ) -> Option<String> {
        if !column.flags().star() {
            return None;
        }
        let span = self.node_span(column.node_id());
        let text = self.local_text(&span);
        let before = text.trim().strip_suffix('*')?.trim_end().strip_suffix('.')?.trim();
        Some(unquote_name(before.trim_matches(['"', '`', '[', ']'])))
    }

    pub(super) fn local_text(&self, span: &Span) -> &'t str {
        let (start, end) = (span.start.wrapping_sub(self.base), span.end.wrapping_sub(self.base));
        self.text.get(start..end).unwrap_or_default()
    }

    pub(super) fn convert_limit(
        &self,
        clause: Option<sq::LimitClause<'t>>,
    ) -> Result<(Option<Expr>, Option<Expr>), SqlError> {
        let Some(clause) = clause else { return Ok((None, None)) };
        let (limit, offset) = (clause.limit(), clause.offset());
        Ok((
            limit.map(|e| self.convert_expr(&e)).transpose()?,
            offset.map(|e| self.convert_expr(&e)).transpose()?,
        ))
    }

    pub(super) fn convert_order_by(
        &self,
        terms: Option<sq::OrderByList<'t>>,
    ) -> Result<Vec<OrderTerm>, SqlError> {
        let mut order = Vec::new();
        for term in terms.iter().flat_map(sq::OrderByList::iter) {
            let Some(expr) = term.expr() else { continue };
            order.push(OrderTerm {
                expr: self.convert_expr(&expr)?,
                descending: matches!(term.sort_order(), sq::SortOrder::Desc),
                nulls_first: match term.nulls_order() {
                    sq::NullsOrder::None => None,
                    sq::NullsOrder::First => Some(true),
                    sq::NullsOrder::Last => Some(false),
                },
            });
        }
        Ok(order)
    }

    pub(super) fn convert_list(
        &self,
        list: Option<sq::ExprList<'t>>,
    ) -> Result<Vec<Expr>, SqlError> {
        list.iter().flat_map(sq::ExprList::iter).map(|e| self.convert_expr(&e)).collect()
    }

    pub(super) fn convert_from(
        &self,
        source: &sq::TableSource<'t>,
        into: &mut Vec<FromItem>,
    ) -> Result<(), SqlError> {
        self.convert_source(source, self.node_span(source.node_id()).start, into)
    }

    /// Returns the byte range of a table with its alias, or an empty range if it is not found. The
    /// parser's extent cannot be used, because it covers the whole join.
    fn table_span(&self, table: &sq::TableRef<'t>, after: usize) -> Span {
        let mut at = after.wrapping_sub(self.base);
        let mut next = || {
            let token = lexer::next_token(self.text, at, Brackets::Name).ok()??;
            at = token.end;
            Some(token)
        };
        let is_any = |token: &Token, words: &[&str]| {
            words.iter().any(|w| token.text(self.text).eq_ignore_ascii_case(w))
        };
        let mut find_span = || {
            let mut name = next()?;
            while name.is_symbol(b',') || is_any(&name, &JOIN_WORDS) {
                name = next()?;
            }
            let mut last = name;
            if !table.schema().is_empty() {
                next().filter(|t| t.is_symbol(b'.'))?;
                last = next()?;
            }
            let name_text = last.text(self.text).trim_matches(['"', '`', '[', ']', '\'']);
            if unquote_name(name_text) != unquote_name(table.table_name()) {
                return None;
            }
            if table.alias().is_some() {
                last = next()?;
                if is_any(&last, &["as"]) {
                    last = next()?;
                }
            }
            Some(name.start..last.end)
        };
        let span = find_span().unwrap_or(0..0);
        let to_global = |at: usize| at.wrapping_add(self.base);
        if span.is_empty() { span } else { to_global(span.start)..to_global(span.end) }
    }

    /// Converts a FROM source; `after` is the end of the preceding source.
    fn convert_source(
        &self,
        source: &sq::TableSource<'t>,
        after: usize,
        into: &mut Vec<FromItem>,
    ) -> Result<(), SqlError> {
        let new_item = |source, name| FromItem {
            source,
            name,
            join: JoinKind::Inner,
            on: None,
            using: Vec::new(),
            natural: false,
        };
        match source {
            sq::TableSource::TableRef(table) => {
                let name = unquote_name(table.table_name());
                let alias = table.alias().map(convert_name);
                let source = if table.has_parens() {
                    FromSource::Function {
                        name: name.clone(),
                        args: self.convert_list(table.args())?,
                    }
                } else {
                    let schema = Some(unquote_name(table.schema())).filter(|s| !s.is_empty());
                    FromSource::Table {
                        schema,
                        name: name.clone(),
                        span: self.table_span(table, after),
                    }
                };
                into.push(new_item(source, alias.or(Some(name))));
            }
            sq::TableSource::SubqueryTableSource(sub) => {
                let span = self.node_span(sub.node_id());
                let select = sub.select().ok_or_else(|| broken_tree_error(&span))?;
                let query = self.convert_query(&select)?;
                let alias = sub.alias().map(convert_name);
                into.push(new_item(FromSource::Query(Box::new(query)), alias));
            }
            sq::TableSource::ParenTableSource(paren) => {
                let mut inner = Vec::new();
                if let Some(source) = paren.source() {
                    self.convert_from(&source, &mut inner)?;
                }
                let alias = paren.alias().map(convert_name);
                into.push(new_item(FromSource::Join(inner), alias));
            }
            sq::TableSource::JoinPrefix(prefix) => {
                if let Some(source) = prefix.source() {
                    self.convert_source(&source, after, into)?;
                }
            }
            sq::TableSource::JoinClause(join) => {
                let mut end = after;
                if let Some(left) = join.left() {
                    self.convert_source(&left, after, into)?;
                    end = self.node_span(left.node_id()).end;
                }
                let at = into.len();
                if let Some(right) = join.right() {
                    self.convert_source(&right, end, into)?;
                }
                let Some(right) = into.get_mut(at) else { return Ok(()) };
                // The parser stores the join type in the join itself or in the prefix on its left.
                let prefix = join.left().and_then(|l| match l {
                    sq::TableSource::JoinPrefix(p) => Some(p.join_type()),
                    _ => None,
                });
                let join_types = [Some(join.join_type()), prefix];
                for join_type in join_types.into_iter().flatten() {
                    let (join, natural) = convert_join_type(join_type);
                    right.natural |= natural;
                    if join != JoinKind::Inner {
                        right.join = join;
                    }
                }
                right.on = join.on_expr().map(|e| self.convert_expr(&e)).transpose()?;
                right.using = join
                    .using_columns()
                    .iter()
                    .flat_map(sq::ExprList::iter)
                    .filter_map(|e| match e {
                        sq::Expr::ColumnRef(c) => Some(unquote_name(c.column())),
                        _ => None,
                    })
                    .collect();
            }
        }
        Ok(())
    }
}

/// Words before a table in a FROM clause.
const JOIN_WORDS: [&str; 8] =
    ["natural", "left", "right", "full", "inner", "outer", "cross", "join"];

/// Converts a join type. The boolean is true for NATURAL joins.
fn convert_join_type(join_type: sq::JoinType) -> (JoinKind, bool) {
    match join_type {
        sq::JoinType::Comma | sq::JoinType::Inner | sq::JoinType::Cross => (JoinKind::Inner, false),
        sq::JoinType::Left => (JoinKind::Left, false),
        sq::JoinType::Right | sq::JoinType::Full => (JoinKind::Outer, false),
        sq::JoinType::NaturalInner | sq::JoinType::NaturalCross => (JoinKind::Inner, true),
        sq::JoinType::NaturalLeft => (JoinKind::Left, true),
        sq::JoinType::NaturalRight | sq::JoinType::NaturalFull => (JoinKind::Outer, true),
    }
}

/// Replaces doubled quotes in a name of the parse tree with single ones; the enclosing quotes are
/// already removed.
pub(super) fn unquote_name(name: &str) -> String {
    let name = name.trim();
    if name.contains("\"\"") { name.replace("\"\"", "\"") } else { name.to_owned() }
}

/// Converts a name node.
fn convert_name(name: sq::Name<'_>) -> String {
    match name {
        sq::Name::IdentName(ident) => unquote_name(ident.source()),
        sq::Name::Error(_) => String::new(),
    }
}

/// Error for an incomplete parse tree.
pub(super) fn broken_tree_error(span: &Span) -> SqlError {
    SqlError {
        message: "hqdl cannot parse this".to_owned(),
        span: span.clone(),
        label: "here".to_owned(),
        help: None,
        is_suggestion: false,
    }
}
