//! Recordings: stored completions that are replayed offline. hqdl parses, checks and stores them in
//! the same way as live answers.
//!
//! A recording consists of JSON lines, plain or .gz, of any of these types:
//!
//! * a row completion `{"keys": […], "content": "…", "prompt_tokens": n, "completion_tokens": n}`:
//!   the answer of a model that was asked about one row;
//! * a fact `{"question": "…", "value": "…", "answer": …}`: the question is a column's name,
//!   description or question, and the value is the key as text;
//! * an output line of the `OpenAI` Batch API, whose `custom_id` is the prompt's hash.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::reply::ReportedUsage;
use super::{Model, ModelError, Reply, ReplyFuture, SetupError, parse_completion};
use hqdl_prompt::{AskedColumn, AskedRow, Prompt, Question};
use hqdl_spec::{Format, is_sqlite_file};
use hqdl_values::format::{describe_io_error, describe_json_error};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Advice for requests that the recordings do not answer.
const OTHER_MODEL: &str =
    "to ask a model, name one with --provider openai --model NAME (and --base-url URL)";

/// Recorded completions.
pub struct Recordings {
    name: String,
    /// Names of the files, for messages.
    files: String,
    /// First request without an answer. Messages name only this one, so that they do not differ.
    first_unanswered: OnceLock<String>,
    /// Row completions by canonical key.
    rows: HashMap<String, Reply>,
    /// Facts by question and value, both normalized.
    facts: HashMap<String, HashMap<String, Json>>,
    /// Completions by the hash of the prompt.
    prompts: HashMap<String, Reply>,
}

impl Recordings {
    /// Reads recordings. A hash of their content is part of the model's name, so that facts of
    /// different recordings are not mixed up.
    ///
    /// # Errors
    /// [`SetupError::Recording`] if a file cannot be read or a line is invalid; the error names the
    /// file and the line.
    pub fn open(name: &str, paths: &[PathBuf]) -> Result<Self, SetupError> {
        let mut recordings = Self {
            name: String::new(),
            files: paths
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
            first_unanswered: OnceLock::new(),
            rows: HashMap::default(),
            facts: HashMap::default(),
            prompts: HashMap::default(),
        };
        let mut hasher = blake3::Hasher::new();
        for path in paths {
            recordings.read_file(path, &mut hasher)?;
        }
        recordings.name =
            format!("{name} (recording {})", &hasher.finalize().to_hex().as_str()[..8]);
        Ok(recordings)
    }

    /// Returns whether the recordings may answer a row with this key. Only row completions contain
    /// whole keys, so recordings of other types may answer any row.
    #[must_use]
    pub fn may_answer_key(&self, key: &[Json]) -> bool {
        !self.prompts.is_empty()
            || !self.facts.is_empty()
            || self.rows.contains_key(&canonicalize_key(key))
    }

    /// Maps a question to a column, so that facts recorded under the question are found by the
    /// column's name.
    pub fn map_question(&mut self, question: &str, column: &str) {
        let (question, column) = (normalize_text(question), normalize_text(column));
        let Some(recorded) = self.facts.get(&question).cloned() else { return };
        let known = self.facts.entry(column).or_default();
        for (value, answer) in recorded {
            known.entry(value).or_insert(answer);
        }
    }

    fn read_file(&mut self, path: &Path, hasher: &mut blake3::Hasher) -> Result<(), SetupError> {
        let recording_error = |line: usize, message: String| SetupError::Recording {
            path: path.display().to_string(),
            line,
            message,
        };
        let file = std::fs::File::open(path).map_err(|e| recording_error(0, e.to_string()))?;
        if is_sqlite_file(path) {
            return Err(recording_error(0, "it is a SQLite database, not a recording".to_owned()));
        }
        let reader: Box<dyn Read> = if path.extension().is_some_and(|e| e == "gz") {
            Box::new(flate2::read::MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        for (n, line) in BufReader::new(reader).lines().enumerate() {
            let line = line.map_err(|e| recording_error(n + 1, describe_io_error(&e)))?;
            hasher.update(line.as_bytes());
            if line.trim().is_empty() {
                continue;
            }
            self.add_line(&line).map_err(|message| recording_error(n + 1, message))?;
        }
        Ok(())
    }

    fn add_line(&mut self, line: &str) -> Result<(), String> {
        // Try the most common type of line first.
        if let Ok(RecordedFact { question, value, answer }) = serde_json::from_str(line) {
            self.add_fact(&question, &value, answer);
            return Ok(());
        }
        let json: Json = serde_json::from_str(line).map_err(|e| describe_json_error(&e))?;
        self.add_json(&json)
    }

    fn add_fact(&mut self, question: &str, value: &Json, answer: Json) {
        let value = match value {
            Json::String(text) => normalize_text(text),
            other => normalize_text(&Value::from_json(other).to_string()),
        };
        self.facts.entry(normalize_text(question)).or_default().insert(value, answer);
    }

    fn add_json(&mut self, json: &Json) -> Result<(), String> {
        if let Some(keys) = json.get("keys").and_then(Json::as_array) {
            let content = json
                .get("content")
                .and_then(Json::as_str)
                .ok_or("`content` is missing or not text")?;
            let reported = ReportedUsage::from_json(json);
            let reply = Reply { content: content.to_owned(), reported, ..Reply::default() };
            self.rows.insert(canonicalize_key(keys), reply);
        } else if let Some(question) = json.get("question").and_then(Json::as_str) {
            let value = json.get("value").ok_or("`value` is missing")?;
            let answer = json.get("answer").ok_or("`answer` is missing")?;
            self.add_fact(question, value, answer.clone());
        } else if let Some(id) = json.get("custom_id").and_then(Json::as_str) {
            match json.pointer("/response/body") {
                Some(body)
                    if json.pointer("/response/status_code").and_then(Json::as_u64)
                        == Some(200) =>
                {
                    let reply = parse_completion(body).map_err(|e| e.to_string())?;
                    self.prompts.insert(id.to_owned(), reply);
                }
                // A failed request has no completion to replay.
                _ => {}
            }
        } else {
            return Err(
                "the line is neither {\"keys\": …, \"content\": …}, nor an exported fact, nor a line of a batch's output".to_owned()
            );
        }
        Ok(())
    }

    /// Returns the message for a request that the recordings do not answer.
    fn describe_missing_answer(&self, question: &Question) -> String {
        let files = &self.files;
        if self.rows.is_empty() && self.facts.is_empty() && self.prompts.is_empty() {
            return format!("{files} contains no recording; {OTHER_MODEL}");
        }
        let unanswered = self.first_unanswered.get_or_init(|| {
            let key = question.rows.first().map(|row| row.key.as_slice()).unwrap_or_default();
            Json::from(key.to_vec()).to_string()
        });
        format!("{files} has no answer for {unanswered}; {OTHER_MODEL}")
    }

    fn find_reply(&self, prompt: &Prompt) -> Result<Reply, ModelError> {
        if !self.prompts.is_empty() {
            let hashes = [Some(prompt.provenance_hash()), prompt.full_key_hash.clone()];
            if let Some(reply) = hashes.iter().flatten().find_map(|h| self.prompts.get(h)) {
                return Ok(reply.clone());
            }
        }
        let question = Question::parse(&prompt.system, &prompt.user)
            .ok_or_else(|| ModelError::NoAnswer("cannot parse the prompt".to_owned()))?;
        if let [row] = question.rows.as_slice()
            && !self.rows.is_empty()
            && let Some(reply) =
                self.rows.get(&canonicalize_key(&replace_placeholders(row, prompt).key))
        {
            return Ok(reply.clone());
        }
        let of_column = |column: &AskedColumn| {
            [&column.name, &column.about].map(|asked| self.facts.get(&normalize_text(asked)))
        };
        let facts: Vec<_> = question.columns.iter().map(of_column).collect();
        let mut rows = Vec::new();
        for row in &question.rows {
            let value = normalize_text(&replace_placeholders(row, prompt).key_text());
            let mut cells = Map::new();
            for (column, facts) in question.columns.iter().zip(&facts) {
                if let Some(fact) = facts.iter().flatten().find_map(|facts| facts.get(&value)) {
                    cells.insert(column.name.clone(), fact.clone());
                }
            }
            if !cells.is_empty() {
                rows.push(RecordedRow { row: row.number, key: &row.key, cells });
            }
        }
        if rows.is_empty() {
            return Err(ModelError::NoAnswer(self.describe_missing_answer(&question)));
        }
        let content = serde_json::to_string(&RecordedRows { rows })
            .map_err(|e| ModelError::NoAnswer(e.to_string()))?;
        // A fact has no token counts and costs nothing, so an estimate is enough.
        let estimate = |text: &str| Tokenizer::Estimate.count_tokens(text);
        let reported = ReportedUsage {
            input: Some(estimate(&prompt.system) + estimate(&prompt.user)),
            output: Some(estimate(&content)),
            ..ReportedUsage::default()
        };
        Ok(Reply { content, partial: true, reported, ..Reply::default() })
    }
}

impl Model for Recordings {
    fn name(&self) -> &str {
        &self.name
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(std::future::ready(self.find_reply(prompt)))
    }

    /// A row completion answers a request for one row only.
    fn max_rows(&self) -> Option<u32> {
        (!self.rows.is_empty()).then_some(1)
    }

    /// A row completion contains all columns of its row.
    fn answers_whole_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    fn is_deterministic(&self) -> bool {
        true
    }

    fn looks_up_by_prompt(&self) -> bool {
        !self.prompts.is_empty()
    }

    fn answer_format(&self) -> Format {
        Format::Csv
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedFact<'l> {
    #[serde(borrow)]
    question: Cow<'l, str>,
    value: Json,
    answer: Json,
}

/// Answer that is assembled from facts.
#[derive(Serialize)]
struct RecordedRows<'r> {
    rows: Vec<RecordedRow<'r>>,
}

#[derive(Serialize)]
struct RecordedRow<'r> {
    row: usize,
    key: &'r [Json],
    cells: Map<String, Json>,
}

/// Returns the row with each placeholder of a medium in its key replaced by the medium's name.
fn replace_placeholders<'r>(row: &'r AskedRow, prompt: &Prompt) -> Cow<'r, AskedRow> {
    if prompt.media.is_empty() {
        return Cow::Borrowed(row);
    }
    let mut row = row.clone();
    for (n, medium) in prompt.media.iter().enumerate() {
        let placeholder = Json::from(medium.placeholder(n + 1));
        row.key
            .iter_mut()
            .filter(|part| **part == placeholder)
            .for_each(|p| *p = (*medium.name).into());
    }
    Cow::Owned(row)
}

fn canonicalize_key(key: &[Json]) -> String {
    let parts: Vec<Json> = key
        .iter()
        .map(|k| Value::from_json(k).canonical_text().map_or(Json::Null, |c| c.as_ref().into()))
        .collect();
    Json::Array(parts).to_string()
}

/// Normalizes a question or a value for lookups: lower case, words only.
fn normalize_text(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()) {
        if !joined.is_empty() {
            joined.push(' ');
        }
        joined.push_str(word);
    }
    if joined.is_ascii() {
        joined.make_ascii_lowercase();
    } else {
        joined = joined.to_lowercase();
    }
    // "-" and "" contain no words, but are different values.
    if joined.is_empty() { text.trim().to_owned() } else { joined }
}
