//! The `mambo` program.
fn main() {}
