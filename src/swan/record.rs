//! What a run leaves in its folder: `run.jsonl`, a line an event, added to by
//! every further run in the same folder, so that first and second run stand
//! beside each other.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::compare::Rows;
use super::{Mode, SwanError};
use crate::format::count_noun;

/// The file in a run's folder.
pub const FILE: &str = "run.jsonl";

/// What a run is of. Another run in the same folder is of the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The benchmark's name of the database.
    pub database: String,
    /// Which queries were run.
    pub mode: Mode,
    /// Examples shown to the model.
    pub shots: usize,
    /// The model's name, as its facts are kept under.
    pub model: String,
    /// The files of recordings, when there are any, without their folders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recordings: Vec<String>,
    /// Whether the truth took the model's place.
    #[serde(default)]
    pub oracle: bool,
    /// The questions' file.
    pub questions_file: PathBuf,
    /// The database that was asked about, before it was expanded.
    pub source: PathBuf,
    /// Where the expanded tables are, when there are any.
    pub expanded: Option<PathBuf>,
    /// What the database holds of the columns that SWAN hides.
    #[serde(default)]
    pub unmasked: Vec<String>,
    /// Whether there is a price.
    pub priced: bool,
    /// When it began.
    pub began: String,
}

/// What something used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Requests that got a reply.
    pub requests: u64,
    /// Values asked for.
    pub values_asked: u64,
    /// Values known before.
    pub values_reused: u64,
    /// Values without a value.
    pub values_missing: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
    /// Seconds.
    pub seconds: f64,
}

impl Cost {
    /// Adds another.
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

/// How a question ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionOutcome {
    /// The question.
    pub qid: String,
    /// The query that was run.
    #[serde(default)]
    pub query: String,
    /// The names of the columns.
    #[serde(default)]
    pub columns: Vec<String>,
    /// The rows; none when it failed.
    #[serde(default)]
    pub rows: Option<Rows>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The routes of its calls: `column`, `bound`, `ad-hoc`.
    #[serde(default)]
    pub routes: Vec<String>,
    /// What it used.
    #[serde(flatten)]
    pub cost: Cost,
}

/// A line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecordLine {
    /// A run begins.
    Run(Header),
    /// The spec was materialized.
    Materialized {
        /// Cells by state.
        cells: Json,
        /// What it used.
        #[serde(flatten)]
        cost: Cost,
    },
    /// A question ended.
    Answer(Box<QuestionOutcome>),
    /// All questions ended.
    Finished {
        /// Questions with rows.
        answered: u64,
        /// Questions without.
        failed: u64,
        /// What the whole run used.
        #[serde(flatten)]
        cost: Cost,
    },
    /// The run ended before its end.
    Stopped {
        /// Why.
        message: String,
        /// What it used until then.
        #[serde(flatten)]
        cost: Cost,
    },
}

/// One run of a record.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// What it is of.
    pub header: Header,
    /// What materializing used, when it came to that.
    pub materialized: Option<Cost>,
    /// How its questions ended, in their order.
    pub answers: Vec<QuestionOutcome>,
    /// What all of it used, when it came to an end of its own.
    pub total: Option<Cost>,
    /// Whether all questions ended.
    pub finished: bool,
}

impl Invocation {
    /// What all of it used.
    #[must_use]
    pub fn cost(&self) -> Cost {
        if let Some(total) = self.total {
            return total;
        }
        let mut cost = self.materialized.unwrap_or_default();
        self.answers.iter().for_each(|a| cost.add(&a.cost));
        cost
    }
}

/// All runs of a folder.
#[derive(Debug, Clone)]
pub struct RunsRecord {
    /// The folder.
    pub dir: PathBuf,
    /// Its runs, oldest first; at least one.
    pub runs: Vec<Invocation>,
}

impl RunsRecord {
    /// Reads a folder. A last line that was cut off by a kill is left out.
    ///
    /// # Errors
    /// [`SwanError`] when there is no record, or another program's.
    pub fn read(dir: &Path) -> Result<Self, SwanError> {
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|e| {
            SwanError::input(
                format!("{} has no record of a run: {e}", path.display()),
                "pass directories that `hqdl swan run --out` wrote",
            )
        })?;
        let mut runs: Vec<Invocation> = Vec::new();
        let whole = text.lines().count();
        for (n, line) in text.lines().enumerate() {
            let line = match serde_json::from_str(line) {
                Ok(line) => line,
                Err(_) if n + 1 == whole => break,
                Err(e) => {
                    return Err(SwanError::input(
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
            return Err(SwanError::input(
                format!("{} contains no run", path.display()),
                "pass directories that `hqdl swan run --out` wrote",
            ));
        }
        Ok(Self { dir: dir.to_owned(), runs })
    }

    /// What the runs are of.
    #[must_use]
    pub fn header(&self) -> &Header {
        // There is at least one.
        &self.runs[self.runs.len() - 1].header
    }

    /// The last answer to each question.
    #[must_use]
    pub fn answers(&self) -> BTreeMap<&str, &QuestionOutcome> {
        self.runs.iter().flat_map(|r| &r.answers).map(|a| (a.qid.as_str(), a)).collect()
    }
}

/// A record that is being written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Adds a run to the record of a folder, which is made when it is not there.
    ///
    /// # Errors
    /// [`SwanError`] when the folder holds a run of something else, or cannot be
    /// written.
    pub fn begin(dir: &Path, header: &Header) -> Result<Self, SwanError> {
        let path = dir.join(FILE);
        if path.exists() {
            let before = RunsRecord::read(dir)?;
            let before = before.header();
            let same = (&before.database, before.mode, before.shots, &before.model)
                == (&header.database, header.mode, header.shots, &header.model);
            if !same {
                return Err(SwanError::input(
                    format!(
                        "{} already contains a run of {} in mode {} with {} by {}",
                        dir.display(),
                        before.database,
                        before.mode.name(),
                        count_noun(before.shots as u64, "shot"),
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
        // A kill may have cut the last line; what follows stands on its own.
        cut_half_line(&mut file).map_err(failed)?;
        let mut writer = Self { path, file };
        writer.write(&RecordLine::Run(header.clone()))?;
        Ok(writer)
    }

    /// Adds a line.
    ///
    /// # Errors
    /// [`SwanError`] when it cannot be written.
    pub fn write(&mut self, line: &RecordLine) -> Result<(), SwanError> {
        let failed = |e: std::io::Error| SwanError::file(&self.path, e);
        let mut text = serde_json::to_string(line).map_err(|e| failed(e.into()))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(failed)
    }
}

/// Takes away a last line that was not written to its end.
fn cut_half_line(file: &mut File) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    if whole < bytes.len() {
        file.set_len(whole as u64)?;
    }
    Ok(())
}
