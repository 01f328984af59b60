//! Any bytes as a client's stream: no panic, bounded memory, and how it is cut into reads changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (cuts, stream) = input;
    let whole = promethean_gateway::fuzzing::messages(stream, &[]);
    assert_eq!(promethean_gateway::fuzzing::messages(stream, &cuts), whole);
});
