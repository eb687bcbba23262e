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
    Limit,
    Narrow,
    /// Tunes `BlendSQL`'s own machinery; changes no result here.
    Ignored,
}

/// The keywords as they are and as they once were, and what each says.
const KEYWORDS: [(&str, Keyword); 32] = [
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
    ("regex", Keyword::Regex),
    ("pattern", Keyword::Regex),
    ("limit", Keyword::Limit),
    ("narrow", Keyword::Narrow),
    ("batch_size", Keyword::Ignored),
    ("few_shot_examples", Keyword::Ignored),
    ("few_shot", Keyword::Ignored),
    ("num_few_shot_examples", Keyword::Ignored),
    ("example_outputs", Keyword::Ignored),
    ("max_tokens", Keyword::Ignored),
    ("model", Keyword::Ignored),
    ("context_formatter", Keyword::Ignored),
    ("list_options_in_prompt", Keyword::Ignored),
    ("options_searcher", Keyword::Ignored),
    ("context_searcher", Keyword::Ignored),
    ("enable_constrained_decoding", Keyword::Ignored),
    ("cascade_filter", Keyword::Ignored),
    ("long_answer", Keyword::Ignored),
    ("value_limit", Keyword::Ignored),
    ("table", Keyword::Ignored),
    ("sep", Keyword::Ignored),
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
            Self::Question | Self::Limit | Self::Ignored => true,
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
        limit: parts.limit,
        narrow: parts.narrow,
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
    limit: Option<u32>,
    narrow: Option<u32>,
}

impl Parts {
    fn add(
        &mut self,
        sql: &str,
        kind: Kind,
        piece: &Piece,
        question_is_named: bool,
    ) -> Result<(), SqlError> {
        missing_comma(sql, &piece.tokens)?;
        let Some(name) = piece.keyword else {
            self.positions += 1;
            return self.position(sql, kind, &piece.tokens, question_is_named);
        };
        let keyword = keyword(sql, kind, name)?;
        let repeatable = matches!(keyword, Keyword::Context | Keyword::Ignored);
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
            Keyword::ReturnType => self.return_type = result::return_type(sql, tokens)?,
            Keyword::Quantifier => self.quantifier = result::quantifier(sql, tokens)?,
            Keyword::Regex => self.regex = result::written_text(sql, tokens, "the regex")?,
            Keyword::Limit => self.limit = result::limit(sql, tokens)?,
            Keyword::Narrow => self.narrow = result::narrow(sql, tokens)?,
            Keyword::Ignored => {}
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
        if keyword.is_of(kind) && keyword != Keyword::Ignored && !seen.contains(&keyword) {
            seen.push(keyword);
            names.push(name);
        }
    }
    names.join(", ")
}

/// Finds `… options=` where a comma is missing before it.
fn missing_comma(sql: &str, tokens: &[Token]) -> Result<(), SqlError> {
    let mut depth = 0_usize;
    for (n, token) in tokens.iter().enumerate() {
        match token.lexeme {
            Lexeme::Symbol(b'(' | b'[' | b'{') => depth += 1,
            Lexeme::Symbol(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            Lexeme::Word if depth == 0 && n > 0 && find(token.text(sql)).is_some() => {
                let after_operand =
                    tokens.get(n - 1).is_some_and(|before| ends_operand(sql, *before));
                if after_operand && tokens.get(n + 1).is_some_and(|t| t.is(b'=')) {
                    return Err(SqlError::new(
                        token.span(),
                        format!("a comma is missing before `{}`", token.text(sql)),
                        "expected `,` before this",
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
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
