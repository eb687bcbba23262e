//! Reasoning that a model writes before its answer, between tags such as `<think>` and `</think>`
//! (DeepSeek-R1, Qwen3, Magistral, Kimi). It may contain drafts of rows, which are not answers.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value as Json;

/// Maximum number of lines before a tag in which a quoted field around it may begin.
const LINES: usize = 50;
/// Maximum number of tags in a completion; a completion with more has no answer.
const TAGS: usize = 200;

/// Tag around reasoning.
struct Tag {
    start: usize,
    end: usize,
    closes: bool,
}

/// Returns the completion without its reasoning. `None` if a block is not closed, because the model
/// never began its answer.
#[must_use]
pub fn answer_part(content: &str) -> Option<Cow<'_, str>> {
    let tags: Vec<Tag> = tags(content).take(TAGS + 1).collect();
    if tags.is_empty() {
        return Some(content.into());
    }
    if tags.len() > TAGS {
        return None;
    }
    let objects = whole_objects(content);
    let is_value = |tag: &Tag| {
        objects.iter().any(|object| object.contains(&tag.start)) || is_quoted(content, tag.start)
    };
    let mut answer = String::new();
    // Position of the text after the last block.
    let mut at = 0;
    let mut reasons = false;
    for tag in tags {
        if !reasons && is_value(&tag) {
            continue;
        }
        if !reasons && !tag.closes {
            answer.push_str(&content[at..tag.start]);
            reasons = true;
        } else if tag.closes {
            // Without an opening tag, everything before it was reasoning.
            if !reasons {
                answer.clear();
            }
            at = tag.end;
            reasons = false;
        }
    }
    answer.push_str(&content[at..]);
    (!reasons).then_some(answer.into())
}

fn tags(text: &str) -> impl Iterator<Item = Tag> {
    static TAG: OnceLock<Option<Regex>> = OnceLock::new();
    let tag = TAG.get_or_init(|| {
        Regex::new(
            r"(?i:<(/?)(?:seed:)?(?:think|thinking|thought|reasoning)>)|\[(/?)THINK\]|◁(/?)think▷",
        )
        .ok()
    });
    tag.iter().flat_map(|tag| tag.captures_iter(text)).filter_map(|found| {
        let whole = found.get(0)?;
        let closes = (1..=3).any(|n| found.get(n).is_some_and(|slash| !slash.is_empty()));
        Some(Tag { start: whole.start(), end: whole.end(), closes })
    })
}

/// Returns the ranges of the complete JSON objects and arrays of a text. A tag in one of them is
/// part of a string.
fn whole_objects(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut tries = 0;
    while let Some(next) = text[at..].find(['{', '[']) {
        at += next;
        // `Json` limits the nesting depth, so no text is parsed more than 128 times.
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        if let Some(Ok(_)) = values.next() {
            found.push(at..at + values.byte_offset());
            at += values.byte_offset();
        } else {
            at += 1;
            tries += 1;
            if tries > super::unambiguous::TRIES {
                break;
            }
        }
    }
    found
}

/// Returns true if a position is within a quoted CSV field. The field begins after a comma or at a
/// line's start, and its closing quote is followed by a comma or a line's end.
fn is_quoted(text: &str, place: usize) -> bool {
    let starts = text[..place].rmatch_indices('\n').map(|(at, _)| at + 1).take(LINES);
    let first = (text[..place].matches('\n').count() < LINES).then_some(0);
    starts.chain(first).any(|start| field_holds(&text[start..], place - start))
}

/// Returns true if a position is in a quoted field of the record that a text begins with.
fn field_holds(record: &str, place: usize) -> bool {
    let bytes = record.as_bytes();
    let mut at = 0;
    while at <= place {
        if bytes.get(at) == Some(&b'"') {
            let Some(end) = closing_quote(bytes, at + 1) else { return false };
            if place < end {
                return place > at;
            }
            at = end + 1;
            match bytes.get(at) {
                Some(b',') => at += 1,
                _ => return false,
            }
        } else {
            match bytes[at..].iter().position(|b| matches!(b, b',' | b'\n')) {
                Some(next) if bytes[at + next] == b',' => at += next + 1,
                _ => return false,
            }
        }
    }
    false
}

/// Returns the position of the quote that closes a field, if a comma or an end follows it.
fn closing_quote(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += bytes.get(at..)?.iter().position(|b| *b == b'"')?;
        match bytes.get(at + 1) {
            Some(b'"') => at += 2,
            None | Some(b',' | b'\n' | b'\r') => return Some(at),
            Some(_) => return None,
        }
    }
}
