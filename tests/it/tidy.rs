//! The house keeps its own rules.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// `lib.rs` declares the modules floor by floor; a module uses only modules
/// declared above it.
#[test]
fn modules_use_only_modules_declared_above_them() {
    let src = root().join("src");
    let lib = std::fs::read_to_string(src.join("lib.rs")).unwrap();
    let order: Vec<&str> =
        lib.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(order.len() > 3, "lib.rs declares the doors one a line");
    let mut wrong = Vec::new();
    for file in sources(&src) {
        let inside = file.strip_prefix(&src).unwrap();
        let module = inside
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs");
        let Some(here) = order.iter().position(|m| *m == module) else { continue };
        for (n, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for (at, _) in line.match_indices("crate::") {
                let used: String = line[at + 7..]
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                if order.iter().position(|m| *m == used).is_some_and(|there| there > here) {
                    wrong.push(format!("{}:{}: `{module}` uses `{used}`", inside.display(), n + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files are named after their noun, and are short enough to have one.
#[test]
fn no_file_is_a_drawer_or_a_wall() {
    let mut files = sources(&root().join("src"));
    for entry in std::fs::read_dir(root().join("crates")).unwrap().flatten() {
        files.extend(sources(&entry.path().join("src")));
    }
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        assert!(
            !["util", "utils", "common", "helpers", "types", "misc", "prelude"].contains(&name),
            "{} is a drawer, not a noun",
            file.display()
        );
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(
            lines <= 500,
            "{} has {lines} lines: look for the second noun in it",
            file.display()
        );
    }
}

/// What the documents point at is there: a link, or a path of the code.
#[test]
fn documents_point_at_what_exists() {
    let mut documents = vec![root().join("README.md")];
    documents.extend(std::fs::read_dir(root().join("docs")).unwrap().map(|e| e.unwrap().path()));
    let mut wrong = Vec::new();
    for document in documents.iter().filter(|d| d.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(document).unwrap();
        let links = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
        let links = links.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        let code = text.split('`').skip(1).step_by(2);
        let code = code.filter(|c| c.starts_with("src/") || c.starts_with("crates/"));
        let files = links
            .filter(|link| !link.starts_with("http") && !link.starts_with('#'))
            .map(|link| document.parent().unwrap().join(link.split('#').next().unwrap()))
            .chain(code.map(|path| root().join(path)));
        wrong.extend(
            files
                .filter(|file| !file.exists())
                .map(|file| format!("{}: {}", document.display(), file.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The Python module is built with the versions that are tested here: its lock file,
/// beside what it needs for itself, has those of this one.
#[test]
fn the_lock_file_of_the_python_module_has_our_versions() {
    use std::collections::{BTreeMap, BTreeSet};
    let read = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let lock: toml::Table = text.parse().unwrap();
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for package in lock["package"].as_array().unwrap() {
            let text = |name: &str| package[name].as_str().unwrap().to_owned();
            versions.entry(text("name")).or_default().insert(text("version"));
        }
        versions
    };
    let (ours, theirs) = (read("Cargo.lock"), read("python/Cargo.lock"));
    let other: Vec<_> = (theirs.iter())
        .filter(|(name, versions)| ours.get(*name).is_some_and(|o| o.is_disjoint(versions)))
        .collect();
    assert!(
        other.is_empty(),
        "cp Cargo.lock python/ && cargo metadata --manifest-path python/Cargo.toml: {other:?}"
    );
}
