//! Writes the spec. Names in a database may contain any character, so every name passes through
//! [`text`], [`sql_text`] or [`shown`].

use std::collections::HashSet;

use super::list::List;
use super::look;
use super::survey::{SurveyedColumn, ValueKind};
use super::{EntityTable, Inventory, listed, shown};
use hqdl_spec::is_server;

/// Maximum number of value lists per expansion; more would make the prompt long.
const LISTS: usize = 12;
/// Maximum number of suggested context columns.
const CONTEXT: usize = 8;

const HEAD: &str = "\
# A first spec, made by `hqdl init` from the data. Keep the columns that you need,
# delete the others, then run:
#   hqdl check SPEC         reports every problem with its line
#   hqdl plan SPEC          prints the requests and the price, and sends nothing
#   hqdl materialize SPEC   asks the model and publishes the tables
";

const MODEL: &str = "\
[model]
provider = \"openai\"              # any endpoint with an OpenAI-compatible API
name = \"gpt-4o-mini\"
api_key_env = \"OPENAI_API_KEY\"   # name of the environment variable that holds the key
price = { input = 0.15, cached_input = 0.075, output = 0.60 }   # USD per million tokens
# For a model on this machine (Ollama), replace the last three lines with these:
# base_url = \"http://127.0.0.1:11434/v1\"
# name = \"llama3.1\"
# price = { input = 0, output = 0 }

[limits]
requests_per_minute = 500
concurrency = 16
budget_usd = 1.00                # a run stops before it spends more
";

/// Example for a database without entities and value lists.
const EXAMPLE: &str = "\
[[expansion]]
name = \"llm_things\"
about = \"Each row is one thing.\"
source = \"things\"            # a table, or a SELECT
key = [\"name\"]               # the columns by which a model knows the thing

[[expansion.column]]
name = \"description\"
type = \"text\"
about = \"a one-sentence description of the thing\"
questions = [\"What is the description?\"]
";

/// Returns the copy that the spec of a database file publishes into, beside the file.
pub fn output_of(db_path: &str) -> Option<String> {
    let stem = db_path.rsplit_once('.').filter(|(_, end)| !end.contains(['/', '\\']));
    let stem = stem.map_or(db_path, |(stem, _)| stem);
    (!is_server(db_path.as_ref())).then(|| format!("{stem}.expanded.sqlite"))
}

/// Writes the spec; `used_names` contains the lowercase names that the database already uses.
pub fn write(found: &Inventory, db_path: &str, taken: Vec<String>) -> String {
    if is_server(db_path.as_ref()) {
        let place = "# Schema of the expanded tables:\n# schema = \"expanded\"\n";
        return write_of(found, &format!("url = {}\n{place}", text(db_path)), taken);
    }
    let output = output_of(db_path).map(|output| {
        format!(
            "# hqdl publishes into this copy. Without this line it publishes into the database itself.\n\
             output = {}\n",
            text(&output)
        )
    });
    let output = output.unwrap_or_default();
    write_of(found, &format!("path = {}\n{output}", text(db_path)), taken)
}

/// Writes the spec with `database` as the content of its `[database]` table.
fn write_of(found: &Inventory, database: &str, taken: Vec<String>) -> String {
    let mut draft = DraftedSpec {
        out: format!("{HEAD}\n[database]\n{database}\n{MODEL}"),
        taken: taken.into_iter().collect(),
        asked: HashSet::new(),
    };
    let (chosen, rest) = found.chosen();
    for entity in chosen {
        draft.expansion(entity, &found.lists_of(entity));
    }
    if chosen.is_empty() {
        draft.example(&found.lists);
    }
    if !found.persons.is_empty() {
        let names: Vec<&str> = found.persons.iter().map(|t| t.name.as_str()).collect();
        draft.out.push_str(&format!(
            "\n# Left out because they hold personal data: {}. hqdl sends the columns of a key\n\
             # and of a context to the endpoint.\n",
            listed(&names)
        ));
    }
    if !rest.is_empty() {
        let names: Vec<&str> = rest.iter().map(|e| e.table.name.as_str()).collect();
        draft.out.push_str(&format!(
            "\n# Other tables that could have an [[expansion]]: {}\n",
            listed(&names)
        ));
    }
    draft.out
}

struct DraftedSpec {
    out: String,
    /// Lowercase table names that are already in use.
    taken: HashSet<String>,
    /// Questions so far, each with its key.
    asked: HashSet<String>,
}

impl DraftedSpec {
    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn expansion(&mut self, entity: &EntityTable, lists: &[&List]) {
        let table = &entity.table;
        let name = self.free_name(&format!("llm_{}", plain(&table.name, &table.words)));
        let noun = noun(&table.words, "row");
        let key = entity.key_names();
        self.line("\n[[expansion]]");
        self.line(&format!("name = {}", text(&name)));
        self.line("# The model reads this sentence. Describe the rows more closely if you can.");
        let about = entity.about.clone().unwrap_or_else(|| about(&noun, &entity.examples));
        self.line(&format!("about = {}", text(&about)));
        match &entity.owned {
            Some(owned) => self.line(&format!("source = {}", sql_text(&owned.select))),
            None => self.line(&format!("source = {}", source(&table.name))),
        }
        self.line(&format!("# {}", entity.key_remark()));
        self.line(&format!("key = {}", array(&key)));
        let context = context(entity);
        if !context.is_empty() {
            self.line("# Further columns that the model sees beside the key:");
            self.line(&format!("# context = {}", array(&context)));
        }
        let mut columns = ColumnNames::of(entity);
        let (used, unused) = lists.split_at(lists.len().min(LISTS));
        let longest = used.iter().map(|l| l.values).max();
        for list in used {
            let column = columns.free_name(&list.column_name(), &list.words);
            self.list_column(&column, list, &key, &noun);
            if Some(list.values) == longest && used.len() > 1 {
                let many = self.free_name(&format!("{name}_{}", plain(&column, &list.words)));
                self.line(&format!("# If one {noun} can have several values:"));
                self.line(&format!(
                    "# many = {{ table = {}, column = {} }}",
                    text(&many),
                    text(&column)
                ));
            }
        }
        for (name, about) in &entity.advised {
            let column = columns.free_name(name, &[]);
            self.text_column(&column, about);
            self.question(&look::words(&column).join(" "), &key, &noun);
        }
        if used.is_empty() && entity.advised.is_empty() {
            let column = columns.free_name("description", &["summary".to_owned()]);
            self.example_column(&column, &key, &noun);
        }
        if !unused.is_empty() {
            let names: Vec<&str> = unused.iter().map(|l| l.table.as_str()).collect();
            self.line(&format!("\n# More value lists: {}", listed(&names)));
        }
    }

    fn list_column(&mut self, column: &str, list: &List, key: &[&str], entity: &str) {
        let what = noun(&list.noun(), "value");
        self.line("\n[[expansion.column]]");
        self.line(&format!("name = {}", text(column)));
        self.line("type = \"text\"");
        self.line(&format!("about = {}", text(&format!("the {what} of the {entity}"))));
        self.line(&format!("values = {{ sql = {} }}", sql_text(&list.sql())));
        self.question(&what, key, entity);
    }

    fn example_column(&mut self, column: &str, key: &[&str], entity: &str) {
        let what = noun(&look::words(column), "description");
        self.line("\n# An example. Replace it with what you want to know.");
        self.out.truncate(self.out.trim_end().len());
        self.text_column(column, &format!("a one-sentence description of the {entity}"));
        self.question(&what, key, entity);
    }

    fn text_column(&mut self, column: &str, about: &str) {
        self.line("\n[[expansion.column]]");
        self.line(&format!("name = {}", text(column)));
        self.line("type = \"text\"            # or integer, real, boolean, date, url");
        self.line(&format!("about = {}", text(about)));
    }

    /// Writes a question for a column. Two columns with the same key cannot answer the same
    /// question, so a second column gets a question with the entity's name, or none.
    fn question(&mut self, what: &str, key: &[&str], entity: &str) {
        let ways = [format!("What is the {what}?"), format!("What is the {what} of the {entity}?")];
        for ask in ways {
            // The words contain only letters and digits, so plain equality agrees with the check.
            if self.asked.insert(format!("{}\u{0}{ask}", key.join("\u{0}"))) {
                self.line(&format!("questions = [{}]", text(&ask)));
                return;
            }
        }
    }

    /// Writes a commented-out expansion for a database without entities. It uses the longest value
    /// list, which may contain entities, or a generic example.
    fn example(&mut self, lists: &[List]) {
        let longest = lists.iter().max_by_key(|l| l.values);
        let why = match longest {
            Some(list) => format!(
                "# hqdl found only lists of names in this database. If you want to ask about the\n\
                 # names in {}, remove the # from the lines below.\n#\n",
                shown(&list.table)
            ),
            None => "\
                # No table here has short text columns that identify its rows. An expansion needs\n\
                # a table or a SELECT whose rows a model knows by name, for example:\n#\n"
                .to_owned(),
        };
        let example = longest.map_or_else(|| EXAMPLE.to_owned(), |list| self.list_example(list));
        self.out.push('\n');
        self.out.push_str(&why);
        for line in example.trim().lines() {
            self.line(format!("# {line}").trim_end());
        }
    }

    fn list_example(&mut self, list: &List) -> String {
        let name = self.free_name(&format!("llm_{}", plain(&list.table, &list.words)));
        let noun = noun(&list.words, "row");
        let column =
            if list.column.eq_ignore_ascii_case("description") { "summary" } else { "description" };
        let mut example = Self { out: String::new(), taken: HashSet::new(), asked: HashSet::new() };
        example.line("[[expansion]]");
        example.line(&format!("name = {}", text(&name)));
        example.line(&format!("about = {}", text(&format!("Each row is one {noun}."))));
        example.line(&format!("source = {}", source(&list.table)));
        example.line(&format!("key = {}", array(&[&list.column])));
        example.example_column(column, &[&list.column], &noun);
        example.out
    }

    /// Returns a free table name.
    fn free_name(&mut self, wish: &str) -> String {
        free(&mut self.taken, wish)
    }
}

/// Lowercase column names of an expansion.
struct ColumnNames(HashSet<String>);

impl ColumnNames {
    /// Reserves the names of all source columns, because the expanded view contains both.
    fn of(entity: &EntityTable) -> Self {
        Self(entity.table.columns.iter().map(|c| c.name.to_lowercase()).collect())
    }

    fn free_name(&mut self, wish: &str, instead: &[String]) -> String {
        let instead = instead.join("_");
        if self.0.contains(&wish.to_lowercase()) && !instead.is_empty() {
            free(&mut self.0, &instead)
        } else {
            free(&mut self.0, wish)
        }
    }
}

/// Reserves and returns the name, with a number appended if it is in use.
fn free(taken: &mut HashSet<String>, wish: &str) -> String {
    let mut name = wish.to_owned();
    let mut n = 1;
    while !taken.insert(name.to_lowercase()) {
        n += 1;
        name = format!("{wish}_{n}");
    }
    name
}

/// Returns the suggested context columns: numbers, and names that are not in the key. Ids are
/// excluded, because they mean nothing to a model.
fn context(entity: &EntityTable) -> Vec<&str> {
    let table = &entity.table;
    let key = entity.key_names();
    let mut seen: HashSet<String> = key.iter().map(|k| k.to_lowercase()).collect();
    let telling = |c: &&SurveyedColumn| {
        let number =
            c.kind == ValueKind::Number && !c.primary && !c.reference && !look::is_id(&c.words);
        let telling = number || (c.kind == ValueKind::Name && look::is_name(&c.name));
        telling && !look::is_private(&c.words)
    };
    table
        .columns
        .iter()
        .filter(telling)
        .filter(|c| seen.insert(c.name.to_lowercase()))
        .take(CONTEXT)
        .map(|c| c.name.as_str())
        .collect()
}

/// Returns the sentence that describes the rows to the model, with the names of a few of them.
fn about(noun: &str, examples: &[String]) -> String {
    match examples.split_last() {
        None => format!("Each row is one {noun}."),
        Some((one, [])) => format!("Each row is one {noun}, for example {one}."),
        Some((last, rest)) => {
            format!("Each row is one {noun}, for example {} or {last}.", rest.join(", "))
        }
    }
}

/// Joins words into a noun phrase; returns `default` if there are none.
fn noun(words: &[String], without: &str) -> String {
    if words.is_empty() { without.to_owned() } else { words.join(" ") }
}

/// Returns an identifier that needs no quotes: the name itself, or its words joined with
/// underscores.
fn plain(name: &str, words: &[String]) -> String {
    if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_') {
        name.to_owned()
    } else if words.is_empty() {
        "table".to_owned()
    } else {
        words.join("_")
    }
}

/// Formats a table as a source. A name that contains spaces could be read as a SELECT, so it is
/// written as an inline table.
fn source(table: &str) -> String {
    if table.contains(char::is_whitespace) {
        format!("[{{ table = {} }}]", text(table))
    } else {
        text(table)
    }
}

fn array(names: &[&str]) -> String {
    let all: Vec<String> = names.iter().map(|n| text(n)).collect();
    format!("[{}]", all.join(", "))
}

/// Formats a TOML string on one line, escaping control characters.
fn text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats SQL as a TOML string: as a literal string if possible, so that its double quotes need no
/// escapes.
fn sql_text(sql: &str) -> String {
    if sql.contains(|c: char| c == '\'' || c.is_control()) { text(sql) } else { format!("'{sql}'") }
}
