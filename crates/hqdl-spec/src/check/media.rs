//! Checks the columns of expansions that contain images and recordings.

use super::{SpecCheck, format_suggestion, join_path};
use crate::file::ExpansionTable;
use crate::media::{KINDS, MediaColumn};
use crate::schema_check::Step;
use crate::{Column, Spec};

impl SpecCheck<'_> {
    /// Checks the fields that declare media. Returns the key and context columns that contain media.
    pub(super) fn check_media(&mut self, path: &[Step], e: &ExpansionTable) -> Vec<MediaColumn> {
        let mut columns: Vec<MediaColumn> = Vec::new();
        for (field, names) in e.media_fields() {
            let kind = KINDS.into_iter().find(|kind| kind.plural == field);
            for (n, name) in names.iter().enumerate() {
                let name_path = join_path(path, &[field.into(), n.into()]);
                let mut known = e.key.iter().chain(&e.context);
                if !known.any(|k| k.eq_ignore_ascii_case(name)) {
                    let help =
                        format_suggestion(name, e.key.iter().chain(&e.context).map(String::as_str));
                    let help = if help.is_empty() || !help.starts_with("did") {
                        format!("if the source has this column, add `{name}` to `context`")
                    } else {
                        help
                    };
                    let message = format!("`{name}` is not a column of `key` or `context`");
                    self.add_error(&name_path, &message, "", &help);
                } else if columns.iter().any(|column| column.name.eq_ignore_ascii_case(name)) {
                    let message = format!("`{name}` is listed twice");
                    let help = "if the column contains files of several kinds, list it in `media`";
                    self.add_error(&name_path, &message, "", help);
                }
                columns.push(MediaColumn { name: name.clone(), kind });
            }
        }
        if !columns.is_empty() && e.rows_per_request.is_some_and(|rows| rows > 1) {
            let kind = columns.iter().find_map(|column| column.kind);
            let plural = kind.map_or("media", |kind| kind.plural);
            self.add_error(
                &join_path(path, &["rows_per_request".into()]),
                &format!("hqdl sends rows with {plural} one per request"),
                "more than one",
                "remove `rows_per_request`",
            );
        }
        columns
    }

    /// Checks that the APIs of an expansion's models accept its media, so that a run does not fail
    /// at its first request.
    pub(crate) fn check_media_providers(&mut self, spec: &Spec) {
        for (n, expansion) in spec.expansions.iter().enumerate() {
            let provider_of = |column: &Column| {
                spec.model_settings(spec.find_column_model(expansion, column)).provider
            };
            let refused =
                expansion.media.iter().filter_map(|column| column.kind).find_map(|kind| {
                    let mut providers = expansion.columns.iter().map(provider_of);
                    Some((kind, providers.find(|provider| !kind.providers.contains(provider))?))
                });
            let Some((kind, provider)) = refused else { continue };
            let path = [Step::from("expansion"), n.into(), kind.plural.into()];
            let message = format!("provider `{}` accepts no {}", provider.name(), kind.plural);
            let help = format!(
                "use a model of another provider: add [model.NAME], and `model = \"NAME\"` to the expansion; {} work",
                kind.providers
                    .iter()
                    .map(|p| format!("`{}`", p.name()))
                    .collect::<Vec<_>>()
                    .join(" and ")
            );
            self.add_error(&path, &message, "", &help);
        }
    }

    /// Checks that the price of recordings is known for each expansion that sends them.
    pub(crate) fn check_audio_prices(&mut self, spec: &Spec) {
        for (n, expansion) in spec.expansions.iter().enumerate() {
            let mut kinds = expansion.media.iter().filter_map(|column| column.kind);
            let Some(kind) = kinds.find(|kind| kind.is_billed_as_audio) else { continue };
            let settings_of =
                |column: &Column| spec.model_settings(spec.find_column_model(expansion, column));
            let mut models = expansion.columns.iter().map(settings_of);
            let Some(model) = models.find(|model| model.lacks_audio_price()) else { continue };
            let path = [Step::from("expansion"), n.into(), kind.plural.into()];
            let message = format!("the price of `{}` has no rate for recordings", model.name);
            self.add_error(&path, &message, "", SET_AUDIO_INPUT);
        }
    }
}

/// Advice for a price without a rate for recordings.
const SET_AUDIO_INPUT: &str = "set `audio_input` in the model's `price` in the spec (--price has no such rate); many models bill recordings at more than `input`";

#[cfg(test)]
mod tests {
    use super::{ExpansionTable, KINDS};
    use hqdl_sql::blendsql::ingredients::MEDIA_KINDS;

    #[test]
    fn every_kind_has_a_field_and_a_keyword() {
        let table = serde_json::json!({ "name": "e", "source": "t", "key": ["k"] });
        let table: ExpansionTable = serde_json::from_value(table).expect("a table");
        let fields = table.media_fields().map(|(field, _)| field);
        assert_eq!(fields.split_last(), Some((&"media", &KINDS.map(|kind| kind.plural)[..])));
        assert_eq!(MEDIA_KINDS, KINDS.map(|kind| kind.name));
    }
}
