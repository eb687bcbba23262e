//! Checks the ingredients of a spec.

use std::collections::HashSet;

use super::{SpecCheck, join_path};
use crate::ingredients::{
    AskedOf, IngredientTable, SearchRole, SearchTable, TemplateSlot, is_name,
};
use crate::schema_check::Step;
use hqdl_sql::blendsql::ingredients;
use hqdl_values::problem::find_nearest;

impl SpecCheck<'_> {
    /// Checks the ingredients of a spec; `models` are the names of its models.
    pub(crate) fn check_ingredients(
        &mut self,
        tables: &[IngredientTable],
        models: &[&str],
    ) -> Vec<IngredientTable> {
        let mut names: HashSet<String> =
            ingredients::list_ingredients().iter().map(|i| i.name().to_lowercase()).collect();
        for (n, table) in tables.iter().enumerate() {
            let path = [Step::from("ingredient"), n.into()];
            let field_path = |field: &str| join_path(&path, &[field.into()]);
            let name = &table.name;
            if !is_name(name) {
                self.add_error(
                    &field_path("name"),
                    &format!("`{name}` cannot be the name of an ingredient"),
                    "expected letters, digits and _",
                    "",
                );
            } else if !names.insert(name.to_lowercase()) {
                self.add_error(
                    &field_path("name"),
                    &format!("an ingredient `{name}` exists already"),
                    "",
                    "choose another name",
                );
            }
            if table.question.trim().is_empty() {
                self.add_error(
                    &field_path("question"),
                    &format!("the ingredient `{name}` has no question"),
                    "",
                    "write the question, with {argument} in the place of an argument",
                );
            }
            if table.arguments.is_empty() {
                let label = "expected the arguments that the question is about";
                self.add_error(
                    &field_path("arguments"),
                    &format!("`{name}` has no argument"),
                    label,
                    "",
                );
            }
            self.check_argument_names(&field_path("arguments"), &table.arguments);
            for slot in table.split_question() {
                let TemplateSlot::Argument(slot) = slot else { continue };
                if table.arguments.iter().any(|a| a == slot) {
                    continue;
                }
                let help = find_nearest(slot, table.arguments.iter().map(String::as_str))
                    .map_or_else(
                        || format!("add `{slot}` to `arguments`"),
                        |suggestion| format!("did you mean {{{suggestion}}}?"),
                    );
                let message = format!("`{{{slot}}}` is not an argument of `{name}`");
                self.add_error(&field_path("question"), &message, "", &help);
            }
            if table.options.as_ref().is_some_and(Vec::is_empty) {
                self.add_error(
                    &field_path("options"),
                    &format!("`{name}` has no options to choose from"),
                    "",
                    "list them, or remove `options`",
                );
            }
            if let Some(search) = &table.search {
                self.check_ingredient_search(&field_path("search"), table, search);
            }
            if let Some(model) = table.model.as_ref().filter(|m| !models.contains(&m.as_str())) {
                self.add_error(
                    &field_path("model"),
                    &format!("the spec has no [model.{model}]"),
                    "",
                    "add a table [model.NAME] with its `name`, or remove `model`",
                );
            }
        }
        tables.to_vec()
    }

    fn check_argument_names(&mut self, path: &[Step], arguments: &[String]) {
        let mut seen = HashSet::new();
        for (n, argument) in arguments.iter().enumerate() {
            let argument_path = join_path(path, &[n.into()]);
            if !is_name(argument) {
                let message = format!("`{argument}` cannot be the name of an argument");
                self.add_error(&argument_path, &message, "expected letters, digits and _", "");
            } else if !seen.insert(argument.to_lowercase()) {
                self.add_error(
                    &argument_path,
                    &format!("`{argument}` occurs twice"),
                    "",
                    "name each argument once",
                );
            }
        }
    }

    fn check_ingredient_search(
        &mut self,
        path: &[Step],
        table: &IngredientTable,
        search: &SearchTable,
    ) {
        let name = &table.name;
        let values = search.values.trim();
        let is_select = values.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("select"));
        if search.column().is_none() && !is_select {
            self.add_error(
                &join_path(path, &["values".into()]),
                &format!("the values that `{name}` searches are neither a column nor a query"),
                "expected table.column",
                "write documents.text, or SELECT text FROM documents WHERE …",
            );
        }
        if search.role == SearchRole::Options
            && (table.of == AskedOf::Rows || table.options.is_some())
        {
            let message = if table.options.is_some() {
                format!("`{name}` has two lists of options")
            } else {
                format!("`{name}` asks about rows, so a search cannot find its options")
            };
            self.add_error(
                &join_path(path, &["as".into()]),
                &message,
                "",
                "write as = \"context\"",
            );
        }
    }
}
