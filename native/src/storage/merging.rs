//! The merge of sorted runs, within a window of row identities.
//!
//! Rows are sorted by (key hash, row hash, second row hash); equal rows are summed, and rows that
//! sum to zero are removed. Invariant: weights add, so any set of runs may be merged.

use crate::memory::Page;

/// The first row of a page whose (key hash, first row hash) is not below a pair.
fn bound(page: Page, pair: (u64, u64)) -> usize {
    let (mut low, mut high) = (0, page.rows());
    while low < high {
        let middle = (low + high) >> 1;
        let x = page.key_hash(middle);
        if x < pair.0 || (x == pair.0 && page.record(middle).word(0) < pair.1) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// How many pages begin below a pair of (key hash, first row hash), of pages sorted by them.
pub fn page_bound(first: &[u64], first_row: &[u64], pair: (u64, u64)) -> usize {
    let (mut low, mut high) = (0, first.len());
    while low < high {
        let middle = (low + high) >> 1;
        if (first[middle], first_row[middle]) < pair {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// A lower pair, and an upper one that is excluded.
#[derive(Clone, Copy)]
pub struct Window {
    /// The rows from this (key hash, row hash) on.
    pub from: (u64, u64),
    /// The rows before this one.
    pub to: Option<(u64, u64)>,
}

/// The next row of one run.
#[derive(Clone, Copy)]
struct Head {
    segment: usize,
    row: usize,
    row_stop: usize,
    segment_stop: usize,
    page: Page,
    identity: (u64, u64, u64),
}

impl Head {
    /// The first row in the window of the segments from `segment` on.
    fn enter(segments: &[i64], segment: usize, stop: usize, window: Window) -> Option<Head> {
        for (at, &address) in segments.iter().enumerate().take(stop).skip(segment) {
            let page = Page::present(address);
            let row = bound(page, window.from);
            let row_stop = window.to.map_or(page.rows(), |pair| bound(page, pair));
            if row < row_stop {
                let identity = identity(page, row);
                return Some(Head {
                    segment: at,
                    row,
                    row_stop,
                    segment_stop: stop,
                    page,
                    identity,
                });
            }
        }
        None
    }

    /// The row after it.
    fn next(self, segments: &[i64], window: Window) -> Option<Head> {
        let row = self.row + 1;
        if row == self.row_stop {
            return Head::enter(segments, self.segment + 1, self.segment_stop, window);
        }
        Some(Head { row, identity: identity(self.page, row), ..self })
    }
}

#[inline]
fn identity(page: Page, row: usize) -> (u64, u64, u64) {
    let record = page.record(row);
    (page.key_hash(row), record.word(0), record.word(1))
}

/// Merge runs within a window: (hits with index 0, `width` totals for each).
///
/// segments: page addresses; run r is segments[starts[r]..starts[r + 1]] in order. The words of a
/// record from value_at on are added.
pub fn merge(
    segments: &[i64],
    starts: &[i64],
    window: Window,
    value_at: usize,
    width: usize,
) -> (Vec<i64>, Vec<i64>) {
    let enter = |run: &[i64]| Head::enter(segments, run[0] as usize, run[1] as usize, window);
    let mut heads: Vec<Head> = starts.windows(2).filter_map(enter).collect();
    let (mut hits, mut totals) = (Vec::new(), Vec::new());
    let mut last = None;
    while let Some(best) = least(&heads) {
        let head = heads[best];
        let record = head.page.record(head.row);
        if last != Some(head.identity) {
            close(&mut hits, &mut totals, width);
            hits.extend([0, head.page.address(), head.row as i64, record.address()]);
            totals.resize(totals.len() + width, 0i64);
            last = Some(head.identity);
        }
        let begin = totals.len() - width;
        for (v, total) in totals[begin..].iter_mut().enumerate() {
            *total = total.wrapping_add(record.word(value_at + v) as i64);
        }
        match head.next(segments, window) {
            Some(next) => heads[best] = next,
            None => drop(heads.swap_remove(best)),
        }
    }
    close(&mut hits, &mut totals, width);
    (hits, totals)
}

/// The head with the smallest row identity.
#[inline]
fn least(heads: &[Head]) -> Option<usize> {
    let mut best = 0;
    for (at, head) in heads.iter().enumerate().skip(1) {
        if head.identity < heads[best].identity {
            best = at;
        }
    }
    (!heads.is_empty()).then_some(best)
}

/// Remove the last row if all of its totals are zero.
fn close(hits: &mut Vec<i64>, totals: &mut Vec<i64>, width: usize) {
    let begin = totals.len().saturating_sub(width);
    if !hits.is_empty() && totals[begin..].iter().all(|total| *total == 0) {
        totals.truncate(begin);
        hits.truncate(hits.len() - super::rows::HIT);
    }
}
