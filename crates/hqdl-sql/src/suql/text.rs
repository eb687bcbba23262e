//! A text put together from pieces of another, each of which knows where it
//! comes from.

use std::ops::Range;

/// Pieces in their order.
pub(super) type Text = Vec<Part>;

/// A piece of the new text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Bytes of the old text.
    Old(Range<usize>),
    /// Words that stand for some bytes of the old text.
    New(String, Range<usize>),
    /// A column's name: where it stands, its table and itself.
    Column(Range<usize>, Option<String>, String),
    /// A column's name in a query within the one at hand.
    Inner(Range<usize>, Option<String>, String),
    /// `*`: all columns of all tables; `t.*`: of one.
    Star(Range<usize>, Option<String>),
    /// `t.*` that is counted, and whether each different row is once.
    Rows(Range<usize>, String, bool),
}

/// A query in `SQLite`'s words, and where each of them comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translated {
    /// The query.
    pub sql: String,
    /// Where each part begins, in order, and the bytes it stands for.
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

    /// A query with some places written anew; these in order, none within another.
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

    /// The same, where what it was made from was made from another text.
    pub(super) fn after(self, first: &Self) -> Self {
        let parts = self.parts.into_iter().map(|(at, old, same)| {
            let place = first.place(&old);
            let same = same && place.len() == old.len();
            (at, place, same)
        });
        Self { parts: parts.collect(), sql: self.sql }
    }

    /// The place in the query as it was written.
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
