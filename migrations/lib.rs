//! The SQL migrations of hqdl's own tables, each with its number, in the order in which they
//! are applied.

/// A migration: its number and its SQL.
pub type Migration = (i32, &'static str);

/// hqdl's tables in an expanded `SQLite` database.
pub const DATABASE: &[Migration] = &[
    (1, include_str!("database/0001_bookkeeping.sql")),
    (2, include_str!("database/0002_standing.sql")),
    (3, include_str!("database/0003_rows.sql")),
    (4, include_str!("database/0004_typed_cells.sql")),
    (5, include_str!("database/0005_parameters.sql")),
    (6, include_str!("database/0006_fewer_tables.sql")),
    (7, include_str!("database/0007_cache_writes.sql")),
    (8, include_str!("database/0008_evidence.sql")),
    (9, include_str!("database/0009_notes.sql")),
];

/// hqdl's tables in an expanded `PostgreSQL` database.
pub const EXPANDED: &[Migration] = &[
    (1, include_str!("expanded/0001_bookkeeping.sql")),
    (2, include_str!("expanded/0002_parameters.sql")),
    (3, include_str!("expanded/0003_fewer_tables.sql")),
    (4, include_str!("expanded/0004_cache_writes.sql")),
    (5, include_str!("expanded/0005_evidence.sql")),
    (6, include_str!("expanded/0006_notes.sql")),
];

/// The cache in a directory. Numbers 10 and 11 were never released.
pub const JOURNAL: &[Migration] = &[
    (1, include_str!("journal/0001_facts.sql")),
    (2, include_str!("journal/0002_batches.sql")),
    (3, include_str!("journal/0003_restarts.sql")),
    (4, include_str!("journal/0004_questions.sql")),
    (5, include_str!("journal/0005_changed.sql")),
    (6, include_str!("journal/0006_sessions.sql")),
    (7, include_str!("journal/0007_rates.sql")),
    (8, include_str!("journal/0008_files.sql")),
    (9, include_str!("journal/0009_checksums.sql")),
    (12, include_str!("journal/0012_indexes.sql")),
    (13, include_str!("journal/0013_refused.sql")),
    (14, include_str!("journal/0014_latest.sql")),
    (15, include_str!("journal/0015_parameters.sql")),
    (16, include_str!("journal/0016_shared.sql")),
    (17, include_str!("journal/0017_cache_writes.sql")),
    (18, include_str!("journal/0018_evidence.sql")),
    (19, include_str!("journal/0019_contexts.sql")),
];

/// The cache on a `PostgreSQL` server.
pub const POSTGRES: &[Migration] = &[
    (1, include_str!("postgres/0001_facts.sql")),
    (2, include_str!("postgres/0002_refused.sql")),
    (3, include_str!("postgres/0003_latest.sql")),
    (4, include_str!("postgres/0004_parameters.sql")),
    (5, include_str!("postgres/0005_cache_writes.sql")),
    (6, include_str!("postgres/0006_evidence.sql")),
    (7, include_str!("postgres/0007_contexts.sql")),
];
