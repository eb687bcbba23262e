//! Translated text as a sequence of fragments that record their source positions.

use std::ops::Range;

/// Fragments in order.
pub(super) type Text = Vec<Part>;

/// A fragment of the translated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Unchanged bytes of the source.
    Old(Range<usize>),
    /// Generated text, and the source bytes that it replaces.
    New(String, Range<usize>),
    /// A column: position, table and column name.
    Column(Range<usize>, Option<String>, String),
    /// A column in a nested query.
    Inner(Range<usize>, Option<String>, String),
    /// `*` for all tables, or `t.*` for a single one.
    Star(Range<usize>, Option<String>),
    /// `count(t.*)`; the flag is true for DISTINCT.
    Rows(Range<usize>, String, bool),
}

/// A query translated to `SQLite`'s dialect, with a mapping to source positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translated {
    /// SQL of the translated query.
    pub sql: String,
    /// Start of each fragment, its source range, and whether it is unchanged; in order.
    parts: Vec<(usize, Range<usize>, bool)>,
}

impl Translated {
    pub(super) fn of(old: &str, text: &Text) -> Self {
        let (mut sql, mut parts) = (String::with_capacity(old.len() + 64), Vec::new());
        for part in text {
            match part {
                Part::Old(span)
                | Part::Column(span, ..)
                | Part::Inner(span, ..)
                | Part::Star(span, _)
                | Part::Rows(span, ..) => {
                    parts.push((sql.len(), span.clone(), true));
                    sql.push_str(old.get(span.clone()).unwrap_or_default());
                }
                Part::New(new, span) => {
                    parts.push((sql.len(), span.clone(), false));
                    sql.push_str(new);
                }
            }
        }
        Self { sql, parts }
    }

    /// Creates a translation from edits, which must be sorted and not overlap.
    #[must_use]
    pub fn with(old: &str, edits: Vec<(Range<usize>, String)>) -> Self {
        let (mut text, mut at) = (Vec::new(), 0);
        for (span, new) in edits {
            text.push(Part::Old(at..span.start.max(at)));
            at = span.end;
            text.push(Part::New(new, span));
        }
        text.push(Part::Old(at..old.len().max(at)));
        Self::of(old, &text)
    }

    /// Composes this translation with the one that produced its source.
    pub(super) fn after(self, first: &Self) -> Self {
        let parts = self.parts.into_iter().map(|(at, old, same)| {
            let place = first.place(&old);
            let same = same && place.len() == old.len();
            (at, place, same)
        });
        Self { parts: parts.collect(), sql: self.sql }
    }

    /// Maps a byte range to the original query.
    #[must_use]
    pub fn place(&self, span: &Range<usize>) -> Range<usize> {
        let start = self.part(span.start).map_or(0, |(at, old, same)| {
            if same { (old.start + (span.start - at)).min(old.end) } else { old.start }
        });
        let last = span.end.saturating_sub(1).max(span.start);
        let end = self.part(last).map_or(start, |(at, old, same)| {
            if same { (old.start + (span.end - at)).min(old.end) } else { old.end }
        });
        start..end.max(start)
    }

    fn part(&self, at: usize) -> Option<(usize, &Range<usize>, bool)> {
        let n = self.parts.partition_point(|(start, ..)| *start <= at).checked_sub(1)?;
        self.parts.get(n).map(|(start, old, same)| (*start, old, *same))
    }
}
