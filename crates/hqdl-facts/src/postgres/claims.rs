//! Claims: exclusive rights to ask for a cell or to perform a step. A claim is a row on the server,
//! owned by a session until the session's lease ends.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::FactsError;
use crate::claim_key::ClaimKey;
use crate::postgres::Server;
use crate::postgres::answers::parse_json_column;
use crate::postgres::dictionary::Parameter;
use crate::postgres::key::entity_key;
use crate::postgres::records::ROWS_OF_KEYS;
use crate::postgres::reserve::IN_FLIGHT_JOB;
use crate::postgres::runs::active_runs_sql;
use crate::postgres::sessions::ALIVE;
use crate::store::ClaimedCells;
use hqdl_values::key::Entity;

/// Shortest and longest pause between two checks of whether a claim is free.
const POLL_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// Claims that this process holds. Each has the token of the call that acquired it, so that a
/// delayed release never deletes a later claim.
#[derive(Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<Vec<u8>, i64>>,
}

impl Claims {
    fn lock_claims(&self) -> MutexGuard<'_, HashMap<Vec<u8>, i64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Claims `keys`, then reads the columns that open batch jobs request from the model
    /// `batch_model`, and then reads the stored facts about `entities`.
    ///
    /// The statements run in this order and are sent together, in one round trip.
    pub(super) async fn claim_cells(
        &self,
        keys: &[ClaimKey],
        entities: &[Entity],
        batch_model: Option<u32>,
    ) -> Result<ClaimedCells, FactsError> {
        let session = self.keep_session_alive().await?;
        let hashes: Vec<Vec<u8>> = keys.iter().map(ClaimKey::hash).collect();
        // Lock the rows in the same order in every process, so that two processes never deadlock.
        let mut sorted = hashes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let token = fastrand::i64(..);
        let (claim, asked_of) = (claim_sql(), batched_columns_sql());
        let (claim, asked_of) = (claim.as_str(), asked_of.as_str());
        let of: Vec<String> = entities.iter().map(entity_key).collect();
        let (session, all, of_all) = (&*session, &sorted, &of);
        let model = batch_model.map(u32::cast_signed);
        let (granted, asked, lines) = self
            .link
            .with_shared_client(|client| async move {
                let (claim, asked_of, lines) = tokio::try_join!(
                    client.prepare_cached(claim),
                    client.prepare_cached(asked_of),
                    client.prepare_cached(ROWS_OF_KEYS)
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
            left.insert(self.read_row(row, |row| Ok(row.try_get::<_, Vec<u8>>(0)?))?);
        }
        self.claims.lock_claims().extend(left.iter().map(|key| (key.clone(), token)));
        let mut under_way: HashMap<String, Vec<u32>> = HashMap::new();
        for row in &asked {
            let identity_ids: Vec<u32> =
                self.read_row(row, |row| parse_json_column(self, row, 1))?;
            let key = self.read_row(row, |row| Ok(row.try_get::<_, String>(0)?))?;
            under_way.entry(key).or_default().extend(identity_ids);
        }
        Ok(ClaimedCells {
            granted: hashes.iter().map(|key| left.remove(key)).collect(),
            batched_columns: of
                .iter()
                .map(|key| under_way.get(key).cloned().unwrap_or_default())
                .collect(),
            known: self.merge_rows(&of, &lines)?,
        })
    }

    /// Releases those of the given keys that this process holds. Does not wait for the server.
    pub(super) fn release_claims(&self, keys: &[ClaimKey]) {
        let (keys, tokens): (Vec<Vec<u8>>, Vec<i64>) = {
            let mut held = self.claims.lock_claims();
            keys.iter().map(ClaimKey::hash).filter_map(|key| held.remove_entry(&key)).unzip()
        };
        if keys.is_empty() {
            return;
        }
        let Some(server) = self.weak_self.upgrade() else { return };
        self.link.handle.spawn(async move {
            let (keys, tokens) = (&keys, &tokens);
            let released = server.link.with_shared_client(|client| async move {
                let release = client.prepare_cached(RELEASE_SQL).await?;
                client.execute(&release, &[keys, tokens]).await?;
                Ok(())
            });
            // If the release fails, the server frees the claims when this session's lease ends.
            let _ = released.await;
        });
    }

    /// Waits until no session holds the claim `key`.
    pub(super) async fn wait_for_release(&self, key: &ClaimKey) -> Result<(), FactsError> {
        let sql = format!("SELECT 1 FROM hqdl.claim WHERE key = $1 AND {ALIVE}");
        let (key, sql) = (&key.hash(), sql.as_str());
        let [mut wait, longest] = POLL_PAUSES;
        loop {
            let held = self.link.with_shared_client(|client| async move {
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

/// Returns the SQL that selects, by entity, the columns requested from a model by open batch jobs
/// and by queued requests of active runs.
fn batched_columns_sql() -> String {
    format!(
        "SELECT e.key, r.meanings FROM hqdl.request_row AS e JOIN hqdl.request AS r ON r.id = e.request
         LEFT JOIN hqdl.parcel AS p ON p.id = r.parcel
         WHERE e.key = ANY($1) AND r.model = $2 AND r.state IN ('waiting', 'packed')
           AND ({IN_FLIGHT_JOB} OR r.run IN ({}))",
        active_runs_sql()
    )
}

const RELEASE_SQL: &str =
    "DELETE FROM hqdl.claim AS c USING unnest($1::bytea[], $2::bigint[]) AS u (key, token)
  WHERE c.key = u.key AND c.token = u.token";
