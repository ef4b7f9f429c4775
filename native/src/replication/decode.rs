//! Loops over the wire: pgoutput tuples and COPY BINARY rows to offsets, offsets to columns.
//!
//! A walk records, for each used column and row, where the value starts and its length (NULL and
//! UNCHANGED are negative lengths); both lie in the data. A reader then turns one column of them
//! into values. Formats: PostgreSQL manual, "Logical Replication Message Formats" and COPY, "Binary
//! Format".

use crate::strings::put;

/// The length of a value that is NULL.
pub const NULL: i64 = -1;
/// The length of a value that an update did not send.
pub const UNCHANGED: i64 = -2;

const ROW_INSERT: u8 = b'I';
const ROW_NEW: u8 = b'N';
const ROW_OLD: u8 = b'O';
const ROW_OLD_KEY: u8 = b'K';
const ROW_DELETE: u8 = b'D';
const ROW_DELETE_KEY: u8 = b'E';
/// What precedes the values of a payload: a tag and the relation.
const PAYLOAD_HEAD: usize = 5;

/// The bytes of this payload, row or value are not of the format, or end early.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(pub usize);

/// Bytes from a position on.
struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let found = self.data.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(*found)
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let found = *self.data.get(self.at)?;
        self.at += 1;
        Some(found)
    }

    /// Go past a value of this size, which must be there; return its start.
    #[inline]
    fn skip(&mut self, size: usize) -> Option<usize> {
        if size > self.data.len() - self.at {
            return None;
        }
        let start = self.at;
        self.at += size;
        Some(start)
    }
}

/// The tag and the 32-bit word after it of each payload, -1 if it is too short.
pub fn heads(data: &[u8], ends: &[i64]) -> (Vec<u8>, Vec<i64>) {
    let mut start = 0;
    let each = ends.iter().map(|&end| {
        let payload = data.get(start..).unwrap_or_default();
        let size = (end as usize).saturating_sub(start);
        start = end as usize;
        let word = payload.get(1..PAYLOAD_HEAD).and_then(|word| word.first_chunk());
        let word = word.filter(|_| size >= PAYLOAD_HEAD);
        let word = word.map_or(-1, |word| i64::from(u32::from_be_bytes(*word)));
        (payload.first().copied().unwrap_or(0), word)
    });
    each.unzip()
}

/// What a walk over tuples found; `starts` and `lengths` by column, then row.
#[derive(Debug, PartialEq, Eq)]
pub struct Tuples {
    /// Where each value starts.
    pub starts: Vec<i64>,
    /// How long it is, NULL or UNCHANGED.
    pub lengths: Vec<i64>,
    /// What each row is.
    pub kinds: Vec<u8>,
    /// By column, whether it has UNCHANGED values.
    pub unchanged: Vec<bool>,
}

/// Walk the rows of insert, update and delete payloads of one relation, which begin at `starts`.
///
/// slots: for each column on the wire the number of the used column, or -1. A value that an update
/// omits is taken from its whole old row, if sent.
pub fn walk_tuples(
    data: &[u8],
    starts: &[i64],
    slots: &[i64],
    width: usize,
) -> Result<Tuples, Malformed> {
    let has_old = |&start: &i64| {
        let payload = data.get(start as usize..).unwrap_or_default();
        payload.first() == Some(&b'U') && payload.get(PAYLOAD_HEAD) != Some(&b'N')
    };
    let rows = starts.len() + starts.iter().filter(|start| has_old(start)).count();
    let mut found = Tuples {
        starts: vec![0; width * rows],
        lengths: vec![NULL; width * rows],
        kinds: Vec::with_capacity(rows),
        unchanged: vec![false; width],
    };
    for (number, &start) in starts.iter().enumerate() {
        walk_payload(data, start as usize, slots, rows, &mut found).ok_or(Malformed(number))?;
    }
    Ok(found)
}

/// Walk the one or two rows of a payload.
fn walk_payload(
    data: &[u8],
    start: usize,
    slots: &[i64],
    rows: usize,
    found: &mut Tuples,
) -> Option<()> {
    let tag = *data.get(start)?;
    let mut reader = Reader { data, at: start + PAYLOAD_HEAD };
    let part = walk_tuple(&mut reader, tag, slots, rows, found)?;
    if tag == b'U' && part != b'N' && walk_tuple(&mut reader, tag, slots, rows, found)? != b'N' {
        return None;
    }
    Some(())
}

/// Walk one row; return which part of its payload it is.
fn walk_tuple(
    reader: &mut Reader<'_>,
    tag: u8,
    slots: &[i64],
    rows: usize,
    found: &mut Tuples,
) -> Option<u8> {
    let [part, high, low] = reader.take::<3>()?;
    let row = found.kinds.len();
    let is_after_old = tag == b'U' && found.kinds.last() == Some(&ROW_OLD);
    let columns = usize::from(u16::from_be_bytes([high, low]));
    for &slot in slots.get(..columns)? {
        let form = reader.byte()?;
        let item = if slot >= 0 { slot as usize * rows + row } else { 0 };
        if form == b't' {
            let size = u32::from_be_bytes(reader.take()?);
            let start = reader.skip(size as usize)?;
            if slot >= 0 {
                found.starts[item] = start as i64;
                found.lengths[item] = i64::from(size);
            }
        } else if slot >= 0 && form != b'n' {
            if is_after_old {
                found.starts[item] = found.starts[item - 1];
                found.lengths[item] = found.lengths[item - 1];
            } else {
                found.lengths[item] = UNCHANGED;
                found.unchanged[slot as usize] = true;
            }
        }
    }
    found.kinds.push(match (tag, part) {
        (b'I', _) => ROW_INSERT,
        (b'U', b'N') => ROW_NEW,
        (b'U', b'O') => ROW_OLD,
        (b'U', _) => ROW_OLD_KEY,
        (_, b'O') => ROW_DELETE,
        _ => ROW_DELETE_KEY,
    });
    Some(part)
}

/// Walk rows of COPY BINARY from a position on: (starts, lengths) by column, then row.
pub fn walk_copy(
    data: &[u8],
    start: usize,
    rows: usize,
    width: usize,
) -> Result<(Vec<i64>, Vec<i64>), Malformed> {
    // Each value takes four bytes at least: a wrong number of rows allocates nothing.
    if rows.saturating_mul(4 * width + 2) > data.len().saturating_sub(start) {
        return Err(Malformed(rows.saturating_sub(1)));
    }
    let (mut starts, mut lengths) = (vec![0; width * rows], vec![NULL; width * rows]);
    let mut reader = Reader { data, at: start };
    for row in 0..rows {
        walk_copy_row(&mut reader, row, rows, &mut starts, &mut lengths).ok_or(Malformed(row))?;
    }
    Ok((starts, lengths))
}

#[inline]
fn walk_copy_row(
    reader: &mut Reader<'_>,
    row: usize,
    rows: usize,
    starts: &mut [i64],
    lengths: &mut [i64],
) -> Option<()> {
    reader.take::<2>()?;
    for (starts, lengths) in starts.chunks_exact_mut(rows).zip(lengths.chunks_exact_mut(rows)) {
        let size = i32::from_be_bytes(reader.take()?);
        if size >= 0 {
            starts[row] = reader.skip(size as usize)? as i64;
            lengths[row] = i64::from(size);
        }
    }
    Some(())
}

/// One column: its values, which of them are not NULL, and how many are NULL.
pub type Found<T> = (Vec<T>, Vec<bool>, usize);

/// The bytes of the values at starts: (offsets, bytes, valid, nulls).
pub fn gather_bytes(
    data: &[u8],
    starts: &[i64],
    lengths: &[i64],
) -> (Vec<i64>, Vec<u8>, Vec<bool>, usize) {
    let mut offsets = Vec::with_capacity(starts.len() + 1);
    offsets.push(0);
    let mut total = 0;
    offsets.extend(lengths.iter().map(|&length| {
        total += length.max(0);
        total
    }));
    let valid: Vec<bool> = lengths.iter().map(|&length| length >= 0).collect();
    let nulls = valid.iter().filter(|&&is_valid| !is_valid).count();
    let mut out = vec![0; total as usize];
    let mut rest = &mut out[..];
    for (&start, &length) in starts.iter().zip(lengths) {
        if length > 0 {
            rest = put(rest, &data[start as usize..][..length as usize]);
        }
    }
    (offsets, out, valid, nulls)
}

#[inline]
fn chunk<const N: usize>(data: &[u8], start: i64) -> [u8; N] {
    *data[start as usize..].first_chunk().expect("a walk found the value")
}

/// Signed integers of 2, 4 or 8 bytes; NULL is 0.
pub fn read_ints(data: &[u8], starts: &[i64], lengths: &[i64]) -> Found<i64> {
    let mut nulls = 0;
    let each = starts.iter().zip(lengths).map(|(&start, &length)| match length {
        4 => i64::from(i32::from_be_bytes(chunk(data, start))),
        8 => i64::from_be_bytes(chunk(data, start)),
        2 => i64::from(i16::from_be_bytes(chunk(data, start))),
        _ => {
            nulls += 1;
            0
        }
    });
    let out = each.collect();
    (out, lengths.iter().map(|&length| length >= 0).collect(), nulls)
}

/// Booleans; NULL is false.
pub fn read_bools(data: &[u8], starts: &[i64], lengths: &[i64]) -> Found<bool> {
    let (mut out, mut valid) = (vec![false; starts.len()], vec![false; starts.len()]);
    let mut nulls = 0;
    let each = out.iter_mut().zip(&mut valid).zip(starts).zip(lengths);
    for (((out, valid), &start), &length) in each {
        let byte = data.get(start as usize).copied().unwrap_or(0);
        *valid = length >= 0;
        *out = *valid & (byte != 0);
        nulls += usize::from(!*valid);
    }
    (out, valid, nulls)
}

/// Numerics of up to 18 digits as value * 10^scale; NULL is 0.
///
/// Layout: numeric_send in PostgreSQL's numeric.c (digits of base 10,000, weight of the first).
pub fn read_numerics(
    data: &[u8],
    starts: &[i64],
    lengths: &[i64],
    scale: i64,
    not_a_number: i64,
) -> Result<Found<i64>, Malformed> {
    let mut out = vec![0; starts.len()];
    for (i, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
        if length >= 0 {
            let value = &data[start as usize..][..length as usize];
            out[i] = numeric(value, scale, not_a_number).ok_or(Malformed(i))?;
        }
    }
    let valid: Vec<bool> = lengths.iter().map(|&length| length >= 0).collect();
    let nulls = valid.iter().filter(|&&is_valid| !is_valid).count();
    Ok((out, valid, nulls))
}

fn numeric(value: &[u8], scale: i64, not_a_number: i64) -> Option<i64> {
    let (head, digits) = value.split_first_chunk::<8>()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let (count, weight, sign) = (usize::from(word(0)), word(2) as i16, word(4));
    if sign == 0xC000 {
        return Some(not_a_number);
    }
    // Each digit counts 10000^(weight - its number), which is 10^power of our unit.
    let mut power = 4 * i64::from(weight) + scale;
    let mut sum = 0i64;
    for digit in digits.get(..2 * count)?.chunks_exact(2) {
        let digit = i64::from(u16::from_be_bytes([digit[0], digit[1]]));
        sum = sum.wrapping_add(shifted(digit, power));
        power -= 4;
    }
    Some(if sign == 0x4000 { sum.wrapping_neg() } else { sum })
}

/// digit * 10^power of a digit below 65,536, as many products and divisions by ten give it.
#[inline]
fn shifted(digit: i64, power: i64) -> i64 {
    const TENS: [i64; 19] = {
        let mut tens = [1; 19];
        let mut i = 1;
        while i < 19 {
            tens[i] = 10 * tens[i - 1];
            i += 1;
        }
        tens
    };
    match power {
        0..=18 => digit.wrapping_mul(TENS[power as usize]),
        -4..0 => digit / TENS[-power as usize],
        // 2^64 divides 10^64.
        19..64 => digit.wrapping_mul(10i64.wrapping_pow(power as u32)),
        64.. => 0,
        // A digit of five decimal places is not well formed.
        -5 => digit / 100_000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    /// An update with its old key, of (text, NULL, not sent).
    const UPDATE: &[u8] = b"U\0\0\x40\0K\0\x03t\0\0\0\x02abnnN\0\x03t\0\0\0\x02xynu";
    /// An update with its old row.
    const FULL: &[u8] = b"U\0\0\x40\0O\0\x01t\0\0\0\x02abN\0\x01u";

    #[test]
    fn an_update_has_its_old_key_and_its_new_row() {
        let found = walk_tuples(UPDATE, &[0], &[0, 1, 2], 3).unwrap();
        assert_eq!(found.kinds, b"KN");
        assert_eq!(found.lengths, [2, 2, NULL, NULL, NULL, UNCHANGED]);
        assert_eq!(&UPDATE[found.starts[1] as usize..][..2], b"xy");
        assert_eq!(found.unchanged, [false, false, true]);
    }

    #[test]
    fn a_value_that_is_not_sent_is_that_of_the_whole_old_row() {
        let found = walk_tuples(FULL, &[0], &[0], 1).unwrap();
        assert_eq!(found.lengths, [2, 2]);
        assert_eq!(found.starts[0], found.starts[1]);
        assert_eq!(found.unchanged, [false]);
    }

    #[test]
    fn a_payload_that_ends_early_is_named() {
        for size in 0..UPDATE.len() {
            let whole = [UPDATE, &UPDATE[..size]].concat();
            let starts = [0, UPDATE.len() as i64];
            assert_eq!(walk_tuples(&whole, &starts, &[0, 1, 2], 3), Err(Malformed(1)), "{size}");
        }
    }

    #[test]
    fn more_columns_than_are_known_are_malformed() {
        assert_eq!(walk_tuples(FULL, &[0], &[], 0), Err(Malformed(0)));
    }

    #[test]
    fn a_numeric_may_have_any_weight() {
        let numeric = |weight: i16, digits: &[u16], scale| {
            let mut value =
                [digits.len() as u16, weight as u16, 0, 0].map(u16::to_be_bytes).concat();
            value.extend(digits.iter().flat_map(|digit| digit.to_be_bytes()));
            numeric(&value, scale, 7)
        };
        assert_eq!(numeric(1, &[12, 3456, 7800], 2), Some(12_345_678));
        assert_eq!(numeric(-1, &[50], 4), Some(50));
        assert_eq!(numeric(-9, &[9999], 0), Some(0));
        assert_eq!(numeric(i16::MAX, &[1; 9], 18), Some(0));
        assert_eq!(numeric(i16::MIN, &[9999, 9999], 0), Some(0));
    }

    #[test]
    fn products_by_ten_are_those_of_one_at_a_time() {
        for digit in [0, 1, 9_999, 65_535] {
            for power in -12i64..90 {
                let mut slow: i64 = digit;
                for _ in 0..power {
                    slow = slow.wrapping_mul(10);
                }
                for _ in power..0 {
                    slow /= 10;
                }
                assert_eq!(shifted(digit, power), slow, "{digit} {power}");
            }
        }
    }

    #[test]
    fn no_bytes_of_a_stream_panic() {
        let full = [FULL, UPDATE].concat();
        try_with(&[UPDATE, FULL, &full], &all_bytes(), |bytes| {
            heads(bytes, &[3, bytes.len() as i64]);
            let starts = [0, FULL.len() as i64];
            if let Ok(found) = walk_tuples(bytes, &starts, &[0, -1, 1], 2) {
                gather_bytes(bytes, &found.starts, &found.lengths);
            }
        });
    }

    #[test]
    fn no_bytes_of_a_copy_panic() {
        let row: &[u8] = b"\0\x03\0\0\0\x04abcd\xFF\xFF\xFF\xFF\0\0\0\x0A\0\x01\0\0\0\0\0\0\0\x07";
        let rows = row.repeat(3);
        try_with(&[row, &rows], &all_bytes(), |bytes| {
            for count in 0..4 {
                let Ok((starts, lengths)) = walk_copy(bytes, 0, count, 3) else { continue };
                gather_bytes(bytes, &starts, &lengths);
                read_ints(bytes, &starts, &lengths);
                read_bools(bytes, &starts, &lengths);
                let _ = read_numerics(bytes, &starts, &lengths, 2, 0);
            }
            assert!(walk_copy(bytes, 0, usize::MAX, 3).is_err());
        });
    }
}
