//! The binary, end to end: as a child process, on private servers.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

mod business;
mod child;
mod collector;
mod config;
mod dead;
mod demo;
mod enqueue;
mod foreign;
mod help;
mod memory;
mod migrate;
mod plain_sql;
mod prune;
mod run;
mod status;
mod telemetry;
mod world;

use std::time::Duration;

/// What takes moments, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);
