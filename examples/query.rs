//! Asks a question that goes beyond a database, through the library: the demo's spec, its recorded
//! answers, and a query with a call.
//!
//! ```sh
//! cargo run --example query
//! ```

#![allow(clippy::print_stdout)]

use std::path::Path;

use hqdl::query::{self, QueryResult, Request};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let draft = UncheckedSpec::read(Path::new("specs/superhero.toml"))?;
    // A temporary cache; `Cache::Dir` keeps the facts in a directory.
    let session = Session::open(draft, &SpecOverrides::default(), Cache::Temporary)?;
    let sql =
        "SELECT superhero_name, {{LLMMap('Who is the publisher?', s.superhero_name)}} AS publisher
               FROM superhero AS s
               WHERE {{LLMMap('Does the hero have Flight?', s.superhero_name)}}
               ORDER BY height_cm DESC LIMIT 3";
    let mut smoothie = QueryResult::default();
    let meta = query::run(
        &Request {
            model: Some(session.connect_model()?),
            command: "the example",
            ..session.new_query(&session.spec.database, sql)?
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
