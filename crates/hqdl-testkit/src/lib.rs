//! Test support: a project in its own directory ([`project`]), an endpoint with computed answers
//! and faults ([`endpoint`], [`oracle`]), a `PostgreSQL` server ([`postgres`]), a browser
//! ([`browser`]), and test cases in files ([`case_file`]).
//!
//! Tests run the built program as users do. This crate is not part of any published package.

// Tests fail by panicking and print the reason.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::return_self_not_must_use,
    clippy::too_many_lines,
    clippy::unwrap_used
)]
// Tests compare exact numbers, and helper signatures are chosen for readable calls.
#![allow(clippy::float_cmp, clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

pub mod browser;
pub mod cascade;
pub mod case_file;
pub mod concurrent;
pub mod daemon;
pub mod embedder;
pub mod endpoint;
pub mod engine;
pub mod fixture;
pub mod functions;
mod loopback;
pub mod oracle;
#[cfg(unix)]
pub mod postgres;
pub mod project;
pub mod restaurants;
pub mod swan;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root directory of the repository.
pub fn repository_root() -> PathBuf {
    let crates = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crates.ancestors().nth(2).map(PathBuf::from).unwrap()
}

/// Returns the built program, which is in the same target directory as the tests.
pub fn program_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("hqdl")
        .with_extension(std::env::consts::EXE_EXTENSION);
    assert!(program.is_file(), "there is no program at {}: cargo build", program.display());
    program
}

/// Creates a self-signed certificate for 127.0.0.1 and its key; `None` if openssl is not installed.
pub fn create_certificate(dir: &Path, is_authority: bool) -> Option<(Vec<u8>, Vec<u8>)> {
    let authority = if is_authority { "TRUE" } else { "FALSE" };
    let constraints = format!("basicConstraints=critical,CA:{authority}");
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", "/CN=here", "-keyout", "key.pem", "-out", "cert.pem"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", &constraints])
        .current_dir(dir)
        .output()
        .ok()?;
    output.status.success().then(|| {
        let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
        (read("cert.pem"), read("key.pem"))
    })
}
