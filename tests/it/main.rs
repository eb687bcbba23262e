//! Tests from outside: the library's public surface.

mod init;
