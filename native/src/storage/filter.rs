//! A few bits a key that rule out a page for a key (Bloom 1970, with one stepped hash as in Kirsch
//! and Mitzenmacher 2006). Part of the format on disk.

use crate::memory::{FilterBits, Page};

const BITS_A_KEY: usize = 12;
const PROBES: u64 = 8;
const LOW: u64 = 0xFFFF_FFFF;

/// Which of `bits` bits a key hash sets at one probe; its top bits are alike in a page.
#[inline]
fn bit(h: u64, probe: u64, bits: u64) -> u64 {
    let (start, step) = (h & LOW, (h >> 16) & LOW | 1);
    ((start.wrapping_add(probe * step) & LOW) * bits) >> 32
}

/// Whether the page of a filter may hold a key hash.
#[inline]
pub fn may_contain(filter: FilterBits, h: u64) -> bool {
    let bits = filter.len();
    (0..PROBES).all(|probe| filter.has(bit(h, probe, bits)))
}

/// The filter of a page: the number of bits, then the bits.
pub fn filter_of(page: Page) -> Vec<u64> {
    let is_first = |row: usize| row == 0 || page.key_hash(row) != page.key_hash(row - 1);
    let keys = (1..page.rows()).filter(|row| is_first(*row)).count() + 1;
    let words = (keys * BITS_A_KEY).div_ceil(64);
    let mut out = vec![0; 1 + words];
    let bits = 64 * words as u64;
    out[0] = bits;
    for row in (0..page.rows()).filter(|row| is_first(*row)) {
        for probe in 0..PROBES {
            let bit = bit(page.key_hash(row), probe, bits);
            out[1 + (bit >> 6) as usize] |= 1 << (bit & 63);
        }
    }
    out
}
