//! Spending, computed from the journal.

use super::reservations::PAID;
use crate::spending::{ColumnDailyCost, HourlySpending, Totals};
use rusqlite::params;

use crate::FactsError;
use crate::history::Spending;
use crate::ids::RunId;
use crate::journal::Journal;
use crate::journal::answers::read_lossy_text;
use crate::journal::reservations::{sum_costs_reserved_since, sum_reserved_costs};
use hqdl_database::current_timestamp;
use hqdl_values::usage::SpentAmount;

impl Spending for Journal {
    fn sum_run_cost(&self, run: RunId) -> Result<SpentAmount, FactsError> {
        self.with_connection(|c| {
            c.query_row(
                &format!(
                    "SELECT coalesce(sum(usd), 0.0), coalesce(sum(tokens), 0) FROM (
                       SELECT cost_usd AS usd, input_tokens + output_tokens AS tokens
                       FROM completion WHERE run = ?1 AND {PAID}
                       UNION ALL SELECT cost_usd, tokens FROM reservation WHERE run = ?1
                     )"
                ),
                [run],
                |r| Ok(SpentAmount { usd: r.get(0)?, tokens: r.get(1)? }),
            )
        })
    }

    fn sum_cost_today(&self) -> Result<f64, FactsError> {
        self.with_connection(|c| {
            c.query_row(
                &format!(
                    "SELECT coalesce(sum(cost_usd), 0.0) FROM (
                       SELECT cost_usd FROM completion WHERE asked_at >= ?1 AND {PAID}
                       UNION ALL SELECT cost_usd FROM reservation WHERE reserved_at >= ?1
                     )"
                ),
                [current_timestamp().get(..10).unwrap_or_default()],
                |r| r.get(0),
            )
        })
    }

    fn load_totals(&self) -> Result<Totals, FactsError> {
        self.with_connection(|c| {
            c.query_row(
                &format!(
                    "SELECT (SELECT count(*) FROM run), count(*), coalesce(sum(input_tokens), 0),
                            coalesce(sum(output_tokens), 0), coalesce(sum(cost_usd), 0.0),
                            (SELECT coalesce(sum(cost_usd), 0.0) FROM reservation),
                            coalesce(sum(assumed_cache_writes), 0)
                     FROM completion WHERE content IS NOT NULL AND {PAID}"
                ),
                [],
                |r| {
                    Ok(Totals {
                        runs: r.get(0)?,
                        requests: r.get(1)?,
                        input_tokens: r.get(2)?,
                        output_tokens: r.get(3)?,
                        cost_usd: r.get(4)?,
                        in_doubt_usd: r.get(5)?,
                        assumed_cache_writes: r.get(6)?,
                    })
                },
            )
        })
    }

    fn sum_reserved_run_cost(&self, run: RunId) -> Result<SpentAmount, FactsError> {
        self.with_snapshot(|c| sum_reserved_costs(c, "p.run = ?1", &run))
    }

    fn sum_reserved_cost_today(&self) -> Result<SpentAmount, FactsError> {
        let today = current_timestamp().get(..10).unwrap_or_default().to_owned();
        self.with_snapshot(|c| sum_costs_reserved_since(c, &today))
    }

    fn load_hourly_spending(&self, since: &str) -> Result<Vec<HourlySpending>, FactsError> {
        let sql = format!(
            "SELECT substr(asked_at, 1, 13), m.name, sum(cost_usd), sum(input_tokens + output_tokens), count(*)
             FROM completion JOIN model AS m ON m.id = completion.model
             WHERE asked_at >= substr(?1, 1, 19) AND {PAID} GROUP BY 1, 2 ORDER BY 1, 2"
        );
        self.with_connection(|c| {
            c.prepare_cached(&sql)?
                .query_map([since], |r| {
                    Ok(HourlySpending {
                        hour: r.get(0)?,
                        model: read_lossy_text(r, 1)?.unwrap_or_default(),
                        usd: r.get(2)?,
                        tokens: r.get(3)?,
                        requests: r.get(4)?,
                    })
                })?
                .collect()
        })
    }

    fn load_column_costs(
        &self,
        line: i64,
        since: &str,
    ) -> Result<(i64, Vec<ColumnDailyCost>), FactsError> {
        let last = self.load_last_row_id()?;
        let sql = format!(
            "SELECT substr(asked_at, 1, 10), m.meaning, sum(cost_usd / c.cells), count(*)
             FROM answer AS a JOIN completion AS c ON c.id = a.completion,
               json_each(iif(json_valid(a.cells), a.cells, '[]')) AS cell
             JOIN meaning AS m ON m.id = cell.value ->> 0
             WHERE a.id > ?1 AND a.id <= ?2 AND asked_at >= ?3 AND c.{PAID} GROUP BY 1, m.id ORDER BY 1, 2"
        );
        let columns = self.with_connection(|c| {
            c.prepare_cached(&sql)?
                .query_map(params![line, last, since], |r| {
                    Ok(ColumnDailyCost {
                        day: r.get(0)?,
                        identity: read_lossy_text(r, 1)?.unwrap_or_default(),
                        usd: r.get::<_, Option<f64>>(2)?.unwrap_or_default(),
                        cells: r.get(3)?,
                    })
                })?
                .collect()
        });
        Ok((last, columns?))
    }
}
