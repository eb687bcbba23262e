//! Tests of the true values in an audit: how they are written, and what the sheet keeps of them.

use std::io::Write as _;

use hqdl::audit::{Audit, CellTruth};
use hqdl::cell::CellValue;
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;

use super::*;

const PUBLISHERS: &str = r#"
[[expansion]]
name = "llm"
source = "hero"
key = ["name"]
format = "json"
[[expansion.column]]
name = "publisher"
values = { sql = "SELECT name FROM publisher" }
[[expansion.column]]
name = "nick"
"#;

/// Twenty heroes: every fifth has no publisher, and every fourth no nickname.
fn publishers() -> (Endpoint, Project) {
    let endpoint = Endpoint::start_answering(|column, row| {
        let n = number(row.key[0].as_str().unwrap_or_default());
        match &*column.name {
            "publisher" if n.is_multiple_of(5) => json!("Marvel"),
            "publisher" => json!("DC"),
            _ if n.is_multiple_of(2) => json!("unknown"),
            _ => json!("Bat"),
        }
    });
    let rows: Vec<String> = (0..20).map(|n| format!("('Hero {n}')")).collect();
    let sql = format!(
        "CREATE TABLE publisher (name); INSERT INTO publisher VALUES (''), ('DC'), ('Marvel');
         CREATE TABLE hero (name); INSERT INTO hero VALUES {}",
        rows.join(", ")
    );
    let project = Project::new(&endpoint, &sql, &[MODEL, PUBLISHERS].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    audit(&project, &["--sample", "20", "--seed", "1"]).expect_exit_code(0);
    (endpoint, project)
}

/// The empty text, no value and "cannot be known" each have an entry, which is the same in a
/// reference, a sheet, the terminal and the overrides.
#[test]
fn the_empty_text_and_no_value_are_truths() {
    let (_endpoint, project) = publishers();
    let lines: Vec<String> = (1..20)
        .map(|n| {
            let publisher = match n {
                n if n % 5 == 0 => "\"\"\"\"\"\"",
                3 => "",
                4 => "?",
                _ => "DC",
            };
            let nick = if n % 4 == 0 { "none" } else { "Bat" };
            format!("Hero {n},{publisher},{nick}\n")
        })
        .collect();
    std::fs::write(project.path("t.csv"), format!("name,publisher,nick\n{}", lines.concat()))
        .unwrap();
    let filled = audit(&project, &["--truth", "t.csv"]).expect_exit_code(0);
    for part in [
        "filled 37 cells",
        "3 other cells",
        "2 without a line or a column in t.csv",
        "1 with an empty field in t.csv",
    ] {
        assert!(filled.stderr.contains(part), "{part}: {}", filled.stderr);
    }
    let again = audit(&project, &["--truth", "t.csv", "--json"]).expect_exit_code(0).lines;
    let counts = ["cells", "known", "absent", "empty"].map(|name| again[0][name].clone());
    assert_eq!(counts, [json!(0), json!(37), json!(2), json!(1)]);
    // The terminal accepts the same entries.
    let mut command = project.hqdl_command(&["audit", "specs/x.toml", "--ask-me", "--who", "Ann"]);
    command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\"\"\nnone\nnone\n\"\"\n\"\"\n").unwrap();
    let ended = CommandResult::new(&child.wait_with_output().unwrap()).expect_exit_code(0);
    let text = std::fs::read_to_string(project.path("specs/x.audit.csv")).unwrap();
    assert_eq!(text.matches(",person Ann,20").count(), 3, "{text}\n{}", ended.stderr);
    let report = audit(&project, &["--report", "--json"]).expect_exit_code(0);
    let columns = report.lines[0]["columns"].as_array().unwrap();
    assert_eq!((&columns[0]["rows"], &columns[1]["rows"]), (&json!(20), &json!(20)), "{text}");
    assert_eq!(columns[0]["cannot_be_known"], 1);
    // The model's "unknown" is right if there is no value.
    let of_unknown = &columns[1]["states"]["unknown"];
    assert_eq!(of_unknown[1], 10);
    assert!(of_unknown[0].as_u64().unwrap() >= 4, "{columns:?}");
    let count = "SELECT count(*) AS n FROM llm WHERE publisher = ''";
    let flags = ["query", "--spec", "specs/x.toml", "--json", "--interval", "95", count];
    let row = only_row(&project.run_hqdl(&flags).expect_exit_code(0));
    let empty = text.matches(",\"\"\"\"\"\",").count();
    assert!((3..=6).contains(&empty), "{text}");
    assert!(row["n_low"].as_u64().unwrap() <= empty as u64, "{row}");
    // As overrides, the empty text is published, and no value is NULL.
    audit(&project, &["--apply"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    let rows =
        project.query_rows("SELECT publisher, typeof(publisher) FROM llm WHERE name = 'Hero 5'");
    assert_eq!(rows, [[json!(""), json!("text")]]);
}

/// A sheet keeps what a person wrote into a line without a truth.
#[test]
fn a_line_without_a_truth_keeps_its_note() {
    let (_endpoint, project) = publishers();
    let sheet = project.path("specs/x.audit.csv");
    let text = std::fs::read_to_string(&sheet).unwrap();
    let line = text.lines().nth(2).unwrap();
    let noted = format!("{},,my book,\"ask Ben; then Ann\"", line.strip_suffix(",,,").unwrap());
    std::fs::write(&sheet, text.replace(line, &noted)).unwrap();
    std::fs::write(project.path("t.csv"), "name,nick\nHero 1,Bat\n").unwrap();
    audit(&project, &["--truth", "t.csv"]).expect_exit_code(0);
    let text = std::fs::read_to_string(&sheet).unwrap();
    assert!(text.contains(&noted.replace('"', "")), "{text}");
}

/// If a person repeats, corrects or undoes a truth, the note keeps every value with its source and
/// time, and undoing restores the truth before.
#[test]
fn a_sheet_keeps_every_truth() {
    let (_endpoint, project) = publishers();
    let spec = UncheckedSpec::read(&project.path("specs/x.toml")).unwrap();
    let session = Session::open(spec, &SpecOverrides::default(), Cache::Temporary).unwrap();
    let (spec, expansion) = (&session.spec, &session.spec.expansions[0]);
    let mut audit = Audit::read(spec, expansion).unwrap();
    let cell = (audit.draw.sample()[0], 0);
    let mut digests = Vec::new();
    let said = |audit: &Audit| {
        let truth = audit.sheet.truth(cell.0, cell.1).unwrap();
        (truth.source.clone(), truth.note.clone())
    };
    for (source, value, remark) in [
        ("book; page 3", "DC", "seen"),
        ("person Ann", "DC", ""),
        ("person Ben", "Marvel", ""),
        ("person Ben", "", ""),
    ] {
        let value = Some(CellValue::One(value.into()));
        let truth = CellTruth { value, source: source.to_owned(), note: remark.to_owned() };
        audit.record_truth(spec, expansion, cell, truth).unwrap();
        digests.push(audit.sheet.truth(cell.0, cell.1).unwrap().digest());
    }
    let audit = &mut Audit::read(spec, expansion).unwrap();
    let (source, note) = said(audit);
    assert_eq!(source, "person Ben");
    for part in [
        "; person Ben said Marvel on 20",
        "; person Ann said DC on 20",
        "; \"book\\u003b page 3\" said DC on 20",
        "(seen)",
    ] {
        assert!(note.contains(part), "{part}: {note}");
    }
    let undo = |audit: &mut Audit, digest: &str| {
        audit.undo_truth(spec, expansion, cell, (digest, "person Ann"))
    };
    // Another truth is never undone.
    assert!(
        undo(audit, &digests[1]).unwrap_err().to_string().contains("has changed in the meantime")
    );
    undo(audit, &digests[3]).unwrap();
    let (source, note) = said(audit);
    assert_eq!(source, "person Ben");
    assert!(note.contains("person Ben said \"\\\"\\\"\" on 20"), "{note}");
    assert!(note.contains("(undone by person Ann on 20"), "{note}");
    for restored in ["person Ann", "book; page 3"] {
        let digest = audit.sheet.truth(cell.0, cell.1).unwrap().digest();
        undo(audit, &digest).unwrap();
        assert_eq!(said(audit).0, restored);
    }
    assert!(said(audit).1.contains("; seen; "), "{}", said(audit).1);
    let digest = audit.sheet.truth(cell.0, cell.1).unwrap().digest();
    undo(audit, &digest).unwrap();
    let audit = Audit::read(spec, expansion).unwrap();
    assert!(audit.sheet.truth(cell.0, cell.1).is_none());
    assert_eq!(audit.sheet.note(cell.0, cell.1).matches("undone by person Ann").count(), 4);
}

/// The report names the rows whose answers changed, and computes the rows for any half-width.
#[test]
fn the_report_names_changed_rows() {
    let (_endpoint, project) = publishers();
    let line = |name: &str| format!("{name},publisher,Marvel,\n");
    let overrides = |names: &[&str]| {
        let lines: Vec<String> = names.iter().map(|name| line(name)).collect();
        let csv = format!("name,column,value,note\n{}", lines.concat());
        std::fs::write(project.path("specs/x.overrides.csv"), csv).unwrap();
        project.run_materialize(&[]).expect_exit_code(0);
    };
    overrides(&["Hero 7"]);
    let report = audit(&project, &["--report"]).expect_exit_code(0).stdout;
    let changed = "the answer of 1 of these rows changed since the draw (the report uses the answers at the draw): Hero 7\n";
    assert!(report.contains(changed), "{report}");
    let names: Vec<String> = (6..20).filter(|n| n % 5 != 0).map(|n| format!("Hero {n}")).collect();
    overrides(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let report = audit(&project, &["--report"]).expect_exit_code(0).stdout;
    assert!(report.contains("the answers of 12 of these rows changed since the draw"), "{report}");
    assert!(report.contains("; and 2 more\n"), "{report}");
    let json = audit(&project, &["--report", "--json"]).expect_exit_code(0).lines[0].clone();
    assert_eq!(
        (&json["changed"], json["changed_keys"].as_array().unwrap().len()),
        (&json!(12), 12)
    );
    let needed = |points: &str| {
        let flags = ["--report", "--half-width", points, "--json"];
        let report = audit(&project, &flags).expect_exit_code(0).lines[0].clone();
        report["columns"][0]["rows_needed"].as_u64().unwrap()
    };
    assert!(needed("20") < needed("10") && needed("10") < needed("2.5"), "{}", needed("10"));
    let text = audit(&project, &["--report", "--half-width", "7"]).expect_exit_code(0).stdout;
    assert!(text.contains("rows for ± 7 "), "{text}");
    for wrong in ["0", "50", "x", "-1"] {
        let ended = audit(&project, &["--report", "--half-width", wrong]).expect_exit_code(2);
        assert!(ended.stderr.contains("between 0 and 50"), "{}", ended.stderr);
    }
    audit(&project, &["--half-width", "5"]).expect_exit_code(2);
}
