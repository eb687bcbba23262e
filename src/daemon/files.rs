//! The files that specs depend on, found by the names the system tells of them
//! by, and watched. What a change costs depends on the files that changed and
//! on the specs that depend on them, not on how many specs there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::listing::{beside, names};
use super::servers;
use super::watch::Watch;

/// Which specs depend on which files.
#[derive(Default)]
pub(super) struct Files {
    /// The specs, by every name of a file and of its write-ahead log.
    specs: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The names and the directories of a spec's files.
    of: BTreeMap<String, Depends>,
    /// Without one, somebody looks at all files every so often.
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

    /// A spec depends on these files, and on no others. They may have been put
    /// elsewhere since this was said last: their names and the directories to
    /// watch are found out anew.
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

    /// A spec has gone.
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

    /// The specs that changed paths concern: their files, write-ahead logs, or
    /// directories on the way to them.
    pub(super) fn concerned(&self, paths: &[PathBuf]) -> BTreeSet<String> {
        // What is below a path comes right after it.
        let below = |path| self.specs.range::<PathBuf, _>(path..);
        let found =
            paths.iter().flat_map(|p| below(p).take_while(move |(name, _)| name.starts_with(p)));
        found.flat_map(|(_, specs)| specs.iter().cloned()).collect()
    }

    /// Directories may have been taken away or put in another's place.
    pub(super) fn lost(&mut self, changed: &[PathBuf]) {
        if let Some(watch) = &mut self.watch {
            watch.lost(changed);
        }
    }

    /// Whether the system tells of changes.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Why not all changes are seen.
    pub(super) fn blind(&self) -> Option<String> {
        self.watch.as_ref()?.failed()
    }
}

/// The directory to watch for a file: its own, or the nearest above that is there.
fn nearest(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|dir| dir.is_dir())
}
