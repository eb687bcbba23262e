//! Tells tests, and the crate that they are written with, when they are built, whether
//! the data that stand beside this project are there, and whether `PostgreSQL` is
//! installed: tests that need them are ignored without them, visibly.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(shared_data)");
    // The script of several packages, of the workspace and below it.
    for script in ["tests/swan/shared.rs", "../../tests/swan/shared.rs"] {
        if std::path::Path::new(script).is_file() {
            println!("cargo::rerun-if-changed={script}");
        }
    }
    println!("cargo::rerun-if-env-changed=HQDL_SHARED");
    let shared = std::env::var_os("HQDL_SHARED").map_or_else(|| "../shared".into(), PathBuf::from);
    if shared.is_dir() {
        println!("cargo::rustc-cfg=shared_data");
    }
    println!("cargo::rustc-check-cfg=cfg(postgres)");
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rerun-if-changed={SYSTEM}");
    if let Some(programs) = postgres() {
        println!("cargo::rustc-cfg=postgres");
        println!("cargo::rustc-env=HQDL_POSTGRES={}", programs.display());
    }
}

/// Where the system's packages put the programs of `PostgreSQL`.
const SYSTEM: &str = "/usr/lib/postgresql";

/// The programs of `PostgreSQL`: the newest of the system's, or those in `PATH`.
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
