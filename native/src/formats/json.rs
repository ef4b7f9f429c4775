//! Reading of JSON records: positions of the declared values in the bytes.
//!
//! `scan` walks each record once and checks all of it (RFC 8259). Anything that is not plain (a key
//! with an escape, a value nested more than MAX_DEPTH deep, malformed text) is marked and left to
//! the caller, which alone rejects a record. Bytes must be valid UTF-8. Declared paths are a tree:
//! node 0 is the record; each node has its key's bytes and its parent.

/// A value that is not there.
pub const ABSENT: u8 = 0;
/// null.
pub const NULL: u8 = 1;
/// A string without escapes.
pub const STRING: u8 = 2;
/// A string with escapes.
pub const ESCAPED: u8 = 3;
/// A number.
pub const NUMBER: u8 = 4;
/// false.
pub const FALSE: u8 = 5;
/// true.
pub const TRUE: u8 = 6;
/// An object.
pub const OBJECT: u8 = 7;
/// An array.
pub const ARRAY: u8 = 8;
/// How deep values may be within each other.
pub const MAX_DEPTH: usize = 60;

/// Which bytes a string may hold unescaped: all but ", \ and control characters.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut byte = 0;
    while byte < 256 {
        plain[byte] = byte >= 32 && byte != b'"' as usize && byte != b'\\' as usize;
        byte += 1;
    }
    plain
};

#[inline]
fn skip_blanks(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// (position after the closing quote, whether there are escapes); `at` is inside.
#[inline]
fn string_end(text: &[u8], mut at: usize) -> Option<(usize, bool)> {
    let mut has_escape = false;
    loop {
        at += text.get(at..)?.iter().position(|&byte| !PLAIN[usize::from(byte)])?;
        match text[at] {
            b'"' => return Some((at + 1, has_escape)),
            b'\\' => {}
            _ => return None,
        }
        has_escape = true;
        at += match text.get(at + 1)? {
            b'u' if text.get(at + 2..at + 6)?.iter().all(u8::is_ascii_hexdigit) => 6,
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
            _ => return None,
        }
    }
}

/// The position after at least one digit.
#[inline]
fn digits_end(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let size = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    (size > 0).then_some(at + size)
}

/// The position after the number.
#[inline]
fn number_end(text: &[u8], at: usize) -> Option<usize> {
    let start = at + usize::from(text.get(at) == Some(&b'-'));
    let mut at = digits_end(text, start)?;
    if text[start] == b'0' && at - start > 1 {
        return None;
    }
    if text.get(at) == Some(&b'.') {
        at = digits_end(text, at + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        at += usize::from(matches!(text.get(at), Some(b'+' | b'-')));
        at = digits_end(text, at)?;
    }
    Some(at)
}

fn word_end(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    text[at..].starts_with(word).then_some(at + word.len())
}

/// (kind, position after it) of a scalar.
#[inline]
fn scalar(text: &[u8], at: usize) -> Option<(u8, usize)> {
    match text[at] {
        b'"' => {
            let (stop, has_escape) = string_end(text, at + 1)?;
            Some((if has_escape { ESCAPED } else { STRING }, stop))
        }
        b't' => Some((TRUE, word_end(text, at, b"true")?)),
        b'f' => Some((FALSE, word_end(text, at, b"false")?)),
        b'n' => Some((NULL, word_end(text, at, b"null")?)),
        b'-' | b'0'..=b'9' => Some((NUMBER, number_end(text, at)?)),
        _ => None,
    }
}

/// The declared paths.
#[derive(Clone, Copy)]
pub struct Paths<'a> {
    /// Each node's parent, -1 for node 0.
    pub parents: &'a [i64],
    /// Where each node's key starts, and where the last one ends.
    pub key_ends: &'a [i64],
    /// The keys.
    pub keys: &'a [u8],
}

impl Paths<'_> {
    /// The node below `parent` with this key; `guess` is tried first.
    #[inline]
    fn child(&self, key: &[u8], parent: usize, guess: usize) -> Option<usize> {
        let count = self.parents.len();
        let is_child = |&node: &usize| {
            self.parents[node] == parent as i64 && {
                let (start, stop) =
                    (self.key_ends[node] as usize, self.key_ends[node + 1] as usize);
                &self.keys[start..stop] == key
            }
        };
        let guess = guess.min(count);
        (guess..count).chain(0..guess).find(is_child)
    }
}

/// The positions of the declared values, by node, then record.
#[derive(Debug, PartialEq, Eq)]
pub struct Values {
    /// Where each value starts; a string after its quote.
    pub starts: Vec<i64>,
    /// Where it ends; a string before its quote.
    pub ends: Vec<i64>,
    /// What it is. A node below one that is no object is ABSENT.
    pub kinds: Vec<u8>,
    /// By record, whether it is left to the caller.
    pub marks: Vec<bool>,
}

/// An open object or array: its node, if declared, and which of the two it is.
#[derive(Clone, Copy, Default)]
struct Open {
    node: Option<usize>,
    is_object: bool,
}

/// By depth, the open objects and arrays; none at 0.
type Nesting = [Open; MAX_DEPTH + 1];

/// The values of one record: item `node * records + row` of the whole.
struct Record<'a> {
    paths: Paths<'a>,
    values: &'a mut Values,
    records: usize,
    row: usize,
}

impl Record<'_> {
    #[inline]
    fn item(&self, node: usize) -> usize {
        node * self.records + self.row
    }

    /// Store a value; a later value of the same key overwrites it, as in jsonb.
    #[inline]
    fn put(&mut self, node: usize, kind: u8, start: usize, stop: usize) {
        let item = self.item(node);
        let quote = usize::from(kind == STRING || kind == ESCAPED);
        self.values.kinds[item] = kind;
        self.values.starts[item] = (start + quote) as i64;
        self.values.ends[item] = (stop - quote) as i64;
    }

    /// Clear the values below a node whose key is repeated.
    fn forget(&mut self, node: usize) {
        for other in node + 1..self.paths.parents.len() {
            let parent = self.paths.parents[other];
            let is_below = |parent: i64| {
                parent == node as i64
                    || (parent > node as i64
                        && self.values.kinds[self.item(parent as usize)] == ABSENT)
            };
            if is_below(parent) {
                let item = self.item(other);
                self.values.kinds[item] = ABSENT;
            }
        }
    }

    /// (node of the key at `at`, position after its colon).
    #[inline]
    fn key(
        &self,
        text: &[u8],
        at: usize,
        parent: Option<usize>,
        guess: usize,
    ) -> Option<(Option<usize>, usize)> {
        if text[at] != b'"' {
            return None;
        }
        let (stop, has_escape) = string_end(text, at + 1)?;
        if has_escape {
            return None;
        }
        let key = &text[at + 1..stop - 1];
        let node = parent.and_then(|parent| self.paths.child(key, parent, guess));
        let at = skip_blanks(text, stop);
        (text.get(at) == Some(&b':')).then_some((node, at + 1))
    }

    /// (position, depth) after a value; at a depth above 0 a comma precedes it.
    #[inline]
    fn close(
        &mut self,
        text: &[u8],
        mut at: usize,
        mut depth: usize,
        open: &Nesting,
    ) -> Option<(usize, usize)> {
        while depth > 0 {
            at = skip_blanks(text, at);
            let byte = *text.get(at)?;
            at += 1;
            if byte == b',' {
                return Some((at, depth));
            }
            let closed = open[depth];
            if byte != if closed.is_object { b'}' } else { b']' } {
                return None;
            }
            if let Some(node) = closed.node {
                let item = self.item(node);
                self.values.ends[item] = at as i64;
            }
            depth -= 1;
        }
        Some((at, depth))
    }

    /// Set the positions of the declared values; None if the record, which is text[at..], is not
    /// plain JSON.
    fn scan(&mut self, text: &[u8], mut at: usize, open: &mut Nesting) -> Option<()> {
        let (mut depth, mut node, mut guess, mut expects_key) = (0, Some(0), 1, false);
        loop {
            at = skip_blanks(text, at);
            text.get(at)?;
            if expects_key {
                (node, at) = self.key(text, at, open[depth].node, guess)?;
                guess = node.map_or(guess, |node| node + 1);
                at = skip_blanks(text, at);
            }
            let byte = *text.get(at)?;
            if let Some(node) = node {
                if self.values.kinds[self.item(node)] != ABSENT {
                    self.forget(node);
                }
            }
            let is_object = byte == b'{';
            if is_object || byte == b'[' {
                depth += 1;
                if depth > MAX_DEPTH {
                    return None;
                }
                open[depth] = Open { node, is_object };
                if let Some(node) = node {
                    let item = self.item(node);
                    self.values.kinds[item] = if is_object { OBJECT } else { ARRAY };
                    self.values.starts[item] = at as i64;
                }
                at = skip_blanks(text, at + 1);
                if *text.get(at)? != if is_object { b'}' } else { b']' } {
                    (expects_key, node) = (is_object, None);
                    continue;
                }
            } else {
                let (kind, stop) = scalar(text, at)?;
                if let Some(node) = node {
                    self.put(node, kind, at, stop);
                }
                at = stop;
            }
            (at, depth) = self.close(text, at, depth, open)?;
            if depth == 0 {
                return (skip_blanks(text, at) == text.len()).then_some(());
            }
            (expects_key, node) = (open[depth].is_object, None);
        }
    }
}

/// Find the declared values of records. The bytes of record i end before offsets[i + 1] - 1, which
/// is a separator.
pub fn scan(offsets: &[i64], data: &[u8], paths: Paths<'_>) -> Values {
    let (records, nodes) = (offsets.len() - 1, paths.parents.len());
    let mut values = Values {
        starts: vec![0; nodes * records],
        ends: vec![0; nodes * records],
        kinds: vec![ABSENT; nodes * records],
        marks: vec![false; records],
    };
    let mut open = [Open::default(); MAX_DEPTH + 1];
    for row in 0..records {
        let text = &data[..offsets[row + 1] as usize - 1];
        let mut record = Record { paths, values: &mut values, records, row };
        if record.scan(text, offsets[row] as usize, &mut open).is_none() {
            values.marks[row] = true;
            values.kinds.iter_mut().skip(row).step_by(records).for_each(|kind| *kind = ABSENT);
        }
    }
    values
}

/// (offsets, bytes) of the values whose kind is selected; others are empty.
pub fn gather(
    data: &[u8],
    starts: &[i64],
    ends: &[i64],
    kinds: &[u8],
    selected: &[bool],
) -> (Vec<i64>, Vec<u8>) {
    let mut offsets = Vec::with_capacity(kinds.len() + 1);
    offsets.push(0);
    let mut total = 0;
    let each = || starts.iter().zip(ends).zip(kinds);
    offsets.extend(each().map(|((start, end), &kind)| {
        total += if selected[usize::from(kind)] { end - start } else { 0 };
        total
    }));
    let mut out = vec![0; total as usize];
    let mut rest = &mut out[..];
    for ((&start, &end), &kind) in each() {
        if selected[usize::from(kind)] {
            rest = crate::strings::put(rest, &data[start as usize..end as usize]);
        }
    }
    (offsets, out)
}

/// (offsets, bytes, marks) of contents of JSON strings without their escapes.
///
/// A marked one has half of a surrogate pair, or an escape that JSON has not, so it is not text.
pub fn unescape(
    offsets: &[i64],
    data: &[u8],
    is_escaped: &[bool],
) -> (Vec<i64>, Vec<u8>, Vec<bool>) {
    // What an escape stands for is never longer than the escape.
    let mut out = vec![0; data.len()];
    let mut ends = Vec::with_capacity(offsets.len());
    let mut marks = Vec::with_capacity(is_escaped.len());
    ends.push(0);
    let mut at = 0;
    for (i, &is_escaped) in is_escaped.iter().enumerate() {
        let text = crate::strings::string(offsets, data, i);
        let to = &mut out[at..];
        let (size, is_text) = if is_escaped {
            put_unescaped(to, text)
        } else {
            crate::strings::put(to, text);
            (text.len(), true)
        };
        at += size;
        ends.push(at as i64);
        marks.push(!is_text);
    }
    out.truncate(at);
    (ends, out, marks)
}

/// Write a text without its escapes; return its size, and whether all of them stand for characters.
fn put_unescaped(out: &mut [u8], mut text: &[u8]) -> (usize, bool) {
    let (mut at, mut is_text) = (0, true);
    while let [byte, rest @ ..] = text {
        text = rest;
        let mut byte = *byte;
        if byte == b'\\' {
            // A last backslash escapes nothing.
            let [letter, rest @ ..] = text else { return (at, false) };
            text = rest;
            byte = match letter {
                b'u' => {
                    match character(&mut text) {
                        Some(found) => at += found.encode_utf8(&mut out[at..]).len(),
                        None => is_text = false,
                    }
                    continue;
                }
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                &other => other,
            };
        }
        out[at] = byte;
        at += 1;
    }
    (at, is_text)
}

/// The UTF-16 unit of four hexadecimal digits.
fn unit(text: &[u8]) -> Option<u32> {
    let digits = text.first_chunk::<4>()?;
    let mut unit = 0;
    for &digit in digits {
        unit = 16 * unit + char::from(digit).to_digit(16)?;
    }
    Some(unit)
}

/// The character of the units after "\u", which are taken off the text: one, or a surrogate pair.
fn character(text: &mut &[u8]) -> Option<char> {
    let high = unit(text);
    *text = text.get(4..).unwrap_or_default();
    let high = high?;
    if !(0xD800..0xE000).contains(&high) {
        return char::from_u32(high);
    }
    let low = text.strip_prefix(b"\\u").and_then(unit)?;
    if high >= 0xDC00 || !(0xDC00..0xE000).contains(&low) {
        return None;
    }
    *text = &text[6..];
    char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
}

/// How many commas and opening brackets are outside of the strings of a JSON text.
pub fn count_openings(text: &[u8]) -> usize {
    let mut found = 0;
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b',' | b'[' | b'{' => found += 1,
            b'"' => loop {
                match bytes.next() {
                    Some(b'\\') => {
                        bytes.next();
                    }
                    Some(b'"') | None => break,
                    _ => {}
                }
            },
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    /// $, $.id, $.a, $.a.b
    const PATHS: Paths<'_> =
        Paths { parents: &[-1, 0, 0, 2], key_ends: &[0, 0, 2, 3, 4], keys: b"idab" };
    const SELECTED: [bool; 9] = [false, true, true, true, true, true, true, true, true];
    const RECORD: &[u8] = br#" {"id": -1.5e+3, "a":{"c":[{}],"b":"x\u00e9"},"z":null} "#;

    fn values(record: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
        let data = [record, b"\n"].concat();
        let found = scan(&[0, data.len() as i64], &data, PATHS);
        let text = |node: usize| {
            let one = node..node + 1;
            let (starts, ends) = (&found.starts[one.clone()], &found.ends[one.clone()]);
            let kinds = &found.kinds[one];
            let (offsets, text) = gather(&data, starts, ends, kinds, &SELECTED);
            unescape(&offsets, &text, &[kinds[0] == ESCAPED]).1
        };
        ((0..4).map(text).collect(), found.kinds, found.marks[0])
    }

    #[test]
    fn values_of_declared_paths_are_found() {
        let (texts, kinds, is_marked) = values(RECORD);
        assert_eq!(kinds, [OBJECT, NUMBER, OBJECT, ESCAPED]);
        assert_eq!(texts[1], b"-1.5e+3");
        assert_eq!(texts[2], br#"{"c":[{}],"b":"x\u00e9"}"#);
        assert_eq!(texts[3], "xé".as_bytes());
        assert!(!is_marked);
    }

    #[test]
    fn the_last_value_of_a_repeated_key_counts() {
        assert_eq!(values(br#"{"a":{"b":1},"a":2}"#).1, [OBJECT, ABSENT, NUMBER, ABSENT]);
        assert_eq!(values(br#"{"a":{"b":1},"a":{"b":[]}}"#).1[3], ARRAY);
    }

    #[test]
    fn what_is_not_plain_is_marked() {
        let deep = [b"[".repeat(61), b"]".repeat(61)].concat();
        let allowed = [b"[".repeat(60), b"]".repeat(60)].concat();
        assert!(values(&deep).2 && !values(&allowed).2);
        for text in ["", "{", "01", "1.", "tru", "[1,]", "{\"a\"}", "1 2", "\"\\x\"", "\"\x01\""] {
            assert!(values(text.as_bytes()).2, "{text}");
        }
    }

    #[test]
    fn surrogates_come_in_pairs() {
        let read = |text: &[u8]| unescape(&[0, text.len() as i64], text, &[true]);
        assert_eq!(read(br"\ud83d\ude00\b").1, "😀\u{8}".as_bytes());
        for half in [&br"\ud83d"[..], br"\ude00", br"\ud83d\u0041", br"\", br"\u12", br"\u+123"] {
            assert_eq!(read(half).2, [true], "{half:?}");
        }
    }

    #[test]
    fn no_bytes_of_a_record_panic() {
        let samples = [RECORD, br#"{"a":{"b":"\ud83d\ude00\n"},"id":[1,true,"\"]"]}"#];
        try_with(&samples, &all_bytes(), |bytes| {
            values(bytes);
            count_openings(bytes);
            unescape(&[0, bytes.len() as i64], bytes, &[true]);
        });
        try_with(&samples, br#"{}[]",:\ut0dn1e-. "#, |bytes| {
            values(bytes);
        });
    }
}
