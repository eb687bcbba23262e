//! Live questions of queries, and the columns that models bound questions to, in the journal.

use crate::questions::{
    LiveQuestion, QuestionBinding, QuestionOrigin, QuestionUse, attach_origins,
};
use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::{OptionalExtension, params};

use crate::FactsError;
use crate::history::{Dictionary, Questions};
use crate::journal::Journal;
use crate::journal::answers::read_lossy_text;
use crate::journal::dictionary::read_text;
use hqdl_database::current_timestamp;

/// Selects the column identities created for the questions of queries.
const LIVE_QUESTION_IDS: &str = "SELECT id FROM meaning WHERE name = 'answer'
  AND EXISTS (SELECT 1 FROM json_each(meaning, '$.key') WHERE value IN ('value', 'document'))";

impl Questions for Journal {
    fn record_question(
        &self,
        identity_id: u32,
        origin: &QuestionOrigin,
        list: Option<&[String]>,
    ) -> Result<(), FactsError> {
        let list = list.map(|l| serde_json::Value::from(l).to_string());
        self.with_connection(|c| {
            c.execute(
                "INSERT INTO question (meaning, origin_table, origin_column, list, asked_at)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET list = excluded.list, asked_at = excluded.asked_at",
                params![identity_id, origin.table, origin.column, list, current_timestamp()],
            )
        })?;
        Ok(())
    }

    fn list_live_questions(&self) -> Result<Vec<LiveQuestion>, FactsError> {
        let mut found = self.with_connection(|c| {
            c.prepare(&format!(
                "SELECT q.id, q.meaning, count(DISTINCT CASE WHEN f.value ->> 2 <> 'error' THEN a.entity END),
                   count(DISTINCT a.completion), sum(k.input_tokens * 1.0 / max(k.cells, 1)),
                   sum(k.output_tokens * 1.0 / max(k.cells, 1)), sum(k.cost_usd / max(k.cells, 1)),
                   max(k.asked_at), json_group_array(DISTINCT m.name)
                 FROM answer AS a JOIN json_each(a.cells) AS f
                 JOIN meaning AS q ON q.id = f.value ->> 0
                 JOIN completion AS k ON k.id = a.completion JOIN model AS m ON m.id = k.model
                 WHERE q.id IN ({LIVE_QUESTION_IDS}) GROUP BY q.id ORDER BY 7 DESC, 3 DESC, 1"
            ))?
            .query_map([], |r| {
                let Some(identity) = read_text(r, 1)? else { return Ok(None) };
                let Ok(identity) = serde_json::from_str(&identity) else { return Ok(None) };
                let models = read_lossy_text(r, 8)?.unwrap_or_default();
                Ok(Some(LiveQuestion {
                    identity,
                    id: r.get(0)?,
                    list: None,
                    origins: Vec::new(),
                    models: serde_json::from_str(&models).unwrap_or_default(),
                    values: r.get(2)?,
                    requests: r.get(3)?,
                    input_tokens: r.get(4)?,
                    output_tokens: r.get(5)?,
                    cost_usd: r.get(6)?,
                    last_asked: r.get(7)?,
                }))
            })?
            .filter_map(Result::transpose)
            .collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let uses: Vec<QuestionUse> = self.with_connection(|c| {
            c.prepare(
                "SELECT meaning, origin_table, origin_column, list FROM question ORDER BY asked_at",
            )?
            .query_map([], |r| {
                Ok((r.get(0)?, QuestionOrigin { table: r.get(1)?, column: r.get(2)? }, r.get(3)?))
            })?
            .collect()
        })?;
        attach_origins(&mut found, uses);
        Ok(found)
    }

    fn load_answered_values(&self) -> Result<HashMap<u32, HashSet<String>>, FactsError> {
        let mut values: HashMap<u32, HashSet<String>> = HashMap::new();
        self.with_connection(|c| {
            let mut all = c.prepare(&format!(
                "SELECT DISTINCT f.value ->> 0, a.entity FROM answer AS a JOIN json_each(a.cells) AS f
                 WHERE f.value ->> 0 IN ({LIVE_QUESTION_IDS}) AND f.value ->> 2 <> 'error'"
            ))?;
            let mut rows = all.query([])?;
            while let Some(row) = rows.next()? {
                let (identity_id, entity): (u32, String) = (row.get(0)?, row.get(1)?);
                let parts: BTreeMap<String, Option<String>> =
                    serde_json::from_str(&entity).unwrap_or_default();
                if let Some(Some(value)) = parts.get("value") {
                    values.entry(identity_id).or_default().insert(value.clone());
                }
            }
            Ok(())
        })?;
        Ok(values)
    }

    fn find_binding(
        &self,
        columns_hash: &str,
        question: &str,
        model: &str,
    ) -> Result<Option<QuestionBinding>, FactsError> {
        self.with_connection(|c| {
            c.query_row(
                &format!("{SELECT_BINDING} WHERE offered = ?1 AND question = ?2 AND m.name = ?3"),
                [columns_hash, question, model],
                read_binding,
            )
            .optional()
        })
    }

    fn list_bindings(&self, columns_hash: &str) -> Result<Vec<QuestionBinding>, FactsError> {
        self.with_connection(|c| {
            c.prepare(&format!("{SELECT_BINDING} WHERE offered = ?1 ORDER BY b.id"))?
                .query_map([columns_hash], read_binding)?
                .collect()
        })
    }

    fn store_binding(
        &self,
        columns_hash: &str,
        question: &str,
        binding: &QuestionBinding,
    ) -> Result<(), FactsError> {
        let model = Dictionary::intern_model(self, &binding.model)?;
        self.with_connection(|c| {
            c.execute(
                "INSERT INTO binding (offered, question, ask, model, expansion, \"column\", operator,
                   literal, completion, bound_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING",
                params![
                    columns_hash,
                    question,
                    binding.ask,
                    model,
                    binding.expansion,
                    binding.column,
                    binding.operator,
                    binding.literal,
                    binding.completion,
                    binding.bound_at
                ],
            )
        })?;
        Ok(())
    }
}

const SELECT_BINDING: &str =
    "SELECT b.ask, m.name, b.expansion, b.\"column\", b.operator, b.literal,
  b.completion, b.bound_at FROM binding AS b JOIN model AS m ON m.id = b.model";

fn read_binding(r: &rusqlite::Row<'_>) -> rusqlite::Result<QuestionBinding> {
    Ok(QuestionBinding {
        ask: r.get(0)?,
        model: read_lossy_text(r, 1)?.unwrap_or_default(),
        expansion: r.get(2)?,
        column: r.get(3)?,
        operator: r.get(4)?,
        literal: r.get(5)?,
        completion: r.get(6)?,
        bound_at: r.get(7)?,
    })
}
