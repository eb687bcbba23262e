//! Build script of the packages with tests: finds out whether the data beside the project
//! (`../shared`) and `PostgreSQL` are there. Tests that need them are ignored without them.
//! It also provides the commit for `hqdl --version`.

// Cargo reads the standard output of a build script.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

/// Prints the findings for Cargo.
pub fn main() {
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        report_commit();
    }
    // A published package has no tests.
    if Path::new(".cargo_vcs_info.json").exists() {
        return;
    }
    report_test_environment();
}

/// Sets `HQDL_VERSION`, the version with the commit: from git in a checkout, from Cargo's own file in a
/// published package. Debug builds go without, so that a commit does not rebuild the tests.
fn report_commit() {
    let published = std::fs::read_to_string(".cargo_vcs_info.json").ok();
    let commit = match published {
        Some(info) => info.split("\"sha1\": \"").nth(1).map(str::to_owned),
        None => run_git(&["rev-parse", "HEAD"]),
    };
    if let Some(folder) = run_git(&["rev-parse", "--git-dir"]) {
        println!("cargo::rerun-if-changed={}/logs/HEAD", folder.trim());
    }
    if let Some(short) = commit.as_deref().and_then(|commit| commit.get(..9)) {
        println!("cargo::rustc-env=HQDL_VERSION={} ({short})", env!("CARGO_PKG_VERSION"));
    }
}

/// Returns the output of a git command; None without git or outside a checkout.
fn run_git(arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn report_test_environment() {
    println!("cargo::rustc-check-cfg=cfg(shared_data)");
    // Packages in `crates/` use the same script.
    for script in ["tests/environment/build.rs", "../../tests/environment/build.rs"] {
        if Path::new(script).is_file() {
            println!("cargo::rerun-if-changed={script}");
        }
    }
    println!("cargo::rerun-if-env-changed=HQDL_SHARED");
    let shared = std::env::var_os("HQDL_SHARED").map_or_else(|| "../shared".into(), PathBuf::from);
    if shared.is_dir() {
        println!("cargo::rustc-cfg=shared_data");
    }
    println!("cargo::rustc-check-cfg=cfg(sembench)");
    if shared.join("sembench").is_dir() {
        println!("cargo::rustc-cfg=sembench");
    }
    println!("cargo::rustc-check-cfg=cfg(postgres)");
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rerun-if-changed={SYSTEM}");
    if let Some(programs) = postgres() {
        println!("cargo::rustc-cfg=postgres");
        println!("cargo::rustc-env=HQDL_POSTGRES={}", programs.display());
    }
    println!("cargo::rustc-check-cfg=cfg(chromium)");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path)
        .flat_map(|bin| ["chromium", "chromium-browser", "google-chrome"].map(|n| bin.join(n)));
    if programs.any(|program| program.is_file()) {
        println!("cargo::rustc-cfg=chromium");
    }
}

/// Directory of the packaged versions of `PostgreSQL`.
const SYSTEM: &str = "/usr/lib/postgresql";

/// Returns the directory of `initdb` and `pg_ctl`: that of the newest packaged version, at least
/// 15, or the one in `PATH`.
fn postgres() -> Option<PathBuf> {
    let packaged = std::fs::read_dir(SYSTEM).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = packaged
        .filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.path().join("bin"))))
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let newest = versions.pop().filter(|(version, _)| *version >= 15).map(|(_, bin)| bin);
    newest
        .into_iter()
        .chain(std::env::split_paths(&path))
        .find(|bin| bin.join("initdb").is_file() && bin.join("pg_ctl").is_file())
}
