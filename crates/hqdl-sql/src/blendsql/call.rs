//! Puts a call together from its arguments: which is the question, which are
//! values, which say what the answer is.

use super::argument::{self, span};
use super::lexer::{Lexeme, Token};
use super::scan::{Piece, Written};
use super::{Argument, Call, Kind, SqlError, choices, result};
use hqdl_values::problem::nearest;

/// What a keyword argument says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keyword {
    Question,
    Value,
    Context,
    Left,
    Right,
    Options,
    ReturnType,
    Quantifier,
    Regex,
    Narrow,
    /// Which model is asked.
    Model,
    /// Answers to show the model as examples of their form.
    Examples,
    /// Whether the answer is to be a long one.
    Long,
    /// Rows to show the model as examples: a spec has them.
    Shots,
    /// Tunes `BlendSQL`'s own machinery; changes no result here, and is told.
    Tuning,
}

/// The keywords as they are and as they once were, and what each says.
const KEYWORDS: [(&str, Keyword); 35] = [
    ("question", Keyword::Question),
    ("join_criteria", Keyword::Question),
    ("value", Keyword::Value),
    ("values", Keyword::Value),
    ("context", Keyword::Context),
    ("left_on", Keyword::Left),
    ("right_on", Keyword::Right),
    ("options", Keyword::Options),
    ("return_type", Keyword::ReturnType),
    ("output_type", Keyword::ReturnType),
    ("quantifier", Keyword::Quantifier),
    ("modifier", Keyword::Quantifier),
    ("regex", Keyword::Regex),
    ("pattern", Keyword::Regex),
    ("limit", Keyword::Tuning),
    ("narrow", Keyword::Narrow),
    ("batch_size", Keyword::Tuning),
    ("few_shot_examples", Keyword::Shots),
    ("few_shot", Keyword::Shots),
    ("num_few_shot_examples", Keyword::Shots),
    ("example_outputs", Keyword::Examples),
    ("max_tokens", Keyword::Tuning),
    ("model", Keyword::Model),
    ("context_formatter", Keyword::Tuning),
    ("list_options_in_prompt", Keyword::Tuning),
    ("options_searcher", Keyword::Tuning),
    ("context_searcher", Keyword::Tuning),
    ("enable_constrained_decoding", Keyword::Tuning),
    ("cascade_filter", Keyword::Tuning),
    ("enable_cascade_filter", Keyword::Tuning),
    ("searcher", Keyword::Tuning),
    ("long_answer", Keyword::Long),
    ("value_limit", Keyword::Tuning),
    ("table", Keyword::Tuning),
    ("sep", Keyword::Tuning),
];

/// Operators that are words.
const OPERATORS: [&str; 14] = [
    "AND", "BETWEEN", "COLLATE", "ESCAPE", "GLOB", "IN", "IS", "ISNULL", "LIKE", "MATCH", "NOT",
    "NOTNULL", "OR", "REGEXP",
];

impl Keyword {
    /// Whether an ingredient has this argument.
    fn is_of(self, kind: Kind) -> bool {
        match self {
            Self::Left | Self::Right | Self::Narrow => kind == Kind::Join,
            Self::Question | Self::Model | Self::Shots | Self::Tuning => true,
            _ => kind != Kind::Join,
        }
    }
}

/// Whether `[` after `keyword=` begins a list; where SQL is expected it begins
/// a quoted name.
pub(super) fn takes_a_list(keyword: &str) -> bool {
    !matches!(
        find(keyword),
        Some(Keyword::Value | Keyword::Context | Keyword::Left | Keyword::Right)
    )
}

fn find(keyword: &str) -> Option<Keyword> {
    KEYWORDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(keyword)).map(|(_, what)| *what)
}

/// Reads the arguments of a call that was taken apart.
pub(super) fn read(sql: &str, written: Written) -> Result<Call, SqlError> {
    let kind = written.kind;
    let mut parts = Parts::default();
    let named = |k: &Piece| k.keyword.and_then(|k| find(k.text(sql))) == Some(Keyword::Question);
    let question_is_named = written.pieces.iter().any(named);
    for piece in &written.pieces {
        parts.add(sql, kind, piece, question_is_named)?;
    }
    let empty = written.name.end..written.close.end;
    let question = match parts.question {
        Some(question) if kind == Kind::Join || !question.trim().is_empty() => question,
        None if kind == Kind::Join => String::new(),
        _ => {
            return Err(SqlError::new(
                empty,
                format!("`{}` has no question", kind.name()),
                "expected a question, as a text, first",
            ));
        }
    };
    // Part of the question: what is said to the model decides the answer.
    let question = parts.appended.iter().fold(question, |q, more| format!("{q} {more}"));
    let mut positional = parts.values.into_iter();
    let values: Vec<Argument> = if kind == Kind::Join {
        let left = parts.left.or_else(|| positional.next());
        let right = parts.right.or_else(|| positional.next());
        left.into_iter().chain(right).chain(positional).collect()
    } else {
        parts.value.into_iter().chain(positional).collect()
    };
    match (kind, values.as_slice()) {
        (Kind::Map, []) => Err(SqlError::new(
            written.close.span(),
            "`LLMMap` has no value to ask about",
            "expected a column or an expression before this",
        )
        .help(format!("write {{{{LLMMap('{}', t.column)}}}}", short(&question)))),
        (Kind::Join, [] | [_]) => Err(SqlError::new(
            empty,
            "`LLMJoin` needs two columns",
            "expected the left and the right column",
        )
        .help("write {{LLMJoin(t.a, u.b)}}")),
        (Kind::Join, [_, _, third, ..]) => {
            Err(SqlError::new(place(third), "`LLMJoin` joins two columns", "one column too many")
                .help("what makes two values partners is given as join_criteria='…'"))
        }
        _ => Ok(()),
    }?;
    Ok(Call {
        kind,
        span: written.open.start..written.end,
        question,
        values,
        options: parts.options,
        return_type: parts.return_type,
        quantifier: parts.quantifier,
        regex: parts.regex,
        narrow: parts.narrow,
        model: parts.model,
        tuning: parts.tuning,
        inner: written.inner,
        row: written.row,
    })
}

/// What was read of a call so far.
#[derive(Default)]
struct Parts {
    seen: Vec<Keyword>,
    positions: usize,
    question: Option<String>,
    value: Option<Argument>,
    left: Option<Argument>,
    right: Option<Argument>,
    values: Vec<Argument>,
    options: Option<super::Choices>,
    return_type: Option<super::ReturnType>,
    quantifier: Option<super::Quantifier>,
    regex: Option<String>,
    narrow: Option<u32>,
    model: Option<(String, std::ops::Range<usize>)>,
    /// What is to be said to the model behind the question.
    appended: Vec<String>,
    tuning: Vec<String>,
}

impl Parts {
    fn add(
        &mut self,
        sql: &str,
        kind: Kind,
        piece: &Piece,
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        let Some(name) = piece.keyword else {
            self.positions += 1;
            return self.position(sql, kind, &piece.tokens, question_is_named);
        };
        let keyword = keyword(sql, kind, name)?;
        let repeatable = matches!(keyword, Keyword::Context | Keyword::Tuning);
        if !repeatable && self.seen.contains(&keyword) {
            return Err(SqlError::new(
                name.start..span(&piece.tokens).end,
                format!("`{}` is given twice", name.text(sql)),
                "for the second time",
            ));
        }
        self.seen.push(keyword);
        let tokens = piece.tokens.as_slice();
        match keyword {
            Keyword::Question => self.question = result::written_text(sql, tokens, "the question")?,
            Keyword::Value => self.value = argument::read(sql, tokens)?,
            Keyword::Context => self.values.extend(argument::read(sql, tokens)?),
            Keyword::Left => self.left = argument::read(sql, tokens)?,
            Keyword::Right => self.right = argument::read(sql, tokens)?,
            Keyword::Options => self.options = choices::read(sql, tokens)?,
            Keyword::ReturnType => {
                self.return_type = result::return_type(sql, tokens)?;
                if result::is_substring(sql, tokens) {
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
            Keyword::Examples => self.appended.extend(result::examples(sql, tokens)?),
            Keyword::Long if result::is_true(sql, tokens) => {
                self.appended.push("Answer at length.".to_owned());
            }
            Keyword::Long => {}
            Keyword::Shots if result::is_nothing(sql, tokens) => {}
            Keyword::Shots => {
                return Err(SqlError::new(
                    name.span(),
                    format!("`{}` is no argument here", name.text(sql)),
                    "examples are not given in a query",
                )
                .help("`shots` of an expansion shows rows of a spec; example_outputs=('…', '…') shows answers"));
            }
            Keyword::Tuning => self.tuning.push(name.text(sql).to_owned()),
        }
        Ok(())
    }

    /// An argument without a keyword.
    fn position(
        &mut self,
        sql: &str,
        kind: Kind,
        tokens: &[Token],
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        if kind == Kind::Join {
            // `LLMJoin(l, r, 'criteria')`
            if let ([text], false, 3) = (tokens, question_is_named, self.positions)
                && text.lexeme == Lexeme::Text
            {
                self.question = Some(text.content(sql));
                return Ok(());
            }
        } else if self.positions == 1 && !question_is_named {
            return self.first(sql, kind, tokens);
        } else if let ([text], 1) = (tokens, self.positions)
            && text.lexeme == Lexeme::Text
            && argument::old_column(sql, tokens).is_none()
        {
            return Err(SqlError::new(
                text.span(),
                "the question is given twice",
                "a text at the place of the question",
            )
            .help("a value that is a text comes after the question"));
        }
        self.values.extend(value(sql, tokens)?);
        Ok(())
    }

    /// The question, perhaps with the value behind it and no comma between.
    fn first(&mut self, sql: &str, kind: Kind, tokens: &[Token]) -> Result<(), SqlError> {
        let (text, rest) = match tokens {
            [text, rest @ ..] if matches!(text.lexeme, Lexeme::Text | Lexeme::Quoted) => {
                (*text, rest)
            }
            _ => {
                result::written_text(sql, tokens, "the question").map_err(|error| SqlError {
                    message: format!("the question of `{}` is no text", kind.name()),
                    ..error
                })?;
                // `None`: left out, as if it had not been written.
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

/// Reads a value without a keyword; NULL is one.
fn value(sql: &str, tokens: &[Token]) -> Result<Option<Argument>, SqlError> {
    Ok(argument::read(sql, tokens)?.or_else(|| Some(Argument::Sql(span(tokens)))))
}

/// Which argument a keyword names.
fn keyword(sql: &str, kind: Kind, name: Token) -> Result<Keyword, SqlError> {
    let word = name.text(sql);
    let has: Vec<&str> =
        KEYWORDS.iter().filter(|(_, k)| k.is_of(kind)).map(|(name, _)| *name).collect();
    match find(word) {
        Some(keyword) if keyword.is_of(kind) => Ok(keyword),
        found => {
            let error = SqlError::new(
                name.span(),
                format!("`{}` has no argument `{word}`", kind.name()),
                "not an argument",
            );
            Err(match nearest(word, has) {
                Some(near) if found.is_none() => error.help(format!("did you mean `{near}`?")),
                _ if found.is_none() => {
                    error.help(format!("a comparison as a value needs parentheses: ({word} = …)"))
                }
                _ => error,
            })
        }
    }
}

/// The arguments of an ingredient that change its answer, each by its first name.
pub(super) fn listed(kind: Kind) -> String {
    let mut seen: Vec<Keyword> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (name, keyword) in KEYWORDS {
        if keyword.is_of(kind) && keyword != Keyword::Tuning && !seen.contains(&keyword) {
            seen.push(keyword);
            names.push(name);
        }
    }
    names.join(", ")
}

/// Whether a word after these tokens begins an argument of its own, `… options=`,
/// although no comma stands before it.
pub(super) fn begins_argument(sql: &str, before: &[Token], word: Token) -> bool {
    let after_operand = before.last().is_some_and(|last| ends_operand(sql, *last));
    if !after_operand || find(word.text(sql)).is_none() {
        return false;
    }
    let rest = sql.get(word.end..).unwrap_or_default().trim_start();
    rest.starts_with('=') && !rest.starts_with("==")
}

/// Whether an operand ends with this token, so that none begins after it.
fn ends_operand(sql: &str, token: Token) -> bool {
    const BEFORE_OPERANDS: [&str; 6] = ["CASE", "DISTINCT", "ELSE", "FROM", "THEN", "WHEN"];
    match token.lexeme {
        Lexeme::Symbol(symbol) => matches!(symbol, b')' | b']'),
        Lexeme::Word => !OPERATORS.iter().chain(&BEFORE_OPERANDS).any(|w| token.is_word(sql, w)),
        Lexeme::Colons => false,
        _ => true,
    }
}

/// Whether a token after a text makes an expression with it.
fn continues(sql: &str, token: Token) -> bool {
    match token.lexeme {
        Lexeme::Symbol(symbol) => symbol != b'(',
        Lexeme::Colons => true,
        Lexeme::Word => OPERATORS.iter().any(|operator| token.is_word(sql, operator)),
        _ => false,
    }
}

fn place(argument: &Argument) -> std::ops::Range<usize> {
    match argument {
        Argument::Column { span, .. } | Argument::Sql(span) | Argument::Query(span) => span.clone(),
    }
}

/// The beginning of a question, for a line of help.
fn short(question: &str) -> String {
    let line = question.lines().next().unwrap_or_default();
    if line == question && line.chars().count() <= 40 {
        return line.replace('\'', "''");
    }
    line.chars().take(30).chain(['…']).collect::<String>().replace('\'', "''")
}
