//! Checks the values of a column: converts text from a model, a shot or an override to a cell in a
//! state.
//!
//! Text is matched with a value list in order of certainty: the exact value, another case, other
//! spaces and punctuation, and last a unique similar value (one or two letters different, same
//! first letter, same digits). Every change is recorded. Values are never matched by meaning.

use serde_json::Value as Json;

use super::unified::{UNIFIED, Unified};
use super::value_list::{ALIAS, Lookup};
use super::{Column, Type};
use hqdl_values::cell::{Answer, CellValue, LEFT_OUT, State};
use hqdl_values::value::Value;

/// Answers that mean "unknown", in any case, unless the column or `[model]` defines others
/// (`unknown = […]`). A value of a value list is never read as unknown.
///
/// No value at all (an empty field, JSON's `null`) is always unknown. The empty *text* (`""`) is
/// unknown if it is in this list, or if the column cannot contain it: it has another type than
/// text, or a value list.
pub const UNKNOWN: [&str; 11] = [
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
/// Answers that mean an empty list.
const EMPTY_LIST: [&str; 3] = ["none", "[]", "empty"];

/// Checker of the answers for one column.
#[derive(Debug, Clone)]
pub struct Checker {
    kind: Type,
    many: bool,
    /// Whether a list keeps duplicates, and NULL for an item without a value.
    keeps_items: bool,
    list: Option<Lookup>,
    /// Answers that mean "unknown", in lower case; `None` is [`UNKNOWN`].
    unknown: Option<Vec<String>>,
    /// Position of the key column with the year of a date given without one.
    year: Option<usize>,
    /// Position of the key column whose text must contain the value.
    part_of: Option<usize>,
}

impl Checker {
    /// Returns the checker of a column.
    #[must_use]
    pub fn new(column: &Column) -> Self {
        Self {
            kind: column.kind,
            many: column.many.is_some(),
            keeps_items: column.keeps_items,
            list: match &column.values {
                None => Lookup::of_aliases(&column.aliases),
                Some(list) => {
                    let mut lookup = Lookup::new(list, &column.aliases);
                    lookup.unified = column.unify.then(Unified::default);
                    Some(lookup)
                }
            },
            unknown: column
                .unknown
                .as_ref()
                .map(|words| words.iter().map(|w| w.trim().to_lowercase()).collect()),
            year: column.year,
            part_of: column.part_of,
        }
    }

    /// Completes an answer with the key of its row, whose parts `key_part` returns.
    ///
    /// A date without a year receives the year of the key, and a value that must be part of a key
    /// text is checked against that text.
    #[must_use]
    pub fn in_row<'k>(&self, answer: Answer, part: impl Fn(usize) -> Option<&'k str>) -> Answer {
        if let Some(text) = self.part_of.and_then(&part) {
            return part_of(text, answer);
        }
        let read = || {
            let year = part(self.year?)?;
            let four = year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit());
            let raw = answer.raw.as_deref().filter(|_| answer.state == State::Invalid && four)?;
            let (value, note) = super::coerce::date_in(year.parse().ok()?, raw)?;
            Some(Answer::ok(CellValue::One(value)).repaired(note, raw))
        };
        read().unwrap_or(answer)
    }

    /// Returns the model's decisions about words outside the list, if the column uses them.
    #[must_use]
    pub fn unified(&self) -> Option<&Unified> {
        self.list.as_ref()?.unified.as_ref()
    }

    /// Returns the words of an answer that are not on the list and without a model's decision.
    #[must_use]
    pub fn strangers(&self, answer: &Answer) -> Vec<String> {
        let (Some(list), Some(unified)) = (&self.list, self.unified()) else { return Vec::new() };
        let raw = answer.raw.as_deref().filter(|_| {
            answer.state == State::NotInList || answer.state == State::Ok && answer.leaves_out()
        });
        let words = match (raw, self.many) {
            (None, _) => Vec::new(),
            (Some(raw), false) => vec![raw.to_owned()],
            (Some(raw), true) => kept_items(raw),
        };
        let is_word = |word: &&String| {
            let word = word.trim();
            // A number never means another number.
            let named = word.chars().any(char::is_alphabetic) && !self.is_unknown(word);
            named && list.find(word).is_none() && !unified.knows(word)
        };
        words.iter().filter(is_word).map(|word| word.trim().to_owned()).collect()
    }

    /// Whether the column has a value list, open or closed.
    fn has_list(&self) -> bool {
        self.list.as_ref().is_some_and(|list| !list.only_aliases)
    }

    /// Returns true if the cells of this column are lists.
    #[must_use]
    pub fn is_many(&self) -> bool {
        self.many
    }

    /// Returns true if a valid cell must be an answer: prose is never on a closed list, and hardly
    /// ever a number, a boolean, a date or a URL.
    #[must_use]
    pub fn vouches(&self) -> bool {
        self.kind != Type::Text || self.list.as_ref().is_some_and(|l| !l.open)
    }

    /// Returns true if this column still allows a stored value.
    #[must_use]
    pub fn allows(&self, value: &CellValue) -> bool {
        let Some(list) = self.list.as_ref().filter(|l| !l.open) else {
            return true;
        };
        let known = |v: &Value| {
            v.text().is_some_and(|t| {
                list.exact.contains_key(t.as_ref())
                    // Typed values are compared with the list's values after conversion.
                    || list.values.iter().any(|l| Self::coerce(self.kind, l).is_some_and(|(c, _)| c == *v))
            })
        };
        match value {
            CellValue::Nothing => false,
            CellValue::One(one) => known(one),
            CellValue::Many(many) => many.iter().all(|v| *v == Value::Null || known(v)),
        }
    }

    /// Checks a cell given as text.
    #[must_use]
    pub fn text(&self, raw: &str) -> Answer {
        if self.many {
            return self.list_text(raw);
        }
        self.scalar(raw)
    }

    /// Checks a cell that is the empty text, which differs from no value.
    #[must_use]
    pub fn empty(&self) -> Answer {
        let named = self.unknown.iter().flatten().any(String::is_empty);
        if named {
            return Answer::without_value(State::Unknown, String::new());
        }
        if self.many || self.has_list() || self.kind != Type::Text {
            return self.text("");
        }
        Answer::ok(CellValue::One("".into()))
    }

    /// Returns true if a text means "unknown".
    fn is_unknown(&self, text: &str) -> bool {
        let text = text.trim();
        text.is_empty()
            || match &self.unknown {
                Some(words) => words.contains(&text.to_lowercase()),
                None => UNKNOWN.iter().any(|word| word.eq_ignore_ascii_case(text)),
            }
    }

    /// Checks a stored answer again with the present words for "unknown" and aliases; returns
    /// `None` if the answer does not change.
    #[must_use]
    pub fn read_again(&self, answer: &Answer) -> Option<Answer> {
        let read = |raw: &str| if raw.is_empty() { self.empty() } else { self.text(raw) };
        if self.hangs_on_aliases(answer) {
            let again = match answer.raw.as_deref() {
                Some(raw) if self.many && !raw.is_empty() => self.list(&kept_items(raw)),
                Some(raw) => read(raw),
                None => self.json(&answer.value.to_json()),
            };
            return Some(again).filter(|a| (a.state, &a.value) != (answer.state, &answer.value));
        }
        match (answer.state, &answer.value) {
            (State::Unknown, _) => {
                let raw = answer.raw.as_deref()?;
                let again = !self.is_unknown(raw) || raw.is_empty();
                again.then(|| read(raw)).filter(|a| a.state != State::Unknown)
            }
            (State::Ok, CellValue::One(Value::Text(value))) => {
                let raw = answer.raw.as_deref().unwrap_or(value);
                self.is_unknown(raw).then(|| read(raw)).filter(|a| a.state == State::Unknown)
            }
            _ => None,
        }
    }

    /// Returns true if an alias determined a stored answer, or would determine it now.
    fn hangs_on_aliases(&self, answer: &Answer) -> bool {
        if answer.repair.as_ref().is_some_and(|r| r.contains(ALIAS) || r.contains(UNIFIED)) {
            return true;
        }
        let outside = answer.state == State::NotInList || answer.leaves_out();
        if self.unified().is_some() && outside {
            return true;
        }
        let Some(list) = self.list.as_ref().filter(|l| !l.aliases.is_empty()) else { return false };
        let named = |text: &str| list.is_alias(text);
        match (answer.state, &answer.value, answer.raw.as_deref()) {
            (State::NotInList, ..) => true,
            (State::Ok | State::Unknown, _, Some(raw)) if self.many => {
                kept_items(raw).iter().any(|item| named(item))
            }
            (State::Ok | State::Unknown, _, Some(raw)) => named(raw),
            (State::Ok, CellValue::One(value), None) => value.text().is_some_and(|t| named(&t)),
            (State::Ok, CellValue::Many(all), None) => {
                all.iter().any(|v| v.text().is_some_and(|t| named(&t)))
            }
            _ => false,
        }
    }

    /// Checks a cell given as JSON.
    #[must_use]
    pub fn json(&self, json: &Json) -> Answer {
        match json {
            Json::Null => Answer::without_value(State::Unknown, None),
            Json::String(text) if text.is_empty() => self.empty(),
            Json::String(text) => self.text(text),
            Json::Bool(_) | Json::Number(_) => self.text(&json.to_string()),
            Json::Array(items) if self.many => {
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
                    Some(texts) => self.list(&texts),
                    None => Answer::without_value(State::Invalid, json.to_string()),
                }
            }
            Json::Array(items) if items.len() == 1 => self
                .json(&items[0])
                .repaired("list of one replaced by its value", &json.to_string()),
            Json::Array(_) | Json::Object(_) => {
                Answer::without_value(State::Invalid, json.to_string())
            }
        }
    }

    /// Checks the items of a one-to-many cell.
    #[must_use]
    pub fn list(&self, items: &[String]) -> Answer {
        let mut kept: Vec<Value> = Vec::new();
        let mut left_out = Vec::new();
        let mut notes: Vec<String> = Vec::new();
        for item in items {
            let answer = self.scalar(item);
            match answer.value {
                CellValue::One(value) => {
                    if self.keeps_items || !kept.contains(&value) {
                        kept.push(value);
                    }
                    notes.extend(answer.repair);
                }
                _ => {
                    if answer.state != State::Unknown {
                        left_out.push(item.trim().to_owned());
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
        let raw = raw_of(items);
        let none = |item: &String| EMPTY_LIST.contains(&item.trim().to_lowercase().as_str());
        if kept.is_empty() && left_out.is_empty() && !items.iter().all(none) {
            return Answer::without_value(State::Unknown, raw);
        }
        if kept.is_empty() && !left_out.is_empty() {
            let state = if self.has_list() { State::NotInList } else { State::Invalid };
            return Answer::without_value(state, raw);
        }
        if !left_out.is_empty() {
            notes.push(format!("{LEFT_OUT}{}", left_out.join(", ")));
        }
        notes.dedup();
        let answer = Answer::ok(CellValue::Many(kept));
        if notes.is_empty() { answer } else { answer.repaired(&notes.join("; "), &raw) }
    }

    fn scalar(&self, raw: &str) -> Answer {
        let text = raw.trim();
        if let Some(list) = &self.list {
            if list.names(text) || !self.is_unknown(text) {
                if let Some((value, overlooked)) = list.find(text) {
                    let Some((value, _)) = Self::coerce(self.kind, value) else {
                        return Answer::without_value(State::Invalid, raw.to_owned());
                    };
                    let answer = Answer::ok(CellValue::One(value));
                    return match overlooked {
                        None => answer,
                        Some(what) if list.only_aliases => {
                            answer.repaired(&format!("{what} brought to the alias's value"), text)
                        }
                        Some(what) => {
                            answer.repaired(&format!("{what} matched to the value list"), text)
                        }
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
        match Self::coerce(self.kind, text) {
            None => Answer::without_value(State::Invalid, raw.to_owned()),
            Some((value, None)) => Answer::ok(CellValue::One(value)),
            Some((value, Some(note))) => Answer::ok(CellValue::One(value)).repaired(note, text),
        }
    }

    /// Checks a list written as text: a JSON or Python list, or values separated by `|`, `;` or
    /// `,`. A value of the list may contain commas itself.
    fn list_text(&self, raw: &str) -> Answer {
        let text = raw.trim();
        let lower = text.to_lowercase();
        let known = |t: &str| self.list.as_ref().and_then(|l| l.find(t)).is_some();
        if EMPTY_LIST.contains(&lower.as_str()) && !known(text) {
            return Answer::ok(CellValue::Many(Vec::new()));
        }
        if self.is_unknown(text) && !known(text) {
            return Answer::without_value(
                State::Unknown,
                Some(text.to_owned()).filter(|t| !t.is_empty()),
            );
        }
        let exact = |t: &str| self.list.as_ref().is_some_and(|l| l.exact.contains_key(t.trim()));
        if exact(text) {
            return self.list(&[text.to_owned()]);
        }
        if let Ok(Json::Array(items)) = serde_json::from_str(text) {
            return self.json(&Json::Array(items));
        }
        match self.items(text) {
            Some(items) => self.list(&items),
            // Brackets and quotes alone are not an answer, not even an empty list.
            None => Answer::without_value(State::Invalid, raw.to_owned()),
        }
    }

    /// Returns the items of a list written as text; `None` if it has none.
    fn items(&self, text: &str) -> Option<Vec<String>> {
        if let Ok(Json::Array(items)) = serde_json::from_str(text) {
            return Some(items.iter().filter_map(Json::as_str).map(str::to_owned).collect());
        }
        let exact = |t: &str| self.list.as_ref().is_some_and(|l| l.exact.contains_key(t.trim()));
        let body = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let separator = ['|', ';', '\n'].into_iter().find(|s| body.contains(*s)).unwrap_or(',');
        let pieces: Vec<&str> = body.split(separator).collect();
        let mut items = Vec::new();
        let mut at = 0;
        while at < pieces.len() {
            // The longest run of pieces that is one value of the list.
            let run = (2..=4.min(pieces.len() - at)).rev().find_map(|n| {
                let joined = pieces[at..at + n].join(&separator.to_string());
                let joined = bare(&joined).to_owned();
                let found = self.list.as_ref()?.folded.contains_key(&joined.to_lowercase());
                found.then_some((n, joined))
            });
            let piece = pieces[at];
            let (taken, item) = run.unwrap_or_else(|| {
                let item = if exact(piece) { piece } else { bare(piece) };
                (1, item.to_owned())
            });
            // A separator at the end ends the last item.
            let has_position = self.keeps_items && at + taken < pieces.len();
            if !item.is_empty() || has_position {
                items.push(item);
            }
            at += taken;
        }
        Some(items).filter(|items| items.iter().any(|item| !item.is_empty()))
    }

    /// Converts text to a value of a type, with a note if the text was not in the stored form.
    #[must_use]
    pub fn coerce(kind: Type, text: &str) -> Option<(Value, Option<&'static str>)> {
        super::coerce::coerce(kind, text)
    }
}

/// Returns true if a text is a model's refusal and not an answer.
#[must_use]
pub fn is_refusal(text: &str) -> bool {
    let lower = text.trim().to_lowercase().replace('\u{2019}', "'");
    let cannot =
        ["can't", "cannot", "can not", "unable", "not able"].iter().any(|c| lower.contains(c));
    let opening = [
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
        || (lower.contains("as an ai language model") && cannot)
        || ((lower.starts_with("i'm sorry")
            || lower.starts_with("i am sorry")
            || lower.starts_with("sorry,"))
            && cannot)
        || opening.iter().any(|o| lower.starts_with(o))
}

/// Joins the items of a list into one text that can be split again. It is JSON if an item contains
/// a separator.
fn raw_of(items: &[String]) -> String {
    let parts = |c| c == '|' || items.len() == 1 && matches!(c, ',' | ';' | '\n');
    let whole = |item: &String| !item.contains(parts) && bare(item) == item.trim();
    if items.iter().all(whole) { items.join(" | ") } else { Json::from(items).to_string() }
}

/// Splits a text of [`raw_of`] into items. A comma is not a separator here: items that were written
/// with commas between them are stored with `|`.
fn kept_items(raw: &str) -> Vec<String> {
    match serde_json::from_str(raw) {
        Ok(Json::Array(items)) => items
            .into_iter()
            .map(|item| if let Json::String(text) = item { text } else { item.to_string() })
            .collect(),
        _ => raw.split('|').map(|item| item.trim().to_owned()).collect(),
    }
}

fn bare(text: &str) -> &str {
    text.trim().trim_matches(|c| matches!(c, '\'' | '"' | '[' | ']' | '`')).trim()
}

/// Requires the texts of an answer to be parts of a text, and uses its spelling.
fn part_of(text: &str, answer: Answer) -> Answer {
    let found = |value: &Value| {
        let said = value.text()?;
        let said = said.trim();
        if text.contains(said) {
            return Some(Value::from(said));
        }
        // If lower case does not change the length, the offsets are the same.
        let lower = text.to_lowercase();
        let at = lower.find(&said.to_lowercase()).filter(|_| lower.len() == text.len())?;
        text.get(at..at + said.len()).map(Value::from)
    };
    let parts = match &answer.value {
        CellValue::One(value) => found(value).map(CellValue::One),
        CellValue::Many(all) => {
            all.iter().map(found).collect::<Option<Vec<Value>>>().map(CellValue::Many)
        }
        CellValue::Nothing => return answer,
    };
    match parts {
        Some(value) => Answer { value, ..answer },
        None => {
            let said = answer.raw.clone().unwrap_or_else(|| match &answer.value {
                CellValue::One(value) => value.to_string(),
                other => other.to_json().to_string(),
            });
            Answer::without_value(State::Invalid, said)
        }
    }
}
