//! Draws a chart of point series as SVG. Series differ in their marks and dashes as well as in
//! colour.

use std::fmt::Write as _;

/// A series of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, in the order of the line.
    pub points: Vec<(f64, f64)>,
    /// Label of each point; no labels if empty.
    pub labels: Vec<String>,
    /// Line between the points.
    pub line: Stroke,
    /// Index of the series' colour and mark. Related series share an index.
    pub style: usize,
    /// Whether the marks are hollow.
    pub hollow: bool,
}

/// Line between the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// No line.
    None,
    /// Solid line.
    Solid,
    /// Dashed line.
    Dashed,
    /// Dotted line.
    Dotted,
    /// Steps without marks.
    Steps,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Title of the chart.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series to draw.
    pub series: Vec<Series>,
}

/// An axis that starts at 0.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Label of the axis.
    pub label: String,
    /// Positions of the ticks; `None` for even ticks.
    pub ticks: Option<Vec<f64>>,
    /// Minimum value for the end of the axis.
    pub minimum: f64,
}

const PLOT: (f64, f64, f64, f64) = (64.0, 44.0, 500.0, 300.0);
const LEGEND: f64 = PLOT.0 + PLOT.2 + 20.0;
const LEGEND_ROW: f64 = 20.0;
/// Maximum width of a letter in the legend, in SVG units.
const LETTER: f64 = 7.0;
/// Colours that colour-blind readers can distinguish.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#777777"];

impl Chart {
    /// Returns the chart as SVG.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let rows = self.series.len() as f64;
        let height = (PLOT.1 + PLOT.3 + 64.0).max(PLOT.1 + rows * LEGEND_ROW + 24.0);
        let longest = self.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
        let width = LEGEND + 32.0 + LETTER * longest as f64 + 16.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n\
             <title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{1}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{0}</text>\n",
            escape_xml(&self.title),
            PLOT.0
        );
        let scale = Scale {
            x: AxisTicks::for_axis(
                &self.x,
                self.series.iter().flat_map(|s| &s.points).map(|p| p.0),
            ),
            y: AxisTicks::for_axis(
                &self.y,
                self.series.iter().flat_map(|s| &s.points).map(|p| p.1),
            ),
        };
        self.draw_axes(&scale, &mut svg);
        for (n, series) in self.series.iter().enumerate() {
            draw_series(series, n, &scale, &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_axes(&self, scale: &Scale, svg: &mut String) {
        let (left, top, width, height) = PLOT;
        let (right, bottom) = (left + width, top + height);
        for tick in &scale.y.ticks {
            let y = scale.y(*tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#dddddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.0,
                scale.y.format_tick(*tick)
            );
        }
        for tick in &scale.x.ticks {
            let x = scale.x(*tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {bottom}v5\" stroke=\"#333333\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 19.0,
                scale.x.format_tick(*tick)
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#333333\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            left + width / 2.0,
            bottom + 42.0,
            escape_xml(&self.x.label),
            top + height / 2.0,
            escape_xml(&self.y.label)
        );
    }
}

/// Draws a series and its row in the legend.
fn draw_series(series: &Series, n: usize, scale: &Scale, svg: &mut String) {
    let colour = COLOURS[series.style % COLOURS.len()];
    let dash = match series.line {
        Stroke::Dashed => " stroke-dasharray=\"6 4\"",
        Stroke::Dotted => " stroke-dasharray=\"2 3\"",
        // A series of steps has no marks, so the dash distinguishes it.
        Stroke::Steps => {
            ["", " stroke-dasharray=\"8 3\"", " stroke-dasharray=\"2 3\""][series.style % 3]
        }
        _ => "",
    };
    let at: Vec<(f64, f64)> = series.points.iter().map(|p| (scale.x(p.0), scale.y(p.1))).collect();
    let mut path = String::new();
    for (i, (x, y)) in at.iter().enumerate() {
        let _ = match (i, series.line) {
            (0, _) => write!(path, "M{x:.1} {y:.1}"),
            (_, Stroke::Steps) => write!(path, "H{x:.1}V{y:.1}"),
            _ => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}");
    if series.line != Stroke::None && !path.is_empty() {
        let _ = writeln!(svg, "<path d=\"{path}\" {stroke}/>");
    }
    // When the colours repeat, the marks change.
    let marked = (series.style + series.style / COLOURS.len(), series.hollow);
    if series.line != Stroke::Steps {
        at.iter().for_each(|(x, y)| draw_mark(marked, *x, *y, colour, svg));
    }
    for ((x, y), label) in at.iter().zip(&series.labels) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{}</text>",
            x + 7.0,
            y - 5.0,
            escape_xml(label)
        );
    }
    let y = PLOT.1 + 8.0 + n as f64 * LEGEND_ROW;
    if series.line != Stroke::None {
        let _ = writeln!(svg, "<path d=\"M{LEGEND} {y}h24\" {stroke}/>");
    }
    if series.line != Stroke::Steps {
        draw_mark(marked, LEGEND + 12.0, y, colour, svg);
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\">{}</text>",
        LEGEND + 32.0,
        y + 4.0,
        escape_xml(&series.name)
    );
}

/// Draws a mark of a series.
fn draw_mark((n, hollow): (usize, bool), x: f64, y: f64, colour: &str, svg: &mut String) {
    let fill = if hollow { "#ffffff" } else { colour };
    let style = format!("fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\"");
    let _ = match n % 4 {
        0 => writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" {style}/>"),
        1 => writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" {style}/>",
            x - 4.0,
            y - 4.0
        ),
        2 => writeln!(svg, "<path d=\"M{x:.1} {:.1}l5 9h-10z\" {style}/>", y - 5.5),
        _ => writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z\" {style}/>",
            y - 5.5
        ),
    };
}

struct Scale {
    x: AxisTicks,
    y: AxisTicks,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        PLOT.0 + PLOT.2 * value / self.x.max
    }

    fn y(&self, value: f64) -> f64 {
        PLOT.1 + PLOT.3 * (1.0 - value / self.y.max)
    }
}

/// Ticks of an axis that starts at 0.
struct AxisTicks {
    ticks: Vec<f64>,
    max: f64,
    decimals: usize,
}

impl AxisTicks {
    fn for_axis(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|v| v.is_finite()).fold(axis.minimum, f64::max).max(1e-9);
        if let Some(ticks) = &axis.ticks {
            let max = ticks.iter().copied().fold(max, f64::max);
            return Self { ticks: ticks.clone(), max, decimals: 0 };
        }
        // Use steps of 1, 2 or 5 times a power of ten, so that there are four to eight ticks.
        let rough = max / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|m| m * power)
            .find(|s| *s >= rough)
            .unwrap_or(10.0 * power);
        let steps = (max / step).ceil();
        let ticks = (0..=steps as u32).map(|n| f64::from(n) * step).collect();
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        Self { ticks, max: steps * step, decimals }
    }

    fn format_tick(&self, tick: f64) -> String {
        if tick >= 1e6 {
            return format!("{} M", tick / 1e6);
        }
        if tick >= 1e4 { format!("{} k", tick / 1e3) } else { format!("{tick:.*}", self.decimals) }
    }
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
