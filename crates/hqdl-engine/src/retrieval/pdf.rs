//! Extracts the text of a PDF document.
//!
//! A file of a few kilobytes can expand to gigabytes, so each step has a limit.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lopdf::content::{Content, Operation};
use lopdf::{DecompressError, Dictionary, Document, Error, LoadOptions, Object, ObjectId};

use super::pdf_budget::{self, MAX_OBJECT_STREAM_BYTES, PdfBudgetExceeded};
use super::pdf_fonts::{FontDecoder, MAX_TEXT_BYTES};

/// Maximum number of pages.
const MAX_PAGES: usize = 2_000;
/// Maximum size of a page's content, in bytes. An operand takes up to 100 times its size in memory.
const MAX_PAGE_BYTES: usize = 2 << 20;
/// Maximum number of revisions. The cross-reference table of each revision can have a million
/// entries.
const MAX_REVISIONS: usize = 16;
/// Maximum size of all pages' contents and fonts, in bytes.
const MAX_TOTAL_BYTES: usize = 64 << 20;
/// Maximum number of operations of all pages.
const MAX_OPERATIONS: usize = 10_000_000;
/// Maximum number of fonts, counted once per page.
const MAX_FONTS: usize = 200_000;
/// Once this many fonts have been read, a further font that is unreadable is an error.
const MAX_UNREADABLE_FONTS: usize = 1_000;
/// Minimum distance in a `TJ` array that separates words, in thousandths of the font size.
const MIN_WORD_GAP: f32 = 200.0;

/// Returns the text of a PDF document, page by page.
///
/// # Errors
/// Fails with the reason if the document is damaged or encrypted, exceeds a limit or contains no
/// text, or if the characters of all its fonts are unknown.
pub fn pdf_to_text(bytes: &[u8]) -> Result<String, String> {
    // The parser is a third-party crate that may panic, and a file from the web must not crash the
    // process.
    let extracted = catch_unwind(AssertUnwindSafe(|| extract_text(bytes)));
    extracted.unwrap_or_else(|panic| match panic.downcast_ref::<PdfBudgetExceeded>() {
        Some(PdfBudgetExceeded) => {
            Err(limit_message("the PDF in memory", pdf_budget::MAX_BYTES >> 20, "MiB"))
        }
        None => Err(damaged_file_message()),
    })
}

/// Loads a document. Only the parser's own limits apply before the first object is charged to the
/// budget, so the number of revisions is counted first.
fn load_document(bytes: &[u8]) -> Result<Document, String> {
    if pdf_budget::count_earlier_revisions(bytes) >= MAX_REVISIONS {
        return Err(limit_message("the PDF", MAX_REVISIONS, "revisions"));
    }
    let load = |force_reconstruct: bool| {
        pdf_budget::reset_budget();
        let options = LoadOptions {
            filter: Some(pdf_budget::charge_object),
            force_reconstruct,
            ..LoadOptions::with_max_decompressed_size(MAX_OBJECT_STREAM_BYTES)
        };
        Document::load_mem_with_options(bytes, options).map_err(|error| {
            if is_over_limit(&error) {
                limit_message("a stream of objects", MAX_OBJECT_STREAM_BYTES >> 20, "MiB")
            } else {
                damaged_file_message()
            }
        })
    };
    let document = load(false)?;
    let has_pages = document.is_encrypted() || document.page_iter().next().is_some();
    // Normally, the parser scans the file for objects if it finds no pages. With a filter it does
    // not, so request the scan.
    Ok(if has_pages { document } else { load(true).unwrap_or(document) })
}

fn extract_text(bytes: &[u8]) -> Result<String, String> {
    let document = load_document(bytes)?;
    if document.is_encrypted() {
        return Err("the PDF is encrypted".to_owned());
    }
    let mut extractor = TextExtractor {
        document: &document,
        text: String::new(),
        decoders: BTreeMap::new(),
        unreadable: None,
        bytes_left: MAX_TOTAL_BYTES,
        operations_left: MAX_OPERATIONS,
        fonts_left: MAX_FONTS,
    };
    for (n, page) in document.page_iter().enumerate() {
        if n == MAX_PAGES {
            return Err(limit_message("the PDF", MAX_PAGES, "pages"));
        }
        extractor.extract_page(n + 1, page)?;
    }
    // If other text is readable, ignore an unreadable font, which may be merely decorative.
    let is_readable = extractor.text.contains(char::is_alphanumeric);
    if let Some(reason) = extractor.unreadable.filter(|_| !is_readable) {
        return Err(reason);
    }
    if extractor.text.trim().is_empty() {
        return Err("the PDF contains no text; a scan needs character recognition first".to_owned());
    }
    Ok(extractor.text)
}

fn damaged_file_message() -> String {
    "the file is damaged, or is not a PDF".to_owned()
}

fn limit_message(subject: &str, limit: usize, unit: &str) -> String {
    format!("{subject} exceeds {limit} {unit}; convert the file to text")
}

fn is_over_limit(error: &Error) -> bool {
    matches!(error, Error::Decompress(DecompressError::MemoryLimitExceeded { .. }))
}

/// Text of the pages so far, and the remaining limits.
struct TextExtractor<'a> {
    document: &'a Document,
    text: String,
    /// Decoders, keyed by the address of the font's dictionary; `None` for an unreadable font.
    decoders: BTreeMap<usize, Option<FontDecoder<'a>>>,
    /// Reason why the first unreadable string could not be decoded.
    unreadable: Option<String>,
    bytes_left: usize,
    operations_left: usize,
    fonts_left: usize,
}

impl<'a> TextExtractor<'a> {
    fn extract_page(&mut self, number: usize, page: ObjectId) -> Result<(), String> {
        let content = self.document.get_page_content_with_limit(page, MAX_PAGE_BYTES);
        let content = content.map_err(|error| {
            if is_over_limit(&error) {
                limit_message(&format!("page {number} of the PDF"), MAX_PAGE_BYTES >> 20, "MiB")
            } else {
                damaged_file_message()
            }
        })?;
        self.reserve_bytes(content.len())?;
        let fonts = self.document.get_page_fonts(page).map_err(|_| damaged_file_message())?;
        self.fonts_left = self
            .fonts_left
            .checked_sub(fonts.len())
            .ok_or_else(|| limit_message("the PDF", MAX_FONTS, "fonts"))?;
        let mut position = Position::default();
        let mut font = None;
        for operation in Content::decode_iter(&content) {
            let operation = operation.map_err(|_| {
                format!("page {number} of the PDF has content that hqdl cannot parse")
            })?;
            self.operations_left = self
                .operations_left
                .checked_sub(1)
                .ok_or_else(|| limit_message("the PDF", MAX_OPERATIONS, "operations"))?;
            if operation.operator == "Tf" {
                let name = operation.operands.first().and_then(|name| name.as_name().ok());
                font = name.and_then(|name| fonts.get(name).copied());
            } else if let Some(shown) = position.apply_operation(&operation) {
                self.push_separator(position.next_separator());
                self.push_operands(shown, font)?;
            }
        }
        self.push_separator(Separator::Line);
        Ok(())
    }

    fn push_unreadable(&mut self, reason: &str) {
        self.unreadable.get_or_insert_with(|| reason.to_owned());
        self.text.push(char::REPLACEMENT_CHARACTER);
    }

    fn reserve_bytes(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or_else(|| {
            limit_message("the content of the pages", MAX_TOTAL_BYTES >> 20, "MiB")
        })?;
        Ok(())
    }

    /// Appends a space or a line break, unless the text already ends with whitespace.
    fn push_separator(&mut self, kind: Separator) {
        let separator = match kind {
            Separator::None => return,
            Separator::Word => ' ',
            Separator::Line => '\n',
        };
        if !self.text.is_empty() && !self.text.ends_with(char::is_whitespace) {
            self.text.push(separator);
        }
    }

    /// Appends the strings of a `Tj` or `TJ` operation.
    fn push_operands(
        &mut self,
        operands: &[Object],
        font: Option<&'a Dictionary>,
    ) -> Result<(), String> {
        for operand in operands {
            match operand {
                Object::String(bytes, _) => self.push_string(bytes, font)?,
                Object::Array(items) => {
                    for item in items {
                        match item {
                            Object::String(bytes, _) => self.push_string(bytes, font)?,
                            _ if item.as_float().is_ok_and(|gap| gap <= -MIN_WORD_GAP) => {
                                self.push_separator(Separator::Word);
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Appends a string, or a replacement character if its font cannot be read.
    fn push_string(&mut self, bytes: &[u8], font: Option<&'a Dictionary>) -> Result<(), String> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(font) = font else {
            self.push_unreadable("the PDF shows text in a font that it does not contain");
            return Ok(());
        };
        let address = std::ptr::from_ref(font).addr();
        if !self.decoders.contains_key(&address) {
            let decoder = match FontDecoder::read_font(self.document, font, MAX_PAGE_BYTES) {
                Ok((decoder, size)) => {
                    self.reserve_bytes(size)?;
                    Some(decoder)
                }
                Err(reason) if self.decoders.len() >= MAX_UNREADABLE_FONTS => return Err(reason),
                Err(reason) => {
                    self.unreadable.get_or_insert(reason);
                    None
                }
            };
            self.decoders.insert(address, decoder);
        }
        let Some(decoder) = &self.decoders[&address] else {
            self.text.push(char::REPLACEMENT_CHARACTER);
            return Ok(());
        };
        if let Err(reason) = decoder.decode_text(bytes, &mut self.text) {
            self.push_unreadable(&reason);
        }
        if self.text.len() > MAX_TEXT_BYTES {
            return Err(limit_message("the text of the PDF", MAX_TEXT_BYTES >> 20, "MiB"));
        }
        Ok(())
    }
}

/// Separator before the next string.
#[derive(Clone, Copy, Default, PartialEq)]
enum Separator {
    #[default]
    None,
    Word,
    Line,
}

/// Position of the current line: the text matrix `[a b c d x y]`.
struct Position {
    matrix: [f32; 6],
    /// Vertical position of the last string.
    shown_y: f32,
    pending: Separator,
}

/// Maximum vertical distance of strings on one line, in units of the page.
const SAME_LINE_DISTANCE: f32 = 0.5;

const IDENTITY: [f32; 6] = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];

impl Default for Position {
    fn default() -> Self {
        Self { matrix: IDENTITY, shown_y: 0.0, pending: Separator::None }
    }
}

impl Position {
    /// Applies an operation to the position. Returns the operands that the operation shows as text;
    /// `None` if it shows no text.
    fn apply_operation<'o>(&mut self, operation: &'o Operation) -> Option<&'o [Object]> {
        let operands = operation.operands.as_slice();
        let number = |n: usize| operands.get(n).and_then(|o| o.as_float().ok()).unwrap_or(0.0);
        match operation.operator.as_str() {
            "BT" => self.matrix = IDENTITY,
            "ET" | "T*" => self.pending = Separator::Line,
            "Td" | "TD" => {
                let (right, up) = (number(0), number(1));
                let mut moved = self.matrix;
                moved[4] += right * moved[0] + up * moved[2];
                moved[5] += right * moved[1] + up * moved[3];
                self.move_to(moved);
            }
            "Tm" => self.move_to(std::array::from_fn(number)),
            "Tj" | "TJ" => return Some(operands),
            "'" | "\"" => {
                self.pending = Separator::Line;
                return Some(operands);
            }
            _ => {}
        }
        None
    }

    fn move_to(&mut self, matrix: [f32; 6]) {
        self.matrix = matrix;
        if self.pending == Separator::None {
            self.pending = Separator::Word;
        }
    }

    /// Returns the separator between the last string and the one that follows.
    fn next_separator(&mut self) -> Separator {
        let y = self.matrix[5];
        let moved = std::mem::take(&mut self.pending);
        let changes_line = (y - self.shown_y).abs() > SAME_LINE_DISTANCE;
        let is_new_line = moved == Separator::Line || (moved == Separator::Word && changes_line);
        self.shown_y = y;
        if is_new_line { Separator::Line } else { moved }
    }
}

#[cfg(test)]
mod tests {
    use lopdf::{Stream, dictionary};

    use super::*;

    /// Returns a PDF with pages that share one content stream.
    fn build_pdf(content: &[u8], page_count: usize, font: Dictionary) -> Vec<u8> {
        let mut document = Document::with_version("1.5");
        let mut stream = Stream::new(Dictionary::new(), content.to_vec());
        stream.compress().unwrap();
        let content = document.add_object(stream);
        let font = document.add_object(font);
        let resources = document.add_object(dictionary! { "Font" => dictionary! { "F1" => font } });
        let pages = document.new_object_id();
        let mut kids: Vec<Object> = Vec::new();
        for _ in 0..page_count {
            let page = dictionary! {
                "Type" => "Page", "Parent" => pages, "Contents" => content, "Resources" => resources,
            };
            kids.push(document.add_object(page).into());
        }
        let tree = dictionary! { "Type" => "Pages", "Count" => i64::try_from(page_count).unwrap(), "Kids" => kids };
        document.objects.insert(pages, tree.into());
        let catalog = document.add_object(dictionary! { "Type" => "Catalog", "Pages" => pages });
        document.trailer.set("Root", catalog);
        let mut bytes = Vec::new();
        document.save_to(&mut bytes).unwrap();
        bytes
    }

    fn create_font() -> Dictionary {
        dictionary! { "Type" => "Font", "Subtype" => "Type1", "BaseFont" => "Helvetica" }
    }

    fn read_page(content: &str) -> Result<String, String> {
        pdf_to_text(&build_pdf(content.as_bytes(), 1, create_font()))
    }

    #[test]
    fn strings_in_different_places_are_separated() {
        let cases = [
            ("72 700 Td (2021) Tj 100 0 Td (1729) Tj", "2021 1729\n"),
            ("72 700 Td (2021) Tj 0 -14 TD (1729) Tj", "2021\n1729\n"),
            ("1 0 0 1 72 700 Tm (2021) Tj 1 0 0 1 172 700 Tm (1729) Tj", "2021 1729\n"),
            ("1 0 0 1 72 700 Tm (2021) Tj 1 0 0 1 72 686 Tm (1729) Tj", "2021\n1729\n"),
            ("(2021) Tj ET BT (1729) Tj", "2021\n1729\n"),
            ("(2021) Tj T* (1729) Tj (30) ' 1 2 (31) \"", "2021\n1729\n30\n31\n"),
            (
                "[(It has) -250 (700) 20 (000) -1000 (inhabitants)] TJ",
                "It has 700000 inhabitants\n",
            ),
            ("(in ) Tj 50 0 Td (2021) Tj", "in 2021\n"),
            ("(20) Tj /F1 9 Tf (21) Tj", "2021\n"),
        ];
        for (content, text) in cases {
            let read = read_page(&format!("BT /F1 12 Tf {content} ET"));
            assert_eq!(read.as_deref(), Ok(text), "{content}");
        }
        assert_eq!(
            pdf_to_text(&build_pdf(b"BT /F1 12 Tf (5) Tj ET", 2, create_font())).as_deref(),
            Ok("5\n5\n")
        );
    }

    #[test]
    fn a_table_of_characters_comes_before_the_encoding() {
        let read = |table: &str, content: &str| {
            let mut font = dictionary! {
                "Type" => "Font", "Subtype" => "Type0", "BaseFont" => "F", "Encoding" => "Identity-H",
            };
            let mut document = Document::load_mem(&build_pdf(
                format!("BT /F1 12 Tf {content} Tj ET").as_bytes(),
                1,
                font.clone(),
            ))
            .unwrap();
            let stream = Stream::new(Dictionary::new(), table.as_bytes().to_vec());
            font.set("ToUnicode", document.add_object(stream));
            let is_font = |object: &Object| object.as_dict().is_ok_and(|d| d.has_type(b"Font"));
            *document.objects.values_mut().find(|object| is_font(object)).unwrap() = font.into();
            let mut bytes = Vec::new();
            document.save_to(&mut bytes).unwrap();
            pdf_to_text(&bytes)
        };
        let table = "/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n\
            1 begincodespacerange <0000> <FFFF> endcodespacerange\n\
            1 beginbfchar <0003> <00660069> endbfchar\n\
            2 beginbfrange <0010> <0019> <0030> <0020> <0021> [<0041> <D83DDE00>] endbfrange\n\
            endcmap end end";
        let text = read(table, "<00030012001900200021FFFF>");
        assert_eq!(text.as_deref(), Ok("fi29A\u{1f600}\u{fffd}\n"));
        let huge = "1 beginbfrange <00000000> <FFFFFFFF> <0041> endbfrange";
        let error = read(huge, "<0003>").unwrap_err();
        assert!(error.contains("131,072 characters"), "{error}");
        let error = read("", "<0003>").unwrap_err();
        assert!(error.contains("the font F of the PDF does not name"), "{error}");
    }

    #[test]
    fn a_pdf_over_a_limit_is_an_error() {
        let comment = format!("%{}\n", "x".repeat(MAX_PAGE_BYTES - 10));
        let long = format!("BT /F1 12 Tf ({}) Tj ET", "x".repeat(MAX_PAGE_BYTES - 100));
        let cases = [
            ("q ".repeat(20_000_000), 1, "page 1 of the PDF exceeds 2 MiB"),
            ("q ".repeat(10_000_000), 200, "page 1 of the PDF exceeds 2 MiB"),
            (comment, 200, "the content of the pages exceeds 64 MiB"),
            (long, 200, "the text of the PDF exceeds 16 MiB"),
            (String::new(), 2_001, "the PDF exceeds 2000 pages"),
        ];
        for (content, page_count, message) in cases {
            let bytes = build_pdf(content.as_bytes(), page_count, create_font());
            assert!(bytes.len() < 300_000, "{}", bytes.len());
            let error = pdf_to_text(&bytes).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    /// Returns a PDF with a page, an object stream with this index and these objects, and a
    /// cross-reference table that refers to the object stream `count` times.
    fn build_bomb(index: &str, objects: &str, count: usize) -> Vec<u8> {
        let mut pdf = b"%PDF-1.5\n".to_vec();
        let mut offsets = Vec::new();
        let first = i64::try_from(index.len()).unwrap();
        let mut stream = Stream::new(
            dictionary! { "Type" => "ObjStm", "N" => 1, "First" => first },
            [index, objects].concat().into_bytes(),
        );
        stream.compress().unwrap();
        let filter = if stream.is_compressed() { "/Filter/FlateDecode" } else { "" };
        let head = format!(
            "1 0 obj <</Type/ObjStm/N 1/First {first}/Length {}{filter}>> stream\n",
            stream.content.len()
        );
        offsets.push(pdf.len());
        pdf.extend([head.as_bytes(), &stream.content, b"\nendstream endobj\n"].concat());
        for object in [
            "2 0 obj <</Type/Catalog/Pages 3 0 R>> endobj\n",
            "3 0 obj <</Type/Pages/Count 0/Kids[]>> endobj\n",
        ] {
            offsets.push(pdf.len());
            pdf.extend(object.as_bytes());
        }
        let table = pdf.len();
        pdf.extend(format!("xref\n0 {}\n0000000000 65535 f \n", count + 3).as_bytes());
        let again = std::iter::repeat_n(offsets[0], count - 1);
        for offset in offsets.iter().copied().chain(again) {
            pdf.extend(format!("{offset:010} 00000 n \n").as_bytes());
        }
        let trailer =
            format!("trailer <</Size {}/Root 2 0 R>>\nstartxref\n{table}\n%%EOF", count + 3);
        pdf.extend(trailer.as_bytes());
        pdf
    }

    #[test]
    fn a_small_file_with_huge_objects_is_refused() {
        let array = format!("[{}]", "0 ".repeat(1_000_000));
        let nested = format!("{}{}{}", "[".repeat(90), "0 ".repeat(1_000_000), "]".repeat(90));
        let once = "9 0 ".to_owned();
        let join = |numbers: Vec<String>| numbers.concat();
        let same = join((9..20_000).map(|id| format!("{id} 0 ")).collect());
        let inside = join((0..90).map(|n| format!("{} {n} ", n + 9)).collect());
        for (index, objects, count) in
            [(&once, &array, 1000), (&same, &array, 1), (&inside, &nested, 1)]
        {
            let bomb = build_bomb(index, objects, count);
            assert!(bomb.len() < 100_000, "{}", bomb.len());
            let error = pdf_to_text(&bomb).unwrap_err();
            assert_eq!(error, "the PDF in memory exceeds 512 MiB; convert the file to text");
        }
        let small = pdf_to_text(&build_bomb(&once, &array, 1)).unwrap_err();
        assert!(small.contains("contains no text"), "{small}");
        let revisions = "<</Prev 120>> ".repeat(16);
        let error = pdf_to_text(format!("%PDF-1.5\n{revisions}").as_bytes()).unwrap_err();
        assert_eq!(error, "the PDF exceeds 16 revisions; convert the file to text");
    }

    #[test]
    fn a_font_with_an_unknown_encoding_is_named() {
        let mut font = create_font();
        font.set("Encoding", "90ms-RKSJ-H");
        let pdf = build_pdf(b"BT /F1 12 Tf (abc) Tj ET", 1, font);
        let error = pdf_to_text(&pdf).unwrap_err();
        assert!(error.contains("encoding that hqdl cannot read"), "{error}");
        let error = read_page("BT /F2 12 Tf (abc) Tj ET").unwrap_err();
        assert!(error.contains("a font that it does not contain"), "{error}");
        let read = read_page("BT /F2 12 Tf (*) Tj /F1 12 Tf 9 0 Td (abc) Tj ET");
        assert_eq!(read.as_deref(), Ok("\u{fffd} abc\n"));
        let error = read_page("0 0 m").unwrap_err();
        assert!(error.contains("contains no text"), "{error}");
    }

    #[test]
    fn a_damaged_pdf_is_an_error() {
        let pdf = build_pdf(b"BT /F1 12 Tf (abc) Tj ET", 1, create_font());
        for length in (0..pdf.len()).step_by(7) {
            let _ = pdf_to_text(&pdf[..length]);
        }
        assert!(pdf_to_text(&pdf[..20]).unwrap_err().contains("is damaged"));
    }
}
