//! Tests of requests for the columns of one row: their content, that they can be parsed, and which
//! row an answer belongs to.

use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::completion::FinishReason;
use hqdl_prompt::{AnswerForm, PromptFrame, Question, RowOutcome};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Column, Expansion, Format, Shot, Type, ValueList};
use hqdl_values::Row;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::key::{ColumnIdentity, ListHash};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

use crate::forms::ATTACKS;

pub fn column(name: &str, kind: Type, about: &str, options: &[&str], many: bool) -> Column {
    let values: Vec<String> = options.iter().map(|v| (*v).to_owned()).collect();
    let values = (!values.is_empty()).then(|| ValueList {
        hash: ListHash::new(&values),
        values,
        open: false,
    });
    let meaning = ColumnIdentity {
        key: vec!["hero".to_owned()],
        column: name.to_owned(),
        kind: kind.name().to_owned(),
        about: about.to_owned(),
        many,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    Column::new_ad_hoc(kind, about.to_owned(), values, meaning)
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// Characters with a colour of two columns, a number and a list.
pub fn heroes() -> Expansion {
    Expansion {
        about: "Characters of comics.".to_owned(),
        columns: vec![
            column("eyes", Type::Text, "colour of the eyes", &["Blue", "Red"], false),
            column("hair", Type::Text, "colour of the hair", &["Blue", "Red"], false),
            column("height", Type::Integer, "height in cm", &[], false),
            column("powers", Type::Text, "what they can do", &[], true),
            column("born", Type::Date, "", &[], false),
        ],
        context: vec!["real name".to_owned()],
        ..Expansion::new_ad_hoc("llm", vec!["hero".to_owned()])
    }
}

fn hero(name: &str, real: &str) -> Row {
    Row { key: vec![text(name)], context: vec![text(real)] }
}

fn all_columns(expansion: &Expansion) -> Vec<usize> {
    (0..expansion.columns.len()).collect()
}

#[test]
fn a_single_row_needs_no_table() {
    let mut expansion = heroes();
    expansion.columns[2].example = Some("188".to_owned());
    expansion.shots = vec![
        Shot {
            key: vec![text("Nightwing")],
            context: vec![text("Dick Grayson")],
            cells: vec![CellValue::One(text("Blue"))],
        },
        Shot { key: vec![text("Robin")], context: Vec::new(), cells: Vec::new() },
    ];
    let frame = PromptFrame::new(&expansion, &all_columns(&expansion), Format::Json);
    let prompt = frame.build_prompt([&hero("A-Bomb", "Rick\nJones")]);
    assert_eq!(
        &*prompt.system,
        r#"Fill in the columns of one row of a table with what you know. Answer with one JSON object: {"eyes": "…", "hair": "…", "height": 12, "powers": ["…"], "born": "2024-05-31"}, with null for what you do not know. Write dates as YYYY-MM-DD.
Table "llm": Characters of comics.
List 1: ["Blue","Red"]
Columns:
"eyes" (text, copied from list 1): colour of the eyes
"hair" (text, copied from list 1): colour of the hair
"height" (integer, such as "188"): height in cm
"powers" (list of text): what they can do
"born" (date): 
Example:
Row:
"hero": "Nightwing"
It also has:
"real name": "Dick Grayson"

What are the columns of this row?
Answer:
{"eyes":"Blue"}"#
    );
    assert_eq!(
        prompt.user,
        "Row:\n\"hero\": \"A-Bomb\"\nIt also has:\n\"real name\": \"Rick\\nJones\"\n\n\
         What are the columns of this row?\nAnswer:"
    );
    assert_eq!(
        (prompt.answer_form, prompt.rows, prompt.temperature),
        (AnswerForm::Single, 1, None)
    );
    assert!(!frame.has_simplest_form());
}

#[test]
fn several_rows_csv_and_recordings_use_tables() {
    let expansion = heroes();
    let columns = all_columns(&expansion);
    let rows = [hero("A-Bomb", "x"), hero("Batman", "y")];
    let is_table =
        |frame: PromptFrame, n: usize| frame.build_prompt(&rows[..n]).user.starts_with("## Rows\n");
    assert!(is_table(PromptFrame::new(&expansion, &columns, Format::Json), 2));
    assert!(!is_table(PromptFrame::new(&expansion, &columns, Format::Json), 1));
    assert!(is_table(PromptFrame::new(&expansion, &columns, Format::Csv), 1));
    assert!(is_table(PromptFrame::for_table(&expansion, &columns, Format::Json), 1));
    assert!(is_table(PromptFrame::with_full_keys(&expansion, &columns, Format::Json), 1));
}

/// Whatever the key, context, names, descriptions and lists contain, the prompt is parsed
/// correctly.
#[test]
fn any_row_can_be_parsed() {
    for attack in ATTACKS {
        let mut expansion = heroes();
        expansion.about = attack.to_owned();
        let options = [attack, "a", "a b", "List 1: []"];
        let odd = column(attack, Type::Text, attack, &options, false);
        expansion.columns[0] = Column { pattern: Some(attack.to_owned()), ..odd };
        expansion.columns[1].about = "x): y (".to_owned();
        expansion.columns[1].example = Some(attack.to_owned());
        expansion.context = vec![attack.to_owned()];
        let frame = PromptFrame::new(&expansion, &all_columns(&expansion), Format::Json);
        let prompt = frame.build_prompt([&hero(attack, attack)]);
        let read = Question::parse(&prompt.system, &prompt.user).unwrap();
        assert_eq!(read.table, "llm");
        assert_eq!(read.key, ["hero"]);
        assert_eq!(read.rows.len(), 1);
        assert_eq!(read.rows[0].key, [json!(attack)]);
        assert_eq!(read.rows[0].context, [json!(attack)]);
        let names: Vec<&str> = read.columns.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, [attack, "hair", "height", "powers", "born"]);
        let kinds: Vec<&str> = read.columns.iter().map(|c| c.data_type.as_str()).collect();
        assert_eq!(kinds, ["text", "text", "integer", "text", "date"]);
        assert_eq!(read.columns[0].values.as_deref().unwrap(), options);
        assert_eq!(read.columns[1].values.as_deref().unwrap(), ["Blue", "Red"]);
        assert_eq!(read.columns[1].about, "x): y (");
        assert!(read.columns[3].many && !read.columns[2].many);
        let answer = read.format_answer(|_, column| match column.data_type.as_str() {
            "integer" => json!(188),
            "date" => Json::Null,
            _ if column.many => json!(["Flight"]),
            _ => json!("a"),
        });
        let RowOutcome::Answered(cells) = read_answer(&expansion, attack, &answer) else {
            panic!("{answer}")
        };
        let states: Vec<State> = cells.iter().map(|cell| cell.state).collect();
        let others = [State::NotInList, State::Ok, State::Ok, State::Unknown];
        assert_eq!(states, [&[State::Ok][..], &others].concat(), "{answer}");
    }
}

fn read_answer(expansion: &Expansion, key: &str, content: &str) -> RowOutcome {
    read_finished(expansion, key, content, FinishReason::Stop)
}

fn read_finished(
    expansion: &Expansion,
    key: &str,
    content: &str,
    finish: FinishReason,
) -> RowOutcome {
    let key = [text(key)];
    let keys = RequestKeys::new([key.as_slice()]);
    let checkers: Vec<Checker> = expansion.columns.iter().map(Checker::new).collect();
    let checkers: Vec<&Checker> = checkers.iter().collect();
    let frame = PromptFrame::new(expansion, &all_columns(expansion), Format::Json);
    frame.parse_answer(content, finish, &keys, &["hero".to_owned()], &checkers).remove(0)
}

#[test]
fn a_flat_object_is_read_and_one_of_another_row_is_not() {
    let expansion = heroes();
    let whole =
        r#"{"eyes":"blue","hair":null,"height":188,"powers":["a","b"],"born":"1938-06-01"}"#;
    let expected = [State::Ok, State::Unknown, State::Ok, State::Ok, State::Ok];
    for content in [
        whole.to_owned(),
        format!("<think>hm</think>\n{whole}\n"),
        format!("```json\n{whole}\n```"),
        format!("Here it is: {whole}"),
        format!("{{\"rows\":[{{\"row\":\"1 Bomb\",\"cells\":{whole}}}]}}"),
        whole.replace('{', "{\"hero\":\"A-Bomb\","),
    ] {
        let RowOutcome::Answered(cells) = read_answer(&expansion, "A-Bomb", &content) else {
            panic!("{content}")
        };
        let states: Vec<State> = cells.iter().map(|cell| cell.state).collect();
        assert_eq!(states, expected, "{content}");
    }
    // Columns that the object lacks are requested again; the others are stored.
    let RowOutcome::Answered(cells) = read_answer(&expansion, "A-Bomb", r#"{"height":188}"#) else {
        panic!()
    };
    assert_eq!((cells[0].state, cells[2].state), (State::Invalid, State::Ok));
    let twice = whole.replace("\"height\":188", "\"height\":188,\"height\":190");
    let RowOutcome::Answered(cells) = read_answer(&expansion, "A-Bomb", &twice) else { panic!() };
    assert_eq!((cells[2].state, cells[3].state), (State::Invalid, State::Ok));
    for content in [
        String::new(),
        "{}".to_owned(),
        whole.replace('{', "{\"hero\":\"Batman\","),
        format!("{{\"rows\":[{{\"row\":\"2 Batman\",\"cells\":{whole}}}]}}"),
        format!("{whole}\nNo: {}", whole.replace("188", "190")),
        format!("```\n{whole}\n```\n```\n{}\n```", whole.replace("188", "190")),
        format!("{whole}\nNo: {}", &whole[..whole.len() - 9]),
    ] {
        match read_answer(&expansion, "A-Bomb", &content) {
            RowOutcome::Failed { .. } => {}
            RowOutcome::Answered(cells) => {
                assert!(cells.iter().all(|cell| cell.state == State::Invalid), "{content}");
            }
        }
    }
}

/// A small model repeats an item of a list until the answer is truncated: the members before the
/// list are complete.
#[test]
fn the_closed_members_of_a_truncated_object_are_read() {
    let expansion = heroes();
    let whole = r#"{"eyes":"Blue","height":188,"born":"1938-06-01","hair":null,"powers":["a","#;
    let states = |content: &str, finish: FinishReason| -> Vec<State> {
        match read_finished(&expansion, "A-Bomb", content, finish) {
            RowOutcome::Answered(cells) => cells.iter().map(|cell| cell.state).collect(),
            RowOutcome::Failed { .. } => vec![State::Invalid; 5],
        }
    };
    let (ok, none, unknown) = (State::Ok, State::Invalid, State::Unknown);
    for (end, expected) in [
        (whole, [ok, unknown, ok, none, ok]),
        (r#"{"eyes":"Blue","height":188"#, [ok, none, none, none, none]),
        (r#"{"eyes":"Blue","height":188,"#, [ok, none, ok, none, none]),
        (r#"{"eyes":"Blue","height":188,"hair":null"#, [ok, none, ok, none, none]),
        (r#"{"eyes":"Blue","hair":"Re"#, [ok, none, none, none, none]),
        (r#"{"eyes":"Blue","hair":"Red""#, [ok, ok, none, none, none]),
        (r#"{"powers":["a","b"]"#, [none, none, none, ok, none]),
        (r#"{"powers":["a","b""#, [none; 5]),
        // Two answers, another row, text before the object, and a broken object.
        (r#"{"eyes":"Blue","eyes":"Red","height":1,"#, [none, none, ok, none, none]),
        (r#"{"hero":"Batman","eyes":"Blue","height":1,"#, [none; 5]),
        (r#"{"eyes":"Red"} No: {"eyes":"Blue","height":1,"#, [none; 5]),
        (r#"{"eyes":"Blue" "height":1,"#, [none; 5]),
        ("{", [none; 5]),
        ("", [none; 5]),
    ] {
        for finish in [FinishReason::Truncated, FinishReason::Unknown] {
            assert_eq!(states(end, finish), expected, "{end}");
        }
    }
    // Wherever an answer is truncated, it yields its own cells or none.
    let RowOutcome::Answered(all) = read_answer(&expansion, "A-Bomb", &format!("{whole}\"b\"]}}"))
    else {
        panic!()
    };
    for end in 0..whole.len() {
        let RowOutcome::Answered(cells) =
            read_finished(&expansion, "A-Bomb", &whole[..end], FinishReason::Truncated)
        else {
            continue;
        };
        for (cell, right) in cells.iter().zip(&all) {
            assert!(cell.state == State::Invalid || cell == right, "{}", &whole[..end]);
        }
    }
}

/// The items of a truncated list are not rows, whatever the member is called.
#[test]
fn a_truncated_list_is_not_an_answer() {
    let expansion = Expansion {
        columns: vec![column("powers", Type::Text, "", &["Flight", "Magic", "Speed"], true)],
        ..heroes()
    };
    let mut cuts = 0;
    for (before, after) in [
        (r#"{"powers":"#, "}"),
        (r#"{"power":"#, "}"),
        (r#"{"rows":"#, "}"),
        (r#"{"rows":[{"powers":"#, "}]}"),
        (r#"{"answer":{"powers":"#, "}}"),
        (r#"{"cells":{"powers":"#, "}}"),
        (r#"{"key":["A-Bomb"],"powers":"#, "}"),
        ("", ""),
        ("```json\n{\"powers\":", "}\n```"),
    ] {
        for list in [
            r#"["Flight","Magic","Speed"]"#,
            r#"[ "Flight", "Magic" ]"#,
            "[\n  \"Flight\",\n  \"Speed\"\n]",
            r#"["A-Bomb, Flight","Magic"]"#,
            r#"["1,Flight","Magic"]"#,
        ] {
            // If lines are expected, these are lines with the key and a value.
            let has_keys = list.contains("1,Flight") || list.contains("A-Bomb");
            if has_keys && matches!(before, "" | r#"{"rows":"#) {
                continue;
            }
            let whole = format!("{before}{list}{after}");
            // Until the list is closed, items may be missing.
            for end in 0..before.len() + list.len() {
                for finish in [FinishReason::Truncated, FinishReason::Unknown, FinishReason::Stop] {
                    let answer = read_finished(&expansion, "A-Bomb", &whole[..end], finish);
                    let is_empty = match &answer {
                        RowOutcome::Answered(cells) => !cells[0].state.has_value(),
                        RowOutcome::Failed { .. } => true,
                    };
                    assert!(is_empty, "{finish:?} {}: {answer:?}", &whole[..end]);
                    cuts += 1;
                }
            }
        }
    }
    assert!(cuts > 4000, "{cuts}");
}

#[test]
fn a_set_that_repeats_its_items_is_cut_off() {
    let expansion = heroes();
    let frame = PromptFrame::new(&expansion, &all_columns(&expansion), Format::Json);
    let prompt = frame.build_prompt([&hero("A-Bomb", "x")]);
    let list =
        |items: &[&str]| format!(r#"{{"eyes": "Blue", "powers": ["{}"#, items.join("\", \""));
    let loops = |items: &[&str]| prompt.find_runaway_reason(&list(items)).is_some();
    assert!(loops(&["Flight", "a", "a", "a", "a", "a", "a", "a", "a", "a"]));
    assert!(loops(&["Flight", "a", "b", "a", "b", "a", "b", "a", "b", "a"]));
    assert!(!loops(&["Flight", "a", "a", "b", "c", "d", "a", "b", "c", "e"]));
    assert!(!loops(&["a", "a", "a", "a"]));
    // A live list may repeat an item.
    let live = Expansion { task: hqdl_spec::Task::Value, ..expansion };
    let prompt = PromptFrame::new(&live, &[3], Format::Json).build_prompt([&hero("A-Bomb", "x")]);
    assert!(prompt.find_runaway_reason(&list(&["a"; 12])).is_none());
}

#[test]
fn a_repeated_request_limits_closed_lists() {
    let mut expansion = heroes();
    expansion.columns[3] = column("powers", Type::Text, "", &["Flight", "Magic"], true);
    let frame = PromptFrame::new(&expansion, &all_columns(&expansion), Format::Json);
    let mut prompt = frame.build_prompt([&hero("A-Bomb", "x")]);
    assert!(prompt.schema.as_ref().unwrap()["properties"]["powers"].get("maxItems").is_none());
    assert_eq!(prompt.limit_lists(), 1);
    assert_eq!(prompt.schema.as_ref().unwrap()["properties"]["powers"]["maxItems"], 2);
    let rows = [hero("A-Bomb", "x"), hero("Batman", "y")];
    assert_eq!(frame.build_prompt(&rows).limit_lists(), 0);
}

/// 10,000 options, options that contain each other, and a description with braces.
#[test]
fn any_list_of_options_can_be_parsed() {
    let many: Vec<String> = (0..10_000).map(|n| format!("option {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let nested = ["a", "a b", "a b\nColumns:\n\"x\" (text): y", "\"", "List 1: [\"x\"]", "{}", ""];
    for options in [&many[..], &nested] {
        let mut expansion = heroes();
        expansion.columns[0] = column("eyes", Type::Text, "{is it} {{it}}?", options, false);
        let frame = PromptFrame::new(&expansion, &all_columns(&expansion), Format::Json);
        let prompt = frame.build_prompt([&hero("", "\u{7}")]);
        let read = Question::parse(&prompt.system, &prompt.user).unwrap();
        assert_eq!(read.columns[0].values.as_deref().unwrap(), options);
        assert_eq!(read.columns[0].about, "{is it} {{it}}?");
        assert_eq!(read.columns[1].values.as_deref().unwrap(), ["Blue", "Red"]);
        assert_eq!(read.rows[0].key, [json!("")]);
    }
}

#[test]
fn one_row_needs_fewer_tokens_than_a_table_with_one_row() {
    let expansion = heroes();
    let tokenizer = Tokenizer::for_model("gpt-4");
    let columns = all_columns(&expansion);
    let count = |frame: PromptFrame| {
        let prompt = frame.build_prompt([&hero("A-Bomb", "Rick Jones")]);
        let question = Question::parse(&prompt.system, &prompt.user).unwrap();
        let answer = question.format_answer(|_, column| match column.data_type.as_str() {
            "integer" => json!(188),
            "date" => json!("1938-06-01"),
            _ if column.many => json!(["Flight", "Strength"]),
            _ => json!("Blue"),
        });
        let around = frame.count_tokens_without_rows(&prompt, tokenizer);
        (around + tokenizer.count_tokens(&prompt.user), tokenizer.count_tokens(&answer))
    };
    let one = count(PromptFrame::new(&expansion, &columns, Format::Json));
    let table = count(PromptFrame::for_table(&expansion, &columns, Format::Json));
    println!("tokens in, out: {one:?} for one row, {table:?} in a table");
    assert!(one.0 < table.0 && one.1 < table.1, "{one:?}, {table:?}");
}

#[test]
fn a_copied_example_row_is_not_an_answer() {
    let columns = vec![
        column("name", Type::Text, "the name", &[], false),
        column("powers", Type::Text, "the powers", &[], true),
        column("year", Type::Integer, "the year", &[], false),
    ];
    let expansion = Expansion { columns, ..heroes() };
    let state_of = |cell: &str| {
        let content = format!("{{\"name\": \"{cell}\", \"powers\": [\"{cell}\"], \"year\": 12}}");
        let RowOutcome::Answered(answers) = read_answer(&expansion, "Batman", &content) else {
            panic!("{content}")
        };
        answers.iter().map(|answer| answer.state).collect::<Vec<_>>()
    };
    let prompt = PromptFrame::new(&expansion, &[0, 1, 2], Format::Json)
        .build_prompt([&hero("Batman", "Bruce Wayne")]);
    assert!(prompt.system.contains("{\"name\": \"…\", \"powers\": [\"…\"], \"year\": 12}"));
    for copied in ["…", " … ", "..."] {
        assert_eq!(state_of(copied), [State::Invalid, State::Invalid, State::Ok]);
    }
    assert_eq!(state_of("your answer"), [State::Ok; 3]);
}
