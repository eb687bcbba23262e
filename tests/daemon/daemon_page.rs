//! Tests of the daemon's pages: they are readable without a script, and never run what a model
//! wrote.

use std::time::Duration;

use serde_json::json;

use hqdl_testkit::browser::{Browser, find_chromium};
use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, HERO_COUNT, Project, heroes_project, true_value, truthful_endpoint,
};

/// Text that a page would run if it were not escaped.
const EVIL: &str =
    "<script>document.title='owned'</script>\"'><img src=x onerror=\"document.title='owned'\">";

fn evil() -> (Endpoint, Project, Daemon) {
    let endpoint = Endpoint::start_with(|column, key| match column {
        "motto" => json!(EVIL),
        _ => true_value(column, key),
    });
    let project = heroes_project(&endpoint, "json");
    project.execute_sql(
        "INSERT INTO hero (name, full_name) VALUES ('<b>bold</b>', '\"><script>x</script>')",
    );
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    (endpoint, project, daemon)
}

fn page(daemon: &Daemon, path: &str) -> String {
    let answer = daemon.get(path).expect_status(200);
    assert!(answer.headers.contains("text/html"), "{}", answer.headers);
    answer.body
}

#[test]
fn model_output_is_escaped_on_every_page() {
    let (_endpoint, _project, daemon) = evil();
    let cell = "/specs/x/cell?table=llm&column=motto&key=Zed&key=Zed%20Zedsson";
    let pages = [
        "/",
        "/specs/x",
        "/specs/x/tables/llm",
        cell,
        "/specs/x/tables/llm?f=motto%7Cis%7C%3Cscript%3E&q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/query?sql=%3C/textarea%3E%3Cscript%3Ealert(1)%3C/script%3E",
    ];
    for path in pages {
        let body = page(&daemon, path);
        assert_eq!(body.matches("<script").count(), 1, "{path}: {body}");
        assert!(!body.contains("<img") && !body.contains("<b>"), "{path}: {body}");
    }
    let table = page(&daemon, "/specs/x/tables/llm");
    assert!(table.contains("&lt;script&gt;document.title='owned'"), "{table}");
    assert!(table.contains("&lt;b&gt;bold&lt;/b&gt;"));
    let answer =
        daemon.submit_form("/query", "spec=x&do=run&sql=SELECT+motto+FROM+llm").expect_status(200);
    assert_eq!(answer.body.matches("<script").count(), 1);
    let missing = daemon.get("/specs/%3Cscript%3Ealert(1)%3C%2Fscript%3E").expect_status(404);
    assert_eq!(missing.body.matches("<script").count(), 1, "{}", missing.body);
}

#[test]
fn pages_are_complete_without_a_script() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let home = page(&daemon, "/");
    assert!(home.contains("href=\"/specs/x\"") && home.contains("waiting"), "{home}");
    let spec = page(&daemon, "/specs/x");
    assert!(spec.contains("Ask for 40 cells"), "{spec}");
    let refused = daemon.submit_form("/specs/x/go", "budget=lots").expect_status(400);
    assert!(refused.body.contains("`lots` is not a valid budget"), "{}", refused.body);
    let gone = daemon.submit_form("/specs/x/go", "budget=1").expect_status(303);
    assert!(gone.headers.contains("location: /specs/x"), "{}", gone.headers);
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(0).len(), HERO_COUNT * COLUMN_NAMES.len());
    let table = page(&daemon, "/specs/x/tables/llm?q=zed");
    assert!(table.contains("The motto of Zed") && !table.contains("Blaze"), "{table}");
    let link = "/specs/x/cell?table=llm&amp;column=motto&amp;key=Zed&amp;key=Zed%20Zedsson";
    assert!(table.contains(link), "{table}");
    let cell = page(&daemon, &link.replace("&amp;", "&"));
    assert!(cell.contains("test-model") && cell.contains("Override"), "{cell}");
    daemon.get("/specs/x/tables/nothing").expect_status(400);
    daemon.get("/specs/nothing").expect_status(404);
    // Rows filtered by the state of a cell, with columns in the spec's order.
    let none = page(&daemon, "/specs/x/tables/llm?state=error");
    assert!(none.contains("No rows."), "{none}");
    let all = page(&daemon, "/specs/x/tables/llm?state=ok");
    let places: Vec<usize> =
        COLUMN_NAMES.iter().map(|c| all.find(&format!("data-column=\"{c}\"")).unwrap()).collect();
    assert!(places.is_sorted(), "{all}");
    // The form offers the values of a list, and the query page lists the tables.
    let cell = page(&daemon, "/specs/x/cell?table=llm&column=eye_color&key=Zed&key=Zed%20Zedsson");
    assert!(cell.contains("<datalist id=\"values\">"), "{cell}");
    // Each example runs and costs nothing, because the table contains the answers.
    let box_of = page(&daemon, "/query?spec=x");
    for words in ["an example", "one with a question"] {
        let end = format!("\">{words}</a>");
        let before = box_of.split(&end).next().filter(|b| b.len() < box_of.len()).unwrap();
        let link = before.rsplit("href=\"").next().unwrap().replace("&amp;", "&");
        let ran =
            daemon.submit_form("/query", &format!("{}&do=run", link.trim_start_matches("/query?")));
        let ran = ran.expect_status(200).body;
        assert!(ran.contains("10 rows") && ran.contains("0 values asked"), "{link}: {ran}");
    }
    // Browsers get a page, other clients get JSON.
    let head =
        format!("GET /nowhere HTTP/1.0\r\nHost: {}\r\nAccept: text/html\r\n\r\n", daemon.address);
    let nowhere = daemon.send_raw(&head).expect_status(404);
    assert!(nowhere.body.contains("<h1>Error</h1>"), "{}", nowhere.body);
    assert!(daemon.get("/nowhere").expect_status(404).body.starts_with('{'));
}

#[test]
fn a_cell_is_overridden_only_by_the_form_on_its_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let word =
        "table=llm&column=motto&key=Echo&key=NULL&value=Hello%3F+Hello%21&note=said+so&do=set";
    let head = format!(
        "POST /specs/x/cell HTTP/1.0\r\nHost: {}\r\nOrigin: http://evil.example\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{word}",
        daemon.address,
        word.len()
    );
    daemon.send_raw(&head).expect_status(403);
    assert!(!project.path("specs/x.overrides.csv").exists());
    daemon.submit_form("/specs/x/cell", word).expect_status(303);
    wait_until("shown", || {
        project.query_rows("SELECT motto FROM llm WHERE name = 'Echo'")
            == [[json!("Hello? Hello!")]]
    });
    let cell = page(&daemon, "/specs/x/cell?table=llm&column=motto&key=Echo&key=NULL");
    assert!(cell.contains("overridden") && cell.contains("Remove the override"), "{cell}");
    daemon.submit_form("/specs/x/cell", &word.replace("do=set", "do=unset")).expect_status(303);
    wait_until("the model's", || {
        project.query_rows("SELECT motto FROM llm WHERE name = 'Echo'")
            == [[json!("The motto of Echo alias nobody!")]]
    });
}

/// The spending is shown by day and by model.
#[test]
fn the_first_page_shows_what_each_model_cost() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let sql = "SELECT total(cost_usd), count(*) FROM completion";
    let spent = &project.query_rows_of("cache/journal.sqlite", sql)[0];
    let usd = format!("${:.4}", spent[0].as_f64().unwrap());
    let row = format!(
        "<td>test-model</td><td class=\"n\">{usd}</td><td class=\"n\">{usd}</td><td class=\"bar\">"
    );
    let shown = page(&daemon, "/");
    assert!(shown.contains("Spent in 30 days") && shown.contains(&row), "{row}: {shown}");
    // Each cell costs its share: every column costs the same, and the sum is complete.
    let share = format!("${:.4}", spent[0].as_f64().unwrap() / COLUMN_NAMES.len() as f64);
    for column in COLUMN_NAMES {
        let row = format!("<td>{column} <span class=\"quiet\">of full_name, name</span></td>");
        let after = shown.split(&row).nth(1).unwrap_or_else(|| panic!("{column}: {shown}"));
        let cells: Vec<&str> = after.split("</td>").take(4).collect();
        let money = format!("<td class=\"n\">{share}");
        assert_eq!(cells[..2], [&money, &money], "{column}");
        assert_eq!(cells[3], format!("<td class=\"n\">{HERO_COUNT}"), "{column}");
    }
    assert!(!shown.contains("that filled no cell"), "{shown}");
    // A live question of a query is shown as a column, too; the sums continue.
    daemon.query_rows("SELECT {{LLMMap('Which planet is it from?', hero.name)}} FROM hero");
    let shown = page(&daemon, "/");
    assert!(shown.contains("<td>Which planet is it from?"), "{shown}");
    assert_eq!(shown.matches("<td>eye_color ").count(), 1);
    assert!(!shown.contains("spent by queries"), "{shown}");
}

/// Money that no run spent is explained.
#[test]
fn the_first_page_shows_what_spent_money_without_a_run() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    assert!(!page(&daemon, "/").contains("spent by queries"));
    daemon.query_rows("SELECT {{LLMMap('Which planet is it from?', hero.name)}} FROM hero");
    let shown = page(&daemon, "/");
    let (_, note) = shown.split_once("<h2>Runs</h2>").unwrap();
    assert!(note.contains("Queries and other commands spent the $"), "{note}");
    assert!(note.contains("most of it on <q>Which planet is it from?</q>"), "{note}");
}

#[test]
fn the_query_box_explains_and_runs() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let sql = "sql=SELECT+name+FROM+hero+WHERE+%7B%7BLLMMap%28%27What+is+the+eye+colour%3F%27%2C+hero.name%29%7D%7D+IS+NOT+NULL";
    // Opening a link sends no request.
    let linked = page(&daemon, &format!("/query?do=run&{sql}"));
    assert!(linked.contains("What is the eye colour?"), "{linked}");
    let explained =
        daemon.submit_form("/query", &format!("spec=x&do=explain&{sql}")).expect_status(200).body;
    assert!(explained.contains("At most") && explained.contains("eye_color"), "{explained}");
    assert!(explained.contains("<ul class=\"tree\">"), "{explained}");
    assert_eq!(endpoint.request_count(), 0);
    // The page shows the price before it runs the query.
    let priced =
        daemon.submit_form("/query", &format!("spec=x&do=run&{sql}")).expect_status(200).body;
    assert!(priced.contains("Run, for at most $"), "{priced}");
    assert_eq!(endpoint.request_count(), 0);
    let ran = daemon
        .submit_form("/query", &format!("spec=x&do=spend&max_cost=1&{sql}"))
        .expect_status(200)
        .body;
    assert!(ran.contains("10 rows") && ran.contains("<td>Zed</td>"), "{ran}");
    assert_eq!(endpoint.cells_since(0).len(), HERO_COUNT);
    let again =
        daemon.submit_form("/query", &format!("spec=x&do=run&{sql}")).expect_status(200).body;
    assert!(again.contains("10 rows"), "what is known is free: {again}");
    let wrong =
        daemon.submit_form("/query", "spec=x&do=run&sql=SELECT+nope").expect_status(400).body;
    assert!(wrong.contains("no such column: nope") && wrong.contains("^^^^"), "{wrong}");
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_real_browser_shows_the_pages_and_runs_no_model_output() {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    let (_endpoint, project, daemon) = evil();
    let mut browser = Browser::start(&program, &project.path("."));
    let mut dom = |path: &str| {
        browser.open_page(&format!("http://{}{path}", daemon.address));
        let dom = browser.eval_script("document.documentElement.outerHTML");
        (dom.as_str().unwrap().to_owned(), browser.eval_script("document.title"))
    };
    let cell = "/specs/x/cell?table=llm&column=motto&key=Zed&key=Zed%20Zedsson";
    for (path, title) in
        [("/", "Specs"), ("/specs/x", "x"), ("/specs/x/tables/llm", "llm"), (cell, "motto")]
    {
        let (dom, now) = dom(path);
        assert_eq!(now, format!("{title} · hqdl"), "{path}: {dom}");
        // The content security policy allows the style sheet.
        assert!(dom.contains("<link rel=\"stylesheet\" href=\"/page.css?"), "{dom}");
    }
    // The table links to the page of a cell.
    let (table, _) = dom("/specs/x/tables/llm");
    let link = table.split('"').find(|l| l.contains("column=motto&amp;key=Zed"));
    let link = link.unwrap_or_else(|| panic!("{table}")).replace("&amp;", "&");
    let (dom, _) = dom(&link);
    assert!(dom.contains("Override") && dom.contains("test-model"), "{dom}");
    assert!(dom.contains("&lt;script&gt;document.title='owned'"), "{dom}");
}

/// A successful run shows no error; unpublished tables and columns are named.
#[test]
fn a_table_that_is_being_filled_is_not_an_error() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    wait_until("under way", || daemon.status()["runs"][0]["state"] == "running");
    for table in ["llm", "llm_power"] {
        let shown = page(&daemon, &format!("/specs/x/tables/{table}"));
        assert!(shown.contains("This table is not published yet."), "{shown}");
        assert!(shown.contains("A run is filling it") && !shown.contains("problem"), "{shown}");
    }
    let spec = page(&daemon, "/specs/x");
    assert_eq!(spec.matches("being filled").count(), COLUMN_NAMES.len(), "{spec}");
}

#[test]
fn a_one_to_many_table_and_a_new_column_are_shown() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let powers = page(&daemon, "/specs/x/tables/llm_power");
    assert!(
        powers.contains("data-column=\"powers\"") && !powers.contains("data-column=\"motto\""),
        "{powers}"
    );
    assert!(powers.contains("Zed"), "{powers}");
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Always);
    let column = "\n[[expansion.column]]\nname = \"city\"\ntype = \"text\"\nabout = \"home\"\n";
    project.write_spec(&(project.spec_text() + column));
    daemon.wait_until("filling", |spec| !spec["run"].is_null());
    let spec = page(&daemon, "/specs/x");
    assert!(spec.contains("<td>city</td>") && spec.contains("being filled"), "{spec}");
    let table = page(&daemon, "/specs/x/tables/llm");
    assert!(table.contains("Not published yet: city."), "{table}");
}

#[test]
fn a_table_is_filtered_sorted_counted_and_downloaded() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let truth = |sql: &str| project.query_rows(sql);
    // The values of a list are counted beside the table, each with a link to its rows.
    let whole = page(&daemon, "/specs/x/tables/llm");
    let most = &truth("SELECT eye_color, count(*) FROM llm GROUP BY 1 ORDER BY 2 DESC, 1")[0];
    let color = most[0].as_str().unwrap();
    let link = format!("f=eye_color%7Cis%7C{color}");
    assert!(whole.contains(&link), "{link}: {whole}");
    let chosen = page(&daemon, &format!("/specs/x/tables/llm?{link}&sort=-born"));
    assert!(chosen.contains(&format!("{} rows", most[1])), "{chosen}");
    assert!(chosen.contains("aria-sort=\"descending\""), "{chosen}");
    let born = format!("SELECT born FROM llm WHERE eye_color = '{color}' ORDER BY born DESC");
    let born: Vec<String> = truth(&born).iter().map(|row| row[0].to_string()).collect();
    let places = born.iter().map(|year| chosen.find(&format!(">{year}</a>")).unwrap());
    assert!(places.is_sorted(), "{chosen}");
    // Numbers have a range and a distribution.
    let years = page(&daemon, "/specs/x/tables/llm?facet=born");
    assert!(years.contains("Distribution of born") && years.contains("mean"), "{years}");
    // A download has exactly the rows of the view.
    let path = format!("/specs/x/tables/llm/export?{link}&sort=-born");
    let csv = daemon.get(&format!("{path}&format=csv")).expect_status(200);
    assert!(csv.headers.contains("text/csv"), "{}", csv.headers);
    let lines: Vec<&str> = csv.body.lines().collect();
    assert_eq!(lines[0], "name,full_name,eye_color,born,powers,motto");
    assert_eq!(lines.len(), born.len() + 1);
    assert!(lines.iter().skip(1).zip(&born).all(|(line, year)| line.contains(year)), "{lines:?}");
    let json = daemon.get(&format!("{path}&format=json")).expect_status(200).json();
    let years: Vec<String> =
        json.as_array().unwrap().iter().map(|row| row["born"].to_string()).collect();
    assert_eq!(years, born);
    assert!(json[0]["powers"].is_array(), "{json}");
    daemon.get("/specs/x/tables/llm/export?format=xml").expect_status(400);
    let none = daemon.get("/specs/x/tables/llm/export?format=json&q=nobody%20at%20all");
    assert_eq!(none.expect_status(200).json(), json!([]));
}

#[test]
fn a_result_is_drawn_and_downloaded() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let form = |action: &str, sql: &str, more: &str| {
        let sql = sql.replace(' ', "+");
        daemon.submit_form("/query", &format!("spec=x&do={action}&sql={sql}{more}"))
    };
    let groups = "SELECT eye_color, count(*) AS n FROM llm GROUP BY 1 ORDER BY 1";
    let bars = form("run", groups, "").expect_status(200).body;
    assert!(bars.contains("aria-label=\"n by eye_color\""), "{bars}");
    let none = form("run", groups, "&chart=none").expect_status(200).body;
    assert!(!none.contains("<svg"), "{none}");
    let rows = project.query_rows(groups);
    let json = form("json", groups, "").expect_status(200).json();
    let expected: Vec<_> = rows.iter().map(|r| json!({ "eye_color": r[0], "n": r[1] })).collect();
    assert_eq!(json, json!(expected));
    let csv = form("csv", groups, "").expect_status(200).body;
    let lines = rows.iter().map(|r| format!("{},{}\n", r[0].as_str().unwrap(), r[1]));
    assert_eq!(csv, format!("eye_color,n\n{}", lines.collect::<String>()));
    let wrong = form("run", groups, "&interval=many").expect_status(400).body;
    assert!(wrong.contains("`many` is not a valid confidence"), "{wrong}");
}

#[test]
#[cfg_attr(not(chromium), ignore = "Chromium is not installed")]
fn a_chart_is_saved_as_svg_and_png() {
    let program = find_chromium().expect("Chromium, which was there when this was built");
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let mut browser = Browser::start(&program, &project.path("."));
    let sql = "SELECT+eye_color%2C+count(*)+AS+n+FROM+llm+GROUP+BY+1";
    browser.open_page(&format!("http://{}/query?spec=x&sql={sql}", daemon.address));
    browser.eval_script("document.querySelector('#query button.main').click()");
    let wait_for = |browser: &mut Browser, condition: &str| {
        for _ in 0..1000 {
            if browser.eval_script(condition) == json!(true) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{condition}");
    };
    wait_for(&mut browser, "document.querySelector('[data-save=svg]') !== null");
    browser.eval_script(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push([this.download, this.href]); };
         document.querySelector('[data-save=svg]').click(); document.querySelector('[data-save=png]').click()",
    );
    wait_for(&mut browser, "saved.length === 2");
    let saved = browser.eval_script("saved");
    let svg = saved[0][1].as_str().unwrap();
    assert_eq!(
        (&saved[0][0], &saved[1][0]),
        (&json!("n-by-eye-color.svg"), &json!("n-by-eye-color.png"))
    );
    assert!(svg.starts_with("data:image/svg+xml") && svg.contains("fill%3D%22rgb"), "{svg}");
    assert!(saved[1][1].as_str().unwrap().starts_with("data:image/png;base64,"), "{saved}");
    assert_eq!(browser.take_errors(), Vec::<String>::new());
}

#[test]
fn a_query_is_saved_in_the_spec_only_with_edit() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let form =
        |sql: &str| format!("spec=x&do=save&title=Tall+heroes&sql={}", sql.replace(' ', "+"));
    let sql = "SELECT name FROM hero WHERE height > 100";
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    daemon.submit_form("/query", &form(sql)).expect_status(403);
    drop(daemon);
    let daemon = Daemon::start(&project, &["--no-spend", "--edit"]);
    daemon.wait_until_idle("waiting");
    daemon.submit_form("/query", &form("SELECT nope FROM hero")).expect_status(400);
    daemon.submit_form("/query", &form(sql).replace("Tall+heroes", "+")).expect_status(400);
    let saved = daemon.submit_form("/query", &form(sql)).expect_status(200).body;
    assert!(saved.contains("Kept as an [[example]] in"), "{saved}");
    assert_eq!(project.spec_text().matches("[[example]]").count(), 1);
    wait_until("shown", || page(&daemon, "/query?spec=x").contains(">Tall heroes</a>"));
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn an_audit_is_reviewed_cell_by_cell() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let missing = daemon.get("/specs/x/review").expect_status(400).body;
    assert!(missing.contains("hqdl audit"), "{missing}");
    let flags = ["audit", "specs/x.toml", "--columns", "eye_color", "--sample", "2", "--seed", "3"];
    project.run_hqdl(&flags).expect_exit_code(0);
    let review = "/specs/x/review?table=llm";
    let first = page(&daemon, review);
    assert!(first.contains("0 of 2</strong> sampled cells"), "{first}");
    let (_, cell) = first.split_once("name=\"cell\" value=\"").unwrap();
    let cell = cell.split('"').next().unwrap();
    let wrong = format!("at=0&cell={cell}&value=Purple");
    let wrong = daemon.submit_form(review, &wrong).expect_status(400).body;
    assert!(wrong.contains("not in the value list"), "{wrong}");
    assert!(wrong.contains("name=\"value\" value=\"Purple\""), "{wrong}");
    assert!(wrong.contains("value=\"0\""), "{wrong}");
    // A form that shows the cell of an earlier audit stores nothing, and is not filled in again.
    let other = daemon.submit_form(review, "at=0&cell=0123&value=Blue").expect_status(400).body;
    assert!(other.contains("has another cell here"), "{other}");
    assert!(
        other.contains("0 of 2</strong>") && !other.contains("name=\"value\" value=\"Blue\" list")
    );
    let set =
        daemon.submit_form(review, &format!("at=0&cell={cell}&value=Blue")).expect_status(303);
    let (_, undo) = set.headers.split_once("&at=1&done=0&undo=").unwrap();
    let undo_form = format!("at=0&undo={}", undo.lines().next().unwrap().trim());
    // The last answer can be undone, and given again.
    let undo = page(&daemon, &format!("{review}&at=1&done=0&undo=x"));
    assert!(undo.contains("Undo the last answer"), "{undo}");
    assert!(undo.contains(">model</th>"), "{undo}");
    // The page shows all answers about the cell, and an override with the value that it replaced.
    assert!(!undo.contains("Past values"), "{undo}");
    let refresh = ["materialize", "specs/x.toml", "--refresh", "eye_color"];
    project.run_hqdl(&refresh).expect_exit_code(0);
    let path = "/specs/x/review?table=llm&at=0";
    let past = page(&daemon, path);
    let (_, table) = past.split_once("Past values").unwrap();
    assert_eq!(table.matches("<th scope=\"row\">20").count(), 2, "{table}");
    let key: Vec<&str> =
        past.split("<dd><strong>").skip(1).map(|p| p.split_once('<').unwrap().0).collect();
    for value in ["Green", "Brown"] {
        let set = ["override", "set", "specs/x.toml", "llm", key[0], key[1], "eye_color", value];
        project.run_hqdl(&set).expect_exit_code(0);
    }
    let past = page(&daemon, path);
    assert!(past.contains("Brown <span class=\"quiet\">replaced Green</span>"), "{past}");
    let set = daemon.submit_form(review, &undo_form).expect_status(303);
    assert!(set.headers.contains("&at=0") && !set.headers.contains("done"), "{}", set.headers);
    assert!(page(&daemon, review).contains("0 of 2</strong> sampled cells"));
    daemon.submit_form(review, "at=0&value=Blue").expect_status(303);
    // The last truth wins, and its note records the previous one.
    daemon.submit_form(review, "at=0&value=%3F").expect_status(303);
    daemon.submit_form(review, "at=1&value=Green").expect_status(303);
    daemon.submit_form(review, "at=9&value=Green").expect_status(400);
    let sheet = std::fs::read_to_string(project.path("specs/x.audit.csv")).unwrap();
    assert!(sheet.contains(",?,person,") && sheet.contains("; person said Blue"), "{sheet}");
    let whole = page(&daemon, review);
    assert!(whole.contains("2 of 2</strong> sampled cells"), "{whole}");
    assert!(whole.contains("The audit is complete"), "{whole}");
    // The name of the person is stored with the truth, and stays in the address.
    let named = format!("{review}&who=Ann+%26+Bob");
    let set = daemon.submit_form(&named, "at=1&value=Blue").expect_status(303);
    assert!(set.headers.contains("&who=Ann%20%26%20Bob"), "{}", set.headers);
    let sheet = std::fs::read_to_string(project.path("specs/x.audit.csv")).unwrap();
    assert!(sheet.contains(",Blue,person Ann & Bob,") && sheet.contains("person said Green"));
    assert!(page(&daemon, "/").contains("Review the audit of llm"));
}

#[test]
#[cfg(not(feature = "parquet"))]
fn a_build_without_parquet_names_the_build_that_has_it() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    assert!(!page(&daemon, "/specs/x/tables/llm").to_lowercase().contains("parquet"));
    let form = "spec=x&do=parquet&sql=SELECT+1";
    for refused in [
        daemon.get("/specs/x/tables/llm/export?format=parquet"),
        daemon.submit_form("/query", form),
    ] {
        let body = refused.expect_status(501).body;
        assert!(body.contains("--features parquet"), "{body}");
    }
}
