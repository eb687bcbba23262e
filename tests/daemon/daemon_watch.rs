//! Tests that the daemon keeps tables filled: it notices changes of specs, rows, overrides and
//! folders, and requests only what is missing.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, HERO_COUNT, Project, check_cells, heroes_project, truthful_endpoint,
};

const CELLS: usize = HERO_COUNT * COLUMN_NAMES.len();

/// Starts a daemon and waits until its tables are filled.
fn filled() -> (Endpoint, Project, Daemon) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    (endpoint, project, daemon)
}

fn columns(cells: &[(Vec<Json>, String)]) -> BTreeSet<String> {
    cells.iter().map(|(_, c)| c.clone()).collect()
}

#[test]
fn a_daemon_fills_the_tables_of_its_specs() {
    let (endpoint, project, daemon) = filled();
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
    check_cells(&project);
    let runs = daemon.get("/v1/runs").expect_status(200).json();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{runs}");
    assert_eq!(runs["runs"][0]["state"], "complete");
    assert_eq!(runs["runs"][0]["cells_done"], CELLS);
}

#[test]
fn only_the_column_that_changed_in_a_spec_is_asked() {
    let (endpoint, project, daemon) = filled();
    let before = endpoint.request_count();
    // Reordering and reformatting change nothing.
    project.write_spec(&project.spec_text().replace(" = ", "  =  "));
    std::thread::sleep(Duration::from_millis(600));
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.request_count(), before);
    project.write_spec(&project.spec_text().replace("what the hero says", "what the hero shouts"));
    wait_until("the changed column asked", || endpoint.cells_since(before).len() >= HERO_COUNT);
    daemon.wait_until_idle("complete");
    let asked = endpoint.cells_since(before);
    assert_eq!(asked.len(), HERO_COUNT);
    assert_eq!(columns(&asked), BTreeSet::from(["motto".to_owned()]));
    check_cells(&project);
}

#[test]
fn new_rows_of_a_database_are_new_keys() {
    let (endpoint, project, daemon) = filled();
    let before = endpoint.request_count();
    project.execute_sql(
        "INSERT INTO hero (name, full_name, height) VALUES ('N1', 'x', 1), ('N2', 'x', 1),
         ('N3', 'x', 1), ('N4', 'x', 1), ('N5', 'x', 1)",
    );
    wait_until("the new rows asked", || {
        endpoint.cells_since(before).len() >= 5 * COLUMN_NAMES.len()
    });
    daemon.wait_until("15 rows", |s| s["run"].is_null() && s["columns"][0]["cells"]["ok"] == 15);
    let asked = endpoint.cells_since(before);
    assert_eq!(asked.len(), 5 * COLUMN_NAMES.len());
    assert!(asked.iter().all(|(key, _)| key[0].as_str().unwrap().starts_with('N')));
    check_cells(&project);
}

#[test]
fn a_change_in_a_write_ahead_log_is_noticed() {
    let (endpoint, project, daemon) = filled();
    let connection = project.connect();
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    let before = endpoint.request_count();
    // The connection stays open, so the row is only in the write-ahead log.
    connection.execute("INSERT INTO hero (name, full_name) VALUES ('Wal', 'x')", []).unwrap();
    wait_until("the row asked", || endpoint.cells_since(before).len() >= COLUMN_NAMES.len());
    daemon.wait_until("11 rows", |s| s["columns"][0]["cells"]["ok"] == 11);
    assert_eq!(endpoint.cells_since(before).len(), COLUMN_NAMES.len());
}

#[test]
fn changes_of_linked_files_are_noticed() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let there = project.path("elsewhere");
    std::fs::create_dir_all(&there).unwrap();
    let (database, spec) = (there.join("real.sqlite"), there.join("real.toml"));
    std::fs::rename(project.path("data.sqlite"), &database).unwrap();
    std::os::unix::fs::symlink(&database, project.path("data.sqlite")).unwrap();
    std::fs::rename(project.path("specs/x.toml"), &spec).unwrap();
    std::os::unix::fs::symlink(&spec, project.path("specs/x.toml")).unwrap();
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute("INSERT INTO hero (name, full_name) VALUES ('Far', 'x')", []).unwrap();
    daemon.wait_until("11 rows", |s| s["columns"][0]["cells"]["ok"] == 11);
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    connection.execute("INSERT INTO hero (name, full_name) VALUES ('Wal', 'x')", []).unwrap();
    daemon.wait_until("12 rows", |s| s["columns"][0]["cells"]["ok"] == 12);
    let before = endpoint.request_count();
    let text = std::fs::read_to_string(&spec).unwrap();
    std::fs::write(&spec, text.replace("what the hero says", "what the hero shouts")).unwrap();
    wait_until("the changed column asked", || endpoint.cells_since(before).len() >= 12);
    assert_eq!(columns(&endpoint.cells_since(before)), BTreeSet::from(["motto".to_owned()]));
}

#[test]
fn the_daemons_own_publishing_does_not_wake_it_repeatedly() {
    let (_endpoint, project, daemon) = filled();
    std::thread::sleep(Duration::from_millis(700));
    let ticks = || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        let number = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        number(12) + number(13)
    };
    let changed = || std::fs::metadata(project.path("data.sqlite")).unwrap().modified().unwrap();
    let (before, at) = (ticks(), changed());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(changed(), at);
    // A hundredth of a second is one tick.
    assert!(ticks() - before <= 15, "{} ticks in 1.5 s", ticks() - before);
}

#[test]
fn a_broken_spec_leaves_the_last_valid_one_active() {
    let (endpoint, project, daemon) = filled();
    let good = project.spec_text();
    project.write_spec(&good.replace("type = \"integer\"", "type = \"number\""));
    let spec = daemon.wait_until("broken", |s| s["state"] == "broken");
    assert_eq!(spec["in_force"], true);
    let problem = &spec["problem"]["problems"][0];
    assert!(problem["line"].as_u64().unwrap() > 1, "{spec}");
    // It still answers queries, and fills new rows.
    assert_eq!(daemon.query_rows("SELECT count(*) FROM llm"), [json!([HERO_COUNT])]);
    let said = hqdl_testkit::daemon::run_status(&project, &[]).expect_exit_code(0).stdout;
    assert!(said.contains("broken") && said.contains("x.toml:"), "{said}");
    project.write_spec(&good);
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn a_daemon_that_starts_with_a_broken_spec_serves_and_waits() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let good = project.spec_text();
    project.write_spec("this is no TOML =");
    let daemon = Daemon::start(&project, &[]);
    let spec = daemon.wait_until("broken", |s| s["state"] == "broken");
    assert_eq!(spec["in_force"], false);
    let refused = daemon.post("/v1/query", &json!({ "sql": "SELECT 1" })).expect_status(400);
    assert!(!refused.error_message().is_empty());
    project.write_spec(&good);
    daemon.wait_until_idle("complete");
}

#[test]
fn an_atomic_save_counts_once_and_files_can_appear_and_disappear() {
    let (endpoint, project, daemon) = filled();
    let before = endpoint.request_count();
    // Save as an editor does: a backup, a new file, and a rename over the old one.
    let text = project.spec_text().replace("what the hero says", "what the hero sings");
    std::fs::copy(project.path("specs/x.toml"), project.path("specs/x.toml~")).unwrap();
    std::fs::write(project.path("specs/.x.toml.swp"), &text).unwrap();
    std::fs::rename(project.path("specs/.x.toml.swp"), project.path("specs/x.toml")).unwrap();
    wait_until("the column asked", || endpoint.cells_since(before).len() >= HERO_COUNT);
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(before).len(), HERO_COUNT);
    assert_eq!(daemon.status()["specs"].as_array().unwrap().len(), 1);
    std::fs::rename(project.path("specs/x.toml"), project.path("specs/y.toml")).unwrap();
    wait_until("renamed", || {
        let specs = daemon.status()["specs"].clone();
        specs.as_array().unwrap().iter().map(|s| s["name"].clone()).eq([json!("y")])
    });
    std::fs::remove_file(project.path("specs/y.toml")).unwrap();
    wait_until("gone", || daemon.status()["specs"] == json!([]));
    assert_eq!(endpoint.cells_since(before).len(), HERO_COUNT);
}

#[test]
fn a_folder_and_a_database_that_appear_later_are_noticed() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    std::fs::rename(project.path("specs"), project.path("elsewhere")).unwrap();
    std::fs::rename(project.path("data.sqlite"), project.path("later.sqlite")).unwrap();
    let daemon = Daemon::start(&project, &[]);
    assert_eq!(daemon.status()["specs"], json!([]));
    std::fs::rename(project.path("elsewhere"), project.path("specs")).unwrap();
    let spec = daemon.wait_until("without its database", |s| s["state"] == "broken");
    assert!(spec.to_string().contains("no database at"), "{spec}");
    std::fs::rename(project.path("later.sqlite"), project.path("data.sqlite")).unwrap();
    daemon.wait_until_idle("complete");
    // The whole folder is removed, and another one replaces it.
    std::fs::rename(project.path("specs"), project.path("elsewhere")).unwrap();
    wait_until("gone", || daemon.status()["specs"] == json!([]));
    std::fs::create_dir(project.path("specs")).unwrap();
    std::fs::copy(project.path("elsewhere/x.toml"), project.path("specs/x.toml")).unwrap();
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn overrides_show_at_once() {
    let (endpoint, project, daemon) = filled();
    let motto = || project.query_rows("SELECT motto FROM llm WHERE name = 'Zed'");
    project
        .run_hqdl(&["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "motto", "Zzz"])
        .expect_exit_code(0);
    wait_until("shown", || motto() == [[json!("Zzz")]]);
    wait_until("told", || daemon.status()["runs"][0]["cause"] == "overrides changed");
    let word = json!({ "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "motto",
                       "value": "Zzzz", "note": "louder" });
    daemon.post("/v1/overrides", &word).expect_status(200);
    wait_until("louder", || motto() == [[json!("Zzzz")]]);
    let all = daemon.get("/v1/overrides?spec=x").expect_status(200).json();
    assert_eq!(all["overrides"].as_array().unwrap().len(), 1, "{all}");
    daemon
        .delete(
            "/v1/overrides",
            &json!({ "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "motto" }),
        )
        .expect_status(200);
    wait_until("the model's again", || {
        motto()[0][0].as_str().unwrap().starts_with("The motto of Zed")
    });
    let wrong = json!({ "table": "llm", "key": ["Zed"], "column": "motto", "value": "x" });
    let refused = daemon.post("/v1/overrides", &wrong).expect_status(400);
    assert_eq!(refused.json()["error"]["hint"], "its key is: name, full_name");
    // As on the command line, a value outside the list must be forced.
    let mut beyond = json!({ "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "eye_color",
                             "value": "Purple" });
    let refused = daemon.post("/v1/overrides", &beyond).expect_status(400).error_message();
    assert!(refused.contains("not in the value list"), "{refused}");
    beyond["force"] = true.into();
    daemon.post("/v1/overrides", &beyond).expect_status(200);
    wait_until("beyond the list", || {
        project.query_rows("SELECT eye_color FROM llm WHERE name = 'Zed'") == [[json!("Purple")]]
    });
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn polling_finds_changes_that_the_system_does_not_report() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--poll", "1"]);
    daemon.wait_until_idle("complete");
    let before = endpoint.request_count();
    project.write_spec(&project.spec_text().replace("what the hero says", "what the hero hums"));
    wait_until("the column asked", || endpoint.cells_since(before).len() >= HERO_COUNT);
}

#[test]
fn without_spending_it_plans_and_waits_for_approval() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    let spec = daemon.wait_until_idle("waiting");
    assert_eq!(endpoint.request_count(), 0);
    assert_eq!(spec["plan"]["totals"]["cells"], CELLS);
    assert!(spec["plan"]["totals"]["cost_usd"]["likely"].as_f64().unwrap() > 0.0);
    let run = daemon
        .post("/v1/runs", &json!({ "spec": "x", "columns": ["born"], "wait": true }))
        .expect_status(200)
        .json();
    assert_eq!(run["cells_done"], HERO_COUNT, "{run}");
    assert_eq!(columns(&endpoint.cells_since(0)), BTreeSet::from(["born".to_owned()]));
    let begun = daemon.post("/v1/runs", &json!({})).expect_status(202).json();
    daemon.wait_until_idle("complete");
    let ended = daemon.get(&format!("/v1/runs/{}", begun["run"])).expect_status(200).json();
    assert_eq!(ended["state"], "complete");
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
    // A new row is planned, and waits for approval again.
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'x')");
    let spec = daemon.wait_until_idle("waiting");
    assert_eq!(spec["plan"]["totals"]["cells"], COLUMN_NAMES.len());
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

/// The answers of one spec's run also complete a spec with the same cells.
#[test]
fn a_spec_with_the_same_cells_does_not_wait_any_longer() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let other =
        project.spec_text().replace("\"llm\"", "\"llm2\"").replace("llm_power", "llm2_power");
    std::fs::write(project.path("specs/y.toml"), other).unwrap();
    let daemon = Daemon::start(&project, &["--no-spend"]);
    let have_state = |state: &str| {
        let specs = daemon.status()["specs"].clone();
        let specs = specs.as_array().unwrap();
        specs.len() == 2 && specs.iter().all(|s| s["state"] == state && s["run"].is_null())
    };
    wait_until("both wait", || have_state("waiting"));
    daemon.post("/v1/runs", &json!({ "spec": "x", "wait": true })).expect_status(200);
    wait_until("both are complete", || have_state("complete"));
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn a_rejecting_endpoint_gets_no_request_until_something_changes() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(401, "bad key", "invalid_api_key"), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    let spec = daemon.wait_until_idle("waiting");
    assert!(spec["held"].as_str().unwrap().contains("401"), "{spec}");
    let asked = endpoint.request_count();
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'x')");
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(endpoint.request_count(), asked);
    endpoint.clear_faults();
    let run = daemon.post("/v1/runs", &json!({ "wait": true })).expect_status(200).json();
    assert_eq!(run["state"], "complete");
    daemon.wait_until_idle("complete");
}

#[test]
fn an_exhausted_budget_waits_for_approval() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let spec =
        project.spec_text().replace("concurrency = 4", "concurrency = 1\nbudget_usd = 0.001");
    project.write_spec(&spec);
    let daemon = Daemon::start(&project, &[]);
    let held = daemon.wait_until_idle("waiting");
    assert!(held["held"].as_str().unwrap().contains("budget"), "{held}");
    let asked = endpoint.request_count();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(endpoint.request_count(), asked);
    let run =
        daemon.post("/v1/runs", &json!({ "budget": 10.0, "wait": true })).expect_status(200).json();
    assert_eq!(run["state"], "complete", "{run}");
    assert_eq!(run["budget_usd"], 10.0);
}

#[test]
fn saving_the_same_spec_does_not_restore_its_budget() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let spec =
        project.spec_text().replace("concurrency = 4", "concurrency = 1\nbudget_usd = 0.001");
    project.write_spec(&spec);
    let daemon = Daemon::start(&project, &[]);
    let held = daemon.wait_until_idle("waiting");
    assert_eq!(held["resumes"], Json::Null, "{held}");
    let asked = endpoint.request_count();
    for text in [spec.replace(" = ", "  =  "), format!("# a comment\n{spec}\n")] {
        project.write_spec(&text);
        std::thread::sleep(Duration::from_millis(500));
        let held = daemon.wait_until_idle("waiting");
        assert!(held["held"].as_str().unwrap().contains("budget"), "{held}");
        assert_eq!(endpoint.request_count(), asked);
    }
    // Another budget makes it a different spec.
    project.write_spec(&spec.replace("0.001", "10.0"));
    daemon.wait_until_idle("complete");
}

#[test]
fn the_daemon_waits_until_the_next_day_for_a_daily_budget() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let day = "concurrency = 1\nbudget_usd_per_day = 0.001";
    project.write_spec(&project.spec_text().replace("concurrency = 4", day));
    let daemon = Daemon::start(&project, &[]);
    let held = daemon.wait_until_idle("waiting");
    assert!(held["held"].as_str().unwrap().contains("budget"), "{held}");
    let resumes: jiff::Timestamp = held["resumes"].as_str().unwrap().parse().unwrap();
    let left = resumes.duration_since(jiff::Timestamp::now());
    assert!(resumes.as_second() % 86_400 == 0, "{held}");
    assert!(left.as_secs() <= 86_400 && left.is_positive(), "{held}");
    // A plan for changed rows sends no request, and the hold remains.
    let asked = endpoint.request_count();
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'x')");
    std::thread::sleep(Duration::from_millis(600));
    let again = daemon.wait_until_idle("waiting");
    assert_eq!((&again["resumes"], endpoint.request_count()), (&held["resumes"], asked));
}

#[test]
fn a_partial_run_of_a_client_does_not_affect_the_rest() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(401, "bad key", "invalid_api_key"), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("waiting");
    endpoint.clear_faults();
    let before = endpoint.request_count();
    let facts = json!({ "keys": [["Zed", "Zed Zedsson"]], "columns": ["born"], "fill": true });
    daemon.post("/v1/facts", &facts).expect_status(200);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(endpoint.cells_since(before).len(), 1);
    daemon.wait_until_idle("waiting");
    daemon.post("/v1/runs", &json!({ "wait": true })).expect_status(200);
    let spec = daemon.wait_until_idle("complete");
    assert_eq!(spec["held"], Json::Null);
    // Nor does a request with a mistake.
    daemon.post("/v1/runs", &json!({ "columns": ["nothing"], "wait": true })).expect_status(400);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'x')");
    daemon.wait_until("11 rows", |s| s["columns"][0]["cells"]["ok"] == 11);
}

#[test]
fn unreadable_overrides_are_reported_until_they_are_fixed() {
    let (endpoint, project, daemon) = filled();
    let path = project.path("specs/x.overrides.csv");
    std::fs::write(&path, "name,full_name,column,value\nZed,Zed Zedsson,born,never\n").unwrap();
    let spec = daemon.wait_until_idle("failing");
    assert!(
        spec["problem"]["message"].as_str().unwrap().contains("\"never\" is not a valid value"),
        "{spec}"
    );
    assert_eq!(daemon.query_rows("SELECT count(*) FROM llm"), [json!([HERO_COUNT])]);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'x')");
    std::fs::write(&path, "name,full_name,column,value\nZed,Zed Zedsson,born,1999\n").unwrap();
    daemon.wait_until("11 rows", |s| s["columns"][0]["cells"]["ok"] == 11);
    assert_eq!(project.query_rows("SELECT born FROM llm WHERE name = 'Zed'"), [[json!(1999)]]);
    assert_eq!(endpoint.cells_since(0).len(), CELLS + COLUMN_NAMES.len());
}

#[test]
fn a_run_that_a_client_interrupts_is_not_restarted() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(200)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let text = project.spec_text().replace("concurrency = 4", "concurrency = 1");
    project.write_spec(&text.replace("rows_per_request = 4", "rows_per_request = 1"));
    let daemon = Daemon::start(&project, &[]);
    endpoint.wait_for(2);
    let run = daemon.spec_status()["run"].clone();
    assert!(
        daemon.get("/").expect_status(200).body.contains(&format!("action=\"/runs/{run}/stop\""))
    );
    daemon.delete(&format!("/v1/runs/{run}"), &json!({})).expect_status(200);
    let spec = daemon.wait_until_idle("waiting");
    daemon.submit_form(&format!("/runs/{run}/stop"), "").expect_status(404);
    assert!(spec["held"].as_str().unwrap().contains("a client stopped the run"), "{spec}");
    let asked = endpoint.request_count();
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(endpoint.request_count(), asked);
    daemon.post("/v1/runs", &json!({})).expect_status(202);
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn interrupting_a_partial_run_holds_nothing_back() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(200)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let text = project.spec_text().replace("concurrency = 4", "concurrency = 1");
    project.write_spec(&text.replace("rows_per_request = 4", "rows_per_request = 1"));
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let before = endpoint.request_count();
    let part = json!({ "refresh": ["motto"], "columns": ["motto"] });
    let run = daemon.post("/v1/runs", &part).expect_status(202).json()["run"].clone();
    endpoint.wait_for(before + 2);
    daemon.delete(&format!("/v1/runs/{run}"), &json!({})).expect_status(200);
    let spec = daemon.wait_until("ended", |s| s["run"].is_null());
    assert_eq!(spec["held"], Json::Null, "{spec}");
    endpoint.clear_faults();
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'x')");
    daemon.wait_until("11 rows", |s| s["columns"][0]["cells"]["ok"] == 11);
}

#[test]
fn reused_values_are_counted_everywhere() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    // Without change events, it does not check what it published itself.
    let daemon = Daemon::start(&project, &["--poll", "3600"]);
    daemon.wait_until_idle("complete");
    let hits = || {
        let text = daemon.get("/metrics").expect_status(200).body;
        let line = text.lines().find_map(|l| l.strip_prefix("hqdl_cache_hits_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = hits();
    daemon.post("/v1/runs", &json!({ "wait": true })).expect_status(200);
    assert_eq!(hits(), before + CELLS as u64);
    let before = hits();
    let form =
        "spec=x&do=run&sql=SELECT+%7B%7BLLMMap('Is+this+hero+old%3F',hero.name)%7D%7D+FROM+hero";
    daemon.submit_form("/query", &form.replace("do=run", "do=spend&max_cost=1")).expect_status(200);
    let again = daemon.submit_form("/query", form).expect_status(200).body;
    // Two heroes have the same name.
    assert!(again.contains("0 values asked, 9 known"), "{again}");
    assert_eq!(hits(), before + HERO_COUNT as u64 - 1);
}

#[test]
fn a_fixed_spec_is_tried_again() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(404, "no such model", "model_not_found"), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("waiting");
    // A changed spec is retried without approval.
    endpoint.clear_faults();
    project.write_spec(&project.spec_text().replace("concurrency = 4", "concurrency = 3"));
    daemon.wait_until_idle("complete");
}

#[test]
fn a_deleted_copy_is_recreated_without_requests() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let text = project.spec_text();
    project
        .write_spec(&text.replace("data.sqlite\"", "data.sqlite\"\noutput = \"../copy.sqlite\""));
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let rows = || project.query_rows_of("copy.sqlite", "SELECT count(*) FROM llm");
    assert_eq!(rows(), [[json!(HERO_COUNT)]]);
    std::fs::remove_file(project.path("copy.sqlite")).unwrap();
    wait_until("made again", || {
        project.path("copy.sqlite").exists() && !daemon.spec_status()["run"].is_u64()
    });
    daemon.wait_until_idle("complete");
    wait_until("whole", || rows() == [[json!(HERO_COUNT)]]);
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
    // Queries read the copy; the source database has no such table.
    assert_eq!(daemon.query_rows("SELECT count(*) FROM llm"), [json!([HERO_COUNT])]);
    let db = project.path("data.sqlite").canonicalize().unwrap();
    let bare = json!({ "db": db, "sql": "SELECT count(*) FROM hero" });
    assert_eq!(
        daemon.post("/v1/query", &bare).expect_status(200).json_lines()[1],
        json!([HERO_COUNT])
    );
    let none = json!({ "db": db, "sql": "SELECT count(*) FROM llm" });
    daemon.post("/v1/query", &none).expect_status(400);
}

/// Two daemons with different caches publish the same tables, from the same spec or from two
/// checkouts of it: after a few runs, one of them reports it and leaves the tables unchanged, until
/// a client requests a run.
#[test]
fn daemons_with_different_caches_do_not_replace_each_others_tables_forever() {
    let copy = "\noutput = \"../copy.sqlite\"";
    for (output, specs) in [("", "specs"), (copy, "specs"), ("", "checkout")] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        let text = project.spec_text();
        project.write_spec(&text.replace("data.sqlite\"", &format!("data.sqlite\"{output}")));
        if specs != "specs" {
            std::fs::create_dir(project.path(specs)).unwrap();
            std::fs::copy(project.path("specs/x.toml"), project.path(specs).join("x.toml"))
                .unwrap();
        }
        let first = Daemon::start(&project, &[]);
        first.wait_until_idle("complete");
        let second = Daemon::start(&project, &["--cache", "other", "--specs", specs]);
        let reports = |daemon: &Daemon| {
            let held = daemon.spec_status()["held"].clone();
            held.as_str().is_some_and(|why| why.contains("publishes `llm`"))
        };
        wait_until("one reports the other", || reports(&first) || reports(&second));
        let file = if output.is_empty() { "data.sqlite" } else { "copy.sqlite" };
        let inputs = || project.query_rows_of(file, "SELECT inputs, published_at FROM hqdl_object");
        let before = inputs();
        // A change of the source causes runs of both, and neither takes the tables again.
        let sql = "INSERT INTO hero (name, full_name) VALUES ('New', 'Newcomer')";
        project.execute_sql(sql);
        let held = if reports(&first) { &first } else { &second };
        let other = if reports(&first) { &second } else { &first };
        other.wait_until_idle("complete");
        let is_there = "SELECT count(*) FROM llm WHERE name = 'New'";
        wait_until("the other publishes the new row", || {
            project.query_rows_of(file, is_there) == [[json!(1)]]
        });
        std::thread::sleep(Duration::from_millis(1500));
        assert!(reports(held) && !reports(other));
        let journal = |rows: &[Vec<Json>]| {
            let inputs = rows.iter().find_map(|row| row[0].as_str()).unwrap().to_owned();
            serde_json::from_str::<Json>(&inputs).unwrap()["journal"].clone()
        };
        assert_eq!(journal(&inputs()), journal(&before));
        // A requested run publishes, and then the other daemon reports it.
        held.post("/v1/runs", &json!({ "spec": "x" })).expect_status(202);
        wait_until("the other reports it", || reports(other));
        assert_ne!(journal(&inputs()), journal(&before));
    }
}

/// The plan of a spec that waits for approval is renewed after a run of another spec. This run
/// leaves the tables of another cache unchanged, too.
#[test]
fn a_renewed_plan_does_not_replace_the_tables_of_another_cache() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let publish = || project.run_materialize(&["--cache", "other"]).expect_exit_code(0);
    publish();
    std::fs::copy(project.path("data.sqlite"), project.path("y.sqlite")).unwrap();
    let other_spec = project.spec_text().replace("data.sqlite", "y.sqlite");
    let other_spec = other_spec.replace("motto", "slogan");
    std::fs::write(project.path("specs/y.toml"), other_spec).unwrap();
    let journal = || {
        let sql = "SELECT inputs ->> 'journal' FROM hqdl_object WHERE name = 'llm'";
        project.query_rows(sql)
    };
    let before = journal();
    let daemon = Daemon::start(&project, &["--no-spend"]);
    let find = |name: &str| {
        let specs = daemon.status()["specs"].as_array().cloned().unwrap_or_default();
        specs.into_iter().find(|spec| spec["name"] == name).unwrap_or_default()
    };
    wait_until("both wait for approval", || {
        ["x", "y"].iter().all(|name| {
            let spec = find(name);
            spec["held"].as_str().is_some_and(|why| why.contains("missing"))
                && spec["run"].is_null()
        })
    });
    assert_ne!(journal(), before, "the first run replaces the tables");
    publish();
    wait_until("it is reported", || {
        find("x")["held"].as_str().is_some_and(|why| why.contains("publishes `llm`"))
    });
    assert_eq!(journal(), before);
    let last_run = || {
        let runs = daemon.status()["runs"].as_array().cloned().unwrap_or_default();
        runs.into_iter().find(|run| run["spec"] == "x").unwrap_or_default()
    };
    daemon.post("/v1/runs", &json!({ "spec": "y", "wait": true })).expect_status(200);
    wait_until("the plan of x is renewed", || last_run()["cause"] == "run of another spec");
    wait_until("the run has ended", || find("x")["run"].is_null());
    assert_eq!(journal(), before);
}
