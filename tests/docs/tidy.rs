//! Tests of the project's own rules for code and documentation.

mod language;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// Path of a module inside its crate: `["query", "live"]`.
type Module = Vec<String>;

/// Returns the modules of a crate with their files.
fn modules(src: &Path) -> BTreeMap<Module, PathBuf> {
    let of = |file: PathBuf| {
        let inside = file.strip_prefix(src).unwrap().with_extension("");
        let mut path: Module =
            inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if path.last().is_some_and(|last| last == "mod") || path == ["lib"] || path == ["main"] {
            path.pop();
        }
        (path, file)
    };
    sources(src).into_iter().map(of).collect()
}

/// Collects the paths of a `use` tree.
fn tree(text: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let (mut depth, mut start) = (0, 0);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    for part in parts.iter().map(|p| p.trim()).filter(|p| !p.is_empty()) {
        let (head, inner) = part.split_once('{').unwrap_or((part, ""));
        let words = head.split("::").map(str::trim).filter(|w| !w.is_empty());
        let path: Vec<String> = before.iter().cloned().chain(words.map(str::to_owned)).collect();
        match inner.rsplit_once('}') {
            Some((inner, _)) => tree(inner, &path, found),
            None => found.push(path),
        }
    }
}

/// Returns the paths in a file that begin with `crate`, `super` or `self`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    let start = regex::Regex::new(r"\b(?:crate|super|self)(?:::\w+)*(::\{)?").unwrap();
    for hit in start.captures_iter(&code) {
        let whole = hit.get(0).unwrap();
        let mut end = whole.end();
        if hit.get(1).is_some() {
            let mut depth = 1;
            while depth > 0 {
                depth += match code.as_bytes()[end] {
                    b'{' => 1,
                    b'}' => -1,
                    _ => 0,
                };
                end += 1;
            }
        }
        tree(&code[whole.start()..end], &[], &mut found);
    }
    found
}

/// Returns the modules from which a file imports items.
fn named(module: &Module, text: &str, all: &BTreeMap<Module, PathBuf>) -> BTreeSet<Module> {
    let target = |path: Vec<String>| {
        let mut names_item = false;
        let mut at = if path[0] == "crate" { Module::new() } else { module.clone() };
        for word in path {
            match word.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                _ => {
                    at.push(word);
                    if !all.contains_key(&at) {
                        at.pop();
                        names_item = true;
                        break;
                    }
                }
            }
        }
        // `pub(super)` refers to a surrounding module, but imports nothing from it.
        (names_item || !module.starts_with(&at)).then_some(at)
    };
    paths(text).into_iter().filter_map(target).collect()
}

/// Returns the modules that a module uses, except those around it and inside it.
fn used(module: &Module, text: &str, all: &BTreeMap<Module, PathBuf>) -> BTreeSet<Module> {
    let apart = |m: &Module| !m.starts_with(module) && !module.starts_with(m);
    named(module, text, all).into_iter().filter(apart).collect()
}

/// Removes every module that is in no cycle: it uses none of the others, or none uses it.
fn retain_circles(uses: &mut BTreeMap<Module, BTreeSet<Module>>) {
    let mut before = usize::MAX;
    while uses.len() < before {
        before = uses.len();
        let left: BTreeSet<Module> = uses.keys().cloned().collect();
        uses.retain(|_, needs| needs.iter().any(|m| left.contains(m)));
        let needed: BTreeSet<Module> = uses.values().flatten().cloned().collect();
        uses.retain(|module, _| needed.contains(module));
    }
}

/// Returns the `src` folders of the program and its crates.
fn source_roots() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().flatten();
    let crates = crates.map(|entry| entry.path().join("src"));
    crates.chain([root().join("src")]).collect()
}

/// No two files depend on each other, except a module and its submodules, so that files can be read
/// in one direction.
#[test]
fn files_do_not_depend_on_each_other_in_cycles() {
    let mut circles = Vec::new();
    for src in source_roots() {
        let all = modules(&src);
        assert!(all.len() > 3, "{}", src.display());
        let of = |(module, file): (&Module, &PathBuf)| {
            (module.clone(), used(module, &std::fs::read_to_string(file).unwrap(), &all))
        };
        let mut uses: BTreeMap<Module, BTreeSet<Module>> = all.iter().map(of).collect();
        retain_circles(&mut uses);
        circles.extend(uses.keys().map(|m| format!("{}: {}", src.display(), m.join("::"))));
    }
    assert!(circles.is_empty(), "in circles, or between two:\n{}", circles.join("\n"));
}

/// Folders do not depend on each other in cycles, either: the files of a folder depend only on
/// those below it. A folder's own file may use those inside.
#[test]
fn folders_do_not_depend_on_each_other_in_cycles() {
    let mut circles = Vec::new();
    for src in source_roots() {
        let all = modules(&src);
        // Dependencies of every module, as dependencies between neighbours in the same folder.
        let mut folders: BTreeMap<Module, BTreeMap<Module, BTreeSet<Module>>> = BTreeMap::new();
        for (module, file) in &all {
            for other in used(module, &std::fs::read_to_string(file).unwrap(), &all) {
                let shared = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
                let neighbours = folders.entry(module[..shared].to_vec()).or_default();
                let used = neighbours.entry(module[..=shared].to_vec()).or_default();
                used.insert(other[..=shared].to_vec());
            }
        }
        for uses in folders.values_mut() {
            retain_circles(uses);
            let names = uses.keys().map(|m| format!("{}: {}", src.display(), m.join("::")));
            circles.extend(names);
        }
    }
    assert!(circles.is_empty(), "folders in circles:\n{}", circles.join("\n"));
}

/// The entry of the queries uses the phases, and no phase uses the entry, so that a query can be
/// followed from folder to folder.
#[test]
fn no_phase_of_a_query_uses_the_entry() {
    let src = root().join("crates/hqdl-engine/src");
    let all = modules(&src);
    let entry: Module = vec!["query".to_owned()];
    let phases = all.iter().filter(|(module, _)| module.len() > 1 && module.starts_with(&entry));
    let back: Vec<_> = phases
        .filter(|(module, file)| {
            named(module, &std::fs::read_to_string(file).unwrap(), &all).contains(&entry)
        })
        .map(|(module, _)| module.join("::"))
        .collect();
    assert!(back.is_empty(), "these use query/mod.rs:\n{}", back.join("\n"));
}

/// Returns the folders of a query's phases, in the order of the table in `query/mod.rs`.
fn phases(entry: &str) -> Vec<String> {
    let row = regex::Regex::new(r"(?m)^//! \| `(\w+)` \|").unwrap();
    row.captures_iter(entry).map(|hit| hit[1].to_owned()).collect()
}

/// A phase of a query imports only from the phases below it in the table of `query/mod.rs`. Every
/// folder is in the table, and no phase imports from the files beside the folders.
#[test]
fn phases_of_a_query_import_only_from_those_below() {
    let src = root().join("crates/hqdl-engine/src");
    let order = phases(&std::fs::read_to_string(src.join("query/mod.rs")).unwrap());
    let rank = |name: &String| order.iter().position(|phase| phase == name);
    let all = modules(&src);
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (module, file) in &all {
        let [query, phase, ..] = module.as_slice() else { continue };
        let is_folder = src.join("query").join(phase).is_dir();
        if query != "query" || !is_folder {
            continue;
        }
        checked += 1;
        assert!(rank(phase).is_some(), "the table in query/mod.rs lacks `{phase}`");
        for other in named(module, &std::fs::read_to_string(file).unwrap(), &all) {
            let target = other.get(1).filter(|_| other[0] == "query");
            if target.is_some_and(|target| target != phase && rank(target) <= rank(phase)) {
                wrong.push(format!("{} uses {}", module.join("::"), other.join("::")));
            }
        }
    }
    assert!(wrong.is_empty() && checked > 80, "{checked} files:\n{}", wrong.join("\n"));
}

/// Files that read tokens themselves, and why this is no pass over a query's text.
const LEXER_CALLERS: [(&str, &str); 11] = [
    ("blendsql/lexer.rs", "the lexer itself"),
    ("blendsql/scan/mod.rs", "the parser's tokens, which contain the calls"),
    ("blendsql/scan/vendor_call.rs", "a lookahead of the parser's scanner"),
    ("blendsql/view.rs", "a view's definition; its query is parsed by the grammar"),
    ("blendsql/emit/mod.rs", "compares two expressions of the tree without their spaces"),
    ("read/classify.rs", "one literal of the tree, and the CHECK constraints of a table"),
    ("read/one_row.rs", "the parameters of a part that runs separately"),
    ("route/calls/mod.rs", "the two names of a column"),
    ("request/params.rs", "the names of parameters, of a text that may be incomplete"),
    ("connection/quoted_texts.rs", "the name at the offset of a message of SQLite"),
    ("connection/statement.rs", "rejects writing statements, and finds the spans of messages"),
];

/// The text of a query is read by one parser: no other file rewrites its tokens.
#[test]
fn only_the_parser_reads_the_tokens_of_a_query() {
    let call = regex::Regex::new(r"(?:^|[^.\w])(?:next_token|read_tokens)\(").unwrap();
    let mut callers = BTreeSet::new();
    for src in source_roots() {
        for file in sources(&src) {
            let text = std::fs::read_to_string(&file).unwrap();
            let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            if code.any(|line| call.is_match(line) && !line.contains("fn next_token")) {
                callers.insert(file);
            }
        }
    }
    let is_at = |file: &Path, at: &str| file.to_str().unwrap().ends_with(at);
    let unused: Vec<&str> = LEXER_CALLERS
        .iter()
        .map(|(at, _)| *at)
        .filter(|at| !callers.iter().any(|file| is_at(file, at)))
        .collect();
    callers.retain(|file| !LEXER_CALLERS.iter().any(|(at, _)| is_at(file, at)));
    assert!(callers.is_empty(), "use the syntax tree instead of tokens: {callers:?}");
    assert!(unused.is_empty(), "no longer there: {unused:?}");
}

/// The functions of queries have at most 80 lines of code, and no function is exempt from the lint
/// that limits all others.
#[test]
fn functions_of_queries_are_short() {
    let start =
        regex::Regex::new(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?fn (\w+)").unwrap();
    let mut found = Vec::new();
    for folder in ["crates/hqdl-sql/src", "crates/hqdl-engine/src/query"] {
        for file in sources(&root().join(folder)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let is_code = |line: &&str| !line.is_empty() && !line.trim_start().starts_with("//");
            let lines: Vec<&str> = text.lines().filter(is_code).collect();
            for (n, line) in lines.iter().enumerate() {
                let Some(hit) = start.captures(line) else { continue };
                let is_end = |line: &&str| {
                    let rest = line.strip_prefix(&hit[1]).unwrap_or_default();
                    rest == "}" || !rest.starts_with(' ') && rest.ends_with([';', '}'])
                };
                let length = 1 + lines[n..].iter().position(is_end).unwrap();
                if length > 80 {
                    found.push(format!("{}: {} has {length} lines", file.display(), &hit[2]));
                }
            }
        }
    }
    for file in source_roots().iter().flat_map(|src| sources(src)) {
        if std::fs::read_to_string(&file).unwrap().contains("expect(clippy::too_many_lines") {
            found.push(format!("{} expects a long function", file.display()));
        }
    }
    assert!(found.is_empty(), "split these:\n{}", found.join("\n"));
}

/// Files are named after their subject.
#[test]
fn files_are_named_after_their_subject() {
    let mut files = sources(&root().join("src"));
    for entry in std::fs::read_dir(root().join("crates")).unwrap().flatten() {
        files.extend(sources(&entry.path().join("src")));
    }
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        assert!(
            !["util", "utils", "common", "helpers", "types", "misc", "prelude"].contains(&name),
            "{} is a drawer, not a noun",
            file.display()
        );
    }
}

/// Type names that each command has for itself; they are always written with the command
/// (`plan::Options`, `cache::Command`).
const OF_EACH_COMMAND: [&str; 2] = ["Options", "Command"];

#[test]
fn a_type_name_stands_for_one_thing() {
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let crates = std::fs::read_dir(root().join("crates")).unwrap().flatten();
    // The testkit has its own names: an endpoint's requests differ from a query's.
    let crates = crates.filter(|e| e.file_name() != "hqdl-testkit");
    let mut files: Vec<PathBuf> = crates.flat_map(|e| sources(&e.path().join("src"))).collect();
    files.extend(sources(&root().join("src")));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut of_a_trait = false;
        for line in text.lines() {
            // Associated types have the names that their traits define.
            let indented = line.starts_with(' ');
            if !indented && !line.is_empty() {
                of_a_trait = line.starts_with("impl") || line.contains("trait ");
            }
            let line = line.trim_start();
            let line = match line.strip_prefix("pub(") {
                Some(rest) => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
                None => line.strip_prefix("pub ").unwrap_or(line),
            };
            let Some((kind, rest)) = line.split_once(' ') else { continue };
            let declares = ["struct", "enum", "trait", "union"].contains(&kind)
                || kind == "type" && !(indented && of_a_trait);
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            if declares && name.starts_with(char::is_uppercase) {
                let place = file.strip_prefix(root()).unwrap().display().to_string();
                homes.entry(name).or_default().insert(place);
            }
        }
    }
    homes.retain(|name, places| places.len() > 1 && !OF_EACH_COMMAND.contains(&name.as_str()));
    assert!(homes.is_empty(), "one name, several types: {homes:#?}");
}

/// Returns every Markdown page of `docs/`, including subfolders.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let markdown = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "md"));
    markdown.chain(folders.iter().flat_map(|folder| pages(folder))).collect()
}

/// Returns the anchors of a page's headings, as mdBook and GitHub make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Returns true if inline code in a page is a path of this project.
fn is_path(code: &str) -> bool {
    (code.starts_with("src/") || code.starts_with("crates/")) && !code.contains('*')
}

/// Links and code paths in README.md and `docs/` are valid; links to a section name an existing
/// heading.
#[test]
fn documents_refer_to_existing_files() {
    let docs = root().join("docs");
    let mut documents = pages(&docs);
    documents.extend(["README.md", "CONTRIBUTING.md", "tests/README.md"].map(|f| root().join(f)));
    let mut wrong = Vec::new();
    for document in &documents {
        let text = std::fs::read_to_string(document).unwrap();
        let mut complain = |link: &str| wrong.push(format!("{}: {link}", document.display()));
        let links = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
        let links = links.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.starts_with("http")) {
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let leaves_site = document.starts_with(&docs)
                && !target
                    .canonicalize()
                    .is_ok_and(|t| t.starts_with(docs.canonicalize().unwrap()));
            let has_section =
                || anchors(&std::fs::read_to_string(&target).unwrap()).contains(section);
            if !target.exists() || leaves_site || !section.is_empty() && !has_section() {
                complain(link);
            }
        }
        let code = text.split('`').skip(1).step_by(2);
        for path in code.filter(|c| is_path(c)) {
            if !root().join(path).exists() {
                complain(path);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Modules in docs/architecture.md exist: the lower-case words of `a::b::c` are the end of a
/// module's path, or a function in that module.
#[test]
fn the_architecture_names_existing_modules() {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut known = BTreeMap::new();
    for src in source_roots() {
        let name = src.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let name = name.strip_prefix("hqdl-").unwrap_or("hqdl").to_owned();
        let path =
            |(module, file): (Module, PathBuf)| ([vec![name.clone()], module].concat(), file);
        known.extend(modules(&src).into_iter().map(path));
    }
    let path = regex::Regex::new(r"^[a-z_]+(::\w+)+$").unwrap();
    let is_wrong = |code: &&str| {
        let words = code.split("::").take_while(|word| word.starts_with(char::is_lowercase));
        let words: Vec<String> = words.map(str::to_owned).collect();
        let (last, outer) = words.split_last().unwrap();
        let has_function = |(module, file): (&Module, &PathBuf)| {
            module.ends_with(outer)
                && std::fs::read_to_string(file).unwrap().contains(&format!("fn {last}("))
        };
        !known.keys().any(|module| module.ends_with(&words)) && !known.iter().any(has_function)
    };
    let wrong: Vec<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| path.is_match(code))
        .filter(is_wrong)
        .collect();
    assert!(wrong.is_empty(), "docs/architecture.md names no module: {wrong:?}");
}

/// The documentation site contains every page of `docs/`.
#[test]
fn the_summary_lists_every_page() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let missing: Vec<_> = (pages(&docs).into_iter())
        .filter(|page| !page.ends_with("SUMMARY.md"))
        .map(|page| page.strip_prefix(&docs).unwrap().display().to_string())
        .filter(|page| !summary.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

/// The Python module is built with the versions tested here: apart from its own dependencies, its
/// lock file has the versions of this one.
#[test]
fn the_lock_file_of_the_python_module_has_our_versions() {
    let read = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let lock: toml::Table = text.parse().unwrap();
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for package in lock["package"].as_array().unwrap() {
            let text = |name: &str| package[name].as_str().unwrap().to_owned();
            versions.entry(text("name")).or_default().insert(text("version"));
        }
        versions
    };
    let (ours, theirs) = (read("Cargo.lock"), read("python/Cargo.lock"));
    let other: Vec<_> = (theirs.iter())
        .filter(|(name, versions)| ours.get(*name).is_some_and(|o| o.is_disjoint(versions)))
        .collect();
    assert!(
        other.is_empty(),
        "cp Cargo.lock python/ && cargo metadata --manifest-path python/Cargo.toml: {other:?}"
    );
}

/// Places that search a text for fixed words because no syntax tree is available: the file, the
/// search, and why it affects no decision about a query.
const TEXT_SEARCHES: [(&str, &str, &str); 23] = [
    ("scan/mod.rs", "contains(\"}}\")", "only the words of an error"),
    ("connection/sqlite_message.rs", "message.", "a message of SQLite"),
    ("connection/sqlite_message.rs", "before.", "only the hint of a syntax error"),
    ("query/server.rs", "message.", "a message of the server"),
    ("blendsql/error.rs", "starts_with(\"the ingredients are \")", "a message of our own"),
    ("blendsql/scan/call.rs", "starts_with(\"llm\")", "the name of an ingredient"),
    ("route/answer_parsing.rs", "find(\"{}\")", "the slots of a question"),
    ("read/macros.rs", "contains(\"{}\")", "the slots of a question"),
    ("plan/engine.rs", "starts_with(\"Expression tree is too large\")", "a message of SQLite"),
    ("connection/statement.rs", "contains(\"JSON\")", "a message of SQLite"),
    ("connection/statement.rs", "contains(\"integer overflow\")", "a message of SQLite"),
    ("connection/statement.rs", "starts_with(\"json\")", "the name of a function"),
    ("connection/statement.rs", "starts_with(\"suql_\")", "the name of a function"),
    ("blendsql/argument.rs", "contains(\"::\")", "the old spelling of a column, a whole token"),
    ("plan/condition.rs", "starts_with(\"suql_\")", "the name of a function"),
    ("plan/analysis.rs", "contains(\"::\")", "either way of writing the name means the same"),
    ("blendsql/function.rs", "contains(\"{{\")", "what has none has no call; the scanner decides"),
    ("blendsql/normalize.rs", "contains(\"\\\\'\")", "tried again only after the scanner failed"),
    ("blendsql/normalize.rs", "find(\"{{\")", "tried again only after the scanner failed"),
    ("blendsql/normalize.rs", "find(\"}}\")", "tried again only after the scanner failed"),
    ("blendsql/error.rs", "starts_with(\"there is no ingredient\")", "a message of our own"),
    ("blendsql/scan/call.rs", "starts_with(\"==\")", "the characters after a token"),
    ("suql/function.rs", "starts_with(", "the name of a function, or the slots of a template"),
];

/// The meaning and cost of a query are decided by its syntax tree and the columns that it uses,
/// never by words in its text, because a question can contain any word.
#[test]
fn no_decision_depends_on_words_in_a_query() {
    let search =
        regex::Regex::new(r#"\.(?:contains|starts_with|ends_with|r?find)\(\s*&?""#).unwrap();
    let mut unused: Vec<&(&str, &str, &str)> = TEXT_SEARCHES.iter().collect();
    let mut found = Vec::new();
    for folder in ["crates/hqdl-sql/src", "crates/hqdl-engine/src/query"] {
        for file in sources(&root().join(folder)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (n, line) in code.lines().enumerate() {
                if line.trim_start().starts_with("//") || !search.is_match(line) {
                    continue;
                }
                let known = |(at, what, _): &(&str, &str, &str)| {
                    file.to_str().unwrap().ends_with(at) && line.contains(what)
                };
                if !TEXT_SEARCHES.iter().any(known) {
                    found.push(format!("{}:{}: {}", file.display(), n + 1, line.trim()));
                }
                unused.retain(|place| !known(place));
            }
        }
    }
    assert!(found.is_empty(), "ask the syntax tree instead:\n{}", found.join("\n"));
    assert!(unused.is_empty(), "no longer there: {unused:?}");
}
