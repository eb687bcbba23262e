//! Macros: ingredients that hqdl rewrites to other ones or to plain SQL. A spec can define macros
//! (`[[ingredient]]`); the others are older or narrower ingredients of `BlendSQL`. A call is
//! expanded before the query is parsed. Errors in its arguments still point to the original query.
//!
//! | written | read as |
//! |---|---|
//! | `{{IsRipe(t.c)}}`, defined by a spec | `{{LLMMap('…', t.c, …)}}`, or `LLMQA` |
//! | `{{LLMQAList(…)}}`, `{{LLMMapInt(…)}}` and similar | `return_type=` |
//! | `{{LLM('…')}}` | `{{LLMQA('…', return_type='str')}}` |
//! | `{{MultiLabelMap(…)}}` | `{{LLMMap(…, return_type='list[str]')}}` |
//! | `{{ImageCaption(t.photo)}}`, `{{VQA('…', t.photo)}}` | `{{LLMMap('…', t.photo, image=true)}}` |
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

use std::ops::Range;

use crate::query::read::arguments::{ArgumentNames, CallArgument, CallText};
use crate::query::read::enclosing_query::EnclosingQuery;
use crate::query::read::{dedup, extract, labels, nearest, rank};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_spec::Literal;
use hqdl_spec::ingredients::{AskedOf, IngredientTable, TemplateSlot};
use hqdl_sql::blendsql::ingredients::{self, EmbedFunction, Ingredient, SimilarityFunction};
use hqdl_sql::blendsql::lexer::{self, Brackets, Lexeme, Token};
use hqdl_sql::blendsql::{NEAREST, ReturnType, SEARCH, split_legacy_column};
use hqdl_sql::suql::TranslatedQuery;
use hqdl_values::format::name_all;
use hqdl_values::problem::find_nearest;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Functions that are calls without braces.
const FUNCTIONS: [&str; 6] = ["answer", "summary", "embed", "similarity", NEAREST, SEARCH];

/// Default question of `TableSummary`.
const SUMMARY: &str = "Summarize what these rows say, in a few sentences.";

/// Default question of `ImageCaption`.
const CAPTION: &str = "Describe what the image shows, in one sentence.";

/// An ingredient that is rewritten to other ingredients or to plain SQL.
#[derive(Clone, Copy)]
enum Macro<'s> {
    /// Defined by the spec.
    Own(&'s IngredientTable),
    /// Name and return type of another ingredient.
    Typed(&'static str, &'static str),
    /// Asks what an image shows.
    Caption,
    Image,
    Summary,
    Reduce,
    Classify,
    Extract,
    Rank,
    Top,
    Dedup,
    Documents,
    Dates,
    /// Not supported: the reason, and the alternative.
    Refused(&'static str, &'static str),
}

/// Macros that every query can use, by name.
const KNOWN: [(&str, Macro<'static>); 31] = [
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
    ("LLMClassify", Macro::Classify),
    ("LLMExtract", Macro::Extract),
    ("LLMRank", Macro::Rank),
    ("LLMTopK", Macro::Top),
    ("LLMDedup", Macro::Dedup),
    ("LLMCluster", Macro::Dedup),
    ("RAGQA", Macro::Documents),
    ("DocumentSearch", Macro::Documents),
    ("DT", Macro::Dates),
    ("WebSearch", WEB),
    ("BingWebSearch", WEB),
    ("TavilySearch", WEB),
    ("ImageCaption", Macro::Caption),
    ("VQA", Macro::Image),
];

const WEB: Macro<'static> = Macro::Refused(
    "hqdl does not search the web",
    "pass the search results yourself: {{LLMQA('…', context=(SELECT …))}}, or {{RAGQA('…', documents.text)}}",
);

/// Returns the query with its macros expanded; `None` if it contains none.
///
/// # Errors
/// [`QueryError::Sql`] if a macro has invalid arguments or is not supported.
pub(in crate::query) fn expand_macros(
    request: &Request<'_>,
    text: &str,
) -> Result<Option<TranslatedQuery>, QueryError> {
    let tokens = tokenize_query(text);
    expand_tokens(request, text, &tokens, EnclosingQuery { text, tokens: &tokens, start: 0 })
}

/// Returns a text with its macros expanded. The text is a part of `query`.
fn expand_tokens(
    request: &Request<'_>,
    text: &str,
    tokens: &[Token],
    query: EnclosingQuery<'_>,
) -> Result<Option<TranslatedQuery>, QueryError> {
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut copied_until = 0;
    for n in 0..tokens.len() {
        if tokens[n].start >= copied_until
            && let Some(call) = nearest::parse_value_function(text, tokens, n)
        {
            copied_until = call.end_offset;
            let expand = |part| expand_part(request, text, part, query);
            let expanded = call.rewrite_value_function(query, &expand);
            let name = call.name_token.text(text);
            let expanded = expanded.map_err(|error| add_example(error, name))?;
            edits.push((call.open_token.start..call.end_offset, expanded));
            continue;
        }
        let [open, name, paren] = match tokens.get(n..n + 3) {
            Some([open, name, paren]) => [*open, *name, *paren],
            _ => continue,
        };
        if open.start < copied_until {
            continue;
        }
        if open.lexeme != Lexeme::Open || name.lexeme != Lexeme::Word || !paren.is_symbol(b'(') {
            continue;
        }
        let Some(found) = find_macro(&request.spec.ingredients, name.text(text)) else { continue };
        let Some(call) = CallText::parse_call(text, tokens, n) else { continue };
        let rest = &tokens[tokens.partition_point(|t| t.start < call.end_offset)..];
        // Such a call copies its arguments, with their macros expanded.
        if matches!(found, Macro::Extract | Macro::Top | Macro::Dedup) {
            copied_until = call.end_offset;
        }
        let expanded = call.expand_macro(request, found, query, rest);
        edits.extend(expanded.map_err(|error| add_example(error, name.text(text)))?);
    }
    edits.sort_by_key(|(span, _)| (span.start, span.end));
    Ok((!edits.is_empty()).then(|| TranslatedQuery::with_edits(text, edits)))
}

/// Returns a part of a text with its macros expanded. The text is a part of `query`.
fn expand_part(
    request: &Request<'_>,
    text: &str,
    part: Range<usize>,
    query: EnclosingQuery<'_>,
) -> Result<String, QueryError> {
    let begin = part.start;
    let part = text.get(part).unwrap_or_default();
    let query = EnclosingQuery { start: query.start + begin, ..query };
    let expanded = expand_tokens(request, part, &tokenize_query(part), query);
    let expanded = expanded.map_err(|e| e.map_span(|span| span.start + begin..span.end + begin))?;
    Ok(expanded.map_or_else(|| part.to_owned(), |expanded| expanded.sql))
}

/// Examples of macros and their results, for a model that writes queries.
const MACRO_USAGES: [(&str, &str); 6] = [
    labels::USAGE,
    extract::USAGE,
    rank::USAGE,
    rank::TOP_USAGE,
    dedup::USAGE,
    nearest::SEARCH_USAGE,
];

/// Describes every call that a query can contain, one per line. Some calls need embeddings.
#[must_use]
pub fn describe_calls(has_embeddings: bool) -> String {
    let mut text = ingredients::describe_calls();
    let of_embeddings = [EmbedFunction.usage(), SimilarityFunction.usage(), nearest::USAGE];
    let of_embeddings = of_embeddings.iter().filter(|_| has_embeddings);
    for (example, result) in MACRO_USAGES.iter().chain(of_embeddings) {
        text.push_str(&format!("\n- {example}: {result}"));
    }
    text
}

/// Adds an example of a call to an error without a help.
fn add_example(error: QueryError, name: &str) -> QueryError {
    let QueryError::Sql(mut problem) = error else { return error };
    let call = format!("{}(", name.to_lowercase());
    let mut usages = MACRO_USAGES.iter().chain([&nearest::USAGE]);
    let usage = usages.find(|(example, _)| example.to_lowercase().contains(&call));
    let example = usage.map(|(example, _)| format!("write for example {example}"));
    problem.help = problem.help.or(example);
    QueryError::Sql(problem)
}

/// Returns the tokens of a query up to the first that cannot be read: its error is reported when
/// the query runs.
fn tokenize_query(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    // Number of open list brackets.
    let mut depth = 0_usize;
    loop {
        let at = tokens.last().map_or(0, |t| t.end);
        let brackets = if depth == 0 { Brackets::Name } else { Brackets::List };
        let Ok(Some(mut token)) = lexer::next_token(text, at, brackets) else { return tokens };
        if begins_list(text, token) {
            token = Token { lexeme: Lexeme::Symbol(b'['), end: token.start + 1, ..token };
        }
        match token.lexeme {
            Lexeme::Symbol(b'[') => depth += 1,
            Lexeme::Symbol(b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        tokens.push(token);
    }
}

/// Returns true if a name in brackets is a list: no name begins with a quote or a brace.
fn begins_list(text: &str, token: Token) -> bool {
    let inside = token.text(text).strip_prefix('[').filter(|_| token.lexeme == Lexeme::Name);
    inside.is_some_and(|inside| inside.trim_start().starts_with(['\'', '"', '{']))
}

/// Replaces the ingredient in an error with the macro that the original query calls. The macro is
/// the last call that begins before the end of the error's span.
pub(in crate::query) fn name_call_in_error(
    request: &Request<'_>,
    text: &str,
    error: QueryError,
) -> QueryError {
    let QueryError::Sql(mut problem) = error else { return error };
    let tokens = tokenize_query(text);
    let end = problem.span.as_ref().map_or(0, |span| span.end);
    let call = tokens.windows(2).rfind(|t| t[0].lexeme == Lexeme::Open && t[0].start < end);
    let name = call.map(|t| t[1].text(text));
    if let Some(name) = name.filter(|name| find_macro(&request.spec.ingredients, name).is_some()) {
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
        let written = ingredients::all_ingredients().map(Ingredient::name);
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
            None => name_all("ingredient", all),
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
        problem.message = format!("`{name}` is not available here");
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

impl CallText<'_> {
    /// Returns the edits that expand the macro `of`; `rest` contains the tokens after the call.
    fn expand_macro(
        &self,
        request: &Request<'_>,
        of: Macro<'_>,
        query: EnclosingQuery<'_>,
        rest: &[Token],
    ) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let name = self.name_token.text(self.text);
        match of {
            Macro::Typed(ingredient, kind) => self.rewrite_typed_ingredient(ingredient, kind),
            Macro::Own(own) => self.rewrite_spec_ingredient(own),
            Macro::Caption => Ok(self.rewrite_caption()),
            Macro::Image => Ok(vec![(
                self.name_token.start..self.paren_token.end,
                format!("LLMMap({}", self.keep_unless_keyword("image", "image=true, ")),
            )]),
            Macro::Summary => self.rewrite_summary(),
            Macro::Reduce => self.rewrite_reduce(rest),
            Macro::Classify => self.rewrite_classify(),
            Macro::Rank => self.rewrite_rank(),
            Macro::Extract => {
                let expand = |part| expand_part(request, self.text, part, query);
                self.rewrite_extract(rest, &expand).map(|edit| vec![edit])
            }
            Macro::Top => {
                let expand = |part| expand_part(request, self.text, part, query);
                let best = self.rewrite_top_k(rest, &expand)?;
                Ok(vec![(self.open_token.start..self.end_offset, best)])
            }
            Macro::Dedup => {
                let expand = |part| expand_part(request, self.text, part, query);
                let has_embeddings = request.spec.embeddings.is_some();
                let value = self.rewrite_dedup(query, has_embeddings, &expand)?;
                Ok(vec![(self.open_token.start..self.end_offset, value)])
            }
            Macro::Documents => self.rewrite_document_question(),
            Macro::Dates => self.rewrite_date_filter(),
            Macro::Refused(why, instead) => Err(self.error_at_name(
                format!("`{name}` cannot be called: {why}"),
                "not an ingredient",
                instead,
            )),
        }
    }

    /// Returns the edits for an ingredient whose name contains the type, such as `LLMQAList`. If
    /// that type is a list, the call can still set the type of its items.
    fn rewrite_typed_ingredient(
        &self,
        ingredient: &str,
        kind: &str,
    ) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let name = self.name_token.text(self.text);
        let says = |piece: &&CallArgument| {
            piece.keyword.is_some_and(|keyword| {
                ["return_type", "output_type"].iter().any(|w| keyword.is_word(self.text, w))
            })
        };
        let Some(piece) = self.arguments.iter().find(says) else {
            let call = format!("{ingredient}(return_type='{kind}', ");
            return Ok(vec![(self.name_token.start..self.paren_token.end, call)]);
        };
        let mut edits =
            vec![(self.name_token.start..self.paren_token.end, format!("{ingredient}("))];
        let written = match piece.tokens.as_slice() {
            [one] => one.unquoted_text(self.text),
            _ => self.text.get(piece.span()).unwrap_or_default().to_owned(),
        };
        // An invalid type is reported when the return type is parsed.
        let (Some(said), Some(own)) = (ReturnType::parse(&written), ReturnType::parse(kind)) else {
            return Ok(edits);
        };
        if own.is_list && !said.is_list {
            edits.push((piece.span(), format!("'list[{}]'", written.trim())));
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

    /// Returns `words`, or an empty text if the call has the keyword.
    fn keep_unless_keyword<'w>(&self, keyword: &str, words: &'w str) -> &'w str {
        if self.has_keyword(keyword) { "" } else { words }
    }

    /// Returns the edits for `{{ImageCaption(t.photo)}}`. All other arguments belong to `LLMMap`.
    fn rewrite_caption(&self) -> Vec<(Range<usize>, String)> {
        let mut call = "LLMMap(".to_owned();
        if !self.has_keyword("question") {
            call.push_str(&format!("question={}, ", sql::quote_text(CAPTION)));
        }
        if !self.has_keyword("return_type") && !self.has_keyword("output_type") {
            call.push_str("return_type='str', ");
        }
        call.push_str(self.keep_unless_keyword("image", "image=true, "));
        vec![(self.name_token.start..self.paren_token.end, call)]
    }

    /// Returns the edits for an ingredient of the spec.
    fn rewrite_spec_ingredient(
        &self,
        own: &IngredientTable,
    ) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let names: Vec<[&str; 1]> = own.arguments.iter().map(|a| [a.as_str()]).collect();
        let arguments: Vec<ArgumentNames<'_>> = names.iter().map(<[&str; 1]>::as_slice).collect();
        // All other arguments belong to LLMMap or LLMQA.
        let (given, _) = self.match_arguments(&arguments)?;
        if let Some(lacking) = given.iter().position(Option::is_none) {
            let lacking = &own.arguments[lacking];
            let unknown =
                self.arguments.iter().filter_map(|p| p.keyword.map(|k| k.text(self.text)));
            let help = unknown.clone().find_map(|word| {
                find_nearest(lacking, [word])
                    .map(|near| format!("did you mean `{lacking}=` instead of `{near}=`?"))
            });
            let help = help.unwrap_or_else(|| format!("it takes {}", own.arguments.join(", ")));
            return Err(self.error_at_name(
                format!("`{}` needs `{lacking}`", own.name),
                "in this call",
                &help,
            ));
        }
        // The question contains the text of a literal, and a slot for any other argument.
        let mut edits = Vec::new();
        let mut names: Vec<(String, bool)> = Vec::new();
        let literal = |at: usize| {
            let is_asked_about = own.of == AskedOf::Values && at == 0;
            given[at].filter(|_| !is_asked_about)?.literal_content(self.text)
        };
        let shown = (0..given.len()).filter(|at| literal(*at).is_none()).count();
        let mut nth = 0;
        for (at, piece) in given.iter().enumerate() {
            let Some(piece) = piece else { continue };
            if let Some(words) = literal(at) {
                let name = own.arguments.get(at).map_or("", String::as_str);
                let asks_with = |slot: &TemplateSlot<'_>| *slot == TemplateSlot::Argument(name);
                if !own.split_question().iter().any(asks_with) {
                    return Err(self.error_at_name(
                        format!("the question of `{}` has no slot for a text", own.name),
                        "in this call",
                        &format!("write {{{name}}} in its question, or pass a column"),
                    ));
                }
                names.push((words, true));
                edits.push((piece.full_span.clone(), String::new()));
                continue;
            }
            nth += 1;
            let name = match (own.of, nth) {
                (AskedOf::Values, 1) => "{value}".to_owned(),
                (AskedOf::Values, n) => format!("{{value_{n}}}"),
                (AskedOf::Rows, _) if shown == 1 => "{context}".to_owned(),
                (AskedOf::Rows, n) => format!("{{context_{n}}}"),
            };
            names.push((name, false));
            // Remove the keyword, which LLMMap and LLMQA do not know.
            if piece.keyword.is_some() {
                edits.push((piece.full_span.start..piece.span().start, String::new()));
            }
        }
        let question: String = own
            .split_question()
            .into_iter()
            .map(|slot| match slot {
                TemplateSlot::Text(words) => words.to_owned(),
                TemplateSlot::Argument(name) => {
                    let at = own.arguments.iter().position(|a| a == name);
                    at.and_then(|at| names.get(at)).map_or_else(String::new, |(n, _)| n.clone())
                }
            })
            .collect();
        let ingredient = match own.of {
            AskedOf::Values => "LLMMap",
            AskedOf::Rows => "LLMQA",
        };
        let mut call = format!("{ingredient}({}, ", sql::quote_text(&question));
        if let Some(kind) = self.default_return_type(own) {
            call.push_str(&format!("return_type='{kind}', "));
        }
        if let Some(options) = own.options.as_ref().filter(|_| !self.has_keyword("options")) {
            let options: Vec<String> = options.iter().map(literal_to_sql).collect();
            call.push_str(&format!("options=({},), ", options.join(", ")));
        }
        if let Some(model) = own.model.as_ref().filter(|_| !self.has_keyword("model")) {
            call.push_str(&format!("model={}, ", sql::quote_text(model)));
        }
        edits.push((self.name_token.start..self.paren_token.end, call));
        Ok(edits)
    }

    /// Returns the return type of an ingredient of the spec; `None` if the spec has none or the
    /// call sets it.
    fn default_return_type(&self, own: &IngredientTable) -> Option<String> {
        if self.has_keyword("return_type") || self.has_keyword("output_type") {
            return None;
        }
        if own.kind.is_none() && !own.list {
            return None;
        }
        // A type that calls cannot name is a text in calls.
        let kind = own.kind.unwrap_or_default().call_names().first().unwrap_or(&"str");
        Some(if own.list { format!("list[{kind}]") } else { (*kind).to_owned() })
    }

    /// Returns the edits for `{{TableSummary('t')}}`, with an optional question before the table.
    /// All other arguments belong to `LLMQA`.
    fn rewrite_summary(&self) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        const QUESTION: ArgumentNames<'_> = &["question"];
        const TABLE: ArgumentNames<'_> = &["table", "context"];
        let bare = self.arguments.iter().filter(|p| p.keyword.is_none()).count();
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
        if !self.has_keyword("return_type") && !self.has_keyword("output_type") {
            call.push_str("return_type='str', ");
        }
        let mut edits = vec![(self.name_token.start..self.paren_token.end, call)];
        edits.extend(question.map(|piece| (piece.full_span.clone(), String::new())));
        edits.push(match self.quote_table_name(table) {
            Some(name) => {
                (table.full_span.start..table.span().end, format!("(SELECT * FROM {name})"))
            }
            // Remove the keyword, if any, and keep the query.
            None => (table.full_span.start..table.span().start, String::new()),
        });
        Ok(edits)
    }

    /// Returns the quoted name of the table that an argument names; `None` for a query in
    /// parentheses.
    fn quote_table_name(&self, piece: &CallArgument) -> Option<String> {
        match piece.tokens.as_slice() {
            [one] => Some(sql::quote_name(&one.unquoted_text(self.text))),
            _ => None,
        }
    }

    /// Returns the edits for a question about all documents of a column or query. The model sees
    /// the passages that are most similar to the question.
    fn rewrite_document_question(&self) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let arguments: [ArgumentNames<'_>; 2] =
            [&["question"], &["documents", "document", "context"]];
        let [Some(question), Some(documents)] = self.match_all_arguments(arguments)? else {
            let name = self.name_token.text(self.text);
            return Err(self.error_at_name(
                format!("`{name}` needs a question and documents"),
                "in this call",
                "name the column with the texts: {{RAGQA('…?', documents.text)}}",
            ));
        };
        let question_text = question
            .text_content(self.text)
            .ok_or_else(|| self.missing_argument_error("a text as its question"))?;
        let column = match documents.tokens.as_slice() {
            [one] if one.lexeme == Lexeme::Text => {
                split_legacy_column(&one.unquoted_text(self.text))
            }
            [table, dot, column] if dot.is_symbol(b'.') => {
                Some((table.unquoted_text(self.text), column.unquoted_text(self.text)))
            }
            [table, colons, column] if colons.lexeme == Lexeme::Colons => {
                Some((table.unquoted_text(self.text), column.unquoted_text(self.text)))
            }
            _ => None,
        };
        // A question with a slot is asked about the value of each row.
        if question_text.contains("{}") && column.is_some() {
            return Ok(vec![(self.name_token.start..self.paren_token.end, "LLMMap(".to_owned())]);
        }
        let begin = "answer((WITH hq_document(hq_text) AS (";
        let end = format!(
            ") SELECT json_group_array(hq_text) FROM hq_document), {})",
            sql::quote_text(&question_text)
        );
        if let Some((table, column)) = column {
            let place = documents.span();
            let (table, column) = (sql::quote_name(&table), sql::quote_name(&column));
            // Keep the column's position, so that an error about the column points there.
            return Ok(vec![
                (self.open_token.start..place.start, format!("{begin}SELECT ")),
                // SQLite reads an unknown name in double quotes as a text unless its table is
                // named.
                (place.clone(), format!("{table}.{column}")),
                (place.end..self.end_offset, format!(" FROM {table}{end}")),
            ]);
        }
        let tokens = &documents.tokens;
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            return Err(self.missing_argument_error("documents"));
        };
        let query = tokens
            .get(1)
            .is_some_and(|t| ["SELECT", "WITH", "VALUES"].iter().any(|w| t.is_word(self.text, w)));
        if !(first.is_symbol(b'(') && last.is_symbol(b')') && query) {
            return Err(self.error_at_name(
                "the documents are neither a column nor a query".to_owned(),
                "in this call",
                "write documents.text, or (SELECT text FROM documents WHERE …)",
            ));
        }
        Ok(vec![
            (self.open_token.start..first.end, begin.to_owned()),
            (last.start..self.end_offset, end),
        ])
    }

    /// Rewrites a date filter to plain SQL; it makes no request.
    fn rewrite_date_filter(&self) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let [value, start, end] = self.match_all_arguments([&["value"], &["start"], &["end"]])?;
        let Some(value) = value else { return Err(self.missing_argument_error("a column")) };
        // The value is copied if both dates are given. A copied `?` would get a new number.
        self.reject_bare_parameters(Some(value).filter(|_| start.is_none() || end.is_none()))?;
        let old = match value.tokens.as_slice() {
            [one] if one.lexeme == Lexeme::Text => {
                split_legacy_column(&one.unquoted_text(self.text))
            }
            _ => None,
        };
        let column = match old {
            Some((table, column)) => {
                format!("{}.{}", sql::quote_name(&table), sql::quote_name(&column))
            }
            None => self.text.get(value.span()).unwrap_or_default().to_owned(),
        };
        let mut parts = Vec::new();
        for (keyword, piece, sign) in [("start", start, ">="), ("end", end, "<=")] {
            let Some(piece) = piece else { continue };
            let day =
                piece.literal_content(self.text).filter(|d| d.parse::<jiff::civil::Date>().is_ok());
            let Some(day) = day else {
                return Err(QueryError::in_sql(
                    format!("`{keyword}` of `DT` is not a day"),
                    Some(piece.span()),
                    "expected a text such as '2024-01-31'",
                    "",
                ));
            };
            // `date` drops the time, so that times on the end date are included.
            let day = sql::quote_text(&day);
            parts.push(format!("date({column}) {sign} {day}"));
        }
        if parts.is_empty() {
            let help = "write for example {{DT(t.day, start='2024-01-01', end='2024-01-31')}}";
            let message = "`DT` needs `start=` or `end=`".to_owned();
            return Err(self.error_at_name(message, "in this call", help));
        }
        Ok(vec![(self.open_token.start..self.end_offset, format!("({})", parts.join(" AND ")))])
    }
}

/// Returns a list's value as a literal of the query.
fn literal_to_sql(literal: &Literal) -> String {
    match literal {
        Literal::Boolean(true) => "1".to_owned(),
        Literal::Boolean(false) => "0".to_owned(),
        Literal::Integer(i) => i.to_string(),
        Literal::Real(r) => Value::Real(*r).to_string(),
        Literal::Text(text) => sql::quote_text(text),
    }
}
