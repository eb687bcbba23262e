//! Suggests spec columns for questions that queries sent to the model. Each suggestion contains the
//! question's cost, the expansion whose keys match the question's values, and the column. [`edit`]
//! inserts suggestions into a spec.

pub mod edit;
mod json;

use std::collections::HashSet;

use crate::routing::{operator, question};
use hqdl_database::keys::Keys;
use hqdl_database::{Database, StoreError};
use hqdl_facts::{Facts, FactsError, LiveQuestion, QuestionBinding, QuestionOrigin};
use hqdl_spec::{Binding, Expansion, SLOTS, SourceRows, Spec};
use hqdl_values::key::{ColumnIdentity, QUESTION_COLUMN};

/// Minimum share of a question's values that must be keys of an expansion. Below this share, the
/// question is about something else.
pub const MIN_SHARE: f64 = 0.5;
/// Maximum length of a generated column name, in bytes.
const MAX_NAME_BYTES: usize = 48;

/// Reason why no suggestions could be made.
#[derive(Debug, thiserror::Error)]
pub enum SuggestError {
    /// The fact store failed.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Location of a question's column in the spec.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnLocation {
    /// There is no spec.
    NoSpec,
    /// The values are not keys of any expansion.
    NoMatch,
    /// The spec already has a column for the question. Contains the names of the expansion and the
    /// column.
    Existing(String, String),
    /// The question fits a new column of an expansion.
    Expansion(ExpansionMatch),
}

/// The expansion whose keys match a question's values.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpansionMatch {
    /// Index of the expansion in the spec.
    pub expansion_index: usize,
    /// Name of the expansion.
    pub expansion: String,
    /// The key column that contains the values.
    pub key: String,
    /// Number of the question's values that are keys.
    pub match_count: u64,
    /// Number of the question's values.
    pub value_count: u64,
    /// Number of keys that materializing the column would ask about. Excludes keys whose stored
    /// answer can be reused for the column.
    pub requested_keys: u64,
}

impl ExpansionMatch {
    /// Returns the share of the values that are keys.
    #[must_use]
    pub fn matching_share(&self) -> f64 {
        self.match_count as f64 / self.value_count.max(1) as f64
    }
}

/// A question and the suggested column.
#[derive(Debug, Clone)]
pub struct Suggestion {
    /// The question's values and cost.
    pub live_question: LiveQuestion,
    /// The question as written in a query.
    pub question: String,
    /// Location of the column in the spec.
    pub location: ColumnLocation,
    /// The suggested column.
    pub column: NewColumn,
}

/// A column as it is written in TOML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewColumn {
    /// Name of the column.
    pub name: String,
    /// Type of the column.
    pub data_type: String,
    /// Description in the prompt.
    pub about: String,
    /// Name of the values' table; `None` unless the column is one-to-many.
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
    pub expansion_index: usize,
    /// Name of the expansion.
    pub expansion: String,
    /// Index of the column in the expansion.
    pub column: usize,
    /// The question and its SQL.
    pub binding: Binding,
    /// The model's answer, which contains the binding.
    pub question_binding: QuestionBinding,
    /// Whether the spec contains the question.
    pub in_spec: bool,
}

/// Suggestions for all questions that queries have asked so far.
#[derive(Debug, Clone, Default)]
pub struct Suggestions {
    /// Questions that queries sent to the model, most expensive first.
    pub questions: Vec<Suggestion>,
    /// Questions that the model bound to columns of the spec.
    pub bound_questions: Vec<BoundQuestion>,
}

impl Suggestions {
    /// Removes the questions whose values are not in the spec's database. Such questions may be
    /// about another database that uses the same cache.
    pub fn retain_matches(&mut self) {
        let matches = |question: &Suggestion| {
            matches!(question.location, ColumnLocation::Existing(..) | ColumnLocation::Expansion(_))
        };
        self.questions.retain(matches);
    }
}

/// Returns suggestions for the questions that queries have asked so far. Without a spec, the
/// location of each suggestion is [`ColumnLocation::NoSpec`].
///
/// # Errors
/// Returns [`SuggestError`] if the facts or the database cannot be read.
pub fn suggest_columns(
    facts: &Facts,
    spec: Option<(&Spec, &Database)>,
) -> Result<Suggestions, SuggestError> {
    let live_questions = facts.history().list_live_questions()?;
    let Some((spec, database)) = spec else {
        let questions =
            live_questions.into_iter().map(|a| Suggestion::new(a, ColumnLocation::NoSpec, None));
        return Ok(Suggestions { questions: questions.collect(), bound_questions: Vec::new() });
    };
    let mut all =
        Suggestions { questions: Vec::new(), bound_questions: find_bound_questions(facts, spec)? };
    let values = facts.history().load_answered_values()?;
    let key_overlaps = find_key_overlaps(database, spec, &values.values().flatten().collect())?;
    let mut used_names: Vec<HashSet<String>> =
        spec.expansions.iter().map(collect_reserved_names).collect();
    let mut tables: HashSet<String> =
        spec.expansions.iter().flat_map(list_created_tables).collect();
    for question in live_questions {
        let no_values = HashSet::new();
        let values = values.get(&question.id).unwrap_or(&no_values);
        let location = locate_column(&question, values, spec, &key_overlaps);
        let mut suggestion = match location {
            ColumnLocation::Expansion(expansion_match) => {
                let expansion = &spec.expansions[expansion_match.expansion_index];
                let used_names = &mut used_names[expansion_match.expansion_index];
                let mut new_suggestion = Suggestion::new(
                    question,
                    ColumnLocation::Expansion(expansion_match),
                    Some((expansion, used_names)),
                );
                used_names.insert(new_suggestion.column.name.to_lowercase());
                if let Some(table) = &mut new_suggestion.column.many {
                    *table = find_unused_name(table, &tables);
                    tables.insert(table.to_lowercase());
                }
                new_suggestion
            }
            other => Suggestion::new(question, other, None),
        };
        suggestion.subtract_known_keys(spec);
        all.questions.push(suggestion);
    }
    Ok(all)
}

/// A key column of an expansion, and the values of questions that the column contains.
struct KeyOverlap {
    expansion_index: usize,
    key: String,
    matching_values: HashSet<String>,
    key_count: u64,
}

fn find_key_overlaps(
    database: &Database,
    spec: &Spec,
    asked_values: &HashSet<&String>,
) -> Result<Vec<KeyOverlap>, StoreError> {
    let mut key_overlaps = Vec::new();
    for (expansion_index, expansion) in spec.expansions.iter().enumerate() {
        let keys = Keys::collect(database, expansion, None)?;
        let names = expansion.key.names();
        let mut matching_values: Vec<HashSet<String>> = vec![HashSet::new(); names.len()];
        keys.for_each(&mut |row| {
            for (value, matching) in row.row.key.iter().zip(&mut matching_values) {
                if let Some(text) = value.canonical_text()
                    && asked_values.contains(&text.as_ref().to_owned())
                {
                    matching.insert(text.into_owned());
                }
            }
            Ok::<(), rusqlite::Error>(())
        })
        .map_err(|e| database.to_store_error(&e))?;
        let count = keys.report.keys;
        key_overlaps.extend(names.iter().zip(matching_values).map(|(key, matching_values)| {
            KeyOverlap { expansion_index, key: key.clone(), matching_values, key_count: count }
        }));
    }
    Ok(key_overlaps)
}

/// Returns the location of a question's column.
fn locate_column(
    question: &LiveQuestion,
    values: &HashSet<String>,
    spec: &Spec,
    key_overlaps: &[KeyOverlap],
) -> ColumnLocation {
    let text = to_query_text(&question.identity.about);
    let best = key_overlaps
        .iter()
        .map(|overlap| {
            let match_count = values.intersection(&overlap.matching_values).count() as u64;
            (
                match_count,
                question
                    .origins
                    .iter()
                    .any(|o| is_from_key(o, &spec.expansions[overlap.expansion_index], overlap)),
                overlap,
            )
        })
        .filter(|(match_count, ..)| *match_count > 0)
        // On a tie, keep the first in the spec's order.
        .reduce(|best, next| if (next.0, next.1) > (best.0, best.1) { next } else { best });
    for expansion in &spec.expansions {
        let columns = &expansion.columns;
        let existing = (0..columns.len())
            .find(|c| {
                matches!(question::find_binding(columns, *c, &text, &mut |_| None), Ok(Some(_)))
            })
            .map(|c| &columns[c]);
        if let Some(column) = existing {
            return ColumnLocation::Existing(expansion.name.clone(), column.name.clone());
        }
    }
    let Some((match_count, _, overlap)) = best else { return ColumnLocation::NoMatch };
    ColumnLocation::Expansion(ExpansionMatch {
        expansion_index: overlap.expansion_index,
        expansion: spec.expansions[overlap.expansion_index].name.clone(),
        key: overlap.key.clone(),
        match_count,
        value_count: values.len() as u64,
        requested_keys: overlap.key_count,
    })
}

/// Returns true if the question's values came from the key column of an expansion's source.
fn is_from_key(origin: &QuestionOrigin, expansion: &Expansion, overlap: &KeyOverlap) -> bool {
    origin.column.eq_ignore_ascii_case(&overlap.key)
        && expansion.sources.iter().any(
            |s| matches!(&s.rows, SourceRows::Table(t) if t.eq_ignore_ascii_case(&origin.table)),
        )
}

/// Returns the questions that the model bound to columns of the spec.
fn find_bound_questions(facts: &Facts, spec: &Spec) -> Result<Vec<BoundQuestion>, FactsError> {
    let mut all: Vec<BoundQuestion> = Vec::new();
    for (expansion_index, expansion) in spec.expansions.iter().enumerate() {
        for question_binding in facts.history().list_bindings(&operator::hash_columns(expansion))? {
            let Some(column) = expansion.find_column(&question_binding.column) else { continue };
            let column_spec = &expansion.columns[column];
            // The value list may have changed since the model answered.
            let Ok(binding) = operator::build_binding(
                column_spec,
                &question_binding.ask,
                &question_binding.operator,
                &question_binding.literal,
            ) else {
                continue;
            };
            let is_same = |b: &BoundQuestion| {
                b.expansion_index == expansion_index
                    && question::normalize_question(&b.binding.ask)
                        == question::normalize_question(&binding.ask)
            };
            // If models disagree, use the first binding, because a question routes to one column.
            if all.iter().any(is_same) {
                continue;
            }
            let columns = &expansion.columns;
            let in_spec = (0..columns.len()).any(|c| {
                matches!(
                    question::find_binding(columns, c, &question_binding.ask, &mut |_| None),
                    Ok(Some(_))
                )
            });
            let expansion = expansion.name.clone();
            all.push(BoundQuestion {
                expansion_index,
                expansion,
                column,
                binding,
                question_binding,
                in_spec,
            });
        }
    }
    Ok(all)
}

impl Suggestion {
    fn new(
        live_question: LiveQuestion,
        location: ColumnLocation,
        expansion: Option<(&Expansion, &mut HashSet<String>)>,
    ) -> Self {
        let question = to_query_text(&live_question.identity.about);
        let key = match &location {
            ColumnLocation::Expansion(expansion_match) => expansion_match.key.clone(),
            _ => live_question
                .origins
                .first()
                .map_or_else(|| "value".to_owned(), |o| o.column.clone()),
        };
        let mut name = derive_column_name(&question);
        if let Some((expansion, used_names)) = &expansion {
            // A column with the same key and name has the same identity, so its facts are reused.
            let own_name = QUESTION_COLUMN.to_owned();
            if expansion.key.names() == live_question.identity.key
                && !used_names.contains(&own_name)
            {
                name = own_name;
            } else {
                name = find_unused_name(&name, used_names);
            }
        }
        let many = live_question
            .identity
            .many
            .then(|| expansion.map_or_else(|| name.clone(), |(e, _)| format!("{}_{name}", e.name)));
        let column = NewColumn {
            data_type: live_question.identity.kind.clone(),
            about: live_question.identity.about.replace("{value}", &format!("{{{key}}}")),
            many,
            values: live_question.list.clone(),
            question: question.clone(),
            name,
        };
        Self { live_question, question, location, column }
    }

    /// Subtracts the already answered keys from `requested_keys`, if the column can reuse the
    /// stored answers.
    fn subtract_known_keys(&mut self, spec: &Spec) {
        let ColumnLocation::Expansion(expansion_match) = &mut self.location else { return };
        let expansion = &spec.expansions[expansion_match.expansion_index];
        let identity = ColumnIdentity {
            key: expansion.key.names().to_vec(),
            column: self.column.name.clone(),
            about: self.column.about.clone(),
            kinds: Vec::new(),
            requires_evidence: false,
            candidates: Vec::new(),
            ..self.live_question.identity.clone()
        };
        if identity.fingerprint() == self.live_question.identity.fingerprint() {
            expansion_match.requested_keys =
                expansion_match.requested_keys.saturating_sub(expansion_match.match_count);
        }
    }

    /// Checks that `--write` can add the column. Returns the expansion to which the column is
    /// added.
    ///
    /// # Errors
    /// Returns the reason if the column cannot be added.
    pub fn check_writable(&self) -> Result<&ExpansionMatch, String> {
        let expansion_match = match &self.location {
            ColumnLocation::NoSpec => return Err("there is no spec".to_owned()),
            ColumnLocation::NoMatch => {
                return Err("its values are not keys of an expansion".to_owned());
            }
            ColumnLocation::Existing(expansion, column) => {
                return Err(format!("`{expansion}.{column}` answers it already"));
            }
            ColumnLocation::Expansion(expansion_match) => expansion_match,
        };
        if expansion_match.matching_share() < MIN_SHARE {
            return Err(format!(
                "too few of its values are keys of `{}`",
                expansion_match.expansion
            ));
        }
        if self.column.values.is_none() && self.live_question.identity.list != "none" {
            return Err("its value list was not stored".to_owned());
        }
        if SLOTS.iter().any(|s| self.question.contains(s)) {
            return Err("it looks like a question with a slot".to_owned());
        }
        Ok(expansion_match)
    }
}

/// Returns a question as written in a query.
fn to_query_text(about: &str) -> String {
    let mut text = about.replace("{value}", "{}");
    for n in 2..10 {
        text = text.replace(&format!("{{value_{n}}}"), "{}");
    }
    text
}

/// Builds a column name from the words of a question.
fn derive_column_name(question: &str) -> String {
    let mut name = String::new();
    for word in question.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()) {
        let word = word.to_lowercase();
        if !name.is_empty() && name.len() + 1 + word.len() > MAX_NAME_BYTES {
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
fn find_unused_name(name: &str, used_names: &HashSet<String>) -> String {
    let lower = name.to_lowercase();
    if !used_names.contains(&lower) {
        return name.to_owned();
    }
    let numbered = |n: &u32| !used_names.contains(&format!("{lower}_{n}"));
    (2..u32::MAX).find(numbered).map_or_else(|| name.to_owned(), |n| format!("{name}_{n}"))
}

/// Returns the lowercase names that a new column of the expansion cannot have.
fn collect_reserved_names(expansion: &Expansion) -> HashSet<String> {
    let columns = expansion.columns.iter().map(|c| &c.name);
    columns
        .chain(expansion.key.names())
        .chain(&expansion.context)
        .map(|n| n.to_lowercase())
        .collect()
}

/// Returns the lowercase names of the tables that an expansion creates.
fn list_created_tables(expansion: &Expansion) -> Vec<String> {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
    many.chain([&expansion.name]).map(|n| n.to_lowercase()).collect()
}
