//! Limits the memory that a PDF document's objects use while the document is loaded.
//!
//! The cross-reference table can point to the same stream many times, and the index of a stream can
//! point to the same object many times. A few kilobytes can therefore expand to any number of
//! objects.

use std::cell::Cell;
use std::panic::resume_unwind;

use lopdf::{Object, ObjectId, Stream};

/// Maximum size of all loaded objects in memory, in bytes. An object that is loaded twice counts
/// twice.
pub(super) const MAX_BYTES: usize = 512 << 20;
/// Maximum decompressed size of an object stream, in bytes.
pub(super) const MAX_OBJECT_STREAM_BYTES: usize = 4 << 20;
/// Estimated size of a dictionary entry, in bytes, apart from its name and its value.
const ENTRY_BYTES: usize = 64;

/// Payload of the panic that stops loading. The parser's filter has no other way to stop the
/// parser.
pub(super) struct PdfBudgetExceeded;

thread_local! {
    static BYTES_LEFT: Cell<usize> = const { Cell::new(MAX_BYTES) };
}

/// Resets this thread's budget for a new document.
pub(super) fn reset_budget() {
    BYTES_LEFT.set(MAX_BYTES);
}

/// Charges an object to the document's budget. The parser calls this function for each object, and
/// for an object stream before it parses the objects in the stream.
///
/// # Panics
/// Panics with [`PdfBudgetExceeded`] if the budget is exceeded, or if objects of a stream overlap.
#[expect(clippy::unnecessary_wraps, reason = "the parser requires this type")]
pub(super) fn charge_object(id: ObjectId, object: &mut Object) -> Option<(ObjectId, Object)> {
    charge_bytes(measure_object(object));
    let Object::Stream(stream) = object else { return Some((id, object.clone())) };
    if stream.dict.has_type(b"ObjStm") && has_overlapping_objects(stream) {
        resume_unwind(Box::new(PdfBudgetExceeded));
    }
    // The parser keeps the stream itself and only tests whether there is a result.
    Some((id, Object::Null))
}

fn charge_bytes(bytes: usize) {
    match BYTES_LEFT.get().checked_sub(bytes) {
        Some(left) => BYTES_LEFT.set(left),
        None => resume_unwind(Box::new(PdfBudgetExceeded)),
    }
}

/// Returns the estimated size of an object in memory, in bytes.
fn measure_object(object: &Object) -> usize {
    let measure_entries = |dictionary: &lopdf::Dictionary| -> usize {
        dictionary
            .iter()
            .map(|(name, value)| ENTRY_BYTES + name.len() + measure_object(value))
            .sum()
    };
    size_of::<Object>()
        + match object {
            Object::Name(bytes) | Object::String(bytes, _) => bytes.len(),
            Object::Array(items) => items.iter().map(measure_object).sum(),
            Object::Dictionary(dictionary) => measure_entries(dictionary),
            Object::Stream(stream) => stream.content.len() + measure_entries(&stream.dict),
            _ => 0,
        }
}

/// Returns true if objects of a stream overlap. If none overlap, all objects together are at most
/// as long as the stream.
fn has_overlapping_objects(stream: &Stream) -> bool {
    // The parser reports a stream that it cannot decode, or that is too long.
    let Ok(content) = stream.get_plain_content_with_limit(MAX_OBJECT_STREAM_BYTES) else {
        return false;
    };
    charge_bytes(content.len());
    let first = stream.dict.get(b"First").and_then(Object::as_i64).ok();
    let first = first.and_then(|first| usize::try_from(first).ok());
    let Some((index, objects)) = first.and_then(|first| content.split_at_checked(first)) else {
        return false;
    };
    let index = String::from_utf8_lossy(index);
    let numbers = index
        .split(['\r', '\n'])
        .flat_map(|line| line.split('%').next().unwrap_or_default().split_whitespace());
    let offsets: Vec<usize> =
        numbers.skip(1).step_by(2).filter_map(|offset| offset.parse().ok()).collect();
    let ends = offsets.iter().skip(1).copied().chain([objects.len()]);
    // An object past the end of the stream is ignored.
    offsets.iter().zip(ends).filter(|(start, _)| **start < objects.len()).any(|(start, end)| {
        objects
            .get(*start..end.min(objects.len()))
            .is_none_or(|object| *start >= end || !is_balanced(object))
    })
}

/// Returns true if every string, array and dictionary that begins in a text also ends in the text.
fn is_balanced(text: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                bytes.find(|b| matches!(b, b'\r' | b'\n'));
            }
            b'(' => {
                let mut open = 1;
                while open > 0 {
                    match bytes.next() {
                        None => return false,
                        Some(b'\\') => {
                            bytes.next();
                        }
                        Some(b'(') => open += 1,
                        Some(b')') => open -= 1,
                        Some(_) => {}
                    }
                }
            }
            b'[' | b'<' => depth += 1,
            b']' | b'>' => match depth.checked_sub(1) {
                Some(outer) => depth = outer,
                None => return false,
            },
            _ => {}
        }
    }
    depth == 0
}

/// Returns the number of references to earlier cross-reference tables: the entries `Prev` and
/// `XRefStm` whose value is not an object reference.
pub(super) fn count_earlier_revisions(bytes: &[u8]) -> usize {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
    let slashes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let is_earlier = |(at, _): &(usize, &u8)| {
        let rest = &bytes[at + 1..bytes.len().min(at + 64)];
        let is_end = |byte: &u8| is_space(byte) || b"()<>[]{}/%".contains(byte);
        let end = rest.iter().position(is_end).unwrap_or(rest.len());
        let (name, value) = rest.split_at(end);
        if !matches!(decode_name(name).as_slice(), b"Prev" | b"XRefStm") {
            return false;
        }
        let mut words = value.split(is_space).filter(|word| !word.is_empty());
        let is_number =
            |word: Option<&[u8]>| word.is_some_and(|word| word.iter().all(u8::is_ascii_digit));
        let is_reference = is_number(words.next())
            && is_number(words.next())
            && words.next().is_some_and(|word| word.starts_with(b"R"));
        !is_reference
    };
    slashes.filter(is_earlier).count()
}

/// Decodes the escapes in a name, such as `#41`.
fn decode_name(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = name;
    while let Some((byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.filter(|_| *byte == b'#').and_then(|digits| u8::from_str_radix(digits, 16).ok())
        {
            Some(character) => {
                decoded.push(character);
                rest = &tail[2..];
            }
            None => {
                decoded.push(*byte);
                rest = tail;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_end_where_they_are_closed() {
        for text in ["[1 (a]\\)b) <</K <41>>>] ", "(a(b)c)", "% ]\n null", "/Name", ""] {
            assert!(is_balanced(text.as_bytes()), "{text}");
        }
        for text in ["[1", "1]", "(a", "(a\\)", "<</K 1>", "((a)"] {
            assert!(!is_balanced(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn only_offsets_of_tables_count_as_revisions() {
        let count = |text: &str| count_earlier_revisions(text.as_bytes());
        assert_eq!(count("<</Prev 12 0 R/Next 3 0 R>> <</Prev 7\n0\nR>>"), 0);
        assert_eq!(count("<</Prev 120>> <</Pre#76 9/XRefStm 7>> /Previous 5 /Prev%x\n 5"), 4);
    }
}
