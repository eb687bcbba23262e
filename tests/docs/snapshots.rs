//! Snapshots of everything that users read: help, plans of runs and queries, errors. After a
//! change, `INSTA_UPDATE=always cargo test --test docs snapshots` updates them, for the reviewer to
//! read.

use insta::assert_snapshot;

use crate::guides::steady;
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

/// Queries, one per optimization rule.
const QUERIES: [(&str, &str); 17] = [
    (
        "stored",
        "SELECT name FROM hero WHERE {{LLMMap('What is the eye colour?', name, full_name)}} = 'Blue'",
    ),
    ("conditions_last", "SELECT name FROM hero WHERE {{LLMMap('Is it old?', name)}} AND id > 2"),
    (
        "order_of_conditions",
        "SELECT name FROM hero WHERE {{LLMMap('Is it old?', name)}} AND {{LLMMap('Does it fly?', name)}}",
    ),
    (
        "first_rows",
        "SELECT name FROM hero WHERE {{LLMMap('Is it old?', name)}} ORDER BY id LIMIT 2",
    ),
    (
        "one_witness",
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM hero WHERE {{LLMMap('Is it old?', name)}})",
    ),
    (
        "groups",
        "SELECT name, count(*) FROM hero WHERE {{LLMMap('Is it old?', name)}} GROUP BY name HAVING count(*) > 1",
    ),
    (
        "first_of_group",
        "SELECT full_name, max(id) FROM hero WHERE {{LLMMap('Is it old?', name)}} GROUP BY full_name",
    ),
    (
        "first_by_window",
        "SELECT name FROM (SELECT name, row_number() OVER (PARTITION BY full_name ORDER BY id) AS k FROM hero WHERE {{LLMMap('Is it old?', name)}}) WHERE k = 1",
    ),
    (
        "values_of_first_rows",
        "SELECT age FROM (SELECT {{LLMMap('How old is it?', name)}} AS age, rank() OVER (ORDER BY id) AS k FROM hero) WHERE k <= 3",
    ),
    (
        "largest_groups",
        "SELECT full_name, count(*) FROM hero WHERE {{LLMMap('Is it old?', name)}} GROUP BY full_name ORDER BY count(*) DESC LIMIT 2",
    ),
    (
        "kept_groups",
        "SELECT name, sum({{LLMMap('How old is it?', full_name, return_type='int')}}) FROM hero GROUP BY name HAVING count(*) > 1",
    ),
    (
        "other_side",
        "SELECT name FROM hero WHERE {{LLMMap('Is it old?', name)}} INTERSECT SELECT name FROM hero WHERE id < 3",
    ),
    (
        "all_rows",
        "SELECT {{LLMMap('How old is it?', name, return_type='int')}} AS age FROM hero ORDER BY 1",
    ),
    ("nested", "SELECT {{LLMMap('Which land?', {{LLMMap('Which town?', name)}})}} FROM hero"),
    ("context", "SELECT {{LLMQA('Who is oldest?', (SELECT name FROM hero))}}"),
    ("join", "SELECT a.name, b.name FROM hero a JOIN hero b ON {{LLMJoin(a.name, b.name)}}"),
    (
        "recursion",
        "WITH RECURSIVE r(x) AS (SELECT name FROM hero UNION SELECT {{LLMMap('Whose heir is it?', x)}} FROM r) \
         SELECT x FROM r",
    ),
];

fn said(project: &Project, args: &[&str]) -> String {
    let ended = project.run_hqdl(args);
    let mut text = format!("$ hqdl {}\n{}", args.join(" "), ended.stdout);
    if !ended.stderr.is_empty() {
        text = format!("{text}--- stderr\n{}", ended.stderr);
    }
    steady(&text, project)
}

#[test]
fn plans_of_queries() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    for (name, sql) in QUERIES {
        let text = said(&project, &["explain", "-v", "--spec", "specs/x.toml", sql]);
        assert_snapshot!(format!("explain_{name}"), text);
    }
}

#[test]
fn plans_of_runs() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    assert_snapshot!("plan", said(&project, &["plan", "specs/x.toml"]));
    assert_snapshot!("check", said(&project, &["check", "specs/x.toml"]));
}

#[test]
fn help() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    assert_snapshot!("help", said(&project, &["--help"]));
    for command in hqdl::cli::build_command().get_subcommands() {
        let name = command.get_name();
        assert_snapshot!(format!("help_{name}"), said(&project, &[name, "--help"]));
    }
}

#[test]
fn errors() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    for (name, sql) in [
        ("no_such_ingredient", "SELECT {{LLMRank('Which?', name)}} FROM hero"),
        ("no_such_argument", "SELECT {{LLMMap('Which?', name, colour='red')}} FROM hero"),
        ("no_such_column", "SELECT {{LLMMap('Which?', nmae)}} FROM hero"),
        ("no_end", "SELECT {{LLMMap('Which?', name) FROM hero"),
        ("no_sql", "SELEC 1"),
        (
            "options_and_type",
            "SELECT {{LLMMap('Which?', name, return_type='int', options=('a', 'b'))}} FROM hero",
        ),
    ] {
        let text = said(&project, &["query", "--spec", "specs/x.toml", sql]);
        assert_snapshot!(format!("error_{name}"), text);
    }
}
