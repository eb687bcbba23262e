//! Tests of correct and incorrect completions for random rows, columns and truths: every cell that
//! is read has the truth of exactly this row and column, and well-formed answers are read
//! completely.

use std::collections::BTreeMap;

use hqdl::Row;
use hqdl::cell::{CellValue, State};
use hqdl::key::KeyColumns;
use hqdl::prompt::align::RequestKeys;
use hqdl::prompt::{PromptFrame, Question, RowOutcome, completion};
use hqdl::spec::checker::Checker;
use hqdl::spec::{Echo, Expansion, Format};
use hqdl::value::Value;
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::fixture::Fixture;
use hqdl_testkit::project::{heroes_project, heroes_spec, true_value, truthful_endpoint};

/// Number of cases; `READERS_CASES` overrides it, starting at `READERS_SEED`.
const CASES: u64 = 200;

/// Keys that are difficult for quoting, lines, fences and case folding.
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
/// Fragments of free text values.
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

/// Rows and columns, each cell with a different truth.
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
        let piece: &&str = pick(random, &PIECES);
        text.push_str(piece);
        if n + 1 < parts && random.bool() {
            text.push(' ');
        }
    }
    // Make all values different.
    let text = match random.u8(..3) {
        0 => format!("{text} v{at}"),
        1 => format!("v{at} {text}"),
        _ => format!("v{at}{text}v{at}"),
    };
    // An unquoted comma at the end of a line is ignored.
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
            if !keys.iter().any(|k| names.build_entity(k) == names.build_entity(&key)) {
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
        let expansion = fixture
            .entry(toml)
            .or_insert_with_key(|toml| Fixture::new().only_expansion(toml))
            .clone();
        Self { expansion, kinds, keys, truth }
    }

    fn question(&self, format: Format, echo: Echo) -> Question {
        let mut expansion = self.expansion.clone();
        expansion.echo = echo;
        let all: Vec<usize> = (0..self.kinds.len()).collect();
        let rows: Vec<Row> =
            self.keys.iter().map(|k| Row { key: k.clone(), context: Vec::new() }).collect();
        let prompt = PromptFrame::new(&expansion, &all, format).build_prompt(&rows);
        Question::parse(&prompt.system, &prompt.user).expect("a prompt of ours")
    }

    fn read(&self, content: &str, truncated: bool) -> Vec<RowOutcome> {
        let columns: Vec<String> = self.expansion.columns.iter().map(|c| c.name.clone()).collect();
        let checkers: Vec<Checker> = self.expansion.columns.iter().map(Checker::new).collect();
        let checkers: Vec<&Checker> = checkers.iter().collect();
        let keys = RequestKeys::new(self.keys.iter().map(Vec::as_slice));
        let finish = if truncated {
            completion::FinishReason::Truncated
        } else {
            completion::FinishReason::Stop
        };
        completion::parse_completion(
            content,
            finish,
            &keys,
            self.expansion.key.names(),
            &columns,
            &checkers,
        )
    }

    /// Returns the label, or number and key, that the answer for a row begins with.
    fn first(&self, row: usize, form: Echo) -> Vec<String> {
        let question = self.question(Format::Csv, form);
        let mut asked = question.clone();
        asked.rows = vec![question.rows[row].clone()];
        asked.columns.clear();
        let line = asked.format_answer(|_, _| Json::Null);
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(line.as_bytes());
        let record = reader.records().next().unwrap().unwrap();
        record.iter().map(str::to_owned).collect()
    }

    /// Returns a cell as a CSV answer contains it, with this separator in lists.
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

    /// Checks that every value read is the truth; returns the number of correct cells.
    fn check(&self, content: &str, truncated: bool) -> Result<usize, String> {
        let mut right = 0;
        for (row, outcome) in self.read(content, truncated).iter().enumerate() {
            let RowOutcome::Answered(cells) = outcome else { continue };
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

/// Quoting of fields.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Quotes {
    /// Double quotes where necessary.
    Well,
    /// Double quotes around all fields.
    All,
    /// Single quotes around all texts, doubled inside.
    Single,
    /// Double quotes around fields with a comma, not doubled inside.
    Undoubled,
    /// No quotes.
    Not,
}

/// Returns true if a text has the same meaning without quotes.
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

/// Fault of a CSV answer.
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
    /// It repeats itself at the end until it is truncated.
    Circle,
    /// The same without quotes.
    UnquotedCircle,
}

const FAULTS: [Fault; 17] = [
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
    Fault::Circle,
    Fault::UnquotedCircle,
];

/// Returns the lines of a CSV answer: the fields that name a row, and its cells.
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
                let label = format!("{} {tag}", number % rows + 1);
                label.trim().clone_into(&mut first[0]);
            }
            Fault::SwappedTags => {
                let number = number.to_owned();
                first.clone_from(&firsts[(row + 1) % rows]);
                let tag = first[0].split_once(' ').map_or("", |(_, tag)| tag);
                format!("{number} {tag}").trim().clone_into(&mut first[0]);
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

/// Returns a CSV answer with a fault, and the minimum number of cells that must be read.
fn answer(
    table: &Table,
    echo: Echo,
    fault: Fault,
    random: &mut fastrand::Rng,
) -> (String, bool, usize) {
    let (rows, cells) = (table.keys.len(), table.cells());
    let quotes = match fault {
        Fault::Unquoted | Fault::UnquotedCircle => Quotes::Not,
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
        Fault::None | Fault::Circle => {}
        _ => least = 0,
    }
    let content = lines.join("\n");
    if matches!(fault, Fault::Circle | Fault::UnquotedCircle) {
        let last = lines.last().map_or("", String::as_str);
        let (begin, end) = *pick(random, &[("", ""), ("```csv\n", "\n```")]);
        let circle = *pick(random, &["so on, and so forth", "", "x", "1999", "So,\n\nso", last]);
        let mut content = format!("{begin}{content}{end}{}", format!("\n{circle}").repeat(900));
        let mut end = content.len() - random.usize(..400);
        while !content.is_char_boundary(end) {
            end -= 1;
        }
        content.truncate(end);
        return (content, true, least);
    }
    if fault == Fault::Truncated {
        let mut end = random.usize(..content.len());
        while !content.is_char_boundary(end) {
            end -= 1;
        }
        return (content[..end].to_owned(), true, 0);
    }
    (content, false, least)
}

/// Returns the number of cells read and of all cells, by fault, and the errors.
fn run(seeds: std::ops::Range<u64>) -> (BTreeMap<String, (usize, usize)>, Vec<String>) {
    let mut wrong = Vec::new();
    let mut fixtures = BTreeMap::new();
    let mut tally: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let table = Table::new(&mut random, &mut fixtures);
        for echo in [Echo::Short, Echo::Full] {
            for format in [Format::Csv, Format::Json] {
                let content = table.question(format, echo).format_answer(|row, column| {
                    let at = table.expansion.find_column(&column.name).unwrap();
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
fn every_cell_that_is_read_is_the_truth() {
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

/// The tags of a request's labels differ, and none needs quotes.
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
fn a_name_is_distinguished_by_a_unique_word() {
    let keys: [&[Value]; 4] = [
        &["Captain America".into(), "Steve Rogers".into()],
        &["Captain Marvel".into(), "Carol Danvers".into()],
        &["Batman".into(), Value::Null],
        &["BATMAN".into(), Value::Null],
    ];
    let rows: Vec<Row> =
        keys.iter().map(|k| Row { key: k.to_vec(), context: Vec::new() }).collect();
    let toml = "[database]\npath = \"x\"\n[model]\nname = \"m\"\n[[expansion]]\nname = \"llm\"\nsource = \"film\"\nkey = [\"k1\",\"k2\"]\n[[expansion.column]]\nname = \"c\"\n";
    let expansion = Fixture::new().only_expansion(toml);
    let prompt = PromptFrame::new(&expansion, &[0], Format::Csv).build_prompt(&rows);
    let asked: Vec<Json> =
        prompt.user.lines().skip(2).map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(asked[0], json!(["1 Steve", "Captain America", "Steve Rogers"]));
    assert_eq!(asked[1], json!(["2 Carol", "Captain Marvel", "Carol Danvers"]));
    assert!(asked[2][0].as_str().unwrap().starts_with("3 Batman-x"), "{}", asked[2]);
    assert!(asked[3][0].as_str().unwrap().starts_with("4 BATMAN-x"), "{}", asked[3]);
}

/// Returns the cells of each row: a value, or `null` if none is certain.
fn read(columns: &str, keys: &[&[Value]], content: &str) -> Vec<Json> {
    let names: Vec<String> = (1..=keys[0].len()).map(|n| format!("\"k{n}\"")).collect();
    let toml = format!(
        "[database]\npath = \"x\"\n[model]\nname = \"m\"\n[[expansion]]\nname = \"llm\"\nsource = \"film\"\nkey = [{}]\n{columns}",
        names.join(",")
    );
    let expansion = Fixture::new().only_expansion(&toml);
    let kinds = vec![Kind::Text; expansion.columns.len()];
    let keys = keys.iter().map(|k| k.to_vec()).collect();
    let table = Table { expansion, kinds, keys, truth: Vec::new() };
    let row = |outcome: &RowOutcome| match outcome {
        RowOutcome::Failed { .. } => Json::Null,
        RowOutcome::Answered(cells) => cells.iter().map(|c| c.value.to_json()).collect(),
    };
    table.read(content, false).iter().map(row).collect()
}

const T: &str = "[[expansion.column]]\nname = \"t\"\n";
const U: &str = "[[expansion.column]]\nname = \"u\"\n";
const YEAR: &str = "[[expansion.column]]\nname = \"y\"\ntype = \"integer\"\n";
const SPORTS: &str = "[[expansion.column]]\nname = \"m\"\nmany = { table = \"m\", column = \"v\" }\nvalues = [\"Archery\", \"Rowing\"]\n";

#[test]
fn an_extra_comma_leaves_only_certain_cells() {
    let k: &[&[Value]] = &[&["K".into()]];
    let columns = [T, U, SPORTS].concat();
    for line in ["1,K,Paris, France,nice,Archery", "1 K,Paris,France,nice,Archery"] {
        assert_eq!(read(&columns, k, line), [json!([null, null, ["Archery"]])], "{line}");
    }
    // Between a number and the end, only one text fits.
    let columns = [T, YEAR, U].concat();
    assert_eq!(read(&columns, k, "1 K,Paris,France,1950,nice"), [json!([null, 1950, "nice"])]);
    // A space distinguishes a comma inside a text from a separator.
    let told = json!(["Paris, France", 1950, "nice"]);
    assert_eq!(read(&columns, k, "1 K,Paris, France,1950,nice"), [told]);
    // A quoted field is not split to make the count fit.
    let columns = [T, U, YEAR].concat();
    for line in ["1 K,\"Paris, France\",1950", "1 K,'Paris, France',1950", "1 K,'it's, so',1950"] {
        assert_eq!(read(&columns, k, line)[0][0], Json::Null, "{line}");
    }
}

#[test]
fn keys_with_line_breaks_quotes_and_fences_harm_no_row() {
    let streets: &[&[Value]] = &[&["12 Main St\nSpringfield".into()], &["Springfield".into()]];
    for line in ["1,\"12 Main St\nSpringfield\",A", "1,12 Main St\nSpringfield,A"] {
        assert_eq!(read(T, streets, line)[1], Json::Null, "{line}");
    }
    let fences: &[&[Value]] = &[&["a ``` b".into()], &["c".into()]];
    let rows = "{\"rows\":[{\"row\":1,\"key\":[\"a ``` b\"],\"cells\":{\"t\":\"x ```\\n y\"}},{\"row\":2,\"key\":[\"c\"],\"cells\":{\"t\":\"z\"}}]}";
    assert_eq!(read(T, fences, rows), [json!(["x ```\n y"]), json!(["z"])]);
    assert_eq!(
        read(T, fences, "1,a ``` b,\"x\n```\ny\"\n2,c,z"),
        [json!(["x\n```\ny"]), json!(["z"])]
    );
    assert_eq!(read(T, &[&["\nabc".into()]], "1 abc,rock 'n'"), [json!(["rock 'n'"])]);
}

#[test]
fn the_label_of_a_number_is_not_the_key_of_another_row() {
    let numbers: &[&[Value]] = &[&[Value::Integer(2)], &[Value::Integer(6)], &[Value::Integer(12)]];
    let rows = "{\"rows\":[{\"row\":\"1 2\",\"cells\":{\"t\":\"two\"}},{\"row\":\"2 6\",\"cells\":{\"t\":\"six\"}},{\"row\":\"3 12\",\"cells\":{\"t\":\"twelve\"}}]}";
    let all = [json!(["two"]), json!(["six"]), json!(["twelve"])];
    assert_eq!(read(T, numbers, rows), all);
    assert_eq!(read(T, numbers, "1 2,two\n2 6,six\n3 12,twelve"), all);
    // A key that looks like the label of another row belongs to neither.
    let alike: &[&[Value]] = &[&["Batman".into()], &["(1) Batman".into()]];
    assert_eq!(read(T, alike, "1 Batman,Wayne")[0], Json::Null);
}

#[test]
fn a_contradicting_key_is_discarded() {
    let batman: &[&[Value]] = &[&["Batman".into(), "DC".into()]];
    let columns = [T, YEAR].concat();
    for line in
        ["1,Superman,DC,reporter,1938", "1,Batman,Marvel,detective,1939", "'Superman','DC','x',1"]
    {
        assert_eq!(read(&columns, batman, line), [Json::Null], "{line}");
    }
    for line in
        ["1,Batman,DC,detective,1939", "1,Batman,,detective,1939", "1 Batman,detective,1939"]
    {
        assert_eq!(read(&columns, batman, line), [json!(["detective", 1939])], "{line}");
    }
    // An empty field may be the empty text or NULL.
    let none: &[&[Value]] =
        &[&["".into(), Value::Null], &[Value::Null, "".into()], &["".into(), "".into()]];
    for content in ["2,,,a,1\n1,,,b,2\n3,,,c,3", "1,,,a,1\n2,,,b,2\n3,,,c,3"] {
        assert_eq!(read(&columns, none, content), [Json::Null, Json::Null, Json::Null]);
    }
}

#[test]
fn an_empty_field_is_not_an_answer_and_an_empty_text_may_be_one() {
    let k: &[&[Value]] = &[&["K".into()]];
    for nothing in ["[[[[", "", "1 K,[[[[", "1 K,''"] {
        let read = read(SPORTS, k, nothing);
        assert!(read[0].is_null() || read[0][0].is_null(), "{nothing}: {read:?}");
    }
    for none in ["1 K,none", "1 K,[]", "none"] {
        assert_eq!(read(SPORTS, k, none), [json!([[]])], "{none}");
    }
    let cell = |toml: &str, content: &str| read(toml, k, content)[0][0].clone();
    assert_eq!(cell(T, "1 K,\"\""), json!(""));
    assert_eq!(cell(T, "{\"rows\":[{\"row\":\"1 K\",\"cells\":{\"t\":\"\"}}]}"), json!(""));
    assert_eq!(cell(T, "1 K,"), Json::Null);
    assert_eq!(cell(T, "1 K,-"), Json::Null);
    let own = [T, "unknown = [\"\", \"no idea\"]\n"].concat();
    assert_eq!(cell(&own, "1 K,\"\""), Json::Null);
    assert_eq!(cell(&own, "1 K,No idea"), Json::Null);
    assert_eq!(cell(&own, "1 K,-"), json!("-"));
}

/// The words for "unknown" are not part of the question: stored answers are read by the current
/// words, without requests.
#[test]
fn stored_answers_are_read_by_the_words_for_unknown() {
    let endpoint = Endpoint::start_with(|column, key| match column {
        "motto" if key[0] == "Zed" => "-".into(),
        _ => true_value(column, key),
    });
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let state = || {
        project.query_rows(
            "SELECT l.motto, h.state FROM llm AS l JOIN hqdl_cell AS h
               ON h.key = json_array(l.name, l.full_name) AND h.\"column\" = 'motto'
             WHERE l.name = 'Zed'",
        )
    };
    assert_eq!(state(), [[Json::Null, json!("unknown")]]);
    project.write_spec(&heroes_spec().replace("[limits]", "unknown = [\"?\"]\n[limits]"));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(state(), [[json!("-"), json!("ok")]]);
    project.write_spec(&heroes_spec());
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(state(), [[Json::Null, json!("unknown")]]);
    assert_eq!(endpoint.request_count(), asked);
}

/// Labels need far fewer tokens than keys, both planned and actual.
#[test]
fn labels_cost_less_than_keys() {
    let tokens = |echo: &str| {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project.execute_sql(
            "UPDATE hero SET full_name = 'Sir ' || name || ' of the Long and Winding Road ' || id",
        );
        project.write_spec(
            &heroes_spec().replace("test-model", "gpt-4o-mini").replace("format", echo),
        );
        let planned = project.run_plan(&["--columns", "born"])["totals"]["output_tokens"].as_u64();
        project.run_materialize(&["--columns", "born"]);
        (planned.unwrap(), endpoint.billed_tokens().1)
    };
    let (short, full) = (tokens("format"), tokens("echo = \"full\"\nformat"));
    assert!(short.0 * 10 <= full.0 * 6 && short.1 * 10 <= full.1 * 6, "{short:?} {full:?}");
    for (planned, spent) in [short, full] {
        assert!(planned.abs_diff(spent) * 100 <= spent * 15, "{short:?} {full:?}");
    }
}
