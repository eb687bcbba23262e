//! Refresh jobs in the journal.

use crate::refresh::{OpenRefresh, RefreshSubject};
use rusqlite::{Connection, OptionalExtension, params};

use crate::FactsError;
use crate::history::RefreshJobs;
use crate::journal::Journal;
use hqdl_database::current_timestamp;

impl RefreshJobs for Journal {
    fn load_open_refresh(&self, s: &RefreshSubject) -> Result<Option<OpenRefresh>, FactsError> {
        self.with_connection(|c| find_open_refresh(c, s))
    }

    fn start_refresh(&self, s: &RefreshSubject, up_to: i64) -> Result<OpenRefresh, FactsError> {
        let begun_at = current_timestamp();
        self.transact_with_connection(|c| {
            // Another process may have started the refresh just now.
            if let Some(open) = find_open_refresh(c, s)? {
                return Ok(open);
            }
            c.execute(
                "INSERT INTO round (kind, spec, expansion, meaning, model, scope, up_to, begun_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    s.kind.name(),
                    s.spec,
                    s.expansion,
                    s.identity_id,
                    s.model,
                    s.scope,
                    up_to,
                    begun_at
                ],
            )?;
            Ok(OpenRefresh { id: c.last_insert_rowid(), up_to, begun_at })
        })
    }

    fn finish_refresh(&self, refresh_job: i64) -> Result<(), FactsError> {
        self.connection()
            .execute(
                "UPDATE round SET ended_at = ?2 WHERE id = ?1",
                params![refresh_job, current_timestamp()],
            )
            .map(|_| ())
            .map_err(|e| self.error(&e))
    }
}

fn find_open_refresh(c: &Connection, s: &RefreshSubject) -> rusqlite::Result<Option<OpenRefresh>> {
    c.query_row(
        "SELECT id, up_to, begun_at FROM round
         WHERE kind = ?1 AND spec = ?2 AND expansion = ?3 AND meaning = ?4 AND model = ?5
           AND scope = ?6 AND ended_at IS NULL ORDER BY id DESC LIMIT 1",
        params![s.kind.name(), s.spec, s.expansion, s.identity_id, s.model, s.scope],
        |r| Ok(OpenRefresh { id: r.get(0)?, up_to: r.get(1)?, begun_at: r.get(2)? }),
    )
    .optional()
}
