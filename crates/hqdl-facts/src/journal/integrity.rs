//! Checks the journal for damage.

use crate::checksum::{ANSWER_ROWS_SQL, AnswerRow, Damage};

use crate::FactsError;
use crate::history::Integrity;
use crate::journal::Journal;
use hqdl_values::key::ColumnIdentity;

impl Integrity for Journal {
    fn find_damage(&self, after: i64) -> Result<Damage, FactsError> {
        self.with_connection(|c| {
            let mut damage = Damage::default();
            let mut statement = c.prepare(ANSWER_ROWS_SQL)?;
            let mut rows = statement.query([after])?;
            while let Some(row) = rows.next()? {
                if let Err((line, whose)) = AnswerRow::from_row(row)? {
                    damage.add_damage(line, whose);
                }
            }
            Ok(damage)
        })
    }

    fn check_file(&self) -> Result<(), FactsError> {
        let wrong = self.with_connection(|c| {
            let said: String = c.query_row("PRAGMA main.integrity_check(1)", [], |r| r.get(0))?;
            if said != "ok" {
                return Ok(Some(said));
            }
            let mut statement = c.prepare("SELECT id, fingerprint, meaning FROM meaning")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (id, fingerprint, text): (i64, String, String) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                let meaning = serde_json::from_str::<ColumnIdentity>(&text);
                if !meaning.is_ok_and(|m| m.fingerprint().as_str() == fingerprint) {
                    return Ok(Some(format!("meaning {id} does not match its fingerprint")));
                }
            }
            Ok(None)
        })?;
        match wrong {
            Some(message) => Err(FactsError::Damaged { path: self.path().to_owned(), message }),
            None => Ok(()),
        }
    }

    fn unreadable_error(&self, message: String) -> FactsError {
        FactsError::Journal { path: self.path().to_owned(), message }
    }
}
