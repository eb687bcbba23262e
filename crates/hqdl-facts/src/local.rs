//! The store of the process that owns the cache: the journal, its index, and the state that only
//! one process can have.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use crate::checksum::Damage;
use crate::commit_thread::{Job, LeavingRequest, OwnerReply};
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::in_flight::{ClaimKey, InFlight};
use crate::index::Index;
use crate::journal::Journal;
use crate::local_limits::{Limiters, LocalLimits};
use crate::record::{Record, RecordBytes};
use crate::sessions::FactsSession;
use crate::store::{CommitUnit, FactStore, Noted, StoreFuture};
use crate::throttle::{EndpointPlace, RateLimits};
use crate::{FactsError, commit_thread, remote};
use hqdl_values::key::Entity;
use hqdl_values::usage::Spent;

/// The facts of a data directory that this process owns.
pub struct LocalStore {
    pub(super) dir: PathBuf,
    /// Held while the store is open. The operating system releases it if the process dies.
    lock: File,
    /// The journal connection for callers on any thread.
    journal: Arc<Journal>,
    /// The journal connection of the commit thread. Its lock also protects writes to the index.
    pub(super) writing: Arc<Journal>,
    pub(super) index: Index,
    session: FactsSession,
    jobs: mpsc::Sender<Job>,
    thread: Option<JoinHandle<()>>,
    pub(super) claims: InFlight,
    limiters: Limiters,
    limits: Arc<LocalLimits>,
    temporary: bool,
}

/// Result of taking the lock of a cache.
pub(super) enum Lock {
    Ours(File),
    /// Description of the process that holds it.
    Theirs(String),
}

impl LocalStore {
    /// Opens a store whose lock this process holds. `description` describes this process to others.
    pub(super) fn open(
        dir: &Path,
        holder: &str,
        lock: File,
        temporary: bool,
    ) -> Result<Self, FactsError> {
        // Remove the socket of an owner that was killed.
        let _ = std::fs::remove_file(remote::socket(dir));
        restrict_files(dir)?;
        let session = FactsSession::of_owner(holder);
        let open = || Journal::open(&dir.join("journal.sqlite"), session.clone());
        let journal = open()?;
        journal.begin_alone()?;
        // Separate connections, so that a long read does not block the writer.
        let (writing, looks) = (Arc::new(open()?), open()?);
        let index = Index::open(&dir.join("index.sled"), Arc::clone(&writing), looks)?;
        let journal = Arc::new(journal);
        let (jobs, thread) = commit_thread::start(Arc::clone(&writing), index.clone());
        let limiters = Limiters::kept_by(jobs.clone());
        Ok(Self {
            dir: dir.to_owned(),
            lock,
            limits: Arc::new(LocalLimits::new(limiters.clone(), Some(Arc::clone(&journal)))),
            journal,
            writing,
            index,
            session,
            jobs,
            thread: Some(thread),
            claims: InFlight::default(),
            limiters,
            temporary,
        })
    }

    /// Returns the rate limits for a session of its own.
    pub(super) fn limits_of_session(&self) -> LocalLimits {
        LocalLimits::new(self.limiters.clone(), Some(Arc::clone(&self.journal)))
    }

    /// Implements [`FactStore::reserve`] for a session.
    pub(super) async fn reserve_for(
        &self,
        session: Arc<str>,
        run: RunId,
        worst: Spent,
        of_day: Option<f64>,
        place: Option<EndpointPlace>,
    ) -> Result<Noted, FactsError> {
        let wish = LeavingRequest { session, run, worst, of_day, place, waited: false };
        self.command(|reply| Job::Reserve(wish, reply)).await
    }

    /// Sends a command to the commit thread and waits for the reply.
    pub(super) async fn command<T>(
        &self,
        job: impl FnOnce(OwnerReply<T>) -> Job,
    ) -> Result<T, FactsError> {
        let (reply, told) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }
}

impl FactStore for LocalStore {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn owner(&self) -> Option<&str> {
        None
    }

    fn history(&self) -> &dyn History {
        &*self.journal
    }

    fn rate_limits(&self) -> Arc<dyn RateLimits> {
        Arc::clone(&self.limits) as _
    }

    fn local(self: Arc<Self>) -> Option<Arc<LocalStore>> {
        Some(self)
    }

    fn get_many(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        self.index.get_many(entities)
    }

    fn get_latest<'a>(
        &'a self,
        entities: &'a [&'a Entity],
    ) -> StoreFuture<'a, Vec<Option<Record>>> {
        Box::pin(async {
            if self.index.is_behind()? {
                let index = self.index.clone();
                let followed = tokio::task::spawn_blocking(move || index.follow_on());
                followed.await.map_err(|_| gone())??;
            }
            self.index.get_many(entities)
        })
    }

    fn page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        let page = self.index.page(after, super::PAGE)?;
        Ok(page.into_iter().map(|(entity, bytes)| (entity, RecordBytes(bytes))).collect())
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn catch_up(&self) -> Result<(), FactsError> {
        self.index.follow_on()
    }

    fn known_damage(&self) -> Damage {
        self.index.damage()
    }

    fn flush(&self) -> Result<(), FactsError> {
        self.index.flush()
    }

    fn rebuild(&self) -> Result<u64, FactsError> {
        self.index.rebuild(&self.writing)
    }

    fn import(&self, input: &mut dyn BufRead) -> Result<u64, FactsError> {
        super::transfer::import(&self.writing, &self.index, input)
    }

    fn keep(&self, unit: CommitUnit) -> StoreFuture<'_, ()> {
        Box::pin(self.command(|reply| Job::Keep(Box::new(unit), reply)))
    }

    fn reserve(
        &self,
        run: RunId,
        worst: Spent,
        of_day: Option<f64>,
        place: Option<EndpointPlace>,
    ) -> StoreFuture<'_, Noted> {
        Box::pin(self.reserve_for(Arc::clone(&self.session.id), run, worst, of_day, place))
    }

    fn settle(&self, reservation: ReservationId, in_doubt: bool) -> StoreFuture<'_, ()> {
        Box::pin(self.command(move |reply| Job::End { reservation, in_doubt, reply }))
    }

    fn claim<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>> {
        Box::pin(async { Ok(self.claims.claim(&self.session.id, keys)) })
    }

    fn release(&self, keys: &[ClaimKey]) {
        self.claims.release(&self.session.id, keys);
    }

    fn released<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()> {
        Box::pin(async {
            let _ = self.claims.wait(key).await;
            Ok(())
        })
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        let jobs = self.jobs.clone();
        if let Some(thread) = self.thread.take() {
            let stopping = std::thread::spawn(move || drop(jobs.blocking_send(Job::Stop)));
            let _ = (stopping.join(), thread.join());
        }
        let _ = self.lock.set_len(0);
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn gone() -> FactsError {
    FactsError::Journal {
        path: "journal.sqlite".into(),
        message: "its writer has ended".to_owned(),
    }
}

/// Prefixes of the names of a cache's files.
const OURS: [&str; 5] = ["journal.sqlite", "index.sled", "lock", "socket", "daemon"];

/// Creates the directory of a cache, or makes an existing one private. A directory that also
/// contains other files keeps its mode, because it may be shared on purpose.
///
/// # Errors
/// [`FactsError::UnknownUrl`] for a URL, which is never the name of a directory.
pub(super) fn make(dir: &Path) -> Result<(), FactsError> {
    let file = |error| FactsError::File { path: dir.to_owned(), error };
    if dir.to_string_lossy().contains("://") {
        return Err(FactsError::UnknownUrl(dir.to_owned()));
    }
    if dir.is_file() {
        return Err(FactsError::NotAFolder(dir.to_owned()));
    }
    if dir.is_dir() {
        let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.map(|entry| entry.file_name().into_string());
            name.is_ok_and(|name| {
                name.is_ok_and(|name| OURS.iter().any(|own| name.starts_with(own)))
            })
        };
        if std::fs::read_dir(dir).map_err(file)?.all(is_ours) {
            restrict(dir, 0o700);
        }
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(file)?;
    }
    match private(dir) {
        Err(error) if !dir.is_dir() => Err(file(error)),
        _ => Ok(()),
    }
}

/// Removes the access of other users to a file or directory. If that fails, as it does for another
/// user's file, hqdl logs a warning.
pub(super) fn restrict(path: &Path, mode: u32) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let is_private = |m: std::fs::Metadata| m.permissions().mode().trailing_zeros() >= 6;
        if std::fs::metadata(path).is_ok_and(is_private) {
            return;
        }
        let permissions = std::fs::Permissions::from_mode(mode);
        if let Err(error) = std::fs::set_permissions(path, permissions) {
            tracing::warn!(path = %path.display(), %error, "other users may read this");
        }
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
}

/// Makes the files of a cache private before anything is written to them. `SQLite` gives its side
/// files the mode of the database.
fn restrict_files(dir: &Path) -> Result<(), FactsError> {
    let index = dir.join("index.sled");
    if !index.exists() {
        private(&index).map_err(|error| FactsError::File { path: index.clone(), error })?;
    }
    restrict(&index, 0o700);
    let journal = dir.join("journal.sqlite");
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(&journal)
        .map_err(|error| FactsError::File { path: journal.clone(), error })?;
    for name in ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "lock"] {
        let path = dir.join(name);
        if path.exists() {
            restrict(&path, 0o600);
        }
    }
    Ok(())
}

pub(super) fn private(dir: &Path) -> std::io::Result<()> {
    let mut make = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut make, 0o700);
    make.create(dir)
}

/// Takes the lock of a cache, or returns the description of the process that holds it.
pub(super) fn lock(dir: &Path, holder: &str) -> Result<Lock, FactsError> {
    let path = dir.join("lock");
    let file = |error| FactsError::File { path: path.clone(), error };
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(file)?;
    if lock.try_lock().is_err() {
        let mut holder = String::new();
        let _ = lock.read_to_string(&mut holder);
        let holder = match holder.trim() {
            "" => "another process".to_owned(),
            holder => holder.to_owned(),
        };
        return Ok(Lock::Theirs(holder));
    }
    let mut describe = || {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "process {} ({holder})", std::process::id())
    };
    describe().map_err(file)?;
    Ok(Lock::Ours(lock))
}
