//! Macros: ingredients that hqdl rewrites as other ingredients or as plain SQL. A spec can define
//! macros (`[[ingredient]]`); the others, such as `LLMRank` and the older ingredients of
//! `BlendSQL`, are built in. The parser finds the calls. This module expands each call into edits,
//! which can move or copy the call's arguments.
//!
//! | written | read as |
//! |---|---|
//! | `{{IsRipe(t.c)}}`, defined by a spec | `{{LLMMap('…', t.c, …)}}`, or `LLMQA` |
//! | `{{LLMQAList(…)}}`, `{{LLMMapInt(…)}}` and similar | `return_type=` |
//! | `{{LLM('…')}}` | `{{LLMQA('…', return_type='str')}}` |
//! | `{{MultiLabelMap(…)}}` | `{{LLMMap(…, return_type='list[str]')}}` |
//! | `{{ImageCaption(t.photo)}}`, `{{VQA('…', t.photo)}}` | `{{LLMMap('…', t.photo, image=true)}}` |
//! | `{{Transcribe(t.clip)}}` | `{{LLMMap('…', t.clip, audio=true)}}` |
//! | `{{TableSummary('t')}}` | `{{LLMQA('…', (SELECT * FROM t), return_type='str')}}` |
//! | `{{LLMAgg('q', t.c)}}` | `{{LLMReduce('q', hq_texts(t.c))}}` |
//! | `{{LLMClassify(t.c, ['a', 'b'])}}` | `{{LLMMap('Which label fits {}?', t.c, options=('a', 'b'))}}` |
//! | `{{LLMExtract('q', t.c, '{"a": "int"}')}}` | `json_object('a', {{LLMMap('q: a', t.c, return_type='int')}})` |
//! | `{{LLMRank('q', t.c)}}` | `{{LLMMap('q (a number …)', t.c, return_type='float')}}` |
//! | `{{LLMTopK('q', t.c, 3)}}` | `hq_best(t.c, {{LLMRank('q', t.c)}}, 3)` |
//! | `nearest(t.c, u.d, 3)` | `(SELECT hq_nearest(…, similarity(t.c, …), 3) FROM …)` |
//! | `search(u.d, t.c, 3)` | `(SELECT hq_search(…, t.c, 3, 'words', NULL) FROM …)` |
//! | `{{LLMDedup(t.c)}}` | `hq_canonical(…, t.c, (SELECT hq_clusters(x, y, {{LLMMap(…)}}) FROM …))` |
//! | `{{RAGQA('q', d.text)}}`, `DocumentSearch` | `answer(`all texts of `d`, `'q')` |
//! | `{{DT(t.d, start='…', end='…')}}` | `(date(t.d) >= '…' AND date(t.d) <= '…')` |
//! | `AI_FILTER(PROMPT('…', t.c))` and similar, in another dialect | an ingredient, see `vendor_calls` |

use crate::query::read::arguments::{ArgumentNames, BuiltInMacro, MacroNode};
use crate::query::read::{dates, dedup, extract, labels, nearest, rank};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_spec::ingredients::{AskedOf, FunctionIngredient, FunctionKind, IngredientTable};
use hqdl_sql::blendsql::ingredients::{
    self, EmbedFunction, Ingredient, MEDIA_KINDS, SimilarityFunction,
};
use hqdl_sql::blendsql::macros::{MacroSuffix, WrittenArgument};
use hqdl_sql::blendsql::normalize::SourceQuery;
use hqdl_sql::blendsql::scope::{Resolver, Schema, Scope};
use hqdl_sql::blendsql::tree::{Body, Expr, ExprKind, Query};
use hqdl_sql::blendsql::{MacroSignature, NEAREST, ReturnType, SEARCH, Subject};
use hqdl_sql::{EditText, Edits};
use hqdl_values::format::format_name_list;
use hqdl_values::problem::find_nearest;
use hqdl_values::sql;

/// Functions that are called without braces.
const FUNCTIONS: [&str; 6] = ["answer", "summary", "embed", "similarity", NEAREST, SEARCH];

/// Default question of `TableSummary`.
const SUMMARY: &str = "Summarize what these rows say, in a few sentences.";

/// Default question of `ImageCaption`.
const CAPTION: &str = "Describe what the image shows, in one sentence.";

/// Default question of `Transcribe`.
const TRANSCRIPT: &str = "Write down what is said, word for word.";

/// An ingredient that is rewritten to other ingredients or to plain SQL.
#[derive(Clone, Copy)]
enum Macro<'s> {
    /// Defined by the spec.
    Own(&'s IngredientTable),
    /// Another ingredient, given by its name, with a fixed return type.
    Typed(&'static str, &'static str),
    /// Describes a medium: the default question, and the keyword of its kind.
    Describe(&'static str, &'static str),
    Image,
    Summary,
    Reduce,
    Documents,
    BuiltIn(&'static BuiltInMacro),
    /// Not supported: the reason, and the alternative.
    Refused(&'static str, &'static str),
}

/// Macros that every query can use, by name. Prompts for writing queries list them in this order. Two
/// names of one macro are neighbours.
const KNOWN: [(&str, Macro<'static>); 32] = [
    ("LLM", Macro::Typed("LLMQA", "str")),
    ("LLMQAStr", Macro::Typed("LLMQA", "str")),
    ("LLMQABool", Macro::Typed("LLMQA", "bool")),
    ("LLMQAInt", Macro::Typed("LLMQA", "int")),
    ("LLMQAFloat", Macro::Typed("LLMQA", "float")),
    ("LLMQADate", Macro::Typed("LLMQA", "date")),
    ("LLMQAList", Macro::Typed("LLMQA", "list[str]")),
    ("LLMMapStr", Macro::Typed("LLMMap", "str")),
    ("LLMMapBool", Macro::Typed("LLMMap", "bool")),
    ("LLMMapInt", Macro::Typed("LLMMap", "int")),
    ("LLMMapFloat", Macro::Typed("LLMMap", "float")),
    ("LLMMapDate", Macro::Typed("LLMMap", "date")),
    ("LLMMapList", Macro::Typed("LLMMap", "list[str]")),
    ("MultiLabelMap", Macro::Typed("LLMMap", "list[str]")),
    ("TableSummary", Macro::Summary),
    ("LLMReduce", Macro::Reduce),
    ("LLMAgg", Macro::Reduce),
    ("LLMClassify", Macro::BuiltIn(&labels::CLASSIFY)),
    ("LLMExtract", Macro::BuiltIn(&extract::EXTRACT)),
    ("LLMRank", Macro::BuiltIn(&rank::RANK)),
    ("LLMTopK", Macro::BuiltIn(&rank::TOP_K)),
    ("LLMDedup", Macro::BuiltIn(&dedup::DEDUP)),
    ("LLMCluster", Macro::BuiltIn(&dedup::DEDUP)),
    ("RAGQA", Macro::Documents),
    ("DocumentSearch", Macro::Documents),
    ("DT", Macro::BuiltIn(&dates::DATES)),
    ("WebSearch", WEB),
    ("BingWebSearch", WEB),
    ("TavilySearch", WEB),
    ("ImageCaption", Macro::Describe(CAPTION, "image")),
    ("Transcribe", Macro::Describe(TRANSCRIPT, "audio")),
    ("VQA", Macro::Image),
];

const WEB: Macro<'static> = Macro::Refused(
    "hqdl does not search the web",
    "pass the search results yourself: {{LLMQA('…', context=(SELECT …))}}, or {{RAGQA('…', documents.text)}}",
);

/// Returns the signature of a macro that is written in braces.
pub(in crate::query) fn find_signature<'s>(
    own: &'s [IngredientTable],
    name: &str,
) -> Option<MacroSignature<'s>> {
    find_macro(own, name).map(Macro::signature)
}

/// Returns the edits that expand the macros of a query.
///
/// # Errors
/// Returns [`QueryError::Sql`] if a macro has invalid arguments or is not supported. The error is
/// about the first such macro in the text.
pub(in crate::query) fn expand_macros(
    request: &Request<'_>,
    schema: &dyn Schema,
    source: &SourceQuery,
) -> Result<Edits, QueryError> {
    let mut edits = Edits::default();
    let calls = &source.parsed.calls;
    if calls.iter().all(|call| call.macro_call.is_none()) {
        return Ok(edits);
    }
    let mut failed: Option<(usize, QueryError)> = None;
    let resolver = Resolver { schema, cte_calls: &[] };
    for query in source.parsed.options.iter().chain([&source.parsed.query]) {
        let columns = find_result_columns(query);
        resolver.visit_exprs(query, &Scope::new(None), &mut |expr, scope, _| {
            let ExprKind::Call(n, _) = expr.kind else { return };
            let Some(written) = &calls[n].macro_call else { return };
            let is_result_column = columns.contains(&n);
            let (text, call) = (source.text.as_str(), &calls[n]);
            let is_option_list = calls.iter().any(|outer| outer.has_row_list(text, &call.span));
            let node = MacroNode { text, call, written, scope, is_result_column, is_option_list };
            match node.expand_macro(request) {
                Ok(found) => edits.extend(found),
                Err(error) if failed.as_ref().is_none_or(|(at, _)| call.span.start < *at) => {
                    failed = Some((call.span.start, add_example(error, node.name())));
                }
                Err(_) => {}
            }
        });
    }
    failed.map_or(Ok(edits), |(_, error)| Err(error))
}

/// Returns the calls that are result columns of a SELECT.
fn find_result_columns(query: &Query) -> Vec<usize> {
    let mut found = Vec::new();
    query.visit_queries(&mut |query| {
        let Body::Core(core) = &query.body else { return };
        let calls = core.columns.iter().filter_map(|column| match column.expr {
            Some(Expr { kind: ExprKind::Call(n, _), .. }) => Some(n),
            _ => None,
        });
        found.extend(calls);
    });
    found
}

/// Returns examples of macros and their results, for a model that writes queries.
fn list_usages() -> Vec<(&'static str, &'static str)> {
    let usage = |(_, found): &(_, Macro<'static>)| match found {
        Macro::BuiltIn(built_in) => built_in.usage,
        _ => None,
    };
    let mut usages: Vec<_> = KNOWN.iter().filter_map(usage).collect();
    // Removes the second name of a macro.
    usages.dedup();
    usages.push(nearest::SEARCH_USAGE);
    usages
}

/// Returns a description of every call that a query can contain, one per line. Includes the calls
/// that need embeddings if `has_embeddings` is true.
#[must_use]
pub fn describe_calls(has_embeddings: bool) -> String {
    let mut text = ingredients::describe_calls();
    let of_embeddings = [EmbedFunction.usage(), SimilarityFunction.usage(), nearest::USAGE];
    let of_embeddings = of_embeddings.into_iter().filter(|_| has_embeddings);
    let media = &MEDIA_KINDS.join(", ");
    for (example, result) in list_usages().into_iter().chain(of_embeddings) {
        let result = result.replace("{media}", media);
        text.push_str(&format!("\n- {example}: {result}"));
    }
    text
}

/// Adds an example of a call to an error without a hint.
fn add_example(error: QueryError, name: &str) -> QueryError {
    let QueryError::Sql(mut problem) = error else { return error };
    let call = format!("{}(", name.to_lowercase());
    let mut usages = list_usages().into_iter().chain([nearest::USAGE]);
    let usage = usages.find(|(example, _)| example.to_lowercase().contains(&call));
    let example = usage.map(|(example, _)| format!("write for example {example}"));
    problem.help = problem.help.or(example);
    QueryError::Sql(problem)
}

/// Names of the calls of a query, with their offsets in the text.
pub(in crate::query) struct MacroNames(Vec<(usize, Option<String>)>);

impl MacroNames {
    /// Collects the calls that are replaced with or are ingredients in braces. The name of a call is
    /// `None` if the call is not a macro.
    pub(in crate::query) fn from_source(source: &SourceQuery) -> Self {
        let mut names: Vec<(usize, Option<String>)> = Vec::new();
        for call in &source.parsed.calls {
            let is_vendor_call = call.macro_call.as_ref().is_some_and(|m| m.question.is_some());
            if !call.is_in_braces() && !is_vendor_call {
                continue;
            }
            let written = call.macro_call.as_ref().filter(|_| !is_vendor_call);
            let name = written.map(|m| m.name.text(&source.text).to_owned());
            names.push((call.span.start, name));
        }
        names.sort();
        Self(names)
    }

    /// Replaces the name of the ingredient in an error with the name of the macro that the query
    /// calls. The macro is the last call that begins before the end of the error's span.
    pub(in crate::query) fn name_call_in_error(&self, error: QueryError) -> QueryError {
        let QueryError::Sql(mut problem) = error else { return error };
        let end = problem.span.as_ref().map_or(0, |span| span.end);
        let call = self.0.iter().rfind(|(at, _)| *at < end);
        if let Some((_, Some(name))) = call {
            for ingredient in ["`LLMMap`", "`LLMQA`"] {
                problem.message = problem.message.replace(ingredient, &format!("`{name}`"));
            }
            for ingredient in ["{{LLMMap(", "{{LLMQA("] {
                let help = problem.help.take();
                problem.help = help.map(|help| help.replace(ingredient, &format!("{{{{{name}(")));
            }
        }
        QueryError::Sql(problem)
    }
}

/// Sets the help of an error about an unknown or missing ingredient: the nearest name, or a list of
/// all names.
pub(in crate::query) fn list_ingredients_in_error(
    request: &Request<'_>,
    error: QueryError,
) -> QueryError {
    let QueryError::Sql(mut problem) = error else { return error };
    let unknown = problem.message.strip_prefix("there is no ingredient `");
    let unknown = unknown.and_then(|rest| rest.strip_suffix('`'));
    let none = ["a call is empty", "a call names no ingredient"].contains(&&*problem.message);
    if let Some(word) = unknown.or(none.then_some("")) {
        let own = request.spec.ingredients.iter().map(|i| i.name.as_str());
        let written = ingredients::list_ingredients().map(Ingredient::name);
        let done = KNOWN
            .iter()
            .filter(|(name, of)| !matches!(of, Macro::Refused(..)) && !written.contains(name));
        let all: Vec<&str> = own.chain(written).chain(done.map(|(name, _)| *name)).collect();
        let is_function = FUNCTIONS.iter().any(|name| name.eq_ignore_ascii_case(word));
        problem.help = Some(match find_nearest(word, all.iter().copied()) {
            _ if is_function => {
                format!("`{word}` is a function: write it without `{{{{` and `}}}}`")
            }
            Some(near) => format!("did you mean `{near}`?"),
            None => format_name_list("ingredient", all),
        });
    }
    QueryError::Sql(problem)
}

/// Explains an error about a macro in a query whose macros are not expanded.
pub(in crate::query) fn explain_missing_macro(error: QueryError, hint: &str) -> QueryError {
    let QueryError::Sql(mut problem) = error else { return error };
    let name = problem.message.strip_prefix("there is no ingredient `");
    let name = name.and_then(|rest| rest.strip_suffix('`')).map(str::to_owned);
    if let Some(name) = name
        && KNOWN.iter().any(|(known, _)| known.eq_ignore_ascii_case(&name))
    {
        problem.message = format!("`{name}` is not available in this dialect");
        "in this call".clone_into(&mut problem.label);
        problem.help = Some(hint.to_owned());
    }
    QueryError::Sql(problem)
}

fn find_macro<'s>(own: &'s [IngredientTable], name: &str) -> Option<Macro<'s>> {
    if let Some(own) = own.iter().find(|i| i.name.eq_ignore_ascii_case(name)) {
        return Some(Macro::Own(own));
    }
    KNOWN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, found)| *found)
}

impl<'s> Macro<'s> {
    /// Returns the signature by which the macro's calls are parsed.
    fn signature(self) -> MacroSignature<'s> {
        match self {
            Self::BuiltIn(built_in) => built_in.signature,
            Self::Typed(ingredient, name) => {
                let subject = if ingredient == "LLMQA" { Subject::Rows } else { Subject::Value };
                let return_type = ReturnType::parse(name);
                MacroSignature { return_type, ..MacroSignature::new(subject, true) }
            }
            Self::Own(own) => {
                let subject = match &own.function {
                    _ if own.of == AskedOf::Rows => Subject::Rows,
                    Some(FunctionIngredient { kind: FunctionKind::Pairs, .. }) => Subject::Pair,
                    _ => Subject::Value,
                };
                let return_type = return_type_name(own).and_then(|name| ReturnType::parse(&name));
                let argument_names = own.arguments.as_slice();
                let signature = MacroSignature::new(subject, false);
                MacroSignature { return_type, argument_names, ..signature }
            }
            Self::Describe(..) => MacroSignature::new(Subject::Value, false),
            Self::Image => MacroSignature::new(Subject::Value, true),
            Self::Summary => MacroSignature {
                literal_argument: Some((1, &["table", "context"])),
                ..MacroSignature::new(Subject::Rows, true)
            },
            Self::Reduce => MacroSignature {
                is_aggregate: true,
                suffix: MacroSuffix::Filter,
                ..MacroSignature::new(Subject::Document, true)
            },
            Self::Documents => MacroSignature::new(Subject::Document, true),
            Self::Refused(..) => MacroSignature::new(Subject::Document, false),
        }
    }
}

/// Returns the return type of an ingredient of the spec, as a call would name it.
pub(super) fn return_type_name(own: &IngredientTable) -> Option<String> {
    if own.kind.is_none() && !own.list {
        return None;
    }
    // A call uses `str` for a type that it cannot name.
    let kind = own.kind.unwrap_or_default().call_names().first().unwrap_or(&"str");
    Some(if own.list { format!("list[{kind}]") } else { (*kind).to_owned() })
}

impl MacroNode<'_> {
    /// Returns the edits that expand the call.
    fn expand_macro(&self, request: &Request<'_>) -> Result<Edits, QueryError> {
        if let Some(question) = &self.written.question {
            return self.rewrite_vendor_call(question);
        }
        let name = self.name();
        let found = find_macro(&request.spec.ingredients, name);
        let Some(found) = found.filter(|_| self.call.is_in_braces()) else {
            return self.rewrite_value_function();
        };
        match found {
            Macro::Typed(ingredient, kind) => self.rewrite_typed_ingredient(ingredient, kind),
            Macro::Own(own) => match &own.function {
                Some(function) => self.rewrite_function_call(own, function),
                None => self.rewrite_spec_ingredient(own),
            },
            Macro::Describe(question, kind) => {
                Ok(self.replace_head(&self.build_description_head(question, kind)))
            }
            Macro::Image => {
                let image = if self.has_media_keyword() { "" } else { "image=true, " };
                Ok(self.replace_head(&format!("LLMMap({image}")))
            }
            Macro::Summary => self.rewrite_summary(),
            Macro::Reduce => self.rewrite_reduce(),
            Macro::BuiltIn(built_in) => (built_in.expand)(self, request),
            Macro::Documents => self.rewrite_document_question(),
            Macro::Refused(why, instead) => Err(self.error_at_name(
                format!("`{name}` cannot be called: {why}"),
                "not an ingredient",
                instead,
            )),
        }
    }

    /// Returns an edit that replaces the name and the `(`.
    fn replace_head(&self, head: &str) -> Edits {
        let mut edits = Edits::default();
        edits.replace(self.head_span(), head);
        edits
    }

    /// Returns the edits for an ingredient whose name contains the type, such as `LLMQAList`. If
    /// that type is a list, the call can still set the type of its items.
    fn rewrite_typed_ingredient(&self, ingredient: &str, kind: &str) -> Result<Edits, QueryError> {
        let name = self.name();
        let says = |piece: &&WrittenArgument| {
            piece.keyword.is_some_and(|keyword| {
                ["return_type", "output_type"].iter().any(|w| keyword.is_word(self.text, w))
            })
        };
        let Some(piece) = self.written.arguments.iter().find(says) else {
            return Ok(self.replace_head(&format!("{ingredient}(return_type='{kind}', ")));
        };
        let mut edits = self.replace_head(&format!("{ingredient}("));
        let written = match piece.tokens.as_slice() {
            [one] => one.unquoted_text(self.text),
            _ => self.text.get(piece.span()).unwrap_or_default().to_owned(),
        };
        // An invalid type is reported when the return type is parsed.
        let (Some(said), Some(own)) = (ReturnType::parse(&written), ReturnType::parse(kind)) else {
            return Ok(edits);
        };
        if own.is_list && !said.is_list {
            edits.replace(piece.span(), format!("'list[{}]'", written.trim()));
        } else if !own.is_list && said != own && name.to_lowercase().ends_with(kind) {
            return Err(QueryError::in_sql(
                format!("`{name}` returns {kind}, not {}", written.trim()),
                Some(piece.span()),
                "contradicts the name",
                format!("remove it, or write `{ingredient}`"),
            ));
        }
        Ok(edits)
    }

    /// Returns the text that replaces the name and the `(` of `{{ImageCaption(t.photo)}}`. The
    /// written arguments become arguments of `LLMMap`.
    fn build_description_head(&self, question: &str, kind: &str) -> String {
        let mut call = "LLMMap(".to_owned();
        if !self.has_keyword("question") {
            call.push_str(&format!("question={}, ", sql::quote_text(question)));
        }
        if !self.has_return_type() {
            call.push_str("return_type='str', ");
        }
        if !self.has_media_keyword() {
            call.push_str(&format!("{kind}=true, "));
        }
        call
    }

    /// Returns true if the call sets its return type.
    pub(super) fn has_return_type(&self) -> bool {
        self.has_keyword("return_type") || self.has_keyword("output_type")
    }

    /// Returns the edits for `{{TableSummary('t')}}`, with an optional question before the table.
    /// All other arguments belong to `LLMQA`.
    fn rewrite_summary(&self) -> Result<Edits, QueryError> {
        const QUESTION: ArgumentNames<'_> = &["question"];
        const TABLE: ArgumentNames<'_> = &["table", "context"];
        let bare = self.written.arguments.iter().filter(|p| p.keyword.is_none()).count();
        let alone = bare == 1 && !TABLE.iter().any(|keyword| self.has_keyword(keyword));
        let arguments = if alone { [TABLE, QUESTION] } else { [QUESTION, TABLE] };
        let (given, _) = self.match_arguments(&arguments)?;
        let (question, table) = if alone { (given[1], given[0]) } else { (given[0], given[1]) };
        let table = table.ok_or_else(|| {
            self.missing_argument_error("a table, as in {{TableSummary('city')}}")
        })?;
        let asked = match question {
            None => SUMMARY.to_owned(),
            Some(piece) => piece
                .text_content(self.text)
                .ok_or_else(|| self.missing_argument_error("a text as its question"))?,
        };
        let mut call = format!("LLMQA({}, ", sql::quote_text(&asked));
        if !self.has_return_type() {
            call.push_str("return_type='str', ");
        }
        let mut edits = self.replace_head(&call);
        if let Some(piece) = question {
            edits.replace(piece.full_span(), "");
        }
        match table.tokens.as_slice() {
            [name] => {
                let name = sql::quote_name(&name.unquoted_text(self.text));
                let span = table.full_span().start..table.span().end;
                edits.replace(span, format!("(SELECT * FROM {name})"));
            }
            // Remove the keyword, if any, and keep the query.
            _ => edits.replace(table.full_span().start..table.span().start, ""),
        }
        Ok(edits)
    }

    /// Returns the edits for a question about all documents of a column or query. The model sees
    /// the passages that are most similar to the question.
    fn rewrite_document_question(&self) -> Result<Edits, QueryError> {
        let arguments: [ArgumentNames<'_>; 2] =
            [&["question"], &["documents", "document", "context"]];
        let [Some(question), Some(documents)] = self.match_all_arguments(arguments)? else {
            let name = self.name();
            let help =
                format!("name the column with the texts: {{{{{name}('…?', documents.text)}}}}");
            let message = format!("`{name}` needs a question and documents");
            return Err(self.error_at_name(message, "in this call", &help));
        };
        let question_text = question
            .text_content(self.text)
            .ok_or_else(|| self.missing_argument_error("a text as its question"))?;
        let column = documents.column_names(self.text);
        // A question with a slot is about the value of each row.
        if question_text.contains("{}") && column.is_some() {
            let mut edits = self.replace_head("LLMMap(");
            edits.replace(documents.span(), self.value_sql(documents));
            return Ok(edits);
        }
        let question = sql::quote_text(&question_text);
        let query: EditText = match column {
            Some((table, column)) => {
                let (table, column) = (sql::quote_name(&table), sql::quote_name(&column));
                // Qualify the column, because SQLite reads an unknown double-quoted name as a text.
                format!("(SELECT {table}.{column} FROM {table})").into()
            }
            None => documents.query_span(self.text).map(EditText::from).ok_or_else(|| {
                self.error_at_name(
                    "the documents are neither a column nor a query".to_owned(),
                    "in this call",
                    "write documents.text, or (SELECT text FROM documents WHERE …)",
                )
            })?,
        };
        // Keep the column at its position, so that an error about the column points there.
        let (call, place) = (self.call.span.clone(), documents.span());
        let mut edits = Edits::default();
        edits.replace(call.start..place.start, "answer((WITH hq_document(hq_text) AS ");
        edits.replace(place.clone(), query);
        let end = format!(" SELECT json_group_array(hq_text) FROM hq_document), {question})");
        edits.replace(place.end..call.end, end);
        Ok(edits)
    }
}
