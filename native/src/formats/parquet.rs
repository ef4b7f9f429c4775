//! Scans of what a page of a Parquet file claims: lengths of values, and rows of lists.
//!
//! Each reads the encoded bytes only; what they stand for is counted and never made. An encoding
//! that is broken, or ends early, is None.

/// Bits of the widest packed number.
const MOST_WIDTH: usize = 64;
/// Of the head of a run, and of a block of lengths.
const MOST_HEAD: i64 = 0xFFFF_FFFF;
const MOST_BLOCK: i64 = 1 << 24;

/// (number of values, bytes of the longest) of byte arrays in PLAIN encoding.
pub fn longest_plain(data: &[u8]) -> Option<(i64, i64)> {
    let (mut rest, mut count, mut longest) = (data, 0, 0);
    while let Some((head, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*head);
        rest = after.get(length as usize..)?;
        longest = longest.max(i64::from(length));
        count += 1;
    }
    Some((count, longest))
}

/// An unsigned LEB128 number at a place, which moves past it.
fn varint(data: &[u8], at: &mut usize) -> Option<i64> {
    let (mut found, mut shift) = (0i64, 0);
    while shift < 64 {
        let byte = i64::from(*data.get(*at)?);
        *at += 1;
        found |= (byte & 0x7F).wrapping_shl(shift);
        if byte < 0x80 {
            return Some(found);
        }
        shift += 7;
    }
    None
}

/// A signed number in zigzag encoding.
fn signed_varint(data: &[u8], at: &mut usize) -> Option<i64> {
    let found = varint(data, at)?;
    Some((found >> 1) & i64::MAX ^ -(found & 1))
}

fn bit(data: &[u8], place: usize) -> Option<u8> {
    Some(data.get(place >> 3)? >> (place & 7) & 1)
}

/// Rows of lists that were counted.
#[derive(Debug, PartialEq)]
pub struct ListRows {
    /// How many begin.
    pub rows: i64,
    /// Levels of the longest one.
    pub longest: i64,
    /// Levels of the one that stays open.
    pub open: i64,
    /// Whether the first level begins one.
    pub is_first: bool,
}

/// Repetition levels: level 0 begins a row.
pub struct Levels<'a> {
    /// Their encoded bytes.
    pub data: &'a [u8],
    /// Bits of a level.
    pub width: usize,
    /// How many there are.
    pub count: i64,
    /// In the deprecated encoding BIT_PACKED, else in runs.
    pub is_packed: bool,
}

impl Levels<'_> {
    /// Count the rows that begin; open: levels of the row that was open before.
    pub fn rows(&self, open: i64) -> Option<ListRows> {
        let mut found = ListRows { rows: 0, longest: open, open, is_first: false };
        let (mut left, mut at) = (self.count, 0);
        while left > 0 {
            let is_begin = left == self.count;
            if self.is_packed {
                self.add_levels(&mut found, 0, left, is_begin)?;
                break;
            }
            let head = varint(self.data, &mut at)?;
            if !(0..=MOST_HEAD).contains(&head) {
                return None;
            }
            let size = head >> 1;
            if head & 1 == 0 {
                let bytes = self.data.get(at..at + self.width.div_ceil(8))?;
                at += bytes.len();
                let run = size.min(left);
                if run == 0 {
                    // Nothing is said; the next run follows.
                    continue;
                }
                let is_zero = bytes.iter().all(|byte| *byte == 0);
                if is_begin {
                    found.is_first = is_zero;
                }
                if is_zero {
                    found.longest = found.longest.max(found.open).max(1);
                    found.rows += run;
                    found.open = 1;
                } else {
                    found.open += run;
                }
                left -= run;
            } else {
                let run = (8 * size).min(left);
                self.add_levels(&mut found, 8 * at, run, is_begin)?;
                at = self.data.len().min(at + size as usize * self.width);
                left -= run;
            }
        }
        found.longest = found.longest.max(found.open);
        Some(found)
    }

    /// Add levels that are packed from a bit on.
    fn add_levels(
        &self,
        found: &mut ListRows,
        start: usize,
        run: i64,
        is_begin: bool,
    ) -> Option<()> {
        for n in 0..run as usize {
            let place = start + n * self.width;
            let mut is_zero = true;
            for place in place..place + self.width {
                let shown = if self.is_packed { place & !7 | (7 - (place & 7)) } else { place };
                is_zero &= bit(self.data, shown)? == 0;
            }
            if is_begin && n == 0 {
                found.is_first = is_zero;
            }
            if is_zero {
                found.longest = found.longest.max(found.open);
                found.rows += 1;
                found.open = 1;
            } else {
                found.open += 1;
            }
        }
        Some(())
    }
}

/// Lengths that were summed up.
#[derive(Debug, Default, PartialEq)]
pub struct Lengths {
    /// How many there are.
    pub count: i64,
    /// Their sum.
    pub total: i64,
    /// The longest.
    pub longest: i64,
    /// Where they end.
    pub end: usize,
}

/// Sum up lengths in encoding DELTA_BINARY_PACKED that begin at a byte, at most `most`.
pub fn packed_lengths(data: &[u8], start: usize, most: i64) -> Option<Lengths> {
    let mut at = start;
    let block = varint(data, &mut at)?;
    let parts = varint(data, &mut at)?;
    let count = varint(data, &mut at)?;
    let first = signed_varint(data, &mut at)?;
    if !(0..=most).contains(&count) || !(1..=MOST_BLOCK).contains(&block) {
        return None;
    }
    if parts <= 0 || block % parts != 0 {
        return None;
    }
    if count == 0 {
        return Some(Lengths { end: at, ..Lengths::default() });
    }
    let (parts, each) = (parts as usize, (block / parts) as usize);
    let mut value = length(first)?;
    let mut found = Lengths { count, total: value, longest: value, end: at };
    let mut left = count as usize - 1;
    while left > 0 {
        let least = signed_varint(data, &mut at)?;
        let widths = data.get(at..at + parts)?;
        at += parts;
        for width in widths.iter().map(|width| usize::from(*width)) {
            if left == 0 {
                break;
            }
            let here = each.min(left);
            if width > MOST_WIDTH || at + (here * width).div_ceil(8) > data.len() {
                return None;
            }
            for n in 0..here {
                let mut delta = least;
                for b in 0..width {
                    let one = i64::from(bit(data, 8 * at + n * width + b)?);
                    delta = delta.wrapping_add(one << b);
                }
                value = length(value.wrapping_add(delta))?;
                found.total += value;
                found.longest = found.longest.max(value);
            }
            left -= here;
            at += each * width / 8;
        }
    }
    found.end = at;
    Some(found)
}

/// A length, of which 32 bits count; None for a negative one.
fn length(value: i64) -> Option<i64> {
    let value = value as i32;
    (value >= 0).then_some(i64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    #[test]
    fn plain_values_are_counted() {
        assert_eq!(longest_plain(b"\x02\0\0\0ab\0\0\0\0"), Some((2, 2)));
        assert_eq!(longest_plain(b"\x02\0\0\0a"), None);
    }

    #[test]
    fn rows_begin_at_level_0() {
        // A run of three zeros, then eight packed levels of one bit.
        let levels = Levels { data: &[6, 0, 3, 0b0000_0101], width: 1, count: 8, is_packed: false };
        let found = ListRows { rows: 6, longest: 4, open: 1, is_first: true };
        assert_eq!(levels.rows(4), Some(found));
    }

    #[test]
    fn lengths_are_summed() {
        // Blocks of 8 in one part: 5, then deltas of 1 that take no bits.
        let data = [8, 1, 4, 10, 2, 0];
        let found = Lengths { count: 4, total: 5 + 6 + 7 + 8, longest: 8, end: 6 };
        assert_eq!(packed_lengths(&data, 0, 100), Some(found));
        assert_eq!(packed_lengths(&data, 0, 3), None);
    }

    #[test]
    fn no_bytes_of_a_page_panic() {
        let samples: [&[u8]; 2] = [&[8, 1, 4, 10, 2, 0], &[6, 0, 3, 5, 200, 1, 1]];
        try_with(&samples, &all_bytes(), |data| {
            longest_plain(data);
            packed_lengths(data, data.len().min(1), 1000);
            for (width, is_packed) in [(1, false), (3, true), (0, false)] {
                Levels { data, width, count: 50, is_packed }.rows(0);
            }
        });
    }
}
