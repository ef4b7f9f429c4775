//! Loops over PostgreSQL's two bulk text forms: COPY text lines and array literals.
//!
//! All work on columns of byte strings (offsets, data, valid; an empty `valid` means no NULLs).
//! Escaping follows the manual, chapters COPY ("Text Format") and Arrays ("Array Input and Output
//! Syntax"). Invariant: PostgreSQL reads back unchanged what these loops write.

use crate::strings::{is_null, put, string};

/// The letter after a backslash of a byte that is escaped in lines; 0 for other bytes.
const LETTERS: [u8; 256] = {
    let mut letters = [0; 256];
    letters[b'\t' as usize] = b't';
    letters[b'\n' as usize] = b'n';
    letters[b'\r' as usize] = b'r';
    letters[b'\\' as usize] = b'\\';
    letters
};

#[inline]
fn escapes(text: &[u8]) -> usize {
    text.iter().filter(|&&byte| LETTERS[usize::from(byte)] != 0).count()
}

/// Add to sizes[i] the bytes of value i in a COPY line, with its delimiter.
pub fn add_sizes(sizes: &mut [i64], offsets: &[i64], data: &[u8], valid: &[bool]) {
    for (i, size) in sizes.iter_mut().enumerate() {
        *size += if is_null(valid, i) {
            3
        } else {
            let text = string(offsets, data, i);
            (text.len() + escapes(text) + 1) as i64
        };
    }
}

/// Write value i and the delimiter at out[at[i]..] and advance at[i] past them.
pub fn put_values(
    out: &mut [u8],
    at: &mut [i64],
    offsets: &[i64],
    data: &[u8],
    valid: &[bool],
    delimiter: u8,
) {
    for (i, at) in at.iter_mut().enumerate() {
        let to = &mut out[*at as usize..];
        let size = to.len();
        let to = if is_null(valid, i) {
            put(to, b"\\N")
        } else {
            put_escaped(to, string(offsets, data, i))
        };
        to[0] = delimiter;
        *at += (size - to.len() + 1) as i64;
    }
}

/// Write a text and return what is after it.
#[inline]
fn put_escaped<'a>(mut to: &'a mut [u8], mut text: &[u8]) -> &'a mut [u8] {
    while let Some(plain) = text.iter().position(|&byte| LETTERS[usize::from(byte)] != 0) {
        to = put(to, &text[..plain]);
        to = put(to, &[b'\\', LETTERS[usize::from(text[plain])]]);
        text = &text[plain + 1..];
    }
    put(to, text)
}

/// '{"...",NULL,...}': an SQL literal, for standard_conforming_strings = on.
pub fn array_literal(offsets: &[i64], data: &[u8], valid: &[bool]) -> Vec<u8> {
    let is_doubled = |byte: u8| (byte == b'"') | (byte == b'\\') | (byte == b'\'');
    let n = offsets.len() - 1;
    let all = &data[offsets[0] as usize..offsets[n] as usize];
    let doubled = all.iter().filter(|&&byte| is_doubled(byte)).count();
    let mut out = Vec::with_capacity(4 + 7 * n + all.len() + doubled);
    out.extend_from_slice(b"'{");
    for i in 0..n {
        if i > 0 {
            out.push(b',');
        }
        if is_null(valid, i) {
            out.extend_from_slice(b"NULL");
            continue;
        }
        out.push(b'"');
        let text = string(offsets, data, i);
        if doubled == 0 {
            out.extend_from_slice(text);
        } else {
            for &byte in text {
                match byte {
                    b'"' | b'\\' => out.push(b'\\'),
                    b'\'' => out.push(b'\''),
                    _ => {}
                }
                out.push(byte);
            }
        }
        out.push(b'"');
    }
    out.extend_from_slice(b"}'");
    out
}

/// The values of whole COPY lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Lines {
    /// How many lines there are.
    pub count: usize,
    /// Where values start, by column, then line.
    pub starts: Vec<i64>,
    /// Where they end.
    pub ends: Vec<i64>,
    /// The first line with another number of values.
    pub torn: Option<usize>,
}

/// Find the values of all lines, each of which ends with a line feed.
pub fn split_lines(data: &[u8], columns: usize) -> Lines {
    let count = data.iter().filter(|&&byte| byte == b'\n').count();
    let (mut starts, mut ends) = (vec![0; columns * count], vec![0; columns * count]);
    let (mut row, mut column, mut start) = (0, 0, 0);
    for (j, &byte) in data.iter().enumerate() {
        if byte != b'\t' && byte != b'\n' {
            continue;
        }
        // A line of no columns is an empty line; no line is begun after the last line feed.
        if column < columns && row < count {
            starts[column * count + row] = start as i64;
            ends[column * count + row] = j as i64;
        }
        column += 1;
        start = j + 1;
        if byte == b'\n' {
            if column != columns.max(1) {
                return Lines { count, starts, ends, torn: Some(row) };
            }
            row += 1;
            column = 0;
        }
    }
    Lines { count, starts, ends, torn: None }
}

/// (offsets, bytes, valid) of one column of split lines, unescaped.
pub fn gather_values(data: &[u8], starts: &[i64], ends: &[i64]) -> (Vec<i64>, Vec<u8>, Vec<bool>) {
    let size: i64 = starts.iter().zip(ends).map(|(start, end)| end - start).sum();
    let mut out = vec![0; size as usize];
    let mut offsets = Vec::with_capacity(starts.len() + 1);
    let mut valid = Vec::with_capacity(starts.len());
    let mut k = 0;
    for (&start, &end) in starts.iter().zip(ends) {
        offsets.push(k as i64);
        let text = &data[start as usize..end as usize];
        let is_null = text == b"\\N";
        valid.push(!is_null);
        if is_null {
            continue;
        }
        let to = &mut out[k..];
        if text.contains(&b'\\') {
            k += put_unescaped(to, text);
        } else {
            put(to, text);
            k += text.len();
        }
    }
    offsets.push(k as i64);
    out.truncate(k);
    (offsets, out, valid)
}

/// Write a text without its escapes and return its size. A last backslash stands for itself.
fn put_unescaped(to: &mut [u8], text: &[u8]) -> usize {
    let mut bytes = text.iter().copied();
    let mut k = 0;
    while let Some(byte) = bytes.next() {
        to[k] = match byte {
            b'\\' => match bytes.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'b') => 8,
                Some(b'f') => 12,
                Some(b'v') => 11,
                Some(byte) => byte,
                None => b'\\',
            },
            byte => byte,
        };
        k += 1;
    }
    k
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    #[test]
    fn what_is_put_is_split_and_gathered_again() {
        let (offsets, data) = ([0, 3, 3, 7], b"a\tbc\\\r\n");
        let valid = [true, false, true];
        let mut sizes = [0; 3];
        add_sizes(&mut sizes, &offsets, data, &valid);
        let mut at = [0, sizes[0], sizes[0] + sizes[1]];
        let mut out = vec![0; sizes.iter().sum::<i64>() as usize];
        put_values(&mut out, &mut at, &offsets, data, &valid, b'\n');
        assert_eq!(out, b"a\\tb\n\\N\nc\\\\\\r\\n\n");
        let lines = split_lines(&out, 1);
        assert_eq!(lines.torn, None);
        let found = gather_values(&out, &lines.starts, &lines.ends);
        assert_eq!(found, (offsets.to_vec(), data.to_vec(), valid.to_vec()));
    }

    #[test]
    fn a_line_with_another_number_of_values_is_torn() {
        assert_eq!(split_lines(b"a\tb\nc\n", 2).torn, Some(1));
        assert_eq!(split_lines(b"\n\n", 0).torn, None);
    }

    #[test]
    fn no_bytes_of_a_copy_panic() {
        try_with(&[b"a\\tb\t\\N\n\\\\\t2\n"], &all_bytes(), |bytes| {
            for columns in 0..3 {
                let lines = split_lines(bytes, columns);
                if lines.torn.is_none() {
                    gather_values(bytes, &lines.starts, &lines.ends);
                }
            }
            array_literal(&[0, bytes.len() as i64], bytes, &[]);
        });
    }
}
