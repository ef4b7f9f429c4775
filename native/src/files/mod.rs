//! Kernels of `connectors.files`: where the records of a block of a file are.

use numpy::PyArray2;
use pyo3::prelude::*;

mod scan;

use crate::calls::{rows, run, size_of_bytes};
use crate::memory::Items;

type Table<'py, T> = Bound<'py, PyArray2<T>>;

/// Add the functions of this package to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FIRST", scan::FIRST)?;
    module.add("AFTER", scan::AFTER)?;
    module.add("NEXT", scan::NEXT)?;
    module.add("ENDED", scan::ENDED)?;
    module.add_function(wrap_pyfunction!(csv_records, module)?)?;
    module.add_function(wrap_pyfunction!(json_elements, module)?)
}

#[pyfunction]
fn csv_records<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    delimiter: i64,
    quote: i64,
    escape: i64,
    limit: usize,
) -> PyResult<(Table<'py, i64>, usize, i64)> {
    let form = scan::Form { delimiter, quote, escape };
    let work = || scan::csv_records(&data, form, limit);
    let lines = run(py, "files.csv_records", size_of_bytes(&data), work)?;
    let count = lines.found.len() / scan::CSV_RECORD;
    Ok((rows(py, lines.found, count, scan::CSV_RECORD)?, lines.rest, lines.before))
}

#[pyfunction]
fn json_elements<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    in_list: bool,
    state: i64,
    is_last: bool,
    limit: usize,
) -> PyResult<(Table<'py, i64>, usize, i64, i64)> {
    let work = || scan::json_elements(&data, in_list, state, is_last, limit);
    let elements = run(py, "files.json_elements", size_of_bytes(&data), work)?;
    let wrong = if elements.is_wrong { elements.rest as i64 } else { -1 };
    let count = elements.found.len() / scan::JSON_ELEMENT;
    let found = rows(py, elements.found, count, scan::JSON_ELEMENT)?;
    Ok((found, elements.rest, elements.state, wrong))
}
