//! Parses any text as a spec, or rejects it with problems that point into the text.

#![no_main]

use std::path::Path;

use hqdl::spec::UncheckedSpec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let problems = match UncheckedSpec::parse(Path::new("spec.toml"), text.to_owned()) {
        // A missing database is reported with every problem that the text alone reveals.
        Ok(unchecked_spec) => unchecked_spec.find_problems_without_database("there is no database", "make one"),
        Err(problems) => problems,
    };
    for problem in &problems.problems {
        if let Some(span) = &problem.span {
            assert!(text.get(span.clone()).is_some());
        }
    }
    problems.render(true).clear();
});
