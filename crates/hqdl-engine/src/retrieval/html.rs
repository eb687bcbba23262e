//! Extracts the text of an HTML document.

/// Elements whose content is not part of the document's text.
const HIDDEN: [&str; 4] = ["script", "style", "template", "noscript"];
/// Elements that do not separate words.
const INLINE: [&str; 14] = [
    "a", "abbr", "b", "code", "em", "font", "i", "mark", "small", "span", "strong", "sub", "sup",
    "u",
];
/// Common named character references. Other names are not decoded.
const ENTITIES: [(&str, &str); 8] = [
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", " "),
    ("ndash", "\u{2013}"),
    ("mdash", "\u{2014}"),
    ("amp", "&"),
];

/// Returns the text of an HTML document, with a line break for each tag that is not inline.
#[must_use]
pub fn html_to_text(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        push_decoded_text(&mut text, &rest[..at]);
        rest = &rest[at..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end + 3..]);
            continue;
        }
        let is_tag = rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || "/!?".contains(c));
        if !is_tag {
            text.push('<');
            rest = &rest[1..];
            continue;
        }
        let Some(end) = find_tag_end(rest) else { return text };
        let name = parse_tag_name(&rest[..end]);
        let is_closing = rest.starts_with("</");
        rest = &rest[end + 1..];
        if !is_closing && HIDDEN.contains(&name.as_str()) {
            rest = skip_element(rest, &name);
        }
        if !INLINE.contains(&name.as_str()) {
            text.push('\n');
        }
    }
    push_decoded_text(&mut text, rest);
    text
}

/// Returns the offset of the `>` that ends a tag. A `>` in a quoted attribute does not end the tag.
/// A quote opens only at the beginning of an attribute's value.
fn find_tag_end(tag: &str) -> Option<usize> {
    let (mut quote, mut before) = (None, ' ');
    tag.char_indices().find_map(|(at, c)| {
        match (quote, c) {
            (None, '>') => return Some(at),
            (None, '"' | '\'') if before == '=' => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        if !c.is_whitespace() {
            before = c;
        }
        None
    })
}

fn parse_tag_name(tag: &str) -> String {
    let name = tag.trim_start_matches(['<', '/']);
    let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
    name[..end].to_ascii_lowercase()
}

/// Returns the text after the end tag of an element.
fn skip_element<'t>(text: &'t str, name: &str) -> &'t str {
    let mut rest = text;
    while let Some(at) = rest.find("</") {
        let tag = &rest[at..];
        let Some(end) = tag.find('>') else { return "" };
        rest = &tag[end + 1..];
        if parse_tag_name(&tag[..end]) == name {
            return rest;
        }
    }
    ""
}

/// Maximum length of a character reference.
const MAX_ENTITY_BYTES: usize = 32;

/// Appends text with its character references decoded.
fn push_decoded_text(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name_end = rest.bytes().take(MAX_ENTITY_BYTES).position(|byte| byte == b';');
        let decoded =
            name_end.and_then(|end| Some((decode_entity(&rest[1..end])?, &rest[end + 1..])));
        match decoded {
            Some((decoded, after)) => {
                out.push_str(&decoded);
                rest = after;
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
}

fn decode_entity(name: &str) -> Option<String> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).map(String::from);
    }
    ENTITIES.iter().find(|(entity, _)| *entity == name).map(|(_, text)| (*text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_hides_tag_end_only_at_the_start_of_a_value() {
        for (html, text) in [
            ("<div data-x=it's>one</div> two's", "\none\n two's"),
            ("<a title=\"a > b\">one</a>", "one"),
            ("<a title = 'a > b'>one</a>", "one"),
        ] {
            assert_eq!(html_to_text(html), text, "{html}");
        }
    }

    #[test]
    fn an_ampersand_without_a_reference_is_kept() {
        assert_eq!(html_to_text("a & b; &amp; &#67;"), "a & b; & C");
        let many = "&".repeat(100_000);
        assert_eq!(html_to_text(&many), many);
    }
}
