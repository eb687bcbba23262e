//! Query helpers, and the dictionaries: models, value lists and column identities, each with a
//! permanent id.

use deadpool_postgres::Transaction;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::FactsError;
use crate::history::Dictionary;
use crate::postgres::Server;
use crate::postgres::connection::{Client, LIMIT_IDLE_TIME, WorkResult};
use crate::postgres::read_cache;
use hqdl_values::key::{ColumnIdentity, ListHash};

pub(super) type Parameter<'v> = &'v (dyn ToSql + Sync);
pub(super) type Parameters<'v> = [&'v dyn TypedParameter];

/// A parameter that knows its `PostgreSQL` type. If all types are known, a statement need not be
/// prepared, which saves a round trip.
pub(super) trait TypedParameter: Sync {
    /// Returns the value in the form that the driver requires.
    fn value(&self) -> Parameter<'_>;
    fn sql_type(&self) -> Type;
}

/// `PostgreSQL` type of a Rust type.
pub(super) trait PostgresType {
    const TYPE: Type;
}

impl<T: PostgresType + ToSql + Sync> TypedParameter for T {
    fn value(&self) -> Parameter<'_> {
        self
    }

    fn sql_type(&self) -> Type {
        T::TYPE
    }
}

impl<T: PostgresType> PostgresType for &T {
    const TYPE: Type = T::TYPE;
}

impl<T: PostgresType> PostgresType for Option<T> {
    const TYPE: Type = T::TYPE;
}

macro_rules! sql_types {
    ($($rust:ty => $sql:ident),* $(,)?) => {
        $(impl PostgresType for $rust {
            const TYPE: Type = Type::$sql;
        })*
    };
}

sql_types! {
    bool => BOOL, i32 => INT4, i64 => INT8, f64 => FLOAT8, String => TEXT, &str => TEXT,
    Vec<u8> => BYTEA, Vec<i32> => INT4_ARRAY, Vec<i64> => INT8_ARRAY, Vec<String> => TEXT_ARRAY,
    Vec<Vec<u8>> => BYTEA_ARRAY, &[i32] => INT4_ARRAY, &[i64] => INT8_ARRAY, &[String] => TEXT_ARRAY,
}

fn strip_types<'v>(values: &Parameters<'v>) -> Vec<Parameter<'v>> {
    values.iter().map(|value| value.value()).collect()
}

pub(super) fn attach_types<'v>(values: &Parameters<'v>) -> Vec<(Parameter<'v>, Type)> {
    values.iter().map(|value| (value.value(), value.sql_type())).collect()
}

impl Server {
    /// Runs a query and blocks this thread. The query must be idempotent, because it may be sent
    /// again.
    pub(super) fn query_rows(
        &self,
        sql: &str,
        values: &Parameters<'_>,
    ) -> Result<Vec<Row>, FactsError> {
        let far = self.link.is_high_latency();
        self.link.block_on(self.link.with_client(|client| async move {
            if far {
                return Ok(client.query_typed(sql, &attach_types(values)).await?);
            }
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, &strip_types(values)).await?)
        }))
    }

    /// Runs a query and returns its first row, if any.
    pub(super) fn query_first<T>(
        &self,
        sql: &str,
        values: &Parameters<'_>,
        read: impl Fn(&Row) -> WorkResult<T>,
    ) -> Result<Option<T>, FactsError> {
        self.query_rows(sql, values)?.first().map(|row| self.read_row(row, &read)).transpose()
    }

    /// Runs a query and returns all rows.
    pub(super) fn query_all<T>(
        &self,
        sql: &str,
        values: &Parameters<'_>,
        read: impl Fn(&Row) -> WorkResult<T>,
    ) -> Result<Vec<T>, FactsError> {
        self.query_rows(sql, values)?.iter().map(|row| self.read_row(row, &read)).collect()
    }

    /// Runs a query that always returns a row.
    pub(super) fn query_one<T>(
        &self,
        sql: &str,
        values: &Parameters<'_>,
        read: impl Fn(&Row) -> WorkResult<T>,
    ) -> Result<T, FactsError> {
        self.query_first(sql, values, read)?
            .ok_or_else(|| self.server_error("a query returned no row"))
    }

    pub(super) fn read_row<T>(
        &self,
        row: &Row,
        read: impl Fn(&Row) -> WorkResult<T>,
    ) -> Result<T, FactsError> {
        read(row).map_err(|failed| match failed {
            super::connection::WorkError::Postgres(e) => {
                self.server_error(&hqdl_database::postgres::address::describe_connection_error(&e))
            }
            super::connection::WorkError::Facts(e) => e,
        })
    }

    /// Runs an idempotent statement that returns nothing.
    pub(super) fn execute_sql(&self, sql: &str, values: &Parameters<'_>) -> Result<(), FactsError> {
        self.query_rows(sql, values).map(drop)
    }

    /// Runs `work` in a transaction that takes effect only once, even if it is sent again. Returns
    /// the result of `work`.
    pub(super) fn transact_once(
        &self,
        work: &impl AsyncFn(&Transaction<'_>) -> WorkResult<i64>,
    ) -> Result<i64, FactsError> {
        let token = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let token = token.as_str();
        self.link.block_on(self.link.with_client(|mut client: Client| async move {
            let all = client.transaction().await?;
            let sql = "SELECT result FROM hqdl.call WHERE token = $1";
            let of_token = attach_types(&[&token]);
            let ((), done) = tokio::try_join!(
                biased;
                all.batch_execute(LIMIT_IDLE_TIME),
                all.query_typed_opt(sql, &of_token)
            )?;
            if let Some(done) = done {
                return Ok(done.try_get(0)?);
            }
            let result = work(&all).await?;
            let sql = "INSERT INTO hqdl.call (token, result) VALUES ($1, $2)";
            all.query_typed(sql, &attach_types(&[&token, &result])).await?;
            all.commit().await?;
            Ok(result)
        }))
    }

    /// Returns the id of a dictionary text; inserts the text if it is new.
    fn intern(
        &self,
        (of, text): (read_cache::DictionaryTable, &str),
        [look, enter]: [&str; 2],
        values: &Parameters<'_>,
    ) -> Result<u32, FactsError> {
        self.look_up_id(of, text, || self.insert_if_new(look, enter, values))
    }

    fn insert_if_new(
        &self,
        look: &str,
        enter: &str,
        values: &Parameters<'_>,
    ) -> Result<u32, FactsError> {
        let id = |row: &Row| Ok(row.try_get::<_, i32>(0)?.cast_unsigned());
        if let Some(id) = self.query_first(look, &values[..1], id)? {
            return Ok(id);
        }
        self.execute_sql(enter, values)?;
        self.query_one(look, &values[..1], id)
    }
}

impl Dictionary for Server {
    fn intern_model(&self, name: &str) -> Result<u32, FactsError> {
        let name = super::replace_nul_chars(name);
        self.intern(
            (read_cache::DictionaryTable::Model, &name),
            [
                "SELECT id FROM hqdl.model WHERE name = $1",
                "INSERT INTO hqdl.model (name, recorded)
                 VALUES ($1, $1 LIKE '% (recording ________)')
                 ON CONFLICT (name) DO NOTHING",
            ],
            &[&name],
        )
    }

    fn intern_column_identity(&self, identity: &ColumnIdentity) -> Result<u32, FactsError> {
        let fingerprint = identity.fingerprint();
        let text = serde_json::to_string(identity).unwrap_or_default();
        self.intern(
            (read_cache::DictionaryTable::ColumnIdentity, fingerprint.as_str()),
            [
                "SELECT id FROM hqdl.meaning WHERE fingerprint = $1",
                "INSERT INTO hqdl.meaning (fingerprint, name, meaning) VALUES ($1, $2, $3)
                 ON CONFLICT (fingerprint) DO NOTHING",
            ],
            &[&fingerprint.as_str(), &super::replace_nul_chars(&identity.column), &text],
        )
    }

    fn list_column_identity_ids(&self, column: &str) -> Result<Vec<u32>, FactsError> {
        let sql = "SELECT id FROM hqdl.meaning WHERE name = $1";
        self.look_up_identity_ids(column, || {
            self.query_all(sql, &[&super::replace_nul_chars(column)], |r| {
                Ok(r.try_get::<_, i32>(0)?.cast_unsigned())
            })
        })
    }

    fn intern_value_list(&self, hash: &ListHash) -> Result<u32, FactsError> {
        self.intern(
            (read_cache::DictionaryTable::ValueList, hash.as_str()),
            [
                "SELECT id FROM hqdl.value_list WHERE hash = $1",
                "INSERT INTO hqdl.value_list (hash) VALUES ($1) ON CONFLICT (hash) DO NOTHING",
            ],
            &[&super::replace_nul_chars(hash.as_str())],
        )
    }

    fn list_models(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.query_all("SELECT id, name FROM hqdl.model ORDER BY id", &[], read_entry)
    }

    fn list_value_lists(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.query_all("SELECT id, hash FROM hqdl.value_list ORDER BY id", &[], read_entry)
    }

    fn list_column_identities(&self) -> Result<Vec<(u32, String)>, FactsError> {
        self.query_all("SELECT id, meaning FROM hqdl.meaning ORDER BY id", &[], read_entry)
    }
}

fn read_entry(row: &Row) -> WorkResult<(u32, String)> {
    Ok((row.try_get::<_, i32>(0)?.cast_unsigned(), row.try_get(1)?))
}
