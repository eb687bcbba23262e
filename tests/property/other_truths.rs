//! Truths that agree with the true one on everything that was requested, and on nothing else.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::Value as Sql;
use serde_json::Value as Json;

use hqdl_testkit::functions::{compute_function, register_modified};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Same,
    Null,
    Flipped,
    Seeded(u64),
}

/// Whether answers distinguish texts that differ only in case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterCase {
    Told,
    Ignored,
}

impl LetterCase {
    /// Returns the text that answers distinguish.
    pub fn fold(self, text: &str) -> String {
        if self == Self::Told { text.to_owned() } else { text.to_lowercase() }
    }

    /// Returns the answer that is distinguished.
    pub fn fold_answer(self, answer: Json) -> Json {
        match answer {
            Json::String(text) => self.fold(&text).into(),
            other => other,
        }
    }
}

/// The values of the functions.
#[derive(Debug, Clone)]
pub struct Truth {
    agreed: Arc<HashSet<(String, String)>>,
    other: Other,
    case: LetterCase,
}

impl Truth {
    /// Returns the real truth.
    pub fn of(case: LetterCase) -> Self {
        Self { agreed: Arc::default(), other: Other::Same, case }
    }

    /// Returns rows as this truth distinguishes them.
    pub fn read(&self, rows: Vec<Vec<Sql>>) -> Vec<Vec<Sql>> {
        let read = |cell| match cell {
            Sql::Text(text) => Sql::Text(self.case.fold(&text)),
            other => other,
        };
        rows.into_iter().map(|row| row.into_iter().map(read).collect()).collect()
    }

    /// Returns the truths under which the rows must be the same.
    pub fn others(agreed: HashSet<(String, String)>, seed: u64, case: LetterCase) -> Vec<Self> {
        let folded = agreed.into_iter().map(|(question, value)| (question, case.fold(&value)));
        let agreed = Arc::new(folded.collect());
        let all = [Other::Null, Other::Flipped, Other::Seeded(seed), Other::Seeded(!seed)];
        all.map(|other| Self { agreed: Arc::clone(&agreed), other, case }).to_vec()
    }
}

impl fmt::Display for Truth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.other {
            Other::Same => write!(f, "stands"),
            Other::Null => write!(f, "is NULL"),
            Other::Flipped => write!(f, "is the contrary"),
            Other::Seeded(seed) => write!(f, "is anything ({seed})"),
        }
    }
}

/// Registers the functions of a truth with a connection.
pub fn register(connection: &Connection, truth: &Truth) {
    let truth = truth.clone();
    register_modified(connection, move |name, parameter, value, found| {
        let value = &truth.case.fold(value);
        let found = match truth.case {
            LetterCase::Told => found,
            LetterCase::Ignored => truth.case.fold_answer(compute_function(name, value, parameter)),
        };
        let question = match parameter {
            "" => format!("fn:{name}"),
            parameter => format!("fn:{name}:{parameter}"),
        };
        if truth.other == Other::Same
            || truth.agreed.contains(&(question.clone(), value.to_owned()))
        {
            return found;
        }
        match truth.other {
            Other::Same => found,
            Other::Null => Json::Null,
            Other::Flipped => contrary(found),
            Other::Seeded(seed) => {
                let text = format!("{question}|{value}");
                let hash = text.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, b| {
                    (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
                });
                match (hash >> 32) % 4 {
                    0 => Json::Null,
                    1 => found,
                    _ => contrary(found),
                }
            }
        }
    });
}

fn contrary(found: Json) -> Json {
    match found {
        Json::Bool(b) => (!b).into(),
        Json::Number(n) => (n.as_i64().unwrap() * 3 + 1).into(),
        Json::String(text) => text.chars().rev().collect::<String>().into(),
        _ => Json::Null,
    }
}
