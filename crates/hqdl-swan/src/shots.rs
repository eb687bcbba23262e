//! Reads the examples for the model, which are the rows in SWAN's own prompts. `prepare` writes
//! them to a file beside the prepared database, which lacks their values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::SwanError;
use hqdl_spec::Literal;
use hqdl_spec::UncheckedSpec;
use hqdl_spec::file::{ShotCell, ShotsField};
use hqdl_values::format::format_count;

/// An example row: a value or a list of values for each column.
pub type Example = Map<String, Json>;

/// Example rows of each expansion.
pub type Shots = BTreeMap<String, Examples>;

/// Example rows of an expansion.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Examples {
    /// Rows of the expansion's only source.
    Rows(Vec<Example>),
    /// Rows of each source.
    BySource(Vec<Vec<Example>>),
}

impl Examples {
    fn examples_by_source(&self) -> &[Vec<Example>] {
        match self {
            Self::Rows(rows) => std::slice::from_ref(rows),
            Self::BySource(sources) => sources,
        }
    }
}

/// Number of examples per source that `prepare` writes, which is SWAN's maximum.
pub const MAX_EXAMPLES: usize = 5;

/// Returns the path of a database's examples.
#[must_use]
pub fn shots_path(database: &Path) -> PathBuf {
    database.with_extension("shots.json")
}

/// Replaces the examples of a spec with `shots` rows of every source.
///
/// # Errors
/// [`SwanError`] if there are too few examples.
pub fn apply_shots(draft: &mut UncheckedSpec, file: &Path, shots: usize) -> Result<(), SwanError> {
    if shots == 0 {
        draft.file.expansion.iter_mut().for_each(|e| e.shots = None);
        return Ok(());
    }
    let bad = |message: String| {
        SwanError::wrong_input(
            message,
            "`hqdl swan prepare` writes them next to the database; or pass a file with --shots-file",
        )
    };
    let text = std::fs::read_to_string(file).map_err(|e| {
        bad(format!(
            "cannot read examples from {}: {}",
            file.display(),
            hqdl_values::format::describe_io_error(&e)
        ))
    })?;
    let all: Shots = serde_json::from_str(&text)
        .map_err(|e| bad(format!("{} contains no valid examples: {e}", file.display())))?;
    for expansion in &mut draft.file.expansion {
        let sources = all.get(&expansion.name).map_or(&[][..], Examples::examples_by_source);
        let least = sources.iter().map(Vec::len).min().unwrap_or_default();
        if least < shots {
            let of = if sources.len() > 1 { "a source of " } else { "" };
            return Err(bad(format!(
                "{} contains {} for {of}`{}`, but --shots asks for {shots}",
                file.display(),
                format_count(least as u64, "example"),
                expansion.name
            )));
        }
        let rows = sources.iter().flat_map(|rows| rows.iter().take(shots)).map(|row| {
            row.iter()
                .filter_map(|(name, value)| Some((name.clone(), parse_cell(value)?)))
                .collect()
        });
        expansion.shots = Some(ShotsField::Rows(rows.collect()));
    }
    Ok(())
}

/// Parses a cell of an example; `None` if the value is unknown.
fn parse_cell(json: &Json) -> Option<ShotCell> {
    match json {
        Json::Array(items) => {
            Some(ShotCell::Many(items.iter().filter_map(parse_literal).collect()))
        }
        one => parse_literal(one).map(ShotCell::One),
    }
}

fn parse_literal(json: &Json) -> Option<Literal> {
    match json {
        Json::Bool(b) => Some(Literal::Boolean(*b)),
        Json::Number(n) => {
            n.as_i64().map(Literal::Integer).or_else(|| n.as_f64().map(Literal::Real))
        }
        Json::String(text) => Some(Literal::Text(text.clone())),
        _ => None,
    }
}
