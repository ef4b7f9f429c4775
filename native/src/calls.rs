//! How Python calls a kernel: without the GIL if that pays, and without a panic in the end.

use numpy::{Element, IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// From so many items on, other threads may run Python meanwhile: to give the GIL away and take it
/// back costs as much as a small kernel.
pub const DETACH_FROM: usize = 2_000;
/// Up to so many bytes, numpy allocates a result itself: an array that owns a vector costs more.
const COPIED_BYTES: usize = 4_096;

/// As many bytes take as long as one item.
const ITEM_BYTES: usize = 16;

thread_local! {
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keep the place of a panic for its error, in place of a line on standard error.
pub fn quiet_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_ours = info.location().is_some_and(|place| place.file().starts_with("src/"));
        if !is_ours {
            return before(info);
        }
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PLACE.with(|known| *known.borrow_mut() = place);
    }));
}

/// Run a kernel over `size` items. A panic becomes an InvariantError that names the kernel.
pub fn run<R: Send>(
    py: Python<'_>,
    kernel: &str,
    size: usize,
    work: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    let guarded = || catch_unwind(AssertUnwindSafe(work)).map_err(|panic| text_of(&*panic));
    let found = if size < DETACH_FROM { guarded() } else { py.detach(guarded) };
    found.map_err(|text| invariant_error(py, kernel, &text))
}

/// The size of the work on bytes, in items.
pub fn size_of_bytes(data: &[u8]) -> usize {
    data.len() / ITEM_BYTES
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    PLACE.with(|place| format!("{text} ({})", place.borrow()))
}

fn invariant_error(py: Python<'_>, kernel: &str, text: &str) -> PyErr {
    let made = py.import("dataflow.errors").and_then(|errors| {
        let error = errors.call_method1("kernel_error", (kernel, text))?;
        Ok(PyErr::from_value(error))
    });
    made.unwrap_or_else(|error| error)
}

/// A result of one dimension.
pub fn array<T: Element + Copy>(py: Python<'_>, items: Vec<T>) -> Bound<'_, PyArray1<T>> {
    if items.len() * size_of::<T>() <= COPIED_BYTES {
        return PyArray1::from_slice(py, &items);
    }
    items.into_pyarray(py)
}

/// Two results of one dimension, such as offsets and bytes.
pub fn arrays<A: Element + Copy, B: Element + Copy>(
    py: Python<'_>,
    (first, second): (Vec<A>, Vec<B>),
) -> (Bound<'_, PyArray1<A>>, Bound<'_, PyArray1<B>>) {
    (array(py, first), array(py, second))
}

/// A result of two dimensions, of rows of `width` items.
pub fn rows<T: Element + Copy>(
    py: Python<'_>,
    items: Vec<T>,
    count: usize,
    width: usize,
) -> PyResult<Bound<'_, PyArray2<T>>> {
    array(py, items).reshape([count, width])
}
