//! Extension that makes facts of hqdl available in any `SQLite`: the function
//! `llm_map('question', value)` and its variants, the table `hqdl_fact`, and `hqdl_ask(1)`.
//!
//! A call looks up the answer about its value. If it is not known, the call returns NULL, and the
//! value becomes pending. `SELECT hqdl_ask(1)` asks about the pending values, in batches. The engine
//! is a process of `hqdl map` ([`process`]).

mod answers;
mod facts;
mod process;

use std::os::raw::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::Value;
use rusqlite::{Connection, Error, Result, ffi};

use answers::Answers;

/// Names of the functions, and their return types.
const FUNCTIONS: [(&str, &str); 5] = [
    ("llm_map", "str"),
    ("llm_map_bool", "bool"),
    ("llm_map_int", "int"),
    ("llm_map_real", "float"),
    ("llm_map_list", "list[str]"),
];

/// Oldest version of `SQLite` that the extension supports.
const MIN_SQLITE_VERSION: c_int = 3_034_001;

/// Entry point of the extension. `SQLite` derives its name from the file's.
///
/// # Safety
/// Only `SQLite` may call it, with a connection and its table of functions.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_hqdlsqlite_init(
    db: *mut ffi::sqlite3,
    error: *mut *mut c_char,
    api: *mut ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: SQLite passes valid pointers to an extension that it loads.
    unsafe {
        // rusqlite panics if SQLite is too old.
        let version = api.as_ref().and_then(|api| api.libversion_number).map(|version| version());
        if version.is_none_or(|version| version < MIN_SQLITE_VERSION) {
            return ffi::SQLITE_ERROR;
        }
        Connection::extension_init2(db, error, api, |db| register_functions(&db))
    }
}

fn register_functions(db: &Connection) -> Result<bool> {
    let answers = Arc::new(Mutex::new(Answers::default()));
    for (name, return_type) in FUNCTIONS {
        for argument_count in [2, 3] {
            let answers = Arc::clone(&answers);
            db.create_scalar_function(
                name,
                argument_count,
                FunctionFlags::SQLITE_UTF8,
                move |call| {
                    let question: Option<String> = call.get(0)?;
                    let Some(question) = question else { return Ok(Value::Null) };
                    let options =
                        if call.len() > 2 { call.get::<Option<String>>(2)? } else { None };
                    lock(&answers).look_up(
                        return_type,
                        &question,
                        options.as_deref(),
                        call.get_raw(1),
                    )
                },
            )?;
        }
    }
    // It costs money, so the views and triggers of an untrusted database must not call it.
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    let shared = Arc::clone(&answers);
    db.create_scalar_function("hqdl_ask", 1, flags, move |call| ask(call, &shared, None))?;
    db.create_scalar_function("hqdl_ask", 2, flags, move |call| {
        ask(call, &answers, Some(call.get(1)?))
    })?;
    facts::create_fact_table(db)?;
    // Not permanent: SQLite may unload the code with the connection.
    Ok(false)
}

/// Implements `hqdl_ask`: 1 asks about the pending values, with the second argument as the budget in
/// USD, and 0 discards them. Both return the number of values.
fn ask(call: &Context<'_>, answers: &Mutex<Answers>, budget: Option<f64>) -> Result<i64> {
    match call.get::<i64>(0)? {
        0 => Ok(lock(answers).discard()),
        1 => lock(answers).ask_pending(budget),
        other => Err(function_error(format!(
            "hqdl_ask({other}): pass 1 to ask, or 0 to discard the pending values"
        ))),
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an error of an SQL function.
fn function_error(message: String) -> Error {
    Error::UserFunctionError(message.into())
}
