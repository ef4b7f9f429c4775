//! Dates of the proleptic Gregorian calendar: year 1 BC is year 0.

/// From 0000-03-01 to 2000-01-01.
const EPOCH_DAYS: i64 = 730_425;
const ERA_DAYS: i64 = 146_097;
const MONTH_DAYS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Days since 2000-01-01 of a date, year 0 being 1 BC.
#[inline]
pub(crate) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let y = year.wrapping_sub(i64::from(month <= 2));
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    let from_march = if month > 2 { month.wrapping_sub(3) } else { month.wrapping_add(9) };
    let of_year = from_march.wrapping_mul(153).wrapping_add(2).div_euclid(5).wrapping_add(day - 1);
    let of_era = of_era * 365 + of_era / 4 - of_era / 100;
    era.wrapping_mul(ERA_DAYS).wrapping_add(of_era).wrapping_add(of_year).wrapping_sub(EPOCH_DAYS)
}

/// (year, month, day) of days since 2000-01-01, year 0 being 1 BC.
#[inline]
pub(crate) fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days.wrapping_add(EPOCH_DAYS);
    let era = days.div_euclid(ERA_DAYS);
    let of_era = days.rem_euclid(ERA_DAYS) as u32;
    let y = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * y + y / 4 - y / 100);
    let m = (5 * of_year + 2) / 153;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = i64::from(y) + era * 400 + i64::from(month <= 2);
    (year, i64::from(month), i64::from(of_year - (153 * m + 2) / 5 + 1))
}

/// Days of a month from 1 to 12.
#[inline]
pub(crate) fn month_length(year: i64, month: i64) -> i64 {
    if month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) {
        return 29;
    }
    MONTH_DAYS[month as usize - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_follow_each_other() {
        let mut days = days_of(-401, 1, 1);
        for year in -401..=2401 {
            for month in 1..=12 {
                for day in 1..=month_length(year, month) {
                    assert_eq!(days_of(year, month, day), days, "{year}-{month}-{day}");
                    assert_eq!(date_of(days), (year, month, day));
                    days += 1;
                }
            }
        }
        assert_eq!(days_of(2000, 1, 1), 0);
    }
}
