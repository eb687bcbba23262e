//! Splits CSV lines into fields: well-formed lines, and lines quoted in the ways models do it.

use super::fields::RowField;

/// Record of well-formed CSV.
pub struct CsvRecord {
    /// Fields.
    pub fields: Vec<RowField>,
    /// End of the record: at a line break outside of quotes, or at the end of the text.
    pub end: usize,
    /// Whether the text ends within quotes.
    pub open: bool,
}

/// Parses the record that a text begins with; `None` if its quotes are malformed.
///
/// A quoted field begins and ends with quotes. Quotes inside it are doubled, or escaped with a
/// backslash.
pub fn record(text: &str, quotes: &[char]) -> Option<CsvRecord> {
    record_by(text, quotes, ',')
}

/// Splits a line at a separator; `None` if its quotes are malformed.
pub fn parted(line: &str, by: char) -> Option<Vec<RowField>> {
    let whole = record_by(line, &['"'], by);
    whole.filter(|r| !r.open && r.end == line.len()).map(|r| r.fields)
}

fn record_by(text: &str, quotes: &[char], by: char) -> Option<CsvRecord> {
    let mut fields = Vec::new();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let bare = rest.trim_start_matches(' ');
        let quote = bare.chars().next().filter(|c| quotes.contains(c));
        if let Some(quote) = quote {
            let begin = at + (rest.len() - bare.len()) + 1;
            let Some(end) = end_of_quoted(&text[begin..], quote).map(|end| begin + end) else {
                fields.push(unquoted(&text[begin..], quote));
                return Some(CsvRecord { fields, end: text.len(), open: true });
            };
            fields.push(unquoted(&text[begin..end], quote));
            let after = &text[end + 1..];
            let blank = |c: char| c != by && matches!(c, ' ' | '\t' | '\r');
            at = text.len() - after.trim_start_matches(blank).len();
        } else {
            let end = at + rest.find([by, '\n']).unwrap_or(rest.len());
            fields.push(RowField::bare(text[at..end].trim_end_matches('\r')));
            at = end;
        }
        match text[at..].chars().next() {
            Some(c) if c == by => at += 1,
            Some('\n') | None => return Some(CsvRecord { fields, end: at, open: false }),
            Some(_) => return None,
        }
    }
}

/// Parses a line that is a list in brackets, `['a', 'b']` or `('a', 'b')`, of well-formed fields.
/// The first field must be quoted, so that the bracket is no part of it.
pub fn in_brackets(line: &str) -> Option<Vec<RowField>> {
    let within = |open, close| line.strip_prefix(open)?.strip_suffix(close);
    let inside = within('[', ']').or_else(|| within('(', ')'))?.trim();
    let whole = record(inside, &['"', '\'']).filter(|r| !r.open && r.end == inside.len())?;
    whole.fields.first().is_some_and(|f| f.quoted).then_some(whole.fields)
}

/// Parses a line that is quoted as a whole, `'Pat O'Brien,1985,PAT'`. Its first field is not closed
/// and its last one is not opened, so the two quotes belong together.
pub fn around(line: &str) -> Option<Vec<RowField>> {
    let quote = line.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = line.strip_prefix(quote)?.strip_suffix(quote)?;
    let (first, last) = (inner.split(',').next()?, inner.rsplit(',').next()?);
    if !inner.contains(',') || first.ends_with(quote) || last.trim_start().starts_with(quote) {
        return None;
    }
    let whole = record(inner, &['"', '\'']).filter(|r| !r.open && r.end == inner.len());
    whole.map(|r| r.fields)
}

/// Returns the readings of a line in which one of its first fields has a quote that is never
/// closed: the position of that field, and the well-formed fields without the quote.
pub fn never_closed(line: &str, first: usize) -> Vec<(usize, Vec<RowField>)> {
    let mut ways = Vec::new();
    let mut at = 0;
    for n in 0..first {
        let rest = line.get(at..).unwrap_or_default();
        let begin = at + (rest.len() - rest.trim_start_matches(' ').len());
        if line[begin..].starts_with(['"', '\'']) {
            let without = [&line[..begin], &line[begin + 1..]].concat();
            let whole = record(&without, &['"', '\'']);
            let whole = whole.filter(|r| !r.open && r.end == without.len());
            ways.extend(whole.map(|r| (n, r.fields)));
        }
        match line[begin..].find(',') {
            Some(comma) => at = begin + comma + 1,
            None => break,
        }
    }
    ways
}

/// Returns the end of a quoted field: a quote that is neither doubled nor escaped.
fn end_of_quoted(text: &str, quote: char) -> Option<usize> {
    let doubled: String = [quote, quote].iter().collect();
    let escaped: String = ['\\', quote].iter().collect();
    // If quotes are doubled, `\"" ` is a backslash and a doubled quote.
    let escapes = !text.contains(&[escaped.as_str(), &doubled[1..]].concat());
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if escapes && c == '\\' && chars.peek().is_some_and(|(_, next)| *next == quote) {
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

/// Unescapes the inside of a quoted field.
fn unquoted(inner: &str, quote: char) -> RowField {
    let doubled: String = [quote, quote].iter().collect();
    let escaped: String = ['\\', quote].iter().collect();
    let one = quote.to_string();
    let text = if inner.contains(&escaped) && !inner.contains(&doubled) {
        inner.replace(&escaped, &one)
    } else {
        inner.replace(&doubled, &one)
    };
    RowField { text, quoted: true, unclear: false }
}

/// Splits a line into fields in single or double quotes. A quote ends its field only before a comma
/// or at the end, so that apostrophes inside names are kept.
pub fn lenient(line: &str) -> Vec<RowField> {
    let mut fields = Vec::new();
    let mut rest = line.trim();
    loop {
        let bare = rest.trim_start();
        let quote = bare.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let closing = quote.and_then(|q| closing(&bare[1..], q));
        let (field, after) = match (quote, closing) {
            (Some(q), Some(end)) => {
                let inner = &bare[1..=end];
                let field = if is_quoted(inner, q) {
                    RowField { text: inner.to_owned(), quoted: true, unclear: true }
                } else {
                    RowField { unclear: closes_first(inner, q), ..unquoted(inner, q) }
                };
                (field, bare[end + 2..].trim_start())
            }
            // Never closed: this is the last field. If it contains commas, the quote may be a
            // mistake, and `'til` begins with an apostrophe, so only a type or a value list can
            // decide.
            (Some(q), None) if !bare[1..].contains(q) => {
                let field = RowField::bare(bare[1..].trim());
                (RowField { unclear: q == '\'' || field.text.contains(','), ..field }, "")
            }
            // No quotes, or they are part of the field.
            _ => {
                let end = rest.find(',').unwrap_or(rest.len());
                (RowField::bare(&rest[..end]), &rest[end..])
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
/// A correct writer doubles the quotes of a value within those of the field, which makes three. A
/// writer that does not double them writes a value with its own quotes, `"Heroes"`, in the same
/// way. Only a type, a list or the rest of the row can decide.
fn is_quoted(inner: &str, quote: char) -> bool {
    let text = inner.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    text.is_some_and(|text| !text.is_empty() && !text.contains(quote))
}

/// Returns true if the first quote within quotes may be a closing one, as in `"A" and "B"`, so that
/// the outer quotes may not belong to the field; or if one quote is escaped and another is not, so
/// that the backslash may be part of the value.
fn closes_first(inner: &str, quote: char) -> bool {
    let escaped: String = ['\\', quote].iter().collect();
    if inner.contains(&escaped) && inner.replace(&escaped, "").contains(quote) {
        return true;
    }
    let first = inner.find(quote).filter(|at| !inner[at + quote.len_utf8()..].starts_with(quote));
    quote == '"'
        && first.is_some_and(|at| !inner[..at].ends_with(' ') && !inner[..at].ends_with('\\'))
}

/// Returns the end of a quoted field: its quote before a comma or the end.
fn closing(text: &str, quote: char) -> Option<usize> {
    text.char_indices().filter(|(_, c)| *c == quote).map(|(at, _)| at).find(|at| {
        let after = text[at + 1..].trim_start();
        let escaped = text[..*at].ends_with('\\');
        !escaped && (after.is_empty() || after.starts_with(','))
    })
}

/// Splits a line at every comma; quotes without a counterpart are dropped as mistakes.
pub fn plain(line: &str) -> Vec<RowField> {
    let bare = |f: &str| {
        let text = f.trim_end();
        let inner = text.trim_start().trim_matches('`');
        let pair = ['\'', '"']
            .into_iter()
            .find_map(|q| inner.strip_prefix(q)?.strip_suffix(q).filter(|i| !i.contains(q)));
        let once = inner.matches('"').count() == 1;
        let lone = inner.strip_prefix('"').or_else(|| inner.strip_suffix('"')).filter(|_| once);
        match pair.or(lone) {
            Some(inner) => inner.trim().to_owned(),
            None => text.trim_matches('`').to_owned(),
        }
    };
    let fields = line.trim().split(',');
    fields.map(|f| RowField::bare(&bare(f))).collect()
}

/// Parses a line of a Markdown table, or of fields separated by pipes.
pub fn table(line: &str) -> Option<Vec<RowField>> {
    let inner = line.trim().strip_prefix('|')?;
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    Some(inner.split('|').map(|f| RowField::bare(f.trim())).collect())
}
