//! Truths that agree with the true one on what was asked, and on nothing else.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use rusqlite::Connection;
use serde_json::Value as Json;

use crate::functions::register_as;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Same,
    Null,
    Flipped,
    Seeded(u64),
}

/// What the functions say.
#[derive(Debug, Clone)]
pub struct Truth {
    agreed: Arc<HashSet<(String, String)>>,
    other: Other,
}

impl Default for Truth {
    fn default() -> Self {
        Self { agreed: Arc::default(), other: Other::Same }
    }
}

impl Truth {
    /// Those under which the rows must be the same.
    pub fn others(agreed: HashSet<(String, String)>, seed: u64) -> Vec<Self> {
        let agreed = Arc::new(agreed);
        let all = [Other::Null, Other::Flipped, Other::Seeded(seed), Other::Seeded(!seed)];
        all.map(|other| Self { agreed: Arc::clone(&agreed), other }).to_vec()
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

/// Gives a connection the functions of a truth.
pub fn register(connection: &Connection, truth: &Truth) {
    let truth = truth.clone();
    register_as(connection, move |name, parameter, value, found| {
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
