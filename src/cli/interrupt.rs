//! Handles Ctrl-C: the first one ends a command and keeps all answers, the second exits
//! immediately.

use tokio::sync::watch;

use super::failure::INTERRUPTED;

/// Message at the first Ctrl-C, for a command that asks a model.
pub const FINISHING: &str = "finishing the requests in flight; press Ctrl-C again to stop at once";

/// Returns a flag that becomes true at the first Ctrl-C, after printing the message. The second
/// Ctrl-C exits the process; requests in flight are lost.
pub fn watch_ctrl_c(message: Option<&'static str>) -> watch::Receiver<bool> {
    let (send, receive) = watch::channel(false);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                let _ = send.send(true);
                if let Some(message) = message {
                    anstream::eprintln!("{message}");
                }
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(i32::from(INTERRUPTED));
            }
        });
    });
    receive
}
