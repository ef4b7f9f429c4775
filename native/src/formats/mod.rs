//! Kernels of `connectors.formats`: records of bytes to columns, and columns to records.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

mod avro;
mod csv;
mod json;
mod parquet;
mod protobuf;
mod records;
mod texts;

use crate::calls::{array, arrays, rows, run, size_of_bytes};
use crate::memory::{Items, ItemsMut, Rows};

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;
/// Offsets and bytes.
type Texts<'py> = (Array<'py, i64>, Array<'py, u8>);
/// Offsets, bytes and which are not NULL, or which are marked.
type MaskedTexts<'py> = (Array<'py, i64>, Array<'py, u8>, Array<'py, bool>);
/// Values and marks.
type Marked<'py, T> = (Array<'py, T>, Array<'py, bool>);

/// Add the functions of this package to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CSV_ABSENT", csv::ABSENT)?;
    module.add("CSV_PLAIN", csv::PLAIN)?;
    module.add("CSV_QUOTED", csv::QUOTED)?;
    module.add("CSV_ESCAPED", csv::ESCAPED)?;
    module.add("JSON_ABSENT", json::ABSENT)?;
    module.add("JSON_NULL", json::NULL)?;
    module.add("JSON_STRING", json::STRING)?;
    module.add("JSON_ESCAPED", json::ESCAPED)?;
    module.add("JSON_NUMBER", json::NUMBER)?;
    module.add("JSON_FALSE", json::FALSE)?;
    module.add("JSON_TRUE", json::TRUE)?;
    module.add("JSON_OBJECT", json::OBJECT)?;
    module.add("JSON_ARRAY", json::ARRAY)?;
    module.add("JSON_MAX_DEPTH", json::MAX_DEPTH)?;
    module.add("AVRO_NULL", avro::NULL)?;
    module.add("AVRO_LONG", avro::LONG)?;
    module.add("AVRO_FIXED", avro::FIXED)?;
    module.add("AVRO_BYTES", avro::BYTES)?;
    module.add("AVRO_RECORD", avro::RECORD)?;
    module.add("AVRO_UNION", avro::UNION)?;
    module.add("AVRO_ARRAY", avro::ARRAY)?;
    module.add("AVRO_MAP", avro::MAP)?;
    module.add("AVRO_BROKEN", avro::BROKEN)?;
    module.add("AVRO_TOO_MANY", avro::TOO_MANY)?;
    module.add("AVRO_TOO_DEEP", avro::TOO_DEEP)?;
    module.add("PROTOBUF_SIZED", protobuf::SIZED)?;
    module.add("PROTOBUF_GROUP", protobuf::GROUP)?;
    module.add("PROTOBUF_TOO_MANY", protobuf::TOO_MANY)?;
    module.add_function(wrap_pyfunction!(longest_plain, module)?)?;
    module.add_function(wrap_pyfunction!(list_rows, module)?)?;
    module.add_function(wrap_pyfunction!(packed_lengths, module)?)?;
    module.add_function(wrap_pyfunction!(split_cells, module)?)?;
    module.add_function(wrap_pyfunction!(copy_cells, module)?)?;
    module.add_function(wrap_pyfunction!(scan_json, module)?)?;
    module.add_function(wrap_pyfunction!(gather_json, module)?)?;
    module.add_function(wrap_pyfunction!(unescape_json, module)?)?;
    module.add_function(wrap_pyfunction!(count_openings, module)?)?;
    module.add_function(wrap_pyfunction!(json_texts, module)?)?;
    module.add_function(wrap_pyfunction!(json_plain, module)?)?;
    module.add_function(wrap_pyfunction!(json_bools, module)?)?;
    module.add_function(wrap_pyfunction!(avro_longs, module)?)?;
    module.add_function(wrap_pyfunction!(avro_fixed, module)?)?;
    module.add_function(wrap_pyfunction!(avro_texts, module)?)?;
    module.add_function(wrap_pyfunction!(put_values, module)?)?;
    module.add_function(wrap_pyfunction!(put_literal, module)?)?;
    module.add_function(wrap_pyfunction!(murmur2, module)?)?;
    module.add_function(wrap_pyfunction!(read_ints, module)?)?;
    module.add_function(wrap_pyfunction!(read_fixed, module)?)?;
    module.add_function(wrap_pyfunction!(read_bools, module)?)?;
    module.add_function(wrap_pyfunction!(read_dates, module)?)?;
    module.add_function(wrap_pyfunction!(read_times, module)?)?;
    module.add_function(wrap_pyfunction!(read_stamps, module)?)?;
    module.add_function(wrap_pyfunction!(odd_texts, module)?)?;
    module.add_function(wrap_pyfunction!(odd_numerics, module)?)?;
    module.add_function(wrap_pyfunction!(odd_uuids, module)?)?;
    module.add_function(wrap_pyfunction!(pad_texts, module)?)?;
    module.add_function(wrap_pyfunction!(count_values, module)?)?;
    module.add_function(wrap_pyfunction!(count_fields, module)?)?;
    module.add_function(wrap_pyfunction!(avro_long, module)?)?;
    Ok(())
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn split_cells<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    count: usize,
    delimiter: u8,
    quote: i64,
    escape: i64,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>, Table<'py, u8>, Array<'py, i64>)> {
    let size = size_of_bytes(&data);
    let work =
        || csv::split_cells(&offsets, &data, count, delimiter, csv::Quotes { quote, escape });
    let found = run(py, "formats.split_cells", size, work)?;
    let records = found.found.len();
    Ok((
        rows(py, found.starts, count, records)?,
        rows(py, found.ends, count, records)?,
        rows(py, found.kinds, count, records)?,
        array(py, found.found),
    ))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn copy_cells<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    ends: Items<'_, i64>,
    kinds: Items<'_, u8>,
    quote: i64,
    escape: i64,
    null: Items<'_, u8>,
) -> PyResult<MaskedTexts<'py>> {
    let size = kinds.len();
    let work =
        || csv::copy_cells(&data, &starts, &ends, &kinds, csv::Quotes { quote, escape }, &null);
    let found = run(py, "formats.copy_cells", size, work)?;
    Ok((array(py, found.0), array(py, found.1), array(py, found.2)))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
fn scan_json<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    parents: Items<'_, i64>,
    key_ends: Items<'_, i64>,
    keys: Items<'_, u8>,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>, Table<'py, u8>, Array<'py, bool>)> {
    let size = size_of_bytes(&data);
    let work = || {
        json::scan(
            &offsets,
            &data,
            json::Paths { parents: &parents, key_ends: &key_ends, keys: &keys },
        )
    };
    let found = run(py, "formats.scan_json", size, work)?;
    let (nodes, records) = (parents.len(), found.marks.len());
    Ok((
        rows(py, found.starts, nodes, records)?,
        rows(py, found.ends, nodes, records)?,
        rows(py, found.kinds, nodes, records)?,
        array(py, found.marks),
    ))
}

#[pyfunction]
fn gather_json<'py>(
    py: Python<'py>,
    data: Items<'_, u8>,
    starts: Items<'_, i64>,
    ends: Items<'_, i64>,
    kinds: Items<'_, u8>,
    selected: Items<'_, bool>,
) -> PyResult<Texts<'py>> {
    let size = kinds.len();
    let work = || json::gather(&data, &starts, &ends, &kinds, &selected);
    Ok(arrays(py, run(py, "formats.gather_json", size, work)?))
}

#[pyfunction]
fn unescape_json<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    is_escaped: Items<'_, bool>,
) -> PyResult<MaskedTexts<'py>> {
    let size = size_of_bytes(&data);
    let work = || json::unescape(&offsets, &data, &is_escaped);
    let found = run(py, "formats.unescape_json", size, work)?;
    Ok((array(py, found.0), array(py, found.1), array(py, found.2)))
}

#[pyfunction]
fn count_openings(py: Python<'_>, text: Items<'_, u8>) -> PyResult<usize> {
    let size = size_of_bytes(&text);
    let work = || json::count_openings(&text);
    run(py, "formats.count_openings", size, work)
}

#[pyfunction]
fn json_texts<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Texts<'py>> {
    let size = offsets.len();
    let work = || records::json_texts(&offsets, &data, &valid);
    Ok(arrays(py, run(py, "formats.json_texts", size, work)?))
}

#[pyfunction]
fn json_plain<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Texts<'py>> {
    let size = offsets.len();
    let work = || records::json_plain(&offsets, &data, &valid);
    Ok(arrays(py, run(py, "formats.json_plain", size, work)?))
}

#[pyfunction]
fn json_bools<'py>(
    py: Python<'py>,
    values: Items<'_, bool>,
    valid: Items<'_, bool>,
) -> PyResult<Texts<'py>> {
    let size = values.len();
    let work = || records::json_bools(&values, &valid);
    Ok(arrays(py, run(py, "formats.json_bools", size, work)?))
}

#[pyfunction]
fn avro_longs<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    valid: Items<'_, bool>,
    in_union: bool,
) -> PyResult<Texts<'py>> {
    let size = values.len();
    let work = || records::avro_longs(&values, &valid, in_union);
    Ok(arrays(py, run(py, "formats.avro_longs", size, work)?))
}

#[pyfunction]
fn avro_fixed<'py>(
    py: Python<'py>,
    raw: Rows<'_, u8>,
    valid: Items<'_, bool>,
    in_union: bool,
) -> PyResult<Texts<'py>> {
    let size = raw.len();
    let work = || records::avro_fixed(raw, &valid, in_union);
    Ok(arrays(py, run(py, "formats.avro_fixed", size, work)?))
}

#[pyfunction]
fn avro_texts<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    in_union: bool,
) -> PyResult<Texts<'py>> {
    let size = offsets.len();
    let work = || records::avro_texts(&offsets, &data, &valid, in_union);
    Ok(arrays(py, run(py, "formats.avro_texts", size, work)?))
}

#[pyfunction]
fn put_values(
    py: Python<'_>,
    mut out: ItemsMut<'_, u8>,
    mut at: ItemsMut<'_, i64>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
) -> PyResult<()> {
    let size = at.len();
    let work = || records::put_values(&mut out, &mut at, &offsets, &data);
    run(py, "formats.put_values", size, work)
}

#[pyfunction]
fn put_literal(
    py: Python<'_>,
    mut out: ItemsMut<'_, u8>,
    mut at: ItemsMut<'_, i64>,
    literal: Items<'_, u8>,
) -> PyResult<()> {
    let size = at.len();
    let work = || records::put_literal(&mut out, &mut at, &literal);
    run(py, "formats.put_literal", size, work)
}

#[pyfunction]
fn murmur2<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
) -> PyResult<Array<'py, i64>> {
    let size = offsets.len();
    let work = || records::murmur2(&offsets, &data);
    let found = run(py, "formats.murmur2", size, work)?;
    Ok(array(py, found))
}

#[pyfunction]
fn read_ints<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    low: i64,
    high: i64,
) -> PyResult<Marked<'py, i64>> {
    let size = offsets.len();
    let work = || texts::read_ints(&offsets, &data, &valid, low, high);
    Ok(arrays(py, run(py, "formats.read_ints", size, work)?))
}

#[pyfunction]
fn read_fixed<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    precision: usize,
    scale: usize,
) -> PyResult<Marked<'py, i64>> {
    let size = offsets.len();
    let work = || texts::read_fixed(&offsets, &data, &valid, precision, scale);
    Ok(arrays(py, run(py, "formats.read_fixed", size, work)?))
}

#[pyfunction]
fn read_bools<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Marked<'py, bool>> {
    let size = offsets.len();
    let work = || texts::read_bools(&offsets, &data, &valid);
    Ok(arrays(py, run(py, "formats.read_bools", size, work)?))
}

#[pyfunction]
fn read_dates<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Marked<'py, i64>> {
    let size = offsets.len();
    let work = || texts::read_dates(&offsets, &data, &valid);
    Ok(arrays(py, run(py, "formats.read_dates", size, work)?))
}

#[pyfunction]
fn read_times<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Marked<'py, i64>> {
    let size = offsets.len();
    let work = || texts::read_times(&offsets, &data, &valid);
    Ok(arrays(py, run(py, "formats.read_times", size, work)?))
}

#[pyfunction]
fn read_stamps<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    has_zone: bool,
) -> PyResult<Marked<'py, i64>> {
    let size = offsets.len();
    let work = || texts::read_stamps(&offsets, &data, &valid, has_zone);
    Ok(arrays(py, run(py, "formats.read_stamps", size, work)?))
}

#[pyfunction]
fn odd_texts<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    most: i64,
) -> PyResult<Array<'py, bool>> {
    let size = offsets.len();
    let work = || texts::odd_texts(&offsets, &data, &valid, most);
    let found = run(py, "formats.odd_texts", size, work)?;
    Ok(array(py, found))
}

#[pyfunction]
fn odd_numerics<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    precision: i64,
    scale: i64,
) -> PyResult<Array<'py, bool>> {
    let size = offsets.len();
    let work = || texts::odd_numerics(&offsets, &data, &valid, precision, scale);
    let found = run(py, "formats.odd_numerics", size, work)?;
    Ok(array(py, found))
}

#[pyfunction]
fn odd_uuids<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> PyResult<Array<'py, bool>> {
    let size = offsets.len();
    let work = || texts::odd_uuids(&offsets, &data, &valid);
    let found = run(py, "formats.odd_uuids", size, work)?;
    Ok(array(py, found))
}

#[pyfunction]
fn pad_texts<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    width: i64,
) -> PyResult<Texts<'py>> {
    let size = offsets.len();
    let work = || texts::pad_texts(&offsets, &data, width);
    Ok(arrays(py, run(py, "formats.pad_texts", size, work)?))
}

#[pyfunction]
fn count_values<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    raw: Items<'_, u8>,
    nodes: Rows<'_, i64>,
    children: Items<'_, i64>,
    most_values: i64,
    most_depth: usize,
) -> PyResult<Array<'py, i64>> {
    let size = size_of_bytes(&raw);
    let work = || {
        let bounds = avro::Bounds { values: most_values, depth: most_depth };
        avro::count_values(&offsets, &raw, avro::Schema { nodes, children: &children }, bounds)
    };
    let found = run(py, "formats.count_values", size, work)?;
    Ok(array(py, found))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn count_fields<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    raw: Items<'_, u8>,
    starts: Items<'_, i64>,
    fields: Rows<'_, i64>,
    sizes: Items<'_, i64>,
    most_fields: i64,
    most_depth: usize,
) -> PyResult<Array<'py, i64>> {
    let size = size_of_bytes(&raw);
    let work = || {
        let messages = protobuf::Messages { starts: &starts, fields, sizes: &sizes };
        let bounds = protobuf::Bounds { fields: most_fields, depth: most_depth };
        protobuf::count_fields(&offsets, &raw, messages, bounds)
    };
    let found = run(py, "formats.count_fields", size, work)?;
    Ok(array(py, found))
}

#[pyfunction]
fn avro_long<'py>(py: Python<'py>, value: i64) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    run(py, "formats.avro_long", 1, || records::put_long(&mut out, value))?;
    Ok(PyBytes::new(py, &out))
}

/// (number of values, bytes of the longest) of byte arrays in PLAIN encoding; None if broken.
#[pyfunction]
fn longest_plain(py: Python<'_>, data: Items<'_, u8>) -> PyResult<Option<(i64, i64)>> {
    run(py, "formats.longest_plain", size_of_bytes(&data), || parquet::longest_plain(&data))
}

/// (rows that begin, levels of the longest, of the one that stays open, whether the first level
/// begins one) of repetition levels; None if broken.
#[pyfunction]
fn list_rows(
    py: Python<'_>,
    data: Items<'_, u8>,
    width: usize,
    count: i64,
    open_levels: i64,
    is_packed: bool,
) -> PyResult<Option<(i64, i64, i64, bool)>> {
    run(py, "formats.list_rows", size_of_bytes(&data), || {
        let found = parquet::Levels { data: &data, width, count, is_packed }.rows(open_levels)?;
        Some((found.rows, found.longest, found.open, found.is_first))
    })
}

/// (number, sum, longest, end) of lengths in encoding DELTA_BINARY_PACKED that begin at a byte, at
/// most `most`; None if broken.
#[pyfunction]
fn packed_lengths(
    py: Python<'_>,
    data: Items<'_, u8>,
    at: usize,
    most: i64,
) -> PyResult<Option<(i64, i64, i64, usize)>> {
    run(py, "formats.packed_lengths", size_of_bytes(&data), || {
        let found = parquet::packed_lengths(&data, at, most)?;
        Some((found.count, found.total, found.longest, found.end))
    })
}
