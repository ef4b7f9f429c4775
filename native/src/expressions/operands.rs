//! Arrays of which one row may stand for all.

/// One item for all rows, or one for each.
#[derive(Clone, Copy)]
pub struct Each<'a, T> {
    items: &'a [T],
    /// No bits, or all: what an index is masked with.
    mask: usize,
}

/// What to mask the index of one of so many rows with.
#[inline]
pub fn mask_of(rows: usize) -> usize {
    if rows == 1 {
        0
    } else {
        usize::MAX
    }
}

impl<'a, T: Copy> Each<'a, T> {
    /// The items.
    pub fn new(items: &'a [T]) -> Self {
        Each { items, mask: mask_of(items.len()) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// That of a row.
    #[inline]
    pub fn get(&self, i: usize) -> T {
        self.items[i & self.mask]
    }
}

/// The rows of two operands.
pub fn rows_of(a: usize, b: usize) -> usize {
    if a == 0 || b == 0 {
        return 0;
    }
    a.max(b)
}
