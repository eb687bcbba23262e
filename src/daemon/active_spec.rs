//! Reads a spec, checks it against its database and connects its model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::metrics::{MeteredModel, Metrics};
use super::servers;
use super::spec_files::FileFingerprint;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::model::Model;
use crate::problem::Problems;
use crate::session::{Cache, Session, SpecOverrides};
use crate::spec::{Spec, UncheckedSpec, is_server};

/// A spec that passed its checks.
pub(super) struct ActiveSpec {
    /// Hash of the parsed spec, independent of its formatting.
    pub(super) content_hash: blake3::Hash,
    pub(super) spec: Spec,
    pub(super) warnings: Problems,
    /// Model of the spec, or the failure to connect it, such as a missing API key.
    pub(super) model: Result<Arc<dyn Model>, Arc<Failure>>,
    /// Settings that determine the model. If a new version of the spec has the same settings, the
    /// daemon reuses the model with its rate limiter's state.
    model_inputs: String,
}

/// Result of reading a spec: the spec, and the files that it depends on. The fingerprints of the
/// files were taken before hqdl read them.
pub(super) struct SpecReading {
    pub(super) files: Vec<(PathBuf, FileFingerprint)>,
    pub(super) spec: Result<ActiveSpec, Failure>,
}

/// Reads and checks a spec.
pub(super) fn read_spec(
    path: &Path,
    previous: Option<&ActiveSpec>,
    facts: &Facts,
    metrics: &Arc<Metrics>,
) -> SpecReading {
    let mut files = vec![(path.to_owned(), FileFingerprint::read(path))];
    let mut add_file = |path: PathBuf| {
        let fingerprint = FileFingerprint::read(&path);
        files.push((path, fingerprint));
    };
    let draft = match UncheckedSpec::read(path) {
        Ok(draft) => draft,
        Err(error) => return SpecReading { files, spec: Err(error.into()) },
    };
    add_file(path.with_extension("overrides.csv"));
    let database = draft.database();
    if is_server(&database) {
        servers::start_polling(&database);
    }
    add_file(database);
    draft.output().into_iter().for_each(&mut add_file);
    draft.list_alias_files().into_iter().for_each(&mut add_file);
    let cache = Cache::Open(facts.clone());
    let session = match Session::open(draft, &SpecOverrides::default(), cache) {
        Ok(session) => session,
        Err(problems) => return SpecReading { files, spec: Err(problems.into()) },
    };
    let spec = &session.spec;
    let recordings = || spec.all_models().flat_map(|m| &m.recordings);
    recordings().cloned().for_each(&mut add_file);
    let recordings: Vec<FileFingerprint> = recordings().map(|p| FileFingerprint::read(p)).collect();
    let questions: Vec<_> =
        spec.expansions.iter().flat_map(|e| &e.columns).map(|c| (&c.name, &c.bindings)).collect();
    let model_inputs = format!(
        "{:?} {:?} {:?} {recordings:?} {questions:?}",
        spec.model, spec.models, spec.limits
    );
    let model = match previous.filter(|b| b.model_inputs == model_inputs && b.model.is_ok()) {
        Some(previous) => previous.model.clone(),
        None => session
            .connect_model()
            .map(|model| MeteredModel::wrap_model(model, metrics))
            .map_err(|e| Arc::new(e.into())),
    };
    let content_hash = blake3::hash(format!("{spec:?} {recordings:?}").as_bytes());
    let Session { spec, warnings, .. } = session;
    SpecReading {
        files,
        spec: Ok(ActiveSpec { content_hash, spec, warnings, model, model_inputs }),
    }
}
