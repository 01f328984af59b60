//! Lists the files of the dashboard and the SDK that are to be embedded. Runs no npm: what is not built is not there.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let (page, sdk) = (root.join("dashboard/dist"), root.join("sdk/typescript/dist/sdk.js"));
    // What does not exist yet is watched through the directory it will be in: cargo takes a missing path for a change.
    for watched in [&page, &sdk] {
        let there = watched.ancestors().find(|path| path.exists()).unwrap_or(&root);
        println!("cargo::rerun-if-changed={}", there.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    list(&page, &page, &mut files);
    if sdk.is_file() && !files.iter().any(|(name, _)| name == "sdk.js") {
        files.push(("sdk.js".to_owned(), sdk));
    }
    files.sort();
    let entries: String = files
        .iter()
        .map(|(name, path)| format!("({name:?}, include_bytes!({:?})),\n", path.display().to_string()))
        .collect();
    let code = format!("static FILES: &[(&str, &[u8])] = &[{entries}];\n");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default()).join("page.rs");
    if let Err(error) = fs::write(&out, code) {
        println!("cargo::error=cannot write {}: {error}", out.display());
    }
}

fn list(root: &Path, dir: &Path, files: &mut Vec<(String, PathBuf)>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            list(root, &path, files);
        } else if let Ok(name) = path.strip_prefix(root) {
            files.push((name.display().to_string().replace('\\', "/"), path.clone()));
        }
    }
}
