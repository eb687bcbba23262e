//! The journal's dictionaries: ids of models, value lists and column identities, which answers
//! refer to.

use rusqlite::Connection;

use crate::FactsError;
use crate::checksum::corrupt_error;
use crate::history::Dictionary;
use crate::journal::Journal;
use hqdl_values::key::{ColumnIdentity, Fingerprint, ListHash};

impl Dictionary for Journal {
    fn model_id(&self, name: &str) -> Result<u32, FactsError> {
        self.with_connection(|c| {
            intern(c, ("model", "name"), "INSERT OR IGNORE INTO model (name) VALUES (?1)", &[&name])
        })
    }

    fn column_identity_id(&self, meaning: &ColumnIdentity) -> Result<u32, FactsError> {
        let fingerprint: Fingerprint = meaning.fingerprint();
        let text = serde_json::to_string(meaning).unwrap_or_default();
        self.with_connection(|c| {
            intern(
                c,
                ("meaning", "fingerprint"),
                "INSERT OR IGNORE INTO meaning (fingerprint, name, meaning) VALUES (?1, ?2, ?3)",
                &[&fingerprint.as_str(), &meaning.column, &text],
            )
        })
    }

    fn column_identity_ids(&self, column: &str) -> Result<Vec<u32>, FactsError> {
        self.with_connection(|c| {
            c.prepare("SELECT id FROM meaning WHERE name = ?1")?
                .query_map([column], |r| r.get(0))?
                .collect()
        })
    }

    fn value_list_id(&self, hash: &ListHash) -> Result<u32, FactsError> {
        self.with_connection(|c| {
            intern(
                c,
                ("value_list", "hash"),
                "INSERT OR IGNORE INTO value_list (hash) VALUES (?1)",
                &[&hash.as_str()],
            )
        })
    }

    fn models(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.select_all("SELECT id, name FROM model")
    }

    fn value_lists(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.select_all("SELECT id, hash FROM value_list")
    }

    fn column_identities(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.select_all("SELECT id, meaning FROM meaning")
    }
}

impl Journal {
    fn select_all(&self, sql: &str) -> Result<Vec<(u32, String)>, FactsError> {
        self.with_connection(|c| {
            c.prepare(sql)?.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
        })
    }
}

/// Returns the id of a dictionary text, which is inserted if it is new. If the table and its index
/// disagree about the id, the journal is damaged, and a wrong id would return another text's facts.
fn intern(
    c: &Connection,
    (table, column): (&str, &str),
    insert: &str,
    values: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<u32> {
    // One statement, so that both reads see the same state: another process may insert the text.
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
        Err(corrupt_error(&format!("the index of the table `{table}` does not agree with it")))
    };
    if let Some(id) = find_id()? {
        return Ok(id);
    }
    c.execute(insert, values)?;
    find_id()?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}
