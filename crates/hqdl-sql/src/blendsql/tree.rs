//! Syntax tree of a query, limited to the constructs that the rewriter needs. Each part has its
//! position in the text. Other constructs are generic nodes with children.

use std::ops::Range;

use hqdl_values::sql::quote_name;

/// Byte range in the query's text.
pub type Span = Range<usize>;

/// Query of a view.
#[derive(Debug, Clone)]
pub struct ViewDefinition {
    /// Text that the query's spans refer to.
    pub sql: String,
    /// Parsed query.
    pub query: Query,
}

/// A SELECT with its CTEs, a compound SELECT, or VALUES.
#[derive(Debug, Clone)]
pub struct Query {
    /// Byte range from WITH or SELECT to the end.
    pub span: Span,
    /// Common table expressions.
    pub with: Vec<Cte>,
    /// SELECT, compound or VALUES.
    pub body: Body,
    /// ORDER BY of the compound or of the single SELECT.
    pub order: Vec<OrderTerm>,
    /// Expression of the LIMIT clause.
    pub limit: Option<Expr>,
    /// Expression of the OFFSET clause.
    pub offset: Option<Expr>,
}

/// A common table expression.
#[derive(Debug, Clone)]
pub struct Cte {
    /// CTE name.
    pub name: String,
    /// Column names declared after the CTE name.
    pub columns: Vec<String>,
    /// Query of the CTE.
    pub query: Query,
    /// Whether the WITH clause is RECURSIVE.
    pub recursive: bool,
}

/// Body of a query.
#[derive(Debug, Clone)]
pub enum Body {
    /// A single SELECT … FROM … WHERE ….
    Core(Box<SelectCore>),
    /// Two queries combined by an operator.
    Compound(CompoundOperator, Box<Query>, Box<Query>),
    /// All values, row by row, and the number of columns.
    Values(Vec<Expr>, usize),
}

/// Operator of a compound SELECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompoundOperator {
    /// Rows of both sides, without duplicates.
    Union,
    /// All rows of both sides.
    UnionAll,
    /// Rows that both sides contain.
    Intersect,
    /// Rows of the left side that the right side does not contain.
    Except,
}

impl CompoundOperator {
    /// Returns the operator as SQL.
    #[must_use]
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Union => "UNION",
            Self::UnionAll => "UNION ALL",
            Self::Intersect => "INTERSECT",
            Self::Except => "EXCEPT",
        }
    }

    /// Returns true if the result contains the rows of both sides.
    #[must_use]
    pub fn is_union(self) -> bool {
        matches!(self, Self::Union | Self::UnionAll)
    }
}

/// A single SELECT of a query.
#[derive(Debug, Clone)]
pub struct SelectCore {
    /// Byte range from SELECT to the last clause.
    pub span: Span,
    /// Whether the SELECT is SELECT DISTINCT.
    pub distinct: bool,
    /// Expressions of DISTINCT ON, in `SUQL`.
    pub distinct_on: Vec<Expr>,
    /// Result columns.
    pub columns: Vec<ResultColumn>,
    /// FROM clause, in text order.
    pub from: Vec<FromItem>,
    /// Condition of the WHERE clause.
    pub filter: Option<Expr>,
    /// Terms of the GROUP BY clause.
    pub group: Vec<Expr>,
    /// Condition of the HAVING clause.
    pub having: Option<Expr>,
    /// Expressions in the WINDOW clause.
    pub windows: Vec<Expr>,
    /// End offset of the FROM clause, where a WHERE can be inserted.
    pub from_end: usize,
    /// End offset of the clauses from SELECT to WINDOW.
    pub rows_end: usize,
}

/// A result column of a SELECT.
#[derive(Debug, Clone)]
pub struct ResultColumn {
    /// Expression; `None` for a star.
    pub expr: Option<Expr>,
    /// Table of `t.*`.
    pub star_table: Option<String>,
    /// Alias after AS.
    pub alias: Option<String>,
    /// Source text of the expression, which is the column's name if no other name applies.
    pub source_text: String,
    /// Byte range in the text.
    pub span: Span,
}

/// One entry of a FROM clause.
#[derive(Debug, Clone)]
pub struct FromItem {
    /// Table, function, subquery or join.
    pub source: FromSource,
    /// Name of the entry in the query: its alias or table name.
    pub name: Option<String>,
    /// Type of the join with the preceding entries.
    pub join: JoinKind,
    /// ON clause of that join.
    pub on: Option<Expr>,
    /// Column names in the USING clause.
    pub using: Vec<String>,
    /// Whether the join is NATURAL.
    pub natural: bool,
    /// Column aliases after the alias, in `SUQL`.
    pub column_names: Vec<(String, Span)>,
    /// Byte range with the aliases, without the join's keywords and condition.
    pub span: Span,
}

/// Source of a FROM entry.
#[derive(Debug, Clone)]
pub enum FromSource {
    /// A table, view or CTE.
    Table {
        /// Schema, if the query names it.
        schema: Option<String>,
        /// Table name.
        name: String,
        /// Byte range, including the alias.
        span: Span,
    },
    /// A table-valued function.
    Function {
        /// Function name.
        name: String,
        /// Arguments.
        args: Vec<Expr>,
    },
    /// A subquery.
    Query(Box<Query>),
    /// A join in parentheses. Columns can be qualified with its name only if it has an alias.
    Join(Vec<FromItem>),
}

/// Join type, with only the distinctions that matter to the rewriter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Comma, INNER or CROSS join, or the first entry.
    Inner,
    /// LEFT JOIN
    Left,
    /// RIGHT JOIN or FULL JOIN
    Outer,
}

/// A term of ORDER BY.
#[derive(Debug, Clone)]
pub struct OrderTerm {
    /// Sort expression.
    pub expr: Expr,
    /// Whether the term is DESC.
    pub descending: bool,
    /// NULLS FIRST or NULLS LAST; `None` if not specified.
    pub nulls_first: Option<bool>,
}

/// Window of a function. A reference to a named window has no expressions.
#[derive(Debug, Clone, Default)]
pub struct WindowSpec {
    /// Terms of PARTITION BY.
    pub partition: Vec<Expr>,
    /// Terms of ORDER BY.
    pub order: Vec<OrderTerm>,
    /// Expressions in the bounds of the frame.
    pub frame: Vec<Expr>,
    /// Whether the window is based on a named window, which can contain further clauses.
    pub has_base: bool,
}

/// An expression with its position.
#[derive(Debug, Clone)]
pub struct Expr {
    /// Byte range in the text.
    pub span: Span,
    /// Kind of expression.
    pub kind: ExprKind,
}

/// Kind of an expression, with its operands.
#[derive(Debug, Clone)]
pub enum ExprKind {
    /// `a AND b AND …`
    And(Vec<Expr>),
    /// `a OR b OR …`
    Or(Vec<Expr>),
    /// `NOT a`
    Not(Box<Expr>),
    /// `(a)`
    Paren(Box<Expr>),
    /// A column name.
    Column {
        /// Table qualifier.
        table: Option<String>,
        /// Column name.
        column: String,
    },
    /// A call, as its number and its arguments.
    Call(usize, Vec<Expr>),
    /// A CASE expression.
    Case {
        /// Operand that the WHEN values are compared with.
        operand: Option<Box<Expr>>,
        /// Condition and result of each WHEN branch.
        whens: Vec<(Expr, Expr)>,
        /// Result of the ELSE branch.
        otherwise: Option<Box<Expr>>,
    },
    /// A function call.
    Function {
        /// Function name in lower case.
        name: String,
        /// OVER clause.
        window: Option<Box<WindowSpec>>,
        /// Whether DISTINCT or ORDER BY applies to the arguments.
        has_modifier: bool,
        /// Condition of `FILTER (WHERE …)`.
        filter: Option<Box<Expr>>,
        /// Arguments, followed by the terms of their ORDER BY.
        args: Vec<Expr>,
    },
    /// `EXISTS (…)`
    Exists(Box<Query>),
    /// A scalar subquery.
    Scalar(Box<Query>),
    /// `x IN (…)` or `x NOT IN (…)`, with a list or a query.
    In {
        /// Whether the operator is NOT IN.
        negated: bool,
        /// Left operand.
        operand: Box<Expr>,
        /// Expressions of the list.
        list: Vec<Expr>,
        /// Query on the right-hand side.
        query: Option<Box<Query>>,
        /// Whether the list is a single call without parentheses, whose answer is the list, or an
        /// array.
        is_answer: bool,
    },
    /// A literal value.
    Literal,
    /// A comparison: `=`, `<>`, `<`, `<=`, `>`, `>=`, `IS` or `IS NOT`. `IS DISTINCT FROM` becomes
    /// `IS NOT`.
    Compare(&'static str, Box<Expr>, Box<Expr>),
    /// CAST with the type name.
    Cast(Box<Expr>, String),
    /// Any other operation with its operands.
    Operation(ExprOperator, Vec<Expr>),
}

/// Operator of an [`ExprKind::Operation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExprOperator {
    /// A prefix operator: `+`, `-` or `~`.
    Prefix(&'static str),
    /// A binary operator: `+`, `||`, `->`, `<<`, ….
    Infix(&'static str),
    /// COLLATE with the collation's name.
    Collate(String),
    /// `IS NULL` or `IS NOT NULL`, in any syntax.
    NullTest,
    /// BETWEEN or NOT BETWEEN: the value and both bounds.
    Between,
    /// LIKE, GLOB, MATCH or REGEXP, optionally with NOT: the value, the pattern and the ESCAPE
    /// character.
    Match(MatchOperator),
    /// A row value.
    Row,
    /// `ANY (…)`, `SOME (…)` or `ALL (…)`: an array or a query.
    Quantified,
    /// `ARRAY[…]` or `ARRAY (SELECT …)`: the elements or the query.
    Array,
    /// `x[1]` or `x[1:2]`: the array and the bounds.
    Subscript,
    /// `t.*` as a value: the row of the table.
    TableRow(String),
    /// A parameter, RAISE, or a function with unusual syntax.
    Unknown,
}

/// Pattern operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchOperator {
    /// `LIKE`, with the wildcards `%` and `_`, and any pattern operator of `PostgreSQL`.
    Like,
    /// `GLOB`, with the wildcards `*` and `?`.
    Glob,
    /// `MATCH`, for full-text search.
    Match,
    /// `REGEXP`, for regular expressions.
    Regexp,
}

impl Query {
    /// Creates a query that consists of one SELECT.
    #[must_use]
    pub fn from_core(core: SelectCore) -> Self {
        Self {
            span: core.span.clone(),
            with: Vec::new(),
            body: Body::Core(Box::new(core)),
            order: Vec::new(),
            limit: None,
            offset: None,
        }
    }
}

impl Query {
    /// Creates `SELECT * FROM source`.
    #[must_use]
    pub fn select_all(source: FromSource, name: Option<String>, span: Span) -> Self {
        let column = ResultColumn {
            expr: None,
            star_table: None,
            alias: None,
            source_text: "*".to_owned(),
            span: span.clone(),
        };
        let item = FromItem::new(source, name, JoinKind::Inner, span.clone());
        let from_end = span.end;
        let core = SelectCore::with_columns(vec![column], span);
        Self::from_core(SelectCore { from: vec![item], from_end, ..core })
    }
}

impl SelectCore {
    /// Creates a SELECT that has only result columns.
    #[must_use]
    pub fn with_columns(columns: Vec<ResultColumn>, span: Span) -> Self {
        Self {
            rows_end: span.end,
            span,
            distinct: false,
            distinct_on: Vec::new(),
            columns,
            from: Vec::new(),
            filter: None,
            group: Vec::new(),
            having: None,
            windows: Vec::new(),
            from_end: 0,
        }
    }
}

impl WindowSpec {
    /// Returns the expressions in text order.
    pub fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let order = self.order.iter().map(|term| &term.expr);
        self.partition.iter().chain(order).chain(&self.frame)
    }
}

impl Expr {
    /// Returns true if the expression is a condition, whose value is always 0, 1 or NULL.
    #[must_use]
    pub fn is_condition(&self) -> bool {
        match &self.kind {
            ExprKind::Paren(inner) => inner.is_condition(),
            ExprKind::And(_)
            | ExprKind::Or(_)
            | ExprKind::Not(_)
            | ExprKind::Compare(..)
            | ExprKind::In { .. }
            | ExprKind::Exists(_) => true,
            ExprKind::Operation(operator, _) => matches!(
                operator,
                ExprOperator::NullTest | ExprOperator::Between | ExprOperator::Match(_)
            ),
            _ => false,
        }
    }

    /// Returns the direct child expressions and the subquery.
    #[must_use]
    pub fn children(&self) -> (Vec<&Expr>, Option<&Query>) {
        match &self.kind {
            ExprKind::And(all) | ExprKind::Or(all) | ExprKind::Operation(_, all) => {
                (all.iter().collect(), None)
            }
            ExprKind::Call(_, args) => (args.iter().collect(), None),
            ExprKind::Not(operand) | ExprKind::Paren(operand) | ExprKind::Cast(operand, _) => {
                (vec![operand], None)
            }
            ExprKind::Column { .. } | ExprKind::Literal => (Vec::new(), None),
            ExprKind::Case { operand, whens, otherwise } => {
                let mut all: Vec<&Expr> = operand.iter().map(AsRef::as_ref).collect();
                whens.iter().for_each(|(when, then)| all.extend([when, then]));
                all.extend(otherwise.iter().map(AsRef::as_ref));
                (all, None)
            }
            // `Resolver::visit_expr` expects FILTER after the arguments.
            ExprKind::Function { filter, args, window, .. } => {
                let own = args.iter().chain(filter.iter().map(AsRef::as_ref));
                (own.chain(window.iter().flat_map(|w| w.exprs())).collect(), None)
            }
            ExprKind::Exists(query) | ExprKind::Scalar(query) => (Vec::new(), Some(query)),
            ExprKind::In { operand, list, query, .. } => {
                let mut all = vec![operand.as_ref()];
                all.extend(list);
                (all, query.as_deref())
            }
            ExprKind::Compare(_, left, right) => (vec![left, right], None),
        }
    }

    /// Returns true if the expression references a column outside of subqueries.
    fn references_column(&self) -> bool {
        matches!(self.kind, ExprKind::Column { .. })
            || self.children().0.into_iter().any(Self::references_column)
    }

    /// Returns true if the expression, including its subqueries, contains a call.
    #[must_use]
    pub fn has_call(&self) -> bool {
        if matches!(self.kind, ExprKind::Call(..)) {
            return true;
        }
        let (exprs, query) = self.children();
        exprs.into_iter().any(Self::has_call) || query.is_some_and(Query::has_call)
    }

    /// Visits this expression and all expressions inside it, including expressions in subqueries.
    pub fn visit_exprs<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        let (exprs, query) = self.children();
        exprs.into_iter().for_each(|e| e.visit_exprs(visit));
        if let Some(query) = query {
            query.visit_exprs(visit);
        }
    }
}

impl SelectCore {
    /// Returns true if the SELECT has a FROM clause and at least one result that references no
    /// column. If `SQLite` flattens the SELECT into the enclosing one, it can evaluate that result
    /// before a row is read.
    #[must_use]
    pub fn has_row_independent_result(&self) -> bool {
        !self.from.is_empty()
            && self.columns.iter().filter_map(|c| c.expr.as_ref()).any(|e| !e.references_column())
    }
}

impl SelectCore {
    /// Returns true if a join of the FROM clause is RIGHT or FULL.
    #[must_use]
    pub fn has_outer_join(&self) -> bool {
        fn is_outer(item: &FromItem) -> bool {
            item.join == JoinKind::Outer
                || matches!(&item.source, FromSource::Join(items) if items.iter().any(is_outer))
        }
        self.from.iter().any(is_outer)
    }
}

impl Query {
    /// Returns true if the query contains a call at any depth.
    #[must_use]
    pub fn has_call(&self) -> bool {
        let mut found = false;
        self.visit_exprs(&mut |e| found |= matches!(e.kind, ExprKind::Call(..)));
        found
    }

    /// Visits every common table expression in the query.
    pub fn visit_ctes<'e>(&'e self, visit: &mut dyn FnMut(&'e Cte)) {
        for cte in &self.with {
            visit(cte);
            cte.query.visit_ctes(visit);
        }
        match &self.body {
            Body::Core(core) => core.from.iter().for_each(|i| i.visit_ctes(visit)),
            Body::Compound(_, left, right) => {
                left.visit_ctes(visit);
                right.visit_ctes(visit);
            }
            Body::Values(..) => {}
        }
        // CTEs of subqueries in expressions.
        let mut nested: Vec<&Query> = Vec::new();
        self.visit_exprs(&mut |e| nested.extend(e.children().1.filter(|q| !q.with.is_empty())));
        nested.iter().flat_map(|q| &q.with).for_each(visit);
    }

    /// Visits the expressions of the CTEs and of the FROM clause.
    pub fn visit_source_exprs<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        self.with.iter().for_each(|c| c.query.visit_exprs(visit));
        match &self.body {
            Body::Core(core) => core.from.iter().for_each(|i| i.visit_exprs(visit)),
            Body::Compound(_, left, right) => {
                left.visit_source_exprs(visit);
                right.visit_source_exprs(visit);
            }
            Body::Values(..) => {}
        }
    }

    /// Visits this query and every query inside it.
    pub fn visit_queries<'e>(&'e self, visit: &mut dyn FnMut(&'e Query)) {
        self.visit_own_queries(visit);
        self.visit_exprs(&mut |e| {
            if let Some(inner) = e.children().1 {
                inner.visit_own_queries(visit);
            }
        });
    }

    /// Visits this query and the queries of its WITH and FROM clauses.
    fn visit_own_queries<'e>(&'e self, visit: &mut dyn FnMut(&'e Query)) {
        visit(self);
        self.with.iter().for_each(|cte| cte.query.visit_own_queries(visit));
        match &self.body {
            Body::Core(core) => {
                core.from
                    .iter()
                    .for_each(|i| i.visit_subqueries(&mut |q| q.visit_own_queries(visit)));
            }
            Body::Compound(_, left, right) => {
                left.visit_own_queries(visit);
                right.visit_own_queries(visit);
            }
            Body::Values(..) => {}
        }
    }

    /// Visits the name of every table that the query reads.
    pub fn visit_tables<'e>(&'e self, visit: &mut dyn FnMut(&'e str)) {
        self.visit_from_items(&mut |item| {
            if let FromSource::Table { name, .. } = &item.source {
                visit(name);
            }
        });
    }

    /// Visits every FROM entry in the query.
    pub fn visit_from_items<'e>(&'e self, visit: &mut dyn FnMut(&'e FromItem)) {
        self.visit_own_from_items(visit);
        self.visit_exprs(&mut |e| {
            if let Some(inner) = e.children().1 {
                inner.visit_own_from_items(visit);
            }
        });
    }

    /// Visits the FROM entries of this query, except entries in subqueries of expressions.
    fn visit_own_from_items<'e>(&'e self, visit: &mut dyn FnMut(&'e FromItem)) {
        self.with.iter().for_each(|cte| cte.query.visit_own_from_items(visit));
        match &self.body {
            Body::Core(core) => core.from.iter().for_each(|i| i.visit_own_from_items(visit)),
            Body::Compound(_, left, right) => {
                left.visit_own_from_items(visit);
                right.visit_own_from_items(visit);
            }
            Body::Values(..) => {}
        }
    }

    /// Visits every expression in the query.
    pub fn visit_exprs<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        self.with.iter().for_each(|c| c.query.visit_exprs(visit));
        match &self.body {
            Body::Core(core) => {
                core.from.iter().for_each(|i| i.visit_exprs(visit));
                core.columns
                    .iter()
                    .filter_map(|c| c.expr.as_ref())
                    .for_each(|e| e.visit_exprs(visit));
                core.filter.iter().for_each(|e| e.visit_exprs(visit));
                core.group.iter().for_each(|e| e.visit_exprs(visit));
                core.having.iter().for_each(|e| e.visit_exprs(visit));
                core.windows.iter().for_each(|e| e.visit_exprs(visit));
            }
            Body::Compound(_, left, right) => {
                left.visit_exprs(visit);
                right.visit_exprs(visit);
            }
            Body::Values(exprs, _) => exprs.iter().for_each(|e| e.visit_exprs(visit)),
        }
        self.order.iter().for_each(|o| o.expr.visit_exprs(visit));
        self.limit.iter().chain(&self.offset).for_each(|e| e.visit_exprs(visit));
    }
}

impl FromItem {
    /// Creates an entry without a condition.
    #[must_use]
    pub fn new(source: FromSource, name: Option<String>, join: JoinKind, span: Span) -> Self {
        let (on, using, column_names) = (None, Vec::new(), Vec::new());
        Self { source, name, join, on, using, natural: false, column_names, span }
    }

    /// Returns the table that the entry reads, as SQL; `None` for a subquery, a function or a join.
    #[must_use]
    pub fn table_sql(&self) -> Option<String> {
        let FromSource::Table { schema, name, .. } = &self.source else { return None };
        let name = quote_name(name);
        Some(schema.as_ref().map_or(name.clone(), |s| format!("{}.{name}", quote_name(s))))
    }

    /// Visits the direct subqueries of this entry.
    pub fn visit_subqueries<'e>(&'e self, visit: &mut dyn FnMut(&'e Query)) {
        match &self.source {
            FromSource::Query(query) => visit(query),
            FromSource::Join(items) => items.iter().for_each(|i| i.visit_subqueries(visit)),
            FromSource::Table { .. } | FromSource::Function { .. } => {}
        }
    }

    fn visit_own_from_items<'e>(&'e self, visit: &mut dyn FnMut(&'e FromItem)) {
        visit(self);
        match &self.source {
            FromSource::Table { .. } | FromSource::Function { .. } => {}
            FromSource::Query(query) => query.visit_own_from_items(visit),
            FromSource::Join(items) => items.iter().for_each(|i| i.visit_own_from_items(visit)),
        }
    }

    fn visit_ctes<'e>(&'e self, visit: &mut dyn FnMut(&'e Cte)) {
        match &self.source {
            FromSource::Query(query) => query.visit_ctes(visit),
            FromSource::Join(items) => items.iter().for_each(|i| i.visit_ctes(visit)),
            FromSource::Table { .. } | FromSource::Function { .. } => {}
        }
    }

    /// Visits every expression of this entry.
    pub fn visit_exprs<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        match &self.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => args.iter().for_each(|e| e.visit_exprs(visit)),
            FromSource::Query(query) => query.visit_exprs(visit),
            FromSource::Join(items) => items.iter().for_each(|i| i.visit_exprs(visit)),
        }
        self.on.iter().for_each(|e| e.visit_exprs(visit));
    }
}
