//! Builds prompts from rows with missing cells and parses completions into answers.
//!
//! # The prompt
//!
//! A prompt has two messages. The *system* message never changes within a run (instructions, table,
//! value lists, columns, shots), so an endpoint can serve it from its prefix cache. The *user*
//! message contains only the rows. Everything between the headings is JSON, one value per line, so
//! that a program, a person or a test endpoint (`Question::parse`) can parse it:
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
//! `[image 1]` or `[audio 1]` marks the position of a medium. The media follow the user message as
//! separate parts, and `"images"`, `"audio"` or `"media"` in the table names their columns.
//!
//! Only examples with a value for at least one requested column are included. If an example lacks
//! some columns, a line before the examples explains the placeholder.
//!
//! `"example"` on a column is a value of the expected kind, not necessarily a correct one.
//! `"open":true` on a column allows values outside its list. A NULL is `null`, distinct from `""`.
//!
//! # The answer
//!
//! * `csv`: a line for each row: the row's label, then the requested columns;
//!   `|` between the values of a list, `?` for unknown.
//! * `json`: `{"rows":[{"row":"1 Bomb","cells":{"eye_color":"Yellow","powers":["…"]}}]}`,
//!   `null` for unknown; constrained by [`PromptFrame::schema`] where the endpoint can.
//! * lines, for a live question about several values whose answers are short:
//!   `{"rows":["1 Oslo,true","2 Bergen,?"]}`, the lines of CSV in JSON.
//! * arrays, for a live question about several values whose answers are texts or lists:
//!   `{"rows":[["1 Oslo","a city"]]}`.
//! * single, for one row: `{"answer":true}` to a live question, an object of the columns
//!   otherwise.
//!
//! A label is the row's number and a word of its key that no other row of the request has
//! (`label.rs`). With `echo = "full"` rows are labelled by their number only, and answers repeat
//! number and key: `1,A-Bomb,Richard Milhouse Jones,Yellow,…` and
//! `{"row":1,"key":["A-Bomb","Richard Milhouse Jones"],"cells":{…}}`. A request with a key that
//! could be confused with that syntax (quotes, line breaks) uses labels anyway. The parser accepts
//! both forms in every answer.
//!
//! Number and word (or key) must agree, so that an answer is never stored in another row
//! ([`align`]). Both formats produce the same checked answers (`completion::parse_completion`).

pub mod align;
mod runaway;
pub mod completion;
mod csv;
mod fields;
mod forms;
mod found_row;
mod json;
mod label;
mod locate;
mod markup;
mod split_fields;
mod question;
mod quotes;
mod reasoning;
mod record;
mod schema;
mod misspelling;
mod unambiguous;
mod write;

use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

pub use completion::RowOutcome;
pub use locate::CellPositions;
pub use misspelling::{ExpansionKeys, KeyHashes};
pub use question::{AskedColumn, AskedRow, Question};
pub use reasoning::strip_reasoning;

use align::RequestKeys;
use completion::FinishReason;
use hqdl_spec::checker::Checker;
use hqdl_spec::media::Medium;
use hqdl_spec::{Column, Echo, Expansion, Format, PriceTable, Task, Type};
use hqdl_values::Row;
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::evidence::{Quotation, ShownEvidence};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::SpentAmount;
use hqdl_values::value::Value;

/// Output tokens per answer in addition to its rows: fences, brackets, a stray word.
const OUTPUT_OVERHEAD: u64 = 96;
/// Output tokens per row in addition to its key and cells: its number and the JSON syntax.
const ROW_OVERHEAD: u64 = 12;
/// Ratio of an answer's first output limit to its expected length.
const HEADROOM: u64 = 2;
/// Output tokens for an SQL query with its assumptions, or for a proposed column.
const STATEMENT_TOKENS: u64 = 300;
/// Number of values assumed for a list column.
const EXPECTED_LIST_ITEMS: u64 = 6;

/// Returns the expected output tokens of one cell, including the column name.
///
/// The estimate is generous and assumes three bytes per token.
fn estimate_cell_tokens(column: &Column) -> u64 {
    let estimate_tokens = |bytes: usize| bytes as u64 / 3 + 2;
    let tokens_per_value = match (&column.values, column.kind) {
        (Some(list), _) if !list.open => {
            let bytes: usize = list.values.iter().map(String::len).sum();
            estimate_tokens(bytes / list.values.len().max(1))
        }
        // List items are usually short.
        (_, Type::Text) if column.many.is_some() => 20,
        (_, data_type) => data_type.max_output_tokens(),
    };
    estimate_tokens(column.name.len())
        + tokens_per_value * if column.many.is_some() { EXPECTED_LIST_ITEMS } else { 1 }
}

/// Returns the expected output tokens for the quotations of one cell.
fn estimate_quote_tokens(expansion: &Expansion, column: &Column) -> u64 {
    let items = if column.many.is_some() { EXPECTED_LIST_ITEMS } else { 1 };
    forms::estimate_quote_tokens(expansion) * items
}

/// Returns the placeholders for answers in the examples of a column. A column's own options
/// are answers.
fn find_placeholders(task: Task, column: &Column) -> Vec<&'static str> {
    let options = column.values.iter().flat_map(|list| &list.values);
    let options: Vec<&String> = options.collect();
    let mut placeholders = forms::list_placeholders(task, column);
    placeholders.retain(|text| !options.iter().any(|option| option == text));
    placeholders
}

/// Makes an answer invalid if it repeats a placeholder of the prompt.
fn reject_placeholder(answer: &mut Answer, placeholders: &[&str]) {
    let is_placeholder = |text: &str| placeholders.contains(&text.trim());
    let is_text = |value: &Value| matches!(value, Value::Text(text) if is_placeholder(text));
    let has_copied = match &answer.value {
        // The column can list a placeholder as its word for an unknown value.
        CellValue::Nothing if answer.state == State::Unknown => false,
        CellValue::Nothing => answer.raw.as_deref().is_some_and(is_placeholder),
        CellValue::One(value) => is_text(value),
        CellValue::Many(values) => values.iter().any(is_text),
    };
    if has_copied {
        let raw = answer.raw.take();
        let raw = raw.unwrap_or_else(|| match answer.value.to_json() {
            Json::String(text) => text,
            value => value.to_string(),
        });
        let repair = Some("the reply repeats the example of the prompt".to_owned());
        *answer = Answer { repair, ..Answer::without_value(State::Invalid, raw) };
    }
}

/// The part shared by all prompts with the same expansion, requested columns and answer format.
#[derive(Debug, Clone)]
pub struct PromptFrame {
    /// Answer format.
    pub format: Format,
    /// Names of the requested columns.
    pub columns: Vec<String>,
    /// Placeholders for answers in the examples of each column.
    placeholders: Vec<Vec<&'static str>>,
    /// Messages for answers that repeat labels.
    short_echo: SharedPrompt,
    /// Messages for answers that repeat whole keys; `None` if the spec does not require them.
    full_echo: Option<SharedPrompt>,
    /// Form for questions about a single row; `None` if the expansion has none.
    single_form: Option<forms::SingleForm>,
    /// Form for questions about the values of several rows; `None` if the expansion has none.
    pack_form: Option<forms::PackForm>,
    /// Whether answers always repeat whole keys, even if a key could be confused with the answer
    /// syntax.
    always_full_echo: bool,
    header: String,
    /// Expected output tokens of the cells of one row.
    row_tokens: u64,
    /// Whether lists in an answer are sets.
    has_sets: bool,
    tokens: OnceLock<u64>,
}

/// System message and schema shared by all prompts with the same echo style.
#[derive(Debug, Clone)]
struct SharedPrompt {
    system: Arc<str>,
    schema: Option<Arc<Json>>,
}

/// A row of a prompt.
#[derive(Debug, Clone)]
pub struct PromptRow {
    /// Line of the prompt: `["1 Bomb","A-Bomb","Richard Milhouse Jones",203]`.
    pub prompt_line: String,
    /// Beginning of the row's line in an answer, before its cells.
    pub echo_line: String,
}

/// Request to a model.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// System message, the same for all rows.
    pub system: Arc<str>,
    /// User message: the rows.
    pub user: String,
    /// JSON schema of the answer; `None` if the format has none.
    pub schema: Option<Arc<Json>>,
    /// Expected output tokens (a generous estimate).
    pub planned_output: u64,
    /// Limit on the output tokens; initially the same as `planned_output`.
    pub max_output: u64,
    /// Input tokens counted so far.
    pub input_tokens: u64,
    /// Hash of the same request with whole keys, which was the only form before labels were
    /// introduced. Models that look up answers by hash need it.
    pub full_key_hash: Option<String>,
    /// Form of the answer.
    pub answer_form: AnswerForm,
    /// Number of requested rows.
    pub rows: usize,
    /// Sampling temperature for this form, used if the settings specify none.
    pub temperature: Option<f64>,
    /// Media in the prompt, in the order of their placeholders.
    pub media: Vec<Medium>,
    /// Maximum number of input tokens that are billed at the price of recordings.
    pub audio_tokens: u64,
    /// Evidence shown in the prompt, or the reason why it cannot be shown; `None` if the expansion
    /// has no documents.
    pub evidence: Option<Result<Arc<ShownEvidence>, String>>,
    /// Whether lists in the answer are sets, so that repeated items add nothing.
    pub has_sets: bool,
    /// Whether the endpoint should return the log-probabilities of the answer's tokens.
    pub wants_logprobs: bool,
}

/// Form of the answer to a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerForm {
    /// Table: a CSV line or a JSON object per row.
    #[default]
    Table,
    /// One answer without a label: `{"answer": …}`.
    Single,
    /// JSON array of lines: `{"rows": ["1 Oslo,true"]}`.
    Lines,
    /// JSON array of arrays: `{"rows": [["1 Oslo", "a city"]]}`.
    Arrays,
}

impl Prompt {
    /// Returns the maximum cost of the request.
    #[must_use]
    pub fn worst_case(&self, price: Option<&PriceTable>) -> SpentAmount {
        let Self { input_tokens, audio_tokens, max_output, .. } = self;
        SpentAmount::worst_case_with_audio(*input_tokens, *audio_tokens, *max_output, price)
    }

    /// Returns the evidence shown in the prompt; `None` if there is none.
    #[must_use]
    pub fn shown_evidence(&self) -> Option<&ShownEvidence> {
        self.evidence.as_ref()?.as_deref().ok()
    }

    /// Returns true if every value needs a quotation but no passage is shown. Such a request is not
    /// sent: its cells are unknown.
    #[must_use]
    pub fn lacks_required_evidence(&self, expansion: &Expansion) -> bool {
        expansion.evidence.as_ref().is_some_and(|settings| settings.require)
            && self.shown_evidence().is_some_and(|evidence| evidence.passages.is_empty())
    }

    /// Limits each list of a single answer to the number of its options, and returns the number of
    /// such lists. Constrained decoding then ends the list even if the model repeats an item
    /// endlessly. The limit is used only after a failure, because some endpoints reject the
    /// keyword.
    pub fn limit_lists(&mut self) -> u64 {
        let single = |_: &&mut Arc<Json>| self.answer_form == AnswerForm::Single;
        self.schema.as_mut().filter(single).map_or(0, schema::limit_lists)
    }

    /// Returns the hash of the prompt that is stored as provenance.
    #[must_use]
    pub fn provenance_hash(&self) -> String {
        let texts = [&*self.system, self.user.as_str()].into_iter();
        let media = self.media.iter().map(|medium| medium.name.as_str());
        hqdl_values::key::hash_prompt(&texts.chain(media).collect::<Vec<_>>())
    }
}

impl PromptFrame {
    /// Creates the frame for some columns of an expansion, given by position.
    #[must_use]
    pub fn new(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let requested: Vec<&Column> =
            columns.iter().filter_map(|c| expansion.columns.get(*c)).collect();
        let mut header: Vec<Json> = vec!["row".into()];
        header.extend(
            expansion.key.names().iter().chain(&expansion.context).map(|n| n.as_str().into()),
        );
        let header = Json::Array(header).to_string();
        let shared_prompt = |echo: Echo| SharedPrompt {
            system: write::build_system_message(
                expansion, columns, &requested, format, echo, &header,
            )
            .into(),
            schema: (format == Format::Json)
                .then(|| Arc::new(schema::build_answer_schema(expansion, &requested, echo))),
        };
        let pack_form = forms::PackForm::new(expansion, &requested, format);
        Self {
            format,
            single_form: forms::SingleForm::new(expansion, columns, format),
            columns: requested.iter().map(|c| c.name.clone()).collect(),
            placeholders: requested.iter().map(|c| find_placeholders(expansion.task, c)).collect(),
            short_echo: pack_form
                .as_ref()
                .map_or_else(|| shared_prompt(Echo::Short), |pack_form| pack_form.shared.clone()),
            pack_form,
            always_full_echo: false,
            has_sets: expansion.task == Task::Columns && format == Format::Json,
            full_echo: (expansion.echo == Echo::Full).then(|| shared_prompt(Echo::Full)),
            header,
            row_tokens: match expansion.task {
                Task::Statement => STATEMENT_TOKENS,
                _ => {
                    let cell_tokens =
                        |c: &&Column| estimate_cell_tokens(c) + estimate_quote_tokens(expansion, c);
                    ROW_OVERHEAD + requested.iter().map(cell_tokens).sum::<u64>()
                }
            },
            tokens: OnceLock::new(),
        }
    }

    /// Creates a frame whose answers repeat whole keys, regardless of the spec.
    #[must_use]
    pub fn with_full_keys(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let expansion = Expansion { echo: Echo::Full, ..expansion.clone() };
        Self { always_full_echo: true, ..Self::for_table(&expansion, columns, format) }
    }

    /// Creates a frame that always uses the table form, even for a single row.
    #[must_use]
    pub fn for_table(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let expansion = Expansion { task: Task::Columns, ..expansion.clone() };
        Self { single_form: None, ..Self::new(&expansion, columns, format) }
    }

    /// Returns true if prompts about several rows and only this column are answered in lines.
    #[must_use]
    pub fn is_packed(expansion: &Expansion, column: usize, format: Format) -> bool {
        let requested = expansion.columns.get(column);
        requested.is_some_and(|column| {
            let form = forms::PackForm::new(expansion, &[column], format);
            form.is_some_and(|form| form.answers == AnswerForm::Lines)
        })
    }

    /// Returns true if a prompt about `rows` rows asks for one answer without a label.
    #[must_use]
    pub fn uses_single_form(&self, rows: usize) -> bool {
        rows == 1 && self.single_form.is_some()
    }

    /// Returns true if an unreadable row is requested again at once, but only once, in the form for
    /// a single row. This applies to live questions, whose form for one row is simpler than the
    /// form for several.
    #[must_use]
    pub fn has_simplest_form(&self) -> bool {
        self.single_form.as_ref().is_some_and(forms::SingleForm::is_live)
    }

    /// Parses the answer to a prompt about some rows.
    #[must_use]
    pub fn parse_answer(
        &self,
        content: &str,
        finish: FinishReason,
        keys: &RequestKeys,
        key_names: &[String],
        checkers: &[&Checker],
    ) -> Vec<RowOutcome> {
        self.parse_answer_with_quotes(
            content,
            finish,
            keys,
            key_names,
            checkers,
            &ShownEvidence::default(),
        )
        .0
    }

    /// Parses the answer to a prompt about some rows. Also returns the quotations that occur in the
    /// evidence.
    #[must_use]
    pub fn parse_answer_with_quotes(
        &self,
        content: &str,
        finish: FinishReason,
        keys: &RequestKeys,
        key_names: &[String],
        checkers: &[&Checker],
        evidence: &ShownEvidence,
    ) -> (Vec<RowOutcome>, Vec<Quotation>) {
        let (mut outcomes, quotes) = match &self.single_form {
            Some(single) if keys.len() == 1 => {
                single.parse_answer(content, finish, keys, key_names, checkers, evidence)
            }
            _ => {
                let (columns, quotes) = (&self.columns, Vec::new());
                let outcomes = completion::parse_completion(
                    content, finish, keys, key_names, columns, checkers,
                );
                (outcomes, quotes)
            }
        };
        for outcome in &mut outcomes {
            let RowOutcome::Answered(answers) = outcome else { continue };
            for (answer, placeholders) in answers.iter_mut().zip(&self.placeholders) {
                reject_placeholder(answer, placeholders);
            }
        }
        (outcomes, quotes)
    }

    /// Returns the position in `content` of each row's cells, after [`Self::parse_answer`] has
    /// returned `outcomes`. A cell that is not found has no position.
    #[must_use]
    pub fn locate_cells(
        &self,
        content: &str,
        outcomes: &[RowOutcome],
        keys: &RequestKeys,
        key_names: &[String],
        checkers: &[&Checker],
    ) -> Vec<CellPositions> {
        let columns = match &self.single_form {
            Some(single) if keys.len() == 1 => single.members(),
            _ => &self.columns,
        };
        locate::locate_cells(content, outcomes, keys, key_names, columns, checkers)
    }

    /// Returns the number of tokens in a prompt without its user message.
    #[must_use]
    pub fn count_tokens_without_rows(&self, prompt: &Prompt, tokenizer: Tokenizer) -> u64 {
        match &self.single_form {
            Some(single_form) if prompt.answer_form == AnswerForm::Single => {
                single_form.count_shared_tokens(prompt, tokenizer)
            }
            _ => self.count_shared_tokens(tokenizer),
        }
    }

    /// Returns the messages used by most prompts of this frame.
    fn default_messages(&self) -> &SharedPrompt {
        self.full_echo.as_ref().unwrap_or(&self.short_echo)
    }

    /// Returns the number of tokens shared by all prompts of this frame. They are counted only
    /// once.
    #[must_use]
    pub fn count_shared_tokens(&self, tokenizer: Tokenizer) -> u64 {
        *self.tokens.get_or_init(|| {
            let schema = self.schema().map_or(0, |s| tokenizer.count_tokens(&s.to_string()));
            tokenizer.count_tokens(self.system()) + schema
        })
    }

    /// Returns the system message shared by all prompts of this frame.
    #[must_use]
    pub fn system(&self) -> &str {
        &self.default_messages().system
    }

    /// Returns the JSON schema of an answer; `None` for csv.
    #[must_use]
    pub fn schema(&self) -> Option<&Json> {
        self.default_messages().schema.as_deref()
    }

    /// Returns the echo style for these rows. If a key could be confused with the answer syntax,
    /// labels are used even if the spec requires whole keys.
    fn choose_echo(&self, rows: &[&Row]) -> Echo {
        let is_ambiguous_key =
            !self.always_full_echo && rows.iter().any(|r| label::is_ambiguous_key(&r.key));
        let can_echo_keys = self.full_echo.is_some() && !is_ambiguous_key;
        if can_echo_keys { Echo::Full } else { Echo::Short }
    }

    /// Returns the lines of a prompt that asks about `rows`.
    #[must_use]
    pub fn format_row_lines(&self, rows: &[&Row]) -> Vec<PromptRow> {
        let prefixes = self.build_row_prefixes(rows);
        let to_row = |(row, prefix): (&&Row, Json)| match &self.pack_form {
            Some(pack_form) => pack_form.format_prompt_row(&prefix, row),
            None => write::format_prompt_row(&prefix, row, self.format),
        };
        rows.iter().zip(prefixes).map(to_row).collect()
    }

    fn build_row_prefixes(&self, rows: &[&Row]) -> impl Iterator<Item = Json> {
        write::build_row_prefixes(rows.iter().map(|r| r.key.as_slice()), self.choose_echo(rows))
    }

    /// Returns the expected output tokens for a row (a generous estimate).
    #[must_use]
    pub fn estimate_row_output(&self, row: &Row) -> u64 {
        if self.pack_form.is_some() {
            // The answer repeats only the row label.
            return HEADROOM * (self.row_tokens + label::MAX_LABEL_TOKENS);
        }
        if self.single_form.as_ref().is_some_and(forms::SingleForm::asks_for_statement) {
            return HEADROOM * self.row_tokens;
        }
        let key = row.key.iter().map(|part| part.to_text().map_or(2, |t| t.len() as u64 / 2 + 4));
        HEADROOM * (self.row_tokens + key.sum::<u64>())
    }

    /// Returns the expected output tokens for `rows` (a generous estimate).
    #[must_use]
    pub fn planned_output<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> u64 {
        OUTPUT_OVERHEAD + rows.into_iter().map(|row| self.estimate_row_output(row)).sum::<u64>()
    }

    /// Builds the prompt that asks about `rows`.
    #[must_use]
    pub fn build_prompt<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Prompt {
        let rows: Vec<&Row> = rows.into_iter().collect();
        if let (Some(single_form), [row]) = (&self.single_form, rows.as_slice()) {
            return single_form.build_prompt(row, self.planned_output([*row]));
        }
        let shared = match (self.choose_echo(&rows), &self.full_echo) {
            (Echo::Full, Some(full)) => full,
            _ => &self.short_echo,
        };
        let user = match &self.pack_form {
            Some(pack_form) => pack_form
                .build_user_message(rows.iter().copied().zip(self.build_row_prefixes(&rows))),
            None => {
                let mut user = format!("## Rows\n{}\n", self.header);
                for (row, prefix) in rows.iter().zip(self.build_row_prefixes(&rows)) {
                    user.push_str(&write::format_row(&prefix, row));
                    user.push('\n');
                }
                user
            }
        };
        let is_pack = self.pack_form.is_some();
        let planned_output = self.planned_output(rows.iter().copied());
        Prompt {
            system: Arc::clone(&shared.system),
            user,
            schema: shared.schema.clone(),
            planned_output,
            max_output: planned_output,
            input_tokens: 0,
            full_key_hash: None,
            answer_form: self.pack_form.as_ref().map(|pack| pack.answers).unwrap_or_default(),
            rows: rows.len(),
            temperature: is_pack.then_some(0.0),
            media: Vec::new(),
            audio_tokens: 0,
            evidence: None,
            has_sets: self.has_sets,
            wants_logprobs: false,
        }
    }
}
