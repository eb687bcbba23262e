//! Checks the structure of a spec: its TOML against the JSON Schema of its types.
//!
//! serde stops at the first error. This module walks the spanned TOML tree together with the schema
//! instead, so that every unknown field, missing field and wrong type is reported with its
//! location.

use std::ops::Range;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use hqdl_values::format::format_count;
use hqdl_values::problem::{Problem, Severity, find_nearest};

/// Path of an item in a spec, from the root.
pub type Path = Vec<Step>;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A field of a table, by name.
    Field(String),
    /// An item of an array, by position.
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

/// Message of the TOML parser for a missing or unquoted value.
const UNQUOTED: &str = "string values must be quoted";

/// Fragments of the TOML parser's messages, with their replacements in hqdl's messages.
const TOML_MESSAGES: [(&str, &str); 12] = [
    ("unclosed table", "the name of a table has no closing bracket"),
    (UNQUOTED, "a value is missing, or a text is not in quotes"),
    ("invalid basic string", "a text has no closing quote"),
    ("invalid literal string", "a text has no closing quote"),
    ("unclosed array", "a list has no closing bracket"),
    ("invalid boolean", "this boolean is neither `true` nor `false`"),
    ("missing comma between array", "a list has no closing bracket, or a comma is missing"),
    ("invalid multi-line", "a text in three quotes has no closing quotes"),
    (
        "escape",
        "a text has a `\\` that begins no escape: write `\\\\`, or the text in single quotes",
    ),
    ("key with no value", "a key has no `=` and no value"),
    ("invalid key-value pair", "a line is neither `key = value` nor the header of a table"),
    ("`_` may only go between digits", "a number has a `_` that is not between digits"),
];

/// Names of the tables that are entries of a list.
const LIST_TABLES: [&str; 6] = ["expansion", "column", "source", "ingredient", "kind", "example"];

/// Help text for TOML syntax errors.
const TOML_HELP: &str =
    "write each table and field once, texts in quotes, and `key = value` on a line of its own";

/// Spanned tree of a spec, with the location of each item in the text.
pub struct Tree<'t> {
    root: Spanned<DeTable<'t>>,
}

impl<'t> Tree<'t> {
    /// Parses the TOML. Also returns its syntax errors, except errors that may be consequences of
    /// another error.
    #[must_use]
    pub fn parse(text: &'t str) -> (Self, Vec<Problem>) {
        let (root, errors) = DeTable::parse_recoverable(text);
        // Report no errors after an error other than a missing or unquoted value, because they may
        // be its consequences.
        let first = errors.iter().position(|e| !e.message().contains(UNQUOTED));
        let count = first.map_or(errors.len(), |first| first + 1);
        let problems = errors
            .into_iter()
            .take(count)
            .map(|e| {
                describe_common_mistake(&e, text).unwrap_or_else(|| Problem {
                    severity: Severity::Error,
                    message: format!("this is not TOML: {}", describe_toml_error(&e, text)),
                    span: e.span(),
                    label: "here".to_owned(),
                    help: Some(suggest_toml_fix(&e, text)),
                })
            })
            .collect();
        (Self { root }, problems)
    }

    /// Returns the span of the value at `path`, or of its nearest existing parent.
    #[must_use]
    pub fn span(&self, path: &[Step]) -> Option<Range<usize>> {
        let mut span = None;
        let mut current = path.split_first().and_then(|(step, _)| match step {
            Step::Field(name) => self.root.get_ref().get(name.as_str()),
            Step::Item(_) => None,
        });
        for step in path.iter().skip(1).map(Some).chain([None]) {
            let Some(value) = current else { break };
            span = Some(value.span());
            current = match (step, value.get_ref()) {
                (Some(Step::Field(name)), DeValue::Table(table)) => table.get(name.as_str()),
                (Some(Step::Item(index)), DeValue::Array(items)) => items.get(*index),
                _ => None,
            };
        }
        span
    }

    /// Returns all differences between the tree and the schema, and the repaired tree as JSON: an
    /// invalid value is omitted or replaced with an empty value, so that the rest can be checked
    /// too and no problem hides another.
    #[must_use]
    pub fn check_schema(&self, schema: &Json) -> SchemaCheck {
        let mut walk = SchemaWalk { schema, problems: Vec::new(), path: Vec::new() };
        let repaired = walk.check_table(schema, self.root.get_ref(), 0..0);
        SchemaCheck { repaired, problems: walk.problems }
    }
}

/// Result of [`Tree::check_schema`].
pub struct SchemaCheck {
    /// Spec as JSON that matches the schema.
    pub repaired: Json,
    /// Schema violations with their paths.
    pub problems: Vec<(Path, Problem)>,
}

struct SchemaWalk<'s> {
    schema: &'s Json,
    problems: Vec<(Path, Problem)>,
    path: Path,
}

impl<'s> SchemaWalk<'s> {
    fn add_error(
        &mut self,
        message: String,
        span: Range<usize>,
        label: String,
        help: Option<String>,
    ) {
        let problem = Problem { severity: Severity::Error, message, span: Some(span), label, help };
        self.problems.push((self.path.clone(), problem));
    }

    /// Resolves `$ref`.
    fn resolve_reference(&self, schema: &'s Json) -> &'s Json {
        schema
            .get("$ref")
            .and_then(Json::as_str)
            .and_then(|r| r.strip_prefix('#'))
            .and_then(|pointer| self.schema.pointer(pointer))
            .unwrap_or(schema)
    }

    /// Returns the possible schemas of a value: the branches of `anyOf` and `oneOf`, without null.
    fn expand_branches(&self, schema: &'s Json) -> Vec<&'s Json> {
        let schema = self.resolve_reference(schema);
        match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) {
            Some(branches) => branches.iter().flat_map(|b| self.expand_branches(b)).collect(),
            None if schema.get("type").and_then(Json::as_str) == Some("null") => Vec::new(),
            None => vec![schema],
        }
    }

    /// Checks a value against a schema and returns it as JSON; `None` if it does not match.
    fn check_value(&mut self, schema: &'s Json, value: &Spanned<DeValue<'_>>) -> Option<Json> {
        if accepts_anything(schema) {
            return self.convert_any_value(value);
        }
        let branches = self.expand_branches(schema);
        let name = self.field_name();
        if let Some(text) = self.unwrap_unneeded_list(&branches, value.get_ref()) {
            let help = Some(format!("write `{name} = {text:?}`"));
            self.add_error(
                format!("`{name}` is a list"),
                value.span(),
                "expected text".to_owned(),
                help,
            );
            return None;
        }
        let Some(branch) = branches.iter().find(|f| accepts_type(f, value.get_ref())) else {
            let found = match value.get_ref().type_str() {
                "array" => "list",
                other => other,
            };
            let message = format!("`{name}` is {}", add_article(found));
            let label = format!("expected {}", describe_alternatives(&branches));
            let help = self.suggest_syntax(&name, &branches, value.get_ref());
            self.add_error(message, value.span(), label, help);
            return None;
        };
        match value.get_ref() {
            DeValue::Table(table) => Some(self.check_table(branch, table, value.span())),
            DeValue::Array(items) => {
                let inner = branch.get("items")?;
                let length = branch.get("minItems").filter(|n| branch.get("maxItems") == Some(n));
                if let Some(length) = length.and_then(Json::as_u64)
                    && length != items.len() as u64
                {
                    let message =
                        format!("`{name}` has {}", format_count(items.len() as u64, "value"));
                    let label = format!("expected {}", format_count(length, "value"));
                    self.add_error(message, value.span(), label, None);
                    return None;
                }
                let array = items.iter().enumerate().map(|(index, item)| {
                    self.path.push(index.into());
                    let json = self
                        .check_value(inner, item)
                        .unwrap_or_else(|| self.build_empty_value(inner));
                    self.path.pop();
                    json
                });
                Some(array.collect())
            }
            DeValue::String(text) => {
                let known: Vec<&str> =
                    branches.iter().filter_map(|f| list_allowed_strings(f)).flatten().collect();
                if known.is_empty() || known.contains(&text.as_ref()) {
                    return Some(text.as_ref().into());
                }
                let help = match find_nearest(text, known.iter().copied()) {
                    Some(suggestion) => Some(format!("did you mean \"{suggestion}\"?")),
                    None if name == "provider" => Some(
                        "for an endpoint with an OpenAI-compatible API write `provider = \"openai\"` and set `base_url`; docs/reference/endpoints.md lists endpoints and protocols"
                            .to_owned(),
                    ),
                    None => None,
                };
                let label = format!("expected {}", describe_alternatives(&branches));
                self.add_error(format!("`{name}` cannot be \"{text}\""), value.span(), label, help);
                None
            }
            DeValue::Integer(integer) => {
                let number = parse_integer(integer);
                let minimum = branch.get("minimum").and_then(Json::as_f64);
                let maximum = branch.get("maximum").and_then(Json::as_f64).or_else(|| {
                    (branch.get("format")?.as_str()? == "uint32").then_some(f64::from(u32::MAX))
                });
                let label = match (number.map(|n| n as f64), minimum, maximum) {
                    (None, ..) => "too large".to_owned(),
                    (Some(n), Some(minimum), _) if n < minimum => match minimum {
                        0.0 => "expected a positive number".to_owned(),
                        _ => format!("expected at least {minimum}"),
                    },
                    (Some(n), _, Some(maximum)) if n > maximum => {
                        format!("expected at most {maximum}")
                    }
                    _ => return number.map(Json::from),
                };
                self.add_error(format!("`{name}` is out of range"), value.span(), label, None);
                None
            }
            DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
                self.convert_any_value(value)
            }
        }
    }

    /// Returns a value of any type as JSON; `None` if JSON has no such value.
    fn convert_any_value(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Json> {
        let (number, label) = match value.get_ref() {
            DeValue::Table(table) => {
                let mut fields = serde_json::Map::new();
                for (field, value) in table {
                    let name: &str = field.get_ref();
                    self.path.push(name.into());
                    fields
                        .extend(self.convert_any_value(value).map(|json| (name.to_owned(), json)));
                    self.path.pop();
                }
                return Some(Json::Object(fields));
            }
            DeValue::Array(items) => {
                let mut array = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    self.path.push(index.into());
                    array.extend(self.convert_any_value(item));
                    self.path.pop();
                }
                return Some(Json::Array(array));
            }
            DeValue::String(text) => return Some(text.as_ref().into()),
            DeValue::Boolean(b) => return Some((*b).into()),
            // Accept an unquoted TOML date like a quoted one.
            DeValue::Datetime(date) => return Some(date.to_string().into()),
            DeValue::Integer(integer) => (parse_integer(integer).map(Json::from), "too large"),
            DeValue::Float(float) => {
                let number = float.as_str().replace('_', "").parse::<f64>().ok();
                // JSON has no NaN; it would be parsed as a missing field.
                let number = number.filter(|n| n.is_finite()).map(Json::from);
                (number, "expected a finite number")
            }
        };
        if number.is_none() {
            let message = format!("`{}` is out of range", self.field_name());
            self.add_error(message, value.span(), label.to_owned(), None);
        }
        number
    }

    fn check_table(&mut self, schema: &'s Json, table: &DeTable<'_>, span: Range<usize>) -> Json {
        let schema = self.resolve_reference(schema);
        let known = schema.get("properties").and_then(Json::as_object);
        let declared_schema = |name: &str| known.and_then(|k| k.get(name));
        let other_schema =
            schema.get("additionalProperties").filter(|o| o.is_object() || accepts_anything(o));
        let table_name = self.table_header();
        let mut repaired = serde_json::Map::new();
        // Known fields that the user probably meant when writing an unknown field.
        let mut meant: Vec<String> = Vec::new();
        for (field, value) in table {
            let name: &str = field.get_ref();
            self.path.push(name.into());
            // In addition to the named fields, the table may allow tables with any name.
            let is_match = |o: &&'s Json| {
                known.is_none_or(serde_json::Map::is_empty)
                    || self.expand_branches(o).iter().any(|f| {
                        let names = known.into_iter().flatten().map(|(name, _)| name.as_str());
                        accepts_type(f, value.get_ref())
                            && (shares_field(f, value.get_ref())
                                || find_nearest(name, names).is_none())
                    })
            };
            if let Some(inner) = declared_schema(name).or(other_schema.filter(is_match)) {
                if let Some(json) = self.check_value(inner, value) {
                    repaired.insert(name.to_owned(), json);
                }
            } else {
                let field_names: Vec<&str> =
                    known.into_iter().flatten().map(|(k, _)| k.as_str()).collect();
                let help = if name.contains("key") && field_names.contains(&"api_key_env") {
                    Some(
                        "never write a key into a spec: name its environment variable in `api_key_env`"
                            .to_owned(),
                    )
                } else if self.path.len() == 1 && ["column", "source"].contains(&name) {
                    Some(format!("write `[[expansion.{name}]]`"))
                } else {
                    find_nearest(name, field_names.iter().copied()).map(|n| {
                        meant.push(n.to_owned());
                        // Further errors about the intended field follow from this error.
                        if let Some(last) = self.path.last_mut() {
                            *last = n.into();
                        }
                        format!("did you mean `{n}`?")
                    })
                };
                let label = format!("expected one of {}", field_names.join(", "));
                self.add_error(
                    format!("unknown field `{name}` in {table_name}"),
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
            if !table.contains_key(required) && !meant.iter().any(|name| name == required) {
                self.path.push(required.into());
                let is_table = declared_schema(required).is_some_and(|inner| {
                    list_type_names(self.resolve_reference(inner)).contains(&"object")
                });
                let label = if is_table && self.path.len() == 1 {
                    format!("add a table [{required}]")
                } else {
                    format!("add `{required}` here")
                };
                self.add_error(
                    format!("{table_name} has no `{required}`"),
                    span.clone(),
                    label,
                    None,
                );
                self.path.pop();
            }
            if let Some(inner) =
                declared_schema(required).filter(|_| !repaired.contains_key(required))
            {
                repaired.insert(required.to_owned(), self.build_empty_value(inner));
            }
        }
        Json::Object(repaired)
    }

    /// If the schema expects a string and the value is a list with a single string, returns that
    /// string.
    fn unwrap_unneeded_list<'v>(
        &self,
        branches: &[&'s Json],
        value: &'v DeValue<'_>,
    ) -> Option<&'v str> {
        let DeValue::Array(items) = value else { return None };
        let [item] = items.iter().collect::<Vec<_>>()[..] else { return None };
        let DeValue::String(text) = item.get_ref() else { return None };
        let lists = branches.iter().filter_map(|branch| branch.get("items"));
        let mut elements = lists.flat_map(|items| self.expand_branches(items));
        let is_wrong = !elements.any(|element| accepts_type(element, item.get_ref()));
        let accepts_text = branches.iter().any(|branch| accepts_type(branch, item.get_ref()));
        let accepts_table =
            branches.iter().any(|branch| list_type_names(branch).contains(&"object"));
        (is_wrong && accepts_text && !accepts_table).then_some(text.as_ref())
    }

    /// Returns the correct syntax for a value of the wrong type: a single value in the list that
    /// the field expects, or the table with its required fields.
    fn suggest_syntax(
        &self,
        name: &str,
        branches: &[&'s Json],
        value: &DeValue<'_>,
    ) -> Option<String> {
        if let (DeValue::Table(_), [Step::Field(field)]) = (value, &self.path[..]) {
            return Some(format!("write `[[{field}]]`"));
        }
        if let (DeValue::Table(_), Some(Step::Field(field))) = (value, self.path.last())
            && LIST_TABLES.contains(&field.as_str())
        {
            return Some(format!("write `[{}]`", self.table_header()));
        }
        if let (DeValue::String(path), [Step::Field(field)]) = (value, &self.path[..])
            && field == "database"
        {
            return Some(format!("write `[database]` and, on the next line, `path = {path:?}`"));
        }
        let is_table = |branch: &&&Json| list_type_names(branch).contains(&"object");
        if let (DeValue::Array(items), [Step::Field(field)]) = (value, &self.path[..])
            && branches.iter().any(|branch| is_table(&branch))
            && items.iter().all(|item| matches!(item.get_ref(), DeValue::Table(_)))
        {
            return Some(format!("write `[{field}]`"));
        }
        // An element of a list has no name.
        let assigned = match self.path.last() {
            Some(Step::Item(_)) => String::new(),
            _ => format!("{name} = "),
        };
        let is_list = |branch: &&&Json| list_type_names(branch).contains(&"array");
        if let Some(list) = branches.iter().find(is_list)
            && let items =
                list.get("items").map(|items| self.expand_branches(items)).unwrap_or_default()
            && items.iter().any(|item| accepts_type(item, value))
        {
            let text = match value {
                DeValue::String(text) => format!("{:?}", text.as_ref()),
                DeValue::Integer(number) => number.as_str().to_owned(),
                DeValue::Float(number) => number.as_str().to_owned(),
                _ => return None,
            };
            return Some(format!("write `{assigned}[{text}]`"));
        }
        let table = branches.iter().find(is_table)?;
        let is_map = table.get("additionalProperties").is_some_and(Json::is_object)
            && table.get("properties").is_none();
        if is_map {
            return Some(format!("write `{assigned}{{ \"…\" = \"…\" }}`"));
        }
        let required = table.get("required").and_then(Json::as_array)?;
        let fields: Vec<String> =
            required.iter().filter_map(Json::as_str).map(|field| format!("{field} = …")).collect();
        (!fields.is_empty()).then(|| format!("write `{assigned}{{ {} }}`", fields.join(", ")))
    }

    /// Returns the smallest value that matches the schema, so that the check can continue.
    fn build_empty_value(&self, schema: &'s Json) -> Json {
        let branches = self.expand_branches(schema);
        let Some(branch) = branches.first() else {
            return Json::Null;
        };
        if let Some(first) = list_allowed_strings(branch).and_then(|c| c.first().copied()) {
            return first.into();
        }
        match list_type_names(branch).first() {
            Some(&"object") => {
                let required =
                    branch.get("required").and_then(Json::as_array).into_iter().flatten();
                let fields = required.filter_map(Json::as_str).filter_map(|name| {
                    Some((
                        name.to_owned(),
                        self.build_empty_value(branch.get("properties")?.get(name)?),
                    ))
                });
                Json::Object(fields.collect())
            }
            Some(&"array") => Json::Array(Vec::new()),
            Some(&"integer" | &"number") => 0.into(),
            Some(&"boolean") => false.into(),
            _ => "".into(),
        }
    }

    fn field_name(&self) -> String {
        let field = self.path.iter().rev().find_map(|s| match s {
            Step::Field(name) => Some(name.clone()),
            Step::Item(_) => None,
        });
        field.unwrap_or_default()
    }

    /// Returns the current table in TOML syntax.
    fn table_header(&self) -> String {
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

/// Returns the problem for a mistake that the parser's message does not describe: a column before its
/// expansion, a decimal comma, or typographic quotes.
fn describe_common_mistake(error: &toml::de::Error, text: &str) -> Option<Problem> {
    let span = error.span()?;
    let start = text.get(..span.start)?.rfind('\n').map_or(0, |n| n + 1);
    let line = text.get(start..)?.lines().next()?;
    let problem = |message: String, span: Range<usize>, help: String| Problem {
        severity: Severity::Error,
        message,
        span: Some(span),
        label: "here".to_owned(),
        help: Some(help),
    };
    if error.message() == "duplicate key"
        && let Some(name) = line.trim().strip_prefix("[[").and_then(|l| l.strip_suffix("]]"))
        && let Some((at, header)) = find_earlier_subtable(&text[..start], name)
    {
        let message = format!("{header} comes before its [[{name}]]");
        let help = format!("move it below the [[{name}]] that it belongs to");
        return Some(problem(message, at..at + header.len(), help));
    }
    // The parser reports the rest of a text that continues on the next line as a key.
    if error.message().contains("key with no value")
        && let before = text[..start].trim_end_matches('\n')
        && let previous = before.rfind('\n').map_or(0, |n| n + 1)
        && before[previous..].matches('"').count() % 2 == 1
        && !before.contains("\"\"\"")
        && let Some(quote) = before.rfind('"')
    {
        let message = "this is not TOML: a text has no closing quote".to_owned();
        let help = "close it on this line; a text of several lines needs three quotes on each side";
        return Some(problem(message, quote..quote + 1, help.to_owned()));
    }
    if let Some((at, number)) = find_decimal_comma(line) {
        let span = start + at..start + at + number.len();
        let help = format!("write decimals with a point: {}", number.replace(',', "."));
        return Some(problem("this is not TOML: a number has a comma".to_owned(), span, help));
    }
    let is_curly =
        |c: char| matches!(c, '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{2018}' | '\u{2019}');
    let rest = text.get(span.start..)?.lines().next()?;
    let quote = rest.chars().next().filter(|c| is_curly(*c))?;
    let content = rest.trim_matches(is_curly).split(is_curly).next().unwrap_or_default();
    Some(problem(
        format!("this is not TOML: {quote} is not a quote of TOML"),
        span.start..span.start + quote.len_utf8(),
        format!("use straight quotes: {content:?}"),
    ))
}

/// Returns the first header of a table below `name`, such as `[[expansion.column]]`, with its
/// position.
fn find_earlier_subtable<'t>(text: &'t str, name: &str) -> Option<(usize, &'t str)> {
    let is_below = |header: &str| {
        header.trim_start_matches('[').strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
    };
    let mut lines = text.split_inclusive('\n').scan(0, |at, line| {
        let begin = *at;
        *at += line.len();
        Some((begin, line))
    });
    // If the table itself comes first, it has the wrong number of brackets.
    let is_own = |header: &str| header.trim_matches(['[', ']']) == name;
    lines
        .find_map(|(at, line)| {
            let header = line.trim();
            let is_header = header.starts_with('[') && (is_below(header) || is_own(header));
            is_header.then_some((at + line.len() - line.trim_start().len(), header))
        })
        .filter(|(_, header)| is_below(header))
}

/// Returns a number with a decimal comma after a `=`, such as `0,15`, with its position in the line.
fn find_decimal_comma(line: &str) -> Option<(usize, &str)> {
    line.match_indices('=').find_map(|(equals, _)| {
        // The `=` may be part of a text.
        if line[..equals].contains(['"', '\'']) {
            return None;
        }
        let value = &line[equals + 1..];
        let number = value.trim_start();
        let is_part = |c: char| c.is_ascii_digit() || c == ',';
        let end = number.find(|c| !is_part(c)).unwrap_or(number.len());
        let (whole, fraction) = number[..end].trim_end_matches(',').split_once(',')?;
        let is_decimal = !whole.is_empty() && !fraction.is_empty() && !fraction.contains(',');
        let length = whole.len() + 1 + fraction.len();
        is_decimal.then(|| (equals + 1 + value.len() - number.len(), &number[..length]))
    })
}

/// Returns the help for a syntax error. A list of tables with single brackets in its headers looks
/// like a table that is written twice.
fn suggest_toml_fix(error: &toml::de::Error, text: &str) -> String {
    let span = error.span().unwrap_or_default();
    let start = text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(0, |n| n + 1);
    let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default().trim();
    let is_list = text.get(span).is_some_and(|name| LIST_TABLES.contains(&name));
    if error.message().contains("invalid boolean") {
        return "write `true` or `false` in lower case".to_owned();
    }
    if error.message().contains("unclosed array") {
        return "close the list with `]`".to_owned();
    }
    if error.message().contains("missing comma between array") {
        return "close the list with `]`, and write a comma between its values".to_owned();
    }
    if error.message() == "duplicate key" && is_list && line.starts_with("[[") {
        return format!("write `{line}` for each entry of the list: it has two brackets");
    }
    if error.message() == "duplicate key" && is_list && line.starts_with('[') {
        return format!("write `[{line}]`: an entry of a list has two brackets");
    }
    TOML_HELP.to_owned()
}

fn describe_toml_error(error: &toml::de::Error, text: &str) -> String {
    let message = error.message();
    if message == "duplicate key"
        && let Some(name) = error.span().and_then(|span| text.get(span))
    {
        return format!("`{name}` is set twice");
    }
    let known = TOML_MESSAGES.iter().find(|(part, _)| message.contains(part));
    known.map_or_else(|| message.to_owned(), |(_, own)| (*own).to_owned())
}

/// Returns true if a schema accepts values of every type.
fn accepts_anything(schema: &Json) -> bool {
    *schema == Json::Bool(true)
}

fn parse_integer(integer: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

/// Returns the strings that a schema allows, if it lists them.
fn list_allowed_strings(schema: &Json) -> Option<Vec<&str>> {
    match (schema.get("const"), schema.get("enum").and_then(Json::as_array)) {
        (Some(value), _) => Some(value.as_str().into_iter().collect()),
        (None, Some(values)) => Some(values.iter().filter_map(Json::as_str).collect()),
        (None, None) => None,
    }
}

fn list_type_names(schema: &Json) -> Vec<&str> {
    match schema.get("type") {
        Some(Json::String(name)) => vec![name],
        Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    }
}

fn accepts_type(schema: &Json, value: &DeValue<'_>) -> bool {
    list_type_names(schema).into_iter().any(|t| match value {
        DeValue::String(_) | DeValue::Datetime(_) => t == "string",
        DeValue::Integer(_) => t == "integer" || t == "number",
        DeValue::Float(_) => t == "number",
        DeValue::Boolean(_) => t == "boolean",
        DeValue::Array(_) => t == "array",
        DeValue::Table(_) => t == "object",
    })
}

/// Returns true if a table has at least one field of the schema. `[model.prise]` with fields of a
/// price is a misspelled `price`, not a model of that name.
fn shares_field(schema: &Json, value: &DeValue<'_>) -> bool {
    let (DeValue::Table(table), Some(known)) =
        (value, schema.get("properties").and_then(Json::as_object))
    else {
        return true;
    };
    table.is_empty() || table.keys().any(|field| known.contains_key(&**field.get_ref()))
}

/// Describes the values that the schemas accept, such as `"a", "b" or a list`.
fn describe_alternatives(schemas: &[&Json]) -> String {
    let mut alternatives: Vec<String> = schemas
        .iter()
        .flat_map(|schema| match list_allowed_strings(schema) {
            Some(texts) => texts.into_iter().map(|text| format!("\"{text}\"")).collect(),
            None => vec![describe_types(schema)],
        })
        .collect();
    alternatives.dedup();
    match alternatives.pop() {
        Some(last) if !alternatives.is_empty() => format!("{} or {last}", alternatives.join(", ")),
        last => last.unwrap_or_default(),
    }
}

fn describe_types(schema: &Json) -> String {
    let names: Vec<&str> = list_type_names(schema)
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

fn add_article(type_name: &str) -> String {
    let is_vowel = type_name.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {type_name}", if is_vowel { "an" } else { "a" })
}
