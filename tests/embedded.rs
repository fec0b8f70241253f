//! Private servers: they answer, come back, and leave nothing behind.

#[path = "embedded/family.rs"]
mod family;
#[path = "embedded/lifecycle.rs"]
mod lifecycle;
#[path = "embedded/parent.rs"]
mod parent;
