//! Facts of hqdl in any `SQLite`: `llm_map('question', value)` and its kin, the table
//! `hqdl_fact`, and `hqdl_ask(1)`.
//!
//! A call looks its value up; one that is not known is NULL for now, and noted.
//! `SELECT hqdl_ask(1)` asks for what was noted, in batches. The engine is a process of
//! `hqdl map` ([`line`]), which owns the cache or borrows it from whoever does.

mod asked;
mod facts;
mod line;

use std::os::raw::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::Value;
use rusqlite::{Connection, Error, Result, ffi};

use asked::Asked;

/// Names of the functions, and what their answers are read as.
const FUNCTIONS: [(&str, &str); 5] = [
    ("llm_map", "str"),
    ("llm_map_bool", "bool"),
    ("llm_map_int", "int"),
    ("llm_map_real", "float"),
    ("llm_map_list", "list[str]"),
];

/// The oldest version of `SQLite` that this works with.
const OLDEST: c_int = 3_034_001;

/// What `SQLite` calls when it loads this: its name follows the file's.
///
/// # Safety
/// `SQLite` calls it, with a connection and its table of functions.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_hqdlsqlite_init(
    db: *mut ffi::sqlite3,
    error: *mut *mut c_char,
    api: *mut ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: these are what SQLite gives to an extension that it loads.
    unsafe {
        // rusqlite panics where its SQLite would be older than it can be.
        let version = api.as_ref().and_then(|api| api.libversion_number).map(|version| version());
        if version.is_none_or(|version| version < OLDEST) {
            return ffi::SQLITE_ERROR;
        }
        Connection::extension_init2(db, error, api, |db| extend(&db))
    }
}

fn extend(db: &Connection) -> Result<bool> {
    let asked = Arc::new(Mutex::new(Asked::default()));
    for (name, kind) in FUNCTIONS {
        for arguments in [2, 3] {
            let asked = Arc::clone(&asked);
            db.create_scalar_function(name, arguments, FunctionFlags::SQLITE_UTF8, move |call| {
                let question: Option<String> = call.get(0)?;
                let Some(question) = question else { return Ok(Value::Null) };
                let options = if call.len() > 2 { call.get::<Option<String>>(2)? } else { None };
                lock(&asked).look(kind, &question, options.as_deref(), call.get_raw(1))
            })?;
        }
    }
    // It spends: no view and no trigger of somebody's database may call it.
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    let noted = Arc::clone(&asked);
    db.create_scalar_function("hqdl_ask", 1, flags, move |call| ask(call, &noted, None))?;
    db.create_scalar_function("hqdl_ask", 2, flags, move |call| {
        ask(call, &asked, Some(call.get(1)?))
    })?;
    facts::create(db)?;
    // It is not for this connection alone that SQLite keeps the code.
    Ok(false)
}

/// `hqdl_ask(1)` asks for what was noted, with a second argument for USD at the most;
/// `hqdl_ask(0)` forgets it. Both say how many values that were.
fn ask(call: &Context<'_>, noted: &Mutex<Asked>, budget: Option<f64>) -> Result<i64> {
    match call.get::<i64>(0)? {
        0 => Ok(lock(noted).forget()),
        1 => lock(noted).ask(budget),
        other => Err(failed(format!("hqdl_ask({other}): pass 1 to ask, or 0 to discard the noted values"))),
    }
}

fn lock(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error, as SQL tells it.
fn failed(message: String) -> Error {
    Error::UserFunctionError(message.into())
}
