//! Classifies names and values: splits names into words, and recognizes numbers, dates, links and
//! codes.

/// Words that may appear in a date.
const DATE_WORDS: [&str; 44] = [
    "jan",
    "january",
    "feb",
    "february",
    "mar",
    "march",
    "apr",
    "april",
    "may",
    "jun",
    "june",
    "jul",
    "july",
    "aug",
    "august",
    "sep",
    "sept",
    "september",
    "oct",
    "october",
    "nov",
    "november",
    "dec",
    "december",
    "mon",
    "monday",
    "tue",
    "tuesday",
    "wed",
    "wednesday",
    "thu",
    "thursday",
    "fri",
    "friday",
    "sat",
    "saturday",
    "sun",
    "sunday",
    "am",
    "pm",
    "utc",
    "gmt",
    "t",
    "z",
];

/// Ordinal suffixes of a day.
const ORDINALS: [&str; 4] = ["st", "nd", "rd", "th"];

/// Last words of the names of columns that contain no names, such as ids, dates and links.
const NON_NAME_WORDS: [&str; 22] = [
    "id",
    "ids",
    "uuid",
    "guid",
    "pk",
    "rowid",
    "idx",
    "hash",
    "checksum",
    "md5",
    "token",
    "password",
    "date",
    "datetime",
    "timestamp",
    "url",
    "uri",
    "link",
    "href",
    "website",
    "email",
    "phone",
];

/// Minimum length at which a hexadecimal text counts as a code rather than a word.
const MIN_CODE_LENGTH: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// Only white space and punctuation.
    Blank,
    /// At least one word; may be a name.
    Words,
    /// A number, date, link, address or code.
    Other,
}

pub fn classify_text(text: &str) -> TextKind {
    let text = text.trim();
    let digit = text.chars().any(char::is_numeric);
    let letter = text.chars().any(char::is_alphabetic);
    if !digit && !letter {
        TextKind::Blank
    } else if !letter || is_link(text) || (digit && (is_date(text) || is_code(text))) {
        TextKind::Other
    } else {
        TextKind::Words
    }
}

fn is_link(text: &str) -> bool {
    if text.contains(char::is_whitespace) {
        return false;
    }
    let is_email = text
        .split_once('@')
        .is_some_and(|(local_part, host)| !local_part.is_empty() && host.contains('.'));
    is_email || text.contains("://") || text.to_lowercase().starts_with("www.")
}

fn is_date(text: &str) -> bool {
    let lower = text.to_lowercase();
    lower
        .split(|c: char| !c.is_alphabetic())
        .filter(|w| !w.is_empty())
        .all(|w| DATE_WORDS.contains(&w) || ORDINALS.contains(&w))
}

/// Returns true for UUIDs, hashes and numbers in scientific notation.
fn is_code(text: &str) -> bool {
    let hex = text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    (hex && text.len() >= MIN_CODE_LENGTH) || text.parse::<f64>().is_ok()
}

/// Splits a name into lowercase words, at punctuation and at `camelCase` boundaries.
pub fn split_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for c in name.chars() {
        let upper_after_lower = lower_before && c.is_uppercase();
        if !c.is_alphanumeric() || upper_after_lower {
            words.push(String::new());
        }
        lower_before = c.is_lowercase();
        if let Some(word) = words.last_mut() {
            // Lowercasing may add combining marks, which are not letters.
            word.extend(c.to_lowercase().filter(|c| c.is_alphanumeric()));
        }
    }
    words.retain(|w| !w.is_empty());
    words
}

const IRREGULAR_PLURALS: [(&str, &str); 20] = [
    ("people", "person"),
    ("persons", "person"),
    ("children", "child"),
    ("men", "man"),
    ("women", "woman"),
    ("movies", "movie"),
    ("cookies", "cookie"),
    ("zombies", "zombie"),
    ("criteria", "criterion"),
    ("indices", "index"),
    ("matrices", "matrix"),
    ("vertices", "vertex"),
    ("analyses", "analysis"),
    ("buses", "bus"),
    ("lives", "life"),
    ("knives", "knife"),
    ("wolves", "wolf"),
    ("leaves", "leaf"),
    ("mice", "mouse"),
    ("feet", "foot"),
];

/// Turns the last word into its singular, by English rules and a list of exceptions.
pub fn singularize_last_word(mut words: Vec<String>) -> Vec<String> {
    let Some(last) = words.last_mut() else {
        return words;
    };
    let is_unchanged = ["series", "species", "news"].contains(&last.as_str())
        || ["ss", "us", "is"].iter().any(|end| last.ends_with(end));
    // The singulars of "shoes" and "houses" end in "e".
    let has_es_ending = ["sses", "xes", "ches", "shes", "oes", "tuses", "nuses", "ruses"];
    let has_es_ending = has_es_ending.iter().any(|end| last.ends_with(end))
        && !["caches", "shoes", "toes", "canoes"].contains(&last.as_str());
    if let Some((_, one)) = IRREGULAR_PLURALS.iter().find(|(many, _)| many == last) {
        (*one).clone_into(last);
    } else if is_unchanged || last.chars().count() < 4 {
        // Short words such as "gas" or "was" are not plurals.
    } else if let Some(stem) = last.strip_suffix("ies") {
        *last = format!("{stem}y");
    } else if let Some(stem) = last.strip_suffix("es").filter(|_| has_es_ending) {
        *last = stem.to_owned();
    } else if let Some(stem) = last.strip_suffix('s') {
        *last = stem.to_owned();
    }
    words
}

/// Returns true if a column with this name cannot contain names, because it contains ids, dates or
/// links.
pub fn is_non_name(words: &[String]) -> bool {
    words.first().is_some_and(|w| w == "id")
        || words.last().is_some_and(|w| NON_NAME_WORDS.contains(&w.as_str()))
}

/// Returns true if a column with this name contains remarks about the rows.
pub fn is_remark(words: &[String]) -> bool {
    let remarks = ["note", "notes", "comment", "comments", "remark", "remarks", "memo"];
    words.last().is_some_and(|w| remarks.contains(&w.as_str()))
}

/// Returns true if a column with this name contains row ids or references.
pub fn is_id(words: &[String]) -> bool {
    let ids = ["id", "ids", "uuid", "guid", "pk", "rowid", "idx", "index"];
    words.first().is_some_and(|w| w == "id")
        || words.last().is_some_and(|w| ids.contains(&w.as_str()))
}

/// Returns true if a column with this name contains contact details or official identifiers of
/// persons.
pub fn is_private(words: &[String]) -> bool {
    let private = [
        "email",
        "mail",
        "phone",
        "telephone",
        "mobile",
        "fax",
        "street",
        "address",
        "address2",
        "postcode",
        "ssn",
        "passport",
        "iban",
        "password",
        "salary",
        "birthdate",
        "birthday",
    ];
    words.iter().any(|w| private.contains(&w.as_str()))
}

/// Returns true if a column with this name contains data that only persons have.
pub fn is_personal(words: &[String]) -> bool {
    let personal = ["ssn", "passport", "birthdate", "birthday", "dob", "password", "nino"];
    let pairs =
        [["social", "security"], ["date", "birth"], ["birth", "date"], ["marital", "status"]];
    words.iter().any(|w| personal.contains(&w.as_str()))
        || pairs.iter().any(|pair| pair.iter().all(|w| words.iter().any(|o| o == w)))
}

/// Returns true if a column with this name contains abbreviations of names.
pub fn is_code_name(words: &[String]) -> bool {
    let codes = ["code", "abbreviation", "abbr", "iso", "iso2", "iso3", "sku"];
    words.last().is_some_and(|w| codes.contains(&w.as_str()))
}

/// Returns true if a column with this name contains names.
pub fn is_name(name: &str) -> bool {
    let lower = name.to_lowercase();
    lower.contains("name") || lower.contains("title")
}

/// Returns true if a column with this name contains organizations.
pub fn is_organization(words: &[String]) -> bool {
    let organizations =
        ["company", "firm", "business", "organization", "organisation", "corporation", "employer"];
    let words = words.strip_suffix(&["name".to_owned()]).unwrap_or(words);
    words.last().is_some_and(|w| organizations.contains(&w.as_str()))
}

/// Returns true if a column with this name contains part of a person's name.
pub fn is_person_name_part(words: &[String]) -> bool {
    if let [only] = words
        && ["first", "last"].contains(&only.as_str())
    {
        return true;
    }
    let parts = [
        "firstname",
        "lastname",
        "surname",
        "forename",
        "givenname",
        "familyname",
        "fname",
        "lname",
    ];
    // Compare whole words, so that `School Name` does not match `lname`.
    let last = [&words[words.len().saturating_sub(1)..], &words[words.len().saturating_sub(2)..]];
    last.iter().any(|words| {
        let end = words.concat();
        parts.contains(&end.trim_end_matches(|c: char| c.is_ascii_digit()))
    })
}

/// Returns true if a column with this name contains years. A year can distinguish things with the
/// same name, such as films or cars.
pub fn is_year(words: &[String]) -> bool {
    words.last().is_some_and(|w| w == "year" || w == "season")
}

/// Returns true if a column with this name contains names of things that many rows may share, such
/// as species, shares or teams.
pub fn is_shared_thing(words: &[String]) -> bool {
    let things = [
        "species",
        "symbol",
        "ticker",
        "team",
        "club",
        "country",
        "nation",
        "city",
        "town",
        "place",
        "region",
        "company",
        "firm",
        "brand",
        "make",
        "model",
        "product",
        "variety",
        "artist",
        "author",
        "band",
        "director",
        "airline",
        "carrier",
        "language",
        "university",
        "college",
        "school",
        "museum",
        "drug",
        "disease",
        "planet",
        "element",
        "mineral",
        "station",
        "stadium",
        "breed",
    ];
    words.last().is_some_and(|w| things.contains(&w.as_str()))
}
