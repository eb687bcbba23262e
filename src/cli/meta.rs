//! Formats a query's metadata for the terminal, for `--meta` and `explain`.

use super::progress::{format_duration, parenthesize_notes};
use crate::format::{format_cost, format_count, format_thousands, format_usd_bound};
use crate::query::{CallBound, Meta};
use crate::spec::Spec;

/// Note after a maximum cost that is the sum of the planned requests' reservations. The plan does
/// not include repeated requests, for example about rows that a reply lacks.
pub const WITHOUT_REPEATS: &str = "if no request is repeated";

/// Formats the metadata of a finished query.
pub fn format_finished_query(meta: &Meta, spec: &Spec) -> String {
    let mut out = format_routes(meta, spec);
    push_line(
        &mut out,
        "values",
        &format!(
            "{} asked, {} reused, {} without a value",
            format_thousands(meta.values_asked),
            format_thousands(meta.values_reused),
            format_thousands(meta.values_missing)
        ),
    );
    push_line(&mut out, "passes", &format_demand(meta));
    push_usage(&mut out, meta, spec, "");
    push_line(&mut out, "time", &format_duration(meta.seconds));
    push_interval(&mut out, meta);
    push_sql(&mut out, meta);
    out
}

/// Formats the metadata of an explained query.
pub fn format_explained_query(meta: &Meta, spec: &Spec) -> String {
    let mut out = format_bound(meta, spec);
    push_sql(&mut out, meta);
    out
}

/// Formats the routes of an explained query, and the upper bound on its requests.
pub fn format_bound(meta: &Meta, spec: &Spec) -> String {
    let mut out = format_routes(meta, spec);
    if meta.routes.is_empty() {
        push_line(&mut out, "calls", "none: this is plain SQL and sends no request");
    } else {
        push_line(
            &mut out,
            "values",
            &format!(
                "at most {} to ask, {} known",
                format_thousands(meta.values_asked),
                format_thousands(meta.values_reused)
            ),
        );
        push_usage(&mut out, meta, spec, "at most ");
        for unbounded in &meta.unbounded {
            let call: Vec<&str> = unbounded.call.split_whitespace().collect();
            let message =
                format!("not counted: the requests of {} ({})", call.join(" "), unbounded.why);
            push_line(&mut out, "unknown", &message);
        }
    }
    out
}

/// Formats the plan of an explained query: each SELECT, its conditions, and the decision of each
/// rule.
pub fn format_plan(meta: &Meta) -> String {
    if meta.routes.is_empty() { String::new() } else { format!("plan\n{}", meta.plan) }
}

/// Appends the methods and the assumptions of the intervals.
fn push_interval(out: &mut String, meta: &Meta) {
    let Some(interval) = &meta.interval else { return };
    let list = |name: &str| {
        let items = interval[name].as_array().into_iter().flatten();
        items.filter_map(serde_json::Value::as_str).collect::<Vec<_>>().join("; ")
    };
    let text = |name: &str| interval[name].as_str().unwrap_or_default();
    let sample = format!(
        "{} % by {}; {} of {} sampled rows of {} audited ({}, audit {})",
        100.0 * interval["confidence"].as_f64().unwrap_or_default(),
        list("methods"),
        interval["audited"],
        interval["drawn"],
        interval["population"],
        text("design"),
        text("audit")
    );
    push_line(out, "interval", &sample);
    push_line(out, "assumes", &list("assumes"));
}

fn push_line(out: &mut String, name: &str, value: &str) {
    out.push_str(&format!("{name:<10} {value}\n"));
}

/// Formats each call with its route, the reason for it, and the bound on its requests.
fn format_routes(meta: &Meta, spec: &Spec) -> String {
    let mut out = String::new();
    // The bound of a single call is the query's.
    let has_parts = meta.routes.len() > 1 && meta.requests > 0;
    for route in &meta.routes {
        // A call may span several lines of the query.
        let call: Vec<&str> = route.call.split_whitespace().collect();
        push_line(&mut out, "call", &call.join(" "));
        let column = match (route.expansion.as_str(), route.column.as_str()) {
            ("", column) => column.to_owned(),
            (expansion, "") => expansion.to_owned(),
            (expansion, column) => format!("{expansion}.{column}"),
        };
        push_line(&mut out, "  route", format!("{} {column}", route.route.name()).trim_end());
        push_line(&mut out, "  why", &route.why);
        if let Some(bound) = route.bound.filter(|_| has_parts) {
            push_line(&mut out, "  asks", &format_call_bound(&bound, spec));
        }
    }
    out
}

/// Formats the bound on a call's values, requests and cost.
pub fn format_call_bound(bound: &CallBound, spec: &Spec) -> String {
    let CallBound { values, usage } = bound;
    let cost = match usage.requests {
        0 => String::new(),
        _ if !spec.is_priced() => String::new(),
        _ => format!(", {}", format_usd_bound(usage.cost_usd)),
    };
    format!(
        "at most {} in {}{cost}",
        format_count(*values, "value"),
        format_count(usage.requests, "request")
    )
}

/// Formats the number of passes and the number of values that each pass needed.
fn format_demand(meta: &Meta) -> String {
    let each: Vec<String> = meta.passes.iter().map(|p| format_thousands(p.demanded)).collect();
    match each.as_slice() {
        [] => "none".to_owned(),
        [_] => {
            let needed: u64 = meta.passes.iter().map(|p| p.demanded).sum();
            format!("1, which needed {}", format_count(needed, "value"))
        }
        _ => format!("{}, which needed {} values", each.len(), each.join(", ")),
    }
}

fn push_usage(out: &mut String, meta: &Meta, spec: &Spec, at_most: &str) {
    push_line(out, "requests", &format!("{at_most}{}", format_thousands(meta.requests)));
    let tokens = format!(
        "{at_most}{} in, {} out",
        format_thousands(meta.input_tokens),
        format_thousands(meta.output_tokens)
    );
    push_line(out, "tokens", &tokens);
    let cost = if spec.is_priced() || meta.requests == 0 {
        let usd = meta.cost_usd;
        match at_most {
            "" => format_cost(usd),
            at_most if meta.requests == 0 => format!("{at_most}{}", format_usd_bound(usd)),
            at_most => format!("{at_most}{} {WITHOUT_REPEATS}", format_usd_bound(usd)),
        }
    } else {
        format!("unknown: set `price` in {}", spec.find_unpriced_table())
    };
    let notes: &[String] = if meta.requests == 0 { &[] } else { &meta.price_notes };
    push_line(out, "cost", &format!("{cost}{}", parenthesize_notes(notes)));
}

fn push_sql(out: &mut String, meta: &Meta) {
    push_line(out, "sql", meta.sql.trim().replace('\n', "\n           ").as_str());
}
