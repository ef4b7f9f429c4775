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

/// Bytes of any number with a sign and a point, and more.
const ROOM: usize = 24;

/// A text that is written from its end, and as many bytes after it: copies have one size.
struct Room {
    text: [u8; 2 * ROOM],
    at: usize,
}

impl Room {
    #[inline]
    fn new() -> Room {
        Room { text: [b'0'; 2 * ROOM], at: ROOM }
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.at -= 1;
        self.text[self.at] = byte;
    }

    /// Put a number with at least `width` digits, where nothing but zeros is.
    #[inline]
    fn digits(&mut self, value: u64, width: usize) {
        let least = self.at - width;
        let mut rest = value;
        while rest >= 100 {
            self.pair(rest % 100);
            rest /= 100;
        }
        if rest >= 10 {
            self.pair(rest);
        } else if rest > 0 {
            self.push(b'0' + rest as u8);
        }
        self.at = self.at.min(least);
    }

    #[inline]
    fn pair(&mut self, value: u64) {
        self.at -= 2;
        let pair = 2 * value as usize;
        self.text[self.at..self.at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }

    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        let end = out.len() + ROOM - self.at;
        out.extend_from_slice(&self.text[self.at..self.at + ROOM]);
        out.truncate(end);
    }
}

/// Append a number with at least `width` digits, of which there is at least one.
#[inline]
pub(crate) fn put_digits(out: &mut Vec<u8>, value: u64, width: usize) {
    let mut room = Room::new();
    // No number has more than twenty digits.
    if width > 20 {
        out.resize(out.len() + width - 20, b'0');
    }
    room.digits(value, width.min(20));
    room.append_to(out);
}

/// Append value * 10^-scale with exactly `scale` digits after the point, at most 18.
#[inline]
pub(crate) fn put_fixed(out: &mut Vec<u8>, value: i64, scale: usize) {
    let mut room = Room::new();
    let mut size = value.unsigned_abs();
    if scale > 0 {
        let unit = TENS[scale] as u64;
        room.digits(size % unit, scale);
        room.push(b'.');
        size /= unit;
    }
    room.digits(size, 1);
    if value < 0 {
        room.push(b'-');
    }
    room.append_to(out);
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

    #[test]
    fn fixed_point_has_all_its_places() {
        for (value, scale, text) in [
            (-5, 2, "-0.05"),
            (1250, 2, "12.50"),
            (i64::MIN, 0, "-9223372036854775808"),
            (i64::MIN, 18, "-9.223372036854775808"),
            (0, 18, "0.000000000000000000"),
        ] {
            let mut out = Vec::new();
            put_fixed(&mut out, value, scale);
            assert_eq!(out, text.as_bytes());
        }
    }
}
