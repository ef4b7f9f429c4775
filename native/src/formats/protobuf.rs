//! Walking over Protobuf records: how many fields their messages have, before parsing.
//!
//! The parser makes a whole message, with room for all fields of its type, out of two bytes.
//! Invariant: what is counted is what the parser would make, so a record that passes has no more
//! than allowed.

use crate::memory::Rows;

const VARINT: i64 = 0;
const WORD: i64 = 1;
/// A field of a length and so many bytes.
pub const SIZED: i64 = 2;
/// A field that ends with another tag.
pub const GROUP: i64 = 3;
const GROUP_END: i64 = 4;
const HALF_WORD: i64 = 5;

/// In place of the number of fields: more than allowed.
pub const TOO_MANY: i64 = -1;

/// Messages that hold messages.
#[derive(Clone, Copy)]
pub struct Messages<'a> {
    /// Where the fields of each message are.
    pub starts: &'a [i64],
    /// Number, wire type and message of each field, by number within each message.
    pub fields: Rows<'a, i64>,
    /// How many fields a message has, with itself.
    pub sizes: &'a [i64],
}

impl Messages<'_> {
    /// The message in a field of this wire type, if it holds one that is known.
    fn held(&self, message: Option<usize>, field: i64, kind: i64) -> Option<usize> {
        let message = message?;
        let (mut low, high) = (self.starts[message] as usize, self.starts[message + 1] as usize);
        let mut beyond = high;
        while low < beyond {
            let middle = (low + beyond) / 2;
            if self.fields.row(middle)[0] < field {
                low = middle + 1;
            } else {
                beyond = middle;
            }
        }
        let found = (low < high).then(|| self.fields.row(low))?;
        (found[0] == field && found[1] == kind).then_some(found[2] as usize)
    }
}

/// A varint of at most ten bytes of raw[*at..end].
#[inline]
fn varint(raw: &[u8], at: &mut usize, end: usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = *raw.get(..end)?.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The most fields of a record, and how deep messages may be within each other.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Fields of all messages of a record.
    pub fields: i64,
    /// Messages within each other.
    pub depth: usize,
}

/// The fields of all messages of each record, or TOO_MANY.
///
/// A record that is broken, or deeper than allowed, is counted up to there: the parser refuses it.
pub fn count_fields(
    offsets: &[i64],
    raw: &[u8],
    messages: Messages<'_>,
    bounds: Bounds,
) -> Vec<i64> {
    let mut open = Vec::with_capacity(bounds.depth);
    let each = offsets.windows(2).map(|ends| {
        open.clear();
        open.push((Some(0), ends[1] as usize));
        let mut values = messages.sizes[0];
        let mut at = ends[0] as usize;
        while count_next(raw, &mut at, messages, bounds, &mut open, &mut values).is_some() {}
        values
    });
    each.collect()
}

/// Go past one field; None at the end of the record, or where counting stops.
#[inline]
fn count_next(
    raw: &[u8],
    at: &mut usize,
    messages: Messages<'_>,
    bounds: Bounds,
    open: &mut Vec<(Option<usize>, usize)>,
    values: &mut i64,
) -> Option<()> {
    let &(message, end) = open.last()?;
    if *at >= end {
        open.pop();
        return Some(());
    }
    let tag = varint(raw, at, end)?;
    let (kind, field) = ((tag & 7) as i64, (tag >> 3) as i64);
    match kind {
        VARINT => {
            varint(raw, at, end)?;
        }
        WORD => *at += 8,
        HALF_WORD => *at += 4,
        GROUP_END => {
            open.pop();
        }
        SIZED | GROUP => {
            let mut inner_end = end;
            if kind == SIZED {
                let size = varint(raw, at, end)?;
                if size > (end - *at) as u64 {
                    return None;
                }
                inner_end = *at + size as usize;
            }
            let target = messages.held(message, field, kind);
            if target.is_none() && kind == SIZED {
                *at = inner_end;
                return Some(());
            }
            if open.len() == bounds.depth {
                return None;
            }
            open.push((target, inner_end));
            if let Some(target) = target {
                *values += messages.sizes[target];
                if *values > bounds.fields {
                    *values = TOO_MANY;
                    return None;
                }
            }
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    fn count(raw: &[u8], fields: i64, depth: usize) -> i64 {
        // The record holds a message in field 3, and itself as the group 5.
        let messages = Messages {
            starts: &[0, 2, 2],
            fields: Rows::new(&[3, SIZED, 1, 5, GROUP, 0], 3),
            sizes: &[7, 4],
        };
        count_fields(&[0, raw.len() as i64], raw, messages, Bounds { fields, depth })[0]
    }

    /// A varint, a message, a group with a message.
    const PLAIN: &[u8] = b"\x08\xAC\x02\x1A\x02\x08\x01\x2B\x1A\x00\x2C";

    #[test]
    fn a_message_counts_all_of_its_fields() {
        assert_eq!(count(b"", 100, 9), 7);
        assert_eq!(count(PLAIN, 100, 9), 7 + 4 + 7 + 4);
        assert_eq!(count(PLAIN, 20, 9), TOO_MANY);
        assert_eq!(count(PLAIN, 100, 1), 7);
    }

    #[test]
    fn a_broken_record_is_counted_up_to_there() {
        assert_eq!(count(&PLAIN[..4], 100, 9), 7);
        assert_eq!(count(b"\x1A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 100, 9), 7);
        assert_eq!(count(b"\x0F", 100, 9), 7);
    }

    #[test]
    fn no_bytes_of_a_record_panic() {
        try_with(&[PLAIN, b"\x2B\x2B\x2C\x19aaaaaaaa\x1Dbbbb"], &all_bytes(), |bytes| {
            count(bytes, 1_000, 5);
        });
    }
}
