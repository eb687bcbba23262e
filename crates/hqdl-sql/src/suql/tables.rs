//! Translates the FROM clause.

use std::ops::Range;

use super::declared_type::parse_declared_type;
use super::select::rename_columns;
use super::translator::{
    SqlType, TableSource, Translator, TypedColumns, UnnestedArray, fill_template,
};
use crate::blendsql::SqlError;
use crate::blendsql::tree::{Expr, FromItem, FromSource, JoinKind, Query};
use hqdl_values::sql::{quote_name, quote_names};

impl Translator<'_> {
    /// Translates the entries of a FROM clause and adds their tables to the current SELECT.
    pub fn translate_from(&mut self, items: &[FromItem]) -> Result<(), SqlError> {
        for item in items {
            if let Some(select) = self.selects.last_mut() {
                select.has_outer_join |= item.join != JoinKind::Inner;
                select.has_merged_columns |= item.natural || !item.using.is_empty();
            }
            self.translate_from_item(item)?;
            if let Some(on) = &item.on {
                self.translate_condition(on)?;
            }
        }
        Ok(())
    }

    fn translate_from_item(&mut self, item: &FromItem) -> Result<(), SqlError> {
        self.remove_prefix(item);
        match &item.source {
            FromSource::Table { name, .. } => self.translate_table(item, name),
            FromSource::Function { name, args } => self.translate_table_function(item, name, args),
            FromSource::Query(query) => self.translate_derived_table(item, query),
            FromSource::Join(items) => {
                self.translate_from(items)?;
                if item.name.is_some() {
                    self.add_table(item.name.clone(), TableSource::Query, None);
                }
                Ok(())
            }
        }
    }

    /// Removes LATERAL, ONLY and `public.` from an entry, and replaces TABLE.
    fn remove_prefix(&mut self, item: &FromItem) {
        let start = self.find_source_start(item);
        if item.span.start < start {
            let is_query = self.has_word(item.span.start..start, "TABLE");
            let new = if is_query { "SELECT * FROM " } else { "" };
            self.replace(item.span.start..start, new);
        }
    }

    /// Returns the start of an entry without TABLE, LATERAL, ONLY and `public.`.
    fn find_source_start(&self, item: &FromItem) -> usize {
        let tokens = self.tokens_in(&item.span);
        let mut at = 0;
        while let [word, next, ..] = &tokens[at..] {
            if ["LATERAL", "ONLY", "TABLE"].iter().any(|prefix| word.is_word(self.sql, prefix))
                && !next.is_symbol(b'.')
            {
                at += 1;
            } else if next.is_symbol(b'.') && self.is_public_schema(*word) {
                at += 2;
            } else {
                break;
            }
        }
        tokens.get(at).map_or(item.span.start, |token| token.start)
    }

    fn translate_table(&mut self, item: &FromItem, table: &str) -> Result<(), SqlError> {
        let columns = self.find_columns(table);
        if item.column_names.is_empty() {
            self.add_table(item.name.clone(), TableSource::Named(table.to_owned()), columns);
            return Ok(());
        }
        // SQLite does not support column aliases for tables, so a subquery renames the columns.
        let span = self.find_source_start(item)..item.span.end;
        let Some(own) = columns else {
            let construct = format!("the column aliases of `{table}`");
            let help = "its columns are not known here; name them in a subquery: SELECT a AS b";
            return Err(SqlError::untranslatable(span, &construct, help));
        };
        let columns = rename_columns(Some(own.clone()), &item.column_names)?;
        let both = columns.iter().flatten().zip(&own);
        let renamed: Vec<String> = both
            .map(|((new, _), (own, _))| format!("{} AS {}", quote_name(own), quote_name(new)))
            .collect();
        let alias = quote_name(item.name.as_deref().unwrap_or(table));
        let (renamed, table) = (renamed.join(", "), quote_name(table));
        self.replace(span, format!("(SELECT {renamed} FROM {table}) AS {alias}"));
        self.add_table(item.name.clone(), TableSource::Query, columns);
        Ok(())
    }

    fn translate_table_function(
        &mut self,
        item: &FromItem,
        function: &str,
        args: &[Expr],
    ) -> Result<(), SqlError> {
        let start = self.find_source_start(item);
        let args = self.translate_exprs(args)?;
        let function = function.to_lowercase();
        let call = start..self.find_call_end(start, args.last());
        let Some((_, array)) = self.build_set_function_array(&function, &args, &call)? else {
            self.add_table(item.name.clone(), TableSource::Query, None);
            return Ok(());
        };
        let has_alias = item.span.end > call.end;
        let alias = item.name.clone().filter(|_| has_alias).unwrap_or(function);
        let mut names: Vec<String> =
            item.column_names.iter().map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            names.push(alias.clone());
        }
        let template = format!("json_each(suql_array({{}})) AS {}", quote_name(&alias));
        self.replace(start..item.span.end, fill_template(&template, [array]));
        let elements = names.iter().map(|name| (name.clone(), SqlType::Unknown)).collect();
        self.add_table(Some(alias.clone()), TableSource::Array, Some(elements));
        if let Some(select) = self.selects.last_mut() {
            select.unnested.push(UnnestedArray { alias, names, array: None });
        }
        Ok(())
    }

    /// Translates a subquery. Column aliases require a common table expression in `SQLite`.
    fn translate_derived_table(&mut self, item: &FromItem, query: &Query) -> Result<(), SqlError> {
        let names = &item.column_names;
        let columns = rename_columns(self.translate_query(query, false)?, names)?;
        self.add_table(item.name.clone(), TableSource::Query, columns.clone());
        if names.is_empty() {
            return Ok(());
        }
        let name = self.new_alias();
        let columns: Vec<String> = match columns {
            Some(columns) => columns.into_iter().map(|(name, _)| name).collect(),
            None => names.iter().map(|(name, _)| name.clone()).collect(),
        };
        let columns = quote_names("", &columns);
        let alias = quote_name(item.name.as_ref().unwrap_or(&name));
        let template =
            format!("(WITH {name}({columns}) AS ({{}}) SELECT * FROM {name}) AS {alias}");
        let span: Range<usize> = self.find_source_start(item)..item.span.end;
        self.replace(span, fill_template(&template, [query.span.clone().into()]));
        Ok(())
    }

    /// Returns the columns of a table or common table expression.
    fn find_columns(&self, table: &str) -> TypedColumns {
        let cte = self.ctes.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(table));
        if let Some((_, columns)) = cte {
            return columns.clone();
        }
        let known = self.tables.get(&table.to_lowercase())?;
        let types = known.types.iter().map(|type_name| parse_declared_type(type_name));
        let types = types.chain(std::iter::repeat(SqlType::Unknown));
        Some(known.names.iter().cloned().zip(types).collect())
    }
}
