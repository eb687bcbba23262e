//! Lists the spec files, and detects cheaply whether a file has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::servers;
use crate::spec::is_server;

/// Number of file system checks since the process started.
static FILE_CHECK_COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the number of file system checks so far, for tests.
pub(super) fn file_check_count() -> u64 {
    FILE_CHECK_COUNT.load(Ordering::Relaxed)
}

/// Returns the specs by name: every `*.toml` of a directory, or the given file. A missing directory
/// contains no specs.
pub(super) fn find_specs(path: &Path) -> BTreeMap<String, PathBuf> {
    let named = |path: PathBuf| Some((derive_spec_name(&path)?, path));
    if path.is_file() {
        return named(path.to_owned()).into_iter().collect();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter_map(named).filter(|(_, p)| p.is_file()).collect()
}

/// Returns the spec's name for a file, or `None` if it is not a spec file.
pub(super) fn derive_spec_name(path: &Path) -> Option<String> {
    // A name that is not UTF-8 is reported when the file is read.
    let name = path.file_stem()?.to_string_lossy();
    let toml = path.extension().is_some_and(|e| e == "toml") && !name.starts_with('.');
    toml.then(|| name.into_owned())
}

/// Fingerprint of a file's contents, enough to detect a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileFingerprint {
    /// The file does not exist.
    Missing,
    /// Hash of a text file, so that saving the same text is not a change.
    Text(blake3::Hash),
    /// Change counter of a database server, as last reported.
    Server(Option<i64>),
    /// Size and modification time of any other file, and of its write-ahead log.
    File(u64, Option<SystemTime>, Option<(u64, Option<SystemTime>)>),
}

impl FileFingerprint {
    pub(super) fn read(path: &Path) -> Self {
        if is_server(path) {
            return Self::Server(servers::find_last_counter(path));
        }
        FILE_CHECK_COUNT.fetch_add(1, Ordering::Relaxed);
        let Ok(meta) = std::fs::metadata(path) else { return Self::Missing };
        if path.extension().is_some_and(|e| e == "toml" || e == "csv") {
            return std::fs::read(path).map_or(Self::Missing, |b| Self::Text(blake3::hash(&b)));
        }
        // Ignore an empty log, because readers create and remove it. The log is next to the
        // database itself, not next to a link to it.
        let real = path.canonicalize();
        let log = std::fs::metadata(append_suffix(real.as_deref().unwrap_or(path), "-wal"))
            .ok()
            .filter(|m| m.len() > 0);
        Self::File(meta.len(), meta.modified().ok(), log.map(|m| (m.len(), m.modified().ok())))
    }
}

/// Returns the paths by which the system reports a file: the path with its directory resolved, and
/// the fully resolved path.
pub(super) fn resolve_reported_paths(file: &Path) -> [PathBuf; 2] {
    FILE_CHECK_COUNT.fetch_add(1, Ordering::Relaxed);
    let resolved = file.ancestors().skip(1).find_map(|dir| {
        let rest = file.strip_prefix(dir).ok()?;
        Some(dir.canonicalize().ok()?.join(rest))
    });
    [
        resolved.unwrap_or_else(|| file.to_owned()),
        file.canonicalize().unwrap_or_else(|_| file.to_owned()),
    ]
}

/// Returns the path of a file that `SQLite` creates next to a database.
pub(super) fn append_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
