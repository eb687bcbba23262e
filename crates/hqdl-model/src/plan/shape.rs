//! Requests of one shape, and how many of them a budget holds.

use super::{ENVELOPE, ExpansionPlan, Plan, Range3};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::Spent;

/// Requests that ask for the same columns of as many rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestShape {
    /// How many there are.
    pub requests: u64,
    /// The rows of each.
    pub rows: u64,
    /// The columns of each.
    pub columns: u64,
    /// The most tokens of an answer without rows, of each row, and of any answer.
    pub outputs: (u64, u64, u64),
    /// Output tokens that a row likely takes.
    pub row_output: f64,
    /// Input tokens that all of them share.
    pub(super) shared: u64,
    /// Input tokens of all rows together.
    pub(super) all_rows: u64,
    /// The most input tokens of all rows of a request, of one row, and what is held
    /// for what is shared.
    pub(super) most: (u64, u64, u64),
}

impl RequestShape {
    /// Counts a request: input tokens that all share, those of its rows, and of the
    /// row that takes the most.
    pub(super) fn take(&mut self, tokenizer: Tokenizer, shared: u64, rows: u64, widest: u64) {
        self.requests += 1;
        self.shared = shared;
        self.all_rows += rows;
        let held = tokenizer.of_prompt_at_most(shared);
        let beyond = |tokens| tokenizer.of_prompt_at_most(shared + tokens) - held;
        let (all, one, _) = self.most;
        self.most = (all.max(beyond(rows)), one.max(beyond(widest)), held);
    }

    /// Counts reasoning, likely so many tokens a request: an answer may have all that it
    /// may have, however few its rows are. Returns the most that all of them may have.
    pub(super) fn reason(&mut self, likely: f64) -> f64 {
        let most = self.outputs.2;
        self.outputs = (most, 0, most);
        self.row_output += likely / self.rows.max(1) as f64;
        (self.requests * most) as f64
    }

    /// Cells of a request for so many rows.
    fn cells(&self, rows: u64) -> u64 {
        self.columns * rows
    }

    /// The most that a request for so many of its rows may take: input, output. It
    /// is what a run holds back, and rather more for requests of few rows.
    fn worst(&self, rows: u64) -> (f64, f64) {
        let (all, one, held) = self.most;
        let (around, row, most) = self.outputs;
        let input = held + (one * rows).min(all);
        (input as f64, (around + row * rows).min(most) as f64)
    }

    /// What a request for so many of its rows likely takes: input, output.
    fn likely(&self, rows: u64) -> (f64, f64) {
        let all = (self.requests * self.rows).max(1) as f64;
        let row = self.all_rows as f64 / all;
        ((self.shared + ENVELOPE) as f64 + row * rows as f64, self.row_output * rows as f64)
    }
}

impl ExpansionPlan {
    /// Counts what the model thinks before it answers: likely so many tokens a request,
    /// and at the most all that an answer may have.
    pub fn reason(&mut self, likely: f64) {
        if likely <= 0.0 {
            return;
        }
        let most: f64 = self.shapes.iter_mut().map(|(_, shape)| shape.reason(likely)).sum();
        let output = &mut self.output_tokens;
        output.likely = (output.likely + likely * self.requests as f64).min(most);
        output.low = output.low.min(output.likely);
        output.most = most;
    }
}

impl Plan {
    /// The cells that likely are asked with what the budget has left, and what the
    /// first request that it does not hold may cost at the most; `None` when it
    /// holds all. It goes as a run does: what a request may cost at the most must
    /// be left before it is sent, and what it did cost is gone afterwards; what is
    /// not held as a whole is asked in parts.
    #[must_use]
    pub fn held(&self) -> (u64, Option<Spent>) {
        let mut left = (
            self.room.usd.unwrap_or(f64::INFINITY),
            self.room.tokens.map_or(f64::INFINITY, |t| t as f64),
        );
        let mut cells = 0;
        let shapes =
            self.expansions.iter().flat_map(|e| e.shapes.iter().map(|(_, shape)| (shape, e.price)));
        for (shape, price) in shapes {
            // The worst at the highest rates, as a run reserves it.
            let cost = |(input, output): (f64, f64), is_worst: bool| {
                let usd = price.map_or(0.0, |price| {
                    let rates = if is_worst {
                        price.highest_rates(input as u64)
                    } else {
                        price.rates(input as u64)
                    };
                    (input * rates.input + output * rates.output) / 1e6
                });
                (usd, input + output)
            };
            let (mut rows, mut size) = (shape.requests * shape.rows, shape.rows);
            while rows > 0 {
                size = size.min(rows);
                let worst = cost(shape.worst(size), true);
                let likely = cost(shape.likely(size), false);
                if worst.0 > left.0 || worst.1 > left.1 {
                    if size == 1 || !self.splits {
                        let next = Spent { usd: worst.0, tokens: worst.1.ceil() as u64 };
                        return (cells, Some(next));
                    }
                    size = size.div_ceil(2);
                    continue;
                }
                let times = |left: f64, worst: f64, likely: f64| {
                    if likely > 0.0 {
                        ((left - worst) / likely).floor() + 1.0
                    } else {
                        f64::INFINITY
                    }
                };
                let times = times(left.0, worst.0, likely.0).min(times(left.1, worst.1, likely.1));
                let times = times.min((rows / size) as f64);
                left = (left.0 - times * likely.0, left.1 - times * likely.1);
                cells += shape.cells(size) * times as u64;
                rows -= size * times as u64;
            }
        }
        (cells, None)
    }
}

impl ExpansionPlan {
    /// Returns the input tokens of its largest request, at the most.
    fn largest_input(&self) -> u64 {
        let of_shapes =
            self.shapes.iter().map(|(_, shape)| shape.worst(shape.rows).0.ceil() as u64);
        match of_shapes.max() {
            // Requests that may come on top have no shape.
            Some(largest) if self.maybe_input == 0 => largest,
            _ => self.input_tokens + self.maybe_input,
        }
    }

    /// What its requests cost, in USD; nothing where there is no price.
    pub(super) fn cost_usd(&self) -> Range3 {
        let Some(price) = &self.price else { return Range3::default() };
        let output = self.output_tokens;
        let rates = price.rates(self.input_tokens / self.requests.max(1));
        let all = self.input_tokens as f64 * rates.input;
        let highest = price.highest_rates(self.largest_input());
        // At best every repeated beginning comes out of the endpoint's cache.
        let best = all - self.repeated_tokens as f64 * (rates.input - rates.cached_input);
        Range3::new(
            (best + output.low * rates.output) / 1e6,
            (all + output.likely * rates.output) / 1e6,
            ((self.input_tokens + self.maybe_input) as f64 * highest.input
                + output.most * highest.output)
                / 1e6,
        )
    }
}
