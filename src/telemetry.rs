//! Traces across the two boxes, and, for the daemon, where logs and traces go.
//!
//! The library only speaks `tracing`: a program that uses it brings a subscriber of its own. Where that has a layer of
//! `tracing-opentelemetry`, the trace of the enqueueing span goes on in the handler's span.

#[cfg(feature = "cli")]
mod init;
#[cfg(feature = "cli")]
mod panic_hook;
mod trace_context;

#[cfg(feature = "cli")]
pub use init::{Telemetry, TelemetryError};
pub(crate) use trace_context::{carry_current_span, continue_trace};
