//! Kernels of `dataflow.operators.windows`: loops over the sequence of a window.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod frames;
mod sums;

use crate::calls::{self, array, arrays, run};
use crate::memory::{Items, Rows};
use sums::{Frames, Kind};

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Sums<'py> = PyResult<(Array<'py, f64>, Array<'py, i64>, Array<'py, bool>)>;

/// Add the functions of this part to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(range_ends, module)?)?;
    module.add_function(wrap_pyfunction!(sum_floats, module)?)?;
    module.add_function(wrap_pyfunction!(average_floats, module)?)?;
    module.add_function(wrap_pyfunction!(best_rows, module)?)?;
    module.add_function(wrap_pyfunction!(tiles, module)?)?;
    module.add_function(wrap_pyfunction!(running_floats, module)?)
}

#[pyfunction]
fn range_ends<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    first: Items<'_, i64>,
    last: Items<'_, i64>,
    distance: i64,
    is_low: bool,
) -> PyResult<Array<'py, i64>> {
    let work = || frames::range_ends(&values, &first, &last, distance, is_low);
    Ok(array(py, run(py, "windows.range_ends", values.len(), work)?))
}

fn sums<'py>(
    py: Python<'py>,
    kernel: &str,
    values: &Items<'_, f64>,
    valid: &Items<'_, bool>,
    frames: Frames<'_>,
    kind: Kind,
) -> Sums<'py> {
    let work = || sums::sum_frames(values, valid, frames, kind);
    let (sums, counts, failed) = run(py, kernel, values.len(), work)?;
    Ok((array(py, sums), array(py, counts), array(py, failed)))
}

#[pyfunction]
fn sum_floats<'py>(
    py: Python<'py>,
    values: Items<'_, f64>,
    valid: Items<'_, bool>,
    low: Rows<'_, i64>,
    high: Rows<'_, i64>,
    is_single: bool,
) -> Sums<'py> {
    let kind = if is_single { Kind::SingleSum } else { Kind::Sum };
    sums(py, "windows.sum_floats", &values, &valid, Frames { low, high }, kind)
}

#[pyfunction]
fn average_floats<'py>(
    py: Python<'py>,
    values: Items<'_, f64>,
    valid: Items<'_, bool>,
    low: Rows<'_, i64>,
    high: Rows<'_, i64>,
) -> Sums<'py> {
    let frames = Frames { low, high };
    sums(py, "windows.average_floats", &values, &valid, frames, Kind::Average)
}

#[pyfunction]
fn best_rows<'py>(
    py: Python<'py>,
    positions: Items<'_, i64>,
    valid: Items<'_, bool>,
    low: Items<'_, i64>,
    high: Items<'_, i64>,
) -> PyResult<Array<'py, i64>> {
    let work = || frames::best_rows(&positions, &valid, &low, &high);
    Ok(array(py, run(py, "windows.best_rows", low.len(), work)?))
}

#[pyfunction]
fn tiles<'py>(
    py: Python<'py>,
    begin: Items<'_, i64>,
    end: Items<'_, i64>,
    buckets: Items<'_, i64>,
    valid: Items<'_, bool>,
) -> PyResult<(Array<'py, i64>, Array<'py, bool>)> {
    let work = || frames::tiles(&begin, &end, &buckets, &valid);
    Ok(arrays(py, run(py, "windows.tiles", begin.len(), work)?))
}

#[pyfunction]
fn running_floats<'py>(
    py: Python<'py>,
    values: Items<'_, f64>,
    valid: Items<'_, bool>,
    origin: Items<'_, i64>,
    base: Rows<'_, f64>,
    kind: u8,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let kind = match kind {
        0 => Kind::Sum,
        1 => Kind::SingleSum,
        2 => Kind::Average,
        _ => return Err(PyValueError::new_err("kind is 0, 1 or 2")),
    };
    let work = || sums::running_floats(&values, &valid, &origin, base, kind);
    let sums = run(py, "windows.running_floats", values.len(), work)?;
    calls::rows(py, sums, 4, values.len())
}
