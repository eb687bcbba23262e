//! The schema `hqdl`: created and migrated under a lock, and left unchanged if a newer program has
//! migrated it.

use hqdl_migrations::POSTGRES;
use tokio_postgres::{GenericClient, IsolationLevel};

use crate::FactsError;
use crate::postgres::connection::{Client, ConnectionPool, LIMIT_IDLE_TIME, WorkError, WorkResult};

/// Version of the last migration.
const LATEST_VERSION: i32 = POSTGRES[POSTGRES.len() - 1].0;
/// Advisory lock of migrations: the ASCII bytes of `hqdl`.
const MIGRATION_LOCK: i64 = 0x6871_646c;

/// Migrates the schema to the latest version, if necessary.
pub(super) async fn migrate(link: &ConnectionPool) -> Result<(), FactsError> {
    link.with_client(|client| async move {
        // An up-to-date schema needs no lock.
        if read_version(link, &**client).await? < LATEST_VERSION {
            apply_migrations(link, client).await?;
        }
        Ok(())
    })
    .await
}

async fn read_version(link: &ConnectionPool, client: &impl GenericClient) -> WorkResult<i32> {
    // Do not use `to_regclass` here, because its answer may predate the lock.
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c
                 JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE n.nspname = 'hqdl' AND c.relname = 'migration')";
    if !client.query_typed_one(sql, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let sql = "SELECT coalesce(max(version), 0) FROM hqdl.migration";
    let version: i32 = client.query_typed_one(sql, &[]).await?.try_get(0)?;
    if version > LATEST_VERSION {
        return Err(WorkError::Facts(FactsError::Refused {
            url: link.display_url.clone(),
            message: format!(
                "its schema has version {version}, but this hqdl supports versions up to {LATEST_VERSION}"
            ),
            hint: "use the hqdl that wrote it, or a newer one; hqdl changed nothing",
        }));
    }
    Ok(version)
}

async fn apply_migrations(link: &ConnectionPool, mut client: Client) -> WorkResult<()> {
    // Each statement must see what was committed while this process waited for the lock.
    let all = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let all = all.start().await?;
    let lock = format!("{LIMIT_IDLE_TIME}; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
    all.batch_execute(&lock).await?;
    // Another process may have migrated the schema in the meantime.
    let done = read_version(link, &*all).await?;
    let mut statements = String::new();
    if done == 0 {
        // A role without permission to create schemas may use one that was created for it.
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'hqdl')";
        if !all.query_typed_one(sql, &[]).await?.try_get::<_, bool>(0)? {
            statements.push_str("CREATE SCHEMA hqdl;");
        }
        statements.push_str(
            "CREATE TABLE IF NOT EXISTS hqdl.migration (
               version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());",
        );
    }
    for (number, sql) in POSTGRES.iter().filter(|(number, _)| *number > done) {
        statements.push_str(sql);
        statements.push_str(&format!("INSERT INTO hqdl.migration (version) VALUES ({number});"));
    }
    all.batch_execute(&statements).await?;
    Ok(all.commit().await?)
}
