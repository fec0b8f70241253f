//! How fast a backlog drains, beside what the broker takes at all. To be run by hand:
//! `cargo test --release --test outbox drain -- --ignored --nocapture`.

use crate::bench::{Bench, connect};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::future::IntoFuture as _;
use std::time::{Duration, Instant};
use twinbox::config::RelaySettings;
use uuid::Uuid;

const MESSAGES: i64 = 200_000;

/// Messages a second that the client publishes with 2,000 in flight.
async fn raw(bench: &Bench) -> f64 {
    let jetstream = connect(&bench.nats_url, "raw").await.jetstream();
    let payload: bytes::Bytes = vec![b'x'; 256].into();
    let begun = Instant::now();
    let mut in_flight = FuturesUnordered::new();
    for _ in 0..MESSAGES {
        let mut headers = async_nats::HeaderMap::new();
        let id = Uuid::now_v7().to_string();
        headers.insert("Nats-Msg-Id", id.as_str());
        // What the relay adds and the application has, so that both send as much.
        headers.insert("Twinbox-Id", id.as_str());
        headers.insert("Twinbox-Key", "key-1234");
        headers.insert("Twinbox-Time", "2026-01-01T00:00:00.000000Z");
        headers.insert("Content-Type", "application/json");
        headers.insert(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        );
        let sent = jetstream
            .publish_with_headers(bench.subject("raw"), headers, payload.clone())
            .await
            .unwrap();
        in_flight.push(sent.into_future());
        if in_flight.len() >= 2000 {
            in_flight.next().await.unwrap().unwrap();
        }
    }
    while let Some(receipt) = in_flight.next().await {
        receipt.unwrap();
    }
    MESSAGES as f64 / begun.elapsed().as_secs_f64()
}

async fn drain(keys: Option<i64>) {
    let mut bench = Bench::new().await;
    bench.settings = RelaySettings::default();
    sqlx::query(
        "INSERT INTO twinbox.outbox (subject, key, headers, payload)
         SELECT $1, 'key-' || (random() * $2)::bigint,
                '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\",
                   \"Content-Type\": \"application/json\"}', convert_to(repeat('x', 256), 'UTF8')
         FROM generate_series(1, $3)",
    )
    .bind(bench.subject("a"))
    .bind(keys)
    .bind(MESSAGES)
    .execute(bench.store.pool())
    .await
    .unwrap();
    let raw = raw(&bench).await;
    let relay = bench.relay().await;
    relay
        .until("the first is published", |health| health.published > 0)
        .await;
    let begun = Instant::now();
    relay
        .until("all are published", |health| {
            health.published == u64::try_from(MESSAGES).unwrap()
        })
        .await;
    let rate = MESSAGES as f64 / begun.elapsed().as_secs_f64();
    #[expect(clippy::print_stdout, reason = "a measurement is there to be read")]
    {
        println!(
            "keys {keys:?}: raw {raw:.0}/s, relay {rate:.0}/s, {:.2} of it",
            rate / raw
        );
    }
    relay.drain().await;
    // One measurement must not disturb the next.
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn drain_a_backlog() {
    for keys in [None, Some(10_000), Some(100)] {
        drain(keys).await;
    }
}
