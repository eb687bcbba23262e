//! A question that goes beyond a database, asked through the library: the demo's
//! spec, its recorded answers, and a query with a call.
//!
//! ```sh
//! cargo run --release --example query
//! ```

#![allow(clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use hqdl::facts::Facts;
use hqdl::model;
use hqdl::query::{self, Request, Smoothie};
use hqdl::spec::Draft;
use hqdl::store::Database;
use tokio::sync::watch;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let draft = Draft::read(Path::new("specs/superhero.toml"))?;
    let database = Database::open(&draft.database())?;
    let (spec, _warnings) = draft.check(&database)?;
    // Facts that nobody keeps; `Facts::open` keeps them in a directory.
    let facts = Facts::temporary()?;
    let (_interrupt, never) = watch::channel(false);
    let sql =
        "SELECT superhero_name, {{LLMMap('Who is the publisher?', s.superhero_name)}} AS publisher
               FROM superhero AS s
               WHERE {{LLMMap('Does the hero have Flight?', s.superhero_name)}}
               ORDER BY height_cm DESC LIMIT 3";
    let mut smoothie = Smoothie::default();
    let meta = query::run(
        &Request {
            spec: &spec,
            database: &draft.database(),
            facts: &facts,
            model: Some(model::connect(&spec)?),
            sql,
            params: Vec::new(),
            truncate: false,
            dialect: hqdl::query::Dialect::Sqlite,
            classify: false,
            again: None,
            rows_per_request: None,
            timeout: None,
            command: "the example",
            listener: Arc::new(|_| {}),
            interrupt: never,
        },
        &mut smoothie,
    )?;
    println!("{}", smoothie.columns.join(" | "));
    for row in &smoothie.rows {
        println!("{row:?}");
    }
    for route in &meta.routes {
        println!("{} -> {} {}.{}", route.call, route.route.name(), route.expansion, route.column);
    }
    println!("{} values asked in {} requests", meta.values_asked, meta.requests);
    Ok(())
}
