//! Events on standard output: a line for people, or a line of JSON.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use promethean_client::Received;
use promethean_event::json;

use crate::exit::Failure;

/// One event as a line.
pub(super) fn event(out: &mut impl Write, event: &Received, raw: &str, as_json: bool) -> Result<(), Failure> {
    written(out.write_all(&line(event, raw, as_json)).and_then(|()| out.flush()))
}

/// Returns an event as a line.
pub(super) fn line(event: &Received, raw: &str, as_json: bool) -> Vec<u8> {
    let mut line = Vec::new();
    if as_json {
        json::write_line(&mut line, raw.as_bytes());
    } else {
        let key = event.key.as_deref().map_or_else(String::new, |key| format!(" [{key}]"));
        let key = super::out::plain(&key);
        let _ = write!(line, "{} {}#{}{key} ", time(event.ts.0), event.topic, event.seq);
        json::write_line(&mut line, harmless(event.payload.get()).as_bytes());
    }
    line.push(b'\n');
    line
}

/// A payload without the control characters that JSON lets stand in a string as they are (DEL, and those of 0x80 to 0x9f,
/// some of which drive a terminal): written as JSON's escapes they mean the same.
fn harmless(payload: &str) -> Cow<'_, str> {
    let drives = |c: char| c.is_control() && !c.is_ascii_whitespace();
    if !payload.contains(drives) {
        return Cow::Borrowed(payload);
    }
    let mut text = String::with_capacity(payload.len() + 16);
    for c in payload.chars() {
        if drives(c) {
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    Cow::Owned(text)
}

/// The result of a write of a command that does nothing but show: a reader that went away (`| head`) is its end.
pub(super) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(|error| Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// Epoch milliseconds as UTC: `2026-01-31T12:00:00.000Z`.
pub(super) fn time(millis: u64) -> String {
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // Howard Hinnant's civil_from_days, for days since 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    let (seconds, millis) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        for (millis, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_731_650_000_123, "2024-11-15T05:53:20.123Z"),
            (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(time(millis), shown);
        }
    }

    #[test]
    fn a_payload_does_not_drive_the_terminal_and_means_the_same() {
        let payload = "{\t\"a\": \"\u{9b}31m \u{7f} \u{e9}\"}";
        let shown = harmless(payload);
        assert_eq!(shown, "{\t\"a\": \"\\u009b31m \\u007f \u{e9}\"}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&shown), value(payload));
        let raw = r#"{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":3,"ts":0,"topic":"a","payload":PAYLOAD}"#;
        let raw = raw.replace("PAYLOAD", payload);
        let received = serde_json::from_str(&raw).expect("an event");
        let mut out = Vec::new();
        event(&mut out, &received, &raw, false).expect("written");
        let text = String::from_utf8(out).expect("text");
        assert!(!text.contains(['\u{9b}', '\u{7f}']), "{text:?}");
    }

    #[test]
    fn an_event_is_one_line_whatever_its_payload() {
        let raw = "{\"id\":\"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d\",\"seq\":3,\"ts\":0,\"topic\":\"a\",\"key\":\"k\",\"payload\":[1,\n2]}";
        let received = serde_json::from_str(raw).expect("an event");
        let mut out = Vec::new();
        event(&mut out, &received, raw, false).expect("written");
        event(&mut out, &received, raw, true).expect("written");
        let expected = format!("1970-01-01T00:00:00.000Z a#3 [k] [1,2]\n{}\n", raw.replace('\n', ""));
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }
}
