//! Reads SWAN's questions. SWAN publishes two CSV files per database, one with HQDL's queries and
//! one with `BlendSQL`'s. They have no header; the columns are database, question, evidence, gold
//! SQL, difficulty, query, and in one of them a remark.
//!
//! hqdl also reads a single file with both kinds of queries. Its columns are named by a header, or
//! are name, question, evidence, difficulty, gold SQL, HQDL's SQL and `BlendSQL`'s SQL.

use hqdl_values::format::format_count;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use super::SwanError;

/// Kind of queries to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// HQDL's queries: plain SQL over the materialized tables.
    Hqdl,
    /// `BlendSQL`'s queries: SQL with calls.
    Blendsql,
}

impl Mode {
    /// Returns the name used in flags and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hqdl => "hqdl",
            Self::Blendsql => "blendsql",
        }
    }
}

/// One of SWAN's questions, with its queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchmarkQuestion {
    /// Name, such as `superhero-00`.
    pub qid: String,
    /// Text of the question.
    pub question: String,
    /// Query over the gold database that returns the correct answer.
    pub gold: String,
    /// HQDL's query.
    pub hqdl: Option<String>,
    /// `BlendSQL`'s query.
    pub blendsql: Option<String>,
}

impl BenchmarkQuestion {
    /// Returns the query for a mode, if there is one.
    #[must_use]
    pub fn find_query(&self, mode: Mode) -> Option<&str> {
        match mode {
            Mode::Hqdl => self.hqdl.as_deref(),
            Mode::Blendsql => self.blendsql.as_deref(),
        }
    }
}

/// BIRD's levels of difficulty. The position of their column identifies the layout of a file
/// without a header.
const DIFFICULTIES: [&str; 3] = ["simple", "moderate", "challenging"];

/// Index of each column in the questions file.
#[derive(Debug, Clone, Copy)]
struct QuestionColumns {
    qid: Option<usize>,
    question: usize,
    gold: usize,
    hqdl: Option<usize>,
    blendsql: Option<usize>,
    /// Columns of the database and of the query, in SWAN's own files.
    own_layout: Option<(usize, usize)>,
}

/// Reads questions. Questions without a name are named after `database`.
///
/// # Errors
/// [`SwanError`] if the file matches none of the known layouts.
pub fn read_questions(path: &Path, database: &str) -> Result<Vec<BenchmarkQuestion>, SwanError> {
    let bytes = std::fs::read(path).map_err(|e| SwanError::file(path, e))?;
    let name = path.display();
    let text = std::str::from_utf8(&bytes).map_err(|e| {
        let line = bytes[..e.valid_up_to()].split(|b| *b == b'\n').count();
        SwanError::wrong_input(
            format!("{name}, line {line}: text that is not UTF-8"),
            "save the file as UTF-8, then run this again",
        )
    })?;
    if let Some(line) = hqdl_values::csv::find_unclosed_field(&bytes, b',') {
        let message = format!("{name}, line {line}: {}", hqdl_values::csv::UNCLOSED_FIELD_MESSAGE);
        return Err(SwanError::wrong_input(message, LAYOUTS));
    }
    let text = text.trim_start_matches('\u{feff}');
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let (mut header, mut first) = (None, true);
    let (mut questions, mut seen) = (Vec::new(), HashSet::new());
    let mut others = BTreeSet::new();
    // SWAN's own files contain one kind of query each; only BlendSQL's queries contain calls.
    let calls = text.contains("{{");
    for row in reader.records() {
        let row = row.map_err(|e| {
            SwanError::wrong_input(
                format!("{name}: {}", hqdl_values::csv::describe_csv_error(&e)),
                LAYOUTS,
            )
        })?;
        let line = row.position().map_or(0, csv::Position::line);
        if std::mem::take(&mut first)
            && row.iter().any(|f| f.trim().eq_ignore_ascii_case("gold_sql"))
        {
            header = Some(match_header(&row, path)?);
            continue;
        }
        let columns = match header {
            Some(columns) => columns,
            None => match_position(&row).ok_or_else(|| {
                SwanError::wrong_input(
                    format!(
                        "{name}, line {line}: a row of {} matches no format of SWAN",
                        format_count(row.len() as u64, "column")
                    ),
                    LAYOUTS,
                )
            })?,
        };
        let field = |at: usize| row.get(at).map(str::trim).filter(|t| !t.is_empty());
        let query = columns.own_layout.and_then(|(_, at)| field(at)).map(str::to_owned);
        let row_database = columns.own_layout.and_then(|(at, _)| field(at)).unwrap_or(database);
        if !row_database.eq_ignore_ascii_case(database) {
            others.insert(row_database.to_owned());
            continue;
        }
        let gold = field(columns.gold).ok_or_else(|| {
            SwanError::wrong_input(format!("{name}, line {line}: no gold SQL"), LAYOUTS)
        })?;
        let qid = columns
            .qid
            .and_then(field)
            .map_or_else(|| format!("{database}-{:02}", questions.len()), str::to_owned);
        if !seen.insert(qid.clone()) {
            return Err(SwanError::wrong_input(
                format!("{name}, line {line}: a second question has the id {qid}"),
                "give each question its own id",
            ));
        }
        questions.push(BenchmarkQuestion {
            qid,
            question: field(columns.question).unwrap_or_default().to_owned(),
            gold: gold.to_owned(),
            hqdl: match columns.hqdl {
                Some(at) => field(at).map(str::to_owned),
                None => query.clone().filter(|_| !calls),
            },
            blendsql: match columns.blendsql {
                Some(at) => field(at).map(str::to_owned),
                None => query.filter(|_| calls),
            },
        });
    }
    if questions.is_empty() && !others.is_empty() {
        let others: Vec<String> = others.into_iter().collect();
        return Err(SwanError::wrong_input(
            format!("{name} is about {}, not about {database}", others.join(", ")),
            "pass the questions of this database, or the database of these questions",
        ));
    }
    if questions.is_empty() {
        return Err(SwanError::wrong_input(format!("{name} contains no questions"), LAYOUTS));
    }
    Ok(questions)
}

const LAYOUTS: &str = "pass a CSV file of SWAN, or one with the header qid, question, gold_sql, \
                     hqdl_sql, blendsql; docs/guides/swan.md describes both";

/// Returns the columns that a header names.
fn match_header(header: &csv::StringRecord, path: &Path) -> Result<QuestionColumns, SwanError> {
    let at = |names: &[&str]| {
        header.iter().position(|f| names.iter().any(|n| f.trim().eq_ignore_ascii_case(n)))
    };
    let missing = |name: &str| {
        let found: Vec<&str> = header.iter().collect();
        SwanError::wrong_input(
            format!("{}: no column `{name}` among {}", path.display(), found.join(", ")),
            LAYOUTS,
        )
    };
    Ok(QuestionColumns {
        qid: at(&["qid", "question_id", "id"]),
        question: at(&["question"]).ok_or_else(|| missing("question"))?,
        gold: at(&["gold_sql"]).ok_or_else(|| missing("gold_sql"))?,
        hqdl: Some(at(&["hqdl_sql"]).ok_or_else(|| missing("hqdl_sql"))?),
        blendsql: at(&["blendsql", "blendsql_2024", "blendsql_sql"]),
        own_layout: None,
    })
}

/// Returns the columns of a row without a header. The position of the difficulty identifies the
/// layout: in SWAN's own files it is between the gold SQL and the query; otherwise all queries
/// follow it.
fn match_position(row: &csv::StringRecord) -> Option<QuestionColumns> {
    let difficulty = row
        .iter()
        .position(|f| DIFFICULTIES.contains(&f.trim().to_lowercase().as_str()))
        .unwrap_or(3);
    if matches!((difficulty, row.len()), (4, 6 | 7)) {
        let own_layout = Some((0, 5));
        return Some(QuestionColumns {
            qid: None,
            question: 1,
            gold: 3,
            hqdl: None,
            blendsql: None,
            own_layout,
        });
    }
    let fits = matches!((difficulty, row.len()), (2, 5 | 6) | (3, 6 | 7));
    fits.then(|| QuestionColumns {
        qid: (difficulty == 3).then_some(0),
        question: difficulty - 2,
        gold: difficulty + 1,
        hqdl: Some(difficulty + 2),
        blendsql: (row.len() > difficulty + 3).then_some(difficulty + 3),
        own_layout: None,
    })
}
