//! The W3C trace context in a message's headers: written at enqueue, read by the relay and the consumer.
//!
//! Source: <https://www.w3.org/TR/trace-context/>, version 00.

use crate::message::{Headers, header};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use std::str::FromStr as _;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

const TRACESTATE: &str = "tracestate";

/// Writes the current span into the headers, unless the application has put a context there itself, or nothing traces.
pub(crate) fn carry_current_span(headers: &mut Headers) {
    if headers.get(header::TRACEPARENT).is_some() {
        return;
    }
    let context = Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return;
    }
    let flags = span.trace_flags().to_u8();
    headers.append(
        header::TRACEPARENT,
        format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()),
    );
    let state = span.trace_state().header();
    if !state.is_empty() {
        headers.append(TRACESTATE, state);
    }
}

/// Makes the span a child of the one in the headers; without one that can be read it begins a trace of its own, and is no part
/// of whatever surrounds it here.
pub(crate) fn continue_trace(span: &Span, headers: &Headers) {
    if span.is_disabled() {
        return;
    }
    let mut parent = opentelemetry::Context::new();
    if let Some(remote) = remote_span(headers) {
        parent = parent.with_remote_span_context(remote);
    }
    // The error says that nobody traces: then there is nothing to connect.
    span.set_parent(parent).ok();
}

fn remote_span(headers: &Headers) -> Option<SpanContext> {
    let mut parts = headers.get(header::TRACEPARENT)?.trim().split('-');
    let version = parts.next()?;
    let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
    // A later version may have more parts after these; version 00 has not.
    let known = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
    if !known || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & TraceFlags::SAMPLED.to_u8());
    let state = headers
        .get(TRACESTATE)
        .and_then(|state| TraceState::from_str(state).ok())
        .unwrap_or_default();
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        flags,
        true,
        state,
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(traceparent: &str) -> Option<SpanContext> {
        remote_span(&Headers::from_iter([(header::TRACEPARENT, traceparent)]))
    }

    #[test]
    fn a_context_is_read_and_nonsense_is_not() {
        let context = of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(context.is_sampled() && context.is_remote());
        for nonsense in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319z-b7ad6b7169203331-01",
        ] {
            assert!(of(nonsense).is_none(), "{nonsense}");
        }
    }
}
