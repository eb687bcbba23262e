//! The hqdl library. A [`session::Session`] opens a spec with its database, its facts and its
//! model. [`materialize`] fills the spec's tables, and [`query`] runs `BlendSQL` and SUQL queries
//! over them. [`suggest`] and [`init`] propose specs, and [`truth`] measures the accuracy of their
//! answers.

pub mod materialize;
pub mod retrieval;
pub mod routing;
pub mod query;
pub mod suggest;
pub mod init;
pub mod truth;
pub mod session;
