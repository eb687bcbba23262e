//! Handles Ctrl-C: the first one ends a command and keeps all answers, the second exits
//! immediately.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::failure::INTERRUPTED;

/// Message at the first Ctrl-C, for a command that asks a model.
pub const FINISHING: &str = "finishing the requests in flight; press Ctrl-C again to stop at once";

/// Whether a prompt is waiting for the user. No request is in flight while it waits.
static IS_PROMPTING: AtomicBool = AtomicBool::new(false);

/// Runs a prompt. A Ctrl-C during the prompt prints no message about requests.
pub fn run_prompt<T>(prompt: impl FnOnce() -> T) -> T {
    IS_PROMPTING.store(true, Ordering::SeqCst);
    let answer = prompt();
    IS_PROMPTING.store(false, Ordering::SeqCst);
    answer
}

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
                // Read the flag first: the interrupt ends the prompt, which resets the flag.
                let message = if IS_PROMPTING.load(Ordering::SeqCst) { Some("") } else { message };
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
