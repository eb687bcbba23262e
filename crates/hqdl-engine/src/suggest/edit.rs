//! Formats suggestions as TOML and inserts them into a spec. Existing text keeps its comments and
//! layout.

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::{BoundQuestion, NewColumn, Suggestions};

/// Maximum length of a one-line array, in bytes; longer arrays get one item per line.
const LINE: usize = 90;

/// Additions to a spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added {
    /// New columns: expansion and name.
    pub columns: Vec<(String, String)>,
    /// New questions of existing columns: expansion, column, question.
    pub questions: Vec<(String, String, String)>,
}

impl Added {
    /// Returns true if nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.questions.is_empty()
    }
}

/// Reasons why a spec cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The text is not valid TOML.
    #[error("{0}")]
    Toml(#[from] toml_edit::TomlError),
    /// The expansion is written inline, so no table can be added.
    #[error("expansion `{0}` is not written as [[expansion]] and [[expansion.column]]")]
    Inline(String),
}

/// Formats a column as TOML.
#[must_use]
pub fn toml(column: &NewColumn) -> String {
    let mut columns = ArrayOfTables::new();
    columns.push(table(column));
    let mut expansion = Table::new();
    expansion.set_implicit(true);
    expansion["column"] = Item::ArrayOfTables(columns);
    let mut document = DocumentMut::new();
    document["expansion"] = Item::Table(expansion);
    document.to_string().trim_start().to_owned()
}

/// Formats a bound question as TOML.
#[must_use]
pub fn question(bound: &BoundQuestion) -> String {
    asked(bound).to_string().trim().to_owned()
}

/// Returns the spec's text with all suggestions added. Of questions that differ only in type or
/// list, only the first is added.
///
/// # Errors
/// Returns [`EditError`] if the text cannot be edited.
pub fn write(text: &str, all: &Suggestions) -> Result<(String, Added), EditError> {
    let mut document: DocumentMut = text.parse()?;
    let mut added = Added::default();
    let mut seen: Vec<(usize, Vec<String>)> = Vec::new();
    for bound in all.bound.iter().filter(|b| !b.in_spec) {
        let inline = || EditError::Inline(bound.expansion.clone());
        let columns = columns(&mut document, bound.at).ok_or_else(inline)?;
        let column = columns.get_mut(bound.column).ok_or_else(inline)?;
        let name = column.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
        let questions = column.entry("questions").or_insert_with(|| value(Array::new()));
        let questions = questions.as_array_mut().ok_or_else(inline)?;
        append(questions, asked(bound));
        seen.push((bound.at, crate::routing::question::normal(&bound.binding.ask)));
        added.questions.push((bound.expansion.clone(), name, bound.binding.ask.clone()));
    }
    for suggestion in &all.questions {
        let Ok(joins) = suggestion.writable() else { continue };
        let same = (joins.at, crate::routing::question::normal(&suggestion.question));
        if seen.contains(&same) {
            continue;
        }
        seen.push(same);
        let inline = || EditError::Inline(joins.expansion.clone());
        columns(&mut document, joins.at).ok_or_else(inline)?.push(table(&suggestion.column));
        added.columns.push((joins.expansion.clone(), suggestion.column.name.clone()));
    }
    if added.is_empty() {
        return Ok((text.to_owned(), added));
    }
    let mut written = document.to_string();
    if text.contains("\r\n") {
        written = written.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    Ok((written, added))
}

/// Returns the columns of an expansion.
fn columns(document: &mut DocumentMut, at: usize) -> Option<&mut ArrayOfTables> {
    let expansion = document.get_mut("expansion")?.as_array_of_tables_mut()?.get_mut(at)?;
    let columns = expansion.entry("column");
    columns.or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new())).as_array_of_tables_mut()
}

fn table(column: &NewColumn) -> Table {
    let mut table = Table::new();
    table["name"] = value(&column.name);
    table["type"] = value(&column.kind);
    table["about"] = value(&column.about);
    if let Some(name) = &column.many {
        let mut many = InlineTable::new();
        many.insert("table", name.into());
        many.insert("column", "value".into());
        table["many"] = value(many);
    }
    if let Some(values) = &column.values {
        table["values"] = value(array(values));
    }
    table["questions"] = value(array(std::slice::from_ref(&column.question)));
    table.decor_mut().set_prefix("\n");
    table
}

fn array(values: &[String]) -> Array {
    let mut array: Array = values.iter().collect();
    if array.to_string().len() > LINE {
        for item in array.iter_mut() {
            item.decor_mut().set_prefix("\n  ");
        }
        array.set_trailing_comma(true);
        array.set_trailing("\n");
    }
    array
}

/// Formats a question of a column. Includes its SQL, unless the answer is the column itself.
fn asked(bound: &BoundQuestion) -> Value {
    let ask = bound.binding.ask.as_str();
    let Some(sql) = &bound.binding.sql else { return ask.into() };
    let mut table = InlineTable::new();
    table.insert("ask", ask.into());
    table.insert("sql", sql.as_str().into());
    Value::InlineTable(table)
}

/// Appends an item and keeps the layout of the array.
fn append(array: &mut Array, mut item: Value) {
    let prefix = array.iter().last().and_then(|last| last.decor().prefix()?.as_str());
    let Some(prefix) = prefix.filter(|p| p.contains('\n')).map(str::to_owned) else {
        array.push(item);
        return;
    };
    let indent = prefix.rsplit('\n').next().unwrap_or_default();
    // Keep a trailing comment after the item it belongs to.
    let said = array.trailing().as_str().unwrap_or_default().trim_end().to_owned();
    let ends = array.trailing().as_str().is_some_and(|t| t.contains('\n'));
    let said = if array.trailing_comma() { said } else { String::new() };
    item.decor_mut().set_prefix(format!("{said}\n{indent}"));
    if array.trailing_comma() && ends {
        array.set_trailing("\n");
    }
    array.push_formatted(item);
}
