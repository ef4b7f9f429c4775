//! Values of a binary log as columns of byte strings.

use crate::strings::{put, string};

/// (offsets, bytes) of values; one of negative length is empty.
pub fn gather(data: &[u8], starts: &[i64], lengths: &[i64]) -> (Vec<i64>, Vec<u8>) {
    let mut offsets = Vec::with_capacity(starts.len() + 1);
    offsets.push(0);
    let mut total = 0;
    offsets.extend(lengths.iter().map(|&length| {
        total += length.max(0);
        total
    }));
    let mut found = vec![0; total as usize];
    let mut rest = &mut found[..];
    for (&start, &length) in starts.iter().zip(lengths) {
        if length > 0 {
            rest = put(rest, &data[start as usize..][..length as usize]);
        }
    }
    (offsets, found)
}

/// (offsets, bytes) of the values in PostgreSQL's form of bytea, \x0123.
pub fn hexed(offsets: &[i64], data: &[u8]) -> (Vec<i64>, Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let n = offsets.len() - 1;
    let mut ends = Vec::with_capacity(n + 1);
    ends.push(0);
    let mut found = vec![0; 2 * n + 2 * (offsets[n] - offsets[0]) as usize];
    let mut at = 0;
    for i in 0..n {
        let value = string(offsets, data, i);
        let (head, digits) = found[at..][..2 + 2 * value.len()].split_at_mut(2);
        head.copy_from_slice(b"\\x");
        for (digits, &byte) in digits.chunks_exact_mut(2).zip(value) {
            digits[0] = DIGITS[usize::from(byte >> 4)];
            digits[1] = DIGITS[usize::from(byte & 15)];
        }
        at += 2 + 2 * value.len();
        ends.push(at as i64);
    }
    (ends, found)
}
