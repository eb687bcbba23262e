//! A small database, and helpers to check specs against it.

use std::path::Path;

use hqdl_database::Database;
use hqdl_spec::{Expansion, Spec, UncheckedSpec};
use hqdl_values::problem::{Problem, Problems};
use proptest::test_runner::{Config, TestRunner};

/// Spec that asks which animal a photo shows.
pub const PHOTO_SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-4o"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 2.5, output = 10 }

[[expansion]]
name = "pets"
source = "pet"
key = ["photo"]
images = ["photo"]
[[expansion.column]]
name = "animal"
about = "which animal it is"
questions = ["Which animal is it?"]
"#;

/// A database in its own temporary directory.
pub struct Fixture {
    pub database: Database,
    _directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("heroes.sqlite");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE superhero (id INTEGER PRIMARY KEY, superhero_name TEXT, full_name TEXT, height_cm INTEGER);
                 INSERT INTO superhero VALUES (1, '3-D Man', 'Charles Chandler', 188);
                 CREATE TABLE publisher (publisher_name TEXT);
                 INSERT INTO publisher VALUES ('Marvel Comics'), ('DC Comics'), ('Dark Horse Comics'), ('Dark Horse Comics'), (NULL);
                 CREATE TABLE superpower (power_name TEXT);
                 INSERT INTO superpower VALUES ('Flight'), ('Super Strength'), ('Super Speed'), ('Agility'), ('Stamina');
                 CREATE TABLE empty (x TEXT);
                 CREATE TABLE film (title TEXT, year INTEGER, k1 TEXT, k2 TEXT);",
            )
            .unwrap();
        drop(connection);
        Self { database: Database::open(&path).unwrap(), _directory: directory }
    }

    /// Checks a spec.
    pub fn check_spec(&self, toml: &str) -> Result<(Spec, Problems), Problems> {
        UncheckedSpec::parse(Path::new("specs/x.toml"), toml.to_owned())?.check(&self.database)
    }

    /// Returns the only expansion of a valid spec.
    pub fn only_expansion(&self, toml: &str) -> Expansion {
        match self.check_spec(toml) {
            Ok((mut spec, _)) => spec.expansions.remove(0),
            Err(problems) => panic!("{}\n{toml}", problems.render(false)),
        }
    }

    /// Returns the problems of an invalid spec.
    pub fn spec_problems(&self, toml: &str) -> Problems {
        self.check_spec(toml).map(|_| ()).expect_err(toml)
    }
}

/// Returns the only problem whose message contains `message`, with its line and column.
pub fn find_problem<'p>(
    problems: &'p Problems,
    message: &str,
) -> (&'p Problem, Option<(usize, usize)>) {
    let found: Vec<&Problem> =
        problems.problems.iter().filter(|p| p.message.contains(message)).collect();
    assert_eq!(
        found.len(),
        1,
        "{} problems say {message:?} in:\n{}",
        found.len(),
        problems.render(false)
    );
    (found[0], problems.find_line_column(found[0]))
}

/// Returns line and column (from 1) of the first occurrence of `needle` in `text`.
pub fn position_of(text: &str, needle: &str) -> Option<(usize, usize)> {
    let start = text.find(needle).unwrap_or_else(|| panic!("no {needle:?}"));
    let line = text[..start].matches('\n').count() + 1;
    let begin = text[..start].rfind('\n').map_or(0, |n| n + 1);
    Some((line, text[begin..start].chars().count() + 1))
}

/// Returns a runner for `cases` random cases that writes no files.
pub fn random_runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

/// Returns malformed answers of about `size` bytes, with a name for each.
pub fn malformed_answers(size: usize) -> Vec<(&'static str, String)> {
    let noise: String = (0u64..)
        .map(|n| {
            let x = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n >> 3) >> 33;
            char::from(b" \n,\"'{}[]:|abcdefgh01239-"[(x % 24) as usize])
        })
        .take(size)
        .collect();
    vec![
        ("garbage", noise),
        ("open braces", "{".repeat(size)),
        ("closed braces", "}".repeat(size)),
        ("both braces", "{}".repeat(size / 2)),
        ("brackets", "[".repeat(size)),
        ("one long line", "lorem ipsum ".repeat(size / 12)),
        ("one line of commas", ",".repeat(size)),
        ("one line of quotes", "\"".repeat(size)),
        ("one line of apostrophes", "'".repeat(size)),
        ("lines", "a\n".repeat(size / 2)),
        ("lines of quotes", "\"\n".repeat(size / 2)),
        ("lines with an odd quote", "x,\"y\nz\n".repeat(size / 7)),
        ("fences", "```".repeat(size / 3)),
        ("pipes", "|".repeat(size)),
    ]
}
