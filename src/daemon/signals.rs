//! Handles signals: SIGTERM and SIGINT shut the daemon down, SIGHUP reloads it.

use tokio::sync::mpsc::Sender;

use super::event::DaemonEvent;

/// Exit code after a second signal, which ends the process immediately.
const FORCED_EXIT: i32 = 130;

/// Turns signals into events.
#[cfg(unix)]
pub(super) fn forward_signals(events: Sender<DaemonEvent>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut reload = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        let mut ending = false;
        loop {
            let event = tokio::select! {
                _ = end.recv() => DaemonEvent::Stop,
                _ = interrupt.recv() => DaemonEvent::Stop,
                _ = reload.recv() => DaemonEvent::Reload,
            };
            if matches!(event, DaemonEvent::Stop) && std::mem::replace(&mut ending, true) {
                std::process::exit(FORCED_EXIT);
            }
            if events.send(event).await.is_err() && !ending {
                return;
            }
        }
    });
    Ok(())
}

/// Turns Ctrl-C into events.
#[cfg(not(unix))]
pub(super) fn forward_signals(events: Sender<DaemonEvent>) -> std::io::Result<()> {
    tokio::spawn(async move {
        let mut ending = false;
        while tokio::signal::ctrl_c().await.is_ok() {
            if std::mem::replace(&mut ending, true) {
                std::process::exit(FORCED_EXIT);
            }
            let _ = events.send(DaemonEvent::Stop).await;
        }
    });
    Ok(())
}
