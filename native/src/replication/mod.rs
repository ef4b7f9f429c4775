//! Kernels of `connectors.postgres`: what replication and COPY send, and what COPY reads.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod copy;
mod decode;

use crate::calls::{array, arrays, rows, run, size_of_bytes};
use crate::memory::{Items, ItemsMut};

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;

/// Add the functions of this package to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NULL", decode::NULL)?;
    module.add("UNCHANGED", decode::UNCHANGED)?;
    module.add_function(wrap_pyfunction!(heads, module)?)?;
    module.add_function(wrap_pyfunction!(walk_tuples, module)?)?;
    module.add_function(wrap_pyfunction!(walk_copy, module)?)?;
    module.add_function(wrap_pyfunction!(gather_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(read_ints, module)?)?;
    module.add_function(wrap_pyfunction!(read_bools, module)?)?;
    module.add_function(wrap_pyfunction!(read_numerics, module)?)?;
    module.add_function(wrap_pyfunction!(add_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(put_values, module)?)?;
    module.add_function(wrap_pyfunction!(array_literal, module)?)?;
    module.add_function(wrap_pyfunction!(split_lines, module)?)?;
    module.add_function(wrap_pyfunction!(gather_values, module)?)
}

fn refused(what: &str, malformed: decode::Malformed) -> PyErr {
    PyValueError::new_err(format!("{what} {} is not well formed", malformed.0))
}

#[pyfunction]
fn heads<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    ends: Items<'_, i64>,
) -> PyResult<(Array<'py, u8>, Array<'py, i64>)> {
    let work = || decode::heads(&data, &ends);
    Ok(arrays(py, run(py, "replication.heads", ends.len(), work)?))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn walk_tuples<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    slots: Items<'_, i64>,
    width: usize,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>, Array<'py, u8>, Array<'py, bool>)> {
    let work = || decode::walk_tuples(&data, &starts, &slots, width);
    let found = run(py, "replication.walk_tuples", starts.len(), work)?;
    let found = found.map_err(|malformed| refused("payload", malformed))?;
    let count = found.kinds.len();
    Ok((
        rows(py, found.starts, width, count)?,
        rows(py, found.lengths, width, count)?,
        array(py, found.kinds),
        array(py, found.unchanged),
    ))
}

#[pyfunction]
#[pyo3(signature = (data, start, rows, width))]
fn walk_copy<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    start: usize,
    rows: usize,
    width: usize,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>)> {
    let work = || decode::walk_copy(&data, start, rows, width);
    let found = run(py, "replication.walk_copy", rows, work)?;
    let (starts, lengths) = found.map_err(|malformed| refused("row", malformed))?;
    Ok((
        crate::calls::rows(py, starts, width, rows)?,
        crate::calls::rows(py, lengths, width, rows)?,
    ))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn gather_bytes<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    lengths: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>, Array<'py, bool>, usize)> {
    let work = || decode::gather_bytes(&data, &starts, &lengths);
    let found = run(py, "replication.gather_bytes", starts.len(), work)?;
    let (offsets, data, valid, nulls) = found;
    Ok((array(py, offsets), array(py, data), array(py, valid), nulls))
}

#[pyfunction]
fn read_ints<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    lengths: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, bool>, usize)> {
    let work = || decode::read_ints(&data, &starts, &lengths);
    let (values, valid, nulls) = run(py, "replication.read_ints", starts.len(), work)?;
    Ok((array(py, values), array(py, valid), nulls))
}

#[pyfunction]
fn read_bools<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    lengths: Items<'_, i64>,
) -> PyResult<(Array<'py, bool>, Array<'py, bool>, usize)> {
    let work = || decode::read_bools(&data, &starts, &lengths);
    let (values, valid, nulls) = run(py, "replication.read_bools", starts.len(), work)?;
    Ok((array(py, values), array(py, valid), nulls))
}

#[pyfunction]
fn read_numerics<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    lengths: Items<'_, i64>,
    scale: i64,
    not_a_number: i64,
) -> PyResult<(Array<'py, i64>, Array<'py, bool>, usize)> {
    let work = || decode::read_numerics(&data, &starts, &lengths, scale, not_a_number);
    let found = run(py, "replication.read_numerics", starts.len(), work)?;
    let (values, valid, nulls) = found.map_err(|malformed| refused("numeric", malformed))?;
    Ok((array(py, values), array(py, valid), nulls))
}

#[pyfunction]
fn add_sizes(
    py: Python<'_>,
    mut sizes: ItemsMut<'_, i64>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<()> {
    let work = || copy::add_sizes(&mut sizes, &offsets, &data, &valid);
    run(py, "replication.add_sizes", offsets.len(), work)
}

#[pyfunction]
fn put_values(
    py: Python<'_>,
    mut out: ItemsMut<'_, u8>,
    mut at: ItemsMut<'_, i64>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    delimiter: u8,
) -> PyResult<()> {
    let work = || copy::put_values(&mut out, &mut at, &offsets, &data, &valid, delimiter);
    run(py, "replication.put_values", offsets.len(), work)
}

#[pyfunction]
fn array_literal<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Array<'py, u8>> {
    let work = || copy::array_literal(&offsets, &data, &valid);
    Ok(array(py, run(py, "replication.array_literal", offsets.len(), work)?))
}

#[pyfunction]
fn split_lines<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    columns: usize,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>, i64)> {
    let size = size_of_bytes(&data);
    let found = run(py, "replication.split_lines", size, || copy::split_lines(&data, columns))?;
    let torn = found.torn.map_or(-1, |row| row as i64);
    let starts = rows(py, found.starts, columns, found.count)?;
    Ok((starts, rows(py, found.ends, columns, found.count)?, torn))
}

#[pyfunction]
fn gather_values<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    ends: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>, Array<'py, bool>)> {
    let work = || copy::gather_values(&data, &starts, &ends);
    let (offsets, data, valid) = run(py, "replication.gather_values", starts.len(), work)?;
    Ok((array(py, offsets), array(py, data), array(py, valid)))
}
