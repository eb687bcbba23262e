//! Notifications to the service manager that started the daemon (`NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;

/// Reports that the daemon is ready, with a status line.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the daemon rereads all specs.
pub(super) fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// Reports that the daemon is shutting down.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Reports that the daemon is alive.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Returns the interval of alive messages, if the manager requires them.
pub(super) fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    // The variables may be meant for the parent process.
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0)?;
    Some(Duration::from_micros(micros) / 2)
}

/// Sends a notification; errors are ignored.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(false, states);
}
