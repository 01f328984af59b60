//! Takes the Rust block of the README, so that a test compiles it as it stands there and runs it.

use std::path::PathBuf;
use std::{env, fs};

/// The address in the README; the test has its hub elsewhere.
const ADDRESS: &str = r#""ws://127.0.0.1:8090""#;

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    println!("cargo::rerun-if-changed={}", root.join("README.md").display());
    println!("cargo::rerun-if-changed=build.rs");
    let readme = fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let block = readme.split("\n```rust\n").nth(1).and_then(|rest| rest.split("\n```").next()).unwrap_or_default();
    if !block.contains(ADDRESS) {
        println!("cargo::error=README.md has no Rust block that connects to {ADDRESS}");
    }
    let code = format!(
        "/// The Rust of the README.\nasync fn block(address: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> \
         {{\n{}\nOk(())\n}}\n",
        block.replace(ADDRESS, "address")
    );
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default()).join("readme.rs");
    if let Err(error) = fs::write(&out, code) {
        println!("cargo::error=cannot write {}: {error}", out.display());
    }
}
