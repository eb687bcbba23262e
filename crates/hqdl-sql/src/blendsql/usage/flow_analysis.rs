//! Follows values through a query. Computes the [flows](crate::blendsql::flow) of each SELECT's
//! columns, and records each comparison for the calls that flow into it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::blendsql::Call;
use crate::blendsql::flow::{Flow, FlowColumn};
use crate::blendsql::lineage::Lineage;
use crate::blendsql::scope::{ColumnOrigin, Schema, is_rowid, strip_expr_parens};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term};
use crate::blendsql::tree::{
    Body, Cte, Expr, ExprKind, ExprOperator, FromItem, FromSource, JoinKind, Query, SelectCore,
    ViewDefinition,
};
use crate::blendsql::usage::groups::{GroupValues, picks_arbitrary_rows};
use crate::blendsql::usage::{CallUsage, ColumnEquality, ComparedWith, SelectOutputs};

/// Maximum nesting depth of a recursive query whose recursive arm is followed twice.
const MAX_REPEATED_DEPTH: usize = 3;

/// A table column with its possible values.
#[derive(Debug, Clone)]
pub(in crate::blendsql) struct FlowField {
    pub name: String,
    pub flow: Flow,
}

/// A table of a FROM clause, under the name by which the query refers to it.
#[derive(Debug)]
pub(in crate::blendsql) struct NamedTable {
    pub name: Option<String>,
    /// Columns with their possible values; `None` if the columns are unknown.
    pub fields: Option<Vec<FlowField>>,
}

impl NamedTable {
    fn has_name(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|n| n.eq_ignore_ascii_case(name))
    }

    fn find_field(&self, name: &str) -> Option<&FlowField> {
        self.fields.as_ref()?.iter().find(|f| f.name.eq_ignore_ascii_case(name))
    }
}

/// Names visible to a SELECT.
#[derive(Debug, Default)]
pub(in crate::blendsql) struct SelectNames<'p> {
    parent: Option<&'p SelectNames<'p>>,
    pub tables: Vec<NamedTable>,
    ctes: Vec<(String, Option<Vec<FlowField>>)>,
    /// Aliases of result columns, which conditions may reference.
    aliases: Vec<FlowField>,
    /// Lineages of the GROUP BY terms while group expressions are followed, otherwise empty.
    pub group_terms: Vec<Arc<Lineage>>,
    /// Values that are unique within each group, while group expressions are followed. `None` if
    /// the rows are not groups, or if `SQLite` does not pick an arbitrary row per group.
    pub groups: Option<GroupValues<'p>>,
}

impl<'p> SelectNames<'p> {
    fn new_child(parent: &'p SelectNames<'p>) -> Self {
        Self { parent: Some(parent), ..Self::default() }
    }

    pub fn ancestors(&self) -> impl Iterator<Item = &SelectNames<'p>> {
        std::iter::successors(Some(self), |n| n.parent)
    }

    pub fn find_column(
        &self,
        table: Option<&str>,
        column: &str,
    ) -> Option<(Option<&NamedTable>, &FlowField)> {
        self.find_with_select(table, column).map(|(_, of, field)| (of, field))
    }

    /// Resolves a name; returns the SELECT, the table and the column.
    pub fn find_with_select(
        &self,
        table: Option<&str>,
        column: &str,
    ) -> Option<(&SelectNames<'p>, Option<&NamedTable>, &FlowField)> {
        for current in self.ancestors() {
            let mut named = current.tables.iter().filter(|t| table.is_none_or(|n| t.has_name(n)));
            let hit = named.clone().find_map(|t| Some((t, t.find_field(column)?)));
            if let Some((table, field)) = hit {
                return Some((current, Some(table), field));
            }
            if named.any(|t| t.fields.is_none()) {
                return None;
            }
            let alias = current.aliases.iter().find(|f| f.name.eq_ignore_ascii_case(column));
            if let Some(own) = alias.filter(|_| table.is_none()) {
                return Some((current, None, own));
            }
        }
        None
    }

    /// Returns the instances whose rowid a name can refer to. Only a database table has a rowid, so
    /// all columns of the named table come from one row.
    fn find_rowid_instances(&self, table: Option<&str>) -> BTreeSet<usize> {
        let named = self.tables.iter().filter(|t| table.is_none_or(|n| t.has_name(n)));
        let named: Vec<&NamedTable> = named.collect();
        let [only] = named.as_slice() else { return BTreeSet::new() };
        let lineages = only.fields.iter().flatten().filter_map(|f| f.flow.lineage.as_deref());
        let mut instances = BTreeSet::new();
        lineages
            .for_each(|l| instances.extend(l.instances().iter().map(|(instance, _)| *instance)));
        instances
    }

    /// Returns true if a group of this SELECT may contain several values of the column.
    pub fn has_several_values(&self, table: Option<&NamedTable>, field: &FlowField) -> bool {
        let Some(groups) = &self.groups else { return false };
        let at = table.and_then(|of| self.tables.iter().position(|t| std::ptr::eq(t, of)));
        let name = field.name.to_lowercase();
        if at.is_some_and(|at| groups.fields.contains(&(at, name))) {
            return false;
        }
        match field.flow.lineage.as_deref() {
            Some(lineage) => !groups.has_single_value(lineage),
            // An alias may refer to an aggregate.
            None => table.is_some(),
        }
    }

    pub fn cte_fields(&self, name: &str) -> Option<&Option<Vec<FlowField>>> {
        let position_in = |n: &'_ SelectNames<'p>| {
            n.ctes.iter().rev().position(|(cte, _)| cte.eq_ignore_ascii_case(name))
        };
        self.ancestors().find_map(|n| position_in(n).map(|at| &n.ctes[n.ctes.len() - 1 - at].1))
    }
}

/// State of the flow analysis of a query.
pub(in crate::blendsql) struct FlowAnalysis<'q> {
    pub sql: &'q str,
    pub calls: &'q [Call],
    schema: &'q dyn Schema,
    pub usages: HashMap<usize, CallUsage>,
    /// Columns of two instances that are equal in every joined row.
    pub equalities: Vec<ColumnEquality>,
    instance_count: usize,
    recursion_depth: usize,
    /// Number of enclosing aggregates, whose arguments are evaluated per row instead of per group.
    pub aggregate_depth: usize,
    /// Indices of the calls whose arguments are being followed.
    pub enclosing_calls: Vec<usize>,
    /// SELECTs whose rows or GROUP BY terms the enclosing expressions read.
    pub reads_rows_of: Vec<*const ()>,
}

impl<'q> FlowAnalysis<'q> {
    pub fn new(sql: &'q str, calls: &'q [Call], schema: &'q dyn Schema) -> Self {
        Self {
            sql,
            calls,
            schema,
            usages: HashMap::new(),
            equalities: Vec::new(),
            instance_count: 0,
            recursion_depth: 0,
            aggregate_depth: 0,
            enclosing_calls: Vec::new(),
            reads_rows_of: Vec::new(),
        }
    }

    pub fn analyze_calls(mut self, query: &Query) -> HashMap<usize, CallUsage> {
        self.analyze_query(query, &SelectNames::default(), None);
        self.usages
    }

    pub fn analyze_outputs(mut self, query: &Query) -> SelectOutputs {
        let fields = self.analyze_query(query, &SelectNames::default(), None).unwrap_or_default();
        let columns = fields.into_iter().map(|f| (f.name, f.flow.lineage)).collect();
        SelectOutputs { columns, equalities: self.equalities }
    }

    /// Returns the columns of a query. `recursive_cte` is the CTE that the query defines, if that
    /// CTE is recursive.
    pub fn analyze_query(
        &mut self,
        query: &Query,
        outer_names: &SelectNames<'_>,
        recursive_cte: Option<&Cte>,
    ) -> Option<Vec<FlowField>> {
        let mut names = SelectNames::new_child(outer_names);
        for cte in &query.with {
            let fields = self.analyze_query(&cte.query, &names, Some(cte).filter(|c| c.recursive));
            names.ctes.push((cte.name.clone(), fields.map(|f| rename_fields(f, &cte.columns))));
        }
        match &query.body {
            Body::Core(core) => self.analyze_select(query, core, &names),
            Body::Compound(_, left, right) => {
                let first = self.analyze_query(left, &names, None);
                let mut fields = first;
                let runs = if recursive_cte.is_some() && self.recursion_depth < MAX_REPEATED_DEPTH {
                    2
                } else {
                    1
                };
                self.recursion_depth += 1;
                for _ in 0..runs {
                    if let Some(cte) = recursive_cte {
                        let known = fields.clone().map(|f| rename_fields(f, &cte.columns));
                        names.ctes.push((cte.name.clone(), known));
                    }
                    let other = self.analyze_query(right, &names, None);
                    fields = merge_fields(fields, other);
                }
                self.recursion_depth -= 1;
                names.aliases = fields.clone().unwrap_or_default();
                self.analyze_order_and_limit(query, &names);
                fields
            }
            Body::Values(exprs, width) => {
                let mut columns: Vec<Flow> = Vec::new();
                for (n, expr) in exprs.iter().enumerate() {
                    let flow = self.analyze_expr(expr, &names).without_affinity();
                    match columns.get_mut(n % (*width).max(1)) {
                        Some(known) => *known = std::mem::take(known).union_with(flow),
                        None => columns.push(flow),
                    }
                }
                let named = |(n, flow)| FlowField { name: format!("column{}", n + 1), flow };
                self.analyze_order_and_limit(query, &names);
                Some(columns.into_iter().enumerate().map(named).collect())
            }
        }
    }

    fn analyze_order_and_limit(&mut self, query: &Query, names: &SelectNames<'_>) {
        for term in &query.order {
            let mut flow = self.analyze_expr(&term.expr, names);
            if let Body::Core(core) = &query.body
                && let ResolvedTerm::Result(n) =
                    resolve_term(&term.expr, Clause::Order, core, self.sql)
                && let Some(expr) = core.columns.get(n).and_then(|c| c.expr.as_ref())
            {
                flow = self.analyze_expr(expr, names);
            }
            self.record_order(&flow);
        }
        for expr in query.limit.iter().chain(&query.offset) {
            let flow = self.analyze_expr(expr, names);
            self.record_comparison(&flow, &ComparedWith::Limit);
        }
    }

    /// Records that the query's ORDER BY compares these values.
    pub fn record_order(&mut self, flow: &Flow) {
        for call in &flow.calls {
            self.usages.entry(*call).or_default().is_ordered = true;
        }
    }

    fn analyze_select(
        &mut self,
        query: &Query,
        core: &SelectCore,
        outer_names: &SelectNames<'_>,
    ) -> Option<Vec<FlowField>> {
        let mut names = SelectNames::new_child(outer_names);
        for item in &core.from {
            self.analyze_source(item, outer_names, &mut names);
        }
        for item in &core.from {
            self.analyze_join(item, &names);
        }
        // Conditions do not apply to the rows that a RIGHT or FULL JOIN adds.
        if core.from.iter().all(|i| i.join != JoinKind::Outer) {
            let inner = core.from.iter().filter(|i| i.join == JoinKind::Inner);
            for condition in inner.filter_map(|i| i.on.as_ref()).chain(&core.filter) {
                self.record_equalities(condition, &names);
            }
        }
        let groups = self.analyze_group_terms(core, &names);
        names.group_terms.clone_from(&groups.lineages);
        names.groups = picks_arbitrary_rows(query, core).then_some(groups);
        let fields = self.analyze_columns(core, &names);
        names.aliases = fields.iter().flatten().filter(|f| !f.name.is_empty()).cloned().collect();
        self.analyze_order_and_limit(query, &names);
        if let Some(having) = &core.having {
            self.analyze_condition(having, &names);
        }
        names.group_terms.clear();
        names.groups = None;
        if let Some(filter) = &core.filter {
            self.analyze_condition(filter, &names);
        }
        for expr in &core.windows {
            self.analyze_expr(expr, &names);
        }
        fields
    }

    /// Analyzes the GROUP BY terms, and returns the values that are unique within each group.
    fn analyze_group_terms(
        &mut self,
        core: &SelectCore,
        names: &SelectNames<'_>,
    ) -> GroupValues<'q> {
        let mut groups = GroupValues::default();
        let mut grouped = BTreeSet::new();
        for expr in &core.group {
            let flow = self.analyze_expr(expr, names);
            let column = match flow.lineage.as_deref() {
                None | Some(Lineage::Literal(_)) => self.find_referenced_column(core, expr),
                Some(_) => None,
            };
            let flow = column.map_or(flow, |expr| self.analyze_expr(expr, names));
            let sql = self.sql;
            let term = strip_expr_parens(column.unwrap_or(expr));
            groups.terms.push(sql[term.span.clone()].trim());
            groups.lineages.extend(flow.lineage.clone());
            if !flow.is_collated {
                groups.uncollated.extend(flow.lineage.clone());
            }
            let ExprKind::Column { table, column } = &strip_plus(term).kind else { continue };
            let Some((Some(of), field)) = names.find_column(table.as_deref(), column) else {
                if is_rowid(column) {
                    groups.add_single_rows(names.find_rowid_instances(table.as_deref()));
                }
                continue;
            };
            let Some(at) = names.tables.iter().position(|t| std::ptr::eq(t, of)) else { continue };
            groups.fields.push((at, field.name.to_lowercase()));
            if let Some(Lineage::Column { instance, column, .. }) = field.flow.lineage.as_deref()
                && !field.flow.is_collated
            {
                grouped.insert((*instance, column.to_lowercase()));
            }
        }
        let mut tables: Vec<(usize, String)> = Vec::new();
        for field in names.tables.iter().flat_map(|t| t.fields.iter().flatten()) {
            for (instance, table) in field.flow.lineage.iter().flat_map(|l| l.instances()) {
                if !tables.iter().any(|(known, _)| *known == instance) {
                    tables.push((instance, table.to_owned()));
                }
            }
        }
        groups.add_determined_columns(&grouped, &self.equalities, &tables, self.schema);
        groups
    }

    /// Returns the result column that a GROUP BY term refers to by number or alias, if any.
    fn find_referenced_column<'c>(&self, core: &'c SelectCore, term: &Expr) -> Option<&'c Expr> {
        // The caller has found no column of the FROM clause, so aliases resolve as in ORDER BY.
        match resolve_term(term, Clause::Order, core, self.sql) {
            ResolvedTerm::Result(n) => core.columns.get(n)?.expr.as_ref(),
            _ => None,
        }
    }

    fn analyze_columns(
        &mut self,
        core: &SelectCore,
        names: &SelectNames<'_>,
    ) -> Option<Vec<FlowField>> {
        let mut fields: Option<Vec<FlowField>> = Some(Vec::new());
        for column in &core.columns {
            if let Some(expr) = &column.expr {
                let flow = self.analyze_expr(expr, names);
                let own = match &strip_expr_parens(expr).kind {
                    ExprKind::Column { column, .. } => Some(column.clone()),
                    _ => None,
                };
                let name = column.alias.clone().or(own).unwrap_or_default();
                if let Some(fields) = &mut fields {
                    fields.push(FlowField { name, flow });
                }
                continue;
            }
            for (n, table) in names.tables.iter().enumerate() {
                if column.star_table.as_ref().is_some_and(|of| !table.has_name(of)) {
                    continue;
                }
                let Some(table_fields) = &table.fields else {
                    fields = None;
                    continue;
                };
                let item = core.from.get(n).filter(|_| core.from.len() == names.tables.len());
                let Some(fields) = &mut fields else { continue };
                for field in table_fields {
                    let shared = item.is_none_or(|i| {
                        i.natural || i.using.iter().any(|u| u.eq_ignore_ascii_case(&field.name))
                    });
                    let known = |f: &FlowField| f.name.eq_ignore_ascii_case(&field.name);
                    if column.star_table.is_some() || !shared || !fields.iter().any(known) {
                        fields.push(field.clone());
                    }
                }
            }
        }
        fields
    }

    /// Adds a FROM entry to the visible tables.
    fn analyze_source(
        &mut self,
        item: &FromItem,
        outer_names: &SelectNames<'_>,
        names: &mut SelectNames<'_>,
    ) {
        let fields = match &item.source {
            FromSource::Table { schema, name, .. } => {
                match outer_names.cte_fields(name).filter(|_| schema.is_none()) {
                    Some(fields) => fields.clone().map(|f| self.renumber_instances(f)),
                    None => match self.schema.view_definition(name) {
                        Some(view) => self.resolve_view_fields(name, view),
                        None => self.resolve_base_fields(name),
                    },
                }
            }
            FromSource::Function { name, .. } => self.schema.column_names(name).map(|columns| {
                columns.into_iter().map(|name| FlowField { name, flow: Flow::default() }).collect()
            }),
            FromSource::Query(query) => self.analyze_query(query, outer_names, None),
            FromSource::Join(items) => {
                let at = names.tables.len();
                items.iter().for_each(|i| self.analyze_source(i, outer_names, names));
                if item.name.is_none() {
                    return;
                }
                let inner: Vec<NamedTable> = names.tables.drain(at..).collect();
                inner.into_iter().map(|t| t.fields).try_fold(Vec::new(), |mut all, fields| {
                    all.extend(fields?);
                    Some(all)
                })
            }
        };
        names.tables.push(NamedTable { name: item.name.clone(), fields });
    }

    /// Assigns new instances to the columns of a table that the query reads again.
    fn renumber_instances(&mut self, mut fields: Vec<FlowField>) -> Vec<FlowField> {
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for field in &mut fields {
            if let Some(lineage) = &field.flow.lineage {
                let lineage = lineage.renumber_instances(&mut |old| {
                    *numbers.entry(old).or_insert_with(|| {
                        self.instance_count += 1;
                        self.instance_count
                    })
                });
                field.flow.lineage = Some(Arc::new(lineage));
            }
        }
        let renumber = |side: &(usize, String)| Some((*numbers.get(&side.0)?, side.1.clone()));
        let equalities: Vec<ColumnEquality> = (self.equalities.iter())
            .filter_map(|j| {
                Some(ColumnEquality { left: renumber(&j.left)?, right: renumber(&j.right)? })
            })
            .collect();
        self.equalities.extend(equalities);
        fields
    }

    /// Returns the columns of a view with their lineages in the view's query.
    fn resolve_view_fields(
        &mut self,
        name: &str,
        view: &'q ViewDefinition,
    ) -> Option<Vec<FlowField>> {
        let mut view_analysis =
            Self { instance_count: self.instance_count, ..Self::new(&view.sql, &[], self.schema) };
        let fields = view_analysis.analyze_query(&view.query, &SelectNames::default(), None);
        let columns = self.schema.column_names(name)?;
        let Some(fields) = fields.filter(|fields| fields.len() == columns.len()) else {
            return self.resolve_base_fields(name);
        };
        self.instance_count = view_analysis.instance_count;
        self.equalities.extend(view_analysis.equalities);
        Some(rename_fields(fields, &columns))
    }

    fn resolve_base_fields(&mut self, table: &str) -> Option<Vec<FlowField>> {
        let columns = self.schema.column_names(table)?;
        self.instance_count += 1;
        let instance = self.instance_count;
        let field = |name: String| {
            let origin = ColumnOrigin { table: table.to_owned(), column: name.clone() };
            let affinity = self.schema.affinity(table, &name);
            let lineage =
                Lineage::Column { instance, table: table.to_owned(), column: name.clone() };
            let flow = Flow {
                columns: vec![FlowColumn { origin, affinity }],
                lineage: Some(Arc::new(lineage)),
                ..Flow::default()
            };
            FlowField { name, flow }
        };
        Some(columns.into_iter().map(field).collect())
    }

    /// Records the column equalities in a condition that every row satisfies.
    fn record_equalities(&mut self, condition: &Expr, names: &SelectNames<'_>) {
        match &strip_expr_parens(condition).kind {
            ExprKind::And(parts) => parts.iter().for_each(|p| self.record_equalities(p, names)),
            ExprKind::Compare("=", left, right) => {
                let column = |side: &Expr| {
                    let ExprKind::Column { table, column } = &strip_expr_parens(side).kind else {
                        return None;
                    };
                    let (of, field) = names.find_column(table.as_deref(), column)?;
                    let is_own =
                        names.tables.iter().any(|t| of.is_some_and(|o| std::ptr::eq(o, t)));
                    match field.flow.lineage.as_deref()? {
                        Lineage::Column { instance, column, .. } if !field.flow.is_collated => {
                            Some(((*instance, column.to_lowercase()), is_own))
                        }
                        _ => None,
                    }
                };
                // If a subquery compares two outer columns, the equality need not hold for the
                // outer rows, so do not record it.
                if let (Some((left, left_is_own)), Some((right, right_is_own))) =
                    (column(left), column(right))
                    && (left_is_own || right_is_own)
                {
                    self.equalities.push(ColumnEquality { left, right });
                }
            }
            _ => {}
        }
    }

    /// Analyzes the join conditions of a table.
    fn analyze_join(&mut self, item: &FromItem, names: &SelectNames<'_>) {
        match &item.source {
            FromSource::Function { args, .. } => args.iter().for_each(|a| {
                self.analyze_expr(a, names);
            }),
            FromSource::Join(items) => items.iter().for_each(|i| self.analyze_join(i, names)),
            FromSource::Table { .. } | FromSource::Query(_) => {}
        }
        if let Some(on) = &item.on {
            self.analyze_condition(on, names);
        }
        let Some(at) =
            item.name.as_ref().and_then(|n| names.tables.iter().position(|t| t.has_name(n)))
        else {
            return;
        };
        let mut shared: BTreeSet<String> = item.using.iter().cloned().collect();
        if item.natural {
            shared.extend(names.tables[at].fields.iter().flatten().map(|f| f.name.clone()));
        }
        for name in &shared {
            let current = names.tables[at].find_field(name).map(|f| f.flow.clone());
            let before = names.tables[..at].iter().find_map(|t| t.find_field(name));
            if let (Some(here), Some(before)) = (current, before.map(|f| f.flow.clone())) {
                self.record_flow_comparison("=", &here, &before);
            }
        }
    }
}

/// Returns the columns of a compound: the union of both queries' flows. Returns `None` if the
/// columns of either are unknown.
fn merge_fields(
    left: Option<Vec<FlowField>>,
    right: Option<Vec<FlowField>>,
) -> Option<Vec<FlowField>> {
    let mut right = right?.into_iter();
    let merge = |field: FlowField| FlowField {
        flow: field.flow.union_with(right.next().map(|f| f.flow).unwrap_or_default()),
        ..field
    };
    left.map(|fields| fields.into_iter().map(merge).collect())
}

/// Removes parentheses and unary `+`, which do not change a value.
fn strip_plus(expr: &Expr) -> &Expr {
    match &strip_expr_parens(expr).kind {
        ExprKind::Operation(ExprOperator::Prefix("+"), parts) if parts.len() == 1 => {
            strip_plus(&parts[0])
        }
        _ => strip_expr_parens(expr),
    }
}

fn rename_fields(mut fields: Vec<FlowField>, names: &[String]) -> Vec<FlowField> {
    for (field, name) in fields.iter_mut().zip(names) {
        field.name.clone_from(name);
    }
    fields
}
