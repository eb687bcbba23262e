//! Lists and objects in arguments: `['a', 'b']`, `ARRAY('a')`, `{'label': 'a'}`.

use super::VendorText;
use super::brackets::{split_at_commas, strip_brackets};
use super::call::{FunctionArgument, FunctionCall};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;
use crate::blendsql::macros::{VendorIngredient, VendorQuestion};

/// Fields of an object: names in lower case, and the tokens of the values.
pub(super) type ObjectFields = Vec<(String, Vec<Token>)>;

/// Returns the elements of a list, or `None` for anything else.
fn parse_list<'t>(sql: &str, tokens: &'t [Token]) -> Option<Vec<&'t [Token]>> {
    let inside = strip_brackets(sql, tokens, None, b'[')
        .or_else(|| strip_brackets(sql, tokens, Some("ARRAY"), b'['))
        .or_else(|| strip_brackets(sql, tokens, Some("ARRAY"), b'('))?;
    Some(split_at_commas(inside))
}

/// Returns the fields of an object, or `None` for anything else.
pub(super) fn parse_object(sql: &str, tokens: &[Token]) -> Option<ObjectFields> {
    let fields = split_at_commas(strip_brackets(sql, tokens, None, b'{')?);
    let fields = fields.into_iter().map(|field| {
        let (name, rest) = field.split_first()?;
        let name = name.unquoted_text(sql).to_lowercase();
        let (colon, value) = rest.split_first()?;
        (colon.is_symbol(b':') && !value.is_empty()).then(|| (name, value.to_vec()))
    });
    fields.collect()
}

/// Returns the elements of a list of objects, or `None` for anything else.
pub(super) fn parse_objects(sql: &str, tokens: &[Token]) -> Option<Vec<ObjectFields>> {
    parse_list(sql, tokens)?.into_iter().map(|element| parse_object(sql, element)).collect()
}

impl<'q> FunctionCall<'q> {
    /// Fails if an object has a field twice.
    pub fn reject_repeated_fields(&self, fields: &ObjectFields) -> Result<(), SqlError> {
        for (n, (name, value)) in fields.iter().enumerate() {
            if fields[..n].iter().any(|(known, _)| known == name) {
                return Err(self.error_at_tokens(value, &format!("`{name}` appears twice")));
            }
        }
        Ok(())
    }

    /// Returns the texts of a required list.
    pub fn require_texts(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<Vec<String>, SqlError> {
        let labels = self.require_labels(argument, name)?;
        Ok(labels.into_iter().map(|(label, _)| label).collect())
    }

    /// Asks which label of a list fits a value. A label can have a description: an object with
    /// `label` and `description`, or a pair. If `is_many` is true, several labels can fit. An empty
    /// `question` is the default one.
    pub fn build_classification(
        &self,
        value: Option<FunctionArgument<'q>>,
        labels: Option<FunctionArgument<'q>>,
        question: &str,
        is_many: bool,
    ) -> Result<VendorQuestion, SqlError> {
        let label_tokens = labels.map(|labels| labels.tokens.to_vec()).unwrap_or_default();
        self.require_argument(value, "a text")?;
        let labels = self.require_labels(labels, "labels")?;
        // Descriptions become part of the question, next to their labels.
        if labels.iter().any(|(_, about)| about.is_some()) {
            for (label, about) in &labels {
                self.reject_slot(label)?;
                self.reject_slot(about.as_deref().unwrap_or_default())?;
            }
        }
        self.build_question_about(
            value,
            question,
            VendorIngredient::Classify { labels, label_tokens, is_many },
        )
    }

    fn require_labels(
        &self,
        argument: Option<FunctionArgument<'q>>,
        name: &str,
    ) -> Result<Vec<(String, Option<String>)>, SqlError> {
        let argument = self.require_argument(argument, name)?;
        let sql = self.text.sql;
        let elements = parse_list(sql, argument.tokens);
        let labels = elements
            .and_then(|list| {
                list.into_iter().map(|element| parse_label(self.text, element)).collect()
            })
            .or_else(|| parse_json_labels(&self.text.read_string(argument.tokens)?))
            .filter(|labels: &Vec<_>| !labels.is_empty());
        labels.ok_or_else(|| self.error_at(&argument, &format!("{name} must be a list of strings")))
    }
}

/// Parses a label of a list. Returns the label, and its description if it has one.
fn parse_label(text: VendorText<'_>, element: &[Token]) -> Option<(String, Option<String>)> {
    let sql = text.sql;
    if let Some(fields) = parse_object(sql, element) {
        let (mut label, mut about) = (None, None);
        for (name, value) in fields {
            let field = match name.as_str() {
                "label" => &mut label,
                "description" => &mut about,
                _ => continue,
            };
            if field.replace(text.read_string(&value)?).is_some() {
                return None;
            }
        }
        return Some((label?, about));
    }
    if let Some(pair) = strip_brackets(sql, element, None, b'(') {
        let [label, about] = split_at_commas(pair)[..] else { return None };
        return Some((text.read_string(label)?, Some(text.read_string(about)?)));
    }
    Some((text.read_string(element)?, None))
}

/// Parses labels in a JSON text: a list of labels, or an object with the labels' descriptions.
/// Returns each label, and its description if it has one.
fn parse_json_labels(text: &str) -> Option<Vec<(String, Option<String>)>> {
    match serde_json::from_str(text).ok()? {
        serde_json::Value::Array(list) => {
            list.iter().map(|label| Some((label.as_str()?.to_owned(), None))).collect()
        }
        serde_json::Value::Object(labels) => labels
            .iter()
            .map(|(label, about)| Some((label.clone(), Some(about.as_str()?.to_owned()))))
            .collect(),
        _ => None,
    }
}
