//! What a call's surroundings say about it: which columns its values are, what
//! its answer is compared with, where it stands.

use std::collections::HashMap;

use super::parse::Parsed;
use super::scope::{Field, Origin, Resolver, Schema, Scope, bare};
use super::tree::{Expr, ExprKind};
use super::{Call, Choices, Kind, ReturnType, rewrite};
use hqdl_values::Type;

/// A value that a call is about.
#[derive(Debug, Clone, Default)]
pub struct Key {
    /// Its text, as SQL.
    pub text: String,
    /// The column's name, when it is one.
    pub name: Option<String>,
    /// The column of the database that it repeats, when it does.
    pub origin: Option<Origin>,
    /// The table of the query that has it: its name there, and its columns.
    pub table: Option<(Option<String>, Vec<Field>)>,
}

/// What an answer is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Compared {
    /// A text.
    Text(String),
    /// A whole number; whether only for equality.
    Integer(bool),
    /// A number.
    Real,
    /// Something that it is ordered with.
    Ordered,
    /// TRUE or FALSE.
    Truth,
    /// A column: its name in the query as SQL, and where it comes from.
    Column(String, Option<Origin>),
}

/// What is known of a call from where it stands.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Its truth counts, not its value.
    pub condition: bool,
    /// What its answer is compared with.
    pub compared: Vec<Compared>,
    /// Calls that its answer is compared with.
    pub beside: Vec<usize>,
    /// What it is cast to, or a call that asks the same is said to return.
    pub said: Option<ReturnType>,
    /// What a call that it is compared with is said to return.
    pub beside_said: Option<ReturnType>,
    /// It stands after IN, where a list is read.
    pub set: bool,
    /// The values it is about.
    pub keys: Vec<Key>,
    /// The table or CTE that its options are a column of.
    pub options: Option<Options>,
    /// Tables of its scope.
    pub tables: Vec<(Option<String>, Option<Vec<Field>>)>,
}

/// The column that options are taken from.
#[derive(Debug, Clone, PartialEq)]
pub enum Options {
    /// A column of the database.
    Base(Origin),
    /// A column of a table of the query, a CTE maybe.
    Named(String, String),
}

/// What is known of each call, by its number.
#[must_use]
pub fn of_calls(sql: &str, parsed: &Parsed, schema: &dyn Schema) -> HashMap<usize, Usage> {
    let resolver = Resolver { schema };
    let mut found: HashMap<usize, Usage> = HashMap::new();
    let root = Scope::within(None);
    resolver.each(&parsed.query, &root, &mut |expr, scope, condition| match &expr.kind {
        ExprKind::Call(n, args) => {
            let usage = found.entry(*n).or_default();
            usage.condition |= condition;
            usage.keys = args.iter().map(|a| key(a, sql, scope)).collect();
            usage.options = options(&parsed.calls[*n], scope);
            usage.tables =
                scope.tables.iter().map(|t| (t.name.clone(), t.fields.clone())).collect();
        }
        ExprKind::Compare(sign, left, right) => {
            if let (ExprKind::Call(a, _), ExprKind::Call(b, _)) =
                (&bare(left).kind, &bare(right).kind)
            {
                found.entry(*a).or_default().beside.push(*b);
                found.entry(*b).or_default().beside.push(*a);
            }
            for (side, other) in [(left, right), (right, left)] {
                if let ExprKind::Call(n, _) = &spoken(side).kind {
                    let ordered = sign.starts_with(['<', '>']) && *sign != "<>";
                    let compared = compared(other, sign, sql, scope);
                    let text = matches!(compared, Some(Compared::Text(_)));
                    let usage = found.entry(*n).or_default();
                    usage.compared.extend(compared);
                    if ordered && !text {
                        usage.compared.push(Compared::Ordered);
                    }
                }
            }
        }
        ExprKind::Cast(inner, name) => {
            if let ExprKind::Call(n, _) = &bare(inner).kind
                && parsed.calls[*n].kind == Kind::Answer
            {
                let usage = found.entry(*n).or_default();
                usage.said = usage.said.or(cast(name));
            }
        }
        // BETWEEN, arithmetic: beside a number, a number.
        ExprKind::Other(all) => {
            for (at, one) in all.iter().enumerate() {
                let ExprKind::Call(n, _) = &bare(one).kind else { continue };
                for (_, other) in all.iter().enumerate().filter(|(other, _)| *other != at) {
                    let compared = compared(other, "<", sql, scope);
                    if let Some(number @ (Compared::Integer(_) | Compared::Real)) = compared {
                        found.entry(*n).or_default().compared.push(number);
                    }
                }
            }
        }
        // What is added up is a number.
        ExprKind::Function { name, args, .. }
            if matches!(name.as_str(), "sum" | "avg" | "total" | "abs" | "round") =>
        {
            if let Some(ExprKind::Call(n, _)) = args.first().map(|a| &bare(a).kind) {
                found.entry(*n).or_default().compared.push(Compared::Real);
            }
        }
        ExprKind::In { operand, list, .. } => {
            if let ExprKind::Call(n, _) = &bare(operand).kind {
                let all = list.iter().filter_map(|e| compared(e, "=", sql, scope));
                found.entry(*n).or_default().compared.extend(all);
            }
            for item in list {
                if let ExprKind::Call(n, _) = &item.kind {
                    let usage = found.entry(*n).or_default();
                    let before = sql[..item.span.start].trim_end();
                    usage.set = !before.ends_with(['(', ',']);
                    if let Some(c) = compared(operand, "=", sql, scope) {
                        usage.compared.push(c);
                    }
                }
            }
        }
        _ => {}
    });
    found
}

/// An expression without what makes a text of it.
fn spoken(expr: &Expr) -> &Expr {
    match &bare(expr).kind {
        ExprKind::Cast(inner, name) if name.eq_ignore_ascii_case("text") => spoken(inner),
        _ => bare(expr),
    }
}

/// What is asked for when an answer is cast to a type; a text may be anything.
fn cast(name: &str) -> Option<ReturnType> {
    let name = name.to_ascii_lowercase();
    let is = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let scalar = if is(&["bool"]) {
        Type::Boolean
    } else if is(&["int"]) {
        Type::Integer
    } else if is(&["real", "floa", "doub", "numeric", "decimal"]) {
        Type::Real
    } else {
        return None;
    };
    Some(ReturnType { scalar, list: false })
}

fn key(arg: &Expr, sql: &str, scope: &Scope<'_>) -> Key {
    let text = rewrite::name_text(arg, sql);
    match &bare(arg).kind {
        ExprKind::Column { table, column } => {
            let hit = scope.find(table.as_deref(), column);
            Key {
                text,
                name: Some(column.clone()),
                origin: hit.and_then(|f| f.field.origin.clone()),
                table: hit.and_then(|f| Some((f.table.name.clone(), f.table.fields.clone()?))),
            }
        }
        _ => Key { text, ..Key::default() },
    }
}

fn options(call: &Call, scope: &Scope<'_>) -> Option<Options> {
    let Some(Choices::Column { table, column, .. }) = &call.options else { return None };
    if let Some(hit) = scope.find(table.as_deref(), column) {
        if let Some(name) = &hit.table.name
            && scope.knows_cte(name)
        {
            return Some(Options::Named(name.clone(), column.clone()));
        }
        if let Some(origin) = &hit.field.origin {
            return Some(Options::Base(origin.clone()));
        }
    }
    let table = table.clone()?;
    Some(Options::Named(table, column.clone()))
}

fn compared(expr: &Expr, sign: &str, sql: &str, scope: &Scope<'_>) -> Option<Compared> {
    let text = sql[bare(expr).span.clone()].trim();
    match &bare(expr).kind {
        ExprKind::Column { table: None, column }
            if matches!(column.to_ascii_lowercase().as_str(), "true" | "false") =>
        {
            Some(Compared::Truth)
        }
        ExprKind::Column { table, column } => {
            let hit = scope.find(table.as_deref(), column)?;
            Some(Compared::Column(text.to_owned(), hit.field.origin.clone()))
        }
        ExprKind::Literal | ExprKind::Other(_) | ExprKind::Cast(..) => {
            if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
                return Some(Compared::Truth);
            }
            if let Some(inner) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
                return Some(Compared::Text(inner.replace("''", "'")));
            }
            if text.parse::<i64>().is_ok() {
                return Some(Compared::Integer(matches!(sign, "=" | "<>" | "IS")));
            }
            text.parse::<f64>().ok().map(|_| Compared::Real)
        }
        _ => None,
    }
}
