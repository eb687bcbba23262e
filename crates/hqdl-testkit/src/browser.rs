//! A browser controlled through a pipe with the Chrome `DevTools` protocol, if one is installed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value as Json, json};

use crate::daemon::DEADLINE;

/// Returns the path of Chromium, if it is installed.
pub fn find_chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|d| names.map(|n| d.join(n))).find(|p| p.is_file())
}

/// A browser with one page, killed on drop.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Json>,
    session: Option<String>,
    last_id: u64,
    errors: Vec<String>,
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
        let commands = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while lines.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(json) = serde_json::from_slice(&message) else { return };
                if sender.send(json).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser =
            Self { child, commands, messages, session: None, last_id: 0, errors: Vec::new() };
        let page = browser.send_command("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.send_command("Target.attachToTarget", target);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.send_command(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Returns the next message that satisfies the predicate.
    fn next_message(&mut self, is_wanted: impl Fn(&Json) -> bool) -> Json {
        loop {
            let message = self.messages.recv_timeout(DEADLINE).expect("the browser says nothing");
            self.errors.extend(console_error(&message));
            if is_wanted(&message) {
                return message;
            }
        }
    }

    /// Sends a command and returns its result.
    pub fn send_command(&mut self, method: &str, params: Json) -> Json {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).unwrap();
        self.commands.flush().unwrap();
        let mut answer = self.next_message(|m| m["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Opens a page and waits until it is loaded.
    pub fn open_page(&mut self, url: &str) {
        self.send_command("Page.navigate", json!({ "url": url }));
        self.next_message(|m| m["method"] == "Page.loadEventFired");
    }

    /// Opens a page that asks for a password, and cancels the browser's dialog.
    pub fn open_without_password(&mut self, url: &str) {
        let patterns = json!([{ "urlPattern": url, "resourceType": "Document" }]);
        let options = json!({ "handleAuthRequests": true, "patterns": patterns });
        self.send_command("Fetch.enable", options);
        self.eval_script(&format!("location.href = {url:?}"));
        loop {
            let is_wanted = |m: &Json| match m["method"].as_str() {
                Some(method) => method.starts_with("Fetch.") || method == "Page.loadEventFired",
                None => false,
            };
            let message = self.next_message(is_wanted);
            let request = &message["params"]["requestId"];
            match message["method"].as_str() {
                Some("Fetch.authRequired") => {
                    let answer = json!({ "response": "CancelAuth" });
                    let params = json!({ "requestId": request, "authChallengeResponse": answer });
                    self.send_command("Fetch.continueWithAuth", params);
                }
                Some("Fetch.requestPaused") => {
                    self.send_command("Fetch.continueRequest", json!({ "requestId": request }));
                }
                _ => break,
            }
        }
        self.send_command("Fetch.disable", json!({}));
    }

    /// Runs a script that navigates to another page, and waits until that page is loaded.
    pub fn leave_page(&mut self, script: &str) {
        self.eval_script(script);
        self.next_message(|m| m["method"] == "Page.loadEventFired");
    }

    /// Returns and forgets the errors of the pages' console so far.
    pub fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }

    /// Returns the value of a script; of a promise, its result.
    pub fn eval_script(&mut self, script: &str) -> Json {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let mut result = self.send_command("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{result}");
        result["result"]["value"].take()
    }

    /// Sets the page's width and color scheme.
    pub fn set_viewport(&mut self, width: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.send_command("Emulation.setDeviceMetricsOverride", size);
        // A transition would be measured half-way.
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ] });
        self.send_command("Emulation.setEmulatedMedia", features);
    }

    /// Returns a screenshot of the whole page as base64.
    pub fn take_screenshot(&mut self) -> String {
        let options =
            json!({ "format": "png", "captureBeyondViewport": true, "optimizeForSpeed": true });
        let screenshot = self.send_command("Page.captureScreenshot", options);
        screenshot["data"].as_str().unwrap().to_owned()
    }
}

/// Returns the text of a message that reports an error of a page. The status of a response is none.
fn console_error(message: &Json) -> Option<String> {
    let params = &message["params"];
    let is_error = match message["method"].as_str()? {
        "Runtime.exceptionThrown" => true,
        "Runtime.consoleAPICalled" => params["type"] == "error",
        "Log.entryAdded" => {
            params["entry"]["level"] == "error" && params["entry"]["source"] != "network"
        }
        _ => false,
    };
    is_error.then(|| params.to_string())
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
