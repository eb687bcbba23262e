//! Finds the key of a call among the rows of one source. The key is read from the row, or looked up
//! by the call's values.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::query::request::error::QueryError;
use crate::query::route::call_options::ValueListProvider;
use crate::query::route::key_match::{KeyMatch, match_key};
use hqdl_spec::Expansion;
use hqdl_sql::blendsql::lineage::Lineage;
use hqdl_sql::blendsql::usage::{AvailableColumn, CallUsage, ColumnEquality};
use hqdl_values::sql::quote_name;

/// Key of a bound call.
pub(in crate::query) struct BoundKey {
    /// Key columns as SQL that is valid at the position of the call.
    pub texts: Vec<String>,
    /// Explanation that becomes part of the route's reason.
    pub why: String,
    /// Join with a published table: the source, the key columns qualified with their tables, and
    /// the query's table that has all key columns, if there is one.
    pub stored: Option<(String, Vec<String>, Option<String>)>,
}

/// Source of an expansion's keys, with the lineage of each part of the key.
pub(super) struct KeySource {
    /// The table, or the SELECT if it reads several tables.
    pub(super) relation: KeyRelation,
    pub(super) parts: Vec<Arc<Lineage>>,
    /// Whether the source is a table and the parts are its columns.
    pub(super) is_table: bool,
}

/// Relation that the keys are read from.
pub(super) enum KeyRelation {
    Table(String),
    /// A SELECT. `names` maps an instance and a lower-case column to the output column of the key
    /// part; `joins` contains the equalities that join the SELECT's tables.
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

    /// Returns the output column for a column of a table instance.
    fn find_output_column(&self, instance: usize, column: &str) -> Option<String> {
        match self {
            Self::Table(_) => Some(format!("hq_of.{}", quote_name(column))),
            Self::Select { names, .. } => {
                let of = (instance, column.to_lowercase());
                let (_, found) = names.iter().find(|(column, _)| *column == of)?;
                Some(format!("hq_of.{}", quote_name(found)))
            }
        }
    }

    pub(super) fn joins(&self) -> &[ColumnEquality] {
        match self {
            Self::Table(_) => &[],
            Self::Select { joins, .. } => joins,
        }
    }
}

/// Returns the key from a source whose table instances are matched with the query's table
/// instances.
///
/// # Errors
/// Fails with the reason if the key cannot be determined.
pub(super) fn build_key_from_source(
    expansion: &Expansion,
    source: &KeySource,
    instance_map: &BTreeMap<usize, usize>,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
) -> Result<BoundKey, String> {
    let evaluator = SourceEvaluator { source, instance_map };
    let call_key = CallKey::new(expansion, usage, evaluator)?;
    let matched = call_key.match_key(value_provider)?;
    call_key.check_groups(value_provider)?;
    if let Some(key) = call_key.build_key_from_row(matched, value_provider)? {
        return Ok(key);
    }
    call_key.build_key_from_lookup(value_provider)
}

/// Values of a call that come from columns of the key.
struct CallKey<'k> {
    expansion: &'k Expansion,
    usage: &'k CallUsage,
    evaluator: SourceEvaluator<'k>,
    /// Lineage of each part of the key, in the instances of the query.
    parts: Vec<Arc<Lineage>>,
    /// Text and lineage of each value that is computed from the key alone.
    values: Vec<(&'k str, &'k Arc<Lineage>)>,
    /// Lineage of the call's first value.
    first: &'k Arc<Lineage>,
}

impl<'k> CallKey<'k> {
    fn new(
        expansion: &'k Expansion,
        usage: &'k CallUsage,
        evaluator: SourceEvaluator<'k>,
    ) -> Result<Self, String> {
        let mut matched_instance =
            |instance: usize| evaluator.instance_map.get(&instance).copied().unwrap_or(usize::MAX);
        let parts: Vec<Arc<Lineage>> = (evaluator.source.parts.iter())
            .map(|part| Arc::new(part.renumber_instances(&mut matched_instance)))
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
        let values = (usage.keys.iter())
            .filter_map(|key| Some((key.text.as_str(), key.lineage.as_ref()?)))
            .filter(|(_, lineage)| is_of_key(lineage))
            .collect();
        let first = usage.keys.first().and_then(|key| key.lineage.as_ref());
        let first = first
            .filter(|lineage| is_of_key(lineage))
            .ok_or("its value is computed from other columns than the key")?;
        Ok(Self { expansion, usage, evaluator, parts, values, first })
    }

    fn lineages(&self) -> Vec<&Lineage> {
        self.values.iter().map(|(_, lineage)| lineage.as_ref()).collect()
    }

    /// Returns how the values match the key.
    fn match_key(&self, value_provider: &mut dyn ValueListProvider) -> Result<KeyMatch, String> {
        let is_complete = self.values.len() == self.usage.keys.len();
        let matched = is_complete.then(|| {
            let of = (self.expansion, self.usage);
            self.evaluator.match_call_key(&self.lineages(), &self.parts, of, value_provider)
        });
        matched.flatten().ok_or_else(|| {
            let values: Vec<&str> = self.usage.keys.iter().map(|key| key.text.as_str()).collect();
            let key = self.expansion.key.names().join(", ");
            format!("{} is not the key ({key})", values.join(", "))
        })
    }

    /// Returns true if expressions of the query have a different value for each key of the source.
    fn values_determine_key(
        &self,
        all: &[&Lineage],
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<bool, String> {
        self.evaluator.determines_key(all, value_provider).map_err(|e| e.to_string())
    }

    /// If the rows are grouped by the call's first value, checks that each group has only one key.
    fn check_groups(&self, value_provider: &mut dyn ValueListProvider) -> Result<(), String> {
        let is_matched = |of: usize| self.evaluator.instance_map.values().any(|known| *known == of);
        let is_of_source = |term: &&Lineage| {
            let instances = term.instances();
            !instances.is_empty() && instances.iter().all(|(of, _)| is_matched(*of))
        };
        let groups: Vec<&Lineage> =
            self.usage.group_terms.iter().map(AsRef::as_ref).filter(is_of_source).collect();
        let is_grouped = groups.iter().any(|group| group.is_same(self.first));
        if is_grouped && !self.values_determine_key(&groups, value_provider)? {
            return Err("the rows are grouped by it, and a group can have several keys".to_owned());
        }
        Ok(())
    }

    fn find_available_column(&self, of: usize, column: &str) -> Option<&'k AvailableColumn> {
        let is = |r: &&AvailableColumn| r.instance == of && r.column.eq_ignore_ascii_case(column);
        self.usage.available_columns.iter().find(is)
    }

    /// Returns a part of the key as SQL that is valid at the position of the call, if the row has
    /// this part.
    fn part_sql(&self, part: &Arc<Lineage>) -> Option<String> {
        let own_value = self.values.iter().find(|(_, lineage)| lineage.is_same(part));
        own_value.map(|(text, _)| (*text).to_owned()).or_else(|| {
            part.to_sql(&|of, column| {
                self.find_available_column(of, column).map(AvailableColumn::to_sql)
            })
        })
    }

    /// Returns the key as read from the row, if the row has the whole key and the values identify
    /// the key.
    fn build_key_from_row(
        &self,
        matched: KeyMatch,
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<Option<BoundKey>, String> {
        let texts: Option<Vec<String>> = self.parts.iter().map(|p| self.part_sql(p)).collect();
        let Some(texts) = texts else { return Ok(None) };
        let is_part = matched == KeyMatch::LabelledPart
            || self.parts.iter().any(|part| part.is_same(self.first));
        if !is_part && !self.values_determine_key(&self.lineages(), value_provider)? {
            return Ok(None);
        }
        let source = self.evaluator.source;
        let mut texts: Vec<String> =
            texts.into_iter().map(|t| if source.is_table { t } else { format!("({t})") }).collect();
        // The first part may have a value in rows where the call's value is NULL, but the call must
        // return NULL there.
        let is_first = matched == KeyMatch::Parts
            && self.parts.first().is_some_and(|part| part.is_same(self.first));
        if !is_first
            && let (Some(text), Some((value, _))) = (texts.first_mut(), self.values.first())
        {
            *text = format!("CASE WHEN ({value}) IS NOT NULL THEN {text} END");
        }
        let stored = match (&source.relation, self.evaluator.instance_map.values().next()) {
            (KeyRelation::Table(table), Some(of)) if source.is_table && is_first => {
                find_published_join(self.expansion, table, &|column| {
                    self.find_available_column(*of, column)
                })
            }
            _ => None,
        };
        Ok(Some(BoundKey { texts, why: String::new(), stored }))
    }

    /// Returns SQL that looks up the key by the values, which must determine the key.
    fn build_key_from_lookup(
        &self,
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<BoundKey, String> {
        let all = self.lineages();
        let value_list: Vec<&str> = self.values.iter().map(|(text, _)| *text).collect();
        let value_list = value_list.join(", ");
        if !self.values_determine_key(&all, value_provider)? {
            let key: Vec<String> =
                self.expansion.key.names().iter().map(|name| quote_name(name)).collect();
            return Err(format!(
                "the query has only {value_list} of its key ({}), which does not determine it",
                key.join(", ")
            ));
        }
        let table = self.evaluator.create_lookup(&all, value_provider);
        let table = table.map_err(|e| e.to_string())?;
        let equal_arguments: Vec<String> = (1..)
            .zip(&self.values)
            .map(|(n, (text, _))| format!("hq_key.hq_arg_{n} COLLATE BINARY IS +({text})"))
            .collect();
        let equal_arguments = equal_arguments.join(" AND ");
        let part = |n| {
            format!(
                "(SELECT hq_key.hq_key_{n} FROM {table} AS hq_key WHERE {equal_arguments} LIMIT 1)"
            )
        };
        let texts = (1..=self.parts.len()).map(part).collect();
        let why = format!(", by {value_list} alone, which determines the key");
        Ok(BoundKey { texts, why, stored: None })
    }
}

/// Returns how to join a published table: the source, the parts of the key qualified with their
/// tables, and the table that has all parts, if there is one.
fn find_published_join<'r>(
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

/// Evaluates expressions of the query on the rows of a source.
struct SourceEvaluator<'s> {
    source: &'s KeySource,
    instance_map: &'s BTreeMap<usize, usize>,
}

impl SourceEvaluator<'_> {
    /// Returns the parts of the key as SQL over the source's rows.
    fn build_key_expressions(&self) -> Vec<String> {
        let column = |instance: usize, column: &str| {
            self.source.relation.find_output_column(instance, column)
        };
        self.source.parts.iter().filter_map(|p| p.to_sql(&column)).collect()
    }

    /// Translates expressions of the query to SQL over the source's rows. Returns `None` if the
    /// source lacks a column.
    fn translate_values(&self, all: &[&Lineage]) -> Option<Vec<String>> {
        let column = |of: usize, column: &str| {
            let (instance, _) = self.instance_map.iter().find(|(_, known)| **known == of)?;
            self.source.relation.find_output_column(*instance, column)
        };
        all.iter().map(|l| l.to_sql(&column)).collect()
    }

    /// Returns how a call's values match the key that consists of `parts`.
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
        let keys = self.build_key_expressions();
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

    /// Returns true if the expressions have a different value for each key of the source.
    fn determines_key(
        &self,
        all: &[&Lineage],
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<bool, QueryError> {
        let keys = self.build_key_expressions();
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
        // A group has several keys if a part has several values, or is NULL in some but not all
        // rows.
        let differs = (1..=keys.len())
            .map(|n| format!("min(k{n}) <> max(k{n}) OR count(k{n}) NOT IN (0, count(*))"));
        let duplicates_sql = format!(
            "SELECT 1 FROM (SELECT {}, {} FROM {} AS hq_of WHERE {} IS NOT NULL) \
             AS hq_twice GROUP BY {} HAVING {} LIMIT 1",
            numbered(&args, "a"),
            numbered(&keys, "k"),
            self.source.relation.to_sql(),
            args[0],
            groups.join(", "),
            differs.collect::<Vec<_>>().join(" OR ")
        );
        Ok(value_provider.query_values(&duplicates_sql, 1)?.is_none_or(|found| found.is_empty()))
    }

    /// Creates a table that maps values of expressions to keys of the source. Returns its name.
    fn create_lookup(
        &self,
        all: &[&Lineage],
        value_provider: &mut dyn ValueListProvider,
    ) -> Result<String, QueryError> {
        let (keys, args) =
            (self.build_key_expressions(), self.translate_values(all).unwrap_or_default());
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
