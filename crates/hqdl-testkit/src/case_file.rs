//! Query cases as plain text: `tests/query/*.test`.
//!
//! ```text
//! # A line that starts with # says something to the reader.
//! -- what the case is about
//! db: heroes.sql                 a set-up script beside the case file
//! query: SELECT … {{LLMMap('fn:length', t.c)}} …
//!   (indented lines go on with the line before)
//! plain: SELECT … hq_length(t.c) …
//! asked: <= 7
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `plain` | plain SQL that gives the same rows, calls being real functions `hq_…` |
//! | `rows` | or the rows themselves, as JSON |
//! | `every` | with `plain`: as many rows as that gives, any of the rows of this |
//! | `order: yes` | the order counts |
//! | `columns` | the names of the columns, as JSON |
//! | `asked`, `requests` | values asked for and requests, from an empty cache: `7`, `<= 7`, or a SELECT that counts them |
//! | `again` | values asked for when the same is run once more (`0` if not said) |
//! | `exit` | the exit codes that may be (`0` if not said, `2` beside `error`) |
//! | `error` | instead of rows: what the error says |
//! | `says` | what stands on stderr |
//! | `flags` | more flags |
//! | `per_request` | values that share a request (`10` if not said) |
//! | `fault: 429 first 2`, `fault_on: text` | what goes wrong at the endpoint, and with which rows only |
//! | `change` | SQL that a stranger runs in the database before the next query |
//! | `mend: yes` | no faults from the next query on |
//!
//! A second `query` in a case runs on the same cache and database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;

use crate::endpoint::{Fault, Times};

/// A case: queries one after another on one cache.
#[derive(Debug, Default)]
pub struct Case {
    /// File, line and title.
    pub name: String,
    /// The set-up script.
    pub db: PathBuf,
    /// What goes wrong at the endpoint, how often, and with which rows.
    pub faults: Vec<(Fault, Times, Option<String>)>,
    /// The queries.
    pub steps: Vec<Step>,
}

/// A query and what is expected of it.
#[derive(Debug, Default)]
pub struct Step {
    /// SQL before it.
    pub change: Option<String>,
    /// No faults from here on.
    pub mend: bool,
    /// The query.
    pub query: String,
    /// The plain SQL that gives its rows.
    pub plain: Option<String>,
    /// The rows themselves.
    pub rows: Option<Vec<Vec<Json>>>,
    /// The rows among which any are right.
    pub every: Option<String>,
    /// Whether their order counts.
    pub ordered: bool,
    /// The names of the columns.
    pub columns: Option<Vec<String>>,
    /// Values asked for.
    pub asked: Option<Bound>,
    /// Requests made.
    pub requests: Option<Bound>,
    /// Values asked for by a second run.
    pub again: Option<Bound>,
    /// Exit codes that may be.
    pub exit: Vec<i32>,
    /// What the error says.
    pub error: Option<String>,
    /// What stands on stderr.
    pub says: Option<String>,
    /// More flags.
    pub flags: Vec<String>,
    /// Values that share a request.
    pub per_request: Option<usize>,
}

/// A number or the most that it may be.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Less is right too.
    pub at_most: bool,
    /// The number, or the SELECT that counts it.
    pub number: Result<u64, String>,
}

impl Bound {
    /// Nothing at all.
    pub fn zero() -> Self {
        Self { at_most: false, number: Ok(0) }
    }

    fn parse(text: &str) -> Self {
        let (at_most, text) = match text.strip_prefix("<=") {
            Some(rest) => (true, rest.trim()),
            None => (false, text),
        };
        Self { at_most, number: text.parse().map_err(|_| text.to_owned()) }
    }
}

/// All cases of a folder, in the order of their files.
pub fn cases(folder: &Path) -> Vec<Case> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "test"))
        .collect();
    files.sort();
    files.iter().flat_map(|file| read(file)).collect()
}

/// The cases of a file.
fn read(path: &Path) -> Vec<Case> {
    let file = path.file_name().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    let mut fields: Vec<(usize, String, String)> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let at = format!("{file}:{}", n + 1);
        if let Some(title) = line.strip_prefix("-- ") {
            close(&mut cases, &mut fields, file);
            let name = format!("{at} {title}");
            cases.push(Case { name, ..Case::default() });
        } else if line.starts_with([' ', '\t']) && !line.trim().is_empty() {
            let last = fields.last_mut().unwrap_or_else(|| panic!("{at}: nothing to go on with"));
            last.2.push('\n');
            last.2.push_str(line);
        } else if !line.starts_with('#') && !line.trim().is_empty() {
            let (field, value) =
                line.split_once(':').unwrap_or_else(|| panic!("{at}: no field in {line:?}"));
            fields.push((n + 1, field.to_owned(), value.trim().to_owned()));
        }
    }
    close(&mut cases, &mut fields, file);
    for case in &mut cases {
        assert!(!case.db.as_os_str().is_empty(), "{}: no db", case.name);
        case.db = path.with_file_name(&case.db);
        for step in &mut case.steps {
            let expects = step.plain.is_some() || step.rows.is_some() || step.error.is_some();
            assert!(expects && !step.query.is_empty(), "{}: expects nothing", case.name);
            if step.exit.is_empty() {
                step.exit.push(if step.error.is_some() { 2 } else { 0 });
            }
        }
    }
    cases
}

/// Gives the fields read so far to the last case.
fn close(cases: &mut [Case], fields: &mut Vec<(usize, String, String)>, file: &str) {
    let Some(case) = cases.last_mut() else {
        assert!(fields.is_empty(), "{file}: fields before the first case");
        return;
    };
    for (line, field, value) in fields.drain(..) {
        set(case, &field, value).unwrap_or_else(|why| panic!("{file}:{line}: {why}"));
    }
}

fn set(case: &mut Case, field: &str, value: String) -> Result<(), String> {
    let begins = match field {
        "query" => case.steps.last().is_none_or(|s| !s.query.is_empty()),
        "change" | "mend" => case.steps.last().is_none_or(|s| !s.query.is_empty()),
        _ => false,
    };
    if begins {
        case.steps.push(Step::default());
    }
    match field {
        "db" => {
            case.db = value.into();
            return Ok(());
        }
        "fault" => {
            let (fault, times) = fault(&value)?;
            case.faults.push((fault, times, None));
            return Ok(());
        }
        "fault_on" => {
            case.faults.last_mut().ok_or("no fault before")?.2 = Some(value);
            return Ok(());
        }
        _ => {}
    }
    let json = |text: &str| serde_json::from_str(text).map_err(|e| format!("{text}: {e}"));
    let step = case.steps.last_mut().ok_or("no query before")?;
    match field {
        "query" => step.query = value,
        "change" => step.change = Some(value),
        "mend" => step.mend = true,
        "plain" => step.plain = Some(value),
        "every" => step.every = Some(value),
        "rows" => {
            step.rows = Some(serde_json::from_value(json(&value)?).map_err(|e| e.to_string())?);
        }
        "columns" => {
            step.columns = Some(serde_json::from_value(json(&value)?).map_err(|e| e.to_string())?);
        }
        "order" => step.ordered = value == "yes",
        "asked" => step.asked = Some(Bound::parse(&value)),
        "requests" => step.requests = Some(Bound::parse(&value)),
        "again" => step.again = Some(Bound::parse(&value)),
        "exit" => {
            let codes = value.split(" or ").map(str::parse);
            step.exit = codes.collect::<Result<_, _>>().map_err(|e| format!("{value}: {e}"))?;
        }
        "error" => step.error = Some(value),
        "says" => step.says = Some(value),
        "flags" => step.flags = value.split_whitespace().map(str::to_owned).collect(),
        "per_request" => step.per_request = value.parse().ok(),
        _ => return Err(format!("no field {field}")),
    }
    Ok(())
}

/// `429 first 2`, `empty once`, `html always`, `missing_rows every 3`.
fn fault(text: &str) -> Result<(Fault, Times), String> {
    let mut words = text.split_whitespace();
    let fault = match words.next().unwrap_or_default() {
        "empty" => Fault::Empty,
        "prose" => Fault::Prose,
        "fence" => Fault::Fence,
        "truncated" => Fault::Truncated,
        "refusal" => Fault::Refusal,
        "refusal_in_words" => Fault::RefusalInWords,
        "content_filter" => Fault::ContentFilter,
        "html" => Fault::Body("text/html", "<html><body>Sign in to the portal</body></html>"),
        "outside_list" => Fault::OutsideList,
        "permuted" => Fault::Permuted,
        "missing_rows" => Fault::MissingRows,
        "swapped_keys" => Fault::SwappedKeys,
        "foreign_rows" => Fault::ForeignRows,
        "dropped" => Fault::Dropped,
        "no_usage" => Fault::NoUsage,
        "slow" => Fault::Latency(Duration::from_millis(30)),
        "context_length" => Fault::ContextLength(2),
        "429" => Fault::too_many("retry-after", "0"),
        "400" => Fault::status(400, "the prompt was found wanting", "invalid_prompt"),
        status => {
            let code = status.parse().map_err(|_| format!("no fault {status}"))?;
            Fault::status(code, "it went wrong", "test")
        }
    };
    let count = |word: Option<&str>| word.and_then(|w| w.parse().ok()).ok_or("how often?");
    let times = match words.next() {
        Some("always") => Times::Always,
        Some("first") => Times::First(count(words.next())?),
        Some("every") => Times::Every(count(words.next())?),
        _ => Times::Once,
    };
    Ok((fault, times))
}
