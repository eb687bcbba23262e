//! Examples of every command, for its help and for the reference page. A test parses each example
//! and checks that every flag occurs in one of them.

/// Examples by command; `swan run` is the subcommand `run` of `swan`.
pub const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "init",
        &[
            "hqdl init my.db",
            "hqdl init cities.csv --spec specs/cities.toml",
            "hqdl init my.db --ask --model gpt-4o-mini --budget 0.05",
        ],
    ),
    (
        "check",
        &[
            "hqdl check specs/superhero.toml",
            "hqdl check specs/superhero.toml --db copy.db",
            "hqdl check --schema > hqdl-spec.schema.json",
        ],
    ),
    (
        "plan",
        &[
            "hqdl plan specs/superhero.toml --provider openai --model gpt-4o-mini",
            "hqdl plan specs/superhero.toml --limit 100 --batch --budget 2.50",
            "hqdl plan specs/superhero.toml --columns race --show-prompt",
            "hqdl plan specs/superhero.toml --check --quiet",
            "hqdl plan specs/superhero.toml --refresh-evidence",
        ],
    ),
    (
        "prices",
        &["hqdl prices", "hqdl prices gpt-4o-mini", "hqdl prices --format csv > prices.csv"],
    ),
    (
        "materialize",
        &[
            "hqdl materialize specs/superhero.toml",
            "hqdl materialize specs/superhero.toml --limit 10 --columns race,gender --budget 0.05",
            "hqdl materialize specs/superhero.toml --where \"height_cm > 200\" --retry-failed",
            "hqdl materialize specs/superhero.toml --refresh eye_color --require-values",
            "hqdl materialize specs/superhero.toml --refresh-evidence",
            "hqdl materialize specs/superhero.toml --batch",
            "hqdl materialize specs/superhero.toml --batch-file out --again",
            "hqdl materialize specs/superhero.toml --provider openai --model llama3.1 --base-url http://127.0.0.1:11434/v1 --price 0,0",
            "hqdl materialize specs/superhero.toml --api-key-env MY_KEY --rows-per-request 20 --concurrency 4",
            "hqdl materialize specs/superhero.toml --recordings examples/superhero --db copy.db --output out.db",
            "hqdl materialize specs/superhero.toml --cache ~/facts --json --log run.log",
            "hqdl materialize specs/superhero.toml --no-cache --verbose",
        ],
    ),
    (
        "import",
        &[
            "hqdl import specs/superhero.toml answers.jsonl --db copy.db --output out.db --require-values",
        ],
    ),
    (
        "ask",
        &[
            "hqdl ask --spec specs/superhero.toml \"Which heroes are taller than 2 m?\"",
            "hqdl ask --db my.db --model gpt-4o-mini \"Which city has the most customers?\" --yes-under 0.01",
            "hqdl ask --spec specs/superhero.toml \"Who can fly?\" --approve 04af8ddefce4 --format csv",
            "hqdl ask --spec specs/superhero.toml \"Who can fly?\" --yes --budget 0.50 --timeout 10",
            "hqdl ask --spec specs/superhero.toml \"Who can fly?\" --rewrite --sql-only --context-tokens 8000",
            "hqdl ask --spec specs/superhero.toml \"Who can fly?\" --explain",
            "hqdl ask --spec specs/superhero.toml \"Which heroes are taller than 2 m?\" --keep",
            "hqdl ask --spec specs/superhero.toml \"Who is the tallest hero?\" --say",
            "hqdl ask --spec specs/superhero.toml \"Who can fly?\" --explain --write",
        ],
    ),
    (
        "chat",
        &[
            "hqdl chat --spec specs/superhero.toml",
            "hqdl chat --spec specs/superhero.toml --resume",
            "hqdl chat --db my.db --model gpt-4o-mini --yes-under 0.05 --format csv < questions.txt",
        ],
    ),
    (
        "mcp",
        &[
            "hqdl mcp --spec specs/superhero.toml",
            "hqdl mcp --db my.db --model gpt-4o-mini --allow-usd 0.05 --max-usd 0.50 --timeout 10",
            "hqdl mcp --spec specs/superhero.toml --print-config claude",
        ],
    ),
    ("approve", &["hqdl approve 04af8ddefce4", "hqdl approve 04af8ddefce4 --yes"]),
    (
        "query",
        &[
            "hqdl query --spec specs/superhero.toml \"SELECT race, count(*) FROM superhero_expanded GROUP BY 1\"",
            "hqdl query --db my.db --model gpt-4o-mini --base-url https://api.openai.com/v1 --file question.sql --meta",
            "hqdl query --spec specs/superhero.toml --param n=200 --format csv \"SELECT superhero_name FROM superhero WHERE height_cm > :n\"",
            "hqdl query --db my.db --dialect suql --classify --budget 0.10 \"SELECT name FROM restaurants WHERE price = 'cheap'\"",
            "hqdl query --spec specs/superhero.toml --timeout 10 --retry-failed --require-values --file question.sql",
            "hqdl query --spec specs/superhero.toml --interval --simultaneous \"SELECT race, count(*) FROM superhero_expanded GROUP BY 1\"",
            "hqdl query --spec specs/superhero.toml --refresh --truncate --file question.sql",
        ],
    ),
    (
        "map",
        &[
            "echo '{\"question\": \"Is it a fruit?\", \"values\": [\"fig\", \"car\"], \"type\": \"bool\"}' | hqdl map --model gpt-4o-mini --base-url https://api.openai.com/v1",
            "hqdl map --spec specs/superhero.toml --budget 0.10 < requests.jsonl",
        ],
    ),
    ("explain", &["hqdl explain --spec specs/superhero.toml --file question.sql --verbose"]),
    (
        "why",
        &[
            "hqdl why llm Hellboy \"Anung Un Rama\" publisher_name",
            "hqdl why llm Hellboy \"Anung Un Rama\" publisher_name --spec specs/superhero.toml",
            "hqdl why llm Hellboy \"Anung Un Rama\" publisher_name --db out.db",
        ],
    ),
    (
        "score",
        &["hqdl score specs/superhero.toml --truth truth.csv --differences 20 --output out.db"],
    ),
    (
        "audit",
        &[
            "hqdl audit specs/superhero.toml --columns race,gender --sample 50 --seed 7",
            "hqdl audit specs/superhero.toml --for \"SELECT avg(height_cm) FROM superhero_expanded WHERE race = 'Human'\" --design leverage",
            "hqdl audit specs/superhero.toml --ask-me --who Ann",
            "hqdl audit specs/superhero.toml --truth truth.csv --db copy.db --output out.db",
            "hqdl audit specs/superhero.toml --ask-model --model gpt-4o --budget 0.50",
            "hqdl audit specs/superhero.toml --report --half-width 2.5",
            "hqdl audit specs/superhero.toml --apply",
        ],
    ),
    (
        "override set",
        &[
            "hqdl override set specs/superhero.toml llm Spawn \"Al Simmons\" race Demon --note \"see issue 7\"",
            "hqdl override set specs/superhero.toml llm Nobody NULL race Alien --force",
            "hqdl override set specs/superhero.toml llm Spawn \"Al Simmons\" race --unknown",
        ],
    ),
    ("override unset", &["hqdl override unset specs/superhero.toml llm Spawn \"Al Simmons\" race"]),
    ("override list", &["hqdl override list specs/superhero.toml"]),
    (
        "clean",
        &[
            "hqdl clean specs/superhero.toml",
            "hqdl clean specs/superhero.toml --db copy.db --output out.db",
        ],
    ),
    ("suggest", &["hqdl suggest", "hqdl suggest --spec specs/superhero.toml --write"]),
    (
        "cache list",
        &["hqdl cache list Hellboy --limit 20", "hqdl cache list --allow-missing --json"],
    ),
    ("cache stats", &["hqdl cache stats"]),
    ("cache export", &["hqdl cache export facts.jsonl"]),
    ("cache import", &["hqdl cache import facts.jsonl"]),
    ("cache check", &["hqdl cache check"]),
    ("cache rebuild", &["hqdl cache rebuild"]),
    (
        "daemon",
        &[
            "hqdl daemon --specs specs",
            "hqdl daemon --no-spend --poll 5 --grace 60",
            "hqdl daemon --edit --max-upload 2000",
            "HQDL_TOKEN=$(openssl rand -hex 16) hqdl daemon --listen 0.0.0.0:4735 --host facts.example.org",
            "hqdl daemon --allow-usd 0.05 --max-usd 0.50",
            "hqdl daemon --max-rows 100000 --max-bytes 50000000 --read-within 30",
            "hqdl daemon --client-requests 200 --client-burst 400 --client-streams 16 --client-megabytes 1024",
            "hqdl daemon --socket /run/hqdl/http.sock --trusted-proxy 127.0.0.1",
        ],
    ),
    ("status", &["hqdl status --json"]),
    (
        "swan prepare",
        &["hqdl swan prepare --bird dev_databases --out swan --only superhero --force"],
    ),
    (
        "swan run",
        &[
            "hqdl swan run --db swan/superhero.sqlite --questions superhero.csv --model gpt-4o-mini --shots 3 --budget 2",
            "hqdl swan run --db swan/superhero.sqlite --questions superhero.csv --mode blendsql --on-demand --out runs/one --timeout 60",
            "hqdl swan run --db swan/superhero.sqlite --questions superhero.csv --true-values swan/gold --spec superhero.toml --shots-file shots.json",
        ],
    ),
    (
        "swan score",
        &["hqdl swan score runs/one --gold swan/gold --questions superhero.csv --timeout 60"],
    ),
    ("swan report", &["hqdl swan report runs/one runs/two --gold swan/gold --out report"]),
    ("completions", &["hqdl completions bash > hqdl.bash"]),
    ("man", &["hqdl man ~/.local/share/man/man1"]),
];

/// Maximum line length of an example; a longer one is continued on the next line.
const MAX_LINE_WIDTH: usize = 90;

/// Formats the examples of a command for the end of its help.
#[must_use]
pub fn format_examples(command: &str) -> Option<String> {
    let (_, examples) = EXAMPLES.iter().find(|(name, _)| *name == command)?;
    let title = if examples.len() == 1 { "Example:" } else { "Examples:" };
    let lines: Vec<String> = examples.iter().map(|e| format!("  {}", wrap_example(e))).collect();
    Some(format!("{title}\n{}", lines.join("\n")))
}

/// Breaks a long example before its flags, with a shell's line continuation.
#[must_use]
pub fn wrap_example(example: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for (n, part) in example.split(" --").enumerate() {
        let flag = if n == 0 { String::new() } else { format!(" --{}", part.trim_end()) };
        if n == 0 {
            text.push_str(part);
            width = part.len();
        } else if width + flag.len() > MAX_LINE_WIDTH {
            text.push_str(&format!(" \\\n     {flag}"));
            width = 5 + flag.len();
        } else {
            text.push_str(&flag);
            width += flag.len();
        }
    }
    text
}
