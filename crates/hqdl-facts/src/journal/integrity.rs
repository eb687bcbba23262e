//! Checks the journal for damage.

use crate::checksum::{ANSWER_ROWS_SQL, AnswerRow, Damage};

use crate::FactsError;
use crate::history::Integrity;
use crate::journal::Journal;

impl Integrity for Journal {
    fn find_damage(&self, after: i64) -> Result<Damage, FactsError> {
        let entries = if after == 0 { self.find_damaged_entries()? } else { Vec::new() };
        self.with_connection(|c| {
            let mut damage = Damage::default();
            damage.entries = entries;
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
            let report: String = c.query_row("PRAGMA main.integrity_check(1)", [], |r| r.get(0))?;
            Ok((report != "ok").then_some(report))
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
