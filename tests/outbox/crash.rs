//! Relays that vanish between two durable steps: the same rows come again, and nothing is lost.

use crate::bench::{Bench, DEADLINE, numbers};
use crate::lease::Elsewhere;
use crate::publishers::Asking;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use twinbox::testing::wait_until;

/// The target is saved and nothing is published; or some of it, and its position is saved or not.
async fn vanish_after(publishes: usize) {
    let mut bench = Bench::new().await;
    bench.settings.page_rows = 50;
    bench
        .enqueue_all((0..300).map(|number| bench.message(number).key(format!("key-{}", number % 30))))
        .await;
    let elsewhere = Elsewhere::new();
    let (_first, publisher) = elsewhere
        .relay(&bench, move |nats| {
            Asking::new(nats, move |number, _| {
                if number == publishes {
                    // Until it vanishes.
                    std::thread::sleep(Duration::from_secs(3600));
                }
                None
            })
        })
        .await;
    wait_until("it is where it vanishes", DEADLINE, || async {
        publisher.published() > publishes
    })
    .await;
    let target = "SELECT count(*) FROM twinbox.relay WHERE target IS NOT NULL";
    assert_eq!(bench.count(target).await, 1, "the target was saved first");
    elsewhere.vanish();
    // Comes after the target: not part of what is published again.
    bench.enqueue(bench.message(300)).await;

    let second = bench.leader().await;
    let stored = bench.stored(301).await;
    let distinct: HashSet<_> = stored.iter().map(|message| message.id()).collect();
    assert_eq!(distinct.len(), 301);
    for key in 0..30 {
        let of_key: Vec<usize> = numbers(&stored)
            .into_iter()
            .filter(|number| number % 30 == key)
            .collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    assert_eq!(stored[300].number(), 300);
    bench.is_settled().await;
    second.drain().await;
}

#[tokio::test]
async fn between_the_target_and_the_first_publish() {
    vanish_after(0).await;
}

#[tokio::test]
async fn in_the_middle_of_the_target() {
    vanish_after(120).await;
}

#[tokio::test]
async fn before_the_last_of_the_target() {
    vanish_after(299).await;
}

#[tokio::test]
async fn a_drain_in_the_middle_saves_where_it_was() {
    let mut bench = Bench::new().await;
    bench.settings.page_rows = 50;
    bench.settings.window = 20;
    bench
        .enqueue_all((0..3000).map(|number| bench.message(number)))
        .await;
    let drains = Arc::new(AtomicUsize::new(usize::MAX));
    let publisher = {
        let drains = drains.clone();
        Asking::new(
            crate::bench::connect(&bench.nats_url, "relay").await,
            move |number, _| {
                drains.fetch_min(number, Ordering::Relaxed);
                None
            },
        )
    };
    let first = bench.relay_by(publisher.clone()).await;
    wait_until("some are published", DEADLINE, || async {
        publisher.published() > 200
    })
    .await;
    first.drain().await;
    let published = publisher.published();
    assert!(published < 3000, "it stopped in the middle");
    assert_eq!(
        bench.count("SELECT published FROM twinbox.relay").await,
        i64::try_from(published).unwrap(),
        "all that was in flight came back and is saved"
    );

    let publisher = Asking::counting(crate::bench::connect(&bench.nats_url, "relay").await);
    let second = bench.relay_by(publisher.clone()).await;
    bench.stored(3000).await;
    bench.is_settled().await;
    assert_eq!(
        publisher.published(),
        3000 - published,
        "nothing is published twice"
    );
    second.drain().await;
}
