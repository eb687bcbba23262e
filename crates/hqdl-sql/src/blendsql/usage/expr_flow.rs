//! Follows values through expressions and records comparisons.

use std::sync::Arc;

use crate::blendsql::aggregates::{is_aggregate_call, visit_own_exprs};
use crate::blendsql::emit::column_sql;
use crate::blendsql::flow::{Flow, FunctionEffect, find_function_effect};
use crate::blendsql::lineage::Lineage;
use crate::blendsql::scope::{Affinity, ColumnOrigin, strip_expr_parens};
use crate::blendsql::terms::read_integer;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator, Query};
use crate::blendsql::usage::flow_analysis::{FlowAnalysis, SelectNames};
use crate::blendsql::usage::{
    AvailableColumn, CallUsage, ColumnEquality, ComparedWith, Key, OptionsColumn,
};
use crate::blendsql::{Call, Choices, ReturnType, Subject};
use hqdl_values::Type;

impl FlowAnalysis<'_> {
    /// Analyzes a condition. Only its truth value matters.
    pub(in crate::blendsql) fn analyze_condition(&mut self, expr: &Expr, names: &SelectNames<'_>) {
        let flow = self.analyze_expr(expr, names);
        for call in &flow.calls {
            self.usages.entry(*call).or_default().is_condition = true;
        }
    }

    pub(in crate::blendsql) fn record_comparison(
        &mut self,
        flow: &Flow,
        comparison: &ComparedWith,
    ) {
        for call in &flow.calls {
            let comparisons = &mut self.usages.entry(*call).or_default().compared_with;
            if !comparisons.contains(comparison) {
                comparisons.push(comparison.clone());
            }
        }
    }

    /// Records the comparison of two values.
    pub(in crate::blendsql) fn record_flow_comparison(
        &mut self,
        sign: &str,
        left: &Flow,
        right: &Flow,
    ) {
        let equal = matches!(sign, "=" | "IS");
        for (side, other) in [(left, right), (right, left)] {
            if side.calls.is_empty() {
                continue;
            }
            let ordered = sign.starts_with(['<', '>']) && sign != "<>";
            for text in &other.texts {
                self.record_comparison(side, &ComparedWith::Text(text.clone()));
            }
            for column in &other.columns {
                if equal {
                    self.record_comparison(side, &ComparedWith::Column(column.origin.clone()));
                }
                let number = matches!(column.affinity, Some(Affinity::Integer | Affinity::Real));
                if ordered && number {
                    self.record_comparison(side, &ComparedWith::Number);
                }
            }
            let comparisons = [
                (other.text, ComparedWith::ComputedText),
                (other.integer || other.number, ComparedWith::Number),
                (other.is_truth(), ComparedWith::Truth),
            ];
            for (_, comparison) in comparisons.iter().filter(|(is, _)| *is) {
                self.record_comparison(side, comparison);
            }
            for call in &side.calls {
                let compared_calls = &mut self.usages.entry(*call).or_default().compared_calls;
                compared_calls.extend(other.calls.iter().filter(|c| *c != call));
                compared_calls.sort_unstable();
                compared_calls.dedup();
            }
        }
    }

    /// Returns the flows of a row value, or the single flow of any other expression.
    fn analyze_row(&mut self, expr: &Expr, names: &SelectNames<'_>) -> Vec<Flow> {
        match &strip_expr_parens(expr).kind {
            ExprKind::Scalar(query) => self.analyze_subquery(query, names),
            ExprKind::Operation(ExprOperator::Row, parts) => {
                parts.iter().map(|p| self.analyze_expr(p, names)).collect()
            }
            _ => vec![self.analyze_expr(expr, names)],
        }
    }

    /// Returns the flows of a subquery's columns.
    fn analyze_subquery(&mut self, query: &Query, names: &SelectNames<'_>) -> Vec<Flow> {
        let fields = self.analyze_query(query, names, None).unwrap_or_default();
        // Remove the lineage: the columns belong to rows of the subquery, not to the current row.
        fields.into_iter().map(|f| Flow { lineage: None, ..f.flow }).collect()
    }

    fn compare_rows(&mut self, sign: &str, left: &[Flow], right: &[Flow]) {
        for (left, right) in left.iter().zip(right) {
            self.record_flow_comparison(sign, left, right);
        }
    }

    /// Analyzes an expression and returns its possible values.
    pub(in crate::blendsql) fn analyze_expr(
        &mut self,
        expr: &Expr,
        names: &SelectNames<'_>,
    ) -> Flow {
        let before = self.reads_rows_of.len();
        self.record_rows_read(expr, names);
        let flow = self.analyze_expr_kind(expr, names);
        self.reads_rows_of.truncate(before);
        flow
    }

    /// Records the SELECTs whose rows or GROUP BY terms this expression reads. `SQLite` does not
    /// pick an arbitrary row for these SELECTs.
    fn record_rows_read(&mut self, expr: &Expr, names: &SelectNames<'_>) {
        if is_aggregate_call(expr) {
            // An aggregate belongs to the innermost SELECT that provides any of the aggregate's
            // columns.
            let mut found: Vec<&SelectNames<'_>> = Vec::new();
            visit_own_exprs(expr, &mut |e| {
                if let ExprKind::Column { table, column } = &e.kind {
                    found.extend(names.find_with_select(table.as_deref(), column).map(|f| f.0));
                }
            });
            let is_found = |here: &&SelectNames<'_>| found.iter().any(|f| std::ptr::eq(*f, *here));
            self.reads_rows_of
                .push(identify_names(names.ancestors().find(is_found).unwrap_or(names)));
        }
        let text = self.sql.get(expr.span.clone()).unwrap_or_default().trim();
        let is_term =
            |n: &&SelectNames<'_>| n.groups.as_ref().is_some_and(|g| g.is_group_term(text));
        self.reads_rows_of.extend(names.ancestors().filter(is_term).map(identify_names));
    }

    /// Returns the flow of a name. If the column has several values per group, records this for the
    /// enclosing calls.
    fn analyze_name(&mut self, table: Option<&str>, column: &str, names: &SelectNames<'_>) -> Flow {
        if let Some((select, of, field)) = names.find_with_select(table, column)
            && !self.enclosing_calls.is_empty()
            && !self.reads_rows_of.contains(&identify_names(select))
            && select.has_several_values(of, field)
        {
            let name_text = table.map_or_else(|| column.to_owned(), |t| format!("{t}.{column}"));
            for call in &self.enclosing_calls {
                self.usages
                    .entry(*call)
                    .or_default()
                    .ambiguous_column
                    .get_or_insert_with(|| name_text.clone());
            }
        }
        find_name_flow(table, column, names)
    }

    fn analyze_expr_kind(&mut self, expr: &Expr, names: &SelectNames<'_>) -> Flow {
        match &expr.kind {
            ExprKind::Paren(inner) => self.analyze_expr(inner, names),
            ExprKind::And(all) | ExprKind::Or(all) => {
                all.iter().for_each(|e| self.analyze_condition(e, names));
                Flow::truth()
            }
            ExprKind::Not(inner) => {
                self.analyze_condition(inner, names);
                Flow::truth()
            }
            ExprKind::Literal => self.analyze_literal(expr),
            ExprKind::Column { table, column } => {
                self.analyze_name(table.as_deref(), column, names)
            }
            ExprKind::Call(n, args) => self.analyze_call(*n, args, names),
            ExprKind::Compare(sign, left, right) => {
                let (left_flows, right_flows) =
                    (self.analyze_row(left, names), self.analyze_row(right, names));
                self.compare_rows(sign, &left_flows, &right_flows);
                Flow::truth()
            }
            ExprKind::Cast(inner, type_name) => self.analyze_cast(inner, type_name, names),
            ExprKind::Case { operand, whens, otherwise } => {
                let operand = operand.as_ref().map(|o| self.analyze_expr(o, names));
                let mut value = Flow::default();
                for (when, then) in whens {
                    match &operand {
                        Some(operand) => {
                            let when = self.analyze_expr(when, names);
                            self.record_flow_comparison("=", operand, &when);
                        }
                        None => self.analyze_condition(when, names),
                    }
                    value = value.union_with(self.analyze_expr(then, names).without_affinity());
                }
                if let Some(otherwise) = otherwise {
                    value =
                        value.union_with(self.analyze_expr(otherwise, names).without_affinity());
                }
                value
            }
            ExprKind::Function { name, window, filter, args, .. } => {
                if let Some(filter) = filter {
                    self.analyze_condition(filter, names);
                }
                window.iter().flat_map(|w| w.exprs()).for_each(|e| {
                    self.analyze_expr(e, names);
                });
                self.analyze_function(name, window.is_some(), args, names)
            }
            ExprKind::Exists(query) => {
                self.analyze_query(query, names, None);
                Flow::truth()
            }
            ExprKind::Scalar(query) => {
                self.analyze_subquery(query, names).into_iter().next().unwrap_or_default()
            }
            ExprKind::In { negated, operand, list, query, is_answer } => {
                let sign = if *negated { "<>" } else { "=" };
                self.analyze_in(operand, sign, (list, *is_answer), query.as_deref(), names);
                Flow::truth()
            }
            ExprKind::Operation(operator, parts) => self.analyze_operation(operator, parts, names),
        }
    }

    fn analyze_literal(&self, expr: &Expr) -> Flow {
        let text = self.sql[expr.span.clone()].trim();
        let lineage = Some(Arc::new(Lineage::Literal(text.to_owned())));
        let flow = if let Some(inner) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
            Flow { texts: vec![inner.replace("''", "'")], ..Flow::default() }
        } else if ["true", "false"].iter().any(|w| text.eq_ignore_ascii_case(w)) {
            Flow::truth()
        } else if text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            let is_integer = read_integer(expr, self.sql).is_some();
            if is_integer { Flow::integer() } else { Flow::number() }
        } else if ["current_date", "current_time", "current_timestamp"]
            .iter()
            .any(|w| text.eq_ignore_ascii_case(w))
        {
            return Flow::text();
        } else {
            Flow::default()
        };
        Flow { lineage, ..flow }
    }

    fn analyze_cast(&mut self, inner: &Expr, type_name: &str, names: &SelectNames<'_>) -> Flow {
        let flow = self.analyze_expr(inner, names);
        let lower_name = type_name.to_ascii_lowercase();
        let contains_any = |parts: &[&str]| parts.iter().any(|part| lower_name.contains(part));
        let (stated_type, result) = if contains_any(&["bool"]) {
            (Some(Type::Boolean), Flow::default())
        } else if contains_any(&["int"]) {
            (Some(Type::Integer), Flow::integer())
        } else if contains_any(&["real", "floa", "doub", "numeric", "decimal"]) {
            (Some(Type::Real), Flow::number())
        } else if contains_any(&["char", "clob", "text"]) {
            // CAST to text does not change the answer.
            (None, Flow { calls: flow.calls.clone(), text: true, ..Flow::default() })
        } else {
            (None, Flow::default())
        };
        // CAST would turn a text such as `true` into 0, so always ask for a boolean.
        let is_stated = |n: &&usize| match self.calls[**n].ingredient.subject() {
            Subject::Document => true,
            Subject::Value | Subject::Rows => stated_type == Some(Type::Boolean),
            Subject::Pair | Subject::Embedding => false,
        };
        for call in flow.calls.iter().filter(is_stated) {
            let usage = self.usages.entry(*call).or_default();
            let stated_type = stated_type.map(|scalar| ReturnType { scalar, is_list: false });
            usage.stated_type = usage.stated_type.or(stated_type);
        }
        let lineage = flow
            .lineage
            .and_then(|l| Lineage::new_operation(&format!("cast {type_name}"), vec![l]));
        Flow { lineage, ..result }
    }

    fn analyze_function(
        &mut self,
        name: &str,
        window: bool,
        args: &[Expr],
        names: &SelectNames<'_>,
    ) -> Flow {
        let is_aggregate = !window
            && (matches!(name, "count" | "sum" | "avg" | "total" | "group_concat" | "string_agg")
                || (matches!(name, "max" | "min") && args.len() == 1));
        self.aggregate_depth += usize::from(is_aggregate);
        let flows: Vec<Flow> = args.iter().map(|a| self.analyze_expr(a, names)).collect();
        self.aggregate_depth -= usize::from(is_aggregate);
        let is_pure = !window && Lineage::is_pure(name);
        let lineage: Option<Vec<_>> = flows.iter().map(|f| f.lineage.clone()).collect();
        let lineage =
            lineage.filter(|_| is_pure).and_then(|parts| Lineage::new_operation(name, parts));
        let union = |flows: Vec<Flow>| {
            flows.into_iter().map(Flow::without_affinity).fold(Flow::default(), Flow::union_with)
        };
        let result = match find_function_effect(name) {
            FunctionEffect::PassesThrough(count) => union(flows.into_iter().take(count).collect()),
            FunctionEffect::Extremum => {
                for pair in flows.windows(2) {
                    self.record_flow_comparison("<", &pair[0], &pair[1]);
                }
                if let ([one], false) = (flows.as_slice(), window) {
                    self.record_order(one);
                }
                union(flows)
            }
            FunctionEffect::NullIf => {
                if let [value, other] = flows.as_slice() {
                    self.record_flow_comparison("=", value, other);
                }
                union(flows.into_iter().take(1).collect())
            }
            FunctionEffect::Conditional => {
                for call in flows.first().iter().flat_map(|f| &f.calls) {
                    self.usages.entry(*call).or_default().is_condition = true;
                }
                union(flows.into_iter().skip(1).collect())
            }
            FunctionEffect::Numeric(result) => {
                flows.iter().for_each(|f| self.record_comparison(f, &ComparedWith::Number));
                result
            }
            FunctionEffect::Computes(result) => result,
        };
        Flow { lineage, ..result }
    }

    fn analyze_in(
        &mut self,
        operand: &Expr,
        sign: &str,
        (list, is_answer): (&[Expr], bool),
        query: Option<&Query>,
        names: &SelectNames<'_>,
    ) {
        let left = self.analyze_row(operand, names);
        if let Some(query) = query {
            let right = self.analyze_subquery(query, names);
            self.compare_rows(sign, &left, &right);
        }
        for item in list {
            let right = self.analyze_row(item, names);
            if let ExprKind::Call(n, _) = &item.kind {
                self.usages.entry(*n).or_default().is_in_list = is_answer;
            }
            // The values of a list have no affinity; the operand keeps its own.
            let right: Vec<Flow> = right.into_iter().map(Flow::without_affinity).collect();
            self.compare_rows(sign, &left, &right);
        }
    }

    fn analyze_operation(
        &mut self,
        operator: &ExprOperator,
        parts: &[Expr],
        names: &SelectNames<'_>,
    ) -> Flow {
        let flows: Vec<Flow> = parts.iter().map(|p| self.analyze_expr(p, names)).collect();
        let lineage: Option<Vec<_>> = flows.iter().map(|f| f.lineage.clone()).collect();
        let is_integer = |f: &Flow| f.integer && !f.number && f.calls.is_empty();
        match (operator, flows.as_slice()) {
            (ExprOperator::Prefix("+"), [one]) => one.clone(),
            (ExprOperator::Collate(name), [one]) => {
                Flow { is_collated: !name.eq_ignore_ascii_case("binary"), ..one.clone() }
            }
            (ExprOperator::Prefix(sign), [one]) => {
                self.record_comparison(one, &ComparedWith::Number);
                let returns_integer = *sign == "~" || one.integer && one.calls.is_empty();
                if returns_integer { Flow::integer() } else { Flow::number() }
            }
            (ExprOperator::NullTest | ExprOperator::Match(_), _) => Flow::truth(),
            (ExprOperator::Between, [value, low, high]) => {
                self.record_flow_comparison(">=", value, low);
                self.record_flow_comparison("<=", value, high);
                Flow::truth()
            }
            (ExprOperator::Infix("||"), [_, _]) => Flow {
                lineage: lineage.and_then(|p| Lineage::new_operation("||", p)),
                ..Flow::text()
            },
            (ExprOperator::Infix("->" | "->>"), _) => Flow::default(),
            (ExprOperator::Infix(sign), [left, right]) => {
                self.record_comparison(left, &ComparedWith::Number);
                self.record_comparison(right, &ComparedWith::Number);
                if matches!(*sign, "&" | "|" | "<<" | ">>") {
                    return Flow::integer();
                }
                let returns_integer = is_integer(left) && is_integer(right);
                let result = if returns_integer { Flow::integer() } else { Flow::number() };
                Flow {
                    lineage: lineage.and_then(|parts| Lineage::new_operation(sign, parts)),
                    ..result
                }
            }
            _ => Flow::default(),
        }
    }

    /// Records the arguments of a call and the names that are visible to it. Returns the flow of
    /// the call's answer.
    fn analyze_call(&mut self, n: usize, args: &[Expr], names: &SelectNames<'_>) -> Flow {
        let mut keys = Vec::new();
        self.enclosing_calls.push(n);
        let flows: Vec<Flow> = args.iter().map(|arg| self.analyze_expr(arg, names)).collect();
        self.enclosing_calls.pop();
        for (arg, flow) in args.iter().zip(flows) {
            let name = match &strip_expr_parens(arg).kind {
                ExprKind::Column { column, .. } => Some(column.clone()),
                _ => None,
            };
            let origin = match flow.lineage.as_deref() {
                Some(Lineage::Column { table, column, .. }) if name.is_some() => {
                    Some(ColumnOrigin { table: table.clone(), column: column.clone() })
                }
                _ => None,
            };
            let lineage = flow.lineage.filter(|l| !l.instances().is_empty());
            keys.push(Key { text: column_sql(arg, self.sql), name, origin, base: None, lineage });
        }
        let group_terms = match self.aggregate_depth {
            0 => names.ancestors().flat_map(|n| n.group_terms.iter().cloned()).collect(),
            _ => Vec::new(),
        };
        let tables = names.ancestors().flat_map(|n| &n.tables).filter_map(|t| t.name.clone());
        let instances = self.list_reachable_instances(&keys);
        let connects_instances = |j: &&ColumnEquality| {
            [&j.left, &j.right].iter().all(|(instance, _)| instances.contains(instance))
        };
        let usage = CallUsage {
            available_columns: find_visible_columns(&instances, names),
            equalities: self.equalities.iter().filter(connects_instances).cloned().collect(),
            options: find_options_column(&self.calls[n], names),
            tables: tables.collect(),
            keys,
            group_terms,
            ..self.usages.remove(&n).unwrap_or_default()
        };
        self.usages.insert(n, usage);
        Flow { calls: [n].into(), ..Flow::default() }
    }

    /// Returns the instances that the keys depend on, and the instances joined to them.
    fn list_reachable_instances(&self, keys: &[Key]) -> Vec<usize> {
        let of_key = |k: &Key| -> Vec<usize> {
            let lineage = k.lineage.as_deref();
            lineage.map_or(Vec::new(), |l| l.instances().iter().map(|(n, _)| *n).collect())
        };
        let mut all: Vec<usize> = keys.iter().flat_map(of_key).collect();
        let mut at = 0;
        while let Some(one) = all.get(at).copied() {
            for join in &self.equalities {
                for (from, to) in [(&join.left, &join.right), (&join.right, &join.left)] {
                    if from.0 == one && !all.contains(&to.0) {
                        all.push(to.0);
                    }
                }
            }
            at += 1;
        }
        all
    }
}

/// Returns the visible columns of these instances.
fn find_visible_columns(instances: &[usize], names: &SelectNames<'_>) -> Vec<AvailableColumn> {
    if instances.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<AvailableColumn> = Vec::new();
    for table in names.ancestors().flat_map(|n| &n.tables) {
        for field in table.fields.iter().flatten() {
            let Some(Lineage::Column { instance, table: of, column }) =
                field.flow.lineage.as_deref()
            else {
                continue;
            };
            // In an inner scope, the name may refer to a different table.
            let named = names.find_column(table.name.as_deref(), &field.name);
            if instances.contains(instance)
                && named.is_some_and(|(_, same)| std::ptr::eq(same, field))
                && !found.iter().any(|f| f.instance == *instance && f.column == *column)
            {
                let query_column = (table.name.clone(), field.name.clone());
                let (table, column) = (of.clone(), column.clone());
                found.push(AvailableColumn { instance: *instance, table, column, query_column });
            }
        }
    }
    found
}

/// Returns the column that provides a call's options, if there is one.
fn find_options_column(call: &Call, names: &SelectNames<'_>) -> Option<OptionsColumn> {
    let Some(Choices::Column { table, column, .. }) = &call.options else { return None };
    if let Some((of, field)) = names.find_column(table.as_deref(), column) {
        if let Some(name) = of.and_then(|t| t.name.as_ref())
            && names.cte_fields(name).is_some()
        {
            return Some(OptionsColumn::Named(name.clone(), column.clone()));
        }
        if let Some(Lineage::Column { table, column, .. }) = field.flow.lineage.as_deref() {
            let (table, column) = (table.clone(), column.clone());
            return Some(OptionsColumn::Base(ColumnOrigin { table, column }));
        }
    }
    Some(OptionsColumn::Named(table.clone()?, column.clone()))
}

/// Returns an identifier for the names of a SELECT.
fn identify_names(names: &SelectNames<'_>) -> *const () {
    std::ptr::from_ref(names).cast()
}

fn find_name_flow(table: Option<&str>, column: &str, names: &SelectNames<'_>) -> Flow {
    match names.find_column(table, column) {
        Some((_, field)) => field.flow.clone(),
        None if ["true", "false"].iter().any(|w| column.eq_ignore_ascii_case(w)) => Flow::truth(),
        None => Flow::default(),
    }
}
