//! Between text and integers, fixed point, and booleans.

use super::digits::{digit, put_fixed, split_sign, TENS};
use crate::strings::{print, Strings};

/// NaN in a column of fixed point.
const FIXED_NAN: i64 = i64::MAX;
/// Units of fixed point are smaller.
const FIXED_LIMIT: i64 = TENS[18];
/// Digits of the greatest integer.
const INT_DIGITS: usize = 19;

#[inline]
fn int_of(text: &[u8], low: i64, high: i64) -> Option<i64> {
    let (is_negative, digits) = split_sign(text);
    if digits.is_empty() || digits.len() > INT_DIGITS {
        return None;
    }
    let mut size = 0u64;
    for byte in digits {
        size = 10 * size + digit(*byte)? as u64;
    }
    let value =
        if is_negative { 0i64.checked_sub_unsigned(size)? } else { size.try_into().ok()? };
    (low..=high).contains(&value).then_some(value)
}

/// Decimal integers from `low` to `high`.
pub fn parse_ints(texts: Strings<'_>, valid: &[bool], low: i64, high: i64) -> (Vec<i64>, i64) {
    texts.parse(valid, |text| int_of(text, low, high))
}

/// Decimal integers.
pub fn print_ints(values: &[i64], valid: &[bool]) -> (Vec<i64>, Vec<u8>) {
    print(values, valid, 20, |out, value| put_fixed(out, value, 0))
}

/// One numeric text at a scale; no digit may be lost.
#[inline]
fn fixed_of(text: &[u8], scale: usize) -> Option<i64> {
    if text == b"NaN" {
        return Some(FIXED_NAN);
    }
    let (is_negative, rest) = split_sign(text);
    let (mut value, mut digits, mut fraction) = (0, 0, None);
    for &c in rest {
        if c == b'.' && fraction.is_none() {
            fraction = Some(0);
            continue;
        }
        let digit = digit(c)?;
        digits += 1;
        match &mut fraction {
            Some(places) if *places == scale => {
                if digit != 0 {
                    return None;
                }
                continue;
            }
            Some(places) => *places += 1,
            None => {}
        }
        value = 10 * value + digit;
        if value >= FIXED_LIMIT {
            return None;
        }
    }
    let unit = TENS[scale - fraction.unwrap_or(0)];
    if digits == 0 || value > (FIXED_LIMIT - 1) / unit {
        return None;
    }
    value *= unit;
    Some(if is_negative { -value } else { value })
}

/// Numeric texts as value * 10^scale, NaN as `FIXED_NAN`.
pub fn parse_fixed(texts: Strings<'_>, valid: &[bool], scale: usize) -> (Vec<i64>, i64) {
    texts.parse(valid, |text| fixed_of(text, scale))
}

/// value * 10^-scale with exactly `scale` digits after the point.
pub fn print_fixed(values: &[i64], valid: &[bool], scale: usize) -> (Vec<i64>, Vec<u8>) {
    print(values, valid, 22, |out, value| {
        if value == FIXED_NAN {
            return out.extend_from_slice(b"NaN");
        }
        put_fixed(out, value, scale);
    })
}

/// t, f, true, false.
pub fn parse_bools(texts: Strings<'_>, valid: &[bool]) -> (Vec<bool>, i64) {
    texts.parse(valid, |text| match text {
        b"t" | b"true" => Some(true),
        b"f" | b"false" => Some(false),
        _ => None,
    })
}

/// t and f.
pub fn print_bools(values: &[bool], valid: &[bool]) -> (Vec<i64>, Vec<u8>) {
    let letter = |value: &bool| if *value { b't' } else { b'f' };
    if valid.is_empty() {
        let letters = values.iter().map(letter).collect();
        return ((0..=values.len() as i64).collect(), letters);
    }
    print(values, valid, 1, |out, value| out.push(letter(&value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_reach_both_ends_of_their_range() {
        let all = |text| int_of(text, i64::MIN, i64::MAX);
        assert_eq!(all(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(all(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(all(b"9223372036854775808"), None);
        assert_eq!(all(b"-9223372036854775809"), None);
        assert_eq!(all(b"-"), None);
        assert_eq!(int_of(b"-32769", -32768, 32767), None);
    }

    #[test]
    fn fixed_point_loses_no_digit() {
        assert_eq!(fixed_of(b"-1.5", 2), Some(-150));
        assert_eq!(fixed_of(b"1.500", 2), Some(150));
        assert_eq!(fixed_of(b"1.505", 2), None);
        assert_eq!(fixed_of(b"999999999999999999", 0), Some(FIXED_LIMIT - 1));
        assert_eq!(fixed_of(b"99999999999999999", 2), None);
        assert_eq!(fixed_of(b".", 2), None);
        assert_eq!(fixed_of(b"1.2.3", 2), None);
        assert_eq!(fixed_of(b"NaN", 0), Some(FIXED_NAN));
    }
}
