//! Listeners for clients: a TCP address, or a Unix socket.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::client_limits::DaemonClient;
use crate::failure::Failure;

/// Permissions of the socket's file.
const MODE: u32 = 0o660;

/// A listener for HTTP clients.
pub(in crate::daemon) enum HttpListener {
    Tcp(TcpListener),
    Unix(Socket),
}

/// A Unix socket. Dropping it removes its file.
pub(in crate::daemon) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A connection over TCP or a Unix socket.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

impl HttpListener {
    /// Listens on an address.
    pub(in crate::daemon) async fn bind(listen: SocketAddr) -> std::result::Result<Self, Failure> {
        TcpListener::bind(listen).await.map(Self::Tcp).map_err(|e| {
            let hint = match e.kind() {
                ErrorKind::PermissionDenied => "use a port above 1023, such as --listen 127.0.0.1:4735",
                ErrorKind::AddrNotAvailable => "use an address of this machine, such as 127.0.0.1 or 0.0.0.0",
                _ => "if another daemon uses the port, `hqdl status` shows it; --listen 127.0.0.1:0 uses any free port",
            };
            Failure::wrong_input(
                format!("cannot listen on {listen}: {}", crate::format::describe_io_error(&e)),
                hint,
            )
        })
    }

    /// Listens on a Unix socket. Replaces the file of a daemon that was killed.
    pub(in crate::daemon) fn bind_socket(path: &Path) -> std::result::Result<Self, Failure> {
        let bind = || -> Result<UnixListener> {
            // Never replace a file of the user.
            if path.metadata().is_ok_and(|found| !found.file_type().is_socket()) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let is_left = |e: Error| e.kind() == ErrorKind::ConnectionRefused;
            if std::os::unix::net::UnixStream::connect(path).is_err_and(is_left) {
                std::fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE))?;
            Ok(listener)
        };
        let listener = bind().map_err(|e| {
            let message = format!(
                "cannot listen on {}: {}",
                path.display(),
                crate::format::describe_write_error(path, &e)
            );
            Failure::wrong_input(message, "name another file")
        })?;
        Ok(Self::Unix(Socket { listener, path: path.to_owned() }))
    }

    /// Returns the TCP address, if there is one.
    pub(in crate::daemon) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Accepts the next connection. Returns it with the identity of its client.
    pub(super) async fn accept(&self) -> Result<(Box<dyn ByteStream>, DaemonClient)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), DaemonClient::Address(peer.ip())))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((Box::new(stream), DaemonClient::User(uid)))
            }
        }
    }
}
