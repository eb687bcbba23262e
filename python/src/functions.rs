//! Ingredients that Python functions compute.

use std::collections::BTreeMap;
use std::sync::Arc;

use hqdl::blendsql::ReturnType;
use hqdl::model::function::{HostCall, HostFunction};
use hqdl::spec::ingredients::{
    AliasArgument, AliasWriter, AskedOf, FunctionIngredient, FunctionKind, IngredientTable,
    parse_function_question,
};
use hqdl::spec::{Literal, Spec};
use hqdl::value::Value;
use pyo3::prelude::*;
use serde_json::{Value as Json, json};

use crate::errors::{Failed, wrong_input};
use crate::values::read_value;

/// An ingredient, as `hqdl._ingredients` describes it.
#[derive(FromPyObject)]
struct Description {
    name: String,
    kind: String,
    arguments: Vec<String>,
    required: usize,
    takes_options: bool,
    return_type: Option<String>,
    values: Option<Vec<Py<PyAny>>>,
    version: String,
    batch: u32,
    threads: usize,
    /// Receives a JSON list of calls and returns a JSON list of `[answer, error message]`, or for an
    /// alias: receives its arguments and returns SQL. The other item of the result is an error
    /// message.
    call: Py<PyAny>,
}

/// Ingredients of a query.
#[derive(Default)]
pub struct PythonIngredients {
    tables: Vec<(IngredientTable, Arc<PythonFunction>)>,
}

/// A Python function that computes answers.
struct PythonFunction {
    stored_name: String,
    batch: u32,
    threads: usize,
    call: Py<PyAny>,
}

impl PythonIngredients {
    /// Reads the descriptions of ingredients.
    pub fn read(descriptions: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut tables = Vec::new();
        for description in descriptions.try_iter()? {
            tables.push(read_ingredient(description?.extract()?, descriptions.py())?);
        }
        Ok(Self { tables })
    }

    /// Adds the ingredients to a spec. Returns their functions by the names of their models.
    pub fn add_to_spec(
        &self,
        spec: &mut Spec,
    ) -> Result<BTreeMap<String, Arc<dyn HostFunction>>, Failed> {
        let mut functions: BTreeMap<String, Arc<dyn HostFunction>> = BTreeMap::new();
        for (table, function) in &self.tables {
            let added = spec.add_function(table.clone());
            let model = added.map_err(|message| {
                wrong_input(message, "choose another name: @hqdl.ingredient(name=\"…\")")
            })?;
            functions.insert(model, Arc::clone(function) as Arc<dyn HostFunction>);
        }
        Ok(functions)
    }
}

fn read_ingredient(
    description: Description,
    py: Python<'_>,
) -> PyResult<(IngredientTable, Arc<PythonFunction>)> {
    let Description { name, kind, arguments, return_type, version, .. } = description;
    let (required, takes_options) = (description.required, description.takes_options);
    let kind = match kind.as_str() {
        "map" => FunctionKind::Values,
        "qa" => FunctionKind::Rows,
        "join" => FunctionKind::Pairs,
        _ => FunctionKind::Alias(write_alias(description.call.clone_ref(py))),
    };
    let return_type = return_type.as_deref().and_then(ReturnType::parse);
    let to_literal = |value: Py<PyAny>| -> PyResult<Literal> {
        Ok(match read_value(value.bind(py), "an item of `values`")? {
            Value::Integer(i) => Literal::Integer(i),
            Value::Real(real) => Literal::Real(real),
            Value::Text(text) => Literal::Text(text),
            Value::Null => Literal::Text(String::new()),
        })
    };
    let values = description
        .values
        .map(|all| all.into_iter().map(to_literal).collect::<PyResult<Vec<Literal>>>());
    let function = PythonFunction {
        stored_name: format!("python {name} {version}"),
        batch: description.batch,
        threads: description.threads,
        call: description.call,
    };
    let table = IngredientTable {
        name,
        question: String::new(),
        arguments,
        of: if matches!(kind, FunctionKind::Rows) { AskedOf::Rows } else { AskedOf::Values },
        kind: return_type.map(|parsed| parsed.scalar),
        list: return_type.is_some_and(|parsed| parsed.is_list),
        options: values.transpose()?,
        model: None,
        examples: None,
        example_outputs: None,
        search: None,
        function: Some(FunctionIngredient { kind, version, required, takes_options }),
    };
    Ok((table, Arc::new(function)))
}

/// Returns the writer of an alias, which calls Python with a JSON list of `[keyword, SQL]` or
/// `[keyword, SQL, literal]` for each argument.
fn write_alias(call: Py<PyAny>) -> AliasWriter {
    AliasWriter(Arc::new(move |arguments: &[AliasArgument]| {
        let describe = |a: &AliasArgument| match &a.literal {
            Some(literal) => json!([a.keyword, a.sql, literal]),
            None => json!([a.keyword, a.sql]),
        };
        let arguments: Vec<Json> = arguments.iter().map(describe).collect();
        call_python(&call, Json::from(arguments).to_string())
    }))
}

/// Calls a Python function that returns a text and an error message, one of which is None.
fn call_python(call: &Py<PyAny>, argument: String) -> Result<String, String> {
    Python::attach(|py| {
        let called = call.call1(py, (argument,));
        let result =
            called.and_then(|result| result.extract::<(Option<String>, Option<String>)>(py));
        match result {
            Ok((Some(text), None)) => Ok(text),
            Ok((_, message)) => Err(message.unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        }
    })
}

impl HostFunction for PythonFunction {
    fn stored_name(&self) -> &str {
        &self.stored_name
    }

    fn batch_size(&self) -> u32 {
        self.batch
    }

    fn max_threads(&self) -> usize {
        self.threads
    }

    fn compute(&self, calls: &[HostCall]) -> Vec<Result<Json, String>> {
        let describe = |call: &HostCall| {
            let arguments = parse_function_question(&call.question, &call.values);
            json!({ "arguments": arguments, "values": call.values, "options": call.options })
        };
        let described: Vec<Json> = calls.iter().map(describe).collect();
        let answers = call_python(&self.call, Json::from(described).to_string());
        // A list of `[value, error message]`.
        let answers = answers.and_then(|answers| {
            serde_json::from_str::<Vec<(Json, Option<String>)>>(&answers).map_err(|e| e.to_string())
        });
        match answers {
            Ok(answers) => {
                let result =
                    |(value, message): (Json, Option<String>)| message.map_or(Ok(value), Err);
                answers.into_iter().map(result).collect()
            }
            Err(message) => vec![Err(message); calls.len()],
        }
    }
}
