//! Reads and writes the record of a run, `run.jsonl`, with one event per line. Further runs in the
//! same folder append to it, so that they can be compared with the first.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::compare::Rows;
use super::{Mode, SwanError};
use hqdl_values::format::format_count;

/// Name of the record in a run's folder.
pub const RECORD_FILE: &str = "run.jsonl";

/// Identity of a run. All runs in a folder have the same database, mode, shots and model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the benchmark's database.
    pub database: String,
    /// Kind of queries that were run.
    pub mode: Mode,
    /// Number of examples shown to the model.
    pub shots: usize,
    /// Name of the model, as in the facts.
    pub model: String,
    /// File names of the recordings, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recordings: Vec<String>,
    /// Whether the true values replaced the model.
    #[serde(default)]
    pub oracle: bool,
    /// Path of the questions file.
    pub questions_file: PathBuf,
    /// Database before it was expanded.
    pub source: PathBuf,
    /// Database with the expanded tables, if any.
    pub expanded: Option<PathBuf>,
    /// Columns that SWAN hides but the database contains.
    #[serde(default)]
    pub unmasked: Vec<String>,
    /// Whether the model has a price.
    pub priced: bool,
    /// Start time, RFC 3339.
    pub began: String,
}

/// Usage and cost of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Number of requests that got a reply.
    pub requests: u64,
    /// Number of values asked for.
    pub values_asked: u64,
    /// Number of values that were already known.
    pub values_reused: u64,
    /// Number of values without an answer.
    pub values_missing: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Cost {
    /// Adds another cost.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.values_asked += other.values_asked;
        self.values_reused += other.values_reused;
        self.values_missing += other.values_missing;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cost_usd += other.cost_usd;
        self.seconds += other.seconds;
    }
}

/// Result of a question.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionOutcome {
    /// Name of the question.
    pub qid: String,
    /// Query that was run.
    #[serde(default)]
    pub query: String,
    /// Names of the columns.
    #[serde(default)]
    pub columns: Vec<String>,
    /// Rows; `None` if the query failed.
    #[serde(default)]
    pub rows: Option<Rows>,
    /// Error message of a failed query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Routes of the query's calls: `column`, `bound`, `ad-hoc`.
    #[serde(default)]
    pub routes: Vec<String>,
    /// Cost of the question.
    #[serde(flatten)]
    pub cost: Cost,
}

/// A line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecordLine {
    /// A run started.
    Run(Header),
    /// The spec was materialized.
    Materialized {
        /// Cells by state.
        cells: Json,
        /// Cost of materializing.
        #[serde(flatten)]
        cost: Cost,
    },
    /// A question was answered, or its query failed.
    Answer(Box<QuestionOutcome>),
    /// All questions were processed.
    Finished {
        /// Number of questions whose query succeeded.
        answered: u64,
        /// Number of questions whose query failed.
        failed: u64,
        /// Cost of the whole run.
        #[serde(flatten)]
        cost: Cost,
    },
    /// The run ended early.
    Stopped {
        /// Reason why the run ended early.
        message: String,
        /// Cost until the stop.
        #[serde(flatten)]
        cost: Cost,
    },
}

/// One run of a record.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// Identity of the run.
    pub header: Header,
    /// Cost of materializing; `None` if the run did not materialize the spec.
    pub materialized: Option<Cost>,
    /// Results of the questions, in order.
    pub answers: Vec<QuestionOutcome>,
    /// Total cost, if the run recorded its end.
    pub total: Option<Cost>,
    /// Whether all questions were processed.
    pub finished: bool,
}

impl Invocation {
    /// Returns the cost of the whole run.
    #[must_use]
    pub fn total_cost(&self) -> Cost {
        if let Some(total) = self.total {
            return total;
        }
        let mut cost = self.materialized.unwrap_or_default();
        self.answers.iter().for_each(|a| cost.add(&a.cost));
        cost
    }
}

/// The record of all runs in a folder.
#[derive(Debug, Clone)]
pub struct RunsRecord {
    /// Folder of the record.
    pub dir: PathBuf,
    /// Runs, oldest first; at least one.
    pub runs: Vec<Invocation>,
}

impl RunsRecord {
    /// Reads the record of a folder. Ignores an incomplete last line, which a killed run leaves
    /// behind.
    ///
    /// # Errors
    /// [`SwanError`] if there is no record, or the file is not a record.
    pub fn read_dir(dir: &Path) -> Result<Self, SwanError> {
        let path = dir.join(RECORD_FILE);
        let text = std::fs::read_to_string(&path).map_err(|e| {
            SwanError::wrong_input(
                format!(
                    "there is no run in {}: {}",
                    dir.display(),
                    hqdl_values::format::describe_read_error(&path, &e)
                ),
                "pass directories that `hqdl swan run --out` wrote",
            )
        })?;
        let mut runs: Vec<Invocation> = Vec::new();
        let line_count = text.lines().count();
        for (n, line) in text.lines().enumerate() {
            let line = match serde_json::from_str(line) {
                Ok(line) => line,
                Err(_) if n + 1 == line_count => break,
                Err(e) => {
                    return Err(SwanError::wrong_input(
                        format!("{}, line {}: {e}", path.display(), n + 1),
                        "it is not a record of `hqdl swan run`, or it was edited: run into a new directory",
                    ));
                }
            };
            match (line, runs.last_mut()) {
                (RecordLine::Run(header), _) => runs.push(Invocation {
                    header,
                    materialized: None,
                    answers: Vec::new(),
                    total: None,
                    finished: false,
                }),
                (RecordLine::Materialized { cost, .. }, Some(run)) => run.materialized = Some(cost),
                (RecordLine::Answer(answer), Some(run)) => run.answers.push(*answer),
                (RecordLine::Finished { cost, .. }, Some(run)) => {
                    (run.finished, run.total) = (true, Some(cost));
                }
                (RecordLine::Stopped { cost, .. }, Some(run)) => run.total = Some(cost),
                (_, None) => {}
            }
        }
        if runs.is_empty() {
            return Err(SwanError::wrong_input(
                format!("{} contains no run", path.display()),
                "pass directories that `hqdl swan run --out` wrote",
            ));
        }
        Ok(Self { dir: dir.to_owned(), runs })
    }

    /// Returns the identity of the last run.
    #[must_use]
    pub fn header(&self) -> &Header {
        // `read_dir` rejects a record without runs.
        &self.runs[self.runs.len() - 1].header
    }

    /// Returns the last answer to each question.
    #[must_use]
    pub fn last_answers(&self) -> BTreeMap<&str, &QuestionOutcome> {
        self.runs.iter().flat_map(|r| &r.answers).map(|a| (a.qid.as_str(), a)).collect()
    }
}

/// Appends lines to a record.
#[derive(Debug)]
pub struct RecordWriter {
    path: PathBuf,
    file: File,
}

impl RecordWriter {
    /// Starts a run in a folder's record. Creates the folder and the record if necessary.
    ///
    /// # Errors
    /// [`SwanError`] if the folder contains a different run, or cannot be written.
    pub fn begin_run(dir: &Path, header: &Header) -> Result<Self, SwanError> {
        let path = dir.join(RECORD_FILE);
        if path.exists() {
            let before = RunsRecord::read_dir(dir)?;
            let before = before.header();
            let same = (&before.database, before.mode, before.shots, &before.model)
                == (&header.database, header.mode, header.shots, &header.model);
            if !same {
                return Err(SwanError::wrong_input(
                    format!(
                        "{} already contains a run of {} in mode {} with {} by {}",
                        dir.display(),
                        before.database,
                        before.mode.name(),
                        format_count(before.shots as u64, "shot"),
                        before.model
                    ),
                    "choose another directory for this run with --out",
                ));
            }
        }
        std::fs::create_dir_all(dir).map_err(|e| SwanError::file(dir, e))?;
        let failed = |e| SwanError::file(&path, e);
        let mut file =
            OpenOptions::new().create(true).read(true).append(true).open(&path).map_err(failed)?;
        // Remove an incomplete last line, which a killed run leaves behind.
        truncate_partial_line(&mut file).map_err(failed)?;
        let mut writer = Self { path, file };
        writer.write_line(&RecordLine::Run(header.clone()))?;
        Ok(writer)
    }

    /// Appends a line.
    ///
    /// # Errors
    /// [`SwanError`] if the line cannot be written.
    pub fn write_line(&mut self, line: &RecordLine) -> Result<(), SwanError> {
        let failed = |e: std::io::Error| SwanError::file(&self.path, e);
        let mut text = serde_json::to_string(line).map_err(|e| failed(e.into()))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(failed)
    }
}

/// Removes an incomplete last line.
fn truncate_partial_line(file: &mut File) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    if whole < bytes.len() {
        file.set_len(whole as u64)?;
    }
    Ok(())
}
