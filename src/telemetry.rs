//! Traces across the two boxes.

mod trace_context;

pub(crate) use trace_context::{carry_current_span, continue_trace};
