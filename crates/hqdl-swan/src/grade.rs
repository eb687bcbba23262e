//! Grades an answer against the gold answer: whether it is right, how far off it is, and how it
//! differs.

use hqdl_values::format::format_count;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value as Json;

use super::compare::{self, ComparedCell, Rows};

/// Maximum number of rows of each kind in the description.
const MAX_NAMED: usize = 3;
/// Maximum length of a value in the description.
const MAX_LENGTH: usize = 40;

/// Grade of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Grade {
    /// Whether the answer is correct by SWAN's rule.
    pub swan: bool,
    /// Whether the answer is correct by the strict rule.
    pub strict: bool,
    /// Score from 0 to 1: one minus the relative error for numbers, F1 for rows.
    pub graded: f64,
    /// Mean relative error, if the gold answer is a single row of numbers.
    pub relative_error: Option<f64>,
    /// Description of the difference; empty if there is none.
    pub difference: String,
}

impl Grade {
    /// Returns the grade of an answer without rows.
    #[must_use]
    pub fn without_rows(why: impl Into<String>) -> Self {
        Self { difference: why.into(), ..Self::default() }
    }
}

/// Grades an answer. `tested` is the query that produced it; `ordered` is true if the gold query's
/// outermost SELECT has an ORDER BY.
#[must_use]
pub fn grade_answer(ours: &Rows, gold: &Rows, tested: &str, ordered: bool) -> Grade {
    let (our_cells, gold_cells) = (compare::to_cells(ours), compare::to_cells(gold));
    let swan = compare::is_equal_by_swan_rule(&our_cells, &gold_cells, tested);
    let strict = compare::is_equal_strictly(&our_cells, &gold_cells, ordered);
    let errors = compute_relative_errors(&our_cells, &gold_cells);
    let (graded, relative_error) = match &errors {
        Some(errors) => {
            let mean = |of: &dyn Fn(f64) -> f64| {
                errors.iter().map(|e| of(*e)).sum::<f64>() / errors.len() as f64
            };
            (mean(&|e| (1.0 - e).max(0.0)), Some(mean(&|e| e)))
        }
        None => {
            (compute_f1(&compare::sort_cells(&our_cells), &compare::sort_cells(&gold_cells)), None)
        }
    };
    let difference = if errors.is_some() && !strict {
        format!("{} instead of {}", format_row(&ours[0]), format_row(&gold[0]))
    } else {
        describe_difference(ours, gold, strict)
    };
    Grade { swan, strict, graded, relative_error, difference }
}

/// Returns the relative error of each number in a single row of numbers. Returns `None` if the gold
/// answer is not such a row, or the answer has a different shape.
fn compute_relative_errors(
    ours: &[Vec<ComparedCell>],
    gold: &[Vec<ComparedCell>],
) -> Option<Vec<f64>> {
    let ([ours], [gold]) = (ours, gold) else { return None };
    if ours.len() != gold.len() || gold.is_empty() {
        return None;
    }
    let error = |(ours, gold): (&ComparedCell, &ComparedCell)| {
        let expected = gold.as_number()?;
        // NULL instead of a number counts as 0.
        let actual = if *ours == ComparedCell::Null { 0.0 } else { ours.as_number()? };
        Some(match (ours == gold, *gold == ComparedCell::Integer(0)) {
            (true, _) => 0.0,
            (false, true) => 1.0,
            (false, false) => ((actual - expected) / expected).abs(),
        })
    };
    ours.iter().zip(gold).map(error).collect()
}

/// Returns the F1 score of two lists of rows; duplicates count separately.
fn compute_f1(ours: &[Vec<ComparedCell>], gold: &[Vec<ComparedCell>]) -> f64 {
    if ours.is_empty() && gold.is_empty() {
        return 1.0;
    }
    let mut left: HashMap<&Vec<ComparedCell>, usize> = HashMap::new();
    gold.iter().for_each(|row| *left.entry(row).or_default() += 1);
    let mut both = 0_usize;
    for row in ours {
        if let Some(n) = left.get_mut(row).filter(|n| **n > 0) {
            *n -= 1;
            both += 1;
        }
    }
    2.0 * both as f64 / (ours.len() + gold.len()) as f64
}

/// Describes the difference between two lists of rows.
fn describe_difference(ours: &Rows, gold: &Rows, strict: bool) -> String {
    if strict {
        return String::new();
    }
    let missing = find_unmatched_rows(gold, ours);
    let extra = find_unmatched_rows(ours, gold);
    if missing.is_empty() && extra.is_empty() {
        return "the same rows in another order".to_owned();
    }
    let width = |rows: &Rows| rows.first().map_or(0, Vec::len);
    if !ours.is_empty() && !gold.is_empty() && width(ours) != width(gold) {
        return format!(
            "{} instead of {}",
            format_count(width(ours) as u64, "column"),
            width(gold)
        );
    }
    let sorted_rows = |rows: &Rows| compare::sort_cells(&compare::to_cells(rows));
    let (mut a, mut b) = (sorted_rows(ours), sorted_rows(gold));
    a.sort();
    b.sort();
    if a == b {
        return "the same values in other columns".to_owned();
    }
    let mut parts = vec![format!(
        "{} of {}",
        gold.len() - missing.len(),
        format_count(gold.len() as u64, "row")
    )];
    for (name, rows) in [("missing", missing), ("too many", extra)] {
        if !rows.is_empty() {
            let mut named: Vec<String> =
                rows.iter().take(MAX_NAMED).map(|r| format_row(r)).collect();
            if rows.len() > MAX_NAMED {
                named.push(format!("{} more", rows.len() - MAX_NAMED));
            }
            parts.push(format!("{name}: {}", named.join(", ")));
        }
    }
    parts.join("; ")
}

/// Returns the rows that occur less often in the other list.
fn find_unmatched_rows<'r>(rows: &'r Rows, other: &Rows) -> Vec<&'r Vec<Json>> {
    let mut left: HashMap<Vec<ComparedCell>, usize> = HashMap::new();
    compare::to_cells(other).into_iter().for_each(|row| *left.entry(row).or_default() += 1);
    let new = |row: &&Vec<Json>| {
        let cells: Vec<ComparedCell> = row.iter().map(ComparedCell::from_json).collect();
        match left.get_mut(&cells).filter(|n| **n > 0) {
            Some(n) => {
                *n -= 1;
                false
            }
            None => true,
        }
    };
    rows.iter().filter(new).collect()
}

/// Formats a row for the description.
fn format_row(row: &[Json]) -> String {
    let value = |json: &Json| match json {
        Json::Null => "NULL".to_owned(),
        Json::String(text) if text.chars().count() > MAX_LENGTH => {
            text.chars().take(MAX_LENGTH).chain(['…']).collect()
        }
        Json::String(text) => text.clone(),
        Json::Number(n) => match n.as_f64() {
            Some(r) if !n.is_i64() => {
                format!("{r:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            _ => n.to_string(),
        },
        other => other.to_string(),
    };
    row.iter().map(value).collect::<Vec<_>>().join(" | ").replace('\n', " ")
}
