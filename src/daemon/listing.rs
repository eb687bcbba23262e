//! What stands in files, cheaply: which specs there are, and whether what they
//! depend on is still what it was.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::servers;
use crate::spec::is_server;

/// How often a file was looked at or looked up since the process began.
static LOOKS: AtomicU64 = AtomicU64::new(0);

/// How often a file was looked at, to see a change or to find its names.
pub(super) fn looks() -> u64 {
    LOOKS.load(Ordering::Relaxed)
}

/// The specs of a directory, by name: every `*.toml` in it, or the one file that
/// was named. A directory that is not there has none.
pub(super) fn specs(place: &Path) -> BTreeMap<String, PathBuf> {
    let named = |path: PathBuf| Some((name(&path)?, path));
    if place.is_file() {
        return named(place.to_owned()).into_iter().collect();
    }
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter_map(named).filter(|(_, p)| p.is_file()).collect()
}

/// The name of the spec that a file is, when its own name is that of a spec.
pub(super) fn name(path: &Path) -> Option<String> {
    // One that is not UTF-8 is told of when it is read.
    let name = path.file_stem()?.to_string_lossy();
    let toml = path.extension().is_some_and(|e| e == "toml") && !name.starts_with('.');
    toml.then(|| name.into_owned())
}

/// What a file holds, as far as it takes to see a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stamp {
    /// It is not there.
    Missing,
    /// A text, by its content: an editor that saves the same thing changes nothing.
    Text(blake3::Hash),
    /// A database on a server, by what it said last.
    Server(Option<i64>),
    /// Anything greater, by size and time, with its write-ahead log.
    File(u64, Option<SystemTime>, Option<(u64, Option<SystemTime>)>),
}

impl Stamp {
    /// The stamp of a file.
    pub(super) fn of(path: &Path) -> Self {
        if is_server(path) {
            return Self::Server(servers::said(path));
        }
        LOOKS.fetch_add(1, Ordering::Relaxed);
        let Ok(meta) = std::fs::metadata(path) else { return Self::Missing };
        if path.extension().is_some_and(|e| e == "toml" || e == "csv") {
            return std::fs::read(path).map_or(Self::Missing, |b| Self::Text(blake3::hash(&b)));
        }
        // A log without a page is there or not as readers come and go.
        // It stands beside the database itself, not beside a link to it.
        let real = path.canonicalize();
        let log = std::fs::metadata(beside(real.as_deref().unwrap_or(path), "-wal"))
            .ok()
            .filter(|m| m.len() > 0);
        Self::File(meta.len(), meta.modified().ok(), log.map(|m| (m.len(), m.modified().ok())))
    }
}

/// The names by which the system tells of a file: where it was put, and where it
/// is when that is a link.
pub(super) fn names(file: &Path) -> [PathBuf; 2] {
    LOOKS.fetch_add(1, Ordering::Relaxed);
    let put = file.ancestors().skip(1).find_map(|dir| {
        let rest = file.strip_prefix(dir).ok()?;
        Some(dir.canonicalize().ok()?.join(rest))
    });
    [
        put.unwrap_or_else(|| file.to_owned()),
        file.canonicalize().unwrap_or_else(|_| file.to_owned()),
    ]
}

/// A file that `SQLite` puts beside a database.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
