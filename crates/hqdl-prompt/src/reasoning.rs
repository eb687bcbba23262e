//! Reasoning that a model writes before its answer, between tags such as `<think>` and `</think>`
//! (DeepSeek-R1, Qwen3, Magistral, Kimi). It may contain drafts of rows, which are not answers.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value as Json;

/// Maximum number of lines between the start of a quoted field and a tag inside it.
const MAX_FIELD_LINES: usize = 50;
/// Maximum number of tags in a completion. If there are more, the completion counts as having no
/// answer.
const MAX_TAGS: usize = 200;

/// A tag around reasoning.
struct Tag {
    start: usize,
    end: usize,
    is_closing: bool,
}

/// Returns the completion without its reasoning. Returns `None` if a block is not closed, because
/// the answer never began.
#[must_use]
pub fn strip_reasoning(content: &str) -> Option<Cow<'_, str>> {
    let all_tags: Vec<Tag> = find_tags(content).take(MAX_TAGS + 1).collect();
    if all_tags.is_empty() {
        return Some(content.into());
    }
    if all_tags.len() > MAX_TAGS {
        return None;
    }
    let objects = find_json_ranges(content);
    let is_value = |tag: &Tag| {
        objects.iter().any(|object| object.contains(&tag.start)) || is_quoted(content, tag.start)
    };
    let mut answer = String::new();
    // Position of the text after the last block.
    let mut position = 0;
    let mut is_reasoning = false;
    for tag in all_tags {
        if !is_reasoning && is_value(&tag) {
            continue;
        }
        if !is_reasoning && !tag.is_closing {
            answer.push_str(&content[position..tag.start]);
            is_reasoning = true;
        } else if tag.is_closing {
            // If there is no opening tag, everything before the closing tag is reasoning.
            if !is_reasoning {
                answer.clear();
            }
            position = tag.end;
            is_reasoning = false;
        }
    }
    answer.push_str(&content[position..]);
    (!is_reasoning).then_some(answer.into())
}

fn find_tags(text: &str) -> impl Iterator<Item = Tag> {
    static TAG: OnceLock<Option<Regex>> = OnceLock::new();
    let tag_regex = TAG.get_or_init(|| {
        Regex::new(
            r"(?i:<(/?)(?:seed:)?(?:think|thinking|thought|reasoning)>)|\[(/?)THINK\]|◁(/?)think▷",
        )
        .ok()
    });
    tag_regex.iter().flat_map(|tag| tag.captures_iter(text)).filter_map(|capture| {
        let tag_match = capture.get(0)?;
        let is_closing = (1..=3).any(|n| capture.get(n).is_some_and(|slash| !slash.is_empty()));
        Some(Tag { start: tag_match.start(), end: tag_match.end(), is_closing })
    })
}

/// Returns the ranges of the complete JSON objects and arrays in a text. A tag inside such a range
/// is part of a string.
fn find_json_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut position = 0;
    let mut attempts = 0;
    while let Some(next) = text[position..].find(['{', '[']) {
        position += next;
        // `Json` limits the nesting depth, so each text is parsed at most 128 times.
        let mut values = serde_json::Deserializer::from_str(&text[position..]).into_iter::<Json>();
        if let Some(Ok(_)) = values.next() {
            ranges.push(position..position + values.byte_offset());
            position += values.byte_offset();
        } else {
            position += 1;
            attempts += 1;
            if attempts > super::unambiguous::MAX_ATTEMPTS {
                break;
            }
        }
    }
    ranges
}

/// Returns true if a position is within a quoted CSV field. The field begins after a comma or at a
/// line's start, and its closing quote is followed by a comma or a line's end.
fn is_quoted(text: &str, position: usize) -> bool {
    let starts = text[..position].rmatch_indices('\n').map(|(at, _)| at + 1).take(MAX_FIELD_LINES);
    let first = (text[..position].matches('\n').count() < MAX_FIELD_LINES).then_some(0);
    starts.chain(first).any(|start| is_in_quoted_field(&text[start..], position - start))
}

/// Returns true if a position is within a quoted field of the record at the beginning of `record`.
fn is_in_quoted_field(record: &str, position: usize) -> bool {
    let bytes = record.as_bytes();
    let mut at = 0;
    while at <= position {
        if bytes.get(at) == Some(&b'"') {
            let Some(end) = find_closing_quote(bytes, at + 1) else { return false };
            if position < end {
                return position > at;
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

/// Returns the position of the quote that closes a field, if a comma or a line's end follows it.
fn find_closing_quote(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += bytes.get(at..)?.iter().position(|b| *b == b'"')?;
        match bytes.get(at + 1) {
            Some(b'"') => at += 2,
            None | Some(b',' | b'\n' | b'\r') => return Some(at),
            Some(_) => return None,
        }
    }
}
