//! Runs docs/sembench.md: `SemBench`'s scenario "movie", with an oracle that answers from the truth.
//! `HQDL_UPDATE_DOCS=1 cargo test --test queries -- sembench` writes the measured tables into the page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::engine::{Order, Outcome, Query, compare_rows, shared_folder};
use hqdl_testkit::project::{Project, query_rows};
use hqdl_testkit::repository_root;

/// USD per million input and output tokens of Gemini 2.5 Flash, as in the published runs.
const PRICES: (f64, f64) = (0.3, 2.5);
/// The oracle's name: hqdl and the endpoint count its tokens with `cl100k_base`.
const MODEL: &str = "gpt-3.5-turbo";
/// Number of positive reviews of `taken_3` that the confused oracle calls negative.
const CONFUSED: usize = 8;
const SYSTEMS: [&str; 4] = ["BigQuery", "LOTUS", "Palimpzest", "ThalamusDB"];

const SPEC: &str = r#"
[database]
path = "../data.sqlite"
[model]
name = "gpt-3.5-turbo"
base_url = "{base_url}"
[[expansion]]
name = "rated"
about = "Each row is a review of a movie."
key = ["reviewId"]
context = ["reviewText"]
[[expansion.source]]
name = "taken_3"
select = "SELECT reviewId, reviewText FROM Reviews WHERE id = 'taken_3'"
[[expansion.column]]
name = "sentiment"
about = "Is the review positive or negative?"
values = ["POSITIVE", "NEGATIVE"]
"#;

/// Queries of an audited table: name, SQL, and the same over the truth.
const AUDITED: [(&str, &str, &str); 4] = [
    ("Q3", "count(*) FILTER (WHERE sentiment = 'POSITIVE')", "positive"),
    ("Q4", "avg(sentiment = 'POSITIVE')", "positive / 120.0"),
    ("Q8, POSITIVE", "count(*) FILTER (WHERE sentiment = 'POSITIVE')", "positive"),
    ("Q8, NEGATIVE", "count(*) FILTER (WHERE sentiment = 'NEGATIVE')", "120 - positive"),
];

/// If the model writes a query of the page, `hqdl ask` returns its rows.
#[test]
#[cfg_attr(not(sembench), ignore = "needs the data beside the project: ../shared/sembench")]
fn asked_queries_return_the_rows_of_the_query() {
    let movie = Movie::load();
    let endpoint = movie.start_oracle(0);
    let project = movie.create_project(&endpoint);
    let url = endpoint.base_url();
    let flags = ["--db", "data.sqlite", "--model", MODEL, "--base-url", &url, "--format", "csv"];
    for number in 1..=10 {
        let question = format!("Q{number}");
        let asked = project.run_hqdl(&[&["ask", "--yes", &question], &flags[..]].concat());
        let queried =
            project.run_hqdl(&[&["query", movie.query_text(number)], &flags[..]].concat());
        let expected = queried.expect_exit_code(0).stdout;
        assert_eq!(asked.expect_exit_code(0).stdout, expected, "{question}");
    }
}

#[test]
#[cfg_attr(not(sembench), ignore = "needs the data beside the project: ../shared/sembench")]
fn figures_of_the_page_are_the_measured_ones() {
    let movie = Movie::load();
    let alone = movie.measure_queries(0, 1..=10, |number| format!("cache{number}"));
    let together = movie.measure_queries(0, 1..=10, |_| "cache".into());
    let confused = movie.measure_queries(CONFUSED, 1..=8, |_| "cache".into());

    for (number, measured) in &alone {
        assert_eq!(measured.quality, together[number].quality, "Q{number}");
    }
    for number in 1..=8 {
        assert!(["1.000", "0.000"].contains(&&*alone[&number].quality), "Q{number}");
    }
    let total: u64 = together.values().map(Measured::tokens).sum();
    assert!(total <= 115_000, "{total} tokens");
    for (number, cheapest) in [(1, 4_142), (2, 5_810), (5, 2_459)] {
        assert!(alone[&number].tokens() <= cheapest, "Q{number}: {}", alone[&number].tokens());
    }

    let published = movie.read_published();
    let tables = [
        quality_table(&alone, &confused, &published),
        figures_table(
            "### Requests and tokens\n\n*Alone* is a query with an empty cache; *one cache* means that all \
             ten queries run in order with the same cache.\n\n",
            &[
                ("requests, alone", &alone, |measured| measured.requests as f64),
                ("tokens, alone", &alone, |measured| measured.tokens() as f64),
                ("requests, one cache", &together, |measured| measured.requests as f64),
                ("tokens, one cache", &together, |measured| measured.tokens() as f64),
            ],
            &published,
            |result| result.tokens,
            group_digits,
        ),
        figures_table(
            "### Price in USD\n\n",
            &[("alone", &alone, Measured::usd), ("one cache", &together, Measured::usd)],
            &published,
            |result| result.usd,
            |usd| format!("{usd:.4}"),
        ),
        movie.interval_table(),
    ];
    let tables = tables.join("\n");
    let (head, rest) = movie.page.split_once("<!-- measured -->\n").unwrap();
    let (shown, tail) = rest.split_once("<!-- end -->").unwrap();
    if std::env::var_os("HQDL_UPDATE_DOCS").is_some() {
        let page = format!("{head}<!-- measured -->\n{tables}<!-- end -->{tail}");
        std::fs::write(page_path(), page).unwrap();
        return;
    }
    assert_eq!(shown, tables);
}

/// Result of a query.
struct Measured {
    quality: String,
    requests: u64,
    input: u64,
    output: u64,
}

impl Measured {
    fn tokens(&self) -> u64 {
        self.input + self.output
    }

    fn usd(&self) -> f64 {
        (self.input as f64 * PRICES.0 + self.output as f64 * PRICES.1) / 1e6
    }
}

/// Results by the query's number.
type Results = BTreeMap<usize, Measured>;
/// Published results by system and query.
type PublishedResults = BTreeMap<(String, usize), Published>;

/// A published result.
struct Published {
    quality: String,
    tokens: f64,
    usd: f64,
}

/// The benchmark's data.
struct Movie {
    folder: PathBuf,
    /// The database with the truth.
    gold: Connection,
    page: String,
}

impl Movie {
    fn load() -> Self {
        let folder = shared_folder("sembench").unwrap().join("movie");
        let gold = Connection::open_in_memory().unwrap();
        load_tables(&gold, &folder);
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        gold.create_scalar_function("SPLIT_PART", 3, flags, |call| {
            let text: Option<String> = call.get(0)?;
            let (separator, part): (String, usize) = (call.get(1)?, call.get(2)?);
            Ok(text.and_then(|text| text.split(&separator).nth(part - 1).map(str::to_owned)))
        })
        .unwrap();
        gold.create_scalar_function("oracle_score", 2, flags, |call| {
            let (score, sentiment): (Option<String>, String) = (call.get(0)?, call.get(1)?);
            let default = if sentiment == "POSITIVE" { 4.0 } else { 2.0 };
            Ok(score.and_then(|score| score_of_five(&score)).unwrap_or(default))
        })
        .unwrap();
        let page = std::fs::read_to_string(page_path()).unwrap();
        Self { folder, gold, page }
    }

    /// Returns a query of the page.
    fn query_text(&self, number: usize) -> &str {
        let start = format!("```sql Q{number}\n");
        self.page.split(&start).nth(1).unwrap().split("```").next().unwrap()
    }

    fn select_gold(&self, sql: &str) -> Vec<Vec<Json>> {
        query_rows(&self.gold, sql).unwrap()
    }

    /// Starts an endpoint that answers from the truth, except for `confused` positive reviews of
    /// `taken_3`.
    fn start_oracle(&self, confused: usize) -> Endpoint {
        let sql =
            "SELECT reviewText, scoreSentiment, id, oracle_score(originalScore, scoreSentiment)
                   FROM Reviews ORDER BY reviewId";
        let mut left = confused;
        let mut truths = BTreeMap::new();
        for row in self.select_gold(sql) {
            let is_confused = left > 0 && row[2] == "taken_3" && row[1] == "POSITIVE";
            left -= usize::from(is_confused);
            let sentiment = if is_confused { json!("NEGATIVE") } else { row[1].clone() };
            truths.insert(row[0].as_str().unwrap().to_owned(), (sentiment, row[3].clone()));
        }
        let queries: Vec<String> = (1..=10).map(|n| self.query_text(n).to_owned()).collect();
        Endpoint::start_answering(move |column, row| {
            match column.name.as_str() {
                // `hqdl ask` asks for the query of a question such as "Q3".
                "sql" => {
                    let number = row.key[0].as_str().unwrap()[1..].parse::<usize>().unwrap();
                    return queries[number - 1].as_str().into();
                }
                "dialect" => return "sqlite".into(),
                "assumptions" | "cannot_answer" | "other_sql" | "other_reading" | "new_columns" => {
                    return Json::Null;
                }
                _ => {}
            }
            let text = row.context.first().unwrap_or(&row.key[0]);
            let (sentiment, score) = &truths[text.as_str().unwrap()];
            if column.values.is_some() { sentiment.clone() } else { score.clone() }
        })
    }

    /// Creates a project whose database lacks the truth.
    fn create_project(&self, endpoint: &Endpoint) -> Project {
        let project = Project::new(endpoint, "", SPEC);
        load_tables(&project.connect(), &self.folder);
        project.execute_sql(
            "ALTER TABLE Movies DROP COLUMN audienceScore;
             ALTER TABLE Movies DROP COLUMN tomatoMeter;
             ALTER TABLE Reviews DROP COLUMN scoreSentiment;
             ALTER TABLE Reviews DROP COLUMN originalScore;
             ALTER TABLE Reviews DROP COLUMN reviewState;",
        );
        project
    }

    /// Runs queries of the page, each with the cache that `cache` names.
    fn measure_queries(
        &self,
        confused: usize,
        numbers: std::ops::RangeInclusive<usize>,
        cache: impl Fn(usize) -> String,
    ) -> Results {
        let endpoint = self.start_oracle(confused);
        let project = self.create_project(&endpoint);
        let mut results = Results::new();
        for number in numbers {
            let query = Query {
                db: project.path("data.sqlite"),
                cache: project.path(cache(number)),
                base_url: Some(endpoint.base_url()),
                model: MODEL,
                rows_per_request: 20,
                flags: Vec::new(),
                sql: self.query_text(number),
            };
            let billed = endpoint.billed_tokens();
            let outcome = query.run_query();
            outcome.check_exit_code(&[0]).unwrap();
            let count = |name| outcome.meta_count(name).unwrap();
            let (input, output) = (count("input_tokens"), count("output_tokens"));
            assert_eq!(endpoint.billed_tokens(), (billed.0 + input, billed.1 + output));
            let quality = self.judge_rows(number, &outcome);
            results
                .insert(number, Measured { quality, requests: count("requests"), input, output });
        }
        results
    }

    /// Returns the quality of a query's rows by the benchmark's rules.
    fn judge_rows(&self, number: usize, outcome: &Outcome) -> String {
        let rows = &outcome.rows;
        let file = self.folder.join(format!("gold_sql/Q{number}.sql"));
        let gold = self.select_gold(&std::fs::read_to_string(file).unwrap());
        match number {
            1 | 2 => format!("{:.3}", f1_of_first(rows, &gold, 5)),
            5 | 6 => format!("{:.3}", f1_of_first(rows, &gold, 10)),
            7 => format!("{:.3}", f1_of_first(rows, &gold, usize::MAX)),
            3 | 4 | 8 => format!("{:.3}", mean_relative_error(rows, &gold)),
            _ => {
                let expected = if number == 9 {
                    "SELECT reviewId, oracle_score(originalScore, scoreSentiment) FROM Reviews
                     WHERE id = 'ant_man_and_the_wasp_quantumania'"
                } else {
                    "SELECT id, avg(oracle_score(originalScore, scoreSentiment)) FROM Reviews GROUP BY 1"
                };
                let expected = self.select_gold(expected);
                compare_rows(rows, &expected, Order::Unordered).unwrap();
                let (spearman, kendall) = rank_correlations(rows, &gold);
                format!("{spearman:.3}, {kendall:.3}")
            }
        }
    }

    /// Audits 30 of the 120 reviews of `taken_3`, and returns the intervals of Q3, Q4 and Q8.
    fn interval_table(&self) -> String {
        let positive =
            "SELECT sum(scoreSentiment = 'POSITIVE') AS positive FROM Reviews WHERE id = 'taken_3'";
        let mut rows = Vec::new();
        for (oracle, confused) in [("true", 0), ("confused", CONFUSED)] {
            let endpoint = self.start_oracle(confused);
            let project = self.create_project(&endpoint);
            project.run_materialize(&[]).expect_exit_code(0);
            let sql = "SELECT reviewId, scoreSentiment FROM Reviews WHERE id = 'taken_3'";
            let lines = self.select_gold(sql);
            let lines = lines.iter().map(|row| format!("{},{}\n", cell(&row[0]), cell(&row[1])));
            std::fs::write(
                project.path("truth.csv"),
                format!("reviewId,sentiment\n{}", lines.collect::<String>()),
            )
            .unwrap();
            let audit = ["audit", "specs/x.toml"];
            project
                .run_hqdl(&[&audit[..], &["--sample", "30", "--seed", "1"]].concat())
                .expect_exit_code(0);
            project.run_hqdl(&[&audit[..], &["--truth", "truth.csv"]].concat()).expect_exit_code(0);
            for (name, expression, truth) in AUDITED {
                let sql = format!("SELECT {expression} AS n FROM taken_3_expanded");
                let args = ["query", "--spec", "specs/x.toml", "--json", "--interval", "95", &sql];
                let ended = project.run_hqdl(&args).expect_exit_code(0);
                let json: Json = serde_json::from_str(&ended.stdout).unwrap();
                let number = |n: usize| json["rows"][0][n].as_f64().unwrap();
                let truth = self.select_gold(&format!("SELECT {truth} FROM ({positive})"));
                let truth = truth[0][0].as_f64().unwrap();
                assert!(number(1) <= truth && truth <= number(2), "{name}: {}", json["rows"]);
                let shown =
                    |x: f64| if name == "Q4" { format!("{x:.3}") } else { format!("{x:.0}") };
                rows.push(vec![
                    name.to_owned(),
                    oracle.to_owned(),
                    shown(number(0)),
                    format!("{} to {}", shown(number(1)), shown(number(2))),
                    shown(truth),
                ]);
            }
        }
        let title = "### Intervals\n\nThe 95 % interval of a number, from an audit of 30 of the 120 \
                     reviews of `taken_3`:\n\n";
        write_table(title, &["query", "oracle", "answer", "interval", "truth"], &rows)
    }

    fn read_published(&self) -> PublishedResults {
        let mut reader = csv::Reader::from_path(self.folder.join("published.csv")).unwrap();
        let records = reader.deserialize::<BTreeMap<String, String>>().map(Result::unwrap);
        let published = records.filter(|record| !record["tokens"].is_empty()).map(|record| {
            let number = |name: &str| record[name].parse::<f64>().unwrap();
            let field = |name: &str| {
                let fields = &mut record["quality_fields"].split_whitespace();
                let value = fields.find_map(|field| field.strip_prefix(name)).unwrap();
                format!("{:.3}", value.parse::<f64>().unwrap())
            };
            let quality = match (&*record["f1"], &*record["relative_error"]) {
                ("", "") => {
                    format!("{}, {}", field("spearman_correlation="), field("kendall_tau="))
                }
                ("", _) => format!("{:.3}", number("relative_error")),
                _ => format!("{:.3}", number("f1")),
            };
            let query = record["query"][1..].parse().unwrap();
            let result = Published { quality, tokens: number("tokens"), usd: number("usd") };
            ((record["system"].clone(), query), result)
        });
        published.collect()
    }
}

fn page_path() -> PathBuf {
    repository_root().join("docs/sembench.md")
}

/// Loads the CSV files; empty cells are NULL.
fn load_tables(database: &Connection, folder: &Path) {
    database.execute_batch("BEGIN").unwrap();
    for table in ["Movies", "Reviews"] {
        let mut reader = csv::Reader::from_path(folder.join(table).with_extension("csv")).unwrap();
        let headers = reader.headers().unwrap().clone();
        let columns: Vec<String> = headers
            .iter()
            .map(|name| match name {
                "audienceScore" | "tomatoMeter" => format!("{name} REAL"),
                _ => format!("{name} TEXT"),
            })
            .collect();
        database.execute_batch(&format!("CREATE TABLE {table} ({})", columns.join(", "))).unwrap();
        let values = vec!["nullif(?, '')"; columns.len()].join(", ");
        let insert = format!("INSERT INTO {table} VALUES ({values})");
        let mut insert = database.prepare(&insert).unwrap();
        for record in reader.records() {
            insert.execute(rusqlite::params_from_iter(record.unwrap().iter())).unwrap();
        }
    }
    database.execute_batch("COMMIT").unwrap();
}

/// Converts a score such as 3/4 to a scale of five.
fn score_of_five(score: &str) -> Option<f64> {
    let (score, scale) = score.split_once('/')?;
    Some(5.0 * score.trim().parse::<f64>().ok()? / scale.trim().parse::<f64>().ok()?)
}

/// Returns F1 of the first `k` rows as a set, with recall against `k` rows. The cells of a row are
/// unordered, so that a pair counts in both orders.
fn f1_of_first(rows: &[Vec<Json>], gold: &[Vec<Json>], k: usize) -> f64 {
    let key = |row: &Vec<Json>| row.iter().map(cell).collect::<BTreeSet<_>>();
    let gold: BTreeSet<_> = gold.iter().map(key).collect();
    let first: BTreeSet<_> = rows.iter().take(k).map(key).collect();
    let right = first.intersection(&gold).count() as f64;
    let (precision, recall) = (right / rows.len().min(k) as f64, right / gold.len().min(k) as f64);
    if right == 0.0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) }
}

/// Returns the mean relative error of the last cells of rows with the same other cells.
fn mean_relative_error(rows: &[Vec<Json>], gold: &[Vec<Json>]) -> f64 {
    let errors = gold.iter().map(|gold| {
        let (truth, key) = gold.split_last().unwrap();
        let row = rows.iter().find(|row| row.starts_with(key));
        let found = row.map_or(0.0, |row| row.last().unwrap().as_f64().unwrap());
        (found / truth.as_f64().unwrap() - 1.0).abs()
    });
    errors.sum::<f64>() / gold.len() as f64
}

/// Returns Spearman's rho and Kendall's tau-b of the scores, for each gold row with a score.
fn rank_correlations(rows: &[Vec<Json>], gold: &[Vec<Json>]) -> (f64, f64) {
    let scores: BTreeMap<String, f64> =
        rows.iter().filter_map(|row| Some((cell(&row[0]), row[1].as_f64()?))).collect();
    let pair = |row: &Vec<Json>| Some((*scores.get(&cell(&row[0]))?, row[1].as_f64()?));
    let pairs: Vec<(f64, f64)> = gold.iter().filter_map(pair).collect();
    let sign = |a: f64, b: f64| if a == b { 0.0 } else { (a - b).signum() };
    // The rank of x is half the sum of sign(x - y) over all y, up to a constant.
    let rank = |of: &dyn Fn(&(f64, f64)) -> f64| -> Vec<f64> {
        pairs.iter().map(|a| pairs.iter().map(|b| sign(of(a), of(b))).sum()).collect()
    };
    let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let (x, y) = (rank(&|pair| pair.0), rank(&|pair| pair.1));
    let spearman = product(&x, &y) / (product(&x, &x) * product(&y, &y)).sqrt();
    let (mut concordance, mut untied) = (0.0, (0.0, 0.0));
    for a in &pairs {
        for b in &pairs {
            let (dx, dy) = (sign(a.0, b.0), sign(a.1, b.1));
            concordance += dx * dy;
            untied = (untied.0 + dx * dx, untied.1 + dy * dy);
        }
    }
    (spearman, concordance / (untied.0 * untied.1).sqrt())
}

fn cell(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn write_table(title: &str, header: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(header.len()));
    title.to_owned()
        + &line(&header)
        + &rule
        + &rows.iter().map(|row| line(row)).collect::<String>()
}

/// Separates groups of three digits.
fn group_digits(number: f64) -> String {
    let digits = format!("{number:.0}");
    let starts_group = |n: usize| n > 0 && (digits.len() - n).is_multiple_of(3);
    let groups = digits
        .char_indices()
        .map(|(n, digit)| if starts_group(n) { format!(",{digit}") } else { digit.to_string() });
    groups.collect()
}

fn quality_table(alone: &Results, confused: &Results, published: &PublishedResults) -> String {
    let measure = |number| match number {
        3 | 4 | 8 => "relative error",
        9 | 10 => "Spearman, Kendall",
        _ => "F1",
    };
    let rows = alone.iter().map(|(number, measured)| {
        let confused = confused.get(number).map_or_else(|| "–".into(), |m| m.quality.clone());
        let mut row = vec![
            format!("Q{number}"),
            measure(*number).to_owned(),
            measured.quality.clone(),
            confused,
        ];
        row.extend(SYSTEMS.map(|system| {
            let result = published.get(&(system.to_lowercase(), *number));
            result.map_or_else(|| "–".into(), |result| result.quality.clone())
        }));
        row
    });
    let title = "### Quality\n\nThe audience's score, which Q10 is compared with, differs from the critics' scores.\n\n";
    let header = ["query", "measure", "hqdl, true oracle", "confused oracle"];
    write_table(title, &[&header[..], &SYSTEMS].concat(), &rows.collect::<Vec<_>>())
}

/// A column of hqdl's figures: its header, the results, and the figure of a result.
type FigureColumn<'r> = (&'static str, &'r Results, fn(&Measured) -> f64);

/// Returns a table of figures with their sums.
fn figures_table(
    title: &str,
    ours: &[FigureColumn<'_>],
    published: &PublishedResults,
    figure: fn(&Published) -> f64,
    show: fn(f64) -> String,
) -> String {
    let mut rows: Vec<Vec<String>> =
        (1..=10).map(|number| vec![format!("Q{number}")]).chain([vec!["all".into()]]).collect();
    let mut add_column = |figures: Vec<Option<f64>>| {
        let sum = figures.iter().flatten().sum();
        for (row, figure) in rows.iter_mut().zip(figures.into_iter().chain([Some(sum)])) {
            row.push(figure.map_or_else(|| "–".into(), show));
        }
    };
    for (_, results, figure) in ours {
        add_column(results.values().map(|measured| Some(figure(measured))).collect());
    }
    for system in SYSTEMS {
        let result = |number| published.get(&(system.to_lowercase(), number)).map(figure);
        add_column((1..=10).map(result).collect());
    }
    let header = ["query"].into_iter().chain(ours.iter().map(|column| column.0)).chain(SYSTEMS);
    write_table(title, &header.collect::<Vec<_>>(), &rows)
}
