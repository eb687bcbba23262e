//! Tests of answers that a key, a type or the row itself makes unambiguous: dates without a year,
//! keys with XML's references, quotes around every value. Ambiguous answers are not read.

use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::{RowOutcome, completion};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::State;
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

use hqdl_testkit::fixture::Fixture;

const FILMS: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "film"
key = ["title", "year"]
[[expansion.column]]
name = "date"
type = "date"
year = "year"
[[expansion.column]]
name = "nation"
"#;

/// Returns what a completion answers about films: a list of cells for each, or the reason why there
/// is none.
fn read(spec: &str, films: &[(&str, i64)], content: &str) -> Vec<Json> {
    let expansion = Fixture::new().only_expansion(spec);
    let rows: Vec<Vec<Value>> =
        films.iter().map(|(title, year)| vec![(*title).into(), Value::Integer(*year)]).collect();
    let columns: Vec<String> = expansion.columns.iter().map(|c| c.name.clone()).collect();
    let checkers: Vec<Checker> = expansion.columns.iter().map(Checker::new).collect();
    let checkers: Vec<&Checker> = checkers.iter().collect();
    let keys = RequestKeys::new(rows.iter().map(Vec::as_slice));
    let outcomes = completion::parse_completion(
        content,
        completion::FinishReason::Stop,
        &keys,
        expansion.key.names(),
        &columns,
        &checkers,
    );
    let told = |outcome: &RowOutcome| match outcome {
        RowOutcome::Answered(cells) => cells
            .iter()
            .map(|cell| match cell.state {
                State::Ok => cell.value.to_json(),
                state => json!({ state.name(): cell.raw }),
            })
            .collect(),
        RowOutcome::Failed { reason: why, .. } => json!(why),
    };
    outcomes.iter().map(told).collect()
}

/// Returns the first cell of the only film in the request.
fn date_of(spec: &str, year: i64, written: &str) -> Json {
    read(spec, &[("Alien", year)], &format!("1 Alien,\"{written}\",US"))[0][0].clone()
}

#[test]
fn a_date_without_a_year_is_in_the_year_of_its_key() {
    for (written, date) in [
        ("May 27", "2007-05-27"),
        ("27 May", "2007-05-27"),
        ("27th of May", "2007-05-27"),
        ("27-May", "2007-05-27"),
        ("Sept. 9", ""),
        ("Sep. 9", "2007-09-09"),
        ("September 9th", "2007-09-09"),
        ("Sunday, May 27", "2007-05-27"),
        ("Sun. 27 May", "2007-05-27"),
        ("Monday, May 27", ""),
        // A year in the date takes precedence.
        ("May 27, 1999", "1999-05-27"),
        ("May 1999", "1999-05"),
        // `07` may be the day or the year.
        ("May 07", ""),
        ("07 May", ""),
        ("May 7", "2007-05-07"),
        // Day and month are ambiguous, or there is no such day.
        ("05-27", ""),
        ("05/06", ""),
        ("February 29", ""),
        ("May", ""),
        ("27", ""),
        ("May 127", ""),
        ("May 27 28", ""),
    ] {
        let read = date_of(FILMS, 2007, written);
        let expected = match date {
            "" => json!({ "invalid": written }),
            date => json!(date),
        };
        assert_eq!(read, expected, "{written}");
    }
    assert_eq!(date_of(FILMS, 2008, "February 29"), json!("2008-02-29"));
    // The seventh of 2006, or May 2007.
    assert_eq!(date_of(FILMS, 2006, "May 07"), json!({ "invalid": "May 07" }));
    assert_eq!(date_of(FILMS, 2006, "07 May"), json!("2006-05-07"));
    // A key that is not a year adds no year.
    assert_eq!(date_of(FILMS, 12, "May 27"), json!({ "invalid": "May 27" }));
}

#[test]
fn the_spec_names_the_key_part_with_the_year() {
    let said = FILMS.to_owned();
    assert_eq!(date_of(&said, 2007, "May 27"), json!("2007-05-27"));
    // A prize of one year may be awarded in the next, so the column's name alone is not enough.
    let born = FILMS.replace("year = \"year\"\n", "");
    assert_eq!(date_of(&born, 2007, "May 27"), json!({ "invalid": "May 27" }));
    // The setting is not part of the column's identity.
    let meaning = |spec: &str| Fixture::new().only_expansion(spec).columns.remove(0).fingerprint;
    assert_eq!(meaning(&born), meaning(&said));
    for (wrong, told) in [
        (said.replace("year = \"year\"", "year = \"yaer\""), "`yaer` is not a column of the key"),
        (said.replace("type = \"date\"", "type = \"url\""), "which has no year"),
    ] {
        assert!(Fixture::new().spec_problems(&wrong).render(false).contains(told), "{told}");
    }
}

#[test]
fn character_references_in_keys_are_decoded() {
    let films = [("R&amp;B &#x2013; Blues", 1990), ("Tom & Jerry", 1992), ("&lt;", 3), ("&gt;", 3)];
    let lines = |names: [&str; 2]| {
        format!("1,{},1990,1990-01-02,US\n2,{},1992,1992-03-04,UK", names[0], names[1])
    };
    let right = [json!(["1990-01-02", "US"]), json!(["1992-03-04", "UK"])];
    for names in [
        ["R&amp;B &#x2013; Blues", "Tom & Jerry"],
        ["R&B \u{2013} Blues", "Tom &amp; Jerry"],
        ["R&B - Blues", "Tom &#38; Jerry"],
    ] {
        assert_eq!(read(FILMS, &films[..2], &lines(names)), right, "{names:?}");
        // With the key alone.
        let alone = lines(names).replace("1,R", "R").replace("2,T", "T");
        assert_eq!(read(FILMS, &films[..2], &alone), right, "{alone}");
        let json = json!({ "rows": [
            { "key": [names[0], 1990], "cells": { "date": "1990-01-02", "nation": "US" } },
            { "key": [names[1], 1992], "cells": { "date": "1992-03-04", "nation": "UK" } },
        ] });
        assert_eq!(read(FILMS, &films[..2], &json.to_string()), right, "{json}");
    }
    // Punctuation alone identifies no row.
    for line in ["&lt;,3,1990-01-02,US", "<,3,1990-01-02,US", "&amp;,3,1990-01-02,US"] {
        let of = read(FILMS, &films[2..], line);
        let read = of.iter().filter(|row| row.is_array()).count();
        assert_eq!(read, usize::from(line.starts_with("&lt;")), "{line}: {of:?}");
    }
    // If two keys have the same meaning, neither is assigned the other's answer.
    let both = [("R&amp;B", 1990), ("R&B", 1990)];
    let of = read(FILMS, &both, "R&B,1990,1990-01-02,US");
    assert_eq!(of[1], json!(["1990-01-02", "US"]));
    assert!(of[0].is_string(), "{of:?}");
    let of = read(FILMS, &both, "R & B!,1990,1990-01-02,US");
    assert!(of.iter().all(Json::is_string), "{of:?}");
}

#[test]
fn quotes_around_every_value_are_removed() {
    let right = json!(["1979-05-25", "British"]);
    let one = |content: &str| read(FILMS, &[("Alien", 1979)], content).remove(0);
    for content in [
        "'1 Alien','1979-05-25','British'",
        "\"1 Alien\",\"'1979-05-25'\",\"'British'\"",
        "'1 Alien',''1979-05-25'',''British''",
        "\"1 Alien\",\"\"1979-05-25\"\",\"\"British\"\"",
        "| 1 Alien | '1979-05-25' | 'British' |",
        "['1 Alien', '1979-05-25', 'British']",
        "('1 Alien','1979-05-25','British')",
        "[\"1 Alien\", \"1979-05-25\", \"British\"]",
        "`Alien`,`1979`,`1979-05-25`,`British`",
        "\u{2018}Alien\u{2019},1979,\u{2018}1979-05-25\u{2019},\u{2018}British\u{2019}",
        "{\"row\": \"1 Alien\", \"cells\": {\"date\": \"'1979-05-25'\", \"nation\": \"'British'\"}}",
    ] {
        assert_eq!(one(content), right, "{content}");
    }
    // Quotes around a name that has none are also evidence.
    let unknown = json!([{ "unknown": null }, "British"]);
    let named = "{\"row\": \"'1 Alien'\", \"key\": [\"'Alien'\", 1979], \
                 \"cells\": {\"date\": null, \"nation\": \"'British'\"}}";
    let named = named.replace("\"'1 Alien'\"", "\"1\"");
    assert_eq!(one(&named), unknown, "{named}");
    // Without evidence, or if a text has no quotes, the quotes may be part of the value.
    for (content, expected) in [
        (
            "{\"row\": \"1 Alien\", \"cells\": {\"date\": \"1979-05-25\", \"nation\": \"'British'\"}}",
            json!(["1979-05-25", "'British'"]),
        ),
        (
            "{\"row\": \"1 Alien\", \"cells\": {\"date\": null, \"nation\": \"\\\"Heroes\\\"\"}}",
            json!([{ "unknown": null }, "\"Heroes\""]),
        ),
        ("\"1 Alien\",\"1979-05-25\",\"\"\"Heroes\"\"\"", json!(["1979-05-25", "\"Heroes\""])),
        // Doubled quotes are ambiguous, too.
        (
            "\"1 Alien\",\"1979-05-25\",\"\"Heroes\"\"",
            json!(["1979-05-25", { "invalid": "\"Heroes\"" }]),
        ),
        (
            "'1 Alien',''1979-05-25'',\"\"Heroes\"\"",
            json!(["1979-05-25", { "invalid": "\"Heroes\"" }]),
        ),
        (
            "\"1 Alien\",\"'1979-05-25'\",\"'Heroes' and 'Villains'\"",
            json!(["1979-05-25", "'Heroes' and 'Villains'"]),
        ),
    ] {
        assert_eq!(one(content), expected, "{content}");
    }
}

const DRIVERS: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "film"
key = ["title", "year"]
[[expansion.column]]
name = "code"
[[expansion.column]]
name = "nation"
"#;

/// A quote that opens in the fields that name the row, and is never closed, is not part of the key,
/// if the rest is well formed.
#[test]
fn an_unclosed_quote_in_the_key_is_a_mistake() {
    let films = [("Alien", 1979), ("O'Brien", 1980)];
    let both = [json!(["ALI", "a, b"]), json!(["OBR", "US"])];
    for content in [
        "\"Alien,1979,ALI,\"a, b\"\nO'Brien,1980,OBR,US",
        "Alien,\"1979,\"ALI\",\"a, b\"\n\"O'Brien,1980,\"OBR\",US",
        "1,\"Alien,1979,ALI,\"a, b\"\n2,\"O'Brien,1980,OBR,\"US\"",
        "1,'Alien,1979,ALI,\"a, b\"\n2,\"O'Brien,1980,\"OBR\",\"US\"",
    ] {
        assert_eq!(read(DRIVERS, &films, content), both, "{content}");
    }
    // In a value, the quote may be part of it, or the value may continue: it is not read.
    for content in ["Alien,1979,\"ALI,\"US\"", "Alien,1979,\"ALI,x,\"US\""] {
        let told = read(DRIVERS, &[("Alien", 1979)], content);
        assert!(!told[0][0].is_string(), "{content}: {told:?}");
    }
}

/// If a line is quoted as a whole, the quotes at its ends belong together and to no value.
#[test]
fn quotes_around_a_line_are_not_part_of_its_last_value() {
    for (content, expected) in [
        ("'O'Brien,1980,OBR,HAM'", json!(["OBR", "HAM"])),
        ("'O'Brien,1980,O'B,HAM'", json!(["O'B", "HAM"])),
        ("\"O'Brien,1980,OBR,HAM\"", json!(["OBR", "HAM"])),
        ("'2,O'Brien,1980,OBR,HAM'", json!("no answer for this row")),
        // Each quote may belong to its own value.
        ("O'Brien,1980,OBR,the Joneses'", json!(["OBR", "the Joneses'"])),
        ("O'Brien,1980,'til,the Joneses'", json!("1 field instead of 2")),
    ] {
        assert_eq!(read(DRIVERS, &[("O'Brien", 1980)], content), [expected], "{content}");
    }
    // The apostrophe is part of the key.
    let told = read(DRIVERS, &[("'Til", 1980)], "'Til,1980,OBR,the Joneses'");
    assert_eq!(told, [json!(["OBR", "the Joneses'"])]);
}

/// Other separators are recognized by the header at the beginning of an answer.
#[test]
fn a_header_reveals_the_field_separator() {
    let films = [("Alien", 1979), ("Rio, Rio", 1980)];
    let both = [json!(["A,L", "US"]), json!(["OBR", "a; b"])];
    for content in [
        "title;year;code;nation\nAlien;1979;A,L;US\nRio, Rio;1980;OBR;\"a; b\"",
        "\nrow\ttitle\tyear\tcode\tnation\n1\tAlien\t1979\tA,L\tUS\n2\tRio, Rio\t1980\tOBR\ta; b\n",
        "Row; Title; Year; Code; Nation\n2; Rio, Rio; 1980; OBR; \"a; b\"\n1; Alien; 1979; A,L; US",
        "\"row\";\"code\";\"nation\"\n1 Alien;A,L;US\n2 Rio;OBR;\"a; b\"",
    ] {
        assert_eq!(read(DRIVERS, &films, content), both, "{content}");
    }
    // Without this header, with another one, or with malformed quotes, nothing is read.
    for content in [
        "Alien;1979;ALI;US",
        "title;year;code;state\nAlien;1979;ALI;US",
        "title;year;code;nation\nAlien;1979;\"ALI;US",
        "title;year;code;nation\nAlien;1979;ALI",
    ] {
        let told = read(DRIVERS, &[("Alien", 1979)], content);
        assert!(told[0].is_string(), "{content}: {told:?}");
    }
}

const NAMED_DRIVERS: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "film"
key = ["title", "year"]
[[expansion.column]]
name = "name"
[[expansion.column]]
name = "driver_code"
[[expansion.column]]
name = "dob"
type = "date"
[[expansion.column]]
name = "nationality"
[[expansion.column]]
name = "url"
type = "url"
"#;

/// A missing field never moves another value into its column: values that the types determine are
/// read, the others remain open.
#[test]
fn a_missing_field_shifts_no_other() {
    let all = [
        ("name", "Christian Danner"),
        ("driver_code", "CD"),
        ("dob", "19450316"),
        ("nationality", "French"),
        ("url", "http://x.org/d"),
    ];
    let right = json!(["Christian Danner", "CD", "1945-03-16", "French", "http://x.org/d"]);
    let rows: [&[(&str, i64)]; 2] = [&[("Alien", 1979)], &[("Alien", 1979), ("Heat", 1995)]];
    for films in rows {
        for lacking in 0..all.len() {
            for quote in ["", "'", "\"'"] {
                let close: String = quote.chars().rev().collect();
                let fields = all.iter().enumerate().filter(|(n, _)| *n != lacking);
                let fields: Vec<String> =
                    fields.map(|(_, (_, value))| format!("{quote}{value}{close}")).collect();
                let lines = films.iter().enumerate().map(|(n, (title, _))| {
                    format!("{quote}{} {title}{close},{}", n + 1, fields.join(","))
                });
                let content = lines.collect::<Vec<_>>().join("\n");
                for cells in read(NAMED_DRIVERS, films, &content) {
                    let Some(cells) = cells.as_array() else { continue };
                    for (n, cell) in cells.iter().enumerate() {
                        let open = cell.is_object();
                        assert!(open || *cell == right[n], "{content}\n{cells:?}");
                    }
                    // Values that fit no other column are read; the missing one remains open.
                    let told = lacking > 2 || cells[4] == right[4];
                    assert!(told && cells[lacking].is_object(), "{content}\n{cells:?}");
                }
            }
        }
    }
}
