//! A cache that another process owns, used through it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use super::FactsError;
use super::wire::{self, Ask, Hello, MAGIC, PROTOCOL, Say, Welcome};

#[cfg(not(unix))]
use std::net::TcpStream as Stream;
#[cfg(unix)]
use std::os::unix::net::UnixStream as Stream;

/// How long the owner may take to greet.
const PATIENCE: Duration = Duration::from_secs(10);

/// The owner, as a borrower sees it.
pub(super) struct Borrowed {
    dir: PathBuf,
    /// The owner, as it is told.
    pub(super) owner: String,
    /// This process's session with it.
    pub(super) session: String,
    out: Mutex<Stream>,
    pending: Arc<Pending>,
    asked: AtomicU64,
    /// A line of its own for looking things up: there and back on one thread.
    looks: Mutex<Stream>,
}

/// Who waits for which answer; `None` when the owner is gone.
type Pending = Mutex<Option<HashMap<u64, Box<dyn FnOnce(Say) + Send>>>>;

/// Why there is nobody to borrow from.
pub(super) enum Refusal {
    /// Nobody answers at the socket.
    Nobody,
    /// Whoever answers speaks another protocol.
    Stranger,
}

/// The socket of a cache.
pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

impl Borrowed {
    /// Begins to borrow.
    pub(super) fn begin(dir: &Path, holder: &str) -> Result<Self, Refusal> {
        let (stream, welcome) = greet(dir, &Hello::Works { holder: holder.to_owned() })?;
        let (looks, _) = greet(dir, &Hello::Looks)?;
        let mut incoming = stream.try_clone().map_err(|_| Refusal::Nobody)?;
        let pending: Arc<Pending> = Arc::new(Mutex::new(Some(HashMap::new())));
        let answered = Arc::clone(&pending);
        std::thread::spawn(move || {
            while let Ok((number, say)) = wire::read::<(u64, Say)>(&mut incoming) {
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
            owner: format!("process {}", welcome.process),
            session: welcome.session,
            out: Mutex::new(stream),
            pending,
            asked: AtomicU64::new(1),
            looks: Mutex::new(looks),
        })
    }

    /// Asks the owner, and waits for the answer.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Say, FactsError> {
        let (reply, told) = oneshot::channel();
        self.request(ask, |say| drop(reply.send(say)))?;
        self.heard(told.await.map_err(|_| self.lost())?)
    }

    /// Asks the owner, and waits for the answer on this thread.
    pub(super) fn ask_here(&self, ask: &Ask) -> Result<Say, FactsError> {
        let (reply, told) = mpsc::channel();
        self.request(ask, move |say| drop(reply.send(say)))?;
        self.heard(told.recv().map_err(|_| self.lost())?)
    }

    fn request(
        &self,
        ask: &Ask,
        answered: impl FnOnce(Say) + Send + 'static,
    ) -> Result<(), FactsError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        match lock(&self.pending).as_mut() {
            Some(pending) => pending.insert(number, Box::new(answered)),
            None => return Err(self.lost()),
        };
        self.send(number, ask)
    }

    /// Tells the owner something that needs no answer.
    pub(super) fn tell(&self, ask: &Ask) {
        let _ = self.send(0, ask);
    }

    /// Asks on the other line, and waits on this thread.
    pub(super) fn look(&self, ask: &Ask) -> Result<Say, FactsError> {
        let said = {
            let mut looks = lock(&self.looks);
            wire::write(&mut *looks, &(1u64, ask))
                .and_then(|()| wire::read::<(u64, Say)>(&mut *looks))
        };
        self.heard(said.map_err(|_| self.lost())?.1)
    }

    fn send(&self, number: u64, ask: &Ask) -> Result<(), FactsError> {
        let frame = wire::frame(&(number, ask))
            .map_err(|error| FactsError::File { path: socket(&self.dir), error })?;
        lock(&self.out).write_all(&frame).map_err(|_| self.lost())
    }

    fn heard(&self, say: Say) -> Result<Say, FactsError> {
        match say {
            Say::Failed(trouble) => Err(trouble.into_error(&self.dir)),
            say => Ok(say),
        }
    }

    /// The owner is gone.
    pub(super) fn lost(&self) -> FactsError {
        FactsError::Lost { dir: self.dir.clone(), owner: self.owner.clone() }
    }

    /// The owner has said something that answers nothing.
    pub(super) fn misunderstood(&self) -> FactsError {
        let error = io::Error::other(format!("{} answers something else", self.owner));
        FactsError::File { path: socket(&self.dir), error }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _ = lock(&self.out).shutdown(std::net::Shutdown::Both);
    }
}

/// How the owner of a cache is, in its own words (JSON); `None` when nobody
/// lends the cache.
///
/// # Errors
/// [`FactsError`] when whoever answers speaks another protocol or says nothing.
pub fn status(dir: &Path) -> Result<Option<String>, FactsError> {
    let failed = |error| FactsError::File { path: socket(dir), error };
    let mut stream = match greet(dir, &Hello::Looks) {
        Ok((stream, _)) => stream,
        Err(Refusal::Nobody) => return Ok(None),
        Err(Refusal::Stranger) => return Err(FactsError::Stranger { dir: dir.to_owned() }),
    };
    wire::write(&mut stream, &(1u64, Ask::Status)).map_err(failed)?;
    match wire::read::<(u64, Say)>(&mut stream).map_err(failed)?.1 {
        Say::Text(text) => Ok(Some(text)),
        _ => Err(failed(io::Error::other("the owner answers something else"))),
    }
}

/// Says hello at the socket of a cache.
fn greet(dir: &Path, hello: &Hello) -> Result<(Stream, Welcome), Refusal> {
    let mut stream = connect(dir).map_err(|_| Refusal::Nobody)?;
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
        Ok(None) => Err(Refusal::Stranger),
        Err(_) => Err(Refusal::Nobody),
    }
}

#[cfg(unix)]
fn connect(dir: &Path) -> io::Result<Stream> {
    use std::os::unix::fs::MetadataExt;
    let path = socket(dir);
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
