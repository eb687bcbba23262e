//! Queries and their clauses.

use super::parser::{
    ExprShape, Parser, Piece, ResultOf, SuqlSelect, SuqlTable, TableOf, joined, unsaid,
};
use super::text::{Part, Text};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Lexeme;

impl Parser<'_> {
    /// The whole text: one query.
    pub fn statement(&mut self) -> Result<Text, SqlError> {
        // What is no query is refused where every query is.
        if !self.query_at(0) && !self.peek().is_some_and(|t| t.lexeme == Lexeme::Call) {
            return Ok(vec![Part::Old(0..self.sql.len())]);
        }
        let start = self.here();
        let query = if self.query_at(0) { self.query()? } else { self.expr()?.text };
        if let Some(Part::Rows(span, table, _)) = query.iter().find(|p| matches!(p, Part::Rows(..)))
        {
            let message = format!("no table here is called `{table}`");
            return Err(SqlError::new(span.clone(), message, "its rows are counted here"));
        }
        let end = self.before();
        let ended = self.symbol(b';');
        if self.peek().is_some() && !ended {
            return Err(self.expected("the query's end"));
        }
        let query = Piece::new(query, start..end);
        Ok(joined(0, vec![query], self.sql.len()))
    }

    /// A query with its WITH, ORDER BY and LIMIT.
    pub fn query(&mut self) -> Result<Text, SqlError> {
        self.query_of(false)
    }

    /// A query; whether its rows may have no columns, as behind EXISTS.
    pub fn query_of(&mut self, bare: bool) -> Result<Text, SqlError> {
        let outer = std::mem::replace(&mut self.may_unnest, false);
        self.selects.push(SuqlSelect::default());
        let common = self.common.len();
        let query = self.clauses(bare);
        self.common.truncate(common);
        let select = self.selects.pop();
        self.truths = select.map(|select| select.own_truths()).unwrap_or_default();
        self.may_unnest = outer;
        query
    }

    fn clauses(&mut self, bare: bool) -> Result<Text, SqlError> {
        let start = self.here();
        let mut pieces = Vec::new();
        if self.word("WITH") {
            self.word("RECURSIVE");
            loop {
                let name = self.take()?.content(self.sql);
                let renamed = self.symbol(b'(');
                if renamed {
                    while !self.symbol(b')') {
                        self.take()?;
                    }
                }
                self.expect_word("AS")?;
                self.word("NOT");
                self.word("MATERIALIZED");
                self.expect(b'(')?;
                let at = self.here();
                let query = self.deeper(Self::query)?;
                pieces.push(Piece::new(query, at..self.before()));
                let truths = std::mem::take(&mut self.truths);
                self.common.push((name, if renamed { Vec::new() } else { truths }));
                self.expect(b')')?;
                if !self.symbol(b',') {
                    break;
                }
            }
        }
        self.body(&mut pieces, bare)?;
        while ["UNION", "INTERSECT", "EXCEPT"].iter().any(|w| self.is_word(w)) {
            self.at += 1;
            if self.is_word("DISTINCT") {
                let word = self.take()?;
                pieces.push(Piece::new(Vec::new(), word.span()));
            }
            self.word("ALL");
            self.body(&mut pieces, bare)?;
            // What one of the queries has, another may not.
            if let Some(select) = self.selects.last_mut() {
                select.results.clear();
            }
        }
        if self.words(&["ORDER", "BY"]) {
            self.may_unnest = true;
            let terms = self.order()?;
            pieces.extend(terms);
            self.may_unnest = false;
        }
        let end = self.before();
        let mut text = joined(start, pieces, end);
        text.extend(self.limits()?);
        if let Some(word) = self.peek().filter(|t| t.is_word(self.sql, "FOR")) {
            return Err(unsaid(word.span(), "a lock of rows", "a query only reads"));
        }
        if let Some(select) = self.selects.last() {
            self.counted(&mut text, select)?;
            rename(&mut text, select);
        }
        // What is left may mean something of a query around.
        for part in &mut text {
            if let Part::Column(span, table, column) = part {
                *part = Part::Inner(span.clone(), table.take(), std::mem::take(column));
            }
        }
        Ok(text)
    }

    /// One SELECT, VALUES, or a query in parentheses.
    fn body(&mut self, pieces: &mut Vec<Piece>, bare: bool) -> Result<(), SqlError> {
        if self.is(b'(') {
            let start = self.here();
            self.at += 1;
            let query = self.deeper(|p| p.query_of(bare))?;
            let end = self.expect(b')')?;
            pieces.push(Piece::filled("SELECT * FROM ({})", vec![query], start..end));
            return Ok(());
        }
        if self.word("VALUES") {
            loop {
                pieces.push(self.expr()?);
                if !self.symbol(b',') {
                    return Ok(());
                }
            }
        }
        self.expect_word("SELECT")?;
        let from = pieces.len();
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        self.word("ALL");
        if self.is_word("DISTINCT") {
            let word = self.take()?;
            if self.is_word("ON") {
                let help = "name the columns that it shows, with the rows' order behind them";
                return Err(unsaid(word.start..self.here() + 2, "DISTINCT ON", help));
            }
        }
        self.may_unnest = true;
        if self.is_word("FROM") {
            // PostgreSQL's rows may have no columns: EXISTS (SELECT FROM t).
            let at = self.here();
            if !bare {
                let help = "name a column, or write SELECT 1 FROM";
                return Err(unsaid(
                    at..self.peek().map_or(at, |t| t.end),
                    "a row without columns",
                    help,
                ));
            }
            pieces.push(Piece::new(vec![Part::New("1 ".to_owned(), at..at)], at..at));
        } else {
            self.results(pieces)?;
        }
        self.may_unnest = false;
        if self.is_word("INTO") {
            let word = self.take()?;
            return Err(unsaid(word.span(), "SELECT INTO", "a query only reads"));
        }
        let has_from = self.word("FROM");
        if has_from {
            let items = self.from()?;
            pieces.extend(items);
        }
        let end = self.before();
        let slot = pieces.len();
        if self.word("WHERE") {
            pieces.push(self.expr()?);
        }
        if self.words(&["GROUP", "BY"]) {
            self.may_unnest = true;
            pieces.extend(self.list()?);
            self.may_unnest = false;
        }
        if self.word("HAVING") {
            pieces.push(self.expr()?);
        }
        if self.word("WINDOW") {
            loop {
                self.take()?;
                self.expect_word("AS")?;
                self.expect(b'(')?;
                self.window(pieces)?;
                if !self.symbol(b',') {
                    break;
                }
            }
        }
        let Some(select) = self.selects.last() else { return Ok(()) };
        let added = Self::unnested_text(select, end, has_from);
        for piece in &mut pieces[from..] {
            self.counted(&mut piece.text, select)?;
            rename(&mut piece.text, select);
        }
        if !added.is_empty() {
            pieces.insert(slot, Piece::new(added, end..end));
        }
        Ok(())
    }

    /// The result columns of a SELECT.
    fn results(&mut self, pieces: &mut Vec<Piece>) -> Result<(), SqlError> {
        loop {
            let mut item = self.expr()?;
            Self::no_interval(&item)?;
            let mut result = match item.text.as_slice() {
                [Part::Column(_, table, column)] => {
                    Some((column.clone(), ResultOf::Column(table.clone(), column.clone())))
                }
                _ => (item.shape == ExprShape::Boolean).then(|| (String::new(), ResultOf::Truth)),
            };
            if &self.sql[item.span.clone()] == "*" {
                item.text = vec![Part::Star(item.span.clone(), None)];
                result = Some((String::new(), ResultOf::All));
            }
            pieces.push(item);
            let before = self.at;
            self.result_alias(&mut pieces[..])?;
            let alias = self.tokens.get(self.at - 1).filter(|_| self.at > before);
            let alias = alias.map(|token| token.content(self.sql));
            if let (Some((name, of)), Some(select)) = (result, self.selects.last_mut()) {
                select.results.push((alias.unwrap_or(name), of));
            }
            if !self.symbol(b',') {
                return Ok(());
            }
        }
    }

    /// Whether a column of the tables around is true or false for certain: one of a query
    /// in FROM, or of a common table expression, that says so.
    pub fn is_truth(&self, table: Option<&str>, column: &str) -> bool {
        let Some(table) = table else {
            return self.selects.last().is_some_and(|select| select.is_truth(None, column));
        };
        let of = |select: &&SuqlSelect| select.named(table).is_some();
        let select = self.selects.iter().rev().find(of);
        select.is_some_and(|select| select.is_truth(Some(table), column))
    }

    /// The alias of a result column; an element has its array's name without one.
    fn result_alias(&mut self, pieces: &mut [Piece]) -> Result<(), SqlError> {
        if self.word("AS") {
            self.take()?;
            return Ok(());
        }
        if !self.is_word("INTO") && self.peek().is_some_and(|t| self.is_name(t)) {
            self.at += 1;
            return Ok(());
        }
        let Some(last) = pieces.last_mut() else { return Ok(()) };
        let end = last.span.end;
        let name = match last.text.as_slice() {
            [Part::New(text, _)] if text.ends_with(".value") => Some("unnest".to_owned()),
            [Part::Column(_, _, column)] => Some(column.clone()),
            _ => None,
        };
        if let Some(name) = name {
            // Told apart when it is known whether the column is an element.
            let mark = Part::New(format!("\u{0}{name}"), end..end);
            last.text.push(mark);
        }
        Ok(())
    }

    /// The terms of ORDER BY.
    pub fn order(&mut self) -> Result<Vec<Piece>, SqlError> {
        let mut terms = Vec::new();
        loop {
            terms.push(self.expr()?);
            let _ = self.word("ASC") || self.word("DESC");
            if self.is_word("USING") {
                let word = self.take()?;
                return Err(unsaid(word.span(), "ORDER BY … USING", "write ASC or DESC"));
            }
            if self.word("NULLS") && !self.word("FIRST") {
                self.expect_word("LAST")?;
            }
            if !self.symbol(b',') {
                return Ok(terms);
            }
        }
    }

    /// LIMIT, OFFSET and FETCH, in any order.
    fn limits(&mut self) -> Result<Text, SqlError> {
        let start = self.before();
        let (mut limit, mut offset): (Option<Text>, Option<Text>) = (None, None);
        let mut straight = true;
        loop {
            let at = self.here();
            if self.word("LIMIT") {
                straight &= offset.is_none() && limit.is_none();
                if self.is_word("ALL") {
                    let all = self.take()?;
                    limit = Some(vec![Part::New("-1".to_owned(), all.span())]);
                    straight = false;
                } else {
                    limit = Some(self.expr()?.text);
                }
            } else if self.word("OFFSET") {
                straight &= limit.is_some();
                offset = Some(self.expr()?.text);
                if self.word("ROWS") || self.word("ROW") {
                    straight = false;
                }
            } else if self.word("FETCH") {
                straight = false;
                let _ = self.word("FIRST") || self.word("NEXT");
                limit = Some(if self.is_word("ROW") || self.is_word("ROWS") {
                    vec![Part::New("1".to_owned(), at..at)]
                } else {
                    self.binary(super::expr::OTHER)?.text
                });
                let _ = self.word("ROWS") || self.word("ROW");
                if self.is_word("WITH") {
                    return Err(unsaid(at..self.here() + 4, "WITH TIES", ""));
                }
                self.expect_word("ONLY")?;
            } else {
                break;
            }
        }
        if limit.is_none() && offset.is_none() {
            return Ok(Vec::new());
        }
        let end = self.before();
        if straight && plain(limit.as_ref()) && plain(offset.as_ref()) {
            return Ok(vec![Part::Old(start..end)]);
        }
        let all = vec![Part::New("-1".to_owned(), start..end)];
        let mut pieces = vec![limit.unwrap_or(all)];
        let words = if offset.is_some() { " LIMIT {} OFFSET {}" } else { " LIMIT {}" };
        pieces.extend(offset);
        Ok(Piece::filled(words, pieces, start..end).text)
    }
}

impl SuqlSelect {
    /// The table that the query calls so.
    pub fn named(&self, table: &str) -> Option<&SuqlTable> {
        let is = |name: &String| name.eq_ignore_ascii_case(table);
        self.tables.iter().find(|table| table.name.as_ref().is_some_and(is))
    }

    /// Whether a column of its tables is true or false for certain.
    fn is_truth(&self, table: Option<&str>, column: &str) -> bool {
        let table = match (table, self.tables.as_slice()) {
            (Some(table), _) => self.named(table),
            (None, [only]) => Some(only),
            (None, _) => None,
        };
        table.is_some_and(|t| t.truths.iter().any(|name| name.eq_ignore_ascii_case(column)))
    }

    /// The columns of its results that are true or false.
    fn own_truths(&self) -> Vec<String> {
        let mut truths = Vec::new();
        for (name, of) in &self.results {
            match of {
                ResultOf::Truth => truths.push(name.clone()),
                ResultOf::Column(table, column) if self.is_truth(table.as_deref(), column) => {
                    truths.push(name.clone());
                }
                ResultOf::Column(..) => {}
                ResultOf::All => {
                    truths.extend(self.tables.iter().flat_map(|table| table.truths.clone()));
                }
            }
        }
        truths
    }
}

fn plain(text: Option<&Text>) -> bool {
    text.is_none_or(|t| t.iter().all(|p| !matches!(p, Part::New(..))))
}

/// Columns that `json_each` has.
const EACH: [&str; 8] = ["atom", "fullkey", "id", "key", "parent", "path", "type", "value"];

/// Gives the elements of arrays the names that they have in the query, and keeps
/// what else their tables have in `SQLite` out of it.
fn rename(text: &mut Text, select: &SuqlSelect) {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let tables: Vec<&String> = select
        .tables
        .iter()
        .filter(|table| table.of != TableOf::Array)
        .filter_map(|table| table.name.as_ref())
        .collect();
    let mut renamed = false;
    for part in text {
        match part {
            Part::Column(span, table, column) | Part::Inner(span, table, column) => {
                let found = select.unnested.iter().filter(|u| u.array.is_none()).find(|u| {
                    u.names.iter().any(|n| same(n, column))
                        && table.as_ref().is_none_or(|t| same(t, &u.alias))
                });
                renamed = found.is_some();
                if let Some(found) = found {
                    let value = format!("{}.value", hqdl_values::sql::name(&found.alias));
                    *part = Part::New(value, span.clone());
                    continue;
                }
                let clashes = !select.unnested.is_empty()
                    && table.is_none()
                    && EACH.iter().any(|c| same(c, column));
                if let (true, [only], Part::Column(span, _, column)) =
                    (clashes, &tables[..], &*part)
                {
                    let name = format!(
                        "{}.{}",
                        hqdl_values::sql::name(only),
                        hqdl_values::sql::name(column)
                    );
                    *part = Part::New(name, span.clone());
                }
            }
            Part::Star(span, of) if !select.unnested.is_empty() => {
                let is_meant =
                    |name: &String| of.as_ref().is_none_or(|of| name.eq_ignore_ascii_case(of));
                let element = |name: &String| {
                    let found = select.unnested.iter().find(|u| u.alias == *name);
                    found.and_then(|u| u.names.first()).unwrap_or(name).clone()
                };
                let of_table = |name: &String, of: &TableOf| {
                    let table = hqdl_values::sql::name(name);
                    if *of == TableOf::Array {
                        format!("{table}.value AS {}", hqdl_values::sql::name(&element(name)))
                    } else {
                        format!("{table}.*")
                    }
                };
                let named: Option<Vec<String>> = select
                    .tables
                    .iter()
                    .filter(|t| t.name.as_ref().is_none_or(is_meant))
                    .map(|t| t.name.as_ref().map(|name| of_table(name, &t.of)))
                    .collect();
                if let Some(all) = named.filter(|all| !all.is_empty()) {
                    *part = Part::New(all.join(", "), span.clone());
                }
                renamed = false;
            }
            Part::New(name, _) if name.starts_with('\u{0}') => {
                let own = name.trim_start_matches('\u{0}').to_owned();
                *name = if renamed || own == "unnest" {
                    format!(" AS {}", hqdl_values::sql::name(&own))
                } else {
                    String::new()
                };
                renamed = false;
            }
            _ => renamed = false,
        }
    }
}
