//! The tutorial is run from top to bottom, and shows what the commands say.
//! `HQDL_UPDATE_DOCS=1` writes down what they say instead.

use std::fmt::Write as _;
use std::path::Path;

use regex::Regex;
use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::{Daemon, until};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::Project;

/// What its model knows.
fn known(column: &str, key: &[Json]) -> Json {
    let (country, continent, river) = match key[0].as_str().unwrap_or_default() {
        "Kyoto" => ("Japan", "Asia", "Kamo"),
        "Lima" => ("Peru", "America", "Rímac"),
        "Lisbon" => ("Portugal", "Europe", "Tagus"),
        "Nairobi" => ("Kenya", "Africa", "Nairobi"),
        "Oslo" => ("Norway", "Europe", "Akerselva"),
        _ => ("?", "America", "?"),
    };
    if column == "country" && country == "?" {
        return Json::Null;
    }
    json!(match column {
        "country" => country,
        "continent" => continent,
        _ => river,
    })
}

/// A fenced block: what stands behind its fence, and its lines.
enum Part<'t> {
    Text(&'t str),
    Block(&'t str, Vec<&'t str>),
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        match line.strip_prefix("```") {
            Some(info) => {
                parts.push(Part::Block(info, lines.by_ref().take_while(|l| *l != "```").collect()));
            }
            None => parts.push(Part::Text(line)),
        }
    }
    parts
}

/// The commands of a console block: each goes on while a quote is open.
fn commands(lines: &[&str]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in lines {
        match (is_open, line.strip_prefix("$ ")) {
            (true, _) => write!(commands.last_mut().unwrap(), "\n{line}").unwrap(),
            (false, Some(command)) => commands.push(command.to_owned()),
            (false, None) => continue,
        }
        is_open = commands.last().unwrap().matches('"').count() % 2 == 1;
    }
    commands
}

/// What differs from run to run, as the page shows it.
pub fn steady(said: &str, project: &Project) -> String {
    let mut said = said.replace(&project.path("").display().to_string(), "/home/you/cities/");
    said = said.replace(project.base_url(), "http://127.0.0.1:11434/v1");
    for (rule, with) in [
        (r"\d+\.\d+ s\b", "0.3 s"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "2026-11-22T09:30:00Z"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:4735"),
        (r"(process|pid) \d+", "$1 4711"),
        (r"\b(p1|c1|l1):[0-9a-f]{32}", "$1:0123456789abcdef0123456789abcdef"),
        (r" +\n", "\n"),
        // How it is emitted is no part of the page.
        (r"(?m)^sql        .*\n( {15}.*\n)*", "sql        …\n"),
    ] {
        said = Regex::new(rule).unwrap().replace_all(&said, with).into_owned();
    }
    said
}

#[test]
fn the_tutorial_says_what_the_commands_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorial.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let endpoint = Endpoint::start(known);
    let project = Project::new(&endpoint, "", "");
    for made in ["data.sqlite", "specs/x.toml"] {
        std::fs::remove_file(project.path(made)).unwrap();
    }
    std::fs::remove_dir(project.path("specs")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_hqdl")).parent().unwrap();
    let search = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut daemon = None;
    let mut page = String::new();
    for part in parts(&text) {
        let (info, lines) = match part {
            Part::Text(line) => {
                writeln!(page, "{line}").unwrap();
                continue;
            }
            Part::Block(info, lines) => (info, lines),
        };
        writeln!(page, "```{info}").unwrap();
        match info.split_once(' ') {
            None if info == "console" => {
                for command in commands(&lines) {
                    let mut shell = std::process::Command::new("sh");
                    project.surroundings(&mut shell);
                    shell.args(["-c", &format!("{{ {command}\n}} 2>&1")]).env("PATH", &search);
                    let said = shell.output().unwrap();
                    let said = String::from_utf8(said.stdout).unwrap();
                    write!(page, "$ {command}\n{}", steady(&said, &project)).unwrap();
                }
            }
            None => {
                assert_eq!((info, &*lines), ("sh", &["hqdl daemon"][..]));
                let started = Daemon::start(&project, &[]);
                until("complete", || started.status()["specs"][0]["state"] == "complete");
                daemon = Some(started);
                writeln!(page, "{}", lines.join("\n")).unwrap();
            }
            Some((_, file)) => {
                let content = lines.join("\n") + "\n";
                write!(page, "{content}").unwrap();
                let content = content.replace("http://127.0.0.1:11434/v1", project.base_url());
                std::fs::write(project.path(file), content).unwrap();
            }
        }
        page.push_str("```\n");
    }
    drop(daemon);
    if std::env::var_os("HQDL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    for (n, (shown, said)) in text.lines().zip(page.lines()).enumerate() {
        assert_eq!(said, shown, "line {}", n + 1);
    }
    assert_eq!(page, text);
}
