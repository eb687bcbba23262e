//! Images that cells refer to, and access to their bytes.
//!
//! A cell refers to an image by the path of a file in one directory, by an `http(s)` URL, by a data
//! URL, or as a BLOB. The identity of an image that hqdl reads is the BLAKE3 digest of its bytes,
//! `blake3:…`, so that one image with two names is one entity. The identity of a URL is its text,
//! because only the endpoint fetches it.
//!
//! Paths come from a database, which may be untrusted. A file is read only if its path, with links
//! resolved, is in that directory, and sent only if its first bytes are those of an image.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use crate::Expansion;
use hqdl_values::Row;
use hqdl_values::format::{describe_read_error, io_reason};
use hqdl_values::key::{Entity, KeyColumns};
use hqdl_values::value::Value;

/// Maximum size of an image that is sent, in bytes.
pub const MAX_IMAGE_BYTES: u64 = 20 << 20;

/// Prefix of an identity that is computed from the image's bytes.
const DIGEST_PREFIX: &str = "blake3:";

/// Images of one database.
#[derive(Clone, Default)]
pub struct Images(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Directory that contains the images; paths cannot leave it.
    folder: Option<PathBuf>,
    /// Identities of files that were read, by path.
    identities: Mutex<HashMap<String, (FileVersion, String)>>,
    stored: Mutex<StoredImages>,
}

/// Size and modification time; if both are unchanged, the file is unchanged.
type FileVersion = (u64, Option<SystemTime>);

/// Images that do not come from the user's files, stored in an unnamed temporary file.
#[derive(Default)]
struct StoredImages {
    file: Option<File>,
    end: u64,
    /// For each identity, the image's offset and length in the file, or the reason why the image
    /// cannot be shown.
    locations: HashMap<String, Result<(u64, usize), String>>,
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Images").field(&self.0.folder).finish()
    }
}

impl Images {
    /// Creates a set of images whose paths are relative to a directory.
    #[must_use]
    pub fn from_folder(folder: PathBuf) -> Self {
        Self(Arc::new(Inner { folder: Some(folder), ..Inner::default() }))
    }

    /// Returns the identity of an image: `blake3:…` if hqdl can read it, the text of a URL, or the
    /// value itself if it cannot be read.
    #[must_use]
    pub fn identity(&self, value: &Value) -> Value {
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
        let Ok(bytes) = read_image(&path) else { return value.clone() };
        let name = digest_identity(&bytes);
        lock_ignoring_poison(&self.0.identities).insert(text.to_owned(), (version, name.clone()));
        Value::Text(name)
    }

    /// Stores the bytes of a BLOB while this process runs. Returns the image's identity.
    #[must_use]
    pub fn store_blob(&self, bytes: &[u8]) -> Value {
        Value::Text(self.store_bytes(digest_identity(bytes), bytes))
    }

    /// Stores the bytes of a data URL. Returns the image's identity, or `None` for any other text.
    #[must_use]
    pub fn store_if_data_url(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        is_data_url(text).then(|| Value::Text(self.store_data_url(text)))
    }

    fn store_bytes(&self, name: String, bytes: &[u8]) -> String {
        let mut stored = lock_ignoring_poison(&self.0.stored);
        if !stored.locations.contains_key(&name) {
            let location = match detect_mime_type(bytes) {
                Ok(_) => stored.append(bytes).map_err(|e| e.to_string()),
                Err(reason) => Err(format!("the value {reason}")),
            };
            stored.locations.insert(name.clone(), location);
        }
        name
    }

    /// Stores the content of a data URL.
    fn store_data_url(&self, url: &str) -> String {
        match decode_data_url(url) {
            Ok(bytes) => self.store_bytes(digest_identity(&bytes), &bytes),
            Err(reason) => {
                let name = digest_identity(url.as_bytes());
                lock_ignoring_poison(&self.0.stored)
                    .locations
                    .insert(name.clone(), Err(reason.to_owned()));
                name
            }
        }
    }

    /// Returns the URL of an image for use in a request: the image's own URL, or a data URL with
    /// its bytes. `identity` is the image's identity.
    ///
    /// # Errors
    /// Fails with the reason if the image cannot be shown.
    pub fn image_url(&self, value: &Value, identity: &str) -> Result<String, String> {
        let Value::Text(text) = value else {
            return Err(format!(
                "the value {value} does not name an image: expected a path, a URL or a data URL"
            ));
        };
        let text = text.trim();
        if is_url(text) {
            return Ok(text.to_owned());
        }
        let name = if is_data_url(text) { self.store_data_url(text) } else { text.to_owned() };
        let bytes = if name.starts_with(DIGEST_PREFIX) {
            lock_ignoring_poison(&self.0.stored).read_image(&name)?
        } else {
            let (path, _) = self.find_file(text)?;
            let bytes = read_image(&path).map_err(|e| format!("{text}: {}", io_reason(&e)))?;
            if digest_identity(&bytes) != identity {
                return Err(format!("{text} changed during the run"));
            }
            bytes
        };
        let mime_type = detect_mime_type(&bytes).map_err(|reason| format!("{text} {reason}"))?;
        let mut url = format!("data:{mime_type};base64,");
        STANDARD.encode_string(&bytes, &mut url);
        Ok(url)
    }

    /// Finds a file in the directory. Returns its full path and its version.
    fn find_file(&self, path: &str) -> Result<(PathBuf, FileVersion), String> {
        if path.is_empty() {
            return Err("the text is empty and names no image".to_owned());
        }
        let folder = self.0.folder.as_deref().ok_or("the spec has no folder for images")?;
        let root = folder.canonicalize().map_err(|e| describe_read_error(folder, &e))?;
        let outside_error = || {
            format!(
                "{path} is outside {}: move it there, or set `images` in [database]",
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
                "the file `{path}` does not exist (paths start at `images` of [database], or at the database's directory)"
            ),
            _ => format!("{path}: {}", io_reason(&e)),
        })?;
        if !full_path.starts_with(&root) {
            return Err(outside_error());
        }
        let metadata = full_path.metadata().map_err(|e| format!("{path}: {}", io_reason(&e)))?;
        // Reading a special file, such as a pipe, may never end.
        if !metadata.is_file() {
            return Err(format!("{path} is not a file: name an image"));
        }
        let version = (metadata.len(), metadata.modified().ok());
        Ok((full_path, version))
    }
}

/// Reads a file, up to one byte more than the maximum size, so that callers can detect a file that
/// is too large.
fn read_image(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_IMAGE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl StoredImages {
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

    fn read_image(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let (offset, length) = self
            .locations
            .get(name)
            .cloned()
            .unwrap_or_else(|| Err(format!("the image {name} is not available")))?;
        let mut bytes = vec![0; length];
        let file = self.file.as_mut().ok_or("no image is available")?;
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

fn has_scheme(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

fn decode_data_url(url: &str) -> Result<Vec<u8>, &'static str> {
    let (header, data) =
        url.split_once(',').ok_or("a data URL has no data: write it after the comma")?;
    if !header.to_ascii_lowercase().ends_with(";base64") {
        return Err("a data URL is not in base64: write data:image/png;base64,…");
    }
    if data.len() as u64 > MAX_IMAGE_BYTES / 3 * 4 + 8 {
        return Err(
            "a data URL has more than 20 MiB, hqdl's limit for an image: scale the image down",
        );
    }
    let data: String = data.split_whitespace().collect();
    let decoded = STANDARD.decode(&data).or_else(|_| STANDARD_NO_PAD.decode(&data));
    decoded.map_err(
        |_| "the data URL's base64 is broken: write the whole file in base64 after the comma",
    )
}

/// Returns the MIME type of an image by its first bytes.
fn detect_mime_type(bytes: &[u8]) -> Result<&'static str, &'static str> {
    if bytes.len() as u64 > MAX_IMAGE_BYTES {
        return Err("is larger than 20 MiB, hqdl's limit for an image: scale it down");
    }
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok("image/png"),
        [0xff, 0xd8, 0xff, ..] => Ok("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok("image/webp"),
        _ => Err("is not a PNG, JPEG, GIF or WebP image: convert it"),
    }
}

/// Content of a value that cannot be sent as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// Image: its bytes, or a data URL.
    Image,
    /// Sound recording: its bytes, or a data URL.
    Audio,
}

impl Media {
    /// Returns the media type of a BLOB by its first bytes.
    #[must_use]
    pub fn from_blob(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'I', b'D', b'3', ..]
            | [b'O', b'g', b'g', b'S', ..]
            | [b'f', b'L', b'a', b'C', ..]
            | [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Some(Self::Audio),
            _ => detect_mime_type(bytes).is_ok().then_some(Self::Image),
        }
    }

    /// Returns the media type of a data URL; `None` for any other text.
    #[must_use]
    pub fn from_data_url(text: &[u8]) -> Option<Self> {
        let header = text.get(..MAX_HEADER_BYTES).unwrap_or(text);
        let (header, _) = std::str::from_utf8(header).ok()?.split_once(";base64,")?;
        match header {
            _ if has_scheme(header, "data:image/") => Some(Self::Image),
            _ if has_scheme(header, "data:audio/") => Some(Self::Audio),
            _ => None,
        }
    }

    /// Returns the reason why hqdl cannot ask about a value of this media type.
    #[must_use]
    pub fn refusal_reason(self) -> &'static str {
        match self {
            Self::Image => "a value is an image; add image=true to send it as one",
            Self::Audio => "a value is a sound recording, which hqdl cannot send to a model",
        }
    }
}

/// Maximum length of the header of a data URL, in bytes.
const MAX_HEADER_BYTES: usize = 80;

/// Returns the identity of an image by its bytes, in the format of `b3sum`.
fn digest_identity(bytes: &[u8]) -> String {
    let mut name = DIGEST_PREFIX.to_owned();
    let _ = write!(name, "{}", blake3::hash(bytes).to_hex());
    name
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Expansion {
    /// Returns true if rows are shown with images.
    #[must_use]
    pub fn has_images(&self) -> bool {
        !self.images.is_empty()
    }

    /// Returns true if a key or context column contains images.
    #[must_use]
    pub fn is_image(&self, column: &str) -> bool {
        self.images.iter().any(|image| image.eq_ignore_ascii_case(column))
    }

    /// Returns the entity of a key, in which images are identified by their bytes.
    #[must_use]
    pub fn build_entity(&self, key: &[Value]) -> Entity {
        if !self.has_images() {
            return self.key.build_entity(key);
        }
        self.key.build_entity(&self.identify_images(self.key.names(), key))
    }

    /// Returns true if the facts about a row depend on its context: the expansion belongs to a spec
    /// and has context columns.
    #[must_use]
    pub fn has_row_context(&self) -> bool {
        !self.sources.is_empty() && !self.context.is_empty()
    }

    /// Returns the entity under which the facts about a row are stored. It is the row's entity, with
    /// the digest of its context if the expansion has one and the context is known.
    #[must_use]
    pub fn build_fact_entity(&self, entity: &Entity, context: &[Value]) -> Entity {
        if !self.has_row_context() || context.len() < self.context.len() {
            return entity.clone();
        }
        entity.with_context(self.compute_context_digest(context))
    }

    /// Returns the digest of a row's context, in which images are identified by their bytes.
    #[must_use]
    pub fn compute_context_digest(&self, context: &[Value]) -> u128 {
        let columns = KeyColumns::new(self.context.clone());
        if !self.has_images() {
            return columns.context_digest(context);
        }
        columns.context_digest(&self.identify_images(&self.context, context))
    }

    /// Returns the values of columns with images replaced by the text that identifies their bytes.
    fn identify_images(&self, columns: &[String], values: &[Value]) -> Vec<Value> {
        let identify = |(column, value): (&String, &Value)| {
            if self.is_image(column) { self.image_files.identity(value) } else { value.clone() }
        };
        columns.iter().zip(values).map(identify).collect()
    }

    /// Returns the images of a row, in the order of its key and context.
    #[must_use]
    pub fn collect_images<'r>(&self, row: &'r Row) -> Vec<&'r Value> {
        if !self.has_images() {
            return Vec::new();
        }
        let names = self.key.names().iter().zip(&row.key);
        let columns = names.chain(self.context.iter().zip(&row.context));
        let images = columns.filter(|(name, value)| self.is_image(name) && **value != Value::Null);
        images.map(|(_, value)| value).collect()
    }

    /// Returns the row with its images replaced by `[image 1]`, `[image 2]` and so on.
    pub(crate) fn without_images(&self, row: &Row) -> Row {
        let mut image_count = 0;
        let mut replace_image = |(name, value): (&String, &Value)| {
            if !self.is_image(name) || *value == Value::Null {
                return value.clone();
            }
            image_count += 1;
            Value::Text(format!("[image {image_count}]"))
        };
        let key = self.key.names().iter().zip(&row.key).map(&mut replace_image).collect();
        Row {
            key,
            context: self.context.iter().zip(&row.context).map(&mut replace_image).collect(),
        }
    }

    /// Returns true if a row lacks an image that the prompt needs. This can happen in a query,
    /// which knows a row's key but not its context.
    #[must_use]
    pub fn lacks_images(&self, row: &Row) -> bool {
        row.context.len() < self.context.len() && self.context.iter().any(|c| self.is_image(c))
    }
}
