//! Which row an answer is about. A wrong guess here is a value in a wrong row,
//! so the rules are few and strict:
//!
//! * an answer names its row by number *and* key; when both are there and do
//!   not agree, it is nobody's;
//! * without a number, the key alone must name exactly one of the rows asked;
//! * keys are the same when they are the same text, or the same but for case,
//!   spaces and punctuation, and no other row of the request is closer;
//! * a request for one row is answered by one row: there, a key of which one
//!   part is right and another was filled in or corrected (`NULL` → "Carl
//!   Creel") is accepted, and noted.

use crate::value::Value;

/// The rows of a request, as answers are matched with them.
pub struct Keys {
    rows: Vec<Vec<Part>>,
}

/// One component of a key.
struct Part {
    /// Canonical text; empty for NULL.
    text: String,
    folded: String,
    null: bool,
}

/// How well an echoed key fits a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// One part is right; accepted only where one row was asked about.
    Partly,
    /// The same but for case, spaces and punctuation.
    Nearly,
    /// The same text.
    Exactly,
}

/// Where an answer belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Position of the row among those asked about.
    pub row: usize,
    /// How well its key fits.
    pub fit: Fit,
    /// How many fields number and key took.
    pub taken: usize,
}

impl Keys {
    /// The keys of the rows asked about, in the order of the prompt.
    #[must_use]
    pub fn new<'r>(rows: impl IntoIterator<Item = &'r [Value]>) -> Self {
        let part = |value: &Value| {
            let text = value.canonical().unwrap_or_default().into_owned();
            Part { folded: fold(&text), null: *value == Value::Null, text }
        };
        Self { rows: rows.into_iter().map(|key| key.iter().map(part).collect()).collect() }
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

    /// How many parts a key has.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// Whether a text could name one of the rows at all: a quick look before
    /// the ways to read it are tried.
    #[must_use]
    pub fn may_name(&self, text: &str) -> bool {
        let text = fold(&Value::from(text).canonical().unwrap_or_default());
        let holds = |part: &Part| text.contains(&part.folded);
        self.rows.iter().any(|row| {
            // Of the only row, one part that is right may be enough.
            let partly = self.rows.len() == 1
                && row.iter().any(|part| !part.folded.is_empty() && holds(part));
            partly || row.iter().all(holds)
        })
    }

    /// Places a line of fields: number and key, or the key alone.
    #[must_use]
    pub fn place(&self, fields: &[&str]) -> Option<Place> {
        if let Some(number) = fields.first().and_then(|f| row_number(f)) {
            let rest = fields.get(1..).unwrap_or_default();
            if let Some(row) = number.checked_sub(1).filter(|n| *n < self.rows.len())
                && let Some((fit, taken)) = self.fits(row, rest)
                && self.stands_out(row, fit, rest)
            {
                return Some(Place { row, fit, taken: taken + 1 });
            }
            // The number is a lie, unless it is no number but part of a key; one
            // that a row here has is taken for a number, or a row would be
            // mistaken for the one whose key is that number.
            if (1..=self.rows.len()).contains(&number) {
                return None;
            }
        }
        self.by_key(fields)
    }

    /// Places an answer by its echoed key alone.
    #[must_use]
    pub fn by_key(&self, fields: &[&str]) -> Option<Place> {
        let mut best: Option<Place> = None;
        for row in 0..self.rows.len() {
            let Some((fit, taken)) = self.fits(row, fields) else {
                continue;
            };
            match best {
                Some(b) if b.fit > fit => {}
                // Two rows that fit alike: it is nobody's.
                Some(b) if b.fit == fit => return None,
                _ => best = Some(Place { row, fit, taken }),
            }
        }
        best
    }

    /// How well the fields begin with the key of a row, and how many they took.
    #[must_use]
    pub fn fits(&self, row: usize, fields: &[&str]) -> Option<(Fit, usize)> {
        let parts = self.rows.get(row)?;
        let mut at = 0;
        let mut worst = Fit::Exactly;
        let mut right = 0;
        let mut wrong = 0;
        for part in parts {
            let left = fields.get(at..).unwrap_or_default();
            if left.is_empty() {
                return None;
            }
            if let Some((fit, taken)) = part.begins(left) {
                worst = worst.min(fit);
                // A NULL that is echoed as nothing proves nothing.
                right += usize::from(!part.folded.is_empty());
                at += taken;
            } else {
                wrong += 1;
                at += 1;
            }
        }
        match wrong {
            0 => Some((worst, at)),
            _ if right > 0 && self.rows.len() == 1 => Some((Fit::Partly, at)),
            _ => None,
        }
    }

    /// Whether no other row fits these fields as well.
    fn stands_out(&self, row: usize, fit: Fit, fields: &[&str]) -> bool {
        fit == Fit::Exactly
            || (0..self.rows.len())
                .filter(|other| *other != row)
                .all(|other| self.fits(other, fields).is_none_or(|(f, _)| f < fit))
    }
}

impl Part {
    /// Whether the fields begin with this part; a comma inside a name may have
    /// split it over several.
    fn begins(&self, fields: &[&str]) -> Option<(Fit, usize)> {
        let first = fields.first()?;
        if let Some(fit) = self.is(first) {
            return Some((fit, 1));
        }
        if !self.text.contains(',') {
            return None;
        }
        (2..=fields.len().min(5)).find_map(|n| {
            let joined = fields.get(..n)?.join(",");
            Some((self.is(&joined)?, n))
        })
    }

    fn is(&self, field: &str) -> Option<Fit> {
        let field = field.trim();
        if self.null {
            let names = ["", "null", "none", "?", "n/a"];
            return names.contains(&field.to_lowercase().as_str()).then_some(Fit::Exactly);
        }
        if field == self.text
            || Value::from(field).canonical().as_deref() == Some(self.text.as_str())
        {
            return Some(Fit::Exactly);
        }
        let folded = fold(field);
        if folded.is_empty() || self.folded.is_empty() {
            return None;
        }
        (folded == self.folded).then_some(Fit::Nearly)
    }
}

/// `1`, `1.`, `#1` or `row 1`.
fn row_number(field: &str) -> Option<usize> {
    let field = field.trim().trim_start_matches("row ").trim_start_matches('#');
    field.strip_suffix(['.', ')']).unwrap_or(field).parse().ok()
}

/// Letters and digits, lower case.
fn fold(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
