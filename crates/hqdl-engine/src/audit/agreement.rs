//! Fills a sheet with another model's answers, which measure agreement, not accuracy.

use std::collections::{HashMap, HashSet};

use super::Audit;
use super::error::AuditError;
use super::frame::collect_frame;
use super::sheet::{CellTruth, MODEL_SOURCE};
use hqdl_database::Database;
use hqdl_spec::{Expansion, Spec};
use hqdl_values::cell::State;
use hqdl_values::key::Entity;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Number of sampled rows whose model [`Audit::is_answered_by`] compares.
const CHECKED_ROWS: usize = 3;

impl Audit {
    /// Returns whether a model gave the answers of the first sampled rows.
    ///
    /// # Errors
    /// [`AuditError`] if the published cells cannot be read.
    pub fn is_answered_by(
        &self,
        published: &Database,
        expansion: &Expansion,
        model: &str,
    ) -> Result<bool, AuditError> {
        for row in self.draw.sample().iter().take(CHECKED_ROWS) {
            let key = &self.draw.frame[*row].key;
            let key: Vec<String> = key.iter().map(ToString::to_string).collect();
            for column in &self.draw.columns {
                let cells = published.find_cells(&expansion.name, &key, column)?;
                if cells.iter().any(|cell| cell.model.as_deref() == Some(model)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns the SQL condition that selects the sampled rows in a source.
    #[must_use]
    pub fn build_sample_condition(&self, expansion: &Expansion) -> String {
        let literal = |value: &Value| match value {
            Value::Null => "NULL".to_owned(),
            Value::Text(text) => sql::quote_text(text),
            number => number.to_string(),
        };
        let row = |row: &usize| {
            let key: Vec<String> = self.draw.frame[*row].key.iter().map(literal).collect();
            format!("({})", key.join(", "))
        };
        let rows: Vec<String> = self.draw.sample().iter().map(row).collect();
        let names = expansion.key.names().iter().enumerate();
        let is_same = names
            .map(|(n, name)| format!("hqdl_sample.column{} IS {}", n + 1, sql::quote_name(name)));
        format!(
            "EXISTS (SELECT 1 FROM (VALUES {}) AS hqdl_sample WHERE {})",
            rows.join(", "),
            is_same.collect::<Vec<_>>().join(" AND ")
        )
    }

    /// Fills the sheet's empty cells with another model's answers, and writes the sheet. Returns
    /// the number of filled cells.
    ///
    /// # Errors
    /// [`AuditError`] if the answers cannot be read or the sheet cannot be written. Nothing is
    /// changed in that case.
    pub fn fill_from_model(
        &mut self,
        spec: &Spec,
        expansion: &Expansion,
        (sources, published): (&Database, &Database),
        model: &str,
    ) -> Result<u64, AuditError> {
        let columns = self.draw.find_expansion_columns(expansion);
        let positions: Vec<usize> = columns.iter().map(|c| c.0).collect();
        let answers = collect_frame(sources, published, expansion, &positions)?;
        let sample: HashSet<Entity> = self
            .draw
            .sample()
            .iter()
            .map(|row| expansion.build_entity(&self.draw.frame[*row].key))
            .collect();
        let mut by_entity = HashMap::new();
        for row in answers {
            let entity = expansion.build_entity(&row.key);
            if sample.contains(&entity) {
                by_entity.insert(entity, row);
            }
        }
        let (lock, mut sheet) = self.reread_sheet(spec, expansion)?;
        let mut filled = 0;
        for row in self.draw.sample() {
            let entity = expansion.build_entity(&self.draw.frame[*row].key);
            let Some(found) = by_entity.get(&entity) else { continue };
            for (n, column) in positions.iter().enumerate() {
                // Skip overrides, because a person, not the model, wrote them.
                if sheet.truth(*row, *column).is_some() || found.states[n] != State::Ok.name() {
                    continue;
                }
                let value = Some(found.answers[n].clone());
                let note = sheet.note(*row, *column).to_owned();
                let source = format!("{MODEL_SOURCE}{model}");
                sheet.set_truth(*row, *column, CellTruth { value, source, note });
                filled += 1;
            }
        }
        self.write_sheet(sheet, spec, expansion, lock)?;
        Ok(filled)
    }
}
