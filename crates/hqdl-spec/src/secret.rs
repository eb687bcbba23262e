//! Detects API keys in a spec, so that they are never shown.

/// Prefixes of API keys of common endpoints.
const KEY_PREFIXES: [&str; 9] =
    ["sk-", "sk_", "gsk_", "pk-", "xai-", "AIza", "hf_", "r8_", "Bearer"];
/// Names of fields that users put API keys into, although the spec format has no such fields.
const KEY_FIELDS: [&str; 5] = ["api_key", "api_token", "token", "secret", "password"];

/// Returns true if a word looks like an API key.
pub(super) fn is_api_key(word: &str) -> bool {
    KEY_PREFIXES.iter().any(|b| word.starts_with(b) && word.len() > b.len() + 3)
}

/// Returns true if users tend to put API keys into a field with this name.
pub(super) fn is_api_key_field(name: &str) -> bool {
    KEY_FIELDS.contains(&name)
}

/// Returns true if `name` can be an environment variable's name and does not look like an API key.
#[must_use]
pub fn is_env_variable_name(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !is_api_key(name)
}

/// In the text of a spec, replaces every API key and all passwords and parameters of URLs with
/// asterisks of the same length in bytes, so that no page or message shows them. The text need not
/// be valid TOML.
#[must_use]
pub fn mask_secrets(text: &str) -> String {
    let text = mask_keys(text);
    let mut masked = String::with_capacity(text.len());
    for mut line in text.split_inclusive('\n') {
        while let Some((before, url, after)) = find_url(line) {
            masked.push_str(before);
            masked.push_str(&mask_url(url));
            line = after;
        }
        masked.push_str(line);
    }
    masked
}

/// Splits a line into the text up to the `://` of its first URL, the rest of that URL, and the
/// remaining text.
fn find_url(line: &str) -> Option<(&str, &str, &str)> {
    let scheme_end = line.find("://")?;
    let (before, rest) = line.split_at(scheme_end + 3);
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let quote = line[..scheme_end].trim_end_matches(is_scheme_char).chars().next_back();
    // A quoted password may contain spaces and escaped quotes.
    let end = match quote {
        Some(quote @ ('"' | '\'')) => {
            let is_end = |(at, _): &(usize, &str)| quote == '\'' || !rest[..*at].ends_with('\\');
            rest.match_indices(quote).find(is_end).map(|(at, _)| at)
        }
        _ => rest.find(char::is_whitespace),
    };
    let (url, after) = rest.split_at(end.unwrap_or(rest.trim_end().len()));
    Some((before, url, after))
}

fn mask_url(url: &str) -> String {
    let mut shown = url.to_owned();
    if let Some(host) = url.rfind('@')
        && let Some(colon) = url[..host].find(':')
    {
        let password = colon + 1..host;
        shown.replace_range(password.clone(), &"*".repeat(password.len()));
    }
    if let Some(mark) = shown.find('?') {
        let masked = mask_parameters(&shown[mark + 1..]);
        shown.replace_range(mark + 1.., &masked);
    }
    shown
}

/// Placeholders in the URL of a search, which are no secrets.
const PLACEHOLDERS: [&str; 2] = ["{query}", "{key}"];

/// Replaces the parameters of a URL with asterisks, except the placeholders of a search.
fn mask_parameters(parameters: &str) -> String {
    let mut masked = String::with_capacity(parameters.len());
    let mut rest = parameters;
    while let Some((at, placeholder)) =
        PLACEHOLDERS.iter().filter_map(|p| Some((rest.find(p)?, p))).min()
    {
        masked.push_str(&"*".repeat(at));
        masked.push_str(placeholder);
        rest = &rest[at + placeholder.len()..];
    }
    masked + &"*".repeat(rest.len())
}

/// Replaces every key in a text with asterisks of the same length.
fn mask_keys(text: &str) -> String {
    let is_word_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let field = line.trim_start().split(|c: char| !is_word_char(c)).next().unwrap_or_default();
        let (head, rest) = match line.find('=') {
            Some(at) if KEY_FIELDS.contains(&field) => line.split_at(at + 1),
            _ => ("", line),
        };
        out.push_str(head);
        let mut word = String::new();
        for c in rest.chars().chain(['\0']) {
            if is_word_char(c) {
                word.push(c);
                continue;
            }
            let is_secret = is_api_key(&word) || (!head.is_empty() && word.len() > 3);
            out.push_str(&if is_secret {
                "*".repeat(word.len())
            } else {
                std::mem::take(&mut word)
            });
            word.clear();
            if c != '\0' {
                out.push(c);
            }
        }
    }
    out
}
