//! Parser of queries and their clauses.

use std::ops::Range;

use super::distinct_on::until;
use super::parser::{
    ExprShape, Parser, Piece, SuqlSelect, SuqlTable, TableOf, TypedColumns, joined, unsaid,
};
use super::text::{Part, Text};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Lexeme;
use hqdl_values::format::count_noun;

impl Parser<'_> {
    /// Parses the whole text as a single query.
    pub fn statement(&mut self) -> Result<Text, SqlError> {
        // Other statements are passed on and rejected later, like in any query.
        if !self.query_at(0) && !self.peek().is_some_and(|t| t.lexeme == Lexeme::Call) {
            return Ok(vec![Part::Old(0..self.sql.len())]);
        }
        let start = self.here();
        let query = if self.query_at(0) { self.query()? } else { self.expr()?.text };
        if let Some(Part::Rows(span, table, _)) = query.iter().find(|p| matches!(p, Part::Rows(..)))
        {
            let message = format!("FROM has no table `{table}`");
            return Err(SqlError::new(span.clone(), message, "this counts its rows"));
        }
        let end = self.before();
        let ended = self.symbol(b';');
        if self.peek().is_some() && !ended {
            return Err(self.expected("the query's end"));
        }
        let query = Piece::new(query, start..end);
        Ok(joined(0, vec![query], self.sql.len()))
    }

    /// Parses a query with its WITH, ORDER BY and LIMIT.
    pub fn query(&mut self) -> Result<Text, SqlError> {
        self.query_of(false)
    }

    /// Parses a query. If `allows_no_columns` is true, it may have no result columns, as in EXISTS.
    pub fn query_of(&mut self, bare: bool) -> Result<Text, SqlError> {
        let outer = std::mem::replace(&mut self.may_unnest, false);
        self.selects.push(SuqlSelect::default());
        let common = self.common.len();
        let query = self.clauses(bare);
        self.common.truncate(common);
        let select = self.selects.pop();
        self.columns = select.and_then(|select| select.results);
        self.may_unnest = outer;
        query
    }

    fn clauses(&mut self, bare: bool) -> Result<Text, SqlError> {
        let start = self.here();
        let mut pieces = Vec::new();
        if self.word("WITH") {
            let recursive = self.word("RECURSIVE");
            loop {
                let name = self.take()?.content(self.sql);
                let names = self.column_names()?;
                let known = self.common.len();
                if recursive {
                    self.common.push((name.clone(), None));
                }
                self.expect_word("AS")?;
                self.word("NOT");
                self.word("MATERIALIZED");
                self.expect(b'(')?;
                let at = self.here();
                let query = self.deeper(Self::query)?;
                pieces.push(Piece::new(query, at..self.before()));
                self.common.truncate(known);
                let columns = self.renamed_columns(&names)?;
                self.common.push((name, columns));
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
            let before = self.selects.last_mut().and_then(|select| select.results.take());
            self.body(&mut pieces, bare)?;
            if let Some(select) = self.selects.last_mut() {
                select.results = either(before, select.results.take());
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
            return Err(unsaid(word.span(), "a lock of rows", "queries are read-only"));
        }
        if let Some(select) = self.selects.last() {
            self.counted(&mut text, select)?;
            rename(&mut text, select);
        }
        // The remaining names may refer to an outer query.
        for part in &mut text {
            if let Part::Column(span, table, column) = part {
                *part = Part::Inner(span.clone(), table.take(), std::mem::take(column));
            }
        }
        Ok(text)
    }

    /// Parses a SELECT, VALUES, or a query in parentheses.
    fn body(&mut self, pieces: &mut Vec<Piece>, bare: bool) -> Result<(), SqlError> {
        if self.is(b'(') {
            let start = self.here();
            self.at += 1;
            let query = self.deeper(|p| p.query_of(bare))?;
            let end = self.expect(b')')?;
            pieces.push(Piece::filled("SELECT * FROM ({})", vec![query], start..end));
            let columns = self.columns.take();
            self.gives(columns);
            return Ok(());
        }
        if self.word("VALUES") {
            return self.values(pieces);
        }
        if self.is_word("TABLE") {
            let word = self.take()?;
            pieces.push(Piece::new(
                vec![Part::New("SELECT * FROM".into(), word.span())],
                word.span(),
            ));
            let (items, columns) = self.table()?;
            pieces.extend(items);
            self.gives(columns);
            return Ok(());
        }
        self.expect_word("SELECT")?;
        let begins = pieces.len();
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        self.word("ALL");
        if self.is_word("DISTINCT") {
            let word = self.take()?;
            if self.is_word("ON") {
                let help = "list its columns, followed by ORDER BY";
                return Err(unsaid(word.start..self.here() + 2, "DISTINCT ON", help));
            }
        }
        let (from, items, behind) = self.read_from()?;
        self.may_unnest = true;
        if self.is_word("FROM") {
            // PostgreSQL allows rows without columns: EXISTS (SELECT FROM t).
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
            return Err(unsaid(word.span(), "SELECT INTO", "queries are read-only"));
        }
        let has_from = self.at == from;
        if has_from {
            self.at = behind;
            pieces.extend(items);
        }
        let end = self.before();
        let slot = pieces.len();
        if self.word("WHERE") {
            pieces.push(Self::condition(self.expr()?));
        }
        if self.words(&["GROUP", "BY"]) {
            self.may_unnest = true;
            pieces.extend(self.list()?);
            self.may_unnest = false;
        }
        if self.word("HAVING") {
            pieces.push(Self::condition(self.expr()?));
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
        for piece in &mut pieces[begins..] {
            self.counted(&mut piece.text, select)?;
            rename(&mut piece.text, select);
        }
        if !added.is_empty() {
            pieces.insert(slot, Piece::new(added, end..end));
        }
        Ok(())
    }

    /// Parses the rows of VALUES. All rows must have the same number of values, and the values of a
    /// column are converted to a common type.
    fn values(&mut self, pieces: &mut Vec<Piece>) -> Result<(), SqlError> {
        let mut rows: Vec<(Vec<Piece>, Range<usize>)> = Vec::new();
        let mut calls = false;
        loop {
            let start = self.here();
            if self.is(b'(') {
                self.at += 1;
                let row = self.list()?;
                let span = start..self.expect(b')')?;
                if let Some((first, _)) = rows.first().filter(|(first, _)| first.len() != row.len())
                    && !calls
                {
                    let (first, here) = (count_noun(first.len() as u64, "value"), row.len());
                    let message = format!("the first row has {first}, but this one has {here}");
                    return Err(SqlError::new(span, message, "this row of VALUES"));
                }
                rows.push((row, span));
            } else {
                // A call that produces a whole row.
                let row = self.expr()?;
                let span = row.span.clone();
                rows.push((vec![row], span));
                calls = true;
            }
            if !self.symbol(b',') {
                break;
            }
        }
        let mut columns = Vec::new();
        for n in 0..rows.first().filter(|_| !calls).map_or(0, |(first, _)| first.len()) {
            let values = rows.iter_mut().filter_map(|(row, _)| row.get_mut(n)).collect();
            columns.push((format!("column{}", n + 1), self.as_one(values)?.of_column()));
        }
        self.gives((!calls).then_some(columns));
        let row = |(row, span): (Vec<Piece>, Range<usize>)| match row.as_slice() {
            [only] if only.span == span => only.clone(),
            _ => Piece::new(joined(span.start, row, span.end), span),
        };
        pieces.extend(rows.into_iter().map(row));
        Ok(())
    }

    /// Parses the FROM clause before the result columns, because their types depend on it. Returns
    /// the token index of FROM, the translated clause and its end.
    fn read_from(&mut self) -> Result<(usize, Vec<Piece>, usize), SqlError> {
        let results = self.at;
        let ends = ["FROM", "UNION", "INTERSECT", "EXCEPT"];
        let from = until(self.sql, &self.tokens, results, &ends)
            .filter(|at| self.tokens.get(*at).is_some_and(|t| t.is_word(self.sql, "FROM")));
        let Some(from) = from else { return Ok((usize::MAX, Vec::new(), results)) };
        self.at = from + 1;
        let items = self.from()?;
        let behind = std::mem::replace(&mut self.at, results);
        Ok((from, items, behind))
    }

    /// Parses the result columns of a SELECT.
    fn results(&mut self, pieces: &mut Vec<Piece>) -> Result<(), SqlError> {
        let mut columns = Some(Vec::new());
        loop {
            let mut item = self.expr()?;
            Self::no_interval(&item)?;
            if &self.sql[item.span.clone()] == "*" {
                item.text = vec![Part::Star(item.span.clone(), None)];
            }
            let select = self.selects.last();
            let more = match item.text.as_slice() {
                [Part::Star(_, table)] => select.and_then(|s| s.all_columns(table.as_deref())),
                [Part::Column(_, _, name)] => Some(vec![(name.clone(), item.shape.of_column())]),
                _ => Some(vec![(String::new(), item.shape.of_column())]),
            };
            let is_star = matches!(item.text.as_slice(), [Part::Star(..)]);
            pieces.push(item);
            let before = self.at;
            self.result_alias(&mut pieces[..])?;
            let alias = self.tokens.get(self.at - 1).filter(|_| self.at > before && !is_star);
            let alias = alias.map(|token| token.content(self.sql));
            columns = columns.zip(more).map(|(mut all, mut more)| {
                if let (Some(alias), Some((name, _))) = (alias, more.first_mut()) {
                    *name = alias;
                }
                all.append(&mut more);
                all
            });
            if !self.symbol(b',') {
                self.gives(columns);
                return Ok(());
            }
        }
    }

    /// Sets the result columns of the current SELECT.
    fn gives(&mut self, columns: TypedColumns) {
        if let Some(select) = self.selects.last_mut() {
            select.results = columns;
        }
    }

    /// Parses the alias of a result column. Without an alias, an array element is named after its
    /// array.
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
            // Resolved by `rename_elements`, once it is known whether the column is an element.
            let mark = Part::New(format!("\u{0}{name}"), end..end);
            last.text.push(mark);
        }
        Ok(())
    }

    /// Parses the terms of ORDER BY.
    pub fn order(&mut self) -> Result<Vec<Piece>, SqlError> {
        let mut terms = Vec::new();
        loop {
            let mut term = self.expr()?;
            if term.shape == ExprShape::Span {
                let span = term.span.clone();
                term = Piece::filled("suql_span_part('length', {})", vec![term.text], span);
            }
            terms.push(term);
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

    /// Parses LIMIT, OFFSET and FETCH, in any order.
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
    /// Returns the table with this name or alias.
    pub fn named(&self, table: &str) -> Option<&SuqlTable> {
        let is = |name: &String| name.eq_ignore_ascii_case(table);
        self.tables.iter().find(|table| table.name.as_ref().is_some_and(is))
    }
}

/// Returns the columns of a compound of two queries.
fn either(first: TypedColumns, second: TypedColumns) -> TypedColumns {
    let (first, second) = first.zip(second).filter(|(a, b)| a.len() == b.len())?;
    let both = first.into_iter().zip(second);
    Some(both.map(|((name, a), (_, b))| (name, a.or(&b))).collect())
}

fn plain(text: Option<&Text>) -> bool {
    text.is_none_or(|t| t.iter().all(|p| !matches!(p, Part::New(..))))
}

/// Columns of `json_each`.
const EACH: [&str; 8] = ["atom", "fullkey", "id", "key", "parent", "path", "type", "value"];

/// Replaces the names of array elements with columns of `json_each`, and hides the other columns of
/// `json_each` from the query.
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
