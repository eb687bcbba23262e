//! Writes metrics in the Prometheus text format.

use std::fmt::{Display, Write};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Metrics, OUTCOMES};
use crate::cell::State;

/// Text of `/metrics`, to which each part of the daemon adds its metrics.
#[derive(Default)]
pub(in crate::daemon) struct MetricsText(pub(in crate::daemon) String);

impl MetricsText {
    /// Begins a metric; its samples follow.
    pub(in crate::daemon) fn begin_metric(&mut self, name: &str, metric_type: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {metric_type}");
    }

    /// Writes a sample. `labels` are already formatted, without braces.
    pub(in crate::daemon) fn write_sample(
        &mut self,
        name: &str,
        labels: &str,
        value: impl Display,
    ) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    /// Writes a metric with a single sample.
    pub(in crate::daemon) fn write_metric(
        &mut self,
        name: &str,
        metric_type: &str,
        help: &str,
        value: f64,
    ) {
        self.begin_metric(name, metric_type, help);
        let _ = writeln!(self.0, "{name} {value}");
    }
}

impl Metrics {
    /// Writes the counters since the daemon's start.
    pub(in crate::daemon) fn write_metrics(&self, clients: usize, out: &mut MetricsText) {
        self.write_model_metrics(out);
        let gauge = |counter: &std::sync::atomic::AtomicI64| counter.load(Ordering::Relaxed) as f64;
        for (name, help, value) in [
            (
                "hqdl_queries_waiting",
                "Queries waiting because too many are running.",
                gauge(&self.waiting),
            ),
            ("hqdl_clients", "Client operations in progress, such as queries.", clients as f64),
            ("hqdl_connections", "Open connections.", gauge(&self.connections)),
            ("hqdl_event_streams", "Open event streams.", gauge(&self.streams)),
        ] {
            out.write_metric(name, "gauge", help, value);
        }
        let checks = crate::daemon::spec_files::file_check_count() as f64;
        out.write_metric(
            "hqdl_file_looks_total",
            "counter",
            "Checks of whether a file has changed.",
            checks,
        );
        let in_flight = gauge(&self.requests_in_flight);
        out.write_metric(
            "hqdl_model_requests_in_flight",
            "gauge",
            "Requests to models that have no reply yet.",
            in_flight,
        );
        if let Some((bytes, files)) = read_process_stats() {
            out.write_metric(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory of the process in bytes.",
                bytes,
            );
            out.write_metric(
                "process_open_fds",
                "gauge",
                "Number of open file descriptors.",
                files,
            );
        }
        self.write_histograms(out);
    }

    fn write_model_metrics(&self, out: &mut MetricsText) {
        let name = "hqdl_model_requests_total";
        out.begin_metric(name, "counter", "Finished requests to models, by outcome.");
        for (counter, outcome) in self.outcomes.iter().zip(OUTCOMES) {
            let labels = format!("outcome=\"{outcome}\"");
            out.write_sample(name, &labels, counter.load(Ordering::Relaxed));
        }
        let name = "hqdl_cells_answered_total";
        out.begin_metric(name, "counter", "Cells answered by models, by state.");
        for (counter, state) in self.cells.iter().zip(State::ALL) {
            let labels = format!("state=\"{}\"", state.name());
            out.write_sample(name, &labels, counter.load(Ordering::Relaxed));
        }
        let name = "hqdl_tokens_total";
        out.begin_metric(
            name,
            "counter",
            "Tokens of requests to models, by kind: input or output.",
        );
        for (kind, counter) in [("input", &self.input_tokens), ("output", &self.output_tokens)] {
            out.write_sample(name, &format!("kind=\"{kind}\""), counter.load(Ordering::Relaxed));
        }
        let cost = self.cost.load(Ordering::Relaxed) as f64 / 1e9;
        out.write_metric(
            "hqdl_cost_usd_total",
            "counter",
            "Cost in USD of requests to models.",
            cost,
        );
        let cache_hits = self.cache_hits.load(Ordering::Relaxed) as f64;
        let help = "Values found in the cache.";
        out.write_metric("hqdl_cache_hits_total", "counter", help, cache_hits);
    }

    fn write_histograms(&self, out: &mut MetricsText) {
        out.begin_metric(
            "hqdl_model_seconds",
            "histogram",
            "Duration in seconds of requests to models.",
        );
        self.request_seconds.write_text(&mut out.0, "hqdl_model_seconds", "");
        out.begin_metric(
            "hqdl_http_seconds",
            "histogram",
            "Time in seconds until the response to an HTTP request begins, by route and status.",
        );
        let http_seconds = self.http_seconds.lock().unwrap_or_else(PoisonError::into_inner);
        for ((route, status), histogram) in http_seconds.iter() {
            let labels = format!("route=\"{route}\",status=\"{status}\"");
            histogram.write_text(&mut out.0, "hqdl_http_seconds", &labels);
        }
    }
}

/// Escapes a label's value.
pub(in crate::daemon) fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns resident memory in bytes and the number of open file handles, if the system provides
/// them.
fn read_process_stats() -> Option<(f64, f64)> {
    let pages = std::fs::read_to_string("/proc/self/status").ok()?;
    let kb = pages.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kb: f64 = kb.trim().trim_end_matches(" kB").trim().parse().ok()?;
    Some((kb * 1024.0, std::fs::read_dir("/proc/self/fd").ok()?.count() as f64))
}
