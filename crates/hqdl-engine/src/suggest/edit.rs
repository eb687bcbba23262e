//! Formats suggestions as TOML and inserts them into a spec. Existing text keeps its comments and
//! layout.

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::{BoundQuestion, NewColumn, Suggestions};
use hqdl_spec::file::ExampleTable;

/// Maximum length of a one-line array, in bytes; longer arrays get one item per line.
const MAX_LINE_BYTES: usize = 90;

/// Additions to a spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Additions {
    /// New columns, as pairs of the expansion's name and the column's name.
    pub columns: Vec<(String, String)>,
    /// New questions for existing columns, each with the names of its expansion and column.
    pub questions: Vec<(String, String, String)>,
}

impl Additions {
    /// Returns true if nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.questions.is_empty()
    }
}

/// Reason why a spec cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The text is not valid TOML.
    #[error("{0}")]
    Toml(#[from] toml_edit::TomlError),
    /// The expansion is written inline, so no table can be added.
    #[error("expansion `{0}` is not written as [[expansion]] and [[expansion.column]]")]
    Inline(String),
    /// The examples are written inline, so no example can be added.
    #[error("the examples are not written as [[example]]")]
    InlineExample,
}

/// Formats a column as TOML.
#[must_use]
pub fn format_column_toml(column: &NewColumn) -> String {
    let mut columns = ArrayOfTables::new();
    columns.push(build_column_table(column));
    let mut expansion = Table::new();
    expansion.set_implicit(true);
    expansion["column"] = Item::ArrayOfTables(columns);
    let mut document = DocumentMut::new();
    document["expansion"] = Item::Table(expansion);
    document.to_string().trim_start().to_owned()
}

/// Formats a bound question as TOML.
#[must_use]
pub fn format_question_toml(bound_question: &BoundQuestion) -> String {
    to_question_value(bound_question).to_string().trim().to_owned()
}

/// Returns the spec's text with all suggestions added. If several suggestions have the same
/// question and differ only in type or value list, adds only the first.
///
/// # Errors
/// Returns [`EditError`] if the text cannot be edited.
pub fn add_suggestions(
    text: &str,
    suggestions: &Suggestions,
) -> Result<(String, Additions), EditError> {
    let mut document: DocumentMut = text.parse()?;
    let mut additions = Additions::default();
    let mut seen: Vec<(usize, Vec<String>)> = Vec::new();
    for bound_question in suggestions.bound_questions.iter().filter(|b| !b.in_spec) {
        let inline_error = || EditError::Inline(bound_question.expansion.clone());
        let columns = get_or_insert_columns(&mut document, bound_question.expansion_index)
            .ok_or_else(inline_error)?;
        let column = columns.get_mut(bound_question.column).ok_or_else(inline_error)?;
        let name = column.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
        let questions = column.entry("questions").or_insert_with(|| value(Array::new()));
        let questions = questions.as_array_mut().ok_or_else(inline_error)?;
        append_item(questions, to_question_value(bound_question));
        seen.push((
            bound_question.expansion_index,
            crate::routing::question::normalize_question(&bound_question.binding.ask),
        ));
        additions.questions.push((
            bound_question.expansion.clone(),
            name,
            bound_question.binding.ask.clone(),
        ));
    }
    for suggestion in &suggestions.questions {
        let Ok(joins) = suggestion.check_writable() else { continue };
        let key = (
            joins.expansion_index,
            crate::routing::question::normalize_question(&suggestion.question),
        );
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let inline_error = || EditError::Inline(joins.expansion.clone());
        get_or_insert_columns(&mut document, joins.expansion_index)
            .ok_or_else(inline_error)?
            .push(build_column_table(&suggestion.column));
        additions.columns.push((joins.expansion.clone(), suggestion.column.name.clone()));
    }
    if additions.is_empty() {
        return Ok((text.to_owned(), additions));
    }
    Ok((format_document(&document, text), additions))
}

/// Returns the spec's text with an example added. Replaces an existing example with the same
/// question.
///
/// # Errors
/// Returns [`EditError`] if the text cannot be edited.
pub fn add_example(text: &str, example: &ExampleTable) -> Result<String, EditError> {
    let mut document: DocumentMut = text.parse()?;
    let examples = document.entry("example");
    let examples = examples.or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let examples = examples.as_array_of_tables_mut().ok_or(EditError::InlineExample)?;
    let is_same = |table: &Table| {
        table.get("question").and_then(Item::as_str) == Some(example.question.as_str())
    };
    let existing = examples.iter().position(is_same);
    match existing.and_then(|at| examples.get_mut(at)) {
        Some(table) => table["sql"] = Item::Value(to_sql_value(&example.sql, text)),
        None => {
            let mut table = Table::new();
            table["question"] = value(&example.question);
            table["sql"] = Item::Value(to_sql_value(&example.sql, text));
            table.decor_mut().set_prefix("\n");
            examples.push(table);
        }
    }
    Ok(format_document(&document, text))
}

/// Returns the name of the expansion with this source and key; `None` if the spec has no such
/// expansion.
///
/// # Errors
/// Returns [`EditError`] if the text is not TOML.
pub fn find_expansion(
    text: &str,
    source: &str,
    key: &[String],
) -> Result<Option<String>, EditError> {
    let document: DocumentMut = text.parse()?;
    Ok(locate_expansion(&document, source, key).map(|(_, name)| name))
}

/// Returns the position and the name of the expansion with this source and key.
fn locate_expansion(
    document: &DocumentMut,
    source: &str,
    key: &[String],
) -> Option<(usize, String)> {
    let is_same = |a: Option<&str>, b: &str| a.is_some_and(|a| a.trim().eq_ignore_ascii_case(b));
    let has_key = |expansion: &Table| {
        let names = expansion.get("key").and_then(Item::as_array);
        names.is_some_and(|names| {
            names.len() == key.len() && names.iter().zip(key).all(|(a, b)| is_same(a.as_str(), b))
        })
    };
    let expansions = document.get("expansion")?.as_array_of_tables()?;
    let is_own = |e: &Table| is_same(e.get("source").and_then(Item::as_str), source) && has_key(e);
    let at = expansions.iter().position(is_own)?;
    Some((at, expansions.get(at)?.get("name")?.as_str()?.to_owned()))
}

/// Adds a column to the expansion with this source and key, or to a new expansion if there is none.
/// Returns the spec's text and the name of the expansion. `taken` contains names that a new
/// expansion must not have.
///
/// # Errors
/// Returns [`EditError`] if the text cannot be edited.
pub fn add_column(
    text: &str,
    (source, key): (&str, &[String]),
    taken: &[String],
    column: impl Fn(&str) -> NewColumn,
) -> Result<(String, String), EditError> {
    let mut document: DocumentMut = text.parse()?;
    if let Some((at, name)) = locate_expansion(&document, source, key) {
        let columns = get_or_insert_columns(&mut document, at);
        let columns = columns.ok_or_else(|| EditError::Inline(name.clone()))?;
        columns.push(build_column_table(&column(&name)));
        return Ok((format_document(&document, text), name));
    }
    let inline_error = || EditError::Inline("a new one".to_owned());
    let expansions =
        document.entry("expansion").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let expansions = expansions.as_array_of_tables_mut().ok_or_else(inline_error)?;
    let own = expansions.iter().filter_map(|e| e.get("name")?.as_str());
    let used: Vec<String> =
        own.chain(taken.iter().map(String::as_str)).map(str::to_lowercase).collect();
    let mut name = format!("llm_{source}");
    let mut number = 1;
    while used.contains(&name.to_lowercase()) {
        number += 1;
        name = format!("llm_{source}_{number}");
    }
    let mut columns = ArrayOfTables::new();
    columns.push(build_column_table(&column(&name)));
    let mut expansion = Table::new();
    expansion["name"] = value(&name);
    expansion["source"] = value(source);
    expansion["key"] = value(to_toml_array(key));
    expansion["column"] = Item::ArrayOfTables(columns);
    if !text.is_empty() {
        expansion.decor_mut().set_prefix("\n");
    }
    expansions.push(expansion);
    Ok((format_document(&document, text), name))
}

/// Returns a query as a TOML string. If the spec has Windows line endings, uses a one-line string,
/// because the line endings would otherwise become part of the query.
fn to_sql_value(sql: &str, text: &str) -> Value {
    let has_windows_ends = text.contains("\r\n") && sql.contains('\n');
    // A JSON string is also a TOML string.
    let one_line = serde_json::Value::from(sql).to_string();
    one_line.parse().ok().filter(|_| has_windows_ends).unwrap_or_else(|| sql.into())
}

/// Formats an edited document with the line endings of the original text.
fn format_document(document: &DocumentMut, text: &str) -> String {
    let edited = document.to_string();
    if text.contains("\r\n") && text.matches("\r\n").count() == text.matches('\n').count() {
        return edited.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    edited
}

fn get_or_insert_columns(document: &mut DocumentMut, index: usize) -> Option<&mut ArrayOfTables> {
    let expansion = document.get_mut("expansion")?.as_array_of_tables_mut()?.get_mut(index)?;
    let columns = expansion.entry("column");
    columns.or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new())).as_array_of_tables_mut()
}

fn build_column_table(column: &NewColumn) -> Table {
    let mut table = Table::new();
    table["name"] = value(&column.name);
    table["type"] = value(&column.data_type);
    table["about"] = value(&column.about);
    if let Some(name) = &column.many {
        let mut many = InlineTable::new();
        many.insert("table", name.into());
        many.insert("column", "value".into());
        table["many"] = value(many);
    }
    if let Some(values) = &column.values {
        table["values"] = value(to_toml_array(values));
    }
    table["questions"] = value(to_toml_array(std::slice::from_ref(&column.question)));
    table.decor_mut().set_prefix("\n");
    table
}

fn to_toml_array(values: &[String]) -> Array {
    let mut array: Array = values.iter().collect();
    if array.to_string().len() > MAX_LINE_BYTES {
        for item in array.iter_mut() {
            item.decor_mut().set_prefix("\n  ");
        }
        array.set_trailing_comma(true);
        array.set_trailing("\n");
    }
    array
}

/// Formats a column's question as TOML. Includes the question's SQL, unless the answer is the
/// column itself.
fn to_question_value(bound_question: &BoundQuestion) -> Value {
    let ask = bound_question.binding.ask.as_str();
    let Some(sql) = &bound_question.binding.sql else { return ask.into() };
    let mut table = InlineTable::new();
    table.insert("ask", ask.into());
    table.insert("sql", sql.as_str().into());
    Value::InlineTable(table)
}

/// Appends an item to an array and keeps the array's layout.
fn append_item(array: &mut Array, mut item: Value) {
    let prefix = array.iter().last().and_then(|last| last.decor().prefix()?.as_str());
    let Some(prefix) = prefix.filter(|p| p.contains('\n')).map(str::to_owned) else {
        array.push(item);
        return;
    };
    let indent = prefix.rsplit('\n').next().unwrap_or_default();
    // Keep a trailing comment next to the item that it belongs to.
    let trailing_comment = array.trailing().as_str().unwrap_or_default().trim_end().to_owned();
    let ends_line = array.trailing().as_str().is_some_and(|t| t.contains('\n'));
    let trailing_comment = if array.trailing_comma() { trailing_comment } else { String::new() };
    item.decor_mut().set_prefix(format!("{trailing_comment}\n{indent}"));
    if array.trailing_comma() && ends_line {
        array.set_trailing("\n");
    }
    array.push_formatted(item);
}
