//! `hqdl override`

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::Talk;
use super::failure::{Failure, open_database};
use crate::overrides::{Line, Overrides, OverridesError, read_lines, write_lines};
use crate::spec::{Draft, Expansion, Spec};

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Say what a cell is, whatever the model says.
    Set {
        /// The spec.
        spec: PathBuf,
        /// The table: an expansion's, or one of a one-to-many column.
        table: String,
        /// The key's values in the order of the key (NULL for NULL), the column, the value
        /// (`|` between the values of a list).
        #[arg(required = true, num_args = 3.., value_name = "KEY… COLUMN VALUE")]
        words: Vec<String>,
        /// Why.
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Take it back: the model's word counts again.
    Unset {
        /// The spec.
        spec: PathBuf,
        /// The table.
        table: String,
        /// The key's values, then the column.
        #[arg(required = true, num_args = 2.., value_name = "KEY… COLUMN")]
        words: Vec<String>,
    },
    /// List what is overridden.
    List {
        /// The spec.
        spec: PathBuf,
    },
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    match &options.command {
        Command::Set { spec, table, words, note } => {
            let [words @ .., value] = words.as_slice() else { return Ok(ExitCode::SUCCESS) };
            let spec = open(spec)?;
            let line =
                Line { value: value.clone(), note: note.clone(), ..line(&spec, table, words)? };
            let path = spec.overrides_path();
            let before: Vec<Line> = read_lines(&path)?.into_iter().map(|(_, l)| l).collect();
            let mut lines: Vec<Line> = before.iter().filter(|l| !same(l, &line)).cloned().collect();
            lines.push(line);
            write_lines(&path, &lines)?;
            // A word that cannot be read back is taken back at once.
            if let Err(error) = Overrides::read(&spec) {
                write_lines(&path, &before)?;
                return Err(error.into());
            }
            Ok(said(talk, "set", &path))
        }
        Command::Unset { spec, table, words } => {
            let spec = open(spec)?;
            let line = line(&spec, table, words)?;
            let path = spec.overrides_path();
            let before = read_lines(&path)?;
            let lines: Vec<Line> =
                before.iter().map(|(_, l)| l).filter(|l| !same(l, &line)).cloned().collect();
            if lines.len() == before.len() {
                return Err(Failure::input(
                    "there is no such override",
                    "`hqdl override list SPEC` lists them",
                ));
            }
            write_lines(&path, &lines)?;
            Ok(said(talk, "taken back", &path))
        }
        Command::List { spec } => {
            let path = Draft::read(spec)?.path().with_extension("overrides.csv");
            for (number, l) in read_lines(&path)? {
                let key: Vec<&str> = l.key.iter().map(|(_, v)| v.as_str()).collect();
                if talk.json {
                    let key: serde_json::Map<_, _> =
                        l.key.iter().map(|(n, v)| (n.clone(), v.as_str().into())).collect();
                    let line = json!({ "line": number, "key": key, "column": l.column, "value": l.value, "note": l.note });
                    anstream::println!("{line}");
                } else {
                    let note =
                        if l.note.is_empty() { String::new() } else { format!("  ({})", l.note) };
                    anstream::println!("{}  {} = {}{note}", key.join(", "), l.column, l.value);
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn said(talk: Talk, what: &str, path: &std::path::Path) -> ExitCode {
    if !talk.quiet {
        anstream::eprintln!(
            "{what} in {}; it shows with the next `hqdl materialize`",
            path.display()
        );
    }
    ExitCode::SUCCESS
}

fn open(path: &std::path::Path) -> Result<Spec, Failure> {
    let draft = Draft::read(path)?;
    let database = open_database(&draft)?;
    Ok(draft.check(&database)?.0)
}

/// The line that key words and a column stand for, without a value.
fn line(spec: &Spec, table: &str, words: &[String]) -> Result<Line, Failure> {
    let makes = |e: &&Expansion| {
        let many = e.columns.iter().filter_map(|c| c.many.as_ref().map(|m| m.table.as_str()));
        std::iter::once(e.name.as_str()).chain(many).any(|t| t.eq_ignore_ascii_case(table))
    };
    let Some(expansion) = spec.expansions.iter().find(makes) else {
        let all: Vec<&str> = spec.expansions.iter().map(|e| e.name.as_str()).collect();
        return Err(Failure::input(
            format!("no expansion makes a table `{table}`"),
            format!("there is {}", all.join(", ")),
        ));
    };
    let [key @ .., column] = words else {
        return Err(Failure::input("no column", "KEY… COLUMN"));
    };
    let names = expansion.key.names();
    if key.len() != names.len() {
        return Err(Failure::input(
            format!(
                "the key of `{}` has {} parts, {} are given",
                expansion.name,
                names.len(),
                key.len()
            ),
            format!("its key is {}", names.join(", ")),
        ));
    }
    let Some(at) = expansion.column(column) else {
        let all: Vec<&str> = expansion.columns.iter().map(|c| c.name.as_str()).collect();
        return Err(Failure::input(
            format!("`{}` has no column `{column}`", expansion.name),
            format!("its columns are {}", all.join(", ")),
        ));
    };
    let field = |text: &String| if text == "NULL" { String::new() } else { text.clone() };
    Ok(Line {
        key: names.iter().cloned().zip(key.iter().map(field)).collect(),
        column: expansion.columns[at].name.clone(),
        value: String::new(),
        note: String::new(),
    })
}

fn same(a: &Line, b: &Line) -> bool {
    // Fields of other expansions' keys are empty in this one's lines.
    let key = |l: &Line| {
        let mut key: Vec<(String, String)> =
            l.key.iter().filter(|(_, v)| !v.is_empty()).cloned().collect();
        key.sort();
        key
    };
    key(a) == key(b) && a.column == b.column
}

impl From<OverridesError> for Failure {
    fn from(error: OverridesError) -> Self {
        Self::input(error.to_string(), "mend the line; nothing was asked and nothing changed")
    }
}
