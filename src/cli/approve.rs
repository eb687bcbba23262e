//! Implements `hqdl approve`.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tokio::sync::watch;
use unicode_width::UnicodeWidthChar;

use super::failure::{APPROVAL, Failure};
use super::mcp::open_plans;
use super::{CacheFlags, OutputOptions, interrupt};
use crate::approval::APPROVAL_MINUTES;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Id of the plan, which the assistant shows.
    #[arg(value_name = "PLAN_ID")]
    plan: String,
    /// Approve without asking.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cache: CacheFlags,
}

/// Width of the field names and the space after them.
const INDENT: usize = 11;
/// Width of the lines if the width of the terminal is not known.
const DEFAULT_WIDTH: usize = 77;

/// Returns the width that is left for a field's text on the terminal.
fn text_width() -> usize {
    #[cfg(unix)]
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map(|size| size.ws_col).ok();
    #[cfg(not(unix))]
    let columns: Option<u16> = None;
    let columns = columns.filter(|columns| *columns > 0).map_or(DEFAULT_WIDTH, usize::from);
    columns.saturating_sub(INDENT).max(20)
}

/// Wraps a line after spaces, and inside a word only if the word is wider than a line. If the
/// terminal wrapped a line, the rest of the line could look like another field.
fn wrap_line(line: &str, max_width: usize) -> Vec<String> {
    let width_of = |text: &str| text.chars().filter_map(UnicodeWidthChar::width).sum::<usize>();
    let mut lines = Vec::new();
    let mut current = String::new();
    for c in line.chars() {
        if width_of(&current) + c.width().unwrap_or(0) > max_width {
            let word_start =
                current.rfind(' ').filter(|_| c != ' ').map_or(current.len(), |n| n + 1);
            let word = current.split_off(word_start);
            lines.push(std::mem::replace(&mut current, word));
        }
        current.push(c);
    }
    lines.push(current);
    lines
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let plans = open_plans(&options.cache)?;
    let to_failure = |error: crate::approval::ApprovalError| {
        Failure::wrong_input(
            error.to_string(),
            "ask the assistant for the id, and pass the --cache of its server",
        )
    };
    let plan = plans.load_plan(&options.plan).map_err(to_failure)?;
    if !output_options.quiet {
        for (name, text) in plan.list_details() {
            let lines: Vec<String> =
                text.lines().flat_map(|line| wrap_line(line, text_width())).collect();
            anstream::eprintln!("{name:<10} {}", lines.join("\n           "));
        }
    }
    if !options.yes {
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            return Err(Failure::Message {
                message: "approval needs a terminal".to_owned(),
                hint: "run this in a terminal, or pass --yes".to_owned(),
                exit: APPROVAL,
            });
        }
        anstream::eprint!("Approve it once, within {APPROVAL_MINUTES} minutes? [y/N] ");
        if !read_approval() {
            return Ok(ExitCode::from(APPROVAL));
        }
    }
    plans.approve(&plan, jiff::Timestamp::now().as_second()).map_err(to_failure)?;
    if !output_options.quiet {
        anstream::eprintln!(
            "approved for {APPROVAL_MINUTES} minutes; the assistant can run it once"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the user's answer to an approval question on the terminal. Returns true for `y` and
/// `yes`.
fn read_approval() -> bool {
    is_approval(&read_answer())
}

fn is_approval(answer: &str) -> bool {
    matches!(answer, "y" | "yes")
}

/// Reads a line that the user types on the terminal, in lower case.
fn read_answer() -> String {
    // Discard input that was typed before the question appeared, because it cannot be the answer.
    #[cfg(unix)]
    let _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    line.trim().to_lowercase()
}

/// Reads the user's answer to an approval question. Returns `None` if the user presses Ctrl-C
/// instead.
pub fn read_approval_or_interrupt(interrupt: &watch::Receiver<bool>) -> Option<bool> {
    read_answer_or_interrupt(interrupt).map(|answer| is_approval(&answer))
}

/// Reads a line in lower case. Returns `None` if the user presses Ctrl-C first.
pub fn read_answer_or_interrupt(interrupt: &watch::Receiver<bool>) -> Option<String> {
    let (sender, answers) = channel();
    // A blocking read of stdin cannot be cancelled, so a separate thread does it.
    std::thread::spawn(move || sender.send(read_answer()));
    interrupt::run_prompt(|| {
        loop {
            if *interrupt.borrow() {
                return None;
            }
            match answers.recv_timeout(Duration::from_millis(20)) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Some(String::new()),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::wrap_line;

    #[test]
    fn a_line_is_wrapped_at_spaces_and_nothing_is_lost() {
        let mut chance = fastrand::Rng::with_seed(7);
        let words = [
            "a",
            " ",
            "  ",
            "publisher",
            "'x  y'",
            "\u{5e83}\u{3044}",
            "unbreakablewordofmanyletters",
        ];
        for _ in 0..500 {
            let line: String =
                (0..chance.usize(0..20)).map(|_| words[chance.usize(0..words.len())]).collect();
            let wrapped = wrap_line(&line, 20);
            assert_eq!(wrapped.concat(), line);
            assert!(
                wrapped.iter().all(|l| unicode_width::UnicodeWidthStr::width(l.as_str()) <= 20)
            );
        }
        let sql = "SELECT superhero_name FROM superhero WHERE height_cm > 200";
        let wrapped = wrap_line(sql, 20);
        let is_whole = |l: &String| l.split_whitespace().all(|w| sql.split(' ').any(|s| s == w));
        assert!(wrapped.iter().all(is_whole), "{wrapped:?}");
    }
}
