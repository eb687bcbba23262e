//! The daemon's pages about a spec: its text, with checks, a preview and saving, and its lineage.

use std::time::{Duration, Instant};

use hqdl_testkit::browser::{Browser, find_chromium};
use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};
use serde_json::json;

use crate::ask_page::{percent_encode, press};

const EDIT: &str = "/specs/x/edit";

fn page(daemon: &Daemon, path: &str) -> String {
    daemon.get(path).expect_status(200).body
}

/// Sends the editor's form with a changed text, and returns the status and the page.
fn submit(daemon: &Daemon, page: &str, button: &str, text: &str, status: u16) -> String {
    // Browsers end the lines of a form as Windows does.
    let text = text.replace('\n', "\r\n");
    let body = press(page, button, &[("text", &text)]);
    daemon.submit_form(EDIT, &body).expect_status(status).body
}

fn problems(daemon: &Daemon, text: &str) -> serde_json::Value {
    let checked = daemon.submit_form("/specs/x/check", &format!("text={}", percent_encode(text)));
    checked.expect_status(200).json()["problems"].clone()
}

#[test]
fn a_spec_is_read_only_without_edit() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let shown = page(&daemon, EDIT);
    assert!(shown.contains("readonly") && shown.contains("name = &quot;llm&quot;"), "{shown}");
    assert!(!shown.contains("value=\"save\"") && shown.contains("--edit"), "{shown}");
    let before = project.spec_text();
    for form in ["do=save&text=x", "do=check&text=x"] {
        daemon.submit_form(EDIT, form).expect_status(403);
    }
    daemon.submit_form("/specs/x/check", "text=x").expect_status(403);
    assert_eq!(project.spec_text(), before);
    // The preview shows the saved spec, whatever the form contains.
    let preview = daemon.submit_form(EDIT, "do=preview&text=x").expect_status(200).body;
    assert!(
        preview.contains("The first 3 rows of each table: <strong>12 missing cells</strong>"),
        "{preview}"
    );
    assert!(preview.contains("Heroes of comics that nobody drew."), "{preview}");
    assert_eq!(endpoint.request_count(), 0);
    // No secret is shown, although the text is not TOML.
    let secrets = "api_key = \"abcdefgh\"\nurl = \"postgres://u:word@h/db\"\n[model\n";
    project.write_spec(&(secrets.to_owned() + &before));
    let shown = page(&daemon, EDIT);
    assert!(shown.contains("postgres://u:****@h/db"), "{shown}");
    assert!(!shown.contains("abcdefgh"), "{shown}");
    let preview = daemon.submit_form(EDIT, "do=preview").expect_status(400).body;
    assert!(!preview.contains("abcdefgh") && !preview.contains("u:word"), "{preview}");
}

#[test]
fn a_spec_is_checked_previewed_and_saved() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    let before = project.spec_text();
    let shown = page(&daemon, EDIT);
    let wrong = before.replace("[limits]", "temprature = 3\n[limits]");
    let rejected = submit(&daemon, &shown, "save", &wrong, 400);
    assert!(rejected.contains("temprature") && rejected.contains("^^^^"), "{rejected}");
    assert_eq!(project.spec_text(), before);
    let found = problems(&daemon, &wrong);
    let line = wrong.lines().position(|line| line.starts_with("temprature")).unwrap() + 1;
    assert_eq!((&found[0]["line"], &found[0]["column"]), (&json!(line), &json!(1)), "{found}");
    assert_eq!(problems(&daemon, &before), json!([]));
    // The preview shows the prompt with a new column, and its price, and sends nothing.
    let column = "\n[[expansion.column]]\nname = \"city\"\nabout = \"the city it lives in\"\n";
    let longer = before.clone() + column;
    let preview = submit(&daemon, &shown, "preview", &longer, 200);
    for part in [
        "the city it lives in",
        "Captain O'Malley",
        "10 missing cells",
        "likely, at most $",
        "Save the spec to ask",
    ] {
        assert!(preview.contains(part), "{part}: {preview}");
    }
    assert_eq!((endpoint.request_count(), project.spec_text()), (0, before.clone()));
    let saved = submit(&daemon, &shown, "save", &longer, 200);
    assert!(saved.contains("Saved. The daemon reads the spec again."), "{saved}");
    assert_eq!(project.spec_text(), longer, "line ends stay as they are");
    // A page that was opened before another program wrote the file does not overwrite it.
    let refused = submit(&daemon, &shown, "save", &before, 409);
    assert!(refused.contains("the file has changed since you opened it"), "{refused}");
    assert_eq!(project.spec_text(), longer);
    // Neither does a page that was checked, previewed or refused after the other program wrote it.
    for (button, status) in [("check", 200), ("preview", 200), ("save", 409)] {
        let later = submit(&daemon, &shown, button, &before, status);
        submit(&daemon, &later, "save", &before, 409);
    }
    assert_eq!(project.spec_text(), longer);
    // A saved page may be saved again.
    submit(&daemon, &saved, "save", &longer, 200);
    // The cells of the preview can be asked for, for at most the price shown.
    wait_until("reload", || page(&daemon, "/specs/x").contains("city"));
    let shown = page(&daemon, EDIT);
    let preview = submit(&daemon, &shown, "preview", &longer, 200);
    let form =
        preview.split("action=\"/specs/x/go\"").nth(1).unwrap_or_else(|| panic!("{preview}"));
    let field = |name: &str| {
        let rest = form.split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let body = format!("limit={}&budget={}", field("limit"), field("budget"));
    daemon.submit_form("/specs/x/go", &body).expect_status(303);
    wait_until("asked", || {
        let run = daemon.status()["runs"][0].clone();
        run["requests"] == 1 && run["state"] != "running"
    });
    assert_eq!(endpoint.cells_since(0).len(), 10);
    let schema = daemon.get("/spec.schema.json").expect_status(200).json();
    assert!(schema["properties"]["expansion"].is_object(), "{schema}");
}

#[test]
fn a_text_that_cannot_be_saved_is_not_lost() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    let before = project.spec_text();
    let longer = before.clone() + "# a remark\n";
    let shown = page(&daemon, EDIT);
    let path = project.path("specs/x.toml");
    let writable = std::fs::metadata(&path).unwrap().permissions();
    let mut read_only = writable.clone();
    read_only.set_readonly(true);
    std::fs::set_permissions(&path, read_only).unwrap();
    let refused = submit(&daemon, &shown, "save", &longer, 400);
    assert!(refused.contains("permission denied") && refused.contains("# a remark"), "{refused}");
    std::fs::set_permissions(&path, writable).unwrap();
    // Another program keeps the directory locked.
    let directory = std::fs::File::open(path.parent().unwrap()).unwrap();
    directory.lock().unwrap();
    let refused = submit(&daemon, &refused, "save", &longer, 400);
    assert!(refused.contains("has locked its directory"), "{refused}");
    assert_eq!(project.spec_text(), before);
    drop(directory);
    submit(&daemon, &refused, "save", &longer, 200);
    assert_eq!(project.spec_text(), longer);
}

#[test]
fn a_client_that_disconnects_stops_the_check_of_its_text() {
    use std::io::Write;
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    let before = project.spec_text();
    let endless =
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c";
    let endless = before.replace("SELECT power FROM power", endless);
    let body = format!("do=check&text={}", percent_encode(&endless));
    let serves = |count: u32| {
        let line = format!("\nhqdl_clients {count}\n");
        wait_until("number of clients", || daemon.get("/metrics").body.contains(&line));
    };
    let (address, length) = (&daemon.address, body.len());
    // The daemon runs at most 16 queries at once.
    for _ in 0..16 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(
            stream,
        "POST {EDIT} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        serves(1);
        drop(stream);
        serves(0);
    }
    let started_at = Instant::now();
    submit(&daemon, &page(&daemon, EDIT), "check", &before, 200);
    assert!(started_at.elapsed() < Duration::from_secs(10), "{:?}", started_at.elapsed());
}

fn open_lineage(project: &Project, daemon: &Daemon) -> String {
    project.execute_sql("CREATE VIEW green AS SELECT name FROM llm WHERE eye_color = 'Green'");
    let sql = "SELECT name FROM llm WHERE born > 1950";
    for _ in 0..2 {
        daemon.query_rows(sql);
    }
    daemon.query_rows("SELECT {{LLMMap('What is the eye colour?', hero.name)}} FROM hero");
    daemon.query_rows("SELECT count(*) FROM hero");
    page(daemon, "/specs/x/lineage")
}

#[test]
fn the_lineage_leads_from_the_source_to_the_queries() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let example = "\n[[example]]\nquestion = \"Who has which power?\"\nsql = \"SELECT name, power FROM llm_power\"\n";
    project.write_spec(&(project.spec_text() + example));
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let none = page(&daemon, "/specs/x/lineage");
    assert!(none.contains("10 of 10 cells"), "{none}");
    let shown = open_lineage(&project, &daemon);
    for part in [
        "/specs/x/tables/hero\">hero</a>",
        "<li>full_name</li>",
        "10 of 10 cells, 1 query",
        ">llm_power</a>",
        "/specs/x/tables/hero_expanded\">hero_expanded</a><span",
        "/specs/x/tables/green\">green</a><span",
        "run 2 times: born",
        "run once: eye_color",
        "Who has which power?",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("SELECT count(*) FROM hero"), "{shown}");
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_browser_marks_errors_and_completes_fields() {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    let mut browser = Browser::start(&program, &project.path("."));
    let wait_for = |browser: &mut Browser, condition: &str| {
        let started_at = Instant::now();
        while browser.eval_script(condition) != json!(true) {
            assert!(started_at.elapsed() < Duration::from_secs(20), "{condition}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    browser.open_page(&format!("http://{}{EDIT}", daemon.address));
    wait_for(
        &mut browser,
        "document.querySelector('.status').textContent === 'The spec is valid.'",
    );
    browser.eval_script(
        "{ const box = document.querySelector('.toml'); box.value += '\\ntemprature = 3\\nva';
           box.setSelectionRange(box.value.length, box.value.length);
           box.dispatchEvent(new Event('input', { bubbles: true })); }",
    );
    wait_for(
        &mut browser,
        "document.querySelector('#problems').textContent.includes('error: line')",
    );
    wait_for(&mut browser, "document.querySelectorAll('.squiggles mark').length > 0");
    // The last table of the spec is [[expansion.column]].
    wait_for(
        &mut browser,
        "[...document.querySelectorAll('#completion .chip')].some((chip) => chip.textContent === 'values')",
    );
    // The text stays, and cannot change, until an answer with the editor replaces it.
    browser.eval_script(
        "document.querySelector('.toml').value = '# mine';
         window.fetch = () => new Promise((resolve) => { window.answer = (text) => resolve(new Response(text, { status: 429 })); });
         document.querySelector('#spec-editor button[value=save]').click()",
    );
    wait_for(&mut browser, "document.querySelector('.toml').readOnly");
    browser
        .eval_script("window.answer('{\"error\":{\"message\":\"too many\",\"hint\":\"retry\"}}')");
    wait_for(&mut browser, "document.querySelector('.status').textContent === 'too many; retry'");
    browser.eval_script("document.querySelector('#spec-editor button[value=save]').click()");
    wait_for(&mut browser, "document.querySelector('.toml').readOnly");
    browser.eval_script("window.answer('<main><pre class=problem>no spec</pre></main>')");
    wait_for(&mut browser, "document.querySelector('.status').textContent === 'no spec'");
    wait_for(
        &mut browser,
        "document.querySelector('.toml').value === '# mine' && !document.querySelector('.toml').readOnly",
    );
    browser.open_page(&format!("http://{}/query?spec=x&sql=SELECT+nope+FROM+hero", daemon.address));
    wait_for(&mut browser, "document.querySelectorAll('.squiggles mark').length === 1");
    assert_eq!(browser.take_errors(), Vec::<String>::new());
}
