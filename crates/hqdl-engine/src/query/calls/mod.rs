//! Maps each call to its target: the column of the spec that answers it, or a column of an ad-hoc
//! expansion with the type, options and key that the query specifies.

pub(in crate::query) mod binding;
pub(in crate::query) mod views;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::query::asks::{Asks, ValueForm};
use crate::query::binder::Binder;
use crate::query::calls::binding::{bound, learned};
use crate::query::calls::views::Stored;
use crate::query::choosing::{Choosing, options};
use crate::query::documents;
use crate::query::kinds::Kinds;
use crate::query::reading::{
    column, filled, is_list, is_ordered_number, is_untold, kind, quantity, regex, said_quantity,
    together,
};
use crate::query::smoothie::{Route, RouteKind};
use crate::query::targets::Target;
use crate::query::{QueryError, Request};
use hqdl_facts::QuestionOrigin;
use hqdl_spec::checker::Checker;
use hqdl_spec::{Column, Expansion, Images, Spec, Task, Type};
use hqdl_sql::blendsql::lexer::{Brackets, Lexeme, Token, next};
use hqdl_sql::blendsql::parse::Parsed;
use hqdl_sql::blendsql::rewrite::CallSite;
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith};
use hqdl_sql::blendsql::{Call, Choices, Subject};
use hqdl_values::cell::State;
use hqdl_values::key::{Fingerprint, ListHash};
use hqdl_values::value::Value;

/// Targets of a query's calls.
#[derive(Default)]
pub struct Calls {
    /// Call sites, by call number.
    pub sites: Vec<CallSite>,
    /// Targets, by call number. Targets of further columns that bindings read follow at the end.
    pub asks: Vec<Asks>,
    /// Bound calls that a published table may answer, by call number.
    pub(in crate::query) stored: HashMap<usize, Stored>,
    /// Expansions that the query uses.
    pub expansions: Vec<AdHoc>,
    /// Joins of the query.
    pub joins: Vec<Join>,
    /// Origins of the values that ad-hoc questions are asked about.
    pub births: Vec<Birth>,
    /// Routes, by call number.
    pub routes: Vec<Route>,
    /// Name of the model of each call in the spec; `None` for that of `[model]`.
    pub(in crate::query) models: Vec<Option<String>>,
    /// Positions of the columns of ad-hoc expansions.
    columns_at: HashMap<(usize, CallColumn), usize>,
    /// Expansions of questions about rows, by model, context names and column.
    questions_at: HashMap<(Option<String>, Vec<String>, CallColumn), usize>,
    /// What the values of columns are.
    pub(in crate::query) kinds: Kinds,
}

/// Identity of a column: its fingerprint and the hash of its value list.
type CallColumn = (Fingerprint, Option<ListHash>);

fn asked(column: &Column) -> CallColumn {
    (column.fingerprint.clone(), column.values.as_ref().map(|v| v.hash.clone()))
}

/// Origin of the values that an ad-hoc question is asked about.
#[derive(Debug, Clone)]
pub struct Birth {
    /// Position of the expansion.
    pub target: usize,
    /// Position of the column.
    pub column: usize,
    /// Table and column that the values come from.
    pub origin: QuestionOrigin,
}

/// An expansion that the query uses.
pub struct AdHoc {
    /// The kinds of the values that it asks about.
    pub kinds: Vec<String>,
    /// Position in the spec; `None` if the query created it.
    pub in_spec: Option<usize>,
    /// The expansion.
    pub expansion: Expansion,
}

/// A join of two sides by the model.
#[derive(Debug, Clone)]
pub struct Join {
    /// The condition that two values must meet to be partners.
    pub criterion: String,
    /// Name of the left key column.
    pub left: String,
    /// Number of the call.
    pub call: usize,
    /// Maximum number of right values shown to the model, those most similar to the left value
    /// (`narrow=N`).
    pub narrow: Option<usize>,
    /// Name of the model in the spec; `None` for that of `[model]`.
    pub model: Option<String>,
}

/// Usages of the calls, derived from their places in the query.
pub(in crate::query) struct Usages<'u> {
    /// Usages over the tables and views that the query reads.
    pub plain: &'u HashMap<usize, CallUsage>,
    /// Usages over the tables behind the views, if the query reads a view.
    pub through: Option<&'u HashMap<usize, CallUsage>>,
    /// What the values of columns are.
    pub kinds: Kinds,
}

impl Calls {
    /// Determines the target of each call.
    ///
    /// # Errors
    /// [`QueryError`] if options cannot be read, or a call is invalid.
    pub fn decide(
        sql: &str,
        parsed: &Parsed,
        usages: &Usages<'_>,
        spec: &Spec,
        choosing: &mut dyn Choosing,
        binder: &mut Binder<'_, '_>,
    ) -> Result<Self, QueryError> {
        let mut calls = Self {
            asks: vec![Asks::Pair { join: usize::MAX }; parsed.calls.len()],
            models: parsed.calls.iter().map(|call| of_spec(call, spec)).collect(),
            kinds: usages.kinds.clone(),
            sites: parsed
                .calls
                .iter()
                .map(|c| CallSite { subject: c.ingredient.subject(), ..CallSite::default() })
                .collect(),
            ..Self::default()
        };
        let (alone, through) = (usages.plain, usages.through.map(|u| together(parsed, u)));
        let usages = &together(parsed, alone);
        for (n, call) in parsed.calls.iter().enumerate() {
            let unknown = CallUsage::default();
            let usage = usages.get(&n).unwrap_or(&unknown);
            let text = sql[call.span.clone()].to_owned();
            check_group(call, alone.get(&n).unwrap_or(&unknown))?;
            match call.ingredient.subject() {
                Subject::Value | Subject::Document => {
                    let mut why = "no column of the spec answers this question".to_owned();
                    if spec.expansions.is_empty() {
                        "there is no spec".clone_into(&mut why);
                    }
                    let chosen = |choosing: &mut dyn Choosing| {
                        options(sql, parsed, call, usage, choosing, false)
                    };
                    let mut found = bound(spec, call, usage, choosing, &chosen)?;
                    // Columns of the view itself come first, since a view may be the source of an
                    // expansion.
                    let through = through.as_ref().and_then(|through| through.get(&n));
                    if let (Some(through), false) = (through, matches!(found, Ok(Some(_))))
                        && let Ok(Some(bound)) = bound(spec, call, through, choosing, &chosen)?
                    {
                        found = Ok(Some(bound));
                    }
                    match found {
                        Ok(Some(bound)) => {
                            let expansion = &spec.expansions[bound.expansion];
                            match calls
                                .another_model(n, call, expansion)
                                .or(unseen(call, expansion))
                            {
                                None => {
                                    calls.bind(n, call, &bound, usage, spec, text)?;
                                    continue;
                                }
                                Some(reason) => why = reason,
                            }
                        }
                        Ok(None) => {}
                        Err(reason) => why = reason,
                    }
                    if spec.routing_by_model && call.model.is_none() && !call.image {
                        match learned(spec, call, usage, choosing, &chosen, binder)? {
                            Ok(bound) => {
                                calls.bind(n, call, &bound, usage, spec, text)?;
                                continue;
                            }
                            Err(reason) => why = reason.unwrap_or(why),
                        }
                    }
                    let usage = &match through {
                        Some(through) => usage.based_on(through),
                        None => usage.clone(),
                    };
                    if call.ingredient.subject() == Subject::Value {
                        calls.map(n, sql, parsed, usage, choosing, &spec.images)?;
                    } else {
                        calls.answer(n, call, usage, alone.get(&n).unwrap_or(&unknown));
                    }
                    calls.live(n, call, text, why);
                }
                Subject::Rows => {
                    calls.qa(n, sql, parsed, usage, choosing)?;
                    calls.live(
                        n,
                        call,
                        text,
                        "the question is about rows, not about an entity".to_owned(),
                    );
                }
                Subject::Pair => {
                    let criterion = match call.question.trim() {
                        "" => call.ingredient.default_question(),
                        said => said,
                    };
                    let criterion = criterion.to_owned();
                    calls.asks[n] = Asks::Pair { join: calls.joins.len() };
                    let left = usage.keys.first().and_then(|k| k.name.clone());
                    let left = left.unwrap_or_else(|| "value".to_owned());
                    let narrow = call.narrow.map(|n| n as usize);
                    let model = calls.models[n].clone();
                    calls.joins.push(Join { criterion, left, call: n, narrow, model });
                    calls.live(n, call, text, "a join asks about pairs of values".to_owned());
                }
            }
        }
        Ok(calls)
    }

    /// Returns the reason if a column cannot answer a call because they name different models.
    fn another_model(&self, n: usize, call: &Call, expansion: &Expansion) -> Option<String> {
        let said = call.model.as_ref().map(|(name, _)| name)?;
        (self.models[n] != expansion.model)
            .then(|| format!("its column uses another model than `{said}`"))
    }

    fn live(&mut self, n: usize, call: &Call, text: String, mut why: String) {
        if let Some((said, _)) = &call.model {
            why.push_str("; asked of `");
            why.push_str(said);
            why.push('`');
        }
        let column = match &self.asks[n] {
            Asks::Cell { target, column, .. } | Asks::Document { target, column, .. } => {
                self.expansions[*target].expansion.columns.get(*column)
            }
            Asks::Rows { target, .. } => self.expansions[*target].expansion.columns.first(),
            Asks::Pair { .. } => None,
        };
        if call.options.is_some() && column.is_some_and(|c| c.values.is_none()) {
            why.push_str("; its options come from calls that are not answered yet");
        }
        let (expansion, column) = match &self.asks[n] {
            Asks::Cell { target, .. }
            | Asks::Document { target, .. }
            | Asks::Rows { target, .. } => {
                (self.expansions[*target].expansion.name.clone(), call.question.clone())
            }
            Asks::Pair { .. } => (String::new(), call.question.clone()),
        };
        self.routes.push(Route { call: text, route: RouteKind::AdHoc, expansion, column, why });
    }

    /// Sets the target of a question about each value to an ad-hoc column.
    fn map(
        &mut self,
        n: usize,
        sql: &str,
        parsed: &Parsed,
        usage: &CallUsage,
        choosing: &mut dyn Choosing,
        images: &Images,
    ) -> Result<(), QueryError> {
        let call = &parsed.calls[n];
        let values = options(sql, parsed, call, usage, choosing, false)?;
        let kind = kind(call, usage, values.as_deref());
        consistent(call, kind, values.as_deref(), parsed)?;
        // The names do not depend on the query, so that the same question about a value has one
        // identity.
        let names: Vec<String> = (1..=usage.keys.len())
            .map(|n| match n {
                1 if call.image => IMAGE.to_owned(),
                1 => "value".to_owned(),
                n => format!("value_{n}"),
            })
            .collect();
        let question = filled(&call.question, &names) + &said_quantity(call);
        let mut column = column(&question, kind, values, is_list(call), &names);
        // A text that the answer is compared with serves as an example of its format.
        column.example = usage.compared.iter().find_map(|c| match c {
            ComparedWith::Text(text) if column.values.is_none() => Some(text.clone()),
            _ => None,
        });
        column.pattern.clone_from(&call.regex);
        column.part_of = (call.substring && !call.image).then_some(0);
        self.kinds.tell(&mut column, usage);
        let untold = is_untold(call, usage, &column) || is_ordered_number(call, usage, &column);
        let kinds = column.meaning.kinds.clone();
        let target = self.values(self.models[n].clone(), names, kinds);
        if call.image {
            let expansion = &mut self.expansions[target].expansion;
            expansion.task = Task::Columns;
            expansion.images = vec![IMAGE.to_owned()];
            expansion.image_files = images.clone();
        }
        let at = self.column(target, column);
        self.birth(target, at, usage);
        let whole = call.return_type.or(usage.said).is_none() && kind == Type::Real;
        let form =
            ValueForm { whole, untold, regex: regex(call)?, quantity: quantity(call), words: None };
        self.asks[n] = Asks::Cell { target, column: at, form };
        // A query in an argument counts as one value of the key.
        self.place(n, call, usage);
        Ok(())
    }

    /// Sets the target of a question about the rows of queries.
    fn qa(
        &mut self,
        n: usize,
        sql: &str,
        parsed: &Parsed,
        usage: &CallUsage,
        choosing: &mut dyn Choosing,
    ) -> Result<(), QueryError> {
        let call = &parsed.calls[n];
        let values = options(sql, parsed, call, usage, choosing, true)?;
        let kind = kind(call, usage, values.as_deref());
        consistent(call, kind, values.as_deref(), parsed)?;
        let contexts: Vec<String> =
            (1..=call.values.len()).map(|n| format!("context_{n}")).collect();
        let contexts = if contexts.len() == 1 { vec!["context".to_owned()] } else { contexts };
        let question = filled(&call.question, &contexts) + &said_quantity(call);
        let key = vec!["rows".to_owned()];
        let mut column = column(&question, kind, values, is_list(call), &key);
        column.pattern.clone_from(&call.regex);
        let untold = is_untold(call, usage, &column) || is_ordered_number(call, usage, &column);
        // Each question about rows has an expansion of its own, because the rows differ.
        let asks = (self.models[n].clone(), contexts.clone(), asked(&column));
        let target = match self.questions_at.get(&asks) {
            Some(target) => *target,
            None => {
                let target = self.target(self.models[n].clone(), "question", key, contexts);
                self.column(target, column);
                self.questions_at.insert(asks, target);
                target
            }
        };
        let whole = call.return_type.is_none() && kind == Type::Real;
        let form =
            ValueForm { whole, untold, regex: regex(call)?, quantity: quantity(call), words: None };
        self.asks[n] = Asks::Rows { target, form };
        // `t.c` of a table that the query does not read means all values of that column.
        let named: Option<Vec<String>> = usage
            .keys
            .iter()
            .map(|key| {
                let (table, column) = foreign(key, usage)?;
                Some(CallSite::all_of(&table, &column))
            })
            .collect();
        self.sites[n].keys = named.filter(|keys| !keys.is_empty());
        self.place(n, call, usage);
        Ok(())
    }

    /// Wraps the call so that a list becomes a set after IN or a row of VALUES.
    pub(in crate::query) fn place(&mut self, n: usize, call: &Call, usage: &CallUsage) {
        let site = &mut self.sites[n];
        if call.row {
            if is_list(call) {
                site.row = Some(call.width());
            } else {
                "(".clone_into(&mut site.before);
                ")".clone_into(&mut site.after);
            }
            return;
        }
        if usage.set {
            if is_list(call) {
                "(SELECT value FROM json_each(".clone_into(&mut site.before);
                "))".clone_into(&mut site.after);
            } else {
                "(".clone_into(&mut site.before);
                ")".clone_into(&mut site.after);
            }
        }
    }

    /// The expansion of values of these kinds, made when there is none.
    pub(in crate::query) fn values(
        &mut self,
        model: Option<String>,
        key: Vec<String>,
        kinds: Vec<String>,
    ) -> usize {
        let is_same = |e: &AdHoc| {
            e.in_spec.is_none()
                && e.expansion.name == "values"
                && e.expansion.model == model
                && e.expansion.key.names() == key
                && e.kinds == kinds
        };
        if let Some(at) = self.expansions.iter().position(is_same) {
            return at;
        }
        let expansion = Expansion { model, task: Task::Value, ..Expansion::ad_hoc("values", key) };
        self.expansions.push(AdHoc { kinds, in_spec: None, expansion });
        self.expansions.len() - 1
    }

    /// Returns the position of the ad-hoc expansion with this model, name, key and context, and
    /// creates it if necessary.
    pub(in crate::query) fn target(
        &mut self,
        model: Option<String>,
        name: &str,
        key: Vec<String>,
        context: Vec<String>,
    ) -> usize {
        let same = |e: &AdHoc| {
            e.in_spec.is_none()
                && e.expansion.model == model
                && e.expansion.name == name
                && e.expansion.key.names() == key
                && e.expansion.context == context
        };
        if name != "question"
            && let Some(at) = self.expansions.iter().position(same)
        {
            return at;
        }
        let task = match name {
            documents::NAME => Task::Text,
            "question" => Task::Rows,
            _ => Task::Columns,
        };
        let expansion = Expansion { model, context, task, ..Expansion::ad_hoc(name, key) };
        self.expansions.push(AdHoc { kinds: Vec::new(), in_spec: None, expansion });
        self.expansions.len() - 1
    }

    /// Returns the position of the ad-hoc column with this question, and creates it if necessary.
    pub(in crate::query) fn column(&mut self, target: usize, mut column: Column) -> usize {
        let columns = &mut self.expansions[target].expansion.columns;
        match self.columns_at.entry((target, asked(&column))) {
            Entry::Occupied(known) => {
                // Calls with different patterns share the answer; each call checks its own pattern.
                let same = columns.get_mut(*known.get()).filter(|c| c.pattern != column.pattern);
                same.into_iter().for_each(|column| column.pattern = None);
                let other = columns.get_mut(*known.get()).filter(|c| c.origin != column.origin);
                other.into_iter().for_each(|column| column.origin = None);
                *known.get()
            }
            Entry::Vacant(new) => {
                if !columns.is_empty() {
                    column.name = format!("answer_{}", columns.len() + 1);
                }
                columns.push(column);
                *new.insert(columns.len() - 1)
            }
        }
    }

    /// Returns the expansions with their identities in the fact store.
    ///
    /// # Errors
    /// [`QueryError`] if the journal fails.
    pub fn targets(&mut self, request: &Request<'_>) -> Result<Vec<Target>, QueryError> {
        let spec = request.spec;
        let of_spec = spec.expansions.iter().map(|e| e.rows_per_request).max();
        let rows = request.rows_per_request.or(of_spec);
        let history = request.facts.history();
        let mut targets = Vec::new();
        for made in &mut self.expansions {
            if made.in_spec.is_none()
                && let Some(rows) = rows
            {
                made.expansion.rows_per_request = rows;
            }
            if made.expansion.name == "question" {
                made.expansion.rows_per_request = 1;
            }
            if made.in_spec.is_none() {
                made.expansion.follow(&spec.model);
            }
            let mut wanted = request.choice(&made.expansion).wanted(history, &made.expansion)?;
            if let Some(again) = request.again {
                again.tell(&mut wanted, made.expansion.columns.len());
            }
            targets.push(Target::new(
                Arc::new(made.expansion.clone()),
                Arc::new(wanted),
                made.in_spec,
            ));
        }
        Ok(targets)
    }
}

/// Name of a key column that is an image.
const IMAGE: &str = "image";

/// Returns the reason if a column cannot answer a call because it does not see the call's image.
fn unseen(call: &Call, expansion: &Expansion) -> Option<String> {
    let seen = expansion.key.names().first().is_some_and(|key| expansion.is_image(key));
    (call.image && !seen).then(|| "its column is about the value, not the image".to_owned())
}

/// Returns the name in the spec of the model that a call names; `None` for that of `[model]`.
fn of_spec(call: &Call, spec: &Spec) -> Option<String> {
    let (name, _) = call.model.as_ref()?;
    spec.model_named(name).flatten().map(str::to_owned)
}

/// Checks that at least one option of a call can be read as its return type.
fn consistent(
    call: &Call,
    kind: Type,
    values: Option<&[Value]>,
    parsed: &Parsed,
) -> Result<(), QueryError> {
    let Some(values) = values.filter(|_| call.options.is_some()) else { return Ok(()) };
    // If another call may return the options, an empty list is not an error of the query.
    let written = matches!(call.options, Some(Choices::List(_))) || parsed.calls.len() == 1;
    if values.is_empty() && written {
        return Err(QueryError::sql(
            "the list of options is empty",
            Some(call.span.clone()),
            "no answer can be an option",
            "remove `options` to allow any answer",
        ));
    }
    let checker = Checker::new(&column("", kind, None, false, &[]));
    let reads = |value: &Value| value.text().is_some_and(|t| checker.text(&t).state == State::Ok);
    // A single option that does not parse may be a placeholder (`-`) or a mistake in the data.
    let vain = kind != Type::Text && !values.iter().any(reads);
    match values.iter().find(|value| **value != Value::Null) {
        Some(value) if vain && call.return_type.is_some() => Err(QueryError::sql(
            format!("the option '{value}' is not a value of the type {}", kind.name()),
            Some(call.span.clone()),
            "the return type and the options of this call contradict each other",
            "remove one of them",
        )),
        _ => Ok(()),
    }
}

/// Rejects a question about rows that would see one arbitrary row of each group.
fn check_group(call: &Call, usage: &CallUsage) -> Result<(), QueryError> {
    let Some(column) = usage.varies.as_ref().filter(|_| call.ingredient.needs_all_rows()) else {
        return Ok(());
    };
    let name = call.ingredient.name();
    Err(QueryError::sql(
        format!("{name} would get one arbitrary `{column}` per group, not all of them"),
        Some(call.span.clone()),
        format!("`{column}` has several values in a group"),
        format!(
            "hqdl has no aggregate operators yet: pass all values of the group \
             (`json_group_array({column})`), or add `{column}` to GROUP BY"
        ),
    ))
}

/// Returns the table and column of a context that the query does not read.
fn foreign(key: &hqdl_sql::blendsql::usage::Key, usage: &CallUsage) -> Option<(String, String)> {
    if key.origin.is_some() {
        return None;
    }
    let (mut names, mut at) = (Vec::new(), 0);
    while let Ok(Some(token)) = next(&key.text, at, Brackets::Name) {
        at = token.end;
        names.push(token);
    }
    let [table, dot, column] = names.as_slice() else { return None };
    let is_name = |t: &Token| matches!(t.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name);
    let (table, column) = (is_name(table) && dot.is(b'.') && is_name(column))
        .then(|| (table.content(&key.text), column.content(&key.text)))?;
    let read = usage.tables.iter().any(|name| name.eq_ignore_ascii_case(&table));
    (!read).then_some((table, column))
}
