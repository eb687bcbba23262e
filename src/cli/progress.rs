//! Progress of a running command: a bar on a terminal, plain lines otherwise (both on stderr), or
//! JSON events on stdout with `--json`.

use std::collections::{BTreeSet, HashMap};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::Talk;
use crate::format::{count_noun, thousands, usd};
use crate::generate::{Event, Listener};
use crate::usage::Usage;

/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of distinct error messages of failed requests to print.
const MOST_FAILURES: usize = 3;

/// Handle of a progress display.
pub struct Progress {
    bar: ProgressBar,
    state: Arc<Mutex<ProgressState>>,
}

struct ProgressState {
    began: Instant,
    said: Instant,
    total: u64,
    done: u64,
    failures: Failures,
    /// Last printed line of each batch.
    polled: HashMap<String, String>,
}

/// Messages of failed requests that were already printed.
#[derive(Default)]
struct Failures(BTreeSet<String>);

impl Failures {
    /// Returns true if a message is to be printed: it is new, and few were printed so far.
    fn is_new(&mut self, message: &str) -> bool {
        self.0.len() < MOST_FAILURES && self.0.insert(message.to_owned())
    }
}

impl Progress {
    /// Returns a progress display and the listener that updates it.
    pub fn new(talk: Talk) -> (Self, Listener) {
        // Hidden until the run has something to do.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let drawn = !talk.quiet && !talk.json && std::io::stderr().is_terminal();
        let style = ProgressStyle::with_template(
            "{bar:20} {percent:>3}% {pos}/{len} cells, {msg}, ETA {eta}",
        );
        if let Ok(style) = style {
            bar.set_style(style);
        }
        let now = Instant::now();
        let state = Arc::new(Mutex::new(ProgressState {
            began: now,
            said: now,
            total: 0,
            done: 0,
            failures: Failures::default(),
            polled: HashMap::new(),
        }));
        let progress = Self { bar: bar.clone(), state: Arc::clone(&state) };
        let listener: Listener = Arc::new(move |event: &Event| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            show(event, &mut state, &bar, drawn, talk);
        });
        (progress, listener)
    }

    /// Returns a listener for a query. It prints a line for each pass that asks the model, on a
    /// terminal only, so that it does not disturb the rows. It prints failures everywhere.
    pub fn of_passes(talk: Talk) -> Listener {
        let shown = !talk.quiet && std::io::stderr().is_terminal();
        let failures = Mutex::new(Failures::default());
        Arc::new(move |event: &Event| match event {
            Event::Begin { expansion, cells } if shown => {
                anstream::eprintln!("asking for {} ({expansion})", count_noun(*cells, "value"));
            }
            Event::Failed(message)
                if !talk.quiet
                    && failures.lock().unwrap_or_else(PoisonError::into_inner).is_new(message) =>
            {
                anstream::eprintln!("a request failed: {message}");
            }
            Event::Warning(message) if !talk.quiet => anstream::eprintln!("note: {message}"),
            _ => {}
        })
    }

    /// Ends the display; the bar stays visible.
    pub fn finish(&self) {
        if self.bar.length().unwrap_or(0) > 0 {
            self.bar.abandon();
        }
    }

    /// Returns the seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).began.elapsed().as_secs_f64()
    }
}

fn show(event: &Event, state: &mut ProgressState, bar: &ProgressBar, drawn: bool, talk: Talk) {
    let plain = !talk.quiet && !talk.json && !drawn;
    match event {
        Event::Begin { expansion, cells } => {
            state.total += cells;
            bar.set_length(state.total);
            if drawn && bar.is_hidden() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.reset_elapsed();
            }
            if talk.json {
                anstream::println!("{}", event.to_json());
            } else if plain {
                anstream::eprintln!("{expansion}: {} to ask", count_noun(*cells, "cell"));
            }
        }
        Event::Kept { cells, usage } => {
            state.done += cells.total();
            let rate = state.done as f64 / state.began.elapsed().as_secs_f64().max(1e-3);
            bar.set_message(format!("{}, {} cells/s", used(usage), thousands(rate as u64)));
            bar.set_position(state.done);
            if talk.json {
                let line = json!({
                    "event": "kept", "cells": cells.to_json(), "done": state.done, "total": state.total,
                    "requests": usage.requests, "input_tokens": usage.input_tokens,
                    "output_tokens": usage.output_tokens, "cost_usd": usage.cost_usd,
                });
                anstream::println!("{line}");
            } else if plain && state.said.elapsed() >= LINE_EVERY {
                state.said = Instant::now();
                anstream::eprintln!("{}/{} cells, {}", state.done, state.total, used(usage));
            }
        }
        Event::Submitted { batch, requests } => {
            let text = format!("{batch}: submitted, {}", count_noun(*requests, "request"));
            tell(talk, bar, event, &text);
        }
        Event::Polled { batch, status, completed, failed, requests } => {
            let text = format!(
                "{batch}: {status}, {} of {} answered{}",
                thousands(*completed),
                count_noun(*requests, "request"),
                if *failed > 0 {
                    format!(", {} failed", thousands(*failed))
                } else {
                    String::new()
                }
            );
            // A batch is polled for up to a day, so print only changes.
            if talk.json || state.polled.get(batch) != Some(&text) {
                tell(talk, bar, event, &text);
                state.polled.insert(batch.clone(), text);
            }
        }
        Event::Collected { batch, answered, failed, .. } => {
            let text = format!(
                "{batch}: collected, {} answered, {} not",
                thousands(*answered),
                thousands(*failed)
            );
            tell(talk, bar, event, &text);
        }
        Event::Failed(message) => {
            let is_new = state.failures.is_new(message);
            if talk.json {
                anstream::println!("{}", event.to_json());
            } else if !talk.quiet && is_new {
                bar.suspend(|| anstream::eprintln!("a request failed: {message}"));
            }
        }
        Event::Warning(message) => {
            if talk.json {
                anstream::println!("{}", event.to_json());
            }
            if !talk.quiet && !talk.json {
                bar.suspend(|| anstream::eprintln!("note: {message}"));
            }
        }
    }
}

/// Prints a line or the JSON event, depending on the output options.
fn tell(talk: Talk, bar: &ProgressBar, event: &Event, text: &str) {
    if talk.json {
        anstream::println!("{}", event.to_json());
    } else if !talk.quiet {
        bar.suspend(|| anstream::eprintln!("{text}"));
    }
}

fn used(usage: &Usage) -> String {
    format!(
        "{}, {}, {}",
        count_noun(usage.requests, "request"),
        count_noun(usage.input_tokens + usage.output_tokens, "token"),
        usd(usage.cost_usd)
    )
}

/// Returns the notes in parentheses after a space, or nothing if there are none.
pub fn in_brackets(notes: &[String]) -> String {
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) }
}

/// Formats seconds for the terminal.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
