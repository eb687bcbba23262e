//! Splits CSV lines into fields, both well-formed lines and lines with the quoting mistakes of
//! models.

use super::fields::RowField;

/// A record of well-formed CSV.
pub struct CsvRecord {
    /// Fields of the record, in order.
    pub fields: Vec<RowField>,
    /// End offset of the record: at a line break outside of quotes, or at the end of the text.
    pub end: usize,
    /// Whether the text ends within quotes.
    pub is_open: bool,
}

/// Parses the record at the beginning of a text; `None` if its quotes are malformed.
///
/// A quoted field begins and ends with quotes. Quotes inside it are doubled, or escaped with a
/// backslash.
pub fn parse_record(text: &str, quotes: &[char]) -> Option<CsvRecord> {
    parse_separated_record(text, quotes, ',')
}

/// Splits a line at a separator; `None` if its quotes are malformed.
pub fn split_fields(line: &str, separator: char) -> Option<Vec<RowField>> {
    let line_record = parse_separated_record(line, &['"'], separator);
    line_record.filter(|r| !r.is_open && r.end == line.len()).map(|r| r.fields)
}

fn parse_separated_record(text: &str, quotes: &[char], separator: char) -> Option<CsvRecord> {
    let mut fields = Vec::new();
    let mut position = 0;
    loop {
        let rest = &text[position..];
        let trimmed = rest.trim_start_matches(' ');
        let quote = trimmed.chars().next().filter(|c| quotes.contains(c));
        if let Some(quote) = quote {
            let begin = position + (rest.len() - trimmed.len()) + 1;
            let Some(end) = find_field_end(&text[begin..], quote).map(|end| begin + end) else {
                fields.push(unescape_field(&text[begin..], quote));
                return Some(CsvRecord { fields, end: text.len(), is_open: true });
            };
            fields.push(unescape_field(&text[begin..end], quote));
            let after = &text[end + 1..];
            let is_blank = |c: char| c != separator && matches!(c, ' ' | '\t' | '\r');
            position = text.len() - after.trim_start_matches(is_blank).len();
        } else {
            let end = position + rest.find([separator, '\n']).unwrap_or(rest.len());
            fields.push(RowField::unquoted(text[position..end].trim_end_matches('\r')));
            position = end;
        }
        match text[position..].chars().next() {
            Some(c) if c == separator => position += 1,
            Some('\n') | None => return Some(CsvRecord { fields, end: position, is_open: false }),
            Some(_) => return None,
        }
    }
}

/// Parses a line that is a list in brackets, `['a', 'b']` or `('a', 'b')`, of well-formed fields.
/// The first field must be quoted, so that the bracket cannot be part of it.
pub fn parse_bracketed(line: &str) -> Option<Vec<RowField>> {
    let within = |open, close| line.strip_prefix(open)?.strip_suffix(close);
    let inside = within('[', ']').or_else(|| within('(', ')'))?.trim();
    let inner_record =
        parse_record(inside, &['"', '\'']).filter(|r| !r.is_open && r.end == inside.len())?;
    inner_record.fields.first().is_some_and(|f| f.is_quoted).then_some(inner_record.fields)
}

/// Parses a line that is quoted as a whole: `'Pat O'Brien,1985,PAT'`. The first field has no
/// closing quote and the last one no opening quote, so the two quotes belong together.
pub fn parse_quoted_line(line: &str) -> Option<Vec<RowField>> {
    let quote = line.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = line.strip_prefix(quote)?.strip_suffix(quote)?;
    let (first, last) = (inner.split(',').next()?, inner.rsplit(',').next()?);
    if !inner.contains(',') || first.ends_with(quote) || last.trim_start().starts_with(quote) {
        return None;
    }
    let inner_record =
        parse_record(inner, &['"', '\'']).filter(|r| !r.is_open && r.end == inner.len());
    inner_record.map(|r| r.fields)
}

/// Returns the possible readings of a line in which a quote in one of the first fields is never
/// closed: the position of that field, and the well-formed fields without the quote.
pub fn recover_unclosed_quote(line: &str, field_count: usize) -> Vec<(usize, Vec<RowField>)> {
    let mut readings = Vec::new();
    let mut position = 0;
    for n in 0..field_count {
        let rest = line.get(position..).unwrap_or_default();
        let begin = position + (rest.len() - rest.trim_start_matches(' ').len());
        if line[begin..].starts_with(['"', '\'']) {
            let without = [&line[..begin], &line[begin + 1..]].concat();
            let repaired = parse_record(&without, &['"', '\'']);
            let repaired = repaired.filter(|r| !r.is_open && r.end == without.len());
            readings.extend(repaired.map(|r| (n, r.fields)));
        }
        match line[begin..].find(',') {
            Some(comma) => position = begin + comma + 1,
            None => break,
        }
    }
    readings
}

/// Returns the end of a quoted field: a quote that is neither doubled nor escaped.
pub fn find_field_end(text: &str, quote: char) -> Option<usize> {
    let doubled: String = [quote, quote].iter().collect();
    let escaped: String = ['\\', quote].iter().collect();
    // If quotes are doubled, `\"" ` is a backslash and a doubled quote, not an escaped quote.
    let has_escapes = !text.contains(&[escaped.as_str(), &doubled[1..]].concat());
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if has_escapes && c == '\\' && chars.peek().is_some_and(|(_, next)| *next == quote) {
            // `\"` at the end of a field is a backslash and the closing quote.
            let after = text[at + 2..].trim_start_matches(' ');
            if !(after.is_empty() || after.starts_with([',', '\n', '\r'])) {
                chars.next();
            }
        } else if c == quote {
            if chars.peek().is_none_or(|(_, next)| *next != quote) {
                return Some(at);
            }
            chars.next();
        }
    }
    None
}

/// Unescapes the content of a quoted field.
fn unescape_field(inner: &str, quote: char) -> RowField {
    let doubled: String = [quote, quote].iter().collect();
    let escaped: String = ['\\', quote].iter().collect();
    let quote_text = quote.to_string();
    let text = if inner.contains(&escaped) && !inner.contains(&doubled) {
        inner.replace(&escaped, &quote_text)
    } else {
        inner.replace(&doubled, &quote_text)
    };
    RowField { text, is_quoted: true, has_ambiguous_quotes: false }
}

/// Splits a line into fields in single or double quotes. A quote ends its field only before a comma
/// or at the end, so that apostrophes inside names are kept.
pub fn split_leniently(line: &str) -> Vec<RowField> {
    let mut fields = Vec::new();
    let mut rest = line.trim();
    loop {
        let trimmed = rest.trim_start();
        let quote = trimmed.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let closing_position = quote.and_then(|q| find_closing_quote(&trimmed[1..], q));
        let (field, after) = match (quote, closing_position) {
            (Some(q), Some(end)) => {
                let inner = &trimmed[1..=end];
                let field = if is_quoted_twice(inner, q) {
                    RowField { text: inner.to_owned(), is_quoted: true, has_ambiguous_quotes: true }
                } else {
                    RowField {
                        has_ambiguous_quotes: has_inner_closing_quote(inner, q),
                        ..unescape_field(inner, q)
                    }
                };
                (field, trimmed[end + 2..].trim_start())
            }
            // The quote is never closed, so this is the last field. The quote may be a mistake if
            // the field contains commas, or an apostrophe, as in `'til`. Only a type or a value
            // list can decide.
            (Some(q), None) if !trimmed[1..].contains(q) => {
                let field = RowField::unquoted(trimmed[1..].trim());
                (
                    RowField {
                        has_ambiguous_quotes: q == '\'' || field.text.contains(','),
                        ..field
                    },
                    "",
                )
            }
            // The text has no quotes, or the quotes are part of the field.
            _ => {
                let end = rest.find(',').unwrap_or(rest.len());
                (RowField::unquoted(&rest[..end]), &rest[end..])
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None => return fields,
        }
    }
}

/// Returns true if the text in quotes is quoted again, as in `''British''`.
///
/// Correct CSV doubles the value's own quotes inside the field's quotes, which results in three
/// quotes. Without doubling, a value with its own quotes, such as `"Heroes"`, looks the same as a
/// value quoted twice. Only a type, a list or the rest of the row can decide.
fn is_quoted_twice(inner: &str, quote: char) -> bool {
    let text = inner.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    text.is_some_and(|text| !text.is_empty() && !text.contains(quote))
}

/// Returns true if the outer quotes may not belong together. Either the first inner quote may close
/// the field, as in `"A" and "B"`, or only some inner quotes are escaped, so that the backslash may
/// be part of the value.
fn has_inner_closing_quote(inner: &str, quote: char) -> bool {
    let escaped: String = ['\\', quote].iter().collect();
    if inner.contains(&escaped) && inner.replace(&escaped, "").contains(quote) {
        return true;
    }
    let first = inner.find(quote).filter(|at| !inner[at + quote.len_utf8()..].starts_with(quote));
    quote == '"'
        && first.is_some_and(|at| !inner[..at].ends_with(' ') && !inner[..at].ends_with('\\'))
}

/// Returns the end of a quoted field: the first quote that is followed by a comma or the end of the
/// text.
fn find_closing_quote(text: &str, quote: char) -> Option<usize> {
    text.char_indices().filter(|(_, c)| *c == quote).map(|(at, _)| at).find(|at| {
        let after = text[at + 1..].trim_start();
        let is_escaped = text[..*at].ends_with('\\');
        !is_escaped && (after.is_empty() || after.starts_with(','))
    })
}

/// Splits a line at every comma; unpaired quotes are dropped as mistakes.
pub fn split_at_commas(line: &str) -> Vec<RowField> {
    let strip_quotes = |f: &str| {
        let text = f.trim_end();
        let inner = text.trim_start().trim_matches('`');
        let unquoted = ['\'', '"']
            .into_iter()
            .find_map(|q| inner.strip_prefix(q)?.strip_suffix(q).filter(|i| !i.contains(q)));
        let has_one_quote = inner.matches('"').count() == 1;
        let without_stray_quote =
            inner.strip_prefix('"').or_else(|| inner.strip_suffix('"')).filter(|_| has_one_quote);
        match unquoted.or(without_stray_quote) {
            Some(inner) => inner.trim().to_owned(),
            None => text.trim_matches('`').to_owned(),
        }
    };
    let fields = line.trim().split(',');
    fields.map(|f| RowField::unquoted(&strip_quotes(f))).collect()
}

/// Parses a line of a Markdown table, or a line of fields separated by pipes.
pub fn split_table_row(line: &str) -> Option<Vec<RowField>> {
    let inner = line.trim().strip_prefix('|')?;
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    Some(inner.split('|').map(|f| RowField::unquoted(f.trim())).collect())
}
