//! What models may write of any rows, any columns and any truth, rightly and
//! wrongly: every cell that is read holds the truth of that very row and column,
//! and what is well formed is read whole.

use std::collections::BTreeMap;

use hqdl::cell::{CellValue, State};
use hqdl::key::KeyColumns;
use hqdl::prompt::align::Keys;
use hqdl::prompt::{Frame, Question, Row, RowOutcome, completion};
use hqdl::spec::checker::Checker;
use hqdl::spec::{Echo, Expansion, Format};
use hqdl::value::Value;
use serde_json::{Value as Json, json};

use crate::fixture::Fixture;

/// Cases; `READERS_CASES` asks for more, from `READERS_SEED` on.
const CASES: u64 = 200;

/// Keys that quoting, lines, fences and folding trip over.
const NAMES: [&str; 44] = [
    "Alien",
    "ALIEN",
    "alien!",
    "Aliens",
    "Alien 3",
    "Captain America",
    "Captain Marvel",
    "Captain",
    "Smith, John",
    "John",
    "Smith",
    "12 Main St\nSpringfield",
    "Springfield",
    "St\r\nJohn",
    "the \"Rock\" Johnson",
    "\"quoted\"",
    "'quoted'",
    "Ra's Al Ghul",
    "O'Malley",
    "rock 'n'",
    "\nabc",
    "abc",
    "```",
    "a ```b``` c",
    "b",
    "",
    "-",
    "?",
    "null",
    "7",
    "1",
    "2",
    "3",
    "1984",
    "1.5",
    "é漢字",
    "Amélie",
    "!!!",
    "a,b",
    "{\"x\":1}",
    "[1]",
    "| pipe |",
    "\\",
    "Ann",
];
/// What values of free text are made of.
const PIECES: [&str; 24] = [
    "Paris", "France", "the end", "rock 'n'", "'til", "\"Rock\"", "6'2\"", ", ", ",", "; ", "a|b",
    "(x)", "\n", "```", "\\", "1950", "Red", "été", "漢", "it's", "?!", "[]", "{}", ": ",
];

fn pick<'a, T>(random: &mut fastrand::Rng, of: &'a [T]) -> &'a T {
    &of[random.usize(..of.len())]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Closed,
    Integer,
    Date,
    Items,
    Tags,
}

/// Rows and columns with a truth that differs for each of them.
struct Table {
    expansion: Expansion,
    kinds: Vec<Kind>,
    keys: Vec<Vec<Value>>,
    truth: Vec<Vec<Json>>,
}

const LISTED: usize = 60;

fn listed(n: usize) -> String {
    let name = ["Red", "Blue", "Green", "Dark Horse", "No Colour, at all", "O'Hara"][n % 6];
    format!("{name} {n}")
}

fn text(random: &mut fastrand::Rng, at: usize) -> String {
    let mut text = String::new();
    let parts = random.usize(1..4);
    for n in 0..parts {
        text.push_str(*pick(random, &PIECES[..]));
        if n + 1 < parts && random.bool() {
            text.push(' ');
        }
    }
    // So that no two values are the same.
    let text = match random.u8(..3) {
        0 => format!("{text} v{at}"),
        1 => format!("v{at} {text}"),
        _ => format!("v{at}{text}v{at}"),
    };
    // A comma at the end of a line is nothing, unless it is quoted.
    text.trim().trim_matches(',').trim().to_owned()
}

impl Table {
    fn new(random: &mut fastrand::Rng, fixture: &mut BTreeMap<String, Expansion>) -> Self {
        let all = [Kind::Text, Kind::Closed, Kind::Integer, Kind::Date, Kind::Items, Kind::Tags];
        let kinds: Vec<Kind> = (0..random.usize(1..5)).map(|_| *pick(random, &all)).collect();
        let parts = random.usize(1..3);
        let count = if random.u8(..5) == 0 { 1 } else { random.usize(2..9) };
        let names = KeyColumns::new(vec!["k1".into(), "k2".into()]);
        let mut keys: Vec<Vec<Value>> = Vec::new();
        while keys.len() < count {
            let part = |random: &mut fastrand::Rng| match random.u8(..12) {
                0 => Value::Null,
                1 => Value::Integer(random.i64(0..5)),
                2 => {
                    Value::from(format!("{} {}", pick(random, &NAMES), pick(random, &NAMES)).trim())
                }
                _ => Value::from(*pick(random, &NAMES)),
            };
            let key: Vec<Value> = (0..parts).map(|_| part(random)).collect();
            if !keys.iter().any(|k| names.entity(k) == names.entity(&key)) {
                keys.push(key);
            }
        }
        let truth = (0..count)
            .map(|row| {
                kinds
                    .iter()
                    .enumerate()
                    .map(|(column, kind)| {
                        let at = row * 5 + column;
                        if random.u8(..8) == 0 {
                            return Json::Null;
                        }
                        match kind {
                            Kind::Text => text(random, at).into(),
                            Kind::Closed => listed(at).into(),
                            Kind::Integer => (1000 + at).into(),
                            Kind::Date => {
                                format!("19{:02}-0{}-1{}", at + 10, at % 9 + 1, at % 9).into()
                            }
                            Kind::Items => (0..random.usize(..3))
                                .map(|n| listed((at + n * 13) % LISTED))
                                .collect(),
                            Kind::Tags => {
                                (0..random.usize(..3)).map(|n| format!("tag{at}x{n}")).collect()
                            }
                        }
                    })
                    .collect()
            })
            .collect();
        let list: Vec<String> = (0..LISTED).map(|n| format!("{:?}", listed(n))).collect();
        let list = list.join(",");
        let mut toml = format!(
            "[database]\npath = \"x\"\n[model]\nname = \"m\"\n[[expansion]]\nname = \"llm\"\nsource = \"film\"\nkey = {}\n",
            if parts == 1 { "[\"k1\"]" } else { "[\"k1\",\"k2\"]" }
        );
        for (n, kind) in kinds.iter().enumerate() {
            toml += &format!("[[expansion.column]]\nname = \"c{n}\"\n");
            toml += &match kind {
                Kind::Text => String::new(),
                Kind::Closed => format!("values = [{list}]\n"),
                Kind::Integer => "type = \"integer\"\n".to_owned(),
                Kind::Date => "type = \"date\"\n".to_owned(),
                Kind::Items => {
                    format!("many = {{ table = \"m{n}\", column = \"v\" }}\nvalues = [{list}]\n")
                }
                Kind::Tags => format!("many = {{ table = \"m{n}\", column = \"v\" }}\n"),
            };
        }
        let expansion =
            fixture.entry(toml).or_insert_with_key(|toml| Fixture::new().expansion(toml)).clone();
        Self { expansion, kinds, keys, truth }
    }

    fn question(&self, format: Format, echo: Echo) -> Question {
        let mut expansion = self.expansion.clone();
        expansion.echo = echo;
        let all: Vec<usize> = (0..self.kinds.len()).collect();
        let rows: Vec<Row> =
            self.keys.iter().map(|k| Row { key: k.clone(), context: Vec::new() }).collect();
        let prompt = Frame::new(&expansion, &all, format).prompt(&rows);
        Question::read(&prompt.system, &prompt.user).expect("a prompt of ours")
    }

    fn read(&self, content: &str, truncated: bool) -> Vec<RowOutcome> {
        let columns: Vec<String> = self.expansion.columns.iter().map(|c| c.name.clone()).collect();
        let checkers: Vec<Checker> = self.expansion.columns.iter().map(Checker::new).collect();
        let checkers: Vec<&Checker> = checkers.iter().collect();
        let keys = Keys::new(self.keys.iter().map(Vec::as_slice));
        completion::read(content, truncated, &keys, self.expansion.key.names(), &columns, &checkers)
    }

    /// The label, or number and key, that the answer for a row begins with.
    fn first(&self, row: usize, form: Echo) -> Vec<String> {
        let question = self.question(Format::Csv, form);
        let mut asked = question.clone();
        asked.rows = vec![question.rows[row].clone()];
        asked.columns.clear();
        let line = asked.answer(|_, _| Json::Null);
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(line.as_bytes());
        let record = reader.records().next().unwrap().unwrap();
        record.iter().map(str::to_owned).collect()
    }

    /// A cell as a csv answer holds it, its lists parted as told.
    fn cell(&self, row: usize, column: usize, between: &str) -> String {
        match &self.truth[row][column] {
            Json::Null => "?".to_owned(),
            Json::Array(items) if items.is_empty() => "none".to_owned(),
            Json::Array(items) => {
                items.iter().map(|i| i.as_str().unwrap()).collect::<Vec<_>>().join(between)
            }
            Json::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// The values read, each of which must be the truth; how many cells are as they
    /// should be.
    fn check(&self, content: &str, truncated: bool) -> Result<usize, String> {
        let mut right = 0;
        for (row, outcome) in self.read(content, truncated).iter().enumerate() {
            let RowOutcome::Read(cells) = outcome else { continue };
            for (column, answer) in cells.iter().enumerate() {
                let truth = &self.truth[row][column];
                if answer.state == State::Ok {
                    let value = answer.value.to_json();
                    if value != *truth {
                        return Err(format!(
                            "{value} for {truth}, row {}, column {column}",
                            row + 1
                        ));
                    }
                    right += 1;
                } else {
                    assert_eq!(answer.value, CellValue::Nothing);
                    right += usize::from(answer.state == State::Unknown && truth.is_null());
                }
            }
        }
        Ok(right)
    }

    fn cells(&self) -> usize {
        self.keys.len() * self.kinds.len()
    }
}

/// How fields are quoted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Quotes {
    /// Where they need it, in double ones.
    Well,
    /// All in double ones.
    All,
    /// All texts in single ones, doubled within.
    Single,
    /// In double ones where a comma stands, and never doubled within.
    Undoubled,
    /// Not at all.
    Not,
}

/// Whether a text means itself without quotes.
fn is_plain(text: &str) -> bool {
    !text.contains([',', '\n', '\r', '"', '\'', '`', '\\'])
        && !text.is_empty()
        && text.trim() == text
}

fn quoted(text: &str, quotes: Quotes) -> String {
    let double = || format!("\"{}\"", text.replace('"', "\"\""));
    match quotes {
        Quotes::Well if is_plain(text) => text.to_owned(),
        Quotes::Well | Quotes::All => double(),
        Quotes::Single => format!("'{}'", text.replace('\'', "''")),
        Quotes::Undoubled if text.contains(',') && !text.contains("\",") => format!("\"{text}\""),
        Quotes::Undoubled | Quotes::Not => text.to_owned(),
    }
}

/// What is wrong with a csv answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Permuted,
    Missing,
    Twice,
    Foreign,
    Renumbered,
    SwappedTags,
    FieldMissing,
    ForeignField,
    ListsByComma,
    Unquoted,
    Undoubled,
    Prose,
    Fence,
    Truncated,
}

const FAULTS: [Fault; 15] = [
    Fault::None,
    Fault::Permuted,
    Fault::Missing,
    Fault::Twice,
    Fault::Foreign,
    Fault::Renumbered,
    Fault::SwappedTags,
    Fault::FieldMissing,
    Fault::ForeignField,
    Fault::ListsByComma,
    Fault::Unquoted,
    Fault::Undoubled,
    Fault::Prose,
    Fault::Fence,
    Fault::Truncated,
];

/// The lines of a csv answer: what names a row, and its cells.
fn lines(
    table: &Table,
    echo: Echo,
    fault: Fault,
    quotes: Quotes,
    random: &mut fastrand::Rng,
) -> Vec<String> {
    let rows = table.keys.len();
    let between = if fault == Fault::ListsByComma { ", " } else { "|" };
    let firsts: Vec<Vec<String>> = (0..rows).map(|r| table.first(r, echo)).collect();
    let place = random.usize(..=table.kinds.len());
    let line = |row: usize| {
        let mut first = firsts[row].clone();
        let (number, tag) = first[0].split_once(' ').unwrap_or((&first[0], ""));
        match fault {
            Fault::Renumbered => {
                let number: usize = number.parse().unwrap();
                first[0] = format!("{} {tag}", number % rows + 1).trim().to_owned();
            }
            Fault::SwappedTags => {
                let number = number.to_owned();
                first.clone_from(&firsts[(row + 1) % rows]);
                let tag = first[0].split_once(' ').map_or("", |(_, tag)| tag);
                first[0] = format!("{number} {tag}").trim().to_owned();
            }
            _ => {}
        }
        let labelled = first.len();
        let mut fields: Vec<String> = first;
        fields.extend((0..table.kinds.len()).map(|c| table.cell(row, c, between)));
        match fault {
            Fault::FieldMissing if place < table.kinds.len() => {
                fields.remove(labelled + place);
            }
            Fault::ForeignField => fields.insert(labelled + place, "foreign".into()),
            _ => {}
        }
        let write = |(n, field): (usize, &String)| {
            let list = n >= labelled && fault == Fault::ListsByComma;
            let number = n == 0 && quotes == Quotes::Single && labelled > 1;
            let bare =
                number || (list && field.contains(", ") && !field.contains(['"', '\'', '\n']));
            if bare { field.clone() } else { quoted(field, quotes) }
        };
        fields.iter().enumerate().map(write).collect::<Vec<_>>().join(",")
    };
    (0..rows).map(line).collect()
}

/// A csv answer with a fault; and how many cells it must bring at least.
fn answer(
    table: &Table,
    echo: Echo,
    fault: Fault,
    random: &mut fastrand::Rng,
) -> (String, bool, usize) {
    let (rows, cells) = (table.keys.len(), table.cells());
    let quotes = match fault {
        Fault::Unquoted => Quotes::Not,
        Fault::Undoubled => Quotes::Undoubled,
        Fault::ListsByComma => Quotes::Well,
        _ => *pick(random, &[Quotes::Well, Quotes::Well, Quotes::All, Quotes::Single]),
    };
    let mut lines = lines(table, echo, fault, quotes, random);
    let mut least = cells;
    let width = table.kinds.len();
    match fault {
        Fault::Permuted => random.shuffle(&mut lines),
        Fault::Missing => {
            let gone = random.usize(..rows);
            lines.remove(gone);
            least -= width;
        }
        Fault::Twice => lines.extend(lines.clone()),
        Fault::Foreign => {
            let lie = vec!["?"; width].join(",");
            lines.insert(random.usize(..=rows), format!("{} Stranger,{lie}", rows + 1));
        }
        Fault::Prose => {
            lines.insert(0, "Sure! Here are the rows:\n".into());
            lines.push("\nLet me know if you need more.".into());
        }
        Fault::Fence => {
            lines.insert(0, "```csv".into());
            lines.push("```".into());
        }
        Fault::None => {}
        _ => least = 0,
    }
    let content = lines.join("\n");
    if fault == Fault::Truncated {
        let mut end = random.usize(..content.len());
        while !content.is_char_boundary(end) {
            end -= 1;
        }
        return (content[..end].to_owned(), true, 0);
    }
    (content, false, least)
}

/// How many cells were read of how many, by fault; and what went wrong.
fn run(seeds: std::ops::Range<u64>) -> (BTreeMap<String, (usize, usize)>, Vec<String>) {
    let mut wrong = Vec::new();
    let mut fixtures = BTreeMap::new();
    let mut tally: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let table = Table::new(&mut random, &mut fixtures);
        for echo in [Echo::Short, Echo::Full] {
            for format in [Format::Csv, Format::Json] {
                let content = table.question(format, echo).answer(|row, column| {
                    let at = table.expansion.column(&column.name).unwrap();
                    table.truth[row.number - 1][at].clone()
                });
                let right = table.check(&content, false);
                if right != Ok(table.cells()) {
                    wrong.push(format!(
                        "seed {seed}, {echo:?} {format:?}, well formed: {right:?} of {}, {:?} {:?}\n{content}",
                        table.cells(),
                        table.keys,
                        table.kinds
                    ));
                }
            }
            let fault = *pick(&mut random, &FAULTS);
            let (content, truncated, least) = answer(&table, echo, fault, &mut random);
            let right = table.check(&content, truncated);
            if right.as_ref().is_ok_and(|right| *right < least) || right.is_err() {
                wrong.push(format!(
                    "seed {seed}, {echo:?} {fault:?}: {right:?} of {least}, {:?} {:?}\n{content}",
                    table.keys, table.kinds
                ));
            }
            let right = right.unwrap_or_default();
            let entry = tally.entry(format!("{fault:?} {echo:?}")).or_default();
            entry.0 += right;
            entry.1 += table.cells();
        }
    }
    (tally, wrong)
}

#[test]
fn whatever_is_written_each_cell_that_is_read_is_the_truth() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
    };
    let (first, cases) = (number("READERS_SEED", 0), number("READERS_CASES", CASES));
    let (tally, wrong) = run(first..first + cases);
    for (what, (right, cells)) in tally {
        println!("{what}: {right} of {cells} cells read");
    }
    let first: Vec<&String> = wrong.iter().take(15).collect();
    assert!(wrong.is_empty(), "{} of {cases}: {first:#?}", wrong.len());
}

/// The tags of a request's labels are different, and nothing in them has to be
/// quoted.
#[test]
fn labels_differ_between_any_two_rows() {
    let mut fixtures = BTreeMap::new();
    for seed in 0..300 {
        let table = Table::new(&mut fastrand::Rng::with_seed(seed), &mut fixtures);
        let tags: Vec<String> = (0..table.keys.len())
            .map(|row| {
                let first = table.first(row, Echo::Short);
                let (number, tag) = first[0].split_once(' ').unwrap();
                assert_eq!((first.len(), number), (1, (row + 1).to_string().as_str()));
                assert!(tag.chars().all(|c| c.is_alphanumeric() || c == '-'), "{tag}");
                tag.to_lowercase()
            })
            .collect();
        let different: std::collections::BTreeSet<&String> = tags.iter().collect();
        assert_eq!(different.len(), tags.len(), "{tags:?} of {:?}", table.keys);
    }
}

#[test]
fn a_name_is_told_apart_by_a_word_of_its_own() {
    let keys: [&[Value]; 4] = [
        &["Captain America".into(), "Steve Rogers".into()],
        &["Captain Marvel".into(), "Carol Danvers".into()],
        &["Batman".into(), Value::Null],
        &["BATMAN".into(), Value::Null],
    ];
    let rows: Vec<Row> =
        keys.iter().map(|k| Row { key: k.to_vec(), context: Vec::new() }).collect();
    let toml = "[database]\npath = \"x\"\n[model]\nname = \"m\"\n[[expansion]]\nname = \"llm\"\nsource = \"film\"\nkey = [\"k1\",\"k2\"]\n[[expansion.column]]\nname = \"c\"\n";
    let expansion = Fixture::new().expansion(toml);
    let prompt = Frame::new(&expansion, &[0], Format::Csv).prompt(&rows);
    let asked: Vec<Json> =
        prompt.user.lines().skip(2).map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(asked[0], json!(["1 America", "Captain America", "Steve Rogers"]));
    assert_eq!(asked[1], json!(["2 Marvel", "Captain Marvel", "Carol Danvers"]));
    assert!(asked[2][0].as_str().unwrap().starts_with("3 Batman-x"), "{}", asked[2]);
    assert!(asked[3][0].as_str().unwrap().starts_with("4 BATMAN-x"), "{}", asked[3]);
}
