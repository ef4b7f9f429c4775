//! The search of a block of key hashes in the pages of all runs.
//!
//! Key hashes are uniform: every search starts from a guess and gallops. Memory is slower than the
//! search, so a block goes in stages: each prefetches the cache lines that the next one reads.

use super::filter::may_contain;
use crate::memory::{fetch_page, FilterBits, Page};

/// Keys that are searched at once.
pub const BLOCK: usize = 64;
const LAST_HASH: u64 = u64::MAX;

/// Where the first row of a key hash is in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// There is none.
    Absent,
    /// On this page, which is not in memory.
    Missing(usize),
    /// On this page, in this row; the page of a run in memory is 0.
    Row(usize, usize),
}

/// All pages of the runs that are on disk.
pub struct Pages<'a> {
    /// The first key hash of each.
    pub first: &'a [u64],
    /// Their addresses; 0: not in memory.
    pub addresses: &'a [i64],
    /// Set to 1 for those that were visited.
    pub touched: &'a mut [u8],
    /// The addresses of their filters, or 0.
    pub filters: &'a [i64],
}

/// part / whole; halved first, since signed conversions are the fast ones.
#[inline]
fn ratio(part: u64, whole: u64) -> f64 {
    ((part >> 1) as i64 as f64) / ((whole >> 1) as i64 as f64 + 1.0)
}

/// The first row from `low` on whose key hash is not below h, searched around a guess.
#[inline]
fn lower_bound(page: Page, mut low: usize, guess: usize, h: u64) -> usize {
    let rows = page.rows();
    let guess = guess.max(low);
    if guess >= rows {
        return rows;
    }
    let mut step = 4;
    let mut high;
    if page.key_hash(guess) < h {
        low = guess + 1;
        let near = (low + 4).min(rows);
        while low < near {
            if page.key_hash(low) >= h {
                return low;
            }
            low += 1;
        }
        while low + step < rows && page.key_hash(low + step) < h {
            low += step + 1;
            step *= 2;
        }
        high = (low + step).min(rows);
    } else {
        high = guess;
        while high >= low + step && page.key_hash(high - step) >= h {
            high -= step;
            step *= 2;
        }
        low = low.max(high.saturating_sub(step));
    }
    while low < high {
        let middle = (low + high) >> 1;
        if page.key_hash(middle) < h {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The last page in start..stop that begins below h, or start.
#[inline]
fn page_of(first: &[u64], start: usize, stop: usize, h: u64) -> usize {
    let (mut low, mut high) = (start, stop);
    if stop - start > 32 {
        let guess = start + (ratio(h, LAST_HASH) * (stop - start) as f64) as usize;
        let guess = guess.min(stop - 1);
        let mut step = 4;
        if first[guess] < h {
            low = guess;
            while low + step < stop && first[low + step] < h {
                low += step;
                step *= 2;
            }
            high = (low + step).min(stop);
        } else {
            high = guess;
            while high >= start + step && first[high - step] >= h {
                high -= step;
                step *= 2;
            }
            low = start.max(high.saturating_sub(step));
        }
    }
    let found = low + first[low..high].partition_point(|hash| *hash < h);
    found.saturating_sub(1).max(start)
}

/// Where h should be in a page with hashes between begin and end; prefetch it.
#[inline]
fn guess_row(page: Page, h: u64, begin: u64, end: u64) -> usize {
    let rows = page.rows();
    let share = ratio(h.wrapping_sub(begin), end.wrapping_sub(begin));
    let guess = ((share * rows as f64) as usize).min(rows.saturating_sub(1));
    page.fetch_hash(guess);
    guess
}

/// What a stage of the search knows of a key.
#[derive(Clone, Copy)]
enum Stage {
    /// There is no such key.
    Absent,
    /// On the page that is not in memory.
    Missing,
    /// After the page, which is not in memory and does not have it.
    Passed,
    /// About in this row.
    Guess(usize),
}

/// Find sorted hashes in the run of pages start..stop.
fn search_run(hashes: &[u64], start: usize, stop: usize, pages: &mut Pages<'_>, out: &mut [Place]) {
    let mut of_key = [0; BLOCK];
    let mut stages = [Stage::Absent; BLOCK];
    let mut page = None;
    for (i, &h) in hashes.iter().enumerate() {
        let current = match page {
            Some(p) if p + 1 >= stop || pages.first[p + 1] >= h => p,
            _ => page_of(pages.first, start, stop, h),
        };
        page = Some(current);
        of_key[i] = current;
        stages[i] = if pages.first[current] <= h { Stage::Guess(0) } else { Stage::Absent };
        fetch_page(pages.addresses[current]);
    }
    for (i, &h) in hashes.iter().enumerate() {
        let p = of_key[i];
        if let Stage::Absent = stages[i] {
            continue;
        }
        let Some(found) = Page::at(pages.addresses[p]) else {
            stages[i] = match FilterBits::at(pages.filters[p]) {
                Some(filter) if !may_contain(filter, h) => Stage::Passed,
                _ => {
                    pages.touched[p] = 1;
                    Stage::Missing
                }
            };
            continue;
        };
        pages.touched[p] = 1;
        let end = if p + 1 < stop { pages.first[p + 1] } else { LAST_HASH };
        stages[i] = Stage::Guess(guess_row(found, h, pages.first[p], end));
    }
    let (mut last, mut row) = (usize::MAX, 0);
    for (i, &h) in hashes.iter().enumerate() {
        let p = of_key[i];
        let guess = match stages[i] {
            Stage::Absent => {
                out[i] = Place::Absent;
                continue;
            }
            Stage::Missing => {
                out[i] = Place::Missing(p);
                continue;
            }
            Stage::Passed => None,
            Stage::Guess(guess) => Some(guess),
        };
        if last != p {
            (last, row) = (p, 0);
        }
        out[i] = Place::Absent;
        if let Some(guess) = guess {
            let found = Page::present(pages.addresses[p]);
            row = lower_bound(found, row, guess, h);
            if row < found.rows() {
                if found.key_hash(row) == h {
                    out[i] = Place::Row(p, row);
                    found.record(row).fetch();
                }
                continue;
            }
        } else {
            // As for a page without rows.
            if row != 0 {
                continue;
            }
        }
        if p + 1 < stop && pages.first[p + 1] == h {
            pages.touched[p + 1] = 1;
            let is_there = pages.addresses[p + 1] != 0;
            out[i] = if is_there { Place::Row(p + 1, 0) } else { Place::Missing(p + 1) };
        }
    }
}

/// Find sorted hashes in a run that is one image; see search_run.
fn search_memory(hashes: &[u64], page: Page, out: &mut [Place]) {
    let mut guesses = [0; BLOCK];
    for (guess, &h) in guesses.iter_mut().zip(hashes) {
        *guess = guess_row(page, h, 0, LAST_HASH);
    }
    let mut row = 0;
    for (i, &h) in hashes.iter().enumerate() {
        row = lower_bound(page, row, guesses[i], h);
        out[i] = Place::Absent;
        if row < page.rows() && page.key_hash(row) == h {
            out[i] = Place::Row(0, row);
            page.record(row).fetch();
        }
    }
}

/// Find a block of sorted hashes in all runs: BLOCK places of out for each run.
///
/// Run r has the pages from starts[r] to starts[r + 1]. memory: addresses of the runs that are one
/// image.
pub fn search_block(
    hashes: &[u64],
    starts: &[i64],
    pages: &mut Pages<'_>,
    memory: &[i64],
    out: &mut [Place],
) {
    let (of_pages, of_memory) = out.split_at_mut((starts.len() - 1) * BLOCK);
    for (bounds, out) in starts.windows(2).zip(of_pages.chunks_exact_mut(BLOCK)) {
        search_run(hashes, bounds[0] as usize, bounds[1] as usize, pages, out);
    }
    for (&address, out) in memory.iter().zip(of_memory.chunks_exact_mut(BLOCK)) {
        search_memory(hashes, Page::present(address), out);
    }
}
