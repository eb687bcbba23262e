//! Commits answers. One task per process takes all queued units and commits them together, in one
//! round trip.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;
use tracing::debug;

use crate::FactsError;
use crate::checksum::compute_answer_checksum;
use crate::journal::cells_to_json;
use crate::postgres::Server;
use crate::postgres::connection::{BEGIN, Client, WorkResult};
use crate::postgres::dictionary::Parameter;
use crate::postgres::key::to_stored_entity;
use crate::store::CommitUnit;
use hqdl_database::postgres::address::ANSWER_TIMEOUT;

/// Maximum number of units per commit.
const MAX_UNITS: usize = 256;

/// A queued unit, and the channel that receives the result of its commit.
pub(super) type QueuedUnit = (Arc<TaggedUnit>, oneshot::Sender<Result<(), FactsError>>);

/// A commit unit with a random token. The token identifies the unit if its commit is sent again.
pub(super) struct TaggedUnit {
    pub(super) token: i64,
    pub(super) unit: CommitUnit,
}

impl TaggedUnit {
    pub(super) fn new(unit: CommitUnit) -> Self {
        Self { token: fastrand::i64(..), unit }
    }
}

/// Commits the queued units until all senders are dropped.
pub(super) async fn commit_queued_units(
    server: Arc<Server>,
    mut units: mpsc::Receiver<QueuedUnit>,
) {
    let mut waiting = Vec::new();
    let mut has_spooled_units = false;
    while units.recv_many(&mut waiting, MAX_UNITS).await > 0 {
        let (units, replies): (Vec<Arc<TaggedUnit>>, Vec<_>) = waiting.drain(..).unzip();
        let committed = server.commit_units(&units).await;
        if committed.is_ok() && std::mem::take(&mut has_spooled_units) {
            // Commit the units that were written to files while the server was unreachable.
            has_spooled_units = server.commit_spooled_units().await.is_err();
        }
        has_spooled_units |= committed.is_err();
        let is_refused =
            matches!(&committed, Err(e) if !matches!(e, FactsError::Unreachable { .. }));
        for (unit, reply) in units.into_iter().zip(replies) {
            // If the server rejects one unit, the others are still committed.
            let _ = reply.send(match &committed {
                Ok(()) => Ok(()),
                Err(_) if is_refused => server.commit_units(&[unit]).await,
                Err(error) => Err(error.clone_for_waiter()),
            });
        }
    }
}

/// Values from several units, one vector per column.
#[derive(Default)]
struct UnitColumns {
    token: Vec<i64>,
    run: Vec<i64>,
    model: Vec<i32>,
    prompt_hash: Vec<String>,
    content: Vec<Option<Vec<u8>>>,
    error: Vec<Option<Vec<u8>>>,
    input_tokens: Vec<i64>,
    cached_input_tokens: Vec<i64>,
    output_tokens: Vec<i64>,
    cost_usd: Vec<f64>,
    asked_at: Vec<String>,
    seconds: Vec<f64>,
    cells: Vec<i64>,
    parameters: Vec<Option<String>>,
    assumed_cache_writes: Vec<i64>,
    evidence: Vec<Option<String>>,
    reservations: Vec<i64>,
    requests: Vec<i64>,
    lines: RowColumns,
}

#[derive(Default)]
struct RowColumns {
    /// Position of each answer's completion among the units, from 1.
    of: Vec<i64>,
    key: Vec<String>,
    entity: Vec<Option<String>>,
    model: Vec<i32>,
    checksum: Vec<i64>,
    cells: Vec<String>,
}

impl UnitColumns {
    fn from_units(units: &[Arc<TaggedUnit>]) -> Self {
        let mut all = Self::default();
        let bytes = |text: &Option<String>| text.as_ref().map(|t| t.clone().into_bytes());
        for (n, kept) in (1..).zip(units) {
            let unit = &kept.unit;
            let c = &unit.completion;
            all.token.push(kept.token);
            all.run.push(c.run.0);
            all.model.push(c.model.cast_signed());
            all.prompt_hash.push(super::replace_nul_chars(&c.prompt_hash));
            all.content.push(bytes(&c.content));
            all.error.push(bytes(&c.error));
            all.input_tokens.push(c.input_tokens.cast_signed());
            all.cached_input_tokens.push(c.cached_input_tokens.cast_signed());
            all.output_tokens.push(c.output_tokens.cast_signed());
            all.cost_usd.push(c.cost_usd);
            all.asked_at.push(super::replace_nul_chars(&c.asked_at));
            all.seconds.push(c.seconds);
            all.cells.push(c.cells.cast_signed());
            all.parameters.push(c.parameters.as_deref().map(super::replace_nul_chars));
            all.assumed_cache_writes.push(c.assumed_cache_writes.cast_signed());
            all.evidence.push(c.evidence.as_deref().map(super::replace_nul_chars));
            all.reservations.extend(unit.reservation.map(|id| id.0));
            all.requests.extend(unit.answers);
            for (entity, facts) in &unit.facts {
                let cells = cells_to_json(facts);
                let key = to_stored_entity(entity);
                let lines = &mut all.lines;
                lines.of.push(n);
                lines.checksum.push(compute_answer_checksum(entity.as_str(), 0, c.model, &cells));
                lines.key.push(key.key);
                lines.entity.push(key.entity.map(str::to_owned));
                lines.model.push(c.model.cast_signed());
                lines.cells.push(cells);
            }
        }
        all
    }
}

const FIND_COMMITTED: &str = "SELECT token FROM hqdl.completion WHERE token = ANY($1)";
const ADVANCE_NUMBERS: &str = "UPDATE hqdl.head SET completion = completion + $1, line = line + $2";
const INSERT_COMPLETIONS: &str = "INSERT INTO hqdl.completion (id, token, run, model, prompt_hash, content,
    error, input_tokens, cached_input_tokens, output_tokens, cost_usd, asked_at, seconds, cells,
    parameters, assumed_cache_writes, evidence)
  SELECT h.completion - $17 + u.n, u.token, u.run, u.model, u.prompt_hash, u.content, u.error,
    u.input_tokens, u.cached_input_tokens, u.output_tokens, u.cost_usd, u.asked_at, u.seconds, u.cells,
    u.parameters, u.assumed_cache_writes, u.evidence
  FROM hqdl.head AS h, unnest($1::bigint[], $2::bigint[], $3::integer[], $4::text[], $5::bytea[],
    $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[], $10::double precision[], $11::text[],
    $12::double precision[], $13::bigint[], $14::text[], $15::bigint[],
    $16::text[]) WITH ORDINALITY AS u (token, run, model, prompt_hash, content,
    error, input_tokens, cached_input_tokens, output_tokens, cost_usd, asked_at, seconds, cells,
    parameters, assumed_cache_writes, evidence, n)";
const INSERT_ANSWERS: &str =
    "INSERT INTO hqdl.answer (key, line, completion, model, checksum, cells, entity)
  SELECT u.key, h.line - $7 + u.n, h.completion - $8 + u.of, u.model, u.checksum, u.cells, u.entity
  FROM hqdl.head AS h, unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::bigint[],
    $6::text[]) WITH ORDINALITY AS u (of, key, entity, model, checksum, cells, n)";
/// Records the rows that replace a stored value from any model. The statement runs in the
/// transaction that inserts the rows, so that readers can detect outdated published tables.
const RECORD_CHANGES: &str = "UPDATE hqdl.meaning SET changed = greatest(changed, x.line) FROM (
    SELECT (new ->> 0)::integer AS meaning, max(n.line) AS line
    FROM hqdl.answer AS n JOIN hqdl.answer AS o ON o.key = n.key AND o.line < n.line
    CROSS JOIN LATERAL json_array_elements(n.cells::json) AS new
    CROSS JOIN LATERAL json_array_elements(o.cells::json) AS old
    WHERE n.line > (SELECT line - $1 FROM hqdl.head) AND new ->> 0 = old ->> 0
      AND new ->> 2 <> 'error' AND old ->> 2 IN ('ok', 'overridden')
      AND ((new -> 3)::text IS DISTINCT FROM (old -> 3)::text
        OR (new -> 1)::text IS DISTINCT FROM (old -> 1)::text)
    GROUP BY 1) AS x WHERE meaning.id = x.meaning";
/// Variant of [`RECORD_CHANGES`] for the case that an older row is damaged. The damaged row may
/// have contained any value, so every column of the new rows counts as changed.
const RECORD_CHANGES_UNREADABLE: &str =
    "UPDATE hqdl.meaning SET changed = greatest(changed, x.line) FROM (
    SELECT (new ->> 0)::integer AS meaning, max(n.line) AS line
    FROM hqdl.answer AS n JOIN hqdl.answer AS o ON o.key = n.key AND o.line < n.line
    CROSS JOIN LATERAL json_array_elements(n.cells::json) AS new
    WHERE n.line > (SELECT line - $1 FROM hqdl.head) GROUP BY 1) AS x WHERE meaning.id = x.meaning";
const DELETE_RESERVATIONS: &str = "DELETE FROM hqdl.reservation WHERE id = ANY($1)";
const ADD_SPENDING: &str = "INSERT INTO hqdl.day (date, usd)
  SELECT (now() AT TIME ZONE 'UTC')::date, sum(u.usd)
  FROM unnest($1::integer[], $2::double precision[]) AS u (model, usd)
  JOIN hqdl.model AS m ON m.id = u.model AND NOT m.recorded WHERE u.usd <> 0 HAVING sum(u.usd) IS NOT NULL
  ON CONFLICT (date) DO UPDATE SET usd = day.usd + excluded.usd";

/// Closes the answered requests, and their duplicates in exported batch files.
const CLOSE_REQUESTS: &str = "UPDATE hqdl.request AS r SET state = 'answered' WHERE r.id = ANY($1)
  OR (r.state = 'packed' AND r.parcel IN (SELECT id FROM hqdl.parcel WHERE state = 'exported')
    AND r.custom_id IN (SELECT custom_id FROM hqdl.request WHERE id = ANY($1)))";
const DELETE_REQUEST_ROWS: &str = "DELETE FROM hqdl.request_row WHERE request IN (
  SELECT r.id FROM hqdl.request AS r WHERE r.state = 'answered' AND r.custom_id IN (
    SELECT custom_id FROM hqdl.request WHERE id = ANY($1)) OR r.id = ANY($1))";

/// Prepared statements for a commit.
struct Statements {
    number: Statement,
    completions: Statement,
    answers: Statement,
    changed: Statement,
    settled: Statement,
    spent: Statement,
    answered: Statement,
    rows: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> WorkResult<Self> {
        let prepare = |sql| client.prepare_cached(sql);
        // Prepare the statements together, so that the first commit on a connection waits only
        // once.
        let (number, completions, answers, changed, settled, spent, answered, rows) = tokio::try_join!(
            prepare(ADVANCE_NUMBERS),
            prepare(INSERT_COMPLETIONS),
            prepare(INSERT_ANSWERS),
            prepare(RECORD_CHANGES),
            prepare(DELETE_RESERVATIONS),
            prepare(ADD_SPENDING),
            prepare(CLOSE_REQUESTS),
            prepare(DELETE_REQUEST_ROWS),
        )?;
        Ok(Self { number, completions, answers, changed, settled, spent, answered, rows })
    }
}

impl Server {
    /// Commits units in one transaction and one round trip. A unit that another process has already
    /// committed is not committed again.
    pub(super) async fn commit_units(&self, units: &[Arc<TaggedUnit>]) -> Result<(), FactsError> {
        let lines: usize = units.iter().map(|kept| kept.unit.facts.len()).sum();
        let within = ANSWER_TIMEOUT + ANSWER_TIMEOUT * (lines / 50_000) as u32;
        let work = |client: Client| async move {
            let mut statements = Statements::prepare(&client).await?;
            let mut left = units.to_vec();
            while !left.is_empty() {
                match send_commit(&client, &statements, &UnitColumns::from_units(&left)).await {
                    Ok(()) => break,
                    // The unit was committed before: either the server's reply was lost, or another
                    // process committed it.
                    Err(e) if is_committed(&e) => {
                        let tokens: Vec<i64> = left.iter().map(|kept| kept.token).collect();
                        let known = client.query(FIND_COMMITTED, &[&tokens]).await?;
                        let known: Vec<i64> =
                            known.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
                        left.retain(|kept| !known.contains(&kept.token));
                    }
                    // The row that cannot be parsed must be an older one, because the new rows were
                    // written just now.
                    Err(e) if e.code().is_some_and(|code| code.code().starts_with("22")) => {
                        statements.changed =
                            client.prepare_cached(RECORD_CHANGES_UNREADABLE).await?;
                        send_commit(&client, &statements, &UnitColumns::from_units(&left)).await?;
                        break;
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(())
        };
        self.link.with_timeout(within, work).await?;
        debug!(completions = units.len(), lines, "the server commits");
        Ok(())
    }
}

/// Returns true if a commit failed because one of its units is already committed.
fn is_committed(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
        && error.as_db_error().and_then(|e| e.constraint()) == Some("completion_token_key")
}

async fn send_commit(
    client: &Client,
    statements: &Statements,
    all: &UnitColumns,
) -> Result<(), tokio_postgres::Error> {
    let (n, lines) = (super::to_bigint(all.token.len()), super::to_bigint(all.lines.of.len()));
    let of = &all.lines;
    let of_number: [Parameter<'_>; 2] = [&n, &lines];
    let of_completions: [Parameter<'_>; 17] = [
        &all.token,
        &all.run,
        &all.model,
        &all.prompt_hash,
        &all.content,
        &all.error,
        &all.input_tokens,
        &all.cached_input_tokens,
        &all.output_tokens,
        &all.cost_usd,
        &all.asked_at,
        &all.seconds,
        &all.cells,
        &all.parameters,
        &all.assumed_cache_writes,
        &all.evidence,
        &n,
    ];
    let of_answers: [Parameter<'_>; 8] =
        [&of.of, &of.key, &of.entity, &of.model, &of.checksum, &of.cells, &lines, &n];
    let of_reservations: [Parameter<'_>; 1] = [&all.reservations];
    let of_spent: [Parameter<'_>; 2] = [&all.model, &all.cost_usd];
    let of_requests: [Parameter<'_>; 1] = [&all.requests];
    // Send all statements before the first reply arrives, so that the lock on the row numbers is
    // held only while the server works. If one statement fails, the transaction is rolled back.
    let done = tokio::join!(
        biased;
        client.batch_execute(BEGIN),
        client.execute(&statements.number, &of_number),
        client.execute(&statements.completions, &of_completions),
        client.execute(&statements.answers, &of_answers),
        client.execute(&statements.changed, &of_number[1..]),
        client.execute(&statements.settled, &of_reservations),
        client.execute(&statements.spent, &of_spent),
        client.execute(&statements.answered, &of_requests),
        client.execute(&statements.rows, &of_requests),
        client.batch_execute("COMMIT"),
    );
    let (begun, number, completions, answers, changed, settled, spent, answered, rows, end) = done;
    let first = begun
        .and(number)
        .and(completions)
        .and(answers)
        .and(changed)
        .and(settled)
        .and(spent)
        .and(answered)
        .and(rows);
    first.map(drop).and(end)
}
