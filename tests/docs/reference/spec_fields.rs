//! Generates docs/reference/spec.md: every field of a spec with type, range, default and example.

use std::fmt::Write as _;

use hqdl::spec::file::{
    AskTable, ColumnTable, DatabaseTable, EmbeddingsTable, EscalateTable, EvidenceTable,
    ExampleTable, ExpansionTable, KindTable, LimitsTable, ManyTable, ModelTable, OtherModelTable,
    QuestionTable, RoutingTable, ShotsTable, SourceTable, ValuesTable,
};
use hqdl::spec::ingredients::{IngredientTable, SearchTable};
use hqdl::spec::{LongPromptPrice, PriceTable};
use serde_json::Value as Json;

use super::{cell, hold};

/// Describes the type of a field.
pub fn kind(schema: &Json, defs: &Json) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap();
        let def = &defs[name];
        return if def["properties"].is_object() {
            format!("[{name}](#{})", anchor(name))
        } else {
            kind(def, defs)
        };
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[choice].as_array() {
            let kinds: Vec<String> =
                choices.iter().map(|c| kind(c, defs)).filter(|k| k != "null").collect();
            return kinds.join(" or ");
        }
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> =
            values.iter().filter(|v| !v.is_null()).map(|v| format!("`{v}`")).collect();
        return values.join(", ");
    }
    let of = match &schema["type"] {
        Json::Array(kinds) => {
            kinds.iter().filter_map(Json::as_str).find(|k| *k != "null").unwrap_or("any")
        }
        kind => kind.as_str().unwrap_or("any"),
    };
    match of {
        "array" => format!("list of {}", kind(&schema["items"], defs)),
        "object" => match schema.get("additionalProperties") {
            Some(values) if values.is_object() => format!("table of {}", kind(values, defs)),
            _ => "table".to_owned(),
        },
        other => other.to_owned(),
    }
}

/// Returns the range that the schema allows.
fn range(schema: &Json) -> String {
    let (least, most) = (&schema["minimum"], &schema["maximum"]);
    match (least.is_null(), most.is_null()) {
        (true, true) => String::new(),
        (false, true) => format!(" ≥ {least}"),
        (true, false) => format!(" ≤ {most}"),
        (false, false) => format!(" {least} to {most}"),
    }
}

fn anchor(name: &str) -> String {
    name.to_lowercase()
}

/// Splits the description of a field into the meaning and the default, as in
/// `Factor for batches. Default: 0.5.`
fn split_default(about: &str) -> (String, String) {
    let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = regex::Regex::new(r" Default: (.+?)\.(?: |$)").unwrap();
    match named.captures(&about) {
        Some(found) => (about.replacen(&found[0], " ", 1).trim().to_owned(), found[1].to_owned()),
        None => (about, String::new()),
    }
}

#[test]
fn a_default_in_a_description_ends_with_its_sentence() {
    let (about, default) = split_default("Factor for batches. Default: 0.5, as at OpenAI. More.");
    assert_eq!((&*about, &*default), ("Factor for batches. More.", "0.5, as at OpenAI"));
}

/// Returns the examples of fields by table; see the file.
fn spec_examples() -> toml::Table {
    include_str!("spec_examples.toml").parse().unwrap()
}

/// Each table of the examples can be parsed as its type.
#[test]
fn examples_of_fields_are_valid() {
    macro_rules! read {
        ($tables:ident: $($kind:ident),*) => {
            $($tables.remove(stringify!($kind)).unwrap().try_into::<$kind>().unwrap();)*
        };
    }
    let mut tables = spec_examples();
    read!(tables: DatabaseTable, ModelTable, OtherModelTable, PriceTable, LimitsTable, EmbeddingsTable,
        RoutingTable, ExpansionTable, SourceTable, ShotsTable, ColumnTable, ValuesTable, ManyTable,
        QuestionTable, IngredientTable, SearchTable, KindTable, LongPromptPrice, AskTable, ExampleTable,
        EvidenceTable, EscalateTable);
    assert!(tables.is_empty(), "{tables:?}");
}

/// Returns the example of a field as TOML; empty if the field is a table.
fn example(examples: &toml::Table, table: &str, name: &str, kind: &str) -> String {
    match examples.get(table).and_then(|fields| fields.get(name)) {
        Some(value) => format!("`{value}`"),
        None if kind.contains("](#") => String::new(),
        None => panic!("tests/docs/reference/spec_examples.toml has no example of {table}.{name}"),
    }
}

fn fields(text: &mut String, table: &str, schema: &Json, defs: &Json) {
    let examples = spec_examples();
    let Some(properties) = schema["properties"].as_object() else { return };
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    text.push_str("| field | type | default | meaning | example |\n|---|---|---|---|---|\n");
    for (name, field) in properties {
        let kind = kind(field, defs);
        let default = match &field["default"] {
            _ if required.contains(&name.as_str()) => "required".to_owned(),
            Json::Null => String::new(),
            value => format!("`{value}`"),
        };
        let about = field["description"].as_str().unwrap_or_default();
        let (about, computed) = split_default(about);
        let default = if default.is_empty() { computed } else { default };
        let _ = writeln!(
            text,
            "| `{name}` | {}{} | {} | {} | {} |",
            cell(&kind),
            range(field),
            cell(&default),
            cell(&about),
            cell(&example(&examples, table, name, &kind)),
        );
    }
    text.push('\n');
}

#[test]
fn every_field_of_a_spec_is_on_the_page() {
    let schema: Json = serde_json::to_value(hqdl::spec::file::json_schema()).unwrap();
    let defs = &schema["$defs"];
    let mut text = String::from(
        "# Fields of a spec\n\nA spec is a TOML file. `hqdl check --schema` prints these fields as a JSON Schema, \
         for editors.\n\n## Top level\n\n",
    );
    fields(&mut text, "SpecFile", &schema, defs);
    for (name, def) in defs.as_object().unwrap() {
        if def["properties"].is_object() {
            let about = def["description"].as_str().unwrap_or_default();
            let _ = write!(text, "## {name}\n\n{}\n\n", cell(about));
            fields(&mut text, name, def, defs);
        }
    }
    hold("spec.md", &text);
}
