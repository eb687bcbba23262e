//! Estimates the tokens of row batches before they are sent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{ENVELOPE_TOKENS, Estimate, ExpansionPlan, MAX_ITEMS, RequestShape, RowBatch};
use hqdl_prompt::{PromptFrame, PromptRow};
use hqdl_spec::{Column, Expansion, Format};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::tokens::Tokenizer;

/// Assumed number of items in a cell with several values.
const LIKELY_ITEMS: f64 = 5.0;
/// Assumed number of tokens in a quotation that supports a value.
const QUOTATION_TOKENS: f64 = 40.0;
/// Minimum number of known cells whose mean length is used as the estimate.
const ENOUGH_SAMPLES: u64 = 20;

type AskedColumns<'e> = (Option<&'e [usize]>, Vec<usize>);

/// Estimates the cost of one expansion's row batches.
pub struct CostEstimator<'e> {
    expansion: &'e Expansion,
    format: Format,
    tokenizer: Tokenizer,
    /// Estimated tokens per cell of each column in an answer, based on the spec.
    cells: Vec<Estimate>,
    surrounding_tokens: Vec<f64>,
    /// Total tokens and number of known cells, for each column.
    known_cells: Vec<(u64, u64)>,
    frames: BTreeMap<AskedColumns<'e>, (u64, PromptFrame)>,
    max_output: u64,
    /// Name of the model, which determines the tokens of media.
    media_model: String,
    /// Tokens of the recordings of all requests.
    audio: u64,
    extra_input: u64,
    shapes: Vec<(Vec<usize>, RequestShape)>,
    asked: Vec<u64>,
    /// Total tokens of the labels or keys that answers repeat.
    echoed_tokens: u64,
    rows: u64,
    requests: u64,
    input: u64,
    repeated_tokens: u64,
}

impl<'e> CostEstimator<'e> {
    /// Creates an estimator for answers in the given format.
    #[must_use]
    pub fn new(expansion: &'e Expansion, format: Format, tokenizer: Tokenizer) -> Self {
        let columns = expansion.columns.len();
        // A packed column's answers are CSV lines inside JSON, so its cells are counted as CSV.
        let format_of = |column: usize| {
            if PromptFrame::is_packed(expansion, column, format) { Format::Csv } else { format }
        };
        let surrounding_of =
            |(at, column)| count_surrounding_tokens(column, format_of(at), tokenizer);
        let cells = |at: usize| estimate_cell_tokens(expansion, at, format_of(at), tokenizer);
        Self {
            cells: (0..columns).map(cells).collect(),
            surrounding_tokens: expansion.columns.iter().enumerate().map(surrounding_of).collect(),
            expansion,
            format,
            tokenizer,
            known_cells: vec![(0, 0); columns],
            frames: BTreeMap::new(),
            max_output: u64::MAX,
            media_model: String::new(),
            audio: 0,
            extra_input: 0,
            shapes: Vec::new(),
            asked: vec![0; columns],
            echoed_tokens: 0,
            rows: 0,
            requests: 0,
            input: 0,
            repeated_tokens: 0,
        }
    }

    /// Sets the maximum number of tokens per answer.
    #[must_use]
    pub fn with_max_output(self, max_output: u64) -> Self {
        Self { max_output, ..self }
    }

    /// Sets the name of the model, which determines the tokens of media.
    #[must_use]
    pub fn with_media_model(self, model: &str) -> Self {
        Self { media_model: model.to_owned(), ..self }
    }

    /// Sets the maximum number of tokens that the endpoint itself adds to a request.
    #[must_use]
    pub fn with_extra_input(self, extra_input: u64) -> Self {
        Self { extra_input, ..self }
    }

    /// Records the length of a known cell, to estimate the length of answers.
    pub fn record_cell_length(&mut self, column: usize, value: &CellValue) {
        if let Some((tokens, n)) = self.known_cells.get_mut(column).filter(|(_, n)| *n < 500) {
            *tokens += self.tokenizer.count_tokens(&to_csv_text(value));
            *n += 1;
        }
    }

    /// Adds a row batch.
    pub fn add_batch(&mut self, row_batch: &RowBatch) {
        let tokenizer = self.tokenizer;
        let expansion = self.expansion;
        let key =
            row_batch.missing_rows.first().map_or(&[][..], |missing_row| &missing_row.row.key);
        let frame_key = (expansion.key_part(key), row_batch.columns.clone());
        let known = self.frames.contains_key(&frame_key);
        let (frame_tokens, frame) = self.frames.entry(frame_key).or_insert_with(|| {
            let frame = PromptFrame::new(
                &expansion.reduce_to_key_part(key),
                &row_batch.columns,
                self.format,
            );
            (frame.count_shared_tokens(tokenizer), frame)
        });
        let planned_envelope = frame.planned_output([]);
        let shown_rows: Vec<Cow<'_, Row>> = row_batch
            .missing_rows
            .iter()
            .map(|missing_row| expansion.build_shown_row(&missing_row.row))
            .collect();
        let rows: Vec<&Row> = shown_rows.iter().map(AsRef::as_ref).collect();
        let (frame_tokens, header, lines) = if frame.uses_single_form(rows.len()) {
            let prompt = frame.build_prompt(rows.iter().copied());
            if prompt.lacks_required_evidence(expansion) {
                return;
            }
            let envelope = frame.count_tokens_without_rows(&prompt, tokenizer);
            (envelope, 0, vec![PromptRow { prompt_line: prompt.user, echo_line: String::new() }])
        } else {
            let header = tokenizer.count_tokens(&frame.build_prompt([]).user);
            (*frame_tokens, header, frame.format_row_lines(&rows))
        };
        let shared = frame_tokens + header + self.extra_input;
        let frame_tokens = frame_tokens + ENVELOPE_TOKENS;
        self.repeated_tokens += if known { frame_tokens } else { 0 };
        let (mut rows_tokens, mut widest, mut longest, mut audio) = (0, 0, 0, 0);
        self.requests += 1;
        self.input +=
            frame_tokens + if header > 0 { tokenizer.count_tokens("## Rows\n") + 8 } else { 0 };
        for ((row, line), missing_row) in rows.iter().zip(lines).zip(&row_batch.missing_rows) {
            let media = expansion.max_media_tokens(&missing_row.row, &self.media_model);
            let tokens = self.tokenizer.count_tokens(&line.prompt_line) + 1 + media.all;
            audio += media.audio;
            self.input += tokens;
            rows_tokens += tokens;
            widest = widest.max(tokens);
            longest = longest.max(frame.estimate_row_output(row));
            self.echoed_tokens += self.tokenizer.count_tokens(&line.echo_line) + 1;
            self.rows += 1;
            row_batch.columns.iter().for_each(|c| self.asked[*c] += 1);
        }
        self.audio += audio;
        let rows = row_batch.missing_rows.len() as u64;
        let at = self.shapes.iter().position(|(c, s)| *c == row_batch.columns && s.rows == rows);
        let at = at.unwrap_or_else(|| {
            let shape = RequestShape {
                rows,
                columns: row_batch.columns.len() as u64,
                ..RequestShape::default()
            };
            self.shapes.push((row_batch.columns.clone(), shape));
            self.shapes.len() - 1
        });
        let Some((_, shape)) = self.shapes.get_mut(at) else { return };
        shape.output_limits =
            (planned_envelope, shape.output_limits.1.max(longest), self.max_output);
        shape.add_request(tokenizer, shared, rows_tokens, widest);
        shape.add_audio(tokenizer, audio);
    }

    /// Returns the estimated tokens per cell of each column in an answer. The mean length of the
    /// known cells is used if there are enough of them.
    fn estimate_cells(&self) -> Vec<Estimate> {
        let columns = self.cells.iter().zip(&self.surrounding_tokens).zip(&self.known_cells);
        let estimate = |((cells, surrounding), (tokens, n)): ((&Estimate, &f64), &(u64, u64))| {
            let likely = if *n >= ENOUGH_SAMPLES {
                *tokens as f64 / *n as f64 + surrounding
            } else {
                cells.likely
            };
            Estimate { likely, ..*cells }
        };
        columns.map(estimate).collect()
    }

    /// Returns the tokens of the label or key that an answer repeats for a row, on average.
    fn echoed_per_row(&self) -> f64 {
        self.echoed_tokens as f64 / self.rows.max(1) as f64
    }

    /// Returns the likely number of output tokens for `answered` cells of each column.
    #[must_use]
    pub fn estimate_output(&self, answered: &[u64]) -> f64 {
        let rows = answered.iter().max().copied().unwrap_or(0) as f64;
        let cells = self.estimate_cells();
        let of_cells = cells.iter().zip(answered).map(|(cell, n)| cell.likely * *n as f64);
        rows * self.echoed_per_row() + of_cells.sum::<f64>()
    }

    /// Writes the totals into a plan.
    pub fn write_totals(self, plan: &mut ExpansionPlan) {
        plan.requests = self.requests;
        plan.input_tokens = self.input;
        plan.audio_tokens = self.audio;
        plan.repeated_tokens = self.repeated_tokens;
        let echoed = self.echoed_tokens as f64;
        plan.output_tokens = Estimate::new(echoed * 0.8, echoed, echoed * 1.2);
        let cells = self.estimate_cells();
        for (estimate, asked) in cells.iter().zip(&self.asked) {
            plan.output_tokens.add_times(*estimate, *asked as f64);
        }
        let echoed_per_row = self.echoed_per_row();
        plan.shapes = self.shapes;
        for (columns, shape) in &mut plan.shapes {
            let cells: f64 = columns.iter().filter_map(|c| cells.get(*c)).map(|c| c.likely).sum();
            shape.row_output = echoed_per_row + cells;
        }
    }
}

/// Formats a value as in a CSV answer. The format also fits JSON, where quotes merge with the
/// surrounding tokens (`","` is one token, as `|` is).
fn to_csv_text(value: &CellValue) -> String {
    match value {
        CellValue::Many(items) => {
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
        }
        CellValue::One(one) => one.to_string(),
        CellValue::Nothing => "?".to_owned(),
    }
}

/// Returns the number of tokens around a cell's value: in CSV the comma; in JSON the column's name
/// followed by `":"`, and `","` after the value.
fn count_surrounding_tokens(column: &Column, format: Format, tokenizer: Tokenizer) -> f64 {
    match format {
        Format::Csv => 1.0,
        Format::Json => tokenizer.count_tokens(&column.name) as f64 + 2.0,
    }
}

/// Estimates the tokens of a column's cell in an answer.
fn estimate_cell_tokens(
    expansion: &Expansion,
    at: usize,
    format: Format,
    tokenizer: Tokenizer,
) -> Estimate {
    let Some(column) = expansion.columns.get(at) else { return Estimate::default() };
    let shots: Vec<f64> = expansion
        .shots
        .iter()
        .filter_map(|s| s.cells.get(at))
        .filter(|c| **c != CellValue::Nothing)
        .map(|c| tokenizer.count_tokens(&to_csv_text(c)) as f64)
        .collect();
    let mut cell = estimate_value_tokens(column, tokenizer);
    if column.many.is_some() {
        let max =
            column.values.as_ref().map_or(12.0, |v| (v.values.len() as f64).min(MAX_ITEMS as f64));
        cell = Estimate::new(
            cell.low,
            (cell.likely + 1.0) * LIKELY_ITEMS.min(max),
            (cell.max + 1.0) * max,
        );
    }
    if !shots.is_empty() {
        cell.likely = shots.iter().sum::<f64>() / shots.len() as f64;
        cell.max = cell.max.max(cell.likely);
    }
    let mut surrounding = count_surrounding_tokens(column, format, tokenizer);
    if expansion.evidence.is_some() {
        let items = if column.many.is_some() { LIKELY_ITEMS } else { 1.0 };
        surrounding += QUOTATION_TOKENS * items;
    }
    Estimate::new(cell.low + surrounding, cell.likely + surrounding, cell.max + surrounding)
}

fn estimate_value_tokens(column: &Column, tokenizer: Tokenizer) -> Estimate {
    if let Some(list) = column.values.as_ref().filter(|l| !l.values.is_empty()) {
        let counts: Vec<f64> =
            list.values.iter().map(|v| tokenizer.count_tokens(v) as f64).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let min = counts.iter().copied().fold(f64::INFINITY, f64::min);
        return Estimate::new(min, mean, counts.iter().copied().fold(mean, f64::max));
    }
    let [low, likely, high] = column.kind.token_estimates();
    Estimate::new(low, likely, high)
}
