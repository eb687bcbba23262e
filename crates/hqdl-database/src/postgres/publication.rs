//! Publishes into a schema of a server: sends the contents of the local tables in one transaction,
//! row by row if the tables have the same columns as before.
//!
//! Rows of existing tables are updated in place, so that readers never wait and dependent objects
//! of the user (views, grants) are kept. A table is recreated only if its columns changed, which
//! fails if other objects depend on it.

use rusqlite::Connection;
use rusqlite::types::Value as Sqlite;
use tokio_postgres::types::ToSql;

use super::shape::ServerTables;
use super::values::{given, json_without_nul, said, without_nul};
use super::{DatabaseServer, ROWS, Transaction, names};
use crate::StoreError;
use crate::versions::{bucket, hash};
use hqdl_spec::Expansion;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Advisory lock for publishing: the first bytes of the hash of `hqdl publishes`.
const LOCK: i32 = 0x6871_646c;
/// Placeholder for the sent rows in a statement. No name contains a NUL.
const PLACE: &str = "\0";
/// Approximate number of bytes that are sent at once.
const BYTES: usize = 4 << 20;

impl DatabaseServer {
    /// Returns true if all tables of an expansion are as hqdl created them, have `rows` rows, and
    /// no other client has written to them.
    pub(crate) fn is_whole(&self, expansion: &Expansion, rows: i64) -> Result<bool, StoreError> {
        let name = &expansion.name;
        let many = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
        for table in std::iter::once(name).chain(many) {
            if !self.made_by_hqdl(table)? {
                return Ok(false);
            }
        }
        let shape = self.shape(expansion)?.text();
        let stands = format!(
            "SELECT count(*) = 1 FROM {} WHERE name = $1 AND shape = $2
               AND NOT EXISTS (SELECT 1 FROM {} WHERE expansion = $1)
               AND NOT EXISTS (SELECT 1 FROM {} AS o WHERE o.type = 'view' AND NOT EXISTS (
                 SELECT 1 FROM pg_catalog.pg_class AS c
                 JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE c.relname = o.name AND n.nspname = $3))",
            self.own("hqdl_expansion"),
            self.own("hqdl_edit"),
            self.own("hqdl_object"),
        );
        let stands: bool = self.one(&stands, &[name, &shape, &self.schema])?;
        let count = format!("SELECT count(*) FROM {}", self.own(name));
        Ok(stands && self.one::<i64>(&count, &[])? == rows)
    }

    /// Begins publishing in one transaction; a lock excludes other publishers.
    pub(crate) fn publish(&self) -> Result<Publishing<'_>, StoreError> {
        let transaction = self.begin("ISOLATION LEVEL READ COMMITTED READ WRITE")?;
        let lock = "SELECT pg_catalog.pg_advisory_xact_lock($1, pg_catalog.hashtext($2))";
        self.batch("SET LOCAL lock_timeout = '60s'")?;
        self.rows(lock, &[&LOCK, &self.schema])?;
        self.batch("SET LOCAL lock_timeout = '10s'; SET LOCAL hqdl.publishing = 'on'")?;
        self.migrate()?;
        Ok(Publishing { server: self, transaction })
    }

    /// Checks the rights needed for publishing; nothing is changed.
    pub(crate) fn try_publishing(&self) -> Result<(), StoreError> {
        let trying = self.publish()?;
        let table = self.own("hqdl_trial");
        self.batch(&format!("CREATE TABLE {table} (n integer); DROP TABLE {table}"))?;
        drop(trying);
        Ok(())
    }
}

/// Open publication on a server; rolled back unless it is committed.
pub(crate) struct Publishing<'s> {
    pub(super) server: &'s DatabaseServer,
    transaction: Transaction<'s>,
}

/// Row to send: each column as text.
type SentRows = Vec<Option<String>>;

impl Publishing<'_> {
    /// Sends the local tables of an expansion; `recreate` is true if the server has none of its
    /// rows.
    pub(crate) fn send(
        &self,
        expansion: &Expansion,
        anew: bool,
        buckets: &[(usize, i64)],
        local: &Connection,
    ) -> Result<(), StoreError> {
        let shape = self.server.shape(expansion)?;
        if anew {
            self.make(expansion, &shape)?;
        } else {
            self.take_out(expansion, &shape, local)?;
        }
        self.send_rows(expansion, &shape, anew, local)?;
        self.send_records(&expansion.name, anew, local)?;
        self.send_notes(expansion, &shape, buckets, local)
    }

    /// Empties the tables of an expansion, or recreates them if their columns changed.
    fn make(&self, expansion: &Expansion, shape: &ServerTables) -> Result<(), StoreError> {
        let (server, name) = (self.server, &expansion.name);
        let stood = format!(
            "SELECT coalesce((SELECT shape = $2 FROM {} WHERE name = $1), false)",
            server.own("hqdl_expansion")
        );
        let mut stands: bool = server.one(&stood, &[name, &shape.text()])?;
        let tables: Vec<&String> =
            shape.many.iter().map(|(table, ..)| table).chain([name]).collect();
        for table in &tables {
            stands = stands && server.made_by_hqdl(table)?;
        }
        if stands {
            for table in &tables {
                server.batch(&format!("DELETE FROM {}", server.own(table)))?;
            }
            return self.forget(name, true);
        }
        self.drop_expansion(name)?;
        let typed = |columns: &[(String, &'static str)]| {
            let all = columns.iter().map(|(name, kind)| format!("{} {kind}", sql::name(name)));
            all.collect::<Vec<_>>().join(", ")
        };
        let own = server.own(name);
        let columns = [shape.key.clone(), shape.columns.clone()].concat();
        let main = format!("CREATE TABLE {own} ({}, {})", typed(&columns), shape.unique(""));
        self.make_table(expansion, name, &main)?;
        for (table, column, kind) in &shape.many {
            let item = sql::name(column);
            let text = format!(
                "CREATE TABLE {} ({}, {item} {kind} NOT NULL, {}, \
                 FOREIGN KEY ({key}) REFERENCES {own} ({key}) ON DELETE CASCADE)",
                server.own(table),
                typed(&shape.key),
                shape.unique(&item),
                key = shape.key_names(),
            );
            self.make_table(expansion, table, &text)?;
        }
        Ok(())
    }

    /// Creates a table with the triggers that record writes of other clients.
    fn make_table(&self, expansion: &Expansion, table: &str, text: &str) -> Result<(), StoreError> {
        let server = self.server;
        if table.len() > 63 {
            return Err(StoreError::Server {
                url: server.shown().to_owned(),
                message: format!(
                    "the name `{table}` is longer than PostgreSQL's limit of 63 bytes"
                ),
                hint: "give it a shorter name in the spec",
            });
        }
        let arguments: Vec<String> = std::iter::once(&expansion.name)
            .chain(expansion.key.names())
            .map(|text| sql::text(text))
            .collect();
        let noted = format!(
            "WHEN (current_setting('hqdl.publishing', true) IS DISTINCT FROM 'on') \
             EXECUTE FUNCTION {}({})",
            server.own("hqdl_note_edit"),
            arguments.join(", ")
        );
        let own = server.own(table);
        server.batch(&format!(
            "{text};
             CREATE TRIGGER hqdl_edit AFTER INSERT OR UPDATE OR DELETE ON {own} FOR EACH ROW {noted};
             CREATE TRIGGER hqdl_edit_all AFTER TRUNCATE ON {own} FOR EACH STATEMENT {noted}"
        ))?;
        let note = format!(
            "INSERT INTO {} (name, type, expansion) VALUES ($1, 'table', $2)",
            server.own("hqdl_object")
        );
        server.execute(&note, &[&table, &expansion.name]).map(drop)
    }

    /// Drops the tables of an expansion, and hqdl's views that depend on them.
    pub(crate) fn drop_expansion(&self, expansion: &str) -> Result<(), StoreError> {
        let server = self.server;
        let tables = format!(
            "SELECT name FROM {} WHERE type = 'table' AND lower(expansion) = lower($1)",
            server.own("hqdl_object")
        );
        let mut found: Vec<String> = Vec::new();
        for row in server.rows(&tables, &[&expansion])? {
            let table: String = row.try_get(0).map_err(|e| server.error(&e))?;
            if server.made_by_hqdl(&table)? {
                self.drop_views_of(&table)?;
                found.push(server.own(&table));
            }
        }
        if !found.is_empty() {
            // In one statement, because they refer to each other.
            server.batch(&format!("DROP TABLE {}", found.join(", ")))?;
        }
        self.forget(expansion, false)
    }

    fn drop_views_of(&self, table: &str) -> Result<(), StoreError> {
        let server = self.server;
        let views = format!(
            "SELECT DISTINCT v.relname::text FROM pg_catalog.pg_depend AS d
             JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid
             JOIN pg_catalog.pg_class AS v ON v.oid = r.ev_class
             JOIN pg_catalog.pg_namespace AS n ON n.oid = v.relnamespace AND n.nspname = $2
             JOIN {} AS o ON o.type = 'view' AND o.name = v.relname
             WHERE d.refobjid = pg_catalog.to_regclass($1)",
            server.own("hqdl_object")
        );
        for row in server.rows(&views, &[&server.own(table), &server.schema])? {
            let view: String = row.try_get(0).map_err(|e| server.error(&e))?;
            self.drop_view(&view)?;
        }
        Ok(())
    }

    /// Drops a view that hqdl created.
    pub(super) fn drop_view(&self, view: &str) -> Result<(), StoreError> {
        let server = self.server;
        server.batch(&format!("DROP VIEW IF EXISTS {}", server.own(view)))?;
        let forget = format!("DELETE FROM {} WHERE name = $1", server.own("hqdl_object"));
        server.execute(&forget, &[&view]).map(drop)
    }

    /// Deletes the bookkeeping of an expansion; the entries of its objects are kept if
    /// `keep_objects`.
    fn forget(&self, expansion: &str, stay: bool) -> Result<(), StoreError> {
        let tables = ["hqdl_record", "hqdl_completion", "hqdl_bucket", "hqdl_edit", "hqdl_object"];
        for table in tables.iter().filter(|table| !stay || **table != "hqdl_object") {
            let own = self.server.own(table);
            let all = format!("DELETE FROM {own} WHERE lower(expansion) = lower($1)");
            self.server.execute(&all, &[&expansion])?;
        }
        let own = self.server.own("hqdl_expansion");
        let one = format!("DELETE FROM {own} WHERE lower(name) = lower($1)");
        self.server.execute(&one, &[&expansion]).map(drop)
    }

    /// Deletes removed rows, and the lists that will be written again.
    fn take_out(
        &self,
        expansion: &Expansion,
        shape: &ServerTables,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let name = &expansion.name;
        let gone = "SELECT f.key, f.hash FROM hqdl_fetched AS f WHERE f.expansion = ?1
            AND NOT EXISTS (SELECT 1 FROM hqdl_record AS r WHERE r.expansion = ?1 AND r.key = f.key)";
        let (mut keys, mut records) = (Vec::new(), Vec::new());
        self.local(local, gone, name, &mut |row| {
            let [Sqlite::Text(key), Sqlite::Integer(hash)] = row else { return };
            let parts: Vec<serde_json::Value> = serde_json::from_str(key).unwrap_or_default();
            keys.push(parts.iter().map(|part| said(&Value::from_json(part))).collect::<SentRows>());
            let bucket = bucket(*hash).to_string();
            records.push(vec![Some(bucket), Some(hash.to_string())]);
        })?;
        let mut changed: Vec<SentRows> = Vec::new();
        let columns = names(expansion.key.names().iter().map(String::as_str));
        let select = format!("SELECT {columns} FROM {}", sql::name(name));
        if !shape.many.is_empty() {
            self.local(local, &select, "", &mut |row| {
                changed.push(row.iter().map(given).collect());
            })?;
        }
        for (table, ..) in &shape.many {
            let own = self.server.own(table);
            for keys in [&keys, &changed] {
                let one =
                    format!("DELETE FROM {own} AS t USING {PLACE} WHERE {}", shape.matches("t"));
                self.each_part(&one, shape.key.len(), keys)?;
            }
        }
        let own = self.server.own(name);
        let one = format!("DELETE FROM {own} AS t USING {PLACE} WHERE {}", shape.matches("t"));
        self.each_part(&one, shape.key.len(), &keys)?;
        let own = self.server.own("hqdl_record");
        let one = format!(
            "DELETE FROM {own} AS t USING {PLACE} WHERE t.expansion = {} \
             AND t.bucket = u.c0::integer AND t.hash = u.c1::bigint",
            sql::text(name)
        );
        self.each_part(&one, 2, &records)
    }

    /// Sends the rows of an expansion's local tables.
    fn send_rows(
        &self,
        expansion: &Expansion,
        shape: &ServerTables,
        anew: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let columns = [shape.key.clone(), shape.columns.clone()].concat();
        let set: Vec<String> = shape
            .columns
            .iter()
            .map(|(name, _)| format!("{0} = excluded.{0}", sql::name(name)))
            .collect();
        let conflict = match (anew, set.is_empty()) {
            (true, _) => String::new(),
            (false, true) => " ON CONFLICT DO NOTHING".to_owned(),
            (false, false) => {
                format!(" ON CONFLICT ({}) DO UPDATE SET {}", shape.key_names(), set.join(", "))
            }
        };
        self.copy(local, &expansion.name, &columns, &conflict)?;
        for (table, column, kind) in &shape.many {
            let columns = [shape.key.clone(), vec![(column.clone(), *kind)]].concat();
            self.copy(local, table, &columns, "")?;
        }
        Ok(())
    }

    /// Sends all rows of a local table to the server's table with the same name.
    fn copy(
        &self,
        local: &Connection,
        table: &str,
        columns: &[(String, &'static str)],
        conflict: &str,
    ) -> Result<(), StoreError> {
        let all = names(columns.iter().map(|(name, _)| name.as_str()));
        let casts: Vec<String> =
            columns.iter().enumerate().map(|(n, (_, kind))| format!("u.c{n}::{kind}")).collect();
        let insert = format!(
            "INSERT INTO {} ({all}) SELECT {} FROM {PLACE}{conflict}",
            self.server.own(table),
            casts.join(", ")
        );
        let select = format!("SELECT {all} FROM {}", sql::name(table));
        self.stream(local, &select, "", &insert, columns.len(), &mut |row| {
            row.iter().map(given).collect()
        })
    }

    /// Sends the changed records.
    fn send_records(
        &self,
        expansion: &str,
        anew: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let select = "SELECT r.key, r.cells, r.version FROM hqdl_record AS r WHERE r.expansion = ?1
            AND NOT EXISTS (SELECT 1 FROM hqdl_fetched AS f
              WHERE f.expansion = ?1 AND f.key = r.key AND f.version = r.version)";
        let conflict = if anew {
            ""
        } else {
            " ON CONFLICT (expansion, bucket, hash) DO UPDATE
              SET key = excluded.key, cells = excluded.cells, version = excluded.version"
        };
        let insert = format!(
            "INSERT INTO {} (expansion, bucket, hash, key, cells, version)
             SELECT {}, u.c0::integer, u.c1::bigint, u.c2, u.c3, u.c4::bigint FROM {PLACE}{conflict}",
            self.server.own("hqdl_record"),
            sql::text(expansion)
        );
        self.stream(local, select, expansion, &insert, 5, &mut |row| {
            let [Sqlite::Text(key), Sqlite::Text(cells), version] = row else {
                return vec![None; 5];
            };
            let hash = hash(key);
            vec![
                Some(bucket(hash).to_string()),
                Some(hash.to_string()),
                Some(json_without_nul(key)),
                Some(json_without_nul(cells)),
                given(version),
            ]
        })
    }

    /// Sends the bookkeeping of the expansion, and the provenance of its cells.
    fn send_notes(
        &self,
        expansion: &Expansion,
        shape: &ServerTables,
        buckets: &[(usize, i64)],
        local: &Connection,
    ) -> Result<(), StoreError> {
        let (server, name) = (self.server, &expansion.name);
        let completions = server.own("hqdl_completion");
        let insert = format!(
            "INSERT INTO {completions} AS c (expansion, id, run, model, prompt_hash, asked_at,
               input_tokens, output_tokens, cost_usd, cells, error, shown, parameters)
             SELECT {}, u.c0::bigint, u.c1::bigint, u.c2, u.c3, u.c4, u.c5::bigint, u.c6::bigint,
               u.c7::double precision, u.c8::bigint, u.c9, u.c10::bigint, u.c11 FROM {PLACE}
             ON CONFLICT (expansion, id) DO UPDATE SET shown = c.shown + excluded.shown",
            sql::text(name)
        );
        let select = "SELECT id, run, model, prompt_hash, asked_at, input_tokens, output_tokens,
            cost_usd, cells, error, shown, parameters FROM hqdl_completion WHERE expansion = ?1";
        self.stream(local, select, name, &insert, 12, &mut |row| row.iter().map(given).collect())?;
        let none = format!("DELETE FROM {completions} WHERE expansion = $1 AND shown <= 0");
        server.execute(&none, &[name])?;
        let insert = format!(
            "INSERT INTO {} (expansion, bucket, sum) SELECT {}, u.c0::integer, u.c1::bigint FROM {PLACE}
             ON CONFLICT (expansion, bucket) DO UPDATE SET sum = excluded.sum",
            server.own("hqdl_bucket"),
            sql::text(name)
        );
        let sums: Vec<SentRows> = buckets
            .iter()
            .map(|(n, sum)| vec![Some(n.to_string()), Some(sum.to_string())])
            .collect();
        self.each_part(&insert, 2, &sums)?;
        let own = server.own("hqdl_expansion");
        server.execute(&format!("DELETE FROM {own} WHERE lower(name) = lower($1)"), &[name])?;
        let insert = format!(
            "INSERT INTO {own} (name, spec, key, columns, digest, rows, published_at, standing, shape)
             SELECT u.c0, u.c1, u.c2, u.c3, u.c4, u.c5::bigint, u.c6, u.c7, {} FROM {PLACE}",
            sql::text(&shape.text())
        );
        let select = "SELECT name, spec, key, columns, digest, rows, published_at, standing
            FROM hqdl_expansion WHERE name = ?1";
        self.stream(local, select, name, &insert, 8, &mut |row| row.iter().map(given).collect())?;
        self.comment(expansion)
    }

    /// Stores the descriptions of the spec as comments on the tables.
    fn comment(&self, expansion: &Expansion) -> Result<(), StoreError> {
        let quoted = |about: &str| {
            if about.trim().is_empty() { "NULL".to_owned() } else { sql::text(&without_nul(about)) }
        };
        let server = self.server;
        let own = server.own(&expansion.name);
        let mut text = format!("COMMENT ON TABLE {own} IS {}", quoted(&expansion.about));
        for column in &expansion.columns {
            let about = quoted(&column.about);
            text.push_str(&match &column.many {
                None => format!("; COMMENT ON COLUMN {own}.{} IS {about}", sql::name(&column.name)),
                Some(many) => format!("; COMMENT ON TABLE {} IS {about}", server.own(&many.table)),
            });
        }
        server.batch(&text)
    }

    /// Visits the rows of a local SELECT, which may have one parameter.
    fn local(
        &self,
        local: &Connection,
        select: &str,
        param: &str,
        visit: &mut dyn FnMut(&[Sqlite]),
    ) -> Result<(), StoreError> {
        let mut read = || -> rusqlite::Result<()> {
            let mut statement = local.prepare(select)?;
            let (width, takes) = (statement.column_count(), statement.parameter_count());
            let mut rows =
                statement.query(rusqlite::params_from_iter(Some(param).filter(|_| takes > 0)))?;
            while let Some(row) = rows.next()? {
                let values: Vec<Sqlite> =
                    (0..width).map(|n| row.get(n)).collect::<rusqlite::Result<_>>()?;
                visit(&values);
            }
            Ok(())
        };
        read().map_err(|e| StoreError::from_sqlite(self.server.shown().as_ref(), &e))
    }

    /// Sends the rows of a local SELECT to a statement that reads them at [`PLACE`].
    fn stream(
        &self,
        local: &Connection,
        select: &str,
        param: &str,
        statement: &str,
        width: usize,
        send: &mut dyn FnMut(&[Sqlite]) -> SentRows,
    ) -> Result<(), StoreError> {
        let (mut part, mut bytes, mut failed) = (Vec::new(), 0, Ok(()));
        self.local(local, select, param, &mut |row| {
            let sent = send(row);
            bytes += sent.iter().flatten().map(String::len).sum::<usize>();
            part.push(sent);
            if failed.is_ok() && (part.len() >= ROWS || bytes >= BYTES) {
                failed = self.part(statement, width, &part);
                part.clear();
                bytes = 0;
            }
        })?;
        failed?;
        self.each_part(statement, width, &part)
    }

    fn each_part(
        &self,
        statement: &str,
        width: usize,
        rows: &[SentRows],
    ) -> Result<(), StoreError> {
        rows.chunks(ROWS).try_for_each(|part| self.part(statement, width, part))
    }

    fn part(&self, statement: &str, width: usize, rows: &[SentRows]) -> Result<(), StoreError> {
        let arrays: Vec<Vec<Option<&str>>> = (0..width)
            .map(|n| rows.iter().map(|row| row.get(n).and_then(Option::as_deref)).collect())
            .collect();
        let list = |prefix: &str, end: &str, first: usize| {
            (first..first + width)
                .map(|n| format!("{prefix}{n}{end}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let rows = format!("unnest({}) AS u ({})", list("$", "::text[]", 1), list("c", "", 0));
        let params: Vec<&(dyn ToSql + Sync)> = arrays.iter().map(|array| array as _).collect();
        self.server.execute(&statement.replacen(PLACE, &rows, 1), &params).map(drop)
    }

    /// Commits: other clients now see the published tables.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        self.transaction.commit()
    }
}
