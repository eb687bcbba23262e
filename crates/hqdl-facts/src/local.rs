//! The store in a local directory, which any number of processes on one machine open directly. The
//! journal and the records are `SQLite` files; claims, permits and reservations are rows of the
//! journal.

use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::FactsError;
use crate::checksum::Damage;
use crate::claim_key::ClaimKey;
use crate::commit_thread::{self, ReserveCommand, WriterCommand, send_command};
use crate::folder::{
    LockOutcome, acquire_index_lock, acquire_opening_lock, acquire_shared_lock,
    restrict_cache_files,
};
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::index::Index;
use crate::journal::Journal;
use crate::local_limits::LocalLimits;
use crate::network::detect_network_file_system;
use crate::record::{Record, RecordBytes};
use crate::sessions::FactsSession;
use crate::store::{CommitUnit, FactStore, ReserveOutcome, StoreFuture};
use crate::throttle::{LimiterKey, RateLimits};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// Interval between attempts to take a lock that another process holds.
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Fact store in a local directory.
pub struct LocalStore {
    dir: PathBuf,
    /// Keeps out processes of earlier versions, which cannot share a cache.
    _lock: File,
    /// The journal connection for callers on any thread.
    journal: Arc<Journal>,
    /// The commit thread's own journal connection, so that a long read does not block it.
    writer_journal: Arc<Journal>,
    /// The daemon's index; `None` in other processes, which read the records from `SQLite`.
    index: Option<Index>,
    commands: mpsc::UnboundedSender<WriterCommand>,
    thread: Option<JoinHandle<()>>,
    limits: Arc<LocalLimits>,
    is_temporary: bool,
}

impl LocalStore {
    /// Opens the store in an existing directory. `description` describes this process to others.
    pub(super) fn open(dir: &Path, description: &str) -> Result<Self, FactsError> {
        if let Some(file_system) = detect_network_file_system(dir) {
            return Err(FactsError::Shared { dir: dir.to_owned(), file_system: Some(file_system) });
        }
        restrict_cache_files(dir)?;
        let lock = acquire_shared_lock(dir)?;
        let session = Arc::new(FactsSession::start(dir, description)?);
        // Only one process at a time creates and migrates the files.
        let _opening = acquire_opening_lock(dir)?;
        let open = || Journal::open(&dir.join("journal.sqlite"), Arc::clone(&session));
        let (journal, writer_journal) = (Arc::new(open()?), Arc::new(open()?));
        writer_journal.prune_sessions()?;
        writer_journal.delete_session_files()?;
        writer_journal.catch_up()?;
        let (commands, thread) = commit_thread::spawn_thread(Arc::clone(&writer_journal));
        let limits = Arc::new(LocalLimits::new(Arc::clone(&journal), commands.clone()));
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
            journal,
            writer_journal,
            index: None,
            commands,
            thread: Some(thread),
            limits,
            is_temporary: false,
        })
    }

    /// Opens the store with the daemon's index. If another daemon holds the index, waits up to
    /// `timeout`.
    pub(super) fn open_with_index(
        dir: &Path,
        description: &str,
        timeout: Duration,
    ) -> Result<Self, FactsError> {
        let began = Instant::now();
        let lock = loop {
            match acquire_index_lock(dir, description)? {
                LockOutcome::Acquired(lock) => break lock,
                LockOutcome::HeldBy(_) if began.elapsed() < timeout => {
                    std::thread::sleep(LOCK_RETRY_PAUSE);
                }
                LockOutcome::HeldBy(owner_description) => {
                    return Err(FactsError::Held { dir: dir.to_owned(), owner_description });
                }
            }
        };
        let mut store = Self::open(dir, description)?;
        store.index = Some(Index::open(&dir.join("index.sled"), lock, &store.journal)?);
        Ok(store)
    }

    /// Deletes the directory when the store is closed.
    pub(super) fn into_temporary(mut self) -> Self {
        self.is_temporary = true;
        self
    }

    async fn send<T>(
        &self,
        new_command: impl FnOnce(commit_thread::CommandReply<T>) -> WriterCommand,
    ) -> Result<T, FactsError> {
        send_command(&self.commands, new_command).await
    }
}

impl FactStore for LocalStore {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn history(&self) -> &dyn History {
        &*self.journal
    }

    fn rate_limits(&self) -> Arc<dyn RateLimits> {
        Arc::clone(&self.limits) as _
    }

    fn get_records(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        match &self.index {
            Some(index) => index.get_records(&self.journal, entities),
            None => self.journal.read_records(entities),
        }
    }

    fn get_latest_records<'a>(
        &'a self,
        entities: &'a [&'a Entity],
    ) -> StoreFuture<'a, Vec<Option<Record>>> {
        Box::pin(async {
            self.journal.catch_up()?;
            self.get_records(entities)
        })
    }

    fn read_page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        self.journal.read_page(after, super::PAGE_BYTES)
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn catch_up(&self) -> Result<(), FactsError> {
        self.journal.catch_up()
    }

    fn known_damage(&self) -> Damage {
        let damage = self.writer_journal.known_damage();
        let mut damage = if damage.is_empty() { self.journal.known_damage() } else { damage };
        damage.entries = self.journal.find_damaged_entries().unwrap_or_default();
        damage
    }

    fn records_id(&self) -> Result<i64, FactsError> {
        self.journal.records_id()
    }

    fn flush(&self) -> Result<(), FactsError> {
        self.index.as_ref().map_or(Ok(()), Index::flush)
    }

    fn rebuild_records(&self) -> Result<u64, FactsError> {
        let count = self.writer_journal.rebuild_records()?;
        match &self.index {
            Some(index) => index.rebuild(&self.journal)?,
            None => Index::rebuild_unless_held(&self.dir, &self.journal)?,
        }
        Ok(count)
    }

    fn import_facts(&self, input: &mut dyn BufRead) -> Result<u64, FactsError> {
        super::transfer::import_lines(&self.writer_journal, input)
    }

    fn commit_unit(&self, unit: CommitUnit) -> StoreFuture<'_, ()> {
        Box::pin(self.send(|reply| WriterCommand::Commit(Box::new(unit), reply)))
    }

    fn reserve_cost(
        &self,
        run: RunId,
        worst_case: SpentAmount,
        daily_budget: Option<f64>,
        limiter_key: Option<LimiterKey>,
    ) -> StoreFuture<'_, ReserveOutcome> {
        let has_permit = limiter_key.is_some();
        let request =
            ReserveCommand { run, worst_case, daily_budget, has_permit, has_waited: false };
        Box::pin(self.send(move |reply| WriterCommand::Reserve(request, reply)))
    }

    fn finish_reservation(
        &self,
        reservation: ReservationId,
        in_doubt: bool,
    ) -> StoreFuture<'_, ()> {
        Box::pin(self.send(move |reply| WriterCommand::FinishReservation {
            reservation,
            in_doubt,
            reply,
        }))
    }

    fn claim_keys<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>> {
        // Claims are made on the caller's thread, so that they are granted in the order of the
        // calls.
        Box::pin(async { self.journal.transact_unflushed(|| self.journal.claim_keys(keys)) })
    }

    fn release_keys(&self, keys: &[ClaimKey]) {
        // If this fails, the keys are released when the session ends.
        if let Err(error) = self.journal.transact_unflushed(|| self.journal.release_keys(keys)) {
            tracing::debug!(%error, "cannot release claims");
        }
        let _ = self.commands.send(WriterCommand::CheckWaiting);
    }

    fn wait_for_release<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()> {
        Box::pin(self.send(|reply| WriterCommand::WaitForRelease(key.clone(), reply)))
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        let _ = self.commands.send(WriterCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // If this fails, the next process ends the session, because the session's file is no longer
        // locked.
        let _ = self.writer_journal.end_session();
        if self.is_temporary {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
