//! From calls to what they ask for: the column of the spec that answers, or an
//! ad-hoc expansion, with the type, the options and the key that the query
//! gives it.

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

/// What a query's calls ask for.
#[derive(Default)]
pub struct Calls {
    /// How each is written, by number.
    pub sites: Vec<CallSite>,
    /// What each asks for; more follow for the columns of bound questions.
    pub asks: Vec<Asks>,
    /// Bound calls that a published table may answer, by number.
    pub(in crate::query) stored: HashMap<usize, Stored>,
    /// The expansions.
    pub expansions: Vec<AdHoc>,
    /// The joins, by number: what makes two values partners.
    pub joins: Vec<Join>,
    /// The questions that are asked live of values: expansion, column, and where
    /// the values come from.
    pub births: Vec<Birth>,
    /// Which way each call took.
    pub routes: Vec<Route>,
    /// Which of the spec's models each call names; `None` is that of `[model]`.
    pub(in crate::query) models: Vec<Option<String>>,
    /// The columns of expansions that the query gave birth to.
    columns_at: HashMap<(usize, CallColumn), usize>,
    /// The expansions of questions about rows, by their models and the names of
    /// their contexts.
    questions_at: HashMap<(Option<String>, Vec<String>, CallColumn), usize>,
    /// What the values of columns are.
    pub(in crate::query) kinds: Kinds,
}

/// What a column asks: its meaning, and its list of values.
type CallColumn = (Fingerprint, Option<ListHash>);

fn asked(column: &Column) -> CallColumn {
    (column.fingerprint.clone(), column.values.as_ref().map(|v| v.hash.clone()))
}

/// A question that is asked live of values.
#[derive(Debug, Clone)]
pub struct Birth {
    /// Its expansion.
    pub target: usize,
    /// Its column.
    pub column: usize,
    /// Where the values come from.
    pub origin: QuestionOrigin,
}

/// An expansion in the making.
pub struct AdHoc {
    /// The kinds of the values that it asks about.
    pub kinds: Vec<String>,
    /// Its number in the spec; `None` when the query gave birth to it.
    pub in_spec: Option<usize>,
    /// The expansion.
    pub expansion: Expansion,
}

/// A join of two sides by the model.
#[derive(Debug, Clone)]
pub struct Join {
    /// What makes two values partners.
    pub criterion: String,
    /// The key column's name.
    pub left: String,
    /// Its call.
    pub call: usize,
    /// How many values are put before the model, those most alike, where the query
    /// says so.
    pub narrow: Option<usize>,
    /// Which of the spec's models is asked; `None` is that of `[model]`.
    pub model: Option<String>,
}

/// What is known of each call from where it is in the query.
pub(in crate::query) struct Usages<'u> {
    /// As the query reads its tables and views.
    pub plain: &'u HashMap<usize, CallUsage>,
    /// The same through views, if the query reads one.
    pub through: Option<&'u HashMap<usize, CallUsage>>,
    /// What the values of columns are.
    pub kinds: Kinds,
}

impl Calls {
    /// Decides what each call asks for.
    ///
    /// # Errors
    /// [`QueryError`] when options cannot be read, or a call makes no sense.
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
                    // A view's own columns come first: it may be the source of an expansion.
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

    /// Why a column cannot answer a call that names a model.
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

    /// A question about each value, asked live.
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
        // A question about a value is the same question wherever the value stands.
        let names: Vec<String> = (1..=usage.keys.len())
            .map(|n| match n {
                1 if call.image => IMAGE.to_owned(),
                1 => "value".to_owned(),
                n => format!("value_{n}"),
            })
            .collect();
        let question = filled(&call.question, &names) + &said_quantity(call);
        let mut column = column(&question, kind, values, is_list(call), &names);
        // What the answer is compared with shows what it should look like.
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
        // Only values identify; a query as an argument is one value of it.
        self.place(n, call, usage);
        Ok(())
    }

    /// A question about the rows of queries.
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
        // A question about rows is alone in its expansion: rows differ.
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
        // `t.c` of a table that the query does not read stands for its values.
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

    /// Where lists go: into a set after IN, or a row of VALUES.
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

    /// The expansion with this key that is asked of a model, made when
    /// there is none.
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

    /// The column of an ad-hoc expansion that asks this, made when there is none.
    pub(in crate::query) fn column(&mut self, target: usize, mut column: Column) -> usize {
        let columns = &mut self.expansions[target].expansion.columns;
        match self.columns_at.entry((target, asked(&column))) {
            Entry::Occupied(known) => {
                // Calls that want other patterns share the answer, which is read for each.
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

    /// The expansions as the facts know them.
    ///
    /// # Errors
    /// [`QueryError`] when the journal fails.
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

/// What a key column that is an image is called.
const IMAGE: &str = "image";

/// Why a column cannot answer a call that shows an image.
fn unseen(call: &Call, expansion: &Expansion) -> Option<String> {
    let seen = expansion.key.names().first().is_some_and(|key| expansion.is_image(key));
    (call.image && !seen).then(|| "its column is about the value, not the image".to_owned())
}

/// The model of the spec that a call names; `None` is that of `[model]`.
fn of_spec(call: &Call, spec: &Spec) -> Option<String> {
    let (name, _) = call.model.as_ref()?;
    spec.model_named(name).flatten().map(str::to_owned)
}

/// Makes sure that some answer can be what a call says: one of its options, of its type.
fn consistent(
    call: &Call,
    kind: Type,
    values: Option<&[Value]>,
    parsed: &Parsed,
) -> Result<(), QueryError> {
    let Some(values) = values.filter(|_| call.options.is_some()) else { return Ok(()) };
    // Where another call may give them, that it has no answer is no error of the query.
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
    // One among them may be a sign for no value (`-`), or a slip of the data.
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

/// Refuses a question about rows that would see one arbitrary row of each group.
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

/// A table that a context names without reading it.
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
