//! A dump that is restored into another cluster, where transaction ids mean something else.

use crate::bench::{Bench, DEADLINE, connect, numbers};
use crate::lease::Elsewhere;
use crate::publishers::Asking;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;
use twinbox::config::DatabaseSettings;
use twinbox::embedded::{PostgresOptions, PrivatePostgres};
use twinbox::store::Store;
use twinbox::testing::{self, wait_until};

async fn burn_transaction_ids(postgres: &PrivatePostgres, count: u32) {
    let pool = sqlx::PgPool::connect(&postgres.url()).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    )))
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
}

fn dump_and_restore(from: &str, to: &str) {
    let dumped = Command::new("pg_dump")
        .args(["--no-owner", from])
        .output()
        .unwrap();
    assert!(
        dumped.status.success(),
        "{}",
        String::from_utf8_lossy(&dumped.stderr)
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &dumped.stdout).unwrap();
    let restored = Command::new("psql")
        .args(["-q", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(file.path())
        .arg(to)
        .output()
        .unwrap();
    assert!(
        restored.status.success(),
        "{}",
        String::from_utf8_lossy(&restored.stderr)
    );
}

/// 30 messages settled, 30 of a target half of which is published, 10 that came later; then a dump, and 10 more in the
/// other cluster before a relay comes there.
async fn restored(ids_before: u32, ids_after: u32) {
    let old = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let new = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    burn_transaction_ids(&old, ids_before).await;
    let old_url = old.create_database("before").await.unwrap();
    let mut bench = Bench::on(old_url.clone(), testing::servers().await.nats.url()).await;
    // One at a time, so that it is known which are published.
    bench.settings.window = 1;
    let relay = bench.leader().await;
    for number in 0..30 {
        bench.enqueue(bench.message(number).key("k")).await;
    }
    bench.stored(30).await;
    bench.is_settled().await;
    relay.drain().await;
    bench
        .enqueue_all((30..60).map(|number| bench.message(number).key("k")))
        .await;
    let elsewhere = Elsewhere::new();
    let (_first, publisher) = elsewhere
        .relay(&bench, |nats| {
            Asking::new(nats, |number, _| {
                (number >= 15).then(|| twinbox::broker::PublishError::Outage("away".to_owned()))
            })
        })
        .await;
    wait_until("half of the target is published and saved", DEADLINE, || async {
        bench
            .count("SELECT count(*) FROM twinbox.relay WHERE target IS NOT NULL AND published = 45")
            .await
            == 1
    })
    .await;
    elsewhere.vanish();
    drop(publisher);
    bench
        .enqueue_all((60..70).map(|number| bench.message(number).key("k")))
        .await;

    burn_transaction_ids(&new, ids_after).await;
    let new_url = new.create_database("after").await.unwrap();
    dump_and_restore(&old_url, &new_url);
    drop(old);
    bench.database = DatabaseSettings {
        url: new_url.as_str().into(),
        ..bench.database
    };
    bench.store = Store::connect(&bench.database).await.unwrap();
    bench.settings.window = 100;
    for number in 70..80 {
        bench.enqueue(bench.message(number).key("k")).await;
    }
    let status = twinbox::outbox::relay_statuses(&bench.store)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(status.pending, None, "nobody can tell yet");
    let deleted = twinbox::outbox::prune_settled(&bench.store, Duration::ZERO, 1000)
        .await
        .unwrap();
    assert_eq!(deleted, 0, "nor may anything go");

    let publisher = Asking::counting(connect(&bench.nats_url, "relay").await);
    let relay = bench.relay_by(publisher.clone()).await;
    let stored = bench.stored(80).await;
    assert_eq!(numbers(&stored), (0..80).collect::<Vec<_>>());
    bench.is_settled().await;
    assert_eq!(
        publisher.published(),
        35,
        "what was settled is not published again"
    );
    // And it goes on as ever, with transactions that were open meanwhile.
    let mut open = bench.begin().await;
    bench.outbox.enqueue(&mut open, bench.message(80)).await.unwrap();
    bench.enqueue(bench.message(81)).await;
    bench.stored(81).await;
    open.commit().await.unwrap();
    bench.stored(82).await;
    bench.is_settled().await;
    assert_eq!(publisher.published(), 37);
    assert_eq!(bench.count("SELECT published FROM twinbox.relay").await, 82);

    // All of the log can still be read again.
    bench.nats.jetstream().delete_stream(&bench.stream).await.unwrap();
    bench.create_stream(Duration::from_secs(120)).await;
    wait_until("everything is published again", DEADLINE, || async {
        let all: BTreeSet<usize> = numbers(&bench.all_stored().await).into_iter().collect();
        if all.len() == 82 { Ok(()) } else { Err(all.len()) }
    })
    .await;
    relay.drain().await;
}

#[tokio::test]
async fn into_a_cluster_that_has_given_out_fewer_transaction_ids() {
    restored(20_000, 10).await;
}

#[tokio::test]
async fn into_a_cluster_that_has_given_out_more_transaction_ids() {
    restored(10, 20_000).await;
}

#[tokio::test]
async fn into_a_cluster_that_is_about_as_far() {
    restored(10, 30).await;
}

#[tokio::test]
async fn a_log_that_no_relay_has_seen_is_published_in_another_cluster() {
    let old = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let new = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    burn_transaction_ids(&old, 5000).await;
    let old_url = old.create_database("before").await.unwrap();
    let mut bench = Bench::on(old_url.clone(), testing::servers().await.nats.url()).await;
    bench
        .enqueue_all((0..10).map(|number| bench.message(number).key("k")))
        .await;
    let new_url = new.create_database("after").await.unwrap();
    dump_and_restore(&old_url, &new_url);
    bench.database.url = new_url.as_str().into();
    bench.store = Store::connect(&bench.database).await.unwrap();
    bench
        .enqueue_all((10..20).map(|number| bench.message(number).key("k")))
        .await;
    let relay = bench.leader().await;
    assert_eq!(numbers(&bench.stored(20).await), (0..20).collect::<Vec<_>>());
    relay.drain().await;
}
