//! Narrow numerics: int64 units with a scale for each row or one for all.
//!
//! Each kernel returns whether everything fitted into int64; if not, the caller computes the batch
//! with wide decimals. NaN is the greatest int64, as in columns of fixed point.

use super::operands::{rows_of, Each};
use crate::strings::{print_rows, Strings};
use crate::values::digits::{put_digits, put_fixed, split_sign, TENS};

/// NaN as units.
pub const NAN: i64 = i64::MAX;
const MAX: i64 = i64::MAX - 1;
/// Digits that always fit.
const DIGITS: usize = 18;
/// The greatest units that a power of ten may multiply.
const LIMITS: [u64; 19] = limits();

const fn limits() -> [u64; 19] {
    let mut out = [0; 19];
    let mut k = 0;
    while k < out.len() {
        out[k] = (MAX / TENS[k]) as u64;
        k += 1;
    }
    out
}

/// What `combine` computes.
#[derive(Clone, Copy, PartialEq)]
pub enum Operation {
    /// a + b.
    Add,
    /// a - b.
    Subtract,
    /// a * b.
    Multiply,
}

/// Numbers: units, and the scale of each or of all.
#[derive(Clone, Copy)]
pub struct Numbers<'a> {
    /// Of 10^-scale.
    pub units: &'a [i64],
    /// Digits after the point.
    pub scales: Each<'a, i64>,
}

impl Numbers<'_> {
    #[inline]
    fn rows(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.units.iter().enumerate().map(|(i, units)| (*units, self.scales.get(i)))
    }
}

/// units * 10^by; None if it does not fit.
#[inline]
fn times_ten_to(units: i64, by: i64) -> Option<i64> {
    if by as u64 > DIGITS as u64 || units.unsigned_abs() > LIMITS[by as usize] {
        return None;
    }
    Some(units * TENS[by as usize])
}

/// Units and scale of numeric text; None if it does not fit.
#[inline]
fn number_of(text: &[u8]) -> Option<(i64, i64)> {
    let (is_negative, rest) = split_sign(text);
    if rest.first().is_some_and(|c| *c > b'9') {
        return (rest[0] == b'N').then_some((NAN, 0));
    }
    if rest.len() > DIGITS + 1 {
        return None;
    }
    let mut value = 0i64;
    let mut add = |c: u8| {
        value = value.wrapping_mul(10).wrapping_add(i64::from(c) - i64::from(b'0'));
    };
    let mut digits = rest.len();
    let mut scale = 0;
    for (at, &c) in rest.iter().enumerate() {
        if c == b'.' {
            digits -= 1;
            scale = digits - at;
            rest[at + 1..].iter().for_each(|c| add(*c));
            break;
        }
        add(c);
    }
    let value = if is_negative { value.wrapping_neg() } else { value };
    (digits <= DIGITS).then_some((value, scale as i64))
}

/// (units, scales, whether all fit) of numeric text; an empty (NULL) string is 0.
pub fn parse(texts: Strings<'_>) -> (Vec<i64>, Vec<i64>, bool) {
    let (mut units, mut scales) = (vec![0; texts.len()], vec![0; texts.len()]);
    for ((unit, scale), text) in units.iter_mut().zip(&mut scales).zip(texts.iter()) {
        let Some(found) = number_of(text) else { return (units, scales, false) };
        (*unit, *scale) = found;
    }
    (units, scales, true)
}

/// Numeric text; rows that are not valid are empty.
pub fn format(numbers: Numbers<'_>, valid: &[bool]) -> (Vec<i64>, Vec<u8>) {
    let n = numbers.units.len();
    print_rows(n, valid, 24 * n, |out, i| {
        let (value, scale) = (numbers.units[i], numbers.scales.get(i));
        if value == NAN {
            return out.extend_from_slice(b"NaN");
        }
        match usize::try_from(scale) {
            Ok(scale) if scale > DIGITS => {
                // No int64 has more than nineteen digits.
                let unit = TENS.get(scale).map_or(u64::MAX, |unit| *unit as u64);
                out.extend_from_slice(if value < 0 { b"-" } else { b"" });
                put_digits(out, value.unsigned_abs() / unit, 1);
                out.push(b'.');
                put_digits(out, value.unsigned_abs() % unit, scale);
            }
            found => put_fixed(out, value, found.unwrap_or(0)),
        }
    })
}

/// Units brought to one scale exactly, and whether all fit (NULLs do not matter).
pub fn rescale(numbers: Numbers<'_>, scale: i64, valid: &[bool]) -> (Vec<i64>, bool) {
    let mut out = vec![0; numbers.units.len()];
    for (((value, own), valid), to) in numbers.rows().zip(valid).zip(&mut out) {
        let by = scale - own;
        *to = match value {
            _ if !valid => 0,
            NAN => NAN,
            0 if by >= 0 => 0,
            _ if by >= 0 => match times_ten_to(value, by) {
                Some(found) => found,
                None => return (out, false),
            },
            _ => match TENS.get(by.unsigned_abs() as usize) {
                Some(unit) if value % unit == 0 => value / unit,
                _ => return (out, false),
            },
        };
    }
    (out, true)
}

/// The units of one result at a scale; None if they do not fit.
#[inline]
fn combine_two(operation: Operation, x: (i64, i64), y: (i64, i64), scale: i64) -> Option<i64> {
    if x.0 == NAN || y.0 == NAN {
        return Some(NAN);
    }
    let found = if operation == Operation::Multiply {
        x.0.checked_mul(y.0)
    } else {
        let (a, b) = (times_ten_to(x.0, scale - x.1)?, times_ten_to(y.0, scale - y.1)?);
        if operation == Operation::Add {
            a.checked_add(b)
        } else {
            a.checked_sub(b)
        }
    };
    found.filter(|units| units.unsigned_abs() <= MAX as u64)
}

/// a + b, a - b or a * b with PostgreSQL's scales: (units, scales, fits).
pub fn combine(operation: Operation, a: Numbers<'_>, b: Numbers<'_>) -> (Vec<i64>, Vec<i64>, bool) {
    let n = rows_of(a.units.len(), b.units.len());
    let (x, y) = (Each::new(a.units), Each::new(b.units));
    let is_one = a.scales.len() == 1 && b.scales.len() == 1;
    let mut units = vec![0; n];
    let mut scales = vec![0; if is_one { 1 } else { n }];
    for i in 0..n {
        let (xs, ys) = (a.scales.get(i), b.scales.get(i));
        let scale = if operation == Operation::Multiply { xs + ys } else { xs.max(ys) };
        if scale > DIGITS as i64 {
            return (units, scales, false);
        }
        scales[if is_one { 0 } else { i }] = scale;
        match combine_two(operation, (x.get(i), xs), (y.get(i), ys), scale) {
            Some(found) => units[i] = found,
            None => return (units, scales, false),
        }
    }
    (units, scales, true)
}

#[inline]
fn order(a: i64, b: i64) -> i8 {
    i8::from(a > b) - i8::from(a < b)
}

#[inline]
fn compare_two(x: (i64, i64), y: (i64, i64)) -> i8 {
    if x.0 == NAN || y.0 == NAN {
        return i8::from(x.0 == NAN) - i8::from(y.0 == NAN);
    }
    // A number beyond int64 is larger in magnitude than any other here: its sign decides.
    if x.1 < y.1 {
        return match times_ten_to(x.0, y.1 - x.1) {
            Some(units) => order(units, y.0),
            None if x.0 != 0 => order(x.0, 0),
            None => order(0, y.0),
        };
    }
    match times_ten_to(y.0, x.1 - y.1) {
        Some(units) => order(x.0, units),
        None if y.0 != 0 => order(0, y.0),
        None => order(x.0, 0),
    }
}

/// Signs of a - b; NaN equals NaN and is above all.
pub fn compare(a: Numbers<'_>, b: Numbers<'_>) -> Vec<i8> {
    let (x, y) = (Each::new(a.units), Each::new(b.units));
    let each = (0..rows_of(x.len(), y.len()))
        .map(|i| compare_two((x.get(i), a.scales.get(i)), (y.get(i), b.scales.get(i))));
    each.collect()
}

/// Units at a scale from 0 to 18, rounded half away from zero or cut: (units, fits).
pub fn round_to(
    numbers: Numbers<'_>,
    scale: i64,
    is_half_up: bool,
    valid: &[bool],
) -> (Vec<i64>, bool) {
    let mut out = vec![0; numbers.units.len()];
    for (((value, own), valid), to) in numbers.rows().zip(valid).zip(&mut out) {
        if !valid {
            continue;
        }
        if value == NAN {
            *to = NAN;
            continue;
        }
        let by = own - scale;
        if by <= 0 {
            match times_ten_to(value, -by) {
                Some(found) => *to = found,
                None => return (out, false),
            }
            continue;
        }
        let unit = TENS[by as usize] as u64;
        let size = value.unsigned_abs();
        let mut whole = size / unit;
        if is_half_up && size % unit >= unit - unit / 2 {
            whole += 1;
        }
        *to = if value < 0 { -(whole as i64) } else { whole as i64 };
    }
    (out, true)
}

/// Units at scale 0, rounded down or up.
pub fn floor_or_ceil(numbers: Numbers<'_>, is_up: bool) -> Vec<i64> {
    let each = numbers.rows().map(|(value, scale)| {
        if value == NAN {
            return NAN;
        }
        let unit = TENS[scale as usize];
        let low = value.div_euclid(unit);
        low + i64::from(is_up && low * unit != value)
    });
    each.collect()
}

/// The same values without zeros at the end of the fraction: (units, scales).
pub fn strip(numbers: Numbers<'_>) -> (Vec<i64>, Vec<i64>) {
    let mut out = numbers.units.to_vec();
    let mut scales = vec![0; out.len()];
    for (i, (value, shown)) in out.iter_mut().zip(&mut scales).enumerate() {
        if *value == NAN {
            continue;
        }
        let mut scale = numbers.scales.get(i);
        while scale > 0 && *value % 10 == 0 {
            *value /= 10;
            scale -= 1;
        }
        *shown = scale;
    }
    (out, scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<'a>(units: &'a [i64], scales: &'a [i64]) -> Numbers<'a> {
        Numbers { units, scales: Each::new(scales) }
    }

    #[test]
    fn a_product_beyond_int64_does_not_fit() {
        let (a, b) = ([MAX, 3, -MAX], [1, -MAX, 2]);
        let found = |k: usize| {
            combine(Operation::Multiply, numbers(&a[k..=k], &[0]), numbers(&b[k..=k], &[0]))
        };
        assert_eq!(found(0), (vec![MAX], vec![0], true));
        assert!(!found(1).2 && !found(2).2);
    }

    #[test]
    fn nan_is_no_result_of_a_sum() {
        let found = combine(Operation::Add, numbers(&[MAX], &[0]), numbers(&[1], &[0]));
        assert!(!found.2);
        let found = combine(Operation::Subtract, numbers(&[-MAX], &[0]), numbers(&[2], &[0]));
        assert!(!found.2);
    }

    #[test]
    fn numbers_beyond_int64_are_compared_by_sign() {
        assert_eq!(compare_two((1, 0), (-5, 30)), 1);
        assert_eq!(compare_two((0, 0), (-5, 30)), 1);
        assert_eq!(compare_two((7, 30), (-1, 0)), 1);
        assert_eq!(compare_two((15, 1), (150, 2)), 0);
        assert_eq!(compare_two((NAN, 0), (NAN, 2)), 0);
    }

    #[test]
    fn rounding_is_half_away_from_zero() {
        let found = round_to(numbers(&[-25, 25, 24], &[1]), 0, true, &[true; 3]);
        assert_eq!(found, (vec![-3, 3, 2], true));
        assert_eq!(floor_or_ceil(numbers(&[-25, 25], &[1]), true), [-2, 3]);
    }
}
