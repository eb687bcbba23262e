//! Formats a query's metadata for the terminal, after the query or for `explain`.

use super::progress::{duration, in_brackets};
use crate::format::{count_noun, thousands};
use crate::query::Meta;
use crate::spec::Spec;

/// Formats the metadata of a finished query.
pub fn ran(meta: &Meta, spec: &Spec) -> String {
    let mut out = routes(meta);
    line(
        &mut out,
        "values",
        &format!(
            "{} asked, {} reused, {} missing",
            thousands(meta.values_asked),
            thousands(meta.values_reused),
            thousands(meta.values_missing)
        ),
    );
    line(&mut out, "passes", &demand(meta));
    used(&mut out, meta, spec, "");
    line(&mut out, "time", &duration(meta.seconds));
    sql(&mut out, meta);
    out
}

/// Formats the metadata of an explained query.
pub fn explained(meta: &Meta, spec: &Spec) -> String {
    let mut out = routes(meta);
    if meta.routes.is_empty() {
        line(&mut out, "calls", "none: this is plain SQL and sends no request");
    } else {
        line(
            &mut out,
            "values",
            &format!(
                "at most {} to ask, {} known",
                thousands(meta.values_asked),
                thousands(meta.values_reused)
            ),
        );
        used(&mut out, meta, spec, "at most about ");
        for unbounded in &meta.unbounded {
            let call: Vec<&str> = unbounded.call.split_whitespace().collect();
            let beside = format!("not counted: what {} asks ({})", call.join(" "), unbounded.why);
            line(&mut out, "unknown", &beside);
        }
    }
    sql(&mut out, meta);
    out
}

/// Formats the plan of an explained query: each SELECT, its conditions, and the decision of each
/// rule.
pub fn plan(meta: &Meta) -> String {
    if meta.routes.is_empty() { String::new() } else { format!("plan\n{}", meta.plan) }
}

fn line(out: &mut String, name: &str, value: &str) {
    out.push_str(&format!("{name:<10} {value}\n"));
}

/// Formats each call with its route and the reason for it.
fn routes(meta: &Meta) -> String {
    let mut out = String::new();
    for route in &meta.routes {
        // A call may span several lines of the query.
        let call: Vec<&str> = route.call.split_whitespace().collect();
        line(&mut out, "call", &call.join(" "));
        let place = match (route.expansion.as_str(), route.column.as_str()) {
            ("", column) => column.to_owned(),
            (expansion, "") => expansion.to_owned(),
            (expansion, column) => format!("{expansion}.{column}"),
        };
        line(&mut out, "  route", format!("{} {place}", route.route.name()).trim_end());
        line(&mut out, "  why", &route.why);
    }
    out
}

/// Formats the number of passes and the values each one needed.
fn demand(meta: &Meta) -> String {
    let each: Vec<String> = meta.passes.iter().map(|p| thousands(p.demanded)).collect();
    match each.as_slice() {
        [] => "none".to_owned(),
        [_] => {
            let needed: u64 = meta.passes.iter().map(|p| p.demanded).sum();
            format!("1, which needed {}", count_noun(needed, "value"))
        }
        _ => format!("{}, which needed {} values", each.len(), each.join(", ")),
    }
}

fn used(out: &mut String, meta: &Meta, spec: &Spec, about: &str) {
    line(out, "requests", &format!("{about}{}", thousands(meta.requests)));
    let tokens = format!(
        "{about}{} in, {} out",
        thousands(meta.input_tokens),
        thousands(meta.output_tokens)
    );
    line(out, "tokens", &tokens);
    let price = if spec.is_priced() || meta.requests == 0 {
        format!("{about}${:.4}", meta.cost_usd)
    } else {
        match spec.models.iter().find(|(_, model)| model.price.is_none()) {
            Some((name, _)) if spec.model.price.is_some() => {
                format!("unknown (no `price` in [model.{name}])")
            }
            _ => "unknown (no `price` in [model])".to_owned(),
        }
    };
    let notes: &[String] = if meta.requests == 0 { &[] } else { &meta.price_notes };
    line(out, "price", &format!("{price}{}", in_brackets(notes)));
}

fn sql(out: &mut String, meta: &Meta) {
    line(out, "sql", meta.sql.trim().replace('\n', "\n           ").as_str());
}
