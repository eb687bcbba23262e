//! Claims: what only one session may ask or do at a time. A claim is a row, and is
//! somebody's as long as the lease of its session lasts.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::FactsError;
use crate::in_flight::ClaimKey;
use crate::postgres::Server;
use crate::postgres::sessions::ALIVE;

/// How often it is looked whether a claim is free, at first and at last.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// What this process holds: by which call each was claimed, so that a release that
/// comes late takes nothing from a later claim.
#[derive(Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<Vec<u8>, i64>>,
}

impl Claims {
    fn held(&self) -> MutexGuard<'_, HashMap<Vec<u8>, i64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(key: &ClaimKey) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    match key {
        ClaimKey::Cell { entity, meaning, model } => {
            hasher.update(b"cell");
            hasher.update(&meaning.to_le_bytes());
            hasher.update(&model.to_le_bytes());
            hasher.update(entity.as_str().as_bytes());
        }
        ClaimKey::Name(name) => {
            hasher.update(b"name");
            hasher.update(name.as_bytes());
        }
    }
    hasher.finalize().as_bytes()[..16].to_vec()
}

impl Server {
    pub(super) async fn claim(&self, keys: &[ClaimKey]) -> Result<Vec<bool>, FactsError> {
        let session = self.enter().await?;
        let hashes: Vec<Vec<u8>> = keys.iter().map(hash).collect();
        // In one order, so that nobody waits for one who waits for it.
        let mut sorted = hashes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let token = fastrand::i64(..);
        let sql = format!(
            "INSERT INTO hqdl.claim (key, session, token)
             SELECT key, $2, $3 FROM unnest($1::bytea[]) AS u (key)
             WHERE EXISTS (SELECT 1 FROM hqdl.session WHERE id = $2 AND expires_at > clock_timestamp())
             ORDER BY key
             ON CONFLICT (key) DO UPDATE SET session = excluded.session, token = excluded.token
             WHERE claim.token = excluded.token OR NOT claim.{ALIVE}
             RETURNING key"
        );
        let (sql, session, all) = (sql.as_str(), &*session, &sorted);
        let granted: Vec<Vec<u8>> = self
            .link
            .run(|client| async move {
                let claim = client.prepare_cached(sql).await?;
                let rows = client.query(&claim, &[all, &session, &token]).await?;
                rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
            })
            .await?;
        let mut left: std::collections::HashSet<Vec<u8>> = granted.into_iter().collect();
        let mut held = self.claims.held();
        held.extend(left.iter().map(|key| (key.clone(), token)));
        Ok(hashes.iter().map(|key| left.remove(key)).collect())
    }

    /// Gives back what of these is held; nobody waits for it.
    pub(super) fn release(&self, keys: &[ClaimKey]) {
        let (keys, tokens): (Vec<Vec<u8>>, Vec<i64>) = {
            let mut held = self.claims.held();
            keys.iter().map(hash).filter_map(|key| held.remove_entry(&key)).unzip()
        };
        if keys.is_empty() {
            return;
        }
        let Some(server) = self.me.upgrade() else { return };
        self.link.handle.spawn(async move {
            let (keys, tokens) = (&keys, &tokens);
            let released = server.link.run(|client| async move {
                let release = client.prepare_cached(RELEASE).await?;
                client.execute(&release, &[keys, tokens]).await?;
                Ok(())
            });
            // Otherwise they are free when the lease of this session ends.
            let _ = released.await;
        });
    }

    /// Waits until nobody holds a claim.
    pub(super) async fn released(&self, key: &ClaimKey) -> Result<(), FactsError> {
        let sql = format!("SELECT 1 FROM hqdl.claim WHERE key = $1 AND {ALIVE}");
        let (key, sql) = (&hash(key), sql.as_str());
        let [mut wait, longest] = LOOK_EVERY;
        loop {
            let held = self.link.run(|client| async move {
                let held = client.prepare_cached(sql).await?;
                Ok(client.query_opt(&held, &[key]).await?.is_some())
            });
            if !held.await? {
                return Ok(());
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }
}

const RELEASE: &str =
    "DELETE FROM hqdl.claim AS c USING unnest($1::bytea[], $2::bigint[]) AS u (key, token)
  WHERE c.key = u.key AND c.token = u.token";
