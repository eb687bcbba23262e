//! Shows the progress of a command: a bar on a terminal, plain lines otherwise (both on stderr), or
//! JSON events on stdout with `--json`.

use std::collections::{BTreeSet, HashMap};
use std::io::{IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{
    HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState as BarState, ProgressStyle,
};
use serde_json::json;

use super::OutputOptions;
use crate::format::{format_count, format_thousands, format_usd};
use crate::generate::{Event, Listener};
use crate::usage::Usage;

/// Prints a line on stdout. If this fails, the run continues, so that no answer is lost. The report at
/// its end then fails.
macro_rules! print_line {
    ($($text:tt)*) => {{
        let _ = writeln!(anstream::stdout(), $($text)*);
    }};
}
/// Prints a line on stderr, if possible.
macro_rules! print_note {
    ($($text:tt)*) => {{
        let _ = writeln!(anstream::stderr(), $($text)*);
    }};
}

/// Interval between plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which the bar's elapsed time is redrawn.
const TICK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of distinct error messages of failed requests to print.
const MAX_FAILURES: usize = 3;

/// Kind of work that the display reports on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgressKind {
    /// A run that fills tables.
    Fill,
    /// A query, which asks the model in passes.
    Query,
}

impl ProgressKind {
    /// Returns the noun for a unit of this work.
    fn noun(self) -> &'static str {
        match self {
            Self::Fill => "cell",
            Self::Query => "value",
        }
    }

    /// Returns advice for a prompt that is too long for the model.
    fn length_advice(self) -> &'static str {
        match self {
            Self::Fill => "show it fewer columns, less `context` or less `evidence`",
            Self::Query => "select fewer rows, or lower `context_tokens` in [limits]",
        }
    }
}

/// Handle of a progress display.
pub struct Progress {
    bar: ProgressBar,
    state: Arc<Mutex<ProgressState>>,
}

struct ProgressState {
    began: Instant,
    last_line_at: Instant,
    total: u64,
    done: u64,
    failures: PrintedFailures,
    /// Last printed line of each batch.
    polled: HashMap<String, String>,
}

/// Messages of failed requests that were already printed.
#[derive(Default)]
struct PrintedFailures(BTreeSet<String>);

impl PrintedFailures {
    /// Returns true if a message should be printed: it is new, and fewer than [`MAX_FAILURES`] were
    /// printed.
    fn record_if_new(&mut self, message: &str) -> bool {
        self.0.len() < MAX_FAILURES && self.0.insert(message.to_owned())
    }
}

/// Adds advice to the message about a prompt that is too long for the model.
fn add_length_advice(message: &str, advice: &str) -> String {
    if message.starts_with("the prompt is too long") {
        format!("{message} ({advice}, or use another model)")
    } else {
        message.to_owned()
    }
}

impl Progress {
    /// Returns a progress display and the listener that updates it.
    pub fn new(output_options: OutputOptions) -> (Self, Listener) {
        Self::with_kind(output_options, ProgressKind::Fill)
    }

    fn with_kind(output_options: OutputOptions, kind: ProgressKind) -> (Self, Listener) {
        // Hide the bar until the run has cells to request.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let has_bar =
            !output_options.quiet && !output_options.json && std::io::stderr().is_terminal();
        // A query has no ETA, because the number of values that later passes need is unknown.
        let eta = if kind == ProgressKind::Fill { ", ETA {eta}" } else { "" };
        let style = ProgressStyle::with_template(&format!(
            "{{bar:20}} {{percent:>3}}% {{pos}}/{{len}} {}s, {{msg}}, {{elapsed}}{eta}",
            kind.noun()
        ));
        if let Ok(style) = style {
            bar.set_style(style.with_key("eta", write_eta));
        }
        let now = Instant::now();
        let state = Arc::new(Mutex::new(ProgressState {
            began: now,
            last_line_at: now,
            total: 0,
            done: 0,
            failures: PrintedFailures::default(),
            polled: HashMap::new(),
        }));
        let progress = Self { bar: bar.clone(), state: Arc::clone(&state) };
        let listener: Listener = Arc::new(move |event: &Event| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            show_event(event, &mut state, &bar, (kind, has_bar), output_options);
        });
        (progress, listener)
    }

    /// Returns a listener for a query. On a terminal, it shows a bar while the model is asked, and
    /// removes the bar before the rows. Otherwise it prints failures, and the progress of a query that
    /// takes long.
    pub fn new_query_listener(output_options: OutputOptions) -> Listener {
        // With --json, stdout contains the rows, and stderr has the same lines as without it.
        Self::with_kind(OutputOptions { json: false, ..output_options }, ProgressKind::Query).1
    }

    /// Ends the display; the bar stays visible.
    pub fn finish(&self) {
        if self.bar.length().unwrap_or(0) > 0 {
            self.bar.abandon();
        }
    }

    /// Returns the number of seconds since the command began.
    pub fn elapsed_seconds(&self) -> f64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).began.elapsed().as_secs_f64()
    }
}

/// Writes the remaining time, which is unknown until the first answer.
fn write_eta(state: &BarState, out: &mut dyn std::fmt::Write) {
    let _ = match state.pos() {
        0 => write!(out, "unknown"),
        _ => write!(out, "{:#}", HumanDuration(state.eta())),
    };
}

fn show_event(
    event: &Event,
    state: &mut ProgressState,
    bar: &ProgressBar,
    (kind, has_bar): (ProgressKind, bool),
    output_options: OutputOptions,
) {
    let plain = !output_options.quiet && !output_options.json && !has_bar;
    match event {
        Event::Begin { expansion, cells } => {
            state.total += cells;
            bar.set_length(state.total);
            if has_bar && bar.is_finished() {
                // A further pass of a query.
                bar.reset();
                bar.set_position(state.done);
                bar.enable_steady_tick(TICK_INTERVAL);
            } else if has_bar && bar.is_hidden() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.reset_elapsed();
                bar.set_message("waiting for the first answer");
                bar.enable_steady_tick(TICK_INTERVAL);
            }
            if output_options.json {
                print_line!("{}", event.to_json());
            } else if plain && kind == ProgressKind::Fill {
                print_note!("{expansion}: {} to ask", format_count(*cells, "cell"));
            }
        }
        Event::Stored { cells, usage } => {
            state.done += cells.total();
            let rate = state.done as f64 / state.began.elapsed().as_secs_f64().max(1e-3);
            bar.set_message(format!(
                "{}, {} {}s/s",
                format_usage(usage),
                format_thousands(rate as u64),
                kind.noun()
            ));
            bar.set_position(state.done);
            if output_options.json {
                let line = json!({
                    "event": "kept", "cells": cells.to_json(), "done": state.done, "total": state.total,
                    "requests": usage.requests, "input_tokens": usage.input_tokens,
                    "output_tokens": usage.output_tokens, "cost_usd": usage.cost_usd,
                });
                print_line!("{line}");
            } else if plain && state.last_line_at.elapsed() >= LINE_INTERVAL {
                state.last_line_at = Instant::now();
                print_note!(
                    "{}/{} {}s, {}",
                    state.done,
                    state.total,
                    kind.noun(),
                    format_usage(usage)
                );
            }
        }
        Event::Submitted { batch, requests } => {
            let text = format!("{batch}: submitted, {}", format_count(*requests, "request"));
            print_event(output_options, bar, event, &text);
        }
        Event::Polled { batch, status, completed, failed, requests } => {
            let text = format!(
                "{batch}: {status}, {} of {} answered{}",
                format_thousands(*completed),
                format_count(*requests, "request"),
                if *failed > 0 {
                    format!(", {} failed", format_thousands(*failed))
                } else {
                    String::new()
                }
            );
            // A batch is polled for up to a day, so print only changes.
            if output_options.json || state.polled.get(batch) != Some(&text) {
                print_event(output_options, bar, event, &text);
                state.polled.insert(batch.clone(), text);
            }
        }
        Event::Collected { batch, answered, failed, .. } => {
            let text = format!(
                "{batch}: collected, {} answered, {} unanswered",
                format_thousands(*answered),
                format_thousands(*failed)
            );
            print_event(output_options, bar, event, &text);
        }
        Event::Failed(message) => {
            let is_new = state.failures.record_if_new(message);
            if output_options.json {
                print_line!("{}", event.to_json());
            } else if !output_options.quiet && is_new {
                let message = add_length_advice(message, kind.length_advice());
                bar.suspend(|| print_note!("failed: {message}"));
            }
        }
        // The rows of a query are printed after its last pass.
        Event::PassEnded => bar.finish_and_clear(),
        Event::Warning(message) => {
            if output_options.json {
                print_line!("{}", event.to_json());
            }
            if !output_options.quiet && !output_options.json {
                bar.suspend(|| print_note!("note: {message}"));
            }
        }
    }
}

/// Prints a line or the JSON event, depending on the output options.
fn print_event(output_options: OutputOptions, bar: &ProgressBar, event: &Event, text: &str) {
    if output_options.json {
        print_line!("{}", event.to_json());
    } else if !output_options.quiet {
        bar.suspend(|| print_note!("{text}"));
    }
}

fn format_usage(usage: &Usage) -> String {
    format!(
        "{}, {}, {}",
        format_count(usage.requests, "request"),
        format_count(usage.input_tokens + usage.output_tokens, "token"),
        format_usd(usage.cost_usd)
    )
}

/// Returns the notes in parentheses after a space, or nothing if there are none.
pub fn parenthesize_notes<S: std::borrow::Borrow<str>>(notes: &[S]) -> String {
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) }
}

/// Formats seconds for the terminal.
pub fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{State, Tally};

    /// A query has one bar for all of its passes. It disappears when a pass ends.
    #[test]
    fn the_bar_of_a_query_ends_with_each_pass() {
        let bar = ProgressBar::hidden();
        let now = Instant::now();
        let mut state = ProgressState {
            began: now,
            last_line_at: now,
            total: 0,
            done: 0,
            failures: PrintedFailures::default(),
            polled: HashMap::new(),
        };
        let options = OutputOptions { json: false, quiet: false, verbose: false };
        let mut show = |event: Event| {
            show_event(&event, &mut state, &bar, (ProgressKind::Query, true), options);
            (bar.position(), bar.length(), bar.is_finished())
        };
        let begin = |cells| Event::Begin { expansion: "values".to_owned(), cells };
        let stored = |count| {
            let mut cells = Tally::default();
            cells.add(State::Ok, count);
            Event::Stored { cells, usage: Usage::default() }
        };
        assert_eq!(show(begin(8)), (0, Some(8), false));
        assert_eq!(show(stored(3)), (3, Some(8), false));
        assert!(show(Event::PassEnded).2);
        assert_eq!(show(begin(4)), (3, Some(12), false));
        assert_eq!(show(stored(9)), (12, Some(12), false));
        assert!(show(Event::PassEnded).2);
    }
}
