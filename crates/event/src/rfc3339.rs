//! Times as people and CloudEvents write them, `2026-11-15T12:00:00.25+01:00`.

use crate::Millis;

/// The time; `None`: it is none, or lies before 1970.
pub fn parse(text: &str) -> Option<Millis> {
    let (date, rest) = text.split_at_checked(10)?;
    let (year, month, day) = (number(date.get(..4)?)?, number(date.get(5..7)?)?, number(date.get(8..)?)?);
    let time = rest.strip_prefix(['T', 't', ' '])?;
    let (clock, rest) = time.split_at_checked(8)?;
    let (hour, minute, second) = (number(clock.get(..2)?)?, number(clock.get(3..5)?)?, number(clock.get(6..)?)?);
    let separators = (date.as_bytes()[4], date.as_bytes()[7], clock.as_bytes()[2], clock.as_bytes()[5]);
    if separators != (b'-', b'-', b':', b':')
        || !(1..=12).contains(&month)
        || !(1..=days_in(year, month)).contains(&day)
    {
        return None;
    }
    // 60: a leap second, which counts as the one after it.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (millis, zone) = fraction(rest)?;
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset(zone)?;
    u64::try_from(seconds * 1_000 + millis).ok().map(Millis)
}

fn number(digits: &str) -> Option<i64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// The milliseconds of `.123456`, and what comes after it.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(text) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let three: String = digits.chars().chain("00".chars()).take(3).collect();
    Some((number(&three)?, rest))
}

/// How many seconds `+01:00` is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last of them.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let year = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year * 365 + year / 4 - year / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_fractions_and_offsets() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2018-04-05T17:31:00Z", 1_522_949_460_000),
            ("2024-02-29T23:59:59.999Z", 1_709_251_199_999),
            ("2024-02-29t23:59:59.9z", 1_709_251_199_900),
            ("2026-11-15T13:00:00.123456789+01:00", 1_794_744_000_123),
            ("2026-11-15T06:30:00-05:30", 1_794_744_000_000),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000),
            ("2000-03-01T00:00:00Z", 951_868_800_000),
        ] {
            assert_eq!(parse(text), Some(Millis(expected)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2018",
            "2018-04-05",
            "2018-04-05T17:31:00",
            "2018-13-05T17:31:00Z",
            "2023-02-29T00:00:00Z",
            "2018-04-05T24:00:00Z",
            "2018-04-05T17:31:00.Z",
            "2018-04-05T17:31:00+1:00",
            "1969-12-31T23:59:59Z",
            "2018/04/05T17:31:00Z",
            "2018-04-05T17:31:0éZ",
            "é018-04-05T17:31:00Z",
            "2018-04-05T17:31:00Zz",
            "-018-04-05T17:31:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
