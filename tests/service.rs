//! The library as a program uses it: one call starts everything, from a plain `#[tokio::main]`.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "service/example.rs"]
mod example;
#[path = "service/faults.rs"]
mod faults;
#[path = "service/shop.rs"]
mod shop;
#[path = "service/whole.rs"]
mod whole;
