//! Walking over Avro records: how many values each has, before any of them is decoded.
//!
//! The decoder trusts a record: a few bytes may announce 2^62 values that take no bytes, and values
//! within each other end the process when its stack does. Invariant: a record that passes has no
//! more values and no more depth than allowed, and every length in it is within its bytes.

use crate::memory::Rows;

/// Kinds of nodes. The count is the bytes of FIXED, or the children of RECORD and UNION; ARRAY and
/// MAP have one child.
pub const NULL: i64 = 0;
/// An int, a long or an enum.
pub const LONG: i64 = 1;
/// So many bytes.
pub const FIXED: i64 = 2;
/// A length and so many bytes.
pub const BYTES: i64 = 3;
/// One value of each child.
pub const RECORD: i64 = 4;
/// One value of one of the children.
pub const UNION: i64 = 5;
/// Blocks of values.
pub const ARRAY: i64 = 6;
/// Blocks of keys and values.
pub const MAP: i64 = 7;

/// What is wrong with a record, in place of its number of values: it ends early, or a length is
/// wrong.
pub const BROKEN: i64 = -1;
/// It has more values than allowed.
pub const TOO_MANY: i64 = -2;
/// Its values are nested deeper than allowed.
pub const TOO_DEEP: i64 = -3;

/// The types of a schema.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    /// Kind, first child and count of each node, the record's type first.
    pub nodes: Rows<'a, i64>,
    /// Numbers of nodes.
    pub children: &'a [i64],
}

struct Node {
    kind: i64,
    first: usize,
    count: i64,
}

impl Schema<'_> {
    #[inline]
    fn node(&self, number: usize) -> Node {
        let row = self.nodes.row(number);
        Node { kind: row[0], first: row[1] as usize, count: row[2] }
    }

    #[inline]
    fn child(&self, at: usize) -> usize {
        self.children[at] as usize
    }
}

/// A zigzag varint, which is taken off the bytes.
#[inline]
fn long(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if *byte < 0x80 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

/// Go past `size` bytes.
#[inline]
fn skip(bytes: &mut &[u8], size: i64) -> Option<()> {
    *bytes = bytes.get(usize::try_from(size).ok()?..)?;
    Some(())
}

/// Items of a block of an array or map, whose head is taken off the bytes.
fn block(bytes: &mut &[u8]) -> Option<i64> {
    let count = long(bytes)?;
    if count < 0 {
        long(bytes)?;
    }
    // The least number has no opposite.
    count.checked_abs()
}

/// The most values of a record, and how deep they may be within each other.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Values of one record.
    pub values: i64,
    /// Values within each other.
    pub depth: usize,
}

/// The open values of a record: the node, and the next child of a record or what is left of a
/// block.
type Open = Vec<(usize, i64)>;

/// The values of each record, or what is wrong with it.
pub fn count_values(offsets: &[i64], raw: &[u8], schema: Schema<'_>, bounds: Bounds) -> Vec<i64> {
    let mut open = Open::new();
    let each = offsets.windows(2).map(|ends| {
        open.clear();
        let bytes = &raw[ends[0] as usize..ends[1] as usize];
        count_record(bytes, schema, bounds, &mut open).unwrap_or(BROKEN)
    });
    each.collect()
}

fn count_record(
    mut bytes: &[u8],
    schema: Schema<'_>,
    bounds: Bounds,
    open: &mut Open,
) -> Option<i64> {
    let (mut values, mut number) = (0, 0);
    loop {
        values += 1;
        if values > bounds.values {
            return Some(TOO_MANY);
        }
        let node = schema.node(number);
        match node.kind {
            UNION => {
                let branch = long(&mut bytes)?;
                if !(0..node.count).contains(&branch) {
                    return None;
                }
                number = schema.child(node.first + branch as usize);
                continue;
            }
            RECORD | ARRAY | MAP if open.len() == bounds.depth => return Some(TOO_DEEP),
            RECORD | ARRAY | MAP => open.push((number, 0)),
            LONG => {
                long(&mut bytes)?;
            }
            FIXED => skip(&mut bytes, node.count)?,
            BYTES => {
                let size = long(&mut bytes)?;
                skip(&mut bytes, size)?;
            }
            _ => {}
        }
        match next(&mut bytes, schema, open)? {
            Some(next) => number = next,
            None => return Some(values),
        }
    }
}

/// The type of the next value, after leaving what has none left; None within if there is none.
#[inline]
fn next(bytes: &mut &[u8], schema: Schema<'_>, open: &mut Open) -> Option<Option<usize>> {
    while let Some((number, left)) = open.last_mut() {
        let node = schema.node(*number);
        if node.kind == RECORD {
            if *left < node.count {
                *left += 1;
                return Some(Some(schema.child(node.first + *left as usize - 1)));
            }
            open.pop();
            continue;
        }
        if *left == 0 {
            *left = block(bytes)?;
            if *left == 0 {
                open.pop();
                continue;
            }
        }
        *left -= 1;
        if node.kind == MAP {
            let size = long(bytes)?;
            skip(bytes, size)?;
        }
        return Some(Some(schema.child(node.first)));
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    /// A record of a long, an array of nulls, a map of strings, and a union of null and the record.
    const NODES: [[i64; 3]; 7] = [
        [RECORD, 0, 4],
        [LONG, 0, 0],
        [ARRAY, 4, 1],
        [MAP, 5, 1],
        [UNION, 6, 2],
        [NULL, 0, 0],
        [BYTES, 0, 0],
    ];
    const CHILDREN: [i64; 8] = [1, 2, 3, 4, 5, 6, 5, 0];
    /// 1, [null, null], {"k": "v"}, null.
    const PLAIN: &[u8] = b"\x02\x04\x00\x01\x06\x02k\x02v\x00\x00";

    fn count(raw: &[u8], values: i64, depth: usize) -> i64 {
        let nodes = NODES.concat();
        let schema = Schema { nodes: Rows::new(&nodes, 3), children: &CHILDREN };
        count_values(&[0, raw.len() as i64], raw, schema, Bounds { values, depth })[0]
    }

    #[test]
    fn each_value_counts() {
        assert_eq!(count(PLAIN, 100, 9), 9);
        assert_eq!(count(PLAIN, 8, 9), TOO_MANY);
        assert_eq!(count(PLAIN, 100, 1), TOO_DEEP);
    }

    #[test]
    fn a_record_that_ends_early_is_broken() {
        for size in 0..PLAIN.len() {
            assert_eq!(count(&PLAIN[..size], 100, 9), BROKEN, "{size}");
        }
        // The least number of items, which has no opposite.
        let least = [b"\x02", &b"\xFF".repeat(9)[..], b"\x01\x00"].concat();
        assert_eq!(count(&least, 100, 9), BROKEN);
    }

    #[test]
    fn many_values_of_no_bytes_are_too_many() {
        assert_eq!(count(b"\x02\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 1_000, 9), TOO_MANY);
    }

    #[test]
    fn no_bytes_of_a_record_panic() {
        let nested = [&PLAIN[..10], b"\x02", PLAIN].concat();
        try_with(&[PLAIN, &nested], &all_bytes(), |bytes| {
            count(bytes, 1_000, 3);
        });
    }
}
