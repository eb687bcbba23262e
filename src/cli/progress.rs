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
        // Hide the bar until the run has cells to request.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let has_bar =
            !output_options.quiet && !output_options.json && std::io::stderr().is_terminal();
        let style = ProgressStyle::with_template(
            "{bar:20} {percent:>3}% {pos}/{len} cells, {msg}, {elapsed}, ETA {eta}",
        );
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
            show_event(event, &mut state, &bar, has_bar, output_options);
        });
        (progress, listener)
    }

    /// Returns a listener for a query. It prints a line for each pass that asks the model, on a
    /// terminal only, so that it does not disturb the rows. It prints failures everywhere, and the
    /// progress of a query that takes long.
    pub fn new_query_listener(output_options: OutputOptions) -> Listener {
        let is_terminal = !output_options.quiet && std::io::stderr().is_terminal();
        let failures = Mutex::new(PrintedFailures::default());
        let progress = Mutex::new((0, 0, Instant::now()));
        Arc::new(move |event: &Event| match event {
            Event::Begin { expansion, cells } => {
                progress.lock().unwrap_or_else(PoisonError::into_inner).1 += cells;
                if is_terminal {
                    let values = format_count(*cells, "value");
                    match expansion.as_str() {
                        // An ad-hoc question belongs to no expansion of the spec.
                        "values" | "documents" => print_note!("asking for {values}"),
                        _ => print_note!("asking for {values} of {expansion}"),
                    }
                }
            }
            Event::Stored { cells, usage } => {
                let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                let (done, total, last_line_at) = &mut *progress;
                *done += cells.total();
                if !output_options.quiet && last_line_at.elapsed() >= LINE_INTERVAL {
                    *last_line_at = Instant::now();
                    print_note!("{done}/{total} values, {}", format_usage(usage));
                }
            }
            Event::Failed(message)
                if !output_options.quiet
                    && failures
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .record_if_new(message) =>
            {
                let advice = "select fewer rows, or lower `context_tokens` in [limits]";
                print_note!("failed: {}", add_length_advice(message, advice));
            }
            Event::Warning(message) if !output_options.quiet => {
                print_note!("note: {message}");
            }
            _ => {}
        })
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
    has_bar: bool,
    output_options: OutputOptions,
) {
    let plain = !output_options.quiet && !output_options.json && !has_bar;
    match event {
        Event::Begin { expansion, cells } => {
            state.total += cells;
            bar.set_length(state.total);
            if has_bar && bar.is_hidden() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.reset_elapsed();
                bar.set_message("waiting for the first answer");
                bar.enable_steady_tick(TICK_INTERVAL);
            }
            if output_options.json {
                print_line!("{}", event.to_json());
            } else if plain {
                print_note!("{expansion}: {} to ask", format_count(*cells, "cell"));
            }
        }
        Event::Stored { cells, usage } => {
            state.done += cells.total();
            let rate = state.done as f64 / state.began.elapsed().as_secs_f64().max(1e-3);
            bar.set_message(format!(
                "{}, {} cells/s",
                format_usage(usage),
                format_thousands(rate as u64)
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
                print_note!("{}/{} cells, {}", state.done, state.total, format_usage(usage));
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
                let advice = "show it fewer columns, less `context` or less `evidence`";
                let message = add_length_advice(message, advice);
                bar.suspend(|| print_note!("failed: {message}"));
            }
        }
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
