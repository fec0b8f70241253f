//! Private servers: they answer, come back, and leave nothing behind.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "embedded/family.rs"]
mod family;
#[path = "embedded/lifecycle.rs"]
mod lifecycle;
#[path = "embedded/parent.rs"]
mod parent;
