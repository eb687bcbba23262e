//! Price over the hours of a day, against its budget: a drawing, and the same in
//! words.

use maud::{Markup, html};

use super::usd;
use crate::facts::Hour;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 120.0;

/// What was spent up to each hour of the day.
pub(super) fn spent(hours: &[Hour], budget: Option<f64>) -> Markup {
    let total = hours.iter().fold(0.0, |sum, hour| sum + hour.usd);
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
