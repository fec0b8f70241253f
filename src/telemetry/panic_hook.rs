//! Panics in the log, one record each, where they would else be text on standard error between the lines.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

/// From now on every panic of the process is logged as an error, caught or not.
pub(super) fn install() {
    std::panic::set_hook(Box::new(log));
}

fn log(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = panic.payload_as_str().unwrap_or("not a text");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    // Only where RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, location, %backtrace, "panic: {message}");
    } else {
        tracing::error!(thread, location, "panic: {message}");
    }
}
