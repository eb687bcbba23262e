//! Implements `hqdl prices`.

use std::process::ExitCode;

use rusqlite::types::ValueRef;
use serde_json::json;

use super::OutputOptions;
use super::failure::Failure;
use super::rows::{self, RowsFormat};
use crate::problem::find_nearest;
use crate::spec::{BookEntry, PriceBook};
use crate::value::Value;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Model whose prices to print, such as gpt-4o-mini or mistral/codestral-2508 [default: all].
    model: Option<String>,
    /// Output format [default: table]. --json is --format json.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<RowsFormat>,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let format = options.format.unwrap_or(if output_options.json {
        RowsFormat::Json
    } else {
        RowsFormat::Table
    });
    if output_options.json && format != RowsFormat::Json {
        return Err(Failure::wrong_input(
            "--json cannot be combined with another --format",
            "remove one of them",
        ));
    }
    let book = PriceBook::bundled();
    let entries = select_entries(book, options.model.as_deref())?;
    let for_reading = format == RowsFormat::Table;
    // The table leaves out columns that only programs need.
    let columns: Vec<PriceColumn> =
        COLUMNS.into_iter().filter(|column| !for_reading || column.for_reading).collect();
    match print_entries(&entries, &columns, format, book) {
        Ok(()) => {}
        // A closed pipe (`| head`) is not an error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(super::stdout::to_failure(&error)),
    }
    if for_reading && !output_options.quiet {
        anstream::println!();
        anstream::println!(
            "Prices in USD per million tokens, from the price book of {}. `price` in [model] overrides them.",
            book.date
        );
        let mut sources: Vec<&str> = entries.iter().map(|e| e.source.as_str()).collect();
        sources.dedup();
        for source in sources.into_iter().filter(|_| options.model.is_some()) {
            anstream::println!("source: {source}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the entries of a model, or all of them.
fn select_entries<'b>(
    book: &'b PriceBook,
    model: Option<&str>,
) -> Result<Vec<&'b BookEntry>, Failure> {
    let Some(model) = model else { return Ok(book.entries.iter().collect()) };
    let found: Vec<&BookEntry> = book.entries.iter().filter(|e| e.has_name(model)).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let near = find_nearest(model, book.entries.iter().map(|e| e.model.as_str()));
    let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let advice =
        "`hqdl prices` lists all models; for another model, set `price` in [model] of the spec";
    Err(Failure::wrong_input(
        format!("the price book of {} has no model `{model}`", book.date),
        format!("{near}{advice}"),
    ))
}

/// A column of the output.
#[derive(Clone, Copy)]
struct PriceColumn {
    name: &'static str,
    for_reading: bool,
    value: fn(&BookEntry) -> Value,
}

const fn build_price_column(
    name: &'static str,
    for_reading: bool,
    value: fn(&BookEntry) -> Value,
) -> PriceColumn {
    PriceColumn { name, for_reading, value }
}

const COLUMNS: [PriceColumn; 18] = [
    build_price_column("provider", true, |e| to_text_value(&e.provider)),
    build_price_column("model", true, |e| to_text_value(&e.model)),
    build_price_column("snapshots", false, |e| to_text_value(&e.names.join(" "))),
    build_price_column("from", true, |e| to_text_value(&e.from)),
    build_price_column("input", true, |e| to_usd_value(Some(e.price.input))),
    build_price_column("cached_input", true, |e| to_usd_value(e.price.cached_input)),
    build_price_column("cache_write", true, |e| to_usd_value(e.price.cache_write)),
    build_price_column("audio_input", false, |e| to_usd_value(e.price.audio_input)),
    build_price_column("output", true, |e| to_usd_value(Some(e.price.output))),
    build_price_column("batch", true, |e| to_usd_value(e.price.batch)),
    build_price_column("batch_cached_input", false, |e| to_usd_value(e.price.batch_cached_input)),
    build_price_column("above_input_tokens", true, |e| {
        let tokens = e.price.above.and_then(|above| i64::try_from(above.input_tokens).ok());
        tokens.map_or(Value::Null, Value::Integer)
    }),
    build_price_column("above_input", true, |e| {
        to_usd_value(e.price.above.map(|above| above.input))
    }),
    build_price_column("above_cached_input", false, |e| {
        to_usd_value(e.price.above.and_then(|a| a.cached_input))
    }),
    build_price_column("above_cache_write", false, |e| {
        to_usd_value(e.price.above.and_then(|a| a.cache_write))
    }),
    build_price_column("above_output", true, |e| {
        to_usd_value(e.price.above.map(|above| above.output))
    }),
    build_price_column("service_tiers", true, |e| {
        let tiers: Vec<String> =
            e.service_tiers.iter().map(|(name, part)| format!("{name} {part}")).collect();
        to_text_value(&tiers.join(", "))
    }),
    build_price_column("source", false, |e| to_text_value(&e.source)),
];

fn to_text_value(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { Value::Text(text.to_owned()) }
}

fn to_usd_value(price: Option<f64>) -> Value {
    price.map_or(Value::Null, Value::Real)
}

fn print_entries(
    entries: &[&BookEntry],
    columns: &[PriceColumn],
    format: RowsFormat,
    book: &PriceBook,
) -> std::io::Result<()> {
    let mut out = rows::new_stdout_writer(format);
    let names: Vec<String> = columns.iter().map(|column| column.name.to_owned()).collect();
    out.write_columns(&names)?;
    for entry in entries {
        let values: Vec<Value> = columns.iter().map(|column| (column.value)(entry)).collect();
        let shown = |value| match value {
            // In the table, an empty cell is easier to read than NULL.
            &Value::Null if format == RowsFormat::Table => ValueRef::Text(b""),
            Value::Null => ValueRef::Null,
            Value::Integer(integer) => ValueRef::Integer(*integer),
            Value::Real(real) => ValueRef::Real(*real),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        };
        let row: Vec<ValueRef<'_>> = values.iter().map(shown).collect();
        out.write_row(&row)?;
    }
    out.finish()?;
    out.close_output(Ok(&json!({ "date": book.date }))).map(drop)
}
