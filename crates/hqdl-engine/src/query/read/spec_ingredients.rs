//! Rewrites calls of a spec's own ingredients into calls of `LLMMap` or `LLMQA`.

use crate::query::read::arguments::{ArgumentNames, MacroNode};
use crate::query::read::macros::return_type_name;
use crate::query::read::nearest::ValueSource;
use crate::query::request::error::QueryError;
use hqdl_spec::Literal;
use hqdl_spec::ingredients::{AskedOf, IngredientTable, SearchRole, SearchTable, TemplateSlot};
use hqdl_sql::blendsql::ingredients::OPTIONS;
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::{EditText, Edits};
use hqdl_values::problem::find_nearest;
use hqdl_values::sql;
use hqdl_values::value::Value;

impl<'t> MacroNode<'t> {
    /// Returns the edits for an ingredient of the spec.
    pub(super) fn rewrite_spec_ingredient(
        &self,
        own: &IngredientTable,
    ) -> Result<Edits, QueryError> {
        let (given, extra) = self.match_spec_arguments(own)?;
        // In the question, replace a literal argument with its text, and any other argument with a
        // slot.
        let mut edits = Edits::default();
        let mut names: Vec<String> = Vec::new();
        // Without a search, a first argument that is not a text is a value that the question shows.
        let has_question = own.search.is_some() || given[0].literal_content(self.text).is_some();
        let subject = if has_question { own.subject_position() } else { 0 };
        let literal = |at: usize| {
            let is_asked_about = own.of == AskedOf::Values && at == subject;
            (!is_asked_about).then(|| given[at].literal_content(self.text)).flatten()
        };
        if own.of == AskedOf::Values && subject > 0 && literal(0).is_none() {
            return Err(self.missing_argument_error("a text as its question"));
        }
        let shown = (0..given.len()).filter(|at| literal(*at).is_none()).count();
        let mut nth = 0;
        for (at, piece) in given.iter().enumerate() {
            if let Some(words) = literal(at) {
                let name = own.arguments.get(at).map_or("", String::as_str);
                let asks_with = |slot: &TemplateSlot<'_>| *slot == TemplateSlot::Argument(name);
                if !own.split_question().iter().any(asks_with) {
                    return Err(self.error_at_name(
                        format!("the question of `{}` has no slot for a text", own.name),
                        "in this call",
                        &format!("write {{{name}}} in its question, or pass a column"),
                    ));
                }
                names.push(words);
                edits.replace(piece.full_span(), "");
                continue;
            }
            nth += 1;
            let name = match (own.of, nth) {
                (AskedOf::Values, 1) => "{value}".to_owned(),
                (AskedOf::Values, n) => format!("{{value_{n}}}"),
                (AskedOf::Rows, _) if shown == 1 => "{context}".to_owned(),
                (AskedOf::Rows, n) => format!("{{context_{n}}}"),
            };
            names.push(name);
            // Remove the keyword, which LLMMap and LLMQA do not know.
            if piece.keyword.is_some() {
                edits.replace(piece.full_span().start..piece.span().start, "");
            }
        }
        let question: String = own
            .split_question()
            .into_iter()
            .map(|slot| match slot {
                TemplateSlot::Text(words) => words.to_owned(),
                TemplateSlot::Argument(name) => {
                    let at = own.arguments.iter().position(|a| a == name);
                    at.and_then(|at| names.get(at)).cloned().unwrap_or_default()
                }
            })
            .collect();
        edits.replace(self.head_span(), self.build_spec_ingredient_head(own, &question));
        if let Some(search) = &own.search {
            let is_last_removed =
                self.written.arguments.last().is_some_and(|last| edits.covers(&last.full_span()));
            for value in &extra {
                if let Some([table, column]) = self.find_unread_column(value) {
                    edits.replace(value.span(), format!("(SELECT {column} FROM {table})"));
                }
            }
            let text = match own.of {
                AskedOf::Values => self.value_sql(given[subject]),
                AskedOf::Rows => self.fill_question(&question, &extra),
            };
            self.add_search(&mut edits, search, (own.of, text), is_last_removed);
        }
        Ok(edits)
    }

    /// Matches the arguments of an ingredient of the spec. If the ingredient searches for a
    /// question that the call passes, also returns the values for the question's `{}`.
    fn match_spec_arguments(
        &self,
        own: &IngredientTable,
    ) -> Result<(Vec<&'t WrittenArgument>, Vec<&'t WrittenArgument>), QueryError> {
        let mut names: Vec<[String; 1]> = own.arguments.iter().map(|a| [a.clone()]).collect();
        if own.search.is_some() && own.of == AskedOf::Rows {
            let first = self.written.arguments.first();
            let question = first.and_then(|first| first.text_content(self.text));
            let slots = question.map_or(0, |question| question.matches("{}").count());
            names.extend((1..=slots).map(|n| [format!("value {n}")]));
        }
        let names: Vec<[&str; 1]> = names.iter().map(|[name]| [name.as_str()]).collect();
        let arguments: Vec<ArgumentNames<'_>> = names.iter().map(<[&str; 1]>::as_slice).collect();
        // All other arguments belong to LLMMap or LLMQA.
        let (given, _) = self.match_arguments(&arguments)?;
        if let Some(lacking) = given.iter().position(Option::is_none) {
            let lacking = names[lacking][0];
            let keywords = self.written.arguments.iter().filter_map(|p| p.keyword);
            let unknown = keywords.map(|keyword| keyword.text(self.text));
            let help = unknown.clone().find_map(|word| {
                find_nearest(lacking, [word])
                    .map(|near| format!("did you mean `{lacking}=` instead of `{near}=`?"))
            });
            let help = help.unwrap_or_else(|| format!("it takes {}", own.arguments.join(", ")));
            return Err(self.error_at_name(
                format!("`{}` needs `{lacking}`", own.name),
                "in this call",
                &help,
            ));
        }
        let mut given: Vec<&WrittenArgument> = given.into_iter().flatten().collect();
        let extra = given.split_off(own.arguments.len());
        Ok((given, extra))
    }

    /// Returns the table of an argument and its column as SQL if the query does not read the table.
    fn find_unread_column(&self, value: &WrittenArgument) -> Option<[String; 2]> {
        let (table, column) = value.column_names(self.text)?;
        let is_read =
            self.scope.find_source(&table).is_some() || self.scope.find_alias(&table).is_some();
        let [table, column] = [table, column].map(|name| sql::quote_name(&name));
        (!is_read).then(|| [table.clone(), format!("{table}.{column}")])
    }

    /// Returns SQL for a question with values in place of its `{}`.
    fn fill_question(&self, question: &str, values: &[&WrittenArgument]) -> EditText {
        let mut texts = question.split("{}");
        let mut parts = vec![EditText::from(sql::quote_text(texts.next().unwrap_or_default()))];
        for (text, value) in texts.zip(values) {
            parts.push(match self.find_unread_column(value) {
                // The question is about all values of the column.
                Some([table, column]) => {
                    format!("(SELECT group_concat({column}, ', ') FROM {table})").into()
                }
                None => EditText::concat(["(".into(), self.value_sql(value), ")".into()]),
            });
            parts.push(sql::quote_text(text).into());
        }
        EditText::join(parts, " || ")
    }

    /// Appends an argument to the call: the SQL of the search. `is_last_removed` is true if another
    /// edit removes the last argument, so that no comma is needed.
    fn add_search(
        &self,
        edits: &mut Edits,
        search: &SearchTable,
        (of, text): (AskedOf, EditText),
        is_last_removed: bool,
    ) {
        let found = ValueSource::from_search(search);
        let found = found.search_sql(text, search.k.to_string().into(), search.by);
        let (open, close) = match (search.role, of) {
            (SearchRole::Options, _) => ("options=json(", ")"),
            (SearchRole::Context, AskedOf::Values) => ("context=", ""),
            (SearchRole::Context, AskedOf::Rows) => ("context=(SELECT value FROM json_each(", "))"),
        };
        let Some(last) = self.written.arguments.last() else { return };
        let has_comma = last.end > last.span().end;
        let comma = if has_comma || is_last_removed { "" } else { ", " };
        let argument = EditText::concat([format!("{comma}{open}").into(), found, close.into()]);
        edits.replace(last.end..last.end, argument);
    }

    /// Returns the beginning of the call that replaces an ingredient of the spec: the name, the `(`
    /// and the arguments that the spec sets.
    fn build_spec_ingredient_head(&self, own: &IngredientTable, question: &str) -> String {
        self.build_typed_call_head(own, &sql::quote_text(question))
    }

    /// Returns the beginning of a call of `LLMMap` or `LLMQA` with the question, which is SQL, and
    /// the arguments that the ingredient sets.
    pub(super) fn build_typed_call_head(&self, own: &IngredientTable, question: &str) -> String {
        let ingredient = match own.of {
            AskedOf::Values => "LLMMap",
            AskedOf::Rows => "LLMQA",
        };
        let mut call = format!("{ingredient}({question}, ");
        // The keywords of a function are the names of its own arguments, except `options`.
        let is_own = |keyword: &str| match &own.function {
            Some(function) => function.takes_options && keyword == OPTIONS,
            None => true,
        };
        let is_set = |keyword: &str| is_own(keyword) && self.has_keyword(keyword);
        let has_return_type = own.function.is_none() && self.has_return_type();
        if let Some(kind) = return_type_name(own).filter(|_| !has_return_type) {
            call.push_str(&format!("return_type='{kind}', "));
        }
        if let Some(options) = own.options.as_ref().filter(|_| !is_set(OPTIONS)) {
            let options: Vec<String> = options.iter().map(literal_to_sql).collect();
            call.push_str(&format!("options=({},), ", options.join(", ")));
        }
        if let Some(examples) = own.examples.as_ref().filter(|_| !is_set("examples")) {
            let pairs = examples.iter().map(|[value, answer]| {
                format!("({}, {})", literal_to_sql(value), literal_to_sql(answer))
            });
            call.push_str(&format!("examples=[{}], ", pairs.collect::<Vec<_>>().join(", ")));
        }
        let outputs = own.example_outputs.as_ref();
        if let Some(outputs) = outputs.filter(|_| !is_set("example_outputs")) {
            let outputs: Vec<String> = outputs.iter().map(literal_to_sql).collect();
            call.push_str(&format!("example_outputs=({},), ", outputs.join(", ")));
        }
        if let Some(model) = own.model.as_ref().filter(|_| !is_set("model")) {
            call.push_str(&format!("model={}, ", sql::quote_text(model)));
        }
        call
    }
}

/// Returns an option as an SQL literal.
fn literal_to_sql(literal: &Literal) -> String {
    match literal {
        Literal::Boolean(true) => "1".to_owned(),
        Literal::Boolean(false) => "0".to_owned(),
        Literal::Integer(i) => i.to_string(),
        Literal::Real(r) => Value::Real(*r).to_string(),
        Literal::Text(text) => sql::quote_text(text),
    }
}
