//! Extracts the text of a PDF document.

use lopdf::Document;

/// Returns the text of a PDF document, page by page.
///
/// # Errors
/// Fails with a message if the document is damaged or encrypted, or if it contains no text.
pub fn pdf_to_text(bytes: &[u8]) -> Result<String, &'static str> {
    let damaged = "the file is damaged, or is not a PDF";
    let document = Document::load_mem(bytes).map_err(|_| damaged)?;
    let pages: Vec<u32> = document.get_pages().into_keys().collect();
    match document.extract_text(&pages) {
        Ok(text) if !text.trim().is_empty() => Ok(text),
        _ if document.is_encrypted() => Err("the PDF is encrypted"),
        Ok(_) => Err("the PDF contains no text; a scan needs character recognition first"),
        Err(_) => Err(damaged),
    }
}
