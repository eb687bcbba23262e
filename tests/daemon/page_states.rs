//! Tests every state of the daemon's pages in a real browser: narrow and wide, light and dark,
//! nothing overflows and all text is readable. Each test saves its pictures in `page-pictures` of the
//! target directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value as Json, json};

use crate::ask_page::asking_endpoint;
use crate::mcp::{self, LIVE as PLANNED};
use crate::mcp_http;
use hqdl_testkit::browser::{Browser, find_chromium};
use hqdl_testkit::cascade::calibrated_project;
use hqdl_testkit::daemon::{DEADLINE, Daemon};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{Project, heroes_project, true_value, truthful_endpoint};

const WIDTHS: [u32; 5] = [320, 390, 768, 1280, 1920];
/// Number and length of the complaints that a failed test prints.
const MAX_COMPLAINTS: usize = 10;
const MAX_COMPLAINT_CHARS: usize = 280;
/// Widths at which axe-core checks for violations of WCAG 2.2 AA.
const AXE_WIDTHS: [u32; 2] = [320, 1280];
const SCHEMES: [&str; 2] = ["light", "dark"];

/// The browser, which visits one state after another.
struct Walk {
    browser: Browser,
    complaints: Vec<String>,
    /// Source of axe-core.
    axe: String,
}

impl Walk {
    /// Checks a page that must contain some words. Reloads it until it does, because the daemon may
    /// be between two steps.
    fn look(&mut self, state: &str, daemon: &Daemon, path: &str, words: &[&str]) {
        let started_at = Instant::now();
        loop {
            self.browser.open_page(&format!("http://{}{path}", daemon.address));
            let text = self.read_text();
            if started_at.elapsed() > self.patience()
                || words.iter().all(|words| text.contains(*words))
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.judge(state, words);
    }

    /// Returns the time to wait for a condition. After a complaint, the test fails in any case.
    fn patience(&self) -> Duration {
        if self.complaints.is_empty() { DEADLINE } else { Duration::from_secs(5) }
    }

    /// Returns the text of the open page.
    fn read_text(&mut self) -> String {
        self.browser.eval_script("document.body.textContent").as_str().unwrap().to_owned()
    }

    /// Checks the page that a form leads to.
    fn press(&mut self, state: &str, button: &str, words: &[&str]) {
        self.browser.leave_page(&format!("document.querySelector('{button}').click()"));
        self.judge(state, words);
    }

    /// Checks the result of a query, which the page's script shows without leaving the page.
    fn run_query(&mut self, state: &str, words: &[&str]) {
        // A linked query shows its rows already, so the words may be those of the page before.
        let run = "document.querySelector('main').dataset.old = 'yes'; document.querySelector('#query button.main').click()";
        self.browser.eval_script(run);
        let started_at = Instant::now();
        let is_old = "document.querySelector('main[data-old]') !== null";
        while self.browser.eval_script(is_old) == true && started_at.elapsed() < self.patience() {
            std::thread::sleep(Duration::from_millis(30));
        }
        self.judge(state, words);
    }

    /// Asks a question on the Ask page.
    fn ask(&mut self, state: &str, question: &str, words: &[&str]) {
        let fill =
            format!("document.querySelector('textarea[name=question]').value = {question:?}");
        self.browser.eval_script(&fill);
        self.press_live(state, "button[value=write]", words);
    }

    /// Presses a button whose result the page's script shows without leaving the page.
    fn press_live(&mut self, state: &str, button: &str, words: &[&str]) {
        self.browser.eval_script(&format!("document.querySelector('{button}').click()"));
        self.judge(state, words);
    }

    /// Waits until the page contains some words.
    fn wait_for_words(&mut self, words: &[&str]) {
        let started_at = Instant::now();
        while started_at.elapsed() < self.patience() {
            let text = self.read_text();
            if words.iter().all(|words| text.contains(*words)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks the open page, which the page's script may still be changing.
    fn judge(&mut self, state: &str, words: &[&str]) {
        self.wait_for_words(words);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/page_looks.js");
        let script = std::fs::read_to_string(script).unwrap();
        let text = self.read_text();
        for words in words.iter().filter(|words| !text.contains(**words)) {
            self.complaints.push(format!("{state}: no `{words}` in {text}"));
        }
        for width in WIDTHS {
            for scheme in SCHEMES {
                self.browser.set_viewport(width, scheme);
                let found = self.browser.eval_script(&script);
                let at = format!("{state} at {width} px, {scheme}");
                let mut found = found.as_array().unwrap().clone();
                if AXE_WIDTHS.contains(&width) {
                    // A page needs the source only once.
                    if self.browser.eval_script("typeof axe") == "undefined" {
                        self.browser.eval_script(&self.axe);
                    }
                    let violations = self.browser.eval_script(AXE_RUN);
                    found.extend(violations.as_array().unwrap().iter().cloned());
                }
                self.complaints.extend(found.iter().map(|c| format!("{at}: {c}")));
                let name = format!("{}-{width}-{scheme}.png", state.replace([' ', '\''], "-"));
                save(&self.browser.take_screenshot(), &picture_folder().join(name));
            }
        }
        let errors = self.browser.take_errors();
        self.complaints.extend(errors.into_iter().map(|e| format!("{state}: console: {e}")));
    }
}

/// Lists the violations that axe-core finds.
const AXE_RUN: &str = "axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })
    .then((r) => r.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(' ')}`.slice(0, 400)))";

/// Returns the source of axe-core from the compressed fixture.
fn read_axe() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/axe-core/axe.min.js.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
    assert!(unpacked.status.success());
    String::from_utf8(unpacked.stdout).unwrap() + "; 0"
}

/// Returns the folder of the pictures, beside the folder of the built program.
fn picture_folder() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_hqdl"));
    let folder = program.ancestors().nth(2).unwrap().join("page-pictures");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a picture that is encoded in base64.
fn save(picture: &str, path: &Path) {
    let bytes = base64::engine::general_purpose::STANDARD.decode(picture).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Starts an endpoint with long answers, which does not know everything.
fn wordy() -> Endpoint {
    Endpoint::start_with(|column, key| match (column, key[0].as_str()) {
        ("motto", Some("Zed")) => "Wordswithoutanyspaceinthem/".repeat(12).into(),
        ("motto", Some("007")) => "A motto that goes on and on. ".repeat(12).into(),
        ("motto" | "born", Some("Echo")) => Json::Null,
        ("motto", Some("Blaze")) => "النار تشفي, وهي تحرق: 12 (اثنا عشر)!".into(),
        _ => true_value(column, key),
    })
}

const LIVE: &str =
    "sql=SELECT+name%2C+{{LLMMap('Which+planet+is+it+from%3F'%2C+hero.name)}}+FROM+hero";
const WRONG: &str = "sql=SELECT+name+FROM+hero+WHERE+a_column_with_a_long_name_that_no_table_of_this_database_has_at_all+IS+NOT+NULL+AND+height+>+170+ORDER+BY+name";

fn at_rest(walk: &mut Walk, project: &Project, daemon: &Daemon) {
    walk.look(
        "complete",
        daemon,
        "/",
        &["complete", "38 of 40 cells have a value", "motto", "test-model"],
    );
    walk.look("complete spec", daemon, "/specs/x", &["coverage", "eye_color"]);
    walk.look("table", daemon, "/specs/x/tables/llm", &["Zed Zedsson", "unknown"]);
    walk.look("table without rows", daemon, "/specs/x/tables/llm?q=nobody", &["No rows."]);
    let view = "/specs/x/tables/llm?f=eye_color%7Cis%7CGreen&sort=-born&facet=born&facet=motto";
    walk.look("filtered table", daemon, view, &["eye_color is Green", "mean", "Download"]);
    walk.look("tables", daemon, "/specs/x/tables", &["hero", "filled by the model", "10"]);
    let view = "/specs/x/tables/hero?sort=-height&facet=height&facet=name";
    walk.look("table of the database", daemon, view, &["Zed Zedsson", "mean", "10 rows"]);
    walk.look("row of the database", daemon, "/specs/x/tables/hero/row?row=%5B1%5D", &["height"]);
    let view = "/specs/x/tables/hero_expanded?sort=-height";
    walk.look("view with filled columns", daemon, view, &["Zed Zedsson", "10 rows, 7 columns"]);
    let cell = |column: &str, key: &str| format!("/specs/x/cell?table=llm&column={column}&{key}");
    let zed = "key=Zed&key=Zed%20Zedsson";
    walk.look("why", daemon, &cell("motto", zed), &["Wordswithout", "test-model"]);
    walk.look("why unknown", daemon, &cell("motto", "key=Echo&key=NULL"), &["unknown", "NULL"]);
    walk.look("override form", daemon, &cell("eye_color", zed), &["One of 3", "Override"]);
    walk.look("overrides of a list", daemon, &cell("powers", zed), &["Any of 4", "Override"]);
    walk.browser
        .eval_script("document.querySelector('input[name=value]').value = 'Purple, of a kind'");
    walk.press("override refused", "button[value=set]", &["Purple", "value list"]);
    walk.look("query", daemon, "/query?spec=x", &["an example"]);
    let known = "sql=SELECT+*+FROM+llm+WHERE+born+IS+NOT+NULL";
    walk.look("query to run", daemon, &format!("/query?spec=x&{known}"), &["Run"]);
    walk.run_query("rows", &["9 rows", "0 values asked", "by name"]);
    walk.browser.eval_script("document.querySelectorAll('th button')[3].click()");
    walk.judge("sorted rows", &["born"]);
    walk.look("query to explain", daemon, &format!("/query?spec=x&{LIVE}"), &["Run"]);
    walk.wait_for_words(&["Run, for at most $"]);
    walk.judge("price beside the button", &["Run, for at most $", "in 3 requests"]);
    walk.browser.eval_script("document.querySelector('button[value=explain]').click()");
    walk.wait_for_words(&["Run, for at most $"]);
    walk.judge("price", &["Run, for at most $", "History"]);
    walk.look("query to fail", daemon, &format!("/query?spec=x&{WRONG}"), &["Run"]);
    walk.run_query("query with an error", &["no such column", "^^^^"]);
    let chart = "sql=SELECT+born%2C+height+FROM+llm+JOIN+hero+USING+(name)+ORDER+BY+height";
    walk.look("query with a chart", daemon, &format!("/query?spec=x&{chart}"), &["Run"]);
    walk.run_query("scatter", &["height by born"]);
    let groups =
        "sql=SELECT+eye_color%2C+count(*)+AS+n%2C+1+AS+n_low%2C+6+AS+n_high+FROM+llm+GROUP+BY+1";
    walk.look("query of groups", daemon, &format!("/query?spec=x&{groups}"), &["Run"]);
    walk.run_query("bars with intervals", &["n by eye_color"]);
    let series = "sql=SELECT+eye_color%2C+iif(born+<+1950%2C+'early'%2C+'late')+AS+period%2C+count(*)+AS+n+FROM+llm+GROUP+BY+1%2C+2";
    let words = ["n by eye_color and period", "Link to this query"];
    walk.look("bars of two series", daemon, &format!("/query?spec=x&{series}"), &words);
    let points = "sql=SELECT+born%2C+height%2C+eye_color%2C+llm.full_name+FROM+llm+JOIN+hero+USING+(name)+ORDER+BY+born";
    let lines = format!("/query?spec=x&{points}&chart=line&series=eye_color");
    walk.look("lines of several series", daemon, &lines, &["height by born and eye_color"]);
    let many = format!("/query?spec=x&{points}&chart=scatter&series=full_name");
    walk.look("points of many series", daemon, &many, &["height by born and full_name"]);
    walk.look("query of years", daemon, "/query?spec=x&sql=SELECT+born+FROM+llm", &["Run"]);
    walk.run_query("histogram", &["Distribution of born"]);
    walk.look("not found", daemon, "/nowhere", &["Error"]);
    walk.look("no such spec", daemon, "/specs/nothing", &["Error", "nothing"]);
    project
        .run_hqdl(&["audit", "specs/x.toml", "--sample", "6", "--seed", "1"])
        .expect_exit_code(0);
    let review = "/specs/x/review?table=llm";
    let words = ["0 of 24", "Row of hero", "height", "Right", "Cannot be known"];
    walk.look("review", daemon, review, &words);
    walk.browser.leave_page(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
    );
    walk.judge("review of the next cell", &["1 of 24", "Back"]);
    walk.look(
        "review of a reviewed cell",
        daemon,
        &format!("{review}&at=0"),
        &["Reviewed already"],
    );
    let good = project.spec_text();
    project.write_spec(&good.replace("[model]", "[model]\nnome = \"x\"\ntemprature = 3"));
    std::fs::write(project.path("specs/y.toml"), "[database\npath = ").unwrap();
    daemon.wait_until("broken", |spec| spec["state"] == "broken");
    hqdl_testkit::daemon::wait_until("both", || {
        daemon.status()["specs"].as_array().unwrap().len() == 2
    });
    walk.look("broken", daemon, "/", &["The daemon keeps the last valid spec.", "temprature"]);
    walk.look("broken spec", daemon, "/specs/x", &["nome", "temprature"]);
    walk.look("broken from the start", daemon, "/specs/y", &["broken"]);
}

/// The states of the Ask page.
fn asking(walk: &mut Walk) {
    let endpoint = asking_endpoint();
    let project = heroes_project(&endpoint, "json");
    let example = "\n[[example]]\nquestion = \"Which heroes have green eyes, and when were they born?\"\nsql = \"SELECT 1\"\n";
    project.write_spec(&(project.spec_text() + example));
    let daemon = Daemon::start(&project, &["--edit"]);
    daemon.wait_until_idle("complete");
    walk.look("ask", &daemon, "/ask", &["Write the query, for at most $", "green eyes"]);
    walk.ask("ask price", "Who can fly?", &["Run, for at most $", "Assumes"]);
    walk.press_live("ask rows", "button[value=run]", &["10 rows", "Keep as an example"]);
    walk.browser.eval_script("document.querySelectorAll('details').forEach(d => d.open = true)");
    walk.judge("ask rows in full", &["Open in Query", "Keep", "ad-hoc"]);
    walk.ask("ask follow-up", "How old is each?", &["Who can fly?", "born by name"]);
    walk.ask("ask without rows", "Who is Zedd?", &["0 rows", "weaker condition"]);
    walk.press_live("ask relaxed", "button[value=relax]", &["1 row", "no row with 'Zedd'"]);
    walk.ask("ask declined", "What does it weigh?", &["The model says"]);
    walk.ask("ask with an error", "Who can fly?", &["10 rows"]);
    walk.browser.eval_script("document.querySelector('[name=sql]').value = 'SELECT a_column_that_does_not_exist_anywhere FROM hero WHERE height > 100'");
    walk.press_live("ask with a wrong query", "button[value=price]", &["no such column"]);
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Always);
    walk.look("ask to wait for", &daemon, "/ask", &["Write the query"]);
    walk.ask("asking", "Who is the oldest?", &["Working for", "Cancel"]);
}

/// The states of an upload, and the components in general.
fn uploading(walk: &mut Walk) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    walk.look("style guide", &daemon, "/styleguide", &["Main action", "A chart with a limit"]);
    walk.look("upload", &daemon, "/upload", &["at most 512 MB", "Upload"]);
    let choose = |walk: &mut Walk, name: &str, text: &str| {
        walk.browser.eval_script(&format!(
            "{{ const files = new DataTransfer(); files.items.add(new File([{text:?}], {name:?}));
               document.querySelector('input[type=file]').files = files.files; }}"
        ));
    };
    choose(walk, "a-file-with-a-long-name.csv", "name,country\n\"Berlin,Germany");
    walk.press_live("upload refused", "#upload button.main", &["line 2", "Nothing was added."]);
    choose(walk, "cities.csv", "name,name\nBerlin,B\nParis,P\nRome,R\n");
    walk.press_live("upload done", "#upload button.main", &["The spec cities is ready", "name_2"]);
    walk.look("spec to price", &daemon, "/specs/x", &["Show the price", "40 cells"]);
    walk.press("spec with a price", "button[value=price]", &["Ask for 40 cells, for at most $"]);
    let parameters = "/query?spec=x&sql=SELECT+name+FROM+hero+WHERE+height+%3E+:height+AND+name+%3C%3E+:a_parameter_with_a_long_name";
    walk.look("query with parameters", &daemon, parameters, &[":height", ":a_parameter"]);
    drop(daemon);
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    walk.look("upload not allowed", &daemon, "/upload", &["--edit"]);
    walk.look("no approvals", &daemon, "/approvals", &["No plan is waiting."]);
}

/// A query that is running.
fn querying(walk: &mut Walk) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Every(3));
    walk.look("query to wait for", &daemon, &format!("/query?spec=x&{LIVE}"), &["Run"]);
    walk.wait_for_words(&["Run, for at most $"]);
    walk.press_live("running query", "#query button[value=spend]", &["requests, $", "so far"]);
}

/// The states of a spec's text and lineage.
fn editing(walk: &mut Walk) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    walk.look("lineage of a new spec", &daemon, "/specs/x/lineage", &["0 of 10 cells"]);
    walk.look("spec text", &daemon, "/specs/x/edit", &["Save", "Preview 10 cells"]);
    walk.wait_for_words(&["The spec is valid."]);
    walk.press_live("spec preview", "button[value=preview]", &["missing cells", "at most $"]);
    walk.browser.eval_script(
        "{ const box = document.querySelector('.toml'); box.value = box.value.replace('[limits]', 'temprature = 3\\n[limits]');
           box.dispatchEvent(new Event('input', { bubbles: true })); }",
    );
    walk.wait_for_words(&["The spec has errors."]);
    walk.judge("spec with an error", &["temprature"]);
    walk.press_live("spec not saved", "button[value=save]", &["^^^^"]);
    drop(daemon);
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    walk.look("spec read only", &daemon, "/specs/x/edit", &["Read only"]);
    for sql in ["SELECT name, born FROM llm WHERE eye_color = 'Green'", "SELECT * FROM llm_power"] {
        daemon.query_rows(sql);
    }
    walk.look("lineage", &daemon, "/specs/x/lineage", &["run once", "hero_expanded"]);
}

/// The review of cells whose entities have several rows with long texts.
fn reviewing(walk: &mut Walk) {
    let endpoint = wordy();
    let project = heroes_project(&endpoint, "json");
    project.execute_sql(
        "ALTER TABLE hero ADD COLUMN story TEXT;
         ALTER TABLE hero ADD COLUMN a_column_with_a_long_name_that_no_line_can_contain BLOB;
         UPDATE hero SET story = replace(hex(zeroblob(90)), '00', 'A story that goes on. ');
         INSERT INTO hero (name, full_name, story, a_column_with_a_long_name_that_no_line_can_contain)
           SELECT name, full_name, replace(hex(zeroblob(20)), '00', 'Wordswithoutspaces'), x'00'
           FROM hero, (VALUES (1), (2), (3))",
    );
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    project
        .run_hqdl(&["audit", "specs/x.toml", "--sample", "6", "--seed", "1"])
        .expect_exit_code(0);
    let review = "/specs/x/review?table=llm&who=Ann";
    let words = ["Row 3 of 4 in hero", "first 3 of 4 rows", "more", "BLOB (1 B)", "Your name"];
    walk.look("review of several rows", &daemon, review, &words);
    walk.browser.leave_page(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
    );
    walk.judge("review of several rows, next", &["1 of 24", "Undo the last answer"]);
    project.execute_sql("DELETE FROM hero");
    let gone = ["No source has a row with this key any more."];
    walk.look("review without a row", &daemon, &format!("{review}&at=0"), &gone);
}

/// The thresholds of a cascade, and the review of its uncertain cells.
fn cascade(walk: &mut Walk) {
    let (_endpoints, project) = calibrated_project();
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("complete");
    let words = ["Cascade of llm.country", "probability ≥ 0.95", "chosen", "uncertain cells"];
    walk.look("thresholds", &daemon, "/specs/x", &words);
    let doubts = "/specs/x/doubts?table=llm";
    walk.look("uncertain cells", &daemon, doubts, &["Confidence 97 %", "Right", "gpt-4o-mini"]);
    walk.browser.leave_page(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
    );
    walk.judge("next uncertain cell", &["Undo the last answer", "Skip"]);
}

/// Plans of assistants that wait for an approval, and a client without the password.
fn approving(walk: &mut Walk) {
    let endpoint = mcp::endpoint(PLANNED);
    let project = mcp::project_with_expansion(&endpoint);
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let long = PLANNED.replace("= 'yes'", "= 'yes' AND superhero_name NOT IN ('a long name without any meaning', 'another one', 'Wordswithoutanyspaceinthem_Wordswithoutanyspaceinthem')");
    let plan = |sql: &str| mcp_http::call_without_session(&daemon, "query", json!({ "sql": sql }));
    mcp::approve(&project, &plan(PLANNED)["plan_id"]);
    assert_eq!(plan(&long)["status"], "approval_needed");
    walk.look("approvals", &daemon, "/approvals", &["Approve once", "Reject", "Withdraw"]);
    drop(daemon);
    let token = [("HQDL_TOKEN", "0123456789abcdef0123")];
    let daemon = Daemon::start_with(&project, &["--no-spend"], &token);
    walk.browser.open_without_password(&format!("http://{}/", daemon.address));
    walk.judge("no permission", &["Error", "password"]);
}

/// Keys that are images, of which one is missing.
fn showing_media(walk: &mut Walk) {
    let endpoint = Endpoint::start_answering(|_, _| "a wide picture of a table".into());
    let project = Project::new(
        &endpoint,
        "CREATE TABLE pet (id INTEGER PRIMARY KEY, photo); INSERT INTO pet VALUES (1, 'docs/page-light.png'), (2, 'docs/gone.png')",
        hqdl_testkit::fixture::PHOTO_SPEC,
    );
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir(project.path("docs")).unwrap();
    std::fs::copy(repository.join("docs/page-light.png"), project.path("docs/page-light.png"))
        .unwrap();
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("incomplete");
    walk.look("table of images", &daemon, "/specs/x/tables/pets", &["docs/gone.png", "error"]);
    let cell = |photo: &str| format!("/specs/x/cell?table=pets&column=animal&key=docs%2F{photo}");
    walk.look("cell of an image", &daemon, &cell("page-light.png"), &["a wide picture"]);
    walk.look("cell of a missing image", &daemon, &cell("gone.png"), &["error"]);
}

/// Tables that a run is filling, that it has filled in part, and that have many rows.
fn browsing(walk: &mut Walk) {
    let table = "/specs/x/tables/llm";
    let endpoint = wordy();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&["--limit", "4"]).expect_exit_code(0);
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Always);
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until("running", |spec| !spec["run"].is_null());
    walk.look("partly filled table", &daemon, table, &["4 rows", "A run is filling"]);
    drop(daemon);
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    walk.look("table with missing cells", &daemon, table, &["24 cells are missing"]);
    project.execute_sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
         INSERT INTO hqdl_record (expansion, key, cells)
           SELECT 'llm', json_array(format('hero %06d', i), NULL), r.cells
           FROM n, (SELECT cells FROM hqdl_record LIMIT 1) AS r",
    );
    let cut = "more than 100,000 rows";
    walk.look(
        "large table",
        &daemon,
        &format!("{table}?after=%5B%22hero%20050000%22%2Cnull%5D"),
        &[cut, "hero 050001", "Previous"],
    );
    walk.look(
        "facet of a large table",
        &daemon,
        &format!("{table}?facet=eye_color&facet=born"),
        &["100,004 rows", "distinct"],
    );
}

fn all(walk: &mut Walk) {
    cascade(walk);
    {
        let endpoint = wordy();
        let project = heroes_project(&endpoint, "json");
        let daemon = Daemon::start(&project, &[]);
        daemon.wait_until_idle("complete");
        at_rest(walk, &project, &daemon);
    }
    {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        std::fs::remove_file(project.path("specs/x.toml")).unwrap();
        let daemon = Daemon::start(&project, &[]);
        walk.look("empty", &daemon, "/", &["No spec in", "No run yet."]);
        walk.look("empty query", &daemon, "/query", &["Query"]);
    }
    {
        let endpoint = truthful_endpoint();
        // Two of the three requests are answered; the third is in progress.
        endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Every(3));
        let project = heroes_project(&endpoint, "csv");
        let daemon = Daemon::start(&project, &[]);
        let run = || daemon.status()["runs"][0].clone();
        endpoint.wait_for(3);
        let answered_cells = || -> usize {
            let answered = endpoint.received_requests().into_iter().filter(|r| r.is_answered);
            answered.map(|r| r.requested_cells().len()).sum()
        };
        hqdl_testkit::daemon::wait_until("under way", || {
            let run = run();
            run["requests"] == 2 && run["cells_done"] == answered_cells()
        });
        let done = format!("{} of 40", answered_cells());
        let said = format!("{done} missing cells are being filled by run 1");
        walk.look("running", &daemon, "/", &[&said]);
        walk.look("running spec", &daemon, "/specs/x", &["Pause", &done, "running"]);
        walk.look("running table", &daemon, "/specs/x/tables/llm", &["A run is filling it"]);
    }
    {
        let endpoint = truthful_endpoint();
        let said = format!("the key is not one of ours ({})", "no-space-in-it-".repeat(20));
        endpoint.add_fault(Fault::status(401, &said, "invalid_api_key"), Frequency::Always);
        let project = heroes_project(&endpoint, "csv");
        let daemon = Daemon::start(&project, &[]);
        let is_held = |spec: &Json| spec["run"].is_null() && !spec["held"].is_null();
        daemon.wait_until("refused", is_held);
        daemon.submit_form("/specs/x/go", "budget=1").expect_status(303);
        hqdl_testkit::daemon::wait_until("failed again", || {
            let runs = daemon.status()["runs"].as_array().cloned().unwrap_or_default();
            runs.len() == 2 && runs.iter().all(|run| run["state"] != "running")
        });
        walk.look("refused", &daemon, "/", &["waiting", "failed, see above", "no-space-in-it"]);
        walk.look("refused spec", &daemon, "/specs/x", &["Waiting for your approval", "401"]);
        walk.browser
            .eval_script("document.querySelectorAll('details').forEach(d => d.open = true)");
        walk.judge("refused told in full", &["no-space-in-it"]);
    }
    {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project.write_spec(
            &project.spec_text().replace(&endpoint.base_url(), "http://127.0.0.1:9/v1"),
        );
        let daemon = Daemon::start(&project, &[]);
        daemon.wait_until_idle("failing");
        // A retry may be running by the time a page is read.
        walk.look("failing", &daemon, "/", &["The daemon retries it", "127.0.0.1:9"]);
        walk.look("failing spec", &daemon, "/specs/x", &["The daemon retries it"]);
        walk.look("query without an endpoint", &daemon, &format!("/query?spec=x&{LIVE}"), &["Run"]);
        walk.wait_for_words(&["Run, for at most $"]);
        walk.press_live("query failed", "#query button[value=spend]", &["127.0.0.1:9"]);
    }
    {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project
            .write_spec(&project.spec_text().replace("[limits]", "[limits]\nbudget_usd = 0.0003"));
        let daemon = Daemon::start(&project, &[]);
        let is_held = |spec: &Json| spec["run"].is_null() && !spec["held"].is_null();
        daemon.wait_until("held", is_held);
        walk.look("waiting for money", &daemon, "/", &["Waiting for your approval", "budget"]);
        walk.look("spec waiting for money", &daemon, "/specs/x", &["at most", "Ask for"]);
    }
    {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project.execute_sql("DELETE FROM hero");
        let daemon = Daemon::start(&project, &[]);
        daemon.wait_until_idle("complete");
        walk.look("no source rows", &daemon, "/", &["complete", "No requests were sent."]);
        walk.look("spec of no rows", &daemon, "/specs/x", &["eye_color"]);
        walk.look("table of no rows", &daemon, "/specs/x/tables/llm", &["No row"]);
    }
    {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        let daemon = Daemon::start(&project, &["--no-spend"]);
        daemon.wait_until_idle("waiting");
        walk.look("not published", &daemon, "/", &["--no-spend", "Waiting for your approval"]);
        walk.look("spec not published", &daemon, "/specs/x", &["Ask for 40 cells", "none asked"]);
        walk.browser.eval_script("document.querySelector('[name=budget]').value = 'a lot'");
        let button = "form[action$=go] button";
        walk.press("budget refused", button, &["`a lot` is not a valid budget"]);
        walk.look(
            "table not published",
            &daemon,
            "/specs/x/tables/llm",
            &["No row has an answer yet."],
        );
    }
}

/// Returns the first complaints, each shortened, and the number of the others, so that a log that
/// keeps only the end of a long message shows them.
fn describe_complaints(complaints: &[String]) -> String {
    let shorten = |complaint: &String| match complaint.char_indices().nth(MAX_COMPLAINT_CHARS) {
        Some((at, _)) => format!("{}…", &complaint[..at]),
        None => complaint.clone(),
    };
    let mut lines: Vec<String> = complaints.iter().take(MAX_COMPLAINTS).map(shorten).collect();
    if complaints.len() > MAX_COMPLAINTS {
        lines.push(format!("and {} more", complaints.len() - MAX_COMPLAINTS));
    }
    lines.join("\n")
}

#[test]
fn complaints_are_few_and_short() {
    let long: Vec<String> = (0..12).map(|n| format!("{n}: {}", "é".repeat(500))).collect();
    let text = describe_complaints(&long);
    assert_eq!(text.lines().count(), MAX_COMPLAINTS + 1, "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 300), "{text}");
    assert!(text.ends_with("\nand 2 more"), "{text}");
    assert_eq!(describe_complaints(&["short".to_owned()]), "short");
}

/// Visits states in a browser and expects no complaint.
fn check_states(visit: impl FnOnce(&mut Walk)) {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    let home = tempfile::tempdir().unwrap();
    let mut walk = Walk {
        browser: Browser::start(&program, home.path()),
        complaints: Vec::new(),
        axe: read_axe(),
    };
    visit(&mut walk);
    assert!(walk.complaints.is_empty(), "{}", describe_complaints(&walk.complaints));
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn the_page_is_readable_in_every_state() {
    check_states(all);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn the_ask_page_is_readable_in_every_state() {
    check_states(asking);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn the_pages_of_a_spec_are_readable_in_every_state() {
    check_states(editing);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn the_review_page_is_readable_with_its_rows() {
    check_states(reviewing);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn the_upload_page_is_readable_in_every_state() {
    check_states(uploading);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_running_query_is_readable() {
    check_states(querying);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn tables_of_any_size_are_readable() {
    check_states(browsing);
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn approvals_and_media_are_readable() {
    check_states(|walk| {
        approving(walk);
        showing_media(walk);
    });
}
