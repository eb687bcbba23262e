//! Where a server is: a URL without a password, which comes from the environment
//! or from the file that `PostgreSQL`'s own programs keep it in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls;

/// How long a server may take to answer before the connection counts as broken.
pub const ANSWER: Duration = Duration::from_secs(15);
/// How long a server may take to accept a connection.
pub const CONNECTING: Duration = Duration::from_secs(5);

/// A server and its database, as they are connected to and as they are shown.
pub struct Address {
    /// How it is connected to, with the password where there is one.
    pub config: Config,
    /// How a connection is encrypted.
    pub tls: MakeRustlsConnect,
    /// The URL without anything that is secret.
    pub shown: String,
    /// What its parameter `schema` says, which is ours and no server's.
    pub schema: Option<String>,
}

/// Why a URL leads to no server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAddress {
    /// The URL without anything that is secret.
    pub shown: String,
    /// What is wrong with it.
    pub message: String,
    /// What to do about it.
    pub hint: &'static str,
}

impl Address {
    /// Reads a URL, and the password from where it is kept.
    ///
    /// # Errors
    /// [`BadAddress`] when it is none, or holds a password.
    pub fn read(url: &str) -> Result<Self, BadAddress> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let shown = shown(place);
        let refused = |message: String, hint| BadAddress { shown: shown.clone(), message, hint };
        let (mut rest, mut root, mut schema) = (Vec::new(), None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("password", _)) => return Err(refused(NO_PASSWORD.into(), PASSWORD)),
                Some(("sslrootcert", path)) => root = Some(decoded(path)),
                Some(("schema", name)) => schema = Some(decoded(name)),
                // A certificate is looked at whenever there is one.
                Some(("sslmode", "verify-ca" | "verify-full")) => rest.push("sslmode=require"),
                Some(("sslmode", "allow")) => rest.push("sslmode=prefer"),
                Some(("sslmode", mode)) if !["disable", "prefer", "require"].contains(&mode) => {
                    return Err(refused(format!("unknown sslmode `{mode}`"), MODES));
                }
                _ => rest.push(part),
            }
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        let mut config: Config = format!("{place}{query}")
            .parse()
            .map_err(|e| refused(said(&e), "write postgres://user@host:port/database"))?;
        if config.get_password().is_some() {
            return Err(refused(NO_PASSWORD.into(), PASSWORD));
        }
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_user().is_none() {
            let named = ["PGUSER", "USER", "LOGNAME"].into_iter().find_map(variable);
            config.user(named.unwrap_or_else(|| "postgres".to_owned()));
        }
        if let Some(password) = variable("PGPASSWORD").or_else(|| of_file(&config)) {
            config.password(password);
        }
        config.application_name(format!("hqdl {}", env!("CARGO_PKG_VERSION")));
        config.connect_timeout(CONNECTING);
        config.tcp_user_timeout(ANSWER);
        config.keepalives_idle(ANSWER);
        let mode = config.get_ssl_mode();
        let tls = tls::connector(root.as_deref().map(Path::new), mode).map_err(|message| {
            refused(message, "name a file with certificates in sslrootcert, or set sslmode=disable")
        })?;
        Ok(Self { config, tls, shown, schema })
    }
}

const MODES: &str = "expected disable, prefer, require or verify-full";
const NO_PASSWORD: &str = "the URL contains a password, which other users could read";
const PASSWORD: &str = "remove it, and set it in PGPASSWORD or ~/.pgpass";

/// A URL as it may be shown: whatever stands where a password would is left out.
fn shown(place: &str) -> String {
    let (scheme, rest) = place.split_once("://").unwrap_or(("postgres", place));
    match rest.rsplit_once('@') {
        Some((user, rest)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{scheme}://{user}@{rest}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

/// What an error says, with its cause.
#[must_use]
pub fn said(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `%41` is `A`.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let hex = more.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The password in `~/.pgpass` (or `PGPASSFILE`): the first line that fits.
fn of_file(config: &Config) -> Option<String> {
    let of_home = || Some(PathBuf::from(variable("HOME")?).join(".pgpass"));
    let path = variable("PGPASSFILE").map(PathBuf::from).or_else(of_home)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // As PostgreSQL's own programs have it: what others can read is no secret.
        if std::fs::metadata(&path).ok()?.mode() & 0o077 != 0 {
            tracing::warn!(path = %path.display(), "other users can read this file, so hqdl does not use its passwords");
            return None;
        }
    }
    let text = std::fs::read_to_string(path).ok()?;
    let host = match config.get_hosts().first()? {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(_) => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user()?;
    let database = config.get_dbname().unwrap_or(user);
    text.lines().find_map(|line| {
        let fields = fields(line);
        let [of_host, of_port, of_database, of_user, password] = fields.as_slice() else {
            return None;
        };
        let fit = |field: &str, value: &str| field == "*" || field == value;
        (fit(of_host, &host)
            && fit(of_port, &port)
            && fit(of_database, database)
            && fit(of_user, user))
        .then(|| password.clone())
    })
}

/// The fields of a line, parted by `:`; `\` takes the next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut().into_iter().for_each(|f| f.extend(characters.next())),
            other => fields.last_mut().into_iter().for_each(|f| f.push(other)),
        }
    }
    fields
}
