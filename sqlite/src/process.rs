//! The process of `hqdl map`, which answers one request at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rusqlite::{Error, Result};
use serde_json::Value as Json;

use crate::function_error;

/// Environment variable with the path of the program; the default is `hqdl` on PATH.
const PROGRAM_VARIABLE: &str = "HQDL";
/// Environment variable with flags of `hqdl map`, separated by spaces: the model, the cache, a
/// budget.
const FLAGS_VARIABLE: &str = "HQDL_FLAGS";

/// Returns a command that runs the program.
pub fn hqdl_command() -> Command {
    Command::new(std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| "hqdl".into()))
}

/// Returns the flags for the location of the facts.
pub fn cache_flags() -> Vec<String> {
    let all = std::env::var(FLAGS_VARIABLE).unwrap_or_default();
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

/// Returns the error for a program that cannot be started.
pub fn start_error(error: &std::io::Error) -> Error {
    let program = hqdl_command().get_program().to_string_lossy().into_owned();
    function_error(format!(
        "cannot start `{program}`: {error}; add it to PATH, or set {PROGRAM_VARIABLE} to its path"
    ))
}

/// A process that answers requests; it ends when this is dropped.
pub struct HqdlProcess {
    process: Child,
    /// `None` after it was closed.
    requests: Option<ChildStdin>,
    responses: BufReader<ChildStdout>,
}

impl HqdlProcess {
    pub fn start() -> Result<Self> {
        let mut command = hqdl_command();
        let flags = std::env::var(FLAGS_VARIABLE).unwrap_or_default();
        command.arg("map").args(flags.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C must end the query only: other queries may use the same process.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = command.spawn().map_err(|e| start_error(&e))?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(requests), Some(responses)) => {
                Ok(Self { process, requests: Some(requests), responses: BufReader::new(responses) })
            }
            _ => {
                Err(function_error("hqdl started without a connection to this process".to_owned()))
            }
        }
    }

    /// Sends a request and waits for its response. Fails with the response's error, if it has one.
    pub fn send_request(&mut self, request: &Json) -> Result<Json> {
        let ended = |e: std::io::Error| function_error(format!("hqdl has ended: {e}"));
        let Some(requests) = &mut self.requests else {
            return Err(function_error("hqdl has ended".to_owned()));
        };
        writeln!(requests, "{request}").and_then(|()| requests.flush()).map_err(ended)?;
        let mut line = String::new();
        if self.responses.read_line(&mut line).map_err(ended)? == 0 {
            self.requests = None;
            let status = self.process.wait().map_err(ended)?;
            return Err(function_error(format!(
                "hqdl has ended ({status}); see stderr for the reason"
            )));
        }
        let response: Json = serde_json::from_str(&line)
            .map_err(|e| function_error(format!("hqdl sent invalid JSON: {e}")))?;
        if response["event"] == "error" {
            let field = |name: &str| response[name].as_str().unwrap_or_default().to_owned();
            let (message, hint) = (field("message"), field("hint"));
            return Err(function_error(if hint.is_empty() {
                message
            } else {
                format!("{message} ({hint})")
            }));
        }
        Ok(response)
    }

    /// Returns whether the process accepts requests.
    pub fn is_running(&mut self) -> bool {
        self.requests.is_some() && matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for HqdlProcess {
    fn drop(&mut self) {
        // Closing its standard input ends the process, which releases the cache first.
        self.requests = None;
        let _ = self.process.wait();
    }
}
