//! Words of `PostgreSQL` that `SQLite`'s grammar lacks. A query over a database on a server is
//! parsed without them, but sent with them. The parsed text has the same length, so positions in it
//! are positions in the query.
//!
//! | written | parsed |
//! |---|---|
//! | `ILIKE`, `SIMILAR TO` | `LIKE` |
//! | `DATE '…'`, `interval '…' day` | `'…'` |
//! | `x::numeric(5, 2)[]` | `x` |

use std::ops::Range;

use super::lexer::{Brackets, Lexeme, Token, next_token};

/// Types whose name may precede a text.
const TYPES: [&str; 12] = [
    "DATE",
    "TIME",
    "TIMETZ",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "INTERVAL",
    "NUMERIC",
    "INTEGER",
    "BOOLEAN",
    "UUID",
    "JSON",
    "JSONB",
];
/// Words that may follow the text of an interval.
const FIELDS: [&str; 6] = ["YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"];
/// Words that may follow the first word of a type's name.
const MORE_OF_TYPE: [&str; 6] = ["PRECISION", "VARYING", "WITH", "WITHOUT", "TIME", "ZONE"];
/// Types whose name may have several words.
const LONG_TYPES: [&str; 4] = ["DOUBLE", "CHARACTER", "TIME", "TIMESTAMP"];

/// Returns a query of the same length without the server's own words.
#[must_use]
pub fn blank_server_words(sql: &str) -> String {
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Ok(Some(token)) = next_token(sql, at, Brackets::Name) {
        at = token.end;
        tokens.push(token);
    }
    let is = |n: usize, words: &[&str]| {
        tokens.get(n).is_some_and(|token| {
            token.lexeme == Lexeme::Word
                && words.iter().any(|w| token.text(sql).eq_ignore_ascii_case(w))
        })
    };
    let is_text = |n: usize| tokens.get(n).is_some_and(|token| token.lexeme == Lexeme::Text);
    let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
    let mut n = 0;
    while n < tokens.len() {
        let span = tokens[n].start..tokens[n].end;
        if is(n, &["ILIKE"]) {
            edits.push((span, "LIKE"));
        } else if is(n, &["SIMILAR"]) && is(n + 1, &["TO"]) {
            edits.push((span.start..tokens[n + 1].end, "LIKE"));
        } else if is(n, &TYPES) && is_text(n + 1) {
            edits.push((span, ""));
            if is(n, &["INTERVAL"]) && is(n + 2, &FIELDS) {
                edits.push((tokens[n + 2].start..tokens[n + 2].end, ""));
            }
        } else if sql[span.start..].starts_with("::") {
            let end = cast_end(sql, span.start);
            edits.push((span.start..end, ""));
            while tokens.get(n + 1).is_some_and(|token| token.start < end) {
                n += 1;
            }
        }
        n += 1;
    }
    let mut out = sql.to_owned();
    for (span, word) in edits {
        let blanked = format!("{word:<width$}", width = span.len());
        out.replace_range(span, &blanked);
    }
    out
}

/// Returns the end of the type after a `::`.
fn cast_end(sql: &str, start: usize) -> usize {
    let mut end = start + 2;
    let token = |at: usize| next_token(sql, at, Brackets::List).ok().flatten();
    let Some(name) = token(end).filter(|t| matches!(t.lexeme, Lexeme::Word | Lexeme::Quoted))
    else {
        return end;
    };
    end = name.end;
    let is = |t: &Token, words: &[&str]| words.iter().any(|w| t.text(sql).eq_ignore_ascii_case(w));
    let is_long = is(&name, &LONG_TYPES);
    while let Some(next) = token(end).filter(|t| is_long && is(t, &MORE_OF_TYPE)) {
        end = next.end;
    }
    for (open, close) in [('(', ')'), ('[', ']')] {
        if sql[end..].starts_with(open)
            && let Some(length) = sql[end..].find(close)
        {
            end += length + 1;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::blank_server_words;

    #[test]
    fn words_of_the_server_are_blanked_in_place() {
        for (written, parsed) in [
            ("a ILIKE 'x'", "a LIKE  'x'"),
            ("a not similar to 'ILIKE'", "a not LIKE       'ILIKE'"),
            ("d > DATE '2020-01-01'", "d >      '2020-01-01'"),
            ("d - interval '1' day", "d -          '1'    "),
            ("a::int + b::double precision", "a      + b                  "),
            ("a::numeric(5, 2)[] = 'x::y'", "a                  = 'x::y'"),
            ("SELECT date FROM t", "SELECT date FROM t"),
            ("é::text AS x", "é       AS x"),
        ] {
            assert_eq!(blank_server_words(written), parsed);
            assert_eq!(written.len(), parsed.len());
        }
    }
}
