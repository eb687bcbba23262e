//! Index and watches of the files that specs depend on, by the paths that the system reports. The
//! cost of a change depends on the changed files and the specs that depend on them, not on the
//! number of specs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::listing::{beside, names};
use super::servers;
use super::watch::Watch;

/// Maps files to the specs that depend on them.
#[derive(Default)]
pub(super) struct Files {
    /// Specs by every path of a file and of its write-ahead log.
    specs: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Paths and directories of each spec's files.
    of: BTreeMap<String, Depends>,
    /// Watcher; `None` if the files are polled.
    watch: Option<Watch>,
}

#[derive(Default)]
struct Depends {
    names: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
}

impl Files {
    pub(super) fn watched_by(watch: Option<Watch>) -> Self {
        Self { watch, ..Self::default() }
    }

    /// Sets the files that a spec depends on. Their paths and directories are resolved again,
    /// because a file may have moved since the last call.
    pub(super) fn set<'f>(&mut self, spec: &str, files: impl Iterator<Item = &'f Path>) {
        let mut now = Depends::default();
        for file in files {
            let [put, real] = names(file);
            for name in [&put, &real] {
                now.directories.extend(nearest(name).map(Path::to_owned));
            }
            for name in [put, real, file.to_owned()] {
                now.names.insert(beside(&name, "-wal"));
                now.names.insert(name);
            }
        }
        let before = self.of.remove(spec).unwrap_or_default();
        for name in now.names.difference(&before.names) {
            self.specs.entry(name.clone()).or_default().insert(spec.to_owned());
        }
        self.drop_names(spec, before.names.difference(&now.names));
        if let Some(watch) = &mut self.watch {
            now.directories.iter().for_each(|d| watch.ask(d, !before.directories.contains(d)));
            before.directories.difference(&now.directories).for_each(|d| watch.release(d));
        }
        self.of.insert(spec.to_owned(), now);
    }

    /// Removes a spec.
    pub(super) fn forget(&mut self, spec: &str) {
        let Some(before) = self.of.remove(spec) else { return };
        self.drop_names(spec, before.names.iter());
        if let Some(watch) = &mut self.watch {
            before.directories.iter().for_each(|d| watch.release(d));
        }
    }

    fn drop_names<'n>(&mut self, spec: &str, names: impl Iterator<Item = &'n PathBuf>) {
        for name in names {
            if let Some(specs) = self.specs.get_mut(name) {
                specs.remove(spec);
                if specs.is_empty() {
                    self.specs.remove(name);
                    servers::forget(name);
                }
            }
        }
    }

    /// Returns the specs that the changed paths affect: paths of their files, of write-ahead logs,
    /// or of parent directories.
    pub(super) fn concerned(&self, paths: &[PathBuf]) -> BTreeSet<String> {
        // Paths below a directory directly follow it in the order of the map.
        let below = |path| self.specs.range::<PathBuf, _>(path..);
        let found =
            paths.iter().flat_map(|p| below(p).take_while(move |(name, _)| name.starts_with(p)));
        found.flat_map(|(_, specs)| specs.iter().cloned()).collect()
    }

    /// Renews the watches of directories that may have been removed or replaced.
    pub(super) fn lost(&mut self, changed: &[PathBuf]) {
        if let Some(watch) = &mut self.watch {
            watch.lost(changed);
        }
    }

    /// Returns true if the system reports changes.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns the reason why some changes are not reported, if any.
    pub(super) fn blind(&self) -> Option<String> {
        self.watch.as_ref()?.failed()
    }
}

/// Returns the directory to watch for a file: its own, or the nearest existing ancestor.
fn nearest(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|dir| dir.is_dir())
}
