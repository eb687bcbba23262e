//! Builds FROM and WHERE clauses that select [possible rows](super::possible_rows).

use super::{BoundWriter, ROWS_FROM_ANSWERS};
use crate::blendsql::emit::replace_parts;
use crate::blendsql::frame::Frame;
use crate::blendsql::scope::{Field, Table};
use crate::blendsql::tree::{FromItem, FromSource, JoinKind, SelectCore, Span};

/// Maximum number of outer joins with answer-dependent matches per SELECT. Each such join doubles
/// the number of statements.
const MAX_OUTER_JOINS: usize = 6;

/// FROM and WHERE clauses that select possible rows.
pub(super) struct PossibleFrom<'p> {
    pub frame: Frame<'p>,
    parts: Vec<(Span, String)>,
    /// Replacements that make an outer join find no match.
    nulls: Vec<(Span, String)>,
    pub condition: String,
    /// Whether every table is exact, i.e. has the same rows as in the query.
    pub exact_tables: bool,
    pub exact: bool,
}

impl BoundWriter<'_> {
    /// Builds the FROM and WHERE clauses of a SELECT over possible rows, and adds probes of the
    /// calls in its sources. Returns `None` if answers affect a join by name, the arguments of a
    /// table function, or more than `MAX_OUTER_JOINS` outer joins.
    pub fn build_possible_from<'f>(
        &mut self,
        core: &SelectCore,
        around: &'f Frame<'f>,
    ) -> Option<PossibleFrom<'f>> {
        let mut open = PossibleFrom {
            frame: Frame::new_child(around),
            parts: Vec::new(),
            nulls: Vec::new(),
            condition: "1".to_owned(),
            exact_tables: true,
            exact: true,
        };
        let mut exact = Vec::new();
        if !self.add_tables(&core.from, around, &mut open, &mut exact) {
            return None;
        }
        open.frame.aliases = (core.columns.iter())
            .filter_map(|c| Some((c.alias.clone()?, c.expr.clone()?)))
            .collect();
        open.exact_tables = exact.iter().all(|e| *e);
        open.exact = self.add_join_conditions(&core.from, &mut exact.into_iter(), &mut open)?;
        if open.nulls.len() > MAX_OUTER_JOINS {
            return None;
        }
        if let Some(filter) = &core.filter {
            open.exact &= self.is_certain(filter, &open.frame, false);
            open.condition = self.build_possible_condition(filter, &open.frame);
        }
        Some(open)
    }

    /// Adds the tables of FROM items to the scope. For each table, appends to `exact` whether the
    /// table's rows are exact. Returns false if a join by name or a function's arguments depend on
    /// answers.
    fn add_tables(
        &mut self,
        items: &[FromItem],
        around: &Frame<'_>,
        open: &mut PossibleFrom<'_>,
        exact: &mut Vec<bool>,
    ) -> bool {
        let mut is_known = true;
        for item in items {
            let (fields, of) = match &item.source {
                FromSource::Table { schema, name, .. } => {
                    match around.scope.cte_fields(name).filter(|_| schema.is_none()) {
                        Some(fields) => (fields.clone(), around.is_exact(name)),
                        None => (self.analysis.resolver().resolve_base_fields(name), true),
                    }
                }
                FromSource::Function { name, args } => {
                    args.iter().for_each(|a| self.mark_all_unbounded(a, ROWS_FROM_ANSWERS));
                    is_known &= args.iter().all(|a| self.is_certain(a, &open.frame, false));
                    let field = |name| Field {
                        name,
                        origin: None,
                        is_from_call: false,
                        has_custom_collation: true,
                    };
                    let columns = self.analysis.schema.column_names(name);
                    (columns.map(|all| all.into_iter().map(field).collect()), true)
                }
                FromSource::Query(query) => {
                    let rows = self.write_query(query, around);
                    open.parts.push((query.span.clone(), rows.text));
                    (rows.fields, rows.exact)
                }
                FromSource::Join(inner) => {
                    let at = open.frame.scope.tables.len();
                    is_known &= self.add_tables(inner, around, open, exact);
                    if item.name.is_none() {
                        continue;
                    }
                    let tables: Vec<Table> = open.frame.scope.tables.drain(at..).collect();
                    let mut fields = tables.into_iter().map(|t| t.fields);
                    let fields = fields.try_fold(Vec::new(), |mut all, fields| {
                        all.extend(fields?);
                        Some(all)
                    });
                    open.frame.scope.tables.push(Table {
                        name: item.name.clone(),
                        fields,
                        source: item.table_sql(),
                    });
                    continue;
                }
            };
            let live = |name: &str| {
                let named = |f: &Field| f.is_from_call && f.name.eq_ignore_ascii_case(name);
                fields.iter().flatten().any(named)
                    || open.frame.scope.tables.iter().any(|t| t.fields.iter().flatten().any(named))
            };
            let natural = item.natural
                && (fields.is_none() || fields.iter().flatten().any(|f| live(&f.name)));
            is_known &= !natural && !item.using.iter().any(|name| live(name));
            open.frame.is_opaque |= fields.is_none() && !of;
            exact.push(of);
            open.frame.scope.tables.push(Table {
                name: item.name.clone(),
                fields,
                source: item.table_sql(),
            });
        }
        is_known
    }

    /// Replaces the join conditions that depend on answers. Returns whether the joined rows are
    /// exact, or `None` if an outer join without a match cannot be expressed.
    fn add_join_conditions(
        &self,
        items: &[FromItem],
        exact: &mut dyn Iterator<Item = bool>,
        open: &mut PossibleFrom<'_>,
    ) -> Option<bool> {
        let mut left = true;
        for item in items {
            let right = match &item.source {
                FromSource::Join(inner) => self.add_join_conditions(inner, exact, open)?,
                _ => exact.next()?,
            };
            let mut on = true;
            if let Some(condition) = &item.on {
                on = self.is_certain(condition, &open.frame, false);
                if !on {
                    let text = self.build_possible_condition(condition, &open.frame);
                    open.parts.push((condition.span.clone(), text));
                }
            }
            let without = match item.join {
                JoinKind::Inner => false,
                JoinKind::Left => !right || !on,
                JoinKind::Outer => !left || !right || !on,
            };
            if without {
                open.nulls.push(match (&item.on, &item.source) {
                    (Some(on), _) => (on.span.clone(), "0".to_owned()),
                    (None, FromSource::Query(query)) if item.join == JoinKind::Left => {
                        let text = replace_parts(self.sql, &query.span, open.parts.clone());
                        (query.span.clone(), format!("SELECT * FROM ({text}) WHERE 0"))
                    }
                    _ => return None,
                });
            }
            left &= right && on;
        }
        Some(left)
    }

    /// Returns all variants of the FROM clause up to `end`. Each variant yields some of the
    /// possible rows, and together the variants yield all possible rows. `replacements` contains
    /// SQL that replaces tables.
    pub fn write_from_variants(
        &self,
        core: &SelectCore,
        open: &PossibleFrom<'_>,
        end: usize,
        replacements: &[(Span, String)],
    ) -> Vec<String> {
        let Some(last) = core.columns.last().filter(|_| !core.from.is_empty()) else {
            return vec![String::new()];
        };
        let span = last.span.end..end;
        let nulls: Vec<&(Span, String)> = open.nulls.iter().filter(|(s, _)| s.end <= end).collect();
        let write_variant = |which: usize| {
            let chosen = nulls.iter().enumerate().filter(|(n, _)| which >> n & 1 == 1);
            // The first of several parts with the same range applies.
            let parts = replacements.iter().chain(chosen.map(|(_, null)| *null)).chain(&open.parts);
            replace_parts(self.sql, &span, parts.cloned().collect())
        };
        (0..1_usize << nulls.len()).map(write_variant).collect()
    }
}
