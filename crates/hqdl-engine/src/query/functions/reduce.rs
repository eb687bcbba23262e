//! Finds the cell that answers a question about a whole document. If the document is too long, the
//! cell is known only after the questions about its parts are answered.

use std::borrow::Cow;

use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::documents::Document;
use crate::query::cells::reduction::{
    DocumentPart, MAX_COMBINED, Reduction, ReductionOutcome, split_sequence,
};
use crate::query::cells::targets::{Cell, Demand};
use crate::query::functions::call_runtime::{CallRuntime, function_error};
use crate::query::functions::entities::hash_value;
use hqdl_values::Row;
use hqdl_values::value::Value;

/// Answer about a part, or a combination of answers.
struct PartAnswer {
    priority: u64,
    state: PartState,
    /// Digest of the part, or of all parts whose answers were combined.
    digest: [u8; 32],
}

enum PartState {
    /// The answer; `None` if the model does not know the answer.
    Known(Option<String>),
    Pending,
    Failed,
}

impl CallRuntime {
    /// Returns the location of the answer about a whole document.
    pub(in crate::query) fn reduce_document(
        &mut self,
        reduction: Reduction,
        value: ValueRef<'_>,
    ) -> rusqlite::Result<ReductionOutcome> {
        let Reduction { call, target, column, columns } = reduction;
        let digest = hash_value(value);
        if let Some(cell) = self.data.reductions.results.get(&(call, digest)).copied()
            && !matches!(self.look_up_cell(cell)?, Cell::Missing | Cell::NotLookedUp)
        {
            return Ok(ReductionOutcome::Cell(cell, None));
        }
        let Some(document) = self.read_document(target, &digest, value)? else {
            return Ok(ReductionOutcome::Nothing);
        };
        if self.data.contexts.fits_document(&document) {
            return Ok(self.register_result_cell(reduction, column, digest, document));
        }
        let parts = self.data.reductions.get_or_split_parts(digest, &document, &self.data.contexts);
        let mut answers = Vec::with_capacity(parts.len());
        for part in parts.iter() {
            answers.push(self.find_or_demand_part_answer(reduction, part)?);
        }
        loop {
            let weights: Vec<(u64, u64)> = answers.iter().map(|a| (a.priority, 1)).collect();
            let ranges = split_sequence(&weights, MAX_COMBINED);
            if let [_] = ranges.as_slice() {
                return match self.build_answers_document(reduction, columns.result, &answers)? {
                    CombinationOutcome::Document(document) => {
                        Ok(self.register_result_cell(reduction, columns.result, digest, document))
                    }
                    CombinationOutcome::State(PartState::Pending) => Ok(ReductionOutcome::Pending),
                    CombinationOutcome::State(_) => Ok(ReductionOutcome::Nothing),
                };
            }
            let mut combined = Vec::with_capacity(ranges.len());
            for range in ranges.into_iter().rev() {
                let of = answers.split_off(range.start);
                combined.push(self.find_combined_answer(reduction, of)?);
            }
            combined.reverse();
            answers = combined;
        }
    }

    /// Registers and returns the cell that contains the result for a document.
    fn register_result_cell(
        &mut self,
        reduction: Reduction,
        column: usize,
        digest: [u8; 32],
        document: Document,
    ) -> ReductionOutcome {
        let cell = self.intern_document_cell(reduction.target, column, &document);
        self.data.reductions.results.insert((reduction.call, digest), cell);
        ReductionOutcome::Cell(cell, Some(document))
    }

    /// Returns the cell of a document, registering the document if necessary.
    fn intern_document_cell(
        &mut self,
        target: usize,
        column: usize,
        document: &Document,
    ) -> Demand {
        let key = document.entity_key();
        let row = || Row { key: vec![Value::Text(key.clone())], context: Vec::new() };
        let entity = self.data.targets[target].intern_entity(key.as_bytes(), row);
        Demand::new(target, entity, column)
    }

    fn find_or_demand_part_answer(
        &mut self,
        reduction: Reduction,
        part: &DocumentPart,
    ) -> rusqlite::Result<PartAnswer> {
        let digest = hash_texts(&part.document.texts);
        let state =
            self.find_or_demand_answer(reduction, reduction.columns.part, &part.document)?;
        Ok(PartAnswer { priority: part.priority, state, digest })
    }

    /// Returns the combination of the answers. A single answer is returned unchanged.
    fn find_combined_answer(
        &mut self,
        reduction: Reduction,
        mut answers: Vec<PartAnswer>,
    ) -> rusqlite::Result<PartAnswer> {
        if answers.len() == 1
            && let Some(single) = answers.pop()
        {
            return Ok(single);
        }
        let column = reduction.columns.combined;
        let state = match self.build_answers_document(reduction, column, &answers)? {
            CombinationOutcome::Document(document) if document.texts.len() == 1 => {
                PartState::Known(document.texts.into_iter().next())
            }
            CombinationOutcome::Document(document) => {
                self.find_or_demand_answer(reduction, column, &document)?
            }
            CombinationOutcome::State(state) => state,
        };
        let priority = answers.first().map_or(0, |first| first.priority);
        Ok(PartAnswer { priority, state, digest: hash_answers(&answers) })
    }

    /// Returns the document that consists of the answers or, if there is no such document, the
    /// state of the combination.
    fn build_answers_document(
        &mut self,
        reduction: Reduction,
        column: usize,
        answers: &[PartAnswer],
    ) -> rusqlite::Result<CombinationOutcome> {
        if answers.iter().any(|a| matches!(a.state, PartState::Failed)) {
            return Ok(CombinationOutcome::State(PartState::Failed));
        }
        if answers.iter().any(|a| matches!(a.state, PartState::Pending)) {
            if self.settings.bounds_requests {
                self.demand_longest_document(reduction, column, answers)?;
            }
            return Ok(CombinationOutcome::State(PartState::Pending));
        }
        let text = |answer: &PartAnswer| match &answer.state {
            PartState::Known(text) => text.clone(),
            PartState::Pending | PartState::Failed => None,
        };
        let document = Document { texts: answers.iter().filter_map(text).collect() };
        if document.texts.is_empty() {
            return Ok(CombinationOutcome::State(PartState::Known(None)));
        }
        if !self.data.contexts.fits_document(&document) {
            let long_answers = self.data.reductions.long_answers.entry(reduction.call);
            long_answers.or_default().insert(hash_answers(answers));
            return Ok(CombinationOutcome::State(PartState::Failed));
        }
        Ok(CombinationOutcome::Document(document))
    }

    /// Returns the answer about a document. If the answer is missing, demands it.
    fn find_or_demand_answer(
        &mut self,
        reduction: Reduction,
        column: usize,
        document: &Document,
    ) -> rusqlite::Result<PartState> {
        let cell = self.intern_document_cell(reduction.target, column, document);
        let is_readable = match self.look_up_cell(cell)? {
            Cell::Known(Sql::Null) => {
                !self.data.targets[cell.target()].is_unreadable(cell.entity(), cell.column())
            }
            Cell::Known(value) => {
                let text = Value::from_sqlite(ValueRef::from(&value));
                let text = text.ok().and_then(|v| v.canonical_text().map(Cow::into_owned));
                return Ok(PartState::Known(text));
            }
            Cell::Failed => false,
            Cell::NotLookedUp | Cell::Missing => {
                self.demand_cell(reduction.call, cell, Some(document.clone()))?;
                return Ok(PartState::Pending);
            }
        };
        if is_readable {
            return Ok(PartState::Known(None));
        }
        let parts = self.data.reductions.unreadable_parts.entry(reduction.call);
        parts.or_default().insert(cell);
        Ok(PartState::Failed)
    }

    /// Demands the combination of answers that are not known yet. A placeholder document of the
    /// maximum length represents the answers.
    fn demand_longest_document(
        &mut self,
        reduction: Reduction,
        column: usize,
        answers: &[PartAnswer],
    ) -> rusqlite::Result<()> {
        let id = blake3::Hash::from_bytes(hash_answers(answers)).to_hex();
        // Make the placeholder so long that it does not share a request with other documents.
        let words = self.data.contexts.max_document_tokens().max(MIN_WORDS);
        let texts = vec![format!("{id}{}", " word".repeat(words as usize))];
        let document = Document { texts };
        let cell = self.intern_document_cell(reduction.target, column, &document);
        self.demand_cell(reduction.call, cell, Some(document))
    }

    fn look_up_cell(&mut self, cell: Demand) -> rusqlite::Result<Cell> {
        let counts = &mut self.data.counts;
        self.data.targets[cell.target()]
            .look_up_cell(
                cell.entity(),
                cell.column(),
                &self.data.facts,
                self.data.overrides.as_ref(),
                counts,
            )
            .cloned()
            .map_err(|e| function_error(&e.to_string()))
    }
}

/// Minimum length of a placeholder document in words, so that it never shares a request.
const MIN_WORDS: u64 = 100;

/// Result of combining answers.
enum CombinationOutcome {
    /// The answers to combine.
    Document(Document),
    /// There is no document, because an answer is pending or failed, or no part has an answer.
    State(PartState),
}

fn hash_texts(texts: &[String]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn hash_answers(answers: &[PartAnswer]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    answers.iter().for_each(|answer| {
        hasher.update(&answer.digest);
    });
    *hasher.finalize().as_bytes()
}
