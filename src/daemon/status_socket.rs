//! Serves the daemon's status to `hqdl status`, through a Unix socket in the cache directory that
//! only this user can open. A client that connects reads one JSON document.

use std::io;
use std::path::{Path, PathBuf};

fn socket_path(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// The daemon's status socket. Dropping it closes the socket and removes its file.
#[cfg(unix)]
pub(super) struct StatusSocket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

#[cfg(unix)]
impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves the status on the current runtime.
///
/// # Errors
/// Returns an error if the socket cannot be created.
#[cfg(unix)]
pub(super) fn serve_status(
    dir: &Path,
    status: impl Fn() -> serde_json::Value + Send + Sync + 'static,
) -> io::Result<StatusSocket> {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;

    let path = socket_path(dir);
    // Remove the socket of a daemon that was killed.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = {
        let (_open, path) = shorten_path(dir, path.clone())?;
        tokio::net::UnixListener::bind(path)?
    };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let status = Arc::new(status);
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let status = Arc::clone(&status);
            tokio::spawn(async move {
                let text = status().to_string();
                let writing = stream.write_all(text.as_bytes());
                let _ = tokio::time::timeout(Duration::from_secs(5), writing).await;
            });
        }
    });
    Ok(StatusSocket { path, task })
}

/// Returns the status of a cache's daemon as JSON; `None` if no daemon uses the cache.
///
/// # Errors
/// Returns an error if the daemon does not answer.
#[cfg(unix)]
pub fn request_status(dir: &Path) -> io::Result<Option<String>> {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    let path = socket_path(dir);
    let owner = |path: &Path| std::fs::symlink_metadata(path).map(|metadata| metadata.uid());
    // Trust only a socket that belongs to the owner of the cache.
    if !matches!((owner(&path), owner(dir)), (Ok(socket), Ok(dir)) if socket == dir) {
        return Ok(None);
    }
    let (_open, path) = shorten_path(dir, path)?;
    let Ok(mut stream) = UnixStream::connect(path) else { return Ok(None) };
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(Some(text))
}

#[cfg(not(unix))]
pub fn request_status(_: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

/// Shortens the path of a socket to the system's limit (about 100 bytes). The short path is valid
/// while the returned directory is open.
#[cfg(unix)]
fn shorten_path(dir: &Path, path: PathBuf) -> io::Result<(Option<std::fs::File>, PathBuf)> {
    use std::os::fd::AsRawFd;
    if path.as_os_str().len() < 100 || !Path::new("/proc/self/fd").exists() {
        return Ok((None, path));
    }
    let open = std::fs::File::open(dir)?;
    let by_number = PathBuf::from(format!("/proc/self/fd/{}/socket", open.as_raw_fd()));
    Ok((Some(open), by_number))
}
