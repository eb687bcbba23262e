//! Problems in a spec or query written by a user. Each has a message, a location and the expected
//! content. All problems of a spec are collected before any is reported.

use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The spec cannot be used until the problem is fixed.
    Error,
    /// The spec works, but the user should check it.
    Warning,
    /// Nothing is wrong.
    Note,
}

/// A problem in a spec or query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How serious the problem is.
    pub severity: Severity,
    /// Message that names the item in question.
    pub message: String,
    /// Byte range in the spec's text; `None` if the problem concerns the whole file.
    pub span: Option<Range<usize>>,
    /// Expected content, shown beside the caret.
    pub label: String,
    /// How the user can fix the problem.
    pub help: Option<String>,
}

/// All problems of one spec, with its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} has {}", path.display(), crate::format::format_count(problems.len() as u64, "problem"))]
pub struct Problems {
    /// Path of the spec as given by the user.
    pub path: PathBuf,
    /// Text of the spec.
    pub text: String,
    /// Problems, in the order of the text.
    pub problems: Vec<Problem>,
}

impl Problems {
    /// Formats all problems with file, line, column and caret.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let path = self.path.display().to_string();
        let blocks: Vec<String> = self
            .problems
            .iter()
            .map(|p| render_problem(&renderer, Some(&path), &self.text, p))
            .collect();
        blocks.join("\n\n")
    }

    /// Returns the line and column of a problem (both from 1); `None` if the problem concerns the
    /// whole file.
    #[must_use]
    pub fn find_line_column(&self, problem: &Problem) -> Option<(usize, usize)> {
        let start = problem.span.as_ref()?.start.min(self.text.len());
        let before = self.text.get(..start)?;
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Some((line, column))
    }

    /// Converts the problems to JSON, for `--json`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        self.problems
            .iter()
            .map(|p| {
                let (line, column) = self.find_line_column(p).unzip();
                serde_json::json!({
                    "severity": match p.severity {
                        Severity::Error => "error",
                        Severity::Warning => "warning",
                        Severity::Note => "note",
                    },
                    "message": p.message,
                    "file": self.path.display().to_string(),
                    "line": line,
                    "column": column,
                    "expected": p.label,
                    "help": p.help,
                })
            })
            .collect()
    }
}

/// Formats one problem with its caret. `path` is `None` if the text does not come from a file.
#[must_use]
pub fn render_problem(
    renderer: &Renderer,
    path: Option<&str>,
    text: &str,
    problem: &Problem,
) -> String {
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let title = level.primary_title(problem.message.as_str());
    let group: Group<'_> = match &problem.span {
        Some(span) => {
            let end = span.end.min(text.len());
            // Mark only the first line of the span.
            let end = text
                .get(span.start..end)
                .and_then(|s| s.find('\n'))
                .map_or(end, |line| span.start + line);
            let annotation = AnnotationKind::Primary.span(span.start.min(end)..end);
            title.element(
                Snippet::source(text)
                    .path(path)
                    .fold(true)
                    .annotation(annotation.label(problem.label.as_str())),
            )
        }
        None => title.element(annotate_snippets::Origin::path(path.unwrap_or_default())),
    };
    let group = match &problem.help {
        Some(help) => group.element(Level::HELP.message(help.as_str())),
        None => group,
    };
    renderer.render(&[group])
}

/// Returns the name in `known` that is most similar to `wrong`; `None` if none is similar enough.
#[must_use]
pub fn find_nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    let length = lower.chars().count();
    known
        .into_iter()
        .map(|name| (1 + name.len().min(wrong.len()) / 4, name.to_lowercase(), name))
        // The edit distance is at least the difference in length. Compare lengths first, because a
        // wrong name may be very long and computing the exact distance needs memory.
        .filter(|(max_distance, name, _)| name.chars().count().abs_diff(length) <= *max_distance)
        .map(|(max_distance, known, name)| {
            (max_distance, strsim::damerau_levenshtein(&lower, &known), name)
        })
        // If half of a short name differs, it is probably a different name altogether.
        .filter(|(max_distance, distance, _)| {
            distance <= max_distance
                && *distance < length
                && (*distance < 2 || distance * 2 < length)
        })
        .min_by_key(|(_, distance, _)| *distance)
        .map(|(_, _, name)| name)
}
