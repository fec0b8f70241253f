//! The supervision tree, from outside. Waits are for conditions; a time limit is only there to fail by.

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
