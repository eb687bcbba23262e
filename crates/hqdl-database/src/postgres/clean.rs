//! Removes the objects that hqdl created in a schema of a server.

use super::DatabaseServer;
use crate::StoreError;
use hqdl_values::sql;

impl DatabaseServer {
    /// Drops these tables and views of a spec and the bookkeeping of its expansions. If `is_last`
    /// is true, drops all of hqdl's objects, and the schema if hqdl created it and it contains no
    /// other objects.
    pub(crate) fn clean(
        &self,
        spec: &str,
        objects: &[(String, String)],
        last: bool,
    ) -> Result<(), StoreError> {
        let cleaning = self.publish()?;
        for (view, _) in objects.iter().filter(|(_, kind)| kind == "view") {
            cleaning.drop_view(view)?;
        }
        let own = self.own("hqdl_expansion");
        for row in
            self.rows(&format!("SELECT name FROM {own} WHERE spec = $1 OR $2"), &[&spec, &last])?
        {
            let name: String = row.try_get(0).map_err(|e| self.error(&e))?;
            cleaning.drop_expansion(&name)?;
        }
        if last {
            let made = "SELECT coalesce(bool_or(made_schema), false) FROM";
            let made: bool = self.one(&format!("{made} {}", self.own("hqdl_migration")), &[])?;
            let tables = [
                "hqdl_edit",
                "hqdl_bucket",
                "hqdl_record",
                "hqdl_completion",
                "hqdl_expansion",
                "hqdl_object",
                "hqdl_migration",
            ];
            let tables: Vec<String> = tables.iter().map(|table| self.own(table)).collect();
            self.batch(&format!(
                "DROP VIEW {}; DROP TABLE {}; DROP FUNCTION {}()",
                self.own("hqdl_cell"),
                tables.join(", "),
                self.own("hqdl_note_edit")
            ))?;
            let others = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c
                JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1)";
            if made && !self.one::<bool>(others, &[&self.schema])? {
                self.batch("SAVEPOINT hqdl_schema")?;
                // The schema may contain objects other than tables.
                if self.batch(&format!("DROP SCHEMA {}", sql::name(&self.schema))).is_err() {
                    self.batch("ROLLBACK TO SAVEPOINT hqdl_schema")?;
                }
            }
        }
        cleaning.commit()
    }
}
