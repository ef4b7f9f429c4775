//! Kernels of `dataflow.expressions`: numbers, timestamps and texts.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod division;
pub(crate) mod limbs;
mod numbers;
mod operands;
mod stamps;
mod texts;
mod words;

use crate::calls::{self, array, arrays, run};
use crate::memory::{Items, Rows};
use crate::strings::Strings;
use numbers::{Numbers, Operation};
use operands::Each;
use stamps::Field;
use words::{Found, Words};

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;
type Texts<'py> = PyResult<(Array<'py, i64>, Array<'py, u8>)>;
type Checked<'py, T> = PyResult<(Array<'py, T>, bool)>;
type Units<'py> = PyResult<(Array<'py, i64>, Array<'py, i64>, bool)>;
type WordArrays<'py> = PyResult<(Array<'py, i8>, Table<'py, u64>, Array<'py, i64>, bool)>;

/// Add the functions of this part to its module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_constants(module)?;
    module.add_function(wrap_pyfunction!(parse_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(format_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(rescale_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(combine_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(compare_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(round_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(floor_or_ceil, module)?)?;
    module.add_function(wrap_pyfunction!(strip_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(words_of_units, module)?)?;
    module.add_function(wrap_pyfunction!(parse_words, module)?)?;
    module.add_function(wrap_pyfunction!(format_words, module)?)?;
    module.add_function(wrap_pyfunction!(combine_words, module)?)?;
    module.add_function(wrap_pyfunction!(compare_words, module)?)?;
    module.add_function(wrap_pyfunction!(divide_words, module)?)?;
    module.add_function(wrap_pyfunction!(round_words, module)?)?;
    module.add_function(wrap_pyfunction!(rank_keys, module)?)?;
    module.add_function(wrap_pyfunction!(strip_words, module)?)?;
    module.add_function(wrap_pyfunction!(shift, module)?)?;
    module.add_function(wrap_pyfunction!(make_days, module)?)?;
    module.add_function(wrap_pyfunction!(fields, module)?)?;
    module.add_function(wrap_pyfunction!(truncate, module)?)?;
    module.add_function(wrap_pyfunction!(compare_texts, module)?)?;
    module.add_function(wrap_pyfunction!(differ, module)?)?;
    module.add_function(wrap_pyfunction!(blank, module)?)?;
    module.add_function(wrap_pyfunction!(not_ascii, module)?)?;
    module.add_function(wrap_pyfunction!(lengths, module)?)?;
    module.add_function(wrap_pyfunction!(cut, module)?)?;
    module.add_function(wrap_pyfunction!(trim, module)?)?;
    module.add_function(wrap_pyfunction!(join, module)?)?;
    module.add_function(wrap_pyfunction!(find, module)?)?;
    module.add_function(wrap_pyfunction!(match_like, module)?)?;
    module.add_function(wrap_pyfunction!(pad_blank, module)?)?;
    module.add_function(wrap_pyfunction!(change_case, module)?)
}

fn register_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ADD", Operation::Add as u8)?;
    module.add("SUBTRACT", Operation::Subtract as u8)?;
    module.add("MULTIPLY", Operation::Multiply as u8)?;
    module.add("NOT_A_NUMBER", limbs::NOT_A_NUMBER)?;
    module.add("ANY_RUN", texts::ANY_RUN)?;
    module.add("ANY_ONE", texts::ANY_ONE)?;
    Field::ALL.iter().try_for_each(|(name, field)| module.add(*name, *field as u8))
}

fn operation_of(number: u8) -> PyResult<Operation> {
    match number {
        0 => Ok(Operation::Add),
        1 => Ok(Operation::Subtract),
        2 => Ok(Operation::Multiply),
        _ => Err(PyValueError::new_err("an operation is ADD, SUBTRACT or MULTIPLY")),
    }
}

fn field_of(number: usize) -> PyResult<Field> {
    let found = Field::ALL.get(number).map(|(_, field)| *field);
    found.ok_or_else(|| PyValueError::new_err("there is no such field of the calendar"))
}

fn numbers<'a>(units: &'a Items<'_, i64>, scales: &'a Items<'_, i64>) -> Numbers<'a> {
    Numbers { units, scales: Each::new(scales) }
}

fn words<'a>(
    signs: &'a Items<'_, i8>,
    words: Rows<'a, u64>,
    scales: &'a Items<'_, i64>,
) -> Words<'a> {
    Words { signs: Each::new(signs), words, scales: Each::new(scales) }
}

fn word_arrays(py: Python<'_>, found: Found) -> WordArrays<'_> {
    let limbs = calls::rows(py, found.words, found.signs.len(), words::WIDTH)?;
    Ok((array(py, found.signs), limbs, array(py, found.scales), found.fits))
}

#[pyfunction]
fn parse_numbers<'py>(py: Python<'py>, offsets: Items<'_, i64>, data: Items<'_, u8>) -> Units<'py> {
    let texts = Strings::new(&offsets, &data);
    let work = || numbers::parse(texts);
    let (units, scales, fits) = run(py, "expressions.parse_numbers", texts.len(), work)?;
    Ok((array(py, units), array(py, scales), fits))
}

#[pyfunction]
fn format_numbers<'py>(
    py: Python<'py>,
    units: Items<'_, i64>,
    scales: Items<'_, i64>,
    valid: Items<'_, bool>,
) -> Texts<'py> {
    let work = || numbers::format(numbers(&units, &scales), &valid);
    Ok(arrays(py, run(py, "expressions.format_numbers", units.len(), work)?))
}

#[pyfunction]
fn rescale_numbers<'py>(
    py: Python<'py>,
    units: Items<'_, i64>,
    scales: Items<'_, i64>,
    scale: i64,
    valid: Items<'_, bool>,
) -> Checked<'py, i64> {
    let work = || numbers::rescale(numbers(&units, &scales), scale, &valid);
    let (units, fits) = run(py, "expressions.rescale_numbers", units.len(), work)?;
    Ok((array(py, units), fits))
}

#[pyfunction]
fn combine_numbers<'py>(
    py: Python<'py>,
    operation: u8,
    a: Items<'_, i64>,
    a_scales: Items<'_, i64>,
    b: Items<'_, i64>,
    b_scales: Items<'_, i64>,
) -> Units<'py> {
    let operation = operation_of(operation)?;
    let work = || numbers::combine(operation, numbers(&a, &a_scales), numbers(&b, &b_scales));
    let size = a.len().max(b.len());
    let (units, scales, fits) = run(py, "expressions.combine_numbers", size, work)?;
    Ok((array(py, units), array(py, scales), fits))
}

#[pyfunction]
fn compare_numbers<'py>(
    py: Python<'py>,
    a: Items<'_, i64>,
    a_scales: Items<'_, i64>,
    b: Items<'_, i64>,
    b_scales: Items<'_, i64>,
) -> PyResult<Array<'py, i8>> {
    let work = || numbers::compare(numbers(&a, &a_scales), numbers(&b, &b_scales));
    Ok(array(py, run(py, "expressions.compare_numbers", a.len().max(b.len()), work)?))
}

#[pyfunction]
fn round_numbers<'py>(
    py: Python<'py>,
    units: Items<'_, i64>,
    scales: Items<'_, i64>,
    scale: i64,
    is_half_up: bool,
    valid: Items<'_, bool>,
) -> Checked<'py, i64> {
    let work = || numbers::round_to(numbers(&units, &scales), scale, is_half_up, &valid);
    let (units, fits) = run(py, "expressions.round_numbers", units.len(), work)?;
    Ok((array(py, units), fits))
}

#[pyfunction]
fn floor_or_ceil<'py>(
    py: Python<'py>,
    units: Items<'_, i64>,
    scales: Items<'_, i64>,
    up: bool,
) -> PyResult<Array<'py, i64>> {
    let work = || numbers::floor_or_ceil(numbers(&units, &scales), up);
    Ok(array(py, run(py, "expressions.floor_or_ceil", units.len(), work)?))
}

#[pyfunction]
fn strip_numbers<'py>(
    py: Python<'py>,
    units: Items<'_, i64>,
    scales: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, i64>)> {
    let work = || numbers::strip(numbers(&units, &scales));
    Ok(arrays(py, run(py, "expressions.strip_numbers", units.len(), work)?))
}

#[pyfunction]
fn words_of_units<'py>(
    py: Python<'py>,
    units: Items<'_, i64>,
    scales: Items<'_, i64>,
) -> PyResult<(Array<'py, i8>, Table<'py, u64>, Array<'py, i64>)> {
    let work = || words::of_units(&units, Each::new(&scales));
    let found = run(py, "expressions.words_of_units", units.len(), work)?;
    let (signs, words, scales, _) = word_arrays(py, found)?;
    Ok((signs, words, scales))
}

#[pyfunction]
fn parse_words<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
) -> WordArrays<'py> {
    let texts = Strings::new(&offsets, &data);
    let work = || words::parse(texts);
    word_arrays(py, run(py, "expressions.parse_words", texts.len(), work)?)
}

#[pyfunction]
fn format_words<'py>(
    py: Python<'py>,
    signs: Items<'_, i8>,
    limbs: Rows<'_, u64>,
    scales: Items<'_, i64>,
    valid: Items<'_, bool>,
) -> Texts<'py> {
    let work = || words::format(words(&signs, limbs, &scales), &valid);
    Ok(arrays(py, run(py, "expressions.format_words", signs.len(), work)?))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn combine_words<'py>(
    py: Python<'py>,
    operation: u8,
    a_signs: Items<'_, i8>,
    a_limbs: Rows<'_, u64>,
    a_scales: Items<'_, i64>,
    b_signs: Items<'_, i8>,
    b_limbs: Rows<'_, u64>,
    b_scales: Items<'_, i64>,
) -> WordArrays<'py> {
    let operation = operation_of(operation)?;
    let a = words(&a_signs, a_limbs, &a_scales);
    let b = words(&b_signs, b_limbs, &b_scales);
    let work = || words::combine(operation, a, b);
    word_arrays(py, run(py, "expressions.combine_words", a.len().max(b.len()), work)?)
}

#[pyfunction]
fn compare_words<'py>(
    py: Python<'py>,
    a_signs: Items<'_, i8>,
    a_limbs: Rows<'_, u64>,
    a_scales: Items<'_, i64>,
    b_signs: Items<'_, i8>,
    b_limbs: Rows<'_, u64>,
    b_scales: Items<'_, i64>,
) -> Checked<'py, i8> {
    let a = words(&a_signs, a_limbs, &a_scales);
    let b = words(&b_signs, b_limbs, &b_scales);
    let work = || words::compare(a, b);
    let (signs, fits) = run(py, "expressions.compare_words", a.len().max(b.len()), work)?;
    Ok((array(py, signs), fits))
}

#[pyfunction]
fn divide_words<'py>(
    py: Python<'py>,
    a_signs: Items<'_, i8>,
    a_limbs: Rows<'_, u64>,
    a_scales: Items<'_, i64>,
    b_signs: Items<'_, i8>,
    b_limbs: Rows<'_, u64>,
    b_scales: Items<'_, i64>,
) -> WordArrays<'py> {
    let a = words(&a_signs, a_limbs, &a_scales);
    let b = words(&b_signs, b_limbs, &b_scales);
    let work = || division::divide(a, b);
    word_arrays(py, run(py, "expressions.divide_words", a.len().max(b.len()), work)?)
}

#[pyfunction]
fn round_words<'py>(
    py: Python<'py>,
    signs: Items<'_, i8>,
    limbs: Rows<'_, u64>,
    scales: Items<'_, i64>,
    scale: i64,
    is_half_up: bool,
) -> Checked<'py, i64> {
    let work = || division::round_to(words(&signs, limbs, &scales), scale, is_half_up);
    let (units, fits) = run(py, "expressions.round_words", signs.len(), work)?;
    Ok((array(py, units), fits))
}

#[pyfunction]
fn rank_keys<'py>(
    py: Python<'py>,
    signs: Items<'_, i8>,
    limbs: Rows<'_, u64>,
    scales: Items<'_, i64>,
    scale: i64,
) -> PyResult<(Table<'py, i64>, bool)> {
    let work = || division::rank_keys(words(&signs, limbs, &scales), scale);
    let (keys, fits) = run(py, "expressions.rank_keys", signs.len(), work)?;
    Ok((calls::rows(py, keys, words::WIDTH + 1, signs.len())?, fits))
}

#[pyfunction]
fn strip_words<'py>(
    py: Python<'py>,
    signs: Items<'_, i8>,
    limbs: Rows<'_, u64>,
    scales: Items<'_, i64>,
) -> PyResult<(Table<'py, u64>, Array<'py, i64>)> {
    let work = || division::strip(words(&signs, limbs, &scales));
    let (limbs, scales) = run(py, "expressions.strip_words", signs.len(), work)?;
    Ok((calls::rows(py, limbs, signs.len(), words::WIDTH)?, array(py, scales)))
}

#[pyfunction]
fn shift<'py>(
    py: Python<'py>,
    stamps: Items<'_, i64>,
    months: Items<'_, i64>,
    days: Items<'_, i64>,
    micros: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, bool>)> {
    let spans = stamps::Spans {
        months: Each::new(&months),
        days: Each::new(&days),
        micros: Each::new(&micros),
    };
    let work = || stamps::shift(Each::new(&stamps), &spans);
    let size = stamps.len().max(months.len());
    Ok(arrays(py, run(py, "expressions.shift", size, work)?))
}

#[pyfunction]
fn make_days<'py>(
    py: Python<'py>,
    years: Items<'_, i64>,
    months: Items<'_, i64>,
    days: Items<'_, i64>,
) -> PyResult<(Array<'py, i64>, Array<'py, bool>)> {
    let work = || stamps::make_days(&years, &months, &days);
    Ok(arrays(py, run(py, "expressions.make_days", years.len(), work)?))
}

#[pyfunction]
fn fields<'py>(py: Python<'py>, days: Items<'_, i64>, which: usize) -> PyResult<Array<'py, i64>> {
    let field = field_of(which)?;
    let work = || stamps::fields(&days, field);
    Ok(array(py, run(py, "expressions.fields", days.len(), work)?))
}

#[pyfunction]
fn truncate<'py>(
    py: Python<'py>,
    stamps: Items<'_, i64>,
    which: usize,
) -> PyResult<Array<'py, i64>> {
    let field = field_of(which)?;
    let work = || stamps::truncate(&stamps, field);
    Ok(array(py, run(py, "expressions.truncate", stamps.len(), work)?))
}

#[pyfunction]
fn compare_texts<'py>(
    py: Python<'py>,
    a_offsets: Items<'_, i64>,
    a_data: Items<'_, u8>,
    b_offsets: Items<'_, i64>,
    b_data: Items<'_, u8>,
    is_blank_padded: bool,
) -> PyResult<Array<'py, i8>> {
    let (a, b) = (Strings::new(&a_offsets, &a_data), Strings::new(&b_offsets, &b_data));
    let work = || texts::compare(a, b, is_blank_padded);
    Ok(array(py, run(py, "expressions.compare_texts", a.len().max(b.len()), work)?))
}

#[pyfunction]
fn differ<'py>(
    py: Python<'py>,
    a_offsets: Items<'_, i64>,
    a_data: Items<'_, u8>,
    b_offsets: Items<'_, i64>,
    b_data: Items<'_, u8>,
    is_blank_padded: bool,
) -> PyResult<Array<'py, bool>> {
    let (a, b) = (Strings::new(&a_offsets, &a_data), Strings::new(&b_offsets, &b_data));
    let work = || texts::differ(a, b, is_blank_padded);
    Ok(array(py, run(py, "expressions.differ", a.len().max(b.len()), work)?))
}

#[pyfunction]
fn blank<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    valid: Items<'_, bool>,
) -> Texts<'py> {
    let work = || texts::blank(Strings::new(&offsets, &data), &valid);
    Ok(arrays(py, run(py, "expressions.blank", valid.len(), work)?))
}

#[pyfunction]
fn not_ascii<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
) -> PyResult<Array<'py, bool>> {
    let work = || texts::not_ascii(Strings::new(&offsets, &data));
    Ok(array(py, run(py, "expressions.not_ascii", offsets.len(), work)?))
}

#[pyfunction]
fn lengths<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    is_blank_padded: bool,
) -> PyResult<Array<'py, i64>> {
    let work = || texts::lengths(Strings::new(&offsets, &data), is_blank_padded);
    Ok(array(py, run(py, "expressions.lengths", offsets.len(), work)?))
}

#[pyfunction]
fn cut<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    first: Items<'_, i64>,
    stop: Items<'_, i64>,
) -> Texts<'py> {
    let texts = Strings::new(&offsets, &data);
    let work = || texts::cut(texts, Each::new(&first), Each::new(&stop));
    let size = texts.len().max(first.len()).max(stop.len());
    Ok(arrays(py, run(py, "expressions.cut", size, work)?))
}

#[pyfunction]
fn trim<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    unwanted: Items<'_, bool>,
    at_left: bool,
    at_right: bool,
) -> Texts<'py> {
    let texts = Strings::new(&offsets, &data);
    let work = || texts::trim(texts, &unwanted, at_left, at_right);
    Ok(arrays(py, run(py, "expressions.trim", texts.len(), work)?))
}

#[pyfunction]
fn join<'py>(
    py: Python<'py>,
    a_offsets: Items<'_, i64>,
    a_data: Items<'_, u8>,
    b_offsets: Items<'_, i64>,
    b_data: Items<'_, u8>,
) -> Texts<'py> {
    let (a, b) = (Strings::new(&a_offsets, &a_data), Strings::new(&b_offsets, &b_data));
    let work = || texts::join(a, b);
    Ok(arrays(py, run(py, "expressions.join", a.len().max(b.len()), work)?))
}

#[pyfunction]
fn find<'py>(
    py: Python<'py>,
    a_offsets: Items<'_, i64>,
    a_data: Items<'_, u8>,
    b_offsets: Items<'_, i64>,
    b_data: Items<'_, u8>,
) -> PyResult<Array<'py, i64>> {
    let (a, b) = (Strings::new(&a_offsets, &a_data), Strings::new(&b_offsets, &b_data));
    let work = || texts::find(a, b);
    Ok(array(py, run(py, "expressions.find", a.len().max(b.len()), work)?))
}

#[pyfunction]
fn match_like<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    codes: Items<'_, i64>,
) -> PyResult<Array<'py, bool>> {
    let work = || texts::match_like(Strings::new(&offsets, &data), &codes);
    Ok(array(py, run(py, "expressions.match_like", offsets.len(), work)?))
}

#[pyfunction]
fn pad_blank<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    size: usize,
) -> PyResult<(Array<'py, i64>, Array<'py, u8>, Array<'py, bool>)> {
    let work = || texts::pad_blank(Strings::new(&offsets, &data), size);
    let (offsets, data, too_long) = run(py, "expressions.pad_blank", offsets.len(), work)?;
    Ok((array(py, offsets), array(py, data), array(py, too_long)))
}

#[pyfunction]
fn change_case<'py>(
    py: Python<'py>,
    offsets: Items<'_, i64>,
    data: Items<'_, u8>,
    first: u8,
    last: u8,
    by: i64,
) -> Texts<'py> {
    let work = || texts::change_case(&offsets, &data, first, last, by);
    Ok(arrays(py, run(py, "expressions.change_case", offsets.len(), work)?))
}
