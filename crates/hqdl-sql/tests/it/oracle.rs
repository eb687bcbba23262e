//! Parses a query with `SQLite`'s own grammar (`syntaqlite`), and converts the tree to hqdl's,
//! without spans.

use hqdl_sql::blendsql::lexer::unquote;
use hqdl_sql::blendsql::tree::{
    Body, CompoundOperator, Cte, Expr, ExprKind, ExprOperator, FromItem, FromSource, JoinKind,
    MatchOperator, OrderTerm, Query, ResultColumn, SelectCore, WindowSpec,
};
use syntaqlite_syntax::any::{AnyNodeId, AnyParsedStatement};
use syntaqlite_syntax::nodes as sq;
use syntaqlite_syntax::typed::GrammarNodeType;
use syntaqlite_syntax::{ParseOutcome, Parser};

/// Returns the query that a text without calls contains, or `None` if the grammar rejects it.
pub fn parse_query(sql: &str) -> Option<Query> {
    let parser = Parser::new();
    let mut session = parser.parse(sql);
    let ParseOutcome::Ok(statement) = session.next() else { return None };
    let tree = statement.erase();
    let select = sq::Select::from_result(&tree, tree.root_id())?;
    let query = Oracle { tree: &tree }.query(&select);
    Some(query)
}

struct Oracle<'t> {
    tree: &'t AnyParsedStatement<'t>,
}

impl<'t> Oracle<'t> {
    fn query(&self, select: &sq::Select<'t>) -> Query {
        let core = match select {
            sq::Select::WithClause(with) => {
                let mut query = self.query(&with.select().unwrap());
                let ctes = with.ctes().into_iter().flat_map(|ctes| ctes.iter().collect::<Vec<_>>());
                query.with = ctes
                    .map(|cte| Cte {
                        name: unquoted(cte.cte_name()),
                        columns: column_names(cte.columns()),
                        query: self.query(&cte.select().unwrap()),
                        recursive: with.recursive(),
                    })
                    .collect();
                return query;
            }
            sq::Select::CompoundSelect(compound) => {
                let operator = match compound.op() {
                    sq::CompoundOp::Union => CompoundOperator::Union,
                    sq::CompoundOp::UnionAll => CompoundOperator::UnionAll,
                    sq::CompoundOp::Intersect => CompoundOperator::Intersect,
                    sq::CompoundOp::Except => CompoundOperator::Except,
                };
                let left = Box::new(self.query(&compound.left().unwrap()));
                let right = Box::new(self.query(&compound.right().unwrap()));
                let body = Body::Compound(operator, left, right);
                return self.ordered(body, compound.orderby(), compound.limit_clause());
            }
            sq::Select::ValuesClause(values) => {
                let width = values.rows().unwrap().iter().next().unwrap().iter().count();
                let body = Body::Values(self.children(values.node_id().into()), width);
                return self.ordered(body, None, None);
            }
            sq::Select::SelectStmt(core) => core,
        };
        let columns = core.columns().unwrap().iter().map(|c| self.column(&c)).collect();
        let mut converted = SelectCore {
            distinct: core.flags().distinct(),
            filter: core.where_clause().map(|e| self.expr(&e)),
            group: self.list(core.groupby()),
            having: core.having().map(|e| self.expr(&e)),
            ..SelectCore::with_columns(columns, 0..0)
        };
        if let Some(windows) = core.window_clause() {
            converted.windows = self.children(windows.node_id().into());
        }
        if let Some(source) = core.from_clause() {
            self.source(&source, &mut converted.from);
        }
        self.ordered(Body::Core(Box::new(converted)), core.orderby(), core.limit_clause())
    }

    fn order_terms(&self, order: Option<sq::OrderByList<'t>>) -> Vec<OrderTerm> {
        let terms = order.into_iter().flat_map(|list| list.iter().collect::<Vec<_>>());
        let order = terms.map(|term| OrderTerm {
            expr: self.expr(&term.expr().unwrap()),
            descending: matches!(term.sort_order(), sq::SortOrder::Desc),
            nulls_first: match term.nulls_order() {
                sq::NullsOrder::None => None,
                sq::NullsOrder::First => Some(true),
                sq::NullsOrder::Last => Some(false),
            },
        });
        order.collect()
    }

    fn window(&self, over: &sq::WindowDef<'t>) -> WindowSpec {
        WindowSpec {
            partition: self.list(over.partition_by()),
            order: self.order_terms(over.orderby()),
            frame: over.frame().map_or(Vec::new(), |frame| self.children(frame.node_id().into())),
            has_base: !over.ref_window_name().is_empty() || !over.base_window_name().is_empty(),
        }
    }

    fn ordered(
        &self,
        body: Body,
        order: Option<sq::OrderByList<'t>>,
        limit: Option<sq::LimitClause<'t>>,
    ) -> Query {
        Query {
            span: 0..0,
            with: Vec::new(),
            body,
            order: self.order_terms(order),
            limit: limit.and_then(|l| l.limit()).map(|e| self.expr(&e)),
            offset: limit.and_then(|l| l.offset()).map(|e| self.expr(&e)),
        }
    }

    fn column(&self, column: &sq::ResultColumn<'t>) -> ResultColumn {
        let star = column.flags().star();
        ResultColumn {
            expr: column.expr().filter(|_| !star).map(|e| self.expr(&e)),
            star_table: None,
            alias: column.alias().map(name),
            source_text: String::new(),
            span: 0..0,
        }
    }

    fn source(&self, source: &sq::TableSource<'t>, into: &mut Vec<FromItem>) {
        let (source, name) = match source {
            sq::TableSource::TableRef(table) => {
                let own = unquoted(table.table_name());
                let source = if table.has_parens() {
                    FromSource::Function { name: own.clone(), args: self.list(table.args()) }
                } else {
                    let schema = Some(unquoted(table.schema())).filter(|s| !s.is_empty());
                    FromSource::Table { schema, name: own.clone(), span: 0..0 }
                };
                (source, table.alias().map_or(Some(own), |alias| Some(name(alias))))
            }
            sq::TableSource::SubqueryTableSource(sub) => {
                let query = self.query(&sub.select().unwrap());
                (FromSource::Query(Box::new(query)), sub.alias().map(name))
            }
            sq::TableSource::ParenTableSource(paren) => {
                let mut inner = Vec::new();
                self.source(&paren.source().unwrap(), &mut inner);
                (FromSource::Join(inner), paren.alias().map(name))
            }
            sq::TableSource::JoinPrefix(prefix) => {
                return self.source(&prefix.source().unwrap(), into);
            }
            sq::TableSource::JoinClause(join) => {
                let left = join.left().unwrap();
                self.source(&left, into);
                let at = into.len();
                self.source(&join.right().unwrap(), into);
                // The type is stored in the join itself or in the prefix on its left.
                let prefix = match left {
                    sq::TableSource::JoinPrefix(prefix) => Some(prefix.join_type()),
                    _ => None,
                };
                for (kind, natural) in
                    [Some(join.join_type()), prefix].into_iter().flatten().map(join_kind)
                {
                    into[at].natural |= natural;
                    if kind != JoinKind::Inner {
                        into[at].join = kind;
                    }
                }
                into[at].on = join.on_expr().map(|e| self.expr(&e));
                into[at].using = column_names(join.using_columns());
                return;
            }
        };
        into.push(FromItem::new(source, name, JoinKind::Inner, 0..0));
    }

    fn expr(&self, expr: &sq::Expr<'t>) -> Expr {
        let one = |e: Option<sq::Expr<'t>>| Box::new(self.expr(&e.unwrap()));
        let kind = match expr {
            sq::Expr::BinaryExpr(binary) => {
                let (left, right) = (one(binary.left()), one(binary.right()));
                match binary.op() {
                    sq::BinaryOp::And => ExprKind::And(match left.kind {
                        ExprKind::And(parts) => [parts, vec![*right]].concat(),
                        _ => vec![*left, *right],
                    }),
                    sq::BinaryOp::Or => ExprKind::Or(match left.kind {
                        ExprKind::Or(parts) => [parts, vec![*right]].concat(),
                        _ => vec![*left, *right],
                    }),
                    op => match sign(op) {
                        sign @ ("=" | "<>" | "<" | "<=" | ">" | ">=") => {
                            ExprKind::Compare(sign, left, right)
                        }
                        sign => ExprKind::Operation(ExprOperator::Infix(sign), vec![*left, *right]),
                    },
                }
            }
            sq::Expr::UnaryExpr(unary) => match unary.op() {
                sq::UnaryOp::Not => ExprKind::Not(one(unary.operand())),
                op => {
                    let sign = match op {
                        sq::UnaryOp::Minus => "-",
                        sq::UnaryOp::BitNot => "~",
                        _ => "+",
                    };
                    ExprKind::Operation(ExprOperator::Prefix(sign), vec![*one(unary.operand())])
                }
            },
            sq::Expr::IsExpr(is) => match is.op() {
                sq::IsOp::IsNull | sq::IsOp::NotNull | sq::IsOp::NotNullSpaced => {
                    ExprKind::Operation(ExprOperator::NullTest, vec![*one(is.left())])
                }
                op => {
                    let not = matches!(op, sq::IsOp::IsNot | sq::IsOp::IsDistinct);
                    let sign = if not { "IS NOT" } else { "IS" };
                    ExprKind::Compare(sign, one(is.left()), one(is.right()))
                }
            },
            sq::Expr::ParenExpr(paren) => ExprKind::Paren(one(paren.expr())),
            sq::Expr::CastExpr(cast) => {
                ExprKind::Cast(one(cast.expr()), cast.type_name().trim().to_owned())
            }
            sq::Expr::Literal(_) => ExprKind::Literal,
            sq::Expr::ColumnRef(column) => ExprKind::Column {
                table: Some(unquoted(column.table())).filter(|t| !t.is_empty()),
                column: unquoted(column.column()),
            },
            sq::Expr::CaseExpr(case) => ExprKind::Case {
                operand: case.operand().map(|e| one(Some(e))),
                whens: (case.whens().unwrap().iter())
                    .map(|when| (*one(when.when_expr()), *one(when.then_expr())))
                    .collect(),
                otherwise: case.else_expr().map(|e| one(Some(e))),
            },
            sq::Expr::FunctionCall(function) => {
                let (filter, over) = (function.filter_clause(), function.over_clause());
                let has_modifier = function.flags().distinct();
                let id = function.node_id().into();
                self.function(function.func_name(), has_modifier, (filter, over), id)
            }
            sq::Expr::AggregateFunctionCall(function) => {
                let (filter, over) = (function.filter_clause(), function.over_clause());
                let has_modifier = function.flags().distinct() || function.orderby().is_some();
                let id = function.node_id().into();
                self.function(function.func_name(), has_modifier, (filter, over), id)
            }
            sq::Expr::ExistsExpr(exists) => {
                ExprKind::Exists(Box::new(self.query(&exists.select().unwrap())))
            }
            sq::Expr::SubqueryExpr(sub) => {
                ExprKind::Scalar(Box::new(self.query(&sub.select().unwrap())))
            }
            sq::Expr::InExpr(within) => {
                let (mut list, mut query) = (Vec::new(), None);
                match within.source() {
                    Some(sq::InExprSource::ExprList(exprs)) => list = self.list(Some(exprs)),
                    Some(sq::InExprSource::SubqueryExpr(sub)) => {
                        query = sub.select().map(|s| Box::new(self.query(&s)));
                    }
                    Some(source) => {
                        match sq::Select::from_result(self.tree, source.node_id().into()) {
                            Some(select) => query = Some(Box::new(self.query(&select))),
                            None => list = self.children(source.node_id().into()),
                        }
                    }
                    None => {}
                }
                let (negated, operand) = (within.negated(), one(within.operand()));
                ExprKind::In { negated, operand, list, query, is_answer: false }
            }
            other => {
                let operator = match other {
                    sq::Expr::CollateExpr(c) => ExprOperator::Collate(unquoted(c.collation())),
                    sq::Expr::BetweenExpr(_) => ExprOperator::Between,
                    sq::Expr::LikeExpr(like) => ExprOperator::Match(match like.keyword() {
                        sq::LikeKeyword::Like => MatchOperator::Like,
                        sq::LikeKeyword::Glob => MatchOperator::Glob,
                        sq::LikeKeyword::Match => MatchOperator::Match,
                        sq::LikeKeyword::Regexp => MatchOperator::Regexp,
                    }),
                    sq::Expr::RowValue(_) => ExprOperator::Row,
                    _ => ExprOperator::Unknown,
                };
                ExprKind::Operation(operator, self.children(other.node_id().into()))
            }
        };
        Expr { span: 0..0, kind }
    }

    /// Converts a function; its arguments include the expressions of ORDER BY and OVER.
    fn function(
        &self,
        name: &str,
        has_modifier: bool,
        (filter, over): (Option<sq::Expr<'t>>, Option<sq::WindowDef<'t>>),
        id: AnyNodeId,
    ) -> ExprKind {
        let filter_id = filter.as_ref().map(|e| AnyNodeId::from(e.node_id()));
        let over_id = over.as_ref().map(|over| AnyNodeId::from(over.node_id()));
        let args = self.children_except(id, &[filter_id, over_id]);
        let window = over.map(|over| Box::new(self.window(&over)));
        let filter = filter.map(|e| Box::new(self.expr(&e)));
        let name = unquoted(name).to_lowercase();
        ExprKind::Function { name, window, has_modifier, filter, args }
    }

    fn list(&self, list: Option<sq::ExprList<'t>>) -> Vec<Expr> {
        list.iter().flat_map(sq::ExprList::iter).map(|e| self.expr(&e)).collect()
    }

    fn children(&self, id: AnyNodeId) -> Vec<Expr> {
        self.children_except(id, &[])
    }

    /// Converts all expressions directly inside a node.
    fn children_except(&self, id: AnyNodeId, skipped: &[Option<AnyNodeId>]) -> Vec<Expr> {
        let mut found = Vec::new();
        let list = self.tree.list_children(id).unwrap_or_default();
        let children = self.tree.child_node_ids(id).chain(list.iter().copied());
        for child in children.filter(|child| !skipped.contains(&Some(*child))) {
            if let Some(expr) = sq::Expr::from_result(self.tree, child) {
                found.push(self.expr(&expr));
            } else if let Some(select) = sq::Select::from_result(self.tree, child) {
                let kind = ExprKind::Scalar(Box::new(self.query(&select)));
                found.push(Expr { span: 0..0, kind });
            } else {
                found.extend(self.children_except(child, skipped));
            }
        }
        found
    }
}

/// Returns the name in a column of the parse tree, which may still be quoted.
fn unquoted(name: &str) -> String {
    let name = name.trim();
    if name.starts_with(['"', '[', '`']) { unquote(name) } else { name.replace("\"\"", "\"") }
}

fn name(name: sq::Name<'_>) -> String {
    match name {
        sq::Name::IdentName(ident) => unquoted(ident.source()),
        sq::Name::Error(_) => String::new(),
    }
}

fn column_names(list: Option<sq::ExprList<'_>>) -> Vec<String> {
    let exprs = list.iter().flat_map(sq::ExprList::iter);
    let column = |expr| match expr {
        sq::Expr::ColumnRef(column) => Some(unquoted(column.column())),
        _ => None,
    };
    exprs.filter_map(column).collect()
}

/// Returns a join's type and whether it is NATURAL.
fn join_kind(join: sq::JoinType) -> (JoinKind, bool) {
    match join {
        sq::JoinType::Comma | sq::JoinType::Inner | sq::JoinType::Cross => (JoinKind::Inner, false),
        sq::JoinType::Left => (JoinKind::Left, false),
        sq::JoinType::Right | sq::JoinType::Full => (JoinKind::Outer, false),
        sq::JoinType::NaturalInner | sq::JoinType::NaturalCross => (JoinKind::Inner, true),
        sq::JoinType::NaturalLeft => (JoinKind::Left, true),
        sq::JoinType::NaturalRight | sq::JoinType::NaturalFull => (JoinKind::Outer, true),
    }
}

fn sign(op: sq::BinaryOp) -> &'static str {
    match op {
        sq::BinaryOp::Eq | sq::BinaryOp::EqDouble => "=",
        sq::BinaryOp::Ne | sq::BinaryOp::NeAngle => "<>",
        sq::BinaryOp::Lt => "<",
        sq::BinaryOp::Le => "<=",
        sq::BinaryOp::Gt => ">",
        sq::BinaryOp::Ge => ">=",
        sq::BinaryOp::Plus => "+",
        sq::BinaryOp::Minus => "-",
        sq::BinaryOp::Star => "*",
        sq::BinaryOp::Slash => "/",
        sq::BinaryOp::Rem => "%",
        sq::BinaryOp::BitAnd => "&",
        sq::BinaryOp::BitOr => "|",
        sq::BinaryOp::Lshift => "<<",
        sq::BinaryOp::Rshift => ">>",
        sq::BinaryOp::Concat => "||",
        sq::BinaryOp::Ptr => "->",
        sq::BinaryOp::Ptr2 => "->>",
        _ => "?",
    }
}
