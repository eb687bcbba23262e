//! Runs each page of docs/guides from top to bottom and compares the output of its commands.
//! `HQDL_UPDATE_DOCS=1 cargo test --test docs -- guides` writes the output into the pages.
//!
//! The first comment of a page names what the page needs: `nothing`, the files of the `demo`, a
//! `postgres` server, the `swan` data, or an endpoint. For an endpoint, the comment has JSON with
//! the facts that its model knows: `{"Kyoto": {"country": "Japan"}}`, by key (or a part of the
//! text) and by column (or question). `reasons` makes the model reason.
//!
//! Blocks: `console` has commands after `$ ` with their output; a language followed by a file
//! name is written to that file; `sh` with `hqdl daemon …` starts the daemon. Others are not run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_json::Value as Json;

use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::engine::shared_folder;
use hqdl_testkit::postgres;
use hqdl_testkit::project::Project;
use hqdl_testkit::repository_root;

macro_rules! guides {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        $(#[test] $(#[$attribute])* fn $name() { run_guide(&page_of(stringify!($name))); })*
        const GUIDES: &[&str] = &[$(stringify!($name)),*];
    };
}

guides! {
    first_database,
    csv_to_table,
    choose_a_model,
    several_models,
    local_models,
    large_runs,
    batch_api,
    keep_tables_fresh,
    daemon_page,
    daemon_service,
    correct_values,
    audit_answers,
    queries,
    ask,
    chat,
    assistant,
    documents,
    evidence,
    web_search,
    images,
    audio,
    python,
    sqlite_extension,
    parquet,
    #[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
    shared_cache,
    #[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
    postgresql_database,
    #[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
    swan,
}

/// Returns the path of a guide: `csv_to_table` is docs/guides/csv-to-table.md.
fn page_of(name: &str) -> PathBuf {
    repository_root().join("docs/guides").join(name.replace('_', "-")).with_extension("md")
}

#[test]
fn every_guide_is_run() {
    let mut pages: Vec<PathBuf> = GUIDES.iter().map(|name| page_of(name)).collect();
    let files = std::fs::read_dir(repository_root().join("docs/guides")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    files.sort();
    assert_eq!(files, pages);
}

/// A guide can be read in one sitting.
#[test]
fn no_guide_is_longer_than_120_lines() {
    for page in GUIDES.iter().map(|name| page_of(name)) {
        let lines = std::fs::read_to_string(&page).unwrap().lines().count();
        assert!(lines <= 120, "{}: {lines} lines", page.display());
    }
}

/// A rendered page does not show the file name of a block, so the text before it names the file.
#[test]
fn the_text_before_each_file_names_it() {
    let file_block = Regex::new(r"(?m)((?:^.+\n)+)\n*```\w+ (\S+)$").unwrap();
    for page in GUIDES.iter().map(|name| page_of(name)) {
        let text = std::fs::read_to_string(&page).unwrap();
        for found in file_block.captures_iter(&text) {
            let name = format!("`{}`", &found[2]);
            assert!(found[1].contains(&name), "{}: no sentence names {name}", page.display());
        }
    }
}

/// The systemd unit in the guide has no line that the example does not have.
#[test]
fn the_unit_in_the_guide_matches_the_example() {
    let page = std::fs::read_to_string(page_of("daemon_service")).unwrap();
    let unit = page.split("```ini\n").nth(1).unwrap().split("```").next().unwrap();
    let example =
        std::fs::read_to_string(repository_root().join("examples/daemon/hqdl.service")).unwrap();
    for line in unit.lines().filter(|line| !line.starts_with("Description")) {
        assert!(example.lines().any(|known| known == line), "{line}");
    }
}

/// Requirements of a page, from its first comment.
struct Needs {
    words: Vec<String>,
    facts: BTreeMap<String, BTreeMap<String, Json>>,
}

impl Needs {
    fn parse(text: &str) -> Self {
        let comment = text.strip_prefix("<!-- needs: ").and_then(|rest| rest.split_once("-->"));
        let comment = comment.expect("the first comment of a guide says what it needs").0.trim();
        let (words, facts) = comment.split_at(comment.find('{').unwrap_or(comment.len()));
        let facts = if facts.is_empty() { "{}" } else { facts };
        Self {
            words: words.split_whitespace().map(str::to_owned).collect(),
            facts: serde_json::from_str(facts).unwrap(),
        }
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }

    fn start_endpoint(&self) -> Endpoint {
        let facts = self.facts.clone();
        let endpoint = Endpoint::start_answering(move |column, row| {
            let texts: Vec<&str> =
                row.key.iter().chain(&row.context).filter_map(Json::as_str).collect();
            let about = |name: &str| texts.iter().any(|text| text.contains(name));
            let mut known =
                facts.iter().filter(|(name, _)| about(name)).map(|(_, columns)| columns);
            let value = |columns: &BTreeMap<String, Json>| {
                columns.get(&column.name).or(columns.get(&column.about)).cloned()
            };
            known.find_map(value).unwrap_or_default()
        });
        if self.has("reasons") {
            endpoint.add_fault(Fault::HiddenReasoning(300), Frequency::Always);
        }
        endpoint
    }

    /// Puts the files that the page needs into its folder.
    fn copy_files(&self, project: &Project) {
        let link = |from: PathBuf, to: &str| {
            std::fs::create_dir_all(project.path(to).parent().unwrap()).unwrap();
            std::fs::copy(from, project.path(to)).unwrap();
        };
        if self.has("demo") {
            for file in ["superhero.sqlite", "answers.jsonl"] {
                let path = format!("examples/superhero/{file}");
                link(repository_root().join(&path), &path);
            }
            link(repository_root().join("specs/superhero.toml"), "specs/superhero.toml");
        }
        if let Some(data) = shared_folder("swan").filter(|_| self.has("swan")) {
            link(data.join("superhero.sqlite"), "dev_databases/superhero/superhero.sqlite");
            link(data.join("questions-superhero.csv"), "superheroQueries.csv");
        }
    }
}

/// A page that is being run: its folder, its servers, and the names that the page gives them.
struct Guide {
    project: Project,
    daemon: Option<Daemon>,
    /// A text of the page, and the text that replaces it in a command.
    names: Vec<(String, String)>,
}

impl Guide {
    fn new(text: &str, needs: &Needs, endpoint: &Endpoint) -> Self {
        let project = Project::new(endpoint, "", "");
        for made in ["data.sqlite", "specs/x.toml"] {
            std::fs::remove_file(project.path(made)).unwrap();
        }
        std::fs::remove_dir(project.path("specs")).unwrap();
        needs.copy_files(&project);
        let mut names = Vec::new();
        for url in ["http://127.0.0.1:11434/v1", "https://llm.example.org/v1"] {
            if text.contains(url) && !needs.facts.is_empty() {
                names.push((url.to_owned(), project.base_url().to_owned()));
            }
        }
        let server = Regex::new(r"postgres://\w+@db\.example\.org/\w+").unwrap();
        for url in server.find_iter(text).filter(|_| needs.has("postgres")) {
            if !names.iter().any(|(name, _)| name == url.as_str()) {
                names.push((url.as_str().to_owned(), postgres::create_database()));
            }
        }
        Self { project, daemon: None, names }
    }

    /// Runs a command in a shell and returns its output with the page's names.
    fn run(&self, command: &str) -> String {
        let program = Path::new(env!("CARGO_BIN_EXE_hqdl")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        self.project.set_environment(&mut shell);
        shell.env("PATH", path).env("LLM_API_KEY", "sk-example");
        if self.names.iter().any(|(name, _)| name.starts_with("postgres")) {
            shell.env_remove("HQDL_CACHE");
        }
        let command = format!("{{ {}\n}} 2>&1", self.with_addresses(command));
        let output = shell.args(["-c", &command]).output().unwrap();
        let mut output = String::from_utf8(output.stdout).unwrap();
        for (name, address) in &self.names {
            output = output.replace(address, name);
        }
        steady(&output, &self.project)
    }

    fn with_addresses(&self, text: &str) -> String {
        let daemon = self.daemon.as_ref().map_or("127.0.0.1:4735", |daemon| &daemon.address);
        let mut text = text.replace("127.0.0.1:4735", daemon);
        for (name, address) in &self.names {
            text = text.replace(name, address);
        }
        text
    }

    /// Starts `hqdl daemon …` and waits until its specs are complete or wait for approval.
    fn start_daemon(&mut self, command: &str) {
        let flags: Vec<&str> = command.trim_end_matches('&').split_whitespace().skip(2).collect();
        let daemon = Daemon::start(&self.project, &flags);
        wait_until("the specs rest", || {
            let status = daemon.status();
            let specs = status["specs"].as_array().unwrap();
            specs.iter().all(|s| s["state"] == "complete" || s["state"] == "planned")
        });
        self.daemon = Some(daemon);
    }

    /// Runs a block and returns it with the output of its commands.
    fn run_block(&mut self, info: &str, lines: &[&str]) -> String {
        let content = lines.join("\n") + "\n";
        if info == "console" {
            return commands(lines).iter().fold(String::new(), |page, command| {
                page + "$ " + command + "\n" + &self.run(command)
            });
        }
        if let Some((_, file)) = info.split_once(' ') {
            let path = self.project.path(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, self.with_addresses(&content)).unwrap();
        } else if info == "sh" && content.starts_with("hqdl daemon") {
            self.start_daemon(lines[0]);
        }
        content
    }
}

/// Runs a page and compares it with its text, or writes it.
fn run_guide(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let needs = Needs::parse(&text);
    let endpoint = needs.start_endpoint();
    let mut guide = Guide::new(&text, &needs, &endpoint);
    let mut page = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(page, "{line}").unwrap();
        if let Some(info) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            page += &guide.run_block(info, &block);
            page += "```\n";
        }
    }
    if std::env::var_os("HQDL_UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
        return;
    }
    for (n, (shown, run)) in text.lines().zip(page.lines()).enumerate() {
        assert_eq!(run, shown, "{}, line {}", path.display(), n + 1);
    }
    assert_eq!(page, text);
}

/// Returns the commands of a console block: each continues while a quote is open.
fn commands(lines: &[&str]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in lines {
        match (is_open, line.strip_prefix("$ ")) {
            (true, _) => write!(commands.last_mut().unwrap(), "\n{line}").unwrap(),
            (false, Some(command)) => commands.push(command.to_owned()),
            (false, None) => continue,
        }
        let command = commands.last().unwrap();
        is_open = ['"', '\''].iter().any(|quote| command.matches(*quote).count() % 2 == 1);
    }
    commands
}

/// Ollama's address, which the pages show for the endpoint.
const OLLAMA: &str = "127.0.0.1:11434";

/// Replaces text that differs between runs by the text in the page.
pub fn steady(text: &str, project: &Project) -> String {
    let mut text = text.replace(&project.path("").display().to_string(), "/home/you/cities/");
    let endpoint = project.base_url().trim_start_matches("http://").trim_end_matches("/v1");
    text = text.replace(endpoint, OLLAMA);
    for (rule, with) in [
        (r"\d+\.\d+ s\b", "0.3 s"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "2026-11-22T09:30:00Z"),
        (r"(process|pid) \d+", "$1 4711"),
        (r"\b(p1|c1|l1):[0-9a-f]{32}", "$1:0123456789abcdef0123456789abcdef"),
        (r"hqdl-[0-9a-f]{24}", "hqdl-0123456789abcdef01234567"),
        (r" +\n", "\n"),
        // The SQL that hqdl generates is not part of the page.
        (r"(?m)^sql        .*\n( {15}.*\n)*", "sql        …\n"),
    ] {
        text = Regex::new(rule).unwrap().replace_all(&text, with).into_owned();
    }
    let address = Regex::new(r"127\.0\.0\.1:\d+").unwrap();
    let daemon = |found: &regex::Captures<'_>| match &found[0] {
        OLLAMA => OLLAMA.to_owned(),
        _ => "127.0.0.1:4735".to_owned(),
    };
    address.replace_all(&text, daemon).into_owned()
}
