//! Writes the spec. Names in a database may contain any character, so every name passes through
//! [`format_toml_string`], [`format_toml_sql`] or [`format_name`].

use std::collections::HashSet;

use super::classify;
use super::lookup_table::LookupTable;
use super::sampling::{SampledColumn, ValueKind};
use super::{EntityTable, Inventory, format_name, join_names};
use crate::session::SpecOverrides;
use hqdl_spec::is_server;

/// Maximum number of value lists per expansion, because every prompt contains all of them.
const MAX_LISTS: usize = 12;
/// Maximum number of suggested context columns.
const MAX_CONTEXT_COLUMNS: usize = 8;

const HEAD: &str = "\
# A first spec, made by `hqdl init` from the data. Keep the columns that you need,
# delete the others, then run:
#   hqdl check SPEC         reports every problem with its line
#   hqdl plan SPEC          prints the requests and the price, and sends nothing
#   hqdl materialize SPEC   asks the model and publishes the tables
";

const MODEL: &str = "\
provider = \"openai\"              # any endpoint with an OpenAI-compatible API
name = \"gpt-4o-mini\"
api_key_env = \"OPENAI_API_KEY\"   # name of the environment variable that holds the key
# `hqdl prices` prints the models whose price hqdl knows. For any other model, add its price in
# USD per million tokens: price = { input = …, output = … }
# For a model on this machine (Ollama), replace `name` and `api_key_env` with these:
# base_url = \"http://127.0.0.1:11434/v1\"
# name = \"llama3.1\"
# price = { input = 0, output = 0 }
";

/// Default budget of a run, in USD.
const BUDGET_USD: f64 = 1.0;

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

/// Returns the path of the copy that the spec publishes into; `None` for a database server.
pub fn output_path(db_path: &str) -> Option<String> {
    let stem = db_path.rsplit_once('.').filter(|(_, end)| !end.contains(['/', '\\']));
    let stem = stem.map_or(db_path, |(stem, _)| stem);
    (!is_server(db_path.as_ref())).then(|| format!("{stem}.expanded.sqlite"))
}

/// Returns the text of the spec. `used_names` contains the lowercase names that the database
/// already uses.
pub fn format_spec(
    found: &Inventory,
    db_path: &str,
    model: &SpecOverrides,
    used_names: Vec<String>,
) -> String {
    if is_server(db_path.as_ref()) {
        let schema_comment = "# Schema of the published tables:\n# schema = \"expanded\"\n";
        return format_spec_with_database(
            found,
            &format!("url = {}\n{schema_comment}", format_toml_string(db_path)),
            model,
            used_names,
        );
    }
    let output = output_path(db_path).map(|output| {
        format!(
            "# hqdl publishes into this copy. Without this line it publishes into the database itself.\n\
             output = {}\n",
            format_toml_string(&output)
        )
    });
    let output = output.unwrap_or_default();
    format_spec_with_database(
        found,
        &format!("path = {}\n{output}", format_toml_string(db_path)),
        model,
        used_names,
    )
}

/// Formats the content of `[model]`: the model set by flags, or an example.
fn format_model_table(flags: &SpecOverrides) -> String {
    let SpecOverrides { model: Some(name), base_url, api_key_env, price, .. } = flags else {
        return MODEL.to_owned();
    };
    let texts = [
        ("name", Some(name)),
        ("base_url", base_url.as_ref()),
        ("api_key_env", api_key_env.as_ref()),
    ];
    let mut table =
        "provider = \"openai\"              # any endpoint with an OpenAI-compatible API\n"
            .to_owned();
    for (field, text) in texts {
        table.extend(text.map(|text| format!("{field} = {}\n", format_toml_string(text))));
    }
    table.extend(price.map(|p| {
        format!(
            "price = {{ input = {}, output = {} }}   # USD per million tokens\n",
            p.input, p.output
        )
    }));
    table
}

/// Formats `[limits]`, with the budget that the flags set or, without one, the default budget.
fn format_limits_table(flags: &SpecOverrides) -> String {
    format!(
        "[limits]\n\
         requests_per_minute = 500\n\
         concurrency = 16\n\
         budget_usd = {:.2}                # a run stops before it spends more\n",
        flags.budget_usd.unwrap_or(BUDGET_USD)
    )
}

/// Returns the text of the spec, with `database` as the content of its `[database]` table.
fn format_spec_with_database(
    inventory: &Inventory,
    database: &str,
    model: &SpecOverrides,
    used_names: Vec<String>,
) -> String {
    let limits = format_limits_table(model);
    let model = format_model_table(model);
    let mut draft = SpecWriter {
        out: format!("{HEAD}\n[database]\n{database}\n[model]\n{model}\n{limits}"),
        used_names: used_names.into_iter().collect(),
        questions: HashSet::new(),
    };
    let (chosen, unchosen) = inventory.split_chosen_tables();
    for entity in chosen {
        draft.write_expansion(entity, &inventory.find_lookup_tables(entity));
    }
    if chosen.is_empty() {
        draft.write_commented_expansion(&inventory.lookup_tables);
    }
    if !inventory.persons.is_empty() {
        let names: Vec<&str> = inventory.persons.iter().map(|t| t.name.as_str()).collect();
        draft.out.push_str(&format!(
            "\n# Left out because they hold personal data: {}. hqdl sends the columns of a key\n\
             # and of a context to the endpoint.\n",
            join_names(&names)
        ));
    }
    if !unchosen.is_empty() {
        let names: Vec<&str> = unchosen.iter().map(|e| e.table.name.as_str()).collect();
        draft.out.push_str(&format!(
            "\n# Other tables that could have an [[expansion]]: {}\n",
            join_names(&names)
        ));
    }
    draft.out
}

struct SpecWriter {
    out: String,
    /// Lowercase table names that are already in use.
    used_names: HashSet<String>,
    /// Questions written so far, each combined with its key.
    questions: HashSet<String>,
}

impl SpecWriter {
    fn push_line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn write_expansion(&mut self, entity: &EntityTable, lookup_tables: &[&LookupTable]) {
        let table = &entity.table;
        let name =
            self.reserve_name(&format!("llm_{}", to_plain_identifier(&table.name, &table.words)));
        let noun = join_noun_phrase(&table.words, "row");
        let key = entity.key_names();
        self.push_line("\n[[expansion]]");
        self.push_line(&format!("name = {}", format_toml_string(&name)));
        self.push_line(
            "# The model reads this sentence. Describe the rows more closely if you can.",
        );
        let about = entity.about.clone().unwrap_or_else(|| describe_rows(&noun, &entity.examples));
        self.push_line(&format!("about = {}", format_toml_string(&about)));
        match &entity.owner_key {
            Some(owned) => self.push_line(&format!("source = {}", format_toml_sql(&owned.select))),
            None => self.push_line(&format!("source = {}", format_source(&table.name))),
        }
        self.push_line(&format!("# {}", entity.describe_key_sample()));
        self.push_line(&format!("key = {}", format_array(&key)));
        let context = choose_context_columns(entity);
        if !context.is_empty() {
            self.push_line("# More columns for the model to see with the key:");
            self.push_line(&format!("# context = {}", format_array(&context)));
        }
        let mut columns = ColumnNames::for_entity(entity);
        let (used, unused) = lookup_tables.split_at(lookup_tables.len().min(MAX_LISTS));
        let longest = used.iter().map(|l| l.values).max();
        for list in used {
            let column = columns.reserve_name(&list.column_name(), &list.words);
            self.write_list_column(&column, list, &key, &noun);
            if Some(list.values) == longest && used.len() > 1 {
                let many = self
                    .reserve_name(&format!("{name}_{}", to_plain_identifier(&column, &list.words)));
                self.push_line(&format!("# If one {noun} can have several values:"));
                self.push_line(&format!(
                    "# many = {{ table = {}, column = {} }}",
                    format_toml_string(&many),
                    format_toml_string(&column)
                ));
            }
        }
        for (name, about) in &entity.advised {
            let column = columns.reserve_name(name, &[]);
            self.write_text_column(&column, about);
            self.write_question(&classify::split_words(&column).join(" "), &key, &noun);
        }
        if used.is_empty() && entity.advised.is_empty() {
            let column = columns.reserve_name("description", &["summary".to_owned()]);
            self.write_example_column(&column, &key, &noun);
        }
        if !unused.is_empty() {
            let names: Vec<&str> = unused.iter().map(|l| l.table.as_str()).collect();
            self.push_line(&format!("\n# More value lists: {}", join_names(&names)));
        }
    }

    fn write_list_column(&mut self, column: &str, list: &LookupTable, key: &[&str], entity: &str) {
        let value_noun = join_noun_phrase(&list.derive_value_noun(), "value");
        self.push_line("\n[[expansion.column]]");
        self.push_line(&format!("name = {}", format_toml_string(column)));
        self.push_line("type = \"text\"");
        self.push_line(&format!(
            "about = {}",
            format_toml_string(&format!("the {value_noun} of the {entity}"))
        ));
        self.push_line(&format!("values = {{ sql = {} }}", format_toml_sql(&list.values_sql())));
        self.write_question(&value_noun, key, entity);
    }

    fn write_example_column(&mut self, column: &str, key: &[&str], entity: &str) {
        let column_noun = join_noun_phrase(&classify::split_words(column), "description");
        self.push_line("\n# An example. Replace it with what you want to know.");
        self.out.truncate(self.out.trim_end().len());
        self.write_text_column(column, &format!("a one-sentence description of the {entity}"));
        self.write_question(&column_noun, key, entity);
    }

    fn write_text_column(&mut self, column: &str, about: &str) {
        self.push_line("\n[[expansion.column]]");
        self.push_line(&format!("name = {}", format_toml_string(column)));
        self.push_line("type = \"text\"            # or integer, real, boolean, date, url");
        self.push_line(&format!("about = {}", format_toml_string(about)));
    }

    /// Writes a question for a column. Two columns with the same key cannot answer the same
    /// question, so a second column gets a question that includes the entity's name, or no
    /// question.
    fn write_question(&mut self, subject: &str, key: &[&str], entity: &str) {
        let phrasings =
            [format!("What is the {subject}?"), format!("What is the {subject} of the {entity}?")];
        for ask in phrasings {
            // The words contain only letters and digits, so comparing the texts gives the same
            // result as the spec's check.
            if self.questions.insert(format!("{}\u{0}{ask}", key.join("\u{0}"))) {
                self.push_line(&format!("questions = [{}]", format_toml_string(&ask)));
                return;
            }
        }
    }

    /// Writes a commented-out expansion for a database without entities. It uses the longest value
    /// list, which may contain entities, or a generic example.
    fn write_commented_expansion(&mut self, lookup_tables: &[LookupTable]) {
        let longest = lookup_tables.iter().max_by_key(|l| l.values);
        let intro = match longest {
            Some(list) => format!(
                "# hqdl found only lists of names in this database. If you want to ask about the\n\
                 # names in {}, remove the # from the lines below.\n#\n",
                format_name(&list.table)
            ),
            None => "\
                # No table here has short text columns that identify its rows. An expansion needs\n\
                # a table or a SELECT whose rows a model knows by name, for example:\n#\n"
                .to_owned(),
        };
        let example =
            longest.map_or_else(|| EXAMPLE.to_owned(), |list| self.build_list_example(list));
        self.out.push('\n');
        self.out.push_str(&intro);
        for line in example.trim().lines() {
            self.push_line(format!("# {line}").trim_end());
        }
    }

    fn build_list_example(&mut self, list: &LookupTable) -> String {
        let name =
            self.reserve_name(&format!("llm_{}", to_plain_identifier(&list.table, &list.words)));
        let noun = join_noun_phrase(&list.words, "row");
        let column =
            if list.column.eq_ignore_ascii_case("description") { "summary" } else { "description" };
        let mut example =
            Self { out: String::new(), used_names: HashSet::new(), questions: HashSet::new() };
        example.push_line("[[expansion]]");
        example.push_line(&format!("name = {}", format_toml_string(&name)));
        example.push_line(&format!(
            "about = {}",
            format_toml_string(&format!("Each row is one {noun}."))
        ));
        example.push_line(&format!("source = {}", format_source(&list.table)));
        example.push_line(&format!("key = {}", format_array(&[&list.column])));
        example.write_example_column(column, &[&list.column], &noun);
        example.out
    }

    /// Returns an unused table name, and reserves it.
    fn reserve_name(&mut self, preferred: &str) -> String {
        reserve_free_name(&mut self.used_names, preferred)
    }
}

/// Lowercase column names of an expansion.
struct ColumnNames(HashSet<String>);

impl ColumnNames {
    /// Reserves the names of all source columns, because the expanded view also contains them.
    fn for_entity(entity: &EntityTable) -> Self {
        Self(entity.table.columns.iter().map(|c| c.name.to_lowercase()).collect())
    }

    fn reserve_name(&mut self, preferred: &str, fallback: &[String]) -> String {
        let fallback = fallback.join("_");
        if self.0.contains(&preferred.to_lowercase()) && !fallback.is_empty() {
            reserve_free_name(&mut self.0, &fallback)
        } else {
            reserve_free_name(&mut self.0, preferred)
        }
    }
}

/// Reserves and returns the name, with a number appended if it is in use.
fn reserve_free_name(used_names: &mut HashSet<String>, preferred: &str) -> String {
    let mut name = preferred.to_owned();
    let mut n = 1;
    while !used_names.insert(name.to_lowercase()) {
        n += 1;
        name = format!("{preferred}_{n}");
    }
    name
}

/// Returns the suggested context columns: the columns outside the key that contain numbers or
/// names. Ids are excluded, because they mean nothing to a model.
fn choose_context_columns(entity: &EntityTable) -> Vec<&str> {
    let table = &entity.table;
    let key = entity.key_names();
    let mut seen: HashSet<String> = key.iter().map(|k| k.to_lowercase()).collect();
    let is_useful = |c: &&SampledColumn| {
        let number = c.value_kind == ValueKind::Number
            && !c.is_primary_key
            && !c.is_reference
            && !classify::is_id(&c.words);
        let has_meaning = number || (c.value_kind == ValueKind::Name && classify::is_name(&c.name));
        has_meaning && !classify::is_private(&c.words)
    };
    table
        .columns
        .iter()
        .filter(is_useful)
        .filter(|c| seen.insert(c.name.to_lowercase()))
        .take(MAX_CONTEXT_COLUMNS)
        .map(|c| c.name.as_str())
        .collect()
}

/// Returns the sentence that describes the rows to the model, with a few of their names.
fn describe_rows(noun: &str, examples: &[String]) -> String {
    match examples.split_last() {
        None => format!("Each row is one {noun}."),
        Some((one, [])) => format!("Each row is one {noun}, for example {one}."),
        Some((last, rest)) => {
            format!("Each row is one {noun}, for example {} or {last}.", rest.join(", "))
        }
    }
}

/// Joins words into a noun phrase; returns `default` if there are none.
fn join_noun_phrase(words: &[String], default: &str) -> String {
    if words.is_empty() { default.to_owned() } else { words.join(" ") }
}

/// Returns an identifier that needs no quotes: the name itself, or its words joined with
/// underscores.
fn to_plain_identifier(name: &str, words: &[String]) -> String {
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
fn format_source(table: &str) -> String {
    if table.contains(char::is_whitespace) {
        format!("[{{ table = {} }}]", format_toml_string(table))
    } else {
        format_toml_string(table)
    }
}

fn format_array(names: &[&str]) -> String {
    let all: Vec<String> = names.iter().map(|n| format_toml_string(n)).collect();
    format!("[{}]", all.join(", "))
}

/// Formats a TOML string on one line, escaping control characters.
fn format_toml_string(text: &str) -> String {
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

/// Formats SQL as a TOML string. If possible, uses a literal string, so that double quotes in the
/// SQL need no escapes.
fn format_toml_sql(sql: &str) -> String {
    if sql.contains(|c: char| c == '\'' || c.is_control()) {
        format_toml_string(sql)
    } else {
        format!("'{sql}'")
    }
}
