//! From a query's text to its [`tree`](super::tree). The grammar is `SQLite`'s own
//! (`syntaqlite`).
//!
//! Calls are overwritten by names of the same length before the text is parsed,
//! so all offsets stay true, and are found again by these names. The arguments
//! of a call are parsed by themselves, into the same tree.

use syntaqlite_syntax::any::{AnyNodeId, AnyParsedStatement};
use syntaqlite_syntax::nodes as sq;
use syntaqlite_syntax::typed::GrammarNodeType;
use syntaqlite_syntax::{ParseOutcome, Parser, ParserConfig};

use super::tree::{
    Body, Core, Cte, Expr, ExprKind, FromItem, Join, OrderTerm, Query, ResultColumn, Source, Span,
};
use super::{Argument, Call, Choices, SqlError, mask};

/// What a text was parsed from.
pub struct Parsed {
    /// The query.
    pub query: Query,
    /// All calls, those inside others after them; [`ExprKind::Call`] counts here.
    pub calls: Vec<Call>,
    /// Whether the whole statement is one call, without a SELECT.
    pub lone: bool,
}

/// Parses a query whose calls were found by [`super::scan`].
///
/// # Errors
/// [`SqlError`] with the place.
pub fn parse(sql: &str, calls: Vec<Call>) -> Result<Parsed, SqlError> {
    let mut all = Vec::new();
    let numbers: Vec<usize> = calls.into_iter().map(|c| number(c, &mut all)).collect();
    let outer: Vec<Call> = numbers.iter().map(|n| all[*n].clone()).collect();
    let masked = mask(sql, &outer);
    // A statement that is one call alone is its value.
    let trimmed = masked.trim().trim_end_matches(';').trim();
    let lone = numbers.len() == 1 && trimmed.len() == outer[0].span.len();
    let query = if let (true, [only]) = (lone, numbers.as_slice()) {
        let expr = Builder { sql, all: &all }.call(*only)?;
        let span = expr.span.clone();
        let column =
            ResultColumn { expr: Some(expr), star_of: None, alias: None, span: span.clone() };
        Query::of(Core::of(vec![column], span))
    } else {
        Builder { sql, all: &all }.statement(&masked, 0, &numbers)?
    };
    Ok(Parsed { query, calls: all, lone })
}

/// Puts a call and those inside it into one list.
fn number(mut call: Call, all: &mut Vec<Call>) -> usize {
    let at = all.len();
    let inner = std::mem::take(&mut call.inner);
    all.push(call);
    let numbered: Vec<usize> = inner.into_iter().map(|c| number(c, all)).collect();
    let inner = numbered.iter().map(|n| all[*n].clone()).collect();
    all[at].inner = inner;
    at
}

/// Parses pieces of one text.
struct Builder<'s> {
    sql: &'s str,
    all: &'s [Call],
}

impl Builder<'_> {
    /// A statement that begins at `base` of the whole text; `holes` are the
    /// calls masked in it.
    fn statement(&self, masked: &str, base: usize, holes: &[usize]) -> Result<Query, SqlError> {
        let config = ParserConfig::default().with_collect_node_extents(true);
        let parser = Parser::with_config(&config);
        let mut session = parser.parse(masked);
        let query = match session.next() {
            ParseOutcome::Ok(statement) => {
                let tree = statement.erase();
                let root = tree.root_id();
                let select = sq::Select::from_result(&tree, root).ok_or_else(|| SqlError {
                    message: "only a SELECT can be run here".to_owned(),
                    span: base..base + masked.len(),
                    label: "this is none".to_owned(),
                    help: Some("`hqdl query` reads, it never writes".to_owned()),
                })?;
                Walk { tree: &tree, base, text: masked, holes, builder: self }.query(&select)?
            }
            ParseOutcome::Err(error) => {
                let at = base + error.offset().map_or(0, |o| o.as_usize());
                let length = error.length().map_or(1, |l| l.as_usize());
                return Err(SqlError {
                    message: error.message().to_owned(),
                    span: at.min(self.sql.len())..(at + length).min(self.sql.len()),
                    label: "here".to_owned(),
                    help: None,
                });
            }
            ParseOutcome::Done => {
                return Err(SqlError {
                    message: "there is no statement".to_owned(),
                    span: base..base + masked.len(),
                    label: String::new(),
                    help: Some("give a SELECT".to_owned()),
                });
            }
        };
        if let ParseOutcome::Ok(second) = session.next() {
            let at = base + second.statement_base().as_doc_offset().as_usize();
            return Err(SqlError {
                message: "more than one statement".to_owned(),
                span: at.min(self.sql.len())..(base + masked.len()).min(self.sql.len()),
                label: "the second begins here".to_owned(),
                help: Some("run them one by one".to_owned()),
            });
        }
        Ok(query)
    }

    /// A piece of the text inside a call: `before` makes a statement of it.
    fn piece(&self, span: &Span, before: &str, call: &Call) -> Result<Query, SqlError> {
        let inside = |c: &Call| span.start <= c.span.start && c.span.end <= span.end;
        let holes: Vec<usize> = self
            .all
            .iter()
            .enumerate()
            .filter(|(_, c)| inside(c) && call.inner.iter().any(|i| i.span == c.span))
            .map(|(n, _)| n)
            .collect();
        let mut shifted: Vec<Call> = holes.iter().map(|n| self.all[*n].clone()).collect();
        for c in &mut shifted {
            c.span = c.span.start - span.start..c.span.end - span.start;
        }
        let masked = format!("{before}{}", mask(&self.sql[span.clone()], &shifted));
        // Offsets before the piece are never asked for.
        self.statement(&masked, span.start.wrapping_sub(before.len()), &holes)
    }

    fn call(&self, n: usize) -> Result<Expr, SqlError> {
        let call = &self.all[n];
        let mut args = Vec::new();
        for value in &call.values {
            args.push(match value {
                Argument::Column { table, column, span } => Expr {
                    span: span.clone(),
                    kind: ExprKind::Column { table: table.clone(), column: column.clone() },
                },
                Argument::Sql(span) => self.expression(span, call)?,
                Argument::Query(span) => Expr {
                    span: span.clone(),
                    kind: ExprKind::Scalar(Box::new(self.piece(span, "", call)?)),
                },
            });
        }
        if let Some(Choices::Query(span)) = &call.options {
            // It runs by itself, before; here it is only held to the grammar.
            self.piece(span, "", call)?;
        }
        Ok(Expr { span: call.span.clone(), kind: ExprKind::Call(n, args) })
    }

    fn expression(&self, span: &Span, call: &Call) -> Result<Expr, SqlError> {
        let query = self.piece(span, "SELECT ", call)?;
        match query.body {
            Body::Core(mut core) if core.columns.len() == 1 && core.from.is_empty() => {
                let expr = core.columns.pop().and_then(|c| c.expr);
                expr.ok_or_else(|| self.no_value(span))
            }
            _ => Err(self.no_value(span)),
        }
    }

    fn no_value(&self, span: &Span) -> SqlError {
        SqlError {
            message: "this is no value".to_owned(),
            span: span.clone(),
            label: "an expression is expected".to_owned(),
            help: Some("such as a column, `t.c`".to_owned()),
        }
    }
}

/// One parse tree on its way into ours.
struct Walk<'t, 'b> {
    tree: &'t AnyParsedStatement<'t>,
    base: usize,
    text: &'t str,
    holes: &'t [usize],
    builder: &'b Builder<'b>,
}

/// Words that a node's extent may begin with although they stand before it.
const BEFORE: [&str; 21] = [
    "and", "or", "where", "on", "select", "all", "distinct", "having", "by", "then", "when",
    "else", "limit", "offset", "from", "as", "in", "union", "using", "is", "between",
];

impl<'t> Walk<'t, '_> {
    /// Where a node stands, without what the parser puts before it.
    fn span(&self, id: impl Into<AnyNodeId>) -> Span {
        let Some(range) = self.tree.node_range(id.into()) else { return 0..0 };
        let (mut start, end) = (range.start.as_usize(), range.end.as_usize().min(self.text.len()));
        loop {
            let rest = self.text.get(start..end).unwrap_or_default();
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            start += rest.len() - trimmed.len();
            let word = trimmed
                .find(|c: char| !c.is_ascii_alphabetic())
                .map_or(trimmed, |at| &trimmed[..at]);
            if word.len() < trimmed.len()
                && BEFORE.iter().any(|b| b.eq_ignore_ascii_case(word))
                && !trimmed[word.len()..].starts_with(['_', '.'])
            {
                start += word.len();
            } else {
                break;
            }
        }
        self.base.wrapping_add(start)..self.base.wrapping_add(end)
    }

    /// Where a query stands: from its first word on.
    fn query_span(&self, id: impl Into<AnyNodeId>) -> Span {
        let Some(range) = self.tree.node_range(id.into()) else { return 0..0 };
        let (mut start, end) = (range.start.as_usize(), range.end.as_usize().min(self.text.len()));
        loop {
            let rest = self.text.get(start..end).unwrap_or_default();
            let word: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
            let first = ["select", "with", "values"].iter().any(|w| w.eq_ignore_ascii_case(&word));
            let Some(next) = rest.chars().next().filter(|_| !first) else { break };
            start += word.len().max(next.len_utf8());
        }
        self.base.wrapping_add(start)..self.base.wrapping_add(end)
    }

    fn query(&self, select: &sq::Select<'t>) -> Result<Query, SqlError> {
        let span = self.query_span(select.node_id());
        match select {
            sq::Select::WithClause(with) => {
                let inner = with.select().ok_or_else(|| self.broken(&span))?;
                let mut query = self.query(&inner)?;
                let mut ctes = Vec::new();
                for cte in with.ctes().iter().flat_map(sq::CteList::iter) {
                    let select = cte.select().ok_or_else(|| self.broken(&span))?;
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
                    return Err(self.broken(&span));
                };
                let body =
                    Body::Compound(Box::new(self.query(&left)?), Box::new(self.query(&right)?));
                let (limit, offset) = self.limit(compound.limit_clause())?;
                let order = self.order(compound.orderby())?;
                Ok(Query { span, with: Vec::new(), body, order, limit, offset })
            }
            sq::Select::ValuesClause(values) => {
                let body = Body::Values(self.inside(values.node_id().into())?);
                let (limit, order) = (None, Vec::new());
                Ok(Query { span, with: Vec::new(), body, order, limit, offset: None })
            }
            sq::Select::SelectStmt(select) => self.core(select, span),
        }
    }

    fn core(&self, select: &sq::SelectStmt<'t>, span: Span) -> Result<Query, SqlError> {
        let mut columns = Vec::new();
        for column in select.columns().iter().flat_map(sq::ResultColumnList::iter) {
            let star = column.flags().star();
            let expr = column.expr();
            columns.push(ResultColumn {
                star_of: match (star, &expr) {
                    (true, Some(sq::Expr::ColumnRef(of))) => Some(unquoted(of.column())),
                    _ => None,
                }
                .or_else(|| self.star_of(&column)),
                expr: match expr {
                    Some(e) if !star => Some(self.expr(&e)?),
                    _ => None,
                },
                alias: column.alias().map(|a| self.name(a)),
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
            from_end: select.from_clause().map_or(0, |f| self.span(f.node_id()).end),
            group_end: select.groupby().map_or(0, |g| self.span(g.node_id()).end),
        };
        let (limit, offset) = self.limit(select.limit_clause())?;
        let order = self.order(select.orderby())?;
        let body = Body::Core(Box::new(core));
        Ok(Query { span, with: Vec::new(), body, order, limit, offset })
    }

    /// The `t` of `t.*`, from the text.
    fn star_of(&self, column: &sq::ResultColumn<'t>) -> Option<String> {
        if !column.flags().star() {
            return None;
        }
        let span = self.span(column.node_id());
        let text = self.local(&span);
        let before = text.trim().strip_suffix('*')?.trim_end().strip_suffix('.')?.trim();
        Some(unquoted(before.trim_matches(['"', '`', '[', ']'])))
    }

    fn local(&self, span: &Span) -> &'t str {
        let (start, end) = (span.start.wrapping_sub(self.base), span.end.wrapping_sub(self.base));
        self.text.get(start..end).unwrap_or_default()
    }

    fn limit(
        &self,
        clause: Option<sq::LimitClause<'t>>,
    ) -> Result<(Option<Expr>, Option<Expr>), SqlError> {
        let Some(clause) = clause else { return Ok((None, None)) };
        let (limit, offset) = (clause.limit(), clause.offset());
        Ok((limit.map(|e| self.expr(&e)).transpose()?, offset.map(|e| self.expr(&e)).transpose()?))
    }

    fn order(&self, terms: Option<sq::OrderByList<'t>>) -> Result<Vec<OrderTerm>, SqlError> {
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

    fn list(&self, list: Option<sq::ExprList<'t>>) -> Result<Vec<Expr>, SqlError> {
        list.iter().flat_map(sq::ExprList::iter).map(|e| self.expr(&e)).collect()
    }

    fn from(&self, source: &sq::TableSource<'t>, into: &mut Vec<FromItem>) -> Result<(), SqlError> {
        let item = |source, name| FromItem {
            source,
            name,
            join: Join::Inner,
            on: None,
            using: Vec::new(),
            natural: false,
        };
        match source {
            sq::TableSource::TableRef(table) => {
                let name = unquoted(table.table_name());
                let alias = table.alias().map(|a| self.name(a));
                let source = if table.has_parens() {
                    Source::Function { name: name.clone(), args: self.list(table.args())? }
                } else {
                    let schema = Some(unquoted(table.schema())).filter(|s| !s.is_empty());
                    Source::Table { schema, name: name.clone() }
                };
                into.push(item(source, alias.or(Some(name))));
            }
            sq::TableSource::SubqueryTableSource(sub) => {
                let span = self.span(sub.node_id());
                let select = sub.select().ok_or_else(|| self.broken(&span))?;
                let query = self.query(&select)?;
                let alias = sub.alias().map(|a| self.name(a));
                into.push(item(Source::Query(Box::new(query)), alias));
            }
            sq::TableSource::ParenTableSource(paren) => {
                let mut inner = Vec::new();
                if let Some(source) = paren.source() {
                    self.from(&source, &mut inner)?;
                }
                let alias = paren.alias().map(|a| self.name(a));
                into.push(item(Source::Join(inner), alias));
            }
            sq::TableSource::JoinPrefix(prefix) => {
                if let Some(source) = prefix.source() {
                    self.from(&source, into)?;
                }
            }
            sq::TableSource::JoinClause(join) => {
                if let Some(left) = join.left() {
                    self.from(&left, into)?;
                }
                let at = into.len();
                if let Some(right) = join.right() {
                    self.from(&right, into)?;
                }
                let Some(right) = into.get_mut(at) else { return Ok(()) };
                // A join says how with its own type, or with the prefix on its left.
                let prefix = join.left().and_then(|l| match l {
                    sq::TableSource::JoinPrefix(p) => Some(p.join_type()),
                    _ => None,
                });
                let kinds = [Some(join.join_type()), prefix];
                for kind in kinds.into_iter().flatten() {
                    let (join, natural) = how(kind);
                    right.natural |= natural;
                    if join != Join::Inner {
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

    fn name(&self, name: sq::Name<'t>) -> String {
        match name {
            sq::Name::IdentName(ident) => unquoted(ident.source()),
            sq::Name::Error(_) => String::new(),
        }
    }

    fn broken(&self, span: &Span) -> SqlError {
        SqlError {
            message: "this cannot be read".to_owned(),
            span: span.clone(),
            label: "here".to_owned(),
            help: None,
        }
    }
}

/// Expressions.
impl<'t> Walk<'t, '_> {
    fn expr(&self, expr: &sq::Expr<'t>) -> Result<Expr, SqlError> {
        let span = self.span(expr.node_id());
        let some = |e: Option<sq::Expr<'t>>| match e {
            Some(e) => self.expr(&e).map(Box::new),
            None => Err(self.broken(&span)),
        };
        let kind = match expr {
            sq::Expr::BinaryExpr(binary) => {
                let (left, right) = (some(binary.left())?, some(binary.right())?);
                match binary.op() {
                    sq::BinaryOp::And => ExprKind::And(chain(*left, *right, |kind| match kind {
                        ExprKind::And(parts) => Ok(parts),
                        other => Err(other),
                    })),
                    sq::BinaryOp::Or => ExprKind::Or(chain(*left, *right, |kind| match kind {
                        ExprKind::Or(parts) => Ok(parts),
                        other => Err(other),
                    })),
                    op => match compared(op) {
                        Some(sign) => ExprKind::Compare(sign, left, right),
                        None => ExprKind::Other(vec![*left, *right]),
                    },
                }
            }
            sq::Expr::UnaryExpr(unary) if matches!(unary.op(), sq::UnaryOp::Not) => {
                ExprKind::Not(some(unary.operand())?)
            }
            sq::Expr::IsExpr(is)
                if !matches!(
                    is.op(),
                    sq::IsOp::IsNull | sq::IsOp::NotNull | sq::IsOp::NotNullSpaced
                ) =>
            {
                ExprKind::Compare("IS", some(is.left())?, some(is.right())?)
            }
            sq::Expr::ParenExpr(paren) => ExprKind::Paren(some(paren.expr())?),
            sq::Expr::Literal(_) => ExprKind::Literal,
            sq::Expr::ColumnRef(column) => return self.column(column, span),
            sq::Expr::CaseExpr(case) => {
                let mut whens = Vec::new();
                for when in case.whens().iter().flat_map(sq::CaseWhenList::iter) {
                    whens.push((*some(when.when_expr())?, *some(when.then_expr())?));
                }
                ExprKind::Case {
                    operand: case.operand().map(|e| some(Some(e))).transpose()?,
                    whens,
                    otherwise: case.else_expr().map(|e| some(Some(e))).transpose()?,
                }
            }
            sq::Expr::FunctionCall(function) => ExprKind::Function {
                name: unquoted(function.func_name()).to_lowercase(),
                window: has_over(self.local(&span)),
                filter: function.filter_clause().map(|e| some(Some(e))).transpose()?,
                args: self.args(function.node_id().into(), function.filter_clause())?,
            },
            sq::Expr::AggregateFunctionCall(function) => ExprKind::Function {
                name: unquoted(function.func_name()).to_lowercase(),
                window: has_over(self.local(&span)),
                filter: function.filter_clause().map(|e| some(Some(e))).transpose()?,
                args: self.args(function.node_id().into(), function.filter_clause())?,
            },
            sq::Expr::ExistsExpr(exists) => match exists.select() {
                Some(select) => ExprKind::Exists(Box::new(self.query(&select)?)),
                None => return Err(self.broken(&span)),
            },
            sq::Expr::SubqueryExpr(sub) => match sub.select() {
                Some(select) => ExprKind::Scalar(Box::new(self.query(&select)?)),
                None => return Err(self.broken(&span)),
            },
            sq::Expr::InExpr(within) => {
                let operand = some(within.operand())?;
                let (mut list, mut query) = (Vec::new(), None);
                match within.source() {
                    Some(sq::InExprSource::ExprList(exprs)) => list = self.list(Some(exprs))?,
                    Some(sq::InExprSource::SubqueryExpr(sub)) => {
                        query = sub.select().map(|s| self.query(&s)).transpose()?;
                    }
                    Some(source) => {
                        let id = source.node_id().into();
                        if let Some(select) = sq::Select::from_result(self.tree, id) {
                            query = Some(self.query(&select)?);
                        } else if let sq::InExprSource::TableRef(table) = &source
                            && let Some(n) = self.hole(table.table_name())
                        {
                            // `x IN {{…}}` reads as `x IN table`.
                            list = vec![self.builder.call(n)?];
                        } else {
                            list = self.inside(id)?;
                        }
                    }
                    None => {}
                }
                ExprKind::In { operand, list, query: query.map(Box::new) }
            }
            other => ExprKind::Other(self.inside(other.node_id().into())?),
        };
        Ok(Expr { span, kind })
    }

    /// A name: a call's, or a column's.
    fn column(&self, column: &sq::ColumnRef<'t>, span: Span) -> Result<Expr, SqlError> {
        let name = unquoted(column.column());
        if let Some(n) = self.hole(column.column()) {
            return self.builder.call(n);
        }
        let table = Some(unquoted(column.table())).filter(|t| !t.is_empty());
        Ok(Expr { span, kind: ExprKind::Column { table, column: name } })
    }

    /// All expressions in a function, but for its FILTER.
    fn args(&self, id: AnyNodeId, filter: Option<sq::Expr<'t>>) -> Result<Vec<Expr>, SqlError> {
        let mut args = self.inside(id)?;
        if let Some(filter) = filter {
            let span = self.expr(&filter)?.span;
            args.retain(|a| a.span != span);
        }
        Ok(args)
    }

    /// The call that a name stands for.
    fn hole(&self, name: &str) -> Option<usize> {
        let digits: String =
            name.strip_prefix("_hq")?.chars().take_while(char::is_ascii_digit).collect();
        let at: usize = digits.parse().ok()?;
        let n = *self.holes.get(at)?;
        let hole = self.builder.all[n].hole(at);
        (hole.trim_matches(['(', ')']) == name).then_some(n)
    }

    /// All expressions right inside a node of another kind.
    fn inside(&self, id: AnyNodeId) -> Result<Vec<Expr>, SqlError> {
        let mut found = Vec::new();
        let list = self.tree.list_children(id).unwrap_or_default();
        for child in self.tree.child_node_ids(id).chain(list.iter().copied()) {
            if let Some(expr) = sq::Expr::from_result(self.tree, child) {
                found.push(self.expr(&expr)?);
            } else if let Some(select) = sq::Select::from_result(self.tree, child) {
                let query = self.query(&select)?;
                found.push(Expr {
                    span: query.span.clone(),
                    kind: ExprKind::Scalar(Box::new(query)),
                });
            } else {
                found.extend(self.inside(child)?);
            }
        }
        Ok(found)
    }
}

/// Whether the text of a function ends in an OVER clause.
fn has_over(text: &str) -> bool {
    let close = text.find(')').map_or("", |at| &text[at..]);
    close.split(|c: char| !c.is_alphanumeric()).any(|w| w.eq_ignore_ascii_case("over"))
}

/// Both sides of AND or OR in one list.
fn chain(
    left: Expr,
    right: Expr,
    parts: impl Fn(ExprKind) -> Result<Vec<Expr>, ExprKind>,
) -> Vec<Expr> {
    let mut all = Vec::new();
    for side in [left, right] {
        match parts(side.kind) {
            Ok(inner) => all.extend(inner),
            Err(kind) => all.push(Expr { span: side.span, kind }),
        }
    }
    all
}

/// The sign of a comparison.
fn compared(op: sq::BinaryOp) -> Option<&'static str> {
    Some(match op {
        sq::BinaryOp::Eq | sq::BinaryOp::EqDouble => "=",
        sq::BinaryOp::Ne | sq::BinaryOp::NeAngle => "<>",
        sq::BinaryOp::Lt => "<",
        sq::BinaryOp::Le => "<=",
        sq::BinaryOp::Gt => ">",
        sq::BinaryOp::Ge => ">=",
        _ => return None,
    })
}

/// How a kind of join joins, and whether by equal names.
fn how(kind: sq::JoinType) -> (Join, bool) {
    match kind {
        sq::JoinType::Comma | sq::JoinType::Inner | sq::JoinType::Cross => (Join::Inner, false),
        sq::JoinType::Left => (Join::Left, false),
        sq::JoinType::Right | sq::JoinType::Full => (Join::Outer, false),
        sq::JoinType::NaturalInner | sq::JoinType::NaturalCross => (Join::Inner, true),
        sq::JoinType::NaturalLeft => (Join::Left, true),
        sq::JoinType::NaturalRight | sq::JoinType::NaturalFull => (Join::Outer, true),
    }
}

/// A name as the tree gives it: without its quotes, doubled ones made single.
fn unquoted(name: &str) -> String {
    let name = name.trim();
    if name.contains("\"\"") { name.replace("\"\"", "\"") } else { name.to_owned() }
}
