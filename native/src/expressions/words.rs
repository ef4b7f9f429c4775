//! Numerics too wide for an int64: up to 160 bits, 48 digits.
//!
//! A number is a sign (-1, 0, 1; `NOT_A_NUMBER`), its magnitude in `WIDTH` limbs to base 2^32, least
//! first, and its display scale. Every result is exact; where one does not fit, `fits` is false and
//! the rest is undefined. Digits and scales are those of numeric.c.

use super::limbs::{put_decimal, read_digits, sign_of, take_digits, times_plus, NOT_A_NUMBER};
use super::numbers::{Operation, NAN};
use super::operands::{mask_of, rows_of, Each};
use crate::memory::Rows;
use crate::strings::{print_rows, Strings};
use crate::values::digits::TENS;
use std::cmp::Ordering;

/// Limbs of a number.
pub const WIDTH: usize = 5;
/// Digits of the greatest magnitude, and more.
pub const MAX_DIGITS: usize = 9 * (WIDTH + 2);
const LOW: u64 = 0xFFFF_FFFF;

/// A magnitude.
pub type Word = [u64; WIDTH];

/// Numbers that a kernel reads; one may stand for all.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// Their signs.
    pub signs: Each<'a, i8>,
    /// Their magnitudes.
    pub words: Rows<'a, u64>,
    /// Their scales.
    pub scales: Each<'a, i64>,
}

/// One number.
#[derive(Clone, Copy)]
pub struct Number {
    /// Its sign.
    pub sign: i8,
    /// Its magnitude.
    pub word: Word,
    /// Its scale.
    pub scale: i64,
}

impl Words<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.signs.len()
    }

    /// That of a row.
    #[inline]
    pub fn get(&self, i: usize) -> Number {
        let row = self.words.row(i & mask_of(self.words.len()));
        let word = row.try_into().expect("as many limbs as a number has");
        Number { sign: self.signs.get(i), word, scale: self.scales.get(i) }
    }
}

/// Numbers that a kernel returns: signs, limbs, scales, and whether all fit.
pub struct Found {
    /// Their signs.
    pub signs: Vec<i8>,
    /// `WIDTH` limbs of each.
    pub words: Vec<u64>,
    /// Their scales.
    pub scales: Vec<i64>,
    /// Whether all fit.
    pub fits: bool,
}

impl Found {
    /// n numbers that are 0.
    pub fn zeros(n: usize) -> Found {
        Found { signs: vec![0; n], words: vec![0; WIDTH * n], scales: vec![0; n], fits: true }
    }

    /// The magnitude of a row, to be written.
    #[inline]
    pub fn word(&mut self, i: usize) -> &mut Word {
        let row = &mut self.words[WIDTH * i..WIDTH * (i + 1)];
        row.try_into().expect("as many limbs as a number has")
    }

    /// Give up: some number does not fit.
    pub fn unfit(mut self) -> Found {
        self.fits = false;
        self
    }
}

/// word = word * 10^power; false when it no longer fits.
#[inline]
pub fn times_ten_to(word: &mut Word, power: i64) -> bool {
    if power > MAX_DIGITS as i64 {
        return *word == [0; WIDTH];
    }
    let mut left = power;
    while left > 0 {
        let step = left.min(9);
        if !times_plus(word, TENS[step as usize] as u64, 0) {
            return false;
        }
        left -= step;
    }
    true
}

/// The order of two magnitudes.
#[inline]
pub fn order(a: &Word, b: &Word) -> Ordering {
    a.iter().rev().cmp(b.iter().rev())
}

/// word = word + more; false when it no longer fits.
#[inline]
fn plus(word: &mut Word, more: &Word) -> bool {
    let mut carry = 0;
    for (limb, more) in word.iter_mut().zip(more) {
        let part = *limb + more + carry;
        *limb = part & LOW;
        carry = part >> 32;
    }
    carry == 0
}

/// word = word - other, which is not greater.
#[inline]
pub fn less(word: &mut Word, other: &Word) {
    let mut borrow = 0;
    for (limb, other) in word.iter_mut().zip(other) {
        let part = (*limb | 1 << 32) - other - borrow;
        *limb = part & LOW;
        borrow = 1 - (part >> 32);
    }
}

/// Numbers of int64 units and scales (one for all, or one each).
pub fn of_units(units: &[i64], scales: Each<'_, i64>) -> Found {
    let mut out = Found::zeros(units.len());
    for (i, &value) in units.iter().enumerate() {
        if value == NAN {
            out.signs[i] = NOT_A_NUMBER;
            continue;
        }
        out.scales[i] = scales.get(i);
        out.signs[i] = value.signum() as i8;
        let size = value.unsigned_abs();
        out.word(i)[..2].copy_from_slice(&[size & LOW, size >> 32]);
    }
    out
}

/// Numbers of numeric_out's text, empty text as 0.
pub fn parse(texts: Strings<'_>) -> Found {
    let mut out = Found::zeros(texts.len());
    for i in 0..texts.len() {
        let text = texts.get(i);
        let sign = sign_of(text);
        if sign == NOT_A_NUMBER {
            out.signs[i] = sign;
            continue;
        }
        let (scale, fits) = read_digits(&text[usize::from(sign < 0)..], out.word(i));
        out.scales[i] = scale;
        if !fits {
            return out.unfit();
        }
        if *out.word(i) != [0; WIDTH] {
            out.signs[i] = sign;
        }
    }
    out
}

/// numeric_out's text; an empty `valid` means no NULLs.
pub fn format(words: Words<'_>, valid: &[bool]) -> (Vec<i64>, Vec<u8>) {
    let mut digits = [0; MAX_DIGITS];
    print_rows(words.len(), valid, 32 * words.len(), |out, i| {
        let mut number = words.get(i);
        if number.sign == NOT_A_NUMBER {
            return out.extend_from_slice(b"NaN");
        }
        let first = take_digits(&mut number.word, &mut digits);
        put_decimal(out, number.sign < 0, &digits[first..], number.scale.max(0) as usize);
    })
}

/// a * b; None when it does not fit.
#[inline]
fn product(a: &Word, b: &Word) -> Option<Word> {
    let mut out = [0; WIDTH];
    for (i, &x) in a.iter().enumerate().filter(|limb| *limb.1 != 0) {
        let mut carry = 0;
        for (to, y) in out[i..].iter_mut().zip(b) {
            let part = x * y + *to + carry;
            *to = part & LOW;
            carry = part >> 32;
        }
        if carry != 0 || b[WIDTH - i..].iter().any(|limb| *limb != 0) {
            return None;
        }
    }
    Some(out)
}

/// x = x + y with their signs: (sign, fits).
#[inline]
fn add(x: &mut Word, x_sign: i8, y: &mut Word, y_sign: i8) -> (i8, bool) {
    if x_sign == 0 {
        *x = *y;
        return (y_sign, true);
    }
    if y_sign == 0 {
        return (x_sign, true);
    }
    if x_sign == y_sign {
        return (x_sign, plus(x, y));
    }
    match order(x, y) {
        Ordering::Equal => {
            *x = [0; WIDTH];
            (0, true)
        }
        Ordering::Greater => {
            less(x, y);
            (x_sign, true)
        }
        Ordering::Less => {
            less(y, x);
            *x = *y;
            (y_sign, true)
        }
    }
}

/// a + b, a - b or a * b.
pub fn combine(operation: Operation, a: Words<'_>, b: Words<'_>) -> Found {
    let mut out = Found::zeros(rows_of(a.len(), b.len()));
    for i in 0..out.signs.len() {
        let (mut x, mut y) = (a.get(i), b.get(i));
        if x.sign == NOT_A_NUMBER || y.sign == NOT_A_NUMBER {
            out.signs[i] = NOT_A_NUMBER;
            continue;
        }
        if operation == Operation::Multiply {
            out.scales[i] = x.scale + y.scale;
            out.signs[i] = x.sign * y.sign;
            match product(&x.word, &y.word) {
                Some(word) => *out.word(i) = word,
                None => return out.unfit(),
            }
            continue;
        }
        let scale = x.scale.max(y.scale);
        let fits = times_ten_to(&mut x.word, scale - x.scale)
            && times_ten_to(&mut y.word, scale - y.scale);
        if !fits {
            return out.unfit();
        }
        let y_sign = if operation == Operation::Subtract { -y.sign } else { y.sign };
        let (sign, fits) = add(&mut x.word, x.sign, &mut y.word, y_sign);
        (out.signs[i], out.scales[i]) = (sign, scale);
        *out.word(i) = x.word;
        if !fits {
            return out.unfit();
        }
    }
    out
}

/// (signs of a - b, fits); NaN equals NaN and is above all.
pub fn compare(a: Words<'_>, b: Words<'_>) -> (Vec<i8>, bool) {
    let mut out = vec![0; rows_of(a.len(), b.len())];
    for i in 0..out.len() {
        let (mut x, mut y) = (a.get(i), b.get(i));
        if x.sign != y.sign {
            out[i] = if x.sign > y.sign { 1 } else { -1 };
            continue;
        }
        if x.sign == NOT_A_NUMBER || x.sign == 0 {
            continue;
        }
        let scale = x.scale.max(y.scale);
        let fits = times_ten_to(&mut x.word, scale - x.scale)
            && times_ten_to(&mut y.word, scale - y.scale);
        if !fits {
            return (out, false);
        }
        out[i] = x.sign * order(&x.word, &y.word) as i8;
    }
    (out, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(value: u128) -> Word {
        [0, 32, 64, 96, 128].map(|shift| value.checked_shr(shift).unwrap_or(0) as u64 & LOW)
    }

    #[test]
    fn products_are_whole_or_do_not_fit() {
        let big = u128::from(u64::MAX);
        assert_eq!(product(&word(big), &word(big)), Some(word(big * big)));
        assert_eq!(product(&word(u128::MAX), &word(1 << 32)), Some([0, LOW, LOW, LOW, LOW]));
        assert_eq!(product(&word(u128::MAX), &word(1 << 33)), None);
        assert_eq!(product(&word(1 << 96), &word(1 << 64)), None);
    }

    #[test]
    fn sums_of_different_signs_are_differences() {
        let (mut x, mut y) = (word(5), word(1 << 70));
        assert_eq!(add(&mut x, 1, &mut y, -1), (-1, true));
        assert_eq!(x, word((1 << 70) - 5));
        let (mut x, mut y) = (word(7), word(7));
        assert_eq!(add(&mut x, -1, &mut y, 1), (0, true));
        let mut full = [LOW; WIDTH];
        assert_eq!(add(&mut full, 1, &mut word(1), 1), (1, false));
    }
}
