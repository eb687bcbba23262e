//! What the Python module `hqdl` is made of: the engine, with values that travel as
//! Arrow. `hqdl/` beside this has what Python sees.

mod answers;
mod cache;
mod errors;
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

/// Runs the command `hqdl`: its words, the program's name first; its exit code.
#[pyfunction]
fn main(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| {
        let ended = hqdl::cli::main_of(words);
        // Nobody else does, in a process that is Python's.
        let _ = (std::io::stdout().flush(), std::io::stderr().flush());
        (0..=u8::MAX).find(|code| ExitCode::from(*code) == ended).unwrap_or(u8::MAX)
    })
}

/// Begins anew in the child of a fork; the caches that its parent has open.
#[pyfunction]
fn forked() -> Vec<std::path::PathBuf> {
    let dirs = cache::Registry::own().dirs();
    cache::Registry::forked();
    dirs
}

/// Ends all that is under way, keeps what is in flight, and closes all caches.
#[pyfunction]
fn close(py: Python<'_>) -> PyResult<()> {
    run::close(py)
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
