//! Sums the cost of the columns by day. It reads the journal once, and then only its new rows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::facts::{ColumnDailyCost, Facts, FactsError};
use crate::key::ColumnIdentity;

/// Display name of a column: its name, or the question it answers, and the columns of its key.
pub(super) type ColumnName = (String, String);

/// Cost of the columns on the requested days, updated incrementally.
#[derive(Default)]
pub(super) struct ColumnSpending(Mutex<SpendingSums>);

#[derive(Default)]
struct SpendingSums {
    /// Position in the journal up to which the sums are complete.
    log_position: i64,
    /// USD and cells by day and column.
    days: BTreeMap<(String, ColumnName), (f64, u64)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ColumnCost {
    pub(super) column: ColumnName,
    /// Today's cost in USD.
    pub(super) today: f64,
    /// Cost of all requested days in USD.
    pub(super) usd: f64,
    /// Number of answered cells.
    pub(super) cells: u64,
}

impl ColumnSpending {
    /// Returns the cost of each column on these days, most expensive first. The last day is today.
    pub(super) fn compute_column_costs(
        &self,
        facts: &Facts,
        days: &[String],
    ) -> Result<Vec<ColumnCost>, FactsError> {
        let (Some(first), Some(today)) = (days.first(), days.last()) else {
            return Ok(Vec::new());
        };
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (log_position, fresh) = facts.history().load_column_costs(sums.log_position, first)?;
        sums.log_position = log_position;
        for ColumnDailyCost { day, identity, usd, cells } in fresh {
            let sum = sums.days.entry((day, column_name(&identity))).or_default();
            *sum = (sum.0 + usd, sum.1 + cells);
        }
        sums.days.retain(|(day, _), _| day >= first);
        let mut costs: BTreeMap<&ColumnName, (f64, f64, u64)> = BTreeMap::new();
        for ((day, column), (usd, cells)) in &sums.days {
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

/// Returns the display name of a column. A column that answers a query's question is displayed as
/// the question.
fn column_name(identity_json: &str) -> ColumnName {
    let Ok(identity) = serde_json::from_str::<ColumnIdentity>(identity_json) else {
        return (identity_json.to_owned(), String::new());
    };
    let name = identity.question().unwrap_or(&identity.column);
    (name.to_owned(), identity.key.join(", "))
}
