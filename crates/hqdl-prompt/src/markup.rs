//! XML character references (`&amp;`, `&#39;`). Keys scraped from web pages contain them, and
//! models write the character instead, or the other way round.

use std::borrow::Cow;

/// Maximum length of a reference, as in `&#x10FFFF;`.
const LONGEST: usize = 10;

/// Replaces the character references of a text with their characters.
pub fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.bytes().take(LONGEST).position(|b| b == b';');
        let meant = end.and_then(|end| Some((meaning(rest.get(1..end)?)?, end + 1)));
        let (c, taken) = meant.unwrap_or(('&', 1));
        out.push(c);
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out.into()
}

/// Returns the character that the inside of a reference names.
fn meaning(name: &str) -> Option<char> {
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
