//! Removes the objects that hqdl created in a server's schema.

use super::DatabaseServer;
use crate::StoreError;
use crate::migrate::OWN_TABLES;
use hqdl_values::sql;

impl DatabaseServer {
    /// Drops the given tables and views of a spec, and the bookkeeping of its expansions. If
    /// `is_last` is true, drops all of hqdl's objects, and also the schema if hqdl created it and
    /// it contains no other objects.
    pub(crate) fn clean_schema(
        &self,
        spec: &str,
        objects: &[(String, String)],
        is_last: bool,
    ) -> Result<(), StoreError> {
        let publication = self.begin_publishing()?;
        for (view, _) in objects.iter().filter(|(_, object_type)| object_type == "view") {
            publication.drop_view(view)?;
        }
        let object_table = self.qualify_name("hqdl_object");
        for row in self.query_rows(
            &format!("SELECT name FROM {object_table} WHERE spec = $1 OR spec IS NOT NULL AND $2"),
            &[&spec, &is_last],
        )? {
            let name: String = row.try_get(0).map_err(|e| self.to_store_error(&e))?;
            publication.drop_expansion(&name)?;
        }
        if is_last {
            let created_schema: bool = self.query_one(
                &format!("SELECT EXISTS (SELECT 1 FROM {object_table} WHERE type = 'schema')"),
                &[],
            )?;
            let tables: Vec<String> =
                OWN_TABLES.iter().map(|table| self.qualify_name(table)).collect();
            self.execute_batch(&format!(
                "DROP VIEW {}; DROP VIEW {}; DROP TABLE {}; DROP FUNCTION {}()",
                self.qualify_name("hqdl_evidence"),
                self.qualify_name("hqdl_cell"),
                tables.join(", "),
                self.qualify_name("hqdl_note_edit")
            ))?;
            let has_other_objects = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c
                JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1)";
            if created_schema && !self.query_one::<bool>(has_other_objects, &[&self.schema])? {
                self.execute_batch("SAVEPOINT hqdl_schema")?;
                // Dropping the schema fails if it contains objects other than tables, such as
                // functions or types.
                if self
                    .execute_batch(&format!("DROP SCHEMA {}", sql::quote_name(&self.schema)))
                    .is_err()
                {
                    self.execute_batch("ROLLBACK TO SAVEPOINT hqdl_schema")?;
                }
            }
        }
        publication.commit()
    }
}
