//! Builds the prompts for the first rows of a spec's tables, without sending them.

use crate::Row;
use crate::database::keys::{KeyRow, Keys};
use crate::database::{Database, StoreError};
use crate::facts::Facts;
use crate::failure::Failure;
use crate::materialize::MaterializeError;
use crate::model;
use crate::prompt::PromptFrame;
use crate::retrieval::evidence::load_evidence;
use crate::spec::{Expansion, Spec};

/// A prompt for the first rows of an expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplePrompt {
    /// Name of the expansion.
    pub expansion: String,
    /// Name of the expansion, and of the model if there are several.
    pub title: String,
    /// System message.
    pub system: String,
    /// User message.
    pub user: String,
}

/// Returns the prompts for the first rows of each expansion, one per model.
///
/// # Errors
/// Returns a [`Failure`] if keys or documents cannot be read.
pub fn build_sample_prompts(
    spec: &Spec,
    database: &Database,
    facts: &Facts,
    max_rows: Option<usize>,
) -> Result<Vec<SamplePrompt>, Failure> {
    let connected = model::connect_for_planning(spec)?;
    let mut prompts = Vec::new();
    for expansion in &spec.expansions {
        let rows = collect_first_rows(database, expansion, max_rows.unwrap_or(usize::MAX))?;
        let Some(first) = rows.first() else { continue };
        load_evidence(spec, expansion, database, facts).map_err(|message| {
            MaterializeError::Evidence { expansion: expansion.name.clone(), message }
        })?;
        let asked = expansion.reduce_to_key_part(&first.key);
        let shown: Vec<_> = rows.iter().map(|row| expansion.build_shown_row(row)).collect();
        let models = model::choose_models(spec, Some(&*connected), expansion);
        for (m, choice) in models.choices().iter().enumerate() {
            let columns: Vec<usize> = models.list_columns_of_model(m).collect();
            let frame = PromptFrame::new(&asked, &columns, choice.format);
            let prompt = frame.build_prompt(shown.iter().map(AsRef::as_ref));
            let title = match models.choices() {
                [_] => expansion.name.clone(),
                _ => format!("{} ({})", expansion.name, choice.name),
            };
            prompts.push(SamplePrompt {
                expansion: expansion.name.clone(),
                title,
                system: prompt.system.to_string(),
                user: prompt.user,
            });
        }
    }
    Ok(prompts)
}

/// Returns the first rows of an expansion that one request can contain.
fn collect_first_rows(
    database: &Database,
    expansion: &Expansion,
    max_rows: usize,
) -> Result<Vec<Row>, StoreError> {
    let per_request = if expansion.has_media() { 1 } else { expansion.rows_per_request as usize };
    let mut rows: Vec<Row> = Vec::new();
    let mut add_row = |key: &KeyRow| {
        // A request contains only rows of the same partition.
        let is_same_partition = rows
            .first()
            .is_none_or(|first| expansion.key_part(&first.key) == expansion.key_part(&key.row.key));
        if is_same_partition && rows.len() < per_request.min(max_rows) {
            rows.push(key.row.clone());
        }
        Ok::<_, rusqlite::Error>(())
    };
    let keys = Keys::collect(database, expansion, None)?;
    keys.for_each(&mut add_row).map_err(|e| database.to_store_error(&e))?;
    Ok(rows)
}
