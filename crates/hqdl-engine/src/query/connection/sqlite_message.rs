//! Explains `SQLite`'s messages about a query: replaces the names of hqdl's own functions with the
//! names of ingredients, and adds hints.

use std::ops::Range;

use crate::query::request::dialect::Dialect;
use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_sql::blendsql::ingredients::{self, IngredientRef};
use hqdl_sql::blendsql::runtime::CALL_AGGREGATES;
use hqdl_sql::suql;
use hqdl_values::format::format_count;
use hqdl_values::problem::find_nearest;

/// Keywords that are often misspelt.
const KEYWORDS: [&str; 10] =
    ["SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "JOIN", "UNION", "DISTINCT"];

/// Commands of database shells that list tables and columns.
const CATALOG_COMMANDS: [&str; 4] = ["SHOW", "DESCRIBE", "DESC", "."];

/// Hint for syntax that only `PostgreSQL` has.
const POSTGRES_SYNTAX: &str = "this is PostgreSQL syntax: use `--dialect suql`";

/// Fragments of `SQLite`'s messages, each with the hint for messages that contain it.
const HINTS: [(&str, &str); 33] = [
    ("ends too early", "complete it, as in SELECT name FROM city"),
    (
        "unrecognized token: \":\"",
        "`value::type` is PostgreSQL syntax: use `--dialect suql`, or CAST(value AS type)",
    ),
    ("a quoted text is never closed", "close the text with a `'`; write a `'` inside it twice"),
    ("unrecognized token: \"\"", "close the name with a `\"`; a text is in single quotes: '…'"),
    ("unrecognized token: \"[", "close the name with a `]`"),
    ("unrecognized token: \"`", "close the name with a backtick"),
    (
        "unrecognized token: \"{\"",
        "write a call in double braces, such as {{LLMMap('…', t.column)}}",
    ),
    ("unrecognized token", "remove it, or write it in a text: '…'"),
    ("MATCH works only", "use LIKE, or the function search(t.column, 'words', 5)"),
    ("USING names", "name a column that both tables have, or write ON a.x = b.y"),
    ("has 1 value for", "list one name after the table, as its query returns one column"),
    ("a NATURAL join", "remove NATURAL, or the ON or USING clause"),
    ("no such window", "define it with WINDOW, or write OVER (ORDER BY …)"),
    (
        "the window function `",
        "write OVER (ORDER BY …) after it, and use it in the result columns or in ORDER BY; to filter by it, use a subquery",
    ),
    (
        "ambiguous column name",
        "several tables in FROM have this column: write the table before it, as in t.column",
    ),
    (
        "is not allowed here",
        "use it in the result columns, in HAVING or in ORDER BY, and not inside another aggregate; or compute it in a subquery",
    ),
    (
        "aggregate functions are not allowed",
        "compute the aggregate in a subquery, and group its rows",
    ),
    (
        "is not a result column",
        "write the position of a result column, counted from 1, or its name",
    ),
    ("values for", "list as many names after the table as its query returns columns"),
    ("different numbers of columns", "return the same number of columns from each SELECT"),
    ("LIMIT or OFFSET is not", "write a whole number after LIMIT and OFFSET"),
    ("the subquery returns", "select one column in the subquery"),
    ("the query in `", "select one column in it"),
    ("integer overflow", "compute it as a REAL, as in sum(CAST(c AS REAL)) or total(c)"),
    ("malformed JSON", "skip values that are not JSON, as in CASE WHEN json_valid(c) THEN … END"),
    (
        "k of `LLMTopK` is not",
        "write how many values you want, as in {{LLMTopK('…', t.column, 3)}}",
    ),
    (
        "k of `search` is not",
        "write how many values you want, as in search(documents.text, t.name, 5)",
    ),
    ("k of `nearest` is not", "write how many values you want, as in nearest(t.text, u.column, 3)"),
    ("is not an embedding", "pass a text, or the BLOB that embed(…) returned"),
    ("no such module", "use a table that needs no SQLite extension: hqdl loads none"),
    (
        "circular reference",
        "a WITH query can read itself only after UNION: WITH RECURSIVE t AS (SELECT … UNION ALL SELECT … FROM t)",
    ),
    ("all VALUES must have", "write the same number of values in each row"),
    (
        "come from different models",
        "compare texts, or embed both values with the model of [embeddings]",
    ),
];

/// Message for an incomplete query.
pub(in crate::query) const ENDS_TOO_EARLY: &str = "the query ends too early";

/// Fragments of `SQLite`'s messages, with their replacements in hqdl's messages.
const OWN_MESSAGES: [(&str, &str); 5] = [
    ("unrecognized token: \"'", "a quoted text is never closed"),
    ("unable to use function MATCH", "MATCH works only on a full-text table"),
    ("incomplete input", ENDS_TOO_EARLY),
    (
        "the same number of result columns",
        "the combined SELECTs return different numbers of columns",
    ),
    // `SQLite` reports this only for LIMIT and OFFSET.
    ("datatype mismatch", "LIMIT or OFFSET is not a whole number"),
];

/// Replaces the names of hqdl's functions and tables in a message with the names of the ingredients
/// that the query uses.
pub(in crate::query) fn restore_ingredient_names(message: &str) -> String {
    // `table hq_ranked has 2 values for 1 columns`
    if let Some((table, counts)) =
        message.strip_prefix("table ").and_then(|rest| rest.split_once(" has "))
        && let Some((count, _)) = counts.split_once(" values for 1 ")
        && let Some(ingredient) = match table {
            "hq_spec_values" => Some("search.values"),
            "hq_document" => Some("RAGQA"),
            _ => CALL_AGGREGATES.iter().find(|found| found.table == table).map(|found| found.call),
        }
    {
        return format!("the query in `{ingredient}` returns {count} columns");
    }
    if let Some(own) = reword_count_message(message) {
        return own;
    }
    if let Some((_, own)) = OWN_MESSAGES.iter().find(|(part, _)| message.contains(part)) {
        return (*own).to_owned();
    }
    let aggregate = message.strip_prefix("misuse of aggregate").and_then(|rest| {
        let name = rest.strip_prefix(": ").or_else(|| rest.strip_prefix(" function "))?;
        name.strip_suffix("()")
    });
    match aggregate {
        Some(name) => {
            let aggregate = CALL_AGGREGATES.iter().find(|found| found.function == name);
            let name = aggregate.map_or(name, |found| found.call);
            format!("the aggregate `{name}` is not allowed here")
        }
        None => message.to_owned(),
    }
}

/// Returns hqdl's own wording of a message about numbers of columns, USING or window functions.
fn reword_count_message(message: &str) -> Option<String> {
    let count = |number: &str, noun| Some(format_count(number.parse().ok()?, noun));
    // `table c has 1 values for 2 columns`
    if let Some((table, rest)) =
        message.strip_prefix("table ").and_then(|rest| rest.split_once(" has "))
        && let Some((values, columns)) = rest.split_once(" values for ")
    {
        let columns = count(columns.trim_end_matches(" columns"), "column")?;
        return Some(format!("`{table}` has {} for {columns}", count(values, "value")?));
    }
    // `sub-select returns 2 columns - expected 1`
    if let Some(rest) = message.strip_prefix("sub-select returns ") {
        let (columns, expected) = rest.split_once(" columns - expected ")?;
        return Some(format!(
            "the subquery returns {}, expected {expected}",
            count(columns, "column")?
        ));
    }
    // `1st ORDER BY term out of range - should be between 1 and 3`
    if let Some((term, range)) = message.split_once(" BY term out of range - should be between ") {
        let (position, clause) = term.split_once(' ')?;
        let columns = count(range.rsplit(' ').next()?, "column")?;
        return Some(format!(
            "the {position} term of {clause} BY is not a result column: the query has {columns}"
        ));
    }
    // `cannot join using column c - column not present in both tables`
    if let Some(rest) = message.strip_prefix("cannot join using column ") {
        let (name, _) = rest.split_once(" - ")?;
        return Some(format!("USING names `{name}`, which is not a column of both tables"));
    }
    let name = message.strip_prefix("misuse of window function ")?;
    Some(format!("the window function `{}` is not allowed here", name.trim_end_matches("()")))
}

/// A message from `SQLite` about a query.
pub(in crate::query) struct SqliteMessage<'m> {
    /// Message in which the names of functions are already replaced with the names of ingredients.
    pub message: &'m str,
    /// Query that the message is about.
    pub sql: &'m str,
    /// Span of the error in the query.
    pub span: Option<&'m Range<usize>>,
    pub database: &'m Database,
}

impl SqliteMessage<'_> {
    /// Returns a hint for the user; empty if there is none.
    pub(in crate::query) fn suggest_fix(&self) -> String {
        match self.message.split_once(": ") {
            Some(("no such function", name)) => return self.suggest_function(name),
            Some(("no such table" | "no such column", _)) => return self.suggest_name(),
            _ => {}
        }
        if let Some(name) = self.message.strip_prefix("wrong number of arguments to function ") {
            return self.describe_arguments(name.trim_end_matches("()"));
        }
        if self.message.ends_with("syntax error") {
            return self.suggest_syntax();
        }
        let hint = HINTS.iter().find(|(part, _)| self.message.contains(part));
        hint.map_or_else(String::new, |(_, hint)| (*hint).to_owned())
    }

    /// Returns a hint for a syntax error.
    fn suggest_syntax(&self) -> String {
        let start = self.span.map_or(0, |span| span.start);
        let before = self.sql.get(..start).unwrap_or_default().trim_end().to_uppercase();
        let word = self.span.and_then(|span| self.sql.get(span.clone())).unwrap_or_default();
        if word.eq_ignore_ascii_case("ILIKE") {
            return "ILIKE is PostgreSQL syntax: use `--dialect suql`, or LIKE, which ignores the case of ASCII letters in SQLite".to_owned();
        }
        if word.eq_ignore_ascii_case("ON") && before.ends_with("DISTINCT") {
            return "DISTINCT ON is PostgreSQL syntax: use `--dialect suql`, or GROUP BY"
                .to_owned();
        }
        if before.is_empty() && CATALOG_COMMANDS.iter().any(|c| word.eq_ignore_ascii_case(c)) {
            return "list the tables with SELECT name FROM sqlite_schema, and the columns with SELECT name FROM pragma_table_info('t')".to_owned();
        }
        let last_word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let is_table = |table: &String| table.eq_ignore_ascii_case(word);
        if matches!(last_word, "FROM" | "JOIN") && self.database.table_names().iter().any(is_table)
        {
            return format!(
                "{} is a keyword: write \"{word}\" in double quotes",
                word.to_uppercase()
            );
        }
        let called = before.rsplit_once('(').map_or("", |(before_call, _)| before_call);
        let called = called.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if last_word == "ARRAY" || called == "EXTRACT" {
            return POSTGRES_SYNTAX.to_owned();
        }
        if before.ends_with("SELECT TOP") {
            return format!("write LIMIT {word} at the end of the query");
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let function = before.rsplit(|c| !is_name(c)).next().unwrap_or_default();
        if word == "("
            && let Some(hint) = suggest_dialect(function)
        {
            return hint;
        }
        for written in [word.to_uppercase().as_str(), last_word] {
            if !KEYWORDS.contains(&written)
                && let Some(keyword) = find_nearest(written, KEYWORDS)
            {
                return format!("did you mean {keyword} instead of {written}?");
            }
        }
        "correct the SQL here, or just before".to_owned()
    }

    /// Returns a hint for an unknown function.
    fn suggest_function(&self, name: &str) -> String {
        let is = |i: &IngredientRef| i.name().eq_ignore_ascii_case(name);
        if let Some(found) = ingredients::list_ingredients().into_iter().find(is) {
            return format!("write the call in double braces: {{{{{}(…)}}}}", found.name());
        }
        if let Some(hint) = suggest_dialect(name) {
            return hint;
        }
        if name.eq_ignore_ascii_case("REGEXP") {
            return "use LIKE or GLOB, or the operator ~ with `--dialect suql`".to_owned();
        }
        let known = self.database.connection().prepare(
            "SELECT DISTINCT name FROM pragma_function_list WHERE name NOT LIKE 'hq@_%' ESCAPE '@'",
        );
        let known = known.and_then(|mut names| {
            names
                .query_map([], |row| row.get::<_, String>(0))?
                .collect::<rusqlite::Result<Vec<_>>>()
        });
        match find_nearest(name, known.unwrap_or_default().iter().map(String::as_str)) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => "use a function of SQLite, or an ingredient: {{…}}; docs/reference/queries.md lists them".to_owned(),
        }
    }

    /// Returns a hint with the numbers of arguments that a function accepts.
    fn describe_arguments(&self, function: &str) -> String {
        let counts = self.database.connection().prepare(
            "SELECT DISTINCT narg FROM pragma_function_list WHERE name = ?1 COLLATE NOCASE AND narg >= 0 \
             ORDER BY narg",
        );
        let counts = counts.and_then(|mut counts| {
            let rows = counts.query_map([function], |row| row.get::<_, u64>(0))?;
            rows.map(|count| Ok(count?.to_string())).collect::<rusqlite::Result<Vec<_>>>()
        });
        match counts.unwrap_or_default().as_slice() {
            [] => format!("check the arguments of `{function}` in SQLite's documentation"),
            [one] if one == "1" => format!("`{function}` takes 1 argument"),
            counts => format!("`{function}` takes {} arguments", counts.join(" or ")),
        }
    }

    /// Returns a hint for an unknown table or column.
    fn suggest_name(&self) -> String {
        let (message, database) = (self.message, self.database);
        let is_table = message.starts_with("no such table");
        let misspelt = extract_unknown_name(message);
        let mut tables = database.table_names();
        // `SQLite` also rejects `t.c` if the table `t` has a column `c` but is not in FROM.
        let table = message.strip_prefix("no such column: ").and_then(|name| name.rsplit_once('.'));
        let known: Vec<String> = if is_table {
            tables
        } else {
            // If the name is qualified by an existing table, suggest only its columns.
            let is = |t: &String| table.is_some_and(|(table, _)| t.eq_ignore_ascii_case(table));
            if tables.iter().any(is) {
                tables.retain(is);
            }
            let columns = tables.iter().filter_map(|t| database.table_columns(t)).flatten();
            columns.map(|(name, _)| name).collect()
        };
        if let Some((table, column)) = table
            && known.iter().any(|name| name.eq_ignore_ascii_case(column))
        {
            return format!("FROM has no table or alias `{table}`");
        }
        if is_table && self.span.is_none() {
            return "a view that the query reads refers to it: correct the view".to_owned();
        }
        let nearest = find_nearest(misspelt, known.iter().map(String::as_str));
        if !is_table && nearest.is_none() && misspelt.eq_ignore_ascii_case("INTERVAL") {
            return POSTGRES_SYNTAX.to_owned();
        }
        if misspelt.contains(['“', '”', '‘', '’']) {
            return "write straight quotes: '…' for a text, \"…\" for a name".to_owned();
        }
        if misspelt.contains('\'') {
            return "brackets quote a name here; a list belongs where the call expects it"
                .to_owned();
        }
        // Look for a table that has the column but is not visible where the query names the column.
        let has_column = |t: &String| {
            let columns = database.table_columns(t).unwrap_or_default();
            columns.iter().any(|(name, _)| name.eq_ignore_ascii_case(misspelt))
        };
        if !is_table && table.is_none() {
            let owners: Vec<String> =
                database.table_names().into_iter().filter(has_column).collect();
            let is_written = |owner: &&String| contains_word(self.sql, owner);
            let has_from = contains_word(self.sql, "FROM");
            let written = owners.iter().find(is_written);
            if let Some(owner) = written.filter(|_| has_from) {
                return format!(
                    "the rows of `{owner}` are not visible here: use a value, or a subquery"
                );
            }
            // `city` in LLMQA('…', city) means the table, not a column of another table.
            if !has_from && database.table_columns(misspelt).is_some() {
                return suggest_rows(misspelt);
            }
            if let Some(owner) = written.or(owners.first()) {
                return format!("it is a column of `{owner}`, which must be in FROM");
            }
        }
        match (nearest, table) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, Some((table, _))) if database.table_columns(table).is_some() => {
                format!("`{table}` has the columns {}", format_first_names(&known))
            }
            (None, Some((table, _))) => {
                format!("`{table}` must be a table or an alias in FROM that has this column")
            }
            (None, None) if is_table && known.is_empty() => "the database has no table".to_owned(),
            (None, None) if is_table => format!("the tables are {}", format_first_names(&known)),
            (None, None) if database.table_columns(misspelt).is_some() => suggest_rows(misspelt),
            (None, None) => {
                format!("no table in FROM has it; if it is a text, write '{misspelt}'")
            }
        }
    }
}

/// Returns the hint for a table name in a place that requires a value.
fn suggest_rows(table: &str) -> String {
    format!("`{table}` is a table: name a column of it, or pass its rows: (SELECT … FROM {table})")
}

/// Returns true if a query contains a word, ignoring case.
fn contains_word(sql: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    sql.split(|c| !is_word(c)).any(|written| written.eq_ignore_ascii_case(word))
}

/// Returns a hint if another dialect has this function.
fn suggest_dialect(function: &str) -> Option<String> {
    let name = function.to_lowercase();
    let has_function = |dialect: &Dialect| match dialect.vendor() {
        Some(vendor) => vendor.has_function(&name),
        None => *dialect == Dialect::Suql && suql::has_function(&name),
    };
    let mut names: Vec<&str> =
        Dialect::ALL.into_iter().filter(|(_, d)| has_function(d)).map(|(name, _)| name).collect();
    // `SQLite` reports the `PROMPT` inside a Snowflake function before the function itself.
    if name == "prompt" {
        names.push(Dialect::Snowflake.name());
    }
    let flags: Vec<String> = names.iter().map(|name| format!("`--dialect {name}`")).collect();
    (!flags.is_empty())
        .then(|| format!("`{name}` is a function of another dialect: use {}", flags.join(" or ")))
}

/// Formats the first few names of a list, followed by `…` if there are more.
fn format_first_names(names: &[String]) -> String {
    const NAMED: usize = 8;
    let more = if names.len() > NAMED { " …" } else { "" };
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    format!("{}{more}", first.join(", "))
}

/// Returns the name at the end of a `SQLite` message, without qualifier and quotes.
pub(in crate::query) fn extract_unknown_name(message: &str) -> &str {
    let name = message.rsplit(": ").next().unwrap_or_default();
    name.rsplit('.').next().unwrap_or(name).trim_matches('"')
}
