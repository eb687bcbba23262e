//! Ctrl-C: once, a command ends with everything kept; twice, at once.

use tokio::sync::watch;

use super::failure::INTERRUPTED;

/// What a command that is asking a model says at the first Ctrl-C.
pub const FINISHING: &str = "finishing the requests in flight; press Ctrl-C again to stop at once";

/// Becomes true at the first Ctrl-C, after `said`; the second ends the process,
/// and what is in flight is lost.
pub fn watch(said: Option<&'static str>) -> watch::Receiver<bool> {
    let (send, receive) = watch::channel(false);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                let _ = send.send(true);
                if let Some(said) = said {
                    anstream::eprintln!("{said}");
                }
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(i32::from(INTERRUPTED));
            }
        });
    });
    receive
}
