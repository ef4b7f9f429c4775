//! Loops over columns: hashing, gathering, comparing, grouping.
//!
//! A column of byte strings is (offsets, data): string i is data[offsets[i]..offsets[i + 1]]. An
//! empty `valid` means no NULLs.

use super::hash::{fold, fold_null, splitmix, xxh64};
use crate::memory::RowsMut;
use crate::strings::{is_null, put, string};

/// Fold one fixed-width column into hashes: a row of them for each seed.
pub fn mix_fixed(hashes: &mut RowsMut<'_, u64>, values: &[u64], valid: &[bool]) {
    let mix = |h: &mut u64, i: usize, mixed: u64| {
        *h = if is_null(valid, i) { fold_null(*h) } else { fold(*h, mixed) };
    };
    // Rows have two hashes, which share the work on their values.
    if let Some((first, second)) = hashes.pair() {
        for (i, ((a, b), value)) in first.iter_mut().zip(second).zip(values).enumerate() {
            let mixed = splitmix(*value);
            mix(a, i, mixed);
            mix(b, i, mixed);
        }
        return;
    }
    for seed in 0..hashes.len() {
        for (i, (h, value)) in hashes.row(seed).iter_mut().zip(values).enumerate() {
            mix(h, i, splitmix(*value));
        }
    }
}

/// Fold one column of byte strings into hashes: a row of them for each of the seeds.
pub fn mix_bytes(
    hashes: &mut RowsMut<'_, u64>,
    offsets: &[i64],
    data: &[u8],
    valid: &[bool],
    seeds: &[u64],
) {
    for (seed, value) in seeds.iter().enumerate().take(hashes.len()) {
        for (i, h) in hashes.row(seed).iter_mut().enumerate() {
            *h = if is_null(valid, i) {
                fold_null(*h)
            } else {
                fold(*h, xxh64(string(offsets, data, i), *value))
            };
        }
    }
}

/// Gather byte strings by row index: (new offsets, new data).
pub fn take_bytes(offsets: &[i64], data: &[u8], index: &[i64]) -> (Vec<i64>, Vec<u8>) {
    let mut taken = Vec::with_capacity(index.len() + 1);
    let mut total = 0;
    taken.push(0);
    for &i in index {
        total += offsets[i as usize + 1] - offsets[i as usize];
        taken.push(total);
    }
    let mut out = vec![0; total as usize];
    let mut rest = &mut out[..];
    for &i in index {
        rest = put(rest, string(offsets, data, i as usize));
    }
    (taken, out)
}

/// A column of byte strings, and the rows of it to compare.
pub struct Picked<'a> {
    /// Where each string begins and ends.
    pub offsets: &'a [i64],
    /// The bytes.
    pub data: &'a [u8],
    /// The rows.
    pub index: &'a [i64],
}

impl<'a> Picked<'a> {
    /// The string at an index; a negative one counts from the end, as numpy's do.
    #[inline]
    fn at(&self, index: i64) -> &'a [u8] {
        let from_end = if index < 0 { self.offsets.len() - 1 } else { 0 };
        string(self.offsets, self.data, (index as usize).wrapping_add(from_end))
    }
}

/// Clear out[k] where the k-th strings of both sides differ.
pub fn equal_bytes(left: &Picked<'_>, right: &Picked<'_>, out: &mut [bool]) {
    let pairs = left.index.iter().zip(right.index);
    for (is_equal, (&i, &j)) in out.iter_mut().zip(pairs) {
        if left.at(i) != right.at(j) {
            *is_equal = false;
        }
    }
}

/// Number the distinct 128-bit hashes by first appearance: (the group of each row, the first row of
/// each group).
pub fn group_hashes(first: &[u64], second: &[u64]) -> (Vec<i64>, Vec<i64>) {
    let size = (2 * first.len()).next_power_of_two().max(16);
    let mask = size - 1;
    let mut slots = vec![u32::MAX; size];
    let mut group = Vec::with_capacity(first.len());
    let mut representative: Vec<i64> = Vec::new();
    for (i, (&a, &b)) in first.iter().zip(second).enumerate() {
        let mut at = a as usize & mask;
        let found = loop {
            let g = slots[at];
            if g == u32::MAX {
                slots[at] = representative.len() as u32;
                representative.push(i as i64);
                break representative.len() - 1;
            }
            let r = representative[g as usize] as usize;
            if first[r] == a && second[r] == b {
                break g as usize;
            }
            at = (at + 1) & mask;
        };
        group.push(found as i64);
    }
    (group, representative)
}

/// Where a sought value would be in values[low..high], which ascends: after equal values, or before.
fn bisect(values: &[i64], low: i64, high: i64, sought: i64, is_after: bool) -> i64 {
    // An empty range may lie anywhere.
    if low >= high {
        return low;
    }
    let part = &values[low as usize..high as usize];
    let found = part.partition_point(|&value| value < sought || (is_after && value == sought));
    low + found as i64
}

/// `bisect` for each of the sought values.
pub fn bisect_runs(
    values: &[i64],
    low: &[i64],
    high: &[i64],
    sought: &[i64],
    is_after: &[bool],
) -> Vec<i64> {
    let each = (0..sought.len()).map(|i| bisect(values, low[i], high[i], sought[i], is_after[i]));
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbered_by_first_appearance() {
        let (group, first) = group_hashes(&[7, 7, 9, 7, 9], &[1, 2, 1, 1, 1]);
        assert_eq!(group, [0, 1, 2, 0, 2]);
        assert_eq!(first, [0, 1, 2]);
    }

    #[test]
    fn strings_are_taken_in_any_order() {
        let (offsets, data) = take_bytes(&[1, 3, 3, 6], b"xabcde", &[2, 0, 2, 1]);
        assert_eq!(offsets, [0, 3, 5, 8, 8]);
        assert_eq!(data, b"cdeabcde");
    }

    #[test]
    fn a_negative_index_counts_from_the_end() {
        let (offsets, data) = ([0, 1, 3], b"abb");
        let left = Picked { offsets: &offsets, data, index: &[-1, -2] };
        let right = Picked { offsets: &offsets, data, index: &[1, 1] };
        let mut out = [true; 2];
        equal_bytes(&left, &right, &mut out);
        assert_eq!(out, [true, false]);
    }

    #[test]
    fn a_bisection_finds_both_ends_of_equal_values() {
        let found =
            bisect_runs(&[1, 2, 2, 3], &[0, 0, 4], &[4, 4, 4], &[2, 2, 9], &[false, true, true]);
        assert_eq!(found, [1, 3, 4]);
    }
}
