//! What columns cost, by day: read once, and then what came since.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::facts::{ColumnDay, Facts, FactsError};
use crate::key::Meaning;

/// A column, as who pays for it knows it: its name, or the question it answers, and
/// the columns of its key.
pub(super) type ColumnName = (String, String);

/// What columns cost on the days that were looked at last.
#[derive(Default)]
pub(super) struct ColumnSpending(Mutex<SeenSpending>);

#[derive(Default)]
struct SeenSpending {
    /// The last line that is in the sums.
    line: i64,
    /// USD and cells by day and column.
    days: BTreeMap<(String, ColumnName), (f64, u64)>,
}

/// What a column cost.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ColumnCost {
    pub(super) column: ColumnName,
    /// USD of the last day.
    pub(super) today: f64,
    /// USD of all days.
    pub(super) usd: f64,
    /// Cells that were answered.
    pub(super) cells: u64,
}

impl ColumnSpending {
    /// What each column cost on these days, of which the last is today; the dearest
    /// first.
    pub(super) fn of(&self, facts: &Facts, days: &[String]) -> Result<Vec<ColumnCost>, FactsError> {
        let (Some(first), Some(today)) = (days.first(), days.last()) else {
            return Ok(Vec::new());
        };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (line, fresh) = facts.history().columns_after(seen.line, first)?;
        seen.line = line;
        for ColumnDay { day, meaning, usd, cells } in fresh {
            let sum = seen.days.entry((day, name(&meaning))).or_default();
            *sum = (sum.0 + usd, sum.1 + cells);
        }
        seen.days.retain(|(day, _), _| day >= first);
        let mut costs: BTreeMap<&ColumnName, (f64, f64, u64)> = BTreeMap::new();
        for ((day, column), (usd, cells)) in &seen.days {
            let cost = costs.entry(column).or_default();
            cost.0 += if day == today { *usd } else { 0.0 };
            cost.1 += usd;
            cost.2 += cells;
        }
        let cost = |(column, (today, usd, cells)): (&ColumnName, (f64, f64, u64))| ColumnCost {
            column: column.clone(),
            today,
            usd,
            cells,
        };
        let mut costs: Vec<ColumnCost> = costs.into_iter().map(cost).collect();
        costs.sort_by(|a, b| b.usd.total_cmp(&a.usd));
        Ok(costs)
    }
}

/// How a column is called; an answer to a question of a query by the question.
fn name(meaning: &str) -> ColumnName {
    let Ok(meaning) = serde_json::from_str::<Meaning>(meaning) else {
        return (meaning.to_owned(), String::new());
    };
    let asked = matches!(meaning.column.as_str(), "answer" | "partners");
    (if asked { meaning.about } else { meaning.column }, meaning.key.join(", "))
}
