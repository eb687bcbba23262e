//! Tests of what a new user sees first: help, man pages, and the files for building and shipping
//! the program.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn hqdl(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hqdl")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the subcommands that a command's help lists.
fn below(help: &str) -> Vec<&str> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let list = list.split("\n\n").next().unwrap_or_default();
    let of = |line: &'_ str| line.strip_prefix("  ").is_some_and(|l| !l.starts_with(' '));
    list.lines().filter(|l| of(l)).filter_map(|l| l.split_whitespace().next()).collect()
}

fn each_help(command: &[&str], visit: &mut dyn FnMut(&[&str], &str)) {
    let help = hqdl(&[&["help"], command].concat());
    visit(command, &help);
    for name in below(&help).into_iter().filter(|name| *name != "help") {
        each_help(&[command, &[name]].concat(), visit);
    }
}

/// A command's own flags come first, and the shared ones last, in one order; no source markup
/// remains in the text.
#[test]
fn help_is_in_order_and_plain() {
    let mut commands = 0;
    each_help(&[], &mut |command, help| {
        commands += 1;
        assert!(!help.contains('`') && !help.contains("[`"), "{command:?}: {help}");
        let flags: Vec<&str> = help
            .split("Options:\n")
            .nth(1)
            .unwrap_or_default()
            // Examples follow the options.
            .split("\n\nExample")
            .next()
            .unwrap_or_default()
            .lines()
            .filter(|l| l.trim_start().starts_with('-'))
            .filter_map(|l| l.split_whitespace().find(|w| w.starts_with("--")))
            .collect();
        let place = |flag: &str| flags.iter().position(|f| *f == flag);
        let common: Vec<usize> = ["--json", "--quiet", "--verbose", "--log", "--help"]
            .into_iter()
            .map(|flag| place(flag).unwrap_or_else(|| panic!("{command:?} has no {flag}")))
            .collect();
        assert!(common.is_sorted(), "{command:?}: {flags:?}");
        let own = flags.iter().position(|f| ["--json"].contains(f)).unwrap();
        let after: Vec<&&str> = flags[own..].iter().collect();
        assert!(after.len() <= 6, "{command:?}: own flags stand after common ones: {flags:?}");
    });
    assert!(commands > 20, "{commands}");
}

#[test]
fn every_command_has_a_man_page() {
    let dir = tempfile::tempdir().unwrap();
    hqdl(&["man", dir.path().to_str().unwrap()]);
    let mut wanted = Vec::new();
    each_help(&[], &mut |command, _| {
        wanted.push([&["hqdl"], command].concat().join("-") + ".1");
    });
    for name in wanted {
        let page = std::fs::read_to_string(dir.path().join(&name));
        let page = page.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".TH ") && page.contains("SYNOPSIS"), "{name}");
    }
}

/// Everything that the Dockerfile copies, builds and runs exists.
#[test]
fn the_dockerfile_names_existing_files() {
    let text = std::fs::read_to_string(root().join("Dockerfile")).unwrap();
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let rust = manifest.lines().find_map(|l| l.strip_prefix("rust-version = ")).unwrap();
    let (mut stages, mut built) = (Vec::new(), None);
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["FROM", image] => assert!(image.contains(':'), "{line}: no version"),
            ["FROM", image, "AS", name] => {
                // The image has the newest compiler of the series that the manifest requires.
                assert!(image.starts_with("rust:1-"), "{image}, the manifest wants {rust}");
                stages.push(name);
            }
            ["RUN", "cargo", "build", ref flags @ ..] => {
                let after = |flag: &str| flags.iter().skip_while(|f| **f != flag).nth(1).copied();
                let (profile, bin) = (after("--profile").unwrap(), after("--bin").unwrap());
                assert!(flags.contains(&"--locked"), "{line}");
                assert!(manifest.contains(&format!("[profile.{profile}]")), "{line}");
                assert!(manifest.contains(&format!("name = \"{bin}\"")), "{line}");
                built = Some(format!("target/{profile}/{bin}"));
            }
            ["COPY", "--from=build", from, to] => {
                assert!(stages.contains(&"build"), "{line}");
                assert!(from.ends_with(built.as_deref().unwrap()), "{line}: {built:?}");
                assert!(to.starts_with("/usr/local/bin/"), "{line}");
            }
            ["COPY", from, _] => assert!(root().join(from).exists(), "{line}"),
            ["RUN", "apt-get", "update", "&&", "apt-get", "install", ..] => {
                assert!(line.contains("--no-install-recommends"), "{line}");
            }
            ["ENTRYPOINT", entry] => assert_eq!(entry, "[\"hqdl\"]"),
            ["WORKDIR" | "ENV" | "VOLUME", ..] => {}
            _ => panic!("what is this? {line}"),
        }
    }
    assert!(built.is_some());
    // No file that the build needs is ignored.
    let ignored = std::fs::read_to_string(root().join(".dockerignore")).unwrap();
    for needed in ["Cargo.toml", "Cargo.lock", "src", "crates", "migrations"] {
        assert!(root().join(needed).exists() && !ignored.lines().any(|l| l.trim() == needed));
    }
}

/// The README is short, its links are valid, and its commands exist.
#[test]
fn the_readme_is_short_and_correct() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= 130, "{lines} lines");
    let help = hqdl(&["help"]);
    let commands = below(&help);
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = line != "```" && !line.contains("text") && !line.contains("python");
            continue;
        }
        let line = line.trim_start_matches("$ ");
        if let Some(rest) = line.strip_prefix("hqdl ").filter(|_| fenced) {
            let command = rest.split_whitespace().next().unwrap();
            assert!(commands.contains(&command), "{line}");
            let help = hqdl(&["help", command]);
            for flag in rest.split_whitespace().filter(|w| w.starts_with("--")) {
                assert!(help.contains(flag), "{line}: {flag}");
            }
        }
    }
    let docs = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    for entry in std::fs::read_dir(root().join("docs")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let is_page = Path::new(&name).extension().is_some_and(|e| e == "md");
        assert!(
            !is_page
                || ["README.md", "SUMMARY.md"].contains(&&*name)
                || docs.contains(&format!("({name})")),
            "{name}"
        );
    }
}

/// Real-world databases get a spec that passes its check, or one that explains why it does not.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn real_world_databases_get_a_valid_spec() {
    let shared =
        std::env::var_os("HQDL_SHARED").map_or_else(|| root().join("../shared"), PathBuf::from);
    let dir = tempfile::tempdir().unwrap();
    let is_database = |p: &PathBuf| p.extension().is_some_and(|e| e == "db" || e == "sqlite");
    let mut tried = 0;
    for folder in ["swan", "blendsql/db"] {
        let files = std::fs::read_dir(shared.join(folder)).unwrap();
        for database in files.flatten().map(|f| f.path()).filter(is_database) {
            tried += 1;
            let spec = dir.path().join(format!("{tried}.toml"));
            let run = |args: &[&str]| {
                Command::new(env!("CARGO_BIN_EXE_hqdl")).args(args).output().unwrap()
            };
            let (database, spec) = (database.to_str().unwrap(), spec.to_str().unwrap());
            let made = run(&["init", database, "-s", spec]);
            assert!(made.status.success(), "{database}: {made:?}");
            let told = String::from_utf8(made.stderr).unwrap();
            let checked = run(&["check", spec]);
            let passes = checked.status.success();
            assert!(passes != told.contains("does not pass"), "{database}: {told}{checked:?}");
        }
    }
    assert!(tried > 3, "{tried}");
}
