//! Request features that endpoints accept.

use crate::FactsError;
use crate::history::EndpointFeatures;
use crate::postgres::Server;

impl EndpointFeatures for Server {
    fn load_endpoint_features(&self, endpoint: &str) -> Result<Option<String>, FactsError> {
        let sql = "SELECT form FROM hqdl.request_form
             WHERE endpoint = $1 AND heard_at > now() - interval '1 day'";
        self.query_first(sql, &[&endpoint], |r| Ok(r.try_get(0)?))
    }

    fn store_endpoint_features(
        &self,
        endpoint: &str,
        form: Option<&str>,
    ) -> Result<(), FactsError> {
        let Some(form) = form else {
            return self
                .execute_sql("DELETE FROM hqdl.request_form WHERE endpoint = $1", &[&endpoint]);
        };
        let sql = "INSERT INTO hqdl.request_form (endpoint, form) VALUES ($1, $2)
             ON CONFLICT (endpoint) DO UPDATE SET form = excluded.form, heard_at = excluded.heard_at";
        self.execute_sql(sql, &[&endpoint, &form])
    }
}
