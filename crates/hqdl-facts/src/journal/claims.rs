//! Claims in the journal: rights to ask for cells, and named locks. A claim is valid while its
//! session is alive.

use rusqlite::params;

use crate::claim_key::ClaimKey;
use crate::journal::Journal;

/// SQL predicate: the session of the claim is alive.
const ALIVE: &str = "claim.session IN (SELECT number FROM session WHERE number IS NOT NULL)";

impl Journal {
    /// Claims the keys that no session holds. Returns for each key whether it was claimed.
    pub(crate) fn claim_keys(&self, keys: &[ClaimKey]) -> rusqlite::Result<Vec<bool>> {
        let c = self.connection();
        self.register_session()?;
        let mut claim = c.prepare_cached(&format!(
            "INSERT INTO claim (key, session) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET session = excluded.session WHERE NOT {ALIVE}"
        ))?;
        let number = self.session.number;
        keys.iter().map(|key| Ok(claim.execute(params![key.short_hash(), number])? > 0)).collect()
    }

    /// Releases the given keys, if this session holds them.
    pub(crate) fn release_keys(&self, keys: &[ClaimKey]) -> rusqlite::Result<()> {
        let c = self.connection();
        let mut release = c.prepare_cached("DELETE FROM claim WHERE key = ?1 AND session = ?2")?;
        let number = self.session.number;
        keys.iter().try_for_each(|key| release.execute(params![key.short_hash(), number]).map(drop))
    }

    /// Returns true if a live session holds a key.
    pub(crate) fn is_claimed(&self, key: &ClaimKey) -> rusqlite::Result<bool> {
        let sql = format!("SELECT 1 FROM claim WHERE key = ?1 AND {ALIVE}");
        self.connection().prepare_cached(&sql)?.exists([key.short_hash()])
    }
}
