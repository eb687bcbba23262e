//! Exports and imports facts as JSON lines, one line per cell:
//!
//! ```json
//! {"entity":{"full_name":"Bruce Wayne","superhero_name":"Batman"},
//!  "meaning":{"key":[…],"column":"publisher_name","type":"text","about":"…","many":false,"list":"closed"},
//!  "list":"l1:…","model":"gpt-4o-mini","state":"ok","value":"DC Comics","raw":null,"repair":null,
//!  "asked_at":"…","prompt_hash":"p1:…","input_tokens":3.5,"output_tokens":2.0,"cost_usd":0.000001,"assumed_cache_writes":0.0}
//! ```
//!
//! Lines are in the order of the journal, so that importing them again results in the same facts.
//! Tokens and cost are the cell's share of its request's tokens and cost.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use rusqlite::Connection;
use serde_json::{Value as Json, json};

use crate::commit_thread::commit_units;
use crate::completion::Completion;
use crate::history::History;
use crate::ids::RunId;
use crate::journal::Journal;
use crate::record::{Fact, Record};
use crate::store::CommitUnit;
use crate::{Facts, FactsError, Outcome};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::evidence::ShownEvidence;
use hqdl_values::format::{describe_io_error, describe_json_error};
use hqdl_values::key::{ColumnIdentity, Entity, ListHash};

/// Number of lines imported at once.
const CHUNK_LINES: usize = 4096;
/// Number of lines exported at once; their completions are looked up together.
const EXPORT_LINES: usize = 500;

impl Facts {
    /// Writes every fact as a line of JSON and returns the number of lines.
    ///
    /// # Errors
    /// [`FactsError`] if the journal cannot be read or `out` cannot be written.
    pub fn export(&self, out: &mut dyn Write) -> Result<u64, FactsError> {
        let history = self.history();
        let models: HashMap<u32, String> = history.list_models()?.into_iter().collect();
        let lists: HashMap<u32, String> = history.list_value_lists()?.into_iter().collect();
        let identities: HashMap<u32, Json> = history
            .list_column_identities()?
            .into_iter()
            .map(|(id, text)| (id, serde_json::from_str(&text).unwrap_or(Json::Null)))
            .collect();
        // An import cannot detect damage, so do not export damaged facts.
        history.check_file()?;
        let damage = history.find_damage(0)?;
        let mut count = 0;
        let mut write_answers = |answers: &mut Vec<(Entity, Vec<Fact>)>| -> Result<(), FactsError> {
            let facts = || {
                answers.iter().flat_map(|(entity, facts)| facts.iter().map(move |f| (entity, f)))
            };
            let mut ids: Vec<i64> = facts().map(|(_, fact)| fact.completion).collect();
            ids.sort_unstable();
            ids.dedup();
            let found =
                history.load_completions(&ids)?.into_iter().map(|found| found.map(|(c, _)| c));
            let found: HashMap<i64, Completion> =
                ids.iter().zip(found).map(|(id, c)| (*id, c.unwrap_or_default())).collect();
            let empty = Completion::default();
            for (entity, fact) in facts() {
                let completion = found.get(&fact.completion).unwrap_or(&empty);
                let share = completion.cells.max(1) as f64;
                let line = json!({
                    "entity": serde_json::from_str(entity.as_str()).unwrap_or(Json::Null),
                    "meaning": identities.get(&fact.identity_id),
                    "list": fact.list.and_then(|l| lists.get(&l)),
                    "model": models.get(&fact.model),
                    "state": fact.answer.state.name(),
                    "value": fact.answer.value.to_json(),
                    "raw": fact.answer.raw,
                    "repair": fact.answer.repair,
                    "logprob": fact.logprob,
                    "asked_at": completion.asked_at,
                    "prompt_hash": completion.prompt_hash,
                    "parameters": completion.parameters,
                    "evidence": completion.evidence.as_deref().and_then(ShownEvidence::parse),
                    "input_tokens": completion.input_tokens as f64 / share,
                    "output_tokens": completion.output_tokens as f64 / share,
                    "cost_usd": completion.cost_usd / share,
                    "assumed_cache_writes": completion.assumed_cache_writes as f64 / share,
                });
                let file = |error| FactsError::File { path: "the output".into(), error };
                writeln!(out, "{line}").map_err(file)?;
                count += 1;
            }
            answers.clear();
            Ok(())
        };
        let mut answers = Vec::new();
        history.visit_answers_after(0, &damage, &mut |_, entity, facts| {
            let mut facts = facts;
            facts.retain(|fact| !damage.affects_fact(fact));
            answers.push((entity, facts));
            if answers.len() < EXPORT_LINES { Ok(()) } else { write_answers(&mut answers) }
        })?;
        write_answers(&mut answers)?;
        Ok(count)
    }
}

/// Function that looks up the records of some entities and returns them in the same order.
pub(super) type RecordLookup<'l> =
    dyn Fn(&[Entity]) -> Result<Vec<Option<Record>>, FactsError> + 'l;

/// Imports facts written by [`Facts::export`] and returns how many were new. An import is not a
/// request, so its tokens and cost are not counted again.
///
/// # Errors
/// [`FactsError::Import`] if a line cannot be used; the error contains its number.
pub(super) fn import_lines(journal: &Journal, input: &mut dyn BufRead) -> Result<u64, FactsError> {
    let lines = check_lines(input)?;
    let look_up = |entities: &[Entity]| journal.read_records(&entities.iter().collect::<Vec<_>>());
    // Use one transaction, so that no newer fact can be stored between lookup and commit.
    journal.transact(|| {
        journal.catch_up()?;
        import_checked_lines(journal, &lines, &look_up, &mut |units| commit_units(journal, units))
    })
}

/// Lines of an import that have passed all checks. They are stored in a temporary database, because
/// they may not fit into memory.
pub(super) struct CheckedLines(Connection);

/// Checks all lines, so that an invalid one is reported before anything is imported.
pub(super) fn check_lines(input: &mut dyn BufRead) -> Result<CheckedLines, FactsError> {
    let copy = Connection::open("").map_err(|e| temporary_database_error(&e))?;
    copy.execute_batch("PRAGMA journal_mode = OFF; BEGIN; CREATE TABLE line (text TEXT)")
        .map_err(|e| temporary_database_error(&e))?;
    let mut insert =
        copy.prepare("INSERT INTO line VALUES (?1)").map_err(|e| temporary_database_error(&e))?;
    for (n, line) in input.lines().enumerate() {
        let import_error = |message: String| FactsError::Import { line: n + 1, message };
        let line = line.map_err(|e| import_error(describe_io_error(&e)))?;
        if !line.trim().is_empty() {
            ExportedLine::parse(&line).map_err(import_error)?;
            insert.execute([&line]).map_err(|e| temporary_database_error(&e))?;
        }
    }
    drop(insert);
    Ok(CheckedLines(copy))
}

fn temporary_database_error(error: &rusqlite::Error) -> FactsError {
    let message = error.to_string();
    FactsError::Journal { path: "a temporary copy of the lines".into(), message }
}

/// Imports the lines checked by [`check_lines`], [`CHUNK_LINES`] at a time. Returns the number of
/// new facts.
pub(super) fn import_checked_lines(
    history: &dyn History,
    lines: &CheckedLines,
    look_up: &RecordLookup<'_>,
    commit: &mut dyn FnMut(Vec<CommitUnit>) -> Result<(), FactsError>,
) -> Result<u64, FactsError> {
    let run = history.start_run("cache import", "")?;
    let mut ids = IdCache::new(history, run);
    let mut count = 0;
    let mut select = lines
        .0
        .prepare("SELECT text FROM line ORDER BY rowid")
        .map_err(|e| temporary_database_error(&e))?;
    let mut rows = select.query([]).map_err(|e| temporary_database_error(&e))?;
    loop {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK_LINES
            && let Some(row) = rows.next().map_err(|e| temporary_database_error(&e))?
        {
            let line = row
                .get_ref(0)
                .map_err(|e| temporary_database_error(&e))?
                .as_str()
                .unwrap_or_default();
            chunk.extend(ExportedLine::parse(line));
        }
        if chunk.is_empty() {
            history.finish_run(run, Outcome::Complete)?;
            return Ok(count);
        }
        let entities: Vec<Entity> = chunk.iter().map(|line| line.entity.clone()).collect();
        let mut units = Vec::new();
        for (line, known) in chunk.into_iter().zip(look_up(&entities)?) {
            count += u64::from(add_line(&mut units, &mut ids, run, known.as_ref(), line)?);
        }
        commit(units)?;
    }
}

/// Adds a line to the units, unless the known fact is at least as new.
fn add_line(
    units: &mut Vec<CommitUnit>,
    ids: &mut IdCache<'_>,
    run: RunId,
    known: Option<&Record>,
    line: ExportedLine,
) -> Result<bool, FactsError> {
    let completion = Completion {
        run,
        model: ids.intern_model(&line.model)?,
        prompt_hash: line.prompt_hash,
        parameters: line.parameters,
        evidence: line.evidence,
        asked_at: line.asked_at,
        ..Completion::default()
    };
    let fact = Fact {
        identity_id: ids.intern_identity(&line.identity)?,
        model: completion.model,
        list: line.list.map(|hash| ids.intern_list(&hash)).transpose()?,
        completion: 0,
        asked: 0,
        answer: line.answer,
        logprob: line.logprob,
    };
    // Keep the known fact if it is at least as new.
    let is_same_fact = |f: &&Fact| f.identity_id == fact.identity_id && f.model == fact.model;
    if let Some(kept) = known.into_iter().flat_map(|record| &record.facts).find(is_same_fact)
        && ids.find_stored_time(kept.completion)?.is_some_and(|at| at >= completion.asked_at)
    {
        return Ok(false);
    }
    // Lines of one request are adjacent, so only the last unit can belong to the same request.
    let same_request = units.last_mut().filter(|unit| {
        unit.completion.prompt_hash == completion.prompt_hash
            && unit.completion.asked_at == completion.asked_at
            && unit.completion.model == completion.model
            && unit.completion.parameters == completion.parameters
            && unit.completion.evidence == completion.evidence
    });
    let unit = if let Some(unit) = same_request {
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

/// Cache of history ids and times, so that each is looked up only once.
struct IdCache<'h> {
    history: &'h dyn History,
    run: RunId,
    models: HashMap<String, u32>,
    identities: HashMap<String, u32>,
    lists: HashMap<String, u32>,
    /// The completion looked up last, with its time. Lines of one completion are adjacent.
    last: Option<(i64, Option<String>)>,
}

impl<'h> IdCache<'h> {
    fn new(history: &'h dyn History, run: RunId) -> Self {
        let (models, identities, lists) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { history, run, models, identities, lists, last: None }
    }

    fn intern_model(&mut self, name: &str) -> Result<u32, FactsError> {
        if let Some(id) = self.models.get(name) {
            return Ok(*id);
        }
        let id = self.history.intern_model(name)?;
        self.models.insert(name.to_owned(), id);
        Ok(id)
    }

    fn intern_identity(&mut self, identity: &ColumnIdentity) -> Result<u32, FactsError> {
        let fingerprint = identity.fingerprint();
        if let Some(id) = self.identities.get(fingerprint.as_str()) {
            return Ok(*id);
        }
        let id = self.history.intern_column_identity(identity)?;
        self.identities.insert(fingerprint.as_str().to_owned(), id);
        Ok(id)
    }

    fn intern_list(&mut self, hash: &ListHash) -> Result<u32, FactsError> {
        if let Some(id) = self.lists.get(hash.as_str()) {
            return Ok(*id);
        }
        let id = self.history.intern_value_list(hash)?;
        self.lists.insert(hash.as_str().to_owned(), id);
        Ok(id)
    }

    /// Returns the time of a completion that was stored before this import. Returns `None` for a
    /// completion from this import, so that the last of several lines for a cell wins.
    fn find_stored_time(&mut self, completion: i64) -> Result<Option<String>, FactsError> {
        if let Some((_, at)) = self.last.as_ref().filter(|(id, _)| *id == completion) {
            return Ok(at.clone());
        }
        let known = self.history.load_completion(completion)?.map(|(c, _)| c);
        let at = known.filter(|c| c.run != self.run).map(|c| c.asked_at);
        self.last = Some((completion, at.clone()));
        Ok(at)
    }
}

struct ExportedLine {
    entity: Entity,
    identity: ColumnIdentity,
    list: Option<ListHash>,
    model: String,
    answer: Answer,
    logprob: Option<f64>,
    asked_at: String,
    prompt_hash: String,
    parameters: Option<String>,
    evidence: Option<String>,
}

impl ExportedLine {
    fn parse(line: &str) -> Result<Self, String> {
        let json = serde_json::from_str(line).map_err(|e| describe_json_error(&e))?;
        Self::from_json(&json)
    }

    fn from_json(json: &Json) -> Result<Self, String> {
        let text = |field: &str| json.get(field).and_then(Json::as_str).map(str::to_owned);
        let required_text =
            |field: &str| text(field).ok_or_else(|| format!("`{field}` is missing or not text"));
        let entity = json.get("entity").filter(|e| e.is_object()).ok_or("`entity` is missing")?;
        let identity = json.get("meaning").cloned().ok_or("`meaning` is missing")?;
        let state = required_text("state")?;
        let state = State::from_name(&state).ok_or_else(|| format!("unknown state `{state}`"))?;
        let value = json.get("value").map_or(CellValue::Nothing, CellValue::from_json);
        if state.has_value() != (value != CellValue::Nothing) {
            return Err(format!(
                "a cell that is `{}` {}",
                state.name(),
                if state.has_value() { "needs a value" } else { "has no value" }
            ));
        }
        Ok(Self {
            entity: Entity::parse(&entity.to_string()).map_err(|e| format!("`entity`: {e}"))?,
            identity: serde_json::from_value(identity).map_err(|e| format!("`meaning`: {e}"))?,
            list: text("list").map(ListHash::from_text),
            model: required_text("model")?,
            answer: Answer { state, value, raw: text("raw"), repair: text("repair") },
            logprob: match json.get("logprob") {
                None | Some(Json::Null) => None,
                Some(number) => {
                    let logprob = number.as_f64().filter(|logprob| *logprob <= 0.0);
                    Some(logprob.ok_or("`logprob` is not a number up to 0")?)
                }
            },
            asked_at: text("asked_at").unwrap_or_else(hqdl_database::current_timestamp),
            prompt_hash: text("prompt_hash").unwrap_or_default(),
            parameters: text("parameters"),
            evidence: match json.get("evidence") {
                None | Some(Json::Null) => None,
                Some(evidence) => {
                    let evidence: ShownEvidence = serde_json::from_value(evidence.clone())
                        .map_err(|e| format!("`evidence`: {e}"))?;
                    Some(evidence.to_json())
                }
            },
        })
    }
}
