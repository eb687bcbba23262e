//! A page with all components of the style sheet, in debug builds only.

use maud::{Markup, html};

use super::plot::{BOTTOM, LEFT, RIGHT, ValueScale, draw_chart, format_coordinate};
use super::{Page, render_failure, render_page};
use crate::failure::Failure;

/// States of specs, runs and cells.
const STATES: [&str; 14] = [
    "complete",
    "running",
    "waiting",
    "incomplete",
    "failing",
    "broken",
    "new",
    "ok",
    "overridden",
    "unknown",
    "not_in_list",
    "invalid",
    "refused",
    "missing",
];
/// Texts that are difficult to lay out.
const TEXTS: [(&str, &str); 4] = [
    ("short", "Green"),
    (
        "long word",
        "Wordswithoutanyspaceinthem/Wordswithoutanyspaceinthem/Wordswithoutanyspaceinthem",
    ),
    (
        "long text",
        "A motto that goes on and on, and that needs several lines in a narrow column of a table.",
    ),
    ("right to left", "النار تشفي, وهي تحرق: 12 (اثنا عشر)!"),
];

/// Handles `GET /styleguide`.
pub(super) async fn show_styleguide() -> Page {
    render_page(
        "Style guide",
        &html! {
            h1 { "Style guide" }
            p.quiet { "All components, with the classes of " code { "page.css" } "." }
            (render_text_section())
            (render_message_section())
            (render_control_section())
            (render_figure_section())
            (render_table_section())
        },
    )
}

fn render_text_section() -> Markup {
    html! {
        h2 { "Text and states" }
        h3 { "Heading of a card" }
        p { "Text with " a href="#content" { "a link" } ", " code { "code" } ", " strong { "emphasis" } " and " span.quiet { "a quiet part" } "." }
        p.small { "Small text." }
        pre tabindex="0" { "SELECT name FROM hero WHERE height > 180" }
        p { @for state in STATES { span class={ "badge " (state) } { (state) } " " } }
        p.chips { a.chip href="#content" { "a chip" } a.chip href="#content" { (TEXTS[2].1) } }
    }
}

fn render_message_section() -> Markup {
    let failure = Failure::wrong_input("the message of an error", "what to do next");
    html! {
        h2 { "Messages" }
        p.note { "A note." }
        p.note.wait { "A note that needs a decision." }
        p.note.bad { "A note about a failure." }
        (render_failure(&failure))
        pre.problem.warnings { "warning: a warning of a spec" }
        p.card { "An empty state says what to do next." }
    }
}

fn render_control_section() -> Markup {
    html! {
        h2 { "Controls" }
        form {
            div.row.controls {
                label { "Text " input name="text" placeholder="placeholder"; }
                label { "Choice " select name="choice" { option { "one" } option { "two" } } }
                label { input type="checkbox" name="check"; "Check" }
                button.main type="button" { "Main action" }
                button type="button" { "Action" }
                button.slight type="button" { "Slight action" }
                button type="button" disabled { "Disabled" }
            }
            div.editor { textarea name="sql" rows="3" aria-label="SQL" { "SELECT 1" } }
        }
        details { summary { "Details" } p { "Content" } }
        nav.tabs aria-label="Tabs" { a href="#content" aria-current="page" { "Current" } a href="#content" { "Other" } }
    }
}

fn render_figure_section() -> Markup {
    let scale = ValueScale::covering(0.0, 8.0, 4.0);
    let width = (RIGHT - LEFT) / 4.0;
    let left = |n: usize| LEFT + n as f64 * width;
    let labels = ["a", "b", "c", "d"].iter().enumerate();
    let labels: Vec<_> = labels.map(|(n, l)| (left(n) + width / 2.0, (*l).to_owned())).collect();
    let bars = html! { @for (n, value) in [2.0, 5.0, 8.0, 3.0].into_iter().enumerate() {
        @let top = scale.y(value);
        rect.spent rx="1.5" x=(format_coordinate(left(n) + 8.0)) y=(format_coordinate(top))
            width=(format_coordinate(width - 16.0)) height=(format_coordinate(BOTTOM - top)) {}
    }
        line.budget x1=(LEFT) x2=(RIGHT) y1=(format_coordinate(scale.y(6.0))) y2=(format_coordinate(scale.y(6.0))) {}
    };
    html! {
        h2 { "Figures" }
        dl.tiles {
            div { dt { "Cells with a value" } dd { "38" } dd { "of 40 in 1 spec" } }
            div { dt { "Spent today" } dd { "$0.0123" } dd { "of $1.0000 a day" } }
        }
        div.halves {
            section.card {
                div.head { h2 { "A card" } span.badge.complete { "complete" } }
                progress aria-label="Progress" max="1" value="0.6" {}
                dl.coverage { dt { "column" } dd { progress aria-label="Coverage" max="1" value="0.9" {} } dd { "90 %" } }
                dl.facts { div { dt { "Spent in 30 days" } dd { "$0.0123" } } div { dt { "To finish" } dd { "nothing" } } }
            }
            figure.card { figcaption { "A chart with a limit" } (draw_chart("A chart with a limit", "$", &scale, &labels, &bars)) }
        }
    }
}

fn render_table_section() -> Markup {
    html! {
        h2 { "Tables" }
        div.wide tabindex="0" role="region" aria-label="Table" { table.cells {
            thead { tr { th { "key" } th.model { "filled by the model" } th.n { "number" } } }
            tbody {
                @for (name, text) in TEXTS { tr { th scope="row" { (name) } td.long { (text) } td.n { "1 234" } } }
                tr { th scope="row" { "no value" } td.unknown { "unknown" } td.null { "NULL" } }
            }
        } }
    }
}
