//! Limits the frequency of habits that make comments and names hard to read. docs/style.md has the
//! rules.

use std::path::PathBuf;

use regex::Regex;

use super::{root, sources};

/// A habit of comments: its name, how to recognize it, and the percentage of comment blocks
/// that may have it.
const HABITS: [(&str, &str, f64); 5] = [
    ("begins with What, Who or Whose", r"^(What|Who|Whom|Whose|Whoever)\b", 0.3),
    ("nobody or whoever for code", r"(?i)\b(nobody|somebody|whoever|anybody|whom)\b", 0.1),
    ("is told, tells, says so", r"(?i)\b(is told|are told|tells|says so|is said)\b", 0.1),
    ("stands", r"(?i)\b(stands|stand|stood)\b", 0.1),
    ("goes on, anew, any more", r"(?i)\b(goes on|gone on|anew|any more)\b", 0.1),
];
/// Percentage of functions, with trait implementations, whose name may be one word.
const ONE_WORD: f64 = 45.0;

/// Returns the sources of the program and its crates, without the testkit.
fn program() -> Vec<PathBuf> {
    let mut files = sources(&root().join("src"));
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.ends_with("hqdl-testkit") {
            files.extend(sources(&folder.join("src")));
        }
    }
    files
}

/// Returns the sources that are not part of the program: tests, benchmarks and examples.
fn test_sources() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let folders = crates.map(|entry| entry.unwrap().path().join("tests"));
    let own = ["tests", "benches", "examples"].map(|folder| root().join(folder));
    folders.chain(own).filter(|folder| folder.is_dir()).flat_map(|dir| sources(&dir)).collect()
}

/// Returns every run of consecutive comment lines, with the number of its first line.
fn comment_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut last = None;
    for (n, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let words = comment.trim_start_matches(['/', '!']).trim();
        match blocks.last_mut().filter(|_| last.is_some_and(|last| last + 1 == n)) {
            Some((_, block)) => {
                block.push(' ');
                block.push_str(words);
            }
            None => blocks.push((n + 1, words.to_owned())),
        }
        last = Some(n);
    }
    blocks
}

#[test]
fn comments_are_plain_english() {
    let habits = HABITS.map(|(name, pattern, limit)| (name, Regex::new(pattern).unwrap(), limit));
    let mut found: [Vec<String>; HABITS.len()] = Default::default();
    let mut blocks = 0;
    for file in program().into_iter().chain(test_sources()) {
        let text = std::fs::read_to_string(&file).unwrap();
        for (line, block) in comment_blocks(&text) {
            blocks += 1;
            for ((_, pattern, _), places) in habits.iter().zip(&mut found) {
                if pattern.is_match(&block) {
                    places.push(format!("{}:{line}: {block}", file.display()));
                }
            }
        }
    }
    for ((name, _, limit), places) in habits.iter().zip(&found) {
        let share = places.len() as f64 * 100.0 / f64::from(blocks);
        assert!(share <= *limit, "{share:.2} % of {blocks}: {name}\n{}", places.join("\n"));
    }
}

#[test]
fn function_names_are_verb_and_object() {
    let function = Regex::new(r"^\s*(?:pub(?:\([^)]*\))? )?(?:const |async )*fn (\w+)").unwrap();
    let (mut one_word, mut all) = (Vec::new(), 0);
    for file in program() {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in text.lines().filter_map(|line| function.captures(line)) {
            all += 1;
            if !name[1].trim_matches('_').contains('_') {
                one_word.push(name[1].to_owned());
            }
        }
    }
    let share = one_word.len() as f64 * 100.0 / f64::from(all);
    one_word.sort();
    one_word.dedup();
    assert!(share <= ONE_WORD, "{share:.1} % of {all} functions: {}", one_word.join(" "));
}
