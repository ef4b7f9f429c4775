//! Sums and averages of floats over frames.
//!
//! As in PostgreSQL, they go from the first row of a frame to its last, in double (or single)
//! precision.

use crate::memory::Rows;

/// How floats are added up.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Sums.
    Sum,
    /// Sums in single precision.
    SingleSum,
    /// Averages, which overflow as in float8_accum, squares included.
    Average,
}

/// What is known of the rows so far.
#[derive(Clone, Copy, Default)]
struct State {
    total: f64,
    squares: f64,
    count: f64,
    is_bad: bool,
}

impl State {
    #[inline]
    fn add(&mut self, value: f64, kind: Kind) {
        let before = self.total;
        self.count += 1.0;
        if kind != Kind::Average {
            if self.count == 1.0 {
                self.total = value;
                return;
            }
            self.total = before + value;
            if kind == Kind::SingleSum {
                self.total = f64::from(self.total as f32);
            }
            self.is_bad |=
                self.total.is_infinite() && !before.is_infinite() && !value.is_infinite();
            return;
        }
        self.total = before + value;
        if self.count > 1.0 {
            let apart = value * self.count - self.total;
            self.squares += apart * apart / (self.count * (self.count - 1.0));
            if self.total.is_infinite() || self.squares.is_infinite() {
                self.is_bad |= !before.is_infinite() && !value.is_infinite();
                self.squares = f64::NAN;
            }
        } else if !value.is_finite() {
            self.squares = f64::NAN;
        }
    }
}

/// The frames of rows: row i has the pieces from low[piece][i] to high[piece][i].
#[derive(Clone, Copy)]
pub struct Frames<'a> {
    /// Where pieces begin.
    pub low: Rows<'a, i64>,
    /// Where they end.
    pub high: Rows<'a, i64>,
}

/// (sums or averages, counts of valid rows, whether it overflowed) of each frame.
///
/// The sum of a frame is extended while the frame only grows, and restarted when it loses rows.
pub fn sum_frames(
    values: &[f64],
    valid: &[bool],
    frames: Frames<'_>,
    kind: Kind,
) -> (Vec<f64>, Vec<i64>, Vec<bool>) {
    let n = frames.low.width();
    let (mut sums, mut counts, mut failed) = (vec![0.0; n], vec![0; n], vec![false; n]);
    let mut state = State::default();
    let add = |state: &mut State, start: i64, stop: i64| {
        if start < stop {
            let rows = start as usize..stop as usize;
            for (value, _) in values[rows.clone()].iter().zip(&valid[rows]).filter(|row| *row.1) {
                state.add(*value, kind);
            }
        }
    };
    let pieces = frames.low.len();
    let (mut begin, mut end) = (-1, -1);
    for i in 0..n {
        let (low, high) = (frames.low.row(0)[i], frames.high.row(0)[i]);
        if pieces == 1 && low == begin && high >= end {
            add(&mut state, end, high);
        } else {
            state = State::default();
            for piece in 0..pieces {
                add(&mut state, frames.low.row(piece)[i], frames.high.row(piece)[i]);
            }
        }
        (begin, end) = (low, high);
        sums[i] = match kind {
            Kind::Average if state.count > 0.0 => state.total / state.count,
            Kind::Average => 0.0,
            _ => state.total,
        };
        (counts[i], failed[i]) = (state.count as i64, state.is_bad);
    }
    (sums, counts, failed)
}

/// Sums of floats from each sequence's origin on, resumed from its base.
///
/// origin: of each row the first row of its sequence that counts. base: four rows, at that row
/// total, squares, count and 1 for an overflow before it. Returns the same after each row.
pub fn running_floats(
    values: &[f64],
    valid: &[bool],
    origin: &[i64],
    base: Rows<'_, f64>,
    kind: Kind,
) -> Vec<f64> {
    let n = values.len();
    let mut out = vec![0.0; 4 * n];
    let (totals, rest) = out.split_at_mut(n);
    let (squares, rest) = rest.split_at_mut(n);
    let (counts, marks) = rest.split_at_mut(n);
    let mut state = State::default();
    for (i, (&value, (&is_valid, &origin))) in
        values.iter().zip(valid.iter().zip(origin)).enumerate()
    {
        let row = i as i64;
        if row < origin {
            continue;
        }
        if row == origin {
            state = State {
                total: base.row(0)[i],
                squares: base.row(1)[i],
                count: base.row(2)[i],
                is_bad: base.row(3)[i] != 0.0,
            };
        }
        if is_valid {
            state.add(value, kind);
        }
        (totals[i], squares[i], counts[i]) = (state.total, state.squares, state.count);
        marks[i] = f64::from(u8::from(state.is_bad));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(values: &[f64], low: &[i64], high: &[i64], kind: Kind) -> (Vec<f64>, Vec<bool>) {
        let frames = Frames { low: Rows::new(low, low.len()), high: Rows::new(high, low.len()) };
        let (sums, _, failed) = sum_frames(values, &vec![true; values.len()], frames, kind);
        (sums, failed)
    }

    #[test]
    fn a_frame_that_loses_rows_is_summed_again() {
        let found = sums(&[1e300, 1.0, 2.0], &[0, 0, 1], &[1, 2, 3], Kind::Sum);
        assert_eq!(found.0, [1e300, 1e300, 3.0]);
    }

    #[test]
    fn an_overflow_is_told_unless_a_value_is_infinite() {
        assert_eq!(sums(&[f64::MAX, f64::MAX], &[0], &[2], Kind::Sum).1, [true]);
        assert_eq!(sums(&[f64::INFINITY, f64::MAX], &[0], &[2], Kind::Sum).1, [false]);
        assert_eq!(sums(&[1e200, -1e200], &[0], &[2], Kind::Average).1, [true]);
    }
}
