//! Builds the report's charts: score by shots, score by cost, and requests by question.

use std::collections::BTreeSet;

use crate::chart::{Axis, Chart, Series, Stroke};
use crate::report::group_runs;
use crate::{RunScore, published};

type Points = Vec<(f64, f64)>;

/// Returns the chart of scores by number of shots.
#[must_use]
pub fn build_shots_chart(scored: &[RunScore]) -> Chart {
    let groups = group_runs(scored);
    let mut series = Vec::new();
    for (style, (name, runs)) in groups.iter().enumerate() {
        let shots = |run: &&RunScore| run.header.shots as f64;
        series.push(Series {
            name: format!("{name}: EX"),
            points: runs.iter().map(|r| (shots(r), r.ex.percent())).collect(),
            labels: Vec::new(),
            line: Stroke::Solid,
            style,
            hollow: false,
        });
        series.push(Series {
            name: format!("{name}: graded"),
            points: runs.iter().map(|r| (shots(r), r.graded)).collect(),
            labels: Vec::new(),
            line: Stroke::Dotted,
            style,
            hollow: false,
        });
    }
    let databases: BTreeSet<&str> = scored.iter().map(|s| s.header.database.as_str()).collect();
    // Skip the published figures for several databases, because there would be too many lines.
    if let [database] = databases.into_iter().collect::<Vec<_>>()[..] {
        for (n, figure) in published::list_published_figures(database).iter().enumerate() {
            series.push(Series {
                name: format!("{}: EX", figure.system),
                points: figure.ex.iter().map(|(shots, ex)| (*shots as f64, *ex)).collect(),
                labels: Vec::new(),
                line: Stroke::Dashed,
                style: groups.len() + n,
                hollow: true,
            });
        }
    }
    let shots: BTreeSet<usize> =
        [0, 1, 3, 5].into_iter().chain(scored.iter().map(|s| s.header.shots)).collect();
    Chart {
        title: "Score by number of shots".to_owned(),
        x: Axis {
            label: "shots".to_owned(),
            ticks: Some(shots.into_iter().map(|s| s as f64).collect()),
            minimum: 0.0,
        },
        y: build_percent_axis(),
        series,
    }
}

/// Returns the chart of scores by cost, or by tokens if a model has no price. Returns `None` if
/// nothing was spent.
#[must_use]
pub fn build_cost_chart(scored: &[RunScore]) -> Option<Chart> {
    let priced = scored.iter().all(|s| s.header.priced);
    let cost = |run: &RunScore| {
        let total = run.spent;
        if priced { total.cost_usd } else { (total.input_tokens + total.output_tokens) as f64 }
    };
    if scored.iter().all(|run| cost(run) <= 0.0) {
        return None;
    }
    let mut series = Vec::new();
    for (style, (name, runs)) in group_runs(scored).into_iter().enumerate() {
        let labels: Vec<String> = runs.iter().map(|r| r.header.shots.to_string()).collect();
        let of = |score: fn(&RunScore) -> f64| runs.iter().map(|r| (cost(r), score(r))).collect();
        let both = [("EX", of(|r| r.ex.percent()), false), ("graded", of(|r| r.graded), true)];
        series.extend(both.map(|(score, points, hollow)| Series {
            name: format!("{name}: {score}"),
            points,
            labels: labels.clone(),
            line: Stroke::None,
            style,
            hollow,
        }));
    }
    let measure = if priced { "cost" } else { "tokens" };
    Some(Chart {
        title: format!("Score by {measure}; each point is labeled with its shots"),
        x: Axis {
            label: if priced { "USD, all questions" } else { "tokens, all questions" }.to_owned(),
            ticks: None,
            minimum: 0.0,
        },
        y: build_percent_axis(),
        series,
    })
}

/// Returns the chart of cumulative requests by question; question 0 is the materialization.
#[must_use]
pub fn build_question_chart(scored: &[RunScore]) -> Chart {
    // Draw one line for all runs with the same requests.
    let mut all: Vec<(String, Points, usize)> = Vec::new();
    for run in scored {
        for (n, cost) in run.runs.iter().enumerate() {
            let mut so_far = cost.materialized.unwrap_or_default().requests;
            let mut points = vec![(0.0, so_far as f64)];
            for (at, (_, cost)) in cost.questions.iter().enumerate() {
                so_far += cost.requests;
                points.push(((at + 1) as f64, so_far as f64));
            }
            match all.iter_mut().find(|(_, p, _)| *p == points) {
                Some((_, _, others)) => *others += 1,
                None => all.push((format!("{}, run {}", run.name(), n + 1), points, 0)),
            }
        }
    }
    let series = all.into_iter().enumerate().map(|(style, (name, points, others))| Series {
        name: if others > 0 { format!("{name}, and {others} more") } else { name },
        points,
        labels: Vec::new(),
        line: Stroke::Steps,
        style,
        hollow: false,
    });
    Chart {
        title: "Requests, question by question".to_owned(),
        x: Axis {
            label: "questions answered (0: the tables)".to_owned(),
            ticks: None,
            minimum: 1.0,
        },
        y: Axis { label: "requests so far".to_owned(), ticks: None, minimum: 1.0 },
        series: series.collect(),
    }
}

fn build_percent_axis() -> Axis {
    Axis { label: "percent".to_owned(), ticks: None, minimum: 100.0 }
}
