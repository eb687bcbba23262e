//! The journal's dictionaries: ids of models, value lists and column identities, which answers
//! refer to.

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::FactsError;
use crate::checksum::{DictionaryEntry, corruption_error};
use crate::history::Dictionary;
use crate::journal::Journal;
use hqdl_values::key::{ColumnIdentity, Fingerprint, ListHash};

impl Dictionary for Journal {
    fn intern_model(&self, name: &str) -> Result<u32, FactsError> {
        self.with_connection(|c| {
            intern(c, ("model", "name"), "INSERT OR IGNORE INTO model (name) VALUES (?1)", &[&name])
        })
    }

    fn intern_column_identity(&self, identity: &ColumnIdentity) -> Result<u32, FactsError> {
        let fingerprint: Fingerprint = identity.fingerprint();
        let text = serde_json::to_string(identity).unwrap_or_default();
        self.with_connection(|c| {
            intern(
                c,
                ("meaning", "fingerprint"),
                "INSERT OR IGNORE INTO meaning (fingerprint, name, meaning) VALUES (?1, ?2, ?3)",
                &[&fingerprint.as_str(), &identity.column, &text],
            )
        })
    }

    fn list_column_identity_ids(&self, column: &str) -> Result<Vec<u32>, FactsError> {
        self.with_connection(|c| {
            c.prepare("SELECT id FROM meaning WHERE name = ?1")?
                .query_map([column], |r| r.get(0))?
                .collect()
        })
    }

    fn intern_value_list(&self, hash: &ListHash) -> Result<u32, FactsError> {
        self.with_connection(|c| {
            intern(
                c,
                ("value_list", "hash"),
                "INSERT OR IGNORE INTO value_list (hash) VALUES (?1)",
                &[&hash.as_str()],
            )
        })
    }

    fn list_models(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.select_all("SELECT id, name FROM model")
    }

    fn list_value_lists(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.select_all("SELECT id, hash FROM value_list")
    }

    fn list_column_identities(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.select_all("SELECT id, meaning FROM meaning")
    }
}

impl Journal {
    /// Returns the entries of a dictionary, except those whose text was damaged on disk.
    fn select_all(&self, sql: &str) -> Result<Vec<(u32, String)>, FactsError> {
        self.with_connection(|c| {
            let mut statement = c.prepare(sql)?;
            let entries = statement.query_map([], |r| Ok((r.get(0)?, read_text(r, 1)?)))?;
            entries
                .filter_map(|entry| entry.map(|(id, text)| Some((id, text?))).transpose())
                .collect()
        })
    }

    /// Returns the damaged entries of the dictionaries, and the journal's id if it is damaged.
    pub(crate) fn find_damaged_entries(&self) -> Result<Vec<DictionaryEntry>, FactsError> {
        let mut damaged = Vec::new();
        for (table, sql) in [
            ("meaning", "SELECT id, fingerprint, meaning FROM meaning"),
            ("meaning", "SELECT id, name, NULL FROM meaning"),
            ("model", "SELECT id, name, NULL FROM model"),
            ("value_list", "SELECT id, hash, NULL FROM value_list"),
            ("journal", "SELECT rowid, id, NULL FROM journal"),
        ] {
            self.with_connection(|c| {
                let mut statement = c.prepare(sql)?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    let is_intact = match (read_text(row, 1)?, row.get_ref(2)?) {
                        (text, ValueRef::Null) => text.is_some(),
                        (Some(fingerprint), ValueRef::Text(identity)) => {
                            serde_json::from_slice::<ColumnIdentity>(identity)
                                .is_ok_and(|m| m.fingerprint().as_str() == fingerprint)
                        }
                        _ => false,
                    };
                    let entry = DictionaryEntry { table, id: row.get(0)? };
                    if !is_intact && !damaged.contains(&entry) {
                        damaged.push(entry);
                    }
                }
                Ok(())
            })?;
        }
        Ok(damaged)
    }
}

/// Reads a text column; `None` if it is not valid UTF-8, which means that it was damaged on disk.
pub(super) fn read_text(r: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    match r.get_ref(at)? {
        ValueRef::Text(bytes) => Ok(std::str::from_utf8(bytes).ok().map(str::to_owned)),
        _ => Ok(None),
    }
}

/// Returns the id of a dictionary text; inserts the text if it is new. If the table and its index
/// disagree about the id, the journal is damaged, and a wrong id would return another text's facts.
fn intern(
    c: &Connection,
    (table, column): (&str, &str),
    insert: &str,
    values: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<u32> {
    // Use one statement, so that both reads see the same state even if another process inserts the
    // text.
    let sql = format!(
        "SELECT id, CASE WHEN id IS NULL
           THEN NOT EXISTS (SELECT 1 FROM {table} NOT INDEXED WHERE {column} = ?1)
           ELSE EXISTS (SELECT 1 FROM {table} AS t NOT INDEXED WHERE t.id = i.id AND {column} = ?1)
         END FROM (SELECT (SELECT id FROM {table} WHERE {column} = ?1) AS id) AS i"
    );
    let find_id = || -> rusqlite::Result<Option<u32>> {
        let (found, agrees) =
            c.prepare_cached(&sql)?.query_row([values[0]], |r| Ok((r.get(0)?, r.get(1)?)))?;
        if agrees {
            return Ok(found);
        }
        Err(corruption_error(&format!("the index of the table `{table}` does not agree with it")))
    };
    if let Some(id) = find_id()? {
        return Ok(id);
    }
    c.execute(insert, values)?;
    find_id()?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}
