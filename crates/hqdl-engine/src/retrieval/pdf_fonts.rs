//! Decodes the strings of a PDF document with the encodings of its fonts.

use std::collections::HashMap;

use lopdf::content::Content;
use lopdf::{Dictionary, Document, Encoding, Object, Stream};

/// Maximum size of a document's text, in bytes.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Maximum number of codes of a font. Fonts with two-byte codes have at most 65,536.
const MAX_CODES: usize = 1 << 17;
/// Maximum length of the text of a code, in bytes of UTF-16.
const MAX_CODE_TEXT_BYTES: usize = 512;
/// Maximum length of a code, in bytes.
const MAX_CODE_BYTES: usize = 4;

/// Decodes the strings that a font shows.
pub struct FontDecoder<'a> {
    to_unicode: CodeTable,
    /// Encoding for one-byte codes that the `ToUnicode` table does not contain.
    encoding: Option<Encoding<'a>>,
    /// Whether codes can have several bytes.
    is_composite: bool,
}

impl<'a> FontDecoder<'a> {
    /// Returns the decoder of a font, and the size of the font's `ToUnicode` table in bytes.
    ///
    /// # Errors
    /// Fails with the reason if the font does not specify the characters of its codes, or if its
    /// table is larger than `max_bytes`.
    pub fn read_font(
        document: &'a Document,
        font: &'a Dictionary,
        max_bytes: usize,
    ) -> Result<(Self, usize), String> {
        let name = font.get(b"BaseFont").and_then(Object::as_name).unwrap_or(b"without a name");
        let unreadable = |reason: &str| {
            let name = String::from_utf8_lossy(name);
            format!("the font {name} of the PDF {reason}; convert the file to text")
        };
        let stream = font.get_deref(b"ToUnicode", document).and_then(Object::as_stream).ok();
        let (to_unicode, size) = match stream {
            Some(stream) => CodeTable::read_stream(stream, max_bytes).map_err(unreadable)?,
            None => (CodeTable::default(), 0),
        };
        let subtype = font.get(b"Subtype").and_then(Object::as_name);
        let is_composite = subtype.is_ok_and(|name| name == b"Type0");
        let named = font.get_deref(b"Encoding", document).and_then(Object::as_name);
        let is_unicode =
            named.is_ok_and(|n| [b"UniGB-UCS2-H".as_slice(), b"UniGB-UTF16-H"].contains(&n));
        // Pass a limit of 0, because lopdf would expand the ranges of a `ToUnicode` table without a
        // limit.
        let encoding = if is_composite && !is_unicode {
            None
        } else {
            font.get_font_encoding_with_limit(document, 0).ok()
        };
        if encoding.is_none() && to_unicode.texts.is_empty() {
            return Err(unreadable("does not name the characters of its codes"));
        }
        Ok((Self { to_unicode, encoding, is_composite }, size))
    }

    /// Decodes a string and appends its text to `text`.
    ///
    /// # Errors
    /// Fails with the reason if the encoding is not supported.
    pub fn decode_text(&self, bytes: &[u8], text: &mut String) -> Result<(), String> {
        if self.to_unicode.texts.is_empty()
            && let Some(encoding) = &self.encoding
        {
            return push_encoded(encoding, bytes, text);
        }
        let mut rest = bytes;
        while !rest.is_empty() && text.len() <= MAX_TEXT_BYTES {
            let length = if self.is_composite { self.to_unicode.find_code_length(rest) } else { 1 };
            let (code, after) = rest.split_at(length);
            match (self.to_unicode.texts.get(code), &self.encoding) {
                (Some(decoded), _) => text.push_str(decoded),
                (None, Some(encoding)) if length == 1 => push_encoded(encoding, code, text)?,
                (None, _) => text.push(char::REPLACEMENT_CHARACTER),
            }
            rest = after;
        }
        Ok(())
    }
}

fn push_encoded(encoding: &Encoding, bytes: &[u8], text: &mut String) -> Result<(), String> {
    let decoded = Document::decode_text(encoding, bytes).map_err(
        |_| "a font of the PDF has an encoding that hqdl cannot read; convert the file to text",
    )?;
    text.push_str(&decoded);
    Ok(())
}

/// `ToUnicode` table: the texts of a font's codes.
#[derive(Default)]
struct CodeTable {
    texts: HashMap<Vec<u8>, String>,
    /// Lowest and highest code of each range of codes.
    code_ranges: Vec<(Vec<u8>, Vec<u8>)>,
}

impl CodeTable {
    /// Reads a table, and returns it with its size in bytes.
    fn read_stream(stream: &Stream, max_bytes: usize) -> Result<(Self, usize), &'static str> {
        let content = stream
            .get_plain_content_with_limit(max_bytes)
            .map_err(|_| "has a damaged or too large table of characters")?;
        let mut table = Self::default();
        for operation in Content::decode_iter(&content) {
            let Ok(operation) = operation else { break };
            let operands = operation.operands.as_slice();
            match operation.operator.as_str() {
                "endcodespacerange" => {
                    for pair in operands.chunks_exact(2).take(100) {
                        if let (Ok(low), Ok(high)) = (pair[0].as_str(), pair[1].as_str())
                            && low.len() == high.len()
                        {
                            table.code_ranges.push((low.to_vec(), high.to_vec()));
                        }
                    }
                }
                "endbfchar" => {
                    for pair in operands.chunks_exact(2) {
                        if let (Ok(code), Ok(text)) = (pair[0].as_str(), pair[1].as_str()) {
                            table.insert_code(code.to_vec(), text)?;
                        }
                    }
                }
                "endbfrange" => {
                    for range in operands.chunks_exact(3) {
                        table.insert_range(range)?;
                    }
                }
                _ => {}
            }
        }
        Ok((table, content.len()))
    }

    fn insert_range(&mut self, range: &[Object]) -> Result<(), &'static str> {
        let [low, high, target] = range else { return Ok(()) };
        let (Ok(low), Ok(high)) = (low.as_str(), high.as_str()) else { return Ok(()) };
        if low.len() != high.len() || low.len() > MAX_CODE_BYTES {
            return Ok(());
        }
        let to_number = |code: &[u8]| code.iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
        let first = to_number(low);
        for code in first..=to_number(high) {
            let bytes = code.to_be_bytes()[8 - low.len()..].to_vec();
            let offset = code - first;
            match target {
                Object::String(text, _) => {
                    let mut text = text.clone();
                    text.truncate(MAX_CODE_TEXT_BYTES);
                    if let [.., high, low] = text.as_mut_slice() {
                        let unit = u16::from_be_bytes([*high, *low]).wrapping_add(offset as u16);
                        [*high, *low] = unit.to_be_bytes();
                    }
                    self.insert_code(bytes, &text)?;
                }
                Object::Array(texts) => {
                    let text = usize::try_from(offset).ok().and_then(|n| texts.get(n));
                    let Some(Ok(text)) = text.map(Object::as_str) else { break };
                    self.insert_code(bytes, text)?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn insert_code(&mut self, code: Vec<u8>, text: &[u8]) -> Result<(), &'static str> {
        if code.is_empty() || code.len() > MAX_CODE_BYTES || text.len() > MAX_CODE_TEXT_BYTES {
            return Ok(());
        }
        if self.texts.len() == MAX_CODES {
            return Err("has a table of more than 131,072 characters");
        }
        let units = text.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
        let text = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
        self.texts.insert(code, text.collect());
        Ok(())
    }

    /// Returns the length in bytes of the character code at the start of `bytes`.
    fn find_code_length(&self, bytes: &[u8]) -> usize {
        let lengths = 1..=bytes.len().min(MAX_CODE_BYTES);
        let is_code = |length: &usize| {
            let code = &bytes[..*length];
            self.code_ranges.iter().any(|(low, high)| {
                low.len() == code.len()
                    && code.iter().zip(low.iter().zip(high)).all(|(b, (l, h))| l <= b && b <= h)
            })
        };
        let in_range = lengths.clone().find(is_code);
        let in_table = || lengths.clone().find(|length| self.texts.contains_key(&bytes[..*length]));
        in_range.or_else(in_table).unwrap_or(2.min(bytes.len()))
    }
}
