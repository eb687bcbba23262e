//! Metrics of the daemon.

mod text;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cell::State;
use crate::generate::{Event, Listener};
use crate::model::{Admitting, Model, ModelError, ReplyFuture, UsageGate, openai};
use crate::prompt::Prompt;
use crate::spec::Format;
use crate::usage::Usage;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Outcomes of a model request.
const OUTCOMES: [&str; 5] = ["answered", "refused", "failed", "too_long", "no_answer"];

/// All counters since the start of the daemon.
#[derive(Default)]
pub(super) struct Metrics {
    outcomes: [AtomicU64; 5],
    asking: AtomicI64,
    asked: Histogram,
    cells: [AtomicU64; 7],
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// In billionths of a USD.
    cost: AtomicU64,
    hits: AtomicU64,
    /// Requests that wait for a permit.
    pub(super) waiting: AtomicI64,
    /// Open connections, and open event streams among them.
    pub(super) connections: AtomicI64,
    pub(super) streams: AtomicI64,
    served: Mutex<BTreeMap<(&'static str, u16), Histogram>>,
}

/// Histogram of durations.
#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|b| seconds <= *b) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut sum = 0;
        for (bound, n) in BOUNDS.iter().zip(&self.buckets) {
            sum += n.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {sum}");
        }
        let count = self.count.load(Ordering::Relaxed);
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(out, "{name}_sum{braced} {seconds}\n{name}_count{braced} {count}");
    }
}

impl Metrics {
    /// Counts a client's request.
    pub(super) fn served(&self, route: &'static str, status: u16, took: Duration) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.entry((route, status)).or_default().add(took);
    }

    /// Counts values that were already known.
    pub(super) fn reused(&self, values: u64) {
        self.hits.fetch_add(values, Ordering::Relaxed);
    }

    /// Returns a listener that counts the usage of one run or query.
    pub(super) fn listener(self: &Arc<Self>) -> Listener {
        let metrics = Arc::clone(self);
        // A run reports cumulative usage, so only the difference is counted.
        let before = Mutex::new(Usage::default());
        Arc::new(move |event: &Event| {
            let Event::Kept { cells, usage } = event else { return };
            let mut before = before.lock().unwrap_or_else(PoisonError::into_inner);
            let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
            for (counter, state) in metrics.cells.iter().zip(State::ALL) {
                add(counter, cells.get(state));
            }
            let since = |now: u64, then: u64| now.saturating_sub(then);
            add(&metrics.input_tokens, since(usage.input_tokens, before.input_tokens));
            add(&metrics.output_tokens, since(usage.output_tokens, before.output_tokens));
            let cost = (usage.cost_usd - before.cost_usd).max(0.0) * 1e9;
            add(&metrics.cost, cost.round() as u64);
            // Events of several threads may arrive out of order.
            if usage.requests > before.requests {
                *before = *usage;
            }
        })
    }
}

/// A model whose requests are counted and timed.
pub(super) struct Metered {
    model: Arc<dyn Model>,
    metrics: Arc<Metrics>,
}

impl Metered {
    /// Wraps a model.
    pub(super) fn of(model: Arc<dyn Model>, metrics: &Arc<Metrics>) -> Arc<dyn Model> {
        Arc::new(Self { model, metrics: Arc::clone(metrics) })
    }
}

impl Model for Metered {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn admit<'a>(&'a self, prompt: &'a Prompt) -> Admitting<'a> {
        self.model.admit(prompt)
    }

    fn ask<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            let began = Instant::now();
            self.metrics.asking.fetch_add(1, Ordering::Relaxed);
            let under_way = RequestUnderWay(&self.metrics.asking);
            let reply = self.model.ask(prompt).await;
            drop(under_way);
            self.metrics.asked.add(began.elapsed());
            let outcome = match &reply {
                Ok(_) => 0,
                Err(
                    ModelError::Refused { .. }
                    | ModelError::Filtered(_)
                    | ModelError::Budget(_)
                    | ModelError::Usage(_),
                ) => 1,
                Err(
                    ModelError::Passing { .. }
                    | ModelError::Unfinished(_)
                    | ModelError::NoConnection { .. },
                ) => 2,
                Err(ModelError::TooLong(_)) => 3,
                Err(ModelError::NoAnswer(_) | ModelError::NoImages { .. }) => 4,
            };
            self.metrics.outcomes[outcome].fetch_add(1, Ordering::Relaxed);
            reply
        })
    }

    fn rows_at_most(&self) -> Option<u32> {
        self.model.rows_at_most()
    }

    fn remarks(&self) -> Vec<String> {
        self.model.remarks()
    }

    fn repeats_itself(&self) -> bool {
        self.model.repeats_itself()
    }

    fn answers_whole_rows(&self) -> bool {
        self.model.answers_whole_rows()
    }

    fn batches(&self) -> Option<&openai::Endpoint> {
        self.model.batches()
    }

    fn bills(&self) -> bool {
        self.model.bills()
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        self.model.usage_gate()
    }

    fn note_usage(&self, is_plausible: bool) {
        self.model.note_usage(is_plausible);
    }

    fn finds_by_prompt(&self) -> bool {
        self.model.finds_by_prompt()
    }

    fn format(&self) -> Format {
        self.model.format()
    }

    fn other(&self, name: &str) -> Option<Arc<dyn Model>> {
        self.model.other(name).map(|other| Self::of(other, &self.metrics))
    }
}

/// Increments a gauge, and decrements it on drop.
pub(super) struct Counted(Arc<Metrics>, fn(&Metrics) -> &AtomicI64);

impl Counted {
    pub(super) fn of(metrics: &Arc<Metrics>, gauge: fn(&Metrics) -> &AtomicI64) -> Self {
        gauge(metrics).fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(metrics), gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a request in flight until it is dropped, including requests whose caller gave up.
struct RequestUnderWay<'a>(&'a AtomicI64);

impl Drop for RequestUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
