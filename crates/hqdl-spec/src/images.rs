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
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Maximum size of an image that is sent, in bytes.
pub const MOST_BYTES: u64 = 20 << 20;

/// Prefix of the identity of an image known by its bytes.
const DIGEST: &str = "blake3:";

/// Images of one database.
#[derive(Clone, Default)]
pub struct Images(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Directory of image paths; paths cannot leave it.
    folder: Option<PathBuf>,
    /// Identities of files that were read, by path.
    files: Mutex<HashMap<String, (ImageStamp, String)>>,
    kept: Mutex<KeptImages>,
}

/// Size and modification time; if both are unchanged, the file is unchanged.
type ImageStamp = (u64, Option<SystemTime>);

/// Images that are not in a file of the user; an unnamed temporary file stores them.
#[derive(Default)]
struct KeptImages {
    file: Option<File>,
    end: u64,
    /// Offset and length in the file by identity, or the reason why the image cannot be shown.
    at: HashMap<String, Result<(u64, usize), String>>,
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Images").field(&self.0.folder).finish()
    }
}

impl Images {
    /// Returns images whose paths are relative to a directory.
    #[must_use]
    pub fn of(folder: PathBuf) -> Self {
        Self(Arc::new(Inner { folder: Some(folder), ..Inner::default() }))
    }

    /// Returns the identity of an image: `blake3:…` if hqdl can read it, the text of a URL, or the
    /// value itself if it cannot be read.
    #[must_use]
    pub fn name(&self, value: &Value) -> Value {
        let Value::Text(text) = value else { return value.clone() };
        let text = text.trim();
        if is_url(text) || text.starts_with(DIGEST) {
            return Value::Text(text.to_owned());
        }
        if is_data(text) {
            return Value::Text(self.keep_data(text));
        }
        let Ok((path, stamp)) = self.found(text) else { return value.clone() };
        if let Some((known, name)) = lock(&self.0.files).get(text)
            && *known == stamp
        {
            return Value::Text(name.clone());
        }
        let Ok(bytes) = read(&path) else { return value.clone() };
        let name = digest(&bytes);
        lock(&self.0.files).insert(text.to_owned(), (stamp, name.clone()));
        Value::Text(name)
    }

    /// Stores the bytes of a BLOB while this process runs. Returns the image's identity.
    #[must_use]
    pub fn keep(&self, bytes: &[u8]) -> Value {
        Value::Text(self.keep_as(digest(bytes), bytes))
    }

    /// Stores the bytes of a data URL. Returns the image's identity, or `None` for another text.
    #[must_use]
    pub fn keep_text(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        is_data(text).then(|| Value::Text(self.keep_data(text)))
    }

    fn keep_as(&self, name: String, bytes: &[u8]) -> String {
        let mut kept = lock(&self.0.kept);
        if !kept.at.contains_key(&name) {
            let at = match kind(bytes) {
                Ok(_) => kept.write(bytes).map_err(|e| e.to_string()),
                Err(why) => Err(format!("the value {why}")),
            };
            kept.at.insert(name.clone(), at);
        }
        name
    }

    /// Stores the content of a data URL.
    fn keep_data(&self, url: &str) -> String {
        match of_data(url) {
            Ok(bytes) => self.keep_as(digest(&bytes), &bytes),
            Err(why) => {
                let name = digest(url.as_bytes());
                lock(&self.0.kept).at.insert(name.clone(), Err(why.to_owned()));
                name
            }
        }
    }

    /// Returns the URL of an image in a request: its own, or a data URL with its bytes. `identity`
    /// is the image's identity.
    ///
    /// # Errors
    /// Fails with the reason why it cannot be shown.
    pub fn url(&self, value: &Value, known: &str) -> Result<String, String> {
        let Value::Text(text) = value else {
            return Err(format!("{value} does not name an image"));
        };
        let text = text.trim();
        if is_url(text) {
            return Ok(text.to_owned());
        }
        let name = if is_data(text) { self.keep_data(text) } else { text.to_owned() };
        let bytes = if name.starts_with(DIGEST) {
            lock(&self.0.kept).read(&name)?
        } else {
            let (path, _) = self.found(text)?;
            let bytes = read(&path).map_err(|e| format!("{text}: {e}"))?;
            if digest(&bytes) != known {
                return Err(format!("{text} changed during the run"));
            }
            bytes
        };
        let kind = kind(&bytes).map_err(|why| format!("{text} {why}"))?;
        let mut url = format!("data:{kind};base64,");
        STANDARD.encode_string(&bytes, &mut url);
        Ok(url)
    }

    /// Finds a file in the directory.
    fn found(&self, path: &str) -> Result<(PathBuf, ImageStamp), String> {
        if path.is_empty() {
            return Err("the text is empty and names no image".to_owned());
        }
        let folder = self.0.folder.as_deref().ok_or("the spec has no folder for images")?;
        let root = folder.canonicalize().map_err(|e| format!("{}: {e}", folder.display()))?;
        let outside = || format!("{path} is outside of {}", root.display());
        let written = Path::new(path);
        // Checked before any access, so that the error does not reveal whether a file exists.
        if written.is_relative() && climbs(written) {
            return Err(outside());
        }
        let full = root.join(written);
        if written.is_absolute() && (!full.starts_with(&root) || climbs(written)) {
            return Err(outside());
        }
        let full = full.canonicalize().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => format!("the file {path} does not exist"),
            _ => format!("{path}: {e}"),
        })?;
        if !full.starts_with(&root) {
            return Err(outside());
        }
        let found = full.metadata().map_err(|e| format!("{path}: {e}"))?;
        // Reading a special file may never end.
        if !found.is_file() {
            return Err(format!("{path} is not a file"));
        }
        let stamp = (found.len(), found.modified().ok());
        Ok((full, stamp))
    }
}

/// Reads a file, at most one byte more than the maximum.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl KeptImages {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<(u64, usize)> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let at = self.end;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)?;
        self.end += bytes.len() as u64;
        Ok((at, bytes.len()))
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let (at, length) = self
            .at
            .get(name)
            .cloned()
            .unwrap_or_else(|| Err(format!("the image {name} is not available")))?;
        let mut bytes = vec![0; length];
        let file = self.file.as_mut().ok_or("no image is available")?;
        file.seek(SeekFrom::Start(at)).map_err(|e| e.to_string())?;
        file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    }
}

/// Returns true if a path leaves its directory, judged only by its components.
fn climbs(path: &Path) -> bool {
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
    starts_with(text, "http://") || starts_with(text, "https://")
}

fn is_data(text: &str) -> bool {
    starts_with(text, "data:")
}

fn starts_with(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// Decodes a data URL.
fn of_data(url: &str) -> Result<Vec<u8>, &'static str> {
    let (head, data) = url.split_once(',').ok_or("a data URL without data")?;
    if !head.to_ascii_lowercase().ends_with(";base64") {
        return Err("a data URL that is not in base64");
    }
    if data.len() as u64 > MOST_BYTES / 3 * 4 + 8 {
        return Err("a data URL of more than 20 MiB, hqdl's limit for an image");
    }
    let data: String = data.split_whitespace().collect();
    let decoded = STANDARD.decode(&data).or_else(|_| STANDARD_NO_PAD.decode(&data));
    decoded.map_err(|_| "a data URL whose base64 is broken")
}

/// Returns the MIME type of an image by its first bytes.
fn kind(bytes: &[u8]) -> Result<&'static str, &'static str> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err("is larger than 20 MiB, hqdl's limit for an image");
    }
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok("image/png"),
        [0xff, 0xd8, 0xff, ..] => Ok("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok("image/webp"),
        _ => Err("is not a PNG, JPEG, GIF or WebP image"),
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
    pub fn of_blob(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'I', b'D', b'3', ..]
            | [b'O', b'g', b'g', b'S', ..]
            | [b'f', b'L', b'a', b'C', ..]
            | [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Some(Self::Audio),
            _ => kind(bytes).is_ok().then_some(Self::Image),
        }
    }

    /// Returns the media type of a data URL; `None` for any other text.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Option<Self> {
        let head = text.get(..DATA_HEAD).unwrap_or(text);
        let (head, _) = std::str::from_utf8(head).ok()?.split_once(";base64,")?;
        match head {
            _ if starts_with(head, "data:image/") => Some(Self::Image),
            _ if starts_with(head, "data:audio/") => Some(Self::Audio),
            _ => None,
        }
    }

    /// Returns the reason why a question about a value cannot be asked.
    #[must_use]
    pub fn refusal(self) -> &'static str {
        match self {
            Self::Image => "a value is an image; add image=true to send it as one",
            Self::Audio => "a value is a sound recording, which hqdl cannot send to a model",
        }
    }
}

/// Maximum length of the header of a data URL, in bytes.
const DATA_HEAD: usize = 80;

/// Returns the identity of an image by its bytes, in the format of `b3sum`.
fn digest(bytes: &[u8]) -> String {
    let mut name = DIGEST.to_owned();
    let _ = write!(name, "{}", blake3::hash(bytes).to_hex());
    name
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

    /// Returns the entity of a key; an image is identified by its bytes.
    #[must_use]
    pub fn entity(&self, key: &[Value]) -> Entity {
        if !self.has_images() {
            return self.key.entity(key);
        }
        let named = self.key.names().iter().zip(key).map(|(column, value)| {
            if self.is_image(column) { self.image_files.name(value) } else { value.clone() }
        });
        self.key.entity(&named.collect::<Vec<_>>())
    }

    /// Returns the images of a row, in the order of its key and context.
    #[must_use]
    pub fn images_of<'r>(&self, row: &'r Row) -> Vec<&'r Value> {
        if !self.has_images() {
            return Vec::new();
        }
        let names = self.key.names().iter().zip(&row.key);
        let all = names.chain(self.context.iter().zip(&row.context));
        let images = all.filter(|(name, value)| self.is_image(name) && **value != Value::Null);
        images.map(|(_, value)| value).collect()
    }

    /// Returns the row with `[image 1]`, `[image 2]` and so on instead of its images.
    pub(crate) fn without_images(&self, row: &Row) -> Row {
        let mut seen = 0;
        let mut shown = |(name, value): (&String, &Value)| {
            if !self.is_image(name) || *value == Value::Null {
                return value.clone();
            }
            seen += 1;
            Value::Text(format!("[image {seen}]"))
        };
        let key = self.key.names().iter().zip(&row.key).map(&mut shown).collect();
        Row { key, context: self.context.iter().zip(&row.context).map(&mut shown).collect() }
    }

    /// Returns true if a row lacks an image that its prompt needs: a query knows a row's key, but
    /// not its context.
    #[must_use]
    pub fn lacks_images(&self, row: &Row) -> bool {
        row.context.len() < self.context.len() && self.context.iter().any(|c| self.is_image(c))
    }
}
