//! Reads hqdl's bookkeeping from a server into local tables with the same names, so that it can be
//! queried like the bookkeeping of any other expanded database.

use rusqlite::types::Value as Sqlite;
use rusqlite::{Connection, params, params_from_iter};

use super::DatabaseServer;
use crate::{StoreError, migrate};
use hqdl_migrations::EXPANDED;
use hqdl_values::sql;

/// Columns of `hqdl_object` to read. Only the column at `ROWS_COLUMN` is a number.
const OBJECT_COLUMNS: &str =
    "name, type, expansion, spec, key, columns, rows, published_at, inputs, layout, checksums";
const ROWS_COLUMN: usize = 6;

impl DatabaseServer {
    /// Returns true if the schema has hqdl's tables.
    pub(crate) fn has_bookkeeping(&self) -> Result<bool, StoreError> {
        self.has_own_table("hqdl_object")
    }

    fn has_own_table(&self, name: &str) -> Result<bool, StoreError> {
        // `to_regclass` is avoided here, because its answer may predate the lock.
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = $2)";
        self.query_one(sql, &[&self.schema, &name])
    }

    /// Returns the version of hqdl's tables in the schema.
    fn read_bookkeeping_version(&self) -> Result<i32, StoreError> {
        let select = if self.has_own_table("hqdl_migration")? {
            format!("SELECT max(version) FROM {}", self.qualify_name("hqdl_migration"))
        } else {
            let objects = self.qualify_name("hqdl_object");
            format!("SELECT max(expansion)::integer FROM {objects} WHERE type = 'version'")
        };
        self.query_one::<Option<i32>>(&select, &[]).map(Option::unwrap_or_default)
    }

    /// Returns the reason why this role cannot publish; `None` if it can.
    pub(crate) fn find_missing_permission(&self) -> Result<Option<String>, StoreError> {
        let sql = "SELECT coalesce(
                     (SELECT pg_catalog.has_schema_privilege(n.oid, 'CREATE')
                      FROM pg_catalog.pg_namespace AS n WHERE n.nspname = $1),
                     pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'))";
        if self.query_one::<bool>(sql, &[&self.schema])? {
            return Ok(None);
        }
        let user: String = self.query_one("SELECT current_user::text", &[])?;
        Ok(Some(format!("the role `{user}` may not create tables in the schema `{}`", self.schema)))
    }

    /// Creates or migrates the schema and hqdl's tables in it, within the open transaction.
    pub(super) fn migrate_schema(&self) -> Result<(), StoreError> {
        let schema = sql::quote_name(&self.schema);
        let applied: i32 = if self.has_bookkeeping()? {
            self.read_bookkeeping_version()?
        } else {
            // A role that cannot create a schema can use an existing one.
            let exists = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1)";
            let exists: bool = self.query_one(exists, &[&self.schema])?;
            if !exists {
                self.execute_batch(&format!("CREATE SCHEMA {schema}"))?;
            }
            self.execute_batch(&format!(
                "CREATE TABLE {} (version integer PRIMARY KEY,
                   applied_at timestamptz NOT NULL DEFAULT now(), made_schema boolean)",
                self.qualify_name("hqdl_migration")
            ))?;
            let insert = "INSERT INTO {} (version, made_schema) VALUES (0, $1)";
            self.execute(&insert.replace("{}", &self.qualify_name("hqdl_migration")), &[&!exists])?;
            0
        };
        let newest = EXPANDED.last().map_or(0, |(n, _)| *n);
        if applied > newest {
            return Err(StoreError::Server {
                url: self.display_url().to_owned(),
                message: format!(
                    "its schema `{}` has version {applied}, but this hqdl supports versions up to {newest}",
                    self.schema
                ),
                hint: "use the hqdl that wrote it, or a newer one; nothing was changed",
            });
        }
        if applied == newest {
            return Ok(());
        }
        let search_path: String = self.query_one("SELECT current_setting('search_path')", &[])?;
        for (_, text) in EXPANDED.iter().filter(|(n, _)| *n > applied) {
            self.execute_batch(&format!("SET LOCAL search_path = {schema}, pg_catalog; {text}"))?;
        }
        let note = format!(
            "INSERT INTO {} (name, type, expansion) VALUES ('hqdl_version', 'version', $1)
             ON CONFLICT (name) DO UPDATE SET expansion = excluded.expansion",
            self.qualify_name("hqdl_object")
        );
        self.execute(&note, &[&newest.to_string()])?;
        self.query_rows("SELECT set_config('search_path', $1, true)", &[&search_path]).map(drop)
    }

    /// Reads the bookkeeping into the local tables, replacing their contents. Does not read records
    /// and completions, because there may be many.
    pub(crate) fn read_bookkeeping(&self, local: &Connection) -> Result<(), StoreError> {
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        drop_local_objects(local).map_err(to_error)?;
        if !self.has_bookkeeping()? {
            return Ok(());
        }
        migrate::migrate_database(local).map_err(to_error)?;
        local
            .execute_batch(
                "CREATE TABLE hqdl_fetched (expansion TEXT, key TEXT, hash INTEGER, version INTEGER,
                   PRIMARY KEY (expansion, key)) WITHOUT ROWID",
            )
            .map_err(to_error)?;
        let objects = self.qualify_name("hqdl_object");
        // Tables of older versions have no layout and checksums, so the next run publishes again
        // and thereby migrates them.
        let select = if self.has_own_table("hqdl_expansion")? {
            format!(
                "SELECT o.name, o.type, o.expansion, e.spec, e.key, e.columns, e.rows,
                   e.published_at, e.standing, NULL::text, NULL::text
                 FROM {objects} AS o LEFT JOIN {} AS e ON o.type = 'table' AND e.name = o.name",
                self.qualify_name("hqdl_expansion")
            )
        } else {
            format!("SELECT {OBJECT_COLUMNS} FROM {objects} WHERE type IN ('table', 'view')")
        };
        self.copy_rows(
            &select,
            &format!("INSERT INTO hqdl_object ({OBJECT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
            Some(ROWS_COLUMN),
            local,
        )?;
        let edits = self.qualify_name("hqdl_edit");
        self.copy_rows(
            &format!("SELECT expansion, \"table\", key FROM {edits}"),
            "INSERT INTO hqdl_edit (expansion, \"table\", key) VALUES (?, ?, ?)",
            None,
            local,
        )
    }

    /// Inserts the rows of a SELECT into a local table. All columns are text, except for
    /// `number_column`.
    fn copy_rows(
        &self,
        select: &str,
        insert: &str,
        number_column: Option<usize>,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        let mut insert = local.prepare(insert).map_err(to_error)?;
        for row in &self.query_rows(select, &[])? {
            let values = (0..row.len())
                .map(|n| self.read_cell(row, n, number_column == Some(n)))
                .collect::<Result<Vec<_>, _>>()?;
            insert.execute(params_from_iter(values)).map_err(to_error)?;
        }
        Ok(())
    }

    fn read_cell(
        &self,
        row: &tokio_postgres::Row,
        n: usize,
        is_number: bool,
    ) -> Result<Sqlite, StoreError> {
        let to_error = |e: tokio_postgres::Error| self.to_store_error(&e);
        if !is_number {
            let text: Option<String> = row.try_get(n).map_err(to_error)?;
            return Ok(text.map_or(Sqlite::Null, Sqlite::Text));
        }
        let column_type = row.columns().get(n).map(tokio_postgres::Column::type_);
        let number: Option<i64> = if column_type == Some(&tokio_postgres::types::Type::INT4) {
            row.try_get::<_, Option<i32>>(n).map_err(to_error)?.map(i64::from)
        } else {
            row.try_get(n).map_err(to_error)?
        };
        Ok(number.map_or(Sqlite::Null, Sqlite::Integer))
    }

    /// Reads the records of an expansion into the local tables: the records of one bucket, or of
    /// all buckets not in `known`.
    pub(crate) fn fetch_records(
        &self,
        expansion: &str,
        bucket: Option<i32>,
        known: &[i32],
        local: &Connection,
    ) -> Result<(), StoreError> {
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        let mut insert_record = local
            .prepare_cached("INSERT OR REPLACE INTO hqdl_record (expansion, key, cells, version) VALUES (?1, ?2, ?3, ?4)")
            .map_err(to_error)?;
        let mut insert_fetched = local
            .prepare_cached("INSERT OR REPLACE INTO hqdl_fetched VALUES (?1, ?2, ?3, ?4)")
            .map_err(to_error)?;
        let mut store_record = |row: &tokio_postgres::Row| -> Result<bool, StoreError> {
            let to_read_error = |e: tokio_postgres::Error| self.to_store_error(&e);
            let key: &str = row.try_get(0).map_err(to_read_error)?;
            let cells: &str = row.try_get(1).map_err(to_read_error)?;
            let version: i64 = row.try_get(2).map_err(to_read_error)?;
            let hash: i64 = row.try_get(3).map_err(to_read_error)?;
            insert_record.execute(params![expansion, key, cells, version]).map_err(to_error)?;
            insert_fetched.execute(params![expansion, key, hash, version]).map_err(to_error)?;
            Ok(true)
        };
        let select =
            format!("SELECT key, cells, version, hash FROM {}", self.qualify_name("hqdl_record"));
        if let Some(bucket) = bucket {
            let bucket_select = format!("{select} WHERE expansion = $1 AND bucket = $2");
            for row in self.query_rows(&bucket_select, &[&expansion, &bucket])? {
                store_record(&row)?;
            }
            return Ok(());
        }
        let known_buckets: Vec<String> = known.iter().map(ToString::to_string).collect();
        let known_buckets = known_buckets.join(", ");
        let select_all = format!(
            "{select} WHERE expansion = {} AND bucket <> ALL ('{{{known_buckets}}}'::integer[])",
            sql::quote_text(expansion)
        );
        self.for_each_row(&select_all, &mut store_record)
    }

    /// Reads the cells for `hqdl why` into the local tables: at most 20 records whose key begins
    /// with these values, and their completions.
    pub(crate) fn fetch_cells(
        &self,
        expansion: &str,
        key: &[String],
        local: &Connection,
    ) -> Result<(), StoreError> {
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        let mut select = format!(
            "SELECT key, cells, version FROM {} WHERE expansion = $1",
            self.qualify_name("hqdl_record")
        );
        for n in 0..key.len() {
            select.push_str(&format!(
                " AND lower(coalesce(key::json ->> {n}, 'NULL')) = lower(${})",
                n + 2
            ));
        }
        select.push_str(" ORDER BY key LIMIT 20");
        let mut params: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = vec![&expansion];
        params.extend(key.iter().map(|k| -> &(dyn tokio_postgres::types::ToSql + Sync) { k }));
        let mut insert = local
            .prepare("INSERT OR REPLACE INTO hqdl_record (expansion, key, cells, version) VALUES (?1, ?2, ?3, ?4)")
            .map_err(to_error)?;
        let mut ids: Vec<i64> = Vec::new();
        for row in self.query_rows(&select, &params)? {
            let read_text =
                |n: usize| row.try_get::<_, String>(n).map_err(|e| self.to_store_error(&e));
            let (key, cells) = (read_text(0)?, read_text(1)?);
            let record_cells: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&cells).unwrap_or_default();
            ids.extend(record_cells.values().filter_map(|cell| cell.get(2)?.as_i64()));
            insert.execute(params![expansion, key, cells, 0]).map_err(to_error)?;
        }
        self.fetch_completions(expansion, Some(&ids), local)
    }

    /// Reads all records of an expansion and their completions.
    pub(crate) fn fetch_all_records(
        &self,
        expansion: &str,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let transaction = self.begin_transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        self.fetch_records(expansion, None, &[], local)?;
        self.fetch_completions(expansion, None, local)?;
        transaction.commit()
    }

    /// Reads some completions of an expansion, or all of them.
    fn fetch_completions(
        &self,
        expansion: &str,
        ids: Option<&[i64]>,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        let select = format!(
            "SELECT id, run, model, prompt_hash, asked_at, input_tokens, output_tokens, cost_usd,
               cells, error, shown,
               to_jsonb(c) ->> 'parameters',
               coalesce((to_jsonb(c) ->> 'assumed_cache_writes')::bigint, 0),
               to_jsonb(c) ->> 'evidence' FROM {} AS c WHERE expansion = $1 AND ($2::bigint[] IS NULL OR id = ANY ($2))",
            self.qualify_name("hqdl_completion")
        );
        let mut insert = local
            .prepare("INSERT OR REPLACE INTO hqdl_completion VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .map_err(to_error)?;
        for row in self.query_rows(&select, &[&expansion, &ids])? {
            let mut values = vec![Sqlite::Text(expansion.to_owned())];
            for n in 0..14 {
                values.push(match n {
                    2..=4 | 9 | 11 | 13 => self.read_cell(&row, n, false)?,
                    7 => {
                        let usd: Option<f64> =
                            row.try_get(n).map_err(|e| self.to_store_error(&e))?;
                        usd.map_or(Sqlite::Null, Sqlite::Real)
                    }
                    _ => self.read_cell(&row, n, true)?,
                });
            }
            insert.execute(params_from_iter(values)).map_err(to_error)?;
        }
        Ok(())
    }

    /// Visits the published keys of an expansion.
    pub(crate) fn for_each_key(
        &self,
        expansion: &str,
        visit: &mut dyn FnMut(&str),
    ) -> Result<(), StoreError> {
        if !self.has_bookkeeping()? {
            return Ok(());
        }
        let transaction = self.begin_transaction("READ ONLY")?;
        let select = format!(
            "SELECT key FROM {} WHERE expansion = {}",
            self.qualify_name("hqdl_record"),
            sql::quote_text(expansion)
        );
        self.for_each_row(&select, &mut |row| {
            visit(row.try_get(0).map_err(|e| self.to_store_error(&e))?);
            Ok(true)
        })?;
        transaction.commit()
    }
}

/// Drops the local tables of an earlier read.
fn drop_local_objects(local: &Connection) -> rusqlite::Result<()> {
    let objects: Vec<(String, String)> = local
        .prepare("SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY type DESC")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    objects.iter().try_for_each(|(object_type, name)| {
        local.execute_batch(&format!("DROP {object_type} IF EXISTS {}", sql::quote_name(name)))
    })
}
