//! Checks `escalate`, which selects the cells of a column that a second model answers again.

use super::{SpecCheck, join_path};
use crate::Escalation;
use crate::file::{EscalateTable, EscalationCase, SpecFile};
use crate::schema_check::Step;
use hqdl_values::cell::State;

/// Cases of an `escalate` without `when`.
const DEFAULT_CASES: [EscalationCase; 3] =
    [EscalationCase::Unknown, EscalationCase::NotInList, EscalationCase::Invalid];

/// Returns the name under which the answers of a model are stored: the `name` of a `[model.NAME]` or
/// of `[model]`.
fn stored_name<'f>(name: &'f str, file: &'f SpecFile) -> &'f str {
    file.model.others.get(name).map_or(name, |model| model.name.as_str())
}

impl SpecCheck<'_> {
    /// Checks an `escalate` table and returns the rule that it defines. `first` is the model that
    /// answers first, as in [`crate::Column::model`].
    pub(super) fn check_escalation(
        &mut self,
        path: &[Step],
        table: &EscalateTable,
        first: Option<&str>,
        file: &SpecFile,
    ) -> Escalation {
        let field_path = |field: &str| join_path(path, &[field.into()]);
        let main = file.model.name.as_str();
        let first = first.unwrap_or(main);
        let mut models = vec![("to", Some(&table.to)), ("compare", table.compare.as_ref())];
        models.retain(|(_, name)| name.is_some());
        for (field, name) in models.into_iter().filter_map(|(f, name)| Some((f, name?))) {
            self.check_model_name(&field_path(field), name, file);
            if name == first {
                let message = format!("`{field}` is the model that answers first, `{name}`");
                self.add_error(&field_path(field), &message, "", "name another model");
            } else if stored_name(name, file) == stored_name(first, file)
                && !file.model.parameters_identity
            {
                let message = format!(
                    "`{field}` has the same `name` as the model that answers first, so their answers are not told apart"
                );
                let help = "name another model, or set `parameters_identity = true` in [model] if the parameters differ";
                self.add_error(&field_path(field), &message, "", help);
            }
        }
        if table.compare.as_ref() == Some(&table.to) {
            let message = "`compare` and `to` are the same model";
            let help = "compare with another cheap model, which decides whether `to` is asked";
            self.add_error(&field_path("compare"), message, "", help);
        }
        if table.target.is_some() {
            let help = "remove it; the cases of `when` apply without a guarantee";
            self.add_error(&field_path("target"), "`target` is not supported yet", "", help);
        }
        let cases = table.when.clone().unwrap_or_else(|| DEFAULT_CASES.to_vec());
        self.check_cases(&field_path("when"), &cases, table.compare.is_some());
        let to_state = |case: &EscalationCase| match case {
            EscalationCase::Unknown => Some(State::Unknown),
            EscalationCase::NotInList => Some(State::NotInList),
            EscalationCase::Invalid => Some(State::Invalid),
            EscalationCase::Refused => Some(State::Refused),
            EscalationCase::Disagree | EscalationCase::LowConfidence => None,
        };
        Escalation {
            to: table.to.clone(),
            states: cases.iter().filter_map(to_state).collect(),
            compare: table.compare.clone(),
        }
    }

    fn check_cases(&mut self, path: &[Step], cases: &[EscalationCase], has_compare: bool) {
        if cases.is_empty() {
            let help = "name cases such as \"unknown\", or remove `when`";
            self.add_error(path, "`when` names no case, so `to` is never asked", "", help);
        }
        if cases.contains(&EscalationCase::LowConfidence) {
            let help = "remove it; \"disagree\" asks `to` if two models answer differently";
            self.add_error(path, "`low_confidence` is not supported yet", "", help);
        }
        let asks_to_compare = cases.contains(&EscalationCase::Disagree);
        if asks_to_compare && !has_compare {
            let help = "name the second model in `compare`";
            self.add_error(path, "`disagree` needs a second model", "", help);
        } else if has_compare && !asks_to_compare {
            let help = "add \"disagree\" to `when`, or remove `compare`";
            self.add_error(path, "`compare` has no effect without `disagree`", "", help);
        }
    }
}
