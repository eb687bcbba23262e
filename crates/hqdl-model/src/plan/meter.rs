//! Estimates the tokens of row batches before they are sent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{ENVELOPE, ExpansionPlan, MOST_ITEMS, Range3, RequestShape, RowBatch};
use hqdl_prompt::{Line, PromptFrame};
use hqdl_spec::{Column, Expansion, Format};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::tokens::Tokenizer;

/// Assumed number of items in a cell with several values.
const LIKELY_ITEMS: f64 = 5.0;
/// Number of known cells from which their mean length is used as the estimate.
const ENOUGH_SAMPLES: u64 = 20;

type AskedColumns<'e> = (Option<&'e [usize]>, Vec<usize>);

/// Estimates the cost of one expansion's row batches.
pub struct Meter<'e> {
    expansion: &'e Expansion,
    format: Format,
    tokenizer: Tokenizer,
    /// Tokens of a column's cell in an answer, estimated from the spec.
    cells: Vec<Range3>,
    /// Tokens that surround a column's cell.
    around: Vec<f64>,
    /// Tokens and number of the known cells.
    seen: Vec<(u64, u64)>,
    frames: BTreeMap<AskedColumns<'e>, (u64, PromptFrame)>,
    max_output: u64,
    /// Maximum number of tokens of an image.
    image: u64,
    shapes: Vec<(Vec<usize>, RequestShape)>,
    asked: Vec<u64>,
    /// Tokens of answers outside their cells.
    echoed: u64,
    rows: u64,
    requests: u64,
    input: u64,
    repeated: u64,
}

impl<'e> Meter<'e> {
    /// Creates an estimator for answers in a format.
    #[must_use]
    pub fn new(expansion: &'e Expansion, format: Format, tokenizer: Tokenizer) -> Self {
        let columns = expansion.columns.len();
        // A list of lines is CSV inside JSON.
        let written = |column: usize| {
            if PromptFrame::is_packed(expansion, column, format) { Format::Csv } else { format }
        };
        let around_of = |(at, column)| around(column, written(at), tokenizer);
        let cells = |at: usize| cell_tokens(expansion, at, written(at), tokenizer);
        Self {
            cells: (0..columns).map(cells).collect(),
            around: expansion.columns.iter().enumerate().map(around_of).collect(),
            expansion,
            format,
            tokenizer,
            seen: vec![(0, 0); columns],
            frames: BTreeMap::new(),
            max_output: u64::MAX,
            image: 0,
            shapes: Vec::new(),
            asked: vec![0; columns],
            echoed: 0,
            rows: 0,
            requests: 0,
            input: 0,
            repeated: 0,
        }
    }

    /// Sets the maximum number of tokens of an answer.
    #[must_use]
    pub fn capped(self, max_output: u64) -> Self {
        Self { max_output, ..self }
    }

    /// Sets the maximum number of tokens of an image.
    #[must_use]
    pub fn seeing(self, image: u64) -> Self {
        Self { image, ..self }
    }

    /// Learns the length of answers from a known cell.
    pub fn learn(&mut self, column: usize, value: &CellValue) {
        if let Some((tokens, n)) = self.seen.get_mut(column).filter(|(_, n)| *n < 500) {
            *tokens += self.tokenizer.count(&written(value));
            *n += 1;
        }
    }

    /// Adds a row batch.
    pub fn count(&mut self, cut: &RowBatch) {
        let tokenizer = self.tokenizer;
        let expansion = self.expansion;
        let key = cut.gaps.first().map_or(&[][..], |gap| &gap.row.key);
        let of = (expansion.part_of(key), cut.columns.clone());
        let known = self.frames.contains_key(&of);
        let (frame_tokens, frame) = self.frames.entry(of).or_insert_with(|| {
            let frame = PromptFrame::new(&expansion.asked_by(key), &cut.columns, self.format);
            (frame.tokens(tokenizer), frame)
        });
        let around = frame.planned_output([]);
        let shown: Vec<Cow<'_, Row>> =
            cut.gaps.iter().map(|gap| expansion.shown(&gap.row)).collect();
        let rows: Vec<&Row> = shown.iter().map(AsRef::as_ref).collect();
        let (frame_tokens, header, lines) = if frame.is_single(rows.len()) {
            let prompt = frame.prompt(rows.iter().copied());
            let around = frame.tokens_around(&prompt, tokenizer);
            (around, 0, vec![Line { asked: prompt.user, echoed: String::new() }])
        } else {
            let header = tokenizer.count(&frame.prompt([]).user);
            (*frame_tokens, header, frame.lines(&rows))
        };
        let shared = frame_tokens + header;
        let frame_tokens = frame_tokens + ENVELOPE;
        self.repeated += if known { frame_tokens } else { 0 };
        let (mut rows_tokens, mut widest, mut longest) = (0, 0, 0);
        self.requests += 1;
        self.input += frame_tokens + if header > 0 { tokenizer.count("## Rows\n") + 8 } else { 0 };
        for ((row, line), gap) in rows.iter().zip(lines).zip(&cut.gaps) {
            let images = expansion.images_of(&gap.row).len() as u64 * self.image;
            let tokens = self.tokenizer.count(&line.asked) + 1 + images;
            self.input += tokens;
            rows_tokens += tokens;
            widest = widest.max(tokens);
            longest = longest.max(frame.planned_row(row));
            self.echoed += self.tokenizer.count(&line.echoed) + 1;
            self.rows += 1;
            cut.columns.iter().for_each(|c| self.asked[*c] += 1);
        }
        let rows = cut.gaps.len() as u64;
        let at = self.shapes.iter().position(|(c, s)| *c == cut.columns && s.rows == rows);
        let at = at.unwrap_or_else(|| {
            let shape =
                RequestShape { rows, columns: cut.columns.len() as u64, ..RequestShape::default() };
            self.shapes.push((cut.columns.clone(), shape));
            self.shapes.len() - 1
        });
        let Some((_, shape)) = self.shapes.get_mut(at) else { return };
        shape.outputs = (around, shape.outputs.1.max(longest), self.max_output);
        shape.take(tokenizer, shared, rows_tokens, widest);
    }

    /// Writes the totals into a plan.
    pub fn finish(self, plan: &mut ExpansionPlan) {
        plan.requests = self.requests;
        plan.input_tokens = self.input;
        plan.repeated_tokens = self.repeated;
        let echoed = self.echoed as f64;
        plan.output_tokens = Range3::new(echoed * 0.8, echoed, echoed * 1.2);
        let columns = self.cells.iter().zip(&self.around).zip(&self.asked).zip(&self.seen);
        let mut likely = Vec::new();
        for (((cells, around), asked), (tokens, n)) in columns {
            let mut one = *cells;
            if *n >= ENOUGH_SAMPLES {
                one.likely = *tokens as f64 / *n as f64 + around;
            }
            plan.output_tokens.add(one, *asked as f64);
            likely.push(one.likely);
        }
        let of_row = echoed / self.rows.max(1) as f64;
        plan.shapes = self.shapes;
        for (columns, shape) in &mut plan.shapes {
            let cells: f64 = columns.iter().filter_map(|c| likely.get(*c)).sum();
            shape.row_output = of_row + cells;
        }
    }
}

/// Returns a value as a CSV answer contains it. In JSON, the quotes merge with the surrounding
/// tokens (`","` is one token, as `|` is).
fn written(value: &CellValue) -> String {
    match value {
        CellValue::Many(items) => {
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
        }
        CellValue::One(one) => one.to_string(),
        CellValue::Nothing => "?".to_owned(),
    }
}

/// Returns the number of tokens that surround a cell: the comma, or in JSON the column's name with
/// `":"` after it and `","` after the value.
fn around(column: &Column, format: Format, tokenizer: Tokenizer) -> f64 {
    match format {
        Format::Csv => 1.0,
        Format::Json => tokenizer.count(&column.name) as f64 + 2.0,
    }
}

/// Estimates the tokens of a column's cell in an answer.
fn cell_tokens(expansion: &Expansion, at: usize, format: Format, tokenizer: Tokenizer) -> Range3 {
    let Some(column) = expansion.columns.get(at) else { return Range3::default() };
    let shots: Vec<f64> = expansion
        .shots
        .iter()
        .filter_map(|s| s.cells.get(at))
        .filter(|c| **c != CellValue::Nothing)
        .map(|c| tokenizer.count(&written(c)) as f64)
        .collect();
    let mut cell = one_value(column, tokenizer);
    if column.many.is_some() {
        let most =
            column.values.as_ref().map_or(12.0, |v| (v.values.len() as f64).min(MOST_ITEMS as f64));
        cell = Range3::new(
            cell.low,
            (cell.likely + 1.0) * LIKELY_ITEMS.min(most),
            (cell.most + 1.0) * most,
        );
    }
    if !shots.is_empty() {
        cell.likely = shots.iter().sum::<f64>() / shots.len() as f64;
        cell.most = cell.most.max(cell.likely);
    }
    let around = around(column, format, tokenizer);
    Range3::new(cell.low + around, cell.likely + around, cell.most + around)
}

fn one_value(column: &Column, tokenizer: Tokenizer) -> Range3 {
    if let Some(list) = column.values.as_ref().filter(|l| !l.values.is_empty()) {
        let counts: Vec<f64> = list.values.iter().map(|v| tokenizer.count(v) as f64).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
        return Range3::new(least, mean, counts.iter().copied().fold(mean, f64::max));
    }
    let [few, usual, many] = column.kind.tokens();
    Range3::new(few, usual, many)
}
