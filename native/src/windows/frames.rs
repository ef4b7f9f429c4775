//! Rows of frames: their bounds by value, the best of them, and tiles.

/// Where a row's own value plus a distance lies among the rows from first to last, in the order of
/// their values: the first row not below it or, not `is_low`, after the last row not above it.
pub fn range_ends(
    values: &[i64],
    first: &[i64],
    last: &[i64],
    distance: i64,
    is_low: bool,
) -> Vec<i64> {
    let bounds = first.iter().zip(last);
    let each = values.iter().zip(bounds).map(|(&value, (&first, &last))| {
        // A sum beyond any value is after, or before, all rows.
        let Some(target) = value.checked_add(distance) else {
            return if distance > 0 { last } else { first };
        };
        if first >= last {
            return first;
        }
        let rows = &values[first as usize..last as usize];
        let is_before = |value: &i64| *value < target || (!is_low && *value == target);
        first + rows.partition_point(is_before) as i64
    });
    each.collect()
}

/// The position of the greatest rank in each range from low to high, the last of equal ones; -1
/// where no row is valid. Neither bound decreases.
pub fn best_rows(positions: &[i64], valid: &[bool], low: &[i64], high: &[i64]) -> Vec<i64> {
    // Rows that may be the best of a range from waiting[front] on; their ranks decrease.
    let mut waiting: Vec<i64> = Vec::new();
    let (mut front, mut next_row) = (0, 0);
    let each = low.iter().zip(high).map(|(&low, &high)| {
        next_row = next_row.max(low);
        while next_row < high {
            let row = next_row as usize;
            if valid[row] {
                let rank = positions[row];
                while waiting.len() > front
                    && positions[waiting[waiting.len() - 1] as usize] <= rank
                {
                    waiting.pop();
                }
                waiting.push(next_row);
            }
            next_row += 1;
        }
        while waiting.get(front).is_some_and(|row| *row < low) {
            front += 1;
        }
        waiting.get(front).copied().filter(|row| *row < high).unwrap_or(-1)
    });
    each.collect()
}

/// (ntile numbers, 0 for NULL; rows of a bucket count below 1).
///
/// As window_ntile (windowfuncs.c): the first count that is not NULL is the partition's.
pub fn tiles(begin: &[i64], end: &[i64], buckets: &[i64], valid: &[bool]) -> (Vec<i64>, Vec<bool>) {
    let n = begin.len();
    let (mut out, mut failed) = (vec![0; n], vec![false; n]);
    let (mut tile, mut in_tile, mut size, mut larger, mut is_bad) = (0, 0, 0, 0, false);
    for i in 0..n {
        if begin[i] == i as i64 {
            (tile, is_bad) = (0, false);
        }
        if tile == 0 {
            if !valid[i] {
                continue;
            }
            is_bad |= buckets[i] <= 0;
            if is_bad {
                failed[i] = true;
                continue;
            }
            let total = end[i] - begin[i];
            (tile, in_tile, larger) = (1, 0, 0);
            size = total / buckets[i];
            if size <= 0 {
                size = 1;
            } else {
                larger = total % buckets[i];
                size += i64::from(larger != 0);
            }
        }
        in_tile += 1;
        if size < in_tile {
            if larger != 0 && tile == larger {
                larger = 0;
                size -= 1;
            }
            tile += 1;
            in_tile = 1;
        }
        out[i] = tile;
    }
    (out, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_beyond_any_value_is_at_the_end() {
        let values = [i64::MIN, 0, i64::MAX];
        assert_eq!(range_ends(&values, &[0; 3], &[3; 3], 1, false), [1, 2, 3]);
        assert_eq!(range_ends(&values, &[0; 3], &[3; 3], -1, true), [0, 1, 2]);
    }

    #[test]
    fn the_last_of_equal_rows_is_the_best() {
        let found = best_rows(&[1, 2, 2, 0], &[true, true, true, false], &[0, 1, 3], &[2, 3, 4]);
        assert_eq!(found, [1, 2, -1]);
    }
}
