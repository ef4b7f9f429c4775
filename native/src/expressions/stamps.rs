//! Dates and timestamps: calendar fields, truncation, month arithmetic.
//!
//! Days and microseconds since 2000-01-01; infinities pass through. Year 0 is 1 BC inside.

use super::operands::{rows_of, Each};
use crate::calendar::{date_of, days_of, month_length};
use crate::values::times::DAY_US;

const FIRST_STAMP: i64 = -211_813_488_000_000_000;
const END_STAMP: i64 = 9_223_371_331_200_000_000;
const FIRST_DAY: i64 = -2_451_545;
const END_DAY: i64 = 2_145_031_949;
/// The last day of a timestamp before its time is added, and the first one that is too late after.
const LAST_STAMP_DAY: i64 = 106_751_990;
const END_STAMP_DAY: i64 = 106_751_983;
const YEARS: std::ops::RangeInclusive<i64> = -4713..=5_874_897;

/// A field of the calendar. The numbers are those that Python passes.
#[derive(Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Field {
    Year,
    Month,
    Day,
    Quarter,
    Dow,
    Isodow,
    Doy,
    Week,
    Isoyear,
    Decade,
    Century,
    Millennium,
}

impl Field {
    /// All fields with their names, in the order of their numbers.
    pub const ALL: [(&'static str, Field); 12] = [
        ("YEAR", Field::Year),
        ("MONTH", Field::Month),
        ("DAY", Field::Day),
        ("QUARTER", Field::Quarter),
        ("DOW", Field::Dow),
        ("ISODOW", Field::Isodow),
        ("DOY", Field::Doy),
        ("WEEK", Field::Week),
        ("ISOYEAR", Field::Isoyear),
        ("DECADE", Field::Decade),
        ("CENTURY", Field::Century),
        ("MILLENNIUM", Field::Millennium),
    ];
}

#[inline]
fn is_infinite(stamp: i64) -> bool {
    stamp == i64::MIN || stamp == i64::MAX
}

/// A day moved by months, clamped to the length of the month.
#[inline]
fn add_months(day: i64, months: i64) -> i64 {
    let (year, month, of_month) = date_of(day);
    let total = year * 12 + month - 1 + months;
    let (year, month) = (total.div_euclid(12), total.rem_euclid(12) + 1);
    days_of(year, month, of_month.min(month_length(year, month)))
}

/// Intervals: months, days and microseconds.
pub struct Spans<'a> {
    /// Months of each, or of all.
    pub months: Each<'a, i64>,
    /// Days.
    pub days: Each<'a, i64>,
    /// Microseconds.
    pub micros: Each<'a, i64>,
}

/// A timestamp plus an interval, and whether it is out of range.
#[inline]
fn shift_one(stamp: i64, months: i64, days: i64, micros: i64) -> (i64, bool) {
    if is_infinite(stamp) {
        return (stamp, false);
    }
    let mut day = stamp.div_euclid(DAY_US);
    let clock = stamp.rem_euclid(DAY_US) + micros.rem_euclid(DAY_US);
    if months != 0 {
        day = add_months(day, months);
    }
    day = day.wrapping_add(days);
    if !(FIRST_DAY..=LAST_STAMP_DAY).contains(&day) {
        return (0, true);
    }
    day += micros.div_euclid(DAY_US) + clock / DAY_US;
    if !(FIRST_DAY..END_STAMP_DAY).contains(&day) {
        return (0, true);
    }
    let found = day * DAY_US + clock % DAY_US;
    (found, !(FIRST_STAMP..END_STAMP).contains(&found))
}

/// Timestamps plus intervals (one or n of either): (sums, which are out of range).
pub fn shift(stamps: Each<'_, i64>, spans: &Spans<'_>) -> (Vec<i64>, Vec<bool>) {
    let each = (0..rows_of(stamps.len(), spans.months.len())).map(|i| {
        let (months, days) = (spans.months.get(i), spans.days.get(i));
        shift_one(stamps.get(i), months, days, spans.micros.get(i))
    });
    each.unzip()
}

/// The day of a date whose negative years are BC, and whether there is no such date.
#[inline]
fn make_day(year: i64, month: i64, day: i64) -> (i64, bool) {
    let year = if year < 0 { year + 1 } else { year };
    let is_date = (1..=12).contains(&month) && (1..=month_length(year, month)).contains(&day);
    if !is_date || !YEARS.contains(&year) {
        return (0, true);
    }
    let found = days_of(year, month, day);
    (found, !(FIRST_DAY..END_DAY).contains(&found))
}

/// Days of year, month, day (a negative year is BC): (days, where there is no such date).
pub fn make_days(years: &[i64], months: &[i64], days: &[i64]) -> (Vec<i64>, Vec<bool>) {
    let rows = years.iter().zip(months.iter().zip(days));
    let each = rows.map(|(&year, (&month, &day))| match year {
        0 => (0, true),
        _ => make_day(year, month, day),
    });
    each.unzip()
}

/// The Monday of a day's week.
#[inline]
fn week_start(day: i64) -> i64 {
    day.wrapping_sub(day.wrapping_add(5).rem_euclid(7))
}

/// A year as it is shown, where there is no year 0.
#[inline]
fn shown(year: i64) -> i64 {
    if year > 0 {
        year
    } else {
        year - 1
    }
}

#[inline]
fn field(day: i64, which: Field) -> i64 {
    match which {
        Field::Dow => return day.wrapping_add(6).rem_euclid(7),
        Field::Isodow => return day.wrapping_add(5).rem_euclid(7) + 1,
        Field::Week | Field::Isoyear => {
            let thursday = week_start(day).wrapping_add(3);
            let (year, _, _) = date_of(thursday);
            if which == Field::Isoyear {
                return shown(year);
            }
            return thursday.wrapping_sub(days_of(year, 1, 1)) / 7 + 1;
        }
        _ => {}
    }
    let (year, month, of_month) = date_of(day);
    let size = match which {
        Field::Month => return month,
        Field::Day => return of_month,
        Field::Quarter => return (month - 1) / 3 + 1,
        Field::Doy => return day.wrapping_sub(days_of(year, 1, 1)) + 1,
        Field::Decade => return year.div_euclid(10),
        Field::Century => 100,
        Field::Millennium => 1000,
        _ => return shown(year),
    };
    if year > 0 {
        (year + size - 1) / size
    } else {
        -((size - year) / size)
    }
}

/// A field of the calendar of days that are not infinite.
pub fn fields(days: &[i64], which: Field) -> Vec<i64> {
    days.iter().map(|day| field(*day, which)).collect()
}

/// Timestamps cut to year, quarter, month, week or day; infinities stay.
pub fn truncate(stamps: &[i64], which: Field) -> Vec<i64> {
    let each = stamps.iter().map(|&stamp| {
        if is_infinite(stamp) {
            return stamp;
        }
        let day = stamp.div_euclid(DAY_US);
        let day = match which {
            Field::Day => day,
            Field::Week => week_start(day),
            _ => {
                let (year, month, _) = date_of(day);
                let month = match which {
                    Field::Year => 1,
                    Field::Quarter => (month - 1) / 3 * 3 + 1,
                    _ => month,
                };
                days_of(year, month, 1)
            }
        };
        day.wrapping_mul(DAY_US)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_clamped_to_its_length() {
        let day = days_of(2024, 1, 31);
        assert_eq!(add_months(day, 1), days_of(2024, 2, 29));
        assert_eq!(add_months(day, -11), days_of(2023, 2, 28));
    }

    #[test]
    fn there_is_no_year_zero() {
        assert_eq!(make_days(&[0, -1], &[1, 2], &[1, 29]).1, [true, false]);
        assert_eq!(field(days_of(0, 1, 1), Field::Year), -1);
        assert_eq!(field(days_of(0, 1, 1), Field::Century), -1);
        assert_eq!(field(days_of(2000, 1, 1), Field::Century), 20);
        assert_eq!(field(days_of(2021, 1, 3), Field::Isoyear), 2020);
    }

    #[test]
    fn a_stamp_does_not_leave_its_range() {
        assert_eq!(shift_one(END_STAMP - 1, 0, 0, 1), (0, true));
        assert_eq!(shift_one(FIRST_STAMP, 0, 0, -1), (0, true));
        assert_eq!(shift_one(END_STAMP - 2, 0, 0, 1), (END_STAMP - 1, false));
        assert_eq!(shift_one(i64::MAX, 1, 1, 1), (i64::MAX, false));
        assert_eq!(shift_one(-1, 0, 1, -1), (DAY_US - 2, false));
    }
}
