//! Reservations: what requests on their way may cost. They outlive a process
//! that is killed, so that no restart forgets what may have been billed.

use rusqlite::params;

use super::FactsError;
use super::journal::Journal;
use crate::store::now;
use crate::usage::{Doubt, Spent};

impl Journal {
    /// Notes what a request may cost at the worst; returns the note's id.
    pub(super) fn reserve(&self, run: i64, worst: Spent) -> rusqlite::Result<i64> {
        let mut insert = self.connection().prepare_cached(
            "INSERT INTO reservation (run, cost_usd, tokens, reserved_at) VALUES (?1, ?2, ?3, ?4)",
        )?;
        insert.insert(params![run, worst.usd, worst.tokens, now()])
    }

    /// Takes a note out: its request is settled, or cost nothing.
    pub(super) fn release(&self, reservation: i64) -> rusqlite::Result<()> {
        let mut delete =
            self.connection().prepare_cached("DELETE FROM reservation WHERE id = ?1")?;
        delete.execute([reservation]).map(|_| ())
    }

    /// Lets a note stand: its request may have been billed without an answer.
    pub(super) fn leave_in_doubt(&self, reservation: i64) -> rusqlite::Result<()> {
        let mut update = self
            .connection()
            .prepare_cached("UPDATE reservation SET in_doubt = 1 WHERE id = ?1")?;
        update.execute([reservation]).map(|_| ())
    }

    /// Takes out what a run noted and never sent, since it was to end: nothing of
    /// it is in flight any more.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn forget_unsent_notes(&self, run: i64) -> Result<(), FactsError> {
        self.connection()
            .execute("DELETE FROM reservation WHERE run = ?1 AND in_doubt = 0", [run])
            .map(drop)
            .map_err(|e| self.error(&e))
    }

    /// What was in flight when a process was killed; from now on it is in doubt.
    /// Only one process uses a journal, so before a run begins nothing else is
    /// in flight.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn take_stock(&self) -> Result<Doubt, FactsError> {
        let c = self.connection();
        let left = c
            .query_row(
                "SELECT count(*), coalesce(sum(cost_usd), 0.0), coalesce(sum(tokens), 0)
                 FROM reservation WHERE in_doubt = 0",
                [],
                |r| {
                    let most = Spent { usd: r.get(1)?, tokens: r.get(2)? };
                    Ok(Doubt { requests: r.get(0)?, most })
                },
            )
            .map_err(|e| self.error(&e))?;
        if left.requests > 0 {
            c.execute("UPDATE reservation SET in_doubt = 1 WHERE in_doubt = 0", [])
                .map_err(|e| self.error(&e))?;
        }
        Ok(left)
    }
}
