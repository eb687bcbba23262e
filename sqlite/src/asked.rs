//! What a connection has asked about: what it knows by now, and what it has noted.

use std::collections::HashMap;

use rusqlite::Result;
use rusqlite::types::{Value, ValueRef};
use serde_json::{Value as Json, json};

use crate::failed;
use crate::line::Line;

/// Answers that are remembered; then they are looked up anew.
const REMEMBERED: usize = 1_000_000;
/// Values that are asked about in a request.
const TOGETHER: usize = 10_000;
/// Set to `never`, it keeps who may run SQL from spending.
const ASK: &str = "HQDL_ASK";

/// A question: what its answers are read as, its text, and what they are chosen from.
type Question = (&'static str, String, Option<String>);

/// Values by their JSON.
#[derive(Default)]
struct About {
    known: HashMap<String, Value>,
    /// Not known, in the order in which they came.
    noted: Vec<Json>,
    is_noted: std::collections::HashSet<String>,
}

#[derive(Default)]
pub struct Asked {
    line: Option<Line>,
    questions: HashMap<Question, About>,
    remembered: usize,
}

impl Asked {
    /// The answer about a value; NULL where there is none, and, for now, where it is not
    /// known.
    pub fn look(
        &mut self,
        kind: &'static str,
        question: &str,
        options: Option<&str>,
        value: ValueRef<'_>,
    ) -> Result<Value> {
        let value = match value {
            ValueRef::Null => return Ok(Value::Null),
            ValueRef::Integer(integer) => json!(integer),
            ValueRef::Real(real) if real.is_finite() => json!(real),
            ValueRef::Real(_) => {
                return Err(failed("infinity is not a value to ask about".to_owned()));
            }
            ValueRef::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => json!(text),
                Err(_) => return Err(failed("the value is text that is not UTF-8".to_owned())),
            },
            ValueRef::Blob(_) => {
                return Err(failed("a BLOB is not a value to ask about: convert it to text".to_owned()));
            }
        };
        let asked: Question = (kind, question.to_owned(), options.map(str::to_owned));
        let key = value.to_string();
        if let Some(about) = self.questions.get(&asked) {
            if let Some(known) = about.known.get(&key) {
                return Ok(known.clone());
            }
            if about.is_noted.contains(&key) {
                return Ok(Value::Null);
            }
        }
        let answer = self.put(&asked, std::slice::from_ref(&value), false, None)?;
        let found = read(&answer, 0)?;
        if self.remembered >= REMEMBERED {
            self.questions.values_mut().for_each(|about| about.known.clear());
            self.remembered = 0;
        }
        let about = self.questions.entry(asked).or_default();
        if let Some(found) = found {
            self.remembered += 1;
            about.known.insert(key, found.clone());
            return Ok(found);
        }
        about.is_noted.insert(key);
        about.noted.push(value);
        Ok(Value::Null)
    }

    /// Asks for what was noted; how many values that were.
    pub fn ask(&mut self, budget: Option<f64>) -> Result<i64> {
        if std::env::var(ASK).is_ok_and(|said| said == "never") {
            return Err(failed(format!("hqdl must not ask here, because {ASK} is `never`")));
        }
        let mut count = 0;
        let mut left = budget;
        for asked in self.questions.keys().cloned().collect::<Vec<_>>() {
            loop {
                let some: Vec<Json> = (self.questions.get(&asked).into_iter())
                    .flat_map(|about| about.noted.iter().take(TOGETHER).cloned())
                    .collect();
                if some.is_empty() {
                    break;
                }
                let answer = self.put(&asked, &some, true, left)?;
                left = left.map(|usd| {
                    (usd - answer["meta"]["cost_usd"].as_f64().unwrap_or_default()).max(0.0)
                });
                count += some.len();
                let about = self.questions.entry(asked.clone()).or_default();
                for (at, value) in some.iter().enumerate() {
                    // What failed may be asked again: it is looked up anew.
                    about.is_noted.remove(&value.to_string());
                    if let Some(found) = read(&answer, at)? {
                        self.remembered += 1;
                        about.known.insert(value.to_string(), found);
                    }
                }
                about.noted.drain(..some.len());
            }
        }
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Forgets what was noted, and what is remembered; how many values were noted.
    pub fn forget(&mut self) -> i64 {
        let count: usize = self.questions.values().map(|about| about.noted.len()).sum();
        self.questions.clear();
        self.remembered = 0;
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    fn put(
        &mut self,
        (kind, question, options): &Question,
        values: &[Json],
        ask: bool,
        budget: Option<f64>,
    ) -> Result<Json> {
        let mut request =
            json!({ "question": question, "type": kind, "values": values, "ask": ask });
        if let Some(options) = options {
            let list: Vec<Json> = serde_json::from_str(options).map_err(|e| {
                failed(format!("the options are not a list: {e}; write json_array('a', 'b')"))
            })?;
            request["options"] = list.into();
        }
        if let Some(budget) = budget {
            request["budget"] = budget.into();
        }
        if !self.line.as_mut().is_some_and(Line::stands) {
            self.line = Some(Line::open()?);
        }
        match &mut self.line {
            Some(line) => line.put(&request),
            None => Err(failed("the connection to hqdl is closed".to_owned())),
        }
    }
}

/// An answer; `None` where it is not known. Lists are JSON.
fn read(answer: &Json, at: usize) -> Result<Option<Value>> {
    let state = &answer["states"][at];
    // It could not be asked: that is no answer.
    if state.is_null() || state == "error" {
        return Ok(None);
    }
    Ok(Some(match &answer["answers"][at] {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Integer(i64::from(*truth)),
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Value::Integer(integer),
            (None, Some(real)) => Value::Real(real),
            (None, None) => return Err(failed(format!("{number} is not a number"))),
        },
        list => Value::Text(list.to_string()),
    }))
}
