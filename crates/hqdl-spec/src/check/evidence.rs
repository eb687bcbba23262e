//! Checks `[expansion.evidence]`: the documents of an expansion.

use std::path::Path;

use super::{SpecCheck, explain_rejection, join_path};
use crate::evidence::{Documents, EvidenceIndex, EvidenceSettings, SearchSettings, resolve_folder};
use crate::file::{Echo, EvidenceTable, ExpansionTable, Format, SpecFile};
use crate::provider::Provider;
use crate::schema_check::Step;

/// Default maximum number of tokens of the passages that are shown with a row.
const DEFAULT_EVIDENCE_TOKENS: u32 = 1500;
/// Smallest allowed maximum number of passage tokens, enough for one passage of a few sentences.
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
        let documents = match (&table.documents, &table.folder, &table.search) {
            (Some(select), None, None) => {
                self.check_documents(&field_path("documents"), select);
                Some(Documents::Select(select.clone()))
            }
            (None, Some(folder), None) => match resolve_folder(self.folder, folder) {
                Ok(folder) => Some(Documents::Folder(folder)),
                Err(message) => {
                    let help = "name a folder below the spec's own folder";
                    self.add_error(&field_path("folder"), &message, "", help);
                    None
                }
            },
            (None, None, Some(url)) => Some(self.check_search(&evidence_path, table, url)),
            _ => {
                let message =
                    "evidence needs `documents`, `folder` or `search`, and only one of them";
                self.add_error(&evidence_path, message, "", "write evidence = { folder = \"pages\" }, or evidence = { documents = \"SELECT title, body FROM page\" }");
                None
            }
        };
        if table.search.is_none() {
            self.check_search_fields(&evidence_path, table);
        }
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

    /// Checks the settings of a web search and returns them.
    fn check_search(&mut self, path: &[Step], table: &EvidenceTable, url: &str) -> Documents {
        let field_path = |field: &str| join_path(path, &[field.into()]);
        if let Err((message, help)) = check_search_url(url) {
            self.add_error(&field_path("search"), message, "", help);
        }
        if url.contains("{key}") && table.api_key_env.is_none() {
            let message = "`search` has a {key}, but no `api_key_env`";
            let help = "name the environment variable of the key in `api_key_env`";
            self.add_error(&field_path("search"), message, "", help);
        }
        if table.key_header.is_some() && (table.api_key_env.is_none() || url.contains("{key}")) {
            let help = "remove it: the key is in the URL, or there is none";
            self.add_error(&field_path("key_header"), "`key_header` has no effect", "", help);
        }
        let fields = [
            ("results", &table.results, ""),
            ("title", &table.title, "/title"),
            ("text", &table.text, "/text"),
            ("url", &table.url, "/url"),
        ];
        let pointers = fields.map(|(field, pointer, default)| {
            let pointer = pointer.as_deref().unwrap_or(default);
            if !pointer.is_empty() && !pointer.starts_with('/') {
                let message = format!("`{field}` is not a JSON pointer");
                let help = "write it with slashes, such as \"/web/results\" or \"/0/title\"";
                self.add_error(&field_path(field), &message, "", help);
            }
            pointer.to_owned()
        });
        let price = table.price_per_search;
        if !price.is_some_and(|price| price.is_finite() && price >= 0.0) {
            let help = "set `price_per_search`, to 0 if searches are free";
            if price.is_some() {
                let message = "`price_per_search` is not a valid price";
                let label = "expected USD, 0 or more";
                self.add_error(&field_path("price_per_search"), message, label, "");
            } else {
                let message = "`search` needs the price of a search, in USD";
                self.add_error(&field_path("search"), message, "", help);
            }
        }
        Documents::Search(SearchSettings {
            url: url.to_owned(),
            pointers,
            api_key_env: table.api_key_env.clone(),
            key_header: table.key_header.clone(),
            price_usd: price.unwrap_or_default(),
        })
    }

    /// Reports fields that apply only to a search, for evidence without a search.
    fn check_search_fields(&mut self, path: &[Step], table: &EvidenceTable) {
        let fields = [
            ("results", table.results.is_some()),
            ("title", table.title.is_some()),
            ("text", table.text.is_some()),
            ("url", table.url.is_some()),
            ("api_key_env", table.api_key_env.is_some()),
            ("key_header", table.key_header.is_some()),
            ("price_per_search", table.price_per_search.is_some()),
        ];
        for (field, _) in fields.into_iter().filter(|(_, is_set)| *is_set) {
            let message = format!("`{field}` has no effect without `search`");
            let field_path = join_path(path, &[field.into()]);
            self.add_error(&field_path, &message, "", "remove it, or set `search`");
        }
    }

    /// Checks that the SELECT for the documents returns a text, or a name and a text.
    fn check_documents(&mut self, path: &[Step], select: &str) {
        // A single word is probably the name of a file or folder.
        let word = select.trim();
        if !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '(') {
            let message = format!("`documents` is a SELECT, but {select:?} is not one");
            let folder = match word.split_once('*') {
                Some((before, _)) => before.rsplit_once('/').map_or(".", |(folder, _)| folder),
                None if Path::new(word).extension().is_some() => {
                    word.rsplit_once('/').map_or(".", |(folder, _)| folder)
                }
                None => word,
            };
            let help =
                format!("write a SELECT, or `folder = {folder:?}` for the files of a folder");
            self.add_error(path, &message, "", &help);
            return;
        }
        match self.catalog.list_select_columns(select) {
            Ok(columns) if matches!(columns.len(), 1 | 2) => {}
            Ok(columns) => {
                let label = format!("it returns {}: {}", columns.len(), columns.join(", "));
                let message = "the SELECT of the documents returns one column with texts, or two \
                               with names and texts";
                self.add_error(path, message, &label, "");
            }
            Err(_) if self.catalog.is_absent() => {}
            Err(message) => {
                let message = format!(
                    "the database rejects the SELECT of the documents: {}",
                    explain_rejection(&message, select)
                );
                let help = "correct the SELECT until it runs in the database's own shell";
                self.add_error(path, &message, "", help);
            }
        }
    }

    /// Reports settings of the expansion that cannot be combined with evidence.
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

/// Checks the URL of a search. Placeholders must not change the host, and a key must not be sent in
/// plain text over a network.
fn check_search_url(url: &str) -> Result<(), (&'static str, &'static str)> {
    let help = "write a URL such as \"https://api.example.com/search?q={query}\"";
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(("`search` is not a URL", help));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || authority.contains(['{', '}', '@']) {
        return Err(("the host of `search` is not a plain name", help));
    }
    if !rest.contains("{query}") {
        return Err(("`search` has no {query}", help));
    }
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_loopback = host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    match scheme {
        "https" => Ok(()),
        "http" if is_loopback => Ok(()),
        "http" => Err(("`search` would send keys in plain text", "use https://")),
        _ => Err(("`search` is not an HTTP address", help)),
    }
}
