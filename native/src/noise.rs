//! Random and damaged bytes, the same in each run: what the functions that read foreign bytes are
//! tried with. These loops take the place of fuzz targets, since they are part of `cargo test`.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// A generator of numbers (splitmix64).
pub(crate) struct Noise(u64);

impl Noise {
    /// One that starts from a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Noise(seed)
    }

    /// A number below a limit.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    }

    /// At most `most` bytes of an alphabet.
    pub(crate) fn bytes(&mut self, most: usize, alphabet: &[u8]) -> Vec<u8> {
        let size = self.below(most + 1);
        (0..size).map(|_| alphabet[self.below(alphabet.len())]).collect()
    }

    /// The bytes with a few of them changed, lost, doubled or cut off.
    pub(crate) fn damaged(&mut self, bytes: &[u8]) -> Vec<u8> {
        const EDGES: [u8; 8] = [0, 1, 0x7F, 0x80, 0xFF, b'"', b'\\', b'\n'];
        let mut found = bytes.to_vec();
        for _ in 0..1 + self.below(3) {
            let at = self.below(found.len());
            match self.below(5) {
                0 => found.truncate(at),
                1 if !found.is_empty() => found[at] = self.below(256) as u8,
                2 if !found.is_empty() => found[at] = EDGES[self.below(EDGES.len())],
                3 if !found.is_empty() => drop(found.remove(at)),
                _ => found.insert(at, EDGES[self.below(EDGES.len())]),
            }
        }
        found
    }
}

/// Call `read` with random bytes of an alphabet and with damaged samples, a few thousand times.
pub(crate) fn try_with(samples: &[&[u8]], alphabet: &[u8], mut read: impl FnMut(&[u8])) {
    let mut noise = Noise::new(7);
    for turn in 0..4_000 {
        let bytes = match samples.get(noise.below(samples.len() + 1)) {
            Some(sample) => noise.damaged(sample),
            None => noise.bytes(60, alphabet),
        };
        let tried = catch_unwind(AssertUnwindSafe(|| read(&bytes)));
        assert!(tried.is_ok(), "turn {turn}: {bytes:?}");
    }
}

/// Every byte.
pub(crate) fn all_bytes() -> Vec<u8> {
    (0..=255).collect()
}
