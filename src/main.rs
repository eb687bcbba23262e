//! The `hqdl` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    hqdl::cli::main()
}
