//! The configuration that starts the server from an assistant.

use std::path::Path;

use serde_json::{Value as Json, json};

/// An assistant with its own form of configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Assistant {
    /// Claude Desktop and Claude Code.
    Claude,
    /// Cursor.
    Cursor,
    /// VS Code.
    Vscode,
}

/// Returns the configuration to paste.
#[must_use]
pub fn format_config(assistant: Assistant, program: &Path, args: &[String]) -> Json {
    let command = program.to_string_lossy();
    match assistant {
        Assistant::Claude | Assistant::Cursor => {
            json!({ "mcpServers": { "hqdl": { "command": command, "args": args } } })
        }
        Assistant::Vscode => {
            json!({ "servers": { "hqdl": { "type": "stdio", "command": command, "args": args } } })
        }
    }
}
