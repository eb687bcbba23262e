//! A project directory with a database, a spec and its own cache, in which the built program runs.
//! Most tests use [`heroes_project`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::{Value as Json, json};
use unicode_normalization::UnicodeNormalization;

use crate::endpoint::Endpoint;

/// The API key in requests. It must not appear anywhere else.
pub const SECRET: &str = "sk-recognisable-0123456789abcdef";
/// Environment variable of the API key.
pub const SECRET_ENV: &str = "HQDL_TEST_KEY";

/// Spec with three models, without limits and expansions. [`with_models`] sets the endpoints.
const THREE_MODELS: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-4o-mini"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }

[model.large]
name = "gpt-4o"
base_url = "LARGE"
api_key_env = "HQDL_TEST_KEY"
price = { input = 10.0, output = 30.0 }

[model.other]
name = "gpt-4.1-nano"
base_url = "OTHER"
api_key_env = "HQDL_TEST_KEY"
price = { input = 0.5, output = 1.0 }

"#;

/// Returns a spec with the models `large` and `other` beside the first one, and the tables of
/// `spec` below them.
#[must_use]
pub fn with_models(spec: &str, large: &Endpoint, other: &Endpoint) -> String {
    let models =
        THREE_MODELS.replace("LARGE", &large.base_url()).replace("OTHER", &other.base_url());
    models + spec
}

/// A directory with a database, a spec and a cache.
pub struct Project {
    dir: tempfile::TempDir,
    base_url: String,
    cache: OnceLock<OsString>,
}

/// Result of a command.
#[derive(Debug)]
pub struct CommandResult {
    /// Exit code, or -1 after a signal.
    pub code: i32,
    /// Text on stdout.
    pub stdout: String,
    /// Text on stderr.
    pub stderr: String,
    /// The JSON lines of stdout.
    pub lines: Vec<Json>,
}

impl CommandResult {
    /// Parses the output of a process.
    pub fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stdout = text(&output.stdout);
        let lines = stdout.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        let code = output.status.code().unwrap_or(-1);
        Self { code, lines, stderr: text(&output.stderr), stdout }
    }

    /// Returns the last `done` event.
    pub fn done_event(&self) -> &Json {
        let event = self.lines.iter().rev().find(|l| l["event"] == "done");
        event.unwrap_or_else(|| panic!("no event `done`: {self:?}"))
    }

    /// Returns the result; panics with the whole output if the exit code differs.
    pub fn expect_exit_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self
    }
}

impl Project {
    /// Creates a project with `data.sqlite`, filled by `sql`, and `specs/x.toml`. In the spec,
    /// `{base_url}` is replaced with the endpoint's URL.
    pub fn new(endpoint: &Endpoint, sql: &str, spec: &str) -> Self {
        let (dir, base_url) = (tempfile::tempdir().unwrap(), endpoint.base_url());
        let project = Self { dir, base_url, cache: OnceLock::new() };
        std::fs::create_dir(project.path("specs")).unwrap();
        project.execute_sql(sql);
        project.write_spec(spec);
        project
    }

    /// Returns a path in the project.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the endpoint's URL.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Writes the spec.
    pub fn write_spec(&self, text: &str) {
        std::fs::write(self.path("specs/x.toml"), text.replace("{base_url}", &self.base_url))
            .unwrap();
    }

    /// Replaces the first occurrence of a text in the spec, which must contain it.
    pub fn edit_spec(&self, from: &str, to: &str) {
        let text = self.spec_text();
        assert!(text.contains(from), "{text}");
        self.write_spec(&text.replacen(from, to, 1));
    }

    /// Returns the text of the spec.
    pub fn spec_text(&self) -> String {
        std::fs::read_to_string(self.path("specs/x.toml")).unwrap()
    }

    /// Opens a separate connection to the database.
    pub fn connect(&self) -> Connection {
        Connection::open(self.path("data.sqlite")).unwrap()
    }

    /// Executes SQL in the database.
    pub fn execute_sql(&self, sql: &str) {
        self.connect().execute_batch(sql).unwrap();
    }

    /// Returns an hqdl command that runs in the project.
    pub fn hqdl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(crate::program_path());
        command.args(args);
        self.set_environment(&mut command);
        command
    }

    /// Returns the location of the facts: a directory of the project, or a new database on the test
    /// server if `HQDL_TESTS_ON_SERVER` is set. The same tests can thus run against both stores.
    pub fn cache_location(&self) -> &OsStr {
        self.cache.get_or_init(|| match std::env::var_os("HQDL_TESTS_ON_SERVER") {
            Some(_) => crate::postgres::create_database().into(),
            None => self.path("cache").into(),
        })
    }

    /// Sets a command's working directory and environment.
    pub fn set_environment(&self, command: &mut Command) {
        for proxy in
            ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
        {
            command.env_remove(proxy);
        }
        command
            .current_dir(self.dir.path())
            .env_remove("OPENAI_API_KEY")
            .env_remove("HQDL_LOG_FILE")
            .env_remove("RUST_LOG")
            .env("HOME", self.dir.path())
            .env("HQDL_CACHE", self.cache_location())
            .env(SECRET_ENV, SECRET)
            .stdin(Stdio::null());
    }

    /// Runs hqdl and waits for the result.
    pub fn run_hqdl(&self, args: &[&str]) -> CommandResult {
        CommandResult::new(&self.hqdl_command(args).output().unwrap())
    }

    /// Runs `hqdl materialize specs/x.toml --json` with additional flags.
    pub fn run_materialize(&self, flags: &[&str]) -> CommandResult {
        self.run_hqdl(&[&["materialize", "specs/x.toml", "--json"], flags].concat())
    }

    /// Runs `hqdl plan specs/x.toml --json` with additional flags.
    pub fn run_plan(&self, flags: &[&str]) -> Json {
        let ended = self
            .run_hqdl(&[&["plan", "specs/x.toml", "--json"], flags].concat())
            .expect_exit_code(0);
        ended.lines.into_iter().next().unwrap()
    }

    /// Starts hqdl.
    pub fn start_hqdl(&self, args: &[&str]) -> RunningCommand {
        let mut command = self.hqdl_command(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        RunningCommand::from_child(child)
    }

    /// Executes SQL in another database of the project.
    pub fn execute_sql_in(&self, database: &str, sql: &str) {
        Connection::open(self.path(database)).unwrap().execute_batch(sql).unwrap();
    }

    /// Returns the rows of a SELECT on the database.
    pub fn query_rows(&self, sql: &str) -> Vec<Vec<Json>> {
        self.query_rows_of("data.sqlite", sql)
    }

    /// Returns the rows of a SELECT on another database of the project.
    pub fn query_rows_of(&self, database: &str, sql: &str) -> Vec<Vec<Json>> {
        query_rows(&Connection::open(self.path(database)).unwrap(), sql)
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// Returns true if the database has the table.
    pub fn has_table(&self, name: &str) -> bool {
        !self.query_rows(&format!("SELECT 1 FROM sqlite_schema WHERE name = '{name}'")).is_empty()
    }

    /// Returns the rows of a SELECT on the fact store, in SQL that both stores support. Returns no
    /// rows if a killed program has not created the tables yet.
    pub fn query_facts(&self, sql: &str) -> Vec<Vec<Json>> {
        if let Some(url) = self.server_url() {
            let schema = "SELECT 1 FROM pg_namespace WHERE nspname = 'hqdl'";
            if crate::postgres::sql_at(url, schema).is_empty() {
                return Vec::new();
            }
            let rows = crate::postgres::sql_at(url, &format!("SET search_path = hqdl; {sql}"));
            // Convert numbers to JSON numbers and booleans to 0 and 1, as in SQLite.
            let value = |text: Option<String>| match text.as_deref() {
                None => Json::Null,
                Some("t") => 1.into(),
                Some("f") => 0.into(),
                Some(text) => serde_json::from_str(text)
                    .ok()
                    .filter(Json::is_number)
                    .unwrap_or_else(|| text.into()),
            };
            return rows.into_iter().map(|row| row.into_iter().map(value).collect()).collect();
        }
        let Ok(journal) = Connection::open_with_flags(
            self.path("cache/journal.sqlite"),
            rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
        ) else {
            return Vec::new();
        };
        match query_rows(&journal, sql) {
            Err(error) if error.to_string().contains("no such table") => Vec::new(),
            found => found.unwrap_or_else(|e| panic!("{sql}: {e}")),
        }
    }

    /// Modifies the fact store, in SQL that both stores support.
    pub fn change_facts(&self, sql: &str) {
        match self.server_url() {
            Some(url) => {
                crate::postgres::sql_at(url, &format!("SET search_path = hqdl; {sql}"));
            }
            None => self.execute_sql_in("cache/journal.sqlite", sql),
        }
    }

    /// Returns the URL of the fact store if it is on a server.
    fn server_url(&self) -> Option<&str> {
        self.cache_location().to_str().filter(|cache| cache.starts_with("postgres://"))
    }

    /// Returns the entity and column of each cell with a stored answer.
    pub fn stored_cells(&self) -> BTreeSet<(String, String)> {
        let sql = match self.server_url() {
            Some(_) => {
                "SELECT coalesce(a.entity, a.key), m.name
                 FROM answer AS a, json_array_elements(a.cells::json) AS c, meaning AS m
                 WHERE m.id = (c ->> 0)::int AND c ->> 2 <> 'error'"
            }
            None => {
                "SELECT a.entity, m.name FROM answer AS a JOIN json_each(a.cells) AS c
                 JOIN meaning AS m ON m.id = c.value ->> 0 WHERE c.value ->> 2 <> 'error'"
            }
        };
        let text = |j: &Json| j.as_str().unwrap().to_owned();
        self.query_facts(sql).iter().map(|r| (text(&r[0]), text(&r[1]))).collect()
    }

    /// Returns all files of the project that contain these bytes.
    pub fn files_with(&self, needle: &str) -> Vec<PathBuf> {
        fn visit(dir: &Path, needle: &[u8], found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    visit(&path, needle, found);
                } else if std::fs::read(&path)
                    .is_ok_and(|bytes| bytes.windows(needle.len()).any(|w| w == needle))
                {
                    found.push(path);
                }
            }
        }
        let mut found = Vec::new();
        visit(self.dir.path(), needle.as_bytes(), &mut found);
        found
    }
}

/// A running command. Threads read its output all the time, because a process blocks when a pipe is
/// full.
pub struct RunningCommand {
    child: Child,
    output_threads: [Option<JoinHandle<Vec<u8>>>; 2],
}

impl RunningCommand {
    /// Wraps any child process.
    pub fn from_child(mut child: Child) -> Self {
        fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.read_to_end(&mut bytes).unwrap();
                bytes
            })
        }
        let output_threads = [child.stdout.take().map(read), child.stderr.take().map(read)];
        Self { child, output_threads }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the signal with this name.
    pub fn send_signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Waits until the process handles SIGINT. Before that, the signal would simply kill it.
    pub fn wait_for_signal_handler(&self) {
        let status = format!("/proc/{}/status", self.id());
        let handles_sigint = || {
            let status = std::fs::read_to_string(&status).ok()?;
            let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:"))?;
            Some(u64::from_str_radix(mask.trim(), 16).ok()? & 0b10 != 0)
        };
        // Without this file, wait half a second.
        for _ in 0..if handles_sigint().is_some() { 24_000 } else { 100 } {
            if handles_sigint() == Some(true) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Returns true if the process has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the process to exit.
    pub fn wait_for_exit(mut self) -> CommandResult {
        // Close the process's stdin.
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        let [stdout, stderr] = self
            .output_threads
            .map(|thread| thread.map(|read| read.join().unwrap()).unwrap_or_default());
        CommandResult::new(&Output { status, stdout, stderr })
    }
}

/// Returns the rows of a SELECT.
///
/// # Errors
/// Returns `SQLite`'s error.
pub fn query_rows(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Json>>> {
    let mut statement = connection.prepare(sql)?;
    let width = statement.column_count();
    let mut rows = statement.query([])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let read = |n: usize| {
            Ok(match row.get_ref(n)? {
                ValueRef::Null => Json::Null,
                ValueRef::Integer(i) => i.into(),
                ValueRef::Real(r) => r.into(),
                ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
                ValueRef::Blob(bytes) => {
                    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
                    json!({ "blob": hex.concat() })
                }
            })
        };
        out.push((0..width).map(read).collect::<rusqlite::Result<_>>()?);
    }
    Ok(out)
}

/// Ten heroes whose names contain all kinds of special characters.
pub const HEROES: &str = "
CREATE TABLE hero (id INTEGER PRIMARY KEY, name TEXT, full_name TEXT, height INTEGER);
INSERT INTO hero (name, full_name, height) VALUES
  ('Blaze', 'Ann Fire', 170),
  ('Captain O''Malley', 'Sean O''Malley', 181),
  ('Doctor, the', 'Smith, John', 175),
  ('Dwayne \"Rock\" Stone', 'Dwayne Stone', 190),
  ('Echo', NULL, 160),
  ('Échappée', 'Zoé Müller', 168),
  ('007', 'James B', 183),
  ('Blaze', 'Bob Fire', 176),
  ('Pipe | Line', '-', 177),
  ('Zed', 'Zed Zedsson', 210);
CREATE TABLE power (power TEXT);
INSERT INTO power VALUES ('Flight'), ('Speed'), ('Strength, super'), ('Mind reading');
";

/// Number of heroes.
pub const HERO_COUNT: usize = 10;
/// Requested columns, in the spec's order.
pub const COLUMN_NAMES: [&str; 4] = ["eye_color", "born", "powers", "motto"];

/// Database and model sections of the specs.
pub const MODEL: &str = r#"
[database]
path = "../data.sqlite"

[model]
name = "test-model"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }

[limits]
concurrency = 4
"#;

/// The expansion of the heroes.
pub const EXPANSION: &str = r#"
[[expansion]]
name = "llm"
about = "Heroes of comics that nobody drew."
source = "hero"
key = ["name", "full_name"]
rows_per_request = 4
format = "csv"
"#;

/// The columns of the expansion.
pub const EXPANSION_COLUMNS: &str = r#"
[[expansion.column]]
name = "eye_color"
about = "colour of the eyes"
values = ["Blue", "Brown", "Green"]
questions = ["What is the eye colour?"]

[[expansion.column]]
name = "born"
type = "integer"
about = "year of birth"

[[expansion.column]]
name = "powers"
many = { table = "llm_power", column = "power" }
values = { sql = "SELECT power FROM power" }

[[expansion.column]]
name = "motto"
about = "what the hero says"
"#;

/// Returns the spec of the heroes.
pub fn heroes_spec() -> String {
    [MODEL, EXPANSION, EXPANSION_COLUMNS].concat()
}

/// Creates the heroes project with answers in csv or JSON. With `… list last`, the one-to-many
/// column is the last one, because csv answers are parsed differently then.
pub fn heroes_project(endpoint: &Endpoint, format: &str) -> Project {
    let (format, list_is_last) = match format.strip_suffix(" list last") {
        Some(format) => (format, true),
        None => (format, false),
    };
    let mut columns: Vec<&str> = EXPANSION_COLUMNS.split_inclusive("\n\n").collect();
    if list_is_last {
        columns.swap(2, 3);
    }
    let expansion = EXPANSION.replace("format = \"csv\"", &format!("format = \"{format}\""));
    Project::new(endpoint, HEROES, &[MODEL, &expansion, &columns.join("\n")].concat())
}

/// Returns the true value for a hero. Values differ between heroes, so that a value in the wrong
/// cell is noticed.
pub fn true_value(column: &str, key: &[Json]) -> Json {
    let parts: Vec<String> = key
        .iter()
        .map(|k| match k {
            Json::Null => "nobody".to_owned(),
            Json::String(text) => text.trim().nfc().collect(),
            other => other.to_string(),
        })
        .collect();
    let name = parts.join(" alias ");
    let hash = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    match column {
        "eye_color" => ["Blue", "Brown", "Green"][(hash % 3) as usize].into(),
        "sql" => "SELECT name FROM hero ORDER BY name LIMIT 2".into(),
        "dialect" => "sqlite".into(),
        "assumptions" | "cannot_answer" => Json::Null,
        "born" => (1900 + hash % 97).into(),
        "powers" => ["Flight", "Speed", "Strength, super", "Mind reading"]
            .into_iter()
            .enumerate()
            .filter(|(n, _)| hash >> (n + 3) & 1 == 1)
            .map(|(_, p)| p)
            .collect(),
        _ => format!("The {column} of {name}!").into(),
    }
}

/// Starts an endpoint that answers correctly about heroes.
pub fn truthful_endpoint() -> Endpoint {
    Endpoint::start_with(true_value)
}

/// Compares every published cell of `llm` with the true value. A cell in state `ok` must have the
/// true value; other states must have none. Returns the number of cells by state.
pub fn check_cells(project: &Project) -> BTreeMap<String, usize> {
    check_cells_in(project, "data.sqlite")
}

/// Like `check`, for another database of the project.
pub fn check_cells_in(project: &Project, database: &str) -> BTreeMap<String, usize> {
    let mut states = BTreeMap::new();
    let states_by_cell: BTreeMap<(String, String), String> = project
        .query_rows_of(
            database,
            "SELECT key, \"column\", state FROM hqdl_cell WHERE expansion = 'llm'",
        )
        .into_iter()
        .map(|r| {
            let text = |n: usize| r[n].as_str().unwrap().to_owned();
            ((text(0), text(1)), text(2))
        })
        .collect();
    let rows =
        project.query_rows_of(database, "SELECT name, full_name, eye_color, born, motto FROM llm");
    for row in &rows {
        let key = &row[..2];
        let state_of = |column: &str| {
            let state = states_by_cell.get(&(Json::from(key).to_string(), column.to_owned()));
            state.unwrap_or_else(|| panic!("{key:?} {column} has no state")).clone()
        };
        let mut count = |state: String| *states.entry(state).or_insert(0) += 1;
        for (column, value) in ["eye_color", "born", "motto"].iter().zip(&row[2..]) {
            let state = state_of(column);
            if state == "ok" {
                assert_eq!(*value, true_value(column, key), "{key:?} {column}");
            } else {
                assert!(value.is_null(), "{key:?} {column} is {state} and shows {value}");
            }
            count(state);
        }
        let literal = |k: &Json| match k {
            Json::Null => "NULL".to_owned(),
            Json::String(text) => format!("'{}'", text.replace('\'', "''")),
            other => other.to_string(),
        };
        let powers: BTreeSet<String> = project
            .query_rows_of(
                database,
                &format!(
                    "SELECT power FROM llm_power WHERE name IS {} AND full_name IS {}",
                    literal(&key[0]),
                    literal(&key[1])
                ),
            )
            .iter()
            .map(|r| r[0].as_str().unwrap().to_owned())
            .collect();
        let state = state_of("powers");
        if state == "ok" {
            let expected = true_value("powers", key);
            let expected: BTreeSet<String> = expected
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_str().unwrap().to_owned())
                .collect();
            assert_eq!(powers, expected, "{key:?} powers");
        } else {
            assert!(powers.is_empty(), "{key:?} powers is {state} and shows {powers:?}");
        }
        count(state);
    }
    states
}

/// Checks that every cell of every hero is published and correct.
pub fn check_complete(project: &Project) {
    let states = check_cells(project);
    assert_eq!(states, BTreeMap::from([("ok".to_owned(), HERO_COUNT * COLUMN_NAMES.len())]));
}
