//! JSON schema of an answer.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use hqdl_spec::{Column, Echo, Expansion};

/// Maximum number of values in all enums of a schema together (`OpenAI`'s limit for strict
/// schemas).
const MAX_ENUM_VALUES: usize = 1000;
/// Maximum number of characters in the values of these enums.
const MAX_ENUM_CHARS: usize = 15_000;

/// Returns the JSON schema that an endpoint can enforce on its answer. Value lists become enums as
/// far as `OpenAI`'s limits for strict schemas allow.
pub(super) fn build_answer_schema(
    expansion: &Expansion,
    requested: &[&Column],
    echo: Echo,
) -> Json {
    let cells = build_cells_schema(requested);
    let key_count = expansion.key.names().len();
    let key = json!({ "type": "array", "items": { "type": ["string", "number", "null"] }, "description": format!("the {key_count} key values of the row") });
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

/// Limits each list in an object to the number of its options. Returns the number of such lists.
pub(super) fn limit_lists(schema: &mut Arc<Json>) -> u64 {
    let mut limited = schema.as_ref().clone();
    let members = limited["properties"].as_object_mut().into_iter().flat_map(Map::values_mut);
    let mut count = 0;
    for member in members {
        if let Some(options) = member["items"]["enum"].as_array().map(Vec::len) {
            member["maxItems"] = options.into();
            count += 1;
        }
    }
    *schema = Arc::new(limited);
    count
}

/// Returns the schema of an object with a member for every column.
pub(super) fn build_cells_schema(requested: &[&Column]) -> Json {
    let mut values_left = MAX_ENUM_VALUES;
    let mut chars_left = MAX_ENUM_CHARS;
    let mut properties = serde_json::Map::new();
    for column in requested {
        // An option of a row is a text of its list, whatever its type.
        let type_name = column.one_of.map_or_else(|| column.kind.json_type(), |_| "string");
        let mut item_schema = json!({ "type": type_name });
        if let Some(list) = column.values.as_ref().filter(|l| !l.open && type_name == "string") {
            let chars: usize = list.values.iter().map(String::len).sum();
            if list.values.len() < values_left && chars < chars_left {
                values_left -= list.values.len() + 1;
                chars_left -= chars;
                item_schema = json!({ "type": type_name, "enum": list.values });
            }
        }
        let cell_schema = if column.many.is_some() {
            // A missing item is null, so that the other items keep their positions.
            let item = if column.keeps_items {
                json!({ "anyOf": [item_schema, { "type": "null" }] })
            } else {
                item_schema
            };
            json!({ "type": ["array", "null"], "items": item })
        } else {
            json!({ "anyOf": [item_schema, { "type": "null" }] })
        };
        properties.insert(column.name.clone(), cell_schema);
    }
    let required: Vec<&String> = properties.keys().collect();
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}
