//! Where logs and traces go.

use crate::SOON;
use crate::business::Business;
use crate::collector::Collector;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpListener;
use twinbox::testing::wait_until;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Business {
    /// Enqueues with the header in which a producer hands on its trace.
    async fn enqueue_traced(&self, payload: i32, traceparent: &str) {
        sqlx::query(
            "SELECT twinbox.enqueue($1, $2::text, headers => jsonb_build_object('traceparent', $3::text))",
        )
        .bind(self.subject("placed"))
        .bind(payload.to_string())
        .bind(traceparent)
        .execute(&mut self.world.database().await)
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn traces_go_to_the_collector_and_continue_that_of_the_producer() {
    let business = Business::new().await;
    let collector = Collector::start().await;
    let mut running = business.world.start_with(
        &["run"],
        &[
            ("TWINBOX_TELEMETRY__OTLP_ENDPOINT", &collector.endpoint),
            ("TWINBOX_TELEMETRY__SERVICE_NAME", "billing-service"),
        ],
    );
    business
        .enqueue_traced(1, &format!("00-{TRACE}-{PARENT}-01"))
        .await;
    business.enqueue(2, 2).await;
    business.wait_for(2).await;
    // The end sends what is still waiting.
    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
    let handled: Vec<Span> = collector
        .spans()
        .into_iter()
        .inspect(|(service, _)| assert_eq!(service, "billing-service"))
        .map(|(_, span)| span)
        .inspect(|span| assert_ne!(span.name, "child", "a span as long as the process"))
        .filter(|span| span.name == "handle")
        .collect();
    assert_eq!(handled.len(), 2, "{handled:?}");
    let (continued, own): (Vec<_>, Vec<_>) = handled.iter().partition(|span| hex(&span.trace_id) == TRACE);
    assert_eq!((continued.len(), own.len()), (1, 1), "{handled:?}");
    assert_eq!(hex(&continued[0].parent_span_id), PARENT);
    assert_eq!(own[0].parent_span_id, b"", "it begins a trace");
}

/// One collector that there is not, and one that takes a connection and never answers.
#[tokio::test]
async fn a_collector_that_is_away_delays_neither_the_work_nor_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for endpoint in ["http://127.0.0.1:1", &silent] {
        let business = Business::new().await;
        let mut running = business
            .world
            .start_with(&["run"], &[("TWINBOX_TELEMETRY__OTLP_ENDPOINT", endpoint)]);
        business.enqueue(1, 500).await;
        business.wait_for(500).await;
        let ended = running.terminate(Duration::from_secs(10)).await;
        assert_eq!(ended.code(), Some(0), "{}", running.log());
        business.assert_once_in_order(1, 500).await;
    }
}

#[tokio::test]
async fn a_json_log_is_one_object_a_line() {
    let business = Business::new().await;
    business.configure(
        "max_attempts = 1",
        "INSERT INTO public.effect (payload)
         SELECT :payload_bytes WHERE convert_from(:payload_bytes, 'UTF8')::int > 0",
    );
    let mut running = business.world.start_with(
        &["run"],
        &[
            ("TWINBOX_TELEMETRY__FORMAT", "json"),
            ("TWINBOX_TELEMETRY__LOG", "debug"),
        ],
    );
    business.enqueue(1, 5).await;
    business.wait_for(5).await;
    // What PostgreSQL says of it has quotes and a line break.
    let foreign = business.world.jetstream().await;
    let odd = foreign.publish(business.subject("placed"), "not a\n\"number\"".into());
    odd.await.unwrap().await.unwrap();
    wait_until("it is a dead letter", SOON, || async {
        business
            .world
            .count("SELECT count(*) FROM twinbox.dead_letter")
            .await
            == 1
    })
    .await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
    let log = running.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let said = |words: &str| lines.iter().any(|line| line["message"] == words);
    assert!(log.contains(r#"not a \"number"#), "{log}");
    assert!(said("twinbox runs") && said("drained"), "{log}");
    assert!(
        lines
            .iter()
            .all(|line| line["timestamp"].is_string() && line["level"].is_string()),
        "{log}"
    );
}

#[tokio::test]
async fn by_default_the_log_is_for_people_and_without_colours_in_a_file() {
    let business = Business::new().await;
    let mut running = business.start(&[]);
    running.logs(&["twinbox runs"], SOON).await;
    wait_until("it consumes", SOON, || async {
        running.log().contains("consumer")
    })
    .await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
    let log = running.log();
    assert!(log.contains(" INFO ") && log.contains("drained"), "{log}");
    assert!(!log.contains('\u{1b}') && !log.contains(" DEBUG "), "{log}");
}
