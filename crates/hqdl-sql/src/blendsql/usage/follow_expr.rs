//! Follows values through expressions and records comparisons.

use std::sync::Arc;

use crate::blendsql::aggregates::{is_of_rows, own};
use crate::blendsql::flow::{Does, Flow, does};
use crate::blendsql::lineage::Lineage;
use crate::blendsql::scope::{Affinity, ColumnOrigin, bare};
use crate::blendsql::terms::read_integer;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator, Query};
use crate::blendsql::usage::follow::{Follow, SelectNames};
use crate::blendsql::usage::{CallUsage, ComparedWith, Joined, Key, OptionsColumn, ReachedColumn};
use crate::blendsql::{Call, Choices, ReturnType, Subject, rewrite};
use hqdl_values::Type;

impl Follow<'_> {
    /// Follows a condition, of which only the truth matters.
    pub(in crate::blendsql) fn condition(&mut self, expr: &Expr, names: &SelectNames<'_>) {
        let flow = self.flow(expr, names);
        for call in &flow.calls {
            self.found.entry(*call).or_default().condition = true;
        }
    }

    pub(in crate::blendsql) fn note(&mut self, flow: &Flow, what: &ComparedWith) {
        for call in &flow.calls {
            let compared = &mut self.found.entry(*call).or_default().compared;
            if !compared.contains(what) {
                compared.push(what.clone());
            }
        }
    }

    /// Records the comparison of two values.
    pub(in crate::blendsql) fn meet(&mut self, sign: &str, left: &Flow, right: &Flow) {
        let equal = matches!(sign, "=" | "IS");
        for (side, other) in [(left, right), (right, left)] {
            if side.calls.is_empty() {
                continue;
            }
            let ordered = sign.starts_with(['<', '>']) && sign != "<>";
            for text in &other.texts {
                self.note(side, &ComparedWith::Text(text.clone()));
            }
            for column in &other.columns {
                if equal {
                    self.note(side, &ComparedWith::Column(column.origin.clone()));
                }
                let number = matches!(column.affinity, Some(Affinity::Integer | Affinity::Real));
                if ordered && number {
                    self.note(side, &ComparedWith::Number);
                }
            }
            let told = [
                (other.text, ComparedWith::Words),
                (other.whole || other.number, ComparedWith::Number),
                (other.is_truth(), ComparedWith::Truth),
            ];
            for (_, what) in told.iter().filter(|(is, _)| *is) {
                self.note(side, what);
            }
            for call in &side.calls {
                let beside = &mut self.found.entry(*call).or_default().beside;
                beside.extend(other.calls.iter().filter(|c| *c != call));
                beside.sort_unstable();
                beside.dedup();
            }
        }
    }

    /// Returns the flows of a row value, or the single flow of any other expression.
    fn row(&mut self, expr: &Expr, names: &SelectNames<'_>) -> Vec<Flow> {
        match &bare(expr).kind {
            ExprKind::Scalar(query) => self.values(query, names),
            ExprKind::Operation(ExprOperator::Row, parts) => {
                parts.iter().map(|p| self.flow(p, names)).collect()
            }
            _ => vec![self.flow(expr, names)],
        }
    }

    /// Returns the flows of a subquery's columns.
    fn values(&mut self, query: &Query, names: &SelectNames<'_>) -> Vec<Flow> {
        let fields = self.query(query, names, None).unwrap_or_default();
        // Remove the lineage: the columns belong to rows of the subquery, not to the current row.
        fields.into_iter().map(|f| Flow { lineage: None, ..f.flow }).collect()
    }

    fn meet_rows(&mut self, sign: &str, left: &[Flow], right: &[Flow]) {
        for (left, right) in left.iter().zip(right) {
            self.meet(sign, left, right);
        }
    }

    /// Follows an expression and returns its possible values.
    pub(in crate::blendsql) fn flow(&mut self, expr: &Expr, names: &SelectNames<'_>) -> Flow {
        let before = self.reads_rows_of.len();
        self.note_rows_read(expr, names);
        let flow = self.flow_of(expr, names);
        self.reads_rows_of.truncate(before);
        flow
    }

    /// Records the SELECTs whose rows or GROUP BY terms this expression reads; `SQLite` chooses no
    /// arbitrary row for them.
    fn note_rows_read(&mut self, expr: &Expr, names: &SelectNames<'_>) {
        if is_of_rows(expr) {
            // An aggregate belongs to the innermost SELECT that has one of its columns.
            let mut found: Vec<&SelectNames<'_>> = Vec::new();
            own(expr, &mut |e| {
                if let ExprKind::Column { table, column } = &e.kind {
                    found.extend(names.find_with_select(table.as_deref(), column).map(|f| f.0));
                }
            });
            let is_found = |here: &&SelectNames<'_>| found.iter().any(|f| std::ptr::eq(*f, *here));
            self.reads_rows_of.push(address(names.around().find(is_found).unwrap_or(names)));
        }
        let text = self.sql.get(expr.span.clone()).unwrap_or_default().trim();
        let is_term = |n: &&SelectNames<'_>| n.groups.as_ref().is_some_and(|g| g.is_term(text));
        self.reads_rows_of.extend(names.around().filter(is_term).map(address));
    }

    /// Returns the flow of a name. If its column has several values per group, records that for the
    /// enclosing calls.
    fn named(&mut self, table: Option<&str>, column: &str, names: &SelectNames<'_>) -> Flow {
        if let Some((select, of, field)) = names.find_with_select(table, column)
            && !self.asking.is_empty()
            && !self.reads_rows_of.contains(&address(select))
            && select.varies(of, field)
        {
            let written = table.map_or_else(|| column.to_owned(), |t| format!("{t}.{column}"));
            for call in &self.asking {
                self.found.entry(*call).or_default().varies.get_or_insert_with(|| written.clone());
            }
        }
        of_name(table, column, names)
    }

    fn flow_of(&mut self, expr: &Expr, names: &SelectNames<'_>) -> Flow {
        match &expr.kind {
            ExprKind::Paren(inner) => self.flow(inner, names),
            ExprKind::And(all) | ExprKind::Or(all) => {
                all.iter().for_each(|e| self.condition(e, names));
                Flow::truth()
            }
            ExprKind::Not(inner) => {
                self.condition(inner, names);
                Flow::truth()
            }
            ExprKind::Literal => self.literal(expr),
            ExprKind::Column { table, column } => self.named(table.as_deref(), column, names),
            ExprKind::Call(n, args) => self.call(*n, args, names),
            ExprKind::Compare(sign, left, right) => {
                let (a, b) = (self.row(left, names), self.row(right, names));
                self.meet_rows(sign, &a, &b);
                Flow::truth()
            }
            ExprKind::Cast(inner, kind) => self.cast(inner, kind, names),
            ExprKind::Case { operand, whens, otherwise } => {
                let operand = operand.as_ref().map(|o| self.flow(o, names));
                let mut value = Flow::default();
                for (when, then) in whens {
                    match &operand {
                        Some(operand) => {
                            let when = self.flow(when, names);
                            self.meet("=", operand, &when);
                        }
                        None => self.condition(when, names),
                    }
                    value = value.or(self.flow(then, names).plain());
                }
                if let Some(otherwise) = otherwise {
                    value = value.or(self.flow(otherwise, names).plain());
                }
                value
            }
            ExprKind::Function { name, window, filter, args } => {
                if let Some(filter) = filter {
                    self.condition(filter, names);
                }
                self.function(name, *window, args, names)
            }
            ExprKind::Exists(query) => {
                self.query(query, names, None);
                Flow::truth()
            }
            ExprKind::Scalar(query) => {
                self.values(query, names).into_iter().next().unwrap_or_default()
            }
            ExprKind::In { negated, operand, list, query, is_answer } => {
                let sign = if *negated { "<>" } else { "=" };
                self.within(operand, sign, (list, *is_answer), query.as_deref(), names);
                Flow::truth()
            }
            ExprKind::Operation(operator, parts) => self.operation(operator, parts, names),
        }
    }

    fn literal(&self, expr: &Expr) -> Flow {
        let text = self.sql[expr.span.clone()].trim();
        let lineage = Some(Arc::new(Lineage::Literal(text.to_owned())));
        let flow = if let Some(inner) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
            Flow { texts: vec![inner.replace("''", "'")], ..Flow::default() }
        } else if ["true", "false"].iter().any(|w| text.eq_ignore_ascii_case(w)) {
            Flow::truth()
        } else if text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            let whole = read_integer(expr, self.sql).is_some();
            if whole { Flow::whole() } else { Flow::number() }
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

    fn cast(&mut self, inner: &Expr, kind: &str, names: &SelectNames<'_>) -> Flow {
        let flow = self.flow(inner, names);
        let lower = kind.to_ascii_lowercase();
        let is = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        let (said, made) = if is(&["bool"]) {
            (Some(Type::Boolean), Flow::default())
        } else if is(&["int"]) {
            (Some(Type::Integer), Flow::whole())
        } else if is(&["real", "floa", "doub", "numeric", "decimal"]) {
            (Some(Type::Real), Flow::number())
        } else if is(&["char", "clob", "text"]) {
            // The answer is unchanged.
            (None, Flow { calls: flow.calls.clone(), text: true, ..Flow::default() })
        } else {
            (None, Flow::default())
        };
        for call in
            flow.calls.iter().filter(|n| self.calls[**n].ingredient.subject() == Subject::Document)
        {
            let usage = self.found.entry(*call).or_default();
            let said = said.map(|scalar| ReturnType { scalar, list: false });
            usage.said = usage.said.or(said);
        }
        let lineage = flow.lineage.and_then(|l| Lineage::op(&format!("cast {kind}"), vec![l]));
        Flow { lineage, ..made }
    }

    fn function(
        &mut self,
        name: &str,
        window: bool,
        args: &[Expr],
        names: &SelectNames<'_>,
    ) -> Flow {
        let aggregate = !window
            && (matches!(name, "count" | "sum" | "avg" | "total" | "group_concat" | "string_agg")
                || (matches!(name, "max" | "min") && args.len() == 1));
        self.aggregates += usize::from(aggregate);
        let flows: Vec<Flow> = args.iter().map(|a| self.flow(a, names)).collect();
        self.aggregates -= usize::from(aggregate);
        let pure = !window && Lineage::is_pure(name);
        let lineage: Option<Vec<_>> = flows.iter().map(|f| f.lineage.clone()).collect();
        let lineage = lineage.filter(|_| pure).and_then(|parts| Lineage::op(name, parts));
        let union =
            |flows: Vec<Flow>| flows.into_iter().map(Flow::plain).fold(Flow::default(), Flow::or);
        let made = match does(name) {
            Does::Passes(many) => union(flows.into_iter().take(many).collect()),
            Does::Orders => {
                if !window {
                    for pair in flows.windows(2) {
                        self.meet("<", &pair[0], &pair[1]);
                    }
                }
                if let ([one], false) = (flows.as_slice(), window) {
                    self.note_order(one);
                }
                // Arguments after the first of a window function do not affect the value's type.
                let many = if window { 1 } else { flows.len() };
                union(flows.into_iter().take(many).collect())
            }
            Does::NullIf => {
                if let [value, other] = flows.as_slice() {
                    self.meet("=", value, other);
                }
                union(flows.into_iter().take(1).collect())
            }
            Does::Chooses => {
                for call in flows.first().iter().flat_map(|f| &f.calls) {
                    self.found.entry(*call).or_default().condition = true;
                }
                union(flows.into_iter().skip(1).collect())
            }
            Does::Counts(made) => {
                let many = if window { 1 } else { flows.len() };
                flows.iter().take(many).for_each(|f| self.note(f, &ComparedWith::Number));
                made
            }
            Does::Gives(made) => made,
        };
        Flow { lineage, ..made }
    }

    fn within(
        &mut self,
        operand: &Expr,
        sign: &str,
        (list, is_answer): (&[Expr], bool),
        query: Option<&Query>,
        names: &SelectNames<'_>,
    ) {
        let left = self.row(operand, names);
        if let Some(query) = query {
            let right = self.values(query, names);
            self.meet_rows(sign, &left, &right);
        }
        for item in list {
            let right = self.row(item, names);
            if let ExprKind::Call(n, _) = &item.kind {
                self.found.entry(*n).or_default().set = is_answer;
            }
            // Values of a list have no affinity; the operand keeps its own.
            let right: Vec<Flow> = right.into_iter().map(Flow::plain).collect();
            self.meet_rows(sign, &left, &right);
        }
    }

    fn operation(
        &mut self,
        operator: &ExprOperator,
        parts: &[Expr],
        names: &SelectNames<'_>,
    ) -> Flow {
        let flows: Vec<Flow> = parts.iter().map(|p| self.flow(p, names)).collect();
        let lineage: Option<Vec<_>> = flows.iter().map(|f| f.lineage.clone()).collect();
        let is_whole = |f: &Flow| f.whole && !f.number && f.calls.is_empty();
        match (operator, flows.as_slice()) {
            (ExprOperator::Collate(_) | ExprOperator::Prefix("+"), [one]) => one.clone(),
            (ExprOperator::Prefix(sign), [one]) => {
                self.note(one, &ComparedWith::Number);
                let whole = *sign == "~" || one.whole && one.calls.is_empty();
                if whole { Flow::whole() } else { Flow::number() }
            }
            (ExprOperator::NullTest | ExprOperator::Match(_), _) => Flow::truth(),
            (ExprOperator::Between, [value, low, high]) => {
                self.meet(">=", value, low);
                self.meet("<=", value, high);
                Flow::truth()
            }
            (ExprOperator::Infix("||"), [_, _]) => {
                Flow { lineage: lineage.and_then(|p| Lineage::op("||", p)), ..Flow::text() }
            }
            (ExprOperator::Infix("->" | "->>"), _) => Flow::default(),
            (ExprOperator::Infix(sign), [left, right]) => {
                self.note(left, &ComparedWith::Number);
                self.note(right, &ComparedWith::Number);
                if matches!(*sign, "&" | "|" | "<<" | ">>") {
                    return Flow::whole();
                }
                let whole = is_whole(left) && is_whole(right);
                let made = if whole { Flow::whole() } else { Flow::number() };
                Flow { lineage: lineage.and_then(|parts| Lineage::op(sign, parts)), ..made }
            }
            _ => Flow::default(),
        }
    }

    /// Records the arguments of a call and the names that are visible to it.
    fn call(&mut self, n: usize, args: &[Expr], names: &SelectNames<'_>) -> Flow {
        let mut keys = Vec::new();
        self.asking.push(n);
        let flows: Vec<Flow> = args.iter().map(|arg| self.flow(arg, names)).collect();
        self.asking.pop();
        for (arg, flow) in args.iter().zip(flows) {
            let name = match &bare(arg).kind {
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
            keys.push(Key {
                text: rewrite::name_text(arg, self.sql),
                name,
                origin,
                base: None,
                lineage,
            });
        }
        let grouped = match self.aggregates {
            0 => names.around().flat_map(|n| n.grouped.iter().cloned()).collect(),
            _ => Vec::new(),
        };
        let tables = names.around().flat_map(|n| &n.tables).filter_map(|t| t.name.clone());
        let instances = self.instances_of(&keys);
        let joins = |j: &&Joined| {
            [&j.left, &j.right].iter().all(|(instance, _)| instances.contains(instance))
        };
        let found = CallUsage {
            reached: reached(&instances, names),
            joined: self.joined.iter().filter(joins).cloned().collect(),
            options: options(&self.calls[n], names),
            tables: tables.collect(),
            keys,
            grouped,
            ..self.found.remove(&n).unwrap_or_default()
        };
        self.found.insert(n, found);
        Flow { calls: [n].into(), ..Flow::default() }
    }

    /// Returns the instances that the keys depend on, and those joined to them.
    fn instances_of(&self, keys: &[Key]) -> Vec<usize> {
        let of_key = |k: &Key| -> Vec<usize> {
            let lineage = k.lineage.as_deref();
            lineage.map_or(Vec::new(), |l| l.instances().iter().map(|(n, _)| *n).collect())
        };
        let mut all: Vec<usize> = keys.iter().flat_map(of_key).collect();
        let mut at = 0;
        while let Some(one) = all.get(at).copied() {
            for join in &self.joined {
                for (here, there) in [(&join.left, &join.right), (&join.right, &join.left)] {
                    if here.0 == one && !all.contains(&there.0) {
                        all.push(there.0);
                    }
                }
            }
            at += 1;
        }
        all
    }
}

/// Returns the visible columns of these instances.
fn reached(instances: &[usize], names: &SelectNames<'_>) -> Vec<ReachedColumn> {
    if instances.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<ReachedColumn> = Vec::new();
    for table in names.around().flat_map(|n| &n.tables) {
        for field in table.fields.iter().flatten() {
            let Some(Lineage::Column { instance, table: of, column }) =
                field.flow.lineage.as_deref()
            else {
                continue;
            };
            // The name may refer to a nearer table.
            let named = names.find(table.name.as_deref(), &field.name);
            if instances.contains(instance)
                && named.is_some_and(|(_, same)| std::ptr::eq(same, field))
                && !found.iter().any(|f| f.instance == *instance && f.column == *column)
            {
                let at = (table.name.clone(), field.name.clone());
                let (table, column) = (of.clone(), column.clone());
                found.push(ReachedColumn { instance: *instance, table, column, at });
            }
        }
    }
    found
}

/// Returns the column of a call's options.
fn options(call: &Call, names: &SelectNames<'_>) -> Option<OptionsColumn> {
    let Some(Choices::Column { table, column, .. }) = &call.options else { return None };
    if let Some((of, field)) = names.find(table.as_deref(), column) {
        if let Some(name) = of.and_then(|t| t.name.as_ref())
            && names.cte(name).is_some()
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
fn address(names: &SelectNames<'_>) -> *const () {
    std::ptr::from_ref(names).cast()
}

/// Returns the flow of a name.
fn of_name(table: Option<&str>, column: &str, names: &SelectNames<'_>) -> Flow {
    match names.find(table, column) {
        Some((_, field)) => field.flow.clone(),
        None if ["true", "false"].iter().any(|w| column.eq_ignore_ascii_case(w)) => Flow::truth(),
        None => Flow::default(),
    }
}
