//! `hqdl` as a library: a [`session::Session`] opens a spec with its database, what is
//! known and whom to ask; [`materialize`] fills its tables, [`query`] answers `BlendSQL`
//! and SUQL over them. [`suggest`] and [`init`] propose specs, [`truth`] scores what they
//! brought.

pub mod materialize;
pub mod retrieval;
pub mod routing;
pub mod query;
pub mod suggest;
pub mod init;
pub mod truth;
pub mod session;
