//! Follows values through a query. Computes the [flows](crate::blendsql::flow) of each SELECT's
//! columns, and records each comparison for the calls that flow into it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::blendsql::Call;
use crate::blendsql::flow::{Flow, FlowColumn};
use crate::blendsql::lineage::Lineage;
use crate::blendsql::scope::{ColumnOrigin, Schema, bare};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term};
use crate::blendsql::tree::{
    Body, Core, Cte, Expr, ExprKind, ExprOperator, FromItem, FromSource, JoinKind, Query,
    ViewDefinition,
};
use crate::blendsql::usage::groups::{GroupValues, shows_arbitrary_rows};
use crate::blendsql::usage::{CallUsage, ComparedWith, Joined, Outputs};

/// Maximum nesting of recursive queries whose recursive arm is followed twice.
const TWICE: usize = 3;

/// A column of a table with its possible values.
#[derive(Debug, Clone)]
pub(in crate::blendsql) struct FollowedField {
    pub name: String,
    pub flow: Flow,
}

/// A table in name resolution.
#[derive(Debug)]
pub(in crate::blendsql) struct NamedTable {
    pub name: Option<String>,
    /// `None` if the columns are unknown.
    pub fields: Option<Vec<FollowedField>>,
}

impl NamedTable {
    fn is(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|n| n.eq_ignore_ascii_case(name))
    }

    fn field(&self, name: &str) -> Option<&FollowedField> {
        self.fields.as_ref()?.iter().find(|f| f.name.eq_ignore_ascii_case(name))
    }
}

/// Names visible to a SELECT.
#[derive(Debug, Default)]
pub(in crate::blendsql) struct SelectNames<'p> {
    parent: Option<&'p SelectNames<'p>>,
    pub tables: Vec<NamedTable>,
    ctes: Vec<(String, Option<Vec<FollowedField>>)>,
    /// Aliases of result columns, which conditions may use.
    aliases: Vec<FollowedField>,
    /// Lineages of the GROUP BY terms while expressions of groups are followed, otherwise empty.
    pub grouped: Vec<Arc<Lineage>>,
    /// Values of which each group has exactly one, while expressions of groups are followed. `None`
    /// if the rows are not groups, or if `SQLite` does not choose an arbitrary row.
    pub groups: Option<GroupValues<'p>>,
}

impl<'p> SelectNames<'p> {
    fn within(parent: &'p SelectNames<'p>) -> Self {
        Self { parent: Some(parent), ..Self::default() }
    }

    pub fn around(&self) -> impl Iterator<Item = &SelectNames<'p>> {
        std::iter::successors(Some(self), |n| n.parent)
    }

    pub fn find(
        &self,
        table: Option<&str>,
        column: &str,
    ) -> Option<(Option<&NamedTable>, &FollowedField)> {
        self.find_with_select(table, column).map(|(_, of, field)| (of, field))
    }

    /// Resolves a name; returns the SELECT, the table and the column.
    pub fn find_with_select(
        &self,
        table: Option<&str>,
        column: &str,
    ) -> Option<(&SelectNames<'p>, Option<&NamedTable>, &FollowedField)> {
        for here in self.around() {
            let mut named = here.tables.iter().filter(|t| table.is_none_or(|n| t.is(n)));
            let hit = named.clone().find_map(|t| Some((t, t.field(column)?)));
            if let Some((table, field)) = hit {
                return Some((here, Some(table), field));
            }
            if named.any(|t| t.fields.is_none()) {
                return None;
            }
            let own = here.aliases.iter().find(|f| f.name.eq_ignore_ascii_case(column));
            if let Some(own) = own.filter(|_| table.is_none()) {
                return Some((here, None, own));
            }
        }
        None
    }

    /// Returns true if a group of this SELECT may have several values of its column.
    pub fn varies(&self, table: Option<&NamedTable>, field: &FollowedField) -> bool {
        let Some(groups) = &self.groups else { return false };
        let at = table.and_then(|of| self.tables.iter().position(|t| std::ptr::eq(t, of)));
        let name = field.name.to_lowercase();
        if at.is_some_and(|at| groups.fields.contains(&(at, name))) {
            return false;
        }
        match field.flow.lineage.as_deref() {
            Some(lineage) => !groups.has_one(lineage),
            // An alias may refer to an aggregate.
            None => table.is_some(),
        }
    }

    pub fn cte(&self, name: &str) -> Option<&Option<Vec<FollowedField>>> {
        let of = |n: &'_ SelectNames<'p>| {
            n.ctes.iter().rev().position(|(cte, _)| cte.eq_ignore_ascii_case(name))
        };
        self.around().find_map(|n| of(n).map(|at| &n.ctes[n.ctes.len() - 1 - at].1))
    }
}

/// State of following one query.
pub(in crate::blendsql) struct Follow<'q> {
    pub sql: &'q str,
    pub calls: &'q [Call],
    schema: &'q dyn Schema,
    pub found: HashMap<usize, CallUsage>,
    /// Columns of two instances that are equal in every joined row.
    pub joined: Vec<Joined>,
    instances: usize,
    recursive: usize,
    /// Number of enclosing aggregates, which read rows and not groups.
    pub aggregates: usize,
    /// Calls whose arguments are being followed.
    pub asking: Vec<usize>,
    /// SELECTs whose rows, or whose GROUP BY terms, the enclosing expressions read.
    pub reads_rows_of: Vec<*const ()>,
}

impl<'q> Follow<'q> {
    pub fn new(sql: &'q str, calls: &'q [Call], schema: &'q dyn Schema) -> Self {
        Self {
            sql,
            calls,
            schema,
            found: HashMap::new(),
            joined: Vec::new(),
            instances: 0,
            recursive: 0,
            aggregates: 0,
            asking: Vec::new(),
            reads_rows_of: Vec::new(),
        }
    }

    pub fn all(mut self, query: &Query) -> HashMap<usize, CallUsage> {
        self.query(query, &SelectNames::default(), None);
        self.found
    }

    pub fn outputs(mut self, query: &Query) -> Outputs {
        let fields = self.query(query, &SelectNames::default(), None).unwrap_or_default();
        let columns = fields.into_iter().map(|f| (f.name, f.flow.lineage)).collect();
        Outputs { columns, joined: self.joined }
    }

    /// Returns the columns of a query. `recursive_cte` is the CTE that it defines, if it is
    /// recursive.
    pub fn query(
        &mut self,
        query: &Query,
        around: &SelectNames<'_>,
        own: Option<&Cte>,
    ) -> Option<Vec<FollowedField>> {
        let mut names = SelectNames::within(around);
        for cte in &query.with {
            let fields = self.query(&cte.query, &names, Some(cte).filter(|c| c.recursive));
            names.ctes.push((cte.name.clone(), fields.map(|f| renamed(f, &cte.columns))));
        }
        match &query.body {
            Body::Core(core) => self.core(query, core, &names),
            Body::Compound(_, left, right) => {
                let first = self.query(left, &names, None);
                let mut fields = first;
                let runs = if own.is_some() && self.recursive < TWICE { 2 } else { 1 };
                self.recursive += 1;
                for _ in 0..runs {
                    if let Some(cte) = own {
                        let known = fields.clone().map(|f| renamed(f, &cte.columns));
                        names.ctes.push((cte.name.clone(), known));
                    }
                    let other = self.query(right, &names, None);
                    fields = either(fields, other);
                }
                self.recursive -= 1;
                names.aliases = fields.clone().unwrap_or_default();
                self.tail(query, &names);
                fields
            }
            Body::Values(exprs, width) => {
                let mut columns: Vec<Flow> = Vec::new();
                for (n, expr) in exprs.iter().enumerate() {
                    let flow = self.flow(expr, &names).plain();
                    match columns.get_mut(n % (*width).max(1)) {
                        Some(known) => *known = std::mem::take(known).or(flow),
                        None => columns.push(flow),
                    }
                }
                let named = |(n, flow)| FollowedField { name: format!("column{}", n + 1), flow };
                self.tail(query, &names);
                Some(columns.into_iter().enumerate().map(named).collect())
            }
        }
    }

    fn tail(&mut self, query: &Query, names: &SelectNames<'_>) {
        for term in &query.order {
            let mut flow = self.flow(&term.expr, names);
            if let Body::Core(core) = &query.body
                && let ResolvedTerm::Result(n) =
                    resolve_term(&term.expr, Clause::Order, core, self.sql)
                && let Some(expr) = core.columns.get(n).and_then(|c| c.expr.as_ref())
            {
                flow = self.flow(expr, names);
            }
            self.note_order(&flow);
        }
        for expr in query.limit.iter().chain(&query.offset) {
            let flow = self.flow(expr, names);
            self.note(&flow, &ComparedWith::Limit);
        }
    }

    /// Records that the values are ordered.
    pub fn note_order(&mut self, flow: &Flow) {
        for call in &flow.calls {
            self.found.entry(*call).or_default().ordered = true;
        }
    }

    fn core(
        &mut self,
        query: &Query,
        core: &Core,
        around: &SelectNames<'_>,
    ) -> Option<Vec<FollowedField>> {
        let mut names = SelectNames::within(around);
        for item in &core.from {
            self.read(item, around, &mut names);
        }
        for item in &core.from {
            self.followed(item, &names);
        }
        // Conditions do not apply to the rows that a RIGHT or FULL JOIN adds.
        if core.from.iter().all(|i| i.join != JoinKind::Outer) {
            let inner = core.from.iter().filter(|i| i.join == JoinKind::Inner);
            for condition in inner.filter_map(|i| i.on.as_ref()).chain(&core.filter) {
                self.equalities(condition, &names);
            }
        }
        let groups = self.group_values(core, &names);
        names.grouped.clone_from(&groups.lineages);
        names.groups = shows_arbitrary_rows(query, core).then_some(groups);
        let fields = self.columns(core, &names);
        names.aliases = fields.iter().flatten().filter(|f| !f.name.is_empty()).cloned().collect();
        self.tail(query, &names);
        if let Some(having) = &core.having {
            self.condition(having, &names);
        }
        names.grouped.clear();
        names.groups = None;
        if let Some(filter) = &core.filter {
            self.condition(filter, &names);
        }
        for expr in &core.windows {
            self.flow(expr, &names);
        }
        fields
    }

    /// Follows the terms of GROUP BY.
    fn group_values(&mut self, core: &Core, names: &SelectNames<'_>) -> GroupValues<'q> {
        let mut groups = GroupValues::default();
        let mut exact = Vec::new();
        for expr in &core.group {
            let flow = self.flow(expr, names);
            let column = match flow.lineage.as_deref() {
                None | Some(Lineage::Literal(_)) => self.result_column(core, expr),
                Some(_) => None,
            };
            let flow = column.map_or(flow, |expr| self.flow(expr, names));
            let sql = self.sql;
            let term = bare(column.unwrap_or(expr));
            groups.terms.push(sql[term.span.clone()].trim());
            groups.lineages.extend(flow.lineage.clone());
            let ExprKind::Column { table, column } = &without_plus(term).kind else { continue };
            let Some((Some(of), field)) = names.find(table.as_deref(), column) else { continue };
            let Some(at) = names.tables.iter().position(|t| std::ptr::eq(t, of)) else { continue };
            groups.fields.push((at, field.name.to_lowercase()));
            if let Some(Lineage::Column { instance, column, .. }) = field.flow.lineage.as_deref() {
                exact.push((*instance, column.to_lowercase()));
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
        groups.determine(exact, &self.joined, &tables, self.schema);
        groups
    }

    /// Returns the result column that a GROUP BY term refers to by number or alias.
    fn result_column<'c>(&self, core: &'c Core, term: &Expr) -> Option<&'c Expr> {
        // The caller has found no column of the FROM clause, so aliases resolve as in ORDER BY.
        match resolve_term(term, Clause::Order, core, self.sql) {
            ResolvedTerm::Result(n) => core.columns.get(n)?.expr.as_ref(),
            _ => None,
        }
    }

    fn columns(&mut self, core: &Core, names: &SelectNames<'_>) -> Option<Vec<FollowedField>> {
        let mut fields: Option<Vec<FollowedField>> = Some(Vec::new());
        for column in &core.columns {
            if let Some(expr) = &column.expr {
                let flow = self.flow(expr, names);
                let own = match &bare(expr).kind {
                    ExprKind::Column { column, .. } => Some(column.clone()),
                    _ => None,
                };
                let name = column.alias.clone().or(own).unwrap_or_default();
                if let Some(fields) = &mut fields {
                    fields.push(FollowedField { name, flow });
                }
                continue;
            }
            for (n, table) in names.tables.iter().enumerate() {
                if column.star_of.as_ref().is_some_and(|of| !table.is(of)) {
                    continue;
                }
                let Some(theirs) = &table.fields else {
                    fields = None;
                    continue;
                };
                let item = core.from.get(n).filter(|_| core.from.len() == names.tables.len());
                let Some(fields) = &mut fields else { continue };
                for field in theirs {
                    let shared = item.is_none_or(|i| {
                        i.natural || i.using.iter().any(|u| u.eq_ignore_ascii_case(&field.name))
                    });
                    let known = |f: &FollowedField| f.name.eq_ignore_ascii_case(&field.name);
                    if column.star_of.is_some() || !shared || !fields.iter().any(known) {
                        fields.push(field.clone());
                    }
                }
            }
        }
        fields
    }

    /// Adds a FROM entry to the visible tables.
    fn read(&mut self, item: &FromItem, around: &SelectNames<'_>, names: &mut SelectNames<'_>) {
        let fields = match &item.source {
            FromSource::Table { schema, name, .. } => {
                match around.cte(name).filter(|_| schema.is_none()) {
                    Some(fields) => fields.clone().map(|f| self.again(f)),
                    None => match self.schema.view(name) {
                        Some(view) => self.view(name, view),
                        None => self.base(name),
                    },
                }
            }
            FromSource::Function { name, .. } => self.schema.columns(name).map(|columns| {
                columns
                    .into_iter()
                    .map(|name| FollowedField { name, flow: Flow::default() })
                    .collect()
            }),
            FromSource::Query(query) => self.query(query, around, None),
            FromSource::Join(items) => {
                let at = names.tables.len();
                items.iter().for_each(|i| self.read(i, around, names));
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

    /// Assigns new instances to the columns of a table that is read again.
    fn again(&mut self, mut fields: Vec<FollowedField>) -> Vec<FollowedField> {
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for field in &mut fields {
            if let Some(lineage) = &field.flow.lineage {
                let lineage = lineage.renumbered(&mut |old| {
                    *numbers.entry(old).or_insert_with(|| {
                        self.instances += 1;
                        self.instances
                    })
                });
                field.flow.lineage = Some(Arc::new(lineage));
            }
        }
        let again = |side: &(usize, String)| Some((*numbers.get(&side.0)?, side.1.clone()));
        let joined: Vec<Joined> = (self.joined.iter())
            .filter_map(|j| Some(Joined { left: again(&j.left)?, right: again(&j.right)? }))
            .collect();
        self.joined.extend(joined);
        fields
    }

    /// Returns the columns of a view, with the lineage from its query.
    fn view(&mut self, name: &str, view: &'q ViewDefinition) -> Option<Vec<FollowedField>> {
        let mut within =
            Self { instances: self.instances, ..Self::new(&view.sql, &[], self.schema) };
        let fields = within.query(&view.query, &SelectNames::default(), None);
        let columns = self.schema.columns(name)?;
        let Some(fields) = fields.filter(|fields| fields.len() == columns.len()) else {
            return self.base(name);
        };
        self.instances = within.instances;
        self.joined.extend(within.joined);
        Some(renamed(fields, &columns))
    }

    fn base(&mut self, table: &str) -> Option<Vec<FollowedField>> {
        let columns = self.schema.columns(table)?;
        self.instances += 1;
        let instance = self.instances;
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
            FollowedField { name, flow }
        };
        Some(columns.into_iter().map(field).collect())
    }

    /// Records the column equalities in a condition that every row satisfies.
    fn equalities(&mut self, condition: &Expr, names: &SelectNames<'_>) {
        match &bare(condition).kind {
            ExprKind::And(parts) => parts.iter().for_each(|p| self.equalities(p, names)),
            ExprKind::Compare("=", left, right) => {
                let column = |side: &Expr| {
                    let ExprKind::Column { table, column } = &bare(side).kind else { return None };
                    let (of, field) = names.find(table.as_deref(), column)?;
                    let own = names.tables.iter().any(|t| of.is_some_and(|o| std::ptr::eq(o, t)));
                    match field.flow.lineage.as_deref()? {
                        Lineage::Column { instance, column, .. } => {
                            Some(((*instance, column.to_lowercase()), own))
                        }
                        _ => None,
                    }
                };
                // A subquery's comparison of outer columns does not hold for the rows of the
                // subquery.
                if let (Some((left, own)), Some((right, also))) = (column(left), column(right))
                    && (own || also)
                {
                    self.joined.push(Joined { left, right });
                }
            }
            _ => {}
        }
    }

    /// Follows the join conditions of a table.
    fn followed(&mut self, item: &FromItem, names: &SelectNames<'_>) {
        match &item.source {
            FromSource::Function { args, .. } => args.iter().for_each(|a| {
                self.flow(a, names);
            }),
            FromSource::Join(items) => items.iter().for_each(|i| self.followed(i, names)),
            FromSource::Table { .. } | FromSource::Query(_) => {}
        }
        if let Some(on) = &item.on {
            self.condition(on, names);
        }
        let Some(at) = item.name.as_ref().and_then(|n| names.tables.iter().position(|t| t.is(n)))
        else {
            return;
        };
        let mut shared: BTreeSet<String> = item.using.iter().cloned().collect();
        if item.natural {
            shared.extend(names.tables[at].fields.iter().flatten().map(|f| f.name.clone()));
        }
        for name in &shared {
            let here = names.tables[at].field(name).map(|f| f.flow.clone());
            let before = names.tables[..at].iter().find_map(|t| t.field(name));
            if let (Some(here), Some(before)) = (here, before.map(|f| f.flow.clone())) {
                self.meet("=", &here, &before);
            }
        }
    }
}

/// Returns the columns of a compound: the union of both queries' flows.
fn either(
    left: Option<Vec<FollowedField>>,
    right: Option<Vec<FollowedField>>,
) -> Option<Vec<FollowedField>> {
    let right = right.unwrap_or_default();
    let mut right = right.into_iter();
    let or = |field: FollowedField| FollowedField {
        flow: field.flow.or(right.next().map(|f| f.flow).unwrap_or_default()),
        ..field
    };
    left.map(|fields| fields.into_iter().map(or).collect())
}

/// Removes parentheses and unary `+`, which do not change a value.
fn without_plus(expr: &Expr) -> &Expr {
    match &bare(expr).kind {
        ExprKind::Operation(ExprOperator::Prefix("+"), parts) if parts.len() == 1 => {
            without_plus(&parts[0])
        }
        _ => bare(expr),
    }
}

fn renamed(mut fields: Vec<FollowedField>, names: &[String]) -> Vec<FollowedField> {
    for (field, name) in fields.iter_mut().zip(names) {
        field.name.clone_from(name);
    }
    fields
}
