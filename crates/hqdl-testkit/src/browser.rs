//! A browser controlled through a pipe with the Chrome `DevTools` protocol, if one is installed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value as Json, json};

use crate::daemon::DEADLINE;

/// Returns the path of Chromium, if it is installed.
pub fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|d| names.map(|n| d.join(n))).find(|p| p.is_file())
}

/// A browser with one page, killed on drop.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Json>,
    session: Option<String>,
    last: u64,
}

impl Browser {
    /// Starts a browser whose profile is in `home`.
    pub fn start(program: &Path, home: &Path) -> Self {
        // The browser reads from descriptor 3 and writes to descriptor 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--remote-debugging-pipe", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", home.join("profile").display()))
            .arg("about:blank")
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (tell, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while lines.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(json) = serde_json::from_slice(&message) else { return };
                if tell.send(json).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self { child, to, from, session: None, last: 0 };
        let page = browser.tell("Target.createTarget", json!({ "url": "about:blank" }));
        let of = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.tell("Target.attachToTarget", of);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser.tell("Page.enable", json!({}));
        browser
    }

    /// Returns the next message that satisfies the predicate.
    fn next(&self, wanted: impl Fn(&Json) -> bool) -> Json {
        loop {
            let message = self.from.recv_timeout(DEADLINE).expect("the browser says nothing");
            if wanted(&message) {
                return message;
            }
        }
    }

    /// Sends a command and returns its result.
    pub fn tell(&mut self, method: &str, params: Json) -> Json {
        self.last += 1;
        let id = self.last;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        self.to.flush().unwrap();
        let mut answer = self.next(|m| m["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Opens a page and waits until it is loaded.
    pub fn go(&mut self, url: &str) {
        self.tell("Page.navigate", json!({ "url": url }));
        self.next(|m| m["method"] == "Page.loadEventFired");
    }

    /// Runs a script that navigates to another page, and waits until that page is loaded.
    pub fn leave(&mut self, script: &str) {
        self.eval(script);
        self.next(|m| m["method"] == "Page.loadEventFired");
    }

    /// Returns the value of a script.
    pub fn eval(&mut self, script: &str) -> Json {
        let params = json!({ "expression": script, "returnByValue": true });
        let mut said = self.tell("Runtime.evaluate", params);
        assert!(said["exceptionDetails"].is_null(), "{said}");
        said["result"]["value"].take()
    }

    /// Sets the page's width and color scheme.
    pub fn dress(&mut self, width: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.tell("Emulation.setDeviceMetricsOverride", size);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tell("Emulation.setEmulatedMedia", features);
    }

    /// Returns a screenshot of the whole page as base64.
    pub fn picture(&mut self) -> String {
        let all = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.tell("Page.captureScreenshot", all);
        picture["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
