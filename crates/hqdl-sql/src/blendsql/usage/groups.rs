//! Functional dependencies of groups: finds the values that are unique within each group.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::blendsql::aggregates::{is_aggregate_call, visit_own_exprs};
use crate::blendsql::lineage::Lineage;
use crate::blendsql::scope::Schema;
use crate::blendsql::tree::{ExprKind, Query, SelectCore};
use crate::blendsql::usage::ColumnEquality;

/// Instance and lower-case column name.
type InstanceColumn = (usize, String);

/// Values that are unique within each group of a SELECT.
#[derive(Debug, Default)]
pub(in crate::blendsql) struct GroupValues<'p> {
    /// Source text of the GROUP BY terms.
    pub terms: Vec<&'p str>,
    /// Terms that are plain columns: position of the table in FROM and lower-case column name.
    pub fields: Vec<(usize, String)>,
    /// Lineages of the terms.
    pub lineages: Vec<Arc<Lineage>>,
    /// Lineages of the terms without a COLLATE.
    pub uncollated: Vec<Arc<Lineage>>,
    /// Columns that have one value per group.
    determined: BTreeSet<InstanceColumn>,
    /// Instances that have one row per group.
    single_row_instances: BTreeSet<usize>,
}

impl GroupValues<'_> {
    /// Returns true if the text equals the source text of a GROUP BY term.
    pub fn is_group_term(&self, text: &str) -> bool {
        let has_quotes = text.contains(['\'', '"']);
        self.terms
            .iter()
            .any(|term| *term == text || !has_quotes && term.eq_ignore_ascii_case(text))
    }

    /// Returns true if a group has only one value of this lineage.
    pub fn has_single_value(&self, lineage: &Lineage) -> bool {
        // A literal has no instance, and a literal from a LEFT JOIN's subquery is NULL in some
        // rows.
        let mut is_single = !lineage.instances().is_empty();
        lineage.visit_columns(&mut |instance, _, column| {
            is_single &= self.single_row_instances.contains(&instance)
                || self.determined.contains(&(instance, column.to_lowercase()));
        });
        is_single || self.uncollated.iter().any(|term| term.is_same(lineage))
    }

    /// Adds instances that have one row per group.
    pub fn add_single_rows(&mut self, instances: BTreeSet<usize>) {
        self.single_row_instances.extend(instances);
    }

    /// Adds the columns that have one value per group, because joins equate them with GROUP BY
    /// columns. Also adds the instances that have one row per group, because a unique key of their
    /// table consists of such columns. `tables` are the FROM instances with their tables.
    ///
    /// All rows of a group agree in these columns under the columns' own collations, and no two
    /// rows of a table agree in a whole unique key.
    pub fn add_determined_columns(
        &mut self,
        grouped: &BTreeSet<InstanceColumn>,
        equalities: &[ColumnEquality],
        tables: &[(usize, String)],
        schema: &dyn Schema,
    ) {
        let table_of = |instance| tables.iter().find(|(n, _)| *n == instance).map(|(_, t)| t);
        // Different texts can be equal under a custom collation, so such a column may have several
        // values.
        let is_exact = |(instance, column): &InstanceColumn| {
            table_of(*instance).is_some_and(|table| !schema.has_custom_collation(table, column))
        };
        let affinity =
            |(instance, column): &InstanceColumn| schema.affinity(table_of(*instance)?, column);
        self.determined = grouped.iter().filter(|c| is_exact(c)).cloned().collect();
        loop {
            let before = (self.determined.len(), self.single_row_instances.len());
            for (instance, table) in tables {
                let has = |column: &String| {
                    let column = (*instance, column.clone());
                    grouped.contains(&column) || self.determined.contains(&column)
                };
                if schema.unique_keys(table).iter().any(|key| key.iter().all(has)) {
                    self.single_row_instances.insert(*instance);
                }
            }
            for join in equalities {
                for (from, to) in [(&join.left, &join.right), (&join.right, &join.left)] {
                    let is_determined = self.single_row_instances.contains(&from.0)
                        || self.determined.contains(from);
                    let compares_equal =
                        is_exact(from) && is_exact(to) && affinity(from) == affinity(to);
                    if is_determined && compares_equal {
                        self.determined.insert(to.clone());
                    }
                }
            }
            if before == (self.determined.len(), self.single_row_instances.len()) {
                return;
            }
        }
    }
}

/// Returns true if `SQLite` takes column values from an arbitrary row of each group, because the
/// SELECT has GROUP BY or aggregates. With a single `max` or `min`, `SQLite` chooses the row with
/// the maximum or minimum instead.
pub(in crate::blendsql) fn picks_arbitrary_rows(query: &Query, core: &SelectCore) -> bool {
    let mut names: Vec<String> = Vec::new();
    let exprs = core.columns.iter().filter_map(|c| c.expr.as_ref());
    for expr in exprs.chain(&core.having).chain(query.order.iter().map(|o| &o.expr)) {
        visit_own_exprs(expr, &mut |e| {
            if let ExprKind::Function { name, .. } = &e.kind
                && is_aggregate_call(e)
            {
                names.push(name.clone());
            }
        });
    }
    match names.as_slice() {
        [one] if matches!(one.as_str(), "max" | "min") => false,
        [] => !core.group.is_empty() || core.having.is_some(),
        _ => true,
    }
}
