//! Builds a call from its arguments: the question, the values and the options of the answer.

use crate::blendsql::argument::{self, span};
use crate::blendsql::ingredients::keyword::{KEYWORDS, find};
use crate::blendsql::ingredients::{Arguments, Keyword, Subject, Which};
use crate::blendsql::lexer::{Lexeme, Token};
use crate::blendsql::scan::{ArgumentText, ScannedCall};
use crate::blendsql::{Argument, Call, Choices, SqlError, choices, result};
use hqdl_values::problem::nearest;
use hqdl_values::value::Value;

/// Operators that are keywords.
const OPERATORS: [&str; 14] = [
    "AND", "BETWEEN", "COLLATE", "ESCAPE", "GLOB", "IN", "IS", "ISNULL", "LIKE", "MATCH", "NOT",
    "NOTNULL", "OR", "REGEXP",
];

/// Parses the arguments of a scanned call.
pub(in crate::blendsql) fn read(sql: &str, written: ScannedCall) -> Result<Call, SqlError> {
    let ingredient = written.ingredient;
    let mut parts = Parts::default();
    let named =
        |k: &ArgumentText| k.keyword.and_then(|k| find(k.text(sql))) == Some(Keyword::Question);
    let question_is_named = written.pieces.iter().any(named);
    for piece in &written.pieces {
        parts.add(sql, ingredient, piece, question_is_named)?;
    }
    let empty = written.name.end..written.close.end;
    let question = match parts.question {
        Some(question) if ingredient.question_may_lack() || !question.trim().is_empty() => question,
        None if ingredient.question_may_lack() => String::new(),
        _ => {
            return Err(SqlError::new(
                empty.clone(),
                format!("`{}` has no question", ingredient.name()),
                "expected a question, as a text, as the first argument",
            ));
        }
    };
    // Append to the question: instructions to the model affect the answer, so they are part of the
    // call's identity.
    let question = parts.appended.iter().fold(question, |q, more| format!("{q} {more}"));
    let mut positional = parts.values.into_iter();
    let left = parts
        .left
        .or_else(|| if ingredient.takes(Keyword::Left) { positional.next() } else { None });
    let right = parts
        .right
        .or_else(|| if ingredient.takes(Keyword::Right) { positional.next() } else { None });
    let values: Vec<Argument> =
        parts.value.into_iter().chain(left).chain(right).chain(positional).collect();
    written.ingredient.check(&Arguments {
        question: &question,
        values: &values,
        empty,
        close: written.close.span(),
    })?;
    if let (Some(kind), Some(said)) = (ingredient.returns(), parts.return_type)
        && (said.list || said.scalar != kind)
    {
        let name = ingredient.name();
        let message = format!("`{name}` returns a {}", kind.name());
        let span = written.open.start..written.end;
        let error = SqlError::new(span, message, "its return type contradicts this");
        return Err(error.help("remove `return_type`, or write LLMQA"));
    }
    let list = parts.return_type.is_some_and(|t| t.list) || parts.quantifier.is_some();
    if written.row && list && parts.quantifier.is_none_or(|quantifier| quantifier.max.is_none()) {
        let span = written.open.start..written.end;
        let error = SqlError::new(
            span,
            "a row of VALUES needs a list with a fixed number of values",
            "a list of any length",
        );
        return Err(error.help(
            "set the number with quantifier='{3}' or '{1,3}'; to get one row per value write FROM {{LLMQA(…)}}",
        ));
    }
    Ok(Call {
        ingredient,
        span: written.open.start..written.end,
        question,
        values,
        options: parts.options,
        return_type: parts.return_type,
        substring: parts.substring,
        quantifier: parts.quantifier,
        regex: parts.regex,
        narrow: parts.narrow,
        model: parts.model,
        image: parts.image,
        tuning: parts.tuning,
        inner: written.inner,
        row: written.row,
    })
}

/// Arguments of a call that have been parsed so far.
#[derive(Default)]
struct Parts {
    seen: Vec<Keyword>,
    positions: usize,
    question: Option<String>,
    value: Option<Argument>,
    left: Option<Argument>,
    right: Option<Argument>,
    values: Vec<Argument>,
    options: Option<crate::blendsql::Choices>,
    return_type: Option<crate::blendsql::ReturnType>,
    substring: bool,
    quantifier: Option<crate::blendsql::Quantifier>,
    regex: Option<String>,
    narrow: Option<u32>,
    model: Option<(String, std::ops::Range<usize>)>,
    image: bool,
    /// Instructions to the model, appended to the question.
    appended: Vec<String>,
    tuning: Vec<String>,
}

impl Parts {
    fn add(
        &mut self,
        sql: &str,
        ingredient: Which,
        piece: &ArgumentText,
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        let Some(name) = piece.keyword else {
            self.positions += 1;
            return self.position(sql, ingredient, &piece.tokens, question_is_named);
        };
        let keyword = keyword(sql, ingredient, name)?;
        let repeatable = matches!(keyword, Keyword::Context | Keyword::Tuning);
        if !repeatable && self.seen.contains(&keyword) {
            return Err(SqlError::new(
                name.start..span(&piece.tokens).end,
                format!("`{}` appears twice", name.text(sql)),
                "second time",
            ));
        }
        self.seen.push(keyword);
        let tokens = piece.tokens.as_slice();
        match keyword {
            Keyword::Question => self.question = result::written_text(sql, tokens, "the question")?,
            Keyword::Value => self.value = argument::read(sql, tokens)?,
            Keyword::Context => self.values.extend(argument::read(sql, tokens)?),
            Keyword::Left => self.left = argument::read_column(sql, tokens)?,
            Keyword::Right => self.right = argument::read_column(sql, tokens)?,
            Keyword::Options => {
                self.options = choices::read(sql, tokens)?;
                let none = matches!(&self.options, Some(Choices::List(values))
                    if values.iter().all(|v| *v == Value::Null));
                if none {
                    let error = SqlError::new(
                        span(tokens),
                        "the list of options is empty",
                        "no answer can be an option",
                    );
                    return Err(error.help("remove `options` to allow any answer"));
                }
            }
            Keyword::ReturnType => {
                self.return_type = result::return_type(sql, tokens)?;
                if result::is_substring(sql, tokens) {
                    self.substring = true;
                    self.appended.push("Answer with a part of the text, word by word.".to_owned());
                }
            }
            Keyword::Quantifier => self.quantifier = result::quantifier(sql, tokens)?,
            Keyword::Regex => self.regex = result::written_text(sql, tokens, "the regex")?,
            Keyword::Narrow => self.narrow = result::narrow(sql, tokens)?,
            Keyword::Model => {
                let named = result::written_text(sql, tokens, "the model")?;
                self.model = named.map(|name| (name, span(tokens)));
            }
            Keyword::Image => self.image = result::truth(sql, tokens, "image")?,
            Keyword::Examples => self.appended.extend(result::examples(sql, tokens)?),
            Keyword::Long => {
                if result::truth(sql, tokens, "long_answer")? {
                    self.appended.push("Answer at length.".to_owned());
                }
            }
            Keyword::Shots if result::is_nothing(sql, tokens) => {}
            Keyword::Shots => {
                return Err(SqlError::new(
                    name.span(),
                    format!("`{}` is not an argument here", name.text(sql)),
                    "a query cannot contain examples",
                )
                .help("use `shots` of an expansion for example rows, or example_outputs=('…', '…') for example answers"));
            }
            Keyword::Tuning => self.tuning.push(name.text(sql).to_owned()),
        }
        Ok(())
    }

    /// Adds a positional argument.
    fn position(
        &mut self,
        sql: &str,
        ingredient: Which,
        tokens: &[Token],
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        let at = ingredient.question_at();
        if at > 1 {
            if let ([text], false) = (tokens, question_is_named)
                && self.positions == at
                && text.lexeme == Lexeme::Text
            {
                self.question = Some(text.content(sql));
                return Ok(());
            }
        } else if self.positions == 1 && !question_is_named {
            return self.first(sql, ingredient, tokens);
        } else if let ([text], 1) = (tokens, self.positions)
            && text.lexeme == Lexeme::Text
            && argument::old_column(sql, tokens).is_none()
        {
            return Err(SqlError::new(
                text.span(),
                "the call has two questions",
                "a second text where a value is expected",
            )
            .help("write the question first, then the value"));
        }
        self.values.extend(match ingredient.subject() {
            Subject::Pair => argument::read_column(sql, tokens)?,
            _ => value(sql, tokens)?,
        });
        Ok(())
    }

    /// Parses the question, which a value can follow without a comma.
    fn first(&mut self, sql: &str, ingredient: Which, tokens: &[Token]) -> Result<(), SqlError> {
        let (text, rest) = match tokens {
            [text, rest @ ..] if matches!(text.lexeme, Lexeme::Text | Lexeme::Quoted) => {
                (*text, rest)
            }
            _ => {
                result::written_text(sql, tokens, "the question").map_err(|error| SqlError {
                    message: format!("the question of `{}` is not a text", ingredient.name()),
                    ..error
                })?;
                // `None` is the same as no question.
                return Ok(());
            }
        };
        if rest.first().is_some_and(|next| continues(sql, *next)) {
            return Err(SqlError::new(
                span(tokens),
                "the question is an expression",
                "expected one text",
            )
            .help("write the whole question as one text; {} in it stands for a value"));
        }
        if let [next] = rest
            && next.lexeme == Lexeme::Text
            && argument::old_column(sql, rest).is_none()
        {
            return Err(SqlError::new(
                next.span(),
                "two texts follow each other",
                "expected a comma before this text",
            )
            .help("write a question of several lines as one text"));
        }
        self.question = Some(text.content(sql));
        if !rest.is_empty() {
            self.values.extend(value(sql, rest)?);
        }
        Ok(())
    }
}

/// Parses a positional value; NULL is a value.
fn value(sql: &str, tokens: &[Token]) -> Result<Option<Argument>, SqlError> {
    Ok(argument::read(sql, tokens)?.or_else(|| Some(Argument::Sql(span(tokens)))))
}

/// Parses an argument's keyword. Fails if the ingredient does not accept it.
fn keyword(sql: &str, ingredient: Which, name: Token) -> Result<Keyword, SqlError> {
    let word = name.text(sql);
    let has: Vec<&str> =
        KEYWORDS.iter().filter(|(_, k)| ingredient.takes(*k)).map(|(name, _)| *name).collect();
    match find(word) {
        Some(keyword) if ingredient.takes(keyword) => Ok(keyword),
        found => {
            let error = SqlError::new(
                name.span(),
                format!("`{}` has no argument `{word}`", ingredient.name()),
                "not an argument",
            );
            Err(match nearest(word, has) {
                Some(near) if found.is_none() => error.suggest(near),
                _ if found.is_none() => {
                    error.help(format!("a comparison as a value needs parentheses: ({word} = …)"))
                }
                _ => error,
            })
        }
    }
}

/// Returns true if `word` begins a new keyword argument after the tokens `preceding`, although the
/// comma is missing: `… options=`.
pub(in crate::blendsql) fn begins_argument(sql: &str, before: &[Token], word: Token) -> bool {
    let after_operand = before.last().is_some_and(|last| ends_operand(sql, *last));
    if !after_operand || find(word.text(sql)).is_none() {
        return false;
    }
    let rest = sql.get(word.end..).unwrap_or_default().trim_start();
    rest.starts_with('=') && !rest.starts_with("==")
}

/// Returns true if an operand ends with this token, so that no operand can follow directly.
fn ends_operand(sql: &str, token: Token) -> bool {
    const BEFORE_OPERANDS: [&str; 6] = ["CASE", "DISTINCT", "ELSE", "FROM", "THEN", "WHEN"];
    match token.lexeme {
        Lexeme::Symbol(symbol) => matches!(symbol, b')' | b']'),
        Lexeme::Word => !OPERATORS.iter().chain(&BEFORE_OPERANDS).any(|w| token.is_word(sql, w)),
        Lexeme::Colons => false,
        _ => true,
    }
}

/// Returns true if a token after a string continues an expression.
fn continues(sql: &str, token: Token) -> bool {
    match token.lexeme {
        Lexeme::Symbol(symbol) => symbol != b'(',
        Lexeme::Colons => true,
        Lexeme::Word => OPERATORS.iter().any(|operator| token.is_word(sql, operator)),
        _ => false,
    }
}
