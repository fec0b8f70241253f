//! Row 10: the pruner beside a consumer.

use crate::consumer::{CONSUMER, remember, smoothly};
use crate::figure::{Better, Figure, in_turns};
use crate::house::{House, Place};
use crate::size::Size;
use std::cell::RefCell;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use twinbox::config::{ConsumerSettings, PrunerSettings};
use twinbox::pruner::Pruner;

/// How long a claim may wait, in milliseconds.
const LONGEST: f64 = 100.0;

/// Against the same without.
pub async fn beside(house: &House, size: &Size) -> Vec<Figure> {
    let (pruned, plain) = (house.place("pruned").await, house.place("plain").await);
    remember(&pruned, size.expired).await;
    pruned
        .sql("UPDATE twinbox.inbox SET claimed_at = claimed_at - interval '30 days'")
        .await;
    pruned.sql("VACUUM ANALYZE twinbox.inbox").await;
    let waits = RefCell::new(Vec::new());
    let rounds = in_turns(
        size.rounds,
        async || {
            let end = CancellationToken::new();
            let (rate, ..) = tokio::join!(
                async {
                    let rate = smoothly(&pruned, size).await;
                    end.cancel();
                    rate
                },
                prune(&pruned, &end),
                async {
                    let longest = longest_claim(&pruned, &end).await;
                    waits.borrow_mut().push([longest, LONGEST]);
                }
            );
            rate
        },
        async || {
            plain.sql("TRUNCATE twinbox.inbox").await;
            smoothly(&plain, size).await
        },
    )
    .await;
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM twinbox.inbox WHERE claimed_at < now() - interval '1 day'")
            .fetch_one(pruned.store.pool())
            .await
            .unwrap();
    let name = format!(
        "consumer while {} of {} expired ids are pruned : without",
        i64::from(size.expired) - left,
        size.expired
    );
    vec![
        Figure::new((10, &name), "messages/s", Better::More, 0.85, rounds),
        Figure::new(
            (10, "the longest claim meanwhile : its limit"),
            "ms",
            Better::Less,
            1.0,
            waits.take(),
        ),
    ]
}

/// Prunes for as long as there is something, or until it is told to end.
async fn prune(place: &Place, end: &CancellationToken) {
    let consumer = ConsumerSettings {
        name: CONSUMER.into(),
        stream: place.stream.clone(),
        ..ConsumerSettings::default()
    };
    let pruner = Pruner::new(
        place.store.clone(),
        place.nats.clone(),
        PrunerSettings::default(),
        vec![consumer],
    );
    while !end.is_cancelled() {
        pruner.run_once(end).await.unwrap();
        tokio::select! {
            () = end.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
}

/// Looks at the claims that are running, and returns the time of the longest.
async fn longest_claim(place: &Place, end: &CancellationToken) -> f64 {
    let mut longest = 0_f64;
    while !end.is_cancelled() {
        let running: f64 = sqlx::query_scalar(
            "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - query_start)), 0)::float8 * 1000
             FROM pg_stat_activity
             WHERE datname = current_database() AND state = 'active' AND query LIKE '%INSERT INTO \"twinbox\".inbox%'",
        )
        .fetch_one(place.store.pool())
        .await
        .unwrap();
        longest = longest.max(running);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    longest
}
