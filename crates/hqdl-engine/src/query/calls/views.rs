//! Calls that published tables can answer. Each call must be bound to a column whose table exists,
//! was built from this spec, these facts and these overrides, and contains no value that has
//! changed since. In any other case the SQL function answers, which reads the facts themselves.

use std::collections::{BTreeMap, HashMap};

use crate::query::calls::Calls;
use crate::query::guard::Guard;
use crate::query::targets::Target;
use crate::query::{QueryError, Request};
use hqdl_database::publish::affinity;
use hqdl_database::standing::PublishedVersion;
use hqdl_spec::Catalog;
use hqdl_spec::overrides::Overrides;
use hqdl_sql::blendsql::rules::stored_columns::View;

/// A bound call that a published table could answer.
#[derive(Debug, Clone)]
pub(in crate::query) struct Stored {
    /// Position of the expansion in the spec.
    pub expansion: usize,
    /// SQL expression of the value over columns of the expansion.
    pub value: String,
    /// Positions of the columns that `value` reads.
    pub reads: Vec<usize>,
    /// Source table of the key.
    pub source: String,
    /// Key columns at the call, qualified with their tables.
    pub keys: Vec<String>,
    /// Table of the query that has the whole key.
    pub of: Option<String>,
}

/// Returns how to read each call from a published table; `None` if any call cannot be read from
/// one.
///
/// # Errors
/// [`QueryError`] if the journal fails.
pub(in crate::query) fn views(
    calls: &Calls,
    targets: &[Target],
    overrides: Option<&Overrides>,
    request: &Request<'_>,
    guard: &Guard,
) -> Result<Option<BTreeMap<usize, View>>, QueryError> {
    let Some(overrides) = overrides else { return Ok(None) };
    let mut known: HashMap<usize, Option<PublishedVersion>> = HashMap::new();
    let mut views = BTreeMap::new();
    let server = guard.database().url().is_some();
    for n in 0..calls.sites.len() {
        let Some(stored) = calls.stored.get(&n) else { return Ok(None) };
        let expansion = &request.spec.expansions[stored.expansion];
        let standing = known.entry(stored.expansion).or_insert_with(|| {
            let standing = guard.database().standing(request.spec, &expansion.name)?;
            // Position 0, because changes are checked for each column below.
            let place = (request.facts.history().id().ok()?, 0);
            let model = request.choice(expansion).name;
            let now =
                PublishedVersion::now(request.spec, stored.expansion, &model, overrides, place);
            let joined = server || joins(stored, request, guard);
            (standing.holds(&now) && joined).then_some(standing)
        });
        let Some(standing) = standing else { return Ok(None) };
        let Some(target) = targets.iter().find(|t| t.in_spec == Some(stored.expansion)) else {
            return Ok(None);
        };
        let history = request.facts.history();
        for at in &stored.reads {
            let column = &expansion.columns[*at];
            let changed =
                target.wanted.meaning(*at).map_or(Ok(i64::MAX), |m| history.changed(m))?;
            if !standing.means(column) || changed > standing.head {
                return Ok(None);
            }
        }
        let name = |at: &usize| expansion.columns[*at].name.clone();
        let view = View {
            table: expansion.name.clone(),
            names: expansion.key.names().to_vec(),
            keys: if server { typed(stored, request, guard) } else { stored.keys.clone() },
            of: stored.of.clone(),
            value: match stored.value.strip_suffix(" AS REAL)").filter(|_| server) {
                // On a server, REAL has half the width.
                Some(value) => format!("{value} AS DOUBLE PRECISION)"),
                None => stored.value.clone(),
            },
            reads: stored.reads.iter().map(name).collect(),
        };
        views.insert(n, view);
    }
    Ok(Some(views))
}

/// Returns the key cast to the column types of the published table, since a server does not compare
/// different types.
fn typed(stored: &Stored, request: &Request<'_>, guard: &Guard) -> Vec<String> {
    let expansion = &request.spec.expansions[stored.expansion];
    let columns = guard.database().columns(&expansion.name).unwrap_or_default();
    let kind = |name: &String| columns.iter().find(|(c, _)| c == name)?.1.clone();
    let keys = stored.keys.iter().zip(expansion.key.names());
    keys.map(|(key, name)| match kind(name) {
        Some(kind) => format!("CAST({key} AS {kind})"),
        None => key.clone(),
    })
    .collect()
}

/// Returns whether the key's columns have the affinities of the published table, so that at most
/// one row has the key.
fn joins(stored: &Stored, request: &Request<'_>, guard: &Guard) -> bool {
    let expansion = &request.spec.expansions[stored.expansion];
    let types = |table: &str| guard.database().columns(table).unwrap_or_default();
    let (ours, theirs) = (types(&expansion.name), types(&stored.source));
    expansion.key.names().iter().all(|key| {
        let of = |columns: &[(String, Option<String>)]| {
            let found = columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(key))?;
            Some(affinity(found.1.as_deref()))
        };
        of(&ours).is_some() && of(&ours) == of(&theirs)
    })
}
