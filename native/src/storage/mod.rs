//! Kernels of the package `storage`: hashes, pages and the search in them.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

pub(crate) mod columns;
mod filter;
mod hash;
mod lookup;
mod merging;
mod rows;
mod search;

use crate::calls::{self, array, arrays, run};
use crate::memory::{FilterBits, Items, ItemsMut, Page, Rows, RowsMut, Strided, StridedMut};

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;
/// First hashes, addresses, touched, filters of all pages.
type PageArrays<'a> = (Items<'a, u64>, Items<'a, i64>, ItemsMut<'a, u8>, Items<'a, i64>);

/// Add the functions of this package to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mix_fixed, module)?)?;
    module.add_function(wrap_pyfunction!(mix_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(take_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(equal_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(group_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(sum_by_group, module)?)?;
    module.add_function(wrap_pyfunction!(bisect_runs, module)?)?;
    module.add_function(wrap_pyfunction!(pack_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(hash_rows, module)?)?;
    module.add_function(wrap_pyfunction!(resolve_order, module)?)?;
    module.add_function(wrap_pyfunction!(hits_of, module)?)?;
    module.add_function(wrap_pyfunction!(gather_words, module)?)?;
    module.add_function(wrap_pyfunction!(gather_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(heap_ends, module)?)?;
    module.add_function(wrap_pyfunction!(write_page, module)?)?;
    module.add_function(wrap_pyfunction!(write_pages, module)?)?;
    module.add_function(wrap_pyfunction!(may_contain, module)?)?;
    module.add_function(wrap_pyfunction!(filter_of, module)?)?;
    module.add_function(wrap_pyfunction!(page_bound, module)?)?;
    module.add_function(wrap_pyfunction!(merge, module)?)?;
    module.add_function(wrap_pyfunction!(probe, module)?)
}

#[pyfunction]
fn mix_fixed(
    py: Python<'_>,
    mut hashes: RowsMut<'_, u64>,
    values: Items<'_, u64>,
    valid: Items<'_, bool>,
) -> PyResult<()> {
    let size = values.len();
    run(py, "storage.mix_fixed", size, move || columns::mix_fixed(&mut hashes, &values, &valid))
}

#[pyfunction]
fn mix_bytes(
    py: Python<'_>,
    mut hashes: RowsMut<'_, u64>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
    seeds: Items<'_, u64>,
) -> PyResult<()> {
    run(py, "storage.mix_bytes", offsets.len(), move || {
        columns::mix_bytes(&mut hashes, &offsets, &data, &valid, &seeds);
    })
}

#[pyfunction]
fn take_bytes<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    index: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>)> {
    let work = || columns::take_bytes(&offsets, &data, &index);
    Ok(arrays(py, run(py, "storage.take_bytes", index.len(), work)?))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn equal_bytes(
    py: Python<'_>,
    left_offsets: Items<'_, i64>,
    left_data: Items<'_, u8>,
    left_index: Items<'_, i64>,
    right_offsets: Items<'_, i64>,
    right_data: Items<'_, u8>,
    right_index: Items<'_, i64>,
    mut out: ItemsMut<'_, bool>,
) -> PyResult<()> {
    run(py, "storage.equal_bytes", left_index.len(), move || {
        let left = columns::Picked { offsets: &left_offsets, data: &left_data, index: &left_index };
        let right =
            columns::Picked { offsets: &right_offsets, data: &right_data, index: &right_index };
        columns::equal_bytes(&left, &right, &mut out);
    })
}

#[pyfunction]
fn group_hashes<'py>(
    py: Python<'py>,
    first: Items<'_, u64>,
    second: Items<'_, u64>,
) -> PyResult<(Array<'py, i64>, Array<'py, i64>)> {
    let work = || columns::group_hashes(&first, &second);
    Ok(arrays(py, run(py, "storage.group_hashes", first.len(), work)?))
}

#[pyfunction]
fn sum_by_group<'py>(
    py: Python<'py>,
    group: Items<'_, i64>,
    weights: Strided<'_, i64>,
    groups: usize,
) -> PyResult<Array<'py, i64>> {
    let work = || rows::sum_by_group(&group, |i| weights.get(i), groups);
    Ok(array(py, run(py, "storage.sum_by_group", group.len(), work)?))
}

#[pyfunction]
fn bisect_runs<'py>(
    py: Python<'py>,
    values: Items<'_, i64>,
    low: Items<'_, i64>,
    high: Items<'_, i64>,
    sought: Items<'_, i64>,
    is_after: Items<'_, bool>,
) -> PyResult<Array<'py, i64>> {
    let work = || columns::bisect_runs(&values, &low, &high, &sought, &is_after);
    Ok(array(py, run(py, "storage.bisect_runs", sought.len(), work)?))
}

#[pyfunction]
fn pack_bytes(
    py: Python<'_>,
    offsets: Items<'_, i64>,
    base: i64,
    mut out: StridedMut<'_, u64>,
) -> PyResult<()> {
    run(py, "storage.pack_bytes", out.len(), move || {
        (0..out.len()).for_each(|i| out.set(i, rows::packed(&offsets, base, i)));
    })
}

#[pyfunction]
#[pyo3(signature = (image, rows, key, masks, is_bytes, seeds))]
fn hash_rows(
    py: Python<'_>,
    mut image: ItemsMut<'_, u64>,
    rows: usize,
    key: Items<'_, i64>,
    masks: usize,
    is_bytes: Items<'_, bool>,
    seeds: Items<'_, u64>,
) -> PyResult<()> {
    run(py, "storage.hash_rows", rows, move || {
        let columns = rows::Columns { key: &key, masks, is_bytes: &is_bytes };
        rows::hash_rows(&mut image, rows, &columns, &seeds);
    })
}

#[pyfunction]
fn resolve_order<'py>(
    py: Python<'py>,
    mut order: ItemsMut<'_, i64>,
    hashes: Items<'_, u64>,
    records: Rows<'_, u64>,
    value_at: usize,
) -> PyResult<(Array<'py, i64>, Table<'py, i64>)> {
    let (size, width) = (order.len(), records.width() - value_at);
    let (found, totals) = run(py, "storage.resolve_order", size, move || {
        rows::resolve_order(&mut order, &hashes, records, value_at)
    })?;
    let totals = calls::rows(py, totals, found.len(), width)?;
    Ok((array(py, found), totals))
}

#[pyfunction]
#[pyo3(signature = (address, rows))]
fn hits_of<'py>(py: Python<'py>, address: i64, rows: Items<'_, i64>) -> PyResult<Table<'py, i64>> {
    let work = || rows::hits_of(Page::present(address), &rows);
    let hits = run(py, "storage.hits_of", rows.len(), work)?;
    calls::rows(py, hits, rows.len(), rows::HIT)
}

#[pyfunction]
fn gather_words<'py>(
    py: Python<'py>,
    hits: Rows<'_, i64>,
    start: usize,
    count: usize,
) -> PyResult<Table<'py, u64>> {
    let work = || rows::gather_words(hits, start, count);
    let words = run(py, "storage.gather_words", hits.len() * count, work)?;
    calls::rows(py, words, count, hits.len())
}

#[pyfunction]
fn gather_bytes<'py>(
    py: Python<'py>,
    hits: Rows<'_, i64>,
    packed: Items<'_, u64>,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>)> {
    let work = || rows::gather_bytes(hits, &packed);
    Ok(arrays(py, run(py, "storage.gather_bytes", packed.len(), work)?))
}

#[pyfunction]
fn heap_ends<'py>(
    py: Python<'py>,
    hits: Rows<'_, i64>,
    columns: Items<'_, i64>,
) -> PyResult<Array<'py, i64>> {
    let work = || rows::heap_ends(hits, &columns);
    Ok(array(py, run(py, "storage.heap_ends", hits.len(), work)?))
}

#[pyfunction]
fn write_page(
    py: Python<'_>,
    mut out: ItemsMut<'_, u64>,
    hits: Rows<'_, i64>,
    totals: Rows<'_, i64>,
    columns: Items<'_, i64>,
    header: Items<'_, u64>,
) -> PyResult<()> {
    run(py, "storage.write_page", hits.len(), move || {
        let selection = rows::Selection { hits, totals, columns: &columns };
        rows::write_page(&mut out, selection, &header);
    })
}

#[pyfunction]
fn write_pages(
    py: Python<'_>,
    mut out: ItemsMut<'_, u64>,
    ends: Items<'_, i64>,
    bounds: Items<'_, i64>,
    selection: (Rows<'_, i64>, Rows<'_, i64>),
    columns: Items<'_, i64>,
    header: Items<'_, u64>,
) -> PyResult<()> {
    let (hits, totals) = selection;
    run(py, "storage.write_pages", hits.len(), move || {
        let selection = rows::Selection { hits, totals, columns: &columns };
        rows::write_pages(&mut out, &ends, &bounds, selection, &header);
    })
}

#[pyfunction]
fn may_contain(py: Python<'_>, address: i64, h: u64) -> PyResult<bool> {
    run(py, "storage.may_contain", 1, || {
        FilterBits::at(address).is_none_or(|filter| filter::may_contain(filter, h))
    })
}

#[pyfunction]
fn filter_of(py: Python<'_>, address: i64) -> PyResult<Array<'_, u64>> {
    let page = Page::at(address);
    let rows = page.map_or(0, |page| page.rows());
    let work = || filter::filter_of(page.expect("the page is in memory"));
    Ok(array(py, run(py, "storage.filter_of", rows, work)?))
}

#[pyfunction]
fn page_bound(
    py: Python<'_>,
    first: Items<'_, u64>,
    first_row: Items<'_, u64>,
    h: u64,
    r: u64,
) -> PyResult<usize> {
    run(py, "storage.page_bound", 1, || merging::page_bound(&first, &first_row, (h, r)))
}

#[pyfunction]
fn merge<'py>(
    py: Python<'py>,
    segments: Items<'_, i64>,
    starts: Items<'_, i64>,
    window: Items<'_, u64>,
    value_at: usize,
    width: usize,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>)> {
    let bounds = merging::Window {
        from: (window[0], window[1]),
        to: (window[4] != 0).then(|| (window[2], window[3])),
    };
    let size: usize = segments.iter().filter_map(|&a| Page::at(a)).map(|p| p.rows()).sum();
    let work = || merging::merge(&segments, &starts, bounds, value_at, width);
    let (hits, totals) = run(py, "storage.merge", size, work)?;
    let count = hits.len() / rows::HIT;
    Ok((calls::rows(py, hits, count, rows::HIT)?, calls::rows(py, totals, count, width)?))
}

#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
fn probe<'py>(
    py: Python<'py>,
    hashes: Items<'_, u64>,
    starts: Items<'_, i64>,
    pages: PageArrays<'_>,
    memory: Items<'_, i64>,
    value_at: usize,
    width: usize,
    most: usize,
) -> PyResult<(Table<'py, i64>, Table<'py, i64>, Array<'py, i64>, usize)> {
    let (first, addresses, mut touched, filters) = pages;
    let found = run(py, "storage.probe", hashes.len(), || {
        let pages = search::Pages {
            first: &first,
            addresses: &addresses,
            touched: &mut touched,
            filters: &filters,
        };
        let (hashes, starts, memory) = (&*hashes, &*starts, &*memory);
        lookup::Probe { hashes, starts, pages, memory, value_at, width }.run(most)
    })?;
    let count = found.hits.len() / rows::HIT;
    let hits = calls::rows(py, found.hits, count, rows::HIT)?;
    let totals = calls::rows(py, found.totals, count, width)?;
    Ok((hits, totals, array(py, found.missing), found.done))
}
