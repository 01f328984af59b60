//! The few JSON operations that the hot path needs beyond `serde_json`: depth, strings, single lines.

use serde_json::value::RawValue;

use crate::limits;

/// Appends `text` as a JSON string, quotes included.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // The slow way is rare: keys and tags are plain text nearly always.
        out.extend_from_slice(serde_json::to_string(text).unwrap_or_default().as_bytes());
    }
}

/// Appends `number` in decimal.
#[inline]
pub fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// True if `json` nests deeper than the contract allows. `json` need not be valid.
///
/// `serde_json` skips raw values without recursion and so without a limit of its own.
pub fn too_deep(json: &[u8]) -> bool {
    deeper_than(json, limits::MAX_DEPTH)
}

/// True if a payload nests deeper than the contract allows on this topic.
pub fn too_deep_on(topic: &str, payload: &str) -> bool {
    too_deep(payload.as_bytes())
        && deeper_than(payload.as_bytes(), limits::MAX_DEPTH + limits::Around::of(topic).levels)
}

/// True if `json` nests deeper than `levels`.
pub(crate) fn deeper_than(json: &[u8], levels: usize) -> bool {
    json.len() > 2 * levels && opening(json) > levels && depth(json) > levels
}

/// How many brackets open, in strings too. Counted in bytes, a short run at a time: that way the compiler compares
/// sixteen at once, and this pass over every frame costs next to nothing.
fn opening(json: &[u8]) -> usize {
    // One bit is all that `[` and `{` differ in.
    let opens = |byte: &u8| u8::from(byte | 0x20 == b'{');
    json.chunks(255).map(|run| usize::from(run.iter().map(opens).sum::<u8>())).sum()
}

fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// One JSON value: the text without the white space around it, or what is wrong with it.
///
/// # Errors
/// The parser's words, or that it nests too deep.
pub fn value(text: &str) -> Result<&RawValue, String> {
    value_on("", text)
}

/// As [`value`], for a payload on this topic: what a hub has put around another event there may nest deeper.
///
/// # Errors
/// As of [`value`].
pub fn value_on<'a>(topic: &str, text: &'a str) -> Result<&'a RawValue, String> {
    if too_deep_on(topic, text) {
        return Err(format!("nests deeper than {} levels", limits::MAX_DEPTH));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Appends `json` (valid) without its line breaks, for formats of one value a line.
///
/// Valid JSON has raw line breaks only in the white space between tokens, so this changes no value.
pub fn write_line(out: &mut Vec<u8>, json: &[u8]) {
    out.extend(json.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nesting_is_counted_outside_strings_only() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(!too_deep(nested(128).as_bytes()));
        assert!(too_deep(nested(129).as_bytes()));
        assert!(!too_deep(format!("{:?}", "[".repeat(1_000)).as_bytes()));
        assert!(!too_deep(format!("[{}]", vec!["[]"; 1_000].join(",")).as_bytes()));
        assert!(value(&nested(10_000)).is_err());
    }

    proptest! {
        #[test]
        fn brackets_are_counted_whatever_stands_beside_them(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let naive = bytes.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
            prop_assert_eq!(opening(&bytes), naive);
            prop_assert_eq!(opening(&vec![b'['; bytes.len()]), bytes.len());
        }

        #[test]
        fn a_written_string_reads_back_the_same(text in any::<String>()) {
            let mut out = Vec::new();
            write_string(&mut out, &text);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).expect("valid JSON"), text);
        }
    }
}
