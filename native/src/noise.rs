//! Random and damaged bytes: what the functions that read foreign bytes are tried with. These loops
//! take the place of fuzz targets, since they are part of `cargo test`. They are the same in each
//! run and short, unless `TIDEMARK_TEST_FUZZ_S` says for how many seconds each goes on, from a seed that
//! is printed if it finds something, and that `TIDEMARK_TEST_FUZZ_SEED` takes.

use std::env;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TURNS: usize = 4_000;
const SEED: u64 = 7;

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

/// Call `read` with random bytes of an alphabet and with damaged samples, a few thousand times or
/// for as long as is asked for.
pub(crate) fn try_with(samples: &[&[u8]], alphabet: &[u8], mut read: impl FnMut(&[u8])) {
    let asked = number("TIDEMARK_TEST_FUZZ_S").map(Duration::from_secs);
    let seed =
        number("TIDEMARK_TEST_FUZZ_SEED").unwrap_or_else(|| asked.map_or(SEED, |_| of_now()));
    let turns = number("TIDEMARK_TEST_FUZZ_TURNS").map_or(TURNS, |turns| turns as usize);
    let begun = Instant::now();
    let mut noise = Noise::new(seed);
    let mut turn = 0;
    while asked.map_or(turn < turns, |limit| turn % 100 != 0 || begun.elapsed() < limit) {
        let bytes = match samples.get(noise.below(samples.len() + 1)) {
            Some(sample) => noise.damaged(sample),
            None => noise.bytes(60, alphabet),
        };
        let tried = catch_unwind(AssertUnwindSafe(|| read(&bytes)));
        assert!(tried.is_ok(), "seed {seed}, turn {turn}: {bytes:?}");
        turn += 1;
    }
}

/// A number in the environment, None without one. Panics where it is another text.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no whole number: {text}")))
}

/// A seed that no run before had.
fn of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_nanos() as u64
}

/// Every byte.
pub(crate) fn all_bytes() -> Vec<u8> {
    (0..=255).collect()
}
