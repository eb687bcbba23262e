//! Checks `[expansion.evidence]`: the documents of an expansion.

use super::{SpecCheck, join_path};
use crate::evidence::{Documents, EvidenceIndex, EvidenceSettings, resolve_folder};
use crate::file::{Echo, ExpansionTable, Format, SpecFile};
use crate::provider::Provider;
use crate::schema_check::Step;

/// Default number of tokens of the passages that are shown with a row.
const DEFAULT_EVIDENCE_TOKENS: u32 = 1500;
/// Minimum number of tokens of the passages: one passage of a few sentences.
const MIN_EVIDENCE_TOKENS: u32 = 100;

impl SpecCheck<'_> {
    pub(super) fn check_evidence(
        &mut self,
        path: &[Step],
        e: &ExpansionTable,
        file: &SpecFile,
    ) -> Option<EvidenceSettings> {
        let table = e.evidence.as_ref()?;
        let evidence_path = join_path(path, &["evidence".into()]);
        let field_path = |field: &str| join_path(&evidence_path, &[field.into()]);
        let documents = match (&table.documents, &table.folder) {
            (Some(select), None) => {
                self.check_documents(&field_path("documents"), select);
                Some(Documents::Select(select.clone()))
            }
            (None, Some(folder)) => match resolve_folder(self.folder, folder) {
                Ok(folder) => Some(Documents::Folder(folder)),
                Err(message) => {
                    let help = "expected the path of a folder below the spec's own folder";
                    self.add_error(&field_path("folder"), &message, "", help);
                    None
                }
            },
            _ => {
                let message = "evidence needs `documents` or `folder`, and only one of them";
                self.add_error(&evidence_path, message, "", "write evidence = { folder = \"pages\" }, or evidence = { documents = \"SELECT title, body FROM page\" }");
                None
            }
        };
        if table.evidence_tokens.is_some_and(|tokens| tokens < MIN_EVIDENCE_TOKENS) {
            self.add_error(
                &field_path("evidence_tokens"),
                "`evidence_tokens` is too small for a passage",
                &format!("expected at least {MIN_EVIDENCE_TOKENS}"),
                "",
            );
        }
        self.check_evidence_conflicts(path, &evidence_path, e, file);
        Some(EvidenceSettings {
            documents: documents?,
            max_tokens: table.evidence_tokens.unwrap_or(DEFAULT_EVIDENCE_TOKENS).into(),
            require: table.require,
            index: EvidenceIndex::default(),
        })
    }

    /// Checks the SELECT of the documents: a text, or a name and a text.
    fn check_documents(&mut self, path: &[Step], select: &str) {
        match self.catalog.prepare_select(select) {
            Ok(columns) if matches!(columns.len(), 1 | 2) => {}
            Ok(columns) => {
                let label = format!("it returns {}: {}", columns.len(), columns.join(", "));
                let message = "the SELECT of the documents returns one column with texts, or two \
                               with names and texts";
                self.add_error(path, message, &label, "");
            }
            Err(_) if self.catalog.is_absent() => {}
            Err(message) => {
                let help = "correct the SELECT until it runs in the database's own shell";
                self.add_error(path, &message, "", help);
            }
        }
    }

    /// Reports fields that evidence does not allow.
    fn check_evidence_conflicts(
        &mut self,
        path: &[Step],
        evidence_path: &[Step],
        e: &ExpansionTable,
        file: &SpecFile,
    ) {
        let help = "remove it: answers with evidence have their own format";
        if e.rows_per_request.is_some_and(|rows| rows > 1) {
            let message = "hqdl sends rows with evidence one per request";
            let rows_path = join_path(path, &["rows_per_request".into()]);
            self.add_error(&rows_path, message, "more than one", "remove `rows_per_request`");
        }
        if e.format == Some(Format::Csv) {
            let message = "an answer with quotations is JSON";
            self.add_error(&join_path(path, &["format".into()]), message, "", help);
        }
        if e.echo.or(file.model.echo) == Some(Echo::Full) {
            let message = "an answer with quotations repeats no key, but `echo` is \"full\"";
            self.add_error(evidence_path, message, "", "set `echo = \"short\"` in the expansion");
        }
        let other = e.model.as_ref().and_then(|name| file.model.others.get(name));
        let provider = other
            .map_or(file.model.provider, |other| other.provider.unwrap_or(file.model.provider));
        if provider == Provider::Replay {
            let message = "recordings have no answers with quotations";
            self.add_error(evidence_path, message, "", "remove [expansion.evidence]");
        }
    }
}
