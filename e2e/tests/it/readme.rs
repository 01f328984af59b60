//! The README as a reader pastes it: its commands in a real shell against the real binary, its output beside what they
//! print, its Rust compiled and run. Its TypeScript is in `e2e/browser/readme.test.ts`.

use std::path::Path;
use std::time::{Duration, Instant};

use promethean_e2e::transcript::{Shell, steps};
use promethean_e2e::{Hub, Setup, binary, get};
use serde_json::Value;

use crate::ROOT;

include!(concat!(env!("OUT_DIR"), "/readme.rs"));

fn readme() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("README.md")
}

/// The README's ports are the default ones, where another hub may be: here they stand for those of the test's hub.
fn at(hub: &Hub, text: &str) -> String {
    let ports = [(":8090", hub.ws), (":8081", hub.http), (":8082", hub.ops)];
    ports.iter().fold(text.to_owned(), |text, (port, address)| text.replace(port, &format!(":{}", address.port())))
}

#[test]
fn the_commands_of_the_readme_print_what_it_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let hub = Setup::log(&dir.path().join("data")).start();
    assert!(readme().lines().any(|line| at(&hub, line) == hub.ready), "the README has the line of a hub that is ready");

    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).expect("a directory");
    std::os::unix::fs::symlink(binary(), bin.join("promethean")).expect("a link");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    let home = dir.path().display().to_string();
    let mut shell = Shell::start(
        dir.path(),
        &[("PATH", path), ("HOME", home), ("PROMETHEAN_URL", format!("http://{}", hub.ops)), ("no_proxy", "*".into())],
    );
    let steps = steps(&readme());
    assert!(steps.len() > 8, "{} commands", steps.len());
    for step in steps {
        if let Err(why) = shell.run(&at(&hub, &step.command), &step.printed) {
            panic!("README.md:{}: {}\n{why}", step.line, step.command);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_of_the_readme_publishes_consumes_and_acks() {
    let dir = tempfile::tempdir().expect("a directory");
    let hub = Setup::log(dir.path()).start();
    let address = format!("ws://{}", hub.ws);
    let running = tokio::spawn(async move { block(&address).await.map_err(|error| error.to_string()) });
    let started = Instant::now();
    let done = loop {
        let groups: Value = get(hub.ops, "/groups").await.json();
        let one = &groups["groups"][0];
        if one["lag"] == 0 && one["seq"].as_u64() > Some(0) {
            break one["group"].as_str().expect("a name").to_owned();
        }
        let late = started.elapsed() > Duration::from_secs(30);
        assert!(!late && !running.is_finished(), "in vain: a group that has acked everything; {groups} {running:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    running.abort();
    assert!(readme().contains(&format!("Some({done:?})")), "{done}");
}

#[test]
fn no_page_names_a_path_of_a_machine() {
    let mut pages = vec![Path::new(ROOT).join("README.md"), Path::new(ROOT).join("sdk/typescript/README.md")];
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "dashboard/README.md"] {
        pages.push(Path::new(ROOT).join(name));
    }
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "md") {
                pages.push(entry);
            }
        }
    }
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("readable");
        // Places that only the machine of whoever wrote the page has.
        for folder in ["work", "root", "home"] {
            let named = text.lines().find(|line| line.contains(&format!("/{folder}/")));
            assert!(named.is_none(), "{}: {named:?} names a path of a machine", page.display());
        }
    }
}
