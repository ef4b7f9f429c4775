//! The lookup: one call returns the rows of all keys in the pages of all runs.
//!
//! Rows of one key hash are adjacent in each run, sorted by their row hashes. Equal rows of several
//! runs are found by walking the runs in parallel; their totals are added. Invariant: a page that
//! is not in memory is reported, and then the result must not be used.

use super::search::{search_block, Pages, Place, BLOCK};
use crate::memory::{Page, Record};

/// Where the walk through one run stands: on a row of the key that is looked up.
#[derive(Clone, Copy)]
struct Cursor {
    /// The page of a run on disk and the end of the run; None for a run in memory.
    at: Option<(usize, usize)>,
    page: Page,
    row: usize,
    record: Record,
}

/// What follows a row of a key.
enum Next {
    Row(Cursor),
    NoMore,
    Missing(usize),
}

impl Cursor {
    fn on(at: Option<(usize, usize)>, address: i64, row: usize) -> Cursor {
        let page = Page::present(address);
        Cursor { at, page, row, record: page.record(row) }
    }

    /// The next row of the same key hash.
    #[inline]
    fn next(self, h: u64, pages: &mut Pages<'_>) -> Next {
        let row = self.row + 1;
        if row < self.page.rows() {
            if self.page.key_hash(row) != h {
                return Next::NoMore;
            }
            return Next::Row(Cursor { row, record: self.page.record(row), ..self });
        }
        match self.at {
            Some((page, stop)) if page + 1 < stop && pages.first[page + 1] == h => {
                let page = page + 1;
                pages.touched[page] = 1;
                if pages.addresses[page] == 0 {
                    return Next::Missing(page);
                }
                Next::Row(Cursor::on(Some((page, stop)), pages.addresses[page], 0))
            }
            _ => Next::NoMore,
        }
    }
}

/// The runs of a lookup, and what was found in them.
pub struct Probe<'a> {
    /// The sorted hashes that are looked up.
    pub hashes: &'a [u64],
    /// Run r has the pages from starts[r] to starts[r + 1].
    pub starts: &'a [i64],
    /// All pages.
    pub pages: Pages<'a>,
    /// Addresses of the runs that are one image.
    pub memory: &'a [i64],
    /// The words of a record from here on are added.
    pub value_at: usize,
    /// How many of them.
    pub width: usize,
}

/// Rows that were found: hits of (index into hashes, page, row, record), and totals.
#[derive(Default)]
pub struct Found {
    /// Four numbers a row.
    pub hits: Vec<i64>,
    /// `width` numbers a row.
    pub totals: Vec<i64>,
    /// Pages to bring in before another call.
    pub missing: Vec<i64>,
    /// How many hashes the result covers.
    pub done: usize,
}

impl Probe<'_> {
    /// Return every row whose key hash is among the hashes, equal rows summed.
    ///
    /// The result has no more than about `most` rows: `done` tells how many hashes it covers, 0 if
    /// the first one alone has more rows than fit.
    pub fn run(mut self, most: usize) -> Found {
        let runs = self.starts.len() - 1 + self.memory.len();
        let mut places = vec![Place::Absent; runs * BLOCK];
        let mut cursors = Vec::with_capacity(runs);
        let mut found = Found::default();
        let mut previous = 0;
        let limit = most.max(2 * self.hashes.len() + 16);
        for i in 0..self.hashes.len() {
            if i % BLOCK == 0 {
                let block = &self.hashes[i..self.hashes.len().min(i + BLOCK)];
                search_block(block, self.starts, &mut self.pages, self.memory, &mut places);
            }
            let begin = found.hits.len() / 4;
            if i > 0 && self.hashes[i] == self.hashes[i - 1] {
                if 2 * begin - previous > limit {
                    found.done = i;
                    return found;
                }
                self.repeat(&mut found, previous, i);
            } else {
                self.set_cursors(i % BLOCK, &places, &mut cursors, &mut found.missing);
                if !self.take_rows(i, &mut cursors, &mut found, limit) {
                    found.hits.truncate(4 * begin);
                    found.totals.truncate(self.width * begin);
                    found.done = i;
                    return found;
                }
            }
            previous = begin;
        }
        found.done = self.hashes.len();
        found
    }

    /// Repeat the rows of the previous key, which has the same hash, for key i.
    fn repeat(&self, found: &mut Found, previous: usize, i: usize) {
        let (hits, totals) = (4 * previous, self.width * previous);
        let end = found.hits.len();
        found.hits.extend_from_within(hits..);
        for hit in found.hits[end..].chunks_exact_mut(4) {
            hit[0] = i as i64;
        }
        found.totals.extend_from_within(totals..);
    }

    /// Put a cursor on the rows of key x of a block in each run that has some.
    fn set_cursors(
        &self,
        x: usize,
        places: &[Place],
        cursors: &mut Vec<Cursor>,
        missing: &mut Vec<i64>,
    ) {
        cursors.clear();
        let on_disk = self.starts.len() - 1;
        for (run, of_run) in places.chunks_exact(BLOCK).enumerate() {
            match of_run[x] {
                Place::Absent => {}
                Place::Missing(page) => missing.push(page as i64),
                Place::Row(page, row) if run < on_disk => {
                    let at = Some((page, self.starts[run + 1] as usize));
                    cursors.push(Cursor::on(at, self.pages.addresses[page], row));
                }
                Place::Row(_, row) => {
                    cursors.push(Cursor::on(None, self.memory[run - on_disk], row));
                }
            }
        }
    }

    /// Add the rows under the cursors for key i, equal ones summed and zeros left out; return false
    /// if there is no space for them.
    fn take_rows(
        &mut self,
        i: usize,
        cursors: &mut Vec<Cursor>,
        found: &mut Found,
        limit: usize,
    ) -> bool {
        while !cursors.is_empty() && found.missing.is_empty() {
            if found.hits.len() / 4 >= limit {
                return false;
            }
            let (best, identity) = smallest(cursors);
            let (hit, begin) = (cursors[best], found.totals.len());
            found.totals.resize(begin + self.width, 0);
            let mut c = best;
            while c < cursors.len() {
                let record = cursors[c].record;
                if (record.word(0), record.word(1)) != identity {
                    c += 1;
                    continue;
                }
                for (v, total) in found.totals[begin..].iter_mut().enumerate() {
                    *total = total.wrapping_add(record.word(self.value_at + v) as i64);
                }
                match cursors[c].next(self.hashes[i], &mut self.pages) {
                    Next::Row(next) => {
                        cursors[c] = next;
                        c += 1;
                    }
                    Next::NoMore => drop(cursors.swap_remove(c)),
                    Next::Missing(page) => {
                        found.missing.push(page as i64);
                        cursors.clear();
                    }
                }
            }
            if found.totals[begin..].iter().any(|total| *total != 0) {
                let (page, row) = (hit.page.address(), hit.row as i64);
                found.hits.extend([i as i64, page, row, hit.record.address()]);
            } else {
                found.totals.truncate(begin);
            }
        }
        true
    }
}

/// The cursor whose row has the smallest row hashes, and these.
#[inline]
fn smallest(cursors: &[Cursor]) -> (usize, (u64, u64)) {
    let identity = |c: &Cursor| (c.record.word(0), c.record.word(1));
    let mut best = (0, identity(&cursors[0]));
    for (at, cursor) in cursors.iter().enumerate().skip(1) {
        let found = identity(cursor);
        if found < best.1 {
            best = (at, found);
        }
    }
    best
}
