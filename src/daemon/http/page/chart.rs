//! Charts of the spending: over the hours of today against the budget, over the last days, and by
//! model and column. Each has a text version.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::format_usd;
use crate::daemon::spending::ColumnCost;
use crate::facts::HourlySpending;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 160.0;
/// Left and bottom margins of the plot, for the prices and the dates.
const LEFT: f64 = 96.0;
const BOTTOM: f64 = 128.0;
/// Maximum number of columns to show.
const COLUMNS: usize = 20;

/// A plot with its axes: USD over a time from 0 to 1.
struct Plot {
    top: f64,
}

/// Returns the x coordinate of a time from 0 to 1.
fn x(at: f64) -> f64 {
    LEFT + at * (WIDTH - LEFT)
}

impl Plot {
    /// Returns a plot with room for this amount in USD.
    fn up_to(usd: f64) -> Self {
        Self { top: usd.max(1e-9) * 1.1 }
    }

    fn y(&self, usd: f64) -> f64 {
        BOTTOM - usd / self.top * BOTTOM
    }

    /// Draws the plot with its price lines and time labels.
    fn draw_plot(&self, title: &str, moments: &[(f64, String)], content: &Markup) -> Markup {
        let prices = [0.5, 1.0].map(|part| self.top / 1.1 * part);
        html! {
            svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(title) {
                @for price in prices {
                    line.grid x1=(LEFT) x2=(WIDTH) y1=(self.y(price)) y2=(self.y(price)) {}
                    text x=(LEFT - 6.0) y=(self.y(price) + 6.0) text-anchor="end" { (format_usd(price)) }
                }
                @for (at, moment) in moments {
                    line.grid x1=(x(*at)) x2=(x(*at)) y1="0" y2=(HEIGHT) {}
                    text x=(x(*at) + 4.0) y=(HEIGHT - 8.0) { (moment) }
                }
                (content)
                line.axis x1=(LEFT) x2=(WIDTH) y1=(BOTTOM) y2=(BOTTOM) {}
            }
        }
    }
}

/// Shows the cumulative spending by hour of the day.
pub(super) fn spending_chart(hours: &[&HourlySpending], budget: Option<f64>) -> Markup {
    let total = usd_of(hours);
    let (requests, tokens) = hours.iter().fold((0, 0), |(r, t), h| (r + h.requests, t + h.tokens));
    let plot = Plot::up_to(budget.unwrap_or(0.0).max(total));
    let mut points = vec![(x(0.0), plot.y(0.0))];
    let mut sum = 0.0;
    for hour in hours {
        let at: f64 = hour.hour.get(11..13).and_then(|h| h.parse().ok()).unwrap_or(0.0);
        points.push((x(at / 24.0), plot.y(sum)));
        sum += hour.usd;
        points.push((x((at + 1.0) / 24.0), plot.y(sum)));
    }
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let moments = [0, 6, 12, 18].map(|hour| (f64::from(hour) / 24.0, format!("{hour}:00")));
    let content = html! {
        polyline.spent points=(line.join(" ")) {}
        @if let Some(budget) = budget {
            line.budget x1=(LEFT) x2=(WIDTH) y1=(plot.y(budget)) y2=(plot.y(budget)) {}
        }
    };
    html! {
        p {
            (format_usd(total)) " for " (requests) " requests and " (tokens) " tokens"
            @if let Some(budget) = budget { ", of " (format_usd(budget)) " for the day (dashed line)" }
            "."
        }
        @if total > 0.0 { (plot.draw_plot("Cost per hour today (UTC)", &moments, &content)) }
    }
}

pub(super) fn usd_of(hours: &[&HourlySpending]) -> f64 {
    hours.iter().fold(0.0, |sum, hour| sum + hour.usd)
}

/// Shows the spending of each day, and of each model, today and in total. The last day is today.
pub(super) fn month_chart(hours: &[HourlySpending], days: &[String]) -> Markup {
    let of = |day: &str| -> Vec<&HourlySpending> {
        hours.iter().filter(|h| h.hour.starts_with(day)).collect()
    };
    let spent: Vec<f64> = days.iter().map(|day| usd_of(&of(day))).collect();
    let plot = Plot::up_to(spent.iter().fold(0.0, |top: f64, usd| top.max(*usd)));
    let all = days.len().max(1) as f64;
    let today = days.last().map_or("", String::as_str);
    let mut models: BTreeMap<&str, Vec<&HourlySpending>> = BTreeMap::new();
    for hour in hours {
        models.entry(&hour.model).or_default().push(hour);
    }
    let weekly = days.iter().enumerate().filter(|(n, _)| n % 7 == 1 && n + 5 < days.len());
    let moment =
        |(n, day): (usize, &String)| (n as f64 / all, day.get(5..).unwrap_or_default().to_owned());
    let moments: Vec<(f64, String)> = weekly.map(moment).collect();
    let bars = html! {
        @for (n, (day, usd)) in days.iter().zip(&spent).enumerate() {
            @let (left, top) = (x(n as f64 / all), plot.y(*usd));
            rect.spent x=(format!("{:.1}", left + 1.0)) y=(format!("{top:.1}"))
                width=(format!("{:.1}", (WIDTH - LEFT) / all - 2.0)) height=(format!("{:.1}", BOTTOM - top)) {
                title { (day) ": " (self::format_usd(*usd)) }
            }
        }
    };
    let share = |(name, hours): (&&'_ str, &Vec<&HourlySpending>)| {
        let now: Vec<&HourlySpending> =
            hours.iter().copied().filter(|h| h.hour.starts_with(today)).collect();
        SpendingShare {
            name: (*name).to_owned(),
            key_columns: String::new(),
            today: usd_of(&now),
            usd: usd_of(hours),
            count: hours.iter().map(|h| h.requests).sum(),
        }
    };
    html! {
        @if models.is_empty() { p.quiet { "No requests were sent." } }
        @if spent.iter().any(|usd| *usd > 0.0) {
            (plot.draw_plot(&format!("Cost per day, last {} days (UTC)", days.len()), &moments, &bars))
        }
        (shares_table("model", "requests", days.len(), &models.iter().map(share).collect::<Vec<_>>()))
    }
}

/// Shows the spending of each column. `total` is the spending of all days.
pub(super) fn columns_table(costs: &[ColumnCost], total: f64, days: usize) -> Markup {
    let shown = &costs[..costs.len().min(COLUMNS)];
    let rest = total - shown.iter().fold(0.0, |sum, cost| sum + cost.usd);
    html! {
        (shares_table("column", "cells", days, &shown.iter().map(SpendingShare::from_cost).collect::<Vec<_>>()))
        @if !costs.is_empty() && rest >= 0.00005 {
            p.quiet {
                (format_usd(rest)) " more went "
                @if costs.len() > shown.len() { "to " (costs.len() - shown.len()) " other columns, and " }
                "to requests, or parts of them, that filled no cell."
            }
        }
    }
}

/// A part of the spending.
struct SpendingShare {
    name: String,
    key_columns: String,
    today: f64,
    usd: f64,
    count: u64,
}

impl SpendingShare {
    fn from_cost(cost: &ColumnCost) -> Self {
        let (name, key_columns) = cost.column.clone();
        Self { name, key_columns, today: cost.today, usd: cost.usd, count: cost.cells }
    }
}

/// Shows parts of the spending, each with a bar.
fn shares_table(what: &str, counted: &str, days: usize, parts: &[SpendingShare]) -> Markup {
    let max_usd = parts.iter().fold(1e-12, |most: f64, part| most.max(part.usd));
    html! {
        @if !parts.is_empty() {
            table.shares {
                thead { tr { th { (what) } th.n { "today" } th.n { (days) " days" } th.bar {} th.n { (counted) } } }
                tbody { @for part in parts { tr {
                    td { (part.name) @if !part.key_columns.is_empty() { " " span.quiet { "of " (part.key_columns) } } }
                    td.n { (self::format_usd(part.today)) }
                    td.n { (self::format_usd(part.usd)) }
                    td.bar { svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
                        rect.spent x="0" y="0" height="10" width=(format!("{:.1}", part.usd / max_usd * 100.0)) {}
                    } }
                    td.n { (part.count) }
                } } }
            }
        }
    }
}
