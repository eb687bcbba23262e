//! What a service manager is told, when one started us (`NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;

/// It is ready, and what it does.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// It reads everything again.
pub(super) fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// It is ending.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// It is alive.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often it must say so, where anybody asks.
pub(super) fn watchdog() -> Option<Duration> {
    let mut micros = 0;
    sd_notify::watchdog_enabled(false, &mut micros).then(|| Duration::from_micros(micros) / 2)
}

/// A manager that does not listen is none.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(false, states);
}
