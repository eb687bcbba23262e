//! Media that cells refer to, and access to their bytes.
//!
//! A cell refers to a medium by the path of a file in one directory, by an `http(s)` URL, by a data
//! URL, or as a BLOB. The identity of a medium that hqdl reads is the BLAKE3 digest of its bytes,
//! `blake3:…`, so that one image with two names is one entity. The identity of a URL is its text,
//! because only the endpoint fetches it.
//!
//! Paths come from a database, which may be untrusted. A file is read only if its path, with links
//! resolved, is in that directory, and sent only if its first bytes are those of a medium.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::{KINDS, MediaInfo, MediaKind, Unusable, explain_refusal, find_format, has_scheme};
use hqdl_values::format::{describe_io_error, describe_read_error};
use hqdl_values::value::Value;

/// Prefix of an identity that is computed from the bytes.
const DIGEST_PREFIX: &str = "blake3:";

/// Media of one database.
#[derive(Clone, Default)]
pub struct MediaFiles(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Directory that contains the media; paths cannot leave it.
    folder: Option<PathBuf>,
    /// Identities of files that were read, by path.
    identities: Mutex<HashMap<String, (FileVersion, String)>>,
    /// Content of the files and values that were read, by identity.
    found: Mutex<HashMap<String, Result<MediaInfo, Unusable>>>,
    stored: Mutex<StoredMedia>,
}

/// Size and modification time; if both are unchanged, the file is unchanged.
type FileVersion = (u64, Option<SystemTime>);

/// Media that do not come from the user's files, stored in an unnamed temporary file.
#[derive(Default)]
struct StoredMedia {
    file: Option<File>,
    end: u64,
    /// For each identity, the medium's offset and length in the file, or the reason why it cannot
    /// be shown.
    locations: HashMap<String, Result<(u64, usize), String>>,
}

impl std::fmt::Debug for MediaFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MediaFiles").field(&self.0.folder).finish()
    }
}

impl MediaFiles {
    /// Creates a set of media whose paths are relative to a directory.
    #[must_use]
    pub fn from_folder(folder: PathBuf) -> Self {
        Self(Arc::new(Inner { folder: Some(folder), ..Inner::default() }))
    }

    /// Returns the identity of a medium: `blake3:…` if hqdl can read it, the text of a URL, or the
    /// value itself if it cannot be read.
    #[must_use]
    pub fn compute_identity(&self, value: &Value) -> Value {
        let Value::Text(text) = value else { return value.clone() };
        let text = text.trim();
        if is_url(text) || text.starts_with(DIGEST_PREFIX) {
            return Value::Text(text.to_owned());
        }
        if is_data_url(text) {
            return Value::Text(self.store_data_url(text));
        }
        let Ok((path, version)) = self.find_file(text) else { return value.clone() };
        if let Some((known_version, name)) = lock_ignoring_poison(&self.0.identities).get(text)
            && *known_version == version
        {
            return Value::Text(name.clone());
        }
        let Ok(bytes) = read_medium(&path) else { return value.clone() };
        let name = compute_identity_digest(&bytes);
        // An unusable file has an identity, too; the reason is reported when it is sent.
        let _ = self.recognize(&name, &bytes);
        lock_ignoring_poison(&self.0.identities).insert(text.to_owned(), (version, name.clone()));
        Value::Text(name)
    }

    /// Returns the kind and the duration of a medium by its identity; `None` if hqdl cannot send it.
    #[must_use]
    pub fn find_info(&self, identity: &str) -> Option<MediaInfo> {
        if is_url(identity) {
            // Endpoints fetch media of the first kind.
            let kind = KINDS.into_iter().find(|kind| kind.is_fetched)?;
            return Some(MediaInfo { kind, seconds: None });
        }
        lock_ignoring_poison(&self.0.found).get(identity)?.clone().ok()
    }

    /// Recognizes a medium by its bytes, once for each identity.
    fn recognize(&self, identity: &str, bytes: &[u8]) -> Result<MediaInfo, Unusable> {
        let mut found = lock_ignoring_poison(&self.0.found);
        let info = found.entry(identity.to_owned());
        info.or_insert_with(|| MediaInfo::from_bytes(bytes)).clone()
    }

    /// Stores the bytes of a BLOB while this process runs. Returns the medium's identity.
    #[must_use]
    pub fn store_blob(&self, bytes: &[u8]) -> Value {
        Value::Text(self.store_bytes(compute_identity_digest(bytes), bytes))
    }

    /// Stores the bytes of a data URL. Returns the medium's identity, or `None` for any other text.
    #[must_use]
    pub fn store_if_data_url(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        is_data_url(text).then(|| Value::Text(self.store_data_url(text)))
    }

    fn store_bytes(&self, name: String, bytes: &[u8]) -> String {
        let mut stored = lock_ignoring_poison(&self.0.stored);
        if !stored.locations.contains_key(&name) {
            let location = match explain_refusal(&self.recognize(&name, bytes), None) {
                None => stored.append(bytes).map_err(|e| e.to_string()),
                Some(reason) => Err(format!("the value {reason}")),
            };
            stored.locations.insert(name.clone(), location);
        }
        name
    }

    /// Stores the content of a data URL.
    fn store_data_url(&self, url: &str) -> String {
        match decode_data_url(url) {
            Ok(bytes) => self.store_bytes(compute_identity_digest(&bytes), &bytes),
            Err(reason) => {
                let name = compute_identity_digest(url.as_bytes());
                lock_ignoring_poison(&self.0.stored)
                    .locations
                    .insert(name.clone(), Err(reason.to_owned()));
                name
            }
        }
    }

    /// Returns the URL of a medium for use in a request: the medium's own URL, or a data URL with
    /// its bytes. `identity` is the medium's identity; `declared` is the only kind that its column
    /// can contain, if it is limited to one.
    ///
    /// # Errors
    /// Fails with the reason if the medium cannot be shown.
    pub fn build_media_url(
        &self,
        value: &Value,
        identity: &str,
        declared: Option<&'static MediaKind>,
    ) -> Result<String, String> {
        if let Value::Text(text) = value
            && is_url(text.trim())
        {
            let text = text.trim();
            return match declared.filter(|kind| !kind.is_fetched) {
                None => Ok(text.to_owned()),
                Some(kind) => {
                    let noun = kind.noun;
                    Err(format!("{text} is a URL, and endpoints do not fetch {noun}: download it"))
                }
            };
        }
        let (mime_type, bytes) = self.read(value, Some(identity), declared)?;
        let mut url = format!("data:{mime_type};base64,");
        STANDARD.encode_string(&bytes, &mut url);
        Ok(url)
    }

    /// Reads a medium that is not a URL. Returns its MIME type and its bytes. If the medium no
    /// longer has the given identity, its file has changed. `declared` is the only kind that its
    /// column can contain, if it is limited to one.
    ///
    /// # Errors
    /// Fails with the reason if the medium cannot be read or shown.
    pub fn read(
        &self,
        value: &Value,
        identity: Option<&str>,
        declared: Option<&'static MediaKind>,
    ) -> Result<(&'static str, Vec<u8>), String> {
        let Value::Text(text) = value else {
            let noun = declared.map_or("a file", |kind| kind.noun);
            return Err(format!(
                "the value {value} does not name {noun}: expected a path, a URL or a data URL"
            ));
        };
        let text = text.trim();
        let name = if is_data_url(text) { self.store_data_url(text) } else { text.to_owned() };
        let is_stored = name.starts_with(DIGEST_PREFIX);
        let bytes = if is_stored {
            lock_ignoring_poison(&self.0.stored).read_medium(&name)?
        } else {
            let (path, _) = self.find_file(text)?;
            let bytes =
                read_medium(&path).map_err(|e| format!("{text}: {}", describe_io_error(&e)))?;
            if identity.is_some_and(|identity| compute_identity_digest(&bytes) != identity) {
                return Err(format!("{text} changed during the run"));
            }
            bytes
        };
        // A digest would not help to find the value.
        let subject = if is_stored { "the value" } else { text };
        if let Some(reason) = explain_refusal(&MediaInfo::from_bytes(&bytes), declared) {
            return Err(format!("{subject} {reason}"));
        }
        let mime_type = find_format(&bytes).map_or("", |(_, format)| format.mime_type);
        Ok((mime_type, bytes))
    }

    /// Finds a file in the directory. Returns its full path and its version.
    fn find_file(&self, path: &str) -> Result<(PathBuf, FileVersion), String> {
        if path.is_empty() {
            return Err("the text is empty and names no file".to_owned());
        }
        let folder = self.0.folder.as_deref().ok_or("the spec has no folder for media")?;
        let root = folder.canonicalize().map_err(|e| describe_read_error(folder, &e))?;
        let outside_error = || {
            format!(
                "{path} is outside {}: move it there, or set `media` in [database]",
                root.display()
            )
        };
        let relative = Path::new(path);
        // Check this before any access, so that the error does not reveal whether a file exists.
        if relative.is_relative() && leaves_folder(relative) {
            return Err(outside_error());
        }
        let full_path = root.join(relative);
        if relative.is_absolute() && (!full_path.starts_with(&root) || leaves_folder(relative)) {
            return Err(outside_error());
        }
        let full_path = full_path.canonicalize().map_err(|e| match e.kind() {
            _ if path.contains("://") => {
                format!("{path} is not a URL that hqdl can use: expected http, https or data")
            }
            std::io::ErrorKind::NotFound => format!(
                "the file `{path}` does not exist (paths start at `media` of [database], or at the database's directory)"
            ),
            _ => format!("{path}: {}", describe_io_error(&e)),
        })?;
        if !full_path.starts_with(&root) {
            return Err(outside_error());
        }
        let metadata =
            full_path.metadata().map_err(|e| format!("{path}: {}", describe_io_error(&e)))?;
        // Reading a special file, such as a pipe, may never end.
        if !metadata.is_file() {
            return Err(format!("{path} is not a file: name an image or a recording"));
        }
        let version = (metadata.len(), metadata.modified().ok());
        Ok((full_path, version))
    }
}

/// Reads a file, up to one byte more than the maximum size, so that callers can detect a file that
/// is too large.
fn read_medium(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes() + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl StoredMedia {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<(u64, usize)> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => empty.insert(tempfile::tempfile()?),
        };
        let offset = self.end;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)?;
        self.end += bytes.len() as u64;
        Ok((offset, bytes.len()))
    }

    fn read_medium(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let (offset, length) = self
            .locations
            .get(name)
            .cloned()
            .unwrap_or_else(|| Err(format!("the file {name} is not available")))?;
        let mut bytes = vec![0; length];
        let file = self.file.as_mut().ok_or("no file is available")?;
        file.seek(SeekFrom::Start(offset)).map_err(|e| e.to_string())?;
        file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    }
}

/// Returns true if a path leaves its directory, judged only by its components.
fn leaves_folder(path: &Path) -> bool {
    let mut depth = 0_i64;
    path.components().any(|part| {
        match part {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
        depth < 0
    })
}

fn is_url(text: &str) -> bool {
    has_scheme(text, "http://") || has_scheme(text, "https://")
}

fn is_data_url(text: &str) -> bool {
    has_scheme(text, "data:")
}

/// Returns the maximum size of a medium of any kind, in bytes.
fn max_bytes() -> u64 {
    KINDS.into_iter().map(|kind| kind.max_bytes).max().unwrap_or_default()
}

fn decode_data_url(url: &str) -> Result<Vec<u8>, &'static str> {
    let (header, data) =
        url.split_once(',').ok_or("a data URL has no data: write it after the comma")?;
    if !header.to_ascii_lowercase().ends_with(";base64") {
        return Err("a data URL is not in base64: write data:image/png;base64,…");
    }
    if data.len() as u64 > max_bytes() / 3 * 4 + 8 {
        return Err("a data URL has more than 20 MiB, hqdl's limit: make the file smaller");
    }
    let data: String = data.split_whitespace().collect();
    let decoded = STANDARD.decode(&data).or_else(|_| STANDARD_NO_PAD.decode(&data));
    decoded.map_err(
        |_| "the data URL's base64 is broken: write the whole file in base64 after the comma",
    )
}

/// Returns the identity of a medium by its bytes, in the format of `b3sum`.
fn compute_identity_digest(bytes: &[u8]) -> String {
    let mut name = DIGEST_PREFIX.to_owned();
    let _ = write!(name, "{}", blake3::hash(bytes).to_hex());
    name
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
