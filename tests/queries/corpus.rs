//! Runs each seed of the fuzz targets once: its file name determines whether it is accepted or
//! rejected.

use std::path::{Path, PathBuf};

use hqdl::blendsql::normalize::normalize_query;
use hqdl::blendsql::parse::Syntax;
use hqdl::blendsql::rewrite::{CallSite, Rewriter, Statistics};
use hqdl::blendsql::scope::Schema;
use hqdl::blendsql::{mask_calls, scan_calls};
use hqdl::spec::UncheckedSpec;

/// Returns the files of `tests/corpus/<target>`, and whether each must be accepted.
fn seeds(target: &str) -> Vec<(PathBuf, String, bool)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let reads = name.starts_with("reads-");
            assert!(reads || name.starts_with("refuses-"), "{name}");
            (path, text, reads)
        })
        .collect();
    found.sort();
    assert!(found.len() > 30);
    found
}

#[test]
fn the_scanners_seeds_are_accepted_or_rejected() {
    for (path, sql, reads) in seeds("scanner") {
        match scan_calls(&sql) {
            Ok(calls) => {
                assert!(reads, "{} was read", path.display());
                assert_eq!(mask_calls(&sql, &calls).len(), sql.len());
            }
            Err(error) => assert!(!reads, "{}: {}", path.display(), error.render(&sql, false)),
        }
    }
}

/// Tables with the same columns, whatever their names.
struct Tables;

impl Schema for Tables {
    fn column_names(&self, _: &str) -> Option<Vec<String>> {
        Some(vec!["id".to_owned(), "name".to_owned()])
    }
}

#[test]
fn rewriting_the_scanners_seeds_leaves_no_call() {
    let mut count = 0;
    for (path, sql, reads) in seeds("scanner") {
        let Ok((normalized, parsed)) = normalize_query(&sql, Syntax::default()) else { continue };
        assert!(reads);
        let site = CallSite::default();
        let sites = vec![site; parsed.calls.len()];
        let costs = Statistics::default();
        let rewritten = Rewriter::new(&normalized.sql, &sites, &Tables, &costs).rewrite(&parsed);
        let left = scan_calls(&rewritten.sql).unwrap();
        assert!(left.is_empty(), "{}: {}", path.display(), rewritten.sql);
        count += 1;
    }
    assert!(count > 15, "{count}");
}

#[test]
fn the_specs_seeds_are_accepted_or_rejected() {
    for (path, text, reads) in seeds("spec") {
        match UncheckedSpec::parse(&path, text) {
            Ok(draft) => {
                assert!(reads, "{} was read", path.display());
                // Problems of a well-formed spec are found later.
                let problems =
                    draft.find_problems_without_database("there is no database", "make one");
                assert!(!problems.problems.is_empty() && problems.render(false).contains("error"));
            }
            Err(problems) => assert!(!reads, "{}", problems.render(false)),
        }
    }
}

/// Fragments of queries.
const WORDS: [&str; 40] = [
    "{{",
    "}}",
    "LLMMap(",
    "LLMQA(",
    "LLMJoin(",
    "answer(",
    "summary(",
    "'q?'",
    "(",
    ")",
    ",",
    "SELECT ",
    " FROM ",
    " WHERE ",
    "t.name",
    "'t::name'",
    " AND ",
    " OR ",
    " NOT ",
    " = ANY (",
    "::int",
    " IN ",
    " FILTER (WHERE ",
    " OVER (",
    "WITH x AS (",
    " UNION ",
    " LIMIT 3",
    " ORDER BY ",
    "options=",
    "[1]",
    "'",
    "\"",
    "--",
    "/*",
    "?",
    ":p",
    " CASE WHEN ",
    " END",
    " EXISTS (",
    "é",
];

/// Returns a slightly changed text.
fn mutated(rng: &mut fastrand::Rng, text: &str) -> String {
    let mut text = text.to_owned();
    for _ in 0..rng.usize(1..6) {
        let places: Vec<usize> = (0..=text.len()).filter(|n| text.is_char_boundary(*n)).collect();
        let pick = |rng: &mut fastrand::Rng| places[rng.usize(..places.len())];
        let a = pick(rng);
        let b = places[(places.binary_search(&a).unwrap() + rng.usize(..40)).min(places.len() - 1)];
        let (from, to) = (a.min(b), a.max(b));
        match rng.u8(0..5) {
            0 => text.replace_range(from..to, ""),
            1 | 2 => text.insert_str(from, WORDS[rng.usize(..WORDS.len())]),
            3 if to - from < 200 => {
                let piece = text[from..to].to_owned();
                text.insert_str(pick(rng), &piece);
            }
            _ => text.truncate(to),
        }
        if text.len() > 4000 {
            break;
        }
    }
    text
}

#[test]
fn mutated_seeds_are_accepted_or_rejected() {
    // The same stack size as for queries.
    let thread = std::thread::Builder::new().stack_size(64 << 20);
    thread.spawn(mutate).unwrap().join().unwrap();
}

fn mutate() {
    let mut rng = fastrand::Rng::with_seed(7);
    let rounds = std::env::var("HQDL_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let queries = seeds("scanner");
    let specs = seeds("spec");
    for _ in 0..rounds {
        for (_, seed, _) in &queries {
            let sql = mutated(&mut rng, seed);
            if let Ok(translated) = hqdl::suql::translate(&sql) {
                let _ = scan_calls(&translated.sql);
            }
            let Ok((normalized, parsed)) = normalize_query(&sql, Syntax::default()) else {
                continue;
            };
            let site = CallSite::default();
            let sites = vec![site; parsed.calls.len()];
            let costs = Statistics::default();
            let rewritten =
                Rewriter::new(&normalized.sql, &sites, &Tables, &costs).rewrite(&parsed);
            let left = scan_calls(&rewritten.sql);
            assert!(left.is_ok_and(|l| l.is_empty()), "{sql}\n{}", rewritten.sql);
        }
        for (path, seed, _) in &specs {
            let _ = UncheckedSpec::parse(path, mutated(&mut rng, seed));
        }
    }
}
