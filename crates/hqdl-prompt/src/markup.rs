//! XML character references (`&amp;`, `&#39;`). Keys scraped from web pages may contain a reference
//! where the model writes the character, or vice versa.

use std::borrow::Cow;

/// Maximum length of a reference, as in `&#x10FFFF;`.
const MAX_REFERENCE_LENGTH: usize = 10;

/// Replaces the character references of a text with their characters.
pub fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('&') {
        out.push_str(&rest[..position]);
        rest = &rest[position..];
        let end = rest.bytes().take(MAX_REFERENCE_LENGTH).position(|b| b == b';');
        let reference =
            end.and_then(|end| Some((decode_named_character(rest.get(1..end)?)?, end + 1)));
        let (c, length) = reference.unwrap_or(('&', 1));
        out.push(c);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out.into()
}

/// Returns the character that a reference names; `name` is the text between `&` and `;`.
fn decode_named_character(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        _ => {
            let number = name.strip_prefix('#')?;
            let hex = number.strip_prefix(['x', 'X']).map(|hex| u32::from_str_radix(hex, 16));
            let code = hex.unwrap_or_else(|| number.parse()).ok()?;
            char::from_u32(code).filter(|c| !c.is_control())?
        }
    })
}
