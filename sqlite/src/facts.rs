//! Virtual table `hqdl_fact`, with one row per fact. `SELECT * FROM hqdl_fact('Hulk')` reads the
//! facts whose key contains a text.

use std::borrow::Cow;
use std::ffi::CStr;
use std::io::{BufRead, BufReader, Lines, Read};
use std::marker::PhantomData;
use std::os::raw::c_int;
use std::process::{Child, ChildStdout, Stdio};

use rusqlite::types::Value;
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection,
    VTabCursor,
};
use rusqlite::{Connection, Result, ffi};
use serde_json::Value as Json;

use crate::function_error;
use crate::process::{cache_flags, hqdl_command, start_error};

const SCHEMA: &CStr =
    c"CREATE TABLE x(entity TEXT, \"column\" TEXT, state TEXT, value, model TEXT, filter HIDDEN)";
/// Index of the column with the text that keys must contain.
const FILTER_COLUMN: c_int = 5;

/// Registers the table.
pub fn create_fact_table(db: &Connection) -> Result<()> {
    const MODULE: Module<FactTable> = Module::eponymous_only_module();
    db.create_module(c"hqdl_fact", &MODULE, None)
}

#[repr(C)]
struct FactTable {
    /// `SQLite`'s part, which must be the first field.
    base: ffi::sqlite3_vtab,
}

// SAFETY: `base` is the first field of a struct with C layout.
#[allow(unsafe_code)]
unsafe impl<'vtab> VTab<'vtab> for FactTable {
    type Aux = ();
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        _: Option<&()>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        // It starts a process, so the views and triggers of an untrusted database must not use it.
        db.config(VTabConfig::DirectOnly)?;
        Ok((Cow::Borrowed(SCHEMA), Self { base: ffi::sqlite3_vtab::default() }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut has_filter = false;
        for (constraint, mut usage) in info.constraints_and_usages() {
            let is_equality =
                constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ;
            if constraint.column() == FILTER_COLUMN
                && is_equality
                && constraint.is_usable()
                && !has_filter
            {
                usage.set_argv_index(1);
                usage.set_omit(true);
                has_filter = true;
            }
        }
        info.set_estimated_cost(if has_filter { 1e4 } else { 1e6 });
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor::default())
    }
}

/// Cursor over the lines of `hqdl cache list`.
#[repr(C)]
#[derive(Default)]
struct Cursor<'vtab> {
    /// `SQLite`'s part, which must be the first field.
    base: ffi::sqlite3_vtab_cursor,
    process: Option<(Child, Lines<BufReader<ChildStdout>>)>,
    fact: Json,
    row: i64,
    filter: Option<String>,
    table: PhantomData<&'vtab FactTable>,
}

impl Cursor<'_> {
    /// Kills the process.
    fn kill_process(&mut self) {
        if let Some((mut process, _)) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Waits for the process after its last line. Fails if the process failed.
    fn finish_process(&mut self) -> Result<()> {
        let Some((mut process, _)) = self.process.take() else { return Ok(()) };
        let mut message = String::new();
        if let Some(stderr) = &mut process.stderr {
            let _ = stderr.take(10_000).read_to_string(&mut message);
        }
        match process.wait() {
            Ok(code) if code.success() => Ok(()),
            _ => Err(function_error(format!("hqdl cache list: {}", message.trim()))),
        }
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        self.kill_process();
    }
}

// SAFETY: `base` is the first field of a struct with C layout.
#[allow(unsafe_code)]
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, _: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.kill_process();
        self.filter = if args.is_empty() { None } else { args.get(0)? };
        let mut command = hqdl_command();
        // The first answer creates the cache.
        command.args(["cache", "list", "--json", "--allow-missing"]).args(cache_flags());
        command.args(self.filter.iter().flat_map(|text| ["--", text]));
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = spawned.spawn().map_err(|e| start_error(&e))?;
        if let Some(stdout) = process.stdout.take() {
            self.process = Some((process, BufReader::new(stdout).lines()));
        }
        self.row = 0;
        self.next()
    }

    fn next(&mut self) -> Result<()> {
        self.row += 1;
        let next = self.process.as_mut().and_then(|(_, lines)| lines.next());
        match next {
            None => self.finish_process(),
            Some(Err(error)) => Err(function_error(format!("hqdl cache list: {error}"))),
            Some(Ok(line)) => {
                self.fact = serde_json::from_str(&line)
                    .map_err(|e| function_error(format!("hqdl cache list: {e}")))?;
                Ok(())
            }
        }
    }

    fn eof(&self) -> bool {
        self.process.is_none()
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let name = match column {
            0 => return context.set_result(&self.fact["entity"].to_string()),
            1 => "column",
            2 => "state",
            3 => "value",
            4 => "model",
            _ => return context.set_result(&self.filter),
        };
        context.set_result(&match &self.fact[name] {
            Json::Null => Value::Null,
            Json::String(text) => Value::Text(text.clone()),
            Json::Bool(boolean) => Value::Integer(i64::from(*boolean)),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Value::Integer(integer),
                (None, real) => real.map_or(Value::Null, Value::Real),
            },
            list => Value::Text(list.to_string()),
        })
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.row)
    }
}
