//! Formats a plan's query for the terminal and as JSON.

use std::io::{IsTerminal, Write};

use serde_json::{Value as Json, json};

use crate::ask::{AskPlan, MaxCost};
use crate::format::to_single_line;

/// Prints a query. On a terminal, omits control characters.
pub fn print_sql(sql: &str) {
    let mut stdout = std::io::stdout();
    let text =
        if stdout.is_terminal() { strip_control_characters(sql) } else { sql.trim().to_owned() };
    // A reader may close the pipe early.
    let _ = writeln!(stdout, "{text}");
}

/// Removes control characters from model output, because they could change other parts of the
/// terminal.
pub(super) fn strip_control_characters(text: &str) -> String {
    text.trim().lines().map(to_single_line).collect::<Vec<_>>().join("\n")
}

/// Formats a plan as a JSON event, without the proposed columns.
pub(super) fn plan_to_json(plan: &AskPlan) -> Json {
    let max_cost = match &plan.max_cost {
        MaxCost::Nothing => json!(0.0),
        MaxCost::Usd(usd) => json!(usd),
        MaxCost::Unknown(_) => Json::Null,
    };
    json!({
        "event": "plan", "plan": plan.id, "sql": plan.sql, "dialect": plan.dialect.name(),
        "assumptions": plan.assumptions, "max_cost_usd": max_cost,
        "explained": plan.explained.explained_to_json(),
    })
}
