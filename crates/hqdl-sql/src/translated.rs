//! Rewritten text, with a mapping to positions in the source text.

use std::ops::Range;

/// Maximum length, in bytes, of the text that replaces a call and the calls inside it.
const MAX_REPLACEMENT: usize = 1_000_000;

/// A query after a rewrite, with a mapping to source positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranslatedQuery {
    /// SQL of the translated query.
    pub sql: String,
    /// For each fragment, in order: its start, its source range, and whether its text is unchanged.
    fragments: Vec<(usize, Range<usize>, bool)>,
}

impl TranslatedQuery {
    /// Creates an empty translation with capacity for a text of `length` bytes.
    pub(crate) fn with_capacity(length: usize) -> Self {
        Self { sql: String::with_capacity(length + 64), fragments: Vec::new() }
    }

    /// Appends text: an unchanged range of the source, or the text that replaces the range.
    pub(crate) fn push_fragment(&mut self, text: &str, span: Range<usize>, is_unchanged: bool) {
        self.fragments.push((self.sql.len(), span, is_unchanged));
        self.sql.push_str(text);
    }

    /// Appends an unchanged range of the source.
    fn push_source(&mut self, source: &str, span: Range<usize>) {
        self.push_fragment(source.get(span.clone()).unwrap_or_default(), span, true);
    }

    /// Applies edits to this text. Positions in the result map to the same source as positions in
    /// this text.
    ///
    /// # Errors
    /// Returns [`TextTooLong`] if calls copy their arguments too often.
    pub fn with_edits(&self, edits: Edits) -> Result<Self, TextTooLong> {
        let written = edits.apply_to(&self.sql);
        let written = written.map_err(|error| TextTooLong(self.map_span_to_original(&error.0)))?;
        let mut composed = Self { sql: written.sql, fragments: Vec::new() };
        for (start, span, is_unchanged) in written.fragments {
            if !is_unchanged {
                composed.fragments.push((start, self.map_span_to_original(&span), false));
                continue;
            }
            // An unchanged range can consist of several fragments of this text.
            let first = self.fragments.partition_point(|(at, ..)| *at <= span.start);
            for n in first.saturating_sub(1)..self.fragments.len() {
                let at = self.fragments[n].0.max(span.start);
                let end = self.fragments.get(n + 1).map_or(self.sql.len(), |next| next.0);
                if at >= span.end {
                    break;
                }
                let (_, source, is_source) = &self.fragments[n];
                let part = if *is_source {
                    self.map_span_to_original(&(at..end.min(span.end)))
                } else {
                    source.clone()
                };
                composed.fragments.push((start + at - span.start, part, *is_source));
            }
        }
        Ok(composed)
    }

    /// Maps a byte range to the original query.
    #[must_use]
    pub fn map_span_to_original(&self, span: &Range<usize>) -> Range<usize> {
        let start = self.find_fragment(span.start).map_or(0, |(at, old, same)| {
            if same { (old.start + (span.start - at)).min(old.end) } else { old.start }
        });
        let last = span.end.saturating_sub(1).max(span.start);
        let end = self.find_fragment(last).map_or(start, |(at, old, same)| {
            if same { (old.start + (span.end - at)).min(old.end) } else { old.end }
        });
        start..end.max(start)
    }

    fn find_fragment(&self, at: usize) -> Option<(usize, &Range<usize>, bool)> {
        let n = self.fragments.partition_point(|(start, ..)| *start <= at).checked_sub(1)?;
        self.fragments.get(n).map(|(start, old, same)| (*start, old, *same))
    }
}

/// Replacement for a range of a query, composed of new text and copied ranges of the query. Other
/// edits also apply within the copied ranges, so edited text can be moved or copied.
#[derive(Debug, Clone, Default)]
pub struct EditText(Vec<EditPart>);

#[derive(Debug, Clone)]
enum EditPart {
    Text(String),
    Source(Range<usize>),
}

impl EditText {
    /// Combines parts in this order.
    #[must_use]
    pub fn concat<const N: usize>(parts: [Self; N]) -> Self {
        Self(parts.into_iter().flat_map(|part| part.0).collect())
    }

    /// Combines parts, with a separator between them.
    #[must_use]
    pub fn join(parts: Vec<Self>, separator: &str) -> Self {
        let mut joined = Self::default();
        for (n, part) in parts.into_iter().enumerate() {
            if n > 0 && !separator.is_empty() {
                joined.0.push(EditPart::Text(separator.to_owned()));
            }
            joined.0.extend(part.0);
        }
        joined
    }
}

impl From<&str> for EditText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for EditText {
    fn from(text: String) -> Self {
        Self(vec![EditPart::Text(text)])
    }
}

impl From<Range<usize>> for EditText {
    fn from(span: Range<usize>) -> Self {
        Self(vec![EditPart::Source(span)])
    }
}

/// Range of a query whose replacement is too long, because it copies other ranges too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTooLong(pub Range<usize>);

/// Edits of a query. A nested edit applies wherever the text of the outer edit copies the nested
/// edit's range.
#[derive(Debug, Clone, Default)]
pub struct Edits(Vec<(Range<usize>, EditText)>);

impl Edits {
    /// Returns true if an edit replaces exactly this range.
    #[must_use]
    pub fn covers(&self, span: &Range<usize>) -> bool {
        self.0.iter().any(|(edited, _)| edited == span)
    }

    /// Returns true if there is no edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces a range. Insertions at the same position are written in the order in which they
    /// were added.
    pub fn replace(&mut self, span: Range<usize>, new: impl Into<EditText>) {
        self.0.push((span, new.into()));
    }

    /// Inserts a text before all other insertions at this position.
    pub(crate) fn insert_first(&mut self, at: usize, text: String) {
        self.0.insert(0, (at..at, text.into()));
    }

    /// Adds all edits of `other` after the existing ones.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns the text with all edits.
    ///
    /// # Errors
    /// Returns [`TextTooLong`] if calls copy their arguments too often.
    pub fn apply_to(mut self, text: &str) -> Result<TranslatedQuery, TextTooLong> {
        // An insertion comes before the replacement that begins there, and an outer edit before the
        // edits inside it.
        self.0.sort_by_key(|(span, _)| (span.start, !span.is_empty(), usize::MAX - span.end));
        let mut written = TranslatedQuery::with_capacity(text.len());
        self.write_range(text, 0..text.len(), (0, None), None, &mut written)?;
        Ok(written)
    }

    /// Writes a range with the edits from index `first` on. `limit` is the maximum length of the
    /// text within an edit, and `outer_end` is the end of the edit that copies the range. An
    /// insertion at that end follows the edit, so it is not part of the copy.
    fn write_range(
        &self,
        text: &str,
        range: Range<usize>,
        (first, limit): (usize, Option<usize>),
        outer_end: Option<usize>,
        written: &mut TranslatedQuery,
    ) -> Result<(), TextTooLong> {
        let mut at = range.start;
        let first = first.max(self.0.partition_point(|(span, _)| span.start < range.start));
        for (n, (span, new)) in self.0.iter().enumerate().skip(first) {
            if span.start > range.end {
                break;
            }
            if span.is_empty() && outer_end == Some(span.start) {
                continue;
            }
            if span.start < at || span.end > range.end {
                let is_lost = |(outer, new): &(Range<usize>, EditText)| {
                    let keeps = |part: &EditPart| matches!(part, EditPart::Source(s) if s == span);
                    outer == span && !span.is_empty() && !new.0.iter().any(keeps)
                };
                debug_assert!(!self.0[..n].last().is_some_and(is_lost), "two edits of {span:?}");
                continue;
            }
            written.push_source(text, at..span.start);
            at = span.end;
            let limit = limit.unwrap_or(written.sql.len() + span.len() + MAX_REPLACEMENT);
            for part in &new.0 {
                match part {
                    EditPart::Text(new) => written.push_fragment(new, span.clone(), false),
                    EditPart::Source(part) => {
                        // Text from before the edit has its own edits.
                        let next = if part.end <= span.start { 0 } else { n + 1 };
                        let inner = (next, Some(limit));
                        self.write_range(text, part.clone(), inner, Some(span.end), written)?;
                        if written.sql.len() > limit {
                            return Err(TextTooLong(span.clone()));
                        }
                    }
                }
            }
            if new.0.is_empty() {
                written.push_fragment("", span.clone(), false);
            }
        }
        written.push_source(text, at..range.end.max(at));
        Ok(())
    }
}
