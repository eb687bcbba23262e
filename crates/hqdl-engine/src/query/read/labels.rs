//! Rewrites `LLMClassify` as an `LLMMap` whose options are the labels.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMClassify(t.c, ['a', 'b'])}}` | `{{LLMMap('Which label fits {}?', t.c, options=('a', 'b',))}}` |
//! | `[{'label': 'a', 'about': '…'}]`, `{'a': '…'}` | the same, with the descriptions in the question |
//! | `many=true` | `return_type='list[str]'` |
//! | `other=true` | one more label, `'other'` |

use crate::query::read::arguments::{ArgumentNames, BuiltInMacro, MEDIA, MacroNode};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::ingredients::OPTIONS;
use hqdl_sql::blendsql::lexer::{Token, TokenKind};
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::split_legacy_column;
use hqdl_sql::blendsql::{MacroSignature, Subject};
use hqdl_sql::{EditText, Edits};
use hqdl_values::sql;

/// Example of a call and its result, for a model that writes queries.
const USAGE: (&str, &str) = (
    "{{LLMClassify(t.note, ['complaint', 'praise'])}}",
    "the label of a list that fits the value of each row. Keyword arguments: question, many, other, \
     context, model, {media}",
);

/// The macro `LLMClassify`.
pub(super) const CLASSIFY: BuiltInMacro = BuiltInMacro {
    signature: MacroSignature {
        literal_argument: Some((1, &[OPTIONS, "labels"])),
        ..MacroSignature::new(Subject::Value, false)
    },
    usage: Some(USAGE),
    expand: |node, _| node.rewrite_classify(),
};

/// Label that `other=true` adds.
const OTHER: &str = "other";

/// A label and its description.
struct Label {
    /// SQL literal.
    literal: String,
    name: String,
    about: Option<String>,
}

impl MacroNode<'_> {
    /// Returns the edits that rewrite a classification as an `LLMMap`.
    fn rewrite_classify(&self) -> Result<Edits, QueryError> {
        let arguments: [ArgumentNames<'_>; 8] = [
            &["value", "values"],
            &[OPTIONS, "labels"],
            &["question"],
            &["many", "multi"],
            &["other"],
            &["context"],
            &["model"],
            MEDIA,
        ];
        let [value, options, question, many, other, context, model, media] =
            self.match_all_arguments(arguments)?;
        let Some(options) = options else {
            return Err(self.missing_argument_error("a value and its labels"));
        };
        let value = value.ok_or_else(|| self.missing_argument_error("a value"))?;
        let is_text =
            value.text_content(self.text).is_some() && value.column_names(self.text).is_none();
        if is_text && question.is_none() && self.parse_labels(options).is_ok_and(|l| l.is_none()) {
            return Err(QueryError::in_sql(
                format!("the first argument of `{}` is a text", self.name()),
                Some(value.span()),
                "expected the value to classify",
                format!("write {}", USAGE.0),
            ));
        }
        let is_many = many.map_or(Ok(false), |many| self.parse_flag(many, "many"))?;
        let other_label = other.map_or(Ok(None), |other| self.parse_other_label(other))?;
        let mut edits = Edits::default();
        for removed in [question, many, other].into_iter().flatten() {
            edits.replace(removed.full_span(), "");
        }
        for (argument, keyword) in [(context, "context"), (model, "model"), (media, MEDIA[0])] {
            let Some(argument) = argument.filter(|a| a.keyword.is_none()) else { continue };
            edits.replace(argument.span().start..argument.span().start, format!("{keyword}="));
        }
        let question = question
            .map(|question| {
                let text = question.text_content(self.text);
                text.ok_or_else(|| self.missing_argument_error("a text as its question"))
            })
            .transpose()?;
        let mut asked = choose_label_question(question.as_deref(), is_many).to_owned();
        match self.parse_labels(options)? {
            Some(mut labels) => {
                labels.extend(other_label.map(|name| Label {
                    literal: sql::quote_text(&name),
                    name,
                    about: Some("no other label fits".to_owned()),
                }));
                self.check_labels(&labels, options)?;
                asked.push_str(&describe_labels(&labels));
                let literals: Vec<&str> = labels.iter().map(|l| l.literal.as_str()).collect();
                edits.replace(options.span(), format!("({},)", literals.join(", ")));
            }
            None => {
                if let Some(name) = other_label {
                    edits.replace(options.span(), self.union_with_label(options, &name)?);
                }
            }
        }
        edits.replace(options.full_span().start..options.span().start, "options=");
        let mut head = format!("LLMMap({}, ", sql::quote_text(&asked));
        if is_many {
            head.push_str("return_type='list[str]', ");
        }
        edits.replace(self.head_span(), head);
        Ok(edits)
    }

    /// Returns the question which label fits the value of another engine's call. `label_tokens` are
    /// the tokens of the list of labels.
    pub(super) fn write_classification(
        &self,
        value: EditText,
        labels: &[(String, Option<String>)],
        label_tokens: &[Token],
        (question, is_many): (Option<&str>, bool),
    ) -> Result<EditText, QueryError> {
        let new_label =
            |(name, about): &(String, Option<String>)| Label::new(name.clone(), about.clone());
        let labels: Vec<Label> = labels.iter().map(new_label).collect();
        let list = WrittenArgument { keyword: None, tokens: label_tokens.to_vec(), end: 0 };
        self.check_labels(&labels, &list)?;
        let mut asked = choose_label_question(question, is_many).to_owned();
        asked.push_str(&describe_labels(&labels));
        let return_type = if is_many { "return_type='list[str]', " } else { "" };
        let literals: Vec<&str> = labels.iter().map(|label| label.literal.as_str()).collect();
        Ok(EditText::concat([
            format!("{{{{LLMMap({}, {return_type}", sql::quote_text(&asked)).into(),
            value,
            format!(", options=({},))}}}}", literals.join(", ")).into(),
        ]))
    }

    /// Parses an argument that must be true or false.
    pub(super) fn parse_flag(
        &self,
        argument: &WrittenArgument,
        name: &str,
    ) -> Result<bool, QueryError> {
        let word = match argument.tokens.as_slice() {
            [one] => one.text(self.text).to_ascii_lowercase(),
            _ => String::new(),
        };
        match word.as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" | "none" | "null" => Ok(false),
            _ => Err(QueryError::in_sql(
                format!("`{name}` is not a boolean"),
                Some(argument.span()),
                "expected true or false",
                "",
            )),
        }
    }

    /// Returns the label that `other=` adds.
    fn parse_other_label(&self, argument: &WrittenArgument) -> Result<Option<String>, QueryError> {
        match argument.text_content(self.text) {
            Some(label) => Ok(Some(label)),
            None => Ok(self.parse_flag(argument, "other")?.then(|| OTHER.to_owned())),
        }
    }

    /// Returns the labels of a list; `None` for a column or a query.
    fn parse_labels(&self, options: &WrittenArgument) -> Result<Option<Vec<Label>>, QueryError> {
        let tokens = options.tokens.as_slice();
        if let [open, .., close] = tokens
            && open.is_symbol(b'{')
            && close.is_symbol(b'}')
        {
            let labels = split_items(&tokens[1..tokens.len() - 1]).into_iter().map(|pair| {
                let (name, about) =
                    self.parse_text_pair(pair).ok_or_else(|| self.label_error(pair))?;
                Ok(Label::new(name, about))
            });
            return labels.collect::<Result<_, _>>().map(Some);
        }
        let (open, items, close) = match tokens {
            [open, items @ .., close] => (open, items, close),
            [text] if text.lexeme == TokenKind::Text => {
                return match split_legacy_column(&text.unquoted_text(self.text)) {
                    Some(_) => Ok(None),
                    None => Err(self.label_error(tokens)),
                };
            }
            _ => return Ok(None),
        };
        let is_list = open.is_symbol(b'[') && close.is_symbol(b']');
        let is_tuple = open.is_symbol(b'(')
            && close.is_symbol(b')')
            && !items.first().is_some_and(|first| {
                matches!(first.lexeme, TokenKind::Word | TokenKind::Name) || first.is_symbol(b'(')
            });
        if !is_list && !is_tuple {
            return Ok(None);
        }
        let labels = split_items(items).into_iter().map(|item| self.parse_label(item));
        labels.collect::<Result<_, _>>().map(Some)
    }

    /// Reads a label: a literal, or `{'label': …, 'about': …}`.
    fn parse_label(&self, item: &[Token]) -> Result<Label, QueryError> {
        let whole = WrittenArgument { keyword: None, tokens: item.to_vec(), end: 0 };
        match item {
            [text] if matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted) => {
                return Ok(Label::new(text.unquoted_text(self.text), None));
            }
            [open, fields @ .., close] if open.is_symbol(b'{') && close.is_symbol(b'}') => {
                let (mut name, mut about) = (None, None);
                for field in split_items(fields) {
                    let (key, value) =
                        self.parse_text_pair(field).ok_or_else(|| self.label_error(item))?;
                    match key.as_str() {
                        "label" | "name" => name = value,
                        "about" | "description" => about = value,
                        _ => return Err(self.label_error(field)),
                    }
                }
                return name.map(|n| Label::new(n, about)).ok_or_else(|| self.label_error(item));
            }
            _ => {}
        }
        let number = whole.literal_content(self.text).ok_or_else(|| self.label_error(item))?;
        Ok(Label { literal: number.clone(), name: number, about: None })
    }

    /// Reads `'key': 'text'`. The text is `None` for NULL.
    fn parse_text_pair(&self, tokens: &[Token]) -> Option<(String, Option<String>)> {
        let [key, colon, value] = tokens else { return None };
        let is_text = |t: &Token| matches!(t.lexeme, TokenKind::Text | TokenKind::Quoted);
        if !colon.is_symbol(b':') || !(is_text(key) || key.lexeme == TokenKind::Word) {
            return None;
        }
        let is_null = ["NULL", "None"].iter().any(|word| value.is_word(self.text, word));
        let text = is_text(value).then(|| value.unquoted_text(self.text));
        (is_null || text.is_some()).then(|| (key.unquoted_text(self.text), text))
    }

    fn label_error(&self, tokens: &[Token]) -> QueryError {
        let span = tokens.first().zip(tokens.last()).map(|(first, last)| first.start..last.end);
        QueryError::in_sql(
            "a label is not a text",
            span.or_else(|| Some(self.written.name.span())),
            "expected a label",
            "write ['a', 'b'] or [{'label': 'a', 'about': 'what it means'}, …]",
        )
    }

    /// Rejects an empty list, blank labels and repeated labels.
    fn check_labels(&self, labels: &[Label], options: &WrittenArgument) -> Result<(), QueryError> {
        if labels.is_empty() {
            let message = "the list of labels is empty";
            return Err(QueryError::in_sql(message, Some(options.span()), "no label", ""));
        }
        for (n, label) in labels.iter().enumerate() {
            let is_same = |other: &Label| other.name.trim() == label.name.trim();
            let (message, help) = if label.name.trim().is_empty() {
                ("a label is blank".to_owned(), "write what the label is called")
            } else if labels[..n].iter().any(is_same) {
                (format!("the label '{}' appears twice", label.name), "each label appears once")
            } else {
                continue;
            };
            let repeated = options.tokens.iter().rfind(|token| {
                matches!(token.lexeme, TokenKind::Text | TokenKind::Quoted | TokenKind::Number)
                    && token.unquoted_text(self.text).trim() == label.name.trim()
            });
            let span = repeated.map_or_else(|| options.span(), |token| token.span());
            return Err(QueryError::in_sql(message, Some(span), "in this list", help));
        }
        Ok(())
    }

    /// Returns options that consist of the values of a column or query and one more label.
    fn union_with_label(
        &self,
        options: &WrittenArgument,
        label: &str,
    ) -> Result<EditText, QueryError> {
        let is_in_parens = options.tokens.first().is_some_and(|first| first.is_symbol(b'('));
        let rows = match options.tokens.as_slice() {
            [one] => split_legacy_column(&one.unquoted_text(self.text))
                .map(|(table, column)| (sql::quote_name(&table), sql::quote_name(&column))),
            [table, dot, column] if dot.is_symbol(b'.') => {
                Some((table.text(self.text).to_owned(), column.text(self.text).to_owned()))
            }
            _ => None,
        };
        let rows = match rows {
            Some((table, column)) => format!("SELECT {table}.{column} FROM {table}").into(),
            None if is_in_parens => {
                EditText::concat(["SELECT * FROM ".into(), options.span().into()])
            }
            None => {
                return Err(QueryError::in_sql(
                    "the labels do not name a table",
                    Some(options.span()),
                    "expected table.column",
                    "",
                ));
            }
        };
        let label = format!(" UNION ALL SELECT {})", sql::quote_text(label));
        Ok(EditText::concat(["(".into(), rows, label.into()]))
    }
}

impl Label {
    fn new(name: String, about: Option<String>) -> Self {
        Self { literal: sql::quote_text(&name), name, about }
    }
}

/// Splits tokens at the commas outside of all brackets. A trailing comma ends the last item.
fn split_items(tokens: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0_usize;
    let is_comma = move |token: &Token| match token.lexeme {
        TokenKind::Symbol(b'{' | b'[' | b'(') => {
            depth += 1;
            false
        }
        TokenKind::Symbol(b'}' | b']' | b')') => {
            depth = depth.saturating_sub(1);
            false
        }
        TokenKind::Symbol(b',') => depth == 0,
        _ => false,
    };
    let mut items: Vec<&[Token]> = tokens.split(is_comma).collect();
    items.pop_if(|last| last.is_empty());
    items
}

/// Returns the question of a classification, or the default question.
fn choose_label_question(question: Option<&str>, is_many: bool) -> &str {
    question.unwrap_or(if is_many { "Which labels fit {}?" } else { "Which label fits {}?" })
}

/// Returns a sentence that lists the labels with their descriptions, to append to the question.
/// Returns an empty text if no label has a description.
fn describe_labels(labels: &[Label]) -> String {
    if labels.iter().all(|label| label.about.is_none()) {
        return String::new();
    }
    let describe = |label: &Label| match &label.about {
        Some(about) => format!("{}: {about}", label.name),
        None => label.name.clone(),
    };
    let described: Vec<String> = labels.iter().map(describe).collect();
    format!(" Labels: {}.", described.join("; "))
}
