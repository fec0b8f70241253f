//! The consumer against real servers: what takes effect, once, in order, whatever goes wrong.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "consumer/crash.rs"]
mod crash;
#[path = "consumer/faults.rs"]
mod faults;
#[path = "consumer/forgetting.rs"]
mod forgetting;
#[path = "consumer/house.rs"]
mod house;
#[path = "consumer/killer.rs"]
mod killer;
#[path = "consumer/letters.rs"]
mod letters;
#[path = "consumer/once.rs"]
mod once;
#[path = "consumer/routes.rs"]
mod routes;
