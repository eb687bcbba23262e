//! Tests of publishing into folders of Parquet files, which require `--features parquet`.

// A test fails by panicking and prints the reason.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hqdl::database::output::OutputTarget;
use hqdl::database::parquet_format::file::reader::{FileReader, SerializedFileReader};
use hqdl::database::parquet_format::record::Field;
use hqdl::database::publish::Publication;
use hqdl::database::published_state::PublishedState;
use hqdl::overrides::Overrides;
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{
    HEROES, Project, heroes_project, heroes_spec, true_value, truthful_endpoint,
};

const NUMBERS: usize = 790;

/// Returns the column names of a file, with their types.
fn columns(project: &Project, file: &str) -> Vec<(String, String)> {
    let reader = SerializedFileReader::new(File::open(project.path(file)).unwrap()).unwrap();
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns = schema.columns().iter().map(|c| {
        let logical = c.logical_type_ref().map_or(String::new(), |l| format!(" {l:?}"));
        (c.name().to_owned(), format!("{}{logical}", c.physical_type()))
    });
    columns.collect()
}

/// Returns the rows of a file of the project.
fn rows(project: &Project, file: &str) -> Vec<Vec<Json>> {
    let file = File::open(project.path(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    read_rows(&SerializedFileReader::new(file).unwrap())
}

fn to_json(field: &Field) -> Json {
    match field {
        Field::Null => Json::Null,
        Field::Bool(b) => json!(b),
        Field::Long(n) => json!(n),
        Field::Double(r) => json!(r),
        Field::Str(text) => json!(text),
        Field::Bytes(bytes) => json!(bytes.data()),
        Field::ListInternal(list) => list.elements().iter().map(to_json).collect(),
        other => panic!("{other:?}"),
    }
}

/// Returns the rows of a file.
fn read_rows(reader: &dyn FileReader) -> Vec<Vec<Json>> {
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().get_column_iter().map(|(_, f)| to_json(f)).collect()).collect()
}

fn sorted(rows: Vec<Vec<Json>>) -> Vec<String> {
    let mut rows: Vec<String> = rows.into_iter().map(|row| json!(row).to_string()).collect();
    rows.sort();
    rows
}

/// Compares files with the tables of the same names in a copy that is a `SQLite` database.
fn compare_with_copy(project: &Project, tables: &[&str]) {
    // The exit code is 1 if a cell is invalid.
    assert!(project.run_materialize(&["--output", "copy.db"]).code <= 1);
    for table in tables {
        let names = columns(project, &format!("expanded/{table}.parquet"));
        let booleans: Vec<bool> = names.iter().map(|(_, t)| t == "BOOLEAN").collect();
        let mut expected = project.query_rows_of("copy.db", &format!("SELECT * FROM \"{table}\""));
        for row in &mut expected {
            for (value, _) in row.iter_mut().zip(&booleans).filter(|(v, b)| **b && !v.is_null()) {
                *value = json!(*value == 1);
            }
        }
        let found = rows(project, &format!("expanded/{table}.parquet"));
        assert_eq!(sorted(found), sorted(expected), "{table}");
    }
}

/// Returns the modification times of the files in the folder.
fn times(project: &Project) -> BTreeMap<String, std::time::SystemTime> {
    let entries = fs::read_dir(project.path("expanded")).unwrap().map(Result::unwrap);
    let times = entries.map(|e| {
        let name = e.file_name().into_string().unwrap();
        (name, e.metadata().unwrap().modified().unwrap())
    });
    times.collect()
}

fn names(project: &Project) -> BTreeSet<String> {
    times(project).into_keys().collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

const FILES: [&str; 5] =
    ["hero_expanded.parquet", "hqdl.json", "hqdl_cell.parquet", "llm.parquet", "llm_power.parquet"];

fn publish(project: &Project) {
    project.run_materialize(&["--output", "expanded/"]).expect_exit_code(0);
}

#[test]
fn files_have_the_rows_of_a_copy() {
    let endpoint = Endpoint::start_with(|column, key| match column {
        "alive" => json!(key[0] != "Zed"),
        "weight" if key[0] == "Echo" => json!("nobody knows"),
        "weight" => json!(71.5),
        _ => true_value(column, key),
    });
    let more = "\n[[expansion.column]]\nname = \"alive\"\ntype = \"boolean\"\n
        [[expansion.column]]\nname = \"weight\"\ntype = \"real\"\n";
    let sql = format!(
        "{HEROES}; ALTER TABLE hero ADD COLUMN picture; ALTER TABLE hero ADD COLUMN
        mixed; ALTER TABLE hero ADD COLUMN empty REAL; UPDATE hero SET picture = x'00ff', mixed = 1
        WHERE name = 'Echo'; UPDATE hero SET mixed = 2.5 WHERE name = 'Zed'"
    );
    let project = Project::new(&endpoint, &sql, &(heroes_spec() + more));
    project.run_materialize(&["--output", "expanded/"]).expect_exit_code(1);
    compare_with_copy(&project, &["llm", "llm_power", "hqdl_cell"]);
    let states = rows(&project, "expanded/hqdl_cell.parquet");
    assert!(states.iter().any(|row| row.contains(&json!("invalid"))), "{states:?}");
    let text = "BYTE_ARRAY String";
    let typed = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect()
    };
    let llm = [
        ("name", text),
        ("full_name", text),
        ("eye_color", text),
        ("born", "INT64"),
        ("motto", text),
        ("alive", "BOOLEAN"),
        ("weight", "DOUBLE"),
    ];
    assert_eq!(columns(&project, "expanded/llm.parquet"), typed(&llm));
    let source = [
        ("id", "INT64"),
        ("name", text),
        ("full_name", text),
        ("height", "INT64"),
        ("picture", "BYTE_ARRAY"),
        ("mixed", "DOUBLE"),
        ("empty", "DOUBLE"),
    ];
    let view = columns(&project, "expanded/hero_expanded.parquet");
    assert_eq!(view, typed(&[&source[..], &llm[2..]].concat()));
    let view = rows(&project, "expanded/hero_expanded.parquet");
    let echo = view.iter().find(|row| row[1] == "Echo").unwrap();
    assert_eq!(echo[2..7], [Json::Null, json!(160), json!([0, 255]), json!(1.0), Json::Null]);
    let reader = File::open(project.path("expanded/llm.parquet")).unwrap();
    let reader = SerializedFileReader::new(reader).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let of = |key: &str| metadata.iter().find(|pair| pair.key == key)?.value.clone();
    assert_eq!((of("hqdl.format"), of("hqdl.spec")), (Some("1".into()), Some("x.toml".into())));
    assert_eq!(names(&project), set(FILES));
}

#[test]
fn only_changed_files_are_written_again() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.edit_spec(
        "path = \"../data.sqlite\"",
        "path = \"../data.sqlite\"\noutput = \"../expanded/\"",
    );
    let run = || project.run_materialize(&[]).expect_exit_code(0);
    run();
    let asked = endpoint.request_count();
    let before = times(&project);
    run();
    assert_eq!(times(&project), before);
    let changed = || -> BTreeSet<String> {
        let now = times(&project);
        now.iter().filter(|(n, t)| before.get(*n) != Some(t)).map(|(n, _)| n.clone()).collect()
    };
    // Another column of the source, but no key.
    project.execute_sql("UPDATE hero SET height = 1 WHERE name = 'Zed'");
    run();
    assert_eq!(changed(), set(["hero_expanded.parquet", "hqdl.json"]));
    let zed = |rows: Vec<Vec<Json>>| rows.into_iter().find(|row| row.contains(&json!("Zed")));
    assert_eq!(zed(rows(&project, "expanded/hero_expanded.parquet")).unwrap()[3], 1);
    let words = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "motto", "Ha"];
    project.run_hqdl(&words).expect_exit_code(0);
    run();
    assert_eq!(changed(), set(FILES));
    assert_eq!(zed(rows(&project, "expanded/llm.parquet")).unwrap()[4], "Ha");
    // A row that is no longer in the source, and a missing and a damaged file.
    project.execute_sql("DELETE FROM hero WHERE name = 'Zed'");
    fs::remove_file(project.path("expanded/hqdl_cell.parquet")).unwrap();
    run();
    assert!(zed(rows(&project, "expanded/llm.parquet")).is_none());
    assert_eq!((names(&project), endpoint.request_count()), (set(FILES), asked));
    // An expansion that is renamed.
    project.edit_spec("name = \"llm\"", "name = \"known\"");
    run();
    assert!(!project.path("expanded/llm.parquet").exists());
    compare_with_copy(&project, &["known", "llm_power", "hqdl_cell"]);
}

#[test]
fn names_of_all_kinds_become_file_names() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.edit_spec("name = \"llm\"", "name = \"Größe/人 50%\"");
    project.edit_spec("name = \"motto\"", "name = \"Motto °C\"");
    publish(&project);
    assert!(project.path("expanded/Größe%2F人 50%25.parquet").is_file(), "{:?}", names(&project));
    project.run_materialize(&["--output", "copy.db"]).expect_exit_code(0);
    let expected = project.query_rows_of("copy.db", "SELECT * FROM \"Größe/人 50%\"");
    let found = rows(&project, "expanded/Größe%2F人 50%25.parquet");
    assert_eq!(sorted(found), sorted(expected));
    project.run_hqdl(&["clean", "specs/x.toml", "--output", "expanded/"]).expect_exit_code(0);
    assert!(!project.path("expanded").exists());
}

#[test]
fn files_of_others_are_kept() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let folder = project.path("expanded");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("llm.parquet"), "mine").unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let failed = project.run_materialize(&["--output", "expanded/"]).expect_exit_code(2);
    let message = failed.stdout + &failed.stderr;
    assert!(message.contains("llm.parquet exists and is not a copy that hqdl made"), "{message}");
    assert_eq!(endpoint.request_count(), 0);
    fs::remove_file(folder.join("llm.parquet")).unwrap();
    fs::write(folder.join("hero_expanded.parquet"), "mine").unwrap();
    let ended = project.run_materialize(&["--output", "expanded"]).expect_exit_code(0);
    assert!((ended.stdout + &ended.stderr).contains("hero_expanded.parquet"));
    // Another spec does not replace the tables of the first one.
    fs::write(project.path("specs/y.toml"), project.spec_text()).unwrap();
    let words = ["materialize", "specs/y.toml", "--output", "expanded/"];
    let failed = project.run_hqdl(&words);
    assert!(failed.code != 0 && failed.stderr.contains("another spec"), "{failed:?}");
    let words = ["clean", "specs/y.toml", "--output", "expanded/"];
    project.run_hqdl(&words).expect_exit_code(0);
    assert!(folder.join("llm.parquet").exists());
    project.run_hqdl(&["clean", "specs/x.toml", "--output", "expanded/"]).expect_exit_code(0);
    assert_eq!(names(&project), set(["hero_expanded.parquet", "notes.txt"]));
    // A file that another program wrote instead of hqdl's.
    publish(&project);
    fs::copy(folder.join("notes.txt"), folder.join("llm_power.parquet")).unwrap();
    let failed = project.run_materialize(&["--output", "expanded/"]).expect_exit_code(2);
    assert!((failed.stdout + &failed.stderr).contains("llm_power.parquet exists"));
    assert_eq!(fs::read(folder.join("llm_power.parquet")).unwrap(), b"mine");
}

/// A run checks the folder again when it publishes, because another spec may have published since.
#[test]
fn a_run_does_not_replace_a_folder_that_another_spec_took_meanwhile() {
    let released = Arc::new(AtomicBool::new(false));
    let is_released = Arc::clone(&released);
    let endpoint = Endpoint::start_with(move |column, key| {
        while column == "slogan" && !is_released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        true_value(column, key)
    });
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let spec = project.spec_text().replace("llm", "other").replace("motto", "slogan");
    fs::write(project.path("specs/y.toml"), spec).unwrap();
    let other = project.start_hqdl(&["materialize", "specs/y.toml", "--output", "expanded/"]);
    endpoint.wait_for(asked + 1);
    publish(&project);
    released.store(true, Ordering::SeqCst);
    let failed = other.wait_for_exit();
    let text = failed.stdout + &failed.stderr;
    assert!(failed.code != 0 && text.contains("another spec"), "{text}");
    assert_eq!(names(&project), set(FILES));
    assert_eq!(rows(&project, "expanded/llm.parquet").len(), 10);
    // The answers are kept.
    let asked = endpoint.request_count();
    let words = ["materialize", "specs/y.toml", "--output", "others/"];
    project.run_hqdl(&words).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked);
}

#[test]
fn a_failed_commit_leaves_no_temporary_file() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    publish(&project);
    project.edit_spec("data.sqlite\"", "data.sqlite\"\noutput = \"../expanded/\"");
    let unchecked = UncheckedSpec::read(&project.path("specs/x.toml")).unwrap();
    let Session { spec, database, .. } =
        Session::open(unchecked, &SpecOverrides::default(), Cache::Temporary).unwrap();
    let target = OutputTarget::inspect(&database, spec.output.as_deref()).unwrap();
    let destination = target.open_target(&database).unwrap();
    let publication = Publication::begin(destination.database(), &spec).unwrap();
    destination.refresh().unwrap();
    let expansion = &spec.expansions[0];
    let written = publication.open_tables(expansion, false).unwrap().finish(None);
    let position = ("another journal".to_owned(), 1);
    let state = PublishedState::current(&spec, 0, "m", &Overrides::default(), position);
    publication.finish_expansion(&spec, &written, &state, &mut |_| Vec::new()).unwrap();
    // The first file is renamed, and the second cannot be.
    let blocked = project.path("expanded/llm.parquet");
    fs::remove_file(&blocked).unwrap();
    fs::create_dir(&blocked).unwrap();
    assert!(names(&project).iter().any(|name| name.contains(".part")));
    publication.commit().unwrap_err();
    assert_eq!(names(&project), set(FILES));
}

#[test]
fn a_folder_that_cannot_be_written_fails_before_requests() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    fs::write(project.path("file"), "mine").unwrap();
    for output in ["file/", "file/expanded/"] {
        let failed = project.run_materialize(&["--output", output]);
        assert!(failed.code != 0, "{failed:?}");
        assert!((failed.stdout + &failed.stderr).contains("cannot use"), "{output}");
    }
    fs::create_dir(project.path("expanded")).unwrap();
    for manifest in ["{}x", r#"{"format":99,"written_by":"","files":{},"objects":[]}"#] {
        fs::write(project.path("expanded/hqdl.json"), manifest).unwrap();
        let failed = project.run_materialize(&["--output", "expanded/"]);
        assert!(failed.code != 0, "{failed:?}");
        assert_eq!(fs::read_to_string(project.path("expanded/hqdl.json")).unwrap(), manifest);
    }
    assert_eq!((endpoint.request_count(), names(&project)), (0, set(["hqdl.json"])));
}

#[test]
fn commands_that_read_tables_name_the_alternative() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_hqdl(&["plan", "specs/x.toml", "--output", "expanded/"]).expect_exit_code(0);
    publish(&project);
    project.run_hqdl(&["plan", "specs/x.toml", "--output", "expanded/"]).expect_exit_code(0);
    fs::write(project.path("truth.csv"), "name,full_name,motto\nZed,Zed Zedsson,x\n").unwrap();
    for words in [
        &["why", "--db", "expanded", "llm", "Zed", "motto"][..],
        &["query", "--db", "expanded", "SELECT * FROM llm"],
        &["score", "specs/x.toml", "--truth", "truth.csv", "--output", "expanded/"],
        &["query", "--spec", "specs/x.toml", "--output", "expanded/", "SELECT * FROM llm"],
    ] {
        let failed = project.run_hqdl(words);
        let text = failed.stdout + &failed.stderr;
        assert!(failed.code != 0 && text.contains("--output FILE.db"), "{words:?}: {text}");
    }
    // A question that a column answers needs no published table.
    let asked = endpoint.request_count();
    let question = "SELECT count(*) FROM hero WHERE
        {{LLMMap('What is the eye colour?', 'hero::name', 'hero::full_name')}} IS NOT NULL";
    let words = ["query", "--spec", "specs/x.toml", "--output", "expanded/", question];
    let ended = project.run_hqdl(&words).expect_exit_code(0);
    assert!(ended.stdout.contains("10"), "{}", ended.stdout);
    assert_eq!(endpoint.request_count(), asked);
}

#[test]
fn a_kill_while_publishing_leaves_complete_files() {
    let mut chance = fastrand::Rng::new();
    let endpoint = truthful_endpoint();
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {NUMBERS})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    let project = Project::new(&endpoint, &sql, &heroes_spec());
    project.run_materialize(&["--rows-per-request", "50"]).expect_exit_code(0);
    publish(&project);
    let asked = endpoint.request_count();
    let mut interrupted = 0;
    for _ in 0..20 {
        let year = chance.u64(1000..9999).to_string();
        let words = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "motto"];
        project.run_hqdl(&[&words[..], &[&year]].concat()).expect_exit_code(0);
        let mut running =
            project.start_hqdl(&["materialize", "specs/x.toml", "--output", "expanded/"]);
        std::thread::sleep(Duration::from_micros(chance.u64(20_000..400_000)));
        if !running.has_ended() {
            interrupted += 1;
            running.send_signal("KILL");
        }
        running.wait_for_exit();
        assert_eq!(rows(&project, "expanded/llm.parquet").len(), NUMBERS + 10);
        assert_eq!(rows(&project, "expanded/hqdl_cell.parquet").len(), 4 * (NUMBERS + 10));
    }
    assert!(interrupted > 5, "{interrupted} of 20 runs were killed");
    fs::remove_file(project.path("specs/x.overrides.csv")).unwrap();
    publish(&project);
    assert_eq!((names(&project), endpoint.request_count()), (set(FILES), asked));
    compare_with_copy(&project, &["llm", "llm_power", "hqdl_cell"]);
    interrupt_between_files(&project);
}

/// Restores the files of an earlier publication beside a newer manifest, and the other way round.
fn interrupt_between_files(project: &Project) {
    let folder = project.path("expanded");
    let copy = |from: &Path, to: &Path| fs::copy(from, to).unwrap();
    for name in ["llm.parquet", "hqdl.json"] {
        let saved = project.path("saved");
        copy(&folder.join(name), &saved);
        let words = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "motto", name];
        project.run_hqdl(&words).expect_exit_code(0);
        publish(project);
        copy(&saved, &folder.join(name));
        publish(project);
        compare_with_copy(project, &["llm", "llm_power", "hqdl_cell"]);
    }
}

/// Sends a request to the daemon and returns the rows of the file in the response.
fn download(daemon: &Daemon, method: &str, path: &str, body: &str) -> Vec<Vec<Json>> {
    let mut stream = TcpStream::connect(&daemon.address).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{body}",
        daemon.address,
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let file = response.split_off(end + 4);
    let head = String::from_utf8(response).unwrap().to_lowercase();
    assert!(
        head.contains("application/vnd.apache.parquet") && head.contains(".parquet\""),
        "{head}"
    );
    let mut copy = tempfile::tempfile().unwrap();
    copy.write_all(&file).unwrap();
    read_rows(&SerializedFileReader::new(copy).unwrap())
}

#[test]
fn the_page_downloads_a_view_and_a_result() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let page = daemon.get("/specs/x/tables/llm").expect_status(200).body;
    assert!(page.contains("format=parquet"), "{page}");
    // The same rows in the same order as in JSON; lists stay lists.
    let path = "/specs/x/tables/llm/export?f=eye_color%7Cis%7CGreen&sort=-born";
    let found = download(&daemon, "GET", &format!("{path}&format=parquet"), "");
    let json = daemon.get(&format!("{path}&format=json")).expect_status(200).json();
    let values = |row: &Json| row.as_object().unwrap().values().cloned().collect::<Vec<Json>>();
    let expected: Vec<Vec<Json>> = json.as_array().unwrap().iter().map(values).collect();
    assert!(found.len() > 1 && found.iter().flatten().any(Json::is_array), "{found:?}");
    assert_eq!(found, expected);
    let empty = format!("{path}&q=nobody&format=parquet");
    assert!(download(&daemon, "GET", &empty, "").is_empty());
    let sql = "SELECT name, height, height / 2.0, NULL FROM hero ORDER BY 1, 2";
    let form = format!("spec=x&do=parquet&sql={}", sql.replace(' ', "+"));
    assert_eq!(download(&daemon, "POST", "/query", &form), project.query_rows(sql));
}
