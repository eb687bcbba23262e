//! Remembers submitted forms that may spend money: if a form is submitted twice, hqdl spends once
//! and returns the same result to both requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::daemon::clients::Clients;

/// Maximum number of results to remember.
const MAX_SUBMISSIONS: usize = 64;
/// Number of ticks without a waiting client after which the work is interrupted. A browser that
/// sends a form twice closes the first connection before it opens the second.
const ABANDON_TICKS: u32 = 3;
/// Interval between checks for waiting clients.
const TICK: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// Number of page ids created since the daemon started.
static PAGES: AtomicU64 = AtomicU64::new(0);

/// Returns a new page id. It is unique, even across restarts of the daemon.
pub(super) fn create_page_id() -> String {
    let count = PAGES.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{count:x}", jiff::Timestamp::now().as_nanosecond())
}

/// Result of the work; `None` while it runs.
type SubmissionResult<T> = watch::Receiver<Option<Arc<T>>>;

/// A submitted form.
struct Submission<T> {
    key: String,
    result: SubmissionResult<T>,
    /// Each waiting client holds a clone, so the reference count shows how many clients wait.
    presence: Arc<()>,
}

/// The latest submitted forms.
pub(in crate::daemon::http) struct Submissions<T>(Arc<Mutex<VecDeque<Submission<T>>>>);

impl<T> Clone for Submissions<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Submissions<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Submissions<T> {
    /// Returns the result of a form's work. The first request starts the work, and later requests
    /// wait for it. `start` receives a signal that interrupts the work if no client waits for it.
    /// Returns `None` if the work panicked.
    pub(super) async fn run_once<W>(
        &self,
        key: &str,
        clients: &Clients,
        start: impl FnOnce(watch::Receiver<bool>) -> W,
    ) -> Option<Arc<T>>
    where
        W: Future<Output = T> + Send + 'static,
    {
        let (mut result, _presence) = match self.find_submission(key) {
            Some(submission) => submission,
            None => self.start_work(key, clients, start),
        };
        let found = result.wait_for(Option::is_some).await.ok()?;
        found.clone()
    }

    /// Returns the result of a form, if its work has ended.
    pub(super) fn find_result(&self, key: &str) -> Option<Arc<T>> {
        let (result, _) = self.find_submission(key)?;
        result.borrow().clone()
    }

    fn find_submission(&self, key: &str) -> Option<(SubmissionResult<T>, Arc<()>)> {
        let submissions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let submission = submissions.iter().find(|submission| submission.key == key)?;
        Some((submission.result.clone(), Arc::clone(&submission.presence)))
    }

    fn start_work<W>(
        &self,
        key: &str,
        clients: &Clients,
        start: impl FnOnce(watch::Receiver<bool>) -> W,
    ) -> (SubmissionResult<T>, Arc<()>)
    where
        W: Future<Output = T> + Send + 'static,
    {
        let mut submissions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(submission) = submissions.iter().find(|submission| submission.key == key) {
            return (submission.result.clone(), Arc::clone(&submission.presence));
        }
        if submissions.len() >= MAX_SUBMISSIONS
            && let Some(oldest) =
                submissions.iter().position(|submission| submission.result.borrow().is_some())
        {
            submissions.remove(oldest);
        }
        let (send, result) = watch::channel(None);
        let presence = Arc::new(());
        let submission = Submission {
            key: key.to_owned(),
            result: result.clone(),
            presence: Arc::clone(&presence),
        };
        submissions.push_back(submission);
        drop(submissions);
        let (guard, interrupt) = clients.begin_work();
        let work = start(interrupt);
        let (submissions, key) = (self.clone(), key.to_owned());
        let waiting = Arc::clone(&presence);
        tokio::spawn(async move {
            let mut work = std::pin::pin!(work);
            let (mut guard, mut ticks) = (Some(guard), 0);
            let done = loop {
                tokio::select! {
                    done = &mut work => break done,
                    () = tokio::time::sleep(TICK) => {
                        // The table and this task hold one clone each.
                        ticks = if Arc::strong_count(&waiting) > 2 { 0 } else { ticks + 1 };
                        if ticks >= ABANDON_TICKS {
                            guard = None;
                        }
                    }
                }
            };
            if guard.is_none() {
                // If the form is submitted again, it must not get the result of interrupted work.
                let mut submissions = submissions.0.lock().unwrap_or_else(PoisonError::into_inner);
                submissions.retain(|submission| submission.key != key);
            }
            send.send_replace(Some(Arc::new(done)));
        });
        (result, presence)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::{ABANDON_TICKS, MAX_SUBMISSIONS, Submissions, TICK};
    use crate::daemon::clients::Clients;

    #[tokio::test]
    async fn a_form_sent_twice_is_processed_once() {
        let (submissions, clients) = (Submissions::<u32>::default(), Clients::default());
        let count = Arc::new(AtomicU32::new(0));
        let join = |key: &'static str| {
            let (submissions, clients, count) =
                (submissions.clone(), clients.clone(), Arc::clone(&count));
            async move {
                let work = |_| async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    count.fetch_add(1, Ordering::Relaxed) + 1
                };
                *submissions.run_once(key, &clients, work).await.unwrap()
            }
        };
        let (one, two) = tokio::join!(join("a"), join("a"));
        assert_eq!((one, two, join("a").await), (1, 1, 1));
        assert_eq!(join("b").await, 2);
        assert_eq!(submissions.find_result("b").as_deref(), Some(&2));
        for n in 0..2 * MAX_SUBMISSIONS {
            submissions.run_once(&n.to_string(), &clients, |_| async { 0 }).await.unwrap();
        }
        assert_eq!(submissions.find_result("b"), None);
    }

    #[tokio::test]
    async fn work_without_a_waiting_client_is_interrupted_and_forgotten() {
        let (submissions, clients) = (Submissions::<bool>::default(), Clients::default());
        let work = |mut interrupt: tokio::sync::watch::Receiver<bool>| async move {
            interrupt.wait_for(|i| *i).await.is_ok()
        };
        let patience = 4 * ABANDON_TICKS * TICK;
        let left = tokio::time::timeout(patience, submissions.run_once("a", &clients, work));
        assert!(left.await.is_err(), "a client that waits is not left alone");
        tokio::time::sleep(patience).await;
        assert_eq!(clients.count(), 0);
        assert_eq!(submissions.find_result("a"), None);
    }
}
