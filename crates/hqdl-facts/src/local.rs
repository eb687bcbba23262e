//! The store of the process that owns the cache: the journal, its index, and the state that only
//! one process can have.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use crate::checksum::Damage;
use crate::commit_thread::{CommandReply, ReserveCommand, WriterCommand};
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::in_flight::{ClaimKey, InFlight};
use crate::index::Index;
use crate::journal::Journal;
use crate::local_limits::{Limiters, LocalLimits};
use crate::record::{Record, RecordBytes};
use crate::sessions::FactsSession;
use crate::store::{CommitUnit, FactStore, ReserveOutcome, StoreFuture};
use crate::throttle::{LimiterKey, RateLimits};
use crate::{FactsError, commit_thread, remote};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// The facts of a data directory that this process owns.
pub struct LocalStore {
    pub(super) dir: PathBuf,
    /// Held while the store is open. The operating system releases it if the process dies.
    lock: File,
    /// The journal connection for callers on any thread.
    journal: Arc<Journal>,
    /// The journal connection of the commit thread. Its lock also protects writes to the index.
    pub(super) writer_journal: Arc<Journal>,
    pub(super) index: Index,
    session: FactsSession,
    commands: mpsc::Sender<WriterCommand>,
    thread: Option<JoinHandle<()>>,
    pub(super) claims: InFlight,
    limiters: Limiters,
    limits: Arc<LocalLimits>,
    temporary: bool,
}

/// Result of taking the lock of a cache.
pub(super) enum LockOutcome {
    Acquired(File),
    /// Description of the process that holds it.
    HeldBy(String),
}

impl LocalStore {
    /// Opens a store whose lock this process holds. `description` describes this process to others.
    pub(super) fn open(
        dir: &Path,
        description: &str,
        lock: File,
        temporary: bool,
    ) -> Result<Self, FactsError> {
        // Remove the socket of an owner that was killed.
        let _ = std::fs::remove_file(remote::socket_path(dir));
        restrict_files(dir)?;
        let session = FactsSession::for_owner(description);
        let open = || Journal::open(&dir.join("journal.sqlite"), session.clone());
        let journal = open()?;
        journal.end_all_sessions()?;
        // Separate connections, so that a long read does not block the writer.
        let (writer_journal, reader_journal) = (Arc::new(open()?), open()?);
        let index =
            Index::open(&dir.join("index.sled"), Arc::clone(&writer_journal), reader_journal)?;
        let journal = Arc::new(journal);
        let (commands, thread) =
            commit_thread::spawn_thread(Arc::clone(&writer_journal), index.clone());
        let limiters = Limiters::with_commit_queue(commands.clone());
        Ok(Self {
            dir: dir.to_owned(),
            lock,
            limits: Arc::new(LocalLimits::new(limiters.clone(), Some(Arc::clone(&journal)))),
            journal,
            writer_journal,
            index,
            session,
            commands,
            thread: Some(thread),
            claims: InFlight::default(),
            limiters,
            temporary,
        })
    }

    /// Returns the rate limits for a session of its own.
    pub(super) fn session_limits(&self) -> LocalLimits {
        LocalLimits::new(self.limiters.clone(), Some(Arc::clone(&self.journal)))
    }

    /// Implements [`FactStore::reserve`] for a session.
    pub(super) async fn reserve_for_session(
        &self,
        session: Arc<str>,
        run: RunId,
        worst_case: SpentAmount,
        daily_budget: Option<f64>,
        limiter_key: Option<LimiterKey>,
    ) -> Result<ReserveOutcome, FactsError> {
        let request = ReserveCommand {
            session,
            run,
            worst_case,
            daily_budget,
            limiter_key,
            has_waited: false,
        };
        self.send_command(|reply| WriterCommand::Reserve(request, reply)).await
    }

    /// Sends a command to the commit thread and waits for the reply.
    pub(super) async fn send_command<T>(
        &self,
        new_command: impl FnOnce(CommandReply<T>) -> WriterCommand,
    ) -> Result<T, FactsError> {
        let (reply, receiver) = oneshot::channel();
        self.commands.send(new_command(reply)).await.map_err(|_| writer_ended_error())?;
        receiver.await.map_err(|_| writer_ended_error())?
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

    fn into_local_store(self: Arc<Self>) -> Option<Arc<LocalStore>> {
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
                let task = tokio::task::spawn_blocking(move || index.wait_until_current());
                task.await.map_err(|_| writer_ended_error())??;
            }
            self.index.get_many(entities)
        })
    }

    fn read_page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        let page = self.index.read_page(after, super::PAGE_BYTES)?;
        Ok(page.into_iter().map(|(entity, bytes)| (entity, RecordBytes(bytes))).collect())
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn catch_up(&self) -> Result<(), FactsError> {
        self.index.wait_until_current()
    }

    fn known_damage(&self) -> Damage {
        self.index.damage()
    }

    fn flush(&self) -> Result<(), FactsError> {
        self.index.flush()
    }

    fn rebuild_records(&self) -> Result<u64, FactsError> {
        self.index.rebuild_records(&self.writer_journal)
    }

    fn import_facts(&self, input: &mut dyn BufRead) -> Result<u64, FactsError> {
        super::transfer::import_lines(&self.writer_journal, &self.index, input)
    }

    fn commit_unit(&self, unit: CommitUnit) -> StoreFuture<'_, ()> {
        Box::pin(self.send_command(|reply| WriterCommand::Commit(Box::new(unit), reply)))
    }

    fn reserve_cost(
        &self,
        run: RunId,
        worst_case: SpentAmount,
        daily_budget: Option<f64>,
        limiter_key: Option<LimiterKey>,
    ) -> StoreFuture<'_, ReserveOutcome> {
        Box::pin(self.reserve_for_session(
            Arc::clone(&self.session.id),
            run,
            worst_case,
            daily_budget,
            limiter_key,
        ))
    }

    fn finish_reservation(
        &self,
        reservation: ReservationId,
        in_doubt: bool,
    ) -> StoreFuture<'_, ()> {
        Box::pin(self.send_command(move |reply| WriterCommand::FinishReservation {
            reservation,
            in_doubt,
            reply,
        }))
    }

    fn claim_keys<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>> {
        Box::pin(async { Ok(self.claims.claim(&self.session.id, keys)) })
    }

    fn release_keys(&self, keys: &[ClaimKey]) {
        self.claims.release(&self.session.id, keys);
    }

    fn wait_for_release<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()> {
        Box::pin(async {
            let _ = self.claims.wait_for_release(key).await;
            Ok(())
        })
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        let commands = self.commands.clone();
        if let Some(thread) = self.thread.take() {
            let stopping =
                std::thread::spawn(move || drop(commands.blocking_send(WriterCommand::Stop)));
            let _ = (stopping.join(), thread.join());
        }
        let _ = self.lock.set_len(0);
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn writer_ended_error() -> FactsError {
    FactsError::Journal {
        path: "journal.sqlite".into(),
        message: "its writer has ended".to_owned(),
    }
}

/// Prefixes of the names of a cache's files.
const CACHE_FILE_PREFIXES: [&str; 5] = ["journal.sqlite", "index.sled", "lock", "socket", "daemon"];

/// Creates the directory of a cache, or makes an existing one private. A directory that also
/// contains other files keeps its mode, because it may be shared on purpose.
///
/// # Errors
/// [`FactsError::UnknownUrl`] for a URL, which is never the name of a directory.
pub(super) fn create_cache_dir(dir: &Path) -> Result<(), FactsError> {
    let io_error = |error| FactsError::File { path: dir.to_owned(), error };
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
                name.is_ok_and(|name| {
                    CACHE_FILE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                })
            })
        };
        if std::fs::read_dir(dir).map_err(io_error)?.all(is_ours) {
            restrict_access(dir, 0o700);
        }
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(io_error)?;
    }
    match create_private_dir(dir) {
        Err(error) if !dir.is_dir() => Err(io_error(error)),
        _ => Ok(()),
    }
}

/// Removes the access of other users to a file or directory. If that fails, as it does for another
/// user's file, hqdl logs a warning.
pub(super) fn restrict_access(path: &Path, mode: u32) {
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
        create_private_dir(&index)
            .map_err(|error| FactsError::File { path: index.clone(), error })?;
    }
    restrict_access(&index, 0o700);
    let journal = dir.join("journal.sqlite");
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(&journal)
        .map_err(|error| FactsError::File { path: journal.clone(), error })?;
    for name in ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "lock"] {
        let path = dir.join(name);
        if path.exists() {
            restrict_access(&path, 0o600);
        }
    }
    Ok(())
}

pub(super) fn create_private_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Takes the lock of a cache, or returns the description of the process that holds it.
pub(super) fn take_lock(dir: &Path, description: &str) -> Result<LockOutcome, FactsError> {
    let path = dir.join("lock");
    let io_error = |error| FactsError::File { path: path.clone(), error };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error)?;
    if file.try_lock().is_err() {
        let mut owner_description = String::new();
        let _ = file.read_to_string(&mut owner_description);
        let owner_description = match owner_description.trim() {
            "" => "another process".to_owned(),
            owner_description => owner_description.to_owned(),
        };
        return Ok(LockOutcome::HeldBy(owner_description));
    }
    let mut write_description = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "process {} ({description})", std::process::id())
    };
    write_description().map_err(io_error)?;
    Ok(LockOutcome::Acquired(file))
}
