//! Dates of the proleptic Gregorian calendar: year 1 BC is year 0.

/// Days from 0000-03-01 to 2000-01-01.
const EPOCH_DAYS: i64 = 730_425;

/// Days since 2000-01-01 of a date.
#[inline]
pub(crate) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let of_era = y - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS
}

/// Days of a month.
#[inline]
pub(crate) fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_follow_each_other() {
        let mut days = days_of(-401, 1, 1);
        for year in -401..=2401 {
            for month in 1..=12 {
                for day in 1..=month_days(year, month) {
                    assert_eq!(days_of(year, month, day), days, "{year}-{month}-{day}");
                    days += 1;
                }
            }
        }
        assert_eq!(days_of(2000, 1, 1), 0);
    }
}
