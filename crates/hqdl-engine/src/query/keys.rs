//! Which entity of an expansion the values of a call are.
//!
//! # When that is sure
//!
//! A call's value is followed to what it is made of: an expression `f` over
//! columns of one row of one table (`lineage`). It is about the entity of that
//! row when `f` is made of columns of the expansion's key alone, and
//!
//! * `f` is a part of the key itself and the row has the rest of it, or
//! * `f` (with the call's further values, where it has any) is a different value
//!   for each key, which is looked up in the source's own rows, now.
//!
//! In the first case, and wherever the row has all of the key, the key is the
//! row's. Else it is looked up by the value of `f`. Where the rows are grouped
//! by `f`, the rest of the key is any row's of the group, so the groups must
//! determine it. All else is asked live.

use std::sync::Arc;

use super::choosing::Choosing;
use hqdl_spec::{Expansion, SourceRows};
use hqdl_sql::blendsql::lineage::Lineage;
use hqdl_sql::blendsql::usage::{Reached, Usage};
use hqdl_values::sql::name;

/// The key of a bound call.
pub(super) struct Keys {
    /// As SQL where the call stands.
    pub texts: Vec<String>,
    /// What is to be said of it.
    pub why: String,
    /// Its source, the same with every column's table, and the table of the
    /// query that has them all.
    pub stored: Option<(String, Vec<String>, Option<String>)>,
}

/// Where the keys of an expansion come from: a table, and what each part of the
/// key is made of there.
struct KeySource {
    table: String,
    parts: Vec<Arc<Lineage>>,
    /// The parts are columns, and the table is the source.
    plain: bool,
}

/// The key of an expansion, as SQL where a call stands.
///
/// # Errors
/// Why it cannot be told.
pub(super) fn keys(
    expansion: &Expansion,
    usage: &Usage,
    choosing: &mut dyn Choosing,
) -> Result<Keys, String> {
    if !expansion.key_parts.is_empty() {
        return by_part(expansion, usage, choosing);
    }
    let Some(first) = usage.keys.first() else { return Err("it has no value".to_owned()) };
    let mut reason = "its value does not come from a source of the expansion".to_owned();
    let Some(lineage) = &first.lineage else { return Err(reason) };
    let Some((instance, table)) = lineage.instance() else { return Err(reason) };
    for rows in &expansion.sources {
        let Some(source) = source(expansion, &rows.rows, choosing) else { continue };
        if source.table.eq_ignore_ascii_case(table) {
            match of_source(expansion, &source, instance, usage, choosing) {
                Ok(keys) => return Ok(keys),
                Err(why) => reason = why,
            }
        }
    }
    Err(reason)
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

/// What a source's keys are made of; `None` when that is not told.
fn source(
    expansion: &Expansion,
    rows: &SourceRows,
    choosing: &mut dyn Choosing,
) -> Option<KeySource> {
    let names = expansion.key.names();
    match rows {
        SourceRows::Table(table) => {
            let part = |column: &String| {
                let (table, column) = (table.clone(), column.clone());
                Arc::new(Lineage::Column { instance: 0, table, column })
            };
            let parts = names.iter().map(part).collect();
            Some(KeySource { table: table.clone(), parts, plain: true })
        }
        SourceRows::Select(select) => {
            let outputs = choosing.made_of(select);
            let part = |key: &String| {
                let found = outputs.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
                found.and_then(|(_, lineage)| lineage.clone())
            };
            let parts: Option<Vec<Arc<Lineage>>> = names.iter().map(part).collect();
            let parts = parts?;
            let (instance, table) = parts.first()?.instance()?;
            let one = |p: &Arc<Lineage>| p.instance().is_some_and(|(of, _)| of == instance);
            let table = table.to_owned();
            parts.iter().all(one).then_some(KeySource { table, parts, plain: false })
        }
    }
}

fn of_source(
    expansion: &Expansion,
    source: &KeySource,
    instance: usize,
    usage: &Usage,
    choosing: &mut dyn Choosing,
) -> Result<Keys, String> {
    let mut base: Vec<String> = Vec::new();
    for part in &source.parts {
        part.each_column(&mut |_, _, column| base.push(column.to_lowercase()));
    }
    let is_of_key = |lineage: &Lineage| {
        let mut all = lineage.instance().is_some_and(|(of, _)| of == instance);
        lineage.each_column(&mut |_, _, column| all &= base.contains(&column.to_lowercase()));
        all
    };
    let given: Vec<(&str, &Arc<Lineage>)> = usage
        .keys
        .iter()
        .filter_map(|k| Some((k.text.as_str(), k.lineage.as_ref()?)))
        .filter(|(_, lineage)| is_of_key(lineage))
        .collect();
    let first = usage.keys.first().and_then(|k| k.lineage.as_ref());
    let Some(first) = first.filter(|lineage| is_of_key(lineage)) else {
        return Err("its value is made of other columns than the key".to_owned());
    };
    let determine = |all: &[&Lineage], choosing: &mut dyn Choosing| {
        determines(source, all, choosing).map_err(|e| e.to_string())
    };
    let groups: Vec<&Lineage> = usage
        .grouped
        .iter()
        .map(AsRef::as_ref)
        .filter(|g| g.instance().is_some_and(|(of, _)| of == instance))
        .collect();
    if groups.iter().any(|g| g.is_like(first)) && !determine(&groups, choosing)? {
        return Err("the rows are grouped by it, and a group may have several keys".to_owned());
    }
    let reached = |column: &str| {
        usage
            .reached
            .iter()
            .find(|r| r.instance == instance && r.column.eq_ignore_ascii_case(column))
    };
    let text = |part: &Arc<Lineage>| {
        let own = given.iter().find(|(_, lineage)| lineage.is_like(part));
        own.map(|(text, _)| (*text).to_owned())
            .or_else(|| part.written(&|column| reached(column).map(Reached::written)))
    };
    let texts: Option<Vec<String>> = source.parts.iter().map(text).collect();
    let is_part = source.parts.iter().any(|p| p.is_like(first));
    let all: Vec<&Lineage> = given.iter().map(|(_, lineage)| lineage.as_ref()).collect();
    if let Some(texts) = texts
        && (is_part || determine(&all, choosing)?)
    {
        let texts = texts.into_iter().map(|t| if source.plain { t } else { format!("({t})") });
        let stored = if source.plain { stored(expansion, source, &reached) } else { None };
        return Ok(Keys { texts: texts.collect(), why: String::new(), stored });
    }
    let said: Vec<&str> = given.iter().map(|(text, _)| *text).collect();
    let said = said.join(", ");
    if !determine(&all, choosing)? {
        let key = expansion.key.names().iter().map(|n| name(n)).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "the query has only {said} of its key ({key}), which does not determine it"
        ));
    }
    let table = look_up(source, &all, choosing).map_err(|e| e.to_string())?;
    let same: Vec<String> = (1..=given.len())
        .zip(&given)
        .map(|(n, (text, _))| format!("hq_key.hq_arg_{n} COLLATE BINARY IS +({text})"))
        .collect();
    let same = same.join(" AND ");
    let part =
        |n| format!("(SELECT hq_key.hq_key_{n} FROM {table} AS hq_key WHERE {same} LIMIT 1)");
    let texts = (1..=source.parts.len()).map(part).collect();
    let why = format!(", by {said} alone, which determines the key");
    Ok(Keys { texts, why, stored: None })
}

/// Where a published table is joined: all parts of the key with their tables.
fn stored<'r>(
    expansion: &Expansion,
    source: &KeySource,
    reached: &dyn Fn(&str) -> Option<&'r Reached>,
) -> Option<(String, Vec<String>, Option<String>)> {
    let places: Option<Vec<&Reached>> =
        expansion.key.names().iter().map(|k| reached(k).filter(|r| r.at.0.is_some())).collect();
    let places = places?;
    let table = places.first()?.at.0.clone()?;
    let one = places
        .iter()
        .all(|p| p.at.0.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(&table)));
    let keys = places.iter().map(|p| p.written()).collect();
    Some((source.table.clone(), keys, one.then_some(table)))
}

/// Expressions over a source's table as SQL.
fn over_source<'l>(all: impl Iterator<Item = &'l Lineage>) -> Vec<String> {
    let column = |column: &str| Some(format!("hq_of.{}", name(column)));
    // Which of them are written does not depend on names: all are there.
    all.filter_map(|l| l.written(&column)).collect()
}

/// Whether expressions have different values for each key of a source.
fn determines(
    source: &KeySource,
    all: &[&Lineage],
    choosing: &mut dyn Choosing,
) -> Result<bool, super::QueryError> {
    let keys = over_source(source.parts.iter().map(AsRef::as_ref));
    let args = over_source(all.iter().copied());
    let named = |all: &[String], name: &str| -> String {
        let each = all.iter().enumerate();
        each.map(|(n, e)| format!("{e} COLLATE BINARY AS {name}{}", n + 1))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let groups: Vec<String> = (1..=args.len()).map(|n| format!("a{n}")).collect();
    let twice = format!(
        "SELECT 1 FROM (SELECT DISTINCT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL) \
         GROUP BY {} HAVING count(*) > 1 LIMIT 1",
        named(&args, "a"),
        named(&keys, "k"),
        name(&source.table),
        args[0],
        groups.join(", ")
    );
    Ok(choosing.values(&twice, 1)?.is_none_or(|found| found.is_empty()))
}

/// A table of a source's keys by the values of expressions.
fn look_up(
    source: &KeySource,
    all: &[&Lineage],
    choosing: &mut dyn Choosing,
) -> Result<String, super::QueryError> {
    let keys = over_source(source.parts.iter().map(AsRef::as_ref));
    let args = over_source(all.iter().copied());
    let names = |name: &str, many: usize| -> Vec<String> {
        (1..=many).map(|n| format!("{name}{n}")).collect()
    };
    let (arg_names, key_names) = (names("hq_arg_", args.len()), names("hq_key_", keys.len()));
    let select = format!(
        "SELECT DISTINCT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL",
        args.join(", "),
        keys.join(", "),
        name(&source.table),
        args[0]
    );
    choosing.look_up(&arg_names, &key_names, &select)
}
