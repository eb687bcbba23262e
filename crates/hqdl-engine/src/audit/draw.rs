//! The draw of an audit: the frozen rows with their answers, and the sample.
//!
//! The first line of its file is a JSON object with the design; each further line is one row of the
//! expansion.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hqdl_statistics::draw_rows;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::draw_path;
use super::error::AuditError;
use super::frame::{FrameRow, collect_frame};
use hqdl_database::{Database, current_timestamp};
use hqdl_spec::{Expansion, Spec};
use hqdl_values::cell::CellValue;
use hqdl_values::format::describe_io_error;
use hqdl_values::key::{Entity, hash_tagged_parts};
use hqdl_values::value::Value;

/// Version of the draw's file format.
const VERSION: u32 = 1;

/// How the rows of a sample are chosen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Design {
    /// Every row has the same probability.
    #[default]
    Uniform,
    /// A quarter of the sample consists of the rows that can change a query's result most. All
    /// other rows have the same probability.
    Leverage {
        /// The query.
        query: String,
    },
}

impl Design {
    /// Returns the name used in files and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Leverage { .. } => "leverage",
        }
    }
}

/// Parameters of a draw.
#[derive(Debug, Clone, Default)]
pub struct DrawRequest {
    /// Positions, within the expansion, of the columns to audit.
    pub columns: Vec<usize>,
    /// Number of rows to draw.
    pub sample: usize,
    /// Design of the sample.
    pub design: Design,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Rows that are always drawn, for the leverage design.
    pub certain: Vec<Entity>,
}

/// Rows of an expansion with the model's answers, and the sample drawn from these rows. A draw
/// never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// Identifier: a hash of the draw, except for its time.
    pub id: String,
    /// Names of the audited columns.
    pub columns: Vec<String>,
    /// Design of the sample.
    pub design: Design,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Time of the draw.
    pub drawn_at: String,
    /// All rows of the expansion.
    pub frame: Vec<FrameRow>,
    /// Positions of the sampled rows in the frame, in random order.
    sample: Vec<usize>,
}

/// First line of the file.
#[derive(Serialize, Deserialize)]
struct DrawHeader {
    hqdl_audit: u32,
    id: String,
    expansion: String,
    key: Vec<String>,
    columns: Vec<String>,
    design: Design,
    seed: u64,
    drawn_at: String,
    sample: Vec<usize>,
}

impl Draw {
    /// Draws a sample of the published rows of an expansion.
    ///
    /// # Errors
    /// [`AuditError`] if the rows cannot be read, or if there are too few rows.
    pub fn sample_rows(
        sources: &Database,
        published: &Database,
        expansion: &Expansion,
        request: &DrawRequest,
    ) -> Result<Self, AuditError> {
        let mut frame = collect_frame(sources, published, expansion, &request.columns)?;
        if frame.is_empty() {
            return Err(AuditError::in_request(
                format!("`{}` has no rows", expansion.name),
                "fill it with `hqdl materialize`",
            ));
        }
        let size = request.sample.min(frame.len());
        let certain: std::collections::HashSet<&Entity> = request.certain.iter().collect();
        for row in &mut frame {
            row.stratum = usize::from(certain.contains(&expansion.build_entity(&row.key)));
        }
        let strata: Vec<usize> = frame.iter().map(|row| row.stratum).collect();
        let taken = strata.iter().sum::<usize>().min(size);
        let sample = draw_rows(&strata, &[size - taken, taken], request.seed);
        let names = request.columns.iter().map(|c| expansion.columns[*c].name.clone());
        let mut draw = Self {
            id: String::new(),
            columns: names.collect(),
            design: request.design.clone(),
            seed: request.seed,
            drawn_at: current_timestamp(),
            frame,
            sample: sample.into_iter().map(|drawn| drawn.row).collect(),
        };
        draw.id = draw.compute_id(expansion);
        Ok(draw)
    }

    /// Returns the positions of the sampled rows in the frame, in the order of the sheet.
    #[must_use]
    pub fn sample(&self) -> &[usize] {
        &self.sample
    }

    /// Converts a column's position in the expansion to its position among the audited columns;
    /// `None` if the column is not audited.
    #[must_use]
    pub fn find_column(&self, expansion: &Expansion, column: usize) -> Option<usize> {
        let name = &expansion.columns.get(column)?.name;
        self.columns.iter().position(|c| c.eq_ignore_ascii_case(name))
    }

    /// Returns the audited columns that still exist. Each pair is a column's position in the
    /// expansion and among the audited columns.
    #[must_use]
    pub fn find_expansion_columns(&self, expansion: &Expansion) -> Vec<(usize, usize)> {
        let all = 0..expansion.columns.len();
        all.filter_map(|c| Some((c, self.find_column(expansion, c)?))).collect()
    }

    /// Reads the draw of an expansion.
    ///
    /// # Errors
    /// [`AuditError`] if the file does not exist, cannot be read, was edited, or belongs to another
    /// expansion or key.
    pub fn read(spec: &Spec, expansion: &Expansion) -> Result<Self, AuditError> {
        let path = draw_path(spec, expansion);
        if !path.exists() {
            return Err(AuditError::Missing(path));
        }
        let text = std::fs::read_to_string(&path)
            .map_err(|e| AuditError::in_file(&path, None, describe_io_error(&e)))?;
        let mut lines = text.lines();
        let broken = |line: usize| {
            AuditError::in_file(&path, Some(line as u64), "this is not a line of an audit's draw")
        };
        let header: DrawHeader =
            lines.next().and_then(|l| serde_json::from_str(l).ok()).ok_or_else(|| broken(1))?;
        if header.hqdl_audit != VERSION {
            let message = "another version of hqdl wrote this audit";
            return Err(AuditError::in_file(&path, Some(1), message));
        }
        if header.expansion != expansion.name || header.key != expansion.key.names() {
            let message = format!(
                "the audit is of `{}` with the key {}, which this spec does not have",
                header.expansion,
                header.key.join(", ")
            );
            return Err(AuditError::in_file(&path, Some(1), message));
        }
        let mut frame = Vec::new();
        for (n, line) in lines.enumerate() {
            frame.push(parse_row(line).ok_or_else(|| broken(n + 2))?);
        }
        let DrawHeader { id, columns, design, seed, drawn_at, sample, .. } = header;
        let draw = Self { id, columns, design, seed, drawn_at, frame, sample };
        if draw.id != draw.compute_id(expansion) {
            return Err(AuditError::in_file(&path, None, "the file was changed since the draw"));
        }
        Ok(draw)
    }

    /// Writes the draw, and returns its locked file. The file never replaces another one.
    ///
    /// # Errors
    /// [`AuditError`] if the file exists or cannot be written.
    pub(super) fn create_locked_file(
        &self,
        path: &Path,
        expansion: &Expansion,
    ) -> Result<File, AuditError> {
        let header = serde_json::to_string(&self.build_header(expansion)).unwrap_or_default();
        let mut text = header + "\n";
        for row in &self.frame {
            text.push_str(&row_to_json(row).to_string());
            text.push('\n');
        }
        let temporary = temporary_path(path);
        let create = || {
            let file = File::create(&temporary)?;
            // No other process knows the file's name yet, so locking fails only on a file system
            // without locks.
            let _ = file.try_lock();
            (&file).write_all(text.as_bytes())?;
            file.sync_all()?;
            match std::fs::hard_link(&temporary, path) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists && !path.exists() => {
                    // The file system has no hard links.
                    std::fs::rename(&temporary, path)?;
                }
                linked => linked?,
            }
            Ok(file)
        };
        let created = create();
        let _ = std::fs::remove_file(&temporary);
        created.map_err(|e: std::io::Error| match e.kind() {
            ErrorKind::AlreadyExists => AuditError::Exists(path.to_owned()),
            _ => AuditError::in_file(path, None, describe_io_error(&e)),
        })
    }

    fn build_header(&self, expansion: &Expansion) -> DrawHeader {
        DrawHeader {
            hqdl_audit: VERSION,
            id: self.id.clone(),
            expansion: expansion.name.clone(),
            key: expansion.key.names().to_vec(),
            columns: self.columns.clone(),
            design: self.design.clone(),
            seed: self.seed,
            drawn_at: self.drawn_at.clone(),
            sample: self.sample.clone(),
        }
    }

    fn compute_id(&self, expansion: &Expansion) -> String {
        // The time is not part of the id: the same draw at another time is the same audit.
        let (id, drawn_at) = (String::new(), String::new());
        let header = DrawHeader { id, drawn_at, ..self.build_header(expansion) };
        let mut parts = vec![serde_json::to_string(&header).unwrap_or_default()];
        parts.extend(self.frame.iter().map(|row| row_to_json(row).to_string()));
        hash_tagged_parts("hqdl audit", &parts).chars().take(16).collect()
    }
}

fn row_to_json(row: &FrameRow) -> Json {
    json!({
        "key": row.key.iter().map(Value::to_json).collect::<Vec<_>>(),
        "stratum": row.stratum,
        "answers": row.answers.iter().map(CellValue::to_json).collect::<Vec<_>>(),
        "states": row.states,
    })
}

fn parse_row(line: &str) -> Option<FrameRow> {
    let json: Json = serde_json::from_str(line).ok()?;
    Some(FrameRow {
        key: json["key"].as_array()?.iter().map(Value::from_json).collect(),
        stratum: json["stratum"].as_u64()? as usize,
        answers: json["answers"].as_array()?.iter().map(CellValue::from_json).collect(),
        states: json["states"]
            .as_array()?
            .iter()
            .map(|state| state.as_str().map(str::to_owned))
            .collect::<Option<_>>()?,
    })
}

/// Returns a path beside a file that no other thread or process uses.
fn temporary_path(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{number}.part", std::process::id()))
}

/// Writes a file atomically, by writing a temporary file beside it and renaming that file.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), AuditError> {
    let temporary = temporary_path(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        AuditError::in_file(path, None, describe_io_error(&e))
    })
}

/// Returns a seed derived from the clock, for a draw whose seed the user did not choose.
#[must_use]
pub fn generate_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos()) ^ since.as_secs()
}
