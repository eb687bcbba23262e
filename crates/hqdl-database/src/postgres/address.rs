//! Server addresses: a URL without a password. The password comes from the environment or from
//! `PostgreSQL`'s password file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::tls::{self, Trust};
use hqdl_values::format::hide_secrets;

/// Time after which a connection that has not answered is considered lost.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for a new connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of a server and its database.
pub struct ServerAddress {
    /// Connection settings, including the password if there is one.
    pub config: Config,
    /// TLS settings.
    pub tls: MakeRustlsConnect,
    /// URL without secrets.
    pub display_url: String,
    /// Value of the URL parameter `schema`, which hqdl itself interprets and does not send to the
    /// server.
    pub schema: Option<String>,
}

/// Reason why a URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressError {
    /// URL without secrets.
    pub display_url: String,
    /// Error message.
    pub message: String,
    /// Hint for the user.
    pub hint: &'static str,
}

impl ServerAddress {
    /// Parses a URL, and reads the password from the environment or the password file.
    ///
    /// # Errors
    /// Returns [`AddressError`] if the URL is invalid, or contains a password.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let display_url = hide_secrets(base);
        let reject = |message: String, hint| AddressError {
            display_url: display_url.clone(),
            message,
            hint,
        };
        let (mut parameters, mut root_certificate, mut schema) = (Vec::new(), None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("password", _)) => return Err(reject(PASSWORD_IN_URL.into(), PASSWORD_HINT)),
                Some(("sslrootcert", path)) => root_certificate = Some(decode_percent(path)),
                Some(("schema", name)) => schema = Some(decode_percent(name)),
                // `require` also makes hqdl verify the server's certificate.
                Some(("sslmode", "verify-ca" | "verify-full")) => {
                    parameters.push("sslmode=require");
                }
                Some(("sslmode", "allow")) => parameters.push("sslmode=prefer"),
                Some(("sslmode", mode)) if !["disable", "prefer", "require"].contains(&mode) => {
                    return Err(reject(format!("unknown sslmode `{mode}`"), SSLMODE_HINT));
                }
                _ => parameters.push(part),
            }
        }
        let query = if parameters.is_empty() {
            String::new()
        } else {
            format!("?{}", parameters.join("&"))
        };
        if base.split_once("://").is_some_and(|(_, rest)| rest.is_empty()) {
            let hint = "write postgres://user@host/database";
            return Err(reject("the URL names neither a host nor a database".into(), hint));
        }
        let mut config: Config = format!("{base}{query}").parse().map_err(|e| {
            let reason = find_invalid_port(base).map_or_else(
                || describe_connection_error(&e),
                |port| format!("the port `{port}` is not a number from 1 to 65535"),
            );
            let hint = if reason.starts_with("unknown option") {
                "known options: schema, sslmode, sslrootcert, connect_timeout, options"
            } else {
                "write postgres://user@host:port/database"
            };
            reject(reason, hint)
        })?;
        if config.get_password().is_some() {
            return Err(reject(PASSWORD_IN_URL.into(), PASSWORD_HINT));
        }
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_user().is_none() {
            let user = ["PGUSER", "USER", "LOGNAME"].into_iter().find_map(read_env_variable);
            config.user(user.unwrap_or_else(|| "postgres".to_owned()));
        }
        if let Some(password) =
            read_env_variable("PGPASSWORD").or_else(|| read_password_file(&config))
        {
            config.password(password);
        }
        config.application_name(format!("hqdl {}", env!("CARGO_PKG_VERSION")));
        config.connect_timeout(CONNECT_TIMEOUT);
        config.tcp_user_timeout(ANSWER_TIMEOUT);
        config.keepalives_idle(ANSWER_TIMEOUT);
        let mode = config.get_ssl_mode();
        let tls = create_connector(root_certificate.as_deref().map(Path::new), mode).map_err(
            |message| {
                reject(
                    message,
                    "name a readable file with certificates in sslrootcert, or set sslmode=disable",
                )
            },
        )?;
        Ok(Self { config, tls, display_url, schema })
    }
}

/// Returns the first invalid port in a URL, if there is one.
fn find_invalid_port(base: &str) -> Option<&str> {
    let authority = base.split_once("://")?.1.split('/').next()?;
    let hosts = authority.rsplit('@').next()?;
    let ports = hosts.split(',').filter_map(|host| host.rsplit(']').next()?.rsplit_once(':'));
    ports.map(|(_, port)| port).find(|port| port.parse::<u16>().is_err())
}

/// Returns the TLS settings for a connection. The connection trusts the certificates in a file, or
/// the system's certificates if no file is given.
///
/// # Errors
/// Fails with a message if the certificates cannot be read.
fn create_connector(root_file: Option<&Path>, mode: SslMode) -> Result<MakeRustlsConnect, String> {
    let config = match root_file {
        Some(path) => Trust::read_file(path)
            .map_err(|problem| format!("the certificates of {}: {problem}", path.display()))
            .and_then(|trust| tls::build_client_config(trust).map_err(|e| e.to_string()))?,
        // If unencrypted connections are allowed, verifying the certificate adds no protection.
        None if mode != SslMode::Require => {
            tls::build_client_config(Trust::Anything).map_err(|e| e.to_string())?
        }
        None => tls::system_config().map_err(|e| e.to_string())?,
    };
    Ok(MakeRustlsConnect::new(config))
}

const SSLMODE_HINT: &str = "expected disable, allow, prefer, require, verify-ca or verify-full";
const PASSWORD_IN_URL: &str = "the URL contains a password, which other users could read";
const PASSWORD_HINT: &str = "remove it, and set it in PGPASSWORD or ~/.pgpass";

/// Parts of the library's error messages, each with hqdl's own wording of the message.
const CONNECTION_REASONS: [(&str, &str); 5] = [
    ("onnection refused", "no server listens there (connection refused)"),
    ("failed to lookup address", "the host name cannot be resolved"),
    ("does not support TLS", "the server does not use TLS"),
    ("password missing", "the server asks for a password"),
    ("timed out", "the server does not answer in time"),
];

/// Returns the reason why a URL is invalid or a connection fails.
#[must_use]
pub fn describe_connection_error(error: &dyn std::error::Error) -> String {
    let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let text = format!("{error}: {cause}");
    let known = CONNECTION_REASONS.iter().find(|(part, _)| text.contains(part));
    let reason = known.map_or(&*cause, |(_, reason)| reason);
    reason.split(" (os error").next().unwrap_or_default().to_owned()
}

fn read_env_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Decodes percent escapes: `%41` is `A`.
fn decode_percent(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after_first)) = rest.split_first() {
        let hex = after_first.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after_first[2..];
            }
            None => {
                bytes.push(*first);
                rest = after_first;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the password from the first matching line of `~/.pgpass` (or `PGPASSFILE`).
fn read_password_file(config: &Config) -> Option<String> {
    let home_file = || Some(PathBuf::from(read_env_variable("HOME")?).join(".pgpass"));
    let path = read_env_variable("PGPASSFILE").map(PathBuf::from).or_else(home_file)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Ignore a file that other users can read, as PostgreSQL's own programs do.
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
        let fields = split_fields(line);
        let [host_field, port_field, database_field, user_field, password] = fields.as_slice()
        else {
            return None;
        };
        let is_match = |field: &str, value: &str| field == "*" || field == value;
        (is_match(host_field, &host)
            && is_match(port_field, &port)
            && is_match(database_field, database)
            && is_match(user_field, user))
        .then(|| password.clone())
    })
}

/// Splits a line at `:`; `\` escapes the next character.
fn split_fields(line: &str) -> Vec<String> {
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
