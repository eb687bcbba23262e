//! Serves the endpoint of the tests until its standard input ends: prints its base URL, and then
//! every request as a line of JSON. `scripts/protocols` uses it.

use std::io::{Read, Write};
use std::time::Duration;

use hqdl_testkit::project::truthful_endpoint;
use serde_json::json;

fn main() -> std::io::Result<()> {
    let endpoint = truthful_endpoint();
    let mut output = std::io::stdout();
    writeln!(output, "{}", endpoint.base_url())?;
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = sender.send(());
    });
    let mut printed = 0;
    while ended.recv_timeout(Duration::from_millis(50)).is_err() {
        for request in endpoint.received_requests().into_iter().skip(printed) {
            printed += 1;
            // A request in a batch has no path.
            writeln!(output, "{}", json!({ "uri": request.uri, "body": request.body }))?;
        }
    }
    Ok(())
}
