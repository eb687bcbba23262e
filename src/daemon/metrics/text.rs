//! The Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Metrics, OUTCOMES};
use crate::cell::State;
use crate::daemon::status::DaemonStatus;

impl Metrics {
    /// Returns the text of `/metrics`.
    #[expect(clippy::too_many_lines, reason = "one section for each metric")]
    pub(in crate::daemon) fn format_text(&self, status: &DaemonStatus, clients: usize) -> String {
        let mut out = String::with_capacity(8192);
        let write_head = |out: &mut String, name: &str, metric_type: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {metric_type}");
        };
        write_head(
            &mut out,
            "hqdl_cells",
            "gauge",
            "Cells of an expansion by state, including missing cells.",
        );
        for spec in status.specs.values() {
            for c in spec.columns.iter() {
                let labels = format!(
                    "spec=\"{}\",expansion=\"{}\",column=\"{}\"",
                    escape_label(&spec.name),
                    escape_label(&c.expansion),
                    escape_label(&c.column)
                );
                for state in State::ALL {
                    let (name, n) = (state.name(), c.cells.get(state));
                    let _ = writeln!(out, "hqdl_cells{{{labels},state=\"{name}\"}} {n}");
                }
                let _ = writeln!(out, "hqdl_cells{{{labels},state=\"missing\"}} {}", c.unasked);
            }
        }
        write_head(&mut out, "hqdl_specs", "gauge", "Specs by state.");
        let mut states: BTreeMap<&str, u64> = BTreeMap::new();
        status.specs.values().for_each(|s| *states.entry(s.state_name()).or_default() += 1);
        for (state, n) in states {
            let _ = writeln!(out, "hqdl_specs{{state=\"{state}\"}} {n}");
        }
        write_head(
            &mut out,
            "hqdl_model_requests_total",
            "counter",
            "Requests to models by outcome.",
        );
        for (counter, outcome) in self.outcomes.iter().zip(OUTCOMES) {
            let n = counter.load(Ordering::Relaxed);
            let _ = writeln!(out, "hqdl_model_requests_total{{outcome=\"{outcome}\"}} {n}");
        }
        write_head(&mut out, "hqdl_cells_answered_total", "counter", "Cells answered by models.");
        for (counter, state) in self.cells.iter().zip(State::ALL) {
            let (n, state) = (counter.load(Ordering::Relaxed), state.name());
            let _ = writeln!(out, "hqdl_cells_answered_total{{state=\"{state}\"}} {n}");
        }
        write_head(&mut out, "hqdl_tokens_total", "counter", "Tokens used.");
        for (kind, counter) in [("input", &self.input_tokens), ("output", &self.output_tokens)] {
            let n = counter.load(Ordering::Relaxed);
            let _ = writeln!(out, "hqdl_tokens_total{{kind=\"{kind}\"}} {n}");
        }
        let cost = self.cost.load(Ordering::Relaxed) as f64 / 1e9;
        let cache_hits = self.cache_hits.load(Ordering::Relaxed);
        let mut write_metric = |name: &str, metric_type: &str, help: &str, value: f64| {
            write_head(&mut out, name, metric_type, help);
            let _ = writeln!(out, "{name} {value}");
        };
        write_metric("hqdl_cost_usd_total", "counter", "Cost of the used tokens.", cost);
        write_metric(
            "hqdl_cache_hits_total",
            "counter",
            "Values read from the cache.",
            cache_hits as f64,
        );
        let queued = status.queued as f64;
        write_metric("hqdl_runs_queued", "gauge", "Runs waiting for other runs.", queued);
        let waiting = self.waiting.load(Ordering::Relaxed) as f64;
        write_metric("hqdl_queries_waiting", "gauge", "Queries waiting in the queue.", waiting);
        write_metric(
            "hqdl_clients",
            "gauge",
            "Queries, plans and fills in progress.",
            clients as f64,
        );
        let connections = self.connections.load(Ordering::Relaxed) as f64;
        write_metric("hqdl_connections", "gauge", "Open connections.", connections);
        let streams = self.streams.load(Ordering::Relaxed) as f64;
        write_metric("hqdl_event_streams", "gauge", "Open event streams.", streams);
        let checks = crate::daemon::spec_files::check_count() as f64;
        write_metric("hqdl_file_looks_total", "counter", "Checks of files for changes.", checks);
        let in_flight = self.requests_in_flight.load(Ordering::Relaxed) as f64;
        write_metric(
            "hqdl_model_requests_in_flight",
            "gauge",
            "Requests sent to a model.",
            in_flight,
        );
        if let Some((bytes, files)) = process_stats() {
            write_metric(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory of the process.",
                bytes,
            );
            write_metric("process_open_fds", "gauge", "Open file handles.", files);
        }
        write_head(&mut out, "hqdl_model_seconds", "histogram", "Time until the model's reply.");
        self.request_seconds.write_text(&mut out, "hqdl_model_seconds", "");
        write_head(&mut out, "hqdl_http_seconds", "histogram", "Time until a response begins.");
        for ((route, status), histogram) in
            self.http_seconds.lock().unwrap_or_else(PoisonError::into_inner).iter()
        {
            let labels = format!("route=\"{route}\",status=\"{status}\"");
            histogram.write_text(&mut out, "hqdl_http_seconds", &labels);
        }
        out
    }
}

/// Escapes a label's value.
fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns resident memory in bytes and the number of open file handles, if the system provides
/// them.
fn process_stats() -> Option<(f64, f64)> {
    let pages = std::fs::read_to_string("/proc/self/status").ok()?;
    let kb = pages.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kb: f64 = kb.trim().trim_end_matches(" kB").trim().parse().ok()?;
    Some((kb * 1024.0, std::fs::read_dir("/proc/self/fd").ok()?.count() as f64))
}
