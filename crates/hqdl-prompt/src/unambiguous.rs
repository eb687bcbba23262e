//! A JSON parser that drops object members with two different values: a reply with `{"answer":
//! true, "answer": false}` has no answer. `serde_json` alone would return the last value.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

/// Maximum number of malformed objects per text, which limits the time spent on a text full of
/// braces.
pub(super) const MAX_ATTEMPTS: usize = 20_000;

/// A JSON value without contradictory members.
pub struct UnambiguousJson(pub Json);

impl<'de> Deserialize<'de> for UnambiguousJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut elements = Vec::new();
        while let Some(UnambiguousJson(item)) = items.next_element()? {
            elements.push(item);
        }
        Ok(Json::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut object = Map::new();
        let mut contradictory = HashSet::new();
        while let Some((name, UnambiguousJson(value))) =
            members.next_entry::<String, UnambiguousJson>()?
        {
            if object.get(&name).is_some_and(|earlier| *earlier != value) {
                contradictory.insert(name);
            } else {
                object.insert(name, value);
            }
        }
        object.retain(|name, _| !contradictory.contains(name));
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_with_two_values_has_none() {
        for (text, expected) in [
            (r#"{"a":1,"a":2,"b":3}"#, r#"{"b":3}"#),
            (r#"{"a":1,"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":1,"a":2,"a":1}"#, "{}"),
            (
                r#"[{"a":{"x":null,"x":0}},-1.5,"t",18446744073709551615]"#,
                r#"[{"a":{}},-1.5,"t",18446744073709551615]"#,
            ),
        ] {
            let UnambiguousJson(parsed) = serde_json::from_str(text).unwrap();
            assert_eq!(parsed.to_string(), expected, "{text}");
        }
    }
}
