//! The store of a process that does not own the cache: a client of the one that
//! does. Both have the journal's file; the records, and what only one process can
//! have, are the owner's.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::checksum::Damage;
use crate::commit_thread::commit_to_journal;
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::in_flight::ClaimKey;
use crate::journal::Journal;
use crate::limits::{Need, PerMinute, RateLimitHint};
use crate::record::{Record, RecordBytes, decode_record};
use crate::sessions::FactsSession;
use crate::stopped_owner::StoppedOwner;
use crate::store::{CommitUnit, FactStore, ReserveOutcome, StoreFuture};
use crate::throttle::{LimiterKey, PauseFuture, RateLimits, TicketFuture};
use crate::wire::{Ask, Hello, MAGIC, OwnerSays, PROTOCOL, Welcome};
use crate::{FactsError, wire};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

#[cfg(not(unix))]
use std::net::TcpStream as Stream;
#[cfg(unix)]
use std::os::unix::net::UnixStream as Stream;

/// How long the owner may take to greet.
const PATIENCE: Duration = Duration::from_secs(10);

/// The facts of a data directory that another process owns.
pub struct RemoteStore {
    /// The journal's own file, of which this reads all, and writes what is small.
    journal: Journal,
    owner: Arc<Connection>,
}

/// The connection to the owner of a cache.
struct Connection {
    dir: PathBuf,
    /// The owner, as it is told.
    name: String,
    /// This process's session with it.
    session: String,
    out: Mutex<Stream>,
    pending: Arc<Pending>,
    asked: AtomicU64,
    /// A line of its own for looking things up: there and back on one thread.
    looks: Mutex<Stream>,
    /// Reports that the owner is stopped.
    _watched: StoppedOwner,
}

/// Who waits for which answer; `None` when the owner is gone.
type Pending = Mutex<Option<HashMap<u64, Box<dyn FnOnce(OwnerSays) + Send>>>>;

/// Why there is nobody to borrow from.
pub(super) enum Refusal {
    /// Nobody answers at the socket.
    NoServer,
    /// Whoever answers speaks another protocol.
    VersionMismatch,
    /// The journal cannot be opened beside it.
    Failed(FactsError),
}

/// The socket of a cache.
pub(super) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("socket")
}

impl Connection {
    /// Begins a session with the owner.
    fn begin(dir: &Path, holder: &str, watched: StoppedOwner) -> Result<Self, Refusal> {
        let (stream, welcome) = greet(dir, &Hello::Works { holder: holder.to_owned() })?;
        let (looks, _) = greet(dir, &Hello::Looks)?;
        let mut incoming = stream.try_clone().map_err(|_| Refusal::NoServer)?;
        let pending: Arc<Pending> = Arc::new(Mutex::new(Some(HashMap::new())));
        let answered = Arc::clone(&pending);
        std::thread::spawn(move || {
            while let Ok((number, say)) = wire::read::<(u64, OwnerSays)>(&mut incoming) {
                let waiting = lock(&answered).as_mut().and_then(|p| p.remove(&number));
                if let Some(waiting) = waiting {
                    waiting(say);
                }
            }
            // Whoever waits is told by this that nobody will answer.
            *lock(&answered) = None;
        });
        Ok(Self {
            dir: dir.to_owned(),
            name: format!("process {}", welcome.process),
            session: welcome.session,
            out: Mutex::new(stream),
            pending,
            asked: AtomicU64::new(1),
            looks: Mutex::new(looks),
            _watched: watched,
        })
    }

    /// Asks the owner, and waits for the answer.
    async fn ask(&self, ask: &Ask) -> Result<OwnerSays, FactsError> {
        let (reply, told) = oneshot::channel();
        self.request(ask, |say| drop(reply.send(say)))?;
        self.heard(told.await.map_err(|_| self.lost())?)
    }

    /// Asks the owner, and waits for the answer on this thread.
    fn ask_here(&self, ask: &Ask) -> Result<OwnerSays, FactsError> {
        let (reply, told) = mpsc::channel();
        self.request(ask, move |say| drop(reply.send(say)))?;
        self.heard(told.recv().map_err(|_| self.lost())?)
    }

    fn request(
        &self,
        ask: &Ask,
        answered: impl FnOnce(OwnerSays) + Send + 'static,
    ) -> Result<(), FactsError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        match lock(&self.pending).as_mut() {
            Some(pending) => pending.insert(number, Box::new(answered)),
            None => return Err(self.lost()),
        };
        self.send(number, ask)
    }

    /// Asks for what a number answers, and waits on this thread.
    fn count(&self, ask: &Ask) -> Result<u64, FactsError> {
        match self.ask_here(ask)? {
            OwnerSays::Count(count) => Ok(count),
            _ => Err(self.misunderstood()),
        }
    }

    /// Tells the owner something that needs no answer.
    fn tell(&self, ask: &Ask) {
        let _ = self.send(0, ask);
    }

    /// Asks on the other line, and waits on this thread.
    fn look(&self, ask: &Ask) -> Result<OwnerSays, FactsError> {
        let said = {
            let mut looks = lock(&self.looks);
            wire::write(&mut *looks, &(1u64, ask))
                .and_then(|()| wire::read::<(u64, OwnerSays)>(&mut *looks))
        };
        self.heard(said.map_err(|_| self.lost())?.1)
    }

    fn send(&self, number: u64, ask: &Ask) -> Result<(), FactsError> {
        let frame = wire::frame(&(number, ask))
            .map_err(|error| FactsError::File { path: socket_path(&self.dir), error })?;
        lock(&self.out).write_all(&frame).map_err(|_| self.lost())
    }

    fn heard(&self, say: OwnerSays) -> Result<OwnerSays, FactsError> {
        match say {
            OwnerSays::Failed(trouble) => Err(trouble.into_error(&self.dir)),
            say => Ok(say),
        }
    }

    /// The owner is gone.
    fn lost(&self) -> FactsError {
        FactsError::Lost { dir: self.dir.clone(), owner: self.name.clone() }
    }

    /// The owner has said something that answers nothing.
    fn misunderstood(&self) -> FactsError {
        let error = io::Error::other(format!("{} answers something else", self.name));
        FactsError::File { path: socket_path(&self.dir), error }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = lock(&self.out).shutdown(std::net::Shutdown::Both);
    }
}

impl RemoteStore {
    /// Begins to use a cache through its owner. `holder` describes this process.
    pub(super) fn begin(dir: &Path, holder: &str, watched: StoppedOwner) -> Result<Self, Refusal> {
        let owner = Connection::begin(dir, holder, watched)?;
        let session = FactsSession {
            id: owner.session.as_str().into(),
            description: holder.into(),
            is_owner: false,
        };
        let journal = Journal::open(&dir.join("journal.sqlite"), session);
        Ok(Self { journal: journal.map_err(Refusal::Failed)?, owner: Arc::new(owner) })
    }

    /// Asks for records until all have come: a message holds so many only.
    fn records(
        &self,
        records: Vec<Option<Bytes>>,
        into: &mut Vec<Option<Record>>,
    ) -> Result<(), FactsError> {
        if records.is_empty() {
            return Err(self.owner.misunderstood());
        }
        for bytes in records {
            into.push(bytes.map(|b| decode_record(&b, &self.owner.dir)).transpose()?);
        }
        Ok(())
    }
}

/// What is asked for the records that have not come yet.
fn rest(entities: &[&Entity], found: usize) -> Ask {
    Ask::Get(entities[found..].iter().map(|e| e.as_str().to_owned()).collect())
}

impl FactStore for RemoteStore {
    fn dir(&self) -> &Path {
        &self.owner.dir
    }

    fn owner(&self) -> Option<&str> {
        Some(&self.owner.name)
    }

    fn history(&self) -> &dyn History {
        &self.journal
    }

    fn rate_limits(&self) -> Arc<dyn RateLimits> {
        Arc::clone(&self.owner) as _
    }

    fn get_many(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        let mut found = Vec::with_capacity(entities.len());
        while found.len() < entities.len() {
            let OwnerSays::Records(records) = self.owner.look(&rest(entities, found.len()))? else {
                return Err(self.owner.misunderstood());
            };
            self.records(records, &mut found)?;
        }
        Ok(found)
    }

    fn get_latest<'a>(
        &'a self,
        entities: &'a [&'a Entity],
    ) -> StoreFuture<'a, Vec<Option<Record>>> {
        Box::pin(async {
            let mut found = Vec::with_capacity(entities.len());
            while found.len() < entities.len() {
                let OwnerSays::Records(records) =
                    self.owner.ask(&rest(entities, found.len())).await?
                else {
                    return Err(self.owner.misunderstood());
                };
                self.records(records, &mut found)?;
            }
            Ok(found)
        })
    }

    fn read_page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        let ask = Ask::Page { after: after.to_owned(), full: super::PAGE_BYTES };
        let OwnerSays::Page(page) = self.owner.look(&ask)? else {
            return Err(self.owner.misunderstood());
        };
        Ok(page.into_iter().map(|(entity, bytes)| (entity, RecordBytes(bytes))).collect())
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn catch_up(&self) -> Result<(), FactsError> {
        // Its owner sees to it.
        Ok(())
    }

    fn known_damage(&self) -> Damage {
        Damage::default()
    }

    fn flush(&self) -> Result<(), FactsError> {
        self.owner.look(&Ask::Flush).map(drop)
    }

    fn rebuild_records(&self) -> Result<u64, FactsError> {
        self.owner.count(&Ask::Rebuild)
    }

    fn import_facts(&self, input: &mut dyn BufRead) -> Result<u64, FactsError> {
        let file = |error| FactsError::File { path: "the input".into(), error };
        loop {
            let mut lines = vec![0; 1 << 20];
            let n = input.read(&mut lines).map_err(file)?;
            if n == 0 {
                return self.owner.count(&Ask::Import);
            }
            lines.truncate(n);
            self.owner.ask_here(&Ask::Lines(lines.into()))?;
        }
    }

    fn commit_unit(&self, unit: CommitUnit) -> StoreFuture<'_, ()> {
        Box::pin(async {
            let ask = Ask::Keep(Box::new(unit));
            match (self.owner.ask(&ask).await, ask) {
                // It is paid for, and whoever owns the cache next finds it.
                (Err(lost @ FactsError::Lost { .. }), Ask::Keep(unit)) => {
                    commit_to_journal(&self.journal, &unit)?;
                    Err(lost)
                }
                (kept, _) => kept.map(drop),
            }
        })
    }

    fn reserve_cost(
        &self,
        run: RunId,
        worst: SpentAmount,
        of_day: Option<f64>,
        place: Option<LimiterKey>,
    ) -> StoreFuture<'_, ReserveOutcome> {
        Box::pin(async move {
            match self.owner.ask(&Ask::Reserve { run, worst, of_day, place }).await? {
                OwnerSays::Noted(noted) => Ok(noted),
                _ => Err(self.owner.misunderstood()),
            }
        })
    }

    fn finish_reservation(
        &self,
        reservation: ReservationId,
        in_doubt: bool,
    ) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.owner.ask(&Ask::End { reservation, in_doubt }).await.map(drop) })
    }

    fn claim_keys<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>> {
        Box::pin(async {
            match self.owner.ask(&Ask::Claim(keys.to_vec())).await? {
                OwnerSays::Claimed(granted) => Ok(granted),
                _ => Err(self.owner.misunderstood()),
            }
        })
    }

    fn release_keys(&self, keys: &[ClaimKey]) {
        self.owner.tell(&Ask::Release(keys.to_vec()));
    }

    fn wait_for_release<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()> {
        Box::pin(async { self.owner.ask(&Ask::Wait(key.clone())).await.map(drop) })
    }
}

impl RateLimits for Connection {
    fn add_member(&self, place: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError> {
        self.count(&Ask::Join { place: place.clone(), limits })
    }

    fn remove_member(&self, place: &LimiterKey, member: u64) {
        self.tell(&Ask::Leave { place: place.clone(), member });
    }

    fn acquire_ticket<'a>(&'a self, place: &'a LimiterKey, need: Need) -> TicketFuture<'a> {
        // Whose owner is gone notices when it notes what the request may cost.
        Box::pin(async move {
            match self.ask(&Ask::Admit { place: place.clone(), need }).await {
                Ok(OwnerSays::Count(ticket)) => ticket,
                _ => 0,
            }
        })
    }

    fn mark_sent(&self, ticket: u64) {
        self.tell(&Ask::Sent(ticket));
    }

    fn settle_ticket(&self, ticket: u64, used: Option<u64>) {
        self.tell(&Ask::Settle { ticket, used });
    }

    fn apply_hint(&self, place: &LimiterKey, hint: RateLimitHint) {
        self.tell(&Ask::Hear { place: place.clone(), hint });
    }

    fn remaining_pause<'a>(&'a self, place: &'a LimiterKey) -> PauseFuture<'a> {
        Box::pin(async move {
            match self.ask(&Ask::RemainingPause(place.clone())).await {
                Ok(OwnerSays::Count(millis)) if millis > 0 => Some(Duration::from_millis(millis)),
                _ => None,
            }
        })
    }
}

/// How the owner of a cache is, in its own words (JSON); `None` when nobody
/// lends the cache.
///
/// # Errors
/// [`FactsError`] when whoever answers speaks another protocol or says nothing.
pub fn request_status(dir: &Path) -> Result<Option<String>, FactsError> {
    let failed = |error| FactsError::File { path: socket_path(dir), error };
    let mut stream = match greet(dir, &Hello::Looks) {
        Ok((stream, _)) => stream,
        Err(Refusal::NoServer) => return Ok(None),
        Err(Refusal::VersionMismatch) => {
            return Err(FactsError::VersionMismatch { dir: dir.to_owned() });
        }
        Err(Refusal::Failed(error)) => return Err(error),
    };
    wire::write(&mut stream, &(1u64, Ask::Status)).map_err(failed)?;
    match wire::read::<(u64, OwnerSays)>(&mut stream).map_err(failed)?.1 {
        OwnerSays::Text(text) => Ok(Some(text)),
        _ => Err(failed(io::Error::other("the owner answers something else"))),
    }
}

/// Says hello at the socket of a cache.
fn greet(dir: &Path, hello: &Hello) -> Result<(Stream, Welcome), Refusal> {
    let mut stream = connect(dir).map_err(|_| Refusal::NoServer)?;
    let mut greeted = || -> io::Result<Option<Welcome>> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&wire::greeting())?;
        let mut theirs = [0; 8];
        stream.read_exact(&mut theirs)?;
        if &theirs[..4] != MAGIC || theirs[4..] != PROTOCOL.to_le_bytes() {
            return Ok(None);
        }
        wire::write(&mut stream, hello)?;
        let welcome = wire::read(&mut stream)?;
        stream.set_read_timeout(None)?;
        Ok(Some(welcome))
    };
    match greeted() {
        Ok(Some(welcome)) => Ok((stream, welcome)),
        Ok(None) => Err(Refusal::VersionMismatch),
        Err(_) => Err(Refusal::NoServer),
    }
}

#[cfg(unix)]
fn connect(dir: &Path) -> io::Result<Stream> {
    use std::os::unix::fs::MetadataExt;
    let path = socket_path(dir);
    // Whoever the cache belongs to may lend it, and nobody else.
    if std::fs::symlink_metadata(&path)?.uid() != std::fs::metadata(dir)?.uid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (_open, path) = short(dir, path)?;
    Stream::connect(path)
}

/// The path of a socket in a directory, short enough for the system (about 100
/// bytes) as long as the directory is open.
#[cfg(unix)]
pub(super) fn short(dir: &Path, path: PathBuf) -> io::Result<(Option<std::fs::File>, PathBuf)> {
    use std::os::fd::AsRawFd;
    if path.as_os_str().len() < 100 || !Path::new("/proc/self/fd").exists() {
        return Ok((None, path));
    }
    let open = std::fs::File::open(dir)?;
    let by_number = PathBuf::from(format!("/proc/self/fd/{}/socket", open.as_raw_fd()));
    Ok((Some(open), by_number))
}

#[cfg(not(unix))]
fn connect(_: &Path) -> io::Result<Stream> {
    Err(io::ErrorKind::Unsupported.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
