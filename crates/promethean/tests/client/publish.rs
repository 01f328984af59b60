//! `promethean pub` with one event a line.

use super::Hub;

#[test]
fn ndjson_goes_out_in_frames_that_the_hub_takes() {
    // 5 MB of lines, each of which the hub takes: in one frame they would be closed with 1009, and sent again, for ever.
    let hub = Hub::start(&[("PROMETHEAN_MAX_FRAME_BYTES", "3MiB")]);
    let lines = format!("\"{}\"\n", "x".repeat(500_000)).repeat(10);
    let printed = hub.ok(&["pub", "a", "--ndjson", "--timeout", "30s"], &lines);
    let seqs: Vec<_> = printed.lines().map(|line| line.split(' ').nth(1).expect("a seq").to_owned()).collect();
    assert_eq!(seqs, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
}
