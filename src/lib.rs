//! `hqdl` expands the schema of a `SQLite` database with what a language model
//! knows. A TOML *spec* declares missing columns over *semantic keys*; missing
//! cells are asked for once, kept as *facts*, and published as ordinary tables.
//!
//! # The map
//!
//! A workspace: `hqdl-values` is what all is made of, `hqdl-sql` reads queries,
//! and this crate does the rest. Its modules are declared in the order of their
//! dependency: **a module uses only modules declared above it**. Read [`materialize`] for the path of the data:
//!
//! ```text
//! spec → check → keys − facts → plan → prompt → model → answers → facts → publish
//! ```
//!
//! What stands between prompt and answers is [`generate`], request by request,
//! or [`dispatch`], through the Batch API.
//!
//! and [`query`] for the other one, which ends in the same generation:
//!
//! ```text
//! scan → parse → routes → rewrite → (run → demand → ask)* → rows
//! ```
//!
//! [`daemon`] does both for whoever asks, and by itself when a file changes:
//!
//! ```text
//! watch | clock | http | signals → Event → one loop → checks, runs → Event
//! ```
//!
//! # Invariants
//!
//! * A fact is found by what it *is*: the entity ([`key::Entity`]) and the
//!   column's meaning ([`key::Fingerprint`]), never by prompt text.
//! * A value lands only in the row whose number and tag, or number and key, its
//!   answer echoed ([`prompt::align`]).
//! * Only states `ok` and `overridden` show a value ([`cell::State`]); every
//!   other cell is NULL with its state kept behind it.
//! * What is answered is in the journal before anything else happens to it
//!   ([`facts`]); the index and the published tables can be made again from it.
//! * Only tables that hqdl made are ever written or dropped
//!   ([`store::publish`]).
//! * Recordings take the same way as live answers ([`model::replay`]).
//! * A query writes nothing: it runs behind [`query::guard`].
//! * Likeness ([`retrieval`]) orders what is asked and selects what is shown; it
//!   never decides which rows qualify.
//!
//! # Where the design was silent
//!
//! * Columns tell no type by equality: `SQLite` applies their affinity to the
//!   answer, whatever it is. Order with a column of whole or real numbers does.
//! * A part of a key with the rest of it in the row means the row's entity; where
//!   the rows are grouped by that part, the groups must determine the key.
//! * A list of more than 200 values is put before the model in parts that a
//!   schema can hold an answer to; shorter ones stay one list.
//! * A number and its text are one key (`2009` and `'2009'`): the model sees
//!   the same thing.
//! * A request for one row is answered by one row: there, a key part that the
//!   model left out, or filled in where the key has none, is accepted and noted; in
//!   a request for several rows it is not. A part that contradicts the key is never
//!   accepted.
//! * An answer need not repeat its row's key (`echo = "short"`, the default): rows go
//!   by labels, their number and a word of the key that no other row of the request
//!   has, which the prompt gives and a model only copies. Where no word tells a row
//!   apart, digits of its key's hash do. `echo = "full"` asks for whole keys, as long as
//!   none of a request could be confused with the form of the answer. Both are read,
//!   whichever was asked for; recordings are found by the prompt with whole keys, too.
//! * A request for one row has a label, too: two tokens that a row with a field too
//!   few, or of somebody else, cannot be mistaken without.
//! * Fields that are not as many as the columns are read only where all ways to
//!   explain them agree (a value split at its commas, fields nobody asked for, one
//!   left out); the rest of the row is asked again. A free list whose values stand
//!   between bare commas is not told from a foreign field; between `, ` it is.
//! * Nothing at all (an empty csv field, `null`) is *unknown*; the empty text (`""`) is
//!   a value of a text column without a list. Which words mean *unknown* is one list
//!   ([`spec::checker::UNKNOWN`]) that `unknown = […]`, in a column or in `[model]`,
//!   replaces; kept answers are read anew by it, and nothing is asked.
//! * Brackets and quotes alone are no list, and no "none".
//! * Of a one-to-many answer the values in the list are kept and the others
//!   noted; when none is in the list, the cell is `not_in_list`.
//! * What is no answer (an error, a refusal, words that cannot be read) never
//!   replaces an answer that still holds; the model's own "unknown" is one.
//! * A run that brought nothing leaves the published tables as they were.
//! * A copy (`output`) is made again, beside the old one, when its database has
//!   changed, and never when that would lose tables of the user's.
//! * Asking again (`--refresh`, `--retry-failed`) is a round: limited or cut off,
//!   it is gone on with by the same command; complete, the command begins anew.
//! * A row that was lost in company is not given up before it was asked alone;
//!   requests get smaller only for what fails more often than rows asked alone.
//! * An example (shot) is shown only where it says something about the columns
//!   asked, so that no row with overrides is its own example.
//! * A request that may have been billed without an answer counts at its worst
//!   case against the budgets, in flight at a kill, too; a run that was killed
//!   goes on with the budget it had left.
//! * A run ends when its tables stand. One whose publishing failed or was killed is
//!   gone on with; a run that found nothing left to ask ends the one before it.
//! * Where tables stand, only rows that differ are written, wherever what differs
//!   came from: what is published row by row is what would be published from
//!   nothing, but for the order of the rows. Tables are made anew when their columns
//!   change, or when somebody else wrote to them; triggers of ours note that.
//! * An answer whose checksum does not hold says nothing, and neither does what was
//!   known of its entity before it: that may be outdated. A journal that is not
//!   whole otherwise makes no index.
//! * Tokens that an endpoint does not say, or says with what is no number, are
//!   counted, generously where the tokenizer is guessed; tokens that only the sum
//!   names are output. Where neither a price nor a budget is set, usage beyond what
//!   can be is told once and stops nothing.
//! * Of a reply that broke off the rows that came are kept; what it cost is in
//!   doubt, at its worst. One that we cut off counts for what came.
//! * A request that fails while the endpoint answers others fails for its rows, and
//!   is split; while nothing is answered it waits, and an endpoint is gone after 8
//!   such requests, or in the end when it never answered ([`generate`]).
//! * An answer that ended at its cap has the next one's cap doubled, up to
//!   `max_output_tokens`, and that is no attempt at its rows.
//! * A query's timeout counts the database's own time, pass by pass: neither the
//!   model's nor that of who reads the rows.
//! * A query reads the copy (`output`) where there is one, and says when that is
//!   older than its database.
//! * A plain run collects batches that have ended, and leaves out the cells of
//!   those under way; a run with batches under way is not over, so the next one
//!   goes on with it and with its budget.
//! * A batch file that somebody else sends holds back no run and no budget; only
//!   `--batch-file` leaves out what stands in one that has no answer yet, until
//!   `--again`, whether or not the file is still there: it may have been sent.
//! * What a cancelled batch did not answer is left to the next run; what a batch
//!   that the endpoint no longer knows may have cost counts at its worst.
//! * A live question about a value is one question wherever the value stands,
//!   whatever its column is called: who asks it of `c.name` and of `l.name` asks
//!   it once. NULLs, and blobs, which no model can be shown, are never asked about.
//! * The type of a live answer is what the query says, else what the answer is
//!   compared with; calls that ask the same are read as the same type. A number
//!   nobody said the type of is whole when it can be.
//! * Partners of a join are asked with the whole list they are chosen from, so
//!   its pairs wait for all rows; longer lists are narrowed to the most alike.
//! * What gives a call its options may hold calls itself: they are asked first,
//!   in the same run, with its budget; `explain` then tells of both.
//! * How many values a list is to hold (`quantifier`) is part of the question; a
//!   list of another length is no answer.
//! * A recursive common table expression may go on for ever while its call is
//!   pending: a pass ends after 64 pending calls of it, then 128, 256 …
//! * Which rows are asked about now is decided between passes, never inside the
//!   functions that `SQLite` calls: of LIMIT as many as are likely to be needed,
//!   filling requests; of DISTINCT, EXISTS and IN one row a value and more the more
//!   fail; of several conditions a few rows drawn by lot, twice as many in each
//!   pass. LIMIT, DISTINCT and ORDER BY … LIMIT save values in the outermost SELECT
//!   and, where they are one row's EXISTS or IN, below; in another subquery all that
//!   is reached is asked. `ORDER BY random()` asks about other rows in another run.
//! * A plain condition that may fail (JSON, a function that is not known to take
//!   anything) is evaluated after the calls that it stands behind.
//! * A context is held to `context_tokens` as the model counts it; `--truncate`
//!   cuts whole rows from its end, and what is left is what the answer is of.
//! * What the model binds to a column (`[routing] model`) must hold exactly: a
//!   literal is on the list, a value is not taken for a truth; else the question
//!   is asked live, and the model is not asked again.
//! * A question becomes a column (`suggest --write`) of the expansion whose keys
//!   at least half of its values are; its facts are that column's only where key
//!   and name are the same.
//! * A query whose calls are all bound reads the published tables, where these
//!   were made from this spec, these facts and these overrides and no value of
//!   the columns has changed since; for what a table lacks, and for all else, the
//!   facts are looked up. `values_reused` counts what was looked up.
//! * Who borrows the cache works in a process of its own; only what one process
//!   can have is the owner's: the index, the writing thread, claims, limits, and
//!   the budget of the day ([`facts::lend`]).
//! * Cells that another run is asking are waited for, not asked; when that one
//!   fails, or dies, they are asked here. What others brought counts as reused.
//! * The strictest limits of all who ask an endpoint with one key hold, as long as
//!   they do. What the endpoint said of its own is remembered for a day.
//! * A request counts against limits per minute from when it is admitted to a minute
//!   after its answer, or a minute and a second after it left: whichever comes first.
//!   Of tokens it counts for the most it may take until its answer says what it took;
//!   one that may take more than the limit goes alone, when nothing else counts.
//! * Recordings are paid for by nobody: what they answer is in no sum of money,
//!   counts against no budget, and is planned at no price.
//! * A request that the budget does not hold as a whole is asked in halves, down to
//!   single rows; requests of batches are not.
//! * A request waits while others on their way hold the budget of the day, as it
//!   does for those of its own run.
//! * A run belongs to its process: another one of the same spec at the same time
//!   is another run, with a budget of its own. Batches of one spec are one run's
//!   at a time.
//! * When the owner of the cache ends, what a borrower has in flight is kept in
//!   the journal all the same, and the borrower ends.
//! * A row of which nothing was asked yet (`--limit`) is not published; a
//!   column of a published row that was not asked yet is `missing` in
//!   `hqdl_cell`.
//! * Facts do not know how many examples were shown when they were asked for,
//!   so evaluation runs ([`swan`]) keep them apart by that number. Their
//!   examples are the first rows of the truth; the budget is for tables and
//!   questions together; of a model other than the spec's there is no price
//!   until `--price` says it.
//! * Of heroes that SWAN's key does not tell apart none is kept, after the other
//!   rules left out theirs, NULLs being one name.
//! * Of SWAN's hidden columns, those that HQDL's published SQL reads itself stay
//!   in the prepared copy, as SWAN's own figures need them; no prompt shows them.
//! * What is wrong with a published query is what it gives on the true values; one
//!   that asks the model beside the columns is not judged.
//! * A source's own key follows from a row's key: the smallest part that holds all
//!   of it that is not NULL. Facts know the whole key, with its NULLs.
//! * The daemon runs every `*.toml` that stands directly in its directory; a run
//!   that a budget or a refusal ended waits for a go or for another spec, and what
//!   failed in passing is tried again after half a minute, then ever later.
//! * A changed spec ends the run of the one before, with everything answered kept;
//!   a changed database waits for it.
//! * Filling facts over HTTP is a run over the rows that have these keys: keys
//!   that no source has are looked up, and not asked.
//! * Over HTTP, only databases that a spec in force names can be queried.
//! * Of 640 connections to the daemon 256 may be event streams and 64 wait for the
//!   end of a run: 503 past that. One that takes nothing of what is sent for ten
//!   seconds is ended; one that reads rows, when its time for them is over.
//! * A document is its texts, trimmed, the empty ones left out: a text and the
//!   array of that text alone are one document. Where no text is left, as where
//!   there is NULL, nobody is asked and the answer is NULL.
//! * A question is one for yes or no by its first word, unless it offers a choice
//!   (`or`) or is compared with other words; or because it is compared with yes and
//!   no alone. Where it is compared it is said in the words it is compared with.
//! * An answer that is cast is asked for as what it is cast to.
//! * `LIMIT k` without ORDER BY over conditions on documents runs with an order of
//!   ours, of up to 20,000 rows; of more, rows come as they are.
//! * An array that is none is, to `SUQL`'s operators, the array of that value; NULLs
//!   are ordered as in `SQLite`, and LIKE minds case, as in `PostgreSQL`.
//! * `ST_Distance_Sphere` of two names is a question: texts have no coordinates.

// ── words: no I/O; crates of their own ──
pub use hqdl_sql::{blendsql, suql};
pub use hqdl_values::{cell, key, problem, sql, tokens, usage, value};
// ── steps: text and values in, values out ──
pub mod spec;
pub mod prompt;
pub mod overrides;
pub mod routing;
// ── edges: all I/O ──
pub mod store;
pub mod limits;
pub mod facts;
// A pure step, but it tells the facts' reasons.
pub mod plan;
pub mod model;
pub mod retrieval;
// ── pipelines ──
pub mod generate;
pub mod dispatch;
pub mod materialize;
pub mod query;
pub mod suggest;
pub mod init;
pub mod truth;
// ── doors ──
pub mod swan;
pub mod failure;
pub mod daemon;
pub mod cli;
