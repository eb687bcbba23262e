//! Classifies tables by their names: things that a model may know, private persons, events, or a
//! framework's own data.

use super::identity::is_called_as;
use super::look;
use super::survey::SurveyedTable;

/// Content of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Things with names.
    Things,
    /// Private persons.
    Persons,
    /// Events or measurements, one per row.
    Events,
    /// Data of a framework or program.
    Framework,
}

/// Prefixes of framework tables: Django and its packages, Rails, Alembic, Prisma, Flyway, Knex,
/// `SpatiaLite`, browsers, phones.
const FRAMEWORKS: [&str; 38] = [
    "django_",
    "auth_",
    "account_email",
    "socialaccount_",
    "authtoken_",
    "celery_",
    "taggit_",
    "reversion_",
    "guardian_",
    "axes_",
    "silk_",
    "oauth2_provider_",
    "easy_thumbnails_",
    "wagtail",
    "alembic_version",
    "schema_migrations",
    "ar_internal_metadata",
    "active_storage_",
    "_prisma_",
    "flyway_",
    "goose_db_version",
    "knex_",
    "spatial_ref_sys",
    "spatialite_",
    "geometry_columns",
    "views_geometry",
    "virts_geometry",
    "vector_layers",
    "elementarygeometries",
    "knn",
    "data_licenses",
    "sql_statements_log",
    "gpkg_",
    "raster_coverages",
    "se_",
    "rl2map_",
    "moz_",
    "android_metadata",
];
/// Full names of framework tables.
const FRAMEWORK_TABLES: [&str; 15] = [
    "meta",
    "migrations",
    "migration",
    "sessions",
    "keyword_search_terms",
    "downloads_url_chains",
    "content_annotations",
    "context_annotations",
    "segment_usage",
    "segments",
    "visit_source",
    "typed_url_sync_metadata",
    "iso_metadata",
    "networks",
    "wms_getcapabilities",
];

/// Last words in the names of tables about persons.
const PERSONS: [&str; 27] = [
    "customer",
    "employee",
    "user",
    "patient",
    "client",
    "contact",
    "member",
    "staff",
    "passenger",
    "subscriber",
    "applicant",
    "candidate",
    "donor",
    "tenant",
    "guest",
    "resident",
    "voter",
    "buyer",
    "lead",
    "profile",
    "address",
    "addressee",
    "recipient",
    "student",
    "pupil",
    "borrower",
    "rep",
];

/// Last words in the names of tables about events and measurements.
const EVENTS: [&str; 42] = [
    "log",
    "event",
    "history",
    "order",
    "detail",
    "invoice",
    "payment",
    "transaction",
    "visit",
    "session",
    "message",
    "request",
    "job",
    "task",
    "audit",
    "measurement",
    "reading",
    "sample",
    "observation",
    "metric",
    "stat",
    "statistic",
    "result",
    "standing",
    "score",
    "rating",
    "review",
    "booking",
    "reservation",
    "rental",
    "ticket",
    "sale",
    "purchase",
    "shipment",
    "lap",
    "tick",
    "download",
    "click",
    "notification",
    "comment",
    "vote",
    "revision",
];

/// Last words in the names of columns that contain a point in time.
const TIMES: [&str; 6] = ["date", "time", "datetime", "timestamp", "at", "when"];

/// Classifies a table by the names of the table and its columns.
pub fn of(table: &SurveyedTable) -> Holds {
    let name = table.name.to_lowercase();
    let last = table.words.last().map_or("", String::as_str);
    let any = |test: &dyn Fn(&[String]) -> bool| table.columns.iter().any(|c| test(&c.words));
    // Browsing history of a browser.
    let visits = |words: &[String]| words == ["visit", "count"];
    // A school has a principal with a phone, and is not a person.
    let is_person = last == "person"
        || any(&look::is_part_of_person) && !table.columns.iter().any(|c| is_called_as(table, c));
    if any(&visits)
        || FRAMEWORKS.iter().any(|f| name.starts_with(f))
        || FRAMEWORK_TABLES.contains(&&*name)
    {
        Holds::Framework
    } else if PERSONS.contains(&last)
        || is_person && any(&look::is_private)
        || any(&look::is_personal)
    {
        Holds::Persons
    } else if EVENTS.contains(&last) || happened(table) {
        Holds::Events
    } else {
        Holds::Things
    }
}

/// Returns true if the rows refer to other tables, have a time and have no name.
fn happened(table: &SurveyedTable) -> bool {
    let last = |words: &[String]| words.last().is_some_and(|w| TIMES.contains(&w.as_str()));
    let timed = table.columns.iter().any(|c| last(&c.words));
    let named = table.columns.iter().any(|c| look::is_name(&c.name));
    timed && !named && table.columns.iter().any(|c| c.reference)
}
