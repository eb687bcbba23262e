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

use crate::commit_thread::keep;
use crate::completion::Completion;
use crate::history::{History, Runs};
use crate::ids::RunId;
use crate::index::Index;
use crate::journal::Journal;
use crate::record::{Fact, Record};
use crate::store::CommitUnit;
use crate::{Facts, FactsError};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::key::{Entity, ListHash, Meaning};

/// Number of lines whose entities are looked up at once.
const LOOKED_UP: usize = 4096;
/// Number of lines that are exported at once; their completions are read together.
const EXPORTED: usize = 500;

impl Facts {
    /// Writes every fact as a line of JSON and returns the number of lines.
    ///
    /// # Errors
    /// [`FactsError`] if the journal cannot be read or `out` cannot be written.
    pub fn export(&self, out: &mut dyn Write) -> Result<u64, FactsError> {
        let history = self.history();
        let models: HashMap<u32, String> = history.models()?.into_iter().collect();
        let lists: HashMap<u32, String> = history.value_lists()?.into_iter().collect();
        let meanings: HashMap<u32, Json> = history
            .meanings()?
            .into_iter()
            .map(|(id, text)| (id, serde_json::from_str(&text).unwrap_or(Json::Null)))
            .collect();
        // An import cannot detect damage, so do not export damaged facts.
        history.check()?;
        let damage = history.damage(0)?;
        let mut count = 0;
        let mut write = |answers: &mut Vec<(Entity, Vec<Fact>)>| -> Result<(), FactsError> {
            let facts = || {
                answers.iter().flat_map(|(entity, facts)| facts.iter().map(move |f| (entity, f)))
            };
            let mut ids: Vec<i64> = facts().map(|(_, fact)| fact.completion).collect();
            ids.sort_unstable();
            ids.dedup();
            let found = history.completions(&ids)?.into_iter().map(|found| found.map(|(c, _)| c));
            let found: HashMap<i64, Completion> =
                ids.iter().zip(found).map(|(id, c)| (*id, c.unwrap_or_default())).collect();
            let none = Completion::default();
            for (entity, fact) in facts() {
                let completion = found.get(&fact.completion).unwrap_or(&none);
                let share = completion.cells.max(1) as f64;
                let line = json!({
                    "entity": serde_json::from_str(entity.as_str()).unwrap_or(Json::Null),
                    "meaning": meanings.get(&fact.meaning),
                    "list": fact.list.and_then(|l| lists.get(&l)),
                    "model": models.get(&fact.model),
                    "state": fact.answer.state.name(),
                    "value": fact.answer.value.to_json(),
                    "raw": fact.answer.raw,
                    "repair": fact.answer.repair,
                    "asked_at": completion.asked_at,
                    "prompt_hash": completion.prompt_hash,
                    "parameters": completion.parameters,
                    "input_tokens": completion.input_tokens as f64 / share,
                    "output_tokens": completion.output_tokens as f64 / share,
                    "cost_usd": completion.cost_usd / share,
                });
                let file = |error| FactsError::File { path: "the output".into(), error };
                writeln!(out, "{line}").map_err(file)?;
                count += 1;
            }
            answers.clear();
            Ok(())
        };
        let mut answers = Vec::new();
        history.answers_after(0, &damage, &mut |_, entity, facts| {
            answers.push((entity, facts));
            if answers.len() < EXPORTED { Ok(()) } else { write(&mut answers) }
        })?;
        write(&mut answers)?;
        Ok(count)
    }
}

/// Looks up the records of some entities, in their order.
pub(super) type RecordsLook<'l> = dyn Fn(&[Entity]) -> Result<Vec<Option<Record>>, FactsError> + 'l;

/// Imports facts written by [`Facts::export`] and returns how many were new. An import is not a
/// request, so its tokens and price are not counted again.
///
/// # Errors
/// [`FactsError::Import`] with the number of a line that cannot be used.
pub(super) fn import(
    journal: &Journal,
    index: &Index,
    input: &mut dyn BufRead,
) -> Result<u64, FactsError> {
    let lines = read(input)?;
    let _connection = journal.connection();
    index.catch_up(journal)?;
    let look = |entities: &[Entity]| index.get_many(&entities.iter().collect::<Vec<_>>());
    let (run, units, count) = units_of(journal, &look, lines)?;
    keep(journal, index, units)?;
    journal.end(run, super::Outcome::Complete)?;
    Ok(count)
}

/// Starts a run for an import of facts written by [`Facts::export`]. Returns the run, the units to
/// keep, and the number of new facts.
pub(super) fn units(
    history: &dyn History,
    look: &RecordsLook<'_>,
    input: &mut dyn BufRead,
) -> Result<(RunId, Vec<CommitUnit>, u64), FactsError> {
    units_of(history, look, read(input)?)
}

fn read(input: &mut dyn BufRead) -> Result<Vec<ExportedLine>, FactsError> {
    let mut lines = Vec::new();
    for (n, line) in input.lines().enumerate() {
        let bad = |message: String| FactsError::Import { line: n + 1, message };
        let line = line.map_err(|e| bad(e.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let json: Json = serde_json::from_str(&line).map_err(|e| bad(format!("not JSON: {e}")))?;
        lines.push(ExportedLine::read(&json).map_err(bad)?);
    }
    Ok(lines)
}

fn units_of(
    history: &dyn History,
    look: &RecordsLook<'_>,
    lines: Vec<ExportedLine>,
) -> Result<(RunId, Vec<CommitUnit>, u64), FactsError> {
    let run = history.begin("cache import", "")?;
    let mut words = TransferWords::of(history);
    let mut units: Vec<CommitUnit> = Vec::new();
    let mut count = lines.len() as u64;
    let mut lines = lines.into_iter();
    loop {
        let some: Vec<ExportedLine> = lines.by_ref().take(LOOKED_UP).collect();
        if some.is_empty() {
            return Ok((run, units, count));
        }
        let entities: Vec<Entity> = some.iter().map(|line| line.entity.clone()).collect();
        for (line, known) in some.into_iter().zip(look(&entities)?) {
            if !add(&mut units, &mut words, run, known.as_ref(), line)? {
                count -= 1;
            }
        }
    }
}

/// Adds a line to the units, unless the known fact is as new.
fn add(
    units: &mut Vec<CommitUnit>,
    words: &mut TransferWords<'_>,
    run: RunId,
    known: Option<&Record>,
    line: ExportedLine,
) -> Result<bool, FactsError> {
    let completion = Completion {
        run,
        model: words.model(&line.model)?,
        prompt_hash: line.prompt_hash,
        parameters: line.parameters,
        asked_at: line.asked_at,
        ..Completion::default()
    };
    let fact = Fact {
        meaning: words.meaning(&line.meaning)?,
        model: completion.model,
        list: line.list.map(|hash| words.list(&hash)).transpose()?,
        completion: 0,
        asked: 0,
        answer: line.answer,
    };
    // Keep a known fact that is at least as new.
    let same = |f: &&Fact| f.meaning == fact.meaning && f.model == fact.model;
    if let Some(kept) = known.into_iter().flat_map(|record| &record.facts).find(same)
        && words.asked_at(kept.completion)?.is_some_and(|at| at >= completion.asked_at)
    {
        return Ok(false);
    }
    // Lines of one request are adjacent.
    let same = units.last_mut().filter(|unit| {
        unit.completion.prompt_hash == completion.prompt_hash
            && unit.completion.asked_at == completion.asked_at
            && unit.completion.model == completion.model
            && unit.completion.parameters == completion.parameters
    });
    let unit = if let Some(unit) = same {
        unit
    } else {
        units.push(CommitUnit { completion, ..CommitUnit::default() });
        let last = units.len() - 1;
        &mut units[last]
    };
    unit.completion.cells += 1;
    match unit.facts.last_mut().filter(|(entity, _)| *entity == line.entity) {
        Some((_, facts)) => facts.push(fact),
        None => unit.facts.push((line.entity, vec![fact])),
    }
    Ok(true)
}

/// Ids and times of the history, each looked up once.
struct TransferWords<'h> {
    history: &'h dyn History,
    models: HashMap<String, u32>,
    meanings: HashMap<String, u32>,
    lists: HashMap<String, u32>,
    /// The last completion that was looked up, with its time; lines of one completion are adjacent.
    last: Option<(i64, Option<String>)>,
}

impl<'h> TransferWords<'h> {
    fn of(history: &'h dyn History) -> Self {
        let (models, meanings, lists) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { history, models, meanings, lists, last: None }
    }

    fn model(&mut self, name: &str) -> Result<u32, FactsError> {
        if let Some(id) = self.models.get(name) {
            return Ok(*id);
        }
        let id = self.history.model(name)?;
        self.models.insert(name.to_owned(), id);
        Ok(id)
    }

    fn meaning(&mut self, meaning: &Meaning) -> Result<u32, FactsError> {
        let fingerprint = meaning.fingerprint();
        if let Some(id) = self.meanings.get(fingerprint.as_str()) {
            return Ok(*id);
        }
        let id = self.history.meaning(meaning)?;
        self.meanings.insert(fingerprint.as_str().to_owned(), id);
        Ok(id)
    }

    fn list(&mut self, hash: &ListHash) -> Result<u32, FactsError> {
        if let Some(id) = self.lists.get(hash.as_str()) {
            return Ok(*id);
        }
        let id = self.history.value_list(hash)?;
        self.lists.insert(hash.as_str().to_owned(), id);
        Ok(id)
    }

    fn asked_at(&mut self, completion: i64) -> Result<Option<String>, FactsError> {
        if let Some((_, at)) = self.last.as_ref().filter(|(id, _)| *id == completion) {
            return Ok(at.clone());
        }
        let at = self.history.completion(completion)?.map(|(c, _)| c.asked_at);
        self.last = Some((completion, at.clone()));
        Ok(at)
    }
}

struct ExportedLine {
    entity: Entity,
    meaning: Meaning,
    list: Option<ListHash>,
    model: String,
    answer: Answer,
    asked_at: String,
    prompt_hash: String,
    parameters: Option<String>,
}

impl ExportedLine {
    fn read(json: &Json) -> Result<Self, String> {
        let text = |field: &str| json.get(field).and_then(Json::as_str).map(str::to_owned);
        let need =
            |field: &str| text(field).ok_or_else(|| format!("`{field}` is missing or not text"));
        let entity = json.get("entity").filter(|e| e.is_object()).ok_or("`entity` is missing")?;
        let meaning = json.get("meaning").cloned().ok_or("`meaning` is missing")?;
        let state = need("state")?;
        let state = State::from_name(&state).ok_or_else(|| format!("unknown state `{state}`"))?;
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
            list: text("list").map(ListHash::from_text),
            model: need("model")?,
            answer: Answer { state, value, raw: text("raw"), repair: text("repair") },
            asked_at: text("asked_at").unwrap_or_else(hqdl_database::now),
            prompt_hash: text("prompt_hash").unwrap_or_default(),
            parameters: text("parameters"),
        })
    }
}
