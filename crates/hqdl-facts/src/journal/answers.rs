//! Completions and answers in the journal.

use std::collections::HashSet;

use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, params};
use serde_json::Value as Json;

use crate::FactsError;
use crate::checksum::{ANSWER_ROWS_SQL, AnswerRow, Damage, ENTITY_ROWS_SQL};
use crate::completion::Completion;
use crate::history::{Answers, Integrity, MAX_SEARCHED_ROWS};
use crate::journal::dictionary::read_text;
use crate::journal::{Journal, parse_cells};
use crate::record::Fact;
use hqdl_values::key::Entity;

impl Journal {
    /// Records that an answer row replaced a value of a column identity.
    pub(crate) fn store_last_change(&self, identity_id: u32, line: i64) -> rusqlite::Result<()> {
        self.connection()
            .prepare_cached("UPDATE meaning SET changed = max(changed, ?2) WHERE id = ?1")?
            .execute(params![identity_id, line])
            .map(|_| ())
    }
}

const SELECT_COMPLETION: &str =
    "SELECT c.run, c.model, c.prompt_hash, c.content, c.error, c.input_tokens,
  c.cached_input_tokens, c.output_tokens, c.cost_usd, c.asked_at, c.seconds, c.cells, c.parameters,
  c.assumed_cache_writes, c.evidence, m.name, c.id
  FROM completion AS c JOIN model AS m ON m.id = c.model";

fn read_completion(r: &rusqlite::Row<'_>) -> rusqlite::Result<(Completion, String)> {
    let completion = Completion {
        run: r.get(0)?,
        model: r.get(1)?,
        prompt_hash: read_lossy_text(r, 2)?.unwrap_or_default(),
        content: read_lossy_text(r, 3)?,
        error: read_lossy_text(r, 4)?,
        input_tokens: r.get(5)?,
        cached_input_tokens: r.get(6)?,
        output_tokens: r.get(7)?,
        cost_usd: r.get(8)?,
        asked_at: read_lossy_text(r, 9)?.unwrap_or_default(),
        seconds: r.get(10)?,
        cells: r.get(11)?,
        parameters: read_lossy_text(r, 12)?,
        assumed_cache_writes: r.get(13)?,
        evidence: read_lossy_text(r, 14)?,
    };
    Ok((completion, read_lossy_text(r, 15)?.unwrap_or_default()))
}

/// Reads a text column. Bytes damaged on disk become replacement characters, so that one damaged
/// answer does not block the others.
pub(super) fn read_lossy_text(
    r: &rusqlite::Row<'_>,
    at: usize,
) -> rusqlite::Result<Option<String>> {
    match r.get_ref(at)? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
        _ => r.get(at),
    }
}

impl Answers for Journal {
    fn load_journal_id(&self) -> Result<String, FactsError> {
        self.with_connection(|c| {
            c.query_row("SELECT id FROM journal", [], |r| {
                Ok(read_lossy_text(r, 0)?.unwrap_or_default())
            })
        })
    }

    fn load_last_completion_id(&self) -> Result<i64, FactsError> {
        self.with_connection(|c| {
            c.query_row("SELECT coalesce(max(id), 0) FROM completion", [], |r| r.get(0))
        })
    }

    fn load_last_keyed_completion(&self) -> Result<i64, FactsError> {
        self.with_connection(|c| c.query_row("SELECT keyed_until FROM journal", [], |r| r.get(0)))
    }

    fn load_completion(&self, id: i64) -> Result<Option<(Completion, String)>, FactsError> {
        let sql = format!("{SELECT_COMPLETION} WHERE c.id = ?1");
        self.with_connection(|c| {
            c.prepare_cached(&sql)?.query_row([id], read_completion).optional()
        })
    }

    fn load_latest_completions(
        &self,
        model: &str,
        max: u32,
    ) -> Result<Vec<(i64, Completion)>, FactsError> {
        let sql = format!(
            "{SELECT_COMPLETION} WHERE c.model = (SELECT id FROM model WHERE name = ?1)
             AND c.content IS NOT NULL ORDER BY c.id DESC LIMIT ?2"
        );
        self.with_connection(|c| {
            let read = |r: &rusqlite::Row<'_>| Ok((r.get(16)?, read_completion(r)?.0));
            c.prepare_cached(&sql)?.query_map(params![model, max], read)?.collect()
        })
    }

    fn visit_answers_after(
        &self,
        line: i64,
        damage: &Damage,
        visit: &mut dyn FnMut(i64, Entity, Vec<Fact>) -> Result<(), FactsError>,
    ) -> Result<i64, FactsError> {
        let error = |e: rusqlite::Error| self.error(&e);
        let connection = self.connection();
        let mut statement = connection.prepare(ANSWER_ROWS_SQL).map_err(error)?;
        let mut rows = statement.query([line]).map_err(error)?;
        let mut last = line;
        while let Some(row) = rows.next().map_err(error)? {
            let line = match AnswerRow::from_row(row).map_err(error)? {
                Ok(line) => line,
                Err((id, _)) => {
                    last = id;
                    continue;
                }
            };
            last = line.id;
            if !damage.trusts_row(line.id, &line.entity) {
                continue;
            }
            let unreadable =
                |what: String| self.unreadable_error(format!("line {}: {what}", line.id));
            let entity = Entity::parse(&line.entity).map_err(|e| unreadable(e.to_string()))?;
            let facts = parse_cells(&line).map_err(|what| self.unreadable_error(what))?;
            visit(line.id, entity, facts)?;
        }
        Ok(last)
    }

    fn load_journal_position(&self) -> Result<(String, i64), FactsError> {
        Ok((self.load_journal_id()?, self.load_last_row_id()?))
    }

    fn find_last_changed_row(&self, identity_id: u32) -> Result<i64, FactsError> {
        let read = || {
            self.connection()
                .prepare_cached("SELECT changed FROM meaning WHERE id = ?1")?
                .query_row([identity_id], |r| r.get(0))
        };
        read().map_err(|e| self.error(&e))
    }

    fn find_entities_answered_since(
        &self,
        line: i64,
        identity_ids: &[u32],
    ) -> Result<HashSet<Entity>, FactsError> {
        self.with_connection(|c| {
            let mut found = HashSet::new();
            let mut lines = c.prepare("SELECT entity, cells FROM answer WHERE id > ?1")?;
            let mut rows = lines.query([line])?;
            while let Some(row) = rows.next()? {
                let Some(entity) = read_text(row, 0)? else { continue };
                // The cells of a damaged answer may belong to any column.
                let cells = read_text(row, 1)?.and_then(|text| serde_json::from_str(&text).ok());
                let cells: Vec<Json> = cells.unwrap_or_else(|| vec![Json::Null]);
                let of = |cell: &Json| cell.get(0)?.as_u64();
                let is_one = |of: u64| identity_ids.iter().any(|m| u64::from(*m) == of);
                if cells.iter().any(|cell| of(cell).is_none_or(is_one))
                    && let Ok(entity) = Entity::parse(&entity)
                {
                    found.insert(entity);
                }
            }
            Ok(found)
        })
    }

    fn load_facts(&self, entity: &Entity) -> Result<Vec<Fact>, FactsError> {
        let first = self.load_last_row_id()? - MAX_SEARCHED_ROWS;
        let rows = self.with_connection(|c| {
            let mut select = c.prepare_cached(ENTITY_ROWS_SQL)?;
            let rows = select.query_map(params![first, entity.as_str()], AnswerRow::from_row)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let rows = rows.into_iter().filter_map(|row| parse_cells(&row.ok()?).ok());
        Ok(rows.flatten().collect())
    }
}
