//! What a value is made of, down to the columns of a table of the database: an
//! expression over columns, whatever names it went through.
//!
//! Columns of one *instance* come from one row of their table: the same table
//! read twice is two instances, and a common table expression that is read twice
//! has its instances twice. Only what `SQLite` computes from these columns and
//! literals alone is known so far; of everything else there is no lineage.

use std::sync::Arc;

/// The most parts of an expression that is followed.
const MOST: usize = 64;

/// Functions that give the same for the same arguments, and are no aggregates.
const PURE: [&str; 19] = [
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
    /// A column.
    Column {
        /// Which reading of its table.
        instance: usize,
        /// Its table.
        table: String,
        /// Its name.
        column: String,
    },
    /// A literal, as SQL.
    Literal(String),
    /// `||`, `+` …, a function's name, or `cast` and a type.
    Op(String, Vec<Arc<Lineage>>),
}

impl Lineage {
    /// An operation; `None` when it is too much to follow.
    pub(super) fn op(name: &str, parts: Vec<Arc<Self>>) -> Option<Arc<Self>> {
        let mut flat: Vec<Arc<Self>> = Vec::new();
        for part in parts {
            match &*part {
                // a || (b || c) is (a || b) || c
                Self::Op(inner, parts) if name == "||" && inner == "||" => {
                    flat.extend(parts.iter().cloned());
                }
                _ => flat.push(part),
            }
        }
        let made = Self::Op(name.to_owned(), flat);
        (made.size() <= MOST).then(|| Arc::new(made))
    }

    /// Whether a function's value is told by its arguments alone.
    pub(super) fn is_pure(function: &str) -> bool {
        PURE.contains(&function)
    }

    fn size(&self) -> usize {
        match self {
            Self::Op(_, parts) => 1 + parts.iter().map(|p| p.size()).sum::<usize>(),
            _ => 1,
        }
    }

    /// Shows every column in it: instance, table, column.
    pub fn each_column<'l>(&'l self, see: &mut dyn FnMut(usize, &'l str, &'l str)) {
        match self {
            Self::Column { instance, table, column } => see(*instance, table, column),
            Self::Literal(_) => {}
            Self::Op(_, parts) => parts.iter().for_each(|p| p.each_column(see)),
        }
    }

    /// The instances that its columns are of, each with its table.
    #[must_use]
    pub fn instances(&self) -> Vec<(usize, &str)> {
        let mut found: Vec<(usize, &str)> = Vec::new();
        self.each_column(&mut |instance, table, _| {
            if !found.iter().any(|(known, _)| *known == instance) {
                found.push((instance, table));
            }
        });
        found
    }

    /// Whether it computes the same from the columns of some row, whichever
    /// instance that is of.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Column { table: t, column: c, .. }, Self::Column { table, column, .. }) => {
                t.eq_ignore_ascii_case(table) && c.eq_ignore_ascii_case(column)
            }
            (Self::Literal(a), Self::Literal(b)) => a == b,
            (Self::Op(a, these), Self::Op(b, those)) => {
                a == b
                    && these.len() == those.len()
                    && these.iter().zip(those).all(|(x, y)| x.is_like(y))
            }
            _ => false,
        }
    }

    /// Whether it computes the same from the columns of the same rows.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let of = |lineage: &Self| {
            let mut all = Vec::new();
            lineage.each_column(&mut |instance, _, _| all.push(instance));
            all
        };
        self.is_like(other) && of(self) == of(other)
    }

    /// As SQL over columns that go by the names of `name`, which is told instance and
    /// column; `None` when one of them has none.
    pub fn written(&self, name: &dyn Fn(usize, &str) -> Option<String>) -> Option<String> {
        Some(match self {
            Self::Column { instance, column, .. } => name(*instance, column)?,
            Self::Literal(text) => text.clone(),
            Self::Op(op, parts) => {
                let parts: Option<Vec<String>> = parts.iter().map(|p| p.written(name)).collect();
                let parts = parts?;
                if let Some(kind) = op.strip_prefix("cast ") {
                    format!("CAST({} AS {kind})", parts.join(", "))
                } else if op.starts_with(char::is_alphabetic) {
                    format!("{op}({})", parts.join(", "))
                } else {
                    format!("({})", parts.join(&format!(" {op} ")))
                }
            }
        })
    }

    /// The same of other instances.
    #[must_use]
    pub fn renumbered(&self, number: &mut dyn FnMut(usize) -> usize) -> Self {
        match self {
            Self::Column { instance, table, column } => Self::Column {
                instance: number(*instance),
                table: table.clone(),
                column: column.clone(),
            },
            Self::Literal(text) => Self::Literal(text.clone()),
            Self::Op(op, parts) => {
                Self::Op(op.clone(), parts.iter().map(|p| Arc::new(p.renumbered(number))).collect())
            }
        }
    }
}
