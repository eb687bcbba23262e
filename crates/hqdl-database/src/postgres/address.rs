//! Server addresses: a URL without a password. The password comes from the environment or from
//! `PostgreSQL`'s password file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls;

/// Time without an answer after which a connection counts as broken.
pub const ANSWER: Duration = Duration::from_secs(15);
/// Timeout for a new connection.
pub const CONNECTING: Duration = Duration::from_secs(5);

/// Address of a server and its database.
pub struct Address {
    /// Connection settings, including the password if there is one.
    pub config: Config,
    /// TLS settings.
    pub tls: MakeRustlsConnect,
    /// URL without secrets.
    pub shown: String,
    /// Value of the parameter `schema`, which hqdl defines and does not send to the server.
    pub schema: Option<String>,
}

/// Reason why a URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAddress {
    /// URL without secrets.
    pub shown: String,
    /// Error message.
    pub message: String,
    /// Hint for the user.
    pub hint: &'static str,
}

impl Address {
    /// Parses a URL, and reads the password from its source.
    ///
    /// # Errors
    /// Returns [`BadAddress`] if it is invalid, or contains a password.
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
                // hqdl always verifies a certificate if there is one.
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

/// Returns the URL for messages, without a possible password.
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

/// Returns an error's message with its cause.
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

/// Decodes percent escapes: `%41` is `A`.
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

/// Returns the password in `~/.pgpass` (or `PGPASSFILE`) from the first matching line.
fn of_file(config: &Config) -> Option<String> {
    let of_home = || Some(PathBuf::from(variable("HOME")?).join(".pgpass"));
    let path = variable("PGPASSFILE").map(PathBuf::from).or_else(of_home)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // As PostgreSQL's own programs do, ignore a file that others can read.
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

/// Splits a line at `:`; `\` escapes the next character.
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
