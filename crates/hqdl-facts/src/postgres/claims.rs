//! Claims: what only one session may ask or do at a time. A claim is a row, and is
//! somebody's as long as the lease of its session lasts.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::FactsError;
use crate::claim_key::ClaimKey;
use crate::postgres::Server;
use crate::postgres::answers::json;
use crate::postgres::key::key;
use crate::postgres::records::LINES_OF;
use crate::postgres::reserve::UNDER_WAY;
use crate::postgres::runs::runs_alive;
use crate::postgres::sessions::ALIVE;
use crate::postgres::words::Parameter;
use crate::store::ClaimedCells;
use hqdl_values::key::Entity;

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

impl Server {
    /// Claims, then looks at what batches under way ask of a model, then at what is
    /// known: in this order, and sent at once.
    pub(super) async fn claim_cells(
        &self,
        keys: &[ClaimKey],
        entities: &[Entity],
        beside: Option<u32>,
    ) -> Result<ClaimedCells, FactsError> {
        let session = self.enter().await?;
        let hashes: Vec<Vec<u8>> = keys.iter().map(ClaimKey::hash).collect();
        // In one order, so that nobody waits for one who waits for it.
        let mut sorted = hashes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let token = fastrand::i64(..);
        let (claim, asked_of) = (claim_sql(), asked_of_sql());
        let (claim, asked_of) = (claim.as_str(), asked_of.as_str());
        let of: Vec<String> = entities.iter().map(key).collect();
        let (session, all, of_all) = (&*session, &sorted, &of);
        let model = beside.map(u32::cast_signed);
        let (granted, asked, lines) = self
            .link
            .together(|client| async move {
                let (claim, asked_of, lines) = tokio::try_join!(
                    client.prepare_cached(claim),
                    client.prepare_cached(asked_of),
                    client.prepare_cached(LINES_OF)
                )?;
                let of_claim: [Parameter<'_>; 3] = [all, &session, &token];
                let (of_asked, of_lines): ([Parameter<'_>; 2], [Parameter<'_>; 1]) =
                    ([of_all, &model], [of_all]);
                let looked = async |wanted: bool, sql, values| {
                    if wanted { client.query(sql, values).await } else { Ok(Vec::new()) }
                };
                let looks = !of_all.is_empty();
                let (granted, asked, lines) = tokio::join!(
                    biased;
                    client.query(&claim, &of_claim),
                    looked(looks && model.is_some(), &asked_of, &of_asked[..]),
                    looked(looks, &lines, &of_lines[..])
                );
                Ok((granted?, asked?, lines?))
            })
            .await?;
        let mut left = HashSet::with_capacity(granted.len());
        for row in &granted {
            left.insert(self.read(row, |row| Ok(row.try_get::<_, Vec<u8>>(0)?))?);
        }
        self.claims.held().extend(left.iter().map(|key| (key.clone(), token)));
        let mut under_way: HashMap<String, Vec<u32>> = HashMap::new();
        for row in &asked {
            let meanings: Vec<u32> = self.read(row, |row| json(self, row, 1))?;
            let key = self.read(row, |row| Ok(row.try_get::<_, String>(0)?))?;
            under_way.entry(key).or_default().extend(meanings);
        }
        Ok(ClaimedCells {
            granted: hashes.iter().map(|key| left.remove(key)).collect(),
            batched_columns: of
                .iter()
                .map(|key| under_way.get(key).cloned().unwrap_or_default())
                .collect(),
            known: self.records_in(&of, &lines)?,
        })
    }

    /// Gives back what of these is held; nobody waits for it.
    pub(super) fn release(&self, keys: &[ClaimKey]) {
        let (keys, tokens): (Vec<Vec<u8>>, Vec<i64>) = {
            let mut held = self.claims.held();
            keys.iter().map(ClaimKey::hash).filter_map(|key| held.remove_entry(&key)).unzip()
        };
        if keys.is_empty() {
            return;
        }
        let Some(server) = self.me.upgrade() else { return };
        self.link.handle.spawn(async move {
            let (keys, tokens) = (&keys, &tokens);
            let released = server.link.together(|client| async move {
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
        let (key, sql) = (&key.hash(), sql.as_str());
        let [mut wait, longest] = LOOK_EVERY;
        loop {
            let held = self.link.together(|client| async move {
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

fn claim_sql() -> String {
    format!(
        "INSERT INTO hqdl.claim (key, session, token)
         SELECT key, $2, $3 FROM unnest($1::bytea[]) AS u (key)
         WHERE EXISTS (SELECT 1 FROM hqdl.session WHERE id = $2 AND expires_at > clock_timestamp())
         ORDER BY key
         ON CONFLICT (key) DO UPDATE SET session = excluded.session, token = excluded.token
         WHERE claim.token = excluded.token OR NOT claim.{ALIVE}
         RETURNING key"
    )
}

/// What batches under way ask about some, or are to ask in a run that goes on.
fn asked_of_sql() -> String {
    format!(
        "SELECT e.key, r.meanings FROM hqdl.request_row AS e JOIN hqdl.request AS r ON r.id = e.request
         LEFT JOIN hqdl.parcel AS p ON p.id = r.parcel
         WHERE e.key = ANY($1) AND r.model = $2 AND r.state IN ('waiting', 'packed')
           AND ({UNDER_WAY} OR r.run IN ({}))",
        runs_alive()
    )
}

const RELEASE: &str =
    "DELETE FROM hqdl.claim AS c USING unnest($1::bytea[], $2::bigint[]) AS u (key, token)
  WHERE c.key = u.key AND c.token = u.token";
