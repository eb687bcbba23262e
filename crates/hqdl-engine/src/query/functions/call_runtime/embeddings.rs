//! Implements the functions `embed` and `similarity`. An embedding is a cell whose entity is a
//! text.

use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::targets::{Cell, Demand, TargetExpansion};
use crate::query::functions::call_runtime::{CallRuntime, function_error};
use crate::retrieval::vectors::cosine_similarity_of_bytes;
use hqdl_values::format::format_count;

/// An argument of `embed` or `similarity`.
enum Operand<'v> {
    /// An embedding.
    Embedding(&'v [u8]),
    /// A text, by its entity.
    Text(usize),
}

impl CallRuntime {
    /// Evaluates a call to `embed` or `similarity`. Demands the missing embeddings of its texts.
    pub(super) fn evaluate_embeddings(
        &mut self,
        call: usize,
        target: usize,
        is_similarity: bool,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Sql> {
        let mut operands = Vec::with_capacity(2);
        for value in values {
            match self.read_operand(target, *value)? {
                Some(operand) => operands.push(operand),
                None => return Ok(Sql::Null),
            }
        }
        if self.settings.measures_selectivity && self.is_first_lookup() {
            let texts = operands.iter().filter_map(|operand| match operand {
                Operand::Text(entity) => Some(*entity),
                Operand::Embedding(_) => None,
            });
            // One of the two texts is usually the same for all rows and has a small entity number,
            // so count distinct rows by the larger number.
            self.pass.call_stats[call].count_row(texts.max().unwrap_or(0));
        }
        let mut missing = Vec::new();
        for operand in &operands {
            let Operand::Text(entity) = *operand else { continue };
            let counts = &mut self.data.counts;
            let cell = self.data.targets[target]
                .look_up_cell(entity, 0, &self.data.facts, None, counts)
                .map_err(|e| function_error(&e.to_string()))?;
            match cell {
                Cell::Known(_) => {}
                Cell::Failed => return Ok(Sql::Null),
                Cell::NotLookedUp | Cell::Missing => missing.push(entity),
            }
        }
        if !missing.is_empty() {
            self.count_pending_call(call);
            for entity in missing {
                self.demand_cell(call, Demand::new(target, entity, 0), None)?;
            }
            return Ok(Sql::Null);
        }
        let target = &self.data.targets[target];
        match operands.as_slice() {
            [one] if !is_similarity => Ok(Sql::Blob(operand_bytes(target, one).to_vec())),
            [a, b] => {
                let (a, b) = (operand_bytes(target, a), operand_bytes(target, b));
                if a.len() != b.len() {
                    return Err(function_error(&format!(
                        "`similarity` compares embeddings of {} and of {} numbers: they come from different models",
                        a.len() / 4,
                        b.len() / 4
                    )));
                }
                Ok(cosine_similarity_of_bytes(a, b).map_or(Sql::Null, Sql::Real))
            }
            _ => Err(function_error("internal error: an embedding has the wrong arguments")),
        }
    }

    /// Reads an argument: a text, or an embedding. Returns `None` if there is no text to embed.
    fn read_operand<'v>(
        &mut self,
        target: usize,
        value: ValueRef<'v>,
    ) -> rusqlite::Result<Option<Operand<'v>>> {
        match value {
            ValueRef::Blob(bytes) if bytes.is_empty() || bytes.len() % 4 != 0 => {
                Err(function_error(&format!(
                    "a BLOB of {} is not an embedding, which consists of 32-bit floats",
                    format_count(bytes.len() as u64, "byte")
                )))
            }
            ValueRef::Blob(bytes) => Ok(Some(Operand::Embedding(bytes))),
            ValueRef::Text(text) if text.trim_ascii().is_empty() => Ok(None),
            _ => {
                let entity = self.intern_value_entity(target, 0, &[value])?;
                // A text can consist entirely of non-ASCII whitespace.
                let is_blank =
                    |entity: &usize| self.data.targets[target].entity_text(*entity).is_empty();
                let is_text = matches!(value, ValueRef::Text(text) if !text.is_ascii());
                Ok(entity.filter(|entity| !is_text || !is_blank(entity)).map(Operand::Text))
            }
        }
    }
}

/// Returns the embedding of an argument whose cell is known.
fn operand_bytes<'a>(target: &'a TargetExpansion, operand: &'a Operand<'_>) -> &'a [u8] {
    match operand {
        Operand::Embedding(bytes) => bytes,
        Operand::Text(entity) => match target.known_cell(*entity, 0) {
            Cell::Known(Sql::Blob(bytes)) => bytes,
            _ => &[],
        },
    }
}
