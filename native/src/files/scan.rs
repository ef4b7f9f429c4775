//! Scans for record boundaries: lines, CSV records, elements of a JSON array.
//!
//! Every scan takes a block of bytes from the start of a record and returns the records that end in
//! it. The rest after the last one is scanned again together with the next block.

/// Before elements of a JSON array: an element may come, or the end.
pub const FIRST: i64 = 0;
/// After an element: a comma must come, or the end.
pub const AFTER: i64 = 1;
/// After a comma: an element must come.
pub const NEXT: i64 = 2;
/// After the end of the array.
pub const ENDED: i64 = 3;

/// Columns of a CSV record: start, end, lines before it.
pub const CSV_RECORD: usize = 3;
/// Columns of a JSON element: start and end.
pub const JSON_ELEMENT: usize = 2;

/// Characters of CSV records; a negative one is not used.
#[derive(Clone, Copy)]
pub struct Form {
    /// Between values.
    pub delimiter: i64,
    /// Around values, opening only at the start of one.
    pub quote: i64,
    /// Before a quote that does not close; the quote itself if quotes are doubled.
    pub escape: i64,
}

/// CSV records of a block.
#[derive(Debug, PartialEq, Eq)]
pub struct Lines {
    /// Of each record: start, end without the line end, lines before it in the block.
    pub found: Vec<i64>,
    /// Where the next record starts.
    pub rest: usize,
    /// Lines before that.
    pub before: i64,
}

/// Scan CSV records (RFC 4180) in a block, at most `limit`.
pub fn csv_records(data: &[u8], form: Form, limit: usize) -> Lines {
    let (delimiter, quote, escape) = (form.delimiter, form.quote, form.escape);
    // Without quotes, only the ends of lines matter.
    let after_value = if quote < 0 { b'\n' } else { u8::try_from(delimiter).unwrap_or(b'\n') };
    let is_mark = |&byte: &u8| byte == b'\n' || byte == after_value;
    let mut lines = Lines { found: Vec::new(), rest: 0, before: 0 };
    let (mut at, mut line, mut is_fresh) = (0, 0, true);
    while lines.found.len() < CSV_RECORD * limit {
        // A quote opens only at the start of a value.
        if !is_fresh || quote < 0 {
            let Some(skipped) = data.get(at..).and_then(|rest| rest.iter().position(is_mark))
            else {
                break;
            };
            at += skipped;
        }
        let Some(&byte) = data.get(at) else { break };
        if byte == b'\n' {
            let record = &data[lines.rest..at];
            let end = lines.rest + record.strip_suffix(b"\r").unwrap_or(record).len();
            lines.found.extend([lines.rest as i64, end as i64, lines.before]);
            line += 1;
            (lines.rest, lines.before, is_fresh) = (at + 1, line, true);
        } else if i64::from(byte) == delimiter {
            is_fresh = true;
        } else if i64::from(byte) == quote {
            is_fresh = false;
            at = quoted_end(data, at + 1, quote, escape, &mut line);
        } else {
            is_fresh = false;
        }
        at += 1;
    }
    lines
}

/// The position of the quote that ends a value; its inside starts at `at`. Counts its lines.
fn quoted_end(data: &[u8], mut at: usize, quote: i64, escape: i64, line: &mut i64) -> usize {
    while let Some(&byte) = data.get(at) {
        let byte = i64::from(byte);
        if byte == escape && escape != quote {
            at += 1;
            *line += i64::from(data.get(at) == Some(&b'\n'));
        } else if byte == quote {
            let is_doubled =
                escape == quote && data.get(at + 1).is_some_and(|&next| i64::from(next) == quote);
            if !is_doubled {
                return at;
            }
            at += 1;
        } else if byte == i64::from(b'\n') {
            *line += 1;
        }
        at += 1;
    }
    at
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Where the JSON value that starts at `at` ends; None if the block ends before.
fn element_end(data: &[u8], at: usize, is_last: bool) -> Option<usize> {
    let rest = &data[at..];
    let is_end = |&byte: &u8| is_blank(byte) || matches!(byte, b',' | b']' | b'}');
    match rest[0] {
        b'{' | b'[' => nested_end(data, at),
        b'"' => text_end(data, at + 1),
        _ => match rest.iter().position(is_end) {
            Some(size) => Some(at + size),
            None => is_last.then_some(data.len()),
        },
    }
}

/// The position after the quote that ends a text; its inside starts at `at`.
fn text_end(data: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let rest = data.get(at..)?;
        at += rest.iter().position(|&byte| byte == b'"' || byte == b'\\')?;
        if data[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The position after the bracket that closes the one at `at`.
fn nested_end(data: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0i64;
    loop {
        match *data.get(at)? {
            b'"' => at = text_end(data, at + 1)? - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// JSON values of a block.
#[derive(Debug, PartialEq, Eq)]
pub struct Elements {
    /// Start and end of each.
    pub found: Vec<i64>,
    /// Where the rest starts.
    pub rest: usize,
    /// FIRST, AFTER, NEXT or ENDED, before the rest.
    pub state: i64,
    /// Whether the rest is not JSON.
    pub is_wrong: bool,
}

/// Scan values of a JSON array (in_list: after its "[") or consecutive values, at most `limit`.
pub fn json_elements(
    data: &[u8],
    in_list: bool,
    state: i64,
    is_last: bool,
    limit: usize,
) -> Elements {
    let mut elements = Elements { found: Vec::new(), rest: 0, state, is_wrong: false };
    while elements.found.len() < JSON_ELEMENT * limit {
        let Some(&byte) = data.get(elements.rest) else { break };
        if is_blank(byte) {
            elements.rest += 1;
            continue;
        }
        let after = match (byte, elements.state) {
            (_, ENDED) => None,
            (b']', FIRST | AFTER) if in_list => Some(ENDED),
            (b',', AFTER) if in_list => Some(NEXT),
            (b',' | b']' | b'}', _) => None,
            (_, AFTER) if in_list => None,
            _ => {
                let Some(end) = element_end(data, elements.rest, is_last) else { break };
                elements.found.extend([elements.rest as i64, end as i64]);
                elements.rest = end;
                elements.state = if in_list { AFTER } else { FIRST };
                continue;
            }
        };
        let Some(after) = after else {
            elements.is_wrong = true;
            break;
        };
        elements.state = after;
        elements.rest += 1;
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    const RFC: Form = Form { delimiter: b',' as i64, quote: b'"' as i64, escape: b'"' as i64 };

    #[test]
    fn a_quoted_line_feed_is_part_of_its_record() {
        let lines = csv_records(b"a,\"b\n\"\"\"\r\nc\n\"d", RFC, 9);
        assert_eq!(lines, Lines { found: vec![0, 8, 0, 10, 11, 2], rest: 12, before: 3 });
        assert_eq!(csv_records(b"a\nb\n", RFC, 1).rest, 2);
    }

    #[test]
    fn an_escaped_quote_does_not_close() {
        let form = Form { escape: b'\\' as i64, ..RFC };
        assert_eq!(csv_records(b"\"a\\\"\n\"\nb\n", form, 9).found, [0, 6, 0, 7, 8, 2]);
    }

    #[test]
    fn a_list_may_end_in_another_block() {
        let first = json_elements(b" {\"a\":\"]\"}, 12 , [1", true, FIRST, false, 9);
        assert_eq!((first.found, first.state, first.rest), (vec![1, 10, 12, 14], NEXT, 17));
        let second = json_elements(b"[1]] ", true, NEXT, true, 9);
        assert_eq!((second.found, second.state, second.rest), (vec![0, 3], ENDED, 5));
        assert!(json_elements(b"1,]", true, FIRST, true, 9).is_wrong);
        assert!(json_elements(b"] 1", true, FIRST, true, 9).is_wrong);
    }

    #[test]
    fn no_bytes_of_a_file_panic() {
        let samples: [&[u8]; 2] = [b"a,\"b\n\"\"\"\r\nc\n", b"{\"a\":[\"\\\"]\"]}, 12, \"x\" ] "];
        try_with(&samples, &all_bytes(), |bytes| {
            for (quote, escape) in [(34, 34), (34, 92), (-1, -1)] {
                let lines = csv_records(bytes, Form { delimiter: 44, quote, escape }, 5);
                assert!(lines.rest <= bytes.len());
            }
            for state in [FIRST, AFTER, NEXT, ENDED] {
                for (in_list, is_last) in [(true, false), (true, true), (false, true)] {
                    let elements = json_elements(bytes, in_list, state, is_last, 5);
                    assert!(elements.rest <= bytes.len());
                }
            }
        });
    }
}
