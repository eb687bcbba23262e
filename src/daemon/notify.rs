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
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    // It may be meant for the process that started us.
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0)?;
    Some(Duration::from_micros(micros) / 2)
}

/// A manager that does not listen is none.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(false, states);
}
