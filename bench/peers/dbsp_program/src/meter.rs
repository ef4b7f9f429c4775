//! Wall and CPU time of timed parts, and peak memory.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

/// Parts of `size` changes each: their wall and CPU seconds, and percentiles of one part's time.
#[derive(Serialize)]
pub struct Timed {
    pub size: usize,
    pub changes: usize,
    pub wall_s: f64,
    pub cpu_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// Times parts of a run. The wall time is the parts' alone. The CPU time is that of all threads,
/// those included that merge batches in the background between two parts, without what this thread
/// takes there: it reads rows and makes tuples of them, which is the source's work.
pub struct Meter {
    seconds: Vec<f64>,
    process_cpu_s: f64,
    thread_cpu_s: f64,
    timed_cpu_s: f64,
}

impl Meter {
    pub fn start() -> Meter {
        Meter {
            seconds: Vec::new(),
            process_cpu_s: clock_s(libc::CLOCK_PROCESS_CPUTIME_ID),
            thread_cpu_s: clock_s(libc::CLOCK_THREAD_CPUTIME_ID),
            timed_cpu_s: 0.0,
        }
    }

    pub fn parts(&self) -> usize {
        self.seconds.len()
    }

    pub fn time<T>(&mut self, part: impl FnOnce() -> T) -> T {
        let cpu_s = clock_s(libc::CLOCK_THREAD_CPUTIME_ID);
        let started = Instant::now();
        let result = part();
        self.seconds.push(started.elapsed().as_secs_f64());
        self.timed_cpu_s += clock_s(libc::CLOCK_THREAD_CPUTIME_ID) - cpu_s;
        result
    }

    pub fn timed(mut self, size: usize, changes: usize) -> Timed {
        let process_s = clock_s(libc::CLOCK_PROCESS_CPUTIME_ID) - self.process_cpu_s;
        let thread_s = clock_s(libc::CLOCK_THREAD_CPUTIME_ID) - self.thread_cpu_s;
        self.seconds.sort_by(f64::total_cmp);
        Timed {
            size,
            changes,
            wall_s: self.seconds.iter().sum(),
            cpu_s: process_s - (thread_s - self.timed_cpu_s),
            p50_ms: percentile(&self.seconds, 0.5) * 1e3,
            p99_ms: percentile(&self.seconds, 0.99) * 1e3,
        }
    }
}

/// The percentile of ascending values, by nearest rank; 0 if there are none.
fn percentile(ordered: &[f64], share: f64) -> f64 {
    let rank = (share * ordered.len() as f64) as usize;
    ordered.get(rank.min(ordered.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn clock_s(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call, which writes nothing else.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Let this process's peak memory begin anew.
pub fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("/proc/self/clear_refs")
}

/// This process's peak memory so far, in MB.
pub fn peak_mb() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kb = line.split_whitespace().next().context("VmHWM is empty")?;
    Ok(kb.parse::<f64>()? / 1024.0)
}
