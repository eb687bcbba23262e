//! Tells the tests, when they are built, whether the data that stand beside this
//! project are there: tests that need them are ignored without them, visibly.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(shared_data)");
    println!("cargo::rerun-if-changed=tests/swan/shared.rs");
    println!("cargo::rerun-if-env-changed=HQDL_SHARED");
    let shared = std::env::var_os("HQDL_SHARED").map_or_else(|| "../shared".into(), PathBuf::from);
    if shared.is_dir() {
        println!("cargo::rustc-cfg=shared_data");
    }
}
