//! Implements `--log FILE`, which logs a run step by step for debugging.
//!
//! Only hqdl's own targets are logged, whatever `RUST_LOG` requests: other crates may log headers,
//! and with them the API key.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::failure::Failure;

/// Filter used if `RUST_LOG` is not set.
const DEFAULT_FILTER: &str = "hqdl=debug";

/// Log file of this process.
static LOG_FILE: OnceLock<LogFile> = OnceLock::new();

/// A log file that can be reopened by its path.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: RwLock<Arc<File>>,
    /// Whether a write has failed and the user has been warned.
    is_failure_reported: AtomicBool,
}

/// Writes to the log file. If a write fails, prints a warning once and drops the line, because a
/// full disk must not end a run.
struct LogWriter {
    file: Arc<File>,
    log_file: &'static LogFile,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Err(error) = (&*self.file).write_all(bytes)
            && !self.log_file.is_failure_reported.swap(true, Ordering::Relaxed)
        {
            let path = &self.log_file.path;
            let reason = crate::format::describe_write_error(path, &error);
            let path = path.display();
            anstream::eprintln!(
                "warning: cannot log to {path}: {reason}; the command continues without it"
            );
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts logging; appends to the file.
pub fn start_logging(path: &Path) -> Result<(), Failure> {
    let env_filter = std::env::var("RUST_LOG").ok().filter(|s| !s.trim().is_empty());
    let filter = parse_filter(env_filter.as_deref().unwrap_or(DEFAULT_FILTER))?;
    let file = open_for_append(path).map_err(|e| {
        Failure::wrong_input(
            format!(
                "cannot log to {}: {}",
                path.display(),
                crate::format::describe_write_error(path, &e)
            ),
            "choose another --log",
        )
    })?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let log_file = LOG_FILE.get_or_init(|| LogFile {
        path,
        file: RwLock::new(Arc::new(file)),
        is_failure_reported: AtomicBool::new(false),
    });
    let writer = || LogWriter {
        file: Arc::clone(&log_file.file.read().unwrap_or_else(PoisonError::into_inner)),
        log_file,
    };
    let layer = fmt::layer().with_ansi(false).with_writer(writer).with_filter(filter);
    // A process can have only one subscriber; if there is one already, keep it.
    let _ = tracing_subscriber::registry().with(layer).try_init();
    Ok(())
}

/// Reopens the log file, because log rotation may have moved the old one.
pub fn reopen_log() {
    let Some(log_file) = LOG_FILE.get() else { return };
    // If reopening fails, keep writing to the old file.
    if let Ok(file) = open_for_append(&log_file.path) {
        *log_file.file.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
    }
}

fn open_for_append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Parses a filter and keeps only the directives that apply to hqdl.
fn parse_filter(text: &str) -> Result<Targets, Failure> {
    let all: Targets = text.parse().map_err(|_| {
        Failure::wrong_input(
            format!("RUST_LOG is not a filter: `{text}`"),
            "give each target a level (error, warn, info, debug or trace), as in \"hqdl=debug\" or \"hqdl::model=trace,hqdl=info\"",
        )
    })?;
    let own = all.iter().filter(|(target, _)| target.starts_with("hqdl"));
    let any = all.default_level().map(|level| ("hqdl".to_owned(), level));
    let own = own.map(|(target, level)| (target.to_owned(), level));
    Ok(any.into_iter().chain(own).collect())
}
