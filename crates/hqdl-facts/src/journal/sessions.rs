//! Sessions and their runs in the journal.

use super::{ACTIVE_RUNS, ALIVE};

use rusqlite::{Connection, OptionalExtension, params};

use crate::FactsError;
use crate::completion::Outcome;
use crate::history::Runs;
use crate::ids::RunId;
use crate::journal::Journal;
use crate::journal::reservations::has_requests_in_flight;
use hqdl_database::current_timestamp;
use hqdl_values::usage::{SpentAmount, UnconfirmedCost};

impl Journal {
    /// Ends the sessions whose processes have ended. Returns true if there were any.
    pub(crate) fn end_dead_sessions(&self) -> rusqlite::Result<bool> {
        let find_dead = || -> rusqlite::Result<Vec<String>> {
            let c = self.connection();
            let mut select = c.prepare_cached("SELECT id FROM session WHERE id <> ?1")?;
            let ids = select.query_map([&self.session.id], |r| r.get(0))?;
            let mut ids: Vec<String> = ids.collect::<Result<_, _>>()?;
            ids.retain(|id| !self.session.is_alive(id));
            Ok(ids)
        };
        let dead = find_dead()?;
        if dead.is_empty() {
            return Ok(false);
        }
        self.run_in_transaction(|c| dead.iter().try_for_each(|id| end_session(c, id)))?;
        self.session.delete_files(|id| !dead.iter().any(|dead| dead == id));
        Ok(true)
    }

    /// Deletes the files of ended sessions, which are no longer in the journal.
    pub(crate) fn delete_session_files(&self) -> Result<(), FactsError> {
        let ids: Vec<String> = self.with_connection(|c| {
            c.prepare("SELECT id FROM session")?.query_map([], |r| r.get(0))?.collect()
        })?;
        self.session.delete_files(|id| ids.iter().any(|known| known == id));
        Ok(())
    }

    /// Ends the session of this process.
    pub(crate) fn end_session(&self) -> rusqlite::Result<()> {
        let sql = "SELECT 1 FROM session WHERE id = ?1";
        if !self.connection().prepare(sql)?.exists([&self.session.id])? {
            return Ok(());
        }
        self.run_in_transaction(|c| end_session(c, &self.session.id))
    }

    /// Ends dead sessions. Call this before a decision that depends on which sessions are alive.
    pub(crate) fn prune_sessions(&self) -> Result<(), FactsError> {
        self.end_dead_sessions().map(drop).map_err(|e| self.error(&e))
    }

    fn insert_run(&self, c: &Connection, command: &str, spec: &str) -> rusqlite::Result<RunId> {
        self.register_session()?;
        c.execute(
            "INSERT INTO run (started_at, command, spec, session) VALUES (?1, ?2, ?3, ?4)",
            params![current_timestamp(), command, spec, self.session.id],
        )?;
        Ok(RunId(c.last_insert_rowid()))
    }

    /// Returns true if a run has not ended.
    pub(crate) fn is_run_open(&self, run: RunId) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM run WHERE id = ?1 AND ended_at IS NULL";
        self.connection().prepare_cached(sql)?.exists([run])
    }

    /// Returns true if a live session has a request in flight.
    pub(crate) fn has_reservations_in_flight(&self) -> rusqlite::Result<bool> {
        let sql = format!("SELECT 1 FROM reservation WHERE in_doubt = 0 AND {ALIVE}");
        self.connection().prepare_cached(&sql)?.exists([])
    }
}

impl Runs for Journal {
    fn start_run(&self, command: &str, spec: &str) -> Result<RunId, FactsError> {
        self.transact_with_connection(|c| self.insert_run(c, command, spec))
    }

    fn resume_or_start_run(
        &self,
        command: &str,
        spec: &str,
    ) -> Result<(RunId, UnconfirmedCost), FactsError> {
        self.prune_sessions()?;
        self.transact_with_connection(|c| {
            let left = mark_requests_in_doubt(c)?;
            let Some(run) = select_unfinished_run(c, spec)? else {
                return Ok((self.insert_run(c, command, spec)?, left));
            };
            self.register_session()?;
            c.execute("UPDATE run SET session = ?2 WHERE id = ?1", params![run, self.session.id])?;
            Ok((run, left))
        })
    }

    fn find_unfinished_run(&self, spec: &str) -> Result<Option<RunId>, FactsError> {
        self.prune_sessions()?;
        self.with_connection(|c| select_unfinished_run(c, spec))
    }

    fn finish_run(&self, run: RunId, outcome: Outcome) -> Result<(), FactsError> {
        self.transact_with_connection(|c| end_run(c, run, outcome))
    }

    fn finish_unfinished_run(&self, spec: &str, outcome: Outcome) -> Result<(), FactsError> {
        if self.find_unfinished_run(spec)?.is_none() {
            return Ok(());
        }
        // Check again within the transaction, because another process may have resumed the run.
        self.transact_with_connection(|c| match select_unfinished_run(c, spec)? {
            Some(run) if !has_requests_in_flight(c, run)? => end_run(c, run, outcome),
            _ => Ok(()),
        })
    }

    fn leave_run_open(&self, run: RunId) -> Result<(), FactsError> {
        self.transact_with_connection(|c| {
            delete_reservations(c, run)?;
            c.execute("UPDATE run SET session = NULL WHERE id = ?1", [run]).map(drop)
        })
    }

    fn is_run_active(&self, run: RunId) -> Result<bool, FactsError> {
        self.prune_sessions()?;
        let sql = format!("SELECT 1 WHERE ?1 IN ({ACTIVE_RUNS})");
        self.with_connection(|c| c.prepare(&sql)?.exists([run]))
    }
}

fn end_run(c: &Connection, run: RunId, outcome: Outcome) -> rusqlite::Result<()> {
    delete_reservations(c, run)?;
    c.execute(
        "UPDATE run SET ended_at = ?2, outcome = ?3, session = NULL WHERE id = ?1",
        params![run, current_timestamp(), outcome.name()],
    )
    .map(drop)
}

fn end_session(c: &Connection, id: &str) -> rusqlite::Result<()> {
    for sql in [
        "DELETE FROM claim WHERE session = (SELECT number FROM session WHERE id = ?1)",
        "DELETE FROM rate_member WHERE session = ?1",
        "DELETE FROM session WHERE id = ?1",
    ] {
        c.execute(sql, [id])?;
    }
    Ok(())
}

fn select_unfinished_run(c: &Connection, spec: &str) -> rusqlite::Result<Option<RunId>> {
    let sql = format!(
        "SELECT id FROM run WHERE ended_at IS NULL AND id =
           (SELECT max(id) FROM run WHERE spec = ?1 AND (session IS NULL OR NOT {ALIVE}))"
    );
    c.query_row(&sql, [spec], |r| r.get(0)).optional()
}

/// Deletes the reservations of an ending run, except those in doubt.
fn delete_reservations(c: &Connection, run: RunId) -> rusqlite::Result<()> {
    c.execute("DELETE FROM reservation WHERE run = ?1 AND in_doubt = 0", [run]).map(drop)
}

/// Returns the cost of the requests that were in flight when their session ended, and marks them as
/// in doubt.
fn mark_requests_in_doubt(c: &Connection) -> rusqlite::Result<UnconfirmedCost> {
    let which = format!("in_doubt = 0 AND (session IS NULL OR NOT {ALIVE})");
    let sql = format!(
        "SELECT count(*), coalesce(sum(cost_usd), 0.0), coalesce(sum(tokens), 0)
         FROM reservation WHERE {which}"
    );
    let left = c.query_row(&sql, [], |r| {
        Ok(UnconfirmedCost {
            requests: r.get(0)?,
            max_spent: SpentAmount { usd: r.get(1)?, tokens: r.get(2)? },
        })
    })?;
    if left.requests > 0 {
        c.execute(&format!("UPDATE reservation SET in_doubt = 1 WHERE {which}"), [])?;
    }
    Ok(left)
}
