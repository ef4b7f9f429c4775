//! The only unsafe code: slices of numpy's arrays, and words and bytes at the addresses of pages.
//!
//! Invariants, which the Python callers keep: no other thread writes to an array while a kernel has
//! it; a kernel gets no two arrays that overlap if it writes to one; every page image and filter
//! whose address is passed stays in memory, unchanged, during the call, and is as long as its
//! header says. Images need not be aligned. Address 0 is a page that is not in memory.
#![allow(unsafe_code)]

use numpy::npyffi::flags::NPY_ARRAY_WRITEABLE;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Words of a page's header.
pub const HEADER: usize = 4;
/// Words at the start of a record: two hashes of the whole row.
pub const HASHES: usize = 2;

/// An array of one dimension, to be read: itself if its items lie side by side, else a copy.
pub struct Items<'a, T: Copy>(Cow<'a, [T]>);

/// A contiguous array of one dimension, to be written.
pub struct ItemsMut<'a, T>(&'a mut [T]);

/// A contiguous array of two dimensions, to be read.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    items: &'a [T],
    width: usize,
}

/// A contiguous array of two dimensions, to be written.
pub struct RowsMut<'a, T> {
    items: &'a mut [T],
    width: usize,
}

/// An array of one dimension whose items need not lie side by side, to be written.
pub struct StridedMut<'a, T> {
    first: *mut T,
    stride: isize,
    len: usize,
    lives: PhantomData<&'a mut T>,
}

/// An array of one dimension whose items need not lie side by side, to be read.
pub struct Strided<'a, T> {
    first: *const T,
    stride: isize,
    len: usize,
    lives: PhantomData<&'a T>,
}

fn refuse<X>(what: &str) -> PyResult<X> {
    Err(PyTypeError::new_err(format!("a kernel needs {what}")))
}

fn require<'py, A: PyUntypedArrayMethods<'py>>(array: &A, is_written: bool) -> PyResult<()> {
    if !array.is_aligned() {
        return refuse("an aligned array");
    }
    // SAFETY: the array object is alive, and its flags are plain data.
    let flags = unsafe { (*array.as_array_ptr()).fields.flags };
    if is_written && flags & NPY_ARRAY_WRITEABLE == 0 {
        return refuse("an array that may be written to");
    }
    Ok(())
}

fn require_side_by_side<'py, A: PyUntypedArrayMethods<'py>>(array: &A) -> PyResult<()> {
    if array.is_c_contiguous() {
        Ok(())
    } else {
        refuse("an array whose items lie side by side")
    }
}

impl<'a, 'py, T: Element + Copy> FromPyObject<'a, 'py> for Items<'a, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray1<T>>()?;
        if !(array.is_c_contiguous() && array.is_aligned()) {
            let copied = object.call_method0("copy")?;
            return Ok(Items(Cow::Owned(copied.cast::<PyArray1<T>>()?.to_vec()?)));
        }
        // SAFETY: the caller keeps the array alive and unchanged while 'a lasts; it is contiguous
        // and aligned.
        Ok(Items(Cow::Borrowed(unsafe { slice(array.data(), array.len()) })))
    }
}

impl<'a, 'py, T: Element> FromPyObject<'a, 'py> for ItemsMut<'a, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray1<T>>()?;
        require(&*array, true)?;
        require_side_by_side(&*array)?;
        // SAFETY: as for `Items`; it may be written to, and overlaps no other argument.
        Ok(ItemsMut(unsafe { slice_mut(array.data(), array.len()) }))
    }
}

impl<'a, 'py, T: Element> FromPyObject<'a, 'py> for Rows<'a, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray2<T>>()?;
        require(&*array, false)?;
        require_side_by_side(&*array)?;
        let width = array.dims()[1];
        // SAFETY: as for `Items`.
        let items = unsafe { slice(array.data(), array.len()) };
        Ok(Rows { items, width })
    }
}

impl<'a, 'py, T: Element> FromPyObject<'a, 'py> for RowsMut<'a, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray2<T>>()?;
        require(&*array, true)?;
        require_side_by_side(&*array)?;
        let width = array.dims()[1];
        // SAFETY: as for `ItemsMut`.
        let items = unsafe { slice_mut(array.data(), array.len()) };
        Ok(RowsMut { items, width })
    }
}

impl<'a, 'py, T: Element> FromPyObject<'a, 'py> for Strided<'a, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray1<T>>()?;
        require(&*array, false)?;
        let stride = array.strides()[0] / size_of::<T>() as isize;
        let (first, len) = (array.data().cast_const(), array.len());
        Ok(Strided { first, stride, len, lives: PhantomData })
    }
}

impl<'a, 'py, T: Element> FromPyObject<'a, 'py> for StridedMut<'a, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray1<T>>()?;
        require(&*array, true)?;
        let stride = array.strides()[0] / size_of::<T>() as isize;
        let (first, len) = (array.data(), array.len());
        Ok(StridedMut { first, stride, len, lives: PhantomData })
    }
}

/// # Safety
/// `first` is aligned and begins `len` items that live, unchanged, as long as 'a.
unsafe fn slice<'a, T>(first: *const T, len: usize) -> &'a [T] {
    // An array without items may have no address.
    if len == 0 {
        return &[];
    }
    // SAFETY: as this function's.
    unsafe { std::slice::from_raw_parts(first, len) }
}

/// # Safety
/// As `slice`; nothing else reads or writes the items meanwhile.
unsafe fn slice_mut<'a, T>(first: *mut T, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as this function's.
    unsafe { std::slice::from_raw_parts_mut(first, len) }
}

impl<T: Copy> Deref for Items<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> Deref for ItemsMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0
    }
}

impl<T> DerefMut for ItemsMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0
    }
}

impl<'a, T> Rows<'a, T> {
    /// The rows of `width` items each.
    pub fn new(items: &'a [T], width: usize) -> Self {
        Rows { items, width }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.items.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [T] {
        &self.items[row * self.width..][..self.width]
    }

    /// The rows from `start` to `stop`.
    pub fn part(&self, start: usize, stop: usize) -> Rows<'a, T> {
        Rows { items: &self.items[start * self.width..stop * self.width], width: self.width }
    }
}

impl<'a, T> RowsMut<'a, T> {
    /// The rows of `width` items each.
    pub fn new(items: &'a mut [T], width: usize) -> Self {
        RowsMut { items, width }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.items.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Both rows, if there are two.
    pub fn pair(&mut self) -> Option<(&mut [T], &mut [T])> {
        (self.len() == 2).then(|| self.items.split_at_mut(self.width))
    }

    /// One row.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        &mut self.items[row * self.width..][..self.width]
    }
}

impl<T: Copy> StridedMut<'_, T> {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Set one item.
    #[inline]
    pub fn set(&mut self, at: usize, value: T) {
        assert!(at < self.len);
        // SAFETY: numpy's item `at` is `at` strides after the first one.
        unsafe { *self.first.offset(at as isize * self.stride) = value }
    }
}

impl<T: Copy> Strided<'_, T> {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One item.
    #[inline]
    pub fn get(&self, at: usize) -> T {
        assert!(at < self.len);
        // SAFETY: numpy's item `at` is `at` strides after the first one.
        unsafe { *self.first.offset(at as isize * self.stride) }
    }
}

// SAFETY: as a shared reference to its items.
unsafe impl<T: Sync> Send for Strided<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Strided<'_, T> {}

// SAFETY: it is the only reference to its items.
unsafe impl<T: Send> Send for StridedMut<'_, T> {}

/// The image of a page: a header, the key hashes, the records, and the heap.
#[derive(Clone, Copy)]
pub struct Page {
    address: usize,
    rows: usize,
    stride: usize,
}

impl Page {
    /// The image at an address; None for a page that is not in memory.
    #[inline]
    pub fn at(address: i64) -> Option<Page> {
        if address == 0 {
            return None;
        }
        let shape = word_at(address as usize + 16);
        let (rows, stride) = ((shape & 0xFFFF_FFFF) as usize, (shape >> 32) as usize);
        Some(Page { address: address as usize, rows, stride })
    }

    /// The image at an address that was asked for in memory.
    #[inline]
    pub fn present(address: i64) -> Page {
        Page::at(address).expect("the page is in memory")
    }

    /// Its address, as it was passed.
    #[inline]
    pub fn address(&self) -> i64 {
        self.address as i64
    }

    /// How many rows it has.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The key hash of one row.
    #[inline]
    pub fn key_hash(&self, row: usize) -> u64 {
        debug_assert!(row < self.rows);
        word_at(self.address + 8 * (HEADER + row))
    }

    /// The record of one row.
    #[inline]
    pub fn record(&self, row: usize) -> Record {
        Record(self.address + 8 * (HEADER + self.rows + row * self.stride))
    }

    /// Bring the key hash of a row, which need not be there, nearer.
    #[inline]
    pub fn fetch_hash(&self, row: usize) {
        fetch(self.address + 8 * (HEADER + row));
    }

    /// A byte string: start << 32 | length, from the start of the image.
    #[inline]
    pub fn string(&self, packed: u64) -> &[u8] {
        let (start, len) = ((packed >> 32) as usize, (packed & 0xFFFF_FFFF) as usize);
        // SAFETY: the image has these bytes, which live as long as the call.
        unsafe { slice((self.address + start) as *const u8, len) }
    }
}

/// The record of one row of a page.
#[derive(Clone, Copy, Default)]
pub struct Record(usize);

impl Record {
    /// The record at an address that a kernel has returned.
    #[inline]
    pub fn at(address: i64) -> Record {
        Record(address as usize)
    }

    /// Its address, for a later call.
    #[inline]
    pub fn address(&self) -> i64 {
        self.0 as i64
    }

    /// One word of it.
    #[inline]
    pub fn word(&self, word: usize) -> u64 {
        word_at(self.0 + 8 * word)
    }

    /// Bring its first two cache lines nearer.
    #[inline]
    pub fn fetch(&self) {
        fetch(self.0);
        fetch(self.0 + 64);
    }
}

/// The bits of a filter: a word with their number, then the bits.
#[derive(Clone, Copy)]
pub struct FilterBits(usize);

impl FilterBits {
    /// The filter at an address; None without one.
    #[inline]
    pub fn at(address: i64) -> Option<FilterBits> {
        (address != 0).then_some(FilterBits(address as usize))
    }

    /// How many bits it has.
    #[inline]
    pub fn len(&self) -> u64 {
        word_at(self.0)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a bit below its number is set.
    #[inline]
    pub fn has(&self, bit: u64) -> bool {
        word_at(self.0 + 8 + 8 * (bit >> 6) as usize) >> (bit & 63) & 1 != 0
    }
}

/// Bring the header of a page, which may be absent, nearer.
#[inline]
pub fn fetch_page(address: i64) {
    fetch(address as usize);
}

#[inline]
fn word_at(address: usize) -> u64 {
    // SAFETY: it lies in a page image or a filter that the caller of the kernel keeps in memory.
    u64::from_le(unsafe { (address as *const u64).read_unaligned() })
}

#[inline]
fn fetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on caches.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The bytes of words, as they lie in memory.
#[inline]
pub fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: every word is eight bytes, and bytes may lie anywhere.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 8 * words.len()) }
}

/// As `bytes_of`, to be written.
#[inline]
pub fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as `bytes_of`; any eight bytes are a word.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 8 * words.len()) }
}
