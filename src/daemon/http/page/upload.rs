//! The page that uploads a CSV file or a `SQLite` database, and creates a first spec for it as
//! `hqdl init` does. The daemon runs with `--edit`.
//!
//! The upload is written into a hidden directory within the specs' directory. Only a complete
//! database with its spec leaves it, and never replaces a file. The spec's budget is 0, so that the
//! daemon sends no request before the user has seen the cost.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use tempfile::{TempDir, TempPath};
use tokio::sync::{Mutex, mpsc, watch};

use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::spec_edit::{CHECK_TIMEOUT, SpecEditor, read_only_error};
use super::{ErrorPage, HttpState, Page, ShownPage, render_failure, render_main_page, spec_path};
use crate::daemon::event::DaemonEvent;
use crate::daemon::job::guard_failure;
use crate::database::StoreError;
use crate::failure::Failure;
use crate::format::{describe_io_error, describe_write_error};
use crate::init::csv_import::{self, CsvImportError};
use crate::init::{GeneratedSpec, SpecDraft};
use crate::query::connection::guard::GuardedConnection;
use crate::session::SpecOverrides;

/// Size of a megabyte, in bytes.
const MEGABYTE: u64 = 1_000_000;
/// Space that an upload leaves free on the disk, in bytes.
const MIN_FREE_BYTES: u64 = 256 * MEGABYTE;
/// Number of bytes after which the free space is checked again.
const SPACE_CHECK_BYTES: u64 = 8 * MEGABYTE;
/// Maximum number of chunks that wait to be written.
const MAX_CHUNKS_AHEAD: usize = 4;
/// Maximum size of a CSV file, which the import reads into memory, in bytes.
const MAX_CSV_BYTES: u64 = 256 * MEGABYTE;
/// Time limit for the next chunk of an upload.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for an upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time limit for the daemon to read a new spec.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of characters of a spec's name.
const MAX_NAME: usize = 60;
/// Prefix of the names of the directories of unfinished uploads.
const TEMP_PREFIX: &str = ".hqdl-upload-";
/// Age after which the directory of an unfinished upload is deleted.
const MAX_TEMP_AGE: Duration = Duration::from_secs(24 * 3600);
/// First bytes of every `SQLite` database.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";

/// Handles `GET /upload`.
pub(super) async fn show_upload(State(state): State<HttpState>) -> ShownPage {
    Ok(render_upload(&state, &html! {}))
}

/// Handles `POST /upload`: creates a database and its spec, and shows the spec in the editor.
pub(super) async fn receive_upload(
    State(state): State<HttpState>,
    request: Request,
) -> Result<Response, ErrorPage> {
    match create_spec(&state, request).await {
        Ok((name, notes)) => Ok(show_new_spec(&state, &name, &notes).await?.into_response()),
        Err(HttpError { status, failure }) => {
            let page = render_upload(&state, &render_failure(&failure));
            Ok((status, page).into_response())
        }
    }
}

/// Receives a file and creates its spec. Returns the name of the spec, and notes for the user.
async fn create_spec(
    state: &HttpState,
    request: Request,
) -> Result<(String, Vec<String>), HttpError> {
    let settings = &state.context.settings;
    if !settings.edit {
        return Err(read_only_error());
    }
    let folder = settings.specs.clone();
    if folder.is_file() {
        let hint = "start the daemon with the folder of your specs";
        return Err(HttpError::bad_request("the daemon watches a single spec", hint));
    }
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()?.parse().ok()).unwrap_or(0);
    check_size(length, settings.max_upload)?;
    let permit = Arc::clone(&state.upload_permits).try_acquire_owned();
    let permit = permit.map_err(|_| HttpError::server_busy("too many uploads are in progress"))?;
    let new_folder = folder.clone();
    let temp = tokio::task::spawn_blocking(move || create_temp_dir(&new_folder, length)).await;
    let temp = temp.map_err(|_| internal_error())??;
    let form = Multipart::from_request(request, &()).await.map_err(|e| {
        HttpError::bad_request(e.body_text(), "choose a file on the page, and send it again")
    })?;
    let receiving = receive_file(form, &temp, settings.max_upload);
    let received = tokio::time::timeout(UPLOAD_TIMEOUT, receiving).await;
    let uploaded = received.map_err(|_| timeout_error())??;
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let edits = Arc::clone(&state.edits);
    let create = move || uploaded.create_spec(&temp, &folder, &edits, interrupt);
    let (name, spec_file, notes) = run_blocking(permit, client_guard, create).await?;
    let _ = state.context.events.send(DaemonEvent::FilesChanged(vec![spec_file])).await;
    Ok((name, notes))
}

/// Creates the directory of an upload, if the disk has space for `length` bytes of upload. Deletes
/// the directories that a killed daemon has left.
fn create_temp_dir(folder: &Path, length: u64) -> Result<TempDir, HttpError> {
    let failed = |e: io::Error| write_failure(folder, &e);
    std::fs::create_dir_all(folder).map_err(failed)?;
    for entry in std::fs::read_dir(folder).map_err(failed)?.flatten() {
        let is_temp = entry.file_name().to_string_lossy().starts_with(TEMP_PREFIX);
        let modified = entry.metadata().and_then(|found| found.modified());
        let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if is_temp && age.is_some_and(|age| age > MAX_TEMP_AGE) {
            // Another upload may delete it at the same time.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    // A CSV file is on the disk together with its database.
    check_free_space(folder, length.saturating_mul(2))?;
    Ok(tempfile::Builder::new().prefix(TEMP_PREFIX).tempdir_in(folder).map_err(failed)?)
}

/// Fails if `bytes` more bytes would leave less than [`MIN_FREE_BYTES`] of free disk space.
fn check_free_space(folder: &Path, bytes: u64) -> Result<(), HttpError> {
    let found = rustix::fs::statvfs(folder).map_err(|e| write_failure(folder, &e.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free >= bytes.saturating_add(MIN_FREE_BYTES) {
        return Ok(());
    }
    let message = format!(
        "{} has {} MB of free space, and the upload needs {} MB",
        folder.display(),
        free / MEGABYTE,
        (bytes + MIN_FREE_BYTES).div_ceil(MEGABYTE)
    );
    Err(HttpError::new(StatusCode::INSUFFICIENT_STORAGE, message, "free some space on the disk"))
}

fn check_size(bytes: u64, max_bytes: u64) -> Result<(), HttpError> {
    if bytes <= max_bytes {
        return Ok(());
    }
    let message = format!("the upload is larger than {} MB", max_bytes / MEGABYTE);
    let hint = "copy the file into the folder of the specs, run `hqdl init` there, or start the daemon with a larger --max-upload";
    Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, message, hint))
}

/// Fails if a file that begins with `head` is a CSV file of more than [`MAX_CSV_BYTES`].
fn check_csv_size(head: &[u8], bytes: u64) -> Result<(), HttpError> {
    if bytes <= MAX_CSV_BYTES || head.starts_with(SQLITE_MAGIC) {
        return Ok(());
    }
    let message = format!("the CSV file is larger than {} MB", MAX_CSV_BYTES / MEGABYTE);
    let hint = "import it into a SQLite database and upload that, or copy the file into the folder of the specs and run `hqdl init` there";
    Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, message, hint))
}

fn write_failure(path: &Path, e: &io::Error) -> Failure {
    let message = format!("cannot write {}: {}", path.display(), describe_write_error(path, e));
    Failure::wrong_input(message, "check the folder of the specs and its permissions")
}

fn internal_error() -> HttpError {
    HttpError::bad_request("this is a bug in hqdl", "")
}

fn timeout_error() -> HttpError {
    let message = "the upload did not arrive in time".to_owned();
    HttpError::new(StatusCode::REQUEST_TIMEOUT, message, "send it again")
}

fn incomplete_error(error: &MultipartError) -> HttpError {
    let message = format!("the upload is incomplete: {}", error.body_text());
    HttpError::bad_request(message, "send it again")
}

/// A file that has arrived.
struct UploadedFile {
    /// Name of the file on the user's machine, without its folder.
    file_name: String,
    /// Name of the new spec.
    name: String,
    path: PathBuf,
    is_sqlite: bool,
}

/// Reads the form: the spec's name, and then the file, which is written into `temp`.
async fn receive_file(
    mut form: Multipart,
    temp: &TempDir,
    max_bytes: u64,
) -> Result<UploadedFile, HttpError> {
    let mut wanted_name = String::new();
    while let Some(mut field) = form.next_field().await.map_err(|e| incomplete_error(&e))? {
        if field.name() != Some("file") {
            wanted_name = read_short_field(&mut field).await?;
            continue;
        }
        let file_name = field.file_name().unwrap_or_default();
        // Browsers send the bare name, but other clients may send a path.
        let file_name = file_name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        let stem = file_name.rsplit_once('.').map_or(file_name.as_str(), |(stem, _)| stem);
        let name = sanitize_spec_name(if wanted_name.is_empty() { stem } else { &wanted_name });
        let path = temp.path().join("upload");
        let file = File::create_new(&path).map_err(|e| write_failure(&path, &e))?;
        let is_sqlite = store_file(&mut field, file, temp.path(), max_bytes).await?;
        return Ok(UploadedFile { file_name, name, path, is_sqlite });
    }
    Err(HttpError::bad_request("the form has no file", "choose a CSV file or a SQLite database"))
}

async fn next_chunk(field: &mut Field<'_>) -> Result<Option<Bytes>, HttpError> {
    let chunk = tokio::time::timeout(CHUNK_TIMEOUT, field.chunk()).await;
    chunk.map_err(|_| timeout_error())?.map_err(|e| incomplete_error(&e))
}

/// Reads a text field.
async fn read_short_field(field: &mut Field<'_>) -> Result<String, HttpError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = next_chunk(field).await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > 4 * MAX_NAME {
            let hint = format!("enter at most {MAX_NAME} characters");
            return Err(HttpError::bad_request("the name is too long", &hint));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Writes a file as it arrives. Returns true if it is a `SQLite` database.
async fn store_file(
    field: &mut Field<'_>,
    file: File,
    folder: &Path,
    max_bytes: u64,
) -> Result<bool, HttpError> {
    let (chunks, received) = mpsc::channel(MAX_CHUNKS_AHEAD);
    let folder = folder.to_owned();
    let writing =
        tokio::task::spawn_blocking(move || write_chunks(received, file, &folder, max_bytes));
    let mut arrived = Ok(());
    loop {
        match next_chunk(field).await {
            Ok(Some(chunk)) => {
                // If the writer has failed, it returns the reason.
                if chunks.send(chunk).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                arrived = Err(error);
                break;
            }
        }
    }
    drop(chunks);
    let is_sqlite = writing.await.map_err(|_| internal_error())??;
    arrived.map(|()| is_sqlite)
}

fn write_chunks(
    mut chunks: mpsc::Receiver<Bytes>,
    mut file: File,
    folder: &Path,
    max_bytes: u64,
) -> Result<bool, HttpError> {
    let (mut bytes, mut checked) = (0, 0);
    let mut head = Vec::new();
    while let Some(chunk) = chunks.blocking_recv() {
        bytes += chunk.len() as u64;
        check_size(bytes, max_bytes)?;
        if head.len() < SQLITE_MAGIC.len() {
            head.extend_from_slice(&chunk[..chunk.len().min(SQLITE_MAGIC.len())]);
        }
        check_csv_size(&head, bytes)?;
        if bytes - checked >= SPACE_CHECK_BYTES {
            check_free_space(folder, 0)?;
            checked = bytes;
        }
        file.write_all(&chunk).map_err(|e| write_failure(folder, &e))?;
    }
    file.sync_all().map_err(|e| write_failure(folder, &e))?;
    Ok(head.starts_with(SQLITE_MAGIC))
}

/// Returns a name for a spec and its files: letters, digits, `-` and `_`, so that it cannot leave
/// the folder and is not hidden.
fn sanitize_spec_name(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = text.chars().map(plain).take(MAX_NAME).collect();
    match name.trim_matches('-') {
        "" => "upload".to_owned(),
        name => name.to_owned(),
    }
}

impl UploadedFile {
    /// Creates the spec and moves it with its database into `folder`. Returns the spec's name, its
    /// file, and notes for the user. Locks `edits` only while it moves the files, because the
    /// import can take minutes.
    fn create_spec(
        self,
        temp: &TempDir,
        folder: &Path,
        edits: &Mutex<()>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<(String, PathBuf, Vec<String>), HttpError> {
        check_name_is_free(folder, &self.name)?;
        let (database, mut notes) = self.create_database(temp)?;
        let generated = self.draft_spec(&database, interrupt)?;
        notes.extend(generated.notes);
        let spec_file = temp.path().join("spec");
        let write_spec = || {
            let mut file = File::create_new(&spec_file)?;
            file.write_all(generated.toml.as_bytes())?;
            file.sync_all()
        };
        write_spec().map_err(|e| write_failure(&spec_file, &e))?;
        let _lock = edits.blocking_lock();
        // Another upload may have taken the name in the meantime.
        check_name_is_free(folder, &self.name)?;
        let place = |from: PathBuf, end: &str| -> Result<PathBuf, HttpError> {
            let to = folder.join(format!("{}.{end}", self.name));
            let placed =
                TempPath::try_from_path(from).and_then(|from| Ok(from.persist_noclobber(&to)?));
            match placed {
                Ok(()) => Ok(to),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    Err(name_taken_error(&self.name, &to))
                }
                Err(e) => Err(write_failure(&to, &e).into()),
            }
        };
        let database = place(database, "sqlite")?;
        // The daemon must not read the spec before its database exists.
        let spec_file = place(spec_file, "toml").inspect_err(|_| {
            let _ = std::fs::remove_file(&database);
        })?;
        Ok((self.name, spec_file, notes))
    }

    /// Returns the path of the database: the upload itself, or the import of the CSV file.
    fn create_database(&self, temp: &TempDir) -> Result<(PathBuf, Vec<String>), HttpError> {
        if self.is_sqlite {
            return Ok((self.path.clone(), Vec::new()));
        }
        let extension =
            Path::new(&self.file_name).extension().map(std::ffi::OsStr::to_ascii_lowercase);
        if !extension.is_some_and(|e| e == "csv" || e == "tsv" || e == "txt") {
            let message = format!("{} is neither a CSV file nor a SQLite database", self.file_name);
            let hint = "export a spreadsheet as CSV first";
            return Err(HttpError::bad_request(message, hint));
        }
        // The import derives the table's name from the file's name.
        let csv = temp.path().join(format!("{}.csv", self.name));
        std::fs::rename(&self.path, &csv).map_err(|e| write_failure(&csv, &e))?;
        let mut head = [0; 4];
        let is_zip = File::open(&csv).and_then(|mut file| file.read_exact(&mut head)).is_ok()
            && head == *b"PK\x03\x04";
        if is_zip {
            let message = format!("{} is a spreadsheet or an archive", self.file_name);
            return Err(HttpError::bad_request(message, "export the spreadsheet as CSV first"));
        }
        // An upload that arrives in chunks does not announce its size.
        let bytes = csv.metadata().map_err(|e| write_failure(&csv, &e))?.len();
        check_free_space(temp.path(), bytes)?;
        let imported = csv_import::create_database(&csv, std::slice::from_ref(&csv));
        let (database, notes) = imported.map_err(|e| {
            // Name the user's file instead of the copy.
            let message = match &e {
                CsvImportError::File { message, .. } => format!("{}: {message}", self.file_name),
                other => other.to_string(),
            };
            HttpError::bad_request(message, &e.hint())
        })?;
        let copy = csv.display().to_string();
        Ok((database, notes.iter().map(|note| note.replace(&copy, &self.file_name)).collect()))
    }

    /// Writes a first spec for the database, through a read-only connection with a time limit.
    fn draft_spec(
        &self,
        database: &Path,
        interrupt: watch::Receiver<bool>,
    ) -> Result<GeneratedSpec, Failure> {
        let describe = |e: StoreError| {
            // Name the user's file instead of the copy.
            let message = e.to_string().replace(&database.display().to_string(), &self.file_name);
            Failure::wrong_input(message, e.hint())
        };
        let guard = GuardedConnection::open_for_sql(database, Some(CHECK_TIMEOUT), interrupt)
            .map_err(describe)?;
        let overrides = SpecOverrides { budget_usd: Some(0.0), ..SpecOverrides::default() };
        let drafted = SpecDraft::sample_database(guard.database())
            .and_then(|draft| draft.write(&format!("{}.sqlite", self.name), &overrides));
        drafted.map_err(|e| guard_failure(&guard).unwrap_or_else(|| describe(e)))
    }
}

/// Fails if the folder has a file of a spec with this name. A journal or the overrides of a deleted
/// spec would otherwise apply to the new one.
fn check_name_is_free(folder: &Path, name: &str) -> Result<(), HttpError> {
    let entries = std::fs::read_dir(folder).map_err(|e| {
        let message = format!("cannot read {}: {}", folder.display(), describe_io_error(&e));
        HttpError::bad_request(message, "check the folder of the specs and its permissions")
    })?;
    let prefix = format!("{}.", name.to_lowercase());
    let is_taken = |path: &PathBuf| {
        let file_name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        file_name.starts_with(&prefix)
    };
    match entries.flatten().map(|entry| entry.path()).find(is_taken) {
        Some(path) => Err(name_taken_error(name, &path)),
        None => Ok(()),
    }
}

fn name_taken_error(name: &str, path: &Path) -> HttpError {
    let message = format!("{} exists already, and an upload never replaces a file", path.display());
    let hint = format!("enter another name than `{name}`");
    HttpError::new(StatusCode::CONFLICT, message, &hint)
}

/// Waits until the daemon has read a new spec, and shows it in the editor.
async fn show_new_spec(state: &HttpState, name: &str, notes: &[String]) -> Result<Page, ErrorPage> {
    let mut status = state.context.status.clone();
    let is_read = status.wait_for(|status| status.find_spec(name).is_some());
    // If the daemon is slow, the editor reports the unknown spec.
    let _ = tokio::time::timeout(READ_TIMEOUT, is_read).await;
    let editor = SpecEditor::open(state, name)?;
    let intro = html! {
        section.card.answer role="status" {
            h2 { "The spec " (name) " is ready" }
            p { "Keep the columns that you need, and enter the model. Preview shows the prompt and the cost of the first cells. "
                "The spec's budget is 0, so the daemon sends no request that costs money until you approve a run on the "
                a href=(spec_path(name)) { "page of the spec" } "." }
            @if !notes.is_empty() { ul { @for note in notes { li { (note) } } } }
        }
    };
    Ok(editor.render_with_intro(&intro, &html! {}))
}

fn render_upload(state: &HttpState, outcome: &Markup) -> Page {
    let settings = &state.context.settings;
    let max_bytes = settings.max_upload;
    render_main_page(
        "New spec",
        &html! {
            h1 { "New spec" }
            p { "Upload a CSV file or a SQLite database. hqdl imports it into " code { (settings.specs.display()) }
                " and writes a first spec for it, which you can edit before any request is sent." }
            @if settings.edit {
                form.card.fields #upload method="post" action="/upload" enctype="multipart/form-data" data-max=(max_bytes) {
                    label { "Name of the spec " span.quiet { "(default: the name of the file)" }
                        input name="name" maxlength=(MAX_NAME) autocomplete="off"; }
                    label { "File, at most " (max_bytes / MEGABYTE) " MB"
                        input type="file" name="file" required accept=".csv,.tsv,.txt,.sqlite,.sqlite3,.db"; }
                    p.small.quiet { "CSV: UTF-8, at most " (max_bytes.min(MAX_CSV_BYTES) / MEGABYTE) " MB, with the column names in the first line." }
                    div.row.controls {
                        button.main { "Upload" }
                        button.cancel type="button" hidden { "Cancel" }
                        progress aria-label="Progress of the upload" max="1" value="0" hidden {}
                        span.status.quiet role="status" {}
                    }
                }
            } @else {
                p.note { "The page may not add specs. Start the daemon with " code { "--edit" } ", or run " code { "hqdl init" } "." }
            }
            (outcome)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a CSV file is read into memory.
    #[test]
    fn a_large_csv_file_is_refused_before_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("upload");
        let (chunks, received) = mpsc::channel(1);
        chunks.try_send(Bytes::from(vec![b'x'; MAX_CSV_BYTES as usize + 1])).unwrap();
        drop(chunks);
        let file = File::create_new(&path).unwrap();
        let refused = write_chunks(received, file, folder.path(), u64::MAX).unwrap_err();
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(path.metadata().unwrap().len(), 0);
        assert!(check_csv_size(SQLITE_MAGIC, MAX_CSV_BYTES + 1).is_ok());
        assert!(check_csv_size(b"a,b", MAX_CSV_BYTES).is_ok());
    }
}
