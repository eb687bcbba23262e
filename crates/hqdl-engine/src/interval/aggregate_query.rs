//! Analyzes the aggregate queries that can have an interval, and rejects all others with a reason.

use std::collections::BTreeSet;

use super::rejection::reject_interval;
use super::tables::FromTables;
use crate::query::QueryError;
use hqdl_database::Database;
use hqdl_database::publish::find_column_affinity;
use hqdl_spec::Spec;
use hqdl_sql::blendsql::scope::is_rowid;
use hqdl_sql::blendsql::tree::{
    Body, Expr, ExprKind, ExprOperator, OrderTerm, Query, ResultColumn, SelectCore, Span,
};

/// The parts of an aggregate query over the rows of one expansion.
#[derive(Debug)]
pub struct AggregateQuery {
    /// Position of the expansion in the spec.
    pub expansion: usize,
    /// Positions of the expansion's columns that the query reads.
    pub columns: BTreeSet<usize>,
    /// FROM clause over the tables that hqdl fills.
    pub from: String,
    /// SQL of the column that contains the entity's number.
    pub entity: String,
    /// Conditions on ordinary columns: they define the population.
    pub population: Vec<String>,
    /// Conditions on expanded columns.
    pub condition: Vec<String>,
    pub groups: Vec<Group>,
    /// Sums and counts that make up the aggregates.
    pub row_aggregates: Vec<RowAggregate>,
    /// Aggregates of the result.
    pub outputs: Vec<Output>,
}

/// An expression of GROUP BY.
#[derive(Debug)]
pub struct Group {
    /// The expression.
    pub sql: String,
    /// Whether the expression reads an expanded column.
    pub is_expanded: bool,
    /// Index of the group's result column.
    pub result: usize,
}

/// A sum or a count over rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RowAggregate {
    /// Further conditions on ordinary columns.
    pub population: Vec<String>,
    /// Further conditions on expanded columns.
    pub condition: Vec<String>,
    /// Numbers that the aggregate adds up.
    pub value: SummedValue,
}

/// Number that a row contributes to an aggregate.
#[derive(Debug, Clone, PartialEq)]
pub enum SummedValue {
    /// The number 1, so that the aggregate counts rows.
    One,
    /// An expression over ordinary columns.
    Ordinary(String),
    /// An expanded column, with the range of its values.
    Expanded(String, (f64, f64)),
}

/// An aggregate of the result.
#[derive(Debug)]
pub struct Output {
    /// Index of the aggregate's result column.
    pub result: usize,
    /// Aggregate in that column.
    pub term: AggregateTerm,
}

/// A scaled aggregate, or a scaled ratio of two aggregates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AggregateTerm {
    /// Scale factor.
    pub scale: f64,
    /// Index of the aggregate in the numerator.
    pub numerator: usize,
    /// Index of the aggregate in the denominator; `None` if the aggregate is not a ratio.
    pub denominator: Option<usize>,
}

/// Part of an arithmetic expression over aggregates.
#[derive(Debug, Clone, Copy)]
struct Part {
    scale: f64,
    numerator: Option<usize>,
    denominator: Option<usize>,
    /// Whether `SQLite` treats the expression as a real number in a division, so that the result is
    /// not truncated.
    is_real: bool,
}

/// Splits a parsed query into its parts.
///
/// # Errors
/// [`QueryError::Sql`] with the reason if the query cannot have an interval.
pub fn analyze_query(
    spec: &Spec,
    database: &Database,
    sql: &str,
    query: &Query,
) -> Result<AggregateQuery, QueryError> {
    if let Some(cte) = query.with.first() {
        return reject_interval(&cte.query.span, "the query has a common table expression");
    }
    let core = match &query.body {
        Body::Core(core) => core,
        Body::Compound(operator, ..) => {
            return reject_interval(&query.span, format!("the query has {}", operator.as_sql()));
        }
        Body::Values(..) => return reject_interval(&query.span, "the query is VALUES"),
    };
    if let Some(limit) = query.limit.as_ref().or(query.offset.as_ref()) {
        return reject_interval(&limit.span, "LIMIT selects rows by the values of the aggregates");
    }
    if core.distinct {
        return reject_interval(&core.span, "DISTINCT merges rows of the result");
    }
    if let Some(having) = &core.having {
        return reject_interval(
            &having.span,
            "HAVING selects rows by the values of the aggregates",
        );
    }
    if let Some(window) = core.windows.first() {
        return reject_interval(&window.span, "the query has a window");
    }
    let tables = FromTables::resolve(spec, database, sql, core)?;
    let mut analyzer =
        QueryAnalyzer { spec, sql, tables, columns: BTreeSet::new(), row_aggregates: Vec::new() };
    let aggregate_query = analyzer.analyze(core, &query.order)?;
    if aggregate_query.columns.is_empty() {
        return reject_interval(
            &core.span,
            "the query reads no column of an expansion by its name; a view or a copy of one is not supported",
        );
    }
    Ok(aggregate_query)
}

struct QueryAnalyzer<'a> {
    spec: &'a Spec,
    sql: &'a str,
    tables: FromTables<'a>,
    columns: BTreeSet<usize>,
    row_aggregates: Vec<RowAggregate>,
}

impl QueryAnalyzer<'_> {
    fn analyze(
        &mut self,
        core: &SelectCore,
        order: &[OrderTerm],
    ) -> Result<AggregateQuery, QueryError> {
        let (mut population, mut condition) = (Vec::new(), Vec::new());
        if let Some(filter) = &core.filter {
            self.split_condition(filter, &mut population, &mut condition)?;
        }
        let mut groups = Vec::new();
        for expr in &core.group {
            let result = self.find_group_result(expr, &core.columns, false)?;
            let Some(grouped) = core.columns[result].expr.as_ref() else {
                return reject_interval(&expr.span, "GROUP BY refers to *");
            };
            let is_expanded = self.reads_expanded_column(grouped)?;
            groups.push(Group { sql: self.text(grouped).to_owned(), is_expanded, result });
        }
        for term in order {
            let result = self.find_group_result(&term.expr, &core.columns, true).ok();
            if !result.is_some_and(|r| groups.iter().any(|g| g.result == r)) {
                return reject_interval(
                    &term.expr.span,
                    "ORDER BY sorts by something other than a group",
                );
            }
        }
        let mut outputs = Vec::new();
        for (result, column) in core.columns.iter().enumerate() {
            if groups.iter().any(|group| group.result == result) {
                continue;
            }
            let Some(expr) = &column.expr else {
                return reject_interval(&column.span, "the result has *");
            };
            let part = self.parse_part(expr)?;
            let Some(numerator) = part.numerator else {
                return reject_interval(
                    &expr.span,
                    "a result column is neither a group nor an aggregate",
                );
            };
            let term =
                AggregateTerm { scale: part.scale, numerator, denominator: part.denominator };
            outputs.push(Output { result, term });
        }
        if outputs.is_empty() {
            return reject_interval(&core.span, "the query has no aggregate");
        }
        let (expansion, columns) = self.tables.check_columns(&self.columns, &core.span)?;
        Ok(AggregateQuery {
            expansion,
            columns,
            from: self.tables.build_from_clause(expansion),
            entity: self.tables.entity_sql(expansion),
            population,
            condition,
            groups,
            row_aggregates: std::mem::take(&mut self.row_aggregates),
            outputs,
        })
    }

    fn text(&self, expr: &Expr) -> &str {
        self.sql.get(expr.span.clone()).unwrap_or_default()
    }

    /// Splits a condition at its ANDs into conditions on ordinary columns and conditions on
    /// expanded columns.
    fn split_condition(
        &mut self,
        expr: &Expr,
        population: &mut Vec<String>,
        condition: &mut Vec<String>,
    ) -> Result<(), QueryError> {
        match &expr.kind {
            ExprKind::And(all) => {
                all.iter().try_for_each(|e| self.split_condition(e, population, condition))
            }
            ExprKind::Paren(inner) => self.split_condition(inner, population, condition),
            _ => {
                let side = if self.reads_expanded_column(expr)? { condition } else { population };
                side.push(format!("({}\n)", self.text(expr)));
                Ok(())
            }
        }
    }

    /// Returns whether an expression reads an expanded column.
    ///
    /// # Errors
    /// Rejects expressions that cannot be evaluated row by row.
    fn reads_expanded_column(&mut self, expr: &Expr) -> Result<bool, QueryError> {
        match &expr.kind {
            ExprKind::Column { table, column } => {
                let found = self.tables.find_expanded_column(table.as_deref(), column);
                self.columns.extend(found);
                if is_rowid(column) && !self.tables.has_column(column) {
                    return reject_interval(
                        &expr.span,
                        format!("`{column}` depends on the order of the rows"),
                    );
                }
                return Ok(found.is_some());
            }
            ExprKind::Exists(query) => {
                let found = self.tables.find_many_value(self.sql, query)?;
                self.columns.insert(found);
                return Ok(true);
            }
            ExprKind::Call(..) => return reject_interval(&expr.span, "the query asks a model"),
            ExprKind::Scalar(_) | ExprKind::In { query: Some(_), .. } => {
                return reject_interval(&expr.span, "the query has a subquery");
            }
            ExprKind::Function { window: Some(_), .. } => {
                return reject_interval(&expr.span, "the query has a window function");
            }
            ExprKind::Function { name, .. } if is_random_function(name) => {
                return reject_interval(
                    &expr.span,
                    format!("{name}() is not the same for each row"),
                );
            }
            ExprKind::Operation(ExprOperator::Unknown, _) if self.text(expr).starts_with('?') => {
                return reject_interval(&expr.span, "a parameter has no name; write :name");
            }
            _ => {}
        }
        let mut reads = false;
        for child in expr.children().0 {
            reads |= self.reads_expanded_column(child)?;
        }
        Ok(reads)
    }

    /// Returns the result column that an expression of GROUP BY or ORDER BY refers to. If a name is
    /// both an alias and a column, `SQLite` uses the alias in ORDER BY (`is_order`), and the column in
    /// GROUP BY.
    fn find_group_result(
        &self,
        expr: &Expr,
        columns: &[ResultColumn],
        is_order: bool,
    ) -> Result<usize, QueryError> {
        let text = self.text(expr).trim();
        if let (ExprKind::Literal, Ok(position)) = (&expr.kind, text.parse::<usize>())
            && (1..=columns.len()).contains(&position)
        {
            return Ok(position - 1);
        }
        let names = |column: &ResultColumn| {
            let is_alias = matches!(&expr.kind, ExprKind::Column { table: None, column: name }
                if column.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(name))
                    && (is_order || !self.tables.has_column(name)));
            is_alias || column.expr.as_ref().is_some_and(|e| self.is_same_expression(e, expr))
        };
        match columns.iter().position(names) {
            Some(result) => Ok(result),
            None => reject_interval(&expr.span, "a group is not a column of the result"),
        }
    }

    fn is_same_expression(&self, a: &Expr, b: &Expr) -> bool {
        match (&a.kind, &b.kind) {
            (
                ExprKind::Column { table, column },
                ExprKind::Column { table: other_table, column: other },
            ) => {
                let is_same_table = match (table, other_table) {
                    (Some(table), Some(other)) => table.eq_ignore_ascii_case(other),
                    _ => true,
                };
                is_same_table && column.eq_ignore_ascii_case(other)
            }
            _ => self.text(a).split_whitespace().eq(self.text(b).split_whitespace()),
        }
    }

    /// Parses a result column: an aggregate, or arithmetic over at most two aggregates.
    fn parse_part(&mut self, expr: &Expr) -> Result<Part, QueryError> {
        match &expr.kind {
            ExprKind::Paren(inner) => self.parse_part(inner),
            ExprKind::Literal => match self.text(expr).parse::<f64>() {
                Ok(scale) => {
                    let is_real = self.text(expr).parse::<i64>().is_err();
                    Ok(Part { scale, numerator: None, denominator: None, is_real })
                }
                Err(_) => reject_interval(
                    &expr.span,
                    "a result column is neither a group nor an aggregate",
                ),
            },
            ExprKind::Cast(inner, kind) => {
                if find_column_affinity(Some(kind.as_str())) != "REAL" {
                    return reject_interval(
                        &expr.span,
                        "CAST changes an aggregate, other than to REAL",
                    );
                }
                Ok(Part { is_real: true, ..self.parse_part(inner)? })
            }
            ExprKind::Operation(ExprOperator::Prefix("-"), operands) => {
                let [operand] = operands.as_slice() else {
                    return reject_interval(&expr.span, "the operator is unknown");
                };
                let part = self.parse_part(operand)?;
                Ok(Part { scale: -part.scale, ..part })
            }
            ExprKind::Operation(ExprOperator::Infix(operator), operands) => {
                let [left, right] = operands.as_slice() else {
                    return reject_interval(&expr.span, "the operator is unknown");
                };
                let (left, right) = (self.parse_part(left)?, self.parse_part(right)?);
                combine_parts(&expr.span, operator, left, right)
            }
            ExprKind::Function { .. } => self.parse_aggregate(expr),
            ExprKind::Call(..) => reject_interval(&expr.span, "the query asks a model"),
            ExprKind::Scalar(_) | ExprKind::Exists(_) => {
                reject_interval(&expr.span, "the query has a subquery")
            }
            _ => reject_interval(&expr.span, "a result column is neither a group nor an aggregate"),
        }
    }

    fn parse_aggregate(&mut self, expr: &Expr) -> Result<Part, QueryError> {
        let ExprKind::Function { name, window, filter, args, .. } = &expr.kind else {
            return reject_interval(
                &expr.span,
                "a result column is neither a group nor an aggregate",
            );
        };
        if window.is_some() {
            return reject_interval(&expr.span, "the query has a window function");
        }
        if !["count", "sum", "total", "avg"].contains(&name.as_str()) {
            return reject_interval(&expr.span, format!("{name}() is not COUNT, SUM or AVG"));
        }
        let before = args.first().map_or(expr.span.start, |arg| arg.span.start);
        let head = self.sql.get(expr.span.start..before).unwrap_or_default();
        if head.to_ascii_lowercase().contains("distinct") {
            return reject_interval(&expr.span, "DISTINCT counts values, not rows");
        }
        let mut aggregate =
            RowAggregate { population: Vec::new(), condition: Vec::new(), value: SummedValue::One };
        if let Some(filter) = filter {
            self.split_condition(filter, &mut aggregate.population, &mut aggregate.condition)?;
        }
        let arg = match (name.as_str(), args.as_slice()) {
            ("count", []) => return Ok(self.add_row_aggregate(aggregate, false)),
            (_, [arg]) => arg,
            _ => {
                return reject_interval(
                    &expr.span,
                    format!("{name}() has an order or several arguments"),
                );
            }
        };
        let text = self.text(arg).to_owned();
        let is_expanded = self.reads_expanded_column(arg)?;
        let is_known = format!("(({text}\n) IS NOT NULL)");
        if is_expanded { &mut aggregate.condition } else { &mut aggregate.population }
            .push(is_known);
        if name == "count" {
            return Ok(self.add_row_aggregate(aggregate, false));
        }
        let mut sum = aggregate.clone();
        if !is_expanded {
            sum.value = SummedValue::Ordinary(text);
        } else if arg.is_condition() {
            sum.condition.push(format!("({text}\n)"));
        } else {
            sum.value = SummedValue::Expanded(text, self.find_range(arg)?);
        }
        let part = self.add_row_aggregate(sum, name != "sum");
        if name != "avg" {
            return Ok(part);
        }
        let count = self.add_row_aggregate(aggregate, true);
        Ok(Part { denominator: count.numerator, ..part })
    }

    fn add_row_aggregate(&mut self, aggregate: RowAggregate, is_real: bool) -> Part {
        self.row_aggregates.push(aggregate);
        let numerator = Some(self.row_aggregates.len() - 1);
        Part { scale: 1.0, numerator, denominator: None, is_real }
    }

    /// Returns the range of an expanded column.
    fn find_range(&self, arg: &Expr) -> Result<(f64, f64), QueryError> {
        match &arg.kind {
            ExprKind::Paren(inner) => self.find_range(inner),
            ExprKind::Column { table, column } => {
                let found = self.tables.find_expanded_column(table.as_deref(), column);
                match found.and_then(|n| FromTables::get_expanded_column(self.spec, n).range) {
                    Some(range) => Ok(range),
                    None => reject_interval(
                        &arg.span,
                        format!("`{column}` needs `range = [lo, hi]` in the spec"),
                    ),
                }
            }
            _ => reject_interval(
                &arg.span,
                "the aggregate is over an expression of a model-filled number",
            ),
        }
    }
}

/// Combines two parts of an arithmetic expression.
fn combine_parts(span: &Span, operator: &str, left: Part, right: Part) -> Result<Part, QueryError> {
    let is_real = left.is_real || right.is_real;
    match (operator, left.numerator, right.numerator) {
        ("*", _, None) => Ok(Part { scale: left.scale * right.scale, is_real, ..left }),
        ("*", None, _) => Ok(Part { scale: left.scale * right.scale, is_real, ..right }),
        ("/", Some(_), _) if !is_real => {
            reject_interval(span, "the division is between whole numbers; multiply by 1.0 first")
        }
        ("/", Some(_), _) if right.scale == 0.0 => {
            reject_interval(span, "the aggregate is divided by 0")
        }
        ("/", Some(_), None) => Ok(Part { scale: left.scale / right.scale, is_real, ..left }),
        ("/", Some(_), Some(denominator))
            if left.denominator.is_none() && right.denominator.is_none() =>
        {
            let scale = left.scale / right.scale;
            Ok(Part { scale, denominator: Some(denominator), is_real, ..left })
        }
        _ => reject_interval(span, "the arithmetic is more than a ratio of two aggregates"),
    }
}

fn is_random_function(function: &str) -> bool {
    ["random", "randomblob", "changes", "total_changes", "last_insert_rowid"].contains(&function)
}
