//! Which row an answer is about. A wrong guess here is a value in a wrong row,
//! so the rules are few and strict:
//!
//! * an answer names its row by number *and* tag, or number and key; when both
//!   are there and do not agree, it is nobody's;
//! * without a number, the key alone must name exactly one of the rows asked;
//! * keys are the same when they are the same text, or the same but for case,
//!   spaces and punctuation, and no other row of the request fits as well;
//!   `&amp;` and `&` are the same punctuation, and so are XML's other references;
//! * NULL is echoed as `null`; nothing at all may be NULL or the empty text, and
//!   tells two rows with these apart no better than it does us;
//! * a request for one row is answered by one row: there, a part of the key may
//!   be left out, or filled in where the key has none (`NULL` → "Carl Creel"),
//!   which is noted. A part that contradicts the key is nobody's, unless the whole
//!   key is only misspelt and no other row of the expansion has the echoed one.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use foldhash::HashMap;

use super::label::{self, fold};
use super::markup::unescaped;
use super::spelling::{ExpansionKeys, is_misspelling};
use hqdl_values::value::Value;

/// The rows of a request, as answers are matched with them.
pub struct RequestKeys {
    rows: Vec<AlignedRow>,
    /// Whether a key holds a line break, so that a line of an answer may be the
    /// end of one key and look like another.
    broken: bool,
    /// The rows by what their first parts are compared as.
    by_first: HashMap<String, Vec<usize>>,
    /// The rows of which that says too little: their first part is nothing, or may be
    /// split over several fields.
    open: Vec<usize>,
    /// All keys of the expansion, where the only row's key may be misspelt.
    known: Option<Arc<ExpansionKeys>>,
}

/// A row of a request.
struct AlignedRow {
    parts: Vec<KeyPart>,
    /// The tag of its label.
    tag: String,
    /// The number that its key begins with, of all the digits there.
    number: Option<usize>,
}

/// One component of a key.
struct KeyPart {
    /// Canonical text; empty for NULL.
    text: String,
    folded: String,
    /// The same of what its references to characters stand for, where it has any.
    meant: Option<String>,
    null: bool,
}

/// How well an echoed key fits a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// Letters are wrong; accepted only where one row was asked about.
    Misspelt,
    /// Parts were left out or filled in; accepted only where one row was asked
    /// about.
    Partly,
    /// The same but for case, spaces and punctuation.
    Nearly,
    /// The same text.
    Exactly,
}

/// Where an answer may belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Position of the row among those asked about.
    pub row: usize,
    /// How well its key fits.
    pub fit: Fit,
    /// How many fields number and key took.
    pub taken: usize,
    /// What was echoed.
    pub echo: Echoed,
}

/// What an answer echoes of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echoed {
    /// The label.
    Label,
    /// The beginning of the key, with the word that tells it from the others.
    Beginning,
    /// The key.
    Key,
}

impl RequestKeys {
    /// The keys of the rows asked about, in the order of the prompt.
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

    /// The same keys. If they are one, an answer may misspell it, unless what it says is
    /// another one of `known`.
    #[must_use]
    pub fn among(self, known: Option<Arc<ExpansionKeys>>) -> Self {
        let known = known.filter(|_| self.rows.len() == 1);
        Self { known, ..self }
    }

    /// The rows that fields may fit, each once: those that [`Self::spelled_fits`] tells of, and
    /// some more. Texts that are the same are folded to the same.
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

    /// How many rows were asked about.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row was asked about.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text of a part of a row's key.
    #[must_use]
    pub fn part(&self, row: usize, part: usize) -> Option<&str> {
        Some(self.rows.get(row)?.parts.get(part)?.text.as_str())
    }

    /// How many parts a key has.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.rows.first().map_or(0, |r| r.parts.len())
    }

    /// Whether a text could name one of the rows at all: a quick look before
    /// the ways to read it are tried.
    #[must_use]
    pub fn may_name(&self, text: &str) -> bool {
        let plain = fold(&unescaped(text));
        let text = fold(&Value::from(text).canonical().unwrap_or_default());
        let holds = |part: &KeyPart| {
            let forms = [Some(&part.folded), part.meant.as_ref()];
            forms.into_iter().flatten().any(|p| text.contains(p) || plain.contains(p))
        };
        self.rows.iter().any(|row| {
            // Of the only row, one part that is right may be enough.
            let partly = self.rows.len() == 1
                && row.parts.iter().any(|part| !part.folded.is_empty() && holds(part));
            partly || self.known.is_some() || text.contains(&row.tag) || row.parts.iter().all(holds)
        })
    }

    /// The row that a line begins by number, with its label or its key.
    #[must_use]
    pub fn numbered(&self, fields: &[&str]) -> bool {
        let number = fields.first().and_then(|f| label::read(f)).map(|(number, _)| number);
        number.is_some_and(|n| self.places(fields).iter().any(|p| p.row + 1 == n))
    }

    /// Whether a line that was cut somewhere begins a row.
    #[must_use]
    pub fn may_begin(&self, line: &str) -> bool {
        let fields: Vec<&str> =
            line.split(',').map(|f| f.trim().trim_matches(['"', '\''])).collect();
        if !self.places(&fields).is_empty() {
            return true;
        }
        // Half a label, or half a key after its number.
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

    /// Where a line of fields may belong: all places are of one row, and differ in
    /// how many fields name it. The likeliest comes first.
    #[must_use]
    pub fn places(&self, fields: &[&str]) -> Vec<RowPlace> {
        let Some((number, tag)) = fields.first().and_then(|f| label::read(f)) else {
            return self.by_key(fields).into_iter().collect();
        };
        let rest = fields.get(1..).unwrap_or_default();
        if let Some(row) = number.checked_sub(1).filter(|n| *n < self.rows.len()) {
            let places = self.named(row, tag, rest);
            if !places.is_empty() {
                // Unless all of it is the key of another row. `1 2` is not the key `12`.
                let begins =
                    |(n, other): (usize, &AlignedRow)| n != row && other.number == Some(number);
                let other = !tag.is_empty()
                    && self.rows.iter().enumerate().any(begins)
                    && self.by_key(fields).is_some_and(|p| begins((p.row, &self.rows[p.row])));
                return if other { Vec::new() } else { places };
            }
            // The number is a lie, unless it is no number but part of a key; one
            // that a row here has is taken for a number, or a row would be
            // mistaken for the one whose key is that number.
            let folded = fold(tag);
            if self.rows.iter().any(|r| r.tag == folded) || tag.is_empty() {
                return Vec::new();
            }
        }
        self.by_key(fields).into_iter().collect()
    }

    /// The ways in which what stands after its number names a row.
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
            // The key may come after the label all the same; one that is nothing may
            // just as well be the first cell.
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
        // One that another row goes by is a lie, whatever it says of this one's key.
        let folded = fold(tag);
        if self.rows.iter().any(|other| other.tag == folded) {
            return places;
        }
        // Number and key in one field.
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

    /// Whether a text is the tag of a row, or the beginning of its key with the tag
    /// in it.
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

    /// Places an answer by its echoed key alone.
    #[must_use]
    pub fn by_key(&self, fields: &[&str]) -> Option<RowPlace> {
        let spelled = SpelledField::all(fields);
        // A line that is the end of a key would be taken for the key of another.
        if self.broken && self.rows.len() > 1 {
            return None;
        }
        let mut best: Option<RowPlace> = None;
        let mut tied = false;
        for row in self.candidates(fields, &spelled) {
            let Some((fit, taken)) = self.spelled_fits(row, fields, &spelled) else {
                continue;
            };
            // Nothing names nobody.
            if fit < Fit::Exactly && self.rows[row].parts.iter().all(|p| p.folded.is_empty()) {
                continue;
            }
            match best {
                Some(b) if b.fit > fit => {}
                // Two rows that fit alike: it is nobody's.
                Some(b) if b.fit == fit => tied = true,
                _ => {
                    best = Some(RowPlace { row, fit, taken, echo: Echoed::Key });
                    tied = false;
                }
            }
        }
        best.filter(|_| !tied)
    }

    /// How well the fields begin with the key of a row, and how many they took.
    fn spelled_fits(
        &self,
        row: usize,
        fields: &[&str],
        spelled: &[SpelledField<'_>],
    ) -> Option<(Fit, usize)> {
        self.unmisspelt_fits(row, fields, spelled).or_else(|| self.misspelt_fits(fields, spelled))
    }

    /// Whether the fields begin with the only key, misspelt, and how many they took.
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
                // A NULL that is echoed as nothing proves nothing.
                right += usize::from(!part.folded.is_empty());
                at += taken;
            } else if part.folded.is_empty() || label::says_none(first) {
                // Filled in, or left out.
                worst = Fit::Partly;
                at += 1;
            } else {
                return None;
            }
        }
        (worst > Fit::Partly || (right > 0 && self.rows.len() == 1)).then_some((worst, at))
    }

    /// Whether no other row fits these fields as well.
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

/// The number that a part of a key begins with: not another one that begins with its
/// digits.
fn begins_with(part: &Value) -> Option<usize> {
    let text = part.canonical()?;
    let text = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// A field of an answer, in the spellings that it is compared by: it is compared with
/// many rows.
struct SpelledField<'f> {
    field: &'f str,
    forms: OnceCell<Forms>,
}

struct Forms {
    /// Where it is another text.
    canonical: Option<String>,
    folded: String,
    /// The same of what its references to characters stand for, where it has any.
    plain: Option<String>,
}

/// What a text is folded to with its references to characters replaced, where it may have
/// some.
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
    /// Whether the fields begin with this part; a comma inside a name may have
    /// split it over several.
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
            // It may just as well stand for NULL.
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
