//! Between text and dates, times and timestamps in PostgreSQL's ISO style.
//!
//! Days and microseconds count from 2000-01-01 in the proleptic Gregorian calendar (as PostgreSQL's
//! j2date and date2j do); year 1 BC is year 0. Sessions run in UTC, yet a parser takes any offset
//! that a timestamptz text names.

use super::digits::{digit, put_digits, put_pair};
use crate::calendar::{date_of, days_of, month_length};
use crate::strings::{print, Strings};

/// Microseconds of a day.
pub const DAY_US: i64 = 86_400_000_000;
const DATE_MAX: i64 = i32::MAX as i64;
const DATE_MIN: i64 = i32::MIN as i64;

/// At most seven digits: their value, how many there are, and what follows.
#[inline]
fn number(text: &[u8]) -> (i64, usize, &[u8]) {
    let (mut value, mut count) = (0, 0);
    for byte in text.iter().take(7) {
        let Some(digit) = digit(*byte) else { break };
        value = 10 * value + digit;
        count += 1;
    }
    (value, count, &text[count..])
}

/// Two digits, and what follows.
#[inline]
fn pair(text: &[u8]) -> Option<(i64, &[u8])> {
    let (value, count, rest) = number(text);
    (count == 2).then_some((value, rest))
}

#[inline]
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    text.strip_prefix(&[byte])
}

/// The value of infinity or -infinity.
#[inline]
fn infinity(text: &[u8], least: i64, most: i64) -> Option<i64> {
    match text {
        b"infinity" => Some(most),
        b"-infinity" => Some(least),
        _ => None,
    }
}

/// A text without " BC", and whether it had it.
#[inline]
fn without_era(text: &[u8]) -> (&[u8], bool) {
    match text {
        [rest @ .., b' ', b'B', b'C'] if !rest.is_empty() => (rest, true),
        _ => (text, false),
    }
}

/// The days of a date, and what follows it.
#[inline]
fn date(text: &[u8], is_bc: bool) -> Option<(i64, &[u8])> {
    let (year, digits, rest) = number(text);
    if digits < 4 || year == 0 {
        return None;
    }
    let (month, rest) = pair(after(rest, b'-')?)?;
    if !(1..=12).contains(&month) {
        return None;
    }
    let (day, rest) = pair(after(rest, b'-')?)?;
    let year = if is_bc { 1 - year } else { year };
    let fits = (1..=month_length(year, month)).contains(&day);
    fits.then(|| (days_of(year, month, day), rest))
}

/// Microseconds since midnight of a time, and what follows it.
#[inline]
fn clock(text: &[u8]) -> Option<(i64, &[u8])> {
    let (hours, rest) = pair(text)?;
    let (minutes, rest) = pair(after(rest, b':')?)?;
    let (seconds, mut rest) = pair(after(rest, b':')?)?;
    if hours > 24 || minutes > 60 || seconds > 60 {
        return None;
    }
    let mut us = (hours * 3600 + minutes * 60 + seconds) * 1_000_000;
    if let Some(fraction) = after(rest, b'.') {
        let (value, digits, follows) = number(fraction);
        if !(1..=6).contains(&digits) {
            return None;
        }
        us += value * 10i64.pow(6 - digits as u32);
        rest = follows;
    }
    (us <= DAY_US).then_some((us, rest))
}

/// Microseconds east of UTC of +HH[:MM[:SS]].
#[inline]
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, mut rest) = match text {
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let mut seconds = 0;
    for unit in [3600, 60, 1] {
        let (value, follows) = pair(rest)?;
        seconds += value * unit;
        if follows.is_empty() {
            return Some(sign * seconds * 1_000_000);
        }
        rest = after(follows, b':')?;
    }
    None
}

/// Days since 2000-01-01.
pub fn parse_dates(texts: Strings<'_>, valid: &[bool]) -> (Vec<i64>, i64) {
    texts.parse(valid, |text| {
        infinity(text, DATE_MIN, DATE_MAX).or_else(|| {
            let (text, is_bc) = without_era(text);
            let (days, rest) = date(text, is_bc)?;
            rest.is_empty().then_some(days)
        })
    })
}

/// Microseconds since midnight, 24:00:00 included.
pub fn parse_times(texts: Strings<'_>, valid: &[bool]) -> (Vec<i64>, i64) {
    texts.parse(valid, |text| {
        let (us, rest) = clock(text)?;
        rest.is_empty().then_some(us)
    })
}

/// Microseconds since 2000-01-01; with `has_zone` an offset must follow the time.
pub fn parse_stamps(texts: Strings<'_>, valid: &[bool], has_zone: bool) -> (Vec<i64>, i64) {
    texts.parse(valid, |text| {
        infinity(text, i64::MIN, i64::MAX).or_else(|| {
            let (text, is_bc) = without_era(text);
            let (days, rest) = date(text, is_bc)?;
            let (us, rest) = clock(after(rest, b' ')?)?;
            let east = if has_zone { zone(rest)? } else { 0 };
            let is_whole = has_zone || rest.is_empty();
            is_whole.then(|| days.wrapping_mul(DAY_US).wrapping_add(us - east))
        })
    })
}

#[inline]
fn put_infinity(out: &mut Vec<u8>, is_negative: bool) {
    out.extend_from_slice(if is_negative { b"-infinity" } else { b"infinity" });
}

/// Append YYYY-MM-DD without the era; whether it is BC.
#[inline]
fn put_date(out: &mut Vec<u8>, days: i64) -> bool {
    let (year, month, day) = date_of(days);
    let is_bc = year <= 0;
    let shown = if is_bc { 1 - year } else { year };
    put_digits(out, shown as u64, 4);
    out.push(b'-');
    put_pair(out, month as u64);
    out.push(b'-');
    put_pair(out, day as u64);
    is_bc
}

/// Append HH:MM:SS and the fraction without zeros at its end.
#[inline]
fn put_clock(out: &mut Vec<u8>, us: i64) {
    let us = us as u64;
    let (seconds, mut fraction) = (us / 1_000_000, us % 1_000_000);
    put_digits(out, seconds / 3600, 2);
    out.push(b':');
    put_pair(out, seconds / 60 % 60);
    out.push(b':');
    put_pair(out, seconds % 60);
    if fraction != 0 {
        out.push(b'.');
        let mut width = 6;
        while fraction % 10 == 0 {
            fraction /= 10;
            width -= 1;
        }
        put_digits(out, fraction, width);
    }
}

/// Dates from days since 2000-01-01.
pub fn print_dates(values: &[i64], valid: &[bool]) -> (Vec<i64>, Vec<u8>) {
    print(values, valid, 16, |out, value| {
        if value >= DATE_MAX || value <= DATE_MIN {
            return put_infinity(out, value < 0);
        }
        if put_date(out, value) {
            out.extend_from_slice(b" BC");
        }
    })
}

/// Times from microseconds since midnight.
pub fn print_times(values: &[i64], valid: &[bool]) -> (Vec<i64>, Vec<u8>) {
    print(values, valid, 16, put_clock)
}

/// Timestamps from microseconds since 2000-01-01; with `has_zone` in UTC, "+00".
pub fn print_stamps(values: &[i64], valid: &[bool], has_zone: bool) -> (Vec<i64>, Vec<u8>) {
    print(values, valid, 36, |out, value| {
        if value == i64::MAX || value == i64::MIN {
            return put_infinity(out, value < 0);
        }
        let is_bc = put_date(out, value.div_euclid(DAY_US));
        out.push(b' ');
        put_clock(out, value.rem_euclid(DAY_US));
        if has_zone {
            out.extend_from_slice(b"+00");
        }
        if is_bc {
            out.extend_from_slice(b" BC");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_days_are_inverse() {
        assert_eq!(days_of(2000, 1, 1), 0);
        assert_eq!(date_of(-1), (1999, 12, 31));
        // j2date(0), 4714-11-24 BC.
        assert_eq!(days_of(-4713, 11, 24), -2_451_545);
        for days in (-3_000_000..3_000_000).step_by(97) {
            let (year, month, day) = date_of(days);
            assert_eq!(days_of(year, month, day), days);
            assert!((1..=month_length(year, month)).contains(&day));
        }
    }

    #[test]
    fn offsets_may_have_seconds() {
        assert_eq!(zone(b"+05:30"), Some(19_800_000_000));
        assert_eq!(zone(b"-00:00:01"), Some(-1_000_000));
        assert_eq!(zone(b"+05:"), None);
        assert_eq!(zone(b"+01:02:03:04"), None);
    }

    #[test]
    fn midnight_ends_a_day_and_nothing_follows_it() {
        assert_eq!(clock(b"24:00:00").unwrap().0, DAY_US);
        assert_eq!(clock(b"24:00:00.000001"), None);
        assert_eq!(clock(b"01:02:03.1234567"), None);
        assert_eq!(clock(b"00:00:00.5+00").unwrap(), (500_000, &b"+00"[..]));
    }
}
