//! The trace goes on from whoever enqueued, through the handler, to the next hop.
//!
//! In a binary of its own: what `tracing` remembers of its callsites is shared by all tests of a process.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[allow(dead_code, reason = "made for the consumer's tests, which use all of it")]
#[path = "consumer/house.rs"]
mod house;

use crate::house::{House, Memory, order};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tracing_subscriber::layer::SubscriberExt as _;
use twinbox::header;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

// On one thread, so that the subscriber of this test is that of the lanes.
#[tokio::test(flavor = "current_thread")]
async fn a_handler_continues_the_trace_of_its_message() {
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(spans.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    let house = House::new().await;
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    for n in 0..2 {
        house
            .send_as(
                &[(header::TRACEPARENT, &parent), (header::KEY, "k")],
                &order("k", n, "next"),
            )
            .await;
    }
    let running = house.run(house.settings("billing"), &Memory::default()).await;
    house.until_effects(2).await;
    running.stop().await;

    let handled: Vec<_> = spans
        .get_finished_spans()
        .unwrap()
        .into_iter()
        .filter(|span| span.name == "handle")
        .collect();
    assert_eq!(handled.len(), 2);
    let next: Vec<String> =
        sqlx::query_scalar("SELECT headers->>'traceparent' FROM twinbox.outbox ORDER BY id")
            .fetch_all(house.store.pool())
            .await
            .unwrap();
    for (span, next) in handled.iter().zip(next) {
        assert_eq!(span.span_context.trace_id().to_string(), TRACE);
        assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(next, format!("00-{TRACE}-{}-01", span.span_context.span_id()));
    }
}
