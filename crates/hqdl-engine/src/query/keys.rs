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

use super::choosing::Choosing;
use super::key_match::{KeyMatch, match_key};
use hqdl_spec::{Expansion, SourceRows};
use hqdl_sql::blendsql::lineage::Lineage;
use hqdl_sql::blendsql::usage::{CallUsage, Joined, ReachedColumn};
use hqdl_values::sql::name;

/// Key of a bound call.
pub(super) struct BoundKey {
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
    from: From,
    parts: Vec<Arc<Lineage>>,
    /// The source is a table, and the parts are its columns.
    plain: bool,
}

/// Relation that the keys are read from.
enum From {
    Table(String),
    /// A SELECT. `names` maps instance and lower-case column to the output column of the key part;
    /// `joins` are the equalities that join its tables.
    Select {
        text: String,
        names: Vec<((usize, String), String)>,
        joined: Vec<Joined>,
    },
}

impl From {
    fn written(&self) -> String {
        match self {
            Self::Table(table) => name(table),
            Self::Select { text, .. } => format!("({text})"),
        }
    }

    /// Returns the output column of an instance's column.
    fn column(&self, instance: usize, column: &str) -> Option<String> {
        match self {
            Self::Table(_) => Some(format!("hq_of.{}", name(column))),
            Self::Select { names, .. } => {
                let of = (instance, column.to_lowercase());
                let (_, found) = names.iter().find(|(column, _)| *column == of)?;
                Some(format!("hq_of.{}", name(found)))
            }
        }
    }

    fn joined(&self) -> &[Joined] {
        match self {
            Self::Table(_) => &[],
            Self::Select { joined, .. } => joined,
        }
    }
}

/// Returns the key of an expansion as SQL at the call.
///
/// # Errors
/// The reason why the key cannot be determined.
pub(super) fn keys(
    expansion: &Expansion,
    usage: &CallUsage,
    choosing: &mut dyn Choosing,
) -> Result<BoundKey, String> {
    if !expansion.key_parts.is_empty() {
        return by_part(expansion, usage, choosing);
    }
    let Some(first) = usage.keys.first() else { return Err("it has no value".to_owned()) };
    let mut reason = "its value does not come from a source table of the expansion".to_owned();
    let Some(lineage) = &first.lineage else { return Err(reason) };
    for rows in &expansion.sources {
        let Some(source) = source(expansion, &rows.rows, choosing) else { continue };
        match roles(&source, lineage, usage) {
            Roles::One(roles) => match of_source(expansion, &source, &roles, usage, choosing) {
                Ok(keys) => return Ok(keys),
                Err(why) => reason = why,
            },
            Roles::Several => {
                "it is not certain which of its tables is which table of the source"
                    .clone_into(&mut reason);
            }
            Roles::None => {}
        }
    }
    Err(reason)
}

/// Match between the source's table instances and the query's.
enum Roles {
    One(BTreeMap<usize, usize>),
    Several,
    None,
}

/// Matches the source's table instances with those of the query: the tables must be the same and
/// joined in the same way. The instances of `first` must be among them.
fn roles(source: &KeySource, first: &Lineage, usage: &CallUsage) -> Roles {
    let mut theirs: Vec<(usize, &str)> = Vec::new();
    for (instance, table) in source.parts.iter().flat_map(|p| p.instances()) {
        if !theirs.iter().any(|(known, _)| *known == instance) {
            theirs.push((instance, table));
        }
    }
    let mut ours: Vec<(usize, &str)> = Vec::new();
    let reached = usage.reached.iter().map(|r| (r.instance, r.table.as_str()));
    let keys = usage.keys.iter().filter_map(|k| k.lineage.as_deref());
    for (instance, table) in keys.flat_map(Lineage::instances).chain(reached) {
        if !ours.iter().any(|(known, _)| *known == instance) {
            ours.push((instance, table));
        }
    }
    let mut found: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new()];
    for (instance, table) in &theirs {
        let mut next = Vec::new();
        for roles in &found {
            let free = ours.iter().filter(|(of, named)| {
                named.eq_ignore_ascii_case(table) && !roles.values().any(|known| known == of)
            });
            for (of, _) in free {
                let mut roles = roles.clone();
                roles.insert(*instance, *of);
                if plays(source.from.joined(), &roles, usage) {
                    next.push(roles);
                }
            }
        }
        found = next;
        if found.len() > MOST_ROLES {
            return Roles::Several;
        }
    }
    found.retain(|roles| {
        first.instances().iter().all(|(of, _)| roles.values().any(|known| known == of))
    });
    match (found.pop(), found.len()) {
        (None, _) => Roles::None,
        (Some(one), 0) => Roles::One(one),
        (Some(_), _) => Roles::Several,
    }
}

/// Maximum number of candidate matches before the search gives up.
const MOST_ROLES: usize = 64;

/// Returns whether the query joins the matched instances by the equalities of the source.
fn plays(joined: &[Joined], roles: &BTreeMap<usize, usize>, usage: &CallUsage) -> bool {
    joined.iter().all(|join| {
        let (Some(left), Some(right)) = (roles.get(&join.left.0), roles.get(&join.right.0)) else {
            return true;
        };
        let is = |own: &Joined| own.is_of((*left, &join.left.1), (*right, &join.right.1));
        usage.joined.iter().any(is)
    })
}

/// Returns the key of an expansion whose sources have only parts of it; the other columns are NULL.
fn by_part(
    expansion: &Expansion,
    usage: &CallUsage,
    choosing: &mut dyn Choosing,
) -> Result<BoundKey, String> {
    let mut reasons = Vec::new();
    for n in 0..expansion.sources.len() {
        let Some((own, part)) = expansion.of_source(n) else { continue };
        match keys(&own, usage, choosing) {
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
            Some(KeySource { from: From::Table(table.clone()), parts, plain: true })
        }
        SourceRows::Select(select) => {
            let outputs = choosing.made_of(select);
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
            let from = match instances.as_slice() {
                [] => return None,
                [(_, table)] => From::Table((*table).to_owned()),
                several if connected(several, &outputs.joined) => {
                    let named = |(key, part): (&String, &Arc<Lineage>)| match &**part {
                        Lineage::Column { instance, column, .. } => {
                            Some(((*instance, column.to_lowercase()), key.clone()))
                        }
                        _ => None,
                    };
                    let names: Option<Vec<_>> = names.iter().zip(&parts).map(named).collect();
                    From::Select { text: select.clone(), names: names?, joined: outputs.joined }
                }
                _ => return None,
            };
            Some(KeySource { from, parts, plain: false })
        }
    }
}

/// Returns whether joins connect all of these tables.
fn connected(instances: &[(usize, &str)], joined: &[Joined]) -> bool {
    let mut known = vec![instances[0].0];
    let mut at = 0;
    while let Some(one) = known.get(at).copied() {
        for join in joined {
            for (here, there) in [(&join.left, &join.right), (&join.right, &join.left)] {
                let counts = instances.iter().any(|(n, _)| *n == there.0);
                if here.0 == one && counts && !known.contains(&there.0) {
                    known.push(there.0);
                }
            }
        }
        at += 1;
    }
    known.len() == instances.len()
}

/// Returns the key from a source whose table instances are matched with the query's.
fn of_source(
    expansion: &Expansion,
    source: &KeySource,
    roles: &BTreeMap<usize, usize>,
    usage: &CallUsage,
    choosing: &mut dyn Choosing,
) -> Result<BoundKey, String> {
    let mut play = |instance: usize| roles.get(&instance).copied().unwrap_or(usize::MAX);
    let parts: Vec<Arc<Lineage>> =
        source.parts.iter().map(|p| Arc::new(p.renumbered(&mut play))).collect();
    let mut base: Vec<(usize, String)> = Vec::new();
    for part in &parts {
        part.each_column(&mut |of, _, column| base.push((of, column.to_lowercase())));
    }
    let is_of_key = |lineage: &Lineage| {
        let (mut all, mut any) = (true, false);
        lineage.each_column(&mut |of, _, column| {
            any = true;
            all &= base.contains(&(of, column.to_lowercase()));
        });
        all && any
    };
    let given: Vec<(&str, &Arc<Lineage>)> = usage
        .keys
        .iter()
        .filter_map(|k| Some((k.text.as_str(), k.lineage.as_ref()?)))
        .filter(|(_, lineage)| is_of_key(lineage))
        .collect();
    let all: Vec<&Lineage> = given.iter().map(|(_, lineage)| lineage.as_ref()).collect();
    let first = usage.keys.first().and_then(|k| k.lineage.as_ref());
    let Some(first) = first.filter(|lineage| is_of_key(lineage)) else {
        return Err("its value is computed from other columns than the key".to_owned());
    };
    let over = Over { source, roles };
    let whole = given.len() == usage.keys.len();
    let matched = whole.then(|| over.match_key(&all, &parts, (expansion, usage), choosing));
    let Some(matched) = matched.flatten() else {
        return Err(format!(
            "{} is not the key ({})",
            usage.keys.iter().map(|k| k.text.as_str()).collect::<Vec<_>>().join(", "),
            expansion.key.names().join(", ")
        ));
    };
    let determine = |all: &[&Lineage], choosing: &mut dyn Choosing| {
        over.determines(all, choosing).map_err(|e| e.to_string())
    };
    let own = |of: usize| roles.values().any(|known| *known == of);
    let groups: Vec<&Lineage> = usage
        .grouped
        .iter()
        .map(AsRef::as_ref)
        .filter(|g| !g.instances().is_empty() && g.instances().iter().all(|(of, _)| own(*of)))
        .collect();
    if groups.iter().any(|g| g.is(first)) && !determine(&groups, choosing)? {
        return Err("the rows are grouped by it, and a group can have several keys".to_owned());
    }
    let reached = |of: usize, column: &str| {
        let is = |r: &&ReachedColumn| r.instance == of && r.column.eq_ignore_ascii_case(column);
        usage.reached.iter().find(is)
    };
    let text = |part: &Arc<Lineage>| {
        let own = given.iter().find(|(_, lineage)| lineage.is(part));
        own.map(|(text, _)| (*text).to_owned())
            .or_else(|| part.written(&|of, column| reached(of, column).map(ReachedColumn::written)))
    };
    let texts: Option<Vec<String>> = parts.iter().map(text).collect();
    let is_part = matched == KeyMatch::LabelledPart || parts.iter().any(|p| p.is(first));
    if let Some(texts) = texts
        && (is_part || determine(&all, choosing)?)
    {
        let mut texts: Vec<String> =
            texts.into_iter().map(|t| if source.plain { t } else { format!("({t})") }).collect();
        // The first part may have a value in rows where the call's value is NULL.
        let is_first = matched == KeyMatch::Parts && parts.first().is_some_and(|p| p.is(first));
        if !is_first && let (Some(text), Some((value, _))) = (texts.first_mut(), given.first()) {
            *text = format!("CASE WHEN ({value}) IS NOT NULL THEN {text} END");
        }
        let stored = match (&source.from, roles.values().next()) {
            (From::Table(table), Some(of)) if source.plain && is_first => {
                stored(expansion, table, &|column| reached(*of, column))
            }
            _ => None,
        };
        return Ok(BoundKey { texts, why: String::new(), stored });
    }
    let said: Vec<&str> = given.iter().map(|(text, _)| *text).collect();
    let said = said.join(", ");
    if !determine(&all, choosing)? {
        let key = expansion.key.names().iter().map(|n| name(n)).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "the query has only {said} of its key ({key}), which does not determine it"
        ));
    }
    let table = over.look_up(&all, choosing).map_err(|e| e.to_string())?;
    let same: Vec<String> = (1..=given.len())
        .zip(&given)
        .map(|(n, (text, _))| format!("hq_key.hq_arg_{n} COLLATE BINARY IS +({text})"))
        .collect();
    let same = same.join(" AND ");
    let part =
        |n| format!("(SELECT hq_key.hq_key_{n} FROM {table} AS hq_key WHERE {same} LIMIT 1)");
    let texts = (1..=parts.len()).map(part).collect();
    let why = format!(", by {said} alone, which determines the key");
    Ok(BoundKey { texts, why, stored: None })
}

/// Returns where a published table can be joined: all parts of the key with their tables.
fn stored<'r>(
    expansion: &Expansion,
    source: &str,
    reached: &dyn Fn(&str) -> Option<&'r ReachedColumn>,
) -> Option<(String, Vec<String>, Option<String>)> {
    let places: Option<Vec<&ReachedColumn>> =
        expansion.key.names().iter().map(|k| reached(k).filter(|r| r.at.0.is_some())).collect();
    let places = places?;
    let table = places.first()?.at.0.clone()?;
    let one = places
        .iter()
        .all(|p| p.at.0.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(&table)));
    let keys = places.iter().map(|p| p.written()).collect();
    Some((source.to_owned(), keys, one.then_some(table)))
}

/// The rows of a source, to evaluate expressions of the query on them.
struct Over<'s> {
    source: &'s KeySource,
    roles: &'s BTreeMap<usize, usize>,
}

impl Over<'_> {
    /// Returns the parts of the key as SQL over the source's rows.
    fn keys(&self) -> Vec<String> {
        let column = |instance: usize, column: &str| self.source.from.column(instance, column);
        self.source.parts.iter().filter_map(|p| p.written(&column)).collect()
    }

    /// Translates expressions of the query to SQL over the source's rows. Returns `None` if the
    /// source lacks one of the columns.
    fn values(&self, all: &[&Lineage]) -> Option<Vec<String>> {
        let column = |of: usize, column: &str| {
            let (instance, _) = self.roles.iter().find(|(_, known)| **known == of)?;
            self.source.from.column(*instance, column)
        };
        all.iter().map(|l| l.written(&column)).collect()
    }

    /// Returns how a call's values match the key made of `parts`.
    fn match_key(
        &self,
        values: &[&Lineage],
        parts: &[Arc<Lineage>],
        (expansion, usage): (&Expansion, &CallUsage),
        choosing: &mut dyn Choosing,
    ) -> Option<KeyMatch> {
        let labels = |part: usize, column: &Lineage| {
            let mut names: Vec<String> =
                expansion.key.names().get(part).cloned().into_iter().collect();
            column.each_column(&mut |of, table, column| {
                let aliases = usage.reached.iter().filter(|r| r.instance == of);
                let tables = aliases.filter_map(|r| r.at.0.clone()).chain([table.to_owned()]);
                for table in tables {
                    names.extend([format!("{table} {column}"), table]);
                }
                names.push(column.to_owned());
            });
            names
        };
        let keys = self.keys();
        let mut is_number = |part: usize| {
            let kinds = keys.iter().enumerate().map(|(n, key)| {
                let kinds = if n == part { "'integer', 'real', 'null'" } else { "'text', 'null'" };
                format!("typeof({key}) NOT IN ({kinds})")
            });
            let others = format!(
                "SELECT 1 FROM {} AS hq_of WHERE {} LIMIT 1",
                self.source.from.written(),
                kinds.collect::<Vec<_>>().join(" OR ")
            );
            let found = choosing.values(&others, 1);
            found.is_ok_and(|found| found.is_some_and(|found| found.is_empty()))
        };
        match_key(values, parts, &labels, &mut is_number)
    }

    /// Returns whether the expressions differ for each key of the source.
    fn determines(
        &self,
        all: &[&Lineage],
        choosing: &mut dyn Choosing,
    ) -> Result<bool, super::QueryError> {
        let keys = self.keys();
        let Some(args) = self.values(all).filter(|args| !args.is_empty()) else { return Ok(false) };
        let named = |all: &[String], name: &str| -> String {
            let each = all.iter().enumerate();
            each.map(|(n, e)| format!("{e} COLLATE BINARY AS {name}{}", n + 1))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let groups: Vec<String> = (1..=args.len()).map(|n| format!("a{n}")).collect();
        let twice = format!(
            "SELECT 1 FROM (SELECT DISTINCT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL) \
             AS hq_twice GROUP BY {} HAVING count(*) > 1 LIMIT 1",
            named(&args, "a"),
            named(&keys, "k"),
            self.source.from.written(),
            args[0],
            groups.join(", ")
        );
        Ok(choosing.values(&twice, 1)?.is_none_or(|found| found.is_empty()))
    }

    /// Creates a table that maps values of expressions to keys of the source, and returns its name.
    fn look_up(
        &self,
        all: &[&Lineage],
        choosing: &mut dyn Choosing,
    ) -> Result<String, super::QueryError> {
        let (keys, args) = (self.keys(), self.values(all).unwrap_or_default());
        let names = |name: &str, many: usize| -> Vec<String> {
            (1..=many).map(|n| format!("{name}{n}")).collect()
        };
        let (arg_names, key_names) = (names("hq_arg_", args.len()), names("hq_key_", keys.len()));
        let select = format!(
            "SELECT DISTINCT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL",
            args.join(", "),
            keys.join(", "),
            self.source.from.written(),
            args.first().map_or("NULL", String::as_str)
        );
        choosing.look_up(&arg_names, &key_names, &select)
    }
}
