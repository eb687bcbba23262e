//! The thresholds of a column with a target: their cost, and the share of cells that they get
//! right.

use maud::{Markup, html};
use serde_json::Value as Json;

use super::format_usd;
use super::plot::{
    BOTTOM, LEFT, RIGHT, TOP, ValueScale, draw_chart, format_coordinate, list_tick_labels,
};
use crate::format::format_count;

/// Upper limit of the percentage scales.
const MAX_PERCENT: f64 = 100.0;

/// A possible threshold.
struct Threshold {
    /// Condition under which a first answer is accepted.
    accepts: String,
    cells: u64,
    cost_usd: Option<f64>,
    /// Expected share of cells that agree with the stronger model or with the truth, in percent;
    /// `bound` is its lower bound.
    expected: f64,
    bound: f64,
    is_chosen: bool,
}

impl Threshold {
    fn from_json(json: &Json) -> Option<Self> {
        Some(Self {
            accepts: json["accepts"].as_str()?.to_owned(),
            cells: json["cells"].as_u64()?,
            cost_usd: json["cost_usd"].as_f64(),
            expected: 100.0 * json["expected"].as_f64()?,
            bound: 100.0 * json["bound"].as_f64()?,
            is_chosen: json["chosen"] == true,
        })
    }
}

/// Renders the thresholds of each calibrated column, with their cost and expected agreement.
pub(super) fn render_thresholds(cascades: &Json) -> Markup {
    let cascades = cascades.as_array().map_or(&[][..], Vec::as_slice);
    let with_thresholds = cascades.iter().filter(|cascade| cascade["thresholds"][0].is_object());
    html! {
        @for cascade in with_thresholds { (render_column_thresholds(cascade)) }
    }
}

fn render_column_thresholds(cascade: &Json) -> Markup {
    let text = |name: &str| cascade[name].as_str().unwrap_or_default();
    let thresholds = cascade["thresholds"].as_array().into_iter().flatten();
    let thresholds: Vec<Threshold> = thresholds.filter_map(Threshold::from_json).collect();
    let target = 100.0 * cascade["target"].as_f64().unwrap_or_default();
    let sampled = format_count(cascade["sampled"].as_u64().unwrap_or_default(), "cell");
    let share = match text("of") {
        "truth" => "true".to_owned(),
        _ => format!("agreement with {}", text("to")),
    };
    let name = format!("{}.{}", text("expansion"), text("column"));
    html! {
        h2 { "Cascade of " (name) }
        p.quiet {
            "Target: " (format_percent(target)) " " (share) ". " (text("to")) " has answered a sample of " (sampled)
            "; each threshold shows what its other answers would cost now, and the expected share with its lower bound."
        }
        (draw_thresholds(&name, &share, target, &thresholds))
        div.wide tabindex="0" role="region" aria-label=(format!("Thresholds of {name}")) { table {
            thead { tr {
                th { "accepted" } th.n { "to ask" } th.n { "cost" } th.n { (share) } th.n { "at least" } th { "choice" }
            } }
            tbody { @for threshold in &thresholds { tr {
                td { (threshold.accepts) }
                td.n { (threshold.cells) }
                td.n { @match threshold.cost_usd { Some(cost) => (format_usd(cost)), None => "?" } }
                td.n { (format_percent(threshold.expected)) }
                td.n { (format_percent(threshold.bound)) }
                td { @if threshold.is_chosen { strong { "chosen" } } }
            } } }
        } }
    }
}

/// Draws the thresholds by cost or, if a cost is not known, by the number of cells to ask for.
fn draw_thresholds(name: &str, share: &str, target: f64, thresholds: &[Threshold]) -> Markup {
    let has_costs = thresholds.iter().all(|threshold| threshold.cost_usd.is_some());
    let cost = |t: &Threshold| t.cost_usd.filter(|_| has_costs).unwrap_or(t.cells as f64);
    let most = thresholds.iter().map(cost).fold(0.0, f64::max);
    let x = ValueScale::covering(0.0, most, 5.0);
    let least = thresholds.iter().map(|t| t.bound).fold(target, f64::min);
    // The scale must not be empty, even if all values are 100 %.
    let y = ValueScale::covering(least.min(MAX_PERCENT - 1.0), MAX_PERCENT, 4.0);
    let line: Vec<String> =
        thresholds.iter().map(|t| format!("{:.1},{:.1}", x.x(cost(t)), y.y(t.expected))).collect();
    let (target_y, unit) = (format_coordinate(y.y(target)), if has_costs { "$" } else { "" });
    let axis = if has_costs { "cost" } else { "cells to ask" };
    let labels: Vec<(f64, String)> = list_tick_labels(&x)
        .into_iter()
        .map(|(at, label)| (at, format!("{unit}{label}")))
        .collect();
    let content = html! {
        line.budget x1=(LEFT) x2=(RIGHT) y1=(target_y) y2=(target_y) {}
        text.cap x=(RIGHT) y=(format_coordinate((y.y(target) - 6.0).clamp(TOP, BOTTOM))) text-anchor="end" { "target" }
        polyline.line points=(line.join(" ")) {}
        @for threshold in thresholds {
            @let (left, top) = (format_coordinate(x.x(cost(threshold))), format_coordinate(y.y(threshold.expected)));
            line.interval x1=(left) x2=(left) y1=(format_coordinate(y.y(threshold.bound))) y2=(top) {}
            circle.point cx=(left) cy=(top) r=(if threshold.is_chosen { 7.0 } else { 4.0 }) {
                title { (threshold.accepts) ": " (format_percent(threshold.expected)) ", " (unit) (cost(threshold)) }
            }
        }
    };
    let title = format!("{name}: {share} in % by {axis}");
    html! {
        figure.card.result-chart { figcaption { (title) } (draw_chart(&title, "", &y, &labels, &content)) }
    }
}

fn format_percent(percent: f64) -> String {
    format!("{percent:.1} %")
}
