//! Magnitudes in limbs to base 2^32, least first, and their digits.

use crate::values::digits::{digit, TENS};

const LOW: u64 = 0xFFFF_FFFF;
/// The sign of NaN, beside -1, 0 and 1.
pub(crate) const NOT_A_NUMBER: i8 = 2;

/// limbs = limbs * factor + plus, both below 2^31; false when it no longer fits.
#[inline]
pub(crate) fn times_plus(limbs: &mut [u64], factor: u64, plus: u64) -> bool {
    let mut carry = plus;
    for limb in limbs {
        let part = *limb * factor + carry;
        *limb = part & LOW;
        carry = part >> 32;
    }
    carry == 0
}

/// limbs = limbs / divisor, below 2^32; the remainder.
#[inline]
pub(crate) fn over(limbs: &mut [u64], divisor: u64) -> u64 {
    let mut rest = 0;
    for limb in limbs.iter_mut().rev() {
        let part = rest << 32 | *limb;
        *limb = part / divisor;
        rest = part % divisor;
    }
    rest
}

/// limbs = -limbs, modulo the power of two that they hold.
#[inline]
pub(crate) fn negate(limbs: &mut [u64]) {
    let mut carry = 1;
    for limb in limbs {
        let flipped = (*limb ^ LOW) + carry;
        *limb = flipped & LOW;
        carry = flipped >> 32;
    }
}

/// `NOT_A_NUMBER`, or -1 or 1 by whether a text begins with a minus.
#[inline]
pub(crate) fn sign_of(text: &[u8]) -> i8 {
    match text {
        [b'N', _, _] => NOT_A_NUMBER,
        [b'-', ..] => -1,
        _ => 1,
    }
}

/// Set limbs, which must be zero, to the digits of a text: (digits after the dot, fits).
///
/// fits is also false for text that is not a number.
#[inline]
pub(crate) fn read_digits(text: &[u8], limbs: &mut [u64]) -> (i64, bool) {
    let (mut part, mut digits, mut fraction, mut fits) = (0, 0, None, true);
    for &c in text {
        if c == b'.' && fraction.is_none() {
            fraction = Some(0);
            continue;
        }
        let Some(digit) = digit(c) else { return (0, false) };
        part = 10 * part + digit as u64;
        digits += 1;
        if let Some(places) = &mut fraction {
            *places += 1;
        }
        if digits == 9 {
            fits &= times_plus(limbs, TENS[9] as u64, part);
            (part, digits) = (0, 0);
        }
    }
    fits &= times_plus(limbs, TENS[digits] as u64, part);
    (fraction.unwrap_or(0), fits)
}

/// Write the decimal digits of limbs, which are 0 afterwards, at the end of others, each 0 to 9;
/// where the first one that is not 0 is.
#[inline]
pub(crate) fn take_digits(limbs: &mut [u64], digits: &mut [u8]) -> usize {
    let mut first = digits.len();
    let mut high = limbs.len();
    while high > 0 {
        if limbs[high - 1] == 0 {
            high -= 1;
            continue;
        }
        let mut low = over(&mut limbs[..high], TENS[9] as u64) as u32;
        for digit in digits[first - 9..first].iter_mut().rev() {
            *digit = (low % 10) as u8;
            low /= 10;
        }
        first -= 9;
    }
    while digits.get(first) == Some(&0) {
        first += 1;
    }
    first
}

/// Append digits / 10^scale, without zeros before them, as numeric prints it.
#[inline]
pub(crate) fn put_decimal(out: &mut Vec<u8>, is_negative: bool, digits: &[u8], scale: usize) {
    let text = |digits: &u8| b'0' + digits;
    if is_negative {
        out.push(b'-');
    }
    let (whole, fraction) = digits.split_at(digits.len().saturating_sub(scale));
    if whole.is_empty() {
        out.push(b'0');
    }
    out.extend(whole.iter().map(text));
    if scale > 0 {
        out.push(b'.');
        out.resize(out.len() + scale - fraction.len(), b'0');
        out.extend(fraction.iter().map(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_and_written() {
        let mut limbs = [0; 3];
        assert_eq!(read_digits(b"1234567890123.4567890", &mut limbs), (7, true));
        let mut digits = [7; 45];
        let first = take_digits(&mut limbs, &mut digits);
        let mut out = Vec::new();
        put_decimal(&mut out, true, &digits[first..], 7);
        assert_eq!(out, b"-1234567890123.4567890");
        assert_eq!(limbs, [0; 3]);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        assert_eq!(read_digits(b"4294967296", &mut [0]), (0, false));
        assert_eq!(read_digits(b"4294967295", &mut [0]), (0, true));
        assert_eq!(read_digits(b"1e5", &mut [0]), (0, false));
    }

    #[test]
    fn small_numbers_have_zeros_after_the_point() {
        let mut out = Vec::new();
        put_decimal(&mut out, false, &[5], 3);
        put_decimal(&mut out, false, &[], 0);
        assert_eq!(out, b"0.0050");
    }
}
