//! Builds a call from its arguments: the question, the values and the options of the answer.

use std::ops::Range;

use crate::blendsql::argument::{self, token_span};
use crate::blendsql::ingredients::keyword::{KEYWORDS, find_keyword};
use crate::blendsql::ingredients::{Arguments, IngredientRef, Keyword, SLOT, Subject};
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::macros::WrittenArgument;
use crate::blendsql::scan::ScannedCall;
use crate::blendsql::scan::blocking::BlockingArguments;
use crate::blendsql::{
    Argument, Call, Choices, Quantifier, ReturnType, SqlError, answer_arguments, choices,
};
use hqdl_values::problem::find_nearest;
use hqdl_values::value::Value;

/// Operators that are keywords.
const OPERATORS: [&str; 14] = [
    "AND", "BETWEEN", "COLLATE", "ESCAPE", "GLOB", "IN", "IS", "ISNULL", "LIKE", "MATCH", "NOT",
    "NOTNULL", "OR", "REGEXP",
];

/// Parses the arguments of a scanned call.
pub(in crate::blendsql) fn build_call(sql: &str, scanned: ScannedCall) -> Result<Call, SqlError> {
    let ingredient = scanned.ingredient;
    let mut collected = CallParts::default();
    let is_named_question = |k: &WrittenArgument| {
        k.keyword.and_then(|k| find_keyword(k.text(sql))) == Some(Keyword::Question)
    };
    let question_is_named = scanned.arguments.iter().any(is_named_question);
    for argument in &scanned.arguments {
        collected.add_argument(sql, ingredient, argument, question_is_named)?;
    }
    let empty_span = scanned.name.end..scanned.close.end;
    let mut question = match collected.question {
        Some(question) if ingredient.is_question_optional() || !question.trim().is_empty() => {
            question
        }
        None if ingredient.is_question_optional() => String::new(),
        _ => {
            return Err(SqlError::new(
                empty_span.clone(),
                format!("`{}` has no question", ingredient.name()),
                "expected a question, as a text, as the first argument",
            ));
        }
    };
    let mut positional = collected.values.into_iter();
    let left = collected.left.or_else(|| {
        if ingredient.accepts_keyword(Keyword::Left) { positional.next() } else { None }
    });
    let right = collected.right.or_else(|| {
        if ingredient.accepts_keyword(Keyword::Right) { positional.next() } else { None }
    });
    let mut values: Vec<Argument> =
        collected.value.into_iter().chain(left).chain(right).chain(positional).collect();
    scanned.ingredient.validate_arguments(&Arguments {
        question: &question,
        values: &values,
        empty_span,
        close_span: scanned.close.span(),
    })?;
    let is_question_computed = !collected.question_values.is_empty();
    add_named_values(collected.question_values, &mut question, &mut values);
    // Instructions to the model affect the answer. Append them to the question, so that they are
    // part of the call's identity.
    let instructions_start = question.len();
    let question = collected.appended.iter().fold(question, |q, more| format!("{q} {more}"));
    if let Some(Choices::RowList(span)) = &collected.options {
        values.push(build_row_list_value(ingredient, span)?);
    }
    let span = scanned.open.start..scanned.end;
    check_return_type(ingredient, &span, collected.return_type)?;
    let min_similarity = collected.blocking.min_similarity(collected.narrow.is_some())?;
    if scanned.is_values_row {
        check_values_row(&span, collected.return_type, collected.quantifier)?;
    }
    Ok(Call {
        ingredient,
        span,
        question,
        title: None,
        instructions_start,
        is_question_computed,
        values,
        options: collected.options,
        return_type: collected.return_type,
        is_substring: collected.substring,
        quantifier: collected.quantifier,
        regex: collected.regex,
        narrow: collected.narrow,
        min_similarity,
        model: collected.model,
        media: collected.media,
        tuning: collected.tuning,
        inner: scanned.inner,
        is_values_row: scanned.is_values_row,
        macro_call: None,
    })
}

/// Returns the title of a result column that consists of a call in braces. Captions and the calls
/// of the spec's own ingredients have no question.
pub(super) fn read_title(sql: &str, name: Token, arguments: &[WrittenArgument]) -> Option<String> {
    let name = name.text(sql);
    let has_question = ["LLM", "VQA", "RAGQA", "DocumentSearch", "MultiLabelMap"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
        || name.to_ascii_lowercase().starts_with("llm") && !name.eq_ignore_ascii_case("LLMJoin");
    let read_text = |argument: &WrittenArgument| {
        let (first, rest) = argument.tokens.split_first()?;
        let is_text = matches!(first.lexeme, TokenKind::Text | TokenKind::Quoted);
        let text = match rest.first() {
            Some(next) if next.is_symbol(b'|') => sql[token_span(&argument.tokens)].to_owned(),
            _ => first.unquoted_text(sql),
        };
        is_text.then_some(text)
    };
    let is_named = |argument: &&WrittenArgument| {
        argument.keyword.is_some_and(|keyword| keyword.is_word(sql, "question"))
    };
    let named = arguments.iter().find(is_named).and_then(read_text);
    let first = || arguments.first().filter(|first| first.keyword.is_none()).and_then(read_text);
    named.or_else(first).filter(|text| has_question && !text.trim().is_empty())
}

/// Fails if the stated return type contradicts the ingredient's.
fn check_return_type(
    ingredient: IngredientRef,
    span: &Range<usize>,
    stated: Option<ReturnType>,
) -> Result<(), SqlError> {
    let (Some(fixed_type), Some(stated)) = (ingredient.fixed_return_type(), stated) else {
        return Ok(());
    };
    if !stated.is_list && stated.scalar == fixed_type {
        return Ok(());
    }
    let message = format!("`{}` returns a {}", ingredient.name(), fixed_type.name());
    let error = SqlError::new(span.clone(), message, "its return type contradicts this");
    Err(error.with_help("remove `return_type`, or write LLMQA"))
}

/// Fails if a row of VALUES is a list of any length.
fn check_values_row(
    span: &Range<usize>,
    return_type: Option<ReturnType>,
    quantifier: Option<Quantifier>,
) -> Result<(), SqlError> {
    let is_list = return_type.is_some_and(|t| t.is_list) || quantifier.is_some();
    if !is_list || quantifier.is_some_and(|quantifier| quantifier.max.is_some()) {
        return Ok(());
    }
    let error = SqlError::new(
        span.clone(),
        "a row of VALUES needs a list with a fixed number of values",
        "a list of any length",
    );
    Err(error.with_help(
        "set the number with quantifier='{3}' or '{1,3}'; to get one row per value write FROM {{LLMQA(…)}}",
    ))
}

/// Adds the values that a question names to the values of the call.
fn add_named_values(named: Vec<Argument>, question: &mut String, values: &mut Vec<Argument>) {
    for (n, value) in named.into_iter().enumerate() {
        values.push(value);
        let name = format!("{{value_{}}}", values.len());
        *question = question.replace(&format!("{SLOT}{n}{SLOT}"), &name);
    }
}

/// Returns the expression that computes each row's options, as a value of the call. Fails if the
/// ingredient requires one list for all rows.
fn build_row_list_value(
    ingredient: IngredientRef,
    span: &Range<usize>,
) -> Result<Argument, SqlError> {
    if ingredient.subject() == Subject::Value {
        return Ok(Argument::Sql(span.clone()));
    }
    let message = format!("the options of `{}` are a list for each row", ingredient.name());
    Err(SqlError::new(span.clone(), message, "one list is expected here").with_help(
        "write options=(SELECT value FROM json_each(…)); LLMMap accepts a list for each row",
    ))
}

/// Parses the value of `options=`. Fails if the list contains no option.
fn parse_options(sql: &str, tokens: &[Token]) -> Result<Option<Choices>, SqlError> {
    let options = choices::parse_choices(sql, tokens)?;
    let has_no_option = matches!(&options, Some(Choices::List(values))
        if values.iter().all(|v| *v == Value::Null));
    if !has_no_option {
        return Ok(options);
    }
    let message = "the list of options is empty";
    let error = SqlError::new(token_span(tokens), message, "no answer can be an option");
    Err(error.with_help("remove `options` to allow any answer"))
}

/// Arguments of a call that have been parsed so far.
#[derive(Default)]
struct CallParts {
    seen: Vec<Keyword>,
    positions: usize,
    question: Option<String>,
    value: Option<Argument>,
    left: Option<Argument>,
    right: Option<Argument>,
    values: Vec<Argument>,
    options: Option<Choices>,
    return_type: Option<ReturnType>,
    substring: bool,
    quantifier: Option<Quantifier>,
    regex: Option<String>,
    narrow: Option<u32>,
    blocking: BlockingArguments,
    model: Option<(String, Range<usize>)>,
    media: Option<String>,
    /// Instructions to the model, appended to the question.
    appended: Vec<String>,
    /// Values that the question names, in the order of their slots.
    question_values: Vec<Argument>,
    tuning: Vec<String>,
}

impl CallParts {
    fn add_argument(
        &mut self,
        sql: &str,
        ingredient: IngredientRef,
        argument: &WrittenArgument,
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        let Some(keyword_token) = argument.keyword else {
            self.positions += 1;
            return self.add_positional_argument(
                sql,
                ingredient,
                &argument.tokens,
                question_is_named,
            );
        };
        let keyword = parse_keyword(sql, ingredient, keyword_token)?;
        let tokens = argument.tokens.as_slice();
        self.reject_repeated_keyword(sql, keyword, keyword_token, tokens)?;
        match keyword {
            Keyword::Question => {
                self.question = answer_arguments::parse_string(sql, tokens, "the question")?;
            }
            Keyword::Value => self.value = argument::parse_argument(sql, tokens)?,
            Keyword::Context => self.values.extend(argument::parse_argument(sql, tokens)?),
            Keyword::Left => self.left = argument::parse_join_column(sql, tokens)?,
            Keyword::Right => self.right = argument::parse_join_column(sql, tokens)?,
            Keyword::Options => self.options = parse_options(sql, tokens)?,
            Keyword::ReturnType => {
                self.return_type = answer_arguments::parse_return_type(sql, tokens)?;
                if answer_arguments::is_substring(sql, tokens) {
                    self.substring = true;
                    self.appended.push("Answer with a part of the text, word by word.".to_owned());
                }
            }
            Keyword::Quantifier => {
                self.quantifier = answer_arguments::parse_quantifier(sql, tokens)?;
            }
            Keyword::Regex => {
                self.regex = answer_arguments::parse_string(sql, tokens, "the regex")?;
            }
            Keyword::Narrow => self.narrow = answer_arguments::parse_narrow(sql, tokens)?,
            Keyword::Model => {
                let model_name = answer_arguments::parse_string(sql, tokens, "the model")?;
                self.model = model_name.map(|name| (name, token_span(tokens)));
            }
            Keyword::Media => {
                let name = keyword_token.text(sql).to_lowercase();
                let is_medium = answer_arguments::parse_boolean(sql, tokens, &name)?;
                self.media = is_medium.then_some(name);
            }
            Keyword::Examples => {
                self.appended.extend(answer_arguments::parse_examples(sql, tokens)?);
            }
            Keyword::AnsweredExamples => {
                self.appended.extend(answer_arguments::parse_answered_examples(sql, tokens)?);
            }
            Keyword::Block | Keyword::Threshold | Keyword::Exact => {
                self.blocking.read_argument(sql, keyword, tokens)?;
            }
            Keyword::LongAnswer => {
                if answer_arguments::parse_boolean(sql, tokens, "long_answer")? {
                    self.appended.push("Answer at length.".to_owned());
                }
            }
            Keyword::Shots if answer_arguments::is_empty_value(sql, tokens) => {}
            Keyword::Shots => {
                return Err(SqlError::new(
                    keyword_token.span(),
                    format!("`{}` is not an argument here", keyword_token.text(sql)),
                    "a query cannot contain examples",
                )
                .with_help("use `shots` of an expansion for example rows, examples=[('value', 'answer')] for example values, or example_outputs=('…', '…') for example answers"));
            }
            Keyword::Tuning => self.tuning.push(keyword_token.text(sql).to_owned()),
        }
        Ok(())
    }

    /// Records a keyword. Fails if the call already has it.
    fn reject_repeated_keyword(
        &mut self,
        sql: &str,
        keyword: Keyword,
        name: Token,
        tokens: &[Token],
    ) -> Result<(), SqlError> {
        let repeatable = matches!(keyword, Keyword::Context | Keyword::Tuning);
        if repeatable || !self.seen.contains(&keyword) {
            self.seen.push(keyword);
            return Ok(());
        }
        let (span, name) = (name.start..token_span(tokens).end, name.text(sql));
        let error = SqlError::new(span, format!("`{name}` appears twice"), "second time");
        Err(error.with_help("remove one of the two"))
    }

    fn add_positional_argument(
        &mut self,
        sql: &str,
        ingredient: IngredientRef,
        tokens: &[Token],
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        let at = ingredient.question_position();
        if at > 1 {
            if let ([text], false) = (tokens, question_is_named)
                && self.positions == at
                && text.lexeme == TokenKind::Text
            {
                self.question = Some(text.unquoted_text(sql));
                return Ok(());
            }
        } else if self.positions == 1 && !question_is_named {
            return self.read_question(sql, ingredient, tokens);
        } else if let ([text], 1) = (tokens, self.positions)
            && text.lexeme == TokenKind::Text
            && argument::parse_legacy_column(sql, tokens).is_none()
        {
            return Err(SqlError::new(
                text.span(),
                "the call has two questions",
                "a second text where a value is expected",
            )
            .with_help("write the question first, then the value"));
        }
        self.values.extend(match ingredient.subject() {
            Subject::Pair => argument::parse_join_column(sql, tokens)?,
            _ => parse_value(sql, tokens)?,
        });
        Ok(())
    }

    /// Joins a question that is written as `'…' || x || '…'`. Each `x` is one more value of the
    /// call, and the question names it. Returns `None` for any other expression.
    fn join_question(
        &mut self,
        sql: &str,
        ingredient: IngredientRef,
        tokens: &[Token],
    ) -> Option<String> {
        let (mut question, mut values) = (String::new(), Vec::new());
        for operand in split_concatenation(tokens) {
            match operand {
                [] => return None,
                [text] if text.lexeme == TokenKind::Text => {
                    question.push_str(&text.unquoted_text(sql));
                }
                _ if ingredient.subject() != Subject::Value
                    || has_weaker_operator(sql, operand) =>
                {
                    return None;
                }
                _ => {
                    values.push(argument::parse_argument(sql, operand).ok().flatten()?);
                    question.push_str(&format!("{SLOT}{}{SLOT}", values.len() - 1));
                }
            }
        }
        self.question_values = values;
        Some(question)
    }

    /// Parses the question. A value may follow it without a comma.
    fn read_question(
        &mut self,
        sql: &str,
        ingredient: IngredientRef,
        tokens: &[Token],
    ) -> Result<(), SqlError> {
        let (text, rest) = match tokens {
            [text, rest @ ..] if matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted) => {
                (*text, rest)
            }
            _ => {
                answer_arguments::parse_string(sql, tokens, "the question").map_err(|error| {
                    SqlError {
                        message: format!("the question of `{}` is not a text", ingredient.name()),
                        ..error
                    }
                })?;
                // `None` means that there is no question.
                return Ok(());
            }
        };
        if rest.first().is_some_and(|next| continues_expression(sql, *next)) {
            if let Some(question) = self.join_question(sql, ingredient, tokens) {
                self.question = Some(question);
                return Ok(());
            }
            return Err(SqlError::new(
                token_span(tokens),
                "the question is an expression",
                "expected one text",
            )
            .with_help("write the whole question as one text; {} in it stands for a value"));
        }
        if let [next] = rest
            && next.lexeme == TokenKind::Text
            && argument::parse_legacy_column(sql, rest).is_none()
        {
            return Err(SqlError::new(
                next.span(),
                "two texts follow each other",
                "expected a comma before this text",
            )
            .with_help("write a question of several lines as one text"));
        }
        self.question = Some(text.unquoted_text(sql));
        if !rest.is_empty() {
            self.values.extend(parse_value(sql, rest)?);
        }
        Ok(())
    }
}

/// Splits tokens at `||` outside of all brackets.
fn split_concatenation(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut depth, mut begins, mut operands) = (0_usize, 0, Vec::new());
    for (n, token) in tokens.iter().enumerate() {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') => depth += 1,
            TokenKind::Symbol(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            TokenKind::Symbol(b'|') if depth == 0 => {
                let is_second = |next: &Token| next.is_symbol(b'|') && next.start == token.end;
                if tokens.get(n + 1).is_some_and(is_second) {
                    operands.push(tokens.get(begins..n).unwrap_or_default());
                    begins = n + 2;
                }
            }
            _ => {}
        }
    }
    operands.push(tokens.get(begins..).unwrap_or_default());
    operands
}

/// Returns true if an operand of `||` contains an operator that binds less tightly than `||`.
fn has_weaker_operator(sql: &str, operand: &[Token]) -> bool {
    let mut depth = 0_usize;
    operand.iter().any(|token| {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') => depth += 1,
            TokenKind::Symbol(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_operator = match token.lexeme {
            TokenKind::Symbol(symbol) => b"+-*/%<>=!&|~".contains(&symbol),
            TokenKind::Word => OPERATORS.iter().any(|operator| token.is_word(sql, operator)),
            _ => false,
        };
        depth == 0 && is_operator
    })
}

/// Returns the tokens that follow a question without a comma. Returns all tokens if they do not
/// begin with a question.
pub(super) fn skip_question<'t>(sql: &str, tokens: &'t [Token]) -> &'t [Token] {
    match tokens {
        [text, rest @ ..]
            if matches!(
                text.lexeme,
                TokenKind::Text | TokenKind::Quoted | TokenKind::LegacyColumn
            ) && !rest.first().is_some_and(|next| continues_expression(sql, *next)) =>
        {
            rest
        }
        _ => tokens,
    }
}

/// Parses a positional value. Unlike in other arguments, NULL counts as a value.
fn parse_value(sql: &str, tokens: &[Token]) -> Result<Option<Argument>, SqlError> {
    Ok(argument::parse_argument(sql, tokens)?.or_else(|| Some(Argument::Sql(token_span(tokens)))))
}

/// Parses an argument's keyword. Fails if the ingredient does not accept it.
fn parse_keyword(sql: &str, ingredient: IngredientRef, name: Token) -> Result<Keyword, SqlError> {
    let word = name.text(sql);
    let accepted: Vec<&str> = KEYWORDS
        .iter()
        .filter(|(_, k)| ingredient.accepts_keyword(*k))
        .map(|(name, _)| *name)
        .collect();
    match find_keyword(word) {
        Some(keyword) if ingredient.accepts_keyword(keyword) => Ok(keyword),
        found => {
            let error = SqlError::new(
                name.span(),
                format!("`{}` has no argument `{word}`", ingredient.name()),
                "not an argument",
            );
            Err(match find_nearest(word, accepted) {
                Some(near) if found.is_none() => error.with_suggestion(near),
                _ if found.is_none() => error
                    .with_help(format!("a comparison as a value needs parentheses: ({word} = …)")),
                _ => error,
            })
        }
    }
}

/// Returns true if `word` begins a new keyword argument after the tokens `preceding`, although the
/// comma is missing: `… options=`.
pub(in crate::blendsql) fn begins_argument(sql: &str, preceding: &[Token], word: Token) -> bool {
    let after_operand = preceding.last().is_some_and(|last| ends_operand(sql, *last));
    if !after_operand || find_keyword(word.text(sql)).is_none() {
        return false;
    }
    let rest = sql.get(word.end..).unwrap_or_default().trim_start();
    rest.starts_with('=') && !rest.starts_with("==")
}

/// Returns true if this token ends an operand, so that another operand cannot follow directly.
fn ends_operand(sql: &str, token: Token) -> bool {
    const BEFORE_OPERANDS: [&str; 6] = ["CASE", "DISTINCT", "ELSE", "FROM", "THEN", "WHEN"];
    match token.lexeme {
        TokenKind::Symbol(symbol) => matches!(symbol, b')' | b']'),
        TokenKind::Word => !OPERATORS.iter().chain(&BEFORE_OPERANDS).any(|w| token.is_word(sql, w)),
        TokenKind::Colons => false,
        _ => true,
    }
}

/// Returns true if a token that follows a string continues an expression.
fn continues_expression(sql: &str, token: Token) -> bool {
    match token.lexeme {
        TokenKind::Symbol(symbol) => symbol != b'(',
        TokenKind::Colons => true,
        TokenKind::Word => OPERATORS.iter().any(|operator| token.is_word(sql, operator)),
        _ => false,
    }
}
