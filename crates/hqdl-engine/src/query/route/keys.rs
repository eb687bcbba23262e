//! Finds the entity of an expansion that the values of a call identify.
//!
//! # When the entity is certain
//!
//! The lineage of each value leads to columns of one row of a table, or of rows of several tables.
//! The query must join these tables by the same equalities as the source of the keys, and there
//! must be only one way to match them. The values identify the entity of that row if they *are* its
//! key (`key_match`), and
//!
//! * they are a part of the key and the row has the rest of it, or
//! * they differ for each key, which is checked in the current rows of the source.
//!
//! In the first case, and whenever the row has the whole key, the key is read from the row.
//! Otherwise it is looked up by the values. If the rows are grouped by the values, the rest of the
//! key comes from an arbitrary row of the group, so the groups must determine it. All other
//! questions are asked ad hoc.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::query::request::error::QueryError;
use crate::query::route::call_options::ValueListProvider;
use crate::query::route::key_match::{KeyMatch, match_key};
use hqdl_spec::{Expansion, SourceRows};
use hqdl_sql::blendsql::lineage::Lineage;
use hqdl_sql::blendsql::usage::{AvailableColumn, CallUsage, ColumnEquality};
use hqdl_values::sql::quote_name;

/// Key of a bound call.
pub(in crate::query) struct BoundKey {
    /// Key columns as SQL at the call.
    pub texts: Vec<String>,
    /// Text for the route's reason.
    pub why: String,
    /// For a published table: its source, the key columns qualified with their tables, and the
    /// table of the query that has all of them.
    pub stored: Option<(String, Vec<String>, Option<String>)>,
}

/// Source of an expansion's keys, with the lineage of each part of the key.
struct KeySource {
    /// The table, or the SELECT if it reads several tables.
    relation: KeyRelation,
    parts: Vec<Arc<Lineage>>,
    /// The source is a table, and the parts are its columns.
    is_table: bool,
}

/// Relation that the keys are read from.
enum KeyRelation {
    Table(String),
    /// A SELECT. `names` maps instance and lower-case column to the output column of the key part;
    /// `joins` are the equalities that join its tables.
    Select {
        text: String,
        names: Vec<((usize, String), String)>,
        joins: Vec<ColumnEquality>,
    },
}

impl KeyRelation {
    fn to_sql(&self) -> String {
        match self {
            Self::Table(table) => quote_name(table),
            Self::Select { text, .. } => format!("({text})"),
        }
    }

    /// Returns the output column of an instance's column.
    fn output_column(&self, instance: usize, column: &str) -> Option<String> {
        match self {
            Self::Table(_) => Some(format!("hq_of.{}", quote_name(column))),
            Self::Select { names, .. } => {
                let of = (instance, column.to_lowercase());
                let (_, found) = names.iter().find(|(column, _)| *column == of)?;
                Some(format!("hq_of.{}", quote_name(found)))
            }
        }
    }

    fn joins(&self) -> &[ColumnEquality] {
        match self {
            Self::Table(_) => &[],
            Self::Select { joins, .. } => joins,
        }
    }
}

/// Returns the key of an expansion as SQL at the call.
///
/// # Errors
/// The reason why the key cannot be determined.
pub(in crate::query) fn bound_key(
    expansion: &Expansion,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
) -> Result<BoundKey, String> {
    if !expansion.key_parts.is_empty() {
        return bound_key_by_part(expansion, usage, value_provider);
    }
    let Some(first) = usage.keys.first() else { return Err("it has no value".to_owned()) };
    let mut reason = "its value does not come from a source table of the expansion".to_owned();
    let Some(lineage) = &first.lineage else { return Err(reason) };
    for rows in &expansion.sources {
        let Some(source) = key_source(expansion, &rows.rows, value_provider) else { continue };
        match match_instances(&source, lineage, usage) {
            InstanceMatch::Unique(instance_map) => {
                match key_from_source(expansion, &source, &instance_map, usage, value_provider) {
                    Ok(keys) => return Ok(keys),
                    Err(why) => reason = why,
                }
            }
            InstanceMatch::Ambiguous => {
                "it is not certain which of its tables is which table of the source"
                    .clone_into(&mut reason);
            }
            InstanceMatch::NoMatch => {}
        }
    }
    Err(reason)
}

/// Match between the source's table instances and the query's.
enum InstanceMatch {
    Unique(BTreeMap<usize, usize>),
    Ambiguous,
    NoMatch,
}

/// Matches the source's table instances with those of the query: the tables must be the same and
/// joined in the same way. The instances of `first` must be among them.
fn match_instances(source: &KeySource, first: &Lineage, usage: &CallUsage) -> InstanceMatch {
    let mut source_instances: Vec<(usize, &str)> = Vec::new();
    for (instance, table) in source.parts.iter().flat_map(|p| p.instances()) {
        if !source_instances.iter().any(|(known, _)| *known == instance) {
            source_instances.push((instance, table));
        }
    }
    let mut query_instances: Vec<(usize, &str)> = Vec::new();
    let reached = usage.available_columns.iter().map(|r| (r.instance, r.table.as_str()));
    let keys = usage.keys.iter().filter_map(|k| k.lineage.as_deref());
    for (instance, table) in keys.flat_map(Lineage::instances).chain(reached) {
        if !query_instances.iter().any(|(known, _)| *known == instance) {
            query_instances.push((instance, table));
        }
    }
    let mut found: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new()];
    for (instance, table) in &source_instances {
        let mut next = Vec::new();
        for instance_map in &found {
            let free = query_instances.iter().filter(|(of, named)| {
                named.eq_ignore_ascii_case(table) && !instance_map.values().any(|known| known == of)
            });
            for (of, _) in free {
                let mut instance_map = instance_map.clone();
                instance_map.insert(*instance, *of);
                if is_joined_alike(source.relation.joins(), &instance_map, usage) {
                    next.push(instance_map);
                }
            }
        }
        found = next;
        if found.len() > MAX_MATCHES {
            return InstanceMatch::Ambiguous;
        }
    }
    found.retain(|instance_map| {
        first.instances().iter().all(|(of, _)| instance_map.values().any(|known| known == of))
    });
    match (found.pop(), found.len()) {
        (None, _) => InstanceMatch::NoMatch,
        (Some(is_one_table), 0) => InstanceMatch::Unique(is_one_table),
        (Some(_), _) => InstanceMatch::Ambiguous,
    }
}

/// Maximum number of candidate matches before the search gives up.
const MAX_MATCHES: usize = 64;

/// Returns whether the query joins the matched instances by the equalities of the source.
fn is_joined_alike(
    joins: &[ColumnEquality],
    instance_map: &BTreeMap<usize, usize>,
    usage: &CallUsage,
) -> bool {
    joins.iter().all(|join| {
        let (Some(left), Some(right)) =
            (instance_map.get(&join.left.0), instance_map.get(&join.right.0))
        else {
            return true;
        };
        let is =
            |own: &ColumnEquality| own.connects((*left, &join.left.1), (*right, &join.right.1));
        usage.equalities.iter().any(is)
    })
}

/// Returns the key of an expansion whose sources have only parts of it; the other columns are NULL.
fn bound_key_by_part(
    expansion: &Expansion,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
) -> Result<BoundKey, String> {
    let mut reasons = Vec::new();
    for n in 0..expansion.sources.len() {
        let Some((own, part)) = expansion.with_only_source(n) else { continue };
        match bound_key(&own, usage, value_provider) {
            Ok(found) => {
                let mut texts = vec!["NULL".to_owned(); expansion.key.names().len()];
                part.iter().zip(found.texts).for_each(|(at, text)| texts[*at] = text);
                return Ok(BoundKey { texts, why: found.why, stored: None });
            }
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.into_iter().max_by_key(String::len).unwrap_or_default())
}

/// Returns the source of the keys; `None` if the lineage of a part is unknown.
fn key_source(
    expansion: &Expansion,
    rows: &SourceRows,
    value_provider: &mut dyn ValueListProvider,
) -> Option<KeySource> {
    let names = expansion.key.names();
    match rows {
        SourceRows::Table(table) => {
            let part = |column: &String| {
                let (table, column) = (table.clone(), column.clone());
                Arc::new(Lineage::Column { instance: 0, table, column })
            };
            let parts = names.iter().map(part).collect();
            Some(KeySource { relation: KeyRelation::Table(table.clone()), parts, is_table: true })
        }
        SourceRows::Select(select) => {
            let outputs = value_provider.outputs_of(select);
            let part = |key: &String| {
                let found = outputs.columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
                found.and_then(|(_, lineage)| lineage.clone())
            };
            let parts: Option<Vec<Arc<Lineage>>> = names.iter().map(part).collect();
            let parts = parts?;
            let mut instances: Vec<(usize, &str)> = Vec::new();
            parts.iter().for_each(|p| instances.extend(p.instances()));
            instances.sort_unstable();
            instances.dedup();
            let relation = match instances.as_slice() {
                [] => return None,
                [(_, table)] => KeyRelation::Table((*table).to_owned()),
                instances_in_select if are_connected(instances_in_select, &outputs.equalities) => {
                    let output_of = |(key, part): (&String, &Arc<Lineage>)| match &**part {
                        Lineage::Column { instance, column, .. } => {
                            Some(((*instance, column.to_lowercase()), key.clone()))
                        }
                        _ => None,
                    };
                    let names: Option<Vec<_>> = names.iter().zip(&parts).map(output_of).collect();
                    KeyRelation::Select {
                        text: select.clone(),
                        names: names?,
                        joins: outputs.equalities,
                    }
                }
                _ => return None,
            };
            Some(KeySource { relation, parts, is_table: false })
        }
    }
}

/// Returns whether joins connect all of these tables.
fn are_connected(instances: &[(usize, &str)], joins: &[ColumnEquality]) -> bool {
    let mut known = vec![instances[0].0];
    let mut at = 0;
    while let Some(is_one_table) = known.get(at).copied() {
        for join in joins {
            for (near, far) in [(&join.left, &join.right), (&join.right, &join.left)] {
                let is_instance = instances.iter().any(|(n, _)| *n == far.0);
                if near.0 == is_one_table && is_instance && !known.contains(&far.0) {
                    known.push(far.0);
                }
            }
        }
        at += 1;
    }
    known.len() == instances.len()
}

/// Returns the key from a source whose table instances are matched with the query's.
#[expect(clippy::too_many_lines, reason = "the conditions of a match in their order")]
fn key_from_source(
    expansion: &Expansion,
    source: &KeySource,
    instance_map: &BTreeMap<usize, usize>,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
) -> Result<BoundKey, String> {
    let mut matched_instance =
        |instance: usize| instance_map.get(&instance).copied().unwrap_or(usize::MAX);
    let parts: Vec<Arc<Lineage>> = source
        .parts
        .iter()
        .map(|p| Arc::new(p.renumber_instances(&mut matched_instance)))
        .collect();
    let mut key_columns: Vec<(usize, String)> = Vec::new();
    for part in &parts {
        part.visit_columns(&mut |of, _, column| key_columns.push((of, column.to_lowercase())));
    }
    let is_of_key = |lineage: &Lineage| {
        let (mut all, mut any) = (true, false);
        lineage.visit_columns(&mut |of, _, column| {
            any = true;
            all &= key_columns.contains(&(of, column.to_lowercase()));
        });
        all && any
    };
    let key_values: Vec<(&str, &Arc<Lineage>)> = usage
        .keys
        .iter()
        .filter_map(|k| Some((k.text.as_str(), k.lineage.as_ref()?)))
        .filter(|(_, lineage)| is_of_key(lineage))
        .collect();
    let all: Vec<&Lineage> = key_values.iter().map(|(_, lineage)| lineage.as_ref()).collect();
    let first = usage.keys.first().and_then(|k| k.lineage.as_ref());
    let Some(first) = first.filter(|lineage| is_of_key(lineage)) else {
        return Err("its value is computed from other columns than the key".to_owned());
    };
    let evaluator = SourceEvaluator { source, instance_map };
    let is_complete = key_values.len() == usage.keys.len();
    let matched = is_complete
        .then(|| evaluator.match_call_key(&all, &parts, (expansion, usage), value_provider));
    let Some(matched) = matched.flatten() else {
        return Err(format!(
            "{} is not the key ({})",
            usage.keys.iter().map(|k| k.text.as_str()).collect::<Vec<_>>().join(", "),
            expansion.key.names().join(", ")
        ));
    };
    let determines_key = |all: &[&Lineage], value_provider: &mut dyn ValueListProvider| {
        evaluator.determines_key(all, value_provider).map_err(|e| e.to_string())
    };
    let is_matched = |of: usize| instance_map.values().any(|known| *known == of);
    let groups: Vec<&Lineage> = usage
        .group_terms
        .iter()
        .map(AsRef::as_ref)
        .filter(|g| {
            !g.instances().is_empty() && g.instances().iter().all(|(of, _)| is_matched(*of))
        })
        .collect();
    if groups.iter().any(|g| g.is_same(first)) && !determines_key(&groups, value_provider)? {
        return Err("the rows are grouped by it, and a group can have several keys".to_owned());
    }
    let reached = |of: usize, column: &str| {
        let is = |r: &&AvailableColumn| r.instance == of && r.column.eq_ignore_ascii_case(column);
        usage.available_columns.iter().find(is)
    };
    let text = |part: &Arc<Lineage>| {
        let own_value = key_values.iter().find(|(_, lineage)| lineage.is_same(part));
        own_value
            .map(|(text, _)| (*text).to_owned())
            .or_else(|| part.to_sql(&|of, column| reached(of, column).map(AvailableColumn::to_sql)))
    };
    let texts: Option<Vec<String>> = parts.iter().map(text).collect();
    let is_part = matched == KeyMatch::LabelledPart || parts.iter().any(|p| p.is_same(first));
    if let Some(texts) = texts
        && (is_part || determines_key(&all, value_provider)?)
    {
        let mut texts: Vec<String> =
            texts.into_iter().map(|t| if source.is_table { t } else { format!("({t})") }).collect();
        // The first part may have a value in rows where the call's value is NULL.
        let is_first =
            matched == KeyMatch::Parts && parts.first().is_some_and(|p| p.is_same(first));
        if !is_first && let (Some(text), Some((value, _))) = (texts.first_mut(), key_values.first())
        {
            *text = format!("CASE WHEN ({value}) IS NOT NULL THEN {text} END");
        }
        let stored = match (&source.relation, instance_map.values().next()) {
            (KeyRelation::Table(table), Some(of)) if source.is_table && is_first => {
                stored_key(expansion, table, &|column| reached(*of, column))
            }
            _ => None,
        };
        return Ok(BoundKey { texts, why: String::new(), stored });
    }
    let value_list: Vec<&str> = key_values.iter().map(|(text, _)| *text).collect();
    let value_list = value_list.join(", ");
    if !determines_key(&all, value_provider)? {
        let key =
            expansion.key.names().iter().map(|n| quote_name(n)).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "the query has only {value_list} of its key ({key}), which does not determine it"
        ));
    }
    let table = evaluator.create_lookup(&all, value_provider).map_err(|e| e.to_string())?;
    let equal_arguments: Vec<String> = (1..=key_values.len())
        .zip(&key_values)
        .map(|(n, (text, _))| format!("hq_key.hq_arg_{n} COLLATE BINARY IS +({text})"))
        .collect();
    let equal_arguments = equal_arguments.join(" AND ");
    let part = |n| {
        format!("(SELECT hq_key.hq_key_{n} FROM {table} AS hq_key WHERE {equal_arguments} LIMIT 1)")
    };
    let texts = (1..=parts.len()).map(part).collect();
    let why = format!(", by {value_list} alone, which determines the key");
    Ok(BoundKey { texts, why, stored: None })
}

/// Returns where a published table can be joined: all parts of the key with their tables.
fn stored_key<'r>(
    expansion: &Expansion,
    source: &str,
    reached: &dyn Fn(&str) -> Option<&'r AvailableColumn>,
) -> Option<(String, Vec<String>, Option<String>)> {
    let reached_columns: Option<Vec<&AvailableColumn>> = expansion
        .key
        .names()
        .iter()
        .map(|k| reached(k).filter(|r| r.query_column.0.is_some()))
        .collect();
    let reached_columns = reached_columns?;
    let table = reached_columns.first()?.query_column.0.clone()?;
    let is_one_table = reached_columns
        .iter()
        .all(|p| p.query_column.0.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(&table)));
    let keys = reached_columns.iter().map(|p| p.to_sql()).collect();
    Some((source.to_owned(), keys, is_one_table.then_some(table)))
}

/// The rows of a source, to evaluate expressions of the query on them.
struct SourceEvaluator<'s> {
    source: &'s KeySource,
    instance_map: &'s BTreeMap<usize, usize>,
}

impl SourceEvaluator<'_> {
    /// Returns the parts of the key as SQL over the source's rows.
    fn key_expressions(&self) -> Vec<String> {
        let column =
            |instance: usize, column: &str| self.source.relation.output_column(instance, column);
        self.source.parts.iter().filter_map(|p| p.to_sql(&column)).collect()
    }

    /// Translates expressions of the query to SQL over the source's rows. Returns `None` if the
    /// source lacks one of the columns.
    fn translate_values(&self, all: &[&Lineage]) -> Option<Vec<String>> {
        let column = |of: usize, column: &str| {
            let (instance, _) = self.instance_map.iter().find(|(_, known)| **known == of)?;
            self.source.relation.output_column(*instance, column)
        };
        all.iter().map(|l| l.to_sql(&column)).collect()
    }

    /// Returns how a call's values match the key made of `parts`.
    fn match_call_key(
        &self,
        values: &[&Lineage],
        parts: &[Arc<Lineage>],
        (expansion, usage): (&Expansion, &CallUsage),
        value_provider: &mut dyn ValueListProvider,
    ) -> Option<KeyMatch> {
        let labels = |part: usize, column: &Lineage| {
            let mut names: Vec<String> =
                expansion.key.names().get(part).cloned().into_iter().collect();
            column.visit_columns(&mut |of, table, column| {
                let aliases = usage.available_columns.iter().filter(|r| r.instance == of);
                let tables =
                    aliases.filter_map(|r| r.query_column.0.clone()).chain([table.to_owned()]);
                for table in tables {
                    names.extend([format!("{table} {column}"), table]);
                }
                names.push(column.to_owned());
            });
            names
        };
        let keys = self.key_expressions();
        let mut is_number = |part: usize| {
            let type_checks = keys.iter().enumerate().map(|(n, key)| {
                let allowed_types =
                    if n == part { "'integer', 'real', 'null'" } else { "'text', 'null'" };
                format!("typeof({key}) NOT IN ({allowed_types})")
            });
            let other_rows_sql = format!(
                "SELECT 1 FROM {} AS hq_of WHERE {} LIMIT 1",
                self.source.relation.to_sql(),
                type_checks.collect::<Vec<_>>().join(" OR ")
            );
            let found = value_provider.query_values(&other_rows_sql, 1);
            found.is_ok_and(|found| found.is_some_and(|found| found.is_empty()))
        };
        match_key(values, parts, &labels, &mut is_number)
    }

    /// Returns whether the expressions differ for each key of the source.
    fn determines_key(
        &self,
        all: &[&Lineage],
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<bool, QueryError> {
        let keys = self.key_expressions();
        let Some(args) = self.translate_values(all).filter(|args| !args.is_empty()) else {
            return Ok(false);
        };
        let numbered = |all: &[String], name: &str| -> String {
            let each = all.iter().enumerate();
            each.map(|(n, e)| format!("{e} COLLATE BINARY AS {name}{}", n + 1))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let groups: Vec<String> = (1..=args.len()).map(|n| format!("a{n}")).collect();
        let duplicates_sql = format!(
            "SELECT 1 FROM (SELECT DISTINCT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL) \
             AS hq_twice GROUP BY {} HAVING count(*) > 1 LIMIT 1",
            numbered(&args, "a"),
            numbered(&keys, "k"),
            self.source.relation.to_sql(),
            args[0],
            groups.join(", ")
        );
        Ok(value_provider.query_values(&duplicates_sql, 1)?.is_none_or(|found| found.is_empty()))
    }

    /// Creates a table that maps values of expressions to keys of the source, and returns its name.
    fn create_lookup(
        &self,
        all: &[&Lineage],
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<String, QueryError> {
        let (keys, args) = (self.key_expressions(), self.translate_values(all).unwrap_or_default());
        let names = |name: &str, many: usize| -> Vec<String> {
            (1..=many).map(|n| format!("{name}{n}")).collect()
        };
        let (arg_names, key_names) = (names("hq_arg_", args.len()), names("hq_key_", keys.len()));
        let select = format!(
            "SELECT DISTINCT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL",
            args.join(", "),
            keys.join(", "),
            self.source.relation.to_sql(),
            args.first().map_or("NULL", String::as_str)
        );
        value_provider.create_lookup_table(&arg_names, &key_names, &select)
    }
}
