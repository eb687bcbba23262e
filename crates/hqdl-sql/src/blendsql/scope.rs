//! Name resolution: scopes as in `SQLite`, with the origin of each column in a table of the
//! database.

use super::tree::{
    Body, Core, Cte, Expr, ExprKind, ExprOperator, FromItem, FromSource, Query, ViewDefinition,
};

/// Schema information about a database's tables.
pub trait Schema {
    /// Returns the columns of a table, view or table-valued function, in the order of `*`.
    fn columns(&self, table: &str) -> Option<Vec<String>>;

    /// Returns true if `table` is a view that may join tables. A subquery in EXISTS counts, because
    /// `SQLite` converts it to a join.
    fn joins(&self, _table: &str) -> bool {
        false
    }

    /// Returns true if `table` is a view that may have a LIMIT.
    fn limits(&self, _table: &str) -> bool {
        false
    }

    /// Returns the definition of a view, to follow values through it.
    fn view(&self, _table: &str) -> Option<&ViewDefinition> {
        None
    }

    /// Returns true if `table` is a view with volatile results, for example one that uses
    /// `random()`.
    fn draws(&self, _table: &str) -> bool {
        false
    }

    /// Returns true if the column has a collation under which different texts are equal.
    fn collates(&self, _table: &str, _column: &str) -> bool {
        false
    }

    /// Returns the unique keys of a table: sets of lower-case column names that are never NULL and
    /// identify a row by byte comparison.
    fn unique_keys(&self, _table: &str) -> &[Vec<String>] {
        &[]
    }

    /// Returns the column's type affinity, if it is known.
    fn affinity(&self, _table: &str, _column: &str) -> Option<Affinity> {
        None
    }
}

/// Type affinity of a column: the conversion that it applies to stored values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// Converts to text.
    Text,
    /// Converts to integers.
    Integer,
    /// Converts to floating-point numbers.
    Real,
    /// Converts text that is a valid number to a number; date columns have this affinity, too.
    Numeric,
    /// No conversion.
    Blob,
}

/// A column of a table or query, with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Column name.
    pub name: String,
    /// Column of the database whose values it passes on unchanged.
    pub origin: Option<ColumnOrigin>,
    /// Whether its values come from a call.
    pub live: bool,
    /// Whether different texts can be equal under its collation.
    pub collates: bool,
}

/// A column of the database.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ColumnOrigin {
    /// Table or view name.
    pub table: String,
    /// Column name.
    pub column: String,
}

/// A table in a scope.
#[derive(Debug, Clone)]
pub struct Table {
    /// Alias or table name.
    pub name: Option<String>,
    /// Columns; `None` if they are unknown.
    pub fields: Option<Vec<Field>>,
}

impl Table {
    fn field(&self, column: &str) -> Option<&Field> {
        self.fields.as_ref()?.iter().find(|f| f.name.eq_ignore_ascii_case(column))
    }

    /// Returns true if a column has a custom collation, or if the columns are unknown.
    pub(super) fn collates(&self) -> bool {
        self.fields.as_ref().is_none_or(|fields| fields.iter().any(|f| f.collates))
    }

    /// Returns the qualified name of a column that does not depend on a call.
    #[must_use]
    pub fn any_column(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        let field = self.fields.as_ref()?.iter().find(|field| !field.live)?;
        Some(format!("{}.{}", hqdl_values::sql::name(name), hqdl_values::sql::name(&field.name)))
    }
}

/// Names that are visible to one SELECT.
#[derive(Debug)]
pub struct Scope<'p> {
    /// Scope of the enclosing SELECT.
    pub parent: Option<&'p Scope<'p>>,
    /// Tables of the FROM clause.
    pub tables: Vec<Table>,
    /// Common table expressions declared in this scope.
    pub ctes: Vec<(String, Option<Vec<Field>>)>,
    /// Number of enclosing scopes.
    pub depth: usize,
}

/// A resolved column name.
#[derive(Debug, Clone, Copy)]
pub struct FoundColumn<'s> {
    /// Depth of the scope that contains the column.
    pub depth: usize,
    /// Table of the column.
    pub table: &'s Table,
    /// The column.
    pub field: &'s Field,
}

impl<'p> Scope<'p> {
    /// Creates a scope without tables.
    #[must_use]
    pub fn within(parent: Option<&'p Scope<'p>>) -> Self {
        let depth = parent.map_or(0, |p| p.depth + 1);
        Self { parent, tables: Vec::new(), ctes: Vec::new(), depth }
    }

    /// Resolves a column name.
    #[must_use]
    pub fn find(&self, table: Option<&str>, column: &str) -> Option<FoundColumn<'_>> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            let mut named = here.tables.iter().filter(|t| {
                table.is_none_or(|n| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(n)))
            });
            let hit = named.clone().find_map(|t| Some((t, t.field(column)?)));
            if let Some((table, field)) = hit {
                return Some(FoundColumn { depth: here.depth, table, field });
            }
            // A table with unknown columns may contain it.
            if named.any(|t| t.fields.is_none()) {
                return None;
            }
            scope = here.parent;
        }
        None
    }

    /// Returns true if any column that the name may refer to has a custom collation. USING and
    /// NATURAL merge several columns under one name.
    fn collates(&self, table: Option<&str>, column: &str) -> bool {
        std::iter::successors(Some(self), |scope| scope.parent).any(|here| {
            let mut named = here.tables.iter().filter(|t| {
                table.is_none_or(|n| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(n)))
            });
            named.any(|t| match &t.fields {
                Some(fields) => {
                    fields.iter().any(|f| f.collates && f.name.eq_ignore_ascii_case(column))
                }
                None => true,
            })
        })
    }

    /// Returns the depth of the scope that a name must belong to although no table lists it. Either
    /// its qualifier names a table, or it is the rowid of the only table.
    #[must_use]
    pub fn place(&self, table: Option<&str>, column: &str) -> Option<usize> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            let named = here.tables.iter().any(|t| {
                table.is_some_and(|n| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(n)))
            });
            let rowid = ["rowid", "oid", "_rowid_"].iter().any(|n| column.eq_ignore_ascii_case(n));
            let only = table.is_none() && rowid && here.tables.len() == 1;
            if named || only {
                return Some(here.depth);
            }
            if here.tables.iter().any(|t| t.fields.is_none()) {
                return None;
            }
            scope = here.parent;
        }
        None
    }

    /// Returns true if a common table expression of this name is visible.
    #[must_use]
    pub fn knows_cte(&self, name: &str) -> bool {
        self.cte(name).is_some()
    }

    pub(super) fn cte(&self, name: &str) -> Option<&Option<Vec<Field>>> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if let Some((_, fields)) =
                here.ctes.iter().rev().find(|(n, _)| n.eq_ignore_ascii_case(name))
            {
                return Some(fields);
            }
            scope = here.parent;
        }
        None
    }
}

/// Resolves names against a schema.
#[derive(Clone, Copy)]
pub struct Resolver<'s> {
    /// Schema of the database.
    pub schema: &'s dyn Schema,
    /// Calls on which the rows of each common table expression depend.
    pub called: &'s CalledRows,
}

/// Names of common table expressions, each with the calls on which its rows depend, directly or
/// through other expressions. Expressions with equal names share an entry.
pub type CalledRows = [(String, Vec<usize>)];

impl Resolver<'_> {
    /// Returns the scope that declares the CTEs of a query.
    #[must_use]
    pub fn ctes<'p>(&self, query: &Query, parent: Option<&'p Scope<'p>>) -> Scope<'p> {
        let mut scope = Scope::within(parent);
        for cte in &query.with {
            let fields = self.cte(cte, &scope);
            scope.ctes.push((cte.name.clone(), fields));
        }
        scope
    }

    fn cte(&self, cte: &Cte, scope: &Scope<'_>) -> Option<Vec<Field>> {
        let mut inner = Scope::within(Some(scope));
        if cte.recursive {
            // The CTE may read itself; its first arm determines its columns.
            let first = match &cte.query.body {
                Body::Compound(_, left, _) => self.outputs(left, scope),
                _ => None,
            };
            inner.ctes.push((cte.name.clone(), first.map(|f| renamed(f, &cte.columns))));
        }
        self.outputs(&cte.query, &inner).map(|f| renamed(f, &cte.columns))
    }

    /// Returns the scope of a SELECT's own clauses.
    #[must_use]
    pub fn core<'p>(&self, core: &Core, parent: &'p Scope<'p>) -> Scope<'p> {
        let mut scope = Scope::within(Some(parent));
        for item in &core.from {
            self.item(item, parent, &mut scope.tables);
        }
        scope
    }

    fn item(&self, item: &FromItem, parent: &Scope<'_>, tables: &mut Vec<Table>) {
        let fields = match &item.source {
            FromSource::Table { schema, name, .. } => {
                match parent.cte(name).filter(|_| schema.is_none()) {
                    Some(fields) => fields.clone(),
                    None => self.base(name),
                }
            }
            FromSource::Function { name, .. } => self.schema.columns(name).map(|columns| {
                let field = |name| Field { name, origin: None, live: false, collates: false };
                columns.into_iter().map(field).collect()
            }),
            FromSource::Query(query) => self.outputs(query, parent),
            FromSource::Join(items) => {
                let at = tables.len();
                items.iter().for_each(|i| self.item(i, parent, tables));
                if item.name.is_none() {
                    return;
                }
                let inner: Vec<Table> = tables.drain(at..).collect();
                inner.into_iter().map(|t| t.fields).try_fold(Vec::new(), |mut all, fields| {
                    all.extend(fields?);
                    Some(all)
                })
            }
        };
        tables.push(Table { name: item.name.clone(), fields });
    }

    pub(super) fn base(&self, table: &str) -> Option<Vec<Field>> {
        let origin =
            |column: &String| ColumnOrigin { table: table.to_owned(), column: column.clone() };
        let columns = self.schema.columns(table)?;
        Some(
            columns
                .into_iter()
                .map(|name| Field {
                    collates: self.schema.collates(table, &name),
                    origin: Some(origin(&name)),
                    name,
                    live: false,
                })
                .collect(),
        )
    }

    /// Returns the columns of a query; `None` if they are unknown.
    #[must_use]
    pub fn outputs(&self, query: &Query, parent: &Scope<'_>) -> Option<Vec<Field>> {
        let scope = self.ctes(query, Some(parent));
        match &query.body {
            Body::Core(core) => {
                let inner = self.core(core, &scope);
                self.columns(core, &inner, &mut |expr| self.is_live(expr, &inner))
            }
            Body::Compound(_, left, right) => {
                // A row can come from either side, so no column passes on a single database column.
                let fields = self.outputs(left, &scope)?;
                let other = self.outputs(right, &scope).unwrap_or_default();
                let live = |n: usize| other.get(n).is_some_and(|f| f.live);
                let collates = |n: usize| other.get(n).is_none_or(|f| f.collates);
                let both = fields.into_iter().enumerate().map(|(n, f)| Field {
                    origin: None,
                    live: f.live || live(n),
                    collates: f.collates || collates(n),
                    ..f
                });
                Some(both.collect())
            }
            Body::Values(exprs, width) => {
                let live = exprs.iter().any(|e| self.is_live(e, &scope));
                let collates = exprs.iter().any(|e| self.collates(e, &scope));
                let field = |n| Field { name: format!("column{n}"), origin: None, live, collates };
                Some((1..=*width).map(field).collect())
            }
        }
    }

    /// Returns true if a value depends on a call: one inside the expression, one whose answer is a
    /// referenced column, or one on which the rows of a subquery depend. A name within a subquery
    /// is resolved as if it were outside.
    fn is_live(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        expr.each(&mut |e| match &e.kind {
            ExprKind::Call(..) => found = true,
            ExprKind::Column { table, column } => {
                found |= scope.find(table.as_deref(), column).is_some_and(|hit| hit.field.live);
            }
            _ => {}
        });
        found || !self.called.is_empty() && self.reads_called(expr)
    }

    /// Returns true if two different texts from this expression may be equal: it has a COLLATE
    /// other than BINARY, or a column with a custom collation.
    pub(super) fn collates(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.each_in(expr, scope, false, &mut |e, at, _| match &e.kind {
            ExprKind::Operation(ExprOperator::Collate(collation), _) => {
                found |= !collation.eq_ignore_ascii_case("binary");
            }
            ExprKind::Column { table, column } => {
                found |= at.collates(table.as_deref(), column);
            }
            _ => {}
        });
        found
    }

    /// Returns true if a subquery of the expression reads a CTE whose rows depend on calls.
    fn reads_called(&self, expr: &Expr) -> bool {
        let (exprs, query) = expr.inside();
        let mut found = exprs.into_iter().any(|e| self.reads_called(e));
        if let Some(query) = query {
            query.each_table(&mut |table| {
                let named = |(name, _): &(String, _)| name.eq_ignore_ascii_case(table);
                found |= self.called.iter().any(named);
            });
        }
        found
    }

    /// Returns the result columns of a SELECT in its scope; `depends_on_call` returns whether an
    /// expression's value comes from a call.
    pub(super) fn columns(
        &self,
        core: &Core,
        scope: &Scope<'_>,
        live: &mut dyn FnMut(&Expr) -> bool,
    ) -> Option<Vec<Field>> {
        let mut fields = Vec::new();
        for column in &core.columns {
            let Some(expr) = &column.expr else {
                for (n, table) in scope.tables.iter().enumerate() {
                    let named = |of: &String| {
                        table.name.as_ref().is_some_and(|t| t.eq_ignore_ascii_case(of))
                    };
                    if column.star_of.as_ref().is_some_and(|of| !named(of)) {
                        continue;
                    }
                    let item = core.from.get(n).filter(|_| core.from.len() == scope.tables.len());
                    for field in table.fields.as_ref()? {
                        let merged = column.star_of.is_none()
                            && item.is_none_or(|i| {
                                i.natural
                                    || i.using.iter().any(|u| u.eq_ignore_ascii_case(&field.name))
                            })
                            && fields
                                .iter()
                                .any(|f: &Field| f.name.eq_ignore_ascii_case(&field.name));
                        if !merged {
                            fields.push(field.clone());
                        }
                    }
                }
                continue;
            };
            let bare = bare(expr);
            let (hit, own) = match &bare.kind {
                ExprKind::Column { table, column } => {
                    (scope.find(table.as_deref(), column), Some(column.clone()))
                }
                _ => (None, None),
            };
            let origin = hit.and_then(|f| f.field.origin.clone());
            let live = hit.is_some_and(|f| f.field.live) || live(expr);
            // The same name that SQLite uses.
            let written = || column.written.clone();
            let name = column.alias.clone().or(own).unwrap_or_else(written);
            let collates = self.collates(expr, scope);
            fields.push(Field { name, origin, live, collates });
        }
        Some(fields)
    }

    /// Visits every expression in a query with its scope. The boolean is true for conditions, of
    /// which only the truth matters, not the value.
    pub fn each(
        &self,
        query: &Query,
        parent: &Scope<'_>,
        see: &mut dyn FnMut(&Expr, &Scope<'_>, bool),
    ) {
        let scope = self.ctes(query, Some(parent));
        for cte in &query.with {
            self.each(&cte.query, &scope, see);
        }
        match &query.body {
            Body::Core(core) => {
                let inner = self.core(core, &scope);
                for item in &core.from {
                    self.each_of_item(item, &scope, &inner, see);
                }
                let values = core
                    .columns
                    .iter()
                    .filter_map(|c| c.expr.as_ref())
                    .chain(&core.group)
                    .chain(&core.windows)
                    .chain(query.order.iter().map(|o| &o.expr))
                    .chain(&query.limit)
                    .chain(&query.offset);
                values.for_each(|e| self.each_in(e, &inner, false, see));
                let conditions = core.filter.iter().chain(&core.having);
                conditions.for_each(|e| self.each_in(e, &inner, true, see));
            }
            Body::Compound(_, left, right) => {
                self.each(left, &scope, see);
                self.each(right, &scope, see);
            }
            Body::Values(exprs, _) => {
                exprs.iter().for_each(|e| self.each_in(e, &scope, false, see));
            }
        }
        if !matches!(query.body, Body::Core(_)) {
            let tail = query.order.iter().map(|o| &o.expr).chain(&query.limit).chain(&query.offset);
            tail.for_each(|e| self.each_in(e, &scope, false, see));
        }
    }

    fn each_of_item(
        &self,
        item: &FromItem,
        around: &Scope<'_>,
        inner: &Scope<'_>,
        see: &mut dyn FnMut(&Expr, &Scope<'_>, bool),
    ) {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.each_in(a, inner, false, see));
            }
            FromSource::Query(query) => self.each(query, around, see),
            FromSource::Join(items) => {
                items.iter().for_each(|i| self.each_of_item(i, around, inner, see));
            }
        }
        if let Some(on) = &item.on {
            self.each_in(on, inner, true, see);
        }
    }

    /// Visits an expression and all expressions inside it.
    pub fn each_in(
        &self,
        expr: &Expr,
        scope: &Scope<'_>,
        condition: bool,
        see: &mut dyn FnMut(&Expr, &Scope<'_>, bool),
    ) {
        see(expr, scope, condition);
        let (exprs, query) = expr.inside();
        for (n, inner) in exprs.into_iter().enumerate() {
            let condition = match &expr.kind {
                ExprKind::And(_) | ExprKind::Or(_) | ExprKind::Not(_) => true,
                ExprKind::Paren(_) => condition,
                // The order is WHEN, THEN, WHEN, THEN, …: see `Expr::inside`.
                ExprKind::Case { operand: None, whens, .. } => {
                    (n % 2 == 0 && n / 2 < whens.len()) || condition
                }
                ExprKind::Case { .. } => condition && n != 0 && n % 2 == 0,
                ExprKind::Function { filter, args, name, .. } => {
                    (filter.is_some() && n == args.len())
                        || (n == 0 && matches!(name.as_str(), "iif" | "if"))
                }
                _ => false,
            };
            self.each_in(inner, scope, condition, see);
        }
        if let Some(query) = query {
            self.each(query, scope, see);
        }
    }
}

/// Removes the parentheses around an expression.
#[must_use]
pub fn bare(expr: &Expr) -> &Expr {
    match &expr.kind {
        ExprKind::Paren(inner) => bare(inner),
        _ => expr,
    }
}

pub(super) fn renamed(mut fields: Vec<Field>, names: &[String]) -> Vec<Field> {
    for (field, name) in fields.iter_mut().zip(names) {
        field.name.clone_from(name);
    }
    fields
}
