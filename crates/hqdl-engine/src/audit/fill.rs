//! Fills a sheet from a reference file, and writes the sheet's true values as overrides.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::AuditError;
use super::sheet::{CANNOT_BE_KNOWN, CellTruth, Evidence, Sheet, format_cell};
use super::{Audit, draw_path, sheet_path};
use crate::truth::{self, TrueRow};
use hqdl_spec::checker::Checker;
use hqdl_spec::overrides::{OverrideLine, is_same_cell, read_lines, write_lines};
use hqdl_spec::{Expansion, Spec};
use hqdl_values::format::describe_io_error;
use hqdl_values::value::Value;

impl Audit {
    /// Fills the sheet's empty cells from a reference file, and writes the sheet. Returns the
    /// number of filled cells.
    ///
    /// # Errors
    /// [`AuditError`] if the reference file or a value in it is invalid, or if the sheet cannot be
    /// written. Nothing is changed in that case.
    pub fn fill_from_reference(
        &mut self,
        spec: &Spec,
        expansion_index: usize,
        reference: &Path,
    ) -> Result<u64, AuditError> {
        let expansion = &spec.expansions[expansion_index];
        let truths = truth::Truth::read_csv(reference, spec).map_err(|e| match e.line {
            Some(_) => AuditError::in_file(&e.path, e.line, e.message),
            None => {
                let hint = "hqdl changed nothing; name a CSV file with true values";
                AuditError::in_request(e.to_string(), hint)
            }
        })?;
        let source = reference.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (lock, mut sheet) = self.reread_sheet(spec, expansion)?;
        let mut filled = 0;
        for (column, _) in self.draw.find_expansion_columns(expansion) {
            let Some(values) = truths.column_values(expansion_index, column) else { continue };
            let checker = Checker::new(&expansion.columns[column]);
            let values: std::collections::HashMap<_, _> =
                values.iter().map(|row| (expansion.build_entity(&row.key), row)).collect();
            for row in self.draw.sample() {
                let entity = expansion.build_entity(&self.draw.frame[*row].key);
                let Some(TrueRow { value, line, .. }) = values.get(&entity) else { continue };
                if sheet.truth(*row, column).is_some() {
                    continue;
                }
                if checker.is_constrained() && !checker.is_allowed(value) {
                    let name = &expansion.columns[column].name;
                    let message = format!(
                        "\"{}\" is not in the value list of `{name}` ({entity})",
                        format_cell(value)
                    );
                    return Err(AuditError::in_file(reference, *line, message));
                }
                let value = Some(value.clone());
                let note = String::new();
                sheet.set_truth(*row, column, CellTruth { value, source: source.clone(), note });
                filled += 1;
            }
        }
        self.write_sheet(sheet, spec, expansion, lock)?;
        Ok(filled)
    }

    /// Stores the truth of a cell in the sheet. Rereads the sheet first, because another person may
    /// have filled in cells in the meantime; other processes wait until it is written. The new
    /// truth replaces the previous truth. If their values differ, the new truth's note records the
    /// previous value.
    ///
    /// # Errors
    /// [`AuditError`] if the sheet cannot be read or written. Nothing is changed in that case.
    pub fn record_truth(
        &mut self,
        spec: &Spec,
        expansion: &Expansion,
        (row, column): (usize, usize),
        mut truth: CellTruth,
    ) -> Result<(), AuditError> {
        let (lock, mut sheet) = self.reread_sheet(spec, expansion)?;
        let before = sheet.truth(row, column).filter(|before| before.value != truth.value);
        if let Some(before) = before {
            let said = before.value.as_ref().map_or(CANNOT_BE_KNOWN.to_owned(), format_cell);
            let kept = format!("{} said {said}", before.source);
            let notes = [std::mem::take(&mut truth.note), kept];
            truth.note = notes.into_iter().filter(|n| !n.is_empty()).collect::<Vec<_>>().join("; ");
        }
        sheet.set_truth(row, column, truth);
        self.write_sheet(sheet, spec, expansion, lock)
    }

    /// Removes the truth of a cell from the sheet. Rereads the sheet first.
    ///
    /// # Errors
    /// [`AuditError`] if the sheet cannot be read or written. Nothing is changed in that case.
    pub fn remove_truth(
        &mut self,
        spec: &Spec,
        expansion: &Expansion,
        (row, column): (usize, usize),
    ) -> Result<(), AuditError> {
        let (lock, mut sheet) = self.reread_sheet(spec, expansion)?;
        sheet.remove_truth(row, column);
        self.write_sheet(sheet, spec, expansion, lock)
    }

    /// Reads the sheet again for a change, and locks it until [`Self::write_sheet`]. The lock is on
    /// the draw, because writing replaces the sheet's file.
    pub(super) fn reread_sheet(
        &self,
        spec: &Spec,
        expansion: &Expansion,
    ) -> Result<(File, Sheet), AuditError> {
        let path = draw_path(spec, expansion);
        let lock = lock_draw(&path)?;
        let sheet = Sheet::read(&sheet_path(spec, expansion), &self.draw, expansion)?;
        Ok((lock, sheet))
    }

    /// Writes a changed sheet, and then unlocks it.
    pub(super) fn write_sheet(
        &mut self,
        sheet: Sheet,
        spec: &Spec,
        expansion: &Expansion,
        lock: File,
    ) -> Result<(), AuditError> {
        sheet.write(&sheet_path(spec, expansion), &self.draw, expansion)?;
        drop(lock);
        self.sheet = sheet;
        Ok(())
    }

    /// Writes each known truth that differs from the drawn answer as an override. Returns the
    /// number of overrides. The audit itself still uses the drawn answers.
    ///
    /// # Errors
    /// [`AuditError`] if the overrides cannot be read or written. Nothing is changed in that case.
    pub fn apply_truths(&self, spec: &Spec, expansion: &Expansion) -> Result<u64, AuditError> {
        let path = spec.overrides_path();
        let existing = read_lines(&path)?;
        let mut lines: Vec<OverrideLine> = existing.into_iter().map(|(_, line)| line).collect();
        let mut applied = 0;
        for row in self.draw.sample() {
            let frame_row = &self.draw.frame[*row];
            let text = |value: &Value| value.to_text().unwrap_or_default().into_owned();
            let names = expansion.key.names().iter().cloned();
            let key: Vec<(String, String)> = names.zip(frame_row.key.iter().map(text)).collect();
            for (column, audited) in self.draw.find_expansion_columns(expansion) {
                let truth = self.sheet.truth(*row, column);
                let Some(truth) = truth.filter(|t| t.evidence() == Evidence::Truth) else {
                    continue;
                };
                let Some(value) =
                    truth.value.as_ref().filter(|v| **v != frame_row.answers[audited])
                else {
                    continue;
                };
                let line = OverrideLine {
                    key: key.clone(),
                    column: expansion.columns[column].name.clone(),
                    value: format_cell(value),
                    note: format!("audit {}", self.draw.id),
                    replaced: String::new(),
                };
                if lines.iter().any(|l| is_same_cell(l, &line) && l.value == line.value) {
                    continue;
                }
                lines.retain(|l| !is_same_cell(l, &line));
                lines.push(line);
                applied += 1;
            }
        }
        if applied > 0 {
            write_lines(&path, &lines)?;
        }
        Ok(applied)
    }
}

/// Maximum time to wait for another process that changes the sheet.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Locks a draw, so that only one process at a time changes its sheet. On a file system without
/// locks, processes are not kept apart.
fn lock_draw(path: &Path) -> Result<File, AuditError> {
    // NFS locks only files that are open for writing.
    let file = File::options().read(true).write(true).open(path).or_else(|_| File::open(path));
    let file = file.map_err(|e| AuditError::in_file(path, None, describe_io_error(&e)))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let message = "another process has locked this audit for 5 seconds: end the `hqdl audit` or daemon that hangs, and try again";
                return Err(AuditError::in_file(path, None, message));
            }
        }
    }
}
