//! The supervision tree, from outside. Waits are for conditions; a time limit is only there to fail by.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod blocked;
mod drain;
mod escalation;
mod orders;
mod restart;
mod runtimes;
mod shell_faults;
#[cfg(unix)]
mod signals;
mod support;
