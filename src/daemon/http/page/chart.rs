//! What was spent: over the hours of today, against its budget, over the last days,
//! and by model. Drawings, and the same in words.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::usd;
use crate::facts::Hour;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 120.0;

/// What was spent up to each hour of the day.
pub(super) fn spent(hours: &[&Hour], budget: Option<f64>) -> Markup {
    let total = usd_of(hours);
    let (requests, tokens) = hours.iter().fold((0, 0), |(r, t), h| (r + h.requests, t + h.tokens));
    let top = budget.unwrap_or(0.0).max(total).max(1e-9) * 1.1;
    let (x, y) = (|hour: f64| hour / 24.0 * WIDTH, |usd: f64| HEIGHT - usd / top * HEIGHT);
    let mut points = vec![(0.0, y(0.0))];
    let mut sum = 0.0;
    for hour in hours {
        let at: f64 = hour.hour.get(11..13).and_then(|h| h.parse().ok()).unwrap_or(0.0);
        points.push((x(at), y(sum)));
        sum += hour.usd;
        points.push((x(at + 1.0), y(sum)));
    }
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    html! {
        p {
            (usd(total)) " for " (requests) " requests and " (tokens) " tokens"
            @if let Some(budget) = budget { ", of " (usd(budget)) " for the day" }
            "."
        }
        svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label="Price over the hours of today (UTC)" {
            @for hour in [0.0, 6.0, 12.0, 18.0] {
                line.grid x1=(x(hour)) x2=(x(hour)) y1="0" y2=(HEIGHT) {}
                text x=(x(hour) + 3.0) y=(HEIGHT - 4.0) { (hour) ":00" }
            }
            @for part in [0.5, 1.0].into_iter().filter(|_| top > 1e-6) {
                line.grid x1="0" x2=(WIDTH) y1=(y(top * part / 1.1)) y2=(y(top * part / 1.1)) {}
                text x=(WIDTH - 4.0) y=(y(top * part / 1.1) + 11.0) text-anchor="end" { (usd(top * part / 1.1)) }
            }
            polyline.spent points=(line.join(" ")) {}
            @if let Some(budget) = budget {
                line.budget x1="0" x2=(WIDTH) y1=(y(budget)) y2=(y(budget)) {}
                text x="4" y=(y(budget) + 12.0) { "budget " (usd(budget)) }
            }
        }
    }
}

fn usd_of(hours: &[&Hour]) -> f64 {
    hours.iter().fold(0.0, |sum, hour| sum + hour.usd)
}

/// What each of these days cost, by their dates, and each model today, the last of
/// them, and in all.
pub(super) fn month(hours: &[Hour], days: &[String]) -> Markup {
    let of =
        |day: &str| -> Vec<&Hour> { hours.iter().filter(|h| h.hour.starts_with(day)).collect() };
    let spent: Vec<f64> = days.iter().map(|day| usd_of(&of(day))).collect();
    let top = spent.iter().fold(1e-9, |top: f64, usd| top.max(*usd)) * 1.1;
    let wide = WIDTH / days.len().max(1) as f64;
    let today = days.last().map_or("", String::as_str);
    let mut models: BTreeMap<&str, Vec<&Hour>> = BTreeMap::new();
    for hour in hours {
        models.entry(&hour.model).or_default().push(hour);
    }
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(format!("Price of each of the last {} days (UTC)", days.len())) {
            @for (n, (day, usd)) in days.iter().zip(&spent).enumerate() {
                rect.spent x=(n as f64 * wide + 1.0) y=(HEIGHT - usd / top * HEIGHT) width=(wide - 2.0) height=(usd / top * HEIGHT) {
                    title { (day) ": " (self::usd(*usd)) }
                }
                @if n % 7 == 1 { text x=(n as f64 * wide + 2.0) y="12" { (day.get(5..).unwrap_or_default()) } }
            }
            @if top > 1e-6 {
                line.grid x1="0" x2=(WIDTH) y1=(HEIGHT - HEIGHT / 1.1) y2=(HEIGHT - HEIGHT / 1.1) {}
                text x=(WIDTH - 4.0) y=(HEIGHT - HEIGHT / 1.1 + 11.0) text-anchor="end" { (self::usd(top / 1.1)) }
            }
        }
        @if !models.is_empty() {
            div.wide { table {
                thead { tr { th { "model" } th.n { "today" } th.n { (days.len()) " days" } th.n { "requests" } th.n { "tokens" } } }
                tbody { @for (model, hours) in &models {
                    @let now: Vec<&Hour> = hours.iter().copied().filter(|h| h.hour.starts_with(today)).collect();
                    tr {
                        td { (model) }
                        td.n { (self::usd(usd_of(&now))) }
                        td.n { (self::usd(usd_of(hours))) }
                        td.n { (hours.iter().map(|h| h.requests).sum::<u64>()) }
                        td.n { (hours.iter().map(|h| h.tokens).sum::<u64>()) }
                    }
                } }
            } }
        }
    }
}
