//! A spec in force: read, checked against its database, and with its model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::listing::Stamp;
use super::metrics::{Metered, Metrics};
use super::servers;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::model::Model;
use crate::problem::Problems;
use crate::session::{Cache, Session, SpecOverrides};
use crate::spec::{Draft, Spec, is_server};

/// A spec that passed its checks.
pub(super) struct ActiveSpec {
    /// Hash of the parsed spec, independent of its formatting.
    pub(super) meaning: blake3::Hash,
    pub(super) spec: Spec,
    pub(super) warnings: Problems,
    /// Model of the spec, or the reason why there is none, such as a missing key.
    pub(super) model: Result<Arc<dyn Model>, Arc<Failure>>,
    /// Inputs of the model. While they stay the same, the model is reused, together with its rate
    /// limiter's state.
    made_from: String,
}

/// Result of reading a spec: the files it depends on, with their fingerprints before they were
/// read, and the spec.
pub(super) struct SpecReading {
    pub(super) files: Vec<(PathBuf, Stamp)>,
    pub(super) spec: Result<ActiveSpec, Failure>,
}

/// Reads and checks a spec.
pub(super) fn read(
    path: &Path,
    before: Option<&ActiveSpec>,
    facts: &Facts,
    metrics: &Arc<Metrics>,
) -> SpecReading {
    let mut files = vec![(path.to_owned(), Stamp::of(path))];
    let mut see = |path: PathBuf| {
        let stamp = Stamp::of(&path);
        files.push((path, stamp));
    };
    let draft = match Draft::read(path) {
        Ok(draft) => draft,
        Err(error) => return SpecReading { files, spec: Err(error.into()) },
    };
    see(path.with_extension("overrides.csv"));
    let database = draft.database();
    if is_server(&database) {
        servers::ask(&database);
    }
    see(database);
    draft.output().into_iter().for_each(&mut see);
    draft.alias_files().into_iter().for_each(&mut see);
    let cache = Cache::Open(facts.clone());
    let session = match Session::open(draft, &SpecOverrides::default(), cache) {
        Ok(session) => session,
        Err(problems) => return SpecReading { files, spec: Err(problems.into()) },
    };
    let spec = &session.spec;
    let recordings = || spec.all_models().flat_map(|m| &m.recordings);
    recordings().cloned().for_each(&mut see);
    let recordings: Vec<Stamp> = recordings().map(|p| Stamp::of(p)).collect();
    let questions: Vec<_> =
        spec.expansions.iter().flat_map(|e| &e.columns).map(|c| (&c.name, &c.bindings)).collect();
    let made_from = format!(
        "{:?} {:?} {:?} {recordings:?} {questions:?}",
        spec.model, spec.models, spec.limits
    );
    let model = match before.filter(|b| b.made_from == made_from && b.model.is_ok()) {
        Some(before) => before.model.clone(),
        None => {
            session.model().map(|model| Metered::of(model, metrics)).map_err(|e| Arc::new(e.into()))
        }
    };
    let meaning = blake3::hash(format!("{spec:?} {recordings:?}").as_bytes());
    let Session { spec, warnings, .. } = session;
    SpecReading { files, spec: Ok(ActiveSpec { meaning, spec, warnings, model, made_from }) }
}
