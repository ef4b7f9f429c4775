//! Kernels of `connectors.mysql`: the row images of a binary log.

use numpy::PyArray1;
use pyo3::prelude::*;

mod images;
mod values;

use crate::calls::{arrays, run, size_of_bytes};
use crate::memory::{Items, Rows, RowsMut};

type Array<'py, T> = Bound<'py, PyArray1<T>>;

/// Add the functions of this package to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(walk, module)?)?;
    module.add_function(wrap_pyfunction!(gather, module)?)?;
    module.add_function(wrap_pyfunction!(hexed, module)?)
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn walk(
    py: Python<'_>,
    data: Items<'_, u8>,
    begin: usize,
    end: usize,
    widths: Items<'_, i64>,
    present: Rows<'_, bool>,
    slots: Items<'_, i64>,
    mut starts: RowsMut<'_, i64>,
    mut lengths: RowsMut<'_, i64>,
    image: usize,
) -> PyResult<i64> {
    let size = size_of_bytes(data.get(begin..end).unwrap_or_default());
    let found = run(py, "mysql.walk", size, move || {
        let columns = images::Columns { widths: &widths, present, slots: &slots };
        let mut places = images::Places { starts: &mut starts, lengths: &mut lengths };
        images::walk(&data, begin, end, columns, &mut places, image)
    })?;
    Ok(found.map_or(-1, |image| image as i64))
}

#[pyfunction]
fn gather<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    lengths: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>)> {
    let work = || values::gather(&data, &starts, &lengths);
    Ok(arrays(py, run(py, "mysql.gather", starts.len(), work)?))
}

#[pyfunction]
fn hexed<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>)> {
    let work = || values::hexed(&offsets, &data);
    Ok(arrays(py, run(py, "mysql.hexed", offsets.len(), work)?))
}
