//! Native part of the Python module `hqdl`: the engine, which exchanges values with Python as Arrow
//! arrays. The public Python API is in `hqdl/`, next to this directory.

mod answers;
mod cache;
mod errors;
mod functions;
mod outline;
mod project;
mod rows;
mod run;
mod table;
mod tables;
mod values;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs the command `hqdl` with `args`, which start with the program's name. Returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| {
        let exit_code = hqdl::cli::run_command_line(args);
        // Python does not flush Rust's buffers at exit.
        let _ = (std::io::stdout().flush(), std::io::stderr().flush());
        (0..=u8::MAX).find(|code| ExitCode::from(*code) == exit_code).unwrap_or(u8::MAX)
    })
}

/// Resets this module in the child of a fork. Returns the locations of the caches that the parent
/// has open.
#[pyfunction]
fn forked() -> Vec<std::path::PathBuf> {
    let dirs = cache::Registry::current().dirs();
    cache::Registry::start_generation();
    dirs
}

/// Interrupts all runs, stores the answers of requests in flight, and closes all caches.
#[pyfunction]
fn close(py: Python<'_>) -> PyResult<()> {
    run::close_all(py)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<project::Project>()?;
    module.add_class::<run::Interrupt>()?;
    module.add_class::<table::Table>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(forked, module)?)?;
    module.add_function(wrap_pyfunction!(close, module)?)?;
    module.add_function(wrap_pyfunction!(outline::sources, module)?)?;
    module.add_function(wrap_pyfunction!(tables::load, module)?)?;
    module.add_function(wrap_pyfunction!(tables::load_rows, module)?)?;
    Ok(())
}
