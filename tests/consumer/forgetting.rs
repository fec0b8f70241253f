//! The pruner's proof, against real streams.

use crate::house::{House, Memory, order};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use twinbox::config::{ConsumerSettings, PrunerSettings, Retention, StreamSettings};
use twinbox::dead_letter::Reason;
use twinbox::header;
use twinbox::pruner::{Pruner, Report};
use uuid::Uuid;

const DAYS: Duration = Duration::from_secs(24 * 3600);

/// Makes all claims older, as if they had been made then.
async fn age(house: &House, by: Duration) {
    sqlx::query("UPDATE twinbox.inbox SET claimed_at = claimed_at - make_interval(secs => $1)")
        .bind(by.as_secs_f64())
        .execute(house.store.pool())
        .await
        .unwrap();
}

fn pruner(house: &House, settings: &ConsumerSettings) -> Pruner {
    Pruner::new(
        house.store.clone(),
        house.nats.clone(),
        PrunerSettings::default(),
        vec![settings.clone()],
    )
}

async fn inbox_of(reports: Vec<Report>) -> Report {
    reports
        .into_iter()
        .find(|report| report.name.starts_with("inbox"))
        .unwrap()
}

async fn handle(house: &House, settings: &ConsumerSettings, orders: std::ops::Range<i32>) {
    let wanted = house.count("effect").await + i64::from(orders.end - orders.start);
    for n in orders {
        house.send("k", n, "").await;
    }
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(wanted).await;
    house.until_quiet(settings).await;
    running.stop().await;
}

#[tokio::test]
async fn only_what_the_stream_has_let_go_is_forgotten() {
    let house = House::new().await;
    let settings = house.settings("billing");
    handle(&house, &settings, 0..10).await;
    let pruner = pruner(&house, &settings);
    let none = CancellationToken::new();

    // Old enough, but the stream still has them.
    age(&house, 10 * DAYS).await;
    assert_eq!(inbox_of(pruner.run_once(&none).await.unwrap()).await.rows, 0);
    // Gone from the stream: up to 6.
    let stream = house
        .nats
        .jetstream()
        .get_stream(&house.stream.name)
        .await
        .unwrap();
    stream.purge().sequence(7).await.unwrap();
    let dry = inbox_of(pruner.dry_run().await.unwrap()).await;
    assert_eq!((dry.rows, house.count("twinbox.inbox").await), (6, 10));
    assert!(dry.proof.contains("begins at 7"), "{}", dry.proof);
    let report = inbox_of(pruner.run_once(&none).await.unwrap()).await;
    assert_eq!((report.rows, house.count("twinbox.inbox").await), (6, 4));
    // Young ones stay, whatever is gone.
    sqlx::raw_sql("UPDATE twinbox.inbox SET claimed_at = now()")
        .execute(house.store.pool())
        .await
        .unwrap();
    stream.purge().await.unwrap();
    assert_eq!(inbox_of(pruner.run_once(&none).await.unwrap()).await.rows, 0);
    let status = twinbox::pruner::status(&house.store).await.unwrap();
    assert_eq!(
        status
            .iter()
            .map(|status| status.name.as_str())
            .collect::<Vec<_>>(),
        ["outbox", "inbox billing"]
    );
    assert_eq!(status[1].deleted, 6);
}

#[tokio::test]
async fn a_second_copy_keeps_its_id_remembered() {
    let house = House::new().await;
    let settings = house.settings("billing");
    let id = Uuid::now_v7().to_string();
    house.send_as(&[(header::ID, &id)], &order("", 1, "")).await;
    handle(&house, &settings, 10..13).await;
    house.send_as(&[(header::ID, &id)], &order("", 1, "")).await;
    handle(&house, &settings, 20..21).await;
    age(&house, 10 * DAYS).await;
    let stream = house
        .nats
        .jetstream()
        .get_stream(&house.stream.name)
        .await
        .unwrap();
    stream.purge().sequence(5).await.unwrap();
    let report = inbox_of(
        pruner(&house, &settings)
            .run_once(&CancellationToken::new())
            .await
            .unwrap(),
    )
    .await;
    // The first copy and the three after it are gone; the second copy, at 5, can come again.
    assert_eq!(report.rows, 3);
    let left: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM twinbox.inbox WHERE message_id = $1 AND sequence = 5)",
    )
    .bind(id.parse::<Uuid>().unwrap())
    .fetch_one(house.store.pool())
    .await
    .unwrap();
    assert!(left);
}

#[tokio::test]
async fn a_work_queue_is_looked_up() {
    let house = House::with(Retention::WorkQueue).await;
    let settings = house.settings("billing");
    handle(&house, &settings, 0..10).await;
    // One that lies at the front keeps the stream's first number low.
    let stuck = Uuid::now_v7();
    house
        .send_as(&[(header::ID, &stuck.to_string())], &order("", 50, ""))
        .await;
    let subscription = house.nats.look_at(&settings);
    let mut messages = twinbox::broker::Subscription::messages(&subscription)
        .await
        .unwrap();
    futures_util::StreamExt::next(&mut messages)
        .await
        .unwrap()
        .unwrap();
    sqlx::query(
        "INSERT INTO twinbox.inbox (message_id, sequence, consumer, stream)
         SELECT $1, 11, consumer, stream FROM twinbox.inbox LIMIT 1",
    )
    .bind(stuck)
    .execute(house.store.pool())
    .await
    .unwrap();
    age(&house, 10 * DAYS).await;
    let report = inbox_of(
        pruner(&house, &settings)
            .run_once(&CancellationToken::new())
            .await
            .unwrap(),
    )
    .await;
    assert_eq!((report.rows, house.count("twinbox.inbox").await), (10, 1));
    assert!(report.proof.contains("looked up"), "{}", report.proof);
}

#[tokio::test]
async fn another_incarnation_of_the_stream_counts_anew() {
    let house = House::new().await;
    let settings = house.settings("billing");
    handle(&house, &settings, 0..10).await;
    house
        .nats
        .jetstream()
        .delete_stream(&house.stream.name)
        .await
        .unwrap();
    house
        .nats
        .ensure_stream(&house.stream, Duration::ZERO)
        .await
        .unwrap();
    // New messages under old numbers are new messages.
    handle(&house, &settings, 10..15).await;
    age(&house, 10 * DAYS).await;
    let pruner = pruner(&house, &settings);
    let report = inbox_of(pruner.run_once(&CancellationToken::new()).await.unwrap()).await;
    assert_eq!((report.rows, house.count("twinbox.inbox").await), (10, 5));
    house
        .nats
        .jetstream()
        .delete_stream(&house.stream.name)
        .await
        .unwrap();
    let report = inbox_of(pruner.run_once(&CancellationToken::new()).await.unwrap()).await;
    assert_eq!((report.rows, report.proof.as_str()), (5, "the stream is gone"));
}

#[tokio::test]
async fn a_late_copy_of_what_was_forgotten_is_never_run() {
    let house = House::new().await;
    // Without a limit of age the stream proves nothing.
    let endless = StreamSettings {
        name: format!("{}_ENDLESS", house.stream.name),
        subjects: vec![format!("{}_ENDLESS.>", house.stream.name)],
        max_age: Duration::ZERO,
        ..StreamSettings::default()
    };
    house.nats.ensure_stream(&endless, Duration::ZERO).await.unwrap();
    let house = House {
        stream: endless,
        ..house
    };
    let settings = house.settings("billing");
    let then = "2020-01-01T00:00:00.000000Z";
    let id = Uuid::now_v7().to_string();
    house
        .send_as(&[(header::ID, &id), (header::TIME, then)], &order("k", 1, ""))
        .await;
    handle(&house, &settings, 2..3).await;
    age(&house, 10 * DAYS).await;
    let report = inbox_of(
        pruner(&house, &settings)
            .run_once(&CancellationToken::new())
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(report.rows, 2);
    assert!(report.proof.starts_with("none"), "{}", report.proof);

    house
        .send_as(&[(header::ID, &id), (header::TIME, then)], &order("k", 1, ""))
        .await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    let dead = house.until_dead(1).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    assert_eq!(
        (dead[0].reason, dead[0].message_id),
        (Reason::TooOld, id.parse().unwrap())
    );
    assert_eq!(house.count("effect").await, 2);
}
