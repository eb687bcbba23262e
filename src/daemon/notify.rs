//! Sends notifications to the service manager that started the daemon (`NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;

/// Reports that the daemon is ready, with a status line.
pub(super) fn notify_ready(status: &str) {
    send_states(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the daemon is rereading all specs.
pub(super) fn notify_reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        send_states(&[NotifyState::Reloading, now]);
    }
}

/// Reports that the daemon is shutting down.
pub(super) fn notify_stopping() {
    send_states(&[NotifyState::Stopping]);
}

/// Reports that the daemon is alive.
pub(super) fn notify_alive() {
    send_states(&[NotifyState::Watchdog]);
}

/// Returns the interval at which the service manager requires keep-alive messages; `None` if it
/// requires none.
pub(super) fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    // The environment variables may be meant for the parent process.
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros > 0)?;
    Some(Duration::from_micros(micros) / 2)
}

/// Sends a notification and ignores errors.
fn send_states(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(false, states);
}
