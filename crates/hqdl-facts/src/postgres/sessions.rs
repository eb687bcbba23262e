//! The session of this process on the server, and its lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::FactsError;
use crate::postgres::Server;
use crate::postgres::connection::Client;
use crate::session_file::{SessionFile, choose_machine_folder};
use crate::sessions::new_id;

/// Number of renewals per lease duration.
const RENEWALS_PER_LEASE: u32 = 9;
/// Longest time that a process waits for the server to record the end of its session.
const MAX_LEAVE_TIME: Duration = Duration::from_secs(2);
/// SQL condition: the row's session is active.
pub(super) const ALIVE: &str =
    "session IN (SELECT id FROM hqdl.session WHERE expires_at > clock_timestamp())";

/// State of this process's session. The session starts when it is first needed, because reads need
/// none.
pub(super) struct SessionLease {
    holder: String,
    pub(super) lease: Duration,
    state: Mutex<SessionState>,
    registration: tokio::sync::Mutex<()>,
}

struct SessionState {
    id: Arc<str>,
    is_registered: bool,
    /// Time at which the server registered the session.
    began: Instant,
    /// Time at which the last successful lease renewal was sent.
    renewed: Instant,
    heartbeat: Option<tokio::task::AbortHandle>,
    /// File that marks the process as running for other processes on this machine.
    file: Option<SessionFile>,
}

impl SessionLease {
    pub(super) fn new(holder: &str, lease: Duration) -> Self {
        let now = Instant::now();
        let state = SessionState {
            id: new_session_id(),
            is_registered: false,
            began: now,
            renewed: now,
            heartbeat: None,
            file: None,
        };
        Self {
            holder: holder.to_owned(),
            lease,
            state: Mutex::new(state),
            registration: tokio::sync::Mutex::default(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a unique session id.
fn new_session_id() -> Arc<str> {
    format!("{}-{:016x}", new_id(), fastrand::u64(..)).into()
}

impl Server {
    /// Returns the session id, and starts the session or renews its lease if necessary.
    pub(super) async fn ensure_session(&self) -> Result<Arc<str>, FactsError> {
        let begun = || {
            let state = self.presence.lock_state();
            let lasts = state.is_registered && state.renewed.elapsed() < self.presence.lease / 2;
            lasts.then(|| Arc::clone(&state.id))
        };
        if let Some(id) = begun() {
            return Ok(id);
        }
        let _registration = self.presence.registration.lock().await;
        match begun() {
            Some(id) => Ok(id),
            None => self.renew_lease().await,
        }
    }

    /// Starts the session or renews its lease. If the lease has ended, a new session starts,
    /// because others may own the old one's claims by now.
    async fn renew_lease(&self) -> Result<Arc<str>, FactsError> {
        let lease = self.presence.lease.as_secs_f64();
        loop {
            let (id, is_registered) = {
                let state = self.presence.lock_state();
                (Arc::clone(&state.id), state.is_registered)
            };
            if !is_registered {
                let file =
                    choose_machine_folder(&self.dir).and_then(|f| SessionFile::create(&f, &id));
                self.presence.lock_state().file = file;
            }
            let (asked, id_of) = (Instant::now(), &*id);
            let sql = if is_registered { RENEW } else { ENTER };
            let holder = super::replace_nul_chars(&self.presence.holder);
            let holder = holder.as_str();
            let holds = self
                .link
                .with_client(|client| async move {
                    let statement = client.prepare_cached(sql).await?;
                    let held = if is_registered {
                        client.execute(&statement, &[&id_of, &lease]).await?
                    } else {
                        client.execute(&statement, &[&id_of, &lease, &holder]).await?
                    };
                    Ok(held > 0)
                })
                .await?;
            let mut state = self.presence.lock_state();
            if holds {
                if !state.is_registered {
                    state.began = Instant::now();
                }
                state.is_registered = true;
                state.renewed = asked;
                return Ok(id);
            }
            warn!(session = id_of, "the lease of this session has ended");
            (state.id, state.is_registered) = (new_session_id(), false);
        }
    }

    /// Returns true if the current session existed at `moment` and cannot have ended since.
    pub(super) fn has_kept_session_since(&self, moment: Instant) -> bool {
        let state = self.presence.lock_state();
        state.is_registered
            && state.began <= moment
            && state.renewed.elapsed() < self.presence.lease
    }

    /// Starts the session and keeps it alive. Call this before claiming cells, reserving a cost or
    /// starting a run.
    pub(super) async fn keep_session_alive(&self) -> Result<Arc<str>, FactsError> {
        let id = self.ensure_session().await?;
        let mut state = self.presence.lock_state();
        if state.heartbeat.is_none() {
            let (server, every) =
                (self.weak_self.clone(), self.presence.lease / RENEWALS_PER_LEASE);
            let beating = self.link.handle.spawn(async move {
                loop {
                    tokio::time::sleep(every).await;
                    let Some(server) = server.upgrade() else { return };
                    let _registration = server.presence.registration.lock().await;
                    if let Err(error) = server.renew_lease().await {
                        warn!(%error, "cannot renew the lease");
                    }
                    if let Err(error) = server.end_abandoned_sessions().await {
                        warn!(%error, "cannot end the sessions of killed processes");
                    }
                }
            });
            state.heartbeat = Some(beating.abort_handle());
        }
        Ok(id)
    }

    /// Ends the session and releases everything that it owns.
    pub(super) async fn end_own_session(&self) {
        let (id, is_registered) = {
            let mut state = self.presence.lock_state();
            state.heartbeat.take().inspect(tokio::task::AbortHandle::abort);
            (Arc::clone(&state.id), std::mem::replace(&mut state.is_registered, false))
        };
        if !is_registered {
            return;
        }
        // Release the claims only after the server has the answers.
        let leaving = async {
            self.commit_spooled_units().await?;
            self.end_session(&id).await
        };
        let left = matches!(tokio::time::timeout(MAX_LEAVE_TIME, leaving).await, Ok(Ok(())));
        let file = self.presence.lock_state().file.take();
        if !left {
            warn!(session = &*id, "cannot end this session; its lease will expire");
            if let Some(file) = file {
                file.abandon();
            }
        }
    }

    /// Deletes a session together with its claims and rate limits.
    async fn end_session(&self, id: &str) -> Result<(), FactsError> {
        let ending = |client: Client| async move {
            for sql in LEAVE {
                client.execute(sql, &[&id]).await?;
            }
            Ok(())
        };
        self.link.with_client(ending).await
    }

    /// Ends the sessions of dead processes on this machine, after their spooled answers have
    /// reached the server.
    pub(super) async fn end_abandoned_sessions(&self) -> Result<(), FactsError> {
        let Some(folder) = choose_machine_folder(&self.dir) else { return Ok(()) };
        for id in SessionFile::find_abandoned_sessions(&folder) {
            self.commit_spooled_units().await?;
            self.end_session(&id).await?;
            SessionFile::delete(&folder, &id);
            info!(session = id, "ended the session of a killed process");
        }
        Ok(())
    }
}

/// Starts a session and deletes rows that expired more than a day ago.
const ENTER: &str = "WITH gone AS (
    DELETE FROM hqdl.session WHERE expires_at < clock_timestamp() - interval '1 day'),
  told AS (DELETE FROM hqdl.call WHERE at < clock_timestamp() - interval '1 day')
  INSERT INTO hqdl.session (id, holder, expires_at)
  VALUES ($1, $3, clock_timestamp() + $2 * interval '1 second')
  ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at";
const RENEW: &str =
    "UPDATE hqdl.session SET expires_at = clock_timestamp() + $2 * interval '1 second'
  WHERE id = $1 AND expires_at > clock_timestamp()";
const LEAVE: [&str; 3] = [
    "DELETE FROM hqdl.session WHERE id = $1",
    "DELETE FROM hqdl.claim WHERE session = $1",
    "DELETE FROM hqdl.rate_member WHERE session = $1",
];
