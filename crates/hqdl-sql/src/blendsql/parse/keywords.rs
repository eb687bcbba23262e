//! Keywords of `SQLite`'s grammar. Any other keyword can be a name.

/// Keywords that are never a name without quotes.
const RESERVED: [&str; 58] = [
    "ADD",
    "ALL",
    "ALTER",
    "AND",
    "AS",
    "AUTOINCREMENT",
    "BETWEEN",
    "CASE",
    "CHECK",
    "COLLATE",
    "COMMIT",
    "CONSTRAINT",
    "CREATE",
    "DEFAULT",
    "DEFERRABLE",
    "DELETE",
    "DISTINCT",
    "DROP",
    "ELSE",
    "ESCAPE",
    "EXCEPT",
    "EXISTS",
    "FOREIGN",
    "FROM",
    "GROUP",
    "HAVING",
    "IN",
    "INDEX",
    "INSERT",
    "INTERSECT",
    "INTO",
    "IS",
    "ISNULL",
    "JOIN",
    "LIMIT",
    "NOT",
    "NOTHING",
    "NOTNULL",
    "NULL",
    "ON",
    "OR",
    "ORDER",
    "PRIMARY",
    "REFERENCES",
    "RETURNING",
    "SELECT",
    "SET",
    "TABLE",
    "THEN",
    "TO",
    "TRANSACTION",
    "UNION",
    "UNIQUE",
    "UPDATE",
    "USING",
    "VALUES",
    "WHEN",
    "WHERE",
];

/// Words that begin a join.
const JOIN: [&str; 7] = ["CROSS", "FULL", "INNER", "LEFT", "NATURAL", "OUTER", "RIGHT"];

fn contains_word(words: &[&str], word: &str) -> bool {
    words.iter().any(|w| w.eq_ignore_ascii_case(word))
}

/// Returns true if a word is never a name.
pub(super) fn is_reserved(word: &str) -> bool {
    contains_word(&RESERVED, word)
}

/// Returns true if a word cannot be an alias without AS, although it may be a name.
pub(super) fn requires_as(word: &str) -> bool {
    begins_join(word) || word.eq_ignore_ascii_case("INDEXED")
}

pub(super) fn begins_join(word: &str) -> bool {
    contains_word(&JOIN, word)
}

/// Words that begin a statement that is not read-only.
const WRITE_STATEMENTS: [&str; 20] = [
    "ALTER",
    "ANALYZE",
    "ATTACH",
    "BEGIN",
    "COMMIT",
    "CREATE",
    "DELETE",
    "DETACH",
    "DROP",
    "END",
    "INSERT",
    "PRAGMA",
    "REINDEX",
    "RELEASE",
    "REPLACE",
    "ROLLBACK",
    "SAVEPOINT",
    "UPDATE",
    "UPSERT",
    "VACUUM",
];

/// Returns true if a word begins a statement that is not read-only.
#[must_use]
pub fn begins_write(word: &str) -> bool {
    contains_word(&WRITE_STATEMENTS, word)
}

/// Returns true if a word begins a statement that is not a SELECT.
pub(super) fn begins_other_statement(word: &str) -> bool {
    begins_write(word) || contains_word(&["EXPLAIN", "START"], word)
}
