//! The daemon's page: readable without a script, closed to what a model says.

use std::io::Write;
use std::time::Duration;

use serde_json::json;

use hqdl_testkit::browser::{Browser, chromium};
use hqdl_testkit::daemon::{Daemon, until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Times};
use hqdl_testkit::project::{COLUMNS, COUNT, Project, heroes, honest, truth};

/// What a page would run if it were not escaped.
const EVIL: &str =
    "<script>document.title='owned'</script>\"'><img src=x onerror=\"document.title='owned'\">";

fn evil() -> (Endpoint, Project, Daemon) {
    let endpoint = Endpoint::start(|column, key| match column {
        "motto" => json!(EVIL),
        _ => truth(column, key),
    });
    let project = heroes(&endpoint, "json");
    project.execute(
        "INSERT INTO hero (name, full_name) VALUES ('<b>bold</b>', '\"><script>x</script>')",
    );
    let daemon = Daemon::start(&project, &[]);
    daemon.rests("complete");
    (endpoint, project, daemon)
}

fn page(daemon: &Daemon, path: &str) -> String {
    let answer = daemon.get(path).is(200);
    assert!(answer.head.contains("text/html"), "{}", answer.head);
    answer.body
}

#[test]
fn what_a_model_says_is_text_on_every_page() {
    let (_endpoint, _project, daemon) = evil();
    let cell = "/specs/x/cell?table=llm&column=motto&key=Zed&key=Zed%20Zedsson";
    let pages = [
        "/",
        "/specs/x",
        "/specs/x/tables/llm",
        cell,
        "/specs/x/tables/llm?key=%3Cscript%3Ealert(1)%3C/script%3E",
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
    let answer = daemon.form("/query", "spec=x&do=run&sql=SELECT+motto+FROM+llm").is(200);
    assert_eq!(answer.body.matches("<script").count(), 1);
    let missing = daemon.get("/specs/%3Cscript%3Ealert(1)%3C%2Fscript%3E").is(404);
    assert_eq!(missing.body.matches("<script").count(), 1, "{}", missing.body);
}

#[test]
fn pages_are_whole_without_a_script() {
    let endpoint = honest();
    let project = heroes(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.rests("waiting");
    let home = page(&daemon, "/");
    assert!(home.contains("href=\"/specs/x\"") && home.contains("waiting"), "{home}");
    let spec = page(&daemon, "/specs/x");
    assert!(spec.contains("Ask for 40 cells"), "{spec}");
    let refused = daemon.form("/specs/x/go", "budget=lots").is(400);
    assert!(refused.body.contains("`lots` is not a valid budget"), "{}", refused.body);
    let gone = daemon.form("/specs/x/go", "budget=1").is(303);
    assert!(gone.head.contains("location: /specs/x"), "{}", gone.head);
    daemon.rests("complete");
    assert_eq!(endpoint.cells_since(0).len(), COUNT * COLUMNS.len());
    let table = page(&daemon, "/specs/x/tables/llm?key=zed");
    assert!(table.contains("The motto of Zed") && !table.contains("Blaze"), "{table}");
    let link = "/specs/x/cell?table=llm&amp;column=motto&amp;key=Zed&amp;key=Zed%20Zedsson";
    assert!(table.contains(link), "{table}");
    let cell = page(&daemon, &link.replace("&amp;", "&"));
    assert!(cell.contains("test-model") && cell.contains("Override"), "{cell}");
    daemon.get("/specs/x/tables/nothing").is(400);
    daemon.get("/specs/nothing").is(404);
    // Rows by the state of a cell, in the columns' own order.
    let none = page(&daemon, "/specs/x/tables/llm?state=error");
    assert!(none.contains("No rows."), "{none}");
    let all = page(&daemon, "/specs/x/tables/llm?state=ok");
    let places: Vec<usize> =
        COLUMNS.iter().map(|c| all.find(&format!("<th>{c}</th>")).unwrap()).collect();
    assert!(places.is_sorted(), "{all}");
    // The values of a list stand beside the form, tables beside the query.
    let cell = page(&daemon, "/specs/x/cell?table=llm&column=eye_color&key=Zed&key=Zed%20Zedsson");
    assert!(cell.contains("<datalist id=\"values\">"), "{cell}");
    // Each example runs, and costs nothing: what it asks is in the table.
    let box_of = page(&daemon, "/query?spec=x");
    for words in ["an example", "one with a question"] {
        let end = format!("\">{words}</a>");
        let before = box_of.split(&end).next().filter(|b| b.len() < box_of.len()).unwrap();
        let link = before.rsplit("href=\"").next().unwrap().replace("&amp;", "&");
        let ran = daemon.form("/query", &format!("{}&do=run", link.trim_start_matches("/query?")));
        let ran = ran.is(200).body;
        assert!(ran.contains("10 rows") && ran.contains("0 values asked"), "{link}: {ran}");
    }
    // A page for who looks at pages, JSON for others.
    let head =
        format!("GET /nowhere HTTP/1.0\r\nHost: {}\r\nAccept: text/html\r\n\r\n", daemon.address);
    let nowhere = daemon.raw(&head).is(404);
    assert!(nowhere.body.contains("<h1>Error</h1>"), "{}", nowhere.body);
    assert!(daemon.get("/nowhere").is(404).body.starts_with('{'));
}

#[test]
fn a_cell_is_overridden_by_a_form_of_its_own_page_alone() {
    let endpoint = honest();
    let project = heroes(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.rests("complete");
    let word =
        "table=llm&column=motto&key=Echo&key=NULL&value=Hello%3F+Hello%21&note=said+so&do=set";
    let head = format!(
        "POST /specs/x/cell HTTP/1.0\r\nHost: {}\r\nOrigin: http://evil.example\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{word}",
        daemon.address,
        word.len()
    );
    daemon.raw(&head).is(403);
    assert!(!project.path("specs/x.overrides.csv").exists());
    daemon.form("/specs/x/cell", word).is(303);
    until("shown", || {
        project.rows("SELECT motto FROM llm WHERE name = 'Echo'") == [[json!("Hello? Hello!")]]
    });
    let cell = page(&daemon, "/specs/x/cell?table=llm&column=motto&key=Echo&key=NULL");
    assert!(cell.contains("overridden") && cell.contains("Remove the override"), "{cell}");
    daemon.form("/specs/x/cell", &word.replace("do=set", "do=unset")).is(303);
    until("the model's", || {
        project.rows("SELECT motto FROM llm WHERE name = 'Echo'")
            == [[json!("The motto of Echo alias nobody!")]]
    });
}

/// What was spent stands there by day and by model.
#[test]
fn the_first_page_shows_what_each_model_cost() {
    let endpoint = honest();
    let project = heroes(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.rests("complete");
    let sql = "SELECT total(cost_usd), count(*) FROM completion";
    let spent = &project.rows_of("cache/journal.sqlite", sql)[0];
    let usd = format!("${:.4}", spent[0].as_f64().unwrap());
    let row = format!(
        "<td>test-model</td><td class=\"n\">{usd}</td><td class=\"n\">{usd}</td><td class=\"bar\">"
    );
    let shown = page(&daemon, "/");
    assert!(shown.contains("Spent in 30 days") && shown.contains(&row), "{row}: {shown}");
    // Each cell has its share: every column the same, and nothing is left over.
    let share = format!("${:.4}", spent[0].as_f64().unwrap() / COLUMNS.len() as f64);
    for column in COLUMNS {
        let row = format!("<td>{column} <span class=\"quiet\">of full_name, name</span></td>");
        let after = shown.split(&row).nth(1).unwrap_or_else(|| panic!("{column}: {shown}"));
        let cells: Vec<&str> = after.split("</td>").take(4).collect();
        let money = format!("<td class=\"n\">{share}");
        assert_eq!(cells[..2], [&money, &money], "{column}");
        assert_eq!(cells[3], format!("<td class=\"n\">{COUNT}"), "{column}");
    }
    assert!(!shown.contains("that filled no cell"), "{shown}");
    // What a query asks live is a column, too; the sums go on from where they were.
    daemon.query("SELECT {{LLMMap('Which planet is it from?', hero.name)}} FROM hero");
    let shown = page(&daemon, "/");
    assert!(shown.contains("<td>Which planet is it from?"), "{shown}");
    assert_eq!(shown.matches("<td>eye_color ").count(), 1);
}

#[test]
fn the_query_box_explains_and_runs() {
    let endpoint = honest();
    let project = heroes(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.rests("waiting");
    let sql = "sql=SELECT+name+FROM+hero+WHERE+%7B%7BLLMMap%28%27What+is+the+eye+colour%3F%27%2C+hero.name%29%7D%7D+IS+NOT+NULL";
    // A link somebody sends asks nothing.
    let linked = page(&daemon, &format!("/query?do=run&{sql}"));
    assert!(linked.contains("What is the eye colour?"), "{linked}");
    let explained = daemon.form("/query", &format!("spec=x&do=explain&{sql}")).is(200).body;
    assert!(explained.contains("At most") && explained.contains("eye_color"), "{explained}");
    assert_eq!(endpoint.count(), 0);
    // What costs something says so before it runs.
    let priced = daemon.form("/query", &format!("spec=x&do=run&{sql}")).is(200).body;
    assert!(priced.contains("Run, for at most about $"), "{priced}");
    assert_eq!(endpoint.count(), 0);
    let ran = daemon.form("/query", &format!("spec=x&do=spend&{sql}")).is(200).body;
    assert!(ran.contains("10 rows") && ran.contains("<td>Zed</td>"), "{ran}");
    assert_eq!(endpoint.cells_since(0).len(), COUNT);
    let again = daemon.form("/query", &format!("spec=x&do=run&{sql}")).is(200).body;
    assert!(again.contains("10 rows"), "what is known is free: {again}");
    let wrong = daemon.form("/query", "spec=x&do=run&sql=SELECT+nope").is(400).body;
    assert!(wrong.contains("no such column: nope") && wrong.contains("^^^^"), "{wrong}");
}

#[test]
fn a_real_browser_shows_the_pages_and_runs_nothing_of_the_models() {
    let Some(program) = chromium() else {
        // Past the harness, which keeps what a test that passes prints.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: a_real_browser_shows_the_pages_and_runs_nothing_of_the_models: there is no \
             chromium on the PATH"
        );
        return;
    };
    let (_endpoint, project, daemon) = evil();
    let mut browser = Browser::start(&program, &project.path("."));
    let mut dom = |path: &str| {
        browser.go(&format!("http://{}{path}", daemon.address));
        let dom = browser.eval("document.documentElement.outerHTML");
        (dom.as_str().unwrap().to_owned(), browser.eval("document.title"))
    };
    let cell = "/specs/x/cell?table=llm&column=motto&key=Zed&key=Zed%20Zedsson";
    for (path, title) in
        [("/", "Specs"), ("/specs/x", "x"), ("/specs/x/tables/llm", "llm"), (cell, "motto")]
    {
        let (dom, now) = dom(path);
        assert_eq!(now, format!("{title} · hqdl"), "{path}: {dom}");
        // The style came through its own policy: colours are the sheet's.
        assert!(dom.contains("<link rel=\"stylesheet\" href=\"/page.css\">"), "{dom}");
    }
    // Why a cell is what it is: where the table's own link leads.
    let (table, _) = dom("/specs/x/tables/llm");
    let link = table.split('"').find(|l| l.contains("column=motto&amp;key=Zed"));
    let link = link.unwrap_or_else(|| panic!("{table}")).replace("&amp;", "&");
    let (dom, _) = dom(&link);
    assert!(dom.contains("Override") && dom.contains("test-model"), "{dom}");
    assert!(dom.contains("&lt;script&gt;document.title='owned'"), "{dom}");
}

/// A run that goes well shows no error: tables and columns that are not published yet are named.
#[test]
fn a_table_that_is_being_filled_is_no_error() {
    let endpoint = honest();
    endpoint.fault(Fault::Latency(Duration::from_secs(3600)), Times::Always);
    let project = heroes(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    until("under way", || daemon.status()["runs"][0]["state"] == "running");
    for table in ["llm", "llm_power"] {
        let shown = page(&daemon, &format!("/specs/x/tables/{table}"));
        assert!(shown.contains("This table is not published yet."), "{shown}");
        assert!(shown.contains("A run is filling it") && !shown.contains("problem"), "{shown}");
    }
    let spec = page(&daemon, "/specs/x");
    assert_eq!(spec.matches("being filled").count(), COLUMNS.len(), "{spec}");
}

#[test]
fn a_one_to_many_table_and_a_new_column_are_shown() {
    let endpoint = honest();
    let project = heroes(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.rests("complete");
    let powers = page(&daemon, "/specs/x/tables/llm_power");
    assert!(powers.contains("<th>powers</th>") && !powers.contains("<th>motto</th>"), "{powers}");
    assert!(powers.contains("Zed"), "{powers}");
    endpoint.fault(Fault::Latency(Duration::from_secs(3600)), Times::Always);
    let column = "\n[[expansion.column]]\nname = \"city\"\ntype = \"text\"\nabout = \"home\"\n";
    project.spec(&(project.spec_text() + column));
    daemon.until("filling", |spec| !spec["run"].is_null());
    let spec = page(&daemon, "/specs/x");
    assert!(spec.contains("<td>city</td>") && spec.contains("being filled"), "{spec}");
    let table = page(&daemon, "/specs/x/tables/llm");
    assert!(table.contains("Not published yet: city."), "{table}");
}
