//! Takes the Rust of the README and the programs of the guides, so that tests compile them as they stand there and run
//! them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The hub's address on every page; the tests have theirs elsewhere.
const ADDRESS: &str = r#""ws://127.0.0.1:8090""#;

/// What else the programs of the guides name of their reader's world.
const NAMES: [&str; 5] = [
    r#""wss://hub.example:8090""#,
    r#""/run/secrets/hub-token""#,
    r#""mongodb://127.0.0.1/?replicaSet=rs0""#,
    r#""shop.db""#,
    r#""state.db""#,
];

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    println!("cargo::rerun-if-changed=build.rs");
    write("readme.rs", &readme(&read(&root.join("README.md"))));
    write("guides.rs", &guides(&root.join("docs/guide")));
}

fn read(page: &Path) -> String {
    println!("cargo::rerun-if-changed={}", page.display());
    fs::read_to_string(page).unwrap_or_default()
}

fn write(name: &str, code: &str) {
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default()).join(name);
    if let Err(error) = fs::write(&out, code) {
        println!("cargo::error=cannot write {}: {error}", out.display());
    }
}

/// The blocks of a page that begin with this fence.
fn blocks<'a>(page: &'a str, fence: &str) -> impl Iterator<Item = &'a str> {
    page.split(&format!("\n{fence}\n"))
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next())
        .collect::<Vec<_>>()
        .into_iter()
}

fn readme(page: &str) -> String {
    let block = blocks(page, "```rust").next().unwrap_or_default();
    if !block.contains(ADDRESS) {
        println!("cargo::error=README.md has no Rust block that connects to {ADDRESS}");
    }
    format!(
        "/// The Rust of the README.\nasync fn block(address: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> \
         {{\n{}\nOk(())\n}}\n",
        block.replace(ADDRESS, "address")
    )
}

/// A module for each program that the compiler only checks (`no_run`), and a function that runs one by its name: the
/// page's, and its number there. What they name of their reader's world they ask `place` for.
fn guides(dir: &Path) -> String {
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut pages: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    pages.sort();
    let (mut modules, mut names, mut arms) = (String::new(), String::new(), String::new());
    for page in pages {
        let stem = page.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
        for (number, block) in (1..).zip(blocks(&read(&page), "```rust,no_run")) {
            let mut code =
                block.lines().map(|line| line.strip_prefix("# ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
            for main in ["#[tokio::main]\nasync fn main()", "async fn example()"] {
                code = code.replace(main, "pub(super) async fn program()");
            }
            for name in NAMES.iter().chain([&ADDRESS]) {
                code = code.replace(name, &format!("super::place({name})"));
            }
            // Writing into a string cannot fail.
            let _ = write!(modules, "#[allow(clippy::pedantic)]\nmod {stem}_{number} {{\n{code}\n}}\n");
            let _ = write!(names, "\"{stem}_{number}\", ");
            let _ = writeln!(
                arms,
                "\"{stem}_{number}\" => {stem}_{number}::program().await.map_err(|error| error.to_string()),"
            );
        }
    }
    format!(
        "{modules}\n/// The programs of the guides.\nconst PROGRAMS: &[&str] = &[{names}];\n\n\
         /// Runs one of them to its end.\nasync fn run(name: &str) -> Result<(), String> {{\n\
         match name {{\n{arms}_ => Err(format!(\"no program {{name}}\")),\n}}\n}}\n"
    )
}
