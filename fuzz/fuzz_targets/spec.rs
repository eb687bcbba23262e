//! Any text is read as a spec or refused with every problem's place in it.

#![no_main]

use std::path::Path;

use hqdl::spec::Draft;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let problems = match Draft::parse(Path::new("spec.toml"), text.to_owned()) {
        // Everything that can be told without its database.
        Ok(draft) => draft.database_problem("there is no database", "make one"),
        Err(problems) => problems,
    };
    for problem in &problems.problems {
        if let Some(span) = &problem.span {
            assert!(text.get(span.clone()).is_some());
        }
    }
    problems.render(true).clear();
});
