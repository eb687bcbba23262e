//! Rewrites syntax of earlier versions, and syntax that users commonly write, to the current one,
//! before anything is parsed:
//!
//! | written | read as |
//! |---|---|
//! | `FROM a JOIN {{LLMJoin('a::x', 'b::y')}}` | `FROM a JOIN b ON {{…}}` |
//! | the same, if FROM already contains both tables | another condition of the preceding join |
//! | `'a::x'`, if FROM has `a AS t` | `t.x` |
//! | `{{LLMQA('q', 'a::x')}}`, if no FROM has `a` | `(SELECT x FROM a)` |
//! | `FROM VALUES {{…}}` | `FROM (VALUES {{…}})` |
//! | `FROM {{LLMQA(…)}}` | `FROM (SELECT {{…}} AS value)`; a list becomes one row per value |
//! | `FROM (…) AS t(a, b)`, `FROM VALUES {{…}} AS t(a, b)` | `FROM (WITH t_(a, b) AS (…) SELECT * FROM t_) AS t` |
//! | `{{…}}::INT` | `CAST({{…}} AS INT)` |
//!
//! The tables of a FROM clause are read from its tokens, at each depth of parentheses and inside
//! the queries that are arguments of calls.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::lexer::{Brackets, Lexeme, Token, next_token};
use super::{Argument, Call, Choices, Subject};
use hqdl_values::sql::quote_name;

/// A byte range of the query, and the text that replaces it.
pub(super) type Edit = (Range<usize>, String);

/// Words after a table that are not its alias.
const NO_ALIAS: [&str; 18] = [
    "ON", "USING", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "OUTER", "WHERE",
    "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "INDEXED", "NOT",
];

/// Returns the edits that rewrite a query to the current syntax. They do not overlap.
pub(super) fn collect_edits(sql: &str, calls: &[Call]) -> Vec<Edit> {
    let mut reader = FromReader { sql, levels: Vec::new(), edits: Vec::new() };
    reader.read_part(0..sql.len(), calls, None);
    reader.edits
}

/// The tokens between two parentheses, without those in nested parentheses.
struct Level {
    tokens: Vec<Token>,
    /// Indexes of the operators between SELECTs, such as UNION.
    parts: Vec<usize>,
    /// Tables of the SELECTs that were looked up so far, by the index of their first token.
    read: BTreeMap<usize, Rc<[FromItemText]>>,
    /// The enclosing level, and the number of its tokens before this one.
    outer: Option<(usize, usize)>,
}

/// A table in a FROM clause.
struct FromItemText {
    table: String,
    alias: Option<String>,
}

struct FromReader<'s> {
    sql: &'s str,
    levels: Vec<Level>,
    edits: Vec<Edit>,
}

impl FromReader<'_> {
    /// Reads a part of the text and collects its edits; `calls` contains its outermost calls.
    fn read_part(&mut self, span: Range<usize>, calls: &[Call], outer: Option<(usize, usize)>) {
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut at = span.start;
        let first = self.levels.len();
        let mut open = vec![self.add_level(outer)];
        let mut left =
            calls.iter().filter(|c| span.start <= c.span.start && c.span.end <= span.end);
        let mut call = left.next();
        while let Ok(Some(mut token)) = next_token(self.sql, at, Brackets::Name) {
            if token.start >= span.end {
                break;
            }
            let here = open.last().copied().unwrap_or_default();
            if let Some(found) = call.filter(|c| c.span.start <= token.start) {
                token =
                    Token { lexeme: Lexeme::Call, start: found.span.start, end: found.span.end };
                places.push((here, self.levels[here].tokens.len()));
                call = left.next();
            }
            at = token.end;
            if token.is_symbol(b')') && open.len() > 1 {
                open.pop();
            }
            let here = open.last().copied().unwrap_or_default();
            self.levels[here].push(self.sql, token);
            if token.is_symbol(b'(') {
                let outer = (here, self.levels[here].tokens.len());
                open.push(self.add_level(Some(outer)));
            }
        }
        for level in first..self.levels.len() {
            self.rewrite_column_names(level);
        }
        let found = calls.iter().filter(|c| span.start <= c.span.start && c.span.end <= span.end);
        // Tables that earlier joins have added to the FROM clause of a SELECT.
        let mut added: Vec<((usize, usize), FromItemText)> = Vec::new();
        for (call, (level, at)) in found.zip(places) {
            self.rewrite_call(call, level, at, &mut added);
            let queries = call.values.iter().filter_map(|v| match v {
                Argument::Query(span) | Argument::Sql(span) => Some(span.clone()),
                Argument::Column { .. } => None,
            });
            let options = call.options.iter().filter_map(|o| match o {
                Choices::Query(span) => Some(span.clone()),
                _ => None,
            });
            for query in queries.chain(options) {
                self.read_part(query, &call.inner, Some((level, at)));
            }
        }
    }

    fn add_level(&mut self, outer: Option<(usize, usize)>) -> usize {
        let level = Level { tokens: Vec::new(), parts: Vec::new(), read: BTreeMap::new(), outer };
        self.levels.push(level);
        self.levels.len() - 1
    }

    fn rewrite_call(
        &mut self,
        call: &Call,
        level: usize,
        at: usize,
        added: &mut Vec<((usize, usize), FromItemText)>,
    ) {
        if call.ingredient.subject() == Subject::Document {
            return;
        }
        let tokens = &self.levels[level].tokens;
        let before = |n: usize| at.checked_sub(n).and_then(|n| tokens.get(n)).copied();
        let is = |n: usize, word: &str| before(n).is_some_and(|t| t.is_word(self.sql, word));
        if call.ingredient.subject() == Subject::Pair && is(1, "JOIN") {
            self.rewrite_join(call, level, at, added);
        } else if call.is_values_row && is(1, "VALUES") && (is(2, "FROM") || is(2, "JOIN")) {
            let values = before(1).map_or(call.span.start, |t| t.start);
            if let Some((own, columns)) = self.parse_column_names(level, at + 1, &call.span) {
                let begin = format!("(WITH {own}{} AS (", &self.sql[columns.clone()]);
                let end = format!(") SELECT * FROM {own})");
                self.edits.push((values..values, begin));
                self.edits.push((call.span.end..call.span.end, end));
                self.edits.push((columns, String::new()));
            } else {
                self.edits.push((values..values, "(".to_owned()));
                self.edits.push((call.span.end..call.span.end, ")".to_owned()));
            }
        } else if call.ingredient.subject() == Subject::Rows
            && !call.is_values_row
            && (is(1, "FROM") || is(1, "JOIN") || before(1).is_some_and(|t| t.is_symbol(b',')))
            && self.levels[level].is_in_from(self.sql, at)
        {
            let list = call.quantifier.is_some() || call.return_type.is_some_and(|t| t.is_list);
            let (mut open, mut close) = if list {
                ("(SELECT value FROM json_each(".to_owned(), "))".to_owned())
            } else {
                ("(SELECT ".to_owned(), " AS value)".to_owned())
            };
            if let Some((own, columns)) = self.parse_column_names(level, at + 1, &call.span) {
                open = format!("(WITH {own}{} AS {open}", &self.sql[columns.clone()]);
                close.push_str(&format!(" SELECT * FROM {own})"));
                self.edits.push((columns, String::new()));
            }
            self.edits.push((call.span.start..call.span.start, open));
            self.edits.push((call.span.end..call.span.end, close));
        } else if let (Some(colons), Some(kind)) = (tokens.get(at + 1), tokens.get(at + 2))
            && colons.lexeme == Lexeme::Colons
            && kind.lexeme == Lexeme::Word
        {
            let kind = kind.text(self.sql);
            let cast = (colons.start..colons.start + 2 + kind.len(), format!(" AS {kind})"));
            self.edits.push((call.span.start..call.span.start, "CAST(".to_owned()));
            self.edits.push(cast);
        }
        for value in &call.values {
            if let Argument::Column { table: Some(table), column, span } = value {
                self.rewrite_column(call, level, at, (table, column, span));
            }
        }
    }

    /// Rewrites `FROM (SELECT …) AS t(a, b)`, which names the subquery's columns.
    fn rewrite_column_names(&mut self, level: usize) {
        let tokens = &self.levels[level].tokens;
        let queries: Vec<usize> = (1..tokens.len())
            .filter(|at| {
                let [before, open] = [tokens[at - 1], tokens[*at]];
                let query = ["SELECT", "VALUES", "WITH"].iter().any(|word| {
                    next_token(self.sql, open.end, Brackets::Name)
                        .is_ok_and(|t| t.is_some_and(|t| t.is_word(self.sql, word)))
                });
                let item = before.is_word(self.sql, "FROM")
                    || before.is_word(self.sql, "JOIN")
                    || before.is_symbol(b',') && self.levels[level].is_in_from(self.sql, *at);
                open.is_symbol(b'(') && query && item
            })
            .collect();
        for at in queries {
            let tokens = &self.levels[level].tokens;
            let Some(closing) = tokens.get(at + 1) else { continue };
            let (open, close) = (tokens[at].start, closing.end);
            let Some((own, columns)) = self.parse_column_names(level, at + 2, &(open..close))
            else {
                continue;
            };
            let begin = format!("(WITH {own}{} AS ", &self.sql[columns.clone()]);
            self.edits.push((open..open, begin));
            self.edits.push((close..close, format!(" SELECT * FROM {own})")));
            self.edits.push((columns, String::new()));
        }
    }

    /// Parses the column names in `[AS] t (a, b)`, which begins at token `at`. Returns a quoted
    /// name that does not occur in `of`, and the byte range of `(a, b)`.
    fn parse_column_names(
        &self,
        level: usize,
        at: usize,
        of: &Range<usize>,
    ) -> Option<(String, Range<usize>)> {
        let tokens = &self.levels[level].tokens;
        let at = at + usize::from(tokens.get(at)?.is_word(self.sql, "AS"));
        let is_name = |t: &&Token| matches!(t.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name);
        let named = tokens.get(at).filter(is_name)?;
        let open = tokens.get(at + 1).filter(|t| t.is_symbol(b'('))?;
        let close = tokens.get(at + 2).filter(|t| t.is_symbol(b')'))?;
        if NO_ALIAS.iter().any(|word| named.is_word(self.sql, word)) {
            return None;
        }
        let mut own = named.unquoted_text(self.sql);
        let names = |own: &str| {
            let mut at = of.start;
            while let Ok(Some(token)) = next_token(self.sql, at, Brackets::Name) {
                if token.start >= of.end {
                    return false;
                }
                at = token.end;
                if token.unquoted_text(self.sql).eq_ignore_ascii_case(own) {
                    return true;
                }
            }
            false
        };
        while names(&own) {
            own.push('_');
        }
        Some((quote_name(&own), open.start..close.end))
    }

    /// Rewrites the table in `'t::c'` to its alias. If no FROM clause contains the table, a
    /// question about rows gets a subquery.
    fn rewrite_column(
        &mut self,
        call: &Call,
        level: usize,
        at: usize,
        (table, column, span): (&str, &str, &Range<usize>),
    ) {
        let mut here = Some((level, at));
        while let Some((level, at)) = here {
            let items = self.levels[level].read_from_items(self.sql, at);
            if items.iter().any(|i| i.name().eq_ignore_ascii_case(table)) {
                return;
            }
            let mut aliased = items.iter().filter(|i| i.table.eq_ignore_ascii_case(table));
            if let (Some(item), None) = (aliased.next(), aliased.next()) {
                let new = format!("{}.{}", quote_name(item.name()), quote_name(column));
                self.edits.push((span.clone(), new));
                return;
            }
            here = self.levels[level].outer;
        }
        if call.ingredient.subject() == Subject::Rows {
            // SQLite reads an unknown name in double quotes as a text unless its table is named.
            let new = format!("(SELECT {1}.{0} FROM {1})", quote_name(column), quote_name(table));
            self.edits.push((span.clone(), new));
        }
    }

    /// Rewrites `JOIN {{LLMJoin(…)}}`: inserts the joined table. If FROM already contains both
    /// tables, adds the call to the condition of the preceding join.
    fn rewrite_join(
        &mut self,
        call: &Call,
        level: usize,
        at: usize,
        added: &mut Vec<((usize, usize), FromItemText)>,
    ) {
        let tokens = &self.levels[level].tokens;
        let select = self.levels[level].select_range(at).start;
        let read = parse_from_items(self.sql, &tokens[select..at]);
        let joined: Vec<String> =
            call.values.iter().filter_map(|v| self.find_join_table(v)).collect();
        let is_read = |table: &str| {
            let added = added.iter().filter(|(of, _)| *of == (level, select)).map(|(_, item)| item);
            read.iter().chain(added).any(|i| {
                i.name().eq_ignore_ascii_case(table) || i.table.eq_ignore_ascii_case(table)
            })
        };
        if let Some(table) = joined.iter().rev().find(|t| !is_read(t)) {
            let on = format!("{} ON ", quote_name(table));
            self.edits.push((call.span.start..call.span.start, on));
            added.push(((level, select), FromItemText { table: table.clone(), alias: None }));
            return;
        }
        // Skip INNER or CROSS, then search backward for the preceding join.
        let Some(mut end) = at.checked_sub(1) else { return };
        let word = |n: usize, word: &str| tokens[n].is_word(self.sql, word);
        let mut first = tokens[end].start;
        while end > 0 && (word(end - 1, "INNER") || word(end - 1, "CROSS")) {
            end -= 1;
            first = tokens[end].start;
        }
        let outer = ["LEFT", "RIGHT", "FULL", "OUTER", "NATURAL"];
        if end == 0 || outer.iter().any(|w| word(end - 1, w)) {
            return;
        }
        let mut condition = None;
        let mut start = end;
        let before = loop {
            let Some(n) = start.checked_sub(1) else { return };
            start = n;
            if word(n, "ON") {
                condition = Some(n);
            }
            if word(n, "USING") || word(n, "FROM") {
                return;
            }
            if word(n, "JOIN") || tokens[n].is_symbol(b',') && condition.is_none() {
                break n;
            }
        };
        let as_written = tokens[at - 1].end;
        let last = tokens[end - 1];
        let is_call = last.lexeme == Lexeme::Call && before + 2 == end;
        let edit = match condition {
            Some(on) => {
                let after_on = tokens[on].end;
                self.edits.push((after_on..after_on, " (".to_owned()));
                self.edits.push((last.end..last.end, ")".to_owned()));
                "AND"
            }
            None if is_call => "AND",
            None => "ON",
        };
        self.edits.push((first..as_written, edit.to_owned()));
    }

    /// Returns the table that one side of a join names.
    fn find_join_table(&self, value: &Argument) -> Option<String> {
        match value {
            Argument::Column { table, .. } => table.clone(),
            Argument::Sql(span) => {
                let (table, column) = self.sql.get(span.clone())?.split_once('.')?;
                let simple = |s: &str| s.chars().all(|c| c.is_alphanumeric() || c == '_');
                (simple(table) && simple(column)).then(|| table.to_owned())
            }
            Argument::Query(_) => None,
        }
    }
}

impl FromItemText {
    /// Returns the name that qualifies the table's columns.
    fn name(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.table)
    }
}

impl Level {
    fn push(&mut self, sql: &str, token: Token) {
        if ["UNION", "INTERSECT", "EXCEPT"].iter().any(|w| token.is_word(sql, w)) {
            self.parts.push(self.tokens.len());
        }
        self.tokens.push(token);
    }

    /// Returns the range of the SELECT that contains token `at`.
    fn select_range(&self, at: usize) -> Range<usize> {
        let next = self.parts.partition_point(|part| *part < at);
        let first = next.checked_sub(1).map_or(0, |n| self.parts[n] + 1);
        first..self.parts.get(next).copied().unwrap_or(self.tokens.len())
    }

    /// Returns true if token `at` is in the FROM clause of its SELECT.
    fn is_in_from(&self, sql: &str, at: usize) -> bool {
        const CLAUSES: [&str; 8] =
            ["FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "ON"];
        let before = &self.tokens[self.select_range(at).start..at];
        let clause = before.iter().rev().find(|t| CLAUSES.iter().any(|w| t.is_word(sql, w)));
        clause.is_some_and(|t| t.is_word(sql, "FROM"))
            || before.last().is_some_and(|t| t.is_word(sql, "JOIN"))
    }

    /// Returns the tables of the SELECT that contains token `at`.
    fn read_from_items(&mut self, sql: &str, at: usize) -> Rc<[FromItemText]> {
        let select = self.select_range(at);
        let tokens = &self.tokens;
        let read = || parse_from_items(sql, &tokens[select.clone()]).into();
        Rc::clone(self.read.entry(select.start).or_insert_with(read))
    }
}

/// Returns what a SELECT reads: tables with their names, and queries and functions with their
/// aliases.
fn parse_from_items(sql: &str, tokens: &[Token]) -> Vec<FromItemText> {
    const END: [&str; 6] = ["WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT"];
    let is_name = |t: &Token| matches!(t.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name);
    let is_alias = |t: &&Token| is_name(t) && !NO_ALIAS.iter().any(|w| t.is_word(sql, w));
    let Some(from) = tokens.iter().position(|t| t.is_word(sql, "FROM")) else { return Vec::new() };
    let mut found = Vec::new();
    let mut at = from;
    while let Some(token) = tokens.get(at) {
        if END.iter().any(|w| token.is_word(sql, w)) {
            break;
        }
        at += 1;
        if token.is_symbol(b')') {
            let marked = usize::from(tokens.get(at).is_some_and(|t| t.is_word(sql, "AS")));
            found.extend(tokens.get(at + marked).filter(|t| is_alias(t)).map(|t| {
                let name = t.unquoted_text(sql);
                FromItemText { table: name.clone(), alias: Some(name) }
            }));
        }
        let begins = token.is_symbol(b',') || token.is_word(sql, "JOIN") || at == from + 1;
        let Some(mut table) = tokens.get(at).filter(|t| begins && is_name(t)) else { continue };
        if tokens.get(at + 1).is_some_and(|t| t.is_symbol(b'.')) {
            let Some(second) = tokens.get(at + 2) else { break };
            table = second;
            at += 2;
        }
        at += 1;
        if tokens.get(at).is_some_and(|t| t.is_word(sql, "AS")) {
            at += 1;
        }
        let alias = tokens.get(at).filter(|t| is_alias(t)).map(|t| t.unquoted_text(sql));
        found.push(FromItemText { table: table.unquoted_text(sql), alias });
    }
    found
}
