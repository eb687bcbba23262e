//! What is to be asked: missing cells cut into batches, with tokens, price and
//! time. A plan is a value one can print; making one asks nothing.

mod pace;
mod room;
mod shape;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

pub use self::pace::{Pace, reasoning};
pub use self::room::{Beyond, Room};
pub use self::shape::Shape;
use hqdl_facts::Reason;
use hqdl_prompt::Frame;
use hqdl_spec::{Column, Expansion, Format, Limits, PriceTable, Type};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::Entity;
use hqdl_values::tokens::Tokenizer;

/// Tokens that the message envelope of a chat request takes.
const ENVELOPE: u64 = 11;
/// Different sets of missing columns that may be collected side by side; past
/// this the fullest batch goes out early, so that memory stays bounded.
const OPEN_BATCHES: usize = 64;
/// Seconds within which a batch is answered.
const BATCH_SECONDS: f64 = 24.0 * 60.0 * 60.0;
/// Values of a list that a model is taken to give at the most.
pub const MOST_ITEMS: u64 = 15;
/// Values of a list that a model is taken to give when nothing is known.
const LIKELY_ITEMS: f64 = 5.0;
/// Cells after which a mean of earlier answers is taken for the next ones.
const ENOUGH_SAMPLES: u64 = 20;

/// A row that lacks some cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Gap {
    /// Its key and context.
    pub row: Row,
    /// Whom it is about.
    pub entity: Entity,
}

/// Rows that are asked about together: they lack the same columns, and are
/// shown with the same part of the key.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    /// Positions of the columns asked for.
    pub columns: Vec<usize>,
    /// Positions of all columns that their sources ask for: what a recording
    /// of whole rows answers.
    pub whole: Vec<usize>,
    /// The rows.
    pub gaps: Vec<Gap>,
}

/// Cuts gaps into batches as they come.
#[derive(Debug)]
pub struct Batcher<'e> {
    expansion: &'e Expansion,
    rows: usize,
    open: BTreeMap<Lacking<'e>, Vec<Gap>>,
}

/// The columns asked for, the whole row's, and the part of the key that the rows
/// are shown with.
type Lacking<'e> = (Vec<usize>, Vec<usize>, Option<&'e [usize]>);

impl<'e> Batcher<'e> {
    /// Batches of at most `rows` rows of an expansion.
    #[must_use]
    pub fn new(expansion: &'e Expansion, rows: u32) -> Self {
        Self { expansion, rows: rows.max(1) as usize, open: BTreeMap::new() }
    }

    /// Takes a gap in; gives a batch when one is full.
    pub fn push(&mut self, columns: Vec<usize>, whole: Vec<usize>, gap: Gap) -> Option<Cut> {
        let lacking = (columns, whole, self.expansion.part_of(&gap.row.key));
        let gaps = match self.open.get_mut(&lacking) {
            Some(gaps) => gaps,
            None => self.open.entry(lacking.clone()).or_default(),
        };
        gaps.push(gap);
        if gaps.len() >= self.rows {
            return self.take(&lacking);
        }
        if self.open.len() > OPEN_BATCHES {
            let fullest = self.open.iter().max_by_key(|(_, g)| g.len()).map(|(c, _)| c.clone())?;
            return self.take(&fullest);
        }
        None
    }

    /// The batches that did not fill up.
    #[must_use]
    pub fn finish(self) -> Vec<Cut> {
        let cut = |((columns, whole, _), gaps)| Cut { columns, whole, gaps };
        self.open.into_iter().map(cut).collect()
    }

    fn take(&mut self, lacking: &Lacking<'e>) -> Option<Cut> {
        let gaps = self.open.remove(lacking)?;
        let (columns, whole, _) = lacking.clone();
        Some(Cut { columns, whole, gaps })
    }
}

/// A number as low, likely and most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Range3 {
    /// At least about this.
    pub low: f64,
    /// Probably this.
    pub likely: f64,
    /// Hardly more than this.
    pub most: f64,
}

impl Range3 {
    fn new(low: f64, likely: f64, most: f64) -> Self {
        Self { low, likely, most }
    }

    /// Adds `n` times another.
    pub fn add(&mut self, other: Self, n: f64) {
        self.low += other.low * n;
        self.likely += other.likely * n;
        self.most += other.most * n;
    }
}

/// What one expansion lacks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpansionPlan {
    /// Its name.
    pub name: String,
    /// The model that is asked.
    pub model: String,
    /// What is paid for its requests, in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Its entities.
    pub keys: u64,
    /// Rows published whose key is in no source any more.
    pub orphaned: u64,
    /// Its columns, in the spec's order.
    pub columns: Vec<ColumnPlan>,
    /// Requests it takes.
    pub requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Those of them that repeat an earlier request's beginning.
    pub repeated_tokens: u64,
    /// Input tokens that may come on top, at the most.
    pub maybe_input: u64,
    /// Output tokens.
    pub output_tokens: Range3,
    /// Its requests, by the columns they ask for and their rows.
    pub shapes: Vec<(Vec<usize>, Shape)>,
}

/// What one column lacks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnPlan {
    /// Its name.
    pub name: String,
    /// Cells that are known.
    pub known: u64,
    /// Cells that a person has overridden.
    pub overridden: u64,
    /// Cells to be asked, by reason.
    pub missing: BTreeMap<Reason, u64>,
}

impl ColumnPlan {
    /// Cells to be asked.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.missing.values().sum()
    }
}

/// What a run would ask.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Expansion by expansion.
    pub expansions: Vec<ExpansionPlan>,
    /// Whether tokens were counted by the model's own tokenizer.
    pub counted: bool,
    /// Whether there is a price.
    pub priced: bool,
    /// Price in USD.
    pub cost_usd: Range3,
    /// What the budget has left.
    pub room: Room,
    /// Time under the limits, in seconds.
    pub seconds: f64,
    /// Whether a request that the budget does not hold is asked in parts.
    pub splits: bool,
}

impl Plan {
    /// Cells to be asked.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.expansions.iter().flat_map(|e| &e.columns).map(ColumnPlan::cells).sum()
    }

    /// Requests to be sent.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.expansions.iter().map(|e| e.requests).sum()
    }

    /// Input tokens.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens).sum()
    }

    /// Input tokens at the most.
    #[must_use]
    pub fn most_input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens + e.maybe_input).sum()
    }

    /// Output tokens.
    #[must_use]
    pub fn output_tokens(&self) -> Range3 {
        let mut sum = Range3::default();
        self.expansions.iter().for_each(|e| sum.add(e.output_tokens, 1.0));
        sum
    }

    /// Puts a price and a time on the tokens: none where there is no pace, since
    /// nobody is waited for.
    pub fn price(&mut self, limits: &Limits, pace: Option<Pace>) {
        let (input, output) = (self.input_tokens() as f64, self.output_tokens());
        self.priced = self.expansions.iter().all(|e| e.price.is_some());
        self.splits = true;
        self.cost_usd = Range3::default();
        self.expansions.iter().for_each(|e| self.cost_usd.add(e.cost_usd(), 1.0));
        let requests = self.requests() as f64;
        let per_minute =
            |used: f64, limit: Option<u32>| limit.map_or(0.0, |l| used / f64::from(l) * 60.0);
        self.seconds = pace.map_or(0.0, |pace| {
            let at_once = requests.min(f64::from(limits.concurrency)).max(1.0);
            (pace.seconds(requests, output.likely) / at_once)
                .max(per_minute(requests, limits.requests_per_minute))
                .max(per_minute(input + output.likely, limits.tokens_per_minute))
        });
    }

    /// Takes the price and the time of the Batch API for those of live requests.
    pub fn batch(&mut self, limits: &Limits) {
        for expansion in &mut self.expansions {
            expansion.price = expansion.price.as_ref().map(PriceTable::batched);
        }
        self.price(limits, None);
        self.splits = false;
        self.seconds = BATCH_SECONDS;
    }

    /// As the contract of `plan --json`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let output = self.output_tokens();
        let expansions: Vec<Json> = self
            .expansions
            .iter()
            .map(|e| {
                let columns: Vec<Json> = e
                    .columns
                    .iter()
                    .map(|c| {
                        let missing: serde_json::Map<String, Json> =
                            Reason::ALL.iter().map(|r| (r.name().to_owned(), c.missing.get(r).copied().unwrap_or(0).into())).collect();
                        json!({ "column": c.name, "cells": c.cells(), "known": c.known, "overridden": c.overridden, "reasons": missing })
                    })
                    .collect();
                json!({
                    "expansion": e.name, "model": e.model, "keys": e.keys, "orphaned": e.orphaned, "columns": columns,
                    "requests": e.requests, "input_tokens": e.input_tokens,
                    "output_tokens": e.output_tokens.likely.round() as u64,
                })
            })
            .collect();
        json!({
            "expansions": expansions,
            "budget": self.budget_json(),
            "totals": {
                "cells": self.cells(), "requests": self.requests(), "input_tokens": self.input_tokens(),
                "output_tokens": output.likely.round() as u64,
                "cost_usd": { "low": self.cost_usd.low, "likely": self.cost_usd.likely, "most": self.cost_usd.most },
                "seconds": self.seconds, "tokens_counted": self.counted,
            },
        })
    }
}

type Asked<'e> = (Option<&'e [usize]>, Vec<usize>);

/// Counts what the batches of one expansion cost.
pub struct Meter<'e> {
    expansion: &'e Expansion,
    format: Format,
    tokenizer: Tokenizer,
    /// Tokens a column's cell takes in an answer, as far as the spec tells.
    cells: Vec<Range3>,
    /// Tokens around a column's cell.
    around: Vec<f64>,
    /// Tokens and number of the cells known already.
    seen: Vec<(u64, u64)>,
    frames: BTreeMap<Asked<'e>, (u64, Frame)>,
    max_output: u64,
    shapes: Vec<(Vec<usize>, Shape)>,
    asked: Vec<u64>,
    /// Tokens of answers beside their cells.
    echoed: u64,
    rows: u64,
    requests: u64,
    input: u64,
    repeated: u64,
}

impl<'e> Meter<'e> {
    /// A meter for answers in some format.
    #[must_use]
    pub fn new(expansion: &'e Expansion, format: Format, tokenizer: Tokenizer) -> Self {
        let columns = expansion.columns.len();
        Self {
            cells: (0..columns).map(|c| cell_tokens(expansion, c, format, tokenizer)).collect(),
            around: expansion.columns.iter().map(|c| around(c, format, tokenizer)).collect(),
            expansion,
            format,
            tokenizer,
            seen: vec![(0, 0); columns],
            frames: BTreeMap::new(),
            max_output: u64::MAX,
            shapes: Vec::new(),
            asked: vec![0; columns],
            echoed: 0,
            rows: 0,
            requests: 0,
            input: 0,
            repeated: 0,
        }
    }

    /// The same, of answers that may have so many tokens at the most.
    #[must_use]
    pub fn capped(self, max_output: u64) -> Self {
        Self { max_output, ..self }
    }

    /// Learns from a cell that is known how long answers are.
    pub fn learn(&mut self, column: usize, value: &CellValue) {
        if let Some((tokens, n)) = self.seen.get_mut(column).filter(|(_, n)| *n < 500) {
            *tokens += self.tokenizer.count(&written(value));
            *n += 1;
        }
    }

    /// Counts a batch.
    pub fn count(&mut self, cut: &Cut) {
        let tokenizer = self.tokenizer;
        let expansion = self.expansion;
        let key = cut.gaps.first().map_or(&[][..], |gap| &gap.row.key);
        let of = (expansion.part_of(key), cut.columns.clone());
        let known = self.frames.contains_key(&of);
        let (frame_tokens, frame) = self.frames.entry(of).or_insert_with(|| {
            let frame = Frame::new(&expansion.asked_by(key), &cut.columns, self.format);
            (frame.tokens(tokenizer), frame)
        });
        let around = frame.planned_output([]);
        let user = tokenizer.count(&frame.prompt([]).user);
        let shared = *frame_tokens + user;
        let frame_tokens = *frame_tokens + ENVELOPE;
        self.repeated += if known { frame_tokens } else { 0 };
        let (mut rows_tokens, mut widest, mut longest) = (0, 0, 0);
        self.requests += 1;
        self.input += frame_tokens + self.tokenizer.count("## Rows\n") + 8;
        let shown: Vec<Cow<'_, Row>> =
            cut.gaps.iter().map(|gap| expansion.shown(&gap.row)).collect();
        let rows: Vec<&Row> = shown.iter().map(AsRef::as_ref).collect();
        for (row, line) in rows.iter().zip(frame.lines(&rows)) {
            let tokens = self.tokenizer.count(&line.asked) + 1;
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
            let shape = Shape { rows, columns: cut.columns.len() as u64, ..Shape::default() };
            self.shapes.push((cut.columns.clone(), shape));
            self.shapes.len() - 1
        });
        let Some((_, shape)) = self.shapes.get_mut(at) else { return };
        shape.outputs = (around, shape.outputs.1.max(longest), self.max_output);
        shape.take(tokenizer, shared, rows_tokens, widest);
    }

    /// Writes the sums into a plan.
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

/// A value as a csv answer writes it; in JSON the quotes join what is around
/// (`","` is one token, as `|` is).
fn written(value: &CellValue) -> String {
    match value {
        CellValue::Many(items) => {
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
        }
        CellValue::One(one) => one.to_string(),
        CellValue::Nothing => "?".to_owned(),
    }
}

/// Tokens around a cell: the comma, or in JSON the column's name with `":"`
/// after it and `","` after the value.
fn around(column: &Column, format: Format, tokenizer: Tokenizer) -> f64 {
    match format {
        Format::Csv => 1.0,
        Format::Json => tokenizer.count(&column.name) as f64 + 2.0,
    }
}

/// Tokens that a cell of a column takes in an answer.
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
    match column.kind {
        Type::Text => Range3::new(1.0, 4.0, 24.0),
        Type::Integer => Range3::new(1.0, 2.0, 4.0),
        Type::Real => Range3::new(1.0, 4.0, 7.0),
        Type::Boolean => Range3::new(1.0, 1.0, 1.0),
        Type::Date => Range3::new(1.0, 6.0, 6.0),
        Type::Url => Range3::new(6.0, 14.0, 40.0),
    }
}
