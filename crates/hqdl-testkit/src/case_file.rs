//! Query cases as plain text: `tests/queries/cases/*.test`.
//!
//! ```text
//! # A line that starts with # is a comment.
//! -- title of the case
//! db: heroes.sql                 a setup script next to the case file
//! query: SELECT … {{LLMMap('fn:length', t.c)}} …
//!   (indented lines continue the line before)
//! plain: SELECT … hq_length(t.c) …
//! asked: <= 7
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `plain` | plain SQL with the same rows; calls are replaced by SQL functions `hq_…` |
//! | `rows` | the expected rows as JSON |
//! | `every` | with `plain`: the same number of rows as `plain`, each of them a row of this query |
//! | `order: yes` | compare the order of the rows |
//! | `columns` | the expected column names as JSON |
//! | `asked`, `requests` | number of requested values and of requests, with an empty cache: `7`, `<= 7`, or a SELECT that counts them |
//! | `again` | number of values requested by a second run (default `0`) |
//! | `exit` | allowed exit codes (default `0`, or `2` with `error`) |
//! | `error` | text of the expected error, instead of rows |
//! | `says` | expected text on stderr |
//! | `flags` | additional flags |
//! | `per_request` | number of values per request (default `10`) |
//! | `embeddings: yes` | the spec has `[embeddings]`, with an endpoint that counts letters |
//! | `embedded` | number of texts that are embedded, with an empty cache |
//! | `fault: 429 first 2`, `fault_on: text` | endpoint fault, optionally only for some rows |
//! | `change` | SQL that another connection runs before the next query |
//! | `mend: yes` | no faults from the next query on |
//!
//! A second `query` in a case uses the same cache and database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;

use crate::endpoint::{Fault, Frequency};

/// A case: a sequence of queries on one cache.
#[derive(Debug, Default)]
pub struct Case {
    /// File, line and title of the case.
    pub name: String,
    /// Path of the setup script.
    pub db: PathBuf,
    /// Endpoint faults: the fault, its frequency, and a text that the affected rows contain.
    pub faults: Vec<(Fault, Frequency, Option<String>)>,
    /// Whether the spec names an embedding model.
    pub has_embeddings: bool,
    pub steps: Vec<Step>,
}

/// A query and its expected result.
#[derive(Debug, Default)]
pub struct Step {
    /// SQL to run before the query.
    pub change: Option<String>,
    /// Whether faults end before this query.
    pub clears_faults: bool,
    pub query: String,
    /// Plain SQL that returns the expected rows.
    pub plain: Option<String>,
    /// The expected rows.
    pub rows: Option<Vec<Vec<Json>>>,
    /// SQL whose result contains all allowed rows.
    pub every: Option<String>,
    /// Whether the order of the rows is compared.
    pub ordered: bool,
    /// The expected column names.
    pub columns: Option<Vec<String>>,
    /// Number of requested values.
    pub asked: Option<ExpectedCount>,
    /// Number of texts to embed.
    pub embedded: Option<ExpectedCount>,
    /// Number of requests.
    pub requests: Option<ExpectedCount>,
    /// Number of values requested by a second run.
    pub repeated: Option<ExpectedCount>,
    /// Allowed exit codes.
    pub exit: Vec<i32>,
    /// Text of the expected error.
    pub error: Option<String>,
    /// Expected text on stderr.
    pub stderr_text: Option<String>,
    /// Additional flags.
    pub flags: Vec<String>,
    /// Number of values per request.
    pub per_request: Option<usize>,
}

/// An expected number, exact or as an upper bound.
#[derive(Debug, Clone)]
pub struct ExpectedCount {
    /// Whether smaller numbers are allowed.
    pub is_upper_bound: bool,
    /// The number, or a SELECT that counts it.
    pub number: Result<u64, String>,
}

impl ExpectedCount {
    /// Expects exactly zero.
    pub fn zero() -> Self {
        Self { is_upper_bound: false, number: Ok(0) }
    }

    fn parse(text: &str) -> Self {
        let (at_most, text) = match text.strip_prefix("<=") {
            Some(rest) => (true, rest.trim()),
            None => (false, text),
        };
        Self { is_upper_bound: at_most, number: text.parse().map_err(|_| text.to_owned()) }
    }
}

/// Returns the cases of all files in a folder, in the order of the file names.
pub fn read_cases(folder: &Path) -> Vec<Case> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "test"))
        .collect();
    files.sort();
    files.iter().flat_map(|file| read_case_file(file)).collect()
}

/// Reads the cases of a file.
fn read_case_file(path: &Path) -> Vec<Case> {
    let file = path.file_name().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    let mut fields: Vec<(usize, String, String)> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let location = format!("{file}:{}", n + 1);
        if let Some(title) = line.strip_prefix("-- ") {
            finish_case(&mut cases, &mut fields, file);
            let name = format!("{location} {title}");
            cases.push(Case { name, ..Case::default() });
        } else if line.starts_with([' ', '\t']) && !line.trim().is_empty() {
            let last =
                fields.last_mut().unwrap_or_else(|| panic!("{location}: nothing to go on with"));
            last.2.push('\n');
            last.2.push_str(line);
        } else if !line.starts_with('#') && !line.trim().is_empty() {
            let (field, value) =
                line.split_once(':').unwrap_or_else(|| panic!("{location}: no field in {line:?}"));
            fields.push((n + 1, field.to_owned(), value.trim().to_owned()));
        }
    }
    finish_case(&mut cases, &mut fields, file);
    for case in &mut cases {
        assert!(!case.db.as_os_str().is_empty(), "{}: no db", case.name);
        case.db = path.with_file_name(&case.db);
        for step in &mut case.steps {
            let has_expectation =
                step.plain.is_some() || step.rows.is_some() || step.error.is_some();
            assert!(has_expectation && !step.query.is_empty(), "{}: expects nothing", case.name);
            if step.exit.is_empty() {
                step.exit.push(if step.error.is_some() { 2 } else { 0 });
            }
        }
    }
    cases
}

/// Assigns the fields read so far to the last case.
fn finish_case(cases: &mut [Case], fields: &mut Vec<(usize, String, String)>, file: &str) {
    let Some(case) = cases.last_mut() else {
        assert!(fields.is_empty(), "{file}: fields before the first case");
        return;
    };
    for (line, field, value) in fields.drain(..) {
        set_field(case, &field, value).unwrap_or_else(|error| panic!("{file}:{line}: {error}"));
    }
}

fn set_field(case: &mut Case, field: &str, value: String) -> Result<(), String> {
    let starts_step = match field {
        "query" => case.steps.last().is_none_or(|s| !s.query.is_empty()),
        "change" | "mend" => case.steps.last().is_none_or(|s| !s.query.is_empty()),
        _ => false,
    };
    if starts_step {
        case.steps.push(Step::default());
    }
    match field {
        "db" => {
            case.db = value.into();
            return Ok(());
        }
        "embeddings" => {
            case.has_embeddings = value == "yes";
            return Ok(());
        }
        "fault" => {
            let (fault, times) = parse_fault(&value)?;
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
        "mend" => step.clears_faults = true,
        "plain" => step.plain = Some(value),
        "every" => step.every = Some(value),
        "rows" => {
            step.rows = Some(serde_json::from_value(json(&value)?).map_err(|e| e.to_string())?);
        }
        "columns" => {
            step.columns = Some(serde_json::from_value(json(&value)?).map_err(|e| e.to_string())?);
        }
        "order" => step.ordered = value == "yes",
        "asked" => step.asked = Some(ExpectedCount::parse(&value)),
        "embedded" => step.embedded = Some(ExpectedCount::parse(&value)),
        "requests" => step.requests = Some(ExpectedCount::parse(&value)),
        "again" => step.repeated = Some(ExpectedCount::parse(&value)),
        "exit" => {
            let codes = value.split(" or ").map(str::parse);
            step.exit = codes.collect::<Result<_, _>>().map_err(|e| format!("{value}: {e}"))?;
        }
        "error" => step.error = Some(value),
        "says" => step.stderr_text = Some(value),
        "flags" => step.flags = value.split_whitespace().map(str::to_owned).collect(),
        "per_request" => step.per_request = value.parse().ok(),
        _ => return Err(format!("no field {field}")),
    }
    Ok(())
}

/// Parses a fault such as `429 first 2`, `empty once`, `html always` or `missing_rows every 3`.
fn parse_fault(text: &str) -> Result<(Fault, Frequency), String> {
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
        Some("always") => Frequency::Always,
        Some("first") => Frequency::First(count(words.next())?),
        Some("every") => Frequency::Every(count(words.next())?),
        _ => Frequency::Once,
    };
    Ok((fault, times))
}
