//! Classifies tables by their names and columns: things that a model may know, private persons,
//! events, or a framework's own data.

use super::classify;
use super::key_candidate::has_table_name;
use super::sampling::SampledTable;

/// Content of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
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
const FRAMEWORK_PREFIXES: [&str; 38] = [
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
const PERSON_WORDS: [&str; 27] = [
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
const EVENT_WORDS: [&str; 42] = [
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
const TIME_WORDS: [&str; 6] = ["date", "time", "datetime", "timestamp", "at", "when"];

/// Classifies a table by the names of the table and its columns.
pub fn classify_table(table: &SampledTable) -> TableKind {
    let name = table.name.to_lowercase();
    let last = table.words.last().map_or("", String::as_str);
    let any_column =
        |test: &dyn Fn(&[String]) -> bool| table.columns.iter().any(|c| test(&c.words));
    // A column `visit_count` is typical of a browser's history.
    let is_visit_count = |words: &[String]| words == ["visit", "count"];
    // Customers may be companies.
    let has_organizations_only = any_column(&classify::is_organization)
        && !any_column(&classify::is_person_name_part)
        && !any_column(&classify::is_private);
    // A table of schools may contain the principal's name and phone number, but its rows are not
    // persons.
    let is_person = last == "person"
        || any_column(&classify::is_person_name_part)
            && !table.columns.iter().any(|c| has_table_name(table, c));
    if any_column(&is_visit_count)
        || FRAMEWORK_PREFIXES.iter().any(|f| name.starts_with(f))
        || FRAMEWORK_TABLES.contains(&&*name)
    {
        TableKind::Framework
    } else if PERSON_WORDS.contains(&last) && !has_organizations_only
        || is_person && any_column(&classify::is_private)
        || any_column(&classify::is_personal)
    {
        TableKind::Persons
    } else if EVENT_WORDS.contains(&last) || is_event_table(table) {
        TableKind::Events
    } else {
        TableKind::Things
    }
}

/// Returns true if the rows refer to other tables, and have a time but no name.
fn is_event_table(table: &SampledTable) -> bool {
    let is_time = |words: &[String]| words.last().is_some_and(|w| TIME_WORDS.contains(&w.as_str()));
    let has_time = table.columns.iter().any(|c| is_time(&c.words));
    let has_name = table.columns.iter().any(|c| classify::is_name(&c.name));
    has_time && !has_name && table.columns.iter().any(|c| c.is_reference)
}
