//! Describes a database for a model that writes SQL. The description of a table contains its
//! columns, keys, sample rows and descriptions from the spec. Each part stays on one line, so that
//! no name or value can end the part early.

use std::collections::HashMap;

use crate::init::classify::{is_private, split_words};
use hqdl_database::Database;
use hqdl_spec::{Catalog, Expansion, SourceRows, Spec};
use hqdl_values::format::to_single_line;
use hqdl_values::key::quote_json;
use hqdl_values::sql::{quote_name, quote_text};
use hqdl_values::value::Value;

/// Number of sample rows per table.
const SAMPLE_ROWS: usize = 3;
/// Maximum length of a sample value, in characters.
const SAMPLE_CHARS: usize = 60;
/// Maximum number of allowed values that a column's description lists.
const LISTED_VALUES: usize = 20;
/// Maximum number of rows that a query about the schema returns.
const MAX_SCHEMA_ROWS: usize = 10_000;

/// A table or view, or an expansion that is not published.
#[derive(Debug, Clone)]
pub struct TableDescription {
    /// Name of the table.
    pub name: String,
    /// Whether the table is a view. The prompt does not include a view's rows, because reading them
    /// can be slow.
    pub is_view: bool,
    /// Columns with their declared types.
    pub columns: Vec<(String, String)>,
    /// Tables that the table's foreign keys refer to.
    pub references: Vec<String>,
    /// Definition, without values from the database.
    pub definition: String,
    /// Sample rows, one per line; empty if there are none.
    pub samples: String,
}

impl TableDescription {
    /// Returns the text to compare with questions.
    #[must_use]
    pub fn searchable_text(&self) -> String {
        let names = std::iter::once(&self.name).chain(self.columns.iter().map(|(name, _)| name));
        let words: Vec<String> = names.flat_map(|name| split_words(name)).collect();
        format!("{} {}", words.join(" "), self.definition)
    }

    /// Returns a shorter description that has only the names of the columns.
    #[must_use]
    pub fn format_outline(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| format_name(name)).collect();
        format!("{}({})\n", format_name(&self.name), names.join(", "))
    }
}

/// Reads the descriptions of all tables. Reads sample rows only if `shows_values` is set.
#[must_use]
pub fn read_table_descriptions(
    database: &Database,
    spec: &Spec,
    shows_values: bool,
) -> Vec<TableDescription> {
    let mut descriptions = Vec::new();
    let names = database.table_names();
    for name in &names {
        let Some(columns) = database.table_columns(name) else { continue };
        let columns: Vec<(String, String)> =
            columns.into_iter().map(|(c, kind)| (c, kind.unwrap_or_default())).collect();
        let keys = KeyDefinitions::read(database, name);
        let published = spec.expansions.iter().find(|e| e.name.eq_ignore_ascii_case(name));
        let mut definition = format_table_definition(name, &columns, &keys, published);
        if let Some(expansion) = published {
            definition.push_str(&describe_questions(expansion));
        }
        let is_view = keys.is_view;
        let samples = if shows_values && !is_view {
            format_sample_rows(database, name, &columns)
        } else {
            String::new()
        };
        let references = keys.foreign.into_iter().map(|(_, table, _)| table).collect();
        descriptions.push(TableDescription {
            name: name.clone(),
            is_view,
            columns,
            references,
            definition,
            samples,
        });
    }
    let is_published = |e: &&Expansion| names.iter().any(|n| n.eq_ignore_ascii_case(&e.name));
    for expansion in spec.expansions.iter().filter(|e| !is_published(e)) {
        let columns = expansion.columns.iter().map(|c| (c.name.clone(), c.kind.name().to_owned()));
        let tables = expansion.sources.iter().filter_map(|source| match &source.rows {
            SourceRows::Table(table) => Some(table.clone()),
            SourceRows::Select(_) => None,
        });
        descriptions.push(TableDescription {
            name: format!("model answers about {}", expansion.name),
            is_view: false,
            columns: columns.collect(),
            references: tables.collect(),
            definition: describe_unpublished_columns(expansion),
            samples: String::new(),
        });
    }
    descriptions
}

/// Keys of a table; empty for a table on a database server.
#[derive(Debug, Default)]
struct KeyDefinitions {
    primary: Vec<String>,
    /// Foreign keys: column, referenced table and referenced column.
    foreign: Vec<(String, String, String)>,
    is_view: bool,
}

impl KeyDefinitions {
    fn read(database: &Database, table: &str) -> Self {
        if database.server_url().is_some() {
            return Self::default();
        }
        let table = quote_text(table);
        let rows = |sql: String| -> Vec<Vec<String>> {
            let rows = database.select_rows(&sql, MAX_SCHEMA_ROWS).unwrap_or_default();
            let text = |v: &Value| v.to_text().unwrap_or_default().into_owned();
            rows.iter().map(|row| row.iter().map(text).collect()).collect()
        };
        let primary =
            rows(format!("SELECT name FROM pragma_table_info({table}) WHERE pk > 0 ORDER BY pk"));
        let foreign = rows(format!(
            "SELECT \"from\", \"table\", coalesce(\"to\", '') FROM pragma_foreign_key_list({table}) ORDER BY id, seq"
        ));
        let views =
            rows(format!("SELECT 1 FROM sqlite_schema WHERE type = 'view' AND name = {table}"));
        let foreign = foreign.into_iter().filter_map(|row| match row.as_slice() {
            [from, table, to] => Some((from.clone(), table.clone(), to.clone())),
            _ => None,
        });
        Self {
            primary: primary.into_iter().flatten().collect(),
            foreign: foreign.collect(),
            is_view: !views.is_empty(),
        }
    }
}

fn format_table_definition(
    name: &str,
    columns: &[(String, String)],
    keys: &KeyDefinitions,
    published: Option<&Expansion>,
) -> String {
    let mut text = String::new();
    if let Some(about) = published.map(|e| e.about.trim()).filter(|about| !about.is_empty()) {
        text.push_str(&format!("-- {}\n", to_single_line(about)));
    }
    let kind = if keys.is_view { "VIEW" } else { "TABLE" };
    text.push_str(&format!("CREATE {kind} {} (\n", format_name(name)));
    for (column, declared_type) in columns {
        let mut line = format!("  {}", format_name(column));
        if !declared_type.is_empty() {
            line.push_str(&format!(" {}", to_single_line(declared_type)));
        }
        if keys.primary == [column.clone()] {
            line.push_str(" PRIMARY KEY");
        }
        if let Some((_, table, to)) = keys.foreign.iter().find(|(from, ..)| from == column) {
            line.push_str(&format!(" REFERENCES {}", format_name(table)));
            if !to.is_empty() {
                line.push_str(&format!("({})", format_name(to)));
            }
        }
        line.push(',');
        let description = published.and_then(|e| e.columns.iter().find(|c| c.name == *column));
        if let Some(column) = description {
            line.push_str(&format!(" -- {}", describe_column(column)));
        }
        text.push_str(&line);
        text.push('\n');
    }
    if keys.primary.len() > 1 {
        let names: Vec<String> = keys.primary.iter().map(|name| format_name(name)).collect();
        text.push_str(&format!("  PRIMARY KEY ({})\n", names.join(", ")));
    }
    text.push_str(");\n");
    text
}

/// Describes a column of the spec: its meaning and its value list.
fn describe_column(column: &hqdl_spec::Column) -> String {
    let mut text = to_single_line(column.about.trim());
    if let Some(list) = &column.values {
        let values: Vec<String> =
            list.values.iter().take(LISTED_VALUES).map(|v| quote_json(v)).collect();
        let more = list.values.len().saturating_sub(LISTED_VALUES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text.push_str(&format!("; one of {}{more}", values.join(", ")));
    }
    if let Some(many) = &column.many {
        text.push_str(&format!("; its values are rows of {}", format_name(&many.table)));
    }
    text
}

/// Lists the questions that the columns of an expansion answer.
fn describe_questions(expansion: &Expansion) -> String {
    let mut text = String::new();
    for column in &expansion.columns {
        let questions: Vec<String> =
            column.bindings.iter().map(|binding| quote_json(binding.ask.trim())).collect();
        if !questions.is_empty() {
            let name = format_name(&column.name);
            text.push_str(&format!("-- {name} answers {}\n", questions.join(", ")));
        }
    }
    text
}

/// Describes the columns of an expansion that are not published yet.
fn describe_unpublished_columns(expansion: &Expansion) -> String {
    let key: Vec<String> = expansion.key.names().iter().map(|name| format_name(name)).collect();
    let source = expansion.sources.first().and_then(|source| match &source.rows {
        SourceRows::Table(table) => Some(format_name(table)),
        SourceRows::Select(_) => None,
    });
    let source = source.unwrap_or_else(|| "t".to_owned());
    let mut text = format!(
        "-- No table contains these columns. A call asks for them, about each {}. {}\n",
        key.join(", "),
        to_single_line(expansion.about.trim())
    );
    for column in &expansion.columns {
        let question = match column.bindings.first() {
            Some(binding) => binding.ask.trim().to_owned(),
            None => format!("{} ({})", column.name, column.about.trim()),
        };
        text.push_str(&format!(
            "-- {{{{LLMMap({}, {source}.{})}}}}: {}, {}\n",
            quote_text(&to_single_line(&question)),
            key.first().map_or("", String::as_str),
            column.kind.name(),
            describe_column(column)
        ));
    }
    text
}

/// Formats a few rows as JSON arrays. Columns with contact details or official identifiers of
/// persons are left out.
fn format_sample_rows(database: &Database, table: &str, columns: &[(String, String)]) -> String {
    let shown: Vec<&String> = columns
        .iter()
        .map(|(name, _)| name)
        .filter(|name| !is_private(&split_words(name)))
        .collect();
    if shown.is_empty() {
        return String::new();
    }
    let is_server = database.server_url().is_some();
    let value = |name: &&String| {
        let name = quote_name(name);
        if is_server {
            name
        } else {
            format!(
                "CASE typeof({name}) WHEN 'blob' THEN NULL WHEN 'text' THEN substr({name}, 1, {SAMPLE_CHARS}) ELSE {name} END"
            )
        }
    };
    let values: Vec<String> = shown.iter().map(value).collect();
    let sql = format!("SELECT {} FROM {}", values.join(", "), quote_name(table));
    let rows = database.select_rows(&sql, SAMPLE_ROWS).unwrap_or_default();
    if rows.is_empty() {
        return String::new();
    }
    let names: Vec<String> = shown.iter().map(|name| format_name(name)).collect();
    let is_all = shown.len() == columns.len();
    let of = if is_all { String::new() } else { format!(" of {}", names.join(", ")) };
    let mut text = format!("-- sample rows{of}:\n");
    for row in rows {
        let cells: Vec<String> = row.iter().map(format_value).collect();
        text.push_str(&format!("-- [{}]\n", cells.join(", ")));
    }
    text
}

fn format_value(value: &Value) -> String {
    match value {
        Value::Text(text) => quote_json(&text.chars().take(SAMPLE_CHARS).collect::<String>()),
        other => other.to_json().to_string(),
    }
}

/// Returns a name as SQL, quoted if necessary, on one line.
pub fn format_name(name: &str) -> String {
    let mut chars = name.chars();
    let is_plain = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_plain { name.to_owned() } else { to_single_line(&quote_name(name)) }
}

/// Returns the hash of the schema: the definitions of all tables, without their rows, and `shown`,
/// the other text and settings that determine what the model sees.
#[must_use]
pub fn hash_schema(descriptions: &[TableDescription], shown: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for description in descriptions {
        hasher.update(description.definition.as_bytes());
    }
    hasher.update(shown.as_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Returns a map from the lowercase name of each table to its position in `descriptions`.
#[must_use]
pub fn index_by_name(descriptions: &[TableDescription]) -> HashMap<String, usize> {
    descriptions
        .iter()
        .enumerate()
        .map(|(n, description)| (description.name.to_lowercase(), n))
        .collect()
}
