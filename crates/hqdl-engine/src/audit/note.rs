//! The note of a cell in a sheet: the time of its truth, a remark, and the truths that it replaced,
//! latest first.
//!
//! ```text
//! 2026-11-27T20:15:00Z; person Ann said Human on 2026-11-27T20:10:00Z; Bob said ? at an unknown time
//! ```

use std::borrow::Cow;
use std::fmt;

use super::sheet::CellTruth;
use crate::truth::format_entry;

/// Maximum number of replaced truths in a note.
const MAX_REPLACED: usize = 20;
/// Maximum length of a note, in bytes, unless its remark or its first replaced truth is longer.
const MAX_BYTES: usize = 4000;
const SEPARATOR: &str = "; ";
const SAID: &str = " said ";
const ON: &str = " on ";
const NO_TIME: &str = " at an unknown time";
const DROPPED: &str = " older values dropped";
/// First words of the remark on a truth that was undone.
const UNDONE: &str = "undone by ";

/// A truth that another one replaced.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ReplacedTruth {
    /// Person, source or model that provided the value.
    pub(super) source: String,
    /// Value, as it was written in the sheet.
    pub(super) entry: String,
    /// Time at which the value was entered.
    pub(super) time: Option<String>,
    /// Remark on the value.
    pub(super) remark: String,
}

/// Parts of a note.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Note {
    /// Time at which the truth was entered.
    pub(super) time: Option<String>,
    /// Remark on the truth.
    pub(super) remark: String,
    /// Truths that were replaced, latest first.
    replaced: Vec<ReplacedTruth>,
    /// Number of replaced truths that the note no longer contains.
    dropped: usize,
}

impl Note {
    /// Parses a note. A text that hqdl did not write is a remark.
    pub(super) fn parse(text: &str) -> Self {
        let mut note = Self::default();
        let mut segments: Vec<&str> = text.split(SEPARATOR).collect();
        if segments.first().is_some_and(|first| is_time(first)) {
            note.time = Some(segments.remove(0).to_owned());
        }
        if let Some(count) =
            segments.last().and_then(|last| last.strip_suffix(DROPPED)?.parse().ok())
        {
            note.dropped = count;
            segments.pop();
        }
        while let Some(replaced) = segments.last().and_then(|last| ReplacedTruth::parse(last)) {
            note.replaced.insert(0, replaced);
            segments.pop();
        }
        let remark = segments.join(SEPARATOR);
        let quoted = serde_json::from_str(&remark).ok().filter(|text: &String| is_ambiguous(text));
        note.remark = quoted.unwrap_or(remark);
        note
    }

    /// Adds a remark to the truth's own.
    pub(super) fn add_remark(&mut self, remark: &str) {
        if !self.remark.is_empty() && !remark.is_empty() {
            self.remark.push_str(SEPARATOR);
        }
        self.remark.push_str(remark);
    }

    /// Adds the cell's current truth to the replaced truths. `remark` is added to its own remark.
    pub(super) fn replace_truth(&mut self, truth: &CellTruth, remark: Option<String>) {
        let remarks = [std::mem::take(&mut self.remark), remark.unwrap_or_default()];
        let remarks: Vec<String> = remarks.into_iter().filter(|r| !r.is_empty()).collect();
        self.replaced.insert(
            0,
            ReplacedTruth {
                source: truth.source.clone(),
                entry: format_entry(truth.value.as_ref()),
                time: self.time.take(),
                remark: remarks.join(SEPARATOR),
            },
        );
    }

    /// Undoes the cell's current truth and records it as undone. Returns the truth that it had
    /// replaced.
    pub(super) fn undo_truth(
        &mut self,
        truth: &CellTruth,
        (who, time): (&str, &str),
    ) -> Option<ReplacedTruth> {
        let is_current = |replaced: &ReplacedTruth| {
            let last = replaced.remark.rsplit(SEPARATOR).next();
            !last.is_some_and(|remark| remark.starts_with(UNDONE))
        };
        let restored = self.replaced.iter().position(is_current).map(|n| self.replaced.remove(n));
        self.replace_truth(truth, Some(format!("{UNDONE}{who} on {time}")));
        if let Some(restored) = &restored {
            self.time.clone_from(&restored.time);
            self.remark.clone_from(&restored.remark);
        }
        restored
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remark = Some(match self.remark.as_str() {
            remark if is_ambiguous(remark) => quote_as_json(remark),
            remark => remark.to_owned(),
        });
        let own = self.time.clone().into_iter().chain(remark.filter(|r| !r.is_empty()));
        let mut segments: Vec<String> = own.collect();
        let (own, mut dropped) = (segments.len(), self.dropped);
        segments.extend(self.replaced.iter().map(ReplacedTruth::to_string));
        let length = |segments: &[String]| segments.iter().map(|s| s.len() + 2).sum::<usize>();
        while segments.len() > own + MAX_REPLACED
            || segments.len() > own + 1 && length(&segments) > MAX_BYTES
        {
            segments.pop();
            dropped += 1;
        }
        if dropped > 0 {
            segments.push(format!("{dropped}{DROPPED}"));
        }
        f.write_str(&segments.join(SEPARATOR))
    }
}

impl ReplacedTruth {
    fn parse(segment: &str) -> Option<Self> {
        let (source, rest) = read_text(segment, &[SAID])?;
        let (entry, rest) = read_text(rest.strip_prefix(SAID)?, &[ON, NO_TIME])?;
        let (time, rest) = match rest.strip_prefix(NO_TIME) {
            Some(rest) => (None, rest),
            None => {
                let rest = rest.strip_prefix(ON)?;
                let (time, rest) = rest.split_at(rest.find(" (").unwrap_or(rest.len()));
                if !is_time(time) {
                    return None;
                }
                (Some(time.to_owned()), rest)
            }
        };
        let remark = match rest.strip_prefix(" (") {
            Some(rest) => read_text(rest.strip_suffix(')')?, &[]).filter(|r| r.1.is_empty())?.0,
            None if rest.is_empty() => String::new(),
            None => return None,
        };
        Some(Self { source, entry, time, remark })
    }
}

impl fmt::Display for ReplacedTruth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, entry) = (quote(&self.source, &[SAID]), quote(&self.entry, &[ON, NO_TIME]));
        write!(f, "{source}{SAID}{entry}")?;
        match &self.time {
            Some(time) => write!(f, "{ON}{time}")?,
            None => f.write_str(NO_TIME)?,
        }
        if self.remark.is_empty() { Ok(()) } else { write!(f, " ({})", quote(&self.remark, &[])) }
    }
}

fn is_time(text: &str) -> bool {
    let is_written = |c: char| c.is_ascii_digit() || "-:.TZ".contains(c);
    (20..=24).contains(&text.len()) && text.ends_with('Z') && text.chars().all(is_written)
}

/// Returns a text as it is, or as JSON without `; ` if it could be mistaken for the end of its part.
fn quote<'t>(text: &'t str, ends: &[&str]) -> Cow<'t, str> {
    let is_special = |c: char| c == '"' || c == ';' || c.is_control();
    let is_ambiguous =
        ends.iter().any(|end| find_end(&format!("{text}{end}"), ends) != Some(text.len()));
    if text.is_empty() || text.trim() != text || text.contains(is_special) || is_ambiguous {
        return Cow::Owned(quote_as_json(text));
    }
    Cow::Borrowed(text)
}

fn quote_as_json(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace(';', "\\u003b")
}

/// Returns true if a remark could be mistaken for other parts of a note.
fn is_ambiguous(remark: &str) -> bool {
    remark.split(SEPARATOR).any(|segment| {
        is_time(segment) || segment.ends_with(DROPPED) || ReplacedTruth::parse(segment).is_some()
    })
}

/// Returns the position of the first of the ends.
fn find_end(text: &str, ends: &[&str]) -> Option<usize> {
    ends.iter().filter_map(|end| text.find(end)).min()
}

/// Reads a text that [`quote`] wrote, up to one of the ends. Returns the text and the rest.
fn read_text<'s>(segment: &'s str, ends: &[&str]) -> Option<(String, &'s str)> {
    if segment.starts_with('"') {
        let mut texts = serde_json::Deserializer::from_str(segment).into_iter::<String>();
        let text = texts.next()?.ok()?;
        return Some((text, &segment[texts.byte_offset()..]));
    }
    let end = match ends {
        [] => segment.len(),
        ends => find_end(segment, ends)?,
    };
    Some((segment[..end].to_owned(), &segment[end..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hqdl_values::cell::CellValue;

    fn truth(source: &str, value: Option<&str>) -> CellTruth {
        let value = value.map(|text| CellValue::One(text.into()));
        CellTruth { value, source: source.to_owned(), note: String::new() }
    }

    /// Any source, value and remark can be restored from the note.
    #[test]
    fn a_note_keeps_every_replaced_truth() {
        let time = "2026-11-27T20:10:00.5Z";
        let odd = [
            "Ann",
            "",
            " ",
            "a; b",
            "Ann said Human on 2026-11-27T20:10:00Z",
            "\"",
            "\"\"",
            "(x) y)",
            "a on b at an unknown time",
            "line\nbreak",
            "3 older values dropped",
            time,
            "?",
            "none",
            "Ann said",
            "x on",
            "at an unknown time",
        ];
        for source in odd {
            for value in odd.map(Some).into_iter().chain([None]) {
                for remark in odd {
                    let mut note = Note { remark: remark.to_owned(), ..Note::default() };
                    note.time = (remark.len() % 2 == 0).then(|| time.to_owned());
                    assert_eq!(Note::parse(&note.to_string()), note);
                    note.replace_truth(&truth(source, value), None);
                    note.replace_truth(&truth("Ben", None), None);
                    note.remark = "Ben said Elf on 2026-11-27T20:10:00Z".to_owned();
                    assert_eq!(Note::parse(&note.to_string()), note, "{note}");
                }
            }
        }
    }

    #[test]
    fn undoing_restores_the_truth_before() {
        let mut note = Note { time: Some("2026-11-27T20:10:00Z".into()), ..Note::default() };
        note.remark = "in a book".to_owned();
        let written = note.clone();
        note.replace_truth(&truth("Ann", Some("Human")), None);
        note.time = Some("2026-11-27T20:11:00Z".to_owned());
        let restored = note.undo_truth(&truth("Ben", Some("Elf")), ("Ben", "now")).unwrap();
        assert_eq!((&*restored.source, &*restored.entry), ("Ann", "Human"));
        assert_eq!((&note.time, &note.remark), (&written.time, &written.remark));
        let kept = "Ben said Elf on 2026-11-27T20:11:00Z (undone by Ben on now)";
        assert_eq!(note.to_string(), format!("{written}; {kept}"));
        // The undone value is not restored.
        assert_eq!(note.undo_truth(&truth("Ann", Some("Human")), ("Ann", "now")), None);
    }

    #[test]
    fn a_note_says_how_many_truths_it_dropped() {
        let mut note = Note::default();
        for n in 0..MAX_REPLACED + 3 {
            note.replace_truth(&truth(&format!("person {n}"), Some("Human")), None);
            note = Note::parse(&note.to_string());
        }
        let text = note.to_string();
        assert!(text.starts_with("person 22 said Human at an unknown time; person 21"), "{text}");
        assert!(text.ends_with("person 3 said Human at an unknown time; 3 older values dropped"));
        note.replace_truth(&truth(&"x".repeat(MAX_BYTES), Some("Human")), None);
        assert!(note.to_string().ends_with("; 23 older values dropped"));
    }
}
