//! The configuration with which an assistant starts the server.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};

/// An assistant with its own configuration format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Assistant {
    /// Claude Desktop and Claude Code.
    Claude,
    /// Cursor.
    Cursor,
    /// VS Code.
    Vscode,
}

/// Returns the configuration to paste. `variables` are environment variables that the server needs.
#[must_use]
pub fn build_config(
    assistant: Assistant,
    program: &Path,
    args: &[String],
    variables: &BTreeMap<&str, String>,
) -> Json {
    let mut server = json!({ "command": program.to_string_lossy(), "args": args });
    if !variables.is_empty() {
        server["env"] = json!(variables);
    }
    match assistant {
        Assistant::Claude | Assistant::Cursor => json!({ "mcpServers": { "hqdl": server } }),
        Assistant::Vscode => {
            server["type"] = "stdio".into();
            json!({ "servers": { "hqdl": server } })
        }
    }
}
