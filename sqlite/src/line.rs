//! The line to `hqdl`: a process of `hqdl map` that answers a request at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rusqlite::{Error, Result};
use serde_json::Value as Json;

use crate::failed;

/// The program, where it is not on the path.
const PROGRAM: &str = "HQDL";
/// Flags of `hqdl map`, parted by blanks: the model, the cache, a budget.
const FLAGS: &str = "HQDL_FLAGS";

/// The program.
pub fn hqdl() -> Command {
    Command::new(std::env::var_os(PROGRAM).unwrap_or_else(|| "hqdl".into()))
}

/// The flags that say where the facts are.
pub fn cache_flags() -> Vec<String> {
    let all = std::env::var(FLAGS).unwrap_or_default();
    let mut words = all.split_whitespace();
    while let Some(word) = words.next() {
        if word == "--cache" {
            return [Some(word), words.next()].into_iter().flatten().map(str::to_owned).collect();
        }
        if word.starts_with("--cache=") {
            return vec![word.to_owned()];
        }
    }
    Vec::new()
}

/// What is said when the program cannot be started.
pub fn not_started(error: &std::io::Error) -> Error {
    let program = hqdl().get_program().to_string_lossy().into_owned();
    failed(format!(
        "cannot start `{program}`: {error}; add it to PATH, or set {PROGRAM} to its path"
    ))
}

/// A process that answers; it ends with this.
pub struct Line {
    process: Child,
    /// `None` once it is closed.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Line {
    pub fn open() -> Result<Self> {
        let mut command = hqdl();
        let flags = std::env::var(FLAGS).unwrap_or_default();
        command.arg("map").args(flags.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C ends a query, and not the process that others may be waiting for.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = command.spawn().map_err(|e| not_started(&e))?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Self { process, requests: Some(requests), answers: BufReader::new(answers) })
            }
            _ => Err(failed("hqdl started without a connection to this process".to_owned())),
        }
    }

    /// Puts a request; its answer, or what it failed of.
    pub fn put(&mut self, request: &Json) -> Result<Json> {
        let gone = |e: std::io::Error| failed(format!("hqdl has ended: {e}"));
        let Some(requests) = &mut self.requests else {
            return Err(failed("hqdl has ended".to_owned()));
        };
        writeln!(requests, "{request}").and_then(|()| requests.flush()).map_err(gone)?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(gone)? == 0 {
            // It has said why on stderr.
            self.requests = None;
            let ended = self.process.wait().map_err(gone)?;
            return Err(failed(format!("hqdl has ended ({ended}); see stderr for the reason")));
        }
        let answer: Json =
            serde_json::from_str(&line).map_err(|e| failed(format!("hqdl sent invalid JSON: {e}")))?;
        if answer["event"] == "error" {
            let said = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
            let (message, hint) = (said("message"), said("hint"));
            return Err(failed(if hint.is_empty() {
                message
            } else {
                format!("{message} ({hint})")
            }));
        }
        Ok(answer)
    }

    /// Whether it listens.
    pub fn stands(&mut self) -> bool {
        self.requests.is_some() && matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // It ends when nothing more can come, and has let go of the cache then.
        self.requests = None;
        let _ = self.process.wait();
    }
}
