//! Groups requests of the same shape, and computes how many of them a budget covers.

use super::{ENVELOPE_TOKENS, Estimate, ExpansionPlan, Plan};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::{SpentAmount, Usage};

/// Ratio of the assumed maximum length of the next answer to the longest recent answer.
pub(crate) const ANSWER_HEADROOM: f64 = 1.5;

/// Requests for the same columns and the same number of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestShape {
    /// Number of requests.
    pub requests: u64,
    /// Rows per request.
    pub rows: u64,
    /// Number of columns per request.
    pub columns: u64,
    /// Maximum output tokens: the part independent of the rows, the part per row, and the limit of
    /// a whole answer.
    pub output_limits: (u64, u64, u64),
    /// Likely output tokens per row.
    pub row_output: f64,
    /// Input tokens that all requests have in common.
    pub(super) shared: u64,
    /// Total input tokens of all rows.
    pub(super) all_rows: u64,
    /// Maximum input tokens: of all rows in a request, of a single row, and of the shared part.
    pub(super) input_limits: (u64, u64, u64),
    /// Maximum input tokens of the recordings in a request, and the total of all requests.
    pub(super) audio: (u64, u64),
    /// Expected number of repetitions of a request, by the figures of earlier requests.
    pub(super) repeated_share: f64,
}

impl RequestShape {
    /// Adds a request; the arguments are the input tokens of its shared part, of all its rows, and
    /// of its longest row.
    pub(super) fn add_request(
        &mut self,
        tokenizer: Tokenizer,
        shared: u64,
        rows: u64,
        widest: u64,
    ) {
        self.requests += 1;
        self.shared = shared;
        self.all_rows += rows;
        let shared_limit = tokenizer.max_prompt_tokens(shared);
        let added_tokens = |tokens| tokenizer.max_prompt_tokens(shared + tokens) - shared_limit;
        let (all, one, _) = self.input_limits;
        self.input_limits =
            (all.max(added_tokens(rows)), one.max(added_tokens(widest)), shared_limit);
    }

    /// Adds the tokens of a request's recordings.
    pub(super) fn add_audio(&mut self, tokenizer: Tokenizer, audio: u64) {
        let (max, all) = self.audio;
        self.audio = (max.max(tokenizer.max_tokens(audio)), all + audio);
    }

    /// Adds `likely` reasoning tokens per request. The answer may then use the whole output limit,
    /// even with few rows. Returns the maximum output tokens of all requests.
    pub(super) fn add_reasoning(&mut self, likely: f64) -> f64 {
        let max = self.output_limits.2;
        self.output_limits = (max, 0, max);
        self.row_output += likely / self.rows.max(1) as f64;
        (self.requests * max) as f64 * (1.0 + self.repeated_share)
    }

    /// Returns the number of cells in a request with `rows` rows.
    fn cell_count(&self, rows: u64) -> u64 {
        self.columns * rows
    }

    /// Returns the maximum input and output tokens of a request with `rows` rows. A run reserves
    /// this much, or less for requests with few rows.
    fn compute_worst_case_tokens(&self, rows: u64) -> (f64, f64) {
        let (all, one, shared_limit) = self.input_limits;
        let (envelope, row, max) = self.output_limits;
        let input = shared_limit + (one * rows).min(all);
        (input as f64, (envelope + row * rows).min(max) as f64)
    }

    /// Returns the likely input and output tokens of a request with `rows` rows.
    fn likely_tokens(&self, rows: u64) -> (f64, f64) {
        let all = (self.requests * self.rows).max(1) as f64;
        let row = self.all_rows as f64 / all;
        let input = (self.shared + ENVELOPE_TOKENS) as f64 + row * rows as f64;
        (input * (1.0 + self.repeated_share), self.row_output * rows as f64)
    }
}

impl ExpansionPlan {
    /// Adds reasoning: `likely` tokens per request, and at most the whole output limit.
    pub fn add_reasoning(&mut self, likely: f64) {
        if likely <= 0.0 {
            return;
        }
        let max: f64 = self.shapes.iter_mut().map(|(_, shape)| shape.add_reasoning(likely)).sum();
        let output = &mut self.output_tokens;
        output.likely = (output.likely + likely * self.requests as f64).min(max);
        output.low = output.low.min(output.likely);
        output.max = max;
    }
}

impl Plan {
    /// Returns the maximum that a run reserves for the plan's requests. A run with this budget can
    /// send all of them, unless it must repeat more of them than earlier runs, or answers exceed
    /// their planned length.
    #[must_use]
    pub fn max_usage(&self) -> Usage {
        let mut sum = Usage::default();
        let shapes = self
            .expansions
            .iter()
            .flat_map(|e| e.shapes.iter().map(|(_, s)| (s, e.price.as_ref())));
        for (shape, price) in shapes {
            let (input, output) = shape.compute_worst_case_tokens(shape.rows);
            let longest = (output * ANSWER_HEADROOM).ceil() as u64;
            let (input, output) = (input as u64, longest.min(shape.output_limits.2));
            let requests = shape.requests as f64 * (1.0 + shape.repeated_share);
            let requests = requests.ceil() as u64;
            sum.requests += requests;
            sum.input_tokens += requests * input;
            sum.output_tokens += requests * output;
            sum.cost_usd += requests as f64
                * SpentAmount::worst_case_with_audio(input, shape.audio.0, output, price).usd;
        }
        sum
    }

    /// Returns the number of cells that the remaining budget likely covers. If it does not cover
    /// all requests, also returns the worst-case cost of the first request that does not fit.
    /// Simulates a run: before each request, the budget must cover its worst-case cost; afterwards,
    /// its likely cost is deducted. A request that does not fit is split.
    #[must_use]
    pub fn affordable_cells(&self) -> (u64, Option<SpentAmount>) {
        let mut left = (
            self.budget_left.usd.unwrap_or(f64::INFINITY),
            self.budget_left.tokens.map_or(f64::INFINITY, |t| t as f64),
        );
        let mut cells = 0;
        let shapes =
            self.expansions.iter().flat_map(|e| e.shapes.iter().map(|(_, shape)| (shape, e.price)));
        for (shape, price) in shapes {
            // The worst case uses the highest rates, as a run's reservation does.
            let cost = |(input, output): (f64, f64), is_worst: bool| {
                let usd = price.map_or(0.0, |price| {
                    let rates = if is_worst {
                        price.find_highest_rates(input as u64)
                    } else {
                        price.find_rates(input as u64)
                    };
                    let (max, all) = shape.audio;
                    let likely = all as f64 / shape.requests.max(1) as f64;
                    let audio = if is_worst { max as f64 } else { likely }.min(input);
                    ((input - audio) * rates.input
                        + audio * rates.audio_input
                        + output * rates.output)
                        / 1e6
                });
                (usd, input + output)
            };
            let (mut rows, mut size) = (shape.requests * shape.rows, shape.rows);
            while rows > 0 {
                size = size.min(rows);
                let worst_case = cost(shape.compute_worst_case_tokens(size), true);
                let likely = cost(shape.likely_tokens(size), false);
                if worst_case.0 > left.0 || worst_case.1 > left.1 {
                    if size == 1 || !self.splits_requests {
                        let next =
                            SpentAmount { usd: worst_case.0, tokens: worst_case.1.ceil() as u64 };
                        return (cells, Some(next));
                    }
                    size = size.div_ceil(2);
                    continue;
                }
                let times = |left: f64, worst_case: f64, likely: f64| {
                    if likely > 0.0 {
                        ((left - worst_case) / likely).floor() + 1.0
                    } else {
                        f64::INFINITY
                    }
                };
                let times = times(left.0, worst_case.0, likely.0).min(times(
                    left.1,
                    worst_case.1,
                    likely.1,
                ));
                let times = times.min((rows / size) as f64);
                left = (left.0 - times * likely.0, left.1 - times * likely.1);
                cells += shape.cell_count(size) * times as u64;
                rows -= size * times as u64;
            }
        }
        (cells, None)
    }
}

impl ExpansionPlan {
    /// Returns the maximum input tokens of the expansion's largest request.
    fn largest_input_tokens(&self) -> u64 {
        let of_shapes = self
            .shapes
            .iter()
            .map(|(_, shape)| shape.compute_worst_case_tokens(shape.rows).0.ceil() as u64);
        match of_shapes.max() {
            // The size of additional requests is unknown.
            Some(largest) if self.extra_input == 0 => largest,
            _ => self.input_tokens + self.extra_input,
        }
    }

    /// Returns the likely cost of the expansion's requests in USD; zero if the price is unknown.
    #[must_use]
    pub fn likely_cost_usd(&self) -> f64 {
        self.cost_usd().likely
    }

    /// Returns the cost of the expansion's requests in USD; zero if the price is unknown.
    pub(super) fn cost_usd(&self) -> Estimate {
        let Some(price) = &self.price else { return Estimate::default() };
        let output = self.output_tokens;
        let rates = price.find_rates(self.input_tokens / self.requests.max(1));
        let audio = self.audio_tokens.min(self.input_tokens) as f64;
        let text = self.input_tokens as f64 - audio;
        let all = text * rates.input + audio * rates.audio_input;
        let highest = price.find_highest_rates(self.largest_input_tokens());
        // Additional requests may contain recordings, too.
        let extra = if audio > 0.0 { highest.audio_input } else { highest.input };
        // At best, the endpoint's cache serves every repeated prefix.
        let best = all - self.repeated_tokens as f64 * (rates.input - rates.cached_input);
        Estimate::new(
            (best + output.low * rates.output) / 1e6,
            (all + output.likely * rates.output) / 1e6,
            (text * highest.input
                + self.extra_input as f64 * extra
                + audio * highest.audio_input
                + output.max * highest.output)
                / 1e6,
        )
    }
}
