//! Migrations are embedded at compile time, and a new file among them does not show otherwise.
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
