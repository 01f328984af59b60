//! `docs/operations.md` tells what every warning and error in the log means and leads to every error page; the alerts
//! are described there.

use super::{files, links, read};

const PAGE: &str = "docs/operations.md";

/// The crates whose code runs in a hub.
const HUB: &[&str] = &["bus", "gateway", "outbox", "projection", "promethean", "store"];

/// The messages of `tracing::warn!` and `tracing::error!` in a source; of one with a placeholder, what stands before it.
fn messages(source: &str) -> Vec<String> {
    let calls = ["tracing::warn!(", "tracing::error!("].into_iter().flat_map(|call| source.split(call).skip(1));
    calls.map(|rest| message(rest).split('{').next().unwrap_or_default().to_owned()).collect()
}

/// The last text in the arguments that `call` begins with.
fn message(call: &str) -> String {
    let (mut depth, mut text, mut last, mut chars) = (1, None::<String>, String::new(), call.chars());
    while let Some(c) = chars.next() {
        match (&mut text, c) {
            (Some(_), '"') => last = text.take().unwrap_or_default(),
            (Some(text), '\\') => text.extend(chars.next()),
            (Some(text), c) => text.push(c),
            (None, '"') => text = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
        if depth == 0 {
            return last;
        }
    }
    panic!("a call without an end: {call:.80}");
}

#[test]
fn every_warning_and_error_in_the_log_is_explained() {
    let page = read(PAGE);
    let mut all = Vec::new();
    let sources = HUB.iter().flat_map(|hub| files(&format!("crates/{hub}/src"), ".rs"));
    for file in sources.filter(|file| !file.contains("/src/docs/")) {
        all.extend(messages(&read(&file)).into_iter().map(|message| (file.clone(), message)));
    }
    assert!(all.len() > 40, "the messages were not found: {all:?}");
    let nameless = all.iter().find(|(_, message)| message.is_empty());
    assert!(nameless.is_none(), "a message that begins with a placeholder can be looked up by nobody: {nameless:?}");
    let explained = |message: &str| page.lines().any(|line| line.starts_with(&format!("| `{message}")));
    let unexplained: Vec<_> = all.iter().filter(|(_, message)| !explained(message)).collect();
    assert!(unexplained.is_empty(), "{PAGE} does not say what these mean (\"| `message` | …\"): {unexplained:#?}");
}

#[test]
fn every_error_page_is_reached_from_it_or_from_the_index() {
    let pages = [read(PAGE), read("docs/README.md")];
    for error in files("docs/errors", ".md") {
        let target = error.trim_start_matches("docs/");
        let leads = |page: &String| links(page).any(|link| link.split('#').next() == Some(target));
        assert!(pages.iter().any(leads), "{PAGE} does not link {error}");
    }
}

#[test]
fn every_alert_is_described() {
    let page = read(PAGE);
    let rules = read("deploy/alerts.yml");
    let names: Vec<&str> = rules.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("| `{name}` |")), "{PAGE} does not say what to do about {name}");
    }
}

#[test]
fn messages_are_found_in_calls_of_any_shape() {
    let source = r#"tracing::warn!(a = f("x"), %b, "one"); tracing::error!(
        "two {three}"
    ); tracing::info!("not this");"#;
    assert_eq!(messages(source), ["one", "two "]);
}
