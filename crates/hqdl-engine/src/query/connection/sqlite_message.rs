//! Explains `SQLite`'s messages about a query: replaces the names of hqdl's own functions with
//! those of ingredients, and adds hints.

use std::ops::Range;

use crate::query::request::dialect::Dialect;
use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_sql::blendsql::ingredients::{self, IngredientRef};
use hqdl_sql::blendsql::runtime::{
    BEST_AGGREGATE, CLUSTERS_AGGREGATE, Function, NEAREST_AGGREGATE, SEARCH_AGGREGATE,
};
use hqdl_sql::blendsql::{NEAREST, SEARCH};
use hqdl_sql::suql;
use hqdl_values::problem::find_nearest;

/// Ingredients that are written as aggregates, with the functions that replace them.
pub(in crate::query) const AGGREGATES: [(&str, &str); 5] = [
    ("LLMTopK", BEST_AGGREGATE),
    (NEAREST, NEAREST_AGGREGATE),
    (SEARCH, SEARCH_AGGREGATE),
    ("LLMDedup", CLUSTERS_AGGREGATE),
    ("LLMReduce", Function::Texts.name()),
];

/// Parts of messages, and the hints for them.
const HINTS: [(&str, &str); 19] = [
    ("ends too early", "complete it, as in SELECT name FROM city"),
    (
        "unrecognized token: \":\"",
        "`value::type` is PostgreSQL syntax: use `--dialect suql`, or CAST(value AS type)",
    ),
    ("unrecognized token: \"'", "close the text with a `'`; write a `'` inside it twice"),
    ("unrecognized token", "remove it, or write it in a text: '…'"),
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
    ("BY term out of range", "write the position of a result column, counted from 1, or its name"),
    ("different numbers of columns", "return the same number of columns from each SELECT"),
    ("LIMIT or OFFSET is not", "write a whole number after LIMIT and OFFSET"),
    ("sub-select returns", "select one column in the subquery"),
    ("the query in `", "select one column in it"),
    ("integer overflow", "compute it as a REAL, as in sum(CAST(c AS REAL)) or total(c)"),
    ("malformed JSON", "skip other values, as in CASE WHEN json_valid(c) THEN … END"),
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
    (
        "come from different models",
        "compare texts, or embed both values with the model of [embeddings]",
    ),
];

/// Message for an incomplete query.
pub(in crate::query) const ENDS_TOO_EARLY: &str = "the query ends too early";

/// Parts of `SQLite`'s messages, and their replacements in hqdl's messages.
const OWN_MESSAGES: [(&str, &str); 3] = [
    ("incomplete input", ENDS_TOO_EARLY),
    (
        "the same number of result columns",
        "the combined SELECTs return different numbers of columns",
    ),
    // `SQLite` reports this for no other part of a query.
    ("datatype mismatch", "LIMIT or OFFSET is not a whole number"),
];

/// Replaces the names of hqdl's functions and tables in a message with the names of the ingredients
/// that the query uses.
pub(in crate::query) fn restore_ingredient_names(message: &str) -> String {
    // `table hq_ranked has 2 values for 1 columns`
    if let Some((table, counts)) =
        message.strip_prefix("table hq_").and_then(|rest| rest.split_once(" has "))
        && let Some((count, _)) = counts.split_once(" values for 1 ")
    {
        let ingredient = match table {
            "ranked" => "LLMTopK",
            "values" => NEAREST,
            _ => "LLMReduce",
        };
        return format!("the query in `{ingredient}` returns {count} columns");
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
            let ingredient = AGGREGATES.iter().find(|(_, function)| *function == name);
            let name = ingredient.map_or(name, |(ingredient, _)| ingredient);
            format!("the aggregate `{name}` is not allowed here")
        }
        None => message.to_owned(),
    }
}

/// A message from `SQLite` about a query.
pub(in crate::query) struct SqliteMessage<'m> {
    /// Message, with the names of ingredients.
    pub message: &'m str,
    /// Query that `SQLite` read.
    pub sql: &'m str,
    /// Span of the error in the query.
    pub span: Option<&'m Range<usize>>,
    pub database: &'m Database,
}

impl SqliteMessage<'_> {
    /// Returns a hint for the user; empty if there is none.
    pub(in crate::query) fn suggest_fix(&self) -> String {
        match self.message.split_once(": ") {
            Some(("no such function", name)) => return suggest_function(name),
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
        "correct the SQL here, or just before".to_owned()
    }

    /// Describes the numbers of arguments that a function accepts.
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
        // `SQLite` rejects `t.c` although the table `t` has a column `c`.
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
        match (find_nearest(misspelt, known.iter().map(String::as_str)), table) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, Some((table, _))) if database.table_columns(table).is_some() => {
                format!("`{table}` has the columns {}", format_first_names(&known))
            }
            (None, Some((table, _))) => {
                format!("`{table}` must be a table or an alias in FROM that has this column")
            }
            (None, None) if is_table && known.is_empty() => "the database has no table".to_owned(),
            (None, None) if is_table => format!("the tables are {}", format_first_names(&known)),
            (None, None) if database.table_columns(misspelt).is_some() => {
                format!(
                    "`{misspelt}` is a table: name a column of it, or pass its rows: (SELECT … FROM {misspelt})"
                )
            }
            (None, None) => {
                format!("no table in FROM has it; if it is a text, write '{misspelt}'")
            }
        }
    }
}

/// Returns a hint for an unknown function.
fn suggest_function(name: &str) -> String {
    let is = |i: &IngredientRef| i.name().eq_ignore_ascii_case(name);
    if let Some(found) = ingredients::all_ingredients().into_iter().find(is) {
        return format!("write the call in double braces: {{{{{}(…)}}}}", found.name());
    }
    suggest_dialect(name).unwrap_or_else(|| {
        "use a function of SQLite, or an ingredient: {{…}}; docs/reference/queries.md lists them"
            .to_owned()
    })
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
    // The prompt of a Snowflake function is read first.
    if name == "prompt" {
        names.push(Dialect::Snowflake.name());
    }
    let flags: Vec<String> = names.iter().map(|name| format!("`--dialect {name}`")).collect();
    (!flags.is_empty())
        .then(|| format!("`{name}` is a function of another dialect: use {}", flags.join(" or ")))
}

/// Returns the first names of a list, followed by `…` if there are more.
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
