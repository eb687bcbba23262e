//! Facts as JSON lines, to be read, moved and merged. A line is one cell:
//!
//! ```json
//! {"entity":{"full_name":"Bruce Wayne","superhero_name":"Batman"},
//!  "meaning":{"key":[…],"column":"publisher_name","type":"text","about":"…","many":false,"list":"closed"},
//!  "list":"l1:…","model":"gpt-4o-mini","state":"ok","value":"DC Comics","raw":null,"repair":null,
//!  "asked_at":"…","prompt_hash":"p1:…","input_tokens":3.5,"output_tokens":2.0,"cost_usd":0.000001}
//! ```
//!
//! Lines come in the order of the journal, so that importing them again leads
//! to the same facts. Tokens and price are the cell's share of its request.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use serde_json::{Value as Json, json};

use super::desk::keep;
use super::history::{Answers, Dictionary, Runs};
use super::index::{Fact, Index};
use super::journal::{Completion, Journal};
use super::store::CommitUnit;
use super::{Facts, FactsError};
use crate::cell::{Answer, CellValue, State};
use crate::key::{Entity, Meaning};

impl Facts {
    /// Writes every fact as a line of JSON; returns how many.
    ///
    /// # Errors
    /// [`FactsError`] when the journal cannot be read or `out` not written.
    pub fn export(&self, out: &mut dyn Write) -> Result<u64, FactsError> {
        let history = self.history();
        let models: HashMap<u32, String> = history.models()?.into_iter().collect();
        let lists: HashMap<u32, String> = history.value_lists()?.into_iter().collect();
        let meanings: HashMap<u32, Json> = history
            .meanings()?
            .into_iter()
            .map(|(id, text)| (id, serde_json::from_str(&text).unwrap_or(Json::Null)))
            .collect();
        // Whoever takes them in could not tell what is damaged.
        history.check()?;
        let damage = history.damage(0)?;
        let mut count = 0;
        history.answers_after(0, &damage, &mut |_, entity, facts| {
            let entity: Json = serde_json::from_str(entity.as_str()).unwrap_or(Json::Null);
            for fact in facts {
                let completion =
                    history.completion(fact.completion)?.map(|(c, _)| c).unwrap_or_default();
                let share = completion.cells.max(1) as f64;
                let line = json!({
                    "entity": entity,
                    "meaning": meanings.get(&fact.meaning),
                    "list": fact.list.and_then(|l| lists.get(&l)),
                    "model": models.get(&fact.model),
                    "state": fact.answer.state.name(),
                    "value": fact.answer.value.to_json(),
                    "raw": fact.answer.raw,
                    "repair": fact.answer.repair,
                    "asked_at": completion.asked_at,
                    "prompt_hash": completion.prompt_hash,
                    "input_tokens": completion.input_tokens as f64 / share,
                    "output_tokens": completion.output_tokens as f64 / share,
                    "cost_usd": completion.cost_usd / share,
                });
                let file = |error| FactsError::File { path: "the output".into(), error };
                writeln!(out, "{line}").map_err(file)?;
                count += 1;
            }
            Ok(())
        })?;
        Ok(count)
    }
}

/// Takes in facts written by [`Facts::export`]; returns how many were news. An
/// import is not a request, so its tokens and price are not counted again.
///
/// # Errors
/// [`FactsError::Import`] with the number of a line that cannot be used.
pub(super) fn import(
    journal: &Journal,
    index: &Index,
    input: &mut dyn BufRead,
) -> Result<u64, FactsError> {
    let mut lines = Vec::new();
    for (n, line) in input.lines().enumerate() {
        let bad = |message: String| FactsError::Import { line: n + 1, message };
        let line = line.map_err(|e| bad(e.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let json: Json = serde_json::from_str(&line).map_err(|e| bad(format!("not JSON: {e}")))?;
        lines.push(Line::read(&json).map_err(bad)?);
    }
    let _connection = journal.connection();
    index.catch_up(journal)?;
    let run = journal.begin("cache import", "")?;
    let mut batches: Vec<CommitUnit> = Vec::new();
    let mut count = lines.len() as u64;
    for line in lines {
        let completion = Completion {
            run,
            model: journal.model(&line.model)?,
            prompt_hash: line.prompt_hash,
            asked_at: line.asked_at,
            ..Completion::default()
        };
        let fact = Fact {
            meaning: journal.meaning(&line.meaning)?,
            model: completion.model,
            list: line.list.map(|hash| journal.value_list(&hash)).transpose()?,
            completion: 0,
            asked: 0,
            answer: line.answer,
        };
        // What is known and newer stays.
        let known = index.get(&line.entity)?.unwrap_or_default();
        let same = |f: &&Fact| f.meaning == fact.meaning && f.model == fact.model;
        if let Some(kept) = known.facts.iter().find(same) {
            let asked_at = journal.completion(kept.completion)?.map(|(c, _)| c.asked_at);
            if asked_at.is_some_and(|kept| kept >= completion.asked_at) {
                count -= 1;
                continue;
            }
        }
        // Lines of one request stand together.
        let same = batches.last_mut().filter(|b| {
            b.completion.prompt_hash == completion.prompt_hash
                && b.completion.asked_at == completion.asked_at
                && b.completion.model == completion.model
        });
        let batch = if let Some(batch) = same {
            batch
        } else {
            batches.push(CommitUnit { completion, ..CommitUnit::default() });
            let last = batches.len() - 1;
            &mut batches[last]
        };
        batch.completion.cells += 1;
        match batch.facts.last_mut().filter(|(entity, _)| *entity == line.entity) {
            Some((_, facts)) => facts.push(fact),
            None => batch.facts.push((line.entity, vec![fact])),
        }
    }
    keep(journal, index, batches)?;
    journal.end(run, super::Outcome::Complete)?;
    Ok(count)
}
struct Line {
    entity: Entity,
    meaning: Meaning,
    list: Option<crate::key::ListHash>,
    model: String,
    answer: Answer,
    asked_at: String,
    prompt_hash: String,
}

impl Line {
    fn read(json: &Json) -> Result<Self, String> {
        let text = |field: &str| json.get(field).and_then(Json::as_str).map(str::to_owned);
        let need =
            |field: &str| text(field).ok_or_else(|| format!("`{field}` is missing or not text"));
        let entity = json.get("entity").filter(|e| e.is_object()).ok_or("`entity` is missing")?;
        let meaning = json.get("meaning").cloned().ok_or("`meaning` is missing")?;
        let state = need("state")?;
        let state =
            State::from_name(&state).ok_or_else(|| format!("no state is called `{state}`"))?;
        let value = json.get("value").map_or(CellValue::Nothing, CellValue::from_json);
        if state.shows() != (value != CellValue::Nothing) {
            return Err(format!(
                "a cell that is `{}` {}",
                state.name(),
                if state.shows() { "needs a value" } else { "has no value" }
            ));
        }
        Ok(Self {
            entity: Entity::parse(&entity.to_string()).map_err(|e| format!("`entity`: {e}"))?,
            meaning: serde_json::from_value(meaning).map_err(|e| format!("`meaning`: {e}"))?,
            list: text("list").map(crate::key::ListHash::from_text),
            model: need("model")?,
            answer: Answer { state, value, raw: text("raw"), repair: text("repair") },
            asked_at: text("asked_at").unwrap_or_else(crate::store::now),
            prompt_hash: text("prompt_hash").unwrap_or_default(),
        })
    }
}
