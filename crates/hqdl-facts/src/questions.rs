//! Questions that queries asked live: what they were, where their values came
//! from, what they cost; and the columns that a model bound questions to.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::{OptionalExtension, params};

use super::FactsError;
use super::history::{Dictionary, Questions};
use super::journal::Journal;
use hqdl_database::now;
use hqdl_values::key::Meaning;

/// Where a question was asked: its meaning's id, what its values came from, and the
/// list that was given, as JSON.
pub(crate) type Note = (u32, Origin, Option<String>);

/// Tells each question where its values came from, as was noted, oldest first; the
/// last list counts.
pub(crate) fn attribute(questions: &mut [LiveQuestion], noted: Vec<Note>) {
    for (meaning, origin, list) in noted {
        let Some(question) = questions.iter_mut().find(|q| q.id == meaning) else { continue };
        question.list = list.and_then(|l| serde_json::from_str(&l).ok()).or(question.list.take());
        if !origin.column.is_empty() {
            question.origins.push(origin);
        }
    }
}

/// The column of the database that a question's values came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Its table or view; empty when the values are no column.
    pub table: String,
    /// The column.
    pub column: String,
}

/// A question that was asked live of values.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveQuestion {
    /// What was asked.
    pub meaning: Meaning,
    /// The id of that in the journal.
    pub id: u32,
    /// The value list, where it is remembered.
    pub list: Option<Vec<String>>,
    /// Where the values came from.
    pub origins: Vec<Origin>,
    /// The models that were asked.
    pub models: Vec<String>,
    /// Values that were answered.
    pub values: u64,
    /// Requests that it was part of.
    pub requests: u64,
    /// Its share of their input tokens,
    pub input_tokens: f64,
    /// output tokens,
    pub output_tokens: f64,
    /// and price, in USD.
    pub cost_usd: f64,
    /// When it was last asked, RFC 3339.
    pub last_asked: String,
}

/// A question that a model bound to a column, or to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The question as it was asked.
    pub ask: String,
    /// The model.
    pub model: String,
    /// The expansion; empty when none answers.
    pub expansion: String,
    /// Its column.
    pub column: String,
    /// How the column answers; `none` when none does.
    pub operator: String,
    /// What the column is compared with.
    pub literal: String,
    /// The completion that said so.
    pub completion: i64,
    /// When, RFC 3339.
    pub bound_at: String,
}

/// The question that a column's meaning is, when a query gave birth to it.
const ASKED: &str = "SELECT id FROM meaning WHERE name = 'answer'
  AND EXISTS (SELECT 1 FROM json_each(meaning, '$.key') WHERE value IN ('value', 'document'))";

impl Questions for Journal {
    fn note_question(
        &self,
        meaning: u32,
        origin: &Origin,
        list: Option<&[String]>,
    ) -> Result<(), FactsError> {
        let list = list.map(|l| serde_json::Value::from(l).to_string());
        self.run(|c| {
            c.execute(
                "INSERT INTO question (meaning, origin_table, origin_column, list, asked_at)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET list = excluded.list, asked_at = excluded.asked_at",
                params![meaning, origin.table, origin.column, list, now()],
            )
        })?;
        Ok(())
    }

    fn live_questions(&self) -> Result<Vec<LiveQuestion>, FactsError> {
        let mut found = self.run(|c| {
            c.prepare(&format!(
                "SELECT q.id, q.meaning, count(DISTINCT CASE WHEN f.value ->> 2 <> 'error' THEN a.entity END),
                   count(DISTINCT a.completion), sum(k.input_tokens * 1.0 / max(k.cells, 1)),
                   sum(k.output_tokens * 1.0 / max(k.cells, 1)), sum(k.cost_usd / max(k.cells, 1)),
                   max(k.asked_at), json_group_array(DISTINCT m.name)
                 FROM answer AS a JOIN json_each(a.cells) AS f
                 JOIN meaning AS q ON q.id = f.value ->> 0
                 JOIN completion AS k ON k.id = a.completion JOIN model AS m ON m.id = k.model
                 WHERE q.id IN ({ASKED}) GROUP BY q.id ORDER BY 7 DESC, 3 DESC, 1"
            ))?
            .query_map([], |r| {
                let (meaning, models): (String, String) = (r.get(1)?, r.get(8)?);
                let Ok(meaning) = serde_json::from_str(&meaning) else { return Ok(None) };
                Ok(Some(LiveQuestion {
                    meaning,
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
        let noted: Vec<Note> = self.run(|c| {
            c.prepare(
                "SELECT meaning, origin_table, origin_column, list FROM question ORDER BY asked_at",
            )?
            .query_map([], |r| {
                Ok((r.get(0)?, Origin { table: r.get(1)?, column: r.get(2)? }, r.get(3)?))
            })?
            .collect()
        })?;
        attribute(&mut found, noted);
        Ok(found)
    }

    fn asked_values(&self) -> Result<HashMap<u32, HashSet<String>>, FactsError> {
        let mut values: HashMap<u32, HashSet<String>> = HashMap::new();
        self.run(|c| {
            let mut all = c.prepare(&format!(
                "SELECT DISTINCT f.value ->> 0, a.entity FROM answer AS a JOIN json_each(a.cells) AS f
                 WHERE f.value ->> 0 IN ({ASKED}) AND f.value ->> 2 <> 'error'"
            ))?;
            let mut rows = all.query([])?;
            while let Some(row) = rows.next()? {
                let (meaning, entity): (u32, String) = (row.get(0)?, row.get(1)?);
                let parts: BTreeMap<String, Option<String>> =
                    serde_json::from_str(&entity).unwrap_or_default();
                if let Some(Some(value)) = parts.get("value") {
                    values.entry(meaning).or_default().insert(value.clone());
                }
            }
            Ok(())
        })?;
        Ok(values)
    }

    fn learned(
        &self,
        offered: &str,
        question: &str,
        model: &str,
    ) -> Result<Option<Learned>, FactsError> {
        self.run(|c| {
            c.query_row(
                &format!("{LEARNED} WHERE offered = ?1 AND question = ?2 AND m.name = ?3"),
                [offered, question, model],
                learned,
            )
            .optional()
        })
    }

    fn all_learned(&self, offered: &str) -> Result<Vec<Learned>, FactsError> {
        self.run(|c| {
            c.prepare(&format!("{LEARNED} WHERE offered = ?1 ORDER BY b.id"))?
                .query_map([offered], learned)?
                .collect()
        })
    }

    fn learn(&self, offered: &str, question: &str, learned: &Learned) -> Result<(), FactsError> {
        let model = Dictionary::model(self, &learned.model)?;
        self.run(|c| {
            c.execute(
                "INSERT INTO binding (offered, question, ask, model, expansion, \"column\", operator,
                   literal, completion, bound_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING",
                params![
                    offered,
                    question,
                    learned.ask,
                    model,
                    learned.expansion,
                    learned.column,
                    learned.operator,
                    learned.literal,
                    learned.completion,
                    learned.bound_at
                ],
            )
        })?;
        Ok(())
    }
}

const LEARNED: &str = "SELECT b.ask, m.name, b.expansion, b.\"column\", b.operator, b.literal,
  b.completion, b.bound_at FROM binding AS b JOIN model AS m ON m.id = b.model";

fn learned(r: &rusqlite::Row<'_>) -> rusqlite::Result<Learned> {
    Ok(Learned {
        ask: r.get(0)?,
        model: r.get(1)?,
        expansion: r.get(2)?,
        column: r.get(3)?,
        operator: r.get(4)?,
        literal: r.get(5)?,
        completion: r.get(6)?,
        bound_at: r.get(7)?,
    })
}
