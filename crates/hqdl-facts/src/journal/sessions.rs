//! Sessions and their runs in the journal.

use super::RUNS_ALIVE;
use crate::sessions::FactsSession;

use rusqlite::{Connection, OptionalExtension, params};

use crate::FactsError;
use crate::completion::Outcome;
use crate::history::Runs;
use crate::ids::RunId;
use crate::journal::Journal;
use crate::journal::reservations::has_under_way;
use hqdl_database::current_timestamp;
use hqdl_values::usage::{SpentAmount, UnconfirmedCost};

/// Holds of what belongs to a session that is not over.
const ALIVE: &str = "session IN (SELECT id FROM session)";
impl Journal {
    /// A process owns the cache from now on: every other session is over.
    pub(crate) fn end_all_sessions(&self) -> Result<(), FactsError> {
        self.run(|c| {
            if c.prepare("SELECT 1 FROM session")?.exists([])? {
                c.execute("DELETE FROM session", [])?;
            }
            Ok(())
        })
    }

    /// Writes down that a session has begun.
    pub(crate) fn start_session(&self, session: &FactsSession) -> rusqlite::Result<()> {
        enter(&self.connection(), session)
    }

    /// A session is over.
    pub(crate) fn end_session(&self, session: &str) -> rusqlite::Result<()> {
        self.connection().execute("DELETE FROM session WHERE id = ?1", [session]).map(drop)
    }

    fn insert_run(&self, c: &Connection, command: &str, spec: &str) -> rusqlite::Result<RunId> {
        if self.session.is_owner {
            enter(c, &self.session)?;
        }
        c.execute(
            "INSERT INTO run (started_at, command, spec, session) VALUES (?1, ?2, ?3, ?4)",
            params![current_timestamp(), command, spec, self.session.id],
        )?;
        Ok(RunId(c.last_insert_rowid()))
    }

    /// Whether a run has not ended.
    pub(crate) fn is_open(&self, run: RunId) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM run WHERE id = ?1 AND ended_at IS NULL";
        self.connection().prepare_cached(sql)?.exists([run])
    }

    /// Whether a request is on its way for a session that is not over.
    pub(crate) fn is_any_in_flight(&self) -> rusqlite::Result<bool> {
        let sql = format!("SELECT 1 FROM reservation WHERE in_doubt = 0 AND {ALIVE}");
        self.connection().prepare_cached(&sql)?.exists([])
    }
}

impl Runs for Journal {
    fn start_run(&self, command: &str, spec: &str) -> Result<RunId, FactsError> {
        self.change(|c| self.insert_run(c, command, spec))
    }

    fn resume_or_start_run(
        &self,
        command: &str,
        spec: &str,
    ) -> Result<(RunId, UnconfirmedCost), FactsError> {
        self.change(|c| {
            let left = take_stock(c)?;
            let Some(run) = unfinished(c, spec)? else {
                return Ok((self.insert_run(c, command, spec)?, left));
            };
            if self.session.is_owner {
                enter(c, &self.session)?;
            }
            c.execute("UPDATE run SET session = ?2 WHERE id = ?1", params![run, self.session.id])?;
            Ok((run, left))
        })
    }

    fn find_unfinished_run(&self, spec: &str) -> Result<Option<RunId>, FactsError> {
        self.run(|c| unfinished(c, spec))
    }

    fn finish_run(&self, run: RunId, outcome: Outcome) -> Result<(), FactsError> {
        self.change(|c| end(c, run, outcome))
    }

    fn finish_unfinished_run(&self, spec: &str, outcome: Outcome) -> Result<(), FactsError> {
        if self.find_unfinished_run(spec)?.is_none() {
            return Ok(());
        }
        // Looked at again under the lock: somebody may have gone on with it.
        self.change(|c| match unfinished(c, spec)? {
            Some(run) if !has_under_way(c, run)? => end(c, run, outcome),
            _ => Ok(()),
        })
    }

    fn leave_run_open(&self, run: RunId) -> Result<(), FactsError> {
        self.change(|c| {
            forget_notes(c, run)?;
            c.execute("UPDATE run SET session = NULL WHERE id = ?1", [run]).map(drop)
        })
    }

    fn is_run_active(&self, run: RunId) -> Result<bool, FactsError> {
        let sql = format!("SELECT 1 WHERE ?1 IN ({RUNS_ALIVE})");
        self.run(|c| c.prepare(&sql)?.exists([run]))
    }
}

fn end(c: &Connection, run: RunId, outcome: Outcome) -> rusqlite::Result<()> {
    forget_notes(c, run)?;
    c.execute(
        "UPDATE run SET ended_at = ?2, outcome = ?3, session = NULL WHERE id = ?1",
        params![run, current_timestamp(), outcome.name()],
    )
    .map(drop)
}

fn enter(c: &Connection, session: &FactsSession) -> rusqlite::Result<()> {
    c.prepare_cached("INSERT OR IGNORE INTO session (id, holder, entered_at) VALUES (?1, ?2, ?3)")?
        .execute(params![session.id, session.description, current_timestamp()])
        .map(drop)
}

fn unfinished(c: &Connection, spec: &str) -> rusqlite::Result<Option<RunId>> {
    let sql = format!(
        "SELECT id FROM run WHERE ended_at IS NULL AND id =
           (SELECT max(id) FROM run WHERE spec = ?1 AND (session IS NULL OR NOT {ALIVE}))"
    );
    c.query_row(&sql, [spec], |r| r.get(0)).optional()
}

/// Takes out what a run noted and never sent, since it was to end.
fn forget_notes(c: &Connection, run: RunId) -> rusqlite::Result<()> {
    c.execute("DELETE FROM reservation WHERE run = ?1 AND in_doubt = 0", [run]).map(drop)
}

/// What was in flight when a session ended; from now on it is in doubt, and told.
fn take_stock(c: &Connection) -> rusqlite::Result<UnconfirmedCost> {
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
