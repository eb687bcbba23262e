//! Binds calls to columns of the spec that answer their questions, and finds the columns of the
//! query that make up the key.

use crate::query::asks::{Asks, ValueForm};
use crate::query::binder::{Binder, Word};
use crate::query::calls::views::Stored;
use crate::query::calls::{AdHoc, Calls};
use crate::query::choosing::{Choosing, mentions};
use crate::query::keys::{BoundKey, keys};
use crate::query::reading::{quantity, regex, spelled};
use crate::query::smoothie::{Route, RouteKind};
use crate::query::{QueryError, fits};
use crate::routing::question::{Slot, binding as bound_question};
use hqdl_spec::{Binding, Spec, Type};
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_sql::blendsql::usage::CallUsage;
use hqdl_values::value::Value;

impl Calls {
    /// Sets the target of a call to the column of the spec that answers it.
    pub(in crate::query) fn bind(
        &mut self,
        n: usize,
        call: &Call,
        bound: &Bound,
        usage: &CallUsage,
        spec: &Spec,
        text: String,
    ) -> Result<(), QueryError> {
        let expansion = &spec.expansions[bound.expansion];
        let target = self.expansions.iter().position(|e| e.in_spec == Some(bound.expansion));
        let target = target.unwrap_or_else(|| {
            self.expansions.push(AdHoc {
                kinds: Vec::new(),
                in_spec: Some(bound.expansion),
                expansion: expansion.clone(),
            });
            self.expansions.len() - 1
        });
        let column = &expansion.columns[bound.column];
        let words = spelled(call, usage).filter(|_| column.kind == Type::Boolean);
        let form = ValueForm {
            regex: regex(call)?,
            quantity: quantity(call),
            words,
            ..ValueForm::default()
        };
        let plain = form.regex.is_none() && form.words.is_none();
        let mut stored = match (&bound.keys.stored, plain, &column.many) {
            (Some((source, keys, of)), true, None) => Some(Stored {
                expansion: bound.expansion,
                value: hqdl_values::sql::name(&column.name),
                reads: vec![bound.column],
                source: source.clone(),
                keys: keys.clone(),
                of: of.clone(),
            }),
            _ => None,
        };
        self.asks[n] = Asks::Cell { target, column: bound.column, form };
        let site = &mut self.sites[n];
        site.keys = Some(bound.keys.texts.clone());
        let is_bound = bound.binding.sql.is_some() || bound.by_model;
        let route = if is_bound { RouteKind::Bound } else { RouteKind::Column };
        if let Some(binding) = &bound.binding.sql {
            let literal = bound.slot.literal();
            let slot = hqdl_spec::SLOTS.into_iter().find(|s| binding.contains(s));
            let filled = slot.map_or_else(|| binding.clone(), |s| binding.replace(s, &literal));
            match &column.many {
                Some(many) => {
                    site.before = of_list(binding, filled, &many.column);
                    " AS hq_list))".clone_into(&mut site.after);
                }
                None => {
                    // Demand the other columns that the binding reads, too.
                    let mut others = String::new();
                    for (at, other) in expansion.columns.iter().enumerate() {
                        if at == bound.column || !mentions(binding, &other.name) {
                            continue;
                        }
                        let number = self.asks.len();
                        match &mut stored {
                            Some(stored) if other.many.is_none() => stored.reads.push(at),
                            _ => stored = None,
                        }
                        self.asks.push(Asks::Cell {
                            target,
                            column: at,
                            form: ValueForm::default(),
                        });
                        let arguments = [number.to_string(), "0".to_owned()];
                        let answer =
                            Function::Call.of(&[&arguments[..], &bound.keys.texts].concat());
                        let name = hqdl_values::sql::name(&other.name);
                        others.push_str(&format!(", {answer} AS {name}"));
                    }
                    for (name, key) in expansion.key.names().iter().zip(&bound.keys.texts) {
                        if mentions(binding, name) {
                            stored = None;
                            others
                                .push_str(&format!(", {key} AS {}", hqdl_values::sql::name(name)));
                        }
                    }
                    if let Some(stored) = &mut stored {
                        stored.value = format!("({filled})");
                    }
                    site.before = format!("(SELECT ({filled}) FROM (SELECT ");
                    site.after = format!(" AS {}{others}))", hqdl_values::sql::name(&column.name));
                }
            }
        }
        if let Some((open, close)) = bound.form.around() {
            site.before.insert_str(0, &open);
            site.after.push_str(&close);
            if let Some(stored) = &mut stored {
                stored.value = format!("{open}{}{close}", stored.value);
            }
        }
        let stored = stored.filter(|_| !usage.set && !call.row);
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
pub(in crate::query) struct Bound {
    pub(in crate::query) expansion: usize,
    column: usize,
    binding: Binding,
    slot: Slot,
    keys: BoundKey,
    /// Conversion of the value.
    form: fits::Given,
    why: String,
    /// The model found the binding, not the spec.
    by_model: bool,
}

/// Reads the options of a call when they are needed.
pub(in crate::query) type OptionsReader<'o> =
    &'o dyn Fn(&mut dyn Choosing) -> Result<Option<Vec<Value>>, QueryError>;

/// Returns the column of the spec that a call's question is bound to. The inner `Err` is the reason
/// why the nearest column does not answer it.
///
/// # Errors
/// [`QueryError`] if stored values cannot be read.
pub(in crate::query) fn bound(
    spec: &Spec,
    call: &Call,
    usage: &CallUsage,
    choosing: &mut dyn Choosing,
    options: OptionsReader<'_>,
) -> Result<Result<Option<Bound>, String>, QueryError> {
    let mut near = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        for (c, column) in expansion.columns.iter().enumerate() {
            let mut failed = None;
            let found = bound_question(&expansion.columns, c, &call.question, &mut |of| {
                choosing.stored(e, of).unwrap_or_else(|error| {
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
                    near = Some(reason);
                    continue;
                }
            };
            let truth = match &binding.sql {
                Some(sql) => fits::is_truth(sql),
                None => column.kind == Type::Boolean && column.many.is_none(),
            };
            let chosen = options(choosing)?;
            let computed = binding.sql.is_some();
            let fitting = fits::fits(call, usage, column, truth, computed, chosen.as_deref());
            let keys = fitting
                .map_err(str::to_owned)
                .and_then(|form| Ok((form, keys(expansion, usage, choosing)?)));
            match keys {
                Ok((form, keys)) => {
                    let why = format!("\"{}\"{}", binding.ask, keys.why);
                    let binding = binding.clone();
                    let (expansion, column, by_model) = (e, c, false);
                    return Ok(Ok(Some(Bound {
                        expansion,
                        column,
                        binding,
                        slot,
                        keys,
                        form,
                        why,
                        by_model,
                    })));
                }
                Err(reason) => {
                    near = Some(format!(
                        "`{}.{}` answers this question, but {reason}",
                        expansion.name, column.name
                    ));
                }
            }
        }
    }
    Ok(near.map_or(Ok(None), Err))
}

/// Asks the model which column answers a call's question. The inner `Err` is the reason why none
/// does, if the model was asked.
///
/// # Errors
/// [`QueryError`] if the model cannot be asked.
pub(in crate::query) fn learned(
    spec: &Spec,
    call: &Call,
    usage: &CallUsage,
    choosing: &mut dyn Choosing,
    options: OptionsReader<'_>,
    binder: &mut Binder<'_, '_>,
) -> Result<Result<Bound, Option<String>>, QueryError> {
    let mut reason = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        // Skip expansions whose key the call cannot provide.
        let Ok(keys) = keys(expansion, usage, choosing) else { continue };
        match binder.bind(expansion, &call.question)? {
            Word::Bound { column, binding, truth, date } => {
                let of = &expansion.columns[column];
                let how = binding.sql.clone().unwrap_or_else(|| hqdl_values::sql::name(&of.name));
                let computed = binding.sql.is_some();
                let chosen = options(choosing)?;
                let form = match fits::fits(call, usage, of, truth, computed, chosen.as_deref()) {
                    Ok(form) => form,
                    Err(why) => {
                        reason = Some(format!("by the model, {date}: {how}; but {why}"));
                        continue;
                    }
                };
                let why = format!("by the model, {date}: {how}{}", keys.why);
                let (expansion, slot, by_model) = (e, Slot::None, true);
                return Ok(Ok(Bound {
                    expansion,
                    column,
                    binding,
                    slot,
                    keys,
                    form,
                    why,
                    by_model,
                }));
            }
            Word::No(why) => reason = Some(why),
        }
    }
    Ok(Err(reason))
}

/// Returns the SQL before the list of a list column: a binding over the list's values.
fn of_list(binding: &str, filled: String, column: &str) -> String {
    let rest = binding.trim();
    let exists = rest.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"))
        && !rest[6..].trim_start().starts_with('(');
    let expression = if exists {
        format!("count(*) FILTER (WHERE value = {}) > 0", &filled.trim()[6..])
    } else {
        filled
    };
    format!(
        "(SELECT CASE WHEN hq_list IS NULL THEN NULL ELSE (SELECT {expression} FROM (SELECT value, \
         value AS {} FROM json_each(hq_list))) END FROM (SELECT ",
        hqdl_values::sql::name(column)
    )
}
