//! UTF-8 strings: comparing, cutting, joining, matching.
//!
//! A character starts at every byte that is not a continuation byte (10xxxxxx). Of two columns,
//! either may be one row that stands for all.

use super::operands::{mask_of, rows_of, Each};
use crate::strings::{put, Strings};
use std::cmp::Ordering;

/// The code of % in a pattern.
pub const ANY_RUN: i64 = -1;
/// The code of _ in a pattern.
pub const ANY_ONE: i64 = -2;
type Column = (Vec<i64>, Vec<u8>);

#[inline]
fn is_start(byte: u8) -> bool {
    byte & 0xC0 != 0x80
}

#[inline]
fn count_starts(text: &[u8]) -> usize {
    text.iter().map(|byte| usize::from(is_start(*byte))).sum()
}

/// Where a character begins, counted from 0, or the end.
#[inline]
fn start_of(text: &[u8], character: usize) -> usize {
    if character >= text.len() {
        return text.len();
    }
    let starts = text.iter().enumerate().filter(|(_, byte)| is_start(**byte));
    starts.map(|(at, _)| at).nth(character).unwrap_or(text.len())
}

#[inline]
fn without_blanks(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    &text[..end]
}

/// Both strings of each row.
#[inline]
fn pairs<'a>(
    a: Strings<'a>,
    b: Strings<'a>,
) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> {
    let (x, y) = (mask_of(a.len()), mask_of(b.len()));
    (0..rows_of(a.len(), b.len())).map(move |i| (a.get(i & x), b.get(i & y)))
}

/// Gather parts of strings.
fn gather<'a>(parts: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Column {
    let mut offsets = Vec::with_capacity(parts.len() + 1);
    let mut total = 0;
    offsets.push(0);
    offsets.extend(parts.clone().map(|part| {
        total += part.len() as i64;
        total
    }));
    let mut out = vec![0; total as usize];
    parts.fold(&mut out[..], |rest, part| put(rest, part));
    (offsets, out)
}

/// Signs of the byte order of a against b.
pub fn compare(a: Strings<'_>, b: Strings<'_>, is_blank_padded: bool) -> Vec<i8> {
    let sign = |order: Ordering| order as i8;
    let rows = pairs(a, b);
    if is_blank_padded {
        return rows.map(|(a, b)| sign(without_blanks(a).cmp(without_blanks(b)))).collect();
    }
    rows.map(|(a, b)| sign(a.cmp(b))).collect()
}

/// Whether a and b are different strings.
pub fn differ(a: Strings<'_>, b: Strings<'_>, is_blank_padded: bool) -> Vec<bool> {
    let rows = pairs(a, b);
    if is_blank_padded {
        return rows.map(|(a, b)| without_blanks(a) != without_blanks(b)).collect();
    }
    rows.map(|(a, b)| a != b).collect()
}

/// The strings, with those that are not valid empty.
pub fn blank(texts: Strings<'_>, valid: &[bool]) -> Column {
    let part = |(i, valid): (usize, &bool)| if *valid { texts.get(i) } else { &[][..] };
    gather(valid.iter().enumerate().map(part))
}

/// Whether each string has a character beyond ASCII.
pub fn not_ascii(texts: Strings<'_>) -> Vec<bool> {
    (0..texts.len()).map(|i| !texts.get(i).is_ascii()).collect()
}

/// Characters of each string.
pub fn lengths(texts: Strings<'_>, is_blank_padded: bool) -> Vec<i64> {
    let each = (0..texts.len()).map(|i| {
        let text = texts.get(i);
        count_starts(if is_blank_padded { without_blanks(text) } else { text }) as i64
    });
    each.collect()
}

/// Characters from first to stop, counted from 0.
#[inline]
fn cut_one(text: &[u8], first: i64, stop: i64) -> &[u8] {
    let begin = if first <= 0 { 0 } else { start_of(text, first as usize) };
    let rest = &text[begin..];
    let first = first.max(0);
    if stop <= first {
        return &rest[..0];
    }
    &rest[..start_of(rest, (stop - first) as usize)]
}

/// Characters from first to stop of each string, from 0; first and stop have one or n rows.
pub fn cut(texts: Strings<'_>, first: Each<'_, i64>, stop: Each<'_, i64>) -> Column {
    let mask = mask_of(texts.len());
    let rows = rows_of(texts.len(), rows_of(first.len(), stop.len()));
    let parts: Vec<&[u8]> =
        (0..rows).map(|i| cut_one(texts.get(i & mask), first.get(i), stop.get(i))).collect();
    gather(parts.iter().copied())
}

/// Strings without the leading or trailing bytes that are unwanted, of all 256.
pub fn trim(texts: Strings<'_>, unwanted: &[bool], at_left: bool, at_right: bool) -> Column {
    let is_wanted = |byte: &u8| !unwanted[usize::from(*byte)];
    let part = |i: usize| {
        let mut text = texts.get(i);
        if at_left {
            text = &text[text.iter().position(is_wanted).unwrap_or(text.len())..];
        }
        if at_right {
            text = &text[..text.iter().rposition(is_wanted).map_or(0, |last| last + 1)];
        }
        text
    };
    let parts: Vec<&[u8]> = (0..texts.len()).map(part).collect();
    gather(parts.iter().copied())
}

/// a || b, row by row.
pub fn join(a: Strings<'_>, b: Strings<'_>) -> Column {
    let rows = pairs(a, b);
    let mut offsets = Vec::with_capacity(rows.len() + 1);
    let mut total = 0;
    offsets.push(0);
    offsets.extend(rows.map(|(a, b)| {
        total += (a.len() + b.len()) as i64;
        total
    }));
    let mut out = vec![0; total as usize];
    pairs(a, b).fold(&mut out[..], |rest, (a, b)| put(put(rest, a), b));
    (offsets, out)
}

/// The position of a character, from 1, where one string begins in another; 0 if it is not there.
#[inline]
fn find_one(text: &[u8], sought: &[u8]) -> i64 {
    let Some(first) = sought.first() else { return 1 };
    let is_here = |part: &[u8]| part[0] == *first && part == sought;
    match text.windows(sought.len()).position(is_here) {
        Some(at) => 1 + count_starts(&text[1..=at]) as i64,
        None => 0,
    }
}

/// The character position (from 1) of b in a, 0 where it is not there.
pub fn find(a: Strings<'_>, b: Strings<'_>) -> Vec<i64> {
    pairs(a, b).map(|(text, sought)| find_one(text, sought)).collect()
}

/// A string without its first character.
#[inline]
fn after_character(text: &[u8]) -> &[u8] {
    let rest = &text[1..];
    let end = rest.iter().position(|byte| is_start(*byte)).unwrap_or(rest.len());
    &rest[end..]
}

#[inline]
fn is_like(text: &[u8], codes: &[i64]) -> bool {
    let (mut text, mut codes) = (text, codes);
    // The last % so far: what follows it in the pattern, and where to try that.
    let mut retry = None;
    loop {
        match (codes.first(), text.first()) {
            (Some(&ANY_RUN), _) => {
                codes = &codes[1..];
                if codes.is_empty() {
                    return true;
                }
                retry = Some((codes, text));
            }
            (Some(&ANY_ONE), Some(_)) => (codes, text) = (&codes[1..], after_character(text)),
            (Some(code), Some(byte)) if *code == i64::from(*byte) => {
                (codes, text) = (&codes[1..], &text[1..]);
            }
            (None, None) => return true,
            _ => match retry {
                Some((after, from)) if !from.is_empty() => {
                    let from = after_character(from);
                    retry = Some((after, from));
                    (codes, text) = (after, from);
                }
                _ => return false,
            },
        }
    }
}

/// LIKE. codes: a byte to match, `ANY_RUN` for %, `ANY_ONE` for _.
pub fn match_like(texts: Strings<'_>, codes: &[i64]) -> Vec<bool> {
    (0..texts.len()).map(|i| is_like(texts.get(i), codes)).collect()
}

/// char(size): strings cut or padded with blanks to `size` characters, and which were too long:
/// of those, more than blanks were cut.
pub fn pad_blank(texts: Strings<'_>, size: usize) -> (Vec<i64>, Vec<u8>, Vec<bool>) {
    let mut offsets = Vec::with_capacity(texts.len() + 1);
    let mut data = Vec::with_capacity(size * texts.len());
    let mut too_long = Vec::with_capacity(texts.len());
    offsets.push(0);
    for i in 0..texts.len() {
        let text = texts.get(i);
        let count = count_starts(text);
        let (shown, rest) =
            text.split_at(if count > size { start_of(text, size) } else { text.len() });
        too_long.push(rest.iter().any(|byte| *byte != b' '));
        data.extend_from_slice(shown);
        data.resize(data.len() + size.saturating_sub(count), b' ');
        offsets.push(data.len() as i64);
    }
    data.shrink_to_fit();
    (offsets, data, too_long)
}

/// The strings with the bytes from first to last moved by `by`.
pub fn change_case(offsets: &[i64], data: &[u8], first: u8, last: u8, by: i64) -> Column {
    let (start, end) = match offsets {
        [start, .., end] => (*start, *end),
        _ => (0, 0),
    };
    let moved = |byte: &u8| {
        let is_moved = (first..=last).contains(byte);
        byte.wrapping_add(if is_moved { by as u8 } else { 0 })
    };
    let out = data[start as usize..end as usize].iter().map(moved).collect();
    (offsets.iter().map(|offset| offset - offsets[0]).collect(), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(pattern: &str) -> Vec<i64> {
        let code = |byte: u8| match byte {
            b'%' => ANY_RUN,
            b'_' => ANY_ONE,
            _ => i64::from(byte),
        };
        pattern.bytes().map(code).collect()
    }

    #[test]
    fn patterns_match_characters() {
        for (text, pattern, expected) in [
            ("", "", true),
            ("", "%", true),
            ("", "_", false),
            ("abc", "a%c", true),
            ("abcbc", "%bc", true),
            ("aab", "a%_b", true),
            ("ab", "a%_b", false),
            ("ä", "_", true),
            ("ä€", "%€", true),
            ("ab", "a", false),
        ] {
            assert_eq!(is_like(text.as_bytes(), &codes(pattern)), expected, "{text} {pattern}");
        }
    }

    #[test]
    fn strings_are_cut_between_characters() {
        let text = "aä€z".as_bytes();
        assert_eq!(cut_one(text, 1, 3), "ä€".as_bytes());
        assert_eq!(cut_one(text, -5, 1), b"a");
        assert_eq!(cut_one(text, 2, 1 << 40), "€z".as_bytes());
        assert_eq!(cut_one(text, 9, 12), b"");
        assert_eq!(cut_one(text, 3, 2), b"");
    }

    #[test]
    fn positions_count_characters() {
        assert_eq!(find_one("aä€z".as_bytes(), "€".as_bytes()), 3);
        assert_eq!(find_one(b"abc", b""), 1);
        assert_eq!(find_one(b"ab", b"abc"), 0);
    }
}
