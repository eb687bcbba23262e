//! Formats numbers, names and errors for messages.

/// Formats a number with commas between thousands: "2,000".
#[must_use]
pub fn format_thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with its noun, which is plural unless the number is 1: "1 request", "2,000
/// requests".
#[must_use]
pub fn format_count(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_thousands(n), if n == 1 { "" } else { "s" })
}

/// Returns a phrase that lists the names: "the only field is `a`", "the fields are `a`, `b` and
/// `c`".
#[must_use]
pub fn format_name_list<'n>(noun: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => format!("there is no {noun}"),
        [one] => format!("the only {noun} is {one}"),
        [first @ .., last] => format!("the {noun}s are {} and {last}", first.join(", ")),
    }
}

/// Returns the reason why a file cannot be read or written, without the system's error number.
#[must_use]
pub fn describe_io_error(error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => "it does not exist".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "it is a directory".to_owned(),
        ErrorKind::AlreadyExists => "it exists already".to_owned(),
        ErrorKind::NotADirectory => "a part of its path is a file".to_owned(),
        ErrorKind::AddrInUse => "another program already listens there".to_owned(),
        ErrorKind::StorageFull => "the disk is full".to_owned(),
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
        ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
        _ => {
            let text = error.to_string();
            if ["invalid gzip header", "corrupt deflate stream"].contains(&text.as_str()) {
                return "it is not a valid gzip file".to_owned();
            }
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

/// Joins the name of a file, with an optional line number, and a reason such as [`describe_io_error`]
/// returns: "a.csv does not exist", "a.csv, line 2: a quote is missing".
#[must_use]
pub fn format_file_error(name: &str, line: Option<u64>, reason: &str) -> String {
    match (line, reason.strip_prefix("it ")) {
        (None, Some(predicate)) => format!("{name} {predicate}"),
        (None, None) => format!("{name}: {reason}"),
        (Some(line), _) => format!("{name}, line {line}: {reason}"),
    }
}

/// Returns a sentence that names a file and states why it cannot be read.
#[must_use]
pub fn describe_read_error(path: &std::path::Path, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => format!("{path} does not exist"),
        ErrorKind::IsADirectory => format!("{path} is a directory"),
        ErrorKind::InvalidData => format!("{path} is not UTF-8 text"),
        _ => format!("cannot read {path}: {}", describe_io_error(error)),
    }
}

/// Returns the reason why a file cannot be created or written. Usually its directory does not
/// exist.
#[must_use]
pub fn describe_write_error(path: &std::path::Path, error: &std::io::Error) -> String {
    // A component of the path that should be a directory.
    if let Some(file) = path.ancestors().skip(1).find(|parent| parent.is_file()) {
        return format!("{} is a file, not a directory", file.display());
    }
    match path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) {
        Some(dir) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("there is no directory {}", dir.display())
        }
        _ if error.kind() == std::io::ErrorKind::NotFound => {
            "nothing can be created there".to_owned()
        }
        _ => describe_io_error(error),
    }
}

/// Parts of serde's messages, each with hqdl's own wording.
const DATA_WORDS: [(&str, &str); 19] = [
    ("unknown variant", "unknown value"),
    ("sequence, expected", "a list, expected"),
    ("map, expected", "an object, expected"),
    ("integer `", "the integer `"),
    ("floating point `", "the number `"),
    ("boolean `", "the boolean `"),
    ("string \"", "the text \""),
    ("expected a boolean", "expected true or false"),
    ("expected i64", "expected a whole number"),
    ("expected u8", "expected a whole number, 0 or more"),
    ("expected u16", "expected a whole number, 0 or more"),
    ("expected u32", "expected a whole number, 0 or more"),
    ("expected usize", "expected a whole number, 0 or more"),
    ("expected any valid JSON value", "expected JSON"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected an object"),
    ("expected a string", "expected a text"),
    ("expected f64", "expected a number"),
    ("expected u64", "expected a whole number, 0 or more"),
];

/// Returns the reason why a JSON text cannot be parsed.
#[must_use]
pub fn describe_json_error(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let line = if error.line() > 1 { format!("line {}, ", error.line()) } else { String::new() };
    match error.classify() {
        Category::Eof => "the JSON text ends too early".to_owned(),
        Category::Syntax => format!("not JSON at {line}column {}", error.column()),
        // If a field is wrong, serde reports the position of the field's end.
        Category::Data | Category::Io => {
            let text = error.to_string();
            let text = text.split(" at line ").next().unwrap_or_default();
            describe_data_error("", text)
        }
    }
}

/// Returns the problem with a field in valid JSON, based on serde's message. `field` is the field's
/// path; empty if the path is unknown.
fn describe_data_error(field: &str, message: &str) -> String {
    let own_words = |text: &str| {
        DATA_WORDS.iter().fold(text.to_owned(), |text, (word, own)| text.replace(word, own))
    };
    let mismatch =
        ["invalid type: ", "invalid value: "].iter().find_map(|m| message.strip_prefix(m));
    let names_field = ["unknown field", "missing field"].iter().any(|m| message.starts_with(m));
    match mismatch {
        Some(found) if field.is_empty() => format!("a value is {}", own_words(found)),
        Some(found) => format!("`{field}` is {}", own_words(found)),
        None if field.is_empty() || names_field => own_words(message),
        None => format!("`{field}`: {}", own_words(message)),
    }
}

/// Parses a JSON object.
///
/// # Errors
/// Fails with the reason if `text` is not a JSON object or does not match `T`. The reason names the
/// invalid field.
pub fn parse_json_object<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let field = error.path().to_string();
        match error.into_inner() {
            e if e.is_data() && field != "." => {
                let message = e.to_string();
                describe_data_error(&field, message.split(" at line ").next().unwrap_or_default())
            }
            e => describe_json_error(&e),
        }
    });
    // serde also accepts a list for a struct, and reads its items as the struct's fields.
    if text.trim_ascii_start().first() != Some(&b'{')
        && let Ok(json) = serde_json::from_slice::<serde_json::Value>(text)
    {
        let found = if json.is_array() { "a list".to_owned() } else { json.to_string() };
        return Err(format!("it is {found}, expected an object"));
    }
    parsed.and_then(|parsed| {
        deserializer.end().map_err(|e| describe_json_error(&e))?;
        Ok(parsed)
    })
}

/// Returns the reason why a regular expression is invalid. This is the last line of the parser's
/// message, because the message begins with the expression.
#[must_use]
pub fn describe_regex_error(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// Formats an amount in USD with four decimals, or with two significant digits if it is too small
/// for that: "$0.0120", "$0.000034".
#[must_use]
pub fn format_usd(amount: f64) -> String {
    if amount <= 0.0 || amount >= 0.001 || !amount.is_finite() {
        return format!("${amount:.4}");
    }
    let decimals = (1.0 - amount.log10().floor()).clamp(4.0, 15.0) as usize;
    format!("${amount:.decimals$}")
}

/// Formats a cost in USD with four decimals. A cost that is not zero never appears as zero:
/// "<$0.0001".
#[must_use]
pub fn format_cost(usd: f64) -> String {
    if usd > 0.0 && usd < 0.000_05 { "<$0.0001".to_owned() } else { format!("${usd:.4}") }
}

/// Formats an upper bound in USD with four decimals, rounded up: "$0.0001" for 0.00002.
#[must_use]
pub fn format_usd_bound(bound: f64) -> String {
    // Adding the same costs in a different order changes the last bits of the sum. The tolerance
    // ensures that both sums are rounded up to the same amount.
    let steps = if bound > 0.0 { (bound * 1e4 + 1e-6).ceil() } else { 0.0 };
    format!("${:.4}", steps / 1e4)
}

/// Returns a location for use in messages. If it is a URL, its password and parameters are removed.
#[must_use]
pub fn hide_secrets(location: &str) -> String {
    let Some((scheme, rest)) = location.split_once("://") else { return location.to_owned() };
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    match rest.rsplit_once('@') {
        Some((user, rest)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{scheme}://{user}@{rest}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

/// Replaces line breaks and other control characters in a text with spaces.
#[must_use]
pub fn to_single_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a text on one line. Writes invisible characters, and characters that change the text
/// direction, as escapes such as `\u{202e}`.
#[must_use]
pub fn escape_invisible_chars(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // These characters look like spaces but count as printable, so `escape_debug` does not
        // escape them.
        let is_blank = matches!(c, '\u{2800}' | '\u{3164}' | '\u{115f}' | '\u{1160}' | '\u{ffa0}');
        match c {
            '\'' | '"' | '\\' => escaped.push(c),
            _ if c.is_control() => escaped.push(' '),
            _ if is_blank => escaped.extend(c.escape_unicode()),
            _ => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_cannot_be_read_is_described_without_words_of_the_parser() {
        #[derive(Debug, serde::Deserialize)]
        struct JsonSample {
            #[serde(rename = "n")]
            _n: u64,
        }
        for (text, reason) in [
            ("{bad", "not JSON at column 2"),
            ("{\n\"n\": x}", "not JSON at line 2, column 6"),
            ("{\"n\": 1", "the JSON text ends too early"),
            ("{}", "missing field `n`"),
            ("{\"n\": \"x\"}", "a value is the text \"x\", expected a whole number, 0 or more"),
        ] {
            assert_eq!(
                describe_json_error(&serde_json::from_str::<JsonSample>(text).unwrap_err()),
                reason
            );
        }
        for (text, reason) in [
            ("{\"n\": -5}", "`n` is the integer `-5`, expected a whole number, 0 or more"),
            ("{\"n\": []}", "`n` is a list, expected a whole number, 0 or more"),
            ("[1]", "it is a list, expected an object"),
            ("5", "it is 5, expected an object"),
            ("{\"n\": 1} x", "not JSON at column 10"),
            ("{}", "missing field `n`"),
        ] {
            assert_eq!(parse_json_object::<JsonSample>(text.as_bytes()).unwrap_err(), reason);
        }
    }

    #[test]
    fn bounds_in_usd_are_rounded_up() {
        let bounds = [0.0, 0.000_02, 0.001, 0.1 + 0.2, 0.300_04].map(format_usd_bound);
        assert_eq!(bounds.join(" "), "$0.0000 $0.0001 $0.0011 $0.3001 $0.3001");
    }

    #[test]
    fn invisible_characters_are_shown() {
        assert_eq!(
            escape_invisible_chars("a'b\"c\\d é 日 \u{202e}x\u{200b}\u{2028}\u{2800}\n\u{1b}[2K"),
            "a'b\"c\\d é 日 \\u{202e}x\\u{200b}\\u{2028}\\u{2800}  [2K"
        );
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(format_thousands).each_ref().map(String::as_str)
        );
        assert_eq!(
            "0 rows, 1 row, 2,000 rows",
            [0, 1, 2000].map(|n| format_count(n, "row")).join(", ")
        );
        let fields =
            [&["a"][..], &["a", "b", "c"]].map(|names| format_name_list("field", names.to_vec()));
        assert_eq!(fields, ["the only field is `a`", "the fields are `a`, `b` and `c`"]);
        let amounts = [0.0, 0.000_034, 0.000_99, 0.001, 0.25, 12.5].map(format_usd);
        assert_eq!("$0.0000 $0.000034 $0.00099 $0.0010 $0.2500 $12.5000", amounts.join(" "));
    }

    #[test]
    fn locations_are_shown_without_secrets() {
        for (location, shown) in [
            ("mysql://u:secret@h/db", "mysql://u@h/db"),
            ("postgress://u:a@b:c/d@h/db?password=secret", "postgress://u@h/db"),
            ("ftp://h/v1", "ftp://h/v1"),
            ("folder/with?odd@name:x", "folder/with?odd@name:x"),
        ] {
            assert_eq!(hide_secrets(location), shown);
        }
    }
}
