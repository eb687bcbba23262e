//! Finds the table that a name means at a position of a query, by the FROM clauses around it.

use hqdl_sql::blendsql::lexer::{Lexeme, Token};

/// Words that follow a table without an alias.
const AFTER_TABLE: [&str; 18] = [
    "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "OUTER", "ON", "USING", "WHERE",
    "GROUP", "HAVING", "ORDER", "LIMIT", "WINDOW", "INDEXED", "NOT",
];

/// A query, and the position in it of the text that contains a call.
#[derive(Clone, Copy)]
pub(super) struct EnclosingQuery<'q> {
    pub text: &'q str,
    pub tokens: &'q [Token],
    /// Offset of the text in the query.
    pub start: usize,
}

/// Meaning of a name in a FROM clause.
pub(super) enum NamedSource {
    /// A table as it is written.
    Table(String),
    /// A subquery, a function or a join in parentheses.
    Derived,
}

/// An entry of a FROM clause.
struct FromEntry {
    /// The alias, or the name of the table.
    name: String,
    /// The table as it is written; `None` for a subquery, a function or a join in parentheses.
    table: Option<String>,
    /// Position of its first token.
    first: usize,
}

impl EnclosingQuery<'_> {
    /// Returns what a name means for the call at this offset of the text, or `None` if no FROM
    /// clause around the call names it.
    pub(super) fn find_source(self, name: &str, offset: usize) -> Option<NamedSource> {
        let depths = self.bracket_depths();
        let offset = self.start + offset;
        let mut at = self.tokens.partition_point(|token| token.start < offset);
        loop {
            let depth = *depths.get(at)?;
            let is_outside =
                |n: &usize| depths[*n] < depth || depths[*n] == depth && self.is_set_operator(*n);
            let begin = (0..at).rev().find(is_outside).map_or(0, |n| n + 1);
            let end = (at..depths.len()).find(is_outside).unwrap_or(depths.len());
            let entries = self.read_from_clause(&depths, begin, at, end);
            // A subquery in FROM cannot read the entries beside it.
            let is_beside = entries.iter().any(|e| e.first == at && e.table.is_none());
            let is_named = |entry: &FromEntry| entry.name.eq_ignore_ascii_case(name);
            if let Some(entry) = entries.into_iter().find(|e| !is_beside && is_named(e)) {
                return Some(entry.table.map_or(NamedSource::Derived, NamedSource::Table));
            }
            at = (0..at).rev().find(|n| depths[*n] < depth)?;
        }
    }

    /// Returns the number of open brackets around each token. A bracket is outside itself.
    fn bracket_depths(self) -> Vec<usize> {
        let mut depth = 0_usize;
        let depths = self.tokens.iter().map(|token| match token.lexeme {
            Lexeme::Open | Lexeme::Symbol(b'(' | b'[' | b'{') => {
                depth += 1;
                depth - 1
            }
            Lexeme::Close | Lexeme::Symbol(b')' | b']' | b'}') => {
                depth = depth.saturating_sub(1);
                depth
            }
            _ => depth,
        });
        depths.collect()
    }

    /// Returns the FROM clause of the SELECT between two tokens, if the token `at` can read it.
    fn read_from_clause(
        self,
        depths: &[usize],
        begin: usize,
        at: usize,
        end: usize,
    ) -> Vec<FromEntry> {
        let depth = depths[at];
        let find = |from: usize, word: &str| {
            (from..end).find(|n| depths[*n] == depth && self.is_word(*n, word))
        };
        // A WITH clause cannot read the FROM clause after it.
        let Some(select) = find(begin, "SELECT").filter(|select| *select < at) else {
            return Vec::new();
        };
        let mut from = find(select, "FROM");
        while let Some(n) = from.filter(|n| self.is_word(*n - 1, "DISTINCT")) {
            from = find(n + 1, "FROM");
        }
        let Some(from) = from else { return Vec::new() };
        let mut entries = Vec::new();
        let (mut n, mut begins_entry) = (from + 1, true);
        while n < end {
            if begins_entry {
                let is_query = ["SELECT", "WITH", "VALUES"].iter().any(|w| self.is_word(n + 1, w));
                // Parentheses around a join contain entries.
                if is_query || !self.is_symbol(n, b'(') {
                    n = self.read_entry(depths, n, &mut entries);
                    begins_entry = false;
                    continue;
                }
            } else if self.is_symbol(n, b')') {
                if let Some((name, _)) = self.alias(n + 1) {
                    entries.push(FromEntry { name, table: None, first: n });
                }
            } else if self.is_open(n) {
                n = closing_position(depths, n);
            } else if ["WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "WINDOW"]
                .iter()
                .any(|word| self.is_word(n, word))
            {
                break;
            } else {
                begins_entry = self.is_symbol(n, b',') || self.is_word(n, "JOIN");
            }
            n += 1;
        }
        entries
    }

    /// Reads the entry at `first`. Returns the position after it.
    fn read_entry(self, depths: &[usize], first: usize, entries: &mut Vec<FromEntry>) -> usize {
        let mut last = first;
        while self.is_symbol(last + 1, b'.') && self.is_name(last + 2) {
            last += 2;
        }
        let text = self.text.get(self.tokens[first].start..self.tokens[last].end);
        let mut table = text.filter(|_| self.is_name(first)).map(str::to_owned);
        let name = self.tokens[last].unquoted_text(self.text);
        // A function, or a subquery.
        if table.is_some() && self.is_symbol(last + 1, b'(') {
            (last, table) = (closing_position(depths, last + 1), None);
        } else if self.is_open(first) {
            last = closing_position(depths, first);
        }
        let (name, next) = self.alias(last + 1).unwrap_or((name, last + 1));
        entries.push(FromEntry { name, table, first });
        next
    }

    /// Returns the alias at this position, and the position after it.
    fn alias(self, n: usize) -> Option<(String, usize)> {
        let is_alias = |n: usize| !AFTER_TABLE.iter().any(|word| self.is_word(n, word));
        let is_after_as = self.is_word(n, "AS");
        let n = if is_after_as { n + 1 } else { n };
        if !(is_after_as || self.is_name(n) && is_alias(n)) {
            return None;
        }
        Some((self.tokens.get(n)?.unquoted_text(self.text), n + 1))
    }

    fn is_set_operator(self, n: usize) -> bool {
        ["UNION", "INTERSECT", "EXCEPT"].iter().any(|word| self.is_word(n, word))
            || self.is_symbol(n, b';')
    }

    /// `SQLite` reads a text where only a name is possible as a name.
    fn is_name(self, n: usize) -> bool {
        let is_name =
            |lexeme| matches!(lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name | Lexeme::Text);
        self.tokens.get(n).is_some_and(|token| is_name(token.lexeme))
    }

    fn is_open(self, n: usize) -> bool {
        self.is_symbol(n, b'(') || self.tokens.get(n).is_some_and(|t| t.lexeme == Lexeme::Open)
    }

    fn is_word(self, n: usize, word: &str) -> bool {
        self.tokens.get(n).is_some_and(|token| token.is_word(self.text, word))
    }

    fn is_symbol(self, n: usize, symbol: u8) -> bool {
        self.tokens.get(n).is_some_and(|token| token.is_symbol(symbol))
    }
}

/// Returns the position of the bracket that closes the one at `open`.
fn closing_position(depths: &[usize], open: usize) -> usize {
    (open + 1..depths.len()).find(|n| depths[*n] <= depths[open]).unwrap_or(depths.len() - 1)
}
