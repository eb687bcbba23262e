//! Tasks on the daemon's page: uploading data, pricing and running a spec, auditing its answers,
//! and following a query while it runs. Some run in a real browser, as a person would do them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hqdl_testkit::browser::{Browser, find_chromium};
use hqdl_testkit::daemon::{DEADLINE, Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};
use serde_json::{Value as Json, json};

use crate::ask_page::{asking_endpoint, percent_encode, press};

const CITIES: &str = "name,country,population\nBerlin,Germany,3600000\nParis,France,2100000\n\
    Rome,Italy,2800000\nMadrid,Spain,3300000\nVienna,Austria,1900000\nOslo,Norway,700000\n\
    Lisbon,Portugal,550000\nDublin,Ireland,590000\nPrague,Czechia,1300000\nAthens,Greece,640000\n";
/// Number of cities.
const CITY_COUNT: usize = 10;

/// Starts an endpoint that describes cities.
fn city_endpoint() -> Endpoint {
    Endpoint::start_with(|_, key| format!("The city of {}", key[0].as_str().unwrap()).into())
}

/// Returns a project whose folder of specs is empty.
fn empty_project(endpoint: &Endpoint) -> Project {
    let project = heroes_project(endpoint, "json");
    std::fs::remove_file(project.path("specs/x.toml")).unwrap();
    project
}

/// A form with a file, as a browser sends it.
struct Form<'f> {
    name: &'f str,
    file_name: &'f str,
    bytes: &'f [u8],
    origin: &'f str,
    /// Number of bytes to leave out at the end.
    missing: usize,
}

impl<'f> Form<'f> {
    fn new(file_name: &'f str, bytes: &'f [u8]) -> Self {
        Self { name: "", file_name, bytes, origin: "", missing: 0 }
    }

    /// Sends the form, and returns the status and the page.
    fn send(&self, daemon: &Daemon) -> (u16, String) {
        let part = "--cut\r\nContent-Disposition: form-data; name=";
        let mut body = format!(
            "{part}\"name\"\r\n\r\n{}\r\n{part}\"file\"; filename=\"{}\"\r\n\r\n",
            self.name, self.file_name
        )
        .into_bytes();
        body.extend_from_slice(self.bytes);
        body.extend_from_slice(b"\r\n--cut--\r\n");
        let own = format!("http://{}", daemon.address);
        let origin = if self.origin.is_empty() { own.as_str() } else { self.origin };
        let head = format!(
            "POST /upload HTTP/1.0\r\nHost: {}\r\nOrigin: {origin}\r\nContent-Length: {}\r\n\
             Content-Type: multipart/form-data; boundary=cut\r\n\r\n",
            daemon.address,
            body.len()
        );
        let mut stream = TcpStream::connect(&daemon.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        // The daemon may answer before it has read the whole body.
        let _ = stream.write_all(&body[..body.len() - self.missing]);
        if self.missing > 0 {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        (text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0), text)
    }
}

/// Returns the names of the files in the folder of the specs.
fn spec_files(project: &Project) -> Vec<String> {
    let entries = std::fs::read_dir(project.path("specs")).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn find_spec(daemon: &Daemon, name: &str) -> Json {
    let status = daemon.status();
    let specs = status["specs"].as_array().unwrap();
    specs.iter().find(|spec| spec["name"] == name).cloned().unwrap_or_default()
}

/// Returns the text of a first spec with the model of the test.
fn with_test_model(text: &str, endpoint: &Endpoint) -> String {
    let key = "api_key_env = \"OPENAI_API_KEY\"";
    assert!(text.contains(key), "{text}");
    let price = "price = { input = 0.15, output = 0.6 }";
    text.replace(key, &format!("base_url = \"{}\"\n{price}\n#", endpoint.base_url()))
}

#[test]
fn an_upload_becomes_a_spec_that_spends_only_the_approved_price() {
    let endpoint = city_endpoint();
    let project = empty_project(&endpoint);
    let daemon = Daemon::start(&project, &["--edit"]);
    let (status, page) = Form::new("Big cities.csv", CITIES.as_bytes()).send(&daemon);
    assert_eq!(status, 200, "{page}");
    for part in
        ["The spec Big-cities is ready", "llm_big_cities", "the key of `Big_cities` is `name`"]
    {
        assert!(page.to_lowercase().contains(&part.to_lowercase()), "{part}: {page}");
    }
    assert_eq!(spec_files(&project), ["Big-cities.sqlite", "Big-cities.toml"]);
    // The daemon may spend, but the new spec may not.
    let text = std::fs::read_to_string(project.path("specs/Big-cities.toml")).unwrap();
    let body = press(&page, "save", &[("text", &with_test_model(&text, &endpoint))]);
    let saved = daemon.submit_form("/specs/Big-cities/edit", &body).expect_status(200).body;
    assert!(saved.contains("Saved."), "{saved}");
    wait_until("held", || {
        let spec = find_spec(&daemon, "Big-cities");
        spec["state"] == "waiting" && spec["run"].is_null()
    });
    assert_eq!(endpoint.request_count(), 0);
    let priced = daemon.get("/specs/Big-cities?do=price").expect_status(200).body;
    assert!(priced.contains("Ask for 10 cells, for at most $"), "{priced}");
    assert_eq!(endpoint.request_count(), 0);
    let budget = priced.split("name=\"budget\" value=\"").nth(1).unwrap();
    let budget = budget.split('"').next().unwrap();
    daemon.submit_form("/specs/Big-cities/go", &format!("budget={budget}")).expect_status(303);
    wait_until("complete", || find_spec(&daemon, "Big-cities")["state"] == "complete");
    let status = daemon.status();
    let cost = status["runs"][0]["cost_usd"].as_f64().unwrap();
    assert!(cost > 0.0 && cost <= budget.parse().unwrap(), "{cost} of {budget}");
    assert_eq!(endpoint.cells_since(0).len(), CITY_COUNT);
    // A second price is free, and so is the run.
    let free = daemon.get("/specs/Big-cities?do=price").expect_status(200).body;
    assert!(free.contains("No cell is missing"), "{free}");
}

#[test]
fn an_upload_stays_in_its_folder_and_replaces_nothing() {
    let endpoint = city_endpoint();
    let project = empty_project(&endpoint);
    let daemon = Daemon::start(&project, &["--edit", "--no-spend"]);
    for (file_name, name, created) in [
        ("../../x.csv", "", "x"),
        ("..\\\\..\\\\y.csv", "", "y"),
        (".z.csv", "", "z"),
        ("a.csv", "../../../b/c", "b-c"),
        ("..", "..", "upload"),
        ("Städte (neu).csv", "", "Städte--neu"),
    ] {
        let before = spec_files(&project);
        let file_name = if file_name == ".." { "...csv" } else { file_name };
        let (status, page) = Form { name, ..Form::new(file_name, CITIES.as_bytes()) }.send(&daemon);
        assert_eq!(status, 200, "{file_name}: {page}");
        let mut files = spec_files(&project);
        // The daemon publishes the tables of the spec before.
        files.retain(|file| !before.contains(file) && !file.contains(".expanded.sqlite"));
        assert_eq!(files, [format!("{created}.sqlite"), format!("{created}.toml")]);
    }
    // Files of an earlier spec stay as they are, and do not apply to a new one.
    for file in ["X.csv", "old.csv", "DB.csv"] {
        std::fs::write(project.path("specs/old.overrides.csv"), "name,column,value,note\n")
            .unwrap();
        std::fs::write(project.path("specs/db.sqlite-wal"), "a journal").unwrap();
        // The daemon publishes the tables of the specs meanwhile.
        let unpublished_files = || {
            let mut files = spec_files(&project);
            files.retain(|file| !file.contains(".expanded.sqlite"));
            files
        };
        let before = unpublished_files();
        let bytes = std::fs::read(project.path("specs/x.toml")).unwrap();
        let (status, page) = Form::new(file, CITIES.as_bytes()).send(&daemon);
        assert_eq!(status, 409, "{file}: {page}");
        assert_eq!(unpublished_files(), before);
        assert_eq!(std::fs::read(project.path("specs/x.toml")).unwrap(), bytes);
    }
    // Files elsewhere are untouched.
    assert!(!project.path("x.toml").exists() && !project.path("y.toml").exists());
}

#[test]
fn a_wrong_upload_leaves_nothing_behind() {
    let endpoint = city_endpoint();
    let project = empty_project(&endpoint);
    let daemon = Daemon::start(&project, &["--edit", "--max-upload", "1"]);
    let large = "x,y\n".repeat(300_000);
    let wide = "a,".repeat(20_000);
    let latin = b"name,country\nM\xfcnchen,Germany\n";
    let foreign = Form { origin: "http://example.org", ..Form::new("a.csv", CITIES.as_bytes()) };
    assert_eq!(foreign.send(&daemon).0, 403);
    let cut = Form { missing: 60, ..Form::new("a.csv", CITIES.as_bytes()) };
    cut.send(&daemon);
    wait_until("removed", || spec_files(&project).is_empty());
    for (file_name, bytes, status, words) in [
        ("a.csv", &latin[..], 400, "export it as UTF-8"),
        ("a.csv", b"", 400, "no header line"),
        ("a.csv", b"name,country\n\"Berlin,Germany\n", 400, "line 2"),
        ("a.csv", b"name,country\nBerlin\n", 400, "line 2"),
        ("a.csv", wide.as_bytes(), 400, "it has 20001 columns"),
        ("a.csv", b"PK\x03\x04 and so on", 400, "spreadsheet"),
        ("a.xlsx", b"PK\x03\x04 and so on", 400, "neither a CSV file nor a SQLite database"),
        ("a.sqlite", b"SQLite format 3\0 and nothing else", 400, "a.sqlite"),
        ("a.csv", large.as_bytes(), 413, "larger than 1 MB"),
    ] {
        let (found, page) = Form::new(file_name, bytes).send(&daemon);
        assert_eq!(found, status, "{file_name}: {page}");
        let page = page.replace("&#39;", "'");
        assert!(page.contains(words), "{words}: {page}");
        assert!(!page.contains(".hqdl-upload-"), "{page}");
        assert_eq!(spec_files(&project), Vec::<String>::new());
    }
    // Renamed columns are reported.
    let (status, page) =
        Form::new("a.csv", b"name,name\nBerlin,B\nParis,P\nRome,R\n").send(&daemon);
    assert_eq!(status, 200);
    assert!(page.contains("a.csv: a second column `name` is imported as `name_2`"), "{page}");
    drop(daemon);
    let daemon = Daemon::start(&project, &[]);
    assert_eq!(Form::new("b.csv", CITIES.as_bytes()).send(&daemon).0, 403);
    // The daemon may have begun to publish the first upload.
    let mut files = spec_files(&project);
    files.retain(|name| !name.starts_with("a.expanded"));
    assert_eq!(files, ["a.sqlite", "a.toml"]);
}

#[test]
fn an_import_does_not_block_other_edits() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--edit", "--no-spend"]);
    daemon.wait_until_idle("waiting");
    let numbers = (0..1_500_000).map(|n| format!("{n},{n}\n")).collect::<Vec<_>>().concat();
    let numbers = format!("a,b\n{numbers}");
    let is_importing = || {
        let folders = std::fs::read_dir(project.path("specs")).unwrap().map(Result::unwrap);
        folders.filter(|e| e.file_name().to_string_lossy().starts_with(".hqdl-upload-")).any(|e| {
            let files = std::fs::read_dir(e.path()).into_iter().flatten().flatten();
            files.into_iter().any(|f| f.file_name().to_string_lossy().ends_with(".part"))
        })
    };
    std::thread::scope(|threads| {
        let upload = threads.spawn(|| Form::new("numbers.csv", numbers.as_bytes()).send(&daemon));
        wait_until("the import begins", is_importing);
        let word = json!({
            "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "motto", "value": "Zzz"
        });
        daemon.post("/v1/overrides", &word).expect_status(200);
        assert!(is_importing(), "the override waited for the import");
        let (status, page) = upload.join().unwrap();
        assert_eq!(status, 200, "{page}");
    });
}

#[test]
fn a_database_can_be_uploaded() {
    let endpoint = truthful_endpoint();
    let project = empty_project(&endpoint);
    let daemon = Daemon::start(&project, &["--edit", "--no-spend"]);
    let bytes = std::fs::read(project.path("data.sqlite")).unwrap();
    let (status, page) = Form { name: "heroes", ..Form::new("data.db", &bytes) }.send(&daemon);
    assert_eq!(status, 200, "{page}");
    assert_eq!(std::fs::read(project.path("specs/heroes.sqlite")).unwrap(), bytes);
    assert!(page.contains("llm_hero"), "{page}");
}

#[test]
fn a_running_query_sends_its_progress_and_first_rows() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let sql = "SELECT name, {{LLMMap('Which planet is it from?', hero.name)}} FROM hero WHERE height > :height";
    let form = format!("spec=x&do=spend&max_cost=1&sql={}&param%3Aheight=1", percent_encode(sql));
    let head = format!(
        "Content-Type: application/x-www-form-urlencoded\r\nAccept: application/x-ndjson\r\nOrigin: http://{}\r\n",
        daemon.address
    );
    let answer = daemon.send_request("POST", "/query", &head, &form).expect_status(200);
    let lines = answer.json_lines();
    assert_eq!(lines[0]["progress"]["requests"], 0, "{answer:?}");
    let requests: Vec<u64> =
        lines.iter().filter_map(|line| line["progress"]["requests"].as_u64()).collect();
    assert!(requests.is_sorted() && requests.last() > Some(&0), "{requests:?}");
    let position = |part: &str| lines.iter().position(|line| !line[part].is_null()).unwrap();
    assert!(position("table") < position("rows") && position("rows") < position("page"));
    assert!(lines[position("rows")]["rows"].as_str().unwrap().contains("<tr>"));
    let page = lines.last().unwrap()["page"].as_str().unwrap();
    assert!(
        page.contains("10 rows") && page.contains("name=\"param:height\" value=\"1\""),
        "{page}"
    );
    // An error is the page, too.
    let wrong = daemon.send_request("POST", "/query", &head, "spec=x&do=run&sql=SELECT+nope");
    assert!(
        wrong.json_lines().last().unwrap()["page"].as_str().unwrap().contains("no such column")
    );
}

#[test]
fn a_parameter_is_a_value() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let sql = percent_encode(
        "SELECT typeof(:n) AS kind, count(*) FROM hero WHERE name = $t OR ':no' = ''",
    );
    let form = |n: &str, t: &str| {
        format!(
            "spec=x&do=run&sql={sql}&param%3An={}&param%24t={}",
            percent_encode(n),
            percent_encode(t)
        )
    };
    for (n, kind) in
        [("12", "integer"), ("1.5", "real"), ("x' OR 1=1 --", "text"), ("null", "null")]
    {
        let page = daemon.submit_form("/query", &form(n, "Zed")).expect_status(200).body;
        assert!(page.contains(&format!("<td>{kind}</td><td class=\"n\">1</td>")), "{n}: {page}");
        assert!(!page.contains("param:no"), "{page}");
    }
    let page = daemon.submit_form("/query", &form("1", "x' OR 1=1 --")).expect_status(200).body;
    assert!(page.contains("<td class=\"n\">0</td>"), "{page}");
}

#[test]
fn a_sample_is_drawn_on_the_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    assert!(daemon.get("/").body.contains("Audit suggested"));
    daemon.submit_form("/specs/x/audit", "table=llm&rows=none").expect_status(400);
    daemon.submit_form("/specs/x/audit", "table=nothing&rows=5").expect_status(400);
    let drawn = daemon.submit_form("/specs/x/audit", "table=llm&rows=5").expect_status(303);
    assert!(drawn.headers.contains("/specs/x/review?table=llm"), "{drawn:?}");
    let review = daemon.get("/specs/x/review?table=llm").expect_status(200).body;
    assert!(review.contains("0 of 20"), "{review}");
    assert!(!daemon.get("/").body.contains("Audit suggested"));
    // A second sample would lose the answers to the first one.
    daemon.submit_form("/specs/x/audit", "table=llm&rows=6").expect_status(400);
}

/// A browser on a daemon's page.
struct Tab<'d> {
    browser: Browser,
    daemon: &'d Daemon,
}

impl Tab<'_> {
    fn open(&mut self, path: &str) {
        self.browser.open_page(&format!("http://{}{path}", self.daemon.address));
    }

    /// Waits until an expression of the page is true.
    fn wait_for(&mut self, condition: &str) {
        let began = Instant::now();
        while self.browser.eval_script(condition) != json!(true) {
            let text = self.browser.eval_script("document.body?.innerText ?? null");
            assert!(began.elapsed() < Duration::from_secs(30), "never {condition}: {text}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    fn wait_for_text(&mut self, words: &str) {
        self.wait_for(&format!("document.body?.textContent.includes({words:?}) === true"));
    }

    /// Presses the button whose text begins with these words.
    fn press(&mut self, words: &str) {
        self.wait_for(&format!("{} !== undefined", find_button(words)));
        self.browser.eval_script(&format!("{}.click()", find_button(words)));
    }

    /// Enters a text into a field.
    fn fill(&mut self, field: &str, text: &str) {
        self.browser.eval_script(&format!(
            "{{ const field = document.querySelector({field:?}); field.value = {text:?};
               field.dispatchEvent(new Event('input', {{ bubbles: true }})); }}"
        ));
    }

    fn read(&mut self, expression: &str) -> String {
        self.browser.eval_script(expression).as_str().unwrap_or_default().to_owned()
    }
}

fn find_button(words: &str) -> String {
    format!(
        "[...document.querySelectorAll('main button')].find((b) => !b.hidden && b.textContent.trim().startsWith({words:?}))"
    )
}

fn start_browser(home: &Path) -> Browser {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    Browser::start(&program, home)
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_person_uploads_prices_runs_reviews_charts_and_exports() {
    let endpoint = city_endpoint();
    let project = empty_project(&endpoint);
    let daemon = Daemon::start(&project, &["--edit"]);
    let home = tempfile::tempdir().unwrap();
    let mut tab = Tab { browser: start_browser(home.path()), daemon: &daemon };
    tab.open("/upload");
    tab.browser.eval_script(&format!(
        "{{ const files = new DataTransfer(); files.items.add(new File([{CITIES:?}], 'cities.csv'));
           document.querySelector('input[type=file]').files = files.files; }}"
    ));
    tab.press("Upload");
    tab.wait_for_text("The spec cities is ready");
    assert_eq!(tab.read("location.pathname"), "/specs/cities/edit");
    let text = tab.read("document.querySelector('.toml').value");
    tab.fill(".toml", &with_test_model(&text, &endpoint));
    tab.press("Preview");
    tab.wait_for_text("10 missing cells");
    tab.press("Save");
    tab.wait_for_text("Saved.");
    // The daemon reads the saved spec and runs it again, without spending.
    wait_until("held", || {
        let runs = daemon.status()["runs"].as_array().map_or(0, Vec::len);
        runs > 1 && find_spec(&daemon, "cities")["state"] == "waiting"
    });
    assert_eq!(endpoint.request_count(), 0);
    tab.open("/specs/cities");
    tab.press("Show the price");
    tab.press("Ask for 10 cells, for at most $");
    tab.wait_for_text("100 %");
    assert_eq!(endpoint.cells_since(0).len(), CITY_COUNT);
    tab.open("/");
    tab.press("Draw a sample");
    for reviewed in 0..CITY_COUNT {
        tab.wait_for(&format!("document.querySelector('.review') !== null && document.body?.textContent.includes('{reviewed} of 10')"));
        tab.browser.eval_script(
            "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
        );
    }
    tab.wait_for_text("10 of 10");
    tab.open("/query?spec=cities&sql=SELECT+name%2C+population+FROM+cities+JOIN+llm_cities+USING+(name)+WHERE+population+%3E+:least");
    tab.fill("#parameters input", "1000000");
    tab.press("Run");
    tab.wait_for_text("6 rows");
    tab.wait_for("document.querySelector('figure svg rect') !== null");
    let export = "fetch('/query', { method: 'POST', body: new URLSearchParams([...new FormData(document.querySelector('#query')), ['do', 'csv']]) }).then((r) => r.text())";
    let csv = tab.read(export);
    assert!(csv.starts_with("name,population\n") && csv.lines().count() == 7, "{csv}");
    assert_eq!(tab.browser.take_errors(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_person_asks_approves_and_saves() {
    let endpoint = asking_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--edit"]);
    daemon.wait_until_idle("complete");
    let home = tempfile::tempdir().unwrap();
    let mut tab = Tab { browser: start_browser(home.path()), daemon: &daemon };
    tab.open("/ask");
    tab.fill("textarea[name=question]", "Who can fly?");
    tab.press("Write the query");
    tab.press("Run, for at most $");
    tab.wait_for_text("10 rows");
    tab.browser
        .eval_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })");
    tab.press("Keep");
    tab.wait_for_text("Kept as an [[example]]");
    assert!(project.spec_text().contains("Who can fly?"), "{}", project.spec_text());
    assert_eq!(tab.browser.take_errors(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_person_cancels_a_query_and_pauses_a_run() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Every(3));
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    endpoint.wait_for(3);
    let home = tempfile::tempdir().unwrap();
    let mut tab = Tab { browser: start_browser(home.path()), daemon: &daemon };
    tab.open("/");
    tab.press("Pause");
    wait_until("paused", || daemon.spec_status()["state"] == "waiting");
    tab.open("/");
    tab.press("Resume");
    tab.wait_for_text("missing cells in");
    let sql = "SELECT {{LLMMap('Which planet is it from?', hero.name)}} FROM hero";
    tab.open(&format!("/query?spec=x&sql={}", percent_encode(sql)));
    tab.press("Run, for at most $");
    tab.wait_for_text("Running for");
    tab.press("Cancel");
    tab.wait_for_text("Cancelled. All answers so far are kept.");
    assert_eq!(tab.browser.take_errors(), Vec::<String>::new());
}
