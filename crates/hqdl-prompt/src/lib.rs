//! From rows with missing cells to a prompt, and from a completion to answers.
//!
//! # The prompt
//!
//! Two messages. The *system* message never changes within a run (instructions,
//! table, value lists, columns, shots), so an endpoint's prefix cache serves
//! it; the *user* message is the rows alone. Everything between the headings
//! is JSON, one value a line, and can be read back by a program, a person or a
//! test endpoint ([`Question::read`]):
//!
//! ```text
//! …instructions…
//! ## Table
//! {"table":"llm","about":"…","key":["superhero_name","full_name"],"context":["height_cm"],"format":"csv"}
//! ## Value lists
//! {"values":"v1","list":["Amber","Black",…]}
//! ## Columns
//! {"column":"eye_color","type":"text","about":"…","values":"v1"}
//! {"column":"powers","type":"text","many":true,"values":"v2"}
//! ## Examples
//! ["row","superhero_name","full_name","height_cm"]
//! ["1 Man","3-D Man","Charles Chandler",188]
//! Answer:
//! 1 Man,Brown,Super Strength|Stamina
//! ```
//! ```text
//! ## Rows
//! ["row","superhero_name","full_name","height_cm"]
//! ["1 Bomb","A-Bomb","Richard Milhouse Jones",203]
//! ["2 Abe","Abe Sapien",null,191]
//! ```
//!
//! In the place of an image stands `[image 1]`; the images follow the user message, as
//! parts of their own, and `"images"` in the table names their columns.
//!
//! Examples are those that say something about the columns asked. Where one of
//! them leaves some out, a line before them says what stands for that.
//!
//! `"example"` on a column is a value of the kind that is expected, maybe not a
//! right one. `"open":true` on a column lets values outside its list pass. A NULL is
//! `null`, distinct from `""`.
//!
//! # The answer
//!
//! * `csv`: a line for each row: the row's label, then the columns asked for;
//!   `|` between the values of a list, `?` for unknown.
//! * `json`: `{"rows":[{"row":"1 Bomb","cells":{"eye_color":"Yellow","powers":["…"]}}]}`,
//!   `null` for unknown; constrained by [`PromptFrame::schema`] where the endpoint can.
//! * lines, for a live question about several values whose answers are short:
//!   `{"rows":["1 Oslo,true","2 Bergen,?"]}`, the lines of CSV in JSON.
//! * arrays, for one whose answers are texts or lists: `{"rows":[["1 Oslo","a city"]]}`.
//! * single, for one row: `{"answer":true}` to a live question, an object of the columns
//!   otherwise.
//!
//! A label is the row's number and a word of its key that no other row of the
//! request has (`label.rs`). With `echo = "full"` rows go by their number alone,
//! and answers repeat number and key: `1,A-Bomb,Richard Milhouse Jones,Yellow,…`
//! and `{"row":1,"key":["A-Bomb","Richard Milhouse Jones"],"cells":{…}}`; a request
//! with a key that could be confused with that form (quotes, line breaks) is made
//! with labels all the same. Whichever was asked for, both are read.
//!
//! Number and word (or key) must agree: no answer ever lands in another row
//! ([`align`]). Both formats end in the same checked answer
//! ([`completion::read`]).

pub mod align;
mod astray;
pub mod completion;
mod csv;
mod fields;
mod forms;
mod found;
mod json;
mod label;
mod markup;
mod parted;
mod question;
mod quotes;
mod reasoning;
mod record;
mod schema;
mod spelling;
mod unambiguous;
mod write;

use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

pub use completion::RowOutcome;
pub use question::{AskedColumn, AskedRow, Question};
pub use reasoning::answer_part;
pub use spelling::ExpansionKeys;

use align::RequestKeys;
use completion::Finish;
use hqdl_spec::checker::Checker;
use hqdl_spec::{Column, Echo, Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::tokens::Tokenizer;

/// Tokens of an answer beside its rows: fences, brackets, a word too many.
const OUTPUT_AROUND: u64 = 96;
/// Tokens of a row beside its key and cells: its number, and what JSON wraps.
const ROW_AROUND: u64 = 12;
/// How much longer than expected an answer may be to begin with.
const HEADROOM: u64 = 2;
/// Values that a list is planned for.
const ITEMS: u64 = 6;

/// The tokens that a cell of a column is expected to take, its name included;
/// generously, and three bytes a token.
fn cell_output(column: &Column) -> u64 {
    let tokens = |bytes: usize| bytes as u64 / 3 + 2;
    let one = match (&column.values, column.kind) {
        (Some(list), _) if !list.open => {
            let bytes: usize = list.values.iter().map(String::len).sum();
            tokens(bytes / list.values.len().max(1))
        }
        // Items of a list are short.
        (_, Type::Text) if column.many.is_some() => 20,
        (_, kind) => kind.room(),
    };
    tokens(column.name.len()) + one * if column.many.is_some() { ITEMS } else { 1 }
}

/// The part of a prompt that all rows share: an expansion, the columns asked
/// for and the format.
#[derive(Debug, Clone)]
pub struct PromptFrame {
    /// The form of the answers.
    pub format: Format,
    /// Names of the columns asked for.
    pub columns: Vec<String>,
    /// The words for answers that repeat labels.
    short: EchoForm,
    /// Those for answers that repeat whole keys, where the spec wants these.
    full: Option<EchoForm>,
    /// The form of a question about one row, where it has one of its own.
    single: Option<forms::SingleForm>,
    /// The form of questions about the values of several rows.
    pack: Option<forms::PackForm>,
    /// Whether they are to repeat even those that could be confused.
    always: bool,
    header: String,
    /// The tokens that the cells of one row are expected to take.
    row_output: u64,
    tokens: OnceLock<u64>,
}

/// What all prompts say that want their rows echoed in one way.
#[derive(Debug, Clone)]
struct EchoForm {
    system: Arc<str>,
    schema: Option<Arc<Json>>,
}

/// A row of a prompt.
#[derive(Debug, Clone)]
pub struct Line {
    /// As the prompt asks: `["1 Bomb","A-Bomb","Richard Milhouse Jones",203]`.
    pub asked: String,
    /// As an answer without cells echoes it.
    pub echoed: String,
}

/// What is sent to a model.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The system message: the same for all rows.
    pub system: Arc<str>,
    /// The user message: the rows.
    pub user: String,
    /// The JSON schema of the answer, for format `json`.
    pub schema: Option<Arc<Json>>,
    /// What is planned for its answer, in tokens, generously.
    pub planned_output: u64,
    /// The cap on its answer, in tokens: to begin with what is planned.
    pub max_output: u64,
    /// Input tokens it takes, as far as they were counted.
    pub input_tokens: u64,
    /// The hash of the same request made for whole keys, as all were before there
    /// were labels, for a model that finds its answers by it.
    pub with_keys: Option<String>,
    /// The form of its answer.
    pub answers: AnswerForm,
    /// Rows that it asks about.
    pub rows: usize,
    /// Sampling temperature of its form, where the settings name none.
    pub temperature: Option<f64>,
    /// The images that it shows, `[image 1]` first.
    pub images: Vec<ShownImage>,
}

/// The form of the answer to a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerForm {
    /// A table: a line of CSV, or a JSON object, a row.
    #[default]
    Table,
    /// One answer without a label: `{"answer": …}`.
    Single,
    /// A JSON array of lines: `{"rows": ["1 Oslo,true"]}`.
    Lines,
    /// A JSON array of arrays: `{"rows": [["1 Oslo", "a city"]]}`.
    Arrays,
}

/// An image of a prompt.
#[derive(Clone)]
pub struct ShownImage {
    /// What it is known by.
    pub name: String,
    /// The URL that a request shows it by; it may hold all of its bytes.
    pub url: String,
}

impl std::fmt::Debug for ShownImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShownImage").field(&self.name).finish()
    }
}

impl Prompt {
    /// The hash that provenance keeps of it.
    #[must_use]
    pub fn hash(&self) -> String {
        let texts = [&*self.system, self.user.as_str()].into_iter();
        let images = self.images.iter().map(|image| image.name.as_str());
        hqdl_values::key::prompt_hash(&texts.chain(images).collect::<Vec<_>>())
    }
}

impl PromptFrame {
    /// The frame for some columns (by position) of an expansion.
    #[must_use]
    pub fn new(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let asked: Vec<&Column> =
            columns.iter().filter_map(|c| expansion.columns.get(*c)).collect();
        let mut header: Vec<Json> = vec!["row".into()];
        header.extend(
            expansion.key.names().iter().chain(&expansion.context).map(|n| n.as_str().into()),
        );
        let header = Json::Array(header).to_string();
        let form = |echo: Echo| EchoForm {
            system: write::system(expansion, columns, &asked, format, echo, &header).into(),
            schema: (format == Format::Json)
                .then(|| Arc::new(schema::schema(expansion, &asked, echo))),
        };
        let pack = forms::PackForm::new(expansion, &asked, format);
        Self {
            format,
            single: forms::SingleForm::new(expansion, columns, format),
            columns: asked.iter().map(|c| c.name.clone()).collect(),
            short: pack.as_ref().map_or_else(|| form(Echo::Short), |pack| pack.echo.clone()),
            pack,
            always: false,
            full: (expansion.echo == Echo::Full).then(|| form(Echo::Full)),
            header,
            row_output: ROW_AROUND + asked.iter().map(|c| cell_output(c)).sum::<u64>(),
            tokens: OnceLock::new(),
        }
    }

    /// The frame whose answers repeat whole keys, whatever the spec says.
    #[must_use]
    pub fn with_keys(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let expansion = Expansion { echo: Echo::Full, ..expansion.clone() };
        Self { always: true, ..Self::of_tables(&expansion, columns, format) }
    }

    /// The frame that asks about any rows as about those of a table.
    #[must_use]
    pub fn of_tables(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let expansion = Expansion { task: Task::Columns, ..expansion.clone() };
        Self { single: None, ..Self::new(&expansion, columns, format) }
    }

    /// Returns whether prompts about some rows and this column alone are answered by lines.
    #[must_use]
    pub fn is_packed(expansion: &Expansion, column: usize, format: Format) -> bool {
        let asked = expansion.columns.get(column);
        asked.is_some_and(|column| {
            let form = forms::PackForm::new(expansion, &[column], format);
            form.is_some_and(|form| form.answers == AnswerForm::Lines)
        })
    }

    /// Whether a prompt about so many rows asks for one answer without a label.
    #[must_use]
    pub fn is_single(&self, rows: usize) -> bool {
        rows == 1 && self.single.is_some()
    }

    /// Whether a row that could not be read is asked again in the form for one row at once, and
    /// only once: a live question has a form that is simpler than that of several rows.
    #[must_use]
    pub fn has_simplest_form(&self) -> bool {
        self.single.as_ref().is_some_and(forms::SingleForm::is_live)
    }

    /// Reads the answer to a prompt about some rows.
    #[must_use]
    pub fn read(
        &self,
        content: &str,
        finish: Finish,
        keys: &RequestKeys,
        key_names: &[String],
        checkers: &[&Checker],
    ) -> Vec<RowOutcome> {
        match &self.single {
            Some(single) if keys.len() == 1 => {
                single.read(content, finish, keys, key_names, checkers)
            }
            _ => completion::read(content, finish, keys, key_names, &self.columns, checkers),
        }
    }

    /// The tokens of a prompt beside its user message.
    #[must_use]
    pub fn tokens_around(&self, prompt: &Prompt, tokenizer: Tokenizer) -> u64 {
        match &self.single {
            Some(single) if prompt.answers == AnswerForm::Single => {
                single.tokens(prompt, tokenizer)
            }
            _ => self.tokens(tokenizer),
        }
    }

    /// What most prompts of this frame say.
    fn form(&self) -> &EchoForm {
        self.full.as_ref().unwrap_or(&self.short)
    }

    /// The tokens that all prompts of this frame share, counted once.
    #[must_use]
    pub fn tokens(&self, tokenizer: Tokenizer) -> u64 {
        *self.tokens.get_or_init(|| {
            let schema = self.schema().map_or(0, |s| tokenizer.count(&s.to_string()));
            tokenizer.count(self.system()) + schema
        })
    }

    /// The text that all prompts of this frame share.
    #[must_use]
    pub fn system(&self) -> &str {
        &self.form().system
    }

    /// The JSON schema of an answer; `None` for csv.
    #[must_use]
    pub fn schema(&self) -> Option<&Json> {
        self.form().schema.as_deref()
    }

    /// How these rows are to be echoed: where one of their keys could be confused
    /// with the form of the answer, by labels.
    fn echo(&self, rows: &[&Row]) -> Echo {
        let confusing = !self.always && rows.iter().any(|r| label::confusing(&r.key));
        let plain = self.full.is_some() && !confusing;
        if plain { Echo::Full } else { Echo::Short }
    }

    /// The rows of the prompt that asks about `rows`.
    #[must_use]
    pub fn lines(&self, rows: &[&Row]) -> Vec<Line> {
        let firsts = self.firsts(rows);
        let line = |(row, first): (&&Row, Json)| match &self.pack {
            Some(pack) => pack.line(&first, row),
            None => write::line(&first, row, self.format),
        };
        rows.iter().zip(firsts).map(line).collect()
    }

    fn firsts(&self, rows: &[&Row]) -> impl Iterator<Item = Json> {
        write::firsts(rows.iter().map(|r| r.key.as_slice()), self.echo(rows))
    }

    /// What is planned for the answer about a row, in tokens, generously.
    #[must_use]
    pub fn planned_row(&self, row: &Row) -> u64 {
        if self.pack.is_some() {
            // Of the key, a word is repeated.
            return HEADROOM * (self.row_output + label::OUTPUT);
        }
        let key = row.key.iter().map(|part| part.text().map_or(2, |t| t.len() as u64 / 2 + 4));
        HEADROOM * (self.row_output + key.sum::<u64>())
    }

    /// What is planned for the answer about `rows`, in tokens, generously.
    #[must_use]
    pub fn planned_output<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> u64 {
        OUTPUT_AROUND + rows.into_iter().map(|row| self.planned_row(row)).sum::<u64>()
    }

    /// The prompt that asks about `rows`.
    #[must_use]
    pub fn prompt<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Prompt {
        let rows: Vec<&Row> = rows.into_iter().collect();
        if let (Some(single), [row]) = (&self.single, rows.as_slice()) {
            return single.prompt(row, self.planned_output([*row]));
        }
        let form = match (self.echo(&rows), &self.full) {
            (Echo::Full, Some(full)) => full,
            _ => &self.short,
        };
        let user = match &self.pack {
            Some(pack) => pack.write(rows.iter().copied().zip(self.firsts(&rows))),
            None => {
                let mut user = format!("## Rows\n{}\n", self.header);
                for (row, first) in rows.iter().zip(self.firsts(&rows)) {
                    user.push_str(&write::row_line(&first, row));
                    user.push('\n');
                }
                user
            }
        };
        let is_pack = self.pack.is_some();
        let planned_output = self.planned_output(rows.iter().copied());
        Prompt {
            system: Arc::clone(&form.system),
            user,
            schema: form.schema.clone(),
            planned_output,
            max_output: planned_output,
            input_tokens: 0,
            with_keys: None,
            answers: self.pack.as_ref().map(|pack| pack.answers).unwrap_or_default(),
            rows: rows.len(),
            temperature: is_pack.then_some(0.0),
            images: Vec::new(),
        }
    }
}
