//! Division, rounding and order of the wide numerics of `words`; see there.
//!
//! The scale of a quotient is select_div_scale's (numeric.c): at least 16 significant digits.

use super::limbs::{over, take_digits, times_plus, NOT_A_NUMBER};
use super::numbers::NAN;
use super::operands::rows_of;
use super::words::{less, order, times_ten_to, Found, Number, Word, Words, MAX_DIGITS, WIDTH};
use crate::values::digits::TENS;
use std::cmp::Ordering;

const SIGNIFICANT: i64 = 16;
const GROUP: i64 = 4;
/// select_div_scale allows up to 1,000 digits, which never fit here.
const MAX_SCALE: i64 = 100;
/// Ten times a divisor below this, and a digit, fit into an int64.
const SHORT: u64 = 1 << 59;

/// A magnitude's digits, each 0 to 9, from the first one that is not 0 on.
struct Digits {
    all: [u8; MAX_DIGITS],
    first: usize,
}

impl Digits {
    #[inline]
    fn of(mut word: Word) -> Digits {
        let mut all = [0; MAX_DIGITS];
        let first = take_digits(&mut word, &mut all);
        Digits { all, first }
    }

    #[inline]
    fn get(&self) -> &[u8] {
        &self.all[self.first..]
    }

    /// (weight, value) of the first digit to base 10,000, as numeric.c stores a number.
    #[inline]
    fn leading(&self, scale: i64) -> (i64, i64) {
        let digits = self.get();
        if digits.is_empty() {
            return (0, 0);
        }
        let integral = digits.len() as i64 - scale;
        let weight = (integral - 1).div_euclid(GROUP);
        let each = 0..(integral - weight * GROUP) as usize;
        let digit = |k: usize| i64::from(digits.get(k).copied().unwrap_or(0));
        (weight, each.fold(0, |lead, k| 10 * lead + digit(k)))
    }
}

/// The quotient of a long division, nine digits at once.
#[derive(Default)]
struct Quotient {
    word: Word,
    part: u64,
    buffered: usize,
}

impl Quotient {
    #[inline]
    fn push(&mut self, digit: u64) -> bool {
        self.part = 10 * self.part + digit;
        self.buffered += 1;
        self.buffered < 9 || self.flush()
    }

    #[inline]
    fn flush(&mut self) -> bool {
        let fits = times_plus(&mut self.word, TENS[self.buffered] as u64, self.part);
        (self.part, self.buffered) = (0, 0);
        fits
    }
}

/// digits * 10^shift / divisor: (quotient, remainder); None: it does not fit.
#[inline]
fn long_division(digits: &[u8], shift: usize, divisor: &Word) -> Option<(Word, Word)> {
    let all = digits.iter().map(|digit| u64::from(*digit)).chain(std::iter::repeat_n(0, shift));
    let mut quotient = Quotient::default();
    let mut rest = [0; WIDTH];
    let small = divisor[1] << 32 | divisor[0];
    if divisor[2..] == [0; WIDTH - 2] && small < SHORT {
        let mut left = 0;
        for digit in all {
            left = 10 * left + digit;
            if !quotient.push(left / small) {
                return None;
            }
            left %= small;
        }
        (rest[0], rest[1]) = (left & 0xFFFF_FFFF, left >> 32);
    } else {
        for digit in all {
            // The remainder is below the divisor: ten times it must still fit.
            if !times_plus(&mut rest, 10, digit) {
                return None;
            }
            let mut count = 0;
            while order(&rest, divisor) != Ordering::Less {
                less(&mut rest, divisor);
                count += 1;
            }
            if !quotient.push(count) {
                return None;
            }
        }
    }
    quotient.flush().then_some((quotient.word, rest))
}

/// (magnitude, scale) of a quotient; None: it does not fit.
#[inline]
fn quotient_of(a: &Number, b: &Number) -> Option<(Word, i64)> {
    let dividend = Digits::of(a.word);
    let (weight, lead) = dividend.leading(a.scale);
    let (b_weight, b_lead) = Digits::of(b.word).leading(b.scale);
    let weight = weight - b_weight - i64::from(lead <= b_lead);
    let scale = (SIGNIFICANT - weight * GROUP).max(a.scale).max(b.scale).max(0);
    let shift = scale + b.scale - a.scale;
    if scale > MAX_SCALE || shift < 0 {
        return None;
    }
    let (mut word, mut rest) = long_division(dividend.get(), shift as usize, &b.word)?;
    let is_up = times_plus(&mut rest, 2, 0).then(|| order(&rest, &b.word) != Ordering::Less)?;
    let fits = !is_up || times_plus(&mut word, 1, 1);
    fits.then_some((word, scale))
}

/// a / b, 0 where b is 0.
pub fn divide(a: Words<'_>, b: Words<'_>) -> Found {
    let mut out = Found::zeros(rows_of(a.len(), b.len()));
    for i in 0..out.signs.len() {
        let (x, y) = (a.get(i), b.get(i));
        if x.sign == NOT_A_NUMBER || y.sign == NOT_A_NUMBER {
            out.signs[i] = NOT_A_NUMBER;
            continue;
        }
        if y.sign == 0 {
            continue;
        }
        let Some((word, scale)) = quotient_of(&x, &y) else { return out.unfit() };
        out.scales[i] = scale;
        *out.word(i) = word;
        if word != [0; WIDTH] {
            out.signs[i] = x.sign * y.sign;
        }
    }
    out
}

/// The units of a number at a scale, rounded half away from zero or cut; None: they do not fit.
#[inline]
fn units_of(number: &Number, scale: i64, is_half_up: bool) -> Option<i64> {
    let mut word = number.word;
    let mut by = number.scale - scale;
    if by < 0 && !times_ten_to(&mut word, -by) {
        return None;
    }
    let mut last = 0;
    while by > 0 {
        // The last digit cut off decides.
        let step = if by == 1 { 1 } else { (by - 1).min(9) };
        last = over(&mut word, TENS[step as usize] as u64);
        by -= step;
    }
    let is_up = number.scale > scale && is_half_up && last >= 5;
    if is_up && !times_plus(&mut word, 1, 1) {
        return None;
    }
    let size = word[1] << 32 | word[0];
    if word[2..] != [0; WIDTH - 2] || size >= NAN as u64 {
        return None;
    }
    Some(if number.sign < 0 { -(size as i64) } else { size as i64 })
}

/// Numbers at `scale`, from 0 on, as int64 units, NaN as such: (units, fits).
pub fn round_to(words: Words<'_>, scale: i64, is_half_up: bool) -> (Vec<i64>, bool) {
    let mut out = vec![0; words.len()];
    for (i, to) in out.iter_mut().enumerate() {
        let number = words.get(i);
        if number.sign == NOT_A_NUMBER {
            *to = NAN;
            continue;
        }
        match units_of(&number, scale, is_half_up) {
            Some(units) => *to = units,
            None => return (out, false),
        }
    }
    (out, true)
}

/// (`WIDTH` + 1 rows of keys, fits): keys whose lexical order, first key first, is the numbers'.
///
/// NaN is above all. scale: at least every number's own.
pub fn rank_keys(words: Words<'_>, scale: i64) -> (Vec<i64>, bool) {
    let n = words.len();
    let mut out = vec![0; (WIDTH + 1) * n];
    for i in 0..n {
        let mut number = words.get(i);
        let sign = i64::from(number.sign);
        out[i] = sign;
        if number.sign == NOT_A_NUMBER {
            continue;
        }
        if !times_ten_to(&mut number.word, scale - number.scale) {
            return (out, false);
        }
        for (k, limb) in number.word.iter().rev().enumerate() {
            out[(k + 1) * n + i] = sign * *limb as i64;
        }
    }
    (out, true)
}

/// The same values without zeros at the end of the fraction: (limbs, scales).
pub fn strip(words: Words<'_>) -> (Vec<u64>, Vec<i64>) {
    let mut out = Vec::with_capacity(WIDTH * words.len());
    let mut shown = Vec::with_capacity(words.len());
    for i in 0..words.len() {
        let Number { sign, mut word, mut scale } = words.get(i);
        if sign == 0 || sign == NOT_A_NUMBER {
            scale = 0;
        }
        while scale > 0 {
            let mut shorter = word;
            if over(&mut shorter, 10) != 0 {
                break;
            }
            word = shorter;
            scale -= 1;
        }
        out.extend_from_slice(&word);
        shown.push(scale);
    }
    (out, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: u64, scale: i64) -> Number {
        Number { sign: 1, word: [value & 0xFFFF_FFFF, value >> 32, 0, 0, 0], scale }
    }

    #[test]
    fn quotients_have_sixteen_significant_digits() {
        let (word, scale) = quotient_of(&number(2, 0), &number(3, 0)).unwrap();
        let found = u128::from(word[2]) << 64 | u128::from(word[1] << 32 | word[0]);
        assert_eq!((found, scale), (66_666_666_666_666_666_667, 20));
        let (word, scale) = quotient_of(&number(10, 0), &number(4, 0)).unwrap();
        assert_eq!((word, scale), (number(25_000_000_000_000_000, 16).word, 16));
    }

    #[test]
    fn long_and_short_divisors_agree() {
        let digits = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        let small = number(SHORT - 1, 0).word;
        let large = number(SHORT, 0).word;
        for divisor in [small, large] {
            let (quotient, rest) = long_division(&digits, 0, &divisor).unwrap();
            let size = |word: &Word| u128::from(word[1]) << 32 | u128::from(word[0]);
            let whole = size(&quotient) * size(&divisor) + size(&rest);
            assert_eq!(whole, 9_876_543_210_123_456_789);
        }
    }

    #[test]
    fn the_last_digit_cut_off_rounds() {
        assert_eq!(units_of(&number(1_249_999_999_995, 12), 0, true), Some(1));
        assert_eq!(units_of(&number(15, 1), 0, true), Some(2));
        assert_eq!(units_of(&number(15, 1), 0, false), Some(1));
        assert_eq!(units_of(&number(NAN as u64, 0), 0, false), None);
    }
}
