//! The daemon's Ask page: nothing is spent before a press that shows the price, a form that is sent
//! twice spends once, and an answer is kept only with `--edit`.

use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::browser::{Browser, find_chromium};
use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{COLUMN_NAMES, HERO_COUNT, Project, heroes_project, true_value};

/// Number of different names: a live question is asked once for each.
const NAME_COUNT: usize = 9;
const FREE: &str = "SELECT name FROM hero WHERE height > 150 ORDER BY name";
const LIVE: &str = "SELECT name FROM hero WHERE {{LLMMap('Can it fly?', hero.name)}} = 'yes'";
const YEARS: &str = "SELECT name, born FROM llm ORDER BY name";
const NONE: &str = "SELECT name FROM hero WHERE name = 'Zedd'";
const RELAXED: &str = "SELECT name FROM hero WHERE name LIKE 'Zed%'";

/// Writes the query of each question, and answers the questions about heroes.
pub fn asking_endpoint() -> Endpoint {
    Endpoint::start_answering(|column, row| match column.name.as_str() {
        "sql" => match row.key.last().and_then(Json::as_str) {
            Some("Who is tall?" | "And by name?") => FREE.into(),
            Some("Who can fly?") => LIVE.into(),
            Some("How old is each?") => YEARS.into(),
            Some("Who is Zedd?") => NONE.into(),
            Some("What does it weigh?") => Json::Null,
            _ => RELAXED.into(),
        },
        "dialect" => "sqlite".into(),
        "assumptions" => "tall means more than 150 cm".into(),
        "cannot_answer" => match row.key.last().and_then(Json::as_str) {
            Some("What does it weigh?") => "no table has <b>weights</b>".into(),
            _ => Json::Null,
        },
        name if COLUMN_NAMES.contains(&name) => true_value(name, &row.key),
        _ => "yes".into(),
    })
}

fn start(flags: &[&str]) -> (Endpoint, Project, Daemon) {
    let endpoint = asking_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[&["--no-spend"], flags].concat());
    daemon.wait_until_idle("waiting");
    (endpoint, project, daemon)
}

/// Returns the fields of the form that has a button, as a body that presses it.
pub fn press(page: &str, button: &str, changed: &[(&str, &str)]) -> String {
    let has_button = |form: &&str| form.contains(&format!("name=\"do\" value=\"{button}\""));
    let forms = page.split("<form").skip(1).map(|form| form.split("</form>").next().unwrap());
    let form = forms.into_iter().find(has_button).unwrap_or_else(|| panic!("no {button}: {page}"));
    let attribute = |tag: &str, name: &str| {
        let start = format!(" {name}=\"");
        tag.split(&start).nth(1).map(|rest| unescape(rest.split('"').next().unwrap()))
    };
    let mut fields: Vec<(String, String)> = Vec::new();
    for tag in form.split('<').filter(|tag| tag.starts_with("input") || tag.starts_with("textarea"))
    {
        let name = attribute(tag, "name").unwrap();
        let value = match tag.strip_prefix("textarea") {
            Some(rest) => unescape(rest.split_once('>').unwrap().1),
            None => attribute(tag, "value").unwrap_or_default(),
        };
        let changed = changed.iter().find(|(changed, _)| *changed == name);
        fields.push((name, changed.map_or(value, |(_, value)| (*value).to_owned())));
    }
    fields.push(("do".to_owned(), button.to_owned()));
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
    fields.join("&")
}

/// Percent-encodes a text for a form.
pub fn percent_encode(text: &str) -> String {
    let byte = |b: u8| match b {
        b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

fn unescape(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// Presses a button of a page and returns the next page.
fn submit(daemon: &Daemon, page: &str, button: &str, changed: &[(&str, &str)]) -> String {
    daemon.submit_form("/ask", &press(page, button, changed)).expect_status(200).body
}

fn open(daemon: &Daemon) -> String {
    daemon.get("/ask").expect_status(200).body
}

#[test]
fn a_query_runs_only_after_a_press_that_shows_its_price() {
    let (endpoint, _project, daemon) = start(&[]);
    let page = open(&daemon);
    assert!(page.contains("Write the query, for at most $0.0200"), "{page}");
    daemon.get("/ask?question=Who+can+fly%3F&do=write").expect_status(200);
    assert_eq!(endpoint.request_count(), 0, "a link writes nothing");
    let written = submit(&daemon, &page, "write", &[("question", "Who can fly?")]);
    assert_eq!(endpoint.request_count(), 1);
    for part in
        ["Run, for at most $", "LLMMap", "tall means more than 150 cm", "Writing the query cost $"]
    {
        assert!(written.contains(part), "{part}: {written}");
    }
    // An edited query with another price is not run at the old one, and pricing is free.
    let other = "SELECT {{LLMMap('Can it fly?', hero.name)}}, {{LLMMap('Can it swim?', hero.name)}} FROM hero";
    let changed = submit(&daemon, &written, "run", &[("sql", other)]);
    assert!(changed.contains("Approve the new cost"), "{changed}");
    submit(&daemon, &written, "price", &[("sql", other)]);
    assert_eq!(endpoint.request_count(), 1);
    let ran = submit(&daemon, &written, "run", &[]);
    let count = format!("<strong>{HERO_COUNT} rows</strong>: searched {HERO_COUNT} rows of hero");
    assert!(ran.contains(&count), "{ran}");
    assert_eq!(endpoint.cells_since(1).len(), NAME_COUNT);
    // What is known is free.
    let again = submit(&daemon, &open(&daemon), "write", &[("question", "Who can fly?")]);
    assert!(again.contains(&count), "{again}");
    let wrong = press(&again, "price", &[("sql", "SELECT nope FROM hero")]);
    let wrong = daemon.submit_form("/ask", &wrong).expect_status(400).body;
    assert!(wrong.contains("no such column: nope") && wrong.contains("^^^^"), "{wrong}");
    assert!(wrong.contains("SELECT nope FROM hero</textarea>"), "{wrong}");
    // The page shows the price of writing first.
    let cheap = press(&page, "write", &[("question", "Who?"), ("writing_cost", "free")]);
    let before = endpoint.request_count();
    let refused = daemon.submit_form("/ask", &cheap).expect_status(200).body;
    assert!(refused.contains("Writing a query is now for at most $0.0200"), "{refused}");
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn a_spec_without_a_budget_can_be_asked_at_the_price_shown() {
    let endpoint = asking_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.write_spec(&project.spec_text().replace("[limits]", "[limits]\nbudget_usd = 0"));
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let page = open(&daemon);
    assert!(page.contains("Write the query, for at most $0.0200"), "{page}");
    let written = submit(&daemon, &page, "write", &[("question", "Who can fly?")]);
    assert!(written.contains("Run, for at most $") && !written.contains("at most $0.0000"));
    let ran = submit(&daemon, &written, "run", &[]);
    assert!(ran.contains(&format!("<strong>{HERO_COUNT} rows</strong>")), "{ran}");
}

#[test]
fn a_query_without_a_known_price_runs_only_as_it_was_approved() {
    let endpoint = asking_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.write_spec(&project.spec_text().replace("price =", "# price ="));
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let written = submit(&daemon, &open(&daemon), "write", &[("question", "Who can fly?")]);
    assert!(written.contains("Run, at an unknown cost"), "{written}");
    let other = "SELECT {{LLMMap('Can it fly?', hero.name)}}, {{LLMMap('Can it swim?', hero.name)}} FROM hero";
    let changed = submit(&daemon, &written, "run", &[("sql", other)]);
    assert!(changed.contains("This is another query") && changed.contains("swim"), "{changed}");
    assert_eq!(endpoint.request_count(), 1);
    // The query that the page has shown runs, whether a model or the user wrote it.
    let ran = submit(&daemon, &written, "run", &[]);
    assert!(ran.contains(&format!("<strong>{HERO_COUNT} rows</strong>")), "{ran}");
    assert_eq!(endpoint.cells_since(1).len(), NAME_COUNT);
    let priced = submit(&daemon, &written, "price", &[("sql", other)]);
    let ran = submit(&daemon, &priced, "run", &[]);
    assert!(ran.contains(&format!("<strong>{HERO_COUNT} rows</strong>")), "{ran}");
    assert_eq!(endpoint.cells_since(1).len(), 2 * NAME_COUNT);
}

#[test]
fn a_form_that_is_sent_twice_spends_once() {
    let (endpoint, _project, daemon) = start(&[]);
    endpoint.add_fault(Fault::Latency(Duration::from_millis(300)), Frequency::Always);
    let write = press(&open(&daemon), "write", &[("question", "Who can fly?")]);
    let send_twice = |body: &str| {
        std::thread::scope(|scope| {
            let send = || daemon.submit_form("/ask", body).expect_status(200).body;
            let (one, two) = (scope.spawn(send), scope.spawn(send));
            (one.join().unwrap(), two.join().unwrap())
        })
    };
    let (written, _) = send_twice(&write);
    assert_eq!(endpoint.request_count(), 1);
    let (one, two) = send_twice(&press(&written, "run", &[]));
    let count = format!("{HERO_COUNT} rows");
    assert!(one.contains(&count) && two.contains(&count), "{one}");
    assert_eq!(endpoint.cells_since(1).len(), NAME_COUNT);
    let requests = endpoint.request_count();
    daemon.submit_form("/ask", &press(&written, "run", &[])).expect_status(200);
    assert_eq!(endpoint.request_count(), requests);
}

#[test]
fn a_follow_up_continues_the_conversation_and_a_query_without_rows_is_relaxed() {
    let (endpoint, _project, daemon) = start(&[]);
    let first = submit(&daemon, &open(&daemon), "write", &[("question", "Who is tall?")]);
    assert!(first.contains("Follow-up question") && first.contains("searched"), "{first}");
    let body = press(&first, "write", &[("question", "And by name?")]);
    let second = daemon.submit_form("/ask", &body).expect_status(200).body;
    assert!(second.contains("aria-label=\"Earlier questions\""), "{second}");
    assert!(second.contains("<summary>Who is tall?"), "{second}");
    let prompt = endpoint.received_requests().last().unwrap().body.to_string();
    assert!(prompt.contains("Who is tall?") && prompt.contains("height > 150"), "{prompt}");
    let none = submit(&daemon, &open(&daemon), "write", &[("question", "Who is Zedd?")]);
    assert!(none.contains("<strong>0 rows</strong>"), "{none}");
    assert!(none.contains("Search with a weaker condition, for at most $0.0200"), "{none}");
    let relaxed = submit(&daemon, &none, "relax", &[]);
    assert!(relaxed.contains("no row with 'Zedd'; searched 'Zed%'"), "{relaxed}");
    assert!(
        relaxed.contains("<strong>1 row</strong>") && !relaxed.contains("value=\"keep\""),
        "{relaxed}"
    );
    let declined = submit(&daemon, &open(&daemon), "write", &[("question", "What does it weigh?")]);
    assert!(declined.contains("no table has &lt;b&gt;weights&lt;/b&gt;"), "{declined}");
    let empty = press(&open(&daemon), "write", &[("question", " ")]);
    let empty = daemon.submit_form("/ask", &empty).expect_status(400).body;
    assert!(empty.contains("the question is empty"), "{empty}");
}

#[test]
fn an_answer_becomes_an_example_only_with_edit() {
    let (_endpoint, project, daemon) = start(&[]);
    let answered = submit(&daemon, &open(&daemon), "write", &[("question", "Who is tall?")]);
    assert!(answered.contains("--edit") && !answered.contains("value=\"keep\""), "{answered}");
    let before = project.spec_text();
    let forced = "spec=x&question=Who%3F&answer=0&do=keep";
    let refused = daemon.submit_form("/ask", forced).expect_status(403).body;
    assert!(refused.contains("start the daemon with --edit"), "{refused}");
    assert_eq!(project.spec_text(), before);
    drop(daemon);
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    daemon.submit_form("/ask", forced).expect_status(403);
    let answered = submit(&daemon, &open(&daemon), "write", &[("question", "Who is tall?")]);
    let kept = submit(&daemon, &answered, "keep", &[("question", "Which heroes are tall?")]);
    assert!(kept.contains("Kept as an [[example]] in"), "{kept}");
    let text = project.spec_text();
    assert!(text.contains("question = \"Which heroes are tall?\""), "{text}");
    assert!(text.contains(FREE), "{text}");
    wait_until("the example is shown", || open(&daemon).contains("Which heroes are tall?"));
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_browser_asks_approves_and_keeps() {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    let (endpoint, project, daemon) = start(&["--edit"]);
    let mut browser = Browser::start(&program, &project.path("."));
    browser.open_page(&format!("http://{}/ask", daemon.address));
    let wait_for = |browser: &mut Browser, script: &str, words: &str| {
        browser.eval_script(script);
        let started_at = std::time::Instant::now();
        loop {
            let text = browser.eval_script("document.querySelector('main').textContent");
            if text.as_str().unwrap().contains(words) {
                return;
            }
            assert!(started_at.elapsed() < Duration::from_secs(20), "{words}: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let ask = "document.querySelector('[name=question]').value = 'Who can fly?';
        const go = document.querySelector('button[value=write]'); go.click(); go.click()";
    wait_for(&mut browser, ask, "Run, for at most $");
    assert_eq!(endpoint.request_count(), 1);
    let run = "{ const go = document.querySelector('button[value=run]'); go.click(); go.click(); }";
    wait_for(&mut browser, run, &format!("{HERO_COUNT} rows: searched"));
    assert_eq!(endpoint.cells_since(1).len(), NAME_COUNT);
    let keep = "document.querySelector('button[value=keep]').click()";
    wait_for(&mut browser, keep, "Kept as an [[example]]");
    assert!(project.spec_text().contains("question = \"Who can fly?\""));
    assert_eq!(browser.take_errors(), Vec::<String>::new());
    assert_eq!(json!(browser.eval_script("document.title")), json!("Ask · hqdl"));
}
