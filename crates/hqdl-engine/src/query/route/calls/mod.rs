//! Maps each call to its target: the spec column that answers it, or a column of an ad-hoc
//! expansion with the type, options and key that the query specifies.

pub(in crate::query) mod binding;
mod chooser;
pub(in crate::query) mod views;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::query::cells::call_target::{CallTarget, ValueConversion};
use crate::query::cells::documents;
use crate::query::cells::targets::{StoredEmbeddings, TargetExpansion};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Route, RouteKind};
use crate::query::route::answer_parsing::{
    build_ad_hoc_column, compile_answer_regex, fill_call_question, format_item_count,
    infer_answer_type, is_ordered_number, is_untyped, merge_usages, required_item_count,
    returns_list,
};
use crate::query::route::call_options::{ValueListProvider, read_options};
use crate::query::route::calls::binding::BoundColumn;
use crate::query::route::calls::chooser::TargetChooser;
use crate::query::route::calls::views::StoredCall;
use crate::query::route::kinds::Kinds;
use crate::query::route::model_router::ModelRouter;
use crate::retrieval::vectors::VectorStore;
use hqdl_facts::QuestionOrigin;
use hqdl_spec::checker::Checker;
use hqdl_spec::ingredients::is_function_model;
use hqdl_spec::media::KINDS;
use hqdl_spec::{Column, Expansion, MediaColumn, MediaFiles, Spec, Task, Type};
use hqdl_sql::blendsql::lexer::{Brackets, Token, TokenKind, read_tokens};
use hqdl_sql::blendsql::parse::ParsedQuery;
use hqdl_sql::blendsql::rewrite::{CallSite, column_values_sql};
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith};
use hqdl_sql::blendsql::{Call, Choices};
use hqdl_values::cell::State;
use hqdl_values::key::{Fingerprint, ListHash};
use hqdl_values::value::Value;

/// Targets of a query's calls.
#[derive(Default)]
pub struct Calls {
    /// Call sites, by call number.
    pub sites: Vec<CallSite>,
    /// Targets, by call number. The targets of other columns that bindings read follow at the end.
    pub call_targets: Vec<CallTarget>,
    /// Bound calls that a published table may answer, by call number.
    pub(in crate::query) stored: HashMap<usize, StoredCall>,
    /// Expansions that the query uses.
    pub expansions: Vec<PlannedExpansion>,
    /// Joins of the query.
    pub joins: Vec<JoinCall>,
    /// Origins of the values in ad-hoc questions.
    pub new_questions: Vec<NewQuestion>,
    /// Routes, by call number.
    pub routes: Vec<Route>,
    /// Name of each call's model in the spec; `None` for the default model.
    pub(in crate::query) models: Vec<Option<String>>,
    /// Positions of the columns of ad-hoc expansions, by expansion and column identity.
    column_positions: HashMap<(usize, CallColumn), usize>,
    /// Expansions of questions about rows, by model, context names and column identity.
    question_targets: HashMap<(Option<String>, Vec<String>, CallColumn), usize>,
    /// Kinds of the columns' values.
    pub(in crate::query) kinds: Kinds,
}

/// Identity of a column: its fingerprint and the hash of its value list.
type CallColumn = (Fingerprint, Option<ListHash>);

fn identify_column(column: &Column) -> CallColumn {
    (column.fingerprint.clone(), column.values.as_ref().map(|v| v.hash.clone()))
}

/// Origin of the values that an ad-hoc question asks about.
#[derive(Debug, Clone)]
pub struct NewQuestion {
    /// Index of the expansion among those that the query uses.
    pub target: usize,
    /// Index of the column in the expansion.
    pub column: usize,
    /// Table and column that the values come from.
    pub origin: QuestionOrigin,
}

/// An expansion that the query uses.
pub struct PlannedExpansion {
    /// Kinds of the values that the expansion asks about.
    pub kinds: Vec<String>,
    /// Position of the expansion in the spec; `None` for an ad-hoc expansion.
    pub in_spec: Option<usize>,
    /// The expansion.
    pub expansion: Expansion,
}

/// A join whose matching values the model chooses.
#[derive(Debug, Clone)]
pub struct JoinCall {
    /// Condition under which two values match.
    pub criterion: String,
    /// Name of the left key column.
    pub left_name: String,
    /// Number of the call.
    pub call_number: usize,
    /// Maximum number of right values that the model sees (`narrow=N`), chosen by similarity to the
    /// left value; `None` for no limit.
    pub narrow: Option<usize>,
    /// Minimum trigram similarity of the pairs that the model is asked about; `None` for all pairs.
    pub min_similarity: Option<f64>,
    /// Name of the model in the spec; `None` for the default model.
    pub model: Option<String>,
}

/// Usages of the calls, derived from their positions in the query.
pub(in crate::query) struct CallUsages<'u> {
    /// Usages over the tables and views that the query reads.
    pub plain: &'u HashMap<usize, CallUsage>,
    /// Usages over the tables behind the views; `None` if the query reads no view.
    pub through: Option<&'u HashMap<usize, CallUsage>>,
    /// Kinds of the columns' values.
    pub kinds: Kinds,
}

impl Calls {
    /// Determines the target of each call.
    ///
    /// # Errors
    /// Returns [`QueryError`] if options cannot be read, or a call is invalid.
    pub fn choose_targets(
        sql: &str,
        parsed: &ParsedQuery,
        usages: &CallUsages<'_>,
        spec: &Spec,
        value_provider: &mut dyn ValueListProvider,
        router: &mut ModelRouter<'_, '_>,
    ) -> Result<Self, QueryError> {
        let calls = Self {
            call_targets: vec![CallTarget::Pair { join: usize::MAX }; parsed.calls.len()],
            models: parsed.calls.iter().map(|call| find_model_name(call, spec)).collect(),
            kinds: usages.kinds.clone(),
            sites: parsed
                .calls
                .iter()
                .map(|c| CallSite { subject: c.ingredient.subject(), ..CallSite::default() })
                .collect(),
            ..Self::default()
        };
        let through = usages.through.map(|through| merge_usages(parsed, through));
        let mut chooser = TargetChooser {
            calls,
            sql,
            parsed,
            spec,
            own_usages: usages.plain,
            usages: &merge_usages(parsed, usages.plain),
            through: through.as_ref(),
            unknown: &CallUsage::default(),
            value_provider,
            router,
        };
        for n in 0..parsed.calls.len() {
            chooser.choose_target(n)?;
        }
        Ok(chooser.calls)
    }

    /// Returns the reason if a column cannot answer a call because they use different models.
    fn explain_model_mismatch(
        &self,
        n: usize,
        call: &Call,
        spec: &Spec,
        bound: &BoundColumn,
    ) -> Option<String> {
        let model = call.model.as_ref().map(|(name, _)| name)?;
        let expansion = &spec.expansions[bound.expansion];
        bound
            .list_required_columns(expansion)
            .any(|column| self.models[n].as_deref() != spec.find_column_model(expansion, column))
            .then(|| format!("its column uses another model than `{model}`"))
    }

    fn add_ad_hoc_route(&mut self, n: usize, call: &Call, text: String, mut why: String) {
        if let Some((model, _)) = &call.model {
            why.push_str("; asked of `");
            why.push_str(model);
            why.push('`');
        }
        let column = match &self.call_targets[n] {
            CallTarget::Cell { target, column, .. }
            | CallTarget::Document { target, column, .. } => {
                self.expansions[*target].expansion.columns.get(*column)
            }
            CallTarget::Rows { target, .. } => self.expansions[*target].expansion.columns.first(),
            CallTarget::Embedding { .. } | CallTarget::Pair { .. } => None,
        };
        if call.options.is_some()
            && column.is_some_and(|c| c.values.is_none() && c.one_of.is_none())
        {
            why.push_str("; its options come from calls that are not answered yet");
        }
        let (expansion, column) = match &self.call_targets[n] {
            CallTarget::Cell { target, .. }
            | CallTarget::Document { target, .. }
            | CallTarget::Rows { target, .. }
            | CallTarget::Embedding { target, .. } => {
                (self.expansions[*target].expansion.name.clone(), call.question.clone())
            }
            CallTarget::Pair { .. } => (String::new(), call.question.clone()),
        };
        let (route, bound) = (RouteKind::AdHoc, None);
        self.routes.push(Route { call: text, route, expansion, column, why, bound });
    }

    /// Sets the target of a call about values to an ad-hoc column.
    fn set_value_target(
        &mut self,
        n: usize,
        sql: &str,
        parsed: &ParsedQuery,
        usage: &CallUsage,
        value_provider: &mut dyn ValueListProvider,
        media_files: &MediaFiles,
    ) -> Result<(), QueryError> {
        let call = &parsed.calls[n];
        let values = read_options(sql, parsed, call, usage, value_provider, false)?;
        let data_type = infer_answer_type(call, usage, values.as_deref());
        check_options(call, data_type, values.as_deref(), parsed)?;
        // The names do not depend on the query, so that the same question about a value always has
        // the same identity.
        let names: Vec<String> = (1..=usage.keys.len())
            .map(|n| match (n, &call.media) {
                (1, Some(kind)) => kind.clone(),
                (1, None) => "value".to_owned(),
                (n, _) => format!("value_{n}"),
            })
            .collect();
        let mut question = fill_call_question(call, &names) + &format_item_count(call);
        let row_list = matches!(call.options, Some(Choices::RowList(_)));
        let list_name = names.last().filter(|_| row_list);
        if let Some(name) = list_name {
            question.push_str(&format!(" Choose from {{{name}}}."));
        }
        let mut column =
            build_ad_hoc_column(&question, data_type, values, returns_list(call), &names);
        if list_name.is_some() {
            "of each row".clone_into(&mut column.identity.list);
            column.fingerprint = column.identity.fingerprint();
            column.one_of = Some(names.len() - 1);
        }
        // Use a text that the answer is compared with as an example of the answer's format.
        column.example = usage.compared_with.iter().find_map(|c| match c {
            ComparedWith::Text(text) if column.values.is_none() && !row_list => Some(text.clone()),
            _ => None,
        });
        column.pattern.clone_from(&call.regex);
        column.part_of = (call.is_substring && call.media.is_none()).then_some(0);
        // A function's result depends on its arguments only, not on the column that they come from.
        if !self.models[n].as_deref().is_some_and(is_function_model) {
            self.kinds.set_column_identity(&mut column, usage);
        }
        let is_untyped = !row_list && is_untyped(call, usage, &column)
            || is_ordered_number(call, usage, &column);
        let kinds = column.identity.kinds.clone();
        let target = self.find_or_add_value_target(self.models[n].clone(), names, kinds);
        if let Some(name) = &call.media {
            let expansion = &mut self.expansions[target].expansion;
            let kind = KINDS.into_iter().find(|kind| kind.name == name);
            expansion.media = vec![MediaColumn { name: name.clone(), kind }];
            expansion.media_files = media_files.clone();
        }
        let at = self.find_or_add_column(target, column);
        self.record_question(target, at, usage);
        let stated_type = call.return_type.or(usage.stated_type);
        let conversion = ValueConversion {
            prefers_integer: stated_type.is_none() && (row_list || data_type == Type::Real),
            is_untyped,
            is_text: row_list && stated_type.is_some_and(|stated| stated.scalar == Type::Text),
            regex: compile_answer_regex(call)?,
            item_count: required_item_count(call),
            yes_no_words: None,
        };
        self.call_targets[n] = CallTarget::Cell { target, column: at, conversion };
        self.wrap_lists(n, call, usage);
        Ok(())
    }

    /// Sets the target of a call about the rows of queries to an ad-hoc column. `infer_options`
    /// states whether the values of a compared column are the options.
    fn set_rows_target(
        &mut self,
        n: usize,
        sql: &str,
        parsed: &ParsedQuery,
        usage: &CallUsage,
        value_provider: &mut dyn ValueListProvider,
        infer_options: bool,
    ) -> Result<(), QueryError> {
        let call = &parsed.calls[n];
        let values = read_options(sql, parsed, call, usage, value_provider, infer_options)?;
        let data_type = infer_answer_type(call, usage, values.as_deref());
        check_options(call, data_type, values.as_deref(), parsed)?;
        let contexts: Vec<String> =
            (1..=call.values.len()).map(|n| format!("context_{n}")).collect();
        let contexts = if contexts.len() == 1 { vec!["context".to_owned()] } else { contexts };
        let question = fill_call_question(call, &contexts) + &format_item_count(call);
        let key = vec!["rows".to_owned()];
        let mut column =
            build_ad_hoc_column(&question, data_type, values, returns_list(call), &key);
        column.pattern.clone_from(&call.regex);
        let is_untyped =
            is_untyped(call, usage, &column) || is_ordered_number(call, usage, &column);
        // Rows differ between questions, so each question about rows has its own expansion.
        let question_key = (self.models[n].clone(), contexts.clone(), identify_column(&column));
        let target = match self.question_targets.get(&question_key) {
            Some(target) => *target,
            None => {
                let target =
                    self.find_or_add_target(self.models[n].clone(), "question", key, contexts);
                self.find_or_add_column(target, column);
                self.question_targets.insert(question_key, target);
                target
            }
        };
        let prefers_integer = call.return_type.is_none() && data_type == Type::Real;
        let conversion = ValueConversion {
            prefers_integer,
            is_untyped,
            is_text: false,
            regex: compile_answer_regex(call)?,
            item_count: required_item_count(call),
            yes_no_words: None,
        };
        self.call_targets[n] = CallTarget::Rows { target, conversion };
        // If the query does not read the table of `t.c`, the argument means all values of that
        // column.
        let column_sql: Option<Vec<String>> = usage
            .keys
            .iter()
            .map(|key| {
                let (table, column) = find_unread_column(key, usage)?;
                Some(column_values_sql(&table, &column))
            })
            .collect();
        self.sites[n].argument_sql = column_sql.filter(|keys| !keys.is_empty());
        self.wrap_lists(n, call, usage);
        Ok(())
    }

    /// Wraps the call so that a list becomes a set after IN, or a row of VALUES.
    pub(in crate::query) fn wrap_lists(&mut self, n: usize, call: &Call, usage: &CallUsage) {
        let site = &mut self.sites[n];
        if call.is_values_row {
            if returns_list(call) {
                site.row_width = Some(call.values_column_count());
            } else {
                "(".clone_into(&mut site.sql_before);
                ")".clone_into(&mut site.sql_after);
            }
            return;
        }
        if usage.is_in_list {
            if returns_list(call) {
                "(SELECT value FROM json_each(".clone_into(&mut site.sql_before);
                "))".clone_into(&mut site.sql_after);
            } else {
                "(".clone_into(&mut site.sql_before);
                ")".clone_into(&mut site.sql_after);
            }
        }
    }

    /// Returns the position of the expansion for values of these kinds, creating it if necessary.
    pub(in crate::query) fn find_or_add_value_target(
        &mut self,
        model: Option<String>,
        key: Vec<String>,
        kinds: Vec<String>,
    ) -> usize {
        let is_same = |e: &PlannedExpansion| {
            e.in_spec.is_none()
                && e.expansion.name == "values"
                && e.expansion.model == model
                && e.expansion.key.names() == key
                && e.kinds == kinds
        };
        if let Some(at) = self.expansions.iter().position(is_same) {
            return at;
        }
        let expansion =
            Expansion { model, task: Task::Value, ..Expansion::new_ad_hoc("values", key) };
        self.expansions.push(PlannedExpansion { kinds, in_spec: None, expansion });
        self.expansions.len() - 1
    }

    /// Returns the position of the ad-hoc expansion with this model, name, key and context,
    /// creating it if necessary.
    pub(in crate::query) fn find_or_add_target(
        &mut self,
        model: Option<String>,
        name: &str,
        key: Vec<String>,
        context: Vec<String>,
    ) -> usize {
        let same = |e: &PlannedExpansion| {
            e.in_spec.is_none()
                && e.expansion.model == model
                && e.expansion.name == name
                && e.expansion.key.names() == key
                && e.expansion.context == context
        };
        if name != "question"
            && let Some(at) = self.expansions.iter().position(same)
        {
            return at;
        }
        let task = match name {
            documents::DOCUMENTS_EXPANSION => Task::Text,
            "question" => Task::Rows,
            _ => Task::Columns,
        };
        let expansion = Expansion { model, context, task, ..Expansion::new_ad_hoc(name, key) };
        self.expansions.push(PlannedExpansion { kinds: Vec::new(), in_spec: None, expansion });
        self.expansions.len() - 1
    }

    /// Returns the position of the expansion whose cells are embeddings of a model, creating it if
    /// necessary.
    pub(in crate::query) fn find_or_add_embedding_target(&mut self, model: &str) -> usize {
        let names = ["text".to_owned()];
        let target =
            self.find_or_add_target(None, EMBEDDINGS_EXPANSION, names.to_vec(), Vec::new());
        let question = format!("embedding of `{model}`");
        self.find_or_add_column(
            target,
            build_ad_hoc_column(&question, Type::Text, None, false, &names),
        );
        target
    }

    /// Returns the position of the ad-hoc column with this question, creating it if necessary.
    pub(in crate::query) fn find_or_add_column(
        &mut self,
        target: usize,
        mut column: Column,
    ) -> usize {
        let columns = &mut self.expansions[target].expansion.columns;
        match self.column_positions.entry((target, identify_column(&column))) {
            Entry::Occupied(known) => {
                // Calls that differ only in the pattern share an answer, and each call checks its
                // own pattern.
                let same = columns.get_mut(*known.get()).filter(|c| c.pattern != column.pattern);
                same.into_iter().for_each(|column| column.pattern = None);
                let other = columns.get_mut(*known.get()).filter(|c| c.origin != column.origin);
                other.into_iter().for_each(|column| column.origin = None);
                *known.get()
            }
            Entry::Vacant(new) => {
                if !columns.is_empty() {
                    column.name = format!("answer_{}", columns.len() + 1);
                }
                columns.push(column);
                *new.insert(columns.len() - 1)
            }
        }
    }

    /// Returns the expansions with their identities in the fact store.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the journal, the database or the embeddings file cannot be read.
    pub fn build_targets(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Vec<TargetExpansion>, QueryError> {
        let spec = request.spec;
        let max_spec_rows = spec.expansions.iter().map(|e| e.rows_per_request).max();
        let rows = request.rows_per_request.or(max_spec_rows);
        let history = request.facts.history();
        let mut targets = Vec::new();
        for planned in &mut self.expansions {
            if planned.in_spec.is_none()
                && let Some(rows) = rows
            {
                planned.expansion.rows_per_request = rows;
            }
            if planned.expansion.name == "question" {
                planned.expansion.rows_per_request = 1;
            }
            if planned.in_spec.is_none() {
                let settings = spec.model_settings(planned.expansion.model.as_deref()).clone();
                planned.expansion.apply_model_defaults(&settings);
            }
            let mut requirements = request
                .choose_models(&planned.expansion)
                .build_requirements(history, &planned.expansion)?;
            if let Some(refresh) = request.refresh {
                refresh.mark_values_missing(&mut requirements, planned.expansion.columns.len());
            }
            let mut target = TargetExpansion::new(
                Arc::new(planned.expansion.clone()),
                Arc::new(requirements),
                planned.in_spec,
            );
            target.load_contexts(request.database)?;
            targets.push(match &spec.embeddings {
                Some(settings) if planned.has_embeddings() => {
                    let model = settings.model.name.clone();
                    let vectors = VectorStore::open(request.facts.dir());
                    let vectors = vectors.map_err(|e| QueryError::from_vector_file_error(&e))?;
                    target.with_embeddings(StoredEmbeddings { vectors, model })
                }
                _ => target,
            });
        }
        Ok(targets)
    }
}

/// Name of the ad-hoc expansion whose cells are embeddings.
const EMBEDDINGS_EXPANSION: &str = "embeddings";

impl PlannedExpansion {
    /// Returns true if the cells are embeddings.
    fn has_embeddings(&self) -> bool {
        self.in_spec.is_none() && self.expansion.name == EMBEDDINGS_EXPANSION
    }
}

/// Returns the reason if a column cannot answer a call because the column's prompt does not show
/// the call's medium.
fn explain_media_mismatch(call: &Call, expansion: &Expansion) -> Option<String> {
    let name = call.media.as_ref()?;
    let key = expansion.key.names().first().and_then(|key| expansion.find_media_column(key));
    let is_shown =
        key.is_some_and(|key| key.kind.is_none_or(|kind| name == "media" || kind.name == name));
    (!is_shown).then(|| format!("its column is about the value, not the {name}"))
}

/// Returns the spec's name for the model of a call, or `None` for the default model.
fn find_model_name(call: &Call, spec: &Spec) -> Option<String> {
    let (name, _) = call.model.as_ref()?;
    spec.resolve_model(name).flatten().map(str::to_owned)
}

/// Checks that at least one option of a call can be read as its return type.
fn check_options(
    call: &Call,
    data_type: Type,
    values: Option<&[Value]>,
    parsed: &ParsedQuery,
) -> Result<(), QueryError> {
    let Some(values) = values.filter(|_| call.options.is_some()) else { return Ok(()) };
    // An empty list is not an error if another call may return the options.
    let is_literal_list = matches!(call.options, Some(Choices::List(_))) || parsed.calls.len() == 1;
    if values.is_empty() && is_literal_list {
        return Err(QueryError::in_sql(
            "the list of options is empty",
            Some(call.span.clone()),
            "no option to choose from",
            "pass a list or a query with at least one value",
        ));
    }
    let checker = Checker::new(&build_ad_hoc_column("", data_type, None, false, &[]));
    let is_valid =
        |value: &Value| value.to_text().is_some_and(|t| checker.check_text(&t).state == State::Ok);
    // Accept a list in which only some options parse: an option that does not parse may be a
    // placeholder (`-`) or a mistake in the data.
    let no_option_parses = data_type != Type::Text && !values.iter().any(is_valid);
    match values.iter().find(|value| **value != Value::Null) {
        Some(value) if no_option_parses && call.return_type.is_some() => Err(QueryError::in_sql(
            format!("the option '{value}' is not a value of the type {}", data_type.name()),
            Some(call.span.clone()),
            "the return type and the options of this call contradict each other",
            "remove one of them",
        )),
        _ => Ok(()),
    }
}

/// Rejects a question about rows for which `SQLite` would choose an arbitrary row of each group.
fn check_group(call: &Call, usage: &CallUsage) -> Result<(), QueryError> {
    let Some(column) = usage.ambiguous_column.as_ref().filter(|_| call.ingredient.needs_all_rows())
    else {
        return Ok(());
    };
    let name = call.ingredient.name();
    Err(QueryError::in_sql(
        format!("{name} would get one arbitrary `{column}` per group, not all of them"),
        Some(call.span.clone()),
        format!("`{column}` has several values in a group"),
        format!(
            "write {{{{LLMReduce('…', {column})}}}}, pass all values of the group \
             (`json_group_array({column})`), or add `{column}` to GROUP BY"
        ),
    ))
}

/// Returns the table and the column that a context names, if the query does not read this table.
fn find_unread_column(
    key: &hqdl_sql::blendsql::usage::Key,
    usage: &CallUsage,
) -> Option<(String, String)> {
    if key.origin.is_some() {
        return None;
    }
    let names: Vec<Token> = read_tokens(&key.text, Brackets::Name).collect();
    let [table, dot, column] = names.as_slice() else { return None };
    let is_name =
        |t: &Token| matches!(t.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name);
    let (table, column) = (is_name(table) && dot.is_symbol(b'.') && is_name(column))
        .then(|| (table.unquoted_text(&key.text), column.unquoted_text(&key.text)))?;
    let read = usage.tables.iter().any(|name| name.eq_ignore_ascii_case(&table));
    (!read).then_some((table, column))
}
