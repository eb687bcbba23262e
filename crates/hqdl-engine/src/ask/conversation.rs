//! Earlier questions of a conversation, as the model sees them. The model sees their queries but
//! never their rows, because a new query can select from an earlier one. A stored answer therefore
//! remains valid after the data has changed.

use serde::{Deserialize, Serialize};

use hqdl_values::format::format_count;
use hqdl_values::tokens::Tokenizer;

/// Maximum number of earlier questions in a prompt.
const MAX_TURNS: usize = 8;
/// Additional rule in the prompt if a question follows earlier ones.
pub const CONVERSATION_RULE: &str = "
Conversation:
- `earlier` lists the earlier questions of this conversation with their queries, oldest first. The question may refer to \
them (\"and the taller ones?\") or correct the last one (\"I meant the eyes\"). `sql` is one complete query: repeat the \
conditions that still hold.
- If the text needs no query (thanks, or a question about an earlier query), `sql` is null and `cannot_answer` answers it \
in one sentence.";

/// A question of a conversation that was answered with a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Text of the question.
    pub question: String,
    /// Text of the query.
    pub sql: String,
    /// Number of rows in the query's result.
    pub rows: u64,
    /// Whether the question and its query can be saved as an example: the query was not relaxed,
    /// and it is in `SQLite`'s dialect, which examples require.
    pub can_be_example: bool,
}

/// Formats the newest turns that fit within the token limit, oldest first. Returns `None` if no
/// turn fits.
pub fn format_turns(turns: &[Turn], tokenizer: Tokenizer, max_tokens: u64) -> Option<String> {
    let mut left = max_tokens;
    let mut lines: Vec<String> = Vec::new();
    for turn in turns.iter().rev().take(MAX_TURNS) {
        let rows = format_count(turn.rows, "row");
        let line = format!("{}\n{}\n-- {rows}", turn.question, turn.sql.trim());
        let tokens = tokenizer.max_prompt_tokens(tokenizer.count_tokens(&line)) + 2;
        if tokens > left {
            break;
        }
        left -= tokens;
        lines.push(line);
    }
    lines.reverse();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
