//! Between text and floats whose decimal form is short. No other float is guessed: it is marked.

use super::digits::{digit, put_fixed, put_pair, split_sign, TENS};
use crate::memory::Rows;
use crate::strings::{is_null, put, Strings};

/// Bytes of the longest text of a float.
pub const FLOAT_WIDTH: usize = 26;
/// Powers of ten that a float has exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
/// Every integer up to 2^53 is a float.
const EXACT: i64 = 1 << 53;
/// From here on, floats have no fraction.
const WHOLE: f64 = (1i64 << 52) as f64;

/// One text: a mantissa up to 2^53 times or over 10^22 at most rounds once (Clinger).
#[inline]
fn float_of(text: &[u8]) -> Option<f64> {
    let (is_negative, mut rest) = split_sign(text);
    let (mut mantissa, mut digits, mut exponent, mut seen_dot) = (0, 0, 0i64, false);
    while let [c, after @ ..] = rest {
        if *c == b'.' && !seen_dot {
            seen_dot = true;
        } else if let Some(digit) = digit(*c) {
            mantissa = 10 * mantissa + digit;
            digits += 1;
            exponent -= i64::from(seen_dot);
            if mantissa > EXACT {
                return None;
            }
        } else {
            break;
        }
        rest = after;
    }
    if digits == 0 {
        return None;
    }
    exponent += exponent_of(rest)?;
    let power = POWERS.get(exponent.unsigned_abs() as usize)?;
    let value = mantissa as f64;
    let value = if exponent < 0 { value / power } else { value * power };
    Some(if is_negative { -value } else { value })
}

/// What follows the mantissa: nothing, or e, a sign, and up to three digits.
#[inline]
fn exponent_of(text: &[u8]) -> Option<i64> {
    let rest = match text {
        [] => return Some(0),
        [b'e' | b'E', rest @ ..] => rest,
        _ => return None,
    };
    let (is_down, digits) = match rest {
        [b'+', digits @ ..] => (false, digits),
        _ => split_sign(rest),
    };
    if digits.is_empty() || digits.len() > 3 {
        return None;
    }
    let mut power = 0;
    for byte in digits {
        power = 10 * power + digit(*byte)?;
    }
    Some(if is_down { -power } else { power })
}

/// (values, marks): a marked row needs the slow, exact path.
pub fn parse_floats(texts: Strings<'_>, valid: &[bool]) -> (Vec<f64>, Vec<bool>) {
    let mut out = vec![0.0; texts.len()];
    let mut marks = vec![false; texts.len()];
    for (i, (value, mark)) in out.iter_mut().zip(&mut marks).enumerate() {
        if !is_null(valid, i) {
            let found = float_of(texts.get(i));
            *mark = found.is_none();
            *value = found.unwrap_or(0.0);
        }
    }
    (out, marks)
}

/// Append mantissa * 10^-places as PostgreSQL prints floats (ryu, to_chars).
#[inline]
fn put_decimal(out: &mut Vec<u8>, mantissa: i64, places: usize, switch: i64) {
    let more = TENS[1..18].iter().take_while(|ten| **ten <= mantissa).count();
    let mut digits = 1 + more;
    let exponent = digits as i64 - 1 - places as i64;
    let mut rest = mantissa;
    if (-4..switch).contains(&exponent) {
        return put_fixed(out, rest, places);
    }
    while rest % 10 == 0 {
        rest /= 10;
        digits -= 1;
    }
    put_fixed(out, rest, digits - 1);
    out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
    put_pair(out, exponent.unsigned_abs());
}

/// A value from 0 on, rounded half to even. Exact below 2^52, and not below it for greater ones.
#[inline]
fn round_half_even(value: f64) -> f64 {
    (value + WHOLE) - WHOLE
}

/// (slots of `FLOAT_WIDTH` bytes, lengths, marks) of floats; a marked row is left to the caller.
///
/// Found here are the values whose shortest decimal has at most 15 (single: 6) digits: that decimal
/// is the only one of so few digits that reads back as the value.
pub fn print_floats(
    values: &[f64],
    valid: &[bool],
    is_single: bool,
) -> (Vec<u8>, Vec<i64>, Vec<bool>) {
    let (limit, most, switch) = if is_single { (1e6, 11, 6) } else { (1e15, 18, 15) };
    let mut slots = Vec::with_capacity(FLOAT_WIDTH * values.len());
    let mut lengths = vec![0; values.len()];
    let mut marks = vec![false; values.len()];
    for (i, (&signed, (length, mark))) in
        values.iter().zip(lengths.iter_mut().zip(&mut marks)).enumerate()
    {
        let value = signed.abs();
        let start = slots.len();
        if !is_null(valid, i) {
            *mark = true;
            if value < limit {
                for (places, power) in POWERS[..=most].iter().enumerate() {
                    let mantissa = round_half_even(value * power);
                    if mantissa >= limit {
                        break;
                    }
                    let back = mantissa / power;
                    let back = if is_single { f64::from(back as f32) } else { back };
                    if back == value {
                        if signed.is_sign_negative() {
                            slots.push(b'-');
                        }
                        put_decimal(&mut slots, mantissa as i64, places, switch);
                        *mark = false;
                        break;
                    }
                }
            }
        }
        *length = (slots.len() - start) as i64;
        slots.resize(start + FLOAT_WIDTH, 0);
    }
    (slots, lengths, marks)
}

/// (offsets, bytes) of slots of one width each.
pub fn join_slots(slots: Rows<'_, u8>, lengths: &[i64]) -> (Vec<i64>, Vec<u8>) {
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    let mut total = 0;
    offsets.push(0);
    for length in lengths {
        total += length;
        offsets.push(total);
    }
    let mut out = vec![0; total as usize];
    let mut rest = &mut out[..];
    for (i, length) in lengths.iter().enumerate() {
        rest = put(rest, &slots.row(i)[..*length as usize]);
    }
    (offsets, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(value: f64, is_single: bool) -> String {
        let (slots, lengths, marks) = print_floats(&[value], &[], is_single);
        assert_eq!(marks[0], lengths[0] == 0);
        String::from_utf8(slots[..lengths[0] as usize].to_vec()).unwrap()
    }

    #[test]
    fn short_floats_are_printed_and_others_marked() {
        assert_eq!(printed(-0.0, false), "-0");
        assert_eq!(printed(0.1, false), "0.1");
        assert_eq!(printed(0.00001, false), "1e-05");
        assert_eq!(printed(123_456_789_012_345.0, false), "123456789012345");
        assert_eq!(printed(1.0 / 3.0, false), "");
        assert_eq!(printed(f64::NAN, false), "");
        assert_eq!(printed(1e15, false), "");
        assert_eq!(printed(100_000.0, true), "100000");
        assert_eq!(printed(f64::from(0.1f32), true), "0.1");
    }

    #[test]
    fn an_inexact_text_is_marked() {
        assert_eq!(float_of(b"-0"), Some(-0.0));
        assert_eq!(float_of(b"1.5e+2"), Some(150.0));
        assert_eq!(float_of(b"9007199254740993"), None);
        assert_eq!(float_of(b"1e23"), None);
        assert_eq!(float_of(b"1e"), None);
        assert_eq!(float_of(b"1e+-2"), None);
        assert_eq!(float_of(b"NaN"), None);
    }
}
