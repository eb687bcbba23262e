//! From calls to what they ask for: the column of the spec that answers, or an
//! ad-hoc expansion, with the type, the options and the key that the query
//! gives it.

use std::collections::HashMap;
use std::sync::Arc;

use super::live::{Asks, Form};
use super::smoothie::{Route, RouteKind};
use super::targets::Target;
use super::{QueryError, Request};
use crate::blendsql::parse::Parsed;
use crate::blendsql::rewrite::Site;
use crate::blendsql::route::{self, Slot};
use crate::blendsql::usage::{Compared, Usage};
use crate::blendsql::{Call, Choices, Kind};
use crate::facts::Wanted;
use crate::key::{KeyColumns, ListHash, Meaning};
use crate::spec::{Binding, Column, Expansion, Many, SourceRows, Spec, Type, ValueList};
use crate::value::Value;

/// The most tokens of a context, unless cutting it is accepted.
pub const CONTEXT_TOKENS: usize = 100_000;
/// The most values that are taken for options from a compared column.
const INFERRED: usize = 300;

/// What a query's calls ask for.
#[derive(Default)]
pub struct Calls {
    /// How each is written, by number.
    pub sites: Vec<Site>,
    /// What each asks for; more follow for the columns of bound questions.
    pub asks: Vec<Asks>,
    /// The expansions.
    pub expansions: Vec<AdHoc>,
    /// The joins, by number: what makes two values partners.
    pub joins: Vec<Join>,
    /// Which way each call took.
    pub routes: Vec<Route>,
}

/// An expansion in the making.
pub struct AdHoc {
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
}

/// Reads values that options come from.
pub trait Choosing {
    /// The values of a query's columns, in order, without NULLs and repeats.
    ///
    /// # Errors
    /// [`QueryError`] when the query fails.
    fn values(&mut self, sql: &str, most: usize) -> Result<Vec<Value>, QueryError>;
}

impl Calls {
    /// Decides what each call asks for.
    ///
    /// # Errors
    /// [`QueryError`] when options cannot be read, or a call makes no sense.
    pub fn decide(
        sql: &str,
        parsed: &Parsed,
        usages: &HashMap<usize, Usage>,
        spec: &Spec,
        choosing: &mut dyn Choosing,
    ) -> Result<Self, QueryError> {
        let mut calls = Self {
            asks: vec![Asks::Pair { join: usize::MAX }; parsed.calls.len()],
            sites: parsed
                .calls
                .iter()
                .map(|c| Site {
                    function: "hq_call",
                    rows: matches!(c.kind, Kind::Qa | Kind::Validate),
                    pairs: c.kind == Kind::Join,
                    ..Site::default()
                })
                .collect(),
            ..Self::default()
        };
        let ctes = cte_text(sql, parsed);
        let usages = &together(parsed, usages);
        for (n, call) in parsed.calls.iter().enumerate() {
            let unknown = Usage::default();
            let usage = usages.get(&n).unwrap_or(&unknown);
            let text = sql[call.span.clone()].to_owned();
            match call.kind {
                Kind::Map => {
                    let mut why = "no column of the spec is asked this question".to_owned();
                    if spec.expansions.is_empty() {
                        "there is no spec".clone_into(&mut why);
                    }
                    match bound(spec, call, usage, choosing) {
                        Ok(Some(bound)) => {
                            calls.bind(n, call, bound, spec, text)?;
                            continue;
                        }
                        Ok(None) => {}
                        Err(reason) => why = reason,
                    }
                    calls.map(n, sql, call, usage, &ctes, choosing)?;
                    calls.live(n, call, text, why);
                }
                Kind::Qa | Kind::Validate => {
                    calls.qa(n, sql, call, usage, &ctes, choosing)?;
                    calls.live(n, call, text, "it is asked of rows, not of an entity".to_owned());
                }
                Kind::Join => {
                    let criterion = if call.question.trim().is_empty() {
                        "the values of the list that mean the same thing".to_owned()
                    } else {
                        call.question.trim().to_owned()
                    };
                    calls.asks[n] = Asks::Pair { join: calls.joins.len() };
                    let left = usage.keys.first().and_then(|k| k.name.clone());
                    let left = left.unwrap_or_else(|| "value".to_owned());
                    calls.joins.push(Join { criterion, left });
                    calls.live(n, call, text, "a join is asked pair by pair".to_owned());
                }
            }
        }
        Ok(calls)
    }

    fn live(&mut self, n: usize, call: &Call, text: String, why: String) {
        let (expansion, column) = match &self.asks[n] {
            Asks::Cell { target, .. } | Asks::Rows { target, .. } => {
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
        call: &Call,
        usage: &Usage,
        ctes: &str,
        choosing: &mut dyn Choosing,
    ) -> Result<(), QueryError> {
        let values = self.options(sql, call, usage, ctes, choosing, false)?;
        let kind = kind(call, usage, values.as_deref());
        // A question about a value is the same question wherever the value stands.
        let names: Vec<String> = (1..=usage.keys.len())
            .map(|n| if n == 1 { "value".to_owned() } else { format!("value_{n}") })
            .collect();
        let question = filled(&call.question, &names);
        let column = column(&question, kind, values, is_list(call), &names);
        let target = self.target("values", names, Vec::new());
        let at = self.column(target, column);
        let whole = call.return_type.or(usage.said).is_none() && kind == Type::Real;
        let regex = regex(call)?;
        self.asks[n] = Asks::Cell { target, column: at, form: Form { whole, regex } };
        // Only values identify; a query as an argument is one value of it.
        self.place(n, call, usage);
        Ok(())
    }

    /// A question about the rows of queries.
    fn qa(
        &mut self,
        n: usize,
        sql: &str,
        call: &Call,
        usage: &Usage,
        ctes: &str,
        choosing: &mut dyn Choosing,
    ) -> Result<(), QueryError> {
        let values = self.options(sql, call, usage, ctes, choosing, true)?;
        let kind = kind(call, usage, values.as_deref());
        let contexts: Vec<String> =
            (1..=call.values.len()).map(|n| format!("context_{n}")).collect();
        let contexts = if contexts.len() == 1 { vec!["context".to_owned()] } else { contexts };
        let question = filled(&call.question, &contexts);
        let key = vec!["rows".to_owned()];
        let column = column(&question, kind, values, is_list(call), &key);
        // A question about rows is alone in its expansion: rows differ.
        let list = |c: &Column| c.values.as_ref().map(|v| v.hash.clone());
        let asked = self.expansions.iter().position(|e| {
            e.expansion.name == "question"
                && e.expansion.context == contexts
                && e.expansion.columns.first().is_some_and(|c| {
                    c.fingerprint == column.fingerprint && list(c) == list(&column)
                })
        });
        let target = match asked {
            Some(target) => target,
            None => {
                let target = self.target("question", key, contexts);
                self.column(target, column);
                target
            }
        };
        let whole = call.return_type.is_none() && kind == Type::Real;
        let form = Form { whole, regex: regex(call)? };
        self.asks[n] = Asks::Rows { target, most: CONTEXT_TOKENS, form };
        let mut keys = Vec::new();
        let mut all_named = true;
        for (value, key) in call.values.iter().zip(&usage.keys) {
            let _ = value;
            match foreign(key, usage) {
                Some((table, column)) => keys.push(format!(
                    "(SELECT {} FROM {})",
                    crate::sql::name(&column),
                    crate::sql::name(&table)
                )),
                None => {
                    all_named = false;
                }
            }
        }
        if all_named && !keys.is_empty() {
            self.sites[n].keys = Some(keys);
        }
        self.place(n, call, usage);
        Ok(())
    }

    /// Where lists go: into a set after IN, or a row of VALUES.
    fn place(&mut self, n: usize, call: &Call, usage: &Usage) {
        let site = &mut self.sites[n];
        if call.row {
            if is_list(call) {
                site.row = Some(call.quantifier.map_or(1, |q| q.max.unwrap_or(q.min.max(1))));
            } else {
                site.before = "(".to_owned();
                site.after = ")".to_owned();
            }
            return;
        }
        if usage.set {
            if is_list(call) {
                site.before = "(SELECT value FROM json_each(".to_owned();
                site.after = "))".to_owned();
            } else {
                site.before = "(".to_owned();
                site.after = ")".to_owned();
            }
        }
    }

    /// The values a call chooses from.
    fn options(
        &self,
        sql: &str,
        call: &Call,
        usage: &Usage,
        ctes: &str,
        choosing: &mut dyn Choosing,
        infer: bool,
    ) -> Result<Option<Vec<Value>>, QueryError> {
        use crate::blendsql::usage::Options;
        use crate::sql::name;
        let column = |table: &str, column: &str| {
            format!("{ctes}SELECT DISTINCT {} FROM {}", name(column), name(table))
        };
        match (&call.options, &usage.options) {
            (Some(Choices::List(values)), _) => Ok(Some(values.clone())),
            (Some(Choices::Query(span)), _) => {
                let text = format!("{ctes}SELECT * FROM ({})", &sql[span.clone()]);
                choosing.values(&text, usize::MAX).map(Some)
            }
            (Some(Choices::Column { .. }), Some(Options::Base(origin))) => {
                let text = column(&origin.table, &origin.column);
                choosing.values(&text, usize::MAX).map(Some)
            }
            (Some(Choices::Column { .. }), Some(Options::Named(table, of))) => {
                choosing.values(&column(table, of), usize::MAX).map(Some)
            }
            (Some(Choices::Column { column, span, .. }), None) => Err(QueryError::sql(
                format!("the options `{column}` are no column that can be told"),
                Some(span.clone()),
                "a column is expected",
                "write options=table.column, options=('a', 'b') or options=(SELECT …)",
            )),
            (None, _) if infer && call.return_type.is_none() => {
                let origin = usage.compared.iter().find_map(|c| match c {
                    Compared::Column(_, origin) => origin.as_ref(),
                    _ => None,
                });
                let Some(origin) = origin else { return Ok(None) };
                let text = column(&origin.table, &origin.column);
                let values = choosing.values(&text, INFERRED + 1)?;
                Ok(Some(values).filter(|v| v.len() <= INFERRED && !v.is_empty()))
            }
            (None, _) => Ok(None),
        }
    }

    /// The expansion with this key, made when there is none.
    fn target(&mut self, name: &str, key: Vec<String>, context: Vec<String>) -> usize {
        let same = |e: &AdHoc| {
            e.in_spec.is_none()
                && e.expansion.name == name
                && e.expansion.key.names() == key
                && e.expansion.context.is_empty()
        };
        if let Some(at) = self.expansions.iter().position(same).filter(|_| name != "question") {
            return at;
        }
        let expansion = Expansion {
            name: name.to_owned(),
            about: String::new(),
            sources: Vec::new(),
            key_types: vec![None; key.len()],
            key: KeyColumns::new(key),
            context,
            rows_per_request: 10,
            format: None,
            shots: Vec::new(),
            override_shots: 0,
            columns: Vec::new(),
        };
        self.expansions.push(AdHoc { in_spec: None, expansion });
        self.expansions.len() - 1
    }

    /// The column of an ad-hoc expansion that asks this, made when there is none.
    fn column(&mut self, target: usize, mut column: Column) -> usize {
        let columns = &mut self.expansions[target].expansion.columns;
        let list = |c: &Column| c.values.as_ref().map(|v| v.hash.clone());
        let same = |c: &Column| c.fingerprint == column.fingerprint && list(c) == list(&column);
        if let Some(at) = columns.iter().position(same) {
            return at;
        }
        if !columns.is_empty() {
            column.name = format!("answer_{}", columns.len() + 1);
        }
        columns.push(column);
        columns.len() - 1
    }

    /// A question that a column of the spec answers.
    fn bind(
        &mut self,
        n: usize,
        call: &Call,
        bound: Bound<'_>,
        spec: &Spec,
        text: String,
    ) -> Result<(), QueryError> {
        let expansion = &spec.expansions[bound.expansion];
        let target = self.expansions.iter().position(|e| e.in_spec == Some(bound.expansion));
        let target = target.unwrap_or_else(|| {
            self.expansions
                .push(AdHoc { in_spec: Some(bound.expansion), expansion: expansion.clone() });
            self.expansions.len() - 1
        });
        let column = &expansion.columns[bound.column];
        let form = Form { whole: false, regex: regex(call)? };
        self.asks[n] = Asks::Cell { target, column: bound.column, form };
        let site = &mut self.sites[n];
        site.keys = Some(bound.keys.clone());
        let route = if bound.binding.sql.is_some() { RouteKind::Bound } else { RouteKind::Column };
        if let Some(binding) = &bound.binding.sql {
            let literal = bound.slot.literal();
            let slot = crate::spec::SLOTS.into_iter().find(|s| binding.contains(s));
            let filled = slot.map_or_else(|| binding.clone(), |s| binding.replace(s, &literal));
            match &column.many {
                Some(many) => {
                    let rest = binding.trim();
                    let exists = rest.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"))
                        && !rest[6..].trim_start().starts_with('(');
                    let expression = if exists {
                        format!("count(*) FILTER (WHERE value = {literal}) > 0")
                    } else {
                        filled
                    };
                    site.before = format!(
                        "(SELECT CASE WHEN hq_list IS NULL THEN NULL ELSE (SELECT {expression} \
                         FROM (SELECT value, value AS {0} FROM json_each(hq_list))) END FROM (SELECT ",
                        crate::sql::name(&many.column)
                    );
                    site.after = " AS hq_list))".to_owned();
                }
                None => {
                    // Other columns that the binding names are asked for, too.
                    let mut others = String::new();
                    for (at, other) in expansion.columns.iter().enumerate() {
                        if at == bound.column || !mentions(binding, &other.name) {
                            continue;
                        }
                        let number = self.asks.len();
                        self.asks.push(Asks::Cell { target, column: at, form: Form::default() });
                        others.push_str(&format!(
                            ", hq_call({number}, 0, 1, {}) AS {}",
                            bound.keys.join(", "),
                            crate::sql::name(&other.name)
                        ));
                    }
                    for (name, key) in expansion.key.names().iter().zip(&bound.keys) {
                        if mentions(binding, name) {
                            others.push_str(&format!(", {key} AS {}", crate::sql::name(name)));
                        }
                    }
                    site.before = format!("(SELECT ({filled}) FROM (SELECT ");
                    site.after = format!(" AS {}{others}))", crate::sql::name(&column.name));
                }
            }
        }
        self.routes.push(Route {
            call: text,
            route,
            expansion: expansion.name.clone(),
            column: column.name.clone(),
            why: format!("\"{}\"{}", bound.binding.ask, bound.why),
        });
        Ok(())
    }

    /// The expansions as the facts know them.
    ///
    /// # Errors
    /// [`QueryError`] when the journal fails.
    pub fn targets(
        &mut self,
        request: &Request<'_>,
        model: &str,
    ) -> Result<Vec<Target>, QueryError> {
        let spec = request.spec;
        let of_spec = spec.expansions.iter().map(|e| e.rows_per_request).max();
        let rows = request.rows_per_request.or(of_spec);
        let journal = request.facts.journal();
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
            let wanted = Wanted::new(&journal, &made.expansion, model, spec.model.reuse)?;
            targets.push(Target::new(
                Arc::new(made.expansion.clone()),
                Arc::new(wanted),
                made.in_spec,
            ));
        }
        Ok(targets)
    }
}

/// A question that a column answers, and how.
struct Bound<'s> {
    expansion: usize,
    column: usize,
    binding: &'s Binding,
    slot: Slot,
    /// The key, as SQL where the call stands.
    keys: Vec<String>,
    why: String,
}

/// The column of the spec that a call's question is bound to; `Err` says why
/// the nearest is not taken.
fn bound<'s>(
    spec: &'s Spec,
    call: &Call,
    usage: &Usage,
    choosing: &mut dyn Choosing,
) -> Result<Option<Bound<'s>>, String> {
    let mut near = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        for (c, column) in expansion.columns.iter().enumerate() {
            let (binding, slot) = match route::binding(column, &call.question) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(reason) => {
                    near = Some(reason);
                    continue;
                }
            };
            match keys(expansion, usage, choosing) {
                Ok((keys, why)) => {
                    return Ok(Some(Bound { expansion: e, column: c, binding, slot, keys, why }));
                }
                Err(reason) => {
                    near = Some(format!(
                        "`{}.{}` is asked it, but {reason}",
                        expansion.name, column.name
                    ));
                }
            }
        }
    }
    near.map_or(Ok(None), Err)
}

/// The key of an expansion, as SQL where a call stands.
fn keys(
    expansion: &Expansion,
    usage: &Usage,
    choosing: &mut dyn Choosing,
) -> Result<(Vec<String>, String), String> {
    let Some(first) = usage.keys.first() else { return Err("it has no value".to_owned()) };
    let mut reason = "its value does not come from a source of the expansion".to_owned();
    for source in &expansion.sources {
        // The table that the key's columns are columns of.
        let SourceRows::Table(table) = &source.rows else {
            if let SourceRows::Select(select) = &source.rows
                && let [key] = expansion.key.names()
                && is_key_of(select, key, first, usage)
            {
                return Ok((vec![format!("({})", first.text)], String::new()));
            }
            continue;
        };
        let Some(origin) = &first.origin else { continue };
        let is_key = expansion.key.names().iter().any(|k| k.eq_ignore_ascii_case(&origin.column));
        if !origin.table.eq_ignore_ascii_case(table) || !is_key {
            continue;
        }
        let Some((alias, fields)) = &first.table else { continue };
        let of = |key: &String| {
            let given = usage.keys.iter().find(|k| {
                k.origin.as_ref().is_some_and(|o| {
                    o.table.eq_ignore_ascii_case(table) && o.column.eq_ignore_ascii_case(key)
                })
            });
            if let Some(given) = given {
                return Some(given.text.clone());
            }
            let field = fields.iter().find(|f| {
                f.origin.as_ref().is_some_and(|o| {
                    o.table.eq_ignore_ascii_case(table) && o.column.eq_ignore_ascii_case(key)
                })
            })?;
            let name = crate::sql::name(&field.name);
            Some(alias.as_ref().map_or(name.clone(), |a| format!("{}.{name}", crate::sql::name(a))))
        };
        let keys: Vec<Option<String>> = expansion.key.names().iter().map(of).collect();
        if keys.iter().all(Option::is_some) {
            return Ok((keys.into_iter().flatten().collect(), String::new()));
        }
        // A part of the key is enough where it determines the rest.
        let q = crate::sql::name;
        let at = |key: &String| usage_column(usage, key, table);
        let given: Vec<&String> = expansion
            .key
            .names()
            .iter()
            .zip(&keys)
            .filter(|(_, k)| k.is_some())
            .map(|(n, _)| n)
            .collect();
        let list = |names: &[&String]| names.iter().map(|n| q(n)).collect::<Vec<_>>().join(", ");
        let all: Vec<&String> = expansion.key.names().iter().collect();
        let count = format!(
            "SELECT 1 FROM (SELECT DISTINCT {} FROM {}) GROUP BY {} HAVING count(*) > 1 LIMIT 1",
            list(&all),
            q(table),
            list(&given)
        );
        let _ = at;
        match choosing.values(&count, 1) {
            Ok(twice) if twice.is_empty() => {
                let found: Vec<String> = expansion
                    .key
                    .names()
                    .iter()
                    .zip(&keys)
                    .map(|(name, known)| {
                        known.clone().unwrap_or_else(|| {
                            let same: Vec<String> = expansion
                                .key
                                .names()
                                .iter()
                                .zip(&keys)
                                .filter_map(|(n, k)| {
                                    Some(format!("hq_key.{} IS {}", q(n), k.as_ref()?))
                                })
                                .collect();
                            format!(
                                "(SELECT hq_key.{} FROM {} AS hq_key WHERE {} LIMIT 1)",
                                q(name),
                                q(table),
                                same.join(" AND ")
                            )
                        })
                    })
                    .collect();
                return Ok((
                    found,
                    format!(", by {} alone, which determines the key", list(&given)),
                ));
            }
            Ok(_) => {
                reason = format!(
                    "the query has only {} of its key ({}), which does not determine it",
                    list(&given),
                    list(&all)
                );
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

fn usage_column(usage: &Usage, key: &str, table: &str) -> Option<String> {
    usage.keys.iter().find_map(|k| {
        let origin = k.origin.as_ref()?;
        (origin.table.eq_ignore_ascii_case(table) && origin.column.eq_ignore_ascii_case(key))
            .then(|| k.text.clone())
    })
}

/// Whether an expression of the query is the one that a SELECT names `key`.
fn is_key_of(select: &str, key: &str, value: &crate::blendsql::usage::Key, usage: &Usage) -> bool {
    use crate::blendsql::parse::parse;
    use crate::blendsql::tree::{Body, Source};
    let Ok(parsed) = parse(select, Vec::new()) else { return false };
    let Body::Core(core) = &parsed.query.body else { return false };
    let [item] = core.from.as_slice() else { return false };
    let Source::Table { name, .. } = &item.source else { return false };
    let column = core.columns.iter().find(|c| {
        c.alias.as_deref().is_some_and(|a| a.eq_ignore_ascii_case(key))
            || c.expr.as_ref().is_some_and(|e| select[e.span.clone()].eq_ignore_ascii_case(key))
    });
    let Some(expr) = column.and_then(|c| c.expr.as_ref()) else { return false };
    let reads = usage.tables.iter().any(|(_, fields)| {
        fields.as_ref().is_some_and(|f| {
            f.iter().any(|f| f.origin.as_ref().is_some_and(|o| o.table.eq_ignore_ascii_case(name)))
        })
    });
    reads && unqualified(&select[expr.span.clone()]) == unqualified(&value.text)
}

/// An expression's words, without the tables before its columns.
fn unqualified(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.extend(c.to_lowercase());
        } else {
            if c == '.' {
                word.clear();
                continue;
            }
            out.push_str(&word);
            word.clear();
            if !c.is_whitespace() && c != '"' && c != '`' {
                out.push(c);
            }
        }
    }
    out
}

/// A table that a context names without reading it.
fn foreign(key: &crate::blendsql::usage::Key, usage: &Usage) -> Option<(String, String)> {
    if key.origin.is_some() || key.table.is_some() {
        return None;
    }
    let (table, column) = key.text.split_once('.')?;
    let simple = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_alphanumeric() || c == '_');
    let read = usage
        .tables
        .iter()
        .any(|(name, _)| name.as_ref().is_some_and(|n| n.eq_ignore_ascii_case(table)));
    (!read && simple(table) && simple(column)).then(|| (table.to_owned(), column.to_owned()))
}

/// The WITH clause of the whole query, for SQL that runs beside it.
fn cte_text(sql: &str, parsed: &Parsed) -> String {
    let ctes: Vec<String> = parsed
        .query
        .with
        .iter()
        .map(|c| {
            let columns = if c.columns.is_empty() {
                String::new()
            } else {
                format!("({})", crate::sql::names("", &c.columns))
            };
            format!("{}{columns} AS ({})", crate::sql::name(&c.name), &sql[c.query.span.clone()])
        })
        .collect();
    if ctes.is_empty() { String::new() } else { format!("WITH RECURSIVE {} ", ctes.join(", ")) }
}

/// What an answer must match.
fn regex(call: &Call) -> Result<Option<Arc<regex::Regex>>, QueryError> {
    let Some(pattern) = &call.regex else { return Ok(None) };
    match regex::Regex::new(&format!("^(?:{pattern})$")) {
        Ok(regex) => Ok(Some(Arc::new(regex))),
        Err(error) => Err(QueryError::sql(
            format!("the regular expression `{pattern}` cannot be read: {error}"),
            Some(call.span.clone()),
            "in this call",
            "",
        )),
    }
}

/// Whether a call answers with a list.
fn is_list(call: &Call) -> bool {
    call.return_type.is_some_and(|t| t.list) || call.quantifier.is_some_and(|q| q.max != Some(1))
}

/// Calls that ask the same thing are read as the same: what is known of one is
/// known of all.
fn together(parsed: &Parsed, usages: &HashMap<usize, Usage>) -> HashMap<usize, Usage> {
    let same = |a: usize, b: usize| {
        let (x, y) = (&parsed.calls[a], &parsed.calls[b]);
        let keys = |n: usize| -> Vec<String> {
            let keys = usages.get(&n).map(|u| u.keys.as_slice()).unwrap_or_default();
            keys.iter()
                .map(|k| {
                    k.origin
                        .as_ref()
                        .map_or_else(|| k.text.clone(), |o| format!("{}::{}", o.table, o.column))
                })
                .collect()
        };
        x.kind == Kind::Map
            && y.kind == Kind::Map
            && x.question.trim() == y.question.trim()
            && x.options.is_some() == y.options.is_some()
            && keys(a) == keys(b)
    };
    let mut all = usages.clone();
    for n in 0..parsed.calls.len() {
        if parsed.calls[n].return_type.is_some() {
            continue;
        }
        let mut merged = usages.get(&n).cloned().unwrap_or_default();
        for other in (0..parsed.calls.len()).filter(|o| *o != n && same(*o, n)) {
            if let Some(usage) = usages.get(&other) {
                merged.condition |= usage.condition;
                merged.compared.extend(usage.compared.iter().cloned());
            }
            merged.said = merged.said.or(parsed.calls[other].return_type);
        }
        for beside in merged.beside.clone() {
            merged.beside_said = merged.beside_said.or(parsed.calls[beside].return_type);
        }
        all.insert(n, merged);
    }
    all
}

/// What an answer is read as.
fn kind(call: &Call, usage: &Usage, values: Option<&[Value]>) -> Type {
    if call.kind == Kind::Validate {
        return Type::Boolean;
    }
    if let Some(said) = call.return_type.or(usage.said) {
        return said.scalar;
    }
    if let Some(values) = values {
        let whole = values.iter().all(|v| matches!(v, Value::Integer(_)));
        let number = values.iter().all(|v| matches!(v, Value::Integer(_) | Value::Real(_)));
        return match (whole, number) {
            (true, _) if !values.is_empty() => Type::Integer,
            (_, true) if !values.is_empty() => Type::Real,
            _ => Type::Text,
        };
    }
    if usage.compared.contains(&Compared::Truth) {
        return Type::Boolean;
    }
    let numbers: Vec<bool> = usage
        .compared
        .iter()
        .filter_map(|c| match c {
            Compared::Integer(equal) => Some(*equal),
            Compared::Real => Some(false),
            _ => None,
        })
        .collect();
    let ordered = usage.compared.contains(&Compared::Ordered);
    if let Some(said) = usage.beside_said.filter(|_| numbers.is_empty()) {
        return said.scalar;
    }
    if ordered
        && numbers.is_empty()
        && !usage.compared.iter().any(|c| matches!(c, Compared::Text(_)))
    {
        return Type::Real;
    }
    if !numbers.is_empty() {
        return if !ordered && numbers.iter().all(|n| *n) { Type::Integer } else { Type::Real };
    }
    let dates = usage.compared.iter().any(|c| {
        matches!(c, Compared::Text(t) if t.len() == 10 && t.parse::<jiff::civil::Date>().is_ok())
    });
    if dates {
        return Type::Date;
    }
    if usage.condition { Type::Boolean } else { Type::Text }
}

/// A question whose `{}` are filled with the names of what they stand for.
fn filled(question: &str, names: &[String]) -> String {
    let mut text = question.trim().to_owned();
    let mut names = names.iter();
    while let Some(at) = text.find("{}") {
        let Some(name) = names.next() else { break };
        text.replace_range(at..at + 2, &format!("{{{name}}}"));
    }
    text
}

/// A column that a query gives birth to.
fn column(
    question: &str,
    kind: Type,
    values: Option<Vec<Value>>,
    list: bool,
    key: &[String],
) -> Column {
    let values = values.map(|values| {
        let mut texts: Vec<String> = Vec::new();
        for value in values.iter().filter_map(Value::text) {
            if !texts.iter().any(|t| *t == value) {
                texts.push(value.into_owned());
            }
        }
        ValueList { hash: ListHash::of(&texts), values: texts, open: false }
    });
    let meaning = Meaning {
        key: key.to_vec(),
        column: "answer".to_owned(),
        kind: kind.name().to_owned(),
        about: question.to_owned(),
        many: list,
        list: if values.is_some() { "closed" } else { "none" }.to_owned(),
    };
    Column {
        name: "answer".to_owned(),
        kind,
        about: question.to_owned(),
        values,
        many: list.then(|| Many { table: String::new(), column: "value".to_owned() }),
        bindings: Vec::new(),
        fingerprint: meaning.fingerprint(),
        meaning,
    }
}

/// Whether an SQL text names a column.
fn mentions(sql: &str, column: &str) -> bool {
    let (sql, column) = (sql.to_lowercase(), column.to_lowercase());
    sql.match_indices(&column).any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        !sql[..at].chars().next_back().is_some_and(word)
            && !sql[at + column.len()..].chars().next().is_some_and(word)
    })
}
