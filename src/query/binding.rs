//! Calls whose question a column of the spec answers: which column, and by which
//! columns of the query its key is found.

use super::QueryError;
use super::asks::{Asks, Form};
use super::binder::{Binder, Word};
use super::calls::{AdHoc, Calls, Choosing};
use super::reading::{is_list, kind, quantity, regex, spelled};
use super::smoothie::{Route, RouteKind};
use super::views::Stored;
use crate::blendsql::scope::Origin;
use crate::blendsql::usage::{Key, Usage};
use crate::blendsql::{Call, Choices};
use crate::routing::question::{Slot, binding as bound_question};
use crate::spec::{Binding, Column, Expansion, SourceRows, Spec, Type};

impl Calls {
    /// A question that a column of the spec answers.
    pub(super) fn bind(
        &mut self,
        n: usize,
        call: &Call,
        bound: &Bound,
        usage: &Usage,
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
        let words = spelled(call, usage).filter(|_| column.kind == Type::Boolean);
        let form = Form { whole: false, regex: regex(call)?, quantity: quantity(call), words };
        let plain = form.regex.is_none() && form.words.is_none();
        let mut stored = match (&bound.keys.stored, plain, &column.many) {
            (Some((source, keys, of)), true, None) => Some(Stored {
                expansion: bound.expansion,
                value: crate::sql::name(&column.name),
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
            let slot = crate::spec::SLOTS.into_iter().find(|s| binding.contains(s));
            let filled = slot.map_or_else(|| binding.clone(), |s| binding.replace(s, &literal));
            match &column.many {
                Some(many) => {
                    let rest = binding.trim();
                    let exists = rest.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("exists"))
                        && !rest[6..].trim_start().starts_with('(');
                    let expression = if exists {
                        format!("count(*) FILTER (WHERE value = {}) > 0", &filled.trim()[6..])
                    } else {
                        filled
                    };
                    site.before = format!(
                        "(SELECT CASE WHEN hq_list IS NULL THEN NULL ELSE (SELECT {expression} \
                         FROM (SELECT value, value AS {0} FROM json_each(hq_list))) END FROM (SELECT ",
                        crate::sql::name(&many.column)
                    );
                    " AS hq_list))".clone_into(&mut site.after);
                }
                None => {
                    // Other columns that the binding names are asked for, too.
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
                        self.asks.push(Asks::Cell { target, column: at, form: Form::default() });
                        others.push_str(&format!(
                            ", hq_call({number}, 0, 1, {}) AS {}",
                            bound.keys.texts.join(", "),
                            crate::sql::name(&other.name)
                        ));
                    }
                    for (name, key) in expansion.key.names().iter().zip(&bound.keys.texts) {
                        if mentions(binding, name) {
                            stored = None;
                            others.push_str(&format!(", {key} AS {}", crate::sql::name(name)));
                        }
                    }
                    if let Some(stored) = &mut stored {
                        stored.value = format!("({filled})");
                    }
                    site.before = format!("(SELECT ({filled}) FROM (SELECT ");
                    site.after = format!(" AS {}{others}))", crate::sql::name(&column.name));
                }
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

/// A question that a column answers, and how.
pub(super) struct Bound {
    expansion: usize,
    column: usize,
    binding: Binding,
    slot: Slot,
    keys: Keys,
    why: String,
    /// Not the spec says so.
    by_model: bool,
}

/// A column of a table of the query: the table's name there, and the column's,
/// as SQL.
type Place = (String, String);

/// The key of a bound call.
struct Keys {
    /// As SQL where the call stands.
    texts: Vec<String>,
    /// What is to be said of it.
    why: String,
    /// Its source, the same with every column's table, and the table of the
    /// query that has them all.
    stored: Option<(String, Vec<String>, Option<String>)>,
}

/// The column of the spec that a call's question is bound to; `Err` says why
/// the nearest is not taken.
pub(super) fn bound(
    spec: &Spec,
    call: &Call,
    usage: &Usage,
    choosing: &mut dyn Choosing,
) -> Result<Option<Bound>, String> {
    let mut near = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        for (c, column) in expansion.columns.iter().enumerate() {
            let (binding, slot) = match bound_question(column, &call.question) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(reason) => {
                    near = Some(reason);
                    continue;
                }
            };
            match keys(expansion, usage, choosing) {
                Ok(keys) => {
                    let why = format!("\"{}\"{}", binding.ask, keys.why);
                    let binding = binding.clone();
                    let (expansion, column, by_model) = (e, c, false);
                    return Ok(Some(Bound {
                        expansion,
                        column,
                        binding,
                        slot,
                        keys,
                        why,
                        by_model,
                    }));
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

/// The column that the model says answers a call's question; else why none
/// does, when it was put before the model.
///
/// # Errors
/// [`QueryError`] when the model cannot be asked.
pub(super) fn learned(
    spec: &Spec,
    call: &Call,
    usage: &Usage,
    choosing: &mut dyn Choosing,
    binder: &mut Binder<'_, '_>,
) -> Result<Result<Bound, Option<String>>, QueryError> {
    let mut reason = None;
    for (e, expansion) in spec.expansions.iter().enumerate() {
        // What is no key of it is no concern of the model.
        let Ok(keys) = keys(expansion, usage, choosing) else { continue };
        match binder.bind(expansion, &call.question)? {
            Word::Bound { column, binding, truth, date } => {
                let of = &expansion.columns[column];
                let how = binding.sql.clone().unwrap_or_else(|| crate::sql::name(&of.name));
                if let Err(why) = fits(call, usage, of, truth) {
                    reason = Some(format!("by the model, {date}: {how}; but {why}"));
                    continue;
                }
                let why = format!("by the model, {date}: {how}{}", keys.why);
                let (expansion, slot, by_model) = (e, Slot::None, true);
                return Ok(Ok(Bound { expansion, column, binding, slot, keys, why, by_model }));
            }
            Word::No(why) => reason = Some(why),
        }
    }
    Ok(Err(reason))
}

/// Whether an answer is of the kind that a call is used as: one question may be
/// asked for a value here and for its truth there.
fn fits(call: &Call, usage: &Usage, column: &Column, truth: bool) -> Result<(), &'static str> {
    let said = call.return_type.or(usage.said).is_some() || !usage.compared.is_empty();
    let kind = kind(call, usage, None);
    let many = column.many.is_some() && !truth;
    if many != is_list(call) {
        return Err(if many { "one value is asked for" } else { "a list is asked for" });
    }
    if kind == Type::Boolean && !truth {
        return Err("true or false is asked for");
    }
    if truth && (call.options.is_some() || (said && kind != Type::Boolean)) {
        return Err("a value is asked for");
    }
    let values = column.values.as_ref().filter(|v| !v.open);
    let within = match (&call.options, values) {
        (Some(Choices::List(options)), Some(list)) => list
            .values
            .iter()
            .all(|v| options.iter().any(|o| o.text().is_some_and(|o| o == v.as_str()))),
        // Options of the database are what value lists are made of.
        (None, _) | (Some(Choices::Column { .. } | Choices::Query(_)), Some(_)) => true,
        (Some(_), _) => false,
    };
    if within { Ok(()) } else { Err("the options are others than its values") }
}

/// The key of an expansion whose sources have parts of it, as SQL where a call
/// stands: the other columns are NULL.
fn by_part(
    expansion: &Expansion,
    usage: &Usage,
    choosing: &mut dyn Choosing,
) -> Result<Keys, String> {
    let mut reasons = Vec::new();
    for n in 0..expansion.sources.len() {
        let Some((own, part)) = expansion.of_source(n) else { continue };
        match keys(&own, usage, choosing) {
            Ok(found) => {
                let mut texts = vec!["NULL".to_owned(); expansion.key.names().len()];
                part.iter().zip(found.texts).for_each(|(at, text)| texts[*at] = text);
                return Ok(Keys { texts, why: found.why, stored: None });
            }
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.into_iter().max_by_key(String::len).unwrap_or_default())
}

/// The key of an expansion, as SQL where a call stands.
fn keys(expansion: &Expansion, usage: &Usage, choosing: &mut dyn Choosing) -> Result<Keys, String> {
    if !expansion.key_parts.is_empty() {
        return by_part(expansion, usage, choosing);
    }
    let Some(first) = usage.keys.first() else { return Err("it has no value".to_owned()) };
    let mut reason = "its value does not come from a source of the expansion".to_owned();
    for source in &expansion.sources {
        // The table that the key's columns are columns of.
        let SourceRows::Table(table) = &source.rows else {
            if let SourceRows::Select(select) = &source.rows
                && let [key] = expansion.key.names()
                && is_key_of(select, key, first, usage)
            {
                let texts = vec![format!("({})", first.text)];
                return Ok(Keys { texts, why: String::new(), stored: None });
            }
            continue;
        };
        let Some(origin) = &first.origin else { continue };
        let is_key = expansion.key.names().iter().any(|k| k.eq_ignore_ascii_case(&origin.column));
        if !origin.table.eq_ignore_ascii_case(table) || !is_key {
            continue;
        }
        let Some((alias, fields)) = &first.table else { continue };
        let repeats = |o: Option<&Origin>, key: &str| {
            o.is_some_and(|o| {
                o.table.eq_ignore_ascii_case(table) && o.column.eq_ignore_ascii_case(key)
            })
        };
        let in_table =
            |alias: &Option<String>, name: &str| Some((alias.clone()?, crate::sql::name(name)));
        // As it was written, and with its table.
        let of = |key: &String| -> Option<(String, Option<Place>)> {
            let given = usage.keys.iter().find(|k| repeats(k.origin.as_ref(), key));
            if let Some(given) = given {
                let (alias, name) = (given.table.as_ref().map(|t| &t.0), given.name.as_ref());
                let place = alias.zip(name).and_then(|(alias, name)| in_table(alias, name));
                return Some((given.text.clone(), place));
            }
            let field = fields.iter().find(|f| repeats(f.origin.as_ref(), key))?;
            let place = in_table(alias, &field.name);
            Some((place.as_ref().map_or_else(|| crate::sql::name(&field.name), written), place))
        };
        let found: Vec<Option<(String, Option<Place>)>> =
            expansion.key.names().iter().map(of).collect();
        let keys: Vec<Option<String>> =
            found.iter().map(|k| k.as_ref().map(|(text, _)| text.clone())).collect();
        // Where every part that is there has its table.
        let places: Option<Vec<Option<Place>>> = found
            .iter()
            .map(|k| k.as_ref().map_or(Some(None), |(_, at)| at.clone().map(Some)))
            .collect();
        if keys.iter().all(Option::is_some) {
            let places: Option<Vec<Place>> = places.map(|all| all.into_iter().flatten().collect());
            let stored = places.map(|all| {
                let one = all.iter().all(|(alias, _)| alias.eq_ignore_ascii_case(&all[0].0));
                let of = one.then(|| all[0].0.clone());
                (table.clone(), all.iter().map(written).collect(), of)
            });
            let texts = keys.into_iter().flatten().collect();
            return Ok(Keys { texts, why: String::new(), stored });
        }
        // A part of the key is enough where it determines the rest.
        let q = crate::sql::name;
        // With their tables: beside the source's own rows, a bare name is its own.
        let keys: Vec<Option<String>> = match places {
            Some(places) => places.iter().map(|at| at.as_ref().map(written)).collect(),
            None => keys,
        };
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
        match choosing.values(&count, 1) {
            Ok(twice) if twice.as_ref().is_none_or(Vec::is_empty) => {
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
                let why = format!(", by {} alone, which determines the key", list(&given));
                return Ok(Keys { texts: found, why, stored: None });
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

/// A column with its table, as SQL.
fn written((alias, name): &Place) -> String {
    format!("{}.{name}", crate::sql::name(alias))
}

/// Whether an expression of the query is the one that a SELECT names `key`.
fn is_key_of(select: &str, key: &str, value: &Key, usage: &Usage) -> bool {
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

/// Whether an SQL text names a column.
pub(super) fn mentions(sql: &str, column: &str) -> bool {
    let (sql, column) = (sql.to_lowercase(), column.to_lowercase());
    sql.match_indices(&column).any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        !sql[..at].chars().next_back().is_some_and(word)
            && !sql[at + column.len()..].chars().next().is_some_and(word)
    })
}
