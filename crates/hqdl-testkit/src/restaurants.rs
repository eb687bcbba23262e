//! A made-up database of restaurants, similar to the tables in `SUQL`'s published queries. The
//! facts to find are inserted into the reviews as `Q: question A: answer.`, and a pure function of
//! the text finds them.

use std::path::Path;

use hqdl_prompt::{AskedColumn, AskedRow};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, params};
use serde_json::{Value as Json, json};

/// Number of restaurants.
pub const COUNT: u64 = 1828;
const REVIEWS: u64 = 20;
const PLACES: [&str; 8] = [
    "San Francisco",
    "Palo Alto",
    "Sunnyvale",
    "Cupertino",
    "San Francisco",
    "Downtown Sunnyvale",
    "Downtown Palo Alto",
    "Fisherman's Wharf, San Francisco",
];
const CUISINES: [&str; 24] = [
    "barbecue",
    "chinese",
    "greek",
    "indian",
    "coffee",
    "breakfast",
    "coffee shop",
    "sushi",
    "mexican",
    "vietnamese",
    "pizza",
    "seafood",
    "american",
    "californian",
    "vegetarian",
    "vegan",
    "korean",
    "thai",
    "burger",
    "irish pub",
    "ethnic",
    "fusion",
    "bakery",
    "soul food",
];
const PRICES: [&str; 4] = ["cheap", "moderate", "expensive", "luxury"];
const WORDS: [&str; 12] = [
    "The", "waiter", "brought", "bread", "before", "anything", "else", "and", "we", "stayed",
    "until", "late",
];

/// A question about a column, and its possible answers.
#[derive(Debug, Clone)]
pub struct PlantedQuestion {
    pub column: String,
    pub question: String,
    pub answers: Vec<String>,
}

/// A pseudorandom number generator with a fixed seed.
pub struct SeededRandom(pub u64);

impl SeededRandom {
    /// Returns a number below `n`.
    pub fn next_below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Returns one of the items.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.next_below(items.len() as u64) as usize]
    }
}

/// Creates the database. For each question, four in ten restaurants contain an answer.
pub fn create_database(path: &Path, count: u64, planted_questions: &[PlantedQuestion]) {
    let mut connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE restaurants (name TEXT, cuisines TEXT, price TEXT CHECK (price IN ('cheap', \
             'moderate', 'expensive', 'luxury')), rating NUMERIC, num_reviews INTEGER, address TEXT, \
             popular_dishes TEXT, phone_number TEXT, reviews TEXT, opening_hours TEXT, location TEXT)",
        )
        .unwrap();
    let mut random = SeededRandom(7);
    let transaction = connection.transaction().unwrap();
    for n in 0..count {
        let mut reviews: Vec<String> = (0..REVIEWS)
            .map(|r| {
                let words: Vec<&str> = (0..14).map(|_| *random.choose(&WORDS)).collect();
                format!("Review {r} of {n}. {}.", words.join(" "))
            })
            .collect();
        let mut dishes: Vec<String> = (0..REVIEWS).map(|d| format!("dish {d}")).collect();
        let mut hours = format!("{} AM to {} PM", 7 + n % 4, 3 + n % 8);
        if n % 5 == 0 {
            hours.push_str(", also in the morning");
        }
        for planted_question in planted_questions {
            let yes_no = planted_question.answers.is_empty();
            let answer = match random.next_below(10) {
                0 | 1 if yes_no => "Yes",
                2 | 3 if yes_no => "No",
                0..4 => random.choose(&planted_question.answers),
                _ => continue,
            };
            let fact = format!("Q: {} A: {answer}.", planted_question.question);
            match planted_question.column.as_str() {
                "reviews" => {
                    reviews[random.next_below(REVIEWS) as usize].push_str(&format!(" {fact}"));
                }
                "popular_dishes" => dishes.push(fact),
                _ => hours.push_str(&format!(" {fact}")),
            }
        }
        let cuisines: Vec<&str> = match n % 9 {
            0 => vec![*random.choose(&CUISINES)],
            _ => vec![*random.choose(&CUISINES), *random.choose(&CUISINES)],
        };
        transaction
            .execute(
                "INSERT INTO restaurants VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                params![
                    format!("Restaurant {n}"),
                    json!(cuisines).to_string(),
                    random.choose(&PRICES),
                    (30 + random.next_below(21)) as f64 / 10.0,
                    10 + random.next_below(900),
                    format!("{n} Main Street"),
                    json!(dishes).to_string(),
                    format!("555-{n:04}"),
                    json!(reviews).to_string(),
                    hours,
                    random.choose(&PLACES),
                ],
            )
            .unwrap();
    }
    transaction.commit().unwrap();
}

/// Returns a text's answer to a question.
pub fn find_answer(text: &str, question: &str) -> Option<String> {
    if question == "what is the summary of this document?" {
        // Any summary will do.
        return Some(format!("{} texts", text.matches("Review ").count()));
    }
    let at = text.find(&format!("Q: {question} A: "))?;
    let rest = &text[at + question.len() + 7..];
    rest.split_once('.').map(|(answer, _)| answer.to_owned())
}

/// Returns the distance between two places in meters.
pub fn distance_in_meters(a: &str, b: &str) -> f64 {
    (a.bytes().chain(b.bytes()).map(u64::from).sum::<u64>() % 97) as f64 * 100.0
}

/// Returns the answer that a text contains.
pub fn answer_cell(column: &AskedColumn, row: &AskedRow) -> Json {
    let Some(text) = row.context.first().and_then(Json::as_str) else {
        let part = |n: usize| row.key[n].as_str().unwrap_or_default();
        return json!(distance_in_meters(part(0), part(1)));
    };
    match find_answer(text, &column.about) {
        None => Json::Null,
        Some(answer) if column.data_type == "boolean" => (answer == "Yes").into(),
        Some(answer) => answer.into(),
    }
}

/// Registers the same answers as SQL functions.
pub fn register_functions(connection: &Connection) {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    let text = |value: Option<String>| -> Option<String> {
        let value = value?;
        let texts: Option<Vec<String>> = serde_json::from_str(&value).ok();
        Some(texts.map_or(value, |t| t.join("\n\n")))
    };
    connection
        .create_scalar_function("answer", 2, flags, move |c| {
            let document = text(c.get(0)?);
            let question: String = c.get(1)?;
            Ok(document.and_then(|document| find_answer(&document, &question)))
        })
        .unwrap();
    connection
        .create_scalar_function("summary", 1, flags, move |c| {
            let document = text(c.get(0)?);
            Ok(document.and_then(|document| {
                find_answer(&document, "what is the summary of this document?")
            }))
        })
        .unwrap();
    connection
        .create_scalar_function("st_distance_sphere", 2, flags, move |c| {
            Ok(distance_in_meters(&c.get::<String>(0)?, &c.get::<String>(1)?))
        })
        .unwrap();
}
