//! Lists the cells whose values are the least certain, for a person to review.

use super::{MaterializeError, Materializer};
use hqdl_database::keys::Keys;
use hqdl_facts::CellLookup;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::value::Value;

/// A cell whose value may be wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct DoubtfulCell {
    /// Key of the row, as written in its source.
    pub key: Vec<Value>,
    /// Position of the column in the expansion.
    pub column: usize,
    /// Value of the cell.
    pub value: CellValue,
    /// State of the cell.
    pub state: State,
    /// Text of the model's answer, if it differs from the value.
    pub raw: Option<String>,
    /// Confidence of the value, from 0 to 1.
    pub confidence: f64,
    /// `1 - confidence`, times the weight of the column.
    pub doubt: f64,
}

impl Materializer<'_> {
    /// Returns the `max` most doubtful cells of an expansion, most doubtful first, and the total
    /// number of doubtful cells. `weights` contains the importance of each column. Leaves out
    /// overridden cells and cells whose confidence is not known.
    ///
    /// # Errors
    /// [`MaterializeError`] if keys or facts cannot be read.
    pub fn list_doubtful_cells(
        &self,
        expansion_index: usize,
        weights: &[f64],
        max: usize,
    ) -> Result<(Vec<DoubtfulCell>, usize), MaterializeError> {
        let n = expansion_index;
        let keys = Keys::collect(self.database, &self.spec.expansions[n], None)?;
        let (mut doubts, mut count): (Vec<DoubtfulCell>, usize) = (Vec::new(), 0);
        let requirements = &self.requirements[n];
        self.for_each_key(&keys, &mut |key, facts| {
            for (column, weight) in weights.iter().enumerate() {
                if !key.is_first_spelling
                    || !key.entity_requested_columns[column]
                    || self.overrides.get(n, &key.entity, column).is_some()
                {
                    continue;
                }
                let confidence = requirements.find_confidence(facts.as_ref(), column);
                let lookup = requirements.look_up_cell(facts.as_ref(), column);
                let (Some(confidence), CellLookup::Known(fact)) = (confidence, lookup) else {
                    continue;
                };
                let doubt = (1.0 - confidence) * weight;
                if doubt <= 0.0 {
                    continue;
                }
                count += 1;
                let (key, answer) = (key.row.key.clone(), fact.into_owned().answer);
                let (value, state, raw) = (answer.value, answer.state, answer.raw);
                doubts.push(DoubtfulCell { key, column, value, state, raw, confidence, doubt });
            }
            // Sort and truncate whenever the list reaches twice its final size, to limit memory
            // use.
            if doubts.len() >= 2 * max.max(1) {
                select_most_doubtful(&mut doubts, max);
            }
            Ok(())
        })
        .map_err(|e| e.into_materialize_error(self.database))?;
        select_most_doubtful(&mut doubts, max);
        Ok((doubts, count))
    }
}

/// Sorts cells by doubt and keeps the first `max`. The sort is stable.
fn select_most_doubtful(doubts: &mut Vec<DoubtfulCell>, max: usize) {
    doubts.sort_by(|a, b| b.doubt.total_cmp(&a.doubt));
    doubts.truncate(max);
}
