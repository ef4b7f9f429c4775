//! Loops that make page images and take rows out of them.
//!
//! Rows are named by hits: (index, page address, row, record address).

use super::hash::{fold, fold_null, splitmix, xxh64};
use crate::memory::{Page, Record, Rows, HASHES, HEADER};
use crate::strings::put;

const SIZE: u64 = 0xFFFF_FFFF;

/// Pages, rows and records of hits.
pub const HIT: usize = 4;

/// start << 32 | length of string `i`; the first string of the column starts at `base`.
#[inline]
pub fn packed(offsets: &[i64], base: i64, i: usize) -> u64 {
    let start = (offsets[i] + base - offsets[0]) as u64;
    start << 32 | (offsets[i + 1] - offsets[i]) as u64
}

#[inline]
fn is_null(record: &[u64], column: usize) -> bool {
    record[HASHES + (column >> 6)] >> (column & 63) & 1 != 0
}

/// What hash_rows needs to know of columns: the key, words of NULL bits, which are byte strings.
pub struct Columns<'a> {
    /// The columns whose hash sorts and finds the rows.
    pub key: &'a [i64],
    /// How many words of NULL bits a record has.
    pub masks: usize,
    /// For each column, whether it has byte strings.
    pub is_bytes: &'a [bool],
}

/// Fill the key hash and the two row hashes of all rows of an image that has its columns.
pub fn hash_rows(image: &mut [u64], rows: usize, columns: &Columns<'_>, seeds: &[u64]) {
    let stride = (image[2] >> 32) as usize;
    let column_at = HASHES + columns.masks;
    let mut keyed = vec![0; columns.is_bytes.len()];
    for row in 0..rows {
        let at = HEADER + rows + row * stride;
        let (mut first, mut second) = (seeds[0], seeds[1]);
        for (c, &is_string) in columns.is_bytes.iter().enumerate() {
            let record = &image[at..at + stride];
            if is_null(record, c) {
                (first, second) = (fold_null(first), fold_null(second));
                continue;
            }
            let word = record[column_at + c];
            let of_second;
            if is_string {
                let bytes = string(image, word);
                (keyed[c], of_second) = (xxh64(bytes, seeds[0]), xxh64(bytes, seeds[1]));
            } else {
                keyed[c] = splitmix(word);
                of_second = keyed[c];
            }
            (first, second) = (fold(first, keyed[c]), fold(second, of_second));
        }
        let record = &mut image[at..at + stride];
        let fold_key = |h, &c: &i64| {
            let is_absent = is_null(record, c as usize);
            if is_absent {
                fold_null(h)
            } else {
                fold(h, keyed[c as usize])
            }
        };
        let key_hash = columns.key.iter().fold(seeds[0], fold_key);
        (record[0], record[1]) = (first, second);
        image[HEADER + row] = key_hash;
    }
}

fn string(image: &[u64], word: u64) -> &[u8] {
    let (start, len) = ((word >> 32) as usize, (word & SIZE) as usize);
    &crate::memory::bytes_of(image)[start..start + len]
}

/// Finish an order by key hash: ties by row hashes, equal rows summed, zeros removed.
///
/// order: sorted by hashes, changed in place. The words of a record from value_at on are additive.
/// Returns (the rows, the totals of each).
pub fn resolve_order(
    order: &mut [i64],
    hashes: &[u64],
    records: Rows<'_, u64>,
    value_at: usize,
) -> (Vec<i64>, Vec<i64>) {
    let identity = |row: i64| {
        let record = records.row(row as usize);
        (record[0], record[1])
    };
    for tied in order.chunk_by_mut(|a, b| hashes[*a as usize] == hashes[*b as usize]) {
        if tied.len() > 1 {
            tied.sort_by_key(|row| identity(*row));
        }
    }
    let (mut rows, mut totals) = (Vec::with_capacity(order.len()), Vec::new());
    let same = |a: &i64, b: &i64| {
        hashes[*a as usize] == hashes[*b as usize] && identity(*a) == identity(*b)
    };
    for equal in order.chunk_by(same) {
        let begin = totals.len();
        totals.extend(records.row(equal[0] as usize)[value_at..].iter().map(|word| *word as i64));
        for row in &equal[1..] {
            let values = &records.row(*row as usize)[value_at..];
            for (total, value) in totals[begin..].iter_mut().zip(values) {
                *total = total.wrapping_add(*value as i64);
            }
        }
        if totals[begin..].iter().any(|total| *total != 0) {
            rows.push(equal[0]);
        } else {
            totals.truncate(begin);
        }
    }
    (rows, totals)
}

/// Hits, with index 0, of these rows of an image.
pub fn hits_of(page: Page, rows: &[i64]) -> Vec<i64> {
    let hit = |&row: &i64| [0, page.address(), row, page.record(row as usize).address()];
    rows.iter().flat_map(hit).collect()
}

/// Words start .. start + count of the record of each hit, one row a word.
pub fn gather_words(hits: Rows<'_, i64>, start: usize, count: usize) -> Vec<u64> {
    let k = hits.len();
    let mut out = vec![0; count * k];
    for i in 0..k {
        let record = Record::at(hits.row(i)[3]);
        for w in 0..count {
            out[w * k + i] = record.word(start + w);
        }
    }
    out
}

/// Copy the byte strings of one column of hits: (offsets, bytes).
pub fn gather_bytes(hits: Rows<'_, i64>, packed: &[u64]) -> (Vec<i64>, Vec<u8>) {
    let mut offsets = Vec::with_capacity(packed.len() + 1);
    let mut total = 0;
    offsets.push(0);
    for word in packed {
        total += (word & SIZE) as i64;
        offsets.push(total);
    }
    let mut out = vec![0; total as usize];
    let mut rest = &mut out[..];
    for (i, &word) in packed.iter().enumerate() {
        // NULLs and empty strings need no page.
        if word & SIZE != 0 {
            rest = put(rest, Page::present(hits.row(i)[1]).string(word));
        }
    }
    (offsets, out)
}

/// Bytes of the strings of all rows before each hit; columns: their word numbers.
pub fn heap_ends(hits: Rows<'_, i64>, columns: &[i64]) -> Vec<i64> {
    let mut ends = Vec::with_capacity(hits.len() + 1);
    let mut total = 0;
    ends.push(0);
    for i in 0..hits.len() {
        let record = Record::at(hits.row(i)[3]);
        total += columns.iter().map(|&c| (record.word(c as usize) & SIZE) as i64).sum::<i64>();
        ends.push(total);
    }
    ends
}

/// Rows to be written: hits, the totals that replace their last words, and the word numbers of byte
/// strings.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    /// The rows, in order.
    pub hits: Rows<'a, i64>,
    /// One row of additive values for each.
    pub totals: Rows<'a, i64>,
    /// The word numbers of byte strings.
    pub columns: &'a [i64],
}

/// Write rows into a page image, except for its checksum.
///
/// out: exactly the size of the image. header: magic, stride << 32, shape.
pub fn write_page(out: &mut [u64], selection: Selection<'_>, header: &[u64]) {
    let (k, width) = (selection.hits.len(), selection.totals.width());
    let stride = (header[1] >> 32) as usize;
    let fixed = stride - width;
    let mut heap = 8 * (HEADER + (stride + 1) * k);
    // The heap need not fill its last word.
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    out[..HEADER].copy_from_slice(&[header[0], 0, header[1] | k as u64, header[2]]);
    for i in 0..k {
        let hit = selection.hits.row(i);
        let (page, source) = (Page::present(hit[1]), Record::at(hit[3]));
        out[HEADER + i] = page.key_hash(hit[2] as usize);
        let at = HEADER + k + stride * i;
        for (w, word) in out[at..at + fixed].iter_mut().enumerate() {
            *word = source.word(w);
        }
        for (word, total) in out[at + fixed..at + stride].iter_mut().zip(selection.totals.row(i)) {
            *word = *total as u64;
        }
        for &c in selection.columns {
            let word = out[at + c as usize];
            let bytes = page.string(word);
            put(&mut crate::memory::bytes_of_mut(out)[heap..], bytes);
            out[at + c as usize] = (heap as u64) << 32 | bytes.len() as u64;
            heap += bytes.len();
        }
    }
}

/// Write consecutive images: page p, out[ends[p]..ends[p + 1]], has the rows from bounds[p] on.
pub fn write_pages(
    out: &mut [u64],
    ends: &[i64],
    bounds: &[i64],
    selection: Selection<'_>,
    header: &[u64],
) {
    for (end, bound) in ends.windows(2).zip(bounds.windows(2)) {
        let (start, stop) = (bound[0] as usize, bound[1] as usize);
        let part = Selection {
            hits: selection.hits.part(start, stop),
            totals: selection.totals.part(start, stop),
            columns: selection.columns,
        };
        write_page(&mut out[end[0] as usize..end[1] as usize], part, header);
    }
}

/// Sum weights by group number.
pub fn sum_by_group(group: &[i64], weight: impl Fn(usize) -> i64, groups: usize) -> Vec<i64> {
    let mut out = vec![0i64; groups];
    for (i, &g) in group.iter().enumerate() {
        let total = &mut out[g as usize];
        *total = total.wrapping_add(weight(i));
    }
    out
}
