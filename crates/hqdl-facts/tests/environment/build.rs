//! Build script of the tests. Published packages leave it out.

#[path = "../../../../tests/environment/build.rs"]
mod environment;

fn main() {
    environment::main();
}
