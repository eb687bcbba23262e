//! Answers as Arrow arrays, one a place: the values, and the states behind them.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float64Builder, Int64Builder, LargeListBuilder,
    LargeStringBuilder, make_builder,
};
use arrow_array::{ArrayRef, LargeStringArray, UInt32Array};
use arrow_schema::DataType;
use arrow_select::take::take;
use hqdl::cell::{Answer, CellValue};
use hqdl::spec::Type;
use hqdl::value::Value;

use crate::errors::{Failed, input};

/// The values of answers, spread over the places.
pub fn values(
    answers: &[Option<Answer>],
    places: &[Option<u32>],
    kind: Type,
    list: bool,
) -> Result<ArrayRef, Failed> {
    let shown = |answer: &Option<Answer>| answer.as_ref().map(|a| a.value.clone());
    let cells: Vec<CellValue> =
        answers.iter().map(|a| shown(a).unwrap_or(CellValue::Nothing)).collect();
    let distinct: ArrayRef = if list { lists(&cells, kind) } else { ones(&cells, kind) };
    let at: UInt32Array = places.iter().collect();
    take(&distinct, &at, None).map_err(|e| input(e.to_string(), ""))
}

/// The states of answers, spread over the places; NULL where the value is.
pub fn states(answers: &[Option<Answer>], places: &[Option<u32>]) -> Result<ArrayRef, Failed> {
    let name = |answer: &Option<Answer>| answer.as_ref().map(|a| a.state.name());
    let distinct: ArrayRef = Arc::new(answers.iter().map(name).collect::<LargeStringArray>());
    let at: UInt32Array = places.iter().collect();
    take(&distinct, &at, None).map_err(|e| input(e.to_string(), ""))
}

/// The Arrow type of answers.
fn arrow(kind: Type) -> DataType {
    match kind {
        Type::Integer => DataType::Int64,
        Type::Real => DataType::Float64,
        Type::Boolean => DataType::Boolean,
        Type::Text | Type::Date | Type::Url => DataType::LargeUtf8,
    }
}

fn ones(cells: &[CellValue], kind: Type) -> ArrayRef {
    let mut all = make_builder(&arrow(kind), cells.len());
    for cell in cells {
        match cell {
            CellValue::One(value) => push(&mut *all, value),
            CellValue::Nothing | CellValue::Many(_) => push(&mut *all, &Value::Null),
        }
    }
    all.finish()
}

fn lists(cells: &[CellValue], kind: Type) -> ArrayRef {
    let mut all = LargeListBuilder::new(make_builder(&arrow(kind), cells.len()));
    for cell in cells {
        match cell {
            CellValue::Many(values) => {
                values.iter().for_each(|v| push(all.values(), v));
                all.append(true);
            }
            CellValue::Nothing | CellValue::One(_) => all.append(false),
        }
    }
    Arc::new(all.finish())
}

/// Adds a value, or NULL where it is of another type than its column.
fn push(to: &mut dyn ArrayBuilder, value: &Value) {
    let to = to.as_any_mut();
    if let Some(all) = to.downcast_mut::<LargeStringBuilder>() {
        all.append_option(value.text());
    } else if let Some(all) = to.downcast_mut::<Int64Builder>() {
        all.append_option(if let Value::Integer(i) = value { Some(*i) } else { None });
    } else if let Some(all) = to.downcast_mut::<BooleanBuilder>() {
        all.append_option(if let Value::Integer(i) = value { Some(*i != 0) } else { None });
    } else if let Some(all) = to.downcast_mut::<Float64Builder>() {
        all.append_option(match value {
            Value::Real(real) => Some(*real),
            Value::Integer(integer) => Some(*integer as f64),
            Value::Null | Value::Text(_) => None,
        });
    }
}
