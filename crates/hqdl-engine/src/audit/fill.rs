//! Fills a sheet from a reference file, and writes the sheet's true values as overrides.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::AuditError;
use super::note::Note;
use super::sheet::{CellTruth, Evidence, Sheet, format_cell, parse_truth};
use super::{Audit, draw_path, sheet_path};
use crate::truth::{self, TrueRow};
use hqdl_database::current_timestamp;
use hqdl_spec::checker::Checker;
use hqdl_spec::overrides::{
    NO_VALUE, OverrideLine, check_no_value, is_same_cell, read_lines, write_lines,
};
use hqdl_spec::{Column, Expansion, Spec};
use hqdl_values::cell::CellValue;
use hqdl_values::format::describe_io_error;
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Numbers of sampled cells that a reference file filled or left as they were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReferenceFill {
    /// Cells that the reference filled.
    pub filled: u64,
    /// Cells that already had a truth.
    pub known: u64,
    /// Cells whose row or column is not in the reference.
    pub absent: u64,
    /// Cells whose field in the reference is empty.
    pub empty: u64,
}

impl Audit {
    /// Fills the sheet's empty cells from a reference file, and writes the sheet.
    ///
    /// # Errors
    /// [`AuditError`] if the reference file or a value in it is invalid, or if the sheet cannot be
    /// written. Nothing is changed in that case.
    pub fn fill_from_reference(
        &mut self,
        spec: &Spec,
        expansion_index: usize,
        reference: &Path,
    ) -> Result<ReferenceFill, AuditError> {
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
        let mut result = ReferenceFill::default();
        for (column, _) in self.draw.find_expansion_columns(expansion) {
            let values = truths.column_values(expansion_index, column);
            let by_entity: HashMap<Entity, &TrueRow> = values
                .into_iter()
                .flatten()
                .map(|row| (expansion.build_entity(&row.key), row))
                .collect();
            for row in self.draw.sample() {
                let entity = expansion.build_entity(&self.draw.frame[*row].key);
                if sheet.truth(*row, column).is_some() {
                    result.known += 1;
                } else if let Some(true_row) = by_entity.get(&entity) {
                    check_reference_value(&expansion.columns[column], true_row, &entity)
                        .map_err(|e| AuditError::in_file(reference, true_row.line, e))?;
                    let note = sheet.note(*row, column).to_owned();
                    let (value, source) = (true_row.value.clone(), source.clone());
                    sheet.set_truth(*row, column, CellTruth { value, source, note });
                    result.filled += 1;
                } else if values.is_some() && truths.has_entity(expansion_index, &entity) {
                    result.empty += 1;
                } else {
                    result.absent += 1;
                }
            }
        }
        self.write_sheet(sheet, spec, expansion, lock)?;
        Ok(result)
    }

    /// Stores the truth of a cell in the sheet. Rereads the sheet first, because another person may
    /// have filled in cells in the meantime; other processes wait until it is written. The note of
    /// `truth` is a remark. hqdl adds the time and the truths that this one replaces.
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
        let mut note = Note::parse(sheet.note(row, column));
        if let Some(before) = sheet.truth(row, column) {
            note.replace_truth(before, None);
        }
        note.time = Some(current_timestamp());
        note.add_remark(&truth.note);
        truth.note = note.to_string();
        sheet.set_truth(row, column, truth);
        self.write_sheet(sheet, spec, expansion, lock)
    }

    /// Restores the truth that a cell had before its last one: its value, source, time and remark.
    /// If it had none, the cell becomes empty. The note keeps the undone truth. Rereads the sheet
    /// first. `digest` is the digest of the truth to undo, and `who` is the person who undoes it.
    ///
    /// # Errors
    /// [`AuditError`] if the cell's truth has changed in the meantime, or if the sheet cannot be read or
    /// written. Nothing is changed in that case.
    pub fn undo_truth(
        &mut self,
        spec: &Spec,
        expansion: &Expansion,
        (row, column): (usize, usize),
        (digest, who): (&str, &str),
    ) -> Result<(), AuditError> {
        let (lock, mut sheet) = self.reread_sheet(spec, expansion)?;
        let Some(undone) = sheet.truth(row, column).filter(|truth| truth.digest() == digest) else {
            let hint = "nothing was changed; open the cell to see its true value";
            return Err(AuditError::in_request(
                "the cell's true value has changed in the meantime",
                hint,
            ));
        };
        let mut note = Note::parse(&undone.note);
        match note.undo_truth(undone, (who, &current_timestamp())) {
            Some(restored) => {
                let column_spec = &expansion.columns[column];
                let checker = Checker::new(column_spec);
                let value = parse_truth(&checker, &column_spec.name, &restored.entry)
                    .map_err(|e| AuditError::in_request(e, "nothing was changed"))?;
                let (source, note) = (restored.source, note.to_string());
                sheet.set_truth(row, column, CellTruth { value, source, note });
            }
            None => sheet.remove_truth(row, column, note.to_string()),
        }
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
                let name = &expansion.columns[column].name;
                let value = match value {
                    CellValue::Nothing => {
                        if check_no_value(spec, &expansion.name, name).is_err() {
                            continue;
                        }
                        NO_VALUE.to_owned()
                    }
                    value => format_cell(value),
                };
                let mut line = OverrideLine {
                    key: key.clone(),
                    column: name.clone(),
                    value,
                    note: format!("audit {}", self.draw.id),
                    replaced: String::new(),
                };
                if let Some(before) = lines.iter().find(|l| is_same_cell(l, &line)) {
                    if before.value == line.value {
                        continue;
                    }
                    line.replaced.clone_from(&before.value);
                    // The note of an earlier value from this audit is not repeated.
                    let earlier = before.note.strip_prefix(&line.note).unwrap_or(&before.note);
                    let earlier = earlier.trim_start_matches("; ");
                    if !earlier.is_empty() {
                        line.note = format!("{}; {earlier}", line.note);
                    }
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

/// Checks a value of a reference file.
fn check_reference_value(
    column: &Column,
    true_row: &TrueRow,
    entity: &Entity,
) -> Result<(), String> {
    let checker = Checker::new(column);
    match &true_row.value {
        None | Some(CellValue::Nothing) => Ok(()),
        Some(value) if !checker.is_constrained() || checker.is_allowed(value) => Ok(()),
        Some(value) => Err(format!(
            "\"{}\" is not in the value list of `{}` ({entity})",
            format_cell(value),
            column.name
        )),
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
