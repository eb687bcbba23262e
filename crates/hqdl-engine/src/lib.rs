//! The hqdl library. A [`session::Session`] opens a spec with its database, its facts and its
//! model. [`materialize`] fills the spec's tables, and [`query`] runs `BlendSQL` and SUQL queries
//! over them. [`suggest`] and [`init`] propose specs, and [`truth`] measures the accuracy of their
//! answers. [`audit`] draws samples for which a person provides the true values, and [`interval`]
//! computes how far the true result of a query can be from the result over the model's answers.
//! [`ask`] answers questions in plain words, and [`approval`] decides what an assistant may spend.

pub mod private_dir;
pub mod materialize;
pub mod retrieval;
pub mod routing;
pub mod query;
pub mod suggest;
pub mod init;
pub mod truth;
pub mod audit;
pub mod interval;
pub mod ask;
pub mod approval;
pub mod session;
