//! An outage, however long, uses nothing up.

use crate::bench::{Bench, DEADLINE, connect, numbers};
use crate::publishers::Asking;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use twinbox::broker::PublishError;
use twinbox::embedded::{NatsOptions, PrivateNats};
use twinbox::outbox::RelayRole;
use twinbox::testing::{self, wait_until};

#[tokio::test]
async fn the_broker_is_killed_in_the_middle_and_comes_back() {
    let mut nats = PrivateNats::start(NatsOptions::new().anonymous()).await.unwrap();
    let mut bench = Bench::on(testing::fresh_database().await, nats.url()).await;
    bench.settings.window = 50;
    let publisher = Asking::counting(connect(&bench.nats_url, "relay").await);
    let relay = bench.relay_by(publisher.clone()).await;
    bench
        .enqueue_all((0..6000).map(|number| bench.message(number).key(format!("key-{}", number % 100))))
        .await;
    wait_until("some are published", DEADLINE, || async {
        publisher.published() > 500
    })
    .await;
    nats.kill().await.unwrap();
    relay.until("it is held up", |health| !health.ready).await;
    assert_eq!(
        relay.health().role,
        RelayRole::Leader,
        "an outage of the broker costs no lease"
    );
    wait_until("what was in flight came back", DEADLINE, || {
        let before = publisher.published();
        let publisher = publisher.clone();
        async move {
            // What was in flight times out after two seconds: not a publish more comes in half a second.
            tokio::time::sleep(Duration::from_millis(500)).await;
            publisher.published() == before
        }
    })
    .await;
    assert!(publisher.published() < 6000);
    nats.restart().await.unwrap();
    relay.until("it works again", |health| health.ready).await;
    let stored = bench.stored(6000).await;
    bench.is_settled().await;
    assert_eq!(publisher.published_in_vain.load(Ordering::Relaxed), 0);
    assert_eq!(bench.count("SELECT count(*) FROM twinbox.dead_letter").await, 0);
    let distinct: HashSet<_> = stored.iter().map(|message| message.id()).collect();
    assert_eq!(distinct.len(), 6000);
    for key in 0..100 {
        let of_key: Vec<usize> = numbers(&stored)
            .into_iter()
            .filter(|number| number % 100 == key)
            .collect();
        assert!(of_key.is_sorted());
    }
    relay.drain().await;
}

#[tokio::test]
async fn a_broker_that_is_away_at_the_start_is_waited_for() {
    let mut nats = PrivateNats::start(NatsOptions::new().anonymous()).await.unwrap();
    let bench = Bench::on(testing::fresh_database().await, nats.url()).await;
    nats.stop().await.unwrap();
    let settings = twinbox::config::NatsSettings {
        url: bench.nats_url.as_str().into(),
        ..Default::default()
    };
    let publisher = twinbox::broker::nats::Nats::connect(&settings, "relay")
        .await
        .unwrap();
    let relay = bench.relay_by(publisher).await;
    bench.enqueue(bench.message(0)).await;
    relay
        .until("it leads and is held up", |health| {
            health.role == RelayRole::Leader && !health.ready && health.reason.is_some()
        })
        .await;
    nats.restart().await.unwrap();
    relay.until("it is ready", |health| health.ready).await;
    assert_eq!(numbers(&bench.stored(1).await), [0]);
    relay.drain().await;
}

#[tokio::test]
async fn a_jetstream_that_takes_nothing_is_asked_one_message_at_a_time() {
    let bench = Bench::new().await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let publisher = Asking::new(connect(&bench.nats_url, "relay").await, move |_, _| {
        is_down
            .load(Ordering::Relaxed)
            .then(|| PublishError::Outage("JetStream does not answer".to_owned()))
    });
    bench
        .enqueue_all((0..1000).map(|number| bench.message(number)))
        .await;
    let relay = bench.relay_by(publisher.clone()).await;
    relay
        .until("it is held up", |health| {
            !health.ready && health.role == RelayRole::Leader
        })
        .await;
    wait_until("it was tried often", DEADLINE, || async {
        publisher.published() > 1010
    })
    .await;
    assert!(
        publisher.published() < 1100,
        "after the first failure, one at a time"
    );
    assert_eq!(bench.count("SELECT count(*) FROM twinbox.dead_letter").await, 0);
    down.store(false, Ordering::Relaxed);
    bench.stored(1000).await;
    relay.until("it works again", |health| health.ready).await;
    bench.is_settled().await;
    relay.drain().await;
}

#[tokio::test]
async fn a_drain_during_an_outage_ends_and_loses_nothing() {
    let bench = Bench::new().await;
    let publisher = Asking::new(connect(&bench.nats_url, "relay").await, move |number, _| {
        (number >= 100).then(|| PublishError::Outage("out of storage".to_owned()))
    });
    bench
        .enqueue_all((0..1000).map(|number| bench.message(number).key((number % 50).to_string())))
        .await;
    let first = bench.relay_by(publisher).await;
    first
        .until("it is held up", |health| {
            !health.ready && health.role == RelayRole::Leader
        })
        .await;
    first.drain().await;
    let second = bench.leader().await;
    let stored = bench.stored(1000).await;
    for key in 0..50 {
        let of_key: Vec<usize> = numbers(&stored)
            .into_iter()
            .filter(|number| number % 50 == key)
            .collect();
        assert!(of_key.is_sorted());
    }
    second.drain().await;
}

#[tokio::test]
async fn the_database_is_restarted_in_the_middle() {
    use twinbox::embedded::{PostgresOptions, PrivatePostgres};
    let mut postgres = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let url = postgres.create_database("outage").await.unwrap();
    let mut bench = Bench::on(url, testing::servers().await.nats.url()).await;
    bench.settings.page_rows = 20;
    bench.settings.window = 10;
    bench
        .enqueue_all((0..5000).map(|number| bench.message(number).key(format!("key-{}", number % 50))))
        .await;
    let relay = bench.relay().await;
    relay
        .until("some are published", |health| health.published > 200)
        .await;
    postgres.stop_immediately().await.unwrap();
    relay.until("it is held up", |health| !health.ready).await;
    postgres.restart().await.unwrap();
    relay
        .until("it leads again", |health| {
            health.ready && health.role == RelayRole::Leader
        })
        .await;
    bench.is_settled().await;
    let stored = bench.all_stored().await;
    let distinct: HashSet<_> = stored.iter().map(|message| message.id()).collect();
    assert_eq!(distinct.len(), 5000);
    for key in 0..50 {
        let of_key: Vec<usize> = numbers(&stored)
            .into_iter()
            .filter(|number| number % 50 == key)
            .collect();
        assert!(of_key.is_sorted());
    }
    relay.drain().await;
}

#[tokio::test]
async fn a_standby_is_refused_until_it_is_promoted() {
    use twinbox::embedded::{PostgresOptions, PrivatePostgres};
    let mut postgres = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let url = postgres.create_database("standby").await.unwrap();
    let bench = Bench::on(url, testing::servers().await.nats.url()).await;
    let relay = bench.leader().await;
    bench.enqueue(bench.message(0)).await;
    bench.stored(1).await;
    bench.is_settled().await;
    bench.enqueue(bench.message(1)).await;
    postgres.stop().await.unwrap();
    std::fs::write(postgres.data_directory().join("standby.signal"), "").unwrap();
    postgres.restart().await.unwrap();
    relay
        .until("it refuses", |health| {
            let reason = health.reason.as_deref().unwrap_or_default();
            !health.ready && reason.contains("standby")
        })
        .await;
    sqlx::query("SELECT pg_promote()")
        .execute(bench.store.pool())
        .await
        .unwrap();
    relay
        .until("it leads again", |health| {
            health.ready && health.role == RelayRole::Leader
        })
        .await;
    bench.enqueue(bench.message(2)).await;
    let mut stored = numbers(&bench.stored(3).await);
    stored.sort_unstable();
    assert_eq!(stored, [0, 1, 2]);
    relay.drain().await;
}
