//! Any text as a topic, pattern or group: no panic, and a topic that parses is matched by itself and by `**`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use promethean_event::{EventId, Group, Selector, Topic, TopicPattern};

fuzz_target!(|input: (&str, &str)| {
    let (first, second) = input;
    let _ = (Group::parse(first), EventId::parse(first), Selector::parse(first));
    let pattern = TopicPattern::parse(first);
    if let Ok(topic) = Topic::parse(second) {
        assert!(TopicPattern::parse(second).expect("a topic is a pattern").covers(&topic));
        assert!(TopicPattern::parse("**").expect("a pattern").covers(&topic));
        if let Ok(pattern) = pattern {
            let matches = pattern.matches(&topic);
            assert!(!matches || pattern.covers(&topic), "what matches is covered");
        }
    }
});
