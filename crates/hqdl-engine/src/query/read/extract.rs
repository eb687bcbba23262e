//! Rewrites `LLMExtract` as one `LLMMap` per field of its schema. One request asks for all fields
//! of a value, and each field is stored as a separate fact.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMExtract('q', t.c, '{"a": "str"}')}}` | `json_object('a', {{LLMMap('q: a', t.c, return_type='str')}})` |
//! | `{{LLMExtract(…)}}.a` | `{{LLMMap('q: a', t.c, return_type='str')}}` |
//! | `{{LLMExtract(…)}}.*` | `{{LLMMap('q: a', t.c, return_type='str')}} AS "a"`, for each field |

use serde_json::{Map, Value as Json};

use crate::query::read::arguments::{
    ArgumentNames, BuiltInMacro, MEDIA, MacroNode, format_keyword_arguments,
};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::macros::{MacroSuffix, WrittenArgument};
use hqdl_sql::blendsql::{MacroSignature, ReturnType, Subject};
use hqdl_sql::{EditText, Edits};
use hqdl_values::Type;
use hqdl_values::format::{describe_json_error, format_name_list};
use hqdl_values::problem::find_nearest;
use hqdl_values::sql;

/// The macro `LLMExtract`.
pub(super) const EXTRACT: BuiltInMacro = BuiltInMacro {
    signature: MacroSignature {
        suffix: MacroSuffix::Field,
        ..MacroSignature::new(Subject::Value, true)
    },
    usage: Some((
        "{{LLMExtract('Facts about the film', t.text, '{\"title\": \"str\", \"year\": \"int\"}')}}.year",
        "a field of each row's text; without `.year` all fields as a JSON object, with `.*` as columns. \
     Keyword arguments: context, model, {media}",
    )),
    expand: |node, _| node.rewrite_extract(),
};

const QUESTION: ArgumentNames<'static> = &["question"];
const VALUE: ArgumentNames<'static> = &["value", "values"];
const SCHEMA: ArgumentNames<'static> = &["schema", "return_type"];
const OTHERS: [ArgumentNames<'static>; 3] = [&["context"], &["model"], MEDIA];

/// Members of a schema that do not restrict its values.
const ANNOTATIONS: [&str; 9] = [
    "$comment",
    "$id",
    "$schema",
    "additionalProperties",
    "default",
    "description",
    "examples",
    "required",
    "title",
];

/// A field of a schema.
struct ExtractedField {
    name: String,
    return_type: ReturnType,
    options: Option<Vec<Json>>,
    about: Option<String>,
}

impl MacroNode<'_> {
    /// Returns the edit that replaces an extraction, including the `.field` after it.
    fn rewrite_extract(&self) -> Result<Edits, QueryError> {
        let mut positional = self.written.arguments.iter().filter(|a| a.keyword.is_none());
        let has_question = positional.next().is_some_and(|a| a.text_content(self.text).is_some());
        let [question, value, schema, context, model, media] = if has_question {
            self.match_all_arguments([QUESTION, VALUE, SCHEMA, OTHERS[0], OTHERS[1], OTHERS[2]])?
        } else {
            let [value, schema, question, context, model, media] = self
                .match_all_arguments([VALUE, SCHEMA, QUESTION, OTHERS[0], OTHERS[1], OTHERS[2]])?;
            [question, value, schema, context, model, media]
        };
        let value = value.ok_or_else(|| self.missing_argument_error("a value"))?;
        let schema = schema.ok_or_else(|| self.missing_argument_error("a schema"))?;
        let instruction = question.map(|question| {
            let text = question.text_content(self.text);
            text.ok_or_else(|| self.missing_argument_error("a text as its question"))
        });
        let instruction = instruction.transpose()?;
        let others = format_keyword_arguments([
            (context, "context"),
            (model, "model"),
            (media, self.media_keyword(media)),
        ]);
        let arguments = EditText::concat([value.span().into(), others]);
        let fields = self.parse_fields(schema)?;
        let write = |field: &ExtractedField| field.to_call(instruction.as_deref(), &arguments);
        let mut edits = Edits::default();
        edits.replace(self.call.span.clone(), self.build_fields_sql(&fields, &write)?);
        Ok(edits)
    }

    /// Returns the SQL of a single field, of all fields as an object, or of all fields as result
    /// columns.
    fn build_fields_sql(
        &self,
        fields: &[ExtractedField],
        write: &dyn Fn(&ExtractedField) -> EditText,
    ) -> Result<EditText, QueryError> {
        let Some(member) = self.written.field else {
            let members = fields.iter().map(|field| {
                let name = format!("{}, ", sql::quote_text(&field.name));
                EditText::concat([name.into(), field.to_json_sql(write(field))])
            });
            let members = EditText::join(members.collect(), ", ");
            return Ok(EditText::concat(["json_object(".into(), members, ")".into()]));
        };
        if member.is_symbol(b'*') {
            // `.*` yields several columns, so the call must be a whole result column.
            if !self.is_result_column {
                let first = fields.first().map_or("field", |field| field.name.as_str());
                return Err(QueryError::in_sql(
                    format!(
                        "`.*` of `{}` is only possible in a list of result columns",
                        self.name()
                    ),
                    Some(member.span()),
                    "several columns",
                    format!("name one field, as in .{first}"),
                ));
            }
            let columns = fields.iter().map(|field| {
                let alias = format!(" AS {}", sql::quote_name(&field.name));
                EditText::concat([write(field), alias.into()])
            });
            return Ok(EditText::join(columns.collect(), ", "));
        }
        let name = member.unquoted_text(self.text);
        if let Some(field) = fields.iter().find(|field| field.name.eq_ignore_ascii_case(&name)) {
            return Ok(write(field));
        }
        let names = || fields.iter().map(|field| field.name.as_str());
        let help = match find_nearest(&name, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format_name_list("field", names()),
        };
        let message = format!("the schema has no field `{name}`");
        Err(QueryError::in_sql(message, Some(member.span()), "not a field", help))
    }

    /// Reads the fields of a schema: a JSON Schema, or an object of types.
    fn parse_fields(&self, schema: &WrittenArgument) -> Result<Vec<ExtractedField>, QueryError> {
        let error = |message: String| {
            QueryError::in_sql(
                message,
                Some(schema.span()),
                "not a schema",
                "write '{\"title\": \"str\", \"year\": \"int\", \"genre\": [\"drama\", \"comedy\"]}', \
                 or a JSON Schema of an object",
            )
        };
        let text = schema
            .text_content(self.text)
            .ok_or_else(|| error("the schema is not a text".to_owned()))?;
        let json: Json = serde_json::from_str(&text).map_err(|why| {
            error(format!("the schema cannot be read: {}", describe_json_error(&why)))
        })?;
        let Json::Object(members) = json else {
            return Err(error("the schema is not an object".to_owned()));
        };
        let parsed = match (members.get("properties"), members.get("type")) {
            (Some(Json::Object(properties)), _) => read_properties(&members, properties),
            (None, Some(kind)) if kind == "object" => Ok(Vec::new()),
            _ => {
                members.iter().map(|(name, value)| ExtractedField::from_type(name, value)).collect()
            }
        };
        let fields: Vec<ExtractedField> = parsed.map_err(error)?;
        if fields.is_empty() {
            return Err(error("the schema has no field".to_owned()));
        }
        for (n, field) in fields.iter().enumerate() {
            if field.name.trim().is_empty() {
                return Err(error("a field of the schema has no name".to_owned()));
            }
            if fields[..n].iter().any(|other| other.name.eq_ignore_ascii_case(&field.name)) {
                return Err(error(format!("the field `{}` appears twice", field.name)));
            }
        }
        Ok(fields)
    }
}

/// Reads the fields of a JSON Schema.
fn read_properties(
    schema: &Map<String, Json>,
    properties: &Map<String, Json>,
) -> Result<Vec<ExtractedField>, String> {
    if schema.get("type").is_some_and(|kind| kind != "object") {
        return Err("the schema is not that of an object".to_owned());
    }
    reject_unknown_members("the schema", schema, &["type", "properties"])?;
    properties.iter().map(|(name, schema)| ExtractedField::from_schema(name, schema)).collect()
}

/// Rejects members that hqdl would not check.
fn reject_unknown_members(
    what: &str,
    schema: &Map<String, Json>,
    known: &[&str],
) -> Result<(), String> {
    let is_known =
        |name: &&String| known.contains(&name.as_str()) || ANNOTATIONS.contains(&name.as_str());
    match schema.keys().find(|name| !is_known(name)) {
        Some(name) => Err(format!("{what} has `{name}`, which hqdl does not support")),
        None => Ok(()),
    }
}

impl ExtractedField {
    /// Reads a field from its type, or from the list of its values.
    fn from_type(name: &str, value: &Json) -> Result<Self, String> {
        let field = |return_type, options| Self {
            name: name.to_owned(),
            return_type,
            options,
            about: None,
        };
        let text = ReturnType { scalar: Type::Text, is_list: false };
        match value {
            Json::String(word) => match ReturnType::parse(&word.replace("number", "float")) {
                Some(return_type) => Ok(field(return_type, None)),
                None => Err(format!("the field `{name}` has the unknown type '{word}'")),
            },
            Json::Array(values) => Ok(field(text, Some(read_options(name, values)?))),
            Json::Object(_) => Self::from_schema(name, value),
            _ => Err(format!("the field `{name}` has no type")),
        }
    }

    /// Reads a field from its JSON Schema.
    fn from_schema(name: &str, schema: &Json) -> Result<Self, String> {
        let what = format!("the field `{name}`");
        let Json::Object(schema) = schema else { return Err(format!("{what} has no schema")) };
        let about = schema.get("description").and_then(Json::as_str).map(str::to_owned);
        let (items, is_list) =
            match (schema.get("type").and_then(Json::as_str), schema.get("items")) {
                (Some("array"), Some(Json::Object(items))) => {
                    reject_unknown_members(&what, schema, &["type", "items"])?;
                    (items, true)
                }
                (Some("array"), _) => return Err(format!("{what} is a list of an unknown type")),
                _ => (schema, false),
            };
        reject_unknown_members(&what, items, &["type", "enum", "format"])?;
        let mut options = None;
        if let Some(values) = items.get("enum") {
            let values =
                values.as_array().ok_or_else(|| format!("the enum of {what} is not a list"))?;
            options = Some(read_options(name, values)?);
        }
        let kind = match items.get("type") {
            Some(Json::String(kind)) => kind.as_str(),
            // A field can always be null.
            Some(Json::Array(kinds)) => {
                let mut kinds =
                    kinds.iter().filter_map(Json::as_str).filter(|kind| *kind != "null");
                match (kinds.next(), kinds.next()) {
                    (Some(kind), None) => kind,
                    _ => return Err(format!("{what} has several types")),
                }
            }
            None if options.is_some() => "string",
            _ => return Err(format!("{what} has no type")),
        };
        let scalar = match (kind, items.get("format").and_then(Json::as_str)) {
            ("string", None) => Type::Text,
            ("string", Some("date")) => Type::Date,
            ("string", Some("uri")) => Type::Url,
            ("integer", None) => Type::Integer,
            ("number", None) => Type::Real,
            ("boolean", None) => Type::Boolean,
            (_, Some(format)) => return Err(format!("{what} has the unknown format '{format}'")),
            (kind, None) => {
                return Err(format!(
                    "{what} has the type '{kind}': fields are texts, numbers, booleans, or lists of them"
                ));
            }
        };
        let return_type = ReturnType { scalar, is_list };
        Ok(Self { name: name.to_owned(), return_type, options, about })
    }

    /// Returns the call that answers the field.
    fn to_call(&self, instruction: Option<&str>, arguments: &EditText) -> EditText {
        let mut question = match instruction {
            Some(instruction) => format!("{instruction}: {}", self.name),
            None => format!("{} of {{}}", self.name),
        };
        if let Some(about) = &self.about {
            question.push_str(&format!(" ({about})"));
        }
        let kind = self.return_type.scalar.call_names().first().unwrap_or(&"str");
        let kind =
            if self.return_type.is_list { format!("list[{kind}]") } else { (*kind).to_owned() };
        let head = format!("{{{{LLMMap({}, ", sql::quote_text(&question));
        let mut tail = format!(", return_type='{kind}'");
        if let Some(options) = &self.options {
            let literal = |option: &Json| match option {
                Json::String(text) => sql::quote_text(text),
                other => other.to_string(),
            };
            let options: Vec<String> = options.iter().map(literal).collect();
            tail.push_str(&format!(", options=({},)", options.join(", ")));
        }
        tail.push_str(")}}");
        EditText::concat([head.into(), arguments.clone(), tail.into()])
    }

    /// Returns the SQL of the field's JSON value.
    fn to_json_sql(&self, call: EditText) -> EditText {
        let (before, after) = match self.return_type {
            ReturnType { is_list: true, .. } => ("json(", ")"),
            ReturnType { scalar: Type::Boolean, .. } => {
                ("json(CASE ", " WHEN 1 THEN 'true' WHEN 0 THEN 'false' END)")
            }
            _ => ("", ""),
        };
        EditText::concat([before.into(), call, after.into()])
    }
}

/// Reads the values of an enum. NULL is always allowed and need not be listed.
fn read_options(name: &str, values: &[Json]) -> Result<Vec<Json>, String> {
    let values: Vec<Json> = values.iter().filter(|value| !value.is_null()).cloned().collect();
    if values.is_empty() {
        return Err(format!("the field `{name}` has no possible value"));
    }
    if values.iter().any(|value| value.is_array() || value.is_object()) {
        return Err(format!("a value of the field `{name}` is neither a text nor a number"));
    }
    match (1..values.len()).find(|n| values[..*n].contains(&values[*n])) {
        Some(n) => Err(format!("the field `{name}` has the value {} twice", values[n])),
        None => Ok(values),
    }
}
