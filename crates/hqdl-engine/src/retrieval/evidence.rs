//! Loads the documents of an expansion, and finds the passages that a request shows with a row.
//!
//! hqdl reads only files below the folder that the spec names and does not follow links. A
//! downloaded spec therefore cannot send the user's other files to the model.

use std::io::Read;
use std::path::Path;

use super::html::html_to_text;
use super::passages::{MAX_PASSAGE_TOKENS, select_passages, split_document};
use super::pdf::pdf_to_text;
use super::search::StoredSearches;
use super::text_index::TextIndex;
use hqdl_database::Database;
use hqdl_facts::Facts;
use hqdl_spec::evidence::{Documents, FindPassages};
use hqdl_spec::{Catalog, Expansion, Spec};
use hqdl_values::evidence::Passage;
use hqdl_values::format::describe_io_error;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Maximum number of documents of an expansion.
const MAX_DOCUMENTS: usize = 200_000;
/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum number of passages considered for a row.
const MAX_CANDIDATES: usize = 200;

/// A document: its name and its text.
type NamedText = (String, String);

/// Loads the documents of an expansion if it has any, or prepares the lookup of its stored
/// searches. Replaces evidence that was loaded before.
///
/// # Errors
/// Returns a message if the documents or the facts cannot be read.
pub fn load_evidence(
    spec: &Spec,
    expansion: &Expansion,
    db: &Database,
    facts: &Facts,
) -> Result<(), String> {
    let Some(settings) = &expansion.evidence else { return Ok(()) };
    let model = spec.model_settings(expansion.model.as_deref());
    let tokenizer = Tokenizer::for_model(&model.name);
    let mut documents = match &settings.documents {
        Documents::Select(select) => select_documents(select, db)?,
        Documents::Folder(folder) => read_folder(folder)?,
        Documents::Search(search) => {
            let stored = StoredSearches::new(search, facts, tokenizer);
            settings.index.replace_passages(Box::new(stored.map_err(|e| e.to_string())?));
            return Ok(());
        }
    };
    // Sort the documents, because their order breaks ties between passages that match equally well.
    documents.sort();
    let passages = PassageFinder::from_documents(documents, tokenizer, settings.max_tokens)
        .map_err(|e| e.to_string())?;
    settings.index.replace_passages(Box::new(passages));
    Ok(())
}

fn select_documents(select: &str, db: &Database) -> Result<Vec<NamedText>, String> {
    let rows = db.select_rows(select, MAX_DOCUMENTS + 1)?;
    if rows.len() > MAX_DOCUMENTS {
        return Err(format!("`documents` returns more than {MAX_DOCUMENTS} rows"));
    }
    let text = |value: &Value| value.to_text().map(std::borrow::Cow::into_owned);
    let to_document = |row: &Vec<Value>| match row.as_slice() {
        [content] => Some(("documents".to_owned(), text(content)?)),
        [name, content, ..] => Some((text(name).unwrap_or_default(), text(content)?)),
        [] => None,
    };
    Ok(rows.iter().filter_map(to_document).collect())
}

/// Returns the documents in a folder and its subfolders, with their paths.
fn read_folder(root: &Path) -> Result<Vec<NamedText>, String> {
    let error =
        |path: &Path, e: std::io::Error| format!("{}: {}", path.display(), describe_io_error(&e));
    // A link may have replaced the folder since the spec was checked.
    if root.canonicalize().map_err(|e| error(root, e))? != root {
        return Err(format!("{} is now a link to another folder", root.display()));
    }
    let mut documents = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|e| error(&folder, e))? {
            let entry = entry.map_err(|e| error(&folder, e))?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(|e| error(&folder, e))?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && let Some(text) = read_file(&path)?
            {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                documents.push((name, text));
                if documents.len() > MAX_DOCUMENTS {
                    return Err(format!("{} has more than {MAX_DOCUMENTS} files", root.display()));
                }
            }
        }
    }
    Ok(documents)
}

/// Format of a document.
#[derive(Clone, Copy)]
enum DocumentFormat {
    Plain,
    Html,
    Pdf,
}

/// Returns the text of a file; `None` if the file's extension is not a document format.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    let format = match extension.as_deref() {
        Some("txt" | "md") => DocumentFormat::Plain,
        Some("html" | "htm") => DocumentFormat::Html,
        Some("pdf") => DocumentFormat::Pdf,
        _ => return Ok(None),
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    file.and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|e| format!("{}: {}", path.display(), describe_io_error(&e)))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{} is larger than {} MiB", path.display(), MAX_FILE_BYTES >> 20));
    }
    let text = match format {
        DocumentFormat::Plain => String::from_utf8_lossy(&bytes).into_owned(),
        DocumentFormat::Html => html_to_text(&String::from_utf8_lossy(&bytes)),
        DocumentFormat::Pdf => {
            pdf_to_text(&bytes).map_err(|reason| format!("{}: {reason}", path.display()))?
        }
    };
    Ok(Some(text))
}

/// Finds passages that share words with a row.
struct PassageFinder {
    index: TextIndex,
    passages: Vec<Passage>,
    tokenizer: Tokenizer,
}

impl PassageFinder {
    fn from_documents(
        documents: Vec<NamedText>,
        tokenizer: Tokenizer,
        max_tokens: u64,
    ) -> rusqlite::Result<Self> {
        let passage_tokens = MAX_PASSAGE_TOKENS.min(max_tokens / 2);
        let mut passages = Vec::new();
        for (name, text) in documents {
            passages.extend(split_document(&name, &text, tokenizer, passage_tokens));
        }
        let index = TextIndex::from_texts(passages.iter().map(|p| p.text.as_str()))?;
        Ok(Self { index, passages, tokenizer })
    }
}

impl FindPassages for PassageFinder {
    fn find_passages(
        &self,
        key: &str,
        columns: &str,
        max_tokens: u64,
    ) -> Result<Vec<Passage>, String> {
        let ranked = self.index.find_texts(key, columns, MAX_CANDIDATES);
        let ranked = ranked.map_err(|e| e.to_string())?;
        let passages = ranked.into_iter().filter_map(|n| self.passages.get(n).cloned());
        Ok(select_passages(passages, self.tokenizer, max_tokens))
    }
}
