//! Live questions of queries, columns that models bound questions to, and refresh jobs.

use std::collections::{BTreeMap, HashMap, HashSet};

use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use crate::FactsError;
use crate::history::{Dictionary, Questions, RefreshJobs};
use crate::postgres::answers::parse_text_list;
use crate::postgres::connection::WorkResult;
use crate::postgres::{Server, ignore_missing_permission, replace_nul_chars};
use crate::questions::{LiveQuestion, QuestionBinding, QuestionOrigin, attach_origins};
use crate::refresh::{OpenRefresh, RefreshSubject};
use hqdl_database::current_timestamp;

/// Selects the column identities created for the questions of queries.
const LIVE_QUESTION_IDS: &str = "SELECT id FROM hqdl.meaning WHERE name = 'answer'
  AND EXISTS (SELECT 1 FROM json_array_elements_text(meaning::json -> 'key') AS k (part)
    WHERE part IN ('value', 'document'))";
const SELECT_BINDING: &str =
    "SELECT b.ask, m.name, b.expansion, b.\"column\", b.operator, b.literal,
  b.completion, b.bound_at FROM hqdl.binding AS b JOIN hqdl.model AS m ON m.id = b.model";

fn read_binding(r: &Row) -> WorkResult<QuestionBinding> {
    Ok(QuestionBinding {
        ask: r.try_get(0)?,
        model: r.try_get(1)?,
        expansion: r.try_get(2)?,
        column: r.try_get(3)?,
        operator: r.try_get(4)?,
        literal: r.try_get(5)?,
        completion: r.try_get(6)?,
        bound_at: r.try_get(7)?,
    })
}

fn read_u64(r: &Row, at: usize) -> WorkResult<u64> {
    Ok(r.try_get::<_, i64>(at)?.cast_unsigned())
}

impl Questions for Server {
    fn record_question(
        &self,
        identity_id: u32,
        origin: &QuestionOrigin,
        list: Option<&[String]>,
    ) -> Result<(), FactsError> {
        let list = list.map(|l| serde_json::Value::from(l).to_string());
        let sql = "INSERT INTO hqdl.question (meaning, origin_table, origin_column, list)
             VALUES ($1, $2, $3, $4) ON CONFLICT (meaning, origin_table, origin_column)
             DO UPDATE SET list = excluded.list, asked_at = excluded.asked_at";
        let (table, column) = (replace_nul_chars(&origin.table), replace_nul_chars(&origin.column));
        ignore_missing_permission(
            self.execute_sql(sql, &[&identity_id.cast_signed(), &table, &column, &list]),
        )
    }

    fn list_live_questions(&self) -> Result<Vec<LiveQuestion>, FactsError> {
        let sql = format!(
            "SELECT q.id, q.meaning, count(DISTINCT CASE WHEN f ->> 2 <> 'error' THEN a.key END),
               count(DISTINCT a.completion), sum(k.input_tokens::double precision / greatest(k.cells, 1)),
               sum(k.output_tokens::double precision / greatest(k.cells, 1)),
               sum(k.cost_usd / greatest(k.cells, 1)), max(k.asked_at), json_agg(DISTINCT m.name)::text
             FROM hqdl.answer AS a CROSS JOIN LATERAL json_array_elements(a.cells::json) AS f
             JOIN hqdl.meaning AS q ON q.id = (f ->> 0)::integer
             JOIN hqdl.completion AS k ON k.id = a.completion JOIN hqdl.model AS m ON m.id = k.model
             WHERE q.id IN ({LIVE_QUESTION_IDS}) GROUP BY q.id, q.meaning ORDER BY 7 DESC, 3 DESC, 1"
        );
        let found = self.query_all(&sql, &[], |r| {
            let Ok(identity) = serde_json::from_str(r.try_get(1)?) else { return Ok(None) };
            Ok(Some(LiveQuestion {
                identity,
                id: r.try_get::<_, i32>(0)?.cast_unsigned(),
                list: None,
                origins: Vec::new(),
                models: parse_text_list(r.try_get(8)?),
                values: read_u64(r, 2)?,
                requests: read_u64(r, 3)?,
                input_tokens: r.try_get(4)?,
                output_tokens: r.try_get(5)?,
                cost_usd: r.try_get(6)?,
                last_asked: r.try_get(7)?,
            }))
        })?;
        let mut found: Vec<LiveQuestion> = found.into_iter().flatten().collect();
        let sql = "SELECT meaning, origin_table, origin_column, list FROM hqdl.question ORDER BY asked_at";
        let uses = self.query_all(sql, &[], |r| {
            let origin = QuestionOrigin { table: r.try_get(1)?, column: r.try_get(2)? };
            let list: Option<String> = r.try_get(3)?;
            Ok((r.try_get::<_, i32>(0)?.cast_unsigned(), origin, list))
        })?;
        attach_origins(&mut found, uses);
        Ok(found)
    }

    fn load_answered_values(&self) -> Result<HashMap<u32, HashSet<String>>, FactsError> {
        let sql = format!(
            "SELECT DISTINCT (f ->> 0)::integer, coalesce(a.entity, a.key) FROM hqdl.answer AS a
             CROSS JOIN LATERAL json_array_elements(a.cells::json) AS f
             WHERE (f ->> 0)::integer IN ({LIVE_QUESTION_IDS}) AND f ->> 2 <> 'error'"
        );
        let mut values: HashMap<u32, HashSet<String>> = HashMap::new();
        let all = self.query_all(&sql, &[], |r| {
            Ok((r.try_get::<_, i32>(0)?.cast_unsigned(), r.try_get::<_, String>(1)?))
        })?;
        for (identity_id, entity) in all {
            let parts: BTreeMap<String, Option<String>> =
                serde_json::from_str(&entity).unwrap_or_default();
            if let Some(Some(value)) = parts.get("value") {
                values.entry(identity_id).or_default().insert(value.clone());
            }
        }
        Ok(values)
    }

    fn find_binding(
        &self,
        columns_hash: &str,
        question: &str,
        model: &str,
    ) -> Result<Option<QuestionBinding>, FactsError> {
        let sql = format!(
            "{SELECT_BINDING} WHERE offered = $1 AND md5(question) = md5($2) AND question = $2 AND m.name = $3"
        );
        self.query_first(
            &sql,
            &[&columns_hash, &replace_nul_chars(question), &replace_nul_chars(model)],
            read_binding,
        )
    }

    fn list_bindings(&self, columns_hash: &str) -> Result<Vec<QuestionBinding>, FactsError> {
        self.query_all(
            &format!("{SELECT_BINDING} WHERE offered = $1 ORDER BY b.id"),
            &[&columns_hash],
            read_binding,
        )
    }

    fn store_binding(
        &self,
        columns_hash: &str,
        question: &str,
        binding: &QuestionBinding,
    ) -> Result<(), FactsError> {
        let model = Dictionary::intern_model(self, &binding.model)?.cast_signed();
        let sql = "INSERT INTO hqdl.binding (offered, question, ask, model, expansion, \"column\", operator,
               literal, completion, bound_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";
        self.execute_sql(
            sql,
            &[
                &columns_hash,
                &replace_nul_chars(question),
                &replace_nul_chars(&binding.ask),
                &model,
                &replace_nul_chars(&binding.expansion),
                &replace_nul_chars(&binding.column),
                &binding.operator,
                &replace_nul_chars(&binding.literal),
                &binding.completion,
                &binding.bound_at,
            ],
        )
    }
}

const SELECT_OPEN_REFRESH: &str = "SELECT id, up_to, begun_at FROM hqdl.round
  WHERE kind = $1 AND spec = $2 AND expansion = $3 AND meaning = $4 AND model = $5
    AND scope = $6 AND ended_at IS NULL ORDER BY id DESC LIMIT 1";

fn read_open_refresh(r: &Row) -> WorkResult<OpenRefresh> {
    Ok(OpenRefresh { id: r.try_get(0)?, up_to: r.try_get(1)?, begun_at: r.try_get(2)? })
}

impl RefreshJobs for Server {
    fn load_open_refresh(&self, s: &RefreshSubject) -> Result<Option<OpenRefresh>, FactsError> {
        let (spec, expansion, scope) = (
            replace_nul_chars(&s.spec),
            replace_nul_chars(&s.expansion),
            replace_nul_chars(&s.scope),
        );
        let (identity_id, model) = (s.identity_id.cast_signed(), s.model.cast_signed());
        self.query_first(
            SELECT_OPEN_REFRESH,
            &[&s.kind.name(), &spec, &expansion, &identity_id, &model, &scope],
            read_open_refresh,
        )
    }

    fn start_refresh(&self, s: &RefreshSubject, up_to: i64) -> Result<OpenRefresh, FactsError> {
        let (spec, expansion, scope) = (
            replace_nul_chars(&s.spec),
            replace_nul_chars(&s.expansion),
            replace_nul_chars(&s.scope),
        );
        let (identity_id, model) = (s.identity_id.cast_signed(), s.model.cast_signed());
        self.transact_once(&async |all: &Transaction<'_>| {
            // Another process may have started the refresh just now.
            all.batch_execute("SELECT 1 FROM hqdl.head FOR UPDATE").await?;
            let kind = s.kind.name();
            let which: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
                [&kind, &spec, &expansion, &identity_id, &model, &scope];
            if let Some(row) = all.query_opt(SELECT_OPEN_REFRESH, &which).await? {
                return Ok(row.try_get(0)?);
            }
            let sql = "INSERT INTO hqdl.round (kind, spec, expansion, meaning, model, scope, up_to, begun_at)
                       VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id";
            let begun: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&up_to, &current_timestamp()];
            Ok(all.query_one(sql, &[&which[..], &begun[..]].concat()).await?.try_get(0)?)
        })?;
        self.load_open_refresh(s)?
            .ok_or_else(|| self.server_error("another process has ended the refresh job"))
    }

    fn finish_refresh(&self, refresh_job: i64) -> Result<(), FactsError> {
        self.execute_sql("UPDATE hqdl.round SET ended_at = now() WHERE id = $1", &[&refresh_job])
    }
}
