//! JSON schema of an answer.

use serde_json::{Value as Json, json};

use hqdl_spec::{Column, Echo, Expansion};

/// Maximum number of values in all enums of a schema (`OpenAI`'s limit for strict schemas).
const SCHEMA_VALUES: usize = 1000;
/// Maximum number of characters of those values.
const SCHEMA_CHARS: usize = 15_000;

/// Returns the JSON schema that an endpoint can enforce on its answer. Value lists are enums as far
/// as `OpenAI`'s limits for strict schemas allow.
pub(super) fn schema(expansion: &Expansion, asked: &[&Column], echo: Echo) -> Json {
    let cells = cells(asked);
    let keys = expansion.key.names().len();
    let key = json!({ "type": "array", "items": { "type": ["string", "number", "null"] }, "description": format!("the {keys} key values of the row") });
    let (properties, required) = match echo {
        Echo::Short => {
            (json!({ "row": { "type": "string" }, "cells": cells }), json!(["row", "cells"]))
        }
        Echo::Full => (
            json!({ "row": { "type": "integer" }, "key": key, "cells": cells }),
            json!(["row", "key", "cells"]),
        ),
    };
    let row = json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": { "rows": { "type": "array", "items": row } },
        "required": ["rows"],
        "additionalProperties": false,
    })
}

/// Returns the schema of an object with a member for every column.
pub(super) fn cells(asked: &[&Column]) -> Json {
    let mut values_left = SCHEMA_VALUES;
    let mut chars_left = SCHEMA_CHARS;
    let mut properties = serde_json::Map::new();
    for column in asked {
        let kind = column.kind.json();
        let mut one = json!({ "type": kind });
        if let Some(list) = column.values.as_ref().filter(|l| !l.open && kind == "string") {
            let chars: usize = list.values.iter().map(String::len).sum();
            if list.values.len() < values_left && chars < chars_left {
                values_left -= list.values.len() + 1;
                chars_left -= chars;
                one = json!({ "type": kind, "enum": list.values });
            }
        }
        let cell = if column.many.is_some() {
            // A missing item keeps its position as null.
            let item = if column.keeps_items {
                json!({ "anyOf": [one, { "type": "null" }] })
            } else {
                one
            };
            json!({ "type": ["array", "null"], "items": item })
        } else {
            json!({ "anyOf": [one, { "type": "null" }] })
        };
        properties.insert(column.name.clone(), cell);
    }
    let required: Vec<&String> = properties.keys().collect();
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}
