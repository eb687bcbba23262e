//! What is wrong with a text that was written by hand (a spec, a query): a
//! message, a place, what was expected. All problems of a spec are collected
//! before any is shown.

use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing runs until it is mended.
    Error,
    /// Worth a look; the spec works.
    Warning,
}

/// One thing that is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, naming the thing.
    pub message: String,
    /// Where, as bytes of the spec's text; `None` for the whole file.
    pub span: Option<Range<usize>>,
    /// What was expected, beside the caret.
    pub label: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// All that is wrong with one spec, with the text to show it in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} has {} problem(s)", path.display(), problems.len())]
pub struct Problems {
    /// The spec's path as it was given.
    pub path: PathBuf,
    /// The spec's text.
    pub text: String,
    /// The problems, in the order of the text.
    pub problems: Vec<Problem>,
}

impl Problems {
    /// The problems with file, line, column and caret, one after another.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let path = self.path.display().to_string();
        let blocks: Vec<String> =
            self.problems.iter().map(|p| render(&renderer, Some(&path), &self.text, p)).collect();
        blocks.join("\n\n")
    }

    /// Line and column (both from 1) of a problem, `None` for the whole file.
    #[must_use]
    pub fn place(&self, problem: &Problem) -> Option<(usize, usize)> {
        let start = problem.span.as_ref()?.start.min(self.text.len());
        let before = self.text.get(..start)?;
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Some((line, column))
    }

    /// As JSON, for `--json`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        self.problems
            .iter()
            .map(|p| {
                let (line, column) = self.place(p).unzip();
                serde_json::json!({
                    "severity": match p.severity { Severity::Error => "error", Severity::Warning => "warning" },
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

/// One problem with its caret; a text that is no file has no `path`.
#[must_use]
pub fn render(renderer: &Renderer, path: Option<&str>, text: &str, problem: &Problem) -> String {
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(problem.message.as_str());
    let group: Group<'_> = match &problem.span {
        Some(span) => {
            let end = span.end.min(text.len());
            // A caret under the first line of what is meant says enough.
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

/// The name among `known` that `wrong` was probably meant to be.
#[must_use]
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    let length = lower.chars().count();
    known
        .into_iter()
        .map(|name| (1 + name.len().min(wrong.len()) / 4, name.to_lowercase(), name))
        // At least as far apart as they differ in length; a wrong name may be
        // very long, and the exact distance takes space.
        .filter(|(far, name, _)| name.chars().count().abs_diff(length) <= *far)
        .map(|(far, known, name)| (far, strsim::damerau_levenshtein(&lower, &known), name))
        // Half of a short name is another name.
        .filter(|(far, distance, _)| {
            distance <= far && *distance < length && (*distance < 2 || distance * 2 < length)
        })
        .min_by_key(|(_, distance, _)| *distance)
        .map(|(_, _, name)| name)
}
