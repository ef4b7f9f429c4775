//! Loops from columns to record bytes: JSON values, Avro values, whole rows.
//!
//! Each encoder takes a column of byte strings (offsets, data, valid; an empty `valid` means no
//! NULLs) or plain values. It returns (offsets, bytes) with one encoded value a row, so that rows
//! are assembled by copying. Sources: JSON is RFC 8259, Avro its specification 1.11 ("Binary
//! Encoding"), `murmur2` the default partitioner of Kafka's clients.

use crate::memory::Rows;
use crate::strings::{is_null, put, string};

/// One encoded value a row: offsets, bytes.
pub type Encoded = (Vec<i64>, Vec<u8>);

/// 0 for a plain byte, 1 for \u00XX, else the letter after a backslash.
const ESCAPES: [u8; 256] = {
    let mut found = [0; 256];
    let mut byte = 0;
    while byte < 32 {
        found[byte] = 1;
        byte += 1;
    }
    found[8] = b'b';
    found[9] = b't';
    found[10] = b'n';
    found[12] = b'f';
    found[13] = b'r';
    found[b'"' as usize] = b'"';
    found[b'\\' as usize] = b'\\';
    found
};

/// Encode n values of `size` bytes in all, or about as many, each by `put`.
#[inline]
fn encoded(n: usize, size: usize, mut put: impl FnMut(&mut Vec<u8>, usize)) -> Encoded {
    let mut ends = Vec::with_capacity(n + 1);
    let mut out = Vec::with_capacity(size);
    ends.push(0);
    for i in 0..n {
        put(&mut out, i);
        ends.push(out.len() as i64);
    }
    (ends, out)
}

fn bytes_of(offsets: &[i64]) -> usize {
    (offsets[offsets.len() - 1] - offsets[0]) as usize
}

/// JSON strings, or null.
pub fn json_texts(offsets: &[i64], data: &[u8], valid: &[bool]) -> Encoded {
    let n = offsets.len() - 1;
    encoded(n, bytes_of(offsets) + 4 * n, |out, i| {
        if is_null(valid, i) {
            return out.extend_from_slice(b"null");
        }
        out.push(b'"');
        put_escaped(out, string(offsets, data, i));
        out.push(b'"');
    })
}

fn put_escaped(out: &mut Vec<u8>, mut text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    while let Some(plain) = text.iter().position(|&byte| ESCAPES[usize::from(byte)] != 0) {
        out.extend_from_slice(&text[..plain]);
        let byte = text[plain];
        match ESCAPES[usize::from(byte)] {
            1 => {
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&digits);
            }
            letter => out.extend_from_slice(&[b'\\', letter]),
        }
        text = &text[plain + 1..];
    }
    out.extend_from_slice(text);
}

/// Texts that are JSON, or null; NaN and infinities, which JSON lacks, become strings.
pub fn json_plain(offsets: &[i64], data: &[u8], valid: &[bool]) -> Encoded {
    let n = offsets.len() - 1;
    encoded(n, bytes_of(offsets) + 4 * n, |out, i| {
        if is_null(valid, i) {
            return out.extend_from_slice(b"null");
        }
        let text = string(offsets, data, i);
        let is_word = matches!(text, [b'-', b'N' | b'I', ..] | [b'N' | b'I', ..]);
        if is_word {
            out.push(b'"');
        }
        out.extend_from_slice(text);
        if is_word {
            out.push(b'"');
        }
    })
}

/// true, false or null.
pub fn json_bools(values: &[bool], valid: &[bool]) -> Encoded {
    // Looked up, since a branch on random values is often predicted wrongly.
    const WORDS: [&[u8; 5]; 3] = [b"false", b"true ", b"null "];
    const SIZES: [usize; 3] = [5, 4, 4];
    let mut ends = Vec::with_capacity(values.len() + 1);
    ends.push(0);
    let mut out = vec![0; 5 * values.len()];
    let mut at = 0;
    for (i, &value) in values.iter().enumerate() {
        // Five bytes always, of which the next value overwrites the last if there are four.
        let word = if is_null(valid, i) { 2 } else { usize::from(value) };
        out[at..][..5].copy_from_slice(WORDS[word]);
        at += SIZES[word];
        ends.push(at as i64);
    }
    out.truncate(at);
    (ends, out)
}

/// The most bytes of an Avro long.
const LONG: usize = 10;

/// Append an Avro int or long: zigzag, seven bits a byte.
#[inline]
pub fn put_long(out: &mut Vec<u8>, value: i64) {
    let mut bytes = [0; LONG];
    let size = write_long(&mut bytes, value);
    out.extend_from_slice(&bytes[..size]);
}

/// Write an Avro int or long and return its size.
#[inline]
fn write_long(out: &mut [u8; LONG], value: i64) -> usize {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    for (size, byte) in out.iter_mut().enumerate() {
        if rest < 128 {
            *byte = rest as u8;
            return size + 1;
        }
        *byte = rest as u8 | 128;
        rest >>= 7;
    }
    LONG
}

/// Append the branch of a value in a union [null, T]; return whether the value follows.
#[inline]
fn put_branch(out: &mut Vec<u8>, is_null: bool, in_union: bool) -> bool {
    if in_union {
        out.push(if is_null { 0 } else { 2 });
    }
    !is_null
}

/// Avro ints and longs; in a union [null, T] each with its branch.
pub fn avro_longs(values: &[i64], valid: &[bool], in_union: bool) -> Encoded {
    let mut ends = Vec::with_capacity(values.len() + 1);
    ends.push(0);
    let mut out = vec![0; (LONG + 1) * values.len()];
    let mut at = 0;
    for (i, &value) in values.iter().enumerate() {
        let is_null = is_null(valid, i);
        if in_union {
            out[at] = if is_null { 0 } else { 2 };
            at += 1;
        }
        if !is_null {
            let to = out[at..].first_chunk_mut().expect("there is room for each value");
            at += write_long(to, value);
        }
        ends.push(at as i64);
    }
    out.truncate(at);
    (ends, out)
}

/// Avro values of as many bytes each: booleans, floats, doubles.
pub fn avro_fixed(raw: Rows<'_, u8>, valid: &[bool], in_union: bool) -> Encoded {
    encoded(raw.len(), (raw.width() + 1) * raw.len(), |out, i| {
        if put_branch(out, is_null(valid, i), in_union) {
            out.extend_from_slice(raw.row(i));
        }
    })
}

/// Avro strings: the length, then the bytes.
pub fn avro_texts(offsets: &[i64], data: &[u8], valid: &[bool], in_union: bool) -> Encoded {
    let n = offsets.len() - 1;
    encoded(n, bytes_of(offsets) + 4 * n, |out, i| {
        if put_branch(out, is_null(valid, i), in_union) {
            let text = string(offsets, data, i);
            put_long(out, text.len() as i64);
            out.extend_from_slice(text);
        }
    })
}

/// Write value i to out[at[i]..] and move at[i] after it.
pub fn put_values(out: &mut [u8], at: &mut [i64], offsets: &[i64], data: &[u8]) {
    for (i, at) in at.iter_mut().enumerate() {
        let value = string(offsets, data, i);
        put(&mut out[*at as usize..], value);
        *at += value.len() as i64;
    }
}

/// Write the same bytes to each out[at[i]..] and move at[i] after them.
pub fn put_literal(out: &mut [u8], at: &mut [i64], literal: &[u8]) {
    for at in at {
        put(&mut out[*at as usize..], literal);
        *at += literal.len() as i64;
    }
}

/// MurmurHash2 of each value, made positive as Kafka's clients do.
pub fn murmur2(offsets: &[i64], data: &[u8]) -> Vec<i64> {
    let each = (0..offsets.len() - 1).map(|i| string(offsets, data, i));
    each.map(|value| i64::from(murmur2_of(value) & 0x7FFF_FFFF)).collect()
}

fn murmur2_of(value: &[u8]) -> u32 {
    const M: u32 = 0x5BD1_E995;
    let mut h = 0x9747_B28C ^ value.len() as u32;
    let mut rest = value;
    while let Some((word, after)) = rest.split_first_chunk() {
        rest = after;
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (i, &byte) in rest.iter().enumerate() {
            h ^= u32::from(byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    #[test]
    fn json_escapes_what_it_must() {
        let found = json_texts(&[0, 4, 4], b"\"\n\x01a", &[true, false]);
        assert_eq!(found, (vec![0, 13, 17], b"\"\\\"\\n\\u0001a\"null".to_vec()));
    }

    #[test]
    fn words_that_json_lacks_are_strings() {
        let found = json_plain(&[0, 2, 5, 14], b"-1NaN-Infinity", &[]);
        assert_eq!(found.1, b"-1\"NaN\"\"-Infinity\"");
    }

    #[test]
    fn longs_are_those_of_the_specification() {
        let found = avro_longs(&[0, -1, 1, -2, 64, i64::MIN], &[], false);
        let least: &[u8] = b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01";
        assert_eq!(found.1, [b"\x00\x01\x02\x03\x80\x01", least].concat());
    }

    #[test]
    fn murmur2_is_that_of_kafka() {
        // From UtilsTest.testMurmur2 of Kafka, made positive.
        let found = murmur2(&[0, 2, 8, 14], b"21foobara-litt");
        assert_eq!(found[..2], [-973_932_308 & 0x7FFF_FFFF, -790_332_482 & 0x7FFF_FFFF]);
    }

    #[test]
    fn no_texts_panic() {
        try_with(&[b"NaN", b"-", b"\"\\"], &all_bytes(), |bytes| {
            let offsets = [0, (bytes.len() / 2) as i64, bytes.len() as i64];
            json_texts(&offsets, bytes, &[]);
            json_plain(&offsets, bytes, &[]);
            avro_texts(&offsets, bytes, &[true, false], true);
            murmur2(&offsets, bytes);
        });
    }
}
