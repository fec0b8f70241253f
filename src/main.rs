//! The `twinbox` command.
fn main() {}
