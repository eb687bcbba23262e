//! Metrics of the daemon.

pub(in crate::daemon) mod text;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cell::State;
use crate::generate::{Event, Listener};
use crate::model::batch::BatchApi;
use crate::model::{Model, ModelError, PermitFuture, ReplyFuture, UsageGate, WaitFuture};
use crate::prompt::Prompt;
use crate::spec::Format;
use crate::usage::Usage;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Outcomes of a model request.
const OUTCOMES: [&str; 5] = ["answered", "refused", "failed", "too_long", "no_answer"];

/// Counters since the daemon's start.
#[derive(Default)]
pub(super) struct Metrics {
    outcomes: [AtomicU64; 5],
    requests_in_flight: AtomicI64,
    request_seconds: Histogram,
    cells: [AtomicU64; 7],
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// Cost in billionths of a dollar.
    cost: AtomicU64,
    cache_hits: AtomicU64,
    /// Requests that wait for a permit.
    pub(super) waiting: AtomicI64,
    /// Open connections; `streams` counts the event streams among them.
    pub(super) connections: AtomicI64,
    pub(super) streams: AtomicI64,
    http_seconds: Mutex<BTreeMap<(&'static str, u16), Histogram>>,
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

    fn write_text(&self, out: &mut String, name: &str, labels: &str) {
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
    /// Records the duration of an HTTP request, by route and status.
    pub(super) fn record_request(&self, route: &'static str, status: u16, took: Duration) {
        let mut http_seconds = self.http_seconds.lock().unwrap_or_else(PoisonError::into_inner);
        http_seconds.entry((route, status)).or_default().add(took);
    }

    /// Counts values that were already known.
    pub(super) fn count_reused_values(&self, values: u64) {
        self.cache_hits.fetch_add(values, Ordering::Relaxed);
    }

    /// Returns a listener that counts the cells and the usage of one run or query, and logs its
    /// warnings.
    pub(super) fn new_usage_listener(self: &Arc<Self>) -> Listener {
        let metrics = Arc::clone(self);
        // A run reports cumulative usage, so count only the difference.
        let before = Mutex::new(Usage::default());
        Arc::new(move |event: &Event| {
            if let Event::Warning(message) = event {
                tracing::warn!("{message}");
            }
            let Event::Stored { cells, usage } = event else { return };
            let mut before = before.lock().unwrap_or_else(PoisonError::into_inner);
            let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
            for (counter, state) in metrics.cells.iter().zip(State::ALL) {
                add(counter, cells.get(state));
            }
            let difference = |now: u64, then: u64| now.saturating_sub(then);
            add(&metrics.input_tokens, difference(usage.input_tokens, before.input_tokens));
            add(&metrics.output_tokens, difference(usage.output_tokens, before.output_tokens));
            let cost = (usage.cost_usd - before.cost_usd).max(0.0) * 1e9;
            add(&metrics.cost, cost.round() as u64);
            // Events from several threads may arrive out of order.
            if usage.requests > before.requests {
                *before = *usage;
            }
        })
    }
}

/// A model wrapper that counts and times requests.
pub(super) struct MeteredModel {
    model: Arc<dyn Model>,
    metrics: Arc<Metrics>,
}

impl MeteredModel {
    pub(super) fn wrap_model(model: Arc<dyn Model>, metrics: &Arc<Metrics>) -> Arc<dyn Model> {
        Arc::new(Self { model, metrics: Arc::clone(metrics) })
    }
}

// Forward every method: a default would replace the wrapped model's own implementation.
#[deny(clippy::missing_trait_methods)]
impl Model for MeteredModel {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn remaining_wait(&self) -> WaitFuture<'_> {
        self.model.remaining_wait()
    }

    fn fixes_row_count(&self) -> bool {
        self.model.fixes_row_count()
    }

    fn acquire_permit<'a>(&'a self, prompt: &'a Prompt) -> PermitFuture<'a> {
        self.model.acquire_permit(prompt)
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            let began = Instant::now();
            self.metrics.requests_in_flight.fetch_add(1, Ordering::Relaxed);
            let in_flight = InFlightGuard(&self.metrics.requests_in_flight);
            let reply = self.model.send_prompt(prompt).await;
            drop(in_flight);
            self.metrics.request_seconds.add(began.elapsed());
            let outcome = match &reply {
                Ok(_) => 0,
                Err(
                    ModelError::Refused { .. }
                    | ModelError::Filtered(_)
                    | ModelError::Budget(_)
                    | ModelError::Usage(_),
                ) => 1,
                Err(
                    ModelError::Temporary { .. }
                    | ModelError::Unfinished(_)
                    | ModelError::NoConnection { .. },
                ) => 2,
                Err(ModelError::TooLong(_)) => 3,
                Err(ModelError::NoAnswer(_) | ModelError::NoMedia { .. }) => 4,
            };
            self.metrics.outcomes[outcome].fetch_add(1, Ordering::Relaxed);
            reply
        })
    }

    fn max_rows(&self) -> Option<u32> {
        self.model.max_rows()
    }

    fn take_warnings(&self) -> Vec<String> {
        self.model.take_warnings()
    }

    fn is_deterministic(&self) -> bool {
        self.model.is_deterministic()
    }

    fn answers_whole_rows(&self) -> bool {
        self.model.answers_whole_rows()
    }

    fn batch_api(&self) -> Option<Box<dyn BatchApi + '_>> {
        self.model.batch_api()
    }

    fn is_billed(&self) -> bool {
        self.model.is_billed()
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        self.model.usage_gate()
    }

    fn record_usage(&self, is_plausible: bool) {
        self.model.record_usage(is_plausible);
    }

    fn looks_up_by_prompt(&self) -> bool {
        self.model.looks_up_by_prompt()
    }

    fn answer_format(&self) -> Format {
        self.model.answer_format()
    }

    fn find_named_model(&self, name: &str) -> Option<Arc<dyn Model>> {
        self.model.find_named_model(name).map(|other| Self::wrap_model(other, &self.metrics))
    }
}

/// Increments a gauge, and decrements it on drop.
pub(super) struct GaugeGuard(Arc<Metrics>, fn(&Metrics) -> &AtomicI64);

impl GaugeGuard {
    pub(super) fn increment(metrics: &Arc<Metrics>, gauge: fn(&Metrics) -> &AtomicI64) -> Self {
        gauge(metrics).fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(metrics), gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.1(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a request as in flight until the guard is dropped, even if the caller has given up.
struct InFlightGuard<'a>(&'a AtomicI64);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
