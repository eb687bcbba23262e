//! Suggests spec columns for questions that queries sent to the model. For each question, it
//! returns the cost, the expansion whose keys match the values, and the TOML of the column.
//! [`edit`] inserts the TOML into a spec.

pub mod edit;
mod json;

use std::collections::HashSet;

use crate::routing::{operator, question};
use hqdl_database::keys::Keys;
use hqdl_database::{Database, StoreError};
use hqdl_facts::{Facts, FactsError, Learned, LiveQuestion, QuestionOrigin};
use hqdl_spec::{Binding, Expansion, SLOTS, SourceRows, Spec};
use hqdl_values::key::Meaning;

/// Minimum share of a question's values that must be keys of an expansion. Below it, the question
/// is about something else.
pub const LEAST_SHARE: f64 = 0.5;
/// Maximum length of a generated column name, in bytes.
const NAME: usize = 48;

/// Reasons why suggestions failed.
#[derive(Debug, thiserror::Error)]
pub enum SuggestError {
    /// An error of the fact store.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// An error of the database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Location of a question's column in the spec.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnPlace {
    /// There is no spec.
    NoSpec,
    /// The values are keys of no expansion.
    Nowhere,
    /// The spec already has a column for the question: expansion and column.
    Asked(String, String),
    /// A new column of an expansion.
    Joins(Joins),
}

/// The expansion whose keys match a question's values.
#[derive(Debug, Clone, PartialEq)]
pub struct Joins {
    /// Index of the expansion in the spec.
    pub at: usize,
    /// Name of the expansion.
    pub expansion: String,
    /// The key column that contains the values.
    pub key: String,
    /// Number of values that are keys.
    pub found: u64,
    /// Number of values.
    pub of: u64,
    /// Number of keys that materializing the column would request. Keys whose stored answer belongs
    /// to the column are not counted.
    pub asks: u64,
}

impl Joins {
    /// Returns the share of the values that are keys.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.found as f64 / self.of.max(1) as f64
    }
}

/// A question and the suggested column.
#[derive(Debug, Clone)]
pub struct Suggestion {
    /// The question's values and cost.
    pub asked: LiveQuestion,
    /// The question as written in a query.
    pub question: String,
    /// Location of the column in the spec.
    pub place: ColumnPlace,
    /// The suggested column.
    pub column: NewColumn,
}

/// A column in its TOML form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewColumn {
    /// Name of the column.
    pub name: String,
    /// Type of the column.
    pub kind: String,
    /// Description in the prompt.
    pub about: String,
    /// Table of the values, if the column is one-to-many.
    pub many: Option<String>,
    /// Allowed values.
    pub values: Option<Vec<String>>,
    /// The question that the column answers.
    pub question: String,
}

/// A question that the model bound to a column and that the spec may not contain yet.
#[derive(Debug, Clone)]
pub struct BoundQuestion {
    /// Index of the expansion in the spec.
    pub at: usize,
    /// Name of the expansion.
    pub expansion: String,
    /// Index of the column in the expansion.
    pub column: usize,
    /// The question and its SQL.
    pub binding: Binding,
    /// The model's answer.
    pub learned: Learned,
    /// Whether the spec contains the question.
    pub in_spec: bool,
}

/// Suggestions for all questions so far.
#[derive(Debug, Clone, Default)]
pub struct Suggestions {
    /// Questions sent by queries, most expensive first.
    pub questions: Vec<Suggestion>,
    /// Questions that the model bound to columns of the spec.
    pub bound: Vec<BoundQuestion>,
}

/// Returns suggestions for the questions that queries have sent so far. Without a spec, they have
/// no location.
///
/// # Errors
/// Returns [`SuggestError`] if the facts or the database cannot be read.
pub fn suggest(
    facts: &Facts,
    spec: Option<(&Spec, &Database)>,
) -> Result<Suggestions, SuggestError> {
    let asked = facts.history().live_questions()?;
    let Some((spec, database)) = spec else {
        let questions = asked.into_iter().map(|a| Suggestion::new(a, ColumnPlace::NoSpec, None));
        return Ok(Suggestions { questions: questions.collect(), bound: Vec::new() });
    };
    let mut all = Suggestions { questions: Vec::new(), bound: bound(facts, spec)? };
    let values = facts.history().asked_values()?;
    let sides = sides(database, spec, &values.values().flatten().collect())?;
    let mut taken: Vec<HashSet<String>> = spec.expansions.iter().map(names).collect();
    let mut tables: HashSet<String> = spec.expansions.iter().flat_map(made).collect();
    for question in asked {
        let none = HashSet::new();
        let values = values.get(&question.id).unwrap_or(&none);
        let place = place(&question, values, spec, &sides);
        let mut suggestion = match place {
            ColumnPlace::Joins(joins) => {
                let expansion = &spec.expansions[joins.at];
                let taken = &mut taken[joins.at];
                let mut new =
                    Suggestion::new(question, ColumnPlace::Joins(joins), Some((expansion, taken)));
                taken.insert(new.column.name.to_lowercase());
                if let Some(table) = &mut new.column.many {
                    *table = free(table, &tables);
                    tables.insert(table.to_lowercase());
                }
                new
            }
            other => Suggestion::new(question, other, None),
        };
        suggestion.count(spec);
        all.questions.push(suggestion);
    }
    Ok(all)
}

/// A key column of an expansion, and the questions' values that it contains.
struct Side {
    at: usize,
    key: String,
    found: HashSet<String>,
    keys: u64,
}

fn sides(
    database: &Database,
    spec: &Spec,
    asked: &HashSet<&String>,
) -> Result<Vec<Side>, StoreError> {
    let mut sides = Vec::new();
    for (at, expansion) in spec.expansions.iter().enumerate() {
        let keys = Keys::gather(database, expansion, None)?;
        let names = expansion.key.names();
        let mut found: Vec<HashSet<String>> = vec![HashSet::new(); names.len()];
        keys.each(&mut |row| {
            for (value, found) in row.row.key.iter().zip(&mut found) {
                if let Some(text) = value.canonical()
                    && asked.contains(&text.as_ref().to_owned())
                {
                    found.insert(text.into_owned());
                }
            }
            Ok::<(), rusqlite::Error>(())
        })
        .map_err(|e| database.error(&e))?;
        let count = keys.report.keys;
        sides.extend(names.iter().zip(found).map(|(key, found)| Side {
            at,
            key: key.clone(),
            found,
            keys: count,
        }));
    }
    Ok(sides)
}

/// Returns the location of a question's column.
fn place(
    question: &LiveQuestion,
    values: &HashSet<String>,
    spec: &Spec,
    sides: &[Side],
) -> ColumnPlace {
    let text = written(&question.meaning.about);
    let best = sides
        .iter()
        .map(|side| {
            let found = values.intersection(&side.found).count() as u64;
            (
                found,
                question.origins.iter().any(|o| comes_from(o, &spec.expansions[side.at], side)),
                side,
            )
        })
        .filter(|(found, ..)| *found > 0)
        // On a tie, keep the first in the spec's order.
        .reduce(|best, next| if (next.0, next.1) > (best.0, best.1) { next } else { best });
    for expansion in &spec.expansions {
        let columns = &expansion.columns;
        let asked = (0..columns.len())
            .find(|c| matches!(question::binding(columns, *c, &text, &mut |_| None), Ok(Some(_))))
            .map(|c| &columns[c]);
        if let Some(column) = asked {
            return ColumnPlace::Asked(expansion.name.clone(), column.name.clone());
        }
    }
    let Some((found, _, side)) = best else { return ColumnPlace::Nowhere };
    ColumnPlace::Joins(Joins {
        at: side.at,
        expansion: spec.expansions[side.at].name.clone(),
        key: side.key.clone(),
        found,
        of: values.len() as u64,
        asks: side.keys,
    })
}

/// Returns true if the values came from the key column of an expansion's source.
fn comes_from(origin: &QuestionOrigin, expansion: &Expansion, side: &Side) -> bool {
    origin.column.eq_ignore_ascii_case(&side.key)
        && expansion.sources.iter().any(
            |s| matches!(&s.rows, SourceRows::Table(t) if t.eq_ignore_ascii_case(&origin.table)),
        )
}

/// Returns the questions that the model bound to columns of the spec.
fn bound(facts: &Facts, spec: &Spec) -> Result<Vec<BoundQuestion>, FactsError> {
    let mut all: Vec<BoundQuestion> = Vec::new();
    for (at, expansion) in spec.expansions.iter().enumerate() {
        for learned in facts.history().all_learned(&operator::offered(expansion))? {
            let Some(column) = expansion.column(&learned.column) else { continue };
            let of = &expansion.columns[column];
            // The value list may have changed since.
            let Ok(binding) =
                operator::binding(of, &learned.ask, &learned.operator, &learned.literal)
            else {
                continue;
            };
            let same = |b: &BoundQuestion| {
                b.at == at && question::normal(&b.binding.ask) == question::normal(&binding.ask)
            };
            // If models disagree, use the first binding: a question leads to one column.
            if all.iter().any(same) {
                continue;
            }
            let columns = &expansion.columns;
            let in_spec = (0..columns.len()).any(|c| {
                matches!(question::binding(columns, c, &learned.ask, &mut |_| None), Ok(Some(_)))
            });
            let expansion = expansion.name.clone();
            all.push(BoundQuestion { at, expansion, column, binding, learned, in_spec });
        }
    }
    Ok(all)
}

impl Suggestion {
    fn new(
        asked: LiveQuestion,
        place: ColumnPlace,
        expansion: Option<(&Expansion, &mut HashSet<String>)>,
    ) -> Self {
        let question = written(&asked.meaning.about);
        let key = match &place {
            ColumnPlace::Joins(joins) => joins.key.clone(),
            _ => asked.origins.first().map_or_else(|| "value".to_owned(), |o| o.column.clone()),
        };
        let mut name = slug(&question);
        if let Some((expansion, taken)) = &expansion {
            // With the same key and name, the column has the same identity, so its facts are
            // reused.
            let own = "answer".to_owned();
            if expansion.key.names() == asked.meaning.key && !taken.contains(&own) {
                name = own;
            } else {
                name = free(&name, taken);
            }
        }
        let many = asked
            .meaning
            .many
            .then(|| expansion.map_or_else(|| name.clone(), |(e, _)| format!("{}_{name}", e.name)));
        let column = NewColumn {
            kind: asked.meaning.kind.clone(),
            about: asked.meaning.about.replace("{value}", &format!("{{{key}}}")),
            many,
            values: asked.list.clone(),
            question: question.clone(),
            name,
        };
        Self { asked, question, place, column }
    }

    /// Subtracts the keys that are already answered, if the stored answers belong to the column.
    fn count(&mut self, spec: &Spec) {
        let ColumnPlace::Joins(joins) = &mut self.place else { return };
        let expansion = &spec.expansions[joins.at];
        let meaning = Meaning {
            key: expansion.key.names().to_vec(),
            column: self.column.name.clone(),
            about: self.column.about.clone(),
            kinds: Vec::new(),
            ..self.asked.meaning.clone()
        };
        if meaning.fingerprint() == self.asked.meaning.fingerprint() {
            joins.asks = joins.asks.saturating_sub(joins.found);
        }
    }

    /// Returns the expansion to which `--write` adds the column.
    ///
    /// # Errors
    /// Returns the reason if the column cannot be added.
    pub fn writable(&self) -> Result<&Joins, String> {
        let joins = match &self.place {
            ColumnPlace::NoSpec => return Err("there is no spec".to_owned()),
            ColumnPlace::Nowhere => {
                return Err("its values are not keys of an expansion".to_owned());
            }
            ColumnPlace::Asked(expansion, column) => {
                return Err(format!("`{expansion}.{column}` answers it already"));
            }
            ColumnPlace::Joins(joins) => joins,
        };
        if joins.share() < LEAST_SHARE {
            return Err(format!("too few of its values are keys of `{}`", joins.expansion));
        }
        if self.column.values.is_none() && self.asked.meaning.list != "none" {
            return Err("its value list was not stored".to_owned());
        }
        if SLOTS.iter().any(|s| self.question.contains(s)) {
            return Err("it looks like a question with a slot".to_owned());
        }
        Ok(joins)
    }
}

/// Returns a question as written in a query.
fn written(about: &str) -> String {
    let mut text = about.replace("{value}", "{}");
    for n in 2..10 {
        text = text.replace(&format!("{{value_{n}}}"), "{}");
    }
    text
}

/// Builds a column name from the words of a question.
fn slug(question: &str) -> String {
    let mut name = String::new();
    for word in question.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()) {
        let word = word.to_lowercase();
        if !name.is_empty() && name.len() + 1 + word.len() > NAME {
            break;
        }
        if !name.is_empty() {
            name.push('_');
        }
        name.push_str(&word);
    }
    match name.chars().next() {
        None => "answer".to_owned(),
        Some(c) if c.is_numeric() => format!("q_{name}"),
        Some(_) => name,
    }
}

/// Returns an unused name, with a number appended if necessary.
fn free(name: &str, taken: &HashSet<String>) -> String {
    let lower = name.to_lowercase();
    if !taken.contains(&lower) {
        return name.to_owned();
    }
    let numbered = |n: &u32| !taken.contains(&format!("{lower}_{n}"));
    (2..u32::MAX).find(numbered).map_or_else(|| name.to_owned(), |n| format!("{name}_{n}"))
}

/// Returns the lowercase names that a new column of the expansion cannot have.
fn names(expansion: &Expansion) -> HashSet<String> {
    let columns = expansion.columns.iter().map(|c| &c.name);
    columns
        .chain(expansion.key.names())
        .chain(&expansion.context)
        .map(|n| n.to_lowercase())
        .collect()
}

/// Returns the lowercase names of the tables that an expansion creates.
fn made(expansion: &Expansion) -> Vec<String> {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
    many.chain([&expansion.name]).map(|n| n.to_lowercase()).collect()
}
