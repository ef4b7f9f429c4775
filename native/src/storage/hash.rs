//! Hashes of values and rows: part of the format on disk, so they never change.
//!
//! splitmix64 for fixed-width values (Steele, Lea, Flood 2014), XXH64 for bytes (the published
//! specification).

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const M1: u64 = 0xBF58_476D_1CE4_E5B9;
const M2: u64 = 0x94D0_49BB_1331_11EB;
const NULL: u64 = 0x6E75_6C6C_6E75_6C6C;

/// Finalize one value so that every input bit reaches every output bit.
#[inline]
pub fn splitmix(x: u64) -> u64 {
    let z = x.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(M1);
    let z = (z ^ (z >> 27)).wrapping_mul(M2);
    z ^ (z >> 31)
}

/// Fold the hash of one more value into the hash of a row.
#[inline]
pub fn fold(h: u64, x: u64) -> u64 {
    splitmix(h.wrapping_mul(P1).wrapping_add(x))
}

/// Fold a NULL by another factor, so that no value equals it under both seeds of a row.
#[inline]
pub fn fold_null(h: u64) -> u64 {
    splitmix(h.wrapping_mul(P2).wrapping_add(NULL))
}

#[inline]
fn round(acc: u64, lane: u64) -> u64 {
    acc.wrapping_add(lane.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

#[inline]
fn merge(acc: u64, lane: u64) -> u64 {
    (acc ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4)
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// XXH64 of bytes, with a seed.
pub fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let mut rest = bytes;
    let mut h = if bytes.len() >= 32 {
        let mut lanes = [
            seed.wrapping_add(P1).wrapping_add(P2),
            seed.wrapping_add(P2),
            seed,
            seed.wrapping_sub(P1),
        ];
        while let Some((stripe, after)) = rest.split_first_chunk::<32>() {
            for (lane, part) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
                *lane = round(*lane, word(part));
            }
            rest = after;
        }
        let [a, b, c, d] = lanes;
        let sum = a
            .rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18));
        lanes.iter().fold(sum, |h, lane| merge(h, *lane))
    } else {
        seed.wrapping_add(P5)
    };
    h = h.wrapping_add(bytes.len() as u64);
    while let Some((part, after)) = rest.split_first_chunk::<8>() {
        h = (h ^ round(0, u64::from_le_bytes(*part)))
            .rotate_left(27)
            .wrapping_mul(P1)
            .wrapping_add(P4);
        rest = after;
    }
    if let Some((part, after)) = rest.split_first_chunk::<4>() {
        let half = u64::from(u32::from_le_bytes(*part));
        h = (h ^ half.wrapping_mul(P1)).rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        rest = after;
    }
    for byte in rest {
        h = (h ^ u64::from(*byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
    }
    h = (h ^ (h >> 33)).wrapping_mul(P2);
    h = (h ^ (h >> 29)).wrapping_mul(P3);
    h ^ (h >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xxh64_is_that_of_its_specification() {
        // From the specification's test vectors.
        assert_eq!(xxh64(b"", 0), 0xEF46_DB37_51D8_E999);
        assert_eq!(xxh64(b"a", 0), 0xD24E_C4F1_A98C_6E5B);
        assert_eq!(xxh64(b"abc", 0), 0x44BC_2CF5_AD77_0999);
    }

    #[test]
    fn a_null_is_no_value() {
        assert_ne!(fold_null(1), fold(1, 0));
        assert_ne!(splitmix(0), splitmix(1));
    }
}
