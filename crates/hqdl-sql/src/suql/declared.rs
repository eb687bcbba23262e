//! Type unification of operands by their declared types. In `PostgreSQL`, a text literal compared
//! with a date is converted to a date, and one compared with a boolean to a boolean. `SQLite`
//! compares the stored values, so the translation converts each operand to the other's type.

use super::cast::CastTarget;
use super::functions::{number_of, truth_of};
use super::literal::{TYPES, literal};
use super::parser::{ExprShape, PRIMARY, Parser, Piece, SuqlSelect, TypedColumns, joined};
use super::text::Part;
use crate::blendsql::SqlError;

/// Label of the error for a text literal that cannot be converted to the other operand's type.
const BESIDE: &str = "read as what is beside it";

/// Parses a column's declared type; returns [`ExprShape::Plain`] for an unknown one.
pub(super) fn declared(written: &str) -> ExprShape {
    let upper = written.trim().to_ascii_uppercase();
    let name = upper.split(['(', ' ', '[']).next().unwrap_or_default();
    if upper.ends_with(']') {
        return ExprShape::Array;
    }
    if ["DATETIME", "SERIAL", "BIGSERIAL", "DEC"].contains(&name) {
        return match name {
            "DATETIME" => ExprShape::Timestamp,
            "DEC" => ExprShape::Numeric,
            _ => ExprShape::Number,
        };
    }
    let found = TYPES.iter().find(|(names, _)| names.contains(&name));
    found.map_or(ExprShape::Plain, |(_, target)| target.shape())
}

impl ExprShape {
    /// Returns the type of a column with this expression.
    pub fn of_column(&self) -> Self {
        match self {
            Self::Literal(_) => Self::Text,
            Self::Call | Self::Interval(_) | Self::Enum(_) | Self::Row(_) => Self::Plain,
            other => other.clone(),
        }
    }

    /// Returns the common type of both: a numeric type for two numbers, a timestamp for a date and
    /// a timestamp, or the type of both if they are equal.
    pub fn or(&self, other: &Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a.clone(),
            (a, b) if a.is_number() && b.is_number() => {
                if [a, b].contains(&&Self::Float) {
                    Self::Float
                } else {
                    Self::Numeric
                }
            }
            (Self::Date, Self::Timestamp) | (Self::Timestamp, Self::Date) => Self::Timestamp,
            _ => Self::Plain,
        }
    }

    /// Returns true for any numeric type.
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Number | Self::Numeric | Self::Float)
    }
}

/// Returns the common type of expressions. Text literals and NULL adopt the type of the others.
pub(super) fn one_of<'p>(sql: &str, pieces: impl IntoIterator<Item = &'p Piece>) -> ExprShape {
    let is_null =
        |p: &Piece| sql.get(p.span.clone()).is_some_and(|text| text.eq_ignore_ascii_case("NULL"));
    let of = pieces.into_iter().filter(|p| !is_null(p));
    let (texts, others): (Vec<&Piece>, Vec<&Piece>) =
        of.partition(|p| matches!(p.shape, ExprShape::Literal(_)));
    let shapes = others.iter().map(|p| p.shape.of_column());
    let all_texts = if texts.is_empty() { ExprShape::Plain } else { ExprShape::Text };
    shapes.reduce(|a, b| a.or(&b)).unwrap_or(all_texts)
}

impl Parser<'_> {
    /// Converts alternative values to their common type, and returns that type.
    ///
    /// # Errors
    /// [`SqlError`] for a text literal that cannot be converted.
    pub fn as_one(&self, values: Vec<&mut Piece>) -> Result<ExprShape, SqlError> {
        let shape = one_of(self.sql, values.iter().map(|piece| &**piece));
        for piece in values {
            match piece.shape.clone() {
                ExprShape::Literal(text) => {
                    *piece = Self::read_as(piece.clone(), &text, &shape)?;
                }
                ExprShape::Date if shape == ExprShape::Timestamp => {
                    let text = vec![piece.text.clone()];
                    *piece =
                        Piece::filled(CastTarget::Timestamp.template(), text, piece.span.clone());
                }
                _ => {}
            }
        }
        Ok(shape)
    }

    /// Returns the type of a column of the visible tables; [`ExprShape::Plain`] if it is unknown.
    pub fn type_of(&self, table: Option<&str>, column: &str) -> ExprShape {
        let of = self.selects.iter().rev().find_map(|select| select.type_of(table, column));
        of.unwrap_or(ExprShape::Plain)
    }

    /// Converts two operands to each other's type.
    ///
    /// # Errors
    /// [`SqlError`] for a text literal that cannot be converted.
    pub fn beside(left: Piece, right: Piece) -> Result<(Piece, Piece), SqlError> {
        if let (ExprShape::Row(a), ExprShape::Row(b)) = (&left.shape, &right.shape)
            && a.len() == b.len()
        {
            let both = a.iter().cloned().zip(b.iter().cloned());
            let both: Result<Vec<(Piece, Piece)>, SqlError> =
                both.map(|(a, b)| Self::beside(a, b)).collect();
            let (a, b) = both?.into_iter().unzip();
            return Ok((left.of_values(a), right.of_values(b)));
        }
        Self::comparable(&left, &right)?;
        let (of_left, of_right) = (left.clone(), right.clone());
        Ok((Self::read_beside(left, &of_right)?, Self::read_beside(right, &of_left)?))
    }

    /// Fails if both types are known and cannot be compared; `PostgreSQL` reports an error, too.
    fn comparable(left: &Piece, right: &Piece) -> Result<(), SqlError> {
        use ExprShape::{Boolean, Date, Text, Time, Timestamp};
        let apart = |a: &ExprShape, b: &ExprShape| match a {
            Date | Timestamp | Time => b.is_number() || *b == Boolean,
            Boolean => matches!(b, Text),
            _ => false,
        };
        if !apart(&left.shape, &right.shape) && !apart(&right.shape, &left.shape) {
            return Ok(());
        }
        let of = |piece: &Piece| match piece.shape {
            Date => "a date",
            Timestamp => "a timestamp",
            Time => "a time of a day",
            Boolean => "true or false",
            Text => "a text",
            _ => "a number",
        };
        let span = left.span.start..right.span.end;
        let message = format!("this compares {} with {}", of(left), of(right));
        let error = SqlError::new(span, message, "here");
        Err(error.help("cast one of them"))
    }

    /// Converts an operand to the type of the other one, if necessary.
    fn read_beside(piece: Piece, other: &Piece) -> Result<Piece, SqlError> {
        if let ExprShape::Literal(text) = &piece.shape {
            let text = text.clone();
            return Self::read_as(piece, &text, &other.shape);
        }
        let target = match (&piece.shape, &other.shape) {
            // Compare two columns as they are stored, so that an index can be used.
            (ExprShape::Boolean, ExprShape::Boolean | ExprShape::Literal(_))
                if piece.is_column() && !other.is_column() =>
            {
                CastTarget::Boolean
            }
            (ExprShape::Date, ExprShape::Date | ExprShape::Literal(_))
                if piece.is_column() && !other.is_column() =>
            {
                CastTarget::Date
            }
            (ExprShape::Timestamp, ExprShape::Timestamp | ExprShape::Literal(_))
                if piece.is_column() && !other.is_column() =>
            {
                CastTarget::Timestamp
            }
            (ExprShape::Timestamp, ExprShape::Date) if piece.is_column() => CastTarget::Timestamp,
            (ExprShape::Date | ExprShape::Text | ExprShape::Plain, ExprShape::Timestamp)
                if !other.is_column() || piece.shape == ExprShape::Date =>
            {
                CastTarget::Timestamp
            }
            _ => return Ok(piece),
        };
        let span = piece.span.clone();
        Ok(Piece { shape: piece.shape, ..Piece::filled(target.template(), vec![piece.text], span) })
    }

    /// Converts a text literal to the type of the other operand.
    ///
    /// # Errors
    /// [`SqlError`] for a text that cannot be converted.
    pub fn read_as(piece: Piece, text: &str, as_what: &ExprShape) -> Result<Piece, SqlError> {
        let span = piece.span.clone();
        let target = match as_what {
            ExprShape::Boolean => return Self::truth(text, span, BESIDE),
            ExprShape::Array => return Ok(Self::as_array(piece)),
            number if number.is_number() => {
                if number_of(text).is_none() {
                    let message = format!("'{text}' is not a number");
                    return Err(SqlError::new(span, message, BESIDE));
                }
                let part = Part::New(format!("({})", text.trim()), span.clone());
                return Ok(Piece { shape: as_what.clone(), ..Piece::new(vec![part], span) });
            }
            ExprShape::Date => CastTarget::Date,
            ExprShape::Timestamp => CastTarget::Timestamp,
            ExprShape::Time => CastTarget::Time,
            _ => return Ok(piece),
        };
        Ok(literal(target, text, &span)?.unwrap_or(piece))
    }

    /// Converts a condition that is a declared boolean column to a boolean.
    pub fn condition(piece: Piece) -> Piece {
        if piece.shape != ExprShape::Boolean || !piece.is_column() {
            return piece;
        }
        let span = piece.span.clone();
        Piece::filled(CastTarget::Boolean.template(), vec![piece.text], span).boolean()
    }

    /// Converts a text literal to a boolean.
    pub fn truth(text: &str, span: std::ops::Range<usize>, label: &str) -> Result<Piece, SqlError> {
        let Some(truth) = truth_of(text) else {
            let message = format!("'{text}' is neither true nor false");
            let error = SqlError::new(span, message, label);
            return Err(error.help("write TRUE or FALSE, or a text such as 'yes' or 'no'"));
        };
        let word = if truth { "TRUE" } else { "FALSE" };
        Ok(Piece::new(vec![Part::New(word.to_owned(), span.clone())], span).boolean())
    }
}

impl Piece {
    /// Returns the row with other values.
    fn of_values(self, values: Vec<Self>) -> Self {
        let text = joined(self.span.start, values, self.span.end);
        Self { text, ..self }
    }

    /// Returns true for a plain column, whose stored values may have a different format than
    /// computed ones.
    fn is_column(&self) -> bool {
        self.level == PRIMARY && matches!(self.text.as_slice(), [Part::Column(..)])
    }
}

impl SuqlSelect {
    /// Returns the type of a column of this SELECT's tables; `None` if no table has it.
    fn type_of(&self, table: Option<&str>, column: &str) -> Option<ExprShape> {
        let is_meant = |name: Option<&String>| match (table, name) {
            (Some(table), Some(name)) => name.eq_ignore_ascii_case(table),
            (None, _) => true,
            (Some(_), None) => false,
        };
        let mut found: Option<ExprShape> = None;
        for of in self.tables.iter().filter(|t| is_meant(t.name.as_ref())) {
            let Some(columns) = &of.columns else { return Some(ExprShape::Plain) };
            for (_, shape) in columns.iter().filter(|(name, _)| name.eq_ignore_ascii_case(column)) {
                found = Some(found.map_or_else(|| shape.clone(), |before| before.or(shape)));
            }
        }
        found
    }

    /// Returns the columns of `*`, or those of one table.
    pub fn all_columns(&self, of: Option<&str>) -> TypedColumns {
        let is_meant = |name: Option<&String>| {
            of.is_none_or(|of| name.is_some_and(|name| name.eq_ignore_ascii_case(of)))
        };
        // USING and NATURAL merge columns.
        if of.is_none() && self.merged {
            return None;
        }
        let mut all = Vec::new();
        for table in self.tables.iter().filter(|t| is_meant(t.name.as_ref())) {
            all.extend(table.columns.clone()?);
        }
        (!all.is_empty()).then_some(all)
    }
}
