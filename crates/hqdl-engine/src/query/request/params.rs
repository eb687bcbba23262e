//! Parameters of a query: `:name`, `@name`, `$name`, `?` and `?1`. They are bound as values and
//! never inserted into the SQL.

use rusqlite::Statement;

use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::lexer::{Brackets, TokenKind, read_tokens};
use hqdl_values::problem::find_nearest;
use hqdl_values::value::Value;

/// Identifies a parameter of a query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Param {
    /// By name. A name with a prefix (`:`, `@` or `$`) matches only this prefix; a name without a
    /// prefix matches any prefix.
    Name(String),
    /// By position, starting at 1: `?` and `?1`.
    Position(usize),
}

impl Param {
    /// Parses the name of a parameter. A number is a position.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix('?').unwrap_or(text).parse() {
            Ok(position) => Self::Position(position),
            Err(_) => Self::Name(text.to_owned()),
        }
    }

    /// Returns true if this identifies the statement's parameter with this position and name.
    #[must_use]
    pub fn identifies_parameter(&self, position: usize, name: Option<&str>) -> bool {
        match (self, name) {
            (Self::Position(p), _) => *p == position,
            (Self::Name(own_name), Some(name)) => {
                own_name == name || name.strip_prefix([':', '@', '$']) == Some(own_name)
            }
            (Self::Name(_), None) => false,
        }
    }
}

impl std::fmt::Display for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Position(position) => write!(f, "?{position}"),
        }
    }
}

/// Binds every parameter of a statement. Returns, for each of `params`, whether the statement uses
/// it.
///
/// # Errors
/// Returns [`QueryError::Sql`] if a parameter of the statement has no value.
pub fn bind_params(
    statement: &mut Statement<'_>,
    params: &[(Param, Value)],
) -> Result<Vec<bool>, QueryError> {
    let mut used = vec![false; params.len()];
    let count = statement.parameter_count();
    // A single `?5` creates five parameters, four of which do not occur in the query.
    let numbered = (1..=count)
        .rev()
        .find(|n| statement.parameter_name(*n).is_some_and(|name| name.starts_with('?')))
        .unwrap_or(0);
    for position in 1..=count {
        let name = statement.parameter_name(position).map(str::to_owned);
        let Some(n) =
            params.iter().position(|(p, _)| p.identifies_parameter(position, name.as_deref()))
        else {
            if name.is_none() && position < numbered {
                continue;
            }
            let display_name = name.unwrap_or_else(|| format!("?{position}"));
            let flag = display_name.get(1..).unwrap_or_default();
            return Err(QueryError::in_sql(
                format!("the parameter `{display_name}` has no value"),
                None,
                "",
                format!("pass --param {flag}=…"),
            ));
        };
        used[n] = true;
        statement.raw_bind_parameter(position, &params[n].1).map_err(|e| {
            QueryError::in_sql(hqdl_database::describe_sqlite_error(&e), None, "", "")
        })?;
    }
    Ok(used)
}

/// Checks that every value belongs to a parameter. `used` combines the results of [`bind_params`]
/// for all statements of a query; `names` lists the parameters of these statements.
///
/// # Errors
/// Returns [`QueryError::Sql`] if a value belongs to no parameter.
pub fn check_all_values_used(
    params: &[(Param, Value)],
    used: &[bool],
    names: &[String],
) -> Result<(), QueryError> {
    let Some((param, _)) = params.iter().zip(used).find(|(_, used)| !**used).map(|(p, _)| p) else {
        return Ok(());
    };
    let help = match param {
        Param::Name(name) => find_nearest(name, names.iter().filter_map(|n| n.get(1..)))
            .map(|near| format!("did you mean `{near}`?"))
            .unwrap_or_default(),
        Param::Position(_) => String::new(),
    };
    let help = if !help.is_empty() {
        help
    } else if names.is_empty() {
        "the query has no parameters; write them as :name, or ? by position".to_owned()
    } else {
        format!("it has {}", names.join(", "))
    };
    Err(QueryError::in_sql(format!("the query has no parameter {param}"), None, "", help))
}

/// Returns the names of a statement's parameters. A parameter without a name is called `?n`.
#[must_use]
pub fn list_param_names(statement: &Statement<'_>) -> Vec<String> {
    (1..=statement.parameter_count())
        .map(|n| statement.parameter_name(n).map_or_else(|| format!("?{n}"), str::to_owned))
        .collect()
}

/// Parses a value: a number, NULL or a quoted text as in SQL. Anything else is a text.
#[must_use]
pub fn parse_literal(text: &str) -> Value {
    if let Some(inner) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
        return Value::Text(inner.replace("''", "'"));
    }
    let word = text.trim();
    if word.eq_ignore_ascii_case("null") {
        return Value::Null;
    }
    // Rust parses `inf` and `nan` as numbers; SQL does not.
    let number = word.contains(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    if number {
        if let Ok(integer) = word.parse() {
            return Value::Integer(integer);
        }
        if let Ok(real) = word.parse() {
            return Value::Real(real);
        }
    }
    Value::Text(text.to_owned())
}

/// Returns the parameters of a query that have a name or a number, in the order of their first use.
#[must_use]
pub fn list_parameters(sql: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for token in read_tokens(sql, Brackets::List) {
        let text = token.text(sql);
        if token.lexeme == TokenKind::Parameter && text != "?" && !names.contains(&text) {
            names.push(text);
        }
    }
    names
}
