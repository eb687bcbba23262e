//! Tests of the query page's addresses, and of what the page does for people who use a keyboard or a
//! screen reader: focus, announcements, shortcuts, and forms that keep what was typed.

use std::path::Path;
use std::time::{Duration, Instant};

use hqdl_testkit::browser::{Browser, find_chromium};
use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Fault, Frequency};
use hqdl_testkit::project::{heroes_project, truthful_endpoint};
use serde_json::json;

use crate::ask_page::percent_encode;
use hqdl_testkit::daemon::find_link;

const LIVE: &str = "SELECT name, {{LLMMap('Which planet is it from?', hero.name)}} FROM hero";

/// Returns the address of a query.
fn query_path(sql: &str) -> String {
    format!("/query?spec=x&sql={}", percent_encode(sql))
}

/// Opens an address as a browser does if the user enters it.
fn open_link(daemon: &Daemon, path: &str) -> String {
    daemon.send_request("GET", path, "Sec-Fetch-Site: none\r\n", "").expect_status(200).body
}

fn start_browser(home: &Path) -> Browser {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    Browser::start(&program, home)
}

/// Waits until an expression of the page is true.
fn wait_for(browser: &mut Browser, condition: &str) {
    let began = Instant::now();
    while browser.eval_script(condition) != json!(true) {
        let text = browser.eval_script("document.body?.innerText ?? null");
        assert!(began.elapsed() < Duration::from_secs(30), "never {condition}: {text}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[test]
fn a_link_shows_the_rows_of_a_free_query_and_never_spends() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let requests = endpoint.request_count();
    let groups = "SELECT eye_color, count(*) AS n FROM llm GROUP BY 1";
    let rows = open_link(&daemon, &query_path(groups));
    assert!(rows.contains("id=\"result\"") && rows.contains("0 values asked"), "{rows}");
    // The link beside the rows leads to the same rows, with the chart.
    let form = format!("{}&do=run&chart=bar&y=n", query_path(groups).trim_start_matches("/query?"));
    let ran = daemon.submit_form("/query", &form).expect_status(200).body;
    let link = find_link(&ran, "Link to this query");
    assert!(link.contains("chart=bar") && link.contains("y=n"), "{link}");
    let linked = open_link(&daemon, &link);
    let table = |page: &str| page.split("<tbody>").nth(1).map(str::to_owned).unwrap();
    assert_eq!(table(&linked).split("</tbody>").next(), table(&ran).split("</tbody>").next());
    // A query that costs something shows its price, although the daemon may spend.
    let priced = open_link(&daemon, &query_path(LIVE));
    assert!(priced.contains("Run, for at most $") && !priced.contains("id=\"result\""), "{priced}");
    for action in ["&do=spend", "&do=run", "&do=csv", "&do=save&title=x"] {
        open_link(&daemon, &format!("{}{action}", query_path(LIVE)));
    }
    assert_eq!(endpoint.request_count(), requests);
    // Parameters are a part of the address, and a query without their values is not run.
    let height = "SELECT count(*) AS n FROM hero WHERE height > :height";
    let asks = open_link(&daemon, &query_path(height));
    assert!(asks.contains("param:height") && !asks.contains("id=\"result\""), "{asks}");
    let known = open_link(&daemon, &format!("{}&param:height=200", query_path(height)));
    assert!(known.contains("<td class=\"n\">1</td>"), "{known}");
    assert!(find_link(&known, "Link to this query").contains("param%3Aheight=200"));
    let wrong = open_link(&daemon, &query_path("SELECT nope FROM hero"));
    assert!(wrong.contains("no such column") && wrong.contains("SELECT nope FROM hero"), "{wrong}");
    // Another site cannot run a query, neither with a link nor by embedding its address.
    let runs = |head: &str| {
        let page = daemon.send_request("GET", &query_path(groups), head, "").expect_status(200);
        assert!(page.body.contains("GROUP BY 1") && page.body.contains("value=\"run\""));
        page.body.contains("id=\"result\"")
    };
    assert!(!runs("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: document\r\n"));
    assert!(!runs("Sec-Fetch-Site: same-site\r\nSec-Fetch-Dest: iframe\r\n"));
    assert!(!runs("") && runs("Sec-Fetch-Site: same-origin\r\n"));
}

#[test]
fn a_rejected_form_keeps_what_was_typed() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let budget = daemon.submit_form("/specs/x/go", "budget=0%2C50").expect_status(400).body;
    assert!(budget.contains("`0,50` is not a valid budget"), "{budget}");
    assert!(budget.contains("name=\"budget\" value=\"0,50\""), "{budget}");
    daemon.submit_form("/specs/x/go", "budget=1").expect_status(303);
    daemon.wait_until_idle("complete");
    let word =
        "table=llm&column=eye_color&key=Zed&key=Zed+Zedsson&do=set&value=%22Plaid%22&note=I+looked";
    let cell = daemon.submit_form("/specs/x/cell", word).expect_status(400).body;
    for part in ["value=\"&quot;Plaid&quot;\"", "value=\"I looked\"", "value list", "test-model"] {
        assert!(cell.contains(part), "{part}: {cell}");
    }
    assert!(!project.path("specs/x.overrides.csv").exists());
    // The page has no form while the daemon checks the spec again after its run.
    wait_until("the form has the number of rows", || {
        let sample = daemon.submit_form("/specs/x/audit", "table=llm&rows=ten").expect_status(400);
        assert!(sample.body.contains("`ten` is not a number of rows"), "{}", sample.body);
        sample.body.contains("name=\"rows\" value=\"ten\"")
    });
}

#[test]
fn the_cost_that_a_button_shows_is_an_approval() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.write_spec(&project.spec_text().replace("[limits]", "[limits]\nbudget_usd = 0"));
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let submit = |more: &str| {
        let form = format!("{}{more}", query_path(LIVE).trim_start_matches("/query?"));
        daemon.submit_form("/query", &form)
    };
    let priced = submit("&do=run").expect_status(200).body;
    let cost =
        priced.split("name=\"max_cost\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(priced.contains(&format!("Run, for at most ${cost}")), "{priced}");
    // A cost that the page has not shown is not approved.
    for more in ["&do=spend", "&do=spend&max_cost=0.0001", "&do=csv"] {
        let shown = submit(more).expect_status(200).body;
        assert!(shown.contains(&format!("Run, for at most ${cost}")), "{more}: {shown}");
    }
    submit(&format!("&do=run&max_cost={cost}")).expect_status(200);
    assert_eq!(endpoint.request_count(), 0);
    let ran = submit(&format!("&do=spend&max_cost={cost}")).expect_status(200).body;
    assert!(ran.contains("id=\"result\"") && endpoint.request_count() > 0, "{ran}");
}

#[test]
fn the_query_page_lists_every_table_for_completion() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.execute_sql(
        "CREATE TABLE \"odd <b>\" (\"x y\"); CREATE VIEW broken AS SELECT * FROM gone",
    );
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    for path in ["/query?spec=x", "/ask?spec=x"] {
        let page = daemon.get(path).expect_status(200).body;
        for name in ["hero", "height", "eye_color", "odd &lt;b&gt;", "x y", "broken"] {
            assert!(page.contains(&format!("data-name=\"{name}\"")), "{name}: {page}");
        }
    }
}

#[test]
fn pages_say_where_they_are_and_what_comes_next() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--edit"]);
    daemon.wait_until_idle("complete");
    let read = |path: &str| daemon.get(path).expect_status(200).body;
    for (path, current) in [
        ("/", "/"),
        ("/specs/x", "/"),
        ("/specs/x/tables/llm", "/"),
        ("/specs/x/lineage", "/"),
        ("/query", "/query"),
        ("/approvals", "/approvals"),
        ("/upload", "/upload"),
    ] {
        let page = read(path);
        let nav = page.split("<nav").nth(1).unwrap().split("</nav>").next().unwrap();
        assert!(nav.contains(&format!("<a href=\"{current}\" aria-current=\"page\">")), "{nav}");
        assert_eq!(nav.matches("aria-current").count(), 1, "{path}: {nav}");
    }
    assert!(read("/").contains("data-label=\"began\""));
    assert!(read("/query").contains("No saved query yet."));
    let none = read("/specs/x/tables/llm?q=zzzz");
    assert_eq!(find_link(&none, "Remove all conditions"), "/specs/x/tables/llm");
    // The marks of cells have names.
    daemon
        .post(
            "/v1/overrides",
            &json!({ "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "motto", "value": "Z" }),
        )
        .expect_status(200);
    wait_until("overridden", || {
        read("/specs/x/tables/llm").contains("aria-label=\"set by a person\"")
    });
    assert!(read("/specs/x/tables/llm").contains("aria-label=\"filled by the model\""));
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_result_gets_the_focus_and_is_announced() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let home = tempfile::tempdir().unwrap();
    let mut browser = start_browser(home.path());
    browser.open_page(&format!("http://{}/query?spec=x", daemon.address));
    let run = |browser: &mut Browser, sql: &str| {
        browser.eval_script(&format!(
            "window.heard = []; window.observer ??= new MutationObserver(() => heard.push(document.getElementById('announcer').textContent));
             observer.observe(document.getElementById('announcer'), {{ childList: true }});
             document.getElementById('sql').value = {sql:?};
             document.getElementById('sql').dispatchEvent(new Event('input', {{ bubbles: true }}));
             document.querySelector('#query button[value=run]').click()"
        ));
    };
    run(&mut browser, "SELECT name FROM llm");
    wait_for(&mut browser, "document.activeElement.id === 'result'");
    assert_eq!(browser.eval_script("heard"), json!(["Running for 0 s", "10 rows"]));
    run(&mut browser, "SELECT nope FROM llm");
    wait_for(&mut browser, "document.activeElement.matches('.problem')");
    // The message is spoken once: it is no alert, and its price is not computed again.
    std::thread::sleep(Duration::from_millis(800));
    let heard = browser.eval_script("heard");
    assert!(heard[1].as_str().unwrap().contains("no such column"), "{heard}");
    assert_eq!((&heard[0], heard.as_array().unwrap().len()), (&json!("Running for 0 s"), 2));
    let role = "[document.activeElement.role, document.activeElement.ariaLabel, document.querySelectorAll('[role=alert]').length]";
    assert_eq!(browser.eval_script(role), json!(["group", "Error", 0]));
    // The history has links.
    let link =
        browser.eval_script("document.querySelectorAll('#history a')[1].getAttribute('href')");
    let linked = open_link(&daemon, link.as_str().unwrap());
    assert!(linked.contains("10 rows"), "{linked}");
    // While a query runs, its time is not spoken every second.
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Always);
    run(&mut browser, LIVE);
    wait_for(&mut browser, "document.activeElement.id === 'explanation'");
    assert_eq!(browser.eval_script("document.activeElement.ariaLabel"), "Price of the query");
    let heard = browser.eval_script("heard");
    let price = "At most 9 values to ask (0 known) in 3 requests: at most $0.0078 (test-model: cache writes assumed at 1.25 × input).";
    assert_eq!(heard, json!(["Running for 0 s", price]));
    browser.eval_script("heard.length = 0; document.querySelector('button[value=spend]').click()");
    wait_for(
        &mut browser,
        "/Running for [4-9] s/.test(document.getElementById('price').textContent)",
    );
    let heard = browser.eval_script("heard");
    assert_eq!(heard.as_array().unwrap().len(), 1, "{heard}");
    browser.eval_script("document.getElementById('cancel').click()");
    wait_for(
        &mut browser,
        "heard.at(-1).startsWith('Cancelled.') && document.activeElement.id === 'sql'",
    );
    assert_eq!(browser.take_errors(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn the_header_and_the_key_stay_visible() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.execute_sql(
        "WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < 60)
         INSERT INTO hero (name, full_name) SELECT 'hero ' || n, 'a person with the number ' || n FROM i",
    );
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let home = tempfile::tempdir().unwrap();
    let mut browser = start_browser(home.path());
    for (path, key) in [("tables/llm", true), ("tables/hero", true)] {
        browser.open_page(&format!("http://{}/specs/x/{path}", daemon.address));
        browser.set_viewport(390, "light");
        let found = browser.eval_script(
            "(() => { const box = document.querySelector('.wide');
               box.scrollTop = 500; box.scrollLeft = 150;
               const [frame, head, row] = [box, box.querySelector('thead th:nth-child(2)'), box.querySelector('tbody tr:nth-child(30) > :first-child')].map((e) => e.getBoundingClientRect());
               return [box.scrollTop, box.scrollLeft, head.top - frame.top, row.left - frame.left, row.width]; })()",
        );
        let number = |n: usize| found[n].as_f64().unwrap();
        assert!(number(0) > 100.0 && number(1) > 50.0, "{path}: {found}");
        assert!((0.0..3.0).contains(&number(2)), "{path}: {found}");
        assert!(!key || (0.0..3.0).contains(&number(3)) && number(4) < 160.0, "{path}: {found}");
        // Nothing is hidden in print.
        browser.send_command("Emulation.setEmulatedMedia", json!({ "media": "print" }));
        let print = browser.eval_script(
            "[getComputedStyle(document.querySelector('.wide')).overflowY, getComputedStyle(document.querySelector('thead th')).position]",
        );
        assert_eq!(print, json!(["visible", "static"]));
        browser.send_command("Emulation.setEmulatedMedia", json!({ "media": "" }));
    }
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn single_key_shortcuts_can_be_turned_off() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    daemon.submit_form("/specs/x/audit", "table=llm&rows=3").expect_status(303);
    let home = tempfile::tempdir().unwrap();
    let mut browser = start_browser(home.path());
    let review = format!("http://{}/specs/x/review?table=llm", daemon.address);
    let press = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))";
    browser.open_page(&review);
    browser.eval_script("document.querySelector('[name=single-keys]').click()");
    // The setting holds for this page and the next one.
    for _ in 0..2 {
        browser.eval_script(press);
        std::thread::sleep(Duration::from_millis(300));
        assert!(daemon.get("/specs/x/review?table=llm").body.contains("0 of 12"));
        let hints = browser.eval_script(
            "[...document.querySelectorAll('kbd')].every((k) => !k.checkVisibility())",
        );
        assert_eq!(hints, json!(true));
        browser.open_page(&review);
    }
    browser.eval_script("document.querySelector('[name=single-keys]').click()");
    browser.leave_page(press);
    assert!(daemon.get("/specs/x/review?table=llm").body.contains("1 of 12"));
}
