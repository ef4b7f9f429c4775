//! Reading of CSV records (RFC 4180, plus escapes by another character).
//!
//! A record is one row; its line end, if any, is skipped. A cell that starts with the quote is
//! quoted; then the quote ends it, or is literal if escaped. Elsewhere the quote is an ordinary
//! character.

/// A cell that is not there.
pub const ABSENT: u8 = 0;
/// A cell without quotes.
pub const PLAIN: u8 = 1;
/// A cell in quotes.
pub const QUOTED: u8 = 2;
/// A cell in quotes in which something is escaped.
pub const ESCAPED: u8 = 3;

/// The quote and what is before a literal one (the quote itself if quotes are doubled); a negative
/// one is not used.
#[derive(Clone, Copy)]
pub struct Quotes {
    /// Around cells.
    pub quote: i64,
    /// Before a literal quote.
    pub escape: i64,
}

impl Quotes {
    #[inline]
    fn is_quote(&self, byte: Option<&u8>) -> bool {
        byte.is_some_and(|&byte| i64::from(byte) == self.quote)
    }

    /// Whether the byte escapes the one after it.
    #[inline]
    fn escapes(&self, byte: u8, next: Option<&u8>) -> bool {
        i64::from(byte) == self.escape
            && next.is_some()
            && (self.escape != self.quote || self.is_quote(next))
    }
}

/// The cells of records, by cell, then record.
#[derive(Debug, PartialEq, Eq)]
pub struct Cells {
    /// Where each cell starts.
    pub starts: Vec<i64>,
    /// Where it ends.
    pub ends: Vec<i64>,
    /// What it is.
    pub kinds: Vec<u8>,
    /// How many cells each record has; negative if quotes do not match.
    pub found: Vec<i64>,
}

/// Split records into `count` cells.
pub fn split_cells(
    offsets: &[i64],
    data: &[u8],
    count: usize,
    delimiter: u8,
    quotes: Quotes,
) -> Cells {
    let records = offsets.len() - 1;
    let size = count * records;
    let mut cells =
        Cells { starts: vec![0; size], ends: vec![0; size], kinds: vec![0; size], found: vec![] };
    cells.found.reserve(records);
    let (starts, ends) = (&mut cells.starts[..], &mut cells.ends[..]);
    let kinds = &mut cells.kinds[..];
    for row in 0..records {
        let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
        let record = &data[start..end];
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        let record = record.strip_suffix(b"\r").unwrap_or(record);
        let put = |number: usize, from: usize, to: usize, kind: u8| {
            if number < count {
                let item = number * records + row;
                starts[item] = (start + from) as i64;
                ends[item] = (start + to) as i64;
                kinds[item] = kind;
            }
        };
        cells.found.push(split_record(record, delimiter, quotes, put));
    }
    cells
}

/// Pass each cell of a record to `put`; return how many there are.
#[inline]
fn split_record(
    record: &[u8],
    delimiter: u8,
    quotes: Quotes,
    mut put: impl FnMut(usize, usize, usize, u8),
) -> i64 {
    let (mut at, mut cell) = (0, 0);
    loop {
        if quotes.is_quote(record.get(at)) {
            let Some((stop, kind)) = quoted_end(record, at + 1, quotes) else { return -1 };
            if record.get(stop + 1).is_some_and(|&byte| byte != delimiter) {
                return -1;
            }
            put(cell, at + 1, stop, kind);
            at = stop + 1;
        } else {
            let rest = &record[at..];
            let size = rest.iter().position(|&byte| byte == delimiter).unwrap_or(rest.len());
            put(cell, at, at + size, PLAIN);
            at += size;
        }
        cell += 1;
        if at >= record.len() {
            return cell as i64;
        }
        at += 1;
    }
}

/// The position of the quote that closes a cell, and its kind; the inside starts at `at`.
#[inline]
fn quoted_end(record: &[u8], mut at: usize, quotes: Quotes) -> Option<(usize, u8)> {
    let mut kind = QUOTED;
    loop {
        let byte = *record.get(at)?;
        if quotes.escapes(byte, record.get(at + 1)) {
            kind = ESCAPED;
            at += 2;
        } else if i64::from(byte) == quotes.quote {
            return Some((at, kind));
        } else {
            at += 1;
        }
    }
}

/// (offsets, bytes, valid) of one column's cells without quotes and escapes.
///
/// A plain cell with the text `null` is NULL.
pub fn copy_cells(
    data: &[u8],
    starts: &[i64],
    ends: &[i64],
    kinds: &[u8],
    quotes: Quotes,
    null: &[u8],
) -> (Vec<i64>, Vec<u8>, Vec<bool>) {
    let size: i64 = starts.iter().zip(ends).map(|(start, end)| end - start).sum();
    let mut offsets = Vec::with_capacity(kinds.len() + 1);
    let mut valid = Vec::with_capacity(kinds.len());
    let mut out = Vec::with_capacity(size as usize);
    offsets.push(0);
    for ((&start, &end), &kind) in starts.iter().zip(ends).zip(kinds) {
        let cell = &data[start as usize..end as usize];
        let is_null = kind == ABSENT || (kind == PLAIN && cell == null);
        valid.push(!is_null);
        if !is_null && kind == ESCAPED {
            put_unescaped(&mut out, cell, quotes);
        } else if !is_null {
            out.extend_from_slice(cell);
        }
        offsets.push(out.len() as i64);
    }
    (offsets, out, valid)
}

fn put_unescaped(out: &mut Vec<u8>, cell: &[u8], quotes: Quotes) {
    let mut at = 0;
    while let Some(&byte) = cell.get(at) {
        match cell.get(at + 1) {
            Some(&next) if quotes.escapes(byte, Some(&next)) => {
                out.push(next);
                at += 2;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    const RFC: Quotes = Quotes { quote: b'"' as i64, escape: b'"' as i64 };

    fn cells(record: &[u8], count: usize, quotes: Quotes) -> (i64, Vec<Vec<u8>>) {
        let found = split_cells(&[0, record.len() as i64], record, count, b',', quotes);
        let one = |cell: usize| {
            let all = cell..cell + 1;
            let (starts, ends) = (&found.starts[all.clone()], &found.ends[all.clone()]);
            copy_cells(record, starts, ends, &found.kinds[all], quotes, b"\\N").1
        };
        (found.found[0], (0..count).map(one).collect())
    }

    #[test]
    fn quotes_are_taken_off() {
        let found = cells(b"a,\"b,\"\"c\"\"\",\r\n", 3, RFC);
        assert_eq!(found, (3, vec![b"a".to_vec(), b"b,\"c\"".to_vec(), b"".to_vec()]));
        let other = Quotes { escape: b'\\' as i64, ..RFC };
        assert_eq!(cells(b"\"a\\\"b\"", 1, other), (1, vec![b"a\"b".to_vec()]));
    }

    #[test]
    fn quotes_that_do_not_match_are_told() {
        assert_eq!(cells(b"a,\"b", 2, RFC).0, -1);
        assert_eq!(cells(b"\"a\"b", 2, RFC).0, -1);
        assert_eq!(cells(b"a,b,c", 2, RFC).0, 3);
    }

    #[test]
    fn no_bytes_of_a_record_panic() {
        try_with(&[b"a,\"b,\"\"c\"\"\",\\N,\"\\\"\"\r\n"], &all_bytes(), |bytes| {
            for (quote, escape) in [(34, 34), (34, 92), (-1, -1)] {
                cells(bytes, 3, Quotes { quote, escape });
            }
        });
    }
}
