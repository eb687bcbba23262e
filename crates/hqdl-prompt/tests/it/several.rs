//! Tests of several questions about a value, a text, or each of several values.

use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::completion::FinishReason;
use hqdl_prompt::{AnswerForm, PromptFrame, Question, RowOutcome};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

use crate::forms::ATTACKS;
use crate::row_form::column;

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn value(text_of: &str) -> Row {
    Row { key: vec![text(text_of)], context: Vec::new() }
}

/// A boolean, a number and one of two labels.
fn of_values() -> Expansion {
    Expansion {
        task: Task::Value,
        columns: vec![
            column("answer", Type::Boolean, "Is it large?", &[], false),
            column("answer_2", Type::Integer, "Since when?", &[], false),
            column("answer_3", Type::Text, "Which side?", &["left", "right"], false),
        ],
        ..Expansion::new_ad_hoc("values", vec!["value".to_owned()])
    }
}

fn of_texts() -> Expansion {
    Expansion {
        task: Task::Text,
        columns: vec![
            column("answer", Type::Boolean, "Was it\ngood?", &[], false),
            column("answer_2", Type::Text, "What did they eat?", &[], true),
            column("answer_3", Type::Real, "What did it cost?", &[], false),
        ],
        context: vec!["text".to_owned()],
        ..Expansion::new_ad_hoc("documents", vec!["document".to_owned()])
    }
}

#[test]
fn several_questions_about_a_text_show_it_once() {
    let frame = PromptFrame::new(&of_texts(), &[0, 1, 2], Format::Json);
    let row = Row { key: vec![text("Good… #0123")], context: vec![text("Good soup.")] };
    let prompt = frame.build_prompt([&row]);
    assert_eq!(
        &*prompt.system,
        "Answer the questions about the text. Use only the text. Answer with JSON: {\"answer\": \
         true, \"answer_2\": [\"your answer\"], \"answer_3\": 1.5}, with null if the text does \
         not say."
    );
    assert_eq!(
        prompt.user,
        "Text:\n\"Good soup.\"\n\nQuestions:\n\"answer\": Was it good?\n\"answer_2\": What did \
         they eat?\n\"answer_3\": What did it cost?"
    );
    assert_eq!((prompt.answer_form, prompt.temperature), (AnswerForm::Single, Some(0.0)));
}

#[test]
fn several_short_questions_about_values_are_answered_in_lines() {
    let rows = [value("Oslo"), value("Bergen")];
    let prompt = PromptFrame::new(&of_values(), &[0, 1, 2], Format::Json).build_prompt(&rows);
    assert_eq!(
        &*prompt.system,
        "Answer the questions about each value. Answer with JSON: {\"rows\": [\"1 Abc,true,12,one \
         of the options\", \"2 Def,false,7,another option\"]}, one entry for each value: its \
         number and word as given, and the answers in the order of the questions, with commas \
         between them, or ? for what you do not know.\nOptions of \"answer_3\", copied as they \
         are: [\"left\",\"right\"]"
    );
    assert_eq!(
        prompt.user,
        "1 Oslo: \"Oslo\"\n2 Bergen: \"Bergen\"\n\nQuestions:\n\"answer\": Is it large?\n\
         \"answer_2\": Since when?\n\"answer_3\": Which side?"
    );
    assert_eq!(prompt.answer_form, AnswerForm::Lines);
    // A text needs an array.
    let mut long = of_values();
    long.columns.push(column("answer_4", Type::Text, "Why?", &[], true));
    let arrays = PromptFrame::new(&long, &[0, 3], Format::Json).build_prompt(&rows);
    assert_eq!(arrays.answer_form, AnswerForm::Arrays);
    assert!(arrays.system.contains("[\"1 Abc\", true, [\"your answer\"]]"), "{}", arrays.system);
    let question = Question::parse(&arrays.system, &arrays.user).unwrap();
    assert!(question.columns[1].many && question.columns[0].data_type == "boolean");
    let answer = question.format_answer(|_, c| if c.many { json!(["a, b"]) } else { json!(false) });
    assert_eq!(answer, r#"{"rows":[["1 Oslo",false,["a, b"]],["2 Bergen",false,["a, b"]]]}"#);
}

/// No value, text, question or option can change another part of the prompt.
#[test]
fn any_values_questions_and_options_can_be_parsed() {
    for attack in ATTACKS {
        let mut values = of_values();
        values.columns[1] = column("answer_2", Type::Integer, attack, &[], false);
        let options = ["left", attack];
        values.columns[2] = column("answer_3", Type::Text, "Which side?", &options, false);
        let mut texts = of_texts();
        texts.columns[1] = column("answer_2", Type::Text, attack, &options, true);
        let long = format!("{attack} {}", "and more words ".repeat(20));
        let other = value("Oslo");
        let of_text = Row { key: vec![text("x #1")], context: vec![text(attack)] };
        let asked = [
            (&values, vec![value(attack)], attack),
            (&values, vec![value(&long)], &long),
            (&values, vec![value(attack), other], attack),
            (&texts, vec![of_text], attack),
        ];
        for (expansion, rows, shown) in asked {
            let prompt = PromptFrame::new(expansion, &[0, 1, 2], Format::Json).build_prompt(&rows);
            let read = Question::parse(&prompt.system, &prompt.user)
                .unwrap_or_else(|| panic!("{}\n{}", prompt.system, prompt.user));
            assert_eq!(read.rows.len(), rows.len());
            assert_eq!(read.rows[0].key, [json!(shown)]);
            assert_eq!(read.columns.len(), 3);
            for (read, asked) in read.columns.iter().zip(&expansion.columns) {
                assert_eq!((&read.name, read.many), (&asked.name, asked.many.is_some()));
                assert_eq!(read.data_type, asked.kind.name());
                assert_eq!(read.values, asked.values.as_ref().map(|list| list.values.clone()));
                assert!(!read.about.contains('\n'));
            }
        }
    }
}

fn outcomes(expansion: &Expansion, rows: &[Row], content: &str) -> Vec<RowOutcome> {
    let keys = RequestKeys::new(rows.iter().map(|row| row.key.as_slice()));
    let checkers: Vec<Checker> = expansion.columns.iter().map(Checker::new).collect();
    let checkers: Vec<&Checker> = checkers.iter().collect();
    let frame = PromptFrame::new(expansion, &[0, 1, 2], Format::Json);
    frame.parse_answer(content, FinishReason::Stop, &keys, &["value".to_owned()], &checkers)
}

#[test]
fn lines_of_several_answers_are_assigned_to_rows_and_columns() {
    let expansion = of_values();
    let rows = [value("Oslo"), value("Bergen"), value("Cork")];
    let read = |content: &str| -> Vec<Option<Vec<State>>> {
        let states = |outcome: RowOutcome| match outcome {
            RowOutcome::Answered(cells) => Some(cells.iter().map(|cell| cell.state).collect()),
            RowOutcome::Failed { .. } => None,
        };
        outcomes(&expansion, &rows, content).into_iter().map(states).collect()
    };
    let ok = Some(vec![State::Ok; 3]);
    let right =
        r#"{"rows":["1 Oslo,true,1048,left","2 Bergen,false,1070,right","3 Cork,true,?,left"]}"#;
    let unknown = Some(vec![State::Ok, State::Unknown, State::Ok]);
    assert_eq!(read(right), [ok.clone(), ok.clone(), unknown.clone()]);
    // Shifted, repeated, forged and short lines answer nothing.
    let shifted = right.replace("2 Bergen", "2 Cork");
    assert_eq!(read(&shifted), [ok.clone(), None, unknown.clone()]);
    let doubled = right.replace("\"3 Cork", "\"2 Bergen,true,1,left\",\"3 Cork");
    assert_eq!(read(&doubled), [ok.clone(), None, unknown.clone()]);
    let forged = right.replace("\"3 Cork", "\"9 Rome,true,1,left\",\"3 Cork");
    assert_eq!(read(&forged), [ok.clone(), ok.clone(), unknown.clone()]);
    let short = right.replace("2 Bergen,false,1070,right", "2 Bergen,1070,right");
    assert_ne!(read(&short)[1], ok);
    let [_, RowOutcome::Answered(cells), _] = &outcomes(&expansion, &rows, right)[..] else {
        panic!()
    };
    assert_eq!(cells[2].value, CellValue::One(text("right")));
}

#[test]
fn one_object_of_several_answers_is_read_by_its_names() {
    let rows = [value("Oslo")];
    let read = |content: &str| outcomes(&of_values(), &rows, content).remove(0);
    let RowOutcome::Answered(cells) = read(r#"{"answer_2":7,"answer":false,"answer_3":null}"#)
    else {
        panic!()
    };
    let states: Vec<State> = cells.iter().map(|cell| cell.state).collect();
    assert_eq!(states, [State::Ok, State::Ok, State::Unknown]);
    assert_eq!(cells[1].value, CellValue::One(Value::Integer(7)));
    let twice = r#"{"answer":true,"answer_2":1}{"answer":false,"answer_2":1}"#;
    assert!(!matches!(read(twice), RowOutcome::Answered(cells) if cells[0].state == State::Ok));
}

const NAMES: &str = "Oslo Paris Rome Madrid Berlin Vienna Prague Lisbon Dublin London Athens Cairo \
    Lagos Nairobi Tunis Lima Quito Bogota Havana Boston Chicago Denver Dallas Houston Miami Lyon \
    Nice Turin Milan Naples Palermo Genoa Porto Seville Malaga Ghent Bruges Basel Bern Zurich Graz \
    Linz Brno Gdansk Krakow Riga Tallinn Vilnius Helsinki Turku";

/// Compares input and output tokens per value, at 1, 10 and 50 rows per request, in the current
/// form and in a table.
#[test]
fn forms_need_few_tokens() {
    let tokenizer = Tokenizer::for_model("gpt-4");
    let cell = |column: &hqdl_prompt::AskedColumn| match column.data_type.as_str() {
        "boolean" => json!(true),
        "integer" => json!(1048),
        "text" if column.many => json!(["Flight", "Strength"]),
        "text" => column.values.as_ref().map_or_else(|| json!("Norway"), |v| json!(v[0])),
        _ => Json::Null,
    };
    let heroes = crate::row_form::heroes();
    let mut long = of_values();
    long.columns.push(column("answer_4", Type::Text, "Why?", &[], false));
    long.columns.push(column("answer_5", Type::Text, "What else?", &[], true));
    let forms: [(&str, &Expansion, &[usize], f64); 6] = [
        ("one text", &long, &[3], 0.6),
        ("a number, a text and a list", &long, &[1, 3, 4], 0.6),
        ("one boolean", &of_values(), &[0], 0.5),
        ("one label", &of_values(), &[2], 0.5),
        ("three short columns", &of_values(), &[0, 1, 2], 0.6),
        ("five columns of a spec", &heroes, &[0, 1, 2, 3, 4], 1.0),
    ];
    for (name, expansion, columns, most) in forms {
        for n in [1, 10, 50] {
            let row = |name: &str| Row {
                context: vec![text("x"); expansion.context.len()],
                ..value(name)
            };
            let rows: Vec<Row> = NAMES.split_whitespace().take(n).map(row).collect();
            let count = |frame: PromptFrame| {
                let prompt = frame.build_prompt(&rows);
                let question = Question::parse(&prompt.system, &prompt.user).unwrap();
                let answer = question.format_answer(|_, column| cell(column));
                let around = frame.count_tokens_without_rows(&prompt, tokenizer);
                let input = around + tokenizer.count_tokens(&prompt.user);
                let each = |tokens: u64| tokens as f64 / n as f64;
                (each(input), each(tokenizer.count_tokens(&answer)))
            };
            let (input, output) = count(PromptFrame::new(expansion, columns, Format::Json));
            let (before, out) = count(PromptFrame::for_table(expansion, columns, Format::Json));
            println!("{name}, {n}: {input:.1} in, {output:.1} out; table {before:.1}, {out:.1}");
            assert!(input <= before && output <= out, "{name}, {n}");
            assert!(n == 1 || output <= most * out, "{name}, {n}: {output}, {out}");
        }
    }
}
