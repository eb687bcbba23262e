//! Lineage of a value: an expression over columns of database tables, independent of the names in
//! the query.
//!
//! Columns of the same *instance* come from the same row of a table. A table that is read twice has
//! two instances, and a common table expression that is read twice has its instances twice. Only
//! values that `SQLite` computes from columns and literals have a lineage.

use std::sync::Arc;

/// Maximum number of nodes in a lineage.
const MAX_PARTS: usize = 64;

/// Deterministic functions that are not aggregates.
const PURE_FUNCTIONS: [&str; 19] = [
    "coalesce",
    "concat",
    "format",
    "ifnull",
    "instr",
    "lower",
    "ltrim",
    "printf",
    "replace",
    "rtrim",
    "substr",
    "substring",
    "suql_left",
    "suql_lower",
    "suql_right",
    "suql_substr",
    "suql_upper",
    "trim",
    "upper",
];

/// An expression over columns of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lineage {
    /// A column of a table.
    Column {
        /// Number of the table instance.
        instance: usize,
        /// Table name.
        table: String,
        /// Column name.
        column: String,
    },
    /// A literal as SQL.
    Literal(String),
    /// An operator such as `||` or `+`, a function name, or `cast` with a type; and the operands.
    Operation(String, Vec<Arc<Lineage>>),
}

impl Lineage {
    /// Creates an operation. Returns `None` if it would have too many nodes.
    pub(super) fn new_operation(name: &str, parts: Vec<Arc<Self>>) -> Option<Arc<Self>> {
        let mut flat: Vec<Arc<Self>> = Vec::new();
        for part in parts {
            match &*part {
                // a || (b || c) is (a || b) || c
                Self::Operation(inner, parts) if name == "||" && inner == "||" => {
                    flat.extend(parts.iter().cloned());
                }
                _ => flat.push(part),
            }
        }
        let result = Self::Operation(name.to_owned(), flat);
        (result.node_count() <= MAX_PARTS).then(|| Arc::new(result))
    }

    /// Returns true if a function's value depends only on its arguments.
    pub(super) fn is_pure(function: &str) -> bool {
        PURE_FUNCTIONS.contains(&function)
    }

    fn node_count(&self) -> usize {
        match self {
            Self::Operation(_, parts) => 1 + parts.iter().map(|p| p.node_count()).sum::<usize>(),
            _ => 1,
        }
    }

    /// Visits each column, with its instance and its table and column names.
    pub fn visit_columns<'l>(&'l self, visit: &mut dyn FnMut(usize, &'l str, &'l str)) {
        match self {
            Self::Column { instance, table, column } => visit(*instance, table, column),
            Self::Literal(_) => {}
            Self::Operation(_, parts) => parts.iter().for_each(|p| p.visit_columns(visit)),
        }
    }

    /// Returns the table instances that the lineage reads, with their table names.
    #[must_use]
    pub fn instances(&self) -> Vec<(usize, &str)> {
        let mut found: Vec<(usize, &str)> = Vec::new();
        self.visit_columns(&mut |instance, table, _| {
            if !found.iter().any(|(known, _)| *known == instance) {
                found.push((instance, table));
            }
        });
        found
    }

    /// Returns true if both lineages compute the same formula, ignoring the instances.
    #[must_use]
    pub fn has_same_formula(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Column { table: t, column: c, .. }, Self::Column { table, column, .. }) => {
                t.eq_ignore_ascii_case(table) && c.eq_ignore_ascii_case(column)
            }
            (Self::Literal(a), Self::Literal(b)) => a == b,
            (Self::Operation(a, these), Self::Operation(b, those)) => {
                a == b
                    && these.len() == those.len()
                    && these.iter().zip(those).all(|(x, y)| x.has_same_formula(y))
            }
            _ => false,
        }
    }

    /// Returns true if both lineages compute the same formula from the same instances.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let instances_of = |lineage: &Self| {
            let mut all = Vec::new();
            lineage.visit_columns(&mut |instance, _, _| all.push(instance));
            all
        };
        self.has_same_formula(other) && instances_of(self) == instances_of(other)
    }

    /// Formats the lineage as SQL. `name` returns the name of an instance's column. Returns `None`
    /// if a column has no name.
    pub fn to_sql(&self, name: &dyn Fn(usize, &str) -> Option<String>) -> Option<String> {
        Some(match self {
            Self::Column { instance, column, .. } => name(*instance, column)?,
            Self::Literal(text) => text.clone(),
            Self::Operation(op, parts) => {
                let parts: Option<Vec<String>> = parts.iter().map(|p| p.to_sql(name)).collect();
                let parts = parts?;
                if let Some(type_name) = op.strip_prefix("cast ") {
                    format!("CAST({} AS {type_name})", parts.join(", "))
                } else if op.starts_with(char::is_alphabetic) {
                    format!("{op}({})", parts.join(", "))
                } else {
                    format!("({})", parts.join(&format!(" {op} ")))
                }
            }
        })
    }

    /// Returns the lineage with other instance numbers.
    #[must_use]
    pub fn renumber_instances(&self, number: &mut dyn FnMut(usize) -> usize) -> Self {
        match self {
            Self::Column { instance, table, column } => Self::Column {
                instance: number(*instance),
                table: table.clone(),
                column: column.clone(),
            },
            Self::Literal(text) => Self::Literal(text.clone()),
            Self::Operation(op, parts) => Self::Operation(
                op.clone(),
                parts.iter().map(|p| Arc::new(p.renumber_instances(number))).collect(),
            ),
        }
    }
}
