//! Between numeric text and limbs, and from sums of limbs to text.
//!
//! A number of up to 32 * L - 1 bits is L limbs to base 2^32: all but the last between 0 and 2^32,
//! the last one signed. Limbs of many rows add up in int64 without carrying; the sums are carried
//! when they are printed. All is exact, and text has numeric_out's digits; averages have the scale
//! of numeric_div (select_div_scale of numeric.c).

use crate::expressions::limbs::{
    negate, put_decimal, read_digits, sign_of, take_digits, times_plus, NOT_A_NUMBER,
};
use crate::memory::Rows;
use crate::strings::{is_null, print_rows, Strings};
use crate::values::digits::TENS;

const LOW: i64 = 0xFFFF_FFFF;
const GROUP: i64 = 4;
const SIGNIFICANT: i64 = 16;
const MAX_PLACES: i64 = 1000;

/// Numbers in limbs: L rows of limbs, where they are NaN, their own scales, and the first row that
/// does not fit, or -1.
pub struct Parsed {
    /// The limbs.
    pub limbs: Vec<i64>,
    /// Where they are NaN.
    pub nan: Vec<bool>,
    /// Digits after the point of each text.
    pub own: Vec<i64>,
    /// The first row that does not fit, or -1.
    pub row: i64,
}

/// Set limbs, which must be zero, to a text's units of 10^-scale: (its own scale, fits).
#[inline]
fn units_of(text: &[u8], scale: i64, limbs: &mut [u64]) -> (i64, bool) {
    let (own, mut fits) = read_digits(text, limbs);
    let mut missing = scale - own;
    if text.is_empty() || missing < 0 {
        return (own, false);
    }
    while missing > 0 {
        let step = missing.min(9);
        fits &= times_plus(limbs, TENS[step as usize] as u64, 0);
        missing -= step;
    }
    (own, fits && limbs.last().is_some_and(|top| *top < 1 << 31))
}

/// Numeric texts as units of 10^-scale.
pub fn parse_limbs(texts: Strings<'_>, valid: &[bool], scale: i64, width: usize) -> Parsed {
    let n = texts.len();
    let mut out =
        Parsed { limbs: vec![0; width * n], nan: vec![false; n], own: vec![0; n], row: -1 };
    let mut units = vec![0; width];
    for i in (0..n).filter(|i| !is_null(valid, *i)) {
        let text = texts.get(i);
        let sign = sign_of(text);
        if sign == NOT_A_NUMBER {
            out.nan[i] = true;
            continue;
        }
        units.fill(0);
        let (own, fits) = units_of(&text[usize::from(sign < 0)..], scale, &mut units);
        out.own[i] = own;
        if !fits {
            out.row = i as i64;
            return out;
        }
        if sign < 0 {
            negate(&mut units);
        }
        for (k, limb) in units.iter().enumerate() {
            out.limbs[k * n + i] = *limb as i64;
        }
        // The last limb carries the sign.
        let top = &mut out.limbs[(width - 1) * n + i];
        *top = i64::from(*top as u32 as i32);
    }
    out
}

/// The magnitude of sum i in scratch, which has a limb more; whether it is negative.
#[inline]
fn carry(sums: Rows<'_, i64>, i: usize, scratch: &mut [u64]) -> bool {
    let last = sums.len() - 1;
    let mut carry = 0;
    for (k, limb) in scratch[..last].iter_mut().enumerate() {
        let value = sums.row(k)[i].wrapping_add(carry);
        *limb = (value & LOW) as u64;
        carry = value >> 32;
    }
    let top = sums.row(last)[i].wrapping_add(carry);
    scratch[last] = (top & LOW) as u64;
    scratch[last + 1] = (top >> 32 & LOW) as u64;
    if top < 0 {
        negate(scratch);
    }
    top < 0
}

/// (weight, value) of the first digit to base 10,000 of digits / 10^scale.
#[inline]
fn leading(digits: &[u8], scale: i64) -> (i64, i64) {
    if digits.is_empty() {
        return (0, 0);
    }
    let integral = digits.len() as i64 - scale;
    let weight = (integral - 1).div_euclid(GROUP);
    let each = 0..(integral - weight * GROUP) as usize;
    let digit = |k: usize| i64::from(digits.get(k).copied().unwrap_or(0));
    (weight, each.fold(0, |lead, k| 10 * lead + digit(k)))
}

#[inline]
fn leading_of_count(count: i64) -> (i64, i64) {
    let (mut weight, mut value) = (0, count);
    while value >= 10_000 {
        value /= 10_000;
        weight += 1;
    }
    (weight, value)
}

/// digits / 10^scale / count in `quotient`; its scale.
#[inline]
fn divide(digits: &[u8], scale: i64, count: i64, quotient: &mut Vec<u8>) -> i64 {
    let (weight, value) = leading(digits, scale);
    let (count_weight, count_value) = leading_of_count(count);
    let weight = weight - count_weight - i64::from(value <= count_value);
    let places = (SIGNIFICANT - weight * GROUP).max(scale).clamp(0, MAX_PLACES);
    let more = (places - scale).max(0) as usize;
    // The first digit is for what rounding carries out of the next one.
    quotient.clear();
    quotient.push(0);
    let mut rest = 0;
    for digit in digits.iter().copied().chain(std::iter::repeat_n(0, more)) {
        rest = rest * 10 + i64::from(digit);
        quotient.push((rest / count) as u8);
        rest %= count;
    }
    if 2 * rest >= count {
        let nines = quotient.iter().rev().take_while(|digit| **digit == 9).count();
        let kept = quotient.len() - nines;
        quotient[kept..].fill(0);
        quotient[kept - 1] += 1;
    }
    places
}

/// What is printed beside sums.
pub struct Shown<'a> {
    /// The scale of the sums.
    pub scale: i64,
    /// The display scale of each, or of all, at most `scale`.
    pub places: &'a [i64],
    /// What each sum is divided by; empty: by nothing.
    pub counts: &'a [i64],
    /// Which are not NULL.
    pub valid: &'a [bool],
    /// Which are NaN; empty for none.
    pub nan: &'a [bool],
}

/// Sums, L rows of limbs, of units of 10^-scale, as numeric prints them.
pub fn print_limbs(sums: Rows<'_, i64>, shown: &Shown<'_>) -> (Vec<i64>, Vec<u8>) {
    let (width, n) = (sums.len(), sums.width());
    let mut scratch = vec![0; width + 1];
    let mut digits = vec![0; 9 * (width + 3)];
    let mut quotient = Vec::with_capacity(digits.len());
    let is_one = shown.places.len() == 1;
    print_rows(n, shown.valid, 24 * n, |out, i| {
        if shown.nan.get(i) == Some(&true) {
            return out.extend_from_slice(b"NaN");
        }
        let is_negative = carry(sums, i, &mut scratch);
        let first = take_digits(&mut scratch, &mut digits);
        let places = shown.places[if is_one { 0 } else { i }];
        // Digits beyond the greatest scale of what was added up are zeros.
        let last = digits.len() - (shown.scale - places) as usize;
        let found = &digits[first.min(last)..last];
        let (found, places) = match shown.counts.get(i) {
            Some(count) => {
                let places = divide(found, places, *count, &mut quotient);
                (&quotient[..], places)
            }
            None => (found, places),
        };
        let zeros = found.iter().take_while(|digit| **digit == 0).count();
        let found = &found[zeros..];
        put_decimal(out, is_negative && !found.is_empty(), found, places.max(0) as usize);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(sums: &[i64], scale: i64, counts: &[i64]) -> String {
        let shown = Shown { scale, places: &[scale], counts, valid: &[true], nan: &[] };
        String::from_utf8(print_limbs(Rows::new(sums, 1), &shown).1).unwrap()
    }

    #[test]
    fn limbs_are_carried_when_printed() {
        assert_eq!(printed(&[-1, 0], 0, &[]), "-1");
        assert_eq!(printed(&[1 << 40, 3], 2, &[]), "11123965296.64");
        assert_eq!(printed(&[0, 0], 2, &[]), "0.00");
    }

    #[test]
    fn averages_are_rounded() {
        assert_eq!(printed(&[2, 0], 0, &[3]), "0.66666666666666666667");
        assert_eq!(printed(&[-10, -1], 0, &[4]), "-1073741826.50000000");
        assert_eq!(printed(&[0, 0], 2, &[4]), "0.00000000000000000000");
    }

    #[test]
    fn a_number_of_more_bits_does_not_fit() {
        let parse = |text: &'static [u8]| {
            let ends = [0, text.len() as i64];
            let found = parse_limbs(Strings::new(&ends, text), &[], 0, 2);
            (found.limbs, found.row)
        };
        assert_eq!(parse(b"-1"), (vec![0xFFFF_FFFF, -1], -1));
        assert_eq!(parse(b"9223372036854775807"), (vec![0xFFFF_FFFF, 0x7FFF_FFFF], -1));
        assert_eq!(parse(b"9223372036854775808").1, 0);
        assert_eq!(parse(b"").1, 0);
        assert_eq!(parse(b"-").1, 0);
    }
}
