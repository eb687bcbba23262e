//! Counts the queries that clients have run since the daemon started.

use std::sync::{Arc, Mutex, PoisonError};

use crate::query::Meta;

/// Maximum number of different queries to remember.
const MAX_QUERIES: usize = 500;
/// Maximum length of a remembered query, in bytes.
const MAX_SQL_BYTES: usize = 16 << 10;

/// A query, and the number of times that clients ran it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueryUse {
    /// Name of the spec.
    pub(super) spec: String,
    pub(super) sql: String,
    /// Expansions and columns that answered the query's questions.
    pub(super) routes: Vec<(String, String)>,
    pub(super) count: u64,
}

/// The most recent queries; the latest one is last.
#[derive(Debug, Clone, Default)]
pub(super) struct QueryUses(Arc<Mutex<Vec<QueryUse>>>);

impl QueryUses {
    /// Counts a query that has run. Queries that differ only in white space count as the same
    /// query.
    pub(super) fn count_query(&self, spec: &str, sql: &str, meta: &Meta) {
        if sql.len() > MAX_SQL_BYTES {
            return;
        }
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |used: &QueryUse| {
            used.spec == spec && used.sql.split_whitespace().eq(sql.split_whitespace())
        };
        let earlier = uses.iter().position(is_same).map(|at| uses.remove(at));
        let count = earlier.map_or(0, |used| used.count) + 1;
        if uses.len() == MAX_QUERIES {
            uses.remove(0);
        }
        let sql = sql.trim().to_owned();
        let routes = meta.routes.iter().map(|r| (r.expansion.clone(), r.column.clone())).collect();
        uses.push(QueryUse { spec: spec.to_owned(), sql, routes, count });
    }

    /// Returns the queries of a spec, the most frequent first.
    pub(super) fn find_queries(&self, spec: &str) -> Vec<QueryUse> {
        let uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<QueryUse> =
            uses.iter().rev().filter(|u| u.spec == spec).cloned().collect();
        found.sort_by_key(|used| std::cmp::Reverse(used.count));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_QUERIES, QueryUses};
    use crate::query::Meta;

    #[test]
    fn a_query_is_counted_and_the_oldest_is_forgotten() {
        let uses = QueryUses::default();
        uses.count_query("x", "SELECT 1", &Meta::default());
        uses.count_query("x", "SELECT a", &Meta::default());
        uses.count_query("x", " SELECT\n1", &Meta::default());
        uses.count_query("y", "SELECT 1", &Meta::default());
        let found = uses.find_queries("x");
        let counts: Vec<(&str, u64)> = found.iter().map(|u| (&*u.sql, u.count)).collect();
        assert_eq!(counts, [("SELECT\n1", 2), ("SELECT a", 1)]);
        for n in 0..MAX_QUERIES {
            uses.count_query("z", &format!("SELECT {n}"), &Meta::default());
        }
        assert!(uses.find_queries("x").is_empty());
    }
}
