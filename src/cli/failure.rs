//! Prints failures of commands.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::failure::{APPROVAL, BUDGET, Failure, INCOMPLETE, INTERRUPTED, WRONG_INPUT};

/// Whether this process uses a temporary cache, so that no answer is kept.
static IS_WITHOUT_CACHE: AtomicBool = AtomicBool::new(false);

/// Sets whether this process uses a temporary cache, for the messages of all failures.
pub fn set_without_cache(is_without: bool) {
    IS_WITHOUT_CACHE.store(is_without, Ordering::Relaxed);
}

impl Failure {
    /// Prints the failure on stderr; with `as_json`, also prints an event on stdout. Returns the
    /// exit code.
    pub fn print_error(&self, as_json: bool) -> ExitCode {
        if IS_WITHOUT_CACHE.load(Ordering::Relaxed) {
            return self.clone().without_cache().print(as_json);
        }
        self.print(as_json)
    }

    fn print(&self, as_json: bool) -> ExitCode {
        let colour = std::io::stderr().is_terminal();
        match self {
            Self::Message { message, hint, .. } => {
                let (bold, help) = if colour {
                    ("\u{1b}[1;31merror\u{1b}[0m", "\u{1b}[1;36mhelp\u{1b}[0m")
                } else {
                    ("error", "help")
                };
                anstream::eprintln!("{bold}: {message}");
                if !hint.is_empty() {
                    anstream::eprintln!("{help}: {hint}");
                }
            }
            Self::Problems(problems) => anstream::eprintln!("{}", problems.render(colour)),
        }
        if as_json {
            // If stdout cannot be written, the message on stderr is enough.
            let _ = writeln!(anstream::stdout(), "{}", self.to_json());
        }
        ExitCode::from(self.exit_code())
    }
}
