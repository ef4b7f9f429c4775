//! The workloads W1 and W2R of bench/workloads.py through the `dbsp` crate.
//!
//! `tidemark-bench-dbsp JOB`: JOB is JSON, a `Job`; prints one line of JSON, `Figures`. One worker;
//! the state is in memory, nothing is durable; an epoch is one transaction. bench/peers/dbsp.py
//! starts it and compares the answer.

mod meter;
mod rows;
mod tables;
mod views;

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use dbsp::{DBSPHandle, Runtime, ZWeight};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::meter::{Meter, Timed, peak_mb, reset_peak};
use crate::tables::Source;
use crate::views::{View, w1, w2r};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WORKERS: usize = 1;
const LOAD_ROWS: usize = 65_536;

/// One run. folder: of the generated rows. words: of each text column, what its numbers stand for.
/// has_old_rows: updates and deletes arrive with whole old rows; else by key. stages: executed in
/// order.
#[derive(Deserialize)]
struct Job {
    workload: String,
    folder: PathBuf,
    words: HashMap<String, Vec<String>>,
    has_old_rows: bool,
    stages: Vec<Stage>,
}

/// `count` epochs of `size` changes each, or as many as the changes allow.
#[derive(Deserialize)]
struct Stage {
    size: usize,
    count: Option<usize>,
}

/// The result of a run. answer: the view's last state, rows with weights.
#[derive(Serialize)]
struct Figures {
    load_rows: usize,
    load_s: f64,
    load_cpu_s: f64,
    stages: Vec<Timed>,
    peak_rss_mb: f64,
    answer: Vec<(Value, ZWeight)>,
}

fn main() -> Result<()> {
    let text = std::env::args().nth(1).context("usage: tidemark-bench-dbsp JOB")?;
    let Job { workload, folder, words, has_old_rows, stages } = serde_json::from_str(&text)?;
    let make = match workload.as_str() {
        "w1" => w1,
        "w2r" => w2r,
        other => bail!("no such workload: {other}"),
    };
    let source = Source { folder, words, has_old_rows };
    reset_peak()?;
    let (circuit, view) = Runtime::init_circuit(WORKERS, move |circuit| make(circuit, &source))?;
    let mut run = Run { circuit, view, answer: HashMap::new() };
    let load = run.load()?;
    let mut number = 0;
    let stages = stages.iter().map(|stage| run.stage(stage, &mut number)).collect::<Result<_>>()?;
    let figures = Figures {
        load_rows: load.changes,
        load_s: load.wall_s,
        load_cpu_s: load.cpu_s,
        stages,
        peak_rss_mb: peak_mb()?,
        answer: run.answer.into_iter().collect(),
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// A circuit, its view, and the view's state so far.
struct Run {
    circuit: DBSPHandle,
    view: View,
    answer: HashMap<Value, ZWeight>,
}

impl Run {
    /// Load the initial rows, one table after another.
    fn load(&mut self) -> Result<Timed> {
        let (mut meter, mut rows) = (Meter::start(), 0);
        for table in 0..self.view.tables.len() {
            loop {
                let count = self.view.tables[table].read_load(LOAD_ROWS)?;
                if count == 0 {
                    break;
                }
                rows += count;
                self.step(&mut meter)?;
            }
        }
        Ok(meter.timed(LOAD_ROWS, rows))
    }

    /// Step through the epochs of a stage; `number` is that of the next change.
    fn stage(&mut self, stage: &Stage, number: &mut i64) -> Result<Timed> {
        let (mut meter, mut changes) = (Meter::start(), 0);
        while stage.count.is_none_or(|count| meter.parts() < count) {
            *number += stage.size as i64;
            let mut count = 0;
            for table in &mut self.view.tables {
                count += table.read_changes(*number)?;
            }
            if count == 0 {
                break;
            }
            changes += count;
            self.step(&mut meter)?;
        }
        Ok(meter.timed(stage.size, changes))
    }

    /// One epoch, timed from handing over its rows until its output is there.
    fn step(&mut self, meter: &mut Meter) -> Result<()> {
        meter.time(|| {
            for table in &mut self.view.tables {
                table.push();
            }
            self.circuit.transaction()
        })?;
        for (row, weight) in (self.view.output)() {
            *self.answer.entry(row).or_default() += weight;
        }
        self.answer.retain(|_, weight| *weight != 0);
        Ok(())
    }
}
