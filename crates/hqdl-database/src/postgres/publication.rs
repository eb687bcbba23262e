//! Publishes into a schema on a server: sends the contents of the local tables in one transaction.
//! If the tables have the same columns as before, only rows that differ are sent.
//!
//! Rows of existing tables are updated in place, so that readers never wait and dependent objects
//! of the user (views, grants) are kept. A table is recreated only if its columns changed. This
//! fails if other objects depend on the table.

use rusqlite::Connection;
use rusqlite::types::Value as Sqlite;
use tokio_postgres::types::ToSql;

use super::layout::ServerTables;
use super::values::{replace_nul_chars, replace_nul_in_json, to_parameter, value_to_parameter};
use super::{BATCH_ROWS, DatabaseServer, Transaction, quote_name_list};
use crate::StoreError;
use crate::migrate::OWN_TABLES;
use crate::versions::{bucket_index, hash_key};
use hqdl_spec::Expansion;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Key of the advisory lock for publishing: the ASCII bytes of `hqdl`.
const PUBLISH_LOCK: i32 = 0x6871_646c;
/// Placeholder for the sent rows in a statement. It cannot collide with a name, because no name
/// contains a NUL.
const ROWS_PLACEHOLDER: &str = "\0";
/// Approximate number of bytes sent at once.
const BATCH_BYTES: usize = 4 << 20;

impl DatabaseServer {
    /// Returns true if all tables of an expansion are as hqdl created them, have `rows` rows, and
    /// were not written by other clients.
    pub(crate) fn is_unmodified(
        &self,
        expansion: &Expansion,
        rows: i64,
    ) -> Result<bool, StoreError> {
        let name = &expansion.name;
        let list_tables = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
        for table in std::iter::once(name).chain(list_tables) {
            if !self.is_created_by_hqdl(table)? {
                return Ok(false);
            }
        }
        let layout = self.load_table_layout(expansion)?.fingerprint();
        let current_sql = format!(
            "SELECT count(*) = 1 FROM {} WHERE name = $1 AND shape = $2
               AND NOT EXISTS (SELECT 1 FROM {} WHERE expansion = $1)
               AND NOT EXISTS (SELECT 1 FROM {} AS o WHERE o.type = 'view' AND NOT EXISTS (
                 SELECT 1 FROM pg_catalog.pg_class AS c
                 JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE c.relname = o.name AND n.nspname = $3))",
            self.qualify_name("hqdl_object"),
            self.qualify_name("hqdl_edit"),
            self.qualify_name("hqdl_object"),
        );
        let is_current: bool = self.query_one(&current_sql, &[name, &layout, &self.schema])?;
        let count = format!("SELECT count(*) FROM {}", self.qualify_name(name));
        Ok(is_current && self.query_one::<i64>(&count, &[])? == rows)
    }

    /// Begins a publication in one transaction, with a lock that excludes other publishers.
    pub(crate) fn begin_publishing(&self) -> Result<ServerPublication<'_>, StoreError> {
        let transaction = self.begin_transaction("ISOLATION LEVEL READ COMMITTED READ WRITE")?;
        let lock = "SELECT pg_catalog.pg_advisory_xact_lock($1, pg_catalog.hashtext($2))";
        // If the connection is lost without the server noticing, the lock would otherwise block all
        // publishers. The timeout is longer than a run takes to write its local tables.
        self.execute_batch(
            "SET LOCAL lock_timeout = '60s'; SET LOCAL idle_in_transaction_session_timeout = '10min'",
        )?;
        self.query_rows(lock, &[&PUBLISH_LOCK, &self.schema])?;
        self.execute_batch("SET LOCAL lock_timeout = '10s'; SET LOCAL hqdl.publishing = 'on'")?;
        self.migrate_schema()?;
        Ok(ServerPublication { server: self, transaction })
    }

    /// Checks that the user has the rights to publish. Changes nothing.
    pub(crate) fn check_publish_rights(&self) -> Result<(), StoreError> {
        let publication = self.begin_publishing()?;
        let table = self.qualify_name("hqdl_trial");
        self.execute_batch(&format!("CREATE TABLE {table} (n integer); DROP TABLE {table}"))?;
        drop(publication);
        Ok(())
    }
}

/// An open publication on a server, which is rolled back unless it is committed.
pub(crate) struct ServerPublication<'s> {
    pub(super) server: &'s DatabaseServer,
    transaction: Transaction<'s>,
}

/// A row to send, with each column as text.
type TextRow = Vec<Option<String>>;

impl ServerPublication<'_> {
    /// Sends the local tables of an expansion. `recreate` is true if all of the expansion's rows
    /// are sent.
    pub(crate) fn send_tables(
        &self,
        expansion: &Expansion,
        recreate: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let layout = self.server.load_table_layout(expansion)?;
        if recreate {
            self.prepare_tables(expansion, &layout)?;
        } else {
            self.delete_removed_rows(expansion, &layout, local)?;
        }
        self.send_rows(expansion, &layout, recreate, local)?;
        self.send_records(&expansion.name, recreate, local)?;
        self.send_bookkeeping(expansion, &layout, local)
    }

    /// Empties the tables of an expansion, or recreates them if their columns changed.
    fn prepare_tables(
        &self,
        expansion: &Expansion,
        layout: &ServerTables,
    ) -> Result<(), StoreError> {
        let (server, name) = (self.server, &expansion.name);
        let current_sql = format!(
            "SELECT coalesce((SELECT shape = $2 FROM {} WHERE name = $1), false)",
            server.qualify_name("hqdl_object")
        );
        let mut is_current: bool =
            server.query_one(&current_sql, &[name, &layout.fingerprint()])?;
        let tables: Vec<&String> =
            layout.many.iter().map(|(table, ..)| table).chain([name]).collect();
        for table in &tables {
            is_current = is_current && server.is_created_by_hqdl(table)?;
        }
        if is_current {
            for table in &tables {
                server.execute_batch(&format!("DELETE FROM {}", server.qualify_name(table)))?;
            }
            return self.delete_bookkeeping(name, true);
        }
        self.drop_expansion(name)?;
        let typed_columns = |columns: &[(String, &'static str)]| {
            let all = columns
                .iter()
                .map(|(name, type_name)| format!("{} {type_name}", sql::quote_name(name)));
            all.collect::<Vec<_>>().join(", ")
        };
        let main_table = server.qualify_name(name);
        let columns = [layout.key.clone(), layout.columns.clone()].concat();
        let create_main = format!(
            "CREATE TABLE {main_table} ({}, {})",
            typed_columns(&columns),
            layout.build_unique_constraint("")
        );
        self.create_table(expansion, name, &create_main)?;
        for (table, column, type_name) in &layout.many {
            let item = sql::quote_name(column);
            let create_table = format!(
                "CREATE TABLE {} ({}, {item} {type_name} NOT NULL, {}, \
                 FOREIGN KEY ({key}) REFERENCES {main_table} ({key}) ON DELETE CASCADE)",
                server.qualify_name(table),
                typed_columns(&layout.key),
                layout.build_unique_constraint(&item),
                key = layout.key_names(),
            );
            self.create_table(expansion, table, &create_table)?;
        }
        Ok(())
    }

    /// Creates a table with the triggers that record writes by other clients.
    fn create_table(
        &self,
        expansion: &Expansion,
        table: &str,
        create_sql: &str,
    ) -> Result<(), StoreError> {
        let server = self.server;
        if table.len() > 63 {
            return Err(StoreError::Server {
                url: server.display_url().to_owned(),
                message: format!(
                    "the name `{table}` is longer than PostgreSQL's limit of 63 bytes"
                ),
                hint: "give it a shorter name in the spec",
            });
        }
        let arguments: Vec<String> = std::iter::once(&expansion.name)
            .chain(expansion.key.names())
            .map(|text| sql::quote_text(text))
            .collect();
        let trigger_action = format!(
            "WHEN (current_setting('hqdl.publishing', true) IS DISTINCT FROM 'on') \
             EXECUTE FUNCTION {}({})",
            server.qualify_name("hqdl_note_edit"),
            arguments.join(", ")
        );
        let qualified = server.qualify_name(table);
        server.execute_batch(&format!(
            "{create_sql};
             CREATE TRIGGER hqdl_edit AFTER INSERT OR UPDATE OR DELETE ON {qualified} FOR EACH ROW {trigger_action};
             CREATE TRIGGER hqdl_edit_all AFTER TRUNCATE ON {qualified} FOR EACH STATEMENT {trigger_action}"
        ))?;
        let insert = format!(
            "INSERT INTO {} (name, type, expansion) VALUES ($1, 'table', $2)",
            server.qualify_name("hqdl_object")
        );
        server.execute(&insert, &[&table, &expansion.name]).map(drop)
    }

    /// Drops the tables of an expansion, and hqdl's views that depend on them.
    pub(crate) fn drop_expansion(&self, expansion: &str) -> Result<(), StoreError> {
        let server = self.server;
        let select = format!(
            "SELECT name FROM {} WHERE type = 'table' AND lower(expansion) = lower($1)",
            server.qualify_name("hqdl_object")
        );
        let mut tables: Vec<String> = Vec::new();
        for row in server.query_rows(&select, &[&expansion])? {
            let table: String = row.try_get(0).map_err(|e| server.to_store_error(&e))?;
            if server.is_created_by_hqdl(&table)? {
                self.drop_dependent_views(&table)?;
                tables.push(server.qualify_name(&table));
            }
        }
        if !tables.is_empty() {
            // Drop the tables in one statement, because they refer to each other.
            server.execute_batch(&format!("DROP TABLE {}", tables.join(", ")))?;
        }
        self.delete_bookkeeping(expansion, false)
    }

    fn drop_dependent_views(&self, table: &str) -> Result<(), StoreError> {
        let server = self.server;
        let select = format!(
            "SELECT DISTINCT v.relname::text FROM pg_catalog.pg_depend AS d
             JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid
             JOIN pg_catalog.pg_class AS v ON v.oid = r.ev_class
             JOIN pg_catalog.pg_namespace AS n ON n.oid = v.relnamespace AND n.nspname = $2
             JOIN {} AS o ON o.type = 'view' AND o.name = v.relname
             WHERE d.refobjid = pg_catalog.to_regclass($1)",
            server.qualify_name("hqdl_object")
        );
        for row in server.query_rows(&select, &[&server.qualify_name(table), &server.schema])? {
            let view: String = row.try_get(0).map_err(|e| server.to_store_error(&e))?;
            self.drop_view(&view)?;
        }
        Ok(())
    }

    /// Drops a view that hqdl created.
    pub(super) fn drop_view(&self, view: &str) -> Result<(), StoreError> {
        let server = self.server;
        server.execute_batch(&format!("DROP VIEW IF EXISTS {}", server.qualify_name(view)))?;
        let delete = format!("DELETE FROM {} WHERE name = $1", server.qualify_name("hqdl_object"));
        server.execute(&delete, &[&view]).map(drop)
    }

    /// Deletes the bookkeeping of an expansion. If `keep_objects` is true, keeps the entries of its
    /// objects.
    fn delete_bookkeeping(&self, expansion: &str, keep_objects: bool) -> Result<(), StoreError> {
        for table in OWN_TABLES.iter().filter(|table| !keep_objects || **table != "hqdl_object") {
            let table_name = self.server.qualify_name(table);
            let delete_all = format!("DELETE FROM {table_name} WHERE lower(expansion) = lower($1)");
            self.server.execute(&delete_all, &[&expansion])?;
        }
        Ok(())
    }

    /// Deletes the rows that were removed, and the lists that will be written again.
    fn delete_removed_rows(
        &self,
        expansion: &Expansion,
        layout: &ServerTables,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let name = &expansion.name;
        let removed_sql = "SELECT f.key, f.hash FROM hqdl_fetched AS f WHERE f.expansion = ?1
            AND NOT EXISTS (SELECT 1 FROM hqdl_record AS r WHERE r.expansion = ?1 AND r.key = f.key)";
        let (mut keys, mut records) = (Vec::new(), Vec::new());
        self.for_each_local_row(local, removed_sql, name, &mut |row| {
            let [Sqlite::Text(key), Sqlite::Integer(hash)] = row else { return };
            let parts: Vec<serde_json::Value> = serde_json::from_str(key).unwrap_or_default();
            keys.push(
                parts
                    .iter()
                    .map(|part| value_to_parameter(&Value::from_json(part)))
                    .collect::<TextRow>(),
            );
            let bucket = bucket_index(*hash).to_string();
            records.push(vec![Some(bucket), Some(hash.to_string())]);
        })?;
        let mut changed_keys: Vec<TextRow> = Vec::new();
        let columns = quote_name_list(expansion.key.names().iter().map(String::as_str));
        let select = format!("SELECT {columns} FROM {}", sql::quote_name(name));
        if !layout.many.is_empty() {
            self.for_each_local_row(local, &select, "", &mut |row| {
                changed_keys.push(row.iter().map(to_parameter).collect());
            })?;
        }
        for (table, ..) in &layout.many {
            let table_name = self.server.qualify_name(table);
            for keys in [&keys, &changed_keys] {
                let delete = format!(
                    "DELETE FROM {table_name} AS t USING {ROWS_PLACEHOLDER} WHERE {}",
                    layout.key_condition("t")
                );
                self.send_batches(&delete, layout.key.len(), keys)?;
            }
        }
        let table_name = self.server.qualify_name(name);
        let delete = format!(
            "DELETE FROM {table_name} AS t USING {ROWS_PLACEHOLDER} WHERE {}",
            layout.key_condition("t")
        );
        self.send_batches(&delete, layout.key.len(), &keys)?;
        let table_name = self.server.qualify_name("hqdl_record");
        let delete = format!(
            "DELETE FROM {table_name} AS t USING {ROWS_PLACEHOLDER} WHERE t.expansion = {} \
             AND t.bucket = u.c0::integer AND t.hash = u.c1::bigint",
            sql::quote_text(name)
        );
        self.send_batches(&delete, 2, &records)
    }

    /// Sends the rows of an expansion's local tables.
    fn send_rows(
        &self,
        expansion: &Expansion,
        layout: &ServerTables,
        recreate: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let columns = [layout.key.clone(), layout.columns.clone()].concat();
        let set: Vec<String> = layout
            .columns
            .iter()
            .map(|(name, _)| format!("{0} = excluded.{0}", sql::quote_name(name)))
            .collect();
        let conflict = match (recreate, set.is_empty()) {
            (true, _) => String::new(),
            (false, true) => " ON CONFLICT DO NOTHING".to_owned(),
            (false, false) => {
                format!(" ON CONFLICT ({}) DO UPDATE SET {}", layout.key_names(), set.join(", "))
            }
        };
        self.send_table(local, &expansion.name, &columns, &conflict)?;
        for (table, column, type_name) in &layout.many {
            let columns = [layout.key.clone(), vec![(column.clone(), *type_name)]].concat();
            self.send_table(local, table, &columns, "")?;
        }
        Ok(())
    }

    /// Sends all rows of a local table to the server's table with the same name.
    fn send_table(
        &self,
        local: &Connection,
        table: &str,
        columns: &[(String, &'static str)],
        conflict: &str,
    ) -> Result<(), StoreError> {
        let column_names = quote_name_list(columns.iter().map(|(name, _)| name.as_str()));
        let casts: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(n, (_, type_name))| format!("u.c{n}::{type_name}"))
            .collect();
        let insert = format!(
            "INSERT INTO {} ({column_names}) SELECT {} FROM {ROWS_PLACEHOLDER}{conflict}",
            self.server.qualify_name(table),
            casts.join(", ")
        );
        let select = format!("SELECT {column_names} FROM {}", sql::quote_name(table));
        self.stream_rows(local, &select, "", &insert, columns.len(), &mut |row| {
            row.iter().map(to_parameter).collect()
        })
    }

    fn send_records(
        &self,
        expansion: &str,
        recreate: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let select = "SELECT r.key, r.cells, r.version FROM hqdl_record AS r WHERE r.expansion = ?1
            AND NOT EXISTS (SELECT 1 FROM hqdl_fetched AS f
              WHERE f.expansion = ?1 AND f.key = r.key AND f.version = r.version)";
        let conflict = if recreate {
            ""
        } else {
            " ON CONFLICT (expansion, bucket, hash) DO UPDATE
              SET key = excluded.key, cells = excluded.cells, version = excluded.version"
        };
        let insert = format!(
            "INSERT INTO {} (expansion, bucket, hash, key, cells, version)
             SELECT {}, u.c0::integer, u.c1::bigint, u.c2, u.c3, u.c4::bigint FROM {ROWS_PLACEHOLDER}{conflict}",
            self.server.qualify_name("hqdl_record"),
            sql::quote_text(expansion)
        );
        self.stream_rows(local, select, expansion, &insert, 5, &mut |row| {
            let [Sqlite::Text(key), Sqlite::Text(cells), version] = row else {
                return vec![None; 5];
            };
            let hash = hash_key(key);
            vec![
                Some(bucket_index(hash).to_string()),
                Some(hash.to_string()),
                Some(replace_nul_in_json(key)),
                Some(replace_nul_in_json(cells)),
                to_parameter(version),
            ]
        })
    }

    /// Sends the expansion's bookkeeping and the provenance of its cells.
    fn send_bookkeeping(
        &self,
        expansion: &Expansion,
        layout: &ServerTables,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let (server, name) = (self.server, &expansion.name);
        let completions = server.qualify_name("hqdl_completion");
        let insert = format!(
            "INSERT INTO {completions} AS c (expansion, id, run, model, prompt_hash, asked_at,
               input_tokens, output_tokens, cost_usd, cells, error, shown, parameters,
               assumed_cache_writes, evidence)
             SELECT {}, u.c0::bigint, u.c1::bigint, u.c2, u.c3, u.c4, u.c5::bigint, u.c6::bigint,
               u.c7::double precision, u.c8::bigint, u.c9, u.c10::bigint, u.c11,
               u.c12::bigint, u.c13 FROM {ROWS_PLACEHOLDER}
             ON CONFLICT (expansion, id) DO UPDATE SET shown = c.shown + excluded.shown",
            sql::quote_text(name)
        );
        let select = "SELECT id, run, model, prompt_hash, asked_at, input_tokens, output_tokens,
            cost_usd, cells, error, shown, parameters, assumed_cache_writes,
            evidence FROM hqdl_completion WHERE expansion = ?1";
        self.stream_rows(local, select, name, &insert, 14, &mut |row| {
            row.iter().map(to_parameter).collect()
        })?;
        let delete_unused =
            format!("DELETE FROM {completions} WHERE expansion = $1 AND shown <= 0");
        server.execute(&delete_unused, &[name])?;
        let update = format!(
            "UPDATE {} AS o SET spec = u.c1, key = u.c2, columns = u.c3, layout = u.c4,
               rows = u.c5::bigint, published_at = u.c6, inputs = u.c7, checksums = u.c8, shape = {}
             FROM {ROWS_PLACEHOLDER} WHERE o.name = u.c0",
            server.qualify_name("hqdl_object"),
            sql::quote_text(&layout.fingerprint())
        );
        let select =
            "SELECT name, spec, key, columns, layout, rows, published_at, inputs, checksums
            FROM hqdl_object WHERE name = ?1";
        self.stream_rows(local, select, name, &update, 9, &mut |row| {
            row.iter().map(to_parameter).collect()
        })?;
        self.write_comments(expansion)
    }

    /// Stores the spec's descriptions as comments on the tables.
    fn write_comments(&self, expansion: &Expansion) -> Result<(), StoreError> {
        let quote_comment = |about: &str| {
            if about.trim().is_empty() {
                "NULL".to_owned()
            } else {
                sql::quote_text(&replace_nul_chars(about))
            }
        };
        let server = self.server;
        let main_table = server.qualify_name(&expansion.name);
        let mut text =
            format!("COMMENT ON TABLE {main_table} IS {}", quote_comment(&expansion.about));
        for column in &expansion.columns {
            let about = quote_comment(&column.about);
            text.push_str(&match &column.many {
                None => format!(
                    "; COMMENT ON COLUMN {main_table}.{} IS {about}",
                    sql::quote_name(&column.name)
                ),
                Some(many) => {
                    format!("; COMMENT ON TABLE {} IS {about}", server.qualify_name(&many.table))
                }
            });
        }
        server.execute_batch(&text)
    }

    /// Visits the rows of a local SELECT with at most one parameter.
    fn for_each_local_row(
        &self,
        local: &Connection,
        select: &str,
        param: &str,
        visit: &mut dyn FnMut(&[Sqlite]),
    ) -> Result<(), StoreError> {
        let mut read_rows = || -> rusqlite::Result<()> {
            let mut statement = local.prepare(select)?;
            let (column_count, parameter_count) =
                (statement.column_count(), statement.parameter_count());
            let mut rows = statement
                .query(rusqlite::params_from_iter(Some(param).filter(|_| parameter_count > 0)))?;
            while let Some(row) = rows.next()? {
                let values: Vec<Sqlite> =
                    (0..column_count).map(|n| row.get(n)).collect::<rusqlite::Result<_>>()?;
                visit(&values);
            }
            Ok(())
        };
        read_rows().map_err(|e| StoreError::from_sqlite(self.server.display_url().as_ref(), &e))
    }

    /// Sends the rows of a local SELECT to a statement, which reads them at [`ROWS_PLACEHOLDER`].
    fn stream_rows(
        &self,
        local: &Connection,
        select: &str,
        param: &str,
        statement: &str,
        column_count: usize,
        to_text_row: &mut dyn FnMut(&[Sqlite]) -> TextRow,
    ) -> Result<(), StoreError> {
        let (mut batch, mut bytes, mut result) = (Vec::new(), 0, Ok(()));
        self.for_each_local_row(local, select, param, &mut |row| {
            let text_row = to_text_row(row);
            bytes += text_row.iter().flatten().map(String::len).sum::<usize>();
            batch.push(text_row);
            if result.is_ok() && (batch.len() >= BATCH_ROWS || bytes >= BATCH_BYTES) {
                result = self.send_batch(statement, column_count, &batch);
                batch.clear();
                bytes = 0;
            }
        })?;
        result?;
        self.send_batches(statement, column_count, &batch)
    }

    fn send_batches(
        &self,
        statement: &str,
        column_count: usize,
        rows: &[TextRow],
    ) -> Result<(), StoreError> {
        rows.chunks(BATCH_ROWS)
            .try_for_each(|batch| self.send_batch(statement, column_count, batch))
    }

    fn send_batch(
        &self,
        statement: &str,
        column_count: usize,
        rows: &[TextRow],
    ) -> Result<(), StoreError> {
        let arrays: Vec<Vec<Option<&str>>> = (0..column_count)
            .map(|n| rows.iter().map(|row| row.get(n).and_then(Option::as_deref)).collect())
            .collect();
        let numbered_list = |prefix: &str, end: &str, first: usize| {
            (first..first + column_count)
                .map(|n| format!("{prefix}{n}{end}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let rows = format!(
            "unnest({}) AS u ({})",
            numbered_list("$", "::text[]", 1),
            numbered_list("c", "", 0)
        );
        let params: Vec<&(dyn ToSql + Sync)> = arrays.iter().map(|array| array as _).collect();
        self.server.execute(&statement.replacen(ROWS_PLACEHOLDER, &rows, 1), &params).map(drop)
    }

    /// Commits the transaction, which makes the published tables visible to other clients.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        self.transaction.commit()
    }
}
