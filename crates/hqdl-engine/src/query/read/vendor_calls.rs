//! Replaces the calls of other engines' AI functions with ingredients.
//!
//! | written | read as |
//! |---|---|
//! | `AI_FILTER(PROMPT('Is {0} big?', t.c))` | `{{LLMMap('Is {} big?', t.c, return_type='bool')}}` |
//! | `AI.IF(('Is ', t.a, ' in ', t.b))` | the same, about one text: `'a: ' \|\| (t.a) \|\| char(10) \|\| 'b: ' \|\| (t.b)` |
//! | `ai_gen('Name a color.')` | `{{LLMQA('Name a color.', return_type='str')}}` |
//! | `AI_CLASSIFY(t.c, ['a', 'b'])` | the same as `{{LLMClassify(t.c, ['a', 'b'])}}` |
//! | `AI_AGG(t.c, 'Summarize.')` | the same as `{{LLMReduce('Summarize.', t.c)}}` |
//! | `AI_EMBED('model', t.c)` | `embed(t.c)` |

use crate::query::read::arguments::MacroNode;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::Argument;
use hqdl_sql::blendsql::macros::{NamedValue, VendorIngredient, VendorQuestion};
use hqdl_sql::{EditText, Edits};
use hqdl_values::sql;

impl MacroNode<'_> {
    /// Returns the edit that replaces the call of another engine's function.
    pub(super) fn rewrite_vendor_call(
        &self,
        question: &VendorQuestion,
    ) -> Result<Edits, QueryError> {
        let VendorQuestion { ingredient, text, values } = question;
        let written = match ingredient {
            VendorIngredient::Ask { return_type, options } => {
                write_question(text, values, return_type, options)
            }
            VendorIngredient::Classify { labels, label_tokens, is_many } => {
                let text = Some(text.as_str()).filter(|text| !text.is_empty());
                let value = join_values(values);
                self.write_classification(value, labels, label_tokens, (text, *is_many))?
            }
            VendorIngredient::Reduce => {
                let query = match values.as_slice() {
                    [NamedValue { argument: Some(Argument::Query(query)), .. }] => {
                        Some(EditText::concat(["(".into(), query.clone().into(), ")".into()]))
                    }
                    _ => None,
                };
                let head = format!("{{{{LLMReduce({}, ", sql::quote_text(text));
                self.write_reduction(head.into(), query, join_values(values))?
            }
            VendorIngredient::Similarity => {
                let values = EditText::join(values.iter().map(value_sql).collect(), ", ");
                EditText::concat(["similarity(".into(), values, ")".into()])
            }
            VendorIngredient::Embed => {
                EditText::concat(["embed(".into(), join_values(values), ")".into()])
            }
        };
        let mut edits = Edits::default();
        edits.replace(self.call.span.clone(), written);
        Ok(edits)
    }
}

/// Returns a question as an ingredient: `LLMMap` about the values, or `LLMQA` if there are none.
fn write_question(
    question: &str,
    values: &[NamedValue],
    return_type: &str,
    options: &[&str],
) -> EditText {
    let question = sql::quote_text(question);
    let mut end = String::new();
    if !options.is_empty() {
        let options: Vec<String> = options.iter().map(|option| sql::quote_text(option)).collect();
        end.push_str(&format!(", options=({})", options.join(", ")));
    }
    end.push_str(&format!(", return_type='{return_type}')}}}}"));
    if values.is_empty() {
        return format!("{{{{LLMQA({question}{end}").into();
    }
    let head = format!("{{{{LLMMap({question}, ");
    EditText::concat([head.into(), join_values(values), end.into()])
}

/// Returns an expression that joins several values with their names into one text. The text is NULL
/// if any value is NULL.
fn join_values(values: &[NamedValue]) -> EditText {
    if let [value] = values {
        return value_sql(value);
    }
    let lines = values.iter().map(|value| {
        let name = sql::quote_text(&format!("{}: ", value.name));
        EditText::concat([format!("{name} || (").into(), value.span.clone().into(), ")".into()])
    });
    EditText::join(lines.collect(), " || char(10) || ")
}

/// Returns a value as an argument of an ingredient, which reads `a = b` as a named argument.
fn value_sql(value: &NamedValue) -> EditText {
    let span = EditText::from(value.span.clone());
    if value.needs_parens { EditText::concat(["(".into(), span, ")".into()]) } else { span }
}
