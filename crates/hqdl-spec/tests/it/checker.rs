//! Tests of the values that a column accepts: types, value lists, lists.

use hqdl_spec::checker::{Checker, is_refusal};
use hqdl_spec::{Column, Type};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::key::ColumnIdentity;
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

use hqdl_testkit::fixture::Fixture;

/// Returns a text as a value of a type, as JSON; `None` if it is not one.
fn coerced(kind: Type, text: &str) -> Option<Json> {
    Checker::parse_value(kind, text).map(|(value, _)| value.to_json())
}

/// Returns true if the text was accepted unchanged.
fn as_it_stands(kind: Type, text: &str) -> bool {
    matches!(Checker::parse_value(kind, text), Some((_, None)))
}

fn all(kind: Type, good: &[(&str, Json)], bad: &[&str]) {
    for (text, value) in good {
        assert_eq!(coerced(kind, text), Some(value.clone()), "{text:?} as {}", kind.name());
        let padded = format!(" \t{text}\n");
        assert_eq!(coerced(kind, &padded), Some(value.clone()), "{padded:?}");
    }
    for text in bad {
        assert_eq!(coerced(kind, text), None, "{text:?} as {}", kind.name());
    }
}

#[test]
fn integers() {
    all(
        Type::Integer,
        &[
            ("42", json!(42)),
            ("-7", json!(-7)),
            ("+5", json!(5)),
            ("007", json!(7)),
            ("0", json!(0)),
            ("9223372036854775807", json!(i64::MAX)),
            ("1,234", json!(1234)),
            ("-1,234,567", json!(-1_234_567)),
            ("42.0", json!(42)),
            ("42.", json!(42)),
            ("1,234.00", json!(1234)),
            ("1e3", json!(1000)),
            ("1.5e3", json!(1500)),
        ],
        &[
            "",
            ".",
            "+",
            "-",
            "-.",
            ",",
            "e",
            "5 million",
            "about 5",
            "5.5",
            "1,23",
            "12,34,567",
            "1,,234",
            ",123",
            "1.234,5",
            "NaN",
            "inf",
            "-inf",
            "infinity",
            "0x10",
            "1_000",
            "1e400",
            "five",
            "5%",
            "$5",
            "1 000",
            "٣",
            "½",
            "9223372036854775808",
            "1,1e3",
            "1-2",
            "--5",
            "1939-05",
            "true",
        ],
    );
    assert!(as_it_stands(Type::Integer, "42"));
    assert!(!as_it_stands(Type::Integer, "1,234"));
    assert!(!as_it_stands(Type::Integer, "42.0"));
}

#[test]
fn reals() {
    all(
        Type::Real,
        &[
            ("1.5", json!(1.5)),
            ("-0.25", json!(-0.25)),
            ("3", json!(3.0)),
            (".5", json!(0.5)),
            ("1e3", json!(1000.0)),
            ("1.5E-3", json!(0.0015)),
            ("1,234.5", json!(1234.5)),
            ("12,345,678", json!(12_345_678.0)),
        ],
        &[
            "",
            ".",
            "+",
            "NaN",
            "nan",
            "inf",
            "-inf",
            "Infinity",
            "1e400",
            "5 million",
            "1,5",
            "1.234,5",
            "1.2.3",
            "12 m",
            "1e",
            "e5",
        ],
    );
    assert!(as_it_stands(Type::Real, "1e3"));
    assert!(!as_it_stands(Type::Real, "1,234.5"));
}

#[test]
fn booleans() {
    for yes in ["true", "True", "TRUE", "1", "yes", "Yes.", "y", "t"] {
        assert_eq!(coerced(Type::Boolean, yes), Some(json!(1)), "{yes}");
    }
    for no in ["false", "False", "0", "no", "No.", "N", "f"] {
        assert_eq!(coerced(Type::Boolean, no), Some(json!(0)), "{no}");
    }
    all(Type::Boolean, &[], &["", "2", "maybe", "true or false", "yes and no", "-1", "1.0"]);
}

#[test]
fn dates_are_converted_to_iso_8601() {
    let day = json!("1985-02-01");
    all(
        Type::Date,
        &[
            ("1985-02-01", day.clone()),
            ("1985-02", json!("1985-02")),
            ("1985", json!("1985")),
            ("1985-02-01T00:00:00Z", day.clone()),
            ("1985-02-01 12:30:00", day.clone()),
            ("1 February 1985", day.clone()),
            ("01 February 1985", day.clone()),
            ("1 Feb 1985", day.clone()),
            ("February 1, 1985", day.clone()),
            ("Feb 1, 1985", day.clone()),
            ("FEBRUARY 1 1985", day.clone()),
            ("1st February 1985", day.clone()),
            ("February 1st, 1985", day.clone()),
            ("1985/02/01", day.clone()),
            ("1985.02.01", day.clone()),
            ("01.02.1985", day.clone()),
            ("19850201", day.clone()),
            ("1985-2-1", day),
            ("24-12-1985", json!("1985-12-24")),
            ("12-24-1985", json!("1985-12-24")),
            ("15-Feb-1985", json!("1985-02-15")),
            ("5-February-1985", json!("1985-02-05")),
            ("August 1st, 1985", json!("1985-08-01")),
            ("August 2nd 1985", json!("1985-08-02")),
            ("21st August 1985", json!("1985-08-21")),
            ("24/12/1985", json!("1985-12-24")),
            ("12/24/1985", json!("1985-12-24")),
            ("05/05/1985", json!("1985-05-05")),
            ("2000-02-29", json!("2000-02-29")),
        ],
        &[
            "",
            "01/02/1985",
            "1/2/1985",
            "01-02-1985",
            "1985-13-1",
            "19851301",
            "19850230",
            "198502",
            "1-Feb-85",
            "1985-13-01",
            "1985-02-30",
            "1900-02-29",
            "1985-00",
            "31/31/1985",
            "yesterday",
            "late 1985",
            "1985-02-01 or 1986-02-01",
            "1985-02-01 to 1985-03-01",
            "1985-1986",
            "24/12/85",
            "24.12.85",
            "5 May 85",
            "198",
            "19850",
            "the 1980s",
        ],
    );
    for iso in ["1985-02-01", "1985-02", "1985"] {
        assert!(as_it_stands(Type::Date, iso));
    }
    assert!(!as_it_stands(Type::Date, "1 February 1985"));
}

#[test]
fn urls_are_absolute() {
    all(
        Type::Url,
        &[
            ("https://example.com/a?b=c#d", json!("https://example.com/a?b=c#d")),
            ("http://example.com", json!("http://example.com")),
            ("example.com/x", json!("https://example.com/x")),
            ("www.example.com", json!("https://www.example.com")),
            ("[Example](https://example.com/x)", json!("https://example.com/x")),
            ("<https://example.com>", json!("https://example.com")),
            (
                "http://en.wikipedia.org/wiki/Jaws_(film)",
                json!("http://en.wikipedia.org/wiki/Jaws_(film)"),
            ),
            (
                "[Jaws](http://en.wikipedia.org/wiki/Jaws_(film))",
                json!("http://en.wikipedia.org/wiki/Jaws_(film)"),
            ),
        ],
        &[
            "",
            "Example",
            "not a url",
            "https://",
            "https://example",
            "ftp://example.com",
            "mailto:a@example.com",
            "a@example.com",
            "https://exa mple.com",
            "/wiki/Jaws",
            "//example.com",
            "example.",
            ".com",
        ],
    );
    assert!(as_it_stands(Type::Url, "https://example.com"));
    assert!(!as_it_stands(Type::Url, "example.com"));
}

#[test]
fn text_is_trimmed_and_otherwise_unchanged() {
    assert_eq!(coerced(Type::Text, "  Ra's  al Ghul "), Some(json!("Ra's  al Ghul")));
}

/// Returns the checker of a column, from the fields of its TOML table.
fn checker(fields: &str) -> Checker {
    let expansion = Fixture::new().only_expansion(&format!(
        "[database]\npath = \"x\"\n[model]\nname = \"test\"\n[[expansion]]\nname = \"llm\"\nsource = \"film\"\nkey = [\"title\"]\n[[expansion.column]]\nname = \"c\"\n{fields}\n"
    ));
    Checker::new(&expansion.columns[0])
}

/// Returns an answer in short form: its value, or its state.
fn short(answer: &Answer) -> Json {
    if answer.state == State::Ok {
        return answer.value.to_json();
    }
    assert_eq!(answer.value, CellValue::Nothing);
    json!({ answer.state.name(): answer.raw })
}

fn reads(checker: &Checker, table: &[(&str, Json, &str)]) {
    for (text, right, note) in table {
        let answer = checker.check_text(text);
        assert_eq!(short(&answer), *right, "{text:?}");
        assert_eq!(answer.repair.as_deref().unwrap_or_default(), *note, "{text:?}");
        if !note.is_empty() {
            assert_eq!(answer.raw.as_deref(), Some(text.trim()), "{text:?}");
        }
    }
}

const CASE: &str = "case matched to the value list";
const SPACING: &str = "spacing matched to the value list";
const SPELLING: &str = "spelling matched to the value list";

#[test]
fn a_closed_list_matches_exactly_then_by_case_spacing_and_similarity() {
    reads(
        &checker(
            "values = ['Marvel Comics', 'DC Comics', 'Dark Horse Comics', 'Image', 'NBC - Heroes']",
        ),
        &[
            ("Marvel Comics", json!("Marvel Comics"), ""),
            (" Marvel Comics ", json!("Marvel Comics"), ""),
            ("marvel COMICS", json!("Marvel Comics"), CASE),
            ("MarvelComics", json!("Marvel Comics"), SPACING),
            ("NBC-Heroes", json!("NBC - Heroes"), SPACING),
            ("NBC Heroes", json!("NBC - Heroes"), SPACING),
            ("Marvel Comisc", json!("Marvel Comics"), SPELLING),
            ("Dark Horse Comic", json!("Dark Horse Comics"), SPELLING),
            ("Marvel", json!({"not_in_list": "Marvel"}), ""),
            ("AC Comics", json!({"not_in_list": "AC Comics"}), ""),
            ("Imge", json!({"not_in_list": "Imge"}), ""),
            (
                "Marvel Comics or DC Comics",
                json!({"not_in_list": "Marvel Comics or DC Comics"}),
                "",
            ),
            ("", json!({"unknown": null}), ""),
            ("?", json!({"unknown": "?"}), ""),
            ("N/A", json!({"unknown": "N/A"}), ""),
            ("I'm sorry, I cannot say.", json!({"refused": "I'm sorry, I cannot say."}), ""),
        ],
    );
}

#[test]
fn a_tie_between_two_values_is_not_in_list() {
    reads(
        &checker(
            "values = ['Brown eyes', 'Brows eyes', 'Green', 'GREEN', 'Blue-Grey', 'Blue Grey']",
        ),
        &[
            ("Browx eyes", json!({"not_in_list": "Browx eyes"}), ""),
            ("Brown eyes", json!("Brown eyes"), ""),
            ("green", json!({"not_in_list": "green"}), ""),
            ("GREEN", json!("GREEN"), ""),
            ("bluegrey", json!({"not_in_list": "bluegrey"}), ""),
            ("blue grey", json!("Blue Grey"), CASE),
        ],
    );
}

#[test]
fn digits_and_the_first_letter_always_count() {
    reads(
        &checker("values = ['Earth-1', 'Season 12', 'Cyborg Superman', 'Male', 'Female']"),
        &[
            ("Earth-2", json!({"not_in_list": "Earth-2"}), ""),
            ("Earth 1", json!("Earth-1"), SPACING),
            ("Season 21", json!({"not_in_list": "Season 21"}), ""),
            ("Season 2", json!({"not_in_list": "Season 2"}), ""),
            ("Seasan 12", json!("Season 12"), SPELLING),
            ("Byborg Superman", json!({"not_in_list": "Byborg Superman"}), ""),
            ("male", json!("Male"), CASE),
            ("emale", json!({"not_in_list": "emale"}), ""),
        ],
    );
}

#[test]
fn a_number_is_never_matched_with_another_number() {
    reads(
        &checker("type = 'integer'\nvalues = [1, 10, 15, 1000, 15000]"),
        &[
            ("1", json!(1), ""),
            ("-1", json!({"not_in_list": "-1"}), ""),
            ("1.5", json!({"not_in_list": "1.5"}), ""),
            ("1.5000", json!({"not_in_list": "1.5000"}), ""),
            ("100", json!({"not_in_list": "100"}), ""),
        ],
    );
    // JSON models write whole numbers like this.
    assert_eq!(
        short(&checker("type = 'integer'\nvalues = [1, 10]").check_json(&json!(1.0))),
        json!(1)
    );
    reads(&checker("values = ['-1', '1']"), &[("-1", json!("-1"), ""), ("1", json!("1"), "")]);
}

#[test]
fn words_for_unknown_are_values_if_the_list_has_them() {
    reads(
        &checker("values = ['None', '-', 'Unknown']"),
        &[
            ("None", json!("None"), ""),
            ("-", json!("-"), ""),
            ("Unknown", json!("Unknown"), ""),
            ("?", json!({"unknown": "?"}), ""),
        ],
    );
}

#[test]
fn an_open_list_allows_other_values() {
    let open = checker("open = true\nvalues = ['Marvel Comics', 'DC Comics']");
    reads(
        &open,
        &[
            ("marvel comics", json!("Marvel Comics"), CASE),
            ("Image Comics", json!("Image Comics"), ""),
            ("?", json!({"unknown": "?"}), ""),
        ],
    );
    assert!(!open.is_constrained());
    assert!(open.is_allowed(&CellValue::One("Image Comics".into())));
    let closed = checker("values = ['Marvel Comics', 'DC Comics']");
    assert!(closed.is_constrained());
    assert!(closed.is_allowed(&CellValue::One("DC Comics".into())));
    assert!(!closed.is_allowed(&CellValue::One("Image Comics".into())));
    assert!(!closed.is_allowed(&CellValue::Nothing));
}

#[test]
fn a_list_of_typed_values_keeps_its_type() {
    let years = checker("type = 'integer'\nvalues = [1939, 1977]");
    assert_eq!(years.check_text("1939").value, CellValue::One(Value::Integer(1939)));
    assert_eq!(years.check_json(&json!(1977)).value, CellValue::One(Value::Integer(1977)));
    assert_eq!(short(&years.check_json(&json!(1978))), json!({"not_in_list": "1978"}));
    assert!(years.is_allowed(&CellValue::One(Value::Integer(1939))));
}

#[test]
fn list_cells_are_read_in_every_common_format() {
    let powers = checker(
        "many = { table = 't', column = 'power' }\nvalues = ['Flight', 'Super Strength', 'Speed, Super', 'Magic']",
    );
    for text in [
        "Flight|Magic",
        "Flight | Magic",
        "Flight; Magic",
        "Flight, Magic",
        "Flight,Magic",
        "[Flight, Magic]",
        "['Flight', 'Magic']",
        "[\"Flight\", \"Magic\"]",
        "\"Flight\", \"Magic\"",
        "Flight|Magic|Flight",
        "Flight||Magic|",
        "Flight|?|Magic",
        "Flight\nMagic",
    ] {
        assert_eq!(short(&powers.check_text(text)), json!(["Flight", "Magic"]), "{text}");
    }
    assert_eq!(short(&powers.check_text("Speed, Super")), json!(["Speed, Super"]));
    assert_eq!(
        short(&powers.check_text("Magic, Speed, Super, Flight")),
        json!(["Magic", "Speed, Super", "Flight"])
    );
    for empty in ["none", "None", "[]", "empty"] {
        assert_eq!(short(&powers.check_text(empty)), json!([]), "{empty}");
    }
    assert_eq!(short(&powers.check_text("")), json!({"unknown": null}));
    assert_eq!(short(&powers.check_text("?")), json!({"unknown": "?"}));
    let partly = powers.check_text("flight|Telepathy");
    assert_eq!(short(&partly), json!(["Flight"]));
    assert_eq!(
        partly.repair.as_deref(),
        Some("case matched to the value list; left out: Telepathy")
    );
    assert_eq!(
        short(&powers.check_text("Telepathy|Money")),
        json!({"not_in_list": "Telepathy | Money"})
    );
    assert_eq!(
        short(&powers.check_json(&json!(["Flight", null, "Magic"]))),
        json!(["Flight", "Magic"])
    );
    assert_eq!(short(&powers.check_json(&json!([]))), json!([]));
    assert_eq!(
        short(&powers.check_json(&json!([["Flight"]]))),
        json!({"invalid": "[[\"Flight\"]]"})
    );
    let years = checker("type = 'integer'\nmany = { table = 't', column = 'year' }");
    assert_eq!(short(&years.check_text("1939|1977")), json!([1939, 1977]));
    assert_eq!(short(&years.check_json(&json!([1939, "1,977"]))), json!([1939, 1977]));
    assert_eq!(short(&years.check_text("soon")), json!({"invalid": "soon"}));
}

#[test]
fn a_list_item_that_matches_exactly_is_not_stripped() {
    let words = checker(
        "many = { table = 't', column = 'word' }\nvalues = [\"'Tis\", 'Tis', 'a;b;c;d;e;f', '[x]']",
    );
    for word in ["'Tis", "Tis", "a;b;c;d;e;f", "[x]"] {
        assert_eq!(short(&words.check_text(word)), json!([word]));
        assert_eq!(short(&words.check_text(&format!("{word}|Tis"))).get(0), Some(&json!(word)));
    }
}

#[test]
fn a_json_list_is_a_single_value_only_with_one_item() {
    let one = checker("values = ['Marvel Comics']");
    assert_eq!(short(&one.check_json(&json!(["Marvel Comics"]))), json!("Marvel Comics"));
    assert_eq!(
        short(&one.check_json(&json!(["Marvel Comics", "DC"]))),
        json!({"invalid": "[\"Marvel Comics\",\"DC\"]"})
    );
    assert_eq!(short(&one.check_json(&Json::Null)), json!({"unknown": null}));
    let flag = checker("type = 'boolean'");
    assert_eq!(short(&flag.check_json(&json!(true))), json!(1));
    assert_eq!(short(&flag.check_json(&json!("False"))), json!(0));
}

#[test]
fn refusals_are_distinguished_from_answers() {
    for refusal in [
        "I'm sorry, but I can't help with that.",
        "Sorry, I am unable to find it.",
        "As an AI, I have no opinion.",
        "I cannot provide this.",
    ] {
        assert!(is_refusal(refusal), "{refusal}");
    }
    for answer in ["Sorry", "Sorry, Wrong Number", "I, Robot", "Unable", ""] {
        assert!(!is_refusal(answer), "{answer}");
    }
}

#[test]
fn stored_lists_are_read_as_the_same_items() {
    let column = |more: &str| {
        let spec = format!(
            r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "superhero"
key = ["superhero_name"]
[[expansion.column]]
name = "states"
many = {{ table = "states", column = "state" }}
values = {{ list = ["Washington", "Oregon"] }}
{more}
"#
        );
        Checker::new(&Fixture::new().only_expansion(&spec).columns[0])
    };
    let plain = column("");
    for items in [
        &["Washington, D.C."][..],
        &["Washington; D.C."],
        &["Oregon", "Washington | D.C."],
        &["Oregon", "Washington, D.C."],
        &["[Washington]"],
        &["Gondor", "Mordor"],
    ] {
        let said = plain.check_json(&json!(items));
        for more in ["unify = true", "aliases = { \"D.C.\" = \"Oregon\" }"] {
            let checker = column(more);
            let again = checker.recheck_answer(&said);
            assert!(again.is_none(), "{items:?}: {again:?}");
        }
        let checker = column("unify = true");
        let outside: Vec<&&str> = items.iter().filter(|i| **i != "Oregon").collect();
        if said.state == State::NotInList || said.has_omitted_values() {
            assert_eq!(
                checker.find_unlisted_words(&said),
                outside.into_iter().copied().collect::<Vec<_>>()
            );
        }
    }
    // A list stored as text by earlier versions was one item, too.
    let unify = column("unify = true");
    let before = Answer::without_value(State::NotInList, "Washington, D.C.".to_owned());
    assert_eq!(unify.find_unlisted_words(&before), ["Washington, D.C."]);
    assert!(unify.recheck_answer(&before).is_none());
    unify.decisions().unwrap().add_decision("Washington, D.C.", Some("Oregon".to_owned()));
    let again = unify.recheck_answer(&before).unwrap();
    assert_eq!(again.value.to_json(), json!(["Oregon"]));
}

#[test]
fn a_list_that_keeps_its_items_has_each_at_its_position() {
    let meaning = ColumnIdentity {
        key: vec!["name".to_owned()],
        column: "answer".to_owned(),
        kind: "integer".to_owned(),
        about: "which?".to_owned(),
        many: true,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    let column = Column::new_ad_hoc(Type::Integer, "which?".to_owned(), None, meaning);
    let set = Checker::new(&column);
    let list = Checker::new(&Column { keeps_items: true, ..column });
    for (said, kept, as_set) in [
        (json!([10, 10]), json!([10, 10]), json!([10])),
        (json!([null, 5]), json!([null, 5]), json!([5])),
        (json!([5, null, 5, "unknown"]), json!([5, null, 5, null]), json!([5])),
        (json!("10|10"), json!([10, 10]), json!([10])),
        (json!("[10, 10]"), json!([10, 10]), json!([10])),
        (json!("[None, 5]"), json!([null, 5]), json!([5])),
        (json!("|5"), json!([null, 5]), json!([5])),
        (json!("5||6|"), json!([5, null, 6]), json!([5, 6])),
        (json!(["x", 5]), json!([null, 5]), json!([5])),
        (json!([]), json!([]), json!([])),
    ] {
        for (checker, expected) in [(&list, kept), (&set, as_set)] {
            let answer = checker.check_json(&said);
            assert_eq!(answer.state, State::Ok, "{said}: {answer:?}");
            assert_eq!(answer.value.to_json(), expected, "{said}");
            assert!(checker.is_allowed(&answer.value), "{said}");
            // The journal stores it as JSON.
            assert_eq!(CellValue::from_json(&expected), answer.value, "{said}");
        }
    }
    assert_eq!(list.check_json(&json!([null, null])).state, State::Unknown);
    assert_eq!(list.check_json(&json!(["x", "y"])).state, State::Invalid);
}

/// An invalid answer has a reason, whatever its column.
#[test]
fn an_invalid_answer_is_explained() {
    let checker = |kind: Type| {
        let meaning = ColumnIdentity {
            key: vec!["name".to_owned()],
            column: "answer".to_owned(),
            kind: kind.name().to_owned(),
            about: "which?".to_owned(),
            many: false,
            list: "none".to_owned(),
            kinds: Vec::new(),
            requires_evidence: false,
            candidates: Vec::new(),
        };
        Checker::new(&Column::new_ad_hoc(kind, "which?".to_owned(), None, meaning))
    };
    for (kind, raw, expected) in [
        (Type::Integer, "about 30", "not an integer"),
        (Type::Integer, "2.5", "not an integer"),
        (Type::Real, "tall", "not a number"),
        (Type::Boolean, "perhaps", "neither yes nor no"),
        (Type::Date, "spring", "not a complete, unambiguous date"),
        (Type::Url, "my page", "not a URL"),
    ] {
        let answer = checker(kind).check_text(raw);
        assert_eq!(answer.state, State::Invalid, "{kind:?} {raw}");
        let again = checker(kind).recheck_answer(&answer).unwrap();
        assert_eq!((again.state, &again.raw), (State::Invalid, &answer.raw), "{kind:?} {raw}");
        assert_eq!(again.repair.as_deref(), Some(expected), "{kind:?} {raw}");
    }
    let none = Answer::without_value(State::Invalid, None);
    let again = checker(Type::Text).recheck_answer(&none).unwrap();
    assert_eq!(again.repair.as_deref(), Some("the reply has no value for this column"));
    // A reason that is already known is kept.
    assert!(checker(Type::Text).recheck_answer(&again).is_none());
}
