//! Draws the frame of the page's charts, with readable scales. The server renders charts as SVG, so
//! that they work without a script, use the style sheet's colors, and print.

use maud::{Markup, html};

use super::truncate_text;

/// Size of a drawing.
pub(super) const WIDTH: f64 = 640.0;
pub(super) const HEIGHT: f64 = 220.0;
/// Edges of the plot, which leave room for the axis labels.
pub(super) const LEFT: f64 = 112.0;
pub(super) const RIGHT: f64 = WIDTH - 36.0;
pub(super) const TOP: f64 = 16.0;
pub(super) const BOTTOM: f64 = HEIGHT - 44.0;
/// Height of a row of the legend.
pub(super) const LEGEND_ROW: f64 = 30.0;
const LEGEND_COLUMNS: usize = 2;
/// Maximum length of a name in the legend, in characters.
const LEGEND_CHARS: usize = 18;

/// A linear scale with round tick values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ValueScale {
    pub(super) low: f64,
    high: f64,
    pub(super) step: f64,
}

impl ValueScale {
    /// Returns a scale with round ends that covers a range and has about `ticks` ticks.
    pub(super) fn covering(low: f64, high: f64, ticks: f64) -> Self {
        let range = if high > low { high - low } else { high.abs().max(1e-9) };
        let rough = range / ticks;
        let power = 10f64.powf(rough.log10().floor());
        let factors = [1.0, 2.0, 5.0, 10.0];
        let factor = factors.into_iter().find(|f| f * power >= rough * 0.999).unwrap_or(10.0);
        let step = factor * power;
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        Self { low, high: if high > low { high } else { low + step }, step }
    }

    /// Returns a scale for counting integers: each step contains the same number of integers, and the
    /// last step contains `high`.
    pub(super) fn covering_integers(low: f64, high: f64, ticks: f64) -> Self {
        if high - low < 2.0 * ticks {
            return Self { low, high: high + 1.0, step: 1.0 };
        }
        Self::covering(low, high + 1.0, ticks)
    }

    /// Returns the position of a value, from 0 to 1.
    pub(super) fn position(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// Returns the x coordinate of a value.
    pub(super) fn x(&self, value: f64) -> f64 {
        LEFT + self.position(value) * (RIGHT - LEFT)
    }

    /// Returns the y coordinate of a value.
    pub(super) fn y(&self, value: f64) -> f64 {
        BOTTOM - self.position(value) * (BOTTOM - TOP)
    }

    /// Returns the number of steps between the ends of the scale.
    pub(super) fn steps(&self) -> usize {
        ((self.high - self.low) / self.step).round() as usize
    }

    /// Returns the ticks: values with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
        if let Some((size, unit)) = units.into_iter().find(|(size, _)| self.step >= *size) {
            let values = (0..=self.steps()).map(|n| self.low + n as f64 * self.step);
            let label =
                |v: f64| if v == 0.0 { "0".to_owned() } else { format!("{}{unit}", v / size) };
            return values.map(|v| (v, label(v))).collect();
        }
        let decimals = (-self.step.log10().floor()).clamp(0.0, 12.0) as usize;
        let values = (0..=self.steps()).map(|n| self.low + n as f64 * self.step);
        // Adding 0 turns -0 into 0, so that the label has no minus sign.
        values.map(|v| (v, format!("{:.decimals$}", v + 0.0))).collect()
    }
}

/// Texts around a chart.
pub(super) struct ChartFrame<'f> {
    pub(super) title: &'f str,
    /// Prefix of each y label.
    pub(super) unit: &'f str,
    /// Names of the series, for the legend; empty if there is only one.
    pub(super) series: &'f [String],
}

/// Draws a chart with a y axis for `scale` and x-axis labels at the given coordinates. `unit` is
/// the prefix of each y label.
pub(super) fn draw_chart(
    title: &str,
    unit: &str,
    scale: &ValueScale,
    labels: &[(f64, String)],
    content: &Markup,
) -> Markup {
    draw_framed_chart(ChartFrame { title, unit, series: &[] }, scale, labels, content)
}

/// Draws a chart as [`draw_chart`] does, with a legend below it.
pub(super) fn draw_framed_chart(
    ChartFrame { title, unit, series }: ChartFrame<'_>,
    scale: &ValueScale,
    labels: &[(f64, String)],
    content: &Markup,
) -> Markup {
    let height = HEIGHT + count_legend_rows(series) as f64 * LEGEND_ROW;
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(title) {
            @for (value, label) in scale.ticks() {
                @let y = format_coordinate(scale.y(value));
                line.grid x1=(LEFT) x2=(RIGHT) y1=(y) y2=(y) {}
                text x=(LEFT - 8.0) y=(format_coordinate(scale.y(value) + 5.0)) text-anchor="end" { (unit) (label) }
            }
            @for (x, label) in labels {
                text x=(format_coordinate(*x)) y=(HEIGHT - 8.0) text-anchor="middle" { (label) }
            }
            (content)
            line.axis x1=(LEFT) x2=(RIGHT) y1=(BOTTOM) y2=(BOTTOM) {}
            (draw_legend(series, HEIGHT))
        }
    }
}

/// Returns the number of rows of a legend.
pub(super) fn count_legend_rows(series: &[String]) -> usize {
    series.len().div_ceil(LEGEND_COLUMNS)
}

/// Draws the colors of the series with their names, from a y coordinate downwards.
pub(super) fn draw_legend(series: &[String], top: f64) -> Markup {
    html! { @for (n, name) in series.iter().enumerate() {
        @let x = 12.0 + (n % LEGEND_COLUMNS) as f64 * (WIDTH / LEGEND_COLUMNS as f64);
        @let y = top + (n / LEGEND_COLUMNS) as f64 * LEGEND_ROW + 8.0;
        rect class=(format!("spent s{n}")) x=(format_coordinate(x)) y=(format_coordinate(y)) width="16" height="16" {}
        text x=(format_coordinate(x + 26.0)) y=(format_coordinate(y + 14.0)) { (truncate_text(name, LEGEND_CHARS)) }
    } }
}

/// Returns about five ticks of a scale as labels for the x axis.
pub(super) fn list_tick_labels(scale: &ValueScale) -> Vec<(f64, String)> {
    let ticks = scale.ticks();
    let every = ticks.len().div_ceil(5).max(1);
    ticks.into_iter().step_by(every).map(|(value, label)| (scale.x(value), label)).collect()
}

pub(super) fn format_coordinate(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::ValueScale;

    #[test]
    fn integers_are_counted_in_equal_steps() {
        let steps = |low: f64, high: f64| {
            let scale = ValueScale::covering_integers(low, high, 12.0);
            assert!(scale.step >= 1.0 && scale.low <= low && scale.high > high);
            (scale.steps(), scale.step)
        };
        assert_eq!(steps(1.0, 9.0), (9, 1.0));
        assert_eq!(steps(1.0, 5.0), (5, 1.0));
        assert_eq!(steps(7.0, 7.0), (1, 1.0));
        assert_eq!(steps(1950.0, 2019.0), (7, 10.0));
        assert_eq!(steps(0.0, 100.0), (11, 10.0));
    }

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        for (low, high, labels) in [
            (0.0, 0.0009, "0.0000 0.0005 0.0010"),
            (0.0, 7.3, "0 2 4 6 8"),
            (1900.0, 1996.0, "1900 1950 2000"),
            (-3.0, 3.0, "-4 -2 0 2 4"),
            (5.0, 5.0, "4 6"),
            (0.0, 7_000_000.0, "0 2M 4M 6M 8M"),
        ] {
            let ticks = ValueScale::covering(low, high, 4.0).ticks();
            let shown: Vec<&str> = ticks.iter().map(|(_, label)| label.as_str()).collect();
            assert_eq!(shown.join(" "), labels, "{low} to {high}");
        }
    }
}
