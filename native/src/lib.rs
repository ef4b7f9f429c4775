//! Loops over column buffers and page images, for the Python packages of the same names.
//!
//! Kernels take numpy's arrays without copying them, allocate only their results, and do no input
//! or output.

use pyo3::prelude::*;

pub mod aggregates;
mod calendar;
mod calls;
pub mod expressions;
pub mod files;
pub mod formats;
pub mod memory;
pub mod mysql;
#[cfg(test)]
mod noise;
pub mod replication;
pub mod storage;
pub(crate) mod strings;
pub mod values;
pub mod windows;

/// The module `tidemark_native._native`: one submodule a package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    calls::quiet_panics();
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    add(module, "aggregates", aggregates::register)?;
    add(module, "expressions", expressions::register)?;
    add(module, "files", files::register)?;
    add(module, "formats", formats::register)?;
    add(module, "mysql", mysql::register)?;
    add(module, "replication", replication::register)?;
    add(module, "storage", storage::register)?;
    add(module, "values", values::register)?;
    add(module, "windows", windows::register)
}

fn add<'py>(
    module: &Bound<'py, PyModule>,
    name: &str,
    register: impl Fn(&Bound<'py, PyModule>) -> PyResult<()>,
) -> PyResult<()> {
    let py = module.py();
    let part = PyModule::new(py, name)?;
    register(&part)?;
    module.add_submodule(&part)?;
    // So that `from tidemark_native.storage import ...` finds it.
    let modules = py.import("sys")?.getattr("modules")?;
    modules.set_item(format!("tidemark_native.{name}"), part)
}
