//! Request features that endpoints accept, stored so that later commands need not discover them
//! again.

use rusqlite::{OptionalExtension, params};

use crate::FactsError;
use crate::history::EndpointFeatures;
use crate::journal::Journal;
use crate::journal::dictionary::read_text;
use crate::journal::rates::{REMEMBERED, as_millis, current_millis};

impl EndpointFeatures for Journal {
    fn load_endpoint_features(&self, endpoint: &str) -> Result<Option<String>, FactsError> {
        self.with_connection(|c| {
            c.prepare_cached("SELECT form FROM request_form WHERE endpoint = ?1 AND heard_at > ?2")?
                .query_row(params![endpoint, current_millis() - as_millis(REMEMBERED)], |r| {
                    // Ignore a damaged entry; the next request discovers the features again.
                    read_text(r, 0)
                })
                .optional()
                .map(Option::flatten)
        })
    }

    fn store_endpoint_features(
        &self,
        endpoint: &str,
        form: Option<&str>,
    ) -> Result<(), FactsError> {
        self.with_connection(|c| match form {
            Some(form) => c.execute(
                "INSERT OR REPLACE INTO request_form (endpoint, form, heard_at) VALUES (?1, ?2, ?3)",
                params![endpoint, form, current_millis()],
            ),
            None => c.execute("DELETE FROM request_form WHERE endpoint = ?1", [endpoint]),
        })
        .map(drop)
    }
}
