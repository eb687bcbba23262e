//! `hqdl_fact`: what is known, a row a fact. `SELECT * FROM hqdl_fact('Hulk')` reads those
//! whose key contains a text.

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

use crate::failed;
use crate::line::{cache_flags, hqdl, not_started};

const SCHEMA: &CStr =
    c"CREATE TABLE x(entity TEXT, \"column\" TEXT, state TEXT, value, model TEXT, filter HIDDEN)";
/// The column of the text that keys contain.
const FILTER: c_int = 5;

pub fn create(db: &Connection) -> Result<()> {
    const MODULE: Module<Facts> = Module::eponymous_only_module();
    db.create_module(c"hqdl_fact", &MODULE, None)
}

#[repr(C)]
struct Facts {
    /// `SQLite`'s own, which comes first.
    base: ffi::sqlite3_vtab,
}

// SAFETY: `base` is the first field of a struct laid out as C does.
#[allow(unsafe_code)]
unsafe impl<'vtab> VTab<'vtab> for Facts {
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
        // It starts a process: no view and no trigger of somebody's database may.
        db.config(VTabConfig::DirectOnly)?;
        Ok((Cow::Borrowed(SCHEMA), Self { base: ffi::sqlite3_vtab::default() }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut used = false;
        for (constraint, mut usage) in info.constraints_and_usages() {
            let equals = constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ;
            if constraint.column() == FILTER && equals && constraint.is_usable() && !used {
                usage.set_argv_index(1);
                usage.set_omit(true);
                used = true;
            }
        }
        info.set_estimated_cost(if used { 1e4 } else { 1e6 });
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor::default())
    }
}

/// The lines of `hqdl cache list`.
#[repr(C)]
#[derive(Default)]
struct Cursor<'vtab> {
    /// `SQLite`'s own, which comes first.
    base: ffi::sqlite3_vtab_cursor,
    list: Option<(Child, Lines<BufReader<ChildStdout>>)>,
    fact: Json,
    row: i64,
    filter: Option<String>,
    of: PhantomData<&'vtab Facts>,
}

impl Cursor<'_> {
    /// Ends the process: nobody reads on.
    fn end(&mut self) {
        if let Some((mut list, _)) = self.list.take() {
            let _ = list.kill();
            let _ = list.wait();
        }
    }

    /// What it ended of, when nothing more comes.
    fn ended(&mut self) -> Result<()> {
        let Some((mut list, _)) = self.list.take() else { return Ok(()) };
        let mut said = String::new();
        if let Some(stderr) = &mut list.stderr {
            let _ = stderr.take(10_000).read_to_string(&mut said);
        }
        match list.wait() {
            Ok(code) if code.success() => Ok(()),
            _ => Err(failed(format!("hqdl cache list: {}", said.trim()))),
        }
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

// SAFETY: `base` is the first field of a struct laid out as C does.
#[allow(unsafe_code)]
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, _: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.end();
        self.filter = if args.is_empty() { None } else { args.get(0)? };
        let mut command = hqdl();
        command.args(["cache", "list", "--json"]).args(cache_flags());
        command.args(self.filter.iter().flat_map(|text| ["--", text]));
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut list = spawned.spawn().map_err(|e| not_started(&e))?;
        if let Some(stdout) = list.stdout.take() {
            self.list = Some((list, BufReader::new(stdout).lines()));
        }
        self.row = 0;
        self.next()
    }

    fn next(&mut self) -> Result<()> {
        self.row += 1;
        let next = self.list.as_mut().and_then(|(_, lines)| lines.next());
        match next {
            None => self.ended(),
            Some(Err(error)) => Err(failed(format!("hqdl cache list: {error}"))),
            Some(Ok(line)) => {
                self.fact = serde_json::from_str(&line)
                    .map_err(|e| failed(format!("hqdl cache list: {e}")))?;
                Ok(())
            }
        }
    }

    fn eof(&self) -> bool {
        self.list.is_none()
    }

    fn column(&self, to: &mut Context, column: c_int) -> Result<()> {
        let name = match column {
            0 => return to.set_result(&self.fact["entity"].to_string()),
            1 => "column",
            2 => "state",
            3 => "value",
            4 => "model",
            _ => return to.set_result(&self.filter),
        };
        to.set_result(&match &self.fact[name] {
            Json::Null => Value::Null,
            Json::String(text) => Value::Text(text.clone()),
            Json::Bool(truth) => Value::Integer(i64::from(*truth)),
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
