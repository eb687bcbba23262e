//! The structure of a query: what the rewriter must know of it, with the place
//! of every part in the text. What needs no understanding is a node with
//! children.

use std::ops::Range;

/// Bytes of the query's text.
pub type Span = Range<usize>;

/// The query of a view.
#[derive(Debug, Clone)]
pub struct ViewDefinition {
    /// The text that the query's spans refer to.
    pub sql: String,
    /// The query.
    pub query: Query,
}

/// A SELECT with its CTEs, a compound of them, or VALUES.
#[derive(Debug, Clone)]
pub struct Query {
    /// From its WITH or SELECT to its end.
    pub span: Span,
    /// Its common table expressions.
    pub with: Vec<Cte>,
    /// What yields the rows.
    pub body: Body,
    /// ORDER BY of a compound, or of the core.
    pub order: Vec<OrderTerm>,
    /// LIMIT
    pub limit: Option<Expr>,
    /// OFFSET
    pub offset: Option<Expr>,
}

/// A common table expression.
#[derive(Debug, Clone)]
pub struct Cte {
    /// Its name.
    pub name: String,
    /// Names it gives to its columns.
    pub columns: Vec<String>,
    /// Its query.
    pub query: Query,
    /// Whether it may read itself.
    pub recursive: bool,
}

/// What yields the rows of a query.
#[derive(Debug, Clone)]
pub enum Body {
    /// SELECT … FROM … WHERE …
    Core(Box<Core>),
    /// Two queries and the operator between them.
    Compound(CompoundOperator, Box<Query>, Box<Query>),
    /// Rows of expressions, one after another, and how many make a row.
    Values(Vec<Expr>, usize),
}

/// The operator between two queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompoundOperator {
    /// UNION
    Union,
    /// UNION ALL
    UnionAll,
    /// INTERSECT
    Intersect,
    /// EXCEPT
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

    /// Returns whether the result has the rows of both sides.
    #[must_use]
    pub fn is_union(self) -> bool {
        matches!(self, Self::Union | Self::UnionAll)
    }
}

/// One SELECT.
#[derive(Debug, Clone)]
pub struct Core {
    /// From SELECT to the last clause.
    pub span: Span,
    /// Whether it is DISTINCT.
    pub distinct: bool,
    /// The result columns.
    pub columns: Vec<ResultColumn>,
    /// The FROM clause, in the order of the text.
    pub from: Vec<FromItem>,
    /// WHERE
    pub filter: Option<Expr>,
    /// GROUP BY
    pub group: Vec<Expr>,
    /// HAVING
    pub having: Option<Expr>,
    /// What stands in a WINDOW clause.
    pub windows: Vec<Expr>,
    /// Where the FROM clause ends: a WHERE may stand here.
    pub from_end: usize,
    /// Where the GROUP BY clause ends: a HAVING may stand here.
    pub group_end: usize,
}

/// A result column.
#[derive(Debug, Clone)]
pub struct ResultColumn {
    /// The expression; `None` for a star.
    pub expr: Option<Expr>,
    /// The table of `t.*`.
    pub star_of: Option<String>,
    /// Its alias.
    pub alias: Option<String>,
    /// Its expression as it is written: its name where it has no other.
    pub written: String,
    /// Where it stands.
    pub span: Span,
}

/// One table of a FROM clause.
#[derive(Debug, Clone)]
pub struct FromItem {
    /// What is read.
    pub source: FromSource,
    /// The name it goes by in the query.
    pub name: Option<String>,
    /// How it is joined to what stands before it.
    pub join: JoinKind,
    /// The ON clause of that join.
    pub on: Option<Expr>,
    /// Names in its USING clause.
    pub using: Vec<String>,
    /// Whether the join is NATURAL.
    pub natural: bool,
}

/// What a FROM clause reads.
#[derive(Debug, Clone)]
pub enum FromSource {
    /// A table, view or CTE.
    Table {
        /// Its schema, when named.
        schema: Option<String>,
        /// Its name.
        name: String,
        /// Where it stands, its alias included.
        span: Span,
    },
    /// A table-valued function.
    Function {
        /// Its name.
        name: String,
        /// What it is called with.
        args: Vec<Expr>,
    },
    /// A subquery.
    Query(Box<Query>),
    /// A join in parentheses; it has names of its own only without an alias.
    Join(Vec<FromItem>),
}

/// How a table is joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Comma, INNER, CROSS, or the first of all.
    Inner,
    /// LEFT
    Left,
    /// RIGHT or FULL
    Outer,
}

/// A term of ORDER BY.
#[derive(Debug, Clone)]
pub struct OrderTerm {
    /// What is ordered by.
    pub expr: Expr,
    /// Whether from the greatest.
    pub descending: bool,
    /// Where NULLs stand, when said.
    pub nulls_first: Option<bool>,
}

/// An expression.
#[derive(Debug, Clone)]
pub struct Expr {
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind,
}

/// What an expression is.
#[derive(Debug, Clone)]
pub enum ExprKind {
    /// A AND B AND …
    And(Vec<Expr>),
    /// A OR B OR …
    Or(Vec<Expr>),
    /// NOT A
    Not(Box<Expr>),
    /// (A)
    Paren(Box<Expr>),
    /// A name.
    Column {
        /// The table it is said of.
        table: Option<String>,
        /// The column.
        column: String,
    },
    /// A call, by its number, with its arguments.
    Call(usize, Vec<Expr>),
    /// CASE
    Case {
        /// CASE operand WHEN …
        operand: Option<Box<Expr>>,
        /// WHEN … THEN …
        whens: Vec<(Expr, Expr)>,
        /// ELSE …
        otherwise: Option<Box<Expr>>,
    },
    /// A function.
    Function {
        /// Its name, lower case.
        name: String,
        /// Whether it has an OVER clause.
        window: bool,
        /// FILTER (WHERE …)
        filter: Option<Box<Expr>>,
        /// Arguments and all else in it.
        args: Vec<Expr>,
    },
    /// EXISTS (…)
    Exists(Box<Query>),
    /// A scalar subquery.
    Scalar(Box<Query>),
    /// `x IN (…)`, maybe with NOT: the operand, a list or a query.
    In {
        /// Whether it is NOT IN.
        negated: bool,
        /// What is looked for.
        operand: Box<Expr>,
        /// The list it is looked for in.
        list: Vec<Expr>,
        /// The query it is looked for in.
        query: Option<Box<Query>>,
        /// Whether the list is one call without parentheses: its answer is the list.
        is_answer: bool,
    },
    /// A literal.
    Literal,
    /// A comparison of two sides: `=`, `<>`, `<`, `<=`, `>`, `>=`, `IS` or `IS NOT`.
    /// `IS DISTINCT FROM` is `IS NOT`.
    Compare(&'static str, Box<Expr>, Box<Expr>),
    /// CAST, and the type's name.
    Cast(Box<Expr>, String),
    /// An operation on its parts.
    Operation(ExprOperator, Vec<Expr>),
}

/// What an [`ExprKind::Operation`] does with its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExprOperator {
    /// A sign before its operand: `+`, `-` or `~`.
    Prefix(&'static str),
    /// An operator between two operands: `+`, `||`, `->`, `<<`, ….
    Infix(&'static str),
    /// COLLATE with the collation's name.
    Collate(String),
    /// `IS NULL` or `IS NOT NULL`, in any spelling.
    NullTest,
    /// BETWEEN, maybe with NOT: the value and both ends.
    Between,
    /// LIKE, GLOB, MATCH or REGEXP, maybe with NOT: the value, the pattern and its ESCAPE.
    Match(MatchOperator),
    /// A row value.
    Row,
    /// A parameter, RAISE or a function that `SQLite` rarely has.
    Unknown,
}

/// How a value is compared with a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchOperator {
    /// LIKE
    Like,
    /// GLOB
    Glob,
    /// MATCH
    Match,
    /// REGEXP
    Regexp,
}

impl Query {
    /// A query that is one core.
    #[must_use]
    pub fn of(core: Core) -> Self {
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

impl Core {
    /// A SELECT of columns and nothing else.
    #[must_use]
    pub fn of(columns: Vec<ResultColumn>, span: Span) -> Self {
        Self {
            span,
            distinct: false,
            columns,
            from: Vec::new(),
            filter: None,
            group: Vec::new(),
            having: None,
            windows: Vec::new(),
            from_end: 0,
            group_end: 0,
        }
    }
}

impl Expr {
    /// The expressions and the query right inside.
    #[must_use]
    pub fn inside(&self) -> (Vec<&Expr>, Option<&Query>) {
        match &self.kind {
            ExprKind::And(all) | ExprKind::Or(all) | ExprKind::Operation(_, all) => {
                (all.iter().collect(), None)
            }
            ExprKind::Call(_, args) => (args.iter().collect(), None),
            ExprKind::Not(one) | ExprKind::Paren(one) | ExprKind::Cast(one, _) => (vec![one], None),
            ExprKind::Column { .. } | ExprKind::Literal => (Vec::new(), None),
            ExprKind::Case { operand, whens, otherwise } => {
                let mut all: Vec<&Expr> = operand.iter().map(AsRef::as_ref).collect();
                whens.iter().for_each(|(when, then)| all.extend([when, then]));
                all.extend(otherwise.iter().map(AsRef::as_ref));
                (all, None)
            }
            ExprKind::Function { filter, args, .. } => {
                (args.iter().chain(filter.iter().map(AsRef::as_ref)).collect(), None)
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

    /// Whether it names a column, subqueries aside.
    fn names_a_column(&self) -> bool {
        matches!(self.kind, ExprKind::Column { .. })
            || self.inside().0.into_iter().any(Self::names_a_column)
    }

    /// Whether there is a call in it, however deep.
    #[must_use]
    pub fn has_call(&self) -> bool {
        if matches!(self.kind, ExprKind::Call(..)) {
            return true;
        }
        let (exprs, query) = self.inside();
        exprs.into_iter().any(Self::has_call) || query.is_some_and(Query::has_call)
    }

    /// Shows this expression and all inside it, subqueries too, to `see`.
    pub fn each<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        see(self);
        let (exprs, query) = self.inside();
        exprs.into_iter().for_each(|e| e.each(see));
        if let Some(query) = query {
            query.each(see);
        }
    }
}

impl Core {
    /// Whether a result of what it reads names no column: where `SQLite` makes it part of the
    /// SELECT around it, that result waits for no row.
    #[must_use]
    pub fn computes_of_no_row(&self) -> bool {
        !self.from.is_empty()
            && self.columns.iter().filter_map(|c| c.expr.as_ref()).any(|e| !e.names_a_column())
    }
}

impl Query {
    /// Whether there is a call in it, however deep.
    #[must_use]
    pub fn has_call(&self) -> bool {
        let mut found = false;
        self.each(&mut |e| found |= matches!(e.kind, ExprKind::Call(..)));
        found
    }

    /// Shows every common table expression in it to `see`.
    pub fn each_cte<'e>(&'e self, see: &mut dyn FnMut(&'e Cte)) {
        for cte in &self.with {
            see(cte);
            cte.query.each_cte(see);
        }
        match &self.body {
            Body::Core(core) => core.from.iter().for_each(|i| i.each_cte(see)),
            Body::Compound(_, left, right) => {
                left.each_cte(see);
                right.each_cte(see);
            }
            Body::Values(..) => {}
        }
        // Those of queries in expressions.
        let mut within: Vec<&Query> = Vec::new();
        self.each(&mut |e| within.extend(e.inside().1.filter(|q| !q.with.is_empty())));
        within.iter().flat_map(|q| &q.with).for_each(see);
    }

    /// Shows the expressions of its common table expressions and of what its FROM clause
    /// reads to `see`.
    pub fn each_below<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        self.with.iter().for_each(|c| c.query.each(see));
        match &self.body {
            Body::Core(core) => core.from.iter().for_each(|i| i.each(see)),
            Body::Compound(_, left, right) => {
                left.each_below(see);
                right.each_below(see);
            }
            Body::Values(..) => {}
        }
    }

    /// Shows itself and every query in it to `see`.
    pub fn each_query<'e>(&'e self, see: &mut dyn FnMut(&'e Query)) {
        self.each_own_query(see);
        self.each(&mut |e| {
            if let Some(inner) = e.inside().1 {
                inner.each_own_query(see);
            }
        });
    }

    /// Shows itself and the queries that its WITH and FROM clauses read.
    fn each_own_query<'e>(&'e self, see: &mut dyn FnMut(&'e Query)) {
        see(self);
        self.with.iter().for_each(|cte| cte.query.each_own_query(see));
        match &self.body {
            Body::Core(core) => {
                core.from.iter().for_each(|i| i.each_query(&mut |q| q.each_own_query(see)));
            }
            Body::Compound(_, left, right) => {
                left.each_own_query(see);
                right.each_own_query(see);
            }
            Body::Values(..) => {}
        }
    }

    /// Shows the name of every table that it reads to `see`.
    pub fn each_table<'e>(&'e self, see: &mut dyn FnMut(&'e str)) {
        self.each_item(&mut |item| {
            if let FromSource::Table { name, .. } = &item.source {
                see(name);
            }
        });
    }

    /// Shows everything that it reads to `see`.
    pub fn each_item<'e>(&'e self, see: &mut dyn FnMut(&'e FromItem)) {
        self.each_own_item(see);
        self.each(&mut |e| {
            if let Some(inner) = e.inside().1 {
                inner.each_own_item(see);
            }
        });
    }

    /// What its own FROM clauses read, without those of its expressions.
    fn each_own_item<'e>(&'e self, see: &mut dyn FnMut(&'e FromItem)) {
        self.with.iter().for_each(|cte| cte.query.each_own_item(see));
        match &self.body {
            Body::Core(core) => core.from.iter().for_each(|i| i.each_own_item(see)),
            Body::Compound(_, left, right) => {
                left.each_own_item(see);
                right.each_own_item(see);
            }
            Body::Values(..) => {}
        }
    }

    /// Shows every expression in it to `see`.
    pub fn each<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        self.with.iter().for_each(|c| c.query.each(see));
        match &self.body {
            Body::Core(core) => {
                core.from.iter().for_each(|i| i.each(see));
                core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(|e| e.each(see));
                core.filter.iter().for_each(|e| e.each(see));
                core.group.iter().for_each(|e| e.each(see));
                core.having.iter().for_each(|e| e.each(see));
                core.windows.iter().for_each(|e| e.each(see));
            }
            Body::Compound(_, left, right) => {
                left.each(see);
                right.each(see);
            }
            Body::Values(exprs, _) => exprs.iter().for_each(|e| e.each(see)),
        }
        self.order.iter().for_each(|o| o.expr.each(see));
        self.limit.iter().chain(&self.offset).for_each(|e| e.each(see));
    }
}

impl FromItem {
    /// Shows every query that it reads to `see`.
    pub fn each_query<'e>(&'e self, see: &mut dyn FnMut(&'e Query)) {
        match &self.source {
            FromSource::Query(query) => see(query),
            FromSource::Join(items) => items.iter().for_each(|i| i.each_query(see)),
            FromSource::Table { .. } | FromSource::Function { .. } => {}
        }
    }

    fn each_own_item<'e>(&'e self, see: &mut dyn FnMut(&'e FromItem)) {
        see(self);
        match &self.source {
            FromSource::Table { .. } | FromSource::Function { .. } => {}
            FromSource::Query(query) => query.each_own_item(see),
            FromSource::Join(items) => items.iter().for_each(|i| i.each_own_item(see)),
        }
    }

    fn each_cte<'e>(&'e self, see: &mut dyn FnMut(&'e Cte)) {
        match &self.source {
            FromSource::Query(query) => query.each_cte(see),
            FromSource::Join(items) => items.iter().for_each(|i| i.each_cte(see)),
            FromSource::Table { .. } | FromSource::Function { .. } => {}
        }
    }

    /// Shows every expression in it to `see`.
    pub fn each<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        match &self.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => args.iter().for_each(|e| e.each(see)),
            FromSource::Query(query) => query.each(see),
            FromSource::Join(items) => items.iter().for_each(|i| i.each(see)),
        }
        self.on.iter().for_each(|e| e.each(see));
    }
}
