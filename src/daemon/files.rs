//! Indexes and watches the files that specs depend on, by the paths that the system reports. The
//! cost of handling a change depends on the number of changed files and affected specs, not on the
//! total number of specs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::servers;
use super::spec_files::{append_suffix, resolve_reported_paths};
use super::watch::Watch;

/// Maps files to the specs that depend on them.
#[derive(Default)]
pub(super) struct FileIndex {
    /// Names of the specs that depend on each path. Includes every path of a file and of its
    /// write-ahead log.
    specs: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Paths and directories of each spec's files.
    dependencies: BTreeMap<String, SpecDependencies>,
    /// Watcher; `None` if the files are polled.
    watch: Option<Watch>,
}

#[derive(Default)]
struct SpecDependencies {
    names: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
}

impl FileIndex {
    pub(super) fn with_watch(watch: Option<Watch>) -> Self {
        Self { watch, ..Self::default() }
    }

    /// Sets the files that a spec depends on. Resolves all paths and directories again, because a
    /// file may have moved since the last call.
    pub(super) fn set_files<'f>(&mut self, spec: &str, files: impl Iterator<Item = &'f Path>) {
        let mut current = SpecDependencies::default();
        for file in files {
            let [linked, real] = resolve_reported_paths(file);
            for name in [&linked, &real] {
                current.directories.extend(find_nearest_directory(name).map(Path::to_owned));
            }
            for name in [linked, real, file.to_owned()] {
                current.names.insert(append_suffix(&name, "-wal"));
                current.names.insert(name);
            }
        }
        let previous = self.dependencies.remove(spec).unwrap_or_default();
        for name in current.names.difference(&previous.names) {
            self.specs.entry(name.clone()).or_default().insert(spec.to_owned());
        }
        self.remove_names(spec, previous.names.difference(&current.names));
        if let Some(watch) = &mut self.watch {
            current
                .directories
                .iter()
                .for_each(|d| watch.watch_directory(d, !previous.directories.contains(d)));
            previous
                .directories
                .difference(&current.directories)
                .for_each(|d| watch.release_directory(d));
        }
        self.dependencies.insert(spec.to_owned(), current);
    }

    pub(super) fn remove_spec(&mut self, spec: &str) {
        let Some(previous) = self.dependencies.remove(spec) else { return };
        self.remove_names(spec, previous.names.iter());
        if let Some(watch) = &mut self.watch {
            previous.directories.iter().for_each(|d| watch.release_directory(d));
        }
    }

    fn remove_names<'n>(&mut self, spec: &str, names: impl Iterator<Item = &'n PathBuf>) {
        for name in names {
            if let Some(specs) = self.specs.get_mut(name) {
                specs.remove(spec);
                if specs.is_empty() {
                    self.specs.remove(name);
                    servers::stop_polling(name);
                }
            }
        }
    }

    /// Returns the specs that the changed paths affect. A path can name a file, its write-ahead
    /// log, or a parent directory of the file.
    pub(super) fn find_affected_specs(&self, paths: &[PathBuf]) -> BTreeSet<String> {
        // In the map's order, the paths below a directory directly follow it.
        let below = |path| self.specs.range::<PathBuf, _>(path..);
        let found =
            paths.iter().flat_map(|p| below(p).take_while(move |(name, _)| name.starts_with(p)));
        found.flat_map(|(_, specs)| specs.iter().cloned()).collect()
    }

    /// Renews the watches of directories that may have been removed or replaced.
    pub(super) fn renew_watches(&mut self, changed: &[PathBuf]) {
        if let Some(watch) = &mut self.watch {
            watch.renew_watches(changed);
        }
    }

    /// Returns true if the system reports changes.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns the reason why some changes are not reported, if any.
    pub(super) fn watch_error(&self) -> Option<String> {
        self.watch.as_ref()?.error_message()
    }
}

/// Returns the directory to watch for a file: the file's directory, or the nearest existing
/// ancestor.
fn find_nearest_directory(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|dir| dir.is_dir())
}
