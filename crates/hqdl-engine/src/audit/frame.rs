//! The sampling frame of an audit: the expansion's rows with their published answers.

use std::collections::HashMap;

use crate::truth::{ScoredCell, load_cells};
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_database::{Database, StoreError};
use hqdl_spec::Expansion;
use hqdl_values::cell::CellValue;
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// A row of the expansion, as it was when the sample was drawn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FrameRow {
    /// Key, as written in the source.
    pub key: Vec<Value>,
    /// Index of the row's stratum in the sampling design.
    pub stratum: usize,
    /// Published answers, one per audited column.
    pub answers: Vec<CellValue>,
    /// States of the answers.
    pub states: Vec<String>,
}

/// State of a cell without a published answer.
const NOT_ASKED: &str = "not_asked";

/// Returns each entity of an expansion's sources once, with its published answers.
pub(super) fn collect_frame(
    sources: &Database,
    published: &Database,
    expansion: &Expansion,
    columns: &[usize],
) -> Result<Vec<FrameRow>, StoreError> {
    published.fetch_published_cells(&expansion.name)?;
    let mut cells: Vec<HashMap<Entity, ScoredCell>> = Vec::new();
    for column in columns {
        cells.push(load_cells(published, expansion, &expansion.columns[*column].name)?);
    }
    let mut frame = Vec::new();
    let visit = |key: &KeyRow| {
        if key.is_first_spelling {
            let mut row = FrameRow { key: key.row.key.clone(), ..FrameRow::default() };
            for column in &mut cells {
                let cell = column.remove(&key.entity);
                row.states.push(cell.as_ref().map_or(NOT_ASKED, |c| &c.state).to_owned());
                row.answers.push(cell.map_or(CellValue::Nothing, |c| c.value));
            }
            frame.push(row);
        }
        Ok::<_, rusqlite::Error>(())
    };
    Keys::collect(sources, expansion, None)?
        .for_each(&mut { visit })
        .map_err(|e| sources.to_store_error(&e))?;
    Ok(frame)
}
