//! From questions that queries asked live to columns of a spec: what each cost,
//! which expansion's keys its values are, and the TOML that would make it a
//! column there. [`edit`] puts that TOML into a spec.

pub mod edit;
mod json;

use std::collections::HashSet;

use crate::routing::{operator, question};
use hqdl_database::keys::Keys;
use hqdl_database::{Database, StoreError};
use hqdl_facts::{Facts, FactsError, Learned, LiveQuestion, QuestionOrigin};
use hqdl_spec::{Binding, Expansion, SLOTS, SourceRows, Spec};
use hqdl_values::key::Meaning;

/// The least share of a question's values that must be keys of an expansion for
/// it to join that: below, it was asked of something else.
pub const LEAST_SHARE: f64 = 0.5;
/// A column's name is not made longer than this.
const NAME: usize = 48;

/// Why there is nothing to suggest.
#[derive(Debug, thiserror::Error)]
pub enum SuggestError {
    /// The facts failed.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Where a question's column would stand.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnPlace {
    /// There is no spec to look in.
    NoSpec,
    /// Its values are keys of no expansion.
    Nowhere,
    /// A column of the spec is asked it: expansion and column.
    Asked(String, String),
    /// A column of an expansion.
    Joins(Joins),
}

/// The expansion whose keys a question's values are.
#[derive(Debug, Clone, PartialEq)]
pub struct Joins {
    /// Its position in the spec.
    pub at: usize,
    /// Its name.
    pub expansion: String,
    /// The key column that the values are.
    pub key: String,
    /// How many of the values are keys.
    pub found: u64,
    /// How many values there are.
    pub of: u64,
    /// The keys that materializing would ask about; none when the answers kept
    /// are the column's own.
    pub asks: u64,
}

impl Joins {
    /// The share of the values that are keys.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.found as f64 / self.of.max(1) as f64
    }
}

/// A question, and the column it would be.
#[derive(Debug, Clone)]
pub struct Suggestion {
    /// What was asked, and what it cost.
    pub asked: LiveQuestion,
    /// The question as a query writes it.
    pub question: String,
    /// Where its column would stand.
    pub place: ColumnPlace,
    /// The column.
    pub column: NewColumn,
}

/// A column as TOML has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// What is asked for.
    pub about: String,
    /// The table of its values, when it is one-to-many.
    pub many: Option<String>,
    /// The values allowed.
    pub values: Option<Vec<String>>,
    /// The question it answers.
    pub question: String,
}

/// A question that the model bound to a column, to be written in the spec.
#[derive(Debug, Clone)]
pub struct BoundQuestion {
    /// The expansion's position in the spec,
    pub at: usize,
    /// and its name.
    pub expansion: String,
    /// The column's position in the expansion.
    pub column: usize,
    /// The question and its SQL.
    pub binding: Binding,
    /// What the model said.
    pub learned: Learned,
    /// Whether the spec has it.
    pub in_spec: bool,
}

/// All that can be said of the questions asked so far.
#[derive(Debug, Clone, Default)]
pub struct Suggestions {
    /// Questions asked live, the dearest first.
    pub questions: Vec<Suggestion>,
    /// Questions that the model bound to columns of the spec.
    pub bound: Vec<BoundQuestion>,
}

/// What the questions asked so far would be, in a spec when there is one.
///
/// # Errors
/// [`SuggestError`] when the facts or the database cannot be read.
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

/// A key column of an expansion, and those of the values asked that are in it.
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

/// Where a question's column would stand.
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
        // The first of equals: the order is the spec's.
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

/// Whether values came from the very column that a source of an expansion has
/// its key in.
fn comes_from(origin: &QuestionOrigin, expansion: &Expansion, side: &Side) -> bool {
    origin.column.eq_ignore_ascii_case(&side.key)
        && expansion.sources.iter().any(
            |s| matches!(&s.rows, SourceRows::Table(t) if t.eq_ignore_ascii_case(&origin.table)),
        )
}

/// Questions that the model bound to the columns of a spec.
fn bound(facts: &Facts, spec: &Spec) -> Result<Vec<BoundQuestion>, FactsError> {
    let mut all: Vec<BoundQuestion> = Vec::new();
    for (at, expansion) in spec.expansions.iter().enumerate() {
        for learned in facts.history().all_learned(&operator::offered(expansion))? {
            let Some(column) = expansion.column(&learned.column) else { continue };
            let of = &expansion.columns[column];
            // A value list may have changed since.
            let Ok(binding) =
                operator::binding(of, &learned.ask, &learned.operator, &learned.literal)
            else {
                continue;
            };
            let same = |b: &BoundQuestion| {
                b.at == at && question::normal(&b.binding.ask) == question::normal(&binding.ask)
            };
            // Of several models the first word stands: a question leads to one column.
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
            // The same key and name are the same meaning: its facts are reused.
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

    /// Looks whether the answers kept would be the column's own.
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

    /// The expansion that `--write` would add it to; else why not.
    ///
    /// # Errors
    /// The reason.
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

/// A question as a query writes it.
fn written(about: &str) -> String {
    let mut text = about.replace("{value}", "{}");
    for n in 2..10 {
        text = text.replace(&format!("{{value_{n}}}"), "{}");
    }
    text
}

/// A name made of a question's words.
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

/// A name that is not taken.
fn free(name: &str, taken: &HashSet<String>) -> String {
    let lower = name.to_lowercase();
    if !taken.contains(&lower) {
        return name.to_owned();
    }
    let numbered = |n: &u32| !taken.contains(&format!("{lower}_{n}"));
    (2..u32::MAX).find(numbered).map_or_else(|| name.to_owned(), |n| format!("{name}_{n}"))
}

/// Names that a new column of an expansion cannot have.
fn names(expansion: &Expansion) -> HashSet<String> {
    let columns = expansion.columns.iter().map(|c| &c.name);
    columns
        .chain(expansion.key.names())
        .chain(&expansion.context)
        .map(|n| n.to_lowercase())
        .collect()
}

/// Tables that an expansion makes.
fn made(expansion: &Expansion) -> Vec<String> {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
    many.chain([&expansion.name]).map(|n| n.to_lowercase()).collect()
}
