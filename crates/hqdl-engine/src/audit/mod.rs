//! Audits: a person or a source provides the truth for a random sample of an expansion's rows.
//!
//! An audit has two files beside the spec. [`Draw`] is written once: it freezes the rows of the
//! expansion with the model's answers, the design, and the sample in random order. The [sheet] is
//! the CSV file that a person fills in. Only the filled prefix of the sample counts, so a person
//! can stop at any time.
//!
//! [sheet]: sheet::Sheet

mod agreement;
mod draw;
mod error;
mod fill;
mod frame;
mod note;
mod report;
pub mod sheet;

use std::path::PathBuf;

pub use self::draw::{Design, Draw, DrawRequest, generate_seed};
pub use self::error::AuditError;
pub use self::fill::ReferenceFill;
pub use self::frame::FrameRow;
pub use self::report::{AuditReport, ColumnAudit, ReportSettings};
pub use self::sheet::{CellTruth, Evidence, Sheet, format_person};
use hqdl_spec::{Expansion, Spec};

/// An audit with the true values entered so far.
#[derive(Debug)]
pub struct Audit {
    /// The drawn sample.
    pub draw: Draw,
    /// The sheet of the sampled rows.
    pub sheet: Sheet,
}

impl Audit {
    /// Reads the audit of an expansion.
    ///
    /// # Errors
    /// [`AuditError`] if the audit does not exist or one of its files cannot be used.
    pub fn read(spec: &Spec, expansion: &Expansion) -> Result<Self, AuditError> {
        let draw = Draw::read(spec, expansion)?;
        let sheet = Sheet::read(&sheet_path(spec, expansion), &draw, expansion)?;
        Ok(Self { draw, sheet })
    }

    /// Writes a draw and its empty sheet. Returns the path of the sheet.
    ///
    /// # Errors
    /// [`AuditError`] if a file already exists or cannot be written.
    pub fn create(draw: &Draw, spec: &Spec, expansion: &Expansion) -> Result<PathBuf, AuditError> {
        let (draw_path, sheet_path) = (draw_path(spec, expansion), sheet_path(spec, expansion));
        if let Some(path) = [&sheet_path, &draw_path].into_iter().find(|p| p.exists()) {
            return Err(AuditError::Exists(path.clone()));
        }
        // The draw appears locked, so that no other process reads or changes it without its sheet.
        let _lock = draw.create_locked_file(&draw_path, expansion)?;
        let written = if sheet_path.exists() {
            Err(AuditError::Exists(sheet_path.clone()))
        } else {
            Sheet::default().write(&sheet_path, draw, expansion)
        };
        if let Err(error) = written {
            let _ = std::fs::remove_file(&draw_path);
            return Err(error);
        }
        Ok(sheet_path)
    }

    /// Returns the length of the filled prefix: the number of sampled rows, before the first gap,
    /// that have a value of this kind in all of these columns. `columns` are positions in the
    /// expansion.
    #[must_use]
    pub fn count_filled_rows(&self, columns: &[usize], evidence: Evidence) -> usize {
        let is_filled = |row: &&usize| {
            columns.iter().all(|column| {
                self.sheet.truth(**row, *column).is_some_and(|t| t.evidence() == evidence)
            })
        };
        self.draw.sample().iter().take_while(is_filled).count()
    }
}

/// Returns the path of the sheet: `NAME.audit.csv` beside the spec, or `NAME.EXPANSION.audit.csv`
/// if the spec has several expansions.
#[must_use]
pub fn sheet_path(spec: &Spec, expansion: &Expansion) -> PathBuf {
    let suffix = if spec.expansions.len() > 1 {
        format!("{}.audit.csv", expansion.name)
    } else {
        "audit.csv".to_owned()
    };
    spec.path.with_extension(suffix)
}

/// Returns the path of the draw, beside the sheet.
#[must_use]
pub fn draw_path(spec: &Spec, expansion: &Expansion) -> PathBuf {
    sheet_path(spec, expansion).with_extension("jsonl")
}
