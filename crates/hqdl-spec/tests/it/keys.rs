//! Tests of entities that are equal, and of spec edits that cause no new requests.

use hqdl_spec::Expansion;
use hqdl_values::key::{Entity, KeyColumns, ListHash};
use hqdl_values::value::Value;
use proptest::prelude::*;

use hqdl_testkit::fixture::{Fixture, random_runner};

fn entity(value: impl Into<Value>) -> String {
    KeyColumns::new(vec!["name".into()]).build_entity(&[value.into()]).as_str().to_owned()
}

#[test]
fn an_entity_is_readable() {
    let key = KeyColumns::new(vec!["superhero_name".into(), "full_name".into()]);
    let batman = key.build_entity(&["Batman".into(), "Bruce Wayne".into()]);
    let text = r#"{"full_name":"Bruce Wayne","superhero_name":"Batman"}"#;
    assert_eq!(batman.as_str(), text);
    assert_eq!(batman.to_string(), text);
    assert_eq!(Entity::parse(text).unwrap(), batman);
    let spaced = r#"{ "superhero_name": "Batman", "full_name": "Bruce Wayne" }"#;
    assert_eq!(Entity::parse(spaced).unwrap(), batman);
    assert!(Entity::parse("Batman").is_err());
    assert!(Entity::parse(r#"{"name":["Batman"]}"#).is_err());
}

#[test]
fn composed_and_decomposed_letters_are_one_entity() {
    assert_eq!(entity("Beyonce\u{301}"), entity("Beyoncé"));
    assert_eq!(entity("\u{1100}\u{1161}"), entity("가"));
    // NFC, not NFKC: a ligature is a separate letter.
    assert_ne!(entity("ﬁlm"), entity("film"));
}

#[test]
fn white_space_counts_only_inside_a_key() {
    assert_eq!(entity(" \t\u{a0}Batman\n"), entity("Batman"));
    assert_ne!(entity("Bat man"), entity("Batman"));
    assert_ne!(entity("Bat  man"), entity("Bat man"));
}

#[test]
fn case_is_kept() {
    assert_ne!(entity("batman"), entity("Batman"));
}

#[test]
fn a_number_has_one_spelling() {
    assert_eq!(entity(Value::Integer(1)), entity("1"));
    assert_eq!(entity(Value::Real(1.0)), entity("1"));
    assert_eq!(entity(Value::Real(1.0)), entity(Value::Integer(1)));
    assert_eq!(entity(Value::Real(0.5)), entity("0.5"));
    assert_ne!(entity(Value::Real(1.5)), entity(Value::Integer(1)));
    assert_eq!(entity(Value::Integer(-7)), entity("-7"));
    assert_eq!(entity(Value::Real(-0.0)), entity(Value::Integer(0)));
    // A text may be a name, and names keep their zeros.
    assert_ne!(entity("007"), entity(Value::Integer(7)));
}

#[test]
fn null_is_not_the_empty_text() {
    assert_ne!(entity(Value::Null), entity(""));
    assert_ne!(entity(Value::Null), entity("null"));
    assert_eq!(entity(""), entity("  "));
    assert_eq!(entity(Value::Null), r#"{"name":null}"#);
}

#[test]
fn the_order_of_key_columns_does_not_matter() {
    let one = KeyColumns::new(vec!["a".into(), "b".into()]);
    let two = KeyColumns::new(vec!["b".into(), "a".into()]);
    assert_eq!(
        one.build_entity(&["x".into(), Value::Null]),
        two.build_entity(&[Value::Null, "x".into()])
    );
    assert_ne!(
        one.build_entity(&["x".into(), "y".into()]),
        two.build_entity(&["x".into(), "y".into()])
    );
}

#[test]
fn a_boundary_moved_between_two_parts_is_another_entity() {
    let key = KeyColumns::new(vec!["a".into(), "b".into()]);
    assert_ne!(
        key.build_entity(&["x\",\"b\":\"y".into(), "".into()]),
        key.build_entity(&["x".into(), "y".into()])
    );
}

#[test]
fn any_entity_can_be_parsed() {
    let value = prop_oneof![
        any::<String>().prop_map(Value::Text),
        any::<i64>().prop_map(Value::Integer),
        any::<f64>().prop_map(Value::Real),
        Just(Value::Null),
    ];
    random_runner(512)
        .run(&(value.clone(), value), |(a, b)| {
            let key = KeyColumns::new(vec!["b".into(), "a \"quoted\"".into()]);
            let entity = key.build_entity(&[a.clone(), b.clone()]);
            prop_assert_eq!(Entity::parse(entity.as_str()).unwrap(), entity.clone());
            // Its canonical text is the same entity.
            let text = |v: &Value| v.canonical_text().map_or(Value::Null, |t| t.as_ref().into());
            let again = [text(&a), text(&b)];
            prop_assert_eq!(key.build_entity(&again), entity.clone());
            let other = KeyColumns::new(vec!["a \"quoted\"".into(), "b".into()]);
            prop_assert_eq!(other.build_entity(&[b.clone(), a.clone()]), entity);
            if KeyColumns::is_canonical(std::slice::from_ref(&a)) {
                prop_assert_eq!(text(&a), a);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_hash_of_a_list_depends_only_on_its_content() {
    let hash = |values: &[&str]| {
        let values: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        ListHash::new(&values)
    };
    assert_eq!(hash(&["a", "b"]), hash(&["b", "a", "a"]));
    assert_ne!(hash(&["a", "b"]), hash(&["ab"]));
    assert_ne!(hash(&["a", "b"]), hash(&["a", "B"]));
    assert_ne!(hash(&[]), hash(&[""]));
    let a = hash(&["a"]);
    assert_eq!(ListHash::from_text(a.as_str().to_owned()), a);
}

// ── fingerprints ────────────────────────────────────────────────────────────

#[derive(Debug, Clone, PartialEq)]
struct Col {
    name: String,
    about: String,
    list: Option<Vec<String>>,
    open: bool,
    many: bool,
    integer: bool,
}

#[derive(Debug, Clone)]
struct Sheet {
    key: Vec<&'static str>,
    columns: Vec<Col>,
    /// Lines of `[[expansion]]` without meaning.
    expansion: String,
    /// Tables before and after it that have no meaning.
    settings: String,
    questions: bool,
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl Sheet {
    fn toml(&self) -> String {
        use std::fmt::Write as _;
        let key: Vec<String> = self.key.iter().map(|k| quoted(k)).collect();
        let mut text = format!(
            "[database]\npath = 'x'\n{}\n[[expansion]]\nname = 'llm'\nsource = 'film'\nkey = [{}]\n{}\n",
            self.settings,
            key.join(", "),
            self.expansion,
        );
        for (n, c) in self.columns.iter().enumerate() {
            let _ = writeln!(
                text,
                "[[expansion.column]]\nname = {}\nabout = {}",
                quoted(&c.name),
                quoted(&c.about)
            );
            if c.integer {
                text.push_str("type = 'integer'\n");
            }
            if let Some(list) = &c.list {
                let list: Vec<String> = list.iter().map(|v| quoted(v)).collect();
                let _ = writeln!(
                    text,
                    "values = {{ list = [{}], open = {} }}",
                    list.join(", "),
                    c.open
                );
            }
            if c.many {
                let _ = writeln!(text, "many = {{ table = 'many_{}', column = 'value' }}", c.name);
            }
            if self.questions {
                let _ = writeln!(text, "questions = ['What is {n}?']");
            }
        }
        text
    }
}

const SETTINGS: [&str; 3] = [
    "[model]\nname = 'm'",
    "[model]\nname = 'm'\nprice = { input = 1.0, output = 2.0 }\n[limits]\nconcurrency = 3\nbudget_usd = 1.5\nrequests_per_minute = 10",
    "[limits]\ntokens_per_minute = 1_000\n[routing]\nmodel = true\n[model]\nname = 'another'\ntemperature = 0.5\nbase_url = 'http://localhost/v1'",
];
const EXPANSIONS: [&str; 4] = [
    "",
    "rows_per_request = 3\nformat = 'csv'",
    "format = 'json'\nabout = 'Films.'",
    "shots = { sql = \"SELECT 'Jaws' AS title\", limit = 1 }",
];

fn sheet() -> impl Strategy<Value = Sheet> {
    let word = "[a-zA-Zé漢'\" ,.]{0,8}[a-z]";
    let about = proptest::collection::vec(word, 0..4).prop_map(|w| w.join(" "));
    let list = proptest::option::of(proptest::collection::btree_set(word, 1..5));
    let column = (about, list, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(about, list, open, many, integer)| Col {
            name: String::new(),
            about,
            integer: integer && list.is_none(),
            list: list.map(|l| l.into_iter().collect()),
            open,
            many,
        },
    );
    let keys = proptest::sample::select(vec![
        vec!["title"],
        vec!["title", "year"],
        vec!["k1", "title", "k2"],
    ]);
    (
        keys,
        proptest::collection::vec(column, 1..5),
        0..SETTINGS.len(),
        0..EXPANSIONS.len(),
        any::<bool>(),
    )
        .prop_map(|(key, mut columns, settings, expansion, questions)| {
            for (n, column) in columns.iter_mut().enumerate() {
                column.name = format!("c{n}");
            }
            Sheet {
                key,
                columns,
                expansion: EXPANSIONS[expansion].to_owned(),
                settings: SETTINGS[settings].to_owned(),
                questions,
            }
        })
}

/// Returns the fingerprint and list hash of each column, by name.
fn prints(expansion: &Expansion) -> Vec<(String, String, Option<String>)> {
    let mut all: Vec<_> = expansion
        .columns
        .iter()
        .map(|c| {
            (
                c.name.clone(),
                c.fingerprint.as_str().to_owned(),
                c.values.as_ref().map(|v| v.hash.as_str().to_owned()),
            )
        })
        .collect();
    all.sort();
    all
}

#[test]
fn an_edit_without_meaning_keeps_every_fingerprint() {
    let fixture = Fixture::new();
    let strategy = (sheet(), 0..SETTINGS.len(), 0..EXPANSIONS.len(), any::<bool>(), any::<u64>());
    random_runner(96)
        .run(&strategy, |(sheet, settings, expansion, questions, seed)| {
            let before = prints(&fixture.only_expansion(&sheet.toml()));
            let mut edited = sheet.clone();
            edited.settings = SETTINGS[settings].to_owned();
            edited.expansion = EXPANSIONS[expansion].to_owned();
            edited.questions = questions;
            let turn = seed as usize % edited.columns.len();
            edited.columns.rotate_left(turn);
            let turn = seed as usize % edited.key.len();
            edited.key.rotate_left(turn);
            for column in &mut edited.columns {
                column.about = format!(" {}\n", column.about.replace(' ', " \n  "));
                if let Some(list) = &mut column.list {
                    list.reverse();
                    list.push(list[0].clone());
                }
            }
            let edited = edited.toml();
            prop_assert_eq!(&prints(&fixture.only_expansion(&edited)), &before);
            // Written again by the toml crate, with another order and other quotes.
            let table: toml::Table = toml::from_str(&edited).unwrap();
            for text in [toml::to_string(&table).unwrap(), toml::to_string_pretty(&table).unwrap()]
            {
                prop_assert_eq!(&prints(&fixture.only_expansion(&text)), &before, "{}", text);
            }
            // Comments, blank lines, tables in another order.
            let commented = sheet.toml().replace("\n[", "  # a comment\n\n\t[");
            prop_assert_eq!(&prints(&fixture.only_expansion(&commented)), &before);
            let head = format!("[database]\npath = 'x'\n{}\n", sheet.settings);
            let swapped = sheet.toml().replace(&head, "") + &head;
            prop_assert_eq!(&prints(&fixture.only_expansion(&swapped)), &before);
            Ok(())
        })
        .unwrap();
}

/// An edit that changes the meaning; `None` if this column cannot have it.
type Edit = (&'static str, fn(&mut Col) -> Option<()>);

const EDITS: [Edit; 6] = [
    ("about", |c| {
        c.about.push_str(" really");
        Some(())
    }),
    ("name", |c| {
        c.name = format!("{}x", c.name);
        Some(())
    }),
    ("type", |c| c.list.is_none().then(|| c.integer = !c.integer)),
    ("cardinality", |c| {
        c.many = !c.many;
        Some(())
    }),
    ("open", |c| {
        c.list.as_ref()?;
        c.open = !c.open;
        Some(())
    }),
    ("a list or none", |c| {
        match c.list.take() {
            Some(_) => {}
            None if !c.integer => c.list = Some(vec!["a value".into()]),
            None => return None,
        }
        Some(())
    }),
];

#[test]
fn an_edit_with_meaning_changes_that_columns_fingerprint_only() {
    let fixture = Fixture::new();
    random_runner(96)
        .run(&(sheet(), any::<prop::sample::Index>()), |(sheet, index)| {
            let at = index.index(sheet.columns.len());
            let before = prints(&fixture.only_expansion(&sheet.toml()));
            for (what, edit) in EDITS {
                let mut edited = sheet.clone();
                if edit(&mut edited.columns[at]).is_none() {
                    continue;
                }
                let after = prints(&fixture.only_expansion(&edited.toml()));
                for (n, (old, new)) in before.iter().zip(&after).enumerate() {
                    if n == at {
                        prop_assert_ne!(&old.1, &new.1, "{}", what);
                        if what != "a list or none" {
                            prop_assert_eq!(&old.2, &new.2, "{}", what);
                        }
                    } else {
                        prop_assert_eq!(old, new, "{}", what);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn another_key_changes_every_fingerprint() {
    let fixture = Fixture::new();
    random_runner(64)
        .run(&sheet(), |sheet| {
            let before = prints(&fixture.only_expansion(&sheet.toml()));
            let mut edited = sheet.clone();
            if edited.key.len() == 1 {
                edited.key.push("k2");
            } else {
                edited.key.pop();
            }
            let after = prints(&fixture.only_expansion(&edited.toml()));
            for (old, new) in before.iter().zip(&after) {
                prop_assert_ne!(&old.1, &new.1);
                prop_assert_eq!(&old.2, &new.2);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn changing_a_list_changes_only_its_list_hash() {
    let fixture = Fixture::new();
    random_runner(64)
        .run(&(sheet(), any::<bool>()), |(sheet, add)| {
            let before = prints(&fixture.only_expansion(&sheet.toml()));
            for at in 0..sheet.columns.len() {
                let mut edited = sheet.clone();
                let Some(list) = &mut edited.columns[at].list else {
                    continue;
                };
                if add || list.len() == 1 {
                    list.push("one more value".into());
                } else {
                    list.pop();
                }
                let after = prints(&fixture.only_expansion(&edited.toml()));
                for (n, (old, new)) in before.iter().zip(&after).enumerate() {
                    prop_assert_eq!(&old.1, &new.1);
                    prop_assert_eq!(old.2 == new.2, n != at);
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_name_of_the_table_is_not_part_of_the_meaning() {
    let fixture = Fixture::new();
    let toml = "[database]\npath = 'x'\n[model]\nname = 'm'\n[[expansion]]\nname = 'llm'\nsource = 'film'\nkey = ['title']\n[[expansion.column]]\nname = 'genres'\nmany = { table = 'llm_genre', column = 'genre' }\n";
    let one = prints(&fixture.only_expansion(toml));
    for (from, to) in [
        ("'llm'", "'films'"),
        ("'llm_genre'", "'genres_of'"),
        ("column = 'genre'", "column = 'g'"),
        ("'film'", "'SELECT title FROM film WHERE 1'"),
        ("path = 'x'", "path = 'y'"),
    ] {
        assert_eq!(prints(&fixture.only_expansion(&toml.replace(from, to))), one, "{to}");
    }
}
