//! Implements `hqdl chat`: reads questions from stdin, each of which may refer to earlier ones.

use std::io::{BufRead, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;

use super::ask::{
    AnsweredQuestion, AskFlags, AskOutcome, AskRun, PlanUse, add_example_to_spec, print_sql,
    unusable_example_failure,
};
use super::failure::{Failure, INTERRUPTED};
use super::rows::{self, RowsFormat};
use super::{CacheFlags, OutputOptions, interrupt};
use crate::ask::{Conversation, ConversationStore, Turn};
use crate::format::{format_usd, to_single_line};
use crate::private_dir::FileError;
use crate::session::Session;
use crate::spec::is_server;

/// Maximum length of a line in bytes; hqdl rejects longer lines.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Message printed at the first Ctrl-C.
const STOPPING: &str = "press Ctrl-C again to stop at once, or Enter to end the conversation";
const HELP: &str = "\
/sql             print the last query
/price           print what this conversation has cost
/undo            forget the last question
/keep [QUESTION] add the last query to the spec as an [[example]] of this question
/export FILE     write the last rows to a new .csv, .json, .jsonl or .md file
/quit            end the conversation (also Ctrl-D)";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Continue a conversation: the newest about this database, or the one with this id.
    #[arg(long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    #[command(flatten)]
    ask: AskFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let format = options.ask.choose_rows_format(output_options)?;
    let (session, target) = options.ask.open("chat", output_options)?;
    let ask_run =
        AskRun::open(&options.ask, PlanUse::RunInChat, &session, &target, output_options)?;
    let store = open_store(&options.ask.flags.cache)?;
    let database = format_database_location(&target);
    let (id, conversation) =
        open_conversation(store.as_ref(), options.resume.as_deref(), database)?;
    let mut chat = Chat {
        options,
        output_options,
        format,
        session: &session,
        ask_run,
        store,
        id,
        conversation,
        last: None,
        has_failed: false,
        exit_code: 0,
    };
    chat.run_conversation()
}

/// Opens the stored conversations. They are stored on this machine, even if the cache is on a
/// server. Returns `None` for `--no-cache`, which stores no conversations.
fn open_store(flags: &CacheFlags) -> Result<Option<ConversationStore>, Failure> {
    if flags.no_cache {
        return Ok(None);
    }
    let dir = flags.local_dir()?;
    ConversationStore::open(&dir.join("conversations")).map(Some).map_err(|e| to_failure(&e))
}

fn to_failure(error: &FileError) -> Failure {
    Failure::wrong_input(error.to_string(), "pass a --cache directory that you can write to")
}

fn format_database_location(target: &Path) -> String {
    let path = if is_server(target) { Ok(target.to_owned()) } else { std::path::absolute(target) };
    path.unwrap_or_else(|_| target.to_owned()).to_string_lossy().into_owned()
}

/// Returns a new conversation or the conversation to resume. An empty id resumes the newest one.
fn open_conversation(
    store: Option<&ConversationStore>,
    resume: Option<&str>,
    database: String,
) -> Result<(String, Conversation), Failure> {
    let Some(id) = resume else {
        let id = ConversationStore::create_id(jiff::Timestamp::now());
        return Ok((id, Conversation { database, turns: Vec::new() }));
    };
    let Some(store) = store else {
        return Err(Failure::wrong_input("--no-cache stores no conversations", "remove --resume"));
    };
    let id = match id {
        "" => store.find_newest(&database).map_err(|e| to_failure(&e))?.ok_or_else(|| {
            let message = format!("there is no conversation about {database}");
            Failure::wrong_input(message, "start one without --resume")
        })?,
        id => id.to_owned(),
    };
    let found = store.load(&id).map_err(|e| to_failure(&e))?;
    match found {
        Some(found) if found.database == database => Ok((id, found)),
        Some(found) => {
            let message = format!("conversation {id} is about {}", found.database);
            Err(Failure::wrong_input(message, "name that database with --db or --spec"))
        }
        None => Err(Failure::wrong_input(
            format!("there is no conversation {id}"),
            "pass --resume without an id to continue the newest",
        )),
    }
}

struct Chat<'s> {
    options: &'s Options,
    output_options: OutputOptions,
    format: RowsFormat,
    session: &'s Session,
    ask_run: AskRun<'s>,
    store: Option<ConversationStore>,
    id: String,
    conversation: Conversation,
    last: Option<AnsweredQuestion>,
    /// Whether the last question failed.
    has_failed: bool,
    /// Exit code of the last question that failed.
    exit_code: u8,
}

/// Whether the conversation continues after a line of input.
#[derive(PartialEq, Eq)]
enum LineOutcome {
    Continue,
    End,
}

impl Chat<'_> {
    fn run_conversation(&mut self) -> Result<ExitCode, Failure> {
        let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let interrupt = interrupt::watch_ctrl_c(Some(STOPPING));
        self.print_note("ask a question, or /help");
        for turn in &self.conversation.turns {
            self.print_note(&format!("> {}", to_single_line(&turn.question)));
        }
        loop {
            if is_terminal {
                anstream::eprint!("> ");
            }
            let line = read_line()?;
            if *interrupt.borrow() {
                return Ok(ExitCode::from(INTERRUPTED));
            }
            let Some(line) = line else { break };
            let next = match line.trim() {
                "" => Ok(LineOutcome::Continue),
                command if command.starts_with('/') => self.run_command(command),
                question => self.answer_question(question, &interrupt),
            };
            match next {
                Ok(LineOutcome::Continue) => {}
                Ok(LineOutcome::End) => break,
                Err(failure) => {
                    failure.print_error(self.output_options.json);
                    self.exit_code = failure.exit_code();
                }
            }
            if *interrupt.borrow() {
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
        if self.store.is_some() && !self.conversation.turns.is_empty() {
            self.print_note(&format!("continue this conversation with --resume {}", self.id));
        }
        Ok(ExitCode::from(self.exit_code))
    }

    fn print_note(&self, text: &str) {
        if !self.output_options.quiet && !self.output_options.json {
            anstream::eprintln!("{text}");
        }
    }

    fn answer_question(
        &mut self,
        question: &str,
        interrupt: &tokio::sync::watch::Receiver<bool>,
    ) -> Result<LineOutcome, Failure> {
        self.last = None;
        self.has_failed = true;
        match self.ask_run.ask(question, &self.conversation.turns, interrupt)? {
            AskOutcome::Stopped(code) => self.exit_code = code,
            AskOutcome::Answered(answered) => {
                if let code @ 1.. = answered.exit_code() {
                    self.exit_code = code;
                }
                let is_open = answered.print(self.format, self.output_options)?;
                self.conversation.turns.push(answered.to_turn());
                self.last = Some(*answered);
                self.has_failed = false;
                self.save_conversation()?;
                if !is_open {
                    return Ok(LineOutcome::End);
                }
            }
        }
        Ok(LineOutcome::Continue)
    }

    fn save_conversation(&self) -> Result<(), Failure> {
        match &self.store {
            Some(store) => store.save(&self.id, &self.conversation).map_err(|e| to_failure(&e)),
            None => Ok(()),
        }
    }

    fn run_command(&mut self, line: &str) -> Result<LineOutcome, Failure> {
        let (command, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim();
        match command {
            "/quit" | "/exit" => return Ok(LineOutcome::End),
            "/help" => anstream::eprintln!("{HELP}"),
            "/sql" => print_sql(&self.last_turn()?.sql),
            "/price" => {
                let spent = self.ask_run.spent_usd();
                anstream::println!(
                    "{} for SQL, {} for queries since the start",
                    format_usd(spent.writing),
                    format_usd(spent.queries)
                );
            }
            "/undo" if self.has_failed => self.has_failed = false,
            "/undo" => {
                let undone = self.conversation.turns.pop().ok_or_else(no_answer_failure)?;
                self.last = None;
                self.save_conversation()?;
                self.print_note(&format!("forgot: {}", to_single_line(&undone.question)));
            }
            "/keep" => self.add_example(argument)?,
            "/export" => self.export_rows(Path::new(argument))?,
            _ => {
                let message = format!("there is no command {command}");
                return Err(Failure::wrong_input(message, "/help lists the commands"));
            }
        }
        Ok(LineOutcome::Continue)
    }

    /// Returns the last question with its query. Fails if the last question was not answered.
    fn last_turn(&self) -> Result<&Turn, Failure> {
        if self.has_failed {
            return Err(Failure::wrong_input(
                "the last question has no query",
                "ask it again, or /undo to return to the one before it",
            ));
        }
        self.conversation.turns.last().ok_or_else(no_answer_failure)
    }

    /// Adds the last query to the spec. A follow-up question must be written out in full, because
    /// it cannot be understood without the earlier ones.
    fn add_example(&self, question: &str) -> Result<(), Failure> {
        let last = self.last_turn()?;
        if last.rows == 0 || !last.can_be_example {
            return Err(unusable_example_failure(last.rows));
        }
        let Some(spec) = &self.options.ask.spec else {
            let hint = "start the chat with --spec SPEC";
            return Err(Failure::wrong_input("there is no spec to add the example to", hint));
        };
        let question = match question {
            "" if self.conversation.turns.len() > 1 => {
                return Err(Failure::wrong_input(
                    "this question may depend on the earlier ones",
                    "write it out in full: /keep QUESTION",
                ));
            }
            "" => last.question.clone(),
            question => question.to_owned(),
        };
        let turn = Turn { question, ..last.clone() };
        add_example_to_spec(spec, &self.session.database, turn, self.output_options)
    }

    fn export_rows(&self, path: &Path) -> Result<(), Failure> {
        let none = || Failure::wrong_input("there are no rows to export", "ask a question first");
        let answered = self.last.as_ref().ok_or_else(none)?;
        let format = match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => RowsFormat::Csv,
            Some("json") => RowsFormat::Json,
            Some("jsonl") => RowsFormat::Jsonl,
            Some("md") => RowsFormat::Markdown,
            _ => {
                let message = "the file name does not indicate a format";
                return Err(Failure::wrong_input(
                    message,
                    "name a .csv, .json, .jsonl or .md file",
                ));
            }
        };
        let failed = |e: &std::io::Error| {
            let reason = crate::format::describe_io_error(e);
            let message = format!("cannot write {}: {reason}", path.display());
            Failure::wrong_input(message, "name a new file in a directory that exists")
        };
        let file = std::fs::File::create_new(path).map_err(|e| failed(&e))?;
        let mut out = rows::new_row_writer(format, Box::new(std::io::BufWriter::new(file)), false);
        answered.write_rows(out.as_mut()).map_err(|e| failed(&e))?;
        self.print_note(&format!("wrote {}", path.display()));
        Ok(())
    }
}

fn no_answer_failure() -> Failure {
    Failure::wrong_input("no question has been answered yet", "ask one first")
}

/// Reads a line from stdin. Returns `None` at the end of input.
fn read_line() -> Result<Option<String>, Failure> {
    let failed =
        |message: String| Failure::wrong_input(message, "ask one question per line, in UTF-8");
    let mut bytes = Vec::new();
    let mut stdin = std::io::stdin().lock().take(MAX_LINE_BYTES);
    let read = stdin.read_until(b'\n', &mut bytes);
    let read = read.map_err(|e| {
        failed(format!("cannot read stdin: {}", crate::format::describe_io_error(&e)))
    })?;
    if read as u64 == MAX_LINE_BYTES {
        return Err(failed("a line of stdin is longer than 1 MiB".to_owned()));
    }
    let line = String::from_utf8(bytes);
    let line = line.map_err(|_| failed("a line of stdin is not UTF-8".to_owned()))?;
    Ok((read > 0).then_some(line))
}
