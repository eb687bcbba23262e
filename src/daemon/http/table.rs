//! A page of a published table, cell by cell with its state.
