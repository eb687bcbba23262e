//! Exits with an error message if stdout cannot be written, where `println!` would panic.

use std::io::{Error, ErrorKind, Write};
use std::process::ExitCode;

use super::failure::{Failure, WRONG_INPUT};

/// Installs a panic hook that turns a failed `println!` into an error message and an exit code.
pub fn exit_on_print_errors() {
    let other_panics = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        let find =
            |stream: &str| message?.strip_prefix("failed printing to ")?.strip_prefix(stream);
        if let Some(reason) = find("stdout: ") {
            let code = reason.split_once("(os error ").and_then(|(_, code)| code.strip_suffix(')'));
            let code = code.and_then(|code| code.parse().ok());
            let error = code.map_or_else(|| Error::other(reason), Error::from_raw_os_error);
            std::process::exit(report_write_error(&error).into());
        } else if find("stderr: ").is_some() {
            std::process::exit(WRONG_INPUT.into());
        }
        other_panics(panic);
    }));
}

/// Flushes stdout. Returns the exit code of the program, which is `code` if stdout could be written.
pub fn finish(code: ExitCode) -> ExitCode {
    match std::io::stdout().flush() {
        Ok(()) => code,
        // The command has already printed an error.
        Err(_) if code != ExitCode::SUCCESS => code,
        Err(error) => ExitCode::from(report_write_error(&error)),
    }
}

/// Writes a text to stdout. Returns the exit code of the command.
pub fn write_all(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        Ok(()) => finish(ExitCode::SUCCESS),
        Err(error) => ExitCode::from(report_write_error(&error)),
    }
}

/// Prints the error, unless a reader such as `head` has closed the pipe. Returns the exit code.
pub fn report_write_error(error: &Error) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return 0;
    }
    let failure = to_failure(error);
    // stderr may be the same file.
    let _ = writeln!(std::io::stderr(), "{}", failure.to_text());
    failure.exit_code()
}

/// Returns the failure of a command whose output cannot be written.
pub fn to_failure(error: &Error) -> Failure {
    Failure::wrong_input(
        format!("cannot write the output: {}", crate::format::describe_io_error(error)),
        "free some space, or write the output to another place",
    )
}
