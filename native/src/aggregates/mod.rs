//! Kernels of `dataflow.operators.aggregates`: sums of numerics of any width.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

mod limbs;

use crate::calls::{self, array, arrays, run};
use crate::memory::{Items, Rows};
use crate::strings::Strings;

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;

/// Add the functions of this part to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(parse_limbs, module)?)?;
    module.add_function(wrap_pyfunction!(print_limbs, module)?)
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn parse_limbs<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    scale: i64,
    limbs: usize,
) -> PyResult<(Table<'py, i64>, Array<'py, bool>, Array<'py, i64>, i64)> {
    let texts = Strings::new(&offsets, &data);
    let work = || limbs::parse_limbs(texts, &valid, scale, limbs);
    let found = run(py, "aggregates.parse_limbs", texts.len(), work)?;
    let numbers = calls::rows(py, found.limbs, limbs, texts.len())?;
    Ok((numbers, array(py, found.nan), array(py, found.own), found.row))
}

#[pyfunction]
fn print_limbs<'py>(
    py: Python<'py>,
    sums: Rows<'_, i64>,
    scale: i64,
    shown: Items<'_, i64>,
    counts: Items<'_, i64>,
    valid: Items<'_, bool>,
    nan: Items<'_, bool>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>)> {
    let shown = limbs::Shown { scale, places: &shown, counts: &counts, valid: &valid, nan: &nan };
    let work = || limbs::print_limbs(sums, &shown);
    Ok(arrays(py, run(py, "aggregates.print_limbs", sums.width(), work)?))
}
