//! Checks the ingredients of a spec.

use std::collections::HashSet;

use super::{Check, join};
use crate::ingredients::{IngredientTable, TemplateSlot, is_name};
use crate::shape::Step;
use hqdl_sql::blendsql::ingredients;
use hqdl_values::problem::nearest;

impl Check<'_> {
    /// Checks the ingredients of a spec; `models` are the names of its models.
    pub(crate) fn ingredients(
        &mut self,
        tables: &[IngredientTable],
        models: &[&str],
    ) -> Vec<IngredientTable> {
        let mut names: HashSet<String> =
            ingredients::all().iter().map(|i| i.name().to_lowercase()).collect();
        for (n, table) in tables.iter().enumerate() {
            let place = [Step::from("ingredient"), n.into()];
            let at = |field: &str| join(&place, &[field.into()]);
            let name = &table.name;
            if !is_name(name) {
                self.error(
                    &at("name"),
                    &format!("`{name}` cannot be the name of an ingredient"),
                    "expected letters, digits and _",
                    "",
                );
            } else if !names.insert(name.to_lowercase()) {
                self.error(&at("name"), &format!("an ingredient `{name}` exists already"), "", "");
            }
            if table.question.trim().is_empty() {
                self.error(
                    &at("question"),
                    &format!("the ingredient `{name}` has no question"),
                    "",
                    "",
                );
            }
            if table.arguments.is_empty() {
                let label = "expected the arguments that the question is about";
                self.error(&at("arguments"), &format!("`{name}` has no argument"), label, "");
            }
            let mut seen = HashSet::new();
            for (n, argument) in table.arguments.iter().enumerate() {
                let here = join(&at("arguments"), &[n.into()]);
                if !is_name(argument) {
                    let message = format!("`{argument}` cannot be the name of an argument");
                    self.error(&here, &message, "expected letters, digits and _", "");
                } else if !seen.insert(argument.to_lowercase()) {
                    self.error(&here, &format!("`{argument}` occurs twice"), "", "");
                }
            }
            for slot in table.slots() {
                let TemplateSlot::Argument(slot) = slot else { continue };
                if table.arguments.iter().any(|a| a == slot) {
                    continue;
                }
                let help = nearest(slot, table.arguments.iter().map(String::as_str))
                    .map_or_else(String::new, |near| format!("did you mean {{{near}}}?"));
                let message = format!("`{{{slot}}}` is not an argument of `{name}`");
                self.error(&at("question"), &message, "", &help);
            }
            if table.options.as_ref().is_some_and(Vec::is_empty) {
                self.error(
                    &at("options"),
                    &format!("`{name}` has no options to choose from"),
                    "",
                    "",
                );
            }
            if let Some(model) = table.model.as_ref().filter(|m| !models.contains(&m.as_str())) {
                self.error(&at("model"), &format!("the spec has no [model.{model}]"), "", "");
            }
        }
        tables.to_vec()
    }
}
