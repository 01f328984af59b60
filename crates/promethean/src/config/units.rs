//! Sizes and durations as people write them: `16MiB`, `100ms`, `3d`.

use std::time::Duration;

/// `512`, `64KiB`, `16 MiB`, `1GiB`; `KB` and the like count in thousands.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("{text:?} is no size; write 1048576, 1024KiB or 1MiB")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no size; write 1048576, 1024KiB or 1MiB"))?;
    number.checked_mul(scale).ok_or_else(|| format!("{text:?} is too large"))
}

/// `100ms`, `5s`, `10m`, `12h`, `3d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let wrong = || format!("{text:?} is no duration; write 100ms, 5s, 10m, 12h or 3d");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => return Err(wrong()),
    }
    .ok_or_else(|| format!("{text:?} is too long"))
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, expected) in
            [("0", 0), ("512", 512), ("1KiB", 1024), ("16 MiB", 16 << 20), ("2g", 2 << 30), ("3MB", 3_000_000)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "MiB", "1.5MiB", "-1", "1XB", "99999999999TiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [("100ms", 100), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000), ("3d", 259_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "5", "s", "1.5s", "-1s", "1w", "99999999999999999999d", "18446744073709551615d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
