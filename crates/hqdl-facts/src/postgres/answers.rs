//! Reads completions and answer rows from the server in the order of their commits.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;
use tokio_postgres::Row;

use crate::FactsError;
use crate::checksum::Damage;
use crate::completion::Completion;
use crate::history::{Answers, Integrity};
use crate::postgres::Server;
use crate::postgres::connection::{ConnectionPool, WorkResult};
use crate::postgres::key::entity_key;
use crate::postgres::records::{ROW_COLUMNS, ROWS_OF_KEYS, StoredRow};
use crate::record::Fact;
use hqdl_database::postgres::address::ANSWER_TIMEOUT;
use hqdl_values::key::{ColumnIdentity, Entity};

/// Number of answer rows per query.
const ROWS_PER_QUERY: i64 = 5000;

/// Returns the id of the cache that the server stores.
pub(super) async fn read_cache_id(link: &ConnectionPool) -> Result<String, FactsError> {
    link.with_client(|client| async move {
        Ok(client.query_one("SELECT cache FROM hqdl.head", &[]).await?.try_get(0)?)
    })
    .await
}

impl Server {
    /// Returns the number of entities that have at least one answer.
    pub(super) async fn count_entities(&self) -> Result<u64, FactsError> {
        let within = ANSWER_TIMEOUT * 40;
        self.link
            .with_timeout(within, |client| async move {
                let sql = "SELECT count(DISTINCT key) FROM hqdl.answer";
                Ok(client.query_one(sql, &[]).await?.try_get::<_, i64>(0)?.cast_unsigned())
            })
            .await
    }

    /// Calls `visit` for every answer row after row `after`, in order, and returns the last row's
    /// id.
    fn visit_rows_after(
        &self,
        mut after: i64,
        visit: &mut dyn FnMut(StoredRow) -> Result<(), FactsError>,
    ) -> Result<i64, FactsError> {
        let sql = format!(
            "SELECT {ROW_COLUMNS} FROM hqdl.answer AS a WHERE a.line > $1 ORDER BY a.line LIMIT $2"
        );
        loop {
            let lines = self.query_all(&sql, &[&after, &ROWS_PER_QUERY], StoredRow::from_row)?;
            self.copy.mark_direct_access();
            let Some(last) = lines.last() else { return Ok(after) };
            after = last.id;
            for line in lines {
                visit(line)?;
            }
        }
    }
}

fn read_id(row: &Row) -> WorkResult<i64> {
    Ok(row.try_get(0)?)
}

const SELECT_COMPLETION: &str = "SELECT c.run, c.model, c.prompt_hash, c.content, c.error, c.input_tokens,
    c.cached_input_tokens, c.output_tokens, c.cost_usd, c.asked_at, c.seconds, c.cells, c.parameters,
    c.assumed_cache_writes, c.evidence, m.name, c.id
  FROM hqdl.completion AS c JOIN hqdl.model AS m ON m.id = c.model";

fn read_completion(r: &Row) -> WorkResult<(Completion, String)> {
    let number = |at: usize| -> WorkResult<u64> { Ok(r.try_get::<_, i64>(at)?.cast_unsigned()) };
    let text = |at: usize| -> WorkResult<Option<String>> {
        let bytes: Option<Vec<u8>> = r.try_get(at)?;
        Ok(bytes.map(|b| String::from_utf8_lossy(&b).into_owned()))
    };
    let completion = Completion {
        run: r.try_get::<_, i64>(0)?.into(),
        model: r.try_get::<_, i32>(1)?.cast_unsigned(),
        prompt_hash: r.try_get(2)?,
        content: text(3)?,
        error: text(4)?,
        input_tokens: number(5)?,
        cached_input_tokens: number(6)?,
        output_tokens: number(7)?,
        cost_usd: r.try_get(8)?,
        asked_at: r.try_get(9)?,
        seconds: r.try_get(10)?,
        cells: number(11)?,
        parameters: r.try_get(12)?,
        assumed_cache_writes: number(13)?,
        evidence: r.try_get(14)?,
    };
    Ok((completion, r.try_get("name")?))
}

impl Answers for Server {
    fn load_journal_id(&self) -> Result<String, FactsError> {
        Ok(self.cache.clone())
    }

    fn load_last_completion_id(&self) -> Result<i64, FactsError> {
        self.query_one("SELECT completion FROM hqdl.head", &[], read_id)
    }

    fn load_last_keyed_completion(&self) -> Result<i64, FactsError> {
        self.query_one("SELECT keyed_until FROM hqdl.head", &[], read_id)
    }

    fn load_completion(&self, id: i64) -> Result<Option<(Completion, String)>, FactsError> {
        self.query_first(&format!("{SELECT_COMPLETION} WHERE c.id = $1"), &[&id], read_completion)
    }

    fn load_completions(
        &self,
        ids: &[i64],
    ) -> Result<Vec<Option<(Completion, String)>>, FactsError> {
        let all =
            self.query_all(&format!("{SELECT_COMPLETION} WHERE c.id = ANY($1)"), &[&ids], |r| {
                Ok((r.try_get::<_, i64>("id")?, read_completion(r)?))
            })?;
        let all: HashMap<i64, (Completion, String)> = all.into_iter().collect();
        // `ids` may contain an id twice.
        Ok(ids.iter().map(|id| all.get(id).cloned()).collect())
    }

    fn load_latest_completions(
        &self,
        model: &str,
        max: u32,
    ) -> Result<Vec<(i64, Completion)>, FactsError> {
        let sql = format!(
            "{SELECT_COMPLETION} WHERE c.model = (SELECT id FROM hqdl.model WHERE name = $1)
             AND c.content IS NOT NULL ORDER BY c.id DESC LIMIT $2"
        );
        self.query_all(&sql, &[&model, &i64::from(max)], |r| {
            Ok((r.try_get("id")?, read_completion(r)?.0))
        })
    }

    fn visit_answers_after(
        &self,
        line: i64,
        damage: &Damage,
        visit: &mut dyn FnMut(i64, Entity, Vec<Fact>) -> Result<(), FactsError>,
    ) -> Result<i64, FactsError> {
        self.visit_rows_after(line, &mut |line| {
            let Some(facts) = line.parse_facts() else { return Ok(()) };
            if !damage.trusts_row(line.id, line.entity()) {
                return Ok(());
            }
            let entity = Entity::parse(line.entity())
                .map_err(|e| self.server_error(&format!("line {}: {e}", line.id)))?;
            visit(line.id, entity, facts)
        })
    }

    fn load_journal_position(&self) -> Result<(String, i64), FactsError> {
        let last = self.query_one("SELECT line FROM hqdl.head", &[], read_id)?;
        self.copy.mark_direct_access();
        Ok((self.cache.clone(), last))
    }

    fn find_last_changed_row(&self, identity_id: u32) -> Result<i64, FactsError> {
        let sql = "SELECT changed FROM hqdl.meaning WHERE id = $1";
        self.look_up_last_change(identity_id, || {
            self.query_one(sql, &[&identity_id.cast_signed()], read_id)
        })
    }

    fn find_entities_answered_since(
        &self,
        line: i64,
        identity_ids: &[u32],
    ) -> Result<HashSet<Entity>, FactsError> {
        let mut found = HashSet::new();
        let sql = format!(
            "SELECT {ROW_COLUMNS} FROM hqdl.answer AS a WHERE a.line > $1
               AND EXISTS (SELECT 1 FROM json_array_elements(a.cells::json) AS f
                 WHERE (f ->> 0)::bigint = ANY($3)) ORDER BY a.line LIMIT $2"
        );
        let identity_ids: Vec<i64> = identity_ids.iter().map(|m| i64::from(*m)).collect();
        let mut after = line;
        loop {
            let lines = match self.query_all(
                &sql,
                &[&after, &ROWS_PER_QUERY, &identity_ids],
                StoredRow::from_row,
            ) {
                // A damaged row may have answered one of these columns, so its entity counts as
                // answered.
                Err(error @ FactsError::Journal { .. }) => {
                    let mut damaged = false;
                    self.visit_rows_after(after, &mut |line| {
                        let facts = line.parse_facts();
                        damaged |= facts.is_none();
                        let is_requested =
                            |f: &Fact| identity_ids.contains(&i64::from(f.identity_id));
                        if facts.is_none_or(|facts| facts.iter().any(is_requested)) {
                            found.extend(Entity::parse(line.entity()).ok());
                        }
                        Ok(())
                    })?;
                    return if damaged { Ok(found) } else { Err(error) };
                }
                lines => lines?,
            };
            self.copy.mark_direct_access();
            let Some(last) = lines.last() else { return Ok(found) };
            after = last.id;
            found.extend(lines.iter().filter_map(|line| Entity::parse(line.entity()).ok()));
        }
    }

    fn load_facts(&self, entity: &Entity) -> Result<Vec<Fact>, FactsError> {
        let keys = [entity_key(entity)];
        let rows = self.query_all(ROWS_OF_KEYS, &[&keys.as_slice()], StoredRow::from_row)?;
        Ok(rows.iter().filter_map(StoredRow::parse_facts).flatten().collect())
    }
}

impl Integrity for Server {
    fn find_damage(&self, after: i64) -> Result<Damage, FactsError> {
        let mut damage = Damage::default();
        self.visit_rows_after(after, &mut |line| {
            if line.parse_facts().is_none() {
                damage.mark_damaged(line.id, line.entity());
            }
            Ok(())
        })?;
        Ok(damage)
    }

    fn check_file(&self) -> Result<(), FactsError> {
        let sql = "SELECT id, fingerprint, meaning FROM hqdl.meaning";
        let all = self.query_all(sql, &[], |r| {
            Ok((r.try_get::<_, i32>(0)?, r.try_get::<_, String>(1)?, r.try_get::<_, String>(2)?))
        })?;
        for (id, fingerprint, text) in all {
            let identity = serde_json::from_str::<ColumnIdentity>(&text);
            if !identity.is_ok_and(|m| m.fingerprint().as_str() == fingerprint) {
                return Err(FactsError::Damaged {
                    path: self.link.display_url.clone().into(),
                    message: format!("meaning {id} does not match its fingerprint"),
                });
            }
        }
        Ok(())
    }

    fn unreadable_error(&self, what: String) -> FactsError {
        self.server_error(&what)
    }
}

/// Parses the JSON text in the column with index `at`.
pub(super) fn parse_json_column<T: serde::de::DeserializeOwned>(
    server: &Server,
    row: &Row,
    at: usize,
) -> WorkResult<T> {
    let text: String = row.try_get(at)?;
    Ok(serde_json::from_str(&text).map_err(|e| server.server_error(&e.to_string()))?)
}

/// Serializes `value` as JSON for a text column.
pub(super) fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Parses a JSON array of strings that a query aggregated; other elements are ignored.
pub(super) fn parse_text_list(text: &str) -> Vec<String> {
    let all: Vec<Json> = serde_json::from_str(text).unwrap_or_default();
    all.iter().filter_map(Json::as_str).map(str::to_owned).collect()
}
