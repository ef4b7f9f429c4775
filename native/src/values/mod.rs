//! Kernels of `dataflow.values`: between PostgreSQL's text and physical columns.
//!
//! Parsers take (offsets, data) of texts and return (values, row): row is the first one that is not
//! of the type, or -1. Printers return (offsets, bytes). An empty `valid` means no NULLs.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

pub(crate) mod digits;
mod floats;
mod numbers;
pub(crate) mod times;

use crate::calls::{self, array, arrays, run};
use crate::memory::{Items, Rows};
use crate::strings::Strings;

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;
type Parsed<'py, T> = PyResult<(Array<'py, T>, i64)>;
type Printed<'py> = PyResult<(Array<'py, i64>, Array<'py, u8>)>;

/// Add the functions of this part to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FLOAT_WIDTH", floats::FLOAT_WIDTH)?;
    module.add_function(wrap_pyfunction!(parse_ints, module)?)?;
    module.add_function(wrap_pyfunction!(print_ints, module)?)?;
    module.add_function(wrap_pyfunction!(parse_fixed, module)?)?;
    module.add_function(wrap_pyfunction!(print_fixed, module)?)?;
    module.add_function(wrap_pyfunction!(parse_bools, module)?)?;
    module.add_function(wrap_pyfunction!(print_bools, module)?)?;
    module.add_function(wrap_pyfunction!(parse_floats, module)?)?;
    module.add_function(wrap_pyfunction!(print_floats, module)?)?;
    module.add_function(wrap_pyfunction!(join_slots, module)?)?;
    module.add_function(wrap_pyfunction!(parse_dates, module)?)?;
    module.add_function(wrap_pyfunction!(print_dates, module)?)?;
    module.add_function(wrap_pyfunction!(parse_times, module)?)?;
    module.add_function(wrap_pyfunction!(print_times, module)?)?;
    module.add_function(wrap_pyfunction!(parse_stamps, module)?)?;
    module.add_function(wrap_pyfunction!(print_stamps, module)?)?;
    module.add_function(wrap_pyfunction!(days_of, module)?)
}

#[pyfunction]
fn parse_ints<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    low: i64,
    high: i64,
) -> Parsed<'py, i64> {
    let texts = Strings::new(&offsets, &data);
    let work = || numbers::parse_ints(texts, &valid, low, high);
    let (values, row) = run(py, "values.parse_ints", texts.len(), work)?;
    Ok((array(py, values), row))
}

#[pyfunction]
fn print_ints<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    valid: Items<'_, bool>,
) -> Printed<'py> {
    let work = || numbers::print_ints(&values, &valid);
    Ok(arrays(py, run(py, "values.print_ints", values.len(), work)?))
}

#[pyfunction]
fn parse_fixed<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    scale: usize,
) -> Parsed<'py, i64> {
    let texts = Strings::new(&offsets, &data);
    let work = || numbers::parse_fixed(texts, &valid, scale);
    let (values, row) = run(py, "values.parse_fixed", texts.len(), work)?;
    Ok((array(py, values), row))
}

#[pyfunction]
fn print_fixed<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    valid: Items<'_, bool>,
    scale: usize,
) -> Printed<'py> {
    let work = || numbers::print_fixed(&values, &valid, scale);
    Ok(arrays(py, run(py, "values.print_fixed", values.len(), work)?))
}

#[pyfunction]
fn parse_bools<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> Parsed<'py, bool> {
    let texts = Strings::new(&offsets, &data);
    let work = || numbers::parse_bools(texts, &valid);
    let (values, row) = run(py, "values.parse_bools", texts.len(), work)?;
    Ok((array(py, values), row))
}

#[pyfunction]
fn print_bools<'py>(
    py: Python<'py>,
    values: Items<'_, bool>,
    valid: Items<'_, bool>,
) -> Printed<'py> {
    let work = || numbers::print_bools(&values, &valid);
    Ok(arrays(py, run(py, "values.print_bools", values.len(), work)?))
}

#[pyfunction]
fn parse_floats<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<(Array<'py, f64>, Array<'py, bool>)> {
    let texts = Strings::new(&offsets, &data);
    let work = || floats::parse_floats(texts, &valid);
    Ok(arrays(py, run(py, "values.parse_floats", texts.len(), work)?))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn print_floats<'py>(
    py: Python<'py>,
    values: Items<'_, f64>,
    valid: Items<'_, bool>,
    is_single: bool,
) -> PyResult<(Table<'py, u8>, Array<'py, i64>, Array<'py, bool>)> {
    let work = || floats::print_floats(&values, &valid, is_single);
    let (slots, lengths, marks) = run(py, "values.print_floats", values.len(), work)?;
    let slots = calls::rows(py, slots, lengths.len(), floats::FLOAT_WIDTH)?;
    Ok((slots, array(py, lengths), array(py, marks)))
}

#[pyfunction]
fn join_slots<'py>(py: Python<'py>, slots: Rows<'_, u8>, lengths: Items<'_, i64>) -> Printed<'py> {
    let work = || floats::join_slots(slots, &lengths);
    Ok(arrays(py, run(py, "values.join_slots", lengths.len(), work)?))
}

#[pyfunction]
fn parse_dates<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> Parsed<'py, i64> {
    let texts = Strings::new(&offsets, &data);
    let work = || times::parse_dates(texts, &valid);
    let (values, row) = run(py, "values.parse_dates", texts.len(), work)?;
    Ok((array(py, values), row))
}

#[pyfunction]
fn print_dates<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    valid: Items<'_, bool>,
) -> Printed<'py> {
    let work = || times::print_dates(&values, &valid);
    Ok(arrays(py, run(py, "values.print_dates", values.len(), work)?))
}

#[pyfunction]
fn parse_times<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> Parsed<'py, i64> {
    let texts = Strings::new(&offsets, &data);
    let work = || times::parse_times(texts, &valid);
    let (values, row) = run(py, "values.parse_times", texts.len(), work)?;
    Ok((array(py, values), row))
}

#[pyfunction]
fn print_times<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    valid: Items<'_, bool>,
) -> Printed<'py> {
    let work = || times::print_times(&values, &valid);
    Ok(arrays(py, run(py, "values.print_times", values.len(), work)?))
}

#[pyfunction]
fn parse_stamps<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    has_zone: bool,
) -> Parsed<'py, i64> {
    let texts = Strings::new(&offsets, &data);
    let work = || times::parse_stamps(texts, &valid, has_zone);
    let (values, row) = run(py, "values.parse_stamps", texts.len(), work)?;
    Ok((array(py, values), row))
}

#[pyfunction]
fn print_stamps<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    valid: Items<'_, bool>,
    has_zone: bool,
) -> Printed<'py> {
    let work = || times::print_stamps(&values, &valid, has_zone);
    Ok(arrays(py, run(py, "values.print_stamps", values.len(), work)?))
}

#[pyfunction]
fn days_of(py: Python<'_>, year: i64, month: i64, day: i64) -> PyResult<i64> {
    run(py, "values.days_of", 1, || crate::calendar::days_of(year, month, day))
}
