//! Matches answers with the rows of a request. A wrong match would store a value in the wrong row,
//! so the rules are few and strict:
//!
//! * An answer names its row by number *and* tag, or by number and key. If both are present and
//!   disagree, the answer is discarded.
//! * Without a number, the key alone must match exactly one requested row.
//! * Keys are equal if their texts are equal, or differ only in case, spaces and punctuation and no
//!   other row of the request matches as well. `&amp;` and `&` are the same punctuation, and so are
//!   XML's other references.
//! * NULL is echoed as `null`. An empty field may mean NULL or the empty text, so it cannot
//!   distinguish two rows that have one of these each.
//! * A request for one row has one answer row. A part of its key may be left out, or filled in
//!   where the key is NULL (`NULL` → "Carl Creel"); the answer then has a note. An answer with a
//!   part that contradicts the key is discarded, unless the whole key is only misspelt and no other
//!   row of the expansion has the echoed key.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use foldhash::HashMap;

use super::label::{self, fold};
use super::markup::unescaped;
use super::spelling::{ExpansionKeys, is_misspelling};
use hqdl_values::value::Value;

/// Keys of the rows of a request, prepared for matching with answers.
pub struct RequestKeys {
    rows: Vec<AlignedRow>,
    /// Whether a key contains a line break, so that a line of an answer could be the end of one key
    /// and look like another.
    broken: bool,
    /// Rows by the normalized forms of their first key part.
    by_first: HashMap<String, Vec<usize>>,
    /// Rows that `rows_by_first_part` cannot contain: their first part is empty, or may be split
    /// over several fields.
    open: Vec<usize>,
    /// All keys of the expansion, if the key of a single-row request may be misspelt.
    known: Option<Arc<ExpansionKeys>>,
}

/// Row of a request.
struct AlignedRow {
    parts: Vec<KeyPart>,
    /// Normalized tag of the row's label.
    tag: String,
    /// Number that the key begins with, if the key begins with digits.
    number: Option<usize>,
}

/// One column of a key.
struct KeyPart {
    /// Canonical text; empty for NULL.
    text: String,
    folded: String,
    /// Normalized text after decoding character references, if it has any.
    meant: Option<String>,
    null: bool,
}

/// How well an echoed key matches a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// Letters differ; accepted only in a single-row request.
    Misspelt,
    /// Parts were left out or filled in; accepted only in a single-row request.
    Partly,
    /// Equal except for case, spaces and punctuation.
    Nearly,
    /// The same text.
    Exactly,
}

/// Row that an answer may belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Position of the row in the request.
    pub row: usize,
    /// How well the key matches.
    pub fit: Fit,
    /// Number of fields that number and key occupy.
    pub taken: usize,
    /// Part of the row that was echoed.
    pub echo: Echoed,
}

/// Part of a row that an answer repeats to identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echoed {
    /// The label.
    Label,
    /// The beginning of the key, including the word that distinguishes it from the others.
    Beginning,
    /// The whole key.
    Key,
}

impl RequestKeys {
    /// Prepares the keys of the requested rows, in the order of the prompt.
    #[must_use]
    pub fn new<'r>(rows: impl IntoIterator<Item = &'r [Value]>) -> Self {
        let part = |value: &Value| {
            let text = value.canonical().unwrap_or_default().into_owned();
            let folded = fold(&text);
            let meant = plain(&text).filter(|meant| !meant.is_empty() && *meant != folded);
            KeyPart { folded, meant, null: *value == Value::Null, text }
        };
        let keys: Vec<&[Value]> = rows.into_iter().collect();
        let tags = label::tags(keys.iter().copied());
        let row = |(key, tag): (&&[Value], String)| AlignedRow {
            parts: key.iter().map(part).collect(),
            tag: fold(&tag),
            number: key.first().and_then(begins_with),
        };
        let rows: Vec<AlignedRow> = keys.iter().zip(tags).map(row).collect();
        let broken = rows.iter().flat_map(|r| &r.parts).any(|p| p.text.contains(['\n', '\r']));
        let mut by_first: HashMap<String, Vec<usize>> = HashMap::default();
        let mut open = Vec::new();
        for (n, row) in rows.iter().enumerate() {
            match row.parts.first() {
                Some(part) if !part.folded.is_empty() && !part.text.contains(',') => {
                    let forms = [Some(&part.folded), part.meant.as_ref()];
                    for form in forms.into_iter().flatten() {
                        by_first.entry(form.clone()).or_default().push(n);
                    }
                }
                _ => open.push(n),
            }
        }
        Self { rows, broken, by_first, open, known: None }
    }

    /// Returns the same keys, and allows the key of a single-row request to be misspelt.
    ///
    /// An echoed key that equals another key of `expansion_keys` is not a misspelling.
    #[must_use]
    pub fn among(self, known: Option<Arc<ExpansionKeys>>) -> Self {
        let known = known.filter(|_| self.rows.len() == 1);
        Self { known, ..self }
    }

    /// Returns the rows that the fields may match, without duplicates: all that
    /// [`Self::spelled_fits`] accepts, and possibly others. Equal texts have equal normalized
    /// forms.
    fn candidates(&self, fields: &[&str], spelled: &[SpelledField<'_>]) -> Vec<usize> {
        let rows = self.begun_by(spelled);
        debug_assert!(
            (0..self.rows.len()).all(|row| rows.binary_search(&row).is_ok()
                || self.spelled_fits(row, fields, spelled).is_none()),
            "a row that fits is a candidate"
        );
        rows
    }

    fn begun_by(&self, spelled: &[SpelledField<'_>]) -> Vec<usize> {
        if self.known.is_some() {
            return vec![0];
        }
        let Some(first) = spelled.first() else { return self.open.clone() };
        if label::says_none(first.field) {
            return (0..self.rows.len()).collect();
        }
        let Forms { canonical, folded, plain } = first.forms();
        let canonical = canonical.as_deref().map(fold);
        let forms = [Some(folded), plain.as_ref(), canonical.as_ref()];
        let found = forms.into_iter().flatten().filter_map(|form| self.by_first.get(form));
        let mut rows: Vec<usize> = found.flatten().chain(&self.open).copied().collect();
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
    pub fn part(&self, row: usize, part: usize) -> Option<&str> {
        Some(self.rows.get(row)?.parts.get(part)?.text.as_str())
    }

    /// Returns the number of columns of a key.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.rows.first().map_or(0, |r| r.parts.len())
    }

    /// Returns true if a text could name one of the rows: a cheap test before parsing it in several
    /// ways.
    #[must_use]
    pub fn may_name(&self, text: &str) -> bool {
        let plain = fold(&unescaped(text));
        let text = fold(&Value::from(text).canonical().unwrap_or_default());
        let holds = |part: &KeyPart| {
            let forms = [Some(&part.folded), part.meant.as_ref()];
            forms.into_iter().flatten().any(|p| text.contains(p) || plain.contains(p))
        };
        self.rows.iter().any(|row| {
            // For a single row, one correct part may be enough.
            let partly = self.rows.len() == 1
                && row.parts.iter().any(|part| !part.folded.is_empty() && holds(part));
            partly || self.known.is_some() || text.contains(&row.tag) || row.parts.iter().all(holds)
        })
    }

    /// Returns true if a line begins with a row number that agrees with its label or key.
    #[must_use]
    pub fn numbered(&self, fields: &[&str]) -> bool {
        let number = fields.first().and_then(|f| label::read(f)).map(|(number, _)| number);
        number.is_some_and(|n| self.places(fields).iter().any(|p| p.row + 1 == n))
    }

    /// Returns true if a truncated line begins a row.
    #[must_use]
    pub fn may_begin(&self, line: &str) -> bool {
        let fields: Vec<&str> =
            line.split(',').map(|f| f.trim().trim_matches(['"', '\''])).collect();
        if !self.places(&fields).is_empty() {
            return true;
        }
        // Part of a label, or part of a key after its number.
        let begun = |row: &AlignedRow, text: &str| {
            let text = fold(text);
            let key = row.parts.first().is_some_and(|part| part.folded.starts_with(&text));
            !text.is_empty() && (row.tag.starts_with(&text) || key)
        };
        let row = |number: usize| self.rows.get(number.checked_sub(1)?);
        match fields.first().and_then(|f| label::read(f)) {
            Some((number, "")) if fields.len() == 2 => {
                row(number).is_some_and(|row| begun(row, fields[1]))
            }
            Some((number, tag)) if fields.len() == 1 => {
                row(number).is_some_and(|row| begun(row, tag))
            }
            _ => false,
        }
    }

    /// Returns the possible matches of a line's fields, the most likely first.
    ///
    /// All matches have the same row and differ in the number of fields that name it.
    #[must_use]
    pub fn places(&self, fields: &[&str]) -> Vec<RowPlace> {
        let Some((number, tag)) = fields.first().and_then(|f| label::read(f)) else {
            return self.by_key(fields).into_iter().collect();
        };
        let rest = fields.get(1..).unwrap_or_default();
        if let Some(row) = number.checked_sub(1).filter(|n| *n < self.rows.len()) {
            let places = self.named(row, tag, rest);
            if !places.is_empty() {
                // Reject the match if the fields are the key of another row. `1 2` is not the key
                // `12`.
                let begins =
                    |(n, other): (usize, &AlignedRow)| n != row && other.number == Some(number);
                let other = !tag.is_empty()
                    && self.rows.iter().enumerate().any(begins)
                    && self.by_key(fields).is_some_and(|p| begins((p.row, &self.rows[p.row])));
                return if other { Vec::new() } else { places };
            }
            // The number is wrong, unless it is part of a key. If a row of the request has this
            // tag, the number counts as a row number; otherwise the answer could be matched with
            // the row whose key is that number.
            let folded = fold(tag);
            if self.rows.iter().any(|r| r.tag == folded) || tag.is_empty() {
                return Vec::new();
            }
        }
        self.by_key(fields).into_iter().collect()
    }

    /// Returns the ways in which the fields after a row number name that row.
    fn named(&self, row: usize, tag: &str, rest: &[&str]) -> Vec<RowPlace> {
        let mut places: Vec<RowPlace> = Vec::new();
        let takes = |places: &[RowPlace], taken: usize| places.iter().any(|p| p.taken == taken);
        let add = |places: &mut Vec<RowPlace>, fit, taken, echo| {
            if !takes(places, taken) {
                places.push(RowPlace { row, fit, taken, echo });
            }
        };
        let whole = |fields: &[&str]| {
            let spelled = SpelledField::all(fields);
            self.spelled_fits(row, fields, &spelled)
                .filter(|(fit, _)| self.stands_out(row, *fit, fields, &spelled))
        };
        if tag.is_empty() {
            if let Some((fit, taken)) = whole(rest) {
                add(&mut places, fit, taken + 1, Echoed::Key);
            }
            if let Some(first) = rest.first()
                && !takes(&places, 2)
                && let Some(echo) = self.begins(row, first)
            {
                add(&mut places, Fit::Exactly, 2, echo);
            }
            return places;
        }
        if self.begins(row, tag) == Some(Echoed::Label) {
            // The key may follow the label. An empty key is not accepted here, because it could
            // also be the first cell.
            let named = |(fit, _): &(Fit, usize)| {
                *fit > Fit::Partly
                    && self.rows[row].parts.iter().any(|part| !part.folded.is_empty())
            };
            if let Some((fit, taken)) = whole(rest).filter(named) {
                add(&mut places, fit, taken + 1, Echoed::Key);
            }
            add(&mut places, Fit::Exactly, 1, Echoed::Label);
            return places;
        }
        // The tag of another row is wrong, even if this row's key contains the word.
        let folded = fold(tag);
        if self.rows.iter().any(|other| other.tag == folded) {
            return places;
        }
        // Number and key are in one field.
        let fields: Vec<&str> = [tag].into_iter().chain(rest.iter().copied()).collect();
        if let Some((fit, taken)) = whole(&fields) {
            add(&mut places, fit, taken, Echoed::Key);
        }
        if !takes(&places, 1)
            && let Some(echo) = self.begins(row, tag)
        {
            add(&mut places, Fit::Nearly, 1, echo);
        }
        places
    }

    /// Returns how a text identifies a row: by its tag, or by the beginning of its key including
    /// the tag.
    fn begins(&self, row: usize, text: &str) -> Option<Echoed> {
        let row = self.rows.get(row)?;
        let text = Value::from(text);
        let text = text.canonical()?;
        if fold(&text) == row.tag {
            return Some(Echoed::Label);
        }
        let words = label::folded_words(&[text]);
        let begins = || {
            let parts: Vec<&str> = row.parts.iter().map(|part| part.text.as_str()).collect();
            label::folded_words(&parts).starts_with(&words)
        };
        (words.contains(&row.tag) && begins()).then_some(Echoed::Beginning)
    }

    /// Matches an answer by its echoed key only.
    #[must_use]
    pub fn by_key(&self, fields: &[&str]) -> Option<RowPlace> {
        let spelled = SpelledField::all(fields);
        // A line that is the end of one key could be mistaken for another key.
        if self.broken && self.rows.len() > 1 {
            return None;
        }
        let mut best: Option<RowPlace> = None;
        let mut tied = false;
        for row in self.candidates(fields, &spelled) {
            let Some((fit, taken)) = self.spelled_fits(row, fields, &spelled) else {
                continue;
            };
            // An empty key identifies no row.
            if fit < Fit::Exactly && self.rows[row].parts.iter().all(|p| p.folded.is_empty()) {
                continue;
            }
            match best {
                Some(b) if b.fit > fit => {}
                // Two rows match equally well, so the answer is ambiguous.
                Some(b) if b.fit == fit => tied = true,
                _ => {
                    best = Some(RowPlace { row, fit, taken, echo: Echoed::Key });
                    tied = false;
                }
            }
        }
        best.filter(|_| !tied)
    }

    /// Returns how well the fields begin with the key of a row, and how many fields it occupies.
    fn spelled_fits(
        &self,
        row: usize,
        fields: &[&str],
        spelled: &[SpelledField<'_>],
    ) -> Option<(Fit, usize)> {
        self.unmisspelt_fits(row, fields, spelled).or_else(|| self.misspelt_fits(fields, spelled))
    }

    /// Returns the match if the fields begin with a misspelling of the only key.
    fn misspelt_fits(&self, fields: &[&str], spelled: &[SpelledField<'_>]) -> Option<(Fit, usize)> {
        let known = self.known.as_ref()?;
        let parts = &self.rows.first()?.parts;
        let echoed = fields.get(..parts.len())?;
        let fits = |(part, field): (&KeyPart, &SpelledField<'_>)| {
            part.is(field).is_some() || (!part.null && is_misspelling(&part.text, field.field))
        };
        (parts.iter().zip(spelled).all(fits) && !known.contains(echoed))
            .then_some((Fit::Misspelt, parts.len()))
    }

    fn unmisspelt_fits(
        &self,
        row: usize,
        fields: &[&str],
        spelled: &[SpelledField<'_>],
    ) -> Option<(Fit, usize)> {
        let parts = &self.rows.get(row)?.parts;
        let mut at = 0;
        let mut worst = Fit::Exactly;
        let mut right = 0;
        for part in parts {
            let left = fields.get(at..).unwrap_or_default();
            let first = left.first()?;
            if let Some((fit, taken)) = part.begins(left, spelled.get(at)?) {
                worst = worst.min(fit);
                // An empty field for a NULL is no evidence.
                right += usize::from(!part.folded.is_empty());
                at += taken;
            } else if part.folded.is_empty() || label::says_none(first) {
                // The part was filled in or left out.
                worst = Fit::Partly;
                at += 1;
            } else {
                return None;
            }
        }
        (worst > Fit::Partly || (right > 0 && self.rows.len() == 1)).then_some((worst, at))
    }

    /// Returns true if no other row matches these fields equally well.
    fn stands_out(
        &self,
        row: usize,
        fit: Fit,
        fields: &[&str],
        spelled: &[SpelledField<'_>],
    ) -> bool {
        self.candidates(fields, spelled)
            .into_iter()
            .filter(|other| *other != row)
            .all(|other| self.spelled_fits(other, fields, spelled).is_none_or(|(f, _)| f < fit))
    }
}

/// Parses the number at the beginning of a key part, with all its digits (`12`, not `1`).
fn begins_with(part: &Value) -> Option<usize> {
    let text = part.canonical()?;
    let text = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Field of an answer with its normalized forms, which are computed once because it is compared
/// with many rows.
struct SpelledField<'f> {
    field: &'f str,
    forms: OnceCell<Forms>,
}

struct Forms {
    /// Canonical text, if it differs from the field.
    canonical: Option<String>,
    folded: String,
    /// Normalized text after decoding character references, if it has any.
    plain: Option<String>,
}

/// Returns the normalized text after decoding character references, or `None` if the text has none.
fn plain(text: &str) -> Option<String> {
    text.contains('&').then(|| fold(&unescaped(text)))
}

impl<'f> SpelledField<'f> {
    fn of(field: &'f str) -> Self {
        Self { field: field.trim(), forms: OnceCell::new() }
    }

    fn all(fields: &[&'f str]) -> Vec<Self> {
        fields.iter().map(|field| Self::of(field)).collect()
    }

    fn forms(&self) -> &Forms {
        self.forms.get_or_init(|| {
            let value = Value::from(self.field);
            let canonical = value.canonical().filter(|text| text != self.field);
            Forms {
                canonical: canonical.map(Cow::into_owned),
                folded: fold(self.field),
                plain: plain(self.field),
            }
        })
    }
}

impl KeyPart {
    /// Returns how well the fields begin with this part, and how many fields it occupies. A comma
    /// inside a name may have split it over several fields.
    fn begins(&self, fields: &[&str], first: &SpelledField<'_>) -> Option<(Fit, usize)> {
        if let Some(fit) = self.is(first) {
            return Some((fit, 1));
        }
        if !self.text.contains(',') {
            return None;
        }
        (2..=fields.len().min(5)).find_map(|n| {
            let joined = fields.get(..n)?.join(",");
            Some((self.is(&SpelledField::of(&joined))?, n))
        })
    }

    fn is(&self, spelled: &SpelledField<'_>) -> Option<Fit> {
        let field = spelled.field;
        if self.null {
            let exactly = field.eq_ignore_ascii_case("null");
            return label::says_none(field).then_some(if exactly {
                Fit::Exactly
            } else {
                Fit::Nearly
            });
        }
        if field.is_empty() {
            // An empty field may also mean NULL.
            return self.text.is_empty().then_some(Fit::Nearly);
        }
        let Forms { canonical, folded, plain } = spelled.forms();
        if field == self.text || canonical.as_deref() == Some(self.text.as_str()) {
            return Some(Fit::Exactly);
        }
        if folded.is_empty() || self.folded.is_empty() {
            return None;
        }
        let is = |text: &String| text == folded || plain.as_ref() == Some(text);
        (is(&self.folded) || self.meant.as_ref().is_some_and(is)).then_some(Fit::Nearly)
    }
}
