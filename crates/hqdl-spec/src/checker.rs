//! Checks the values of a column: converts text from a model, a shot or an override to a cell in a
//! state.
//!
//! Text is matched with a value list in order of certainty: an exact match, a match that ignores
//! case, a match that ignores spaces and punctuation, and finally a unique similar value (one or
//! two letters different, same first letter, same digits). Every change is recorded. Values are
//! never matched by meaning.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::value_list::{ALIAS_NOTE, ValueIndex};
use super::word_decisions::{UNIFIED_NOTE, WordDecisions};
use super::{Column, Type, ValueList};
use hqdl_values::cell::{Answer, CellValue, OMITTED_PREFIX, State};
use hqdl_values::key::ListHash;
use hqdl_values::value::Value;

/// Answers that mean "unknown", in upper or lower case, unless the column or `[model]` defines
/// others (`unknown = […]`). A value of a value list is never read as unknown.
///
/// No value at all (an empty field, JSON's `null`) is always unknown. The empty *text* (`""`) is
/// unknown if it is in this list, or if the column cannot contain it: its type is not text, or it
/// has a value list.
pub const UNKNOWN_WORDS: [&str; 11] = [
    "?",
    "-",
    "unknown",
    "null",
    "none",
    "n/a",
    "not known",
    "not available",
    "no info",
    "no information",
    "\u{2014}",
];
/// Entry for the empty text: two quotation marks.
pub const EMPTY_TEXT: &str = "\"\"";
/// Answers that mean an empty list.
const EMPTY_LIST_WORDS: [&str; 3] = ["none", "[]", "empty"];

/// Checker of the answers for one column.
#[derive(Debug, Clone)]
pub struct Checker {
    data_type: Type,
    is_many: bool,
    /// Whether lists keep duplicates, and store NULL for items without a value.
    keeps_items: bool,
    value_index: Option<ValueIndex>,
    /// Answers that mean "unknown", in lower case; `None` means [`UNKNOWN_WORDS`].
    unknown: Option<Vec<String>>,
    /// Position of the key column that contains the year for dates without a year.
    year_part: Option<usize>,
    /// Position of the key column whose text must contain the value.
    container_part: Option<usize>,
    /// Position of the key column whose JSON list contains the allowed values of a row.
    list_part: Option<usize>,
}

impl Checker {
    /// Returns the checker of a column.
    #[must_use]
    pub fn new(column: &Column) -> Self {
        Self {
            data_type: column.kind,
            is_many: column.many.is_some(),
            keeps_items: column.keeps_items,
            value_index: match &column.values {
                None => ValueIndex::from_aliases(&column.aliases),
                Some(list) => {
                    let mut index = ValueIndex::new(list, &column.aliases);
                    index.decisions = column.unify.then(WordDecisions::default);
                    Some(index)
                }
            },
            unknown: column
                .unknown
                .as_ref()
                .map(|words| words.iter().map(|w| w.trim().to_lowercase()).collect()),
            year_part: column.year,
            container_part: column.part_of,
            list_part: column.one_of,
        }
    }

    /// Completes an answer from the key of its row; `key_part` returns a part of the key.
    ///
    /// A date without a year receives the year of the key. A value that must be part of a key
    /// text, or in a list of the key, is checked against it.
    #[must_use]
    pub fn complete_from_key<'k>(
        &self,
        answer: Answer,
        key_part: impl Fn(usize) -> Option<&'k str>,
    ) -> Answer {
        if let Some(text) = self.container_part.and_then(&key_part) {
            return restrict_to_text(text, answer);
        }
        if let Some(list) = self.list_part {
            return self.restrict_to_list(key_part(list), answer);
        }
        let read_date = || {
            let year = key_part(self.year_part?)?;
            let is_year = year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit());
            let raw =
                answer.raw.as_deref().filter(|_| answer.state == State::Invalid && is_year)?;
            let (value, note) = super::coerce::parse_date_in_year(year.parse().ok()?, raw)?;
            Some(Answer::ok(CellValue::One(value)).with_repair_note(note, raw))
        };
        read_date().unwrap_or(answer)
    }

    /// Checks an answer, which is still a text, against the elements of a JSON list, as if they were
    /// the column's values. Without a list, the answer only needs the column's type.
    fn restrict_to_list(&self, json: Option<&str>, answer: Answer) -> Answer {
        let mut listed = Self { list_part: None, ..self.clone() };
        if let Some(json) = json {
            let items: Vec<Json> = serde_json::from_str(json).unwrap_or_default();
            let values: Vec<Value> = items.iter().map(Value::from_json).collect();
            if self.data_type == Type::Text {
                listed.data_type = Type::from_options(&values);
            }
            let texts = values.iter().filter_map(Value::canonical_text);
            let texts: Vec<String> = texts.map(Cow::into_owned).collect();
            let list = ValueList { hash: ListHash::new(&texts), values: texts, open: false };
            listed.value_index = Some(ValueIndex::new(&list, &BTreeMap::new()));
        }
        match (&answer.raw, &answer.value) {
            (Some(raw), _) if self.is_many => listed.check_items(&split_stored_items(raw)),
            (Some(raw), _) => listed.check_text(raw),
            (None, CellValue::Nothing) => answer,
            (None, value) => listed.check_json(&value.to_json()),
        }
    }

    /// Returns the model's decisions about words outside the list, if the column uses them.
    #[must_use]
    pub fn decisions(&self) -> Option<&WordDecisions> {
        self.value_index.as_ref()?.decisions.as_ref()
    }

    /// Returns the words of an answer that are not on the list and about which no model has
    /// decided.
    #[must_use]
    pub fn find_unlisted_words(&self, answer: &Answer) -> Vec<String> {
        let (Some(index), Some(decisions)) = (&self.value_index, self.decisions()) else {
            return Vec::new();
        };
        let raw = answer.raw.as_deref().filter(|_| {
            answer.state == State::NotInList
                || answer.state == State::Ok && answer.has_omitted_values()
        });
        let words = match (raw, self.is_many) {
            (None, _) => Vec::new(),
            (Some(raw), false) => vec![raw.to_owned()],
            (Some(raw), true) => split_stored_items(raw),
        };
        let is_word = |word: &&String| {
            let word = word.trim();
            // Skip numbers: hqdl does not ask the model whether two numbers mean the same.
            let is_named = word.chars().any(char::is_alphabetic) && !self.is_unknown(word);
            is_named && index.find_value(word).is_none() && !decisions.has_decision(word)
        };
        words.iter().filter(is_word).map(|word| word.trim().to_owned()).collect()
    }

    /// Returns true if the column has a value list, open or closed.
    fn has_list(&self) -> bool {
        self.value_index.as_ref().is_some_and(|list| !list.only_aliases)
    }

    /// Returns true if the cells of this column are lists.
    #[must_use]
    pub fn is_many(&self) -> bool {
        self.is_many
    }

    /// Returns true if prose is unlikely to be a valid cell, because the column has a closed list
    /// or its type is a number, a boolean, a date or a URL.
    #[must_use]
    pub fn is_constrained(&self) -> bool {
        self.data_type != Type::Text || self.value_index.as_ref().is_some_and(|l| !l.open)
    }

    /// Returns true if this column still allows a stored value.
    #[must_use]
    pub fn is_allowed(&self, value: &CellValue) -> bool {
        let Some(list) = self.value_index.as_ref().filter(|l| !l.open) else {
            return true;
        };
        let is_known = |v: &Value| {
            v.to_text().is_some_and(|t| {
                list.by_text.contains_key(t.as_ref())
                    // Typed values are compared with the list's values after conversion.
                    || list.values.iter().any(|l| Self::parse_value(self.data_type, l).is_some_and(|(c, _)| c == *v))
            })
        };
        match value {
            CellValue::Nothing => false,
            CellValue::One(one) => is_known(one),
            CellValue::Many(many) => many.iter().all(|v| *v == Value::Null || is_known(v)),
        }
    }

    /// Checks a cell given as text.
    #[must_use]
    pub fn check_text(&self, raw: &str) -> Answer {
        if self.is_many {
            return self.check_list_text(raw);
        }
        self.check_scalar(raw)
    }

    /// Checks a cell that a person wrote: [`EMPTY_TEXT`] is the empty text, which a field of a CSV
    /// file cannot contain otherwise.
    #[must_use]
    pub fn check_entry(&self, entry: &str) -> Answer {
        if entry.trim() != EMPTY_TEXT || self.is_many || self.data_type != Type::Text {
            return self.check_text(entry);
        }
        match &self.value_index {
            Some(list) if list.is_value_or_alias("") => self.check_text(""),
            Some(list) if !list.open => {
                Answer::without_value(State::NotInList, entry.trim().to_owned())
            }
            _ => Answer::ok(CellValue::One("".into())),
        }
    }

    /// Checks a cell that contains the empty text, which is different from a cell without a value.
    #[must_use]
    pub fn check_empty_text(&self) -> Answer {
        let is_unknown_word = self.unknown.iter().flatten().any(String::is_empty);
        if is_unknown_word {
            return Answer::without_value(State::Unknown, String::new());
        }
        if self.is_many || self.has_list() || self.data_type != Type::Text {
            return self.check_text("");
        }
        Answer::ok(CellValue::One("".into()))
    }

    fn is_unknown(&self, text: &str) -> bool {
        let text = text.trim();
        text.is_empty()
            || match &self.unknown {
                Some(words) => words.contains(&text.to_lowercase()),
                None => UNKNOWN_WORDS.iter().any(|word| word.eq_ignore_ascii_case(text)),
            }
    }

    /// Returns the reason why an answer is [`State::Invalid`]. `raw` is its text, if there is one.
    #[must_use]
    pub fn explain_invalid_answer(&self, raw: Option<&str>) -> &'static str {
        let Some(raw) = raw else { return "the reply has no value for this column" };
        if self.check_text(raw).state != State::Invalid {
            return match self.container_part {
                Some(_) => "not part of the text in the key",
                None => "the reply does not show where this value begins or ends",
            };
        }
        self.data_type.explain_invalid(self.is_many)
    }

    /// Checks a stored answer again with the current words for "unknown" and aliases; returns
    /// `None` if the answer does not change. An invalid answer without a note gets its reason.
    #[must_use]
    pub fn recheck_answer(&self, answer: &Answer) -> Option<Answer> {
        if self.list_part.is_some() {
            return None;
        }
        let recheck_text =
            |raw: &str| if raw.is_empty() { self.check_empty_text() } else { self.check_text(raw) };
        if self.depends_on_alias(answer) {
            let rechecked = match answer.raw.as_deref() {
                Some(raw) if self.is_many && !raw.is_empty() => {
                    self.check_items(&split_stored_items(raw))
                }
                Some(raw) => recheck_text(raw),
                None => self.check_json(&answer.value.to_json()),
            };
            return Some(rechecked)
                .filter(|a| (a.state, &a.value) != (answer.state, &answer.value));
        }
        match (answer.state, &answer.value) {
            (State::Unknown, _) => {
                let raw = answer.raw.as_deref()?;
                let has_changed = !self.is_unknown(raw) || raw.is_empty();
                has_changed.then(|| recheck_text(raw)).filter(|a| a.state != State::Unknown)
            }
            (State::Invalid, _) if answer.repair.is_none() => {
                let reason = self.explain_invalid_answer(answer.raw.as_deref());
                Some(Answer { repair: Some(reason.to_owned()), ..answer.clone() })
            }
            (State::Ok, CellValue::One(Value::Text(value))) => {
                let raw = answer.raw.as_deref().unwrap_or(value);
                self.is_unknown(raw)
                    .then(|| recheck_text(raw))
                    .filter(|a| a.state == State::Unknown)
            }
            _ => None,
        }
    }

    /// Returns true if an alias determined a stored answer, or would determine it now.
    fn depends_on_alias(&self, answer: &Answer) -> bool {
        if answer
            .repair
            .as_ref()
            .is_some_and(|r| r.contains(ALIAS_NOTE) || r.contains(UNIFIED_NOTE))
        {
            return true;
        }
        let is_outside_list = answer.state == State::NotInList || answer.has_omitted_values();
        if self.decisions().is_some() && is_outside_list {
            return true;
        }
        let Some(list) = self.value_index.as_ref().filter(|l| !l.by_alias.is_empty()) else {
            return false;
        };
        let named = |text: &str| list.is_alias(text);
        match (answer.state, &answer.value, answer.raw.as_deref()) {
            (State::NotInList, ..) => true,
            (State::Ok | State::Unknown, _, Some(raw)) if self.is_many => {
                split_stored_items(raw).iter().any(|item| named(item))
            }
            (State::Ok | State::Unknown, _, Some(raw)) => named(raw),
            (State::Ok, CellValue::One(value), None) => value.to_text().is_some_and(|t| named(&t)),
            (State::Ok, CellValue::Many(all), None) => {
                all.iter().any(|v| v.to_text().is_some_and(|t| named(&t)))
            }
            _ => false,
        }
    }

    /// Checks a cell given as JSON.
    #[must_use]
    pub fn check_json(&self, json: &Json) -> Answer {
        match json {
            Json::Null => Answer::without_value(State::Unknown, None),
            Json::String(text) if text.is_empty() => self.check_empty_text(),
            Json::String(text) => self.check_text(text),
            Json::Bool(_) | Json::Number(_) => self.check_text(&json.to_string()),
            Json::Array(items) if self.is_many => {
                let texts: Option<Vec<String>> = items
                    .iter()
                    .filter(|i| self.keeps_items || !i.is_null())
                    .map(|i| match i {
                        Json::Null => Some(String::new()),
                        Json::String(text) => Some(text.clone()),
                        Json::Bool(_) | Json::Number(_) => Some(i.to_string()),
                        _ => None,
                    })
                    .collect();
                match texts {
                    Some(texts) => self.check_items(&texts),
                    None => Answer::without_value(State::Invalid, json.to_string()),
                }
            }
            Json::Array(items) if items.len() == 1 => self
                .check_json(&items[0])
                .with_repair_note("list of one replaced by its value", &json.to_string()),
            Json::Array(_) | Json::Object(_) => {
                Answer::without_value(State::Invalid, json.to_string())
            }
        }
    }

    /// Checks the items of a one-to-many cell.
    #[must_use]
    pub fn check_items(&self, items: &[String]) -> Answer {
        let mut kept: Vec<Value> = Vec::new();
        let mut omitted = Vec::new();
        let mut notes: Vec<String> = Vec::new();
        for item in items {
            let answer = self.check_scalar(item);
            match answer.value {
                CellValue::One(value) => {
                    if self.keeps_items || !kept.contains(&value) {
                        kept.push(value);
                    }
                    notes.extend(answer.repair);
                }
                _ => {
                    if answer.state != State::Unknown {
                        omitted.push(item.trim().to_owned());
                    }
                    if self.keeps_items {
                        kept.push(Value::Null);
                    }
                }
            }
        }
        if kept.iter().all(|value| *value == Value::Null) {
            kept.clear();
        }
        let raw = join_items(items);
        let is_empty_word =
            |item: &String| EMPTY_LIST_WORDS.contains(&item.trim().to_lowercase().as_str());
        if kept.is_empty() && omitted.is_empty() && !items.iter().all(is_empty_word) {
            return Answer::without_value(State::Unknown, raw);
        }
        if kept.is_empty() && !omitted.is_empty() {
            let state = if self.has_list() { State::NotInList } else { State::Invalid };
            return Answer::without_value(state, raw);
        }
        if !omitted.is_empty() {
            notes.push(format!("{OMITTED_PREFIX}{}", omitted.join(", ")));
        }
        notes.dedup();
        let answer = Answer::ok(CellValue::Many(kept));
        if notes.is_empty() { answer } else { answer.with_repair_note(&notes.join("; "), &raw) }
    }

    fn check_scalar(&self, raw: &str) -> Answer {
        let text = raw.trim();
        if let Some(list) = &self.value_index {
            if list.is_value_or_alias(text) || !self.is_unknown(text) {
                if let Some((value, difference)) = list.find_value(text) {
                    let Some((value, _)) = Self::parse_value(self.data_type, value) else {
                        return Answer::without_value(State::Invalid, raw.to_owned());
                    };
                    let answer = Answer::ok(CellValue::One(value));
                    return match difference {
                        None => answer,
                        Some(what) if list.only_aliases => answer.with_repair_note(
                            &format!("{what} brought to the alias's value"),
                            text,
                        ),
                        Some(difference) => answer.with_repair_note(
                            &format!("{difference} matched to the value list"),
                            text,
                        ),
                    };
                }
                if is_refusal(text) {
                    return Answer::without_value(State::Refused, raw.to_owned());
                }
                if !list.open {
                    return Answer::without_value(State::NotInList, raw.to_owned());
                }
            } else {
                return Answer::without_value(
                    State::Unknown,
                    Some(text.to_owned()).filter(|t| !t.is_empty()),
                );
            }
        }
        if self.is_unknown(text) {
            return Answer::without_value(
                State::Unknown,
                Some(text.to_owned()).filter(|t| !t.is_empty()),
            );
        }
        if is_refusal(text) {
            return Answer::without_value(State::Refused, raw.to_owned());
        }
        // A list for each row is compared with the text, so that `complete_from_key` converts it.
        let data_type = if self.list_part.is_some() { Type::Text } else { self.data_type };
        match Self::parse_value(data_type, text) {
            None => Answer::without_value(State::Invalid, raw.to_owned()),
            Some((value, None)) => Answer::ok(CellValue::One(value)),
            Some((value, Some(note))) => {
                Answer::ok(CellValue::One(value)).with_repair_note(note, text)
            }
        }
    }

    /// Checks a list written as text: a JSON or Python list, or values separated by `|`, `;` or
    /// `,`. A value of the value list may itself contain commas.
    fn check_list_text(&self, raw: &str) -> Answer {
        let text = raw.trim();
        let lower = text.to_lowercase();
        let is_known = |t: &str| self.value_index.as_ref().and_then(|l| l.find_value(t)).is_some();
        if EMPTY_LIST_WORDS.contains(&lower.as_str()) && !is_known(text) {
            return Answer::ok(CellValue::Many(Vec::new()));
        }
        if self.is_unknown(text) && !is_known(text) {
            return Answer::without_value(
                State::Unknown,
                Some(text.to_owned()).filter(|t| !t.is_empty()),
            );
        }
        let is_exact =
            |t: &str| self.value_index.as_ref().is_some_and(|l| l.by_text.contains_key(t.trim()));
        if is_exact(text) {
            return self.check_items(&[text.to_owned()]);
        }
        if let Ok(Json::Array(items)) = serde_json::from_str(text) {
            return self.check_json(&Json::Array(items));
        }
        match self.split_items(text) {
            Some(items) => self.check_items(&items),
            // Brackets and quotes alone are not an answer, not even an empty list.
            None => Answer::without_value(State::Invalid, raw.to_owned()),
        }
    }

    /// Returns the items of a list written as text; `None` if there are no items.
    fn split_items(&self, text: &str) -> Option<Vec<String>> {
        if let Ok(Json::Array(items)) = serde_json::from_str(text) {
            return Some(items.iter().filter_map(Json::as_str).map(str::to_owned).collect());
        }
        let is_exact =
            |t: &str| self.value_index.as_ref().is_some_and(|l| l.by_text.contains_key(t.trim()));
        let body = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let separator = ['|', ';', '\n'].into_iter().find(|s| body.contains(*s)).unwrap_or(',');
        let pieces: Vec<&str> = body.split(separator).collect();
        let mut items = Vec::new();
        let mut position = 0;
        while position < pieces.len() {
            // Find the longest run of pieces that together form one value of the list.
            let listed_run = (2..=4.min(pieces.len() - position)).rev().find_map(|n| {
                let joined = pieces[position..position + n].join(&separator.to_string());
                let joined = strip_quotes(&joined).to_owned();
                let is_listed =
                    self.value_index.as_ref()?.by_lowercase.contains_key(&joined.to_lowercase());
                is_listed.then_some((n, joined))
            });
            let piece = pieces[position];
            let (piece_count, item) = listed_run.unwrap_or_else(|| {
                let item = if is_exact(piece) { piece } else { strip_quotes(piece) };
                (1, item.to_owned())
            });
            // A separator at the end ends the last item.
            let has_position = self.keeps_items && position + piece_count < pieces.len();
            if !item.is_empty() || has_position {
                items.push(item);
            }
            position += piece_count;
        }
        Some(items).filter(|items| items.iter().any(|item| !item.is_empty()))
    }

    /// Converts text to a value of a type, with a note if the text was not in the stored form.
    #[must_use]
    pub fn parse_value(data_type: Type, text: &str) -> Option<(Value, Option<&'static str>)> {
        super::coerce::parse_value(data_type, text)
    }
}

/// Returns true if a text is a model's refusal rather than an answer.
#[must_use]
pub fn is_refusal(text: &str) -> bool {
    let lower = text.trim().to_lowercase().replace('\u{2019}', "'");
    let has_inability =
        ["can't", "cannot", "can not", "unable", "not able"].iter().any(|c| lower.contains(c));
    let openings = [
        "i can't provide",
        "i cannot provide",
        "i can't assist",
        "i cannot assist",
        "i can't help",
        "i cannot help",
        "i'm unable to",
        "i am unable to",
        "i'm not able to",
        "i am not able to",
        "i can't fulfil",
        "i cannot fulfil",
        "i must decline",
    ];
    lower.starts_with("as an ai")
        || (lower.contains("as an ai language model") && has_inability)
        || ((lower.starts_with("i'm sorry")
            || lower.starts_with("i am sorry")
            || lower.starts_with("sorry,"))
            && has_inability)
        || openings.iter().any(|o| lower.starts_with(o))
}

/// Joins the items of a list into one text that can be split again. The text is JSON if an item
/// contains a separator.
fn join_items(items: &[String]) -> String {
    let separates = |c| c == '|' || items.len() == 1 && matches!(c, ',' | ';' | '\n');
    let is_plain = |item: &String| !item.contains(separates) && strip_quotes(item) == item.trim();
    if items.iter().all(is_plain) { items.join(" | ") } else { Json::from(items).to_string() }
}

/// Splits a text that [`join_items`] returned into items. A comma is not a separator here: items
/// that were written with commas between them are stored with `|`.
fn split_stored_items(raw: &str) -> Vec<String> {
    match serde_json::from_str(raw) {
        Ok(Json::Array(items)) => items
            .into_iter()
            .map(|item| if let Json::String(text) = item { text } else { item.to_string() })
            .collect(),
        _ => raw.split('|').map(|item| item.trim().to_owned()).collect(),
    }
}

fn strip_quotes(text: &str) -> &str {
    text.trim().trim_matches(|c| matches!(c, '\'' | '"' | '[' | ']' | '`')).trim()
}

/// Returns the answer with its texts spelled as in `text`. Rejects an answer whose texts are not
/// part of `text`.
fn restrict_to_text(text: &str, answer: Answer) -> Answer {
    let find_part = |value: &Value| {
        let part = value.to_text()?;
        let part = part.trim();
        if text.contains(part) {
            return Some(Value::from(part));
        }
        // If converting to lower case does not change the length, the offsets are the same.
        let lower = text.to_lowercase();
        let position = lower.find(&part.to_lowercase()).filter(|_| lower.len() == text.len())?;
        text.get(position..position + part.len()).map(Value::from)
    };
    let parts = match &answer.value {
        CellValue::One(value) => find_part(value).map(CellValue::One),
        CellValue::Many(all) => {
            all.iter().map(find_part).collect::<Option<Vec<Value>>>().map(CellValue::Many)
        }
        CellValue::Nothing => return answer,
    };
    match parts {
        Some(value) => Answer { value, ..answer },
        None => {
            let raw = answer.raw.clone().unwrap_or_else(|| match &answer.value {
                CellValue::One(value) => value.to_string(),
                other => other.to_json().to_string(),
            });
            Answer::without_value(State::Invalid, raw)
        }
    }
}
