//! Decimal digits.

/// Powers of ten that an i64 holds.
pub const TENS: [i64; 19] = tens();
const PAIRS: [u8; 200] = pairs();

const fn tens() -> [i64; 19] {
    let mut out = [1; 19];
    let mut k = 1;
    while k < out.len() {
        out[k] = 10 * out[k - 1];
        k += 1;
    }
    out
}

const fn pairs() -> [u8; 200] {
    let mut out = [0; 200];
    let mut k = 0;
    while k < 100 {
        out[2 * k] = b'0' + (k / 10) as u8;
        out[2 * k + 1] = b'0' + (k % 10) as u8;
        k += 1;
    }
    out
}

/// Append a number with at least `width` digits.
#[inline]
pub(crate) fn put_digits(out: &mut Vec<u8>, value: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    let mut rest = value;
    while rest >= 100 {
        at -= 2;
        let pair = 2 * (rest % 100) as usize;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
        rest /= 100;
    }
    if rest >= 10 {
        at -= 2;
        let pair = 2 * rest as usize;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else if rest > 0 || value == 0 {
        at -= 1;
        digits[at] = b'0' + rest as u8;
    }
    (digits.len() - at..width).for_each(|_| out.push(b'0'));
    out.extend_from_slice(&digits[at..]);
}

/// Append a number below 100 with two digits.
#[inline]
pub(crate) fn put_pair(out: &mut Vec<u8>, value: u64) {
    let pair = 2 * value as usize;
    out.extend_from_slice(&PAIRS[pair..pair + 2]);
}

/// The value of a digit.
#[inline]
pub(crate) fn digit(byte: u8) -> Option<i64> {
    byte.is_ascii_digit().then(|| i64::from(byte - b'0'))
}

/// Whether a text begins with a minus, and what follows.
#[inline]
pub(crate) fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_least_the_asked_digits() {
        for (value, width, text) in [
            (0, 1, "0"),
            (0, 4, "0000"),
            (7, 2, "07"),
            (100, 1, "100"),
            (99, 6, "000099"),
            (5, 25, "0000000000000000000000005"),
            (u64::MAX, 1, "18446744073709551615"),
        ] {
            let mut out = vec![b'x'];
            put_digits(&mut out, value, width);
            assert_eq!(out[1..], *text.as_bytes());
        }
    }
}
