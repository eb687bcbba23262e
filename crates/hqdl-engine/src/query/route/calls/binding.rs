//! Binds calls to columns of the spec that answer their questions, and finds the columns of the
//! query that make up the key.

use crate::query::cells::call_target::{CallTarget, ValueConversion};
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Route, RouteKind};
use crate::query::route::answer_parsing::{answer_regex, required_item_count, yes_no_words};
use crate::query::route::call_options::{ValueListProvider, mentions_name};
use crate::query::route::calls::views::StoredCall;
use crate::query::route::calls::{Calls, PlannedExpansion};
use crate::query::route::coercion;
use crate::query::route::keys::{BoundKey, bound_key};
use crate::query::route::model_router::{BindingAnswer, ModelRouter};
use crate::routing::question::{SlotValue, find_binding as bound_question};
use hqdl_spec::{Binding, Spec, Type};
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_sql::blendsql::usage::CallUsage;
use hqdl_values::value::Value;

impl Calls {
    /// Sets the target of a call to the column of the spec that answers it.
    #[expect(clippy::too_many_lines, reason = "the routes of a call in their order")]
    pub(in crate::query) fn bind_call(
        &mut self,
        n: usize,
        call: &Call,
        bound: &BoundColumn,
        usage: &CallUsage,
        spec: &Spec,
        text: String,
    ) -> Result<(), QueryError> {
        let expansion = &spec.expansions[bound.expansion];
        let target = self.expansions.iter().position(|e| e.in_spec == Some(bound.expansion));
        let target = target.unwrap_or_else(|| {
            self.expansions.push(PlannedExpansion {
                kinds: Vec::new(),
                in_spec: Some(bound.expansion),
                expansion: expansion.clone(),
            });
            self.expansions.len() - 1
        });
        let column = &expansion.columns[bound.column];
        let yes_no_words = yes_no_words(call, usage).filter(|_| column.kind == Type::Boolean);
        let conversion = ValueConversion {
            regex: answer_regex(call)?,
            item_count: required_item_count(call),
            yes_no_words,
            ..ValueConversion::default()
        };
        let plain = conversion.regex.is_none() && conversion.yes_no_words.is_none();
        let mut stored = match (&bound.keys.stored, plain, &column.many) {
            (Some((source, keys, table)), true, None) => Some(StoredCall {
                expansion: bound.expansion,
                value: hqdl_values::sql::quote_name(&column.name),
                reads: vec![bound.column],
                source: source.clone(),
                keys: keys.clone(),
                table: table.clone(),
            }),
            _ => None,
        };
        self.call_targets[n] = CallTarget::Cell { target, column: bound.column, conversion };
        let site = &mut self.sites[n];
        site.argument_sql = Some(bound.keys.texts.clone());
        let is_bound = bound.binding.sql.is_some() || bound.is_by_model;
        let route = if is_bound { RouteKind::Bound } else { RouteKind::Column };
        if let Some(binding) = &bound.binding.sql {
            let literal = bound.slot.to_sql_literal();
            let slot = hqdl_spec::SLOTS.into_iter().find(|s| binding.contains(s));
            let filled = slot.map_or_else(|| binding.clone(), |s| binding.replace(s, &literal));
            match &column.many {
                Some(many) => {
                    site.sql_before = list_binding_sql(binding, filled, &many.column);
                    " AS hq_list))".clone_into(&mut site.sql_after);
                }
                None => {
                    // Demand the other columns that the binding reads, too.
                    let mut others = String::new();
                    for (at, other) in expansion.columns.iter().enumerate() {
                        if at == bound.column || !mentions_name(binding, &other.name) {
                            continue;
                        }
                        let number = self.call_targets.len();
                        match &mut stored {
                            Some(stored) if other.many.is_none() => stored.reads.push(at),
                            _ => stored = None,
                        }
                        self.call_targets.push(CallTarget::Cell {
                            target,
                            column: at,
                            conversion: ValueConversion::default(),
                        });
                        let arguments = [number.to_string(), "0".to_owned()];
                        let answer =
                            Function::Call.call_sql(&[&arguments[..], &bound.keys.texts].concat());
                        let name = hqdl_values::sql::quote_name(&other.name);
                        others.push_str(&format!(", {answer} AS {name}"));
                    }
                    for (name, key) in expansion.key.names().iter().zip(&bound.keys.texts) {
                        if mentions_name(binding, name) {
                            stored = None;
                            others.push_str(&format!(
                                ", {key} AS {}",
                                hqdl_values::sql::quote_name(name)
                            ));
                        }
                    }
                    if let Some(stored) = &mut stored {
                        stored.value = format!("({filled})");
                    }
                    site.sql_before = format!("(SELECT ({filled}) FROM (SELECT ");
                    site.sql_after =
                        format!(" AS {}{others}))", hqdl_values::sql::quote_name(&column.name));
                }
            }
        }
        if let Some((open, close)) = bound.coercion.sql_wrapper() {
            site.sql_before.insert_str(0, &open);
            site.sql_after.push_str(&close);
            if let Some(stored) = &mut stored {
                stored.value = format!("{open}{}{close}", stored.value);
            }
        }
        let stored = stored.filter(|_| !usage.is_in_list && !call.is_values_row);
        self.stored.extend(stored.map(|s| (n, s)));
        self.routes.push(Route {
            call: text,
            route,
            expansion: expansion.name.clone(),
            column: column.name.clone(),
            why: bound.why.clone(),
        });
        Ok(())
    }
}

/// Column that answers a question, with its binding and key.
pub(in crate::query) struct BoundColumn {
    pub(in crate::query) expansion: usize,
    column: usize,
    binding: Binding,
    slot: SlotValue,
    keys: BoundKey,
    /// Conversion of the value.
    coercion: coercion::Coercion,
    why: String,
    /// The model found the binding, not the spec.
    is_by_model: bool,
}

/// Reads the options of a call when they are needed.
pub(in crate::query) type OptionsReader<'o> =
    &'o dyn Fn(&mut dyn ValueListProvider) -> Result<Option<Vec<Value>>, QueryError>;

/// Returns the column of the spec that a call's question is bound to. The inner `Err` is the reason
/// why the nearest column does not answer it.
///
/// # Errors
/// Returns [`QueryError`] if stored values cannot be read.
pub(in crate::query) fn find_bound_column(
    spec: &Spec,
    call: &Call,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
    options: OptionsReader<'_>,
) -> Result<Result<Option<BoundColumn>, String>, QueryError> {
    let mut nearest_reason = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        for (c, column) in expansion.columns.iter().enumerate() {
            let mut failed = None;
            let found = bound_question(&expansion.columns, c, &call.question, &mut |of| {
                value_provider.stored_values(e, of).unwrap_or_else(|error| {
                    failed = Some(error);
                    None
                })
            });
            if let Some(error) = failed {
                return Err(error);
            }
            let (binding, slot) = match found {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(reason) => {
                    nearest_reason = Some(reason);
                    continue;
                }
            };
            let truth = match &binding.sql {
                Some(sql) => coercion::is_condition(sql),
                None => column.kind == Type::Boolean && column.many.is_none(),
            };
            let chosen = options(value_provider)?;
            let computed = binding.sql.is_some();
            let checked =
                coercion::choose_coercion(call, usage, column, truth, computed, chosen.as_deref());
            let keys = checked
                .map_err(str::to_owned)
                .and_then(|coercion| Ok((coercion, bound_key(expansion, usage, value_provider)?)));
            match keys {
                Ok((coercion, keys)) => {
                    let why = format!("\"{}\"{}", binding.ask, keys.why);
                    let binding = binding.clone();
                    let (expansion, column, by_model) = (e, c, false);
                    return Ok(Ok(Some(BoundColumn {
                        expansion,
                        column,
                        binding,
                        slot,
                        keys,
                        coercion,
                        why,
                        is_by_model: by_model,
                    })));
                }
                Err(reason) => {
                    nearest_reason = Some(format!(
                        "`{}.{}` answers this question, but {reason}",
                        expansion.name, column.name
                    ));
                }
            }
        }
    }
    Ok(nearest_reason.map_or(Ok(None), Err))
}

/// Asks the model which column answers a call's question. The inner `Err` is the reason why none
/// does, if the model was asked.
///
/// # Errors
/// [`QueryError`] if the model cannot be asked.
pub(in crate::query) fn route_by_model(
    spec: &Spec,
    call: &Call,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
    options: OptionsReader<'_>,
    router: &mut ModelRouter<'_, '_>,
) -> Result<Result<BoundColumn, Option<String>>, QueryError> {
    let mut reason = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        // Skip expansions whose key the call cannot provide.
        let Ok(keys) = bound_key(expansion, usage, value_provider) else { continue };
        match router.route_question(expansion, &call.question)? {
            BindingAnswer::Bound { column, binding, is_truth: truth, date } => {
                let column_spec = &expansion.columns[column];
                let answer_sql = binding
                    .sql
                    .clone()
                    .unwrap_or_else(|| hqdl_values::sql::quote_name(&column_spec.name));
                let computed = binding.sql.is_some();
                let chosen = options(value_provider)?;
                let coercion = match coercion::choose_coercion(
                    call,
                    usage,
                    column_spec,
                    truth,
                    computed,
                    chosen.as_deref(),
                ) {
                    Ok(coercion) => coercion,
                    Err(why) => {
                        reason = Some(format!("by the model, {date}: {answer_sql}; but {why}"));
                        continue;
                    }
                };
                let why = format!("by the model, {date}: {answer_sql}{}", keys.why);
                let (expansion, slot, by_model) = (e, SlotValue::NoSlot, true);
                return Ok(Ok(BoundColumn {
                    expansion,
                    column,
                    binding,
                    slot,
                    keys,
                    coercion,
                    why,
                    is_by_model: by_model,
                }));
            }
            BindingAnswer::NoColumn(why) => reason = Some(why),
        }
    }
    Ok(Err(reason))
}

/// Returns the SQL before the list of a list column: a binding over the list's values.
fn list_binding_sql(binding: &str, filled: String, column: &str) -> String {
    let trimmed = binding.trim();
    let is_exists = trimmed.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"))
        && !trimmed[6..].trim_start().starts_with('(');
    let expression = if is_exists {
        format!("count(*) FILTER (WHERE value = {}) > 0", &filled.trim()[6..])
    } else {
        filled
    };
    format!(
        "(SELECT CASE WHEN hq_list IS NULL THEN NULL ELSE (SELECT {expression} FROM (SELECT value, \
         value AS {} FROM json_each(hq_list))) END FROM (SELECT ",
        hqdl_values::sql::quote_name(column)
    )
}
