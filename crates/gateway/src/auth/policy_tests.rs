//! Policies by table, and by properties over random rules.

use proptest::prelude::*;

use super::*;

fn topic(text: &str) -> Topic {
    Topic::parse(text).expect("a topic")
}

fn group(text: &str) -> Group {
    Group::parse(text).expect("a group")
}

fn scopes(scopes: &[&str]) -> Policy {
    Policy::from_scopes(scopes).expect("scopes")
}

#[test]
fn scopes_allow_what_they_name_and_nothing_else() {
    let policy = scopes(&["publish:heartbeat.*", "subscribe:process.**"]);
    for (action, name, expected) in [
        (Action::Publish, "heartbeat.received", true),
        (Action::Publish, "heartbeat", false),
        (Action::Publish, "heartbeat.a.b", false),
        (Action::Publish, "process.state", false),
        (Action::Subscribe, "process", true),
        (Action::Subscribe, "process.state.x", true),
        (Action::Subscribe, "heartbeat.received", false),
        (Action::Admin, "process.state", false),
        (Action::Subscribe, "dlq.process.state", false),
        (Action::Subscribe, "process.snapshot", false),
    ] {
        assert_eq!(policy.allows(action, &topic(name), None), expected, "{action} {name}");
    }
}

#[test]
fn a_scope_without_a_pattern_is_every_ordinary_topic() {
    let policy = scopes(&["publish"]);
    assert!(policy.allows(Action::Publish, &topic("any.thing"), None));
    assert!(!policy.allows(Action::Publish, &topic("dlq.any"), None));
    assert!(!policy.allows(Action::Subscribe, &topic("any.thing"), None));
}

#[test]
fn a_star_scope_is_every_action() {
    let policy = scopes(&["*:**"]);
    for action in [Action::Publish, Action::Subscribe, Action::Admin] {
        assert!(policy.allows(action, &topic("a.b"), None));
    }
}

#[test]
fn no_scopes_allow_nothing_and_wide_open_allows_all() {
    for name in ["a", "dlq.a", "a.snapshot"] {
        for action in [Action::Publish, Action::Subscribe, Action::Admin] {
            assert!(!scopes(&[]).allows(action, &topic(name), None));
            assert!(!Policy::nothing().allows(action, &topic(name), None));
            assert!(Policy::wide_open().allows(action, &topic(name), None));
        }
    }
}

#[test]
fn the_first_matching_rule_decides() {
    let deny_first = Policy::parse(
        r#"{"rules":[{"effect":"deny","action":"*","topics":["a.secret"]},
                     {"effect":"allow","action":"*","topics":["a.**"]}]}"#,
    )
    .expect("a policy");
    assert!(!deny_first.allows(Action::Publish, &topic("a.secret"), None));
    assert!(deny_first.allows(Action::Publish, &topic("a.open"), None));
    let allow_first = Policy::parse(
        r#"{"rules":[{"effect":"allow","action":"publish","topics":["a.**"]},
                     {"effect":"deny","action":"*","topics":["a.secret"]}]}"#,
    )
    .expect("a policy");
    assert!(allow_first.allows(Action::Publish, &topic("a.secret"), None));
    assert!(!allow_first.allows(Action::Subscribe, &topic("a.secret"), None));
}

#[test]
fn a_deny_reaches_dead_letters_and_snapshots_that_an_allow_does_not() {
    let policy = Policy::parse(
        r#"{"rules":[{"effect":"deny","action":"*","topics":["**.secret.**"]},
                     {"effect":"allow","action":"*","topics":["**", "dlq.**", "**.snapshot"]}]}"#,
    )
    .expect("a policy");
    for (name, expected) in [
        ("a", true),
        ("dlq.a", true),
        ("a.snapshot", true),
        ("a.secret", false),
        ("dlq.a.secret", false),
        ("a.secret.snapshot", false),
    ] {
        assert_eq!(policy.allows(Action::Subscribe, &topic(name), None), expected, "{name}");
    }
}

#[test]
fn groups_count_for_subscribers_only() {
    let policy = Policy::parse(r#"{"rules":[{"effect":"allow","action":"*","topics":["a"],"groups":["g1","g2"]}]}"#)
        .expect("a policy");
    assert!(policy.allows(Action::Subscribe, &topic("a"), Some(&group("g1"))));
    assert!(policy.allows(Action::Subscribe, &topic("a"), Some(&group("g2"))));
    assert!(!policy.allows(Action::Subscribe, &topic("a"), Some(&group("g3"))));
    assert!(!policy.allows(Action::Subscribe, &topic("a"), None), "no group is not in the list");
    assert!(policy.allows(Action::Publish, &topic("a"), None));
}

#[test]
fn an_empty_list_of_groups_means_every_group() {
    let rule = |effect: &str| format!(r#"{{"effect":"{effect}","action":"*","topics":["a"],"groups":[]}}"#);
    let policy = Policy::parse(&format!(r#"{{"rules":[{}]}}"#, rule("allow"))).expect("a policy");
    assert!(policy.allows(Action::Subscribe, &topic("a"), None));
    assert!(policy.allows(Action::Subscribe, &topic("a"), Some(&group("g"))));
    assert!(policy.shows(&topic("a")));
    let allow = r#"{"effect":"allow","action":"subscribe","topics":["a"]}"#;
    let policy = Policy::parse(&format!(r#"{{"rules":[{},{allow}]}}"#, rule("deny"))).expect("a policy");
    assert!(!policy.allows(Action::Subscribe, &topic("a"), None));
    assert!(!policy.allows(Action::Subscribe, &topic("a"), Some(&group("g"))));
    assert!(!policy.shows(&topic("a")));
}

#[test]
fn an_action_is_allowed_everywhere_by_a_rule_for_everything_that_no_deny_precedes() {
    for (rules, expected) in [
        (r#"{"effect":"allow","action":"admin","topics":["**"]}"#, true),
        (r#"{"effect":"allow","action":"*","topics":["a", "**"]}"#, true),
        (r#"{"effect":"allow","action":"admin","topics":["a.**"]}"#, false),
        (r#"{"effect":"allow","action":"publish","topics":["**"]}"#, false),
        (
            r#"{"effect":"deny","action":"publish","topics":["a"]},{"effect":"allow","action":"*","topics":["**"]}"#,
            true,
        ),
        (r#"{"effect":"deny","action":"*","topics":["a"]},{"effect":"allow","action":"*","topics":["**"]}"#, false),
        (r#"{"effect":"allow","action":"*","topics":["**"]},{"effect":"deny","action":"*","topics":["a"]}"#, true),
        ("", false),
    ] {
        let policy = Policy::parse(&format!(r#"{{"rules":[{rules}]}}"#)).expect("a policy");
        assert_eq!(policy.allows_everywhere(Action::Admin), expected, "{rules}");
    }
    assert!(Policy::wide_open().allows_everywhere(Action::Admin));
}

#[test]
fn a_denied_topic_leaves_its_dead_letters_to_the_next_rule() {
    let policy = Policy::parse(
        r#"{"rules":[{"effect":"deny","action":"*","topics":["a"]},
                     {"effect":"allow","action":"*","topics":["dlq.**"]}]}"#,
    )
    .expect("a policy");
    assert!(!policy.allows(Action::Subscribe, &topic("a"), None));
    assert!(policy.allows(Action::Subscribe, &topic("dlq.a"), None));
}

#[test]
fn a_star_among_groups_takes_in_those_without_a_group() {
    let policy = Policy::parse(r#"{"rules":[{"effect":"allow","action":"subscribe","topics":["a"],"groups":["*"]}]}"#)
        .expect("a policy");
    assert!(policy.allows(Action::Subscribe, &topic("a"), None));
    assert!(policy.allows(Action::Subscribe, &topic("a"), Some(&group("any"))));
}

#[test]
fn a_pattern_subscription_is_accepted_and_a_topic_checked_at_once() {
    let policy = scopes(&["subscribe:a.*"]);
    let selector = |text| Selector::parse(text).expect("a selector");
    assert!(policy.allows_selector(Action::Subscribe, &selector("**"), None));
    assert!(policy.allows_selector(Action::Subscribe, &selector("a.b"), None));
    assert!(!policy.allows_selector(Action::Subscribe, &selector("b"), None));
}

#[test]
fn malformed_policies_and_scopes_are_refused_and_named() {
    for (json, named) in [
        ("[]", "policy"),
        ("{}", "rules"),
        (r#"{"rules":[{}]}"#, "effect"),
        (r#"{"rules":[{"effect":"maybe","action":"*","topics":[]}]}"#, "policy.rules[0]: effect \"maybe\""),
        (r#"{"rules":[{"effect":"allow","action":"read","topics":[]}]}"#, "\"read\" is no action"),
        (r#"{"rules":[{"effect":"allow","action":"*","topics":["a*"]}]}"#, "topics: \"a*\""),
        (r#"{"rules":[{"effect":"allow","action":"*","topics":"a"}]}"#, "policy"),
        (r#"{"rules":[{"effect":"allow","action":"*","topics":["a"],"groups":["a b"]}]}"#, "groups: \"a b\""),
        (r#"{"rules":[{"effect":"allow","action":"*","topics":["a"],"group":["g"]}]}"#, "group"),
    ] {
        let refused = Policy::parse(json).expect_err(json).to_string();
        assert!(refused.contains(named), "{json}: {refused}");
    }
    for (scope, named) in [("read:a", "\"read:a\""), ("", "\"\""), ("publish:", "publish:"), ("publish:a b", "a b")] {
        let refused = Policy::from_scopes(&[scope]).expect_err(scope).to_string();
        assert!(refused.contains(named), "{scope}: {refused}");
    }
}

fn any_pattern() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just("dlq".to_owned()),
        Just("snapshot".to_owned()),
        Just("*".to_owned()),
        Just("**".to_owned())
    ];
    proptest::collection::vec(segment, 1..4).prop_map(|segments| segments.join("."))
}

fn any_topic() -> impl Strategy<Value = String> {
    let segment = prop_oneof![Just("a"), Just("b"), Just("dlq"), Just("snapshot")];
    proptest::collection::vec(segment, 1..4).prop_map(|segments| segments.join("."))
}

fn any_rule() -> impl Strategy<Value = serde_json::Value> {
    let effect = prop_oneof![Just("allow"), Just("deny")];
    let action = prop_oneof![Just("publish"), Just("subscribe"), Just("admin"), Just("*")];
    let groups = proptest::option::of(proptest::collection::vec(prop_oneof![Just("g"), Just("h"), Just("*")], 0..3));
    (effect, action, proptest::collection::vec(any_pattern(), 0..3), groups).prop_map(
        |(effect, action, topics, groups)| match groups {
            None => serde_json::json!({"effect": effect, "action": action, "topics": topics}),
            Some(groups) => {
                serde_json::json!({"effect": effect, "action": action, "topics": topics, "groups": groups})
            }
        },
    )
}

fn parsed(rules: &[serde_json::Value]) -> Policy {
    Policy::parse(&serde_json::json!({ "rules": rules }).to_string()).expect("a policy")
}

proptest! {
    /// A deny at the front takes away exactly what it covers; nothing else changes.
    #[test]
    fn a_deny_in_front_only_takes_away(
        rules in proptest::collection::vec(any_rule(), 0..5), denied in any_pattern(), name in any_topic(),
    ) {
        let before = parsed(&rules);
        let mut with = vec![serde_json::json!({"effect": "deny", "action": "*", "topics": [denied.clone()]})];
        with.extend(rules);
        let covered = TopicPattern::parse(&denied).expect("a pattern").covers(&topic(&name));
        for action in [Action::Publish, Action::Subscribe, Action::Admin] {
            let expected = !covered && before.allows(action, &topic(&name), None);
            prop_assert_eq!(parsed(&with).allows(action, &topic(&name), None), expected);
        }
    }

    /// Rules after the last change nothing that an earlier one decided, and denies alone allow nothing.
    #[test]
    fn an_allow_at_the_end_never_takes_away(rules in proptest::collection::vec(any_rule(), 0..5), name in any_topic()) {
        let mut with = rules.clone();
        with.push(serde_json::json!({"effect": "allow", "action": "*", "topics": ["**"]}));
        let group = group("g");
        for group in [None, Some(&group)] {
            if parsed(&rules).allows(Action::Subscribe, &topic(&name), group) {
                prop_assert!(parsed(&with).allows(Action::Subscribe, &topic(&name), group));
            }
        }
        let denies: Vec<_> = rules.into_iter().filter(|rule| rule["effect"] == "deny").collect();
        prop_assert!(!parsed(&denies).allows(Action::Subscribe, &topic(&name), None));
    }

    #[test]
    fn reading_any_text_never_panics(text in any::<String>()) {
        let _ = (Policy::parse(&text), Policy::from_token_scopes(&[&text]), Policy::from_scopes(&[text]));
    }
}

#[test]
fn a_topic_is_shown_to_whoever_could_subscribe_in_some_group() {
    let policy = Policy::parse(
        r#"{"rules":[{"effect":"deny","action":"subscribe","topics":["a.secret"]},
            {"effect":"deny","action":"subscribe","topics":["a.*"],"groups":["x"]},
            {"effect":"allow","action":"subscribe","topics":["a.*"],"groups":["g"]},
            {"effect":"allow","action":"publish","topics":["p"]}]}"#,
    )
    .expect("a policy");
    let shows = |name: &str| policy.shows(&Topic::parse(name).expect("a topic"));
    assert!(shows("a.b") && !shows("a.secret") && !shows("p") && !shows("dlq.a.b"));
    assert!(Policy::wide_open().shows(&Topic::parse("dlq.a").expect("a topic")));
    assert!(!Policy::nothing().shows(&Topic::parse("a").expect("a topic")));
}
