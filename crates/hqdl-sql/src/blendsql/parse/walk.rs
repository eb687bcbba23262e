//! Converts the parser's tree into [ours](crate::blendsql::tree): queries and FROM clauses.

use std::cell::Cell;

use syntaqlite_syntax::any::{AnyNodeId, AnyParsedStatement};
use syntaqlite_syntax::nodes as sq;

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Token};
use crate::blendsql::parse::Builder;
use crate::blendsql::tree::{
    Body, CompoundOperator, Core, Cte, Expr, ExprKind, FromItem, FromSource, JoinKind, OrderTerm,
    Query, ResultColumn, Span,
};

/// Converts one parse tree.
pub(in crate::blendsql) struct Walk<'t, 'b> {
    pub(in crate::blendsql) tree: &'t AnyParsedStatement<'t>,
    pub(in crate::blendsql) base: usize,
    pub(in crate::blendsql) text: &'t str,
    pub(in crate::blendsql) holes: &'t [usize],
    pub(in crate::blendsql) builder: &'b Builder<'b>,
    pub(in crate::blendsql) depth: Cell<usize>,
}

/// `SQLite`'s maximum expression depth.
const DEEPEST: usize = 1000;

/// Words that the parser includes at the beginning of a node's extent although they precede the
/// node.
const BEFORE: [&str; 21] = [
    "and", "or", "where", "on", "select", "all", "distinct", "having", "by", "then", "when",
    "else", "limit", "offset", "from", "as", "in", "union", "using", "is", "between",
];

/// Returns the text after a sequence of words, or `None` if it does not begin with them.
fn after_words<'s>(text: &'s str, words: &[&str]) -> Option<&'s str> {
    words.iter().try_fold(text, |rest, word| {
        let rest = rest.trim_start();
        let begins = rest.get(..word.len()).is_some_and(|w| w.eq_ignore_ascii_case(word));
        let ends = |c: char| {
            !word.ends_with(char::is_alphabetic) || !(c.is_alphanumeric() || "_$".contains(c))
        };
        let rest = rest.get(word.len()..).filter(|_| begins)?;
        rest.chars().next().is_none_or(ends).then_some(rest)
    })
}

impl<'t> Walk<'t, '_> {
    /// Returns a node's byte range without the preceding words that the parser includes.
    pub(in crate::blendsql) fn span(&self, id: impl Into<AnyNodeId>) -> Span {
        let Some(range) = self.tree.node_range(id.into()) else { return 0..0 };
        let (mut start, end) = (range.start.as_usize(), range.end.as_usize().min(self.text.len()));
        loop {
            let rest = self.text.get(start..end).unwrap_or_default();
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            // No expression begins with these words.
            let trimmed =
                after_words(trimmed, &["filter", "(", "where"]).map_or(trimmed, str::trim_start);
            start += rest.len() - trimmed.len();
            let word = trimmed
                .find(|c: char| !c.is_ascii_alphabetic())
                .map_or(trimmed, |at| &trimmed[..at]);
            if word.len() < trimmed.len()
                && BEFORE.iter().any(|b| b.eq_ignore_ascii_case(word))
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
    pub(in crate::blendsql) fn query_span(&self, id: impl Into<AnyNodeId>) -> Span {
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

    pub(in crate::blendsql) fn query(&self, select: &sq::Select<'t>) -> Result<Query, SqlError> {
        self.deeper(|| self.query_span(select.node_id()), || self.read_query(select))
    }

    /// Runs `convert` one level deeper. Fails if that exceeds the maximum depth of `SQLite`.
    pub(in crate::blendsql) fn deeper<T>(
        &self,
        span: impl Fn() -> Span,
        read: impl FnOnce() -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let depth = self.depth.get() + 1;
        if depth > DEEPEST {
            let message = format!("the query is nested more than {DEEPEST} levels deep");
            return Err(SqlError::new(span(), message, "here")
                .help("SQLite does not allow more; put the values into a table, or write IN (…)"));
        }
        self.depth.set(depth);
        let read = read();
        self.depth.set(depth - 1);
        read
    }

    fn read_query(&self, select: &sq::Select<'t>) -> Result<Query, SqlError> {
        let span = self.query_span(select.node_id());
        match select {
            sq::Select::WithClause(with) => {
                let inner = with.select().ok_or_else(|| broken(&span))?;
                let mut query = self.query(&inner)?;
                let mut ctes = Vec::new();
                for cte in with.ctes().iter().flat_map(sq::CteList::iter) {
                    let select = cte.select().ok_or_else(|| broken(&span))?;
                    ctes.push(Cte {
                        name: unquoted(cte.cte_name()),
                        columns: cte
                            .columns()
                            .iter()
                            .flat_map(sq::ExprList::iter)
                            .filter_map(|e| match e {
                                sq::Expr::ColumnRef(c) => Some(unquoted(c.column())),
                                _ => None,
                            })
                            .collect(),
                        query: self.query(&select)?,
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
                    return Err(broken(&span));
                };
                let (limit, offset) = self.limit(compound.limit_clause())?;
                let order = self.order(compound.orderby())?;
                let (left, mut right) = (self.query(&left)?, self.query(&right)?);
                // The parser extends the second side to the end of the whole compound.
                let tail = order.iter().map(|o| &o.expr).chain(&limit).chain(&offset);
                if let Some(at) = tail.map(|e| e.span.start).min() {
                    right.span.end = self.before_clause(right.span.start, at);
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
                let rows = self.inside(values.node_id().into())?;
                // A call as a row has as many columns as its list has values.
                let width = match rows.first().map(|expr| &expr.kind) {
                    Some(ExprKind::Call(n, _)) => {
                        let call = self.builder.all.get(*n).filter(|c| c.row);
                        call.map_or(width, |c| c.width() as usize)
                    }
                    _ => width,
                };
                let body = Body::Values(rows, width);
                let (limit, order) = (None, Vec::new());
                Ok(Query { span, with: Vec::new(), body, order, limit, offset: None })
            }
            sq::Select::SelectStmt(select) => self.core(select, span),
        }
    }

    /// Returns the end of the text before the `ORDER BY` or `LIMIT` clause that has an expression
    /// at `at`.
    fn before_clause(&self, start: usize, at: usize) -> usize {
        let mut text = self.local(&(start..at)).trim_end();
        for word in ["by", "order", "limit"] {
            let cut = text.len().saturating_sub(word.len());
            if text.get(cut..).is_some_and(|end| end.eq_ignore_ascii_case(word)) {
                text = text[..cut].trim_end();
            }
        }
        start + text.len()
    }

    pub(in crate::blendsql) fn core(
        &self,
        select: &sq::SelectStmt<'t>,
        span: Span,
    ) -> Result<Query, SqlError> {
        let mut columns = Vec::new();
        for column in select.columns().iter().flat_map(sq::ResultColumnList::iter) {
            let star = column.flags().star();
            let expr = column.expr();
            let (star_expr, expr) = match expr {
                Some(e) if !star => (None, Some(self.expr(&e)?)),
                other => (other, None),
            };
            let written = expr.as_ref().and_then(|e| self.builder.sql.get(e.span.clone()));
            columns.push(ResultColumn {
                written: written.unwrap_or_default().to_owned(),
                star_of: match (star, &star_expr) {
                    (true, Some(sq::Expr::ColumnRef(of))) => Some(unquoted(of.column())),
                    _ => None,
                }
                .or_else(|| self.star_of(&column)),
                expr,
                alias: column.alias().map(name_of),
                span: self.span(column.node_id()),
            });
        }
        let mut from = Vec::new();
        if let Some(source) = select.from_clause() {
            self.from(&source, &mut from)?;
        }
        let optional = |e: Option<sq::Expr<'t>>| e.map(|e| self.expr(&e)).transpose();
        let core = Core {
            span: span.clone(),
            distinct: select.flags().distinct(),
            columns,
            from,
            filter: optional(select.where_clause())?,
            group: self.list(select.groupby())?,
            having: optional(select.having())?,
            windows: match select.window_clause() {
                Some(windows) => self.inside(windows.node_id().into())?,
                None => Vec::new(),
            },
            from_end: select.from_clause().map_or(0, |f| self.span(f.node_id()).end),
            group_end: select.groupby().map_or(0, |g| self.span(g.node_id()).end),
        };
        let (limit, offset) = self.limit(select.limit_clause())?;
        let order = self.order(select.orderby())?;
        let body = Body::Core(Box::new(core));
        Ok(Query { span, with: Vec::new(), body, order, limit, offset })
    }

    /// Returns the `t` of `t.*` from the text.
    pub(in crate::blendsql) fn star_of(&self, column: &sq::ResultColumn<'t>) -> Option<String> {
        if !column.flags().star() {
            return None;
        }
        let span = self.span(column.node_id());
        let text = self.local(&span);
        let before = text.trim().strip_suffix('*')?.trim_end().strip_suffix('.')?.trim();
        Some(unquoted(before.trim_matches(['"', '`', '[', ']'])))
    }

    pub(in crate::blendsql) fn local(&self, span: &Span) -> &'t str {
        let (start, end) = (span.start.wrapping_sub(self.base), span.end.wrapping_sub(self.base));
        self.text.get(start..end).unwrap_or_default()
    }

    pub(in crate::blendsql) fn limit(
        &self,
        clause: Option<sq::LimitClause<'t>>,
    ) -> Result<(Option<Expr>, Option<Expr>), SqlError> {
        let Some(clause) = clause else { return Ok((None, None)) };
        let (limit, offset) = (clause.limit(), clause.offset());
        Ok((limit.map(|e| self.expr(&e)).transpose()?, offset.map(|e| self.expr(&e)).transpose()?))
    }

    pub(in crate::blendsql) fn order(
        &self,
        terms: Option<sq::OrderByList<'t>>,
    ) -> Result<Vec<OrderTerm>, SqlError> {
        let mut order = Vec::new();
        for term in terms.iter().flat_map(sq::OrderByList::iter) {
            let Some(expr) = term.expr() else { continue };
            order.push(OrderTerm {
                expr: self.expr(&expr)?,
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

    pub(in crate::blendsql) fn list(
        &self,
        list: Option<sq::ExprList<'t>>,
    ) -> Result<Vec<Expr>, SqlError> {
        list.iter().flat_map(sq::ExprList::iter).map(|e| self.expr(&e)).collect()
    }

    pub(in crate::blendsql) fn from(
        &self,
        source: &sq::TableSource<'t>,
        into: &mut Vec<FromItem>,
    ) -> Result<(), SqlError> {
        self.source(source, self.span(source.node_id()).start, into)
    }

    /// Returns the byte range of a table with its alias, or an empty range if it is not found. The
    /// parser's extent cannot be used, because it covers the whole join.
    fn table_span(&self, table: &sq::TableRef<'t>, after: usize) -> Span {
        let mut at = after.wrapping_sub(self.base);
        let mut next = || {
            let token = lexer::next(self.text, at, Brackets::Name).ok()??;
            at = token.end;
            Some(token)
        };
        let is = |token: &Token, words: &[&str]| {
            words.iter().any(|w| token.text(self.text).eq_ignore_ascii_case(w))
        };
        let mut find = || {
            let mut name = next()?;
            while name.is(b',') || is(&name, &JOINS) {
                name = next()?;
            }
            let mut last = name;
            if !table.schema().is_empty() {
                next().filter(|t| t.is(b'.'))?;
                last = next()?;
            }
            let found = last.text(self.text).trim_matches(['"', '`', '[', ']', '\'']);
            if unquoted(found) != unquoted(table.table_name()) {
                return None;
            }
            if table.alias().is_some() {
                last = next()?;
                if is(&last, &["as"]) {
                    last = next()?;
                }
            }
            Some(name.start..last.end)
        };
        let span = find().unwrap_or(0..0);
        let place = |at: usize| at.wrapping_add(self.base);
        if span.is_empty() { span } else { place(span.start)..place(span.end) }
    }

    /// Converts a FROM source; `after` is the end of the preceding source.
    fn source(
        &self,
        source: &sq::TableSource<'t>,
        after: usize,
        into: &mut Vec<FromItem>,
    ) -> Result<(), SqlError> {
        let item = |source, name| FromItem {
            source,
            name,
            join: JoinKind::Inner,
            on: None,
            using: Vec::new(),
            natural: false,
        };
        match source {
            sq::TableSource::TableRef(table) => {
                let name = unquoted(table.table_name());
                let alias = table.alias().map(name_of);
                let source = if table.has_parens() {
                    FromSource::Function { name: name.clone(), args: self.list(table.args())? }
                } else {
                    let schema = Some(unquoted(table.schema())).filter(|s| !s.is_empty());
                    FromSource::Table {
                        schema,
                        name: name.clone(),
                        span: self.table_span(table, after),
                    }
                };
                into.push(item(source, alias.or(Some(name))));
            }
            sq::TableSource::SubqueryTableSource(sub) => {
                let span = self.span(sub.node_id());
                let select = sub.select().ok_or_else(|| broken(&span))?;
                let query = self.query(&select)?;
                let alias = sub.alias().map(name_of);
                into.push(item(FromSource::Query(Box::new(query)), alias));
            }
            sq::TableSource::ParenTableSource(paren) => {
                let mut inner = Vec::new();
                if let Some(source) = paren.source() {
                    self.from(&source, &mut inner)?;
                }
                let alias = paren.alias().map(name_of);
                into.push(item(FromSource::Join(inner), alias));
            }
            sq::TableSource::JoinPrefix(prefix) => {
                if let Some(source) = prefix.source() {
                    self.source(&source, after, into)?;
                }
            }
            sq::TableSource::JoinClause(join) => {
                let mut end = after;
                if let Some(left) = join.left() {
                    self.source(&left, after, into)?;
                    end = self.span(left.node_id()).end;
                }
                let at = into.len();
                if let Some(right) = join.right() {
                    self.source(&right, end, into)?;
                }
                let Some(right) = into.get_mut(at) else { return Ok(()) };
                // The parser stores the join type in the join itself or in the prefix on its left.
                let prefix = join.left().and_then(|l| match l {
                    sq::TableSource::JoinPrefix(p) => Some(p.join_type()),
                    _ => None,
                });
                let kinds = [Some(join.join_type()), prefix];
                for kind in kinds.into_iter().flatten() {
                    let (join, natural) = how(kind);
                    right.natural |= natural;
                    if join != JoinKind::Inner {
                        right.join = join;
                    }
                }
                right.on = join.on_expr().map(|e| self.expr(&e)).transpose()?;
                right.using = join
                    .using_columns()
                    .iter()
                    .flat_map(sq::ExprList::iter)
                    .filter_map(|e| match e {
                        sq::Expr::ColumnRef(c) => Some(unquoted(c.column())),
                        _ => None,
                    })
                    .collect();
            }
        }
        Ok(())
    }
}

/// Words before a table in a FROM clause.
const JOINS: [&str; 8] = ["natural", "left", "right", "full", "inner", "outer", "cross", "join"];

/// Converts a join type. The boolean is true for NATURAL joins.
fn how(kind: sq::JoinType) -> (JoinKind, bool) {
    match kind {
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
pub(in crate::blendsql) fn unquoted(name: &str) -> String {
    let name = name.trim();
    if name.contains("\"\"") { name.replace("\"\"", "\"") } else { name.to_owned() }
}

/// Converts a name node.
fn name_of(name: sq::Name<'_>) -> String {
    match name {
        sq::Name::IdentName(ident) => unquoted(ident.source()),
        sq::Name::Error(_) => String::new(),
    }
}

/// Error for an incomplete parse tree.
pub(in crate::blendsql) fn broken(span: &Span) -> SqlError {
    SqlError {
        message: "hqdl cannot parse this".to_owned(),
        span: span.clone(),
        label: "here".to_owned(),
        help: None,
        suggests: false,
    }
}
