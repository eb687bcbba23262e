//! Binds calls to the spec columns that answer their questions, and finds the query's columns that
//! make up the key.

use crate::query::cells::call_target::{CallTarget, ValueConversion};
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Route, RouteKind};
use crate::query::route::answer_parsing::{
    compile_answer_regex, required_item_count, yes_no_words,
};
use crate::query::route::call_options::{ValueListProvider, mentions_name};
use crate::query::route::calls::views::StoredCall;
use crate::query::route::calls::{Calls, PlannedExpansion};
use crate::query::route::coercion;
use crate::query::route::keys::find_bound_key;
use crate::query::route::model_router::{BindingAnswer, ModelRouter};
use crate::query::route::source_key::BoundKey;
use crate::routing::question::{SlotValue, find_binding as bound_question};
use hqdl_spec::{Binding, Column, Expansion, SLOTS, Spec, Type};
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_sql::blendsql::usage::CallUsage;
use hqdl_values::sql::quote_name;
use hqdl_values::value::Value;

impl Calls {
    /// Sets the target of a call to the spec column that answers it.
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
        let target = self.find_or_add_spec_target(bound.expansion, expansion);
        let column = &expansion.columns[bound.column];
        let conversion = ValueConversion {
            regex: compile_answer_regex(call)?,
            item_count: required_item_count(call),
            yes_no_words: yes_no_words(call, usage).filter(|_| column.kind == Type::Boolean),
            ..ValueConversion::default()
        };
        let is_plain = conversion.regex.is_none() && conversion.yes_no_words.is_none();
        let mut stored = bound.build_stored_call(column).filter(|_| is_plain);
        self.call_targets[n] = CallTarget::Cell { target, column: bound.column, conversion };
        self.sites[n].argument_sql = Some(bound.keys.texts.clone());
        if let Some(binding) = &bound.binding.sql {
            let filled = bound.fill_slot(binding);
            match &column.many {
                Some(many) => {
                    let site = &mut self.sites[n];
                    site.sql_before = list_binding_sql(binding, filled, &many.column);
                    " AS hq_list))".clone_into(&mut site.sql_after);
                }
                None => {
                    stored = self.wrap_in_binding(n, (target, expansion), bound, &filled, stored);
                }
            }
        }
        if let Some((open, close)) = bound.coercion.sql_wrapper() {
            let site = &mut self.sites[n];
            site.sql_before.insert_str(0, &open);
            site.sql_after.push_str(&close);
            if let Some(stored) = &mut stored {
                stored.value = format!("{open}{}{close}", stored.value);
            }
        }
        let stored = stored.filter(|_| !usage.is_in_list && !call.is_values_row);
        self.stored.extend(stored.map(|s| (n, s)));
        let is_bound = bound.binding.sql.is_some() || bound.is_by_model;
        self.routes.push(Route {
            call: text,
            route: if is_bound { RouteKind::Bound } else { RouteKind::Column },
            expansion: expansion.name.clone(),
            column: column.name.clone(),
            why: bound.why.clone(),
            bound: None,
        });
        Ok(())
    }

    /// Returns the position of a spec expansion among the expansions that the query uses, adding it
    /// if necessary.
    fn find_or_add_spec_target(&mut self, in_spec: usize, expansion: &Expansion) -> usize {
        let known = self.expansions.iter().position(|e| e.in_spec == Some(in_spec));
        known.unwrap_or_else(|| {
            self.expansions.push(PlannedExpansion {
                kinds: Vec::new(),
                in_spec: Some(in_spec),
                expansion: expansion.clone(),
            });
            self.expansions.len() - 1
        })
    }

    /// Wraps a call in the SQL of its binding, and adds targets for the other columns that the
    /// binding reads. Returns how a published table can answer the call; `None` if it cannot.
    fn wrap_in_binding(
        &mut self,
        n: usize,
        (target, expansion): (usize, &Expansion),
        bound: &BoundColumn,
        filled: &str,
        mut stored: Option<StoredCall>,
    ) -> Option<StoredCall> {
        let binding = bound.binding.sql.as_deref().unwrap_or_default();
        let mut others = String::new();
        for (at, other) in expansion.columns.iter().enumerate() {
            if at == bound.column || !mentions_name(binding, &other.name) {
                continue;
            }
            match &mut stored {
                Some(stored) if other.many.is_none() => stored.reads.push(at),
                _ => stored = None,
            }
            let arguments = [self.call_targets.len().to_string(), "0".to_owned()];
            self.call_targets.push(CallTarget::Cell {
                target,
                column: at,
                conversion: ValueConversion::default(),
            });
            let answer = Function::Call.call_sql(&[&arguments[..], &bound.keys.texts].concat());
            others.push_str(&format!(", {answer} AS {}", quote_name(&other.name)));
        }
        for (name, key) in expansion.key.names().iter().zip(&bound.keys.texts) {
            if mentions_name(binding, name) {
                stored = None;
                others.push_str(&format!(", {key} AS {}", quote_name(name)));
            }
        }
        if let Some(stored) = &mut stored {
            stored.value = format!("({filled})");
        }
        let name = quote_name(&expansion.columns[bound.column].name);
        let site = &mut self.sites[n];
        site.sql_before = format!("(SELECT ({filled}) FROM (SELECT ");
        site.sql_after = format!(" AS {name}{others}))");
        stored
    }
}

/// Column that answers a call's question, with the binding and the key.
pub(in crate::query) struct BoundColumn {
    pub(in crate::query) expansion: usize,
    column: usize,
    binding: Binding,
    slot: SlotValue,
    keys: BoundKey,
    /// Conversion of the value.
    coercion: coercion::Coercion,
    why: String,
    /// Whether the model chose the binding; otherwise the spec defines it.
    is_by_model: bool,
}

impl BoundColumn {
    /// Returns the columns that the answer depends on: the bound column, and the other columns that
    /// the binding's SQL reads.
    pub(in crate::query) fn list_required_columns<'e>(
        &self,
        expansion: &'e Expansion,
    ) -> impl Iterator<Item = &'e Column> {
        let sql = self.binding.sql.as_deref().unwrap_or_default();
        let is_read = move |(at, column): &(usize, &Column)| {
            *at == self.column || mentions_name(sql, &column.name)
        };
        expansion.columns.iter().enumerate().filter(is_read).map(|(_, column)| column)
    }

    /// Returns how a published table answers the call; `None` if the call does not have the key of
    /// the table's source.
    fn build_stored_call(&self, column: &Column) -> Option<StoredCall> {
        let (source, keys, table) = self.keys.stored.clone().filter(|_| column.many.is_none())?;
        Some(StoredCall {
            expansion: self.expansion,
            value: quote_name(&column.name),
            reads: vec![self.column],
            source,
            keys,
            table,
        })
    }

    /// Returns the SQL of a binding with its slot filled.
    fn fill_slot(&self, binding: &str) -> String {
        match SLOTS.into_iter().find(|slot| binding.contains(slot)) {
            Some(slot) => binding.replace(slot, &self.slot.to_sql_literal()),
            None => binding.to_owned(),
        }
    }
}

/// Function that reads the options of a call on demand.
pub(in crate::query) type OptionsReader<'o> =
    &'o dyn Fn(&mut dyn ValueListProvider) -> Result<Option<Vec<Value>>, QueryError>;

/// Returns the spec column to which a call's question is bound. The inner `Err` is the reason why
/// the nearest column does not answer it.
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
            let keys = checked.map_err(str::to_owned).and_then(|coercion| {
                Ok((coercion, find_bound_key(expansion, usage, value_provider)?))
            });
            match keys {
                Ok((coercion, keys)) => {
                    let why = format!("\"{}\"{}", binding.ask, keys.why);
                    return Ok(Ok(Some(BoundColumn {
                        expansion: e,
                        column: c,
                        binding: binding.clone(),
                        slot,
                        keys,
                        coercion,
                        why,
                        is_by_model: false,
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

/// Asks the model which column answers a call's question. The inner `Err` is the reason why no
/// column answers it, if the model was asked.
///
/// # Errors
/// Returns [`QueryError`] if the model cannot be asked.
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
        let Ok(keys) = find_bound_key(expansion, usage, value_provider) else { continue };
        match router.route_question(expansion, &call.question)? {
            BindingAnswer::Bound { column, binding, is_truth: truth, date } => {
                let column_spec = &expansion.columns[column];
                let answer_sql =
                    binding.sql.clone().unwrap_or_else(|| quote_name(&column_spec.name));
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
                return Ok(Ok(BoundColumn {
                    expansion: e,
                    column,
                    binding,
                    slot: SlotValue::NoSlot,
                    keys,
                    coercion,
                    why,
                    is_by_model: true,
                }));
            }
            BindingAnswer::NoColumn(why) => reason = Some(why),
        }
    }
    Ok(Err(reason))
}

/// Returns the SQL that precedes the list of a list column and applies the binding to the list's
/// values.
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
        quote_name(column)
    )
}
