//! The `hqdl` command.

fn main() {}
