//! The cache server: the owner of a cache serves those who borrow it, over the Unix socket
//! in its directory. Only processes of the same user are served; what they send
//! is bounded, and none of them can hold up another.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::commit_thread::WriterCommand;
use crate::local_limits::LocalLimits;
use crate::store::FactStore;
use crate::throttle::{LimiterKey, RateLimits};
use crate::wire::{Ask, FULL, Hello, MAGIC, OwnerSays, PROTOCOL, Trouble, Welcome};
use crate::{Facts, FactsError, LocalStore, remote, wire};
use hqdl_values::key::Entity;

/// Lines open at once; more wait.
const LINES: usize = 512;
/// How long a borrower may take to greet.
const PATIENCE: Duration = Duration::from_secs(5);
/// Answers that may wait for a borrower to read them; then it is not listened to.
const UNREAD: usize = 64;
/// Questions of one borrower that may wait for their answers.
const OPEN: usize = 10_000;

/// Says how the owner is, in JSON.
pub type StatusSource = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// A cache that is being lent.
pub struct CacheServer {
    /// Until this ends.
    runtime: Option<tokio::runtime::Runtime>,
    stop: watch::Sender<LendingStop>,
    socket: PathBuf,
    /// Sessions open now: each holds a receiver.
    sessions: watch::Sender<()>,
}

/// How far lending is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LendingStop {
    No,
    /// Nobody new is served.
    NoMore,
    /// Nobody is served.
    Now,
}

/// Begins to lend the facts, on threads of its own; `status` answers
/// `super::status`.
///
/// # Errors
/// [`FactsError`] when these facts are not this process's own, or the socket
/// cannot be made.
pub fn serve_cache(facts: &Facts, status: StatusSource) -> Result<CacheServer, FactsError> {
    let socket = remote::socket_path(facts.dir());
    let failed = |error| FactsError::File { path: socket.clone(), error };
    let local = Arc::clone(&facts.store).into_local_store();
    let store = local.ok_or_else(|| failed(io::Error::other("these facts are borrowed")))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("lend")
        .enable_all()
        .build()
        .map_err(failed)?;
    let listener = {
        let _inside = runtime.enter();
        listen(&store.dir).map_err(failed)?
    };
    let (stop, stopping) = watch::channel(LendingStop::No);
    let sessions = watch::Sender::new(());
    let lender = Arc::new(Lender { store, status, user: user(&socket).map_err(failed)? });
    runtime.spawn(accept(listener, lender, stopping, sessions.clone()));
    info!(socket = %socket.display(), "lends the cache");
    Ok(CacheServer { runtime: Some(runtime), stop, socket, sessions })
}

impl CacheServer {
    /// How many borrow now.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.sessions.receiver_count()
    }

    /// Lends to nobody new, waits up to `patience` for those who borrow, and ends.
    /// It waits on this thread, which must not be one of an async runtime's own.
    pub fn shut_down(mut self, patience: Duration) {
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(LendingStop::NoMore);
        let _ = std::fs::remove_file(&self.socket);
        let all_gone = self.sessions.closed();
        runtime.block_on(async {
            let _ = tokio::time::timeout(patience, all_gone).await;
            self.stop.send_replace(LendingStop::Now);
            // What they sent is kept before they are told.
            let _ = tokio::time::timeout(PATIENCE, self.sessions.closed()).await;
        });
        runtime.shutdown_timeout(PATIENCE);
    }
}

impl Drop for CacheServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let _ = std::fs::remove_file(&self.socket);
            runtime.shutdown_background();
        }
    }
}

/// Makes the socket, for this user alone.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    let mode = std::fs::metadata(dir)?.permissions().mode();
    if mode & 0o007 != 0 {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode & 0o7770))?;
    }
    let socket = remote::socket_path(dir);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (_open, path) = remote::short(dir, socket.clone())?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The user of this process: whoever made the socket.
fn user(socket: &Path) -> io::Result<u32> {
    std::fs::symlink_metadata(socket).map(|m| m.uid())
}

struct Lender {
    store: Arc<LocalStore>,
    status: StatusSource,
    user: u32,
}

async fn accept(
    listener: UnixListener,
    lender: Arc<Lender>,
    mut stopping: watch::Receiver<LendingStop>,
    sessions: watch::Sender<()>,
) {
    let lines = Arc::new(Semaphore::new(LINES));
    loop {
        let Ok(line) = Arc::clone(&lines).acquire_owned().await else { return };
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|s| *s > LendingStop::No) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Too many files are open, most likely.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (lender, stopping) = (Arc::clone(&lender), stopping.clone());
        let session = sessions.subscribe();
        tokio::spawn(async move {
            if let Err(error) = lender.serve(stream, stopping, session).await {
                debug!(%error, "a borrower is not served any more");
            }
            drop(line);
        });
    }
}

impl Lender {
    /// Serves one line, to its end.
    async fn serve(
        self: Arc<Self>,
        mut stream: UnixStream,
        stopping: watch::Receiver<LendingStop>,
        session: watch::Receiver<()>,
    ) -> io::Result<()> {
        if stream.peer_cred()?.uid() != self.user {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let greeted = tokio::time::timeout(PATIENCE, greet(&mut stream)).await;
        let hello = greeted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        match hello {
            Hello::Looks => {
                // Whoever only looks is not waited for.
                drop(session);
                let of = super::sessions::new_id();
                self.answer(stream, stopping, &of.into()).await
            }
            Hello::Works { holder } => {
                let of = wire::session(&holder);
                self.note(|reply| WriterCommand::StartSession(of.clone(), reply)).await?;
                info!(session = %of.id, holder, "begins to borrow");
                let served = self.answer(stream, stopping, &of.id).await;
                // What it had in flight is in doubt.
                self.note(|reply| WriterCommand::EndSession(Arc::clone(&of.id), reply)).await?;
                info!(session = %of.id, "borrows no more");
                drop(session);
                served
            }
        }
    }

    /// Answers what comes, until the line breaks; what was sent to be kept is
    /// kept before this ends.
    async fn answer(
        self: &Arc<Self>,
        mut stream: UnixStream,
        mut stopping: watch::Receiver<LendingStop>,
        session: &Arc<str>,
    ) -> io::Result<()> {
        let welcome = Welcome { process: std::process::id(), session: session.to_string() };
        stream.write_all(&wire::frame(&welcome)?).await?;
        let (mut incoming, mut outgoing) = stream.into_split();
        let (say, mut said) = mpsc::channel::<(u64, OwnerSays)>(UNREAD);
        let writing = tokio::spawn(async move {
            while let Some(answer) = said.recv().await {
                let frame = match wire::frame(&answer) {
                    Ok(frame) => frame,
                    Err(error) => {
                        let trouble = OwnerSays::Failed(Trouble::Other(error.to_string()));
                        wire::frame(&(answer.0, trouble))?
                    }
                };
                outgoing.write_all(&frame).await?;
            }
            io::Result::Ok(())
        });
        let mut line = BorrowerLine {
            lender: Arc::clone(self),
            session: Arc::clone(session),
            say,
            lines: None,
            members: BTreeSet::new(),
            limits: Arc::new(self.store.session_limits()),
            kept: JoinSet::new(),
            waits: JoinSet::new(),
        };
        let ended = loop {
            let next = tokio::select! {
                biased;
                _ = stopping.wait_for(|s| *s == LendingStop::Now) => break Ok(()),
                next = next(&mut incoming) => next,
            };
            match next {
                Ok(Some((number, ask))) => {
                    if let Err(error) = line.take(number, ask).await {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        line.end().await;
        drop(line);
        writing.abort();
        ended
    }

    /// Has the writing thread note something.
    async fn note(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), FactsError>>) -> WriterCommand,
    ) -> io::Result<()> {
        self.store.send_command(job).await.map_err(io::Error::other)
    }
}

/// Says hello.
async fn greet(stream: &mut UnixStream) -> io::Result<Hello> {
    let mut theirs = [0; 8];
    stream.read_exact(&mut theirs).await?;
    stream.write_all(&wire::greeting()).await?;
    if &theirs[..4] != MAGIC || theirs[4..] != PROTOCOL.to_le_bytes() {
        return Err(io::Error::other("a greeting in another language"));
    }
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let length = wire::length(head)?;
    if length > 4096 {
        return Err(io::Error::other("a greeting that is too long"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    wire::message(&bytes)
}

/// The next question; `None` at the end.
async fn next(stream: &mut OwnedReadHalf) -> io::Result<Option<(u64, Ask)>> {
    let mut head = [0; 4];
    match stream.read_exact(&mut head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let length = wire::length(head)?;
    // As it comes: a length alone takes no memory.
    let mut bytes = Vec::with_capacity(length.min(1 << 16));
    if stream.take(length as u64).read_to_end(&mut bytes).await? < length {
        return Ok(None);
    }
    wire::message(&bytes).map(Some)
}

/// One borrower's line, as it is served.
struct BorrowerLine {
    lender: Arc<Lender>,
    session: Arc<str>,
    say: mpsc::Sender<(u64, OwnerSays)>,
    /// Lines of an import under way.
    lines: Option<Vec<u8>>,
    /// Limits that it uses, with its numbers there.
    members: BTreeSet<(LimiterKey, u64)>,
    /// The limits, with its requests that were admitted and are not settled.
    limits: Arc<LocalLimits>,
    /// What must be done, whatever becomes of the borrower.
    kept: JoinSet<()>,
    /// What nobody needs when the borrower is gone.
    waits: JoinSet<()>,
}

impl BorrowerLine {
    /// Takes one question.
    async fn take(&mut self, number: u64, ask: Ask) -> io::Result<()> {
        while self.kept.try_join_next().is_some() || self.waits.try_join_next().is_some() {}
        if self.kept.len() + self.waits.len() > OPEN {
            return Err(io::Error::other("more questions than can be answered"));
        }
        let lender = Arc::clone(&self.lender);
        let store = &lender.store;
        let now = match ask {
            Ask::Get(entities) => store
                .index
                .read_for_client(|i| i.encoded_records(&entities, FULL))
                .map(OwnerSays::Records),
            Ask::Page { after, full } => store
                .index
                .read_for_client(|i| i.read_page(&after, full.min(FULL)))
                .map(OwnerSays::Page),
            Ask::Claim(things) => {
                Ok(OwnerSays::Claimed(store.claims.claim(&self.session, &things)))
            }
            Ask::Release(things) => {
                store.claims.release(&self.session, &things);
                Ok(OwnerSays::Done)
            }
            Ask::Join { place, limits } => self.limits.add_member(&place, limits).map(|member| {
                self.members.insert((place, member));
                OwnerSays::Count(member)
            }),
            Ask::Leave { place, member } => {
                let of = (place, member);
                if self.members.remove(&of) {
                    self.limits.remove_member(&of.0, member);
                }
                Ok(OwnerSays::Done)
            }
            Ask::Sent(ticket) => {
                self.limits.mark_sent(ticket);
                Ok(OwnerSays::Done)
            }
            Ask::Settle { ticket, used } => {
                self.limits.settle_ticket(ticket, used);
                Ok(OwnerSays::Done)
            }
            Ask::Hear { place, hint } => {
                self.limits.apply_hint(&place, hint);
                Ok(OwnerSays::Done)
            }
            Ask::RemainingPause(place) => {
                let pause = self.limits.remaining_pause(&place).await.unwrap_or_default();
                Ok(OwnerSays::Count(pause.as_millis() as u64))
            }
            Ask::Lines(more) => {
                self.lines.get_or_insert_default().extend_from_slice(&more);
                Ok(OwnerSays::Done)
            }
            Ask::Status => Ok(OwnerSays::Text((lender.status)().to_string())),
            slow => {
                self.slowly(number, slow);
                return Ok(());
            }
        };
        self.say(number, now).await;
        Ok(())
    }

    async fn say(&self, number: u64, said: Result<OwnerSays, FactsError>) {
        if number != 0 {
            let _ = self.say.send((number, told(said))).await;
        }
    }

    /// Takes a question that is not answered at once.
    fn slowly(&mut self, number: u64, ask: Ask) {
        let (store, say) = (Arc::clone(&self.lender.store), self.say.clone());
        let (session, limits) = (Arc::clone(&self.session), Arc::clone(&self.limits));
        let keeps = matches!(ask, Ask::Keep(_) | Ask::End { .. } | Ask::Import);
        let lines = if matches!(ask, Ask::Import) { self.lines.take() } else { None };
        let work = async move {
            let said = match ask {
                Ask::Keep(batch) if !batch.facts.iter().all(|(e, _)| is_entity(e)) => {
                    Err(FactsError::File {
                        path: store.dir.clone(),
                        error: io::Error::other("facts about what is no entity"),
                    })
                }
                Ask::Keep(batch) => store.commit_unit(*batch).await.map(|()| OwnerSays::Done),
                Ask::Reserve { run, worst, of_day, place } => store
                    .reserve_for_session(session, run, worst, of_day, place)
                    .await
                    .map(OwnerSays::Noted),
                Ask::End { reservation, in_doubt } => {
                    store.finish_reservation(reservation, in_doubt).await.map(|()| OwnerSays::Done)
                }
                Ask::Wait(thing) => store.wait_for_release(&thing).await.map(|()| OwnerSays::Done),
                Ask::Admit { place, need } => {
                    Ok(OwnerSays::Count(limits.acquire_ticket(&place, need).await))
                }
                Ask::Flush => blocking(move || store.flush().map(|()| OwnerSays::Done)).await,
                Ask::Rebuild => {
                    blocking(move || store.rebuild_records().map(OwnerSays::Count)).await
                }
                Ask::Import => {
                    let lines = Bytes::from(lines.unwrap_or_default());
                    blocking(move || store.import_facts(&mut &*lines).map(OwnerSays::Count)).await
                }
                _ => return,
            };
            if number != 0 {
                let _ = say.send((number, told(said))).await;
            }
        };
        if keeps {
            self.kept.spawn(work);
        } else {
            self.waits.spawn(work);
        }
    }

    /// The borrower is gone, or is to go.
    async fn end(&mut self) {
        self.waits.shutdown().await;
        // Nobody reads what is said; it must not be waited for.
        let (nobody, _) = mpsc::channel(1);
        self.say = nobody;
        while self.kept.join_next().await.is_some() {}
        // What it asked and was answered is kept: others look again.
        self.lender.store.claims.release_session(&self.session);
        self.limits.end_session();
        for (place, member) in std::mem::take(&mut self.members) {
            self.limits.remove_member(&place, member);
        }
    }
}

fn is_entity(entity: &Entity) -> bool {
    Entity::parse(entity.as_str()).is_ok_and(|parsed| parsed == *entity)
}

async fn blocking(
    work: impl FnOnce() -> Result<OwnerSays, FactsError> + Send + 'static,
) -> Result<OwnerSays, FactsError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|bug| {
        Err(FactsError::File { path: "socket".into(), error: io::Error::other(bug) })
    })
}

fn told(said: Result<OwnerSays, FactsError>) -> OwnerSays {
    said.unwrap_or_else(|error| OwnerSays::Failed(Trouble::of(&error)))
}
