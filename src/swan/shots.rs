//! Examples for the model: the first rows of the truth, written down by
//! `prepare` beside the database that does not hold them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::SwanError;
use crate::spec::Draft;
use crate::spec::file::{Literal, ShotCell, ShotsField};

/// Example rows of each expansion: column to value, or to values.
pub type Shots = BTreeMap<String, Vec<Map<String, Json>>>;

/// How many are written down: the most that SWAN shows.
pub const MOST: usize = 5;

/// Where the examples for a database are.
#[must_use]
pub fn path_of(database: &Path) -> PathBuf {
    database.with_extension("shots.json")
}

/// Gives a spec so many examples, and no others than these.
///
/// # Errors
/// [`SwanError`] when there are not so many.
pub fn apply(draft: &mut Draft, file: &Path, shots: usize) -> Result<(), SwanError> {
    if shots == 0 {
        draft.file.expansion.iter_mut().for_each(|e| e.shots = None);
        return Ok(());
    }
    let bad = |message: String| {
        SwanError::input(
            message,
            "`hqdl swan prepare` writes them beside the database; or name a file with --shots-file",
        )
    };
    let text = std::fs::read_to_string(file)
        .map_err(|e| bad(format!("no examples at {}: {e}", file.display())))?;
    let all: Shots = serde_json::from_str(&text)
        .map_err(|e| bad(format!("{} holds no examples: {e}", file.display())))?;
    for expansion in &mut draft.file.expansion {
        let rows = all.get(&expansion.name).map_or(&[][..], Vec::as_slice);
        if rows.len() < shots {
            return Err(bad(format!(
                "{} holds {} examples for `{}`, and {shots} are asked for",
                file.display(),
                rows.len(),
                expansion.name
            )));
        }
        let rows = rows.iter().take(shots).map(|row| {
            row.iter().filter_map(|(name, value)| Some((name.clone(), cell(value)?))).collect()
        });
        expansion.shots = Some(ShotsField::Rows(rows.collect()));
    }
    Ok(())
}

/// A cell of an example, none for what is not known.
fn cell(json: &Json) -> Option<ShotCell> {
    match json {
        Json::Array(items) => Some(ShotCell::Many(items.iter().filter_map(literal).collect())),
        one => literal(one).map(ShotCell::One),
    }
}

fn literal(json: &Json) -> Option<Literal> {
    match json {
        Json::Bool(b) => Some(Literal::Boolean(*b)),
        Json::Number(n) => {
            n.as_i64().map(Literal::Integer).or_else(|| n.as_f64().map(Literal::Real))
        }
        Json::String(text) => Some(Literal::Text(text.clone())),
        _ => None,
    }
}
