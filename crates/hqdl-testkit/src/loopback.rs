//! A server on a free loopback port, on its own thread.

use std::net::SocketAddr;
use std::sync::mpsc;

use tokio::sync::oneshot;

/// Serves `app` until the returned sender is dropped or used.
pub fn serve_app(app: axum::Router) -> (SocketAddr, oneshot::Sender<()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            tokio::select! {
                _ = axum::serve(listener, app) => {}
                _ = stopped => {}
            }
        });
        runtime.shutdown_background();
    });
    (address.recv().unwrap(), stop)
}
