//! Any text as a client's frame: no panic, a refusal keeps `corr`, and a payload's bytes are the frame's own.
#![no_main]

use libfuzzer_sys::fuzz_target;
use promethean_event::frame::{Answer, Item, Request, decode};

fuzz_target!(|text: &str| {
    let frame = decode(text);
    if let Some(corr) = &frame.corr {
        let corr = std::str::from_utf8(corr.as_bytes()).expect("a part of the text");
        assert!(text.contains(corr));
    }
    match frame.request {
        Ok(Request::Publish(publish)) => {
            let payloads = match &publish.events {
                Item::One { payload, .. } => vec![*payload],
                Item::Batch(items) => items.iter().map(|(payload, _)| *payload).collect(),
            };
            for payload in payloads {
                assert!(text.contains(payload.get()));
            }
        }
        Ok(Request::Subscribe(subscribe)) => subscribe.options.check().expect("only valid options come out"),
        Ok(_) => {}
        Err(refused) => assert!(!refused.field.is_empty() && !refused.message.is_empty()),
    }
    // The client's side reads whatever a peer sends, too.
    let _ = Answer::parse(text);
});
