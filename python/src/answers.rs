//! Converts answers to two Arrow arrays, one of values and one of states, with one item per input
//! value.

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

use crate::errors::{Failed, wrong_input};

/// Returns the value of each input's answer; `indices` maps an input to its answer.
pub fn value_array(
    answers: &[Option<Answer>],
    indices: &[Option<u32>],
    data_type: Type,
    is_list: bool,
) -> Result<ArrayRef, Failed> {
    let cell =
        |answer: &Option<Answer>| answer.as_ref().map_or(CellValue::Nothing, |a| a.value.clone());
    let cells: Vec<CellValue> = answers.iter().map(cell).collect();
    let distinct = if is_list {
        build_list_array(&cells, data_type)
    } else {
        build_scalar_array(&cells, data_type)
    };
    let indices: UInt32Array = indices.iter().collect();
    take(&distinct, &indices, None).map_err(|e| wrong_input(e.to_string(), ""))
}

/// Returns the state of each input's answer; NULL for an input that is NULL.
pub fn state_array(
    answers: &[Option<Answer>],
    indices: &[Option<u32>],
) -> Result<ArrayRef, Failed> {
    let name = |answer: &Option<Answer>| answer.as_ref().map(|a| a.state.name());
    let distinct: ArrayRef = Arc::new(answers.iter().map(name).collect::<LargeStringArray>());
    let indices: UInt32Array = indices.iter().collect();
    take(&distinct, &indices, None).map_err(|e| wrong_input(e.to_string(), ""))
}

/// Returns the Arrow type of answers.
fn arrow_type(data_type: Type) -> DataType {
    match data_type {
        Type::Integer => DataType::Int64,
        Type::Real => DataType::Float64,
        Type::Boolean => DataType::Boolean,
        Type::Text | Type::Date | Type::Url => DataType::LargeUtf8,
    }
}

fn build_scalar_array(cells: &[CellValue], data_type: Type) -> ArrayRef {
    let mut builder = make_builder(&arrow_type(data_type), cells.len());
    for cell in cells {
        match cell {
            CellValue::One(value) => append_value(&mut *builder, value),
            CellValue::Nothing | CellValue::Many(_) => append_value(&mut *builder, &Value::Null),
        }
    }
    builder.finish()
}

fn build_list_array(cells: &[CellValue], data_type: Type) -> ArrayRef {
    let mut builder = LargeListBuilder::new(make_builder(&arrow_type(data_type), cells.len()));
    for cell in cells {
        match cell {
            CellValue::Many(values) => {
                values.iter().for_each(|v| append_value(builder.values(), v));
                builder.append(true);
            }
            CellValue::Nothing | CellValue::One(_) => builder.append(false),
        }
    }
    Arc::new(builder.finish())
}

/// Appends a value, or NULL if its type differs from the array's type.
fn append_value(array: &mut dyn ArrayBuilder, value: &Value) {
    let array = array.as_any_mut();
    if let Some(builder) = array.downcast_mut::<LargeStringBuilder>() {
        builder.append_option(value.to_text());
    } else if let Some(builder) = array.downcast_mut::<Int64Builder>() {
        builder.append_option(if let Value::Integer(i) = value { Some(*i) } else { None });
    } else if let Some(builder) = array.downcast_mut::<BooleanBuilder>() {
        builder.append_option(if let Value::Integer(i) = value { Some(*i != 0) } else { None });
    } else if let Some(builder) = array.downcast_mut::<Float64Builder>() {
        builder.append_option(match value {
            Value::Real(real) => Some(*real),
            Value::Integer(integer) => Some(*integer as f64),
            Value::Null | Value::Text(_) => None,
        });
    }
}
