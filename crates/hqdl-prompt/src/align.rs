//! Matches answers with the rows of a request. A wrong match would store a value in the wrong row,
//! so the rules are few and strict:
//!
//! * An answer names its row by number *and* tag, or by number and key. If both are present and
//!   disagree, the answer is discarded.
//! * Without a number, the key alone must match exactly one requested row.
//! * Keys are equal if their texts are equal, or if they differ only in case, spaces and
//!   punctuation and no other row of the request matches as well. `&amp;` and `&` are the same
//!   punctuation, and so are XML's other references.
//! * NULL is echoed as `null`. An empty field may mean NULL or the empty text, so it cannot
//!   distinguish a row with NULL from a row with the empty text.
//! * A request for one row has one answer row. A part of its key may be left out, or filled in
//!   where the key is NULL (`NULL` → "Carl Creel"); the answer then has a note. An answer with a
//!   part that contradicts the key is discarded, unless the whole key is only misspelt and no other
//!   row of the expansion has the echoed key.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use foldhash::HashMap;

use super::label::{self, normalize_key};
use super::markup::unescape;
use super::misspelling::{ExpansionKeys, is_misspelling};
use hqdl_values::value::Value;

/// Keys of a request's rows, prepared for matching with answers.
pub struct RequestKeys {
    rows: Vec<AlignedRow>,
    /// Whether a key contains a line break. If so, a line of an answer could be the end of one key
    /// and look like another.
    has_line_break: bool,
    /// Rows by the normalized forms of their first key part.
    rows_by_first_part: HashMap<String, Vec<usize>>,
    /// Rows that `rows_by_first_part` cannot contain, because their first part is empty or may be
    /// split over several fields.
    unindexed_rows: Vec<usize>,
    /// All keys of the expansion; `None` if a misspelt key is not accepted.
    expansion_keys: Option<Arc<ExpansionKeys>>,
}

/// Number of a request's first row.
const FIRST_NUMBER: usize = 1;

/// Returns the number of a row in a request.
pub(super) fn row_to_number(row: usize) -> usize {
    row + FIRST_NUMBER
}

/// Returns the row with this number in a request for `rows` rows.
pub(super) fn number_to_row(number: usize, rows: usize) -> Option<usize> {
    number.checked_sub(FIRST_NUMBER).filter(|row| *row < rows)
}

/// Returns true if a text is the number of a row.
pub(super) fn is_row_number(row: usize, text: &str) -> bool {
    text == row_to_number(row).to_string()
}

/// Row of a request, prepared for matching.
struct AlignedRow {
    parts: Vec<KeyPart>,
    /// Normalized tag of the row's label.
    normalized_tag: String,
    /// Number at the beginning of the key; `None` if the key does not begin with digits.
    leading_number: Option<usize>,
}

/// Value of one key column.
struct KeyPart {
    /// Canonical text; empty for NULL.
    text: String,
    normalized: String,
    /// Normalized text after decoding character references; `None` if the text contains none.
    unescaped: Option<String>,
    is_null: bool,
}

/// How well an echoed key matches a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchQuality {
    /// Letters differ; accepted only in a single-row request.
    Misspelt,
    /// Parts were left out or filled in; accepted only in a single-row request.
    Partial,
    /// Equal except for case, spaces and punctuation.
    Normalized,
    /// The same text.
    Exact,
}

/// A row that an answer may belong to, with the quality of the match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMatch {
    /// Position of the row in the request.
    pub row: usize,
    /// Quality of the match between the echoed key and the row's key.
    pub quality: MatchQuality,
    /// Number of fields that contain the number and the key.
    pub field_count: usize,
    /// Part of the row that the answer repeats.
    pub matched_by: MatchedBy,
}

/// Part of a row that an answer repeats to identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchedBy {
    /// The label.
    Label,
    /// The beginning of the key, including the word that distinguishes it from the other keys.
    KeyPrefix,
    /// The whole key.
    Key,
}

impl RequestKeys {
    /// Prepares the keys of the requested rows, in the order of the prompt.
    #[must_use]
    pub fn new<'r>(rows: impl IntoIterator<Item = &'r [Value]>) -> Self {
        let to_part = |value: &Value| {
            let text = value.canonical_text().unwrap_or_default().into_owned();
            let normalized = normalize_key(&text);
            let unescaped = normalize_unescaped(&text)
                .filter(|unescaped| !unescaped.is_empty() && *unescaped != normalized);
            KeyPart { normalized, unescaped, is_null: *value == Value::Null, text }
        };
        let keys: Vec<&[Value]> = rows.into_iter().collect();
        let tags = label::build_row_tags(keys.iter().copied());
        let to_row = |(key, tag): (&&[Value], String)| AlignedRow {
            parts: key.iter().map(to_part).collect(),
            normalized_tag: normalize_key(&tag),
            leading_number: key.first().and_then(parse_leading_number),
        };
        let rows: Vec<AlignedRow> = keys.iter().zip(tags).map(to_row).collect();
        let has_line_break =
            rows.iter().flat_map(|r| &r.parts).any(|p| p.text.contains(['\n', '\r']));
        let mut rows_by_first_part: HashMap<String, Vec<usize>> = HashMap::default();
        let mut unindexed_rows = Vec::new();
        for (n, row) in rows.iter().enumerate() {
            match row.parts.first() {
                Some(part) if !part.normalized.is_empty() && !part.text.contains(',') => {
                    let forms = [Some(&part.normalized), part.unescaped.as_ref()];
                    for key_text in forms.into_iter().flatten() {
                        rows_by_first_part.entry(key_text.clone()).or_default().push(n);
                    }
                }
                _ => unindexed_rows.push(n),
            }
        }
        Self { rows, has_line_break, rows_by_first_part, unindexed_rows, expansion_keys: None }
    }

    /// Also accepts a misspelt key in the answer to a single-row request.
    ///
    /// An echoed key that equals another key of `expansion_keys` is not a misspelling.
    #[must_use]
    pub fn with_known_keys(self, expansion_keys: Option<Arc<ExpansionKeys>>) -> Self {
        let expansion_keys = expansion_keys.filter(|_| self.rows.len() == 1);
        Self { expansion_keys, ..self }
    }

    /// Returns candidates for the row that the fields match, without duplicates. They include all
    /// rows that [`Self::match_spelled_key`] accepts. Equal texts have equal normalized forms.
    fn find_candidate_rows(
        &self,
        fields: &[&str],
        echoed_fields: &[EchoedField<'_>],
    ) -> Vec<usize> {
        let rows = self.find_by_first_part(echoed_fields);
        debug_assert!(
            (0..self.rows.len()).all(|row| rows.binary_search(&row).is_ok()
                || self.match_key(row, fields, echoed_fields).is_none()),
            "a row that fits is a candidate"
        );
        rows
    }

    fn find_by_first_part(&self, echoed_fields: &[EchoedField<'_>]) -> Vec<usize> {
        if self.expansion_keys.is_some() {
            return vec![0];
        }
        let Some(first) = echoed_fields.first() else { return self.unindexed_rows.clone() };
        if label::is_null_text(first.field) {
            return (0..self.rows.len()).collect();
        }
        let FieldForms { canonical, normalized, unescaped } = first.forms();
        let canonical = canonical.as_deref().map(normalize_key);
        let forms = [Some(normalized), unescaped.as_ref(), canonical.as_ref()];
        let found = forms
            .into_iter()
            .flatten()
            .filter_map(|key_text| self.rows_by_first_part.get(key_text));
        let mut rows: Vec<usize> = found.flatten().chain(&self.unindexed_rows).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Returns the number of requested rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if the request has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the text of a part of a row's key.
    #[must_use]
    pub fn key_part(&self, row: usize, part: usize) -> Option<&str> {
        Some(self.rows.get(row)?.parts.get(part)?.text.as_str())
    }

    /// Returns the number of key columns.
    #[must_use]
    pub fn part_count(&self) -> usize {
        self.rows.first().map_or(0, |r| r.parts.len())
    }

    /// Returns true if a text could identify one of the rows: a cheap test before parsing the text
    /// in several ways.
    #[must_use]
    pub fn may_contain_key(&self, text: &str) -> bool {
        let unescaped_text = normalize_key(&unescape(text));
        let text = normalize_key(&Value::from(text).canonical_text().unwrap_or_default());
        let occurs = |part: &KeyPart| {
            let forms = [Some(&part.normalized), part.unescaped.as_ref()];
            forms.into_iter().flatten().any(|p| text.contains(p) || unescaped_text.contains(p))
        };
        self.rows.iter().any(|row| {
            // For a single row, one correct part may be enough.
            let has_matching_part = self.rows.len() == 1
                && row.parts.iter().any(|part| !part.normalized.is_empty() && occurs(part));
            has_matching_part
                || self.expansion_keys.is_some()
                || text.contains(&row.normalized_tag)
                || row.parts.iter().all(occurs)
        })
    }

    /// Returns the row with this number.
    fn number_to_row(&self, number: usize) -> Option<usize> {
        number_to_row(number, self.rows.len())
    }

    /// Returns true if a line begins with a row number that agrees with its label or key.
    #[must_use]
    pub fn is_row_start(&self, fields: &[&str]) -> bool {
        let number = fields.first().and_then(|f| label::parse_label(f)).map(|(number, _)| number);
        let row = number.and_then(|number| self.number_to_row(number));
        row.is_some_and(|row| self.match_row(fields).iter().any(|p| p.row == row))
    }

    /// Returns true if a truncated line may begin a row.
    #[must_use]
    pub fn may_be_row_start(&self, line: &str) -> bool {
        let fields: Vec<&str> =
            line.split(',').map(|f| f.trim().trim_matches(['"', '\''])).collect();
        if !self.match_row(&fields).is_empty() {
            return true;
        }
        // After the row number, the text may be the beginning of the label or of the key.
        let is_prefix_of = |row: &AlignedRow, text: &str| {
            let text = normalize_key(text);
            let is_key_prefix =
                row.parts.first().is_some_and(|part| part.normalized.starts_with(&text));
            !text.is_empty() && (row.normalized_tag.starts_with(&text) || is_key_prefix)
        };
        let find_row = |number: usize| self.rows.get(self.number_to_row(number)?);
        match fields.first().and_then(|f| label::parse_label(f)) {
            Some((number, "")) if fields.len() == 2 => {
                find_row(number).is_some_and(|row| is_prefix_of(row, fields[1]))
            }
            Some((number, tag)) if fields.len() == 1 => {
                find_row(number).is_some_and(|row| is_prefix_of(row, tag))
            }
            _ => false,
        }
    }

    /// Returns the possible matches of a line's fields, the most likely first.
    ///
    /// All matches have the same row and differ in the number of fields that identify it.
    #[must_use]
    pub fn match_row(&self, fields: &[&str]) -> Vec<RowMatch> {
        let Some((number, tag)) = fields.first().and_then(|f| label::parse_label(f)) else {
            return self.match_by_key(fields).into_iter().collect();
        };
        let rest = fields.get(1..).unwrap_or_default();
        if let Some(row) = self.number_to_row(number) {
            let matches = self.match_numbered_row(row, tag, rest);
            if !matches.is_empty() {
                // Reject the match if the fields are the key of another row. `1 2` is not the key
                // `12`.
                let has_number = |(n, other): (usize, &AlignedRow)| {
                    n != row && other.leading_number == Some(number)
                };
                let is_other_key = !tag.is_empty()
                    && self.rows.iter().enumerate().any(has_number)
                    && self
                        .match_by_key(fields)
                        .is_some_and(|p| has_number((p.row, &self.rows[p.row])));
                return if is_other_key { Vec::new() } else { matches };
            }
            // The number is wrong, unless it is part of a key. If a row of the request has this
            // tag, treat the number as a row number; otherwise the answer could be matched with the
            // row whose key is that number.
            let normalized = normalize_key(tag);
            if self.rows.iter().any(|r| r.normalized_tag == normalized) || tag.is_empty() {
                return Vec::new();
            }
        }
        self.match_by_key(fields).into_iter().collect()
    }

    /// Returns the ways in which the fields after a row number can identify that row.
    fn match_numbered_row(&self, row: usize, tag: &str, rest: &[&str]) -> Vec<RowMatch> {
        let mut matches: Vec<RowMatch> = Vec::new();
        let has_match = |matches: &[RowMatch], field_count: usize| {
            matches.iter().any(|p| p.field_count == field_count)
        };
        let add_match = |matches: &mut Vec<RowMatch>, quality, field_count, matched_by| {
            if !has_match(matches, field_count) {
                matches.push(RowMatch { row, quality, field_count, matched_by });
            }
        };
        let match_whole_key = |fields: &[&str]| {
            let echoed_fields = EchoedField::from_fields(fields);
            self.match_key(row, fields, &echoed_fields)
                .filter(|(quality, _)| self.is_only_match(row, *quality, fields, &echoed_fields))
        };
        if tag.is_empty() {
            if let Some((quality, field_count)) = match_whole_key(rest) {
                add_match(&mut matches, quality, field_count + 1, MatchedBy::Key);
            }
            if let Some(first) = rest.first()
                && !has_match(&matches, 2)
                && let Some(matched_by) = self.match_tag_or_key_prefix(row, first)
            {
                add_match(&mut matches, MatchQuality::Exact, 2, matched_by);
            }
            return matches;
        }
        if self.match_tag_or_key_prefix(row, tag) == Some(MatchedBy::Label) {
            // The key may follow the label. Do not accept an empty key here, because the field
            // could also be the first cell.
            let is_named = |(quality, _): &(MatchQuality, usize)| {
                *quality > MatchQuality::Partial
                    && self.rows[row].parts.iter().any(|part| !part.normalized.is_empty())
            };
            if let Some((quality, field_count)) = match_whole_key(rest).filter(is_named) {
                add_match(&mut matches, quality, field_count + 1, MatchedBy::Key);
            }
            add_match(&mut matches, MatchQuality::Exact, 1, MatchedBy::Label);
            return matches;
        }
        // A tag of another row is wrong, even if this row's key contains the word.
        let normalized = normalize_key(tag);
        if self.rows.iter().any(|other| other.normalized_tag == normalized) {
            return matches;
        }
        // The number and the key may be in one field.
        let fields: Vec<&str> = [tag].into_iter().chain(rest.iter().copied()).collect();
        if let Some((quality, field_count)) = match_whole_key(&fields) {
            add_match(&mut matches, quality, field_count, MatchedBy::Key);
        }
        if !has_match(&matches, 1)
            && let Some(matched_by) = self.match_tag_or_key_prefix(row, tag)
        {
            add_match(&mut matches, MatchQuality::Normalized, 1, matched_by);
        }
        matches
    }

    /// Returns how a text identifies a row: by the row's tag, or by the beginning of its key
    /// including the tag. `None` if it does not.
    fn match_tag_or_key_prefix(&self, row: usize, text: &str) -> Option<MatchedBy> {
        let row = self.rows.get(row)?;
        let text = Value::from(text);
        let text = text.canonical_text()?;
        if normalize_key(&text) == row.normalized_tag {
            return Some(MatchedBy::Label);
        }
        let echoed_words = label::normalize_words(&[text]);
        let is_key_prefix = || {
            let parts: Vec<&str> = row.parts.iter().map(|part| part.text.as_str()).collect();
            label::normalize_words(&parts).starts_with(&echoed_words)
        };
        (echoed_words.contains(&row.normalized_tag) && is_key_prefix())
            .then_some(MatchedBy::KeyPrefix)
    }

    /// Matches an answer with a row by the echoed key only.
    #[must_use]
    pub fn match_by_key(&self, fields: &[&str]) -> Option<RowMatch> {
        let echoed_fields = EchoedField::from_fields(fields);
        // A line that is the end of one key could be mistaken for another key.
        if self.has_line_break && self.rows.len() > 1 {
            return None;
        }
        let mut best: Option<RowMatch> = None;
        let mut is_tied = false;
        for row in self.find_candidate_rows(fields, &echoed_fields) {
            let Some((quality, field_count)) = self.match_key(row, fields, &echoed_fields) else {
                continue;
            };
            // An empty key identifies no row.
            if quality < MatchQuality::Exact
                && self.rows[row].parts.iter().all(|p| p.normalized.is_empty())
            {
                continue;
            }
            match best {
                Some(b) if b.quality > quality => {}
                // Two rows match equally well, so the answer is ambiguous.
                Some(b) if b.quality == quality => is_tied = true,
                _ => {
                    best = Some(RowMatch { row, quality, field_count, matched_by: MatchedBy::Key });
                    is_tied = false;
                }
            }
        }
        best.filter(|_| !is_tied)
    }

    /// Returns how well the fields begin with the key of a row, and how many fields the key
    /// occupies; `None` if they do not match.
    fn match_key(
        &self,
        row: usize,
        fields: &[&str],
        echoed_fields: &[EchoedField<'_>],
    ) -> Option<(MatchQuality, usize)> {
        self.match_spelled_key(row, fields, echoed_fields)
            .or_else(|| self.match_misspelt_key(fields, echoed_fields))
    }

    /// Returns the match if the fields begin with a misspelling of the only key.
    fn match_misspelt_key(
        &self,
        fields: &[&str],
        echoed_fields: &[EchoedField<'_>],
    ) -> Option<(MatchQuality, usize)> {
        let expansion_keys = self.expansion_keys.as_ref()?;
        let parts = &self.rows.first()?.parts;
        let echoed_key = fields.get(..parts.len())?;
        let is_match = |(part, field): (&KeyPart, &EchoedField<'_>)| {
            part.match_field(field).is_some()
                || (!part.is_null && is_misspelling(&part.text, field.field))
        };
        (parts.iter().zip(echoed_fields).all(is_match) && !expansion_keys.contains(echoed_key))
            .then_some((MatchQuality::Misspelt, parts.len()))
    }

    fn match_spelled_key(
        &self,
        row: usize,
        fields: &[&str],
        echoed_fields: &[EchoedField<'_>],
    ) -> Option<(MatchQuality, usize)> {
        let parts = &self.rows.get(row)?.parts;
        let mut position = 0;
        let mut worst_quality = MatchQuality::Exact;
        let mut matching_parts = 0;
        for part in parts {
            let remaining = fields.get(position..).unwrap_or_default();
            let first = remaining.first()?;
            if let Some((quality, field_count)) =
                part.match_fields(remaining, echoed_fields.get(position)?)
            {
                worst_quality = worst_quality.min(quality);
                // An empty field for a NULL part is not evidence of a match.
                matching_parts += usize::from(!part.normalized.is_empty());
                position += field_count;
            } else if part.normalized.is_empty() || label::is_null_text(first) {
                // The part was filled in or left out.
                worst_quality = MatchQuality::Partial;
                position += 1;
            } else {
                return None;
            }
        }
        (worst_quality > MatchQuality::Partial || (matching_parts > 0 && self.rows.len() == 1))
            .then_some((worst_quality, position))
    }

    /// Returns true if all other rows match these fields less well.
    fn is_only_match(
        &self,
        row: usize,
        quality: MatchQuality,
        fields: &[&str],
        echoed_fields: &[EchoedField<'_>],
    ) -> bool {
        self.find_candidate_rows(fields, echoed_fields)
            .into_iter()
            .filter(|other| *other != row)
            .all(|other| {
                self.match_key(other, fields, echoed_fields)
                    .is_none_or(|(other_quality, _)| other_quality < quality)
            })
    }
}

/// Parses the number at the beginning of a key part, with all its digits (`12`, not `1`).
fn parse_leading_number(part: &Value) -> Option<usize> {
    let text = part.canonical_text()?;
    let text = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// A field of an answer with its normalized forms. They are computed once, because the field is
/// compared with many rows.
struct EchoedField<'f> {
    field: &'f str,
    forms: OnceCell<FieldForms>,
}

struct FieldForms {
    /// Canonical text; `None` if it is the same as the field.
    canonical: Option<String>,
    normalized: String,
    /// Normalized text after decoding character references; `None` if the text contains none.
    unescaped: Option<String>,
}

/// Returns the normalized text after decoding character references; `None` if the text contains
/// none.
fn normalize_unescaped(text: &str) -> Option<String> {
    text.contains('&').then(|| normalize_key(&unescape(text)))
}

impl<'f> EchoedField<'f> {
    fn new(field: &'f str) -> Self {
        Self { field: field.trim(), forms: OnceCell::new() }
    }

    fn from_fields(fields: &[&'f str]) -> Vec<Self> {
        fields.iter().map(|field| Self::new(field)).collect()
    }

    fn forms(&self) -> &FieldForms {
        self.forms.get_or_init(|| {
            let value = Value::from(self.field);
            let canonical = value.canonical_text().filter(|text| text != self.field);
            FieldForms {
                canonical: canonical.map(Cow::into_owned),
                normalized: normalize_key(self.field),
                unescaped: normalize_unescaped(self.field),
            }
        })
    }
}

impl KeyPart {
    /// Returns how well the fields begin with this key part, and how many fields the part occupies.
    /// A comma inside a name may have split it over several fields.
    fn match_fields(
        &self,
        fields: &[&str],
        first: &EchoedField<'_>,
    ) -> Option<(MatchQuality, usize)> {
        if let Some(quality) = self.match_field(first) {
            return Some((quality, 1));
        }
        if !self.text.contains(',') {
            return None;
        }
        (2..=fields.len().min(5)).find_map(|n| {
            let joined = fields.get(..n)?.join(",");
            Some((self.match_field(&EchoedField::new(&joined))?, n))
        })
    }

    fn match_field(&self, echoed: &EchoedField<'_>) -> Option<MatchQuality> {
        let field = echoed.field;
        if self.is_null {
            let is_exact = field.eq_ignore_ascii_case("null");
            return label::is_null_text(field).then_some(if is_exact {
                MatchQuality::Exact
            } else {
                MatchQuality::Normalized
            });
        }
        if field.is_empty() {
            // An empty field may also mean NULL.
            return self.text.is_empty().then_some(MatchQuality::Normalized);
        }
        let FieldForms { canonical, normalized, unescaped } = echoed.forms();
        if field == self.text || canonical.as_deref() == Some(self.text.as_str()) {
            return Some(MatchQuality::Exact);
        }
        if normalized.is_empty() || self.normalized.is_empty() {
            return None;
        }
        let is_equal = |text: &String| text == normalized || unescaped.as_ref() == Some(text);
        (is_equal(&self.normalized) || self.unescaped.as_ref().is_some_and(is_equal))
            .then_some(MatchQuality::Normalized)
    }
}
