//! Name resolution: scopes as in `SQLite`, with the origin of each column in a table of the
//! database.

use super::tree::{
    Body, Cte, Expr, ExprKind, ExprOperator, FromItem, FromSource, Query, SelectCore,
    ViewDefinition,
};

/// Schema information about a database's tables.
pub trait Schema {
    /// Returns the columns of a table, view or table-valued function, in the order of `*`.
    fn column_names(&self, table: &str) -> Option<Vec<String>>;

    /// Returns true if `table` is a view that may join tables. This includes a subquery in EXISTS,
    /// because `SQLite` can convert it to a join.
    fn may_join_tables(&self, _table: &str) -> bool {
        false
    }

    /// Returns true if `table` is a view that may have a LIMIT.
    fn may_have_limit(&self, _table: &str) -> bool {
        false
    }

    /// Returns the definition of a view, so that values can be traced through it.
    fn view_definition(&self, _table: &str) -> Option<&ViewDefinition> {
        None
    }

    /// Returns true if `table` is a view with volatile results, for example a view that uses
    /// `random()`.
    fn is_volatile(&self, _table: &str) -> bool {
        false
    }

    /// Returns true if the column has a collation under which different texts are equal.
    fn has_custom_collation(&self, _table: &str, _column: &str) -> bool {
        false
    }

    /// Returns the unique keys of a table. A key is a set of lower-case names of columns that are
    /// never NULL. No two rows of the table are equal in all columns of a key under the columns'
    /// own collations.
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
    /// Database column whose values this column passes on unchanged.
    pub origin: Option<ColumnOrigin>,
    /// Whether the column's values come from a call.
    pub is_from_call: bool,
    /// Whether different texts can be equal under the column's collation.
    pub has_custom_collation: bool,
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
    /// Table that the entry reads, as SQL; `None` for a subquery, a function or a join.
    pub source: Option<String>,
}

impl Table {
    fn find_field(&self, column: &str) -> Option<&Field> {
        self.fields.as_ref()?.iter().find(|f| f.name.eq_ignore_ascii_case(column))
    }

    /// Returns true if a column has a custom collation, or if the columns are unknown.
    pub(super) fn has_custom_collation(&self) -> bool {
        self.fields.as_ref().is_none_or(|fields| fields.iter().any(|f| f.has_custom_collation))
    }

    /// Returns the qualified name of a column that does not depend on a call, if there is one.
    #[must_use]
    pub fn column_without_call(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        let field = self.fields.as_ref()?.iter().find(|field| !field.is_from_call)?;
        Some(format!(
            "{}.{}",
            hqdl_values::sql::quote_name(name),
            hqdl_values::sql::quote_name(&field.name)
        ))
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
    pub fn new(parent: Option<&'p Scope<'p>>) -> Self {
        let depth = parent.map_or(0, |p| p.depth + 1);
        Self { parent, tables: Vec::new(), ctes: Vec::new(), depth }
    }

    /// Resolves a column name in this scope or the nearest enclosing one. Returns `None` if no
    /// table has the column, or if a nearer table with unknown columns may have it.
    #[must_use]
    pub fn find_column(&self, table: Option<&str>, column: &str) -> Option<FoundColumn<'_>> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            let mut named = current.tables.iter().filter(|t| {
                table.is_none_or(|n| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(n)))
            });
            let hit = named.clone().find_map(|t| Some((t, t.find_field(column)?)));
            if let Some((table, field)) = hit {
                return Some(FoundColumn { depth: current.depth, table, field });
            }
            // A table with unknown columns may contain the column.
            if named.any(|t| t.fields.is_none()) {
                return None;
            }
            scope = current.parent;
        }
        None
    }

    /// Searches this scope and the enclosing scopes for the only FROM entry that reads a table.
    /// Returns the name of the entry, or `None` if an entry with the table's own name is found
    /// first.
    #[must_use]
    pub fn find_alias(&self, table: &str) -> Option<&str> {
        let source = hqdl_values::sql::quote_name(table).to_lowercase();
        let reads = |t: &&Table| {
            let read = t.source.as_ref().map(|read| read.to_lowercase());
            let schema = read.as_ref().and_then(|read| read.strip_suffix(&source));
            schema.is_some_and(|schema| schema.is_empty() || schema.ends_with('.'))
        };
        let is_named = |t: &Table| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(table));
        for scope in std::iter::successors(Some(self), |scope| scope.parent) {
            if scope.tables.iter().any(is_named) {
                return None;
            }
            let mut aliased = scope.tables.iter().filter(reads);
            if let (Some(only), None) = (aliased.next(), aliased.next()) {
                return only.name.as_deref();
            }
        }
        None
    }

    /// Returns the table that the nearest entry with this name reads, as SQL that has the same
    /// meaning in this scope. The inner `None` means that the entry is a subquery, a function or a
    /// join, or reads a CTE that an inner CTE hides.
    #[must_use]
    pub fn find_source(&self, name: &str) -> Option<Option<String>> {
        let mut inner_ctes: Vec<&str> = Vec::new();
        for scope in std::iter::successors(Some(self), |scope| scope.parent) {
            let is_named =
                |t: &&Table| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(name));
            if let Some(table) = scope.tables.iter().find(is_named) {
                let source = table.source.clone();
                return Some(source.and_then(|source| {
                    let hiding = inner_ctes.iter().find(|cte| {
                        hqdl_values::sql::quote_name(cte).eq_ignore_ascii_case(&source)
                    });
                    match hiding {
                        None => Some(source),
                        Some(cte) if scope.has_cte(cte) => None,
                        Some(_) => Some(format!("main.{source}")),
                    }
                }));
            }
            inner_ctes.extend(scope.ctes.iter().map(|(cte, _)| cte.as_str()));
        }
        None
    }

    /// Returns true if any column that the name may refer to has a custom collation. USING and
    /// NATURAL merge several columns under one name.
    fn may_have_custom_collation(&self, table: Option<&str>, column: &str) -> bool {
        std::iter::successors(Some(self), |scope| scope.parent).any(|current| {
            let mut named = current.tables.iter().filter(|t| {
                table.is_none_or(|n| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(n)))
            });
            named.any(|t| match &t.fields {
                Some(fields) => fields
                    .iter()
                    .any(|f| f.has_custom_collation && f.name.eq_ignore_ascii_case(column)),
                None => true,
            })
        })
    }

    /// Returns the depth of the scope to which a name belongs although no table lists it as a
    /// column: its qualifier names a table, or it is the rowid of the only table.
    #[must_use]
    pub fn find_row_scope_depth(&self, table: Option<&str>, column: &str) -> Option<usize> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            let named = current.tables.iter().any(|t| {
                table.is_some_and(|n| t.name.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(n)))
            });
            let only = table.is_none() && is_rowid(column) && current.tables.len() == 1;
            if named || only {
                return Some(current.depth);
            }
            if current.tables.iter().any(|t| t.fields.is_none()) {
                return None;
            }
            scope = current.parent;
        }
        None
    }

    /// Returns true if a common table expression of this name is visible.
    #[must_use]
    pub fn has_cte(&self, name: &str) -> bool {
        self.cte_fields(name).is_some()
    }

    pub(super) fn cte_fields(&self, name: &str) -> Option<&Option<Vec<Field>>> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            if let Some((_, fields)) =
                current.ctes.iter().rev().find(|(n, _)| n.eq_ignore_ascii_case(name))
            {
                return Some(fields);
            }
            scope = current.parent;
        }
        None
    }
}

/// Resolves names against a schema.
#[derive(Clone, Copy)]
pub struct Resolver<'s> {
    /// Schema of the database.
    pub schema: &'s dyn Schema,
    /// Calls that the rows of each common table expression depend on.
    pub cte_calls: &'s CteCalls,
}

/// Names of common table expressions, each with the calls that its rows depend on, directly or
/// through other common table expressions. Expressions with equal names share an entry.
pub type CteCalls = [(String, Vec<usize>)];

impl Resolver<'_> {
    /// Returns the scope that declares the CTEs of a query.
    #[must_use]
    pub fn build_cte_scope<'p>(&self, query: &Query, parent: Option<&'p Scope<'p>>) -> Scope<'p> {
        let mut scope = Scope::new(parent);
        for cte in &query.with {
            let fields = self.resolve_cte(cte, &scope);
            scope.ctes.push((cte.name.clone(), fields));
        }
        scope
    }

    fn resolve_cte(&self, cte: &Cte, scope: &Scope<'_>) -> Option<Vec<Field>> {
        let mut inner = Scope::new(Some(scope));
        if cte.recursive {
            // The CTE may read itself; its first arm determines its columns.
            let first = match &cte.query.body {
                Body::Compound(_, left, _) => self.resolve_output_fields(left, scope),
                _ => None,
            };
            inner.ctes.push((cte.name.clone(), first.map(|f| rename_fields(f, &cte.columns))));
        }
        self.resolve_output_fields(&cte.query, &inner).map(|f| rename_fields(f, &cte.columns))
    }

    /// Returns the scope of a SELECT's own clauses.
    #[must_use]
    pub fn build_select_scope<'p>(&self, core: &SelectCore, parent: &'p Scope<'p>) -> Scope<'p> {
        let mut scope = Scope::new(Some(parent));
        for item in &core.from {
            self.add_from_item(item, parent, &mut scope.tables);
        }
        scope
    }

    fn add_from_item(&self, item: &FromItem, parent: &Scope<'_>, tables: &mut Vec<Table>) {
        let fields = match &item.source {
            FromSource::Table { schema, name, .. } => {
                match parent.cte_fields(name).filter(|_| schema.is_none()) {
                    Some(fields) => fields.clone(),
                    None => self.resolve_base_fields(name),
                }
            }
            FromSource::Function { name, .. } => self.schema.column_names(name).map(|columns| {
                let field = |name| Field {
                    name,
                    origin: None,
                    is_from_call: false,
                    has_custom_collation: false,
                };
                columns.into_iter().map(field).collect()
            }),
            FromSource::Query(query) => self.resolve_output_fields(query, parent),
            FromSource::Join(items) => {
                let at = tables.len();
                items.iter().for_each(|i| self.add_from_item(i, parent, tables));
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
        tables.push(Table { name: item.name.clone(), fields, source: item.table_sql() });
    }

    pub(super) fn resolve_base_fields(&self, table: &str) -> Option<Vec<Field>> {
        let origin =
            |column: &String| ColumnOrigin { table: table.to_owned(), column: column.clone() };
        let columns = self.schema.column_names(table)?;
        Some(
            columns
                .into_iter()
                .map(|name| Field {
                    has_custom_collation: self.schema.has_custom_collation(table, &name),
                    origin: Some(origin(&name)),
                    name,
                    is_from_call: false,
                })
                .collect(),
        )
    }

    /// Returns the columns of a query; `None` if they are unknown.
    #[must_use]
    pub fn resolve_output_fields(&self, query: &Query, parent: &Scope<'_>) -> Option<Vec<Field>> {
        let scope = self.build_cte_scope(query, Some(parent));
        match &query.body {
            Body::Core(core) => {
                let inner = self.build_select_scope(core, &scope);
                self.resolve_select_fields(core, &inner, &mut |expr| {
                    self.depends_on_call(expr, &inner)
                })
            }
            Body::Compound(_, left, right) => {
                // A row can come from either side, so the origin of a column is not a single
                // database column.
                let fields = self.resolve_output_fields(left, &scope)?;
                let other = self.resolve_output_fields(right, &scope).unwrap_or_default();
                let is_from_call = |n: usize| other.get(n).is_some_and(|f| f.is_from_call);
                let has_custom_collation =
                    |n: usize| other.get(n).is_none_or(|f| f.has_custom_collation);
                let merged = fields.into_iter().enumerate().map(|(n, f)| Field {
                    origin: None,
                    is_from_call: f.is_from_call || is_from_call(n),
                    has_custom_collation: f.has_custom_collation || has_custom_collation(n),
                    ..f
                });
                Some(merged.collect())
            }
            Body::Values(exprs, width) => {
                let is_from_call = exprs.iter().any(|e| self.depends_on_call(e, &scope));
                let has_custom_collation =
                    exprs.iter().any(|e| self.may_have_custom_collation(e, &scope));
                let field = |n| Field {
                    name: format!("column{n}"),
                    origin: None,
                    is_from_call,
                    has_custom_collation,
                };
                Some((1..=*width).map(field).collect())
            }
        }
    }

    /// Returns true if a value depends on a call: a call in the expression, a call whose answer is
    /// a referenced column, or a call that affects the rows of a subquery. A name within a subquery
    /// is resolved as if it were outside of the subquery.
    fn depends_on_call(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        expr.visit_exprs(&mut |e| match &e.kind {
            ExprKind::Call(..) => found = true,
            ExprKind::Column { table, column } => {
                found |= scope
                    .find_column(table.as_deref(), column)
                    .is_some_and(|hit| hit.field.is_from_call);
            }
            _ => {}
        });
        found || !self.cte_calls.is_empty() && self.reads_cte_with_calls(expr)
    }

    /// Returns true if two different texts from this expression may be equal, because of a COLLATE
    /// other than BINARY or a column with a custom collation.
    pub(super) fn may_have_custom_collation(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.visit_expr(expr, scope, false, &mut |e, at, _| match &e.kind {
            ExprKind::Operation(ExprOperator::Collate(collation), _) => {
                found |= !collation.eq_ignore_ascii_case("binary");
            }
            ExprKind::Column { table, column } => {
                found |= at.may_have_custom_collation(table.as_deref(), column);
            }
            _ => {}
        });
        found
    }

    /// Returns true if a subquery of the expression reads a CTE whose rows depend on calls.
    fn reads_cte_with_calls(&self, expr: &Expr) -> bool {
        let (exprs, query) = expr.children();
        let mut found = exprs.into_iter().any(|e| self.reads_cte_with_calls(e));
        if let Some(query) = query {
            query.visit_tables(&mut |table| {
                let named = |(name, _): &(String, _)| name.eq_ignore_ascii_case(table);
                found |= self.cte_calls.iter().any(named);
            });
        }
        found
    }

    /// Returns the result columns of a SELECT in its scope. `depends_on_call` returns true if an
    /// expression's value comes from a call.
    pub(super) fn resolve_select_fields(
        &self,
        core: &SelectCore,
        scope: &Scope<'_>,
        depends_on_call: &mut dyn FnMut(&Expr) -> bool,
    ) -> Option<Vec<Field>> {
        let mut fields = Vec::new();
        for column in &core.columns {
            let Some(expr) = &column.expr else {
                for (n, table) in scope.tables.iter().enumerate() {
                    let named = |of: &String| {
                        table.name.as_ref().is_some_and(|t| t.eq_ignore_ascii_case(of))
                    };
                    if column.star_table.as_ref().is_some_and(|of| !named(of)) {
                        continue;
                    }
                    let item = core.from.get(n).filter(|_| core.from.len() == scope.tables.len());
                    for field in table.fields.as_ref()? {
                        let merged = column.star_table.is_none()
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
            let unparenthesized = strip_expr_parens(expr);
            let (hit, own) = match &unparenthesized.kind {
                ExprKind::Column { table, column } => {
                    (scope.find_column(table.as_deref(), column), Some(column.clone()))
                }
                _ => (None, None),
            };
            let origin = hit.and_then(|f| f.field.origin.clone());
            let is_from_call = hit.is_some_and(|f| f.field.is_from_call) || depends_on_call(expr);
            // `SQLite` also names the column after its source text.
            let source_text = || column.source_text.clone();
            let name = column.alias.clone().or(own).unwrap_or_else(source_text);
            let has_custom_collation = self.may_have_custom_collation(expr, scope);
            fields.push(Field { name, origin, is_from_call, has_custom_collation });
        }
        Some(fields)
    }

    /// Visits every expression in a query with its scope. The boolean is true for
    /// conditions: only their truth matters, not their value.
    pub fn visit_exprs(
        &self,
        query: &Query,
        parent: &Scope<'_>,
        visit: &mut dyn FnMut(&Expr, &Scope<'_>, bool),
    ) {
        let scope = self.build_cte_scope(query, Some(parent));
        for cte in &query.with {
            self.visit_exprs(&cte.query, &scope, visit);
        }
        match &query.body {
            Body::Core(core) => {
                let inner = self.build_select_scope(core, &scope);
                for item in &core.from {
                    self.visit_from_item(item, &scope, &inner, visit);
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
                values.for_each(|e| self.visit_expr(e, &inner, false, visit));
                let conditions = core.filter.iter().chain(&core.having);
                conditions.for_each(|e| self.visit_expr(e, &inner, true, visit));
            }
            Body::Compound(_, left, right) => {
                self.visit_exprs(left, &scope, visit);
                self.visit_exprs(right, &scope, visit);
            }
            Body::Values(exprs, _) => {
                exprs.iter().for_each(|e| self.visit_expr(e, &scope, false, visit));
            }
        }
        if !matches!(query.body, Body::Core(_)) {
            let tail = query.order.iter().map(|o| &o.expr).chain(&query.limit).chain(&query.offset);
            tail.for_each(|e| self.visit_expr(e, &scope, false, visit));
        }
    }

    fn visit_from_item(
        &self,
        item: &FromItem,
        outer: &Scope<'_>,
        inner: &Scope<'_>,
        visit: &mut dyn FnMut(&Expr, &Scope<'_>, bool),
    ) {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.visit_expr(a, inner, false, visit));
            }
            FromSource::Query(query) => self.visit_exprs(query, outer, visit),
            FromSource::Join(items) => {
                items.iter().for_each(|i| self.visit_from_item(i, outer, inner, visit));
            }
        }
        if let Some(on) = &item.on {
            self.visit_expr(on, inner, true, visit);
        }
    }

    /// Visits an expression and all expressions inside it.
    pub fn visit_expr(
        &self,
        expr: &Expr,
        scope: &Scope<'_>,
        condition: bool,
        visit: &mut dyn FnMut(&Expr, &Scope<'_>, bool),
    ) {
        visit(expr, scope, condition);
        let (exprs, query) = expr.children();
        for (n, inner) in exprs.into_iter().enumerate() {
            let condition = match &expr.kind {
                ExprKind::And(_) | ExprKind::Or(_) | ExprKind::Not(_) => true,
                ExprKind::Paren(_) => condition,
                // The children are in the order WHEN, THEN, WHEN, THEN, …; see `Expr::children`.
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
            self.visit_expr(inner, scope, condition, visit);
        }
        if let Some(query) = query {
            self.visit_exprs(query, scope, visit);
        }
    }
}

/// Returns true if the name denotes a rowid, provided that no table has a column of this name.
#[must_use]
pub fn is_rowid(column: &str) -> bool {
    ["rowid", "oid", "_rowid_"].iter().any(|name| column.eq_ignore_ascii_case(name))
}

/// Removes the parentheses around an expression.
#[must_use]
pub fn strip_expr_parens(expr: &Expr) -> &Expr {
    match &expr.kind {
        ExprKind::Paren(inner) => strip_expr_parens(inner),
        _ => expr,
    }
}

pub(super) fn rename_fields(mut fields: Vec<Field>, names: &[String]) -> Vec<Field> {
    for (field, name) in fields.iter_mut().zip(names) {
        field.name.clone_from(name);
    }
    fields
}
