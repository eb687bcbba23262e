//! Estimates an aggregate over the true values, for one group of the result.

use std::collections::{BTreeMap, HashSet};

use hqdl_statistics::{
    Class, CountMethod, Interval, NoInterval, ResidualStratum, SampledRow, estimate_count,
    estimate_ratio, estimate_sum,
};
use rusqlite::types::Value as SqlValue;

use super::aggregate_query::{AggregateQuery, AggregateTerm, RowAggregate, SummedValue};
use super::samples::RowFacts;
use crate::audit::Draw;
use hqdl_values::format::format_count;

/// Number of strata in a design: one for rows drawn at random, one for rows that are always drawn.
const STRATA: usize = 2;

/// Inputs of the estimates: the query's rows, computed once from the drawn answers and once from
/// the true values.
pub(super) struct Estimator<'a> {
    pub(super) aggregate_query: &'a AggregateQuery,
    pub(super) draw: &'a Draw,
    /// Positions, in the draw, of the entities in the filled prefix of the sample.
    pub(super) audited: &'a HashSet<usize>,
    /// Audited entities whose truth cannot be known.
    pub(super) unknown: &'a HashSet<usize>,
    /// The query's rows, computed from the drawn answers.
    pub(super) answers: &'a [RowFacts],
    /// The audited entities' rows, computed from the true values.
    pub(super) truths: &'a [RowFacts],
    pub(super) confidence: f64,
}

/// An interval, and the name of the method that computed it.
pub(super) type AggregateEstimate = (Interval, &'static str);

#[derive(Default)]
struct EntityRows {
    rows: u64,
    numbers: SampledRow,
    /// Possible contributions of the rows to the numerator and the denominator.
    possible: Vec<(f64, f64)>,
}

impl Estimator<'_> {
    /// Estimates an aggregate for a group of the result.
    ///
    /// # Errors
    /// Returns the reason why there is no interval.
    pub(super) fn estimate_aggregate(
        &self,
        term: &AggregateTerm,
        group: &[SqlValue],
    ) -> Result<AggregateEstimate, String> {
        let (entities, added) = self.collect_entities(term, group);
        let is_count = term.denominator.is_none() && self.counts_rows(term.numerator);
        let is_exact = !self.can_vary(term);
        let (interval, method) = if is_exact {
            (self.compute_exact_interval(term, group), "exact")
        } else if is_count && entities.values().all(|rows| rows.rows <= 1) {
            self.estimate_count(&entities, added)?
        } else {
            (self.estimate_sums(term, &entities, added)?, "difference estimator")
        };
        let [low, high] = [interval.low * term.scale, interval.high * term.scale];
        let estimate = interval.estimate * term.scale;
        Ok((Interval { estimate, low: low.min(high), high: low.max(high) }, method))
    }

    /// Returns the contributions of the entities in a group's population.
    pub(super) fn list_entity_numbers(
        &self,
        term: &AggregateTerm,
        group: &[SqlValue],
    ) -> Vec<EntityNumbers> {
        let to_numbers = |(entity, rows): (usize, EntityRows)| EntityNumbers {
            entity,
            model: (rows.numbers.model_y, rows.numbers.model_x),
            possible: rows.possible,
        };
        self.collect_entities(term, group).0.into_iter().map(to_numbers).collect()
    }

    fn row_aggregate(&self, n: usize) -> &RowAggregate {
        &self.aggregate_query.row_aggregates[n]
    }

    fn counts_rows(&self, n: usize) -> bool {
        self.row_aggregate(n).value == SummedValue::One
    }

    /// Returns whether the query filters or groups rows by expanded columns.
    fn has_condition(&self) -> bool {
        !self.aggregate_query.condition.is_empty()
            || self.aggregate_query.groups.iter().any(|g| g.is_expanded)
    }

    /// Returns whether true values can change an aggregate.
    fn can_vary(&self, term: &AggregateTerm) -> bool {
        let aggregate_varies = |n: usize| {
            let aggregate = self.row_aggregate(n);
            !aggregate.condition.is_empty() || matches!(aggregate.value, SummedValue::Expanded(..))
        };
        self.has_condition()
            || aggregate_varies(term.numerator)
            || term.denominator.is_some_and(aggregate_varies)
    }

    /// Returns whether a row is in the population of a group.
    fn is_in_population(&self, row: &RowFacts, group: &[SqlValue]) -> bool {
        let mut groups = self.aggregate_query.groups.iter().zip(&row.groups).zip(group);
        groups.all(|((term, own), wanted)| term.is_expanded || is_same_group(own, wanted))
    }

    /// Returns the entities of a group's population, and the number of rows whose entity was added
    /// after the draw.
    fn collect_entities(
        &self,
        term: &AggregateTerm,
        group: &[SqlValue],
    ) -> (BTreeMap<usize, EntityRows>, u64) {
        let mut entities: BTreeMap<usize, EntityRows> = BTreeMap::new();
        let mut added = 0;
        let aggregates = [Some(term.numerator), term.denominator];
        let is_read = |row: &&RowFacts| {
            self.is_in_population(row, group)
                && aggregates.iter().flatten().any(|n| row.contributions[*n].is_in_population)
        };
        for row in self.answers.iter().filter(is_read) {
            let Some(entity) = row.entity else {
                added += 1;
                continue;
            };
            let rows = entities.entry(entity).or_default();
            let (y, x) = compute_contribution(term, row, group);
            rows.numbers.model_y += y;
            rows.numbers.model_x += x;
            rows.rows += 1;
            rows.add_possible_contributions(&self.list_possible_contributions(term, row));
        }
        for row in self.truths.iter().filter(is_read) {
            if let Some(rows) = row.entity.and_then(|entity| entities.get_mut(&entity)) {
                let (y, x) = compute_contribution(term, row, group);
                rows.numbers.y += y;
                rows.numbers.x += x;
            }
        }
        (entities, added)
    }

    /// Returns all possible contributions of a row to the numerator and the denominator.
    fn list_possible_contributions(&self, term: &AggregateTerm, row: &RowFacts) -> Vec<(f64, f64)> {
        // For each aggregate: whether its conditions can select the row, and its contribution if
        // they do.
        let options = |n: usize| {
            let (aggregate, facts) = (self.row_aggregate(n), &row.contributions[n]);
            let mut options = Vec::new();
            if !facts.is_in_population || !aggregate.condition.is_empty() {
                options.push((false, 0.0));
            }
            if facts.is_in_population {
                match aggregate.value {
                    SummedValue::One => options.push((true, 1.0)),
                    SummedValue::Ordinary(_) => options.push((true, facts.value)),
                    SummedValue::Expanded(_, (low, high)) => {
                        options.extend([(true, low), (true, high)]);
                    }
                }
            }
            options
        };
        let mut possible = Vec::new();
        if self.has_condition() {
            possible.push((0.0, 0.0));
        }
        let numerator = self.row_aggregate(term.numerator);
        for (is_y_chosen, y) in options(term.numerator) {
            let Some(n) = term.denominator else {
                possible.push((y, 0.0));
                continue;
            };
            let is_part = is_subset(self.row_aggregate(n), numerator);
            let is_whole = is_part && is_subset(numerator, self.row_aggregate(n));
            for (is_x_chosen, x) in options(n) {
                let contradicts = is_part && is_y_chosen && !is_x_chosen
                    || is_whole && is_x_chosen && !is_y_chosen;
                if !contradicts {
                    possible.push((y, x));
                }
            }
        }
        possible
    }

    /// Computes an aggregate that true values cannot change.
    fn compute_exact_interval(&self, term: &AggregateTerm, group: &[SqlValue]) -> Interval {
        let (mut y, mut x) = (0.0, 0.0);
        for row in self.answers {
            let (a, b) = compute_contribution(term, row, group);
            y += a;
            x += b;
        }
        let value = if term.denominator.is_some() { y / x } else { y };
        Interval { estimate: value, low: value, high: value }
    }

    fn estimate_count(
        &self,
        entities: &BTreeMap<usize, EntityRows>,
        added: u64,
    ) -> Result<AggregateEstimate, String> {
        let mut strata = [[Class::default(); 2]; STRATA];
        let mut unknown = [[0; 2]; STRATA];
        for (entity, rows) in entities {
            let (stratum, class) =
                (self.draw.frame[*entity].stratum, usize::from(rows.numbers.model_y == 0.0));
            let counted = &mut strata[stratum][class];
            counted.size += 1;
            if self.audited.contains(entity) {
                counted.sampled += 1;
                if self.unknown.contains(entity) {
                    unknown[stratum][class] += 1;
                } else {
                    counted.positives += u64::from(rows.numbers.y > 0.0);
                }
            }
        }
        let least = estimate_count(&strata, self.confidence).ok_or(NO_SAMPLE)?;
        for (classes, unknown) in strata.iter_mut().zip(unknown) {
            classes.iter_mut().zip(unknown).for_each(|(class, n)| class.positives += n);
        }
        let most = estimate_count(&strata, self.confidence).ok_or(NO_SAMPLE)?;
        let estimate = f64::midpoint(least.0.estimate, most.0.estimate);
        let (low, high) = (least.0.low, most.0.high + added as f64);
        let method = match least.1 {
            CountMethod::TwoClasses => "two classes",
            CountMethod::WholeSample => "whole sample",
        };
        Ok((Interval { estimate, low, high }, method))
    }

    fn estimate_sums(
        &self,
        term: &AggregateTerm,
        entities: &BTreeMap<usize, EntityRows>,
        added: u64,
    ) -> Result<Interval, String> {
        if added > 0 {
            let rows = format_row_count(added, "was", "were");
            return Err(format!("{rows} added after the draw (or the key is NULL)"));
        }
        let is_unknown = |e: &&usize| self.audited.contains(e) && self.unknown.contains(e);
        let unknown = entities.keys().filter(is_unknown).count() as u64;
        if unknown > 0 {
            let rows = format_row_count(unknown, "has", "have");
            return Err(format!("{rows} a truth that cannot be known"));
        }
        if entities.values().any(|rows| !rows.is_finite()) {
            return Err("a value is infinite".to_owned());
        }
        let mut strata = vec![ResidualStratum::default(); STRATA];
        let (mut least, mut most) = (0.0, 0.0);
        for (entity, rows) in entities {
            let stratum = &mut strata[self.draw.frame[*entity].stratum];
            let numbers = rows.numbers;
            stratum.size += 1;
            stratum.model_y += numbers.model_y;
            stratum.model_x += numbers.model_x;
            for (y, x) in &rows.possible {
                stratum.extremes.add(SampledRow { y: *y, x: *x, ..numbers });
            }
            let (mut low, mut high) = rows.bound_numerator();
            if self.audited.contains(entity) {
                stratum.sample.push(numbers);
                // A true value outside the column's range contradicts the spec.
                if numbers.y < low - 1e-9 || numbers.y > high + 1e-9 {
                    return Err(format!("a truth, {}, is outside its range", numbers.y));
                }
                (low, high) = (numbers.y, numbers.y);
            }
            least += low;
            most += high;
        }
        if !(least.is_finite() && most.is_finite()) {
            return Err("the sum of the values is too large".to_owned());
        }
        let found = if term.denominator.is_some() {
            estimate_ratio(&strata, self.confidence)
        } else {
            estimate_sum(&strata, self.confidence).map(|i| Interval {
                estimate: i.estimate.clamp(least, most),
                low: i.low.clamp(least, most),
                high: i.high.clamp(least, most),
            })
        };
        found.map_err(|refusal| match refusal {
            NoInterval::NoSample => NO_SAMPLE.to_owned(),
            NoInterval::DenominatorNearZero => "the denominator can be 0".to_owned(),
        })
    }
}

const NO_SAMPLE: &str = "none of its rows is audited";

impl EntityRows {
    /// Adds the possible contributions of another row of the entity. If the entity has several
    /// rows, keeps only the sums of the rows' extremes.
    fn add_possible_contributions(&mut self, row: &[(f64, f64)]) {
        if self.possible.is_empty() {
            self.possible = row.to_vec();
            return;
        }
        let bounds = |all: &[(f64, f64)], number: fn(&(f64, f64)) -> f64| {
            let numbers = all.iter().map(number);
            numbers.fold((f64::MAX, f64::MIN), |(low, high), n| (low.min(n), high.max(n)))
        };
        let add = |number: fn(&(f64, f64)) -> f64| {
            let (known, added) = (bounds(&self.possible, number), bounds(row, number));
            [known.0 + added.0, known.1 + added.1]
        };
        let (numerators, denominators) = (add(|p| p.0), add(|p| p.1));
        self.possible = numerators.iter().flat_map(|y| denominators.map(|x| (*y, x))).collect();
    }

    /// Returns true if all of the entity's numbers are finite.
    fn is_finite(&self) -> bool {
        let SampledRow { y, x, model_y, model_x } = self.numbers;
        let possible = self.possible.iter().flat_map(|(y, x)| [*y, *x]);
        possible.chain([y, x, model_y, model_x]).all(f64::is_finite)
    }

    fn bound_numerator(&self) -> (f64, f64) {
        let numbers = self.possible.iter().map(|p| p.0);
        numbers.fold((f64::MAX, f64::MIN), |(a, b), n| (a.min(n), b.max(n)))
    }
}

/// Returns whether every condition of `part` is also a condition of `whole`.
fn is_subset(part: &RowAggregate, whole: &RowAggregate) -> bool {
    part.population.iter().all(|c| whole.population.contains(c))
        && part.condition.iter().all(|c| whole.condition.contains(c))
}

/// Returns whether two values belong to the same group.
fn is_same_group(a: &SqlValue, b: &SqlValue) -> bool {
    match (a, b) {
        (SqlValue::Integer(a), SqlValue::Real(b)) | (SqlValue::Real(b), SqlValue::Integer(a)) => {
            (*a as f64 - *b).abs() < f64::EPSILON
        }
        _ => a == b,
    }
}

/// Formats a number of rows with the matching singular or plural phrase.
fn format_row_count(rows: u64, one: &str, many: &str) -> String {
    format!("{} {}", format_count(rows, "row"), if rows == 1 { one } else { many })
}

/// Contribution of an entity to a group, according to the drawn answers, and all its possible
/// contributions.
pub(super) struct EntityNumbers {
    pub(super) entity: usize,
    pub(super) model: (f64, f64),
    pub(super) possible: Vec<(f64, f64)>,
}

/// Returns a row's contribution to the numerator and the denominator.
fn compute_contribution(term: &AggregateTerm, row: &RowFacts, group: &[SqlValue]) -> (f64, f64) {
    let mut groups = row.groups.iter().zip(group);
    if !row.is_selected || !groups.all(|(a, b)| is_same_group(a, b)) {
        return (0.0, 0.0);
    }
    let value = |n: usize| {
        let contribution = &row.contributions[n];
        if contribution.is_in_population && contribution.is_selected {
            contribution.value
        } else {
            0.0
        }
    };
    (value(term.numerator), term.denominator.map_or(0.0, value))
}
