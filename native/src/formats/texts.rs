//! Parsers from texts to physical values, for the plain forms.
//!
//! Every parser takes (offsets, data, valid, ...) of a column of byte strings; an empty `valid`
//! means no NULLs. It returns (values, marks): a marked row is not of the plain form and is left to
//! the caller, which knows every form and reports faults. Nothing is guessed here.

use crate::calendar::{days_of, month_length};
use crate::strings::{is_null, put, string};

const DAY_US: i64 = 86_400_000_000;
const TENS: [i64; 19] = {
    let mut tens = [1; 19];
    let mut i = 1;
    while i < 19 {
        tens[i] = 10 * tens[i - 1];
        i += 1;
    }
    tens
};

/// Values, and the rows that are not of the plain form.
pub type Parsed<T> = (Vec<T>, Vec<bool>);

/// Parse each text that is not NULL; without a value, its row is marked.
#[inline]
fn parsed<T: Copy + Default>(
    offsets: &[i64],
    data: &[u8],
    valid: &[bool],
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Parsed<T> {
    let n = offsets.len() - 1;
    let (mut out, mut marks) = (vec![T::default(); n], vec![false; n]);
    for (i, (out, mark)) in out.iter_mut().zip(&mut marks).enumerate() {
        if !is_null(valid, i) {
            match parse(string(offsets, data, i)) {
                Some(value) => *out = value,
                None => *mark = true,
            }
        }
    }
    (out, marks)
}

/// Mark each text that is not NULL and is odd.
#[inline]
fn marked(
    offsets: &[i64],
    data: &[u8],
    valid: &[bool],
    is_odd: impl Fn(&[u8]) -> bool,
) -> Vec<bool> {
    let rows = 0..offsets.len() - 1;
    rows.map(|i| !is_null(valid, i) && is_odd(string(offsets, data, i))).collect()
}

/// Whether there is a minus, and what is after it.
#[inline]
fn signed(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    }
}

/// The value of a digit.
#[inline]
fn digit(byte: u8) -> Option<i64> {
    let digit = byte.wrapping_sub(b'0');
    (digit <= 9).then_some(i64::from(digit))
}

/// Decimal integers of at most 18 digits within [low, high].
pub fn read_ints(offsets: &[i64], data: &[u8], valid: &[bool], low: i64, high: i64) -> Parsed<i64> {
    parsed(offsets, data, valid, |text| {
        let (is_negative, digits) = signed(text);
        if digits.is_empty() || digits.len() > 18 {
            return None;
        }
        let mut value = 0;
        for &byte in digits {
            value = 10 * value + digit(byte)?;
        }
        let value = if is_negative { -value } else { value };
        (low..=high).contains(&value).then_some(value)
    })
}

/// Plain decimals as value * 10^scale, rounded half away from zero like numeric(p,s).
pub fn read_fixed(
    offsets: &[i64],
    data: &[u8],
    valid: &[bool],
    precision: usize,
    scale: usize,
) -> Parsed<i64> {
    let limit = TENS[precision];
    parsed(offsets, data, valid, |text| fixed(text, limit, scale))
}

#[inline]
fn fixed(text: &[u8], limit: i64, scale: usize) -> Option<i64> {
    let (is_negative, rest) = signed(text);
    let (mut value, mut up, mut has_digit) = (0, 0, false);
    let mut fraction: Option<usize> = None;
    for &byte in rest {
        if byte == b'.' && fraction.is_none() {
            fraction = Some(0);
            continue;
        }
        let digit = digit(byte)?;
        has_digit = true;
        if let Some(size) = &mut fraction {
            *size += 1;
            if *size > scale {
                up |= i64::from(*size == scale + 1 && digit >= 5);
                continue;
            }
        }
        if value > limit / 10 {
            return None;
        }
        value = 10 * value + digit;
    }
    let unit = TENS[scale - fraction.unwrap_or(0).min(scale)];
    if !has_digit || value > limit / unit {
        return None;
    }
    let value = value * unit + up;
    (value < limit).then_some(if is_negative { -value } else { value })
}

/// true, false, t, f.
pub fn read_bools(offsets: &[i64], data: &[u8], valid: &[bool]) -> Parsed<bool> {
    parsed(offsets, data, valid, |text| match text {
        b"t" | b"true" => Some(true),
        b"f" | b"false" => Some(false),
        _ => None,
    })
}

/// The number of two digits.
#[inline]
fn two(high: u8, low: u8) -> Option<i64> {
    Some(10 * digit(high)? + digit(low)?)
}

/// Days of YYYY-MM-DD, and what is after it.
#[inline]
fn date(text: &[u8]) -> Option<(i64, &[u8])> {
    let ([a, b, c, d, b'-', e, f, b'-', g, h], rest) = text.split_first_chunk()? else {
        return None;
    };
    let year = 100 * two(*a, *b)? + two(*c, *d)?;
    let (month, day) = (two(*e, *f)?, two(*g, *h)?);
    let is_date =
        year > 0 && (1..=12).contains(&month) && (1..=month_length(year, month)).contains(&day);
    is_date.then(|| (days_of(year, month, day), rest))
}

/// Microseconds since midnight of HH:MM:SS with up to six decimals, and what is after it.
#[inline]
fn clock(text: &[u8]) -> Option<(i64, &[u8])> {
    let ([a, b, b':', c, d, b':', e, f], rest) = text.split_first_chunk()? else {
        return None;
    };
    let (hour, minute, second) = (two(*a, *b)?, two(*c, *d)?, two(*e, *f)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let us = ((hour * 60 + minute) * 60 + second) * 1_000_000;
    let Some(decimals) = rest.strip_prefix(b".") else { return Some((us, rest)) };
    let (mut part, mut size) = (0, 0);
    while let Some(digit) = decimals.get(size).and_then(|&byte| digit(byte)) {
        part = 10 * part + digit;
        size += 1;
        if size > 6 {
            return None;
        }
    }
    (size > 0).then(|| (us + part * TENS[6 - size], &decimals[size..]))
}

/// Microseconds east of UTC of nothing, Z, +HH, +HHMM or +HH:MM.
#[inline]
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match *text {
        [] | [b'Z' | b'z'] => return Some(0),
        [sign, a, b] => (sign, two(a, b)?, 0),
        [sign, a, b, c, d] | [sign, a, b, b':', c, d] => (sign, two(a, b)?, two(c, d)?),
        _ => return None,
    };
    if hours > 15 || minutes > 59 {
        return None;
    }
    let us = (hours * 60 + minutes) * 60_000_000;
    match sign {
        b'+' => Some(us),
        b'-' => Some(-us),
        _ => None,
    }
}

/// YYYY-MM-DD as days since 2000-01-01.
pub fn read_dates(offsets: &[i64], data: &[u8], valid: &[bool]) -> Parsed<i64> {
    parsed(offsets, data, valid, |text| match date(text)? {
        (days, []) => Some(days),
        _ => None,
    })
}

/// HH:MM:SS with up to six decimals as microseconds since midnight.
pub fn read_times(offsets: &[i64], data: &[u8], valid: &[bool]) -> Parsed<i64> {
    parsed(offsets, data, valid, |text| match clock(text)? {
        (us, []) => Some(us),
        _ => None,
    })
}

/// An ISO 8601 time as microseconds since 2000-01-01; its offset counts if has_zone.
pub fn read_stamps(offsets: &[i64], data: &[u8], valid: &[bool], has_zone: bool) -> Parsed<i64> {
    parsed(offsets, data, valid, |text| {
        let (days, rest) = date(text)?;
        let [b' ' | b'T' | b't', rest @ ..] = rest else { return None };
        let (us, rest) = clock(rest)?;
        let east = zone(rest)?;
        Some(days * DAY_US + us - if has_zone { east } else { 0 })
    })
}

/// Texts with a NUL byte, or more than `most` bytes if that is not negative.
pub fn odd_texts(offsets: &[i64], data: &[u8], valid: &[bool], most: i64) -> Vec<bool> {
    marked(offsets, data, valid, |text| {
        // Without short cuts, so that many bytes are compared at once.
        let has_nul = text.iter().fold(false, |found, &byte| found | (byte == 0));
        has_nul || (most >= 0 && text.len() as i64 > most)
    })
}

/// Texts that numeric(precision, scale) may print differently; a negative scale stands for plain
/// numeric.
pub fn odd_numerics(
    offsets: &[i64],
    data: &[u8],
    valid: &[bool],
    precision: i64,
    scale: i64,
) -> Vec<bool> {
    marked(offsets, data, valid, |text| !is_printed(text, precision, scale))
}

#[inline]
fn is_printed(text: &[u8], precision: i64, scale: i64) -> bool {
    let (is_negative, rest) = signed(text);
    let (mut whole, mut has_value) = (0, false);
    let mut fraction: Option<i64> = None;
    for &byte in rest {
        match byte {
            b'.' if fraction.is_none() => fraction = Some(0),
            b'0'..=b'9' => {
                has_value |= byte != b'0';
                *fraction.as_mut().unwrap_or(&mut whole) += 1;
            }
            _ => return false,
        }
    }
    let has_zero = rest.first() == Some(&b'0');
    if whole == 0 || fraction == Some(0) || (has_zero && whole > 1) || (is_negative && !has_value) {
        return false;
    }
    let fraction = fraction.unwrap_or(0);
    if scale < 0 {
        return whole <= 1000 && fraction <= 1000;
    }
    let is_below_one = precision != scale || has_zero;
    fraction == scale && whole <= (precision - scale).max(1) && (is_below_one || whole != 1)
}

/// Texts that are not a UUID as PostgreSQL prints it.
pub fn odd_uuids(offsets: &[i64], data: &[u8], valid: &[bool]) -> Vec<bool> {
    marked(offsets, data, valid, |text| {
        let Ok(text) = <&[u8; 36]>::try_from(text) else { return true };
        // Without short cuts, so that many bytes are compared at once.
        let is_digit = |byte: u8| (byte.wrapping_sub(b'0') < 10) | (byte.wrapping_sub(b'a') < 6);
        let are_digits =
            |part: &[u8]| part.iter().fold(true, |are_digits, &byte| are_digits & is_digit(byte));
        let are_dashes =
            (text[8] == b'-') & (text[13] == b'-') & (text[18] == b'-') & (text[23] == b'-');
        let is_plain = are_dashes
            & are_digits(&text[..8])
            & are_digits(&text[9..13])
            & are_digits(&text[14..18])
            & are_digits(&text[19..23])
            & are_digits(&text[24..]);
        !is_plain
    })
}

/// (offsets, bytes) of texts padded with blanks up to `width` characters.
pub fn pad_texts(offsets: &[i64], data: &[u8], width: i64) -> (Vec<i64>, Vec<u8>) {
    let mut ends = Vec::with_capacity(offsets.len());
    let mut total = 0;
    ends.push(total);
    for i in 0..offsets.len() - 1 {
        let text = string(offsets, data, i);
        let characters = text.iter().filter(|&&byte| byte & 0xC0 != 0x80).count() as i64;
        total += text.len() as i64 + (width - characters).max(0);
        ends.push(total);
    }
    let mut out = vec![b' '; total as usize];
    for i in 0..offsets.len() - 1 {
        put(&mut out[ends[i] as usize..], string(offsets, data, i));
    }
    (ends, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    fn one<T: Copy>(parse: impl Fn(&[i64], &[u8], &[bool]) -> Parsed<T>, text: &str) -> Option<T> {
        let (values, marks) = parse(&[0, text.len() as i64], text.as_bytes(), &[]);
        (!marks[0]).then_some(values[0])
    }

    #[test]
    fn decimals_are_rounded_half_away_from_zero() {
        let read = |text| one(|o, d, v| read_fixed(o, d, v, 5, 2), text);
        assert_eq!(read("1.005"), Some(101));
        assert_eq!(read("-1.0049"), Some(-100));
        assert_eq!(read("999.99"), Some(99_999));
        assert_eq!(read(".5"), Some(50));
        assert_eq!((read("999.995"), read("1e3"), read("."), read("")), (None, None, None, None));
    }

    #[test]
    fn stamps_have_many_forms() {
        let read = |text| one(|o, d, v| read_stamps(o, d, v, true), text);
        assert_eq!(read("2000-01-01T00:00:01Z"), Some(1_000_000));
        assert_eq!(read("2000-01-01 01:00:00.5+01"), Some(500_000));
        assert_eq!(read("2000-01-01t00:00:00-0030"), Some(1_800_000_000));
        assert_eq!(read("2000-01-01 05:45:00+05:45"), Some(0));
        for odd in ["2000-02-30 00:00:00", "2000-01-01 24:00:00", "2000-01-01 00:00:00.1234567"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }

    #[test]
    fn numerics_that_are_printed_otherwise_are_odd() {
        let odd = |text: &str, precision, scale| {
            odd_numerics(&[0, text.len() as i64], text.as_bytes(), &[], precision, scale)[0]
        };
        assert!(!odd("-0.50", 2, 2) && odd("1.50", 2, 2) && odd("-0.00", 4, 2));
        assert!(odd("01", 4, -1) && odd("1.", 4, -1) && odd("1e3", 4, -1) && !odd("10.00", 4, -1));
    }

    #[test]
    fn no_texts_panic() {
        let samples: [&[u8]; 5] = [
            b"-12345678901234567",
            b"-123.45678",
            b"2024-02-29T23:59:59.123456+05:45",
            b"23:59:59.5",
            b"01234567-89ab-cdef-0123-456789abcdef",
        ];
        let read = |bytes: &[u8]| {
            let (offsets, valid) = ([0, bytes.len() as i64], []);
            read_ints(&offsets, bytes, &valid, i64::MIN, i64::MAX);
            for (precision, scale) in [(18, 0), (18, 18), (5, 2)] {
                read_fixed(&offsets, bytes, &valid, precision, scale);
                odd_numerics(&offsets, bytes, &valid, precision as i64, scale as i64);
            }
            read_bools(&offsets, bytes, &valid);
            read_dates(&offsets, bytes, &valid);
            read_times(&offsets, bytes, &valid);
            read_stamps(&offsets, bytes, &valid, true);
            odd_texts(&offsets, bytes, &valid, 3);
            odd_uuids(&offsets, bytes, &valid);
            pad_texts(&offsets, bytes, 5);
        };
        try_with(&samples, &all_bytes(), read);
        try_with(&samples, b"0123459-+.: TZ", read);
    }
}
