//! Checks the structure of a spec: its TOML against the JSON Schema of its types.
//!
//! serde stops at the first error. This module walks the spanned TOML tree together with the schema
//! instead, so that every unknown field, missing field and wrong type is reported with its
//! location.

use std::ops::Range;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use hqdl_values::problem::{Problem, Severity, nearest};

/// Path of an item in a spec, from the root.
pub type Path = Vec<Step>;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Into a table, by field.
    Field(String),
    /// Into an array, by position.
    Item(usize),
}

impl From<&str> for Step {
    fn from(field: &str) -> Self {
        Self::Field(field.to_owned())
    }
}

impl From<usize> for Step {
    fn from(item: usize) -> Self {
        Self::Item(item)
    }
}

/// Spanned tree of a spec, with the location of each item in the text.
pub struct Tree<'t> {
    root: Spanned<DeTable<'t>>,
}

impl<'t> Tree<'t> {
    /// Parses the TOML and returns every syntax error.
    #[must_use]
    pub fn parse(text: &'t str) -> (Self, Vec<Problem>) {
        let (root, errors) = DeTable::parse_recoverable(text);
        let problems = errors
            .into_iter()
            .map(|e| Problem {
                severity: Severity::Error,
                message: e.message().to_owned(),
                span: e.span(),
                label: "not TOML".to_owned(),
                help: None,
            })
            .collect();
        (Self { root }, problems)
    }

    /// Returns the span of the value at `path`, or of its nearest existing parent.
    #[must_use]
    pub fn span(&self, path: &[Step]) -> Option<Range<usize>> {
        let mut span = None;
        let mut here = path.split_first().and_then(|(step, _)| match step {
            Step::Field(name) => self.root.get_ref().get(name.as_str()),
            Step::Item(_) => None,
        });
        for step in path.iter().skip(1).map(Some).chain([None]) {
            let Some(value) = here else { break };
            span = Some(value.span());
            here = match (step, value.get_ref()) {
                (Some(Step::Field(name)), DeValue::Table(table)) => table.get(name.as_str()),
                (Some(Step::Item(at)), DeValue::Array(items)) => items.get(*at),
                _ => None,
            };
        }
        span
    }

    /// Returns all differences between the tree and the schema, and the repaired tree as JSON: an
    /// invalid value is left out or made empty, so that the rest can be checked too and no problem
    /// hides another.
    #[must_use]
    pub fn check(&self, schema: &Json) -> Shape {
        let mut walk = ShapeWalk { schema, problems: Vec::new(), path: Vec::new() };
        let mended = walk.table(schema, self.root.get_ref(), 0..0);
        Shape { mended, problems: walk.problems }
    }
}

/// Result of [`Tree::check`].
pub struct Shape {
    /// Spec as JSON that matches the schema.
    pub mended: Json,
    /// Schema violations with their paths.
    pub problems: Vec<(Path, Problem)>,
}

struct ShapeWalk<'s> {
    schema: &'s Json,
    problems: Vec<(Path, Problem)>,
    path: Path,
}

impl<'s> ShapeWalk<'s> {
    fn error(&mut self, message: String, span: Range<usize>, label: String, help: Option<String>) {
        let problem = Problem { severity: Severity::Error, message, span: Some(span), label, help };
        self.problems.push((self.path.clone(), problem));
    }

    /// Resolves `$ref`.
    fn resolve(&self, schema: &'s Json) -> &'s Json {
        schema
            .get("$ref")
            .and_then(Json::as_str)
            .and_then(|r| r.strip_prefix('#'))
            .and_then(|pointer| self.schema.pointer(pointer))
            .unwrap_or(schema)
    }

    /// Returns the possible schemas of a value: the branches of `anyOf` and `oneOf`, without null.
    fn forms(&self, schema: &'s Json) -> Vec<&'s Json> {
        let schema = self.resolve(schema);
        match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) {
            Some(branches) => branches.iter().flat_map(|b| self.forms(b)).collect(),
            None if schema.get("type").and_then(Json::as_str) == Some("null") => Vec::new(),
            None => vec![schema],
        }
    }

    /// Returns the value as JSON; `None` if it does not match.
    fn value(&mut self, schema: &'s Json, value: &Spanned<DeValue<'_>>) -> Option<Json> {
        if takes_anything(schema) {
            return self.any(value);
        }
        let forms = self.forms(schema);
        let name = self.name();
        let Some(form) = forms.iter().find(|f| takes(f, value.get_ref())) else {
            let mut expected: Vec<String> = forms.iter().map(|f| describe(f)).collect();
            expected.dedup();
            let message = format!("`{name}` is {}", article(value.get_ref().type_str()));
            let label = format!("expected {}", expected.join(" or "));
            let help = self.corrected(&name, &forms, value.get_ref());
            self.error(message, value.span(), label, help);
            return None;
        };
        match value.get_ref() {
            DeValue::Table(table) => Some(self.table(form, table, value.span())),
            DeValue::Array(items) => {
                let inner = form.get("items")?;
                let all = items.iter().enumerate().map(|(at, item)| {
                    self.path.push(at.into());
                    let json = self.value(inner, item).unwrap_or_else(|| self.empty(inner));
                    self.path.pop();
                    json
                });
                Some(all.collect())
            }
            DeValue::String(text) => {
                let known: Vec<&str> =
                    forms.iter().filter_map(|f| constants(f)).flatten().collect();
                if known.is_empty() || known.contains(&text.as_ref()) {
                    return Some(text.as_ref().into());
                }
                let help = match nearest(text, known.iter().copied()) {
                    Some(near) => Some(format!("did you mean \"{near}\"?")),
                    None if name == "provider" => Some(
                        "for an endpoint with an OpenAI-compatible API write `provider = \"openai\"` and set `base_url`; docs/reference/endpoints.md lists endpoints"
                            .to_owned(),
                    ),
                    None => None,
                };
                let label = format!("expected one of {}", known.join(", "));
                self.error(format!("`{name}` cannot be \"{text}\""), value.span(), label, help);
                None
            }
            DeValue::Integer(integer) => {
                let number = whole_number(integer);
                let least = form.get("minimum").and_then(Json::as_f64);
                let most = form.get("maximum").and_then(Json::as_f64).or_else(|| {
                    (form.get("format")?.as_str()? == "uint32").then_some(f64::from(u32::MAX))
                });
                let label = match (number.map(|n| n as f64), least, most) {
                    (None, ..) => "too large".to_owned(),
                    (Some(n), Some(least), _) if n < least => format!("expected at least {least}"),
                    (Some(n), _, Some(most)) if n > most => format!("expected at most {most}"),
                    _ => return number.map(Json::from),
                };
                self.error(format!("`{name}` is out of range"), value.span(), label, None);
                None
            }
            DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => self.any(value),
        }
    }

    /// Returns a value of any type as JSON; `None` if JSON has no such value.
    fn any(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Json> {
        let (number, label) = match value.get_ref() {
            DeValue::Table(table) => {
                let mut fields = serde_json::Map::new();
                for (field, value) in table {
                    let name: &str = field.get_ref();
                    self.path.push(name.into());
                    fields.extend(self.any(value).map(|json| (name.to_owned(), json)));
                    self.path.pop();
                }
                return Some(Json::Object(fields));
            }
            DeValue::Array(items) => {
                let mut all = Vec::new();
                for (at, item) in items.iter().enumerate() {
                    self.path.push(at.into());
                    all.extend(self.any(item));
                    self.path.pop();
                }
                return Some(Json::Array(all));
            }
            DeValue::String(text) => return Some(text.as_ref().into()),
            DeValue::Boolean(b) => return Some((*b).into()),
            // A date without quotes in TOML is accepted like one in quotes.
            DeValue::Datetime(date) => return Some(date.to_string().into()),
            DeValue::Integer(integer) => (whole_number(integer).map(Json::from), "too large"),
            DeValue::Float(float) => {
                let number = float.as_str().replace('_', "").parse::<f64>().ok();
                // JSON has no NaN; it would be parsed as a missing field.
                let number = number.filter(|n| n.is_finite()).map(Json::from);
                (number, "expected a finite number")
            }
        };
        if number.is_none() {
            let message = format!("`{}` is out of range", self.name());
            self.error(message, value.span(), label.to_owned(), None);
        }
        number
    }

    fn table(&mut self, schema: &'s Json, table: &DeTable<'_>, span: Range<usize>) -> Json {
        let schema = self.resolve(schema);
        let known = schema.get("properties").and_then(Json::as_object);
        let declared = |name: &str| known.and_then(|k| k.get(name));
        let others =
            schema.get("additionalProperties").filter(|o| o.is_object() || takes_anything(o));
        let within = self.within();
        let mut mended = serde_json::Map::new();
        for (field, value) in table {
            let name: &str = field.get_ref();
            self.path.push(name.into());
            // Besides the named fields, the table may allow tables with any name.
            let fits = |o: &&'s Json| {
                known.is_none_or(serde_json::Map::is_empty)
                    || self.forms(o).iter().any(|f| takes(f, value.get_ref()))
            };
            if let Some(inner) = declared(name).or(others.filter(fits)) {
                if let Some(json) = self.value(inner, value) {
                    mended.insert(name.to_owned(), json);
                }
            } else {
                let all: Vec<&str> = known.into_iter().flatten().map(|(k, _)| k.as_str()).collect();
                let help = if name.contains("key") && all.contains(&"api_key_env") {
                    Some(
                        "never write a key into a spec: name its environment variable in `api_key_env`"
                            .to_owned(),
                    )
                } else {
                    nearest(name, all.iter().copied()).map(|n| format!("did you mean `{n}`?"))
                };
                let label = format!("expected one of {}", all.join(", "));
                self.error(
                    format!("unknown field `{name}` in {within}"),
                    field.span(),
                    label,
                    help,
                );
            }
            self.path.pop();
        }
        for required in schema.get("required").and_then(Json::as_array).into_iter().flatten() {
            let Some(required) = required.as_str() else {
                continue;
            };
            if !table.contains_key(required) {
                self.path.push(required.into());
                let label = format!("add `{required}` here");
                self.error(format!("{within} has no `{required}`"), span.clone(), label, None);
                self.path.pop();
            }
            if let Some(inner) = declared(required).filter(|_| !mended.contains_key(required)) {
                mended.insert(required.to_owned(), self.empty(inner));
            }
        }
        Json::Object(mended)
    }

    /// Returns the correct syntax for a value of the wrong type: a single value in the list that
    /// the field expects, or the table with its required fields.
    fn corrected(&self, name: &str, forms: &[&'s Json], value: &DeValue<'_>) -> Option<String> {
        let is_list = |form: &&&Json| types(form).contains(&"array");
        if let Some(list) = forms.iter().find(is_list)
            && let items = list.get("items").map(|items| self.forms(items)).unwrap_or_default()
            && items.iter().any(|item| takes(item, value))
        {
            let text = match value {
                DeValue::String(text) => format!("{:?}", text.as_ref()),
                DeValue::Integer(number) => number.as_str().to_owned(),
                DeValue::Float(number) => number.as_str().to_owned(),
                _ => return None,
            };
            return Some(format!("write `{name} = [{text}]`"));
        }
        let table = forms.iter().find(|form| types(form).contains(&"object"))?;
        let required = table.get("required").and_then(Json::as_array)?;
        let fields: Vec<String> =
            required.iter().filter_map(Json::as_str).map(|field| format!("{field} = …")).collect();
        (!fields.is_empty()).then(|| format!("write `{name} = {{ {} }}`", fields.join(", ")))
    }

    /// Returns the smallest value that matches, to continue with.
    fn empty(&self, schema: &'s Json) -> Json {
        let forms = self.forms(schema);
        let Some(form) = forms.first() else {
            return Json::Null;
        };
        if let Some(first) = constants(form).and_then(|c| c.first().copied()) {
            return first.into();
        }
        match types(form).first() {
            Some(&"object") => {
                let required = form.get("required").and_then(Json::as_array).into_iter().flatten();
                let fields = required.filter_map(Json::as_str).filter_map(|name| {
                    Some((name.to_owned(), self.empty(form.get("properties")?.get(name)?)))
                });
                Json::Object(fields.collect())
            }
            Some(&"array") => Json::Array(Vec::new()),
            Some(&"integer" | &"number") => 0.into(),
            Some(&"boolean") => false.into(),
            _ => "".into(),
        }
    }

    /// Returns the name of the current field.
    fn name(&self) -> String {
        let field = self.path.iter().rev().find_map(|s| match s {
            Step::Field(name) => Some(name.clone()),
            Step::Item(_) => None,
        });
        field.unwrap_or_default()
    }

    /// Returns the current table in TOML syntax.
    fn within(&self) -> String {
        let fields: Vec<&str> = self
            .path
            .iter()
            .filter_map(|s| match s {
                Step::Field(name) => Some(name.as_str()),
                Step::Item(_) => None,
            })
            .collect();
        match (fields.join("."), self.path.last()) {
            (dotted, _) if dotted.is_empty() => "the spec".to_owned(),
            (dotted, Some(Step::Item(_))) => format!("[[{dotted}]]"),
            (dotted, _) => format!("[{dotted}]"),
        }
    }
}

/// Returns true if a schema accepts values of every type.
fn takes_anything(schema: &Json) -> bool {
    *schema == Json::Bool(true)
}

fn whole_number(integer: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

/// Returns the strings that a schema allows, if it lists them.
fn constants(form: &Json) -> Option<Vec<&str>> {
    match (form.get("const"), form.get("enum").and_then(Json::as_array)) {
        (Some(one), _) => Some(one.as_str().into_iter().collect()),
        (None, Some(all)) => Some(all.iter().filter_map(Json::as_str).collect()),
        (None, None) => None,
    }
}

fn types(form: &Json) -> Vec<&str> {
    match form.get("type") {
        Some(Json::String(one)) => vec![one],
        Some(Json::Array(all)) => all.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Returns true if a schema accepts values of this TOML type.
fn takes(form: &Json, value: &DeValue<'_>) -> bool {
    types(form).into_iter().any(|t| match value {
        DeValue::String(_) | DeValue::Datetime(_) => t == "string",
        DeValue::Integer(_) => t == "integer" || t == "number",
        DeValue::Float(_) => t == "number",
        DeValue::Boolean(_) => t == "boolean",
        DeValue::Array(_) => t == "array",
        DeValue::Table(_) => t == "object",
    })
}

fn describe(form: &Json) -> String {
    let names: Vec<&str> = types(form)
        .into_iter()
        .filter(|t| *t != "null")
        .map(|t| match t {
            "object" => "a table",
            "array" => "a list",
            "string" => "text",
            "integer" => "a whole number",
            "number" => "a number",
            "boolean" => "true or false",
            other => other,
        })
        .collect();
    names.join(" or ")
}

fn article(type_name: &str) -> String {
    let an = type_name.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {type_name}", if an { "an" } else { "a" })
}
