//! Converts the parser's tree into [ours](hqdl_sql::blendsql::tree): expressions.

use syntaqlite_syntax::any::AnyNodeId;
use syntaqlite_syntax::nodes as sq;
use syntaqlite_syntax::typed::GrammarNodeType;

use hqdl_sql::blendsql::SqlError;
use crate::oracle::walk::{TreeWalker, broken_tree_error, unquote_name};
use hqdl_sql::blendsql::tree::{Expr, ExprKind, ExprOperator, MatchOperator, Span};

impl<'t> TreeWalker<'t, '_> {
    pub(super) fn convert_expr(&self, expr: &sq::Expr<'t>) -> Result<Expr, SqlError> {
        self.with_depth_limit(|| self.node_span(expr.node_id()), || self.convert_expr_node(expr))
    }

    fn convert_expr_node(&self, expr: &sq::Expr<'t>) -> Result<Expr, SqlError> {
        let span = self.node_span(expr.node_id());
        let convert_required = |e: Option<sq::Expr<'t>>| match e {
            Some(e) => self.convert_expr(&e).map(Box::new),
            None => Err(broken_tree_error(&span)),
        };
        let kind = match expr {
            sq::Expr::BinaryExpr(binary) => {
                let (left, right) =
                    (convert_required(binary.left())?, convert_required(binary.right())?);
                match binary.op() {
                    sq::BinaryOp::And => {
                        ExprKind::And(flatten_operands(*left, *right, |kind| match kind {
                            ExprKind::And(parts) => Ok(parts),
                            other => Err(other),
                        }))
                    }
                    sq::BinaryOp::Or => {
                        ExprKind::Or(flatten_operands(*left, *right, |kind| match kind {
                            ExprKind::Or(parts) => Ok(parts),
                            other => Err(other),
                        }))
                    }
                    op => match comparison_sql(op) {
                        Some(sign) => ExprKind::Compare(sign, left, right),
                        None => ExprKind::Operation(
                            ExprOperator::Infix(infix_sql(op)),
                            vec![*left, *right],
                        ),
                    },
                }
            }
            sq::Expr::UnaryExpr(unary) if matches!(unary.op(), sq::UnaryOp::Not) => {
                ExprKind::Not(convert_required(unary.operand())?)
            }
            sq::Expr::IsExpr(is)
                if !matches!(
                    is.op(),
                    sq::IsOp::IsNull | sq::IsOp::NotNull | sq::IsOp::NotNullSpaced
                ) =>
            {
                let sign = match is.op() {
                    sq::IsOp::IsNot | sq::IsOp::IsDistinct => "IS NOT",
                    _ => "IS",
                };
                ExprKind::Compare(sign, convert_required(is.left())?, convert_required(is.right())?)
            }
            sq::Expr::ParenExpr(paren) => ExprKind::Paren(convert_required(paren.expr())?),
            sq::Expr::CastExpr(cast) => {
                ExprKind::Cast(convert_required(cast.expr())?, cast.type_name().trim().to_owned())
            }
            sq::Expr::Literal(_) => ExprKind::Literal,
            sq::Expr::ColumnRef(column) => return self.convert_column(column, span),
            sq::Expr::CaseExpr(case) => {
                let mut whens = Vec::new();
                for when in case.whens().iter().flat_map(sq::CaseWhenList::iter) {
                    whens.push((
                        *convert_required(when.when_expr())?,
                        *convert_required(when.then_expr())?,
                    ));
                }
                ExprKind::Case {
                    operand: case.operand().map(|e| convert_required(Some(e))).transpose()?,
                    whens,
                    otherwise: case.else_expr().map(|e| convert_required(Some(e))).transpose()?,
                }
            }
            sq::Expr::FunctionCall(function) => ExprKind::Function {
                name: unquote_name(function.func_name()).to_lowercase(),
                window: function.over_clause().is_some(),
                filter: self.convert_filter(function.filter_clause())?,
                args: self.convert_args(function.node_id().into(), function.filter_clause())?,
            },
            sq::Expr::AggregateFunctionCall(function) => ExprKind::Function {
                name: unquote_name(function.func_name()).to_lowercase(),
                window: function.over_clause().is_some(),
                filter: self.convert_filter(function.filter_clause())?,
                args: self.convert_args(function.node_id().into(), function.filter_clause())?,
            },
            sq::Expr::ExistsExpr(exists) => match exists.select() {
                Some(select) => ExprKind::Exists(Box::new(self.convert_query(&select)?)),
                None => return Err(broken_tree_error(&span)),
            },
            sq::Expr::SubqueryExpr(sub) => match sub.select() {
                Some(select) => ExprKind::Scalar(Box::new(self.convert_query(&select)?)),
                None => return Err(broken_tree_error(&span)),
            },
            sq::Expr::InExpr(in_expr) => {
                self.convert_in(in_expr, convert_required(in_expr.operand())?)?
            }
            other => ExprKind::Operation(
                expr_operator(other),
                self.convert_children(other.node_id().into())?,
            ),
        };
        Ok(Expr { span, kind })
    }

    /// Converts `x IN (…)` or `x NOT IN (…)`.
    fn convert_in(
        &self,
        within: &sq::InExpr<'t>,
        operand: Box<Expr>,
    ) -> Result<ExprKind, SqlError> {
        let (mut list, mut query, mut is_answer) = (Vec::new(), None, false);
        match within.source() {
            Some(sq::InExprSource::ExprList(exprs)) => list = self.convert_list(Some(exprs))?,
            Some(sq::InExprSource::SubqueryExpr(sub)) => {
                query = sub.select().map(|s| self.convert_query(&s)).transpose()?;
            }
            Some(source) => {
                let id = source.node_id().into();
                if let Some(select) = sq::Select::from_result(self.tree, id) {
                    query = Some(self.convert_query(&select)?);
                } else if let sq::InExprSource::TableRef(table) = &source
                    && let Some(n) = self.find_placeholder_call(table.table_name())
                {
                    // The parser reads `x IN {{…}}` as `x IN table`.
                    list = vec![self.builder.build_call(n)?];
                    is_answer = true;
                } else {
                    list = self.convert_children(id)?;
                }
            }
            None => {}
        }
        let (negated, query) = (within.negated(), query.map(Box::new));
        Ok(ExprKind::In { negated, operand, list, query, is_answer })
    }

    /// Converts the condition of a FILTER clause; the parser's node covers the whole clause.
    fn convert_filter(&self, clause: Option<sq::Expr<'t>>) -> Result<Option<Box<Expr>>, SqlError> {
        let Some(clause) = clause else { return Ok(None) };
        let mut condition = self.convert_expr(&clause)?;
        condition.span.end =
            condition.span.start + balanced_prefix_len(self.local_text(&condition.span));
        Ok(Some(Box::new(condition)))
    }

    /// Converts a name into a call or a column.
    fn convert_column(&self, column: &sq::ColumnRef<'t>, span: Span) -> Result<Expr, SqlError> {
        let name = unquote_name(column.column());
        if let Some(n) = self.find_placeholder_call(column.column()) {
            return self.builder.build_call(n);
        }
        let table = Some(unquote_name(column.table())).filter(|t| !t.is_empty());
        Ok(Expr { span, kind: ExprKind::Column { table, column: name } })
    }

    /// Converts all expressions in a function call except FILTER.
    fn convert_args(
        &self,
        id: AnyNodeId,
        filter: Option<sq::Expr<'t>>,
    ) -> Result<Vec<Expr>, SqlError> {
        let mut args = self.convert_children(id)?;
        if let Some(filter) = filter {
            let span = self.convert_expr(&filter)?.span;
            args.retain(|a| a.span != span);
        }
        Ok(args)
    }

    /// Returns the number of the call that a placeholder name represents.
    fn find_placeholder_call(&self, name: &str) -> Option<usize> {
        let digits: String =
            name.strip_prefix("_hq")?.chars().take_while(char::is_ascii_digit).collect();
        let at: usize = digits.parse().ok()?;
        let n = *self.masked_calls.get(at)?;
        let placeholder = self.builder.all[n].placeholder(at);
        (placeholder.trim_matches(['(', ')']) == name).then_some(n)
    }

    /// Converts all expressions directly inside a node of another kind.
    pub(super) fn convert_children(
        &self,
        id: AnyNodeId,
    ) -> Result<Vec<Expr>, SqlError> {
        let mut found = Vec::new();
        let list = self.tree.list_children(id).unwrap_or_default();
        for child in self.tree.child_node_ids(id).chain(list.iter().copied()) {
            if let Some(expr) = sq::Expr::from_result(self.tree, child) {
                found.push(self.convert_expr(&expr)?);
            } else if let Some(select) = sq::Select::from_result(self.tree, child) {
                let query = self.convert_query(&select)?;
                found.push(Expr {
                    span: query.span.clone(),
                    kind: ExprKind::Scalar(Box::new(query)),
                });
            } else {
                found.extend(self.convert_children(child)?);
            }
        }
        Ok(found)
    }
}

/// Merges both operands of an AND or OR into one list.
fn flatten_operands(
    left: Expr,
    right: Expr,
    take_operands: impl Fn(ExprKind) -> Result<Vec<Expr>, ExprKind>,
) -> Vec<Expr> {
    let mut all = Vec::new();
    for side in [left, right] {
        match take_operands(side.kind) {
            Ok(inner) => all.extend(inner),
            Err(kind) => all.push(Expr { span: side.span, kind }),
        }
    }
    all
}

/// Returns the operator of an operation that is not binary.
fn expr_operator(expr: &sq::Expr<'_>) -> ExprOperator {
    match expr {
        sq::Expr::UnaryExpr(unary) => ExprOperator::Prefix(match unary.op() {
            sq::UnaryOp::Minus => "-",
            sq::UnaryOp::BitNot => "~",
            sq::UnaryOp::Plus | sq::UnaryOp::Not => "+",
        }),
        sq::Expr::CollateExpr(collate) => ExprOperator::Collate(unquote_name(collate.collation())),
        sq::Expr::IsExpr(_) => ExprOperator::NullTest,
        sq::Expr::BetweenExpr(_) => ExprOperator::Between,
        sq::Expr::LikeExpr(like) => ExprOperator::Match(match like.keyword() {
            sq::LikeKeyword::Like => MatchOperator::Like,
            sq::LikeKeyword::Glob => MatchOperator::Glob,
            sq::LikeKeyword::Match => MatchOperator::Match,
            sq::LikeKeyword::Regexp => MatchOperator::Regexp,
        }),
        sq::Expr::RowValue(_) => ExprOperator::Row,
        _ => ExprOperator::Unknown,
    }
}

/// Returns a binary operator as SQL.
fn infix_sql(op: sq::BinaryOp) -> &'static str {
    match op {
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
        other => comparison_sql(other).unwrap_or_default(),
    }
}

/// Returns a comparison operator as SQL; `None` for other operators.
fn comparison_sql(op: sq::BinaryOp) -> Option<&'static str> {
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

/// Returns the length of the prefix before the first unbalanced `)`, without trailing whitespace;
/// the whole length if the parentheses balance.
fn balanced_prefix_len(text: &str) -> usize {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(end), _) if c == end => quote = None,
            (None, '\'' | '"' | '`') => quote = Some(c),
            (None, '[') => quote = Some(']'),
            (None, '(') => depth += 1,
            (None, ')') if depth == 0 => return text[..at].trim_end().len(),
            (None, ')') => depth -= 1,
            _ => {}
        }
    }
    text.len()
}
